//! Nodes, clocks, a network and an operator, all from one seed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use acequia_limits::{Now, RATE_PARTS};
use acequia_rights::{
    Ack, Incarnation, MemberId, Version, VersionId, Versions, splitmix,
    versions::{Adopted, CellSecret, Draft, Fence, Lasts, Member, ShareKind, VersionsRecord},
};

const MS: u64 = 1_000_000;
/// ε: every wall clock is within this of true time.
const ERROR_NS: u64 = 20 * MS;
/// D: a twentieth, so that a short history shows its effect.
const DRIFT_PPM: u32 = 50_000;
/// How long use of a sliding window or a bucket counts.
const HORIZON_NS: u64 = 150 * MS;
/// A short and a long window.
const WINDOWS_NS: [u64; 2] = [200 * MS, 1_500 * MS];
const SALTS: [u32; 2] = [1, 0xDEAD_BEEF];
/// True time at the start, late enough for clocks and windows before it.
const START_NS: u64 = 1_000_000 * MS;
const STUCK: &str = "does not recover";

/// A violation that a check caught.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Caught(String);

impl Caught {
    /// Whether too much was given away, and not only too little.
    #[cfg(feature = "mutations")]
    pub(crate) fn is_unsafe(&self) -> bool {
        !self.0.starts_with(STUCK)
    }
}

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn stuck<T>(what: &str) -> Result<T, Caught> {
    Err(Caught(format!("{STUCK}: {what}")))
}

/// How often each event happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    pub(crate) fn all_happened(&self) -> bool {
        let all = [
            "budget",
            "limits",
            "weights",
            "join",
            "leave",
            "evict",
            "lost disk",
            "take over",
            "crash",
            "restart",
            "cut",
            "lost",
            "twice",
            "raised",
            "refused",
            "two authorities",
        ];
        all.iter().all(|what| self.0.contains_key(what))
    }
}

struct Random(splitmix::Random);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize])
    }
}

struct Node {
    /// `None` while the node is down.
    versions: Option<Versions>,
    disk: VersionsRecord,
    /// The operator keeps the node down.
    fenced: bool,
    /// The node has adopted a version that contains the limit with long windows.
    knew_long: bool,
    /// The last version of each authority that the node has adopted.
    heard: BTreeMap<Incarnation, VersionId>,
    /// Wall time minus true time.
    wall_off_ns: i64,
    /// The latest wall time that this process has seen.
    latest_wall_ns: u64,
    steady_base_ns: u64,
    steady_since_ns: u64,
    drift_ppm: i64,
}

impl Node {
    fn now(&self, true_ns: u64) -> Now {
        let passed = i128::from(true_ns - self.steady_since_ns);
        let drifted = passed * (1_000_000 + i128::from(self.drift_ppm)) / 1_000_000;
        Now {
            steady_ns: self.steady_base_ns + drifted as u64,
            wall_ns: true_ns.checked_add_signed(self.wall_off_ns).expect("after the epoch"),
        }
    }

    fn store(&mut self, true_ns: u64) {
        let now = self.now(true_ns);
        if let Some(versions) = &mut self.versions {
            self.disk = versions.kept().clone();
            versions.stored(versions.revision(), now);
        }
    }
}

#[derive(Clone)]
enum Message {
    Version(Version),
    Ack(Incarnation, Ack),
}

struct Mail {
    at_ns: u64,
    from: Incarnation,
    to: Incarnation,
    message: Message,
}

/// The budget, and whether a limit with long windows exists beside the one with short windows.
type Limits = (u64, bool);

/// The use of one window.
#[derive(Default)]
struct Used {
    by: BTreeMap<Incarnation, u64>,
    budget: u64,
}

/// One node's use of one bucket at one step.
struct Use {
    true_ns: u64,
    incarnation: Incarnation,
    salt: u32,
    units: u64,
    rate: u32,
    budget: u64,
}

pub(crate) struct World {
    random: Random,
    true_ns: u64,
    nodes: BTreeMap<Incarnation, Node>,
    mail: Vec<Mail>,
    cut: BTreeSet<MemberId>,
    /// By window length, salt and start.
    windows: BTreeMap<(u64, u32, u64), Used>,
    uses: Vec<Use>,
    incarnations: BTreeMap<MemberId, u32>,
    /// Whether the authority has ever moved.
    has_moved: bool,
    /// The last version that each incarnation made.
    made: BTreeMap<Incarnation, VersionId>,
    healing: bool,
    pub(crate) seen: Seen,
    pub(crate) trace: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut world = Self {
            random: Random(splitmix::Random::from_state(seed.wrapping_mul(0xA076_1D64_78BD_642F))),
            true_ns: START_NS,
            nodes: BTreeMap::new(),
            mail: Vec::new(),
            cut: BTreeSet::new(),
            windows: BTreeMap::new(),
            uses: Vec::new(),
            incarnations: BTreeMap::new(),
            has_moved: false,
            made: BTreeMap::new(),
            healing: false,
            seen: Seen::default(),
            trace: 0,
        };
        let count = 2 + world.random.below(4) as u16;
        let incarnations: Vec<Incarnation> = (0..count).map(|region| world.begin(MemberId(region))).collect();
        let members =
            incarnations.iter().map(|&incarnation| (incarnation.member, world.member(incarnation))).collect();
        let limits = (100, world.random.percent(20));
        assert!(world.issue(incarnations[0], false, draft(members, Vec::new(), limits)));
        world
    }

    /// A new incarnation of a region, with an empty disk.
    fn begin(&mut self, region: MemberId) -> Incarnation {
        let incarnation = *self.incarnations.entry(region).and_modify(|n| *n += 1).or_default();
        let incarnation = Incarnation { member: region, node: 0, number: incarnation };
        let versions = Versions::new(incarnation);
        let node = Node {
            disk: versions.kept().clone(),
            versions: Some(versions),
            fenced: false,
            knew_long: false,
            heard: BTreeMap::new(),
            wall_off_ns: 0,
            latest_wall_ns: 0,
            steady_base_ns: self.random.below(10_000) * MS,
            steady_since_ns: self.true_ns,
            drift_ppm: self.random.below(2 * u64::from(DRIFT_PPM) + 1) as i64 - i64::from(DRIFT_PPM),
        };
        self.nodes.insert(incarnation, node);
        incarnation
    }

    fn member(&mut self, incarnation: Incarnation) -> Member {
        Member { weight: 1 + self.random.below(9) as u32, incarnation, name: String::new() }
    }

    fn issue(&mut self, authority: Incarnation, takes_over: bool, draft: Draft) -> bool {
        let true_ns = self.true_ns;
        let Some(node) = self.nodes.get_mut(&authority) else { return false };
        let now = node.now(true_ns);
        let Some(versions) = &mut node.versions else { return false };
        let made = match takes_over {
            true => versions.take_over(draft, now.wall_ns),
            false => versions.propose(draft, now.wall_ns),
        };
        let version_id = made.as_ref().ok().map(|version| version.version_id);
        let adopted = made.and_then(|version| versions.adopt(version, now));
        versions.counts_for(lasts(versions));
        // The version is on disk before it is sent: a version id must not be used twice.
        node.store(true_ns);
        if let (Ok(_), Some(version_id)) = (&adopted, version_id) {
            node.heard.insert(authority, version_id);
            self.has_moved |= takes_over;
            self.made.insert(authority, version_id);
        }
        adopted.is_ok()
    }

    /// Whether the limit with long windows may come into force. After a change of authority, others may not
    /// have heard of its earlier use, and may have forgotten allocations that count for it. (See "Limits and
    /// assumptions" in the crate's README.)
    fn is_known_what_was_used(&self) -> bool {
        !self.has_moved || !self.nodes.values().any(|node| node.knew_long)
    }

    /// Whether an operator at a node may fence a region's incarnations. The node must know each version that
    /// any of these made: others may use that version, and the incarnation may have used limits that nobody
    /// else has heard of.
    fn can_be_fenced(&self, region: MemberId, at: Incarnation) -> bool {
        let heard = &self.nodes[&at].heard;
        let mut all =
            self.nodes.iter().filter(|(incarnation, node)| incarnation.member == region && !node.fenced);
        all.all(|(incarnation, _)| self.made.get(incarnation) <= heard.get(incarnation))
    }

    pub(crate) fn step(&mut self) -> Result<(), Caught> {
        self.true_ns += (1 + self.random.below(15)) * MS;
        self.trace = self.trace.wrapping_mul(31).wrapping_add(self.random.next());
        self.clocks();
        self.deliver()?;
        if !self.healing {
            self.operate();
            self.fail();
        }
        self.work();
        self.spend();
        self.check()
    }

    fn clocks(&mut self) {
        for node in self.nodes.values_mut() {
            if self.random.percent(20) {
                node.wall_off_ns = self.random.below(2 * ERROR_NS + 1) as i64 - ERROR_NS as i64;
            }
            node.latest_wall_ns = node.latest_wall_ns.max(node.now(self.true_ns).wall_ns);
        }
    }

    fn deliver(&mut self) -> Result<(), Caught> {
        let true_ns = self.true_ns;
        let (due, later): (Vec<Mail>, Vec<Mail>) =
            std::mem::take(&mut self.mail).into_iter().partition(|mail| mail.at_ns <= true_ns);
        self.mail = later;
        for Mail { from, to, message, .. } in due {
            if self.cut.contains(&from.member) || self.cut.contains(&to.member) {
                continue;
            }
            let Some(node) = self.nodes.get_mut(&to) else { continue };
            let now = node.now(true_ns);
            let Some(versions) = &mut node.versions else { continue };
            let front =
                |versions: &Versions| versions.progress().map(|progress| progress.allocation_effective);
            let version_id = |versions: &Versions| versions.version().map(|version| version.version_id);
            let (old_front, old_mark) = (front(versions), version_id(versions));
            match message {
                Message::Version(version) => {
                    let made = (version.authority, version.version_id);
                    let rival = versions.version().is_some_and(|held| {
                        held.version_id.epoch == version.version_id.epoch
                            && held.authority != version.authority
                    });
                    match versions.adopt(version, now) {
                        Ok(Adopted::New { .. }) => {
                            node.heard.insert(made.0, made.1);
                            versions.counts_for(lasts(versions));
                            self.seen.count("adopted");
                        }
                        Ok(Adopted::Known) => {}
                        Err(_) => self.seen.count(if rival { "two authorities" } else { "refused" }),
                    }
                }
                Message::Ack(incarnation, ack) => {
                    versions.learn_ack(incarnation, ack, now);
                    if front(versions) > old_front {
                        self.seen.count("raised");
                    }
                }
            }
            if version_id(versions) < old_mark {
                return Err(Caught(format!("{to:?} went back from {old_mark:?}")));
            }
        }
        Ok(())
    }

    /// Nodes write, conform, and send messages to each other.
    fn work(&mut self) {
        let all: Vec<Incarnation> = self.nodes.keys().copied().collect();
        for &incarnation in &all {
            let true_ns = self.true_ns;
            let (store, conform, settle) =
                (self.random.percent(30), self.random.percent(40), self.random.percent(5));
            let Some(node) = self.nodes.get_mut(&incarnation) else { continue };
            let now = node.now(true_ns);
            let latest = node.latest_wall_ns;
            if let Some(versions) = &mut node.versions {
                if let Some(due) = versions.ack_due().filter(|_| conform) {
                    versions.conform(due, latest);
                }
                if settle {
                    versions.settle(lasts(versions), now);
                }
            }
            if store {
                node.store(true_ns);
            }
            self.tell(incarnation, &all);
        }
    }

    fn tell(&mut self, from: Incarnation, all: &[Incarnation]) {
        let (Some(to), Some(versions)) = (self.random.pick(all), &self.nodes[&from].versions) else { return };
        let own = versions.own_ack().map(|ack| Message::Ack(from, ack));
        let passed_on: Vec<(Incarnation, Ack)> = versions.acks().collect();
        let version = versions.version().cloned().map(Message::Version);
        let passed_on = self.random.pick(&passed_on).map(|(incarnation, ack)| Message::Ack(incarnation, ack));
        for message in [own, version, passed_on].into_iter().flatten() {
            let copies = match self.random.below(100) {
                _ if self.healing => 1,
                0..20 => {
                    self.seen.count("lost");
                    0
                }
                20..35 => {
                    self.seen.count("twice");
                    2
                }
                _ => 1,
            };
            for _ in 0..copies {
                let late = if self.random.percent(10) && !self.healing { 600 } else { 40 };
                let at_ns = self.true_ns + self.random.below(late) * MS;
                self.mail.push(Mail { at_ns, from, to, message: message.clone() });
            }
        }
    }

    /// An operator gives a command to a node that may obey it.
    fn operate(&mut self) {
        if !self.random.percent(7) {
            return;
        }
        let running = self.nodes.iter().filter(|(_, node)| node.versions.is_some());
        let running: Vec<Incarnation> = running.map(|(&incarnation, _)| incarnation).collect();
        let Some(at) = self.random.pick(&running) else { return };
        let Some(versions) = &self.nodes[&at].versions else { return };
        let Some(held) = versions.version().cloned() else { return };
        // Most commands go to the authority.
        let takes_over = held.authority != at;
        if !versions.owns(at) || (takes_over && !self.random.percent(12)) {
            return;
        }
        let Some(versions) = &self.nodes[&at].versions else { return };
        let mut members = held.members.clone();
        members.retain(|_, member| !versions.closed(member.incarnation));
        let (mut fenced, mut limits, mut done) = (Vec::new(), limits_of(&held), Vec::new());
        for _ in 0..1 + self.random.below(2) {
            let others: Vec<MemberId> =
                members.keys().copied().filter(|&region| region != at.member).collect();
            let other = self.random.pick(&others);
            match (self.random.below(14), other) {
                (0..3, _) => {
                    limits.0 = [7, 40, 100, 101, 250][self.random.below(5) as usize];
                    done.push("budget");
                }
                (12.., _) if limits.1 || self.is_known_what_was_used() => {
                    limits.1 = !limits.1;
                    done.push("limits");
                }
                (3..6, _) => {
                    for member in members.values_mut() {
                        member.weight = 1 + self.random.below(9) as u32;
                    }
                    done.push("weights");
                }
                (6..8, _) if members.len() < 6 => {
                    let region = MemberId(self.random.below(8) as u16);
                    let can_be_fenced = self.can_be_fenced(region, at);
                    if !members.contains_key(&region) && fenced.is_empty() && can_be_fenced {
                        self.end(region, &mut fenced, at);
                        let incarnation = self.begin(region);
                        members.insert(region, self.member(incarnation));
                        done.push("join");
                    }
                }
                (8, Some(region)) => {
                    members.remove(&region);
                    done.push("leave");
                }
                (9..12, Some(region)) if self.can_be_fenced(region, at) => {
                    self.end(region, &mut fenced, at);
                    if self.random.percent(50) {
                        let incarnation = self.begin(region);
                        members.insert(region, self.member(incarnation));
                        done.push("lost disk");
                    } else {
                        members.remove(&region);
                        done.push("evict");
                    }
                }
                _ => {}
            }
        }
        if self.issue(at, takes_over, draft(members, fenced, limits)) {
            if takes_over {
                done.push("take over");
            }
            for what in done {
                self.seen.count(what);
            }
        }
    }

    /// All incarnations of a region end for good. The operator at `at` notes the time by the clock there.
    fn end(&mut self, region: MemberId, fenced: &mut Vec<Fence>, at: Incarnation) {
        let wall_ns = self.nodes[&at].now(self.true_ns).wall_ns;
        for (&incarnation, node) in
            self.nodes.iter_mut().filter(|(incarnation, _)| incarnation.member == region)
        {
            if !node.fenced && !fenced.iter().any(|fence| fence.incarnation == incarnation) {
                fenced.push(Fence { incarnation, wall_ns });
            }
            node.versions = None;
            node.fenced = true;
        }
    }

    fn fail(&mut self) {
        let all: Vec<Incarnation> = self.nodes.keys().copied().collect();
        for incarnation in all {
            let (crash, restart) = (self.random.below(1_000) < 8, self.random.percent(8));
            let Some(node) = self.nodes.get_mut(&incarnation) else { continue };
            if node.versions.is_some() && crash {
                node.versions = None;
                self.seen.count("crash");
            } else if restart {
                self.restart(incarnation);
            }
        }
        if self.random.percent(2) {
            let region = MemberId(self.random.below(8) as u16);
            if !self.cut.remove(&region) {
                self.cut.insert(region);
                self.seen.count("cut");
            }
        }
    }

    fn restart(&mut self, incarnation: Incarnation) {
        let (base, true_ns) = (self.random.below(10_000) * MS, self.true_ns);
        let Some(node) = self.nodes.get_mut(&incarnation) else { return };
        if node.fenced || node.versions.is_some() {
            return;
        }
        node.steady_base_ns = base;
        node.steady_since_ns = true_ns;
        let now = node.now(true_ns);
        node.latest_wall_ns = now.wall_ns;
        node.versions = Some(Versions::restore(node.disk.clone(), now));
        self.seen.count("restart");
    }

    /// Every running node uses its whole share of every cell.
    fn spend(&mut self) {
        let true_ns = self.true_ns;
        for (&incarnation, node) in &mut self.nodes {
            let Some(versions) = &node.versions else { continue };
            let Some(version) = versions.version() else { continue };
            let ((budget, has_long), now) = (limits_of(version), node.now(true_ns));
            node.knew_long |= has_long;
            for salt in SALTS {
                let kind = ShareKind::Bucket { steady_ns: now.steady_ns, horizon_ns: HORIZON_NS };
                let part = versions.share(incarnation, budget, salt, kind);
                if part.units > 0 || part.rate > 0 {
                    let (units, rate) = (part.units, part.rate);
                    self.uses.push(Use { true_ns, incarnation, salt, units, rate, budget });
                }
                for window_ns in &WINDOWS_NS[..1 + usize::from(has_long)] {
                    let window_ns = *window_ns;
                    let stagger = u64::from(salt) % window_ns;
                    let start_wall_ns = (now.wall_ns - stagger) / window_ns * window_ns + stagger;
                    let kind = ShareKind::Window { start_wall_ns, lasts_ns: window_ns };
                    let units = versions.share(incarnation, budget, salt, kind).units;
                    if units > 0 {
                        let used = self.windows.entry((window_ns, salt, start_wall_ns)).or_default();
                        let by = used.by.entry(incarnation).or_default();
                        *by = units.max(*by);
                        used.budget = used.budget.max(budget);
                    }
                }
            }
        }
    }

    fn check(&mut self) -> Result<(), Caught> {
        let true_ns = self.true_ns;
        for (&(window_ns, ..), used) in &self.windows {
            let sum: u64 = used.by.values().sum();
            if sum > used.budget {
                let (budget, ms) = (used.budget, window_ns / MS);
                return Err(Caught(format!("{sum} of {budget} in a window of {ms} ms")));
            }
        }
        self.windows.retain(|&(window_ns, _, start), _| start + window_ns + 10 * ERROR_NS > true_ns);
        self.uses.retain(|used| used.true_ns + HORIZON_NS > true_ns);
        for salt in SALTS {
            let mut most: BTreeMap<Incarnation, (u64, u32)> = BTreeMap::new();
            let mut budget = 0;
            for used in self.uses.iter().filter(|used| used.salt == salt) {
                let (units, rate) = most.entry(used.incarnation).or_default();
                (*units, *rate) = (used.units.max(*units), used.rate.max(*rate));
                budget = budget.max(used.budget);
            }
            let (units, rate) = most.values().fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
            if units > budget || rate > RATE_PARTS {
                let percent = u64::from(rate) * 100 / u64::from(RATE_PARTS);
                return Err(Caught(format!("{units} of {budget} and {percent} % of the rate in a horizon")));
            }
        }
        Ok(())
    }

    /// The faults stop. An operator repairs what only an operator can, and then everything must recover.
    pub(crate) fn heal(&mut self) -> Result<(), Caught> {
        self.healing = true;
        self.cut.clear();
        for incarnation in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.restart(incarnation);
        }
        for _ in 0..4 {
            self.run(120)?;
            if !self.mend()? {
                break;
            }
        }
        self.run(700)?;
        self.recovered()
    }

    fn run(&mut self, steps: u32) -> Result<(), Caught> {
        (0..steps).try_for_each(|_| self.step())
    }

    /// Repairs what only an operator can: members and leavers that will not return, two authorities in one
    /// epoch, and incarnations that only one of two authorities closed. Returns whether there was anything to
    /// repair.
    fn mend(&mut self) -> Result<bool, Caught> {
        let Some(newest) = self.newest() else { return Ok(false) };
        let held = self.version(newest);
        let versions = |incarnation: &Incarnation| self.nodes[incarnation].versions.as_ref();
        let running = self.nodes.values().filter_map(|node| node.versions.as_ref()?.version());
        let fork = |version: &Version| {
            version.version_id.epoch == held.version_id.epoch && version.authority != held.authority
        };
        let takes_over = held.authority != newest || running.into_iter().any(fork);

        let named =
            held.members.values().map(|member| member.incarnation).chain(held.leaving.iter().copied());
        let gone: BTreeSet<Incarnation> =
            named.filter(|incarnation| versions(incarnation).is_none()).collect();
        let is_closed = |incarnation: Incarnation| {
            let by = [newest, incarnation];
            by.iter().any(|by| versions(by).is_some_and(|versions| versions.closed(incarnation)))
        };
        let members = held.members.values().map(|member| member.incarnation);
        let closed: Vec<MemberId> = members
            .filter(|&incarnation| is_closed(incarnation))
            .map(|incarnation| incarnation.member)
            .collect();
        if !takes_over && gone.is_empty() && closed.is_empty() {
            return Ok(false);
        }
        let wall_ns = self.nodes[&newest].now(self.true_ns).wall_ns;
        let mut fenced: Vec<Fence> = gone.iter().map(|&incarnation| Fence { incarnation, wall_ns }).collect();
        let mut members = held.members.clone();
        members.retain(|_, member| !gone.contains(&member.incarnation));
        for region in closed {
            self.end(region, &mut fenced, newest);
            let incarnation = self.begin(region);
            members.insert(region, self.member(incarnation));
        }
        let draft = draft(members, fenced, limits_of(&held));
        if self.issue(newest, takes_over, draft) {
            Ok(true)
        } else {
            stuck("the operator's version was refused")
        }
    }

    /// The running member with the newest version, among those that own a share by their own version.
    fn newest(&self) -> Option<Incarnation> {
        let running =
            self.nodes.iter().filter_map(|(&incarnation, node)| Some((incarnation, node.versions.as_ref()?)));
        let members = running.filter(|(incarnation, versions)| versions.owns(*incarnation));
        let newest = members.max_by_key(|(_, versions)| versions.version().map(|version| version.version_id));
        newest.map(|(incarnation, _)| incarnation)
    }

    fn version(&self, incarnation: Incarnation) -> Version {
        self.nodes[&incarnation].versions.as_ref().and_then(Versions::version).cloned().expect("a version")
    }

    fn recovered(&mut self) -> Result<(), Caught> {
        let Some(newest) = self.newest() else {
            // Two authorities evicted each other's members until none was left. This needs a new catalogue.
            self.seen.count("nobody left");
            return Ok(());
        };
        let last = self.version(newest);
        let mut sum = 0;
        for incarnation in last.members.values().map(|member| member.incarnation) {
            let node = self.nodes.get_mut(&incarnation).expect("a node");
            let now = node.now(self.true_ns);
            let Some(versions) = &mut node.versions else { return stuck("a member is down") };
            let Some(progress) = versions.progress() else { return stuck("a member has no version") };
            if (progress.requested, progress.effective) != (last.version_id, last.version_id)
                || progress.allocation_effective != last.allocation
                || !progress.pending.is_empty()
            {
                return stuck(&format!("{incarnation:?}: {progress:?}, newest {:?}", last.version_id));
            }
            versions.settle(lasts(versions), now);
            if versions.allocations().len() != 1 {
                return stuck(&format!("{incarnation:?} has {} allocations", versions.allocations().len()));
            }
            let kind = ShareKind::Window { start_wall_ns: now.wall_ns, lasts_ns: WINDOWS_NS[1] };
            sum += versions.share(incarnation, limits_of(&last).0, SALTS[0], kind).units;
        }
        if last.version_id < VersionId::FIRST || sum != limits_of(&last).0 {
            return stuck(&format!("only {sum} of {} are used", limits_of(&last).0));
        }
        Ok(())
    }
}

fn draft(members: BTreeMap<MemberId, Member>, fenced: Vec<Fence>, limits: Limits) -> Draft {
    Draft {
        members,
        fenced,
        clock_error_ns: ERROR_NS,
        drift_ppm: DRIFT_PPM,
        key: CellSecret([7; 16]),
        limits: (limits.0 << 1 | u64::from(limits.1)).to_le_bytes().to_vec(),
        revoked: Default::default(),
    }
}

fn limits_of(version: &Version) -> Limits {
    let bytes = version.limits.as_slice().try_into().expect("eight bytes");
    let both = u64::from_le_bytes(bytes);
    (both >> 1, both & 1 == 1)
}

/// How long spending under the limits of the adopted version may count.
fn lasts(versions: &Versions) -> Lasts {
    let has_long = versions.version().is_some_and(|version| limits_of(version).1);
    Lasts { windows_ns: WINDOWS_NS[usize::from(has_long)], drains_ns: 0 }
}
