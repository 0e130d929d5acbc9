//! Gives charges back in the background.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::{runtime::Handle, sync::Semaphore, time::sleep};

use crate::{Client, ClientError, SettleResponse, Settled, settings::SETTINGS};

/// The most refunds that a layer has in flight. This covers the failures during one answer of a node at
/// some thousand requests a second. Refunds beyond this number are not made.
pub const REFUNDS_IN_FLIGHT_MAX: usize = 256;

/// Gives charges back, a bounded number at once.
#[derive(Debug)]
pub(crate) struct Refunds {
    client: Client,
    room: Arc<Semaphore>,
    lost: AtomicU64,
}

/// A charge that is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct RefundableCharge {
    refunds: Arc<Refunds>,
    id: String,
}

impl Refunds {
    pub(crate) fn of(client: Client) -> Self {
        Self { client, room: Arc::new(Semaphore::new(REFUNDS_IN_FLIGHT_MAX)), lost: AtomicU64::new(0) }
    }

    /// The charge with this id. An empty id makes a charge that does nothing.
    pub(crate) fn charge(self: &Arc<Self>, id: String) -> RefundableCharge {
        RefundableCharge { refunds: Arc::clone(self), id }
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

impl RefundableCharge {
    /// Keeps the charge. Returns its id, so that the caller can still give the charge back later.
    pub(crate) fn keep(mut self) -> String {
        std::mem::take(&mut self.id)
    }
}

impl Drop for RefundableCharge {
    fn drop(&mut self) {
        if !self.id.is_empty() {
            Arc::clone(&self.refunds).refund(std::mem::take(&mut self.id));
        }
    }
}

/// Sends a settlement until it is answered, but not forever.
pub(crate) async fn insist<F>(mut settle: impl FnMut() -> F) -> Result<SettleResponse, ClientError>
where
    F: Future<Output = Result<SettleResponse, ClientError>>,
{
    let mut settled = settle().await;
    for _ in 1..SETTINGS.settlement.tries {
        if matches!(settled, Ok(_) | Err(ClientError::Refused { .. })) {
            break;
        }
        sleep(SETTINGS.settlement.pause).await;
        settled = settle().await;
    }
    settled
}

/// Whether the charge is settled or will be, by this call or an earlier one.
pub(crate) fn is_settled(settled: &Result<SettleResponse, ClientError>) -> bool {
    settled.as_ref().is_ok_and(|response| {
        matches!(response.settled(), Settled::Done | Settled::Before | Settled::Forwarded)
    })
}
