//! One region of several nodes that share its limits through a real Redis Cluster. What callers are allowed
//! is counted from outside, while processes are killed.

#[allow(dead_code, unreachable_pub, reason = "shared with the store's own tests")]
#[path = "../../crates/store/tests/redis/servers.rs"]
pub(crate) mod servers;

mod breaking;
mod explained;
pub(crate) mod forwards;
mod growing;
mod loss;
mod resharding;

use std::{
    ffi::OsString,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, UdpSocket},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use acequia_tests::{Node, PATIENCE, acequia, binary, eventually};
use serde_json::json;

use self::servers::{Cluster, Server};
use crate::{
    client::{Http, body},
    operators::order,
    windows,
};

/// Only one test with a cluster runs at a time, because two cores carry no more.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node's config.
fn config(node: &str, cluster: &Cluster, extra: &str) -> String {
    let limits = format!("{extra}{}", limits());
    config_of(node, &["eu-1", "eu-2"], &format!("cluster: {}", listed(&cluster.nodes)), &limits)
}

/// The config of one node among the nodes of its region, with the store's settings and the rest.
pub(crate) fn config_of(node: &str, nodes: &[&str], redis: &str, rest: &str) -> String {
    format!(
        "region: eu\nnode: {node}\nlisten: {{ grpc: \"127.0.0.1:0\", http: \"127.0.0.1:0\", admin: \"127.0.0.1:0\" }}\ndata: DATA\n\
         store:\n  redis: {{ {redis} }}\n  nodes: [{}]\n{rest}",
        nodes.join(", ")
    )
}

/// The addresses of servers, as configs list them.
pub(crate) fn listed(servers: &[Server]) -> String {
    let addresses: Vec<String> = servers.iter().map(|server| format!("\"{}\"", server.address())).collect();
    format!("[{}]", addresses.join(", "))
}

/// A window and a bucket of 200 units. The bucket earns one a minute.
fn limits() -> String {
    format!(
        "limits:\n\
         - {{ name: window, domain: shop, by: [w], fixed_window: {{ limit: 200, window: {} }} }}\n\
         - {{ name: bucket, domain: shop, by: [b], token_bucket: {{ rate: 60/h, burst: 200 }} }}\n",
        windows::long()
    )
}

/// Two nodes. Neither listens before the other goes by the same config.
fn pair(cluster: &Cluster) -> [Node; 2] {
    start_all(["eu-1", "eu-2"].map(|node| config(node, cluster, "")))
}

/// Starts all nodes of a new region.
pub(crate) fn start_all<const COUNT: usize>(configs: [String; COUNT]) -> [Node; COUNT] {
    let starts = configs.map(|config| thread::spawn(move || Node::start_whole(&config)));
    starts.map(|start| start.join().expect("a node"))
}

/// Sends `times` requests for a key of a limit to the nodes in turn. Returns how many were allowed.
fn ask(nodes: &[Node], limit: &str, key: &str, times: usize) -> u64 {
    let mut connections: Vec<Http> = nodes.iter().map(Http::connect).collect();
    let body = body(&[(limit, key)]);
    let allowed = |number: usize| {
        let node = number % connections.len();
        connections[node].check(&body).json()["allowed"] == true
    };
    (0..times).map(allowed).filter(|allowed| *allowed).count() as u64
}

/// Asks with another key each time, so each bucket is full, until at least `least` of `of` requests pass.
fn until_it_gives(nodes: &[Node], limit: &str, of: usize, least: u64) {
    let mut tried = 0;
    eventually("a full bucket gives what it has", || {
        // The earlier bucket lacks the units that were just spent.
        tried += 1;
        ask(nodes, limit, &format!("full-{tried}"), of) >= least
    });
}

/// Asks until a limit of 200 is spent, or nothing has passed for a while. Returns how many were allowed.
fn use_up(nodes: &[Node], limit: &str, key: &str) -> u64 {
    let mut allowed = 0;
    let mut came = Instant::now();
    while came.elapsed() < Duration::from_secs(3) && allowed < 200 {
        let more = ask(nodes, limit, key, 20);
        allowed += more;
        if more > 0 {
            came = Instant::now();
        }
    }
    allowed + ask(nodes, limit, key, 100)
}

/// Waits until every pool grants to every node.
pub(crate) fn until_pools_grant(nodes: &[Node]) {
    eventually("all pools grant", || {
        nodes.iter().all(|node| {
            let metrics = Http::connect(node).get("/metrics").body;
            metrics.contains("acequia_pool_groups{which=\"granting\"} 1024")
        })
    });
}

/// Waits until every node has its share.
fn until_ready(nodes: &[Node]) {
    eventually("every node is ready", || {
        nodes.iter().all(|node| Http::connect(node).get("/readyz").status == 200)
    });
}

/// Free ports for the mesh.
fn mesh_ports<const COUNT: usize>() -> [u16; COUNT] {
    let sockets = [(); COUNT].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a free port"));
    sockets.map(|socket| socket.local_addr().expect("an address").port())
}

#[test]
fn the_nodes_of_a_region_share_its_limits() {
    let _alone = alone();
    let cluster = Cluster::start();
    let mut nodes = pair(&cluster);
    until_pools_grant(&nodes);
    // A new region has all units from the beginning, whichever node is asked.
    for (limit, key) in [("w", "one"), ("b", "one")] {
        let allowed = use_up(&nodes, limit, key);
        assert!((190..=200).contains(&allowed), "{limit}: {allowed} of 200");
    }
    let metrics = Http::connect(&nodes[0]).get("/metrics").body;
    for name in
        ["acequia_region_nodes 2", "acequia_pool_calls_total{outcome=\"made\"}", "acequia_store_open{shard="]
    {
        assert!(metrics.contains(name), "no {name} in\n{metrics}");
    }
    // Nobody receives again what a killed node held or spent; and the node needs no help to restart.
    let before: Vec<u64> = ["w", "b"].map(|limit| ask(&nodes, limit, "two", 60)).to_vec();
    nodes[0].kill();
    nodes[0].start_again();
    until_pools_grant(&nodes);
    for (limit, before) in ["w", "b"].into_iter().zip(before) {
        let allowed = before + use_up(&nodes, limit, "two");
        // The killed node may have held all the rest.
        assert!(allowed <= 201, "{limit}: {allowed} of 200, and a minute's rate");
        assert_eq!(ask(&nodes, limit, "one", 20).saturating_sub(1), 0, "{limit}: spent, and given again");
        let other = use_up(&nodes, limit, "three");
        assert!((100..=200).contains(&other), "{limit}: {other} of 200 of a key that nobody had asked for");
    }
}

#[test]
fn a_region_outlives_its_store() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let nodes = pair(&cluster);
    until_pools_grant(&nodes);
    let mut before = 0;
    eventually("more passes than guard shares", || {
        before += ask(&nodes, "w", "one", 20);
        before > 20
    });
    for server in &mut cluster.nodes {
        server.kill();
    }
    // The nodes answer each request by what they hold: for a new key, at least their guard shares.
    let after = ask(&nodes, "w", "one", 200);
    assert!(before + after <= 200, "{before} and {after} of 200");
    let guarded = ask(&nodes, "w", "two", 100);
    assert!((10..=20).contains(&guarded), "{guarded} of 20 that the nodes keep for themselves");
    for node in &nodes {
        assert_eq!(Http::connect(node).get("/readyz").status, 200);
    }
    // The store returns empty, and no units are created.
    for server in &mut cluster.nodes {
        server.restart();
    }
    until_pools_grant(&nodes);
    let at_last = use_up(&nodes, "w", "one");
    assert!(before + after + at_last <= 200, "{before}, {after} and {at_last} of 200");
}

#[test]
fn windows_outlive_a_node_s_restart_and_the_store_s_loss_after_it() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let mut nodes = pair(&cluster);
    until_pools_grant(&nodes);
    let before = ask(&nodes, "w", "one", 60);
    nodes[0].kill();
    nodes[0].start_again();
    until_pools_grant(&nodes);
    let between = ask(&nodes, "w", "one", 20);
    for server in &mut cluster.nodes {
        server.kill();
    }
    for server in &mut cluster.nodes {
        server.restart();
    }
    until_pools_grant(&nodes);
    // Each node reports its withdrawals. The window goes on, and units that nobody took are there.
    let after = use_up(&nodes, "w", "one");
    assert!(before + between + after <= 200, "{before}, {between} and {after} of 200");
    let other = use_up(&nodes, "w", "two");
    assert!(
        (150..=200).contains(&other),
        "{other} of 200, of which the node that began again had 10 for itself"
    );
}

#[test]
fn a_region_goes_on_when_an_operator_excludes_a_node_that_is_gone() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let mut nodes = pair(&cluster);
    until_pools_grant(&nodes);
    let before = ask(&nodes, "w", "one", 60);
    let [alive, gone] = &mut nodes;
    gone.kill();
    for server in &mut cluster.nodes {
        server.kill();
    }
    for server in &mut cluster.nodes {
        server.restart();
    }
    // Nobody can tell what the other node held.
    eventually("the loss is known", || order(alive, &["store"]).0 == Some(1));
    let (code, said) = order(alive, &["store", "exclude", "eu-1", "--yes"]);
    assert!(code == Some(2) && said.contains("this is that node"), "{said}");
    let (code, said) = order(alive, &["store", "exclude", "eu-2"]);
    assert!(code == Some(2) && said.contains("--yes"), "{said}");
    let (code, said) = order(alive, &["store", "exclude", "eu-2", "--yes", "--reason", "gone for good"]);
    assert!(code == Some(0) && said.contains("eu-2 is excluded for"), "{said}");
    eventually("all pools grant", || order(alive, &["store"]).0 == Some(0));
    let metrics = Http::connect(alive).get("/metrics").body;
    assert!(metrics.contains("acequia_region_nodes_left_out 1"), "{metrics}");
    // What the other node may have withdrawn from the window counts as spent.
    let after = use_up(std::slice::from_ref(alive), "w", "one");
    assert!(before + after <= 200, "{before} and {after} of 200");
    let (code, said) = order(alive, &["store", "wait-for", "eu-2"]);
    assert!(code == Some(0) && !said.contains("excluded"), "{said}");

    // The other node is back. Nobody is excluded when the store forgets again.
    gone.start_again();
    until_pools_grant(&nodes);
}

/// The first of six free ports in a row.
fn six_ports() -> u16 {
    let ports = std::iter::repeat_with(servers::free_port);
    let first = ports.take(1_000).find(|first| (*first..first + 6).all(servers::is_free));
    first.expect("six ports in a row")
}

/// Writes the shipped region's configs with other ports.
fn shipped_configs(folder: &Path) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mesh = [servers::free_port(), servers::free_port()];
    for node in ["eu-1", "eu-2"] {
        let mut yaml =
            std::fs::read_to_string(format!("{root}/deploy/region/{node}.yaml")).expect("a config");
        for port in [8080, 8081, 8082, 8180, 8181, 8182] {
            yaml = yaml.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:0");
        }
        for (number, port) in mesh.iter().enumerate() {
            yaml = yaml.replace(&format!("127.0.0.1:{}", 7201 + number), &format!("127.0.0.1:{port}"));
        }
        std::fs::write(folder.join(format!("{node}.yaml")), yaml).expect("a config");
    }
}

#[test]
fn the_shipped_region_runs_in_another_folder_and_stops() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    shipped_configs(folder.path());
    let first = six_ports();
    let data = folder.path().join("a region, & more");
    let settings: [(&str, OsString); 3] = [
        ("REDIS_PORT", first.to_string().into()),
        ("DATA", data.clone().into()),
        ("CONFIGS", folder.path().into()),
    ];
    let mut script = Script::start("deploy/region/run", settings);
    let mut listening = script.listening().map(|(http, _)| http);
    let nodes = [listening.next().expect("a node"), listening.next().expect("another")];
    let body = body(&[("api_key", "k1")]);
    for node in nodes {
        // A node is ready when it has heard the other.
        eventually("the shipped region answers", || Http::to(node).check(&body).json()["allowed"] == true);
    }
    assert!(script.stop());
    let is_open = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    assert!(!(first..first + 6).any(is_open), "a server runs on");
    for written in ["certs/ca.pem", "eu-1", "eu-2", &format!("redis-{first}/nodes.conf")] {
        assert!(data.join(written).exists(), "{written} is elsewhere");
    }
}

#[test]
fn a_shipped_region_whose_nodes_cannot_start_says_so_and_ends() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    shipped_configs(folder.path());
    let first = six_ports();
    // Certificates that no node can read. The script makes none, because these exist.
    let data = folder.path().join("data");
    std::fs::create_dir_all(data.join("certs")).expect("a folder");
    std::fs::write(data.join("certs/ca.pem"), "none").expect("a file");
    let settings: [(&str, OsString); 3] =
        [("REDIS_PORT", first.to_string().into()), ("DATA", data.into()), ("CONFIGS", folder.path().into())];
    let (code, said) = Script::run("deploy/region/run", settings);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("ca.pem") && said.contains("a node has given up, as it says above"), "{said}");
    let is_open = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    assert!(!(first..first + 6).any(is_open), "a server runs on");
}

/// A process that is killed at the end of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // A process that has ended needs no signal.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A script that runs until it is told to stop.
struct Script(Child);

impl Script {
    fn start(path: &str, settings: [(&str, OsString); 3]) -> Self {
        let mut command = Command::new(Self::path(path));
        command.env("ACEQUIA", binary()).envs(settings);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("bash"))
    }

    /// Runs a script until it ends by itself. Returns its exit code, and its own and its nodes' output.
    fn run(path: &str, settings: [(&str, OsString); 3]) -> (Option<i32>, String) {
        let mut command = Command::new("timeout");
        command.args(["120".to_owned(), Self::path(path)]).env("ACEQUIA", binary()).envs(settings);
        let ended = command.stdin(Stdio::null()).output().expect("bash");
        let output = [ended.stdout, ended.stderr].concat();
        (ended.status.code(), String::from_utf8_lossy(&output).into_owned())
    }

    fn path(path: &str) -> String {
        format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))
    }

    /// The addresses of its nodes: HTTP, and admin.
    fn listening(&mut self) -> impl Iterator<Item = (SocketAddr, SocketAddr)> + use<> {
        let lines = BufReader::new(self.0.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
        lines.filter_map(|line| {
            let after = |name| {
                let (_, rest) = line.split_once(name)?;
                rest.split_whitespace().next()?.parse().ok()
            };
            Some((after("http=")?, after("admin=")?))
        })
    }

    /// Stops the script with all that it has started.
    fn stop(&mut self) -> bool {
        let stopped = Command::new("sh").args(["-c", &format!("kill -TERM {}", self.0.id())]).status();
        stopped.is_ok_and(|stopped| stopped.success()) && self.0.wait().is_ok_and(|end| end.success())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.stop();
        }
    }
}

/// Asks for `cost` units of a key under an id.
fn ask_named(node: &Node, id: &str, key: &str, cost: u64) -> crate::client::Reply {
    let body = json!({ "domain": "shop", "descriptors": [{ "w": key }], "cost": cost, "id": id });
    Http::connect(node).check(&body.to_string())
}

fn refund(node: &Node, charged: &serde_json::Value) -> (u16, serde_json::Value) {
    let body = json!({ "charge_id": charged["charge_id"] }).to_string();
    let reply = Http::connect(node).ask("POST", "/v1/refund", &[], &body).expect("an answer");
    let said = if reply.status == 200 { reply.json()["settled"].clone() } else { json!(null) };
    (reply.status, said)
}

/// Charges an id at one node until another node repeats its answer in time, since the machine may be busy.
/// Returns the id, which is also the key, and the answer.
fn charged_once(one: &Node, two: &Node, prefix: &str, cost: u64) -> (String, serde_json::Value) {
    // Each test needs an id that was not used before.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut found = None;
    eventually("two nodes give one answer", || {
        let id = format!("{prefix}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let charged = ask_named(one, &id, &id, cost).json();
        assert_eq!((&charged["allowed"], &charged["is_repeat"]), (&json!(true), &json!(null)), "{charged}");
        let again = ask_named(two, &id, &id, cost).json();
        if again["is_repeat"] != true {
            return false;
        }
        for same in ["allowed", "charge_id", "remaining", "limits"] {
            assert_eq!(again[same], charged[same], "{same}");
        }
        assert_eq!(ask_named(one, &id, &id, cost).json()["is_repeat"], true);
        found = Some((id, charged));
        true
    });
    found.expect("it was found")
}

/// Whether a node refuses an id that was given back. The node never repeats the answer; if the store is slow,
/// it may charge again.
fn is_refused(node: &Node, id: &str, cost: u64) -> bool {
    let reply = ask_named(node, id, id, cost);
    assert!(reply.status == 400 || reply.json()["is_repeat"] != true, "{id}: {}", reply.body);
    reply.status == 400
}

#[test]
fn an_id_is_charged_once_whichever_node_is_asked() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let nodes = pair(&cluster);
    until_pools_grant(&nodes);
    let [one, two] = &nodes;

    eventually("another question under the same id is refused", || {
        let (id, _) = charged_once(one, two, "other", 2);
        ask_named(two, &id, &id, 3).status == 400
    });
    eventually("nobody passes by an answer whose charge was given back", || {
        let (id, charged) = charged_once(one, two, "back", 2);
        assert_eq!(refund(one, &charged), (200, json!("done")));
        assert_eq!(ask_named(one, &id, &id, 2).status, 400);
        is_refused(two, &id, 2)
    });
    eventually("what one node charged another gives back", || {
        let (id, charged) = charged_once(one, two, "mate", 10);
        assert_eq!(refund(two, &charged), (200, json!("forwarded")));
        eventually("who charged it has heard so", || refund(one, &charged) == (200, json!("before")));
        is_refused(two, &id, 10)
    });

    // Two nodes are asked at once. One charges, and both give its answer.
    let (mut number, mut together) = (0, 0);
    eventually("one of two that are asked at once charges", || {
        number += 1;
        let id = format!("both-{number}");
        let answers = thread::scope(|scope| {
            let asked = [one, two].map(|node| scope.spawn(|| ask_named(node, &id, &id, 1).json()));
            asked.map(|asked| asked.join().expect("an answer"))
        });
        assert!(answers.iter().all(|answer| answer["allowed"] == true), "{answers:?}");
        let repeats = answers.iter().filter(|answer| answer["is_repeat"] == true).count();
        together += usize::from(repeats == 1 && answers[0]["charge_id"] == answers[1]["charge_id"]);
        together == 20
    });

    // Without a store a node decides alone and at once. It refunds nothing whose answer others may still
    // repeat.
    let (id, remembered) = charged_once(one, two, "kept", 1);
    for server in &mut cluster.nodes {
        server.kill();
    }
    assert_eq!((refund(one, &remembered).0, refund(two, &remembered).0), (503, 503));
    let mut number = 0;
    eventually("no store is asked that is gone, and what is known to one node alone is given back", || {
        number += 1;
        let id = format!("alone-{number}");
        let alone = ask_named(one, &id, &id, 1).json();
        assert_eq!((&alone["allowed"], &alone["is_repeat"]), (&json!(true), &json!(null)), "{alone}");
        assert_eq!(ask_named(one, &id, &id, 1).json()["is_repeat"], true);
        refund(one, &alone) == (200, json!("done"))
    });
    // A store that returns empty has forgotten the remembered answer. The charge can be refunded once nobody
    // repeats that answer any more.
    for server in &mut cluster.nodes {
        server.restart();
    }
    until_pools_grant(&nodes);
    eventually("it can be given back", || refund(one, &remembered) == (200, json!("done")));
    is_refused(two, &id, 1);
}

/// The shipped regions: three of two nodes and six servers each, with one catalogue, and a store in each
/// region.
struct ShippedRegions {
    script: Script,
    folder: tempfile::TempDir,
    /// How far the ports are from the shipped ones.
    shift: u16,
    /// The addresses of the nodes: HTTP, and admin.
    nodes: Vec<(SocketAddr, SocketAddr)>,
}

impl ShippedRegions {
    /// Starts the regions, and waits until every node is ready.
    fn start() -> Self {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let folder = tempfile::tempdir().expect("a folder");
        let is_free = |shift: &u16| {
            let nodes = (8_100..8_320).chain(7_211..7_233);
            Self::server_ports().chain(nodes).all(|port| servers::is_free(port + shift))
        };
        let shift = (1..100).map(|times| 1_000 + 327 * times).find(is_free).expect("free ports");
        let shipped = std::fs::read_to_string(format!("{root}/deploy/regions/node.yaml")).expect("a config");
        let template = folder.path().join("node.yaml");
        let yaml = shipped.replace("window: 1h", &format!("window: {}", windows::long()));
        assert_ne!(yaml, shipped);
        std::fs::write(&template, yaml).expect("a config");
        let settings: [(&str, OsString); 3] = [
            ("TEMPLATE", template.into()),
            ("SHIFT", shift.to_string().into()),
            ("DATA", folder.path().into()),
        ];
        let mut script = Script::start("deploy/regions/run", settings);
        let nodes: Vec<(SocketAddr, SocketAddr)> = script.listening().take(6).collect();
        let regions = Self { script, folder, shift, nodes };
        let mut connections = regions.connections();
        eventually("every node is ready", || {
            connections.iter_mut().all(|node| node.get("/readyz").status == 200)
        });
        regions
    }

    /// The shipped ports of Redis servers.
    fn server_ports() -> impl Iterator<Item = u16> {
        (1..=3_u16).flat_map(|region| 7_301 + 10 * region..7_307 + 10 * region)
    }

    fn connections(&self) -> Vec<Http> {
        self.nodes.iter().map(|(http, _)| Http::to(*http)).collect()
    }

    /// Sends requests for a route to all nodes in turn. Returns how many were allowed.
    fn ask(&self, times: usize, route: &str) -> usize {
        let mut connections = self.connections();
        let body = body(&[("route", route)]);
        let mut allowed = |number: usize| connections[number % 6].check(&body).json()["allowed"] == true;
        (0..times).filter(|number| allowed(*number)).count()
    }

    /// Gives an order to the authority. Returns whether it succeeded, and its output.
    fn order(&self, words: &[&str]) -> (bool, String) {
        let admin = format!("127.0.0.1:{}", 8_102 + self.shift);
        let ended = acequia(&[words, &["--address", &admin]].concat());
        let output = [ended.stdout, ended.stderr].concat();
        (ended.status.success(), String::from_utf8_lossy(&output).into_owned())
    }

    /// A charge of one node is refunded at its mate. The node that charged hears of this.
    fn refund_at_the_mate(&self) {
        let node = |place: u16| Http::to(SocketAddr::from(([127, 0, 0, 1], 8_100 + 10 * place + self.shift)));
        let asks =
            json!({ "domain": "shop", "descriptors": [{ "tenant": "t" }], "cost": 100, "id": "order-1" });
        let charged = node(0).check(&asks.to_string()).json();
        assert_eq!(charged["allowed"], true, "{charged}");
        let refund = json!({ "charge_id": charged["charge_id"] }).to_string();
        let refund = |place: u16| {
            let reply = node(place).ask("POST", "/v1/refund", &[], &refund).expect("an answer");
            reply.json()["settled"].clone()
        };
        assert_eq!(refund(1), "forwarded");
        eventually("it is given back", || refund(0) == "before");
        let again = node(1).check(&asks.to_string());
        assert!(
            again.status == 400 || again.json()["is_repeat"] != true,
            "by what was given back: {}",
            again.body
        );
    }

    /// An operator gives a node another weight.
    fn change_a_weight(&self) {
        let (done, text) = self.order(&["regions", "--json"]);
        assert!(done, "{text}");
        let status: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(status["members"].as_array().map(Vec::len), Some(6), "{text}");
        let (done, text) = self.order(&["regions", "weight", "us", "3"]);
        assert!(!done && text.contains("name one of us-1, us-2"), "{text}");
        let (done, text) = self.order(&["regions", "weight", "us-1", "3"]);
        assert!(done, "{text}");
        eventually("pools of other parts grant", || {
            self.nodes
                .iter()
                .all(|(_, admin)| acequia(&["store", "--address", &admin.to_string()]).status.success())
        });
    }

    /// A node loses its disk. It agrees with its mate, and an operator returns its share. The new process
    /// ends when the returned value is dropped.
    fn lose_a_disk(&self) -> Killed {
        let config = self.folder.path().join("us-2.yaml");
        let killed = Command::new("pkill").args(["-KILL", "-f"]).arg(&config).status();
        assert!(killed.expect("procps").success());
        eventually("it is gone", || {
            let running = Command::new("pgrep").arg("-f").arg(&config).stdout(Stdio::null()).status();
            !running.expect("procps").success()
        });
        std::fs::remove_dir_all(self.folder.path().join("us-2")).expect("its disk");
        let mut again = Command::new(binary());
        again.args(["serve", "--config"]).arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let again = Killed(again.spawn().expect("the binary starts"));
        eventually("it is heard again", || self.order(&["regions", "recover", "us-2", "--yes"]).0);
        let address = SocketAddr::from(([127, 0, 0, 1], 8_210 + self.shift));
        eventually("it has its share", || Http::to(address).get("/readyz").status == 200);
        eventually("pools grant with it", || {
            let admin = format!("127.0.0.1:{}", 8_212 + self.shift);
            acequia(&["store", "--address", &admin]).status.success()
        });
        again
    }
}

#[test]
fn the_shipped_regions_share_a_limit() {
    let _alone = alone();
    let mut regions = ShippedRegions::start();
    // All of the hour's hundred units pass, wherever they are asked for, and not one more.
    let mut allowed = 0;
    eventually("what there is has been used", || {
        allowed += regions.ask(60, "/export");
        allowed >= 95
    });
    allowed += regions.ask(300, "/export");
    assert!(allowed <= 100, "{allowed} of 100");

    regions.refund_at_the_mate();
    regions.change_a_weight();
    allowed += regions.ask(300, "/export");
    assert!(allowed <= 100, "{allowed} of 100 with other parts");

    let _again = regions.lose_a_disk();
    assert!(regions.script.stop());
    let is_open = |port: u16| !servers::is_free(port + regions.shift);
    assert!(!ShippedRegions::server_ports().any(is_open), "a server runs on");
}

#[test]
fn a_node_whose_mate_has_another_config_owns_nothing() {
    let _alone = alone();
    let cluster = Cluster::start();
    let folder = tempfile::tempdir().expect("a folder");
    let start = |node: &str, extra: &str| {
        let path = folder.path().join(format!("{node}.yaml"));
        let data = folder.path().join(node).display().to_string();
        let yaml = config(node, &cluster, extra).replace("DATA", &data);
        std::fs::write(&path, yaml).expect("a config");
        let mut command = Command::new(binary());
        command.args(["serve", "--config"]).arg(path).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary starts")
    };
    let mut children = [start("eu-1", ""), start("eu-2", "  guard: 20%\n")];
    let said = BufReader::new(children[0].stderr.take().expect("it is piped")).lines().map_while(Result::ok);
    let (send, lines) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        for line in said {
            // After a failure of the test nobody receives the lines.
            let _ = send.send(line);
        }
    });
    let begun = Instant::now();
    let mut found = false;
    while !found && begun.elapsed() < PATIENCE * 2 {
        found = lines.recv_timeout(PATIENCE).is_ok_and(|line| line.contains("owns nothing until every node"));
    }
    let ended = children.iter_mut().map(|child| child.try_wait().expect("a child")).collect::<Vec<_>>();
    for child in &mut children {
        child.kill().expect("a signal");
        child.wait().expect("an end");
    }
    reader.join().expect("no panic");
    assert!(found, "nobody said what it waits for");
    assert_eq!(ended, [None, None], "they wait");
}
