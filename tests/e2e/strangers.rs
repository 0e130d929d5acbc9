//! How much a stranger with a connection can make a node hold, and for how long. Other callers must not
//! notice.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    time::{Duration, Instant},
};

use acequia_api::acequia::v1::{CheckBatch, CheckRequest, Descriptor, Entry};
use acequia_tests::{Node, PATIENCE, acequia, eventually};
use bytes::Bytes;
use prost::Message as _;
use tonic::Code;

use crate::client::{Http, body, framed, metric, raw_connection, raw_reply, raw_request};

const CHECK: &str = "/acequia.v1.Limiter/Check";
const STREAM: &str = "/acequia.v1.Limiter/CheckStream";
const GRPC: &str = "application/grpc";
const MIB: usize = 1 << 20;
/// Within this time most other requests are answered. The attack runs on the same machine.
const SOON: Duration = Duration::from_millis(50);
/// The latest answer to any other request.
const LATE: Duration = Duration::from_millis(500);

fn node(extra: &str) -> Node {
    Node::start(&format!(
        "{extra}limits: [{{ name: all, domain: shop, token_bucket: {{ rate: 1000/s, burst: 1000 }} }}]\n"
    ))
}

/// Sends checks, and asserts that they are answered soon.
fn answers_soon(node: &Node) {
    let mut waits = [Duration::ZERO; 5];
    for wait in &mut waits {
        let begun = Instant::now();
        assert_eq!(Http::connect(node).check(&body(&[("k", "v")])).json()["allowed"], true);
        *wait = begun.elapsed();
    }
    waits.sort_unstable();
    assert!(waits[2] < SOON && waits[4] < LATE, "answered after {waits:?}");
}

/// Sends as much as there is room for now.
async fn send_now(sending: &mut h2::SendStream<Bytes>, mut message: Bytes) {
    while !message.is_empty() {
        sending.reserve_capacity(message.len());
        let room = tokio::time::timeout(
            Duration::from_millis(200),
            std::future::poll_fn(|cx| sending.poll_capacity(cx)),
        );
        let Ok(Some(Ok(room))) = room.await else { return };
        if sending.send_data(message.split_to(room.min(message.len())), false).is_err() {
            return;
        }
    }
}

/// Starts as many calls as a connection allows, each with `bytes` of a message of a MiB.
async fn unfinished(node: &Node, path: &str, calls: usize, bytes: usize) -> Vec<impl Sized> {
    let (client, _ping) = raw_connection(node.grpc()).await;
    let mut held = Vec::new();
    for _ in 0..calls {
        let begun = tokio::time::timeout(PATIENCE, client.clone().ready()).await;
        let Ok(Ok(_)) = begun else { break };
        let (reply, mut sending) = raw_request(client.clone(), path, GRPC).await;
        let mut message = vec![0; 5 + bytes];
        message[..5].copy_from_slice(&[0, 0, 0x10, 0, 0]);
        send_now(&mut sending, message.into()).await;
        held.push((reply, sending, client.clone()));
    }
    held
}

#[tokio::test]
async fn one_connection_makes_a_node_hold_a_few_megabytes() {
    let node = node("");
    answers_soon(&node);
    for (path, bytes) in [(STREAM, 200_000), (CHECK, 200_000), (CHECK, 16_000)] {
        let before = node.resident();
        let held = unfinished(&node, path, 250, bytes).await;
        let more = node.resident().saturating_sub(before);
        assert!(
            more <= 8 * MIB,
            "{} calls of {path} with {bytes} bytes each: {} KiB",
            held.len(),
            more >> 10
        );
        answers_soon(&node);
    }
}

#[tokio::test]
async fn messages_that_are_answered_leave_nothing_behind() {
    let node = node("");
    answers_soon(&node);
    let entry = |value: String| Entry { key: "k".to_owned(), value };
    let descriptor = Descriptor { entries: vec![entry("v".repeat(60_000))], ..Descriptor::default() };
    let check =
        CheckRequest { domain: "shop".to_owned(), descriptors: vec![descriptor], ..CheckRequest::default() };
    let batch = framed(&CheckBatch { checks: vec![check; 16] }.encode_to_vec());
    let (client, _ping) = raw_connection(node.grpc()).await;
    let before = node.resident();
    let mut open = Vec::new();
    for _ in 0..60 {
        let (reply, mut sending) = raw_request(client.clone(), STREAM, GRPC).await;
        send_now(&mut sending, batch.clone()).await;
        let mut incoming =
            tokio::time::timeout(PATIENCE, reply).await.expect("in time").expect("a head").into_body();
        let answer = tokio::time::timeout(PATIENCE, incoming.data()).await.expect("in time");
        assert!(answer.is_some_and(|part| part.is_ok()), "an answer");
        open.push((sending, incoming));
    }
    let more = node.resident().saturating_sub(before);
    assert!(more <= 8 * MIB, "{} quiet streams: {} KiB", open.len(), more >> 10);
    answers_soon(&node);
}

#[tokio::test]
async fn a_connection_has_so_many_streams_and_is_told_when_it_wants_more() {
    let node = node("");
    let (client, _ping) = raw_connection(node.grpc()).await;
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(raw_request(client.clone(), STREAM, GRPC).await);
    }
    let (reply, _sending) = raw_request(client.clone(), STREAM, GRPC).await;
    let reply = raw_reply(reply).await.expect("an answer");
    assert_eq!(reply.code, Some(Code::ResourceExhausted), "{}", reply.message);
    assert!(reply.message.contains("another connection"), "{}", reply.message);
}

#[tokio::test]
async fn a_thousand_connections_make_a_node_hold_a_bounded_amount() {
    let node = node("");
    let before = node.resident();
    let mut held = Vec::new();
    for _ in 0..1_000 {
        held.push(unfinished(&node, CHECK, 20, 15_000).await);
        if held.len() % 100 == 0 {
            answers_soon(&node);
        }
    }
    let more = node.resident().saturating_sub(before);
    assert!(more <= 256 * MIB, "{} MiB", more / MIB);
    assert!(metric(&node, "acequia_connections_ended_total", &[("why", "held")]) > 0.0, "nobody was cut");
}

#[test]
fn silence_on_the_admin_port_stops_nobody() {
    let node = Node::start_whole_with(
        "region: eu\nnode: eu-1\nlisten: { grpc: \"127.0.0.1:0\", http: \"127.0.0.1:0\", admin: \"127.0.0.1:0\" }\n\
         limits: [{ name: all, domain: shop, token_bucket: { rate: 1000/s, burst: 1000 } }]\n",
        &[("DESCRIPTORS", "1024")],
    );
    node.until_it_says("too few descriptors");
    let silent: Vec<_> = (0..1_100).map_while(|_| TcpStream::connect(node.admin()).ok()).collect();
    answers_soon(&node);
    let admin = node.admin().to_string();
    let grpc = node.grpc().to_string();
    let check = acequia(&["check", "--address", &grpc, "--domain", "shop", "k=v"]);
    assert!(check.status.success(), "{check:?}");
    // The connections that have been silent longest make room.
    eventually("an operator is answered", || {
        acequia(&["top", "--json", "--address", &admin]).status.success()
    });
    drop(silent);
}

#[test]
fn idle_connections_make_room_for_others() {
    let node = node("connections: 5\n");
    let mut idle: Vec<_> = (0..5).map(|_| Http::connect(&node)).collect();
    for http in &mut idle {
        assert_eq!(http.get("/healthz").status, 200);
    }
    eventually("another one is answered", || is_answered(node.http()));
    assert!(metric(&node, "acequia_connections_ended_total", &[("port", "http"), ("why", "crowded")]) > 0.0);
}

fn is_answered(http: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(http).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).is_ok_and(|_| answer.starts_with("HTTP/1.1 200"))
}

#[tokio::test]
async fn a_call_whose_caller_has_given_up_charges_nothing() {
    let node = Node::start("limits: [{ name: all, domain: shop, token_bucket: { rate: 1/h, burst: 5 } }]\n");
    let (client, _ping) = raw_connection(node.grpc()).await;
    for _ in 0..10 {
        let request = http::Request::post(format!("http://node{CHECK}"))
            .header("content-type", GRPC)
            .header("te", "trailers")
            .header("grpc-timeout", "1n")
            .body(())
            .expect("a request");
        let (reply, mut sending) = client
            .clone()
            .ready()
            .await
            .expect("a connection")
            .send_request(request, false)
            .expect("a stream");
        // domain: "shop", descriptors: [{ entries: [{ key: "k", value: "v" }] }]
        let message = b"\x0a\x04shop\x12\x08\x0a\x06\x0a\x01k\x12\x01v";
        sending.send_data(framed(message), true).expect("sent");
        assert_eq!(raw_reply(reply).await.expect("an answer").code, Some(Code::DeadlineExceeded));
    }
    let answer = Http::connect(&node).check(&body(&[("k", "v")]));
    assert_eq!(answer.json()["remaining"], 4, "{}", answer.body);
    assert_eq!(metric(&node, "acequia_calls_expired_total", &[]), 10.0);
}

#[test]
fn what_a_node_writes_is_for_its_owner_and_open_secrets_are_warned_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "a-token-of-more-than-sixteen\n").expect("written");
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).expect("set");
    let node = Node::start_whole(&format!(
        "region: eu\nnode: eu-1\nlisten: {{ grpc: \"127.0.0.1:0\", http: \"127.0.0.1:0\", admin: \"127.0.0.1:0\" }}\n\
         data: DATA\nadmin_token: {}\n\
         limits: [{{ name: all, domain: shop, fixed_window: {{ limit: 5, window: 1h }} }}]\n",
        token.display()
    ));
    node.until_it_says("every user of this machine may read this secret");
    let mode = |path: &std::path::Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&node.data()), mode(&node.data().join("journal.redb"))), (0o700, 0o600));

    // Wrong tokens are counted, and logged once a second.
    let admin = node.admin().to_string();
    let wrong = folder.path().join("wrong");
    std::fs::write(&wrong, "another-token-of-sixteen\n").expect("written");
    for file in [Some(&wrong), None] {
        let mut words = vec!["top", "--json", "--address", &admin];
        let file = file.map(|file| file.display().to_string());
        words.extend(file.iter().flat_map(|file| ["--token-file", file]));
        assert_eq!(acequia(&words).status.code(), Some(2));
    }
    node.until_it_says("a caller was turned away");
    assert!(metric(&node, "acequia_callers_refused_total", &[("port", "admin"), ("why", "unknown")]) >= 2.0);
    let right = token.display().to_string();
    let told = acequia(&["top", "--json", "--address", &admin, "--token-file", &right]);
    assert!(told.status.success(), "{told:?}");
}

#[test]
fn a_config_that_is_too_large_is_refused_unread_and_the_old_one_stays() {
    let node = node("");
    let before = node.resident();
    let refused = || metric(&node, "acequia_config_reloads_total", &[("outcome", "refused")]);
    let large = node.config().with_extension("large");
    std::fs::File::create(&large).and_then(|file| file.set_len(1 << 30)).expect("a file with a hole");
    std::fs::rename(&large, node.config()).expect("replaced");
    node.until_it_says("larger than 16777216 bytes");
    assert!(node.resident() < before + 32 * MIB);
    answers_soon(&node);
    assert_eq!(refused(), 1.0, "told once, however often it is looked at");
    node.hup();
    eventually("an order reads it again", || refused() == 2.0);
    assert_eq!(metric(&node, "acequia_config_reloads_total", &[("outcome", "applied")]), 0.0);
}

/// The start of every HTTP/2 connection (RFC 9113, section 3.4), with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `POST /acequia.v1.Limiter/Check` to `n` in HPACK, without indexing beyond the static table.
const CALL: &[u8] = b"\x83\x86\x04\x1c/acequia.v1.Limiter/Check...\x01\x01n";

/// A sequence of frames.
type Frames = Box<dyn Iterator<Item = Vec<u8>>>;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Sends frames without reading, until the frames end, or the node closes the connection or accepts no more.
/// Returns how many bytes were sent.
fn flood(address: SocketAddr, frames: impl Iterator<Item = Vec<u8>>) -> usize {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_write_timeout(Some(Duration::from_secs(2))).expect("set");
    stream.write_all(PREFACE).expect("sent");
    let mut sent = 0;
    let mut batch = Vec::new();
    for frame in frames {
        batch.extend_from_slice(&frame);
        if batch.len() >= 16 << 10 {
            if stream.write_all(&batch).is_err() {
                return sent;
            }
            sent += batch.len();
            batch.clear();
        }
    }
    let _ = stream.write_all(&batch);
    sent + batch.len()
}

#[test]
fn floods_of_frames_are_ended_and_others_are_answered() {
    let node = node("");
    answers_soon(&node);
    let before = node.resident();
    let opened = |stream: u32| frame(HEADERS, END_HEADERS | END_STREAM, stream, CALL);
    let streams = || (0..200_000_u32).map(|n| 2 * n + 1);
    let resets = streams().map(move |n| [opened(n), frame(RST_STREAM, 0, n, &[0, 0, 0, 8])].concat());
    let never_ends = std::iter::once(frame(HEADERS, 0, 1, CALL))
        .chain((0..2_000).map(|_| frame(CONTINUATION, 0, 1, &[0; 16 << 10])));
    let settings = (0..1_000_000).map(|_| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]));
    let pings = (0..1_000_000).map(|_| frame(PING, 0, 0, &[0; 8]));
    let floods: [(&str, Frames); 4] = [
        ("rapid reset", Box::new(resets)),
        ("CONTINUATION", Box::new(never_ends)),
        ("SETTINGS", Box::new(settings)),
        ("PING", Box::new(pings)),
    ];
    for (what, frames) in floods {
        let sent = flood(node.grpc(), frames);
        assert!(what != "CONTINUATION" || sent < 16 * MIB, "{what}: {sent} bytes were taken");
        let more = node.resident().saturating_sub(before);
        assert!(more <= 16 * MIB, "{what}: {} KiB", more >> 10);
        answers_soon(&node);
    }
}

#[tokio::test]
async fn a_small_head_that_unpacks_to_a_large_one_is_refused() {
    let node = node("");
    let before = node.resident();
    // A header of 4000 bytes enters the dynamic table once. Then one byte refers to it, a thousand times.
    let mut block = CALL.to_vec();
    block.extend_from_slice(b"\x40\x01x\x7f\xa1\x1e");
    block.extend_from_slice(&[b'y'; 4_000]);
    block.extend_from_slice(&[0xbe; 1_000]);
    let calls = (0..1_000_u32).map(|n| frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &block));
    flood(node.grpc(), calls);
    let more = node.resident().saturating_sub(before);
    assert!(more <= 16 * MIB, "{} KiB", more >> 10);
    answers_soon(&node);
}

#[test]
fn a_request_whose_end_is_doubtful_is_refused() {
    let node = node("");
    let doubtful = [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "content-length: 4\r\ncontent-length: 5\r\n\r\nabcde",
        "content-length: +4\r\n\r\nabcd",
        "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n0x4\r\nabcd\r\n0\r\n\r\n",
    ];
    for head in doubtful {
        let mut stream = TcpStream::connect(node.http()).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let hidden = "GET /metrics HTTP/1.1\r\nhost: n\r\n\r\n";
        let request = format!("POST /v1/check HTTP/1.1\r\nhost: n\r\n{head}{hidden}");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        // The rest may or may not have been read when the node closed.
        let _ = stream.read_to_string(&mut answer);
        assert!(!answer.contains("HTTP/1.1 200"), "{head:?}: {answer}");
        answers_soon(&node);
    }
}

#[test]
fn a_config_that_unpacks_to_a_large_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("acequia.yaml");
    let mut yaml = "region: eu\nnode: eu-1\nlimits:\n- &a0 { name: x, domain: x }\n".to_owned();
    for level in 1..30 {
        let names = [format!("*a{}", level - 1), format!("*a{}", level - 1)].join(", ");
        yaml += &format!("- &a{level} [{names}]\n");
    }
    std::fs::write(&path, yaml).expect("written");
    let begun = Instant::now();
    let said = acequia(&["validate", &path.display().to_string()]);
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
