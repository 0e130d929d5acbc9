//! The generator against servers made of the `h2` crate, over loopback.

use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use h2::{Reason, RecvStream, server::SendResponse};
use http::{HeaderMap, HeaderValue, Request, Response};

use super::{messages::Splitter, *};

#[test]
fn every_request_is_counted_once_with_its_verdict() {
    let server = Server::start(Server::echo());

    let report = run(&unary(&server, 1000)).unwrap();

    assert_eq!((report.requests, report.errors, report.requests_with_warm_up), (1000, 0, 1000));
    assert_eq!((report.allowed, report.denied), (server.allowed(), 1000 - server.allowed()));
    assert!(report.allowed.abs_diff(500) <= 3, "one message allows, one denies, each connection in turn");
    assert_eq!(report.latency.count(), 1000);
    assert!(
        report.latency.quantile_ns(0.5) > 0 && report.latency.max_ns() < report.elapsed.as_nanos() as u64
    );
}

#[test]
fn the_warm_up_is_not_counted() {
    let server = Server::start(Server::echo());
    let (warm_up, measured) = (Duration::from_millis(50), Duration::from_millis(100));

    let report = run(&Load { warm_up, bound: Bound::For(measured), ..unary(&server, 0) }).unwrap();

    assert_eq!((report.elapsed, report.errors), (measured, 0));
    assert_eq!(report.requests_with_warm_up, server.answered());
    assert!(report.requests > 0 && report.requests < report.requests_with_warm_up);
}

#[test]
fn errors_are_counted_by_kind_and_the_run_goes_on() {
    let mut server = Server::echo();
    server.reply = |nth| match nth % 5 {
        0 => Reply::Status,
        1 => Reply::Reset,
        2 => Reply::Bytes(b"\x01\0\0\0\x01x"),
        3 => Reply::Bytes(b"\0\0\0\0\x02x"),
        _ => Reply::Echo,
    };
    let server = Server::start(server);

    let report = run(&unary(&server, 1000)).unwrap();

    assert_eq!((report.requests, report.errors), (200, 800));
    assert_eq!(report.faults, Faults { no_message: 200, reset: 200, refused: 0, malformed: 400 });
    assert!(report.to_string().contains("800 errors: 200 gRPC errors, 200 streams reset, 400 malformed"));
}

#[test]
fn an_answer_without_a_verdict_is_an_error() {
    let server = Server::start(Server::echo());
    let load = Load { payloads: Arc::new(Payloads::new(["maybe"])), ..unary(&server, 100) };

    assert_eq!(run(&load).unwrap().faults, Faults { malformed: 100, ..Faults::default() });
}

#[test]
fn large_messages_go_through_small_windows() {
    let mut server = Server::echo();
    server.window = 10_000;
    let server = Server::start(server);
    // Enough to use up each of our own windows as well.
    let large = vec![b'a'; 200_000];

    let mut load = Load { connections: 1, ..unary(&server, 200) };
    load.payloads = Arc::new(Payloads::new([&large]));
    load.work = Work::Unary { in_flight: 4, verdict: |message| verdict(&message[..1]) };
    let report = run(&load).unwrap();
    assert_eq!((report.allowed, report.errors), (200, 0));

    load.work = Work::Stream {
        streams: 2,
        in_flight: 3,
        decisions: |message| Some(Decisions { allowed: message.len() as u64, denied: 0 }),
    };
    let report = run(&load).unwrap();
    assert_eq!((report.requests, report.allowed, report.errors), (200, 200 * 200_000, 0));
}

#[test]
fn the_servers_bound_on_streams_is_respected() {
    let mut server = Server::echo();
    server.streams_max = 2;
    let server = Server::start(server);

    let report = run(&unary(&server, 500)).unwrap();

    // The server would refuse a third stream, and the refusal would count as an error.
    assert_eq!((report.requests, report.errors), (500, 0));
}

#[test]
fn a_graceful_goaway_costs_no_unary_request() {
    let mut server = Server::echo();
    server.goodbye = Some((100, Reason::NO_ERROR));
    let server = Server::start(server);

    let report = run(&unary(&server, 1000)).unwrap();
    assert_eq!((report.requests, report.errors), (1000, 0));
    assert!(report.reconnects >= 6, "{report:?}");

    let report = run(&streaming(&server, 1000)).unwrap();
    assert_eq!(report.requests + report.errors, 1000);
}

#[test]
fn requests_after_the_last_one_of_a_goaway_are_refused() {
    let load = Load::unary(SocketAddr::from(([127, 0, 0, 1], 1)).into(), "/x", Payloads::new(["a"]), verdict);
    let plan = || Arc::new(pace::Plan::new(load.warm_up, load.bound, load.pace, load.connections));
    let some = |_: &[u8]| Some(Decisions::default());

    let unary = refused_after(3, unary::Unary::new(&load, 5, verdict, plan(), 0));
    assert_eq!(unary, (5, 2, 3), "two of five on streams of their own are still to be answered");
    let streaming = refused_after(3, streaming::Streaming::new(&load, 3, 4, some, plan(), 0));
    assert_eq!(streaming, (12, 8, 4), "four on each of three streams");
}

/// After a GOAWAY with `last` as the last stream: how many requests an exchange sends, how many it still
/// waits for, and how many errors it has counted.
fn refused_after(last: u32, mut exchange: impl driver::Exchange) -> (usize, usize, u64) {
    let mut link = link::Link::new(&[], frames::FIRST_STREAM);
    exchange.connected(&link);
    exchange.fill(&mut link, 0);
    let sent = exchange.waiting().unanswered;
    exchange.handle(&mut link, link::Event::GoingAway { last }, 1);
    (sent, exchange.waiting().unanswered, exchange.score().total)
}

#[test]
fn a_goaway_with_an_error_ends_the_run() {
    let mut server = Server::echo();
    server.goodbye = Some((100, Reason::ENHANCE_YOUR_CALM));
    let server = Server::start(server);

    let error = run(&unary(&server, 1000)).unwrap_err();

    assert!(
        matches!(&error, LoadError::Closed { why, .. } if why.contains("GOAWAY with error 11")),
        "{error}"
    );
}

#[test]
fn a_connection_whose_stream_ids_run_out_is_replaced() {
    let server = Server::start(Server::echo());
    let load = Load { connections: 1, ..unary(&server, 100) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

    let report = runtime.block_on(driver::drive(Arc::new(load), frames::LAST_STREAM - 40)).unwrap();

    assert_eq!((report.requests, report.errors, report.reconnects), (100, 0, 1));
}

#[test]
fn a_server_that_stops_answering_is_an_error() {
    let mut server = Server::echo();
    server.reply = |nth| if nth < 100 { Reply::Echo } else { Reply::Silence };
    let server = Server::start(server);

    for load in [unary(&server, 1000), streaming(&server, 1000)] {
        let error = run(&Load { stall_timeout: Duration::from_millis(300), ..load }).unwrap_err();
        assert!(matches!(error, LoadError::Stalled { unanswered: 1.., .. }), "{error}");
    }
}

#[test]
fn a_server_that_does_not_speak_grpc_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut load = Load::unary(address.into(), "/x", Payloads::new([""]), verdict);
    load.connect_timeout = Duration::from_millis(300);

    // Nobody accepts connections, so nobody answers.
    assert!(matches!(run(&load), Err(LoadError::ConnectTimeout { .. })));

    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        }
    });
    assert!(matches!(run(&load), Err(LoadError::Protocol { .. })));

    load.target = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().into();
    assert!(matches!(run(&load), Err(LoadError::Io { doing: "connecting to", .. })));
}

#[test]
fn impossible_loads_are_refused() {
    let load = Load::unary(SocketAddr::from(([127, 0, 0, 1], 1)).into(), "/x", Payloads::new([""]), verdict);
    let no_payload = Arc::new(Payloads::default());
    for load in [
        Load { connections: 0, ..load.clone() },
        Load { connections: CONNECTIONS_MAX + 1, ..load.clone() },
        Load { work: Work::Unary { in_flight: 0, verdict }, ..load.clone() },
        Load { payloads: no_payload, ..load.clone() },
        Load { pace: Pace::Fixed { requests_per_s: f64::NAN }, ..load.clone() },
        Load { path: "x".repeat(20_000), ..load.clone() },
    ] {
        assert!(matches!(run(&load), Err(LoadError::Invalid(_))));
    }
}

#[test]
fn messages_on_streams_are_counted_with_their_decisions() {
    let server = Server::start(Server::echo());

    let report = run(&streaming(&server, 1000)).unwrap();

    assert_eq!((report.requests, report.errors, report.latency.count()), (1000, 0, 1000));
    assert_eq!((report.allowed, report.denied), (3 * server.allowed(), 3 * (1000 - server.allowed())));
}

#[test]
fn an_ended_stream_is_reopened_and_its_requests_are_errors() {
    let mut server = Server::echo();
    server.reply = |nth| if nth % 10 == 9 { Reply::Status } else { Reply::Echo };
    let server = Server::start(server);

    let report = run(&streaming(&server, 1000)).unwrap();

    assert_eq!(report.requests + report.errors, 1000);
    assert_eq!(report.errors, report.faults.no_message);
    assert!(report.errors >= 50 && report.requests >= 200, "{report:?}");
}

#[test]
fn a_fixed_pace_is_kept() {
    let server = Server::start(Server::echo());
    let mut load = unary(&server, 0);
    load.pace = Pace::Fixed { requests_per_s: 2000.0 };
    load.bound = Bound::For(Duration::from_millis(300));

    let report = run(&load).unwrap();

    assert_eq!((report.requests, report.errors), (600, 0));
    assert!(report.elapsed >= Duration::from_millis(300));
}

#[test]
fn at_a_fixed_pace_a_server_pause_delays_all_due_requests() {
    let mut server = Server::echo();
    server.reply = |nth| if nth == 0 { Reply::Late(Duration::from_millis(200)) } else { Reply::Echo };
    let server = Server::start(server);
    let mut load = Load { connections: 1, ..unary(&server, 0) };
    load.work = Work::Unary { in_flight: 1, verdict };
    load.pace = Pace::Fixed { requests_per_s: 1000.0 };
    load.bound = Bound::For(Duration::from_millis(100));

    let report = run(&load).unwrap();

    // The last request was due after 99 ms and could not start before 200 ms.
    assert_eq!(report.requests, 100);
    assert!(report.latency.quantile_ns(0.01) > 90_000_000, "{}", report.latency);
}

#[test]
fn a_report_is_readable_by_people_and_programs() {
    let server = Server::start(Server::echo());
    let report = run(&Load { connections: 2, ..streaming(&server, 100) }).unwrap();

    let text = report.to_string();
    assert!(text.contains("requests/s  (100 in ") && text.contains("decisions/s") && text.contains("p99.9"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["requests"], &json["faults"]["reset"]), (&100.into(), &0.into()));
    assert!(json["elapsed_s"].as_f64().unwrap() > 0.0 && json["latency"]["p99_ns"].as_u64().unwrap() > 0);
}

#[test]
fn a_seed_gives_one_sequence_over_all_messages() {
    let load = Load::unary(
        SocketAddr::from(([127, 0, 0, 1], 1)).into(),
        "/x",
        Payloads::new(["a", "b", "c"]),
        verdict,
    );
    let load = Load { order: Order::Random { seed: 7 }, ..load };
    let draw = |connection| {
        let mut picker = order::Picker::new(&load, connection);
        (0..3000).map(|_| picker.next()).collect::<Vec<_>>()
    };

    assert_eq!(draw(0), draw(0));
    assert_ne!(draw(0), draw(1));
    for index in 0..3 {
        assert!((800..1200).contains(&draw(0).iter().filter(|drawn| **drawn == index).count()));
    }
}

/// Unary requests, alternately to be allowed and denied, on three connections with four in flight each.
fn unary(server: &Server, requests: u64) -> Load {
    let mut load = Load::unary(server.address.into(), "/test.Test/Echo", Payloads::new(["a", "d"]), verdict);
    load.connections = 3;
    load.work = Work::Unary { in_flight: 4, verdict };
    load.warm_up = Duration::ZERO;
    load.bound = Bound::Requests(requests);
    load
}

/// The messages of [`unary`] on two streams a connection; each answer counts as three decisions.
fn streaming(server: &Server, requests: u64) -> Load {
    let decisions = |message: &[u8]| match verdict(message) {
        Verdict::Allowed => Some(Decisions { allowed: 3, denied: 0 }),
        Verdict::Denied => Some(Decisions { allowed: 0, denied: 3 }),
        Verdict::Error => None,
    };
    Load { work: Work::Stream { streams: 2, in_flight: 5, decisions }, ..unary(server, requests) }
}

fn verdict(message: &[u8]) -> Verdict {
    match message {
        b"a" => Verdict::Allowed,
        b"d" => Verdict::Denied,
        _ => Verdict::Error,
    }
}

/// The server's reply to a message.
enum Reply {
    /// Sends it back, in small pieces.
    Echo,
    /// Sends it back after this time.
    Late(Duration),
    /// Ends the stream with a gRPC error.
    Status,
    /// Resets the stream.
    Reset,
    /// Sends these bytes, valid or not, and ends the stream.
    Bytes(&'static [u8]),
    /// Sends nothing.
    Silence,
}

#[derive(Clone)]
struct Server {
    address: SocketAddr,
    /// The reply to the n-th message.
    reply: fn(u64) -> Reply,
    /// The initial window of a stream.
    window: u32,
    streams_max: u32,
    /// After this many requests a connection is closed with this reason.
    goodbye: Option<(u64, Reason)>,
    messages: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
    allowed: Arc<AtomicU64>,
}

impl Server {
    /// Sends everything back.
    fn echo() -> Self {
        Self {
            address: ([127, 0, 0, 1], 0).into(),
            reply: |_| Reply::Echo,
            window: 65_535,
            streams_max: 1000,
            goodbye: None,
            messages: Arc::default(),
            answered: Arc::default(),
            allowed: Arc::default(),
        }
    }

    /// Serves on a thread of its own, as long as the test runs.
    fn start(mut self) -> Self {
        let listener = TcpListener::bind(self.address).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.address = listener.local_addr().unwrap();
        let server = self.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                while let Ok((tcp, _)) = listener.accept().await {
                    tokio::spawn(server.clone().serve(tcp));
                }
            });
        });
        self
    }

    fn answered(&self) -> u64 {
        self.answered.load(SeqCst)
    }

    fn allowed(&self) -> u64 {
        self.allowed.load(SeqCst)
    }

    async fn serve(self, tcp: tokio::net::TcpStream) {
        tcp.set_nodelay(true).unwrap();
        let mut builder = h2::server::Builder::new();
        builder.initial_window_size(self.window).max_concurrent_streams(self.streams_max);
        let Ok(mut connection) = builder.handshake::<_, Bytes>(tcp).await else { return };
        let mut requests = 0;
        while let Some(Ok((request, respond))) = connection.accept().await {
            tokio::spawn(self.clone().answer(request, respond));
            requests += 1;
            match self.goodbye {
                Some((after, Reason::NO_ERROR)) if requests == after => connection.graceful_shutdown(),
                Some((after, reason)) if requests == after => connection.abrupt_shutdown(reason),
                _ => {}
            }
        }
    }

    /// Answers the messages of one request, until the request or a reply ends the stream. A client that goes
    /// away does not concern the server.
    async fn answer(self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Option<()> {
        let mut body = request.into_body();
        let mut answer = None;
        let mut splitter = Splitter::default();
        while let Some(bytes) = body.data().await {
            let bytes = bytes.ok()?;
            let mut messages = Vec::new();
            splitter.feed(&bytes, |message| messages.push(message.to_vec())).unwrap();
            body.flow_control().release_capacity(bytes.len()).ok()?;
            for message in messages {
                let reply = (self.reply)(self.messages.fetch_add(1, SeqCst));
                let headers =
                    || Response::builder().header("content-type", "application/grpc").body(()).unwrap();
                if let Reply::Late(delay) = reply {
                    tokio::time::sleep(delay).await;
                }
                if matches!(reply, Reply::Echo | Reply::Late(_) | Reply::Bytes(_)) && answer.is_none() {
                    answer = Some(respond.send_response(headers(), false).ok()?);
                }
                match (reply, &mut answer) {
                    (Reply::Echo | Reply::Late(_), Some(answer)) => {
                        self.answered.fetch_add(1, SeqCst);
                        self.allowed.fetch_add(u64::from(verdict(&message) == Verdict::Allowed), SeqCst);
                        let framed = Payloads::new([&message]);
                        let (head, rest) = framed.framed(0).split_at(3);
                        answer.send_data(Bytes::copy_from_slice(head), false).ok()?;
                        answer.send_data(Bytes::copy_from_slice(rest), false).ok()?;
                    }
                    (Reply::Bytes(bytes), Some(answer)) => {
                        answer.send_data(Bytes::from_static(bytes), true).ok()?;
                        return None;
                    }
                    (Reply::Status, Some(answer)) => {
                        answer.send_trailers(status("14")).ok()?;
                        return None;
                    }
                    (Reply::Status, None) => {
                        let mut response = headers();
                        response.headers_mut().extend(status("14"));
                        respond.send_response(response, true).ok()?;
                        return None;
                    }
                    (Reply::Reset, _) => {
                        respond.send_reset(Reason::INTERNAL_ERROR);
                        return None;
                    }
                    (Reply::Silence, _) => std::future::pending().await,
                    (_, None) => unreachable!("the headers are sent"),
                }
            }
        }
        answer?.send_trailers(status("0")).ok()
    }
}

fn status(code: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static(code))])
}
