//! A cell's windows: transfers between regions, and what is held of the region's pools.

use std::num::NonZeroU64;

use acequia_limits::{Algorithm, Now, Part, window::Usage};
use acequia_rights::{
    MemberId, Refusal, Transfers,
    mutation::{Mutation, mutated},
};
use smallvec::SmallVec;

use super::{Account, CellContext, Withdrawn, demand::Offered, lease::HeldLease, lowered::Lowered, set};

use crate::settings::SETTINGS;

/// Transfers of the open window and of the next one; and what is held of the region's pool.
#[derive(Debug, Default)]
pub(super) struct Windows {
    pub(super) open: Transfers,
    pub(super) next: Transfers,
    /// Units that other regions reported as used of the cell in the open window.
    pub(super) elsewhere: u64,
    /// Units that other regions owe, if the limit carries debts.
    pub(super) owed_elsewhere: u64,
    /// What was withdrawn from the region's pools of the open window and of the next one.
    pub(super) withdrawn: SmallVec<[Withdrawn; 2]>,
    /// What is held of the region's pool, if the limit has no windows with edges.
    pub(super) lease: Option<HeldLease>,
    /// How much of the pool this node could take to give away, as far as it knows; `None` if it has not
    /// asked.
    pub(super) within_reach: Option<Part>,
    /// How much is to be taken from the pool to give away.
    pub(super) for_others: Part,
    /// The most that may be held of the pool, if more is held until loans are back.
    pub(super) most: Option<Part>,
    /// How the cell reduces what it holds when the pool is lowered.
    pub(super) lowered: Lowered,
    /// What earlier processes gave away of a window. All that those processes had counts as spent.
    pub(super) given_before: GivenBefore,
    /// The largest standing share here since an earlier process: all of those units count as spent by that
    /// process.
    pub(super) stood: u64,
    /// When all loans of earlier processes have ended: steady clock. Such loans may rest on what the
    /// processes held of pools.
    pub(super) restored_until_ns: u64,
    /// Demand that one rebalancer has seen and the other has not.
    pub(super) unseen: [Offered; 2],
    /// When another node of the region last forwarded a charge here: steady clock.
    pub(super) forwarded_ns: Option<NonZeroU64>,
}

impl Windows {
    /// The units that may be used in a window, given the standing units. Units withdrawn from the pool count
    /// as if they stood: they too may be given away, and then are not used here.
    pub(super) fn limit(&self, transfers: &Transfers, end_ns: u64, standing_units: u64) -> u64 {
        let withdrawn = self.withdrawn.iter().filter(|withdrawn| withdrawn.end_ns == end_ns);
        let withdrawn = withdrawn.map(Withdrawn::units).fold(0, u64::saturating_add);
        if !may_give_withdrawn() {
            return transfers.limit(standing_units).saturating_add(withdrawn);
        }
        let before = self.given_before.of(end_ns);
        transfers.limit(standing_units.saturating_add(withdrawn).saturating_add(before))
    }
}

/// Units withdrawn from a pool count as if they stood: those that are given away are not used here.
fn may_give_withdrawn() -> bool {
    !mutated(Mutation::LeaseGivesTwice)
}

/// The windows of a cell that has none.
pub(super) static NO_WINDOWS: Windows = Windows {
    open: Transfers::none(),
    next: Transfers::none(),
    elsewhere: 0,
    owed_elsewhere: 0,
    withdrawn: SmallVec::new_const(),
    lease: None,
    within_reach: None,
    for_others: Part { rate: 0, units: 0 },
    most: None,
    lowered: Lowered::NONE,
    given_before: GivenBefore { end_ns: 0, units: 0 },
    stood: 0,
    restored_until_ns: 0,
    unseen: [Offered::NONE; 2],
    forwarded_ns: None,
};

/// What earlier processes gave away of the window that ends at `end_ns`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GivenBefore {
    end_ns: u64,
    units: u64,
}

impl GivenBefore {
    /// The units given away of a window.
    pub(super) fn of(self, end_ns: u64) -> u64 {
        if self.end_ns == end_ns { self.units } else { 0 }
    }
}

/// When the open window was last determined, and until when that holds: wall clock.
#[derive(Debug, Default)]
pub(super) struct Rolled {
    at_ns: u64,
    /// When the open window is over; 0 if it must be determined anew.
    pub(super) over_ns: u64,
}

impl Rolled {
    /// Whether another window may be open now.
    #[inline]
    pub(super) fn is_over(&self, now: Now) -> bool {
        now.wall_ns >= self.over_ns || now.wall_ns < self.at_ns
    }
}

/// A window that another one has followed never opens again.
fn is_over_for_good(end_ns: u64, open_ns: u64) -> bool {
    end_ns < open_ns && !mutated(Mutation::WindowReopens)
}

/// All units that a region says to have given away of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gift {
    pub(crate) from: MemberId,
    /// The window's end.
    pub(crate) end_ns: u64,
    pub(crate) cumulative: u64,
    /// The giver's standing share.
    pub(crate) stands: u64,
}

impl Account {
    pub(super) fn windows(&self) -> &Windows {
        self.windows.as_deref().unwrap_or(&NO_WINDOWS)
    }

    pub(super) fn windows_mut(&mut self) -> &mut Windows {
        self.windows.get_or_insert_default()
    }

    pub(crate) fn open(&self) -> &Transfers {
        &self.windows().open
    }

    pub(super) fn next(&self) -> &Transfers {
        &self.windows().next
    }

    /// The end of the next window, if transfers for it came before it opened; 0 if none did.
    pub(crate) fn next_window(&self) -> u64 {
        self.next().end_ns
    }

    /// The transfers of a window.
    pub(crate) fn transfers_of(&self, end_ns: u64) -> Option<&Transfers> {
        [self.open(), self.next()].into_iter().find(|transfers| transfers.end_ns == end_ns)
    }

    /// The units that may be used in a window, given the standing units; `None` if the window has no
    /// transfers.
    pub(crate) fn limit_of(&self, end_ns: u64, standing_units: u64) -> Option<u64> {
        let transfers = self.transfers_of(end_ns)?;
        Some(self.windows().limit(transfers, end_ns, standing_units))
    }

    /// The end of the open window; 0 if there are no windows.
    pub(crate) fn window(&self) -> u64 {
        self.open().end_ns
    }

    /// Moves on to the window that is open now.
    pub(super) fn roll(&mut self, state: &mut Vec<u64>, context: &CellContext<'_>, now: Now) -> bool {
        let Algorithm::FixedWindow(window) = &self.algorithm else {
            self.rolled.over_ns = u64::MAX;
            return false;
        };
        let end_ns = window.older_end(state, now.wall_ns, context.salt);
        let margin_ns = window.margin_ns;
        let changed = self.open().end_ns != end_ns && !(self.open().is_empty() && self.next().is_empty());
        self.went_back = is_over_for_good(end_ns, self.open().end_ns);
        if self.open().end_ns != end_ns && !self.went_back {
            self.expect_units_anew();
            // The window that is over pays a debt with all that it had, also with what came from others.
            if let Some(carried) = self.algorithm.carried(state, now, context.salt, &self.algorithm)
                && !mutated(Mutation::DebtPaidByOwnPart)
            {
                set(state, carried);
            }
            if self.keeps_over_edges() {
                // What the others owe they told of the window that is over: some of it may be left.
                self.debts.kept = self.windows().owed_elsewhere;
            }
            self.unwritten |= !self.open().given().is_empty();
            let Windows { open, next, elsewhere, withdrawn, .. } = self.windows_mut();
            *elsewhere = 0;
            withdrawn.retain(|withdrawn| withdrawn.end_ns >= end_ns);
            *open = if next.end_ns == end_ns { std::mem::take(next) } else { Transfers::new(end_ns) };
            if next.end_ns <= end_ns {
                *next = Transfers::default();
            }
        }
        // A clock that steps back does not reopen a window: what was given away of the present one would be
        // forgotten.
        self.rolled = Rolled { at_ns: now.wall_ns, over_ns: end_ns.saturating_add(margin_ns) };
        self.standing = context.standing(self.window());
        self.rebuild(context);
        changed
    }

    /// Gives units of the open window away; returns the total given.
    pub(crate) fn give(
        &mut self,
        context: &CellContext<'_>,
        to: MemberId,
        units: u64,
        available: u64,
    ) -> Result<u64, Refusal> {
        let cumulative = self.windows_mut().open.give(to, units, available)?;
        self.rebuild(context);
        self.unwritten = true;
        Ok(cumulative)
    }

    /// The total that a region gave in a window that is known here.
    pub(crate) fn received(&self, from: MemberId, end_ns: u64) -> u64 {
        let known = [self.open(), self.next()].into_iter().filter(|transfers| transfers.end_ns == end_ns);
        let of = |transfers: &Transfers| {
            transfers.received().iter().find(|(region, _)| *region == from).map(|r| r.1)
        };
        known.filter_map(of).max().unwrap_or(0)
    }

    /// Takes units that a region gave away in the open window or the next. A crash at `forgotten` forgot how
    /// many of the units received before were spent.
    pub(crate) fn receive(
        &mut self,
        context: &CellContext<'_>,
        gift: Gift,
        forgotten: Option<Now>,
    ) -> Result<u64, Refusal> {
        let Gift { from, end_ns, cumulative, stands } = gift;
        if let (Some(then), Algorithm::FixedWindow(window)) = (forgotten, &self.algorithm) {
            // The last window that may have been open at the crash.
            let latest_ns = then.wall_ns.saturating_add(2 * window.margin_ns);
            if end_ns <= window.first_end(latest_ns, context.salt) {
                return Err(Refusal::Stale);
            }
        }
        let opened_ns = self.open().end_ns;
        let gained = if end_ns == opened_ns {
            self.windows_mut().open.receive(from, cumulative, stands)?
        } else if end_ns > opened_ns && opened_ns > 0 {
            let next = &mut self.windows_mut().next;
            if next.end_ns != end_ns {
                if !next.given().is_empty() {
                    return Err(Refusal::Stale);
                }
                *next = Transfers::new(end_ns);
            }
            next.receive(from, cumulative, stands)?
        } else {
            return Err(Refusal::Stale);
        };
        self.rebuild(context);
        Ok(gained)
    }

    /// Units that other regions reported as used.
    pub(crate) fn elsewhere(&self) -> u64 {
        self.windows().elsewhere
    }

    /// Other regions reported that they used `units`.
    pub(crate) fn hear_used(&mut self, units: u64) {
        if units != self.elsewhere() {
            self.windows_mut().elsewhere = units;
        }
    }

    /// Other regions owe `units`, which may outlast the open window.
    pub(crate) fn hear_owed(&mut self, units: u64) {
        if units != self.windows().owed_elsewhere {
            self.windows_mut().owed_elsewhere = units;
        }
    }

    /// Notes that another node of the region forwarded a charge to this cell.
    pub(crate) fn note_forwarded(&mut self, now: Now) {
        self.windows_mut().forwarded_ns = NonZeroU64::new(now.steady_ns);
    }

    /// Whether other nodes forwarded charges here lately. Those nodes do not take the forwarded units from
    /// the region's pool. Under a limit with long windows, other nodes first use what they keep in each
    /// window.
    pub(crate) fn is_forwarded(&self, now: Now) -> bool {
        let Some(forwarded_ns) = self.windows().forwarded_ns else { return false };
        let lasts_ns = match &self.algorithm {
            algorithm if algorithm.has_rate() => SETTINGS.forward.forwarded_ns,
            algorithm => SETTINGS
                .forward
                .forwarded_ns
                .saturating_add(2 * algorithm.period_ns())
                .min(SETTINGS.forward.forwarded_ns_max),
        };
        now.steady_ns < forwarded_ns.get() + lasts_ns
    }

    /// Counts what earlier processes gave away, at a node that shares its region's pools. `state` is the
    /// restored state. The whole window of those processes counts as spent: the standing share here, the rest
    /// in the pool. After a clean stop, what they spent of the own part is known, and includes what they gave
    /// ([`super::stop`]).
    pub(crate) fn count_given_before(
        &mut self,
        state: &[u64],
        context: &CellContext<'_>,
        is_forgotten: bool,
    ) {
        if !matches!(context.global, Algorithm::FixedWindow(_)) {
            return;
        }
        let (usage, open) = (Usage::of(state), self.open());
        let counts = usage.used >= self.standing.units || !is_forgotten;
        if usage.end_ns == open.end_ns && counts {
            let given = open.given_total();
            self.windows_mut().given_before = GivenBefore { end_ns: usage.end_ns, units: given };
            self.rebuild(context);
        }
    }

    /// When all loans of earlier processes have ended: steady clock.
    pub(crate) fn restored_until_ns(&self) -> u64 {
        self.windows().restored_until_ns
    }

    /// Returns how far the new standing share exceeds all standing shares since an earlier process, which may
    /// have spent those. Each unit is returned once.
    pub(crate) fn stands_more(&mut self, before: u64, now: u64) -> u64 {
        let stood = self.windows().stood.max(before);
        self.windows_mut().stood = stood.max(now);
        now.saturating_sub(stood)
    }
}
