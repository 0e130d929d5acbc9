//! Makes catalogues and outlives them: how a change of limits or of shares affects slots and variants.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use acequia_limits::{
    Algorithm, HashKey, Limit, LimitId, Mode, Now, Part,
    algorithm::{Inline, State},
    cell::Tagger,
    limit::{LimitVariant, OnStoreLoss},
};
use acequia_rights::{
    Split,
    mutation::{Mutation, mutated},
};

use super::{
    Active, Allocations, Catalogue, CatalogueFault, Change, ChangeKind, Domain, LIMITS_MAX, OwnAllocation,
    Scheduled, Slot, VARIANTS_MAX, Variant, VariantKey, fastest,
};
use crate::{
    catalogue::{
        index::Index,
        local::{Local, PoolSplits, Shares, drains_ns},
        preference::Preference,
    },
    cell::record::{is_debt_rewritten, is_overdraft_kept, presumed_spent_at},
};

/// Makes catalogues, and remembers all that must outlive a catalogue.
#[derive(Debug)]
pub(crate) struct Registry {
    key: HashKey,
    durable: bool,
    /// How this region shares limits with others; `None` if the region is alone.
    sharing: Option<Allocations>,
    slots: Vec<Slot>,
    by_id: BTreeMap<LimitId, u32>,
    active: Vec<Active>,
    /// Limits that were in force so recently that their cells may not be idle yet.
    retired: Vec<Scheduled>,
    /// Whether limits may be forgotten because they are over by the wall clock.
    is_dated: bool,
    /// When a crash forgot all unjournalled state: as [`crate::Config::after_crash`].
    after_crash: Option<Now>,
    unwritten: Unwritten,
}

/// Slots whose variants changed in a way that the journal must record.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    /// Slots whose cells must be written now, for one of three reasons. Cells may be kept in the journal from
    /// now on. A bucket's cells were kept there before, but drain more slowly from now on than the disk
    /// knows, perhaps only for a while. A limit may be gone: if it comes back, perhaps with another variant,
    /// no process could presume anything about its cells.
    pub(crate) kept: Vec<u32>,
    /// Unjournalled buckets: the cells that owe more than the new variant allows must be written, since a
    /// crash presumes no more.
    pub(crate) overdrawn: Vec<u32>,
    /// Limits whose rate is lower from now on: what came back by the old rate is not known later.
    pub(crate) slowed: Vec<LimitId>,
    /// Buckets with a debt that a crash forgot. The debt must be written; otherwise the next crash would
    /// presume only what the new variant says.
    pub(crate) forgotten: Vec<u32>,
}

/// A variant that a limit's cells have now.
#[derive(Debug)]
pub(crate) struct LiveVariant {
    /// Its number among all variants of the slot.
    pub(crate) number: u16,
    pub(crate) global: Algorithm,
    pub(crate) local: Local,
}

impl LiveVariant {
    /// What a variant gives a cell, for finding the least. Variants with equal standing shares may differ in
    /// later windows, so they are ordered by the whole limit's budget.
    pub(crate) fn order(&self, salt: u32) -> (Part, u64) {
        (self.local.part(salt), self.global.budget())
    }
}

impl Registry {
    /// `durable`: whether there is a journal that keeps long-lived cells.
    pub(crate) fn new(
        key: &HashKey,
        durable: bool,
        sharing: Option<Allocations>,
        after_crash: Option<Now>,
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
            is_dated: true,
            after_crash: presumed_spent_at(after_crash),
            unwritten: Unwritten::default(),
        }
    }

    /// Takes over the limits that were in force before a restart. `is_dated`: whether another clock agrees
    /// with the wall clock. If not, no such limit is forgotten before [`Registry::correct_start`].
    pub(crate) fn resume(
        &mut self,
        schedule: Vec<Scheduled>,
        is_dated: bool,
        now: Now,
    ) -> Result<(), CatalogueFault> {
        for scheduled in &schedule {
            let slot = self.slot(&scheduled.limit)?;
            self.slots[slot as usize].was_served_before = !self.is_durable(&scheduled.limit);
        }
        // Limits that are over stay too: by a wrong wall clock they may only seem over.
        self.retired = Vec::new();
        self.is_dated = is_dated;
        self.active = schedule.into_iter().map(|s| self.activate(s, now)).collect::<Result<_, _>>()?;
        self.unwritten = Unwritten::default();
        Ok(())
    }

    /// Retires limits that are over but remembers them: a limit that comes back in another shape must wait
    /// for its window.
    fn set_aside_what_is_over(&mut self, now: Now) {
        let is_over = |active: &Active| active.until_ns.is_some_and(|until| until <= now.wall_ns);
        let (over, active): (Vec<Active>, _) = self.active.drain(..).partition(is_over);
        self.active = active;
        self.retired.extend(over.iter().map(Active::scheduled));
    }

    /// Puts limits back in force that have a successor and that end later than the wall clock shows now. The
    /// earlier wall time, by which they were over, was wrong.
    fn reopen(&mut self, now: Now) {
        if self.retired.is_empty() {
            return;
        }
        let ids = ids(self.active.iter().map(|active| &active.limit));
        let active = by_name(&self.active, |active| &active.limit);
        let is_again = |old: &Scheduled| {
            let has_successor = !all_named(&active, &old.limit).is_empty();
            old.is_in_force(now.wall_ns) && !ids.contains(&old.limit.id) && has_successor
        };
        let (again, retired): (Vec<Scheduled>, _) = self.retired.iter().cloned().partition(is_again);
        self.retired = retired;
        // The limits were active before, so there is room for them.
        let again: Vec<Active> = again.into_iter().filter_map(|old| self.activate(old, now).ok()).collect();
        self.active.extend(again);
    }

    /// The limits for which the registry ever made variants.
    pub(crate) fn known(&self) -> impl Iterator<Item = LimitId> + '_ {
        self.by_id.iter().filter(|(id, _)| self.knows(**id)).map(|(id, _)| *id)
    }

    /// Puts other limits in force, and returns the changes.
    pub(crate) fn apply(&mut self, limits: Vec<Limit>, now: Now) -> Result<Vec<Change>, CatalogueFault> {
        self.refuse(&limits)?;
        self.reopen(now);
        self.set_aside_what_is_over(now);
        let mut changes = Vec::new();
        let mut schedule: Vec<Scheduled> = Vec::new();
        let known = by_name(&self.active, |active| &active.limit);
        let retired = by_name(&self.retired, |old| &old.limit);
        for limit in &limits {
            let named: Vec<Scheduled> =
                all_named(&known, limit).iter().map(|active| active.scheduled()).collect();
            let in_force = |s: &&Scheduled| s.is_in_force(now.wall_ns);
            let same = named.iter().filter(in_force).find(|s| s.limit.id == limit.id);
            // Limits with this name and another shape stay in force until nothing spent under them can be
            // spent again.
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
                others.extend(unfinished(limit, all_named(&retired, limit), now));
            }
            let is_other_replaced =
                named.iter().any(|s| in_force(&s) && s.limit.id != limit.id && s.until_ns.is_none());
            let kind = match (same, others.iter().filter_map(|s| s.until_ns).max()) {
                (Some(_), Some(at_ns)) if is_other_replaced => Some(ChangeKind::Succeeds { at_ns }),
                (Some(same), _) => {
                    let changed = same.limit != *limit || same.until_ns.is_some();
                    changed.then_some(ChangeKind::Renumbered)
                }
                (None, Some(at_ns)) => Some(ChangeKind::Succeeds { at_ns }),
                (None, None) => Some(ChangeKind::Added),
            };
            schedule.extend(others);
            schedule.push(Scheduled { limit: limit.clone(), until_ns: None });
            changes.extend(kind.map(|kind| Change { limit: limit.path(), kind }));
        }
        let mut removed: BTreeSet<String> = self.active.iter().map(|a| a.limit.path()).collect();
        for limit in &limits {
            removed.remove(&limit.path());
        }
        changes.extend(removed.into_iter().map(|limit| Change { limit, kind: ChangeKind::Removed }));
        let kept = ids(schedule.iter().map(|scheduled| &scheduled.limit));
        self.retire(&kept, now);
        for gone in self.active.iter().filter(|old| !kept.contains(&old.limit.id)) {
            if self.durable && gone.limit.algorithm.has_rate() {
                self.unwritten.removed(gone.slot, gone.durable);
            }
        }
        self.active = schedule.into_iter().map(|s| self.activate(s, now)).collect::<Result<_, _>>()?;
        Ok(changes)
    }

    /// Adopts other shares. Limits in force begin new variants where the change matters to them. Says whether
    /// any limit did.
    pub(crate) fn share(&mut self, allocations: Allocations, now: Now) -> Result<bool, CatalogueFault> {
        self.sharing = Some(allocations);
        let before: Vec<u16> = self.active.iter().map(|active| active.variant).collect();
        let schedule: Vec<Scheduled> = self.active.iter().map(Active::scheduled).collect();
        self.active = schedule.into_iter().map(|s| self.activate(s, now)).collect::<Result<_, _>>()?;
        Ok(self.active.iter().map(|active| active.variant).ne(before))
    }

    /// How long units spent under any variant that this process knows may count ([`drains_ns`]).
    pub(crate) fn drains_ns(&self, limit: &Limit) -> u64 {
        let Some(slot) = self.by_id.get(&limit.id) else { return 0 };
        if !drains_by_earlier_variants(limit) {
            return 0;
        }
        let all = self.slots[*slot as usize].variants.iter().map(|variant| &variant.algorithm);
        let own = std::iter::once(&limit.algorithm);
        let all: Vec<&Algorithm> = all.chain(own).filter(|algorithm| algorithm.budget() > 0).collect();
        drains_ns(&all)
    }

    /// How this region shares one limit now.
    fn shares_of(&self, limit: &Limit, now: Now) -> Option<Arc<Shares>> {
        let sharing = self.sharing.as_ref()?;
        let drains_ns = self.drains_ns(limit);
        let counting = sharing.counting(limit, drains_ns, now);
        // If the region has no share in one of the allocations, it has nothing.
        let splits = |allocations: &[&OwnAllocation]| -> Vec<Arc<Split>> {
            let splits: Option<Vec<Arc<Split>>> =
                allocations.iter().map(|allocation| allocation.split.clone()).collect();
            splits.unwrap_or_default()
        };
        let pools = counting.pools.iter().map(|(until_ns, allocations)| PoolSplits {
            until_ns: *until_ns,
            splits: splits(allocations),
            has_joined_since: allocations.iter().any(|allocation| allocation.is_before),
        });
        Some(Arc::new(Shares {
            region: sharing.region,
            splits: splits(&counting.allocations),
            until_ns: counting.until_ns,
            pools: pools.collect(),
            guard: sharing.guard.as_ref().map(|guard| guard.for_limit(limit)),
            drift_ppm: sharing.drift_ppm,
            margin_ns: sharing.margin_ns,
            left_ns: sharing.left_ns,
        }))
    }

    /// A snapshot of the limits in force.
    pub(crate) fn catalogue(&self, version: u64) -> Catalogue {
        let mut by_domain: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (number, active) in (0..).zip(&self.active) {
            by_domain.entry(&active.limit.spec.domain).or_default().push(number);
        }
        let domains = by_domain.into_iter().map(|(domain, limits)| {
            let all = limits.iter().map(|number| (*number, &self.active[*number as usize].limit));
            let on = all.clone().filter(|(_, limit)| limit.spec.mode != Mode::Off);
            let domain_of = Domain {
                has_slots: on.clone().any(|(_, limit)| limit.is_concurrent()),
                has_replacements: on.clone().any(|(_, limit)| !limit.spec.replaces.is_empty()),
                index: Index::new(all, |number| self.active[number as usize].until_ns.is_some()),
                limits: limits.clone(),
            };
            (domain.as_bytes().into(), domain_of)
        });
        let mut limits = self.active.clone();
        let mut live: BTreeMap<LimitName<'_>, u32> = BTreeMap::new();
        for (place, active) in (0..).zip(&self.active) {
            // A limit that ends soon has a successor, which goes on after it.
            if active.limit.spec.mode == Mode::Enforce && active.until_ns.is_none() {
                live.entry(name(&active.limit)).or_insert(place);
            }
        }
        for candidate in &mut limits {
            let spec = &candidate.limit.spec;
            if let (Mode::Shadow, Some(live_name)) = (spec.mode, &spec.candidate_for) {
                candidate.live = live.get(&(spec.domain.as_str(), live_name.as_str())).copied();
            }
        }
        Catalogue {
            version,
            domains: domains.collect(),
            has_candidates: limits.iter().any(|active| active.live.is_some()),
            has_slots: limits.iter().any(|active| active.limit.is_concurrent()),
            has_holds: limits.iter().any(|active| active.limit.expect.is_some()),
            limits,
            active: (0..).zip(&self.active).map(|(place, active)| (active.slot, place)).collect(),
            by_id: (0..).zip(&self.active).map(|(place, active)| (active.limit.id, place)).collect(),
            slots: self.slots.clone(),
        }
    }

    /// The slot of a limit that was ever in force here.
    pub(crate) fn slot_of(&self, id: LimitId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Adopts other shares, which take effect at the next change of limits.
    pub(crate) fn set_allocations(&mut self, allocations: Allocations) {
        self.sharing = Some(allocations);
    }

    /// Whether cells can be tagged with this key from now on: no cell was ever tagged with another key.
    pub(crate) fn takes_key(&self, key: &HashKey) -> bool {
        self.key.0 == key.0 || self.by_id.is_empty()
    }

    /// Tags cells with this key, if [`Registry::takes_key`].
    pub(crate) fn set_key(&mut self, key: &HashKey) {
        if self.takes_key(key) {
            self.key = *key;
        }
    }

    /// The variants that a limit's cells have now, the limit's own first.
    pub(crate) fn live_variants(&self, active: &Active) -> Vec<LiveVariant> {
        let all = &self.slots[active.slot as usize].variants;
        let live = active.all_variants().map(|number| {
            let variant = &all[usize::from(number)];
            LiveVariant { number, global: variant.algorithm.clone(), local: variant.local.clone() }
        });
        live.collect()
    }

    /// The largest error of wall clocks, if limits are shared.
    pub(crate) fn clock_error_ns(&self) -> Option<u64> {
        self.sharing.as_ref().map(|allocations| allocations.margin_ns)
    }

    /// The limits that a node must remember over a restart.
    pub(crate) fn schedule(&self) -> Vec<Scheduled> {
        self.active.iter().map(Active::scheduled).chain(self.retired.iter().cloned()).collect()
    }

    /// The slots that the journal must record now; each is returned once.
    pub(crate) fn take_unwritten(&mut self) -> Unwritten {
        std::mem::take(&mut self.unwritten)
    }

    /// A cell of which nothing is known owes at least as much as `state` did under `written`. An earlier
    /// process wrote this debt, which a crash before it forgot.
    pub(crate) fn learn_forgotten(&mut self, slot: u32, written: &Algorithm, state: &[u64], now: Now) {
        let live = self.slots[slot as usize].variants.iter_mut().filter(|variant| variant.ended.is_none());
        for variant in live {
            let most = variant.local.most();
            let known = most.convert_sometime(written, state, now);
            variant.forgotten = larger(most, [State::Inline(variant.forgotten), known], now);
        }
    }

    /// The wall clock was wrong when the node began, and the steady clock with it. The crash was at another
    /// time; and if the clocks were ahead, less has come back since.
    pub(crate) fn correct_start(&mut self, corrected_ns: i64, now: Now) {
        self.is_dated = true;
        self.reopen(now);
        if let Some(crashed) = &mut self.after_crash {
            crashed.wall_ns = crashed.wall_ns.saturating_add_signed(corrected_ns);
        }
        let by_ns = corrected_ns.min(0).unsigned_abs();
        for variant in self.slots.iter_mut().flat_map(|slot| &mut slot.variants) {
            let most = variant.local.most();
            if most.has_rate()
                && by_ns > 0
                && variant.forgotten != [0, 0]
                && let State::Inline(state) = most.later_than_said(&variant.forgotten, by_ns, now)
            {
                variant.forgotten = state;
            }
        }
    }

    /// As [`Catalogue::forgotten`].
    pub(crate) fn forgotten(&self, key: VariantKey) -> (&Algorithm, Inline) {
        let variant = &self.slots[key.slot as usize].variants[usize::from(key.variant)];
        (variant.local.most(), variant.forgotten)
    }

    /// Remembers the limits that are not in force any more until their cells are surely idle. `kept` are in
    /// force.
    fn retire(&mut self, kept: &BTreeSet<LimitId>, now: Now) {
        let gone = self.active.iter().map(|active| Scheduled {
            limit: active.limit.clone(),
            until_ns: Some(active.until_ns.map_or(now.wall_ns, |until| until.min(now.wall_ns))),
        });
        let all: Vec<Scheduled> = self.retired.drain(..).chain(gone).collect();
        self.retired = all
            .into_iter()
            .filter(|old| !kept.contains(&old.limit.id))
            .filter(|old| {
                let idle_ns = old.until_ns.unwrap_or(0).saturating_add(old.limit.horizon_ns());
                !self.is_dated || now.wall_ns < idle_ns
            })
            .collect();
    }

    /// The limits in the catalogue; each says whether it is kept in the journal.
    pub(crate) fn active(&self) -> &[Active] {
        &self.active
    }

    /// Whether the limit has been in force since the start, so that its cells are in memory.
    pub(crate) fn knows(&self, id: LimitId) -> bool {
        let slot = self.by_id.get(&id);
        slot.is_some_and(|slot| !self.slots[*slot as usize].variants.is_empty())
    }

    /// Checks everything that could go wrong, before anything is changed.
    pub(crate) fn refuse(&self, limits: &[Limit]) -> Result<(), CatalogueFault> {
        let mut names = BTreeSet::new();
        let mut fresh = 0;
        for limit in limits {
            if !names.insert(limit.path()) {
                return Err(CatalogueFault::Twice(limit.path()));
            }
            let variants = (1 + limit.overrides.len()) * limit.variants_each();
            if variants > VARIANTS_MAX {
                return Err(CatalogueFault::TooManyVariants(limit.path()));
            }
            match self.by_id.get(&limit.id) {
                None => fresh += 1,
                Some(slot) => {
                    let had = self.slots[*slot as usize].variants.len();
                    if had + variants > VARIANTS_MAX {
                        return Err(CatalogueFault::VariantsUsedUp(limit.path()));
                    }
                }
            }
        }
        // The first slot is no limit.
        if self.slots.len() - 1 + fresh > LIMITS_MAX {
            return Err(CatalogueFault::TooManyLimits);
        }
        Ok(())
    }

    fn is_durable(&self, limit: &Limit) -> bool {
        self.durable && limit.is_durable()
    }

    fn slot(&mut self, limit: &Limit) -> Result<u32, CatalogueFault> {
        if let Some(slot) = self.by_id.get(&limit.id) {
            return Ok(*slot);
        }
        if self.slots.len() > LIMITS_MAX {
            return Err(CatalogueFault::TooManyLimits);
        }
        let slot = self.slots.len() as u32;
        // Among regions, a limit may come and go with versions that a crash forgot; and a bucket may have
        // been unjournalled before.
        let journalled = self.is_durable(limit) && !limit.algorithm.has_rate();
        let was_served_before = self.sharing.is_some() && !journalled;
        self.slots.push(Slot::new(limit.id, was_served_before));
        self.by_id.insert(limit.id, slot);
        Ok(slot)
    }

    /// Puts a limit in force. It keeps its variants if its algorithms and shares are unchanged.
    fn activate(&mut self, scheduled: Scheduled, now: Now) -> Result<Active, CatalogueFault> {
        let Scheduled { limit, until_ns } = scheduled;
        let slot = self.slot(&limit)?;
        self.slots[slot as usize].prefer(Preference::new(&limit.sharing));
        let durable = self.is_durable(&limit);
        let shares = self.shares_of(&limit, now);
        let live = self.slots[slot as usize].live();
        let variants = if self.slots[slot as usize].are_as_wanted(&live, &limit, shares.as_ref()) {
            live
        } else {
            self.begin_variants(slot, &live, &limit, shares.as_ref(), now)?
        };
        let has_store = self.sharing.as_ref().is_some_and(|allocations| allocations.guard.is_some());
        let of_slot = &mut self.slots[slot as usize];
        if durable && !of_slot.durable {
            self.unwritten.kept.push(slot);
        }
        of_slot.durable = durable;
        let ends = |number: &&u16| of_slot.variants[usize::from(**number)].until_ns.is_some();
        Ok(Active {
            until_ns,
            durable,
            live: None,
            slot,
            tagger: Tagger::new(&self.key, limit.id),
            variant: variants[0],
            other_variants: variants[1..].to_vec(),
            expiring: variants.iter().filter(ends).copied().collect(),
            local: of_slot.variants[usize::from(variants[0])].local.clone(),
            closes: has_store && limit.spec.on_store_loss == OnStoreLoss::Closed,
            opened: Arc::clone(&of_slot.opened),
            overdrawn: Arc::clone(&of_slot.overdrawn),
            holds: Arc::clone(&of_slot.holds),
            limit,
        })
    }

    /// Begins new variants of a limit instead of `live`, and returns them. All variants begin anew, so that
    /// the time of the change is known for every cell.
    fn begin_variants(
        &mut self,
        slot: u32,
        live: &[u16],
        limit: &Limit,
        shares: Option<&Arc<Shares>>,
        now: Now,
    ) -> Result<Vec<u16>, CatalogueFault> {
        let durable = self.is_durable(limit);
        let Slot { variants: all, was_served_before, .. } = &mut self.slots[slot as usize];
        let wanted = limit.variants();
        if all.len() + wanted.len() > VARIANTS_MAX {
            return Err(CatalogueFault::VariantsUsedUp(limit.path()));
        }
        let may_be_spent = *was_served_before || (self.sharing.is_some() && !durable);
        let spent = self.after_crash.filter(|_| may_be_spent);
        let generation = all.iter().map(|variant| variant.generation).max().map_or(1, |last| last + 1);
        let begun: Vec<u16> = (all.len()..all.len() + wanted.len()).map(|number| number as u16).collect();
        for variant in wanted {
            let role = role_of(limit, &variant);
            let LimitVariant { algorithm, whose, until_ns, .. } = variant;
            let (algorithm, whose) = (as_written(algorithm.into_owned()), whose.to_vec());
            let local = localise(&algorithm, shares);
            let before = live.iter().map(|number| &all[usize::from(*number)]);
            let forgotten = forgotten_by(&local, before, spent, now);
            let (began, ended) = (now, None);
            all.push(Variant {
                algorithm,
                local,
                forgotten,
                began,
                whose,
                role,
                ended,
                until_ns,
                generation,
            });
        }
        if limit.algorithm.has_rate() {
            if is_slowed(all, live, &begun) && loses_what_came_back() {
                self.unwritten.slowed.push(limit.id);
            }
            if self.durable {
                self.unwritten.note_new_variants(slot, durable, all, live, &begun);
            }
        }
        for number in live {
            all[usize::from(*number)].ended = Some(now);
        }
        Ok(begun)
    }
}

impl Slot {
    /// The variants that have not been replaced.
    fn live(&self) -> Vec<u16> {
        let all = 0..self.variants.len() as u16;
        all.filter(|number| self.variants[usize::from(*number)].ended.is_none()).collect()
    }

    /// Whether the live variants are those that the limit needs with these shares.
    fn are_as_wanted(&self, live: &[u16], limit: &Limit, shares: Option<&Arc<Shares>>) -> bool {
        let wanted = limit.variants();
        let is_same = |(number, wanted): (&u16, &LimitVariant<'_>)| {
            let variant = &self.variants[usize::from(*number)];
            variant.algorithm == *wanted.algorithm
                && variant.until_ns == wanted.until_ns
                && variant.whose == wanted.whose
                && variant.role == role_of(limit, wanted)
                && variant.local.is_of(shares)
        };
        live.len() == wanted.len() && live.iter().zip(&wanted).all(is_same)
    }

    fn prefer(&mut self, preference: Preference) {
        if *self.preference != preference {
            self.preference = Arc::new(preference);
        }
    }
}

/// The role of the cells of a variant, if classes have cells of their own.
fn role_of(limit: &Limit, variant: &LimitVariant<'_>) -> Option<Box<str>> {
    Some(limit.classes.as_ref()?.role_name(variant.role?).into())
}

/// Whether a limit's rate is lower from now on. The variant of an earlier process, or of an earlier limit of
/// this name, is not known, and counts as faster.
fn is_slowed(all: &[Variant], live: &[u16], begun: &[u16]) -> bool {
    let of = |variants: &[u16]| fastest(variants.iter().map(|number| &all[usize::from(*number)]));
    of(begun).is_some_and(|new| of(live).is_none_or(|old| new.is_slower(old)))
}

/// Units that came back by a higher rate are not known later, so charges from then are not given back.
fn loses_what_came_back() -> bool {
    !mutated(Mutation::RefundAfterSlowing)
}

/// Units spent under earlier variants of a bucket count until they have drained by those variants.
fn drains_by_earlier_variants(limit: &Limit) -> bool {
    limit.algorithm.has_rate() && !mutated(Mutation::DrainAsOfNow)
}

/// A variant counts as its limit is written: it carries debts or does not.
fn as_written(algorithm: Algorithm) -> Algorithm {
    if mutated(Mutation::DebtEndsWithWindow) { algorithm.carrying(false) } else { algorithm }
}

/// The name by which operators know a limit: its domain and its name.
type LimitName<'a> = (&'a str, &'a str);

fn name(limit: &Limit) -> LimitName<'_> {
    (&limit.spec.domain, &limit.spec.name)
}

/// Groups everything by its limit's name, in the original order within a name.
fn by_name<T>(all: &[T], limit: impl Fn(&T) -> &Limit) -> BTreeMap<LimitName<'_>, Vec<&T>> {
    let mut named: BTreeMap<LimitName<'_>, Vec<&T>> = BTreeMap::new();
    for one in all {
        named.entry(name(limit(one))).or_default().push(one);
    }
    named
}

/// Everything that has the name of `limit`.
fn all_named<'a, T>(all: &'a BTreeMap<LimitName<'a>, Vec<&'a T>>, limit: &'a Limit) -> &'a [&'a T] {
    all.get(&name(limit)).map_or(&[], Vec::as_slice)
}

fn ids<'a>(limits: impl Iterator<Item = &'a Limit>) -> BTreeSet<LimitId> {
    limits.map(|limit| limit.id).collect()
}

/// Limits with this name and other shapes that were removed recently, back in force until nothing spent under
/// them can be spent again. So nobody gains units by removing a limit first.
fn unfinished(limit: &Limit, retired: &[&Scheduled], now: Now) -> Vec<Scheduled> {
    let mut back: Vec<Scheduled> = Vec::new();
    for old in retired.iter().filter(|old| old.limit.id != limit.id) {
        let Some(removed_ns) = old.until_ns else { continue };
        let ago_ns = now.wall_ns.saturating_sub(removed_ns);
        let removed = Now { steady_ns: now.steady_ns.saturating_sub(ago_ns), wall_ns: removed_ns };
        let at_ns = old.succession_at(removed);
        if at_ns <= now.wall_ns {
            continue;
        }
        match back.iter_mut().find(|other| other.limit.id == old.limit.id) {
            Some(other) => other.until_ns = other.until_ns.max(Some(at_ns)),
            None => back.push(Scheduled { limit: old.limit.clone(), until_ns: Some(at_ns) }),
        }
    }
    back
}

impl Unwritten {
    /// A bucket was removed. If it is `durable`, the journal has its cells.
    fn removed(&mut self, slot: u32, durable: bool) {
        if !durable && is_overdraft_kept() {
            self.kept.push(slot);
        }
        self.forgotten.push(slot);
    }

    /// A bucket has the new variants `begun` instead of `live`.
    fn note_new_variants(&mut self, slot: u32, durable: bool, all: &[Variant], live: &[u16], begun: &[u16]) {
        let most = |number: &u16| all[usize::from(*number)].local.most();
        let pairs = || begun.iter().zip(live);
        let is_slowed = begun.len() != live.len() || pairs().any(|(new, old)| most(new).is_slower(most(old)));
        if !live.is_empty() && !durable {
            self.overdrawn.push(slot);
        } else if !live.is_empty() && is_slowed && is_debt_rewritten() {
            self.kept.push(slot);
        }
        if begun.iter().any(|number| all[usize::from(*number)].forgotten != [0, 0]) {
            self.forgotten.push(slot);
        }
    }
}

/// The debt of an unknown cell when a new variant begins. The cell owes as much as under the variants before,
/// and as much as if all had been spent at the crash that forgot the cell, `spent`.
///
/// A known cell is carried over from variant to variant, so its debt drains by the variants in between. The
/// cell here is such a cell, wholly spent. Hence it owes at least what any forgotten cell owes, as long as no
/// cell owed more at the crash than the variant allowed then. Cells that owed more are on the disk
/// (`Unwritten`).
fn forgotten_by<'n>(
    local: &Local,
    before: impl Iterator<Item = &'n Variant>,
    spent: Option<Now>,
    now: Now,
) -> Inline {
    let most = local.most();
    if !most.has_rate() {
        return [0, 0];
    }
    let carried = before.map(|variant| most.convert(variant.local.most(), &variant.forgotten, now));
    larger(most, carried.chain(spent.map(|then| most.spent_at(then, 0))), now)
}

/// The largest of some states of a bucket; zeros if none owes anything.
fn larger(meter: &Algorithm, states: impl IntoIterator<Item = State>, now: Now) -> Inline {
    let mut largest = [0, 0];
    for state in states {
        if let State::Inline(state) = state
            && !meter.is_idle(&state, now)
            && meter.covers(&state, &largest, now)
        {
            largest = state;
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
