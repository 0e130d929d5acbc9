//! A region's store gets one more shard while the region serves: its nodes restart one after the other with
//! new files.

use std::{
    slice,
    time::{Duration, Instant},
};

use acequia_tests::{Node, PATIENCE, eventually};

use super::{alone, config_of, listed, servers::Server, start_all, until_it_gives, until_pools_grant};
use crate::{
    client::{Http, body, metric},
    operators::explained,
    windows,
};

/// The limit of each cell. The nodes keep a tenth for themselves, half of it each.
const LIMIT: u64 = 100;
const NODES: [&str; 2] = ["eu-1", "eu-2"];

fn config(node: &str, shards: &[Server]) -> String {
    let limits = format!(
        "limits:\n\
         - {{ name: window, domain: shop, by: [w], fixed_window: {{ limit: {LIMIT}, window: {} }} }}\n\
         - {{ name: bucket, domain: shop, by: [b], token_bucket: {{ rate: 60/h, burst: {LIMIT} }} }}\n\
         - {{ name: quick, domain: shop, by: [q], token_bucket: {{ rate: 200/s, burst: 200 }} }}\n",
        windows::long()
    );
    config_of(node, &NODES, &format!("shards: {}", listed(shards)), &limits)
}

/// A cell, and what its callers were allowed, counted from outside.
#[derive(Debug)]
struct Cell {
    limit: &'static str,
    key: String,
    allowed: u64,
}

/// Twenty keys of each limit.
fn cells(prefix: &str) -> Vec<Cell> {
    let cell = |number: usize| {
        let limit = ["w", "b"][number % 2];
        Cell { limit, key: format!("{prefix}-{number}"), allowed: 0 }
    };
    (0..40).map(cell).collect()
}

/// Sends `times` requests for every cell to the nodes in turn. Returns how many were allowed. Every answer
/// must be a verdict.
fn ask(cells: &mut [Cell], nodes: &[Node], times: usize) -> u64 {
    let mut connections: Vec<Http> = nodes.iter().map(Http::connect).collect();
    let count = connections.len();
    let before: u64 = cells.iter().map(|cell| cell.allowed).sum();
    for cell in &mut *cells {
        let body = body(&[(cell.limit, &cell.key)]);
        for number in 0..times {
            let verdict = connections[number % count].check(&body).json()["allowed"].as_bool();
            cell.allowed += u64::from(verdict.expect("a verdict"));
        }
    }
    cells.iter().map(|cell| cell.allowed).sum::<u64>() - before
}

/// Asks until little more passes than buckets earn.
fn use_up(cells: &mut [Cell], nodes: &[Node]) {
    let mut came = Instant::now();
    while came.elapsed() < Duration::from_secs(2) {
        if ask(cells, nodes, 10) > cells.len() as u64 / 2 {
            came = Instant::now();
        }
    }
}

#[track_caller]
fn nobody_is_over(cells: &[Cell], since: Instant) {
    for Cell { limit, key, allowed } in cells {
        let most = if *limit == "w" { LIMIT } else { LIMIT + since.elapsed().as_secs() / 60 };
        assert!(*allowed <= most, "{limit}={key}: {allowed} of {most}");
    }
}

/// The shard of a cell, by a node's explanation.
fn shard(node: &Node, Cell { limit, key, .. }: &Cell) -> String {
    let seen = explained(node, &[&format!("{limit}={key}")]);
    seen["pools"][0]["shard"].as_str().expect("a shard").to_owned()
}

#[test]
fn a_store_has_one_shard_more_while_its_region_serves() {
    let _alone = alone();
    let mut shards = vec![Server::start(&[]), Server::start(&[])];
    let begun = Instant::now();
    let mut nodes = start_all(NODES.map(|node| config(node, &shards)));
    until_pools_grant(&nodes);
    let mut used = cells("used");
    eventually("more passes than guard shares", || {
        ask(&mut used, &nodes, 10);
        used.iter().all(|cell| cell.allowed > LIMIT / 10)
    });

    // Each node in turn switches to three shards. The other node answers meanwhile, and then both answer,
    // each by its own file.
    shards.push(Server::start(&[]));
    let third = shards[2].address();
    let mut between = cells("between");
    for place in [0, 1] {
        nodes[place].write_whole_config(&config(NODES[place], &shards));
        assert!(nodes[place].terminate().success());
        ask(&mut used, slice::from_ref(&nodes[1 - place]), 5);
        nodes[place].start_again();
        ask(&mut used, &nodes, 10);
        ask(&mut between, &nodes, 10);
        nobody_is_over(&used, begun);
        if place == 0 {
            let differs = |cell: &Cell| shard(&nodes[0], cell) == third && shard(&nodes[1], cell) != third;
            assert!(used.iter().any(differs), "they differ on where a cell is");
        }
    }
    until_pools_grant(&nodes);
    for node in &nodes {
        assert!(metric(node, "acequia_store_calls_total", &[("shard", &third)]) > 0.0, "it is not called");
    }

    // Keys without earlier requests have all their units, except buckets that moved, which have what they
    // have earned.
    let mut new = cells("new");
    ask(&mut new, &nodes, 1);
    let has_moved = |cell: &Cell| shard(&nodes[1], cell) == third;
    let moved = new.iter().filter(|cell| has_moved(cell)).count();
    assert!((4..=24).contains(&moved), "{moved} of {}, and a third are to be expected", new.len());
    let is_whole = |cell: &Cell| cell.allowed >= LIMIT * 4 / 5;
    // Several thousand requests in sequence take a while on a busy machine.
    let asked = Instant::now();
    loop {
        ask(&mut new, &nodes, 10);
        let is_all = |cell: &Cell| is_whole(cell) || (cell.limit == "b" && has_moved(cell));
        let lacking: Vec<&Cell> = new.iter().filter(|cell| !is_all(cell)).collect();
        if lacking.is_empty() {
            break;
        }
        assert!(asked.elapsed() < PATIENCE, "these are not whole: {lacking:?}");
    }
    until_it_gives(&nodes, "q", 40, 30);
    assert_ne!(shards[2].cli(&["DBSIZE"]), "0");
    // New owners do not give again what old owners had given, and cells that did not move have lost nothing.
    for cells in [&mut used, &mut between, &mut new] {
        use_up(cells, &nodes);
        nobody_is_over(cells, begun);
    }
    let lost = used.iter().find(|cell| cell.limit == "w" && !has_moved(cell) && !is_whole(cell));
    assert!(lost.is_none(), "{lost:?} stayed where it was");
}
