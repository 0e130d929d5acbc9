//! Decides in memory, with units that a node has charged in advance.

mod balance;
mod demand;
mod interceptor;
mod keeper;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

pub use self::interceptor::LeaseInterceptor;
use self::{
    balance::{FOREVER, LeaseBalance, TakeResult, UNITS_MAX},
    keeper::Keeper,
};
use crate::{CheckResponse, Client, ClientError, Question, Reason, denial::whole_ms, settings::SETTINGS};

/// The size and the lifetime of a [`Lease`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// How long the units of one request should last. A lease asks for as many units as were wanted
    /// recently in such a time, and half as many again. At least 10 ms; 1 s by default.
    ///
    /// Longer: fewer calls, and more units that others cannot spend meanwhile. A refresh should be many
    /// times a node's response time, or the lease runs dry while it waits.
    pub refresh: Duration,
    /// How long units may be held, counted from the request for them. Twice the refresh to one hour; 10 s
    /// by default.
    ///
    /// If this process dies, units are lost to others for this long. Units may be spent at most this much
    /// later than they were charged. Shorter is more exact, but the ttl should be several refreshes.
    pub ttl: Duration,
    /// The fewest units that a lease asks for, and the number of its first request. 1 to `units_max`; 10 by
    /// default.
    pub units_min: u64,
    /// The most units held at once, and so the most that are lost if this process dies. At most
    /// [`LEASE_UNITS_MAX`]; 100 000 by default. A decision that costs more asks the node.
    pub units_max: u64,
}

/// The most units that a lease can hold.
pub const LEASE_UNITS_MAX: u64 = UNITS_MAX;

impl Default for LeaseOptions {
    fn default() -> Self {
        let (refresh, ttl) = (Duration::from_secs(1), Duration::from_secs(10));
        Self { refresh, ttl, units_min: 10, units_max: 100_000 }
    }
}

/// A lease's answer from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseTake {
    /// The request may pass. Its units were charged in advance.
    Taken,
    /// The request may not pass, by a recent answer of a node.
    Denied {
        /// When to come back. `None` if the node knew of no wait that helps.
        retry_after: Option<Duration>,
    },
    /// The lease cannot decide: it holds too few units for this request, and has no denial from a node.
    /// Units may be on their way. Ask the node ([`Lease::check`]) in the meantime.
    Empty,
}

/// Decides for one hot cell in memory, with units that a node has charged in advance. Clones share the
/// units.
///
/// **A lease never hands out more than a node has charged for it**. A lease gives unspent units back when
/// it replaces them, when they are about to expire, and when it ends. Units that cannot be given back,
/// because this process or the way to the node is gone, count as spent. A lease holds nothing while nobody
/// asks.
///
/// The node reserves the units of a lease, and their capacity, until they are given back. The units count
/// from the charge on, so a limit is never exceeded over any interval. The cost is capacity: while a lease
/// is out, all other callers have fewer units. A node lets a lease live no longer than the whole limit
/// takes to come back, and no longer than the limit's window.
///
/// A lease is for limits that deny. A leaky bucket makes each request wait for its turn, so a lease of a
/// leaky bucket stays empty, and [`Lease::check`] asks the node every time.
///
/// A lease uses the monotonic clock, which stands still while a machine is suspended. Charged units stay
/// charged at the node, so units that are spent too late after a suspension are not spent twice.
#[derive(Clone)]
pub struct Lease {
    shared: Arc<Shared>,
    client: Client,
    question: Question,
    /// Dropped with the last clone, which ends the keeper.
    end: Arc<watch::Sender<bool>>,
    /// Closes when the keeper ends.
    ended: watch::Receiver<()>,
}

/// The state that handles and their keeper share.
#[derive(Debug)]
struct Shared {
    balance: LeaseBalance,
    /// Units that were wanted but not held, since the keeper looked last.
    missed: AtomicU64,
    /// A decision that costs more than this asks the node.
    units_max: u64,
    wanted: Notify,
    /// Whether the keeper has been woken, so that it is woken once.
    is_wanted: AtomicBool,
    denial: ArcSwapOption<Denial>,
    /// Whether the keeper's last question got no answer.
    is_unanswered: AtomicBool,
    settlements_lost: AtomicU64,
}

/// A node's denial.
#[derive(Debug)]
struct Denial {
    answer: CheckResponse,
    /// The time to come back that the node gave.
    back: Option<Instant>,
    /// The time after which the denial is no longer repeated.
    until: Instant,
}

impl Client {
    /// A lease of the cells that this question hits: see [`Lease`]. The lease asks for units when they are
    /// first wanted.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the options contradict each other. The error also occurs if the question
    /// has a cost, an id or a reservation, or is refundable: a lease sets these for its charges itself.
    ///
    /// # Panics
    /// Outside of a tokio runtime: a task keeps the lease.
    pub fn lease(&self, question: Question, options: LeaseOptions) -> Result<Lease, ClientError> {
        options.validate()?;
        if !question.is_bare() {
            let what =
                "a lease names and weighs its charges itself: leave out cost, id, refundable and reserve";
            return Err(ClientError::Refused { what: what.to_owned() });
        }
        let shared = Arc::new(Shared {
            balance: LeaseBalance::empty(Instant::now()),
            missed: AtomicU64::new(0),
            units_max: options.units_max,
            wanted: Notify::new(),
            is_wanted: AtomicBool::new(false),
            denial: ArcSwapOption::empty(),
            is_unanswered: AtomicBool::new(false),
            settlements_lost: AtomicU64::new(0),
        });
        let (end, is_ending) = watch::channel(false);
        let (is_running, ended) = watch::channel(());
        let keeper = Keeper::new(self.clone(), question.clone(), options, Arc::clone(&shared));
        tokio::spawn(async move {
            keeper.run(is_ending).await;
            drop(is_running);
        });
        Ok(Lease { shared, client: self.clone(), question, end: Arc::new(end), ended })
    }
}

impl LeaseOptions {
    fn validate(&self) -> Result<(), ClientError> {
        let refused = |what: String| Err(ClientError::Refused { what });
        let Self { refresh, ttl, units_min, units_max } = *self;
        let (refresh_min, ttl_max) = (SETTINGS.lease.refresh_min, SETTINGS.lease.ttl_max);
        if refresh < refresh_min || ttl > ttl_max || ttl / 2 < refresh {
            return refused(format!(
                "a lease's refresh of {refresh:?} and ttl of {ttl:?} do not fit: the refresh is at least {refresh_min:?}, the ttl at least twice the refresh and at most {ttl_max:?}"
            ));
        }
        if units_min == 0 || units_min > units_max || units_max > LEASE_UNITS_MAX {
            return refused(format!(
                "a lease of {units_min} to {units_max} units: it is 1 or more to at most {LEASE_UNITS_MAX}"
            ));
        }
        Ok(())
    }
}

impl Lease {
    /// May a request of this cost pass? Decided at once, in memory, from any thread and without a lock: for
    /// the hot path. A cost of 0 counts as 1.
    ///
    /// After a quiet time the lease holds nothing, so the first answer is [`LeaseTake::Empty`].
    #[inline]
    pub fn try_take(&self, cost: u64) -> LeaseTake {
        let cost = cost.max(1);
        match self.shared.balance.take(cost, Instant::now) {
            TakeResult::Taken => LeaseTake::Taken,
            TakeResult::TakenAndLow => {
                self.shared.want();
                LeaseTake::Taken
            }
            TakeResult::Short => self.shared.fall_short(cost),
        }
    }

    /// May a request of this cost pass? Decided in memory if possible, or else by the node. A cost of 0
    /// counts as 1.
    ///
    /// An allowing answer from memory names no limit and does not say what remains.
    ///
    /// # Errors
    /// As for [`Client::check`], if the node was asked.
    pub async fn check(&self, cost: u64) -> Result<CheckResponse, ClientError> {
        match self.try_take(cost) {
            LeaseTake::Taken => {
                let reason = Reason::WithinLimit.into();
                Ok(CheckResponse { allowed: true, reason, ..CheckResponse::default() })
            }
            LeaseTake::Denied { retry_after } => Ok(self.shared.denied(retry_after)),
            LeaseTake::Empty => self.client.check(self.question.clone().cost(cost.max(1))).await,
        }
    }

    /// Units that are held now, to spend or to give back.
    pub fn units_left(&self) -> u64 {
        self.shared.balance.units_left()
    }

    /// Whether the lease's last request for units got no answer.
    pub fn is_unanswered(&self) -> bool {
        self.shared.is_unanswered.load(Ordering::Relaxed)
    }

    /// How often units could not be given back, since the start, because no node answered in time. These
    /// units count as spent.
    pub fn settlements_lost(&self) -> u64 {
        self.shared.settlements_lost.load(Ordering::Relaxed)
    }

    /// Ends the lease, for its clones too, and waits until the rest is given back or cannot be. This takes
    /// a few times [`Options::deadline`](crate::Options::deadline). The lease is empty from now on.
    /// Dropping the last clone does the same without waiting, if the runtime goes on.
    pub async fn close(mut self) {
        self.end.send_replace(true);
        // Nothing is ever sent on this channel: an error means that the keeper has ended.
        let _ = self.ended.changed().await;
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("question", &self.question)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Wakes the keeper, once.
    fn want(&self) {
        if !self.is_wanted.load(Ordering::Relaxed) && !self.is_wanted.swap(true, Ordering::AcqRel) {
            self.wanted.notify_one();
        }
    }

    #[cold]
    fn fall_short(&self, cost: u64) -> LeaseTake {
        let now = Instant::now();
        if let Some(denial) = &*self.denial.load()
            && now < denial.until
        {
            // The keeper knows when to ask again.
            self.want();
            let retry_after = denial.back.map(|back| back.saturating_duration_since(now));
            return LeaseTake::Denied { retry_after };
        }
        if cost <= self.units_max {
            let add = |missed: u64| Some(missed.saturating_add(cost));
            let _ = self.missed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
            self.want();
        }
        LeaseTake::Empty
    }

    /// The node's last denial, with the time to come back counted from now.
    fn denied(&self, retry_after: Option<Duration>) -> CheckResponse {
        let denial = self.denial.load();
        let said = denial.as_ref().map(|denial| denial.answer.clone()).unwrap_or_default();
        CheckResponse { allowed: false, retry_after_ms: retry_after.map(whole_ms), ..said }
    }
}

#[cfg(test)]
mod tests;
