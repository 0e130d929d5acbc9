//! Labels of metrics that callers choose: only the first few are counted by name, and all others together.

use std::{
    borrow::Borrow,
    collections::BTreeSet,
    sync::{Mutex, OnceLock, PoisonError},
};

/// The labels that are counted by name, over all workers: the first that came.
#[derive(Debug)]
pub(crate) struct FirstLabels<L> {
    /// The most labels.
    most: usize,
    first: Mutex<BTreeSet<L>>,
    /// All labels, once the set is full: from then on no thread waits for the lock.
    all: OnceLock<BTreeSet<L>>,
}

impl<L: Ord + Clone> FirstLabels<L> {
    /// No labels yet, and at most `most`.
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, first: Mutex::new(BTreeSet::new()), all: OnceLock::new() }
    }

    /// Whether a label is counted by name. Takes it in if there is room.
    #[cold]
    pub(crate) fn takes<Q: Ord + ToOwned<Owned = L> + ?Sized>(&self, label: &Q) -> bool
    where
        L: Borrow<Q>,
    {
        if let Some(all) = self.all.get() {
            return all.contains(label);
        }
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = first.contains(label) || (first.len() < self.most && first.insert(label.to_owned()));
        if first.len() == self.most {
            // Another worker may have set the value first, with the same labels.
            let _ = self.all.set(first.clone());
        }
        is_taken
    }
}
