//! The gRPC port: the rate limit services of Envoy and Kuadrant, `acequia.v1.Limiter`, health and reflection.
//!
//! The calls that decide are answered here, straight from the bytes of the request to the bytes of the
//! response. tonic's own service costs as much again as the decision (`tests/bench`). All other calls go
//! through tonic.

mod body;
mod call;
mod done;
mod envoy;
mod kuadrant;
mod limiter;
mod message;
mod reply;
mod request_metadata;
mod stream;

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use acequia_api::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::Body;
use hyper::{body::Incoming, rt::Executor};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};

use self::{
    body::GrpcBody,
    call::Call,
    reply::{By, Reply},
};
use crate::{
    admit::Admitted,
    callers::CallRights,
    connections::{Life, Stage},
    linger::{self, Borrowed},
    refused::TurnedAway,
    settings::SETTINGS,
    worker::Worker,
};

/// The answer to a call that tonic answers.
pub(crate) type Answered = BoxFuture<'static, Result<http::Response<GrpcBody>, Infallible>>;

/// Has tonic answer a call, within a bounded time.
pub(crate) fn answer_by_tonic(
    request: http::Request<Incoming>,
    routes: Routes,
    life: &Arc<Life>,
    within: Duration,
) -> Answered {
    let response = call::by_tonic(request, routes, life);
    Box::pin(async move {
        Ok(match tokio::time::timeout(within, response).await {
            Ok(response) => response,
            Err(_) => call::respond(Err(message::late())),
        })
    })
}

/// Answers a request of Envoy's protocol that came another way.
///
/// # Errors
/// The request is malformed, or the caller may not ask; in words.
pub(crate) async fn ask_envoy(
    worker: Arc<Worker>,
    rights: CallRights,
    life: Arc<Life>,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, String> {
    let by = By { worker, rights, life };
    let message = Bytes::from(request.encode_to_vec());
    let reply = match envoy::should_rate_limit(&by, &message, Duration::MAX) {
        Ok(Reply::Now(reply)) => Ok(reply),
        Ok(Reply::Later(reply)) => reply.await,
        Err(status) if status.is_too_large() => Ok(envoy::too_large()),
        Err(status) => Err(status),
    };
    let reply = reply.map_err(|status| status.to_string())?;
    RateLimitResponse::decode(&reply[message::PREFIX..]).map_err(|fault| fault.to_string())
}

/// Answers a call only with the reason why it is refused.
pub(crate) fn turn_away(fault: TurnedAway) -> Answered {
    Box::pin(std::future::ready(Ok(call::respond(Err(fault.into())))))
}

/// The services that tonic answers, and the reporter of the health service.
pub fn routes() -> Result<(Routes, HealthReporter), tonic_reflection::server::Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(acequia_api::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // The bound matters because tonic makes room for a message as soon as it knows the length.
    let routes = Routes::new(health.max_decoding_message_size(SETTINGS.held.small_bytes))
        .add_service(reflection().build_v1()?.max_decoding_message_size(SETTINGS.held.small_bytes))
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(SETTINGS.held.small_bytes))
        .prepare();
    Ok((routes, reporter))
}

/// Reports every service, and the whole node, as healthy until `stopping`.
pub async fn report_health(reporter: HealthReporter, stopping: CancellationToken) {
    // The last is the name of envoyproxy/ratelimit.
    const SERVICES: [&str; 5] = ["", limiter::SERVICE, envoy::SERVICE, kuadrant::SERVICE, "ratelimit"];
    for service in SERVICES {
        reporter.set_service_status(service, ServingStatus::Serving).await;
    }
    stopping.cancelled().await;
    for service in SERVICES {
        reporter.set_service_status(service, ServingStatus::NotServing).await;
    }
}

/// Serves a connection until its end, or until `stopping`. Calls in flight are still answered then.
///
/// The connection's task takes in all calls that have come, answers them one after the other, and then writes
/// all the answers. So a call that waits for nothing never gets a task of its own.
pub(crate) async fn serve(
    admitted: Admitted<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>,
    worker: Arc<Worker>,
    routes: Routes,
    stopping: CancellationToken,
) {
    let Admitted { stream, caller, life } = admitted;
    let of_calls = Arc::clone(&life);
    let answer = move |request: http::Request<Incoming>| {
        let call = Call::new(request, &worker, &routes, &caller, &of_calls);
        if !call.is_of_stranger() {
            of_calls.called();
        }
        call
    };
    serve_calls(stream, answer, SETTINGS.grpc.streams_max, &life, stopping).await;
}

/// Serves a connection with `answer`, with at most `calls_max` calls at one time. `answer` tells the
/// connection's life of each call ([`Life::called`]).
pub(crate) async fn serve_calls<F, B>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    answer: impl Fn(http::Request<Incoming>) -> F + Send + 'static,
    calls_max: u32,
    life: &Arc<Life>,
    stopping: CancellationToken,
) where
    F: Future<Output = Result<http::Response<B>, Infallible>> + Send + 'static,
    B: Body<Data = Bytes, Error = tonic::Status> + Send + 'static,
{
    let service = hyper::service::service_fn(answer);
    let arrived = Arrived::default();
    let mut builder = hyper::server::conn::http2::Builder::new(arrived.clone());
    builder
        .timer(life.ping_timer())
        .keep_alive_interval(SETTINGS.grpc.ping_every)
        .keep_alive_timeout(SETTINGS.grpc.ping_answer)
        .max_concurrent_streams(calls_max)
        .max_header_list_size(SETTINGS.grpc.header_bytes_max)
        .max_send_buf_size(SETTINGS.grpc.send_bytes_max)
        .initial_stream_window_size(SETTINGS.grpc.window_bytes)
        .initial_connection_window_size(SETTINGS.grpc.window_bytes)
        .auto_date_header(false);
    let (io, left) = Borrowed::new(io);
    let mut connection = Box::pin(builder.serve_connection(TokioIo::new(io), service));
    let mut stop = std::pin::pin!(stopping.cancelled());
    let mut draining = false;
    let is_told_to_end = std::future::poll_fn(|cx| {
        loop {
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(draining);
            }
            if arrived.answer() {
                continue;
            }
            let stage = life.poll(cx);
            if stage == Stage::Cut {
                return Poll::Ready(false);
            }
            if draining || stage == Stage::Open && stop.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if life.calls() == 0 {
                // The caller may not even speak HTTP/2, and gets no answer.
                return Poll::Ready(false);
            }
            draining = true;
            life.end();
            connection.as_mut().graceful_shutdown();
        }
    })
    .await;
    drop(connection);
    if is_told_to_end {
        linger::close(left).await;
    }
}

/// The calls of a connection that were not polled yet: at most as many as it may have at one time.
#[derive(Clone, Default)]
struct Arrived(Arc<Mutex<Vec<Task>>>);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Arrived {
    fn execute(&self, call: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(call));
    }
}

impl Arrived {
    /// Answers the calls that have come; says whether there were any.
    fn answer(&self) -> bool {
        let calls = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let any = !calls.is_empty();
        for mut call in calls {
            // A call that waits gets a task, which polls the call again and leaves a waker of its own.
            if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                tokio::spawn(call);
            }
        }
        any
    }
}
