//! The demonstration: three regions on this machine that share one budget, under traffic.

pub mod ledger;
pub mod oracle;
pub mod plan;
pub mod traffic;

use std::{io, net::SocketAddr};

/// Why there is no demonstration.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A port is taken.
    #[error(
        "port {address} ({what} of {region}) cannot be had: {cause}. Stop what listens there, or choose other ports: acequia demo --base-port {other}"
    )]
    Port {
        /// What would listen there.
        what: &'static str,
        /// In which region.
        region: &'static str,
        /// Where.
        address: SocketAddr,
        /// What the system says.
        cause: io::Error,
        /// Ports to try instead.
        other: u16,
    },
    /// The system refuses something.
    #[error("cannot start: {0}")]
    System(#[source] io::Error),
}
