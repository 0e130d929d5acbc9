//! The wire contract: every message here means exactly what `proto/` says.
//!
//! There are two ways to read and write the messages:
//!
//! - the generated types ([`acequia`], [`envoy`], [`kuadrant`]): messages that own their content, with gRPC clients and
//!   servers. These types are for clients, tests, and every call that is not hot.
//! - [`wire`]: borrowed views for the hot calls (Envoy's `ShouldRateLimit`, `Check` and `CheckStream`). The
//!   views decode and encode the bytes of these messages without allocating. From equal bytes, [`wire`]
//!   reads what the generated types read, except for three differences that it lists. The tests at the
//!   bottom of its files check this.
//!
//! The generated code is kept in `generated/`, so that no build needs a Protobuf compiler. The test
//! `tests/generated.rs` makes it again and compares.
//!
//! This crate does not know what a limit is, and decides nothing. Other crates refuse an unknown domain, a
//! cost of 0 or an empty descriptor.

pub mod discovery;
pub mod wire;

/// Acequia's own API.
pub mod acequia {
    /// `acequia.v1`: may this request pass?
    #[allow(missing_docs, unreachable_pub, rust_2018_idioms, rustdoc::all, clippy::all, clippy::use_self)]
    pub mod v1 {
        include!("generated/acequia.v1.rs");
    }
}

/// Envoy's API, v3: the rate limit service and its imports.
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, rustdoc::all, clippy::all, clippy::use_self)]
pub mod envoy {
    pub mod config {
        pub mod core {
            pub mod v3 {
                include!("generated/envoy.config.core.v3.rs");
            }
        }
    }
    pub mod extensions {
        pub mod common {
            pub mod ratelimit {
                pub mod v3 {
                    include!("generated/envoy.extensions.common.ratelimit.v3.rs");
                }
            }
        }
    }
    pub mod service {
        pub mod ratelimit {
            pub mod v3 {
                include!("generated/envoy.service.ratelimit.v3.rs");
            }
        }
    }
    pub mod r#type {
        pub mod v3 {
            include!("generated/envoy.r#type.v3.rs");
        }
    }
}

/// Kuadrant's API: its rate limit service.
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, rustdoc::all, clippy::all, clippy::use_self)]
pub mod kuadrant {
    pub mod service {
        pub mod ratelimit {
            pub mod v1 {
                include!("generated/kuadrant.service.ratelimit.v1.rs");
            }
        }
    }
}

/// The packages of the xDS project that Envoy's files import.
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, rustdoc::all, clippy::all, clippy::use_self)]
pub mod xds {
    pub mod core {
        pub mod v3 {
            include!("generated/xds.core.v3.rs");
        }
    }
}

/// The encoded `FileDescriptorSet` of these APIs and all their imports, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::FILE_DESCRIPTOR_SET;

    #[test]
    fn the_descriptor_set_names_the_services_and_every_import() {
        let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("a descriptor set");

        let services =
            set.file.iter().flat_map(|file| file.service.iter().map(|s| (file.package(), s.name())));
        let all = [
            ("acequia.v1", "Admin"),
            ("acequia.v1", "Limiter"),
            ("envoy.service.ratelimit.v3", "RateLimitService"),
            ("kuadrant.service.ratelimit.v1", "RateLimitService"),
        ];
        assert_eq!(services.collect::<BTreeSet<_>>(), BTreeSet::from(all));

        let files: BTreeSet<_> = set.file.iter().map(|file| file.name()).collect();
        let imports = set.file.iter().flat_map(|file| &file.dependency);
        assert_eq!(imports.filter(|import| !files.contains(import.as_str())).count(), 0);
    }
}
