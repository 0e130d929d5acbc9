//! Small clients: HTTP/1.1 over a plain socket, JSON checks, and gRPC calls as raw bytes, which can send what
//! no well-behaved client would.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
};

use acequia_tests::{Node, PATIENCE};
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};

use crate::openmetrics::{self, Metrics};

/// An HTTP/1.1 connection.
pub(crate) struct Http {
    stream: BufReader<TcpStream>,
}

/// A reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Http {
    pub(crate) fn connect(node: &Node) -> Self {
        Self::to(node.http())
    }

    pub(crate) fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("an option is set");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option is set");
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn get(&mut self, path: &str) -> Reply {
        self.ask("GET", path, &[], "").expect("an answer")
    }

    /// `POST /v1/check`.
    pub(crate) fn check(&mut self, body: &str) -> Reply {
        self.try_check(body).expect("an answer")
    }

    /// Like `check`, when the node may be gone.
    pub(crate) fn try_check(&mut self, body: &str) -> io::Result<Reply> {
        self.ask("POST", "/v1/check", &[], body)
    }

    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Reply> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: node\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        self.send(format!("{head}\r\n{body}").as_bytes())?;
        self.reply(method == "HEAD")
    }

    /// Sends any bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads an answer: with a length, or without a body to HEAD.
    pub(crate) fn reply(&mut self, to_head: bool) -> io::Result<Reply> {
        let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| broken("no status line"))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").ok_or_else(|| broken("no header"))?;
            headers.push((name.to_owned(), value.to_owned()));
        }
        let mut reply = Reply { status, headers, body: String::new() };
        let length =
            reply.header("content-length").map_or(Ok(0), str::parse).map_err(|_| broken("no length"))?;
        if !to_head {
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body)?;
            reply.body = String::from_utf8(body).map_err(|_| broken("no text"))?;
        }
        Ok(reply)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Reply {
    /// A header's value. A repeated header is an error.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        let (_, value) = found.next()?;
        assert!(found.next().is_none(), "{name} comes twice: {:?}", self.headers);
        Some(value)
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers));
        value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value}"))
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        serde_json::from_str(&self.body).expect("JSON")
    }
}

/// The body of a check with one descriptor in the domain `shop`.
pub(crate) fn body(entries: &[(&str, &str)]) -> String {
    let entries: serde_json::Map<String, Value> =
        entries.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({ "domain": "shop", "descriptors": [entries] }).to_string()
}

/// Checks a descriptor in the domain `shop`.
#[track_caller]
pub(crate) fn check(node: &Node, entries: &[(&str, &str)]) -> Value {
    Http::connect(node).check(&body(entries)).json()
}

/// Checks a descriptor with a cost.
#[track_caller]
pub(crate) fn check_cost(node: &Node, entries: &[(&str, &str)], cost: u64) -> Value {
    let mut body: Value = serde_json::from_str(&body(entries)).expect("JSON");
    body["cost"] = json!(cost);
    Http::connect(node).check(&body.to_string()).json()
}

/// The sum of a metric's samples that have all these labels.
#[track_caller]
pub(crate) fn metric(node: &Node, name: &str, labels: &[(&str, &str)]) -> f64 {
    metrics(node).sum(name, labels)
}

/// All metrics of a node.
#[track_caller]
pub(crate) fn metrics(node: &Node) -> Metrics {
    let text = Http::connect(node).get("/metrics").body;
    openmetrics::parse(&text).unwrap_or_else(|fault| panic!("{fault}\n{text}"))
}

/// A gRPC connection.
pub(crate) async fn channel(node: &Node) -> Channel {
    channel_to(node.grpc()).await
}

/// A gRPC channel to any server.
pub(crate) async fn channel_to(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.timeout(PATIENCE).connect().await.expect("a connection")
}

/// The raw reply to a gRPC call.
#[derive(Debug)]
pub(crate) struct RawReply {
    pub(crate) http_status: u16,
    /// The gRPC status. `None` if the stream was reset.
    pub(crate) code: Option<tonic::Code>,
    pub(crate) message: String,
    /// The body with its frames.
    pub(crate) body: Bytes,
}

/// A gRPC call with any bytes as its body.
pub(crate) async fn raw_call(node: &Node, path: &str, content_type: &str, body: Bytes) -> RawReply {
    let (client, _) = raw_connection(node.grpc()).await;
    let (reply, mut sending) = raw_request(client, path, content_type).await;
    // A node may answer and reset the stream before it has read everything.
    let sent = send_all(&mut sending, body).await;
    let reply = tokio::time::timeout(PATIENCE, raw_reply(reply)).await.expect("an answer in time");
    reply.unwrap_or_else(|fault| panic!("no answer: {fault}; sent: {sent:?}"))
}

/// An HTTP/2 connection, and its pings. The node has read everything that was sent before a ping when it
/// answers the ping.
pub(crate) async fn raw_connection(address: SocketAddr) -> (h2::client::SendRequest<Bytes>, h2::PingPong) {
    let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let (client, mut connection) = h2::client::handshake(stream).await.expect("a handshake");
    let ping = connection.ping_pong().expect("nobody else pings");
    tokio::spawn(connection);
    (client, ping)
}

/// Starts a call: its headers are sent, and its body is not.
pub(crate) async fn raw_request(
    client: h2::client::SendRequest<Bytes>,
    path: &str,
    content_type: &str,
) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
    let request = http::Request::post(format!("http://node{path}"))
        .header(http::header::CONTENT_TYPE, content_type)
        .header(http::header::TE, "trailers")
        .body(())
        .expect("a request");
    client.ready().await.expect("a connection").send_request(request, false).expect("a stream")
}

/// Sends as fast as the node accepts, and ends the request.
pub(crate) async fn send_all(stream: &mut h2::SendStream<Bytes>, mut body: Bytes) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(capacity) => stream.send_data(body.split_to(capacity?.min(body.len())), false)?,
            None => break,
        }
    }
    stream.send_data(Bytes::new(), true)
}

/// Reads a reply to its end.
pub(crate) async fn raw_reply(reply: h2::client::ResponseFuture) -> Result<RawReply, h2::Error> {
    let (head, mut incoming) = reply.await?.into_parts();
    let mut body = BytesMut::new();
    while let Some(part) = incoming.data().await {
        let part = part?;
        incoming.flow_control().release_capacity(part.len())?;
        body.extend_from_slice(&part);
    }
    let trailers = incoming.trailers().await?.unwrap_or_default();
    let found = |name| head.headers.get(name).or_else(|| trailers.get(name));
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Ok(RawReply {
        http_status: head.status.as_u16(),
        code: found("grpc-status").map(|code| tonic::Code::from_bytes(code.as_bytes())),
        message: found("grpc-message").map(text).unwrap_or_default(),
        body: body.freeze(),
    })
}

/// A message with gRPC's frame header.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(message);
    frame.freeze()
}
