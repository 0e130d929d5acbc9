use std::sync::{Arc, Mutex, MutexGuard};

use super::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
const HOUR: u64 = 3_600 * S;

/// Raw clocks of a machine that a test drives.
#[derive(Clone, Debug)]
struct Fake(Arc<Mutex<Hands>>);

#[derive(Debug)]
struct Hands {
    /// The true time: nanoseconds since the machine started.
    boot_ns: u64,
    wall_less_boot_ns: i64,
    counter: u64,
    /// Counts in a million nanoseconds, and the part of a count that is under way, in millionths.
    counts: u64,
    part: u64,
    random: u64,
    /// One in so many readings is followed by a pause of up to the second number; none if the first is 0.
    pauses: (u64, u64),
}

impl Hands {
    fn pass(&mut self, ns: u64) {
        self.boot_ns += ns;
        let counted = u128::from(ns) * u128::from(self.counts) + u128::from(self.part);
        self.counter = self.counter.wrapping_add((counted / 1_000_000) as u64);
        self.part = (counted % 1_000_000) as u64;
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn wall_ns(&self) -> u64 {
        self.boot_ns.wrapping_add_signed(self.wall_less_boot_ns)
    }

    /// A reading takes some time, before it and after it.
    fn read(&mut self, what: impl Fn(&Self) -> u64) -> u64 {
        let pause = |hands: &mut Self| {
            let (one_in, ns) = hands.pauses;
            let ns = if one_in > 0 && hands.draw(one_in) == 0 { hands.draw(ns) } else { 0 };
            hands.pass(20 + ns);
        };
        pause(self);
        let read = what(self);
        pause(self);
        read
    }
}

impl RawClocks for Fake {
    fn counter(&self) -> u64 {
        self.hands().read(|hands| hands.counter)
    }

    fn boot_ns(&self) -> u64 {
        self.hands().read(|hands| hands.boot_ns)
    }

    fn wall_ns(&self) -> u64 {
        self.hands().read(Hands::wall_ns)
    }
}

impl Fake {
    /// A machine that has run for an hour, with a counter of 3 GHz.
    fn machine(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Hands {
            boot_ns: HOUR,
            wall_less_boot_ns: (1_800_000_000 * S - HOUR).cast_signed(),
            counter: 1 << 40,
            counts: 3_000_000,
            part: 0,
            random: seed * 2 + 1,
            pauses: (0, 0),
        })))
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.0.lock().expect("hands")
    }

    fn pass(&self, ns: u64) {
        self.hands().pass(ns);
    }

    fn step_wall(&self, by_ns: i64) {
        self.hands().wall_less_boot_ns += by_ns;
    }
}

/// How far steady time may be behind after the counter went wrong, until a look notices.
const LAG_NS: u64 = 25 * MS;

/// A process on such a machine. The test checks each of its readings.
struct Process {
    machine: Fake,
    clock: DisciplinedClock<Fake>,
    last: Now,
    /// Steady time minus the true time since the machine started, at the process's start.
    anchor_ns: u64,
}

impl Process {
    fn on(machine: &Fake) -> Self {
        let clock = DisciplinedClock::new(machine.clone()).expect("a wall that can be");
        let last = clock.now();
        let anchor_ns = clock.anchor_ns;
        Self { machine: machine.clone(), clock, last, anchor_ns }
    }

    /// Reads the clock, and checks the promise about steady time, which holds whatever the counter does.
    fn read(&mut self) -> Now {
        let before_ns = self.machine.hands().boot_ns;
        let now = self.clock.now();
        let after_ns = self.machine.hands().boot_ns;
        assert!(now.steady_ns >= self.last.steady_ns, "steady time goes back: {:?}, {now:?}", self.last);
        let true_ns = now.steady_ns - self.anchor_ns;
        // The next look notices a counter that steps back or stands still.
        let (least_ns, most_ns) = (before_ns - LAG_NS, after_ns + MS);
        assert!((least_ns..=most_ns).contains(&true_ns), "{true_ns} is not within {before_ns}..{after_ns}");
        self.last = now;
        now
    }

    /// Reads every `every_ns` for `ns`, and looks as often as a server does. Returns the last reading.
    fn read_for(&mut self, ns: u64, every_ns: u64) -> Now {
        let until_ns = self.machine.hands().boot_ns + ns;
        let mut looked_ns = 0;
        loop {
            let boot_ns = self.machine.hands().boot_ns;
            if boot_ns >= looked_ns + 20 * MS {
                looked_ns = boot_ns;
                self.clock.look();
            }
            let now = self.read();
            if self.machine.hands().boot_ns >= until_ns {
                return now;
            }
            self.machine.pass(every_ns);
        }
    }

    fn wall_less_system_ns(&mut self) -> i64 {
        let now = self.read();
        now.wall_ns.wrapping_sub(self.machine.hands().wall_ns()).cast_signed()
    }
}

#[test]
fn steady_time_agrees_with_the_system_at_any_counter_rate() {
    // Counts in a millisecond: 3 GHz, the same give or take a thousandth, a slow counter and a very quick
    // one.
    for (seed, counts) in (0..).zip([3_000_000, 2_997_000, 3_003_000, 24_000, 9_999_999]) {
        for pauses in [(0, 0), (50, 50 * MS)] {
            let machine = Fake::machine(seed);
            machine.hands().counts = counts;
            machine.hands().pauses = pauses;
            let mut process = Process::on(&machine);
            process.read_for(S, 300 * US);
            // The time of a reading is known to half of its duration.
            let sight = |process: &mut Process| {
                let pair = |process: &mut Process| {
                    let before_ns = process.machine.hands().boot_ns;
                    let steady_ns = process.read().steady_ns;
                    (process.machine.hands().boot_ns - before_ns, before_ns, steady_ns)
                };
                (0..20).map(|_| pair(process)).min().expect("a pair")
            };
            let (_, true_ns, steady_ns) = sight(&mut process);
            process.read_for(S, 300 * US);
            let (_, later_true_ns, later_steady_ns) = sight(&mut process);
            let (passed_ns, counted_ns) = (later_true_ns - true_ns, later_steady_ns - steady_ns);
            let ppm = passed_ns.abs_diff(counted_ns) * 1_000_000 / passed_ns;
            assert!(ppm <= 20, "{ppm} ppm with {counts} counts and pauses {pauses:?}");
            assert_eq!(process.clock.health().counter, Counter::Used);
        }
    }
}

#[test]
fn a_preempted_thread_does_not_shift_the_clock() {
    for seed in 0..40 {
        let machine = Fake::machine(seed);
        let mut process = Process::on(&machine);
        machine.hands().pauses = (7, 50 * MS);
        for _ in 0..5_000 {
            let now = process.read();
            let system_ns = machine.hands().wall_ns();
            assert!(now.wall_ns <= system_ns, "{} ns ahead", now.wall_ns - system_ns);
            machine.pass(500 * US);
        }
        machine.hands().pauses = (0, 0);
        process.read_for(20 * MS, MS);
        let behind_ns = -process.wall_less_system_ns();
        assert!((0..=MS as i64).contains(&behind_ns), "{behind_ns} ns behind");
    }
}

#[test]
fn an_unstable_counter_is_noticed_and_no_longer_used() {
    let step =
        |by: i64| move |hands: &mut Hands| hands.counter = hands.counter.wrapping_add_signed(by * 3_000_000);
    type Break = Box<dyn Fn(&mut Hands)>;
    let faults: [(&str, Break); 6] = [
        ("an hour ahead", Box::new(step(3_600_000))),
        ("a millisecond ahead", Box::new(step(1))),
        ("a millisecond back", Box::new(step(-1))),
        ("begun anew, as after a move to another machine", Box::new(|hands| hands.counter = 7)),
        ("stands still", Box::new(|hands| hands.counts = 0)),
        ("half as fast", Box::new(|hands| hands.counts /= 2)),
    ];
    for (what, fault) in faults {
        let machine = Fake::machine(1);
        let mut process = Process::on(&machine);
        process.read_for(3 * S, 200 * US);
        fault(&mut machine.hands());
        process.read_for(S, 200 * US);
        assert_eq!(process.clock.health().counter, Counter::Unstable, "{what}");
        process.read_for(S, 200 * US);
        let steady_ns = process.read().steady_ns;
        let lag_ns = machine.hands().boot_ns - (steady_ns - process.anchor_ns);
        assert!(lag_ns < US, "{what}: {lag_ns} ns");
    }
}

#[test]
fn time_asleep_counts_even_if_the_counter_stood_still() {
    let machine = Fake::machine(1);
    let mut process = Process::on(&machine);
    let awake = process.read_for(2 * S, 200 * US);
    let counter = machine.hands().counter;
    machine.pass(HOUR);
    machine.hands().counter = counter;
    // The next look notices, a millisecond after the machine wakes.
    machine.pass(MS);
    let passed_ns = process.read().steady_ns - awake.steady_ns;
    assert!(passed_ns.abs_diff(HOUR + MS) < MS, "{passed_ns}");
}

#[test]
fn a_process_that_rarely_reads_the_clock_reads_the_right_time() {
    let machine = Fake::machine(1);
    machine.hands().counts = 2_990_000;
    let mut process = Process::on(&machine);
    for _ in 0..50 {
        machine.pass(60 * S);
        let steady_ns = process.read().steady_ns;
        let lag_ns = machine.hands().boot_ns.abs_diff(steady_ns - process.anchor_ns);
        assert!(lag_ns < 2 * US, "{lag_ns}");
    }
}

#[test]
fn a_wall_clock_set_ahead_is_followed_at_once() {
    let machine = Fake::machine(1);
    let mut process = Process::on(&machine);
    process.read_for(S, MS);
    machine.step_wall(HOUR.cast_signed());
    machine.pass(2 * MS);
    assert!((-1_000..=0).contains(&process.wall_less_system_ns()));
    assert_eq!(process.clock.health().slews, 0);
}

#[test]
fn a_wall_clock_set_back_a_little_is_slewed_and_never_goes_back() {
    for back_ns in [2 * MS, 200 * MS, 2_999 * MS] {
        let machine = Fake::machine(1);
        let mut process = Process::on(&machine);
        process.read_for(S, MS);
        machine.step_wall(-back_ns.cast_signed());
        let (begun_ns, mut last_ns) = (machine.hands().boot_ns, 0);
        while process.wall_less_system_ns() > 0 {
            assert!(process.last.wall_ns >= last_ns, "the wall goes back");
            last_ns = process.last.wall_ns;
            machine.pass(700 * US);
        }
        let took_ns = machine.hands().boot_ns - begun_ns;
        assert!(took_ns <= 20 * back_ns + 2 * MS, "{back_ns} ns took {took_ns}: slower than 5 %");
        process.read_for(10 * MS, MS);
        let health = process.clock.health();
        assert_eq!((health.slews, health.steps_back, health.ahead_ns), (1, 0, 0));
    }
}

#[test]
fn a_wall_clock_set_back_far_is_followed_at_once() {
    let machine = Fake::machine(1);
    let mut process = Process::on(&machine);
    for (times, back_ns) in (1..).zip([3_001 * MS, HOUR, 24 * HOUR, 10 * S]) {
        process.read_for(S, MS);
        machine.step_wall(-back_ns.cast_signed());
        machine.pass(2 * MS);
        assert!((-1_000..=0).contains(&process.wall_less_system_ns()));
        let health = process.clock.health();
        assert_eq!((health.steps_back, health.slews), (times, 0));
        assert!(health.stepped_back_ns.abs_diff(back_ns) < US);
    }
}

#[test]
fn an_impossible_wall_clock_is_refused_or_ignored() {
    let machine = Fake::machine(1);
    let right = machine.hands().wall_less_boot_ns;
    for wall_ns in [0, 1_000_000_000 * S, WALL_NS_MAX + 1, u64::MAX] {
        machine.hands().wall_less_boot_ns = wall_ns.wrapping_sub(HOUR).cast_signed();
        let fault = DisciplinedClock::new(machine.clone()).expect_err("no clock").to_string();
        assert!(fault.contains("set the clock"), "{fault}");
    }
    machine.hands().wall_less_boot_ns = right;
    let mut process = Process::on(&machine);
    process.read_for(S, MS);
    for wrong in [-right, i64::MAX / 2] {
        machine.hands().wall_less_boot_ns = wrong;
        process.read_for(10 * MS, MS);
        assert!(process.clock.health().impossible > 0);
        machine.hands().wall_less_boot_ns = right;
        machine.pass(2 * MS);
        assert!((-1_000..=0).contains(&process.wall_less_system_ns()));
    }
}

#[test]
fn threads_never_see_time_go_back() {
    let clock = Arc::new(SystemClock::start().expect("a clock"));
    let seen = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (clock, seen) = (Arc::clone(&clock), Arc::clone(&seen));
            scope.spawn(move || {
                for _ in 0..200_000 {
                    let before_ns = seen.load(Ordering::Acquire);
                    let now_ns = clock.now().steady_ns;
                    assert!(now_ns >= before_ns, "{now_ns} after {before_ns}");
                    seen.fetch_max(now_ns, Ordering::AcqRel);
                }
            });
        }
    });
}
