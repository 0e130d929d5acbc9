//! How much of a limit passes, when three times as much is asked for in one window.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use acequia_api::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code};
use prost::Message;
use tokio::task::JoinSet;
use tonic::{
    Request,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use crate::{
    fleet::{Fleet, Kind, Setup, Wires},
    gubernator, measure, payloads,
    process::Error,
};

/// The units of the limit.
pub(crate) const LIMIT: u64 = 300;
/// So many times the limit is asked for.
pub(crate) const TIMES: u64 = 3;
/// How long a caller waits. Envoy waits 20 ms by default, which is too little for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// Requests in flight at a server.
const IN_FLIGHT: usize = 16;
/// How long servers may take to count.
const START_MAX: Duration = Duration::from_secs(60);

/// What passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Units that were allowed.
    pub(crate) allowed: u64,
    /// Requests without a decision in time. Envoy lets them pass.
    pub(crate) undecided: u64,
}

impl Passed {
    pub(crate) fn all(self) -> u64 {
        self.allowed + self.undecided
    }
}

/// A way to a server.
#[derive(Clone)]
struct Caller {
    channel: Channel,
    kind: Kind,
}

impl Caller {
    async fn connect(address: SocketAddr, kind: Kind) -> Result<Self, Error> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        Ok(Self { channel, kind })
    }

    /// One hit of a key: whether it passes, if that is decided in time.
    async fn ask(&self, key: usize) -> Option<bool> {
        let decided = async {
            if self.kind.is_gubernator() {
                let behavior = if self.kind == Kind::GubernatorGlobal { gubernator::GLOBAL } else { 0 };
                let request = gubernator::Requests::one(&format!("k{key}"), LIMIT, behavior);
                let response: gubernator::Responses = self.call(gubernator::METHOD, request).await?;
                return response.passes();
            }
            let response: RateLimitResponse =
                self.call(measure::RATE_LIMIT, payloads::rate_limit_request(key)).await?;
            match response.overall_code() {
                Code::Unknown => None,
                code => Some(code == Code::Ok),
            }
        };
        tokio::time::timeout(PATIENCE, decided).await.ok().flatten()
    }

    async fn call<Q, A>(&self, method: &'static str, request: Q) -> Option<A>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.ok()?;
        let (path, codec) = (PathAndQuery::from_static(method), ProstCodec::<Q, A>::default());
        grpc.unary(Request::new(request), path, codec).await.ok().map(tonic::Response::into_inner)
    }
}

/// Starts servers, and asks them in turn for three times the limit of one key.
pub(crate) fn measure(setup: &Setup, kind: Kind, count: usize, wires: Wires) -> Result<Passed, Error> {
    let fleet = setup.start(kind, count, LIMIT, wires)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(spend(&fleet, kind, wires))
}

async fn spend(fleet: &Fleet, kind: Kind, wires: Wires) -> Result<Passed, Error> {
    let mut callers = Vec::new();
    for server in &fleet.servers {
        callers.push(Caller::connect(server.address, kind).await?);
    }
    // Other keys, by which servers show that they count: what is denied late may use a key up.
    let (begun, mut keys) = (Instant::now(), 1..);
    for caller in &callers {
        for key in keys.by_ref() {
            if caller.ask(key).await == Some(true) {
                break;
            }
            if begun.elapsed() > START_MAX {
                return Err(format!("{} does not count", kind.name()).into());
            }
        }
    }
    if wires == Wires::Cut {
        fleet.cut();
    }
    let mut tasks = JoinSet::new();
    for caller in &callers {
        let left = Arc::new(AtomicU64::new(LIMIT * TIMES / callers.len() as u64));
        for _ in 0..IN_FLIGHT {
            tasks.spawn(ask_all(caller.clone(), Arc::clone(&left)));
        }
    }
    let parts = tasks.join_all().await;
    Ok(Passed {
        allowed: parts.iter().map(|part| part.allowed).sum(),
        undecided: parts.iter().map(|part| part.undecided).sum(),
    })
}

/// Asks for the units that are left, one after the other.
async fn ask_all(caller: Caller, left: Arc<AtomicU64>) -> Passed {
    let mut passed = Passed::default();
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        match caller.ask(0).await {
            Some(is_allowed) => passed.allowed += u64::from(is_allowed),
            None => passed.undecided += 1,
        }
    }
    passed
}
