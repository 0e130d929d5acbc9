//! The requests: one descriptor with an API key, for a number of keys.

use acequia_api::{
    acequia::v1::{CheckBatch, CheckRequest, Descriptor, Entry},
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
        service::ratelimit::v3::RateLimitRequest,
    },
};
use acequia_cli::load::Payloads;
use prost::Message;

/// A minimal config with the limit that the requests match. The limit denies nothing.
pub(crate) const CONFIG: &str = "\
region: local
node: local-1
listen: { grpc: 127.0.0.1:0, http: 127.0.0.1:0 }
limits:
  - { name: per-key, domain: bench, by: [api_key], token_bucket: { rate: 1000000000/s, burst: 1000000000 } }
";

const DOMAIN: &str = "bench";
const KEY: &str = "api_key";

/// A `RateLimitRequest` for each key.
pub(crate) fn rate_limit_requests(keys: usize) -> Payloads {
    Payloads::new((0..keys).map(|key| rate_limit_request(key).encode_to_vec()))
}

/// One hit of a key.
pub(crate) fn rate_limit_request(key: usize) -> RateLimitRequest {
    let entry = rate_limit_descriptor::Entry { key: KEY.to_owned(), value: format!("k{key}") };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: DOMAIN.to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// Enough `CheckBatch`es of `checks` checks each to ask for each key.
pub(crate) fn check_batches(keys: usize, checks: usize) -> Payloads {
    Payloads::new((0..keys.div_ceil(checks)).map(|batch| {
        let checks = (0..checks).map(|check| {
            let entry = Entry { key: KEY.to_owned(), value: format!("k{}", (batch * checks + check) % keys) };
            let descriptor = Descriptor { entries: vec![entry], ..Descriptor::default() };
            CheckRequest {
                domain: DOMAIN.to_owned(),
                descriptors: vec![descriptor],
                ..CheckRequest::default()
            }
        });
        CheckBatch { checks: checks.collect() }.encode_to_vec()
    }))
}
