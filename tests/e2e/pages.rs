//! The commands and configs on the pages for operators, run with other ports.
//!
//! A page's shell blocks are one session in a folder with `deploy/` and the binary. `console` blocks change
//! the machine or need programs that tests do not install; their commands are only parsed.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use acequia_lint::{Block, Page};
use acequia_tests::{acequia, binary, whole_config};
use serde_json::Value;

use crate::store::servers::free_port;

pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Ports that the pages and their configs name. Nobody may hold them while tests run.
const PORTS: [u16; 17] =
    [6070, 7201, 7202, 7203, 8000, 8079, 8080, 8081, 8082, 8180, 8181, 8182, 8280, 8281, 8282, 9000, 10000];
/// The start of every session: an answer may take a while, and background processes end with the session.
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

/// A replacement for each port on the pages.
pub(crate) struct Ports(BTreeMap<u16, u16>);

impl Ports {
    pub(crate) fn new() -> Self {
        Self(PORTS.into_iter().map(|port| (port, free_port())).collect())
    }

    /// The address of a program whose port on a page is `port`.
    pub(crate) fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.0[&port]))
    }

    pub(crate) fn replace(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (written, port) in &self.0 {
            for before in [":", "port_value: ", "PORT="] {
                text = text.replace(&format!("{before}{written}"), &format!("{before}{port}"));
            }
        }
        text
    }
}

/// Runs a page's blocks as one session in a folder. Returns the output.
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
    for block in blocks(&page(name), "yaml") {
        // A config of another service says where it lies.
        if let Some(path) = block.text.lines().next().and_then(|line| line.strip_prefix("# config/")) {
            fs::create_dir_all(folder.path().join("config")).expect("a folder");
            fs::write(folder.path().join("config").join(path), &block.text).expect("a file");
        }
    }
    std::os::unix::fs::symlink(binary(), folder.path().join("target/release/acequia")).expect("a link");
    let script: Vec<_> = blocks(&page(name), "sh").into_iter().map(|block| block.text).collect();
    assert!(!script.is_empty(), "{name} has nothing to run");
    let script = format!("{PRELUDE}{}", ports.replace(&script.concat()));
    let address = |port| ports.address(port).to_string();
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
fn whoever_comes_from_another_service_tries_it_as_the_page_says() {
    let name = "deploy/from-ratelimit.md";
    let said = session(name).expect("a session");
    for part in
        [r#""overallCode":"OK""#, r#""limitRemaining":99"#, "shop.tenant: unit=MINUTE", "name: tenant"]
    {
        assert!(said.contains(part), "no {part} in {said}");
    }
    let limitador = session("deploy/from-limitador.md").expect("a session");
    for part in ["# differs: a window begins", "name: posts", "is sound", "allowed"] {
        assert!(limitador.contains(part), "no {part} in {limitador}");
    }
    let limits = &blocks(&page(name), "yaml")[1].text;
    let config = acequia_server::config::Config::parse(name, &whole_config(limits, Path::new("data")));
    assert_eq!(config.expect("a config").live.limits.len(), 1);
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
    // Other programs read the rest. The names are those of the contract.
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
    // The program must exist, and root is a user on every machine.
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
