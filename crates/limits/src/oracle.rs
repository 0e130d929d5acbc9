//! Checks whether more was admitted than a budget allows, from what the callers saw and nothing else.
//!
//! A caller does not know when a request was admitted. The caller knows only that the time lies between the
//! question and the answer. So an admission counts in an interval only if its question and its answer lie
//! in the interval. Units found to be over the budget are over it for every possible dating of the
//! admissions. The nodes' own reports are not used.

use std::collections::{BTreeMap, VecDeque};

/// Units are counted in billionths, so that a rate is units a nanosecond.
const NANO: i128 = 1_000_000_000;
/// The longest time to an answer. An answer that takes longer is not judged.
pub const ANSWER_TIME_MAX_NS: u64 = 3_000_000_000;

/// A budget of `burst + rate * t` over any interval of length t.
#[derive(Clone, Debug)]
pub struct BucketOracle {
    /// Every budget in force within the last [`ANSWER_TIME_MAX_NS`], oldest first; never empty.
    budgets: VecDeque<Budget>,
    /// Intervals that may or may not contain a late answer, ordered by their begin.
    recent: VecDeque<Interval>,
    /// All intervals that began earlier, by their burst. For each burst, only the interval nearest to being
    /// over is kept: every later admission lies in all of them.
    settled: BTreeMap<u64, i128>,
    last_ns: u64,
    /// The largest burst that ever was in force.
    burst_max: u64,
    units_over: u64,
}

/// A rate and a burst that are in force from an instant on.
#[derive(Clone, Copy, Debug)]
struct Budget {
    from_ns: u64,
    /// The units that the rate had given by `from_ns`.
    supply: i128,
    rate: u64,
    burst: u64,
}

/// The interval from an instant until now.
#[derive(Clone, Copy, Debug)]
struct Interval {
    from_ns: u64,
    /// The units that were surely admitted in the interval.
    admitted: i128,
    /// The units that the rate had given before the interval began.
    supply: i128,
    /// The largest burst in force in the interval.
    burst: u64,
}

impl BucketOracle {
    /// The oracle of a bucket from the instant 0 on. `rate` is in units a second, `burst` in units.
    pub fn new(rate: u64, burst: u64) -> Self {
        Self {
            budgets: VecDeque::from([Budget { from_ns: 0, supply: 0, rate, burst }]),
            recent: VecDeque::new(),
            settled: BTreeMap::new(),
            last_ns: 0,
            burst_max: burst,
            units_over: 0,
        }
    }

    /// Sets another rate and burst from now on. A lower budget must be set when it is in force everywhere,
    /// and a higher budget before anybody can know of it.
    pub fn set(&mut self, now_ns: u64, rate: u64, burst: u64) {
        let now_ns = now_ns.max(self.last_ns);
        self.last_ns = now_ns;
        self.burst_max = self.burst_max.max(burst);
        if self.budgets.back().is_some_and(|last| (last.rate, last.burst) == (rate, burst)) {
            return;
        }
        self.budgets.push_back(Budget { from_ns: now_ns, supply: self.supply(now_ns), rate, burst });
        for interval in &mut self.recent {
            interval.burst = interval.burst.max(burst);
        }
        // Intervals with a smaller burst have this burst now.
        let larger = self.settled.split_off(&burst);
        let raised = std::mem::replace(&mut self.settled, larger);
        if let Some(nearest) = raised.into_values().max() {
            let level = self.settled.entry(burst).or_insert(nearest);
            *level = (*level).max(nearest);
        }
    }

    /// Counts `units` that were asked for and admitted between the two times. Calls come in the order of
    /// the answers.
    pub fn admit(&mut self, asked_ns: u64, answered_ns: u64, units: u64) {
        let now_ns = answered_ns.max(self.last_ns);
        self.last_ns = now_ns;
        self.settle(now_ns);
        if units == 0 || now_ns.saturating_sub(asked_ns) > ANSWER_TIME_MAX_NS {
            return;
        }
        self.begin(asked_ns);
        let amount = i128::from(units) * NANO;
        let given = self.supply(now_ns);
        let mut most = i128::MIN;
        for interval in self.recent.iter_mut().take_while(|interval| interval.from_ns <= asked_ns) {
            interval.admitted += amount;
            most = most.max(interval.admitted + interval.supply - i128::from(interval.burst) * NANO);
        }
        for (burst, level) in &mut self.settled {
            *level += amount;
            most = most.max(*level - i128::from(*burst) * NANO);
        }
        let over = (most - given).max(0);
        let over = u64::try_from((over + NANO - 1) / NANO).unwrap_or(u64::MAX);
        self.units_over = self.units_over.max(over);
    }

    /// Units above the budget, in the interval that is furthest above it. 0 means that the promise holds.
    pub const fn units_over(&self) -> u64 {
        self.units_over
    }

    /// Units that the budget allowed from the instant 0 until the last admission.
    pub fn allowed(&self) -> u64 {
        let given = u64::try_from(self.supply(self.last_ns) / NANO).unwrap_or(u64::MAX);
        given.saturating_add(self.burst_max)
    }

    /// The units that the rate has given until `at_ns`, which is no earlier than the oldest budget kept.
    fn supply(&self, at_ns: u64) -> i128 {
        let budget = self.budgets.iter().rev().find(|budget| budget.from_ns <= at_ns);
        budget
            .map_or(0, |budget| budget.supply + i128::from(budget.rate) * i128::from(at_ns - budget.from_ns))
    }

    /// Begins an interval at `from_ns`, unless one begins there.
    fn begin(&mut self, from_ns: u64) {
        let place = self.recent.partition_point(|interval| interval.from_ns < from_ns);
        let next = self.recent.get(place);
        if next.is_some_and(|interval| interval.from_ns == from_ns) {
            return;
        }
        // Units asked for after this time that lie in a later interval lie in the next one, too.
        let admitted = next.map_or(0, |interval| interval.admitted);
        let until = self.budgets.iter().skip(1).map(|budget| budget.from_ns).chain([u64::MAX]);
        let in_force = self.budgets.iter().zip(until).filter(|(_, until)| *until > from_ns);
        let burst = in_force.map(|(budget, _)| budget.burst).max().unwrap_or(0);
        let supply = self.supply(from_ns);
        self.recent.insert(place, Interval { from_ns, admitted, supply, burst });
    }

    /// Settles the intervals that contain every later answer: their begins are forgotten.
    fn settle(&mut self, now_ns: u64) {
        let before_ns = now_ns.saturating_sub(ANSWER_TIME_MAX_NS);
        while let Some(interval) = self.recent.pop_front_if(|interval| interval.from_ns < before_ns) {
            let reached = interval.admitted + interval.supply;
            let level = self.settled.entry(interval.burst).or_insert(reached);
            *level = (*level).max(reached);
        }
        while self.budgets.get(1).is_some_and(|budget| budget.from_ns <= before_ns) {
            self.budgets.pop_front();
        }
    }
}

/// A budget for each window between two edges of the wall clock.
#[derive(Clone, Debug)]
pub struct WindowOracle {
    limit: u64,
    /// The largest limit in force in the open window.
    most: u64,
    window_ns: u64,
    /// The largest difference between wall clocks. An admission so near to an edge may be in either window.
    clock_error_ns: u64,
    window: u64,
    admitted: u64,
    units_over: u64,
}

impl WindowOracle {
    /// The oracle of windows of `window_ns`, which must not be 0.
    pub const fn new(limit: u64, window_ns: u64, clock_error_ns: u64) -> Self {
        Self { limit, most: limit, window_ns, clock_error_ns, window: 0, admitted: 0, units_over: 0 }
    }

    /// Sets another limit from now on. In the window that contains `wall_ns`, the larger limit counts.
    pub fn set(&mut self, wall_ns: u64, limit: u64) {
        self.open(wall_ns / self.window_ns);
        self.limit = limit;
        self.most = self.most.max(limit);
    }

    /// Counts `units` that were asked for and admitted between the two times of the wall clock.
    pub fn admit(&mut self, asked_ns: u64, answered_ns: u64, units: u64) {
        let first = asked_ns.saturating_sub(self.clock_error_ns) / self.window_ns;
        let last = answered_ns.saturating_add(self.clock_error_ns) / self.window_ns;
        if first != last || first < self.window {
            return;
        }
        self.open(first);
        self.admitted = self.admitted.saturating_add(units);
        self.units_over = self.units_over.max(self.admitted.saturating_sub(self.most));
    }

    fn open(&mut self, window: u64) {
        if window > self.window {
            (self.window, self.admitted, self.most) = (window, 0, self.limit);
        }
    }

    /// Units above the limit, in the window that is furthest above it. 0 means that the promise holds.
    pub const fn units_over(&self) -> u64 {
        self.units_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_oracle_accepts_the_exact_budget_and_not_one_unit_more() {
        let mut oracle = BucketOracle::new(1_000, 1_000);
        oracle.admit(0, 0, 1_000);
        for ms in 1..=5_000 {
            oracle.admit(ms * MS, ms * MS, 1);
        }
        assert_eq!(oracle.units_over(), 0);
        assert_eq!(oracle.allowed(), 6_000);
        oracle.admit(5_000 * MS, 5_000 * MS, 1);
        assert_eq!(oracle.units_over(), 1);
    }

    #[test]
    fn the_oracle_lets_idle_time_save_up_at_most_the_burst() {
        let mut oracle = BucketOracle::new(10, 100);
        let hour_ns = 3_600_000 * MS;
        oracle.admit(hour_ns, hour_ns, 100);
        assert_eq!(oracle.units_over(), 0);
        oracle.admit(hour_ns, hour_ns, 7);
        assert_eq!(oracle.units_over(), 7);
    }

    #[test]
    fn the_oracle_counts_only_units_over_the_limit_at_every_possible_time() {
        // The question is at 0 and the answer a second later. Half may have been admitted at once, half at
        // the end.
        let mut oracle = BucketOracle::new(100, 100);
        oracle.admit(0, 1_000 * MS, 200);
        assert_eq!(oracle.units_over(), 0);
        oracle.admit(500 * MS, 1_000 * MS, 1);
        assert_eq!(oracle.units_over(), 1);
    }

    #[test]
    fn the_oracle_counts_answers_that_overtake_each_other() {
        let mut oracle = BucketOracle::new(100, 100);
        // The later question is answered first.
        oracle.admit(900 * MS, 910 * MS, 100);
        oracle.admit(100 * MS, 920 * MS, 82);
        assert_eq!(oracle.units_over(), 0);
        oracle.admit(100 * MS, 920 * MS, 1);
        assert_eq!(oracle.units_over(), 1);
    }

    #[test]
    fn the_oracle_counts_intervals_that_it_has_settled() {
        let mut oracle = BucketOracle::new(100, 100);
        // A tenth more than the rate is over after ten seconds, though no interval of three seconds is.
        let mut over_at = None;
        for second in 0..30 {
            oracle.admit(second * 1_000 * MS, second * 1_000 * MS, 110);
            if oracle.units_over() > 0 && over_at.is_none() {
                over_at = Some(second);
            }
        }
        // 110 at 0 is 10 above the burst at once.
        assert_eq!(over_at, Some(0));
        assert_eq!(oracle.units_over(), 300);
        let mut oracle = BucketOracle::new(100, 200);
        for second in 0..10 {
            oracle.admit(second * 1_000 * MS, second * 1_000 * MS, 110);
        }
        assert_eq!(oracle.units_over(), 0);
        oracle.admit(10_000 * MS, 10_000 * MS, 111);
        assert_eq!(oracle.units_over(), 11);
    }

    #[test]
    fn a_raised_budget_applies_to_intervals_that_reach_past_the_raise() {
        let mut oracle = BucketOracle::new(100, 100);
        oracle.admit(0, 0, 100);
        oracle.set(1_000 * MS, 200, 200);
        // 100 came in the first second; the burst is 200 now.
        oracle.admit(1_000 * MS, 1_000 * MS, 200);
        assert_eq!(oracle.units_over(), 0);
        oracle.admit(2_000 * MS, 2_000 * MS, 201);
        assert_eq!(oracle.units_over(), 1);
    }

    #[test]
    fn a_lowered_budget_applies_to_intervals_that_begin_later() {
        let mut oracle = BucketOracle::new(100, 200);
        oracle.set(10_000 * MS, 50, 50);
        oracle.admit(10_000 * MS, 10_000 * MS, 50);
        assert_eq!(oracle.units_over(), 0);
        oracle.admit(11_000 * MS, 11_000 * MS, 51);
        assert_eq!(oracle.units_over(), 1);
        // A smaller raise: intervals settled under 200 keep 200, and intervals that began later have 60.
        oracle.set(20_000 * MS, 50, 60);
        oracle.admit(30_000 * MS, 30_000 * MS, 60);
        assert_eq!(oracle.units_over(), 1);
        oracle.admit(30_000 * MS, 30_000 * MS, 2);
        assert_eq!(oracle.units_over(), 2);
    }

    /// The reference: checks every pair of a question and an answer.
    fn by_all_pairs(admissions: &[(u64, u64, u64)], rate: u64, burst: u64) -> u64 {
        let mut most = 0;
        for (from, ..) in admissions {
            for (_, until, _) in admissions.iter().filter(|(_, until, _)| until >= from) {
                let within =
                    admissions.iter().filter(|(asked, answered, _)| asked >= from && answered <= until);
                let admitted: i128 = within.map(|(.., units)| i128::from(*units) * NANO).sum();
                let allowed = i128::from(burst) * NANO + i128::from(rate) * i128::from(until - from);
                most = most.max(admitted - allowed);
            }
        }
        ((most + NANO - 1) / NANO) as u64
    }

    #[test]
    fn the_running_count_agrees_with_a_check_of_every_interval() {
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut seen = [0; 2];
        for _ in 0..200 {
            let (rate, burst) = (50 + random(100), 20 + random(200));
            let mut admissions: Vec<(u64, u64, u64)> = (0..60)
                .map(|_| {
                    let asked = random(12_000) * MS;
                    (asked, asked + random(1_500) * MS, 1 + random(40))
                })
                .collect();
            admissions.sort_by_key(|(_, answered, _)| *answered);
            let mut oracle = BucketOracle::new(rate, burst);
            for (asked, answered, units) in &admissions {
                oracle.admit(*asked, *answered, *units);
            }
            let expected = by_all_pairs(&admissions, rate, burst);
            assert_eq!(oracle.units_over(), expected, "{rate} {burst} {admissions:?}");
            seen[usize::from(expected > 0)] += 1;
        }
        assert!(seen.iter().all(|count| *count > 10), "one-sided: {seen:?}");
    }

    #[test]
    fn the_window_oracle_counts_only_charges_surely_inside() {
        let mut oracle = WindowOracle::new(10, 1_000 * MS, 10 * MS);
        oracle.admit(1_100 * MS, 1_200 * MS, 10);
        // One admission is near the edge, and one spans the edge.
        oracle.admit(1_980 * MS, 1_995 * MS, 5);
        oracle.admit(1_900 * MS, 2_100 * MS, 5);
        assert_eq!(oracle.units_over(), 0);
        oracle.admit(2_100 * MS, 2_200 * MS, 10);
        assert_eq!(oracle.units_over(), 0);
        oracle.admit(2_200 * MS, 2_300 * MS, 3);
        assert_eq!(oracle.units_over(), 3);
    }

    #[test]
    fn in_a_window_with_several_limits_the_largest_counts() {
        let mut oracle = WindowOracle::new(10, 1_000 * MS, 10 * MS);
        oracle.set(1_500 * MS, 20);
        oracle.set(1_600 * MS, 5);
        oracle.admit(1_700 * MS, 1_700 * MS, 20);
        assert_eq!(oracle.units_over(), 0);
        oracle.admit(2_100 * MS, 2_200 * MS, 6);
        assert_eq!(oracle.units_over(), 1);
    }
}
