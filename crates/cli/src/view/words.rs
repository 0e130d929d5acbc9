//! Numbers and times in as few columns as possible.

use std::time::Duration;

/// A number in at most six columns: 999999, then 1.00 M, and so on.
pub fn count(number: u64) -> String {
    for (unit, name) in [(1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M")] {
        if number >= unit {
            let hundredths = u128::from(number) * 100 / u128::from(unit);
            return match hundredths {
                0..1_000 => format!("{}.{:02}{name}", hundredths / 100, hundredths % 100),
                1_000..10_000 => format!("{}.{}{name}", hundredths / 100, hundredths % 100 / 10),
                _ => format!("{}{name}", hundredths / 100),
            };
        }
    }
    number.to_string()
}

/// A time since the beginning, as a clock shows it: 1:05, or 1:02:05.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 3_600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

/// A short time: 80 ms, 1.4 s.
pub fn short(time: Duration) -> String {
    match time.as_millis() {
        ms @ 0..1_000 => format!("{ms} ms"),
        ms => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
    }
}

/// A part of a whole, 0 to 1, rounded down, so that a part that is not quite the whole does not show 100 %.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", (part * 1_000.0).floor() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_short() {
        for (number, words) in [
            (0, "0"),
            (999_999, "999999"),
            (1_000_000, "1.00M"),
            (12_345_678, "12.3M"),
            (123_456_789, "123M"),
            (1_500_000_000, "1.50G"),
            (2_000_000_000_000, "2.00T"),
        ] {
            assert_eq!(count(number), words);
        }
    }

    #[test]
    fn times_and_percentages_are_written_short() {
        assert_eq!(clock(Duration::from_secs(65)), "1:05");
        assert_eq!(clock(Duration::from_secs(3_725)), "1:02:05");
        assert_eq!(short(Duration::from_millis(80)), "80 ms");
        assert_eq!(short(Duration::from_millis(1_480)), "1.4 s");
        assert_eq!(percent(0.99999), "99.9 %");
        assert_eq!(percent(1.0), "100.0 %");
    }
}
