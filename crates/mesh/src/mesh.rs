//! The public interface of the mesh.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Mutex},
    time::Duration,
};

use quinn::{AsyncUdpSocket, Endpoint, Runtime, TokioRuntime, VarInt};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use crate::{
    Credentials, Fingerprint, Identity, Refusals, accept,
    connection::is_revoked,
    dial,
    node::Node,
    peer::{Peer, lock},
    random::Random,
    refusal::Ledger,
    tls::{self, Secured},
};

/// The most events that wait to be taken. A frame among them may have
/// [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX) bytes, though hardly any has. When the queue is full,
/// nothing more is read from any peer.
const EVENTS_MAX: usize = 32;
/// The most peers of one node.
const PEERS_MAX: usize = 256;
/// How long [`Mesh::close`] waits for goodbyes to leave.
const CLOSE_TIME_MAX: Duration = Duration::from_millis(500);

/// The configuration of a mesh.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's name, which its certificate carries.
    pub identity: Identity,
    /// The certificate that this node shows, and the authorities that it trusts.
    pub credentials: Credentials,
    /// The other nodes, at most 256. No other node is accepted.
    pub peers: Vec<PeerConfig>,
    /// A secret of this node that stays unchanged over restarts. With it, a restarted node can tell a peer
    /// at once that the peer's connection is gone. If the secret changes, the peer finds out only after
    /// [`Timing::idle`].
    pub reset_key: [u8; 32],
    /// For simulations: makes quinn's own choices, the connection IDs and the jitter equal in every run.
    /// `None` everywhere else: anybody who knows the seed could end connections.
    pub rng_seed: Option<[u8; 32]>,
    /// Timeouts and intervals.
    pub timing: Timing,
}

/// The configuration of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// The peer's name.
    pub identity: Identity,
    /// The peer's address, `host:port`, looked up at each dial. Not used if the peer dials this node.
    pub address: String,
}

/// Timeouts and intervals. The default is for regions some 10 to 300 ms apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The interval at which a quiet connection shows that it is alive. The interval must be well below
    /// `idle`, so that several signs may get lost before the connection does.
    pub keep_alive: Duration,
    /// The longest silence before the connection counts as lost. Larger: a cut is noticed later. A longer
    /// cut is also followed by a longer silence if the connection lives through it, since repetitions
    /// become rarer. Smaller: a busy machine or a few lost packets end connections. The silence is never
    /// less than three times the wait for an acknowledgement (RFC 9000 section 10.1). On a link with round
    /// trips of two seconds, that is some ten seconds, for as long as those round trips are remembered.
    pub idle: Duration,
    /// The pause between attempts in the first minute without a connection; a quarter more or less, by
    /// chance. An attempt is a packet of 1.2 kB, repeated a few times. The pause adds to the time until a
    /// mended link is used again.
    pub dial: Duration,
    /// The pause between attempts after the first minute. These attempts cost some 10 kB/s for a peer that
    /// is gone.
    pub dial_later: Duration,
    /// The longest time for an attempt, and for the hello after it. The time should be longer than four
    /// round trips. With the pauses above it determines how many attempts are pending (16 at most).
    pub attempt: Duration,
    /// The longest time for a whole frame to arrive. The time should be longer than
    /// [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX) takes on the slowest link.
    pub frame: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_millis(300),
            idle: Duration::from_secs(2),
            dial: Duration::from_millis(100),
            dial_later: Duration::from_millis(250),
            attempt: Duration::from_millis(1500),
            frame: Duration::from_secs(10),
        }
    }
}

impl Timing {
    /// The pause between attempts, `down_for` after the connection was lost.
    pub(crate) fn pause(&self, down_for: Duration) -> Duration {
        match down_for.as_secs() {
            0..60 => self.dial,
            _ => self.dial_later,
        }
    }
}

/// An event of the mesh. For each peer, `Up` and `Down` alternate, `Up` comes first, and frames come in
/// between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first message of a peer arrived on a new connection, so both sides have agreed on this
    /// connection.
    Up(Identity),
    /// The connection is gone, with everything in flight on it.
    Down {
        /// The peer.
        peer: Identity,
        /// The reason, as text for people.
        why: String,
    },
    /// A whole frame arrived. Frames may arrive in another order than they were sent in.
    Frame {
        /// The sender: the name in its certificate.
        from: Identity,
        /// The frame's bytes, at most [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX).
        bytes: Vec<u8>,
    },
}

/// Why a frame was not taken. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// There is no connection to the peer, or no such peer.
    #[error("not connected")]
    NotConnected,
    /// Enough is in flight: make a newer frame when there is room again.
    #[error("16 frames or 1 MiB are under way and not acknowledged")]
    Full,
    /// The frame has more than [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX) bytes and will never be taken.
    #[error("a frame of more than {} bytes", crate::FRAME_BYTES_MAX)]
    TooLong,
}

/// Why a mesh cannot start, or cannot change its credentials.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The certificate names another node.
    #[error(
        "the certificate is that of {named}, but this node is {expected}: load the one that was made for it"
    )]
    WrongName {
        /// The node that the certificate names.
        named: Identity,
        /// This node's name.
        expected: Identity,
    },
    /// The peers contradict each other, or this node.
    #[error("{0}")]
    Peers(String),
    /// TLS does not accept the credentials.
    #[error("these certificates cannot be used: {0}. Make them anew with: acequia certs")]
    Credentials(String),
    /// The socket cannot be used.
    #[error(
        "cannot use the UDP socket of the mesh: {0}. See whether another process has the address of listen.mesh"
    )]
    Socket(#[from] io::Error),
}

/// The status of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer's name.
    pub identity: Identity,
    /// The address at which the peer is dialled.
    pub address: String,
    /// Whether the connection is up.
    pub connected: bool,
    /// The time of the last change between up and down, by the clock of the tokio runtime.
    pub since: std::time::Instant,
    /// The round trip, smoothed; zero without a connection.
    pub rtt: Duration,
    /// The fingerprint of the peer's certificate, while there is a connection.
    pub fingerprint: Option<Fingerprint>,
    /// The number of refusals of this peer since the start.
    pub refused: u64,
    /// The number of frames that the peer refused since the start.
    pub refused_by_peer: u64,
    /// Why the last connection or attempt ended; empty while it is up.
    pub last_error: String,
    /// Frames from the peer that were delivered.
    pub frames_in: u64,
    /// The bytes of those frames.
    pub bytes_in: u64,
    /// Frames that the peer acknowledged.
    pub frames_out: u64,
    /// The bytes of those frames.
    pub bytes_out: u64,
}

/// A node's connections to its peers. Dropping the mesh ends them, and everything that it started.
#[derive(Debug)]
pub struct Mesh {
    node: Arc<Node>,
    reset_key: [u8; 32],
    local: SocketAddr,
    tasks: Mutex<JoinSet<()>>,
}

impl Mesh {
    /// Starts a mesh on a socket, on the current tokio runtime.
    ///
    /// # Errors
    /// The configuration contradicts itself, or the socket cannot be used. Nothing was started.
    pub fn start(config: Config, socket: UdpSocket) -> Result<(Self, mpsc::Receiver<Event>), MeshError> {
        let runtime = Arc::new(TokioRuntime);
        let socket = runtime.wrap_udp_socket(socket)?;
        Self::start_with(config, socket, runtime)
    }

    /// Starts a mesh on the caller's socket and runtime: for instance, a simulated network. The mesh also
    /// uses tokio's timers and tasks, which a simulator has to drive as well.
    ///
    /// # Errors
    /// As [`Mesh::start`].
    pub fn start_with(
        config: Config,
        socket: Arc<dyn AsyncUdpSocket>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<(Self, mpsc::Receiver<Event>), MeshError> {
        check_name(&config.credentials, &config.identity)?;
        let peers = peers(&config)?;
        let secured = Secured::new(&config.credentials, &config.timing, &config.reset_key)
            .map_err(MeshError::Credentials)?;
        let endpoint = Endpoint::new_with_abstract_socket(
            tls::endpoint(&config.reset_key, config.rng_seed),
            Some(secured.server),
            socket,
            runtime,
        )?;
        let local = endpoint.local_addr()?;
        let node = Arc::new(Node {
            identity: config.identity,
            timing: config.timing,
            peers,
            refusals: Ledger::default(),
            endpoint,
            is_ipv4: local.is_ipv4(),
            client: Mutex::new(secured.client),
            revoked: Mutex::default(),
        });
        let (events, taken) = mpsc::channel(EVENTS_MAX);
        let tasks = Mutex::new(start_tasks(&node, &events, config.rng_seed));
        Ok((Self { node, reset_key: config.reset_key, local, tasks }, taken))
    }

    /// The address that the socket is bound to.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Sends a frame, if there is a connection with room for it. The frame may still be lost, with the
    /// connection.
    ///
    /// # Errors
    /// The frame was not taken. Only the newest state matters, so no frame waits here if it cannot be sent
    /// now.
    pub fn send(&self, to: &Identity, frame: Vec<u8>) -> Result<(), NotSent> {
        self.node.peers.get(to).ok_or(NotSent::NotConnected)?.send(frame)
    }

    /// Whether [`Mesh::send`] would take a short frame now.
    #[must_use]
    pub fn is_writable(&self, to: &Identity) -> bool {
        self.node.peers.get(to).is_some_and(|peer| peer.is_writable())
    }

    /// The status of each peer, in the order of their names.
    #[must_use]
    pub fn status(&self) -> Vec<PeerStatus> {
        self.node.peers.values().map(|peer| peer.status()).collect()
    }

    /// The number of refusals since the start, by kind.
    #[must_use]
    pub fn refused(&self) -> Refusals {
        self.node.refusals.counts()
    }

    /// Makes new connections use these credentials. Connections that are up stay.
    ///
    /// # Errors
    /// The credentials belong to another node, or TLS does not accept them. Then the earlier credentials
    /// stay in use.
    pub fn replace_credentials(&self, credentials: &Credentials) -> Result<(), MeshError> {
        check_name(credentials, &self.node.identity)?;
        let secured =
            Secured::new(credentials, &self.node.timing, &self.reset_key).map_err(MeshError::Credentials)?;
        *lock(&self.node.client) = secured.client;
        self.node.endpoint.set_server_config(Some(secured.server));
        Ok(())
    }

    /// Stops accepting these certificates, and ends the connections that use them.
    pub fn revoke(&self, revoked: BTreeSet<Fingerprint>) {
        *lock(&self.node.revoked) = revoked;
        for peer in self.node.peers.values() {
            peer.close_revoked(|connection| is_revoked(&self.node, connection));
        }
    }

    /// Says goodbye to all peers, and waits until the goodbyes are sent: half a second at most. No event
    /// comes after that.
    pub async fn close(&self) {
        self.node.endpoint.close(VarInt::from_u32(0), b"goodbye");
        lock(&self.tasks).abort_all();
        // No peer needs a goodbye that is not sent by then: the peer would notice by itself.
        let _ = timeout(CLOSE_TIME_MAX, self.node.endpoint.wait_idle()).await;
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.node.endpoint.close(VarInt::from_u32(0), b"goodbye");
    }
}

fn start_tasks(node: &Arc<Node>, events: &mpsc::Sender<Event>, rng_seed: Option<[u8; 32]>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(accept::accept(Arc::clone(node), events.clone()));
    // Without a seed the jitter differs by node, and the jitter is for nothing else.
    let seed = rng_seed.unwrap_or_else(|| {
        let mut seed = [0; 32];
        for (place, byte) in node.identity.uri().bytes().enumerate() {
            seed[place % 32] ^= byte.rotate_left((place / 32) as u32);
        }
        seed
    });
    let mut random = Random::from_bytes(&seed);
    for peer in node.peers.values().filter(|peer| node.dials(peer)) {
        let random = Random::new(random.next());
        tasks.spawn(dial::keep(Arc::clone(node), events.clone(), Arc::clone(peer), random));
    }
    tasks
}

fn check_name(credentials: &Credentials, expected: &Identity) -> Result<(), MeshError> {
    if credentials.identity() == expected {
        return Ok(());
    }
    let named = credentials.identity().clone();
    Err(MeshError::WrongName { named, expected: expected.clone() })
}

fn peers(config: &Config) -> Result<BTreeMap<Identity, Arc<Peer>>, MeshError> {
    let mut peers = BTreeMap::new();
    for PeerConfig { identity, address } in &config.peers {
        if *identity == config.identity {
            return Err(MeshError::Peers(format!(
                "{identity} is this node itself: leave it out of its peers"
            )));
        }
        let peer = Arc::new(Peer::new(identity.clone(), address.clone()));
        if peers.insert(identity.clone(), peer).is_some() {
            return Err(MeshError::Peers(format!("{identity} is twice among the peers: leave one out")));
        }
    }
    if peers.len() > PEERS_MAX {
        return Err(MeshError::Peers(format!("{} peers: {PEERS_MAX} at most", peers.len())));
    }
    Ok(peers)
}
