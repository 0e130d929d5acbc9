//! Keeps a connection to a peer that this node must dial.
//!
//! While there is no connection, attempts begin again and again, and several are pending at once. Each
//! sends its first packet at once. So the first attempt after a cut is mended gets through, whatever the
//! pauses are in which a single attempt repeats its packets. The first attempt that completes wins.

use std::{net::SocketAddr, sync::Arc};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use quinn::{Connection, ConnectionError};
use tokio::{
    net::lookup_host,
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    Event, MeshRefusal, Timing,
    certs::SERVER_NAME,
    connection::{self, ConnectionEnd, Hello},
    node::Node,
    peer::Peer,
    random::Random,
    settings::SETTINGS,
};

/// Dials a peer forever.
pub(crate) async fn keep(node: Arc<Node>, events: mpsc::Sender<Event>, peer: Arc<Peer>, random: Random) {
    let mut dialler = Dialler::new(&node, &peer, random);
    loop {
        let connection = dialler.dial().await;
        let ended = connection::run(&node, &events, &peer, &connection, Hello::Awaited).await;
        dialler.pace.connection_ended(&ended);
        tracing::debug!(peer = %peer.identity, why = ended.why, "connection ended");
    }
}

struct Dialler<'a> {
    node: &'a Node,
    peer: &'a Peer,
    pace: Pace,
    addresses: Addresses,
}

impl<'a> Dialler<'a> {
    fn new(node: &'a Node, peer: &'a Peer, random: Random) -> Self {
        let pace = Pace::new(&node.timing, random);
        Self { node, peer, pace, addresses: Addresses::new(&peer.address) }
    }

    /// Begins attempts until one has reached the peer.
    async fn dial(&mut self) -> Connection {
        let mut attempts = FuturesUnordered::<BoxFuture<'_, Result<Connection, String>>>::new();
        loop {
            let may_begin = attempts.len() < SETTINGS.dial.attempts_max;
            tokio::select! {
                biased;
                Some(attempt) = attempts.next() => match attempt {
                    Ok(connection) => return connection,
                    Err(why) => self.peer.set_error(&why),
                },
                () = sleep_until(self.pace.next), if may_begin => {
                    self.pace.advance();
                    match self.addresses.next(self.node).await {
                        Ok(Some(address)) => attempts.push(attempt(self.node, self.peer, address).boxed()),
                        // The name is still being looked up.
                        Ok(None) => {}
                        Err(why) => self.peer.set_error(&why),
                    }
                }
            }
        }
    }
}

/// Makes one attempt.
async fn attempt(node: &Node, peer: &Peer, address: SocketAddr) -> Result<Connection, String> {
    let connecting = node
        .endpoint
        .connect_with(node.client(), address, SERVER_NAME)
        .map_err(|error| format!("cannot dial {address}: {error}"))?;
    let connection = match timeout(node.timing.attempt, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(handshake_failed(node, peer, &error)),
        Err(_) => {
            return Err(format!(
                "no answer from {address}: is the node running there, and is UDP let through?"
            ));
        }
    };
    match connection::named(node, &connection) {
        Ok(named) if named == peer.identity => Ok(connection),
        named => {
            let (refusal, named) = match named {
                Err((MeshRefusal::Revoked, what)) => (MeshRefusal::Revoked, what),
                Err((_, what)) => (MeshRefusal::WrongPeer, what),
                Ok(named) => (MeshRefusal::WrongPeer, named.to_string()),
            };
            connection.close(refusal.code(), refusal.reason().as_bytes());
            let why = format!("{} expected at {address}, found: {named} ({refusal})", peer.identity);
            peer.count_refusal();
            node.refusals.count(refusal, Some(&peer.identity), &why);
            Err(why)
        }
    }
}

fn handshake_failed(node: &Node, peer: &Peer, error: &ConnectionError) -> String {
    let why = connection::ended(error).why;
    if matches!(error, ConnectionError::TransportError(_) | ConnectionError::ConnectionClosed(_)) {
        peer.count_refusal();
        node.refusals.count(MeshRefusal::Handshake, Some(&peer.identity), &why);
    }
    why
}

/// The time of the next attempt.
struct Pace {
    timing: Timing,
    random: Random,
    down_since: Instant,
    next: Instant,
}

impl Pace {
    fn new(timing: &Timing, random: Random) -> Self {
        let now = Instant::now();
        Self { timing: timing.clone(), random, down_since: now, next: now }
    }

    fn connection_ended(&mut self, ended: &ConnectionEnd) {
        let now = Instant::now();
        if ended.was_up {
            self.down_since = now;
            self.next = if ended.is_replaced { now + SETTINGS.dial.after_replaced } else { now };
        }
    }

    fn advance(&mut self) {
        let now = Instant::now();
        let pause = self.timing.pause(now.duration_since(self.down_since));
        self.next = now + pause.mul_f64(0.75 + self.random.fraction() / 2.0);
    }
}

/// A peer's addresses. The name is looked up again for each attempt, but never twice at once. The last
/// addresses found serve until a lookup finds others.
struct Addresses {
    name: String,
    known: Vec<SocketAddr>,
    turn: usize,
    lookup: Option<JoinHandle<Result<Vec<SocketAddr>, String>>>,
}

impl Addresses {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), known: Vec::new(), turn: 0, lookup: None }
    }

    /// The address to try next, or `None` if none is known yet.
    async fn next(&mut self, node: &Node) -> Result<Option<SocketAddr>, String> {
        if let Ok(address) = self.name.parse() {
            return Ok(Some(address));
        }
        let mut fault = None;
        if let Some(lookup) = self.lookup.take_if(|lookup| lookup.is_finished()) {
            match lookup.await.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(found) => self.known = found,
                Err(why) => fault = Some(why),
            }
        }
        if self.lookup.is_none() {
            self.lookup = Some(tokio::spawn(look_up(self.name.clone(), node.is_ipv4)));
        }
        self.turn = self.turn.wrapping_add(1);
        match self.known.len() {
            0 => fault.map_or(Ok(None), Err),
            known => Ok(Some(self.known[self.turn % known])),
        }
    }
}

async fn look_up(name: String, only_ipv4: bool) -> Result<Vec<SocketAddr>, String> {
    let found = lookup_host(&name).await.map_err(|error| format!("cannot look up {name}: {error}"))?;
    let found: Vec<_> =
        found.filter(|address| address.is_ipv4() || !only_ipv4).take(SETTINGS.dial.addresses_max).collect();
    if found.is_empty() { Err(format!("{name} has no address that this node can reach")) } else { Ok(found) }
}
