//! The catalogue that is published, and the registry that makes it.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::{Catalogue, Registry};
use crate::lock;

/// The limits in force, and what makes them.
#[derive(Debug)]
pub(crate) struct InForce {
    pub(crate) registry: Mutex<Registry>,
    catalogue: Mutex<Arc<Catalogue>>,
    /// The catalogue's version, by which askers see that theirs is old.
    version: AtomicU64,
    /// Whether a limit has had too many variants to get the ones that it needs now: then nothing passes until
    /// a restart.
    is_out_of_variants: AtomicBool,
}

impl InForce {
    pub(crate) fn new(registry: Registry) -> Self {
        Self {
            registry: Mutex::new(registry),
            catalogue: Mutex::default(),
            version: AtomicU64::new(0),
            is_out_of_variants: AtomicBool::new(false),
        }
    }

    pub(crate) fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&lock(&self.catalogue))
    }

    /// The version of the catalogue that is published next.
    pub(crate) fn next_version(&self) -> u64 {
        self.version.load(Ordering::Acquire) + 1
    }

    /// Puts a catalogue in force.
    pub(crate) fn publish(&self, catalogue: Arc<Catalogue>) {
        let version = catalogue.version;
        *lock(&self.catalogue) = catalogue;
        self.version.store(version, Ordering::Release);
    }

    /// Whether no later catalogue has been published.
    #[inline]
    pub(crate) fn is_latest(&self, catalogue: &Catalogue) -> bool {
        self.version.load(Ordering::Acquire) == catalogue.version
    }

    pub(crate) fn run_out_of_variants(&self) {
        self.is_out_of_variants.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_out_of_variants(&self) -> bool {
        self.is_out_of_variants.load(Ordering::Acquire)
    }
}
