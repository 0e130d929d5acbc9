//! Rates and durations as operators write them: `60/s`, `5/10s`, `100/m`, `1h`, `1h30m`, `250ms`.

use crate::{PERIOD_NS_MAX, UNITS_MAX};

const NS: u64 = 1;
const US: u64 = 1_000 * NS;
const MS: u64 = 1_000 * US;
const S: u64 = 1_000 * MS;
const M: u64 = 60 * S;
const H: u64 = 60 * M;
const D: u64 = 24 * H;
const W: u64 = 7 * D;

/// A rate: units and the nanoseconds in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    units: u64,
    period_ns: u64,
}

impl Rate {
    /// `units` in 1 to [`UNITS_MAX`], `period_ns` in 1 to [`PERIOD_NS_MAX`].
    ///
    /// # Errors
    /// A number is out of range. The text says which.
    pub fn new(units: u64, period_ns: u64) -> Result<Self, String> {
        if !(1..=UNITS_MAX).contains(&units) {
            return Err(format!("a rate has 1 to {UNITS_MAX} units, not {units}"));
        }
        if !(1..=PERIOD_NS_MAX).contains(&period_ns) {
            return Err("a rate's period is above 0 and at most 400d".to_owned());
        }
        Ok(Self { units, period_ns })
    }

    /// Reads `N/s`, `N/m`, `N/h`, `N/d`, or `N/` and a duration.
    ///
    /// # Errors
    /// What is wrong with the text, and how to write it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fault = || format!("{text:?} is no rate: write it as 60/s, 100/m, 5/10s");
        let (units, period) = text.split_once('/').ok_or_else(fault)?;
        let units = parse_units(units.trim()).map_err(|_| fault())?;
        let period = period.trim();
        let period_ns = match unit_ns(period) {
            Some(ns) => ns,
            None => parse_duration_ns(period).map_err(|_| fault())?,
        };
        Self::new(units, period_ns)
    }

    /// The rate as a fraction in lowest terms: units, and the nanoseconds in which they come.
    pub const fn lowest_terms(self) -> (u64, u64) {
        let (mut a, mut b) = (self.units, self.period_ns);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        (self.units / a, self.period_ns / a)
    }
}

/// Reads a duration such as `250ms`, `10s`, `1h30m` or `30d`, in nanoseconds.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn parse_duration_ns(text: &str) -> Result<u64, String> {
    let fault = || format!("{text:?} is no duration: write it as 250ms, 10s, 5m, 1h, 30d or 1h30m");
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(fault());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(fault)?;
        let letters = rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        let count: u64 = rest[..digits].parse().map_err(|_| fault())?;
        let unit = unit_ns(&rest[digits..digits + letters]).ok_or_else(fault)?;
        total = count.checked_mul(unit).and_then(|ns| total.checked_add(ns)).ok_or_else(fault)?;
        rest = &rest[digits + letters..];
    }
    if total == 0 {
        return Err(format!("{text:?} is no time at all: a duration is above 0"));
    }
    if total > PERIOD_NS_MAX {
        return Err(format!("{text:?} is longer than 400d, the longest period"));
    }
    Ok(total)
}

/// A duration as [`parse_duration_ns`] reads it, with at most two units. Smaller units are cut off, so this is for people
/// to read, not for callers to wait by.
pub fn format_duration_ns(ns: u64) -> String {
    const UNITS: [(&str, u64); 7] =
        [("d", D), ("h", H), ("m", M), ("s", S), ("ms", MS), ("us", US), ("ns", NS)];
    let Some(first) = UNITS.iter().position(|(_, unit)| ns >= *unit) else { return "0s".to_owned() };
    let (name, unit) = UNITS[first];
    let mut text = format!("{}{name}", ns / unit);
    if let Some((name, smaller)) = UNITS.get(first + 1).filter(|(_, smaller)| ns % unit >= *smaller) {
        text.push_str(&format!("{}{name}", ns % unit / smaller));
    }
    text
}

fn unit_ns(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => NS,
        "us" | "µs" => US,
        "ms" => MS,
        "s" | "sec" => S,
        "m" | "min" => M,
        "h" => H,
        "d" => D,
        "w" => W,
        _ => return None,
    })
}

/// Reads units: decimal digits, and `k` for thousands or `M` for millions.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn parse_units(text: &str) -> Result<u64, String> {
    let (digits, scale) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let units = digits.parse::<u64>().ok().filter(|_| is_number).and_then(|units| units.checked_mul(scale));
    units.ok_or_else(|| format!("{text:?} is no whole number below 2^64: write it as 1200, 50k or 2M"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_read_as_they_are_written() {
        for (text, units, period) in [
            ("60/s", 60, S),
            ("100/m", 100, M),
            ("5/10s", 5, 10 * S),
            ("50k/d", 50_000, D),
            ("2M/min", 2_000_000, M),
            ("9/sec", 9, S),
        ] {
            assert_eq!(Rate::parse(text), Rate::new(units, period), "{text}");
        }
        assert_eq!(Rate::parse("60/m").map(Rate::lowest_terms), Ok((1, S)));
    }

    #[test]
    fn faults_in_rates_and_durations_say_how_to_write_them() {
        for text in [
            "60",
            "60/",
            "/s",
            "0/s",
            "-1/s",
            "1.5/s",
            "1_000/s",
            "0x3C/s",
            "1e2/s",
            "+5/s",
            "k/s",
            "1K/s",
            "1kk/s",
            "99999999999999M/s",
            "60/fortnight",
            "99999999999999999999/s",
            "1/401d",
        ] {
            Rate::parse(text).expect_err(text);
        }
        for text in ["", "10", "s", "0s", "1h-3m", "500d", "18446744073709551615d"] {
            parse_duration_ns(text).expect_err(text);
        }
    }

    #[test]
    fn durations_read_back() {
        for text in ["250ms", "10s", "1h30m", "30d"] {
            assert_eq!(format_duration_ns(parse_duration_ns(text).expect(text)), text);
        }
        assert_eq!(parse_duration_ns("1w"), Ok(7 * D));
        assert_eq!(parse_duration_ns("1min30sec"), Ok(90 * S));
    }
}
