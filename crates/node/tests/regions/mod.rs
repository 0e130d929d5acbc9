//! Nodes on a network in memory, with disks in memory, for stories.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{collections::BTreeMap, sync::Arc};

use acequia_limits::{
    CellTag, HashKey, Limit, LimitId, Now, Request,
    limit::{FixedWindowSpec, LimitSpec, TokenBucketSpec},
};
use acequia_node::{Ask, Asker, Config, Home, Kept, Membership, Node, Row, sharing};
use acequia_rights::{
    Region, Writer,
    versions::{CellKey, Draft, Member},
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1_000 * MS;
pub(crate) const START: u64 = 1_700_000_000 * S;

pub(crate) fn spec(name: &str) -> LimitSpec {
    serde_json::from_str(&format!("{{\"name\":\"{name}\",\"domain\":\"shop\",\"by\":[\"key\"]}}"))
        .expect("a spec")
}

pub(crate) fn bucket(name: &str, rate: &str, burst: u64) -> LimitSpec {
    LimitSpec { token_bucket: Some(TokenBucketSpec { rate: rate.to_owned(), burst }), ..spec(name) }
}

pub(crate) fn window(name: &str, limit: u64, window: &str) -> LimitSpec {
    let fixed = FixedWindowSpec { limit, window: window.to_owned(), stagger: false };
    LimitSpec { fixed_window: Some(fixed), ..spec(name) }
}

type Disk = BTreeMap<(LimitId, CellTag), Kept>;

pub(crate) struct Place {
    pub(crate) node: Arc<Node>,
    asker: Asker,
    disk: Disk,
    pub(crate) admitted: u64,
}

/// Frames under way, by when they arrive and their order: (from, to, bytes).
type Wire = BTreeMap<(u64, u64), (usize, usize, Vec<u8>)>;

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) places: Vec<Place>,
    wire: Wire,
    sent: u64,
    one_way_ns: u64,
    pub(crate) cut: Vec<(usize, usize)>,
}

pub(crate) fn writer(region: usize) -> Writer {
    Writer { region: Region(region as u16), node: 0, incarnation: 1 }
}

impl World {
    pub(crate) fn new(regions: usize, specs: &[LimitSpec], one_way_ns: u64) -> Self {
        let now = Now::at(START);
        let places = (0..regions)
            .map(|region| {
                let home = Home { writer: writer(region), loan_ttl_ns: sharing::LOAN_TTL_NS };
                let config = Config {
                    key: HashKey([7; 16]),
                    memory_bytes: 64 << 20,
                    durable: true,
                    empty_handed: None,
                    home: Some(home),
                };
                let node = Arc::new(Node::new(config));
                node.resume_home(Vec::new(), now, |_| Vec::new()).expect("an empty disk");
                (0..regions).for_each(|other| node.meet(writer(other)));
                Place { asker: node.asker(), node, disk: Disk::new(), admitted: 0 }
            })
            .collect();
        let world = Self { now: START, places, wire: Wire::new(), sent: 0, one_way_ns, cut: Vec::new() };
        let members = (0..regions)
            .map(|region| {
                (
                    Region(region as u16),
                    Member { weight: 1, writer: writer(region), name: format!("r{region}") },
                )
            })
            .collect();
        let draft = Draft {
            members,
            fenced: Vec::new(),
            clock_error_ns: 0,
            drift_ppm: 1_000,
            key: CellKey([7; 16]),
            limits: sharing::limits_to_bytes(specs).expect("limits"),
        };
        let version = world.places[0].node.propose(draft, START).expect("a version");
        world.places[0].node.adopt(version, now, |_| Vec::new()).expect("adopted");
        world
    }

    /// Lets time pass in milliseconds; `demand` says how many requests each region gets in each.
    pub(crate) fn run(&mut self, ns: u64, mut demand: impl FnMut(usize, u64) -> u64) {
        for ms in 0..ns / MS {
            self.now += MS;
            self.arrive();
            let now = Now::at(self.now);
            for region in 0..self.places.len() {
                for _ in 0..demand(region, ms) {
                    self.ask(region, "k");
                }
                let place = &mut self.places[region];
                if ms % 10 == 0 || place.node.calls() {
                    let disk = &place.disk;
                    place.node.tick(now, |id| rows(disk, id)).expect("a version that fits");
                }
                self.flush(region);
                self.send(region);
            }
        }
    }

    pub(crate) fn ask(&mut self, region: usize, key: &str) -> bool {
        let place = &mut self.places[region];
        let entries = [("key", key)];
        let request = Request::new("shop", &entries);
        let allowed = place.asker.check(&request, Now::at(self.now), Ask::CHECK).allowed;
        place.admitted += u64::from(allowed);
        allowed
    }

    fn flush(&mut self, region: usize) {
        let place = &mut self.places[region];
        while let Some((batch, rows)) = place.node.take_rows() {
            for row in rows {
                match row.state {
                    Some(state) => place.disk.insert((row.limit, row.tag), state),
                    None => place.disk.remove(&(row.limit, row.tag)),
                };
            }
            place.node.committed(batch);
        }
    }

    fn send(&mut self, from: usize) {
        while let Some((to, bytes)) = self.places[from].node.poll(Now::at(self.now)) {
            self.sent += 1;
            let to = usize::from(to.0);
            if !self.cut.contains(&(from, to)) {
                self.wire.insert((self.now + self.one_way_ns, self.sent), (from, to, bytes));
            }
        }
    }

    fn arrive(&mut self) {
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (from, to, bytes) = entry.remove();
            let node = &self.places[to].node;
            node.handle(Region(from as u16), &bytes, Now::at(self.now)).expect("a frame that reads");
        }
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.places.iter().map(|place| place.admitted).sum()
    }

    pub(crate) fn memberships(&self) -> Vec<Option<Membership>> {
        self.places.iter().map(|place| place.node.membership(Now::at(self.now))).collect()
    }

    pub(crate) fn all_settled(&self) -> bool {
        self.memberships()
            .iter()
            .flatten()
            .all(|m| m.progress.as_ref().is_some_and(|p| p.pending.is_empty() && p.effective == p.requested))
    }

    pub(crate) fn traffic(&self) -> Vec<sharing::Traffic> {
        self.places.iter().map(|place| place.node.traffic()).collect()
    }
}

fn rows(disk: &Disk, id: LimitId) -> Vec<Row> {
    let all = (id, CellTag(0))..=(id, CellTag(u128::MAX));
    disk.range(all)
        .map(|((limit, tag), state)| Row { limit: *limit, tag: *tag, state: Some(state.clone()) })
        .collect()
}

pub(crate) fn limit(spec: LimitSpec) -> Limit {
    Limit::new(spec).expect("a limit")
}
