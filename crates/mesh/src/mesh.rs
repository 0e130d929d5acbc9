//! The public interface of the mesh.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Mutex},
};

use quinn::{AsyncUdpSocket, Endpoint, Runtime, TokioRuntime, VarInt};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use crate::{
    Config, Credentials, Event, Fingerprint, Identity, NotSent, PeerConfig, PeerStatus, Refusals, accept,
    connection::is_revoked,
    dial,
    lock::lock,
    node::Node,
    peer::Peer,
    random::Random,
    refusal::Ledger,
    settings::SETTINGS,
    tls::{self, Secured},
};

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
        let (events, taken) = mpsc::channel(SETTINGS.frames.events_max);
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
        let _ = timeout(SETTINGS.peers.close_time_max, self.node.endpoint.wait_idle()).await;
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
    if peers.len() > SETTINGS.peers.peers_max {
        let most = SETTINGS.peers.peers_max;
        return Err(MeshError::Peers(format!("{} peers: {most} at most", peers.len())));
    }
    Ok(peers)
}
