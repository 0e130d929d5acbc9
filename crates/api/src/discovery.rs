//! Limits by xDS: the part of Envoy's discovery service, and of the config that envoyproxy/ratelimit receives by it,
//! that this project reads. Other fields are skipped, as unknown ones are.
//!
//! Sources: `envoy/service/discovery/v3/discovery.proto`, `ratelimit/config/ratelimit/v3/rls_conf.proto`.

use prost_types::{Any, Struct};

/// The type of the resources that carry limits.
pub const RATE_LIMIT_CONFIG: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// The call that opens a stream of resources.
pub const STREAM_AGGREGATED_RESOURCES: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// `envoy.service.discovery.v3.DiscoveryRequest`: what a client has, and what was wrong with what it was sent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryRequest {
    /// The version that the client uses; empty before the first.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The client.
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    /// The resources that are wanted; all if empty.
    #[prost(string, repeated, tag = "3")]
    pub resource_names: Vec<String>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The response that this request answers; empty in the first request of a stream.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Why the response was refused.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<RpcStatus>,
}

/// `envoy.service.discovery.v3.DiscoveryResponse`: all resources of a type.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryResponse {
    /// The version of the resources.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The resources.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// Their type.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// A name for the response.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// `envoy.config.core.v3.Node`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Node {
    /// The name by which the server knows the client.
    #[prost(string, tag = "1")]
    pub id: String,
    /// What else the server should know.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<Struct>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RpcStatus {
    /// A code of gRPC.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The reason, in words.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `ratelimit.config.ratelimit.v3.RateLimitConfig`: the limits of a domain.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitConfig {
    /// The resource's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// The first entries of descriptors.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// `ratelimit.config.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    /// The entry's key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The entry's value; any if empty.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The limit of descriptors that end here.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    /// The entries that may come next.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<Self>,
    /// Whether the limit only watches.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// Whether metrics name each value.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// Whether one of a request's limits of this kind is enough to pass.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// What answers carry.
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// `ratelimit.config.ratelimit.v3.RateLimitPolicy`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitPolicy {
    /// Second 1, minute 2, hour 3, day 4, month 5, year 6, week 7.
    #[prost(int32, tag = "1")]
    pub unit: i32,
    /// How many requests a unit.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// Whether nothing is counted.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// A name by which other limits replace this one.
    #[prost(string, tag = "4")]
    pub name: String,
    /// The limits that do not apply where this one does.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

/// `ratelimit.config.ratelimit.v3.RateLimitReplace`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitReplace {
    /// The replaced limit's name.
    #[prost(string, tag = "1")]
    pub name: String,
}
