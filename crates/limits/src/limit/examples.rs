//! Limits to test with, written as an operator writes them.

use super::{BySpec, LimitSpec, TokenBucketSpec, ValueSpec};

pub(super) fn bucket(rate: &str, burst: u64) -> LimitSpec {
    LimitSpec {
        name: "per-key".into(),
        domain: "shop".into(),
        by: vec![BySpec::Key("api_key".into())],
        token_bucket: Some(TokenBucketSpec { rate: rate.into(), burst }),
        ..LimitSpec::default()
    }
}

pub(super) fn override_with(fields: &[(&str, &str)]) -> LimitSpec {
    let fields = fields.iter().map(|(k, v)| ((*k).to_owned(), ValueSpec::Texts(vec![(*v).to_owned()])));
    LimitSpec { overrides: vec![fields.collect()], ..bucket("60/s", 120) }
}
