//! How good the clocks of regions are.

use acequia_limits::notation::{format_duration_ns, parse_duration_ns};
use acequia_rights::versions::{CLOCK_ERROR_NS_MAX, DRIFT_PPM_MAX};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::faults::Faults;

/// The promise about all nodes' clocks. Larger values are safer and waste more: margins around windows grow
/// with the error, waits for loans to end grow with the drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockConfig {
    /// No wall clock is further than this from true time, in nanoseconds: 1 to [`CLOCK_ERROR_NS_MAX`].
    /// Windows that regions share last at least 20 times as long.
    pub error_ns: u64,
    /// No steady clock gains or loses more than this, in parts per million: 0 to [`DRIFT_PPM_MAX`].
    pub drift_ppm: u32,
}

impl Default for ClockConfig {
    /// 10 ms, which NTP keeps on any network, and 1e-3, ten times what a crystal does.
    fn default() -> Self {
        Self { error_ns: 10_000_000, drift_ppm: 1_000 }
    }
}

/// `clock`, as the file has it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenClock {
    error: Option<Spanned<String>>,
    drift: Option<Spanned<String>>,
}

impl WrittenClock {
    pub(super) fn validate(&self, faults: &mut Faults<'_>) -> ClockConfig {
        let default = ClockConfig::default();
        let error = self.error.as_ref().map(|text| faults.take(parse_error_ns(&text.value), text));
        let drift = self.drift.as_ref().map(|text| faults.take(parse_drift_ppm(&text.value), text));
        ClockConfig {
            error_ns: error.flatten().unwrap_or(default.error_ns),
            drift_ppm: drift.flatten().unwrap_or(default.drift_ppm),
        }
    }
}

fn parse_error_ns(text: &str) -> Result<u64, String> {
    let error_ns = parse_duration_ns(text)?;
    if error_ns > CLOCK_ERROR_NS_MAX {
        let max = format_duration_ns(CLOCK_ERROR_NS_MAX);
        return Err(format!("a clock error of {text} is a broken clock: at most {max}, such as 10ms"));
    }
    Ok(error_ns)
}

/// Reads a fraction such as `1e-3`, rounded up to parts per million.
fn parse_drift_ppm(text: &str) -> Result<u32, String> {
    let max = f64::from(DRIFT_PPM_MAX) / 1e6;
    let drift = text.parse::<f64>().ok().filter(|drift| (0.0..=max).contains(drift));
    let drift =
        drift.ok_or_else(|| format!("a drift is a fraction from 0 to {max}, such as 1e-3, not {text:?}"))?;
    // A fraction that is no sum of halves, such as 3e-4, is off by far less than a millionth.
    let drift_ppm = (drift * 1e6 - 1e-6).ceil();
    // The value was checked to be in range, so that it fits.
    Ok((drift_ppm as u32).min(DRIFT_PPM_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{accepted, with};

    #[test]
    fn the_error_and_drift_of_a_clock_are_read() {
        let clock = |text: &str| {
            accepted(&with("clock: { error: 20ms, drift: 5e-4 }", text)).regions.expect("regions").clock
        };
        for (text, error_ns, drift_ppm) in [
            ("", 10_000_000, 1_000),
            ("clock: { error: 1ns }", 1, 1_000),
            ("clock: { error: 1m }", CLOCK_ERROR_NS_MAX, 1_000),
            ("clock: { drift: 0 }", 10_000_000, 0),
            ("clock: { drift: 0.1 }", 10_000_000, DRIFT_PPM_MAX),
            ("clock: { drift: 3e-4 }", 10_000_000, 300),
            ("clock: { drift: 0.0003001 }", 10_000_000, 301),
        ] {
            assert_eq!(clock(text), ClockConfig { error_ns, drift_ppm }, "{text}");
        }
    }
}
