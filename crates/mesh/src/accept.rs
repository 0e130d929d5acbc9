//! Accepts connections from the peers that dial this node, and from nobody else.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use quinn::{Connection, ConnectionError, Incoming};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use crate::{
    Event, MeshRefusal,
    connection::{self, Hello},
    frame::{self, NoFrame},
    node::Node,
    peer::Peer,
    settings::SETTINGS,
};

/// Requests for a proof are counted by the connection ID that the newcomer chose, which nobody can foresee.
/// The counts are in this many sets of a few IDs each, so that a dialler's attempts hardly ever displace
/// each other.
const ASKED_SETS: usize = 256;
const ASKED_SET: usize = 4;

/// Accepts connections forever.
pub(crate) async fn accept(node: Arc<Node>, events: mpsc::Sender<Event>) {
    let handshakes = Arc::<AtomicUsize>::default();
    let mut asked = Asked::default();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            incoming = node.endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                if let Some(incoming) = look_at(&node, incoming, handshakes.load(Relaxed), &mut asked) {
                    let handshake = Handshake::begin(&handshakes);
                    connections.spawn(welcome(Arc::clone(&node), events.clone(), incoming, handshake));
                }
            }
        }
    }
}

/// Returns the connection if it may begin a handshake now.
fn look_at(node: &Node, incoming: Incoming, handshakes: usize, asked: &mut Asked) -> Option<Incoming> {
    if handshakes >= SETTINGS.accept.handshakes_max {
        node.refusals.count(MeshRefusal::Crowded, None, &format!("{handshakes} handshakes at once"));
        incoming.ignore();
        return None;
    }
    if handshakes >= SETTINGS.accept.handshakes_unproven_max && incoming.may_retry() {
        if !asked.may_ask(&incoming.orig_dst_cid()) {
            incoming.ignore();
        } else if incoming.retry().is_err() {
            node.refusals.count(MeshRefusal::Crowded, None, "an address that is proven already");
        }
        return None;
    }
    Some(incoming)
}

/// How often recent connection IDs were asked to prove their address. A new ID always replaces the oldest
/// of its set, so nobody can keep others from being asked.
struct Asked(Vec<[(u64, u8); ASKED_SET]>);

impl Default for Asked {
    fn default() -> Self {
        Self(vec![[(0, 0); ASKED_SET]; ASKED_SETS])
    }
}

impl Asked {
    /// Counts a request, and tells whether one more may be made.
    fn may_ask(&mut self, id: &[u8]) -> bool {
        // The ID in a first packet has 8 to 20 bytes (RFC 9000 section 7.2).
        let name = id.iter().take(8).fold(0_u64, |name, byte| name << 8 | u64::from(*byte));
        let set = &mut self.0[(name % ASKED_SETS as u64) as usize];
        let place = set.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
            set.rotate_right(1);
            set[0] = (name, 0);
            0
        });
        let asked = &mut set[place].1;
        *asked = asked.saturating_add(1);
        *asked <= SETTINGS.accept.asked_max
    }
}

/// The place of one running handshake.
struct Handshake(Arc<AtomicUsize>);

impl Handshake {
    fn begin(handshakes: &Arc<AtomicUsize>) -> Self {
        handshakes.fetch_add(1, Relaxed);
        Self(Arc::clone(handshakes))
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Serves a connection from its first packet to its end.
async fn welcome(node: Arc<Node>, events: mpsc::Sender<Event>, incoming: Incoming, handshake: Handshake) {
    let from = incoming.remote_address();
    let greeted = timeout(node.timing.attempt, greet(&node, incoming)).await;
    drop(handshake);
    match greeted {
        Ok(Ok((peer, connection))) => {
            let ended = connection::run(&node, &events, &peer, &connection, Hello::Heard).await;
            tracing::debug!(peer = %peer.identity, why = ended.why, "connection ended");
        }
        Ok(Err(None)) => {}
        Ok(Err(Some((refusal, what)))) => node.refusals.count(refusal, None, &format!("{from}: {what}")),
        Err(_) => {
            let what = "the other side began a handshake and did not go on";
            node.refusals.count(MeshRefusal::Unfinished, None, &format!("{from}: {what}"));
        }
    }
}

/// Why a connection was not accepted. `None` if the other side ended it.
type NotLetIn = Option<(MeshRefusal, String)>;

/// Shakes hands with a peer, and waits for its hello. When a cut is mended, a dialler completes several
/// attempts at once. The dialler says hello on the attempt that it keeps.
async fn greet(node: &Node, incoming: Incoming) -> Result<(Arc<Peer>, Connection), NotLetIn> {
    let connecting = incoming.accept().map_err(|error| handshake_failed(&error))?;
    let connection = connecting.await.map_err(|error| handshake_failed(&error))?;
    let peer = match admit(node, &connection) {
        Ok(peer) => peer,
        Err((refusal, what)) => {
            connection.close(refusal.code(), refusal.reason().as_bytes());
            return Err(Some((refusal, what)));
        }
    };
    match frame::read_hello(&connection).await {
        Ok(()) => Ok((peer, connection)),
        Err(NoFrame::Lost) => Err(None),
        Err(NoFrame::Refused(refusal)) => {
            connection.close(refusal.code(), refusal.reason().as_bytes());
            peer.count_refusal();
            Err(Some((refusal, peer.identity.to_string())))
        }
    }
}

fn handshake_failed(error: &ConnectionError) -> NotLetIn {
    match error {
        ConnectionError::TransportError(_) => Some((MeshRefusal::Handshake, error.to_string())),
        // A TLS alert: the other side did not accept this node's certificate.
        ConnectionError::ConnectionClosed(close) if is_alert(u64::from(close.error_code)) => {
            Some((MeshRefusal::Handshake, connection::ended(error).why))
        }
        _ => None,
    }
}

/// Whether a transport error is a TLS alert: RFC 9001 section 4.8.
const fn is_alert(code: u64) -> bool {
    code >= 0x100 && code < 0x200
}

/// The peer that the certificate names, if it is one that must dial this node.
fn admit(node: &Node, connection: &Connection) -> Result<Arc<Peer>, (MeshRefusal, String)> {
    let named = connection::named(node, connection)?;
    if named == node.identity {
        return Err((MeshRefusal::OwnName, named.to_string()));
    }
    let Some(peer) = node.peers.get(&named) else {
        return Err((MeshRefusal::Stranger, named.to_string()));
    };
    if node.dials(peer) {
        peer.count_refusal();
        return Err((MeshRefusal::WrongDirection, named.to_string()));
    }
    Ok(Arc::clone(peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_attempt_is_asked_for_a_proof_twice() {
        let mut asked = Asked::default();
        let mut often = |first: u8, last: u8| {
            let id = [first, 0, 0, 0, 0, 0, 0, last, 9, 9];
            (0..20).filter(|_| asked.may_ask(&id)).count()
        };
        assert_eq!((often(1, 7), often(1, 8)), (2, 2));
        assert_eq!(often(1, 7), 0, "it is remembered");
        for first in 2..=4 {
            assert_eq!(often(first, 7), 2, "another one of its set");
        }
        assert_eq!(often(1, 7), 0, "there is room for four of them");
        assert_eq!((often(5, 7), often(1, 7)), (2, 2), "and what is forgotten begins anew");
    }
}
