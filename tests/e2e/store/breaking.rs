//! A region of three nodes under load, while its store breaks and one node dies for good.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use acequia_tests::{Node, eventually};

use super::{alone, config_of, limits, listed, servers::Cluster, start_all, until_pools_grant};
use crate::{
    client::{Http, body},
    operators::order,
};

const NODES: [&str; 3] = ["eu-1", "eu-2", "eu-3"];
/// The node that dies.
const GONE: usize = 2;
const CALLERS: usize = 3;
/// Each caller asks a hundred times a second, whatever the answers are.
const PAUSE: Duration = Duration::from_millis(10);
const CELLS: [(&str, &str); 6] =
    [("w", "one"), ("b", "one"), ("w", "two"), ("b", "two"), ("w", "three"), ("b", "three")];

/// What callers of the region see, and when they end.
struct Scene {
    nodes: [SocketAddr; 3],
    /// Whether the dying node may stop answering.
    is_gone: AtomicBool,
    is_over: AtomicBool,
    /// Number of answers of each node.
    answered: [AtomicU64; 3],
    /// Units that were allowed, by cell.
    allowed: [AtomicU64; 6],
}

impl Scene {
    fn new(nodes: &[Node; 3]) -> Self {
        Self {
            nodes: nodes.each_ref().map(Node::http),
            is_gone: AtomicBool::default(),
            is_over: AtomicBool::default(),
            answered: Default::default(),
            allowed: Default::default(),
        }
    }

    /// Asks for all cells in turn, at all nodes in turn, until the test is over.
    fn call(&self, caller: usize) {
        let bodies = CELLS.map(|cell| body(&[cell]));
        let mut connections: Vec<(usize, Http)> = self.nodes.map(Http::to).into_iter().enumerate().collect();
        let mut due = Instant::now();
        for number in caller.. {
            due += PAUSE;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if self.is_over.load(SeqCst) {
                return;
            }
            let cell = number % CELLS.len();
            let turn = number / CELLS.len() % connections.len();
            let (node, http) = &mut connections[turn];
            match http.try_check(&bodies[cell]) {
                Ok(reply) => {
                    // Whatever is broken, the answer is a verdict.
                    let allowed = reply.json()["allowed"].as_bool().expect("a verdict");
                    self.allowed[cell].fetch_add(u64::from(allowed), SeqCst);
                    self.answered[*node].fetch_add(1, SeqCst);
                }
                Err(fault) => {
                    let is_gone = *node == GONE && self.is_gone.load(SeqCst);
                    assert!(is_gone, "{} does not answer: {fault}", NODES[*node]);
                    connections.remove(turn);
                }
            }
        }
    }

    /// Waits until each of the first `nodes` nodes has answered `times` more requests.
    #[track_caller]
    fn until_answered(&self, nodes: usize, times: u64) {
        let all = || self.answered[..nodes].iter().map(|answered| answered.load(SeqCst));
        let before: Vec<u64> = all().collect();
        eventually("each live node answers", || {
            all().zip(&before).all(|(now, before)| now >= before + times)
        });
    }
}

/// Ends the callers when dropped, however the test ends.
struct Load<'a>(&'a Scene);

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, SeqCst);
    }
}

#[test]
fn a_store_and_a_node_die_under_load_and_the_rest_of_the_region_goes_on() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let redis = format!("cluster: {}", listed(&cluster.nodes));
    let mut nodes = start_all(NODES.map(|node| config_of(node, &NODES, &redis, &limits())));
    until_pools_grant(&nodes);
    let scene = Scene::new(&nodes);
    let begun = Instant::now();
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let scene = &scene;
            scope.spawn(move || scene.call(caller));
        }
        let _load = Load(&scene);
        scene.until_answered(3, 150);

        let primary = cluster.primaries()[0];
        scene.is_gone.store(true, SeqCst);
        cluster.nodes[primary].kill();
        nodes[GONE].kill();
        scene.until_answered(2, 300);

        for server in &mut cluster.nodes {
            server.kill();
        }
        scene.until_answered(2, 300);

        for server in &mut cluster.nodes {
            server.restart();
        }
        let alive = &nodes[..GONE];
        for node in alive {
            eventually("the loss is known", || order(node, &["store"]).0 == Some(1));
        }
        scene.until_answered(2, 150);
        // Nobody else can tell what the dead node held.
        assert_eq!(order(&alive[0], &["store"]).0, Some(1), "nothing is granted without {}", NODES[GONE]);
        let (code, said) = order(&alive[0], &["store", "exclude", NODES[GONE], "--yes"]);
        assert!(code == Some(0) && said.contains("eu-3 is excluded for"), "{said}");
        until_pools_grant(alive);
        scene.until_answered(2, 300);
    });
    // Each unit was given once, whichever node gave it.
    for (cell, allowed) in CELLS.iter().zip(&scene.allowed) {
        let (allowed, minutes) = (allowed.load(SeqCst), begun.elapsed().as_secs() / 60);
        let most = if cell.0 == "w" { 200 } else { 200 + minutes };
        assert!(allowed <= most, "{cell:?}: {allowed} of {most}");
        assert!(allowed > 20, "{cell:?}: {allowed}, no more than guard shares");
    }
}
