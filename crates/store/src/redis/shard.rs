//! One shard: a primary at an address, its connections, and the calls that go there.

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use acequia_node::pool::ServerClock;
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit},
    time::{timeout, timeout_at},
};

use super::{
    answer::{Arg, Fault, Missed, Value},
    breaker::{Breaker, BreakerState},
    clock::{ClockReading, Compared, WallRead},
    executed::{Executed, Executing},
    library::Function,
    link::{Link, operation, reply},
    round_trips::{Counted, RoundTrips},
    settings::{Address, Settings},
};
use crate::settings::SETTINGS;

/// A call before its connection is chosen.
#[derive(Debug)]
pub(super) struct RedisCall<'a> {
    pub(super) function: Function,
    pub(super) keys: &'a [String],
    pub(super) args: &'a [Arg<'a>],
    pub(super) deadline: Duration,
}

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) address: Address,
    pub(super) tally: Arc<Tally>,
    doubt_max: Duration,
    /// How far the server's clock and ours may be from true time, in nanoseconds; `None` if they are not
    /// compared.
    clock_error_ns: Option<u64>,
    standing: Mutex<DecisionState>,
    /// Notified when the layout should be looked up again.
    refresh: Arc<Notify>,
}

/// The counts of a shard. A successor under the same name continues them.
#[derive(Debug, Default)]
pub(super) struct Tally {
    calls: AtomicU64,
    missed: AtomicU64,
    places: CallPlaces,
    /// The round trips of answered calls and pings.
    round_trips: Counted,
}

/// The state that decides about calls. One lock covers all of it, so that a call never meets half a change.
#[derive(Debug)]
struct DecisionState {
    slots: Vec<ConnectionSlot>,
    unfit: Option<String>,
    clock: Compared,
    clock_ahead_ns: Option<i64>,
    breaker: Breaker,
    executing: Executing,
    /// The slot where the search for the next call's connection begins.
    turn: usize,
}

/// The slot of one connection.
#[derive(Clone, Debug)]
pub(super) enum ConnectionSlot {
    /// There was no connection yet.
    Connecting,
    Open(Arc<Link>),
    /// The server stopped answering while its connection stayed open.
    Hung,
    Lost(String),
}

/// The state of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardState {
    /// There was no connection yet.
    Connecting,
    /// Calls are answered.
    Open,
    /// The server has not answered three pings, and its connections were open.
    Hung,
    /// The server answers, and must not be called.
    Unsafe {
        /// The reason, and what to do.
        why: String,
    },
    /// There is no connection.
    Lost {
        /// The end of the last connection, or what prevents the next one.
        why: String,
    },
}

impl std::fmt::Display for ShardState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connecting => "not connected yet",
            Self::Open => "open",
            Self::Hung => "hangs",
            Self::Unsafe { why } | Self::Lost { why } => why,
        })
    }
}

/// A shard as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardView {
    /// The name: the sentinels' name, or the address.
    pub name: String,
    /// The address of the primary.
    pub address: Address,
    /// The `run_id` of the process that answers there, if there is one.
    pub run_id: Option<String>,
    /// The state.
    pub state: ShardState,
    /// The state of its breaker.
    pub breaker: BreakerState,
    /// The duration of the last answer, to a call or a ping, in microseconds; 0 if there was none.
    pub round_trip_us: u64,
    /// The durations of answers to calls and pings, since the shard is known by its name.
    pub round_trips: RoundTrips,
    /// The mean duration of a function in the server, in microseconds, over all functions between the last
    /// two looks. All clients' calls and pings count. 0 while the mean is unknown, or if the server does not
    /// give its counts.
    pub function_us: u64,
    /// Calls since the shard is known by its name, including those that were not sent.
    pub calls: u64,
    /// Calls among them that were not answered.
    pub missed: u64,
    /// Calls that wait for an answer now.
    pub in_flight: usize,
    /// How far the primary's clock was ahead of this node's time at the last comparison, in nanoseconds.
    /// `None` if they are not compared ([`Settings::clock_error`]).
    pub clock_ahead_ns: Option<i64>,
}

impl Shard {
    /// A shard that is not connected yet, with as many slots as the settings want connections.
    pub(super) fn new(
        name: String,
        address: Address,
        settings: &Settings,
        seed: u64,
        tally: Arc<Tally>,
        refresh: Arc<Notify>,
    ) -> Self {
        let standing = DecisionState {
            slots: vec![ConnectionSlot::Connecting; settings.connections],
            unfit: None,
            clock: Compared::default(),
            clock_ahead_ns: None,
            breaker: Breaker::new(seed),
            executing: Executing::default(),
            turn: 0,
        };
        let doubt_max = settings.timings.ping_every * SETTINGS.servers.doubt_pings_max;
        let clock_error_ns =
            settings.clock_error.map(|error| u64::try_from(error.as_nanos()).unwrap_or(u64::MAX));
        Self { name, address, tally, doubt_max, clock_error_ns, standing: Mutex::new(standing), refresh }
    }

    /// Calls a function once. Returns the part of the answer after the operation's number.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) async fn call(&self, call: &RedisCall<'_>) -> Result<Vec<Value>, Missed> {
        self.tally.calls.fetch_add(1, Ordering::Relaxed);
        let answer = self.asked(call).await;
        if matches!(answer, Err(Missed::NotSent(_) | Missed::Unknown(_))) {
            self.tally.missed.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    async fn asked(&self, call: &RedisCall<'_>) -> Result<Vec<Value>, Missed> {
        let until = tokio::time::Instant::now() + call.deadline;
        let _place = self.place(call.deadline / 2).await?;
        let link = self.standing().link(Instant::now(), self.doubt_max)?;
        match timeout_at(until, self.tried(&link, call)).await {
            Ok(answer) => answer,
            Err(_) => {
                self.standing().breaker.missed(Instant::now());
                Err(Missed::unknown("its deadline passed"))
            }
        }
    }

    /// A place among the calls in flight. If the shard is not known to answer, a call does not wait for a
    /// place.
    async fn place(&self, longest: Duration) -> Result<SemaphorePermit<'_>, Missed> {
        let places = &self.tally.places.0;
        if let Ok(place) = places.try_acquire() {
            return Ok(place);
        }
        let wait = if self.standing().answers() {
            longest.min(SETTINGS.calls.place_wait_max)
        } else {
            Duration::ZERO
        };
        let waited = timeout(wait, places.acquire()).await.ok().and_then(Result::ok);
        waited.ok_or_else(|| Missed::not_sent("too many calls to its shard are in flight"))
    }

    /// Sends the call, and sends it again if the function was missing.
    async fn tried(&self, link: &Link, call: &RedisCall<'_>) -> Result<Vec<Value>, Missed> {
        let operation = operation();
        let mut question = link.question(call.function, call.keys, operation);
        for arg in call.args {
            match arg {
                Arg::Int(number) => question.arg(*number),
                Arg::Bytes(bytes) => question.arg(*bytes),
            };
        }
        let (begun, loads) = (Instant::now(), link.loads());
        let mut answer = link.call(&question).await.map_err(|fault| Fault::of(&fault));
        if matches!(answer, Err(Fault::NoFunction)) {
            answer = match link.load(loads).await {
                Ok(()) => link.call(&question).await.map_err(|fault| Fault::of(&fault)),
                Err(fault) => Err(fault),
            };
        }
        let now = Instant::now();
        match answer {
            Ok(answer) => {
                let Some(reply) = reply(&answer, operation) else {
                    self.broke(link, now);
                    return Err(Missed::unknown("the answer was to another question"));
                };
                self.timed(now - begun);
                self.standing().breaker.answered(now);
                Ok(reply.iter().cloned().map(Value::from_redis).collect())
            }
            Err(Fault::Refused(why)) => {
                self.standing().breaker.answered(now);
                Err(Missed::Refused(why))
            }
            Err(Fault::NoFunction) => {
                self.standing().breaker.answered(now);
                Err(Missed::Refused("somebody removes our functions from it".to_owned()))
            }
            Err(Fault::Elsewhere(why)) => {
                self.refresh.notify_one();
                Err(Missed::NotSent(Cow::Owned(why)))
            }
            Err(Fault::Unready(why)) => {
                self.standing().breaker.missed(now);
                if why.starts_with("READONLY") {
                    self.forget(link);
                }
                self.refresh.notify_one();
                Err(Missed::NotSent(Cow::Owned(why)))
            }
            Err(Fault::Changed) => {
                self.forget(link);
                Err(Missed::not_sent("its shard has another primary, or one that begins anew"))
            }
            Err(Fault::Broken(why)) => {
                self.standing().breaker.missed(now);
                Err(Missed::Unknown(Cow::Owned(why)))
            }
        }
    }

    /// Gives a connection up after an answer to another question, since all later answers would be wrong,
    /// too.
    fn broke(&self, link: &Link, now: Instant) {
        let mut standing = self.standing();
        standing.breaker.missed(now);
        for slot in &mut standing.slots {
            if matches!(slot, ConnectionSlot::Open(open) if std::ptr::eq(&raw const **open, link)) {
                *slot = ConnectionSlot::Lost("an answer came to another question".to_owned());
            }
        }
        link.broke.notify_one();
    }

    /// Gives up all connections with the identity of `of`, since the server is not that any more. Later
    /// connections have another identity.
    pub(super) fn forget(&self, of: &Link) {
        let mut standing = self.standing();
        let mut is_news = false;
        for slot in &mut standing.slots {
            if let ConnectionSlot::Open(link) = slot
                && link.was_told_as(of)
            {
                link.broke.notify_one();
                *slot = ConnectionSlot::Lost(Fault::Changed.to_string());
                is_news = true;
            }
        }
        if !is_news {
            return;
        }
        if !standing.is_open() {
            standing.lost();
        }
        drop(standing);
        let (shard, address) = (&self.name, &self.address);
        tracing::warn!(%shard, %address, "this Redis is not the primary any more that it was: asking again who is");
        self.refresh.notify_one();
    }

    /// Counts the round trip of an answer.
    pub(super) fn timed(&self, round_trip: Duration) {
        self.tally.round_trips.count(round_trip);
    }

    /// Sets a slot, for a new connection or the end of one.
    pub(super) fn put(&self, index: usize, slot: ConnectionSlot) {
        let now = Instant::now();
        let mut standing = self.standing();
        let was_open = standing.is_open();
        standing.slots[index] = slot.clone();
        let is_open = standing.is_open();
        // The connection may lead to another server.
        if matches!(slot, ConnectionSlot::Open(_)) && self.clock_error_ns.is_some() {
            (standing.clock, standing.clock_ahead_ns) = (Compared::Unread, None);
        }
        if is_open {
            standing.breaker.connected(now);
        } else {
            standing.lost();
        }
        drop(standing);
        let (shard, address) = (&self.name, &self.address);
        match slot {
            ConnectionSlot::Open(link) if !was_open => {
                tracing::info!(%shard, %address, run_id = link.server.run_id, "connected to Redis");
            }
            ConnectionSlot::Hung if was_open && !is_open => {
                tracing::warn!(%shard, %address, "Redis stopped answering: looking for another primary");
                self.refresh.notify_one();
            }
            ConnectionSlot::Lost(why) if was_open && !is_open => {
                tracing::warn!(%shard, %address, why, "lost Redis");
                self.refresh.notify_one();
            }
            _ => {}
        }
    }

    /// Takes the result of a look at the server. `Some` stops all calls, until a look finds nothing wrong.
    pub(super) fn judge(&self, unfit: Option<String>) {
        let mut standing = self.standing();
        if standing.unfit == unfit {
            return;
        }
        standing.unfit.clone_from(&unfit);
        drop(standing);
        let (shard, address) = (&self.name, &self.address);
        match unfit {
            Some(why) => {
                tracing::error!(%shard, %address, why, "this Redis must not keep limits: it is not called");
                self.refresh.notify_one();
            }
            None => tracing::info!(%shard, %address, "this Redis may keep limits again"),
        }
    }

    /// The latest reading of the server's clock over any connection.
    fn told(&self) -> Option<ClockReading> {
        self.standing().links().filter_map(|link| link.told()).max_by_key(ClockReading::at)
    }

    /// How the server's clock compares with a wall; `None` if that is unknown or not compared.
    pub(super) fn clock(&self, read: &WallRead) -> Option<ServerClock> {
        self.clock_error_ns?;
        Some(self.told()?.compared(read))
    }

    /// From now on calls go only if the server's clock agrees with this wall.
    pub(super) fn compare_clock(&self, read: &WallRead) {
        let (Some(clock), Some(error_ns)) = (self.clock(read), self.clock_error_ns) else { return };
        let compared = Compared::of(clock, read, error_ns);
        let mut standing = self.standing();
        if !standing.is_open() {
            return;
        }
        standing.clock_ahead_ns = Some(clock.ahead_ns.saturating_sub(read.corrected_ns));
        if standing.clock == compared {
            return;
        }
        let before = std::mem::replace(&mut standing.clock, compared.clone());
        drop(standing);
        let (shard, address) = (&self.name, &self.address);
        match (before, compared) {
            // The size of the difference changes all the time, and is not logged again.
            (Compared::Differs(_), Compared::Differs(_)) => {}
            (_, Compared::Differs(why)) => {
                tracing::error!(%shard, %address, why, "this Redis and this node have different times: it is not called");
            }
            (Compared::Differs(_), _) => {
                tracing::info!(%shard, %address, "this Redis and this node have the same time again");
            }
            _ => {}
        }
    }

    /// Takes the server's counts of functions from a look over this connection.
    pub(super) fn executed(&self, link: &Link, executed: Option<Executed>) {
        self.standing().executing.see(&link.incarnation, executed);
    }

    /// Whether the server stopped answering over this connection, and has not answered since.
    pub(super) fn is_hung(&self, index: usize) -> bool {
        matches!(self.standing().slots[index], ConnectionSlot::Hung)
    }

    /// Whether the shard serves, as far as is known.
    pub(super) fn is_well(&self) -> bool {
        let standing = self.standing();
        standing.is_open() && standing.unfit.is_none()
    }

    /// Any connection to the server.
    pub(super) fn any_link(&self) -> Option<Arc<Link>> {
        self.standing().links().next().cloned()
    }

    pub(super) fn view(&self) -> ShardView {
        let standing = self.standing();
        let lost = standing.slots.iter().find_map(|slot| match slot {
            ConnectionSlot::Lost(why) => Some(ShardState::Lost { why: why.clone() }),
            _ => None,
        });
        let state = if !standing.is_open() {
            let is_hung = standing.slots.iter().any(|slot| matches!(slot, ConnectionSlot::Hung));
            if is_hung { ShardState::Hung } else { lost.unwrap_or(ShardState::Connecting) }
        } else if let Some(why) = standing.unfit.as_deref().or(standing.clock.objection()) {
            ShardState::Unsafe { why: why.to_owned() }
        } else {
            ShardState::Open
        };
        ShardView {
            name: self.name.clone(),
            address: self.address.clone(),
            run_id: standing.links().next().map(|link| link.server.run_id.clone()),
            state,
            breaker: standing.breaker.state(),
            round_trip_us: self.tally.round_trips.last_us(),
            round_trips: self.tally.round_trips.seen(),
            function_us: standing.executing.mean_us(),
            calls: self.tally.calls.load(Ordering::Relaxed),
            missed: self.tally.missed.load(Ordering::Relaxed),
            in_flight: self.tally.places.taken(),
            clock_ahead_ns: standing.clock_ahead_ns,
        }
    }

    fn standing(&self) -> MutexGuard<'_, DecisionState> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DecisionState {
    /// The connection for the next call, if the call may go.
    fn link(&mut self, now: Instant, doubt_max: Duration) -> Result<Arc<Link>, Missed> {
        self.turn = self.turn.wrapping_add(1);
        let count = self.links().count().max(1);
        let Some(link) = self.links().nth(self.turn % count).cloned() else {
            return Err(Missed::not_sent("there is no connection to its shard"));
        };
        if self.unfit.is_some() {
            return Err(Missed::not_sent("its shard must not keep limits, for the reason in the log"));
        }
        if let Some(why) = self.clock.objection() {
            return Err(Missed::NotSent(Cow::Owned(why.to_owned())));
        }
        if link.doubt(now) > doubt_max {
            return Err(Missed::not_sent(
                "its connection was not tried for too long, as if this process had been held up",
            ));
        }
        if !self.breaker.admits(now) {
            return Err(Missed::not_sent(
                "its shard has not answered lately, and is tried only now and then",
            ));
        }
        Ok(link)
    }

    /// Notes that there is no connection any more.
    fn lost(&mut self) {
        self.breaker.lost();
        self.executing = Executing::default();
    }

    fn links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.slots
            .iter()
            .filter_map(|slot| if let ConnectionSlot::Open(link) = slot { Some(link) } else { None })
    }

    fn is_open(&self) -> bool {
        self.links().next().is_some()
    }

    /// Whether calls go to this shard, as far as is known.
    fn answers(&self) -> bool {
        self.is_open() && self.unfit.is_none() && self.breaker.state() == BreakerState::Closed
    }
}

/// The places of calls in flight. Places are given in the order of the requests.
#[derive(Debug)]
struct CallPlaces(Semaphore);

impl Default for CallPlaces {
    fn default() -> Self {
        Self(Semaphore::new(SETTINGS.calls.in_flight_max))
    }
}

impl CallPlaces {
    fn taken(&self) -> usize {
        SETTINGS.calls.in_flight_max - self.0.available_permits()
    }
}
