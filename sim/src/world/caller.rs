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
    /// It may not, for this reason.
    Denied(&'static str),
    /// Nothing, and why.
    Nothing(String),
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
        // An answer may be under way.
        tokio::time::sleep(2 * DEADLINE).await;
        Ok(())
    }

    async fn ask(self, mut client: LimiterClient<Channel>, question: Question) {
        let asked = elapsed(Duration::ZERO);
        // The channel's own deadline begins when there is a connection.
        let said = match timeout(DEADLINE, client.check(request(&question))).await {
            Ok(answer) => said(answer),
            Err(_) => Said::Nothing("too late".to_owned()),
        };
        let answered = elapsed(Duration::ZERO);
        let what = match &said {
            Said::Allowed(limits) => format!("allowed {limits:?}, asked at {asked:?}"),
            Said::Denied(reason) => format!("denied: {reason}, asked at {asked:?}"),
            Said::Nothing(why) => format!("no answer: {why}, asked at {asked:?}"),
        };
        self.trace.tell(&self.name, answered, what);
        self.answers.put(Answer { place: self.place, asked, answered, question, said });
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
        ..api::CheckRequest::default()
    });
    request.set_timeout(DEADLINE);
    request
}

fn said(answer: Result<tonic::Response<api::CheckResponse>, tonic::Status>) -> Said {
    match answer.map(tonic::Response::into_inner) {
        Ok(answer) if answer.allowed => {
            Said::Allowed(answer.limits.into_iter().map(|limit| (limit.name, limit.cost)).collect())
        }
        Ok(answer) => Said::Denied(answer.reason().as_str_name()),
        Err(status) => Said::Nothing(format!("{:?}: {}", status.code(), status.message())),
    }
}
