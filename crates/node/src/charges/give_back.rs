//! Units that a caller gives back without the name of a charge ([`acequia_limits::Algorithm::give_back`]).
//!
//! A cell takes back at most what this node charged to it, and the rules of settlements hold (`settle`): a
//! journalled cell is on disk before its units can be spent again.

use acequia_limits::{CellTag, Now};

use super::settle::{Refunded, refunded_of};
use crate::{
    Node,
    cell::{CellKey, locked_cell::LockedCell},
    shard_of,
};

impl Node {
    /// Gives `units` back to a cell. Returns what came back to its limit; `None` if nothing did.
    pub(crate) fn give_back_to(&self, key: CellKey, units: u64, now: Now) -> Option<Refunded> {
        let CellKey { slot, tag } = key;
        let back = self.give_back_cell(slot, tag, units, now)?;
        (back > 0).then(|| refunded_of(&self.catalogue(), slot, back))
    }

    fn give_back_cell(&self, slot: u32, tag: CellTag, units: u64, now: Now) -> Option<u64> {
        let mut cells = self.shards[shard_of(tag)].lock();
        // Loaded under the lock, so no older than the cell's variant.
        let catalogue = self.catalogue();
        // Rows that nobody waits for must not pile up while the disk fails.
        if catalogue.is_durable(slot) && self.is_journal_down() {
            return None;
        }
        // A cell that is gone owes nothing; and the cell that new cells share belongs to no single key.
        let place = cells.table.find(tag, slot)?;
        let key = CellKey { slot, tag };
        let locked_cell = LockedCell { node: self, catalogue: &catalogue, key, now, which: None };
        let context = locked_cell.renew(&mut cells, place, None)?;
        let (algorithm, salt) = (context.local.at(tag.salt()), tag.salt());
        let back = match cells.table.at(place).heap_place() {
            None => algorithm.give_back_inline(&mut cells.table.at_mut(place).state, units, now, salt),
            Some(at) => cells.with_heap_cell(at, |cell| {
                let (algorithm, state) = self.settled(cell, &context, now);
                algorithm.give_back(state, units, now, salt)
            }),
        };
        if back > 0 {
            if self.counts_usage() {
                cells.count_refunded(slot, back);
            }
            if catalogue.is_durable(slot) {
                self.write_settled(&locked_cell, &mut cells, place, algorithm);
            }
        }
        Some(back)
    }
}
