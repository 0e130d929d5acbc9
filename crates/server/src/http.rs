//! The HTTP port: `POST /v1/check` and others for programs, `GET|HEAD /v1/authz` for proxies, `/metrics`,
//! `/healthz`, `/readyz`.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use acequia_api::{envoy::service::ratelimit::v3::rate_limit_response::Code, wire::WireRecord};
use acequia_limits::{Now, Request, time::ms_rounded_up};
use acequia_node::{Answer, Ask, Catalogue, IdReused, Recording};
use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{Query, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use futures::future::Either;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::{
    admit::Admitted,
    authz::Question,
    callers::{CallRights, may, may_ask_for, origin, owner},
    charges::{ChargeKind, Names, WrittenReserve, renewed_word, settled_word},
    config::May,
    connections::{Hold, Life, Stage, TooMuchHeld},
    grpc,
    headers::{Header, headers},
    json::JsonDescriptor,
    port::Port,
    question::{BadRequest, check_request, check_sizes},
    ratelimit::json::{JsonRequest, answer_json, config_text},
    refused::{Origin, TurnedAway},
    respond::{class, members, name, outcome_word, retry_after_ms, status},
    settings::SETTINGS,
    settle::{self, Renewal, SettleFault, Settlement, settle},
    shared::Shared,
    worker::{How, Worker},
    writer::DOWN,
};

/// Paths that need neither certificate nor token: a health checker has none.
const OPEN_PATHS: [&str; 3] = ["/healthcheck", "/healthz", "/readyz"];

/// Everything that a node counts, as text.
pub type MetricsText = fn(&Arc<Shared>) -> String;

/// The services of the port. `metrics_text` answers `/metrics`.
pub fn router(worker: Arc<Worker>, metrics_text: MetricsText) -> Router {
    Router::new()
        .route("/v1/check", post(check))
        .route("/v1/peek", post(peek))
        .route("/v1/refund", post(refund))
        .route("/v1/commit", post(commit))
        .route("/v1/report", post(report))
        .route("/v1/renew", post(renew))
        .route("/v1/authz", get(authz))
        .route("/metrics", get(metrics).layer(Extension(metrics_text)))
        .route("/json", post(json))
        .route("/rlconfig", get(rlconfig))
        .route("/healthcheck", get(healthcheck))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(worker)
}

/// Serves a connection until its end, or until `stopping`. Requests in flight are still answered then.
pub(crate) async fn serve(
    admitted: Admitted<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>,
    worker: Arc<Worker>,
    router: Router,
    stopping: CancellationToken,
) {
    let Admitted { stream, caller, life } = admitted;
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(SETTINGS.http.read_max)
        .max_buf_size(SETTINGS.http.header_bytes_max as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(SETTINGS.http.read_max)
        .keep_alive_timeout(SETTINGS.http.read_max)
        .max_header_list_size(SETTINGS.http.header_bytes_max)
        .max_send_buf_size(SETTINGS.http.window_bytes as usize)
        .initial_stream_window_size(SETTINGS.http.window_bytes)
        .initial_connection_window_size(SETTINGS.http.window_bytes)
        .max_concurrent_streams(SETTINGS.http.streams_max);
    let calls = Arc::clone(&life);
    let service = TowerToHyperService::new(router);
    let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        let rights = match caller.rights(request.headers()) {
            Ok(rights) => {
                calls.called();
                rights
            }
            // Such a call does not keep its connection open.
            Err(_) if OPEN_PATHS.contains(&request.uri().path()) => None,
            Err(fault) => {
                worker.shared.refused.turn_away(Port::Http, fault, Origin::unknown(caller.from));
                return Either::Left(async move {
                    read_small(request.into_body()).await;
                    Ok(turned_away(fault))
                });
            }
        };
        request.extensions_mut().insert(Arc::clone(&calls));
        request.extensions_mut().insert(rights);
        Either::Right(hyper::service::Service::call(&service, request))
    });
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut stop = std::pin::pin!(stopping.cancelled());
    let mut draining = false;
    std::future::poll_fn(move |cx| {
        loop {
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let stage = life.poll(cx);
            if stage == Stage::Cut {
                return Poll::Ready(());
            }
            if draining || stage == Stage::Open && stop.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            draining = true;
            connection.as_mut().graceful_shutdown();
        }
    })
    .await;
}

/// Reads what little there is of a body. A caller of HTTP/2 that is answered before it has sent everything
/// may take that for a fault.
async fn read_small(mut body: hyper::body::Incoming) {
    let read = async {
        let mut left = SETTINGS.held.small_bytes;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    // A caller that sends slowly is not waited for.
    let _ = tokio::time::timeout(SETTINGS.http.read_max, read).await;
}

/// Answers a caller that is not allowed to ask.
fn turned_away(fault: TurnedAway) -> Response {
    let json = Json(serde_json::json!({ "error": fault.to_string() }));
    match fault {
        TurnedAway::Unknown => {
            let how = [(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))];
            (StatusCode::UNAUTHORIZED, how, json).into_response()
        }
        TurnedAway::Action | TurnedAway::Domain => (StatusCode::FORBIDDEN, json).into_response(),
    }
}

/// The answer if a call may not do this for this domain.
fn forbidden(worker: &Worker, rights: &CallRights, what: May, domain: Option<&str>) -> Option<Response> {
    let allowed = may(rights, what)
        .and_then(|()| domain.map_or(Ok(()), |domain| may_ask_for(rights, domain.as_bytes())));
    let fault = allowed.err()?;
    worker.shared.refused.turn_away(Port::Http, fault, origin(rights));
    Some(turned_away(fault))
}

/// The body of `POST /v1/check`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `domain` and `descriptors`")]
struct CheckBody {
    domain: String,
    descriptors: Vec<JsonDescriptor>,
    cost: Option<u64>,
    /// The caller's name for the request.
    id: Option<String>,
    #[serde(default)]
    refundable: bool,
    reserve: Option<WrittenReserve>,
}

/// The body of `POST /v1/peek`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `domain` and `descriptors`")]
struct PeekBody {
    domain: String,
    descriptors: Vec<JsonDescriptor>,
    cost: Option<u64>,
}

/// The body of `POST /v1/report`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `domain`, `descriptors` and `cost`")]
struct ReportBody {
    domain: String,
    descriptors: Vec<JsonDescriptor>,
    cost: Option<u64>,
    id: Option<String>,
}

/// The answer to `POST /v1/peek`.
#[derive(Debug, Serialize)]
struct PeekAnswer<'a> {
    #[serde(flatten)]
    verdict: CheckAnswer<'a>,
    unmatched: Vec<UnmatchedJson<'a>>,
    /// What an operator should know about the limits of the domain.
    warnings: Vec<String>,
    /// What cells have set apart, where limits have `expect`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held: Vec<HeldJson<'a>>,
}

/// What a cell has set apart for requests under way whose cost is not known yet.
#[derive(Debug, Serialize)]
struct HeldJson<'a> {
    limit: &'a str,
    units: u64,
}

/// A limit that does not match the request.
#[derive(Debug, Serialize)]
struct UnmatchedJson<'a> {
    name: &'a str,
    why: &'a str,
}

/// The bodies of `POST /v1/refund` and `/v1/renew`, and of `/v1/commit`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `charge_id`")]
struct RefundBody {
    charge_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `charge_id` and `cost`")]
struct CommitBody {
    charge_id: String,
    cost: u64,
}

/// The answer to `POST /v1/check`.
#[derive(Debug, Serialize)]
struct CheckAnswer<'a> {
    allowed: bool,
    limit: Option<&'a str>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    delay_ms: u64,
    /// The id by which the charge can be settled; null unless the caller asked for that, or it took slots.
    charge_id: Option<String>,
    /// Whether this id was answered before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_repeat: bool,
    /// The cost that was reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    charged: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lapses_in_ms: Option<u64>,
    reason: &'static str,
    limits: Vec<LimitJson<'a>>,
}

#[derive(Debug, Serialize)]
struct LimitJson<'a> {
    name: &'a str,
    algorithm: &'static str,
    budget: u64,
    /// What the limit counts, if the config names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'a str>,
    /// Null where the limit exempts the request.
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    delay_ms: u64,
    outcome: &'static str,
    reason: &'static str,
    cost: u64,
    descriptors: Vec<u32>,
    /// The class of consumers, where the limit has classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'a str>,
    /// Units that passed beyond what this node held, in a store outage.
    #[serde(skip_serializing_if = "Option::is_none")]
    open_units: Option<u64>,
    /// Units that were spent beyond what the cell had.
    #[serde(skip_serializing_if = "Option::is_none")]
    owed: Option<u64>,
}

/// Reads a body of JSON, and counts its bytes until the answer; or returns the fault as an answer.
async fn read_json<T: DeserializeOwned>(
    worker: &Worker,
    life: &Arc<Life>,
    body: Body,
    what: &str,
) -> Result<(T, Hold), Response> {
    let mut hold = life.hold();
    let read = match tokio::time::timeout(SETTINGS.http.read_max, collect(body, &mut hold)).await {
        Ok(Err(Unread::Held(fault))) => return Err(busy(fault)),
        Ok(Err(Unread::Cut)) => {
            Err(format!("the body is cut off, or above {} bytes", SETTINGS.http.body_bytes_max))
        }
        Ok(Ok(body)) => {
            serde_json::from_slice(&body).map_err(|fault| format!("the body is no {what}: {fault}"))
        }
        Err(_) => Err("the body did not end in 10 s: send it whole".to_owned()),
    };
    read.map(|read| (read, hold)).map_err(|fault| refuse(worker, &fault))
}

/// Why a body was not read.
enum Unread {
    Cut,
    Held(TooMuchHeld),
}

async fn collect(mut body: Body, hold: &mut Hold) -> Result<Vec<u8>, Unread> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(Unread::Cut) };
        let Ok(data) = frame.into_data() else { continue };
        let length = all.len() + data.len();
        if length > SETTINGS.http.body_bytes_max {
            return Err(Unread::Cut);
        }
        hold.holds(length, length).map_err(Unread::Held)?;
        all.extend_from_slice(&data);
    }
    Ok(all)
}

/// Says that the node has no room now.
fn busy(fault: TooMuchHeld) -> Response {
    let again = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
    let json = Json(serde_json::json!({ "error": fault.to_string() }));
    (StatusCode::SERVICE_UNAVAILABLE, again, json).into_response()
}

async fn check(
    State(worker): State<Arc<Worker>>,
    Extension(life): Extension<Arc<Life>>,
    Extension(rights): Extension<CallRights>,
    body: Body,
) -> Response {
    let (body, _hold): (CheckBody, _) = match read_json(&worker, &life, body, "check").await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let what = if body.reserve.is_some() { May::Reserve } else { May::Check };
    if let Some(refusal) = forbidden(&worker, &rights, what, Some(&body.domain)) {
        return refusal;
    }
    let request =
        match asked(&body.domain, &body.descriptors, body.cost, |domain| worker.shared.has_holds(domain)) {
            Ok(request) => request,
            Err(fault) => return refuse(&worker, &fault.to_string()),
        };
    let recording = match recording(&worker, &request, &body) {
        Ok(recording) => recording,
        Err(fault) => return refuse(&worker, &fault),
    };
    let how = How::new(Ask::CHECK, recording).of(owner(&rights, life.owner()));
    if let Err(fault) = worker.may_lease(&request, how) {
        return refuse(&worker, &fault.to_string());
    }
    let settings = worker.shared.settings();
    let respond = |answer: &Answer, catalogue: &Catalogue, now: Now| {
        // Both verdicts are answers with status 200, except when nobody can decide.
        let status = status(answer, StatusCode::OK);
        let json = Json(check_answer(answer, catalogue, &worker.shared.names));
        with_headers((status, json).into_response(), headers(&settings.headers.http, answer, catalogue, now))
    };
    match worker.ask(&request, how, respond).await {
        Ok(response) => response,
        Err(IdReused) => refuse(&worker, &BadRequest::IdReused.to_string()),
    }
}

/// The request of a body.
fn asked<'b>(
    domain: &'b str,
    descriptors: &'b [JsonDescriptor],
    cost: Option<u64>,
    has_holds: impl Fn(&[u8]) -> bool,
) -> Result<Request<'b>, BadRequest> {
    if cost == Some(0) && !has_holds(domain.as_bytes()) {
        return Err(BadRequest::ZeroCost);
    }
    let request = written(domain, descriptors, cost);
    check_request(&request).map(|()| request)
}

/// The request that a body has written, unchecked.
fn written<'b>(domain: &'b str, descriptors: &'b [JsonDescriptor], cost: Option<u64>) -> Request<'b> {
    let mut request = Request { domain: domain.as_bytes(), cost: cost.unwrap_or(1), ..Request::default() };
    for descriptor in descriptors {
        request.push(descriptor.0.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())), None);
    }
    request
}

/// `POST /v1/peek`: how a check would be answered, and why other limits of the domain do not match the
/// request. It charges nothing, so its status is 200 for a denial, too.
async fn peek(
    State(worker): State<Arc<Worker>>,
    Extension(life): Extension<Arc<Life>>,
    Extension(rights): Extension<CallRights>,
    body: Body,
) -> Response {
    let (body, mut hold): (PeekBody, _) = match read_json(&worker, &life, body, "peek").await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    if let Some(refusal) = forbidden(&worker, &rights, May::Peek, Some(&body.domain)) {
        return refusal;
    }
    let request =
        match asked(&body.domain, &body.descriptors, body.cost, |domain| worker.shared.has_holds(domain)) {
            Ok(request) => request,
            Err(fault) => return refuse(&worker, &fault.to_string()),
        };
    let respond = |answer: &Answer, catalogue: &Catalogue, now: Now| {
        let unmatched = catalogue.unmatched(&request, SETTINGS.requests.unmatched_max, now.wall_ns);
        let unmatched = unmatched.iter().map(|one| UnmatchedJson {
            name: &catalogue.limits[one.limit as usize].limit.spec.name,
            why: &one.why,
        });
        let unmatched = unmatched.collect();
        let verdict = check_answer(answer, catalogue, &worker.shared.names);
        let warnings = catalogue.replaced(request.domain, now.wall_ns);
        let held = worker.shared.node.held(answer, catalogue).into_iter().map(|cell| {
            let limit = answer.limits[cell.place].limit;
            HeldJson { limit: &catalogue.limits[limit as usize].limit.spec.name, units: cell.units }
        });
        let held = held.collect();
        serde_json::to_vec(&PeekAnswer { verdict, unmatched, warnings, held }).unwrap_or_default()
    };
    match worker.ask(&request, Ask::PEEK.into(), respond).await {
        Ok(json) => {
            // An answer that is not read yet counts as held, too.
            hold.keep(json.len());
            let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
            (kind, Body::new(HeldText { text: json.into(), _hold: hold })).into_response()
        }
        Err(IdReused) => refuse(&worker, &BadRequest::IdReused.to_string()),
    }
}

/// How the charge of a check is remembered.
fn recording(worker: &Worker, request: &Request<'_>, body: &CheckBody) -> Result<Option<Recording>, String> {
    let id = body.id.as_deref();
    if id == Some("") {
        return Err(BadRequest::Id.to_string());
    }
    let reserve = body.reserve.as_ref().map(WrittenReserve::wire).transpose()?;
    let record = WireRecord { id: id.unwrap_or("").as_bytes(), refundable: body.refundable, reserve };
    worker.shared.names.recording(request, &record, ChargeKind::Check).map_err(|fault| fault.to_string())
}

/// `POST /v1/report`: records a cost that was spent already, whatever is left. The status is 200 whether it
/// fitted or not.
async fn report(
    State(worker): State<Arc<Worker>>,
    Extension(life): Extension<Arc<Life>>,
    Extension(rights): Extension<CallRights>,
    body: Body,
) -> Response {
    let (body, _hold): (ReportBody, _) = match read_json(&worker, &life, body, "report").await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    if let Some(refusal) = forbidden(&worker, &rights, May::Report, Some(&body.domain)) {
        return refusal;
    }
    let request = written(&body.domain, &body.descriptors, body.cost);
    if let Err(fault) = check_request(&request) {
        return refuse(&worker, &fault.to_string());
    }
    let id = body.id.as_deref();
    let record = WireRecord { id: id.unwrap_or("").as_bytes(), ..WireRecord::default() };
    let recording = match worker.shared.names.recording(&request, &record, ChargeKind::Report) {
        Ok(_) if id == Some("") => return refuse(&worker, &BadRequest::Id.to_string()),
        Ok(recording) => recording,
        Err(fault) => return refuse(&worker, &fault.to_string()),
    };
    let how = How::new(Ask::REPORT, recording).of(owner(&rights, life.owner()));
    if let Err(fault) = worker.may_lease(&request, how) {
        return refuse(&worker, &fault.to_string());
    }
    let respond = |answer: &Answer, catalogue: &Catalogue, _: Now| {
        Json(check_answer(answer, catalogue, &worker.shared.names)).into_response()
    };
    match worker.ask(&request, how, respond).await {
        Ok(response) => response,
        Err(IdReused) => refuse(&worker, &BadRequest::IdReused.to_string()),
    }
}

async fn refund(
    State(worker): State<Arc<Worker>>,
    Extension(life): Extension<Arc<Life>>,
    Extension(rights): Extension<CallRights>,
    body: Body,
) -> Response {
    match read_json::<RefundBody>(&worker, &life, body, "refund").await {
        Ok((body, _hold)) => match forbidden(&worker, &rights, May::Refund, None) {
            None => settled(&worker, &body.charge_id, None).await,
            Some(refusal) => refusal,
        },
        Err(refusal) => refusal,
    }
}

async fn commit(
    State(worker): State<Arc<Worker>>,
    Extension(life): Extension<Arc<Life>>,
    Extension(rights): Extension<CallRights>,
    body: Body,
) -> Response {
    match read_json::<CommitBody>(&worker, &life, body, "commit").await {
        Ok((body, _hold)) => match forbidden(&worker, &rights, May::Commit, None) {
            None => settled(&worker, &body.charge_id, Some(body.cost)).await,
            Some(refusal) => refusal,
        },
        Err(refusal) => refusal,
    }
}

async fn renew(
    State(worker): State<Arc<Worker>>,
    Extension(life): Extension<Arc<Life>>,
    Extension(rights): Extension<CallRights>,
    body: Body,
) -> Response {
    let (body, _hold) = match read_json::<RefundBody>(&worker, &life, body, "renewal").await {
        Ok(read) => read,
        Err(refusal) => return refusal,
    };
    if let Some(refusal) = forbidden(&worker, &rights, May::Refund, None) {
        return refusal;
    }
    match settle::renew(&worker, &body.charge_id).await {
        Ok(Renewal { word, lapses_in_ms }) => {
            let json = serde_json::json!({ "renewed": renewed_word(word), "lapses_in_ms": lapses_in_ms });
            Json(json).into_response()
        }
        Err(fault) => unsettled(&worker, &fault),
    }
}

/// Settles a charge; the answer is `{"settled": "done", "refunded": [{"name": "per-key", "units": 3}]}`.
async fn settled(worker: &Worker, charge_id: &str, cost: Option<u64>) -> Response {
    match settle(worker, charge_id, cost).await {
        Ok(Settlement { word, refunded }) => {
            let refunded: Vec<_> = refunded
                .iter()
                .map(|one| serde_json::json!({ "name": one.name, "units": one.units }))
                .collect();
            let json = serde_json::json!({ "settled": settled_word(word), "refunded": refunded });
            Json(json).into_response()
        }
        Err(fault) => unsettled(worker, &fault),
    }
}

/// The answer to a settlement or a renewal that was refused.
fn unsettled(worker: &Worker, fault: &SettleFault) -> Response {
    match fault {
        SettleFault::Unwritten | SettleFault::Unheard => {
            let json = serde_json::json!({ "error": fault.to_string() });
            (StatusCode::SERVICE_UNAVAILABLE, Json(json)).into_response()
        }
        SettleFault::Malformed(_) => refuse(worker, &fault.to_string()),
    }
}

fn check_answer<'a>(answer: &Answer, catalogue: &'a Catalogue, names: &Names) -> CheckAnswer<'a> {
    let decisive = answer.decisive.map(|number| &answer.limits[number]);
    let limits = answer.limits.iter().map(|limit| LimitJson {
        name: name(limit, catalogue),
        algorithm: catalogue.limits[limit.limit as usize].limit.kind(),
        budget: limit.budget,
        unit: catalogue.limits[limit.limit as usize].limit.unit(),
        remaining: Some(limit.verdict.remaining).filter(|remaining| *remaining != u64::MAX),
        retry_after_ms: retry_after_ms(limit.verdict.allowed, limit.verdict.retry_after_ns),
        reset_after_ms: ms_rounded_up(limit.verdict.reset_after_ns),
        delay_ms: ms_rounded_up(limit.verdict.delay_ns),
        outcome: outcome_word(limit.outcome),
        reason: limit.reason.as_str(),
        cost: limit.units,
        descriptors: members(limit.descriptors).to_vec(),
        class: class(limit, catalogue),
        open_units: Some(catalogue.limits[limit.limit as usize].open_units()).filter(|units| *units > 0),
        owed: Some(limit.late.owed).filter(|units| *units > 0),
    });
    CheckAnswer {
        allowed: answer.allowed,
        limit: decisive.map(|limit| name(limit, catalogue)),
        remaining: decisive.map(|limit| limit.verdict.remaining),
        retry_after_ms: retry_after_ms(answer.allowed, answer.retry_after_ns),
        delay_ms: ms_rounded_up(answer.delay_ns),
        charge_id: answer.charge.map(|charged| names.text(charged)),
        is_repeat: answer.charge.is_some_and(|charged| charged.is_repeat),
        charged: answer.charge.map(|charged| charged.reserved).filter(|reserved| *reserved > 0),
        lapses_in_ms: answer.charge.map(|charged| charged.lapses_in_ns / 1_000_000).filter(|ms| *ms > 0),
        reason: answer.reason.as_str(),
        limits: limits.collect(),
    }
}

/// `GET /v1/authz?domain=shop&api_key=k1&header.route=x-forwarded-uri&deny_status=403`. Every parameter
/// except `domain`, `cost` and `deny_status` is an entry. `header.KEY=NAME` takes the value from a header of
/// the request, and leaves the entry out if there is none. A header that comes more than once is a list with
/// commas (RFC 9110, section 5.3). nginx makes 500 of an error, so nothing that a client can choose is an
/// error. A request without entries is answered like one that matches no `when` and no `by`. Values may hold
/// any bytes, and a request that is too long is denied.
async fn authz(
    State(worker): State<Arc<Worker>>,
    Extension(rights): Extension<CallRights>,
    Query(query): Query<Vec<(String, String)>>,
    incoming: HeaderMap,
) -> Response {
    let question = match Question::read(&query, &incoming) {
        Ok(question) => question,
        Err(fault) => return refuse(&worker, &fault),
    };
    let Question { domain, cost, deny_status, entries } = &question;
    let mut request = Request { domain: domain.as_bytes(), cost: *cost, ..Request::default() };
    let is_empty = entries.is_empty();
    request.push(entries.iter().map(|(key, value)| (key.as_bytes(), &**value)), None);
    match check_sizes(&request) {
        Err(BadRequest::EmptyDescriptor(_)) if is_empty => {}
        Err(fault @ BadRequest::TooLong { .. }) => {
            worker.refuse(&fault);
            return (*deny_status, [(REASON, "too-large")]).into_response();
        }
        Err(fault) => return refuse(&worker, &fault.to_string()),
        Ok(()) => {}
    }
    if let Some(refusal) = forbidden(&worker, &rights, May::Check, Some(domain)) {
        return refusal;
    }
    let settings = worker.shared.settings();
    let respond = |answer: &Answer, catalogue: &Catalogue, now: Now| {
        let response = (status(answer, *deny_status), [(REASON, answer.reason.as_str())]).into_response();
        with_headers(response, headers(&settings.headers.http, answer, catalogue, now))
    };
    match worker.ask(&request, Ask::CHECK_NOW.into(), respond).await {
        Ok(response) => response,
        Err(IdReused) => refuse(&worker, &BadRequest::IdReused.to_string()),
    }
}

/// `POST /json`: a request of Envoy's protocol in JSON, as envoyproxy/ratelimit takes it. The status of a denial is
/// 429.
async fn json(
    State(worker): State<Arc<Worker>>,
    Extension(life): Extension<Arc<Life>>,
    Extension(rights): Extension<CallRights>,
    body: Body,
) -> Response {
    let (body, _hold): (JsonRequest, _) = match read_json(&worker, &life, body, "request").await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    match grpc::ask_envoy(worker, rights, life, &body.message()).await {
        Ok(answer) => {
            let status = match answer.overall_code() {
                Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
                Code::Ok | Code::Unknown => StatusCode::OK,
            };
            (status, Json(answer_json(&answer))).into_response()
        }
        Err(fault) => (StatusCode::BAD_REQUEST, Json(serde_json::json!({ "error": fault }))).into_response(),
    }
}

/// `GET /rlconfig`: the limits that came from a config of envoyproxy/ratelimit, as that service shows them.
async fn rlconfig(State(worker): State<Arc<Worker>>, Extension(rights): Extension<CallRights>) -> Response {
    if let Some(refusal) = forbidden(&worker, &rights, May::Metrics, None) {
        return refusal;
    }
    config_text(&worker.shared.node.catalogue()).into_response()
}

/// `GET /healthcheck`, as envoyproxy/ratelimit answers it: whether the node is ready.
async fn healthcheck(State(worker): State<Arc<Worker>>) -> Response {
    match worker.shared.ready() {
        Ok(()) => "OK".into_response(),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
    }
}

/// Why `/v1/authz` answers as it does.
const REASON: HeaderName = HeaderName::from_static("acequia-reason");

async fn metrics(
    State(worker): State<Arc<Worker>>,
    Extension(life): Extension<Arc<Life>>,
    Extension(rights): Extension<CallRights>,
    Extension(metrics_text): Extension<MetricsText>,
) -> Response {
    if let Some(refusal) = forbidden(&worker, &rights, May::Metrics, None) {
        return refusal;
    }
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = metrics_text(&worker.shared);
    let mut hold = life.hold();
    // An answer that is not read yet counts as held, too.
    hold.keep(text.len());
    ([(header::CONTENT_TYPE, kind)], Body::new(HeldText { text: text.into(), _hold: hold })).into_response()
}

/// An answer whose bytes count as held until it is sent.
struct HeldText {
    text: Bytes,
    _hold: Hold,
}

impl http_body::Body for HeldText {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // The text leaves in parts. A connection takes one at a time.
        let part = self.text.len().min(SETTINGS.http.window_bytes as usize);
        let part = self.text.split_to(part);
        Poll::Ready((!part.is_empty()).then(|| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.text.len() as u64)
    }
}

/// A node is ready unless it is stopping or owns nothing. A partition or a store outage never makes it
/// unready: no other node could give what this one may still give.
async fn readyz(State(worker): State<Arc<Worker>>) -> Response {
    match worker.shared.ready() {
        Ok(()) if worker.shared.node.is_journal_down() => {
            format!("ready, but the journal {DOWN}\n").into_response()
        }
        Ok(()) => "ready\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

fn refuse(worker: &Worker, what: &str) -> Response {
    worker.refuse(&what);
    (StatusCode::BAD_REQUEST, Json(serde_json::json!({ "error": what }))).into_response()
}

fn with_headers(mut response: Response, headers: Vec<Header>) -> Response {
    for Header { name, value } in headers {
        // Names of limits are visible ASCII, so every value is one for a header.
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}
