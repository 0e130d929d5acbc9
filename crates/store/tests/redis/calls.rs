//! Calls with no fault, or with small ones.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use acequia_store::redis::{Function, Group, Missed, Redis, Settings, ShardState, ShardView, Timings};
use tokio::{task::JoinSet, time::sleep};

use crate::{
    scene::{self, DEADLINE, PATIENCE, called, group, opened, run_ids, seen, serves},
    servers::{Cluster, Sentinel, Server, wait_for},
};

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_independent_servers() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start(&[])).collect();
    let redis = opened(scene::shards(&servers)).await;
    let expected: BTreeSet<String> = servers.iter().map(Server::run_id).collect();
    assert_eq!(run_ids(&redis).await, expected);
    for view in redis.shards() {
        assert_eq!(view.state, ShardState::Open);
        assert!(expected.contains(&view.run_id.expect("a run id")));
        assert!(view.calls > 0 && view.round_trip_us > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_primaries_of_a_cluster() {
    let cluster = Cluster::start();
    let redis = opened(scene::cluster(&cluster)).await;
    let expected = cluster.primaries().into_iter().map(|node| cluster.nodes[node].run_id()).collect();
    assert_eq!(run_ids(&redis).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_primary_that_a_sentinel_knows() {
    let sentinel = Sentinel::start();
    let redis = opened(scene::sentinel(&sentinel)).await;
    assert_eq!(serves(&redis, group(0)).await, sentinel.primary.run_id());
    assert_eq!(redis.shards()[0].name, Sentinel::NAME);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_named_by_their_group() {
    let servers = [Server::start(&[])];
    let redis = opened(scene::shards(&servers)).await;
    servers[0].cli(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    called(&redis, group(17), DEADLINE).await.expect("an answer");
    assert!(servers[0].cli(&["SLOWLOG", "GET", "100"]).contains("acequia:{17}:a key"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_is_gone_is_loaded_again_within_the_call() {
    let servers = [Server::start(&[])];
    let redis = opened(scene::shards(&servers)).await;
    for _ in 0..20 {
        servers[0].cli(&["FUNCTION", "FLUSH"]);
        called(&redis, group(1), DEADLINE).await.expect("an answer");
    }
    let libraries = servers[0].cli(&["FUNCTION", "LIST"]);
    assert_eq!(libraries.matches("library_name").count(), 1, "{libraries}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_at_once_each_get_their_own_answer() {
    let servers = [Server::start(&[])];
    let redis = opened(scene::shards(&servers)).await;
    closed_breaker(&redis).await;
    let mut calls = JoinSet::new();
    for number in 0..200 {
        let redis = redis.clone();
        // A call would refuse the answer to another call.
        calls.spawn(async move { called(&redis, group(number), PATIENCE).await });
    }
    let answers = calls.join_all().await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(redis.shards()[0].in_flight, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_calls_than_may_be_in_flight_wait_for_a_place() {
    let servers = [Server::start(&[])];
    let redis = opened(scene::shards(&servers)).await;
    closed_breaker(&redis).await;
    // If the server goes on too late for the waiting call, all is tried again.
    for _ in 0..50 {
        servers[0].hang();
        let mut calls = JoinSet::new();
        let ask = |calls: &mut JoinSet<_>, number| {
            let redis = redis.clone();
            calls.spawn(async move { called(&redis, group(number), PATIENCE).await })
        };
        for number in 0..256 {
            ask(&mut calls, number);
        }
        while redis.shards()[0].in_flight < 256 {
            tokio::task::yield_now().await;
        }
        ask(&mut calls, 256);
        servers[0].go_on();
        let answers = calls.join_all().await;
        assert!(answers.iter().filter(|answer| answer.is_ok()).count() >= 256, "{answers:?}");
        if answers.iter().all(Result::is_ok) {
            return;
        }
    }
    panic!("no call waited for a place");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_flight_are_bounded() {
    let servers = [Server::start(&[])];
    let redis = opened(scene::shards(&servers)).await;
    closed_breaker(&redis).await;
    servers[0].hang();
    let mut calls = JoinSet::new();
    for number in 0..1_000 {
        let redis = redis.clone();
        calls.spawn(async move { called(&redis, group(number), DEADLINE).await });
    }
    let mut not_sent = 0;
    while let Some(answer) = calls.join_next().await {
        let in_flight = redis.shards()[0].in_flight;
        assert!(in_flight <= 256, "{in_flight} were in flight");
        let why = answer.expect("no panic").expect_err("a server that hangs answered");
        not_sent += usize::from(matches!(why, Missed::NotSent(_)));
    }
    // A place is free again after a deadline. By then most of the waiting calls have no time left.
    assert!(not_sent >= 500, "{not_sent} of 1000 were not sent");
    servers[0].go_on();
    serves(&redis, group(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_restarted_is_another_process() {
    let mut servers = [Server::start(&[])];
    let redis = opened(scene::shards(&servers)).await;
    let before = serves(&redis, group(5)).await;
    servers[0].restart();
    let after = serves(&redis, group(5)).await;
    assert_ne!(after, before);
    assert_eq!(after, servers[0].run_id());
}

/// This is the same process in another life. It may have forgotten what only it knew, so it is told a new
/// identity.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_a_replica_meanwhile_gets_a_new_identity() {
    let servers = [Server::start(&[])];
    let other = Server::start(&[]);
    let redis = opened(scene::shards(&servers)).await;
    let told = async || {
        loop {
            let answer = redis.call(group(1), Function::Identity, &["a key"], &[], DEADLINE).await;
            match answer {
                Ok(answer) => return answer[0].text().expect("text").to_owned(),
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let (before, run_id) = (told().await, servers[0].run_id());
    servers[0].cli(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    seen(&redis, group(1), |state| matches!(state, ShardState::Unsafe { why } if why.contains("replica")))
        .await;
    wait_for("the copy", || servers[0].info("master_link_status") == "up");
    servers[0].cli(&["REPLICAOF", "NO", "ONE"]);
    seen(&redis, group(1), |state| *state == ShardState::Open).await;
    let after = told().await;
    assert_eq!(servers[0].run_id(), run_id);
    assert!(before.starts_with(&run_id) && after.starts_with(&run_id));
    assert_ne!(before, after);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_begins_to_evict_is_not_called_any_more() {
    let servers = [Server::start(&[]), Server::start(&[])];
    let settings = scene::shards(&servers);
    // The server is not looked at again before a ping asks for that.
    let timings = Timings { refresh_every: Duration::from_secs(300), ..settings.timings };
    let redis = opened(Settings { timings, ..settings }).await;
    let ours = |number: &u16| {
        redis.shard(group(*number)).is_some_and(|view| view.address.to_string() == servers[0].address())
    };
    let here = (0..Group::COUNT).find(ours).expect("a group of the first server");
    let there = (0..Group::COUNT).find(|number| !ours(number)).expect("a group of the second");
    // The server's memory has no bound, and may get one at any time.
    servers[0].cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let view = seen(&redis, group(here), |state| matches!(state, ShardState::Unsafe { .. })).await;
    assert!(matches!(view.state, ShardState::Unsafe { why } if why.contains("allkeys-lru")));
    let missed = called(&redis, group(here), DEADLINE).await.expect_err("it was called");
    assert!(matches!(missed, Missed::NotSent(_)), "{missed}");
    called(&redis, group(there), DEADLINE).await.expect("the other serves");
    servers[0].cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    serves(&redis, group(here)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_memory_is_full_is_still_called() {
    let servers = [Server::start(&[])];
    let redis = opened(scene::shards(&servers)).await;
    servers[0].cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(servers[0].cli(&["SET", "key", "value"]).starts_with("OOM"));
    // Longer than an untried connection is used.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_500) {
        called(&redis, group(1), DEADLINE).await.expect("an answer");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_counted_by_how_long_it_took() {
    let servers = [Server::start(&[])];
    let redis = opened(scene::shards(&servers)).await;
    let answers = |view: &ShardView| view.round_trips.buckets.iter().sum::<u64>() + view.round_trips.above;
    let before = redis.shards().remove(0);
    assert!(answers(&before) > 0 && before.round_trips.sum_us > 0, "{before:?}");
    for _ in 0..20 {
        called(&redis, group(1), DEADLINE).await.expect("an answer");
    }
    let after = redis.shards().remove(0);
    // Pings count as well.
    assert!(answers(&after) >= answers(&before) + 20, "{before:?} {after:?}");
    assert!(after.round_trips.sum_us > before.round_trips.sum_us, "{before:?} {after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_execution_time_of_functions_is_known_after_two_readings() {
    let servers = [Server::start(&[])];
    let redis = opened(scene::shards(&servers)).await;
    let known = async || {
        let begun = Instant::now();
        loop {
            match redis.shards()[0].function_us {
                0 => assert!(begun.elapsed() < PATIENCE, "{:?}", redis.shards()),
                us => return us,
            }
            called(&redis, group(1), DEADLINE).await.expect("an answer");
            sleep(Duration::from_millis(5)).await;
        }
    };
    let us = known().await;
    assert!(us < 1_000_000, "{us} us");
    servers[0].cli(&["CONFIG", "RESETSTAT"]);
    let us = known().await;
    assert!(us < 1_000_000, "{us} us");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_end_with_the_last_handle() {
    let servers = [Server::start(&[])];
    let redis = opened(scene::shards(&servers)).await;
    let copy = redis.clone();
    drop(redis);
    called(&copy, group(1), DEADLINE).await.expect("an answer");
    drop(copy);
    // The remaining connection asks.
    wait_for("the connections' end", || servers[0].info("connected_clients") == "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_reachable_server_fails_at_once() {
    let mut server = Server::start(&[]);
    server.kill();
    let redis = Redis::open(scene::shards(std::slice::from_ref(&server))).expect("sound settings");
    let begun = Instant::now();
    let missed = called(&redis, group(1), DEADLINE).await.expect_err("nobody is there");
    assert!(matches!(missed, Missed::NotSent(_)), "{missed}");
    assert!(begun.elapsed() < DEADLINE);
    server.restart();
    serves(&redis, group(1)).await;
}

/// Calls until the breaker is closed.
pub(crate) async fn closed_breaker(redis: &Redis) {
    let begun = Instant::now();
    while redis.shards().iter().any(|view| view.breaker != acequia_store::redis::BreakerState::Closed) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", redis.shards());
        let _ = called(redis, group(0), DEADLINE).await;
    }
}
