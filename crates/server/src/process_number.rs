//! Numbers of a node's processes, which count up whatever becomes of its disk.
//!
//! A process that begins after another one has a higher number than that. On the disk is the last that was used. Where that is lost, the wall
//! clock gives one: a quarter of a second for each. So no process uses a number before its time has come, by true time, however often
//! the node was started before: it waits until then, and writes the number down when it has. *Then a process whose disk is empty has a
//! higher number than all before it.* With walls at most ε from true time, those used numbers whose time had come; its own is later
//! than its wall shows, and ε more.

use std::time::Duration;

use crate::regions::{incarnation_at, incarnation_ns};

/// A process uses so many numbers, one after the other: while it waits for its siblings, and after that.
const EACH: u32 = 2;

/// Which process of a node this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Boot {
    /// Its first number.
    pub(crate) number: u32,
    /// It uses that after so long, by its steady clock.
    pub(crate) wait: Duration,
}

impl Boot {
    /// The process after that which used this number, or with an empty disk, when its wall shows this. Nothing where numbers are used up.
    pub(crate) fn after(last: Option<u32>, wall_ns: u64, (error_ns, drift_ppm): (u64, u32)) -> Option<Self> {
        let last = last.unwrap_or_else(|| incarnation_at(wall_ns.saturating_add(error_ns)));
        let number = last.checked_add(1)?;
        let after_ns = |number| incarnation_ns(number).saturating_add(error_ns).saturating_sub(wall_ns);
        let wait_ns = after_ns(last.checked_add(EACH)?);
        // The time of the last number has come, unless the wall is further from true time than was promised.
        let most_ns = incarnation_ns(EACH) - incarnation_ns(0) + 2 * error_ns;
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

    fn after(last: Option<u32>, wall_ns: u64) -> Boot {
        Boot::after(last, wall_ns, (ERROR_NS, DRIFT_PPM)).expect("there are numbers left")
    }

    #[test]
    fn a_node_that_was_not_just_here_does_not_wait() {
        let first = after(None, START_NS);
        assert!(first.wait <= Duration::from_millis(1_101), "{first:?}");
        let next = after(Some(first.number + 1), START_NS + 3_000_000_000);
        assert_eq!((next.number, next.wait), (first.number + 2, Duration::ZERO));
        // One whose wall is an hour behind begins all the same.
        assert!(after(Some(first.number), START_NS - 3_600_000_000_000).wait < Duration::from_secs(2));
    }

    #[test]
    fn a_process_has_a_higher_number_than_all_before_it() {
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
                let boot = after(disk, wall_ns);
                assert!(boot.number > used, "start {start}: {} after {used}", boot.number);
                // A steady clock that is fast.
                let wait_ns = boot.wait.as_nanos() as u64;
                let waited_ns = wait_ns - wait_ns / 1_001;
                if random() % 3 == 0 {
                    // It ends before it has used any.
                    true_ns += random() % (waited_ns + 1);
                    continue;
                }
                used = boot.number + (random() % 2) as u32;
                disk = Some(used);
                true_ns += waited_ns + random() % 20_000_000;
            }
        }
    }
}
