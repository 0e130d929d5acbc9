//! Configs that are broken in any way: each is read or refused, and what is read becomes limits or faults.

use acequia_api::discovery::{
    DiscoveryResponse, RATE_LIMIT_CONFIG, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use acequia_limits::{Limit, limit::LimitSpec};
use proptest::{collection::vec, prelude::*, sample::Index};
use prost::Message as _;

use super::{RatelimitDomain, from_callers, import, read_domain, xds};
use crate::limitador::read_limits;

const RATELIMIT: &str = "
domain: shop
descriptors:
  - key: tenant
    value: 'g*'
    shadow_mode: true
    share_threshold: true
    rate_limit: { unit: minute, requests_per_unit: 5, name: a, replaces: [{ name: b }] }
    descriptors: [{ key: path, quota_mode: true, rate_limit: { unlimited: true } }]
";
const LIMITADOR: &str = r#"
- namespace: shop
  max_value: 5
  seconds: 60
  conditions: ["descriptors[0]['req.method'] == 'POST' && descriptors[0].plan in ['gold', 'free']"]
  variables: ["descriptors[0]['user_id']"]
"#;

/// One change of a text: at a place some bytes go, and others come.
type Edit = (Index, usize, Vec<u8>);

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    const SIGNS: &[u8] = b":{}[]'\"*&|!=<>,.-%#?@` \n\t\\0a";
    let sign = prop_oneof![4 => prop::sample::select(SIGNS), 1 => any::<u8>()];
    vec((any::<Index>(), 0..6_usize, vec(sign, 0..6)), 0..6)
}

fn edited(text: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    for (at, gone, come) in edits {
        let at = at.index(bytes.len() + 1);
        bytes.splice(at..(at + gone).min(bytes.len()), come.iter().copied());
    }
    bytes
}

/// What is imported can be enforced, or has a fault that is told: an odd name is one.
fn are_told(specs: impl IntoIterator<Item = LimitSpec>) -> Result<(), TestCaseError> {
    for spec in specs {
        let told = Limit::new(spec).err().map(|faults| faults.iter().all(|fault| !fault.what.is_empty()));
        prop_assert!(told.unwrap_or(true));
    }
    Ok(())
}

fn imported(domains: &[RatelimitDomain]) -> Result<(), TestCaseError> {
    match import(domains) {
        Ok(imported) => {
            are_told(imported.domains.iter().flat_map(|domain| from_callers(domain)))?;
            are_told(imported.limits)
        }
        Err(faults) => {
            prop_assert!(!faults.is_empty() && faults.iter().all(|fault| !fault.is_empty()));
            Ok(())
        }
    }
}

proptest! {
    #[test]
    fn any_file_of_the_service_is_read_or_refused(edits in edits()) {
        let bytes = edited(RATELIMIT.as_bytes(), &edits);
        if let Ok(domain) = read_domain("a.yaml", &String::from_utf8_lossy(&bytes)) {
            imported(&[domain])?;
        }
    }

    #[test]
    fn any_file_of_limitador_is_read_or_refused(edits in edits()) {
        let bytes = edited(LIMITADOR.as_bytes(), &edits);
        if let Ok(limits) = read_limits("a.yaml", &String::from_utf8_lossy(&bytes)) {
            are_told(limits)?;
        }
    }

    #[test]
    fn any_response_of_a_management_server_is_read_or_refused(edits in edits(), outer in edits()) {
        let policy = RateLimitPolicy { unit: 2, requests_per_unit: 5, name: "a".to_owned(), ..Default::default() };
        let leaf = RateLimitDescriptor { key: "k".to_owned(), rate_limit: Some(policy), ..Default::default() };
        let root = RateLimitDescriptor { key: "r".to_owned(), descriptors: vec![leaf], ..Default::default() };
        let config =
            RateLimitConfig { name: "a".to_owned(), domain: "shop".to_owned(), descriptors: vec![root] };
        let value = edited(&config.encode_to_vec(), &edits);
        let resource = prost_types::Any { type_url: RATE_LIMIT_CONFIG.to_owned(), value };
        let response = DiscoveryResponse {
            version_info: "1".to_owned(),
            resources: vec![resource],
            type_url: RATE_LIMIT_CONFIG.to_owned(),
            nonce: "1".to_owned(),
        };
        let bytes = edited(&response.encode_to_vec(), &outer);
        if let Ok(response) = DiscoveryResponse::decode(bytes.as_slice())
            && let Ok(domains) = xds::domains(&response)
        {
            imported(&domains)?;
        }
    }
}
