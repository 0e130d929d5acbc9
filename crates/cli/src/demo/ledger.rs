//! What was asked and admitted, counted at the callers in tenths of a second.

use std::{
    collections::VecDeque,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use acequia_limits::oracle::{BucketOracle, WindowOracle};

use super::{
    in_force::{AllNumbers, larger},
    plan::{EXPORTS, REGIONS, USERS},
};
use crate::settings::SETTINGS;

/// How long a bin is.
pub const BIN: Duration = Duration::from_millis(100);
/// Bins in a column of the chart.
pub const BINS_IN_COLUMN: usize = 5;
/// Bins in a second.
pub const BINS_IN_SECOND: usize = 10;

/// The limit that a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The budget that all regions share.
    Budget,
    /// One of the users.
    User(usize),
    /// The window.
    Exports,
}

/// How many kinds of subjects there are.
pub const KINDS: usize = 3;

impl Subject {
    /// Its place among the limits.
    pub const fn kind(self) -> usize {
        match self {
            Self::Budget => 0,
            Self::User(_) => 1,
            Self::Exports => 2,
        }
    }
}

/// An instant on both clocks, in nanoseconds: steady time since the beginning, and wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instants {
    /// Steady time since the ledger was opened.
    pub steady_ns: u64,
    /// Wall time.
    pub wall_ns: u64,
}

impl Instants {
    /// Now, for a ledger that was opened at `began`.
    pub fn now(began: Instant) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { steady_ns: began.elapsed().as_nanos() as u64, wall_ns: wall.as_nanos() as u64 }
    }

    /// The reading of both clocks when the wall showed `wall_ns`, less the possible difference of walls. It
    /// is never later than the true instant.
    #[must_use]
    pub fn surely_before(self, wall_ns: u64) -> Self {
        let ago_ns = self.wall_ns.saturating_sub(wall_ns).saturating_add(SETTINGS.stage.clock_error_ns);
        Self {
            steady_ns: self.steady_ns.saturating_sub(ago_ns),
            wall_ns: self.wall_ns.saturating_sub(ago_ns),
        }
    }
}

/// The answer to one or more questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The region that answered.
    pub region: usize,
    /// The limit.
    pub subject: Subject,
    /// An instant before the question was sent.
    pub asked: Instants,
    /// An instant after the answer was read.
    pub answered: Instants,
    /// Units admitted.
    pub admitted: u64,
    /// Requests denied.
    pub denied: u64,
}

/// The counts of a bin, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Units, by kind and region.
    pub admitted: [[u64; REGIONS]; KINDS],
    /// Requests, by kind and region.
    pub denied: [[u64; REGIONS]; KINDS],
    /// The length: a little more than [`BIN`] if this process was late.
    pub length: Duration,
    /// The budget, in units a second.
    pub budget: u64,
    /// A word for an event in the bin.
    pub mark: &'static str,
}

impl Bin {
    /// Units of a kind that a region admitted, a second.
    pub fn admitted_per_second(&self, kind: usize, region: usize) -> u64 {
        self.per_second(self.admitted[kind][region])
    }

    /// Requests of a kind that a region denied, a second.
    pub fn denied_per_second(&self, kind: usize, region: usize) -> u64 {
        self.per_second(self.denied[kind][region])
    }

    fn per_second(&self, count: u64) -> u64 {
        let length_ns = self.length.as_nanos().max(1);
        u64::try_from((u128::from(count) * 1_000_000_000 + length_ns / 2) / length_ns).unwrap_or(u64::MAX)
    }
}

/// The sums of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Units of the budget that were admitted.
    pub admitted: u64,
    /// Units that could have been admitted.
    pub usable: u64,
    /// The length of the phase.
    pub length: Duration,
}

impl Use {
    /// The part that was used; `None` before there was any.
    pub fn part(self) -> Option<f64> {
        (self.usable > 0).then(|| self.admitted as f64 / self.usable as f64)
    }
}

/// All counts.
///
/// An answer is judged by the numbers that were in force when it came. These numbers are known a little
/// later, when the nodes have reported them: until then the answer waits.
#[derive(Debug)]
pub struct Ledger {
    budget: BucketOracle,
    users: Vec<BucketOracle>,
    exports: WindowOracle,
    /// Answers that are not judged yet, in order of arrival.
    waiting: VecDeque<Answer>,
    /// Numbers that apply to no judged answer yet, by when they came into force.
    changes: VecDeque<Change>,
    /// The numbers that the last answers were judged by.
    judged_by: AllNumbers,
    open: Bin,
    /// Units admitted, by kind.
    admitted: [u64; KINDS],
    /// Closed bins, oldest first.
    bins: VecDeque<Bin>,
    /// The number of bins closed so far.
    closed: usize,
    /// The use while everything was connected, and while something was broken.
    uses: [Use; 2],
}

/// Numbers that are in force from an instant on.
#[derive(Clone, Copy, Debug)]
struct Change {
    from: Instants,
    numbers: AllNumbers,
}

impl Ledger {
    /// A ledger of limits with these numbers.
    pub fn new(numbers: AllNumbers) -> Self {
        let [budget, user, exports] = numbers;
        Self {
            budget: BucketOracle::new(budget.rate, budget.units),
            users: vec![BucketOracle::new(user.rate, user.units); USERS.len()],
            exports: WindowOracle::new(exports.units, EXPORTS.window_ns, SETTINGS.stage.clock_error_ns),
            waiting: VecDeque::new(),
            changes: VecDeque::new(),
            judged_by: numbers,
            open: Bin { budget: budget.rate, ..Bin::default() },
            admitted: [0; KINDS],
            bins: VecDeque::new(),
            closed: 0,
            uses: [Use::default(); 2],
        }
    }

    /// Counts an answer, to be judged later. Answers must be given in order of arrival.
    pub fn answer(&mut self, answer: Answer) {
        let Answer { region, subject, admitted, denied, .. } = answer;
        self.open.admitted[subject.kind()][region] += admitted;
        self.admitted[subject.kind()] += admitted;
        self.open.denied[subject.kind()][region] += denied;
        self.waiting.push_back(answer);
    }

    /// Other numbers are in force from an instant on. If numbers are already known for a later instant, the
    /// larger ones count from then on.
    pub fn allow(&mut self, from: Instants, numbers: AllNumbers) {
        let place = self.changes.partition_point(|change| change.from.steady_ns <= from.steady_ns);
        let mut then = numbers;
        for later in self.changes.range_mut(place..) {
            later.numbers = larger(later.numbers, numbers);
        }
        if place < self.changes.len() {
            let before = place.checked_sub(1).and_then(|before| self.changes.get(before));
            then = larger(numbers, before.map_or(self.judged_by, |change| change.numbers));
        }
        self.changes.insert(place, Change { from, numbers: then });
    }

    /// Judges the answers that came until `until_ns`. All numbers in force until then must be known.
    pub fn judge(&mut self, until_ns: u64) {
        while let Some(answer) = self.waiting.pop_front_if(|answer| answer.answered.steady_ns <= until_ns) {
            let Answer { subject, asked, answered, admitted, .. } = answer;
            let is_past = |change: &mut Change| change.from.steady_ns <= answered.steady_ns;
            while let Some(change) = self.changes.pop_front_if(is_past) {
                self.apply(change);
            }
            match subject {
                Subject::Budget => self.budget.admit(asked.steady_ns, answered.steady_ns, admitted),
                Subject::User(user) => {
                    self.users[user].admit(asked.steady_ns, answered.steady_ns, admitted);
                }
                Subject::Exports => self.exports.admit(asked.wall_ns, answered.wall_ns, admitted),
            }
        }
    }

    fn apply(&mut self, Change { from, numbers }: Change) {
        let [budget, user, exports] = numbers;
        self.budget.set(from.steady_ns, budget.rate, budget.units);
        for oracle in &mut self.users {
            oracle.set(from.steady_ns, user.rate, user.units);
        }
        self.exports.set(from.wall_ns, exports.units);
        self.judged_by = numbers;
    }

    /// Sets the budget that the chart shows.
    pub fn show_budget(&mut self, budget: u64) {
        self.open.budget = budget;
    }

    /// Puts a word on the axis of the chart.
    pub fn mark(&mut self, word: &'static str) {
        self.open.mark = word;
    }

    /// Ends a bin of this length. `usable` is the units a second that could have been admitted with the links
    /// as they were. `broken` says whether something was cut or dead.
    pub fn close(&mut self, length: Duration, usable: u64, broken: bool) {
        self.open.length = length;
        let admitted = self.open.admitted[0].iter().sum();
        let usable = u128::from(usable) * length.as_nanos() / 1_000_000_000;
        let usable = u64::try_from(usable).unwrap_or(u64::MAX);
        let sums = &mut self.uses[usize::from(broken)];
        sums.admitted += admitted;
        // A burst or a loan may allow more than the formula gives: admitted units were usable.
        sums.usable += usable.max(admitted);
        sums.length += length;
        let next = Bin { budget: self.open.budget, ..Bin::default() };
        self.bins.push_back(std::mem::replace(&mut self.open, next));
        self.closed += 1;
        if self.bins.len() > SETTINGS.view.columns_max * BINS_IN_COLUMN {
            self.bins.pop_front();
        }
    }

    /// The counts of the last second, or of less at the beginning.
    pub fn last_second(&self) -> Bin {
        self.last(BINS_IN_SECOND)
    }

    /// The sums of the last `bins` bins.
    pub fn last(&self, bins: usize) -> Bin {
        let mut sum = Bin { budget: self.open.budget, ..Bin::default() };
        for bin in self.bins.iter().rev().take(bins) {
            sum.add(bin);
        }
        sum
    }

    /// Columns of the chart: the sums of [`BINS_IN_COLUMN`] bins each, in fixed groups.
    pub fn columns(&self) -> impl Iterator<Item = Bin> + '_ {
        let first = self.closed - self.bins.len();
        let skip = (BINS_IN_COLUMN - first % BINS_IN_COLUMN) % BINS_IN_COLUMN;
        let whole = self.bins.len().saturating_sub(skip) / BINS_IN_COLUMN;
        (0..whole).map(move |column| {
            let mut sum = Bin::default();
            for bin in self.bins.range(skip + column * BINS_IN_COLUMN..).take(BINS_IN_COLUMN) {
                sum.add(bin);
                sum.budget = bin.budget;
            }
            sum
        })
    }

    /// Units above each kind of limit, in the worst interval or window judged so far. The promise is 0.
    pub fn units_over(&self) -> [u64; KINDS] {
        let users = self.users.iter().map(BucketOracle::units_over).sum();
        [self.budget.units_over(), users, self.exports.units_over()]
    }

    /// Units that the budget allowed until the last judged answer.
    pub fn allowed(&self) -> u64 {
        self.budget.allowed()
    }

    /// Units of each kind that were admitted since the beginning.
    pub const fn admitted(&self) -> [u64; KINDS] {
        self.admitted
    }

    /// The use while everything was connected, and while something was broken.
    pub const fn uses(&self) -> [Use; 2] {
        self.uses
    }
}

impl Bin {
    fn add(&mut self, other: &Self) {
        for kind in 0..KINDS {
            for region in 0..REGIONS {
                self.admitted[kind][region] += other.admitted[kind][region];
                self.denied[kind][region] += other.denied[kind][region];
            }
        }
        self.length += other.length;
        if !other.mark.is_empty() {
            self.mark = other.mark;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            in_force::{AT_START, Numbers},
            plan::USER_BURST,
        },
        *,
    };

    const TENTH: Duration = Duration::from_millis(100);

    fn instant(ms: u64) -> Instants {
        Instants { steady_ns: ms * 1_000_000, wall_ns: ms * 1_000_000 }
    }

    fn answer(region: usize, subject: Subject, ms: u64, admitted: u64) -> Answer {
        Answer { region, subject, asked: instant(ms), answered: instant(ms), admitted, denied: 1 }
    }

    #[test]
    fn regions_are_counted_together_against_the_budget() {
        let mut ledger = Ledger::new(AT_START);
        for region in 0..3 {
            ledger.answer(answer(region, Subject::Budget, 5, 334));
        }
        ledger.judge(u64::MAX);
        assert_eq!(ledger.units_over(), [2, 0, 0]);
        ledger.close(TENTH, 1_000, false);
        assert_eq!(ledger.last_second().admitted[0], [334; 3]);
        assert_eq!(ledger.last_second().denied[0], [1; 3]);
        assert_eq!(ledger.last_second().admitted_per_second(0, 2), 3_340);
    }

    #[test]
    fn each_user_is_judged_by_a_bucket_and_exports_by_a_window() {
        let mut ledger = Ledger::new(AT_START);
        ledger.answer(answer(0, Subject::User(0), 5, USER_BURST));
        ledger.answer(answer(1, Subject::User(1), 5, USER_BURST + 3));
        ledger.answer(answer(1, Subject::Exports, 2_000, EXPORTS.units));
        ledger.answer(answer(2, Subject::Exports, 2_500, 4));
        ledger.judge(u64::MAX);
        assert_eq!(ledger.units_over(), [0, 3, 4]);
    }

    /// The numbers at the start, with another budget.
    fn budget(rate: u64, units: u64) -> AllNumbers {
        let mut numbers = AT_START;
        numbers[0] = Numbers { rate, units };
        numbers
    }

    #[test]
    fn each_answer_is_judged_by_the_budget_in_force_at_its_time() {
        let mut ledger = Ledger::new(AT_START);
        ledger.answer(answer(0, Subject::Budget, 100, 1_100));
        ledger.answer(answer(0, Subject::Budget, 1_300, 2_000));
        // Only now does a node report that 2000/s are in force since 1 s.
        ledger.allow(instant(1_000), budget(2_000, 2_000));
        ledger.judge(u64::MAX);
        assert_eq!(ledger.units_over()[0], 100, "before the raise the old budget counts");

        let mut late = Ledger::new(AT_START);
        late.answer(answer(0, Subject::Budget, 1_300, 2_000));
        late.judge(u64::MAX);
        assert_eq!(late.units_over()[0], 1_000, "without the raise too much was admitted");
    }

    #[test]
    fn a_raise_reported_after_a_later_lowering_still_counts() {
        let mut ledger = Ledger::new(budget(3_000, 3_000));
        ledger.allow(instant(2_000), budget(500, 500));
        ledger.allow(instant(1_900), budget(500, 4_000));
        ledger.answer(answer(0, Subject::Budget, 1_950, 4_000));
        ledger.judge(u64::MAX);
        assert_eq!(ledger.units_over()[0], 0);
        assert_eq!(ledger.judged_by[0], Numbers { rate: 3_000, units: 4_000 });
        ledger.answer(answer(0, Subject::Budget, 2_500, 2_000));
        ledger.judge(u64::MAX);
        assert_eq!(ledger.judged_by[0], Numbers { rate: 500, units: 4_000 });
    }

    #[test]
    fn users_and_exports_are_judged_by_changed_budgets() {
        let mut ledger = Ledger::new(AT_START);
        let mut numbers = AT_START;
        numbers[1] = Numbers { rate: 10, units: 50 };
        numbers[2].units = 700;
        ledger.allow(instant(100), numbers);
        ledger.answer(answer(0, Subject::User(0), 200, 51));
        ledger.answer(answer(0, Subject::Exports, 200, 702));
        ledger.judge(u64::MAX);
        assert_eq!(ledger.units_over(), [0, 1, 2]);
    }

    #[test]
    fn use_is_shown_as_a_part_of_the_usable_budget() {
        let mut ledger = Ledger::new(AT_START);
        assert_eq!(ledger.uses()[0].part(), None);
        ledger.answer(answer(0, Subject::Budget, 5, 150));
        ledger.close(TENTH, 1_000, false);
        ledger.answer(answer(0, Subject::Budget, 105, 50));
        ledger.close(TENTH, 1_000, false);
        ledger.answer(answer(0, Subject::Budget, 205, 30));
        ledger.close(TENTH, 400, true);
        assert_eq!(ledger.uses()[0].part(), Some(0.8));
        assert_eq!(ledger.uses()[1].part(), Some(0.75));
    }

    #[test]
    fn columns_keep_their_bins_when_the_oldest_are_dropped() {
        let mut ledger = Ledger::new(AT_START);
        let bins = SETTINGS.view.columns_max * BINS_IN_COLUMN + 7;
        for number in 0..bins {
            ledger.answer(answer(0, Subject::Budget, number as u64 * 100, (number / BINS_IN_COLUMN) as u64));
            if number == bins - 3 {
                ledger.mark("cut");
            }
            ledger.close(TENTH, 10, false);
        }
        let columns: Vec<Bin> = ledger.columns().collect();
        let last = (bins / BINS_IN_COLUMN - 1) as u64;
        assert!(columns.len() >= SETTINGS.view.columns_max - 1);
        assert_eq!(columns.last().map(|bin| bin.admitted[0][0]), Some(last * BINS_IN_COLUMN as u64));
        assert_eq!(columns.last().map(|bin| bin.mark), Some("cut"));
    }
}
