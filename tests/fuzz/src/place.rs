//! Nodes of regions, with disks in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use acequia_limits::{CellTag, HashKey, LimitId, Now, Request, limit::LimitSpec};
use acequia_node::{
    Ask, Asker, CellRecord, Config, Home, Keep, Node, Row,
    pool::RegionSetup,
    regions::{self, wire},
};
use acequia_rights::{
    Ack, Incarnation, MemberId,
    versions::{CellSecret, Draft, Member},
};

pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000 * MS;
pub const START: u64 = 1_700_000_000 * S;
pub const KEY: [u8; 16] = [7; 16];
/// Regions in the catalogue, including the node under test.
pub const REGIONS: u16 = 3;
/// Limits of every algorithm, some with overrides. A request matches one of them, or all.
pub const LIMITS: &str = r#"[
{"name":"bucket","domain":"shop","when":{"to":["bucket","all"]},"by":["key"],"token_bucket":{"rate":"1000/s","burst":300},
 "overrides":[{"key":"b","rate":"90/s"}]},
{"name":"slow","domain":"shop","when":{"to":["slow","all"]},"by":["key"],"token_bucket":{"rate":"60/h","burst":40}},
{"name":"queue","domain":"shop","when":{"to":["queue","all"]},"by":["key"],"leaky_bucket":{"rate":"50/s","queue":20}},
{"name":"window","domain":"shop","when":{"to":["window","all"]},"by":["key"],"fixed_window":{"limit":3000,"window":"1h"}},
{"name":"blink","domain":"shop","when":{"to":["blink","all"]},"by":["key"],"fixed_window":{"limit":90,"window":"1s","stagger":true}},
{"name":"log","domain":"shop","when":{"to":["log","all"]},"by":["key"],"sliding_window":{"limit":30,"window":"10s"}},
{"name":"slots","domain":"shop","when":{"to":["slots","all"]},"by":["key"],"sliding_window":{"limit":900,"window":"2m"}},
{"name":"pair","domain":"shop","when":{"to":["pair","all"]},"by":["key"],"sliding_window":{"limit":500,"window":"1m","approximate":true}},
{"name":"quota","domain":"shop","when":{"to":["quota","all"]},"by":["key"],"quota":{"limit":5000,"per":"day","time_zone":"Europe/Berlin"}}
]"#;

/// The values by which requests select limits.
pub const TO: [&str; 10] =
    ["all", "bucket", "slow", "queue", "window", "blink", "log", "slots", "pair", "quota"];

/// The contents of a disk.
pub type Disk = BTreeMap<(LimitId, CellTag), CellRecord>;

#[derive(Debug)]
pub struct Place {
    pub node: Arc<Node>,
    pub asker: Asker,
    pub disk: Disk,
}

pub fn incarnation(region: u16) -> Incarnation {
    Incarnation { member: MemberId(region), node: 0, number: 1 }
}

pub fn specs() -> Vec<LimitSpec> {
    serde_json::from_str(LIMITS).expect("limits")
}

pub fn config(region: Option<u16>, after_crash: Option<Now>) -> Config {
    let home =
        region.map(|region| Home { incarnation: incarnation(region), loan_ttl_ns: regions::LOAN_TTL_NS });
    Config { key: HashKey(KEY), memory_bytes: 4 << 20, durable: true, after_crash, home }
}

pub fn rows(disk: &Disk, id: LimitId) -> Vec<Row> {
    let all = (id, CellTag(0))..=(id, CellTag(u128::MAX));
    let row = |(&(limit, tag), state): (&(LimitId, CellTag), &CellRecord)| Row {
        limit,
        tag,
        state: Some(state.clone()),
    };
    disk.range(all).map(row).collect()
}

impl Place {
    /// A region on an empty disk.
    pub fn new(region: u16, now: Now) -> Self {
        Self::begin(Node::new(config(Some(region), None)), now)
    }

    /// A node that shares its region's limits with a mate. Their store is out of reach.
    pub fn beside(mate: u16, region: u16, now: Now) -> Self {
        let setup = RegionSetup {
            node: 1,
            process_number: 1,
            nodes: BTreeSet::from([1, 2]),
            members: BTreeMap::from([(1, MemberId(region)), (2, MemberId(mate))]),
            allocation: 0,
            guard_percent: 20,
            clock_error_ns: 5 * MS,
            drift_ppm: 1_000,
            begun_us: 0,
            knows_from_us: Some(0),
            is_new: true,
            rows_hold: BTreeSet::new(),
            generations: Vec::new(),
        };
        Self::begin(Node::among(config(Some(region), None), Keep::default(), setup), now)
    }

    fn begin(node: Node, now: Now) -> Self {
        let node = Arc::new(node);
        node.resume_home(Vec::new(), now, |_| Vec::new()).expect("an empty disk");
        (0..REGIONS).for_each(|other| node.meet(incarnation(other)));
        let mut place = Self { asker: node.asker(), node, disk: Disk::new() };
        place.flush();
        place
    }

    /// Makes and adopts the first version, which contains every region.
    pub fn found(&mut self, now: Now) {
        let draft = draft(regions::limits_to_bytes(&specs()).expect("limits"));
        let version = self.node.propose(draft, now.wall_ns).expect("a version");
        self.node.adopt(version, now, |_| Some(Vec::new())).expect("a version that fits");
        self.flush();
    }

    /// Writes all queued rows to the disk.
    pub fn flush(&mut self) {
        while let Some((batch, rows)) = self.node.take_rows() {
            for row in rows {
                match row.state {
                    Some(state) => self.disk.insert((row.limit, row.tag), state),
                    None => self.disk.remove(&(row.limit, row.tag)),
                };
            }
            self.node.committed(batch);
        }
    }

    /// Sends a request to one limit, or to all.
    pub fn ask(&mut self, to: &str, key: &str, cost: u64, now: Now) -> bool {
        let entries = [("to", to), ("key", key)];
        let mut request = Request::new("shop", &entries);
        request.cost = cost;
        self.asker.check(&request, now, Ask::CHECK).allowed
    }
}

pub fn draft(limits: Vec<u8>) -> Draft {
    let member = |region: u16| {
        let member = Member {
            weight: 1 + u32::from(region),
            incarnation: incarnation(region),
            name: format!("r{region}"),
        };
        (MemberId(region), member)
    };
    Draft {
        members: (0..REGIONS).map(member).collect(),
        fenced: Vec::new(),
        clock_error_ns: 5 * MS,
        drift_ppm: 1_000,
        key: CellSecret(KEY),
        limits,
        revoked: Default::default(),
    }
}

/// A node's acknowledgement of its version.
pub fn ack_of(node: &Node, wall_ns: u64) -> Option<Ack> {
    let version = node.version()?;
    Some(Ack {
        version_id: version.version_id,
        allocation: version.allocation,
        from_wall_ns: wall_ns,
        authority: version.authority,
    })
}

/// Regions that talk, ask and lend for some seconds: their disks, and the frames they sent.
pub fn history() -> (Vec<Place>, Vec<Vec<u8>>) {
    let mut now = Now::at(START);
    let mut places: Vec<Place> = (0..REGIONS).map(|region| Place::new(region, now)).collect();
    places[0].found(now);
    let mut wire = Vec::new();
    for step in 0..300_u64 {
        now = now.later(10 * MS);
        let mut sent = Vec::new();
        for (from, place) in places.iter_mut().enumerate() {
            let busy = if from == 0 { 6 } else { 1 };
            for _ in 0..busy {
                let to = TO[(step % 10) as usize];
                place.ask(to, if step % 3 == 0 { "b" } else { "a" }, 1, now);
            }
            let disk = &place.disk;
            place.node.tick(now, |id| Some(rows(disk, id))).expect("a version that fits");
            place.flush();
            while let Some((to, bytes)) = place.node.poll(now) {
                sent.push((MemberId(from as u16), to, bytes));
            }
        }
        for (from, to, bytes) in sent {
            places[usize::from(to.0)].node.handle(from, &bytes, now).expect("a frame that reads");
            wire.push(bytes);
        }
    }
    (places, wire)
}

/// The header of a frame, if the bytes are a frame.
pub fn header_of(frame: &[u8]) -> Option<wire::FrameHeader> {
    wire::read(frame).ok().map(|frame| frame.header)
}
