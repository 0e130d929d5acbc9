//! Used as promised: callers get most of what could be admitted. Where a plan promises this
//! ([`Plan::used_min_percent`]), the check measures each stretch of time in which the same regions hear each
//! other. `L` is what all regions may admit in the stretch, and `D` what their callers ask for. `R_s` and
//! `D_s` are the same amounts for each side `s` of a split:
//!
//! - while all regions hear each other, at least this percentage of `min(L, D)`, which an oracle would admit;
//! - in a split, the sum of `min(D_s, R_s)` over the sides, less [`SPLIT_LESS_PERCENT`] of `min(L, D)`. Nodes
//!   report what a side has when the split begins, and its standing shares determine what comes later. Loans
//!   across the split go back within seconds.
//!
//! From both results the check subtracts the remainder that is too small for a question when a stretch ends
//! ([`REST_UNITS`]).
//!
//! Limits with only a few units for each region are not checked. If a region's part is smaller than a burst
//! of its callers, a request is denied although another region has room. No move of parts is quick enough for
//! such a request.

use std::{fmt, time::Duration};

use acequia_limits::{Descriptor, Limit, RATE_PARTS};

use super::{Check, FaultsRead};
use crate::{
    bound::Bound,
    ns,
    scenarios::Plan,
    schedule::{Fault, Place},
    series::cell_of,
    world::{Answer, Reply, World},
};

/// The part of `min(L, D)` that may be missing in a split, in percent.
const SPLIT_LESS_PERCENT: u64 = 5;
/// Units that a region may have left when a stretch ends, since a question may ask for one more.
const REST_UNITS: u64 = 2;
/// A limit is checked if its burst or window has at least this many units for each region.
const UNITS_A_REGION_MIN: u64 = 10;
/// How long connections and parts take to settle after a start, and after a link is mended.
const SETTLE: Duration = Duration::from_secs(3);
/// A question that was asked this shortly before the end may have no answer yet.
const LATE: Duration = Duration::from_secs(1);
/// This near to the edge of a window, nodes charge both windows and have only what both have left.
const EDGE: Duration = Duration::from_millis(50);
const SECOND_NS: u128 = 1_000_000_000;

/// Compares what is admitted with what could be.
#[derive(Debug)]
pub struct UsedAsPromised {
    min_percent: Option<u64>,
    until: Duration,
    limits: Vec<Watched>,
    /// The links that are cut.
    cuts: Vec<(Place, Place)>,
    read: FaultsRead,
    sides: Vec<Vec<Place>>,
    /// When connections and parts will have settled after the last mended link.
    settled: Duration,
}

/// One limit that has one cell.
#[derive(Debug)]
struct Watched {
    limit: Limit,
    bound: Bound,
    /// The last window in which anything was admitted: its number, and the units admitted in it.
    spent: (u64, u64),
    stretches: Vec<Stretch>,
}

/// A time in which the same regions hear each other, and no window ends.
#[derive(Debug)]
struct Stretch {
    from: Duration,
    until: Option<Duration>,
    window: u64,
    sides: Vec<Side>,
}

/// Regions that hear each other.
#[derive(Clone, Debug, Default)]
struct Side {
    places: Vec<Place>,
    /// Units that the side has at first. `rate` is its part of the rate at which more come.
    units: u64,
    rate: u64,
    asked: u64,
    admitted: u64,
}

/// What was and could have been admitted in some stretches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    /// What an oracle would admit.
    oracle: u64,
    /// What the sides can admit that do not hear each other.
    apart: u64,
    /// The remainder that may be left because it is too small for a question.
    rest: u64,
    admitted: u64,
}

impl UsedAsPromised {
    /// A check of these limits.
    pub fn new(limits: &[Limit], plan: &Plan) -> Self {
        let large = UNITS_A_REGION_MIN * plan.regions as u64;
        let watched = |limit: &Limit| {
            let bound = Bound::of(&limit.spec).filter(|_| limit.by.is_empty())?;
            let (Bound::Bucket { burst: units, .. } | Bound::Window { limit: units, .. }) = bound;
            (units >= large).then(|| Watched {
                limit: limit.clone(),
                bound,
                spent: (0, 0),
                stretches: Vec::new(),
            })
        };
        Self {
            // A caller that leases asks for more than it may have. Reports use what others might have had.
            min_percent: plan.used_min_percent.filter(|_| {
                plan.schedule.faults().iter().all(|(_, fault)| is_of_links(fault))
                    && plan.demand.longest_use().is_zero()
            }),
            until: plan.duration.saturating_sub(LATE),
            limits: limits.iter().filter_map(watched).collect(),
            cuts: Vec::new(),
            read: FaultsRead::default(),
            sides: vec![(0..plan.regions).collect()],
            settled: SETTLE,
        }
    }

    /// Reads which links were cut and mended.
    fn follow(&mut self, world: &World) {
        let before = self.sides.len();
        let mut is_mended = false;
        for done in self.read.next(world) {
            match done.fault {
                Fault::Cut(a, b) => self.cuts.push((a, b)),
                Fault::Mend(a, b) => self.cuts.retain(|cut| ![(a, b), (b, a)].contains(cut)),
                Fault::Heal => self.cuts.clear(),
                _ => continue,
            }
            is_mended |= !matches!(done.fault, Fault::Cut(..));
            self.sides = sides(world.regions().len(), &self.cuts);
        }
        if is_mended {
            self.settled = world.elapsed() + SETTLE;
        }
        if is_mended || self.sides.len() != before {
            self.limits.iter_mut().for_each(|watched| watched.close(world.elapsed()));
        }
    }

    fn findings(&self, min_percent: u64) -> Vec<String> {
        let of = |watched: &Watched| {
            let (together, apart) = watched.used();
            let name = &watched.limit.spec.name;
            let least = (together.oracle * min_percent / 100).saturating_sub(together.rest);
            let all = (together.admitted < least)
                .then(|| format!("limit {name}: {together} while all heard each other, less than {least}"));
            let least = apart.apart_least();
            let split = (apart.admitted < least)
                .then(|| format!("limit {name}: {apart} in a split, less than {least}"));
            all.into_iter().chain(split)
        };
        self.limits.iter().flat_map(of).collect()
    }
}

/// Whether a fault leaves every machine its state. Utilisation is promised only for such faults. A plan that
/// promises utilisation may be run with another schedule.
const fn is_of_links(fault: &Fault) -> bool {
    matches!(fault, Fault::Cut(..) | Fault::Mend(..) | Fault::Lose(..) | Fault::Wall(..))
}

/// Groups of regions that hear each other, directly or through others.
fn sides(regions: usize, cuts: &[(Place, Place)]) -> Vec<Vec<Place>> {
    let is_cut = |a, b| cuts.contains(&(a, b)) || cuts.contains(&(b, a));
    let mut sides: Vec<Vec<Place>> = Vec::new();
    for place in 0..regions {
        let hears = |side: &Vec<Place>| side.iter().any(|other| !is_cut(*other, place));
        let (heard, mut rest): (Vec<_>, Vec<_>) = sides.into_iter().partition(hears);
        rest.push(heard.into_iter().flatten().chain([place]).collect());
        sides = rest;
    }
    sides
}

impl Watched {
    fn close(&mut self, at: Duration) {
        if let Some(open) = self.stretches.last_mut() {
            open.until.get_or_insert(at);
        }
    }

    /// Begins a stretch if none is open, or if a new window has begun.
    fn begin(&mut self, world: &World, sides: &[Vec<Place>]) {
        let now = world.elapsed();
        let window = self.bound.window_at(ns(now));
        let open = self.stretches.last().filter(|stretch| stretch.until.is_none());
        if open.is_some_and(|stretch| stretch.window == window) {
            return;
        }
        let is_fresh = open.is_some();
        if !is_fresh
            && self.bound.window_at(ns(now.saturating_sub(EDGE))) != self.bound.window_at(ns(now + EDGE))
        {
            return;
        }
        self.close(now);
        let is_window = matches!(self.bound, Bound::Window { .. });
        let side = |places: &Vec<Place>| {
            let mut side = Side { places: places.clone(), ..Side::default() };
            for place in places {
                let Some(process) = world.regions()[*place].process() else { continue };
                let values = Descriptor::new(&[], None);
                let now = process.clock.now();
                let holding = process.node.holding_named(self.limit.id, &values, now).unwrap_or_default();
                // A node closes the previous window, and the transfers in it, only when somebody asks.
                let is_unopened = is_window && process.node.is_due(self.limit.id, &values, now);
                side.units += if is_fresh || is_unopened { holding.standing.units } else { holding.left };
                side.rate += u64::from(holding.standing.rate);
            }
            if let Bound::Window { limit, .. } = self.bound
                && places.len() == world.regions().len()
            {
                // This includes units on their way from one region to another.
                side.units = limit - if self.spent.0 == window { self.spent.1.min(limit) } else { 0 };
            }
            side
        };
        let sides = sides.iter().map(side).collect();
        self.stretches.push(Stretch { from: now, until: None, window, sides });
    }

    fn count(&mut self, answer: &Answer) {
        let is_in = |stretch: &&mut Stretch| {
            stretch.from <= answer.asked && stretch.until.is_none_or(|until| answer.asked < until)
        };
        if cell_of(&self.limit, &answer.question).is_none() {
            return;
        }
        let units = answer.question.cost * self.limit.cost;
        if let Reply::Allowed(_) = answer.reply {
            let window = self.bound.window_at(ns(answer.asked));
            let before = if self.spent.0 == window { self.spent.1 } else { 0 };
            self.spent = (window, before + units);
        }
        let Some(stretch) = self.stretches.iter_mut().find(is_in) else { return };
        for side in stretch.sides.iter_mut().filter(|side| side.places.contains(&answer.place)) {
            side.asked += units;
            side.admitted += if matches!(answer.reply, Reply::Allowed(_)) { units } else { 0 };
        }
    }

    /// Sums over the stretches in which all regions heard each other, and over those of a split.
    fn used(&self) -> (Used, Used) {
        let (mut together, mut apart) = (Used::default(), Used::default());
        for stretch in &self.stretches {
            let Some(until) = stretch.until else { continue };
            let sum = if stretch.sides.len() > 1 { &mut apart } else { &mut together };
            sum.add(stretch.used(until, self.bound));
        }
        (together, apart)
    }
}

impl Stretch {
    fn used(&self, until: Duration, bound: Bound) -> Used {
        let passed_ns = u128::from(ns(until) - ns(self.from));
        let rights = |side: &Side| match bound {
            Bound::Bucket { rate, .. } => {
                let parts = u128::from(rate) * u128::from(side.rate) * passed_ns;
                side.units + (parts / (u128::from(RATE_PARTS) * SECOND_NS)) as u64
            }
            Bound::Window { .. } => side.units,
        };
        let (asked, all): (u64, u64) =
            (self.sides.iter().map(|side| side.asked).sum(), self.sides.iter().map(rights).sum());
        Used {
            oracle: asked.min(all),
            apart: self.sides.iter().map(|side| side.asked.min(rights(side))).sum(),
            rest: self.sides.iter().map(|side| side.places.len() as u64 * REST_UNITS).sum(),
            admitted: self.sides.iter().map(|side| side.admitted).sum(),
        }
    }
}

impl Used {
    fn add(&mut self, other: Self) {
        self.oracle += other.oracle;
        self.apart += other.apart;
        self.rest += other.rest;
        self.admitted += other.admitted;
    }

    /// The least that sides must admit that do not hear each other.
    fn apart_least(self) -> u64 {
        self.apart.saturating_sub(self.oracle * SPLIT_LESS_PERCENT / 100 + self.rest)
    }

    fn percent(self, of: u64) -> f64 {
        of as f64 * 100.0 / self.oracle.max(1) as f64
    }
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (admitted, oracle) = (self.admitted, self.oracle);
        write!(f, "{admitted} of {oracle} units that an oracle admits, {:.1} %", self.percent(admitted))
    }
}

impl Check for UsedAsPromised {
    fn name(&self) -> &'static str {
        "used as promised"
    }

    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        if self.min_percent.is_none() {
            return Ok(());
        }
        self.follow(world);
        if world.elapsed() >= self.until {
            self.limits.iter_mut().for_each(|watched| watched.close(self.until));
        } else if world.elapsed() >= self.settled {
            self.limits.iter_mut().for_each(|watched| watched.begin(world, &self.sides));
        }
        for answer in answers {
            self.limits.iter_mut().for_each(|watched| watched.count(answer));
        }
        Ok(())
    }

    fn end(&mut self, _: &World) -> Result<(), String> {
        let findings = self.min_percent.map_or_else(Vec::new, |min_percent| self.findings(min_percent));
        if findings.is_empty() { Ok(()) } else { Err(findings.join("; ")) }
    }

    fn summary(&self) -> Vec<String> {
        let line = |watched: &Watched| {
            let (together, apart) = watched.used();
            let name = &watched.limit.spec.name;
            let split = format!(
                "; in a split {apart}, and {:.1} % is what its sides have",
                apart.percent(apart.apart)
            );
            let split = if apart.oracle > 0 { split } else { String::new() };
            format!("{name}: {together}{split}")
        };
        self.limits.iter().filter(|_| self.min_percent.is_some()).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: Bound = Bound::Bucket { rate: 40, burst: 60 };

    fn stretch(sides: &[(&[Place], u64, u64)]) -> Used {
        let side = |(places, asked, admitted): &(&[Place], u64, u64)| Side {
            places: places.to_vec(),
            units: 0,
            rate: places.len() as u64 * u64::from(RATE_PARTS) / 4,
            asked: *asked,
            admitted: *admitted,
        };
        let sides = sides.iter().map(side).collect();
        let stretch = Stretch { from: Duration::ZERO, until: None, window: 0, sides };
        stretch.used(Duration::from_secs(10), BUCKET)
    }

    #[test]
    fn regions_that_hear_each_other_are_one_side_whichever_way_round() {
        assert_eq!(sides(3, &[]), [[0, 1, 2]]);
        assert_eq!(sides(3, &[(0, 1)]), [[0, 1, 2]], "over the third");
        assert_eq!(sides(3, &[(0, 1), (2, 0)]), [vec![0], vec![1, 2]]);
        assert_eq!(sides(4, &[(0, 1), (0, 3), (2, 1), (2, 3)]), [[0, 2], [1, 3]]);
    }

    #[test]
    fn sides_have_what_they_are_asked_for_or_what_is_theirs() {
        // A hot region of four has 10 of 40 a second, and is asked for 60; the others are asked for 12.
        let used = stretch(&[(&[0], 600, 100), (&[1, 2, 3], 120, 120)]);
        assert_eq!(used, Used { oracle: 400, apart: 220, rest: 8, admitted: 220 });
        assert_eq!(used.apart_least(), 192);
    }

    #[test]
    fn what_lies_idle_while_all_hear_each_other_is_missed() {
        let used = stretch(&[(&[0, 1, 2, 3], 720, 220)]);
        assert_eq!((used.oracle, used.apart, used.admitted), (400, 400, 220));
    }
}
