//! The configs of `deploy/proxies`, run by the real proxies with other ports.
//!
//! Whatever a client sends is counted, and causes neither an error nor a free pass.

use std::{
    fs,
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use acequia_tests::{Node, PATIENCE, eventually, get};
use tempfile::TempDir;

use crate::{
    client::{Http, Reply},
    pages::{Ports, ROOT, blocks, page},
    store::servers::free_port,
};

/// The folder of the configs, as named by the command in the first line of each.
const FOLDER: &str = "deploy/proxies";
/// Two limits besides those of the recipe: one for a query, and one for an address that no client has.
const LIMITS: &str = r#"
  - { name: per-user, domain: shop, when: { route: "/healthz?user=*" }, by: [route], token_bucket: { rate: 1/h, burst: 3 } }
  - { name: elsewhere, domain: shop, when: { remote_address: 192.0.2.7 }, by: [remote_address], fixed_window: { limit: 0, window: 1h } }
"#;

/// A proxy, and its behaviour with its config.
struct Proxy {
    config: &'static str,
    /// The path where `tests/run` puts the program. A name without a folder is in the search path.
    program: &'static str,
    /// Arguments that only tests need.
    arguments: &'static [&'static str],
    port: u16,
    /// A client's status while no node is there.
    unanswered: u16,
}

const ENVOY: Proxy = Proxy {
    config: "envoy.yaml",
    program: "target/tools/envoy/_bin/envoy",
    arguments: &["--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id"],
    port: 10000,
    unanswered: 200,
};
const NGINX: Proxy =
    Proxy { config: "nginx.conf", program: "nginx", arguments: &[], port: 8000, unanswered: 503 };
const CADDY: Proxy = Proxy {
    config: "Caddyfile",
    program: "target/tools/proxies/bin/caddy",
    arguments: &[],
    port: 8000,
    unanswered: 502,
};
const TRAEFIK: Proxy = Proxy {
    config: "traefik-routes.yaml",
    program: "target/tools/proxies/bin/traefik",
    arguments: &["--global.checkNewVersion=false"],
    port: 8000,
    unanswered: 500,
};
const HAPROXY: Proxy =
    Proxy { config: "haproxy.cfg", program: "haproxy", arguments: &[], port: 8000, unanswered: 503 };

/// A change to a config that its comments describe.
struct Change {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

/// A proxy between a client, a node and an application.
struct Scene {
    proxy: &'static Proxy,
    address: SocketAddr,
    _running: Running,
    node: Node,
    _app: Node,
    _folder: TempDir,
}

impl Scene {
    fn start(proxy: &'static Proxy) -> Self {
        Self::start_changed(proxy, None, 200)
    }

    /// Starts everything, and waits until a client gets the status `ready`.
    fn start_changed(proxy: &'static Proxy, change: Option<Change>, ready: u16) -> Self {
        let (ports, folder) = (Ports::new(), tempfile::tempdir().expect("a folder"));
        copy_configs(&ports, folder.path(), change);
        let (node, app) = (node(&ports), app(&ports));
        let running = Running::start(proxy, folder.path(), &ports);
        let address = ports.address(proxy.port);
        let first = format!("HTTP/1.1 {ready}");
        eventually("the proxy answers", || get(address, "/healthz").starts_with(&first));
        Self { proxy, address, _running: running, node, _app: app, _folder: folder }
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        Http::to(self.address).ask("GET", path, headers, "").expect("an answer")
    }

    /// Asks until the node answers in time, which may fail on a busy machine.
    fn answered(&self, ask: impl Fn() -> Reply) -> Reply {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reply = ask();
            if reply.status < 500 || Instant::now() > deadline {
                return reply;
            }
        }
    }

    /// Asks four times, and three requests may pass. `ask` gets a name that is counted separately. If the
    /// node did not answer in time, everything is repeated with another name. Returns the denial.
    #[track_caller]
    fn counts(&self, what: &str, ask: impl Fn(&str) -> Reply) -> Reply {
        let deadline = Instant::now() + PATIENCE;
        let mut attempts = 0;
        loop {
            let name = format!("{what}-{attempts}");
            let mut replies: Vec<_> = (0..4).map(|_| ask(&name)).collect();
            let codes: Vec<_> = replies.iter().map(|reply| reply.status).collect();
            let is_late = codes.iter().any(|code| *code >= 500)
                || self.proxy.unanswered == 200 && codes.iter().all(|code| *code == 200);
            if !is_late || Instant::now() > deadline {
                assert_eq!(codes, [200, 200, 200, 429], "{what}");
                assert_eq!(replies[0].body, "ok\n", "{what}: the application's answer");
                return replies.pop().expect("four replies");
            }
            attempts += 1;
        }
    }

    #[track_caller]
    fn counts_keys(&self) {
        let denied = self.counts("key", |key| self.get("/healthz", &[("x-api-key", key)]));
        assert!(denied.number("retry-after") > 3_000, "{denied:?}");
        for name in ["ratelimit", "ratelimit-policy"] {
            let value = denied.header(name).unwrap_or_else(|| panic!("no {name} in {denied:?}"));
            for limit in ["per-key", "per-address"] {
                assert!(value.contains(limit), "{limit} is not in {value}");
            }
        }
    }

    /// Unusual bytes that clients may send are counted.
    #[track_caller]
    fn counts_whatever_is_sent(&self) {
        // Four requests, to show that no cell counts a missing key.
        for _ in 0..4 {
            assert_eq!(self.answered(|| self.get("/healthz", &[])).status, 200, "no key");
        }
        for user in ["%01", "%00", "%0A", "%FF%FE", "%7F", "a&user=b"] {
            self.counts(user, |name| self.get(&format!("/healthz?user={user}&{name}"), &[]));
        }
        self.counts("%01%00", |key| self.get("/healthz", &[("x-api-key", key)]));
        self.counts("é", |key| self.get("/healthz", &[("x-api-key", key)]));
        self.counts("twice", |key| self.get("/healthz", &[("x-api-key", key), ("x-api-key", "b")]));
        let byte = self.answered(|| self.get("/healthz", &[("x-api-key", "a\u{1}")]));
        assert_eq!(byte.status, 400, "a byte that no header may have");
        let long = "x".repeat(6_000);
        self.counts("long", |key| self.get("/healthz", &[("x-api-key", &format!("{long}{key}"))]));
    }

    /// No client can choose the address and the path that are counted.
    #[track_caller]
    fn counts_the_true_address_and_path(&self) {
        let elsewhere = Http::connect(&self.node).get("/v1/authz?domain=shop&remote_address=192.0.2.7");
        assert_eq!(elsewhere.status, 429, "the limit for that address is there");
        let pretend = [("x-forwarded-for", "192.0.2.7"), ("x-forwarded-uri", "/")];
        self.counts("path", |name| self.get(&format!("/healthz?user=c&{name}"), &pretend));
    }

    #[track_caller]
    fn hands_bodies_on(&self) {
        let body = r#"{"domain": "shop", "descriptors": [{"a": "b"}]}"#;
        let post = || Http::to(self.address).ask("POST", "/v1/check", &[], body).expect("an answer");
        assert_eq!(self.answered(post).json()["allowed"], true);
    }

    /// A proxy does not wait for a suspended node.
    #[track_caller]
    fn is_soon_without_a_late_node(&self) {
        self.node.hold(true);
        // The node may answer once more before it stops.
        eventually("requests end without a late node", || {
            let status = self.get("/healthz", &[]).status;
            if self.proxy.unanswered == 200 { status == 200 } else { status >= 500 }
        });
        self.node.hold(false);
    }

    #[track_caller]
    fn goes_on_without_a_node(mut self) {
        self.node.kill();
        for _ in 0..3 {
            let reply = self.get("/healthz", &[("x-api-key", "without")]);
            assert_eq!(reply.status, self.proxy.unanswered, "{reply:?}");
        }
    }

    /// The behaviour of each proxy that asks `/v1/authz`, while its node answers.
    fn counts_as_the_page_says(&self) {
        self.counts_keys();
        self.counts_whatever_is_sent();
        self.counts_the_true_address_and_path();
        self.hands_bodies_on();
    }
}

/// Copies the configs with other ports to a folder of the same name.
fn copy_configs(ports: &Ports, folder: &Path, change: Option<Change>) {
    fs::create_dir_all(folder.join(FOLDER)).expect("a folder");
    for entry in fs::read_dir(Path::new(ROOT).join(FOLDER)).expect("a folder") {
        let entry = entry.expect("an entry");
        let mut text = fs::read_to_string(entry.path()).expect("a config");
        if let Some(Change { from, to, .. }) =
            change.as_ref().filter(|change| entry.file_name() == change.file)
        {
            assert_eq!(text.matches(from).count(), 1, "{from}");
            text = text.replace(from, to);
        }
        fs::write(folder.join(FOLDER).join(entry.file_name()), ports.replace(&text)).expect("a file");
    }
}

/// A node with the limits of the configs' recipe.
fn node(ports: &Ports) -> Node {
    let page = page("deploy/callers.md");
    let limits = blocks(&page, "yaml").into_iter().find(|block| block.heading == "Ask").expect("a recipe");
    let listen = r#"listen: { grpc: "127.0.0.1:8081", http: "127.0.0.1:8080", admin: "127.0.0.1:0" }"#;
    let head = format!("region: eu\nnode: eu-1\nworkers: 1\n{}\n", ports.replace(listen));
    Node::start_whole(&format!("{head}{}{LIMITS}", limits.text.trim_end()))
}

/// An application that answers every request. It is another node.
fn app(ports: &Ports) -> Node {
    let listen = r#"listen: { grpc: "127.0.0.1:0", http: "127.0.0.1:9000" }"#;
    Node::start_whole(&format!("region: eu\nnode: app\nworkers: 1\nlimits: []\n{}", ports.replace(listen)))
}

/// A program that ends with the test. Its output is shown if the test fails.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts a proxy with the command in the first line of its config.
    fn start(proxy: &Proxy, folder: &Path, ports: &Ports) -> Self {
        let text = fs::read_to_string(Path::new(ROOT).join(FOLDER).join(proxy.config)).expect("a config");
        let line = text.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a command");
        let line = ports.replace(line);
        let program = match proxy.program.contains('/') {
            true => Path::new(ROOT).join(proxy.program),
            false => PathBuf::from(proxy.program),
        };
        let log = folder.join("log");
        let output = fs::File::create(&log).expect("a file");
        let mut command = Command::new(&program);
        if proxy.config == NGINX.config {
            let config = folder.join("nginx.conf");
            fs::write(&config, nginx_around(&line, folder)).expect("a file");
            command.arg("-e").arg("stderr").arg("-p").arg(folder).arg("-c").arg(config);
        } else {
            let mut words = line.split(' ');
            assert_eq!(words.next(), program.file_name().and_then(|name| name.to_str()));
            command.args(words);
        }
        let started = command
            .args(proxy.arguments)
            .current_dir(folder)
            // Caddy stores files, and has an admin port.
            .envs(["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"].map(|name| (name, folder)))
            .env("CADDY_ADMIN", format!("127.0.0.1:{}", free_port()))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file"))
            .stderr(output)
            .spawn();
        match started {
            Ok(child) => Self { child, log },
            Err(fault) => panic!("no {}: {fault}; tests/run installs it", program.display()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process that has ended needs no signal. nginx has child processes.
        let _ = Command::new("kill").args(["--", &format!("-{}", self.child.id())]).status();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("--- output of the proxy:\n{log}---");
        }
    }
}

/// The parts of an nginx config around a server.
fn nginx_around(include: &str, folder: &Path) -> String {
    let here = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {here}/{kind};\n"))
        .concat();
    format!(
        "daemon off; pid {here}/pid; error_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{include}\n}}\n"
    )
}

#[test]
fn envoy_limits_as_the_page_says() {
    let scene = Scene::start(&ENVOY);
    scene.counts_keys();
    scene.is_soon_without_a_late_node();
    scene.goes_on_without_a_node();
}

/// If `%01` were refused, Envoy would let the request pass.
#[test]
fn no_byte_of_a_query_passes_envoy_uncounted() {
    let last = "- actions: [{ remote_address: {} }]";
    let by_user = "- actions: [{ remote_address: {} }]\n              \
                   - actions: [{ query_parameters: { query_parameter_name: user, descriptor_key: api_key } }]";
    let change = Change { file: "envoy.yaml", from: last, to: by_user };
    let scene = Scene::start_changed(&ENVOY, Some(change), 200);
    for user in ["%01", "%00", "%0A", "%FF%FE", "%7F"] {
        scene.counts(user, |name| scene.get(&format!("/healthz?user={user}{name}"), &[]));
    }
}

#[test]
fn nginx_limits_as_the_page_says() {
    let scene = Scene::start(&NGINX);
    scene.counts_as_the_page_says();
    scene.is_soon_without_a_late_node();
    scene.goes_on_without_a_node();
}

#[test]
fn caddy_limits_as_the_page_says() {
    let scene = Scene::start(&CADDY);
    scene.counts_as_the_page_says();
    scene.is_soon_without_a_late_node();
    scene.goes_on_without_a_node();
}

#[test]
fn traefik_limits_as_the_page_says() {
    let scene = Scene::start(&TRAEFIK);
    scene.counts_as_the_page_says();
    // Traefik waits half a minute for a late node.
    scene.goes_on_without_a_node();
}

#[test]
fn haproxy_limits_as_the_page_says() {
    let scene = Scene::start(&HAPROXY);
    scene.counts_as_the_page_says();
    scene.is_soon_without_a_late_node();
    scene.goes_on_without_a_node();
}

#[test]
fn nginx_and_haproxy_pass_what_nobody_decides_where_the_operator_says_so() {
    for (proxy, file, from, to) in [
        (&NGINX, "nginx.conf", "# error_page 502 504", "error_page 502 504"),
        (&HAPROXY, "haproxy.cfg", "# http-request return status 200", "http-request return status 200"),
    ] {
        let mut scene = Scene::start_changed(proxy, Some(Change { file, from, to }), 200);
        scene.counts_keys();
        scene.node.kill();
        // HAProxy first has to notice.
        eventually("requests pass", || scene.get("/healthz", &[("x-api-key", "without")]).status == 200);
        assert_eq!(scene.get("/healthz", &[("x-api-key", "without")]).body, "ok\n", "{file}");
    }
}

#[test]
fn a_script_that_fails_lets_nobody_pass_haproxy() {
    let change = Change { file: "haproxy.lua", from: "core.httpclient()", to: "nobody()" };
    let scene = Scene::start_changed(&HAPROXY, Some(change), 503);
    assert_eq!(scene.get("/healthz", &[]).status, 503);
}
