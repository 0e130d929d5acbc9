//! Servers of Envoy's rate limit service that decide nothing, each as fast as tonic can be: the baseline for
//! Acequia.
//!
//! - `--kind tonic` is tonic's own server.
//! - `--kind hyper` is tonic's generated service on a plain hyper server, without tonic's router and layers.
//! - `--kind batched` is the hyper server, but a request that need not wait never gets its own task.
//!
//! All run on one thread: tokio's multi-thread runtime with one worker flushes after nearly every answer and
//! is a third slower.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use acequia_api::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus},
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use hyper::{rt::Executor, server::conn::http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "usage: floor_system|floor_mimalloc [--kind tonic|hyper|batched] [--listen ADDRESS:PORT]";

/// Larger than what a client has in flight, so that nobody waits for a window or a stream.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const STREAMS_MAX: u32 = 4096;

/// Serves until it is killed; prints the address it listens on.
pub(crate) fn main() -> Result<(), Error> {
    let (mut kind, mut listen) = ("batched".to_owned(), "127.0.0.1:0".to_owned());
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        match flag.as_str() {
            "--kind" => kind = arguments.next().ok_or(USAGE)?,
            "--listen" => listen = arguments.next().ok_or(USAGE)?,
            _ => return Err(USAGE.into()),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen.parse::<SocketAddr>()?).await?;
        println!("listening grpc={}", listener.local_addr()?);
        match kind.as_str() {
            "tonic" => serve_tonic(listener).await,
            "hyper" => serve_hyper(listener).await,
            "batched" => serve_batched(listener).await,
            _ => Err(USAGE.into()),
        }
    })
}

struct AlwaysOk;

#[tonic::async_trait]
impl RateLimitService for AlwaysOk {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let code = Code::Ok as i32;
        let statuses = vec![DescriptorStatus { code, ..DescriptorStatus::default() }];
        Ok(Response::new(RateLimitResponse { overall_code: code, statuses, ..RateLimitResponse::default() }))
    }
}

async fn serve_tonic(listener: TcpListener) -> Result<(), Error> {
    let connections = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
    tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX)
        .add_service(RateLimitServiceServer::new(AlwaysOk))
        .serve_with_incoming(connections)
        .await?;
    Ok(())
}

async fn serve_hyper(listener: TcpListener) -> Result<(), Error> {
    let service = TowerToHyperService::new(RateLimitServiceServer::new(AlwaysOk));
    let http2 = http2_builder(TokioExecutor::new());
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(http2.serve_connection(TokioIo::new(socket), service.clone()));
    }
}

/// Each connection's task reads all requests that have arrived, answers them in turn, and then writes all
/// answers. (If each request were answered when it is read, each answer would be written by itself.)
async fn serve_batched(listener: TcpListener) -> Result<(), Error> {
    let service = TowerToHyperService::new(RateLimitServiceServer::new(AlwaysOk));
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let arrived = Arrived::default();
        let http2 = http2_builder(arrived.clone());
        let mut connection = Box::pin(http2.serve_connection(TokioIo::new(socket), service.clone()));
        tokio::spawn(std::future::poll_fn(move |context| {
            loop {
                if connection.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                if !arrived.answer() {
                    return Poll::Pending;
                }
            }
        }));
    }
}

fn http2_builder<E: Clone>(executor: E) -> http2::Builder<E> {
    let mut builder = http2::Builder::new(executor);
    builder
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX)
        .auto_date_header(false);
    builder
}

/// A connection's unanswered requests: at most `STREAMS_MAX`.
#[derive(Clone, Default)]
struct Arrived(Arc<Mutex<Vec<Call>>>);

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Arrived {
    fn execute(&self, call: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(call));
    }
}

impl Arrived {
    /// Answers all requests. Returns whether there were any.
    fn answer(&self) -> bool {
        let calls = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let any = !calls.is_empty();
        for mut call in calls {
            // A call that waits gets a task, which polls it again and leaves a waker of its own.
            if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                tokio::spawn(call);
            }
        }
        any
    }
}
