//! Input that no well-behaved caller sends, and callers that send nothing. Afterwards the node answers as
//! before, and nothing was charged.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use acequia_api::{
    acequia::v1::{CheckBatch, CheckRequest, Entry, Reason, limiter_client::LimiterClient},
    envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code as EnvoyCode},
};
use acequia_tests::{Node, PATIENCE};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream;
use prost::Message as _;
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    client::{
        Http, body, channel, check, check_cost, framed, metric, raw_call, raw_connection, raw_reply,
        raw_request,
    },
    grpc::{descriptor, question},
    windows,
};

const CHECK: &str = "/acequia.v1.Limiter/Check";
const PEEK: &str = "/acequia.v1.Limiter/Peek";
const STREAM: &str = "/acequia.v1.Limiter/CheckStream";
const ENVOY: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GRPC: &str = "application/grpc";

/// The length of a value that is one byte too long.
const TOO_LONG: usize = (64 << 10) + 1;
const MEGABYTE: usize = 1 << 20;

/// A node with a limit for all requests of the domain, and one by key.
fn node() -> Node {
    Node::start(&format!(
        "data: DATA\n\
         limits:\n\
         - {{ name: everything, domain: shop, fixed_window: {{ limit: 1000, window: {} }} }}\n\
         - {{ name: per-key, domain: shop, by: [api_key], token_bucket: {{ rate: 1/h, burst: 5 }} }}\n",
        windows::long()
    ))
}

/// Asserts that the node answers, and that nothing was ever charged.
#[track_caller]
fn unharmed(node: &Node, after: &str) {
    assert_eq!(Http::connect(node).get("/healthz").status, 200, "after {after}");
    // A cost above the limit charges nothing, and the answer shows what is left.
    let denied = check_cost(node, &[("api_key", "k")], 1_001);
    for (limit, left) in [(0, 1_000), (1, 5)] {
        assert_eq!(denied["limits"][limit]["remaining"], left, "charged by {after}: {denied}");
    }
}

#[test]
fn a_check_in_json_says_what_is_wrong() {
    let node = node();
    let with = |descriptors: &str| format!(r#"{{ "domain": "shop", "descriptors": {descriptors} }}"#);
    let costing =
        |cost: &str| format!(r#"{{ "domain": "shop", "descriptors": [{{ "k": "v" }}], "cost": {cost} }}"#);
    let long = "x".repeat(TOO_LONG);
    let faults = [
        // Invalid JSON, or no object.
        ("{".to_owned(), "EOF"),
        ("null".to_owned(), "check"),
        ("[]".to_owned(), "check"),
        (format!("{} {}", body(&[("k", "v")]), body(&[("k", "v")])), "trailing"),
        ("[".repeat(100_000), "check"),
        // Fields.
        ("{}".to_owned(), "domain"),
        (r#"{ "domain": "shop" }"#.to_owned(), "descriptors"),
        (r#"{ "domain": 7, "descriptors": [] }"#.to_owned(), "string"),
        (r#"{ "domain": "shop", "domain": "bank", "descriptors": [{ "k": "v" }] }"#.to_owned(), "duplicate"),
        (r#"{ "domain": "shop", "descriptors": [{ "k": "v" }], "hits": 3 }"#.to_owned(), "hits"),
        (r#"{ "domain": "", "descriptors": [{ "k": "v" }] }"#.to_owned(), "domain is empty"),
        // Descriptors.
        (with("[]"), "no descriptors"),
        (with("{}"), "sequence"),
        (with("[{}]"), "no entries"),
        (with("[[]]"), "no entries"),
        (with(r#"[{ "k": "v" }, {}]"#), "descriptor 1"),
        (with(r#"[[["k"]]]"#), "length"),
        (with(r#"[[["k", "v", "w"]]]"#), ""),
        (with(r#"["k"]"#), "pairs"),
        (with(r#"[{ "k": null }]"#), "a value is"),
        (with(r#"[{ "k": ["v"] }]"#), "a value is"),
        (with(r#"[{ "": "v" }]"#), "empty key"),
        (with(r#"[{ "k": "\u0000" }]"#), "0x00"),
        (with(r#"[{ "k": "\u001b[2J" }]"#), "0x1b"),
        (with(r#"[{ "k\u007f": "v" }]"#), "0x7f"),
        (with(&format!(r#"[{{ "k": "{long}" }}]"#)), "65537 bytes"),
        (with(&format!(r#"[{{ "{long}": "v" }}]"#)), "65537 bytes"),
        (with(&format!("[{}]", vec![r#"{ "k": "v" }"#; 65].join(", "))), "65 descriptors"),
        // Costs.
        (costing("0"), "cost of 0"),
        (costing("-1"), "-1"),
        (costing("1.5"), "1.5"),
        (costing("\"1\""), "u64"),
        (costing("18446744073709551616"), "u64"),
        (costing("1e999"), "number"),
    ];
    let mut http = Http::connect(&node);
    let count = faults.len() as f64;
    for (sent, word) in faults {
        let refused = http.check(&sent);
        let sent = &sent[..sent.len().min(200)];
        assert_eq!(refused.status, 400, "{sent}: {}", refused.body);
        let said: Value = serde_json::from_str(&refused.body).expect("JSON");
        let said = said["error"].as_str().expect("text");
        assert!(said.contains(word), "{sent}: {said}");
        unharmed(&node, sent);
    }
    assert_eq!(metric(&node, "acequia_bad_requests_total", &[]), count);
    // Text that is not UTF-8.
    http.send(b"POST /v1/check HTTP/1.1\r\nhost: n\r\ncontent-length: 3\r\n\r\n\"\xff\"")
        .expect("it is open");
    assert_eq!(http.reply(false).expect("an answer").status, 400);
    unharmed(&node, "bytes that are no text");
}

#[test]
fn a_body_that_is_too_large_is_not_read_to_its_end() {
    let node = node();
    let mut http = Http::connect(&node);
    let head = format!("POST /v1/check HTTP/1.1\r\nhost: n\r\ncontent-length: {}\r\n\r\n", 64 * MEGABYTE);
    http.send(head.as_bytes()).expect("it is open");
    http.send(&vec![b' '; MEGABYTE + 1]).expect("it is open");
    let status = http.reply(false).expect("an answer").status;
    assert!([400, 413].contains(&status), "{status}");
    unharmed(&node, "a large body");
    // The longest allowed value.
    let longest = "x".repeat(TOO_LONG - 1);
    assert_eq!(check(&node, &[("api_key", &longest)])["remaining"], 4);
}

#[tokio::test]
async fn a_descriptor_has_at_most_64_entries_in_every_protocol() {
    let node = node();
    let keys: Vec<String> = (0..65).map(|key| format!("key-{key}")).collect();
    let entries: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "v")).collect();

    let message = framed(&question(&entries).encode_to_vec());
    let refused = raw_call(&node, CHECK, GRPC, message.clone()).await;
    assert_eq!(refused.code, Some(Code::InvalidArgument));
    too_large_for_envoy(&node, message, "65 entries").await;
    unharmed(&node, "65 entries over gRPC");

    let query: Vec<String> = keys.iter().map(|key| format!("{key}=v")).collect();
    let path = format!("/v1/authz?domain=shop&{}", query.join("&"));
    let statuses =
        (Http::connect(&node).check(&body(&entries)).status, Http::connect(&node).get(&path).status);
    assert_eq!(statuses, (400, 400));
    unharmed(&node, "65 entries over HTTP");
}

#[tokio::test]
async fn a_request_that_makes_no_sense_is_the_callers_error() {
    let node = node();
    let mut limiter = LimiterClient::new(channel(&node).await);
    let good = question(&[("api_key", "k")]);
    let with = |entries: &[(&str, &str)]| question(entries);
    let long = "x".repeat(MEGABYTE - 100);
    let mut empty_second = good.clone();
    empty_second.descriptors.push(descriptor(&[]));
    let mut free_second = good.clone();
    free_second.descriptors[0].cost = Some(0);
    for (request, word) in [
        (CheckRequest { domain: String::new(), ..good.clone() }, "domain is empty"),
        (CheckRequest { descriptors: Vec::new(), ..good.clone() }, "no descriptors"),
        (with(&[]), "no entries"),
        (empty_second, "descriptor 1 has no entries"),
        (with(&[("", "v")]), "empty key"),
        (with(&[("api_key", "a\nb")]), "0x0a"),
        (with(&[("api_key", "\0")]), "0x00"),
        (with(&[("api_key", &long)]), "bytes: at most 65536"),
        (CheckRequest { cost: Some(0), ..good.clone() }, "cost of 0"),
        (free_second, "cost of 0"),
        (CheckRequest { descriptors: vec![descriptor(&[("k", "v")]); 65], ..good.clone() }, "at most 64"),
    ] {
        for answer in
            [limiter.check(request.clone()).await.map(drop), limiter.peek(request.clone()).await.map(drop)]
        {
            let status = answer.expect_err(word);
            assert_eq!(status.code(), Code::InvalidArgument, "{word}: {status}");
            assert!(status.message().contains(word), "{word}: {status}");
        }
        let message = framed(&request.encode_to_vec());
        match word {
            // In Envoy's protocol a cost of 0 has a meaning. All other cases are equal on the wire.
            "cost of 0" => {}
            "bytes: at most 65536" | "at most 64" => too_large_for_envoy(&node, message, word).await,
            // Bytes that a client's header may contain are counted.
            "0x0a" | "0x00" => continue,
            _ => {
                let raw = raw_call(&node, ENVOY, GRPC, message).await;
                assert_eq!(raw.code, Some(Code::InvalidArgument), "{word}: {raw:?}");
            }
        }
        unharmed(&node, word);
    }
}

/// A node's answer to Envoy, which must be no error: an error would let the request pass.
async fn answer_to_envoy(node: &Node, message: Bytes) -> RateLimitResponse {
    let reply = raw_call(node, ENVOY, GRPC, message).await;
    assert_eq!(reply.code, Some(Code::Ok), "{reply:?}");
    RateLimitResponse::decode(&reply.body[5..]).expect("a response")
}

async fn too_large_for_envoy(node: &Node, message: Bytes, what: &str) {
    let answer = answer_to_envoy(node, message).await;
    assert_eq!(answer.overall_code(), EnvoyCode::OverLimit, "{what}");
    let said = format!("{:?}", answer.dynamic_metadata.expect("it says why").fields["reason"]);
    assert!(said.contains("too-large"), "{what}: {said}");
}

/// For example, an attacker may send `/q?user=%01`.
#[tokio::test]
async fn whatever_bytes_a_client_chooses_are_counted_for_envoy() {
    let node = node();
    for value in [&b"\x01"[..], b"a\nb", b"\0", b"\x7f\x1b[2J", b"\xff\xfe", b"caf\xc3", b""] {
        let mut entry = BytesMut::new();
        prost::encoding::string::encode(1, &"api_key".to_owned(), &mut entry);
        prost::encoding::bytes::encode(2, &value.to_vec(), &mut entry);
        let mut descriptor = BytesMut::new();
        prost::encoding::bytes::encode(1, &entry.to_vec(), &mut descriptor);
        let mut message = BytesMut::new();
        prost::encoding::string::encode(1, &"shop".to_owned(), &mut message);
        prost::encoding::bytes::encode(2, &descriptor.to_vec(), &mut message);
        let mut codes = Vec::new();
        for _ in 0..6 {
            codes.push(answer_to_envoy(&node, framed(&message)).await.overall_code());
        }
        let (passed, denied) = codes.split_at(5);
        assert_eq!((passed, denied), (&[EnvoyCode::Ok; 5][..], &[EnvoyCode::OverLimit][..]), "{value:?}");
    }
    // Displayed values are escaped.
    let shown = Http::connect(&node).get("/metrics").body;
    assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown}");
}

#[tokio::test]
async fn a_cost_above_the_burst_is_denied_for_good_and_charges_nothing() {
    let node = node();
    let mut limiter = LimiterClient::new(channel(&node).await);
    for cost in [6, 1_001, 1 << 53, (1 << 53) + 1, u64::MAX - 1, u64::MAX] {
        let request = CheckRequest { cost: Some(cost), ..question(&[("api_key", "k")]) };
        let denied = limiter.check(request).await.expect("an answer").into_inner();
        assert_eq!((denied.allowed, denied.reason()), (false, Reason::CostTooHigh), "{cost}");
        assert_eq!((denied.retry_after_ms, denied.limits.len()), (None, 2), "{cost}");

        let over_http = check_cost(&node, &[("api_key", "k")], cost);
        assert_eq!((&over_http["allowed"], &over_http["reason"]), (&json!(false), &json!("cost-too-high")));

        // The sum of two costs must not wrap around, either.
        let mut twice = question(&[("api_key", "k")]);
        twice.descriptors.push(descriptor(&[("api_key", "k"), ("other", "x")]));
        twice.descriptors.iter_mut().for_each(|descriptor| descriptor.cost = Some(cost));
        let denied = limiter.check(twice).await.expect("an answer").into_inner();
        assert_eq!((denied.allowed, denied.reason()), (false, Reason::CostTooHigh), "{cost}");

        let mut envoy = crate::envoy::request(&[&[("api_key", "k")], &[("api_key", "k"), ("other", "x")]]);
        envoy.descriptors.iter_mut().for_each(|descriptor| descriptor.hits_addend = Some(cost));
        assert_eq!(crate::envoy::ask(&node, envoy).await.overall_code(), EnvoyCode::OverLimit, "{cost}");
        unharmed(&node, "a cost that is too high");
    }
}

#[tokio::test]
async fn malformed_messages_are_refused() {
    let node = node();
    let good = question(&[("api_key", "k"), ("route", "/search")]).encode_to_vec();
    let mut faults: Vec<(String, Vec<u8>)> =
        (0..good.len()).map(|end| (format!("cut after {end} bytes"), good[..end].to_vec())).collect();
    let tail = |bytes: &[u8]| [&good, bytes].concat();
    for (what, bytes) in [
        ("garbage", vec![0xff; 40]),
        ("text", b"domain: shop".to_vec()),
        ("JSON", body(&[("api_key", "k")]).into_bytes()),
        ("a domain that is a number", tail(&[0x08, 0x01])),
        ("a descriptor that is a number", tail(&[0x10, 0x01])),
        ("a descriptor of four bytes", tail(&[0x15, 1, 2, 3, 4])),
        ("a cost that is text", tail(&[0x1a, 0x01, b'7'])),
        ("a field 0", tail(&[0x00, 0x00])),
        ("a group", tail(&[0x2b, 0x2c])),
        ("a wire type 7", tail(&[0x2f])),
        ("a number of eleven bytes", tail(&[&[0x18][..], &[0xff; 10], &[0x01]].concat())),
        ("a length beyond the end", tail(&[0x2a, 0x7f])),
        ("a length of 2^63", tail(&[&[0x2a][..], &[0xff; 8], &[0x7f]].concat())),
        ("an entry beyond its descriptor", tail(&[0x12, 0x02, 0x0a, 0x7f])),
    ] {
        faults.push((what.to_owned(), bytes));
    }
    let count = faults.len();
    for (what, message) in &faults {
        for path in [CHECK, PEEK, ENVOY] {
            let refused = raw_call(&node, path, GRPC, framed(message)).await;
            assert_eq!(refused.code, Some(Code::InvalidArgument), "{what} to {path}: {refused:?}");
            assert!(!refused.message.is_empty(), "{what} to {path}");
        }
        let mut batch = BytesMut::new();
        prost::encoding::bytes::encode(1, message, &mut batch);
        let refused = raw_call(&node, STREAM, GRPC, framed(&batch)).await;
        assert_eq!(refused.code, Some(Code::InvalidArgument), "{what} in a stream: {refused:?}");
        unharmed(&node, what);
    }
    let counted = metric(&node, "acequia_bad_requests_total", &[]);
    assert_eq!(counted, (4 * count) as f64, "operators see them: every refused request is counted");
}

#[tokio::test]
async fn malformed_frames_are_refused() {
    let node = node();
    let good = question(&[("api_key", "k")]).encode_to_vec();
    let frame = |compressed: u8, length: u32, message: &[u8]| {
        let mut frame = BytesMut::new();
        frame.put_u8(compressed);
        frame.put_u32(length);
        frame.put_slice(message);
        frame.freeze()
    };
    let length = good.len() as u32;
    let twice = [framed(&good), framed(&good)].concat();
    let unary = [
        ("nothing", Bytes::new(), Code::InvalidArgument),
        ("half a prefix", Bytes::from_static(&[0, 0, 0]), Code::InvalidArgument),
        ("a compressed message", frame(1, length, &good), Code::Unimplemented),
        ("an unknown flag", frame(7, length, &good), Code::Unimplemented),
        ("less than it says", frame(0, length + 1, &good), Code::InvalidArgument),
        ("more than it says", frame(0, length - 1, &good), Code::InvalidArgument),
        ("two messages", Bytes::from(twice), Code::InvalidArgument),
        ("a length of 4 GiB", frame(0, u32::MAX, &good), Code::ResourceExhausted),
        ("more than a megabyte", framed(&vec![0; MEGABYTE + 1]), Code::ResourceExhausted),
        ("eight megabytes", framed(&vec![0; 8 * MEGABYTE]), Code::ResourceExhausted),
    ];
    for (what, bytes, code) in unary {
        for path in [CHECK, PEEK, ENVOY] {
            if path == ENVOY && code == Code::ResourceExhausted {
                too_large_for_envoy(&node, bytes.clone(), what).await;
            } else {
                let refused = raw_call(&node, path, GRPC, bytes.clone()).await;
                assert_eq!(refused.code, Some(code), "{what} to {path}: {refused:?}");
            }
            unharmed(&node, what);
        }
    }
    let batch = CheckBatch { checks: vec![question(&[("other", "k")])] }.encode_to_vec();
    let streams = [
        ("the end of a message", framed(&batch).slice(..9), Code::InvalidArgument),
        ("a compressed message", frame(1, 3, b"abc"), Code::Unimplemented),
        ("a length of 4 GiB", frame(0, u32::MAX, b"abc"), Code::ResourceExhausted),
    ];
    for (what, bytes, code) in streams {
        let refused = raw_call(&node, STREAM, GRPC, bytes).await;
        assert_eq!(refused.code, Some(code), "{what} in a stream: {refused:?}");
        unharmed(&node, what);
    }
}

#[tokio::test]
async fn calls_of_unknown_methods_or_content_types_are_refused() {
    let node = node();
    let message = framed(&question(&[("api_key", "k")]).encode_to_vec());
    for path in [CHECK, PEEK, ENVOY, STREAM] {
        for kind in ["text/plain", "application/json", "application/x-protobuf"] {
            let refused = raw_call(&node, path, kind, message.clone()).await;
            assert_eq!(refused.http_status, 415, "{kind} to {path}");
        }
    }
    for path in ["/acequia.v1.Limiter/Chek", "/acequia.v1.Admin/Budget", "/", "/metrics"] {
        let refused = raw_call(&node, path, GRPC, message.clone()).await;
        assert_eq!(refused.code, Some(Code::Unimplemented), "{path}: {refused:?}");
    }
    unharmed(&node, "calls that are none");
}

#[test]
fn bytes_that_are_no_request_end_a_connection_and_nothing_else() {
    let node = node();
    let long_line = [b"GET /", &[b'x'; 600_000][..]].concat();
    let many_headers = [b"GET /healthz HTTP/1.1\r\n", &b"a: b\r\n".repeat(5_000)[..], b"\r\n"].concat();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let large_frame = [&preface[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat();
    let data_of_no_stream =
        [&preface[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0], &[0, 0, 1, 0, 0, 0, 0, 0, 1, 7]].concat();
    let cases: [(&str, &[u8]); 9] = [
        ("zeros", &[0; 64]),
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 0123456789abcdef"),
        ("a line that never ends", &long_line),
        ("thousands of headers", &many_headers),
        ("a length that is none", b"POST /v1/check HTTP/1.1\r\nhost: n\r\ncontent-length: -5\r\n\r\n"),
        (
            "a chunk that is none",
            b"POST /v1/check HTTP/1.1\r\nhost: n\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ),
        ("a frame that is too large", &large_frame),
        ("data of no stream", &data_of_no_stream),
        ("a space", b"GET / x HTTP/1.1\r\n\r\n"),
    ];
    for (what, bytes) in cases {
        for address in [node.http(), node.grpc()] {
            let mut stream = TcpStream::connect(address).expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("an option is set");
            // The node may close the connection before everything is sent.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let ended = stream.read_to_end(&mut answer);
            let timed_out = ended.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
            assert!(!timed_out, "{what} at {address} leaves the connection open");
            assert!(!answer.starts_with(b"HTTP/1.1 200"), "{what} at {address}");
            unharmed(&node, what);
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_limited_like_any_other() {
    let node = node();
    // Text in protobuf must be UTF-8, but a request's header need not be.
    let mut entry = Entry { key: "api_key".to_owned(), value: String::new() }.encode_to_vec();
    entry.extend([0x12, 0x03, 0xff, 0xfe, b'x']);
    let mut one = BytesMut::new();
    prost::encoding::bytes::encode(1, &entry, &mut one);
    let mut message = BytesMut::new();
    prost::encoding::string::encode(1, &"shop".to_owned(), &mut message);
    prost::encoding::bytes::encode(2, &one.to_vec(), &mut message);
    for turn in 1..=6 {
        let reply = raw_call(&node, ENVOY, GRPC, framed(&message)).await;
        assert_eq!(reply.code, Some(Code::Ok), "{reply:?}");
        let response = RateLimitResponse::decode(&reply.body[5..]).expect("a response");
        let expected = if turn <= 5 { EnvoyCode::Ok } else { EnvoyCode::OverLimit };
        assert_eq!(response.overall_code(), expected, "turn {turn}");
    }
    // A header with these bytes is the same key.
    let mut http = Http::connect(&node);
    http.send(
        b"GET /v1/authz?domain=shop&header.api_key=x-key HTTP/1.1\r\nhost: n\r\nx-key: \xff\xfex\r\n\r\n",
    )
    .expect("it is open");
    assert_eq!(http.reply(false).expect("an answer").status, 429);
}

#[tokio::test]
async fn who_does_not_read_is_not_read_from() {
    let node = node();
    let (client, _) = raw_connection(node.grpc()).await;
    let (_reply, mut sending) = raw_request(client, STREAM, GRPC).await;
    // Details make answers longer than requests.
    let check = CheckRequest { detail: true, ..question(&[("api_key", "k")]) };
    let message = framed(&CheckBatch { checks: vec![check; 100] }.encode_to_vec());
    let mut sent = 0;
    loop {
        sending.reserve_capacity(message.len());
        let room = std::future::poll_fn(|cx| sending.poll_capacity(cx));
        let Ok(Some(room)) = tokio::time::timeout(Duration::from_secs(2), room).await else { break };
        let room = room.expect("the stream is open").min(message.len());
        // The boundaries of messages do not matter, as long as all bytes are sent in order.
        let begin = sent % message.len();
        let part = message.slice(begin..message.len().min(begin + room));
        sent += part.len();
        sending.send_data(part, false).expect("the stream is open");
        assert!(sent < 32 * MEGABYTE, "the node reads on and keeps what it has to say");
    }
    assert!(sent > 0);
    assert_eq!(Http::connect(&node).get("/healthz").status, 200);
    assert_eq!(check_cost(&node, &[("other", "x")], 1_001)["allowed"], false);
}

#[tokio::test]
async fn a_flood_of_keys_takes_no_more_memory_than_allowed() {
    let node = Node::start(
        "memory: 1MiB\n\
         limits: [{ name: per-key, domain: shop, by: [api_key], token_bucket: { rate: 1/h, burst: 5 } }]",
    );
    let mut limiter = LimiterClient::new(channel(&node).await);
    check_cost(&node, &[("api_key", "known")], 5);
    let batches = (0..40).map(|batch: u32| {
        let keys = batch * 1_000..(batch + 1) * 1_000;
        CheckBatch { checks: keys.map(|key| question(&[("api_key", &key.to_string())])).collect() }
    });
    let mut answers = limiter.check_stream(stream::iter(batches)).await.expect("a stream").into_inner();
    let (mut allowed, mut overflowed) = (0, 0);
    while let Some(answer) = answers.message().await.expect("no fault") {
        allowed += answer.results.iter().filter(|result| result.allowed).count();
        overflowed += answer.results.iter().filter(|result| result.reason() == Reason::Overflow).count();
    }
    assert_eq!(allowed + overflowed, 40_000);
    assert!(overflowed > 0 && allowed > 10_000, "{allowed} allowed, {overflowed} shared one cell");
    assert!(metric(&node, "acequia_memory_bytes", &[]) <= MEGABYTE as f64);
    assert_eq!(metric(&node, "acequia_limits_overflowing", &[]), 1.0);
    // A key that was known before the flood is counted as before.
    assert_eq!(check(&node, &[("api_key", "known")])["reason"], "over-limit");
}

#[test]
fn clients_that_say_nothing_do_not_stop_the_others() {
    let node = node();
    let idle: Vec<TcpStream> = [node.http(), node.grpc()]
        .iter()
        .flat_map(|address| (0..100).map(|_| TcpStream::connect(*address).expect("a connection")))
        .collect();
    unharmed(&node, "two hundred clients that say nothing");
    drop(idle);
}

/// Slow clients are cut off after a while, and their resources are freed. All kinds wait at once.
#[tokio::test]
async fn clients_that_stop_in_the_middle_are_let_go() {
    /// A new gRPC connection may take 30 s until its first call; everything else may take 10 s.
    const LET_GO_AFTER: Duration = Duration::from_secs(36);
    let node = node();
    let (http, grpc) = (node.http(), node.grpc());
    let post = "POST /v1/check HTTP/1.1\r\nhost: n\r\ncontent-length: 40\r\n\r\n{ \"domain\"";
    let silent = [
        ("silent on the HTTP port", held(http, "")),
        ("half a head", held(http, "GET /healthz HTTP/1.1\r\nhost:")),
        ("half a body", held(http, post)),
        ("silent on the gRPC port", held(grpc, "")),
        ("half a preface", held(grpc, "PRI * HT")),
    ];
    let wait = futures::future::join_all(silent.map(async |(what, client)| {
        let ended = tokio::time::timeout(LET_GO_AFTER, client).await;
        ended.is_err().then_some(what)
    }));
    // Half a message of a call: the call ends, and the connection may continue.
    let half = async {
        let (client, _) = raw_connection(node.grpc()).await;
        let (reply, mut sending) = raw_request(client, CHECK, GRPC).await;
        sending.send_data(Bytes::from_static(&[0, 0, 0]), false).expect("a stream");
        let reply = tokio::time::timeout(LET_GO_AFTER, raw_reply(reply)).await.expect("the call ends");
        assert_eq!(reply.expect("an answer").code, Some(Code::DeadlineExceeded));
    };
    // An open stream may be quiet as long as its caller is there.
    let quiet = async {
        let (client, _) = raw_connection(node.grpc()).await;
        raw_request(client, STREAM, GRPC).await
    };
    let (still, (), _stream) = futures::join!(wait, half, quiet);
    let still: Vec<&str> = still.into_iter().flatten().collect();
    assert!(still.is_empty(), "these hold a connection for ever: {still:?}");
    unharmed(&node, "clients that waited");
}

/// Sends bytes, and ends when the node closes or resets the connection.
async fn held(address: SocketAddr, text: &'static str) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    stream.write_all(text.as_bytes()).await.expect("it is open");
    let _ = stream.read_to_end(&mut Vec::new()).await;
}
