//! What a node tells the others about a cell, and when.

use super::{
    super::{
        Sharing,
        cell::{ActiveCell, Advertised, LastAdvertisement, Resource},
        outbox::Topic,
        policy::units_in,
        wire::{FrameEntry, Rough, ShortId},
    },
    Round, is_spoken_of,
};
use crate::{forwards::Owner, journal::HeapCell, settings::SETTINGS};

/// How a cell is doing, in exact numbers.
struct CellStatus {
    demand: u64,
    holds: u64,
    left: u64,
    owed: u64,
    /// The standing part that this node acts for, if that is not its own.
    stands: Option<Rough>,
    /// Whether some region has less than it wants: then small changes matter.
    is_scarce: bool,
    /// Whether what is left matters: the units of a fixed window are used up.
    counts_left: bool,
    /// Whether nobody was asked for the cell for long, and nothing is owed here.
    is_idle: bool,
}

impl CellStatus {
    fn to_advertised(&self) -> Advertised {
        Advertised {
            demand: Rough::new(self.demand),
            holds: Rough::new(self.holds),
            left: Rough::new(self.left),
            stands: self.stands,
            owed: Rough::new(self.owed),
        }
    }

    /// Whether the others should hear of this, given what they were told last.
    fn is_due(&self, last: LastAdvertisement, now_ns: u64) -> bool {
        let age_ns = now_ns.saturating_sub(last.at_ns);
        let refresh_ns =
            if self.is_scarce { SETTINGS.sharing.refresh_ns / 4 } else { SETTINGS.sharing.refresh_ns };
        // An idle cell needs no advertisements, until some region is asked for it and says so.
        let is_old = age_ns >= refresh_ns && !self.is_idle;
        (age_ns >= SETTINGS.sharing.advertised_apart_ns && self.differs(last.said, age_ns)) || is_old
    }

    /// Whether this differs much from what was said `age_ns` ago.
    fn differs(&self, said: Advertised, age_ns: u64) -> bool {
        let differs = |old: Rough, new: u64, part: u64| old.get().abs_diff(new) > new.max(old.get()) / part;
        // The others assume that what was left is used at the advertised demand.
        let used = units_in(said.demand.get(), age_ns);
        let left_by_now = Rough::new(said.left.get().saturating_sub(used));
        said.stands != self.stands
            || differs(said.demand, self.demand, if self.is_scarce { 8 } else { 3 })
            || differs(said.holds, self.holds, 32)
            || (self.counts_left && differs(left_by_now, self.left, 8))
            || differs(said.owed, self.owed, 8)
    }
}

impl Sharing {
    /// Advertises how a cell is doing, if that is news.
    pub(super) fn advertise(
        &mut self,
        round: &Round<'_>,
        active_cell: &mut ActiveCell,
        cell: &HeapCell,
        is_scarce: bool,
    ) {
        let Some(account) = cell.account.as_deref() else { return };
        let now_ns = round.now.steady_ns;
        let more = round.resource.weigh(round.within_reach(account));
        let beside = self.kept_by_mates(round, account);
        let left = account.unleased(&cell.state, round.now, round.context.salt);
        let acts_for = (round.owner != Owner::Each).then(|| self.standing_for(round, account));
        let owed = account.overdrawn(&cell.state, round.now, round.context.salt);
        let status = CellStatus {
            demand: active_cell.told_demand_milli(&round.resource, now_ns),
            holds: round.resource.weigh(account.effective()).saturating_add(more).saturating_add(beside),
            left: left.saturating_add(more),
            owed,
            stands: acts_for.map(|part| Rough::new(round.resource.weigh(part))),
            is_scarce,
            counts_left: round.resource == Resource::Rights,
            is_idle: active_cell.is_idle(now_ns) && !is_spoken_of(owed > 0),
        };
        if active_cell.advertised.is_some_and(|last| !status.is_due(last, now_ns)) {
            return;
        }
        let said = status.to_advertised();
        active_cell.advertised = Some(LastAdvertisement { said, at_ns: now_ns });
        let short = active_cell.short();
        for peer in self.peers.values_mut().filter(|peer| peer.is_reached(now_ns, SETTINGS.sharing.reach_ns))
        {
            let id = ShortId::default();
            let Advertised { demand, holds, left, stands, owed } = said;
            let entry = FrameEntry::Advertisement { id, demand, holds, left, stands, owed };
            peer.outbox.tell(Topic::Advertisement(round.key), entry, 0);
            if short > account.effective().units {
                peer.outbox.tell(Topic::Short(round.key), FrameEntry::Short { id, units: short }, 0);
            }
        }
    }
}
