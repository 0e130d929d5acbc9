//! One call. Nearly always its message has come already and its answer waits for nothing. This case is kept
//! small, because hyper moves a call's future about; all others are boxed.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::{Code, service::Routes};
use tower::Service;

use super::{
    answer_by_tonic,
    body::{GrpcBody, HeldBody},
    envoy, kuadrant, limiter,
    message::{Status, message_of, read_rest},
    reply::{By, Reply},
    stream::CheckStream,
};
use crate::{
    callers::Caller,
    connections::Life,
    port::Port,
    refused::{Origin, TurnedAway},
    settings::SETTINGS,
    worker::Worker,
};

/// A call being answered.
pub(super) enum Call {
    /// Its message is being read.
    Hot { method: Method, body: Incoming, by: By, patience: CallerPatience },
    /// The answer waits for something.
    Waiting(BoxFuture<'static, Response<GrpcBody>>),
    /// The caller is unknown. The call waits, and does not keep its connection open.
    OfStranger(BoxFuture<'static, Response<GrpcBody>>),
    /// The answer needs no message.
    Answered(Option<Response<GrpcBody>>),
    /// The caller may not ask.
    TurnedAway(TurnedAway),
}

/// The call that asks whether a node is healthy.
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// The calls with one message that are answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    ShouldRateLimit,
    Check,
    Peek,
    Refund,
    Commit,
    Report,
    Renew,
    CheckRateLimit,
    KuadrantReport,
    KuadrantReserve,
    KuadrantCommit,
}

impl Call {
    pub(super) fn new(
        request: http::Request<Incoming>,
        worker: &Arc<Worker>,
        routes: &Routes,
        caller: &Caller,
        life: &Arc<Life>,
    ) -> Self {
        let rights = match caller.rights(request.headers()) {
            Ok(rights) => rights,
            // A health checker may have neither certificate nor token. Its calls do not keep the connection
            // open.
            Err(_) if request.uri().path() == HEALTH => {
                let answered = answer_by_tonic(request, routes.clone(), life, SETTINGS.grpc.read_max);
                return Self::OfStranger(Box::pin(async move {
                    answered.await.unwrap_or_else(|never| match never {})
                }));
            }
            Err(fault) => {
                worker.shared.refused.turn_away(Port::Grpc, fault, Origin::unknown(caller.from));
                return Self::TurnedAway(fault);
            }
        };
        let method = match request.uri().path() {
            envoy::SHOULD_RATE_LIMIT => Some(Method::ShouldRateLimit),
            limiter::CHECK => Some(Method::Check),
            limiter::PEEK => Some(Method::Peek),
            limiter::REFUND => Some(Method::Refund),
            limiter::COMMIT => Some(Method::Commit),
            limiter::REPORT => Some(Method::Report),
            limiter::RENEW => Some(Method::Renew),
            kuadrant::CHECK_RATE_LIMIT => Some(Method::CheckRateLimit),
            kuadrant::REPORT => Some(Method::KuadrantReport),
            kuadrant::RESERVE => Some(Method::KuadrantReserve),
            kuadrant::COMMIT => Some(Method::KuadrantCommit),
            limiter::CHECK_STREAM => None,
            _ => {
                let answered = answer_by_tonic(request, routes.clone(), life, SETTINGS.grpc.read_max);
                return Self::Waiting(Box::pin(async move {
                    answered.await.unwrap_or_else(|never| match never {})
                }));
            }
        };
        if !is_grpc(&request) {
            let mut response = Response::new(GrpcBody::Empty);
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Self::Answered(Some(response));
        }
        let patience = CallerPatience::of(request.headers());
        let by = By { worker: Arc::clone(worker), rights, life: Arc::clone(life) };
        let body = request.into_body();
        match method {
            Some(method) => Self::Hot { method, body, by, patience },
            None => {
                let stream = CheckStream::new(by, body).map(GrpcBody::stream);
                Self::Answered(Some(respond(stream)))
            }
        }
    }

    /// Whether the caller is unknown: such a call does not keep its connection open.
    pub(super) const fn is_of_stranger(&self) -> bool {
        matches!(self, Self::TurnedAway(_) | Self::OfStranger(_))
    }
}

impl Future for Call {
    type Output = Result<Response<GrpcBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match this {
                Self::Hot { method, body, by, patience } => {
                    let (method, patience) = (*method, *patience);
                    let first = match Pin::new(&mut *body).poll_frame(cx) {
                        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                        Poll::Ready(Some(Err(_)) | None) | Poll::Pending => Bytes::new(),
                    };
                    if body.is_end_stream() {
                        let reply = message_of(&first)
                            .and_then(|message| answer(method, by, &message, patience, Duration::ZERO));
                        match denied_if_too_large(method, reply) {
                            Ok(Reply::Now(reply)) => {
                                let reply = by.life.held_answer(reply);
                                return Poll::Ready(Ok(respond(Ok(GrpcBody::unary(reply)))));
                            }
                            Ok(Reply::Later(reply)) => {
                                let (life, mut hold) = (Arc::clone(&by.life), by.life.hold());
                                hold.keep(first.len());
                                *this = Self::Waiting(Box::pin(async move {
                                    let reply = reply.await.map(|reply| life.held_answer(reply));
                                    drop(hold);
                                    respond(reply.map(GrpcBody::unary))
                                }));
                            }
                            Err(status) => return Poll::Ready(Ok(respond(Err(status)))),
                        }
                    } else {
                        let Self::Hot { body, by, .. } = std::mem::replace(this, Self::Answered(None)) else {
                            unreachable!("matched above")
                        };
                        let answered = read_and_answer(method, first, body, by, patience);
                        *this = Self::Waiting(Box::pin(answered));
                    }
                }
                Self::Waiting(waiting) | Self::OfStranger(waiting) => {
                    return waiting.as_mut().poll(cx).map(Ok);
                }
                Self::TurnedAway(fault) => return Poll::Ready(Ok(respond(Err((*fault).into())))),
                Self::Answered(response) => {
                    let response = response.take().expect("a finished call is not polled again");
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}

/// Answers by tonic: health and reflection.
pub(super) fn by_tonic(
    request: http::Request<Incoming>,
    mut routes: Routes,
    life: &Arc<Life>,
) -> impl Future<Output = Response<GrpcBody>> + Send + use<> {
    let head = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let request = request.map(|body| tonic::body::Body::new(HeldBody::new(body, life, head)));
    let (hold, place) = (life.hold(), life.stream());
    async move {
        let place = match place {
            Ok(place) => place,
            Err(fault) => return respond(Err(fault.into())),
        };
        // A router without fallible layers cannot fail.
        let response = routes.call(request).await;
        response
            .unwrap_or_else(|never| match never {})
            .map(|body| GrpcBody::Tonic { body, _call: (hold, place) })
    }
}

/// Reads and answers a call of which only the `first` bytes have come.
async fn read_and_answer(
    method: Method,
    first: Bytes,
    body: Incoming,
    by: By,
    patience: CallerPatience,
) -> Response<GrpcBody> {
    let (begun, mut hold) = (Instant::now(), by.life.hold());
    let reply = match read_rest(first, body, &mut hold).await {
        Ok(message) => answer(method, &by, &message, patience, begun.elapsed()),
        Err(status) => Err(status),
    };
    respond(match denied_if_too_large(method, reply) {
        Ok(Reply::Now(reply)) => Ok(GrpcBody::unary(by.life.held_answer(reply))),
        Ok(Reply::Later(reply)) => reply.await.map(|reply| GrpcBody::unary(by.life.held_answer(reply))),
        Err(status) => Err(status),
    })
}

/// Denies a proxy's request that is too large: a client chose its size, and an error would let the request
/// through.
fn denied_if_too_large(method: Method, reply: Result<Reply, Status>) -> Result<Reply, Status> {
    let Err(status) = &reply else { return reply };
    match method {
        _ if !status.is_too_large() => reply,
        Method::ShouldRateLimit | Method::CheckRateLimit => Ok(Reply::Now(envoy::too_large())),
        Method::KuadrantReserve => Ok(Reply::Now(kuadrant::too_large())),
        _ => reply,
    }
}

fn answer(
    method: Method,
    by: &By,
    message: &Bytes,
    patience: CallerPatience,
    since: Duration,
) -> Result<Reply, Status> {
    if patience.is_over(since) {
        by.worker.shared.expired.fetch_add(1, Ordering::Relaxed);
        return Err(Status::new(
            Code::DeadlineExceeded,
            "nobody waits for this any more: nothing was charged",
        ));
    }
    let longest = patience.longest;
    match method {
        Method::ShouldRateLimit => envoy::should_rate_limit(by, message, longest),
        Method::Check => limiter::check(by, message, longest),
        Method::Peek => limiter::peek(by, message).map(Reply::Now),
        Method::Refund => limiter::refund(by, message),
        Method::Commit => limiter::commit(by, message),
        Method::Report => limiter::report(by, message, longest),
        Method::Renew => limiter::renew(by, message),
        Method::CheckRateLimit => kuadrant::check(by, message, longest),
        Method::KuadrantReport => kuadrant::report(by, message, longest),
        Method::KuadrantReserve => kuadrant::reserve(by, message, longest),
        Method::KuadrantCommit => kuadrant::commit(by, message, longest),
    }
}

/// How long a caller waits for its answer, by the deadline of its call (gRPC over HTTP/2, "grpc-timeout").
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerPatience {
    /// How long the caller's answer may be waited for here: half of its deadline, since a caller without an
    /// answer in time decides alone. Zero if the deadline cannot be read.
    longest: Duration,
    /// The whole deadline; `None` if the caller gives none, or one that cannot be read.
    allows: Option<Duration>,
}

impl CallerPatience {
    /// Reads the deadline of a call whose head has just come.
    fn of(headers: &HeaderMap) -> Self {
        const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
        let Some(written) = headers.get(GRPC_TIMEOUT).map(HeaderValue::as_bytes) else {
            return Self { longest: Duration::MAX, allows: None };
        };
        match timeout(written) {
            Some(time) => Self { longest: time / 2, allows: Some(time) },
            None => Self { longest: Duration::ZERO, allows: None },
        }
    }

    /// Whether the caller has given up, so long after the call's head came: a charge would be for nothing.
    fn is_over(self, since: Duration) -> bool {
        self.allows.is_some_and(|allows| since.max(SETTINGS.grpc.soonest) >= allows)
    }
}

/// Reads at most eight digits and a unit; `None` for any other text.
fn timeout(written: &[u8]) -> Option<Duration> {
    let (unit, digits) = written.split_last()?;
    let count: u32 = std::str::from_utf8(digits).ok().filter(|digits| digits.len() <= 8)?.parse().ok()?;
    let unit = match unit {
        b'H' => Duration::from_secs(3_600),
        b'M' => Duration::from_secs(60),
        b'S' => Duration::from_secs(1),
        b'm' => Duration::from_millis(1),
        b'u' => Duration::from_micros(1),
        b'n' => Duration::from_nanos(1),
        _ => return None,
    };
    unit.checked_mul(count)
}

fn is_grpc(request: &http::Request<Incoming>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// An error is only a status, in the headers (gRPC over HTTP/2, "Trailers-Only").
pub(super) fn respond(reply: Result<GrpcBody, Status>) -> Response<GrpcBody> {
    let (body, status) = match reply {
        Ok(body) => (body, None),
        Err(status) => (GrpcBody::Empty, Some(status)),
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    if let Some(status) = status {
        status.write(headers);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_at_most_half_of_its_callers_timeout() {
        let patience = |written: &'static str| {
            CallerPatience::of(&HeaderMap::from_iter([(
                HeaderName::from_static("grpc-timeout"),
                HeaderValue::from_static(written),
            )]))
        };
        let wait = |written: &'static str| patience(written).longest;
        assert_eq!(CallerPatience::of(&HeaderMap::new()).longest, Duration::MAX);
        let is_over = |written, ms| patience(written).is_over(Duration::from_millis(ms));
        assert!(is_over("1n", 0) && is_over("0S", 0) && is_over("20m", 20));
        assert!(!is_over("20m", 19) && !is_over("99999999H", 1 << 30) && !is_over("x", 1 << 30));
        assert_eq!(wait("20m"), Duration::from_millis(10));
        assert_eq!(wait("99999999H"), Duration::from_secs(99_999_999 * 1_800));
        assert_eq!(wait("1500000u"), Duration::from_millis(750));
        for nonsense in ["", "m", "12", "123456789S", "-1S", "1s", "1.5S", "S1"] {
            assert_eq!(wait(nonsense), Duration::ZERO, "{nonsense}");
        }
    }
}
