//! Soft limits in a request: warnings and throttling before a limit is reached.
//!
//! Use is judged for the whole limit: the units that this region has charged, plus the units that other
//! regions have reported. The latter are old and a lower bound, so a warning comes a little late rather than
//! early.
//!
//! The warnings sent for a cell, and the cell's throttle, are kept beside the cells, in memory only, for the
//! few cells that are nearly used up. A restart or another region may send the same warning once more, under
//! the same id.

use acequia_limits::{
    Algorithm, Now, Part, RATE_PARTS, Reason, Verdict,
    limit::{Soft, Throttle},
    meter::Meter,
};

use super::{
    Ask, RequestCheck,
    answer::denied,
    hit::{CellSource, Hit},
};
use crate::{
    cell::shard::{Cells, SoftState},
    settings::SETTINGS,
};

/// A warning that a cell's use has reached a threshold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The id is equal for the same threshold, cell and window, wherever and however often the warning is
    /// sent.
    pub id: String,
    /// The limit's domain.
    pub domain: String,
    /// The limit's name.
    pub name: String,
    /// The part of the limit that was reached, in percent.
    pub percent: u8,
    /// Units used, as far as this node knows.
    pub used: u64,
    /// The budget of the cell.
    pub budget: u64,
    /// The name of what the limit counts; `None` if it has none.
    pub unit: Option<String>,
    /// The cell: its keys and values.
    pub by: Vec<(String, String)>,
    /// When the cell's window ends: wall clock, nanoseconds; `None` if there are no edges.
    pub window_ends_ns: Option<u64>,
    /// When the threshold was reached.
    pub at: Now,
}

/// How much of a limit one cell has used.
#[derive(Clone, Copy, Debug)]
struct SoftUse {
    here: u64,
    everywhere: u64,
    budget: u64,
    /// The units of the budget that this region may use.
    effective: u64,
    /// The end of the open window; 0 if there are no edges.
    window: u64,
}

impl SoftUse {
    fn percent(units: u64, budget: u64) -> u8 {
        let percent = u128::from(units) * 100 / u128::from(budget.max(1));
        u8::try_from(percent).unwrap_or(u8::MAX)
    }

    /// The highest of the thresholds that is reached; 0 if none is.
    fn reached(units: u64, budget: u64, thresholds: &[u8]) -> u8 {
        let percent = Self::percent(units, budget);
        thresholds.iter().copied().filter(|threshold| *threshold <= percent).max().unwrap_or(0)
    }
}

impl RequestCheck<'_, '_> {
    /// The use when `left` units are left to the hit's class.
    fn used(&self, hit: &Hit, left: u64, cells: &Cells) -> SoftUse {
        let budget = self.global(hit).budget();
        let account = match hit.place {
            CellSource::At(place) => cells.account(place),
            CellSource::Absent | CellSource::Shared => None,
        };
        let algorithm = account.map_or(self.algorithm(hit), |account| &account.algorithm);
        let effective = algorithm.budget();
        let here = effective.saturating_sub(left.saturating_add(hit.leaves(effective)));
        let everywhere = here.saturating_add(account.map_or(0, |account| account.elsewhere())).min(budget);
        let state: &[u64] = match hit.place {
            CellSource::At(place) => cells.state(cells.table.at(place)),
            CellSource::Absent | CellSource::Shared => &[],
        };
        let window = match algorithm {
            Algorithm::FixedWindow(window) => window.older_end(state, self.now.wall_ns, hit.tag.salt()),
            _ => 0,
        };
        SoftUse { here, everywhere, budget, effective, window }
    }

    /// The throttle's verdict on a hit that would otherwise pass; `None` while the limit does not throttle.
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
        if SoftUse::percent(used.everywhere, used.budget) < throttle.from_percent {
            return None;
        }
        let meter = local(throttle, &used);
        let tat =
            cells.soft(self.limit(hit).slot, hit.tag).map_or(0, |state| state.tat(used.window, self.now));
        // A request that costs more than the throttle's capacity takes all of the capacity.
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

    /// Notes a charge that left `left` units: counts it if the limit is throttled, and sends the warnings
    /// that are due.
    #[cold]
    pub(super) fn note_use(&self, hit: &Hit, soft: &Soft, left: u64, cells: &mut Cells) {
        let used = self.used(hit, left, cells);
        let before = used.everywhere.saturating_sub(hit.units);
        let from = soft.throttle.as_ref().map_or(u8::MAX, |throttle| throttle.from_percent);
        let is_slowed = SoftUse::percent(before, used.budget) >= from;
        let reached = SoftUse::reached(used.everywhere, used.budget, &soft.warn_at);
        if reached == 0 && !is_slowed {
            return;
        }
        let (slot, tag) = (self.limit(hit).slot, hit.tag);
        let mut state = match cells.soft(slot, tag).filter(|state| state.is_of(used.window, self.now)) {
            Some(state) => *state,
            None => {
                // The process that saw this region's earlier use has sent its warnings.
                let told = SoftUse::reached(used.here.saturating_sub(hit.units), used.budget, &soft.warn_at);
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
        // A cell for which there is no room is not remembered: one warning is sent for each threshold that
        // one charge passes.
        let is_kept = cells.keep_soft(slot, tag, state, self.now);
        let passed = |percent: u8| {
            let is_crossed = is_kept || percent > SoftUse::percent(before, used.budget);
            percent > told && percent <= reached && is_crossed
        };
        for percent in soft.warn_at.iter().copied().filter(|percent| passed(*percent)) {
            self.node.warn(self.warning(hit, percent, &used));
        }
    }

    fn warning(&self, hit: &Hit, percent: u8, used: &SoftUse) -> Warning {
        let limit = &self.limit(hit).limit;
        let first = hit.descriptors.trailing_zeros() as usize;
        let descriptor = self.request.descriptors().nth(first);
        let by = limit.by.iter().filter_map(|by| {
            let value = by.value(descriptor.as_ref()?)?;
            let value = &value[..value.len().min(SETTINGS.decide.warning_value_bytes_max)];
            Some((by.key.clone(), String::from_utf8_lossy(value).into_owned()))
        });
        // A limit without edges uses stretches of time as long as its period.
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
            unit: limit.spec.unit.clone(),
            by: by.collect(),
            window_ends_ns: (used.window > 0).then_some(used.window),
            at: self.now,
        }
    }
}

/// The throttle, scaled to this region's part of the cell.
fn local(throttle: &Throttle, used: &SoftUse) -> Meter {
    if used.effective >= used.budget {
        return throttle.meter;
    }
    let part = |of: u64| {
        let part = u128::from(of) * u128::from(used.effective) / u128::from(used.budget.max(1));
        u64::try_from(part).unwrap_or(of).max(1)
    };
    // The result is at most the whole rate, so it fits 32 bits.
    let rate = part(u64::from(RATE_PARTS)) as u32;
    throttle.meter.local(Part { rate, units: part(throttle.meter.capacity()) }, 0)
}
