//! What a node holds of one cell's pool now, for operators who ask why.

use acequia_limits::{Algorithm, Now, Part};

use super::{cell::CellLease, group_of};
use crate::{Catalogue, LimitAnswer, Node, cell::CellKey, lock, shard_of};

/// What a node holds of a cell's pool, and the state of the pool's group. The view changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// The group that the cell is in: below [`super::GROUPS`].
    pub group: u16,
    /// The number of the group's generation: 0 if none was heard of.
    pub generation: u64,
    /// Whether its pools grant, as far as this node knows.
    pub grants: bool,
    /// Whether nobody has answered for the group for half a second.
    pub is_lost: bool,
    /// What the pool has in all.
    pub pool: Part,
    /// What this node holds of the pool: for windows with edges, of the open one.
    pub leased: Part,
    /// When the lease ends unless it is renewed: steady clock. `None` if it has no end of its own, or there
    /// is none.
    pub leased_until_ns: Option<u64>,
    /// Units that the pool had left when it last said so; `None` if it never did.
    pub left: Option<u64>,
}

impl Node {
    /// What this node holds of the pool of an answer's cell. `None` if the node shares its limits with no
    /// other node, or the limit is not in force any more.
    pub fn pool_view(&self, answer: &LimitAnswer, of: &Catalogue, now: Now) -> Option<PoolView> {
        let active = of.limits.get(answer.limit as usize)?;
        let (slot, tag) = (active.slot(), answer.tag);
        let global = of.global(slot, answer.variant)?;
        let pool = of.local(slot, answer.variant)?.pool(global, tag.salt())?;
        let number = group_of(tag);
        let (generation, grants, is_lost, left) = {
            let leases = lock(self.leases.as_ref()?);
            let group = leases.groups.of(number);
            let left = leases.cells.get(CellKey { slot, tag }).and_then(CellLease::left);
            (group.generation().number, group.grants(), leases.groups.is_lost(number), left)
        };
        let (leased, leased_until_ns) = self.leased_of(answer, global, slot, now);
        Some(PoolView { group: number, generation, grants, is_lost, pool, leased, leased_until_ns, left })
    }

    fn leased_of(
        &self,
        answer: &LimitAnswer,
        global: &Algorithm,
        slot: u32,
        now: Now,
    ) -> (Part, Option<u64>) {
        let cells = self.shards[shard_of(answer.tag)].lock();
        let place = cells.table.find(answer.tag, slot);
        let Some(account) = place.and_then(|place| cells.account(place)) else {
            return (Part::default(), None);
        };
        if matches!(global, Algorithm::FixedWindow(_)) {
            let is_open = account.window() > now.wall_ns;
            let units = if is_open { account.withdrawn_of(account.window()).units() } else { 0 };
            return (Part { rate: 0, units }, None);
        }
        let until_ns = account.pooled_until_ns();
        if until_ns <= now.steady_ns {
            return (Part::default(), None);
        }
        (account.pooled(), (until_ns < u64::MAX).then_some(until_ns))
    }
}
