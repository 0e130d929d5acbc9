//! The oracle sees everything: every admission, every budget in force anywhere, and every violation.
//!
//! A request that waits for the disk is admitted at the instant of the decision, but only once its row is
//! written. Admissions therefore wait in their cell's queue until all earlier ones are known. A crash removes
//! the admissions that it forgot.

mod judge;

use std::collections::VecDeque;

use acequia_limits::Algorithm;
use acequia_rights::VersionId;

pub use self::judge::{Bucket, Excess, Labels, Refund, Times, Trailing, Windows};
use crate::{
    budget::{Budget, LimitKey, Measured, Own, Shape},
    world::Plan,
};

/// An admission at a cell.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// When the units were promised, and when they were admitted: later if they were leased.
    pub times: Times,
    /// The admitted units.
    pub cost: u64,
    /// The window's end, as the region named it.
    pub label_ns: u64,
    /// The admitting place.
    pub place: usize,
    /// The batch that the admission waits for; 0 once it is known.
    pub batch: u64,
}

/// Units of an admission that were refunded.
#[derive(Clone, Copy, Debug)]
pub struct Returned {
    /// When the units were admitted, and when they were refunded.
    pub times: Times,
    /// The admitted cost, and the refunded units.
    pub refund: Refund,
    /// The window's end, as the region named it.
    pub label_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Admitted(Admission),
    /// An admission was refunded in part or whole.
    Returned(Returned),
    /// A crash removed the event.
    Forgotten,
    InForce(u64, Budget),
}

#[derive(Clone, Debug)]
enum Judge {
    Bucket(Bucket),
    Trailing(Trailing),
    Windows(Windows, Labels),
}

/// A cell of a limit.
#[derive(Clone, Debug)]
struct Cell {
    judge: Judge,
    queue: VecDeque<Event>,
}

/// A violation that a check found.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The check.
    pub check: &'static str,
    /// What the check saw.
    pub what: String,
}

/// The numbers of a limit in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The numbers for all keys.
    pub all: Budget,
    /// Other numbers for one key.
    pub own: Option<Own>,
}

/// How far from the end of one key's numbers they may already be out of force, or may still be in force.
#[derive(Clone, Copy, Debug)]
struct Slack {
    before_ns: u64,
    after_ns: u64,
}

/// All admissions.
#[derive(Clone, Debug)]
pub struct Oracle {
    limits: Vec<Measured>,
    cells: Vec<Vec<Cell>>,
    /// The versions that are in force somewhere, with their limits' numbers.
    issued: Vec<(VersionId, Vec<Option<Numbers>>)>,
    slack: Slack,
    /// The numbers in force, by limit and key.
    in_force: Vec<Vec<Budget>>,
    /// When each of these last changed.
    changed_ns: Vec<Vec<u64>>,
    floor: VersionId,
    /// Whether clocks keep ε, so that windows of true time are checked.
    pub true_windows: bool,
    /// Sums are no longer promised: an operator's word was wrong, or a disk is an old copy.
    pub void: bool,
    /// Units admitted, for summaries.
    pub admitted: u64,
    /// The first finding.
    pub finding: Option<Finding>,
}

impl Oracle {
    /// The oracle for a plan's limits.
    pub fn new(plan: &Plan) -> Self {
        let &Plan { ref limits, start: at_ns, true_windows, clock_error_ns, loan_ttl_ns, .. } = plan;
        let cells = limits
            .iter()
            .map(|limit| limit.keys.iter().map(|key| Cell::new(limit, key.cells[0].salt(), at_ns)));
        // Loans under these numbers are out until they end.
        let slack = Slack { before_ns: clock_error_ns, after_ns: clock_error_ns + 2 * loan_ttl_ns };
        Self {
            limits: limits.clone(),
            cells: cells.map(Iterator::collect).collect(),
            issued: Vec::new(),
            slack,
            in_force: limits.iter().map(|limit| vec![limit.first; limit.keys.len()]).collect(),
            changed_ns: limits.iter().map(|limit| vec![at_ns; limit.keys.len()]).collect(),
            floor: VersionId::default(),
            true_windows,
            void: false,
            admitted: 0,
            finding: None,
        }
    }

    /// The largest numbers of a key that are in force anywhere.
    pub fn in_force(&self, limit: usize, key: usize) -> Budget {
        self.in_force[limit][key]
    }

    /// Whether a window may be open that has seen other budgets.
    pub fn changed_lately(&self, limit: usize, key: usize, now: u64) -> bool {
        now < self.changed_ns[limit][key].saturating_add(2 * self.limits[limit].algorithm.horizon_ns())
    }

    /// Whether there is a catalogue.
    pub fn has_begun(&self) -> bool {
        !self.issued.is_empty()
    }

    /// The authority makes a version.
    ///
    /// A removed limit keeps its numbers here, because loans under them are out until they end. If the limit
    /// returns, its new numbers are in force alone once everybody has acknowledged them.
    pub fn issue(&mut self, version_id: VersionId, mut numbers: Vec<Option<Numbers>>, at_ns: u64) {
        let before = self.issued.iter().max_by_key(|(version_id, _)| *version_id);
        for (limit, numbers) in numbers.iter_mut().enumerate() {
            *numbers = numbers.or_else(|| before.and_then(|(_, numbers)| numbers[limit]));
        }
        self.issued.push((version_id, numbers));
        self.renew(at_ns);
    }

    /// No region is bound by an earlier version than this one.
    pub fn acked(&mut self, floor: VersionId, at_ns: u64) {
        if floor == self.floor {
            return;
        }
        self.floor = floor;
        self.issued.retain(|(version_id, _)| *version_id >= floor);
        self.renew(at_ns);
    }

    /// The next time at which numbers of one key begin to end, or have ended everywhere.
    pub fn next_change(&self, now_ns: u64) -> Option<u64> {
        let numbers = self.issued.iter().flat_map(|(_, numbers)| numbers.iter().flatten());
        let ends = numbers.filter_map(|numbers| numbers.own?.until_ns);
        let Slack { before_ns, after_ns } = self.slack;
        let changes = ends.flat_map(|end_ns| [end_ns.saturating_sub(before_ns), end_ns + after_ns]);
        changes.filter(|at_ns| *at_ns > now_ns).min()
    }

    /// Recomputes what is in force.
    pub fn renew(&mut self, at_ns: u64) {
        for limit in 0..self.limits.len() {
            for key in 0..self.cells[limit].len() {
                let all = self.issued.iter().filter_map(|(_, numbers)| numbers[limit]);
                let all = all.flat_map(|numbers| numbers.of(key, at_ns, self.slack)).flatten();
                let most =
                    all.reduce(|a, b| Budget { units: a.units.max(b.units), rate: a.rate.max(b.rate) });
                let Some(most) = most.filter(|most| *most != self.in_force[limit][key]) else { continue };
                self.in_force[limit][key] = most;
                self.changed_ns[limit][key] = at_ns;
                self.happen(limit, key, Event::InForce(at_ns, most));
            }
        }
    }

    /// A region admits units, if the batch is 0, or will have admitted them once its disk has the batch.
    pub fn admit(&mut self, key: LimitKey, admission: Admission) {
        self.happen(key.limit, key.key, Event::Admitted(admission));
    }

    /// A region spends part of a lease that it gave earlier.
    pub fn spend(&mut self, key: LimitKey, times: Times, cost: u64, place: usize) {
        self.admit(key, Admission { times, cost, label_ns: 0, place, batch: 0 });
    }

    /// Units of an admission are refunded. From then on the admission counts as smaller.
    pub fn give_back(&mut self, key: LimitKey, returned: Returned) {
        self.happen(key.limit, key.key, Event::Returned(returned));
    }

    /// A region's disk has everything up to a batch.
    pub fn committed(&mut self, place: usize, batch: u64) {
        self.learn(|event| {
            if let Event::Admitted(admission) = event
                && admission.place == place
                && admission.batch <= batch
            {
                admission.batch = 0;
            }
        });
    }

    /// A region's process ends, so requests that still waited for the disk were never answered.
    pub fn forgot(&mut self, place: usize) {
        self.learn(|event| {
            if matches!(event, Event::Admitted(admission) if admission.place == place && admission.batch > 0)
            {
                *event = Event::Forgotten;
            }
        });
    }

    fn learn(&mut self, mut learn: impl FnMut(&mut Event)) {
        for limit in 0..self.cells.len() {
            for key in 0..self.cells[limit].len() {
                if self.cells[limit][key].queue.is_empty() {
                    continue;
                }
                self.cells[limit][key].queue.iter_mut().for_each(&mut learn);
                self.settle(limit, key);
            }
        }
    }

    #[inline]
    fn happen(&mut self, limit: usize, key: usize, event: Event) {
        let cell = &mut self.cells[limit][key];
        let waits = matches!(event, Event::Admitted(admission) if admission.batch > 0);
        if waits || !cell.queue.is_empty() {
            cell.queue.push_back(event);
        } else {
            self.judge(limit, key, event);
        }
    }

    fn settle(&mut self, limit: usize, key: usize) {
        let known = |event: &mut Event| !matches!(event, Event::Admitted(admission) if admission.batch > 0);
        while let Some(event) = self.cells[limit][key].queue.pop_front_if(known) {
            self.judge(limit, key, event);
        }
    }

    fn judge(&mut self, limit: usize, key: usize, event: Event) {
        let rate = |budget: Budget| self.limits[limit].rate(budget);
        let judge = &mut self.cells[limit][key].judge;
        match event {
            Event::Forgotten => {}
            Event::Returned(Returned { times, refund, label_ns }) => match judge {
                Judge::Bucket(bucket) => bucket.give_back(refund, times),
                Judge::Trailing(trailing) => trailing.give_back(refund.units, times.made_ns),
                Judge::Windows(windows, labels) => {
                    windows.give_back(refund.units, times);
                    labels.give_back(refund.units, label_ns);
                }
            },
            Event::InForce(at_ns, budget) => match judge {
                Judge::Bucket(bucket) => bucket.change(budget.units, rate(budget), at_ns),
                Judge::Trailing(trailing) => trailing.change(budget.units, at_ns),
                Judge::Windows(windows, labels) => {
                    windows.change(budget.units, at_ns);
                    labels.change(budget.units, at_ns);
                }
            },
            Event::Admitted(Admission { times, cost, label_ns, place, .. }) => {
                self.admitted += cost;
                let (check, excess) = match judge {
                    Judge::Bucket(bucket) => ("bucket", bucket.admit(cost, times)),
                    Judge::Trailing(trailing) => ("trailing", trailing.admit(cost, times)),
                    Judge::Windows(windows, labels) => {
                        let by_name = labels.admit(cost, label_ns);
                        match windows.admit(cost, times.at_ns) {
                            Some(excess) if self.true_windows => ("window", Some(excess)),
                            _ => ("label", by_name),
                        }
                    }
                };
                if let Some(Excess { came, bound }) = excess
                    && !self.void
                {
                    let name = self.limits[limit].name;
                    let shape = self.limits[limit].shape;
                    let what = format!(
                        "limit {name} {shape:?}, key {key}: {came:.3} of {bound} with {cost} more in region {place}"
                    );
                    self.find(check, what);
                }
            }
        }
    }

    /// Records a violation.
    pub fn find(&mut self, check: &'static str, what: String) {
        self.finding.get_or_insert(Finding { check, what });
    }
}

impl Numbers {
    /// The numbers of a key that may be in force at a time.
    fn of(&self, key: usize, at_ns: u64, slack: Slack) -> [Option<Budget>; 2] {
        let Some(own) = self.own.filter(|own| own.key == key) else { return [Some(self.all), None] };
        let may_be_over = own.until_ns.is_some_and(|end_ns| at_ns >= end_ns.saturating_sub(slack.before_ns));
        let is_over = own.until_ns.is_some_and(|end_ns| at_ns >= end_ns + slack.after_ns);
        [may_be_over.then_some(self.all), (!is_over).then_some(own.budget)]
    }
}

impl Cell {
    fn new(limit: &Measured, salt: u32, at_ns: u64) -> Self {
        let Budget { units, .. } = limit.first;
        let judge = match (limit.shape, &limit.algorithm) {
            (Shape::Sliding(_, window_ns, _), _) => Judge::Trailing(Trailing::new(units, window_ns, at_ns)),
            (_, Algorithm::FixedWindow(window)) => {
                let labels = Labels::new(units, limit.algorithm.horizon_ns());
                Judge::Windows(Windows::new(units, window.clone(), salt, at_ns), labels)
            }
            _ => Judge::Bucket(Bucket::new(units, limit.rate(limit.first), at_ns)),
        };
        Self { judge, queue: VecDeque::new() }
    }
}
