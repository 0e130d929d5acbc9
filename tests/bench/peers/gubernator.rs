//! The messages of gubernator that a caller needs, by their numbers on the wire.

use acequia_cli::load::{Load, Payloads, Verdict};
use prost::Message;

use crate::measure::NOWHERE;

pub(crate) const METHOD: &str = "/pb.gubernator.V1/GetRateLimits";
/// Any node answers from a copy, and tells the owner of the key later.
pub(crate) const GLOBAL: i32 = 2;
/// A year, in milliseconds.
const YEAR_MS: i64 = 365 * 86_400_000;
const OVER_LIMIT: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Requests {
    #[prost(message, repeated, tag = "1")]
    pub(crate) requests: Vec<Request>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    unique_key: String,
    #[prost(int64, tag = "3")]
    hits: i64,
    #[prost(int64, tag = "4")]
    limit: i64,
    #[prost(int64, tag = "5")]
    duration_ms: i64,
    #[prost(int32, tag = "7")]
    behavior: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Responses {
    #[prost(message, repeated, tag = "1")]
    responses: Vec<Response>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
struct Response {
    #[prost(int32, tag = "1")]
    status: i32,
    #[prost(string, tag = "5")]
    error: String,
}

impl Requests {
    /// One hit of a key, with a limit a year.
    pub(crate) fn one(key: &str, limit: u64, behavior: i32) -> Self {
        let request = Request {
            name: "bench".to_owned(),
            unique_key: key.to_owned(),
            hits: 1,
            limit: i64::try_from(limit).unwrap_or(i64::MAX),
            duration_ms: YEAR_MS,
            behavior,
        };
        Self { requests: vec![request] }
    }
}

impl Responses {
    /// Whether the one hit passes; `None` if it was not decided.
    pub(crate) fn passes(&self) -> Option<bool> {
        let [response] = self.responses.as_slice() else { return None };
        response.error.is_empty().then_some(response.status != OVER_LIMIT)
    }
}

/// Hits of so many keys.
pub(crate) fn load(keys: usize, limit: u64) -> Load {
    let messages = (0..keys).map(|key| Requests::one(&format!("k{key}"), limit, 0).encode_to_vec());
    Load::unary(NOWHERE.into(), METHOD, Payloads::new(messages), verdict)
}

fn verdict(message: &[u8]) -> Verdict {
    match Responses::decode(message).ok().and_then(|responses| responses.passes()) {
        Some(true) => Verdict::Allowed,
        Some(false) => Verdict::Denied,
        None => Verdict::Error,
    }
}
