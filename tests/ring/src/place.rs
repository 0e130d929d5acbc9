//! One region: its machine, its disk, and the process that runs there, if any.

use std::sync::Arc;

use acequia_limits::{HashKey, LimitId, Now};
use acequia_node::{Asker, Config, Home, Node, Row};
use acequia_rights::{Incarnation, MemberId, Version, VersionId};

use crate::{
    budget::{KEY, S},
    clock::Clock,
    disk::Disk,
};

/// The state of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A process runs.
    Up,
    /// No process runs. The disk is there.
    Down,
    /// No process runs, and this incarnation never runs again, by an operator's word.
    Fenced,
    /// Nothing has run here yet.
    Absent,
}

/// A process and its caller.
#[derive(Debug)]
pub struct Process {
    /// The node.
    pub node: Arc<Node>,
    /// Sends requests to the node.
    pub asker: Asker,
}

/// A region.
#[derive(Debug)]
pub struct Place {
    /// The incarnation that writes here.
    pub incarnation: Incarnation,
    /// The state.
    pub state: State,
    /// The process, if one runs.
    pub process: Option<Process>,
    /// Its disk.
    pub disk: Disk,
    /// An older state of the disk.
    pub snapshot: Option<Disk>,
    /// The machine's clocks.
    pub clock: Clock,
    /// The process sleeps until this time.
    pub asleep_until: u64,
    /// The disk writes nothing until this time.
    pub stuck_until: u64,
    /// The lifetime of its loans.
    pub loan_ttl_ns: u64,
    /// The version that the place goes by.
    pub version_id: VersionId,
    /// Whether it has a share.
    pub owner: bool,
    /// The last version that it acknowledged, or the first that names it.
    pub floor: VersionId,
    /// Whether its disk was replaced by an older one.
    pub restored: bool,
    /// Whether its last process stopped cleanly.
    pub stopped: bool,
}

impl Place {
    /// A machine with an empty disk.
    pub fn new(region: usize, loan_ttl_ns: u64) -> Self {
        Self {
            incarnation: Incarnation { member: MemberId(region as u16), node: 0, number: 1 },
            state: State::Absent,
            process: None,
            disk: Disk::default(),
            snapshot: None,
            clock: Clock::default(),
            asleep_until: 0,
            stuck_until: 0,
            loan_ttl_ns,
            version_id: VersionId::default(),
            owner: false,
            floor: VersionId::default(),
            restored: false,
            stopped: false,
        }
    }

    /// The readings of its clocks.
    pub fn now(&self, true_ns: u64) -> Now {
        self.clock.read(true_ns)
    }

    /// Starts a process on the disk. `cleanly`: the last process wrote everything before it stopped.
    pub fn start(&mut self, true_ns: u64, cleanly: bool) {
        self.clock.start(true_ns);
        let now = self.now(true_ns);
        let served = !self.disk.rows.is_empty();
        let config = Config {
            key: HashKey(KEY),
            memory_bytes: 8 << 20,
            durable: true,
            after_crash: (served && !cleanly).then_some(now),
            home: Some(Home { incarnation: self.incarnation, loan_ttl_ns: self.loan_ttl_ns }),
        };
        let node = Arc::new(Node::new(config));
        let disk = &self.disk;
        node.resume_home(Vec::new(), now, |limit| disk.rows_of(limit)).expect("its own disk");
        let asker = node.asker();
        self.process = Some(Process { node, asker });
        self.state = State::Up;
        self.stopped = false;
        self.asleep_until = 0;
        self.stuck_until = 0;
        self.learn_version();
    }

    /// The node, if a process runs.
    pub fn node(&self) -> Option<&Arc<Node>> {
        self.process.as_ref().map(|process| &process.node)
    }

    /// Reads the version that the process goes by. Returns whether anything changed.
    pub fn learn_version(&mut self) -> bool {
        let Some(node) = self.process.as_ref().map(|process| &process.node) else { return false };
        let (version_id, acked) = node.version_ids();
        let mut changed = false;
        if version_id != self.version_id {
            self.version_id = version_id;
            let owns = |version: &Version| {
                version
                    .members
                    .get(&self.incarnation.member)
                    .is_some_and(|member| member.incarnation == self.incarnation)
            };
            self.owner = node.version().as_ref().is_some_and(owns);
            changed = true;
        }
        let floor = self.floor.max(acked);
        changed |= floor != self.floor;
        self.floor = floor;
        changed
    }

    /// Whether it may have a share: it was named once, and has not acknowledged a version without it.
    pub fn is_bound(&self) -> bool {
        let left = self.version_id != VersionId::default() && !self.owner && self.floor >= self.version_id;
        self.state != State::Absent && self.floor != VersionId::default() && !left
    }

    /// Whether a process runs and is awake.
    pub fn is_awake(&self, true_ns: u64) -> bool {
        self.state == State::Up && self.asleep_until <= true_ns
    }

    /// Forgets everything. The next process is another incarnation.
    pub fn begin_anew(&mut self) {
        self.process = None;
        self.disk = Disk::default();
        self.snapshot = None;
        self.incarnation.number += 1;
        self.version_id = VersionId::default();
        self.floor = VersionId::default();
        self.owner = false;
        self.restored = false;
        self.stopped = false;
    }

    /// Stops the process cleanly: all its rows are written.
    pub fn stop(&mut self, true_ns: u64) {
        let now = self.now(true_ns);
        let Some(process) = self.process.take() else { return };
        while let Some(batch) = process.node.take_rows() {
            self.disk.waiting.push_back(batch);
        }
        while self.disk.write().is_some() {}
        let mut rows: Vec<Row> = Vec::new();
        process.node.close(now, |row| rows.push(row));
        rows.into_iter().for_each(|row| self.disk.put(row));
        self.state = State::Down;
        self.stopped = true;
    }
}

/// The rows of a limit, for a version that brings it back.
pub fn rows_of(disk: &Disk) -> impl FnMut(LimitId) -> Option<Vec<Row>> + '_ {
    |limit| (!disk.is_unreadable).then(|| disk.rows_of(limit))
}

/// The lifetime of loans in most histories.
pub const TTL_NS: u64 = 3 * S;
