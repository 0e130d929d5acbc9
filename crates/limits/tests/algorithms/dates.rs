//! A naive calendar: every date from 1970 on, one after the other, and the first instant at which the
//! clocks of a zone show the date.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use acequia_limits::calendar::Period;
use jiff::{Timestamp, tz::TimeZone};

const DAY_S: i64 = 86_400;
/// Some 190 years.
const DAYS: i64 = 69_400;
/// Wall clocks that the calendar can be asked about: 1971 to 2155.
pub(crate) const WALL_NS: std::ops::Range<u64> = 31_536_000_000_000_000..5_840_000_000_000_000_000;

/// Zones with unusual clock changes.
pub(crate) const ZONES: [&str; 12] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    // Midnight happens twice in autumn.
    "America/Havana",
    "Atlantic/Azores",
    // Midnight is skipped in spring.
    "America/Santiago",
    "America/Asuncion",
    "Africa/Cairo",
    // Until 2011, clocks changed one minute after midnight.
    "America/St_Johns",
    // Quarters and halves of an hour.
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    // There was no 30 December 2011.
    "Pacific/Apia",
];

/// The end of the window that contains an instant: the first later instant at which a wall clock shows a
/// date of a later window.
pub(crate) fn end_after(zone: &'static str, period: Period, wall_ns: u64) -> u64 {
    /// The instants at which windows of a zone begin: days, weeks, months, years.
    static BEGINS: Mutex<BTreeMap<&str, [Vec<u64>; 4]>> = Mutex::new(BTreeMap::new());
    let mut zones = BEGINS.lock().unwrap_or_else(PoisonError::into_inner);
    let begins = &zones.entry(zone).or_insert_with(|| begins(zone))[period as usize];
    begins[begins.partition_point(|begin| *begin <= wall_ns)]
}

fn begins(zone: &str) -> [Vec<u64>; 4] {
    let numbers = window_numbers();
    let mut begins = [const { Vec::new() }; 4];
    let mut last = [0; 4];
    for (second, day) in first_instants(zone) {
        for (period, number) in numbers[usize::try_from(day).expect("after 1970")].into_iter().enumerate() {
            if number > last[period] {
                begins[period].push(u64::try_from(second).expect("after 1970") * 1_000_000_000);
                last[period] = number;
            }
        }
    }
    begins
}

/// For each date since 1 January 1970, a Thursday: how many days, weeks, months and years have begun since.
fn window_numbers() -> Vec<[u32; 4]> {
    let mut numbers = Vec::new();
    let (mut weekday, mut date, mut month, mut year) = (3, 1, 1, 1970);
    let mut begun = [0; 4];
    for _ in 0..=DAYS {
        numbers.push(begun);
        begun[0] += 1;
        weekday = (weekday + 1) % 7;
        if weekday == 0 {
            begun[1] += 1;
        }
        date += 1;
        if date > days_in(month, year) {
            date = 1;
            month += 1;
            begun[2] += 1;
        }
        if month > 12 {
            month = 1;
            year += 1;
            begun[3] += 1;
        }
    }
    numbers
}

fn days_in(month: u32, year: u32) -> u32 {
    match month {
        2 if year.is_multiple_of(400) || (year.is_multiple_of(4) && !year.is_multiple_of(100)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The second at which a zone first shows each date, and the date as days since 1970. Between two changes
/// of its offset, a zone's clock is plain arithmetic.
fn first_instants(zone: &str) -> Vec<(i64, i64)> {
    let zone = TimeZone::get(zone).expect("a zone");
    let (begin, end) = (2 * DAY_S, (DAYS - 2) * DAY_S);
    let start = Timestamp::from_second(begin).expect("in range");
    let mut spans = vec![(begin, i64::from(zone.to_offset(start).seconds()))];
    for change in zone.following(start) {
        if change.timestamp().as_second() >= end {
            break;
        }
        spans.push((change.timestamp().as_second(), i64::from(change.offset().seconds())));
    }
    let mut firsts: Vec<(i64, i64)> = Vec::new();
    let mut shown = -1;
    for (place, (from, offset)) in spans.iter().enumerate() {
        let to = spans.get(place + 1).map_or(end, |(next, _)| *next);
        let mut second = *from;
        while second < to {
            let day = (second + offset).div_euclid(DAY_S);
            if day > shown {
                firsts.push((second, day));
                shown = day;
            }
            second = (day + 1) * DAY_S - offset;
        }
    }
    firsts
}
