//! What each worker holds under a lock of its own, and the sums over all workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use acequia_limits::Now;
use acequia_node::{Asker, Node};

use crate::{
    cells::{Cells, Hottest, LimitCells},
    tally::Tally,
    unmatched,
};

/// One worker's asker and its counts.
#[derive(Debug)]
pub(crate) struct WorkerState {
    pub(crate) asker: Asker,
    pub(crate) tally: Tally,
    pub(crate) cells: Cells,
    /// The state of the random numbers that spread callers who wait for the same window's edge.
    pub(crate) random: u64,
}

/// A worker's state, which its worker and the sums share.
pub(crate) type SharedState = Arc<Mutex<WorkerState>>;

/// The states of all workers.
#[derive(Debug, Default)]
pub(crate) struct Workers(RwLock<Vec<SharedState>>);

impl Workers {
    /// The state of one more worker.
    pub(crate) fn add(&self, node: &Arc<Node>) -> SharedState {
        let mut workers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // A seed is any number but 0, and differs for each worker.
        let random = (workers.len() as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let (tally, cells) = (Tally::default(), Cells::default());
        let state = Arc::new(Mutex::new(WorkerState { asker: node.asker(), tally, cells, random }));
        workers.push(Arc::clone(&state));
        state
    }

    fn all(&self) -> RwLockReadGuard<'_, Vec<SharedState>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that was counted so far. Reading the counts changes nothing.
    pub(crate) fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        for worker in self.all().iter() {
            // The lock is held only for the copy.
            let tally = lock(worker).tally.clone();
            sum.add(&tally);
        }
        sum
    }

    /// Requests that no limit was about.
    pub(crate) fn unmatched(&self) -> unmatched::Counts {
        let mut sum = unmatched::Counts::default();
        for worker in self.all().iter() {
            let counts = lock(worker).tally.unmatched_requests.clone();
            sum.add(&counts);
        }
        sum
    }

    /// The cells of one limit, by its slot.
    pub(crate) fn cells_of(&self, slot: u32, now: Now) -> LimitCells {
        let mut sum = LimitCells::default();
        for worker in self.all().iter() {
            let cells = lock(worker).cells.of(slot, now);
            sum.merge(&cells);
        }
        sum
    }

    /// What the hottest cells of every limit have left, by the limit's slot.
    pub(crate) fn hottest(&self, now: Now) -> Vec<Hottest> {
        let mut hottest = Vec::new();
        self.all().iter().for_each(|worker| lock(worker).cells.add_hottest(&mut hottest, now));
        hottest
    }

    /// Takes every worker and never gives it back: from now on no request can be asked.
    pub(crate) fn stop_asking(&self) {
        self.all().iter().for_each(|worker| std::mem::forget(lock(worker)));
    }
}

/// Takes a worker's state.
#[inline]
pub(crate) fn lock(state: &SharedState) -> MutexGuard<'_, WorkerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
