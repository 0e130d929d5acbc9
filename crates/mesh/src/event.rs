//! The events of a mesh.

use crate::Identity;

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
