use super::*;

pub(super) const HEAD: &str = "region: eu\nnode: eu-1\n";

#[track_caller]
pub(super) fn accepted(text: &str) -> Config {
    Config::parse("test.yaml", text).expect("a config")
}

#[track_caller]
pub(super) fn refused(text: &str, line: u64, word: &str) {
    let error = Config::parse("test.yaml", text).expect_err("a fault");
    assert!(
        error.faults.iter().any(|fault| fault.line == line && fault.what.contains(word)),
        "nothing in line {line} says {word}: {error}"
    );
    assert!(error.faults.is_sorted(), "{error}");
}

/// Checks that the text has exactly this fault.
#[track_caller]
pub(super) fn refused_once(text: &str, line: u64, word: &str) {
    refused(text, line, word);
    let error = Config::parse("test.yaml", text).expect_err("a fault");
    assert_eq!(error.faults.len(), 1, "{error}");
}

/// Three regions, line by line.
pub(super) const SHARED: &str = "\
region: eu
node: eu-1
listen: { mesh: \"127.0.0.1:7201\" }
data: ./data
tls: ./certs
authority: us-1
regions:
  eu: { weight: 1, nodes: { eu-1: \"127.0.0.1:7201\" } }
  us: { weight: 2, nodes: { us-1: \"us-1.example.net:7202\" } }
  ap: { nodes: { ap-1: \"[fd00::3]:7203\" } }
clock: { error: 20ms, drift: 5e-4 }
";

/// [`SHARED`] with one replacement.
#[track_caller]
pub(super) fn with(from: &str, to: &str) -> String {
    assert_eq!(SHARED.matches(from).count(), 1, "{from} is not there once");
    SHARED.replace(from, to)
}

#[test]
fn the_least_config_works() {
    let config = Config::parse("test.yaml", HEAD).expect("a config");
    assert_eq!(config.listen.grpc.address.to_string(), "127.0.0.1:8081");
    assert_eq!((&config.listen.admin, config.listen.mesh), (&None, None));
    assert_eq!((config.memory_bytes, config.data), (256 << 20, None));
    assert_eq!((config.regions, config.tls, config.admin_token), (None, None, None));
    assert_eq!(config.live.headers.http, [Dialect::Draft11]);
}

#[test]
fn faults_name_their_line() {
    refused("region: eu\nnoed: x\n", 2, "noed");
    refused(&format!("{HEAD}listen: {{ grpc: here }}\n"), 3, "127.0.0.1:8081");
    refused(&format!("{HEAD}memory: 12\n"), 3, "1MiB");
    refused(&format!("{HEAD}memory: lots\n"), 3, "64MiB");
    refused(&format!("{HEAD}workers: 0\n"), 3, "1 to");
    refused(&format!("{HEAD}classes: []\n"), 3, "unknown field `classes`");
    refused("region: e u\nnode: x\n", 1, "letters");
    refused(&format!("{HEAD}listen: {{ grpc: \"127.0.0.1:1\", http: \"127.0.0.1:1\" }}\n"), 3, "port");
    refused(&format!("{HEAD}limits: [\n"), 3, "bracket");
}

#[test]
fn every_fault_of_every_limit_is_named() {
    let text = format!(
        "{HEAD}limits:\n  - name: a\n    domain: shop\n    token_bucket:\n      rate: fast\n      burst: 0\n  - {{ name: b, domain: shop, quota: {{ limit: 1, per: month, time_zone: Mars/X }} }}\n  - name: c\n    domain: shop\n    fixed_window: {{ limit: 1, window: 1h }}\n  - name: c\n    domain: shop\n    fixed_window: {{ limit: 1, window: 1h }}\n"
    );
    refused(&text, 7, "60/s");
    refused(&text, 8, "burst");
    refused(&text, 9, "IANA");
    refused(&text, 13, "line 10");
}

#[test]
fn limits_of_every_kind_are_read() {
    let text = format!(
        r#"{HEAD}limits:
  - name: per-key
    domain: shop
    by: [api_key]
    token_bucket: {{ rate: 60/s, burst: 120 }}
  - name: exports
    domain: shop
    when: {{ route: /export }}
    fixed_window: {{ limit: 100, window: 1h }}
    mode: shadow
  - name: reports
    domain: shop
    when: {{ route: ["/report/*", "!/report/tiny"], method: POST }}
    by: [tenant, {{ ip: remote_address, v4: 32, v6: 64 }}]
    cost: 10
    leaky_bucket: {{ rate: 2/s, queue: 20 }}
    unlimited: {{ tenant: [internal] }}
    overrides:
      - {{ tenant: big-co, rate: 20/s, queue: 200, until: 2027-01-01, why: launch }}
  - name: numbers
    domain: shop
    when: {{ version: 2, beta: true }}
    quota: {{ limit: 100000, per: month, time_zone: Europe/Berlin }}
"#
    );
    let config = Config::parse("test.yaml", &text).expect("a config");
    assert_eq!(config.live.limits.len(), 4);
    assert!(config.live.limits[3].when.iter().any(|c| c.accepts(b"2")));
}

#[test]
fn values_are_text_as_written() {
    let limit = |field: &str| {
        accepted(&format!(
            "{HEAD}limits:\n  - name: a\n    domain: shop\n    {field}\n    token_bucket: {{ rate: 1/s, burst: 9 }}\n"
        ))
        .live
        .limits
        .remove(0)
    };
    for text in [
        "NO",
        "no",
        "true",
        "Off",
        "1.10",
        "01234",
        "0x1F",
        "1e2",
        "1_000",
        "+5",
        "-0",
        ".5",
        "12345678901234567890123",
    ] {
        for field in [
            format!("when: {{ k: {text} }}"),
            format!("when:\n      k: {text}"),
            format!("when: {{ k: [x, {text}] }}"),
        ] {
            assert!(limit(&field).when[0].accepts(text.as_bytes()), "{field}");
        }
        assert!(
            limit(&format!("unlimited: {{ k: {text} }}")).unlimited[0].accepts(text.as_bytes()),
            "{text}"
        );
        assert_eq!(limit(&format!("by: [{text}]")).by[0].key, text);
    }
    let absent = limit("when: { svc: { absent: true }, client: a }");
    assert_eq!((absent.when[0].is_absent, absent.when[1].is_absent), (false, true));
    assert!(limit("exact: true").spec.exact);
    let networks = limit("unlimited: { remote_address: { ip: [10.0.0.0/8, ::1], trust: 2 } }");
    assert!(networks.unlimited[0].accepts(b"10.1.1.1:80, 9.9.9.9"));
    for (field, mend) in [
        ("when: { k: null }", "a value"),
        ("when: { k: ~ }", "a value"),
        ("when: { k: { absent: false } }", "absent: true"),
        ("when: { k: { ip: 10.0.0.0/8, absent: true } }", "absent: true"),
        ("when: { k: { ip: office } }", "no network"),
        ("when: { k: { ip: 10.0.0.7/8 } }", "10.0.0.0/8"),
        ("when: { k: { ip: 10.0.0.0/8, trust: 0 } }", "at least 1"),
        ("by: [{ ip: k }]\n    when: { k: 10.0.0.7/8 }", "10.0.0.0/8"),
        ("by: [k]\n    when: { k: { absent: true } }", "leave one out"),
    ] {
        let text = format!(
            "{HEAD}limits:\n  - name: a\n    domain: shop\n    {field}\n    token_bucket: {{ rate: 1/s, burst: 9 }}\n"
        );
        let fault = Config::parse("a.yaml", &text).expect_err(field);
        assert!(fault.to_string().contains(mend), "{field}: {fault}");
    }
}

#[test]
fn valid_settings_that_look_like_mistakes_are_noted() {
    let notes = |text: &str| accepted(text).notes(0);
    let bucket = "token_bucket: { rate: 1/s, burst: 9 }";
    let limits = |more: &str| {
        format!(
            "{HEAD}limits:\n  - {{ name: a, domain: shop, by: [api_key], {bucket} }}\n  - {{ name: b, domain: shop, by: [api_key], {bucket} }}\n{more}"
        )
    };
    assert_eq!(notes(&limits("")), [] as [String; 0]);
    for (key, is_noted) in [
        ("api_kye", true),
        ("apikey", true),
        ("api_keys", true),
        ("api_kex", true),
        ("tenant", false),
        ("api", false),
        ("api_key", false),
    ] {
        let found = notes(&limits(&format!("  - {{ name: c, domain: shop, by: [{key}], {bucket} }}\n")));
        assert_eq!(found.len(), usize::from(is_noted), "{key}: {found:?}");
        assert!(found.iter().all(|note| note.contains("shop/c") && note.contains("misspelt")), "{found:?}");
    }
    let other = notes(&limits(&format!("  - {{ name: c, domain: bank, by: [api_kye], {bucket} }}\n")));
    assert_eq!(other, [] as [String; 0], "another domain's keys are its own");
    for (more, word) in [
        ("  - { name: c, domain: shop, quota: { limit: 9, per: day } }\n", "`data`"),
        (
            "  - { name: c, domain: shop, unlimited: { remote: [10.0.0.0/8] }, token_bucket: { rate: 1/s, burst: 9 } }\n",
            "{ ip: 10.0.0.0/8 }",
        ),
        ("domains: { shpo: { no_match: deny } }\n", "shpo, which no limit has"),
        ("domains: { shpo: { negative_hits: true } }\n", "shpo, which no limit has"),
    ] {
        let found = notes(&limits(more));
        assert!(found.len() == 1 && found[0].contains(word), "{more}: {found:?}");
    }
}

#[test]
fn callers_name_limits_in_windows_of_every_unit() {
    let named = "domains: { shop: { limits_from_callers: true } }\n";
    let config = accepted(&format!("{HEAD}{named}"));
    let windows: Vec<u64> =
        config.live.limits.iter().map(|limit| limit.algorithm.period_ns() / 1_000_000_000).collect();
    assert_eq!(windows, [1, 60, 3_600, 86_400, 604_800, 2_592_000, 31_536_000]);
    assert!(config.live.limits.iter().all(|limit| limit.spec.from_callers));
    accepted(&format!("{SHARED}{named}"));
}

#[test]
fn every_fault_of_a_file_is_named_at_once() {
    let text = "\
region: eu
node: eu-1
listne: { grpc: x }
workers: many
limits:
  - name: a
    domain: shop
    token_bucket: { rate: 1/s, brust: 9 }
  - { name: b, domain: shop, fixed_window: { limit: 0x10, window: 1h } }
  - name: c
    domain: shop
    by: { ip: k, v4: x }
    token_bucket: { rate: fast, burst: 9 }
  - { name: d, name: d, domain: shop, token_bucket: { rate: 1/s, burst: 9 } }
memory: 64MB
";
    let error = Config::parse("a.yaml", text).expect_err("faults");
    let lines: Vec<u64> = error.faults.iter().map(|fault| fault.line).collect();
    assert_eq!(lines, [3, 4, 8, 9, 12, 14], "{error}");
    for word in ["listne", "workers", "brust", "1200, 50k or 2M", "name"] {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    for word in ["struct", "Policy", "Written", "u64", "usize", "deserialize"] {
        assert!(!error.to_string().contains(word), "{word}: {error}");
    }

    // If only limits are wrong, all other fields are checked as well.
    let text = format!(
        "{HEAD}memory: 64MB\nlimits:\n  - {{ name: a, domain: shop, brust: 9 }}\n  - {{ name: b, domain: shop }}\n  \
         - {{ name: c, domain: shop, mode: shadow, candidate_for: a, token_bucket: {{ rate: 1/s, burst: 9 }} }}\n"
    );
    let error = Config::parse("a.yaml", &text).expect_err("faults");
    let lines: Vec<u64> = error.faults.iter().map(|fault| fault.line).collect();
    assert_eq!(lines, [3, 5, 6], "{error}");

    // A limit without a name is reported once.
    let text = format!(
        "{HEAD}limits:\n  - {{ domain: shop, token_bucket: {{ rate: 1/s, burst: 9 }} }}\n  - {{ name: b }}\n"
    );
    let error = Config::parse("a.yaml", &text).expect_err("faults");
    let lines: Vec<u64> = error.faults.iter().map(|fault| fault.line).collect();
    assert_eq!(lines, [4, 5], "{error}");
}

#[test]
fn a_number_is_decimal_digits_with_an_optional_k_or_m() {
    let text = |number: &str| {
        format!(
            "{HEAD}limits:\n  - {{ name: a, domain: shop, fixed_window: {{ limit: {number}, window: 1h }} }}\n"
        )
    };
    for (number, units) in [("60", 60), ("'60'", 60), ("50k", 50_000), ("2M", 2_000_000), ("007", 7)] {
        assert_eq!(accepted(&text(number)).live.limits[0].algorithm.budget(), units, "{number}");
    }
    for number in
        ["0x3C", "1e2", "1_000", "+5", "-5", "1.0", "5K", "5 k", "k", "''", "99999999999999999999", "true"]
    {
        let fault = Config::parse("a.yaml", &text(number)).expect_err(number);
        assert!(fault.to_string().contains("1200, 50k or 2M"), "{number}: {fault}");
    }
}

#[test]
fn settings_that_need_a_restart_are_named() {
    let old = accepted(SHARED);
    for (from, to, names) in [
        ("weight: 2", "weight: 3", &["regions"][..]),
        ("us-1.example.net:7202", "us-1.example.net:7203", &["regions"]),
        ("authority: us-1", "authority: ap-1", &["authority"]),
        ("tls: ./certs", "tls: ./other", &["tls"]),
        ("error: 20ms", "error: 21ms", &["clock"]),
        ("drift: 5e-4", "drift: 6e-4", &["clock"]),
        ("mesh: ", "admin: \"127.0.0.1:8082\", mesh: ", &["listen"]),
        ("tls: ", "drain: 1s\ntls: ", &[]),
    ] {
        assert_eq!(old.needs_restart(&accepted(&with(from, to))), names, "{to}");
    }
    let admin =
        |token: &str| format!("region: eu\nnode: eu-1\nlisten: {{ admin: \"127.0.0.1:8082\" }}\n{token}");
    let (without, with) = (accepted(&admin("")), accepted(&admin("admin_token: ./token\n")));
    assert!(without.needs_restart(&with).is_empty(), "a token is asked for at once");
    let alone = accepted("region: eu\nnode: eu-1\ndata: ./data\n");
    assert_eq!(alone.needs_restart(&old), ["listen", "regions", "authority", "clock", "tls"]);
}
