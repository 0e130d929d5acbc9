//! Limits by xDS, from a management server of the test's own.

use std::{
    convert::Infallible,
    fs,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Instant,
};

use acequia_api::discovery::{
    DiscoveryRequest, DiscoveryResponse, RATE_LIMIT_CONFIG, RateLimitConfig, RateLimitDescriptor,
    RateLimitPolicy, STREAM_AGGREGATED_RESOURCES,
};
use acequia_tests::{
    cluster::{Cluster, REGIONS},
    eventually,
};
use futures::{StreamExt as _, stream::BoxStream};
use prost::Message as _;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Request, Response, Status, Streaming, body::Body, server::StreamingService, transport::ServerTlsConfig,
};

use super::place::{Replacement, asked};

const US: usize = REGIONS.len() - 1;

/// A management server, on a thread of its own until this is dropped.
pub(super) struct Server {
    port: u16,
    state: Arc<Mutex<State>>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    /// What each stream was asked, in order.
    asked: Vec<DiscoveryRequest>,
    /// The stream that is open now.
    stream: Option<mpsc::UnboundedSender<DiscoveryResponse>>,
    sent: usize,
}

impl Server {
    fn start(port: u16) -> Self {
        Self::start_with(port, None)
    }

    /// As `start`, with certificates.
    pub(super) fn start_with(port: u16, tls: Option<ServerTlsConfig>) -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let service = Service(Arc::clone(&state));
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let server = tonic::transport::Server::builder();
            let mut server = match tls {
                Some(tls) => server.tls_config(tls).expect("certificates"),
                None => server,
            };
            let serve =
                server.add_service(service).serve_with_shutdown(([127, 0, 0, 1], port).into(), async move {
                    // A test that ends stops its server.
                    let _ = stopped.await;
                });
            runtime.block_on(serve).expect("it serves");
        });
        Self { port, state, _stop: stop }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends resources as version `version`, and waits for what the client says of them.
    pub(super) fn send(&self, version: &str, resources: &[RateLimitConfig]) -> DiscoveryRequest {
        let any = |config: &RateLimitConfig| prost_types::Any {
            type_url: RATE_LIMIT_CONFIG.to_owned(),
            value: config.encode_to_vec(),
        };
        self.send_any(version, resources.iter().map(any).collect())
    }

    fn send_any(&self, version: &str, resources: Vec<prost_types::Any>) -> DiscoveryRequest {
        eventually("a stream is open", || self.state().stream.is_some());
        let nonce = {
            let mut state = self.state();
            state.sent += 1;
            let nonce = format!("nonce-{}", state.sent);
            let response = DiscoveryResponse {
                version_info: version.to_owned(),
                resources,
                type_url: RATE_LIMIT_CONFIG.to_owned(),
                nonce: nonce.clone(),
            };
            let stream = state.stream.as_ref().expect("a stream");
            stream.send(response).expect("the client listens");
            nonce
        };
        self.answer_to(&nonce)
    }

    /// The request with this nonce.
    fn answer_to(&self, nonce: &str) -> DiscoveryRequest {
        let find = || self.state().asked.iter().find(|request| request.response_nonce == nonce).cloned();
        eventually("the client answers", || find().is_some());
        find().expect("an answer")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server ends once its streams have ended.
        self.state().stream = None;
    }
}

#[derive(Clone)]
struct Service(Arc<Mutex<State>>);

impl tonic::server::NamedService for Service {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        assert_eq!(request.uri().path(), STREAM_AGGREGATED_RESOURCES);
        let service = self.clone();
        Box::pin(async move {
            let codec = tonic_prost::ProstCodec::<DiscoveryResponse, DiscoveryRequest>::default();
            Ok(tonic::server::Grpc::new(codec).streaming(service, request).await)
        })
    }
}

impl StreamingService<DiscoveryRequest> for Service {
    type Response = DiscoveryResponse;
    type ResponseStream = BoxStream<'static, Result<DiscoveryResponse, Status>>;
    type Future = std::future::Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<DiscoveryRequest>>) -> Self::Future {
        let (send, responses) = mpsc::unbounded_channel();
        let state = Arc::clone(&self.0);
        state.lock().unwrap_or_else(PoisonError::into_inner).stream = Some(send);
        tokio::spawn(async move {
            let mut requests = request.into_inner();
            while let Ok(Some(request)) = requests.message().await {
                state.lock().unwrap_or_else(PoisonError::into_inner).asked.push(request);
            }
        });
        let responses = UnboundedReceiverStream::new(responses).map(Ok);
        std::future::ready(Ok(Response::new(responses.boxed())))
    }
}

fn descriptor(key: &str, value: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        rate_limit: Some(RateLimitPolicy { unit: 6, requests_per_unit, ..RateLimitPolicy::default() }),
        ..RateLimitDescriptor::default()
    }
}

pub(super) fn shop(requests_per_unit: u32) -> RateLimitConfig {
    RateLimitConfig {
        name: "shop".to_owned(),
        domain: "shop".to_owned(),
        descriptors: vec![descriptor("tenant", "", requests_per_unit)],
    }
}

/// A node that asks this server.
fn replacement(server: &Server, variables: &[(&str, &str)]) -> Replacement {
    let url = format!("127.0.0.1:{}", server.port);
    let mut all = vec![
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", url.as_str()),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "50ms"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "100ms"),
        ("LOG_LEVEL", "info"),
    ];
    all.extend(variables);
    Replacement::begin(&all)
}

/// What is left for a tenant; `None` if no limit counts it.
fn left(replacement: &Replacement) -> Option<u64> {
    let tenant = json!([{ "key": "tenant", "value": "a" }]);
    let (_, answer) = replacement.json(&asked(&tenant, 0));
    let status = &answer["statuses"][0];
    status.get("currentLimit")?;
    Some(status["limitRemaining"].as_u64().unwrap_or(0))
}

#[test]
fn limits_by_xds_are_acknowledged_once_they_count_and_refused_in_words() {
    let server = Server::start(crate::store::servers::free_port());
    let replacement = replacement(&server, &[]);
    eventually("the first request", || !server.state().asked.is_empty());
    let first = server.state().asked[0].clone();
    assert_eq!((first.type_url.as_str(), first.version_info.as_str()), (RATE_LIMIT_CONFIG, ""));
    assert_eq!(first.node.expect("a node").id, "envoy-ratelimit");
    assert!(
        first.resource_names.is_empty() && first.response_nonce.is_empty() && first.error_detail.is_none()
    );
    assert!(!replacement.is_healthy(), "a node without limits waits for them");

    let accepted = server.send("1", &[shop(5)]);
    assert_eq!((accepted.version_info.as_str(), accepted.error_detail), ("1", None));
    eventually("it is healthy", || replacement.is_healthy());
    assert_eq!(left(&replacement), Some(5));

    // An acknowledged number counts.
    assert_eq!(server.send("2", &[shop(7)]).version_info, "2");
    assert_eq!(left(&replacement), Some(7));

    let twice = RateLimitConfig {
        descriptors: vec![descriptor("tenant", "", 1), descriptor("tenant", "", 2)],
        ..shop(1)
    };
    let refused = |resources: Vec<prost_types::Any>, word: &str| {
        let refused = server.send_any("3", resources.clone());
        let fault = refused.error_detail.expect("a fault");
        assert_eq!(refused.version_info, "2", "the last good version");
        assert!(fault.code == 3 && fault.message.contains(word), "{fault:?}");
        assert_eq!(left(&replacement), Some(7), "the last good limits count");
        let again = server.send_any("3", resources).error_detail.expect("a fault");
        assert_eq!(again.message, fault.message, "a server may send it again");
    };
    let any = |type_url: &str, value: Vec<u8>| prost_types::Any { type_url: type_url.to_owned(), value };
    let config = |config: &RateLimitConfig| any(RATE_LIMIT_CONFIG, config.encode_to_vec());
    refused(vec![config(&twice)], "shop/tenant is there twice");
    refused(vec![config(&shop(1)), config(&shop(2))], "is there twice");
    refused(vec![any("type.googleapis.com/other", Vec::new())], "type.googleapis.com/other");
    refused(vec![any(RATE_LIMIT_CONFIG, vec![0x0a, 200, 1])], "malformed");
    let nameless = RateLimitConfig { domain: String::new(), ..shop(1) };
    refused(vec![config(&nameless)], "domain is empty");

    // Everything is replaced: what is not sent any more, counts no more.
    assert_eq!(server.send("4", &[]).version_info, "4");
    assert_eq!(left(&replacement), None);
    assert!(replacement.is_healthy());
}

#[test]
fn a_node_goes_on_without_its_server_and_takes_what_the_next_one_sends() {
    let port = crate::store::servers::free_port();
    let server = Server::start(port);
    let replacement = replacement(&server, &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]);
    eventually("it is healthy without limits", || replacement.is_healthy());
    assert_eq!(left(&replacement), None);
    assert_eq!(server.send("1", &[shop(5)]).version_info, "1");
    drop(server);
    assert_eq!(left(&replacement), Some(5), "the last limits stay");

    // The port may be free a moment later only.
    eventually("the port is free", || std::net::TcpListener::bind(("127.0.0.1", port)).is_ok());
    let server = Server::start(port);
    eventually("the client is back", || !server.state().asked.is_empty());
    let first = server.state().asked[0].clone();
    // The new server may count its versions from the same number, so the client names none.
    assert_eq!((first.version_info.as_str(), first.response_nonce.as_str()), ("", ""));
    assert_eq!(server.send("2", &[shop(6)]).version_info, "2");
    assert_eq!(left(&replacement), Some(6));
}

/// The authority has one limit of two, and another number.
#[test]
fn among_regions_the_authoritys_limits_count_whatever_xds_sends_to_others() {
    let limits = "limits:\n  - { name: tenant, domain: shop, path: [{ key: tenant }], charge: always, \
                  fixed_window: { limit: 300, window: 365d } }\n";
    let mut cluster = Cluster::prepare(limits);
    (0..US).for_each(|region| cluster.start_region(region));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("acequia.yaml");
    let config = cluster.config(US).replace(limits, "limits: []\n");
    fs::write(&file, config.replace("DATA", &folder.path().display().to_string())).expect("written");
    let server = Server::start(crate::store::servers::free_port());
    let replacement = replacement(&server, &[("ACEQUIA_CONFIG", &file.display().to_string())]);
    let sent = RateLimitConfig {
        descriptors: vec![descriptor("tenant", "", 7_000), descriptor("route", "", 5)],
        ..shop(0)
    };
    assert_eq!(server.send("1", &[sent]).error_detail, None);
    eventually("it is healthy", || replacement.is_healthy());
    assert_eq!(left(&replacement), Some(100), "a third of what the authority says");
    let route = json!([{ "key": "route", "value": "/x" }]);
    let (status, answer) = replacement.json(&asked(&route, 9));
    assert_eq!((status, &answer["statuses"][0]), (200, &json!({ "code": "OK" })), "{answer}");
    let unmapped = || replacement.metrics().sum("acequia_xds_unmapped", &[("domain", "shop")]);
    eventually("it is counted", || unmapped() == 1.0);
}

/// Callers ask meanwhile. How long it took is printed.
#[test]
fn ten_thousand_descriptors_come_into_force_and_no_answer_is_lost() {
    let server = Server::start(crate::store::servers::free_port());
    let replacement = replacement(&server, &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]);
    eventually("it is healthy", || replacement.is_healthy());
    server.send("1", &[shop(5)]);
    let many = |requests: u32| {
        let routes = (0..10_000).map(|route| descriptor("route", &format!("/r/{route}"), requests)).collect();
        [shop(5), RateLimitConfig { name: "many".to_owned(), domain: "many".to_owned(), descriptors: routes }]
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut answers = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(left(&replacement), Some(5), "an answer is lost");
                answers += 1;
            }
            answers
        });
        let took = [10, 11].map(|requests| {
            let begun = Instant::now();
            assert_eq!(server.send(&requests.to_string(), &many(requests)).error_detail, None);
            begun.elapsed()
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(asking.join().expect("no answer is lost") > 0);
        let route = json!({ "domain": "many", "descriptors": [{ "entries": [{ "key": "route", "value": "/r/7777" }] }] });
        let (_, answer) = replacement.json(&route.to_string());
        assert_eq!(answer["statuses"][0]["limitRemaining"], 10, "{answer}");
        eprintln!("10000 descriptors by xDS: {took:?}");
    });
}
