//! Connections end because of their age, or because their node stops. A stream on such a connection continues
//! elsewhere, and no answer is lost or repeated.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use acequia_client::{BATCHES_IN_FLIGHT_MAX, CheckStream, Client, Options, Question};
use acequia_tests::Node;
use tokio::net::{TcpListener, TcpStream};

use crate::client::metric;

const PATIENT: Options = Options { deadline: Duration::from_secs(20) };
const BATCH: u64 = 10;
const LIMIT: u64 = 100_000_000;

fn node(extra: &str) -> Node {
    Node::start(&format!(
        "{extra}limits: [{{ name: all, domain: shop, fixed_window: {{ limit: {LIMIT}, window: 365d }} }}]\n"
    ))
}

/// Keeps a stream busy with up to `in_flight` batches. Returns how many questions were answered.
async fn ask(stream: &mut CheckStream, in_flight: usize, mut is_done: impl FnMut() -> bool) -> u64 {
    let mut answered = 0;
    loop {
        while stream.in_flight() < in_flight && !is_done() {
            let question = Question::new("shop", [("key", "k1")]);
            stream.send(vec![question; BATCH as usize]).expect("room");
        }
        let Some(answers) = stream.next().await else { return answered };
        let answers = answers.expect("an answer");
        assert!(answers.iter().all(|answer| answer.allowed));
        answered += answers.len() as u64;
        tokio::task::yield_now().await;
    }
}

/// Forwards each new connection to the current target node. Returns the balancer's address.
async fn balancer(first: SocketAddr) -> (String, Arc<Mutex<SocketAddr>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let target = Arc::new(Mutex::new(first));
    let to = Arc::clone(&target);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let to = *to.lock().expect("no panic");
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(to).await else { return };
                // Either side may end the connection.
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (address, target)
}

/// Spent units of the limit's single cell at a node.
async fn spent(address: SocketAddr) -> u64 {
    let client = Client::connect(&address.to_string(), PATIENT).expect("an address");
    let peek = client.peek(Question::new("shop", [("key", "k1")])).await.expect("an answer");
    LIMIT - peek.verdict.expect("a verdict").remaining.expect("a limit")
}

#[tokio::test]
async fn streams_leave_old_connections_and_nothing_is_lost_or_charged_twice() {
    let node = node("max_age: 1s\n");
    let client = Client::connect(&node.grpc().to_string(), PATIENT).expect("an address");
    let old = || metric(&node, "acequia_connections_ended_total", &[("port", "grpc"), ("why", "old")]);
    let mut asked = Vec::new();
    for in_flight in [1, 3, BATCHES_IN_FLIGHT_MAX] {
        let mut stream = client.check_stream().await.expect("a stream");
        let (begun, before) = (Instant::now(), old());
        asked.push(ask(&mut stream, in_flight, || begun.elapsed() > Duration::from_secs(4)).await);
        let ended = old() - before;
        assert!(ended >= 2.0, "{ended} connections ended in 4 s");
    }
    assert_eq!(spent(node.grpc()).await, asked.iter().sum::<u64>(), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_moves_to_another_node_when_its_own_stops() {
    let mut nodes: Vec<Node> = (0..4).map(|_| node("")).collect();
    let (address, target) = balancer(nodes[0].grpc()).await;
    let client = Client::connect(&address, PATIENT).expect("an address");
    let mut stream = client.check_stream().await.expect("a stream");
    let (mut asked, mut counted) = (0, 0);
    for turn in 0..3 {
        let begun = Instant::now();
        asked += ask(&mut stream, 8, || begun.elapsed() > Duration::from_millis(300)).await;
        // From now on only the next node is reached, and this node stops while it is asked.
        counted += spent(nodes[turn].grpc()).await;
        *target.lock().expect("no panic") = nodes[turn + 1].grpc();
        nodes[turn].ask_to_stop();
        let stopping = Instant::now();
        assert!(nodes[turn].wait(Duration::from_secs(20)).is_some_and(|status| status.success()));
        assert!(stopping.elapsed() < Duration::from_secs(5), "open streams do not keep a node from stopping");
    }
    asked += ask(&mut stream, 1, {
        let mut left = 5;
        move || {
            left -= 1;
            left < 0
        }
    })
    .await;
    assert_eq!(counted + spent(nodes[3].grpc()).await, asked);
}

#[tokio::test]
async fn a_stream_that_is_asked_while_its_node_stops_loses_nothing() {
    let (mut first, second) = (node("data: DATA\n"), node(""));
    let (address, target) = balancer(first.grpc()).await;
    let client = Client::connect(&address, PATIENT).expect("an address");
    let mut stream = client.check_stream().await.expect("a stream");
    let begun = Instant::now();
    let mut is_stopping = false;
    let asked = ask(&mut stream, BATCHES_IN_FLIGHT_MAX, || {
        if begun.elapsed() > Duration::from_millis(300) && !std::mem::replace(&mut is_stopping, true) {
            *target.lock().expect("no panic") = second.grpc();
            first.ask_to_stop();
        }
        begun.elapsed() > Duration::from_secs(2)
    })
    .await;
    assert!(first.wait(Duration::from_secs(20)).is_some_and(|status| status.success()));
    first.start_again();
    let spent = [spent(first.grpc()).await, spent(second.grpc()).await];
    assert!(
        spent.iter().all(|units| *units > 0) && spent.iter().sum::<u64>() == asked,
        "{spent:?} of {asked}"
    );
}
