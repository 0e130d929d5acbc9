//! A value that tasks wait for.
//!
//! Waiters wake in the order in which they began to wait, so that a simulation repeats. tokio's `watch` wakes them in
//! a random order.

use std::{
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// A value, and whoever waits for its change.
#[derive(Debug, Default)]
pub(crate) struct News<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Copy> News<T> {
    /// The value now.
    pub(crate) fn get(&self) -> T {
        *self.lock()
    }

    /// Changes the value, and wakes all waiters if `change` says that it is another one.
    pub(crate) fn update(&self, change: impl FnOnce(&mut T) -> bool) {
        if change(&mut self.lock()) {
            self.changed.notify_waiters();
        }
    }

    /// Waits until the value fits; returns it.
    pub(crate) async fn wait_for(&self, fits: impl Fn(T) -> bool) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            // A change after the next line wakes this task.
            changed.as_mut().enable();
            let value = self.get();
            if fits(value) {
                return value;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn waiters_wake_in_the_order_in_which_they_began_to_wait() {
        let news: Arc<News<u64>> = Arc::default();
        let woken: Arc<Mutex<Vec<u64>>> = Arc::default();
        let tasks: Vec<_> = (0..100)
            .map(|number| {
                let (news, woken) = (Arc::clone(&news), Arc::clone(&woken));
                tokio::spawn(async move {
                    assert_eq!(news.wait_for(|value| value > 1).await, 2);
                    woken.lock().expect("no panic").push(number);
                })
            })
            .collect();
        for value in 0..3 {
            // All tasks run until they wait. A runtime runs some of them at a time.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            news.update(|old| std::mem::replace(old, value) != value);
        }
        for task in tasks {
            task.await.expect("no panic");
        }
        assert_eq!(*woken.lock().expect("no panic"), (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_value_that_fits_already_is_not_waited_for() {
        let news = News { value: Mutex::new(7_u64), changed: Notify::new() };
        assert_eq!(news.wait_for(|value| value == 7).await, 7);
    }
}
