//! Real nodes on a simulated network, with a delay for every pair of regions.
//!
//! Time advances in steps of a millisecond. In each step arrived frames are handled, requests are made, nodes
//! tick (every ten milliseconds, or at once if a cell calls), rows go to disk, and frames leave. Only the
//! demand is random, and a seed determines it.

use std::{collections::BTreeMap, sync::Arc};

use acequia_limits::{CellTag, HashKey, LimitId, Now, Request, limit::LimitSpec};
use acequia_node::{
    Ask, Asker, CellRecord, ChargeId, Config, Home, Node, Recording, Remember, Renewed, Row,
    regions::{self, Traffic, wire},
};
use acequia_rights::{
    Incarnation, MemberId,
    versions::{CellSecret, Draft, Member},
};

/// A millisecond.
pub const MS: u64 = 1_000_000;
/// A second.
pub const S: u64 = 1_000 * MS;
/// A whole number of minutes, days and so on, so that windows begin with the world.
pub const START: u64 = 1_699_920_000 * S;

/// Round trips in milliseconds by pair of regions: five places on five continents.
const ROUNDS_MS: [[u64; 5]; 5] = [
    [0, 65, 90, 160, 220],
    [65, 0, 140, 120, 190],
    [90, 140, 0, 245, 320],
    [160, 120, 245, 0, 80],
    [220, 190, 320, 80, 0],
];
/// The mean of the round trips, in seconds.
pub const MEAN_ROUND_S: f64 = 0.163;

/// Rows as bytes, which take a tenth of the memory.
type Disk = BTreeMap<(LimitId, CellTag), Box<[u8]>>;

#[derive(Debug)]
struct Place {
    node: Arc<Node>,
    asker: Asker,
    disk: Disk,
}

/// Frames and entries that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
    /// Loans given.
    pub lent: u64,
    /// Transfers of rights.
    pub given: u64,
    /// Entries of each kind, if they are counted: see [`Sent::KINDS`].
    pub entries: [u64; 8],
    /// Bytes of advertisements.
    pub news_bytes: u64,
    /// Bytes of introductions.
    pub introduced_bytes: u64,
}

impl Sent {
    /// The kinds that [`Sent::entries`] counts.
    pub const KINDS: [&str; 8] = ["news", "introduce", "grant", "return", "ask", "give", "got", "other"];

    /// What was sent after `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut entries = self.entries;
        entries.iter_mut().zip(&before.entries).for_each(|(now, then)| *now -= then);
        Self {
            frames: self.frames - before.frames,
            bytes: self.bytes - before.bytes,
            lent: self.lent - before.lent,
            given: self.given - before.given,
            entries,
            news_bytes: self.news_bytes - before.news_bytes,
            introduced_bytes: self.introduced_bytes - before.introduced_bytes,
        }
    }
}

/// Regions, and the frames between them.
#[derive(Debug)]
pub struct World {
    /// The steady and wall clock of all nodes.
    pub now: u64,
    places: Vec<Place>,
    /// Frames on their way, by arrival time and order: (from, to, bytes).
    wire: BTreeMap<(u64, u64), (usize, usize, Vec<u8>)>,
    sent: Sent,
    reads_frames: bool,
    /// Pairs that are cut off from each other.
    pub cut: Vec<(usize, usize)>,
}

fn incarnation(region: usize) -> Incarnation {
    Incarnation { member: MemberId(region as u16), node: 0, number: 1 }
}

impl World {
    /// Regions that share these limits, once all is settled.
    ///
    /// # Panics
    /// Panics if the limits are invalid.
    pub fn new(regions: usize, specs: &[LimitSpec], memory_bytes: usize) -> Self {
        let now = Now::at(START - 5 * S);
        let places = (0..regions)
            .map(|region| {
                let home = Home { incarnation: incarnation(region), loan_ttl_ns: regions::LOAN_TTL_NS };
                let config = Config {
                    key: HashKey([7; 16]),
                    memory_bytes,
                    durable: true,
                    after_crash: None,
                    home: Some(home),
                };
                let node = Arc::new(Node::new(config));
                node.resume_home(Vec::new(), now, |_| Vec::new()).expect("an empty disk");
                (0..regions).for_each(|other| node.meet(incarnation(other)));
                Place { asker: node.asker(), node, disk: Disk::new() }
            })
            .collect();
        let mut world = Self {
            now: now.steady_ns,
            places,
            wire: BTreeMap::new(),
            sent: Sent::default(),
            reads_frames: true,
            cut: Vec::new(),
        };
        let members = (0..regions)
            .map(|region| {
                let name = format!("r{region}");
                (MemberId(region as u16), Member { weight: 1, incarnation: incarnation(region), name })
            })
            .collect();
        let draft = Draft {
            members,
            fenced: Vec::new(),
            clock_error_ns: 2 * MS,
            drift_ppm: 200,
            key: CellSecret([7; 16]),
            limits: regions::limits_to_bytes(specs).expect("limits"),
            revoked: Default::default(),
        };
        let version = world.places[0].node.propose(draft, now.wall_ns).expect("a version");
        world.places[0].node.adopt(version, now, |_| Some(Vec::new())).expect("adopted");
        while world.now < START {
            world.begin_step();
            world.end_step();
        }
        world
    }

    /// Counts frames without reading them, which is faster for many frames.
    pub const fn skim(&mut self) {
        self.reads_frames = false;
    }

    /// Advances a millisecond, and handles the frames that have arrived.
    pub fn begin_step(&mut self) {
        self.now += MS;
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (from, to, bytes) = entry.remove();
            let now = Now::at(self.now);
            self.places[to].node.handle(MemberId(from as u16), &bytes, now).expect("a frame that reads");
        }
    }

    /// Whether a request in a region passes.
    pub fn ask(&mut self, region: usize, limit_key: &str) -> bool {
        let entries = [("key", limit_key)];
        let request = Request::new("shop", &entries);
        self.places[region].asker.check(&request, Now::at(self.now), Ask::CHECK).allowed
    }

    /// Takes a slot in a region, under a new name. Returns when the slot lapses; `None` if there is none.
    ///
    /// # Panics
    /// Panics if the name was used before.
    pub fn take(&mut self, region: usize, limit_key: &str, name: u128) -> Option<u64> {
        let entries = [("key", limit_key)];
        let recording = Recording {
            id: ChargeId(name),
            fingerprint: 0,
            is_repeatable: false,
            reserve: None,
            owner: 0,
            remember: Remember::IfHeld,
        };
        let (request, now) = (Request::new("shop", &entries), Now::at(self.now));
        let asker = &mut self.places[region].asker;
        let answer = asker.check_recorded(&request, now, Ask::CHECK, &recording).expect("a new name");
        answer.charge.map(|charge| self.now + charge.lapses_in_ns)
    }

    /// Renews a slot. Returns when it lapses; `None` if it has lapsed.
    pub fn renew(&self, region: usize, name: u128) -> Option<u64> {
        match self.places[region].node.renew(ChargeId(name), Now::at(self.now)) {
            Renewed::Done { lapses_in_ns, .. } => Some(self.now + lapses_in_ns),
            _ => None,
        }
    }

    /// Releases a slot.
    pub fn release(&self, region: usize, name: u128) {
        // A slot may have lapsed before.
        let _ = self.places[region].node.settle(ChargeId(name), None, Now::at(self.now));
    }

    /// Nodes tick, write and send.
    pub fn end_step(&mut self) {
        let now = Now::at(self.now);
        for region in 0..self.places.len() {
            let Place { node, disk, .. } = &mut self.places[region];
            if self.now.is_multiple_of(10 * MS) || node.calls() {
                node.tick(now, |id| Some(rows(disk, id))).expect("a version that fits");
            }
            while let Some((batch, rows)) = node.take_rows() {
                for row in rows {
                    match row.state {
                        Some(state) => disk.insert((row.limit, row.tag), to_bytes(&state)),
                        None => disk.remove(&(row.limit, row.tag)),
                    };
                }
                node.committed(batch);
            }
            self.send(region);
        }
    }

    fn send(&mut self, from: usize) {
        while let Some((to, bytes)) = self.places[from].node.poll(Now::at(self.now)) {
            let to = usize::from(to.0);
            self.sent.frames += 1;
            self.sent.bytes += bytes.len() as u64;
            if self.reads_frames {
                self.read(&bytes);
            }
            if !self.cut.contains(&(from.min(to), from.max(to))) {
                let arrives = self.now + ROUNDS_MS[from][to] * MS / 2;
                self.wire.insert((arrives, self.sent.frames), (from, to, bytes));
            }
        }
    }

    fn read(&mut self, bytes: &[u8]) {
        use wire::FrameEntry;
        for entry in wire::read(bytes).expect("a frame that reads").entries {
            let kind = match entry {
                FrameEntry::Advertisement { id, demand, holds, left, stands, owed } => {
                    let numbers = [demand, holds, left, owed].into_iter().chain(stands);
                    let words: u64 = numbers.map(|rough| varint_bytes(u64::from(rough.0))).sum();
                    self.sent.news_bytes += 2 + varint_bytes(u64::from(id.0)) + words;
                    0
                }
                FrameEntry::Introduce { id, limit, tag, .. } => {
                    self.sent.introduced_bytes +=
                        1 + varint_bytes(u64::from(id.0)) + varint_wide(limit.0) + varint_wide(tag.0) + 1;
                    1
                }
                FrameEntry::Grant { .. } => 2,
                FrameEntry::Return { .. } => 3,
                FrameEntry::Ask { .. } => 4,
                FrameEntry::Give { .. } => 5,
                FrameEntry::Got { .. } => 6,
                _ => 7,
            };
            self.sent.entries[kind] += 1;
        }
    }

    /// What was sent so far.
    pub fn sent(&self) -> Sent {
        let traffic = self.traffic();
        let lent = traffic.iter().map(|t| t.lent).sum();
        let given = traffic.iter().map(|t| t.given).sum();
        Sent { lent, given, ..self.sent }
    }

    /// The most loans that one cell of one region had at once.
    pub fn loans_max(&self) -> u64 {
        self.traffic().iter().map(|t| t.loans_max).max().unwrap_or(0)
    }

    /// The counters of each node.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.places.iter().map(|place| place.node.traffic()).collect()
    }

    /// The number of active cells in all regions.
    pub fn warm_cells(&self) -> usize {
        let now = Now::at(self.now);
        let all = self.places.iter().filter_map(|place| place.node.membership(now));
        all.map(|membership| membership.active_cells).sum()
    }
}

fn rows(disk: &Disk, id: LimitId) -> Vec<Row> {
    let all = (id, CellTag(0))..=(id, CellTag(u128::MAX));
    disk.range(all)
        .map(|((limit, tag), bytes)| {
            let state = postcard::from_bytes(bytes).expect("a row that was written");
            Row { limit: *limit, tag: *tag, state: Some(state) }
        })
        .collect()
}

fn to_bytes(state: &CellRecord) -> Box<[u8]> {
    postcard::to_allocvec(state).expect("a row that can be written").into()
}

/// The length of a number in postcard, in bytes.
fn varint_bytes(value: u64) -> u64 {
    varint_wide(u128::from(value))
}

fn varint_wide(value: u128) -> u64 {
    u64::from((128 - value.leading_zeros()).div_ceil(7).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_round_trips_have_the_documented_mean() {
        let all: Vec<u64> = (0..5).flat_map(|a| (a + 1..5).map(move |b| ROUNDS_MS[a][b])).collect();
        assert_eq!(all.iter().sum::<u64>(), 1_630);
        assert!((0..5).all(|a| (0..5).all(|b| ROUNDS_MS[a][b] == ROUNDS_MS[b][a])));
    }
}
