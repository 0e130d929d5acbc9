//! A client that an application embeds to ask a node: may this request pass?
//!
//! **Every call answers by its deadline**, with an answer or an error. The caller chooses what happens if
//! no node answers. A user of [`Client`] handles the [`ClientError`], and a user of [`Decider`] or
//! [`LimitLayer`] sets its [`Fallback`].
//!
//! This crate does not know what a limit is. The crate decides by itself only with units that a node
//! charged for a [`Lease`], and by a fallback. A question whose answer is lost may have been charged, and
//! would be charged again if it were repeated. So the crate does not repeat a caller's question whose
//! answer was lost. A caller that wants to repeat it gives the question an [`id`](Question::id).
//!
//! The [guide] has a recipe for each of these.
//!
//! ```no_run
//! use acequia_client::{Client, Options, Question};
//!
//! # async fn example() -> Result<(), acequia_client::ClientError> {
//! let client = Client::connect("127.0.0.1:8081", Options::default())?;
//!
//! let question = Question::new("shop", [("api_key", "k1"), ("route", "/search")]);
//! let answer = client.check(question).await?;
//! if answer.allowed {
//!     // Serve it.
//! } else {
//!     // Refuse it, with `Retry-After: answer.retry_after_ms`.
//! }
//! # Ok(())
//! # }
//! ```

mod connection;
mod denial;
mod error;
#[cfg(test)]
mod fake;
mod fallback;
pub mod guide;
mod layer;
mod lease;
mod question;
mod refunds;
mod settings;
mod slot;
mod stream;
mod target;

use std::{sync::Arc, time::Duration};

pub use acequia_api::acequia::v1::{
    CandidateVerdict, CellHolds, CellOverride, CheckResponse, Holding, Lapse, LimitResult, Loan, Outcome,
    PeekResponse, PeerShare, PeerWord, Pool, Reason, Refunded, RenewResponse, Renewed, SettleResponse,
    Settled, Share, Unmatched,
};
use acequia_api::acequia::v1::{CheckRequest, CommitRequest, RefundRequest, RenewRequest};
use tokio::time::{Instant, timeout};
use tonic::{Code, Request, Response, Status};

use crate::connection::Connection;

pub use crate::{
    denial::denied_status,
    error::ClientError,
    fallback::{Decider, Decision, Fallback, Guard, Unasked},
    layer::{DELAY_MAX, LimitLayer, LimitService},
    lease::{LEASE_UNITS_MAX, Lease, LeaseInterceptor, LeaseOptions, LeaseTake},
    question::Question,
    refunds::REFUNDS_IN_FLIGHT_MAX,
    slot::{Acquired, Slot},
    stream::{BATCHES_IN_FLIGHT_MAX, CheckStream, QUESTIONS_IN_BATCH_MAX},
    target::{Bearer, Credentials, Stream, Target, Transport},
};

/// The age at which a connection is replaced, give or take a tenth, so that a fleet that started together
/// does not reconnect together. A connection stays with the node that it reached. Without replacement, a
/// new node behind a name would see no load until another node goes.
pub const CONNECTION_AGE: Duration = Duration::from_secs(300);
/// The smallest [`Client::connection_age`]. A handshake costs little beside a second of calls.
pub const CONNECTION_AGE_MIN: Duration = Duration::from_secs(1);

/// The settings of a [`Client`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The longest time that a call may take, including the time to make the connection.
    ///
    /// The default is 20 ms, Envoy's own default for a rate limit service. A node decides in microseconds,
    /// so the deadline is time for the network and for a busy machine. Larger: a node that hangs holds up
    /// every request for longer. Smaller: more calls end in [`ClientError::Deadline`] though the node may
    /// have charged them. A node in another region needs at least its round trip, and three round trips for
    /// the first call.
    pub deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { deadline: Duration::from_millis(20) }
    }
}

/// Asks one node. Clones share one connection. The first call makes the connection. A lost connection is
/// made again, and a connection of age [`CONNECTION_AGE`] is replaced.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<Connection>,
    peer: AskedNode,
}

/// The node that a client asks, and the deadline.
#[derive(Clone, Debug)]
struct AskedNode {
    address: String,
    deadline: Duration,
}

impl Client {
    /// A client of the node at the gRPC address `address`, if the node does not authenticate its clients.
    /// The address is `host:port`, `http://host:port`, or `unix:/path` for a node on this machine. The
    /// address is `https://host:port` if this system knows the authority that signed the node's
    /// certificate. Nothing is sent before the first call.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the address is not valid.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect(address: &str, options: Options) -> Result<Self, ClientError> {
        Self::connect_as(address, options, Credentials::default())
    }

    /// A client that verifies the node's certificate, and authenticates itself.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the address is not valid, or a file cannot be used: see [`Target::new`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect_as(
        address: &str,
        options: Options,
        credentials: Credentials,
    ) -> Result<Self, ClientError> {
        let target = Target::new(address, credentials)?;
        let peer = AskedNode { address: address.to_owned(), deadline: options.deadline };
        Ok(Self { connection: Arc::new(Connection::of(target, CONNECTION_AGE)), peer })
    }

    /// Sets the age at which a new connection replaces an old one, instead of [`CONNECTION_AGE`]; at least
    /// [`CONNECTION_AGE_MIN`]. The age holds for this client and for clones made from now on.
    ///
    /// Shorter: load reaches new nodes sooner, behind a name or behind a balancer of connections. Longer:
    /// fewer handshakes. The cost is one new connection a client and age.
    #[must_use]
    pub fn connection_age(self, age: Duration) -> Self {
        Self { connection: Arc::new(self.connection.with_age(age.max(CONNECTION_AGE_MIN))), ..self }
    }

    /// May the request pass? If it may, the node charges it. A denial is an answer, not an error.
    ///
    /// # Errors
    /// No node answered, or the question is wrong: see [`ClientError`].
    pub async fn check(&self, question: Question) -> Result<CheckResponse, ClientError> {
        let mut limiter = self.connection.limiter();
        self.peer.wait(limiter.check(self.peer.request(CheckRequest::from(question)))).await
    }

    /// The answer that [`Client::check`] would give now, with every limit that matches and the reason why
    /// the others do not. Charges nothing.
    ///
    /// # Errors
    /// No node answered, or the question is wrong: see [`ClientError`].
    pub async fn peek(&self, question: Question) -> Result<PeekResponse, ClientError> {
        let mut limiter = self.connection.limiter();
        self.peer.wait(limiter.peek(self.peer.request(CheckRequest::from(question)))).await
    }

    /// Gives back the charge of a check, once, to the windows that were charged: for example if the work
    /// failed. The charge's id is the answer's [`CheckResponse::charge_id`], which [`Question::refundable`]
    /// asks for. A refund whose answer is lost may be repeated: [`SettleResponse::settled`] says whether it
    /// was done before.
    ///
    /// # Errors
    /// No node answered, or the id is not valid: see [`ClientError`]. A charge that is not given back
    /// counts as spent.
    pub async fn refund(&self, charge_id: &str) -> Result<SettleResponse, ClientError> {
        let mut limiter = self.connection.limiter();
        let request = RefundRequest { charge_id: charge_id.to_owned() };
        self.peer.wait(limiter.refund(self.peer.request(request))).await
    }

    /// Ends a reservation ([`Question::reserve`]) with its real cost, in the question's units. The
    /// rest is given back. A cost above the reservation is recorded, too, whatever is left. A commit
    /// whose answer is lost may be repeated, like a refund.
    ///
    /// # Errors
    /// No node answered, or the id is not valid: see [`ClientError`]. A reservation
    /// that is not committed lapses after its `ttl`.
    pub async fn commit(&self, charge_id: &str, cost: u64) -> Result<SettleResponse, ClientError> {
        let mut limiter = self.connection.limiter();
        let request = CommitRequest { charge_id: charge_id.to_owned(), cost };
        self.peer.wait(limiter.commit(self.peer.request(request))).await
    }

    /// Renews the slots of a request that is still under way: they lapse as long from now as they would have
    /// lapsed from when they were taken. A [`Slot`] does so by itself.
    ///
    /// # Errors
    /// No node answered, or the id is not valid: see [`ClientError`]. Slots that are not renewed lapse.
    pub async fn renew(&self, charge_id: &str) -> Result<RenewResponse, ClientError> {
        let mut limiter = self.connection.limiter();
        let request = RenewRequest { charge_id: charge_id.to_owned() };
        self.peer.wait(limiter.renew(self.peer.request(request))).await
    }

    /// Records a cost that was spent already, whatever is left: what a limit does not have is owed
    /// ([`LimitResult::owed`]), and until the debt is gone nothing passes. The cost may be 0. The answer's
    /// [`CheckResponse::allowed`] says whether the cost fitted. Under an [id](Question::id), a report is
    /// recorded once.
    ///
    /// # Errors
    /// No node answered, or the question is wrong, for example because it reserves: see [`ClientError`].
    pub async fn report(&self, question: Question) -> Result<CheckResponse, ClientError> {
        let mut limiter = self.connection.limiter();
        self.peer.wait(limiter.report(self.peer.request(CheckRequest::from(question)))).await
    }

    /// Opens a stream for many questions at once: by far the cheapest way to ask more than a few thousand
    /// questions a second. The stream moves to another connection when the node wants to end the present
    /// one.
    ///
    /// # Errors
    /// No node answered: see [`ClientError`].
    pub async fn check_stream(&self) -> Result<CheckStream, ClientError> {
        CheckStream::open(Arc::clone(&self.connection), self.peer.clone()).await
    }
}

impl AskedNode {
    /// A request that carries its deadline. The node lets the request wait for units of other regions no
    /// longer than the deadline allows.
    fn request<T>(&self, message: T) -> Request<T> {
        /// The longest time that the header can carry.
        const LONGEST: Duration = Duration::from_secs(3_600);
        let mut request = Request::new(message);
        request.set_timeout(self.deadline.min(LONGEST));
        request
    }

    /// Waits for a call, at most until the deadline.
    async fn wait<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ClientError> {
        let begun = Instant::now();
        match timeout(self.deadline, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            // The channel keeps the deadline, too, and reports calls that it ends as cancelled.
            Ok(Err(status)) if status.code() == Code::Cancelled && begun.elapsed() >= self.deadline => {
                Err(self.late())
            }
            Ok(Err(status)) => Err(self.failed(&status)),
            Err(_) => Err(self.late()),
        }
    }

    fn late(&self) -> ClientError {
        ClientError::Deadline { address: self.address.clone(), deadline: self.deadline }
    }

    fn failed(&self, status: &Status) -> ClientError {
        ClientError::from_status(status, self)
    }

    fn unreachable(&self, why: impl Into<String>) -> ClientError {
        ClientError::Unreachable { address: self.address.clone(), why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, net::SocketAddr, pin::Pin};

    use acequia_api::acequia::v1::{
        CheckBatch, CheckBatchResult,
        limiter_server::{Limiter, LimiterServer},
    };
    use tokio::net::TcpListener;
    use tokio_stream::{Stream, StreamExt as _, wrappers::TcpListenerStream};
    use tonic::{Streaming, transport::Server};

    use super::*;

    /// Long enough for a loaded machine: no test waits for this time to pass.
    const PATIENT: Options = Options { deadline: Duration::from_secs(60) };

    #[tokio::test]
    async fn a_check_is_sent_as_written_and_a_denial_is_an_answer() {
        let client = Client::connect(&serve().await.to_string(), PATIENT).expect("an address");

        let allowed = client.check(Question::new("shop", [("key", "k1")])).await.expect("an answer");
        assert!(allowed.allowed);
        assert_eq!(allowed.limit, "shop key=k1 cost=None detail=false");

        let question = Question::new("deny", [("key", "k1"), ("route", "/")]).and([("ip", "::1")]);
        let denied = client.check(question.cost(7).detail()).await.expect("an answer");
        assert!(!denied.allowed);
        assert_eq!(denied.limit, "deny key=k1,route=/+ip=::1 cost=Some(7) detail=true");
    }

    #[tokio::test]
    async fn a_peek_lists_limits_that_do_not_match() {
        let client = Client::connect(&format!("http://{}", serve().await), PATIENT).expect("an address");
        let peek = client.peek(Question::new("shop", [("key", "k1")])).await.expect("an answer");
        assert_eq!(peek.unmatched[0].why, "no entry route");
        assert!(peek.verdict.expect("a verdict").allowed);
    }

    #[tokio::test]
    async fn charges_are_settled_by_their_id() {
        let client = Client::connect(&serve().await.to_string(), PATIENT).expect("an address");
        let refunded = client.refund("c1").await.expect("an answer");
        assert_eq!(refunded.settled(), Settled::Done);
        assert_eq!(refunded.refunded, [Refunded { name: "c1".to_owned(), units: 1 }]);
        let committed = client.commit("c2", u64::MAX).await.expect("an answer");
        assert_eq!(committed.refunded, [Refunded { name: "c2".to_owned(), units: u64::MAX }]);
    }

    #[tokio::test]
    async fn a_wrong_request_is_refused_with_the_servers_reason() {
        let client = Client::connect(&serve().await.to_string(), PATIENT).expect("an address");
        let refused = client.check(Question::new("", [("key", "k1")])).await.expect_err("no domain");
        assert_eq!(refused.to_string(), "refused: the domain is empty");
        assert!(matches!(refused, ClientError::Refused { what } if what == "the domain is empty"));
    }

    #[tokio::test]
    async fn an_unreachable_node_is_reported_with_its_address_and_the_cause() {
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let client = Client::connect(&address, PATIENT).expect("an address");
        let error = client.check(Question::new("shop", [("key", "k1")])).await.expect_err("nobody");
        let text = error.to_string();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{text}");
        assert!(text.starts_with(&format!("no answer from {address}: Connection refused")), "{text}");
    }

    #[tokio::test]
    async fn a_node_that_does_not_speak_the_protocol_is_unreachable() {
        let address = spawn(Server::builder().add_routes(tonic::service::Routes::default())).await;
        let client = Client::connect(&address.to_string(), PATIENT).expect("an address");
        let error = client.check(Question::new("shop", [("key", "k1")])).await.expect_err("no service");
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("listen.grpc"), "{error}");
    }

    #[tokio::test]
    async fn a_call_does_not_outlive_its_deadline() {
        let options = Options { deadline: Duration::from_millis(30) };
        let client = Client::connect(&serve().await.to_string(), options).expect("an address");
        let error = client.check(Question::new("hang", [("key", "k1")])).await.expect_err("late");
        assert!(matches!(error, ClientError::Deadline { deadline, .. } if deadline.as_millis() == 30));
    }

    #[tokio::test]
    async fn a_lost_connection_is_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = Client::connect(&address.to_string(), PATIENT).expect("an address");
        let question = || Question::new("shop", [("key", "k1")]);

        // The first connection is accepted and closed.
        let first = tokio::join!(client.check(question()), async { drop(listener.accept().await) }).0;
        assert!(matches!(first, Err(ClientError::Unreachable { .. })), "{first:?}");

        tokio::spawn(
            Server::builder()
                .add_service(LimiterServer::new(Echo))
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        assert!(client.check(question()).await.is_ok_and(|answer| answer.allowed));
    }

    #[tokio::test]
    async fn batches_on_a_stream_are_answered_in_their_order() {
        let client = Client::connect(&serve().await.to_string(), PATIENT).expect("an address");
        let mut stream = client.check_stream().await.expect("a stream");
        for batch in 0..BATCHES_IN_FLIGHT_MAX {
            let name = batch.to_string();
            let questions = ["a", "b"].map(|key| Question::new(&name, [("key", key)]));
            stream.send(questions).expect("room");
        }
        assert!(stream.is_full());
        let error = stream.send([Question::new("shop", [("key", "k1")])]).expect_err("no room");
        assert!(matches!(error, ClientError::Refused { .. }), "{error}");

        for batch in 0..BATCHES_IN_FLIGHT_MAX {
            let answers = stream.next().await.expect("owed").expect("an answer");
            let limits: Vec<_> = answers.iter().map(|answer| answer.limit.as_str()).collect();
            let expected = ["a", "b"].map(|key| format!("{batch} key={key} cost=None detail=false"));
            assert_eq!(limits, expected);
        }
        assert_eq!(stream.in_flight(), 0);
        assert!(stream.next().await.is_none(), "nothing is owed");
    }

    #[tokio::test]
    async fn an_oversized_batch_is_refused_before_it_is_sent() {
        let client = Client::connect(&serve().await.to_string(), PATIENT).expect("an address");
        let mut stream = client.check_stream().await.expect("a stream");
        let question = Question::new("shop", [("key", "k1")]);
        let many = vec![question; QUESTIONS_IN_BATCH_MAX + 1];
        assert!(matches!(stream.send(many.clone()), Err(ClientError::Refused { .. })));
        assert_eq!(stream.in_flight(), 0);
        stream.send(many.into_iter().skip(1)).expect("as many as may be");
        assert_eq!(stream.next().await.expect("owed").expect("answers").len(), QUESTIONS_IN_BATCH_MAX);
    }

    #[tokio::test]
    async fn a_refused_batch_ends_the_stream_with_its_reason() {
        let client = Client::connect(&serve().await.to_string(), PATIENT).expect("an address");
        let mut stream = client.check_stream().await.expect("a stream");
        stream.send([Question::new("", [("key", "k1")])]).expect("room");
        stream.send([Question::new("shop", [("key", "k1")])]).expect("room");
        let error = stream.next().await.expect("owed").expect_err("no domain");
        assert!(matches!(error, ClientError::Refused { .. }), "{error}");
        assert!(stream.next().await.is_none());
        let error = stream.send([Question::new("shop", [("key", "k1")])]).expect_err("ended");
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_wrong_number_of_answers_to_a_batch_is_an_error() {
        let client = Client::connect(&serve().await.to_string(), PATIENT).expect("an address");
        let mut stream = client.check_stream().await.expect("a stream");
        stream.send(["a", "lose"].map(|domain| Question::new(domain, [("key", "k1")]))).expect("room");
        let error = stream.next().await.expect("owed").expect_err("one of two");
        assert!(error.to_string().contains("1 answers to 2 questions"), "{error}");
    }

    #[tokio::test]
    async fn an_overdue_answer_still_counts_as_in_flight() {
        let options = Options { deadline: Duration::from_millis(200) };
        let client = Client::connect(&serve().await.to_string(), options).expect("an address");
        let mut stream = client.check_stream().await.expect("a stream");
        stream.send([Question::new("hang", [("key", "k1")])]).expect("room");
        for _ in 0..2 {
            let error = stream.next().await.expect("owed").expect_err("late");
            assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
            assert_eq!(stream.in_flight(), 1);
        }
    }

    /// Answers with the question as the name of the limit. The domain selects the behaviour.
    struct Echo;

    #[tonic::async_trait]
    impl Limiter for Echo {
        async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
            answer(request.into_inner()).await.map(Response::new)
        }

        type CheckStreamStream = Pin<Box<dyn Stream<Item = Result<CheckBatchResult, Status>> + Send>>;

        async fn check_stream(
            &self,
            request: Request<Streaming<CheckBatch>>,
        ) -> Result<Response<Self::CheckStreamStream>, Status> {
            let answers = request.into_inner().then(|batch| async {
                let mut results = Vec::new();
                for check in batch?.checks {
                    if check.domain != "lose" {
                        results.push(answer(check).await?);
                    }
                }
                Ok(CheckBatchResult { results })
            });
            Ok(Response::new(Box::pin(answers)))
        }

        async fn refund(&self, request: Request<RefundRequest>) -> Result<Response<SettleResponse>, Status> {
            let name = request.into_inner().charge_id;
            let refunded = vec![Refunded { name, units: 1 }];
            Ok(Response::new(SettleResponse { settled: Settled::Done.into(), refunded }))
        }

        async fn commit(&self, request: Request<CommitRequest>) -> Result<Response<SettleResponse>, Status> {
            let CommitRequest { charge_id: name, cost: units } = request.into_inner();
            let refunded = vec![Refunded { name, units }];
            Ok(Response::new(SettleResponse { settled: Settled::Done.into(), refunded }))
        }

        async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
            let lapses_in_ms = request.into_inner().charge_id.len() as u64;
            Ok(Response::new(RenewResponse { renewed: Renewed::Done.into(), lapses_in_ms }))
        }

        async fn report(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
            answer(request.into_inner()).await.map(Response::new)
        }

        async fn peek(&self, request: Request<CheckRequest>) -> Result<Response<PeekResponse>, Status> {
            let unmatched = Unmatched { name: "search".to_owned(), why: "no entry route".to_owned() };
            let verdict = Some(answer(request.into_inner()).await?);
            Ok(Response::new(PeekResponse { verdict, unmatched: vec![unmatched], ..PeekResponse::default() }))
        }
    }

    async fn answer(check: CheckRequest) -> Result<CheckResponse, Status> {
        if check.domain.is_empty() {
            return Err(Status::invalid_argument("the domain is empty"));
        }
        if check.domain == "hang" {
            return pending().await;
        }
        let descriptors: Vec<String> = check
            .descriptors
            .iter()
            .map(|descriptor| {
                let pairs: Vec<_> =
                    descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
                pairs.join(",")
            })
            .collect();
        Ok(CheckResponse {
            allowed: check.domain != "deny",
            limit: format!(
                "{} {} cost={:?} detail={}",
                check.domain,
                descriptors.join("+"),
                check.cost,
                check.detail
            ),
            ..CheckResponse::default()
        })
    }

    async fn serve() -> SocketAddr {
        spawn(Server::builder().add_service(LimiterServer::new(Echo))).await
    }

    async fn spawn(router: tonic::transport::server::Router) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }
}
