//! Decides while no node answers.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{CheckResponse, Client, ClientError, Question};

/// Decides while no node answers. There is no default: each of the three is right in some places and wrong
/// in others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Everything passes. Fits limits that exist for fairness, if turning customers away costs more than a
    /// while without limits.
    Open,
    /// Nothing passes, and the answer is that the service is unavailable. The answer does not say that the
    /// caller asked too much, which may be untrue. Fits limits on something that must not be overspent.
    Closed,
    /// A local guard decides. Fits services that can bear a certain load, whoever sends it.
    Guard(Guard),
}

/// A token bucket in memory, which bounds all requests together while no node answers, in the units that
/// questions weigh.
///
/// There is one bucket, not one for each caller. The bucket protects the service behind it, which bears a
/// sum of loads. The bucket takes the same few bytes for any number of callers, and forgets nothing that a
/// caller could spend again. A greedy caller can empty the bucket: if this matters more than a while
/// without an answer, ask a second node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Units that come back in a second. At 0, nothing passes after the first burst.
    pub units_per_second: u64,
    /// The most units in the bucket, and the units at the start. A question that weighs more never passes.
    pub burst: u64,
}

/// A client that always decides: by the node's answer, or else by the fallback. Clones share the fallback
/// and its counts.
///
/// ```no_run
/// use acequia_client::{Client, Decider, Decision, Fallback, Guard, Options, Question};
///
/// # async fn example() -> Result<(), acequia_client::ClientError> {
/// let client = Client::connect("127.0.0.1:8081", Options::default())?;
/// let decider = Decider::new(client, Fallback::Guard(Guard { units_per_second: 500, burst: 1_000 }));
///
/// match decider.decide(Question::new("shop", [("api_key", "k1")])).await? {
///     Decision::Answered(answer) => println!("the node: {}", answer.allowed),
///     Decision::AllowedUnasked => println!("nobody answers, and the guard lets it pass"),
///     Decision::DeniedUnasked { retry_after } => println!("nobody answers, and the guard is empty: {retry_after:?}"),
///     Decision::Unavailable => unreachable!("only a closed fallback says so"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Decider {
    client: Client,
    local: Arc<LocalFallback>,
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The node's answer.
    Answered(CheckResponse),
    /// No node answers, and the fallback allows the request.
    AllowedUnasked,
    /// No node answers, and the guard has too little left.
    DeniedUnasked {
        /// When the guard has enough if nothing else passes. `None` if it never has.
        retry_after: Option<Duration>,
    },
    /// No node answers, and the fallback is closed.
    Unavailable,
}

/// How often the fallback decided, since the start. An application can export these counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unasked {
    /// Decisions that let a request pass.
    pub allowed: u64,
    /// Decisions of a guard that had too little left.
    pub denied: u64,
    /// Decisions of a closed fallback.
    pub unavailable: u64,
}

impl Decider {
    /// Asks `client`, and uses `fallback` if the client gets no answer.
    pub fn new(client: Client, fallback: Fallback) -> Self {
        Self { client, local: Arc::new(LocalFallback::new(fallback)) }
    }

    /// May it pass? Takes no longer than the client's [`Options::deadline`](crate::Options::deadline).
    ///
    /// A question whose answer came too late may have been charged, and is not asked again. Requests that
    /// the fallback allows come on top of that charge, so that too much is charged rather than too little.
    ///
    /// # Errors
    /// Only [`ClientError::Refused`], if the question is wrong. Do not let such a request pass. A caller
    /// that can make its question wrong, such as with a header that is too long, would pass every limit.
    pub async fn decide(&self, question: Question) -> Result<Decision, ClientError> {
        let units = question.units();
        match self.client.check(question).await {
            Ok(answer) => Ok(Decision::Answered(answer)),
            Err(refused @ ClientError::Refused { .. }) => Err(refused),
            Err(_) => Ok(self.local.decide(units)),
        }
    }

    /// How often the fallback decided.
    pub fn unasked(&self) -> Unasked {
        self.local.unasked()
    }

    /// The client that is asked.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// A fallback at work, with its counts.
pub(crate) struct LocalFallback {
    fallback: Fallback,
    /// The lock costs little beside the question to the node, which comes first and takes up to
    /// [`Options::deadline`](crate::Options::deadline).
    bucket: Mutex<TokenBucket>,
    allowed: AtomicU64,
    denied: AtomicU64,
    unavailable: AtomicU64,
}

impl LocalFallback {
    pub(crate) fn new(fallback: Fallback) -> Self {
        let guard = match fallback {
            Fallback::Guard(guard) => guard,
            Fallback::Open | Fallback::Closed => Guard { units_per_second: 0, burst: 0 },
        };
        Self {
            fallback,
            bucket: Mutex::new(TokenBucket::full(guard, Instant::now())),
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            unavailable: AtomicU64::new(0),
        }
    }

    pub(crate) fn decide(&self, units: u64) -> Decision {
        let (decision, count) = match self.fallback {
            Fallback::Open => (Decision::AllowedUnasked, &self.allowed),
            Fallback::Closed => (Decision::Unavailable, &self.unavailable),
            Fallback::Guard(_) => {
                let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
                match bucket.take(units, Instant::now()) {
                    Ok(()) => (Decision::AllowedUnasked, &self.allowed),
                    Err(retry_after) => (Decision::DeniedUnasked { retry_after }, &self.denied),
                }
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
        decision
    }

    pub(crate) fn unasked(&self) -> Unasked {
        Unasked {
            allowed: self.allowed.load(Ordering::Relaxed),
            denied: self.denied.load(Ordering::Relaxed),
            unavailable: self.unavailable.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for LocalFallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fallback, unasked) = (&self.fallback, self.unasked());
        f.debug_struct("Local").field("fallback", fallback).field("unasked", &unasked).finish_non_exhaustive()
    }
}

/// Units in billionths. A rate of units a second is the same number of billionths a nanosecond, so nothing
/// is rounded.
const BILLIONTHS: u128 = 1_000_000_000;

/// Lets at most `burst + rate * t` pass in any interval of length t.
struct TokenBucket {
    guard: Guard,
    left: u128,
    at: Instant,
}

impl TokenBucket {
    fn full(guard: Guard, now: Instant) -> Self {
        Self { guard, left: u128::from(guard.burst) * BILLIONTHS, at: now }
    }

    /// Takes the units, or says when to come back.
    fn take(&mut self, units: u64, now: Instant) -> Result<(), Option<Duration>> {
        let most = u128::from(self.guard.burst) * BILLIONTHS;
        let rate = u128::from(self.guard.units_per_second);
        let passed = now.saturating_duration_since(self.at).as_nanos();
        self.left = most.min(self.left.saturating_add(passed.saturating_mul(rate)));
        self.at = self.at.max(now);
        let wanted = u128::from(units) * BILLIONTHS;
        if let Some(left) = self.left.checked_sub(wanted) {
            self.left = left;
            return Ok(());
        }
        if wanted > most || rate == 0 {
            return Err(None);
        }
        let nanoseconds = (wanted - self.left).div_ceil(rate);
        Err(u64::try_from(nanoseconds).ok().map(Duration::from_nanos))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Options,
        fake::{Mode, Node},
    };

    const GUARD: Guard = Guard { units_per_second: 10, burst: 3 };
    const SHORT: Options = Options { deadline: Duration::from_millis(20) };

    fn question() -> Question {
        Question::new("shop", [("key", "k1")])
    }

    #[tokio::test(start_paused = true)]
    async fn the_fallback_decides_only_while_no_node_answers() {
        let node = Node::of(2);
        let decider = Decider::new(node.client(SHORT), Fallback::Open);
        let answered = |decision| matches!(decision, Decision::Answered(answer) if answer.allowed);
        assert!(answered(decider.decide(question()).await.expect("a decision")));

        for mode in [Mode::Hangs, Mode::Gone, Mode::LosesAnswers] {
            node.set(mode);
            let decision = decider.decide(question()).await.expect("a decision");
            assert_eq!(decision, Decision::AllowedUnasked, "{mode:?}");
        }
        assert_eq!(decider.unasked(), Unasked { allowed: 3, ..Unasked::default() });

        // A denial is an answer.
        node.set(Mode::Answers);
        let denied = decider.decide(question()).await.expect("a decision");
        assert!(matches!(denied, Decision::Answered(answer) if !answer.allowed));
        assert_eq!(decider.unasked().allowed, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_fallback_answers_unavailable() {
        let node = Node::of(1);
        node.set(Mode::Hangs);
        let decider = Decider::new(node.client(SHORT), Fallback::Closed);
        let begun = Instant::now();
        assert_eq!(decider.decide(question()).await.expect("a decision"), Decision::Unavailable);
        assert!(begun.elapsed() <= SHORT.deadline + Duration::from_millis(1), "{:?}", begun.elapsed());
        assert_eq!(decider.unasked(), Unasked { unavailable: 1, ..Unasked::default() });
    }

    #[tokio::test(start_paused = true)]
    async fn a_guard_lets_its_burst_pass_and_then_its_rate() {
        let node = Node::of(1);
        node.set(Mode::Gone);
        let decider = Decider::new(node.client(SHORT), Fallback::Guard(GUARD));
        for _ in 0..3 {
            assert_eq!(decider.decide(question()).await.expect("a decision"), Decision::AllowedUnasked);
        }
        let denied = decider.clone().decide(question()).await.expect("a decision");
        let Decision::DeniedUnasked { retry_after: Some(wait) } = denied else { panic!("{denied:?}") };
        assert!(wait <= Duration::from_millis(100), "{wait:?}");
        tokio::time::sleep(wait).await;
        assert_eq!(decider.decide(question()).await.expect("a decision"), Decision::AllowedUnasked);
        assert_eq!(decider.unasked(), Unasked { allowed: 4, denied: 1, unavailable: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_guard_never_allows_a_cost_above_its_burst() {
        let node = Node::of(1);
        node.set(Mode::Gone);
        let never = Decision::DeniedUnasked { retry_after: None };
        let decider = Decider::new(node.client(SHORT), Fallback::Guard(GUARD));
        for cost in [4, u64::MAX] {
            assert_eq!(decider.decide(question().cost(cost)).await.expect("a decision"), never, "{cost}");
        }
        // A cost of 0 is no way around the guard.
        for _ in 0..3 {
            let decision = decider.decide(question().cost(0)).await.expect("a decision");
            assert_eq!(decision, Decision::AllowedUnasked);
        }
        let decision = decider.decide(question().cost(0)).await.expect("a decision");
        assert!(matches!(decision, Decision::DeniedUnasked { .. }), "{decision:?}");

        for guard in [Guard { units_per_second: 0, burst: 0 }, Guard { units_per_second: u64::MAX, burst: 0 }]
        {
            let decider = Decider::new(node.client(SHORT), Fallback::Guard(guard));
            assert_eq!(decider.decide(question()).await.expect("a decision"), never, "{guard:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_request_does_not_pass_by_an_open_fallback() {
        let node = Node::of(1);
        node.set(Mode::Refuses);
        let decider = Decider::new(node.client(SHORT), Fallback::Open);
        let refused = decider.decide(question()).await.expect_err("wrong");
        assert!(matches!(refused, ClientError::Refused { .. }), "{refused}");
        assert_eq!(decider.unasked(), Unasked::default());
    }

    proptest! {
        #[test]
        fn a_guard_passes_at_most_its_burst_and_rate_and_its_waits_hold(
            units_per_second in prop_oneof![0..100_u64, Just(u64::MAX)],
            burst in prop_oneof![0..100_u64, Just(u64::MAX)],
            steps in prop::collection::vec((1..150_u64, 0..3_000_000_000_u64), 1..100),
        ) {
            let begun = Instant::now();
            let mut bucket = TokenBucket::full(Guard { units_per_second, burst }, begun);
            let (mut now, mut passed) = (begun, 0_u128);
            for (units, wait) in steps {
                now += Duration::from_nanos(wait);
                let most = u128::from(burst) * BILLIONTHS
                    + (now - begun).as_nanos() * u128::from(units_per_second);
                match bucket.take(units, now) {
                    Ok(()) => {
                        passed += u128::from(units) * BILLIONTHS;
                        prop_assert!(passed <= most);
                    }
                    Err(None) => prop_assert!(units > burst || units_per_second == 0),
                    Err(Some(retry_after)) => {
                        now += retry_after;
                        prop_assert_eq!(bucket.take(units, now), Ok(()));
                        passed += u128::from(units) * BILLIONTHS;
                    }
                }
            }
        }
    }
}
