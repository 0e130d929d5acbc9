//! Giving back in the background.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Semaphore, time::sleep};

use crate::{Client, ClientError, SettleResponse, Settled};

/// Refunds that a layer has in flight: as many as fail in the time that a node takes to answer, of some thousand requests
/// a second. What comes on top is not given back.
pub const REFUNDS_IN_FLIGHT_MAX: usize = 256;
/// How often a settlement is sent: that is safe, because a charge is settled once.
const TRIES: usize = 3;
/// How long to wait before it is sent again: a connection that was lost is made again in that time.
const PAUSE: Duration = Duration::from_millis(50);

/// Gives charges back, a bounded number at once.
#[derive(Debug)]
pub(crate) struct Refunds {
    client: Client,
    room: Arc<Semaphore>,
    lost: AtomicU64,
}

/// A charge that is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    refunds: Arc<Refunds>,
    id: String,
}

impl Refunds {
    pub(crate) fn of(client: Client) -> Self {
        Self { client, room: Arc::new(Semaphore::new(REFUNDS_IN_FLIGHT_MAX)), lost: AtomicU64::new(0) }
    }

    /// A charge of this name. Nothing comes of it if the name is empty.
    pub(crate) fn charge(self: &Arc<Self>, id: String) -> Charge {
        Charge { refunds: Arc::clone(self), id }
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn refund(self: Arc<Self>, id: String) {
        // A request may be dropped by a runtime that ends.
        let (Ok(runtime), Ok(room)) = (Handle::try_current(), Arc::clone(&self.room).try_acquire_owned())
        else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        runtime.spawn(async move {
            if !is_settled(&insist(|| self.client.refund(&id)).await) {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            drop(room);
        });
    }
}

impl Charge {
    /// It stays charged. The name, should it be given back after all.
    pub(crate) fn keep(mut self) -> String {
        std::mem::take(&mut self.id)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if !self.id.is_empty() {
            Arc::clone(&self.refunds).refund(std::mem::take(&mut self.id));
        }
    }
}

/// Settles until somebody answers, but not forever.
pub(crate) async fn insist<F>(mut settle: impl FnMut() -> F) -> Result<SettleResponse, ClientError>
where
    F: Future<Output = Result<SettleResponse, ClientError>>,
{
    let mut settled = settle().await;
    for _ in 1..TRIES {
        if matches!(settled, Ok(_) | Err(ClientError::Refused { .. })) {
            break;
        }
        sleep(PAUSE).await;
        settled = settle().await;
    }
    settled
}

/// Whether it is settled, or will be, by this call or an earlier one.
pub(crate) fn is_settled(settled: &Result<SettleResponse, ClientError>) -> bool {
    settled.as_ref().is_ok_and(|response| {
        matches!(response.settled(), Settled::Done | Settled::Before | Settled::Forwarded)
    })
}
