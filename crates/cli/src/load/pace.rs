//! When requests start, and which of them are counted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{Bound, Pace};

/// The run as a whole. Times are nanoseconds since its start.
#[derive(Debug)]
pub(super) struct Plan {
    warm_ns: u64,
    /// When the run ends; `None` if it ends by count.
    end_ns: Option<u64>,
    /// Requests that may still start after the warm-up.
    left: AtomicU64,
    /// Time between two requests of one connection; `None`: as fast as answers come.
    interval_ns: Option<f64>,
    connections: usize,
}

impl Plan {
    pub(super) fn new(warm_up: Duration, bound: Bound, pace: Pace, connections: usize) -> Self {
        let warm_ns = nanoseconds(warm_up);
        let (end_ns, left) = match bound {
            Bound::For(measured) => (Some(warm_ns.saturating_add(nanoseconds(measured))), u64::MAX),
            Bound::Requests(count) => (None, count),
        };
        let interval_ns = match pace {
            Pace::Closed => None,
            Pace::Fixed { requests_per_s } => Some(connections as f64 * 1e9 / requests_per_s),
        };
        Self { warm_ns, end_ns, left: AtomicU64::new(left), interval_ns, connections }
    }

    /// Whether a request counts that started, or was due, and was answered at these times.
    pub(super) fn counts(&self, start_ns: u64, answer_ns: u64) -> bool {
        match self.end_ns {
            Some(end_ns) if self.interval_ns.is_none() => (self.warm_ns..end_ns).contains(&answer_ns),
            _ => start_ns >= self.warm_ns,
        }
    }

    /// The length of the measured part, if the last counted answer came at this time.
    pub(super) fn measured(&self, last_answer_ns: u64) -> Duration {
        let end_ns = match self.end_ns {
            Some(end_ns) if self.interval_ns.is_none() => end_ns,
            Some(end_ns) => end_ns.max(last_answer_ns),
            None => last_answer_ns,
        };
        Duration::from_nanos(end_ns.saturating_sub(self.warm_ns))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Starts the requests of one connection.
#[derive(Debug)]
pub(super) struct Pacer {
    plan: Arc<Plan>,
    /// This connection's offset: connections start their requests in turn.
    offset_ns: f64,
    started: u64,
}

impl Pacer {
    pub(super) fn new(plan: Arc<Plan>, connection: usize) -> Self {
        let offset_ns = plan.interval_ns.unwrap_or(0.0) * connection as f64 / plan.connections as f64;
        Self { plan, offset_ns, started: 0 }
    }

    /// The start time of a request, if one is to start now. At a fixed pace the start time may have passed.
    pub(super) fn start(&mut self, now_ns: u64) -> Option<u64> {
        let start_ns = self.due_ns().unwrap_or(now_ns);
        if start_ns > now_ns || self.is_over(now_ns) {
            return None;
        }
        if start_ns >= self.plan.warm_ns {
            let one_less = |left: u64| left.checked_sub(1);
            self.plan.left.fetch_update(Relaxed, Relaxed, one_less).ok()?;
        }
        self.started += 1;
        Some(start_ns)
    }

    /// Whether no request will start any more.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        let next_ns = self.due_ns().unwrap_or(now_ns);
        match self.plan.end_ns {
            Some(end_ns) => next_ns >= end_ns,
            None => next_ns >= self.plan.warm_ns && self.plan.left.load(Relaxed) == 0,
        }
    }

    /// When the next request is due, at a fixed pace.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.plan.interval_ns.map(|interval_ns| (self.offset_ns + interval_ns * self.started as f64) as u64)
    }

    /// The plan that this connection follows.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn connections_share_an_exact_request_count_after_the_warm_up() {
        let plan = Arc::new(Plan::new(Duration::from_secs(1), Bound::Requests(3), Pace::Closed, 2));
        let (mut a, mut b) = (Pacer::new(plan.clone(), 0), Pacer::new(plan.clone(), 1));

        assert!((0..100).all(|ns| a.start(ns).is_some() && b.start(ns).is_some()));
        let started =
            (0..10).filter(|ns| a.start(SECOND_NS + ns).is_some() | b.start(SECOND_NS + ns).is_some());
        assert_eq!(started.count(), 2, "one by each in the first step, one in the second");
        assert!(a.is_over(SECOND_NS) && b.is_over(SECOND_NS));
        assert!(!plan.counts(SECOND_NS - 1, 2 * SECOND_NS) && plan.counts(SECOND_NS, 2 * SECOND_NS));
        assert_eq!(plan.measured(4 * SECOND_NS), Duration::from_secs(3));
    }

    #[test]
    fn a_fixed_pace_is_kept_by_all_connections_together() {
        let one_second = Bound::For(Duration::from_secs(1));
        let plan = Arc::new(Plan::new(Duration::ZERO, one_second, Pace::Fixed { requests_per_s: 1000.0 }, 3));
        let mut due: Vec<u64> = Vec::new();
        for connection in 0..3 {
            let mut pacer = Pacer::new(plan.clone(), connection);
            // The client is late, but the start times are still those of the schedule.
            due.extend(std::iter::from_fn(|| pacer.start(5 * SECOND_NS)));
            assert!(pacer.is_over(0));
        }
        due.sort_unstable();

        assert_eq!(due.len(), 1000);
        assert!(due.iter().enumerate().all(|(n, due)| due.abs_diff(n as u64 * 1_000_000) <= 1));
    }
}
