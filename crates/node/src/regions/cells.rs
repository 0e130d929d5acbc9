//! The active cells, and when each of them is rebalanced.

use std::{
    collections::{BTreeSet, VecDeque},
    num::NonZeroU64,
};

use super::{
    CellKey,
    cell::{ActiveCell, NextRebalance},
    slots::Slots,
};

use crate::settings::SETTINGS;

/// The active cells. Each is called, is due at a time, or is being rebalanced.
#[derive(Debug, Default)]
pub(super) struct ActiveCells {
    /// A slot holds `None` only while its cell is rebalanced.
    slots: Slots<Option<Box<ActiveCell>>>,
    /// When to rebalance each cell (steady clock), and the cell's slot: [`NextRebalance::At`].
    due: BTreeSet<(u64, u32)>,
    /// Cells to rebalance at the next tick, each once: [`NextRebalance::Called`].
    called: VecDeque<CellKey>,
}

impl ActiveCells {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// All slots have numbers below this.
    pub(super) fn end(&self) -> u32 {
        self.slots.end()
    }

    /// The cell in a slot.
    pub(super) fn key(&self, slot: u32) -> Option<CellKey> {
        self.slots.key(slot)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = CellKey> + '_ {
        self.slots.keys()
    }

    pub(super) fn is_active(&self, key: CellKey) -> bool {
        self.slots.slot(key).is_some()
    }

    pub(super) fn get(&self, key: CellKey) -> Option<&ActiveCell> {
        self.slots.get(key)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, key: CellKey) -> Option<&mut ActiveCell> {
        self.slots.get_mut(key)?.as_deref_mut()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut ActiveCell> {
        self.slots.values_mut().filter_map(|active_cell| active_cell.as_deref_mut())
    }

    /// Makes a cell active and has the next tick rebalance it. `None` if too many cells are active.
    pub(super) fn wake(&mut self, key: CellKey, now_ns: u64) -> Option<&mut ActiveCell> {
        let slot = match self.slots.slot(key) {
            None if self.slots.len() >= SETTINGS.sharing.active_cells_max => return None,
            None => {
                self.called.push_back(key);
                self.slots.slot_or_insert(key, || Some(Box::new(ActiveCell::called(now_ns))))
            }
            Some(slot) => slot,
        };
        let active_cell = self.slots.at_mut(slot)?.as_deref_mut()?;
        if let NextRebalance::At(due_ns) = std::mem::replace(&mut active_cell.next, NextRebalance::Called) {
            self.due.remove(&(due_ns.get(), slot));
            self.called.push_back(key);
        }
        Some(active_cell)
    }

    /// Rebalances a cell that called: at the next tick, unless the last rebalance was a moment ago. A cell
    /// that denies calls with every denial.
    pub(super) fn wake_for_call(&mut self, key: CellKey, now_ns: u64) {
        let slot = self.slots.slot(key);
        let active_cell = slot.and_then(|slot| Some((slot, self.slots.at_mut(slot)?.as_deref_mut()?)));
        match active_cell {
            Some((slot, active_cell)) if now_ns < active_cell.rebalanced_ns + SETTINGS.sharing.calls_ns => {
                let sooner_ns = nonzero(active_cell.rebalanced_ns + SETTINGS.sharing.calls_ns);
                if let NextRebalance::At(due_ns) = active_cell.next
                    && sooner_ns < due_ns
                {
                    self.due.remove(&(due_ns.get(), slot));
                    self.due.insert((sooner_ns.get(), slot));
                    active_cell.next = NextRebalance::At(sooner_ns);
                }
            }
            _ => {
                self.wake(key, now_ns);
            }
        }
    }

    /// The slot of a cell to rebalance now: cells that were called come first, then those that are due.
    pub(super) fn next(&mut self, now_ns: u64) -> Option<u32> {
        while let Some(key) = self.called.pop_front() {
            if let Some(slot) = self.slots.slot(key) {
                return Some(slot);
            }
        }
        self.due.first().filter(|(due_ns, _)| *due_ns <= now_ns).map(|(_, slot)| *slot)
    }

    /// Takes a cell out to rebalance it; [`Self::put_back`] or [`Self::remove`] ends that.
    pub(super) fn take(&mut self, slot: u32) -> Option<(CellKey, Box<ActiveCell>)> {
        let key = self.slots.key(slot)?;
        let active_cell = self.slots.at_mut(slot)?.take()?;
        if let NextRebalance::At(due_ns) = active_cell.next {
            self.due.remove(&(due_ns.get(), slot));
        }
        Some((key, active_cell))
    }

    /// Puts a cell back that was rebalanced, to be rebalanced again at `due_ns`.
    pub(super) fn put_back(&mut self, slot: u32, mut active_cell: Box<ActiveCell>, due_ns: u64) {
        let due_ns = nonzero(due_ns);
        active_cell.next = NextRebalance::At(due_ns);
        if let Some(place) = self.slots.at_mut(slot) {
            *place = Some(active_cell);
            self.due.insert((due_ns.get(), slot));
        }
    }

    /// Removes a cell that is not active any more.
    pub(super) fn remove(&mut self, key: CellKey) {
        self.slots.remove(key);
    }
}

/// A time after a clock's start.
fn nonzero(ns: u64) -> NonZeroU64 {
    NonZeroU64::new(ns).unwrap_or(NonZeroU64::MIN)
}
