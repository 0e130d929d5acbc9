//! A process that sleeps while its machine goes on. Its sockets stay open, no data goes in or out, and its
//! clocks show the time at which it fell asleep.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// Whether a region's process sleeps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nap(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    sleeps: bool,
    /// The tasks that go on when the process wakes: as many as there are sockets and streams.
    waiting: Vec<Waker>,
}

impl Nap {
    /// The process falls asleep.
    pub(crate) fn begin(&self) {
        self.inner().sleeps = true;
    }

    /// Wakes the process, if it sleeps.
    pub(crate) fn end(&self) {
        let waiting = {
            let mut inner = self.inner();
            inner.sleeps = false;
            std::mem::take(&mut inner.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.inner().sleeps
    }

    /// Ready while the process is awake.
    pub(crate) fn poll_awake(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.inner();
        if !inner.sleeps {
            return Poll::Ready(());
        }
        if !inner.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            inner.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_for_a_sleeper_goes_on_when_it_wakes() {
        let nap = Nap::default();
        let cx = Context::from_waker(Waker::noop());
        assert!(nap.poll_awake(&cx).is_ready());
        nap.begin();
        assert!(nap.poll_awake(&cx).is_pending() && nap.poll_awake(&cx).is_pending());
        assert_eq!(nap.inner().waiting.len(), 1);
        nap.end();
        assert!(nap.poll_awake(&cx).is_ready() && nap.inner().waiting.is_empty());
    }
}
