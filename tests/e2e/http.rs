//! The HTTP port: checks for programs, status answers for proxies, headers, metrics, health.

use std::time::{Duration, Instant};

use acequia_tests::Node;
use serde_json::{Value, json};

use crate::{
    client::{
        Http, Reply, body, check, check_cost, metric, raw_connection, raw_reply, raw_request, send_all,
    },
    openmetrics, windows,
};

#[test]
fn a_bucket_gives_its_burst_and_counts_it_down() {
    let node = Node::start(
        "limits: [{ name: per-key, domain: shop, by: [api_key], token_bucket: { rate: 1/h, burst: 3 } }]",
    );
    let key = &[("api_key", "k1")];

    for left in [2, 1, 0] {
        let answer = check(&node, key);
        assert_eq!(answer["allowed"], true);
        assert_eq!(answer["limit"], "per-key");
        assert_eq!(answer["remaining"], left);
        assert_eq!(answer["reason"], "within-limit");
        assert_eq!(answer["retry_after_ms"], Value::Null);
    }

    let answer = check(&node, key);
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["remaining"], 0);
    assert_eq!(answer["reason"], "over-limit");
    // At one unit an hour, the first unit returns an hour after it was spent.
    let retry = answer["retry_after_ms"].as_u64().expect("a wait");
    assert!((3_500_000..=3_600_000).contains(&retry), "{retry}");
    let limit = &answer["limits"][0];
    assert_eq!(limit["name"], "per-key");
    assert_eq!(limit["algorithm"], "token_bucket");
    assert_eq!((limit["budget"].as_u64(), limit["remaining"].as_u64()), (Some(3), Some(0)));
    assert_eq!((limit["cost"].as_u64(), &limit["descriptors"]), (Some(1), &json!([0])));
    assert_eq!((&limit["outcome"], &limit["reason"]), (&json!("deny"), &json!("over-limit")));

    let other = check(&node, &[("api_key", "k2")]);
    assert_eq!(other["remaining"], 2, "every key has a cell of its own");
}

#[test]
fn a_denied_request_passes_after_its_retry_time_and_not_before() {
    let node = Node::start("limits: [{ name: slow, domain: shop, token_bucket: { rate: 3/s, burst: 1 } }]");
    let mut http = Http::connect(&node);
    let question = body(&[("any", "thing")]);
    assert_eq!(http.check(&question).json()["allowed"], true);

    let denied_after = Instant::now();
    let answer = http.check(&question).json();
    let denied_before = Instant::now();
    assert_eq!(answer["allowed"], false);
    let retry = Duration::from_millis(answer["retry_after_ms"].as_u64().expect("a wait"));
    assert!(retry <= Duration::from_millis(334), "{retry:?}");

    loop {
        let asked = Instant::now();
        if http.check(&question).json()["allowed"] == true {
            let waited = denied_after.elapsed();
            assert!(waited >= retry - Duration::from_millis(1), "{retry:?} was told, it took {waited:?}");
            break;
        }
        assert!(asked < denied_before + retry, "denied after the wait of {retry:?} that was told");
    }
}

#[test]
fn descriptors_are_objects_or_lists_of_pairs_and_their_order_does_not_matter() {
    let node = Node::start(&format!(
        "limits: [{{ name: by-both, domain: shop, when: {{ beta: true }}, by: [tenant, version], \
         fixed_window: {{ limit: 9, window: {} }} }}]",
        windows::long()
    ));
    let mut http = Http::connect(&node);
    let same_cell = [
        r#"{ "tenant": "a", "version": 2, "beta": true }"#,
        r#"{ "version": "2", "beta": "true", "extra": "x", "tenant": "a" }"#,
        r#"[["tenant", "a"], ["version", 2], ["beta", true]]"#,
        // If a key comes twice, the first value counts.
        r#"[["beta", "true"], ["version", "2"], ["tenant", "a"], ["tenant", "b"]]"#,
    ];
    for (number, descriptor) in same_cell.into_iter().enumerate() {
        let question = format!(r#"{{ "domain": "shop", "descriptors": [{descriptor}] }}"#);
        assert_eq!(http.check(&question).json()["remaining"], 8 - number, "{descriptor}");
    }
    // A descriptor without a `by` key matches nothing, and neither does another domain.
    for (domain, descriptor) in [("shop", r#"{ "tenant": "a", "beta": true }"#), ("bank", same_cell[0])] {
        let question = format!(r#"{{ "domain": "{domain}", "descriptors": [{descriptor}] }}"#);
        let answer = http.check(&question).json();
        assert_eq!((&answer["allowed"], &answer["reason"]), (&json!(true), &json!("no-match")));
        assert_eq!((&answer["limit"], &answer["remaining"]), (&Value::Null, &Value::Null));
    }
}

#[test]
fn a_number_is_the_text_that_was_sent() {
    let node = Node::start(&format!(
        "limits: [{{ name: by-id, domain: shop, by: [id], fixed_window: {{ limit: 9, window: {} }} }}]",
        windows::long()
    ));
    let mut http = Http::connect(&node);
    let numbers = [
        "123456789012345678901234567890",
        "123456789012345678901234567891",
        "1.10",
        "1.1",
        "1e2",
        "100",
        "-0",
        "0",
        "true",
    ];
    for number in numbers {
        for (written, left) in [(number.to_owned(), 8), (format!("\"{number}\""), 7)] {
            let question = format!(r#"{{ "domain": "shop", "descriptors": [{{ "id": {written} }}] }}"#);
            assert_eq!(http.check(&question).json()["remaining"], left, "{written}");
        }
    }
    for wrong in ["null", "[1]", "{}"] {
        let question = format!(r#"{{ "domain": "shop", "descriptors": [{{ "id": {wrong} }}] }}"#);
        assert_eq!(http.check(&question).status, 400, "{wrong}");
    }
}

#[test]
fn a_peek_tells_the_verdict_and_why_limits_do_not_match() {
    let node = Node::start(&format!(
        "limits:\n- {{ name: per-key, domain: shop, by: [key], fixed_window: {{ limit: 1, window: {window} }} }}\n\
         - {{ name: exports, domain: shop, when: {{ route: /export }}, fixed_window: {{ limit: 9, window: {window} }} }}\n\
         - {{ name: alone, domain: shop, exact: true, by: [key], when: {{ svc: {{ absent: true }} }}, \
         fixed_window: {{ limit: 9, window: {window} }} }}\n",
        window = windows::long()
    ));
    let mut http = Http::connect(&node);
    let question = body(&[("key", "k"), ("svc", "a")]);
    for _ in 0..2 {
        let peek = http.ask("POST", "/v1/peek", &[], &question).expect("an answer");
        let (status, answer) = (peek.status, peek.json());
        assert_eq!((status, &answer["allowed"], &answer["remaining"]), (200, &json!(true), &json!(1)));
        let unmatched: Vec<_> = answer["unmatched"].as_array().expect("a list").clone();
        assert_eq!(unmatched[0], json!({ "name": "exports", "why": "no entry route" }));
        assert_eq!(unmatched[1], json!({ "name": "alone", "why": "there is an entry svc" }));
    }
    let stranger =
        http.ask("POST", "/v1/peek", &[], &body(&[("key", "k"), ("x", "a")])).expect("an answer").json();
    assert_eq!(stranger["unmatched"][1]["why"], "entry x is not in `when` or `by`, and the limit is exact");
    assert_eq!(http.check(&question).json()["remaining"], 0, "looking charged nothing");
    let denied = http.ask("POST", "/v1/peek", &[], &question).expect("an answer");
    assert_eq!((denied.status, &denied.json()["allowed"]), (200, &json!(false)));
    for wrong in ["{", r#"{"domain": "shop", "descriptors": [], "id": "x"}"#, &question.replace("shop", "")] {
        assert_eq!(http.ask("POST", "/v1/peek", &[], wrong).expect("an answer").status, 400, "{wrong}");
    }
}

#[test]
fn two_descriptors_in_one_cell_charge_their_sum_or_the_larger() {
    let node = Node::start(&format!(
        "limits:\n- {{ name: sum, domain: sum, by: [key], fixed_window: {{ limit: 9, window: {window} }} }}\n\
         - {{ name: max, domain: max, by: [key], descriptors: max, fixed_window: {{ limit: 9, window: {window} }} }}\n",
        window = windows::long()
    ));
    let mut http = Http::connect(&node);
    for (domain, left) in [("sum", 3), ("max", 6)] {
        let question = format!(
            r#"{{ "domain": "{domain}", "cost": 3, "descriptors": [{{ "key": "a", "svc": "s" }}, {{ "key": "a" }}] }}"#
        );
        assert_eq!(http.check(&question).json()["remaining"], left, "{domain}");
    }
}

#[test]
fn a_request_without_a_limit_passes_or_not_as_the_config_says() {
    let limits =
        "limits: [{ name: per-key, domain: shop, by: [key], token_bucket: { rate: 1/h, burst: 9 } }]";
    let node = Node::start(limits);
    let mut http = Http::connect(&node);
    let ask = |http: &mut Http, domain: &str, key: &str| {
        let question = body(&[(key, "k")]).replace("shop", domain);
        http.check(&question).json()
    };
    for (domain, key) in [("shop", "kye"), ("shpo", "key"), ("shpo", "key")] {
        let answer = ask(&mut http, domain, key);
        assert_eq!((&answer["allowed"], &answer["reason"]), (&json!(true), &json!("no-match")), "{answer}");
    }
    assert_eq!(metric(&node, "acequia_unmatched_requests_total", &[("domain", "shop")]), 1.0);
    assert_eq!(metric(&node, "acequia_unmatched_requests_total", &[("domain", "shpo")]), 2.0);
    node.until_it_says("no limit is about some requests");

    node.write_config(&format!("unknown_domain: deny\ndomains: {{ shop: {{ no_match: deny }}, free: {{ no_match: allow }} }}\n{limits}"));
    node.hup();
    node.until_it_says("config read again");
    for (domain, key, allowed) in
        [("shop", "key", true), ("shop", "kye", false), ("shpo", "key", false), ("free", "key", true)]
    {
        let answer = ask(&mut http, domain, key);
        assert_eq!(answer["allowed"], allowed, "{domain} {key}: {answer}");
        assert_eq!(answer["retry_after_ms"], Value::Null, "no wait helps");
    }
    let denied = http.get("/v1/authz?domain=shpo&key=k");
    assert_eq!((denied.status, denied.header("acequia-reason")), (429, Some("no-match")));
    assert_eq!(http.get("/v1/authz?domain=shop&key=k").status, 200);
}

#[test]
fn several_descriptors_pass_together_or_not_at_all() {
    let window = windows::long();
    let node = Node::start(&format!(
        "limits:\n\
         - {{ name: per-key, domain: shop, by: [api_key], fixed_window: {{ limit: 10, window: {window} }} }}\n\
         - {{ name: per-route, domain: shop, by: [route], fixed_window: {{ limit: 3, window: {window} }} }}\n"
    ));
    let ask = |descriptors: Value, cost: u64| {
        let question = json!({ "domain": "shop", "descriptors": descriptors, "cost": cost });
        Http::connect(&node).check(&question.to_string()).json()
    };

    let answer = ask(json!([{ "api_key": "k" }, { "route": "/r" }]), 2);
    assert_eq!((&answer["allowed"], &answer["limit"]), (&json!(true), &json!("per-route")));
    assert_eq!(
        (&answer["limits"][0]["remaining"], &answer["limits"][1]["remaining"]),
        (&json!(8), &json!(1))
    );

    let answer = ask(json!([{ "api_key": "k" }, { "route": "/r" }]), 2);
    assert_eq!((&answer["allowed"], &answer["limit"]), (&json!(false), &json!("per-route")));
    assert_eq!(answer["limits"][1]["descriptors"], json!([1]));
    assert_eq!(ask(json!([{ "api_key": "k" }]), 1)["remaining"], 7, "the denied request charged nothing");

    // Two descriptors in one cell charge the sum of their costs.
    let answer = ask(json!([{ "api_key": "k" }, { "api_key": "k", "x": "y" }]), 3);
    assert_eq!((&answer["allowed"], &answer["remaining"]), (&json!(true), &json!(1)));
    assert_eq!(
        (&answer["limits"][0]["cost"], &answer["limits"][0]["descriptors"]),
        (&json!(6), &json!([0, 1]))
    );
}

#[test]
fn a_limit_may_charge_what_another_denied() {
    let node = Node::start(
        "limits:\n\
         - { name: attempts, domain: shop, by: [k], charge: each, token_bucket: { rate: 1/h, burst: 9 } }\n\
         - { name: tight, domain: shop, by: [k], token_bucket: { rate: 1/h, burst: 1 } }\n",
    );
    for (allowed, attempts) in [(true, 8), (false, 7), (false, 6)] {
        let answer = check(&node, &[("k", "v")]);
        let left = answer["limits"][0]["remaining"].as_u64();
        assert_eq!((&answer["allowed"], left), (&json!(allowed), Some(attempts)));
    }
}

#[test]
fn limits_weigh_exempt_watch_and_make_exceptions() {
    let window = windows::long();
    let node = Node::start(&format!(
        r#"limits:
- name: heavy
  domain: shop
  when: {{ route: ["/report/*", "!/report/tiny"] }}
  by: [tenant, {{ ip: address, v4: 24, v6: 64 }}]
  cost: 10
  fixed_window: {{ limit: 20, window: {window} }}
  unlimited: {{ tenant: [internal] }}
  overrides:
  - {{ tenant: big-co, limit: 1000, why: launch }}
  - {{ tenant: was-big, limit: 1000, until: 2020-01-01 }}
- {{ name: watched, domain: shop, by: [watched], mode: shadow, fixed_window: {{ limit: 1, window: {window} }} }}
"#
    ));
    let report =
        |tenant, address| check(&node, &[("route", "/report/big"), ("tenant", tenant), ("address", address)]);

    assert_eq!(report("a", "10.0.0.1")["remaining"], 10);
    assert_eq!(report("a", "10.0.0.200")["remaining"], 0, "the same network");
    assert_eq!(report("a", "10.0.1.1")["remaining"], 10);
    assert_eq!(report("big-co", "10.0.0.1")["remaining"], 990);
    assert_eq!(report("was-big", "10.0.0.1")["remaining"], 10);
    let exempt = report("internal", "10.0.0.1");
    assert_eq!((&exempt["allowed"], &exempt["reason"]), (&json!(true), &json!("unlimited")));
    assert_eq!(exempt["limits"][0]["remaining"], Value::Null);
    let tiny = check(&node, &[("route", "/report/tiny"), ("tenant", "a"), ("address", "10.0.0.1")]);
    assert_eq!(tiny["reason"], "no-match");

    check(&node, &[("watched", "w")]);
    let watched = check(&node, &[("watched", "w")]);
    assert_eq!(
        (&watched["allowed"], &watched["limits"][0]["outcome"]),
        (&json!(true), &json!("shadow-deny"))
    );
}

#[test]
fn a_leaky_bucket_says_how_long_to_wait_and_a_proxy_is_denied_instead() {
    let node = Node::start(
        "limits: [{ name: queue, domain: shop, by: [k], leaky_bucket: { rate: 1/m, queue: 3 } }]",
    );
    let key = &[("k", "v")];
    assert_eq!(check(&node, key)["delay_ms"], 0);
    for turn in [1, 2] {
        let answer = check(&node, key);
        assert_eq!(answer["allowed"], true);
        let delay = answer["delay_ms"].as_u64().expect("a delay");
        assert!((60_000 * turn - 20_000..=60_000 * turn).contains(&delay), "turn {turn}: {delay}");
    }
    let full = check(&node, key);
    assert_eq!((&full["allowed"], &full["delay_ms"]), (&json!(false), &json!(0)));

    let mut http = Http::connect(&node);
    assert_eq!(http.get("/v1/authz?domain=shop&k=other").status, 200);
    let denied = http.get("/v1/authz?domain=shop&k=other");
    assert_eq!(denied.status, 429);
    assert!((40..=60).contains(&denied.number("retry-after")), "{denied:?}");
}

#[test]
fn a_proxy_asks_for_a_status() {
    let node = Node::start(&format!(
        "limits: [{{ name: per-key, domain: shop, by: [api_key], fixed_window: {{ limit: 3, window: {} }} }}]",
        windows::long()
    ));
    let mut http = Http::connect(&node);
    let path = "/v1/authz?domain=shop&api_key=k%201";

    let allowed = http.get(path);
    assert_eq!((allowed.status, allowed.body.as_str()), (200, ""));
    assert_eq!(allowed.header("retry-after"), None);
    let head = http.ask("HEAD", path, &[], "").expect("an answer");
    assert_eq!(head.status, 200);
    assert_eq!(http.get(&format!("{path}&cost=2")).status, 429, "2 of 3 are spent");
    assert_eq!(http.get(path).status, 200);
    for (path, status) in [(path.to_owned(), 429), (format!("{path}&deny_status=403"), 403)] {
        for method in ["GET", "HEAD"] {
            let denied = http.ask(method, &path, &[], "").expect("an answer");
            assert_eq!(denied.status, status);
            assert!(denied.number("retry-after") > 0);
        }
    }

    // The value comes from a header of the request. Equal values share a cell.
    let from_header = "/v1/authz?domain=shop&header.api_key=X-Api-Key";
    let ask = |http: &mut Http, headers: &[(&str, &str)]| {
        http.ask("GET", from_header, headers, "").expect("an answer").status
    };
    assert_eq!(ask(&mut http, &[("x-api-key", "k 1")]), 429);
    assert_eq!(ask(&mut http, &[("x-api-key", "k2")]), 200);
    // A header that comes twice is a list, and not the first of two values.
    assert_eq!(ask(&mut http, &[("x-api-key", "k 1"), ("x-api-key", "k5")]), 200);
    assert_eq!(check(&node, &[("api_key", "k 1, k5")])["remaining"], 1);
    assert_eq!(check(&node, &[("api_key", "k2")])["remaining"], 1);

    for fault in ["deny_status=200", "deny_status=700", "deny_status=no", "cost=0", "cost=-1", "cost=x"] {
        let refused = http.get(&format!("/v1/authz?domain=shop&api_key=k3&{fault}"));
        assert_eq!(refused.status, 400, "{fault}");
    }
    for twice in ["domain=x", "api_key=k4", "header.api_key=X-Api-Key", "cost=1&cost=1"] {
        let refused = http.get(&format!("/v1/authz?domain=shop&api_key=k3&{twice}"));
        assert_eq!(refused.status, 400, "{twice}");
        assert!(refused.body.contains("comes twice"), "{refused:?}");
    }
    assert_eq!(http.get("/v1/authz?api_key=k3").status, 400, "no domain");
    assert_eq!(http.ask("POST", path, &[], "").expect("an answer").status, 405);
    assert_eq!(check(&node, &[("api_key", "k3")])["remaining"], 2, "what was refused charged nothing");
}

#[test]
fn a_header_that_is_not_there_is_an_entry_that_is_not_there() {
    let node = Node::start(&format!(
        "limits: [{{ name: per-key, domain: shop, by: [api_key], fixed_window: {{ limit: 0, window: {} }} }}]",
        windows::long()
    ));
    let mut http = Http::connect(&node);
    let path = "/v1/authz?domain=shop&route=x&header.api_key=X-Api-Key";
    assert_eq!(http.get(path).status, 200, "no match");
    assert_eq!(http.ask("GET", path, &[("X-API-KEY", "")], "").expect("an answer").status, 429);
    // Without any entry no limit matches, which is no error: a proxy would turn an error into 500.
    let empty = http.get("/v1/authz?domain=shop&header.api_key=X-Api-Key");
    assert_eq!((empty.status, empty.header("acequia-reason")), (200, Some("no-match")));
    assert_eq!(metric(&node, "acequia_unmatched_descriptors_total", &[]), 2.0);
    assert_eq!(http.get("/v1/authz?domain=shop&route=x&header.api_key=no%20header%0a").status, 200);
}

/// Proxies ask with what clients sent, and nginx turns an error into 500.
#[test]
fn whatever_a_client_puts_into_a_value_is_counted_or_denied_for_a_proxy() {
    let node = Node::start(&format!(
        "limits: [{{ name: per-key, domain: shop, by: [api_key], fixed_window: {{ limit: 1, window: {} }} }}]",
        windows::long()
    ));
    let mut http = Http::connect(&node);
    for value in ["%01", "%00", "%0A", "%FF%FE", "%7F", ""] {
        let path = format!("/v1/authz?domain=shop&api_key={value}");
        assert_eq!([http.get(&path).status, http.get(&path).status], [200, 429], "{value}");
    }
    let long = "x".repeat((64 << 10) + 1);
    let path = "/v1/authz?domain=shop&deny_status=403&header.api_key=x-api-key";
    let denied = http.ask("GET", path, &[("x-api-key", &long)], "").expect("an answer");
    assert_eq!((denied.status, denied.header("acequia-reason")), (403, Some("too-large")));
}

#[test]
fn draft_11_lists_every_enforced_limit() {
    let Replies { allowed, denied, window_s } = with_dialects("[draft-11]");
    let policies = format!(r#""bucket";q=120;w=2, "window";q=2;w={window_s}"#);
    for (reply, left) in [(&allowed, r#""bucket";r=119;t=1"#), (&denied, r#""bucket";r="#)] {
        assert_eq!(reply.header("ratelimit-policy"), Some(policies.as_str()));
        let limits = reply.header("ratelimit").expect("a header");
        assert!(limits.starts_with(left), "{limits}");
        let (_, seconds) = limits.split_once(r#", "window";r=1;t="#).unwrap_or_else(|| panic!("{limits}"));
        assert!((1..=window_s).contains(&seconds.parse().expect("seconds")), "{limits}");
    }
    let replies = with_dialects("");
    assert!(replies.allowed.header("ratelimit-policy").is_some(), "the dialect where none is named");
}

#[test]
fn the_triples_tell_of_the_strictest_limit() {
    for (dialect, prefix) in [("triple", "ratelimit"), ("x-ratelimit", "x-ratelimit")] {
        let Replies { allowed, denied, window_s } = with_dialects(&format!("[{dialect}]"));
        for reply in [&allowed, &denied] {
            assert_eq!(reply.number(&format!("{prefix}-limit")), 2);
            assert_eq!(reply.number(&format!("{prefix}-remaining")), 1);
            assert!((1..=window_s).contains(&reply.number(&format!("{prefix}-reset"))), "{reply:?}");
        }
        // Retries are spread, so not everybody returns at the edge.
        let (reset, retry) = (denied.number(&format!("{prefix}-reset")), denied.number("retry-after"));
        assert!((reset..=reset + 5).contains(&retry), "{denied:?}");
        assert_eq!(allowed.header("ratelimit-policy"), None);
    }
}

#[test]
fn the_epoch_dialect_tells_the_time_of_day() {
    let before = windows::now_s();
    let Replies { allowed, denied, window_s } = with_dialects("[x-ratelimit-epoch]");
    let after = windows::now_s();
    for reply in [allowed, denied] {
        assert_eq!((reply.number("x-ratelimit-limit"), reply.number("x-ratelimit-remaining")), (2, 1));
        let end = reply.number("x-ratelimit-reset");
        assert!((before + 1..=after + window_s).contains(&end), "{reply:?}");
        assert_eq!(end % window_s, 0, "a window ends at its edge: {reply:?}");
    }
}

#[test]
fn dialects_go_together_and_without_any_a_denial_still_says_when() {
    let Replies { allowed, denied, .. } = with_dialects("[draft-11, triple, x-ratelimit]");
    for name in ["ratelimit-policy", "ratelimit", "ratelimit-reset", "x-ratelimit-reset"] {
        assert!(allowed.header(name).is_some() && denied.header(name).is_some(), "{name}");
    }
    let Replies { allowed, denied, window_s } = with_dialects("[]");
    for name in ["ratelimit-policy", "ratelimit", "ratelimit-limit", "x-ratelimit-limit", "retry-after"] {
        assert_eq!(allowed.header(name), None);
    }
    // Retries are spread, so not everybody returns at the edge.
    assert!((1..=window_s + 5).contains(&denied.number("retry-after")), "{denied:?}");
    assert_eq!(denied.header("ratelimit"), None);
}

/// The headers of a node's answers.
struct Replies {
    allowed: Reply,
    /// A request with a cost above the one unit that is left, but within the limit.
    denied: Reply,
    window_s: u64,
}

/// A node that writes these header dialects.
fn with_dialects(dialects: &str) -> Replies {
    let headers =
        if dialects.is_empty() { String::new() } else { format!("headers: {{ http: {dialects} }}") };
    let window = windows::short();
    let node = Node::start(&format!(
        "{headers}\n\
         limits:\n\
         - {{ name: bucket, domain: shop, token_bucket: {{ rate: 60/s, burst: 120 }} }}\n\
         - {{ name: window, domain: shop, by: [key], fixed_window: {{ limit: 2, window: {window} }} }}\n\
         - {{ name: watched, domain: shop, mode: shadow, fixed_window: {{ limit: 0, window: 1h }} }}\n"
    ));
    let mut http = Http::connect(&node);
    let allowed = http.check(&body(&[("key", "k")]));
    assert_eq!(allowed.json()["allowed"], true);
    let denied = http.get("/v1/authz?domain=shop&key=k&cost=2");
    assert_eq!(denied.status, 429);
    let window_s = window.trim_end_matches('s').parse().expect("seconds");
    Replies { allowed, denied, window_s }
}

#[test]
fn no_retry_time_is_given_where_waiting_does_not_help() {
    let node = Node::start("limits: [{ name: b, domain: shop, token_bucket: { rate: 1/s, burst: 2 } }]");
    let mut http = Http::connect(&node);
    let denied = http.get("/v1/authz?domain=shop&k=v&cost=3");
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    let answer = check_cost(&node, &[("k", "v")], 3);
    assert_eq!((&answer["reason"], &answer["retry_after_ms"]), (&json!("cost-too-high"), &Value::Null));
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 1);
}

#[test]
fn metrics_count_and_tell_no_values() {
    const SECRET: &str = "value-7f3a9c";
    let node = Node::start_with(
        "trace_key: api_key\n\
         data: DATA\n\
         limits: [{ name: per-key, domain: shop, by: [api_key], token_bucket: { rate: 1/h, burst: 1 } }]",
        &[("RUST_LOG", "acequia_server=debug")],
    );
    let mut http = Http::connect(&node);
    for allowed in [true, false] {
        assert_eq!(http.check(&body(&[("api_key", SECRET)])).json()["allowed"], allowed);
    }
    assert_eq!(http.check(&body(&[("other", SECRET)])).json()["allowed"], true);
    assert_eq!(http.check("{").status, 400);
    assert_eq!(http.check(&body(&[("", SECRET)])).status, 400);

    let reply = http.get("/metrics");
    let kind = reply.header("content-type").expect("a content type");
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let metrics = openmetrics::parse(&reply.body).unwrap_or_else(|fault| panic!("{fault}\n{}", reply.body));
    let sum = |name, labels: &[(&str, &str)]| metrics.sum(name, labels);
    assert_eq!(sum("acequia_requests_total", &[("decision", "allow")]), 2.0);
    assert_eq!(sum("acequia_requests_total", &[("decision", "deny")]), 1.0);
    assert_eq!(sum("acequia_decisions_total", &[("limit", "shop/per-key"), ("decision", "deny")]), 1.0);
    assert_eq!(sum("acequia_unmatched_descriptors_total", &[]), 1.0);
    assert_eq!(sum("acequia_bad_requests_total", &[]), 2.0);
    let decided = [("limit", "shop/per-key"), ("reason", "over-limit")];
    assert_eq!(sum("acequia_retry_after_seconds_count", &decided), 1.0);
    assert_eq!(sum("acequia_retry_after_seconds_count", &[]), 1.0);
    assert_eq!(sum("acequia_ready", &[]), 1.0);
    assert!(!reply.body.contains(SECRET));

    // Even detailed logs show what was decided, but not for whom.
    let log = node.stderr();
    assert!(log.contains("decided") && !log.contains(SECRET), "{log}");
}

#[test]
fn counts_only_grow_and_hold_every_connection() {
    let node = Node::start("workers: 3\nlimits: []");
    for round in 1..=3 {
        for _ in 0..5 {
            check(&node, &[("k", "v")]);
        }
        assert_eq!(metric(&node, "acequia_requests_total", &[]), f64::from(round * 5));
    }
}

#[tokio::test]
async fn the_port_speaks_http_2_as_well() {
    let node = Node::start("limits: [{ name: b, domain: shop, token_bucket: { rate: 1/h, burst: 1 } }]");
    let (client, _) = raw_connection(node.http()).await;
    for allowed in [true, false] {
        let (reply, mut sending) = raw_request(client.clone(), "/v1/check", "application/json").await;
        send_all(&mut sending, body(&[("k", "v")]).into()).await.expect("it is open");
        let reply = raw_reply(reply).await.expect("an answer");
        let answer: Value = serde_json::from_slice(&reply.body).expect("JSON");
        assert_eq!((reply.http_status, &answer["allowed"]), (200, &json!(allowed)));
    }
}

#[test]
fn a_node_says_how_it_is() {
    let node = Node::start("");
    let mut http = Http::connect(&node);
    for (path, body) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        let reply = http.get(path);
        assert_eq!((reply.status, reply.body.as_str()), (200, body));
    }
    assert_eq!(http.get("/v1/check").status, 405);
    assert_eq!(http.get("/nowhere").status, 404);
}
