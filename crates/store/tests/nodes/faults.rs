//! Failures of a cluster under load.

use std::{
    process::{Command, Stdio},
    sync::atomic::Ordering,
    time::Duration,
};

use tokio::time::sleep;

use crate::{ALONE, Fleet, LITTLE, goes_on_for, servers::Cluster, survives, survives_for};

/// The primary of the first group, by its place among the cluster's nodes.
fn primary_of(fleet: &Fleet) -> usize {
    fleet.cluster.primaries()[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_limit_is_exceeded_when_a_primary_is_killed() {
    survives("a primary is killed", async |fleet| {
        let primary = primary_of(fleet);
        fleet.cluster.nodes[primary].kill();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_limit_is_exceeded_when_a_primary_and_a_node_die_together() {
    survives("a primary and a node die", async |fleet| {
        let primary = primary_of(fleet);
        fleet.cluster.nodes[primary].kill();
        fleet.crash(0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_limit_is_exceeded_while_wall_clocks_differ_within_their_bound() {
    let lasts = Duration::from_secs(6);
    survives_for(lasts, "walls are set", async |fleet| {
        // The wall moves to and fro by 9 ms, of the 10 ms that are promised, sometimes at the edges of
        // windows.
        for number in 0..60 {
            for (place, sign) in fleet.places.iter().zip([1, -1, 0]) {
                let sign = if number % 2 == 0 { sign } else { -sign };
                place.clock.ahead_ns.store(sign * 9_000_000, Ordering::Relaxed);
            }
            sleep(lasts / 60).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_limit_is_exceeded_while_server_clocks_are_set() {
    let _alone = ALONE.lock().await;
    let fleet = Fleet::start_on(Cluster::with_walls(), 3).await;
    let lasts = Duration::from_secs(6);
    goes_on_for(fleet, lasts, "servers' walls are set", async |fleet| {
        // The servers' walls move to and fro by hours, each at another time.
        let steps = [3_600, -7_200, 1, 86_400, -1, 0];
        for number in 0..24 {
            let server = &fleet.cluster.nodes[number % 6];
            let set = steps[(number / 6 + number) % 6];
            server.set_wall(set);
            let seconds: u64 =
                server.cli(&["--raw", "TIME"]).lines().next().expect("a time").parse().expect("seconds");
            let ahead = i128::from(seconds) - i128::from(fleet.clock.now().wall_ns / 1_000_000_000);
            assert!((ahead - i128::from(set)).abs() <= 1, "its wall is {ahead} s ahead, and not {set}");
            sleep(lasts / 24).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_are_not_granted_again_after_all_keys_are_deleted() {
    survives("FLUSHALL", async |fleet| {
        for primary in fleet.cluster.primaries() {
            fleet.cluster.nodes[primary].cli(&["FLUSHALL"]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_functions_are_loaded_again_under_load() {
    survives("FUNCTION FLUSH", async |fleet| {
        for primary in fleet.cluster.primaries() {
            fleet.cluster.nodes[primary].cli(&["FUNCTION", "FLUSH"]);
            fleet.cluster.nodes[primary].cli(&["SCRIPT", "FLUSH"]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_are_not_granted_again_after_all_servers_restart() {
    survives("all servers start anew", async |fleet| {
        fleet.cluster.nodes.iter_mut().for_each(crate::servers::Server::kill);
        fleet.cluster.nodes.iter_mut().for_each(crate::servers::Server::restart);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_limit_is_exceeded_when_a_stale_replica_takes_over() {
    survives("a replica takes over, with the link to its primary cut", async |fleet| {
        let primary = primary_of(fleet);
        let port = fleet.cluster.nodes[primary].port().to_string();
        let replica = fleet.cluster.nodes.iter().position(|node| node.info("master_port") == port);
        let replica = replica.expect("a replica");
        // The replica hears nothing of its primary for a while, and the primary goes on. Then the replica
        // takes over by itself.
        fleet.cluster.nodes[replica].hang();
        sleep(Duration::from_millis(600)).await;
        let take_over = Command::new("redis-cli")
            .args(["-p", &fleet.cluster.nodes[replica].port().to_string(), "CLUSTER", "FAILOVER", "TAKEOVER"])
            .stdout(Stdio::null())
            .spawn();
        fleet.cluster.nodes[primary].hang();
        fleet.cluster.nodes[replica].go_on();
        take_over.expect("redis-cli").wait().expect("an end");
        fleet.cluster.nodes[primary].go_on();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_limit_is_exceeded_when_a_primary_hangs_for_long() {
    let lasts = Duration::from_secs(20);
    survives_for(lasts, "a primary hangs for 20 s", async |fleet| {
        let primary = primary_of(fleet);
        fleet.cluster.nodes[primary].hang();
        sleep(lasts).await;
        fleet.cluster.nodes[primary].go_on();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_low_demand_few_requests_are_denied_in_a_minute_without_servers() {
    let _alone = ALONE.lock().await;
    let mut fleet = Fleet::start(3).await;
    fleet.load(LITTLE, Duration::from_secs(20)).await.expect("callers");
    fleet.cluster.nodes.iter_mut().for_each(crate::servers::Server::kill);
    let fared = fleet.load(LITTLE, Duration::from_secs(60)).await.expect("callers");
    let (asked, denied) = (fared.took.len(), fared.denied);
    eprintln!("a minute without servers: {denied} of {asked} denied, p99 {:?}", fared.p99());
    fleet.judge();
    assert!(asked >= 11_000, "only {asked} were asked");
    assert!(denied * 100 <= asked as u64, "{denied} of {asked} denied");
    assert!(fared.is_in_time(), "{:?}, of nobody {:?}", fared.p99(), fared.nobody_p99());
}
