//! Numbers of a node's processes towards its region's pools. They only increase, even if the node loses its disk.
//! Peers count processes by another number, which begins anew with each incarnation (`acequia_node::Home`).
//!
//! A process that begins after another one has a higher number. The disk holds the last number that was used.
//! If the disk is lost, the wall clock gives a number: each quarter of a second has its own. So no process
//! uses a number before the time of that number has come, by true time, however often the node was started
//! before. The process waits until then, and then writes the number down. *So a process with an empty disk
//! has a higher number than all before it.* Proof, with walls at most ε from true time: the earlier processes
//! used numbers whose time had come. The new number belongs to a time later than the wall shows plus ε.

use std::time::Duration;

use crate::{
    config::ClockConfig,
    incarnation::{begins_ns, number_at},
};

/// Numbers that one process uses, one after the other: the first while it waits for its mates, the second
/// after that.
const EACH: u32 = 2;

/// A process of a node, among all its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessNumber {
    /// Its first number.
    pub(crate) number: u32,
    /// How long the process waits, by its steady clock, before it uses that number.
    pub(crate) wait: Duration,
}

impl ProcessNumber {
    /// The process that follows the one with the number `last`, or the first on an empty disk, at a time of
    /// its wall. `None` once all numbers are used up.
    pub(crate) fn after(last: Option<u32>, wall_ns: u64, clock: ClockConfig) -> Option<Self> {
        let ClockConfig { error_ns, drift_ppm } = clock;
        let last = last.unwrap_or_else(|| number_at(wall_ns.saturating_add(error_ns)));
        let number = last.checked_add(1)?;
        let after_ns = |number| begins_ns(number).saturating_add(error_ns).saturating_sub(wall_ns);
        let wait_ns = after_ns(last.checked_add(EACH)?);
        // The last number's time has come, unless the wall is further from true time than was promised.
        let most_ns = begins_ns(EACH) - begins_ns(0) + 2 * error_ns;
        let wait_ns = wait_ns.min(most_ns);
        let drift_ns = wait_ns.saturating_mul(drift_ppm.into()).div_ceil(1_000_000);
        Some(Self { number, wait: Duration::from_nanos(wait_ns + drift_ns) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR_NS: u64 = 300_000_000;
    const DRIFT_PPM: u32 = 1_000;
    const START_NS: u64 = 1_790_000_000_000_000_000;

    fn after(last: Option<u32>, wall_ns: u64) -> ProcessNumber {
        ProcessNumber::after(last, wall_ns, ClockConfig { error_ns: ERROR_NS, drift_ppm: DRIFT_PPM })
            .expect("there are numbers left")
    }

    #[test]
    fn a_node_that_did_not_just_stop_starts_without_a_wait() {
        let first = after(None, START_NS);
        assert!(first.wait <= Duration::from_millis(1_101), "{first:?}");
        let next = after(Some(first.number + 1), START_NS + 3_000_000_000);
        assert_eq!((next.number, next.wait), (first.number + 2, Duration::ZERO));
        // A process whose wall is an hour behind begins all the same.
        assert!(after(Some(first.number), START_NS - 3_600_000_000_000).wait < Duration::from_secs(2));
    }

    #[test]
    fn a_process_has_a_higher_number_than_all_earlier_ones() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        for _ in 0..200 {
            let (mut true_ns, mut disk, mut used) = (START_NS, None, 0);
            for start in 0..60 {
                let wall_ns = true_ns - ERROR_NS + random() % (2 * ERROR_NS + 1);
                if random() % 4 == 0 {
                    disk = None;
                }
                let process = after(disk, wall_ns);
                assert!(process.number > used, "start {start}: {} after {used}", process.number);
                // A steady clock that is fast.
                let wait_ns = process.wait.as_nanos() as u64;
                let waited_ns = wait_ns - wait_ns / 1_001;
                if random() % 3 == 0 {
                    // The process ends before it has used any number.
                    true_ns += random() % (waited_ns + 1);
                    continue;
                }
                used = process.number + (random() % 2) as u32;
                disk = Some(used);
                true_ns += waited_ns + random() % 20_000_000;
            }
        }
    }
}
