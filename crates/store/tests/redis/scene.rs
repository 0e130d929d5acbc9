//! Helpers that the tests share.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use acequia_store::redis::{
    Address, Function, Group, Missed, Redis, RedisServers, Settings, ShardState, ShardView, Timings, Value,
};
use tokio::time::sleep;

use crate::servers::{Cluster, Sentinel, Server};

/// Long enough for a call on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_millis(500);
/// A longer wait for anything else ends the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn address(text: &str) -> Address {
    text.parse().expect("an address")
}

pub(crate) fn group(number: u16) -> Group {
    Group::new(number).expect("a group")
}

/// The usual settings, with patience for a busy machine where no time is promised.
pub(crate) fn settings(place: RedisServers) -> Settings {
    let timings = Timings {
        connect_timeout: Duration::from_secs(1),
        refresh_every: Duration::from_millis(500),
        ..Timings::default()
    };
    Settings { timings, seed: 7, ..Settings::new(place) }
}

pub(crate) fn shards(servers: &[Server]) -> Settings {
    settings(RedisServers::Shards {
        addresses: servers.iter().map(|server| address(&server.address())).collect(),
    })
}

pub(crate) fn cluster(cluster: &Cluster) -> Settings {
    // Only two of the six are named: the client must find the others.
    let seeds = cluster.nodes.iter().take(2).map(|node| address(&node.address())).collect();
    settings(RedisServers::Cluster { seeds })
}

pub(crate) fn sentinel(sentinel: &Sentinel) -> Settings {
    let hosts = vec![address(&sentinel.sentinel.address())];
    settings(RedisServers::Sentinel { hosts, shards: vec![Sentinel::NAME.to_owned()], credentials: None })
}

/// Opens a Redis, and waits until every group has an answer.
pub(crate) async fn opened(settings: Settings) -> Redis {
    let redis = Redis::open(settings).expect("sound settings");
    for number in (0..Group::COUNT).step_by(32) {
        serves(&redis, group(number)).await;
    }
    redis
}

/// Makes one call with a key of its group. Returns the identity of the process that answered, with its life
/// as a primary.
pub(crate) async fn called(redis: &Redis, group: Group, deadline: Duration) -> Result<String, Missed> {
    let answer = redis.call(group, Function::Identity, &["a key"], &[], deadline).await?;
    assert_eq!(answer.get(3).and_then(Value::text), Some("master"));
    let told = answer[0].text().expect("text").to_owned();
    Ok(told.split('.').next().expect("a run id").to_owned())
}

/// Calls until there is an answer.
pub(crate) async fn serves(redis: &Redis, group: Group) -> String {
    let begun = Instant::now();
    loop {
        match called(redis, group, DEADLINE).await {
            Ok(run_id) => return run_id,
            Err(missed) if begun.elapsed() > PATIENCE => panic!("{missed}: {:?}", redis.shards()),
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Waits until the shard of a group is in a state.
pub(crate) async fn seen(redis: &Redis, group: Group, is_so: impl Fn(&ShardState) -> bool) -> ShardView {
    let begun = Instant::now();
    loop {
        match redis.shard(group) {
            Some(view) if is_so(&view.state) => return view,
            view if begun.elapsed() > PATIENCE => panic!("it is {view:?}"),
            _ => sleep(Duration::from_millis(5)).await,
        }
    }
}

/// The processes that answer for some of the groups.
pub(crate) async fn run_ids(redis: &Redis) -> BTreeSet<String> {
    let mut run_ids = BTreeSet::new();
    for number in (0..Group::COUNT).step_by(16) {
        run_ids.insert(serves(redis, group(number)).await);
    }
    run_ids
}
