//! A region gains a node and loses one while it serves: its nodes restart one after the other with new files.

use std::{path::Path, slice};

use acequia_mesh::{Identity, certs};
use acequia_tests::{Node, eventually};

use super::{
    alone, ask, listed, mesh_ports, servers::Cluster, start_all, until_it_gives, until_pools_grant,
    until_ready, use_up,
};
use crate::{operators::order, windows};

const NODES: [&str; 3] = ["eu-1", "eu-2", "eu-3"];

/// What the nodes have in common.
struct Scene<'a> {
    cluster: &'a Cluster,
    certs: &'a Path,
    ports: [u16; NODES.len()],
}

/// The config of a node in a region of `nodes` nodes.
fn config(place: usize, nodes: usize, scene: &Scene<'_>) -> String {
    let Scene { cluster, certs, ports } = scene;
    let named = NODES.iter().zip(ports).take(nodes);
    let named: Vec<String> = named.map(|(name, port)| format!("{name}: \"127.0.0.1:{port}\"")).collect();
    format!(
        "region: eu\nnode: {}\n\
         listen: {{ grpc: \"127.0.0.1:0\", http: \"127.0.0.1:0\", admin: \"127.0.0.1:0\", mesh: \"127.0.0.1:{}\" }}\n\
         data: DATA\ntls: {}\nregions: {{ eu: {{ weight: 1, nodes: {{ {} }} }} }}\nauthority: eu-1\n\
         store: {{ redis: {{ cluster: {} }} }}\n\
         limits:\n\
         - {{ name: window, domain: shop, by: [w], fixed_window: {{ limit: 200, window: {} }} }}\n\
         - {{ name: bucket, domain: shop, by: [b], token_bucket: {{ rate: 200/s, burst: 200 }} }}\n",
        NODES[place],
        ports[place],
        certs.display(),
        named.join(", "),
        listed(&cluster.nodes),
        windows::long()
    )
}

#[track_caller]
fn order_until_done(node: &Node, words: &[&str]) {
    let mut said = (None, String::new());
    eventually("it is ordered", || {
        said = order(node, words);
        said.0 == Some(0)
    });
}

#[test]
fn a_region_has_one_node_more_and_one_less_while_it_serves() {
    let _alone = alone();
    let cluster = Cluster::start();
    let folder = tempfile::tempdir().expect("a folder");
    certs::create(folder.path(), &NODES.map(|node| Identity::new("eu", node)), &[NODES[0]])
        .expect("certificates");
    let scene = Scene { cluster: &cluster, certs: folder.path(), ports: mesh_ports() };
    let mut nodes: Vec<Node> = start_all([0, 1].map(|place| config(place, 2, &scene))).into();
    until_ready(&nodes);
    until_pools_grant(&nodes);
    let mut allowed = 0;
    eventually("pools are used", || {
        allowed += ask(&nodes, "w", "one", 20);
        allowed >= 60
    });

    // The files name a third node, on one node after the other. The other node answers meanwhile.
    for place in [0, 1] {
        nodes[place].write_whole_config(&config(place, 3, &scene));
        assert!(nodes[place].terminate().success());
        let other = slice::from_ref(&nodes[1 - place]);
        eventually("the other one answers", || ask(other, "w", ["two", "three"][place], 5) > 0);
        nodes[place].start_again();
        until_ready(&nodes);
        until_pools_grant(&nodes);
    }
    // Nobody has lost any of the window: nodes returned what they held, and recorded what they had spent of
    // their guard shares.
    allowed += use_up(&nodes, "w", "one");
    println!("{allowed} of 200 after two nodes were started again");
    assert!((196..=200).contains(&allowed), "{allowed} of 200");
    let mut of_other = ask(&nodes, "w", "four", 10);
    nodes.push(Node::start_whole(&config(2, 3, &scene)));
    order_until_done(&nodes[0], &["regions", "add", "eu-3", "--weight", "1", "--yes"]);
    until_ready(&nodes);
    until_pools_grant(&nodes);
    let third = slice::from_ref(&nodes[2]);
    // More than the node's guard share.
    until_it_gives(third, "b", 50, 40);
    // In open windows the pool goes on. The new node gets some of its units.
    let mut of_third = 0;
    eventually("who is new has something of a window that is open", || {
        of_third += ask(third, "w", "four", 10);
        of_third >= 20
    });
    of_other += of_third + use_up(&nodes, "w", "four");
    println!("{of_other} of 200 after a node joined");
    assert!((190..=200).contains(&of_other), "{of_other} of 200");

    // The third node is gone for good, and the pools are lost. After an order they grant again, although
    // files still name the node.
    nodes[2].kill();
    order_until_done(&nodes[0], &["regions", "evict", "eu-3", "--fenced", "--yes"]);
    nodes.truncate(2);
    for server in &cluster.nodes {
        // A replica refuses this.
        let _ = server.cli(&["FLUSHALL"]);
    }
    until_pools_grant(&nodes);
    for place in [0, 1] {
        nodes[place].write_whole_config(&config(place, 2, &scene));
        assert!(nodes[place].terminate().success());
        nodes[place].start_again();
        until_ready(&nodes);
    }
    until_pools_grant(&nodes);
    allowed += ask(&nodes, "w", "one", 300);
    assert!(allowed <= 200, "{allowed} of 200");
    for node in &nodes {
        eventually("it has something", || ask(slice::from_ref(node), "b", "four", 10) > 0);
    }
}
