//! One limit's verdict on a hit, and the reason.

use std::sync::atomic::Ordering;

use acequia_limits::{
    Algorithm, Mode, Part, Reason, Verdict,
    algorithm::State,
    limit::{NoWait, OnStoreLoss, WAIT_NS_MAX},
    verdict::NEVER,
};
use acequia_rights::MemberId;

use super::{
    Forwarding, Overdraft, RequestCheck,
    answer::{Answer, LateCost, LimitAnswer, Outcome, denied, is_short},
    classed::ProbedCell,
    hit::{Called, CellSource, Hit},
};
use crate::{
    Active, FORWARD_NS, FORWARD_WAIT_NS,
    cell::{CellKey, account::Account, overflow::Overflow, shard::Cells},
    forwards::{Lack, Owner, RemoteCharge, Source, may_be_forwarded},
    journal::HeapCell,
    journal_tag,
    regions::wire::Whole,
    settings::SETTINGS,
};

/// The verdict on a request that the limit exempts.
const UNLIMITED: Verdict =
    Verdict { allowed: true, remaining: u64::MAX, retry_after_ns: 0, delay_ns: 0, reset_after_ns: 0 };

/// A hit's cell: what it says of the hit by itself.
struct Probed {
    verdict: Verdict,
    /// The reason if the verdict denies.
    over: Reason,
    /// Units of a cell without an account that others may spend until their leases end.
    leased: u64,
    /// The state of a cell that does not exist yet.
    state: Option<State>,
}

/// The limit's verdict on a hit, and how units that are missing may still come.
#[derive(Clone, Copy, Debug)]
struct Judged {
    verdict: Verdict,
    reason: Reason,
    /// How long missing units may still come, in nanoseconds; 0 for not at all.
    expected_wait_ns: u64,
    /// The node of the region that may have the missing units.
    source: Option<Source>,
    /// Whether another node has charged the hit.
    is_forwarded: bool,
}

impl Judged {
    /// A verdict on which no other node has any bearing.
    #[inline]
    const fn here(verdict: Verdict, reason: Reason) -> Self {
        Self { verdict, reason, expected_wait_ns: 0, source: None, is_forwarded: false }
    }
}

impl RequestCheck<'_, '_> {
    /// Adds the limit's answer; returns the state of a cell that does not exist yet. `before`: units that the
    /// request already takes from the same shared cell.
    #[inline]
    pub(super) fn probe(
        &self,
        hit: &mut Hit,
        before: u64,
        cells: &mut Cells,
        shared: Option<&mut Overflow>,
        answer: &mut Answer,
    ) -> Option<State> {
        if self.ask.forwarding != Forwarding::Never && self.node.forwards.has_mates() {
            hit.forwarded_to = self.forwarded_to(hit);
        }
        let mut probed = self.probe_cell(hit, before, cells, shared);
        if self.node.clock.left.any()
            && let Some(over_ns) = self.is_closed_for(hit)
        {
            probed.over = Reason::Clock;
            probed.verdict = denied(probed.verdict, hit.units, over_ns);
        }
        if (probed.leased != 0 || hit.classed.leaves_some()) && hit.account == Called::None {
            self.keep_back(hit, before, &mut probed, cells);
        }
        let judged = if probed.verdict.allowed {
            let (verdict, reason) = self.admit(hit, probed.verdict, cells);
            Judged::here(verdict, reason)
        } else {
            self.refuse(hit, &probed, answer)
        };
        let outcome = match (judged.verdict.allowed, self.limit(hit).limit.spec.mode) {
            (true, _) => Outcome::Allow,
            // The request passes although there is nothing to charge.
            (false, _) if judged.reason == Reason::Open => Outcome::Allow,
            (false, Mode::Shadow) => Outcome::ShadowDeny,
            (false, _) => Outcome::Deny,
        };
        answer.limits.push(self.limit_answer(hit, outcome, judged));
        probed.state
    }

    /// The verdict of a hit's cell.
    #[inline]
    fn probe_cell(
        &self,
        hit: &mut Hit,
        before: u64,
        cells: &mut Cells,
        shared: Option<&mut Overflow>,
    ) -> Probed {
        let (algorithm, salt) = (self.algorithm(hit), hit.tag.salt());
        let CellSource::At(place) = hit.place else { return self.probe_new(hit, before, shared) };
        let mut leased = 0;
        let cell = cells.table.at(place);
        let verdict = match cell.heap_place() {
            None => algorithm.probe(&cell.state, self.now, hit.units, salt),
            Some(at) => {
                let cell = cells.heap_mut(at);
                match cell.account.as_deref_mut() {
                    None => {
                        leased = cell.leased();
                        algorithm.probe(&cell.state, self.now, hit.units, salt)
                    }
                    Some(account) => self.probe_shared(hit, account, &mut cell.state),
                }
            }
        };
        Probed { verdict, over: Reason::OverLimit, leased, state: None }
    }

    /// The verdict of a cell that does not exist yet, or of the cell that new cells share.
    #[inline]
    fn probe_new(&self, hit: &Hit, before: u64, shared: Option<&mut Overflow>) -> Probed {
        let (state, over) = match shared.and_then(|shared| self.shared_cell(hit, shared)) {
            Some(cell) => (self.state_beside(hit, cell), Reason::Overflow),
            None => (self.initial(hit), Reason::OverLimit),
        };
        let units = hit.units.saturating_add(before);
        let verdict = self.algorithm(hit).probe(state.as_slice(), self.now, units, hit.tag.salt());
        Probed { verdict, over, leased: 0, state: Some(state) }
    }

    /// Leaves some of the cell to others. `before`: as in [`RequestCheck::probe`].
    #[cold]
    fn keep_back(&self, hit: &mut Hit, before: u64, probed: &mut Probed, cells: &Cells) {
        let Some(state) = state_of(hit, probed.state.as_ref(), cells) else { return };
        let cell = ProbedCell { algorithm: self.algorithm(hit), state, leased: probed.leased };
        let units = hit.units.saturating_add(before);
        probed.verdict = hit.leave_to_others(&cell, units, probed.verdict, self.now);
    }

    /// What an allowing verdict of the cell comes to: other rules may still deny the hit, or delay it.
    #[inline]
    fn admit(&self, hit: &Hit, verdict: Verdict, cells: &mut Cells) -> (Verdict, Reason) {
        let active = self.limit(hit);
        if hit.place == CellSource::Shared && self.ask.holds {
            // Nobody can hold a lease of the cell that new cells share.
            (denied(verdict, hit.units, SETTINGS.decide.ask_seldom_ns), Reason::Overflow)
        } else if active.closes && self.is_guarded(hit, &verdict) {
            (denied(verdict, hit.units, SETTINGS.decide.lost_retry_ns), Reason::Unavailable)
        } else if self.must_be_held(active) && !self.is_held(hit, cells) {
            (denied(verdict, hit.units, SETTINGS.decide.journal_retry_ns), Reason::Journal)
        } else if verdict.delay_ns > 0 && !self.ask.can_wait && active.limit.no_wait() == NoWait::Deny {
            (denied(verdict, hit.units, verdict.delay_ns), Reason::OverLimit)
        } else if let Some(soft) = &active.limit.soft
            && let Some(slowed) = self.throttle(hit, soft, verdict, cells)
        {
            slowed
        } else {
            (verdict, Reason::WithinLimit)
        }
    }

    /// What a denying verdict of the cell comes to: a remote charge may let the hit pass.
    fn refuse(&self, hit: &mut Hit, probed: &Probed, answer: &mut Answer) -> Judged {
        let is_for_classes = hit.is_kept_back() && hit.class().is_some();
        let over = if is_for_classes { Reason::ClassReserve } else { probed.over };
        let (verdict, reason) = self.why_denied(hit, probed.verdict, over);
        let mut judged = Judged::here(verdict, reason);
        // A peek asks nobody, and no other node has the cell that new cells share.
        if self.may_come(hit, reason) && self.ask.charge && hit.charges() {
            self.expect_units(hit, &mut judged);
        }
        if let Some(remote_charge) = self.remote_charge(hit, reason) {
            answer.remote_charges.push(remote_charge);
            judged.verdict = Verdict { allowed: true, retry_after_ns: 0, delay_ns: 0, ..verdict };
            judged.reason = Reason::WithinLimit;
            judged.is_forwarded = true;
        }
        judged
    }

    /// Says how long units that are missing may still come, and from which node of the region.
    fn expect_units(&self, hit: &Hit, judged: &mut Judged) {
        let wait_ns = hit.expected_wait_ns;
        let mut wait_ns = wait_ns.unwrap_or_else(|| self.node.remote_supply.expected_wait().lasts_ns);
        let mut source = hit.forwarded_to.map(Source::Owner);
        if source.is_none()
            && let Some(mate) = self.mate_without_store(hit)
        {
            (source, wait_ns) = (Some(Source::Mate(mate)), wait_ns.max(FORWARD_WAIT_NS));
        }
        judged.expected_wait_ns = wait_ns;
        judged.source = source.filter(|_| wait_ns > 0);
    }

    /// The answer of a limit that exempts the hit.
    pub(super) fn exempt(&self, hit: &Hit) -> LimitAnswer {
        self.limit_answer(hit, Outcome::Unlimited, Judged::here(UNLIMITED, Reason::Unlimited))
    }

    #[inline]
    fn limit_answer(&self, hit: &Hit, outcome: Outcome, judged: Judged) -> LimitAnswer {
        LimitAnswer {
            limit: hit.limit,
            tag: hit.tag,
            verdict: judged.verdict,
            outcome,
            reason: judged.reason,
            descriptors: hit.descriptors,
            units: hit.units,
            late: LateCost { expected: hit.expected(), ..LateCost::default() },
            budget: hit.number(self.global(hit).budget()),
            expected_wait_ns: judged.expected_wait_ns,
            class: hit.class(),
            is_charged: false,
            forwarded_to: judged.source,
            is_forwarded: judged.is_forwarded,
            variant: hit.variant,
        }
    }

    /// The node of the region that owns the cell, if the charge may be forwarded to that node.
    #[inline]
    fn forwarded_to(&self, hit: &Hit) -> Option<MemberId> {
        let may = hit.charges() && hit.place != CellSource::Shared;
        match self.node.forwards.owner(hit.tag, Some(self.limit(hit)).filter(|_| may), self.now) {
            Owner::Mate(owner) => Some(owner),
            _ => None,
        }
    }

    /// The node of the region that may have the missing units, if the cell's store has an outage or its pool
    /// is empty. The caller has checked that no other node owns the cell. A limit with a rate never counts as
    /// having an empty pool.
    fn mate_without_store(&self, hit: &Hit) -> Option<MemberId> {
        let node = self.node;
        let may = self.ask.forwarding != Forwarding::Never && node.forwards.has_mates() && !self.ask.holds;
        if may && (hit.is_dry || !node.has_pool(hit.tag)) {
            node.forwards.mate(hit.tag, self.limit(hit), hit.units, self.now)
        } else {
            None
        }
    }

    /// A charge that another node has made for a request that waits and lacks units here.
    fn remote_charge(&self, hit: &Hit, reason: Reason) -> Option<RemoteCharge> {
        let since_ns = self.ask.forwarding.waits_since()?;
        let active = self.limit(hit);
        let may = self.ask.charge
            && !self.ask.holds
            && hit.charges()
            && self.may_come(hit, reason)
            && may_be_forwarded(active);
        let lack = Lack {
            key: CellKey { slot: active.slot, tag: journal_tag(hit.tag) },
            whole: Whole::of(self.global(hit)),
            units: hit.units,
            since_ns,
        };
        may.then(|| self.node.forwards.take(&lack, self.now)).flatten()
    }

    /// Uses the remote charges if the request passes; otherwise keeps them for its next attempt.
    #[inline]
    pub(super) fn use_remote_charges(&self, answer: &mut Answer) {
        while let Some(remote_charge) = answer.remote_charges.pop() {
            match answer.allowed {
                true => self.node.forwards.pass(remote_charge),
                false => self.node.forwards.put_back(remote_charge),
            }
        }
    }

    /// How long units may still come by forwarded charges, in nanoseconds: as long as units of other regions
    /// may, from when there were none. A request that has not been forwarded waits only if the owner was not
    /// empty a moment ago. Only the owner knows whether it has units now, so the wait allows for asking it.
    fn forwards_wait_ns(&self, hit: &Hit) -> u64 {
        let key = CellKey { slot: self.limit(hit).slot, tag: journal_tag(hit.tag) };
        let lasts_ns = self.node.remote_supply.expected_wait().lasts_ns.max(FORWARD_NS);
        match self.ask.forwarding {
            Forwarding::Since(since_ns) => {
                since_ns.saturating_add(lasts_ns).saturating_sub(self.now.steady_ns).min(WAIT_NS_MAX)
            }
            _ => self.node.forwards.expects_since(key, self.now).map_or(0, |since_ns| {
                let left_ns = since_ns.saturating_add(lasts_ns).saturating_sub(self.now.steady_ns);
                left_ns.clamp(FORWARD_WAIT_NS, WAIT_NS_MAX)
            }),
        }
    }

    /// Denies without reading any cell, while no other clock has agreed with the wall clock since the start.
    /// By a wrong wall clock a cell's state may mean something else, and windows would be left that have not
    /// come yet. A node that lacks its limits' variants denies likewise.
    #[cold]
    pub(super) fn deny_undecided(&self, hits: &[Hit], answer: &mut Answer) {
        let retry_after_ns = self.node.ask_again_ns();
        let reason = if self.node.is_wall_believed() { Reason::NoCatalogue } else { Reason::Clock };
        let verdict = Verdict {
            allowed: false,
            remaining: 0,
            retry_after_ns,
            delay_ns: 0,
            reset_after_ns: retry_after_ns,
        };
        for hit in hits {
            let untouched = self.exempt(hit);
            answer.limits.push(match (hit.exempt, self.limit(hit).limit.spec.mode) {
                (true, _) => untouched,
                (false, mode) => LimitAnswer {
                    verdict,
                    outcome: if mode == Mode::Shadow { Outcome::ShadowDeny } else { Outcome::Deny },
                    reason,
                    ..untouched
                },
            });
        }
    }

    /// How long the cell is closed, in nanoseconds, while the wall clock is in a window that it had left
    /// before it was set back.
    #[cold]
    fn is_closed_for(&self, hit: &Hit) -> Option<u64> {
        let Algorithm::FixedWindow(window) = self.algorithm(hit) else { return None };
        let (wall_ns, salt) = (self.now.wall_ns, hit.tag.salt());
        let is_closed = self.node.clock.left.is_closed_at(window, wall_ns, salt);
        is_closed.then(|| window.end_after(wall_ns, salt) + window.margin_ns - wall_ns)
    }

    #[cold]
    fn why_denied(&self, hit: &mut Hit, verdict: Verdict, over: Reason) -> (Verdict, Reason) {
        if hit.forwarded_to.is_some() {
            hit.expected_wait_ns = Some(self.forwards_wait_ns(hit));
        }
        let hit = &*hit;
        let budget = self.global(hit).budget();
        if hit.units > hit.most_of(budget) {
            return (verdict, Reason::CostTooHigh);
        }
        let reason = if let Some(reason) = self.node.owns_nothing() {
            reason
        } else if !self.local(self.limit(hit), hit.variant).can_tell() {
            Reason::Clock
        } else if self.is_forgotten(hit) {
            Reason::Restarted
        } else {
            over
        };
        if let Some(reason) = self.without_store(hit, reason) {
            let retry_after_ns = verdict.retry_after_ns.min(SETTINGS.decide.lost_retry_ns);
            return (Verdict { retry_after_ns, ..verdict }, reason);
        }
        // The request needs more than this region holds now, but not more than the limit. While other regions
        // may send units, the wait is short. Lent units come back with the next exchange of demand, or when
        // the loan ends, long before the little that is left would do.
        let wait_ns = hit.expected_wait_ns;
        let wait_ns = wait_ns.unwrap_or_else(|| self.node.remote_supply.expected_wait().lasts_ns);
        let is_shared = self.may_come(hit, reason);
        let most_ns = match verdict.retry_after_ns {
            // This node's share of what is named may be larger in the next window, and not before.
            _ if hit.is_named() => self.window_left_ns(hit),
            _ if is_shared && wait_ns > 0 => self.node.ask_again_ns(),
            _ if is_shared && hit.has_lent => SETTINGS.decide.ask_seldom_ns,
            NEVER if is_shared => SETTINGS.decide.ask_seldom_ns,
            NEVER => self.node.ask_again_ns(),
            // Requests under way may end at any time.
            known if self.limit(hit).limit.is_concurrent() => known.min(SETTINGS.decide.ask_seldom_ns),
            known => known,
        };
        (Verdict { retry_after_ns: verdict.retry_after_ns.min(most_ns), ..verdict }, reason)
    }

    /// Whether missing units may come from elsewhere. What cells share, and what callers name, is never sent.
    fn may_come(&self, hit: &Hit, reason: Reason) -> bool {
        self.is_short(reason) && hit.place != CellSource::Shared && !hit.is_named()
    }

    /// Nanoseconds until the open window of a hit's cell is over by every clock; 0 without a window.
    fn window_left_ns(&self, hit: &Hit) -> u64 {
        let Algorithm::FixedWindow(window) = self.algorithm(hit) else { return 0 };
        let (wall_ns, salt) = (self.now.wall_ns, hit.tag.salt());
        (window.end_after(wall_ns, salt) + window.margin_ns).saturating_sub(wall_ns)
    }

    /// Whether the reason is a lack of units that may come from elsewhere. Units that count as spent since a
    /// restart belong to the guard share: the pool may have more.
    pub(super) fn is_short(&self, reason: Reason) -> bool {
        is_short(reason) || (reason == Reason::Restarted && self.node.leases.is_some())
    }

    /// The reason of a limit that has nothing left during a store outage, if the limit has a rule for
    /// outages.
    fn without_store(&self, hit: &Hit, short: Reason) -> Option<Reason> {
        // The pool might help in these cases. Cells that new cells share have no pool.
        let is_of_pool = matches!(short, Reason::OverLimit | Reason::ClassReserve | Reason::Restarted);
        if !is_of_pool || self.node.leases.is_none() || !self.node.store.outages.is_lost(hit.tag) {
            return None;
        }
        match self.limit(hit).limit.spec.on_store_loss {
            OnStoreLoss::Guard => None,
            OnStoreLoss::Closed => Some(Reason::Unavailable),
            // Leased units might be spent after the outage.
            OnStoreLoss::Open => (!self.ask.holds).then_some(Reason::Open),
        }
    }

    /// Whether the allowed units would come from the guard share during a store outage: units held of the
    /// pool go first.
    #[cold]
    fn is_guarded(&self, hit: &Hit, verdict: &Verdict) -> bool {
        self.node.store.outages.is_lost(hit.tag) && verdict.remaining < self.guard_units(hit)
    }

    fn guard_units(&self, hit: &Hit) -> u64 {
        let (local, salt) = (self.local(self.limit(hit), hit.variant), hit.tag.salt());
        let end_ns = match local.at(salt) {
            Algorithm::FixedWindow(window) => window.first_end(self.now.wall_ns, salt),
            _ => 0,
        };
        local.part_of(salt, end_ns).units
    }

    /// Lets a request pass, or notes that it would, although this node has no units for it.
    #[cold]
    pub(super) fn pass_open(&self, hit: &Hit, answer: &mut Answer) {
        let active = self.limit(hit);
        if !answer.allowed || !active.limit.spec.mode.denies() {
            return;
        }
        answer.reason = Reason::Open;
        if self.ask.charge && hit.charges() {
            active.opened.fetch_add(hit.units, Ordering::Relaxed);
        }
    }

    /// Counts a verdict during an outage of the cell's store: it was based on what this node holds. A limit
    /// that only watches has no pool, and cells that new cells share have none. A request that passed
    /// although nothing was left is counted by its units.
    #[cold]
    pub(super) fn count_guarded(&self, hit: &Hit, limit: &LimitAnswer) {
        let has_pool = !hit.exempt
            && !hit.is_named()
            && hit.place != CellSource::Shared
            && self.limit(hit).limit.spec.mode.denies()
            && self.node.store.outages.is_lost(hit.tag);
        if has_pool && self.ask.is_demand() && hit.charges() && limit.reason != Reason::Open {
            self.node.store.outages.count(limit.outcome == Outcome::Allow);
        }
    }

    /// The verdict of a cell that is shared with other regions: its loans are settled first.
    #[inline]
    fn probe_shared(&self, hit: &mut Hit, account: &mut Account, state: &mut Vec<u64>) -> Verdict {
        if account.is_due(self.now) {
            self.settle_account(hit, account, state);
        }
        let cell = ProbedCell { algorithm: &account.algorithm, state, leased: account.kept_back() };
        let mut verdict = hit.probe(&cell, hit.units, self.now);
        if self.is_leased(&account.algorithm) && !account.may_lease(hit.units) && verdict.allowed {
            verdict = denied(verdict, hit.units, SETTINGS.decide.ask_seldom_ns);
        }
        // A limit that only watches moves no units, and neither does a peek.
        let counts = self.ask.is_demand()
            && hit.charges()
            && hit.forwarded_to.is_none()
            // Nobody is asked for what no cell could ever give. What was spent is owed, though.
            && (hit.units <= self.global(hit).budget() || self.ask.overdraft == Overdraft::Spent)
            && self.limit(hit).limit.spec.mode.denies();
        let calls = counts && {
            // The units that a class leaves to others must be there too.
            let needed = hit.units.saturating_add(hit.leaves(account.algorithm.budget()));
            account.offer(hit.units, needed, &verdict, self.now)
        };
        if !verdict.allowed {
            hit.has_lent = !account.book().lent().is_empty();
            // Every node keeps an equal part of a rate, and uses it.
            hit.is_dry = !account.algorithm.has_rate() && account.within_reach() == Some(Part::default());
            hit.expected_wait_ns =
                Some(account.expected_wait_ns(&self.node.remote_supply.expected_wait(), self.now));
        }
        hit.account = if calls { Called::Calls } else { Called::Quiet };
        verdict
    }

    #[cold]
    fn settle_account(&self, hit: &Hit, account: &mut Account, state: &mut Vec<u64>) {
        let context = self.context(hit);
        account.settle(state, &context, self.now, &*self.node.sessions());
    }

    /// While the journal cannot be written, only what the journal already holds may be spent.
    fn must_be_held(&self, active: &Active) -> bool {
        active.durable && self.ask.charge && self.node.is_journal_down()
    }

    #[cold]
    fn is_held(&self, hit: &Hit, cells: &mut Cells) -> bool {
        let CellSource::At(place) = hit.place else { return false };
        let algorithm = self.algorithm(hit);
        let Some(at) = cells.table.at(place).heap_place() else { return false };
        let progress = self.node.progress();
        cells.with_heap_cell(at, |cell| {
            cell.forget_held_if_variant_changed();
            let account = cell.account.take();
            let algorithm = account.as_ref().map_or(algorithm, |account| &account.algorithm);
            let held = cell.would_hold(algorithm, self.now, hit.units, hit.tag.salt(), progress);
            cell.account = account;
            held
        })
    }

    /// A hit's cell, or one in the state that it would begin with.
    #[inline]
    pub(super) fn seen<'s>(
        &'s self,
        hit: &Hit,
        initial: Option<&'s State>,
        cells: &'s Cells,
    ) -> Option<ProbedCell<'s>> {
        let algorithm = self.algorithm(hit);
        let CellSource::At(place) = hit.place else {
            return Some(ProbedCell { algorithm, state: initial?.as_slice(), leased: 0 });
        };
        let cell = cells.table.at(place);
        let Some(at) = cell.heap_place() else {
            return Some(ProbedCell { algorithm, state: &cell.state, leased: 0 });
        };
        let HeapCell { account, state, .. } = cells.heap_cell(at);
        Some(match account.as_deref() {
            None => ProbedCell { algorithm, state, leased: cells.heap_cell(at).leased() },
            Some(account) => ProbedCell { algorithm: &account.algorithm, state, leased: account.kept_back() },
        })
    }

    /// Reports what is left if nothing was charged.
    pub(super) fn leave(&self, hit: &Hit, initial: Option<&State>, cells: &Cells, limit: &mut LimitAnswer) {
        let Some(ProbedCell { algorithm, state, leased }) = self.seen(hit, initial, cells) else { return };
        let untouched = algorithm.probe(state, self.now, 0, hit.tag.salt());
        if untouched.remaining == 0 || hit.is_named() {
            limit.late.owed = hit.owed(algorithm, state, self.now);
        }
        let guard = if limit.reason == Reason::Unavailable { self.guard_units(hit) } else { 0 };
        let kept = hit.leaves(algorithm.budget()).saturating_add(leased).saturating_add(guard);
        limit.verdict.remaining = untouched.remaining.saturating_sub(kept);
        limit.verdict.reset_after_ns = untouched.reset_after_ns;
    }
}

/// The state of a hit's cell, or the state that it would begin with.
fn state_of<'c>(hit: &Hit, initial: Option<&'c State>, cells: &'c Cells) -> Option<&'c [u64]> {
    match (initial, hit.place) {
        (Some(state), _) => Some(state.as_slice()),
        (None, CellSource::At(place)) => Some(cells.state(cells.table.at(place))),
        (None, CellSource::Absent | CellSource::Shared) => None,
    }
}
