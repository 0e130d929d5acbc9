//! The configs of `deploy/recipes`, run as they are, but for ports, the folders of journals, and the time zone.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use acequia_tests::{Node, PATIENCE, cluster::Cluster, eventually, exit_and_text};
use serde_json::{Value, json};

use crate::{
    client::{Http, metric},
    pages::{ROOT, page},
    recipes::Recipe,
    reports::Gateway,
    store::servers::free_port,
    windows,
};

const FOLDER: &str = "deploy/recipes";
/// The page that lists the recipes.
const PAGE: &str = "deploy/limits.md";

fn text(name: &str) -> String {
    fs::read_to_string(format!("{ROOT}/{FOLDER}/{name}")).expect("a recipe")
}

/// A recipe's config for a node. No day or month ends while the test runs.
fn config(name: &str) -> String {
    let zone = format!("time_zone: {}", windows::zone());
    let changes = [
        ("127.0.0.1:8080", "127.0.0.1:0"),
        ("127.0.0.1:8081", "127.0.0.1:0"),
        ("127.0.0.1:8082", "127.0.0.1:0"),
        ("./data", "DATA"),
        ("time_zone: UTC", &zone),
    ];
    changes.iter().fold(text(name), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{name}: {from}");
        text.replace(from, to)
    })
}

/// What is left, less what is owed.
fn stand(node: &Node, domain: &str, entries: &Value) -> i64 {
    let body = json!({ "domain": domain, "descriptors": [entries] }).to_string();
    let answer = Http::connect(node).ask("POST", "/v1/peek", &[], &body).expect("an answer").json();
    let limit = &answer["limits"][0];
    limit["remaining"].as_i64().expect("units") - limit["owed"].as_i64().unwrap_or(0)
}

#[test]
fn every_recipe_is_sound_and_on_the_page_that_lists_them() {
    let links = page(PAGE).links;
    let regions = fs::read_to_string(format!("{ROOT}/deploy/eu.yaml")).expect("a config");
    let (regions, _) = regions.split_once("\nlimits:").expect("limits");
    for entry in fs::read_dir(format!("{ROOT}/{FOLDER}")).expect("a folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        assert!(links.contains(&format!("recipes/{name}")), "{PAGE} does not name {name}");
        let yaml = match name.as_str() {
            // The real Envoy reads it.
            "tokens-envoy.yaml" => continue,
            "in-flight.yaml" => format!("{regions}\n{}", text(&name)),
            _ => text(&name),
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(&name);
        fs::write(&path, yaml).expect("a file");
        let (code, said) = exit_and_text(&["validate", path.to_str().expect("a path")]);
        assert_eq!(code, Some(0), "{name}: {said}");
    }
}

/// A model that answers whole or in events, as a request says, and says its usage, if a request says so.
fn start_model() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    // The threads end with the process.
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || answer_all(&stream));
        }
    });
    address
}

/// Answers the requests of one connection.
fn answer_all(stream: &TcpStream) -> Option<()> {
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            length = line.strip_prefix("content-length: ").map_or(Ok(length), str::parse).ok()?;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let usage = asked["tokens"].as_u64().map(|tokens| json!({ "usage": { "total_tokens": tokens } }));
        let answer = if asked["stream"] == true {
            let word = json!({ "choices": [{ "delta": { "content": "well" } }] });
            let events =
                [word.clone(), word].into_iter().chain(usage).map(|event| format!("data: {event}\n\n"));
            let chunks = events.chain(["data: [DONE]\n\n".to_owned()]);
            let chunks: String = chunks.map(|event| format!("{:x}\r\n{event}\r\n", event.len())).collect();
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
            )
        } else {
            let whole = usage.unwrap_or_else(|| json!({})).to_string();
            let length = whole.len();
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{whole}"
            )
        };
        writer.write_all(answer.as_bytes()).ok()?;
    }
}

/// An AI gateway: Envoy between clients, a node and a model.
struct AiGateway {
    envoy: Gateway,
    node: Node,
}

impl AiGateway {
    fn start() -> Self {
        let (node, model, port) = (Node::start_whole(&config("tokens.yaml")), start_model(), free_port());
        let ports = [("10000", port), ("8081", node.grpc().port()), ("9000", model.port())];
        let envoy = ports.iter().fold(text("tokens-envoy.yaml"), |text, (from, to)| {
            text.replace(&format!("port_value: {from}"), &format!("port_value: {to}"))
        });
        // A busy machine may be late, and must not let requests pass undecided.
        let envoy = envoy.replace("timeout: 0.2s", "timeout: 20s").replace("_deny: false", "_deny: true");
        Self { envoy: Gateway::run(port, &envoy), node }
    }

    /// Sends a request to the model, and reads all of the answer. Returns whether the request passed.
    fn asks(&self, tenant: &str, body: &Value) -> bool {
        let (body, mut answer) = (body.to_string(), String::new());
        let mut stream = TcpStream::connect(self.envoy.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option is set");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: ai\r\nx-tenant: {tenant}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).expect("a request");
        stream.read_to_string(&mut answer).expect("an answer");
        let passes = answer.starts_with("HTTP/1.1 200 ");
        assert!(passes || answer.starts_with("HTTP/1.1 429 "), "{answer}");
        passes
    }

    fn stand(&self, tenant: &str, model: &str) -> i64 {
        stand(&self.node, "ai", &json!({ "tenant": tenant, "model": model }))
    }
}

#[test]
fn an_ai_gateway_counts_the_tokens_of_each_tenant_and_model_and_denies_whoever_owes() {
    let mut gateway = AiGateway::start();
    let (small, large) = (json!({ "model": "small" }), json!({ "model": "large-2" }));
    let with = |body: &Value, more: Value| {
        let mut body = body.clone();
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    // In events, without usage, and whole.
    assert!(gateway.asks("t1", &with(&small, json!({ "stream": true, "tokens": 600 }))));
    eventually("a stream is reported", || gateway.stand("t1", "small") == 99_400);
    assert!(gateway.asks("t1", &with(&small, json!({ "stream": true }))));
    assert!(gateway.asks("t1", &with(&small, json!({ "tokens": 1_000 }))));
    eventually("an answer is reported", || gateway.stand("t1", "small") == 98_400);
    // The last tokens of a large model, and more.
    assert!(gateway.asks("t1", &with(&large, json!({ "stream": true, "tokens": 19_999 }))));
    eventually("a stream is reported", || gateway.stand("t1", "large-2") == 1);
    assert!(gateway.asks("t1", &with(&large, json!({ "stream": true, "tokens": 5_001 }))));
    eventually("a stream is reported", || gateway.stand("t1", "large-2") == -5_000);
    for _ in 0..20 {
        assert!(!gateway.asks("t1", &large), "the tenant owes");
    }
    assert!(gateway.asks("t1", &small) && gateway.asks("t2", &large), "others owe nothing");
    // A request that names no model is counted, too.
    assert!(gateway.asks("t1", &json!({ "stream": true, "tokens": 70 })));
    eventually("a stream is reported", || gateway.stand("t1", "unknown") == 99_930);
    gateway.node.restart();
    assert_eq!((gateway.stand("t1", "large-2"), gateway.stand("t1", "small")), (-5_000, 98_400));
}

#[test]
fn a_month_of_dollars_is_reported_to_the_last_cent_and_then_nothing_passes() {
    let mut node = Node::start_whole(&config("dollars.yaml"));
    // The commands that the file shows.
    let yaml = text("dollars.yaml");
    let shown: String =
        yaml.lines().filter_map(|line| line.strip_prefix("#   ")).collect::<Vec<_>>().join("\n");
    let recipe = Recipe::read(&format!("dollars\n```sh\n{shown}\n```\n"));
    assert_eq!(recipe.lines_shown(), 3);
    recipe.run_lines(&node).unwrap_or_else(|fault| panic!("{FOLDER}/dollars.yaml: {fault}"));

    let customer = |name: &str| json!({ "customer": name });
    let call = |node: &Node, path: &str, name: &str, cost: u64| {
        let body = json!({ "domain": "billing", "descriptors": [customer(name)], "cost": cost }).to_string();
        Http::connect(node).ask("POST", path, &[], &body).expect("an answer").json()
    };
    let warned = |node: &Node, percent: &str| {
        metric(node, "acequia_warnings_total", &[("limit", "billing/dollars"), ("percent", percent)])
    };
    call(&node, "/v1/report", "c1", 399_987_500);
    assert_eq!(stand(&node, "billing", &customer("c1")), 100_000_000, "400 dollars are spent");
    eventually("operators are warned", || warned(&node, "80") > 0.5 && warned(&node, "100") < 0.5);
    assert_eq!(call(&node, "/v1/peek", "c1", 1)["allowed"], true);
    // A cent more than what is left.
    call(&node, "/v1/report", "c1", 100_010_000);
    assert_eq!(stand(&node, "billing", &customer("c1")), -10_000);
    eventually("operators are warned", || warned(&node, "100") > 0.5);
    let denied = call(&node, "/v1/peek", "c1", 1);
    assert_eq!((&denied["allowed"], &denied["reason"]), (&json!(false), &json!("over-limit")), "{denied}");
    assert!(denied["retry_after_ms"].as_u64().is_some_and(|ms| ms > 60_000), "next month: {denied}");
    assert_eq!(call(&node, "/v1/peek", "c2", 1)["allowed"], true, "another customer owes nothing");
    node.restart();
    assert_eq!(call(&node, "/v1/peek", "c1", 1)["allowed"], false);
    assert_eq!(stand(&node, "billing", &customer("c1")), -10_000);
}

/// Requests in flight, as their callers count them: from the answer until the release is asked for.
#[derive(Debug, Default)]
struct InFlight(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: usize,
    most: usize,
    denied: usize,
}

impl InFlight {
    fn with<T>(&self, act: impl FnOnce(&mut Counts) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn now(&self) -> usize {
        self.with(|counts| counts.now)
    }
}

/// A caller at one region's node.
struct Caller<'a> {
    http: Http,
    counts: &'a InFlight,
    held: Vec<String>,
}

impl<'a> Caller<'a> {
    fn at(node: &Node, counts: &'a InFlight) -> Self {
        Self { http: Http::connect(node), counts, held: Vec::new() }
    }

    /// Asks for one more slot. Returns whether there was one.
    fn takes(&mut self) -> bool {
        let body = json!({ "domain": "shop", "descriptors": [{ "customer": "c1" }] });
        let answer = self.http.check(&body.to_string()).json();
        let id = answer["charge_id"].as_str();
        assert_eq!(answer["allowed"].as_bool(), Some(id.is_some()), "{answer}");
        self.held.extend(id.map(str::to_owned));
        self.counts.with(|counts| {
            counts.now += usize::from(id.is_some());
            counts.most = counts.most.max(counts.now);
            counts.denied += usize::from(id.is_none());
            assert!(counts.now <= 100, "{counts:?}");
        });
        id.is_some()
    }

    fn releases(&mut self) {
        let Some(id) = self.held.pop() else { return };
        self.counts.with(|counts| counts.now -= 1);
        let body = json!({ "charge_id": id }).to_string();
        let answer = self.http.ask("POST", "/v1/refund", &[], &body).expect("an answer").json();
        assert_eq!(answer["settled"], "done", "{answer}");
    }
}

/// Callers of a region, and slots that each wants at once: more than there are.
const CALLERS: usize = 6;
const WANTED: usize = 10;

#[test]
fn a_customer_has_a_hundred_requests_in_flight_over_three_regions_and_no_more() {
    let cluster = Cluster::start(&text("in-flight.yaml"));
    let (counts, holds) = (InFlight::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        for node in &cluster.nodes {
            for number in 0..CALLERS {
                let (counts, holds) = (&counts, &holds);
                scope.spawn(move || {
                    let mut caller = Caller::at(node, counts);
                    for turn in 0.. {
                        let is_last = holds.load(Ordering::Relaxed);
                        // Requests go on for as long as others take; every third turn one is over.
                        if !is_last && ((turn + number) % 3 == 0 || caller.held.len() == WANTED) {
                            caller.releases();
                        } else if caller.held.len() < WANTED {
                            caller.takes();
                        }
                        if is_last && counts.now() == 100 {
                            break;
                        }
                    }
                    assert!(!caller.takes(), "all slots are taken");
                });
            }
        }
        // Free slots move to whoever wants them, so all are in use in the end.
        eventually("more was wanted than there is", || counts.with(|counts| counts.denied) >= 1_000);
        holds.store(true, Ordering::Relaxed);
        eventually("all hundred are in flight", || counts.now() == 100);
    });
}
