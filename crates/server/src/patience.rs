//! Requests that wait for units of other regions, for a bounded time and in a bounded number.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, timeout_at},
};

/// Requests that wait at one time. Past them a denial counts at once: whoever floods a limit shall not take memory by it.
const WAITING_MAX: usize = 1_024;

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
    pub(crate) fn patience(&self, longest: Duration) -> Option<Patience> {
        let room = Arc::clone(&self.room).try_acquire_owned().ok()?;
        Some(Patience { until: Instant::now() + longest, news: self.news.subscribe(), _room: room })
    }

    /// Units came, or it is known that none will.
    pub(crate) fn tell(&self, news: u64) {
        self.news.send_if_modified(|last| std::mem::replace(last, news) != news);
    }
}

impl Patience {
    /// Waits for news, or until the time is over.
    pub(crate) async fn wait(&mut self) {
        if let Ok(Err(_)) = timeout_at(self.until, self.news.changed()).await {
            // Nobody will tell any more: the node stops.
            self.until = Instant::now();
        }
    }

    /// Whether there is no time left.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}
