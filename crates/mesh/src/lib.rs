//! QUIC between regions: identities, connections, bytes in, bytes out. **A frame is handed on whole, once, under
//! the name in its sender's certificate, or not at all; and nothing that a peer sends makes this node hold more
//! than its bounds.**
//!
//! This crate does not know what a frame means: who may spend what is decided above, and nothing above relies
//! on a frame to arrive, or to arrive in order. It does not know time of day either, but for the dates of
//! certificates.
//!
//! # Who is who
//!
//! A node is an [`Identity`]: its region and its name. Its certificate says it as the URI
//! `acequia://REGION/NODE`; one certificate, one URI ([`certs`]). Both sides show certificates (TLS 1.3 only, no
//! 0-RTT, no resumption: each connection checks anew), and whoever is not among the configured peers is
//! refused. Of two nodes the one with the smaller name dials, so a pair has one connection. A newer connection of a
//! node takes the place of an older one, which may be dead without anybody knowing.
//!
//! # Where a frame goes
//!
//! 1. [`Mesh::send`] takes it if the peer is connected and fewer than 16 frames and 1 MiB are under way to it:
//!    `peer.rs`. Otherwise nothing waits: the layer above makes a newer frame later, so a mended link is not stuck
//!    behind what is out of date.
//! 2. `connection.rs` opens a stream for it, `frame.rs` writes its length and its bytes. It counts as under way until
//!    quinn says that all of it is acknowledged.
//! 3. The other side reads up to 32 streams at once. Memory grows with what arrives, never with what is announced. A
//!    frame that is too long, too short or too late is refused, and eight of them end the connection.
//! 4. It becomes an [`Event::Frame`]. While nobody takes events nothing is read, and the sender is stopped by QUIC's
//!    flow control.
//!
//! # How a connection comes and goes
//!
//! 1. `dial.rs` begins attempts, ten a second at first, several pending at once, so that one gets through as
//!    soon as packets do. `accept.rs` lets 64 shake hands at a time, and from 16 on asks for proof of the address.
//! 2. The dialler keeps the first attempt that completes and says hello on it. With that the other side knows the
//!    connection as the one that counts, says hello too, and is up; the dialler is up when it hears that. (In TLS
//!    1.3 a dialler is done before the other side has looked at its certificate.) A dialler may send before.
//! 3. Nothing heard for two seconds (longer where the link is slow: [`Timing::idle`]), a goodbye, a refusal, or a
//!    stateless reset of a peer that has restarted, and it is down: [`Event::Down`], and the dialler begins again.
//!
//! # What it withstands, and what not
//!
//! Strangers cost a handshake each; those without a certificate of the authority never get past it. They can make
//! new connections wait by holding all 64 places from real addresses for as long as a handshake may take; connections
//! that are there do not notice. A peer that breaks the rules harms nobody but itself. A peer that keeps to the
//! rules of this crate can still send wrong frames: those are for the layer above to refuse. What was refused is
//! counted by kind ([`Mesh::refused`]) and by peer ([`Mesh::status`]), and told in the log once a minute.
//!
//! # In a simulation
//!
//! [`Mesh::start_with`] takes the UDP socket and the runtime from outside, and [`Config::rng_seed`] the place of
//! chance; all else waits on tokio's clock, and every choice between two things that are ready is made in a fixed
//! order. [`relay`] is for real sockets: a link with delay, loss and cuts.

mod accept;
pub mod certs;
mod connection;
mod dial;
mod frame;
mod identity;
mod ids;
mod mesh;
mod node;
mod peer;
mod random;
mod refusal;
pub mod relay;
mod seal;
mod tls;

pub use crate::{
    certs::{CertFault, Credentials},
    frame::FRAME_BYTES_MAX,
    identity::{Identity, NotAnIdentity},
    mesh::{Config, Event, Mesh, MeshError, NotSent, PeerConfig, PeerStatus, Timing},
    refusal::{Refusal, Refusals},
    seal::{Fingerprint, Notary, SealFault, Signed, Signer},
};
