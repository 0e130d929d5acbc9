//! One thread's share of the service: an asker and its counts. No thread waits for another.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use acequia_api::acequia::v1::Settled as Word;
use acequia_limits::{
    HashKey, LimitId, Now, Reason, Request, algorithm::is_never, cell::Tagger, time::ms_rounded_up,
};
use acequia_node::{
    Answer, Ask, Asker, Catalogue, FORWARD_WAIT_NS, Forwarding, IdReused, Node, Outcome, Recording, Refunded,
};
use arc_swap::ArcSwap;
use tokio::time::Instant;
use tracing::{debug, debug_span, enabled};

use crate::{
    cells::{Cells, Hottest, LimitCells},
    charges::Names,
    clock::Clock,
    config::{Headers, Live},
    connections::AllConnections,
    hints,
    idempotency::{self, Deciding, Named, SharedNames},
    metrics::Reloads,
    patience::{Patience, Waiting},
    refused::Refused,
    region::Siblings,
    regions::{Alone, Regions},
    tally::{DECISION_SECONDS, Tally},
    unmatched::{self, NoMatch, NoMatches},
    warnings::Warned,
    webhooks::Webhooks,
    writer::Writer,
};

/// A caller that waits for less has no charges forwarded.
const DRAW_WAIT: Duration = Duration::from_nanos(FORWARD_WAIT_NS);

/// The state that all workers of a node share.
#[derive(Debug)]
pub struct Shared {
    /// The cells and limits.
    pub node: Arc<Node>,
    /// The journal, where there is one.
    pub writer: Option<Arc<Writer>>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The key that hashes values in traces.
    pub(crate) key: HashKey,
    /// Names of charges.
    pub(crate) names: Names,
    pub(crate) workers: RwLock<Vec<Arc<Worker>>>,
    pub(crate) reloads: Reloads,
    /// When the process started.
    pub(crate) begun: Now,
    /// The other regions, once there is a way to them.
    pub(crate) regions: OnceLock<Arc<Regions>>,
    /// The operators' orders, if the node stands alone.
    pub(crate) alone: OnceLock<Alone>,
    /// The webhooks, once the config has had any.
    pub(crate) webhooks: OnceLock<Webhooks>,
    pub(crate) warned: Warned,
    /// Requests that wait for units of other regions, of the region's pools, or of its other nodes.
    pub(crate) waiting: Arc<Waiting>,
    /// This node's place among the nodes of its region, where they share a store.
    pub(crate) siblings: OnceLock<Siblings>,
    /// The connections that callers have open, and the bytes that they make the node hold.
    pub(crate) connections: Arc<AllConnections>,
    /// Callers that were turned away.
    pub(crate) refused: Refused,
    /// Calls whose callers had given up before they were decided.
    pub(crate) expired: AtomicU64,
    /// The domains that are counted by name, for requests that no limit was about.
    pub(crate) unmatched_domains: unmatched::Names,
    /// The pairs of limit and reason whose waits are counted by name.
    pub(crate) hinted: hints::Pairs,
    draining: AtomicBool,
    live: ArcSwap<Settings>,
}

/// The settings that a reload replaces. The limits are not here: the node has them.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) headers: Headers,
    pub(crate) trace_key: Option<String>,
    pub(crate) no_match: NoMatches,
}

impl Shared {
    /// A service without workers.
    pub fn new(
        node: Arc<Node>,
        writer: Option<Arc<Writer>>,
        clock: Arc<dyn Clock>,
        (key, names): (HashKey, Names),
    ) -> Self {
        Self {
            node,
            names,
            writer,
            begun: clock.now(),
            regions: OnceLock::new(),
            alone: OnceLock::new(),
            webhooks: OnceLock::new(),
            warned: Warned::default(),
            waiting: Arc::default(),
            siblings: OnceLock::new(),
            clock,
            key,
            workers: RwLock::default(),
            reloads: Reloads::default(),
            connections: Arc::default(),
            refused: Refused::default(),
            expired: AtomicU64::new(0),
            unmatched_domains: unmatched::names(),
            hinted: hints::pairs(),
            draining: AtomicBool::new(false),
            live: ArcSwap::default(),
        }
    }

    /// Adds a worker.
    pub fn worker(self: &Arc<Self>) -> Arc<Worker> {
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        // A seed is any number but 0, and differs for each worker.
        let random = (workers.len() as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let inner =
            Inner { asker: self.node.asker(), tally: Tally::default(), cells: Cells::default(), random };
        let worker = Arc::new(Worker { shared: Arc::clone(self), inner: Mutex::new(inner) });
        workers.push(Arc::clone(&worker));
        worker
    }

    /// Puts settings in force.
    pub fn apply(&self, live: &Live) {
        let settings = Settings {
            headers: live.headers.clone(),
            trace_key: live.trace_key.clone(),
            no_match: live.no_match.clone(),
        };
        self.live.store(Arc::new(settings));
    }

    /// Whether the node is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether callers may be sent here; if not, why, and what to do.
    ///
    /// # Errors
    /// In words.
    pub fn ready(&self) -> Result<(), String> {
        if self.is_draining() {
            return Err("draining: the node is stopping".to_owned());
        }
        match self.regions.get() {
            Some(regions) => regions.ready(),
            None => Ok(()),
        }
    }

    /// The other regions, where there are any and this node has taken its place among them.
    pub fn regions(&self) -> Option<&Arc<Regions>> {
        self.regions.get()
    }

    /// From now on the node says that it is stopping.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// The cells of one limit, by its slot, over all workers.
    pub(crate) fn cells_of(&self, slot: u32) -> LimitCells {
        let (mut cells, now) = (LimitCells::default(), self.clock.now());
        for worker in self.workers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            cells.merge(&worker.cells_of(slot, now));
        }
        cells
    }

    /// Requests that no limit was about, over all workers.
    pub(crate) fn unmatched(&self) -> unmatched::Counts {
        let mut all = unmatched::Counts::default();
        for worker in self.workers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            all.add(&worker.unmatched());
        }
        all
    }

    /// Takes every worker and never gives it back: from now on no request can be asked.
    pub(crate) fn stop_asking(&self) {
        for worker in self.workers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            std::mem::forget(worker.hold());
        }
    }

    /// Drops every worker. Their references would otherwise keep this alive after its last user.
    pub(crate) fn dismiss(&self) {
        self.workers.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn settings(&self) -> arc_swap::Guard<Arc<Settings>> {
        self.live.load()
    }
}

/// One thread's way to ask. Its lock is its own: only a look at the counts takes it besides.
#[derive(Debug)]
pub struct Worker {
    pub(crate) shared: Arc<Shared>,
    inner: Mutex<Inner>,
}

/// A worker, locked: asks any number of questions under one lock and one reading of the clock.
#[derive(Debug)]
pub struct Held<'a> {
    worker: &'a Worker,
    inner: MutexGuard<'a, Inner>,
    /// The time that all questions are asked at.
    pub now: Now,
}

#[derive(Debug)]
struct Inner {
    asker: Asker,
    tally: Tally,
    cells: Cells,
    /// The state of the random numbers that spread callers who wait for the same window's edge.
    random: u64,
}

/// How a request is asked, and how its charge is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct How {
    pub(crate) ask: Ask,
    pub(crate) recording: Option<Recording>,
    /// How long the request has waited already, for the store or for another node that decided the same id.
    waited: Duration,
}

impl How {
    /// A way to ask, with what remembers the charge, if anything does.
    pub(crate) const fn new(ask: Ask, recording: Option<Recording>) -> Self {
        Self { ask, recording, waited: Duration::ZERO }
    }

    /// Whether the request reserves: its charge is settled later.
    pub(crate) fn reserves(&self) -> bool {
        self.recording.is_some_and(|recording| recording.reserve.is_some())
    }

    /// Whether another node may make the charge. Not if the charge must be known here, to be given back or
    /// spent later.
    const fn may_draw(&self) -> bool {
        self.recording.is_none() && self.ask.charge && !self.ask.holds
    }
}

impl From<Ask> for How {
    fn from(ask: Ask) -> Self {
        Self::new(ask, None)
    }
}

/// A response, and what it waits for.
#[derive(Debug)]
pub(crate) enum Asked<R> {
    /// There is no response: another question had the same name.
    Reused,
    /// The response waits for nothing.
    Now(R),
    /// The response waits for the disk.
    Unwritten(R, Box<Unwritten>),
    /// The request waits for units from elsewhere; it is denied until they come.
    Waits(Patience),
}

/// An answer that must not leave before a batch is on disk.
#[derive(Debug)]
pub struct Unwritten {
    answer: Answer,
    catalogue: Arc<Catalogue>,
    batch: u64,
}

impl Worker {
    /// Takes the worker, and reads the clock.
    pub fn hold(&self) -> Held<'_> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Held { worker: self, inner, now: self.shared.clock.now() }
    }

    /// Asks, waits for what the answer waits for, and makes the response.
    ///
    /// # Errors
    /// Another question had the same name.
    pub(crate) async fn ask<R>(
        &self,
        request: &Request<'_>,
        how: How,
        respond: impl Fn(&Answer, &Catalogue, Now) -> R,
    ) -> Result<R, IdReused> {
        self.ask_within(request, how, Duration::MAX, respond).await
    }

    /// Asks as [`Worker::ask`] does, for a caller that waits for `longest` at most.
    pub(crate) async fn ask_within<R>(
        &self,
        request: &Request<'_>,
        mut how: How,
        mut longest: Duration,
        respond: impl Fn(&Answer, &Catalogue, Now) -> R,
    ) -> Result<R, IdReused> {
        let shared = &self.shared;
        let (mut claim, mut keep_wait) = (None, Duration::ZERO);
        let begun = Instant::now();
        if let Some((recording, names)) = self.shared_name(how) {
            match names.claim(&shared.node, &*shared.clock, recording.id, longest).await {
                Named::Claimed(claimed) => {
                    claim = Some(Deciding::new(shared, claimed));
                    keep_wait = idempotency::WAIT.min(longest);
                }
                Named::Unsure(claimed) => claim = Some(Deciding::new(shared, claimed)),
                Named::Ended => return Err(IdReused),
                Named::Kept(kept) => {
                    if let Some(repeated) = self.hold().repeat(request, how, &kept, &respond) {
                        return repeated;
                    }
                }
                Named::Alone => {}
            }
            // Time spent waiting for the store is not waited again for its pools.
            how.waited = begun.elapsed();
            longest = longest.saturating_sub(begun.elapsed());
        }
        let asked = self.hold().ask_patiently(request, how, longest, &respond);
        let answer = self.finish(request, (how, longest), asked, respond).await;
        if let Some(claim) = claim {
            claim.keep(keep_wait.saturating_sub(begun.elapsed())).await;
        }
        answer
    }

    /// The name of a question, if other nodes of the region may have answered it and this one has not.
    pub(crate) fn shared_name(&self, how: How) -> Option<(Recording, &SharedNames)> {
        let recording = how.recording.filter(|recording| recording.is_repeatable && how.ask.charge)?;
        let siblings = self.shared.siblings.get()?;
        let is_known = self.shared.node.remembers(recording.id, self.shared.clock.now());
        (!is_known).then_some((recording, &siblings.names))
    }

    /// Waits for what an answer waits for: units from elsewhere, or the disk. The disk gets `longest`, less
    /// the time waited so far.
    pub(crate) async fn finish<R>(
        &self,
        request: &Request<'_>,
        (how, longest): (How, Duration),
        mut asked: Asked<R>,
        respond: impl Fn(&Answer, &Catalogue, Now) -> R,
    ) -> Result<R, IdReused> {
        let begun = Instant::now();
        loop {
            match asked {
                Asked::Reused => return Err(IdReused),
                Asked::Now(response) => return Ok(response),
                Asked::Unwritten(response, unwritten) => {
                    let left = longest.saturating_sub(begun.elapsed());
                    return Ok(match self.settle(*unwritten, left).await {
                        None => response,
                        Some((denied, catalogue)) => respond(&denied, &catalogue, self.shared.clock.now()),
                    });
                }
                Asked::Waits(mut patience) => {
                    patience.wait().await;
                    asked = self.hold().ask_again(request, how, patience, &respond);
                }
            }
        }
    }

    /// Waits until an answer may leave, for at most `longest`. If the disk was too slow, or is full, returns
    /// the denial that leaves instead.
    pub async fn settle(&self, unwritten: Unwritten, longest: Duration) -> Option<(Answer, Arc<Catalogue>)> {
        if let Some(writer) = &self.shared.writer
            && writer.wait_for(unwritten.batch, longest).await
        {
            return None;
        }
        Some(unwritten.deny())
    }

    /// Counts a request that was refused.
    pub fn refuse(&self, fault: &dyn std::fmt::Display) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).tally.bad_requests += 1;
        debug!(%fault, "request refused");
    }

    /// Counts a settlement.
    pub(crate) fn count_settled(&self, word: Word, refunded: &[Refunded]) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.tally.settle(word, refunded);
    }

    /// The counts so far. Reading them changes nothing.
    pub(crate) fn counted(&self) -> Tally {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).tally.clone()
    }

    /// Requests that no limit was about.
    pub(crate) fn unmatched(&self) -> unmatched::Counts {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).tally.unmatched_requests.clone()
    }

    /// The cells of one limit, by its slot, as they were counted so far.
    fn cells_of(&self, slot: u32, now: Now) -> LimitCells {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).cells.of(slot, now)
    }

    /// Adds what the hottest cells of every limit have left, by its slot.
    pub(crate) fn add_hottest(&self, all: &mut Vec<Hottest>, now: Now) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).cells.add_hottest(all, now);
    }
}

impl Unwritten {
    /// The denial that leaves if the disk is too slow.
    pub fn deny(mut self) -> (Answer, Arc<Catalogue>) {
        self.answer.deny_unwritten(&self.catalogue);
        (self.answer, self.catalogue)
    }
}

impl Held<'_> {
    /// Asks, and makes the response from the answer. With [`Unwritten`], the response may leave
    /// only after [`Worker::settle`].
    #[inline]
    pub fn ask<R>(
        &mut self,
        request: &Request<'_>,
        ask: Ask,
        respond: impl FnOnce(&Answer, &Arc<Catalogue>) -> R,
    ) -> (R, Option<Unwritten>) {
        // Without a name, no other question can have had the same name.
        let _ = self.decide(request, ask.into());
        self.answer(request, ask, respond)
    }

    /// As [`Held::ask`], for a request that may wait up to `longest` for units from elsewhere, if its limits
    /// let it.
    #[inline]
    pub(crate) fn ask_patiently<R>(
        &mut self,
        request: &Request<'_>,
        how: How,
        longest: Duration,
        respond: impl FnOnce(&Answer, &Catalogue, Now) -> R,
    ) -> Asked<R> {
        let may_draw = how.may_draw() && longest >= DRAW_WAIT && !self.worker.shared.is_draining();
        let forwarding = if may_draw { Forwarding::May } else { Forwarding::Never };
        if self.decide(request, How { ask: how.ask.forwarding(forwarding), ..how }).is_err() {
            return Asked::Reused;
        }
        if !self.inner.asker.last().0.allowed
            && let Some(mut patience) = self.patience(longest, how.waited)
        {
            self.draw(&mut patience);
            return Asked::Waits(patience);
        }
        self.asked(request, how.ask, respond)
    }

    /// Repeats the answer that another node gave under the same name; `None` if the kept answer cannot be
    /// read.
    fn repeat<R>(
        &mut self,
        request: &Request<'_>,
        how: How,
        kept: &[u8],
        respond: impl FnOnce(&Answer, &Catalogue, Now) -> R,
    ) -> Option<Result<R, IdReused>> {
        match self.inner.asker.repeat(how.recording.as_ref()?, kept, self.now)? {
            Err(IdReused) => Some(Err(IdReused)),
            Ok(_) => {
                let now = self.now;
                // The answer waits for no disk of this node.
                let (response, _) =
                    self.answer(request, how.ask, |answer, catalogue| respond(answer, catalogue, now));
                Some(Ok(response))
            }
        }
    }

    /// Asks again after a wait.
    pub(crate) fn ask_again<R>(
        &mut self,
        request: &Request<'_>,
        how: How,
        patience: Patience,
        respond: impl FnOnce(&Answer, &Catalogue, Now) -> R,
    ) -> Asked<R> {
        let forwarding = if how.may_draw() { patience.forwarding() } else { Forwarding::Never };
        let ask = how.ask.again().forwarding(forwarding);
        if self.decide(request, How { ask, ..how }).is_err() {
            return Asked::Reused;
        }
        let (answer, catalogue) = self.inner.asker.last();
        let allowed = answer.allowed;
        if !allowed && patience.goes_on(denied(answer)) {
            let left =
                Duration::from_nanos(self.worker.shared.node.patience_ns(answer, catalogue, u64::MAX, 0));
            if let Some(mut patience) = patience.shorten(left) {
                self.draw(&mut patience);
                return Asked::Waits(patience);
            }
        }
        self.inner.tally.waited[usize::from(!allowed)] += 1;
        self.asked(request, ask, respond)
    }

    /// Forwards the charge of a request that was just denied and goes on waiting.
    fn draw(&self, patience: &mut Patience) {
        let shared = &self.worker.shared;
        if patience.draw(&shared.node, &self.inner.asker, self.now) {
            shared.waiting.call();
        }
    }

    /// How the last request may wait, if it may and there is room.
    #[cold]
    fn patience(&mut self, longest: Duration, waited: Duration) -> Option<Patience> {
        let shared = &self.worker.shared;
        let (answer, catalogue) = self.inner.asker.last();
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let patience = shared.node.patience_ns(answer, catalogue, ns(longest), ns(waited));
        let patience = Duration::from_nanos(patience);
        if patience.is_zero() || shared.is_draining() {
            return None;
        }
        let patience = shared.waiting.patience(patience, denied(answer), self.now.steady_ns);
        self.inner.tally.crowded += u64::from(patience.is_none());
        patience
    }

    #[inline]
    fn decide(&mut self, request: &Request<'_>, how: How) -> Result<(), IdReused> {
        let Inner { asker, tally, .. } = &mut *self.inner;
        let timed = tally.is_sampled().then(std::time::Instant::now);
        match &how.recording {
            None => {
                asker.check(request, self.now, how.ask);
            }
            Some(recording) => {
                asker.check_recorded(request, self.now, how.ask, recording)?;
            }
        }
        if let Some(begun) = timed {
            tally.decision.record(&DECISION_SECONDS, begun.elapsed().as_secs_f64());
        }
        if asker.last().0.reason == Reason::NoMatch {
            self.decide_unmatched(request, how.ask);
        }
        Ok(())
    }

    /// Decides a request that no limit matches.
    #[cold]
    fn decide_unmatched(&mut self, request: &Request<'_>, ask: Ask) {
        let Inner { asker, tally, .. } = &mut *self.inner;
        let shared = &self.worker.shared;
        if ask.charge {
            tally.unmatched_requests.count(request.domain, &shared.unmatched_domains);
        }
        let has_limits = !asker.last().1.limits_of(request.domain).is_empty();
        if shared.settings().no_match.of(request.domain, has_limits) == NoMatch::Deny {
            asker.deny_unmatched();
        }
    }

    /// Counts the last answer, and makes the response from it.
    #[inline]
    fn answer<R>(
        &mut self,
        request: &Request<'_>,
        ask: Ask,
        respond: impl FnOnce(&Answer, &Arc<Catalogue>) -> R,
    ) -> (R, Option<Unwritten>) {
        let Inner { asker, tally, cells, random } = &mut *self.inner;
        let (answer, catalogue) = asker.last();
        if let Some(most_ns) = spread_ns(answer, catalogue) {
            asker.ask_later(next(random) % most_ns);
        }
        let (answer, catalogue) = asker.last();
        if answer.charge.is_some_and(|charge| charge.is_repeat) {
            tally.repeats += 1;
        } else if ask.charge {
            cells.record(answer, catalogue, request, tally.is_sampled(), self.now);
            tally.record(answer, catalogue, &self.worker.shared.hinted);
        }
        if enabled!(tracing::Level::DEBUG) {
            trace(&self.worker.shared, request, answer, catalogue);
        }
        let response = respond(answer, catalogue);
        let unwritten = (answer.after_batch > 0).then(|| Unwritten {
            answer: answer.clone(),
            catalogue: Arc::clone(catalogue),
            batch: answer.after_batch,
        });
        (response, unwritten)
    }

    #[inline]
    fn asked<R>(
        &mut self,
        request: &Request<'_>,
        ask: Ask,
        respond: impl FnOnce(&Answer, &Catalogue, Now) -> R,
    ) -> Asked<R> {
        let now = self.now;
        match self.answer(request, ask, |answer, catalogue| respond(answer, catalogue, now)) {
            (response, None) => Asked::Now(response),
            (response, Some(unwritten)) => Asked::Unwritten(response, Box::new(unwritten)),
        }
    }
}

/// A caller that waits for the edge of a window is told to come back up to this much later: all keys of a
/// limit wait for the same edge.
const SPREAD_NS_MAX: u64 = 5_000_000_000;
/// The delay is at most this part of the window, too.
const SPREAD_PART: u64 = 16;

/// How much later a denied caller may be told to come back, in nanoseconds; `None` if nobody else waits for
/// the same moment.
#[inline]
fn spread_ns(answer: &Answer, catalogue: &Catalogue) -> Option<u64> {
    if answer.allowed || answer.reason != Reason::OverLimit || is_never(answer.retry_after_ns) {
        return None;
    }
    let decisive = &answer.limits[answer.decisive?];
    let algorithm = &catalogue.limits[decisive.limit as usize].limit.algorithm;
    let most_ns = SPREAD_NS_MAX.min(algorithm.period_ns() / SPREAD_PART);
    (algorithm.has_common_edges() && most_ns > 0).then_some(most_ns)
}

/// The next number of a random sequence (G. Marsaglia, "Xorshift RNGs", 2003).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The limits that deny, as a set of bits by their places. All places from the last bit on share that bit.
fn denied(answer: &Answer) -> u64 {
    let denied = answer.limits.iter().enumerate().filter(|(_, limit)| limit.outcome == Outcome::Deny);
    denied.fold(0, |all, (place, _)| all | 1 << place.min(63))
}

/// A span for a decision. Keys never appear; the value of `trace_key` does as a keyed hash, where
/// the config names one.
#[cold]
fn trace(shared: &Shared, request: &Request<'_>, answer: &Answer, catalogue: &Catalogue) {
    let decisive = answer.decisive.map(|number| &answer.limits[number]);
    let limit = decisive.map(|limit| catalogue.limits[limit.limit as usize].limit.path());
    let retry_after_ms =
        (!answer.allowed && !is_never(answer.retry_after_ns)).then(|| ms_rounded_up(answer.retry_after_ns));
    let settings = shared.settings();
    let value = settings
        .trace_key
        .as_ref()
        .and_then(|key| request.descriptors().find_map(|d| d.value(key.as_bytes())));
    let tenant = value.map(|value| {
        // No limit has this id, so that these hashes are not those of any cell.
        let tag = Tagger::new(&shared.key, LimitId(0)).one(value);
        format!("{:016x}", tag.0 as u64)
    });
    let decision = if answer.allowed { "allow" } else { "deny" };
    let span =
        debug_span!("decision", limit, decision, reason = answer.reason.as_str(), retry_after_ms, tenant);
    span.in_scope(|| debug!("decided"));
}
