//! Packets that are lost on their way, by chance.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::random::Random;

/// What becomes of the packets that a region sends.
#[derive(Clone, Debug)]
pub(crate) struct Weather(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// Of a hundred packets to each region so many are lost.
    loss: BTreeMap<IpAddr, u32>,
    random: Random,
}

impl Weather {
    pub(crate) fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(Inner { loss: BTreeMap::new(), random })))
    }

    /// From now on so many of a hundred are lost.
    pub(crate) fn lose(&self, to: IpAddr, percent: u32) {
        self.inner().loss.insert(to, percent);
    }

    /// Nothing is lost any more.
    pub(crate) fn clear(&self) {
        self.inner().loss.clear();
    }

    /// Whether a packet that is sent now is lost.
    pub(crate) fn loses(&self, to: SocketAddr) -> bool {
        let mut inner = self.inner();
        let percent = inner.loss.get(&to.ip()).copied().unwrap_or(0);
        inner.random.chance(percent * 10_000)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
