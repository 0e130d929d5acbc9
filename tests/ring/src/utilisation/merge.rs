//! How many cells' advertisements a node handles in a second on one core.

use acequia_limits::{
    HashKey, Now,
    limit::{LimitSpec, TokenBucketSpec},
};
use acequia_node::{Config, Home, Node, regions};
use acequia_rights::{
    Incarnation, MemberId,
    versions::{CellSecret, Draft, Member},
};

use super::{
    spec,
    table::{Bar, Figure, Table},
    world::{MS, S, START},
};

/// The advertised cells: fewer than a node processes in one tick.
const CELLS: usize = 16_000;
/// Longer than the pause between two advertisements of an unchanged cell, so each round advertises every
/// cell.
const ROUND_NS: u64 = 4_200 * MS;

/// Two nodes: one advertises its cells, and the other listens.
pub fn merge(table: &mut Table, quick: bool) {
    let nodes = [node(0), node(1)];
    let mut askers = [nodes[0].asker(), nodes[1].asker()];
    let (mut news, mut handled_s, mut looked_s) = (0_u64, 0.0, 0.0);
    let rounds = if quick { 4 } else { 20 };
    let mut now = START;
    // Until each node knows the other's clock.
    for _ in 0..6 {
        nodes
            .iter()
            .for_each(|node| node.tick(Now::at(now), |_| Some(Vec::new())).expect("a version that fits"));
        now = hear_each_other(&nodes, now, 1);
    }
    for round in 0..rounds {
        now += ROUND_NS;
        // A node sends nothing to a peer it has not heard. No cell is processed yet.
        now = hear_each_other(&nodes, now, 2);
        now += 10 * MS;
        for cell in 0..CELLS {
            let key = format!("k{cell}");
            let entries = [("key", key.as_str())];
            // The first round asks for so much that the cell is shared; later rounds ask for little.
            for _ in 0..if round == 0 { 80 } else { 3 } {
                let request = acequia_limits::Request::new("shop", &entries);
                let _ = askers[0].check(&request, Now::at(now), acequia_node::Ask::CHECK);
            }
            // The other node is asked for the cell as well, so it keeps the cell active.
            let request = acequia_limits::Request::new("shop", &entries);
            let _ = askers[1].check(&request, Now::at(now), acequia_node::Ask::CHECK);
        }
        nodes[0].tick(Now::at(now), |_| Some(Vec::new())).expect("a version that fits");
        let frames = frames(&nodes[0], now);
        let began = cpu_s();
        for frame in &frames {
            nodes[1].handle(MemberId(0), frame, Now::at(now)).expect("taken");
        }
        let handled = cpu_s();
        nodes[1].tick(Now::at(now), |_| Some(Vec::new())).expect("a version");
        // The first rounds introduce the cells.
        if round >= 2 {
            handled_s += handled - began;
            looked_s += cpu_s() - handled;
            news += frames.iter().map(|frame| news_in(frame)).sum::<u64>();
        }
    }
    let name = format!("news of {CELLS} cells, one core");
    let merged = news as f64 / handled_s / 1e6;
    table.add(&name, Figure::new("merged, million a second", merged, "M/s"), Bar::AtLeast(1.0), None);
    let looked = news as f64 / (handled_s + looked_s) / 1e6;
    table.add(&name, Figure::new("with a look at each", looked, "M/s"), Bar::None, None);
}

/// Exchanges heartbeats half a second apart.
fn hear_each_other(nodes: &[std::sync::Arc<Node>; 2], mut now: u64, times: u32) -> u64 {
    for _ in 0..times {
        now += 500 * MS;
        for (from, to) in [(0, 1), (1, 0)] {
            for frame in frames(&nodes[from], now) {
                nodes[to].handle(MemberId(from as u16), &frame, Now::at(now)).expect("taken");
            }
        }
    }
    now
}

/// Writes the node's rows. Returns the frames it has to send.
fn frames(node: &Node, now: u64) -> Vec<Vec<u8>> {
    while let Some((batch, _)) = node.take_rows() {
        node.committed(batch);
    }
    std::iter::from_fn(|| node.poll(Now::at(now))).map(|(_, frame)| frame).collect()
}

fn news_in(frame: &[u8]) -> u64 {
    let entries = regions::wire::read(frame).expect("a frame").entries;
    entries.iter().filter(|entry| matches!(entry, regions::wire::FrameEntry::Advertisement { .. })).count()
        as u64
}

fn node(region: u16) -> std::sync::Arc<Node> {
    let incarnation = |region| Incarnation { member: MemberId(region), node: 0, number: 1 };
    let home = Home { incarnation: incarnation(region), loan_ttl_ns: regions::LOAN_TTL_NS };
    let config = Config {
        key: HashKey([7; 16]),
        memory_bytes: 1 << 30,
        durable: true,
        after_crash: None,
        home: Some(home),
    };
    let node = std::sync::Arc::new(Node::new(config));
    let now = Now::at(START - S);
    node.resume_home(Vec::new(), now, |_| Vec::new()).expect("an empty disk");
    (0..2).for_each(|other| node.meet(incarnation(other)));
    let member = |region| Member { weight: 1, incarnation: incarnation(region), name: format!("r{region}") };
    let bucket = TokenBucketSpec { rate: String::from("100/s"), burst: 100 };
    let draft = Draft {
        members: (0..2).map(|region| (MemberId(region), member(region))).collect(),
        fenced: Vec::new(),
        clock_error_ns: 0,
        drift_ppm: 200,
        key: CellSecret([7; 16]),
        limits: regions::limits_to_bytes(&[LimitSpec { token_bucket: Some(bucket), ..spec("user") }])
            .expect("limits"),
        revoked: Default::default(),
    };
    if region == 0 {
        let version = node.propose(draft, now.wall_ns).expect("a version");
        node.adopt(version, now, |_| Some(Vec::new())).expect("adopted");
    }
    node
}

/// CPU time of this thread in seconds, without other processes.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns: f64 = stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
    ns / 1e9
}
