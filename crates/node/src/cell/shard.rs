//! A part of the cells under one lock, with a bound on its memory.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use acequia_limits::{Algorithm, CellTag, Now, algorithm::State};

use crate::{
    cell::{
        CellKey,
        account::Account,
        pages::Pages,
        table::{Cell, Table},
    },
    journal::HeapCell,
};

/// A sweep that frees less than one cell in this many is not worth repeating soon.
const SWEEP_WORTH: usize = 8;
/// Nanoseconds until a sweep that freed too little is tried again. Otherwise a flood of new keys would pay
/// for one sweep a key.
const SWEEP_AGAIN_NS: u64 = 100_000_000;

/// States a page: 4 KiB.
const HEAP_PAGE: usize = 32;

/// One lock's worth of cells.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    cells: Mutex<Cells>,
    /// Whether a cell calls for a rebalance.
    calls: AtomicBool,
}

/// The cells of a shard.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    pub(crate) table: Table,
    heap: Pages<HeapCell, HEAP_PAGE>,
    free: Vec<usize>,
    heap_bytes: usize,
    sweep_again_ns: u64,
    /// Cells with accounts that the sharing with other regions must rebalance.
    attention: Vec<CellKey>,
    /// Units charged, and units given back, since they were last taken.
    spent: Sums,
    refunded: Sums,
    /// Cells of soft limits that are nearly used up.
    soft: BTreeMap<CellKey, SoftState>,
    /// Idle cells dropped since the start.
    pub(crate) evicted: u64,
}

/// The most cells of soft limits that are nearly used up, under one lock: 16 384 in all. Others are not
/// throttled.
const SOFT_MAX: usize = 64;

/// The warnings sent for a cell of a soft limit in its window, and its throttle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SoftState {
    /// The window's end; 0 if there are no edges.
    window: u64,
    /// When the state is over in any case: steady clock.
    ends_ns: u64,
    /// The highest threshold for which a warning was sent, in percent.
    pub(crate) told: u8,
    /// The two halves of the throttle's theoretical arrival time.
    tat: [u64; 2],
}

impl SoftState {
    pub(crate) fn new(window: u64, ends_ns: u64, told: u8) -> Self {
        Self { window, ends_ns, told, tat: [0, 0] }
    }

    /// Whether the state belongs to the open window.
    pub(crate) fn is_of(&self, window: u64, now: Now) -> bool {
        self.window == window && now.steady_ns < self.ends_ns
    }

    /// The throttle's state in the open window.
    pub(crate) fn tat(&self, window: u64, now: Now) -> u128 {
        let [high, low] = if self.is_of(window, now) { self.tat } else { [0, 0] };
        u128::from(high) << 64 | u128::from(low)
    }

    pub(crate) fn set_tat(&mut self, tat: u128) {
        // The two halves of a 128-bit number.
        self.tat = [(tat >> 64) as u64, tat as u64];
    }
}

impl Shard {
    /// Notes that a cell calls for a rebalance.
    pub(crate) fn call(&self) {
        self.calls.store(true, Ordering::Release);
    }

    /// Whether a cell called since this was last asked.
    pub(crate) fn calls(&self) -> bool {
        self.calls.swap(false, Ordering::AcqRel)
    }

    /// Takes the lock. A thread that panicked under the lock left no word half written, so the cells are
    /// still good.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Cells> {
        self.cells.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Cells {
    /// A cell's state.
    #[inline]
    pub(crate) fn state<'a>(&'a self, cell: &'a Cell) -> &'a [u64] {
        match cell.heap_place() {
            Some(place) => &self.heap[place].state,
            None => &cell.state,
        }
    }

    /// The cell, if it has an account.
    #[inline]
    pub(crate) fn shared_mut(&mut self, place: usize) -> Option<&mut HeapCell> {
        let cell = &mut self.heap[self.table.at(place).heap_place()?];
        cell.account.is_some().then_some(cell)
    }

    /// A cell on the heap.
    #[inline]
    pub(crate) fn heap_cell(&self, at: usize) -> &HeapCell {
        &self.heap[at]
    }

    /// A state on the heap, for a change that does not change its size.
    #[inline]
    pub(crate) fn heap_mut(&mut self, at: usize) -> &mut HeapCell {
        &mut self.heap[at]
    }

    /// Units of a cell that callers may spend until their leases end.
    pub(crate) fn leased(&self, place: usize) -> u64 {
        self.table.at(place).heap_place().map_or(0, |at| self.heap[at].leased())
    }

    /// Changes the number of leased units of a cell.
    pub(crate) fn lease(&mut self, place: usize, change: impl FnOnce(u64) -> u64) {
        if self.table.at(place).heap_place().is_none() {
            self.move_to_heap(place);
        }
        if let Some(at) = self.table.at(place).heap_place() {
            self.with_heap_cell(at, |cell| cell.lease(change));
        }
    }

    /// The account of a cell, to be changed.
    pub(crate) fn account_mut(&mut self, place: usize) -> Option<&mut Account> {
        let at = self.table.at(place).heap_place()?;
        self.heap[at].account.as_deref_mut()
    }

    /// The account of a cell, if it has one.
    #[inline]
    pub(crate) fn account(&self, place: usize) -> Option<&Account> {
        self.heap[self.table.at(place).heap_place()?].account.as_deref()
    }

    /// Gives a cell an account.
    pub(crate) fn share(&mut self, place: usize, account: Box<Account>) {
        if self.table.at(place).heap_place().is_none() {
            self.move_to_heap(place);
        }
        if let Some(at) = self.table.at(place).heap_place() {
            self.with_heap_cell(at, |cell| {
                cell.account = Some(account);
                cell.lease(|leased| leased);
            });
        }
    }

    /// Asks the sharing with other regions to rebalance a cell soon. Each cell with an account is in the list
    /// at most once: the account remembers.
    pub(crate) fn attend(&mut self, key: CellKey) {
        self.attention.push(key);
    }

    /// The state kept for a cell of a soft limit.
    pub(crate) fn soft(&self, slot: u32, tag: CellTag) -> Option<&SoftState> {
        self.soft.get(&CellKey { slot, tag })
    }

    /// Keeps the state of a cell of a soft limit; says whether there is room.
    pub(crate) fn keep_soft(&mut self, slot: u32, tag: CellTag, state: SoftState, now: Now) -> bool {
        let key = CellKey { slot, tag };
        if self.soft.len() >= SOFT_MAX && !self.soft.contains_key(&key) {
            self.soft.retain(|_, state| now.steady_ns < state.ends_ns);
        }
        let has_room = self.soft.len() < SOFT_MAX || self.soft.contains_key(&key);
        if has_room {
            self.soft.insert(key, state);
        }
        has_room
    }

    /// Counts units charged under the slot's limit.
    #[inline]
    pub(crate) fn count_spent(&mut self, slot: u32, units: u64) {
        self.spent.add(slot, units);
    }

    /// Counts units given back under the slot's limit.
    pub(crate) fn count_refunded(&mut self, slot: u32, units: u64) {
        self.refunded.add(slot, units);
    }

    /// The units charged since the last call.
    pub(crate) fn take_spent(&mut self) -> impl Iterator<Item = (u32, u64)> + use<> {
        self.spent.take()
    }

    /// The units given back since the last call.
    pub(crate) fn take_refunded(&mut self) -> impl Iterator<Item = (u32, u64)> + use<> {
        self.refunded.take()
    }

    /// The account of a cell that was found.
    pub(crate) fn account_of(&self, cell: &Cell) -> Option<&Account> {
        self.heap[cell.heap_place()?].account.as_deref()
    }

    /// The cells that must be rebalanced.
    pub(crate) fn take_attention(&mut self) -> Vec<CellKey> {
        std::mem::take(&mut self.attention)
    }

    /// Runs a change on a state on the heap, and counts its bytes.
    pub(crate) fn with_heap_cell<R>(&mut self, place: usize, change: impl FnOnce(&mut HeapCell) -> R) -> R {
        let cell = &mut self.heap[place];
        let result = change(cell);
        let bytes = cell.bytes();
        self.heap_bytes = self.heap_bytes + bytes - cell.bytes_counted;
        cell.bytes_counted = bytes;
        result
    }

    /// Replaces a cell's state by one under another variant.
    pub(crate) fn rewrite(&mut self, place: usize, variant: u16, state: State) {
        let heap = self.table.at(place).heap_place();
        match (heap, state) {
            (Some(at), state) => {
                let state = match state {
                    State::Heap(state) => state,
                    State::Inline(state) => state.to_vec(),
                };
                self.with_heap_cell(at, |cell| cell.rewrite(state));
            }
            (None, State::Inline(state)) => self.table.at_mut(place).state = state,
            // A clock is uncertain now: windows then keep an additional word for the next window.
            (None, State::Heap(state)) => {
                let at = self.add_to_heap(HeapCell::new(state));
                self.table.at_mut(place).set_heap_place(at);
            }
        }
        self.table.at_mut(place).set_variant(variant);
    }

    /// Moves a state out of its cell, because its limit is kept in the journal from now on.
    pub(crate) fn move_to_heap(&mut self, place: usize) {
        let state = self.table.at(place).state.to_vec();
        let at = self.add_to_heap(HeapCell::new(state));
        self.table.at_mut(place).set_heap_place(at);
    }

    /// Adds a cell for which room was made.
    pub(crate) fn insert(&mut self, tag: CellTag, slot: u32, variant: u16, new: NewCell) -> usize {
        let cell = match new {
            NewCell::Inline(state) => Cell::inline(tag, slot, variant, state),
            NewCell::Heap(cell) => Cell::heap(tag, slot, variant, self.add_to_heap(cell)),
        };
        self.table.insert(cell)
    }

    fn add_to_heap(&mut self, mut state: HeapCell) -> usize {
        state.bytes_counted = state.bytes();
        self.heap_bytes += state.bytes_counted;
        match self.free.pop() {
            Some(at) => {
                self.heap[at] = state;
                at
            }
            None => {
                self.heap.push(state);
                self.heap.len() - 1
            }
        }
    }

    /// Makes room for `more` cells within `bytes_max`. Drops idle cells before it grows, or if the shard is
    /// crowded. Cells may change places. Says whether there is room.
    pub(crate) fn make_room(
        &mut self,
        more: usize,
        bytes_max: usize,
        is_crowded: bool,
        now_ns: u64,
        gone: impl FnMut(&Cell, &HeapCells<'_>) -> bool,
    ) -> bool {
        if !is_crowded && self.table.has_room(more) && self.bytes() <= bytes_max {
            return true;
        }
        if now_ns >= self.sweep_again_ns {
            let before = self.table.len();
            self.sweep(gone);
            if (before - self.table.len()) * SWEEP_WORTH < before {
                self.sweep_again_ns = now_ns + SWEEP_AGAIN_NS;
            }
        }
        let on_heap = self.bytes_on_heap();
        if self.bytes() > bytes_max {
            // Charges have taken some of the memory since.
            self.table.shrink(more, bytes_max.saturating_sub(on_heap));
        }
        // The heap grows together with the table.
        let needed = self.table.bytes_needed();
        let of_table = if on_heap == 0 { bytes_max } else { bytes_max * needed / (needed + on_heap) };
        while !self.table.has_room(more) {
            if !self.table.grow(of_table.min(bytes_max.saturating_sub(on_heap))) {
                return false;
            }
        }
        self.bytes() <= bytes_max
    }

    /// Drops the cells that `gone` chooses.
    pub(crate) fn sweep(&mut self, mut gone: impl FnMut(&Cell, &HeapCells<'_>) -> bool) {
        let before = self.table.len();
        let heap = HeapCells(&self.heap);
        let mut freed = Vec::new();
        self.table.remove_if(|cell| {
            let gone = gone(cell, &heap);
            if gone {
                freed.extend(cell.heap_place());
            }
            gone
        });
        for at in freed {
            self.heap_bytes -= self.heap[at].bytes_counted;
            self.heap[at] = HeapCell::default();
            self.free.push(at);
        }
        if self.free.len() * 2 > self.heap.len() {
            self.compact();
        }
        self.evicted += (before - self.table.len()) as u64;
    }

    /// Frees the memory of states that are gone.
    fn compact(&mut self) {
        let mut old = std::mem::take(&mut self.heap);
        self.free = Vec::new();
        for cell in self.table.iter_mut() {
            if let Some(at) = cell.heap_place() {
                cell.set_heap_place(self.heap.len());
                self.heap.push(std::mem::take(&mut old[at]));
            }
        }
    }

    /// Bytes that the cells take.
    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes() + self.bytes_on_heap()
    }

    /// Bytes of the states on the heap, with the free places.
    fn bytes_on_heap(&self) -> usize {
        let taken = (self.heap.len() - self.free.len()) * size_of::<HeapCell>();
        self.heap_bytes + self.heap.bytes() - taken + self.free.capacity() * size_of::<usize>()
    }

    /// Whether so many cells are `is_wanted` that no more of them may come: more than `parts` times the free
    /// memory (dynamic thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). A
    /// single kind of cells then stops at `parts` of `parts + 1` parts, and several kinds still leave some.
    /// `around`: any tag.
    pub(crate) fn has_its_part(
        &self,
        parts: usize,
        bytes_max: usize,
        around: CellTag,
        is_wanted: impl FnMut(&Cell) -> bool,
    ) -> bool {
        let used = self.table.bytes_needed() + self.bytes_on_heap();
        let free = bytes_max.saturating_sub(used);
        // Nearly always there is room even if all cells were of one kind.
        if used <= parts * free {
            return false;
        }
        let (wanted, all) = self.table.sample(around, is_wanted);
        used * wanted > parts * free * all
    }
}

/// Units by the slot of their limit, only for limits that were counted since the last [`Sums::take`].
///
/// There may be a hundred thousand limits, and there are hundreds of shards. A few limits at a time cost no
/// search.
#[derive(Debug, Default)]
struct Sums {
    /// For each remainder, the slot counted last and its units. Slot 0 means none.
    latest: [(u32, u64); LATEST],
    /// Slots that others have displaced there. A slot may be in both.
    others: BTreeMap<u32, u64>,
}

/// How many limits are counted without a search, if their slots are adjacent.
const LATEST: usize = 8;

impl Sums {
    #[inline]
    fn add(&mut self, slot: u32, units: u64) {
        let latest = &mut self.latest[slot as usize % LATEST];
        if latest.0 == slot {
            latest.1 = latest.1.saturating_add(units);
        } else {
            let (displaced, its_units) = std::mem::replace(latest, (slot, units));
            self.set_aside(displaced, its_units);
        }
    }

    #[cold]
    fn set_aside(&mut self, slot: u32, units: u64) {
        if units > 0 {
            let sum = self.others.entry(slot).or_default();
            *sum = sum.saturating_add(units);
        }
    }

    /// Takes all sums, in the order of the slots.
    fn take(&mut self) -> impl Iterator<Item = (u32, u64)> + use<> {
        for (slot, units) in std::mem::take(&mut self.latest) {
            self.set_aside(slot, units);
        }
        std::mem::take(&mut self.others).into_iter()
    }
}

/// The states on the heap, read-only.
pub(crate) struct HeapCells<'a>(&'a Pages<HeapCell, HEAP_PAGE>);

impl HeapCells<'_> {
    /// Whether a cell has an account, or callers hold leases of it: such a cell is not dropped.
    pub(crate) fn is_shared(&self, cell: &Cell) -> bool {
        let is_kept = |cell: &HeapCell| cell.account.is_some() || cell.leased() > 0;
        cell.heap_place().is_some_and(|place| is_kept(&self.0[place]))
    }

    /// A cell's state.
    pub(crate) fn state<'a>(&'a self, cell: &'a Cell) -> &'a [u64] {
        match cell.heap_place() {
            Some(place) => &self.0[place].state,
            None => &cell.state,
        }
    }

    /// Whether no row of a cell is, or will be, on disk.
    pub(crate) fn is_unwritten(&self, cell: &Cell) -> bool {
        cell.heap_place().is_none_or(|place| self.0[place].is_unwritten())
    }
}

/// The state of a new cell.
#[derive(Debug)]
pub(crate) enum NewCell {
    /// A state in the cell itself.
    Inline([u64; 2]),
    /// A state on the heap.
    Heap(HeapCell),
}

impl NewCell {
    /// Puts the state on the heap if the algorithm or the journal needs it.
    pub(crate) fn new(state: State, algorithm: &Algorithm, durable: bool) -> Self {
        match state {
            State::Inline(state) if durable => Self::Heap(HeapCell::sized(state.to_vec(), algorithm, true)),
            State::Inline(state) => Self::Inline(state),
            State::Heap(state) => Self::Heap(HeapCell::sized(state, algorithm, durable)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn sums_agree_with_a_map(counts in proptest::collection::vec((1..40_u32, 0..9_u64, proptest::bool::weighted(0.05)), 0..300)) {
            let (mut sums, mut map) = (Sums::default(), BTreeMap::new());
            for (slot, units, is_taken) in counts {
                sums.add(slot, units);
                *map.entry(slot).or_insert(0) += units;
                if is_taken {
                    map.retain(|_, units| *units > 0);
                    proptest::prop_assert_eq!(sums.take().collect::<BTreeMap<_, _>>(), std::mem::take(&mut map));
                }
            }
            map.retain(|_, units| *units > 0);
            proptest::prop_assert_eq!(sums.take().collect::<BTreeMap<_, _>>(), map);
            proptest::prop_assert_eq!(sums.take().count(), 0);
        }
    }
}
