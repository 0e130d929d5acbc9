//! How many cells' news a node takes in a second, on one core.

use std::time::Instant;

use acequia_limits::{
    HashKey, Now,
    limit::{LimitSpec, TokenBucketSpec},
};
use acequia_node::{Config, Home, Node, sharing};
use acequia_rights::{
    Region, Writer,
    versions::{CellKey, Draft, Member},
};

use super::{
    spec,
    table::{Bar, Table},
    world::{MS, S, START},
};

/// Two nodes: one tells of its cells, the other listens.
pub fn merge(table: &mut Table, quick: bool) {
    let cells = if quick { 2_000 } else { 20_000 };
    let (teller, listener) = (node(0), node(1));
    let mut now = START;
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let key = |cell: usize| format!("k{cell}");
    let mut asker = teller.asker();
    let (mut entries, mut handled_s, mut looked_s) = (0_u64, 0.0, 0.0);
    let rounds = if quick { 200 } else { 1_000 };
    for round in 0..rounds {
        now += 100 * MS;
        // Demand that changes by more than the news' threshold each time.
        let times = if round % 2 == 0 { 3 } else { 40 };
        for cell in 0..cells {
            let key = key(cell);
            let entries = [("key", key.as_str())];
            let request = acequia_limits::Request::new("shop", &entries);
            for _ in 0..times.min(if round < 20 { 40 } else { times }) {
                let _ = asker.check(&request, Now::at(now), acequia_node::Ask::CHECK);
            }
        }
        for (from, to) in [(&teller, &listener), (&listener, &teller)] {
            let began = Instant::now();
            from.tick(Now::at(now), |_| Vec::new()).expect("a version");
            if std::ptr::eq(from, &listener) && round >= 20 {
                looked_s += began.elapsed().as_secs_f64();
            }
            while let Some((batch, _)) = from.take_rows() {
                from.committed(batch);
            }
            frames.clear();
            while let Some((_, bytes)) = from.poll(Now::at(now)) {
                frames.push(bytes);
            }
            let count = |bytes: &Vec<u8>| {
                let all = sharing::wire::read(bytes).expect("a frame").entries;
                all.iter().filter(|entry| matches!(entry, sharing::wire::Entry::News { .. })).count() as u64
            };
            let news: u64 = frames.iter().map(count).sum();
            let me = Region(u16::from(std::ptr::eq(from, &listener)));
            let began = Instant::now();
            for bytes in &frames {
                to.handle(me, bytes, Now::at(now + MS)).expect("taken");
            }
            if std::ptr::eq(to, &listener) && round >= 20 {
                handled_s += began.elapsed().as_secs_f64();
                entries += news;
            }
        }
        if handled_s > if quick { 0.05 } else { 1.0 } {
            break;
        }
    }
    let name = format!("news of {cells} cells, one core");
    let rate = entries as f64 / handled_s / 1e6;
    table.add(&name, ("merged, million a second", rate, "M/s"), Bar::AtLeast(if quick { 0.0 } else { 1.0 }), None);
    let looked = entries as f64 / (handled_s + looked_s) / 1e6;
    table.add(&name, ("with the looks at them", looked, "M/s"), Bar::None, None);
}

fn node(region: u16) -> std::sync::Arc<Node> {
    let writer = |region| Writer { region: Region(region), node: 0, incarnation: 1 };
    let home = Home { writer: writer(region), loan_ttl_ns: sharing::LOAN_TTL_NS };
    let config = Config {
        key: HashKey([7; 16]),
        memory_bytes: 1 << 30,
        durable: true,
        empty_handed: None,
        home: Some(home),
    };
    let node = std::sync::Arc::new(Node::new(config));
    let now = Now::at(START - S);
    node.resume_home(Vec::new(), now, |_| Vec::new()).expect("an empty disk");
    (0..2).for_each(|other| node.meet(writer(other)));
    let member = |region| Member { weight: 1, writer: writer(region), name: format!("r{region}") };
    let bucket = TokenBucketSpec { rate: String::from("100/s"), burst: 100 };
    let draft = Draft {
        members: (0..2).map(|region| (Region(region), member(region))).collect(),
        fenced: Vec::new(),
        clock_error_ns: 0,
        drift_ppm: 200,
        key: CellKey([7; 16]),
        limits: sharing::limits_to_bytes(&[LimitSpec { token_bucket: Some(bucket), ..spec("user") }])
            .expect("limits"),
    };
    if region == 0 {
        let version = node.propose(draft, now.wall_ns).expect("a version");
        node.adopt(version, now, |_| Vec::new()).expect("adopted");
    }
    node
}
