//! `acequia demo` without a terminal: its verdicts are right, and it leaves nothing behind.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::{Ipv4Addr, TcpStream},
    process::{Child, ChildStdout, Command, Stdio},
};

use acequia_tests::{binary, eventually};

/// The first port that these tests try, below the ports that the system gives to clients.
const FIRST_PORT: u16 = 14_000;
/// The distance between two tries, with room for three regions.
const STEP: u16 = 300;

/// A demonstration on its own ports. Killed when dropped.
struct Demo {
    child: Child,
    stdout: BufReader<ChildStdout>,
    base_port: u16,
}

impl Demo {
    /// Starts a demonstration on the first free ports, beginning with the given try.
    fn start(first: u16, arguments: &[&str]) -> Self {
        let mut refused = String::new();
        for number in first..first + 20 {
            let base_port = FIRST_PORT + number * STEP;
            let is_free = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err();
            if !(0..3).flat_map(|region| (0..3).map(move |n| base_port + region * 100 + n)).all(is_free) {
                refused.push_str(&format!(" {base_port}"));
                continue;
            }
            let mut child = Command::new(binary())
                .args(["demo", "--base-port", &base_port.to_string()])
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("it starts");
            let stdout = BufReader::new(child.stdout.take().expect("piped"));
            return Self { child, stdout, base_port };
        }
        panic!("no free ports:{refused}");
    }

    /// Reads lines until one contains `words`.
    fn until(&mut self, words: &str) {
        self.until_all(&[words]);
    }

    /// Reads lines until they have contained each of `words`, in order. Returns the lines.
    fn until_all(&mut self, words: &[&str]) -> String {
        let (mut said, mut rest) = (String::new(), words.iter());
        let mut next = rest.next();
        for line in self.stdout.by_ref().lines().map_while(Result::ok) {
            said.push_str(&line);
            said.push('\n');
            while next.is_some_and(|words| line.contains(words)) {
                next = rest.next();
            }
            if next.is_none() {
                return said;
            }
        }
        panic!("it ended before it said {next:?}:\n{said}");
    }

    /// Sets a budget, like an operator at another terminal.
    fn set_budget(&self, of: &str, rate: &str, burst: &str) {
        let admin = format!("127.0.0.1:{}", self.base_port + 2);
        let set = Command::new(binary())
            .args(["budget", "set", of, rate, burst, "--yes", "--address", &admin])
            .output()
            .expect("it starts");
        assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    }

    fn listens(&self) -> usize {
        let grpc = |region: u16| (Ipv4Addr::LOCALHOST, self.base_port + 100 * region + 1);
        (0..3).filter(|region| TcpStream::connect(grpc(*region)).is_ok()).count()
    }

    /// Waits for the end. Returns the exit code and both outputs.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut said, mut why) = (String::new(), String::new());
        self.stdout.read_to_string(&mut said).expect("text");
        self.child.stderr.take().expect("piped").read_to_string(&mut why).expect("text");
        (self.child.wait().expect("it ends").code(), said, why)
    }
}

#[test]
fn a_split_brain_and_a_kill_are_survived_without_a_unit_too_many() {
    let (code, said, why) = Demo::start(0, &["--seconds", "24"]).end();
    assert_eq!(code, Some(0), "{said}\n{why}");
    for words in ["never over: ", "is cut off", "is killed", "healed: ", "   24 s  |"] {
        assert!(said.contains(words), "{words:?} is not said:\n{said}");
    }
    for words in ["streams in eu: costs known last", ": no stream begins", "eu owes nothing after "] {
        assert!(said.contains(words), "{words:?} is not said:\n{said}");
    }
    assert!(!said.contains("NOT HEALED"), "{said}");
}

#[test]
fn a_budget_set_from_another_terminal_is_shown_asked_for_and_judged_by() {
    let mut demo = Demo::start(60, &["--seconds", "24"]);
    demo.until("three regions share 1000/s");
    // One user gets more than the others, and asks for all of it.
    demo.set_budget("demo/per-user[user=dan]", "rate=50/s", "burst=50");
    demo.set_budget("demo/budget", "rate=2500/s", "burst=3000");
    let raised = demo.until_all(&["set to 2500/s burst 3000", "in force everywhere", "  2500     0 |"]);
    demo.set_budget("demo/budget", "rate=700/s", "burst=400");
    let lowered = demo.until_all(&["set to 700/s burst 400", "in force everywhere", "   700     0 |"]);
    let verdict = demo.until_all(&["never over: ", "now 700/s burst 400"]);
    let (code, said, why) = demo.end();
    assert_eq!(code, Some(0), "{raised}{lowered}{verdict}{said}\n{why}");
}

#[test]
fn a_killed_demo_leaves_no_node_behind() {
    let mut demo = Demo::start(20, &["--script"]);
    demo.until("three regions share");
    assert_eq!(demo.listens(), 3);
    demo.child.kill().expect("it runs");
    eventually("all nodes are gone", || demo.listens() == 0);
    demo.child.wait().expect("it ended");
}

#[test]
fn a_port_in_use_is_named_with_ports_that_may_be_free() {
    let mut first = Demo::start(40, &["--script"]);
    first.until("three regions share");
    let second = Command::new(binary())
        .args(["demo", "--script", "--base-port", &first.base_port.to_string()])
        .output()
        .expect("it starts");
    let why = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{why}");
    assert!(why.contains(&first.base_port.to_string()) && why.contains("--base-port"), "{why}");
}

#[test]
fn the_study_of_classes_takes_no_ports_and_comes_out_the_same_every_time() {
    let study = |more: &[&str]| {
        let out = Command::new(binary()).args(["demo", "--classes"]).args(more).output().expect("it starts");
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, page) = study(&[]);
    assert_eq!(code, Some(0), "{page}");
    assert!(page.contains("gold bursts") && page.contains("the lowest class is admitted least"), "{page}");
    assert_eq!(study(&[]).1, page);
    let (code, line) = study(&["--json", "--rate", "500", "--refill", "300,150,50"]);
    assert_eq!(code, Some(0), "{line}");
    let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(said["parameters"]["refill"]["free"], 50);
    assert_eq!(study(&["--rate", "500"]), (Some(2), String::new()), "the buckets have more than the limit");
    for other in [&["--seconds", "24"][..], &["--script"], &["--base-port", "14000"]] {
        assert_eq!(study(other), (Some(2), String::new()), "{other:?}");
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
