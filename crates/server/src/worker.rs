//! One thread's share of the service: an asker and its counts. No thread waits for another.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use acequia_api::acequia::v1::Settled as Word;
use acequia_limits::{
    Charge, LimitId, Now, Reason, Request, algorithm::is_never, cell::Tagger, time::ms_rounded_up,
};
use acequia_node::{
    Answer, Ask, Catalogue, FORWARD_WAIT_NS, Forwarding, IdReused, LimitAnswer, Outcome, Overdraft,
    Recording, Refunded,
};
use futures::future::BoxFuture;
use tokio::time::Instant;
use tracing::{debug, debug_span, enabled};

use crate::{
    config::May,
    counting::{Counting, Hits},
    idempotency::{Deciding, Named, SharedNames},
    patience::Patience,
    question::BadRequest,
    settings::SETTINGS,
    shared::Shared,
    tally::{DECISION_SECONDS, Ignored},
    unmatched::NoMatch,
    workers::{SharedState, WorkerState, lock},
};

/// A caller that waits for less has no charges forwarded.
const FORWARD_WAIT: Duration = Duration::from_nanos(FORWARD_WAIT_NS);

/// One thread's way to ask. Its lock is its own: only a look at the counts takes it besides.
#[derive(Debug)]
pub struct Worker {
    pub(crate) shared: Arc<Shared>,
    state: SharedState,
}

/// A worker, locked: asks any number of questions under one lock and one reading of the clock.
#[derive(Debug)]
pub struct Held<'a> {
    worker: &'a Worker,
    state: MutexGuard<'a, WorkerState>,
    /// The time that all questions are asked at.
    pub now: Now,
}

/// How a request is asked, and how its charge is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct How {
    pub(crate) ask: Ask,
    pub(crate) recording: Option<Recording>,
    /// The owner of what is remembered; 0 for no particular owner.
    owner: u32,
    /// How long the caller waits at most.
    longest: Duration,
    /// How long the request has waited already, for the store or for another node that decided the same id.
    waited: Duration,
}

impl How {
    /// A way to ask, with what remembers the charge, if anything does. The caller waits for as long as it
    /// takes.
    pub(crate) const fn new(ask: Ask, recording: Option<Recording>) -> Self {
        Self { ask, recording, owner: 0, longest: Duration::MAX, waited: Duration::ZERO }
    }

    /// This way, with the owner of what is remembered.
    pub(crate) fn of(mut self, owner: u32) -> Self {
        self.owner = owner;
        if let Some(recording) = &mut self.recording {
            recording.owner = owner;
        }
        self
    }

    /// This way, for a caller that waits for `longest` at most.
    pub(crate) const fn within(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// What the caller must be allowed to do.
    pub(crate) fn action(&self) -> May {
        match self.recording.is_some_and(|recording| recording.reserve.is_some()) {
            _ if self.is_report() => May::Report,
            true => May::Reserve,
            false => May::Check,
        }
    }

    /// Whether another node may make the charge. Not if the charge must be known here, to be given back or
    /// spent later.
    fn may_forward(&self) -> bool {
        self.recording.is_none() && self.ask.charge && !self.ask.holds && !self.is_report()
    }

    /// Whether the caller spends what is charged without asking again.
    fn is_lease(&self) -> bool {
        self.recording.and_then(|recording| recording.reserve).is_some_and(|reserve| reserve.at_most)
    }

    /// Whether the cost was spent already: a report waits for no units.
    fn is_report(&self) -> bool {
        self.ask.overdraft == Overdraft::Spent
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
    /// One more worker of a server.
    pub fn new(shared: &Arc<Shared>) -> Arc<Self> {
        let state = shared.workers.add(&shared.node);
        Arc::new(Self { shared: Arc::clone(shared), state })
    }

    /// Takes the worker, and reads the clock.
    pub fn hold(&self) -> Held<'_> {
        Held { worker: self, state: lock(&self.state), now: self.shared.clock.now() }
    }

    /// Asks, waits for what the answer waits for, and makes the response.
    ///
    /// # Errors
    /// Another question had the same name.
    pub(crate) async fn ask<R>(
        &self,
        request: &Request<'_>,
        mut how: How,
        respond: impl Fn(&Answer, &Catalogue, Now) -> R,
    ) -> Result<R, IdReused> {
        if let Some(counting) = self.shared.counting.get() {
            return Ok(self.ask_counted(counting, request, how.ask, respond).await);
        }
        let (mut claim, mut keep_wait) = (None, Duration::ZERO);
        let begun = Instant::now();
        if let Some((recording, names)) = self.shared_name(how) {
            match names.claim(recording.id, how.longest).await {
                Named::Claimed(claimed) => {
                    claim = Some(Deciding::new(names, claimed));
                    keep_wait = SETTINGS.names.wait.min(how.longest);
                }
                Named::Unsure(claimed) => claim = Some(Deciding::new(names, claimed)),
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
            how.longest = how.longest.saturating_sub(begun.elapsed());
        }
        let asked = self.hold().ask_patiently(request, how, &respond);
        let answer = self.finish(request, how, asked, respond).await;
        if let Some(claim) = claim {
            claim.keep(keep_wait.saturating_sub(begun.elapsed())).await;
        }
        answer
    }

    /// Checks that the request is no lease of slots: nobody would know of the requests that take them.
    ///
    /// # Errors
    /// The request leases slots.
    pub(crate) fn may_lease(&self, request: &Request<'_>, how: How) -> Result<(), BadRequest> {
        if how.recording.is_some() {
            self.may_record()?;
        }
        if !how.is_lease() || !self.hold().counts_under_way(request) {
            return Ok(());
        }
        self.refuse(&BadRequest::LeaseOfSlots);
        Err(BadRequest::LeaseOfSlots)
    }

    /// Checks that charges are remembered here.
    ///
    /// # Errors
    /// They are not, because hits are counted elsewhere.
    pub(crate) fn may_record(&self) -> Result<(), BadRequest> {
        if self.shared.counting.get().is_none() {
            return Ok(());
        }
        self.refuse(&BadRequest::Counted);
        Err(BadRequest::Counted)
    }

    /// Asks whoever counts, and makes the response.
    async fn ask_counted<R>(
        &self,
        counting: &Counting,
        request: &Request<'_>,
        ask: Ask,
        respond: impl Fn(&Answer, &Catalogue, Now) -> R,
    ) -> R {
        let (cells, now) = {
            let mut held = self.hold();
            let now = held.now;
            (held.state.asker.counted(request, now, ask), now)
        };
        let counts = counting.count(&cells, now, Hits::Added).await;
        let mut held = self.hold();
        let now = held.now;
        let answer = held.state.asker.answer_counted(&cells, &counts, now);
        if answer.reason == Reason::NoMatch {
            held.decide_unmatched(request, ask);
        }
        let (response, _) = held.answer(request, ask, |answer, catalogue| respond(answer, catalogue, now));
        response
    }

    /// Gives hits back to whoever counts; `None` if this node counts.
    pub(crate) fn give_back_counted(
        self: &Arc<Self>,
        request: &Request<'_>,
    ) -> Option<BoxFuture<'static, ()>> {
        self.shared.counting.get()?;
        let (cells, now) = {
            let mut held = self.hold();
            let now = held.now;
            (held.state.asker.counted(request, now, Ask::CHECK), now)
        };
        let worker = Arc::clone(self);
        Some(Box::pin(async move {
            if let Some(counting) = worker.shared.counting.get() {
                // What cannot be given back stays counted.
                counting.count(&cells, now, Hits::GivenBack).await;
            }
        }))
    }

    /// The name of a question, if other nodes of the region may have answered it and this one has not.
    pub(crate) fn shared_name(&self, how: How) -> Option<(Recording, &Arc<SharedNames>)> {
        let recording = how.recording.filter(|recording| recording.is_repeatable && how.ask.charge)?;
        let region = self.shared.own_region.get()?;
        let is_known = self.shared.node.remembers(recording.id, self.shared.clock.now());
        (!is_known).then_some((recording, &region.names))
    }

    /// Waits for what an answer waits for: units from elsewhere, or the disk. The disk gets the time that the
    /// caller waits, less the time waited so far.
    pub(crate) async fn finish<R>(
        &self,
        request: &Request<'_>,
        how: How,
        mut asked: Asked<R>,
        respond: impl Fn(&Answer, &Catalogue, Now) -> R,
    ) -> Result<R, IdReused> {
        let begun = Instant::now();
        loop {
            match asked {
                Asked::Reused => return Err(IdReused),
                Asked::Now(response) => return Ok(response),
                Asked::Unwritten(response, unwritten) => {
                    let left = how.longest.saturating_sub(begun.elapsed());
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
        lock(&self.state).tally.bad_requests += 1;
        debug!(%fault, "request refused");
    }

    /// Counts a settlement.
    pub(crate) fn count_settled(&self, word: Word, refunded: &[Refunded]) {
        lock(&self.state).tally.settle(word, refunded);
    }

    /// Counts what a proxy said in vain.
    pub(crate) fn count_ignored(&self, why: Ignored, times: usize) {
        lock(&self.state).tally.ignored[why as usize] += times as u64;
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
        self.ask_as(request, ask.into(), respond)
    }

    /// As [`Held::ask`], for a request whose caller asks for no record.
    #[inline]
    pub(crate) fn ask_as<R>(
        &mut self,
        request: &Request<'_>,
        how: How,
        respond: impl FnOnce(&Answer, &Arc<Catalogue>) -> R,
    ) -> (R, Option<Unwritten>) {
        let how = self.settle_hold(request, how);
        // Without a name, no other question can have had the same name.
        let _ = self.decide(request, how);
        self.answer(request, how.ask, respond)
    }

    /// Whether the request would take slots of requests under way.
    fn counts_under_way(&mut self, request: &Request<'_>) -> bool {
        let now = self.now;
        self.state.asker.counts_under_way(request, now)
    }

    /// As [`Held::ask`], for a request that may wait for units from elsewhere, if its limits let it.
    #[inline]
    pub(crate) fn ask_patiently<R>(
        &mut self,
        request: &Request<'_>,
        how: How,
        respond: impl FnOnce(&Answer, &Catalogue, Now) -> R,
    ) -> Asked<R> {
        let may_forward =
            how.may_forward() && how.longest >= FORWARD_WAIT && !self.worker.shared.is_draining();
        let forwarding = if may_forward { Forwarding::May } else { Forwarding::Never };
        let how = self.settle_hold(request, how);
        let is_spent = how.is_report() || how.ask.is_settled;
        let may_wait = self.worker.shared.node.is_shared() && !is_spent;
        let ask = if may_wait { how.ask.overdraft(Overdraft::Later) } else { how.ask };
        if self.decide(request, How { ask: ask.forwarding(forwarding), ..how }).is_err() {
            return Asked::Reused;
        }
        if may_wait && !self.state.asker.last().0.allowed {
            if let Some(mut patience) = self.patience(how) {
                self.forward(&mut patience);
                return Asked::Waits(patience);
            }
            if self.overdraw(request, how).is_err() {
                return Asked::Reused;
            }
        }
        self.asked(request, how.ask, respond)
    }

    /// Settles the hold that a request reports to without its name, if it does.
    #[inline]
    fn settle_hold(&mut self, request: &Request<'_>, how: How) -> How {
        let is_unnamed = how.recording.is_none() && how.ask.charge;
        if is_unnamed && self.state.asker.has_holds() && self.state.asker.settle_hold(request, self.now) {
            return How { ask: Ask { is_settled: true, ..how.ask }, ..how };
        }
        how
    }

    /// Gives back the costs of a request's descriptors; says whether anything came back.
    pub(crate) fn give_back(&mut self, request: &Request<'_>) -> bool {
        let refunded = self.state.asker.give_back(request, self.now);
        self.state.tally.refund(&refunded);
        !refunded.is_empty()
    }

    /// Asks a denied request for the last time: limits that say `charge: always` record it.
    fn overdraw(&mut self, request: &Request<'_>, how: How) -> Result<(), IdReused> {
        let (answer, catalogue) = self.state.asker.last();
        let is_always =
            |limit: &LimitAnswer| catalogue.limits[limit.limit as usize].limit.spec.charge == Charge::Always;
        if answer.allowed || !how.ask.charge || !answer.limits.iter().any(is_always) {
            return Ok(());
        }
        self.decide(request, How { ask: how.ask.again(), ..how })
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
        match self.state.asker.repeat(how.recording.as_ref()?, kept, self.now)? {
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
        let forwarding = if how.may_forward() { patience.forwarding() } else { Forwarding::Never };
        let ask = how.ask.again().forwarding(forwarding);
        if self.decide(request, How { ask: ask.overdraft(Overdraft::Later), ..how }).is_err() {
            return Asked::Reused;
        }
        let (answer, catalogue) = self.state.asker.last();
        let allowed = answer.allowed;
        if !allowed && patience.goes_on(denied(answer)) {
            let left =
                Duration::from_nanos(self.worker.shared.node.patience_ns(answer, catalogue, u64::MAX, 0));
            if let Some(mut patience) = patience.shorten(left) {
                self.forward(&mut patience);
                return Asked::Waits(patience);
            }
        }
        self.state.tally.waited[usize::from(!allowed)] += 1;
        if self.overdraw(request, how).is_err() {
            return Asked::Reused;
        }
        self.asked(request, ask, respond)
    }

    /// Forwards the charge of a request that was just denied and goes on waiting.
    fn forward(&self, patience: &mut Patience) {
        let shared = &self.worker.shared;
        if patience.forward(&shared.node, &self.state.asker, self.now) {
            shared.waiting.call();
        }
    }

    /// How the last request may wait, if it may and there is room.
    #[cold]
    fn patience(&mut self, how: How) -> Option<Patience> {
        let shared = &self.worker.shared;
        let (answer, catalogue) = self.state.asker.last();
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let patience = shared.node.patience_ns(answer, catalogue, ns(how.longest), ns(how.waited));
        let patience = Duration::from_nanos(patience);
        if patience.is_zero() || shared.is_draining() {
            return None;
        }
        let patience = shared.waiting.patience(patience, denied(answer), self.now.steady_ns);
        self.state.tally.crowded += u64::from(patience.is_none());
        patience
    }

    #[inline]
    fn decide(&mut self, request: &Request<'_>, how: How) -> Result<(), IdReused> {
        let WorkerState { asker, tally, .. } = &mut *self.state;
        let timed = tally.is_sampled().then(std::time::Instant::now);
        match &how.recording {
            None => {
                asker.check(request, self.now, how.ask);
                if how.ask.is_settled {
                    asker.wait_for_settled();
                }
                if asker.holds_units() {
                    let names = &self.worker.shared.names;
                    asker.remember_held(request.cost, &names.held(how.owner));
                }
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
        let WorkerState { asker, tally, .. } = &mut *self.state;
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
        let WorkerState { asker, tally, cells, random } = &mut *self.state;
        let (answer, catalogue) = asker.last();
        if let Some(most_ns) = spread_ns(answer, catalogue) {
            asker.ask_later(next(random) % most_ns);
        }
        let (answer, catalogue) = asker.last();
        if answer.charge.is_some_and(|charge| charge.is_repeat) {
            tally.repeats += 1;
        } else if ask.charge {
            cells.record(answer, catalogue, request, tally.is_sampled(), self.now);
            tally.record(answer, catalogue, request, &self.worker.shared.labels);
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

/// How much later a denied caller may be told to come back, in nanoseconds; `None` if nobody else waits for
/// the same moment.
#[inline]
fn spread_ns(answer: &Answer, catalogue: &Catalogue) -> Option<u64> {
    if answer.allowed || answer.reason != Reason::OverLimit || is_never(answer.retry_after_ns) {
        return None;
    }
    let decisive = &answer.limits[answer.decisive?];
    let algorithm = &catalogue.limits[decisive.limit as usize].limit.algorithm;
    let most_ns = SETTINGS.requests.spread_ns_max.min(algorithm.period_ns() / SETTINGS.requests.spread_part);
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
