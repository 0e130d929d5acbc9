//! Three regions of real processes share one budget. It is never exceeded, whatever happens to links and
//! processes, and recovers soon.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use acequia_api::acequia::v1::{
    ChangeRegionRequest, ListAuditRequest, ListBudgetsRequest, NodeStatus, SetBudgetRequest, StatusRequest,
    TakeOverRequest, admin_client::AdminClient, change_region_request::Change,
};
use acequia_tests::{
    Node, acequia,
    cluster::{Answers, Asked, Callers, Cluster, Cut, EU, REGIONS, Weather, calm},
    eventually,
};
use tonic::{Code, transport::Channel};

use crate::{
    client::{Http, body, metric},
    envoy, windows,
};

pub(crate) const AP: usize = 0;
pub(crate) const US: usize = 2;

/// One rate, one window and one quota.
const RATE: u64 = 600;
const WINDOW: u64 = 3_000;
const QUOTA: u64 = 2_000;

/// A request for the rate.
const RATE_CHECK: &str = r#"{"domain": "shop", "descriptors": [{"kind": "rate"}]}"#;

pub(crate) fn limits() -> String {
    format!(
        "limits:\n\
         - {{ name: rate, domain: shop, when: {{ kind: rate }}, token_bucket: {{ rate: {RATE}/s, burst: {RATE} }} }}\n\
         - {{ name: window, domain: shop, when: {{ kind: window }}, fixed_window: {{ limit: {WINDOW}, window: {} }} }}\n\
         - {{ name: quota, domain: shop, when: {{ kind: quota }}, quota: {{ limit: {QUOTA}, per: day, time_zone: {} }} }}\n",
        windows::long(),
        windows::zone(),
    )
}

fn asked(kind: &'static str, rates: [u64; 3]) -> Asked {
    Asked { kind, rates: rates.map(AtomicU64::new) }
}

fn all_three() -> Vec<Asked> {
    vec![
        asked("rate", [100, 700, 100]),
        // The demand spends this limit in about a minute, whatever happens meanwhile.
        asked("window", [20, 20, 20]),
        asked("quota", [10, 30, 10]),
    ]
}

#[track_caller]
fn never_over(answers: &Answers) {
    let over = answers.over_rate(0, RATE as f64, RATE as f64);
    assert!(over <= 0.0, "the rate was exceeded by {over} units");
    for (kind, limit) in [(1, WINDOW), (2, QUOTA)] {
        let allowed = answers.allowed(kind, Duration::ZERO, Duration::MAX);
        assert!(allowed <= limit, "{allowed} of {limit} units of kind {kind}");
    }
}

/// Waits until callers are allowed at least `least` units in some half second from now on.
#[track_caller]
fn until_used(callers: &Callers, least: u64) {
    let from = callers.begun.elapsed();
    eventually("the rate is used", || {
        let now = callers.begun.elapsed();
        let since = now.checked_sub(Duration::from_millis(500)).unwrap_or_default();
        since >= from && callers.allowed_so_far(0, since, now) >= least
    });
}

#[test]
fn three_regions_never_exceed_a_limit_through_cuts_crashes_and_restarts() {
    let mut cluster = Cluster::start(&limits());
    let callers = cluster.callers(all_three());
    until_used(&callers, RATE * 9 / 20);

    // The hot region is cut off. It keeps its third, and the others keep theirs.
    cluster.isolate(EU, true);
    until_used(&callers, RATE * 7 / 20 / 3);
    cluster.isolate(EU, false);
    until_used(&callers, RATE * 9 / 20);

    for region in [US, EU, AP] {
        cluster.nodes[region].kill();
        let asked = callers.begun.elapsed();
        eventually("the others go on", || callers.begun.elapsed() > asked + Duration::from_millis(500));
        cluster.nodes[region].start_again();
        cluster.until_ready(region);
        until_used(&callers, RATE * 8 / 20);
    }
    let answers = callers.end();
    never_over(&answers);
    let total = answers.allowed(1, Duration::ZERO, Duration::MAX);
    assert!(total > 0, "the window was never used");
}

#[test]
fn a_link_that_loses_doubles_or_goes_one_way_costs_units_and_never_admits_too_many() {
    let cluster = Cluster::start(&limits());
    let callers = cluster.callers(all_three());
    until_used(&callers, RATE * 9 / 20);
    let lossy = Weather { loss: 0.1, duplicate: 0.1, ..calm() };
    cluster.set(EU, US, lossy);
    until_used(&callers, RATE * 7 / 20);
    cluster.set(EU, US, calm());
    cluster.set(AP, EU, Weather { cut: Cut { to_target: true, back: false }, ..calm() });
    until_used(&callers, RATE * 5 / 20);
    cluster.set(AP, EU, calm());
    until_used(&callers, RATE * 9 / 20);
    never_over(&callers.end());
}

#[test]
fn without_the_authority_a_new_region_denies_and_says_so_until_it_is_there() {
    let mut cluster = Cluster::prepare(&limits());
    cluster.start_region(AP);
    let mut http = Http::connect(&cluster.nodes[AP]);
    let ready = http.get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("no catalogue: waiting for eu/eu-1"), "{}", ready.body);
    let answer = http.check(RATE_CHECK);
    let body = answer.body;
    assert!(body.contains(r#""allowed":false"#) && body.contains("no-catalogue"), "{body}");
    cluster.start_region(EU);
    let mut waits = Http::connect(&cluster.nodes[EU]);
    eventually("the authority says whom it waits for", || waits.get("/readyz").body.contains("waits for us"));
    cluster.start_region(US);
    (0..REGIONS.len()).for_each(|region| cluster.until_ready(region));
    let answer = http.check(RATE_CHECK);
    assert!(answer.body.contains(r#""allowed":true"#), "{}", answer.body);
}

/// The admin service of a node.
pub(crate) struct Operator {
    runtime: tokio::runtime::Runtime,
    client: AdminClient<Channel>,
}

impl Operator {
    pub(crate) fn of(node: &Node) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let address = format!("http://{}", node.admin());
        let client = runtime.block_on(AdminClient::connect(address)).expect("a connection");
        Self { runtime, client }
    }

    pub(crate) fn status(&mut self) -> NodeStatus {
        let status = self.runtime.block_on(self.client.status(StatusRequest {}));
        status.expect("a status").into_inner()
    }

    fn set_rate(&mut self, rate: &str, is_dry: bool) -> Result<Vec<String>, tonic::Status> {
        let request = SetBudgetRequest {
            domain: "shop".to_owned(),
            name: "rate".to_owned(),
            numbers: [("rate".to_owned(), rate.to_owned())].into(),
            author: "ana".to_owned(),
            reason: "a test".to_owned(),
            dry_run: is_dry,
            ..SetBudgetRequest::default()
        };
        let done = self.runtime.block_on(self.client.set_budget(request))?;
        Ok(done.into_inner().changes)
    }

    fn change(&mut self, change: Change, region: &str, is_fenced: bool) -> Result<(), tonic::Status> {
        let request = ChangeRegionRequest {
            change: change.into(),
            region: region.to_owned(),
            weight: u32::from(change == Change::Add),
            is_fenced,
            author: "ana".to_owned(),
            ..ChangeRegionRequest::default()
        };
        self.runtime.block_on(self.client.change_region(request)).map(|_| ())
    }

    fn take_over(&mut self, is_fenced: bool) -> Result<(), tonic::Status> {
        let request = TakeOverRequest { is_fenced, author: "ana".to_owned(), ..TakeOverRequest::default() };
        self.runtime.block_on(self.client.take_over(request)).map(|_| ())
    }
}

fn rate_milli(status: &NodeStatus) -> u64 {
    status.limits.iter().find(|limit| limit.name == "rate").map_or(0, |limit| limit.rate_milli)
}

fn numbers(status: &NodeStatus) -> (u64, u64, usize) {
    let catalogue = status.catalogue.clone().unwrap_or_default();
    let number = |id: Option<acequia_api::acequia::v1::VersionId>| id.map_or(0, |id| id.number);
    (number(catalogue.requested), number(catalogue.effective), catalogue.pending.len())
}

/// A file is edited at a node that is not the authority. The node reports the difference.
#[test]
fn a_config_that_differs_from_the_catalogue_is_reported() {
    let cluster = Cluster::start(&limits());
    let us = &cluster.nodes[US];
    let differences = || metric(us, "acequia_config_differences", &[]);
    assert_eq!(differences(), 0.0);
    us.write_whole_config(&cluster.config(US).replace(&format!("limit: {QUOTA}"), "limit: 2500"));
    us.hup();
    eventually("its file differs", || differences() == 1.0);
    us.write_whole_config(&cluster.config(US));
    us.hup();
    eventually("it does no more", || differences() == 0.0);
}

#[test]
fn a_budget_changes_everywhere_and_says_who_is_pending() {
    let mut cluster = Cluster::start(&limits());
    let mut eu = Operator::of(&cluster.nodes[EU]);
    let mut us = Operator::of(&cluster.nodes[US]);
    eventually("the first version is everywhere", || numbers(&eu.status()) == (1, 1, 0));

    let refused = us.set_rate("300/s", false).expect_err("only the authority changes budgets");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("eu/eu-1"), "{}", refused.message());
    let would = eu.set_rate("300/s", true).expect("a dry run");
    assert!(would.len() == 1 && would[0].contains("600/s") && would[0].contains("300/s"), "{would:?}");
    assert_eq!(numbers(&eu.status()).0, 1, "a dry run changes nothing");

    cluster.isolate(US, true);
    eventually("the cut is noticed", || !eu.status().peers.iter().all(|peer| peer.reached));
    eu.set_rate("300/s", false).expect("the authority changes budgets");
    eventually("us is pending, and nobody else", || {
        let status = eu.status();
        let pending: Vec<String> =
            status.catalogue.unwrap_or_default().pending.into_iter().map(|pending| pending.region).collect();
        pending == ["us"]
    });
    assert_eq!((rate_milli(&eu.status()), rate_milli(&us.status())), (300_000, 600_000));
    assert_eq!(numbers(&eu.status()), (2, 1, 1), "requested, effective, pending");
    cluster.isolate(US, false);
    eventually("it is everywhere", || numbers(&eu.status()) == (2, 2, 0));
    assert_eq!(rate_milli(&us.status()), 300_000);

    // An operator's order survives restarts, although the file differs.
    cluster.nodes[EU].restart();
    cluster.until_ready(EU);
    let mut eu = Operator::of(&cluster.nodes[EU]);
    let status = eu.status();
    assert_eq!(rate_milli(&status), 300_000);
    let differences = status.catalogue.unwrap_or_default().differences;
    assert!(differences.len() == 1 && differences[0].contains("shop/rate"), "{differences:?}");

    // A change of the authority's file is an order for that limit alone.
    let yaml = cluster.config(EU).replace(&format!("limit: {QUOTA}"), "limit: 2500");
    cluster.nodes[EU].write_whole_config(&yaml);
    cluster.nodes[EU].hup();
    eventually("the file's change is in force", || numbers(&eu.status()) == (3, 3, 0));
    let listed =
        eu.runtime.block_on(eu.client.list_budgets(ListBudgetsRequest {})).expect("a list").into_inner();
    let budget = |name: &str| {
        listed.budgets.iter().find(|budget| budget.name == name).map(|budget| budget.budget.clone())
    };
    assert_eq!(budget("rate").as_deref(), Some("token_bucket 300/s burst 600"));
    assert!(budget("quota").expect("a quota").contains("2500"));

    // The file now contains what an operator has already ordered, so no new order is needed.
    let yaml = yaml.replace(&format!("rate: {RATE}/s, burst"), "rate: 300/s, burst");
    cluster.nodes[EU].write_whole_config(&yaml);
    cluster.nodes[EU].hup();
    eventually("the file says what is in force", || {
        eu.status().catalogue.unwrap_or_default().differences.is_empty()
    });
    assert_eq!(numbers(&eu.status()), (3, 3, 0));
    assert!(!cluster.nodes[EU].stderr().contains("config refused"));

    let audit = eu.runtime.block_on(eu.client.list_audit(ListAuditRequest { newest: 0 })).expect("a log");
    let entries = audit.into_inner().entries;
    let what: Vec<&str> = entries.iter().map(|entry| entry.what.as_str()).collect();
    assert_eq!(
        what,
        ["the first catalogue", "budget set shop/rate rate=300/s", "1 limits changed in the file"]
    );
    assert!(entries[1].author.starts_with("ana from 127.0.0.1:") && entries[1].reason == "a test");
}

/// A node must refuse to start with another config and its own folder. Returns its output.
#[track_caller]
fn refused_start(node: &Node, yaml: &str) -> String {
    let elsewhere = node.data().with_extension("yaml");
    std::fs::write(&elsewhere, yaml.replace("DATA", &node.data().display().to_string())).expect("a config");
    let failed = acequia(&["serve", "--config", elsewhere.to_str().expect("text")]);
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(2), "{said}");
    said
}

#[test]
fn a_failed_start_among_regions_does_not_count_as_a_crash() {
    let mut cluster = Cluster::start(&limits());
    let yaml = cluster.config(US);
    assert!(cluster.nodes[US].terminate().success());

    let node = &cluster.nodes[US];
    let nothing = tempfile::tempdir().expect("a folder");
    let elsewhere = |from: &std::path::Path| {
        yaml.replace(&from.display().to_string(), &nothing.path().display().to_string())
    };
    let said = refused_start(node, &elsewhere(&cluster.certs()));
    assert!(said.contains("us-1.pem") || said.contains("ca.pem"), "{said}");
    let said = refused_start(node, &format!("{yaml}admin_token: {}/token\n", nothing.path().display()));
    assert!(said.contains("needed for listen.admin"), "{said}");
    let taken = std::net::UdpSocket::bind(cluster.mesh_address(US)).expect("the node is down");
    let said = refused_start(node, &yaml);
    assert!(said.contains(&format!("cannot listen on {}", cluster.mesh_address(US))), "{said}");
    drop(taken);
    let (log, kept) = (node.data().join("audit.jsonl"), node.data().join("kept.jsonl"));
    std::fs::rename(&log, &kept).expect("the log is put aside");
    std::fs::create_dir(&log).expect("no file");
    let said = refused_start(node, &yaml);
    assert!(said.contains("cannot open the audit log"), "{said}");
    std::fs::remove_dir(&log).expect("an empty folder");
    std::fs::rename(&kept, &log).expect("the log is put back");

    cluster.nodes[US].start_again();
    cluster.until_ready(US);
    let said = cluster.nodes[US].stderr();
    assert!(!said.contains("did not stop cleanly"), "{said}");
    let answer = Http::connect(&cluster.nodes[US]).check(RATE_CHECK);
    assert!(answer.body.contains(r#""allowed":true"#), "{}", answer.body);
}

/// The config of a region's node that stands alone.
fn alone(region: usize) -> String {
    let (region, node) = REGIONS[region];
    let listen = r#"{ grpc: "127.0.0.1:0", http: "127.0.0.1:0" }"#;
    format!("region: {region}\nnode: {node}\nlisten: {listen}\ndata: DATA\n{}", limits())
}

#[test]
fn a_node_that_stood_alone_joins_as_a_new_one_and_stands_alone_no_more() {
    let mut cluster = Cluster::prepare(&limits());
    let quota = |node: &Node, cost: u64| {
        let question =
            format!(r#"{{"domain": "shop", "descriptors": [{{"kind": "quota"}}], "cost": {cost}}}"#);
        Http::connect(node).check(&question).body
    };
    let mut nodes = [AP, EU, US].map(|region| Node::start_whole(&alone(region)));
    for node in &nodes {
        assert!(quota(node, QUOTA - 10).contains(r#""allowed":true"#));
    }
    // The first start fails, which has no lasting effect.
    assert!(nodes[EU].terminate().success());
    let certs = cluster.certs().display().to_string();
    refused_start(&nodes[EU], &cluster.config(EU).replace(&certs, "/nowhere"));
    nodes[EU].start_again();
    assert!(quota(&nodes[EU], 11).contains(r#""allowed":false"#));

    assert!(nodes[AP].terminate().success());
    assert!(nodes[EU].terminate().success());
    nodes[US].kill();
    for (region, mut node) in nodes.into_iter().enumerate() {
        node.write_whole_config(&cluster.config(region));
        node.start_again();
        cluster.nodes.push(node);
    }
    (0..REGIONS.len()).for_each(|region| cluster.until_ready(region));
    // The region's share is less than it has spent of these cells, which the catalogue contains, too.
    assert!(quota(&cluster.nodes[EU], 1).contains(r#""allowed":false"#));
    let callers = cluster.callers(all_three());
    until_used(&callers, RATE * 9 / 20);
    never_over(&callers.end());

    let eu = &mut cluster.nodes[EU];
    assert!(eu.terminate().success());
    let said = refused_start(eu, &alone(EU));
    assert!(said.contains("Put `regions` back") && said.contains("an empty `data` folder"), "{said}");
    eu.start_again();
    cluster.until_ready(EU);
    let said = cluster.nodes[EU].stderr();
    assert!(!said.contains("did not stop cleanly"), "{said}");
}

#[test]
fn an_authority_whose_changed_file_is_refused_starts_with_the_catalogue() {
    let mut cluster = Cluster::start(&limits());
    let yaml = cluster.config(EU).replace(&format!("limit: {QUOTA}"), "limit: 2500");
    let node = &mut cluster.nodes[EU];
    assert!(node.terminate().success());
    node.write_whole_config(&yaml);
    // The audit log cannot be written, so nothing may change.
    let (log, kept) = (node.data().join("audit.jsonl"), node.data().join("kept.jsonl"));
    std::fs::rename(&log, &kept).expect("the log is put aside");
    std::os::unix::fs::symlink("/dev/full", &log).expect("a disk without room");
    node.start_again();
    node.until_it_says("what changed in the file is not in force");
    node.until_it_says("the audit log cannot be written");
    cluster.until_ready(EU);
    let status = Operator::of(&cluster.nodes[EU]).status();
    assert_eq!(numbers(&status).0, 1, "the catalogue stays");
    let differences = status.catalogue.unwrap_or_default().differences;
    assert!(differences.len() == 1 && differences[0].contains("shop/quota"), "{differences:?}");

    std::fs::rename(&kept, &log).expect("the disk has room again");
    cluster.nodes[EU].restart();
    cluster.until_ready(EU);
    let mut eu = Operator::of(&cluster.nodes[EU]);
    eventually("the file's change is in force", || numbers(&eu.status()) == (2, 2, 0));
}

#[test]
fn a_lost_disk_a_dead_region_and_the_authority_itself_are_mended_by_commands() {
    let mut cluster = Cluster::start(&limits());
    let callers = cluster.callers(all_three());
    until_used(&callers, RATE * 9 / 20);
    let mut eu = Operator::of(&cluster.nodes[EU]);

    // After the loss of a disk, the new incarnation owns nothing until it is named.
    cluster.nodes[US].kill();
    std::fs::remove_dir_all(cluster.nodes[US].data()).expect("the disk is gone");
    cluster.nodes[US].start_again();
    let mut http = Http::connect(&cluster.nodes[US]);
    eventually("it says what to do", || http.get("/readyz").body.contains("acequia regions recover us"));
    eventually("it is heard", || eu.change(Change::Recover, "us", false).is_ok());
    cluster.until_ready(US);
    until_used(&callers, RATE * 9 / 20);

    // A region that is gone for good.
    let not_yet = eu.change(Change::Evict, "ap", false).expect_err("without an operator's word");
    assert!(not_yet.message().contains("--fenced"), "{}", not_yet.message());
    cluster.nodes[AP].kill();
    eu.change(Change::Evict, "ap", true).expect("evicted");
    let mut us = Operator::of(&cluster.nodes[US]);
    eventually("two share it all", || {
        let statuses = [eu.status(), us.status()];
        let standing: u64 = statuses
            .iter()
            .flat_map(|status| &status.limits)
            .filter(|limit| limit.name == "rate")
            .map(|limit| limit.standing.unwrap_or_default().rate_milli)
            .sum();
        standing > RATE * 1_000 * 99 / 100
    });
    until_used(&callers, RATE * 9 / 20);
    cluster.nodes[AP].start_again();
    let mut http = Http::connect(&cluster.nodes[AP]);
    eventually("the evicted one learns of it, or its loans end", || {
        http.check(RATE_CHECK).body.contains(r#""allowed":false"#)
    });

    // The authority moves. The former authority hears of this, and continues as a region.
    let refused = us.take_over(false);
    refused.expect("a member takes over");
    eventually("both know", || {
        let names = [eu.status(), us.status()].map(|status| status.catalogue.unwrap_or_default().authority);
        names == ["us/us-1", "us/us-1"]
    });
    assert_eq!(eu.set_rate("500/s", false).expect_err("no authority").code(), Code::FailedPrecondition);
    us.set_rate("500/s", false).expect("the new authority changes budgets");
    eventually("it is everywhere", || rate_milli(&eu.status()) == 500_000);
    never_over(&callers.end());
}

#[test]
fn a_region_that_left_and_was_lost_comes_back_on_an_operators_word_alone() {
    let mut cluster = Cluster::start(&limits());
    let callers = cluster.callers(all_three());
    until_used(&callers, RATE * 9 / 20);
    let mut eu = Operator::of(&cluster.nodes[EU]);
    // The region never hears that it was removed.
    cluster.nodes[AP].kill();
    eu.change(Change::Remove, "ap", false).expect("removed");
    let pending = |eu: &mut Operator| eu.status().catalogue.unwrap_or_default().pending;
    eventually("it is waited for", || pending(&mut eu).iter().any(|pending| pending.region == "ap"));

    // With an empty disk the region cannot confirm that it gave up what it had.
    std::fs::remove_dir_all(cluster.nodes[AP].data()).expect("the disk is gone");
    cluster.nodes[AP].start_again();
    let mut refused = String::new();
    eventually("it is heard", || {
        let fault = eu.change(Change::Add, "ap", false).expect_err("the old one may still answer somebody");
        refused = fault.message().to_owned();
        refused.contains("evict ap --fenced")
    });
    assert!(!pending(&mut eu).is_empty(), "{refused}");
    eu.change(Change::Evict, "ap", false).expect_err("without an operator's word");
    eu.change(Change::Evict, "ap", true).expect("evicted");
    eventually("nobody waits for it", || pending(&mut eu).is_empty());
    eu.change(Change::Add, "ap", false).expect("the new one is let in");
    cluster.until_ready(AP);
    until_used(&callers, RATE * 9 / 20);
    never_over(&callers.end());
}

#[test]
fn an_authority_that_lost_its_disk_mints_nothing() {
    let mut cluster = Cluster::start(&limits());
    cluster.nodes[EU].kill();
    std::fs::remove_dir_all(cluster.nodes[EU].data()).expect("the disk is gone");
    cluster.nodes[EU].start_again();
    let mut http = Http::connect(&cluster.nodes[EU]);
    eventually("it learns that there is a catalogue", || {
        http.get("/readyz").body.contains("no catalogue names this node")
    });
    let answer = http.check(RATE_CHECK);
    assert!(answer.body.contains(r#""allowed":false"#), "{}", answer.body);
    let mut us = Operator::of(&cluster.nodes[US]);
    us.take_over(true).expect("the operator knows that eu does nothing");
    eventually("eu is heard", || us.change(Change::Recover, "eu", false).is_ok());
    cluster.until_ready(EU);
}

/// A counter or gauge without labels, from a node's metrics.
fn sample(http: &mut Http, name: &str) -> u64 {
    let text = http.get("/metrics").body;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}:\n{text}"))
}

#[test]
fn a_region_with_a_full_disk_answers_but_neither_lends_nor_reserves() {
    let mut cluster = Cluster::start(&limits());
    let callers = cluster.callers(vec![
        asked("rate", [100, 100, 100]),
        asked("window", [20, 20, 20]),
        asked("quota", [10, 10, 10]),
    ]);
    until_used(&callers, 300 * 8 / 20);
    let (mut ap, mut us) = (Http::connect(&cluster.nodes[AP]), Http::connect(&cluster.nodes[US]));
    let mut operator = Operator::of(&cluster.nodes[US]);
    let ask = |http: &mut Http, kind: &str| {
        let answer = http.check(&body(&[("kind", kind)]));
        assert!([200, 429].contains(&answer.status), "{}", answer.body);
        answer.json()
    };

    cluster.nodes[US].fill_disk(true);
    for kind in ["window", "quota"] {
        eventually("what was reserved is spent, and no more", || ask(&mut us, kind)["reason"] == "journal");
    }
    assert_eq!(sample(&mut us, "acequia_journal_down"), 1);
    assert_eq!(sample(&mut us, "acequia_ready"), 1);
    assert!(us.get("/readyz").body.contains("the journal cannot be written"));
    let status = operator.status();
    assert!(status.ready && status.journal_is_down);
    let shown = acequia(&["regions", "--address", &cluster.nodes[US].admin().to_string()]);
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("journal    cannot be written"), "{shown}");

    // The hot region wants more. One region lends, and this one does not, but continues with everything that
    // needs no disk.
    let lent = ["acequia_loans_given_total", "acequia_rights_given_total"];
    let before = (sample(&mut ap, lent[0]), lent.map(|name| sample(&mut us, name)));
    callers.questions[0].rates[EU].store(700, Ordering::Relaxed);
    until_used(&callers, RATE * 7 / 20);
    eventually("the other one lends", || sample(&mut ap, lent[0]) > before.0);
    eventually("it answers by its own part", || ask(&mut us, "rate")["allowed"] == true);
    assert_eq!(lent.map(|name| sample(&mut us, name)), before.1, "a loan that is on no disk");
    for kind in ["window", "quota"] {
        assert_eq!(ask(&mut us, kind)["reason"], "journal");
        eventually("the others go on", || ask(&mut ap, kind)["allowed"] == true);
    }

    // The disk has room again.
    cluster.nodes[US].fill_disk(false);
    eventually("it lends", || sample(&mut us, lent[0]) > before.1[0]);
    assert_eq!(sample(&mut us, "acequia_journal_down"), 0);
    assert!(!operator.status().journal_is_down);
    assert_eq!(us.get("/readyz").body, "ready\n");
    for kind in ["window", "quota"] {
        eventually("it reserves", || ask(&mut us, kind)["allowed"] == true);
    }
    until_used(&callers, RATE * 9 / 20);

    // Spending meanwhile is on the region's disk.
    cluster.nodes[US].crash();
    cluster.until_ready(US);
    until_used(&callers, RATE * 8 / 20);
    never_over(&callers.end());
}

#[test]
fn a_request_for_the_only_unit_of_three_regions_waits_a_round_trip_at_most_and_never_for_a_cut() {
    let limit = format!(
        "limits:\n- {{ name: trial, domain: shop, by: [user], fixed_window: {{ limit: 1, window: {} }} }}\n",
        windows::long()
    );
    let cluster = Cluster::start(&limit);
    let mut all: Vec<Http> = cluster.nodes.iter().map(Http::connect).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let passes = |all: &mut Vec<Http>, region: usize, protocol: usize, user: &str| {
        let entries: [(&str, &str); 1] = [("user", user)];
        let node = &cluster.nodes[region];
        match protocol {
            0 => all[region].check(&body(&entries)).json()["allowed"] == true,
            1 => {
                let address = node.grpc().to_string();
                let arguments = [
                    "check",
                    "--address",
                    &address,
                    "--domain",
                    "shop",
                    "--deadline",
                    "10s",
                    &format!("user={user}"),
                ];
                acequia(&arguments).status.code() == Some(0)
            }
            _ => {
                let answer = runtime.block_on(envoy::ask(node, envoy::request(&[&entries])));
                answer.overall_code()
                    == acequia_api::envoy::service::ratelimit::v3::rate_limit_response::Code::Ok
            }
        }
    };
    let waits = |node: &Node, outcome: &str| metric(node, "acequia_waits_total", &[("outcome", outcome)]);
    for number in 0..24 {
        let (region, user) = (number % 3, format!("u{number}"));
        // Users of this region pass at once, others after a wait. On a very slow machine they pass when the
        // unit arrives.
        eventually("the unit comes to where it is asked for", || {
            passes(&mut all, region, number / 3 % 3, &user)
        });
        for other in 0..3 {
            assert!(!passes(&mut all, other, 0, &user), "a second unit of one for {user}");
        }
    }
    // By chance, all users of one region may have their units there.
    let all_waits = |outcome| cluster.nodes.iter().map(|node| waits(node, outcome)).sum::<f64>();
    assert!(all_waits("allow") >= 1.0, "nobody waited with success");
    assert_eq!(all_waits("crowded"), 0.0);

    // If no unit can arrive, nobody waits.
    cluster.isolate(EU, true);
    let node = &cluster.nodes[EU];
    eventually("the cut shows", || metric(node, "acequia_peer_reached", &[]) == 0.0);
    let counted = || ["allow", "deny"].map(|outcome| waits(node, outcome));
    let mut users = (0..).map(|number| format!("w{number}"));
    eventually("its next tick knows", || {
        let before = counted();
        !passes(&mut all, EU, 0, &users.next().expect("a user")) && counted() == before
    });
    let before = counted();
    let passed = (0..60).filter(|number| passes(&mut all, EU, 0, &format!("v{number}"))).count();
    assert!((1..60).contains(&passed), "those that are at home here, and no others: {passed}");
    assert_eq!(counted(), before, "a wait in a cut");
}

#[test]
fn the_metrics_say_what_a_region_may_spend_and_whom_it_hears() {
    let cluster = Cluster::start(&limits());
    let begun = Instant::now();
    let mut http = Http::connect(&cluster.nodes[EU]);
    eventually("every region conforms", || {
        http.get("/metrics").body.contains("acequia_catalogue_version{which=\"effective\"} 1")
    });
    cluster.isolate(EU, true);
    eventually("a cut shows", || {
        let text = http.get("/metrics").body;
        ["ap/ap-1", "us/us-1"]
            .iter()
            .all(|peer| text.contains(&format!("acequia_peer_reached{{peer=\"{peer}\"}} 0")))
    });
    let text = http.get("/metrics").body;
    for line in [
        "acequia_ready 1",
        "acequia_catalogue_version{which=\"effective\"} 1",
        "acequia_region_units_per_second{limit=\"shop/rate\",kind=\"standing\"} 199",
        "acequia_certificate_expiry_timestamp_seconds",
    ] {
        assert!(text.contains(line), "{line} after {:?}:\n{text}", begun.elapsed());
    }
    let explained = explain(&cluster.nodes[EU], &["kind=rate"]);
    for words in [
        "rate: eu may use 200/s + 200;",
        "  own share  200/s + 200",
        "  us         not reached, last heard ",
        "  while ap, us cannot be reached: it goes on with 200/s + 200,",
    ] {
        assert!(explained.contains(words), "{words}:\n{explained}");
    }
}

/// A node's explanation of a request in the domain `shop`.
fn explain(node: &Node, more: &[&str]) -> String {
    let address = node.grpc().to_string();
    let arguments =
        [&["explain", "--address", &address, "--deadline", "30s", "--domain", "shop"], more].concat();
    String::from_utf8_lossy(&acequia(&arguments).stdout).into_owned()
}

#[test]
fn an_explanation_names_every_loan_and_when_it_ends() {
    let cluster = Cluster::start(&limits());
    let callers = cluster.callers(vec![asked("rate", [0, RATE, 0])]);
    until_used(&callers, RATE * 9 / 20);
    eventually("eu holds loans of both others", || {
        let explained = explain(&cluster.nodes[EU], &["kind=rate", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&explained).expect("JSON");
        let share = &json["shares"][0];
        let loans = share["loans"].as_array().expect("loans");
        let of = |region: &str| {
            loans.iter().any(|loan| {
                let ends_ms = loan["ends_ms"].as_u64().expect("an end");
                loan["region"] == region && loan["is_lent"] == false && (1..=3_000).contains(&ends_ms)
            })
        };
        let said = share["peers"].as_array().expect("peers").iter().all(|peer| peer["word"].is_object());
        of("ap") && of("us") && said && share["demand_milli"].as_u64() > Some(100_000)
    });
    never_over(&callers.end());
}

/// A node's clock was ahead before it lost its disk, so its new incarnation number is too low. The node
/// reports this, and the remedy.
#[test]
fn a_node_whose_clock_was_ahead_before_it_lost_its_disk_says_how_to_begin() {
    let mut cluster = Cluster::start(&limits());
    let mut operator = Operator::of(&cluster.nodes[EU]);
    let incarnation = |operator: &mut Operator| {
        let members = operator.status().members;
        members.iter().find(|member| member.region == "ap").map_or(0, |member| member.incarnation)
    };
    let recovered = |operator: &mut Operator, to: u32| {
        eventually("it is recovered", || {
            let _ = operator.change(Change::Recover, "ap", false);
            incarnation(operator) == to
        });
    };
    cluster.nodes[AP].begin_anew(&[("ACEQUIA_INCARNATION", "4000000000")]);
    recovered(&mut operator, 4_000_000_000);
    cluster.until_ready(AP);

    cluster.nodes[AP].begin_anew(&[]);
    let mut http = Http::connect(&cluster.nodes[AP]);
    let mut said = String::new();
    eventually("it says what is wrong", || {
        said = http.get("/readyz").body;
        said.contains("--incarnation 4000000001") && said.contains("regions recover ap")
    });
    cluster.nodes[AP].begin_anew(&[("ACEQUIA_INCARNATION", "4000000001")]);
    recovered(&mut operator, 4_000_000_001);
    cluster.until_ready(AP);
    let mut http = Http::connect(&cluster.nodes[AP]);
    eventually("it has its share", || http.check(RATE_CHECK).body.contains(r#""allowed":true"#));
}
