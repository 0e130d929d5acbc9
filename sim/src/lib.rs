//! The real server in a simulated world that a seed breaks. **One seed gives one history, to the
//! last packet.**
//!
//! - [`world`]: regions that run the server, and callers, in one thread, over simulated links, disks and clocks;
//! - [`schedule`]: which faults happen, and when; [`demand`]: who asks what;
//! - [`scenarios`]: short stories of both, with a promise;
//! - [`checks`]: the invariants, judged from outside after every step;
//! - [`run`]: one scenario with one seed from its start to its [`Record`](run::Record);
//! - [`many`]: many runs at once; [`minimise`](mod@minimise): a smaller schedule with the same finding;
//!   [`file`](mod@file): a schedule that can be kept;
//! - [`series`]: how a watched run went over time; [`report`]: a page that shows the run; [`mod@compare`]:
//!   other ways of limiting, under the same demand and faults;
//! - [`trace`]: the events of a run, and one number by which two runs are compared.
//!
//! The simulator knows nothing of how a limit is shared: the server does. Only sockets, disks, clocks and
//! chance are simulated ([`acequia_server::Service::serve_in`]).

pub mod bound;
pub mod checks;
pub mod compare;
pub mod demand;
pub mod file;
#[cfg(feature = "mutations")]
pub mod kill;
pub mod many;
pub mod minimise;
pub mod progress;
pub mod report;
pub mod run;
pub mod scenarios;
pub mod schedule;
pub mod series;
pub mod trace;
pub mod world;

/// The names of regions, by their places. The first region's node is the authority.
pub const NAMES: [&str; 5] = ["eu", "us", "ap", "sa", "af"];

/// A time in nanoseconds.
fn ns(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The example that the README shows works.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use acequia_rights::splitmix as random;
