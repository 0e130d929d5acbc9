//! One connection, from its handshake to its end.

use std::sync::atomic::Ordering::Relaxed;

use futures::{StreamExt as _, future, stream::FuturesUnordered};
use quinn::{Connection, ConnectionError, RecvStream, VarInt};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{
    Event, Fingerprint, Identity, MeshRefusal,
    certs::facts,
    chain::chain,
    frame::{self, FrameOutcome, Held, Hold, NoFrame},
    lock::lock,
    node::Node,
    peer::{Outgoing, Peer, REPLACED, clean},
    settings::SETTINGS,
};

/// The state of the other side's hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    /// The other side has said hello.
    Heard,
    /// The other side will say hello after it has checked this node's certificate.
    Awaited,
}

/// How a connection ended, for people.
#[derive(Debug)]
pub(crate) struct ConnectionEnd {
    /// The reason, in a sentence.
    pub(crate) why: String,
    /// Whether a newer connection of the same peer replaced this one.
    pub(crate) is_replaced: bool,
    /// Whether the peer was up on this connection.
    pub(crate) was_up: bool,
}

impl ConnectionEnd {
    pub(crate) fn by(refusal: MeshRefusal) -> Self {
        Self { why: format!("refused here: {}", refusal.reason()), is_replaced: false, was_up: false }
    }
}

/// The node that the other side's certificate names.
pub(crate) fn named(node: &Node, connection: &Connection) -> Result<Identity, (MeshRefusal, String)> {
    let chain = chain(connection);
    let stranger = |what: String| (MeshRefusal::Stranger, what);
    let own = chain.first().ok_or_else(|| stranger("no certificate".to_owned()))?;
    let named = facts(own).and_then(|facts| facts.identity).map_err(stranger)?;
    match is_revoked(node, connection) {
        false => Ok(named),
        true => Err((MeshRefusal::Revoked, format!("{named}, by the certificate {}", Fingerprint::of(own)))),
    }
}

/// Whether one of the other side's certificates is revoked.
pub(crate) fn is_revoked(node: &Node, connection: &Connection) -> bool {
    let revoked = lock(&node.revoked);
    !revoked.is_empty() && chain(connection).iter().any(|one| revoked.contains(&Fingerprint::of(one)))
}

/// Replaces the peer's earlier connection, says hello, and carries frames both ways until the connection
/// ends.
pub(crate) async fn run(
    node: &Node,
    events: &mpsc::Sender<Event>,
    peer: &Peer,
    connection: &Connection,
    hello: Hello,
) -> ConnectionEnd {
    // A connection that is replaced while it waits gives way. So only one waits, however often peers dial.
    let _turn = tokio::select! {
        biased;
        error = connection.closed() => return ended(&error),
        turn = peer.take_turn(connection) => turn,
    };
    if connection.close_reason().is_none() && !say_hello(node, connection).await {
        connection.close(MeshRefusal::Unfinished.code(), MeshRefusal::Unfinished.reason().as_bytes());
    }
    let outgoing = peer.open(connection);
    // The certificate may have been revoked since the handshake.
    if is_revoked(node, connection) {
        connection.close(MeshRefusal::Revoked.code(), MeshRefusal::Revoked.reason().as_bytes());
    }
    let receiving = Receiving { node, events, peer, connection, held: Held::default() };
    let mut ended = tokio::select! {
        biased;
        error = connection.closed() => ended(&error),
        refusal = receiving.run(hello) => {
            receiving.count(refusal);
            connection.close(refusal.code(), refusal.reason().as_bytes());
            ConnectionEnd::by(refusal)
        }
        () = send_all(peer, connection, outgoing) => ConnectionEnd::by(MeshRefusal::Unfinished),
    };
    ended.was_up = peer.set_down(&ended.why);
    if ended.was_up {
        let down = Event::Down { peer: peer.identity.clone(), why: ended.why.clone() };
        // If nobody receives the event, the mesh is being dropped.
        let _ = events.send(down).await;
    }
    ended
}

async fn say_hello(node: &Node, connection: &Connection) -> bool {
    matches!(timeout(node.timing.attempt, frame::write_hello(connection)).await, Ok(Ok(())))
}

/// Sends the frames from `outgoing`, several at once. Returns only after the outgoing channel is closed.
async fn send_all(peer: &Peer, connection: &Connection, mut outgoing: mpsc::Receiver<Outgoing>) {
    let mut sending = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = sending.next() => {}
            Some(next) = outgoing.recv() => sending.push(send(peer, connection, next)),
            else => return,
        }
    }
}

async fn send(peer: &Peer, connection: &Connection, outgoing: Outgoing) {
    let Outgoing { frame, place } = outgoing;
    let bytes = frame.len() as u64;
    match frame::write(connection, frame).await {
        FrameOutcome::Acknowledged => {
            peer.counts.frames_out.fetch_add(1, Relaxed);
            peer.counts.bytes_out.fetch_add(bytes, Relaxed);
        }
        FrameOutcome::Refused => {
            peer.counts.refused_by_peer.fetch_add(1, Relaxed);
        }
        FrameOutcome::Lost => {}
    }
    drop(place);
}

struct Receiving<'a> {
    node: &'a Node,
    events: &'a mpsc::Sender<Event>,
    peer: &'a Peer,
    connection: &'a Connection,
    held: Held,
}

impl Receiving<'_> {
    /// Delivers frames until the other side has broken the rules too often.
    async fn run(&self, hello: Hello) -> MeshRefusal {
        if hello == Hello::Awaited {
            match timeout(self.node.timing.attempt, frame::read_hello(self.connection)).await {
                Ok(Ok(())) => {}
                Ok(Err(NoFrame::Refused(refusal))) => return refusal,
                Ok(Err(NoFrame::Lost)) => return future::pending().await,
                Err(_) => return MeshRefusal::Unfinished,
            }
        }
        self.say_up().await;
        self.read_all().await
    }

    async fn say_up(&self) {
        // Room is reserved first, so that nothing happens between the event and the change that `status`
        // shows.
        if let Ok(room) = self.events.reserve().await {
            self.peer.set_up();
            tracing::info!(peer = %self.peer.identity, "connected");
            room.send(Event::Up(self.peer.identity.clone()));
        }
    }

    async fn read_all(&self) -> MeshRefusal {
        let mut reading = FuturesUnordered::new();
        let mut refused = 0;
        loop {
            let may_begin = reading.len() < SETTINGS.frames.streams_in_max as usize && self.held.has_room();
            tokio::select! {
                biased;
                Some(end) = reading.next() => {
                    let Err(NoFrame::Refused(refusal)) = end else { continue };
                    self.count(refusal);
                    refused += 1;
                    if refused >= SETTINGS.frames.refused_max {
                        return MeshRefusal::Misbehaved;
                    }
                }
                stream = self.connection.accept_uni(), if may_begin => match stream {
                    Ok(stream) => reading.push(self.read(stream)),
                    // The caller that runs the connection sees why it ended.
                    Err(_) => return future::pending().await,
                },
                else => return future::pending().await,
            }
        }
    }

    /// Reads one frame and delivers it. Its bytes count as held until it is delivered.
    async fn read(&self, mut stream: RecvStream) -> Result<(), NoFrame> {
        let mut hold = Hold::new(&self.held);
        let read = tokio::select! {
            biased;
            read = frame::read(&mut stream, &mut hold) => read,
            () = self.too_late() => Err(MeshRefusal::FrameStalled.into()),
        };
        if let Err(NoFrame::Refused(refusal)) = &read {
            // Stopping has no effect on a stream that has ended by itself.
            let _ = stream.stop(refusal.code());
        }
        let bytes = read?;
        if let Ok(room) = self.events.reserve().await {
            self.peer.counts.frames_in.fetch_add(1, Relaxed);
            self.peer.counts.bytes_in.fetch_add(bytes.len() as u64, Relaxed);
            room.send(Event::Frame { from: self.peer.identity.clone(), bytes });
        }
        Ok(())
    }

    /// Returns when a frame's time is over. If this node takes no frames then, the time begins again: the
    /// other side may have been unable to go on.
    async fn too_late(&self) {
        loop {
            sleep(self.node.timing.frame).await;
            if self.events.capacity() > 0 {
                return;
            }
        }
    }

    fn count(&self, refusal: MeshRefusal) {
        self.peer.count_refusal();
        self.node.refusals.count(refusal, Some(&self.peer.identity), refusal.reason());
    }
}

/// The end of a connection, as text.
pub(crate) fn ended(error: &ConnectionError) -> ConnectionEnd {
    let why = match error {
        ConnectionError::TimedOut => "nothing was heard of it for too long".to_owned(),
        ConnectionError::Reset => "it has restarted".to_owned(),
        ConnectionError::LocallyClosed => "closed here".to_owned(),
        ConnectionError::ApplicationClosed(close) if close.error_code == VarInt::from_u32(0) => {
            "it said goodbye".to_owned()
        }
        ConnectionError::ApplicationClosed(close) if close.error_code == REPLACED => {
            "it has taken a newer connection of a node of this name".to_owned()
        }
        ConnectionError::ApplicationClosed(close) => {
            format!("it refused: {}", String::from_utf8_lossy(&close.reason))
        }
        ConnectionError::ConnectionClosed(close) => format!("it broke off: {close}"),
        other => other.to_string(),
    };
    let is_replaced =
        matches!(error, ConnectionError::ApplicationClosed(close) if close.error_code == REPLACED);
    ConnectionEnd { why: clean(&why), is_replaced, was_up: false }
}
