//! Nodes on a simulated network with in-memory disks, for stories.
use std::{collections::BTreeMap, sync::Arc};

use acequia_limits::{
    CellTag, HashKey, Limit, LimitId, Now, Request, Verdict,
    limit::{FixedWindowSpec, LimitSpec, TokenBucketSpec},
};
use acequia_node::{
    Ask, Asker, CellRecord, CellView, ChargeId, Config, Holding, Home, Membership, Node, Recording, Remember,
    Reserve, Row, Settled, regions,
};
use acequia_rights::{
    Incarnation, MemberId,
    versions::{CellSecret, Draft, Member},
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

pub(crate) type Disk = BTreeMap<(LimitId, CellTag), CellRecord>;

pub(crate) struct Place {
    pub(crate) node: Arc<Node>,
    asker: Asker,
    disk: Disk,
    /// The number of written batches.
    pub(crate) batches: u64,
    pub(crate) admitted: u64,
}

/// Frames on their way, by arrival time and order: (from, to, bytes).
type Wire = BTreeMap<(u64, u64), (usize, usize, Vec<u8>)>;

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) places: Vec<Place>,
    wire: Wire,
    sent: u64,
    one_way_ns: u64,
    /// Bandwidth of a link in each direction, and when the link is free again: frames queue behind each
    /// other.
    pub(crate) bytes_per_s: Option<u64>,
    busy_until: BTreeMap<(usize, usize), u64>,
    /// Pairs (from, to) whose frames are lost from now on.
    pub(crate) cut: Vec<(usize, usize)>,
    /// How far each region's wall clock is ahead.
    pub(crate) ahead: Vec<u64>,
    /// Frames of cut links, if they are recorded.
    pub(crate) caught: Option<Vec<(usize, usize, Vec<u8>)>>,
    specs: Vec<LimitSpec>,
}

pub(crate) fn incarnation(region: usize) -> Incarnation {
    Incarnation { member: MemberId(region as u16), node: 0, number: 1 }
}

impl World {
    pub(crate) fn new(regions: usize, specs: &[LimitSpec], one_way_ns: u64) -> Self {
        let now = Now::at(START);
        let places = (0..regions)
            .map(|region| {
                let home = Home { incarnation: incarnation(region), loan_ttl_ns: regions::LOAN_TTL_NS };
                let config = Config {
                    // Each region has its own key until it receives the catalogue's.
                    key: HashKey([region as u8; 16]),
                    memory_bytes: 64 << 20,
                    durable: true,
                    after_crash: None,
                    home: Some(home),
                };
                let node = Arc::new(Node::new(config));
                node.resume_home(Vec::new(), now, |_| Vec::new()).expect("an empty disk");
                (0..regions).for_each(|other| node.meet(incarnation(other)));
                Place { asker: node.asker(), node, disk: Disk::new(), batches: 0, admitted: 0 }
            })
            .collect();
        let world = Self {
            now: START,
            places,
            wire: Wire::new(),
            sent: 0,
            one_way_ns,
            bytes_per_s: None,
            busy_until: BTreeMap::new(),
            cut: Vec::new(),
            ahead: vec![0; regions],
            caught: None,
            specs: specs.to_vec(),
        };
        let members = (0..regions)
            .map(|region| {
                (
                    MemberId(region as u16),
                    Member { weight: 1, incarnation: incarnation(region), name: format!("r{region}") },
                )
            })
            .collect();
        let draft = Draft {
            members,
            fenced: Vec::new(),
            clock_error_ns: 0,
            drift_ppm: 1_000,
            key: CellSecret([7; 16]),
            limits: regions::limits_to_bytes(specs).expect("limits"),
            revoked: Default::default(),
        };
        let version = world.places[0].node.propose(draft, START).expect("a version");
        world.places[0].node.adopt(version, now, |_| Some(Vec::new())).expect("adopted");
        world
    }

    /// Lets time pass in milliseconds. `demand` returns the number of requests for each region and
    /// millisecond.
    pub(crate) fn run(&mut self, ns: u64, mut demand: impl FnMut(usize, u64) -> u64) {
        for ms in 0..ns / MS {
            self.now += MS;
            self.arrive();
            for region in 0..self.places.len() {
                let now = self.now_of(region);
                for _ in 0..demand(region, ms) {
                    self.ask(region, "k");
                }
                let place = &mut self.places[region];
                if ms % 10 == 0 || place.node.calls() {
                    let disk = &place.disk;
                    place.node.tick(now, |id| Some(rows(disk, id))).expect("a version that fits");
                }
                self.flush(region);
                self.send(region);
            }
        }
    }

    pub(crate) fn ask(&mut self, region: usize, key: &str) -> bool {
        self.ask_entries(region, &[("key", key)])
    }

    /// Asks for several units at once.
    pub(crate) fn ask_for(&mut self, region: usize, key: &str, cost: u64) -> bool {
        let now = self.now_of(region);
        let place = &mut self.places[region];
        let entries = [("key", key)];
        let request = Request { cost, ..Request::new("shop", &entries) };
        place.asker.check(&request, now, Ask::CHECK).allowed
    }

    /// Records units that were spent already. Returns how many of them the region did not have.
    pub(crate) fn report(&mut self, region: usize, key: &str, cost: u64) -> u64 {
        let now = self.now_of(region);
        let place = &mut self.places[region];
        let entries = [("key", key)];
        let request = Request { cost, ..Request::new("shop", &entries) };
        place.asker.check(&request, now, Ask::REPORT).limits[0].late.owed
    }

    /// Reserves some units, and says at once that the work cost more.
    pub(crate) fn reserve_and_commit(&mut self, region: usize, key: &str, reserved: u64, cost: u64) {
        let now = self.now_of(region);
        let place = &mut self.places[region];
        let entries = [("key", key)];
        let request = Request { cost: reserved, ..Request::new("shop", &entries) };
        let reserve = Some(Reserve { ttl_ns: 60 * S, keeps: false, at_most: false });
        let id = ChargeId(1);
        let recording = Recording {
            id,
            fingerprint: 1,
            is_repeatable: false,
            reserve,
            owner: 0,
            remember: Remember::Always,
        };
        let answer = place.asker.check_recorded(&request, now, Ask::CHECK, &recording).expect("a new id");
        assert!(answer.allowed);
        assert!(matches!(place.node.settle(id, Some(cost), now), Settled::Done { .. }));
    }

    /// Asks for all that a request says.
    pub(crate) fn ask_for_all(&mut self, region: usize, request: &Request<'_>) -> bool {
        let now = self.now_of(region);
        self.places[region].asker.check(request, now, Ask::CHECK).allowed
    }

    pub(crate) fn ask_entries(&mut self, region: usize, entries: &[(&str, &str)]) -> bool {
        let now = self.now_of(region);
        let place = &mut self.places[region];
        let request = Request::new("shop", entries);
        let allowed = place.asker.check(&request, now, Ask::CHECK).allowed;
        place.admitted += u64::from(allowed);
        allowed
    }

    /// Asks like a server that lets denied requests wait. Returns whether the request passed, and after how
    /// many nanoseconds this was known.
    pub(crate) fn ask_patiently(&mut self, region: usize, key: &str) -> (bool, u64) {
        let begun = self.now;
        let entries = [("key", key)];
        let request = Request::new("shop", &entries);
        let (mut ask, mut until) = (Ask::CHECK, u64::MAX);
        loop {
            let now = self.now_of(region);
            let place = &mut self.places[region];
            place.asker.check(&request, now, ask);
            let (answer, catalogue) = place.asker.last();
            let allowed = answer.allowed;
            until = until.min(self.now + place.node.patience_ns(answer, catalogue, u64::MAX, 0));
            place.admitted += u64::from(allowed);
            let news = place.node.news();
            if allowed || self.now >= until {
                return (allowed, self.now - begun);
            }
            while self.now < until && self.places[region].node.news() == news {
                self.run(MS, |_, _| 0);
            }
            ask = Ask::CHECK.again();
        }
    }

    /// An operator's view of the first limit's cell in a region. Charges nothing.
    pub(crate) fn cell(&mut self, region: usize, key: &str) -> CellView {
        let now = self.now_of(region);
        let place = &mut self.places[region];
        let entries = [("key", key)];
        place.asker.check(&Request::new("shop", &entries), now, Ask::PEEK);
        let (answer, catalogue) = place.asker.last();
        place.node.cell(&answer.limits[0], catalogue, now).expect("a limit in force")
    }

    /// A region's holding of the first limit's cell, and the verdict on one more unit. Charges nothing.
    pub(crate) fn peek(&mut self, region: usize, key: &str) -> (Holding, Verdict) {
        let now = self.now_of(region);
        let place = &mut self.places[region];
        let entries = [("key", key)];
        let request = Request::new("shop", &entries);
        let limit = place.asker.check(&request, now, Ask::PEEK).limits[0];
        let id = place.asker.catalogue().limits[0].limit.id;
        (place.node.holding(id, limit.tag, now).expect("a limit that is known"), limit.verdict)
    }

    /// The name of the first limit's cell between regions.
    pub(crate) fn name_of(&mut self, region: usize, key: &str) -> (LimitId, CellTag) {
        let now = self.now_of(region);
        let place = &mut self.places[region];
        let entries = [("key", key)];
        let tag = place.asker.check(&Request::new("shop", &entries), now, Ask::PEEK).limits[0].tag;
        (place.asker.catalogue().limits[0].limit.id, tag)
    }

    fn flush(&mut self, region: usize) {
        let place = &mut self.places[region];
        while let Some((batch, rows)) = place.node.take_rows() {
            place.batches += 1;
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
        /// The most frames on their way to one region, as in the mesh.
        const FRAMES_MAX: usize = 16;
        loop {
            let under_way = |to| self.wire.values().filter(|frame| (frame.0, frame.1) == (from, to)).count();
            let may_send =
                |to: MemberId| self.bytes_per_s.is_none() || under_way(usize::from(to.0)) < FRAMES_MAX;
            let Some((to, bytes)) = self.places[from].node.poll_to(self.now_of(from), may_send) else {
                break;
            };
            self.sent += 1;
            let to = usize::from(to.0);
            if let Some(caught) = &mut self.caught
                && self.cut.contains(&(from, to))
            {
                caught.push((from, to, bytes.clone()));
            }
            if !self.cut.contains(&(from, to)) {
                let left = self.busy_until.entry((from, to)).or_default();
                *left = self.now.max(*left);
                if let Some(bytes_per_s) = self.bytes_per_s {
                    *left += bytes.len() as u64 * S / bytes_per_s;
                }
                self.wire.insert((*left + self.one_way_ns, self.sent), (from, to, bytes));
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
            let _late = node.handle(MemberId(from as u16), &bytes, self.now_of(to));
        }
    }

    pub(crate) fn now_of(&self, region: usize) -> Now {
        Now { steady_ns: self.now, wall_ns: self.now + self.ahead[region] }
    }

    pub(crate) fn disk_of(&self, region: usize) -> Disk {
        self.places[region].disk.clone()
    }

    /// Restarts a region's node after a crash, with its own disk or another.
    pub(crate) fn restart(&mut self, region: usize, disk: Option<Disk>, incarnation: Incarnation) {
        let now = self.now_of(region);
        let config = Config {
            key: HashKey([region as u8; 16]),
            memory_bytes: 64 << 20,
            durable: true,
            after_crash: Some(now),
            home: Some(Home { incarnation, loan_ttl_ns: regions::LOAN_TTL_NS }),
        };
        let node = Arc::new(Node::new(config));
        let place = &mut self.places[region];
        // The schedule is on the disk, too.
        let schedule = if disk.is_none() { place.node.schedule() } else { Vec::new() };
        if let Some(disk) = disk {
            place.disk = disk;
        }
        node.resume_home(schedule, now, |id| rows(&place.disk, id)).expect("its disk");
        (0..self.ahead.len()).for_each(|other| node.meet(self::incarnation(other)));
        place.asker = node.asker();
        place.node = node;
        self.flush(region);
    }

    /// A region makes another version.
    pub(crate) fn change(
        &mut self,
        by: usize,
        specs: &[LimitSpec],
        members: &[(Incarnation, u32)],
        fenced: &[Incarnation],
        error_ns: u64,
    ) {
        let now = self.now_of(by);
        let members = members.iter().map(|(incarnation, weight)| {
            (incarnation.member, Member { weight: *weight, incarnation: *incarnation, name: String::new() })
        });
        let draft = Draft {
            members: members.collect(),
            fenced: fenced
                .iter()
                .map(|w| acequia_rights::versions::Fence { incarnation: *w, wall_ns: now.wall_ns })
                .collect(),
            clock_error_ns: error_ns,
            drift_ppm: 1_000,
            key: CellSecret([7; 16]),
            limits: regions::limits_to_bytes(specs).expect("limits"),
            revoked: Default::default(),
        };
        self.specs = specs.to_vec();
        let node = &self.places[by].node;
        let version = node.propose(draft, now.wall_ns).expect("a version");
        node.adopt(version, now, |_| Some(Vec::new())).expect("adopted");
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

    /// The number of entries that regions have sent.
    pub(crate) fn said(&self) -> u64 {
        self.traffic().iter().map(|traffic| traffic.entries_out).sum()
    }

    pub(crate) fn traffic(&self) -> Vec<regions::Traffic> {
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

pub(crate) fn sliding(name: &str, limit: u64, window: &str) -> LimitSpec {
    let json = format!("{{\"limit\":{limit},\"window\":\"{window}\"}}");
    LimitSpec { sliding_window: Some(serde_json::from_str(&json).expect("a window")), ..spec(name) }
}
