//! `acequia clock`: how well a process's clocks follow the system's clocks.

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use acequia_server::clock::{Clock, Counter, RawClocks, System, SystemClock};
use clap::Args;
use serde::Serialize;

use super::{NOT_DONE, Output, SUCCESS, complain, json_line, read_duration};
use crate::settings::SETTINGS;

/// Compare the clocks that a node would have on this machine with the system's clocks. Steady time is
/// compared with CLOCK_BOOTTIME over its second second, and the wall with CLOCK_REALTIME at the end.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exits with 1 where steady time is off by more than 100 ppm, or the wall by more than 1 ms."
)]
pub struct ClockCheck {
    /// For how long, such as 10s or 1m; at least two seconds.
    #[arg(long = "for", default_value = "10s", value_name = "TIME", value_parser = read_duration)]
    time: Duration,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, Serialize)]
struct Found {
    /// What steady time gained on `CLOCK_BOOTTIME` in its second second.
    drift_ppm: f64,
    /// The uncertainty of `drift_ppm`, from the duration of both pairs of readings.
    unsure_ppm: f64,
    /// How far the wall is off at least, in nanoseconds.
    wall_off_ns: u64,
    /// "used", "calibrating" or "unstable".
    counter: &'static str,
}

impl Found {
    /// Whether all errors are acceptable.
    fn is_good(&self) -> bool {
        self.drift_ppm.abs() <= SETTINGS.clock.drift_ppm_max + self.unsure_ppm
            && self.wall_off_ns <= SETTINGS.clock.wall_off_ns_max
    }
}

/// Steady time and the system's clock at one time, uncertain by `wide_ns`.
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
        (1..SETTINGS.clock.tries)
            .map(|_| once())
            .fold(first, |best, next| if next.wide_ns < best.wide_ns { next } else { best })
    }

    /// What steady time gained since an earlier pair, and the uncertainty of this gain, in parts per million.
    fn gained_ppm(&self, since: &Self) -> (f64, f64) {
        let of = |ns: f64| ns * 1e6 / self.boot_ns.saturating_sub(since.boot_ns).max(1) as f64;
        let [steady_ns, boot_ns] = [(self.steady_ns, since.steady_ns), (self.boot_ns, since.boot_ns)]
            .map(|(now, before)| now.saturating_sub(before) as f64);
        (of(steady_ns - boot_ns), of((self.wide_ns + since.wide_ns) as f64 / 2.0))
    }
}

/// The least distance of the wall from the two system readings around it.
fn wall_off_ns(clock: &impl Clock, raw: &impl RawClocks) -> u64 {
    let once = || {
        let before_ns = raw.wall_ns();
        let wall_ns = clock.now().wall_ns;
        let after_ns = raw.wall_ns();
        before_ns.saturating_sub(wall_ns).max(wall_ns.saturating_sub(after_ns))
    };
    (0..SETTINGS.clock.tries).map(|_| once()).min().unwrap_or(0)
}

impl ClockCheck {
    /// Compares the clocks, and prints the result.
    pub fn run(self) -> ExitCode {
        let clock = match SystemClock::start() {
            Ok(clock) => clock,
            Err(fault) => return complain(&fault.to_string()),
        };
        let found = self.compare(&clock, &System::default());
        let text = if self.json { json_line(&found) } else { for_people(&found) };
        Output::new().end(&text, if found.is_good() { SUCCESS } else { NOT_DONE })
    }

    fn compare(&self, clock: &impl Clock, raw: &impl RawClocks) -> Found {
        let begun = Instant::now();
        let until = |at: Duration| {
            while begun.elapsed() < at {
                clock.look();
                thread::sleep(SETTINGS.clock.look.min(at.saturating_sub(begun.elapsed())));
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
    fn the_drift_of_the_steady_clock_is_measured_in_ppm() {
        let first = Pair { steady_ns: 5_000, boot_ns: 1_000, wide_ns: 40_000 };
        let later = Pair { steady_ns: 1_000_155_000, boot_ns: 1_000_001_000, wide_ns: 60_000 };
        let (gained_ppm, unsure_ppm) = later.gained_ppm(&first);
        assert!(
            (gained_ppm - 150.0).abs() < 0.01 && (unsure_ppm - 50.0).abs() < 0.01,
            "{gained_ppm} {unsure_ppm}"
        );
    }

    #[test]
    fn a_clock_beyond_its_bound_is_reported_as_bad() {
        let found = Found { drift_ppm: -3.0, unsure_ppm: 0.5, wall_off_ns: 1_000, counter: "used" };
        assert!(found.is_good());
        assert!(!Found { drift_ppm: -101.0, ..found }.is_good());
        assert!(!Found { wall_off_ns: 1_000_001, ..found }.is_good());
        let text = "steady   -3.00 ppm, 0.50 more or less, against CLOCK_BOOTTIME\nwall     1 us from CLOCK_REALTIME\n";
        assert!(for_people(&found).starts_with(text), "{}", for_people(&found));
    }
}
