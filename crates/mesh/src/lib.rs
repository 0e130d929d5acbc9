//! QUIC between regions: identities, connections, bytes in, bytes out. **A frame is delivered whole, once
//! and under the name in its sender's certificate, or not at all. Nothing that a peer sends makes this node
//! hold more than its bounds**.
//!
//! This crate does not know what a frame means. The layer above decides who may spend what, and does not
//! rely on a frame to arrive, or to arrive in order. This crate does not know the time of day either,
//! except for the dates of certificates.
//!
//! # Who is who
//!
//! A node is an [`Identity`]: its region and its name. Its certificate carries them as the URI
//! `acequia://REGION/NODE`; each certificate has one such URI ([`certs`]). Both sides show certificates.
//! Only TLS 1.3 is used, without 0-RTT and without resumption, so each connection is checked anew. Nodes
//! that are not among the configured peers are refused. In each pair of nodes, the node with the smaller
//! name dials, so a pair has one connection. A newer connection of a node replaces an older one, which may
//! be dead without anybody knowing.
//!
//! # Where a frame goes
//!
//! 1. [`Mesh::send`] takes the frame if the peer is connected and fewer than 16 frames and 1 MiB are in
//!    flight to it: `peer.rs`. Otherwise nothing waits. The layer above makes a newer frame later, so a
//!    mended link is not held up by outdated frames.
//! 2. `connection.rs` opens a stream for the frame, and `frame.rs` writes its length and its bytes. The
//!    frame counts as in flight until quinn reports that all of it is acknowledged.
//! 3. The other side reads up to 32 streams at once. Memory grows with the bytes that arrive, never with
//!    the length that is announced. A frame that is too long, too short or too late is refused, and eight
//!    refused frames end the connection.
//! 4. The frame becomes an [`Event::Frame`]. While nobody takes events, nothing is read, and QUIC's flow
//!    control stops the sender.
//!
//! # How a connection comes and goes
//!
//! 1. `dial.rs` begins attempts, ten a second at first. Several are pending at once, so that one gets
//!    through as soon as packets do. `accept.rs` allows 64 handshakes at a time, and from 16 on asks for a
//!    proof of the address.
//! 2. The dialler keeps the first attempt that completes, and says hello on it. The hello tells the other
//!    side that this connection counts. The other side says hello, too, and is up. The dialler is up when it
//!    hears that hello. (In TLS 1.3 a dialler is done before the other side has checked its certificate.) A
//!    dialler may send before it is up.
//! 3. The connection is down after two seconds of silence (longer on a slow link: [`Timing::idle`]), a
//!    goodbye, a refusal, or a stateless reset from a peer that has restarted. Then [`Event::Down`] is sent,
//!    and the dialler begins again.
//!
//! # What it withstands, and what not
//!
//! Each stranger costs a handshake. Strangers without a certificate of the authority never get past the
//! handshake. Strangers can make new connections wait if they hold all 64 places from real addresses for as
//! long as a handshake may take. Connections that are up do not notice. A peer that breaks the rules harms
//! only itself. A peer that follows this crate's rules can still send wrong frames, which the layer above
//! must refuse. Refusals are counted by kind ([`Mesh::refused`]) and by peer ([`Mesh::status`]), and logged
//! once a minute.
//!
//! # In a simulation
//!
//! [`Mesh::start_with`] takes the UDP socket and the runtime from outside, and [`Config::rng_seed`]
//! replaces chance. Everything else waits on tokio's clock, and every choice between two ready things has a
//! fixed order. [`relay`] is for real sockets: a link with delay, loss and cuts.

mod accept;
pub mod certs;
mod chain;
mod config;
mod connection;
mod dial;
mod event;
mod frame;
mod identity;
mod ids;
mod lock;
mod mesh;
mod node;
mod peer;
mod random;
mod refusal;
pub mod relay;
mod seal;
mod settings;
mod tls;

pub use crate::{
    certs::{CertFault, Credentials},
    config::{Config, PeerConfig, Timing},
    event::Event,
    frame::FRAME_BYTES_MAX,
    identity::{Identity, NotAnIdentity},
    mesh::{Mesh, MeshError},
    peer::{NotSent, PeerStatus},
    refusal::{MeshRefusal, Refusals},
    seal::{Fingerprint, Notary, SignatureFault, Signed, Signer},
};
