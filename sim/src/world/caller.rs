//! A host beside each region that sends questions to the region's node over gRPC, whether or not the node
//! answers.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use acequia_api::acequia::v1::{self as api, limiter_client::LimiterClient};
use tokio::time::timeout;
use tonic::transport::Channel;

use super::{clock::elapsed, tcp};
use crate::{
    demand::{Demand, Question},
    random::Random,
    schedule::Place,
    trace::Trace,
};

/// The domain of all limits.
pub const DOMAIN: &str = "sim";
/// How long a caller waits for an answer.
const DEADLINE: Duration = Duration::from_secs(1);
/// The divisor for the part of a lease's life that is left unused, since a node's clock may be fast. This
/// part is twice what a node may promise of clocks.
const LEFT_UNUSED: u32 = 500;
/// The number of parts in which a lease is spent.
const SPENT_IN: u64 = 3;

/// The outcome of a question.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The caller's region.
    pub place: Place,
    /// When the question was asked and when the answer came: true time since the start.
    pub asked: Duration,
    /// See `asked`.
    pub answered: Duration,
    /// The question.
    pub question: Question,
    /// The answer.
    pub reply: Reply,
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The request may pass. These limits were charged with these units.
    Allowed(Vec<(String, u64)>),
    /// These units of these limits are the caller's until the lease ends.
    Leased(Vec<(String, u64)>),
    /// No node was asked: the caller let these units pass from a lease.
    Spent(Vec<(String, u64)>),
    /// The request may not pass, for this reason.
    Denied(&'static str),
    /// No answer, and the reason.
    Nothing(String),
}

impl Reply {
    /// What the node charged with this answer, by limit.
    pub fn charged(&self) -> Option<&[(String, u64)]> {
        match self {
            Self::Allowed(limits) | Self::Leased(limits) => Some(limits),
            _ => None,
        }
    }

    /// Units that passed now, by limit.
    pub fn passed(&self) -> Option<&[(String, u64)]> {
        match self {
            Self::Allowed(limits) | Self::Spent(limits) => Some(limits),
            _ => None,
        }
    }
}

/// A caller's settings.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) place: Place,
    pub(crate) name: String,
    pub(crate) node: SocketAddr,
    pub(crate) demand: Demand,
    pub(crate) seed: u64,
    pub(crate) answers: Answers,
    /// Whether callers must stop asking.
    pub(crate) is_hushed: Arc<AtomicBool>,
    pub(crate) trace: Trace,
}

/// Units that a caller has leased.
#[derive(Debug)]
struct Lease {
    question: Question,
    /// Units by limit.
    leased: Vec<(String, u64)>,
    /// When the lease was asked for.
    asked: Duration,
    /// How long the units may be spent, counted from `asked`.
    life: Duration,
}

/// The answers that callers have received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers(Arc<Mutex<Vec<Answer>>>);

impl Answers {
    fn put(&self, answer: Answer) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
    }

    /// The answers since the last call, in the order in which they came.
    pub(crate) fn take(&self) -> Vec<Answer> {
        let mut answers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        answers.sort_by_key(|answer| answer.answered);
        answers
    }
}

impl Caller {
    /// Asks questions until the caller is hushed.
    pub(crate) async fn call(self) -> turmoil::Result {
        let client = LimiterClient::new(tcp::channel(self.node, DEADLINE));
        for (wait, question) in self.demand.questions(self.place, Random::of(self.seed, &self.name)) {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            if self.is_hushed.load(Ordering::Relaxed) {
                break;
            }
            tokio::spawn(self.clone().ask(client.clone(), question));
        }
        // An answer may be under way, and a lease may still be spent.
        tokio::time::sleep(2 * DEADLINE + self.demand.longest_lease()).await;
        Ok(())
    }

    async fn ask(self, mut client: LimiterClient<Channel>, question: Question) {
        let asked = elapsed(Duration::ZERO);
        // The channel's own deadline starts only when there is a connection.
        let (reply, life) = match timeout(DEADLINE, client.check(request(&question))).await {
            Ok(answer) => reply_of(answer),
            Err(_) => (Reply::Nothing("too late".to_owned()), Duration::ZERO),
        };
        let leased = if let Reply::Leased(limits) = &reply { limits.clone() } else { Vec::new() };
        self.put(asked, question.clone(), reply);
        self.spend(Lease { question, leased, asked, life }).await;
    }

    fn put(&self, asked: Duration, question: Question, reply: Reply) {
        let answered = elapsed(Duration::ZERO);
        let what = match &reply {
            Reply::Allowed(limits) => format!("allowed {limits:?}, asked at {asked:?}"),
            Reply::Leased(limits) => format!("leased {limits:?}, asked at {asked:?}"),
            Reply::Spent(limits) => format!("spent {limits:?} of a lease"),
            Reply::Denied(reason) => format!("denied: {reason}, asked at {asked:?}"),
            Reply::Nothing(why) => format!("no answer: {why}, asked at {asked:?}"),
        };
        self.trace.tell(&self.name, answered, what);
        self.answers.put(Answer { place: self.place, asked, answered, question, reply });
    }

    /// Spends a lease: a part at once, a part in the middle, and the rest at the last moment. The lease lives
    /// from when it was asked for, since the caller does not know when it was granted.
    async fn spend(&self, lease: Lease) {
        let Lease { question, mut leased, asked, life } = lease;
        for part in (1..=SPENT_IN).rev() {
            let spent: Vec<_> = leased.iter().map(|(name, units)| (name.clone(), units / part)).collect();
            for ((_, left), (_, units)) in leased.iter_mut().zip(&spent) {
                *left -= units;
            }
            let at = asked + life * (SPENT_IN - part) as u32 / (SPENT_IN as u32 - 1);
            tokio::time::sleep(at.saturating_sub(elapsed(Duration::ZERO))).await;
            if spent.iter().any(|(_, units)| *units > 0) {
                self.put(elapsed(Duration::ZERO), question.clone(), Reply::Spent(spent));
            }
        }
    }
}

/// A gRPC request that says how long the caller waits. A node may make it wait for other regions, but not for
/// longer.
fn request(question: &Question) -> tonic::Request<api::CheckRequest> {
    let entry = |(key, value): &(String, String)| api::Entry { key: key.clone(), value: value.clone() };
    let entries = question.entries.iter().map(entry).collect();
    let mut request = tonic::Request::new(api::CheckRequest {
        domain: DOMAIN.to_owned(),
        descriptors: vec![api::Descriptor { entries, cost: None }],
        cost: Some(question.cost),
        detail: true,
        reserve: question.lease.map(|ttl| api::Reserve {
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            on_lapse: api::Lapse::Keep.into(),
            at_most: true,
        }),
        ..api::CheckRequest::default()
    });
    request.set_timeout(DEADLINE);
    request
}

/// The node's answer, and how long it may be spent if it is a lease.
fn reply_of(answer: Result<tonic::Response<api::CheckResponse>, tonic::Status>) -> (Reply, Duration) {
    let reply = match answer.map(tonic::Response::into_inner) {
        Ok(answer) if answer.allowed => {
            let limits = answer.limits.into_iter().map(|limit| (limit.name, limit.cost)).collect();
            if answer.lapses_in_ms > 0 {
                let life = Duration::from_millis(answer.lapses_in_ms);
                return (Reply::Leased(limits), life - life / LEFT_UNUSED);
            }
            Reply::Allowed(limits)
        }
        Ok(answer) => Reply::Denied(answer.reason().as_str_name()),
        Err(status) => Reply::Nothing(format!("{:?}: {}", status.code(), status.message())),
    };
    (reply, Duration::ZERO)
}
