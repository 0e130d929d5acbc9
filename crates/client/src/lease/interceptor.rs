//! Decides where no call may wait.

use std::sync::Arc;

use tonic::{Request, Status, service::Interceptor};

use super::{Lease, LeaseTake};
use crate::{
    Decision, Fallback, Unasked,
    denial::{denied_status, guarded_status, push_back, unavailable_status},
    fallback::LocalFallback,
    settings::SETTINGS,
};

/// Lets a gRPC call through if a [`Lease`] allows a cost of 1.
///
/// A tonic interceptor cannot wait, so it cannot ask a node: it decides for one hot cell, in memory.
/// Everything else needs a [`LimitLayer`](crate::LimitLayer), which asks.
///
/// - Denied: `RESOURCE_EXHAUSTED`, in the form of [`denied_status`].
/// - No node answers: the fallback decides.
/// - Units are on their way, as after a quiet time: `UNAVAILABLE`, with a pushback of 10 ms.
#[derive(Clone, Debug)]
pub struct LeaseInterceptor {
    lease: Lease,
    local: Arc<LocalFallback>,
}

impl LeaseInterceptor {
    /// Decides by `lease`, and by `fallback` while no node answers the lease.
    pub fn new(lease: Lease, fallback: Fallback) -> Self {
        Self { lease, local: Arc::new(LocalFallback::new(fallback)) }
    }

    /// How often the fallback decided.
    pub fn unasked(&self) -> Unasked {
        self.local.unasked()
    }

    fn decide(&self) -> Result<(), Status> {
        match self.lease.try_take(1) {
            LeaseTake::Taken => Ok(()),
            LeaseTake::Denied { retry_after } => Err(denied_status(&self.lease.shared.denied(retry_after))),
            LeaseTake::Empty if self.lease.is_unanswered() => match self.local.decide(1) {
                Decision::AllowedUnasked => Ok(()),
                Decision::DeniedUnasked { retry_after } => Err(guarded_status(retry_after)),
                Decision::Unavailable | Decision::Answered(_) => Err(unavailable_status()),
            },
            LeaseTake::Empty => {
                let mut status = Status::unavailable("the rate limiter is being asked");
                push_back(&mut status, Some(SETTINGS.lease.soon));
                Err(status)
            }
        }
    }
}

impl Interceptor for LeaseInterceptor {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        self.decide().map(|()| request)
    }
}
