//! The real Envoy, with routes and configs in the form in which Envoy Gateway and Envoy AI Gateway write them.

use acequia_tests::{Node, eventually};

use crate::{
    client::{Http, metric},
    reports::{Gateway, config},
    store::servers::free_port,
};

/// As Envoy Gateway writes a limit for each user of a route, and one for each network.
const ENVOY_GATEWAY: &str = "
name: default/eg/http
domain: default/eg/http
descriptors:
- key: httproute/default/shop/rule/0/match/0/*
  value: httproute/default/shop/rule/0/match/0/*
  descriptors:
  - key: rule-0-match-0
    rate_limit: { requests_per_unit: 3, unit: YEAR }
  - key: masked_remote_address
    value: 127.0.0.0/8
    descriptors:
    - key: remote_address
      rate_limit: { requests_per_unit: 5, unit: YEAR }
";

/// As Envoy AI Gateway writes quotas of a backend's models: each of them is enough to pass.
const AI_GATEWAY: &str = "
domain: ai-gateway-quota
descriptors:
- key: backend_name
  value: default/openai
  descriptors:
  - key: model_name_override
    value: large
    descriptors:
    - { key: tenant, quota_mode: true, rate_limit: { requests_per_unit: 1000, unit: MONTH } }
  - key: model_name_override
    value: small
    descriptors:
    - { key: tenant, quota_mode: true, rate_limit: { requests_per_unit: 1500, unit: MONTH } }
";

/// Envoy that asks in a domain with these `rate_limits`.
fn gateway(node: &Node, domain: &str, rate_limits: &str) -> Gateway {
    let port = free_port();
    let text = config(port, node);
    let begin = text.find("rate_limits:\n").expect("limits") + "rate_limits:\n".len();
    let end = text.find("          http_filters:").expect("filters");
    let indented: String = rate_limits.lines().map(|line| format!("{:20}{line}\n", "")).collect();
    let text = format!("{}{indented}{}", &text[..begin], &text[end..]);
    Gateway::run(port, &text.replace("domain: shop", &format!("domain: {domain}")))
}

fn status(gateway: &Gateway, headers: &[(&str, &str)]) -> u16 {
    Http::to(gateway.address).ask("GET", "/", headers, "").expect("an answer").status
}

/// The name of the config's resource is known to xDS alone, so a file has none.
fn file(text: &str) -> String {
    text.replace("name: default/eg/http\n", "")
}

#[test]
fn envoy_gateways_limits_count_by_the_user_and_by_the_network() {
    let node = Node::start_with_ratelimit("limits: []", &[("eg.yaml", &file(ENVOY_GATEWAY))]);
    let route = "{ generic_key: { descriptor_key: httproute/default/shop/rule/0/match/0/*, \
                 descriptor_value: httproute/default/shop/rule/0/match/0/* } }";
    let rate_limits = format!(
        "- actions:\n  - {route}\n  - {{ request_headers: {{ header_name: x-user-id, descriptor_key: rule-0-match-0 }} }}\n\
         - actions:\n  - {route}\n  - {{ masked_remote_address: {{ v4_prefix_mask_len: 8 }} }}\n  - {{ remote_address: {{}} }}"
    );
    // Envoy asks once itself, without a user, until it is known to answer.
    let gateway = gateway(&node, "default/eg/http", &rate_limits);
    let user = |name: &str| status(&gateway, &[("x-user-id", name)]);
    assert_eq!([user("a"), user("a"), user("a")], [200; 3]);
    assert_eq!(user("a"), 429, "this user's three");
    // That request counted for the network, too.
    assert_eq!(user("b"), 429, "the network's five");
    let hits = |key: &str| {
        let first = "httproute/default/shop/rule/0/match/0/*_httproute/default/shop/rule/0/match/0/*";
        let labels = [("domain", "default/eg/http"), ("key1", first), ("key2", key)];
        metric(&node, "ratelimit_service_rate_limit_total_hits", &labels) as u64
    };
    assert_eq!(hits("rule-0-match-0"), 5);
    assert!(hits("masked_remote_address_127.0.0.0/8.remote_address") >= 6);
}

#[test]
fn ai_gateways_quotas_count_tokens_when_a_stream_is_done_and_one_of_them_is_enough() {
    let node = Node::start_with_ratelimit("limits: []", &[("quota.yaml", AI_GATEWAY)]);
    let actions = |model: &str| {
        format!(
            "- actions:\n  - {{ generic_key: {{ descriptor_key: backend_name, descriptor_value: default/openai }} }}\n  \
             - {{ generic_key: {{ descriptor_key: model_name_override, descriptor_value: {model} }} }}\n  \
             - {{ request_headers: {{ header_name: x-tenant, descriptor_key: tenant }} }}\n  hits_addend:"
        )
    };
    let rate_limits = ["large", "small"].map(|model| {
        let actions = actions(model);
        format!("{actions} {{ number: 0 }}\n{actions} {{ number: 600 }}\n  apply_on_stream_done: true")
    });
    let gateway = gateway(&node, "ai-gateway-quota", &rate_limits.join("\n"));
    let spent = |model: &str| {
        let key = format!("model_name_override_{model}.tenant");
        let labels =
            [("domain", "ai-gateway-quota"), ("key1", "backend_name_default/openai"), ("key2", &key)];
        metric(&node, "ratelimit_service_rate_limit_total_hits", &labels) as u64
    };
    // Two streams use the large model's 1000 up, and the small one's 1500 carry a third.
    for streams in 1..=3 {
        assert!(gateway.passes("t1"), "stream {streams}");
        eventually("the stream is reported", || {
            spent("small") == 600 * streams && spent("large") == 600 * streams
        });
    }
    assert!(!gateway.passes("t1"), "both are over");
    assert!(gateway.passes("t2"), "another tenant");
}
