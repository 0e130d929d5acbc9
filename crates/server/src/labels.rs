//! Labels of metrics that callers choose: only the first so many are counted by name, and all others together.

use std::{
    borrow::Borrow,
    collections::BTreeSet,
    sync::{Mutex, OnceLock, PoisonError},
};

/// The labels that are counted by name, over all workers: the first that came.
#[derive(Debug)]
pub(crate) struct FirstLabels<L> {
    /// How many there may be.
    most: usize,
    first: Mutex<BTreeSet<L>>,
    /// All of them, once no more are taken: then nobody waits for a lock.
    all: OnceLock<BTreeSet<L>>,
}

impl<L: Ord + Clone> FirstLabels<L> {
    /// None yet, and at most so many.
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, first: Mutex::new(BTreeSet::new()), all: OnceLock::new() }
    }

    /// Whether a label is one of them, or becomes one now.
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
            // Another worker may have been earlier, with the same ones.
            let _ = self.all.set(first.clone());
        }
        is_taken
    }
}
