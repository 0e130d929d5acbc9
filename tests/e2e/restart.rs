//! What is spent stays spent: over crashes under load, clean stops, and changes of the config. The counts
//! come from outside, from the answers that callers received.

use std::{
    net::{SocketAddr, TcpStream},
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use acequia_api::acequia::v1::{CheckBatch, limiter_client::LimiterClient};
use acequia_tests::{Node, PATIENCE, acequia, eventually, whole_config};
use prost::Message as _;
use serde_json::json;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    client::{
        Http, body, channel, check, check_cost, framed, raw_connection, raw_reply, raw_request, send_all,
    },
    grpc::question,
    windows,
};

/// The limits of the load, and the units of each.
const KINDS: [(&str, u64); 3] = [("quota", 1_280), ("window", 960), ("bucket", 640)];
/// Units that the bucket earns in an hour.
const BUCKET_RATE: u64 = 640;
const THREADS: usize = 4;

/// What callers saw of all processes of the node.
#[derive(Default)]
struct Tally {
    answers: AtomicU64,
    allowed: [AtomicU64; 3],
    /// Requests without an answer because of a crash. They may have been charged.
    unanswered: [AtomicU64; 3],
}

#[test]
fn no_unit_is_given_twice_whenever_it_crashes() {
    const CRASHES: u64 = 4;
    let mut node = Node::start(&format!(
        "data: DATA\n\
         limits:\n\
         - {{ name: quota, domain: shop, when: {{ kind: quota }}, quota: {{ limit: 1280, per: day, time_zone: {} }} }}\n\
         - {{ name: window, domain: shop, when: {{ kind: window }}, fixed_window: {{ limit: 960, window: {} }} }}\n\
         - {{ name: bucket, domain: shop, when: {{ kind: bucket }}, token_bucket: {{ rate: {BUCKET_RATE}/h, burst: 640 }} }}\n",
        windows::zone(),
        windows::long(),
    ));
    let tally = Arc::new(Tally::default());
    let begun = Instant::now();

    for crash in 1..=CRASHES {
        let load = press(node.http(), &tally);
        eventually("the load is answered", || tally.answers.load(Ordering::SeqCst) >= crash * 300);
        node.kill();
        load.into_iter().for_each(|thread| thread.join().expect("no panic"));
        node.start_again();
    }
    // The last process is asked until all its units are spent.
    let load = press(node.http(), &tally);
    load.into_iter().for_each(|thread| thread.join().expect("no panic"));

    let refilled = begun.elapsed().as_secs() * BUCKET_RATE / 3_600 + 1;
    for (number, (kind, limit)) in KINDS.into_iter().enumerate() {
        let allowed = tally.allowed[number].load(Ordering::SeqCst);
        let unanswered = tally.unanswered[number].load(Ordering::SeqCst);
        let most = limit + if kind == "bucket" { refilled } else { 0 };
        assert!(allowed <= most, "{kind}: {allowed} were allowed of {most}");
        // Units that were reserved ahead of use, and units charged for answers that never arrived.
        let wasted = CRASHES * (limit / 64 + 1) + unanswered;
        assert!(allowed + wasted >= limit, "{kind}: only {allowed} were allowed of {limit}");
    }
}

/// Threads that ask for every kind in turn, until each was denied or the node is gone.
fn press(address: SocketAddr, tally: &Arc<Tally>) -> Vec<JoinHandle<()>> {
    let ask = |first: usize| {
        let (mut http, tally) = (Http::to(address), Arc::clone(tally));
        std::thread::spawn(move || {
            let mut open = [true; KINDS.len()];
            for number in (0..KINDS.len()).cycle().skip(first) {
                if open == [false; KINDS.len()] {
                    return;
                }
                if !open[number] {
                    continue;
                }
                let Ok(reply) = http.try_check(&body(&[("kind", KINDS[number].0)])) else {
                    tally.unanswered[number].fetch_add(1, Ordering::SeqCst);
                    return;
                };
                tally.answers.fetch_add(1, Ordering::SeqCst);
                let allowed = reply.json()["allowed"] == true;
                tally.allowed[number].fetch_add(u64::from(allowed), Ordering::SeqCst);
                open[number] = allowed;
            }
        })
    };
    (0..THREADS).map(ask).collect()
}

#[tokio::test]
async fn no_unit_is_given_twice_to_a_stream_whenever_it_crashes() {
    const LIMIT: u64 = 6_400;
    const CRASHES: u64 = 3;
    /// Checks in a message, and messages on their way at a time.
    const CHECKS: u64 = 20;
    const AHEAD: u64 = 4;
    let mut node = Node::start(&lasting());
    let (mut allowed, mut asked) = (0, 0);
    for crash in 1..=CRASHES + 1 {
        let (send, mut answers) = open_stream(&node).await;
        let batch = CheckBatch { checks: vec![question(&[("window", "x")]); CHECKS as usize] };
        for _ in 1..AHEAD {
            send.send(batch.clone()).await.expect("the stream is open");
        }
        loop {
            send.send(batch.clone()).await.expect("the stream is open");
            let answer = answers.message().await.expect("no fault").expect("an answer");
            let passed = answer.results.iter().filter(|result| result.allowed).count() as u64;
            (allowed, asked) = (allowed + passed, asked + CHECKS);
            if passed == 0 || (crash <= CRASHES && asked >= crash * 1_500) {
                break;
            }
        }
        // The crash comes while messages are on their way.
        node.crash();
    }
    assert!(allowed <= LIMIT, "{allowed} were allowed");
    let wasted = CRASHES * (LIMIT / 64 + AHEAD * CHECKS);
    assert!(allowed + wasted >= LIMIT, "only {allowed} were allowed");
}

/// Limits of every algorithm that take a minute or more to forget, and the units of each.
const LASTING: [(&str, u64); 6] =
    [("quota", 6_400), ("window", 6_400), ("bucket", 6_400), ("queue", 64), ("slots", 6_400), ("log", 50)];

fn lasting() -> String {
    format!(
        "data: DATA\n\
         limits:\n\
         - {{ name: quota, domain: shop, by: [quota], quota: {{ limit: 6400, per: day, time_zone: {zone} }} }}\n\
         - {{ name: window, domain: shop, by: [window], fixed_window: {{ limit: 6400, window: {window} }} }}\n\
         - {{ name: bucket, domain: shop, by: [bucket], token_bucket: {{ rate: 1/h, burst: 6400 }} }}\n\
         - {{ name: queue, domain: shop, by: [queue], leaky_bucket: {{ rate: 1/h, queue: 64 }} }}\n\
         - {{ name: slots, domain: shop, by: [slots], sliding_window: {{ limit: 6400, window: 10h }} }}\n\
         - {{ name: log, domain: shop, by: [log], sliding_window: {{ limit: 50, window: 1h }} }}\n",
        zone = windows::zone(),
        window = windows::long(),
    )
}

#[test]
fn a_clean_stop_wastes_nothing() {
    let mut node = Node::start(&lasting());
    for (name, _) in LASTING {
        check_cost(&node, &[(name, "x")], 10);
    }
    for times in 1..=2 {
        node.restart();
        for (name, limit) in LASTING {
            let answer = check(&node, &[(name, "x")]);
            assert_eq!(answer["remaining"], limit - 10 - times, "{name}");
        }
    }
    for (name, limit) in LASTING {
        assert_eq!(
            check(&node, &[(name, "other")])["remaining"],
            limit - 1,
            "{name}: an untouched cell is full"
        );
    }
}

#[test]
fn a_crash_wastes_at_most_a_chunk_of_each_cell() {
    let mut node = Node::start(&lasting());
    let mut most = LASTING.map(|(name, limit)| (name, limit, limit));
    for _ in 0..3 {
        for (name, limit, left) in &mut most {
            let now_left = check(&node, &[(name, "x")])["remaining"].as_u64().expect("a number");
            let chunk = *limit / 64;
            assert!(now_left < *left, "{name}: {now_left} left of {left}");
            assert!(now_left + 1 + chunk >= *left, "{name}: {now_left} left of {left}");
            *left = now_left;
        }
        node.crash();
        node.until_it_says("did not stop cleanly");
    }
    for (name, limit) in LASTING {
        assert_eq!(
            check(&node, &[(name, "other")])["remaining"],
            limit - 1,
            "{name}: an untouched cell is full"
        );
    }
}

#[test]
fn five_crashes_cost_a_quota_a_unit_each() {
    const LIMIT: u64 = 1_000_000;
    let config = format!(
        "data: DATA\nlimits:\n- {{ name: quota, domain: shop, by: [quota], quota: {{ limit: {LIMIT}, per: month, time_zone: {} }} }}\n",
        windows::zone()
    );
    let mut node = Node::start(&config);
    for _ in 0..5 {
        assert_eq!(check(&node, &[("quota", "x")])["allowed"], true);
        node.crash();
    }
    let left = check(&node, &[("quota", "x")])["remaining"].as_u64().expect("a number");
    assert!(
        (LIMIT - 11..=LIMIT - 6).contains(&left),
        "{left} left: each crash wastes one unit, which was reserved ahead"
    );
}

#[test]
fn short_limits_start_empty_after_a_crash_and_say_so() {
    let window = windows::short();
    let config = format!(
        "data: DATA\n\
         limits:\n\
         - {{ name: bucket, domain: shop, by: [bucket], token_bucket: {{ rate: 1/10s, burst: 4 }} }}\n\
         - {{ name: window, domain: shop, by: [window], fixed_window: {{ limit: 4, window: {window} }} }}\n\
         - {{ name: sliding, domain: shop, by: [sliding], sliding_window: {{ limit: 4, window: 2s }} }}\n"
    );
    let mut node = Node::start(&config);
    for name in ["bucket", "window", "sliding"] {
        assert_eq!(check(&node, &[(name, "x")])["remaining"], 3, "{name}: a first start is not a restart");
    }
    let crashed = Instant::now();
    node.crash();
    // Nobody knows what was spent, so every cell counts as fully spent.
    for (name, most_ms) in [("bucket", 10_000), ("window", 59_000), ("sliding", 2_000)] {
        for value in ["x", "never seen"] {
            let answer = check(&node, &[(name, value)]);
            assert_eq!(
                (&answer["allowed"], &answer["reason"]),
                (&json!(false), &json!("restarted")),
                "{name}"
            );
            assert_eq!((&answer["limit"], &answer["remaining"]), (&json!(name), &json!(0)));
            let retry = answer["retry_after_ms"].as_u64().expect("a wait");
            assert!((1..=most_ms).contains(&retry), "{name}: {retry}");
        }
    }
    eventually("the sliding window has slid", || check(&node, &[("sliding", "x")])["allowed"] == true);
    assert!(crashed.elapsed() >= Duration::from_secs(2));
    assert_eq!(check(&node, &[("sliding", "y")])["remaining"], 3, "it is as full as ever");
}

#[test]
fn a_failed_start_does_not_count_as_a_crash() {
    let mut node = Node::start(
        "data: DATA\n\
         limits: [{ name: bucket, domain: shop, by: [k], token_bucket: { rate: 2/s, burst: 4 } }]",
    );
    check(&node, &[("k", "x")]);
    node.terminate();
    let stopped = Instant::now();
    // While the bucket refills, the node is started in ways that must fail.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let config = std::fs::read_to_string(node.config()).expect("a config");
    let port = taken.local_addr().expect("an address").to_string();
    let elsewhere = node.data().with_extension("yaml");
    std::fs::write(&elsewhere, config.replacen("127.0.0.1:0", &port, 1)).expect("a config");
    eventually("the bucket would be full", || {
        let failed = acequia(&["serve", "--config", elsewhere.to_str().expect("text")]);
        assert_eq!(failed.status.code(), Some(2));
        stopped.elapsed() > Duration::from_secs(2)
    });
    node.start_again();
    let answer = check_cost(&node, &[("k", "x")], 4);
    assert_eq!(answer["allowed"], true, "the bucket has filled since the clean stop: {answer}");
}

#[test]
fn a_limit_that_is_new_after_a_crash_is_whole() {
    let mut node = Node::start("data: DATA\nlimits: []");
    node.kill();
    node.write_config(
        "data: DATA\nlimits: [{ name: b, domain: shop, token_bucket: { rate: 1/10s, burst: 4 } }]",
    );
    node.start_again();
    assert_eq!(check(&node, &[("k", "v")])["remaining"], 3);
}

#[test]
fn new_numbers_at_a_restart_keep_the_cells() {
    let window = windows::long();
    let config = |limit: u64, burst: u64| {
        format!(
            "data: DATA\n\
             limits:\n\
             - {{ name: window, domain: shop, by: [window], fixed_window: {{ limit: {limit}, window: {window} }} }}\n\
             - {{ name: bucket, domain: shop, by: [bucket], token_bucket: {{ rate: 1/h, burst: {burst} }} }}\n"
        )
    };
    let mut node = Node::start(&config(100, 100));
    for name in ["window", "bucket"] {
        assert_eq!(check_cost(&node, &[(name, "x")], 30)["remaining"], 70);
    }
    node.terminate();
    node.write_config(&config(50, 40));
    node.start_again();
    assert_eq!(check(&node, &[("window", "x")])["remaining"], 19);
    assert_eq!(check(&node, &[("bucket", "x")])["remaining"], 9);
}

#[test]
fn another_shape_waits_for_the_window_over_crashes_too() {
    let old = format!(
        "data: DATA\nlimits: [{{ name: w, domain: shop, fixed_window: {{ limit: 2, window: {} }} }}]",
        windows::long()
    );
    let new = "data: DATA\nlimits: [{ name: w, domain: shop, sliding_window: { limit: 50, window: 2h } }]";
    let spent = |node: &Node| {
        let answer = check(node, &[("k", "v")]);
        assert_eq!(
            (&answer["allowed"], &answer["limits"][0]["budget"]),
            (&json!(false), &json!(2)),
            "{answer}"
        );
    };
    for changed_while_it_runs in [true, false] {
        let mut node = Node::start(&old);
        check_cost(&node, &[("k", "v")], 2);
        if changed_while_it_runs {
            node.write_config(new);
            node.until_it_says("the limit matches or counts otherwise now");
            spent(&node);
            node.kill();
        } else {
            node.kill();
            node.write_config(new);
        }
        node.start_again();
        spent(&node);
        node.restart();
        spent(&node);
    }
}

#[test]
fn a_limit_that_comes_back_after_a_crash_has_its_cells() {
    let config = format!(
        "data: DATA\n\
         limits:\n\
         - {{ name: long, domain: shop, by: [long], fixed_window: {{ limit: 64, window: {} }} }}\n\
         - {{ name: short, domain: shop, by: [short], token_bucket: {{ rate: 1/10s, burst: 5 }} }}\n",
        windows::long()
    );
    let mut node = Node::start(&config);
    assert_eq!(check_cost(&node, &[("long", "x")], 60)["remaining"], 4);
    assert_eq!(check_cost(&node, &[("short", "x")], 5)["remaining"], 0);
    let spent = Instant::now();
    node.write_config("data: DATA\nlimits: []");
    let ask = |node: &Node, name| check_cost(node, &[(name, "x")], 5);
    eventually("they are removed", || ask(&node, "short")["reason"] == "no-match");
    node.crash();
    node.write_config(&config);
    eventually("they are back", || ask(&node, "long")["reason"] != "no-match");

    let (long, short) = (ask(&node, "long"), ask(&node, "short"));
    assert_eq!(long["allowed"], false, "{long}");
    // Five units are earned in 50 s.
    assert!(spent.elapsed() > Duration::from_secs(50) || short["allowed"] == false, "{short}");
}

/// A bucket that has a journal only while a refill takes a minute or more.
fn bucket(burst: u64) -> String {
    format!(
        "data: DATA\n\
         limits: [{{ name: b, domain: shop, by: [k], token_bucket: {{ rate: 1/s, burst: {burst} }} }}]"
    )
}

/// Changes the bucket's burst while the node runs.
fn rebucket(node: &Node, burst: u64) {
    node.write_config(&bucket(burst));
    eventually("the new burst counts", || {
        check_cost(node, &[("k", "nobody")], 1_000)["limits"][0]["budget"] == burst
    });
}

#[test]
fn a_limit_that_lasts_longer_than_it_did_keeps_its_debts_over_a_crash() {
    let mut node = Node::start(&bucket(50));
    assert_eq!(check_cost(&node, &[("k", "x")], 50)["allowed"], true);
    let spent = Instant::now();
    rebucket(&node, 600);
    node.crash();
    // The debt is fifty units, minus one for each second.
    let answer = check_cost(&node, &[("k", "x")], 600);
    assert!(spent.elapsed() > Duration::from_secs(50) || answer["allowed"] == false, "{answer}");
}

#[test]
fn a_limit_that_lasts_less_long_than_it_did_gives_nothing_back_at_a_crash() {
    let mut node = Node::start(&bucket(600));
    assert_eq!(check(&node, &[("k", "x")])["allowed"], true);
    rebucket(&node, 50);
    assert_eq!(check_cost(&node, &[("k", "x")], 40)["allowed"], true);
    let spent = Instant::now();
    node.crash();
    let answer = check_cost(&node, &[("k", "x")], 40);
    assert!(spent.elapsed() > Duration::from_secs(30) || answer["allowed"] == false, "{answer}");
}

#[test]
fn a_node_with_a_full_disk_answers_and_reserves_nothing() {
    const LIMIT: u64 = 6_400;
    const CHUNK: u64 = LIMIT / 64;
    /// Charged within a second, so that as much is reserved ahead.
    const FIRST: u64 = 3 * CHUNK;
    let mut node = Node::start(&lasting());
    let mut http = Http::connect(&node);
    let mut ask = |name: &str| http.check(&body(&[(name, "x")])).json();
    for _ in 0..FIRST {
        assert_eq!(ask("quota")["allowed"], true);
    }

    // Units that are already on disk are given. Afterwards the disk is the reason for denials, and no wait
    // helps.
    node.fill_disk(true);
    let mut given = 0;
    let (denied, waited) = loop {
        let asked = Instant::now();
        let answer = ask("quota");
        if answer["allowed"] == false {
            break (answer, asked.elapsed());
        }
        given += 1;
        assert!(given <= CHUNK, "more than was reserved");
    };
    assert!(given > 0, "what was charged in the last second is reserved ahead");
    assert_eq!(denied["reason"], "journal", "{denied}");
    let asked = Instant::now();
    assert_eq!(ask("window")["reason"], "journal", "nothing of it is reserved");
    let slowest = waited.max(asked.elapsed());
    assert!(slowest < Duration::from_millis(500), "no room is no reason to wait: {slowest:?}");
    let mut watch = Http::connect(&node);
    eventually("it says so", || watch.get("/metrics").body.contains("acequia_journal_down 1"));
    let ready = watch.get("/readyz");
    assert_eq!(ready.status, 200, "nobody else could give what it still may");
    assert!(ready.body.contains("the journal cannot be written"), "{}", ready.body);

    // The node recovers by itself when there is room, and forgets nothing in a crash.
    node.fill_disk(false);
    eventually("it is written again", || watch.get("/metrics").body.contains("acequia_journal_down 0"));
    assert_eq!(watch.get("/readyz").body, "ready\n");
    node.until_it_says("the journal is written again");
    let used = LIMIT - ask("quota")["remaining"].as_u64().expect("a number");
    // A request that was denied because its row was late may still be charged.
    let given = FIRST + given;
    assert!((given + 1..=given + 4).contains(&used), "{used} used, {given} given");
    assert_eq!(ask("window")["allowed"], true);
    node.crash();
    let left = check(&node, &[("quota", "x")])["remaining"].as_u64().expect("a number");
    assert!((LIMIT - used - 2 * CHUNK..LIMIT - used).contains(&left), "{left} left, {used} used");
}

#[test]
fn a_change_that_a_full_disk_refuses_leaves_the_node_as_it_was() {
    let node = Node::start(&lasting());
    check(&node, &[("quota", "x")]);
    let mut http = Http::connect(&node);
    node.fill_disk(true);
    node.write_config(&lasting().replace("limit: 50,", "limit: 40,"));
    node.hup();
    node.until_it_says("config refused: the old one stays");
    assert_eq!(check(&node, &[("log", "x")])["reason"], "journal");
    node.fill_disk(false);
    eventually("it is written again", || http.get("/metrics").body.contains("acequia_journal_down 0"));
    assert_eq!(check(&node, &[("log", "x")])["remaining"], 49);
    node.hup();
    node.until_it_says("config read again");
    assert_eq!(check(&node, &[("log", "y")])["remaining"], 39);
}

#[test]
fn without_a_journal_nothing_survives_and_the_log_says_so() {
    let mut node = Node::start("limits: [{ name: b, domain: shop, token_bucket: { rate: 1/h, burst: 1 } }]");
    node.until_it_says("nothing survives a restart");
    for _ in 0..2 {
        assert_eq!(check(&node, &[("k", "v")])["allowed"], true);
        assert_eq!(check(&node, &[("k", "v")])["allowed"], false);
        node.restart();
    }
}

#[test]
fn two_nodes_do_not_share_a_folder() {
    let mut node = Node::start(&lasting());
    assert_eq!(check(&node, &[("log", "x")])["remaining"], 49);
    let second = node.data().with_extension("yaml");
    std::fs::write(&second, whole_config("data: DATA", &node.data())).expect("a config");
    let refused = acequia(&["serve", "--config", second.to_str().expect("text")]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("Another node uses this `data` folder"), "{said}");
    // The first node is not affected.
    assert_eq!(check(&node, &[("log", "x")])["remaining"], 48);
    node.restart();
    assert_eq!(check(&node, &[("log", "x")])["remaining"], 47);
}

#[tokio::test]
async fn requests_in_flight_are_answered_before_it_stops() {
    let mut node = Node::start(&format!("workers: 1\n{}", lasting()));
    let address = node.http();
    // One request on each port has started and is incomplete.
    let (client, mut connection) = raw_connection(node.grpc()).await;
    let (reply, mut sending) = raw_request(client, "/acequia.v1.Limiter/Check", "application/grpc").await;
    let message = framed(&question(&[("log", "x")]).encode_to_vec());
    sending.send_data(message.slice(..9), false).expect("a stream");
    connection.ping(h2::Ping::opaque()).await.expect("what was sent before is read");

    let check = body(&[("log", "x")]);
    let mut posting = Http::connect(&node);
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: node\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        check.len()
    );
    posting.send(head.as_bytes()).expect("it is connected");
    assert_eq!(posting.reply(false).expect("an answer").status, 100);
    let mut probing = Http::connect(&node);
    probing.send(b"GET /readyz HTTP/1.1\r\nhost:").expect("it is connected");
    // The single worker has read the incomplete request once it has answered later ones.
    for _ in 0..2 {
        assert_eq!(Http::connect(&node).get("/readyz").status, 200);
    }

    node.ask_to_stop();
    node.until_it_says("draining");
    eventually("the port is closed", || TcpStream::connect(address).is_err());
    assert!(node.wait(Duration::from_millis(100)).is_none(), "it waits for what is in flight");

    probing.send(b" node\r\n\r\n").expect("it is open");
    let ready = probing.reply(false).expect("an answer");
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("draining"), "{}", ready.body);
    posting.send(check.as_bytes()).expect("it is open");
    assert_eq!(posting.reply(false).expect("an answer").json()["remaining"], 49);
    send_all(&mut sending, message.slice(9..)).await.expect("it is open");
    let reply = raw_reply(reply).await.expect("an answer");
    assert_eq!(reply.code, Some(tonic::Code::Ok), "{reply:?}");

    let status = ended(&mut node, PATIENCE).await.expect("it stops when everything is answered");
    assert_eq!(status.code(), Some(0));
    node.start_again();
    assert_eq!(check_cost(&node, &[("log", "x")], 1)["remaining"], 47, "both were charged, once");
}

#[tokio::test]
async fn a_health_watch_shows_that_the_node_stops() {
    let mut node = Node::start("");
    let mut health = HealthClient::new(channel(&node).await);
    let mut watch = health.watch(HealthCheckRequest::default()).await.expect("an answer").into_inner();
    let first = watch.message().await.expect("no fault").expect("a status");
    assert_eq!(first.status(), ServingStatus::Serving);
    node.ask_to_stop();
    let then = watch.message().await.expect("no fault").expect("a status");
    assert_eq!(then.status(), ServingStatus::NotServing);
    drop((watch, health));
    let status = ended(&mut node, PATIENCE).await.expect("nobody is there any more");
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn a_stream_that_never_ends_is_cut_when_the_time_to_drain_is_over() {
    let mut node = Node::start(&format!("drain: 300ms\n{}", lasting()));
    let (send, mut answers) = open_stream(&node).await;
    ask_stream(&send, &mut answers, "window").await.expect("an answer");
    node.ask_to_stop();
    let status = ended(&mut node, Duration::from_secs(5)).await;
    assert_eq!(status.map(|status| status.code()), Some(Some(0)), "it runs on:\n{}", node.stderr());
    drop(send);
}

#[tokio::test]
async fn what_is_answered_while_it_stops_is_not_given_again() {
    let mut node = Node::start(&format!("drain: 300ms\n{}", lasting()));
    let (send, mut answers) = open_stream(&node).await;
    let mut allowed = 0;
    ask_stream(&send, &mut answers, "window").await.expect("an answer");
    node.ask_to_stop();
    // Ask as long as anybody answers.
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        match ask_stream(&send, &mut answers, "window").await {
            Some(true) => allowed += 1,
            Some(false) | None => break,
        }
    }
    drop(send);
    if ended(&mut node, Duration::from_secs(1)).await.is_none() {
        node.kill();
    }
    node.start_again();
    let last = check(&node, &[("window", "x")]);
    let left = last["remaining"].as_u64().expect("a number");
    let spent = 1 + allowed + u64::from(last["allowed"] == true);
    assert!(left + spent <= 6_400, "{spent} were allowed, and {left} of 6400 are left");
}

/// Waits for the node to end by itself, while connections of this test continue.
async fn ended(node: &mut Node, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Some(status) = node.wait(Duration::ZERO) {
            return Some(status);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    None
}

type Asking = tokio::sync::mpsc::Sender<CheckBatch>;
type Answers = tonic::Streaming<acequia_api::acequia::v1::CheckBatchResult>;

async fn open_stream(node: &Node) -> (Asking, Answers) {
    let (send, receive) = tokio::sync::mpsc::channel(1);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(receive);
    let mut limiter = LimiterClient::new(channel(node).await);
    let answers = limiter.check_stream(outgoing).await.expect("a stream").into_inner();
    (send, answers)
}

/// Asks for one unit. `None` if nobody answers.
async fn ask_stream(send: &Asking, answers: &mut Answers, key: &str) -> Option<bool> {
    send.send(CheckBatch { checks: vec![question(&[(key, "x")])] }).await.ok()?;
    let answer = tokio::time::timeout(PATIENCE, answers.message()).await.ok()?.ok()??;
    answer.results.first().map(|result| result.allowed)
}
