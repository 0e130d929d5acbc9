//! Servers that forget a part of what was spent, and look as if they had forgotten nothing.

use std::time::{Duration, Instant};

use acequia_store::{
    pools::{CallAnswer, RedisPools},
    redis::{Settings, Timings},
};
use tokio::time::sleep;

use crate::{
    pools::{START_US, ask, ask_at, begun},
    scene::{PATIENCE, opened, shards},
    servers::{Server, wait_for},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_that_was_deleted_is_unknown_and_so_is_its_group() {
    let servers = [Server::start(&[])];
    let redis = RedisPools::new(opened(shards(&servers)).await, 0);
    let generation = begun(&redis, START_US).await;
    let later = START_US + 1_000_000;
    assert!(matches!(ask(&redis, generation, 1, later).await, CallAnswer::Done(got) if got.part.units == 10));
    let cell = servers[0].cli(&["--raw", "KEYS", "*:b"]);
    assert_eq!(servers[0].cli(&["DEL", &cell]), "1", "the cell, {cell}");
    // Once the loss is noticed, the group is unknown for calls about any cell.
    for call in 2..4 {
        let unknown = ask(&redis, generation, call, later).await;
        assert!(matches!(unknown, CallAnswer::Unknown(known) if known.generation.number == 0), "{unknown:?}");
    }
    let again = begun(&redis, later).await;
    let empty = ask(&redis, again, 4, later + 1).await;
    assert!(matches!(empty, CallAnswer::Done(got) if got.part.units == 0), "{empty:?}");
    let full = ask(&redis, again, 5, later + 1_000_000).await;
    assert!(matches!(full, CallAnswer::Done(got) if got.part.units == 10), "{full:?}");
}

/// Any key of a group may be evicted or deleted. As long as the group's record is there, missing cells are
/// noticed.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_whose_keys_are_deleted_is_unknown_or_wholly_owed() {
    let servers = [Server::start(&[])];
    let redis = RedisPools::new(opened(shards(&servers)).await, 0);
    let mut generation = begun(&redis, START_US).await;
    let (mut call, mut later) = (0, START_US);
    for lost in [&["*:b", "*:due"][..], &["*:due", "*:b"], &["*:b"], &["*:due"]] {
        // A bucket of ten a second fills.
        (call, later) = (call + 1, later + 10_000_000);
        let whole = ask(&redis, generation, call, later).await;
        assert!(matches!(whole, CallAnswer::Done(got) if got.part.units == 10), "{whole:?}");
        for pattern in lost {
            let key = servers[0].cli(&["--raw", "KEYS", pattern]);
            assert_eq!(servers[0].cli(&["DEL", key.trim()]).trim(), "1", "{pattern}: {key}");
        }
        call += 1;
        let after = ask(&redis, generation, call, later).await;
        if lost.contains(&"*:b") {
            assert!(matches!(after, CallAnswer::Unknown(_)), "{lost:?}: {after:?}");
            generation = begun(&redis, later).await;
        } else {
            // The cell is there, and says what was spent.
            assert!(matches!(after, CallAnswer::Done(got) if got.owed == got.part.units), "{after:?}");
        }
    }
}

/// The process and the connection are the same, and no look happens meanwhile. The group's record comes back
/// with the copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_copied_its_successors_state_grants_nothing() {
    let (ours, successor) = (Server::start(&[]), Server::start(&[]));
    let timings = Timings {
        ping_every: Duration::from_secs(10),
        refresh_every: Duration::from_secs(300),
        ..Timings::default()
    };
    let copies = |from: &Server, to: &Server| {
        to.cli(&["REPLICAOF", "127.0.0.1", &from.port().to_string()]);
        wait_for("the copy", || to.info("master_link_status") == "up");
    };
    // A history begins with its first copy.
    copies(&ours, &successor);
    let servers = [ours];
    let settings = Settings { timings, ..shards(&servers) };
    let redis = RedisPools::new(opened(settings).await, 0);
    let [ours] = &servers;
    let generation = begun(&redis, START_US).await;
    let later = START_US + 1_000_000;
    // The successor does not hear of the last withdrawal.
    assert!(matches!(ask_at(&redis, "before", generation, 1, later).await, Ok(CallAnswer::Done(_))));
    wait_for("what was spent before", || successor.cli(&["DBSIZE"]) == "3");
    successor.cli(&["REPLICAOF", "NO", "ONE"]);
    let spent = ask(&redis, generation, 2, later).await;
    assert!(matches!(spent, CallAnswer::Done(got) if got.part.units == 10), "{spent:?}");
    copies(&successor, ours);
    ours.cli(&["REPLICAOF", "NO", "ONE"]);
    let (run_id, is_primary) = (ours.run_id(), ours.info("role") == "master");
    assert!(is_primary && ours.cli(&["DBSIZE"]) == "3", "{run_id} has the group still");
    // The call is refused. Later calls use connections that know the server's new identity, which has no
    // known group.
    let first = ask_at(&redis, "b", generation, 3, later).await;
    assert!(first.is_err(), "{first:?}");
    let (begun, mut answer) = (Instant::now(), first);
    while answer.is_err() {
        assert!(begun.elapsed() < PATIENCE, "{answer:?}");
        sleep(Duration::from_millis(5)).await;
        answer = ask_at(&redis, "b", generation, 3, later).await;
    }
    assert!(matches!(&answer, Ok(CallAnswer::Unknown(known)) if known.generation.number == 0), "{answer:?}");
    assert_eq!(ours.run_id(), run_id);
}
