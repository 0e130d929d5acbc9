//! How versions and acknowledgements get to the disk, go out to peers and come in, each with its seal.

use std::sync::Arc;

use acequia_limits::Now;
use acequia_rights::{Ack, Incarnation, MemberId, Refusal, Version, VersionId, versions::Learned};

use super::{
    Seal, SealFault, Seals, Sharing,
    outbox::Topic,
    seal::{Proof, SealStore},
    wire::{FrameEntry, FrameHeader},
};
use crate::Node;

/// The versions on their way to the disk and from peers.
#[derive(Debug, Default)]
pub(super) struct VersionExchange {
    /// Revisions of the versions that wait for the disk, in order.
    storing: Vec<Storing>,
    /// The newest revision that this process has queued for the disk.
    pub(super) kept: Option<u64>,
    /// The newest version that is on the disk: frames name no later one.
    pub(super) stored: VersionId,
    /// A version that a peer sent and that this node has not adopted yet.
    pub(super) offered: Option<OfferedVersion>,
    /// The seals of versions and acknowledgements that are passed on.
    pub(super) seals: SealStore,
}

/// A revision of the versions that waits for the disk.
#[derive(Clone, Copy, Debug)]
struct Storing {
    batch: u64,
    revision: u64,
    version_id: VersionId,
}

/// A version that a peer sent, with the seal that proves its maker.
#[derive(Clone, Debug)]
pub(super) struct OfferedVersion {
    pub(super) version: Version,
    pub(super) proof: Proof,
}

impl VersionExchange {
    pub(super) fn new(stored: VersionId) -> Self {
        Self { stored, ..Self::default() }
    }

    /// The batch after which the newest version is on the disk; 0 if it is there.
    pub(super) fn batch(&self) -> u64 {
        self.storing.last().map_or(0, |storing| storing.batch)
    }

    /// Notes which revisions are on the disk by now. Returns the newest of them, if there is a new one.
    fn note_committed(&mut self, committed: u64) -> Option<u64> {
        let mut newest = None;
        self.storing.retain(|storing| {
            if storing.batch <= committed {
                newest = newest.max(Some(storing.revision));
                self.stored = storing.version_id.max(self.stored);
            }
            storing.batch > committed
        });
        newest
    }
}

impl Sharing {
    /// Queues the versions for the disk.
    pub(crate) fn keep(&mut self, node: &Node) {
        let revision = self.versions.revision();
        if let Ok(bytes) = postcard::to_allocvec(self.versions.kept()) {
            let batch = node.write_record(crate::journal::VERSIONS, bytes);
            let version_id = self.version_id();
            self.exchange.storing.push(Storing { batch, revision, version_id });
            self.exchange.kept = Some(revision);
            self.keep_seals(node);
        }
    }

    /// Notes which versions are on disk by now.
    pub(super) fn note_stored(&mut self, node: &Node, now: Now) {
        if let Some(revision) = self.exchange.note_committed(node.progress().committed) {
            self.versions.stored(revision, now);
            self.tell_own_ack();
        }
    }

    /// The version that a peer sent, if it is still newer than this node's.
    pub(super) fn take_offered(&mut self) -> Option<OfferedVersion> {
        let offered = self.exchange.offered.take()?;
        (offered.version.version_id > self.version_id()).then_some(offered)
    }

    /// Takes a version, from its authority or passed on. A newer one is adopted at the next tick, if its seal
    /// proves that its authority made it.
    pub(super) fn hear_version(&mut self, version: Version, proof: Proof) -> Result<(), Refusal> {
        let is_known = self.versions.version().is_some_and(|own| *own == version);
        let offered = self.exchange.offered.as_ref().map(|offered| offered.version.version_id);
        if !is_known && version.version_id <= self.version_id().max(offered.unwrap_or_default()) {
            return Ok(());
        }
        if self.exchange.seals.check_version(&version, proof.as_deref()).is_err() {
            self.traffic.seals_refused += 1;
            return Err(Refusal::Malformed);
        }
        if is_known {
            // The version was signed again, by a certificate that holds for longer.
            self.exchange.seals.keep_version(version.version_id, proof);
            // Peers that refused the version by its earlier seal are sent it once more.
            self.peers.values_mut().for_each(|peer| peer.told = VersionId::default());
        } else {
            self.exchange.offered = Some(OfferedVersion { version, proof });
        }
        Ok(())
    }

    /// Takes an incarnation's acknowledgement, from itself or passed on.
    pub(super) fn hear_ack(
        &mut self,
        incarnation: Incarnation,
        ack: Ack,
        proof: Proof,
        from: Incarnation,
        now: Now,
    ) -> Result<(), Refusal> {
        // A node without a catalogue counts nothing, and is told again when it has one.
        let Some(key) = self.versions.version().map(|version| version.key) else { return Ok(()) };
        if !self.versions.asks(incarnation) {
            return Ok(());
        }
        if !self.exchange.seals.knows_ack(incarnation, ack, proof.as_deref()) {
            if self.exchange.seals.check_ack(incarnation, ack, key, proof.as_deref()).is_err() {
                self.traffic.seals_refused += 1;
                return Err(Refusal::Malformed);
            }
            self.exchange.seals.keep_ack(incarnation, ack, proof);
        }
        if self.versions.learn_ack(incarnation, ack, now) == Learned::New {
            self.pass_on_ack(incarnation, from);
        }
        Ok(())
    }

    /// Sends the version that this node has to a peer that is behind.
    pub(super) fn compare_versions(&mut self, header: &FrameHeader, from: MemberId) {
        let own = self.version_id();
        if header.version_id >= own {
            return;
        }
        let Some(version) = self.versions.version() else { return };
        let Some(proof) = self.exchange.seals.proof_of(own) else { return };
        if let Some(peer) = self.peers.get_mut(&from)
            && peer.told < own
        {
            peer.told = own;
            let entry = FrameEntry::Version(Box::new(version.clone()), proof);
            peer.outbox.tell(Topic::Version, entry, self.exchange.batch());
        }
    }

    /// Sends the version that this node has to the peers that are behind, once it is on the disk.
    pub(super) fn tell_version(&mut self) {
        let Some(version) = self.versions.version() else { return };
        let version_id = version.version_id;
        self.peers.values_mut().for_each(|peer| peer.outbox.names.introduce_again());
        let Some(proof) = self.exchange.seals.proof_of(version_id) else { return };
        for peer in self.peers.values_mut().filter(|peer| peer.version_id < version_id) {
            peer.told = version_id;
            let entry = FrameEntry::Version(Box::new(version.clone()), proof.clone());
            peer.outbox.tell(Topic::Version, entry, self.exchange.batch());
        }
    }

    /// Sends everybody what this node acknowledged, signed.
    pub(crate) fn tell_own_ack(&mut self) {
        let me = self.me();
        let Some((ack, version)) = self.versions.own_ack().zip(self.versions.version()) else { return };
        self.exchange.seals.sign_ack(me, ack, version.key);
        let Some((ack, seal)) = self.exchange.seals.ack_of(me, ack) else { return };
        for peer in self.peers.values_mut() {
            let entry = FrameEntry::Acked { incarnation: me, ack, seal: seal.clone() };
            peer.outbox.tell(Topic::Acked(me), entry, 0);
        }
    }

    /// Signs from now on, and accepts no version or acknowledgement of others that they did not sign.
    pub(crate) fn seal_with(&mut self, node: &Node, seals: Arc<dyn Seals>) {
        self.exchange.seals.begin(seals);
        self.sign_again(node);
    }

    /// Restores the seals from the disk.
    pub(crate) fn take_up_seals(&mut self, bytes: &[u8]) {
        self.exchange.seals = SealStore::restore(bytes);
    }

    /// The seal of the version that this node has.
    pub(crate) fn version_seal(&self) -> Option<Seal> {
        self.exchange.seals.proof_of(self.version_id())?.map(|seal| *seal)
    }

    /// The last version or acknowledgement that was refused for its seal; returned once.
    pub(crate) fn take_unproven(&mut self) -> Option<(Incarnation, SealFault)> {
        self.exchange.seals.take_refused()
    }

    /// Signs this node's version and acknowledgement anew for everybody who passes them on: the node has
    /// another certificate, or this is a new process.
    pub(crate) fn sign_again(&mut self, node: &Node) {
        self.sign(false);
        if let Some(version) = self.versions.version().filter(|version| version.authority == self.me())
            && let Some(proof) = self.exchange.seals.proof_of(version.version_id)
        {
            for peer in self.peers.values_mut() {
                let entry = FrameEntry::Version(Box::new(version.clone()), proof.clone());
                peer.outbox.tell(Topic::Version, entry, self.exchange.batch());
            }
        }
        self.tell_own_ack();
        self.keep_seals(node);
    }

    /// Signs the version that this node has, if it made it. If the version `is_new`, the seals of
    /// incarnations from which it asks nothing are dropped.
    pub(super) fn sign(&mut self, is_new: bool) {
        let Some(version) = self.versions.version() else { return };
        if version.authority == self.me() {
            self.exchange.seals.sign_version(version);
        }
        if is_new {
            let (versions, me) = (&self.versions, self.me());
            self.exchange.seals.retain(|incarnation| incarnation == me || versions.asks(incarnation));
        }
    }

    fn keep_seals(&self, node: &Node) {
        if let Some(bytes) = self.exchange.seals.to_bytes() {
            node.write_record(crate::journal::SEALS, bytes);
        }
    }

    /// Passes on an acknowledgement that `by` sent: a member that cannot reach the incarnation waits for it,
    /// too.
    pub(crate) fn pass_on_ack(&mut self, incarnation: Incarnation, by: Incarnation) {
        let Some((_, ack)) = self.versions.acks().find(|(of, _)| *of == incarnation) else { return };
        let Some((ack, seal)) = self.exchange.seals.ack_of(incarnation, ack) else { return };
        for peer in
            self.peers.values_mut().filter(|peer| peer.incarnation != incarnation && peer.incarnation != by)
        {
            let entry = FrameEntry::Acked { incarnation, ack, seal: seal.clone() };
            peer.outbox.tell(Topic::Acked(incarnation), entry, 0);
        }
    }

    /// Sends a peer that began anew, or that adopted a version, every acknowledgement.
    pub(crate) fn tell_all_acks(&mut self, to: MemberId) {
        let own = self.versions.own_ack().map(|ack| (self.me(), ack));
        let all: Vec<(Incarnation, Ack)> = self.versions.acks().chain(own).collect();
        if let Some(peer) = self.peers.get_mut(&to) {
            for (incarnation, ack) in all {
                let Some((ack, seal)) = self.exchange.seals.ack_of(incarnation, ack) else { continue };
                peer.outbox.tell(Topic::Acked(incarnation), FrameEntry::Acked { incarnation, ack, seal }, 0);
            }
        }
    }
}
