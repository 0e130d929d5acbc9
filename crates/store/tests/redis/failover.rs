//! Primaries that die or hang, and their successors.

use std::time::{Duration, Instant};

use acequia_store::redis::{Group, Missed, Redis, ShardState};
use tokio::time::sleep;

use crate::{
    scene::{self, PATIENCE, called, group, opened, serves},
    servers::{Cluster, Sentinel},
};

/// The longest wait of a request in these tests.
const DEADLINE: Duration = Duration::from_millis(30);
/// How much longer a request may take.
const MARGIN: Duration = Duration::from_millis(20);
/// The longest time until a hanging server is noticed.
const HUNG_MAX: Duration = Duration::from_secs(1);

/// The fate of a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Dies,
    Hangs,
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_successor_when_a_cluster_primary_dies() {
    a_primary_of_a_cluster(Fate::Dies).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_successor_when_a_cluster_primary_hangs() {
    a_primary_of_a_cluster(Fate::Hangs).await;
}

async fn a_primary_of_a_cluster(fate: Fate) {
    let mut cluster = Cluster::start();
    let redis = opened(scene::cluster(&cluster)).await;
    let ours = redis.shard(group(0)).expect("a shard").address;
    let others: Vec<Group> =
        Group::all().filter(|group| redis.shard(*group).is_some_and(|view| view.address != ours)).collect();
    let before = serves(&redis, group(0)).await;
    let primary = cluster.node(&ours.to_string());
    match fate {
        Fate::Dies => primary.kill(),
        Fate::Hangs => primary.hang(),
    }
    let (after, story) = survived(&redis, fate, &others).await;
    assert_ne!(after, before);
    assert!(cluster.nodes.iter().any(|node| node.address() != ours.to_string() && node.run_id() == after));
    eprintln!("cluster, a primary that {fate:?}: {story}");

    // The old primary comes back as a replica, and nothing changes.
    let old = cluster.node(&ours.to_string());
    match fate {
        Fate::Dies => old.restart(),
        Fate::Hangs => old.go_on(),
    }
    crate::servers::wait_for("the old primary as a replica", || {
        cluster.node(&ours.to_string()).info("role") == "slave"
    });
    assert_eq!(serves(&redis, group(0)).await, after);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_successor_when_a_sentinel_primary_dies() {
    let mut sentinel = Sentinel::start();
    let redis = opened(scene::sentinel(&sentinel)).await;
    sentinel.primary.kill();
    let (after, story) = survived(&redis, Fate::Dies, &[]).await;
    assert_eq!(after, sentinel.replica.run_id());
    eprintln!("sentinel, a primary that dies: {story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_successor_when_a_sentinel_primary_hangs() {
    let sentinel = Sentinel::start();
    let redis = opened(scene::sentinel(&sentinel)).await;
    sentinel.primary.hang();
    let (after, story) = survived(&redis, Fate::Hangs, &[]).await;
    assert_eq!(after, sentinel.replica.run_id());
    eprintln!("sentinel, a primary that hangs: {story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_are_loaded_again_after_a_failover_that_lost_them() {
    let mut cluster = Cluster::start();
    let redis = opened(scene::cluster(&cluster)).await;
    let ours = redis.shard(group(0)).expect("a shard").address;
    for node in &cluster.nodes {
        node.cli(&["FUNCTION", "FLUSH"]);
    }
    cluster.node(&ours.to_string()).kill();
    let begun = Instant::now();
    while redis.shard(group(0)).is_none_or(|view| view.address == ours) {
        assert!(begun.elapsed() < PATIENCE, "nobody was promoted");
        sleep(Duration::from_millis(20)).await;
    }
    serves(&redis, group(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_successor_after_a_planned_failover() {
    let cluster = Cluster::start();
    let redis = opened(scene::cluster(&cluster)).await;
    let ours = redis.shard(group(0)).expect("a shard").address;
    let before = serves(&redis, group(0)).await;
    let replica = cluster.nodes.iter().find(|node| node.info("master_port") == ours.port.to_string());
    let replica = replica.expect("a replica");
    assert_eq!(replica.cli(&["CLUSTER", "FAILOVER"]), "OK");
    let (begun, mut after) = (Instant::now(), before.clone());
    while after == before {
        assert!(begun.elapsed() < PATIENCE, "nobody was promoted");
        after = serves(&redis, group(0)).await;
    }
    assert_eq!(after, replica.run_id());
    eprintln!("cluster, a planned failover: served by the successor after {:?}", begun.elapsed());
}

/// Calls the first group and the others until the first is served again. Returns who serves it, and the times
/// of the events.
async fn survived(redis: &Redis, fate: Fate, others: &[Group]) -> (String, String) {
    let begun = Instant::now();
    let (mut calls, mut late, mut noticed, mut hung) = (0, 0, None, None);
    let (mut elsewhere, mut missed_elsewhere) = (0, 0);
    let mut turn = others.iter().cycle();
    loop {
        let called_at = Instant::now();
        match called(redis, group(0), DEADLINE).await {
            Ok(after) => {
                let served = begun.elapsed();
                assert!(served < Duration::from_secs(30), "served again only after {served:?}");
                // A busy machine may be late now and then; a call that waits for a server is late each time.
                assert!(late * 10 <= calls, "{late} of {calls} calls came back after their deadline");
                assert!(
                    missed_elsewhere * 50 <= elsewhere,
                    "{missed_elsewhere} of {elsewhere} calls missed elsewhere"
                );
                if fate == Fate::Hangs {
                    let hung = hung.expect("seen to hang");
                    assert!(hung <= HUNG_MAX, "it was seen to hang only after {hung:?}");
                }
                let story = format!(
                    "noticed after {noticed:?}, hung after {hung:?}, served after {served:?}; {calls} missed, {late} late; \
                     elsewhere {missed_elsewhere} of {elsewhere} missed"
                );
                return (after, story);
            }
            Err(missed) => {
                assert!(begun.elapsed() < PATIENCE, "{missed}: {:?}", redis.shards());
                assert!(!matches!(missed, Missed::Refused(_)), "{missed}");
                calls += 1;
                late += u32::from(called_at.elapsed() > DEADLINE + MARGIN);
            }
        }
        let view = redis.shard(group(0)).expect("a shard");
        if view.state != ShardState::Open && noticed.is_none() {
            noticed = Some(begun.elapsed());
        }
        if view.state == ShardState::Hung && hung.is_none() {
            hung = Some(begun.elapsed());
        }
        if let Some(other) = turn.next() {
            elsewhere += 1;
            missed_elsewhere += u32::from(called(redis, *other, scene::DEADLINE).await.is_err());
        }
        sleep(Duration::from_millis(2)).await;
    }
}
