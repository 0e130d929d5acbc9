//! Windows that do not end while a test runs.
//!
//! Edges are counted from the Unix epoch, so the time of the test determines which windows are far from their
//! end.

use std::{
    ops::RangeInclusive,
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

/// A window of one to two hours with at least half an hour to go. All tests use the same window, because
/// another one would be another limit when a node's config is rewritten.
pub(crate) fn long() -> String {
    static LONG: OnceLock<String> = OnceLock::new();
    LONG.get_or_init(|| longest_to_go(3_600..=7_200)).clone()
}

/// A window below a minute, which a node does not journal, with at least 20 s to go.
pub(crate) fn short() -> String {
    longest_to_go(40..=59)
}

/// A time zone whose day has at least ten hours to go.
pub(crate) fn zone() -> &'static str {
    // Signs are reversed in POSIX: this zone is twelve hours behind UTC.
    if now_s() % 86_400 < 50_000 { "UTC" } else { "Etc/GMT+12" }
}

/// Seconds since the epoch.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs()
}

fn longest_to_go(seconds: RangeInclusive<u64>) -> String {
    let now = now_s();
    let window = seconds.max_by_key(|window| window - now % window).expect("a window");
    format!("{window}s")
}
