//! Asks the node before a request reaches its service.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, StatusCode, request::Parts};
use tokio::time::sleep;
use tonic::{Code, Status, server::NamedService};
use tower::{Layer, Service};

use crate::{
    CheckResponse, ClientError, Decider, Decision, Question,
    denial::{
        delayed_status, denied_response, denied_status, empty, guarded_status, too_many, unavailable_status,
    },
    refunds::Refunds,
};

/// The longest time that a request waits for its turn in a leaky bucket, unless [`LimitLayer::delay_max`]
/// sets another. A caller rarely notices a second, and a proxy rarely gives up in one.
pub const DELAY_MAX: Duration = Duration::from_secs(1);

/// Lets a request through to its service if a node allows it, or if no node answers and the fallback allows
/// it.
///
/// | | HTTP | gRPC |
/// | --- | --- | --- |
/// | denied | 429 with `Retry-After`, where a wait helps | `RESOURCE_EXHAUSTED`, see [`denied_status`] |
/// | denied because nobody can decide (`on_store_loss: closed`) | 503 with `Retry-After` | `UNAVAILABLE` |
/// | nobody answers, and the fallback is closed | 503 | `UNAVAILABLE` |
/// | the question is wrong | 500 | `INTERNAL` |
///
/// The closure makes the question of a request. If the closure returns `None`, the request passes. The
/// closure sees everything but the body. The node's answer is among the extensions of an allowed request,
/// as a [`CheckResponse`].
///
/// The layer waits for a leaky bucket's delay. If the caller hangs up meanwhile, or the delay is above
/// [`LimitLayer::delay_max`], a refundable charge is given back.
///
/// The layer itself is always ready. The layer waits for the service's readiness only when the request may
/// pass. So requests that are denied or wait take no place of a service that has few.
///
/// ```no_run
/// # async fn handler() {}
/// use acequia_client::{Client, Decider, Fallback, LimitLayer, Options, Question};
/// use axum::{Router, routing::get};
///
/// # fn example() -> Result<(), acequia_client::ClientError> {
/// let decider = Decider::new(Client::connect("127.0.0.1:8081", Options::default())?, Fallback::Open);
/// let limit = LimitLayer::http(decider, |request| {
///     let key = request.headers.get("x-api-key")?.to_str().ok()?;
///     Some(Question::new("shop", [("api_key", key), ("route", request.uri.path())]))
/// });
/// let app: Router = Router::new().route("/search", get(handler)).layer(limit);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LimitLayer<Q> {
    question: Q,
    gate: Arc<Gate>,
}

/// The state that all requests of a layer share.
#[derive(Clone, Debug)]
struct Gate {
    decider: Decider,
    language: Language,
    delay_max: Duration,
    is_refunding: bool,
    refunds: Arc<Refunds>,
}

/// The protocol of the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Http,
    Grpc,
}

impl<Q> LimitLayer<Q>
where
    Q: Fn(&Parts) -> Option<Question>,
{
    /// A layer for HTTP services.
    pub fn http(decider: Decider, question: Q) -> Self {
        Self::new(decider, question, Language::Http)
    }

    /// A layer for gRPC services, such as tonic's. As a layer of the whole server, it sees the requests of
    /// all services, with the path `/package.Service/Method`.
    pub fn grpc(decider: Decider, question: Q) -> Self {
        Self::new(decider, question, Language::Grpc)
    }

    fn new(decider: Decider, question: Q, language: Language) -> Self {
        let refunds = Arc::new(Refunds::of(decider.client().clone()));
        let gate = Gate { decider, language, delay_max: DELAY_MAX, is_refunding: false, refunds };
        Self { question, gate: Arc::new(gate) }
    }

    /// The longest time that a request waits for its turn in a leaky bucket, instead of [`DELAY_MAX`]. A
    /// request with a longer delay is denied, and the delay is its time to come back. At zero, no request
    /// waits.
    #[must_use]
    pub fn delay_max(mut self, delay: Duration) -> Self {
        Arc::make_mut(&mut self.gate).delay_max = delay;
        self
    }

    /// Gives back the charge of a request whose work failed: the service failed, or answered with a 5xx. In
    /// gRPC, a status that HTTP would call a 5xx counts, too. A gRPC stream that fails after its first
    /// message is not seen.
    ///
    /// Every question becomes [`refundable`](Question::refundable). Refunds are made in the background, at
    /// most [`REFUNDS_IN_FLIGHT_MAX`](crate::REFUNDS_IN_FLIGHT_MAX) at once. [`LimitLayer::refunds_lost`]
    /// counts the refunds that were not made.
    #[must_use]
    pub fn refund_failures(mut self) -> Self {
        Arc::make_mut(&mut self.gate).is_refunding = true;
        self
    }

    /// Refunds that were not made, since the start, because no node answered or too many were being made.
    /// Their charges count as spent.
    pub fn refunds_lost(&self) -> u64 {
        self.gate.refunds.lost()
    }
}

impl<Q> fmt::Debug for LimitLayer<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl<S, Q: Clone> Layer<S> for LimitLayer<Q> {
    type Service = LimitService<S, Q>;

    fn layer(&self, inner: S) -> Self::Service {
        LimitService { inner, layer: self.clone() }
    }
}

/// A service behind a [`LimitLayer`].
#[derive(Clone)]
pub struct LimitService<S, Q> {
    inner: S,
    layer: LimitLayer<Q>,
}

impl<S: fmt::Debug, Q> fmt::Debug for LimitService<S, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitService").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}

impl<S: NamedService, Q> NamedService for LimitService<S, Q> {
    const NAME: &'static str = S::NAME;
}

impl<S, Q, A, B> Service<Request<A>> for LimitService<S, Q>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Q: Fn(&Parts) -> Option<Question>,
    A: Send + 'static,
    B: Default + Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let question = (self.layer.question)(&parts);
        let (gate, inner) = (Arc::clone(&self.layer.gate), self.inner.clone());
        Box::pin(async move {
            let Some(question) = question else {
                return call(inner, Request::from_parts(parts, body)).await;
            };
            let pass = match gate.pass(question).await {
                Ok(pass) => pass,
                Err(no) => return Ok(no.into_response(gate.language)),
            };
            if let Some(answer) = pass.answer {
                parts.extensions.insert(answer);
            }
            let response = call(inner, Request::from_parts(parts, body)).await;
            if gate.is_refunding
                && response.as_ref().map_or(true, |response| gate.language.is_failure(response))
            {
                drop(gate.refunds.charge(pass.charge_id));
            }
            response
        })
    }
}

async fn call<S, A>(mut inner: S, request: Request<A>) -> Result<S::Response, S::Error>
where
    S: Service<Request<A>>,
{
    poll_fn(|context| inner.poll_ready(context)).await?;
    inner.call(request).await
}

/// Permission to go on to the service.
struct Pass {
    /// The node's answer, if there is one.
    answer: Option<CheckResponse>,
    /// Empty if there is no charge to give back.
    charge_id: String,
}

/// The reason why a request does not reach the service.
enum No {
    Denied(CheckResponse),
    /// Allowed, but the delay is too long.
    Delayed(CheckResponse),
    Guarded(Option<Duration>),
    Unavailable,
    Refused(ClientError),
}

impl Gate {
    async fn pass(&self, question: Question) -> Result<Pass, No> {
        let question = if self.is_refunding { question.refundable() } else { question };
        let answer = match self.decider.decide(question).await {
            Ok(Decision::Answered(answer)) if answer.allowed => answer,
            Ok(Decision::Answered(answer)) => return Err(No::Denied(answer)),
            Ok(Decision::AllowedUnasked) => return Ok(Pass { answer: None, charge_id: String::new() }),
            Ok(Decision::DeniedUnasked { retry_after }) => return Err(No::Guarded(retry_after)),
            Ok(Decision::Unavailable) => return Err(No::Unavailable),
            Err(error) => return Err(No::Refused(error)),
        };
        // A caller that hangs up here, or is turned away, got nothing for its charge.
        let charge = self.refunds.charge(answer.charge_id.clone());
        let delay = Duration::from_millis(answer.delay_ms);
        if delay > self.delay_max {
            return Err(No::Delayed(answer));
        }
        if !delay.is_zero() {
            sleep(delay).await;
        }
        Ok(Pass { answer: Some(answer), charge_id: charge.keep() })
    }
}

impl No {
    fn into_response<B: Default>(self, language: Language) -> Response<B> {
        match language {
            Language::Http => self.into_http(),
            Language::Grpc => self.into_grpc(),
        }
    }

    fn into_http<B: Default>(self) -> Response<B> {
        match self {
            Self::Denied(answer) => denied_response(&answer),
            Self::Delayed(answer) => too_many(Some(Duration::from_millis(answer.delay_ms))),
            Self::Guarded(retry_after) => too_many(retry_after),
            Self::Unavailable => empty(StatusCode::SERVICE_UNAVAILABLE),
            Self::Refused(error) => with_cause(empty(StatusCode::INTERNAL_SERVER_ERROR), error),
        }
    }

    fn into_grpc<B: Default>(self) -> Response<B> {
        match self {
            Self::Denied(answer) => denied_status(&answer).into_http(),
            Self::Delayed(answer) => delayed_status(&answer).into_http(),
            Self::Guarded(retry_after) => guarded_status(retry_after).into_http(),
            Self::Unavailable => unavailable_status().into_http(),
            Self::Refused(error) => {
                // The details of the fault are for the operator only.
                let status = Status::internal("the question to the rate limiter is wrong");
                with_cause(status.into_http(), error)
            }
        }
    }
}

/// Adds the error to the response, so that an outer layer can log it.
fn with_cause<B>(mut response: Response<B>, error: ClientError) -> Response<B> {
    response.extensions_mut().insert(error);
    response
}

impl Language {
    /// Whether the service failed to do its work.
    fn is_failure<B>(self, response: &Response<B>) -> bool {
        let status = response.status();
        if self == Self::Http || status.is_server_error() {
            return status.is_server_error();
        }
        // A call that fails before its first message has the status in its headers.
        let code = response.headers().get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()));
        matches!(
            code,
            Some(
                Code::Unknown
                    | Code::DeadlineExceeded
                    | Code::Unimplemented
                    | Code::Internal
                    | Code::Unavailable
                    | Code::DataLoss
            )
        )
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::ready,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use http::header::RETRY_AFTER;
    use tokio::{task::yield_now, time::Instant};
    use tower::{ServiceExt as _, service_fn};

    use super::*;
    use crate::{
        Fallback, Guard, Options, Settled,
        fake::{Mode, Node},
    };

    const DEADLINE: Options = Options { deadline: Duration::from_millis(20) };

    fn by_key(request: &Parts) -> Option<Question> {
        let key = request.headers.get("x-api-key")?.to_str().ok()?;
        Some(Question::new("shop", [("api_key", key)]))
    }

    fn request() -> Request<()> {
        Request::builder().header("x-api-key", "k1").body(()).expect("a request")
    }

    fn decider(node: &Node, fallback: Fallback) -> Decider {
        Decider::new(node.client(DEADLINE), fallback)
    }

    /// A service that answers with this status and counts its requests.
    fn service(
        status: u16,
        calls: &Arc<AtomicUsize>,
    ) -> impl Service<
        Request<()>,
        Response = Response<String>,
        Error = String,
        Future = impl Future<Output = Result<Response<String>, String>> + Send,
    > + Clone
    + Send
    + 'static {
        let calls = Arc::clone(calls);
        service_fn(move |_: Request<()>| {
            calls.fetch_add(1, Ordering::Relaxed);
            ready(Ok(Response::builder().status(status).body("served".to_owned()).expect("a response")))
        })
    }

    /// Asks the layer over a service that answers with this status.
    async fn ask<Q>(layer: &LimitLayer<Q>, status: u16) -> Response<String>
    where
        Q: Fn(&Parts) -> Option<Question> + Clone,
    {
        let calls = Arc::new(AtomicUsize::new(0));
        let response = layer.layer(service(status, &calls)).oneshot(request()).await.expect("a response");
        let is_served = response.body() == "served";
        assert_eq!(calls.load(Ordering::Relaxed), usize::from(is_served));
        response
    }

    #[tokio::test(start_paused = true)]
    async fn allowed_requests_are_served_and_denied_ones_are_not() {
        let node = Node::of(1);
        let layer = LimitLayer::http(decider(&node, Fallback::Closed), by_key);
        assert_eq!(ask(&layer, 200).await.status(), 200);

        let denied = ask(&layer, 200).await;
        assert_eq!(denied.status(), 429);
        assert_eq!(denied.headers().get(RETRY_AFTER), None, "no wait would help");

        node.set(Mode::Denies(Some(2_001)));
        let denied = ask(&layer, 200).await;
        assert_eq!(
            (denied.status().as_u16(), &denied.headers()[RETRY_AFTER]),
            (429, &"3".parse().expect("text"))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_limited_passes_without_a_check() {
        let node = Node::of(0);
        let layer = LimitLayer::http(decider(&node, Fallback::Closed), |_: &Parts| None);
        assert_eq!(ask(&layer, 200).await.status(), 200);
        assert_eq!(node.books().checks, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_is_in_the_extensions_of_the_request() {
        let node = Node::of(1);
        let layer = LimitLayer::http(decider(&node, Fallback::Closed), by_key);
        let service = layer.layer(service_fn(|request: Request<()>| {
            let limit = request.extensions().get::<CheckResponse>().map(|answer| answer.limit.clone());
            ready(Ok::<_, String>(Response::new(limit.unwrap_or_default())))
        }));
        assert_eq!(service.oneshot(request()).await.expect("a response").body(), "per-key");
    }

    #[tokio::test(start_paused = true)]
    async fn while_no_node_answers_the_fallback_sets_the_status() {
        let guard = Fallback::Guard(Guard { units_per_second: 1, burst: 1 });
        for mode in [Mode::Hangs, Mode::Gone] {
            for (fallback, expected) in
                [(Fallback::Open, [200, 200]), (Fallback::Closed, [503, 503]), (guard, [200, 429])]
            {
                let node = Node::of(10);
                node.set(mode);
                let layer = LimitLayer::http(decider(&node, fallback), by_key);
                for expected in expected {
                    let response = ask(&layer, 200).await;
                    assert_eq!(response.status(), expected, "{mode:?} {fallback:?}");
                    assert_eq!(response.headers().contains_key(RETRY_AFTER), expected == 429);
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_request_fails_and_outer_layers_see_the_reason() {
        let node = Node::of(10);
        node.set(Mode::Refuses);
        let http = ask(&LimitLayer::http(decider(&node, Fallback::Open), by_key), 200).await;
        assert_eq!(http.status(), 500);
        assert!(matches!(http.extensions().get(), Some(ClientError::Refused { .. })));
        let grpc = ask(&LimitLayer::grpc(decider(&node, Fallback::Open), by_key), 200).await;
        assert_eq!(code(&grpc), Code::Internal);
    }

    fn code<B>(response: &Response<B>) -> Code {
        assert_eq!(response.status(), 200);
        Status::from_header_map(response.headers()).expect("a status").code()
    }

    #[tokio::test(start_paused = true)]
    async fn a_grpc_layer_answers_with_grpc_status_codes() {
        let node = Node::of(0);
        let layer = LimitLayer::grpc(decider(&node, Fallback::Closed), by_key);
        node.set(Mode::Denies(Some(250)));
        let denied = ask(&layer, 200).await;
        assert_eq!(code(&denied), Code::ResourceExhausted);
        assert_eq!(denied.headers()["grpc-retry-pushback-ms"], "250");
        assert!(denied.headers().contains_key("grpc-status-details-bin"));

        node.set(Mode::Gone);
        let unavailable = ask(&layer, 200).await;
        assert_eq!(code(&unavailable), Code::Unavailable);
    }

    #[tokio::test]
    async fn a_grpc_client_sees_the_denial_of_a_server_behind_the_layer() {
        use acequia_api::acequia::v1::{
            CheckRequest, limiter_client::LimiterClient, limiter_server::LimiterServer,
        };
        use tokio_stream::wrappers::TcpListenerStream;
        use tonic_types::StatusExt as _;

        let node = Node::of(1);
        let decider =
            Decider::new(node.client(Options { deadline: Duration::from_secs(60) }), Fallback::Closed);
        let layer = LimitLayer::grpc(decider, |request| {
            Some(Question::new("shop", [("method", request.uri.path())]))
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        // Any service fits behind the layer: another node, here.
        let server =
            tonic::transport::Server::builder().layer(layer).add_service(LimiterServer::new(Node::of(10)));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));

        let mut client = LimiterClient::connect(format!("http://{address}")).await.expect("a connection");
        assert!(client.check(CheckRequest::default()).await.expect("an answer").into_inner().allowed);
        node.set(Mode::Denies(Some(250)));
        let denied = client.check(CheckRequest::default()).await.expect_err("over the limit");
        assert_eq!(denied.code(), Code::ResourceExhausted);
        assert_eq!(denied.metadata().get("grpc-retry-pushback-ms").expect("pushback"), "250");
        let retry = denied.get_details_retry_info().expect("RetryInfo");
        assert_eq!(retry.retry_delay, Some(Duration::from_millis(250)));
        let failure = denied.get_details_quota_failure().expect("QuotaFailure");
        assert_eq!(failure.violations[0].subject, "per-key");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_requests_are_refunded_if_the_layer_is_told_to() {
        let node = Node::of(10);
        let plain = LimitLayer::http(decider(&node, Fallback::Closed), by_key);
        ask(&plain, 500).await;
        settle().await;
        assert_eq!(node.charged(), 1);

        let refunding = plain.refund_failures();
        for (status, charged) in [(200, 2), (404, 3), (500, 3), (503, 3)] {
            ask(&refunding, status).await;
            settle().await;
            assert_eq!(node.charged(), charged, "{status}");
        }
        assert_eq!(refunding.refunds_lost(), 0);

        // A service that fails altogether has not done its work, either.
        let failing =
            refunding.layer(service_fn(|_: Request<()>| ready(Err::<Response<String>, _>("broken"))));
        assert_eq!(failing.oneshot(request()).await.expect_err("broken"), "broken");
        settle().await;
        assert_eq!(node.charged(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_grpc_calls_are_refunded_and_the_callers_own_faults_are_not() {
        let node = Node::of(10);
        let layer = LimitLayer::grpc(decider(&node, Fallback::Closed), by_key).refund_failures();
        for (code, charged) in [(Code::InvalidArgument, 1), (Code::Internal, 1), (Code::Unavailable, 1)] {
            let service = layer.layer(service_fn(move |_: Request<()>| {
                ready(Ok::<Response<String>, String>(Status::new(code, "").into_http()))
            }));
            service.oneshot(request()).await.expect("a response");
            settle().await;
            assert_eq!(node.charged(), charged, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_refund_is_retried_and_then_counted() {
        let node = Node::of(10);
        let layer = LimitLayer::http(decider(&node, Fallback::Closed), by_key).refund_failures();
        let service = layer.layer(service_fn({
            let node = node.clone();
            move |_: Request<()>| {
                node.set(Mode::LosesAnswers);
                ready(Ok::<_, String>(
                    Response::builder().status(500).body(String::new()).expect("a response"),
                ))
            }
        }));
        service.clone().oneshot(request()).await.expect("a response");
        settle().await;
        assert_eq!(node.charged(), 0, "it was made, though nobody said so");
        assert_eq!(node.books().refunds, [Settled::Done, Settled::Before, Settled::Before]);
        assert_eq!(layer.refunds_lost(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn refunds_in_flight_are_bounded() {
        let node = Node::of(10_000);
        let layer = LimitLayer::http(decider(&node, Fallback::Closed), by_key).refund_failures();
        for _ in 0..crate::REFUNDS_IN_FLIGHT_MAX + 3 {
            drop(layer.gate.refunds.charge("unknown".to_owned()));
        }
        assert_eq!(layer.refunds_lost(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_leaky_bucket_up_to_a_bound() {
        let node = Node::of(10);
        let layer = LimitLayer::http(decider(&node, Fallback::Closed), by_key).refund_failures();
        node.books().template.delay_ms = 700;
        let begun = Instant::now();
        assert_eq!(ask(&layer, 200).await.status(), 200);
        assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
        assert_eq!(node.charged(), 1);

        node.books().template.delay_ms = 1_001;
        let begun = Instant::now();
        let denied = ask(&layer, 200).await;
        assert_eq!(
            (denied.status().as_u16(), &denied.headers()[RETRY_AFTER]),
            (429, &"2".parse().expect("text"))
        );
        assert!(begun.elapsed() < Duration::from_millis(700), "{:?}", begun.elapsed());
        settle().await;
        assert_eq!(node.charged(), 1, "its place in the queue is free again");

        let patient = layer.clone().delay_max(Duration::from_secs(2));
        assert_eq!(ask(&patient, 200).await.status(), 200);
        let grpc = LimitLayer::grpc(decider(&node, Fallback::Closed), by_key);
        let denied = ask(&grpc, 200).await;
        assert_eq!(code(&denied), Code::ResourceExhausted);
        assert_eq!(denied.headers()["grpc-retry-pushback-ms"], "1001");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_hangs_up_while_waiting_is_refunded() {
        let node = Node::of(10);
        let layer = LimitLayer::http(decider(&node, Fallback::Closed), by_key).refund_failures();
        node.books().template.delay_ms = 900;
        let patience = Duration::from_millis(300);
        tokio::time::timeout(patience, ask(&layer, 200)).await.expect_err("still waiting");
        settle().await;
        assert_eq!(node.charged(), 0);
    }

    /// Lets background tasks finish: the clock moves only when there is nothing else to do.
    async fn settle() {
        yield_now().await;
        sleep(Duration::from_secs(1)).await;
    }
}
