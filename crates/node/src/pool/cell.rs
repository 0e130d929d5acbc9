//! How much of its pool a cell wants: as much as it will use by its demand, before that runs out.
//!
//! With one exception, safety does not depend on this module: pools grant only what they have, whatever they
//! are asked. The exception: a window's units that were asked for when the pool had more, and not heard of,
//! may not be taken up ([`Statements::distrust`]).

mod denied;
mod inputs;
mod statements;
mod supply;
mod wants;

use acequia_limits::{Algorithm, Now, Part};
use acequia_rights::pool::Generation;

use self::{
    denied::{Denied, Missing, Purpose},
    statements::Statements,
    supply::Supply,
};
pub(super) use self::{
    inputs::LeaseInputs,
    wants::{RateWant, WindowWant},
};
use super::withdrawals::Withdrawals;
use crate::{
    cell::account::{Account, CellContext, Offered, Withdrawn},
    regions::{Demand, rebalance_after_ns},
    settings::SETTINGS,
};

/// A cell that leases from its pool.
#[derive(Debug)]
pub(super) struct CellLease {
    demand: Demand,
    idleness: Idleness,
    /// The times of the next rebalance and of the last one: steady clock.
    pub(super) due_ns: u64,
    pub(super) rebalanced_ns: u64,
    /// When the pool was last called with success: steady clock.
    pub(super) renewed_ns: u64,
    /// The call that is under way.
    call: Option<CallUnderWay>,
    /// What the last rebalance found missing.
    missing: Missing,
    /// Denied requests that were not asked for, because no call could be made or there was not enough for
    /// all.
    unasked: Denied,
    supply: Supply,
    bounds: VariantBounds,
    pub(super) statements: Statements,
    /// Withdrawals from windows by all processes, as the disk has them.
    pub(super) withdrawals: Withdrawals,
    /// Units that the cell held at the last rebalance.
    pub(super) held: u64,
    /// Whether a call waits for the disk.
    pub(super) waits_for_disk: bool,
    /// Whether the cell waits for a word from the store, to give something back.
    pub(super) wants_word: bool,
}

/// How long a cell has needed less than it holds. All times are of the steady clock.
#[derive(Debug)]
struct Idleness {
    /// When a request last came.
    busy_ns: u64,
    /// After how long without a request everything goes back.
    idle_after_ns: u64,
    /// When more was last wanted than there was.
    tight_ns: u64,
    /// Until when half of this node's part stays, of a sliding window.
    half_until_ns: u64,
}

/// A call to the pool without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallUnderWay {
    /// Whether the call tells what is held now.
    tells_all: bool,
    /// What the call asks for.
    asked: Missing,
}

/// What this node's variant gives the cell of its pool.
#[derive(Debug, Default)]
struct VariantBounds {
    /// What the pool has in all.
    pool: Part,
    /// The most that may be held, if that is less than what is held.
    most: Option<Part>,
}

impl Idleness {
    const fn since(now_ns: u64) -> Self {
        Self { busy_ns: now_ns, idle_after_ns: SETTINGS.lease.idle_ns, tight_ns: now_ns, half_until_ns: 0 }
    }

    /// Whether no request has come for long.
    fn is_idle(&self, now: Now) -> bool {
        now.steady_ns.saturating_sub(self.busy_ns) > self.idle_after_ns
    }

    /// Whether there was enough for this long.
    fn is_spare(&self, for_ns: u64, now: Now) -> bool {
        now.steady_ns.saturating_sub(self.tight_ns) > for_ns
    }
}

impl CellLease {
    pub(super) fn new(now_ns: u64) -> Self {
        Self::after(Withdrawals::default(), now_ns)
    }

    /// A cell of which earlier processes took.
    pub(super) fn after(withdrawals: Withdrawals, now_ns: u64) -> Self {
        Self {
            demand: Demand::since(now_ns),
            idleness: Idleness::since(now_ns),
            due_ns: now_ns,
            rebalanced_ns: 0,
            renewed_ns: 0,
            call: None,
            missing: Missing::default(),
            unasked: Denied::default(),
            supply: Supply::default(),
            bounds: VariantBounds::default(),
            statements: Statements::default(),
            withdrawals,
            held: 0,
            waits_for_disk: false,
            wants_word: false,
        }
    }

    /// Follows what the pool has, and how much of it may be held. If that has changed, the pool is told again
    /// all that is held. Calls without an answer may have been granted when the pool had more.
    pub(super) fn follow(&mut self, account: &mut Account, context: &CellContext<'_>, pool: Part) {
        self.bounds = VariantBounds { pool, most: account.most_of_pool() };
        if !account.take_told_of_other() {
            return;
        }
        self.statements.untell_all();
        if let Some(call) = &mut self.call {
            call.tells_all = false;
        }
        if let Algorithm::FixedWindow(window) = context.global {
            self.statements.distrust(|end_ns| account.is_later(window, end_ns, context.salt));
        }
    }

    /// The lease is, or soon will be, at the most that may be held of a pool that has this in all. The pool
    /// does not know that yet.
    pub(super) fn goes_by(&mut self, pool: Part, most: Option<Part>) {
        self.bounds = VariantBounds { pool, most };
        (self.supply.left, self.supply.fair) = (None, None);
        self.statements.untell_all();
    }

    /// Whether less may be held than is.
    pub(super) const fn must_shrink(&self) -> bool {
        self.bounds.most.is_some()
    }

    /// A call is made that tells what is held.
    pub(super) const fn calls(&mut self) {
        self.call = Some(CallUnderWay { tells_all: true, asked: self.missing });
    }

    /// Whether a call is under way.
    pub(super) const fn is_calling(&self) -> bool {
        self.call.is_some()
    }

    /// The call has an answer, or was given up.
    pub(super) const fn end_call(&mut self) -> Option<CallUnderWay> {
        self.call.take()
    }

    /// The pool of a generation knows what the call told.
    pub(super) fn tell(&mut self, end_ns: u64, generation: Generation, call: Option<CallUnderWay>) {
        self.statements.untell(end_ns);
        self.statements.forget_told_before(self.supply.open_ns());
        if call.is_some_and(|call| call.tells_all) {
            self.statements.tell(end_ns, generation);
        }
    }

    /// Whether the disk covers what a call for `wanted` may bring. If not, the next row will, with `ahead`
    /// more.
    pub(super) fn covers(&mut self, withdrawn: &Withdrawn, wanted: u64, ahead: u64, committed: u64) -> bool {
        let units = withdrawn.units().saturating_add(wanted);
        let units = self.withdrawals.with_before(withdrawn.end_ns, units);
        self.withdrawals.is_written(withdrawn.end_ns, units, ahead, committed)
    }

    /// Takes in what was asked for since the last rebalance.
    pub(super) fn observe(&mut self, inputs: &LeaseInputs, now: Now) {
        let Offered { units, events, .. } = inputs.offered;
        // A cell can never give more than its budget to each request.
        let most = u64::from(events).saturating_mul(inputs.budget);
        self.demand.observe(units.min(most), events.into(), now.steady_ns);
        self.rebalanced_ns = now.steady_ns;
        self.idleness.idle_after_ns = if inputs.lasts && (inputs.is_alone() || inputs.slides) {
            SETTINGS.lease.idle_alone_ns
        } else {
            SETTINGS.lease.idle_ns
        };
        if events > 0 {
            self.idleness.busy_ns = now.steady_ns;
        } else if self.is_idle(now) && self.demand.units_milli() > 0 {
            self.demand = Demand::since(now.steady_ns);
        }
    }

    /// Adds the requests that were denied before the last rebalance and not asked for.
    pub(super) fn with_unasked(&mut self, offered: Offered, now: Now) -> Offered {
        let before = std::mem::take(&mut self.unasked);
        let all = before.beside(offered, now);
        self.missing = Missing { denied: before.with(all, now), ..Missing::default() };
        all
    }

    /// Keeps what this rebalance found missing, since no call can be made for it.
    pub(super) const fn leave_unasked(&mut self) {
        self.unasked = self.missing.denied;
    }

    /// Whether no request has come for long.
    pub(super) fn is_idle(&self, now: Now) -> bool {
        self.idleness.is_idle(now)
    }

    /// Whether there has been no room for the cell for long, since its first rebalance was due.
    pub(super) const fn is_out_of_room(&self, now: Now) -> bool {
        self.rebalanced_ns == 0
            && !self.is_calling()
            && now.steady_ns.saturating_sub(self.idleness.busy_ns) > SETTINGS.lease.room_ns
    }

    /// After how long the cell is rebalanced again.
    pub(super) fn rebalance_after_ns(&self) -> u64 {
        if self.waits_for_disk {
            return SETTINGS.lease.disk_ns;
        }
        if self.wants_word {
            return SETTINGS.lease.word_ns;
        }
        let events_milli = self.demand.events_milli();
        let is_busy = self.rebalanced_ns.saturating_sub(self.idleness.busy_ns) < SETTINGS.lease.idle_ns;
        let is_supplied = self.supply.times_in_vain() == 0;
        rebalance_after_ns(events_milli, is_busy && is_supplied && events_milli > 0)
    }

    /// Whether the pool is known to have nothing for the cell, or nothing beyond need. Then other regions may
    /// have what is missing.
    pub(super) fn is_dry(&self, now: Now) -> bool {
        self.supply.is_dry(now)
    }

    /// Whether the pool cannot be asked now: it had nothing a moment ago, or a call is under way.
    pub(super) const fn is_quiet(&self, now_ns: u64) -> bool {
        !self.supply.may_be_asked(now_ns) || self.is_calling()
    }

    /// Whether the pool may be asked for more.
    pub(super) const fn may_ask(&self, now: Now) -> bool {
        self.supply.may_be_asked(now.steady_ns)
    }

    /// Whether something was denied that a request may wait for.
    pub(super) const fn is_missed(&self) -> bool {
        self.missing.denied.largest > 0
    }

    /// Units that one of the denied requests needs.
    pub(super) const fn least(&self) -> u64 {
        self.missing.least
    }

    /// Units that the pool had left when it last said so: for windows, of the open one.
    pub(super) const fn left(&self) -> Option<u64> {
        self.supply.left
    }

    /// What this node could take of the pool without taking what other nodes may need as well. The owner may
    /// take all of it, since it acts for them.
    pub(super) fn within_reach(&self, inputs: &LeaseInputs, held: Part, now: Now) -> Part {
        if self.is_dry(now) || self.must_shrink() {
            return Part::default();
        }
        let left = self.left().unwrap_or_else(|| inputs.pool.units.saturating_sub(held.units));
        let takers = if inputs.is_owner { 1 } else { inputs.nodes };
        // At most the pool's.
        let rate = u64::from(inputs.pool.rate.saturating_sub(held.rate)) / takers;
        Part { rate: rate as u32, units: left / takers }
    }

    /// With fewer units than this, a rebalance is called for.
    pub(super) fn low_water(&self) -> u64 {
        self.soon().max(self.supply.chunk / 2)
    }

    /// Notes how much the pool said it has left of a window, by the window's end.
    pub(super) fn hears_left(&mut self, end_ns: u64, left: u64) {
        self.supply.hears_left(end_ns, left);
    }

    /// Notes how much a pool without edges said it has left.
    pub(super) const fn hears_left_in_all(&mut self, left: u64) {
        self.supply.left = Some(left);
    }

    /// Notes the part of the rate for this node, if every node gets in proportion to what it would like.
    pub(super) const fn hears_fair(&mut self, fair: u32) {
        self.supply.fair = Some(fair);
    }

    /// Notes the answer to a call, which brought these units; `wanted`: the call wanted some.
    pub(super) fn came(&mut self, units: u64, wanted: bool, call: Option<CallUnderWay>, now_ns: u64) {
        let asked = call.map(|call| call.asked).unwrap_or_default();
        if asked.purpose == Purpose::Later {
            self.supply.gave_of_later(units, now_ns);
        } else if units > 0 {
            // A large pool gives little by little from the beginning: small grants alone are no reason to
            // wait.
            let is_little =
                units < self.soon() / 4 && units <= self.bounds.pool.units / SETTINGS.lease.little_part;
            self.supply.gave(units, is_little, now_ns);
            if units > asked.needed {
                self.supply.gives_ahead();
            }
        } else if wanted && asked.is_enough_for_one(self.left()) {
            // The call's requests are asked for again, with those that were denied since.
            self.unasked = asked.denied.and(self.unasked);
        } else if wanted && asked.purpose == Purpose::Ahead && self.left().is_some_and(|left| left > 0) {
            self.supply.gives_only_for_need(now_ns);
        } else if wanted {
            self.supply.gave_nothing(now_ns);
        }
    }

    /// Nobody answered the call, or the answer does not count.
    pub(super) fn missed(&mut self, now_ns: u64) {
        self.came(0, true, None, now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_window_without_units_does_not_make_the_open_one_dry() {
        let mut lease = CellLease::new(0);
        lease.supply.opens(100);
        lease.hears_left(100, 7);
        lease.missing.purpose = Purpose::Later;
        lease.calls();
        lease.hears_left(200, 0);
        let call = lease.end_call();
        lease.came(0, true, call, 5);
        assert_eq!((lease.left(), lease.supply.left_of_later(200)), (Some(7), Some(0)));
        assert!(!lease.is_dry(Now::at(6)) && lease.may_ask(Now::at(6)));
        assert!(!lease.supply.may_be_asked_of_later(6));
        // An empty answer about the open window counts.
        lease.missing = Missing::default();
        lease.calls();
        lease.hears_left(50, 3);
        lease.hears_left(100, 0);
        let call = lease.end_call();
        lease.came(0, true, call, 5);
        assert_eq!(lease.left(), Some(0));
        assert!(lease.is_dry(Now::at(6)) && !lease.may_ask(Now::at(6)));
    }
}
