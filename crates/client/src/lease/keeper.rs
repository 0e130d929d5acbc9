//! Keeps a lease in units: asks for units before they run out, and gives unspent units back.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{Denial, FOREVER, LeaseOptions, Shared, demand::RecentDemand};
use crate::{
    CheckResponse, Client, ClientError, LimitResult, Outcome, Question, Reason,
    refunds::{insist, is_settled},
    settings::SETTINGS,
};

/// The background task of a lease.
pub(super) struct Keeper {
    client: Client,
    question: Question,
    options: LeaseOptions,
    shared: Arc<Shared>,
    demand: RecentDemand,
    held: Option<HeldUnits>,
    /// The question that was sent and perhaps charged, but not answered.
    pending: Option<PendingQuestion>,
    not_before: Instant,
    /// Units spent since demand was last measured, from fillings that have ended.
    spent: u64,
    settlements: JoinSet<()>,
    /// Distinguishes this lease's reservations from all others.
    nonce: u128,
    asked: u64,
}

/// The units in the lease balance.
struct HeldUnits {
    /// Empty if no limit counts the units.
    charge_id: String,
    units: u64,
    /// The units left when demand was last measured. The units spent since then are not in the demand yet.
    uncounted: u64,
    /// When to check whether the units are still wanted.
    renew: Option<Instant>,
    expires: Instant,
}

/// A question that is repeated unchanged until it is answered: the first try may have been charged.
struct PendingQuestion {
    id: String,
    units: u64,
    /// When the question was first sent.
    sent: Instant,
}

impl Keeper {
    pub(super) fn new(
        client: Client,
        question: Question,
        options: LeaseOptions,
        shared: Arc<Shared>,
    ) -> Self {
        let now = Instant::now();
        let mut nonce = [0; 16];
        // Without randomness, the address of the shared state distinguishes this lease from others of this
        // process.
        if getrandom::fill(&mut nonce).is_err() {
            nonce[..8].copy_from_slice(&(Arc::as_ptr(&shared) as u64).to_le_bytes());
        }
        Self {
            client,
            question,
            shared,
            demand: RecentDemand::new(&options, now),
            options,
            held: None,
            pending: None,
            not_before: now,
            spent: 0,
            settlements: JoinSet::new(),
            nonce: u128::from_le_bytes(nonce),
            asked: 0,
        }
    }

    /// Runs until the lease is closed, or its last handle is gone.
    pub(super) async fn run(mut self, mut is_ending: watch::Receiver<bool>) {
        // The end is checked between any two calls, not only when there is nothing to do.
        while !*is_ending.borrow() && is_ending.has_changed().is_ok() {
            let now = Instant::now();
            self.renew_or_expire(now);
            if self.is_wanted() && now >= self.not_before {
                self.ask().await;
                continue;
            }
            let next = self.next();
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                biased;
                _ = is_ending.wait_for(|is_ending| *is_ending) => break,
                () = shared.wanted.notified() => {}
                () = sleep_until(next) => {}
                Some(_) = self.settlements.join_next(), if !self.settlements.is_empty() => {}
            }
        }
        self.end().await;
    }

    fn renew_or_expire(&mut self, now: Instant) {
        let Some(held) = &mut self.held else { return };
        if now >= held.expires {
            let left = self.shared.balance.drain();
            self.release(left);
        } else if held.renew.is_some_and(|renew| now >= renew) {
            held.renew = None;
            // If nobody wanted the units, they are left to expire.
            if held.units > self.shared.balance.units_left() {
                self.shared.is_wanted.store(true, Ordering::Relaxed);
            }
        }
    }

    fn is_wanted(&self) -> bool {
        self.shared.is_wanted.load(Ordering::Relaxed)
    }

    /// Clears the request: a want from now on is a new one.
    fn forget_wanted(&self) {
        self.shared.is_wanted.store(false, Ordering::Release);
    }

    /// When to look again if nothing happens.
    fn next(&self) -> Instant {
        let held = self.held.iter().flat_map(|held| [Some(held.expires), held.renew]);
        let asking = self.is_wanted().then_some(self.not_before);
        held.chain([asking]).flatten().min().unwrap_or_else(|| Instant::now() + FOREVER)
    }

    /// Asks for units, and handles the answer.
    async fn ask(&mut self) {
        let now = Instant::now();
        let pending = match self.pending.take() {
            Some(pending) if now < pending.sent + self.options.ttl => pending,
            // The charge has lapsed, if there was one, and no caller waits.
            Some(_) if self.shared.missed.load(Ordering::Relaxed) == 0 => return self.forget_wanted(),
            _ => self.question_of(now),
        };
        let question = self.question.clone().at_most(pending.units, self.options.ttl).id(&pending.id);
        let answer = self.client.check(question).await;
        let now = Instant::now();
        let is_unanswered = !matches!(answer, Ok(_) | Err(ClientError::Refused { .. }));
        self.shared.is_unanswered.store(is_unanswered, Ordering::Relaxed);
        if is_unanswered {
            // The question may have been charged. Asking again tells, and lets the units be given back, so
            // they are still wanted.
            self.not_before = now + SETTINGS.lease.unanswered_pause;
            self.pending = Some(pending);
            return;
        }
        // This answer serves the callers that found no units meanwhile.
        self.forget_wanted();
        match answer {
            Ok(answer) if answer.allowed => self.granted(&pending, &answer, now),
            Ok(answer) => self.denied(answer, now),
            Err(_) => self.not_before = now + SETTINGS.lease.unsure_pause,
        }
    }

    fn question_of(&mut self, now: Instant) -> PendingQuestion {
        let mut wanted = std::mem::take(&mut self.spent);
        if let Some(held) = &mut self.held {
            let left = self.shared.balance.units_left();
            wanted += held.uncounted.saturating_sub(left);
            held.uncounted = left;
        }
        let missed = self.shared.missed.swap(0, Ordering::Relaxed);
        let units = self.demand.units(wanted.saturating_add(missed), now);
        self.asked += 1;
        PendingQuestion { id: format!("lease-{:032x}-{}", self.nonce, self.asked), units, sent: now }
    }

    fn granted(&mut self, pending: &PendingQuestion, answer: &CheckResponse, now: Instant) {
        let is_unlimited = matches!(answer.reason(), Reason::NoMatch | Reason::Unlimited);
        let is_counted = !answer.charge_id.is_empty();
        // A node hands out no more than the lease asked for. If a node did, the surplus would be given
        // back.
        let units = match (is_counted, is_unlimited) {
            (true, _) => answer.charged.min(pending.units),
            (false, true) => pending.units,
            (false, false) => 0,
        };
        let expires = pending.sent + self.life(answer);
        let new =
            HeldUnits { units, uncounted: units, charge_id: answer.charge_id.clone(), renew: None, expires };
        // An older charge may belong to a window that has ended since, and the answer does not say. Such a
        // charge is given back, and new units are asked for if a caller waits.
        if answer.is_repeat {
            let is_missed = self.shared.missed.load(Ordering::Relaxed) > 0;
            self.shared.is_wanted.fetch_or(is_missed, Ordering::AcqRel);
            self.settle(new, 0);
            return;
        }
        // Units that cannot be spent yet, or no longer, are given back at once.
        if is_paced(answer) || units == 0 || now >= expires {
            let pause =
                if now >= expires { SETTINGS.lease.window_margin } else { SETTINGS.lease.unsure_pause };
            self.not_before = now + pause;
            self.settle(new, 0);
            return;
        }
        self.shared.denial.store(None);
        let is_older_better = self
            .held
            .as_ref()
            .is_some_and(|held| held.renew.is_some() && self.shared.balance.units_left() >= units);
        if is_older_better {
            self.settle(new, 0);
            return;
        }
        let left = self.shared.balance.fill(units, expires, units.div_ceil(SETTINGS.lease.low_part));
        self.release(left);
        let lead = (self.options.refresh / 2).min((expires - now) / 4);
        self.held = Some(HeldUnits { renew: Some(expires - lead), ..new });
    }

    fn denied(&mut self, answer: CheckResponse, now: Instant) {
        let wait = answer.retry_after_ms.map(|wait_ms| Duration::from_millis(wait_ms).min(FOREVER));
        let back = wait.map(|wait| now + wait);
        self.not_before =
            now + wait.unwrap_or(SETTINGS.lease.unsure_pause).min(SETTINGS.lease.denial_pause_max);
        let until = back.unwrap_or(self.not_before);
        self.shared.denial.store(Some(Arc::new(Denial { answer, back, until })));
    }

    /// How long the units of this answer may be spent, counted from the question.
    fn life(&self, answer: &CheckResponse) -> Duration {
        // The node may allow less time than the lease asked for.
        let allowed = match answer.lapses_in_ms {
            0 => self.options.ttl,
            ms => Duration::from_millis(ms),
        };
        let ttl = self.options.ttl.min(allowed);
        let life = ttl - ttl / SETTINGS.lease.margin_part;
        let window = answer.limits.iter().filter(|limit| ends(limit)).map(|limit| limit.reset_after_ms).min();
        match window {
            Some(window_ms) => {
                life.min(Duration::from_millis(window_ms).saturating_sub(SETTINGS.lease.window_margin))
            }
            None => life,
        }
    }

    /// Settles the units of the ended filling, of which `left` are unspent.
    fn release(&mut self, left: u64) {
        if let Some(held) = self.held.take() {
            let spent = held.units - left;
            self.spent += held.uncounted.saturating_sub(left);
            self.settle(held, spent);
        }
    }

    /// Commits the spent units. The node reserves capacity for all the units until then.
    fn settle(&mut self, held: HeldUnits, spent: u64) {
        while self.settlements.try_join_next().is_some() {}
        if held.charge_id.is_empty() {
            return;
        }
        if self.settlements.len() >= SETTINGS.lease.settlements_max {
            self.shared.settlements_lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (client, shared) = (self.client.clone(), Arc::clone(&self.shared));
        self.settlements.spawn(async move {
            if !is_settled(&insist(|| client.commit(&held.charge_id, spent)).await) {
                shared.settlements_lost.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Gives everything back, and waits until that is done.
    async fn end(mut self) {
        let left = self.shared.balance.drain();
        self.release(left);
        self.shared.denial.store(None);
        if let Some(pending) = self.pending.take() {
            let question = self.question.clone().at_most(pending.units, self.options.ttl).id(&pending.id);
            // A charge whose answer was lost is found by its id.
            if let Ok(answer) = self.client.check(question).await {
                let held = HeldUnits {
                    charge_id: answer.charge_id,
                    units: answer.charged,
                    uncounted: 0,
                    renew: None,
                    expires: pending.sent,
                };
                self.settle(held, 0);
            }
        }
        while self.settlements.join_next().await.is_some() {}
    }
}

/// Whether the units have to be spent one after the other.
fn is_paced(answer: &CheckResponse) -> bool {
    let is_leaky =
        |limit: &LimitResult| limit.outcome() == Outcome::Allow && limit.algorithm == "leaky_bucket";
    answer.delay_ms > 0 || answer.limits.iter().any(is_leaky)
}

/// Whether the limit's units expire with its window.
fn ends(limit: &LimitResult) -> bool {
    limit.outcome() == Outcome::Allow && matches!(limit.algorithm.as_str(), "fixed_window" | "quota")
}
