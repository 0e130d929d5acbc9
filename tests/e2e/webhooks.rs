//! Webhooks from the operator's side: valid configs, refused configs, and changes while a node runs.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use acequia_tests::{Node, PATIENCE, acequia, binary, eventually, head_lines, whole_config};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    client::{Http, check, metric},
    windows,
};

/// Must appear in no log line and no metric, because a URL's path may be secret.
const PATH: &str = "s3cret-path";

/// A folder with a key.
struct Keys(TempDir);

impl Keys {
    fn new() -> Self {
        let keys = Self(tempfile::tempdir().expect("a folder"));
        std::fs::write(keys.key(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").expect("a file");
        keys
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("webhook.key")
    }
}

/// A config with a limit, and a hook where nobody listens.
fn config(host: &str, secret_file: &Path) -> String {
    format!(
        "webhooks:\n\
         - url: http://{host}:9/{PATH}\n  \
           secret_file: {}\n  \
           limits: [\"shop/*\"]\n  \
           timeout: 1s\n\
         limits: [{{ name: b, domain: shop, token_bucket: {{ rate: 1/h, burst: 5 }} }}]\n",
        secret_file.display()
    )
}

/// Whether the metrics contain a hook of this host.
fn is_shown(node: &Node, host: &str) -> bool {
    let text = Http::connect(node).get("/metrics").body;
    text.contains(&format!("acequia_webhook_queue{{hook=\"{host}\"}} 0\n"))
}

#[test]
fn a_node_with_webhooks_shows_them_by_their_hosts() {
    let keys = Keys::new();
    let mut node = Node::start(&config("127.0.0.1", &keys.key()));
    assert!(is_shown(&node, "127.0.0.1"));
    for outcome in ["delivered", "retried", "dropped", "refused"] {
        let labels = [("hook", "127.0.0.1"), ("outcome", outcome)];
        assert_eq!(metric(&node, "acequia_webhook_deliveries_total", &labels), 0.0, "{outcome}");
    }
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 4);
    assert!(!Http::connect(&node).get("/metrics").body.contains(PATH));
    assert!(node.terminate().success());
    assert!(!node.stderr().contains(PATH), "{}", node.stderr());
}

#[test]
fn a_node_does_not_start_with_a_secret_that_is_none() {
    let keys = Keys::new();
    let short = keys.0.path().join("short.key");
    std::fs::write(&short, "hunter2").expect("a file");
    for (secret_file, word) in
        [(&short, "at least 24"), (&keys.0.path().join("missing.key"), "`secret_file`")]
    {
        let path = keys.0.path().join("acequia.yaml");
        let text = whole_config(&config("127.0.0.1", secret_file), keys.0.path());
        std::fs::write(&path, text).expect("a file");
        let path = path.to_str().expect("text");
        assert_eq!(acequia(&["validate", path]).status.code(), Some(0), "it only looks at the file");
        let ran = acequia(&["serve", "--config", path]);
        assert_eq!(ran.status.code(), Some(2));
        let said = String::from_utf8_lossy(&ran.stderr);
        let name = secret_file.to_str().expect("text");
        assert!(said.contains(word) && said.contains(name), "{said}");
        assert!(!said.contains("hunter2") && !said.contains(PATH), "{said}");
    }
}

#[test]
fn a_node_without_roots_to_trust_its_receivers_does_not_start() {
    let keys = Keys::new();
    let path = keys.0.path().join("acequia.yaml");
    let secure = config("127.0.0.1", &keys.key()).replace("http://", "https://");
    std::fs::write(&path, whole_config(&secure, keys.0.path())).expect("a file");
    let nowhere = keys.0.path().join("nowhere");
    let mut serve = Command::new(binary());
    serve.args(["serve", "--config"]).arg(&path).env("SSL_CERT_FILE", &nowhere).env("SSL_CERT_DIR", &nowhere);
    let ran = serve.stdin(Stdio::null()).output().expect("the binary starts");
    assert_eq!(ran.status.code(), Some(2));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("no root certificates") && said.contains("SSL_CERT_FILE"), "{said}");
}

#[test]
fn webhooks_come_and_go_with_the_file() {
    let keys = Keys::new();
    let node = Node::start("limits: []");
    assert!(!is_shown(&node, "127.0.0.1"));

    node.write_config(&config("127.0.0.1", &keys.key()));
    node.hup();
    eventually("there is a hook", || is_shown(&node, "127.0.0.1"));

    node.write_config(&config("127.0.0.2", &keys.0.path().join("missing.key")));
    node.hup();
    node.until_it_says("missing.key");
    assert!(is_shown(&node, "127.0.0.1"), "the old one stays");
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 4);

    node.write_config(&config("127.0.0.2", &keys.key()));
    node.hup();
    eventually("there is another hook", || is_shown(&node, "127.0.0.2"));
    assert!(!is_shown(&node, "127.0.0.1"));
    node.until_it_says("webhook removed");

    node.write_config("limits: []");
    node.hup();
    eventually("there is none", || !is_shown(&node, "127.0.0.2"));
    assert!(!node.stderr().contains(PATH), "{}", node.stderr());
}

#[test]
fn faults_of_webhooks_are_named_with_their_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    let many: String =
        (0..15).map(|n| format!("- {{ url: \"https://ops.example/{n}\", secret_file: k }}\n")).collect();
    let faulty = format!(
        "webhooks:\n\
         - {{ url: \"http://ops.example/{PATH}\", secret_file: k }}\n\
         - {{ url: \"ops.example/{PATH}\", secret_file: k, timeout: 1h, limits: [shop] }}\n{many}"
    );
    std::fs::write(&path, whole_config(&faulty, folder.path())).expect("a file");
    let path = path.to_str().expect("text");
    let said = String::from_utf8(acequia(&["validate", path]).stderr).expect("text");
    for (line, word) in [
        (1, "17 webhooks: at most 16"),
        (2, "http beyond loopback"),
        (3, "https://ops.example/acequia"),
        (3, "1s to 30s"),
        (3, "domain/name"),
    ] {
        let begin = format!("{path}:{}: ", line + head_lines());
        let found = said.lines().any(|said| said.starts_with(&begin) && said.contains(word));
        assert!(found, "nothing at {begin} says {word}:\n{said}");
    }
    assert!(!said.contains(PATH), "{said}");

    std::fs::write(path, whole_config("webhooks:\n- { link: x }\n", folder.path())).expect("a file");
    let said = String::from_utf8(acequia(&["validate", path]).stderr).expect("text");
    assert!(said.contains(&format!(":{}: ", 2 + head_lines())) && said.contains("link"), "{said}");
}

#[test]
fn a_webhook_is_sent_once_for_a_nearly_used_up_cell_and_a_hanging_receiver_holds_up_nobody() {
    let keys = Keys::new();
    let receiver = TcpListener::bind("127.0.0.1:0").expect("a port");
    // This receiver accepts connections, and never answers.
    let hangs = TcpListener::bind("127.0.0.1:0").expect("a port");
    let hook = |listener: &TcpListener| {
        let (address, key) = (listener.local_addr().expect("an address"), keys.key());
        format!("- {{ url: \"http://{address}/hook\", secret_file: {}, timeout: 1s }}\n", key.display())
    };
    let node = Node::start(&format!(
        "webhooks:\n{}{}\
         limits:\n\
         - {{ name: credits, domain: shop, by: [tenant], warn_at: [80, 100], throttle: {{ from: 90, rate: 1/h }}, \
             fixed_window: {{ limit: 20, window: {} }} }}\n",
        hook(&receiver),
        hook(&hangs),
        windows::long(),
    ));
    let tenant = [("tenant", "big-co")];
    for left in (2..20).rev() {
        assert_eq!(check(&node, &tenant)["remaining"], left, "nobody waits for a webhook");
    }
    let (mut stream, _) = receiver.accept().expect("the hook calls");
    let (head, event) = read_post(&mut stream);
    assert_eq!(
        (&event["limit"], &event["percent"], &event["used"]),
        (&json!("credits"), &json!(80), &json!(16))
    );
    assert_eq!(event["by"], json!([["tenant", "big-co"]]));
    assert!(head.contains("webhook-signature: v1,") && head.contains("webhook-id: "), "{head}");
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").expect("written");
    // From 90 % on requests are throttled: one at once, and then one an hour.
    assert_eq!(check(&node, &tenant)["allowed"], true);
    let slowed = check(&node, &tenant);
    assert_eq!((&slowed["reason"], &slowed["remaining"]), (&json!("throttled"), &json!(1)));
    let labels = [("limit", "shop/credits"), ("percent", "80")];
    assert_eq!(metric(&node, "acequia_warnings_total", &labels), 1.0);
    let said = node.stderr();
    assert!(said.contains("nearly used up") && !said.contains("big-co"), "{said}");
}

/// A request's head, and its body as JSON.
pub(crate) fn read_post(stream: &mut TcpStream) -> (String, Value) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4_096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && let Some(length) = head.lines().find_map(|line| line.strip_prefix("content-length: "))
            && body.len() >= length.parse().expect("a length")
        {
            return (head.to_owned(), serde_json::from_str(body).expect("JSON"));
        }
        let read = stream.read(&mut buffer).expect("a request");
        assert!(read > 0, "it ends in the middle: {text}");
        bytes.extend_from_slice(&buffer[..read]);
    }
}
