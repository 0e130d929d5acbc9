//! The all-seeing oracle: every admission, every budget that is in force anywhere, and what may not be.
//!
//! A request that waits for the disk is admitted at the instant of the decision, but only once the row is there. So
//! admissions wait in a queue of their cell until those before them are known, and a crash takes those back that it
//! forgot.

mod judge;

use std::collections::VecDeque;

use acequia_limits::Algorithm;
use acequia_rights::VersionId;

pub use self::judge::{Bucket, Excess, Labels, Trailing, Windows};
use crate::{
    budget::{Budget, Measured, Own, Shape},
    world::Plan,
};

/// One thing that happened to a cell.
#[derive(Clone, Copy, Debug)]
struct Admission {
    at_ns: u64,
    /// When it was promised: before, if it was leased.
    made_ns: u64,
    cost: u64,
    /// The window's end, as the region named it.
    label_ns: u64,
    /// Whose, and the batch that it waits for; 0 once it is known.
    place: usize,
    batch: u64,
}

/// Units that came back of something that was admitted.
#[derive(Clone, Copy, Debug)]
struct Returned {
    /// When it was admitted, and when it came back.
    made_ns: u64,
    at_ns: u64,
    /// What it was, and how much came back.
    cost: u64,
    units: u64,
    label_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Admitted(Admission),
    /// What was admitted was less.
    Returned(Returned),
    /// A crash took it back.
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

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Which check.
    pub check: &'static str,
    /// What it saw.
    pub what: String,
}

/// The numbers of a limit in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Of all keys.
    pub all: Budget,
    /// But of this one.
    pub own: Option<Own>,
}

/// How far from its end numbers of one key may begin to be out of force, and still be in force.
#[derive(Clone, Copy, Debug)]
struct Slack {
    before_ns: u64,
    after_ns: u64,
}

/// Everything that was admitted.
#[derive(Clone, Debug)]
pub struct Oracle {
    limits: Vec<Measured>,
    cells: Vec<Vec<Cell>>,
    /// The versions that are in force somewhere, and the numbers of their limits.
    issued: Vec<(VersionId, Vec<Option<Numbers>>)>,
    slack: Slack,
    /// By limit and key.
    in_force: Vec<Vec<Budget>>,
    /// When they last changed.
    changed_ns: Vec<Vec<u64>>,
    floor: VersionId,
    /// Clocks keep ε: windows of true time are checked.
    pub true_windows: bool,
    /// The promise does not hold for sums any more: an operator's word was wrong, or a disk is an old one.
    pub void: bool,
    /// Units admitted, for summaries.
    pub admitted: u64,
    /// What was found first.
    pub finding: Option<Finding>,
}

impl Oracle {
    /// An oracle of the limits of a plan.
    pub fn new(plan: &Plan) -> Self {
        let &Plan { ref limits, start: at_ns, true_windows, clock_error_ns, loan_ttl_ns, .. } = plan;
        let cells = limits
            .iter()
            .map(|limit| limit.keys.iter().map(|key| Cell::new(limit, key.cells[0].salt(), at_ns)));
        // What was lent under them is out until it ends.
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

    /// The largest numbers of a key of a limit that are in force anywhere.
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

    /// The authority made a version.
    ///
    /// A limit that it removes keeps its numbers here: what was lent under them is out until it ends, and numbers with
    /// which the limit comes back are in force alone once everybody acknowledged those.
    pub fn issue(&mut self, version_id: VersionId, mut numbers: Vec<Option<Numbers>>, at_ns: u64) {
        let before = self.issued.iter().max_by_key(|(version_id, _)| *version_id);
        for (limit, numbers) in numbers.iter_mut().enumerate() {
            *numbers = numbers.or_else(|| before.and_then(|(_, numbers)| numbers[limit]));
        }
        self.issued.push((version_id, numbers));
        self.renew(at_ns);
    }

    /// No region is bound by less than this version any more.
    pub fn acked(&mut self, floor: VersionId, at_ns: u64) {
        if floor == self.floor {
            return;
        }
        self.floor = floor;
        self.issued.retain(|(version_id, _)| *version_id >= floor);
        self.renew(at_ns);
    }

    /// When numbers of one key next begin to end, or have ended everywhere, if that is still to come.
    pub fn next_change(&self, now_ns: u64) -> Option<u64> {
        let numbers = self.issued.iter().flat_map(|(_, numbers)| numbers.iter().flatten());
        let ends = numbers.filter_map(|numbers| numbers.own?.until_ns);
        let Slack { before_ns, after_ns } = self.slack;
        let changes = ends.flat_map(|end_ns| [end_ns.saturating_sub(before_ns), end_ns + after_ns]);
        changes.filter(|at_ns| *at_ns > now_ns).min()
    }

    /// Looks anew at what is in force.
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

    /// A region admitted something, or will have once its disk has the batch.
    pub fn admit(
        &mut self,
        (limit, key): (usize, usize),
        (at_ns, label_ns): (u64, u64),
        cost: u64,
        (place, batch): (usize, u64),
    ) {
        let made_ns = at_ns;
        self.happen(limit, key, Event::Admitted(Admission { at_ns, made_ns, cost, label_ns, place, batch }));
    }

    /// So much of a lease that a region gave at a time was spent, at another.
    pub fn spend(
        &mut self,
        (limit, key): (usize, usize),
        (made_ns, at_ns): (u64, u64),
        cost: u64,
        place: usize,
    ) {
        let spent = Admission { at_ns, made_ns, cost, label_ns: 0, place, batch: 0 };
        self.happen(limit, key, Event::Admitted(spent));
    }

    /// Of something that was admitted units came back: from then on it is as if it had been less.
    pub fn give_back(
        &mut self,
        (limit, key): (usize, usize),
        (made_ns, at_ns): (u64, u64),
        (cost, units): (u64, u64),
        label_ns: u64,
    ) {
        self.happen(limit, key, Event::Returned(Returned { made_ns, at_ns, cost, units, label_ns }));
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

    /// A region's process ended: what still waited for the disk was never answered.
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
            Event::Returned(Returned { made_ns, at_ns, cost, units, label_ns }) => match judge {
                Judge::Bucket(bucket) => bucket.give_back((cost, units), (made_ns, at_ns)),
                Judge::Trailing(trailing) => trailing.give_back(units, made_ns),
                Judge::Windows(windows, labels) => {
                    windows.give_back(units, (made_ns, at_ns));
                    labels.give_back(units, label_ns);
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
            Event::Admitted(Admission { at_ns, made_ns, cost, label_ns, place, .. }) => {
                self.admitted += cost;
                let (check, excess) = match judge {
                    Judge::Bucket(bucket) => ("bucket", bucket.admit(cost, (made_ns, at_ns))),
                    Judge::Trailing(trailing) => ("trailing", trailing.admit(cost, (made_ns, at_ns))),
                    Judge::Windows(windows, labels) => {
                        let by_name = labels.admit(cost, label_ns);
                        match windows.admit(cost, at_ns) {
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

    /// Something that may not be.
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
