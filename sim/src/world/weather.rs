//! Packets that are lost on their way, by chance.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::random::Random;

/// Decides which packets of a region are lost.
#[derive(Clone, Debug)]
pub(crate) struct Weather(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// The percentage of packets that is lost on the way to each region.
    loss: BTreeMap<IpAddr, u32>,
    random: Random,
}

impl Weather {
    pub(crate) fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(Inner { loss: BTreeMap::new(), random })))
    }

    /// From now on this percentage of packets is lost.
    pub(crate) fn lose(&self, to: IpAddr, percent: u32) {
        self.inner().loss.insert(to, percent);
    }

    /// From now on no packet is lost.
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
