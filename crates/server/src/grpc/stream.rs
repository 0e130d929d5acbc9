//! `acequia.v1.Limiter/CheckStream`: many checks in flight, many in a message.
//!
//! The response is pulled: a message is read and decided once there is room for its answer. So a caller that
//! does not read is not read from either, and memory has a bound.
//!
//! When the connection is to end, the stream ends once everything that was decided is answered. Its caller
//! asks the rest elsewhere.

use std::{
    future::Future as _,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use acequia_api::wire::{CheckOut, REST_UNDECIDED, read_check_batch, write_check_result};
use acequia_limits::Request;
use acequia_node::Ask;
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::{
    sync::futures::OwnedNotified,
    time::{Sleep, sleep},
};

use super::{
    limiter::{self, Wanted},
    message::{PREFIX, Status, expect, finish, late as late_status, message_length, ok},
    reply::By,
};
use crate::{
    callers::owner,
    config::May,
    connections::{Hold, StreamPlace},
    question::BadRequest,
    respond::with_check_out,
    settings::SETTINGS,
    worker::{How, Unwritten, Worker},
    writer::REPLY_WAIT_MAX,
};

/// Bytes of a result without details.
const RESULT_BYTES: usize = 24;

/// A stream of checks being answered.
pub(crate) struct CheckStream {
    by: By,
    incoming: Incoming,
    received: BytesMut,
    /// The bytes that `received` holds.
    hold: Hold,
    ends: Pin<Box<OwnedNotified>>,
    _place: StreamPlace,
    /// The deadline of the message that has begun.
    late: Option<Pin<Box<Sleep>>>,
    /// The caller sends no more.
    is_ended: bool,
    /// A message whose answer waits for the disk.
    settling: Option<BoxFuture<'static, Bytes>>,
    /// The trailers have gone out.
    is_done: bool,
}

/// How a stream ends.
enum End {
    /// The caller asks no more, and all checks are answered.
    Answered,
    /// All checks that were decided are answered. The others may be asked again elsewhere.
    RestUndecided,
    Fault(Status),
}

impl From<Status> for End {
    fn from(fault: Status) -> Self {
        Self::Fault(fault)
    }
}

impl End {
    fn trailers(&self) -> HeaderMap {
        match self {
            Self::Answered => ok(),
            Self::RestUndecided => {
                let what =
                    "this node ends its streams: ask what has no answer on another, it was not decided";
                let mut trailers = Status::new(tonic::Code::Unavailable, what).trailers();
                let name = HeaderName::from_static(REST_UNDECIDED);
                trailers.insert(name, HeaderValue::from_static("1"));
                trailers
            }
            Self::Fault(status) => status.trailers(),
        }
    }
}

/// The answer to a message, and the results in it that must wait for the disk.
struct Decided {
    out: Vec<u8>,
    unwritten: Vec<(Range<usize>, Unwritten, bool)>,
}

impl CheckStream {
    pub(super) fn new(by: By, incoming: Incoming) -> Result<Self, Status> {
        by.may(May::Check)?;
        by.worker.may_record()?;
        Ok(Self {
            _place: by.life.stream()?,
            ends: Box::pin(by.life.ends()),
            hold: by.life.hold(),
            by,
            incoming,
            received: BytesMut::new(),
            late: None,
            is_ended: false,
            settling: None,
            is_done: false,
        })
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        match ready!(self.poll_message(cx)) {
            Ok(message) => Poll::Ready(Some(Frame::data(message))),
            Err(end) => {
                self.is_done = true;
                Poll::Ready(Some(Frame::trailers(end.trailers())))
            }
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, End>> {
        loop {
            if let Some(settling) = &mut self.settling {
                let message = ready!(settling.as_mut().poll(cx));
                self.settling = None;
                return Poll::Ready(Ok(self.by.life.held_answer(message)));
            }
            match message_length(&self.received)? {
                Some(length) if self.received.len() >= PREFIX + length => {
                    let message = self.received.split_to(PREFIX + length).freeze();
                    if length > SETTINGS.held.small_bytes {
                        // Otherwise the rest would keep the large message's buffer.
                        self.received = BytesMut::from(&self.received[..]);
                    }
                    expect(&mut self.received, &mut self.hold)?;
                    self.late = None;
                    self.by.life.called();
                    let decided = decide(&self.by, &message[PREFIX..])?;
                    if decided.unwritten.is_empty() {
                        return Poll::Ready(Ok(self.by.life.held_answer(finish(decided.out))));
                    }
                    self.settling = Some(Box::pin(settle(Arc::clone(&self.by.worker), decided)));
                }
                _ if self.is_ended && self.received.is_empty() => return Poll::Ready(Err(End::Answered)),
                _ if self.is_ended => {
                    let fault = Status::malformed("the stream ends within a message");
                    return Poll::Ready(Err(fault.into()));
                }
                _ if self.ends.as_mut().poll(cx).is_ready() || self.by.life.is_ending() => {
                    return Poll::Ready(Err(End::RestUndecided));
                }
                _ => match Pin::new(&mut self.incoming).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Ok(data) = frame.into_data() {
                            self.received.extend_from_slice(&data);
                            expect(&mut self.received, &mut self.hold)?;
                        }
                    }
                    Poll::Ready(Some(Err(e))) => {
                        let fault = Status::new(tonic::Code::Cancelled, e.to_string());
                        return Poll::Ready(Err(fault.into()));
                    }
                    Poll::Ready(None) => self.is_ended = true,
                    Poll::Pending if self.received.is_empty() => {
                        // A quiet stream keeps no buffer.
                        self.received = BytesMut::new();
                        return Poll::Pending;
                    }
                    Poll::Pending => {
                        let late = self.late.get_or_insert_with(|| Box::pin(sleep(SETTINGS.grpc.read_max)));
                        ready!(late.as_mut().poll(cx));
                        return Poll::Ready(Err(late_status().into()));
                    }
                },
            }
        }
    }
}

/// Decides every check of a message at one time, under one lock. A message with a fault charges nothing.
fn decide(by: &By, message: &[u8]) -> Result<Decided, Status> {
    let worker = &by.worker;
    let mut checks: Vec<(Request<'_>, bool)> = Vec::new();
    for check in read_check_batch(message) {
        let check = check.inspect_err(|fault| worker.refuse(fault)).map_err(Status::malformed)?;
        let (request, Wanted { detail, recording }) = limiter::read(worker, check)?;
        if recording.is_some() {
            let fault = BadRequest::RecordInStream;
            worker.refuse(&fault);
            return Err(fault.into());
        }
        by.may_ask_for(request.domain)?;
        checks.push((request, detail));
    }
    let mut out = Vec::with_capacity(PREFIX + checks.len() * RESULT_BYTES);
    out.put_bytes(0, PREFIX);
    let mut unwritten = Vec::new();
    let mut held = worker.hold();
    let how = How::from(Ask::CHECK).of(owner(&by.rights, by.life.owner()));
    for (request, detail) in &checks {
        let begin = out.len();
        let ((), waits) = held.ask_as(request, how, |answer, catalogue| {
            let names = &worker.shared.names;
            with_check_out(answer, catalogue, *detail, names, |check| write_check_result(&mut out, check));
        });
        unwritten.extend(waits.map(|waits| (begin..out.len(), waits, *detail)));
    }
    Ok(Decided { out, unwritten })
}

/// Waits for the disk. A result that the disk was too slow for leaves as a denial.
async fn settle(worker: Arc<Worker>, decided: Decided) -> Bytes {
    let Decided { out, unwritten } = decided;
    let mut settled = Vec::with_capacity(out.len());
    let mut at = 0;
    let mut late = false;
    for (place, unwritten, detail) in unwritten {
        // A disk that was too slow for one result has had its time for all of them.
        let denial =
            if late { Some(unwritten.deny()) } else { worker.settle(unwritten, REPLY_WAIT_MAX).await };
        if let Some((denied, catalogue)) = denial {
            late = true;
            settled.extend_from_slice(&out[at..place.start]);
            let names = &worker.shared.names;
            let write = |check: &CheckOut<'_>| write_check_result(&mut settled, check);
            with_check_out(&denied, &catalogue, detail, names, write);
            at = place.end;
        }
    }
    settled.extend_from_slice(&out[at..]);
    finish(settled)
}
