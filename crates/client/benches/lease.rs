//! Measures the decisions a second that a lease takes in memory on one core, while a node on another thread
//! refills it.
//!
//! `cargo bench -p acequia-client --bench lease` prints the rounds, and fails if the best round is below
//! the floor. The best round shows the core without other load; the median shows how often that was so.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::{
    hint::black_box,
    pin::Pin,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use acequia_api::acequia::v1::{
    CheckBatch, CheckBatchResult, CheckRequest, CommitRequest, PeekResponse, RefundRequest, RenewRequest,
    RenewResponse, SettleResponse, Settled,
    limiter_server::{Limiter, LimiterServer},
};
use acequia_client::{CheckResponse, Client, LeaseOptions, LeaseTake, Options, Question};
use tokio_stream::{Stream, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};

/// The floor: decisions a second on one core.
const FLOOR: f64 = 20e6;
const ROUNDS: usize = 25;
const ROUND: Duration = Duration::from_millis(200);
/// Decisions between two readings of the benchmark's clock. A reading costs as much as a decision.
const BATCH: u64 = 4_096;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lease = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let node = LimiterServer::new(Generous::default());
        tokio::spawn(
            Server::builder().add_service(node).serve_with_incoming(TcpListenerStream::new(listener)),
        );
        let client = Client::connect(&address, Options { deadline: Duration::from_secs(1) }).unwrap();
        let options = LeaseOptions { units_max: 100_000_000, ..LeaseOptions::default() };
        client.lease(Question::new("shop", [("api_key", "hot")]), options).unwrap()
    });

    // Runs until the lease knows the demand.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        black_box(lease.try_take(1));
    }

    let mut rounds: Vec<(f64, u64)> = (0..ROUNDS)
        .map(|_| {
            let (mut taken, mut empty, begun) = (0, 0, Instant::now());
            while begun.elapsed() < ROUND {
                for _ in 0..BATCH {
                    match black_box(lease.try_take(black_box(1))) {
                        LeaseTake::Taken => taken += 1,
                        LeaseTake::Empty => empty += 1,
                        LeaseTake::Denied { .. } => unreachable!("the node never denies"),
                    }
                }
            }
            (taken as f64 / begun.elapsed().as_secs_f64(), empty)
        })
        .collect();
    runtime.block_on(lease.close());

    rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let empty: u64 = rounds.iter().map(|(_, empty)| empty).sum();
    let (best, median, worst) = (rounds[ROUNDS - 1].0, rounds[ROUNDS / 2].0, rounds[0].0);
    println!("decisions a second on one core, of {ROUNDS} rounds of {ROUND:?}, million:");
    println!("  best {:.1}   median {:.1}   worst {:.1}", best / 1e6, median / 1e6, worst / 1e6);
    println!("  {empty} found the lease empty, and are not counted");
    if best < FLOOR {
        println!("below the floor of {:.0} million", FLOOR / 1e6);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// A node that charges any amount asked for.
#[derive(Debug, Default)]
struct Generous {
    charges: AtomicU64,
}

#[tonic::async_trait]
impl Limiter for Generous {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        let charge = self.charges.fetch_add(1, Ordering::Relaxed);
        let charged = request.into_inner().cost.unwrap_or(1);
        let charge_id = format!("charge-{charge}");
        Ok(Response::new(CheckResponse { allowed: true, charge_id, charged, ..CheckResponse::default() }))
    }

    type CheckStreamStream = Pin<Box<dyn Stream<Item = Result<CheckBatchResult, Status>> + Send>>;

    async fn check_stream(
        &self,
        _: Request<Streaming<CheckBatch>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        Err(Status::unimplemented("check_stream"))
    }

    async fn refund(&self, _: Request<RefundRequest>) -> Result<Response<SettleResponse>, Status> {
        Err(Status::unimplemented("refund"))
    }

    async fn commit(&self, _: Request<CommitRequest>) -> Result<Response<SettleResponse>, Status> {
        Ok(Response::new(SettleResponse { settled: Settled::Done.into(), refunded: Vec::new() }))
    }

    async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        Err(Status::unimplemented("renew"))
    }

    async fn report(&self, _: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        Err(Status::unimplemented("report"))
    }

    async fn peek(&self, _: Request<CheckRequest>) -> Result<Response<PeekResponse>, Status> {
        Err(Status::unimplemented("peek"))
    }
}
