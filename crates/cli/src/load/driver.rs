//! Owns the sockets and the clock: waits for one thing, hands it over, repeats. There is one task for each
//! connection.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use acequia_client::Stream;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use super::{
    Load, LoadError, Report, Work,
    frames::{self, FIRST_STREAM},
    link::{Broken, Event, Link},
    pace::{Pacer, Plan},
    report::Score,
    streaming::Streaming,
    unary::Unary,
};
use crate::settings::SETTINGS;

/// The messages of one connection. An exchange decides, and the driver acts.
pub(super) trait Exchange: Send + 'static {
    /// There is a new connection. Nothing is in flight.
    fn connected(&mut self, link: &Link);
    /// Puts all that may be sent now into `link.out`.
    fn fill(&mut self, link: &mut Link, now_ns: u64);
    /// Takes note of an event from the server.
    fn handle(&mut self, link: &mut Link, event: Event<'_>, now_ns: u64);
    /// Streams after this one get no answer any more.
    fn lose(&mut self, after: u32, now_ns: u64);
    /// Ends the open streams in an orderly way.
    fn close(&mut self, link: &mut Link);
    /// The connection's open work.
    fn waiting(&self) -> Waiting;
    /// The pacer, which says whether and when more requests start.
    fn pacer(&self) -> &Pacer;
    /// The results so far.
    fn score(&mut self) -> &mut Score;
}

/// A connection's open work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Requests in flight.
    pub(super) unanswered: usize,
    /// Whether a request would start if the server allowed it.
    pub(super) starved: bool,
}

/// Runs a load; a connection's first stream is `first_stream`.
pub(super) async fn drive(load: Arc<Load>, first_stream: u32) -> Result<Report, LoadError> {
    let plan = Arc::new(Plan::new(load.warm_up, load.bound, load.pace, load.connections));
    let mut sockets = Vec::new();
    for _ in 0..load.connections {
        sockets.push(Socket::connect(&load, first_stream).await?);
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for (index, socket) in sockets.into_iter().enumerate() {
        let (load, plan) = (load.clone(), plan.clone());
        match load.work {
            Work::Unary { in_flight, verdict } => {
                let exchange = Unary::new(&load, in_flight, verdict, plan, index);
                tasks.spawn(converse(load, began, socket, exchange));
            }
            Work::Stream { streams, in_flight, decisions } => {
                let exchange = Streaming::new(&load, streams, in_flight, decisions, plan, index);
                tasks.spawn(converse(load, began, socket, exchange));
            }
        }
    }
    let mut score = Score::default();
    while let Some(joined) = tasks.join_next().await {
        // No task is cancelled, so the error is a panic, and it goes on.
        score += &joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    }
    Ok(score.report(&plan))
}

/// Carries an exchange to its end, over as many connections as needed.
async fn converse<E: Exchange>(
    load: Arc<Load>,
    began: Instant,
    mut socket: Socket,
    mut exchange: E,
) -> Result<Score, LoadError> {
    loop {
        let before = exchange.score().total;
        exchange.connected(&socket.link);
        match socket.carry(&load, began, &mut exchange).await? {
            End::Over => return Ok(std::mem::take(exchange.score())),
            End::Closing if exchange.score().total == before => {
                let why = "with GOAWAY on a new connection, before any answer".to_owned();
                return Err(LoadError::Closed { address: load.target.to_string(), why });
            }
            End::Closing => {
                exchange.score().reconnects += 1;
                socket = Socket::connect(&load, FIRST_STREAM).await?;
            }
        }
    }
}

/// Why a connection ends.
enum End {
    /// All requests are sent and answered.
    Over,
    /// The connection opens no more streams.
    Closing,
}

struct Socket {
    stream: Stream,
    link: Link,
    inbox: Inbox,
}

impl Socket {
    /// Opens a connection, and waits for the server's SETTINGS.
    async fn connect(load: &Load, first_stream: u32) -> Result<Self, LoadError> {
        timeout(load.connect_timeout, Self::open(load, first_stream)).await.unwrap_or_else(|_| {
            Err(LoadError::ConnectTimeout { address: load.target.to_string(), after: load.connect_timeout })
        })
    }

    async fn open(load: &Load, first_stream: u32) -> Result<Self, LoadError> {
        let io = |doing| move |source| LoadError::Io { address: load.target.to_string(), doing, source };
        let stream = load.target.connect().await.map_err(io("connecting to"))?;
        let headers = frames::header_block(&load.target, &load.path, &load.metadata);
        let mut socket = Self { stream, link: Link::new(&headers, first_stream), inbox: Inbox::new() };
        socket.stream.write_all(&socket.link.out).await.map_err(io("writing to"))?;
        socket.link.out.clear();
        while !socket.link.is_settled() {
            let received = socket.stream.read(socket.inbox.space()).await.map_err(io("reading from"))?;
            if received == 0 {
                let why = "before its SETTINGS: does this port serve gRPC without TLS?".to_owned();
                return Err(LoadError::Closed { address: load.target.to_string(), why });
            }
            socket.inbox.end += received;
            // The first frame is SETTINGS, or an error; further frames can wait.
            if let Some((_, used)) =
                socket.link.receive(socket.inbox.unread()).map_err(|b| broken(load, b))?
            {
                socket.inbox.start += used;
            }
        }
        Ok(socket)
    }

    /// Carries an exchange until the exchange or the connection ends.
    async fn carry(
        &mut self,
        load: &Load,
        began: Instant,
        exchange: &mut impl Exchange,
    ) -> Result<End, LoadError> {
        let Self { stream, link, inbox } = self;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut tick = interval(SETTINGS.load.tick);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut quiet = Quiet { since: Instant::now(), total: 0 };
        let mut written = 0;
        // After a failed write, the server's reason, a GOAWAY, may still be there to be read.
        let mut write_error = None;
        loop {
            let now = Instant::now();
            let now_ns = now.saturating_duration_since(began).as_nanos() as u64;
            while let Some((event, used)) = link.receive(inbox.unread()).map_err(|b| broken(load, b))? {
                exchange.handle(link, event, now_ns);
                inbox.start += used;
            }
            exchange.fill(link, now_ns);

            let waiting = exchange.waiting();
            let over = exchange.pacer().is_over(now_ns);
            if waiting.unanswered == 0 && over {
                exchange.close(link);
                let goodbye = async {
                    writer.write_all(&link.out[written..]).await?;
                    writer.shutdown().await
                };
                // All answers are here, so it does not matter whether the server hears the goodbye.
                let _ = timeout(SETTINGS.load.close_max, goodbye).await;
                return Ok(End::Over);
            }
            if waiting.unanswered == 0 && link.is_closing() {
                return Ok(End::Closing);
            }
            quiet.check(load, now, exchange.score().total, waiting)?;

            let due_ns = exchange.pacer().due_ns().filter(|_| !over);
            tokio::select! {
                biased;
                wrote = writer.write(&link.out[written..]), if written < link.out.len() && write_error.is_none() => {
                    match wrote {
                        Ok(bytes) => written += bytes,
                        Err(error) => write_error = Some(error),
                    }
                    if written == link.out.len() {
                        link.out.clear();
                        written = 0;
                    }
                }
                received = reader.read(inbox.space()), if link.out.len() < SETTINGS.load.out_bytes_max => match received {
                    Ok(bytes) if bytes > 0 => inbox.end += bytes,
                    _ if link.is_closing() => exchange.lose(0, now_ns),
                    received => return Err(closed(load, received.err().or(write_error), waiting)),
                },
                () = pause(due_ns.unwrap_or(0).saturating_sub(now_ns)), if due_ns.is_some() => {}
                _ = tick.tick() => {}
            }
        }
    }
}

/// Waits until shortly before something is due in `due_in_ns` nanoseconds.
async fn pause(due_in_ns: u64) {
    match due_in_ns.saturating_sub(SETTINGS.load.polled_ns) {
        0 => tokio::task::yield_now().await,
        early_ns => sleep(Duration::from_nanos(early_ns)).await,
    }
}

/// Measures for how long a waiting connection has had no answer.
struct Quiet {
    since: Instant,
    total: u64,
}

impl Quiet {
    fn check(&mut self, load: &Load, now: Instant, total: u64, waiting: Waiting) -> Result<(), LoadError> {
        let Waiting { unanswered, starved } = waiting;
        if total != self.total || (unanswered == 0 && !starved) {
            *self = Self { since: now, total };
        }
        if now.saturating_duration_since(self.since) < load.stall_timeout {
            return Ok(());
        }
        let waits_for = match starved {
            true => "leave to send (the server's flow-control windows, or its bound on concurrent streams)",
            false => "an answer",
        };
        let (address, after) = (load.target.to_string(), load.stall_timeout);
        Err(LoadError::Stalled { address, after, unanswered, waits_for })
    }
}

fn broken(load: &Load, broken: Broken) -> LoadError {
    match broken {
        Broken::Protocol(what) => LoadError::Protocol { address: load.target.to_string(), what },
        Broken::GoAway(why) => LoadError::Closed { address: load.target.to_string(), why },
    }
}

/// The error for a connection that ended unannounced.
fn closed(load: &Load, error: Option<io::Error>, waiting: Waiting) -> LoadError {
    let address = load.target.to_string();
    match error {
        Some(source) => LoadError::Io { address, doing: "talking to", source },
        None => LoadError::Closed {
            address,
            why: format!("without a GOAWAY, with {} requests unanswered; did it stop?", waiting.unanswered),
        },
    }
}

/// Bytes that were received but not parsed. There is room for any incomplete frame.
struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    fn new() -> Self {
        Self { bytes: vec![0; SETTINGS.load.inbox_bytes].into_boxed_slice(), start: 0, end: 0 }
    }

    fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The space for more received bytes.
    fn space(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.bytes[self.end..]
    }
}
