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

/// The fault, and no other.
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

/// [`SHARED`] with something else in one place.
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
fn the_newcomers_limits_are_read() {
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
fn what_needs_a_restart_is_named() {
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
