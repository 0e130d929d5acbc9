//! This node's present process: its numbers, its heartbeats, and what peers said against it.

use acequia_rights::{
    SentHeartbeats,
    mutation::{Mutation, mutated},
    session::Heartbeat,
};

use super::{Home, wire::FrameHeader};

use crate::settings::SETTINGS;

/// This node's present process.
#[derive(Debug)]
pub(super) struct OwnProcess {
    pub(super) home: Home,
    pub(super) heartbeats: Heartbeats,
    /// Nothing leaves before this batch is on disk: the process number is in it.
    pub(super) born_in: u64,
    /// Whether the disk is an old one: then the node owns nothing until it begins anew.
    pub(super) restored_disk: bool,
    /// The latest incarnation of this node that a peer has heard, if it is later than this one.
    pub(super) later: Option<u32>,
}

/// The heartbeats of this process.
#[derive(Debug)]
pub(super) struct Heartbeats {
    pub(super) sent: SentHeartbeats,
    pub(super) newest: Heartbeat,
    /// When the newest one was made, if there is one: steady clock.
    made_ns: Option<u64>,
}

impl OwnProcess {
    pub(super) fn new(home: Home, process_number: u32, born_in: u64) -> Self {
        let heartbeats = Heartbeats {
            sent: SentHeartbeats::new(process_number, home.loan_ttl_ns.saturating_mul(4)),
            newest: Heartbeat { process_number, number: 0 },
            made_ns: None,
        };
        Self { home, heartbeats, born_in, restored_disk: false, later: None }
    }

    pub(super) fn number(&self) -> u32 {
        self.heartbeats.sent.process_number()
    }

    /// Whether a frame confirms frames of this process, and uses its numbers of cells: not those of an
    /// earlier one.
    pub(super) fn is_answered_by(&self, header: &FrameHeader) -> bool {
        let received = &header.received;
        (received.incarnation, received.process_number) == (self.home.incarnation.number, self.number())
    }

    /// A peer that has seen what this node's disk does not know proves that the disk is an old one. Such
    /// things are a later process of this node, loans that this node never gave, and frames that this process never
    /// sent, since another process had its number.
    pub(super) fn is_older_than(&self, header: &FrameHeader, last_frame: u64, loans_reserved: u64) -> bool {
        let received = &header.received;
        let is_ahead = received.process_number > self.number() || header.loan_max > loans_reserved;
        let is_twice = received.process_number == self.number() && received.highest > last_frame;
        let is_of_this_incarnation =
            received.incarnation == self.home.incarnation.number && received.process_number > 0;
        (is_ahead || is_twice) && is_of_this_incarnation && !mutated(Mutation::OldDiskTrusted)
    }
}

impl Heartbeats {
    /// Makes a new heartbeat, unless one was made a moment ago.
    pub(super) fn make(&mut self, now_ns: u64) {
        if self.made_ns.is_none_or(|made_ns| now_ns >= made_ns + SETTINGS.links.fresh_ns) {
            self.newest = self.sent.next(now_ns);
            self.made_ns = Some(now_ns);
        }
    }

    /// A frame may leave before the first tick. Its heartbeat is made no later than the frame.
    pub(super) fn make_before_frame(&mut self, now_ns: u64) {
        if self.made_ns.is_none() && !mutated(Mutation::HeartbeatBeforeSent) {
            self.make(now_ns);
        }
    }
}
