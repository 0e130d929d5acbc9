//! One call. Nearly always its message is there already and its answer waits for nothing; that way is
//! kept small, because hyper moves a call's future about. All else is boxed.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use hyper::body::Incoming;
use tonic::service::Routes;
use tower::Service;

use super::{
    body::{GrpcBody, Status, message_of, read_rest},
    envoy, limiter,
    stream::CheckStream,
};
use crate::worker::Worker;

/// A call being answered.
pub(super) enum Call {
    /// Its message is being read.
    Hot { method: Method, body: Incoming, worker: Arc<Worker> },
    /// It waits for something.
    Waiting(BoxFuture<'static, Response<GrpcBody>>),
    /// It needs no reading.
    Answered(Option<Response<GrpcBody>>),
}

/// The calls with one message that are answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    ShouldRateLimit,
    Check,
    Peek,
}

/// An answer.
pub(super) enum Reply {
    Now(Bytes),
    /// When the disk has it.
    Later(BoxFuture<'static, Bytes>),
}

impl Call {
    pub(super) fn new(request: Request<Incoming>, worker: &Arc<Worker>, routes: &Routes) -> Self {
        let method = match request.uri().path() {
            envoy::SHOULD_RATE_LIMIT => Some(Method::ShouldRateLimit),
            limiter::CHECK => Some(Method::Check),
            limiter::PEEK => Some(Method::Peek),
            limiter::CHECK_STREAM => None,
            _ => {
                let mut routes = routes.clone();
                return Self::Waiting(Box::pin(async move {
                    // A router without fallible layers cannot fail.
                    let response = routes.call(request.map(tonic::body::Body::new)).await;
                    response.unwrap_or_else(|never| match never {}).map(GrpcBody::Tonic)
                }));
            }
        };
        if !is_grpc(&request) {
            let mut response = Response::new(GrpcBody::Empty);
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Self::Answered(Some(response));
        }
        let (body, worker) = (request.into_body(), Arc::clone(worker));
        match method {
            Some(method) => Self::Hot { method, body, worker },
            None => {
                let stream = GrpcBody::stream(CheckStream::new(worker, body));
                Self::Answered(Some(respond(Ok(stream))))
            }
        }
    }
}

impl Future for Call {
    type Output = Result<Response<GrpcBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match this {
                Self::Hot { method, body, worker } => {
                    let method = *method;
                    let first = match Pin::new(&mut *body).poll_frame(cx) {
                        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                        Poll::Ready(Some(Err(_)) | None) | Poll::Pending => Bytes::new(),
                    };
                    if body.is_end_stream() {
                        match message_of(&first).and_then(|message| answer(method, worker, &message)) {
                            Ok(Reply::Now(reply)) => {
                                return Poll::Ready(Ok(respond(Ok(GrpcBody::unary(reply)))));
                            }
                            Ok(Reply::Later(reply)) => {
                                *this = Self::Waiting(Box::pin(async move {
                                    respond(Ok(GrpcBody::unary(reply.await)))
                                }));
                            }
                            Err(status) => return Poll::Ready(Ok(respond(Err(status)))),
                        }
                    } else {
                        let Self::Hot { body, worker, .. } = std::mem::replace(this, Self::Answered(None))
                        else {
                            unreachable!("matched above")
                        };
                        *this = Self::Waiting(Box::pin(read_and_answer(method, first, body, worker)));
                    }
                }
                Self::Waiting(waiting) => return waiting.as_mut().poll(cx).map(Ok),
                Self::Answered(response) => {
                    let response = response.take().expect("a finished call is not polled again");
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}

/// The way of a message that is not here at once.
async fn read_and_answer(
    method: Method,
    first: Bytes,
    body: Incoming,
    worker: Arc<Worker>,
) -> Response<GrpcBody> {
    let reply = match read_rest(first, body).await {
        Ok(message) => answer(method, &worker, &message),
        Err(status) => Err(status),
    };
    respond(match reply {
        Ok(Reply::Now(reply)) => Ok(GrpcBody::unary(reply)),
        Ok(Reply::Later(reply)) => Ok(GrpcBody::unary(reply.await)),
        Err(status) => Err(status),
    })
}

fn answer(method: Method, worker: &Arc<Worker>, message: &[u8]) -> Result<Reply, Status> {
    match method {
        Method::ShouldRateLimit => envoy::should_rate_limit(worker, message),
        Method::Check => limiter::check(worker, message),
        Method::Peek => limiter::peek(worker, message).map(Reply::Now),
    }
}

fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Nothing but the status goes out with an error, and it goes in the headers (gRPC over HTTP/2,
/// "Trailers-Only").
fn respond(reply: Result<GrpcBody, Status>) -> Response<GrpcBody> {
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
