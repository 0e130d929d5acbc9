//! The lease balance: units in memory that many threads take from.
//!
//! **A filling's units, taken or returned at its end, are at most those filled in. No unit is taken from a filling
//! after the filling expires.** Both hold for any number of takers beside the one
//! thread that fills.
//!
//! The balance does not know where units come from or where they go.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::{Duration, Instant};

/// Bits of the state that count units. The other bits number the fillings. A thread could take one filling
/// for another only if it slept through sixteen million fillings and woke at an equal count of units. Even
/// then it would take no more than is there.
const UNITS_BITS: u32 = 40;
/// The most units in a balance.
pub(super) const UNITS_MAX: u64 = (1 << UNITS_BITS) - 1;

/// The units of one filling. A new filling ends the filling before.
///
/// A taker reads the state, reads when that filling expires, and takes by a compare-and-swap. Only then
/// does it read the clock: if the filling has not expired, the units are the taker's. If the filling
/// changed since the first read, the swap fails. So one word decides, and the expiry of a filling need not
/// be in that word.
#[derive(Debug)]
pub(super) struct LeaseBalance {
    /// The number of the filling above [`UNITS_BITS`], and the units left of the filling below.
    state: AtomicU64,
    /// When the fillings with even and with odd numbers expire, in nanoseconds since the origin. An expiry
    /// is written before its filling begins, after the last filling of that parity has ended.
    expires: [AtomicU64; 2],
    /// When the units fall below this, the taker wakes the keeper.
    low: AtomicU64,
    origin: Instant,
}

/// The result of taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeResult {
    /// The units are the caller's.
    Taken,
    /// The units are the caller's, and now few are left.
    TakenAndLow,
    /// The balance has too few units, or the units have expired.
    Short,
}

impl LeaseBalance {
    pub(super) fn empty(origin: Instant) -> Self {
        Self {
            state: AtomicU64::new(0),
            expires: [AtomicU64::new(0), AtomicU64::new(0)],
            low: AtomicU64::new(0),
            origin,
        }
    }

    /// Takes units unless they have expired when the clock is read. Otherwise takes nothing; in a race with
    /// the end of the filling, the units are lost. Expired units are never handed out.
    #[inline]
    pub(super) fn take(&self, units: u64, clock: impl FnOnce() -> Instant) -> TakeResult {
        let mut state = self.state.load(Ordering::Acquire);
        let (before, expires) = loop {
            let left = state & UNITS_MAX;
            if left < units {
                return TakeResult::Short;
            }
            let parity = (state >> UNITS_BITS & 1) as usize;
            let expires = self.expires[parity].load(Ordering::Acquire);
            match self.state.compare_exchange_weak(state, state - units, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => break (left, expires),
                Err(now) => state = now,
            }
        };
        if self.nanoseconds(clock()) >= expires {
            self.put_back(state >> UNITS_BITS, units);
            return TakeResult::Short;
        }
        let low = self.low.load(Ordering::Relaxed);
        if before >= low && before - units < low { TakeResult::TakenAndLow } else { TakeResult::Taken }
    }

    /// Gives units back to their filling, unless the filling has ended.
    #[cold]
    fn put_back(&self, filling: u64, units: u64) {
        let mut state = self.state.load(Ordering::Acquire);
        while state >> UNITS_BITS == filling {
            match self.state.compare_exchange_weak(state, state + units, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }

    /// Begins a filling and ends the one before. Returns the units left of that one, which can no longer be
    /// taken.
    ///
    /// Only one thread at a time may fill and drain.
    pub(super) fn fill(&self, units: u64, expires: Instant, low: u64) -> u64 {
        assert!(units <= UNITS_MAX, "{units} units do not fit");
        let filling = (self.state.load(Ordering::Relaxed) >> UNITS_BITS).wrapping_add(1);
        self.expires[(filling & 1) as usize].store(self.nanoseconds(expires), Ordering::Release);
        self.low.store(low, Ordering::Relaxed);
        self.state.swap(filling << UNITS_BITS | units, Ordering::AcqRel) & UNITS_MAX
    }

    /// Ends the filling. Returns the units left of it, which can no longer be taken.
    pub(super) fn drain(&self) -> u64 {
        self.fill(0, self.origin, 0)
    }

    /// The units left, which may have expired.
    pub(super) fn units_left(&self) -> u64 {
        self.state.load(Ordering::Relaxed) & UNITS_MAX
    }

    fn nanoseconds(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The latest time that a clock shows, in effect.
pub(super) const FOREVER: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Barrier, atomic::AtomicBool},
        thread,
    };

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_of_a_balance_are_taken_once() {
        let now = Instant::now();
        let balance = LeaseBalance::empty(now);
        assert_eq!(balance.take(1, || now), TakeResult::Short);
        assert_eq!(balance.fill(10, now + FOREVER, 4), 0);
        assert_eq!(balance.take(11, || now), TakeResult::Short);
        assert_eq!(balance.take(6, || now), TakeResult::Taken);
        assert_eq!(balance.take(1, || now), TakeResult::TakenAndLow);
        assert_eq!(balance.take(1, || now), TakeResult::Taken, "said once");
        assert_eq!(balance.take(3, || now), TakeResult::Short);
        assert_eq!(balance.fill(5, now + FOREVER, 0), 2);
        assert_eq!(balance.drain(), 5);
        assert_eq!(balance.take(1, || now), TakeResult::Short);
    }

    #[test]
    fn expired_units_cannot_be_taken_and_are_returned() {
        let now = Instant::now();
        let balance = LeaseBalance::empty(now);
        let expires = now + Duration::from_secs(1);
        balance.fill(10, expires, 0);
        assert_eq!(balance.take(1, || expires - Duration::from_nanos(1)), TakeResult::Taken);
        for late in [expires, expires + FOREVER] {
            assert_eq!(balance.take(1, || late), TakeResult::Short);
        }
        assert_eq!(balance.drain(), 9);
    }

    /// A taker reads the clock between its swap and its answer, so these tests act inside the clock.
    #[test]
    fn a_taker_whose_units_expired_takes_none_of_the_next_refill() {
        let now = Instant::now();
        let balance = LeaseBalance::empty(now);
        let expires = now + Duration::from_secs(1);
        balance.fill(10, expires, 0);
        let taken = balance.take(4, || {
            assert_eq!(balance.fill(3, now + FOREVER, 0), 6, "its units are counted as spent");
            expires
        });
        assert_eq!(taken, TakeResult::Short, "by the expiry of its own filling");
        assert_eq!(balance.units_left(), 3, "and nothing is put where it was not taken");
    }

    #[test]
    fn a_taker_keeps_units_taken_in_time_despite_a_later_drain() {
        let now = Instant::now();
        let balance = LeaseBalance::empty(now);
        balance.fill(10, now + FOREVER, 0);
        let taken = balance.take(4, || {
            assert_eq!(balance.drain(), 6);
            now
        });
        assert_eq!(taken, TakeResult::Taken);
    }

    #[test]
    fn a_balance_holds_up_to_its_maximum_of_units() {
        let now = Instant::now();
        let balance = LeaseBalance::empty(now);
        balance.fill(UNITS_MAX, now + FOREVER, 0);
        assert_eq!(balance.take(u64::MAX, || now), TakeResult::Short);
        assert_eq!(balance.take(UNITS_MAX, || now), TakeResult::Taken);
        assert_eq!(balance.drain(), 0);
    }

    #[test]
    #[should_panic(expected = "do not fit")]
    fn filling_a_balance_above_its_maximum_panics() {
        LeaseBalance::empty(Instant::now()).fill(UNITS_MAX + 1, Instant::now(), 0);
    }

    proptest! {
        #[test]
        fn refills_are_told_apart_even_after_their_counter_wraps(
            steps in prop::collection::vec((0..2_u8, 0..50_u64, 0..20_u64), 1..200),
            start in prop_oneof![Just(0), Just((1 << 24) - 3_u64)],
        ) {
            let begun = Instant::now();
            let balance = LeaseBalance::empty(begun);
            balance.state.store(start << UNITS_BITS, Ordering::Relaxed);
            let (mut left, mut expires, mut now) = (0, begun, begun);
            for (step, units, wait) in steps {
                now += Duration::from_millis(wait);
                if step == 0 {
                    prop_assert_eq!(balance.fill(units, now + Duration::from_millis(30), 0), left);
                    (left, expires) = (units, now + Duration::from_millis(30));
                } else {
                    let fits = units <= left && now < expires;
                    prop_assert_eq!(balance.take(units, || now) == TakeResult::Taken, fits);
                    left -= if fits { units } else { 0 };
                }
            }
            prop_assert_eq!(balance.drain(), left);
        }
    }

    /// Four threads take as fast as they can while a fifth fills, drains and lets units expire.
    #[test]
    fn threads_together_take_exactly_the_units_not_returned() {
        const TAKERS: usize = 4;
        const FILLINGS: u64 = 5_000;
        let begun = Instant::now();
        let balance = Arc::new(LeaseBalance::empty(begun));
        let is_over = Arc::new(AtomicBool::new(false));
        let start = Arc::new(Barrier::new(TAKERS + 1));
        let takers: Vec<_> = (1..=TAKERS as u64)
            .map(|units| {
                let (balance, is_over, start) = (balance.clone(), is_over.clone(), start.clone());
                thread::spawn(move || {
                    start.wait();
                    let (mut taken, mut turn) = (0, 0_u64);
                    while !is_over.load(Ordering::Relaxed) {
                        turn += 1;
                        // Every seventh reading of the clock is too late for any filling.
                        let clock = || if turn.is_multiple_of(7) { begun + FOREVER * 2 } else { begun };
                        if balance.take(units, clock) != TakeResult::Short {
                            taken += units;
                        }
                    }
                    taken
                })
            })
            .collect();
        start.wait();
        let (mut filled, mut returned) = (0, 0);
        for filling in 0..FILLINGS {
            let units = filling % 97 * 31;
            returned += balance.fill(units, begun + FOREVER, units / 3);
            filled += units;
            if filling % 5 == 0 {
                returned += balance.drain();
            }
            if filling % 64 == 0 {
                thread::yield_now();
            }
        }
        returned += balance.drain();
        is_over.store(true, Ordering::Relaxed);
        let taken: u64 = takers.into_iter().map(|taker| taker.join().expect("no panic")).sum();
        assert!(taken + returned <= filled, "{taken} taken and {returned} returned of {filled}");
    }

    /// As above, but no filling expires: then no units are lost, either.
    #[test]
    fn threads_lose_no_units_if_no_refill_expires() {
        const TAKERS: usize = 4;
        let begun = Instant::now();
        let balance = Arc::new(LeaseBalance::empty(begun));
        let is_over = Arc::new(AtomicBool::new(false));
        let takers: Vec<_> = (0..TAKERS)
            .map(|_| {
                let (balance, is_over) = (balance.clone(), is_over.clone());
                thread::spawn(move || {
                    let mut taken = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        taken += u64::from(balance.take(1, || begun) != TakeResult::Short);
                    }
                    taken
                })
            })
            .collect();
        let (mut filled, mut returned) = (0, 0);
        for filling in 0..5_000 {
            returned += balance.fill(filling % 101, begun + FOREVER, 7);
            filled += filling % 101;
            if filling % 64 == 0 {
                thread::yield_now();
            }
        }
        returned += balance.drain();
        is_over.store(true, Ordering::Relaxed);
        let taken: u64 = takers.into_iter().map(|taker| taker.join().expect("no panic")).sum();
        assert_eq!(taken + returned, filled);
    }
}
