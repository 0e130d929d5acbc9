//! The limits in force, and how one set of them gives way to the next.
//!
//! A catalogue is a snapshot: checks read one without a lock, a change makes another. Cells outlive
//! both. What ties them to limits is the *slot*, one for each [`LimitId`] ever seen, and the
//! *numbers*: every set of numbers a slot has had, so that a cell written under old ones is carried
//! over, debt and all, when it is next touched.

mod allocations;
mod registry;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use acequia_limits::{
    Algorithm, Descriptor, Limit, LimitId, Now,
    algorithm::{Inline, State},
    cell::Tagger,
    selector::Condition,
};
use acequia_rights::mutation::{Mutation, mutated};

pub(crate) use self::{
    allocations::{Allocations, OwnAllocation},
    registry::{Live, Registry, Unwritten},
};
pub use crate::table::NUMBERS_MAX;
use crate::{
    index::Index,
    local::Local,
    preference::Preference,
    table::{Cell, SLOT_MAX},
};

/// The most limits, counting every one since the start: a cell has 17 bits for the slot of its own.
pub const LIMITS_MAX: usize = SLOT_MAX as usize;

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
    /// The limits that there are now, by their slots: their places in `limits`.
    active: BTreeMap<u32, u32>,
    /// The limits that there are now, by their ids: their places in `limits`.
    by_id: BTreeMap<LimitId, u32>,
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
    /// In force before this time (wall clock, nanoseconds): another shape of the limit has replaced it, and counts beside it until what was
    /// spent here is over.
    pub until_ns: Option<u64>,
    /// Whether its cells are kept in the journal.
    pub durable: bool,
    /// Of a candidate, the limit that it may replace: its place in [`Catalogue::limits`], where that is enforced now.
    pub live: Option<u32>,
    pub(crate) slot: u32,
    pub(crate) tagger: Tagger,
    pub(crate) numbers: u16,
    /// Those that follow in the order of [`Limit::number_sets`].
    pub(crate) other_numbers: Vec<u16>,
    /// Those of them that end by themselves.
    pub(crate) expiring: Vec<u16>,
    /// Its own numbers, as this region enforces them.
    pub(crate) local: Local,
    /// Whether nobody decides while the store of the region's nodes is lost. Never where they share none.
    pub(crate) closes: bool,
    /// Units that passed while the store was lost, though this node did not have them.
    pub(crate) opened: Arc<AtomicU64>,
}

impl Active {
    /// A number that this limit keeps as long as the node runs, through every reload: from 1.
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// Units that passed since the start while the store of the region's nodes was lost, though this node did not have them: the limit
    /// is [`OnStoreLoss::Open`](acequia_limits::limit::OnStoreLoss).
    pub fn open_units(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Whether it counts now.
    pub fn is_in_force(&self, wall_ns: u64) -> bool {
        self.until_ns.is_none_or(|until| wall_ns < until)
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
        Scheduled { limit: self.limit.clone(), until_ns: self.until_ns }
    }
}

/// Everything that cells of one [`LimitId`] have in common.
#[derive(Clone, Debug)]
struct Slot {
    id: LimitId,
    numbers: Vec<Variant>,
    /// Whether it was served before a restart, unjournalled.
    empty_handed: bool,
    /// Whether its cells are kept in the journal.
    durable: bool,
    preference: Arc<Preference>,
    /// As [`Active::opened`].
    opened: Arc<AtomicU64>,
}

impl Slot {
    fn new(id: LimitId, empty_handed: bool) -> Self {
        Self {
            id,
            numbers: Vec::new(),
            empty_handed,
            durable: false,
            preference: Arc::default(),
            opened: Arc::default(),
        }
    }
}

/// One set of numbers of a limit.
#[derive(Clone, Debug)]
struct Variant {
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

impl Variant {
    /// When an override ended by itself, if it has.
    fn expired(&self, now: Now) -> Option<Now> {
        let until_ns = self.until_ns.filter(|until_ns| now.wall_ns >= *until_ns)?;
        let ago_ns = now.wall_ns - until_ns;
        Some(Now { steady_ns: now.steady_ns.saturating_sub(ago_ns), wall_ns: until_ns })
    }
}

/// A limit and when it is in force: what a node must remember over a restart.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The limit.
    pub limit: Limit,
    /// As [`Active::until_ns`].
    pub until_ns: Option<u64>,
}

impl Scheduled {
    fn is_in_force(&self, wall_ns: u64) -> bool {
        self.until_ns.is_none_or(|until| wall_ns < until)
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
    /// It matches, counts by or measures something else. The limit of its name holds on beside it until this time: its window's end, or when
    /// its cells are idle.
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
    #[error(
        "more than {LIMITS_MAX} different limits since the start, with those that the journal still has: change fewer of \
         them at a time, and restart the node in between"
    )]
    TooManyLimits,
    /// Too many overrides and classes of one limit.
    #[error(
        "{0} has more than {NUMBERS_MAX} sets of numbers, one for each class of each override: leave some out, or split \
         the limit"
    )]
    TooManySets(String),
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

    /// As [`Active::open_units`], of all limits there were since the start.
    pub(crate) fn open_units(&self) -> u64 {
        self.slots.iter().map(|slot| slot.opened.load(Ordering::Relaxed)).sum()
    }

    /// The limits of a domain, by their number in [`Catalogue::limits`].
    pub fn limits_of(&self, domain: &[u8]) -> &[u32] {
        self.domains.get(domain).map_or(&[], |domain| &domain.limits)
    }

    /// The whole limit's algorithm, of all regions together, under a set of numbers.
    pub(crate) fn global(&self, slot: u32, numbers: u16) -> Option<&Algorithm> {
        Some(&self.slots.get(slot as usize)?.numbers.get(usize::from(numbers))?.algorithm)
    }

    /// The numbers that cells were written under, as this region enforces them.
    #[inline]
    pub(crate) fn local(&self, slot: u32, numbers: u16) -> Option<&Local> {
        Some(&self.slots.get(slot as usize)?.numbers.get(usize::from(numbers))?.local)
    }

    /// The least numbers that a cell may have of which nothing else is known. Every region's are then no more than its part of those that
    /// the cell really has, so together they are no more than all of it.
    pub(crate) fn newest_numbers(&self, slot: u32, salt: u32) -> Option<u16> {
        self.least_of_today(slot, salt, None)
    }

    /// When numbers were replaced, or those of an override ended, if they were.
    pub(crate) fn over_at(&self, slot: u32, numbers: u16, now: Now) -> Option<Now> {
        let own = self.slots.get(slot as usize)?.numbers.get(usize::from(numbers))?;
        let over = own.ended.into_iter().chain(own.expired(now));
        over.min_by_key(|then| then.wall_ns).map(|then| then.min(now))
    }

    /// Whether two sets of numbers are of the same cells, where classes have their own.
    pub(crate) fn is_of_one_role(&self, slot: u32, one: u16, other: u16) -> bool {
        let role =
            |numbers: u16| self.slots.get(slot as usize)?.numbers.get(usize::from(numbers))?.role.as_deref();
        role(one) == role(other)
    }

    /// The numbers that keys may have had at a time, of which nothing is known but that they had these before, which were over then:
    /// those of the same role, where there are any.
    pub(crate) fn heirs(&self, slot: u32, numbers: u16, then: Now) -> Vec<u16> {
        let Some(list) = self.slots.get(slot as usize).map(|slot| &slot.numbers) else {
            return Vec::new();
        };
        let live = (0..list.len() as u16).filter(|n| !self.is_over(slot, *n, then));
        let (same, others): (Vec<u16>, Vec<u16>) = live.partition(|n| self.is_of_one_role(slot, *n, numbers));
        if same.is_empty() { others } else { same }
    }

    /// The numbers that a cell has today, as far as can be said without its descriptor, and whether that is a guess: those of the
    /// same override where the overrides are the same, and else the least of all. What was a guess stays one: the least of
    /// yesterday need not be the least of today.
    pub(crate) fn heir(&self, slot: u32, cell: &Cell, salt: u32, now: Now) -> Option<(u16, bool)> {
        if cell.is_guess() && !mutated(Mutation::GuessTakenForKnown) {
            return Some((self.least_of_today(slot, salt, None)?, true));
        }
        let numbers = cell.numbers();
        let list = &self.slots.get(slot as usize)?.numbers;
        let own = list.get(usize::from(numbers))?;
        if !self.is_over(slot, numbers, now) {
            return Some((numbers, false));
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
            return Some((*new.get(place)?, false));
        }
        Some((self.least_of_today(slot, salt, own.role.as_deref())?, true))
    }

    /// Which of a limit's sets of numbers a cell has: 0 for its own, and then one for each override.
    pub(crate) fn which(&self, slot: u32, numbers: u16) -> Option<u16> {
        let list = &self.slots.get(slot as usize)?.numbers;
        let generation = list.get(usize::from(numbers))?.generation;
        let before = list[..usize::from(numbers)].iter().filter(|n| n.generation == generation).count();
        u16::try_from(before).ok()
    }

    /// Whether cells of a limit may have other numbers today than others.
    pub(crate) fn has_several_numbers(&self, slot: u32) -> bool {
        let Some(slot) = self.slots.get(slot as usize) else { return false };
        slot.numbers.iter().filter(|n| n.ended.is_none()).nth(1).is_some()
    }

    /// The other way round, of today's numbers. None of an override that is over.
    pub(crate) fn numbers_of(&self, slot: u32, which: u16, now: Now) -> Option<u16> {
        let list = &self.slots.get(slot as usize)?.numbers;
        let mut live = (0..list.len() as u16).filter(|n| list[usize::from(*n)].ended.is_none());
        live.nth(usize::from(which)).filter(|n| !self.is_over(slot, *n, now))
    }

    /// Of the numbers of a role, where one is named.
    fn least_of_today(&self, slot: u32, salt: u32, role: Option<&str>) -> Option<u16> {
        let list = &self.slots.get(slot as usize)?.numbers;
        let live = (0..list.len() as u16).filter(|n| {
            let n = &list[usize::from(*n)];
            n.ended.is_none() && (role.is_none() || n.role.as_deref() == role)
        });
        live.min_by_key(|n| {
            let Variant { local, algorithm, .. } = &list[usize::from(*n)];
            let (part, pool) = (local.part(salt), local.pool(algorithm, salt).unwrap_or_default());
            // Of windows that begin later, too, whoever gives less in all has no more standing and in its pool.
            (part.units, pool.units, part.rate, pool.rate, algorithm.budget(), *n)
        })
    }

    /// Whether a limit's cells are kept in the journal, by its slot.
    pub(crate) fn is_durable(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.durable)
    }

    /// Who is served first of the limit of a slot.
    pub(crate) fn preference(&self, slot: u32) -> Option<&Preference> {
        Some(&self.slots.get(slot as usize)?.preference)
    }

    /// When a set of numbers began.
    pub(crate) fn began(&self, slot: u32, numbers: u16) -> Option<Now> {
        Some(self.slots.get(slot as usize)?.numbers.get(usize::from(numbers))?.began)
    }

    /// Whether the limit of a slot is one of those that there are now.
    pub(crate) fn is_active(&self, slot: u32) -> bool {
        self.active.contains_key(&slot) || mutated(Mutation::GiveOfRemoved)
    }

    /// The limit of a slot, if it is one of those that there are now.
    pub(crate) fn active_of(&self, slot: u32) -> Option<&Active> {
        Some(&self.limits[*self.active.get(&slot)? as usize])
    }

    /// The place in [`Catalogue::limits`] of one of those that there are now.
    pub(crate) fn place_of(&self, id: LimitId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The limit of an id, if it is one of those that there are now.
    pub(crate) fn active_named(&self, id: LimitId) -> Option<&Active> {
        Some(&self.limits[self.place_of(id)? as usize])
    }

    /// The limit of a slot, in force or not.
    pub(crate) fn id(&self, slot: u32) -> Option<LimitId> {
        self.slots.get(slot as usize).map(|slot| slot.id)
    }

    /// Whether a slot may have been charged before a restart that forgot it.
    pub(crate) fn is_empty_handed(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.empty_handed)
    }

    /// The numbers with the fastest rate that a limit has had since this process started: any of them, where it has no rate.
    pub(crate) fn fastest(&self, slot: u32) -> Option<&Algorithm> {
        fastest(self.slots.get(slot as usize)?.numbers.iter())
    }

    /// What a cell of a bucket may owe of which nothing is known, and the numbers that say what that means.
    pub(crate) fn forgotten(&self, slot: u32, numbers: u16) -> Option<(&Algorithm, Inline)> {
        let numbers = self.slots.get(slot as usize)?.numbers.get(usize::from(numbers))?;
        Some((numbers.local.most(), numbers.forgotten))
    }

    /// Of a limit's live numbers, those under which the most is owed that a crash forgot, if any is.
    pub(crate) fn most_forgotten(&self, slot: u32, now: Now) -> Option<(&Algorithm, Inline)> {
        let list = &self.slots.get(slot as usize)?.numbers;
        let live = list.iter().filter(|numbers| numbers.ended.is_none());
        let all = live.map(|numbers| (numbers.local.most(), numbers.forgotten));
        all.max_by_key(|(most, words)| most.owed(words, now))
            .filter(|(most, words)| most.owed(words, now) > 0)
    }

    /// All that a crash forgot of buckets and that is not over, by limit, those that were removed too.
    pub(crate) fn all_forgotten(&self, now: Now) -> impl Iterator<Item = (LimitId, &Algorithm, Inline)> {
        let of = move |slot: usize| {
            let (most, words) = self.most_forgotten(slot as u32, now)?;
            Some((self.slots[slot].id, most, words))
        };
        (0..self.slots.len()).filter_map(of)
    }

    /// The fewest units that any cell of a limit may have, whatever numbers it has: what a crash presumes to be spent.
    pub(crate) fn least_units(&self, slot: u32, salt: u32) -> u64 {
        let numbers = self.least_of_today(slot, salt, None).and_then(|numbers| self.local(slot, numbers));
        numbers.map_or(0, |local| local.part(salt).units)
    }

    /// Whether numbers were replaced, or are those of an override that has ended: cells under them
    /// are another set's now.
    pub(crate) fn is_over(&self, slot: u32, numbers: u16, now: Now) -> bool {
        let list = self.slots.get(slot as usize).map(|slot| &slot.numbers);
        list.and_then(|list| list.get(usize::from(numbers)))
            .is_some_and(|n| n.ended.is_some() || n.until_ns.is_some_and(|until| now.wall_ns >= until))
    }

    /// Carries a state over from the numbers it was written under to those that its descriptor has
    /// now, through all that it had in between. Where it cannot be known when numbers changed, the
    /// larger debt counts.
    pub(crate) fn carry(
        &self,
        slot: u32,
        from: u16,
        to: u16,
        words: &[u64],
        now: Now,
        (descriptor, salt): (&Descriptor<'_>, u32),
    ) -> State {
        let list = &self.slots[slot as usize].numbers;
        let (mut at, mut words, mut since) = (from, words.to_vec(), Now::at(0));
        loop {
            let old = &list[usize::from(at)];
            let until = old.expired(now);
            let (then, generation) = match (old.ended, until) {
                (Some(ended), Some(until)) if until.wall_ns < ended.wall_ns => (until, old.generation),
                (Some(ended), _) => (ended, old.generation + 1),
                (None, Some(until)) => (until, old.generation),
                (None, None) => (now, old.generation),
            };
            let whose = |n: &&u16| {
                let n = &list[usize::from(**n)];
                n.until_ns.is_none_or(|until| then.wall_ns < until)
                    && n.whose.iter().all(|c| c.holds_for_first(descriptor))
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
    pub(crate) fn is_idle(&self, slot: u32, numbers: u16, salt: u32, words: &[u64], now: Now) -> bool {
        self.is_idle_as(slot, numbers, |local| local.at(salt), words, now)
    }

    /// As [`Catalogue::is_idle`], of a cell that new cells share.
    pub(crate) fn is_idle_shared(&self, slot: u32, numbers: u16, words: &[u64], now: Now) -> bool {
        self.is_idle_as(slot, numbers, Local::least, words, now)
    }

    fn is_idle_as(
        &self,
        slot: u32,
        numbers: u16,
        of: impl Fn(&Local) -> &Algorithm,
        words: &[u64],
        now: Now,
    ) -> bool {
        let Some(list) = self.slots.get(slot as usize).map(|slot| &slot.numbers) else { return false };
        let Some(own) = list.get(usize::from(numbers)) else { return false };
        let written = of(&own.local);
        let idle = written.is_idle(words, now);
        if !idle || !self.is_over(slot, numbers, now) {
            return idle;
        }
        let until = own.expired(now);
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

/// Of some numbers, those with the fastest rate.
fn fastest<'n>(all: impl Iterator<Item = &'n Variant>) -> Option<&'n Algorithm> {
    all.map(|numbers| &numbers.algorithm).reduce(|a, b| if a.is_slower(b) { b } else { a })
}
