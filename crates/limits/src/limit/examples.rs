//! Limits to test with, written as an operator writes them.

use std::collections::BTreeMap;

use super::{BySpec, Charge, Descriptors, LimitSpec, Mode, OnStoreLoss, TokenBucketSpec, ValueSpec};

pub(super) fn bucket(rate: &str, burst: u64) -> LimitSpec {
    LimitSpec {
        name: "per-key".into(),
        domain: "shop".into(),
        when: BTreeMap::new(),
        exact: false,
        by: vec![BySpec::Key("api_key".into())],
        descriptors: Descriptors::Sum,
        cost: None,
        unit: None,
        token_bucket: Some(TokenBucketSpec { rate: rate.into(), burst }),
        leaky_bucket: None,
        fixed_window: None,
        sliding_window: None,
        quota: None,
        concurrent: None,
        mode: Mode::Enforce,
        candidate_for: None,
        charge: Charge::Together,
        debt: None,
        expect: None,
        carry: false,
        sharing: None,
        on_store_loss: OnStoreLoss::Guard,
        classes: None,
        warn_at: Vec::new(),
        throttle: None,
        unlimited: BTreeMap::new(),
        overrides: Vec::new(),
    }
}

pub(super) fn override_with(fields: &[(&str, &str)]) -> LimitSpec {
    let fields = fields.iter().map(|(k, v)| ((*k).to_owned(), ValueSpec::Texts(vec![(*v).to_owned()])));
    LimitSpec { overrides: vec![fields.collect()], ..bucket("60/s", 120) }
}
