//! The numbers of every limit that are in force, derived from the orders that were given and the versions
//! that regions have acknowledged.

use std::{collections::BTreeMap, fmt};

use acequia_limits::{
    Limit,
    limit::LimitSpec,
    notation::{Rate, parse_duration_ns},
};
use acequia_rights::{Incarnation, VersionId};

use super::FaultsRead;
use crate::{
    ns,
    schedule::{Command, Fault, Place},
    world::{Done, Made, World},
};

/// The numbers of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Units in a period, and the burst (of a leaky bucket, the queue).
    Bucket { units: u64, period_ns: u64, burst: u64 },
    /// Units from one edge to the next.
    Window { limit: u64, window_ns: u64 },
    /// Units in every stretch of this length.
    Sliding { limit: u64, window_ns: u64 },
    /// Slots of requests under way.
    Slots { limit: u64 },
}

/// The numbers of every limit over time. A raised limit counts as soon as it is ordered. A lowered limit
/// counts when no region is bound by the higher one any more.
#[derive(Debug)]
pub(crate) struct Budgets {
    limits: BTreeMap<String, Series>,
    floors: Vec<Floor>,
    /// Incarnations that are gone, but whose units others may still hold. Each has the last version that the
    /// incarnation acknowledged, and the version from which on nobody holds its units.
    ghosts: Vec<(VersionId, Option<VersionId>)>,
    /// Whether an operator said that each region is gone.
    gone: Vec<bool>,
    /// The version with which the present authority's epoch began.
    epoch_began: VersionId,
    read: FaultsRead,
    floor: VersionId,
    at_ns: u64,
}

/// The numbers of one limit over time.
#[derive(Debug)]
struct Series {
    /// The limit's spec from a version on, until the next entry.
    specs: Vec<(VersionId, LimitSpec)>,
    /// The numbers that were ordered, by version, and whether every region at a later version has heard of
    /// them.
    issued: Vec<(VersionId, Numbers, bool)>,
    /// The numbers in force, each with the time since which it counts; never empty.
    in_force: Vec<(u64, Numbers)>,
}

/// The versions that one region is bound by.
#[derive(Clone, Copy, Debug, Default)]
struct Floor {
    incarnation: Option<Incarnation>,
    processes: u64,
    adopted: VersionId,
    is_named: bool,
    acked: VersionId,
}

impl Budgets {
    /// # Errors
    /// A limit cannot be judged.
    pub(crate) fn new(limits: &[Limit], regions: usize) -> Result<Self, String> {
        let series = |limit: &Limit| {
            let first = Numbers::of(&limit.spec)?;
            let (issued, in_force) = (vec![(VersionId::default(), first, true)], vec![(0, first)]);
            Ok((
                limit.spec.name.clone(),
                Series { specs: vec![(VersionId::default(), limit.spec.clone())], issued, in_force },
            ))
        };
        Ok(Self {
            limits: limits.iter().map(series).collect::<Result<_, String>>()?,
            floors: vec![Floor::default(); regions],
            ghosts: Vec::new(),
            gone: vec![false; regions],
            epoch_began: VersionId::default(),
            read: FaultsRead::default(),
            floor: VersionId::default(),
            at_ns: 0,
        })
    }

    /// Reads the faults that were applied and the versions that regions report. Returns whether anything
    /// changed.
    pub(crate) fn follow(&mut self, world: &World) -> bool {
        let mut is_changed = false;
        for done in self.read.next(world) {
            is_changed |= self.read_one(done);
        }
        for place in 0..self.floors.len() {
            is_changed |= self.learn(world, place);
        }
        if is_changed {
            let bound = (0..self.floors.len()).filter_map(|place| self.bound_by(place)).min();
            if let Some(bound) = bound {
                self.ghosts.retain(|(_, gone)| gone.is_none_or(|gone| bound < gone));
                self.floor = self.ghosts.iter().map(|(floor, _)| *floor).fold(bound, VersionId::min);
            }
            let (floor, after_ns, before_ns) = (self.floor, self.at_ns, ns(world.elapsed()));
            self.limits.values_mut().for_each(|series| series.renew(floor, after_ns, before_ns));
        }
        self.at_ns = ns(world.elapsed());
        is_changed
    }

    fn read_one(&mut self, done: &Done) -> bool {
        let (Fault::Order(_, command), Some(made)) = (&done.fault, done.made) else { return false };
        let Made { before, after } = made;
        // The authority's power cut lost what it had ordered under this version number before.
        let is_lost = |version_id: &VersionId| version_id.epoch == after.epoch && *version_id >= after;
        for series in self.limits.values_mut() {
            series.specs.retain(|(version_id, _)| !is_lost(version_id));
            let lost = series.issued.iter_mut().filter(|(version_id, ..)| is_lost(version_id));
            lost.for_each(|(.., is_heard)| *is_heard = false);
        }
        match command {
            Command::Budget { limit, numbers } => {
                // After a takeover on an operator's word, perhaps nobody hears the replaced authority.
                let is_heard = after > self.epoch_began;
                if let Some(series) = self.limits.get_mut(limit) {
                    series.order(made, numbers, is_heard);
                }
            }
            Command::TakeOver => {
                // The new authority's history has none of the orders after the last version that it knows.
                let issued = self.limits.values_mut().flat_map(|series| &mut series.issued);
                issued
                    .filter(|(version_id, ..)| *version_id > before)
                    .for_each(|(.., is_heard)| *is_heard = false);
                self.epoch_began = after;
            }
            Command::Evict(of) | Command::EvictAlive(of) => {
                self.gone[*of] = true;
                self.bury(*of, Some(after));
            }
            Command::Recover(_) => {
                self.ghosts.iter_mut().for_each(|(_, gone)| *gone = gone.or(Some(after)));
            }
            Command::Add(of, _) => self.gone[*of] = false,
            Command::Weight(..) | Command::Remove(_) => {}
        }
        true
    }

    fn learn(&mut self, world: &World, place: Place) -> bool {
        let region = &world.regions()[place];
        let Some(process) = region.process() else { return false };
        let (adopted, acked) = process.node.version_ids();
        let floor = self.floors[place];
        if (region.processes(), adopted) == (floor.processes, floor.adopted) && acked <= floor.acked {
            return false;
        }
        let Some(incarnation) =
            process.node.membership(process.clock.now()).map(|membership| membership.incarnation)
        else {
            return false;
        };
        if floor.incarnation.is_some_and(|before| before != incarnation) {
            self.bury(place, None);
        }
        let version = process.node.version();
        let member = version.as_ref().and_then(|version| version.members.get(&incarnation.member));
        let acked = self.floors[place].acked.max(acked);
        let (incarnation, processes, is_named) =
            (Some(incarnation), region.processes(), member.map(|it| it.incarnation) == Some(incarnation));
        self.floors[place] = Floor { incarnation, processes, adopted, is_named, acked };
        true
    }

    /// The incarnation that a region had is gone.
    fn bury(&mut self, place: Place, gone: Option<VersionId>) {
        if let Some(floor) = self.bound_by(place) {
            self.ghosts.push((floor, gone));
        }
        self.floors[place].acked = VersionId::default();
    }

    /// The version that a region is bound by; `None` if the region has nothing.
    fn bound_by(&self, place: Place) -> Option<VersionId> {
        let floor = self.floors[place];
        let has_left =
            floor.adopted != VersionId::default() && !floor.is_named && floor.acked >= floor.adopted;
        (floor.acked != VersionId::default() && !has_left).then_some(floor.acked)
    }

    /// Whether a region has a share by the version that it goes by.
    pub(crate) fn is_named(&self, place: Place) -> bool {
        self.floors[place].is_named
    }

    /// Whether an operator said that a region is gone. Nothing is promised about what such a region still
    /// does.
    pub(crate) fn is_gone(&self, place: Place) -> bool {
        self.gone[place]
    }

    /// The numbers of a limit that are in force now.
    pub(crate) fn now(&self, limit: &str) -> Option<Numbers> {
        Some(self.limits.get(limit)?.in_force.last()?.1)
    }

    /// The numbers that came into force for a limit after its first `after` changes, and when.
    pub(crate) fn changes(&self, limit: &str, after: usize) -> &[(u64, Numbers)] {
        self.limits.get(limit).and_then(|series| series.in_force.get(after..)).unwrap_or_default()
    }

    /// The largest numbers that were in force for a limit at any time since an instant.
    pub(crate) fn most_since(&self, limit: &str, since_ns: u64) -> Option<Numbers> {
        let in_force = &self.limits.get(limit)?.in_force;
        let before = in_force.partition_point(|(from_ns, _)| *from_ns <= since_ns).saturating_sub(1);
        in_force[before..].iter().map(|(_, numbers)| *numbers).reduce(Numbers::or_more)
    }
}

impl Series {
    /// Adds the numbers of an order.
    fn order(&mut self, made: Made, numbers: &[(String, String)], is_heard: bool) {
        let Made { before, after } = made;
        let known = self
            .specs
            .iter()
            .filter(|(version_id, _)| *version_id <= before)
            .max_by_key(|(version_id, _)| *version_id);
        let Some(Ok(spec)) = known.map(|(_, spec)| ordered(spec, numbers)) else { return };
        if let Ok(numbers) = Numbers::of(&spec) {
            self.issued.push((after, numbers, is_heard));
            self.specs.push((after, spec));
        }
    }

    /// Updates the numbers in force. Every change happened between `after_ns` and `before_ns`.
    fn renew(&mut self, floor: VersionId, after_ns: u64, before_ns: u64) {
        let replaced =
            self.issued.iter().filter(|(version_id, _, is_heard)| *is_heard && *version_id <= floor);
        if let Some(since) = replaced.map(|(version_id, ..)| *version_id).max() {
            self.issued.retain(|(version_id, ..)| *version_id >= since);
        }
        let most = self.issued.iter().map(|(_, numbers, _)| *numbers).reduce(Numbers::or_more);
        let (Some(most), Some((_, last))) = (most, self.in_force.last().copied()) else { return };
        let raised = last.or_more(most);
        if raised != last {
            self.in_force.push((after_ns, raised));
        }
        if raised != most {
            self.in_force.push((before_ns, most));
        }
    }
}

impl Numbers {
    fn of(spec: &LimitSpec) -> Result<Self, String> {
        let bucket = |rate: &str, burst| {
            let (units, period_ns) = rate_of(rate)?;
            Ok(Self::Bucket { units, period_ns, burst })
        };
        if let Some(it) = &spec.token_bucket {
            return bucket(&it.rate, it.burst);
        }
        if let Some(it) = &spec.leaky_bucket {
            return bucket(&it.rate, it.queue);
        }
        if let Some(it) = spec.fixed_window.as_ref().filter(|it| !it.stagger) {
            return Ok(Self::Window { limit: it.limit, window_ns: parse_duration_ns(&it.window)? });
        }
        if let Some(it) = spec.sliding_window.as_ref().filter(|it| !it.approximate) {
            return Ok(Self::Sliding { limit: it.limit, window_ns: parse_duration_ns(&it.window)? });
        }
        if let Some(it) = &spec.concurrent {
            return Ok(Self::Slots { limit: it.limit });
        }
        // A day in UTC is a window with common edges.
        if let Some(it) = spec.quota.as_ref().filter(|it| it.per == "day" && it.time_zone.is_none()) {
            return Ok(Self::Window { limit: it.limit, window_ns: 86_400_000_000_000 });
        }
        Err(format!(
            "limit {}: other calendars, edges of cells' own and approximations are not judged",
            spec.name
        ))
    }

    /// The larger number of each kind.
    fn or_more(self, other: Self) -> Self {
        match (self, other) {
            (
                Self::Bucket { units, period_ns, burst },
                Self::Bucket { units: others, period_ns: theirs, burst: most },
            ) => {
                let is_faster =
                    u128::from(others) * u128::from(period_ns) > u128::from(units) * u128::from(theirs);
                let (units, period_ns) = if is_faster { (others, theirs) } else { (units, period_ns) };
                Self::Bucket { units, period_ns, burst: burst.max(most) }
            }
            (Self::Window { limit, window_ns }, Self::Window { limit: other, .. }) => {
                Self::Window { limit: limit.max(other), window_ns }
            }
            (Self::Sliding { limit, window_ns }, Self::Sliding { limit: other, .. }) => {
                Self::Sliding { limit: limit.max(other), window_ns }
            }
            (Self::Slots { limit }, Self::Slots { limit: other }) => Self::Slots { limit: limit.max(other) },
            (one, _) => one,
        }
    }

    /// Units that a cell holds at once.
    pub(crate) fn capacity(self) -> u64 {
        match self {
            Self::Bucket { burst, .. } => burst,
            Self::Window { limit, .. } | Self::Sliding { limit, .. } | Self::Slots { limit } => limit,
        }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ns: &u64| *ns as f64 / 1e9;
        match self {
            Self::Bucket { units, period_ns: 1_000_000_000, burst } => {
                write!(f, "{units}/s and a burst of {burst}")
            }
            Self::Bucket { units, period_ns, burst } => {
                write!(f, "{units}/{}s and a burst of {burst}", seconds(period_ns))
            }
            Self::Window { limit, window_ns } => write!(f, "{limit} in {:.0} s", seconds(window_ns)),
            Self::Sliding { limit, window_ns } => write!(f, "{limit} in any {:.0} s", seconds(window_ns)),
            Self::Slots { limit } => write!(f, "{limit} at one time"),
        }
    }
}

/// Parses a rate: units, and the period in nanoseconds.
fn rate_of(text: &str) -> Result<(u64, u64), String> {
    Rate::parse(text)?;
    let unread = || format!("{text} is no rate");
    let (units, period) = text.split_once('/').ok_or_else(unread)?;
    let units = units.trim().replace('_', "").parse().map_err(|_| unread())?;
    let period = period.trim();
    let whole = if period.starts_with(|c: char| c.is_ascii_digit()) {
        period.to_owned()
    } else {
        format!("1{period}")
    };
    Ok((units, parse_duration_ns(&whole)?))
}

/// The limit's spec after an order.
fn ordered(spec: &LimitSpec, numbers: &[(String, String)]) -> Result<LimitSpec, String> {
    let mut spec = spec.clone();
    for (name, value) in numbers {
        let units = || value.parse().map_err(|_| format!("{value} is no number"));
        match name.as_str() {
            "rate" => {
                spec.token_bucket.iter_mut().for_each(|it| it.rate.clone_from(value));
                spec.leaky_bucket.iter_mut().for_each(|it| it.rate.clone_from(value));
            }
            "burst" => {
                spec.token_bucket.iter_mut().try_for_each(|it| units().map(|units| it.burst = units))?
            }
            "queue" => {
                spec.leaky_bucket.iter_mut().try_for_each(|it| units().map(|units| it.queue = units))?
            }
            "limit" => {
                spec.fixed_window.iter_mut().try_for_each(|it| units().map(|units| it.limit = units))?;
                spec.sliding_window.iter_mut().try_for_each(|it| units().map(|units| it.limit = units))?;
            }
            other => return Err(format!("a budget has no {other}")),
        }
    }
    Ok(spec)
}
