//! Answers to calls of one message.

use std::sync::Arc;

use acequia_limits::{Now, Request};
use acequia_node::{Answer, Catalogue, IdReused};
use bytes::Bytes;
use futures::future::BoxFuture;

use super::message::Status;
use crate::{
    callers::{CallRights, may, may_ask_for, origin, owner},
    config::May,
    connections::Life,
    port::Port,
    question::BadRequest,
    refused::TurnedAway,
    worker::{Asked, How, Worker},
};

/// An answer.
pub(super) enum Reply {
    Now(Bytes),
    /// The answer comes later: when the disk has its charge, or units have come from elsewhere.
    Later(BoxFuture<'static, Result<Bytes, Status>>),
}

/// What an answer is made from, beside the decision.
#[derive(Clone, Copy)]
pub(super) struct Replying<'a, P> {
    pub(super) worker: &'a Worker,
    /// The message that is answered.
    pub(super) message: &'a [u8],
    /// What was read beside the request.
    pub(super) with: P,
}

/// The worker that answers, and what the caller may do.
pub(super) struct By {
    pub(super) worker: Arc<Worker>,
    pub(super) rights: CallRights,
    pub(super) life: Arc<Life>,
}

impl By {
    /// Checks that the caller may do this.
    ///
    /// # Errors
    /// The caller may not; the refusal is counted.
    pub(super) fn may(&self, what: May) -> Result<(), Status> {
        self.counted(may(&self.rights, what))
    }

    /// Checks that the caller may ask for this domain.
    ///
    /// # Errors
    /// The caller may not; the refusal is counted.
    pub(super) fn may_ask_for(&self, domain: &[u8]) -> Result<(), Status> {
        self.counted(may_ask_for(&self.rights, domain))
    }

    fn counted(&self, allowed: Result<(), TurnedAway>) -> Result<(), Status> {
        allowed.map_err(|fault| {
            self.worker.shared.refused.turn_away(Port::Grpc, fault, origin(&self.rights));
            fault.into()
        })
    }
}

/// Answers a message. `read` makes the request and what `how` and `respond` need beside it. If the answer has
/// to wait, the message is read again for that, since a request borrows it.
pub(super) fn reply<P: Copy + Send + Sync + 'static>(
    by: &By,
    message: &Bytes,
    how: impl FnOnce(P) -> How,
    read: impl for<'a> Fn(&Worker, &'a [u8]) -> Result<(Request<'a>, P), Status> + Send + Sync + 'static,
    respond: impl Fn(Replying<'_, P>, &Answer, &Catalogue, Now) -> Bytes + Send + Sync + 'static,
) -> Result<Reply, Status> {
    let (request, with) = read(&by.worker, message)?;
    reply_to(by, message, request, with, how(with), read, respond)
}

/// As [`reply`], for a message that was read already.
#[inline]
pub(super) fn reply_to<P: Copy + Send + Sync + 'static>(
    by: &By,
    message: &Bytes,
    request: Request<'_>,
    with: P,
    how: How,
    read: impl for<'a> Fn(&Worker, &'a [u8]) -> Result<(Request<'a>, P), Status> + Send + Sync + 'static,
    respond: impl Fn(Replying<'_, P>, &Answer, &Catalogue, Now) -> Bytes + Send + Sync + 'static,
) -> Result<Reply, Status> {
    let worker = &by.worker;
    let how = how.of(owner(&by.rights, by.life.owner()));
    by.may(how.action())?;
    by.may_ask_for(request.domain)?;
    worker.may_lease(&request, how)?;
    // If other nodes may know the name, the store is asked first.
    let asks_others = worker.shared.counting.get().is_some() || worker.shared_name(how).is_some();
    let asked = (!asks_others).then(|| {
        worker.hold().ask_patiently(&request, how, |answer, catalogue, now| {
            respond(Replying { worker, message, with }, answer, catalogue, now)
        })
    });
    if let Some(Asked::Now(reply)) = asked {
        return Ok(Reply::Now(reply));
    }
    drop(request);
    let (worker, message) = (Arc::clone(worker), message.clone());
    Ok(Reply::Later(Box::pin(async move {
        let Ok((request, with)) = read(&worker, &message) else { unreachable!("it was read before") };
        let respond = |answer: &Answer, catalogue: &Catalogue, now| {
            respond(Replying { worker: &worker, message: &message, with }, answer, catalogue, now)
        };
        let reply = match asked {
            Some(asked) => worker.finish(&request, how, asked, respond).await,
            None => worker.ask(&request, how, respond).await,
        };
        reply.map_err(|IdReused| BadRequest::IdReused.into())
    })))
}
