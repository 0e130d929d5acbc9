//! `acequia clock`: how a process's clocks keep to the system's.

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde::Serialize;

use super::{NOT_DONE, Output, SUCCESS, complain, json_line, read_duration};
use crate::clock::{Clock, Counter, RawClocks, System, SystemClock};

/// Compare the clocks that a node would have on this machine with the system's: steady time with CLOCK_BOOTTIME over its second
/// second, and the wall with CLOCK_REALTIME at the end.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exits with 1 where steady time is off by more than 100 ppm, or the wall by more than 1 ms."
)]
pub struct ClockCheck {
    /// For how long, such as 10s or 1m: 3s at least.
    #[arg(long = "for", default_value = "10s", value_name = "TIME", value_parser = read_duration)]
    time: Duration,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The most that steady time may be off, in parts per million.
const DRIFT_PPM_MAX: f64 = 100.0;
/// The most that the wall may be off, in nanoseconds.
const WALL_OFF_NS_MAX: u64 = 1_000_000;
/// How often a node looks at its clocks at least.
const LOOK: Duration = Duration::from_millis(20);
/// Pairs of readings of which the closest counts: a thread that is preempted between two readings says nothing.
const TRIES: u32 = 200;

/// What was found.
#[derive(Clone, Copy, Debug, Serialize)]
struct Found {
    /// What steady time gained on `CLOCK_BOOTTIME` in its second second.
    drift_ppm: f64,
    /// How wrong that may be: both pairs of readings took so long.
    unsure_ppm: f64,
    /// How far the wall is off at least, in nanoseconds.
    wall_off_ns: u64,
    /// "used", "calibrating" or "unstable".
    counter: &'static str,
}

/// Steady time and the system's clock at one time, which is unsure by `wide_ns`.
#[derive(Clone, Copy, Debug)]
struct Pair {
    steady_ns: u64,
    boot_ns: u64,
    wide_ns: u64,
}

impl Pair {
    fn read(clock: &impl Clock, raw: &impl RawClocks) -> Self {
        let once = || {
            let before_ns = raw.boot_ns();
            let steady_ns = clock.now().steady_ns;
            let wide_ns = raw.boot_ns().saturating_sub(before_ns);
            Self { steady_ns, boot_ns: before_ns + wide_ns / 2, wide_ns }
        };
        let first = once();
        (1..TRIES)
            .map(|_| once())
            .fold(first, |best, next| if next.wide_ns < best.wide_ns { next } else { best })
    }

    /// What steady time gained since an earlier pair, and how wrong that may be, in parts per million.
    fn gained_ppm(&self, since: &Self) -> (f64, f64) {
        let of = |ns: f64| ns * 1e6 / self.boot_ns.saturating_sub(since.boot_ns).max(1) as f64;
        let [steady_ns, boot_ns] = [(self.steady_ns, since.steady_ns), (self.boot_ns, since.boot_ns)]
            .map(|(now, before)| now.saturating_sub(before) as f64);
        (of(steady_ns - boot_ns), of((self.wide_ns + since.wide_ns) as f64 / 2.0))
    }
}

/// How far the wall is outside of two readings of the system's around it, at least.
fn wall_off_ns(clock: &impl Clock, raw: &impl RawClocks) -> u64 {
    let once = || {
        let before_ns = raw.wall_ns();
        let wall_ns = clock.now().wall_ns;
        let after_ns = raw.wall_ns();
        before_ns.saturating_sub(wall_ns).max(wall_ns.saturating_sub(after_ns))
    };
    (0..TRIES).map(|_| once()).min().unwrap_or(0)
}

impl ClockCheck {
    /// Compares, and says what it found.
    pub fn run(self) -> ExitCode {
        let clock = match SystemClock::start() {
            Ok(clock) => clock,
            Err(fault) => return complain(&fault.to_string()),
        };
        let found = self.compare(&clock, &System::default());
        let is_good =
            found.drift_ppm.abs() <= DRIFT_PPM_MAX + found.unsure_ppm && found.wall_off_ns <= WALL_OFF_NS_MAX;
        let text = if self.json { json_line(&found) } else { for_people(&found) };
        Output::new().end(&text, if is_good { SUCCESS } else { NOT_DONE })
    }

    fn compare(&self, clock: &impl Clock, raw: &impl RawClocks) -> Found {
        let begun = Instant::now();
        let until = |at: Duration| {
            while begun.elapsed() < at {
                clock.look();
                thread::sleep(LOOK.min(at.saturating_sub(begun.elapsed())));
            }
        };
        until(Duration::from_secs(1));
        let first = Pair::read(clock, raw);
        until(Duration::from_secs(2));
        let (drift_ppm, unsure_ppm) = Pair::read(clock, raw).gained_ppm(&first);
        until(self.time);
        let counter = match clock.health().counter {
            Counter::Calibrating => "calibrating",
            Counter::Used => "used",
            Counter::Unstable => "unstable",
        };
        Found { drift_ppm, unsure_ppm, wall_off_ns: wall_off_ns(clock, raw), counter }
    }
}

fn for_people(found: &Found) -> String {
    let Found { drift_ppm, unsure_ppm, wall_off_ns, counter } = found;
    let counter = match *counter {
        "used" => "the processor's, held to CLOCK_BOOTTIME",
        "unstable" => "the processor's is not steady: CLOCK_BOOTTIME is read each time",
        _ => "the processor's is not known well enough yet: CLOCK_BOOTTIME is read each time",
    };
    format!(
        "steady   {drift_ppm:+.2} ppm, {unsure_ppm:.2} more or less, against CLOCK_BOOTTIME\n\
         wall     {} us from CLOCK_REALTIME\n\
         counter  {counter}\n",
        wall_off_ns / 1_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_within_the_bounds() {
        let check = ClockCheck { time: Duration::from_secs(3), json: false };
        let clock = SystemClock::start().expect("a clock");
        let found = check.compare(&clock, &System::default());
        assert!(found.drift_ppm.abs() <= DRIFT_PPM_MAX + found.unsure_ppm, "{found:?}");
        assert!(found.wall_off_ns <= WALL_OFF_NS_MAX, "{found:?}");
        assert!(for_people(&found).contains("CLOCK_BOOTTIME"), "{}", for_people(&found));
    }
}
