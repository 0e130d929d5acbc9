//! One request from one thread: finds the limits and the cells, decides, and charges all or nothing.

mod answer;
mod charge;
mod classed;
mod elsewhere;
mod give_back;
mod held;
mod hit;
mod lease;
mod overdraw;
mod probe;
mod recorded;
mod soft;

use std::sync::{Arc, MutexGuard};

use acequia_limits::{Algorithm, CellTag, Descriptor, Now, Reason, Request, algorithm::State};
use acequia_rights::mutation::{Mutation, mutated};
use smallvec::SmallVec;

pub(crate) use self::lease::{is_set_apart, spent_for_ns};
pub use self::{
    answer::{Answer, Charged, IdReused, LateCost, LimitAnswer, Outcome},
    elsewhere::{CellCount, CountedCell, CountedRequest},
    soft::Warning,
};
use self::{
    answer::{decide, decide_one},
    hit::{Called, CellSource, Hit},
};
use crate::{
    Active, Catalogue, Node,
    catalogue::{VariantKey, local::Local},
    cell::{
        CellKey,
        account::{Account, CellContext},
        locked_cell::LockedCell,
        overflow::Overflow,
        shard::{Cells, NewCell},
    },
    journal::{HeapCell, forgotten::MaybeForgotten},
    journal_tag,
    settings::SETTINGS,
    shard_of,
};

/// How many limits may match a request before memory is allocated.
const HITS_INLINE: usize = 4;
/// The most descriptors in a request: their set is kept in one word.
pub const DESCRIPTORS_MAX: usize = 64;

/// How a request is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Whether to charge what is allowed. A peek never changes anything.
    pub charge: bool,
    /// Whether the caller can wait for a leaky bucket's delay. A caller that cannot is denied instead, unless
    /// the limit says otherwise.
    pub can_wait: bool,
    /// Whether the same request was denied a moment ago, so that this one is not additional demand.
    pub is_again: bool,
    /// Whether the caller will spend the charged units later: a lease.
    pub holds: bool,
    /// Whether the charge may be forwarded to another node of the region.
    pub forwarding: Forwarding,
    /// What is recorded though it does not fit.
    pub overdraft: Overdraft,
    /// Whether a hold was settled for the request's cost ([`Asker::settle_hold`]): limits with holds do not
    /// count the cost again.
    pub is_settled: bool,
}

/// What a request records on limits that have too little left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdraft {
    /// Nothing, while the request is denied: it may wait, and is asked again.
    Later,
    /// The hits of limits that say `charge: always`.
    Always,
    /// Every hit: the cost was spent.
    Spent,
}

/// Whether a request's charge may be forwarded to the node of its region that has the units
/// ([`crate::Node::forward_charge`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// The request waits for nobody, or the charge must be known here.
    Never,
    /// If the request is denied and may wait, the caller forwards its charge.
    May,
    /// The charge was forwarded. The request has waited since this time: steady clock.
    Since(u64),
}

impl Forwarding {
    /// When the request began to wait: steady clock; `None` if it does not wait for forwards. Only a remote
    /// charge that was asked for since then may pass it: the request was there when the other node charged.
    pub(crate) fn waits_since(self) -> Option<u64> {
        match self {
            _ if mutated(Mutation::ForwardUsedByAnybody) => Some(0),
            Self::Since(since_ns) => Some(since_ns),
            Self::Never | Self::May => None,
        }
    }
}

impl Ask {
    /// Charges, and can wait.
    pub const CHECK: Self = Self {
        charge: true,
        can_wait: true,
        is_again: false,
        holds: false,
        forwarding: Forwarding::Never,
        overdraft: Overdraft::Always,
        is_settled: false,
    };
    /// Charges, and cannot wait.
    pub const CHECK_NOW: Self = Self { can_wait: false, ..Self::CHECK };
    /// Peeks.
    pub const PEEK: Self = Self { charge: false, ..Self::CHECK };
    /// Records what was spent, on every limit.
    pub const REPORT: Self = Self { overdraft: Overdraft::Spent, ..Self::CHECK };

    /// Marks a request that was denied a moment ago: see [`Node::patience_ns`].
    #[must_use]
    pub const fn again(self) -> Self {
        Self { is_again: true, ..self }
    }

    /// Says what is recorded though it does not fit.
    #[must_use]
    pub const fn overdraft(self, overdraft: Overdraft) -> Self {
        Self { overdraft, ..self }
    }

    /// Says whether the request's charge may be forwarded.
    #[must_use]
    pub const fn forwarding(self, forwarding: Forwarding) -> Self {
        Self { forwarding, ..self }
    }

    /// Whether the request counts as demand.
    const fn is_demand(self) -> bool {
        self.charge && !self.is_again
    }
}

/// Asks a node, for one thread. An asker keeps that thread's view of the catalogue, so that threads share
/// nothing but the cells in which they meet.
#[derive(Debug)]
pub struct Asker {
    node: Arc<Node>,
    catalogue: Arc<Catalogue>,
    /// Kept between requests for their memory.
    hits: Vec<Hit>,
    answer: Answer,
    /// The time by which the last request was decided: no earlier than what was forgotten.
    went_by: Now,
    /// Whether another clock had agreed with the wall clock when the wall clock was read.
    may_decide: bool,
    /// The batch in which the hold goes to the disk that was settled last.
    settled_batch: u64,
}

impl Asker {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        let catalogue = node.catalogue();
        Self {
            node,
            catalogue,
            hits: Vec::new(),
            answer: Answer::default(),
            went_by: Now::at(0),
            may_decide: false,
            settled_batch: 0,
        }
    }

    /// The limits to which the indexes of the last answer refer.
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// The last answer, and the limits to which its indexes refer.
    pub fn last(&self) -> (&Answer, &Arc<Catalogue>) {
        (&self.answer, &self.catalogue)
    }

    /// Denies the last request, if no limit matches it
    /// ([`Reason::NoMatch`](acequia_limits::Reason::NoMatch)).
    pub fn deny_unmatched(&mut self) {
        self.answer.allowed = false;
        self.answer.retry_after_ns = acequia_limits::verdict::NEVER;
    }

    /// Tells the caller that was denied last to come back `ns` nanoseconds later.
    pub fn ask_later(&mut self, ns: u64) {
        self.answer.retry_after_ns = self.answer.retry_after_ns.saturating_add(ns);
    }

    /// Decides whether the request may pass. At most [`DESCRIPTORS_MAX`] descriptors are examined; callers
    /// refuse more.
    #[inline(always)]
    pub fn check(&mut self, request: &Request<'_>, now: Now, ask: Ask) -> &Answer {
        // The check comes before the time is used: the time may be corrected once another clock agrees with
        // the wall clock.
        self.may_decide = self.node.may_decide();
        let now = self.node.not_before(now);
        self.check_at(request, now, ask)
    }

    fn load_catalogue(&mut self) {
        if !self.node.limits.is_latest(&self.catalogue) {
            self.catalogue = self.node.catalogue();
        }
    }

    /// As [`Asker::check`], at a time that the node has already corrected.
    #[inline(always)]
    fn check_at(&mut self, request: &Request<'_>, mut now: Now, ask: Ask) -> &Answer {
        loop {
            self.load_catalogue();
            let may_decide = self.may_decide;
            let check =
                RequestCheck { node: &self.node, catalogue: &self.catalogue, request, now, ask, may_decide };
            match check.answer(&mut self.hits, &mut self.answer) {
                Ok(()) => {
                    self.went_by = now;
                    return &self.answer;
                }
                // Nothing has changed. A newer catalogue must be loaded, or a later time used.
                Err(Stale) => now = self.node.not_behind(now),
            }
        }
    }
}

/// A cell was already carried over to a variant newer than this thread's catalogue or clock.
#[derive(Debug)]
struct Stale;

/// The shards of a request, locked in the order of their numbers.
type Guards<'a> = SmallVec<[(usize, MutexGuard<'a, Cells>); HITS_INLINE]>;

/// One request.
struct RequestCheck<'a, 'r> {
    node: &'a Node,
    catalogue: &'a Catalogue,
    request: &'a Request<'r>,
    now: Now,
    ask: Ask,
    may_decide: bool,
}

impl<'a> RequestCheck<'a, '_> {
    #[inline(always)]
    fn answer(&self, hits: &mut Vec<Hit>, answer: &mut Answer) -> Result<(), Stale> {
        answer.unmatched = self.gather(self.request, hits);
        answer.limits.clear();
        answer.after_batch = 0;
        answer.charge = None;
        match hits.len() {
            0 => {
                decide(answer, self.catalogue);
                // The node has not received any limit yet, so nobody knows which limits there are.
                if self.catalogue.limits.is_empty()
                    && let Some(reason) = self.node.owns_nothing()
                {
                    answer.allowed = false;
                    answer.reason = reason;
                    answer.retry_after_ns = self.node.ask_again_ns();
                }
            }
            _ if !self.may_decide => {
                self.deny_undecided(hits, answer);
                decide(answer, self.catalogue);
            }
            1 if !hits[0].exempt => self.answer_one(&mut hits[0], answer)?,
            _ => self.answer_all(hits, answer)?,
        }
        Ok(())
    }

    /// The plain case: one cell, one lock.
    #[inline]
    fn answer_one(&self, hit: &mut Hit, answer: &mut Answer) -> Result<(), Stale> {
        let shard = shard_of(hit.tag);
        let mut cells = self.node.shards[shard].lock();
        if !self.find(hit, &mut cells)? && self.ask.charge {
            self.make_room(std::slice::from_mut(hit), shard, 1, &mut cells);
        }
        let mut shared = self.lock_shared(std::slice::from_ref(hit))?;
        let state = self.probe(hit, 0, &mut cells, shared.as_deref_mut(), answer);
        decide_one(answer, self.catalogue);
        self.use_remote_charges(answer);
        let hit = &*hit;
        if self.is_due(hit, answer, 0) {
            let limit = &mut answer.limits[0];
            let left = limit.verdict.remaining;
            limit.is_charged = true;
            answer.after_batch = self.charge(hit, hit.units, state, left, &mut cells, shared.as_deref_mut());
            if let Some(soft) = &self.limit(hit).limit.soft {
                self.note_use(hit, soft, left, &mut cells);
            }
        } else if self.is_overdrawn(hit, answer, 0) {
            answer.after_batch =
                self.overdraw(hit, state, &mut cells, shared.as_deref_mut(), &mut answer.limits[0]);
            decide_one(answer, self.catalogue);
        } else {
            self.leave(hit, state.as_ref(), &cells, &mut answer.limits[0]);
            if answer.limits[0].reason == Reason::Open {
                self.pass_open(hit, answer);
            }
        }
        if self.node.is_shared() {
            if hit.account != Called::Quiet {
                self.attend(hit, &answer.limits[0], &mut cells);
            }
            if self.node.store.outages.any() {
                self.count_guarded(hit, &answer.limits[0]);
            }
        }
        Ok(())
    }

    /// Calls for a rebalance if a cell runs low or has denied something.
    fn attend(&self, hit: &Hit, limit: &LimitAnswer, cells: &mut Cells) {
        let active = self.limit(hit);
        // A limit that only watches moves no units, and neither does a peek. What callers name is a part of what each
        // node has by the standing formula: it is never lent.
        let moves = active.limit.spec.mode.denies() && !hit.is_named();
        if !self.ask.is_demand() || !hit.charges() || hit.exempt || !moves {
            return;
        }
        // The node that owns the cell calls instead.
        if hit.forwarded_to.is_some() {
            return;
        }
        let calls = match hit.place {
            CellSource::At(_) if hit.account != Called::None => hit.account == Called::Calls,
            CellSource::At(place) => {
                self.becomes_active(hit, limit) && self.open_account(hit, Some(place), limit, cells)
            }
            CellSource::Absent => {
                self.becomes_active(hit, limit) && {
                    let place = cells.table.find(hit.tag, active.slot);
                    self.open_account(hit, place, limit, cells)
                }
            }
            CellSource::Shared => false,
        };
        if calls {
            // The tag in the journal, by which a restart finds the cell.
            cells.attend(CellKey { slot: active.slot, tag: journal_tag(hit.tag) });
            self.node.call(shard_of(hit.tag));
        }
    }

    /// Whether a cell without an account needs one: it denied what others may have, or half of the own part
    /// is used. If the region has a pool, the account comes one unit later: at exactly half, a call to the
    /// pool would not pay.
    #[inline]
    fn becomes_active(&self, hit: &Hit, limit: &LimitAnswer) -> bool {
        if limit.verdict.allowed {
            let half = self.algorithm(hit).budget() / 2;
            limit.verdict.remaining < half + u64::from(self.node.leases.is_none())
        } else {
            // The others hear of a debt, however large the report was.
            self.is_short(limit.reason) || limit.late.owed > 0
        }
    }

    #[cold]
    fn open_account(&self, hit: &Hit, place: Option<usize>, limit: &LimitAnswer, cells: &mut Cells) -> bool {
        let context = self.context(hit);
        let place = match place {
            Some(place) => place,
            // The cell was denied before it was ever charged, so there is room; otherwise it would be in a
            // shared cell. If any cell is shared, this one may owe something there.
            None if hit.place == CellSource::Absent
                && cells.table.has_room(1)
                && !self.node.overflow.any() =>
            {
                let active = self.limit(hit);
                let algorithm = self.algorithm(hit);
                let cell = NewCell::new(self.initial(hit), algorithm, active.durable);
                cells.insert(hit.tag, active.slot, hit.variant, cell)
            }
            None => return false,
        };
        let mut account = Box::new(Account::new(&context));
        let needed = hit.units.saturating_add(hit.leaves(account.algorithm.budget()));
        account.offer(hit.units, needed, &limit.verdict, self.now);
        account.note_overdrawn(limit.late.owed);
        account.flag();
        cells.share(place, account);
        true
    }

    fn answer_all(&self, hits: &mut Vec<Hit>, answer: &mut Answer) -> Result<(), Stale> {
        if hits.iter().any(Hit::is_remainder) {
            // Remainders come last, when it is known what the classes' own cells lack.
            hits.sort_by_key(Hit::is_remainder);
            return self.answer_each::<true>(hits, answer);
        }
        self.answer_each::<false>(hits, answer)
    }

    /// Answers several hits. `REMAINDERS`: whether any hit counts only if another hit has too little.
    fn answer_each<const REMAINDERS: bool>(
        &self,
        hits: &mut Vec<Hit>,
        answer: &mut Answer,
    ) -> Result<(), Stale> {
        let mut guards = self.lock_shards(hits);
        self.locate(hits, &mut guards)?;
        let mut shared = self.lock_shared(hits)?;
        let mut states: SmallVec<[Option<State>; HITS_INLINE]> = SmallVec::new();
        let mut number = 0;
        while number < hits.len() {
            let (earlier, rest) = hits.split_at_mut(number);
            let hit = &mut rest[0];
            if REMAINDERS && hit.is_remainder() && !hit.exempt && !self.is_lacked(hit, earlier, answer) {
                hits.remove(number);
                continue;
            }
            number += 1;
            if hit.exempt {
                answer.limits.push(self.exempt(hit));
                states.push(None);
            } else {
                let cells = cells_of(&mut guards, hit.tag);
                let before = self.before(hit, earlier);
                states.push(self.probe(hit, before, cells, shared.as_deref_mut(), answer));
            }
        }
        if REMAINDERS && hits.last().is_some_and(Hit::is_remainder) {
            self.fall_back(hits, &mut states, &mut guards, answer);
        }
        decide(answer, self.catalogue);
        self.use_remote_charges(answer);
        let mut overdrawn = false;
        for (number, (hit, state)) in hits.iter().zip(states).enumerate() {
            if self.is_due(hit, answer, number) {
                let left = answer.limits[number].verdict.remaining;
                answer.limits[number].is_charged = true;
                // Adding a cell leaves all other cells in their places.
                let cells = cells_of(&mut guards, hit.tag);
                let batch = self.charge(hit, hit.units, state, left, cells, shared.as_deref_mut());
                answer.after_batch = answer.after_batch.max(batch);
                if let Some(soft) = &self.limit(hit).limit.soft {
                    self.note_use(hit, soft, left, cells_of(&mut guards, hit.tag));
                }
            } else if self.is_overdrawn(hit, answer, number) {
                let cells = cells_of(&mut guards, hit.tag);
                let limit = &mut answer.limits[number];
                let batch = self.overdraw(hit, state, cells, shared.as_deref_mut(), limit);
                answer.after_batch = answer.after_batch.max(batch);
                overdrawn = true;
            } else if !hit.exempt {
                let cells = cells_of(&mut guards, hit.tag);
                self.leave(hit, state.as_ref(), cells, &mut answer.limits[number]);
                if answer.limits[number].reason == Reason::Open {
                    self.pass_open(hit, answer);
                }
            }
        }
        if overdrawn {
            // What is owed changes when the request fits again.
            decide(answer, self.catalogue);
        }
        if self.node.is_shared() {
            for (hit, limit) in hits.iter().zip(&answer.limits) {
                if !hit.exempt && hit.account != Called::Quiet {
                    self.attend(hit, limit, cells_of(&mut guards, hit.tag));
                }
            }
            if self.node.store.outages.any() {
                hits.iter().zip(&answer.limits).for_each(|(hit, limit)| self.count_guarded(hit, limit));
            }
        }
        Ok(())
    }

    fn lock_shards(&self, hits: &[Hit]) -> Guards<'a> {
        let mut shards: SmallVec<[usize; HITS_INLINE]> =
            hits.iter().filter(|hit| !hit.exempt).map(|hit| shard_of(hit.tag)).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| (shard, self.node.shards[shard].lock())).collect()
    }

    /// The shared cells, locked, if one of these hits may be in them.
    #[inline]
    fn lock_shared(&self, hits: &[Hit]) -> Result<Option<MutexGuard<'a, Overflow>>, Stale> {
        let is_new = |hit: &Hit| !hit.exempt && !matches!(hit.place, CellSource::At(_));
        if !hits.iter().any(is_new) {
            return Ok(None);
        }
        let crowded = || self.node.overflow.any();
        let is_shared = hits.iter().any(|hit| hit.place == CellSource::Shared) || crowded();
        let shared = if is_shared { Some(self.lock_overflow(hits)?) } else { None };
        // Since the hits were looked up, a thread with a later clock may have dropped the shared cells.
        if self.node.is_behind(self.now) { Err(Stale) } else { Ok(shared) }
    }

    /// The shared cells, locked. Fails if they were carried over to a variant that this thread does not know,
    /// or to the variant after an override that has not ended by this thread's clock.
    #[cold]
    fn lock_overflow(&self, hits: &[Hit]) -> Result<MutexGuard<'a, Overflow>, Stale> {
        let shared = self.node.overflow.lock();
        let left = Now { wall_ns: self.node.wall_high_ns(), ..self.now };
        let has_ended = |hit: &Hit| self.catalogue.is_over(self.limit(hit).slot, hit.variant, left);
        if !self.node.limits.is_latest(self.catalogue) || hits.iter().any(has_ended) {
            return Err(Stale);
        }
        Ok(shared)
    }

    /// Finds each hit's cell, and makes room for the missing cells.
    fn locate(&self, hits: &mut [Hit], guards: &mut Guards<'_>) -> Result<(), Stale> {
        let mut absent: SmallVec<[usize; HITS_INLINE]> = SmallVec::new();
        for hit in hits.iter_mut().filter(|hit| !hit.exempt) {
            if !self.find(hit, cells_of(guards, hit.tag))? {
                absent.push(shard_of(hit.tag));
            }
        }
        if self.ask.charge && !absent.is_empty() {
            for (shard, cells) in guards.iter_mut() {
                if absent.contains(shard) {
                    // Cells that exist may be idle, and may be dropped to make room for the others.
                    let all = |hit: &&Hit| !hit.exempt && shard_of(hit.tag) == *shard;
                    let more = hits.iter().filter(all).count();
                    self.make_room(hits, *shard, more, cells);
                }
            }
        }
        Ok(())
    }

    /// Finds a hit's cell and brings it up to date; says whether there is one.
    #[inline]
    fn find(&self, hit: &mut Hit, cells: &mut Cells) -> Result<bool, Stale> {
        match cells.table.find(hit.tag, self.limit(hit).slot) {
            Some(place) => {
                self.refresh(hit, cells, place)?;
                hit.place = CellSource::At(place);
                Ok(true)
            }
            // A thread with a later clock may just have dropped the cell.
            None if self.node.is_behind(self.now) => Err(Stale),
            None => Ok(false),
        }
    }

    /// Makes room in a shard for the missing cells of these hits. Cells may move, and idle ones may be
    /// dropped, so the places of the shard's hits are looked up again.
    fn make_room(&self, hits: &mut [Hit], shard: usize, more: usize, cells: &mut Cells) {
        let (bytes_max, evicted) = (self.node.shard_bytes_max(), cells.evicted);
        let is_here = |hit: &&mut Hit| !hit.exempt && shard_of(hit.tag) == shard;
        let is_crowded = hits.iter_mut().filter(is_here).any(|hit| self.has_its_part(hit, cells, bytes_max));
        // Only `Node::sweep` drops a cell that is in the journal, since the sweep also writes that down.
        let roomy = cells.make_room(more, bytes_max, is_crowded, self.now.steady_ns, |cell, heap| {
            let idle =
                |salt| self.catalogue.is_idle(cell.slot(), cell.variant(), salt, heap.state(cell), self.now);
            let is_over = heap.is_unwritten(cell) && !heap.is_shared(cell) && idle(cell.salt());
            is_over && self.node.is_wall_believed()
        });
        if cells.evicted > evicted {
            self.node.leave_behind(self.now);
        }
        for hit in hits.iter_mut().filter(is_here) {
            hit.place = match cells.table.find(hit.tag, self.limit(hit).slot) {
                Some(place) => CellSource::At(place),
                None if roomy && !self.has_its_part(hit, cells, bytes_max) => CellSource::Absent,
                None => CellSource::Shared,
            };
        }
    }

    /// Whether the hit's limit, or its domain, has so many cells that a new cell must be shared: the rest is
    /// for others.
    fn has_its_part(&self, hit: &Hit, cells: &Cells, bytes_max: usize) -> bool {
        let of = |slot: u32| Some(&self.catalogue.active_of(slot)?.limit.spec.domain);
        let own = self.limit(hit);
        cells.has_its_part(SETTINGS.decide.parts_of_limit, bytes_max, hit.tag, |cell| cell.slot() == own.slot)
            || cells.has_its_part(SETTINGS.decide.parts_of_domain, bytes_max, hit.tag, |cell| {
                cell.slot() == own.slot || of(cell.slot()) == Some(&own.limit.spec.domain)
            })
    }

    /// Brings a cell to its limit's present variant, and to the heap if the limit is journalled.
    #[inline]
    fn refresh(&self, hit: &Hit, cells: &mut Cells, place: usize) -> Result<(), Stale> {
        let active = self.limit(hit);
        let cell = cells.table.at(place);
        if !cell.is_under(hit.variant) && follows_its_limit(cells, place) {
            let variant = cell.variant();
            if self.catalogue.local(active.slot, variant).is_none() {
                return Err(Stale);
            }
            if variant == hit.variant {
                // The cell's guessed variant was right.
                cells.table.at_mut(place).set_variant(variant);
            } else if self.now.wall_ns < self.node.wall_high_ns() {
                // A thread with a later clock may have brought the cell to its variant: by that clock, an
                // override has ended that has not ended here.
                return Err(Stale);
            } else if let Some(cell) = cells.shared_mut(place) {
                self.node.leave_behind(self.now);
                self.change_variant(hit, variant, cell);
                cells.table.at_mut(place).set_variant(hit.variant);
            } else {
                self.node.leave_behind(self.now);
                let state = cells.state(cells.table.at(place));
                let state = self.carry(hit, variant, state);
                let state = self.not_less_than_forgotten(hit, self.algorithm(hit), state);
                cells.rewrite(place, hit.variant, state);
            }
        }
        if self.node.clock.left.any() {
            self.set_back(hit, place, cells);
        }
        if active.durable && cells.table.at(place).heap_place().is_none() {
            cells.move_to_heap(place);
        }
        Ok(())
    }

    /// Adjusts a cell if the wall clock was set back to before the time that the cell has counted by.
    #[cold]
    fn set_back(&self, hit: &Hit, place: usize, cells: &mut Cells) {
        if self.node.is_shared() {
            return;
        }
        let state = cells.state(cells.table.at(place));
        if let Some(counted) = self.algorithm(hit).after_set_back(state, self.now, Some(hit.tag.salt())) {
            cells.rewrite(place, hit.variant, counted);
        }
    }

    /// Carries a state over to the hit's variant.
    #[cold]
    fn carry(&self, hit: &Hit, from: u16, state: &[u64]) -> State {
        let first = hit.descriptors.trailing_zeros() as usize;
        let descriptor = self.request.descriptors().nth(first).expect("a hit has a descriptor");
        let active = self.limit(hit);
        let is_apart = active.limit.variant_for(&descriptor, self.now.wall_ns).is_apart();
        // A cell that is kept apart never has the variant of an override.
        let whose = if is_apart { Descriptor::new(&[], None) } else { descriptor };
        let key = VariantKey { slot: active.slot, variant: from };
        self.catalogue.carry(key, hit.variant, state, self.now, &whose, hit.tag.salt())
    }

    /// Units that earlier hits of the request take from the cell that this hit shares with them.
    fn before(&self, hit: &Hit, earlier: &[Hit]) -> u64 {
        let slot = self.limit(hit).slot;
        let shares = |h: &&Hit| {
            h.place == CellSource::Shared
                && h.charges()
                && h.variant == hit.variant
                && self.limit(h).slot == slot
        };
        let units = earlier.iter().filter(shares).map(|h| h.units);
        if hit.place == CellSource::Shared { units.fold(0, u64::saturating_add) } else { 0 }
    }

    /// Brings a cell with an account to its limit's present variant.
    #[cold]
    fn change_variant(&self, hit: &Hit, from: u16, cell: &mut HeapCell) {
        let (key, which) = (CellKey { slot: self.limit(hit).slot, tag: hit.tag }, None);
        let locked_cell =
            LockedCell { node: self.node, catalogue: self.catalogue, key, now: self.now, which };
        locked_cell.change_variant(cell, from, hit.variant, &self.context(hit));
    }

    /// The state of a cell that was never charged since the start.
    fn initial(&self, hit: &Hit) -> State {
        self.node.initial(&self.maybe_forgotten(hit, self.algorithm(hit)))
    }

    /// The hit's cell, whose state a crash may have forgotten.
    fn maybe_forgotten<'c>(&'c self, hit: &Hit, algorithm: &'c Algorithm) -> MaybeForgotten<'c> {
        let key = VariantKey { slot: self.limit(hit).slot, variant: hit.variant };
        MaybeForgotten { catalogue: self.catalogue, key, algorithm, salt: hit.tag.salt(), now: self.now }
    }

    /// The state of a cell beside one that new cells share: the shared state, and whatever a restart forgot
    /// of the cell itself. The shared cell was made for another cell, which may have had fewer units, or a
    /// window that began after the restart.
    #[cold]
    fn state_beside(&self, hit: &Hit, shared: &HeapCell) -> State {
        let algorithm = self.algorithm(hit);
        let state = match algorithm.is_inline() {
            true => State::Inline([shared.state[0], shared.state[1]]),
            false => State::Heap(shared.state.clone()),
        };
        let state = match counts_in_own_window(hit) {
            true => algorithm.apart(state, self.now, hit.tag.salt()),
            false => state,
        };
        match algorithm {
            // A shared bucket began with the largest debt that its own variant allows, and keeps counting by
            // that variant.
            _ if hit.place == CellSource::Shared && algorithm.has_rate() => state,
            Algorithm::FixedWindow(_) => {
                algorithm.join(self.initial(hit).as_slice(), state.as_slice(), self.now)
            }
            _ => self.not_less_than_forgotten(hit, algorithm, state),
        }
    }

    fn not_less_than_forgotten(&self, hit: &Hit, algorithm: &Algorithm, state: State) -> State {
        self.node.not_less_than_forgotten(&self.maybe_forgotten(hit, algorithm), state)
    }

    /// Whether the cell is presumed to owe something that a restart forgot.
    fn is_forgotten(&self, hit: &Hit) -> bool {
        self.node.is_forgotten(&self.maybe_forgotten(hit, self.algorithm(hit)))
    }

    /// The cell that new cells of the hit's limit share, if it has been charged.
    fn shared_cell<'s>(&self, hit: &Hit, shared: &'s mut Overflow) -> Option<&'s HeapCell> {
        let slot = self.limit(hit).slot;
        let left = Now { wall_ns: self.node.wall_high_ns(), ..self.now };
        let ended = |variant: &u16| {
            self.catalogue.is_over(slot, *variant, self.now)
                && (shared.contains_key(&VariantKey { slot, variant: *variant })
                    || !self.catalogue.is_over(slot, *variant, left))
        };
        if self.limit(hit).expiring.iter().any(ended) {
            self.node.end_overrides(self.catalogue, shared, slot, self.now);
        }
        shared.get(&VariantKey { slot, variant: hit.variant })
    }

    fn limit(&self, hit: &Hit) -> &'a Active {
        &self.catalogue.limits[hit.limit as usize]
    }

    /// The whole limit's algorithm, of all regions together.
    fn global(&self, hit: &Hit) -> &'a Algorithm {
        let own = self.catalogue.global(self.limit(hit).slot, hit.variant);
        own.expect("a catalogue has the variants of its own limits")
    }

    fn context(&self, hit: &Hit) -> CellContext<'a> {
        let which = self.catalogue.which(self.limit(hit).slot, hit.variant);
        CellContext {
            global: self.global(hit),
            local: self.local(self.limit(hit), hit.variant),
            salt: hit.tag.salt(),
            which,
            in_force: true,
        }
    }

    /// The variant as this region enforces it.
    #[inline]
    fn local(&self, active: &'a Active, variant: u16) -> &'a Local {
        if variant == active.variant {
            return &active.local;
        }
        let own = self.catalogue.local(active.slot, variant);
        own.expect("a catalogue has the variants of its own limits")
    }

    /// The algorithm of a cell without loans; for a cell that new cells share, the least.
    #[inline(always)]
    fn algorithm(&self, hit: &Hit) -> &'a Algorithm {
        let local = self.local(self.limit(hit), hit.variant);
        // If a limit has only a few units, a region may have none: then nothing may pass there by the shared
        // cell either.
        match hit.place {
            CellSource::Shared => local.shared_piece(hit.piece),
            _ => local.piece(hit.piece),
        }
    }
}

/// A cell gets the new variant of its limit, even if the cell has loans.
#[inline]
fn follows_its_limit(cells: &Cells, place: usize) -> bool {
    !mutated(Mutation::ReshareWithoutNewVariant) || cells.account(place).is_none()
}

/// A cell beside the one that new cells share counts in its own window.
fn counts_in_own_window(hit: &Hit) -> bool {
    hit.place == CellSource::Absent && !mutated(Mutation::SharedWindowKept)
}

#[inline]
fn cells_of<'g>(guards: &'g mut Guards<'_>, tag: CellTag) -> &'g mut Cells {
    let shard = shard_of(tag);
    let found = guards.iter_mut().find(|(at, _)| *at == shard);
    &mut found.expect("every hit's shard is locked").1
}
