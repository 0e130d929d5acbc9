//! The gRPC port: Envoy's rate limit service, `acequia.v1.Limiter`, health and reflection.
//!
//! The calls that decide are answered here, straight from the bytes of the request to the bytes of
//! the response: tonic's own service costs as much again as the decision (`tests/bench`). What is
//! not hot goes through tonic.

mod body;
mod call;
mod envoy;
mod limiter;
mod stream;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use hyper::{body::Incoming, rt::Executor};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};

use self::call::Call;
use crate::worker::Worker;

/// Streams at one time on a connection: enough for any proxy, few enough that one caller cannot
/// hold much memory.
const STREAMS_MAX: u32 = 1_024;
/// Bytes of headers in a request.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// How long a new connection may take to make its first call.
const FIRST_CALL: Duration = Duration::from_secs(30);
/// Bytes of a response that may wait in a stream for a slow reader.
const SEND_BYTES_MAX: usize = 1 << 20;

/// The services that tonic answers, and the reporter of the one for health.
pub fn routes() -> Result<(Routes, HealthReporter), tonic_reflection::server::Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(acequia_api::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let routes = Routes::new(health)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?)
        .prepare();
    Ok((routes, reporter))
}

/// Says of every service, and of the whole, that it is there until `stopping`.
pub async fn report_health(reporter: HealthReporter, mut stopping: watch::Receiver<bool>) {
    const SERVICES: [&str; 3] = ["", limiter::SERVICE, envoy::SERVICE];
    for service in SERVICES {
        reporter.set_service_status(service, ServingStatus::Serving).await;
    }
    // A sender that is gone has stopped too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
    for service in SERVICES {
        reporter.set_service_status(service, ServingStatus::NotServing).await;
    }
}

/// Serves a connection until its end, or until `stopping`: then calls in flight are still answered.
///
/// The connection's task takes in all calls that have come, answers them one after the other, and
/// then writes all the answers: a call that waits for nothing never gets a task of its own.
pub async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    worker: Arc<Worker>,
    routes: Routes,
    mut stopping: watch::Receiver<bool>,
) {
    let called = Arc::new(AtomicBool::new(false));
    let calls = Arc::clone(&called);
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        calls.store(true, Ordering::Relaxed);
        Call::new(request, &worker, &routes)
    });
    let arrived = Arrived::default();
    let mut builder = hyper::server::conn::http2::Builder::new(arrived.clone());
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .auto_date_header(false);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    let mut first_call = std::pin::pin!(tokio::time::sleep(FIRST_CALL));
    let mut stop = std::pin::pin!(stopping.changed());
    let mut draining = false;
    std::future::poll_fn(move |cx| {
        loop {
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if arrived.answer() {
                continue;
            }
            if !called.load(Ordering::Relaxed) && first_call.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if draining || stop.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            draining = true;
            connection.as_mut().graceful_shutdown();
        }
    })
    .await;
}

/// The calls of a connection that nobody has looked at yet: at most [`STREAMS_MAX`].
#[derive(Clone, Default)]
struct Arrived(Arc<Mutex<Vec<Task>>>);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Arrived {
    fn execute(&self, call: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(call));
    }
}

impl Arrived {
    /// Answers them; says whether there were any.
    fn answer(&self) -> bool {
        let calls = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let any = !calls.is_empty();
        for mut call in calls {
            // One that waits gets a task, which polls it again and leaves a waker of its own.
            if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                tokio::spawn(call);
            }
        }
        any
    }
}
