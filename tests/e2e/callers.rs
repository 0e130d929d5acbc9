//! Who may ask a node, and how both sides identify each other: certificates, tokens, and sockets in the file
//! system.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use acequia_tests::{Node, PATIENCE, acequia, eventually};
use rcgen::{CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, string::Ia5String};
use tempfile::TempDir;

use crate::{
    client::metric,
    openmetrics,
    pages::{blocks, page},
};

const CHECK: &str = r#"{"domain":"shop","descriptors":[{"k":"v"}]}"#;
const LIMITS: &str = "limits:\n- { name: all, domain: shop, token_bucket: { rate: 1000/s, burst: 1000 } }\n\
                      - { name: edge, domain: edge/eu, token_bucket: { rate: 1000/s, burst: 1000 } }\n";

/// An authority, and the folder of all certificates it signed.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([]).expect("no name");
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("signed");
        std::fs::write(folder.path().join("ca.crt"), certificate.pem()).expect("written");
        Self { folder, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn path(&self, file: &str) -> String {
        self.folder.path().join(file).display().to_string()
    }

    /// Writes `tls.crt` and `tls.key` into a folder, as cert-manager does.
    pub(crate) fn sign(
        &self,
        folder: &str,
        names: &[&str],
        shape: impl FnOnce(&mut CertificateParams),
    ) -> [String; 2] {
        let names: Vec<_> = names
            .iter()
            .map(|name| match name.parse() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) if name.contains("://") => SanType::URI(Ia5String::try_from(*name).expect("ASCII")),
                Err(_) => SanType::DnsName(Ia5String::try_from(*name).expect("ASCII")),
            })
            .collect();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([]).expect("no name");
        params.distinguished_name.push(DnType::CommonName, folder);
        params.subject_alt_names = names;
        shape(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let folder = self.folder.path().join(folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let write = |file: &str, text: String| {
            let path = folder.join(file);
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("set");
            path.display().to_string()
        };
        [write("tls.crt", certificate.pem()), write("tls.key", key.serialize_pem())]
    }

    fn token(&self, name: &str, token: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, format!("{token}\n")).expect("written");
        path.display().to_string()
    }

    /// The `tls` settings of a port for local callers, with or without client certificates.
    fn tls(&self, asks: bool) -> String {
        let [cert, key] = self.sign("server", &["localhost", "127.0.0.1"], |_| {});
        let client_ca = if asks { format!(", client_ca: {}", self.path("ca.crt")) } else { String::new() };
        format!("tls: {{ cert: {cert}, key: {key}{client_ca} }}")
    }
}

/// A node with these settings for its two ports.
fn node(grpc: &str, http: &str) -> Node {
    Node::start_whole(&config(grpc, http))
}

fn config(grpc: &str, http: &str) -> String {
    format!(
        "region: eu\nnode: eu-1\nlisten:\n  grpc: {{ address: \"127.0.0.1:0\", {grpc} }}\n  \
         http: {{ address: \"127.0.0.1:0\", {http} }}\n{LIMITS}"
    )
}

/// The HTTP status that curl gets (000 without an answer), and the rest of its output.
fn curl(arguments: &[&str]) -> (String, String) {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--write-out", "\n%{http_code}"])
        .args(arguments)
        .output()
        .expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').expect("a status");
    (status.to_owned(), format!("{body}{}", String::from_utf8_lossy(&output.stderr)))
}

/// Runs `acequia check` at a node's gRPC port over TLS.
fn check(node: &Node, domain: &str, more: &[&str]) -> Output {
    let address = format!("https://localhost:{}", node.grpc().port());
    let mut words = vec!["check", "--address", &address, "--domain", domain];
    words.extend(more);
    words.extend(["--deadline", "20s", "k=v"]);
    acequia(&words)
}

#[track_caller]
fn passes(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Asserts that a command got no answer, for this reason.
#[track_caller]
fn fails(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains(why), "{why}: {output:?}");
}

/// Asserts that a caller may check in `shop` and in domains that begin with `edge/`, and nothing else.
#[track_caller]
fn may_check_in_two_domains(node: &Node, credentials: &[&str]) {
    passes(&check(node, "shop", credentials));
    passes(&check(node, "edge/eu", credentials));
    fails(&check(node, "books", credentials), "may not ask for this domain");
    fails(&check(node, "shop", &[credentials, &["--reserve", "1s"]].concat()), "may not do this");
}

/// How many callers a port has refused for a reason, by `/metrics`.
fn refused(port: &str, why: &str, metrics: &str) -> f64 {
    let found = openmetrics::parse(metrics).unwrap_or_else(|fault| panic!("{fault}\n{metrics}"));
    found.sum("acequia_callers_refused_total", &[("port", port), ("why", why)])
}

#[test]
fn callers_come_over_tls_1_2_and_1_3_by_both_ports() {
    let authority = Authority::new();
    let tls = authority.tls(false);
    let node = node(&tls, &tls);
    let ca = authority.path("ca.crt");
    passes(&check(&node, "shop", &["--ca", &ca]));
    let address = format!("https://127.0.0.1:{}", node.grpc().port());
    passes(&acequia(&["explain", "--address", &address, "--ca", &ca, "--domain", "shop", "k=v"]));
    let url = format!("https://localhost:{}/v1/check", node.http().port());
    for version in [["--tlsv1.2", "--tls-max", "1.2"], ["--tlsv1.3", "--tls-max", "1.3"]] {
        for http in ["--http1.1", "--http2"] {
            let protocol = ["--write-out", " HTTP/%{http_version}\n%{http_code}"];
            let mut words = vec!["--cacert", &ca, http, "--data", CHECK, &url];
            words.extend(version);
            words.extend(protocol);
            let (status, text) = curl(&words);
            let spoken = if http == "--http2" { "HTTP/2" } else { "HTTP/1.1" };
            assert!(status == "200" && text.contains("\"allowed\":true") && text.contains(spoken), "{text}");
        }
    }
    let (status, text) =
        curl(&["--cacert", &ca, "--tls-max", "1.1", "--tlsv1.0", "--ciphers", "DEFAULT@SECLEVEL=0", &url]);
    assert_eq!(status, "000", "{text}");
    // A node of another authority, and a node with another name.
    fails(&check(&node, "shop", &["--ca", &Authority::new().path("ca.crt")]), "certificate");
    fails(&check(&node, "shop", &["--ca", &ca, "--server-name", "acequia.internal"]), "certificate");
    let bench =
        ["bench", "--seconds", "1", "--keys", "10", "--connections", "2", "--ca", &ca, "--address", &address];
    for mode in ["rls", "check", "stream"] {
        let mut words = bench.to_vec();
        words.extend(["--mode", mode]);
        passes(&acequia(&words));
    }
}

#[test]
fn callers_may_do_what_they_are_allowed() {
    let authority = Authority::new();
    let token = authority.token("token", "a-token-of-more-than-sixteen");
    let scraper = authority.token("scraper", "another-token-of-sixteen-and-more");
    let guarded = format!(
        "{}, allow: [{{ name: \"spiffe://shop/envoy\", domains: [shop, \"edge/*\"], may: [check] }}, \
         {{ name: shop.example.net, may: [check, peek, reserve, commit, refund] }}, {{ token_file: {token} }}, \
         {{ token_file: {scraper}, may: [metrics] }}]",
        authority.tls(true)
    );
    let node = node(&guarded, &guarded);
    let ca = authority.path("ca.crt");
    let [cert, key] = authority.sign("envoy", &["spiffe://shop/envoy"], |_| {});
    let envoy = ["--ca", &ca, "--cert", &cert, "--key", &key];
    may_check_in_two_domains(&node, &envoy);
    let address = format!("https://localhost:{}", node.grpc().port());
    let words = [&["explain", "--address", &address, "--domain", "shop", "k=v"], &envoy[..]].concat();
    fails(&acequia(&words), "may not do this");
    let words =
        [&["refund", "--address", &address, "eu/eu-1:00000000000000000000000000000000"], &envoy[..]].concat();
    fails(&acequia(&words), "may not do this");

    let [cert, key] = authority.sign("shop", &["shop.example.net"], |_| {});
    let shop = ["--ca", &ca, "--cert", &cert, "--key", &key];
    passes(&check(&node, "shop", &[&shop[..], &["--reserve", "1s"]].concat()));
    passes(&check(&node, "books", &shop));
    passes(&check(&node, "shop", &["--ca", &ca, "--token-file", &token]));
    // An unknown token counts for nothing, and a certificate still does.
    let other = authority.token("other", "a-token-of-more-than-sixteen.");
    fails(&check(&node, "shop", &["--ca", &ca, "--token-file", &other]), "knows its callers");
    passes(&check(&node, "shop", &[&shop[..], &["--token-file", &other]].concat()));
    fails(&check(&node, "shop", &["--ca", &ca]), "knows its callers");
    fails(&check(&node, "shop", &["--ca", &ca, "--token-file", &scraper]), "may not do this");

    let url = |path: &str| format!("https://localhost:{}{path}", node.http().port());
    let bearer = |token: &str| format!("authorization: Bearer {token}");
    let full = bearer("a-token-of-more-than-sixteen");
    for path in ["/healthz", "/readyz"] {
        assert_eq!(curl(&["--cacert", &ca, &url(path)]).0, "200", "{path}");
    }
    for (path, data) in [("/v1/check", CHECK), ("/v1/refund", "{}"), ("/v1/commit", "{}")] {
        let (status, text) = curl(&["--cacert", &ca, "--data", data, "--include", &url(path)]);
        assert!(
            status == "401" && text.to_lowercase().contains("www-authenticate: bearer"),
            "{path}: {text}"
        );
    }
    for path in ["/metrics", "/v1/authz?domain=shop&k=v", "/nothing"] {
        assert_eq!(curl(&["--cacert", &ca, &url(path)]).0, "401", "{path}");
    }
    let with = |header: &str, path: &str| curl(&["--cacert", &ca, "--header", header, &url(path)]).0;
    assert_eq!(with(&full, "/v1/authz?domain=books&k=v"), "200");
    for wrong in ["Bearer a-token-of-more-than-sixtee", "Bearer a-token-of-more-than-sixteen x", "Basic YTpi"]
    {
        assert_eq!(with(&format!("authorization: {wrong}"), "/metrics"), "401", "{wrong}");
    }
    let scraper = bearer("another-token-of-sixteen-and-more");
    assert_eq!(
        (with(&scraper, "/metrics"), with(&scraper, "/v1/authz?domain=shop&k=v")),
        ("200".into(), "403".into())
    );
    let (cert, key) = (authority.path("envoy/tls.crt"), authority.path("envoy/tls.key"));
    let envoy = |path: &str| curl(&["--cacert", &ca, "--cert", &cert, "--key", &key, &url(path)]).0;
    assert_eq!(
        [envoy("/v1/authz?domain=shop&k=v"), envoy("/v1/authz?domain=books&k=v"), envoy("/metrics")],
        ["200", "403", "403"]
    );

    let metrics = || curl(&["--cacert", &ca, "--header", &full, &url("/metrics")]).1;
    let counted = |port: &str, why: &str| refused(port, why, &metrics());
    assert_eq!([counted("grpc", "forbidden"), counted("grpc", "unknown")], [5.0, 2.0]);
    assert_eq!([counted("http", "forbidden"), counted("http", "unknown")], [3.0, 9.0]);
    node.until_it_says("a caller was turned away");
    let said = node.stderr();
    assert!(
        said.contains("port=\"grpc\"")
            && said.contains("knows its callers")
            && said.contains("from=\"127.0.0.1:")
            && said.contains("who=\"spiffe://shop/envoy\"")
    );
    assert!(!said.contains("not encrypted") && !said.contains("whoever reaches"), "{said}");
}

#[test]
fn the_example_of_the_page_does_what_the_page_says() {
    let authority = Authority::new();
    authority.sign("certs", &["localhost"], |_| {});
    let certs = authority.path("certs");
    std::fs::copy(authority.path("ca.crt"), authority.path("certs/ca.crt")).expect("copied");
    let token = authority.token("token", "a-token-of-more-than-sixteen");
    let socket = authority.path("http.sock");
    let listen = &blocks(&page("SECURITY.md"), "yaml")[0].text;
    let listen = listen.replace("0.0.0.0:8081", "\"127.0.0.1:0\"").replace("certs/", &format!("{certs}/"));
    let listen = listen.replace("./token", &token).replace("/run/acequia/http.sock", &socket);
    let node = Node::start_whole(&format!("region: eu\nnode: eu-1\n{listen}{LIMITS}"));
    let ca = authority.path("ca.crt");
    let [cert, key] = authority.sign("envoy", &["spiffe://shop/envoy"], |_| {});
    let envoy = ["--ca", &ca, "--cert", &cert, "--key", &key];
    may_check_in_two_domains(&node, &envoy);
    passes(&check(&node, "books", &["--ca", &ca, "--token-file", &token, "--reserve", "1s"]));
    fails(&check(&node, "shop", &["--ca", &ca]), "knows its callers");
    assert_eq!(curl(&["--unix-socket", &socket, "--data", CHECK, "http://node/v1/check"]).0, "200");
}

#[test]
fn certificates_that_are_not_good_enough_let_nobody_in() {
    let authority = Authority::new();
    let guarded = authority.tls(true);
    let allowed = format!("{guarded}, allow: [{{ name: \"spiffe://shop/envoy\" }}]");
    let node = node(&guarded, &allowed);
    let ca = authority.path("ca.crt");
    let url = format!("https://localhost:{}/v1/check", node.http().port());
    let ask = |[cert, key]: &[String; 2]| {
        curl(&["--cacert", &ca, "--cert", cert, "--key", key, "--data", CHECK, &url]).0
    };
    let envoy = ["spiffe://shop/envoy"];
    assert_eq!(ask(&authority.sign("good", &envoy, |_| {})), "200");
    for near in ["spiffe://shop/envoy2", "spiffe://shop/envo", "spiffe://shop/envoy/x", "shop"] {
        assert_eq!(ask(&authority.sign("near", &[near], |_| {})), "401", "{near}");
    }
    let past = |params: &mut CertificateParams| {
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2021, 1, 1));
    };
    let expired = authority.sign("expired", &envoy, past);
    let other = Authority::new();
    let strange = other.sign("strange", &envoy, |_| {});
    assert_eq!((ask(&expired), ask(&strange)), ("000".to_owned(), "000".to_owned()));

    // If a port's config names no callers, every certificate of the authority lets its owner in.
    let any = authority.sign("any", &["anything"], |_| {});
    let grpc = |[cert, key]: &[String; 2]| check(&node, "shop", &["--ca", &ca, "--cert", cert, "--key", key]);
    passes(&grpc(&any));
    fails(&grpc(&expired), "no answer");
    fails(&grpc(&strange), "no answer");
    fails(&check(&node, "shop", &["--ca", &ca]), "knows its callers");
    let metrics = || {
        let [cert, key] = authority.sign("good", &envoy, |_| {});
        let url = format!("https://localhost:{}/metrics", node.http().port());
        curl(&["--cacert", &ca, "--cert", &cert, "--key", &key, &url]).1
    };
    assert_eq!(refused("http", "handshake", &metrics()), 2.0);
    assert!(refused("grpc", "handshake", &metrics()) >= 2.0);
}

#[test]
fn certificates_tokens_and_callers_are_read_again() {
    let authority = Authority::new();
    // Like a secret in Kubernetes: a link to a folder that is replaced as a whole.
    let mount = authority.folder.path().join("mount");
    std::fs::create_dir(&mount).expect("a folder");
    let put = |version: &str, name: &str| {
        authority.sign(&format!("mount/{version}"), &[name], |_| {});
        let link = mount.join("..new");
        symlink(version, &link).expect("linked");
        std::fs::rename(link, mount.join("..data")).expect("replaced");
    };
    put("1", "localhost");
    for file in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{file}"), mount.join(file)).expect("linked");
    }
    let token = authority.token("token", "a-token-of-more-than-sixteen");
    let tls = format!("tls: {{ cert: {0}/tls.crt, key: {0}/tls.key }}", mount.display());
    let guarded = |allow: &str| format!("{tls}{allow}");
    let with_token = guarded(&format!(", allow: [{{ token_file: {token} }}]"));
    let node = node(&with_token, "");
    let ca = authority.path("ca.crt");
    let ask = |name: &str, token: &str| {
        let token = authority.token("mine", token);
        check(&node, "shop", &["--ca", &ca, "--server-name", name, "--token-file", &token]).status.code()
    };
    assert_eq!(ask("localhost", "a-token-of-more-than-sixteen"), Some(0));
    put("2", "renewed.internal");
    eventually("another certificate", || ask("renewed.internal", "a-token-of-more-than-sixteen") == Some(0));
    authority.token("token", "another-token-of-sixteen-and-more");
    eventually("another token", || ask("renewed.internal", "another-token-of-sixteen-and-more") == Some(0));
    assert_eq!(ask("renewed.internal", "a-token-of-more-than-sixteen"), Some(2));
    // Unusable files change nothing.
    std::fs::write(mount.join("2/tls.key"), "no key").expect("written");
    node.until_it_says("certificates and tokens not read again: the old ones stay");
    assert_eq!(ask("renewed.internal", "another-token-of-sixteen-and-more"), Some(0));
    put("3", "localhost");
    eventually("a good one again", || ask("localhost", "another-token-of-sixteen-and-more") == Some(0));

    // The config changes the callers without a restart, if the port's address stays.
    node.write_whole_config(&config(&guarded(""), ""));
    eventually("everybody", || ask("localhost", "nobody's-token-of-sixteen") == Some(0));
    node.write_whole_config(&config(&with_token, ""));
    eventually("one caller", || ask("localhost", "nobody's-token-of-sixteen") == Some(2));
    node.write_whole_config(&config("", ""));
    node.until_it_says("changed in the file, and needs a restart to take effect");
    node.hup();
    assert_eq!(ask("localhost", "nobody's-token-of-sixteen"), Some(2), "who may come stays with the port");
}

#[test]
fn callers_of_this_machine_come_by_a_socket_in_the_file_system() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let config = |grpc: &Path, http: &str| {
        format!(
            "region: eu\nnode: eu-1\nlisten: {{ grpc: \"unix:{}\", http: {http} }}\n{LIMITS}",
            grpc.display()
        )
    };
    let (grpc, http) = (path("grpc.sock"), path("http.sock"));
    // A socket that a killed process left behind.
    drop(UnixListener::bind(&grpc).expect("a socket"));
    let of_http = format!("{{ address: \"unix:{}\", mode: \"0666\" }}", http.display());
    let mut node = Node::start_whole(&config(&grpc, &of_http));
    let mode = |path: &Path| {
        let found = std::fs::symlink_metadata(path).expect("there");
        assert!(found.file_type().is_socket());
        found.permissions().mode() & 0o777
    };
    assert_eq!((mode(&grpc), mode(&http)), (0o660, 0o666));
    let address = format!("unix:{}", grpc.display());
    passes(&acequia(&["check", "--address", &address, "--domain", "shop", "--deadline", "20s", "k=v"]));
    passes(&acequia(&["bench", "--address", &address, "--seconds", "1", "--keys", "10", "--mode", "check"]));
    let socket = http.display().to_string();
    let (status, text) = curl(&["--unix-socket", &socket, "--data", CHECK, "http://node/v1/check"]);
    assert!(status == "200" && text.contains("\"allowed\":true"), "{text}");

    // A second node neither replaces a running node nor removes a file that is no socket.
    let file = path("file");
    std::fs::write(&file, "a text").expect("written");
    let refused = |at: &Path, why: &str| {
        let other = path("other.yaml");
        std::fs::write(&other, config(at, "\"127.0.0.1:0\"")).expect("written");
        let output = acequia(&["serve", "--config", &other.display().to_string()]);
        fails(&output, why);
        fails(&output, &format!("cannot listen on unix:{}", at.display()));
    };
    refused(&grpc, "another process listens there");
    refused(&file, "no socket");
    refused(&path("no/folder/x.sock"), "No such file");
    assert_eq!(std::fs::read_to_string(&file).expect("there"), "a text");
    assert!(node.terminate().success());
    assert!(!grpc.exists() && !http.exists(), "a clean stop takes them away");
    node.start_again();
    node.kill();
    assert!(grpc.exists());
    node.start_again();
}

#[test]
fn what_is_no_handshake_holds_a_place_for_seconds_and_stops_nobody() {
    let authority = Authority::new();
    let node = node("", &authority.tls(false));
    let begun = Instant::now();
    // One connection sends the first bytes of a ClientHello, and the other sends plain HTTP.
    let mut half = TcpStream::connect(node.http()).expect("a connection");
    half.write_all(&[0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc]).expect("sent");
    let mut plain = TcpStream::connect(node.http()).expect("a connection");
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: node\r\n\r\n").expect("sent");
    plain.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut answer = Vec::new();
    // The connection may be reset instead of closed.
    let _ = plain.read_to_end(&mut answer);
    assert!(begun.elapsed() < Duration::from_secs(5) && answer.len() < 64, "{answer:?}");
    let ca = authority.path("ca.crt");
    let url = |path: &str| format!("https://localhost:{}{path}", node.http().port());
    let metrics = || curl(&["--cacert", &ca, &url("/metrics")]).1;
    eventually("it is counted", || refused("http", "handshake", &metrics()) == 1.0);
    // TLS to a port without TLS.
    fails(&check(&node, "shop", &["--ca", &ca]), "no answer");
    passes(&acequia(&["check", "--domain", "shop", "--address", &node.grpc().to_string(), "k=v"]));
    assert_eq!(curl(&["--cacert", &ca, "--data", CHECK, &url("/v1/check")]).0, "200");
    half.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    let _ = half.read_to_end(&mut answer);
    let waited = begun.elapsed();
    assert!((9..20).contains(&waited.as_secs()), "cut after {waited:?}");
    let ended = metrics();
    let ended = openmetrics::parse(&ended).expect("metrics");
    assert_eq!(ended.sum("acequia_connections_ended_total", &[("port", "http"), ("why", "silent")]), 1.0);
}

#[test]
fn operators_need_a_certificate_or_a_token_that_the_admin_port_allows() {
    let authority = Authority::new();
    let token = authority.token("token", "a-token-of-more-than-sixteen");
    let admin = format!(
        "{{ address: \"0.0.0.0:0\", {}, allow: [{{ name: ana.example.net }}, {{ token_file: {token} }}] }}",
        authority.tls(true)
    );
    let node = Node::start_whole(&format!(
        "region: eu\nnode: eu-1\nlisten: {{ grpc: \"0.0.0.0:0\", http: \"127.0.0.1:0\", admin: {admin} }}\n{LIMITS}"
    ));
    node.until_it_says("callers from elsewhere are not encrypted");
    node.until_it_says("whoever reaches this port may ask");
    assert!(!node.stderr().contains("port=\"http\""), "{}", node.stderr());
    let ca = authority.path("ca.crt");
    let address = format!("https://localhost:{}", node.admin().port());
    let top = |more: &[&str]| {
        let words = ["top", "--json", "--address", &address, "--ca", &ca, "--server-name", "localhost"];
        acequia(&[&words[..], more].concat())
    };
    let [cert, key] = authority.sign("ana", &["ana.example.net"], |_| {});
    passes(&top(&["--cert", &cert, "--key", &key]));
    passes(&top(&["--token-file", &token]));
    let [cert, key] = authority.sign("bob", &["bob.example.net"], |_| {});
    fails(&top(&["--cert", &cert, "--key", &key]), "knows its callers");
    fails(&top(&[]), "knows its callers");
    assert!(metric(&node, "acequia_callers_refused_total", &[("port", "admin"), ("why", "unknown")]) >= 2.0);
}

#[test]
fn a_file_that_is_not_there_or_holds_something_else_stops_the_start_with_its_name() {
    let authority = Authority::new();
    let [cert, key] = authority.sign("server", &["localhost"], |_| {});
    let [_, other] = authority.sign("other", &["localhost"], |_| {});
    let short = authority.token("short", "short");
    let missing: PathBuf = authority.folder.path().join("missing");
    let missing = missing.display().to_string();
    for (grpc, why) in [
        (format!("tls: {{ cert: {missing}, key: {key} }}"), "missing: No such file"),
        (format!("tls: {{ cert: {key}, key: {key} }}"), "it has no certificate"),
        (format!("tls: {{ cert: {cert}, key: {cert} }}"), "tls.crt"),
        (format!("tls: {{ cert: {cert}, key: {other} }}"), "tls.crt and"),
        (format!("tls: {{ cert: {cert}, key: {key}, client_ca: {key} }}"), "it has no certificate"),
        (format!("allow: [{{ token_file: {missing} }}]"), "which holds a token"),
        (format!("allow: [{{ token_file: {short} }}]"), "short holds no token"),
    ] {
        let file = authority.folder.path().join("acequia.yaml");
        std::fs::write(&file, config(&grpc, "")).expect("written");
        let output = acequia(&["serve", "--config", &file.display().to_string()]);
        fails(&output, why);
        fails(&output, "listen.grpc");
    }
}
