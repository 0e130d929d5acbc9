//! The binary in the place of envoyproxy/ratelimit: started by its name and its variables, with its ports, its paths
//! and its metrics.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
};

use acequia_api::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::{rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient},
    r#type::v3::RateLimitUnit,
};
use acequia_tests::{binary, eventually};
use prost_types::value::Kind;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    client::Http,
    envoy,
    openmetrics::{self, Metrics},
    store::servers::{Server, free_port},
};

const SHOP: &str = "
domain: shop
descriptors:
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 5 } }
  - key: path
    descriptors: [{ key: user, value: 'u*', shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }]
";

/// The binary as `ratelimit`, until this is dropped.
pub(crate) struct Replacement {
    child: Child,
    folder: TempDir,
    ports: [u16; 4],
}

impl Replacement {
    pub(crate) fn start(variables: &[(&str, &str)]) -> Self {
        Self::start_program(binary(), &[("shop.yaml", SHOP)], variables)
    }

    /// Starts any program that reads these variables, with these files of limits.
    pub(crate) fn start_program(program: &Path, files: &[(&str, &str)], variables: &[(&str, &str)]) -> Self {
        let replacement = Self::begin_program(program, files, variables);
        eventually("it is healthy", || replacement.is_healthy());
        replacement
    }

    /// As `start`, without a wait until it is healthy.
    pub(crate) fn begin(variables: &[(&str, &str)]) -> Self {
        Self::begin_program(binary(), &[("shop.yaml", SHOP)], variables)
    }

    fn begin_program(program: &Path, files: &[(&str, &str)], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let ports = [(); 4].map(|()| free_port());
        symlink(program, folder.path().join("ratelimit")).expect("linked");
        let config = folder.path().join("data/shop/config");
        fs::create_dir_all(&config).expect("made");
        for (name, text) in files {
            fs::write(config.join(name), text).expect("written");
        }
        let [grpc, http, debug, metrics] = ports;
        let mut command = Command::new(folder.path().join("ratelimit"));
        command
            .env_clear()
            .envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")])
            .env("GRPC_PORT", grpc.to_string())
            .env("PORT", http.to_string())
            .env("DEBUG_PORT", debug.to_string())
            .env("USE_PROMETHEUS", "true")
            .env("USE_STATSD", "false")
            .env("PROMETHEUS_ADDR", format!("127.0.0.1:{metrics}"))
            .env("RUNTIME_ROOT", folder.path().join("data"))
            .env("RUNTIME_SUBDIRECTORY", "shop")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.spawn().expect("the binary starts");
        Self { child, folder, ports }
    }

    /// What the probes of a pod ask.
    pub(crate) fn is_healthy(&self) -> bool {
        let address = ([127, 0, 0, 1], self.ports[1]).into();
        if std::net::TcpStream::connect::<SocketAddr>(address).is_err() {
            return false;
        }
        let reply = Http::to(address).get("/healthcheck");
        (reply.status, reply.body.as_str()) == (200, "OK")
    }

    pub(crate) fn get(&self, port: usize, path: &str) -> String {
        let reply = Http::to(([127, 0, 0, 1], self.ports[port]).into()).get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        reply.body
    }

    /// Its metrics, from their own port.
    pub(crate) fn metrics(&self) -> Metrics {
        let text = self.get(3, "/metrics");
        openmetrics::parse(&text).unwrap_or_else(|fault| panic!("{fault}\n{text}"))
    }

    /// The status and the body that `/json` answers.
    pub(crate) fn json(&self, body: &str) -> (u16, Value) {
        self.post("/json", body)
    }

    /// The status and the body that a path of the HTTP port answers.
    pub(crate) fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let mut http = Http::to(([127, 0, 0, 1], self.ports[1]).into());
        let reply = http.ask("POST", path, &[], body).expect("an answer");
        let answer = serde_json::from_str(&reply.body);
        (reply.status, answer.unwrap_or_else(|fault| panic!("{fault}: {}", reply.body)))
    }

    /// The port for gRPC.
    pub(crate) const fn grpc(&self) -> u16 {
        self.ports[0]
    }

    pub(crate) fn config(&self) -> std::path::PathBuf {
        self.folder.path().join("data/shop/config/shop.yaml")
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn asked(entries: &Value, hits: u64) -> String {
    json!({ "domain": "shop", "descriptors": [{ "entries": entries, "hitsAddend": hits.to_string() }] })
        .to_string()
}

#[test]
fn its_ports_answer_as_the_service_answers() {
    let replacement = Replacement::start(&[]);
    let tenant = json!([{ "key": "tenant", "value": "a" }]);
    let (status, answer) = replacement.json(&asked(&tenant, 4));
    assert_eq!((status, &answer["overallCode"]), (200, &json!("OK")), "{answer}");
    let shown = &answer["statuses"][0];
    assert_eq!(shown["currentLimit"], json!({ "requestsPerUnit": 5, "unit": "YEAR" }), "{answer}");
    assert_eq!(shown["limitRemaining"], 1, "{answer}");
    let until: f64 = shown["durationUntilReset"]
        .as_str()
        .and_then(|text| text.strip_suffix('s'))
        .expect("seconds")
        .parse()
        .expect("a number");
    assert!(until > 0.0 && until <= 365.0 * 86_400.0, "{answer}");
    let (status, answer) = replacement.json(&asked(&tenant, 4));
    assert_eq!((status, &answer["overallCode"]), (429, &json!("OVER_LIMIT")), "{answer}");
    let watched = json!([{ "key": "path", "value": "/x" }, { "key": "user", "value": "u1" }]);
    let (status, answer) = replacement.json(&asked(&watched, 3));
    assert_eq!((status, &answer["statuses"][0]["code"]), (200, &json!("OK")), "{answer}");
    for body in ["{", r#"{"domain":"shop"}"#, r#"{"descriptors":[{"entries":[{"key":"a"}]}]}"#] {
        assert_eq!(replacement.json(body).0, 400, "{body}");
    }

    let shown = "shop.tenant: unit=YEAR requests_per_unit=5, shadow_mode: false, quota_mode: false\n\
                 shop.path.user_u*: unit=DAY requests_per_unit=1, shadow_mode: true, quota_mode: false\n";
    assert_eq!(replacement.get(2, "/rlconfig"), shown);

    let metrics = replacement.metrics();
    let of = |name: &str, labels: &[(&str, &str)]| {
        metrics.sum(&format!("ratelimit_service_rate_limit_{name}"), labels)
    };
    let tenant = [("domain", "shop"), ("key1", "tenant")];
    let watched = [("domain", "shop"), ("key1", "path"), ("key2", "user_u*")];
    let counts = ["total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode"];
    assert_eq!(counts.map(|name| of(name, &tenant) as u64), [8, 3, 1, 4, 0]);
    let board = ["total_requests", "should_rate_limit_error", "config_load_success", "config_load_error"];
    let board = board.map(|name| metrics.sum(&format!("ratelimit_service_{name}"), &[]) as u64);
    assert_eq!(board, [3, 3, 1, 0], "three requests, three malformed bodies and one config");
    assert_eq!(counts.map(|name| of(name, &watched) as u64), [3, 2, 1, 0, 2]);
}

/// Hits that are denied without a call are all beyond the limit.
#[test]
fn metrics_are_the_same_where_a_redis_counts() {
    let server = Server::start(&[]);
    let url = server.address();
    let counts = [&[][..], &[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", url.as_str())]].map(|variables| {
        let replacement = Replacement::start(variables);
        let metrics = |name: &str| {
            let name = format!("ratelimit_service_rate_limit_{name}");
            replacement.metrics().sum(&name, &[("key1", "tenant")]) as u64
        };
        let tenant = json!([{ "key": "tenant", "value": "a" }]);
        let mut asked = 0;
        // A call that the Redis answers too late is counted, and not known here.
        while metrics("total_hits") < 2_400 && asked < 20 {
            replacement.json(&self::asked(&tenant, 600));
            asked += 1;
        }
        let is_late = asked > 4;
        (is_late, ["total_hits", "over_limit", "near_limit", "within_limit"].map(metrics))
    });
    let expected = [2_400, 2_395, 1, 0];
    assert_eq!(counts[0], (false, expected));
    assert!(counts[1].0 || counts[1].1 == expected, "{counts:?}");
}

/// As that service counts them, but for the bound: the page says it.
#[test]
fn metrics_show_the_values_for_which_the_config_says_so() {
    let replacement = Replacement::start(&[]);
    let limit = "rate_limit: { unit: year, requests_per_unit: 5 }";
    let shop = format!(
        "domain: shop\ndescriptors:\n\
         - {{ key: tenant, {limit} }}\n\
         - {{ key: route, value: '/x/*', detailed_metric: true, {limit} }}\n\
         - {{ key: zone, value_to_metric: true, descriptors: [{{ key: user, {limit} }}] }}\n\
         - {{ key: file, value: 'f*', share_threshold: true, detailed_metric: true, {limit} }}\n"
    );
    fs::write(replacement.config(), shop).expect("written");
    eventually("the new limits count", || replacement.get(2, "/rlconfig").contains("file_f*"));
    let hits: [(Value, u64); 6] = [
        (json!([{ "key": "tenant", "value": "t1" }]), 1),
        (json!([{ "key": "route", "value": "/x/1" }]), 2),
        (json!([{ "key": "route", "value": "/x/\"2\n" }]), 7),
        (json!([{ "key": "zone", "value": "z" }, { "key": "user", "value": "u" }]), 3),
        (json!([{ "key": "file", "value": "f1" }]), 2),
        (json!([{ "key": "file", "value": "f2" }]), 2),
    ];
    for (entries, hits) in hits {
        replacement.json(&asked(&entries, hits));
    }
    let metrics = replacement.metrics();
    let of = |name: &str, keys: &[(&str, &str)]| {
        let labels: Vec<_> = [("domain", "shop")].iter().chain(keys).copied().collect();
        metrics.sum(&format!("ratelimit_service_rate_limit_{name}"), &labels) as u64
    };
    assert_eq!(of("total_hits", &[("key1", "tenant")]), 1);
    assert_eq!(of("total_hits", &[("key1", "route_/x/1")]), 2);
    let odd = [("key1", "route_/x/\"2\n")];
    assert_eq!((of("total_hits", &odd), of("over_limit", &odd)), (7, 2));
    assert_eq!(of("total_hits", &[("key1", "zone_z"), ("key2", "user")]), 3);
    assert_eq!(of("total_hits", &[("key1", "file_f*")]), 4, "they share a counter");
    assert_eq!(of("total_hits", &[("key1", "route_/x/*")]), 0, "each hit counts once");
}

#[test]
fn its_limits_follow_the_file_and_shadow_mode_denies_nothing() {
    let replacement = Replacement::start(&[("SHADOW_MODE", "true")]);
    let tenant = json!([{ "key": "tenant", "value": "a" }]);
    assert_eq!(replacement.json(&asked(&tenant, 9)).0, 200);
    fs::write(replacement.config(), SHOP.replace("5 }", "7 }")).expect("written");
    eventually("the new number counts", || replacement.get(2, "/rlconfig").contains("requests_per_unit=7"));
}

/// A value may be no text, and Envoy takes an answer only if all of it is.
#[tokio::test]
async fn metadata_repeat_the_request_and_name_the_quotas_that_are_used_up() {
    let quota = SHOP.replace("{ key: tenant,", "{ key: tenant, quota_mode: true,");
    let replacement = Replacement::start(&[("RESPONSE_DYNAMIC_METADATA", "true")]);
    fs::write(replacement.config(), quota).expect("written");
    eventually("the quota counts", || replacement.get(2, "/rlconfig").contains("quota_mode: true"));
    let address = format!("http://127.0.0.1:{}", replacement.grpc());
    let mut client = RateLimitServiceClient::connect(address).await.expect("connected");
    let mut request = envoy::request(&[&[("path", "/x"), ("other", "y")], &[("tenant", "a")]]);
    request.hits_addend = 4;
    request.descriptors[1].hits_addend = Some(6);
    request.descriptors[0].limit =
        Some(RateLimitOverride { requests_per_unit: 4, unit: RateLimitUnit::Hour.into() });
    let answer = client.should_rate_limit(request).await.expect("an answer").into_inner();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let metadata = value_json(Kind::StructValue(answer.dynamic_metadata.expect("metadata")));
    let expected = json!({
        "limit": "tenant",
        "reason": "cost-too-high",
        "domain": "shop",
        "descriptors": [{ "entries": ["path=/x", "other=y"], "limit": "requests_per_unit:4 unit:HOUR" }, { "entries": ["tenant=a"], "hitsAddend": 6.0 }],
        "hitsAddend": 4.0,
        "quotaModeEnabled": true,
        "quotaModeViolations": [1.0],
    });
    assert_eq!(metadata, expected);
}

fn value_json(kind: Kind) -> Value {
    let value = |value: prost_types::Value| value_json(value.kind.expect("a kind"));
    match kind {
        Kind::StringValue(text) => text.into(),
        Kind::NumberValue(number) => number.into(),
        Kind::BoolValue(flag) => flag.into(),
        Kind::NullValue(_) => Value::Null,
        Kind::ListValue(list) => list.values.into_iter().map(value).collect(),
        Kind::StructValue(of) => of.fields.into_iter().map(|(key, field)| (key, value(field))).collect(),
    }
}

/// One limit that allows is enough to pass.
#[test]
fn quota_mode_of_the_environment_is_that_of_every_limit() {
    let replacement = Replacement::start(&[("QUOTA_MODE", "true")]);
    let unlimited = format!("{SHOP}  - {{ key: friend, rate_limit: {{ unlimited: true }} }}\n");
    fs::write(replacement.config(), unlimited).expect("written");
    let loads = || replacement.metrics().sum("ratelimit_service_config_load_success", &[]) as u64;
    eventually("it is read", || loads() > 1);
    assert!(replacement.get(2, "/rlconfig").contains("shop.friend: unit=UNKNOWN requests_per_unit=0,"));
    assert!(
        replacement.get(2, "/rlconfig").contains("requests_per_unit=5, shadow_mode: false, quota_mode: true")
    );
    let tenants = |hits: [u64; 2]| {
        let tenant = |name: &str, hits: u64| json!({ "entries": [{ "key": "tenant", "value": name }], "hitsAddend": hits.to_string() });
        let body = json!({ "domain": "shop", "descriptors": [tenant("a", hits[0]), tenant("b", hits[1])] });
        replacement.json(&body.to_string()).0
    };
    assert_eq!([tenants([6, 1]), tenants([6, 5])], [200, 429]);
}

/// A proxy brings the authority's certificate, and the service shows its own.
#[test]
fn its_grpc_port_has_tls_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let made = acequia_tests::acequia(&["certs", &path(""), "ratelimit=local"]);
    assert!(made.status.success(), "{made:?}");
    let (cert, key) = (path("ratelimit.pem"), path("ratelimit.key"));
    let replacement = Replacement::start(&[
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &cert),
        ("GRPC_SERVER_TLS_KEY", &key),
    ]);
    let port = replacement.ports[0];
    let connect = |arguments: &[&str]| {
        let address = format!("127.0.0.1:{port}");
        let output = Command::new("openssl")
            .args(["s_client", "-connect", &address, "-CAfile", &path("ca.pem"), "-alpn", "h2"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("openssl runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = connect(&[]);
    assert!(said.contains("Verify return code: 0 (ok)") && said.contains("ALPN protocol: h2"), "{said}");
}

#[test]
fn what_it_cannot_follow_it_refuses_in_words() {
    let run = |variables: &[(&str, &str)]| {
        let output = Command::new(binary())
            .args(["serve", "--as", "ratelimit"])
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .output()
            .expect("the binary starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (exit, said) = run(&[("REDIS_URL", "redis"), ("GRPC_PORT", "many")]);
    assert!(exit == Some(2) && said.contains("REDIS_URL: ") && said.contains("GRPC_PORT=many: "), "{said}");
    let (exit, said) = run(&[("RUNTIME_ROOT", "/nowhere")]);
    assert!(exit == Some(2) && said.contains("/nowhere/config"), "{said}");
    assert!(!Path::new("/nowhere").exists());
}
