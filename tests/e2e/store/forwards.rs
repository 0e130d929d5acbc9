//! For cells of few units, one node of a region forwards requests to the other over the mesh. These are real
//! processes, one of which dies.

use std::{path::Path, slice, time::Instant};

use acequia_mesh::{Identity, certs};
use acequia_tests::{Node, eventually};

use super::{alone, listed, mesh_ports, servers::Server, start_all, until_pools_grant, until_ready};
use crate::client::{Http, body, metric};

/// The nodes of two regions. Those of the first region share a store.
const NODES: [(&str, &str); 3] = [("eu", "eu-1"), ("eu", "eu-2"), ("us", "us-1")];
const BURST: f64 = 20.0;
const RATE: f64 = 2.0;
const KEYS: usize = 24;

/// What the nodes have in common.
struct Scene<'a> {
    store: &'a Server,
    certs: &'a Path,
    ports: [u16; NODES.len()],
}

fn config(place: usize, scene: &Scene<'_>) -> String {
    let Scene { store, certs, ports } = scene;
    let (region, node) = NODES[place];
    let store = match region {
        "eu" => format!("store: {{ redis: {{ shards: {} }} }}\n", listed(slice::from_ref(*store))),
        _ => String::new(),
    };
    let at = |place: usize| format!("{}: \"127.0.0.1:{}\"", NODES[place].1, ports[place]);
    // The wait is long enough for a busy machine.
    format!(
        "region: {region}\nnode: {node}\n\
         listen: {{ grpc: \"127.0.0.1:0\", http: \"127.0.0.1:0\", admin: \"127.0.0.1:0\", mesh: \"127.0.0.1:{}\" }}\n\
         data: DATA\ntls: {}\nauthority: eu-1\nregions:\n\
         \x20 eu: {{ weight: 1, nodes: {{ {}, {} }} }}\n\x20 us: {{ weight: 1, nodes: {{ {} }} }}\n\
         {store}limits:\n\
         - {{ name: few, domain: shop, by: [key], token_bucket: {{ rate: {RATE}/s, burst: {BURST} }}, sharing: {{ wait: 40ms }} }}\n",
        ports[place],
        certs.display(),
        at(0),
        at(1),
        at(2),
    )
}

fn forwards(node: &Node, outcome: &str) -> f64 {
    metric(node, "acequia_forwards_total", &[("outcome", outcome)])
}

/// What callers were allowed, by key, since they began.
struct Load {
    begun: Instant,
    allowed: [u32; KEYS],
}

impl Load {
    /// Asks some nodes for a unit of each key. At most the burst plus what was earned since must be allowed.
    #[track_caller]
    fn ask(&mut self, nodes: &[Node]) {
        let mut connections: Vec<Http> = nodes.iter().map(Http::connect).collect();
        for key in 0..KEYS {
            for connection in &mut connections {
                let answer = connection.check(&body(&[("key", &format!("k{key}"))]));
                self.allowed[key] += u32::from(answer.json()["allowed"] == true);
            }
            let most = BURST + RATE * self.begun.elapsed().as_secs_f64();
            assert!(
                f64::from(self.allowed[key]) <= most,
                "{} of {most} units of key {key}",
                self.allowed[key]
            );
        }
    }
}

/// Two regions with certificates in a folder. The first two nodes share a store.
pub(crate) fn start(store: &Server, folder: &Path) -> [Node; 3] {
    let identities = NODES.map(|(region, node)| Identity::new(region, node));
    certs::create(folder, &identities, &["eu-1"]).expect("certificates");
    let scene = Scene { store, certs: folder, ports: mesh_ports() };
    let nodes = start_all([0, 1, 2].map(|place| config(place, &scene)));
    until_ready(&nodes);
    nodes
}

#[test]
fn what_a_node_forwards_to_its_mate_is_charged_once() {
    let _alone = alone();
    let store = Server::start(&[]);
    let folder = tempfile::tempdir().expect("a folder");
    let mut nodes = start(&store, folder.path());
    until_pools_grant(&nodes[..2]);

    let mut load = Load { begun: Instant::now(), allowed: [0; KEYS] };
    // With this many keys, each node is almost certainly the owner of some.
    eventually("each has forwarded to the other, and used what it got", || {
        load.ask(&nodes);
        nodes[..2].iter().all(|node| forwards(node, "used") > 0.0 && forwards(node, "charged") > 0.0)
    });

    // An owner dies with its charges, and restarts.
    nodes[1].kill();
    for _ in 0..20 {
        load.ask(slice::from_ref(&nodes[0]));
    }
    nodes[1].start_again();
    until_ready(&nodes);
    until_pools_grant(&nodes[..2]);
    eventually("each forwards to the other again", || {
        load.ask(&nodes);
        forwards(&nodes[1], "used") > 0.0 && forwards(&nodes[1], "charged") > 0.0
    });
    println!("allowed {:?} in {:?}", load.allowed, load.begun.elapsed());
    for node in &nodes[..2] {
        let of = ["asked", "charged", "used", "wasted"].map(|outcome| forwards(node, outcome));
        println!("asked, charged, used, wasted: {of:?}");
    }
}
