//! The services that callers connect to.

use std::time::Duration;

use crate::settings::SETTINGS;

/// The service that a connection came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Grpc,
    Http,
    Admin,
}

impl Port {
    /// All ports, in the order of their numbers.
    pub(crate) const ALL: [Self; 3] = [Self::Grpc, Self::Http, Self::Admin];

    /// The name in logs and metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
            Self::Admin => "admin",
        }
    }

    /// How long a new connection may take to make its first call. Clients of gRPC connect before they have
    /// anything to ask.
    pub(crate) const fn first_call(self) -> Duration {
        match self {
            Self::Grpc => SETTINGS.connections.first_call_grpc,
            Self::Http | Self::Admin => SETTINGS.connections.first_call_http,
        }
    }
}
