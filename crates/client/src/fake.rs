//! A node of one cell, for tests. The node keeps books, and can be told to misbehave. Its connections are
//! in memory, so that a test may stop the clock.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use acequia_api::acequia::v1::{
    CheckBatch, CheckBatchResult, CheckRequest, CheckResponse, CommitRequest, PeekResponse, Reason,
    RefundRequest, RenewRequest, RenewResponse, Renewed, SettleResponse, Settled,
    limiter_server::{Limiter, LimiterServer},
};
use acequia_api::wire::REST_UNDECIDED;
use hyper_util::rt::TokioIo;
use tokio::{
    io::DuplexStream,
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_stream::{Stream, StreamExt as _, wrappers::UnboundedReceiverStream};
use tonic::{
    Request, Response, Status, Streaming,
    metadata::MetadataValue,
    transport::{Channel, Endpoint, Error, Server, Uri},
};

use crate::{AskedNode, Client, Options, connection::Connection};

/// The node's behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Answers like a real node.
    Answers,
    /// Answers only after [`Node::release`], and then like a real node.
    Hangs,
    /// Answers that the node is gone.
    Gone,
    /// Denies, and says when to come back.
    Denies(Option<u64>),
    /// Does what it is asked, and then breaks off.
    LosesAnswers,
    /// Answers like a real node, but loses commits.
    LosesCommits,
    /// Answers that the question is wrong.
    Refuses,
    /// Ends each stream after this many batches, like a node that stops.
    EndsStreams(usize),
}

/// The node's books.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    pub(crate) left: u64,
    /// The largest grant of one reservation.
    pub(crate) share: u64,
    /// The base of every answer.
    pub(crate) template: CheckResponse,
    pub(crate) checks: u64,
    pub(crate) reserves: Vec<u64>,
    /// Every commit received: the cost and the result.
    pub(crate) commits: Vec<(u64, Settled)>,
    pub(crate) refunds: Vec<Settled>,
    /// How long slots live, if the cell's units are slots.
    pub(crate) slots_live: Option<Duration>,
    pub(crate) renewals: u64,
    mode: Mode,
    charges: BTreeMap<String, Charge>,
    answers: BTreeMap<String, CheckResponse>,
}

#[derive(Clone, Copy, Debug)]
struct Charge {
    units: u64,
    is_open: bool,
    lapses: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    budget: u64,
    books: Mutex<Books>,
    released: Notify,
    connections: Mutex<Connections>,
}

#[derive(Debug)]
struct Connections {
    made: usize,
    is_refusing: bool,
    incoming: mpsc::UnboundedSender<io::Result<DuplexStream>>,
}

impl Node {
    /// A node whose one cell has `budget` units left, and never gets more.
    pub(crate) fn of(budget: u64) -> Self {
        let (incoming, connections) = mpsc::unbounded_channel();
        let books = Books {
            left: budget,
            share: u64::MAX,
            template: CheckResponse { limit: "per-key".to_owned(), ..CheckResponse::default() },
            checks: 0,
            reserves: Vec::new(),
            commits: Vec::new(),
            refunds: Vec::new(),
            slots_live: None,
            renewals: 0,
            mode: Mode::Answers,
            charges: BTreeMap::new(),
            answers: BTreeMap::new(),
        };
        let shared = Shared {
            budget,
            books: Mutex::new(books),
            released: Notify::new(),
            connections: Mutex::new(Connections { made: 0, is_refusing: false, incoming }),
        };
        let node = Self { shared: Arc::new(shared) };
        tokio::spawn(
            Server::builder()
                .add_service(LimiterServer::new(node.clone()))
                .serve_with_incoming(UnboundedReceiverStream::new(connections)),
        );
        node
    }

    pub(crate) fn client(&self, options: Options) -> Client {
        let endpoint = Endpoint::from_static("http://node:8081");
        let node = self.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let node = node.clone();
            async move { node.accept() }
        });
        let first = endpoint.connect_with_connector_lazy(connector.clone());
        let dial = move || -> Pin<Box<dyn Future<Output = Result<Channel, Error>> + Send>> {
            let (endpoint, connector) = (endpoint.clone(), connector.clone());
            Box::pin(async move { endpoint.connect_with_connector(connector).await })
        };
        let anybody = crate::Target::from(std::net::SocketAddr::from(([127, 0, 0, 1], 8081)));
        Client {
            connection: Arc::new(Connection::new(
                first,
                anybody.bearer(),
                Arc::new(dial),
                crate::CONNECTION_AGE,
            )),
            peer: AskedNode { address: "node:8081".to_owned(), deadline: options.deadline },
        }
    }

    /// Sets the mode for calls from now on. Calls that hang go on hanging.
    pub(crate) fn set(&self, mode: Mode) {
        self.books().mode = mode;
    }

    /// Answers every call that hangs.
    pub(crate) fn release(&self) {
        self.shared.released.notify_waiters();
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.shared.books.lock().expect("no panic")
    }

    /// Units that are charged and not given back.
    pub(crate) fn charged(&self) -> u64 {
        self.shared.budget - self.books().left
    }

    /// Forgets all charges.
    pub(crate) fn forget(&self) {
        self.books().charges.clear();
    }

    pub(crate) fn refuse_connections(&self, is_refusing: bool) {
        self.shared.connections.lock().expect("no panic").is_refusing = is_refusing;
    }

    /// The number of connections ever made.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.lock().expect("no panic").made
    }

    fn accept(&self) -> io::Result<TokioIo<DuplexStream>> {
        let mut connections = self.shared.connections.lock().expect("no panic");
        if connections.is_refusing {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (near, far) = tokio::io::duplex(1 << 16);
        connections.made += 1;
        connections.incoming.send(Ok(far)).map_err(io::Error::other)?;
        Ok(TokioIo::new(near))
    }

    /// Waits as long as the mode says, acts, and gives or loses the answer.
    async fn answer<T>(
        &self,
        act: impl FnOnce(&mut Books) -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        if self.books().mode == Mode::Hangs {
            self.shared.released.notified().await;
        }
        let mut books = self.books();
        match books.mode {
            Mode::Gone => Err(Status::unavailable("going")),
            Mode::Refuses => Err(Status::invalid_argument("the domain is empty")),
            Mode::LosesAnswers => act(&mut books).and(Err(Status::unavailable("broke off"))),
            _ => act(&mut books).map(Response::new),
        }
    }
}

impl Books {
    fn check(&mut self, request: CheckRequest) -> Result<CheckResponse, Status> {
        self.checks += 1;
        if let Some(answer) = self.answers.get(&request.id) {
            return Ok(CheckResponse { is_repeat: true, ..answer.clone() });
        }
        let cost = request.cost.unwrap_or(1);
        if cost == 0 {
            return Err(Status::invalid_argument("the cost is 0"));
        }
        let most = match &request.reserve {
            Some(reserve) if reserve.at_most => cost.min(self.share).min(self.left).max(1),
            _ => cost,
        };
        if let Some(reserve) = &request.reserve {
            if !(1..=3_600_000).contains(&reserve.ttl_ms) {
                return Err(Status::invalid_argument("the ttl is out of range"));
            }
            self.reserves.push(cost);
        }
        let denied = match self.mode {
            Mode::Denies(retry_after_ms) => Some(retry_after_ms),
            _ if most > self.left => Some(None),
            _ => None,
        };
        if let Some(retry_after_ms) = denied {
            let reason = Reason::OverLimit.into();
            return Ok(CheckResponse { allowed: false, reason, retry_after_ms, ..self.template.clone() });
        }
        let mut answer = CheckResponse { allowed: true, ..self.template.clone() };
        let is_unlimited = matches!(answer.reason(), Reason::NoMatch | Reason::Unlimited);
        if !is_unlimited {
            self.left -= most;
            answer.charged = if request.reserve.is_some() { most } else { 0 };
            let is_named = request.refundable || request.reserve.is_some() || !request.id.is_empty();
            if is_named || self.slots_live.is_some() {
                answer.charge_id = format!("charge-{}", self.charges.len());
                let reserved = request.reserve.map(|reserve| Duration::from_millis(reserve.ttl_ms));
                let lapses = self.slots_live.or(reserved).map(|time| Instant::now() + time);
                answer.lapses_in_ms = self.slots_live.map_or(0, |time| time.as_millis() as u64);
                self.charges.insert(answer.charge_id.clone(), Charge { units: most, is_open: true, lapses });
            }
            if !request.id.is_empty() {
                self.answers.insert(request.id, answer.clone());
            }
        }
        Ok(answer)
    }

    fn settle(&mut self, charge_id: &str, cost: u64) -> Result<Settled, Status> {
        let Some(charge) = self.charges.get_mut(charge_id) else { return Ok(Settled::Unknown) };
        if cost > charge.units {
            return Err(Status::invalid_argument("the cost is above what was reserved"));
        }
        if charge.lapses.is_some_and(|lapses| Instant::now() >= lapses) {
            return Ok(Settled::Lapsed);
        }
        if !std::mem::replace(&mut charge.is_open, false) {
            return Ok(Settled::Before);
        }
        self.left += charge.units - cost;
        Ok(Settled::Done)
    }
}

#[tonic::async_trait]
impl Limiter for Node {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        self.answer(|books| books.check(request.into_inner())).await
    }

    type CheckStreamStream = Pin<Box<dyn Stream<Item = Result<CheckBatchResult, Status>> + Send>>;

    async fn check_stream(
        &self,
        request: Request<Streaming<CheckBatch>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        let node = self.clone();
        let most = match self.books().mode {
            Mode::EndsStreams(batches) => batches,
            _ => usize::MAX,
        };
        let ends = (most < usize::MAX).then(|| {
            let mut ends = Status::unavailable("the rest was not decided");
            ends.metadata_mut().insert(REST_UNDECIDED, MetadataValue::from_static("1"));
            Err(ends)
        });
        let answers = request.into_inner().take(most).map(move |batch| {
            let mut books = node.books();
            let results = batch?.checks.into_iter().map(|check| books.check(check));
            Ok(CheckBatchResult { results: results.collect::<Result<_, _>>()? })
        });
        Ok(Response::new(Box::pin(answers.chain(tokio_stream::iter(ends)))))
    }

    async fn refund(&self, request: Request<RefundRequest>) -> Result<Response<SettleResponse>, Status> {
        self.answer(|books| {
            let settled = books.settle(&request.into_inner().charge_id, 0)?;
            books.refunds.push(settled);
            Ok(SettleResponse { settled: settled.into(), refunded: Vec::new() })
        })
        .await
    }

    async fn commit(&self, request: Request<CommitRequest>) -> Result<Response<SettleResponse>, Status> {
        if self.books().mode == Mode::LosesCommits {
            return Err(Status::unavailable("broke off"));
        }
        self.answer(|books| {
            let CommitRequest { charge_id, cost } = request.into_inner();
            let settled = books.settle(&charge_id, cost)?;
            books.commits.push((cost, settled));
            Ok(SettleResponse { settled: settled.into(), refunded: Vec::new() })
        })
        .await
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        self.answer(|books| {
            let charge = books.charges.get_mut(&request.into_inner().charge_id);
            let is_taken = |lapses: Instant| Instant::now() < lapses;
            let Some(charge) = charge.filter(|charge| charge.is_open && charge.lapses.is_some_and(is_taken))
            else {
                return Ok(RenewResponse { renewed: Renewed::Unknown.into(), lapses_in_ms: 0 });
            };
            let time = books.slots_live.unwrap_or_default();
            charge.lapses = Some(Instant::now() + time);
            books.renewals += 1;
            let lapses_in_ms = time.as_millis() as u64;
            Ok(RenewResponse { renewed: Renewed::Done.into(), lapses_in_ms })
        })
        .await
    }

    async fn report(&self, _: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        Err(Status::unimplemented("report"))
    }

    async fn peek(&self, _: Request<CheckRequest>) -> Result<Response<PeekResponse>, Status> {
        Err(Status::unimplemented("peek"))
    }
}
