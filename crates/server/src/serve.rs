//! The work of a running node, on a machine and in a simulation: it accepts connections, answers on them, and
//! looks after its cells.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::{Instant, Interval, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::{
    admit::admit,
    clock::Health,
    connections::{ConnectionPlace, Connections},
    grpc, http, metrics,
    port::Port,
    settings::SETTINGS,
    shared::Shared,
    unmatched::ToldUnmatched,
    unreported::ToldUnreported,
    worker::Worker,
};

/// Where connections come from.
pub trait Listener: Send + 'static {
    /// The kind of connection.
    type Connection: Connection;

    /// Waits for the next connection. Dropping the future loses none.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;
}

/// A connection that was accepted, and is in no runtime yet.
pub trait Connection: Send + 'static {
    /// The stream of bytes.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Takes the connection into the caller's runtime.
    ///
    /// # Errors
    /// The connection is gone.
    fn open(self) -> io::Result<Self::Stream>;

    /// The address that it comes from, if it has one.
    fn from(&self) -> Option<SocketAddr> {
        None
    }
}

/// A connection on its way to a worker, and its place among those of its port.
#[derive(Debug)]
pub(crate) struct Hand<C> {
    pub(crate) connection: C,
    pub(crate) place: ConnectionPlace,
}

/// Answers on the connections that are handed over, until no more can come and all have ended.
pub(crate) async fn work<C: Connection>(
    shared: Arc<Shared>,
    mut hands: mpsc::Receiver<Hand<C>>,
    open: Arc<AtomicUsize>,
    stopping: CancellationToken,
) {
    let worker = Worker::new(&shared);
    let router = http::router(Arc::clone(&worker), metrics::text);
    let (routes, reporter) = match grpc::routes() {
        Ok(services) => services,
        Err(fault) => return error!(%fault, "the reflection service cannot be built"),
    };
    tokio::spawn(grpc::report_health(reporter, stopping.clone()));
    let mut connections = tokio::task::JoinSet::new();
    while let Some(Hand { connection, place }) = hands.recv().await {
        while connections.try_join_next().is_some() {}
        let from = connection.from();
        let Ok(stream) = connection.open() else { continue };
        let (stopping, open) = (stopping.clone(), Arc::clone(&open));
        open.fetch_add(1, Ordering::Relaxed);
        let (worker, router, routes) = (Arc::clone(&worker), router.clone(), routes.clone());
        connections.spawn(async move {
            let admitted = tokio::select! {
                biased;
                () = stopping.cancelled() => None,
                admitted = admit(stream, from, &place, &worker.shared.refused) => admitted,
            };
            if let Some(admitted) = admitted {
                match place.gate().port {
                    Port::Http => http::serve(admitted, worker, router, stopping).await,
                    // Operators have a thread of their own: see `regions::admin`.
                    Port::Grpc | Port::Admin => grpc::serve(admitted, worker, routes, stopping).await,
                }
            }
            open.fetch_sub(1, Ordering::Relaxed);
            drop(place);
        });
    }
    while connections.join_next().await.is_some() {}
}

/// Hands connections to the workers in turn, as many as may be open at one time, until `stopping`. After that
/// it only sweeps the open connections, until the future is dropped.
pub(crate) async fn accept<L: Listener>(
    listener: L,
    hands: Vec<mpsc::Sender<Hand<L::Connection>>>,
    connections: Arc<Connections>,
    stopping: CancellationToken,
) {
    let mut look = tokio::time::interval(SETTINGS.connections.sweep);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut turn, mut came) = (0, None);
    loop {
        tokio::select! {
            biased;
            () = stopping.cancelled() => break,
            _ = look.tick() => connections.sweep(Instant::now()),
            accepted = listener.accept(), if came.is_none() => match accepted {
                Ok(connection) => came = Some(connection),
                Err(fault) => {
                    // Most likely the process is out of descriptors: open connections will end.
                    warn!(%fault, "cannot accept a connection");
                    tokio::time::sleep(SETTINGS.sockets.accept_again).await;
                }
            },
            () = connections.freed(), if came.is_some() => {}
        }
        let Some(connection) = came.take() else { continue };
        let Some(place) = connections.place(Instant::now()) else {
            came = Some(connection);
            continue;
        };
        let hand = &hands[turn % hands.len()];
        turn += 1;
        if hand.send(Hand { connection, place }).await.is_err() {
            return;
        }
    }
    drop((listener, hands, came));
    // Open connections still have their calls and pings answered.
    loop {
        look.tick().await;
        connections.sweep(Instant::now());
    }
}

/// The node's own periodic work.
pub(crate) struct Rounds {
    sweep: Interval,
    watch: Interval,
    shard: usize,
    clock: Health,
    unmatched: ToldUnmatched,
    unreported: ToldUnreported,
}

impl Rounds {
    pub(crate) fn begin() -> Self {
        let (sweep, watch) =
            (tokio::time::interval(SETTINGS.rounds.sweep), tokio::time::interval(SETTINGS.rounds.watch));
        Self {
            sweep,
            watch,
            shard: 0,
            clock: Health::default(),
            unmatched: ToldUnmatched::new(),
            unreported: ToldUnreported::default(),
        }
    }

    /// Sweeps for a second, and then reports what is new. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self, shared: &Shared) {
        loop {
            tokio::select! {
                biased;
                _ = self.watch.tick() => {
                    let health = shared.clock.health();
                    health.tell_since(&std::mem::replace(&mut self.clock, health));
                    self.unmatched.tell(|| shared.workers.unmatched());
                    self.unreported.tell(&shared.node.catalogue());
                    return shared.tell_warnings();
                }
                _ = self.sweep.tick() => {
                    shared.node.sweep(self.shard, shared.clock.look());
                    self.shard += 1;
                }
            }
        }
    }
}
