//! Deciding in memory, of units that a node has charged in advance.

mod demand;
mod interceptor;
mod keeper;
mod purse;

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
    keeper::Keeper,
    purse::{Draw, FOREVER, Purse, UNITS_MAX},
};
use crate::{CheckResponse, Client, ClientError, Question, Reason, denial::whole_ms};

/// The shortest [`LeaseOptions::refresh`]: below it a lease would ask about as often as its caller.
const REFRESH_MIN: Duration = Duration::from_millis(10);
/// The longest [`LeaseOptions::ttl`]: what a node allows for a reservation.
const TTL_MAX: Duration = Duration::from_secs(3_600);

/// How much a [`Lease`] holds, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// How long what is asked for should last: as many units as were wanted of late in such a time, and half as many
    /// again. At least 10 ms; 1 s by default.
    ///
    /// Longer: fewer calls, and more units that others cannot spend meanwhile. A refresh should be many times what a
    /// node takes to answer, or the lease runs dry while it waits.
    pub refresh: Duration,
    /// How long units may be held, counted from when they were asked for. Twice the refresh to one hour; 10 s by default.
    ///
    /// This is how long units are lost to others if this process dies, and how much later than they were charged they
    /// may be spent. Shorter is more exact, as long as it is a few refreshes.
    pub ttl: Duration,
    /// The least that is asked for, and the first. 1 to `units_max`; 10 by default.
    pub units_min: u64,
    /// The most that is held at once, and so the most that is lost if this process dies. To [`LEASE_UNITS_MAX`]; 100 000
    /// by default. A decision that costs more asks the node.
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

/// What a lease says in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// It may pass. Its units were charged in advance.
    Taken,
    /// It may not, as a node said not long ago.
    Denied {
        /// When to come back. Nothing if the node knew of no wait that helps.
        retry_after: Option<Duration>,
    },
    /// The lease cannot say: it holds too little for this, and has no denial from a node. Units may be on their way; ask
    /// the node ([`Lease::check`]) in the meantime.
    Empty,
}

/// Decides for one hot cell in memory, of units that a node has charged in advance. Clones share what it holds.
///
/// **A lease never hands out more than a node has charged for it.** What it does not hand out it gives back when it
/// replaces its units, when they are about to expire and when it ends; what cannot be given back, because this process or
/// the way to the node is gone, counts as spent. Nothing is held while nobody asks.
///
/// Whatever it holds is set apart at the node until it is given back, with the capacity that it takes, and counts from then on; so a
/// limit is never exceeded, over any interval. What this costs is capacity: while a lease is out, all others have so much less.
/// A node lets a lease live no longer than it takes the whole limit to come back, and than its window lasts.
///
/// A lease is for limits that deny. A leaky bucket makes requests wait, each for its turn: a lease of one stays empty,
/// and [`Lease::check`] asks the node every time.
///
/// Time is that of the monotonic clock, which stands still while a machine is suspended. What was charged stays charged,
/// so that what is spent too late after that is not spent twice either.
#[derive(Clone)]
pub struct Lease {
    shared: Arc<Shared>,
    client: Client,
    question: Question,
    /// Dropped with the last clone, which ends the keeper.
    end: Arc<watch::Sender<bool>>,
    /// Closed by the keeper's end.
    ended: watch::Receiver<()>,
}

/// What handles and their keeper share.
#[derive(Debug)]
struct Shared {
    purse: Purse,
    /// Units that were wanted and were not there, since the keeper looked last.
    missed: AtomicU64,
    /// No decision above this is worth holding units for.
    units_max: u64,
    wanted: Notify,
    /// Whether the keeper has been told, so that it is told once.
    is_wanted: AtomicBool,
    denial: ArcSwapOption<Denial>,
    /// Whether nobody answered the keeper last.
    is_unanswered: AtomicBool,
    settlements_lost: AtomicU64,
}

/// What a node said.
#[derive(Debug)]
struct Denial {
    answer: CheckResponse,
    /// When it said to come back.
    back: Option<Instant>,
    /// When this is no longer worth repeating.
    until: Instant,
}

impl Client {
    /// A lease of the cells that this question hits: see [`Lease`]. It asks for units when they are first wanted.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the options contradict themselves, or if the question has a cost, an id or a
    /// reservation or is refundable: a lease names and weighs its charges itself.
    ///
    /// # Panics
    /// Outside of a tokio runtime: the lease is kept by a task.
    pub fn lease(&self, question: Question, options: LeaseOptions) -> Result<Lease, ClientError> {
        options.validate()?;
        if !question.is_bare() {
            let what =
                "a lease names and weighs its charges itself: leave out cost, id, refundable and reserve";
            return Err(ClientError::Refused { what: what.to_owned() });
        }
        let shared = Arc::new(Shared {
            purse: Purse::empty(Instant::now()),
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
        if refresh < REFRESH_MIN || ttl > TTL_MAX || ttl / 2 < refresh {
            return refused(format!(
                "a lease's refresh of {refresh:?} and ttl of {ttl:?} do not fit: the refresh is at least {REFRESH_MIN:?}, the ttl at least twice the refresh and at most {TTL_MAX:?}"
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
    /// May something of this cost pass? Decided at once, in memory, from any thread, without a lock: for the hot path. A
    /// cost of 0 counts as 1.
    ///
    /// After a quiet time the lease holds nothing, so the first answer is [`Take::Empty`].
    #[inline]
    pub fn try_take(&self, cost: u64) -> Take {
        let cost = cost.max(1);
        match self.shared.purse.take(cost, Instant::now) {
            Draw::Taken => Take::Taken,
            Draw::TakenAndLow => {
                self.shared.want();
                Take::Taken
            }
            Draw::Short => self.shared.fall_short(cost),
        }
    }

    /// May something of this cost pass? Decided in memory if it can be, or else by the node. A cost of 0 counts as 1.
    ///
    /// An answer from memory to what may pass names no limit and says nothing of what remains.
    ///
    /// # Errors
    /// As for [`Client::check`], when the node had to be asked.
    pub async fn check(&self, cost: u64) -> Result<CheckResponse, ClientError> {
        match self.try_take(cost) {
            Take::Taken => {
                let reason = Reason::WithinLimit.into();
                Ok(CheckResponse { allowed: true, reason, ..CheckResponse::default() })
            }
            Take::Denied { retry_after } => Ok(self.shared.denied(retry_after)),
            Take::Empty => self.client.check(self.question.clone().cost(cost.max(1))).await,
        }
    }

    /// Units that are held now, to spend or to give back.
    pub fn units_left(&self) -> u64 {
        self.shared.purse.units_left()
    }

    /// Whether nobody answered when the lease last asked for units.
    pub fn is_unanswered(&self) -> bool {
        self.shared.is_unanswered.load(Ordering::Relaxed)
    }

    /// How often units could not be given back since the beginning, because nobody answered in time. They count as spent.
    pub fn settlements_lost(&self) -> u64 {
        self.shared.settlements_lost.load(Ordering::Relaxed)
    }

    /// Ends the lease, for its clones too, and waits until what is left of it is given back or cannot be: a few times
    /// [`Options::deadline`](crate::Options::deadline). From now on it is empty. Dropping the last clone does the same without
    /// waiting, if the runtime goes on.
    pub async fn close(mut self) {
        self.end.send_replace(true);
        // Nothing is ever sent: the error is the end.
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
    /// Tells the keeper, once.
    fn want(&self) {
        if !self.is_wanted.load(Ordering::Relaxed) && !self.is_wanted.swap(true, Ordering::AcqRel) {
            self.wanted.notify_one();
        }
    }

    #[cold]
    fn fall_short(&self, cost: u64) -> Take {
        let now = Instant::now();
        if let Some(denial) = &*self.denial.load()
            && now < denial.until
        {
            // The keeper knows when to ask again.
            self.want();
            let retry_after = denial.back.map(|back| back.saturating_duration_since(now));
            return Take::Denied { retry_after };
        }
        if cost <= self.units_max {
            let add = |missed: u64| Some(missed.saturating_add(cost));
            let _ = self.missed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
            self.want();
        }
        Take::Empty
    }

    /// The node's last denial, as of now.
    fn denied(&self, retry_after: Option<Duration>) -> CheckResponse {
        let denial = self.denial.load();
        let said = denial.as_ref().map(|denial| denial.answer.clone()).unwrap_or_default();
        CheckResponse { allowed: false, retry_after_ms: retry_after.map(whole_ms), ..said }
    }
}

#[cfg(test)]
mod tests;
