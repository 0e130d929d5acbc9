//! The raw clocks of a region's machine. True time is turmoil's. A machine's oscillator may run fast or slow,
//! its wall may be set or smeared, and its counter may jump. A process may sleep in the middle of a clock
//! reading. The server's own code disciplines the raw clocks.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use acequia_server::clock::{ClockFault, DisciplinedClock, RawClocks};

use crate::random::Random;

/// When every simulation begins, in seconds since 1970: 15 January 2027, 08:00 UTC.
pub const EPOCH_S: u64 = 1_800_000_000;

/// True time since the start of the simulation. Inside a host it is exact to the current millisecond.
pub(crate) fn elapsed(outside: Duration) -> Duration {
    if turmoil::in_simulation() { turmoil::sim_elapsed().unwrap_or(outside) } else { outside }
}

/// A machine's clocks, which outlive its process.
#[derive(Clone, Debug)]
pub(crate) struct Machine(Arc<Mutex<Hands>>);

/// The state of the raw clocks. All times are in nanoseconds.
#[derive(Debug)]
struct Hands {
    /// True time outside of hosts.
    outside: Duration,
    /// The oscillator's reading when its drift last changed, and the true time of that change.
    ticked_ns: u64,
    since_ns: u64,
    drift_ppm: i64,
    /// How far the wall is ahead of the oscillator.
    error_ns: i64,
    /// A smeared wall: the oscillator's reading at the start, and the rate in parts per million.
    smeared_ns: u64,
    smear_ppm: i64,
    /// What the counter counts in a million ticks of the oscillator, and how far it has jumped.
    counts: u64,
    jumped: u64,
    /// The oscillator's reading when the process fell asleep; `None` while it is awake.
    asleep_at_ns: Option<u64>,
    /// The clock reading of a thread that was preempted in its middle.
    torn: Option<Torn>,
    random: Random,
}

/// A look at all clocks that began before the process fell asleep: its first readings are from then.
#[derive(Clone, Copy, Debug)]
struct Torn {
    at_ns: u64,
    /// How many more old readings there are.
    readings: u64,
    /// Whether the look has begun, which it does with the system's clock.
    has_begun: bool,
}

/// The most old readings: a look takes five readings, and the last is current.
const TORN_MAX: u64 = 4;

impl Hands {
    fn ticks_ns(&self) -> u64 {
        let passed_ns = ns(elapsed(self.outside)).saturating_sub(self.since_ns);
        self.ticked_ns + passed_ns.saturating_add_signed(parts(passed_ns, self.drift_ppm))
    }

    /// The oscillator's value for a reading. It is old for a sleeping process and for a torn look.
    fn read_ns(&mut self, begins: bool) -> u64 {
        if let Some(asleep_at_ns) = self.asleep_at_ns {
            return asleep_at_ns;
        }
        match &mut self.torn {
            Some(torn) if torn.readings > 0 && (begins || torn.has_begun) => {
                torn.has_begun = true;
                torn.readings -= 1;
                torn.at_ns
            }
            _ => self.ticks_ns(),
        }
    }

    fn wall_ns(&self, ticks_ns: u64) -> u64 {
        let smeared_ns = parts(ticks_ns.saturating_sub(self.smeared_ns), self.smear_ppm);
        (EPOCH_S * 1_000_000_000 + ticks_ns).saturating_add_signed(self.error_ns + smeared_ns)
    }
}

impl Machine {
    pub(crate) fn new(mut random: Random) -> Self {
        // The counter's frequency should not matter: it is between ten million and six thousand million a
        // second.
        let counts = random.between(10_000, 6_000_000);
        Self(Arc::new(Mutex::new(Hands {
            outside: Duration::ZERO,
            ticked_ns: 0,
            since_ns: 0,
            drift_ppm: 0,
            error_ns: 0,
            smeared_ns: 0,
            smear_ppm: 0,
            counts,
            jumped: random.next() >> 8,
            asleep_at_ns: None,
            torn: None,
            random,
        })))
    }

    /// Sets true time outside of hosts.
    pub(crate) fn pass(&self, outside: Duration) {
        self.hands().outside = outside;
    }

    /// Sets the wall ahead, or back.
    pub(crate) fn step(&self, by_ms: i64) {
        self.hands().error_ns += by_ms * 1_000_000;
    }

    /// From now on the oscillator runs `ppm` parts per million too fast.
    pub(crate) fn drift(&self, ppm: i64) {
        let mut hands = self.hands();
        (hands.ticked_ns, hands.since_ns) = (hands.ticks_ns(), ns(elapsed(hands.outside)));
        hands.drift_ppm = ppm;
    }

    /// From now on the wall runs `ppm` parts per million faster than the oscillator.
    pub(crate) fn smear(&self, ppm: i64) {
        let mut hands = self.hands();
        let ticks_ns = hands.ticks_ns();
        hands.error_ns += parts(ticks_ns.saturating_sub(hands.smeared_ns), hands.smear_ppm);
        (hands.smeared_ns, hands.smear_ppm) = (ticks_ns, ppm);
    }

    /// The counter jumps by what it counts in `by_ms` milliseconds.
    pub(crate) fn jump(&self, by_ms: i64) {
        let mut hands = self.hands();
        let counts = i128::from(by_ms) * i128::from(hands.counts);
        hands.jumped = hands.jumped.wrapping_add(counts as u64);
    }

    /// The process falls asleep: its readings stand still until it wakes.
    pub(crate) fn sleep(&self) {
        let mut hands = self.hands();
        hands.asleep_at_ns = hands.asleep_at_ns.or(Some(hands.ticks_ns()));
    }

    /// The process wakes, perhaps in the middle of a clock look, or it has ended.
    pub(crate) fn wake(&self) {
        let mut hands = self.hands();
        if let Some(asleep_at_ns) = hands.asleep_at_ns.take() {
            let readings = hands.random.below(TORN_MAX + 1);
            hands.torn = Some(Torn { at_ns: asleep_at_ns, readings, has_begun: false });
        }
    }

    /// The clocks of a process that starts now: the server's own clock on this machine's raw clocks.
    pub(crate) fn start(&self) -> Result<DisciplinedClock<Self>, ClockFault> {
        self.hands().torn = None;
        DisciplinedClock::new(self.clone())
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RawClocks for Machine {
    fn counter(&self) -> u64 {
        let mut hands = self.hands();
        let counted = u128::from(hands.read_ns(false)) * u128::from(hands.counts) / 1_000_000;
        hands.jumped.wrapping_add(counted as u64)
    }

    fn boot_ns(&self) -> u64 {
        // The machine was started long before the simulation began.
        UP_NS + self.hands().read_ns(true)
    }

    fn wall_ns(&self) -> u64 {
        let mut hands = self.hands();
        let ticks_ns = hands.read_ns(false);
        hands.wall_ns(ticks_ns)
    }
}

/// How long machines had run when the simulation began.
const UP_NS: u64 = 1_000_000_000_000;

/// `ppm` parts per million of a time.
fn parts(ns: u64, ppm: i64) -> i64 {
    (i128::from(ns) * i128::from(ppm) / 1_000_000) as i64
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use acequia_server::clock::Clock as _;

    use super::*;

    const S: u64 = 1_000_000_000;

    fn machine() -> Machine {
        Machine::new(Random::of(1, "machine"))
    }

    fn pass(
        machine: &Machine,
        clock: &impl acequia_server::clock::Clock,
        to_ms: std::ops::RangeInclusive<u64>,
    ) {
        for ms in to_ms {
            machine.pass(Duration::from_millis(ms));
            clock.now();
        }
    }

    #[test]
    fn a_wall_that_is_set_back_a_little_is_slewed() {
        let machine = machine();
        let clock = machine.start().expect("a clock");
        let begun = clock.now();
        machine.step(-500);
        pass(&machine, &clock, 1..=1_000);
        let passed_ns = clock.now().wall_ns - begun.wall_ns;
        assert!((930_000_000..950_000_000).contains(&passed_ns), "{passed_ns}");
        pass(&machine, &clock, 1_001..=9_000);
        let passed_ns = clock.now().wall_ns - begun.wall_ns;
        assert_eq!(passed_ns, 8_500_000_000);
        assert_eq!(clock.now().steady_ns - begun.steady_ns, 9 * S);
    }

    #[test]
    fn a_process_that_sleeps_sees_no_time_pass_until_it_wakes() {
        let machine = machine();
        let clock = machine.start().expect("a clock");
        let begun = clock.now();
        machine.sleep();
        machine.pass(Duration::from_secs(10));
        assert_eq!(clock.now(), begun);
        machine.wake();
        // Some readings of the first look may be old.
        assert_eq!(clock.now().steady_ns - begun.steady_ns, 10_000_000_000);
    }

    #[test]
    fn a_drift_counts_from_when_it_begins() {
        let machine = machine();
        let clock = machine.start().expect("a clock");
        let begun = clock.now();
        machine.pass(Duration::from_secs(10));
        machine.drift(100_000);
        machine.pass(Duration::from_secs(20));
        assert_eq!(clock.now().steady_ns - begun.steady_ns, 21 * S);
    }

    #[test]
    fn a_smear_moves_the_wall_alone_and_stays_when_it_ends() {
        let machine = machine();
        let clock = machine.start().expect("a clock");
        let begun = clock.now();
        machine.smear(1_000);
        machine.pass(Duration::from_secs(10));
        machine.smear(0);
        machine.pass(Duration::from_secs(20));
        let now = clock.now();
        assert_eq!((now.steady_ns - begun.steady_ns, now.wall_ns - begun.wall_ns), (20 * S, 20_010_000_000));
    }

    #[test]
    fn a_counter_that_jumps_moves_nothing() {
        let machine = machine();
        let clock = machine.start().expect("a clock");
        let begun = clock.now();
        pass(&machine, &clock, 1..=100);
        machine.jump(60_000);
        pass(&machine, &clock, 101..=200);
        machine.jump(-90_000);
        pass(&machine, &clock, 201..=300);
        assert_eq!(clock.now().steady_ns - begun.steady_ns, 300_000_000);
    }
}
