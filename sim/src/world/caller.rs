//! A host beside each region that asks its node over gRPC, whether it answers or not.

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
/// The part of a lease's life that is left unused, since a node's clock may be quick: twice what a node may promise of clocks.
const LEFT_UNUSED: u32 = 500;
/// A lease is spent in so many parts.
const SPENT_IN: u64 = 3;

/// What became of a question.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The caller's region.
    pub place: Place,
    /// When it was asked, and when the answer was there: true time since the start.
    pub asked: Duration,
    /// See `asked`.
    pub answered: Duration,
    /// What was asked.
    pub question: Question,
    /// What was said.
    pub said: Said,
}

/// What a node said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It may pass; these limits were charged, each with so many units.
    Allowed(Vec<(String, u64)>),
    /// So many units of these limits are the caller's, until the lease ends.
    Leased(Vec<(String, u64)>),
    /// Nothing, since nobody was asked: the caller let so many units pass, of a lease.
    Spent(Vec<(String, u64)>),
    /// It may not, for this reason.
    Denied(&'static str),
    /// Nothing, and why.
    Nothing(String),
}

impl Said {
    /// What a node charged with this answer, by limit.
    pub fn charged(&self) -> Option<&[(String, u64)]> {
        match self {
            Self::Allowed(limits) | Self::Leased(limits) => Some(limits),
            _ => None,
        }
    }

    /// What passed now, by limit.
    pub fn passed(&self) -> Option<&[(String, u64)]> {
        match self {
            Self::Allowed(limits) | Self::Spent(limits) => Some(limits),
            _ => None,
        }
    }
}

/// What a caller needs.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) place: Place,
    pub(crate) name: String,
    pub(crate) node: SocketAddr,
    pub(crate) demand: Demand,
    pub(crate) seed: u64,
    pub(crate) answers: Answers,
    /// Whether nothing more is to be asked.
    pub(crate) is_hushed: Arc<AtomicBool>,
    pub(crate) trace: Trace,
}

/// Where answers are put.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers(Arc<Mutex<Vec<Answer>>>);

impl Answers {
    fn put(&self, answer: Answer) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
    }

    /// Those that came since the last time, in the order in which they came.
    pub(crate) fn take(&self) -> Vec<Answer> {
        let mut answers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        answers.sort_by_key(|answer| answer.answered);
        answers
    }
}

impl Caller {
    /// Asks for ever.
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
        // An answer may be under way, and its lease be spent.
        tokio::time::sleep(2 * DEADLINE + self.demand.longest_lease()).await;
        Ok(())
    }

    async fn ask(self, mut client: LimiterClient<Channel>, question: Question) {
        let asked = elapsed(Duration::ZERO);
        // The channel's own deadline begins when there is a connection.
        let (said, life) = match timeout(DEADLINE, client.check(request(&question))).await {
            Ok(answer) => said(answer),
            Err(_) => (Said::Nothing("too late".to_owned()), Duration::ZERO),
        };
        let leased = if let Said::Leased(limits) = &said { limits.clone() } else { Vec::new() };
        self.put(asked, question.clone(), said);
        self.spend(question, leased, (asked, life)).await;
    }

    fn put(&self, asked: Duration, question: Question, said: Said) {
        let answered = elapsed(Duration::ZERO);
        let what = match &said {
            Said::Allowed(limits) => format!("allowed {limits:?}, asked at {asked:?}"),
            Said::Leased(limits) => format!("leased {limits:?}, asked at {asked:?}"),
            Said::Spent(limits) => format!("spent {limits:?} of a lease"),
            Said::Denied(reason) => format!("denied: {reason}, asked at {asked:?}"),
            Said::Nothing(why) => format!("no answer: {why}, asked at {asked:?}"),
        };
        self.trace.tell(&self.name, answered, what);
        self.answers.put(Answer { place: self.place, asked, answered, question, said });
    }

    /// Spends what is leased of some limits: a part at once, a part in the middle, and the rest at the last moment. The lease lives
    /// from when it was asked for, since the caller does not know when it was given.
    async fn spend(
        &self,
        question: Question,
        mut leased: Vec<(String, u64)>,
        (asked, life): (Duration, Duration),
    ) {
        for part in (1..=SPENT_IN).rev() {
            let spent: Vec<_> = leased.iter().map(|(name, units)| (name.clone(), units / part)).collect();
            for ((_, left), (_, units)) in leased.iter_mut().zip(&spent) {
                *left -= units;
            }
            let at = asked + life * (SPENT_IN - part) as u32 / (SPENT_IN as u32 - 1);
            tokio::time::sleep(at.saturating_sub(elapsed(Duration::ZERO))).await;
            if spent.iter().any(|(_, units)| *units > 0) {
                self.put(elapsed(Duration::ZERO), question.clone(), Said::Spent(spent));
            }
        }
    }
}

/// Says how long it waits, as clients do: a node may have a request wait for other regions, and must not for longer.
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

/// What was said, and how long it may be spent if it is a lease.
fn said(answer: Result<tonic::Response<api::CheckResponse>, tonic::Status>) -> (Said, Duration) {
    let said = match answer.map(tonic::Response::into_inner) {
        Ok(answer) if answer.allowed => {
            let limits = answer.limits.into_iter().map(|limit| (limit.name, limit.cost)).collect();
            if answer.lapses_in_ms > 0 {
                let life = Duration::from_millis(answer.lapses_in_ms);
                return (Said::Leased(limits), life - life / LEFT_UNUSED);
            }
            Said::Allowed(limits)
        }
        Ok(answer) => Said::Denied(answer.reason().as_str_name()),
        Err(status) => Said::Nothing(format!("{:?}: {}", status.code(), status.message())),
    };
    (said, Duration::ZERO)
}
