//! The limits in force, and how one set of limits replaces another.
//!
//! A catalogue is a snapshot: checks read a catalogue without a lock, and a change makes a new one. Cells
//! outlive catalogues. Two things tie cells to limits: the *slot*, one for each [`LimitId`] ever seen, and
//! the *variants*, all that the slot has ever had. A cell that was written under an old variant is carried
//! over, with its debt, when the cell is next touched.

mod allocations;
mod byte_map;
mod in_force;
pub(crate) mod index;
pub(crate) mod local;
mod paths;
pub(crate) mod preference;
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
    in_force::InForce,
    registry::{LiveVariant, Registry, Unwritten},
};
pub use crate::cell::table::VARIANTS_MAX;
use crate::{
    catalogue::{index::Index, local::Local, preference::Preference},
    cell::table::{Cell, SLOT_MAX},
    settings::SETTINGS,
};

/// The most limits, counting every limit since the start: a cell has 17 bits for its limit's slot.
pub const LIMITS_MAX: usize = SLOT_MAX as usize;

/// The limits in force.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// Every limit, in the order of the file; [`crate::LimitAnswer::limit`] is an index into it.
    pub limits: Vec<Active>,
    /// Whether any of the limits is a candidate.
    pub has_candidates: bool,
    /// Whether any of the limits counts requests under way.
    pub has_slots: bool,
    /// Whether any of the limits holds units for requests of cost 0.
    pub has_holds: bool,
    /// Grows with every change.
    pub(crate) version: u64,
    domains: BTreeMap<Box<[u8]>, Domain>,
    /// By slot; slot 0 means no limit.
    slots: Vec<Slot>,
    /// The limits that exist now: from slot to index in `limits`.
    active: BTreeMap<u32, u32>,
    /// The limits that exist now: from id to index in `limits`.
    by_id: BTreeMap<LimitId, u32>,
}

/// A variant of a limit: the limit's slot, and the variant's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VariantKey {
    pub(crate) slot: u32,
    pub(crate) variant: u16,
}

/// The limits of one domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) index: Index,
    /// All limits of the domain, including those that are off or not yet in force.
    pub(crate) limits: Vec<u32>,
    /// Whether any of them counts requests under way.
    has_slots: bool,
    /// Whether any of them replaces others.
    pub(crate) has_replacements: bool,
}

/// A limit in a catalogue.
#[derive(Clone, Debug)]
pub struct Active {
    /// The limit.
    pub limit: Limit,
    /// The limit is in force before this time (wall clock, nanoseconds). Another shape of the limit has
    /// replaced it; both count until what was spent under the old shape is over.
    pub until_ns: Option<u64>,
    /// Whether its cells are kept in the journal.
    pub durable: bool,
    /// For a candidate, the index in [`Catalogue::limits`] of the limit that it may replace, if that limit is
    /// enforced now.
    pub live: Option<u32>,
    pub(crate) slot: u32,
    pub(crate) tagger: Tagger,
    /// The limit's own variant.
    pub(crate) variant: u16,
    /// The further variants, in the order of [`Limit::variants`].
    pub(crate) other_variants: Vec<u16>,
    /// The variants that end by themselves.
    pub(crate) expiring: Vec<u16>,
    /// The limit's own variant, as this region enforces it.
    pub(crate) local: Local,
    /// Whether the guard share is not spent during an outage of the store that the region's nodes share: then
    /// only units already held of the pool are. Always `false` if the nodes share no store.
    pub(crate) closes: bool,
    /// Units that passed during store outages although this node did not have them.
    pub(crate) opened: Arc<AtomicU64>,
    /// Units that were spent before they were asked for, and that the cells did not have.
    pub(crate) overdrawn: Arc<AtomicU64>,
    /// Holds that ended.
    pub(crate) holds: Arc<EndedHolds>,
}

/// Holds of a limit that ended at this node since the start.
#[derive(Debug, Default)]
pub struct EndedHolds {
    reported: AtomicU64,
    lapsed: AtomicU64,
}

impl EndedHolds {
    /// Counts a hold whose real cost was reported, or one that nobody reported in time.
    pub(crate) fn count(&self, is_reported: bool) {
        let counter = if is_reported { &self.reported } else { &self.lapsed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Holds whose real cost was reported, or that were released.
    pub fn reported(&self) -> u64 {
        self.reported.load(Ordering::Relaxed)
    }

    /// Holds that nobody reported in time.
    pub fn lapsed(&self) -> u64 {
        self.lapsed.load(Ordering::Relaxed)
    }

    /// Whether many holds lapsed and none was ever reported or released: nobody seems to report what requests cost.
    pub fn are_never_reported(&self) -> bool {
        self.reported() == 0 && self.lapsed() >= SETTINGS.charges.lapsed_unreported
    }
}

impl Active {
    /// The holds that ended at this node.
    pub fn ended_holds(&self) -> &EndedHolds {
        &self.holds
    }

    /// A number from 1 that the limit keeps as long as the node runs, through every reload.
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// Units that passed during store outages since the start although this node did not have them: the limit
    /// is [`OnStoreLoss::Open`](acequia_limits::limit::OnStoreLoss).
    pub fn open_units(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Units that this node's cells did not have when they were reported as spent, since the start: recorded as
    /// debt, or beyond the largest debt ([`Limit::debt_max`]).
    pub fn overdrawn_units(&self) -> u64 {
        self.overdrawn.load(Ordering::Relaxed)
    }

    /// Whether the limit counts now.
    pub fn is_in_force(&self, wall_ns: u64) -> bool {
        self.until_ns.is_none_or(|until| wall_ns < until)
    }

    /// Every variant that the limit's cells may have, in the order of [`Limit::variants`].
    pub(crate) fn all_variants(&self) -> impl Iterator<Item = u16> {
        std::iter::once(self.variant).chain(self.other_variants.iter().copied())
    }

    /// The variant of a cell with this override, or none, and with this role, if classes have cells of their
    /// own.
    #[inline]
    pub(crate) fn variant_of(&self, number: Option<usize>, role: usize) -> u16 {
        if number.is_none() && role == 0 { self.variant } else { self.variant_beside(number, role) }
    }

    #[cold]
    fn variant_beside(&self, number: Option<usize>, role: usize) -> u16 {
        let each = if self.limit.classes.is_none() { 1 } else { self.limit.variants_each() };
        match number.map_or(0, |number| number + 1) * each + role {
            0 => self.variant,
            other => self.other_variants[other - 1],
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
    /// By number: all that the slot has ever had.
    variants: Vec<Variant>,
    /// Whether the limit was served before a restart, unjournalled.
    was_served_before: bool,
    /// Whether its cells are kept in the journal.
    durable: bool,
    preference: Arc<Preference>,
    /// As [`Active::opened`].
    opened: Arc<AtomicU64>,
    /// As [`Active::overdrawn`].
    overdrawn: Arc<AtomicU64>,
    /// As [`Active::holds`].
    holds: Arc<EndedHolds>,
}

impl Slot {
    fn new(id: LimitId, was_served_before: bool) -> Self {
        Self {
            id,
            variants: Vec::new(),
            was_served_before,
            durable: false,
            preference: Arc::default(),
            opened: Arc::default(),
            overdrawn: Arc::default(),
            holds: Arc::default(),
        }
    }
}

/// One variant of a limit.
#[derive(Clone, Debug)]
struct Variant {
    algorithm: Algorithm,
    /// The algorithm as this region enforces it: cells are written under it.
    local: Local,
    /// The debt of a bucket's cell that a crash forgot: state under the largest local variant, or zeros if
    /// nothing is owed. The debt is carried over from one variant to the next, as a cell's debt is.
    forgotten: Inline,
    began: Now,
    /// The conditions of the override that has this variant; empty for the limit's own variant.
    whose: Vec<Condition>,
    /// The role of the cells, if classes have cells of their own: see
    /// [`acequia_limits::classes::Classes::role_name`].
    role: Option<Box<str>>,
    /// When the next generation replaced the variant.
    ended: Option<Now>,
    /// Grows whenever any of the limit's variants change: then all of them begin anew.
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

/// A limit and when it is in force. A node must remember this over a restart.
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

    /// The earliest time at which nothing spent under the limit can be spent again under another limit: the
    /// end of its window, or when all its cells are idle.
    fn succession_at(&self, now: Now) -> u64 {
        if self.limit.algorithm.has_common_edges() {
            self.limit.algorithm.succession_at(now)
        } else {
            now.wall_ns.saturating_add(self.limit.horizon_ns())
        }
    }
}

/// What a change of the catalogue did to one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `domain/name`.
    pub limit: String,
    /// The kind of the change.
    pub kind: ChangeKind,
}

/// The kinds of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The limit did not exist before.
    Added,
    /// The limit is not enforced any more; its cells live until their windows end.
    Removed,
    /// The limit has new variants, a new mode or new overrides, and keeps its cells.
    Renumbered,
    /// The limit matches, counts by or measures something else. The old limit of this name stays in force
    /// beside it until this time: the end of its window, or when its cells are idle.
    Succeeds {
        /// Wall clock, nanoseconds.
        at_ns: u64,
    },
}

/// Why a catalogue was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueFault {
    /// Two limits have the same name.
    #[error("two limits are named {0}: names are unique in a domain, rename one")]
    Twice(String),
    /// There are too many limits since the start.
    #[error(
        "more than {LIMITS_MAX} different limits since the start, with those that the journal still has: change fewer of \
         them at a time, and restart the node in between"
    )]
    TooManyLimits,
    /// One limit has too many overrides and classes.
    #[error(
        "{0} has more than {VARIANTS_MAX} sets of numbers, one for each class of each override: leave some out, or split \
         the limit"
    )]
    TooManyVariants(String),
    /// One limit had too many changes since the start.
    #[error("{0} has had more than {VARIANTS_MAX} sets of numbers since the start: restart the node")]
    VariantsUsedUp(String),
}

impl Catalogue {
    pub(crate) fn domain(&self, domain: &[u8]) -> Option<&Domain> {
        self.domains.get(domain)
    }

    /// A number that grows with every change.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The sum of [`Active::open_units`] over all limits since the start.
    pub(crate) fn open_units(&self) -> u64 {
        self.slots.iter().map(|slot| slot.opened.load(Ordering::Relaxed)).sum()
    }

    /// Whether a limit of the domain counts requests under way: an answer then may take a slot.
    pub fn takes_slots(&self, domain: &[u8]) -> bool {
        self.has_slots && self.domains.get(domain).is_some_and(|domain| domain.has_slots)
    }

    /// The limits of a domain, as indexes into [`Catalogue::limits`].
    pub fn limits_of(&self, domain: &[u8]) -> &[u32] {
        self.domains.get(domain).map_or(&[], |domain| &domain.limits)
    }

    /// All variants that a slot has ever had, by number.
    #[inline]
    fn variants(&self, slot: u32) -> Option<&[Variant]> {
        Some(&self.slots.get(slot as usize)?.variants)
    }

    #[inline]
    fn variant(&self, slot: u32, variant: u16) -> Option<&Variant> {
        self.variants(slot)?.get(usize::from(variant))
    }

    /// The whole limit's algorithm, of all regions together, under a variant.
    pub(crate) fn global(&self, slot: u32, variant: u16) -> Option<&Algorithm> {
        Some(&self.variant(slot, variant)?.algorithm)
    }

    /// The variant that cells were written under, as this region enforces it.
    #[inline]
    pub(crate) fn local(&self, slot: u32, variant: u16) -> Option<&Local> {
        Some(&self.variant(slot, variant)?.local)
    }

    /// The least variant that a cell may have if nothing else is known of the cell. Each region then uses no
    /// more than its part of the cell's real variant, so all regions together use no more than the whole.
    pub(crate) fn newest_variant(&self, slot: u32, salt: u32) -> Option<u16> {
        self.least_of_today(slot, salt, None)
    }

    /// When the variant was replaced, or its override ended, if either happened.
    pub(crate) fn over_at(&self, slot: u32, variant: u16, now: Now) -> Option<Now> {
        let own = self.variant(slot, variant)?;
        let over = own.ended.into_iter().chain(own.expired(now));
        over.min_by_key(|then| then.wall_ns).map(|then| then.min(now))
    }

    /// Whether two variants belong to the same cells, if classes have cells of their own.
    pub(crate) fn is_of_one_role(&self, slot: u32, one: u16, other: u16) -> bool {
        let role = |variant: u16| self.variant(slot, variant)?.role.as_deref();
        role(one) == role(other)
    }

    /// The variants that keys may have had at `then`, if all that is known is that the keys had `variant`
    /// before and that this variant was over by then. Variants of the same role come first; others count only
    /// if there are none.
    pub(crate) fn heirs(&self, slot: u32, variant: u16, then: Now) -> Vec<u16> {
        let Some(all) = self.variants(slot) else { return Vec::new() };
        let live = (0..all.len() as u16).filter(|other| !self.is_over(slot, *other, then));
        let (same, others): (Vec<u16>, Vec<u16>) =
            live.partition(|other| self.is_of_one_role(slot, *other, variant));
        if same.is_empty() { others } else { same }
    }

    /// The variant that a cell has today, as far as is known without its descriptor, and whether the variant
    /// is a guess. If the overrides are unchanged, the result is the variant of the same override; otherwise
    /// the least of all variants.
    pub(crate) fn heir(&self, slot: u32, cell: &Cell, salt: u32, now: Now) -> Option<(u16, bool)> {
        if is_variant_unknown(cell) {
            return Some((self.least_of_today(slot, salt, None)?, true));
        }
        let variant = cell.variant();
        let all = self.variants(slot)?;
        let own = all.get(usize::from(variant))?;
        if !self.is_over(slot, variant, now) {
            return Some((variant, false));
        }
        let of_generation = |generation: u32| -> Vec<u16> {
            (0..all.len() as u16).filter(|other| all[usize::from(*other)].generation == generation).collect()
        };
        let today = all.iter().find(|other| other.ended.is_none())?.generation;
        let (old, new) = (of_generation(own.generation), of_generation(today));
        let is_same = |(a, b): (&u16, &u16)| {
            let (a, b) = (&all[usize::from(*a)], &all[usize::from(*b)]);
            a.whose == b.whose && a.until_ns == b.until_ns && a.role == b.role
        };
        let place = old.iter().position(|other| *other == variant)?;
        let has_expired = own.until_ns.is_some_and(|until| now.wall_ns >= until);
        if !has_expired && old.len() == new.len() && old.iter().zip(&new).all(is_same) {
            return Some((*new.get(place)?, false));
        }
        Some((self.least_of_today(slot, salt, own.role.as_deref())?, true))
    }

    /// The place of a cell's variant among its limit's variants: 0 for the limit's own, and then one for each
    /// override.
    pub(crate) fn which(&self, slot: u32, variant: u16) -> Option<u16> {
        let all = self.variants(slot)?;
        let generation = all.get(usize::from(variant))?.generation;
        let before = &all[..usize::from(variant)];
        let before = before.iter().filter(|other| other.generation == generation).count();
        u16::try_from(before).ok()
    }

    /// Whether a limit has several variants today.
    pub(crate) fn has_several_variants(&self, slot: u32) -> bool {
        let Some(all) = self.variants(slot) else { return false };
        all.iter().filter(|variant| variant.ended.is_none()).nth(1).is_some()
    }

    /// The inverse of [`Catalogue::which`] for today's variants; `None` if the variant's override is over.
    pub(crate) fn variant_at(&self, slot: u32, which: u16, now: Now) -> Option<u16> {
        let all = self.variants(slot)?;
        let mut live = (0..all.len() as u16).filter(|variant| all[usize::from(*variant)].ended.is_none());
        live.nth(usize::from(which)).filter(|variant| !self.is_over(slot, *variant, now))
    }

    /// The least variant of today; only those of `role`, if a role is given.
    fn least_of_today(&self, slot: u32, salt: u32, role: Option<&str>) -> Option<u16> {
        let all = self.variants(slot)?;
        let live = (0..all.len() as u16).filter(|variant| {
            let variant = &all[usize::from(*variant)];
            variant.ended.is_none() && (role.is_none() || variant.role.as_deref() == role)
        });
        live.min_by_key(|variant| {
            let Variant { local, algorithm, .. } = &all[usize::from(*variant)];
            let (part, pool) = (local.part(salt), local.pool(algorithm, salt).unwrap_or_default());
            // Variants that give fewer units in all also have no more standing units and no more in the pool,
            // in later windows too.
            (part.units, pool.units, part.rate, pool.rate, algorithm.budget(), *variant)
        })
    }

    /// Whether the cells of the slot's limit are kept in the journal.
    pub(crate) fn is_durable(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.durable)
    }

    /// Who is served first under the slot's limit.
    pub(crate) fn preference(&self, slot: u32) -> Option<&Preference> {
        Some(&self.slots.get(slot as usize)?.preference)
    }

    /// When a variant began.
    pub(crate) fn began(&self, slot: u32, variant: u16) -> Option<Now> {
        Some(self.variant(slot, variant)?.began)
    }

    /// Whether the slot's limit exists now.
    pub(crate) fn is_active(&self, slot: u32) -> bool {
        self.active.contains_key(&slot) || mutated(Mutation::GiveOfRemoved)
    }

    /// The slot's limit, if the limit exists now.
    pub(crate) fn active_of(&self, slot: u32) -> Option<&Active> {
        Some(&self.limits[*self.active.get(&slot)? as usize])
    }

    /// The index in [`Catalogue::limits`] of a limit that exists now.
    pub(crate) fn place_of(&self, id: LimitId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The limit of an id, if the limit exists now.
    pub(crate) fn active_named(&self, id: LimitId) -> Option<&Active> {
        Some(&self.limits[self.place_of(id)? as usize])
    }

    /// The id of the slot's limit, in force or not.
    pub(crate) fn id(&self, slot: u32) -> Option<LimitId> {
        self.slots.get(slot as usize).map(|slot| slot.id)
    }

    /// Whether the slot may have been charged before a restart that forgot the charges.
    pub(crate) fn was_served_before(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.was_served_before)
    }

    /// The variant with the fastest rate that a limit has had since this process started; any variant if the
    /// limit has no rate.
    pub(crate) fn fastest(&self, slot: u32) -> Option<&Algorithm> {
        fastest(self.variants(slot)?.iter())
    }

    /// The largest debt of a bucket's cell of which nothing is known, and the algorithm under which the state
    /// is written.
    pub(crate) fn forgotten(&self, key: VariantKey) -> Option<(&Algorithm, Inline)> {
        let variant = self.variant(key.slot, key.variant)?;
        Some((variant.local.most(), variant.forgotten))
    }

    /// The largest debt that a crash forgot, over a limit's live variants; `None` if there is no such debt.
    pub(crate) fn most_forgotten(&self, slot: u32, now: Now) -> Option<(&Algorithm, Inline)> {
        let live = self.variants(slot)?.iter().filter(|variant| variant.ended.is_none());
        let all = live.map(|variant| (variant.local.most(), variant.forgotten));
        all.max_by_key(|(most, state)| most.owed(state, now))
            .filter(|(most, state)| most.owed(state, now) > 0)
    }

    /// All debts of buckets that a crash forgot and that are not over, by limit, including limits that were
    /// removed.
    pub(crate) fn all_forgotten(&self, now: Now) -> impl Iterator<Item = (LimitId, &Algorithm, Inline)> {
        let of = move |slot: usize| {
            let (most, state) = self.most_forgotten(slot as u32, now)?;
            Some((self.slots[slot].id, most, state))
        };
        (0..self.slots.len()).filter_map(of)
    }

    /// The fewest units that any cell of a limit may have under any variant: a crash presumes that so many
    /// are spent.
    pub(crate) fn least_units(&self, slot: u32, salt: u32) -> u64 {
        let least = self.least_of_today(slot, salt, None).and_then(|variant| self.local(slot, variant));
        least.map_or(0, |local| local.part(salt).units)
    }

    /// Whether a variant was replaced, or its override has ended: its cells have another variant now.
    pub(crate) fn is_over(&self, slot: u32, variant: u16, now: Now) -> bool {
        self.variant(slot, variant).is_some_and(|variant| {
            variant.ended.is_some() || variant.until_ns.is_some_and(|until| now.wall_ns >= until)
        })
    }

    /// Carries a state over from the variant `from`, which it was written under, to the variant `to`, which
    /// the descriptor has now, through all variants in between. If the time of a change cannot be known, the
    /// larger debt counts.
    pub(crate) fn carry(
        &self,
        from: VariantKey,
        to: u16,
        state: &[u64],
        now: Now,
        descriptor: &Descriptor<'_>,
        salt: u32,
    ) -> State {
        let all = &self.slots[from.slot as usize].variants;
        let (mut at, mut state, mut since) = (from.variant, state.to_vec(), Now::at(0));
        loop {
            let old = &all[usize::from(at)];
            let (then, next) = next_variant(all, old, to, now, descriptor);
            let (algorithm, written) = (all[usize::from(next)].local.at(salt), old.local.at(salt));
            let then = then.max(since).min(now);
            if let Some(paid) = written.carried(&state, then, salt, algorithm) {
                state = paid.as_slice().to_vec();
            }
            let mut carried = algorithm.convert(written, &state, then);
            if old.ended.is_none() && old.expired(now).is_none() {
                // The clock went back, or the cell has two names: the time of the change is unknown.
                let began = all[usize::from(next)].began.min(now);
                let early = algorithm.convert(written, &state, began);
                if algorithm.covers(early.as_slice(), carried.as_slice(), now) {
                    carried = early;
                }
            }
            if next == to {
                return carried;
            }
            state = carried.as_slice().to_vec();
            since = then;
            at = next;
        }
    }

    /// Whether a cell's state means the same as an absent cell, under the variant it was written under and
    /// under every variant that came after.
    pub(crate) fn is_idle(&self, slot: u32, variant: u16, salt: u32, state: &[u64], now: Now) -> bool {
        self.is_idle_as(slot, variant, |local| local.at(salt), state, now)
    }

    /// As [`Catalogue::is_idle`], for a cell that new cells share.
    pub(crate) fn is_idle_shared(&self, slot: u32, variant: u16, state: &[u64], now: Now) -> bool {
        self.is_idle_as(slot, variant, Local::least, state, now)
    }

    fn is_idle_as(
        &self,
        slot: u32,
        variant: u16,
        of: impl Fn(&Local) -> &Algorithm,
        state: &[u64],
        now: Now,
    ) -> bool {
        let Some(all) = self.variants(slot) else { return false };
        let Some(own) = all.get(usize::from(variant)) else { return false };
        let written = of(&own.local);
        let idle = owes_nothing(written, state, now);
        if !idle || !self.is_over(slot, variant, now) {
            return idle;
        }
        let until = own.expired(now);
        let over = match (own.ended, until) {
            (Some(ended), Some(until)) => ended.min(until),
            (Some(then), None) | (None, Some(then)) => then,
            (None, None) => now,
        };
        written.is_idle(state, over)
            || all.iter().filter(|other| other.generation >= own.generation).all(|other| {
                let later = of(&other.local);
                let converted = later.convert(written, state, over);
                later.is_idle(converted.as_slice(), now)
            })
    }
}

/// Whether a state means the same as an absent cell. A cell that owes does not, though its window is over.
fn owes_nothing(written: &Algorithm, state: &[u64], now: Now) -> bool {
    match mutated(Mutation::OwingCellDropped) {
        true => written.clone().carrying(false).is_idle(state, now),
        false => written.is_idle(state, now),
    }
}

/// The algorithm with the fastest rate.
fn fastest<'n>(all: impl Iterator<Item = &'n Variant>) -> Option<&'n Algorithm> {
    all.map(|variant| &variant.algorithm).reduce(|a, b| if a.is_slower(b) { b } else { a })
}

/// A guess stays a guess until a request or a peer tells the variant: the least variant of yesterday need not
/// be the least of today.
fn is_variant_unknown(cell: &Cell) -> bool {
    cell.is_guess() && !mutated(Mutation::GuessTakenForKnown)
}

/// The variant that a descriptor had after `old`, and when that began; `to` if `old` has not ended.
fn next_variant(
    all: &[Variant],
    old: &Variant,
    to: u16,
    now: Now,
    descriptor: &Descriptor<'_>,
) -> (Now, u16) {
    let (then, generation) = match (old.ended, old.expired(now)) {
        (Some(ended), Some(until)) if until.wall_ns < ended.wall_ns => (until, old.generation),
        (Some(ended), _) => (ended, old.generation + 1),
        (None, Some(until)) => (until, old.generation),
        (None, None) => return (now, to),
    };
    let is_its = |number: &&u16| {
        let variant = &all[usize::from(**number)];
        variant.until_ns.is_none_or(|until| then.wall_ns < until)
            && variant.whose.iter().all(|condition| condition.holds_for_first(descriptor))
    };
    // A limit's own variant comes first in a generation, and counts last.
    let is_of = |number: &u16| {
        let variant = &all[usize::from(*number)];
        variant.generation == generation && variant.role == old.role
    };
    let of_generation: Vec<u16> = (0..all.len() as u16).filter(is_of).collect();
    let its_override = of_generation.iter().skip(1).find(is_its);
    (then, its_override.or(of_generation.first()).copied().unwrap_or(to))
}
