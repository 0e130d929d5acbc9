//! QUIC between regions: identities, connections, bytes in, bytes out.

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
mod tls;

pub use crate::{
    certs::{CertFault, Credentials},
    frame::FRAME_BYTES_MAX,
    identity::{Identity, NotAnIdentity},
    mesh::{Config, Event, Mesh, MeshError, NotSent, PeerConfig, PeerStatus, Timing},
    refusal::{Refusal, Refusals},
};
