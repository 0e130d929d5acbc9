//! The clocks of a region's machine. True time is turmoil's; a machine's oscillator may run fast or slow, and its wall may be
//! set.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use acequia_limits::Now;
use acequia_server::clock::Clock;

/// When every simulation begins, in seconds since 1970: 15 January 2027, 08:00 UTC.
pub const EPOCH_S: u64 = 1_800_000_000;

/// True time since the start of the simulation; inside a host to the millisecond that it is at.
pub(crate) fn elapsed(outside: Duration) -> Duration {
    if turmoil::in_simulation() { turmoil::sim_elapsed().unwrap_or(outside) } else { outside }
}

/// A machine's clocks, which go on when its process ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine(Arc<Mutex<Hands>>);

#[derive(Debug, Default)]
struct Hands {
    /// True time outside of hosts.
    outside: Duration,
    /// Where the oscillator was when its drift was last changed, and when that was, in nanoseconds.
    ticked_ns: u64,
    since_ns: u64,
    drift_ppm: i64,
    /// What the wall is ahead of the oscillator.
    error_ns: i64,
    /// What the oscillator and the wall said when the process fell asleep, while it sleeps.
    asleep_at: Option<(u64, u64)>,
}

impl Hands {
    fn ticks_ns(&self) -> u64 {
        let passed_ns = ns(elapsed(self.outside)).saturating_sub(self.since_ns);
        let drifted_ns = i128::from(passed_ns) * i128::from(self.drift_ppm) / 1_000_000;
        self.ticked_ns + passed_ns.saturating_add_signed(drifted_ns as i64)
    }

    fn wall_ns(&self) -> u64 {
        (EPOCH_S * 1_000_000_000 + self.ticks_ns()).saturating_add_signed(self.error_ns)
    }
}

impl Machine {
    /// It is so late outside of hosts.
    pub(crate) fn pass(&self, outside: Duration) {
        self.hands().outside = outside;
    }

    /// The wall is set ahead, or back.
    pub(crate) fn step(&self, by_ms: i64) {
        self.hands().error_ns += by_ms * 1_000_000;
    }

    /// The oscillator runs so many parts per million too fast from now on.
    pub(crate) fn drift(&self, ppm: i64) {
        let mut hands = self.hands();
        (hands.ticked_ns, hands.since_ns) = (hands.ticks_ns(), ns(elapsed(hands.outside)));
        hands.drift_ppm = ppm;
    }

    /// The process falls asleep: what it reads stands still until it wakes.
    pub(crate) fn sleep(&self) {
        let mut hands = self.hands();
        hands.asleep_at = hands.asleep_at.or(Some((hands.ticks_ns(), hands.wall_ns())));
    }

    /// The process wakes, or is no more.
    pub(crate) fn wake(&self) {
        self.hands().asleep_at = None;
    }

    /// The clocks of a process that begins now.
    pub(crate) fn start(&self) -> ProcessClock {
        let hands = self.hands();
        ProcessClock {
            machine: self.clone(),
            begun_ns: hands.ticks_ns(),
            anchor_ns: hands.wall_ns(),
            ahead_ns: AtomicI64::new(0),
        }
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As the server's own: steady time begins at the wall's, and a wall that is set back goes on from where it was.
#[derive(Debug)]
pub(crate) struct ProcessClock {
    machine: Machine,
    begun_ns: u64,
    anchor_ns: u64,
    ahead_ns: AtomicI64,
}

impl Clock for ProcessClock {
    fn now(&self) -> Now {
        let hands = self.machine.hands();
        let (ticks_ns, wall_ns) = hands.asleep_at.unwrap_or_else(|| (hands.ticks_ns(), hands.wall_ns()));
        let steady_ns = self.anchor_ns + (ticks_ns - self.begun_ns);
        let ahead_ns = wall_ns.wrapping_sub(steady_ns) as i64;
        let ahead_ns = self.ahead_ns.fetch_max(ahead_ns, Ordering::Relaxed).max(ahead_ns);
        Now { steady_ns, wall_ns: steady_ns.saturating_add_signed(ahead_ns) }
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_that_is_set_back_goes_on_until_the_process_ends() {
        let machine = Machine::default();
        let clock = machine.start();
        let begun = clock.now();
        machine.pass(Duration::from_secs(10));
        machine.step(-5_000);
        assert_eq!(clock.now().wall_ns - begun.wall_ns, 10_000_000_000);
        assert_eq!(machine.start().now().wall_ns - begun.wall_ns, 5_000_000_000);
        machine.step(7_000);
        assert_eq!(clock.now().wall_ns - begun.wall_ns, 12_000_000_000);
        assert_eq!(clock.now().steady_ns - begun.steady_ns, 10_000_000_000);
    }

    #[test]
    fn a_process_that_sleeps_sees_no_time_pass_until_it_wakes() {
        let machine = Machine::default();
        let clock = machine.start();
        let begun = clock.now();
        machine.sleep();
        machine.pass(Duration::from_secs(10));
        assert_eq!(clock.now(), begun);
        machine.wake();
        assert_eq!(clock.now().steady_ns - begun.steady_ns, 10_000_000_000);
    }

    #[test]
    fn a_drift_counts_from_when_it_begins() {
        let machine = Machine::default();
        let clock = machine.start();
        let begun = clock.now();
        machine.pass(Duration::from_secs(10));
        machine.drift(100_000);
        machine.pass(Duration::from_secs(20));
        assert_eq!(clock.now().steady_ns - begun.steady_ns, 21_000_000_000);
    }
}
