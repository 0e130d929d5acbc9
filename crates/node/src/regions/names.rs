//! The numbers by which the two ends of a connection call their cells: of four bytes, given by either end.
//!
//! Each end forgets a number together with its cell, without telling the other. An end that receives a number
//! that it has forgotten says so ([`super::wire::FrameEntry::Unknown`]), and hears the cell's whole name again.
//! Numbers of this end count up and are not given again soon, so a late frame cannot mean another cell than
//! it did.

use std::collections::BTreeMap;

use super::{CellKey, slots::Slots, wire::ShortId};

use crate::settings::SETTINGS;

/// No number: this end begins with 2, and the peer's numbers are kept with their lowest bit set.
const NONE: ShortId = ShortId(0);

/// The numbers of one connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionNumbers {
    cells: Slots<CellNumbers>,
    /// The slots of the cells, by numbers as they are written to the peer: the peer's own have the lowest bit
    /// set.
    numbered: BTreeMap<ShortId, u32>,
    newest: u32,
    /// How many numbers of the peer are remembered.
    theirs: usize,
}

/// The numbers of one cell: at least one is given.
#[derive(Clone, Copy, Debug, Default)]
struct CellNumbers {
    own: ShortId,
    /// Whether the peer is known to know this end's number.
    known: bool,
    theirs: ShortId,
}

impl ConnectionNumbers {
    /// The number to write for a cell, and whether the peer knows it. A number that the peer gave serves as
    /// well as one of this end.
    pub(crate) fn number(&mut self, cell: CellKey) -> (ShortId, bool) {
        let slot = self.cells.slot_or_insert(cell, CellNumbers::default);
        let Some(name) = self.cells.at_mut(slot) else { return (NONE, false) };
        if name.theirs != NONE {
            return (name.theirs, true);
        }
        if name.own == NONE {
            self.newest = self.newest.wrapping_add(2);
            while self.newest == NONE.0 || self.numbered.contains_key(&ShortId(self.newest)) {
                self.newest = self.newest.wrapping_add(2);
            }
            *name = CellNumbers { own: ShortId(self.newest), known: false, ..*name };
            self.numbered.insert(name.own, slot);
        }
        (name.own, name.known)
    }

    /// Notes that the peer knows this end's number of a cell.
    pub(crate) fn learned(&mut self, own: ShortId) {
        if let Some(name) = self.named(own) {
            name.known = true;
        }
    }

    /// Notes that the peer may know none of this end's numbers.
    pub(crate) fn introduce_again(&mut self) {
        self.cells.values_mut().for_each(|name| name.known = false);
    }

    /// Notes the number by which the peer calls a cell.
    pub(crate) fn introduce(&mut self, id: ShortId, cell: CellKey) {
        if id.0 & 1 == 1 {
            return;
        }
        if self.theirs >= SETTINGS.links.peer_names_max {
            self.forget_theirs();
        }
        let theirs = ShortId(id.0 | 1);
        self.drop_theirs(theirs);
        let slot = self.cells.slot_or_insert(cell, CellNumbers::default);
        let Some(name) = self.cells.at_mut(slot) else { return };
        let before = std::mem::replace(&mut name.theirs, theirs);
        if before != NONE {
            self.numbered.remove(&before);
            self.theirs -= 1;
        }
        self.numbered.insert(theirs, slot);
        self.theirs += 1;
    }

    /// Notes that the peer does not know a number that was written to it. A number of this end is introduced
    /// again at its next use; a number of the peer is not used any more.
    pub(crate) fn unknown(&mut self, id: ShortId) {
        if id.0 & 1 == 1 {
            self.drop_theirs(id);
        } else if let Some(name) = self.named(id) {
            name.known = false;
        }
    }

    /// The cell that the peer means. The peer writes its own numbers with the lowest bit 0.
    pub(crate) fn cell(&self, id: ShortId) -> Option<CellKey> {
        self.cells.key(*self.numbered.get(&ShortId(id.0 ^ 1))?)
    }

    /// Forgets a cell and its numbers.
    pub(crate) fn forget(&mut self, cell: CellKey) {
        let Some(name) = self.cells.remove(cell) else { return };
        if name.own != NONE {
            self.numbered.remove(&name.own);
        }
        if name.theirs != NONE {
            self.numbered.remove(&name.theirs);
            self.theirs -= 1;
        }
    }

    /// Forgets the peer's numbers: it gives new ones from now on.
    pub(crate) fn forget_theirs(&mut self) {
        self.theirs = 0;
        self.numbered.retain(|id, _| id.0 & 1 == 0);
        let mut unnamed = Vec::new();
        for (slot, name) in (0..).zip(self.cells.slots_mut()) {
            let Some(name) = name else { continue };
            name.theirs = NONE;
            if name.own == NONE {
                unnamed.push(slot);
            }
        }
        for slot in unnamed {
            if let Some(cell) = self.cells.key(slot) {
                self.cells.remove(cell);
            }
        }
    }

    fn named(&mut self, id: ShortId) -> Option<&mut CellNumbers> {
        self.cells.at_mut(*self.numbered.get(&id)?)
    }

    /// Forgets a number of the peer, in the form in which it is written to the peer.
    fn drop_theirs(&mut self, theirs: ShortId) {
        let Some(slot) = self.numbered.remove(&theirs) else { return };
        self.theirs -= 1;
        let Some(name) = self.cells.at_mut(slot) else { return };
        name.theirs = NONE;
        if name.own == NONE
            && let Some(cell) = self.cells.key(slot)
        {
            self.cells.remove(cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use acequia_limits::CellTag;

    use super::*;

    const A: CellKey = CellKey { slot: 1, tag: CellTag(7) };
    const B: CellKey = CellKey { slot: 1, tag: CellTag(8) };

    #[test]
    fn a_short_id_that_one_end_gave_serves_both() {
        let (mut here, mut there) = (ConnectionNumbers::default(), ConnectionNumbers::default());
        let (id, known) = here.number(A);
        assert!(!known, "it must be introduced");
        there.introduce(id, A);
        here.learned(id);
        assert_eq!(here.number(A), (id, true));
        let (back, known) = there.number(A);
        assert!(known && back != id);
        assert_eq!((there.cell(id), here.cell(back)), (Some(A), Some(A)));
    }

    #[test]
    fn short_ids_are_forgotten_with_their_cells_on_both_sides() {
        let (mut here, mut there) = (ConnectionNumbers::default(), ConnectionNumbers::default());
        for n in 0..1_000 {
            let cell = CellKey { slot: 1, tag: CellTag(n) };
            let (id, _) = here.number(cell);
            there.introduce(id, cell);
            here.forget(cell);
            there.forget(cell);
            assert_eq!((here.cell(ShortId(id.0 | 1)), there.cell(id)), (None, None));
        }
        for names in [here, there] {
            assert_eq!((names.cells.len(), names.numbered.len(), names.theirs), (0, 0, 0));
        }
    }

    #[test]
    fn a_forgotten_cell_that_the_peer_still_uses_is_introduced_again() {
        let (mut here, mut there) = (ConnectionNumbers::default(), ConnectionNumbers::default());
        let (id, _) = here.number(A);
        there.introduce(id, A);
        here.learned(id);
        // The end that was told the number forgets it, and says so to the end that gave it.
        there.forget(A);
        assert_eq!(there.cell(id), None);
        here.unknown(id);
        assert_eq!(here.number(A), (id, false), "the same number, told again");
        there.introduce(id, A);
        assert_eq!(there.cell(id), Some(A));
        // The end that gave the number forgets it: the other end gives one itself.
        here.forget(A);
        let (written, known) = there.number(A);
        assert!(known && here.cell(written).is_none());
        there.unknown(written);
        let (own, known) = there.number(A);
        assert!(!known && there.cell(id).is_none());
        here.introduce(own, A);
        assert_eq!(here.cell(own), Some(A));
    }

    #[test]
    fn a_short_id_is_not_reused_soon() {
        let mut names = ConnectionNumbers::default();
        let (first, _) = names.number(A);
        names.forget(A);
        let (second, _) = names.number(B);
        assert_ne!(first, second, "a late frame would mean another cell");
        // Once all numbers were given, those in use are passed over, and so is `NONE`.
        names.newest = u32::MAX - 3;
        assert_eq!(names.number(A).0, ShortId(u32::MAX - 1));
        assert_eq!(names.number(CellKey { slot: 1, tag: CellTag(9) }).0, ShortId(2));
        assert_eq!(names.number(CellKey { slot: 1, tag: CellTag(10) }).0, ShortId(6), "{second:?} is in use");
    }

    #[test]
    fn a_peer_may_change_the_short_id_of_a_cell_and_reuse_it() {
        let mut names = ConnectionNumbers::default();
        names.introduce(ShortId(4), A);
        names.introduce(ShortId(6), A);
        assert_eq!((names.cell(ShortId(4)), names.cell(ShortId(6))), (None, Some(A)));
        names.introduce(ShortId(6), B);
        assert_eq!(names.cell(ShortId(6)), Some(B));
        assert_eq!((names.cells.len(), names.numbered.len(), names.theirs), (1, 1, 1));
        names.introduce(ShortId(9), A);
        assert_eq!(names.cells.len(), 1, "no number that a peer gives");
        names.number(A);
        names.forget_theirs();
        assert_eq!((names.cells.len(), names.numbered.len(), names.theirs), (1, 1, 0), "this end's stay");
    }
}
