//! For cells of few units, one node of a region forwards requests to the other over the mesh. These are real
//! processes, one of which dies.

use std::{net::UdpSocket, path::Path, slice, time::Instant};

use acequia_mesh::{Identity, certs};
use acequia_tests::{Node, eventually};

use super::{alone, listed, servers::Server, start_all, until_pools_grant};
use crate::client::{Http, body, metric};

/// The nodes of two regions. Those of the first region share a store.
const NODES: [(&str, &str); 3] = [("eu", "eu-1"), ("eu", "eu-2"), ("us", "us-1")];
const BURST: f64 = 20.0;
const RATE: f64 = 2.0;
const KEYS: usize = 24;

fn config(place: usize, (store, certs, ports): (&Server, &Path, &[u16])) -> String {
    let (region, node) = NODES[place];
    let store = match region {
        "eu" => format!("store: {{ redis: {{ shards: {} }} }}\n", listed(slice::from_ref(store))),
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

fn draws(node: &Node, outcome: &str) -> f64 {
    metric(node, "acequia_forwards_total", &[("outcome", outcome)])
}

/// What callers were allowed, by key, since they began.
struct Seen {
    begun: Instant,
    allowed: [u32; KEYS],
}

impl Seen {
    /// Asks some nodes for a unit of each key. At most the burst plus what was earned since must be allowed.
    #[track_caller]
    fn ask(&mut self, nodes: &[Node]) {
        let mut ways: Vec<Http> = nodes.iter().map(Http::connect).collect();
        for key in 0..KEYS {
            for way in &mut ways {
                let answer = way.check(&body(&[("key", &format!("k{key}"))]));
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
    let sockets = NODES.map(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port"));
    let ports = sockets.map(|socket| socket.local_addr().expect("an address").port());
    let scene = (store, folder, &ports[..]);
    let nodes = start_all([0, 1, 2].map(|place| config(place, scene)));
    until_ready(&nodes);
    nodes
}

fn until_ready(nodes: &[Node]) {
    eventually("every node is ready", || {
        nodes.iter().all(|node| Http::connect(node).get("/readyz").status == 200)
    });
}

#[test]
fn what_one_node_of_a_region_draws_of_the_other_is_charged_once() {
    let _alone = alone();
    let store = Server::start(&[]);
    let folder = tempfile::tempdir().expect("a folder");
    let mut nodes = start(&store, folder.path());
    until_pools_grant(&nodes[..2]);

    let mut seen = Seen { begun: Instant::now(), allowed: [0; KEYS] };
    // With this many keys, each node is almost certainly the owner of some.
    eventually("each has drawn of the other, and used that", || {
        seen.ask(&nodes);
        nodes[..2].iter().all(|node| draws(node, "used") > 0.0 && draws(node, "charged") > 0.0)
    });

    // An owner dies with its charges, and restarts.
    nodes[1].kill();
    for _ in 0..20 {
        seen.ask(slice::from_ref(&nodes[0]));
    }
    nodes[1].start_again();
    until_ready(&nodes);
    until_pools_grant(&nodes[..2]);
    eventually("each draws of the other again", || {
        seen.ask(&nodes);
        draws(&nodes[1], "used") > 0.0 && draws(&nodes[1], "charged") > 0.0
    });
    println!("allowed {:?} in {:?}", seen.allowed, seen.begun.elapsed());
    for node in &nodes[..2] {
        let of = ["asked", "charged", "used", "wasted"].map(|outcome| draws(node, outcome));
        println!("asked, charged, used, wasted: {of:?}");
    }
}
