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
    demand::{Again, Demand, Question, Report, Stay, Stream},
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
    /// The region that was asked: the caller's own, except for some reports.
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
    /// The node has recorded a cost that was spent before.
    Recorded {
        /// The report's name.
        id: String,
        /// Whether the node says that it had recorded the report before.
        is_repeat: bool,
        /// The limits that have recorded it now, each with the units that it had left for it, as far as the answer
        /// says so. The rest is owed.
        fitted: Vec<(String, u64)>,
    },
    /// The request is under way, and has slots.
    Began {
        /// The name by which its slots are renewed and released.
        id: String,
        /// When its holder takes them for lapsed: true time since the start.
        until: Duration,
        /// The slots, by limit.
        slots: Vec<(String, u64)>,
    },
    /// The slots were renewed.
    Renewed {
        /// The name of the slots.
        id: String,
        /// As in [`Reply::Began`].
        until: Duration,
    },
    /// The request is over. The node is asked for the first time to release the slots.
    Ended {
        /// The name of the slots.
        id: String,
    },
    /// The request passes, and its cost is known last.
    Held {
        /// The name of the charge, by which the real cost is reported; empty if nothing is held.
        id: String,
        /// When the gateway takes the holds for lapsed: true time since the start.
        until: Duration,
        /// The units that are held, by limit.
        units: Vec<(String, u64)>,
    },
    /// The real cost of such a request is known. The node is told of the cost now.
    Told {
        /// The name of the charge, whether or not the node is told the name.
        id: String,
        /// The cost.
        cost: u64,
    },
    /// The node has answered that report.
    Settled {
        /// As in [`Reply::Told`].
        id: String,
        /// What the node says.
        word: Settlement,
    },
    /// The request may not pass, for this reason.
    Denied(&'static str),
    /// No answer, and the reason.
    Nothing(String),
}

/// What a node says of the report of a real cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The cost counts now.
    Now,
    /// The charge was settled before.
    Before,
    /// The cost may never count, or nobody can say.
    Unsure,
}

impl Reply {
    /// What the node charged with this answer, by limit.
    pub fn charged(&self) -> Option<&[(String, u64)]> {
        match self {
            Self::Allowed(limits)
            | Self::Leased(limits)
            | Self::Began { slots: limits, .. }
            | Self::Held { units: limits, .. } => Some(limits),
            _ => None,
        }
    }

    /// Whether this is the answer to a question whether a request may pass.
    pub fn is_of_check(&self) -> bool {
        match self {
            Self::Allowed(_)
            | Self::Leased(_)
            | Self::Began { .. }
            | Self::Held { .. }
            | Self::Denied(_)
            | Self::Nothing(_) => true,
            Self::Spent(_)
            | Self::Recorded { .. }
            | Self::Renewed { .. }
            | Self::Ended { .. }
            | Self::Told { .. }
            | Self::Settled { .. } => false,
        }
    }

    /// Units that passed now, by limit. A report counts with the units that fitted: they took what might have
    /// passed. Units that are held are not counted, since some of them may come back.
    pub fn passed(&self) -> Option<&[(String, u64)]> {
        match self {
            Self::Allowed(limits)
            | Self::Spent(limits)
            | Self::Recorded { fitted: limits, .. }
            | Self::Began { slots: limits, .. } => Some(limits),
            _ => None,
        }
    }
}

/// A caller's settings.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) place: Place,
    pub(crate) name: String,
    /// The nodes of all places.
    pub(crate) nodes: Vec<SocketAddr>,
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

/// A request that has slots.
#[derive(Debug)]
struct UnderWay {
    id: String,
    stay: Stay,
    /// When the slots were asked for, and when their holder takes them for lapsed.
    from: Duration,
    until: Duration,
}

impl UnderWay {
    fn of(question: &Question, reply: &Reply, asked: Duration) -> Option<Self> {
        let Reply::Began { id, until, .. } = reply else { return None };
        Some(Self { id: id.clone(), stay: question.stay?, from: asked, until: *until })
    }
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
        let client = |node: &SocketAddr| LimiterClient::new(tcp::channel(*node, DEADLINE));
        let clients: Arc<[_]> = self.nodes.iter().map(client).collect();
        for (wait, question) in self.demand.questions(self.place, Random::of(self.seed, &self.name)) {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            if self.is_hushed.load(Ordering::Relaxed) {
                break;
            }
            tokio::spawn(self.clone().ask(Arc::clone(&clients), question));
        }
        // An answer may be under way, and what it gave may still be used.
        tokio::time::sleep(4 * DEADLINE + self.demand.longest_use()).await;
        Ok(())
    }

    async fn ask(self, clients: Arc<[LimiterClient<Channel>]>, question: Question) {
        let asked = elapsed(Duration::ZERO);
        // The channel's own deadline starts only when there is a connection.
        let mut client = clients[self.place].clone();
        let (mut reply, life) = match timeout(DEADLINE, client.check(request(&question, String::new()))).await
        {
            Ok(answer) => reply_of(answer, &question),
            Err(_) => (Reply::Nothing("too late".to_owned()), Duration::ZERO),
        };
        if let Reply::Began { until, .. } | Reply::Held { until, .. } = &mut reply {
            *until = asked + life;
        }
        let held = if let Reply::Held { id, .. } = &reply { Some(id.clone()) } else { None };
        let under_way = UnderWay::of(&question, &reply, asked);
        let leased = if let Reply::Leased(limits) = &reply { limits.clone() } else { Vec::new() };
        let report = question.report.filter(|_| matches!(reply, Reply::Allowed(_)));
        self.put(self.place, asked, question.clone(), reply);
        if let Some(report) = report {
            self.report(&clients, &question, report).await;
        }
        if let Some(under_way) = under_way {
            self.go_on(client, &question, under_way).await;
        }
        if let (Some(id), Some(stream)) = (held, question.stream) {
            self.end_stream(&clients, &question, &id, stream).await;
        }
        self.spend(Lease { question, leased, asked, life }).await;
    }

    /// Goes on with a request: renews its slots halfway to their end, and releases them when it is over or when they
    /// may lapse, unless its holder dies.
    async fn go_on(&self, mut client: LimiterClient<Channel>, question: &Question, under_way: UnderWay) {
        let UnderWay { id, stay, mut from, mut until } = under_way;
        let ends = from + stay.lasts;
        for _ in 0..stay.renewals {
            let halfway = from + until.saturating_sub(from) / 2;
            if halfway >= ends {
                break;
            }
            tokio::time::sleep(halfway.saturating_sub(elapsed(Duration::ZERO))).await;
            let asked = elapsed(Duration::ZERO);
            let request = api::RenewRequest { charge_id: id.clone() };
            let Ok(Ok(answer)) = timeout(DEADLINE, client.renew(request)).await else { break };
            let answer = answer.into_inner();
            // Slots whose renewal is told too late are not used.
            if answer.renewed() != api::Renewed::Done || elapsed(Duration::ZERO) >= until {
                break;
            }
            (from, until) = (asked, asked + surely(answer.lapses_in_ms));
            self.put(self.place, asked, question.clone(), Reply::Renewed { id: id.clone(), until });
        }
        if stay.dies {
            return;
        }
        let over = ends.min(until).saturating_sub(elapsed(Duration::ZERO));
        tokio::time::sleep(over).await;
        self.put(self.place, elapsed(Duration::ZERO), question.clone(), Reply::Ended { id: id.clone() });
        let request = api::CommitRequest { charge_id: id, cost: 0 };
        // Slots that no node was told about lapse.
        let _ = timeout(DEADLINE, client.commit(request)).await;
    }

    /// Reports the real cost of a request for which units are held, unless its gateway dies.
    async fn end_stream(
        &self,
        clients: &[LimiterClient<Channel>],
        question: &Question,
        id: &str,
        stream: Stream,
    ) {
        let Stream { cost, lasts, again, has_id, dies } = stream;
        let first = Again { after: lasts, places_on: 0 };
        for Again { after, places_on } in [first].into_iter().chain(again).filter(|_| !dies) {
            tokio::time::sleep(after).await;
            let (place, asked) = ((self.place + places_on) % clients.len(), elapsed(Duration::ZERO));
            let mut client = clients[place].clone();
            self.put(self.place, asked, question.clone(), Reply::Told { id: id.to_owned(), cost });
            // A request that holds nothing has no name.
            let word = if has_id && !id.is_empty() {
                let request = api::CommitRequest { charge_id: id.to_owned(), cost };
                timeout(DEADLINE, client.commit(request)).await.map(|answer| answer.map(settlement))
            } else {
                let known = Question { cost, ..question.clone() };
                let answer = timeout(DEADLINE, client.check(request(&known, String::new()))).await;
                answer.map(|answer| answer.map(spent))
            };
            let reply = match word {
                Ok(Ok(word)) => Reply::Settled { id: id.to_owned(), word },
                // A connection that is seldom used may have broken unnoticed.
                _ if places_on > 0 => Reply::Settled { id: id.to_owned(), word: Settlement::Unsure },
                Ok(Err(status)) => nothing(&status),
                Err(_) => Reply::Nothing("too late".to_owned()),
            };
            self.put(place, asked, question.clone(), reply);
        }
    }

    /// Reports what an allowed request has cost.
    async fn report(&self, clients: &[LimiterClient<Channel>], question: &Question, report: Report) {
        let question = Question { cost: report.cost, report: None, ..question.clone() };
        let first = Again { after: report.after, places_on: 0 };
        for Again { after, places_on } in [first].into_iter().chain(report.again) {
            tokio::time::sleep(after).await;
            let place = (self.place + places_on) % clients.len();
            let (asked, id) = (elapsed(Duration::ZERO), format!("{}-{:x}", self.name, report.number));
            let mut client = clients[place].clone();
            let answer = timeout(DEADLINE, client.report(request(&question, id.clone()))).await;
            let reply =
                answer.map_or_else(|_| Reply::Nothing("too late".to_owned()), |answer| recorded(answer, id));
            self.put(place, asked, question.clone(), reply);
        }
    }

    fn put(&self, place: Place, asked: Duration, question: Question, reply: Reply) {
        let answered = elapsed(Duration::ZERO);
        let what = match &reply {
            Reply::Allowed(limits) => format!("allowed {limits:?}, asked at {asked:?}"),
            Reply::Leased(limits) => format!("leased {limits:?}, asked at {asked:?}"),
            Reply::Spent(limits) => format!("spent {limits:?} of a lease"),
            Reply::Recorded { id, is_repeat, fitted } => {
                let again = if *is_repeat { " before" } else { "" };
                format!("{id} is recorded{again} at {place}, {fitted:?} fitted, reported at {asked:?}")
            }
            Reply::Began { id, until, slots } => {
                format!("{id} has {slots:?} until {until:?}, asked at {asked:?}")
            }
            Reply::Renewed { id, until } => format!("{id} is renewed until {until:?}, asked at {asked:?}"),
            Reply::Ended { id } => format!("{id} is over"),
            Reply::Held { id, until, units } => {
                format!("{id} holds {units:?} until {until:?}, asked at {asked:?}")
            }
            Reply::Told { id, cost } => format!("{id} has cost {cost}"),
            Reply::Settled { id, word } => format!("{id} is settled: {word:?}, told at {asked:?}"),
            Reply::Denied(reason) => format!("denied: {reason}, asked at {asked:?}"),
            Reply::Nothing(why) => format!("no answer: {why}, asked at {asked:?}"),
        };
        self.trace.tell(&self.name, answered, what);
        self.answers.put(Answer { place, asked, answered, question, reply });
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
                self.put(self.place, elapsed(Duration::ZERO), question.clone(), Reply::Spent(spent));
            }
        }
    }
}

/// A gRPC request that says how long the caller waits. A node may make it wait for other regions, but not for
/// longer. A report has an id.
fn request(question: &Question, id: String) -> tonic::Request<api::CheckRequest> {
    let entry = |(key, value): &(String, String)| api::Entry { key: key.clone(), value: value.clone() };
    let entries = question.entries.iter().map(entry).collect();
    let mut request = tonic::Request::new(api::CheckRequest {
        domain: DOMAIN.to_owned(),
        descriptors: vec![api::Descriptor { entries, cost: None }],
        cost: Some(question.cost),
        detail: true,
        id,
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

/// The node's answer, and how long what it gave may be used.
fn reply_of(
    answer: Result<tonic::Response<api::CheckResponse>, tonic::Status>,
    question: &Question,
) -> (Reply, Duration) {
    let answer = match answer.map(tonic::Response::into_inner) {
        Ok(answer) if answer.allowed => answer,
        Ok(answer) => return (Reply::Denied(answer.reason().as_str_name()), Duration::ZERO),
        Err(status) => return (nothing(&status), Duration::ZERO),
    };
    let limits = answer.limits.into_iter().map(|limit| (limit.name, limit.cost)).collect();
    let life = surely(answer.lapses_in_ms);
    if question.stream.is_some() {
        return (Reply::Held { id: answer.charge_id, until: life, units: limits }, life);
    }
    let reply = match (life.is_zero(), question.lease.is_some()) {
        (true, _) => Reply::Allowed(limits),
        (false, true) => Reply::Leased(limits),
        (false, false) => Reply::Began { id: answer.charge_id, until: life, slots: limits },
    };
    (reply, life)
}

/// How long something may be used that lapses after so many milliseconds, counted from when it was asked for.
fn surely(lapses_in_ms: u64) -> Duration {
    let life = Duration::from_millis(lapses_in_ms);
    life - life / LEFT_UNUSED
}

/// The node's answer to a report.
fn recorded(answer: Result<tonic::Response<api::CheckResponse>, tonic::Status>, id: String) -> Reply {
    match answer.map(tonic::Response::into_inner) {
        Ok(answer) => {
            // A node records nothing of a window before it believes its wall clock.
            let is_recorded =
                |limit: &&api::LimitResult| !answer.is_repeat && limit.reason() != api::Reason::Clock;
            let limits = answer.limits.iter().filter(is_recorded);
            let fitted = limits.map(|limit| (limit.name.clone(), fitted(limit))).collect();
            Reply::Recorded { id, is_repeat: answer.is_repeat, fitted }
        }
        Err(status) => nothing(&status),
    }
}

fn nothing(status: &tonic::Status) -> Reply {
    Reply::Nothing(format!("{:?}: {}", status.code(), status.message()))
}

/// The node's answer to a request whose cost was spent already, on limits that say `charge: always`.
fn spent(answer: tonic::Response<api::CheckResponse>) -> Settlement {
    let answer = answer.into_inner();
    let is_over = matches!(answer.reason(), api::Reason::OverLimit | api::Reason::CostTooHigh);
    if answer.allowed || is_over { Settlement::Now } else { Settlement::Unsure }
}

/// The node's answer to the report of a real cost under the name of a charge.
fn settlement(answer: tonic::Response<api::SettleResponse>) -> Settlement {
    match answer.into_inner().settled() {
        api::Settled::Done => Settlement::Now,
        api::Settled::Before => Settlement::Before,
        _ => Settlement::Unsure,
    }
}

/// The units of a report that a limit had left, so far as that is known. What the limit did not have is owed now,
/// beside what was owed before: it is the smaller one of the cost and of what is owed.
fn fitted(limit: &api::LimitResult) -> u64 {
    match (limit.outcome(), limit.reason()) {
        (api::Outcome::Allow, _) => limit.cost,
        // The cost may not be recorded, for other reasons.
        (_, api::Reason::OverLimit | api::Reason::CostTooHigh) if limit.owed > 0 => {
            limit.cost.saturating_sub(limit.owed)
        }
        _ => 0,
    }
}
