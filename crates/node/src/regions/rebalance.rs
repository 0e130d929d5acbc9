//! One rebalance of a cell: what was asked of it here, what the others said about it, and what to do about
//! it.

mod advertisement;
mod rate;
mod window;

use acequia_limits::{Now, Part};
use acequia_rights::{
    Incarnation, MemberId,
    mutation::{Mutation, mutated},
};

use super::{
    CellKey, Sharing,
    cell::{ActiveCell, Resource, rebalance_after_ns},
    demand::Demand,
    membership,
    outbox::Topic,
    peer::Peer,
    wire::{FrameEntry, ShortId},
};
use crate::{
    Catalogue, Node,
    catalogue::{local::GuardShare, preference::Preference},
    cell::{
        account::{Account, CellContext, LoanId, Offered, Rebalancer},
        locked_cell::LockedCell,
    },
    forwards::Owner,
    journal::HeapCell,
    lock,
    settings::SETTINGS,
};

/// One rebalance of a cell: what it goes by.
struct Round<'a> {
    node: &'a Node,
    preference: &'a Preference,
    /// Who deals with the cell for this region.
    owner: Owner,
    key: CellKey,
    context: &'a CellContext<'a>,
    resource: Resource,
    now: Now,
}

/// What a rebalance has to say, and what it wants of the region's pool.
#[derive(Default)]
struct Effects {
    /// Entries, to be sent once the cell's changes are on disk.
    tells: Vec<Tell>,
    /// Whether the pool is to be asked for more.
    wants_pool: bool,
    /// Whether the pool is to be told what this node has, once.
    reports: bool,
}

/// An entry for a member.
struct Tell {
    to: MemberId,
    topic: Topic,
    entry: FrameEntry,
}

impl Round<'_> {
    /// Units of the whole limit.
    fn budget(&self) -> u64 {
        self.context.global.budget()
    }

    /// How much of the region's pool could be taken to give it away.
    fn within_reach(&self, account: &Account) -> Part {
        let CellContext { global, local, salt, .. } = *self.context;
        let unknown = || match self.owner {
            Owner::Each => local.each_of_pool(global, salt),
            Owner::Own => local.pool(global, salt).unwrap_or_default(),
            Owner::Mate(_) => Part::default(),
        };
        match self.owner {
            // The owner gives it away.
            Owner::Mate(_) => Part::default(),
            _ if !self.node.has_pool(self.key.tag) => Part::default(),
            _ => account.within_reach().unwrap_or_else(unknown),
        }
    }

    /// Whether this node owns the cell and acts for a peer, its mate.
    fn acts_for(&self, peer: &Peer) -> bool {
        let guard = self.node.setup.guard.as_ref();
        let is_mate = || guard.is_some_and(|guard| guard.members().contains(&peer.incarnation.member));
        self.owner == Owner::Own && is_mate()
    }
}

impl Effects {
    /// Has an entry sent once the cell's changes are on disk.
    fn tell(&mut self, to: MemberId, topic: Topic, entry: FrameEntry) {
        self.tells.push(Tell { to, topic, entry });
    }
}

/// A loan or a gift leaves only once the disk knows that the rights are gone.
fn leaves_after(batch: u64, topic: &Topic) -> u64 {
    let is_early = match topic {
        Topic::Grant(..) => mutated(Mutation::GrantBeforeDurable),
        Topic::Give(..) => mutated(Mutation::GiveBeforeDurable),
        _ => false,
    };
    if is_early { 0 } else { batch }
}

impl Sharing {
    /// Rebalances a cell: what was asked of it, what the others said, and what to do about it.
    pub(super) fn rebalance(&mut self, node: &Node, catalogue: &Catalogue, slot: u32, now: Now) {
        let Some((key, mut active_cell)) = self.cells.take(slot) else { return };
        let owned = self.owns_nothing().is_none();
        let which = self.variant_told(key, Some(&active_cell));
        let locked_cell = LockedCell { node, catalogue, key, now, which };
        let none = Preference::default();
        let preference = catalogue.preference(key.slot).unwrap_or(&none);
        let owner = node.forwards.owner(key.tag, catalogue.active_of(key.slot), now);
        let has_slots = catalogue.active_of(key.slot).is_some_and(|active| active.limit.is_concurrent());
        let mut effects = Effects::default();
        let after_ns = locked_cell.at(owned, |context, cell| {
            let resource = Resource::of(context.global, has_slots);
            let round = Round { node, preference, owner, key, context, resource, now };
            self.rebalance_cell(&round, &mut active_cell, cell, &mut effects)
        });
        if (effects.wants_pool || effects.reports)
            && let Some(leases) = &node.leases
        {
            lock(leases).wake(key, now.steady_ns);
        }
        active_cell.rebalanced_ns = now.steady_ns;
        if let Some(after_ns) = after_ns.flatten() {
            self.cells.put_back(slot, active_cell, now.steady_ns + after_ns);
        } else {
            self.cells.remove(key);
            self.peers.values_mut().for_each(|peer| peer.outbox.names.forget(key));
        }
    }

    /// The cell's variant, as reported by a peer that is asked for the cell. `None` if this region is asked
    /// itself, and so knows.
    pub(super) fn variant_told(&self, key: CellKey, active_cell: Option<&ActiveCell>) -> Option<u16> {
        let is_asked = active_cell.is_some_and(|cell| cell.variant.asked_in == self.version_id());
        self.variants.get(&key).copied().filter(|_| !is_asked)
    }

    /// Returns when to rebalance the cell again; `None` if it is not active any more.
    fn rebalance_cell(
        &mut self,
        round: &Round<'_>,
        active_cell: &mut ActiveCell,
        cell: &mut HeapCell,
        effects: &mut Effects,
    ) -> Option<u64> {
        let now_ns = round.now.steady_ns;
        let offered = settle(round, cell, effects)?;
        if offered.events > 0 {
            active_cell.variant.asked_in = self.version_id();
        }
        self.introduce_variant(round, active_cell);
        if let Some(account) = cell.account.as_deref_mut() {
            account.hear_used(active_cell.used_elsewhere(round.context.global));
            // An override that ends leaves less, without a new version.
            if account.is_over_lent() {
                self.lending.over_lent.insert(round.key);
            }
        }
        observe(active_cell, &offered, round.budget(), now_ns);
        let owed = settle_debts(round, active_cell, cell);
        let is_scarce = match round.resource {
            // A debt is paid by units of other regions, as far as they do not need them.
            Resource::Rights => {
                let missed = offered.denied.max(owed.min(round.budget()));
                self.rebalance_window(round, active_cell, cell, missed, effects)
            }
            Resource::Rate { .. } | Resource::Units { .. } => {
                self.rebalance_rate(round, active_cell, cell, &offered, effects)
            }
        };
        self.write_and_tell(round, cell, effects)?;
        self.advertise(round, active_cell, cell, is_scarce);
        let account = cell.account.as_deref_mut()?;
        // While anybody owes, the others go on hearing of the debt, and know the cell.
        let is_owing = owed > 0 || active_cell.hears_of_debts(now_ns);
        if active_cell.is_idle(now_ns) && !is_spoken_of(is_owing) && account.is_at_home(round.now) {
            if account.leave_alone(Rebalancer::Regions) && account.is_empty(round.now) {
                cell.forget_held_if_variant_changed();
                cell.account = None;
            }
            return None;
        }
        let mut after_ns = rebalance_after_ns(active_cell.demand.events_milli(), is_scarce);
        let is_rate = matches!(round.resource, Resource::Rate { .. });
        if is_rate
            && active_cell.activity.is_new(now_ns, SETTINGS.sharing.new_rebalances_ns)
            && offered.events > 0
        {
            after_ns = after_ns.min(SETTINGS.sharing.new_rebalance_ns);
        }
        Some(if effects.wants_pool { after_ns.min(SETTINGS.sharing.pool_ns) } else { after_ns })
    }

    /// Has the cell introduced again if its variant is news to the others. Peers that are not asked for the
    /// cell cannot know the variant, and would give the cell no more than the least variant gives.
    fn introduce_variant(&mut self, round: &Round<'_>, active_cell: &mut ActiveCell) {
        // A guess is not sent: others would take it for known.
        let has_several = round.node.catalogue().has_several_variants(round.key.slot);
        let variant = round.context.which.filter(|_| has_several);
        if active_cell.variant.tell(variant, self.version_id()) {
            self.peers.values_mut().for_each(|peer| peer.outbox.names.forget(round.key));
        }
    }

    /// Queues the cell's changes for the disk, and what is to be said once they are there.
    fn write_and_tell(
        &mut self,
        round: &Round<'_>,
        cell: &mut HeapCell,
        effects: &mut Effects,
    ) -> Option<()> {
        let is_unwritten = cell.account.as_deref_mut()?.take_unwritten();
        let batch = if is_unwritten { round.node.write_account(round.key, cell, round.now) } else { 0 };
        for Tell { to, topic, entry } in effects.tells.drain(..) {
            if let Some(peer) = self.peers.get_mut(&to) {
                let after_batch = leaves_after(batch, &topic);
                peer.outbox.tell(topic, entry, after_batch);
            }
        }
        Some(())
    }

    /// Whether a peer can be lent to and asked now: it was heard, and the catalogue names it.
    pub(super) fn is_partner(&self, peer: &Peer, now: Now) -> bool {
        peer.is_reached(now.steady_ns, SETTINGS.sharing.reach_ns) && self.versions.owns(peer.incarnation)
    }

    /// The standing part that this node acts for.
    fn standing_for(&self, round: &Round<'_>, account: &Account) -> Part {
        match round.owner {
            Owner::Each => return self.standing_of(self.me(), round),
            // The rest is in the pool, and the owner acts for it.
            Owner::Mate(_) => return account.standing(),
            Owner::Own => {}
        }
        let members = round.node.setup.guard.as_ref().map_or(&[][..], GuardShare::members);
        let others = members.iter().filter_map(|region| self.peers.get(region)).map(|peer| peer.incarnation);
        let parts =
            std::iter::once(self.me()).chain(others).map(|incarnation| self.standing_of(incarnation, round));
        parts.fold(Part::default(), |all, part| Part {
            rate: all.rate + part.rate,
            units: all.units + part.units,
        })
    }

    /// At the owner of a sliding window: how much of the region's standing part its mates keep. The region
    /// holds those units. They count as used, since this node cannot lend them.
    fn kept_by_mates(&self, round: &Round<'_>, account: &Account) -> u64 {
        if round.owner != Owner::Own || !matches!(round.resource, Resource::Units { .. }) {
            return 0;
        }
        let standing = self.standing_for(round, account).units;
        let pool = round.context.local.pool(round.context.global, round.context.salt).unwrap_or_default();
        standing.saturating_sub(account.standing().units).saturating_sub(pool.units)
    }

    /// The standing part that an incarnation has of a cell, as far as is known here.
    fn standing_of(&self, incarnation: Incarnation, round: &Round<'_>) -> Part {
        let kind = membership::kind_of(round.context.global, round.now);
        self.versions.share(incarnation, round.budget(), round.context.salt, kind)
    }
}

/// Brings the account up to date, and ends what is over. Returns what was asked of it since the last
/// rebalance.
fn settle(round: &Round<'_>, cell: &mut HeapCell, effects: &mut Effects) -> Option<Offered> {
    let HeapCell { account, state, .. } = cell;
    let account = account.as_deref_mut()?;
    account.settle(state, round.context, round.now, &*round.node.sessions());
    let mut sessions = round.node.sessions_mut();
    for LoanId { peer: from, number } in account.tell_ended(&mut sessions) {
        let entry = FrameEntry::Refused { id: ShortId::default(), number };
        effects.tell(from.member, Topic::Refused(round.key, number), entry);
    }
    account.freeze_refused(&mut sessions);
    Some(account.take_offered(Rebalancer::Regions))
}

/// A cell that owes is spoken of, though nobody asks for it.
fn is_spoken_of(is_owing: bool) -> bool {
    is_owing && !mutated(Mutation::DebtUntoldWhenIdle)
}

/// Keeps units back for what other regions owe. Returns what this region owes itself.
fn settle_debts(round: &Round<'_>, active_cell: &mut ActiveCell, cell: &mut HeapCell) -> u64 {
    let HeapCell { account: Some(account), state, .. } = cell else { return 0 };
    let salt = round.context.salt;
    if round.resource == Resource::Rights {
        active_cell.enter(account.window(), account.keeps_over_edges());
    }
    let left = account.unleased(state, round.now, salt).saturating_add(round.within_reach(account).units);
    account.keep_for_debts(active_cell.kept_for_debts(left, round.now.steady_ns));
    if account.keeps_over_edges() {
        account.hear_owed(active_cell.owed_elsewhere(round.now.steady_ns));
    }
    account.settle_overdrawn(state, round.now, salt)
}

/// Notes what was asked for here since the last rebalance.
fn observe(active_cell: &mut ActiveCell, offered: &Offered, budget: u64, now_ns: u64) {
    // More than any cell could ever give is not counted as demand.
    let most = u64::from(offered.events).saturating_mul(budget);
    active_cell.demand.observe(offered.units.min(most), offered.events.into(), now_ns);
    if offered.events > 0 {
        active_cell.activity.note_asked(now_ns);
    } else if active_cell.is_idle(now_ns) && active_cell.demand.units_milli() > 0 {
        // A mean that falls slowly would make the others lend units that go back at once.
        active_cell.demand = Demand::since(now_ns);
    }
}
