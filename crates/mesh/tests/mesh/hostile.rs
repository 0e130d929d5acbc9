//! A peer that breaks the rules is stopped, and a good peer does not notice.

use std::{net::SocketAddr, time::Duration};

use crate::mask::{Mask, begin, closed, frame, write};
use crate::scene::{Node, PATIENCE, certificates, config, identity, pair, peer, socket};
use acequia_mesh::{Config, FRAME_BYTES_MAX, Mesh, MeshRefusal, certs};
use quinn::{Connection, ConnectionError, VarInt};
use tokio::time::timeout;

/// The application's code with which a connection was closed.
fn code(error: &ConnectionError) -> Option<u64> {
    match error {
        ConnectionError::ApplicationClosed(close) => Some(close.error_code.into()),
        _ => None,
    }
}

/// `ap` and `eu`, which behave well, and room for a third node, `am`, which dials `eu`.
struct Scene {
    folder: tempfile::TempDir,
    ap: Node,
    eu: Node,
    at: SocketAddr,
}

impl Scene {
    async fn new() -> Self {
        Self::with(impatient).await
    }

    async fn with(timing: fn(Config) -> Config) -> Self {
        let folder = certificates(&["am", "ap", "eu", "us", "zz"]);
        let (ap_socket, eu_socket) = (socket(), socket());
        let (ap_at, at) = (ap_socket.local_addr().expect("bound"), eu_socket.local_addr().expect("bound"));
        let nowhere = socket().local_addr().expect("bound");
        let mut ap = Node::start(config(folder.path(), "ap", vec![peer("eu", at)]), ap_socket);
        let peers = vec![peer("ap", ap_at), peer("am", nowhere), peer("us", nowhere)];
        let mut eu = Node::start(timing(config(folder.path(), "eu", peers)), eu_socket);
        ap.expect_up("eu").await;
        eu.expect_up("ap").await;
        Self { folder, ap, eu, at }
    }

    /// A peer with a good certificate that has said a good hello.
    async fn insider(&mut self) -> Connection {
        let connection = Mask::of(self.folder.path(), "am-1").connect(self.at).await.expect("let in");
        write(&connection, &[1]).await;
        self.eu.expect_up("am").await;
        connection
    }

    async fn until_refused(&self, refusal: MeshRefusal, count: u64) {
        self.eu.until(refusal.name(), |mesh| mesh.refused().of(refusal) >= count).await;
        assert_eq!(self.eu.mesh.refused().of(refusal), count);
    }

    async fn expect_good_peer(&mut self) {
        self.ap.send("eu", b"good".to_vec()).await;
        assert_eq!(self.eu.expect_frame("ap").await, b"good");
        assert!(self.eu.mesh.status().iter().any(|peer| peer.identity == identity("ap") && peer.connected));
        assert!(self.eu.events.is_empty(), "nothing else happened");
    }
}

/// Shortens the waits for things that do not come.
fn impatient(mut config: Config) -> Config {
    config.timing.frame = Duration::from_millis(300);
    config
}

#[tokio::test]
async fn a_peer_without_a_valid_certificate_is_refused() {
    let mut scene = Scene::new().await;
    // A node of another authority shows a certificate of its own, and trusts this node's authority.
    let other = certificates(&["am"]);
    std::fs::copy(scene.folder.path().join("ca.pem"), other.path().join("ca.pem")).expect("copied");
    let error = Mask::of(other.path(), "am-1").refused(scene.at).await;
    assert!(error.to_string().contains("certificate"), "{error}");
    scene.until_refused(MeshRefusal::Handshake, 1).await;

    let error = Mask { node: None, ..Mask::of(scene.folder.path(), "am-1") }.refused(scene.at).await;
    assert!(error.to_string().contains("certificate"), "{error}");
    scene.until_refused(MeshRefusal::Handshake, 2).await;

    let error = Mask { protocol: b"h3", ..Mask::of(scene.folder.path(), "am-1") }.refused(scene.at).await;
    assert!(error.to_string().contains("protocol"), "{error}");
    scene.until_refused(MeshRefusal::Handshake, 3).await;
    scene.expect_good_peer().await;
}

#[tokio::test]
async fn a_peer_with_the_wrong_name_is_told_the_reason() {
    let mut scene = Scene::new().await;
    for (node, refusal) in [
        ("zz-1", MeshRefusal::Stranger),
        ("eu-1", MeshRefusal::OwnName),
        ("us-1", MeshRefusal::WrongDirection),
    ] {
        let error = Mask::of(scene.folder.path(), node).refused(scene.at).await;
        assert_eq!(code(&error), Some(16 + refusal as u64), "{node}: {error}");
        scene.until_refused(refusal, 1).await;
    }
    scene.expect_good_peer().await;
}

#[tokio::test]
async fn a_dialler_that_reaches_another_node_disconnects() {
    let folder = certificates(&["ap", "eu", "us"]);
    let (_ap, eu) = pair(folder.path()).await;
    // By its configuration, `us` is at the address of `eu`.
    let at = eu.mesh.local_addr();
    let aa = Node::start(config(folder.path(), "ap", vec![peer("us", at)]), socket());
    aa.until("refused", |mesh| mesh.refused().of(MeshRefusal::WrongPeer) > 0).await;
    aa.until("told", |mesh| mesh.status()[0].last_error.contains("us/us-1 expected")).await;
    assert!(!aa.mesh.status()[0].connected);
}

#[tokio::test]
async fn a_peer_without_a_valid_hello_is_never_up() {
    let mut scene = Scene::new().await;
    let folder = scene.folder.path().to_owned();
    let mask = Mask::of(&folder, "am-1");
    for (place, hello) in [&[2u8][..], &[], &[1; 100]].into_iter().enumerate() {
        let connection = mask.connect(scene.at).await.expect("a handshake");
        write(&connection, hello).await;
        assert_eq!(code(&closed(&connection).await), Some(16 + MeshRefusal::Hello as u64));
        scene.until_refused(MeshRefusal::Hello, place as u64 + 1).await;
    }
    let silent = mask.connect(scene.at).await.expect("a handshake");
    closed(&silent).await;
    scene.until_refused(MeshRefusal::Unfinished, 1).await;
    scene.expect_good_peer().await;
}

#[tokio::test]
async fn frames_that_break_the_rules_are_refused_and_counted() {
    let mut scene = Scene::new().await;
    let insider = scene.insider().await;
    let long = FRAME_BYTES_MAX + 1;

    let announced_too_long = begin(&insider, &frame(long, b"")).await;
    scene.until_refused(MeshRefusal::FrameTooLong, 1).await;
    let stopped = timeout(PATIENCE, announced_too_long.stopped()).await.expect("in time");
    assert_eq!(stopped.expect("connected"), Some(VarInt::from_u32(16 + MeshRefusal::FrameTooLong as u32)));
    let _longer_than_it_says = begin(&insider, &frame(3, b"four")).await;
    scene.until_refused(MeshRefusal::FrameTooLong, 2).await;

    for (place, bytes) in [&frame(5, b"four")[..], b"abc", b""].into_iter().enumerate() {
        write(&insider, bytes).await;
        scene.until_refused(MeshRefusal::FrameCutShort, place as u64 + 1).await;
    }
    let mut taken_back = begin(&insider, &frame(5, b"four")).await;
    taken_back.reset(VarInt::from_u32(9)).expect("reset");
    scene.until_refused(MeshRefusal::FrameCutShort, 4).await;

    let _stalled = begin(&insider, &frame(5, b"four")).await;
    scene.until_refused(MeshRefusal::FrameStalled, 1).await;

    // The insider is still a peer, and its good frames still arrive.
    write(&insider, &frame(4, b"four")).await;
    assert_eq!(scene.eu.expect_frame("am").await, b"four");
    scene.expect_good_peer().await;

    // One more bad frame is one too many.
    write(&insider, b"").await;
    assert_eq!(code(&closed(&insider).await), Some(16 + MeshRefusal::Misbehaved as u64));
    let why = scene.eu.expect_down("am").await;
    assert!(why.contains("refused"), "{why}");
    scene.until_refused(MeshRefusal::Misbehaved, 1).await;
    let of_am = scene.eu.mesh.status().into_iter().find(|peer| peer.identity == identity("am"));
    assert_eq!(of_am.map(|peer| (peer.refused, peer.frames_in)), Some((9, 1)));
    scene.expect_good_peer().await;
}

#[tokio::test]
async fn an_endless_stream_ends() {
    let mut scene = Scene::new().await;
    let insider = scene.insider().await;
    let mut stream = begin(&insider, &frame(FRAME_BYTES_MAX, b"")).await;
    let endless = async { while stream.write_all(&[0; 65_536]).await.is_ok() {} };
    timeout(PATIENCE, endless).await.expect("stopped in time");
    let refused = scene.eu.mesh.refused();
    // The frame may also have been too slow for the time limit here.
    assert_eq!(
        refused.of(MeshRefusal::FrameTooLong) + refused.of(MeshRefusal::FrameStalled),
        1,
        "{refused:?}"
    );
    scene.expect_good_peer().await;
}

#[tokio::test]
async fn a_peer_has_at_most_thirty_two_open_streams() {
    let mut scene = Scene::new().await;
    let insider = scene.insider().await;
    let mut open = Vec::new();
    while open.len() < 1000 {
        match timeout(Duration::from_millis(100), insider.open_uni()).await {
            Ok(stream) => open.push(stream.expect("a stream")),
            Err(_) => break,
        }
    }
    assert!((31..=33).contains(&open.len()), "{}", open.len());
    scene.expect_good_peer().await;

    // Each frame is begun and none is finished: that is enough to end the connection.
    for stream in &mut open {
        if stream.write_all(&frame(9, b"x")).await.is_err() {
            break;
        }
    }
    assert_eq!(code(&closed(&insider).await), Some(16 + MeshRefusal::Misbehaved as u64));
    scene.eu.expect_down("am").await;
    scene.expect_good_peer().await;

    // Thousands of frames that follow the rules are fine.
    let insider = scene.insider().await;
    let sending = async {
        for number in 0..3000u32 {
            write(&insider, &frame(4, &number.to_be_bytes())).await;
        }
    };
    let Node { events, .. } = &mut scene.eu;
    let receiving = async {
        for _ in 0..3000 {
            timeout(PATIENCE, events.recv()).await.expect("in time").expect("a frame");
        }
    };
    tokio::join!(sending, receiving);
    scene.expect_good_peer().await;
}

#[tokio::test]
async fn two_way_streams_and_datagrams_are_refused() {
    let mut scene = Scene::new().await;
    let insider = scene.insider().await;
    assert!(timeout(Duration::from_millis(100), insider.open_bi()).await.is_err());
    assert_eq!(insider.max_datagram_size(), None);
    assert!(insider.send_datagram(b"x".to_vec().into()).is_err());
    scene.expect_good_peer().await;
}

#[tokio::test]
async fn more_unfinished_frames_than_any_node_sends_are_refused() {
    // A frame has as much time as in service, so that none is refused for being late.
    let mut scene = Scene::with(|config| config).await;
    let insider = scene.insider().await;
    // All are begun before the first of them is long.
    let mut begun = Vec::new();
    for _ in 0..8 {
        begun.push(begin(&insider, &frame(FRAME_BYTES_MAX, b"x")).await);
    }
    // All but the last byte of each. Four frames of 4 MiB and a bit are more than may be held.
    let almost = vec![0; FRAME_BYTES_MAX - 2];
    let floods = begun.iter_mut().map(|stream| stream.write_all(&almost));
    let written = timeout(PATIENCE, futures::future::join_all(floods)).await.expect("an end in time");
    scene.eu.until("refused", |mesh| mesh.refused().total() > 0).await;
    let refused = scene.eu.mesh.refused();
    assert!((1..=5).contains(&refused.of(MeshRefusal::FramesTooMany)), "{refused:?}");
    assert_eq!(refused.total(), refused.of(MeshRefusal::FramesTooMany), "{refused:?}");

    // Only the surplus frames are refused: the others can end, and the connection goes on.
    let mut ended = 0;
    for (stream, written) in begun.iter_mut().zip(written) {
        if written.is_ok() && stream.write_all(b"x").await.is_ok() && stream.finish().is_ok() {
            ended += u64::from(matches!(timeout(PATIENCE, stream.stopped()).await, Ok(Ok(None))));
        }
    }
    for _ in 0..ended {
        assert_eq!(scene.eu.expect_frame("am").await.len(), FRAME_BYTES_MAX);
    }
    let refused = scene.eu.mesh.refused();
    assert_eq!((ended + refused.total(), refused.total()), (8, refused.of(MeshRefusal::FramesTooMany)));
    write(&insider, &frame(4, b"four")).await;
    assert_eq!(scene.eu.expect_frame("am").await, b"four");
    scene.expect_good_peer().await;
}

#[tokio::test]
async fn random_packets_do_not_disturb_a_good_peer() {
    let mut scene = Scene::new().await;
    let attacker = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    for length in [0usize, 1, 20, 21, 100, 1200, 9000] {
        for first in [0x00u8, 0x40, 0x7f, 0xc0, 0xff] {
            let mut packet: Vec<u8> = (0..length).map(|place| (place * 31) as u8).collect();
            if let Some(byte) = packet.first_mut() {
                *byte = first;
            }
            attacker.send_to(&packet, scene.at).await.expect("sent");
        }
    }
    scene.expect_good_peer().await;
}

#[tokio::test]
async fn a_crowd_of_unfinished_connections_keeps_no_peer_out_for_long() {
    let mut scene = Scene::new().await;
    let folder = scene.folder.path().to_owned();
    let mut crowd = Vec::new();
    for _ in 0..100 {
        let endpoint = Mask::of(&folder, "am-1").endpoint();
        let connecting = endpoint.connect(scene.at, certs::SERVER_NAME).expect("a dial");
        crowd.push(tokio::spawn(async move {
            // Shakes hands, and never says hello.
            let connection = connecting.await;
            tokio::time::sleep(PATIENCE).await;
            drop((endpoint, connection));
        }));
    }
    scene.eu.until("crowded", |mesh| mesh.refused().of(MeshRefusal::Crowded) > 0).await;
    scene.expect_good_peer().await;
    let insider = async {
        loop {
            let connection = Mask::of(&folder, "am-1").connect(scene.at).await;
            if let Ok(connection) = connection {
                return connection;
            }
        }
    };
    let insider = timeout(PATIENCE, insider).await.expect("room in time");
    write(&insider, &[1]).await;
    scene.eu.expect_up("am").await;
    for one in crowd {
        one.abort();
    }
}

/// The form of a packet that asks for a proof of the address: RFC 9000 section 17.2.5.
const RETRY: u8 = 0xF0;

#[tokio::test]
async fn a_repeated_first_packet_in_a_crowd_gets_few_answers() {
    let mut scene = Scene::new().await;
    let folder = scene.folder.path().to_owned();
    let first_packet = async || {
        let dialled = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let address = dialled.local_addr().expect("bound");
        let endpoint = Mask::of(&folder, "am-1").endpoint();
        let connecting = endpoint.connect(address, certs::SERVER_NAME).expect("a dial");
        let mut packet = vec![0; 2_000];
        let (length, _) = dialled.recv_from(&mut packet).await.expect("a first packet");
        packet.truncate(length);
        drop(connecting);
        packet
    };
    let attacker = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let mut answer = vec![0; 2_000];
    // Diallers that do not go on.
    let asked = loop {
        let packet = first_packet().await;
        attacker.send_to(&packet, scene.at).await.expect("sent");
        let (length, _) = attacker.recv_from(&mut answer).await.expect("an answer");
        assert!(length > 0);
        if answer[0] & RETRY == RETRY {
            break packet;
        }
    };
    // The last dialler repeats its packet, as a closing one does after any answer.
    for _ in 0..100 {
        attacker.send_to(&asked, scene.at).await.expect("sent");
    }
    let other = first_packet().await;
    // A newer dialler is asked after that, so all earlier answers have arrived.
    attacker.send_to(&other, scene.at).await.expect("sent");
    // The ID that a first packet gives its sender, and the ID that an answer is for (RFC 9000 section
    // 17.2).
    let own_id = |packet: &[u8]| {
        let own = 6 + usize::from(packet[5]);
        packet[own + 1..own + 1 + usize::from(packet[own])].to_vec()
    };
    let mut retries = 0;
    loop {
        let is_retry = answer[0] & RETRY == RETRY;
        let to = is_retry.then(|| answer[6..6 + usize::from(answer[5])].to_vec());
        if to.as_deref() == Some(&own_id(&other)) {
            break;
        }
        // The answer read before may be for an earlier packet.
        retries += usize::from(to.as_deref() == Some(&own_id(&asked)));
        let came = timeout(PATIENCE, attacker.recv_from(&mut answer)).await.expect("in time");
        assert!(came.expect("an answer").0 > 6);
    }
    assert!((1..=2).contains(&retries), "{retries} of 101");
    scene.expect_good_peer().await;
}

#[tokio::test]
async fn dropping_a_mesh_closes_its_connections() {
    let mut scene = Scene::new().await;
    let insider = scene.insider().await;
    let Node { mesh, mut events } = scene.eu;
    drop::<Mesh>(mesh);
    assert_eq!(code(&closed(&insider).await), Some(0));
    let end = async { while events.recv().await.is_some() {} };
    timeout(PATIENCE, end).await.expect("no more events");
}
