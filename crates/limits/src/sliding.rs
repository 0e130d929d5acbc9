//! Sliding windows: a limit for *every* stretch of time as long as the window.
//!
//! There are three ways to count, all on the steady clock:
//! - [`SlidingLog`] remembers every charge, and is exact. Its cells grow with the limit, so it serves
//!   limits up to [`LOG_UNITS_MAX`].
//! - [`SlidingSlots`] counts in `m` slots, and drops a slot only when the whole slot has left the window.
//!   The admitted units never exceed the limit, and units are held back for up to one slot too long.
//! - [`SlidingApproximate`] is the popular pair of counters; the older counter is weighted by its time left
//!   in the window. The estimate assumes that the older window's charges were spread evenly. If those
//!   charges were not, the pair admits up to twice the limit, so a config must ask for it by the name
//!   `approximate`.

use serde::{Deserialize, Serialize};

use crate::{
    PERIOD_NS_MAX, UNITS_MAX,
    time::CLOCK_END,
    verdict::{NEVER, Verdict},
};

/// The largest limit that an exact log counts unless the config sets `slots`. A log of 64 charges takes 1
/// KiB, four times as much as 32 slots.
pub const LOG_UNITS_MAX: u64 = 64;

/// The most charges in an exact log. A limit of [`LOG_UNITS_MAX`] never has more than half as many, unless
/// it owes units.
pub const LOG_CHARGES_MAX: usize = 2 * LOG_UNITS_MAX as usize;

/// The number of slots if the config sets none. A cell takes 8 bytes a slot. Under constant load about `1 /
/// (slots + 1)` of the limit is held back.
pub const SLOTS_DEFAULT: u32 = 32;

/// The slots in which a large limit on requests under way counts: a slot whose holder is gone is free at most 1 /
/// 128 of its time to live too late. A cell takes 1 KiB.
pub const CONCURRENT_SLOTS: u32 = 128;

/// The most slots that a config may ask for: a cell with more costs more than the precision is worth.
pub const SLOTS_MAX: u32 = 1_024;

/// The largest limit of [`SlidingApproximate`], which packs two counters in one word.
pub const APPROXIMATE_UNITS_MAX: u64 = u32::MAX as u64;

/// An exact log of every charge in the window. State: pairs of (time, units), oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingLog {
    /// Units in any window.
    pub limit: u64,
    /// Length of the window in nanoseconds, above 0.
    pub window_ns: u64,
}

impl SlidingLog {
    /// Whether `cost` fits beside the charges of the last window.
    pub fn probe(&self, log: &[u64], steady_ns: u64, cost: u64) -> Verdict {
        let live = &log[self.expired(log, steady_ns)..];
        let used: u64 = live.chunks_exact(2).map(|charge| charge[1]).sum();
        let left = self.limit.saturating_sub(used);
        let newest = live.chunks_exact(2).next_back().map_or(steady_ns, |charge| charge[0]);
        let reset_after_ns = if used == 0 { 0 } else { newest + self.window_ns - steady_ns };
        if cost <= left {
            let reset_after_ns = if cost > 0 { self.window_ns } else { reset_after_ns };
            return Verdict {
                allowed: true,
                remaining: left - cost,
                retry_after_ns: 0,
                delay_ns: 0,
                reset_after_ns,
            };
        }
        let mut retry_after_ns = NEVER;
        if cost <= self.limit {
            let mut surplus = used + cost - self.limit;
            for charge in live.chunks_exact(2) {
                surplus = surplus.saturating_sub(charge[1]);
                if surplus == 0 {
                    retry_after_ns = charge[0] + self.window_ns - steady_ns;
                    break;
                }
            }
        }
        Verdict { allowed: false, remaining: left, retry_after_ns, delay_ns: 0, reset_after_ns }
    }

    /// Adds a charge, and drops the charges that left the window. Charges that [`SlidingLog::probe`] allowed
    /// are all remembered. The log keeps [`LOG_CHARGES_MAX`] charges: after them, the last one is dated now,
    /// and takes the others up. Only a window that owes has so many.
    pub fn charge(&self, log: &mut Vec<u64>, steady_ns: u64, cost: u64) {
        log.drain(..self.expired(log, steady_ns));
        match log.len().checked_sub(2) {
            Some(last) if log[last] >= steady_ns => log[last + 1] += cost,
            Some(last) if log.len() / 2 >= LOG_CHARGES_MAX => {
                log[last] = steady_ns;
                log[last + 1] += cost;
            }
            _ => log.extend([steady_ns, cost]),
        }
    }

    /// Units in the window beyond the limit.
    pub fn debt(&self, log: &[u64], steady_ns: u64) -> u64 {
        let live = &log[self.expired(log, steady_ns)..];
        live.chunks_exact(2).map(|charge| charge[1]).sum::<u64>().saturating_sub(self.limit)
    }

    /// Takes `units` back of a charge made at `charged_ns`, if it is still in the window. Returns the number
    /// of units that came back.
    ///
    /// The log may date the charge later than it was made: a thread with a later clock came first, or a
    /// restart dated all charges later. So the first charges dated at `charged_ns` or later give the units.
    /// Those would leave the window first: each charge that stays is still dated no earlier than it was made.
    pub fn refund(&self, log: &mut Vec<u64>, charged_ns: u64, units: u64, steady_ns: u64) -> u64 {
        if charged_ns.saturating_add(self.window_ns) <= steady_ns {
            return 0;
        }
        let from = log.chunks_exact(2).take_while(|charge| charge[0] < charged_ns).count() * 2;
        let mut left = units;
        for charge in log[from..].chunks_exact_mut(2) {
            let back = left.min(charge[1]);
            charge[1] -= back;
            left -= back;
            if left == 0 {
                break;
            }
        }
        let empty = log[from..].chunks_exact(2).take_while(|charge| charge[1] == 0).count() * 2;
        log.drain(from..from + empty);
        units - left
    }

    /// Takes `units` back from the oldest charges in the window. Returns the number of units that came back.
    pub(crate) fn give_back(&self, log: &mut Vec<u64>, units: u64, steady_ns: u64) -> u64 {
        let from = self.expired(log, steady_ns);
        let (mut back, mut end) = (0, from);
        for charge in log[from..].chunks_exact_mut(2) {
            let taken = charge[1].min(units - back);
            charge[1] -= taken;
            back += taken;
            if charge[1] > 0 {
                break;
            }
            end += 2;
        }
        log.drain(from..end);
        back
    }

    /// Whether every charge has left the window.
    pub fn is_idle(&self, log: &[u64], steady_ns: u64) -> bool {
        self.expired(log, steady_ns) == log.len()
    }

    /// Whether `log`, read from a disk, can be a state of this window.
    pub fn is_sound(&self, log: &[u64]) -> bool {
        let times = || log.chunks_exact(2).map(|charge| charge[0]);
        is_sound(self.limit, self.window_ns)
            && log.len().is_multiple_of(2)
            && times().all(|time| time < CLOCK_END)
            && times().is_sorted()
            && can_be_added(log.iter().skip(1).step_by(2))
    }

    /// The number of words at the front of the log that have left the window: charges at or before `now −
    /// window`.
    fn expired(&self, log: &[u64], steady_ns: u64) -> usize {
        log.chunks_exact(2).take_while(|charge| charge[0] + self.window_ns <= steady_ns).count() * 2
    }
}

/// A window counted in slots. State: the newest slot's number, then one count for each of the `m + 1` slots
/// that a window can touch. The count of slot `i` is at place `i mod (m + 1)`. An empty state is a fresh
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingSlots {
    /// Units in any window.
    pub limit: u64,
    /// Length of the window in nanoseconds, above 0.
    pub window_ns: u64,
    /// Slots in a window: 1 to [`SLOTS_MAX`].
    pub slots: u32,
}

/// The counts of adjacent slots, oldest first. They are in two runs, since places are used again.
struct Counted<'a> {
    oldest: u64,
    runs: [&'a [u64]; 2],
}

impl SlidingSlots {
    /// Whether `cost` fits beside the charges in every slot that the last window touches.
    pub fn probe(&self, state: &[u64], steady_ns: u64, cost: u64) -> Verdict {
        let used = self.used(state, steady_ns);
        let left = self.limit.saturating_sub(used);
        let now_slot = steady_ns / self.slot_ns();
        if cost <= left {
            let newest = if cost > 0 { Some(now_slot) } else { self.newest(state, steady_ns) };
            return Verdict {
                allowed: true,
                remaining: left - cost,
                retry_after_ns: 0,
                delay_ns: 0,
                reset_after_ns: newest.map_or(0, |slot| self.gone_at(slot) - steady_ns),
            };
        }
        let mut retry_after_ns = NEVER;
        if cost <= self.limit {
            let mut surplus = used + cost - self.limit;
            for (slot, units) in self.live(state, steady_ns) {
                surplus = surplus.saturating_sub(units);
                if surplus == 0 {
                    retry_after_ns = self.gone_at(slot) - steady_ns;
                    break;
                }
            }
        }
        Verdict {
            allowed: false,
            remaining: left,
            retry_after_ns,
            delay_ns: 0,
            reset_after_ns: self.newest(state, steady_ns).map_or(0, |slot| self.gone_at(slot) - steady_ns),
        }
    }

    /// Adds a charge that [`SlidingSlots::probe`] allowed.
    pub fn charge(&self, state: &mut Vec<u64>, steady_ns: u64, cost: u64) {
        let places = u64::from(self.slots) + 1;
        state.resize(1 + self.places(), 0);
        let slot = steady_ns / self.slot_ns();
        let newest = state[0];
        if slot > newest {
            if slot - newest >= places {
                state[1..].fill(0);
            } else {
                for passed in newest + 1..=slot {
                    state[place(passed, places)] = 0;
                }
            }
            state[0] = slot;
        }
        // If the clock went back over a restart, the newest slot is in the future. That slot takes the
        // charge: a later slot is safe.
        state[place(slot.max(newest), places)] += cost;
    }

    /// Units in the window beyond the limit.
    pub fn debt(&self, state: &[u64], steady_ns: u64) -> u64 {
        self.used(state, steady_ns).saturating_sub(self.limit)
    }

    /// Takes `units` back of a charge made at `charged_ns`, while its slot counts. Returns the number of
    /// units that came back. A later slot may have taken the charge, so the first slots at `charged_ns` or
    /// later give the units, as in [`SlidingLog::refund`].
    pub fn refund(&self, state: &mut [u64], charged_ns: u64, units: u64, steady_ns: u64) -> u64 {
        let (charged_slot, places) = (charged_ns / self.slot_ns(), u64::from(self.slots) + 1);
        let Some(newest) = state.first().copied() else { return 0 };
        let now_slot = steady_ns / self.slot_ns();
        if charged_slot.saturating_add(places) <= now_slot.max(newest) {
            return 0;
        }
        let mut left = units;
        for slot in charged_slot..=newest {
            let held = &mut state[place(slot, places)];
            let back = left.min(*held);
            *held -= back;
            left -= back;
            if left == 0 {
                break;
            }
        }
        units - left
    }

    /// Takes `units` back from the oldest slots in the window. Returns the number of units that came back.
    pub(crate) fn give_back(&self, state: &mut [u64], units: u64, steady_ns: u64) -> u64 {
        let charged: Vec<(u64, u64)> = self.live(state, steady_ns).collect();
        let mut left = units;
        for (slot, held) in charged {
            let taken = held.min(left);
            state[place(slot, u64::from(self.slots) + 1)] -= taken;
            left -= taken;
        }
        units - left
    }

    /// Whether every slot with a charge has left the window.
    pub fn is_idle(&self, state: &[u64], steady_ns: u64) -> bool {
        self.live(state, steady_ns).next().is_none()
    }

    /// The slots with charges that the window touches, oldest first, with their units.
    pub fn live<'a>(&self, state: &'a [u64], steady_ns: u64) -> impl Iterator<Item = (u64, u64)> + 'a {
        let Counted { oldest, runs: [first, second] } = self.counted(state, steady_ns);
        (oldest..).zip(first.iter().chain(second).copied()).filter(|(_, units)| *units > 0)
    }

    /// Units in the window.
    fn used(&self, state: &[u64], steady_ns: u64) -> u64 {
        self.counted(state, steady_ns).runs.iter().map(|run| run.iter().sum::<u64>()).sum()
    }

    /// The newest slot with charges that the window touches.
    fn newest(&self, state: &[u64], steady_ns: u64) -> Option<u64> {
        let Counted { oldest, runs: [first, second] } = self.counted(state, steady_ns);
        let last = |run: &[u64]| run.iter().rposition(|units| *units > 0);
        let number = last(second).map(|number| first.len() + number).or_else(|| last(first))?;
        Some(oldest + number as u64)
    }

    /// The slots that the window touches.
    fn counted<'a>(&self, state: &'a [u64], steady_ns: u64) -> Counted<'a> {
        let Some((newest, ring)) = state.split_first() else {
            return Counted { oldest: 0, runs: [&[], &[]] };
        };
        let others = u64::from(self.slots);
        let now_slot = steady_ns / self.slot_ns();
        let oldest = now_slot.saturating_sub(others).max(newest.saturating_sub(others));
        // At most as many as there are places.
        let count = (newest + 1).saturating_sub(oldest) as usize;
        let begin = (oldest % (others + 1)) as usize;
        let in_first = count.min(ring.len() - begin);
        Counted { oldest, runs: [&ring[begin..begin + in_first], &ring[..count - in_first]] }
    }

    /// Whether `state`, read from a disk, can be a state of this window.
    pub fn is_sound(&self, state: &[u64]) -> bool {
        is_sound(self.limit, self.window_ns)
            && (1..=SLOTS_MAX).contains(&self.slots)
            && (state.is_empty() || state.len() == 1 + self.places())
            && state.first().is_none_or(|slot| *slot <= CLOCK_END / self.slot_ns())
            && can_be_added(state.iter().skip(1))
    }

    /// The state if every charge had been made `by_ns` later, in whole slots, rounded up.
    pub(crate) fn delayed(&self, state: &[u64], by_ns: u64) -> Vec<u64> {
        let (slots, places) = (by_ns.div_ceil(self.slot_ns()), u64::from(self.slots) + 1);
        let Some((newest, counts)) = state.split_first() else { return Vec::new() };
        let mut counts = counts.to_vec();
        counts.rotate_right((slots % places) as usize);
        std::iter::once(newest.saturating_add(slots)).chain(counts).collect()
    }

    /// Nanoseconds in a slot, rounded up: `m` slots are never shorter than the window.
    pub fn slot_ns(&self) -> u64 {
        self.window_ns.div_ceil(u64::from(self.slots))
    }

    /// The time when the whole slot has left the window.
    fn gone_at(&self, slot: u64) -> u64 {
        (slot + u64::from(self.slots) + 1) * self.slot_ns()
    }

    fn places(&self) -> usize {
        self.slots as usize + 1
    }
}

/// Whether a limit and a window read from a disk are ones that a config can set, on a clock with the
/// allowed drift.
fn is_sound(limit: u64, window_ns: u64) -> bool {
    limit <= UNITS_MAX && (1..=2 * PERIOD_NS_MAX).contains(&window_ns)
}

/// Whether counts read from a disk have a sum that leaves room for a charge.
fn can_be_added<'a>(counts: impl Iterator<Item = &'a u64>) -> bool {
    counts.map(|count| u128::from(*count)).sum::<u128>() < u128::from(CLOCK_END)
}

/// The place of a slot's count in the state.
fn place(slot: u64, places: u64) -> usize {
    // Below `places`, at most SLOTS_MAX + 1.
    1 + (slot % places) as usize
}

/// Two counters, the older weighted by its time left in the window. **Not a bound**: some windows admit up
/// to twice the limit. State: the current window's number, and `older << 32 | current`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingApproximate {
    /// Units in a window, as estimated: at most [`APPROXIMATE_UNITS_MAX`].
    pub limit: u64,
    /// Length of the window in nanoseconds, above 0.
    pub window_ns: u64,
}

impl SlidingApproximate {
    /// Whether `state`, read from a disk, can be a state of this window.
    pub fn is_sound(&self, state: [u64; 2]) -> bool {
        is_sound(self.limit, self.window_ns)
            && self.limit <= APPROXIMATE_UNITS_MAX
            && state[0] <= CLOCK_END / self.window_ns
    }

    /// Whether `cost` fits beside the estimated usage.
    pub fn probe(&self, state: [u64; 2], steady_ns: u64, cost: u64) -> Verdict {
        let (older, current) = self.counters(state, steady_ns);
        let window = u128::from(self.window_ns);
        let elapsed = steady_ns % self.window_ns;
        let estimate = self.estimate(state, steady_ns);
        let limit = u128::from(self.limit) * window;
        let left = u64::try_from(limit.saturating_sub(estimate) / window).unwrap_or(0);
        let allowed = cost <= left;
        let reset_after_ns = if current > 0 || (allowed && cost > 0) {
            2 * self.window_ns - elapsed
        } else if older > 0 {
            self.window_ns - elapsed
        } else {
            0
        };
        let retry_after_ns = if allowed {
            0
        } else if cost > self.limit {
            NEVER
        } else if current + cost <= self.limit {
            self.fits_at(older, self.limit - current - cost) - elapsed
        } else {
            self.window_ns - elapsed + self.fits_at(current, self.limit - cost)
        };
        let remaining = if allowed { left - cost } else { left };
        Verdict { allowed, remaining, retry_after_ns, delay_ns: 0, reset_after_ns }
    }

    /// The estimated usage, in units times the window's nanoseconds.
    fn estimate(&self, state: [u64; 2], steady_ns: u64) -> u128 {
        let (older, current) = self.counters(state, steady_ns);
        let left_ns = self.window_ns - steady_ns % self.window_ns;
        u128::from(older) * u128::from(left_ns) + u128::from(current) * u128::from(self.window_ns)
    }

    /// Units of the estimated usage beyond the limit, rounded up.
    pub fn debt(&self, state: [u64; 2], steady_ns: u64) -> u64 {
        let window = u128::from(self.window_ns);
        let limit = u128::from(self.limit) * window;
        let debt = self.estimate(state, steady_ns).saturating_sub(limit).div_ceil(window);
        u64::try_from(debt).unwrap_or(u64::MAX)
    }

    /// The state after a charge that [`SlidingApproximate::probe`] allowed.
    #[must_use]
    pub fn charge(&self, state: [u64; 2], steady_ns: u64, cost: u64) -> [u64; 2] {
        let (older, current) = self.counters(state, steady_ns);
        [(steady_ns / self.window_ns).max(state[0]), older << 32 | (current + cost)]
    }

    /// Takes `units` of a charge made at `charged_ns` back from the counter of its window. Returns the
    /// state, and the number of units that came back. If a later window took the charge because the clock
    /// had gone back, units of an older window come back, which weigh no more.
    pub fn refund(&self, state: [u64; 2], charged_ns: u64, units: u64, steady_ns: u64) -> ([u64; 2], u64) {
        let (older, current) = self.counters(state, steady_ns);
        let number = (steady_ns / self.window_ns).max(state[0]);
        match number.checked_sub(charged_ns / self.window_ns) {
            Some(0) => {
                let back = units.min(current);
                ([number, older << 32 | (current - back)], back)
            }
            Some(1) => {
                let back = units.min(older);
                ([number, (older - back) << 32 | current], back)
            }
            _ => (state, 0),
        }
    }

    /// Converts `state`, a state under `old`, whose windows may have another length. The result owes at
    /// least as much: every charge counts as made in the last window that the old window reaches into.
    #[must_use]
    pub fn adopt(&self, old: &Self, state: [u64; 2], steady_ns: u64) -> [u64; 2] {
        if self.window_ns == old.window_ns {
            return state;
        }
        let (older, current) = old.counters(state, steady_ns);
        let all = (older + current).min(u64::from(u32::MAX));
        if all == 0 {
            return [0, 0];
        }
        let number = (steady_ns / old.window_ns).max(state[0]);
        [((number + 1) * old.window_ns - 1) / self.window_ns, all]
    }

    /// Whether both counters have left the window.
    pub fn is_idle(&self, state: [u64; 2], steady_ns: u64) -> bool {
        self.counters(state, steady_ns) == (0, 0)
    }

    /// A state that owes no less than either of two. Its window is the later of their windows.
    #[must_use]
    pub fn join(&self, a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
        let number = a[0].max(b[0]);
        let at_ns = number.saturating_mul(self.window_ns);
        let ((older, current), (olders, currents)) = (self.counters(a, at_ns), self.counters(b, at_ns));
        [number, older.max(olders) << 32 | current.max(currents)]
    }

    fn counters(&self, [number, packed]: [u64; 2], steady_ns: u64) -> (u64, u64) {
        let (older, current) = (packed >> 32, packed & u64::from(u32::MAX));
        match (steady_ns / self.window_ns).checked_sub(number) {
            None | Some(0) => (older, current),
            Some(1) => (current, 0),
            Some(_) => (0, 0),
        }
    }

    /// The earliest time within a window at which `older` weighs at most `room` units.
    fn fits_at(&self, older: u64, room: u64) -> u64 {
        if older <= room {
            return 0;
        }
        let window = u128::from(self.window_ns);
        let weight = u128::from(room) * window / u128::from(older);
        self.window_ns - u64::try_from(weight).unwrap_or(self.window_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_states_of_a_sliding_window_are_refused() {
        let log = SlidingLog { limit: 30, window_ns: 10_000_000_000 };
        assert!(log.is_sound(&[5, 1, 7, 2]));
        for state in [&[5, 1, 7][..], &[7, 1, 5, 1], &[u64::MAX, 1], &[5, u64::MAX, 7, u64::MAX]] {
            assert!(!log.is_sound(state), "{state:?}");
        }
        assert!(!SlidingLog { window_ns: u64::MAX, ..log }.is_sound(&[5, 1]));

        let slots = SlidingSlots { limit: 30, window_ns: 10_000_000_000, slots: 2 };
        assert!(slots.is_sound(&[]) && slots.is_sound(&[7, 1, 2, 3]));
        for state in [&[7, 1, 2][..], &[u64::MAX, 1, 2, 3], &[7, u64::MAX, 2, 3]] {
            assert!(!slots.is_sound(state), "{state:?}");
        }
        assert!(!SlidingSlots { slots: 0, ..slots }.is_sound(&[]));

        let pair = SlidingApproximate { limit: 30, window_ns: 10_000_000_000 };
        assert!(pair.is_sound([170_000_000, 5 << 32 | 7]));
        assert!(!pair.is_sound([u64::MAX, 0]));
        assert!(!SlidingApproximate { window_ns: 0, ..pair }.is_sound([0, 0]));
    }

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_log_frees_units_one_window_after_they_were_spent() {
        let log = SlidingLog { limit: 3, window_ns: 10 * S };
        let mut state = Vec::new();
        log.charge(&mut state, 100 * S, 2);
        log.charge(&mut state, 104 * S, 1);
        let v = log.probe(&state, 105 * S, 1);
        assert_eq!((v.allowed, v.remaining, v.retry_after_ns), (false, 0, 5 * S));
        assert_eq!(log.probe(&state, 105 * S, 3).retry_after_ns, 9 * S);
        assert!(!log.probe(&state, 110 * S - 1, 1).allowed);
        assert!(log.probe(&state, 110 * S, 2).allowed);
        assert!(log.is_idle(&state, 114 * S) && !log.is_idle(&state, 114 * S - 1));
    }

    #[test]
    fn slots_hold_back_at_most_one_slot_too_long() {
        let slots = SlidingSlots { limit: 10, window_ns: 10 * S, slots: 5 };
        let mut state = Vec::new();
        slots.charge(&mut state, 101 * S, 10);
        let v = slots.probe(&state, 101 * S, 1);
        // The units were spent in the slot 100..102, which has left the window at 112.
        assert_eq!(v.retry_after_ns, 11 * S);
        assert!(!slots.probe(&state, 112 * S - 1, 1).allowed);
        assert!(slots.probe(&state, 112 * S, 10).allowed);
        slots.charge(&mut state, 112 * S, 10);
        assert_eq!(slots.probe(&state, 113 * S, 1).remaining, 0);
        slots.charge(&mut state, 500 * S, 1);
        assert_eq!(slots.probe(&state, 500 * S, 1).remaining, 8);
    }

    #[test]
    fn the_approximate_counter_gives_the_exact_retry_time() {
        let pair = SlidingApproximate { limit: 10, window_ns: 10 * S };
        let mut state = pair.charge([0, 0], 100 * S, 10);
        let v = pair.probe(state, 109 * S, 4);
        assert_eq!((v.allowed, v.retry_after_ns), (false, S + 4 * S));
        assert!(!pair.probe(state, 114 * S - 1, 4).allowed);
        assert!(pair.probe(state, 114 * S, 4).allowed);
        state = pair.charge(state, 114 * S, 4);
        assert!(!pair.probe(state, 114 * S, 1).allowed);
        assert!(pair.is_idle(state, 130 * S));
    }
}
