//! The connections of a node. Limits bound how many there are, how long each may be silent or old, and how
//! many bytes of unfinished messages each makes the node hold.
//!
//! All bytes that a connection makes the node hold count against that connection. If all connections together
//! hold too much, those that hold most are cut. So a caller that sends whole messages does not pay for one
//! that does not.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::task::AtomicWaker;
use hyper::rt::{Sleep, Timer};
use hyper_util::rt::TokioTimer;
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::Instant,
};
use tracing::warn;

use crate::{gate::Gate, port::Port, settings::SETTINGS};

/// The bytes that a waiting call takes beside its message: its stream, its task, its buffers.
const CALL_BYTES: usize = 2 << 10;

/// The stages of a connection.
const OPEN: u8 = 0;
const ENDING: u8 = 1;
const CUT: u8 = 2;

/// The part of a connection that both its task and its port know.
#[derive(Debug)]
pub(crate) struct Life {
    /// Calls that began on it.
    calls: AtomicU64,
    /// [`OPEN`], [`ENDING`] or [`CUT`].
    stage: AtomicU8,
    task: AtomicWaker,
    is_in_handshake: AtomicBool,
    /// The owner's number; 0 if the owner is unknown.
    owner: AtomicU32,
    /// Notified when the connection is to end.
    ends: Arc<Notify>,
    /// Calls under way that could not be answered at once.
    busy: AtomicUsize,
    /// Bytes that the connection makes the node hold, by [`Kind`]; and, below, the bytes of messages above
    /// `held.small_bytes` of the settings.
    held: [AtomicUsize; 2],
    large: AtomicUsize,
    /// Open streams, and calls that tonic answers.
    streams: AtomicUsize,
    node: Arc<AllConnections>,
}

/// The right to a stream or to a call that tonic answers. Dropping it gives the right back.
#[derive(Debug)]
pub(crate) struct StreamPlace(Arc<Life>);

/// A handshake that is under way.
#[derive(Debug)]
pub(crate) struct Handshake(Arc<Life>);

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.is_in_handshake.store(false, Ordering::Relaxed);
    }
}

/// A connection has too many streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this connection has {} streams: end some first, or open another connection",
    SETTINGS.connections.streams_max
)]
pub(crate) struct TooManyStreams;

/// The purpose of held bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A message that has begun, with its call.
    Unfinished,
    /// An answer that is not read yet, or a message whose answer is not ready.
    Answer,
}

/// The next step of a connection's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Go on.
    Open,
    /// Tell the caller that the connection ends, and answer the calls that have begun.
    Ending,
    /// End now.
    Cut,
}

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this connection has more than {} bytes of unfinished messages: finish some first, or send smaller ones",
    SETTINGS.held.large_bytes_max
)]
pub(crate) struct TooMuchHeld;

/// Bytes that a call makes the node hold. Dropping this releases them.
#[derive(Debug)]
pub(crate) struct Hold {
    life: Arc<Life>,
    bytes: [usize; 2],
    large: usize,
}

/// An answer whose bytes are held until it is written.
struct HeldAnswer(Bytes, #[expect(dead_code, reason = "it is dropped with the answer")] Hold);

impl AsRef<[u8]> for HeldAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// All connections of a node.
#[derive(Debug)]
pub(crate) struct AllConnections {
    ports: Mutex<Vec<Weak<Connections>>>,
    held: [AtomicUsize; 2],
    /// When the last warning was logged.
    warned: Mutex<Option<Instant>>,
    begun: Instant,
    /// Whole seconds since `begun`, as of the last sweep.
    seconds: AtomicU64,
}

impl Default for AllConnections {
    fn default() -> Self {
        Self {
            ports: Mutex::default(),
            held: Default::default(),
            warned: Mutex::default(),
            begun: Instant::now(),
            seconds: AtomicU64::new(0),
        }
    }
}

/// A timer for pings. hyper asks for the time at every frame, and gets the time of the last sweep.
#[derive(Clone, Debug)]
pub(crate) struct PingTimer(Arc<AllConnections>);

impl Timer for PingTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep(duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        TokioTimer::new().sleep_until(deadline)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: std::time::Instant) {
        TokioTimer::new().reset(sleep, deadline);
    }

    fn now(&self) -> std::time::Instant {
        self.0.begun.into_std() + Duration::from_secs(self.0.seconds.load(Ordering::Relaxed))
    }
}

/// The connections of one port.
#[derive(Debug)]
pub(crate) struct Connections {
    gate: Arc<Gate>,
    max: usize,
    /// How long a connection lasts, give or take a tenth. Then its caller connects anew, and so finds new
    /// nodes behind a balancer.
    max_age: Duration,
    open: Mutex<Open>,
    /// Connections in a handshake, the oldest first.
    handshakes: Mutex<VecDeque<Weak<Life>>>,
    freed: Notify,
    node: Arc<AllConnections>,
    ended: Ended,
}

/// Connections that the node ended, since the start.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// They never made a call.
    pub(crate) silent: AtomicU64,
    /// They made no call for too long.
    pub(crate) idle: AtomicU64,
    /// Others needed their place.
    pub(crate) crowded: AtomicU64,
    /// They had reached their age.
    pub(crate) old: AtomicU64,
    /// They held most when all together held too much.
    pub(crate) held: AtomicU64,
    /// The callers that may come in have changed.
    pub(crate) changed: AtomicU64,
}

impl Ended {
    /// The counts by reason, with the port's name.
    pub(crate) fn counts(&self, port: &'static str) -> [([(&'static str, &'static str); 2], u64); 6] {
        let Self { silent, idle, crowded, old, held, changed } = self;
        let all = [
            ("silent", silent),
            ("idle", idle),
            ("crowded", crowded),
            ("old", old),
            ("held", held),
            ("changed", changed),
        ];
        all.map(|(why, count)| ([("port", port), ("why", why)], count.load(Ordering::Relaxed)))
    }
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    life: Arc<Life>,
    opened: Instant,
    calls_seen: u64,
    /// When the connection last made a call, as far as the checks saw.
    active: Instant,
    /// When the connection is cut, after it was told to end.
    cut_at: Option<Instant>,
}

/// A connection's place on its port. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    connections: Arc<Connections>,
    number: u64,
    pub(crate) life: Arc<Life>,
}

impl Life {
    fn new(node: Arc<AllConnections>) -> Self {
        Self {
            calls: AtomicU64::new(0),
            stage: AtomicU8::new(OPEN),
            task: AtomicWaker::new(),
            is_in_handshake: AtomicBool::new(false),
            owner: AtomicU32::new(0),
            ends: Arc::default(),
            busy: AtomicUsize::new(0),
            held: Default::default(),
            large: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            node,
        }
    }

    /// A place for one more stream.
    pub(crate) fn stream(self: &Arc<Self>) -> Result<StreamPlace, TooManyStreams> {
        let place = StreamPlace(Arc::clone(self));
        if self.streams.fetch_add(1, Ordering::Relaxed) < SETTINGS.connections.streams_max {
            Ok(place)
        } else {
            Err(TooManyStreams)
        }
    }

    /// Notes that a call began or went on. Only the connection's own task calls this.
    #[inline]
    pub(crate) fn called(&self) {
        self.calls.store(self.calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The stage of the connection. A change wakes the task that asked.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Stage {
        self.task.register(cx.waker());
        match self.stage.load(Ordering::Acquire) {
            OPEN => Stage::Open,
            ENDING => Stage::Ending,
            _ => Stage::Cut,
        }
    }

    /// The timer for pings.
    pub(crate) fn ping_timer(&self) -> PingTimer {
        PingTimer(Arc::clone(&self.node))
    }

    /// Waits until the connection is cut.
    pub(crate) async fn cut(&self) {
        std::future::poll_fn(|cx| match self.poll(cx) {
            Stage::Cut => Poll::Ready(()),
            Stage::Open | Stage::Ending => Poll::Pending,
        })
        .await;
    }

    /// Tells the connection to end, once the calls that have begun are answered.
    pub(crate) fn end(&self) {
        self.go_to(ENDING);
    }

    /// Whether the connection was told to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.stage.load(Ordering::Acquire) != OPEN
    }

    /// Completes when the connection is told to end.
    pub(crate) fn ends(&self) -> OwnedNotified {
        Arc::clone(&self.ends).notified_owned()
    }

    fn go_to(&self, stage: u8) {
        if self.stage.fetch_max(stage, Ordering::AcqRel) < stage {
            self.task.wake();
            self.ends.notify_waiters();
        }
    }

    /// Sets the owner of the connection.
    pub(crate) fn belongs_to(&self, owner: u32) {
        self.owner.store(owner, Ordering::Relaxed);
    }

    /// The owner's number.
    pub(crate) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// How many calls began on it.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Holds no bytes yet, for a call that is not answered at once.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Hold { life: Arc::clone(self), bytes: [0; 2], large: 0 }
    }

    /// An answer whose bytes count until it is written, if it is long enough to matter.
    pub(crate) fn held_answer(self: &Arc<Self>, answer: Bytes) -> Bytes {
        if answer.len() <= SETTINGS.held.short_bytes {
            return answer;
        }
        let mut hold = self.hold();
        hold.keep(answer.len());
        Bytes::from_owner(HeldAnswer(answer, hold))
    }
}

impl Hold {
    /// Sets the bytes that the call holds now, for a message of length `message`.
    ///
    /// # Errors
    /// The message is large, and the connection holds too many bytes of large messages. Then the call holds
    /// what it held before.
    pub(crate) fn holds(&mut self, bytes: usize, message: usize) -> Result<(), TooMuchHeld> {
        let large = if message > SETTINGS.held.small_bytes { bytes } else { 0 };
        if large > self.large {
            let more = large - self.large;
            if self.life.large.load(Ordering::Relaxed) + more > SETTINGS.held.large_bytes_max {
                return Err(TooMuchHeld);
            }
            self.life.large.fetch_add(more, Ordering::Relaxed);
        } else {
            self.life.large.fetch_sub(self.large - large, Ordering::Relaxed);
        }
        self.large = large;
        let wanted = if bytes > 0 { CALL_BYTES + bytes } else { 0 };
        let before = self.bytes[Kind::Unfinished as usize];
        if wanted > before {
            self.take(Kind::Unfinished, wanted - before);
        } else {
            self.give(Kind::Unfinished, before - wanted);
        }
        Ok(())
    }

    /// Adds the bytes of an answer to what the call holds. An answer is never refused.
    pub(crate) fn keep(&mut self, answer: usize) {
        self.take(Kind::Answer, answer);
    }

    fn take(&mut self, kind: Kind, more: usize) {
        let (life, node, of) = (&self.life, &self.life.node, kind as usize);
        self.bytes[of] += more;
        life.held[of].fetch_add(more, Ordering::Relaxed);
        if node.held[of].fetch_add(more, Ordering::Relaxed) + more > SETTINGS.held.all_bytes_max {
            node.cut_largest(kind);
        }
    }

    fn give(&mut self, kind: Kind, less: usize) {
        let of = kind as usize;
        self.bytes[of] -= less;
        self.life.held[of].fetch_sub(less, Ordering::Relaxed);
        self.life.node.held[of].fetch_sub(less, Ordering::Relaxed);
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let [unfinished, answers] = self.bytes;
        self.give(Kind::Unfinished, unfinished);
        self.give(Kind::Answer, answers);
        self.life.large.fetch_sub(self.large, Ordering::Relaxed);
        self.life.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AllConnections {
    /// The bytes that all connections hold.
    pub(crate) fn held(&self) -> usize {
        self.held.iter().map(|held| held.load(Ordering::Relaxed)).sum()
    }

    /// The ports that are open, in the order in which they were opened.
    pub(crate) fn ports(&self) -> Vec<Arc<Connections>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Connections>>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the connections that hold most, until few enough bytes are left. A cut connection no longer
    /// counts, though its task may not have ended.
    #[cold]
    fn cut_largest(&self, kind: Kind) {
        let ports = self.ports();
        let (mut left, mut all) = (0, Vec::new());
        for (port, connections) in ports.iter().enumerate() {
            for entry in connections.lock().entries.values() {
                let held = entry.life.held[kind as usize].load(Ordering::Relaxed);
                if held > 0 && entry.life.stage.load(Ordering::Relaxed) != CUT {
                    left += held;
                    all.push((held, port, Arc::clone(&entry.life)));
                }
            }
        }
        if left <= SETTINGS.held.all_bytes_max {
            return;
        }
        all.sort_by_key(|(held, ..)| std::cmp::Reverse(*held));
        let mut cut = 0_u64;
        for (held, port, life) in all {
            if left <= SETTINGS.held.left_bytes {
                break;
            }
            life.go_to(CUT);
            ports[port].ended.held.fetch_add(1, Ordering::Relaxed);
            (left, cut) = (left - held, cut + 1);
        }
        let now = Instant::now();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|last| now - last >= SETTINGS.held.warn_every) {
            *warned = Some(now);
            warn!(
                cut,
                ?kind,
                "connections are cut: they had the most bytes of unfinished messages or unread answers"
            );
        }
    }
}

impl Connections {
    /// The connections of a port: at most `max` at one time, each for about `max_age`.
    pub(crate) fn new(
        gate: Arc<Gate>,
        max: usize,
        max_age: Duration,
        node: &Arc<AllConnections>,
    ) -> Arc<Self> {
        let connections = Arc::new(Self {
            gate,
            max,
            max_age,
            open: Mutex::default(),
            handshakes: Mutex::default(),
            freed: Notify::new(),
            node: Arc::clone(node),
            ended: Ended::default(),
        });
        node.lock().push(Arc::downgrade(&connections));
        connections
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn port(&self) -> Port {
        self.gate.port
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.lock().entries.len()
    }

    pub(crate) const fn ended(&self) -> &Ended {
        &self.ended
    }

    /// A place for a connection that was just accepted, if there is one. If not, the connections that were
    /// silent longest are told to make room.
    pub(crate) fn place(self: &Arc<Self>, now: Instant) -> Option<ConnectionPlace> {
        let mut open = self.lock();
        if open.entries.len() >= self.max {
            self.make_room(&mut open, now);
            return None;
        }
        let number = open.next;
        open.next += 1;
        let life = Arc::new(Life::new(Arc::clone(&self.node)));
        let entry = Entry { life: Arc::clone(&life), opened: now, calls_seen: 0, active: now, cut_at: None };
        open.entries.insert(number, entry);
        Some(ConnectionPlace { connections: Arc::clone(self), number, life })
    }

    /// Returns when a place may have become free.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }

    fn make_room(&self, open: &mut Open, now: Instant) {
        let wanted = (self.max * SETTINGS.connections.room_percent / 100).max(1);
        // Connections that end by their age may take minutes, and so do not count here.
        let is_going =
            |entry: &&Entry| entry.cut_at.is_some_and(|at| at <= now + SETTINGS.connections.idle_grace);
        let going = open.entries.values().filter(is_going).count();
        if going >= wanted {
            return;
        }
        let mut silent: Vec<_> = open
            .entries
            .values_mut()
            .filter(|entry| entry.cut_at.is_none())
            .filter_map(|entry| {
                entry.look(now);
                (entry.calls_seen == 0 || now - entry.active >= SETTINGS.connections.silent).then_some(entry)
            })
            .collect();
        // Connections without any call go first: anybody can open those.
        silent.sort_by_key(|entry| (entry.calls_seen > 0, entry.active));
        for entry in silent.into_iter().take(wanted - going) {
            self.ended.crowded.fetch_add(1, Ordering::Relaxed);
            // A connection that never called has no call under way.
            let grace = if entry.calls_seen == 0 { Duration::ZERO } else { SETTINGS.connections.idle_grace };
            entry.end(now, grace);
        }
    }

    /// Ends connections that were silent for too long or are old; and all of them, if other callers may come
    /// in than before.
    pub(crate) fn sweep(&self, now: Instant) {
        let (all_end, ages) = (self.gate.has_changed_callers(), self.gate.ages());
        self.node.seconds.store((now - self.node.begun).as_secs(), Ordering::Relaxed);
        for (number, entry) in &mut self.lock().entries {
            entry.look(now);
            if let Some(cut_at) = entry.cut_at {
                if now >= cut_at {
                    entry.life.go_to(CUT);
                }
            } else if all_end {
                self.ended.changed.fetch_add(1, Ordering::Relaxed);
                entry.end(now, SETTINGS.connections.grace);
            } else if entry.calls_seen == 0 && now - entry.opened >= self.port().first_call() {
                self.ended.silent.fetch_add(1, Ordering::Relaxed);
                entry.end(now, Duration::ZERO);
            } else if now - entry.active >= SETTINGS.connections.idle_max
                && entry.life.busy.load(Ordering::Relaxed) == 0
            {
                self.ended.idle.fetch_add(1, Ordering::Relaxed);
                entry.end(now, SETTINGS.connections.idle_grace);
            } else if ages && now - entry.opened >= spread(self.max_age, *number) {
                self.ended.old.fetch_add(1, Ordering::Relaxed);
                entry.end(now, SETTINGS.connections.grace);
            }
        }
    }
}

impl Entry {
    /// Notes whether there were calls since the last look.
    fn look(&mut self, now: Instant) {
        let calls = self.life.calls.load(Ordering::Relaxed);
        if calls != self.calls_seen {
            (self.calls_seen, self.active) = (calls, now);
        }
    }

    /// Tells the connection to end, and cuts it after `grace`.
    fn end(&mut self, now: Instant, grace: Duration) {
        self.cut_at = Some(now + grace);
        self.life.go_to(if grace.is_zero() { CUT } else { ENDING });
    }
}

/// How long the connection with a number lasts: give or take a tenth, so that connections which began
/// together do not end together.
fn spread(age: Duration, number: u64) -> Duration {
    // The golden ratio spreads consecutive numbers evenly (Knuth, The Art of Computer Programming 3, section
    // 6.4).
    let spread = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    age / 10 * 9 + age / 5 * u32::try_from(spread >> 16).unwrap_or(0) / (1 << 16)
}

impl ConnectionPlace {
    /// Marks the connection as in a handshake until the result is dropped. If a port has too many handshakes,
    /// the oldest one of the owner with the most is cut: strangers may leave handshakes unfinished.
    pub(crate) fn begin_handshake(&self) -> Handshake {
        let life = &self.life;
        let mut handshakes = self.connections.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        handshakes
            .retain(|life| life.upgrade().is_some_and(|life| life.is_in_handshake.load(Ordering::Relaxed)));
        life.is_in_handshake.store(true, Ordering::Relaxed);
        handshakes.push_back(Arc::downgrade(life));
        if handshakes.len() > SETTINGS.connections.handshakes_max {
            let all: Vec<_> = handshakes.iter().filter_map(Weak::upgrade).collect();
            let mut owners = BTreeMap::<u32, usize>::new();
            all.iter().for_each(|life| *owners.entry(life.owner()).or_default() += 1);
            let most = owners.into_iter().max_by_key(|(_, count)| *count).map(|(owner, _)| owner);
            if let Some(oldest) = all.iter().find(|life| Some(life.owner()) == most) {
                oldest.is_in_handshake.store(false, Ordering::Relaxed);
                oldest.go_to(CUT);
            }
        }
        Handshake(Arc::clone(life))
    }

    /// The gate of the port that the connection came by.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.connections.gate
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.connections.lock().entries.remove(&self.number);
        self.connections.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn port(max: usize) -> Arc<Connections> {
        Connections::new(Gate::open(Port::Http), max, HOUR, &Arc::default())
    }

    fn stage(place: &ConnectionPlace) -> u8 {
        place.life.stage.load(Ordering::Relaxed)
    }

    #[test]
    fn a_silent_connection_is_cut_and_a_calling_one_stays() {
        let (connections, begun) = (port(4), Instant::now());
        let [silent, once, often, watching] = [0; 4].map(|_| connections.place(begun).expect("a place"));
        once.life.called();
        watching.life.called();
        let _watch = watching.life.hold();
        for seconds in 1..=301 {
            often.life.called();
            connections.sweep(begun + Duration::from_secs(seconds));
            assert_eq!(stage(&silent), if seconds < 10 { OPEN } else { CUT }, "{seconds} s");
        }
        assert_eq!((stage(&once), stage(&often)), (ENDING, OPEN));
        connections.sweep(begun + Duration::from_secs(303));
        assert_eq!((stage(&once), stage(&often), stage(&watching)), (CUT, OPEN, OPEN));
        let ended = connections.ended();
        assert_eq!([&ended.silent, &ended.idle].map(|count| count.load(Ordering::Relaxed)), [1, 1]);
    }

    #[test]
    fn old_connections_end_at_different_times() {
        let (connections, begun) = (port(200), Instant::now());
        let places: Vec<_> = (0..200).map(|_| connections.place(begun).expect("a place")).collect();
        let mut ended = Vec::new();
        for minutes in 50..=70_u32 {
            for place in &places {
                place.life.called();
            }
            connections.sweep(begun + Duration::from_secs(60) * minutes);
            ended.push(places.iter().filter(|place| stage(place) != OPEN).count());
        }
        assert_eq!((ended[0], ended[3], ended[16]), (0, 0, 200), "{ended:?}");
        assert!(ended.windows(2).all(|pair| pair[1] - pair[0] < 40), "{ended:?}");
    }

    #[test]
    fn at_the_cap_the_longest_silent_connection_is_ended() {
        let (connections, begun) = (port(2), Instant::now());
        let [first, second] = [0; 2].map(|_| connections.place(begun).expect("a place"));
        first.life.called();
        second.life.called();
        connections.sweep(begun);
        let later = begun + Duration::from_millis(500);
        assert!(connections.place(later).is_none());
        assert_eq!((stage(&first), stage(&second)), (OPEN, OPEN), "nobody was silent for long");
        second.life.called();
        let later = begun + Duration::from_millis(1_500);
        assert!(connections.place(later).is_none());
        assert_eq!((stage(&first), stage(&second)), (ENDING, OPEN));
        assert!(connections.place(later).is_none());
        assert_eq!(stage(&second), OPEN, "one makes room already");
        drop(first);
        assert!(connections.place(later).is_some());
    }

    #[test]
    fn small_messages_are_always_held_and_large_ones_up_to_a_bound() {
        const MIB: usize = 1 << 20;
        let connections = port(1);
        let place = connections.place(Instant::now()).expect("a place");
        let mut small: Vec<_> = (0..400).map(|_| place.life.hold()).collect();
        for hold in &mut small {
            hold.holds(SETTINGS.held.small_bytes + 5, SETTINGS.held.small_bytes).expect("a small one");
        }
        let mut large = [0; 4].map(|_| place.life.hold());
        for hold in &mut large[..3] {
            hold.holds(MIB + 5, MIB).expect("room");
        }
        assert_eq!(
            large[3].holds(SETTINGS.held.small_bytes + 1, SETTINGS.held.small_bytes + 1),
            Err(TooMuchHeld)
        );
        large[3].holds(SETTINGS.held.small_bytes, SETTINGS.held.small_bytes).expect("small still");
        large[0].holds(0, 0).expect("less");
        large[3].holds(MIB, MIB).expect("room again");
        drop((small, large));
        assert_eq!((connections.node.held(), place.life.large.load(Ordering::Relaxed)), (0, 0));
        assert_eq!(place.life.busy.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_connections_that_hold_most_bytes_are_cut_above_the_bound() {
        let connections = port(200);
        let places: Vec<_> = (0..100).map(|_| connections.place(Instant::now()).expect("a place")).collect();
        let mut modest = places[0].life.hold();
        modest.holds(100, 100).expect("held");
        let answer = places[0].life.held_answer(Bytes::from(vec![0; 1 << 20]));
        let _quiet: Vec<_> = (0..60).map(|_| places[0].life.hold()).collect();
        let mut holds: Vec<Hold> = Vec::new();
        for place in &places[1..] {
            for _ in 0..90 {
                let mut hold = place.life.hold();
                hold.holds(SETTINGS.held.small_bytes, SETTINGS.held.small_bytes).expect("small");
                holds.push(hold);
            }
        }
        let cut = places.iter().filter(|place| stage(place) == CUT).count();
        let held = |place: &&ConnectionPlace| place.life.held[0].load(Ordering::Relaxed);
        let left: usize = places.iter().filter(|place| stage(place) != CUT).map(|place| held(&place)).sum();
        assert!(left <= SETTINGS.held.all_bytes_max && (50..70).contains(&cut), "{left} bytes, {cut} cut");
        assert_eq!(
            stage(&places[0]),
            OPEN,
            "who has one answer, quiet streams and a small message is spared"
        );
        assert_eq!(connections.ended().held.load(Ordering::Relaxed), cut as u64);
        drop((holds, modest));
        assert_eq!(connections.node.held(), answer.len());
        drop(answer);
        assert_eq!(connections.node.held(), 0);
    }

    #[test]
    fn at_the_cap_a_connection_without_calls_is_cut_before_a_caller() {
        let (connections, begun) = (port(2), Instant::now());
        let caller = connections.place(begun).expect("a place");
        caller.life.called();
        connections.sweep(begun);
        let later = begun + Duration::from_secs(5);
        let stranger = connections.place(later).expect("a place");
        assert!(connections.place(later).is_none());
        assert_eq!((stage(&caller), stage(&stranger)), (OPEN, CUT), "though it came but now");
    }

    #[test]
    fn the_oldest_of_too_many_handshakes_is_cut() {
        let connections = port(2 * SETTINGS.connections.handshakes_max);
        let place = || connections.place(Instant::now()).expect("a place");
        let done = place();
        drop(done.begin_handshake());
        let under_way: Vec<_> = (0..=SETTINGS.connections.handshakes_max).map(|_| place()).collect();
        let handshakes: Vec<_> = under_way.iter().map(ConnectionPlace::begin_handshake).collect();
        assert_eq!((stage(&done), stage(&under_way[0]), stage(&under_way[1])), (OPEN, CUT, OPEN));
        drop(handshakes);
        let new = place();
        let _handshake = new.begin_handshake();
        assert_eq!(stage(&under_way[1]), OPEN, "those that have ended count no more");
    }

    #[test]
    fn the_caller_with_most_unfinished_handshakes_loses_one() {
        let connections = port(2 * SETTINGS.connections.handshakes_max);
        let of = |owner: u32| {
            let place = connections.place(Instant::now()).expect("a place");
            place.life.belongs_to(owner);
            place
        };
        let honest = of(1);
        let _handshake = honest.begin_handshake();
        let hostile: Vec<_> = (0..SETTINGS.connections.handshakes_max + 100).map(|_| of(2)).collect();
        let _handshakes: Vec<_> = hostile.iter().map(ConnectionPlace::begin_handshake).collect();
        assert_eq!(stage(&honest), OPEN);
        assert_eq!(hostile.iter().filter(|place| stage(place) == CUT).count(), 101);
    }

    #[test]
    fn connections_end_when_the_allowed_callers_change() {
        let folder = tempfile::tempdir().expect("a folder");
        let token = folder.path().join("token");
        std::fs::write(&token, "0123456789abcdef").expect("written");
        let gate = Gate::open(Port::Http);
        let connections = Connections::new(Arc::clone(&gate), 4, HOUR, &Arc::default());
        let now = Instant::now();
        let place = connections.place(now).expect("a place");
        connections.sweep(now);
        assert_eq!(stage(&place), OPEN);
        let who = crate::config::Who::Token(token);
        gate.allow(Some(vec![crate::config::Allowed { who, domains: None, may: None }])).expect("a token");
        connections.sweep(now);
        assert_eq!(stage(&place), ENDING);
        let new = connections.place(now).expect("a place");
        connections.sweep(now);
        assert_eq!((stage(&new), connections.ended().changed.load(Ordering::Relaxed)), (OPEN, 1));
    }

    #[test]
    fn an_ending_connection_does_not_keep_a_silent_one_from_being_ended() {
        let (connections, begun) = (port(2), Instant::now());
        let [old, silent] = [0; 2].map(|_| connections.place(begun).expect("a place"));
        old.life.called();
        silent.life.called();
        let later = begun + HOUR * 2;
        connections.lock().entries.get_mut(&0).expect("there").end(later, SETTINGS.connections.grace);
        connections.sweep(later);
        assert!(connections.place(later + SETTINGS.connections.silent).is_none());
        assert_ne!(stage(&silent), OPEN, "the silent one makes room, whatever the old one does");
        drop(old);
    }
}
