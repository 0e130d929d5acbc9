//! Real receivers on loopback, over HTTP and TLS.

use std::{
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use acequia_limits::selector::Condition;
use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, StatusCode};
use ring::hmac;
use tempfile::TempDir;
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpListener,
    sync::mpsc,
    time::{sleep, timeout},
};
use tracing_subscriber::{Layer as _, filter::Targets, fmt, layer::SubscriberExt as _, registry};

use super::*;

/// How long anything may take that happens by itself. Only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a try may take. This is longer than any test, or a receiver that hangs would get another try.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A message that a receiver got.
#[derive(Debug)]
struct Received {
    headers: HeaderMap,
    body: Bytes,
}

impl Received {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    fn id(&self) -> &str {
        self.header("webhook-id")
    }

    fn at_s(&self) -> u64 {
        self.header("webhook-timestamp").parse().expect("Unix seconds")
    }

    /// Verifies the signature as receivers do, without this crate's own code.
    #[track_caller]
    fn check_signature(&self) {
        let key = STANDARD.decode(SECRET.trim_start_matches("whsec_")).expect("base64");
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        let signed =
            [self.id().as_bytes(), b".", self.header("webhook-timestamp").as_bytes(), b".", &self.body];
        let signature = self.header("webhook-signature").strip_prefix("v1,").expect("a signature");
        let signature = STANDARD.decode(signature).expect("base64");
        hmac::verify(&key, &signed.concat(), &signature).expect("it is signed by who knows the secret");
    }
}

/// A receiver's answer, by how many messages it has seen. Without an answer the receiver hangs.
type Rule = Arc<dyn Fn(usize) -> Option<Response> + Send + Sync>;

struct Receiver {
    address: SocketAddr,
    received: mpsc::UnboundedReceiver<Received>,
}

#[derive(Clone)]
struct Serving {
    rule: Rule,
    seen: Arc<Mutex<usize>>,
    tell: mpsc::UnboundedSender<Received>,
}

impl Serving {
    fn new(
        rule: impl Fn(usize) -> Option<Response> + Send + Sync + 'static,
    ) -> (Self, mpsc::UnboundedReceiver<Received>) {
        let (tell, received) = mpsc::unbounded_channel();
        (Self { rule: Arc::new(rule), seen: Arc::default(), tell }, received)
    }

    fn router(self) -> Router {
        async fn receive(State(serving): State<Serving>, headers: HeaderMap, body: Bytes) -> Response {
            let times = {
                let mut seen = serving.seen.lock().expect("no panic");
                *seen += 1;
                *seen - 1
            };
            // The test may have ended.
            let _ = serving.tell.send(Received { headers, body });
            match (serving.rule)(times) {
                Some(response) => response,
                None => std::future::pending().await,
            }
        }
        Router::new().fallback(receive).with_state(self)
    }
}

impl Receiver {
    /// A rule that gives no answer makes a receiver that hangs.
    async fn start(rule: impl Fn(usize) -> Option<Response> + Send + Sync + 'static) -> Self {
        let (serving, received) = Serving::new(rule);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(axum::serve(listener, serving.router()).into_future());
        Self { address, received }
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    async fn next(&mut self) -> Received {
        timeout(PATIENCE, self.received.recv()).await.expect("a message in time").expect("it is served")
    }
}

fn ok(_: usize) -> Option<Response> {
    Some(StatusCode::NO_CONTENT.into_response())
}

/// Webhooks, and the folder of their secret.
struct Sender {
    webhooks: Webhooks,
    folder: TempDir,
}

impl Sender {
    fn start(urls: &[&str]) -> Self {
        let sender = Self {
            webhooks: Webhooks::start().expect("a thread"),
            folder: tempfile::tempdir().expect("a folder"),
        };
        std::fs::write(sender.secret(), format!("{SECRET}\n")).expect("a file");
        sender.replace(urls, RootCertStore::empty());
        sender
    }

    fn secret(&self) -> PathBuf {
        self.folder.path().join("webhook.key")
    }

    fn replace(&self, urls: &[&str], roots: RootCertStore) {
        let hooks: Vec<WebhookConfig> = urls.iter().map(|url| hook(url, self.secret())).collect();
        let trust = post::trust(roots).expect("a TLS config");
        self.webhooks.replace(Prepared::read_with(&hooks, &trust).expect("sound hooks"));
    }

    /// All hooks of these tests are on one host.
    fn counts(&self) -> Counts {
        let mut counts = self.webhooks.counts();
        counts.pop_first().map(|(_, counts)| counts).unwrap_or_default()
    }

    /// Waits until the counts satisfy a condition, with a deadline.
    async fn until(&self, what: &str, is_so: impl Fn(Counts) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self.counts()) {
            assert!(Instant::now() < deadline, "still not so: {what}: {:?}", self.counts());
            sleep(Duration::from_millis(5)).await;
        }
    }
}

fn hook(url: &str, secret_file: PathBuf) -> WebhookConfig {
    let url = url.parse().expect("a URL");
    WebhookConfig { url, secret_file, limits: Condition::new("limit", ["shop/*"]), timeout: TIMEOUT }
}

#[tokio::test]
async fn an_event_arrives_as_json_and_its_signature_verifies() {
    let mut receiver = Receiver::start(ok).await;
    let sender = Sender::start(&[&receiver.url()]);
    sender.webhooks.offer(event("w-1"));
    sender.webhooks.offer(Event { domain: "bank".to_owned(), ..event("of another limit") });
    sender.webhooks.offer(event("an id\r\nwith: more"));
    let received = receiver.next().await;
    received.check_signature();
    assert_eq!(received.id(), "w-1");
    assert_eq!(received.header("content-type"), "application/json");
    assert!(received.header("user-agent").starts_with("acequia/"));
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a wall").as_secs();
    assert!(now_s.abs_diff(received.at_s()) < PATIENCE.as_secs());
    let told: serde_json::Value = serde_json::from_slice(&received.body).expect("JSON");
    assert_eq!(told, serde_json::to_value(event("w-1")).expect("JSON"));
    let second = receiver.next().await;
    second.check_signature();
    assert_eq!(second.id().len(), 64, "a hash of what cannot stand in a header");
    let told: serde_json::Value = serde_json::from_slice(&second.body).expect("JSON");
    assert_eq!(told["id"], second.id());
    sender.until("both are delivered", |counts| counts.delivered == 2 && counts.queue == 0).await;
    assert_eq!(sender.webhooks.counts().into_keys().collect::<Vec<_>>(), ["127.0.0.1"], "no path is told");
}

#[tokio::test]
async fn events_of_the_node_reach_its_webhooks() {
    let mut receiver = Receiver::start(ok).await;
    let sender = Sender::start(&[&receiver.url()]);
    deliver(Some(&sender.webhooks), events(3));
    for number in 0..3 {
        assert_eq!(receiver.next().await.id(), format!("w-{number}"));
    }
}

#[tokio::test]
async fn a_webhook_that_hangs_does_not_hold_up_others() {
    let mut hanging = Receiver::start(|_| None).await;
    let mut working = Receiver::start(ok).await;
    let sender = Sender::start(&[&hanging.url(), &working.url()]);
    events(100).for_each(|event| sender.webhooks.offer(event));
    for number in 0..100 {
        assert_eq!(working.next().await.id(), format!("w-{number}"));
    }
    assert_eq!(hanging.next().await.id(), "w-0");
    sender.until("one has all", |counts| counts.delivered == 100 && counts.queue == 100).await;
}

#[tokio::test]
async fn a_webhook_that_hangs_is_cut_off_and_tried_again() {
    let mut receiver = Receiver::start(|times| match times {
        0 => None,
        // A head, and then nothing for ever: the head alone counts.
        _ => Some(Response::new(Body::from_stream(
            futures::stream::pending::<Result<Bytes, std::io::Error>>(),
        ))),
    })
    .await;
    let sender = Sender::start(&[]);
    let hooks =
        [WebhookConfig { timeout: Duration::from_millis(200), ..hook(&receiver.url(), sender.secret()) }];
    sender.webhooks.replace(Prepared::read(&hooks).expect("sound hooks"));
    sender.webhooks.offer(event("w-1"));
    for _ in 0..2 {
        assert_eq!(receiver.next().await.id(), "w-1");
    }
    sender.until("it is delivered", |counts| counts.delivered == 1).await;
    // A machine that stalls may take longer than the timeout for the second message, too.
    let counts = sender.counts();
    assert!(counts.retried >= 1, "{counts:?}");
    assert_eq!(counts, Counts { delivered: 1, retried: counts.retried, ..Counts::default() });
}

#[tokio::test]
async fn after_a_fault_an_event_keeps_its_id_and_gets_a_new_time() {
    let mut receiver = Receiver::start(|times| match times {
        0 => Some((StatusCode::INTERNAL_SERVER_ERROR, [("retry-after", "2")]).into_response()),
        _ => ok(times),
    })
    .await;
    let sender = Sender::start(&[&receiver.url()]);
    sender.webhooks.offer(event("w-1"));
    let (first, second) = (receiver.next().await, receiver.next().await);
    for received in [&first, &second] {
        received.check_signature();
        assert_eq!(received.id(), "w-1");
    }
    assert_eq!(first.body, second.body);
    assert!(second.at_s() > first.at_s(), "{} and {}", first.at_s(), second.at_s());
    sender.until("it is delivered", |counts| counts.delivered == 1).await;
    assert_eq!(sender.counts(), Counts { delivered: 1, retried: 1, ..Counts::default() });
}

#[tokio::test]
async fn after_gone_or_a_redirect_an_event_is_not_sent_again() {
    let elsewhere = Receiver::start(ok).await;
    let location = elsewhere.url();
    let mut receiver = Receiver::start(move |times| match times {
        0 => Some(StatusCode::GONE.into_response()),
        1 => Some((StatusCode::TEMPORARY_REDIRECT, [("location", location.clone())]).into_response()),
        _ => ok(times),
    })
    .await;
    let sender = Sender::start(&[&receiver.url()]);
    events(3).for_each(|event| sender.webhooks.offer(event));
    for number in 0..3 {
        assert_eq!(receiver.next().await.id(), format!("w-{number}"));
    }
    sender.until("all are done with", |counts| counts.queue == 0).await;
    assert_eq!(sender.counts(), Counts { delivered: 1, refused: 2, ..Counts::default() });
    assert!(elsewhere.received.is_empty());
}

#[tokio::test]
async fn a_flood_drops_its_oldest_events() {
    let mut receiver = Receiver::start(|_| None).await;
    let sender = Sender::start(&[&receiver.url()]);
    sender.webhooks.offer(event("first"));
    receiver.next().await;
    events(SETTINGS.webhooks.letters_max + 10).for_each(|event| sender.webhooks.offer(event));
    assert_eq!(
        sender.counts(),
        Counts { dropped: 10, queue: SETTINGS.webhooks.letters_max as u64 + 1, ..Counts::default() }
    );
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let mut receiver = Receiver::start(|_| {
        let endless =
            futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 4_096])));
        Some(Response::new(Body::from_stream(endless)))
    })
    .await;
    let sender = Sender::start(&[&receiver.url()]);
    events(3).for_each(|event| sender.webhooks.offer(event));
    for number in 0..3 {
        assert_eq!(receiver.next().await.id(), format!("w-{number}"));
    }
    sender.until("all are delivered", |counts| counts.delivered == 3).await;
}

#[tokio::test]
async fn a_receiver_that_does_not_speak_http_is_tried_again() {
    for begin in [&b"SSH-2.0-OpenSSH_9.6\r\n"[..], b"HTTP/1.1 200 OK\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let talking = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            // A head without an end, until the other side has had enough of it.
            let mut said = stream.write_all(begin).await;
            while said.is_ok() {
                said = stream.write_all(&[b"x: ", &[b'x'; 1_000][..], b"\r\n"].concat()).await;
            }
        });
        let sender = Sender::start(&[&url]);
        sender.webhooks.offer(event("w-1"));
        sender.until("it is to be tried again", |counts| counts.retried > 0).await;
        timeout(PATIENCE, talking).await.expect("the connection is cut").expect("no panic");
    }
}

#[tokio::test]
async fn a_refused_connection_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    drop(listener);
    let sender = Sender::start(&[&url]);
    sender.webhooks.offer(event("w-1"));
    sender.until("it is to be tried again", |counts| counts.retried > 0).await;
    assert_eq!((sender.counts().queue, sender.counts().dropped), (1, 0));
}

#[tokio::test]
async fn a_receiver_without_a_trusted_certificate_gets_no_event() {
    let (serving, received) = Serving::new(ok);
    let (address, certificate) = serve_tls(serving).await;
    let mut receiver = Receiver { address, received };
    let url = format!("https://localhost:{}/hook", address.port());
    let sender = Sender::start(&[&url]);
    sender.webhooks.offer(event("w-1"));
    sender.until("it is to be tried again", |counts| counts.retried > 0).await;
    assert!(receiver.received.is_empty());

    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a certificate");
    sender.replace(&[&url], roots);
    let received = receiver.next().await;
    received.check_signature();
    assert_eq!(received.id(), "w-1", "what waited goes by the new settings");
    sender.until("it is delivered", |counts| counts.delivered == 1).await;
}

/// A receiver on TLS whose certificate is its own root.
async fn serve_tls(serving: Serving) -> (SocketAddr, rustls::pki_types::CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("a TLS config");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = serving.router();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust the certificate leaves.
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = hyper_util::service::TowerToHyperService::new(router.clone());
            let stream = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(stream, service));
        }
    });
    (address, made.cert.der().clone())
}

#[tokio::test]
async fn a_stopping_node_delivers_its_waiting_events() {
    let mut receiver = Receiver::start(ok).await;
    let sender = Sender::start(&[&receiver.url()]);
    events(20).for_each(|event| sender.webhooks.offer(event));
    sender.webhooks.drain();
    sender.webhooks.offer(event("late"));
    timeout(PATIENCE, sender.webhooks.finish(Instant::now() + PATIENCE)).await.expect("an end in time");
    for id in (0..20).map(|number| format!("w-{number}")).chain(["late".to_owned()]) {
        assert_eq!(receiver.next().await.id(), id);
    }
}

#[tokio::test]
async fn a_stopping_node_does_not_wait_for_a_webhook_that_hangs() {
    let mut receiver = Receiver::start(|_| None).await;
    let sender = Sender::start(&[&receiver.url()]);
    sender.webhooks.offer(event("w-1"));
    receiver.next().await;
    sender.webhooks.drain();
    let begun = Instant::now();
    sender.webhooks.finish(begun + Duration::from_millis(50)).await;
    assert!(begun.elapsed() < TIMEOUT, "less than a try may take");
}

#[tokio::test]
async fn a_webhook_removed_from_the_config_gets_no_more_events() {
    let mut hanging = Receiver::start(|_| None).await;
    let mut working = Receiver::start(ok).await;
    let sender = Sender::start(&[&hanging.url()]);
    events(3).for_each(|event| sender.webhooks.offer(event));
    hanging.next().await;
    sender.replace(&[&working.url()], RootCertStore::empty());
    sender.webhooks.offer(event("new"));
    assert_eq!(working.next().await.id(), "new");
    sender.until("it is delivered", |counts| counts.delivered == 1).await;
    assert_eq!(sender.counts(), Counts { delivered: 1, ..Counts::default() }, "of the new hook alone");
    sender.replace(&[], RootCertStore::empty());
    assert!(sender.webhooks.counts().is_empty());
}

#[test]
fn a_webhook_whose_secret_is_missing_or_short_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("webhook.key");
    let hooks = [hook("http://127.0.0.1:9/", path.clone())];
    let fault = Prepared::read(&hooks).expect_err("no file").to_string();
    assert!(fault.contains("cannot read") && fault.contains("webhook.key"), "{fault}");
    std::fs::write(&path, "short").expect("a file");
    let fault = Prepared::read(&hooks).expect_err("a short key").to_string();
    assert!(fault.contains("at least 24"), "{fault}");
}

#[test]
fn the_log_names_a_cell_by_its_id_alone() {
    let said = logged("info", events(2).chain([Event { percent: 100, ..event("w-full") }]));
    assert_eq!(said.lines().count(), 3, "{said}");
    for word in ["shop/monthly-credits", "percent=80", "used=80000", "budget=100000", "w-1"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert_eq!(said.lines().filter(|line| line.contains("WARN")).count(), 1, "{said}");
    assert!(!said.contains("big-co") && !said.contains("tenant"), "{said}");
    assert!(logged("debug", events(1)).contains("big-co"));
}

#[test]
fn further_events_of_a_flood_are_one_line_in_the_log() {
    let said = logged("info", events(SETTINGS.webhooks.logged_max + 7));
    assert_eq!(said.lines().count(), SETTINGS.webhooks.logged_max + 1);
    assert!(said.lines().last().is_some_and(|line| line.contains("more=7")), "{said}");
}

/// The lines that [`deliver`] writes to the log.
fn logged(filter: &str, events: impl Iterator<Item = Event>) -> String {
    let lines: Arc<Mutex<Vec<u8>>> = Arc::default();
    let writer = Lines(Arc::clone(&lines));
    let filter: Targets = format!("off,acequia_server::webhooks={filter}").parse().expect("a filter");
    let lines_of = fmt::layer().with_ansi(false).with_writer(move || writer.clone()).with_filter(filter);
    let subscriber = registry().with(lines_of);
    tracing::subscriber::with_default(subscriber, || deliver(None, events));
    let lines = lines.lock().expect("no panic").clone();
    String::from_utf8(lines).expect("text")
}

#[derive(Clone)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
