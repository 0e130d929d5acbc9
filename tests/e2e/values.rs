//! The meaning of descriptor values: text in YAML, repeated keys, addresses and networks.

use acequia_tests::Node;
use serde_json::{Value, json};

use crate::{client::Http, windows};

/// A node with these limits of the domain `shop` in YAML, where LONG stands for a window that does not end
/// soon.
fn node(limits: &str) -> Node {
    Node::start(&format!("limits:\n{}", limits.replace("LONG", &windows::long())))
}

/// Asks for one descriptor, which may contain a key twice.
fn ask(node: &Node, entries: &[(&str, &str)]) -> Value {
    let pairs: Vec<[&str; 2]> = entries.iter().map(|(key, value)| [*key, *value]).collect();
    Http::connect(node).check(&json!({ "domain": "shop", "descriptors": [pairs] }).to_string()).json()
}

#[test]
fn a_value_in_yaml_is_the_text_that_stands_there() {
    let values = ["NO", "1.10", "01234", "0x1F", "1e3", "2026-01-01"];
    let node = node(&format!(
        "- name: written\n  domain: shop\n  by: [value]\n  when: {{ value: [{}] }}\n  \
         fixed_window: {{ limit: 1, window: LONG }}\n",
        values.join(", ")
    ));
    for value in values {
        let [first, second] = [(); 2].map(|()| ask(&node, &[("value", value)]));
        assert_eq!(first["limit"], "written", "{value}");
        assert_eq!((&first["allowed"], &second["allowed"]), (&json!(true), &json!(false)), "{value}");
    }
    assert_eq!(ask(&node, &[("value", "1.1")])["reason"], "no-match");
}

/// Envoy makes such descriptors from two actions with one key, and a client may choose one of the values.
#[test]
fn a_key_that_comes_twice_is_limited_by_any_value_and_favoured_only_by_all() {
    let node = node(
        "- { name: any, domain: shop, when: { route: upload }, fixed_window: { limit: 2, window: LONG } }\n\
         - { name: staff, domain: shop, by: [user], unlimited: { role: staff }, fixed_window: { limit: 1, window: LONG } }\n\
         - { name: plan, domain: shop, by: [tenant], fixed_window: { limit: 1, window: LONG }, \
             overrides: [{ tenant: big, limit: 9 }] }\n",
    );
    let passed = |entries: &[(&str, &str)], limit: &str| {
        let answers = [(); 4].map(|()| ask(&node, entries));
        assert!(answers.iter().all(|answer| answer["limit"] == limit), "{answers:?}");
        answers.iter().filter(|answer| answer["allowed"] == true).count()
    };
    assert_eq!(passed(&[("route", "all"), ("route", "upload")], "any"), 2);
    assert_eq!(passed(&[("user", "u"), ("role", "staff"), ("role", "guest")], "staff"), 1);
    assert_eq!(passed(&[("tenant", "big"), ("tenant", "me")], "plan"), 1);
    assert_eq!(passed(&[("tenant", "big"), ("tenant", "big")], "plan"), 4);
}

/// A node that counts by addresses must count each list of values in one cell.
fn share_a_cell(by: &str, all: &[&[&str]]) {
    let node = node(&format!(
        "- {{ name: per-ip, domain: shop, by: [{by}], fixed_window: {{ limit: 100, window: LONG }} }}\n"
    ));
    for values in all {
        for (number, value) in values.iter().enumerate() {
            assert_eq!(ask(&node, &[("from", value)])["remaining"], 99 - number, "{value:?}");
        }
    }
}

#[test]
fn an_address_is_the_same_however_it_is_written() {
    share_a_cell(
        "{ ip: from, v6: 64 }",
        &[
            &[
                "203.0.113.7",
                "203.0.113.7:4711",
                " 203.0.113.7 ",
                "::ffff:203.0.113.7",
                "192.0.2.1, 203.0.113.7",
            ],
            &["2001:db8::1", "[2001:db8::2]:80", "2001:DB8:0::3"],
            &["fe80::1", "fe80::1%eth0"],
            &["nowhere", "", "999.1.1.1"],
        ],
    );
    // The last proxy is the operator's own, and so is the one before it.
    share_a_cell(
        "{ ip: from, trust: 2 }",
        &[&["198.51.100.1, 192.0.2.1", "6.6.6.6, 198.51.100.1, 192.0.2.2", "198.51.100.1"]],
    );
}

#[test]
fn a_network_stands_for_its_addresses() {
    let node = node(
        "- { name: per-ip, domain: shop, by: [{ ip: from }], unlimited: { from: [10.0.0.0/8, \"2001:db8::/32\"] }, \
             fixed_window: { limit: 1, window: LONG } }\n",
    );
    let allowed = |from: &str| ask(&node, &[("from", from)])["allowed"] == true;
    for exempt in ["10.1.2.3", "10.1.2.3", "10.1.2.3:80", "[2001:db8:7::1]:443", "2001:db8:7::1"] {
        assert!(allowed(exempt), "{exempt}");
    }
    assert_eq!(["11.1.2.3", "11.1.2.3:80"].map(allowed), [true, false]);
    // The last address of a list counts, because no client chooses that one.
    assert!(!allowed("10.1.2.3, 11.1.2.3"));
}
