//! Rates computed from counters that a node reports repeatedly.

use std::collections::{BTreeMap, VecDeque};

use acequia_api::acequia::v1::NodeStatus;

use crate::settings::SETTINGS;

/// A limit's counters at one node.
#[derive(Clone, Copy, Debug)]
struct Counters {
    admitted_units: u64,
    /// Denied requests.
    denied: u64,
}

/// The reports of one node within the last second.
#[derive(Clone, Debug, Default)]
pub struct Gauge {
    /// Reports by the node's steady clock, oldest first.
    reports: VecDeque<(u64, BTreeMap<String, Counters>)>,
}

/// A node's rates for a limit, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Units.
    pub admitted: u64,
    /// Requests.
    pub denied: u64,
}

impl Gauge {
    /// Takes in a report. Counting begins anew for a node that was restarted.
    pub fn report(&mut self, status: &NodeStatus) {
        let now_ns = status.uptime_ns;
        if self.reports.back().is_some_and(|(last_ns, _)| *last_ns >= now_ns) {
            self.reports.clear();
        }
        let counters = status.limits.iter().map(|limit| {
            let counters = Counters { admitted_units: limit.admitted_units, denied: limit.denied };
            (format!("{}/{}", limit.domain, limit.name), counters)
        });
        self.reports.push_back((now_ns, counters.collect()));
        // The oldest report that is kept is a whole stretch old, or a little more.
        while self.reports.len() > SETTINGS.watch.reports_max
            || self.reports.get(1).is_some_and(|(at_ns, _)| at_ns + SETTINGS.watch.stretch_ns <= now_ns)
        {
            self.reports.pop_front();
        }
    }

    /// The rates of a limit, by its domain/name; 0 before there are two reports.
    pub fn rates(&self, limit: &str) -> Rates {
        let (Some((from_ns, from)), Some((to_ns, to))) = (self.reports.front(), self.reports.back()) else {
            return Rates::default();
        };
        let elapsed_ns = to_ns - from_ns;
        let (Some(from), Some(to)) = (from.get(limit), to.get(limit)) else { return Rates::default() };
        if elapsed_ns == 0 {
            return Rates::default();
        }
        let rate = |from: u64, to: u64| {
            let rate = u128::from(to.saturating_sub(from)) * 1_000_000_000 / u128::from(elapsed_ns);
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        Rates { admitted: rate(from.admitted_units, to.admitted_units), denied: rate(from.denied, to.denied) }
    }
}

#[cfg(test)]
mod tests {
    use acequia_api::acequia::v1::LimitStatus;

    use super::*;

    fn status(ms: u64, admitted_units: u64, denied: u64) -> NodeStatus {
        let limit = LimitStatus {
            domain: "shop".to_owned(),
            name: "keys".to_owned(),
            admitted_units,
            denied,
            ..LimitStatus::default()
        };
        NodeStatus { uptime_ns: ms * 1_000_000, limits: vec![limit], ..NodeStatus::default() }
    }

    #[test]
    fn rates_are_over_the_last_second() {
        let mut gauge = Gauge::default();
        assert_eq!(gauge.rates("shop/keys"), Rates::default());
        for ms in (0..5_000).step_by(250) {
            // The rate is 100 a second for two seconds, then 300.
            let admitted = if ms <= 2_000 { ms / 10 } else { 200 + (ms - 2_000) * 3 / 10 };
            gauge.report(&status(ms, admitted, ms / 100));
        }
        assert_eq!(gauge.rates("shop/keys"), Rates { admitted: 300, denied: 10 });
        assert_eq!(gauge.rates("shop/others"), Rates::default());
    }

    #[test]
    fn a_restart_gives_no_negative_rate() {
        let mut gauge = Gauge::default();
        gauge.report(&status(9_000, 900, 0));
        gauge.report(&status(10, 0, 0));
        assert_eq!(gauge.rates("shop/keys"), Rates::default());
        gauge.report(&status(1_010, 50, 0));
        assert_eq!(gauge.rates("shop/keys").admitted, 50);
    }
}
