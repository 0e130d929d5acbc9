//! The recipes for limits and callers, run as their pages show them: the configs, the commands, and each
//! command's answer.
//!
//! `# -> a … b` after or below a command shows its answer: it contains a, and later b, with any white space
//! between words. A curl command goes to the node's HTTP port, and an acequia command to the node.
//! `$charge_id` is that field of the answer before.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use acequia_tests::{
    Node, PATIENCE, binary,
    cluster::{Cluster, EU},
};
use serde_json::Value;

use crate::{client::Http, webhooks::read_post, windows::now_s};

/// The pages with recipes, and the recipes' titles.
const PAGES: [(&str, &str, &[&str]); 2] = [
    (
        "deploy/limits.md",
        include_str!("../../deploy/limits.md"),
        &[
            "Tenants on plans",
            "Classes of consumers",
            "Give a charge back",
            "Ask again and be charged once",
            "Reserve, and commit the real cost",
            "Warn and slow down before a limit is reached",
            "More for one customer",
            "Try a limit beside the one in force",
            "Why, and who",
            "From Rust",
        ],
    ),
    (
        "deploy/callers.md",
        include_str!("../../deploy/callers.md"),
        &[
            "Ask",
            "Give a charge back",
            "Ask again and be charged once",
            "Reserve, and commit the real cost",
            "From Rust",
        ],
    ),
];
const GUIDE: &str = include_str!("../../crates/client/GUIDE.md");
/// The addresses of nodes and webhook receivers on the pages.
const HTTP: &str = "localhost:8080";
const RECEIVER: &str = "http://127.0.0.1:9000/";
const SECRET_FILE: &str = "./webhook.key";
/// Fields that differ each time.
const VARIES: [&str; 3] = ["id", "window_ends_ms", "at_ms"];
const DAY_S: u64 = 86_400;
/// Pause between two polls.
const POLL: Duration = Duration::from_millis(20);

/// One recipe.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recipe {
    title: String,
    yaml: String,
    lines: Vec<Line>,
    json: String,
    rust: String,
}

/// A shell command, and its answer on the page.
#[derive(Clone, Debug)]
struct Line {
    command: String,
    shown: String,
}

fn recipes(page: &str) -> Vec<Recipe> {
    let (_, section) = page.split_once("\n## Recipes\n").expect("a section");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    section.split("\n### ").skip(1).map(Recipe::read).collect()
}

impl Recipe {
    /// Reads a title, and the fenced blocks below it.
    pub(crate) fn read(text: &str) -> Self {
        let (title, text) = text.split_once('\n').expect("a title");
        let mut recipe = Self { title: title.to_owned(), ..Self::default() };
        // Every other part is a fenced block.
        for block in text.split("```").skip(1).step_by(2) {
            let (kind, block) = block.split_once('\n').expect("a block");
            match kind {
                "yaml" => recipe.yaml.push_str(block),
                "sh" => block.lines().for_each(|line| recipe.read_line(line)),
                "json" => recipe.json.push_str(block),
                "rust" => recipe.rust.push_str(&format!("{block}\n")),
                _ => panic!("{title}: nobody runs {kind:?}"),
            }
        }
        recipe
    }

    fn read_line(&mut self, line: &str) {
        let (command, shown) = line.split_once("# -> ").unwrap_or((line, ""));
        let (command, shown) = (command.trim(), shown.trim().to_owned());
        if !command.is_empty() {
            self.lines.push(Line { command: command.to_owned(), shown });
        } else if let Some(last) = self.lines.last_mut() {
            assert!(last.shown.is_empty(), "{}: two answers to one line: {line}", self.title);
            last.shown = shown;
        }
    }

    /// Runs the recipe. Returns a difference from the page, if any.
    fn run(&self) -> Result<(), String> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let receiver = self.yaml.contains(RECEIVER).then(Receiver::start);
        let folder = tempfile::tempdir().expect("a folder");
        let key = folder.path().join("webhook.key");
        std::fs::write(&key, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").expect("a file");
        let mut yaml = self.yaml.replace("data: ./data", "data: DATA");
        if let Some(receiver) = &receiver {
            yaml = yaml.replace(RECEIVER, &receiver.url).replace(SECRET_FILE, &key.display().to_string());
        }
        // Orders need the authority of several regions.
        if self.lines.iter().any(Line::is_order) {
            let cluster = Cluster::start(&yaml);
            return self.run_lines(&cluster.nodes[EU]);
        }
        let listen = r#"{ grpc: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0" }"#;
        let head = format!("region: eu\nnode: eu-1\nlisten: {listen}\nworkers: 1\n");
        let node = Node::start_whole(&(head + &yaml));
        self.run_lines(&node)?;
        // The receiver gets the event on a second delivery, so the node must still run.
        receiver.map_or(Ok(()), |receiver| self.compare_event(receiver))
    }

    /// How many commands the recipe shows.
    pub(crate) const fn lines_shown(&self) -> usize {
        self.lines.len()
    }

    /// Runs the commands. Returns a difference from what the recipe shows, if any.
    pub(crate) fn run_lines(&self, node: &Node) -> Result<(), String> {
        let mut variables = BTreeMap::new();
        for line in &self.lines {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let compared = line.run(node, &variables).and_then(|answer| {
                    line.compare(&answer)?;
                    Ok(answer)
                });
                match compared {
                    Ok(answer) => {
                        variables.extend(texts(&answer));
                        break;
                    }
                    // Counts and units from other regions arrive a little later.
                    Err(_) if line.may_repeat() && Instant::now() < deadline => thread::sleep(POLL),
                    Err(fault) => return Err(fault),
                }
            }
        }
        Ok(())
    }

    /// Compares the delivered event with the one on the page.
    fn compare_event(&self, receiver: Receiver) -> Result<(), String> {
        let sent = receiver.event.join().map_err(|_| "the webhook was not told".to_owned())?;
        let mut written: Value = serde_json::from_str(&self.json).expect("an event as JSON");
        for name in VARIES {
            written[name] = sent[name].clone();
        }
        if written == sent { Ok(()) } else { Err(format!("{written} is written, and {sent} was sent")) }
    }
}

impl Line {
    fn words(&self, variables: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
        words(&self.command, variables).map_err(|fault| format!("{}: {fault}", self.command))
    }

    fn is_order(&self) -> bool {
        ["acequia grant ", "acequia reset ", "acequia budget "]
            .iter()
            .any(|order| self.command.starts_with(order))
    }

    /// Whether the command charges and changes nothing.
    fn may_repeat(&self) -> bool {
        !self.is_order() && !self.command.starts_with("acequia check ") && !self.command.contains(" -d ")
    }

    /// The command's output.
    fn run(&self, node: &Node, variables: &BTreeMap<String, String>) -> Result<String, String> {
        let words = self.words(variables)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["curl", url, ref more @ ..] => {
                let path = url.strip_prefix(HTTP).ok_or_else(|| format!("{url} is not at {HTTP}"))?;
                let (method, body) = match more {
                    ["-d", body] => ("POST", *body),
                    [] => ("GET", ""),
                    _ => return Err(format!("{}: nobody runs such a line", self.command)),
                };
                Ok(Http::connect(node).ask(method, path, &[], body).expect("an answer").body)
            }
            ["acequia", ref arguments @ ..] => {
                let mut command = Command::new(binary());
                command.args(arguments);
                let asks = matches!(arguments[..], ["check" | "explain", ..]);
                if asks {
                    // A busy machine answers later.
                    command.args(["--deadline", "20s"]);
                }
                let ran = command
                    .envs([
                        ("ACEQUIA_ADDR", node.grpc().to_string()),
                        ("ACEQUIA_ADMIN_ADDR", node.admin().to_string()),
                        ("USER", "ana".to_owned()),
                    ])
                    .stdin(Stdio::null())
                    .output()
                    .expect("the binary starts");
                let text = [ran.stdout, ran.stderr].concat();
                let text = String::from_utf8(text).expect("text");
                match ran.status.code() {
                    Some(0) => Ok(text),
                    // A check was denied. For an order, this code would mean "not yet".
                    Some(1) if asks => Ok(text),
                    code => Err(format!("{}: {code:?}: {text}", self.command)),
                }
            }
            _ => Err(format!("{}: nobody runs such a line", self.command)),
        }
    }

    /// Compares an answer with the one on the page.
    fn compare(&self, answer: &str) -> Result<(), String> {
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let answer = plain(answer);
        let mut rest = answer.as_str();
        for part in self.shown.split('…').map(plain).filter(|part| !part.is_empty()) {
            match rest.split_once(&part) {
                Some((_, after)) => rest = after,
                None => return Err(format!("{}: no {part:?} where it should be in: {answer}", self.command)),
            }
        }
        if self.shown.is_empty() { Err(format!("{}: nothing says what comes", self.command)) } else { Ok(()) }
    }
}

/// The text fields of an answer.
fn texts(answer: &str) -> BTreeMap<String, String> {
    let fields: BTreeMap<String, Value> = serde_json::from_str(answer).unwrap_or_default();
    fields.into_iter().filter_map(|(name, value)| Some((name, value.as_str()?.to_owned()))).collect()
}

/// Splits a command into words like a shell, with quotes, and with variables outside of single quotes.
fn words(line: &str, variables: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None | Some('"'), '$') => {
                let mut name = String::new();
                while let Some(letter) =
                    letters.next_if(|letter| letter.is_ascii_alphanumeric() || *letter == '_')
                {
                    name.push(letter);
                }
                let value = variables.get(&name).ok_or_else(|| format!("no answer before had {name:?}"))?;
                word.get_or_insert_default().push_str(value);
            }
            (None, '|' | '&' | ';' | '<' | '>' | '\\' | '`' | '*' | '#') => {
                return Err(format!("{letter} means something to a shell: quote it, or leave it out"));
            }
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    if quote.is_some() { Err("a quote is open".to_owned()) } else { Ok(words) }
}

/// A receiver of webhooks that fails at the first delivery.
struct Receiver {
    url: String,
    event: JoinHandle<Value>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let event = thread::spawn(move || {
            let first = answer_post(&listener, "503 Service Unavailable");
            let again = answer_post(&listener, "204 No Content");
            assert_eq!(first, again, "the same event, under the same id");
            serde_json::from_str(&again).expect("JSON")
        });
        Self { url, event }
    }
}

/// Answers one delivery. Returns its body.
fn answer_post(listener: &TcpListener, status: &str) -> String {
    listener.set_nonblocking(true).expect("an option is set");
    let deadline = Instant::now() + PATIENCE;
    let mut stream: TcpStream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) if Instant::now() < deadline => thread::sleep(POLL),
            Err(fault) => panic!("nobody calls: {fault}"),
        }
    };
    stream.set_nonblocking(false).expect("an option is set");
    let (head, event) = read_post(&mut stream);
    for name in ["webhook-id: ", "webhook-timestamp: ", "webhook-signature: v1,"] {
        assert!(head.contains(name), "no {name} in {head}");
    }
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).expect("written");
    event.to_string()
}

#[test]
fn recipes_do_what_stands_there() {
    let mut faults = Vec::new();
    for (page, recipe) in
        PAGES.iter().flat_map(|(page, text, _)| recipes(text).into_iter().map(move |recipe| (page, recipe)))
    {
        let day = now_s() / DAY_S;
        let ran = match recipe.run() {
            // All windows in recipes end at midnight UTC. A midnight has passed, so run the recipe again.
            Err(_) if now_s() / DAY_S != day => recipe.run(),
            ran => ran,
        };
        faults.extend(ran.err().map(|fault| format!("{page}, {}: {fault}", recipe.title)));
    }
    assert!(faults.is_empty(), "a page says what is not so:\n{}", faults.join("\n"));
}

#[test]
fn every_recipe_is_there_and_can_be_run() {
    for (_, text, titles) in PAGES {
        let found = recipes(text);
        assert_eq!(found.iter().map(|recipe| recipe.title.as_str()).collect::<Vec<_>>(), *titles);
    }
    for recipe in PAGES.iter().flat_map(|(_, text, _)| recipes(text)) {
        if recipe.rust.is_empty() {
            assert!(!recipe.lines.is_empty() && recipe.yaml.contains("limits:"), "{}", recipe.title);
        }
        for line in &recipe.lines {
            assert!(!line.shown.is_empty(), "{}: nothing says what comes of {}", recipe.title, line.command);
        }
    }
}

/// Rust code on a page must be in the guide, whose blocks are compiled.
#[test]
fn rust_recipes_are_in_the_guide() {
    let all = PAGES.iter().flat_map(|(_, text, _)| recipes(text));
    for recipe in all.filter(|recipe| !recipe.rust.is_empty()) {
        for block in recipe.rust.split("\n\n").map(str::trim) {
            assert!(GUIDE.contains(block), "{}: not in GUIDE.md:\n{block}", recipe.title);
        }
    }
}

#[test]
fn a_recipe_with_another_answer_is_noticed() {
    let readme = |shown: &str| {
        format!(
            "\n## Recipes\n\n### One\n\n```yaml\nlimits: [{{ name: a, domain: shop, token_bucket: {{ rate: 1/h, burst: 9 }} }}]\n\
             ```\n\n```sh\nacequia check --domain shop k=v # -> {shown}\ncurl {HTTP}/healthz\n# -> ok\n```\n\n## Next\n"
        )
    };
    let run = |shown: &str| recipes(&readme(shown))[0].run();
    assert_eq!(run("allowed … 8"), Ok(()));
    for other in ["denied", "allowed … 7", "8 … allowed", ""] {
        run(other).expect_err(other);
    }
}

#[test]
fn lines_are_split_as_a_shell_does() {
    let variables = BTreeMap::from([("id".to_owned(), "a b".to_owned())]);
    let split = |line| words(line, &variables);
    assert_eq!(
        split(r#"curl -d '{"x": "'$id'"}'  a"b"c"#).expect("words"),
        ["curl", "-d", r#"{"x": "a b"}"#, "abc"]
    );
    for bad in ["a | b", "'a", "$nobody", "a *"] {
        split(bad).expect_err(bad);
    }
}
