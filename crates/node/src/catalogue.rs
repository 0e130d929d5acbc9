//! The limits in force, and how one set of them gives way to the next.
//!
//! A catalogue is a snapshot: checks read one without a lock, a change makes another. Cells outlive
//! both. What ties them to limits is the *slot*, one for each [`LimitId`] ever seen, and the
//! *numbers*: every set of numbers a slot has had, so that a cell written under old ones is carried
//! over, debt and all, when it is next touched.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use acequia_limits::{
    Algorithm, Descriptor, HashKey, Limit, LimitId, Mode, Now, RATE_PARTS,
    algorithm::{Inline, State},
    cell::Tagger,
    limit::NumberSet,
    selector::Condition,
};

use acequia_rights::{
    Region, Split,
    broken::{Broken, broken},
    versions::{Kind, Until},
};

use crate::{
    asker::spent_for_ns,
    index::Index,
    local::{Local, Shares},
    preference::Preference,
};

/// The most limits, counting every one since the start: slots are 16 bits in a cell.
pub(crate) const LIMITS_MAX: usize = u16::MAX as usize - 1;
/// The most sets of numbers that one limit may have had since the start: 15 bits in a cell.
pub(crate) const NUMBERS_MAX: usize = 1 << 15;

/// The limits in force.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// Every limit, in the order of the file; what [`crate::LimitAnswer::limit`] counts in.
    pub limits: Vec<Active>,
    /// Whether there is a candidate among them.
    pub has_candidates: bool,
    /// Counts up with every change.
    pub(crate) version: u64,
    domains: BTreeMap<Box<[u8]>, Domain>,
    /// By slot; slot 0 is none.
    slots: Vec<Slot>,
    /// The slots of the limits that there are now.
    active: BTreeSet<u16>,
}

/// The limits of one domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) index: Index,
    /// All of them, those that are off or not yet in force too.
    pub(crate) limits: Vec<u32>,
}

/// A limit in a catalogue.
#[derive(Clone, Debug)]
pub struct Active {
    /// The limit.
    pub limit: Limit,
    /// In force from this time on (wall clock, nanoseconds): a successor waits for the window of
    /// the limit it replaces to end.
    pub from_ns: Option<u64>,
    /// In force before this time.
    pub until_ns: Option<u64>,
    /// Whether its cells are kept in the journal.
    pub durable: bool,
    /// Of a candidate, the limit that it may replace: its place in [`Catalogue::limits`], where that is enforced now.
    pub live: Option<u32>,
    pub(crate) slot: u16,
    pub(crate) tagger: Tagger,
    pub(crate) numbers: u16,
    /// Those that follow in the order of [`Limit::number_sets`].
    pub(crate) other_numbers: Vec<u16>,
    /// Its own numbers, as this region enforces them.
    pub(crate) local: Local,
}

impl Active {
    /// A number that this limit keeps as long as the node runs, through every reload: from 1.
    pub const fn slot(&self) -> u16 {
        self.slot
    }

    /// Whether it counts now.
    pub fn is_in_force(&self, wall_ns: u64) -> bool {
        self.from_ns.is_none_or(|from| wall_ns >= from) && self.until_ns.is_none_or(|until| wall_ns < until)
    }

    /// Every set of numbers that its cells may have, in the order of [`Limit::number_sets`].
    pub(crate) fn all_numbers(&self) -> impl Iterator<Item = u16> {
        std::iter::once(self.numbers).chain(self.other_numbers.iter().copied())
    }

    /// The numbers of a cell with an override, or none, and of a role where classes have cells of their own.
    #[inline]
    pub(crate) fn numbers_of(&self, number: Option<usize>, role: usize) -> u16 {
        if number.is_none() && role == 0 { self.numbers } else { self.numbers_beside(number, role) }
    }

    #[cold]
    fn numbers_beside(&self, number: Option<usize>, role: usize) -> u16 {
        let each = if self.limit.classes.is_none() { 1 } else { self.limit.sets_each() };
        match number.map_or(0, |number| number + 1) * each + role {
            0 => self.numbers,
            other => self.other_numbers[other - 1],
        }
    }

    fn scheduled(&self) -> Scheduled {
        Scheduled { limit: self.limit.clone(), from_ns: self.from_ns, until_ns: self.until_ns }
    }

    /// Limits of one name are told apart by when they are in force.
    fn is_named_as(&self, limit: &Limit) -> bool {
        self.limit.spec.domain == limit.spec.domain && self.limit.spec.name == limit.spec.name
    }
}

/// A set of numbers that cells of a limit have now.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) numbers: u16,
    pub(crate) global: Algorithm,
    pub(crate) local: Local,
}

/// Everything that cells of one [`LimitId`] have in common.
#[derive(Clone, Debug)]
struct Slot {
    id: LimitId,
    numbers: Vec<Numbers>,
    /// Whether it was served before a restart, unjournalled.
    empty_handed: bool,
    /// Whether its cells are kept in the journal.
    durable: bool,
    preference: Arc<Preference>,
}

impl Slot {
    fn new(id: LimitId, empty_handed: bool) -> Self {
        Self { id, numbers: Vec::new(), empty_handed, durable: false, preference: Arc::default() }
    }
}

/// One set of numbers of a limit.
#[derive(Clone, Debug)]
struct Numbers {
    algorithm: Algorithm,
    /// As this region enforces them: what cells are written under.
    local: Local,
    /// What a cell of a bucket owes of which nothing is known, because a crash forgot it: words under the largest local
    /// numbers, zeros for nothing. It is carried over from one set of numbers to the next, as what a cell owes is.
    forgotten: Inline,
    began: Now,
    /// Whose they are: an override's conditions; none for the limit's own numbers.
    whose: Vec<Condition>,
    /// Which cells, where classes have their own: see [`acequia_limits::classes::Classes::role_name`].
    role: Option<Box<str>>,
    /// When they were replaced by the next generation.
    ended: Option<Now>,
    /// Counts up whenever any of a limit's numbers change: all of them begin anew.
    generation: u32,
    /// An override's end, known beforehand (wall clock, nanoseconds).
    until_ns: Option<u64>,
}

/// A limit and when it is in force: what a node must remember over a restart.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The limit.
    pub limit: Limit,
    /// As [`Active::from_ns`].
    pub from_ns: Option<u64>,
    /// As [`Active::until_ns`].
    pub until_ns: Option<u64>,
}

impl Scheduled {
    fn is_in_force(&self, wall_ns: u64) -> bool {
        self.from_ns.is_none_or(|from| wall_ns >= from) && self.until_ns.is_none_or(|until| wall_ns < until)
    }

    /// When nothing that was spent under the limit can be spent again under another: its window's
    /// end, or when all its cells are idle.
    fn succession_at(&self, now: Now) -> u64 {
        if self.limit.algorithm.has_common_edges() {
            self.limit.algorithm.succession_at(now)
        } else {
            now.wall_ns.saturating_add(self.limit.horizon_ns())
        }
    }
}

/// What became of a limit when the catalogue changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `domain/name`.
    pub limit: String,
    /// What became of it.
    pub kind: ChangeKind,
}

/// The kinds of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was not there before.
    Added,
    /// It is enforced no more; its cells live until their windows end.
    Removed,
    /// It has new numbers, a new mode or new overrides, and keeps its cells.
    Renumbered,
    /// It measures something else, and replaces the limit of its name, which holds on until this
    /// time: its window's end, or when its cells are idle.
    Succeeds {
        /// Wall clock, nanoseconds.
        at_ns: u64,
    },
}

/// Why a catalogue was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueFault {
    /// Two limits of one name.
    #[error("two limits are named {0}: names are unique in a domain, rename one")]
    Twice(String),
    /// Too many limits since the start.
    #[error("more than {LIMITS_MAX} different limits since the start: restart the node")]
    TooManyLimits,
    /// Too many changes of one limit since the start.
    #[error("{0} has had more than {NUMBERS_MAX} sets of numbers since the start: restart the node")]
    TooManyNumbers(String),
}

impl Catalogue {
    pub(crate) fn domain(&self, domain: &[u8]) -> Option<&Domain> {
        self.domains.get(domain)
    }

    /// A number that counts up with every change.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The limits of a domain, by their number in [`Catalogue::limits`].
    pub fn limits_of(&self, domain: &[u8]) -> &[u32] {
        self.domains.get(domain).map_or(&[], |domain| &domain.limits)
    }

    /// The whole limit's algorithm, of all regions together, under a set of numbers.
    pub(crate) fn global(&self, slot: u16, numbers: u16) -> Option<&Algorithm> {
        Some(&self.slots.get(usize::from(slot))?.numbers.get(usize::from(numbers))?.algorithm)
    }

    /// The numbers that cells were written under, as this region enforces them.
    #[inline]
    pub(crate) fn local(&self, slot: u16, numbers: u16) -> Option<&Local> {
        Some(&self.slots.get(usize::from(slot))?.numbers.get(usize::from(numbers))?.local)
    }

    /// Numbers that a cell of which nothing is known may have.
    pub(crate) fn newest_numbers(&self, slot: u16) -> Option<u16> {
        self.least_of_today(slot, 0, None)
    }

    /// The numbers that a cell written under `numbers` has today, as far as can be said without its
    /// descriptor: the same override's where the overrides are the same, and else the least of all.
    pub(crate) fn heir(&self, slot: u16, numbers: u16, salt: u32, now: Now) -> Option<u16> {
        let list = &self.slots.get(usize::from(slot))?.numbers;
        let own = list.get(usize::from(numbers))?;
        if !self.is_over(slot, numbers, now) {
            return Some(numbers);
        }
        let of = |generation: u32| -> Vec<u16> {
            (0..list.len() as u16).filter(|n| list[usize::from(*n)].generation == generation).collect()
        };
        let today = list.iter().find(|n| n.ended.is_none())?.generation;
        let (old, new) = (of(own.generation), of(today));
        let same = |(a, b): (&u16, &u16)| {
            let (a, b) = (&list[usize::from(*a)], &list[usize::from(*b)]);
            a.whose == b.whose && a.until_ns == b.until_ns && a.role == b.role
        };
        let place = old.iter().position(|n| *n == numbers)?;
        let expired = own.until_ns.is_some_and(|until| now.wall_ns >= until);
        if !expired && old.len() == new.len() && old.iter().zip(&new).all(same) {
            return new.get(place).copied();
        }
        self.least_of_today(slot, salt, own.role.as_deref())
    }

    /// Which of a limit's sets of numbers a cell has: 0 for its own, and then one for each override.
    pub(crate) fn which(&self, slot: u16, numbers: u16) -> Option<u16> {
        let list = &self.slots.get(usize::from(slot))?.numbers;
        let generation = list.get(usize::from(numbers))?.generation;
        let before = list[..usize::from(numbers)].iter().filter(|n| n.generation == generation).count();
        u16::try_from(before).ok()
    }

    /// The other way round, of today's numbers. None of an override that is over.
    pub(crate) fn numbers_of(&self, slot: u16, which: u16, now: Now) -> Option<u16> {
        let list = &self.slots.get(usize::from(slot))?.numbers;
        let mut live = (0..list.len() as u16).filter(|n| list[usize::from(*n)].ended.is_none());
        live.nth(usize::from(which)).filter(|n| !self.is_over(slot, *n, now))
    }

    /// Of the numbers of a role, where one is named.
    fn least_of_today(&self, slot: u16, salt: u32, role: Option<&str>) -> Option<u16> {
        let list = &self.slots.get(usize::from(slot))?.numbers;
        let live = (0..list.len() as u16).filter(|n| {
            let n = &list[usize::from(*n)];
            n.ended.is_none() && (role.is_none() || n.role.as_deref() == role)
        });
        live.min_by_key(|n| {
            let part = list[usize::from(*n)].local.part(salt);
            (part.units, part.rate, *n)
        })
    }

    /// Whether a limit's cells are kept in the journal, by its slot.
    pub(crate) fn is_durable(&self, slot: u16) -> bool {
        self.slots.get(usize::from(slot)).is_some_and(|slot| slot.durable)
    }

    /// Who is served first of the limit of a slot.
    pub(crate) fn preference(&self, slot: u16) -> Option<&Preference> {
        Some(&self.slots.get(usize::from(slot))?.preference)
    }

    /// When a set of numbers began.
    pub(crate) fn began(&self, slot: u16, numbers: u16) -> Option<Now> {
        Some(self.slots.get(usize::from(slot))?.numbers.get(usize::from(numbers))?.began)
    }

    /// Whether the limit of a slot is one of those that there are now.
    pub(crate) fn is_active(&self, slot: u16) -> bool {
        self.active.contains(&slot) || broken(Broken::GiveOfRemoved)
    }

    /// The limit of a slot, in force or not.
    pub(crate) fn id(&self, slot: u16) -> Option<LimitId> {
        self.slots.get(usize::from(slot)).map(|slot| slot.id)
    }

    /// Whether a slot may have been charged before a restart that forgot it.
    pub(crate) fn is_empty_handed(&self, slot: u16) -> bool {
        self.slots.get(usize::from(slot)).is_some_and(|slot| slot.empty_handed)
    }

    /// The numbers with the fastest rate that a limit has had since this process started: any of them, where it has no rate.
    pub(crate) fn fastest(&self, slot: u16) -> Option<&Algorithm> {
        fastest(self.slots.get(usize::from(slot))?.numbers.iter())
    }

    /// What a cell of a bucket may owe of which nothing is known, and the numbers that say what that means.
    pub(crate) fn forgotten(&self, slot: u16, numbers: u16) -> Option<(&Algorithm, Inline)> {
        let numbers = self.slots.get(usize::from(slot))?.numbers.get(usize::from(numbers))?;
        Some((numbers.local.most(), numbers.forgotten))
    }

    /// Of a limit's live numbers, those under which the most is owed that a crash forgot, if any is.
    pub(crate) fn most_forgotten(&self, slot: u16, now: Now) -> Option<(&Algorithm, Inline)> {
        let list = &self.slots.get(usize::from(slot))?.numbers;
        let live = list.iter().filter(|numbers| numbers.ended.is_none());
        let all = live.map(|numbers| (numbers.local.most(), numbers.forgotten));
        all.max_by_key(|(most, words)| most.owed(words, now))
            .filter(|(most, words)| most.owed(words, now) > 0)
    }

    /// All that a crash forgot of buckets and that is not over, by limit, those that were removed too.
    pub(crate) fn all_forgotten(&self, now: Now) -> impl Iterator<Item = (LimitId, &Algorithm, Inline)> {
        let of = move |slot: usize| {
            let (most, words) = self.most_forgotten(slot as u16, now)?;
            Some((self.slots[slot].id, most, words))
        };
        (0..self.slots.len()).filter_map(of)
    }

    /// The fewest units that any cell of a limit may have, whatever numbers it has: what a crash presumes to be spent.
    pub(crate) fn least_units(&self, slot: u16, salt: u32) -> u64 {
        let numbers = self.least_of_today(slot, salt, None).and_then(|numbers| self.local(slot, numbers));
        numbers.map_or(0, |local| local.part(salt).units)
    }

    /// Whether numbers were replaced, or are those of an override that has ended: cells under them
    /// are another set's now.
    pub(crate) fn is_over(&self, slot: u16, numbers: u16, now: Now) -> bool {
        let list = self.slots.get(usize::from(slot)).map(|slot| &slot.numbers);
        list.and_then(|list| list.get(usize::from(numbers)))
            .is_some_and(|n| n.ended.is_some() || n.until_ns.is_some_and(|until| now.wall_ns >= until))
    }

    /// Carries a state over from the numbers it was written under to those that its descriptor has
    /// now, through all that it had in between. Where it cannot be known when numbers changed, the
    /// larger debt counts.
    pub(crate) fn carry(
        &self,
        slot: u16,
        from: u16,
        to: u16,
        words: &[u64],
        now: Now,
        (descriptor, salt): (&Descriptor<'_>, u32),
    ) -> State {
        let list = &self.slots[usize::from(slot)].numbers;
        let (mut at, mut words, mut since) = (from, words.to_vec(), Now::at(0));
        loop {
            let old = &list[usize::from(at)];
            let until = old.until_ns.filter(|until| now.wall_ns >= *until).map(|until| {
                let ago = now.wall_ns - until;
                Now { steady_ns: now.steady_ns.saturating_sub(ago), wall_ns: until }
            });
            let (then, generation) = match (old.ended, until) {
                (Some(ended), Some(until)) if until.wall_ns < ended.wall_ns => (until, old.generation),
                (Some(ended), _) => (ended, old.generation + 1),
                (None, Some(until)) => (until, old.generation),
                (None, None) => (now, old.generation),
            };
            let whose = |n: &&u16| {
                let n = &list[usize::from(**n)];
                n.until_ns.is_none_or(|until| then.wall_ns < until)
                    && n.whose.iter().all(|c| c.holds(descriptor))
            };
            // A limit's own numbers come first in a generation, and count last.
            let is_of = |n: &u16| {
                let n = &list[usize::from(*n)];
                n.generation == generation && n.role == old.role
            };
            let all: Vec<u16> = (0..list.len() as u16).filter(is_of).collect();
            let next = match (old.ended, until) {
                (None, None) => to,
                _ => all.iter().skip(1).find(whose).or(all.first()).copied().unwrap_or(to),
            };
            let (algorithm, written) = (list[usize::from(next)].local.at(salt), old.local.at(salt));
            let then = then.max(since).min(now);
            let mut state = algorithm.convert(written, &words, then);
            if old.ended.is_none() && until.is_none() {
                // The clock went back, or the cell has two names: nobody knows when this was.
                let began = list[usize::from(next)].began.min(now);
                let early = algorithm.convert(written, &words, began);
                if algorithm.covers(early.words(), state.words(), now) {
                    state = early;
                }
            }
            if next == to {
                return state;
            }
            words = state.words().to_vec();
            since = then;
            at = next;
        }
    }

    /// Whether a cell says no more than an absent one, under the numbers it was written under and
    /// under any of those that have come after.
    pub(crate) fn is_idle(&self, slot: u16, numbers: u16, salt: u32, words: &[u64], now: Now) -> bool {
        self.is_idle_as(slot, numbers, |local| local.at(salt), words, now)
    }

    /// As [`Catalogue::is_idle`], of a cell that new cells share.
    pub(crate) fn is_idle_shared(&self, slot: u16, numbers: u16, words: &[u64], now: Now) -> bool {
        self.is_idle_as(slot, numbers, Local::least, words, now)
    }

    fn is_idle_as(
        &self,
        slot: u16,
        numbers: u16,
        of: impl Fn(&Local) -> &Algorithm,
        words: &[u64],
        now: Now,
    ) -> bool {
        let Some(list) = self.slots.get(usize::from(slot)).map(|slot| &slot.numbers) else { return false };
        let Some(own) = list.get(usize::from(numbers)) else { return false };
        let written = of(&own.local);
        let idle = written.is_idle(words, now);
        if !idle || !self.is_over(slot, numbers, now) {
            return idle;
        }
        let until = own.until_ns.filter(|until| now.wall_ns >= *until).map(|until| {
            let ago = now.wall_ns - until;
            Now { steady_ns: now.steady_ns.saturating_sub(ago), wall_ns: until }
        });
        let over = match (own.ended, until) {
            (Some(ended), Some(until)) => ended.min(until),
            (Some(then), None) | (None, Some(then)) => then,
            (None, None) => now,
        };
        written.is_idle(words, over)
            || list.iter().filter(|n| n.generation >= own.generation).all(|n| {
                let later = of(&n.local);
                let state = later.convert(written, words, over);
                later.is_idle(state.words(), now)
            })
    }
}

/// How a region shares its limits: the splits of which the least counts, and until when.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) region: Region,
    pub(crate) terms: Vec<Term>,
    pub(crate) drift_ppm: u32,
    pub(crate) margin_ns: u64,
    /// Windows that ended by this time were left under an earlier margin: wall clock, nanoseconds.
    pub(crate) left_ns: u64,
    /// The least rate of any region in any of the terms: what was spent under an earlier share drains no slower.
    pub(crate) least_rate: u32,
}

/// One distribution of shares, and how long it counts.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    /// None: this region has nothing in it.
    pub(crate) split: Option<Arc<Split>>,
    pub(crate) until: Until,
}

impl Terms {
    /// Nothing is owned.
    pub(crate) const fn none(region: Region) -> Self {
        Self { region, terms: Vec::new(), drift_ppm: 0, margin_ns: 0, left_ns: 0, least_rate: RATE_PARTS }
    }

    /// Whether a distribution still counts for a limit.
    fn counts(&self, term: &Term, limit: &Limit, drains_ns: u64, now: Now) -> bool {
        let algorithm = &limit.algorithm;
        let (Until::Superseded { windows_wall_ns, .. }, Algorithm::FixedWindow(window)) =
            (term.until, algorithm)
        else {
            return term.until.applies(self.kind_of(limit, drains_ns, now), self.drift_ppm);
        };
        // Until the first window that starts then or later is open. Cells with edges of their own may be in one
        // that began before, for one window.
        let edge = if algorithm.has_common_edges() {
            window.end_after(windows_wall_ns.saturating_sub(1), 0)
        } else {
            windows_wall_ns.saturating_add(algorithm.horizon_ns())
        };
        now.wall_ns < edge.saturating_add(window.margin_ns.max(self.margin_ns))
    }

    /// What shares of a limit without fixed windows are wanted for. `drains_ns`: how long what was spent under earlier
    /// numbers may count.
    fn kind_of(&self, limit: &Limit, drains_ns: u64, now: Now) -> Kind {
        let horizon_ns = limit.horizon_ns().max(limit.algorithm.lingers_ns()).max(drains_ns);
        if limit.algorithm.has_rate() {
            let slowest =
                u128::from(horizon_ns) * u128::from(RATE_PARTS) / u128::from(self.least_rate.max(1));
            let horizon_ns = u64::try_from(slowest).unwrap_or(u64::MAX);
            Kind::Bucket { steady_ns: now.steady_ns, horizon_ns }
        } else {
            Kind::Sliding { steady_ns: now.steady_ns, horizon_ns: spent_for_ns(horizon_ns) }
        }
    }
}

/// Makes catalogues, and remembers what must outlive them.
#[derive(Debug)]
pub(crate) struct Registry {
    key: HashKey,
    durable: bool,
    /// How this region shares limits with others; nothing where it is alone.
    sharing: Option<Terms>,
    slots: Vec<Slot>,
    by_id: BTreeMap<LimitId, u16>,
    active: Vec<Active>,
    /// Limits that were in force so lately that their cells may not be idle yet.
    retired: Vec<Scheduled>,
    /// When a crash forgot what was not journalled: as [`crate::Config::empty_handed`].
    empty_handed: Option<Now>,
    unwritten: Unwritten,
}

/// Slots whose numbers changed so that the journal must hear of it.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    /// Their cells are kept there from now on; or they are buckets whose cells were kept there before, and drain more slowly
    /// from now on than the disk knows, and perhaps not for long; or they are gone, and of what comes back, perhaps with
    /// other numbers, no process could presume anything.
    pub(crate) kept: Vec<u16>,
    /// Buckets that are not kept there: the cells that owe more than they may by now, since a crash presumes no more.
    pub(crate) overdrawn: Vec<u16>,
    /// Limits whose rate is lower from now on: what came back by it before is not known later.
    pub(crate) slowed: Vec<LimitId>,
    /// Buckets of which a crash forgot cells: how much those owe, or the next crash would presume what these numbers say.
    pub(crate) forgotten: Vec<u16>,
}

impl Registry {
    /// `durable`: there is a journal to keep long-lived cells in.
    pub(crate) fn new(
        key: &HashKey,
        durable: bool,
        sharing: Option<Terms>,
        empty_handed: Option<Now>,
    ) -> Self {
        let none = Slot::new(LimitId(0), false);
        Self {
            key: *key,
            durable,
            sharing,
            slots: vec![none],
            by_id: BTreeMap::new(),
            active: Vec::new(),
            retired: Vec::new(),
            empty_handed: empty_handed.filter(|_| !broken(Broken::CrashForgetsSpent)),
            unwritten: Unwritten::default(),
        }
    }

    /// Takes over what was in force before a restart.
    pub(crate) fn resume(&mut self, schedule: Vec<Scheduled>, now: Now) -> Result<(), CatalogueFault> {
        for scheduled in &schedule {
            let slot = self.slot(&scheduled.limit)?;
            self.slots[usize::from(slot)].empty_handed = !self.is_durable(&scheduled.limit);
        }
        let over = |s: &Scheduled| s.until_ns.is_some_and(|until| until <= now.wall_ns);
        let (retired, schedule) = schedule.into_iter().partition(over);
        self.retired = retired;
        self.active = schedule.into_iter().map(|s| self.activate(s, now)).collect::<Result<_, _>>()?;
        self.unwritten = Unwritten::default();
        Ok(())
    }

    /// Puts other limits in force, and says what that changes.
    pub(crate) fn apply(&mut self, limits: Vec<Limit>, now: Now) -> Result<Vec<Change>, CatalogueFault> {
        self.refuse(&limits)?;
        let mut changes = Vec::new();
        let mut schedule: Vec<Scheduled> = Vec::new();
        for limit in &limits {
            let named = self.active.iter().filter(|a| a.is_named_as(limit));
            let named: Vec<Scheduled> = named.map(Active::scheduled).collect();
            let in_force = |s: &&Scheduled| s.is_in_force(now.wall_ns);
            let same = named.iter().filter(in_force).find(|s| s.limit.id == limit.id);
            let pending = named.iter().find(|s| s.from_ns.is_some_and(|from| now.wall_ns < from));
            // Limits of this name and another shape: they hold on until nothing spent under them can
            // be spent again.
            let mut others: Vec<Scheduled> = named
                .iter()
                .filter(in_force)
                .filter(|s| s.limit.id != limit.id)
                .map(|s| Scheduled {
                    until_ns: Some(s.until_ns.unwrap_or(s.succession_at(now))),
                    ..s.clone()
                })
                .collect();
            if named.is_empty() {
                others.extend(self.unfinished(limit, now));
            }
            // One with edges ends where its successor begins; beside any other, it begins at once.
            let edges = others.iter().filter(|s| s.limit.algorithm.has_common_edges());
            let edge_ns = edges.filter_map(|s| s.until_ns).max();
            let from_ns = same.map_or(edge_ns, |same| same.from_ns);
            let kind = match (same, pending, others.iter().filter_map(|s| s.until_ns).max()) {
                (Some(same), pending, _) => {
                    let changed = same.limit != *limit || same.until_ns.is_some() || pending.is_some();
                    changed.then_some(ChangeKind::Renumbered)
                }
                (None, Some(pending), _) if pending.limit == *limit => None,
                (None, _, Some(at_ns)) => Some(ChangeKind::Succeeds { at_ns }),
                (None, Some(_), None) => Some(ChangeKind::Renumbered),
                (None, None, None) => Some(ChangeKind::Added),
            };
            schedule.extend(others);
            schedule.push(Scheduled { limit: limit.clone(), from_ns, until_ns: None });
            changes.extend(kind.map(|kind| Change { limit: limit.path(), kind }));
        }
        let mut removed: BTreeSet<String> = self.active.iter().map(|a| a.limit.path()).collect();
        for limit in &limits {
            removed.remove(&limit.path());
        }
        changes.extend(removed.into_iter().map(|limit| Change { limit, kind: ChangeKind::Removed }));
        self.retire(&schedule, now);
        for gone in self.active.iter().filter(|old| !schedule.iter().any(|new| new.limit.id == old.limit.id))
        {
            if self.durable && gone.limit.algorithm.has_rate() {
                self.unwritten.removed(gone.slot, gone.durable);
            }
        }
        self.active = schedule.into_iter().map(|s| self.activate(s, now)).collect::<Result<_, _>>()?;
        Ok(changes)
    }

    /// Shares differently from now on. The limits in force begin new numbers where that matters to
    /// them; says whether it did to any.
    pub(crate) fn share(&mut self, terms: Terms, now: Now) -> Result<bool, CatalogueFault> {
        self.sharing = Some(terms);
        let before: Vec<u16> = self.active.iter().map(|active| active.numbers).collect();
        let schedule: Vec<Scheduled> = self.active.iter().map(Active::scheduled).collect();
        self.active = schedule.into_iter().map(|s| self.activate(s, now)).collect::<Result<_, _>>()?;
        Ok(self.active.iter().map(|active| active.numbers).ne(before))
    }

    /// How long what was spent under any numbers that this process knows of may count: the most units that there
    /// were, at the slowest rate.
    pub(crate) fn drains_ns(&self, limit: &Limit) -> u64 {
        let Some(slot) = self.by_id.get(&limit.id) else { return 0 };
        let all = self.slots[usize::from(*slot)].numbers.iter().map(|numbers| &numbers.algorithm);
        let own = std::iter::once(&limit.algorithm);
        let all: Vec<&Algorithm> = all.chain(own).filter(|algorithm| algorithm.budget() > 0).collect();
        if broken(Broken::DrainAsOfNow) || !limit.algorithm.has_rate() {
            return 0;
        }
        let most = all.iter().map(|algorithm| algorithm.budget()).max().unwrap_or(0);
        let slowest = |algorithm: &&Algorithm| {
            let whole = u128::from(algorithm.horizon_ns()) * u128::from(most);
            u64::try_from(whole.div_ceil(u128::from(algorithm.budget()))).unwrap_or(u64::MAX)
        };
        all.iter().map(slowest).max().unwrap_or(0)
    }

    /// How this region shares one limit now.
    fn shares_of(&self, limit: &Limit, now: Now) -> Option<Arc<Shares>> {
        let sharing = self.sharing.as_ref()?;
        let drains_ns = self.drains_ns(limit);
        let terms = sharing.terms.iter().filter(|term| sharing.counts(term, limit, drains_ns, now));
        // One in which this region has nothing leaves it nothing.
        let splits: Option<Vec<Arc<Split>>> = terms.map(|term| term.split.clone()).collect();
        Some(Arc::new(Shares {
            region: sharing.region,
            terms: splits.unwrap_or_default(),
            drift_ppm: sharing.drift_ppm,
            margin_ns: sharing.margin_ns,
            left_ns: sharing.left_ns,
        }))
    }

    /// A snapshot of what is in force.
    pub(crate) fn catalogue(&self, version: u64) -> Catalogue {
        let mut by_domain: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (number, active) in (0..).zip(&self.active) {
            by_domain.entry(&active.limit.spec.domain).or_default().push(number);
        }
        let domains = by_domain.into_iter().map(|(domain, limits)| {
            let on = limits
                .iter()
                .map(|number| (*number, &self.active[*number as usize].limit))
                .filter(|(_, limit)| limit.spec.mode != Mode::Off);
            (domain.as_bytes().into(), Domain { index: Index::new(on), limits: limits.clone() })
        });
        let mut limits = self.active.clone();
        for candidate in &mut limits {
            let spec = &candidate.limit.spec;
            let is_live = |other: &&Active| {
                let live = &other.limit.spec;
                // One that ends soon has a successor, which goes on after it.
                spec.candidate_for.as_ref() == Some(&live.name)
                    && live.domain == spec.domain
                    && live.mode == Mode::Enforce
                    && other.until_ns.is_none()
            };
            if spec.mode == Mode::Shadow && spec.candidate_for.is_some() {
                candidate.live =
                    self.active.iter().position(|other| is_live(&other)).map(|place| place as u32);
            }
        }
        Catalogue {
            version,
            domains: domains.collect(),
            has_candidates: limits.iter().any(|active| active.live.is_some()),
            limits,
            active: self.active.iter().map(|active| active.slot).collect(),
            slots: self.slots.clone(),
        }
    }

    /// The slot of a limit that was ever in force here.
    pub(crate) fn slot_of(&self, id: LimitId) -> Option<u16> {
        self.by_id.get(&id).copied()
    }

    /// Shares differently from the next change of limits on.
    pub(crate) fn set_terms(&mut self, terms: Terms) {
        self.sharing = Some(terms);
    }

    /// Whether cells can be tagged with this key from now on: no cell was ever tagged with another.
    pub(crate) fn takes_key(&self, key: &HashKey) -> bool {
        self.key.0 == key.0 || self.by_id.is_empty()
    }

    /// Tags cells with this key, if [`Registry::takes_key`].
    pub(crate) fn set_key(&mut self, key: &HashKey) {
        if self.takes_key(key) {
            self.key = *key;
        }
    }

    /// The sets of numbers that a limit's cells have now, its own first.
    pub(crate) fn numbers_of(&self, active: &Active) -> Vec<Live> {
        let list = &self.slots[usize::from(active.slot)].numbers;
        let live = active.all_numbers();
        live.map(|numbers| {
            let n = &list[usize::from(numbers)];
            Live { numbers, global: n.algorithm.clone(), local: n.local.clone() }
        })
        .collect()
    }

    /// How far wall clocks may be off, where limits are shared.
    pub(crate) fn clock_error_ns(&self) -> Option<u64> {
        self.sharing.as_ref().map(|terms| terms.margin_ns)
    }

    /// What a node must remember over a restart.
    pub(crate) fn schedule(&self) -> Vec<Scheduled> {
        self.active.iter().map(Active::scheduled).chain(self.retired.iter().cloned()).collect()
    }

    /// The slots of which the journal must hear now, each given once.
    pub(crate) fn take_unwritten(&mut self) -> Unwritten {
        std::mem::take(&mut self.unwritten)
    }

    /// A cell of the limit of which nothing is known owes as much as `words` did under `written`, at least: what an
    /// earlier process wrote of what a crash before it forgot.
    pub(crate) fn learn_forgotten(&mut self, slot: u16, written: &Algorithm, words: &[u64], now: Now) {
        let live = self.slots[usize::from(slot)].numbers.iter_mut().filter(|n| n.ended.is_none());
        for numbers in live {
            let most = numbers.local.most();
            let known = most.convert_sometime(written, words, now);
            numbers.forgotten = larger(most, [State::Inline(numbers.forgotten), known], now);
        }
    }

    /// As [`Catalogue::forgotten`].
    pub(crate) fn forgotten(&self, slot: u16, numbers: u16) -> (&Algorithm, Inline) {
        let numbers = &self.slots[usize::from(slot)].numbers[usize::from(numbers)];
        (numbers.local.most(), numbers.forgotten)
    }

    /// A limit of this name and another shape that was removed lately, back in force until nothing
    /// spent under it can be spent again: removing it first gains nothing.
    fn unfinished(&self, limit: &Limit, now: Now) -> Option<Scheduled> {
        let named = |old: &&Scheduled| old.limit.path() == limit.path() && old.limit.id != limit.id;
        let old = self.retired.iter().find(named)?;
        let removed_ns = old.until_ns?;
        let ago_ns = now.wall_ns.saturating_sub(removed_ns);
        let removed = Now { steady_ns: now.steady_ns.saturating_sub(ago_ns), wall_ns: removed_ns };
        let at_ns = old.succession_at(removed);
        let back = Scheduled { limit: old.limit.clone(), from_ns: None, until_ns: Some(at_ns) };
        (at_ns > now.wall_ns).then_some(back)
    }

    /// Remembers the limits that are in force no more, until their cells are surely idle.
    fn retire(&mut self, schedule: &[Scheduled], now: Now) {
        let gone = self.active.iter().map(|active| Scheduled {
            limit: active.limit.clone(),
            from_ns: active.from_ns,
            until_ns: Some(active.until_ns.map_or(now.wall_ns, |until| until.min(now.wall_ns))),
        });
        let all: Vec<Scheduled> = self.retired.drain(..).chain(gone).collect();
        self.retired = all
            .into_iter()
            .filter(|old| !schedule.iter().any(|new| new.limit.id == old.limit.id))
            .filter(|old| {
                let idle_ns = old.until_ns.unwrap_or(0).saturating_add(old.limit.horizon_ns());
                now.wall_ns < idle_ns
            })
            .collect();
    }

    /// The limits in the catalogue, and whether each is kept in the journal.
    pub(crate) fn active(&self) -> &[Active] {
        &self.active
    }

    /// Whether the limit has been in force since the start, so that its cells are in memory.
    pub(crate) fn knows(&self, id: LimitId) -> bool {
        let slot = self.by_id.get(&id);
        slot.is_some_and(|slot| !self.slots[usize::from(*slot)].numbers.is_empty())
    }

    /// Everything that could go wrong, before anything is changed.
    pub(crate) fn refuse(&self, limits: &[Limit]) -> Result<(), CatalogueFault> {
        let mut names = BTreeSet::new();
        let mut fresh = 0;
        for limit in limits {
            if !names.insert(limit.path()) {
                return Err(CatalogueFault::Twice(limit.path()));
            }
            match self.by_id.get(&limit.id) {
                None => fresh += 1,
                Some(slot) => {
                    let had = self.slots[usize::from(*slot)].numbers.len();
                    if had + (1 + limit.overrides.len()) * limit.sets_each() > NUMBERS_MAX {
                        return Err(CatalogueFault::TooManyNumbers(limit.path()));
                    }
                }
            }
        }
        if self.slots.len() + fresh > LIMITS_MAX {
            return Err(CatalogueFault::TooManyLimits);
        }
        Ok(())
    }

    fn is_durable(&self, limit: &Limit) -> bool {
        self.durable && limit.is_durable()
    }

    fn slot(&mut self, limit: &Limit) -> Result<u16, CatalogueFault> {
        if let Some(slot) = self.by_id.get(&limit.id) {
            return Ok(*slot);
        }
        if self.slots.len() > LIMITS_MAX {
            return Err(CatalogueFault::TooManyLimits);
        }
        let slot = self.slots.len() as u16;
        // Among regions a limit may come and go with versions that a crash forgot, and a bucket may have been one that is
        // not journalled.
        let journalled = self.is_durable(limit) && !limit.algorithm.has_rate();
        let empty_handed = self.sharing.is_some() && !journalled;
        self.slots.push(Slot::new(limit.id, empty_handed));
        self.by_id.insert(limit.id, slot);
        Ok(slot)
    }

    fn activate(&mut self, scheduled: Scheduled, now: Now) -> Result<Active, CatalogueFault> {
        let Scheduled { limit, from_ns, until_ns } = scheduled;
        let slot = self.slot(&limit)?;
        let durable = self.is_durable(&limit);
        let preference = Preference::new(&limit.sharing);
        if *self.slots[usize::from(slot)].preference != preference {
            self.slots[usize::from(slot)].preference = Arc::new(preference);
        }
        let shares = self.shares_of(&limit, now);
        let same_shares = |local: &Local| local.is_of(shares.as_ref());
        let Slot { numbers: list, empty_handed, durable: kept, .. } = &mut self.slots[usize::from(slot)];
        let spent = self.empty_handed.filter(|_| *empty_handed || (self.sharing.is_some() && !durable));
        let wanted = limit.number_sets();
        let role_of = |set: &NumberSet<'_>| -> Option<Box<str>> {
            Some(limit.classes.as_ref()?.role_name(set.role?).into())
        };
        let live: Vec<u16> =
            (0..list.len() as u16).filter(|n| list[usize::from(*n)].ended.is_none()).collect();
        let same = |(number, wanted): (&u16, &NumberSet<'_>)| {
            let n = &list[usize::from(*number)];
            n.algorithm == *wanted.algorithm
                && n.until_ns == wanted.until_ns
                && n.whose == wanted.whose
                && n.role == role_of(wanted)
                && same_shares(&n.local)
        };
        let used = if live.len() == wanted.len() && live.iter().zip(&wanted).all(same) {
            live
        } else {
            // All of them begin anew, so that it is known of every cell when it changed numbers.
            let generation = list.iter().map(|n| n.generation).max().map_or(1, |last| last + 1);
            let used: Vec<u16> = (list.len()..list.len() + wanted.len()).map(|n| n as u16).collect();
            for set in wanted {
                let role = role_of(&set);
                let NumberSet { algorithm, whose, until_ns, .. } = set;
                let (algorithm, whose) = (algorithm.into_owned(), whose.to_vec());
                let local = localise(&algorithm, shares.as_ref());
                let before = live.iter().map(|n| &list[usize::from(*n)]);
                let forgotten = forgotten_by(&local, before, spent, now);
                let ended = None;
                list.push(Numbers {
                    algorithm,
                    local,
                    forgotten,
                    began: now,
                    whose,
                    role,
                    ended,
                    until_ns,
                    generation,
                });
            }
            let of = |numbers: &[u16]| {
                let of = numbers.iter().map(|n| &list[usize::from(*n)]);
                fastest(of)
            };
            // What an earlier process or an earlier limit of this name went by is not known.
            let is_slowed = of(&used).is_some_and(|new| of(&live).is_none_or(|old| new.is_slower(old)));
            if is_slowed && limit.algorithm.has_rate() && !broken(Broken::RefundAfterSlowing) {
                self.unwritten.slowed.push(limit.id);
            }
            if self.durable && limit.algorithm.has_rate() {
                self.unwritten.renumbered(slot, durable, list, (&live, &used));
            }
            for number in live {
                list[usize::from(number)].ended = Some(now);
            }
            used
        };
        let local = list[usize::from(used[0])].local.clone();
        if durable && !*kept && !self.unwritten.kept.contains(&slot) {
            self.unwritten.kept.push(slot);
        }
        *kept = durable;
        let tagger = Tagger::new(&self.key, limit.id);
        Ok(Active {
            limit,
            from_ns,
            until_ns,
            durable,
            live: None,
            slot,
            tagger,
            numbers: used[0],
            other_numbers: used[1..].to_vec(),
            local,
        })
    }
}

impl Unwritten {
    /// A bucket is there no more. Those that are `durable` the journal has.
    fn removed(&mut self, slot: u16, durable: bool) {
        if !durable && !broken(Broken::OverdrawnUnwritten) {
            self.kept.push(slot);
        }
        self.forgotten.push(slot);
    }

    /// A bucket has new numbers, `used`, instead of `live`.
    fn renumbered(&mut self, slot: u16, durable: bool, list: &[Numbers], (live, used): (&[u16], &[u16])) {
        let most = |number: &u16| list[usize::from(*number)].local.most();
        let pairs = || used.iter().zip(live);
        let is_slowed = used.len() != live.len() || pairs().any(|(new, old)| most(new).is_slower(most(old)));
        if !live.is_empty() && !durable {
            self.overdrawn.push(slot);
        } else if !live.is_empty() && is_slowed && !broken(Broken::SlowedUnwritten) {
            self.kept.push(slot);
        }
        if used.iter().any(|number| list[usize::from(*number)].forgotten != [0, 0]) {
            self.forgotten.push(slot);
        }
    }
}

/// Of some numbers, those with the fastest rate.
fn fastest<'n>(all: impl Iterator<Item = &'n Numbers>) -> Option<&'n Algorithm> {
    all.map(|numbers| &numbers.algorithm).reduce(|a, b| if a.is_slower(b) { b } else { a })
}

/// What a cell of which nothing is known owes when new numbers begin: as much as under those before, and as much as if
/// it had all been spent at the crash that forgot it, `spent`.
///
/// A cell that is known is carried over from numbers to numbers, so that its debt drains by those that there were in
/// between. This is such a cell, wholly spent; hence it owes at least what any cell does that the crash forgot, as long
/// as no more was owed at the crash than the numbers allowed then. What owed more is on the disk (`Unwritten`).
fn forgotten_by<'n>(
    local: &Local,
    before: impl Iterator<Item = &'n Numbers>,
    spent: Option<Now>,
    now: Now,
) -> Inline {
    let most = local.most();
    if !most.has_rate() {
        return [0, 0];
    }
    let carried = before.map(|numbers| most.convert(numbers.local.most(), &numbers.forgotten, now));
    larger(most, carried.chain(spent.map(|then| most.spent_at(then, 0))), now)
}

/// The largest of some states of a bucket; zeros where none owes anything.
fn larger(meter: &Algorithm, states: impl IntoIterator<Item = State>, now: Now) -> Inline {
    let mut largest = [0, 0];
    for state in states {
        if let State::Inline(words) = state
            && !meter.is_idle(&words, now)
            && meter.covers(&words, &largest, now)
        {
            largest = words;
        }
    }
    largest
}

fn localise(algorithm: &Algorithm, shares: Option<&Arc<Shares>>) -> Local {
    match shares {
        None => Local::whole(algorithm),
        Some(shares) => Local::shared(algorithm, shares),
    }
}
