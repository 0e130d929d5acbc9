//! Counts the refusals of connections and messages from other nodes, and logs some of them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use quinn::VarInt;
use tokio::time::Instant;

use crate::{Identity, lock::lock, settings::SETTINGS};

/// The first close code of a refusal. Lower codes are nobody's fault.
const CODES_FROM: u32 = 16;

/// Why a message, a connection or a node was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeshRefusal {
    /// The handshake failed: another authority, no certificate, an expired certificate, or another
    /// protocol. This kind also counts handshakes that the other side refused.
    Handshake,
    /// The handshake, or the hello after it, did not finish in time. A path that works in one direction
    /// only looks like that, too.
    Unfinished,
    /// Too many handshakes ran at once.
    Crowded,
    /// A certificate names no node, or a node that is not among the peers.
    Stranger,
    /// A certificate names this very node.
    OwnName,
    /// A peer dials although this node must dial it.
    WrongDirection,
    /// The address of one peer led to another node.
    WrongPeer,
    /// The hello is missing, or belongs to another version of this protocol.
    Hello,
    /// A frame has more than [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX) bytes, or is longer than its
    /// stated length.
    FrameTooLong,
    /// A frame ends before its stated length, or was taken back.
    FrameCutShort,
    /// A frame did not arrive in time.
    FrameStalled,
    /// A peer has more unfinished frames at once than any node sends.
    FramesTooMany,
    /// Too many frames were refused on one connection.
    Misbehaved,
    /// A certificate was revoked.
    Revoked,
}

impl MeshRefusal {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::Handshake,
        Self::Unfinished,
        Self::Crowded,
        Self::Stranger,
        Self::OwnName,
        Self::WrongDirection,
        Self::WrongPeer,
        Self::Hello,
        Self::FrameTooLong,
        Self::FrameCutShort,
        Self::FrameStalled,
        Self::FramesTooMany,
        Self::Misbehaved,
        Self::Revoked,
    ];

    /// A stable name for metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Unfinished => "unfinished",
            Self::Crowded => "crowded",
            Self::Stranger => "stranger",
            Self::OwnName => "own-name",
            Self::WrongDirection => "wrong-direction",
            Self::WrongPeer => "wrong-peer",
            Self::Hello => "hello",
            Self::FrameTooLong => "frame-too-long",
            Self::FrameCutShort => "frame-cut-short",
            Self::FrameStalled => "frame-stalled",
            Self::FramesTooMany => "frames-too-many",
            Self::Misbehaved => "misbehaved",
            Self::Revoked => "revoked",
        }
    }

    /// The advice that the other side gets.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Handshake => "handshake failed",
            Self::Unfinished => "not in time",
            Self::Crowded => "too many handshakes at once",
            Self::Stranger => "this node has no peer of that name: compare `regions` in both files",
            Self::OwnName => "this node has that name itself: make a certificate for each node",
            Self::WrongDirection => "the node with the smaller region/node name dials: this one does",
            Self::WrongPeer => "another node was expected at this address: compare `regions` in both files",
            Self::Hello => "another version of the protocol: upgrade one of the nodes",
            Self::FrameTooLong => "frame too long",
            Self::FrameCutShort => "frame cut short",
            Self::FrameStalled => "frame not in time",
            Self::FramesTooMany => "too many unfinished frames",
            Self::Misbehaved => "too many frames refused",
            Self::Revoked => "this certificate is revoked: make another one for this node",
        }
    }

    /// The application's error code with which a connection or a stream is closed.
    pub(crate) const fn code(self) -> VarInt {
        VarInt::from_u32(CODES_FROM + self as u32)
    }
}

impl fmt::Display for MeshRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The number of refusals since the start, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusals([u64; MeshRefusal::ALL.len()]);

impl Refusals {
    /// The number of refusals of this kind.
    #[must_use]
    pub const fn of(&self, refusal: MeshRefusal) -> u64 {
        self.0[refusal as usize]
    }

    /// Every kind, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (MeshRefusal, u64)> + '_ {
        MeshRefusal::ALL.into_iter().map(|refusal| (refusal, self.of(refusal)))
    }

    /// The number of all refusals.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Counts refusals, and logs each kind of each peer at most once a minute.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    counts: [AtomicU64; MeshRefusal::ALL.len()],
    /// Strangers have no entries of their own, so there are at most as many entries as kinds times peers
    /// and one.
    told: Mutex<BTreeMap<(MeshRefusal, Option<Identity>), Instant>>,
}

impl Ledger {
    /// Counts a refusal of a peer, or of an unknown node, and logs `what` with it at most once a minute.
    pub(crate) fn count(&self, refusal: MeshRefusal, peer: Option<&Identity>, what: &str) {
        self.counts[refusal as usize].fetch_add(1, Relaxed);
        let now = Instant::now();
        let key = (refusal, peer.cloned());
        let mut told = lock(&self.told);
        if told.get(&key).is_some_and(|at| now.duration_since(*at) < SETTINGS.peers.told_every) {
            return;
        }
        told.insert(key, now);
        drop(told);
        let peer = peer.map_or_else(|| "unknown".to_owned(), Identity::to_string);
        tracing::warn!(%refusal, peer, what, "refused, and counted only for the next minute");
    }

    pub(crate) fn counts(&self) -> Refusals {
        Refusals(std::array::from_fn(|kind| self.counts[kind].load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_refusal_has_its_own_number_and_name() {
        for (place, refusal) in MeshRefusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, place);
        }
        let names: std::collections::BTreeSet<_> = MeshRefusal::ALL.map(MeshRefusal::name).into();
        assert_eq!(names.len(), MeshRefusal::ALL.len());
    }

    #[tokio::test]
    async fn a_refusal_is_counted_each_time() {
        let ledger = Ledger::default();
        ledger.count(MeshRefusal::Stranger, None, "");
        ledger.count(MeshRefusal::Stranger, None, "");
        ledger.count(MeshRefusal::Hello, Some(&Identity::new("eu", "1")), "");
        let counts = ledger.counts();
        assert_eq!(
            (counts.of(MeshRefusal::Stranger), counts.of(MeshRefusal::Hello), counts.total()),
            (2, 1, 3)
        );
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 3);
    }
}
