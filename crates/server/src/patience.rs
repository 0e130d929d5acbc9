//! Requests that wait for units of other regions, or of the region's pools, for a bounded time and in a bounded number.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, timeout_at},
};

/// Requests that wait at one time. Past them a denial counts at once: whoever floods a limit shall take neither memory by it
/// nor all streams of a proxy's connection.
const WAITING_MAX: usize = 256;

/// Where requests wait.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// [`acequia_node::Node::news`].
    news: watch::Sender<u64>,
    room: Arc<Semaphore>,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Which limits denied it.
    pub(crate) denied: u64,
    until: Instant,
    news: watch::Receiver<u64>,
    _room: OwnedSemaphorePermit,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { news: watch::Sender::new(0), room: Arc::new(Semaphore::new(WAITING_MAX)) }
    }
}

impl Waiting {
    /// A place to wait for so long, if there is one left.
    pub(crate) fn patience(&self, longest: Duration, denied: u64) -> Option<Patience> {
        let room = Arc::clone(&self.room).try_acquire_owned().ok()?;
        Some(Patience { denied, until: Instant::now() + longest, news: self.news.subscribe(), _room: room })
    }

    /// Units came.
    pub(crate) fn tell(&self, news: u64) {
        self.news.send_if_modified(|last| std::mem::replace(last, news) != news);
    }
}

impl Patience {
    /// Waits for news, or until the time is over. The sender outlives whoever waits.
    pub(crate) async fn wait(&mut self) {
        let _over = timeout_at(self.until, self.news.changed()).await;
    }

    /// The same for no longer than `left` from now, unless its time is over.
    pub(crate) fn shorten(self, left: Duration) -> Option<Self> {
        let now = Instant::now();
        let until = self.until.min(now + left);
        (until > now).then_some(Self { until, ..self })
    }
}
