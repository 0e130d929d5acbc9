//! Soft limits in a question: what is told, and slowed, before a limit is reached.
//!
//! How much is used is judged for the whole limit: what this region has charged, and what the others were heard to have. The latter is
//! old, and a lower bound; so a warning comes a little late rather than early.
//!
//! What a cell was told of, and how fast it goes, is kept beside the cells, for the few that are nearly used up, and in memory only. A
//! restart, and another region, may tell the same once more: under the same id.

use acequia_limits::{
    Algorithm, Now, Part, RATE_PARTS, Reason, Verdict,
    limit::{Soft, Throttle},
    meter::Meter,
};

use super::{
    Ask, Check,
    answer::denied,
    hit::{CellSource, Hit},
};
use crate::shard::{Cells, SoftState};

/// The most bytes of a value that a warning carries.
const VALUE_BYTES_MAX: usize = 256;

/// So much of a cell is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The same for the same threshold, cell and window, wherever and however often it is told.
    pub id: String,
    /// The limit's domain.
    pub domain: String,
    /// Its name.
    pub name: String,
    /// The part of the limit that was reached, in percent.
    pub percent: u8,
    /// Units used, as far as is known here.
    pub used: u64,
    /// Of so many.
    pub budget: u64,
    /// The cell: its keys and values.
    pub by: Vec<(String, String)>,
    /// When its window ends: wall clock, nanoseconds; nothing for what has no edges.
    pub window_ends_ns: Option<u64>,
    /// When it was reached.
    pub at: Now,
}

/// How much of a limit is used, by a cell.
#[derive(Clone, Copy, Debug)]
struct Used {
    here: u64,
    everywhere: u64,
    budget: u64,
    /// What this region may use of it.
    effective: u64,
    /// The end of the window that is open; 0 where there are no edges.
    window: u64,
}

impl Used {
    fn percent(units: u64, budget: u64) -> u8 {
        let percent = u128::from(units) * 100 / u128::from(budget.max(1));
        u8::try_from(percent).unwrap_or(u8::MAX)
    }

    /// The highest of some thresholds that is reached.
    fn reached(units: u64, budget: u64, thresholds: &[u8]) -> u8 {
        let percent = Self::percent(units, budget);
        thresholds.iter().copied().filter(|threshold| *threshold <= percent).max().unwrap_or(0)
    }
}

impl Check<'_, '_> {
    /// How much is used when so many units are left to the hit's class.
    fn used(&self, hit: &Hit, left: u64, cells: &Cells) -> Used {
        let budget = self.global(hit).budget();
        let account = match hit.place {
            CellSource::At(place) => cells.account(place),
            CellSource::Absent | CellSource::Shared => None,
        };
        let algorithm = account.map_or(self.algorithm(hit), |account| &account.algorithm);
        let effective = algorithm.budget();
        let here = effective.saturating_sub(left.saturating_add(hit.leaves(effective)));
        let everywhere = here.saturating_add(account.map_or(0, |account| account.elsewhere())).min(budget);
        let words: &[u64] = match hit.place {
            CellSource::At(place) => cells.words(cells.table.at(place)),
            CellSource::Absent | CellSource::Shared => &[],
        };
        let window = match algorithm {
            Algorithm::FixedWindow(window) => window.older_end(words, self.now.wall_ns, hit.tag.salt()),
            _ => 0,
        };
        Used { here, everywhere, budget, effective, window }
    }

    /// What a limit that slows down says of a hit that it would let pass; nothing while it does not.
    #[cold]
    pub(super) fn throttle(
        &self,
        hit: &Hit,
        soft: &Soft,
        verdict: Verdict,
        cells: &Cells,
    ) -> Option<(Verdict, Reason)> {
        let throttle = soft.throttle.as_ref()?;
        let used = self.used(hit, verdict.remaining.saturating_add(hit.units), cells);
        if Used::percent(used.everywhere, used.budget) < throttle.from_percent {
            return None;
        }
        let meter = local(throttle, &used);
        let tat = cells.soft(self.key(hit)).map_or(0, |state| state.tat(used.window, self.now));
        // What costs more than may wait takes all that may.
        let slowed = meter.probe(tat, self.now.steady_ns, hit.units.min(meter.capacity()));
        if !slowed.allowed {
            return Some((denied(verdict, hit.units, slowed.retry_after_ns), Reason::Throttled));
        }
        let delay_ns = meter.delay_ns(tat, self.now.steady_ns);
        let Ask { can_wait, .. } = self.ask;
        if delay_ns > 0 && !can_wait {
            return Some((denied(verdict, hit.units, delay_ns), Reason::Throttled));
        }
        Some((Verdict { delay_ns: verdict.delay_ns.max(delay_ns), ..verdict }, Reason::WithinLimit))
    }

    /// After a charge that left so many units: counts it where the limit is slowed, and tells what was reached.
    #[cold]
    pub(super) fn note_use(&self, hit: &Hit, soft: &Soft, left: u64, cells: &mut Cells) {
        let used = self.used(hit, left, cells);
        let before = used.everywhere.saturating_sub(hit.units);
        let from = soft.throttle.as_ref().map_or(u8::MAX, |throttle| throttle.from_percent);
        let is_slowed = Used::percent(before, used.budget) >= from;
        let reached = Used::reached(used.everywhere, used.budget, &soft.warn_at);
        if reached == 0 && !is_slowed {
            return;
        }
        let key = self.key(hit);
        let mut state = match cells.soft(key).filter(|state| state.is_of(used.window, self.now)) {
            Some(state) => *state,
            None => {
                // What this region had used before was told by the process that saw it.
                let told = Used::reached(used.here.saturating_sub(hit.units), used.budget, &soft.warn_at);
                let ends_ns = self.now.steady_ns.saturating_add(self.global(hit).period_ns());
                SoftState::new(used.window, ends_ns, told)
            }
        };
        let told = state.told;
        state.told = told.max(reached);
        if let Some(throttle) = soft.throttle.as_ref().filter(|_| is_slowed) {
            let meter = local(throttle, &used);
            let tat = state.tat(used.window, self.now);
            state.set_tat(meter.charge(tat, self.now.steady_ns, hit.units.min(meter.capacity())));
        }
        // Nobody remembers a cell for which there is no room: it is told of once for each threshold that one charge passes.
        let is_kept = cells.keep_soft(key, state, self.now);
        let passed = |percent: u8| {
            let is_crossed = is_kept || percent > Used::percent(before, used.budget);
            percent > told && percent <= reached && is_crossed
        };
        for percent in soft.warn_at.iter().copied().filter(|percent| passed(*percent)) {
            self.node.warn(self.warning(hit, percent, &used));
        }
    }

    fn key(&self, hit: &Hit) -> (u32, acequia_limits::CellTag) {
        (self.limit(hit).slot, hit.tag)
    }

    fn warning(&self, hit: &Hit, percent: u8, used: &Used) -> Warning {
        let limit = &self.limit(hit).limit;
        let first = hit.descriptors.trailing_zeros() as usize;
        let descriptor = self.request.descriptors().nth(first);
        let by = limit.by.iter().filter_map(|by| {
            let value = descriptor.as_ref()?.value(by.key.as_bytes())?;
            let value = &value[..value.len().min(VALUE_BYTES_MAX)];
            Some((by.key.clone(), String::from_utf8_lossy(value).into_owned()))
        });
        // Of what has no edges, a stretch of time as long as the limit's.
        let stretch = match used.window {
            0 => self.now.wall_ns / self.global(hit).period_ns().max(1),
            end_ns => end_ns / 1_000_000,
        };
        Warning {
            id: format!("{:032x}-{stretch}-{percent}", hit.tag.0),
            domain: limit.spec.domain.clone(),
            name: limit.spec.name.clone(),
            percent,
            used: used.everywhere,
            budget: used.budget,
            by: by.collect(),
            window_ends_ns: (used.window > 0).then_some(used.window),
            at: self.now,
        }
    }
}

/// A throttle as fast as this region's part of the cell is of the whole.
fn local(throttle: &Throttle, used: &Used) -> Meter {
    if used.effective >= used.budget {
        return throttle.meter;
    }
    let part = |of: u64| {
        let part = u128::from(of) * u128::from(used.effective) / u128::from(used.budget.max(1));
        u64::try_from(part).unwrap_or(of).max(1)
    };
    // At most as much as the whole.
    let rate = part(u64::from(RATE_PARTS)) as u32;
    throttle.meter.local(Part { rate, units: part(throttle.meter.capacity()) }, 0)
}
