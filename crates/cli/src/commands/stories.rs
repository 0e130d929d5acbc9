//! The operators' commands over a real connection, from their arguments to their output.

use std::{collections::HashMap, net::SocketAddr};

use acequia_api::acequia::v1::{
    ChangeRegionRequest, CompareCandidateRequest, ExcludeRequest, GrantRequest, ResetRequest,
    SetBudgetRequest, TakeOverRequest, change_region_request::Change,
};
use clap::{Parser, Subcommand};
use rcgen::{CertificateParams, Issuer, KeyPair};
use tonic::{Status, transport::Identity};

use super::{
    Audit, Authority, Budget, Candidate, Grant, Regions, Reset, Store,
    console::Console,
    fake_admin::{Asked, FakeAdmin},
};

#[derive(Debug, Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Budget(Budget),
    Candidate(Candidate),
    Grant(Grant),
    Reset(Reset),
    Regions(Regions),
    Store(Store),
    Authority(Authority),
    Audit(Audit),
}

/// A command's results: its exit code, standard output and standard error.
#[derive(Debug, PartialEq)]
struct Left {
    code: u8,
    answers: String,
    remarks: String,
}

/// Runs a command line. With `typed`, a person is there who types it; without, nobody can be asked.
async fn run(address: SocketAddr, line: &str, typed: Option<&str>) -> Left {
    run_with(line, &["--address", &address.to_string()], typed).await
}

async fn run_with(line: &str, more: &[&str], typed: Option<&str>) -> Left {
    let words = ["acequia"].into_iter().chain(line.split_whitespace()).chain(more.iter().copied());
    let command = Line::try_parse_from(words).expect(line).command;
    let (mut answers, mut remarks) = (Vec::new(), Vec::new());
    let mut input = typed.unwrap_or_default().as_bytes();
    let mut console = Console::new(&mut answers, &mut remarks, &mut input, typed.is_some());
    let result = match command {
        Command::Budget(command) => command.carry_out(&mut console).await,
        Command::Candidate(command) => command.carry_out(&mut console).await,
        Command::Grant(command) => command.carry_out(&mut console).await,
        Command::Reset(command) => command.carry_out(&mut console).await,
        Command::Regions(command) => command.carry_out(&mut console).await,
        Command::Store(command) => command.carry_out(&mut console).await,
        Command::Authority(command) => command.carry_out(&mut console).await,
        Command::Audit(command) => command.carry_out(&mut console).await,
    };
    let code = result.unwrap_or_else(|fault| {
        console.remark(&format!("acequia: {fault}\n"));
        super::COULD_NOT_ASK
    });
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Left { code, answers: text(answers), remarks: text(remarks) }
}

fn left(code: u8, answers: &str, remarks: &str) -> Left {
    Left { code, answers: answers.to_owned(), remarks: remarks.to_owned() }
}

fn budget(dry_run: bool) -> Asked {
    Asked::Budget(SetBudgetRequest {
        domain: "shop".to_owned(),
        name: "per-key".to_owned(),
        key: HashMap::from([("api_key".to_owned(), "k1".to_owned())]),
        numbers: ["rate=100/s", "burst=200"]
            .map(|word| word.split_once('=').expect("a pair"))
            .map(|(name, number)| (name.to_owned(), number.to_owned()))
            .into(),
        author: "ana".to_owned(),
        reason: "launch".to_owned(),
        dry_run,
        ..SetBudgetRequest::default()
    })
}

const SET: &str = "budget set shop/per-key[api_key=k1] rate=100/s burst=200 --author ana --reason launch";
const PLAN: &str = "Changes to version 1.7:\n  as ordered\n";
const PLAN_WITH_WARNING: &str = "Changes to version 1.7:\n  as ordered\nBe careful:\n  us is cut off\n";
const PENDING: &str = "\
Version 1.8 is requested; 1.7 is effective everywhere.
It waits for:
  us: not heard for 12 s; it goes on when us is heard, or is evicted
";

fn warns() -> FakeAdmin {
    FakeAdmin { warnings: vec!["us is cut off".to_owned()], ..FakeAdmin::default() }
}

#[tokio::test]
async fn a_budget_is_planned_then_set_then_reported() {
    let (address, node) = FakeAdmin { looks_until_effective: 9, ..FakeAdmin::default() }.serve(None).await;
    assert_eq!(run(address, SET, None).await, left(0, &format!("{PLAN}{PENDING}"), ""));
    assert_eq!(node.asked(), [budget(true), budget(false), Asked::Status]);
}

#[tokio::test]
async fn grants_resets_and_budgets_with_an_end_are_sent() {
    let (address, node) = FakeAdmin::default().serve(None).await;
    let key = HashMap::from([("tenant".to_owned(), "big-co".to_owned())]);
    let (domain, name, dry_run) = ("shop".to_owned(), "credits".to_owned(), true);
    let (author, reason) = ("ana".to_owned(), "x".to_owned());
    for (line, asked) in [
        (
            "grant shop/credits[tenant=big-co] 5000 --for 2h",
            Asked::Grant(GrantRequest {
                domain: domain.clone(),
                name: name.clone(),
                key: key.clone(),
                units: 5_000,
                for_ms: 7_200_000,
                author: author.clone(),
                reason: reason.clone(),
                dry_run,
            }),
        ),
        (
            "reset shop/credits[tenant=big-co]",
            Asked::Reset(ResetRequest {
                domain: domain.clone(),
                name: name.clone(),
                key: key.clone(),
                author: author.clone(),
                reason: reason.clone(),
                dry_run,
            }),
        ),
        (
            "budget set shop/credits[tenant=big-co] limit=7 --until 2027-01-01",
            Asked::Budget(SetBudgetRequest {
                domain,
                name,
                key,
                numbers: HashMap::from([("limit".to_owned(), "7".to_owned())]),
                author,
                reason,
                dry_run,
                until: "2027-01-01".to_owned(),
                for_ms: 0,
            }),
        ),
    ] {
        let line = format!("{line} --author ana --reason x --dry-run");
        assert_eq!(run(address, &line, None).await, left(0, PLAN, ""));
        assert_eq!(node.asked().last(), Some(&asked), "{line}");
    }
    for (line, why) in [
        ("grant shop/credits[tenant=a] 0", "1.."),
        ("grant shop/credits[tenant=a]", "<UNITS>"),
        ("reset credits", "no slash"),
        ("budget set shop/credits[tenant=a] limit=7 --until soon", "2027-01-01"),
        ("budget set shop/credits[tenant=a] limit=7 --until 2027-01-01 --for 2h", "cannot be used with"),
    ] {
        let words = ["acequia"].into_iter().chain(line.split_whitespace());
        let fault = Line::try_parse_from(words).expect_err(line).to_string();
        assert!(fault.contains(why), "{line}: {fault}");
    }
}

#[tokio::test]
async fn a_candidate_is_reported_by_its_name() {
    let (address, node) = FakeAdmin::default().serve(None).await;
    let text = run(address, "candidate shop/new --json", None).await.answers;
    assert!(text.contains(r#""candidate":"new""#) && text.contains(r#""both_allow":7"#), "{text}");
    let asked = CompareCandidateRequest { domain: "shop".to_owned(), name: "new".to_owned() };
    assert_eq!(node.asked(), [Asked::Candidate(asked)]);
    let left = run(address, "candidate shop/new[a=b]", None).await;
    assert_eq!(
        (left.code, left.remarks.as_str()),
        (2, "acequia: a whole limit is compared: write shop/new\n")
    );
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let (address, node) = warns().serve(None).await;
    let line = format!("{SET} --dry-run");
    assert_eq!(run(address, &line, None).await, left(0, PLAN_WITH_WARNING, ""));
    assert_eq!(node.asked(), [budget(true)]);
}

#[tokio::test]
async fn a_wait_ends_when_the_change_is_effective_everywhere() {
    let (address, node) = FakeAdmin { looks_until_effective: 3, ..FakeAdmin::default() }.serve(None).await;
    let line = format!("{SET} --wait --timeout 30s");
    assert_eq!(
        run(address, &line, None).await,
        left(0, &format!("{PLAN}Version 1.8 is effective everywhere.\n"), "")
    );
    assert_eq!(
        node.asked(),
        [budget(true), budget(false), Asked::Status, Asked::Status, Asked::Status],
        "the third look shows it"
    );
}

#[tokio::test]
async fn a_wait_goes_on_while_a_node_is_starting() {
    let node = FakeAdmin { looks_until_effective: 3, silent_looks: 2, ..FakeAdmin::default() };
    let (address, _) = node.serve(None).await;
    let left = run(address, &format!("{SET} --wait --timeout 30s"), None).await;
    assert_eq!((left.code, left.remarks.as_str()), (0, ""));
}

#[tokio::test]
async fn a_wait_that_is_too_long_says_who_is_pending() {
    let (address, _) =
        FakeAdmin { looks_until_effective: usize::MAX, ..FakeAdmin::default() }.serve(None).await;
    let line = format!("{SET} --wait --timeout 300ms");
    let expected = PENDING.replace("; 1.7", "; after 300 ms 1.7");
    assert_eq!(run(address, &line, None).await, left(1, &format!("{PLAN}{expected}"), ""));
}

#[tokio::test]
async fn warnings_are_confirmed_by_a_person_or_by_yes() {
    let set = format!("{SET} --json");
    for (line, typed, code, orders) in [
        (SET, Some("y\n"), 0, 1),
        (SET, Some("n\n"), 1, 0),
        (SET, Some(""), 1, 0),
        (SET, None, 2, 0),
        (&set, None, 2, 0),
        ("budget set shop/per-key rate=1/s --yes", None, 0, 1),
    ] {
        let (address, node) = warns().serve(None).await;
        let left = run(address, line, typed).await;
        assert_eq!(left.code, code, "{line} {typed:?}: {left:?}");
        let real = |asked: &&Asked| matches!(asked, Asked::Budget(request) if !request.dry_run);
        assert_eq!(node.asked().iter().filter(real).count(), orders, "{line} {typed:?}");
        assert_eq!(left.remarks.contains("[y/N]"), typed.is_some(), "{left:?}");
        assert_eq!(left.remarks.contains("--yes"), code == 2, "{left:?}");
        assert_eq!(left.remarks.contains("Nothing was changed."), code == 1, "{left:?}");
    }
}

#[tokio::test]
async fn the_json_of_an_order_is_one_object() {
    let (address, _) = warns().serve(None).await;
    let Left { code, answers, remarks } = run(address, &format!("{SET} --json --yes"), None).await;
    assert_eq!((code, remarks.as_str()), (0, ""));
    let order: serde_json::Value = serde_json::from_str(&answers).expect("one object");
    assert_eq!(order["dry_run"], false);
    assert_eq!(order["after"]["number"], 8);
    assert_eq!(order["effective"], true);
    assert_eq!(answers.lines().count(), 1);

    let Left { answers, .. } = run(address, &format!("{SET} --json --dry-run"), None).await;
    let order: serde_json::Value = serde_json::from_str(&answers).expect("one object");
    assert_eq!(order["warnings"][0], "us is cut off");
    assert_eq!(order["effective"], serde_json::Value::Null);
}

#[tokio::test]
async fn regions_are_changed_after_the_name_is_typed() {
    let request = |change: Change, weight, is_fenced, dry_run| {
        Asked::Region(ChangeRegionRequest {
            change: change.into(),
            region: "us".to_owned(),
            weight,
            is_fenced,
            author: "ana".to_owned(),
            reason: String::new(),
            dry_run,
            certificate: String::new(),
        })
    };
    for (line, typed, change, weight, is_fenced) in [
        ("regions add us --weight 2", None, Change::Add, 2, false),
        ("regions weight us 3", None, Change::Weight, 3, false),
        ("regions remove us", Some("y\n"), Change::Remove, 0, false),
        ("regions recover us", Some("y\nus\n"), Change::Recover, 0, false),
        ("regions evict us --fenced", Some("y\nus\n"), Change::Evict, 0, true),
        ("regions evict us --fenced --yes", None, Change::Evict, 0, true),
    ] {
        let (address, node) = FakeAdmin::default().serve(None).await;
        let left = run(address, &format!("{line} --author ana"), typed).await;
        assert_eq!(left.code, 0, "{line}: {left:?}");
        let asked = [true, false].map(|dry_run| request(change, weight, is_fenced, dry_run));
        assert_eq!(node.asked()[..2], asked, "{line}");
    }
    for (line, typed) in [
        ("regions remove us", Some("n\n")),
        ("regions recover us", Some("y\nap\n")),
        ("regions evict us --fenced", Some("y\n")),
        ("regions evict us --fenced", None),
        ("authority move eu-1", Some("y\ny\n")),
    ] {
        let (address, node) = FakeAdmin::default().serve(None).await;
        let left = run(address, line, typed).await;
        assert_ne!(left.code, 0, "{line}: {left:?}");
        assert!(left.answers.contains("Be careful:\n"), "{line}: {left:?}");
        let is_real = |asked: &Asked| match asked {
            Asked::Region(request) => !request.dry_run,
            Asked::TakeOver(request) => !request.dry_run,
            _ => false,
        };
        assert!(!node.asked().iter().any(is_real), "{line}");
    }
    let (address, node) = FakeAdmin::default().serve(None).await;
    let left = run(address, "regions evict us --yes", None).await;
    assert_eq!((left.code, node.asked().len()), (2, 0), "without a fence the node is not even asked");
}

#[tokio::test]
async fn the_authority_moves_only_to_the_node_that_gets_the_order() {
    let (address, node) = FakeAdmin::default().serve(None).await;
    let left = run(address, "authority move eu-1 --fenced --author ana", Some("y\neu-1\n")).await;
    assert_eq!(left.code, 0, "{left:?}");
    let take_over = |dry_run| {
        let author = "ana".to_owned();
        Asked::TakeOver(TakeOverRequest { is_fenced: true, author, reason: String::new(), dry_run })
    };
    assert_eq!(node.asked(), [Asked::Status, take_over(true), take_over(false), Asked::Status]);

    let (address, node) = FakeAdmin::default().serve(None).await;
    let left = run(address, "authority move us-1 --yes", None).await;
    assert_eq!(left.code, 2);
    assert!(left.remarks.contains("is eu/eu-1, not us-1"), "{left:?}");
    assert_eq!(node.asked(), [Asked::Status]);
}

#[tokio::test]
async fn each_query_prints_its_answer() {
    const STANDING: &str = "authority  eu/eu-1, this node\nversion    1.7, effective everywhere\n";
    let (address, node) = FakeAdmin::default().serve(None).await;
    for (line, answers) in [
        (
            "budget list",
            format!(
                "limit         budget                       overrides\n\
                 shop/per-key  token_bucket 60/s burst 120          0\n\n{STANDING}"
            ),
        ),
        (
            "budget show shop/per-key",
            format!(
                "shop/per-key  token_bucket 60/s burst 120\n{{\n  \"by\": [\n    \"api_key\"\n  ]\n}}\n\n{STANDING}"
            ),
        ),
        ("regions", format!("node       eu/eu-1, incarnation 0, up for 0 ms\nready      yes\n{STANDING}")),
        ("authority", STANDING.to_owned()),
        (
            "audit --newest 5",
            "2026-11-21T23:55:53Z  1.6 -> 1.7  ana@127.0.0.1: budget set shop/per-key rate=100/s\n"
                .to_owned(),
        ),
    ] {
        assert_eq!(run(address, line, None).await, left(0, &answers, ""), "{line}");
    }
    assert_eq!(node.asked(), [Asked::Budgets, Asked::Budgets, Asked::Status, Asked::Status, Asked::Audit(5)]);
    for line in ["budget list", "budget show shop/per-key", "regions", "authority", "audit"] {
        let Left { answers, .. } = run(address, &format!("{line} --json"), None).await;
        assert_eq!(answers.lines().count(), 1, "{line}");
        assert!(
            serde_json::from_str::<serde_json::Value>(&answers).is_ok_and(|json| json.is_object()),
            "{line}"
        );
    }
}

#[tokio::test]
async fn the_reason_of_a_nodes_refusal_is_printed() {
    for (refusal, says) in [
        (
            Status::failed_precondition("the authority is us/us-1: ask it"),
            "acequia: the authority is us/us-1: ask it\n",
        ),
        (Status::invalid_argument("a token bucket has no queue"), "acequia: a token bucket has no queue\n"),
        (Status::not_found("there is no limit shop/per-key"), "acequia: there is no limit shop/per-key\n"),
        (Status::unavailable("the disk is full"), "acequia: the disk is full\n"),
    ] {
        let node = FakeAdmin { refusal: Some(refusal), ..FakeAdmin::default() };
        let (address, node) = node.serve(None).await;
        assert_eq!(run(address, SET, None).await, left(2, "", says));
        assert_eq!(node.asked(), [budget(true)]);
    }
}

#[tokio::test]
async fn an_order_without_an_answer_is_reported_as_possibly_carried_out() {
    let node = FakeAdmin { failure: Some(Status::unavailable("it stops")), ..FakeAdmin::default() };
    let (address, _) = node.serve(None).await;
    let says = "acequia: it stops\nWhether it was carried out is not known: `acequia audit` says so.\n";
    assert_eq!(run(address, SET, None).await, left(2, PLAN, says));
}

#[tokio::test]
async fn a_token_is_sent_and_a_wrong_one_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path").to_owned()
    };
    let (right, wrong, empty) = (file("right", "s3cret\n"), file("wrong", "guess"), file("empty", " \n"));
    let (address, _) = FakeAdmin { token: Some("s3cret"), ..FakeAdmin::default() }.serve(None).await;
    let ask = async |token: &str| run(address, &format!("authority --token-file {token}"), None).await;
    assert_eq!(ask(&right).await.code, 0);
    let wants_another = "acequia: the token is not the node's\n\
                         The node's token is given with --token-file FILE, or with ACEQUIA_ADMIN_TOKEN_FILE.\n";
    assert_eq!(ask(&wrong).await, left(2, "", wants_another));
    assert_eq!(run(address, "authority", None).await, left(2, "", wants_another));
    assert!(ask(&empty).await.remarks.contains("holds no token"));
    assert!(ask("/no/such/file").await.remarks.contains("cannot read /no/such/file"));
}

#[tokio::test]
async fn over_tls_a_node_needs_a_signed_node_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = |name: &str| {
        let mut params = CertificateParams::new([]).expect("sound");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let path = folder.path().join(name);
        std::fs::write(&path, params.self_signed(&key).expect("signed").pem()).expect("written");
        (Issuer::new(params, key), path.to_str().expect("a path").to_owned())
    };
    let (issuer, ca) = authority("ca.pem");
    let (_, another) = authority("another.pem");
    let identity = |name: &str| {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("sound");
        let certificate = params.signed_by(&key, &issuer).expect("signed");
        Identity::from_pem(certificate.pem(), key.serialize_pem())
    };
    let (address, _) = FakeAdmin::default().serve(Some(identity("acequia.internal"))).await;
    let (stranger, _) = FakeAdmin::default().serve(Some(identity("localhost"))).await;
    for (address, ca, code, says) in [
        (address.to_string(), &ca, 0, ""),
        (format!("https://{address}"), &ca, 0, ""),
        (address.to_string(), &another, 2, "certificate"),
        (stranger.to_string(), &ca, 2, "certificate"),
        (format!("http://{address}"), &ca, 2, "certificates are for https://"),
    ] {
        let left = run_with("authority", &["--address", &address, "--ca", ca], None).await;
        assert_eq!(left.code, code, "{address} {ca}: {left:?}");
        assert!(left.remarks.contains(says), "{address} {ca}: {left:?}");
    }
    let left = run_with("authority", &["--address", &format!("https://{address}")], None).await;
    assert!(left.code == 2 && left.remarks.contains("certificate"), "{left:?}");
}

#[tokio::test]
async fn an_unreachable_node_is_reported_with_a_remedy() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = nobody.local_addr().expect("an address").to_string();
    // The listener accepts and says nothing.
    let left = run_with("regions", &["--address", &address, "--deadline", "50ms"], None).await;
    assert_eq!(left.code, 2);
    assert!(left.remarks.contains("in 50ms. Allow it more time with --deadline"), "{left:?}");
    drop(nobody);
    let left = run_with("regions", &["--address", &address], None).await;
    assert_eq!(left.code, 2);
    assert!(left.remarks.contains("refused"), "the cause is said: {left:?}");
    assert!(left.remarks.contains("(listen.admin)"), "{left:?}");

    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "s3cret").expect("written");
    let token = token.to_str().expect("a path");
    for (address, says) in [
        ("node", "no port"),
        ("ftp://node:1", "neither http nor https"),
        ("node:8082", "in the clear"),
        ("10.0.0.1:8082", "in the clear"),
    ] {
        let left = run_with("audit", &["--address", address, "--token-file", token], None).await;
        assert_eq!(left.code, 2, "{address}");
        assert!(left.remarks.contains(says), "{address}: {left:?}");
    }
}

#[tokio::test]
async fn a_node_is_excluded_only_after_its_name_is_typed() {
    let (address, node) = FakeAdmin::default().serve(None).await;
    let left = run(address, "store exclude eu-3 --author ana", Some("y\neu-2\n")).await;
    assert_eq!((left.code, node.asked().len()), (1, 0), "another name was typed: {left:?}");
    let left = run(address, "store exclude eu-3", None).await;
    assert!(left.code == 2 && left.remarks.contains("--yes"), "{left:?}");
    assert_eq!(node.asked().len(), 0);

    let left = run(address, "store exclude eu-3 --author ana --reason fire", Some("y\neu-3\n")).await;
    assert!(left.remarks.contains("its process has ended"), "{left:?}");
    assert!(left.answers.contains("1000 of 1024 groups of pools grant"), "{left:?}");
    assert!(left.answers.contains("eu-3 is excluded for 10 min more"), "{left:?}");
    let asked = |for_ms, reason: &str| {
        let (node, author, reason) = ("eu-3".to_owned(), "ana".to_owned(), reason.to_owned());
        Asked::Exclude(ExcludeRequest { node, for_ms, author, reason })
    };
    let line = "store exclude eu-3 --for 2h --yes --json --author ana";
    let left = run(address, line, None).await;
    let json = r#""groups":1024,"granting":1000,"lost":0,"excluded":[{"node":"eu-3","left_ms":7200000}]}"#;
    assert!(left.code == 0 && left.answers.contains(json), "{left:?}");
    let left = run(address, "store wait-for eu-3 --author ana", None).await;
    assert!(left.code == 0 && !left.answers.contains("excluded for"), "{left:?}");
    assert_eq!(node.asked(), [asked(600_000, "fire"), asked(7_200_000, ""), asked(0, "")]);
}

#[tokio::test]
async fn a_node_that_shares_no_store_says_so() {
    let (address, _node) = FakeAdmin::default().serve(None).await;
    let left = run(address, "store", None).await;
    assert!(left.code == 2 && left.remarks.contains("there is no store"), "{left:?}");
}
