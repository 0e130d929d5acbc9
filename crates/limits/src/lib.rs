//! What a limit is. **A cell never admits more than its limit.** Fixed windows and quotas bound each
//! window. Sliding windows bound every trailing window. Buckets admit at most `burst + rate · t` over any
//! interval `t`. These bounds hold for every sequence of calls in this crate, or there is a bug.
//!
//! The crate knows descriptors, costs, windows, algorithms and verdicts. The crate does not know who is
//! asking, where cells are kept, what time it is or how many regions share a limit. Time is an argument
//! ([`Now`]), and the caller keeps the state, a few 64-bit words. Nothing here does I/O, draws a random
//! number or iterates in an order that is not fixed.
//!
//! Where to read: [`limit`] for the limits that an operator writes, [`Algorithm`] for the decision, one
//! file for each algorithm, and [`selector`] for the requests that a limit applies to.
//!
//! To add an algorithm, write a file with its `probe`, `charge` and `spent_at`, a variant of [`Algorithm`],
//! and its naive reference in `tests/algorithms.rs`.

pub mod algorithm;
pub mod calendar;
pub mod carry;
pub mod cell;
pub mod classes;
pub mod debt;
pub mod descriptor;
pub mod expect;
mod give_back;
pub mod limit;
pub mod meter;
pub mod networks;
pub mod notation;
pub mod oracle;
pub mod path;
pub mod pattern;
pub mod selector;
pub mod sliding;
pub mod time;
pub mod verdict;
pub mod window;

pub use algorithm::Algorithm;
pub use cell::{CellTag, HashKey};
pub use descriptor::{Descriptor, Request};
pub use limit::{Charge, Fault, Limit, LimitId, Mode, Override, VariantChoice};
pub use notation::Rate;
pub use time::Now;
pub use verdict::{Reason, Verdict};

/// The largest number of units in a limit, a burst, a queue or a cost: 2^53, the largest integer that JSON
/// numbers and Lua keep exact. Larger costs are treated as this cost, and so denied.
pub const UNITS_MAX: u64 = 1 << 53;

/// The longest window, and the longest time in which a bucket may refill: 400 days, in nanoseconds. The
/// bound keeps every product of units and time below 2^128.
pub const PERIOD_NS_MAX: u64 = 400 * 86_400 * 1_000_000_000;

/// The parts that a limit's rate is cut into when regions share the limit: about a million. A part is as
/// fine as any share needs, and a meter of one part still fits 128-bit arithmetic.
pub const RATE_PARTS: u32 = 1 << 20;

/// The largest drift of a steady clock, in parts per million: such a clock runs twice as fast as time. This
/// bound keeps stretched windows far below 2^63 nanoseconds.
pub const DRIFT_PPM_MAX: u32 = 1_000_000;

/// The largest error of a wall clock that windows compensate: one hour, in nanoseconds. No calendar window
/// is shorter than two such errors. A clock that is further off is broken.
pub const MARGIN_NS_MAX: u64 = 3_600 * 1_000_000_000;

/// A piece of a cell, which a region owns, lends or borrows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Part {
    /// The piece's rate, in [`RATE_PARTS`] of the limit's rate. 0 for algorithms without a rate.
    pub rate: u32,
    /// The piece of the burst, the queue or the window's limit, in units.
    pub units: u64,
}
