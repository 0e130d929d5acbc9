//! What the pages tell operators to type and to write, run as it stands there, with other ports.
//!
//! The blocks for a shell of one page are one session in one folder, which holds `deploy/` and the binary. What is marked
//! `console` changes the machine or needs programs that tests do not install; those commands are only parsed.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use acequia_lint::{Block, Page};
use acequia_tests::{Node, PATIENCE, acequia, binary, eventually, get, whole_config};
use serde_json::Value;

use crate::{client::Http, store::servers::free_port};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Ports that the pages and the configs beside them name, and nobody may hold while tests run.
const PORTS: [u16; 15] =
    [7201, 7202, 7203, 8000, 8080, 8081, 8082, 8180, 8181, 8182, 8280, 8281, 8282, 9000, 10000];
/// What every session begins with: an answer may take a while, and what was started ends with the session.
const PRELUDE: &str = r#"
set -eu -o pipefail
trap 'status=$?; kill $(jobs -p) 2>/dev/null || true; wait; exit $status' EXIT
curl() { for _ in $(seq 200); do command curl -fsS "$@" && return; sleep 0.1; done; return 1; }
"#;

pub(crate) fn page(name: &str) -> Page {
    Page::read(&fs::read_to_string(Path::new(ROOT).join(name)).expect("a page"))
}

pub(crate) fn blocks(page: &Page, kind: &str) -> Vec<Block> {
    page.blocks.iter().filter(|block| block.kind == kind).cloned().collect()
}

/// Another port for each that the pages name.
struct Ports(BTreeMap<u16, u16>);

impl Ports {
    fn new() -> Self {
        Self(PORTS.into_iter().map(|port| (port, free_port())).collect())
    }

    fn replace(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (written, port) in &self.0 {
            for before in [":", "port_value: "] {
                text = text.replace(&format!("{before}{written}"), &format!("{before}{port}"));
            }
        }
        text
    }
}

/// Runs the blocks of a page as one session in a folder; what it printed.
fn session(name: &str) -> Result<String, String> {
    let ports = Ports::new();
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(folder.path().join("deploy")).expect("a folder");
    fs::create_dir_all(folder.path().join("target/release")).expect("a folder");
    for entry in fs::read_dir(Path::new(ROOT).join("deploy")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|kind| kind == "yaml") {
            let text = ports.replace(&fs::read_to_string(&path).expect("a config"));
            fs::write(folder.path().join("deploy").join(path.file_name().expect("a name")), text)
                .expect("a file");
        }
    }
    std::os::unix::fs::symlink(binary(), folder.path().join("target/release/acequia")).expect("a link");
    let script: Vec<_> = blocks(&page(name), "sh").into_iter().map(|block| block.text).collect();
    assert!(!script.is_empty(), "{name} has nothing to run");
    let script = format!("{PRELUDE}{}", ports.replace(&script.concat()));
    let address = |port| format!("127.0.0.1:{}", ports.0[&port]);
    let path = format!(
        "{}:{}",
        folder.path().join("target/release").display(),
        std::env::var("PATH").expect("a path")
    );
    let ran = Command::new("timeout")
        .args(["120", "bash", "-c", &script])
        .current_dir(folder.path())
        .envs([("PATH", path), ("ACEQUIA_ADDR", address(8081)), ("ACEQUIA_ADMIN_ADDR", address(8082))])
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if ran.status.success() {
        Ok(said(&ran.stdout))
    } else {
        Err(format!("{name}: {}\n{script}\n{}\n{}", ran.status, said(&ran.stdout), said(&ran.stderr)))
    }
}

#[test]
fn the_readme_runs_three_regions() {
    let said = session("README.md").expect("a session");
    for part in ["ready", "allowed", "per-key", "may use"] {
        assert!(said.contains(part), "no {part} in {said}");
    }
}

#[test]
fn the_readme_explains_the_config_that_is_shipped() {
    let [block] = &blocks(&page("README.md"), "yaml")[..] else { panic!("one config is explained") };
    let read = |text: &str| -> Value { serde_saphyr::from_str(text).expect("YAML") };
    let (mut shown, shipped) =
        (read(&block.text), read(&fs::read_to_string(format!("{ROOT}/deploy/eu.yaml")).expect("a config")));
    let limits = shipped["limits"].as_array().expect("limits");
    for limit in shown["limits"].as_array().expect("limits") {
        assert!(limits.contains(limit), "{limit} is not in deploy/eu.yaml");
    }
    shown["limits"] = shipped["limits"].clone();
    assert_eq!(shown, shipped);
}

#[test]
fn operators_start_one_node_as_the_page_says() {
    let said = session("deploy/README.md").expect("a session");
    for part in ["is sound", "ready", "allowed"] {
        assert!(said.contains(part), "no {part} in {said}");
    }
}

#[test]
fn certificates_are_made_as_the_page_says() {
    let said = session("deploy/tls.md").expect("a session");
    assert!(said.contains("URI:acequia://eu/eu-1") && said.matches("eu-1.pem: OK").count() == 2, "{said}");
    // What else is there is read by other programs: the names are those of the contract.
    let certificate = &blocks(&page("deploy/tls.md"), "yaml")[0].text;
    let certificate: Value = serde_saphyr::from_str(certificate).expect("YAML");
    assert_eq!(certificate["spec"]["dnsNames"][0], "acequia.internal");
    assert_eq!(certificate["spec"]["uris"][0], "acequia://eu/eu-1");
    let volumes: Value =
        serde_saphyr::from_str(&blocks(&page("deploy/tls.md"), "yaml")[1].text).expect("YAML");
    let items = volumes["volumes"][0]["secret"]["items"].as_array().expect("items");
    let paths: Vec<_> = items.iter().map(|item| item["path"].as_str().expect("a path")).collect();
    assert_eq!(paths, ["ca.pem", "eu-1.pem", "eu-1.key"]);
}

#[test]
fn systemd_takes_the_unit() {
    let [block] = &blocks(&page("deploy/README.md"), "ini")[..] else { panic!("one unit") };
    let folder = tempfile::tempdir().expect("a folder");
    let unit = folder.path().join("acequia.service");
    // The program must be there, and root is a user on every machine.
    let here = block
        .text
        .replace("/usr/local/bin/acequia", &binary().canonicalize().expect("a path").display().to_string());
    fs::write(&unit, here.replace("User=acequia", "User=root")).expect("a file");
    let ran =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output().expect("systemd");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success() && !said.contains("acequia.service:"), "{said}");
}

#[test]
fn every_config_for_limits_is_sound() {
    let mut count = 0;
    for name in ["deploy/limits.md", "deploy/callers.md"] {
        for block in blocks(&page(name), "yaml") {
            let folder = tempfile::tempdir().expect("a folder");
            fs::write(folder.path().join("webhook.key"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
                .expect("a file");
            let yaml =
                block.text.replace("./webhook.key", &folder.path().join("webhook.key").display().to_string());
            let path = folder.path().join("acequia.yaml");
            fs::write(&path, whole_config(&yaml, folder.path())).expect("a file");
            let ran = acequia(&["validate", path.to_str().expect("text")]);
            assert_eq!(
                ran.status.code(),
                Some(0),
                "{name}: {yaml}\n{}",
                String::from_utf8_lossy(&ran.stderr)
            );
            count += 1;
        }
    }
    assert!(count > 10, "only {count} configs were found");
}

/// A program that ends with the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.process_group(0).stdin(Stdio::null()).spawn().expect("it starts"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended needs no signal; nginx has processes of its own.
        let _ = Command::new("kill").args(["--", &format!("-{}", self.0.id())]).status();
        let _ = self.0.wait();
    }
}

/// The limits of the recipe that the proxies' configs are for, at a node.
fn node_of_the_proxies(ports: &Ports) -> Node {
    let page = page("deploy/callers.md");
    let limits = blocks(&page, "yaml").into_iter().find(|block| block.heading == "Ask").expect("a recipe");
    let listen = r#"listen: { grpc: "127.0.0.1:8081", http: "127.0.0.1:8080", admin: "127.0.0.1:0" }"#;
    Node::start_whole(&format!(
        "region: eu\nnode: eu-1\nworkers: 1\n{}\n{}",
        ports.replace(listen),
        limits.text
    ))
}

/// An application that answers every request: another node.
fn app(ports: &Ports) -> Node {
    let listen = r#"listen: { grpc: "127.0.0.1:0", http: "127.0.0.1:9000" }"#;
    Node::start_whole(&format!("region: eu\nnode: app\nworkers: 1\nlimits: []\n{}", ports.replace(listen)))
}

/// Asks a proxy for `/healthz` four times with a key that may pass three times.
fn is_limited(port: u16) {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    eventually("the proxy answers", || get(address, "/healthz").starts_with("HTTP/1.1 200"));
    let ask = || Http::to(address).ask("GET", "/healthz", &[("x-api-key", "k1")], "").expect("an answer");
    let codes: Vec<_> = (0..4).map(|_| ask().status).collect();
    assert_eq!(codes, [200, 200, 200, 429]);
}

#[test]
fn envoy_limits_as_the_page_says() {
    let (ports, folder) = (Ports::new(), tempfile::tempdir().expect("a folder"));
    let _node = node_of_the_proxies(&ports);
    let _app = app(&ports);
    let _envoy = running_envoy(&ports, folder.path(), "");
    is_limited(ports.0[&10000]);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], ports.0[&10000]));
    let denied = Http::to(address).ask("GET", "/healthz", &[("x-api-key", "k1")], "").expect("an answer");
    for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
        assert!(denied.header(name).is_some(), "no {name} in {denied:?}");
    }
}

/// Were `%01` refused, Envoy would let it pass.
#[test]
fn no_byte_of_a_query_passes_envoy_uncounted() {
    let (ports, folder) = (Ports::new(), tempfile::tempdir().expect("a folder"));
    let _node = node_of_the_proxies(&ports);
    let _app = app(&ports);
    let by_user = "{ query_parameters: { query_parameter_name: user, descriptor_key: api_key } }";
    let _envoy = running_envoy(&ports, folder.path(), by_user);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], ports.0[&10000]));
    eventually("the proxy answers", || get(address, "/healthz").starts_with("HTTP/1.1 200"));
    for user in ["%01", "%00", "%0A", "%FF%FE", "%7F"] {
        let ask = || Http::to(address).get(&format!("/healthz?user={user}")).status;
        let codes: Vec<_> = (0..4).map(|_| ask()).collect();
        assert_eq!(codes, [200, 200, 200, 429], "{user}");
    }
}

/// Envoy with the config of the page; with a descriptor more where `action` makes one.
fn running_envoy(ports: &Ports, folder: &Path, action: &str) -> Running {
    let [block] = &blocks(&page("deploy/callers.md"), "envoy")[..] else { panic!("one config") };
    let last = "- actions: [{ remote_address: {} }]";
    assert!(block.text.contains(last), "the page has that descriptor");
    let more =
        if action.is_empty() { String::new() } else { format!("\n              - actions: [{action}]") };
    let config = folder.join("envoy.yaml");
    fs::write(&config, ports.replace(&block.text.replace(last, &format!("{last}{more}")))).expect("a file");
    Running::start(
        Command::new(envoy())
            .args(["--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id", "-c"])
            .arg(&config),
    )
}

/// Envoy, as `tests/run` installs it.
fn envoy() -> PathBuf {
    let path = Path::new(ROOT).join("target/tools/envoy/_bin/envoy");
    assert!(path.exists(), "no Envoy at {}: tests/run installs it", path.display());
    path
}

#[test]
fn nginx_limits_as_the_page_says() {
    let (ports, folder) = (Ports::new(), tempfile::tempdir().expect("a folder"));
    let node = node_of_the_proxies(&ports);
    let _app = app(&ports);
    let [block] = &blocks(&page("deploy/callers.md"), "nginx")[..] else { panic!("one config") };
    let here = folder.path().display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {here}/{kind};\n"))
        .concat();
    let config = format!(
        "daemon off; pid {here}/pid; error_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{}\n}}\n",
        ports.replace(&block.text)
    );
    let path = folder.path().join("nginx.conf");
    fs::write(&path, config).expect("a file");
    let _nginx = Running::start(
        Command::new("nginx").arg("-e").arg("stderr").arg("-p").arg(folder.path()).arg("-c").arg(&path),
    );
    is_limited(ports.0[&8000]);

    // Who is denied is told when to come back; and nobody passes while no node answers.
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], ports.0[&8000]));
    let denied = Http::to(address).ask("GET", "/healthz", &[("x-api-key", "k1")], "").expect("an answer");
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    drop(node);
    let ask =
        || Http::to(address).ask("GET", "/healthz", &[("x-api-key", "k2")], "").expect("an answer").status;
    let deadline = std::time::Instant::now() + PATIENCE;
    while ask() != 503 {
        assert!(std::time::Instant::now() < deadline, "nginx lets pass what nobody decides");
    }
}
