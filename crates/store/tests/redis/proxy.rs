//! A relay between client and server that spoils the traffic.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use acequia_store::redis::{Address, Missed, RedisServers, ShardState};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::timeout,
};

use crate::{
    calls::closed_breaker,
    scene::{self, DEADLINE, called, group, opened, seen, serves},
    servers::Server,
};

/// The relay's mischief.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mischief {
    None,
    /// An extra answer comes, so that each later answer comes to the wrong question.
    Shifts,
    /// Answers are swallowed, and the connection stays open.
    Swallows,
    /// The connection is cut at the answer.
    Cuts,
    /// Answers take this long.
    Slows(Duration),
}

struct Middle {
    address: Address,
    mischief: watch::Sender<Mischief>,
    /// The number of connections so far.
    connections: Arc<AtomicU64>,
}

impl Middle {
    async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = scene::address(&listener.local_addr().expect("an address").to_string());
        let (mischief, wish) = watch::channel(Mischief::None);
        let connections = Arc::new(AtomicU64::new(0));
        let (count, to) = (Arc::clone(&connections), server.address());
        tokio::spawn(async move {
            while let Ok((ours, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let theirs = TcpStream::connect(&to).await.expect("the server");
                let ((from_us, to_us), (from_them, to_them)) = (ours.into_split(), theirs.into_split());
                tokio::spawn(pass(from_us, to_them, None));
                tokio::spawn(pass(from_them, to_us, Some(wish.clone())));
            }
        });
        Self { address, mischief, connections }
    }
}

/// Passes bytes on, and does mischief to answers. An extra answer is sent once a connection.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, wish: Option<watch::Receiver<Mischief>>) {
    let mut bytes = vec![0; 65_536];
    let mut is_shifted = false;
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        match wish.as_ref().map_or(Mischief::None, |wish| *wish.borrow()) {
            Mischief::Shifts if !is_shifted => {
                is_shifted = true;
                let _ = to.write_all(b"*2\r\n$1\r\n0\r\n:7\r\n").await;
            }
            Mischief::Swallows => continue,
            Mischief::Cuts => return,
            Mischief::Slows(delay) => tokio::time::sleep(delay).await,
            Mischief::None | Mischief::Shifts => {}
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_never_reaches_another_call() {
    let server = Server::start(&[]);
    let middle = Middle::before(&server).await;
    let redis =
        opened(scene::settings(RedisServers::Shards { addresses: vec![middle.address.clone()] })).await;
    let before = middle.connections.load(Ordering::Relaxed);
    middle.mischief.send_replace(Mischief::Shifts);
    // Each call has its own answer or none, and the connections are given up.
    while middle.connections.load(Ordering::Relaxed) < before + 2 {
        if let Ok(run_id) = called(&redis, group(1), DEADLINE).await {
            assert_eq!(run_id, server.run_id());
        }
    }
    middle.mischief.send_replace(Mischief::None);
    assert_eq!(serves(&redis, group(1)).await, server.run_id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_a_cut_connection_has_an_unknown_result() {
    let server = Server::start(&[]);
    let middle = Middle::before(&server).await;
    let redis =
        opened(scene::settings(RedisServers::Shards { addresses: vec![middle.address.clone()] })).await;
    middle.mischief.send_replace(Mischief::Cuts);
    let begun = Instant::now();
    let mut unknown = false;
    while !unknown && begun.elapsed() < Duration::from_secs(1) {
        match called(&redis, group(1), scene::PATIENCE).await {
            Err(Missed::Unknown(_)) => unknown = true,
            Err(Missed::NotSent(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    // A ping may have been cut first; then calls find no connection.
    seen(&redis, group(1), |state| matches!(state, ShardState::Lost { .. })).await;
    middle.mischief.send_replace(Mischief::None);
    serves(&redis, group(1)).await;
}

/// A call that is given up before its deadline says nothing about the server: other calls wait longer, and
/// are answered.
#[tokio::test(flavor = "multi_thread")]
async fn calls_given_up_early_do_not_mark_a_slow_server_as_lost() {
    let server = Server::start(&[]);
    let middle = Middle::before(&server).await;
    let redis =
        opened(scene::settings(RedisServers::Shards { addresses: vec![middle.address.clone()] })).await;
    closed_breaker(&redis).await;
    middle.mischief.send_replace(Mischief::Slows(Duration::from_millis(30)));
    for _ in 0..30 {
        let left = timeout(Duration::from_millis(3), called(&redis, group(1), DEADLINE)).await;
        assert!(left.is_err(), "{left:?}");
    }
    assert_eq!(called(&redis, group(1), scene::PATIENCE).await, Ok(server.run_id()));
    assert_eq!(redis.shards()[0].in_flight, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_answers_are_lost_is_shown_as_hung() {
    let server = Server::start(&[]);
    let middle = Middle::before(&server).await;
    let redis =
        opened(scene::settings(RedisServers::Shards { addresses: vec![middle.address.clone()] })).await;
    middle.mischief.send_replace(Mischief::Swallows);
    let missed = called(&redis, group(1), Duration::from_millis(20)).await.expect_err("it was swallowed");
    assert!(matches!(missed, Missed::Unknown(_)), "{missed}");
    seen(&redis, group(1), |state| *state == ShardState::Hung).await;
    middle.mischief.send_replace(Mischief::None);
    serves(&redis, group(1)).await;
}
