//! Calendar windows: days, weeks, months and years of a time zone. The windows are correct across daylight
//! saving and month lengths. A window is a set of dates, and ends at the first instant of the date after
//! them. If daylight saving skips that midnight, the window ends at the first instant that exists. If that
//! midnight happens twice, the window ends at the earlier one.

use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};

/// How long a calendar window lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// Midnight to midnight.
    Day,
    /// Monday to Monday (ISO 8601).
    Week,
    /// From the first of a month.
    Month,
    /// From 1 January.
    Year,
}

impl Period {
    /// The period's name in a config.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

/// A period in a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// How long a window lasts.
    pub period: Period,
    zone: TimeZone,
}

impl Calendar {
    /// `zone` is a name of the IANA time zone database, such as `Europe/Berlin`. The database is compiled
    /// in, so that nodes of one version agree.
    ///
    /// # Errors
    /// The database does not have the name.
    pub fn new(period: Period, zone: &str) -> Result<Self, String> {
        let zone = TimeZone::get(zone)
            .map_err(|_| format!("no time zone {zone:?}; use an IANA name such as Europe/Berlin or UTC"))?;
        Ok(Self { period, zone })
    }

    /// The time zone's name.
    pub fn zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// The end of the window that contains `wall_ns`. The end is later than `wall_ns`, and equal for every
    /// instant of a window.
    pub fn end_after(&self, wall_ns: u64) -> u64 {
        let instant = Timestamp::from_nanosecond(i128::from(wall_ns)).unwrap_or(Timestamp::MAX);
        let mut date = self.next_first(instant.to_zoned_datetime(self.zone.clone()).date());
        // A zone that moves its clock back over midnight shows the old date again after the edge. The edge
        // has passed, so the window is the next one.
        loop {
            let end = self.midnight(date);
            if end > wall_ns || date == Date::MAX {
                return end.max(wall_ns + 1);
            }
            date = self.next_first(date);
        }
    }

    /// The length, in nanoseconds, of the window that contains `wall_ns`. A month has 28 to 31 days, and a
    /// day may have 23 hours in a zone with daylight saving.
    pub fn length_ns(&self, wall_ns: u64) -> u64 {
        let instant = Timestamp::from_nanosecond(i128::from(wall_ns)).unwrap_or(Timestamp::MAX);
        let date = instant.to_zoned_datetime(self.zone.clone()).date();
        let first = match self.period {
            Period::Day => Ok(date),
            Period::Week => date.checked_sub(i64::from(date.weekday().to_monday_zero_offset()).days()),
            Period::Month => Ok(date.first_of_month()),
            Period::Year => Ok(date.first_of_year()),
        };
        let begin_ns = self.midnight(first.unwrap_or(Date::MIN)).min(wall_ns);
        self.end_after(wall_ns) - begin_ns
    }

    /// The first date of the window after the one that contains `date`.
    fn next_first(&self, date: Date) -> Date {
        let next = match self.period {
            Period::Day => date.checked_add(1.day()),
            Period::Week => date.checked_add((7 - i64::from(date.weekday().to_monday_zero_offset())).days()),
            Period::Month => date.first_of_month().checked_add(1.month()),
            Period::Year => date.first_of_year().checked_add(1.year()),
        };
        next.unwrap_or(Date::MAX)
    }

    fn midnight(&self, date: Date) -> u64 {
        let ns =
            date.to_zoned_datetime(self.zone.clone()).map_or(i128::MAX, |z| z.timestamp().as_nanosecond());
        u64::try_from(ns).unwrap_or(if ns < 0 { 0 } else { i64::MAX as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ns(text: &str) -> u64 {
        u64::try_from(text.parse::<Timestamp>().expect("a timestamp").as_nanosecond()).expect("after 1970")
    }

    #[track_caller]
    fn ends(period: Period, zone: &str, at: &str, end: &str) {
        let calendar = Calendar::new(period, zone).expect("a zone");
        let got = Timestamp::from_nanosecond(i128::from(calendar.end_after(ns(at)))).expect("in range");
        assert_eq!(got, end.parse::<Timestamp>().expect("a timestamp"), "{period:?} {zone} at {at}");
    }

    #[test]
    fn months_have_their_lengths() {
        ends(Period::Month, "UTC", "2027-02-10T00:00:00Z", "2027-03-01T00:00:00Z");
        ends(Period::Month, "UTC", "2028-02-29T23:59:59Z", "2028-03-01T00:00:00Z");
        ends(Period::Month, "Europe/Berlin", "2026-12-31T22:59:59Z", "2026-12-31T23:00:00Z");
        ends(Period::Year, "Europe/Berlin", "2026-12-31T23:00:00Z", "2027-12-31T23:00:00Z");
    }

    #[test]
    fn the_open_window_has_its_own_length() {
        const HOUR_NS: u64 = 3_600 * 1_000_000_000;
        for (period, zone, at, hours) in [
            (Period::Month, "UTC", "2026-11-27T23:00:00Z", 30 * 24),
            (Period::Month, "UTC", "2027-02-01T00:00:00Z", 28 * 24),
            (Period::Month, "UTC", "2028-02-29T23:59:59Z", 29 * 24),
            (Period::Year, "UTC", "2028-07-01T00:00:00Z", 366 * 24),
            (Period::Week, "UTC", "2026-11-22T23:00:00Z", 7 * 24),
            (Period::Day, "Europe/Berlin", "2027-03-28T12:00:00Z", 23),
            (Period::Day, "Europe/Berlin", "2026-10-25T12:00:00Z", 25),
            (Period::Month, "Europe/Berlin", "2026-10-01T00:00:00Z", 31 * 24 + 1),
        ] {
            let calendar = Calendar::new(period, zone).expect("a zone");
            assert_eq!(calendar.length_ns(ns(at)), hours * HOUR_NS, "{period:?} {zone} at {at}");
        }
    }

    #[test]
    fn weeks_start_on_monday() {
        ends(Period::Week, "UTC", "2026-11-22T23:00:00Z", "2026-11-23T00:00:00Z");
        ends(Period::Week, "UTC", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z");
    }

    #[test]
    fn days_are_23_and_25_hours_long_at_daylight_saving() {
        ends(Period::Day, "Europe/Berlin", "2027-03-27T23:00:00Z", "2027-03-28T22:00:00Z");
        ends(Period::Day, "Europe/Berlin", "2027-10-30T22:00:00Z", "2027-10-31T23:00:00Z");
    }

    #[test]
    fn a_midnight_that_is_skipped_begins_the_day_late() {
        // Asuncion sprang forward at midnight of 6 October 2024: the day began at 01:00 (-03).
        ends(Period::Day, "America/Asuncion", "2024-10-06T03:59:59Z", "2024-10-06T04:00:00Z");
        ends(Period::Day, "America/Asuncion", "2024-10-06T04:00:00Z", "2024-10-07T03:00:00Z");
    }

    #[test]
    fn windows_never_overlap_where_clocks_move_back_over_midnight() {
        // Havana moved from 01:00 back to 00:00: midnight of 2 November 2025 happened twice.
        let calendar = Calendar::new(Period::Day, "America/Havana").expect("a zone");
        let (mut at, stop) = (ns("2025-11-01T00:00:00Z"), ns("2025-11-04T00:00:00Z"));
        let mut end = calendar.end_after(at);
        let mut windows = 1;
        while at < stop {
            at += 60_000_000_000;
            let next = calendar.end_after(at);
            assert!(next > at);
            if at < end {
                assert_eq!(next, end, "one window has one end");
            } else {
                windows += 1;
                assert!(next > end);
                end = next;
            }
        }
        assert_eq!(windows, 4);
    }

    #[test]
    fn an_unknown_zone_is_refused() {
        let fault = Calendar::new(Period::Day, "Mars/Olympus").expect_err("no such zone");
        assert!(fault.contains("Mars/Olympus") && fault.contains("IANA"));
    }
}
