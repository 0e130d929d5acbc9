//! Frames between nodes that behave well.

use std::collections::BTreeSet;

use crate::scene::{self, Node, certificates, config, identity, pair, peer, socket};
use acequia_mesh::{Event, FRAME_BYTES_MAX, MeshError, NotSent, certs};

#[tokio::test]
async fn two_nodes_send_each_other_frames() {
    let folder = certificates(&["ap", "eu"]);
    let (mut ap, mut eu) = pair(folder.path()).await;
    ap.send("eu", b"from ap".to_vec()).await;
    eu.send("ap", Vec::new()).await;
    assert_eq!(eu.expect_frame("ap").await, b"from ap");
    assert_eq!(ap.expect_frame("eu").await, b"");

    ap.until("acknowledged", |mesh| mesh.status()[0].frames_out == 1).await;
    let status = ap.mesh.status();
    assert_eq!(status.len(), 1);
    assert!(status[0].connected && status[0].last_error.is_empty());
    assert_eq!((status[0].bytes_out, status[0].frames_in, status[0].bytes_in), (7, 1, 0));
    assert!(status[0].rtt.as_micros() > 0);
    assert_eq!((ap.mesh.refused().total(), eu.mesh.refused().total()), (0, 0));
}

#[tokio::test]
async fn three_nodes_have_one_connection_per_pair() {
    let names = ["ap", "eu", "us"];
    let folder = certificates(&names);
    let sockets = names.map(|_| socket());
    let addresses: Vec<_> = sockets.iter().map(|socket| socket.local_addr().expect("bound")).collect();
    let mut nodes = Vec::new();
    for (name, socket) in names.into_iter().zip(sockets) {
        let others = names.into_iter().zip(&addresses).filter(|(other, _)| *other != name);
        let peers = others.map(|(other, address)| peer(other, *address)).collect();
        nodes.push(Node::start(config(folder.path(), name, peers), socket));
    }
    for (place, name) in names.into_iter().enumerate() {
        let others: Vec<_> = names.into_iter().filter(|other| *other != name).collect();
        for other in &others {
            nodes[place]
                .until("connected", |mesh| {
                    mesh.status().iter().any(|peer| peer.identity == identity(other) && peer.connected)
                })
                .await;
            nodes[place].send(other, name.into()).await;
        }
    }
    for (place, name) in names.into_iter().enumerate() {
        let mut seen = BTreeSet::new();
        for _ in 0..4 {
            match nodes[place].next().await {
                Event::Up(peer) => assert!(seen.insert((peer.region, "up"))),
                Event::Frame { from, bytes } => {
                    assert_eq!(bytes, from.region.as_bytes());
                    assert!(seen.contains(&(from.region.clone(), "up")), "a frame before Up");
                    assert!(seen.insert((from.region, "frame")));
                }
                event @ Event::Down { .. } => panic!("{event:?}"),
            }
        }
        assert_eq!(seen.len(), 4, "{name}: {seen:?}");
    }
}

#[tokio::test]
async fn the_longest_frame_arrives_whole_and_a_longer_one_is_not_sent() {
    let folder = certificates(&["ap", "eu"]);
    let (ap, mut eu) = pair(folder.path()).await;
    let longest: Vec<u8> = (0..FRAME_BYTES_MAX).map(|place| (place % 251) as u8).collect();
    for _ in 0..3 {
        ap.send("eu", longest.clone()).await;
        assert!(eu.expect_frame("ap").await == longest);
    }
    let too_long = vec![0; FRAME_BYTES_MAX + 1];
    assert_eq!(ap.mesh.send(&identity("eu"), too_long), Err(NotSent::TooLong));
}

#[tokio::test]
async fn a_frame_beyond_the_bound_under_way_is_not_sent() {
    let folder = certificates(&["ap", "eu"]);
    let (ap, mut eu) = pair(folder.path()).await;
    let to = identity("eu");
    // Nothing is awaited here, so nothing can be acknowledged.
    assert!(ap.mesh.is_writable(&to));
    for number in 0..16 {
        assert_eq!(ap.mesh.send(&to, vec![number]), Ok(()));
    }
    assert!(!ap.mesh.is_writable(&to));
    assert_eq!(ap.mesh.send(&to, vec![16]), Err(NotSent::Full));

    let mut came = BTreeSet::new();
    for _ in 0..16 {
        came.insert(eu.expect_frame("ap").await[0]);
    }
    assert_eq!(came, (0..16).collect());
    ap.until("room again", |mesh| mesh.is_writable(&to)).await;

    assert_eq!(ap.mesh.send(&to, vec![0; 1 << 20]), Ok(()));
    assert_eq!(ap.mesh.send(&to, vec![0]), Err(NotSent::Full));
}

#[tokio::test]
async fn a_node_that_takes_no_events_slows_its_peer_and_loses_no_frame() {
    let folder = certificates(&["ap", "eu"]);
    let (ap, mut eu) = pair(folder.path()).await;
    let to = identity("eu");
    let mut sent = 0u32;
    let mut full_for = 0;
    // A peer can take only the frames in flight, in the windows and in the queue of events.
    while full_for < 200 {
        let mut frame = vec![0; 40_000];
        frame[..4].copy_from_slice(&sent.to_be_bytes());
        match ap.mesh.send(&to, frame) {
            Ok(()) => (sent, full_for) = (sent + 1, 0),
            Err(NotSent::Full) => full_for += 1,
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        assert!(sent < 2000, "the peer is never stopped");
    }
    let mut came = BTreeSet::new();
    for _ in 0..sent {
        let frame = eu.expect_frame("ap").await;
        came.insert(u32::from_be_bytes(frame[..4].try_into().expect("four bytes")));
    }
    assert_eq!(came, (0..sent).collect());
}

#[tokio::test]
async fn without_a_connection_no_frame_is_sent() {
    let folder = certificates(&["ap", "eu"]);
    let nowhere = socket().local_addr().expect("bound");
    let ap = Node::start(config(folder.path(), "ap", vec![peer("eu", nowhere)]), socket());
    for name in ["eu", "us"] {
        assert_eq!(ap.mesh.send(&identity(name), vec![1]), Err(NotSent::NotConnected));
        assert!(!ap.mesh.is_writable(&identity(name)));
    }
    ap.until("an error", |mesh| mesh.status()[0].last_error.contains("no answer from")).await;
}

#[tokio::test]
async fn a_peer_is_found_by_name() {
    let folder = certificates(&["ap", "eu"]);
    let (ap_socket, eu_socket) = (socket(), socket());
    let mut by_name = peer("eu", eu_socket.local_addr().expect("bound"));
    by_name.address = by_name.address.replace("127.0.0.1", "localhost");
    let ap_at = ap_socket.local_addr().expect("bound");
    let mut ap = Node::start(config(folder.path(), "ap", vec![by_name]), ap_socket);
    let _eu = Node::start(config(folder.path(), "eu", vec![peer("ap", ap_at)]), eu_socket);
    ap.expect_up("eu").await;
}

#[tokio::test]
async fn a_goodbye_is_noticed_at_once_and_closes_the_socket() {
    let folder = certificates(&["ap", "eu"]);
    let (mut ap, mut eu) = pair(folder.path()).await;
    eu.mesh.close().await;
    assert_eq!(ap.expect_down("eu").await, "it said goodbye");
    assert_eq!(eu.events.recv().await, None);
    assert_eq!(ap.mesh.send(&identity("eu"), vec![1]), Err(NotSent::NotConnected));

    let address = eu.mesh.local_addr();
    drop(eu);
    let free = async {
        while std::net::UdpSocket::bind(address).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(scene::PATIENCE, free).await.expect("the socket is closed");
}

#[tokio::test]
async fn new_certificates_are_used_by_new_connections() {
    let folder = certificates(&["ap", "eu"]);
    let (mut ap, mut eu) = pair(folder.path()).await;

    // A new authority: a node that shows or trusts the old one can no longer connect.
    let renewed = certificates(&["ap", "eu"]);
    let load = |name| certs::load(renewed.path(), &identity(name)).expect("credentials");
    eu.mesh.replace_credentials(&load("eu")).expect("replaced");
    ap.send("eu", b"still there".to_vec()).await;
    assert_eq!(eu.expect_frame("ap").await, b"still there");

    // The connection ends with the node. Only the new certificates allow another connection.
    let address = eu.mesh.local_addr();
    eu.mesh.close().await;
    drop(eu);
    ap.expect_down("eu").await;
    let ap_at = ap.mesh.local_addr();
    let socket = rebind(address).await;
    let mut eu = Node::start(config(renewed.path(), "eu", vec![peer("ap", ap_at)]), socket);
    ap.until("refused", |mesh| mesh.status()[0].refused > 0).await;
    assert!(!ap.mesh.status()[0].connected);
    ap.mesh.replace_credentials(&load("ap")).expect("replaced");
    ap.expect_up("eu").await;
    eu.expect_up("ap").await;

    let wrong = ap.mesh.replace_credentials(&load("eu"));
    assert!(matches!(wrong, Err(MeshError::WrongName { .. })), "{wrong:?}");
}

async fn rebind(address: std::net::SocketAddr) -> std::net::UdpSocket {
    let bound = async {
        loop {
            match std::net::UdpSocket::bind(address) {
                Ok(socket) => return socket,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(scene::PATIENCE, bound).await.expect("the socket is closed")
}

#[tokio::test]
async fn peers_that_contradict_each_other_are_refused() {
    let folder = certificates(&["ap", "eu"]);
    let at = socket().local_addr().expect("bound");
    let start = |name, peers| {
        let fault = acequia_mesh::Mesh::start(config(folder.path(), name, peers), socket());
        fault.err().map(|fault| fault.to_string())
    };
    assert!(start("ap", vec![peer("ap", at)]).is_some_and(|fault| fault.contains("itself")));
    assert!(start("ap", vec![peer("eu", at), peer("eu", at)]).is_some_and(|fault| fault.contains("twice")));

    let mut other = config(folder.path(), "ap", vec![]);
    other.identity = identity("eu");
    let fault = acequia_mesh::Mesh::start(other, socket()).err();
    assert!(matches!(fault, Some(MeshError::WrongName { .. })), "{fault:?}");
}
