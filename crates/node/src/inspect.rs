//! What a region has of one cell at one instant, for tests and for operators who ask why.

use acequia_limits::{Algorithm, CellTag, LimitId, Now, Part};

use acequia_rights::{Held, Lent, Mark, Sessions};

use crate::{Node, shard_of};

/// What a region has of one cell. Nothing changes by looking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Its own part, by the versions it knows.
    pub standing: Part,
    /// What it may use: its own, with what it holds and without what it has lent.
    pub effective: Part,
    /// What it has lent and not got back.
    pub lent: Part,
    /// What it holds of others.
    pub held: Part,
    /// The end of the window that is open; 0 where there is none, or no rights moved yet.
    pub window_ns: u64,
    /// The end of the window for which rights came before it opened; 0 where there is none.
    pub next_window_ns: u64,
    /// What it may use in that one.
    pub next_units: u64,
}

impl Node {
    /// The version of the catalogue that this node goes by, and the last one that it has acknowledged on its disk.
    pub fn marks(&self) -> (Mark, Mark) {
        let Some(sharing) = self.lock_sharing() else { return Default::default() };
        (sharing.mark(), sharing.acked())
    }

    /// Whether a batch is on disk, as far as this node was told.
    pub fn is_committed(&self, batch: u64) -> bool {
        self.progress().committed >= batch
    }

    /// What this region has of a cell. Nothing where the limit is not in force here.
    pub fn holding(&self, limit: LimitId, tag: CellTag, now: Now) -> Option<Holding> {
        let slot = self.slot_of(limit)?;
        let catalogue = self.catalogue();
        catalogue.limits.iter().find(|active| active.slot == slot)?;
        let now = self.not_before(now);
        let cells = self.shards[shard_of(tag)].lock();
        let salt = tag.salt();
        let place = cells.table.find(tag, slot);
        let numbers = match place {
            Some(place) => catalogue.heir(slot, cells.table.at(place).numbers(), salt, now)?,
            None => catalogue.newest_numbers(slot)?,
        };
        let (local, global) = (catalogue.local(slot, numbers)?, catalogue.global(slot, numbers)?);
        let standing = if self.owns_nothing().is_some() { Part::default() } else { local.part(salt) };
        let words: &[u64] = place.map_or(&[], |place| cells.words(cells.table.at(place)));
        let window_ns = match local.at(salt) {
            Algorithm::FixedWindow(window) => window.older_end(words, now.wall_ns, salt),
            _ => 0,
        };
        let Some(account) = place.and_then(|place| cells.account(place)) else {
            return Some(Holding { standing, effective: standing, window_ns, ..Holding::default() });
        };
        let sessions = self.sessions();
        let book = account.book();
        let still_lent = |lent: &&Lent| sessions.reclaim_end(lent) > now.steady_ns;
        let still_held = |held: &&Held| sessions.end_of(held) > now.steady_ns;
        let lent = total(book.lent().iter().filter(still_lent).map(|lent| lent.part));
        let held = total(book.held().iter().filter(still_held).map(|held| held.part));
        let mut holding = Holding { standing, lent, held, window_ns, ..Holding::default() };
        holding.effective = Part {
            rate: (standing.rate + held.rate).saturating_sub(lent.rate),
            units: (standing.units + held.units).saturating_sub(lent.units),
        };
        if let Algorithm::FixedWindow(_) = global {
            let limit_of = |end_ns: u64| account.transfers_of(end_ns).map(|t| t.limit(standing.units));
            let units = match limit_of(window_ns) {
                Some(units) => units,
                None if window_ns < account.window() => 0,
                None => standing.units,
            };
            holding.effective.units = local.usable(global, units);
            if account.next_window() > window_ns {
                let units = limit_of(account.next_window()).unwrap_or(standing.units);
                holding.next_window_ns = account.next_window();
                holding.next_units = local.usable(global, units);
            }
        }
        Some(holding)
    }
}

fn total(parts: impl Iterator<Item = Part>) -> Part {
    parts
        .fold(Part::default(), |sum, part| Part { rate: sum.rate + part.rate, units: sum.units + part.units })
}
