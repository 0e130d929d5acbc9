//! The state that all tasks of a mesh share.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use quinn::Endpoint;

use crate::{Fingerprint, Identity, Timing, lock::lock, peer::Peer, refusal::Ledger};

/// This node, as its tasks see it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) identity: Identity,
    pub(crate) timing: Timing,
    pub(crate) peers: BTreeMap<Identity, Arc<Peer>>,
    pub(crate) refusals: Ledger,
    pub(crate) endpoint: Endpoint,
    /// Whether the socket reaches IPv4 addresses only.
    pub(crate) is_ipv4: bool,
    pub(crate) client: Mutex<quinn::ClientConfig>,
    /// Certificates that are no longer accepted.
    pub(crate) revoked: Mutex<BTreeSet<Fingerprint>>,
}

impl Node {
    /// Whether this node must dial that peer.
    pub(crate) fn dials(&self, peer: &Peer) -> bool {
        self.identity < peer.identity
    }

    /// The credentials of new connections.
    pub(crate) fn client(&self) -> quinn::ClientConfig {
        lock(&self.client).clone()
    }
}
