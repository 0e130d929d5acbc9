//! Shared code of the fuzz targets. **A decoder takes any bytes: it reads or refuses them, it never panics,
//! and its memory is bounded by the number of bytes.**

pub mod memory;
pub mod place;
pub mod seeds;

/// `acequia_api::wire`, from its own files, because the rest of that crate is generated.
#[path = "../../../crates/api/src/wire"]
pub mod wire {
    mod reader;
    mod request;
    mod response;

    pub use self::{reader::*, request::*, response::*};
}

/// Proxies' questions, JSON descriptors, and YAML as text, from the files of `crates/server`.
#[path = "../../../crates/server/src/authz.rs"]
pub mod authz;
#[path = "../../../crates/server/src/json.rs"]
pub mod json;
#[path = "../../../crates/server/src/config/quote.rs"]
mod quote;

/// A config with quoted scalars: see `quote.rs` of the server.
pub fn quoted(text: &str) -> std::borrow::Cow<'_, str> {
    quote::quoted(text)
}

/// The messages of `acequia.v1`, as in `acequia_api`.
pub mod acequia {
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/acequia.v1.rs"));
    }
}

/// The messages of Envoy's API, as in `acequia_api`.
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                include!(concat!(env!("OUT_DIR"), "/envoy.config.core.v3.rs"));
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    include!(concat!(env!("OUT_DIR"), "/envoy.extensions.common.ratelimit.v3.rs"));
                }
            }
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                include!(concat!(env!("OUT_DIR"), "/envoy.service.ratelimit.v3.rs"));
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            include!(concat!(env!("OUT_DIR"), "/envoy.r#type.v3.rs"));
        }
    }
}

/// The messages of Kuadrant's API, as in `acequia_api`.
pub mod kuadrant {
    pub mod service {
        pub mod ratelimit {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/kuadrant.service.ratelimit.v1.rs"));
            }
        }
    }
}

/// The messages of the xDS project that Envoy's messages import.
pub mod xds {
    pub mod core {
        pub mod v3 {
            include!(concat!(env!("OUT_DIR"), "/xds.core.v3.rs"));
        }
    }
}
