//! The mesh from outside.

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

/// Events that wait to be taken. A frame among them may have [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX)
/// bytes, though hardly one has; when they are full, nothing more is read from any peer.
const EVENTS_MAX: usize = 32;
/// The most peers of one node.
const PEERS_MAX: usize = 256;
/// How long [`Mesh::close`] waits for goodbyes to leave.
const CLOSE_TIME_MAX: Duration = Duration::from_millis(500);

/// What a mesh is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who this node is: the name that its certificate carries.
    pub identity: Identity,
    /// What it shows to others, and by whom it knows them.
    pub credentials: Credentials,
    /// The other nodes, at most 256. Nobody else is let in.
    pub peers: Vec<PeerConfig>,
    /// A secret of this node that stays the same over restarts. By it a restarted node can tell a peer at
    /// once that the connection it sends on is gone. With a new one the peer finds out after
    /// [`Timing::idle`].
    pub reset_key: [u8; 32],
    /// For simulations: makes quinn's own choices, the connections' numbers and the jitter the same in every
    /// run. `None` everywhere else: whoever knows the seed could end connections.
    pub rng_seed: Option<[u8; 32]>,
    /// How fast.
    pub timing: Timing,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Who it is.
    pub identity: Identity,
    /// Where it is: `host:port`, looked up at each dial. Not used if the peer is the one to dial.
    pub address: String,
}

/// How fast things happen. The default is for regions some 10 to 300 ms apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How often a quiet connection says that it is there. Well below `idle`: several in a row get lost
    /// before the connection does.
    pub keep_alive: Duration,
    /// How long nothing may be heard before the connection counts as lost. Larger: a cut is noticed later,
    /// and the longer a cut that a connection lives through, the longer it is quiet afterwards, since
    /// repetitions become rarer. Smaller: a busy machine or a few lost packets end connections. Never less
    /// than three times what an acknowledgement is waited for (RFC 9000 section 10.1): some ten seconds on a
    /// link with round trips of two, and for as long as those are remembered.
    pub idle: Duration,
    /// Between attempts in the first minute without a connection; a quarter more or less, by chance. An attempt is a packet
    /// of 1.2 kB, repeated a few times. It adds to the time in which a mended link is used again.
    pub dial: Duration,
    /// The same after that: some 10 kB/s for a peer that is gone.
    pub dial_later: Duration,
    /// How long an attempt may take, and the hello after it. Larger than four round trips; with the pauses
    /// above it determines how many are pending (16 at most).
    pub attempt: Duration,
    /// How long a frame may take to arrive whole. Larger than [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX)
    /// takes on the slowest link.
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
    /// The pause between attempts after so long without a connection.
    pub(crate) fn pause(&self, down_for: Duration) -> Duration {
        match down_for.as_secs() {
            0..60 => self.dial,
            _ => self.dial_later,
        }
    }
}

/// What happens. Of each peer, `Up` and `Down` take turns, `Up` first, and frames come in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first word came from a peer on a new connection, so both sides have agreed on it.
    Up(Identity),
    /// The connection is gone, and with it what was under way on it.
    Down {
        /// Whose.
        peer: Identity,
        /// Why, for people.
        why: String,
    },
    /// A frame came whole. Frames may come in another order than they were sent in.
    Frame {
        /// Who sent it: the name in its certificate.
        from: Identity,
        /// At most [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX).
        bytes: Vec<u8>,
    },
}

/// Why a frame was not taken. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// There is no connection to the peer, or no such peer.
    #[error("not connected")]
    NotConnected,
    /// Enough is under way: make a newer frame when there is room again.
    #[error("16 frames or 1 MiB are under way and not acknowledged")]
    Full,
    /// It has more than [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX) bytes and will never be taken.
    #[error("a frame of more than {} bytes", crate::FRAME_BYTES_MAX)]
    TooLong,
}

/// Why there is no mesh, or why it stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The certificate names another node.
    #[error(
        "the certificate is that of {named}, but this node is {expected}: load the one that was made for it"
    )]
    WrongName {
        /// Whom it names.
        named: Identity,
        /// Who this node is.
        expected: Identity,
    },
    /// The peers contradict each other, or this node.
    #[error("{0}")]
    Peers(String),
    /// TLS does not take the credentials.
    #[error("these certificates cannot be used: {0}. Make them anew with: acequia certs")]
    Credentials(String),
    /// The socket cannot be used.
    #[error(
        "cannot use the UDP socket of the mesh: {0}. See whether another process has the address of listen.mesh"
    )]
    Socket(#[from] io::Error),
}

/// How a peer is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Who it is.
    pub identity: Identity,
    /// Where it is dialled.
    pub address: String,
    /// Whether it is up.
    pub connected: bool,
    /// Since when it has been up or down: by the clock of the tokio runtime.
    pub since: std::time::Instant,
    /// The round trip, smoothed; zero without a connection.
    pub rtt: Duration,
    /// That of the certificate that it shows, while there is a connection.
    pub fingerprint: Option<Fingerprint>,
    /// What was refused of it since the start.
    pub refused: u64,
    /// Frames that it did not take since the start.
    pub refused_by_peer: u64,
    /// Why the last connection or attempt ended; empty while it is up.
    pub last_error: String,
    /// Frames from it that were handed on.
    pub frames_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Frames that it acknowledged.
    pub frames_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
}

/// A node's connections to its peers. Dropping it ends them, and everything that it started.
#[derive(Debug)]
pub struct Mesh {
    node: Arc<Node>,
    reset_key: [u8; 32],
    local: SocketAddr,
    tasks: Mutex<JoinSet<()>>,
}

impl Mesh {
    /// Starts on a socket, on the tokio runtime that this is called on.
    ///
    /// # Errors
    /// The configuration contradicts itself, or the socket cannot be used; nothing was started.
    pub fn start(config: Config, socket: UdpSocket) -> Result<(Self, mpsc::Receiver<Event>), MeshError> {
        let runtime = Arc::new(TokioRuntime);
        let socket = runtime.wrap_udp_socket(socket)?;
        Self::start_with(config, socket, runtime)
    }

    /// Starts on a socket and a runtime of the caller's: a simulated network, for instance. Besides `runtime`
    /// it uses tokio's timers and tasks, which a simulator has to drive as well.
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

    /// Where the socket is bound.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Sends a frame, if there is a connection with room for it. It may still get lost, with the connection.
    ///
    /// # Errors
    /// It was not taken: since only the newest state matters, nothing waits here that cannot leave now.
    pub fn send(&self, to: &Identity, frame: Vec<u8>) -> Result<(), NotSent> {
        self.node.peers.get(to).ok_or(NotSent::NotConnected)?.send(frame)
    }

    /// Whether [`Mesh::send`] would take a short frame now.
    #[must_use]
    pub fn is_writable(&self, to: &Identity) -> bool {
        self.node.peers.get(to).is_some_and(|peer| peer.is_writable())
    }

    /// How each peer is doing, in the order of their names.
    #[must_use]
    pub fn status(&self) -> Vec<PeerStatus> {
        self.node.peers.values().map(|peer| peer.status()).collect()
    }

    /// What was refused since the start.
    #[must_use]
    pub fn refused(&self) -> Refusals {
        self.node.refusals.counts()
    }

    /// Has new connections use these credentials. Connections that are there stay.
    ///
    /// # Errors
    /// They are another node's, or TLS does not take them; then those before stay in use.
    pub fn replace_credentials(&self, credentials: &Credentials) -> Result<(), MeshError> {
        check_name(credentials, &self.node.identity)?;
        let secured =
            Secured::new(credentials, &self.node.timing, &self.reset_key).map_err(MeshError::Credentials)?;
        *lock(&self.node.client) = secured.client;
        self.node.endpoint.set_server_config(Some(secured.server));
        Ok(())
    }

    /// Lets nobody in any more by these certificates, and ends the connections that they have.
    pub fn revoke(&self, revoked: BTreeSet<Fingerprint>) {
        *lock(&self.node.revoked) = revoked;
        for peer in self.node.peers.values() {
            peer.close_revoked(|connection| is_revoked(&self.node, connection));
        }
    }

    /// Says goodbye to all peers, and waits until that has left: half a second at most. No event comes after
    /// it.
    pub async fn close(&self) {
        self.node.endpoint.close(VarInt::from_u32(0), b"goodbye");
        lock(&self.tasks).abort_all();
        // What has not left by then, no peer needs: it would notice by itself.
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
    // Without a seed the jitter differs by node, which is all that it is for.
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
