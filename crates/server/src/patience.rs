//! Requests that wait for units of other regions, of the region's pools, or of another node of the region.
//! Both their number and their time have a bound.

use std::{sync::Arc, time::Duration};

use acequia_limits::Now;
use acequia_node::{Asker, ForwardedRequest, Forwarding, Node, Waiter};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use crate::{news::News, settings::SETTINGS};

/// Where requests wait.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// [`acequia_node::Node::news`].
    news: Arc<News<u64>>,
    /// Wakes the sender of frames: somebody waits for what the frames ask for.
    frames: Notify,
    room: Arc<Semaphore>,
}

/// A forward of a request's charge. It is given up when the request stops waiting, for whatever reason.
#[derive(Debug)]
struct Forwarded {
    node: Arc<Node>,
    request: ForwardedRequest,
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        self.node.cancel_forward(&self.request);
    }
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Patience {
    /// The limits that denied the request, as a set of bits.
    pub(crate) denied: u64,
    until: Instant,
    news: Arc<News<u64>>,
    /// The last news that were heard.
    heard: u64,
    /// Whether what the request lacks may be forwarded; and, below, the forward itself.
    may_forward: bool,
    forwarded: Option<Forwarded>,
    /// When the request began to wait: steady clock.
    since_ns: u64,
    _room: OwnedSemaphorePermit,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            news: Arc::default(),
            frames: Notify::new(),
            room: Arc::new(Semaphore::new(SETTINGS.requests.waiting_max)),
        }
    }
}

impl Waiting {
    /// A place to wait for `longest`, if there is one left. `since_ns`: when the request was asked, by the
    /// steady clock.
    pub(crate) fn patience(&self, longest: Duration, denied: u64, since_ns: u64) -> Option<Patience> {
        let room = Arc::clone(&self.room).try_acquire_owned().ok()?;
        Some(Patience {
            denied,
            until: Instant::now() + longest,
            news: Arc::clone(&self.news),
            heard: self.news.get(),
            may_forward: false,
            forwarded: None,
            since_ns,
            _room: room,
        })
    }

    /// Says that there are frames to send at once.
    pub(crate) fn call(&self) {
        self.frames.notify_one();
    }

    /// Waits for a call.
    pub(crate) async fn called(&self) {
        self.frames.notified().await;
    }

    /// Says that units came.
    pub(crate) fn tell(&self, news: u64) {
        self.news.update(|last| std::mem::replace(last, news) != news);
    }
}

impl Patience {
    /// Waits for news, or until the time is over. While a forward is under way and none of its units has
    /// come, news are for others.
    pub(crate) async fn wait(&mut self) {
        let until = if self.may_forward {
            self.until.min(Instant::now() + SETTINGS.requests.ask_again)
        } else {
            self.until
        };
        loop {
            let heard = self.heard;
            match timeout_at(until, self.news.wait_for(|news| news != heard)).await {
                Ok(news) => self.heard = news,
                Err(_) => return,
            }
            if !self.is_forwarding() {
                return;
            }
        }
    }

    fn is_forwarding(&self) -> bool {
        self.forwarded.as_ref().is_some_and(|Forwarded { node, request }| node.is_forwarding(request))
    }

    /// Forwards the charge that was just denied, where that may be done and no earlier forward is under way.
    /// Says whether there are frames to send.
    pub(crate) fn forward(&mut self, node: &Arc<Node>, asker: &Asker, now: Now) -> bool {
        let (answer, catalogue) = asker.last();
        self.may_forward |= node.may_forward(answer);
        if self.forwarded.as_ref().is_some_and(|forwarded| !node.is_answered(&forwarded.request)) {
            return false;
        }
        let left = self.until.saturating_duration_since(Instant::now());
        let left_ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        let (since_ns, is_again) = (self.since_ns, self.forwarded.is_some());
        let waiter = Waiter { since_ns, patience_ns: left_ns, is_again };
        let request = node.forward_charge(answer, catalogue, waiter, now);
        let is_sent = request.is_some();
        if let Some(request) = request {
            self.forwarded = Some(Forwarded { node: Arc::clone(node), request });
        }
        is_sent
    }

    /// How the request is asked again, if its charge may be forwarded.
    pub(crate) fn forwarding(&self) -> Forwarding {
        self.forwarded
            .as_ref()
            .map_or(Forwarding::May, |forwarded| Forwarding::Since(forwarded.request.since_ns()))
    }

    /// Whether a request that is denied again goes on waiting, by the limits that deny it now.
    pub(crate) fn goes_on(&self, denied: u64) -> bool {
        goes_on(self.denied, denied, self.may_forward)
    }

    /// This wait, cut to at most `left` from now; `None` if its time is over.
    pub(crate) fn shorten(self, left: Duration) -> Option<Self> {
        let now = Instant::now();
        let until = self.until.min(now + left);
        (until > now).then_some(Self { until, ..self })
    }
}

/// A limit that denies only now was asked of nobody, so the wait ends. With forwards, some of the limits that
/// denied before may have their units by now, while others still wait. If no limit denies any more, something
/// else denies the request, and no wait mends that.
const fn goes_on(before: u64, now: u64, may_forward: bool) -> bool {
    if may_forward { now != 0 && now & !before == 0 } else { now == before }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_on_only_while_no_new_limit_denies_it() {
        assert!(goes_on(0b11, 0b11, false) && goes_on(0b11, 0b11, true));
        assert!(goes_on(0b11, 0b01, true), "the other one has been forwarded");
        assert!(!goes_on(0b11, 0b01, false), "nothing was");
        assert!(!goes_on(0b01, 0b11, true) && !goes_on(0b01, 0b11, false), "nobody asked for the other");
        assert!(!goes_on(0b01, 0, true) && !goes_on(0b01, 0, false), "no limit denies it");
    }
}
