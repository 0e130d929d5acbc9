//! Nodes of a mesh on this machine, and what their tests check.

use std::{
    net::{SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

use acequia_mesh::{Config, Event, Identity, Mesh, NotSent, PeerConfig, Timing, certs};
use tempfile::TempDir;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn identity(name: &str) -> Identity {
    Identity::new(name, format!("{name}-1"))
}

/// A folder with certificates for nodes of these names.
pub(crate) fn certificates(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let nodes: Vec<_> = names.iter().map(|name| identity(name)).collect();
    certs::create(folder.path(), &nodes, &[]).expect("certificates");
    folder
}

pub(crate) fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").expect("a socket")
}

pub(crate) fn peer(name: &str, address: SocketAddr) -> PeerConfig {
    PeerConfig { identity: identity(name), address: address.to_string() }
}

/// Shorter times than in service, where a time is only a wait.
pub(crate) fn timing() -> Timing {
    Timing::default()
}

pub(crate) fn config(folder: &Path, name: &str, peers: Vec<PeerConfig>) -> Config {
    let identity = identity(name);
    let credentials = certs::load(folder, &identity).expect("credentials");
    let mut reset_key = [7; 32];
    reset_key[0] = name.as_bytes()[0];
    Config { identity, credentials, peers, reset_key, rng_seed: None, timing: timing() }
}

/// One node.
pub(crate) struct Node {
    pub(crate) mesh: Mesh,
    pub(crate) events: mpsc::Receiver<Event>,
}

impl Node {
    pub(crate) fn start(config: Config, socket: UdpSocket) -> Self {
        let (mesh, events) = Mesh::start(config, socket).expect("a mesh");
        Self { mesh, events }
    }

    pub(crate) async fn next(&mut self) -> Event {
        timeout(PATIENCE, self.events.recv()).await.expect("an event in time").expect("an event")
    }

    pub(crate) async fn expect_up(&mut self, name: &str) {
        assert_eq!(self.next().await, Event::Up(identity(name)));
    }

    /// Waits for the end of a connection, skips other events, and returns the reason.
    pub(crate) async fn expect_down(&mut self, name: &str) -> String {
        loop {
            match self.next().await {
                Event::Down { peer, why } => {
                    assert_eq!(peer, identity(name));
                    return why;
                }
                Event::Frame { .. } => {}
                event @ Event::Up(_) => panic!("{event:?} without Down"),
            }
        }
    }

    pub(crate) async fn expect_frame(&mut self, name: &str) -> Vec<u8> {
        match self.next().await {
            Event::Frame { from, bytes } => {
                assert_eq!(from, identity(name));
                bytes
            }
            event => panic!("{event:?} in place of a frame"),
        }
    }

    /// Sends as soon as there is room.
    pub(crate) async fn send(&self, to: &str, frame: Vec<u8>) {
        let start = Instant::now();
        loop {
            match self.mesh.send(&identity(to), frame.clone()) {
                Ok(()) => return,
                Err(NotSent::Full) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) => panic!("{error}"),
            }
            assert!(start.elapsed() < PATIENCE, "no room for a frame");
        }
    }

    /// Waits until the condition holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Mesh) -> bool) {
        let start = Instant::now();
        while !holds(&self.mesh) {
            assert!(start.elapsed() < PATIENCE, "{what}: {:?} {:?}", self.mesh.status(), self.mesh.refused());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Two nodes that are up: `ap`, which dials, and `eu`.
pub(crate) async fn pair(folder: &Path) -> (Node, Node) {
    let (ap_socket, eu_socket) = (socket(), socket());
    let (ap_at, eu_at) = (ap_socket.local_addr().expect("bound"), eu_socket.local_addr().expect("bound"));
    let mut ap = Node::start(config(folder, "ap", vec![peer("eu", eu_at)]), ap_socket);
    let mut eu = Node::start(config(folder, "eu", vec![peer("ap", ap_at)]), eu_socket);
    ap.expect_up("eu").await;
    eu.expect_up("ap").await;
    (ap, eu)
}
