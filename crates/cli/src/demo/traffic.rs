//! The demand of the regions: about one and a half times the budget, most of it in one region.
//!
//! Each region is asked over its own stream, with a message every few milliseconds, whether or not the last
//! one was answered. A denied or slow answer does not reduce demand.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use acequia_client::{CheckResponse, CheckStream, Client, ClientError, Options, Question};
use tokio::{task::JoinHandle, time::MissedTickBehavior};

use super::{
    ledger::{Answer, Instants, KINDS, Ledger, Subject},
    plan::{DOMAIN, NAMES, REGIONS, USERS},
};
use crate::settings::SETTINGS;

/// Requests a second about the budget, for each region.
pub fn demands(budget: u64, hot: usize) -> [u64; REGIONS] {
    let all = budget.min(SETTINGS.traffic.budget_max) * SETTINGS.traffic.demand_percent / 100;
    let hottest = all * SETTINGS.traffic.hot_percent / 100;
    let other = (all - hottest) / (REGIONS as u64 - 1);
    std::array::from_fn(|place| if place == hot { hottest } else { other })
}

/// The callers of all regions, which stop when this is dropped.
#[derive(Debug)]
pub struct Traffic {
    demands: [Arc<AtomicU64>; REGIONS],
    tasks: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Starts the callers for these addresses, which count in the ledger.
    ///
    /// # Errors
    /// An address is not valid.
    pub fn start(
        addresses: [SocketAddr; REGIONS],
        ledger: &Arc<Mutex<Ledger>>,
        began: Instant,
    ) -> Result<Self, ClientError> {
        let demands: [Arc<AtomicU64>; REGIONS] = Default::default();
        let mut tasks = Vec::new();
        for (place, address) in addresses.into_iter().enumerate() {
            let asker = Asker {
                region: place,
                client: Client::connect(
                    &address.to_string(),
                    Options { deadline: SETTINGS.traffic.deadline },
                )?,
                ledger: Arc::clone(ledger),
                demand: Arc::clone(&demands[place]),
                began,
                owed: [0; SUBJECTS],
            };
            tasks.push(tokio::spawn(asker.run()));
        }
        Ok(Self { demands, tasks })
    }

    /// From now on, asks the regions for this much of the budget a second.
    pub fn set(&self, demands: [u64; REGIONS]) {
        for (demand, now) in self.demands.iter().zip(demands) {
            demand.store(now, Ordering::Relaxed);
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The budget, every user, and the exports.
const SUBJECTS: usize = USERS.len() + KINDS - 1;

fn subjects() -> [Subject; SUBJECTS] {
    std::array::from_fn(|number| match number {
        0 => Subject::Budget,
        number if number <= USERS.len() => Subject::User(number - 1),
        _ => Subject::Exports,
    })
}

fn question(subject: Subject) -> Question {
    match subject {
        Subject::Budget => Question::new(DOMAIN, [("route", "/api")]),
        Subject::User(user) => Question::new(DOMAIN, [("user", USERS[user].0)]),
        Subject::Exports => Question::new(DOMAIN, [("route", "/export")]),
    }
}

/// The caller of one region.
struct Asker {
    region: usize,
    client: Client,
    ledger: Arc<Mutex<Ledger>>,
    demand: Arc<AtomicU64>,
    began: Instant,
    /// Parts of requests that are due, in billionths, by subject.
    owed: [u64; SUBJECTS],
}

/// A message that was sent: the time, and the number of questions about each subject, in order.
struct Sent {
    at: Instants,
    counts: [usize; SUBJECTS],
}

impl Asker {
    async fn run(mut self) {
        loop {
            if let Ok(stream) = self.client.check_stream().await {
                let why = self.ask(stream).await;
                tracing::debug!(region = NAMES[self.region], %why, "the stream has ended");
            }
            tokio::time::sleep(SETTINGS.traffic.retry).await;
        }
    }

    /// Asks until the stream ends, and returns the reason.
    async fn ask(&mut self, mut stream: CheckStream) -> ClientError {
        let mut ticks = tokio::time::interval(SETTINGS.traffic.message_interval);
        // A late tick asks in one message for the time that it missed.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut last = Instant::now();
        let mut sent = VecDeque::new();
        loop {
            tokio::select! {
                biased;
                Some(answers) = stream.next() => match answers {
                    Ok(answers) => {
                        if let Some(message) = sent.pop_front() {
                            self.count(&message, &answers);
                        }
                    }
                    Err(error) => return error,
                },
                _ = ticks.tick() => {
                    let now = Instant::now();
                    let counts = self.due(now.duration_since(last));
                    last = now;
                    if counts.iter().all(|count| *count == 0) || stream.is_full() {
                        continue;
                    }
                    let at = self.instants();
                    let all = subjects().into_iter().zip(counts);
                    let questions = all.flat_map(|(subject, count)| (0..count).map(move |_| question(subject)));
                    match stream.send(questions) {
                        Ok(()) => sent.push_back(Sent { at, counts }),
                        Err(error) => return error,
                    }
                }
            }
        }
    }

    /// The number of due questions about each subject, at most as many as a message holds.
    fn due(&mut self, elapsed: Duration) -> [usize; SUBJECTS] {
        const WHOLE: u64 = 1_000_000_000;
        // A stall is not made up for: callers that could not ask are gone.
        let elapsed_ns = elapsed.min(SETTINGS.traffic.message_interval * 10).as_nanos() as u64;
        let most = (acequia_client::QUESTIONS_IN_BATCH_MAX / SUBJECTS) as u64;
        let mut room = acequia_client::QUESTIONS_IN_BATCH_MAX as u64;
        let mut counts = [0; SUBJECTS];
        for (number, subject) in subjects().into_iter().enumerate().rev() {
            let rate = match subject {
                Subject::Budget => self.demand.load(Ordering::Relaxed),
                Subject::User(user) if USERS[user].1 == self.region => USERS[user].2,
                Subject::User(_) => 0,
                Subject::Exports => SETTINGS.traffic.exports_asked,
            };
            let owed = self.owed[number].saturating_add(rate.saturating_mul(elapsed_ns));
            let most = if subject == Subject::Budget { room } else { most };
            let count = (owed / WHOLE).min(most);
            self.owed[number] = owed % WHOLE;
            room -= count;
            counts[number] = count as usize;
        }
        counts
    }

    fn count(&self, message: &Sent, answers: &[CheckResponse]) {
        let answered = self.instants();
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = answers;
        for (subject, count) in subjects().into_iter().zip(message.counts) {
            let (these, others) = rest.split_at(count.min(rest.len()));
            rest = others;
            if these.is_empty() {
                continue;
            }
            let admitted = these.iter().filter(|answer| answer.allowed).count() as u64;
            ledger.answer(Answer {
                region: self.region,
                subject,
                asked: message.at,
                answered,
                admitted,
                denied: these.len() as u64 - admitted,
            });
        }
    }

    fn instants(&self) -> Instants {
        Instants::now(self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::in_force::AT_START, *};

    fn asker(region: usize, demand: u64) -> Asker {
        let demand = Arc::new(AtomicU64::new(demand));
        let client = Client::connect("127.0.0.1:1", Options::default()).expect("an address");
        let ledger = Arc::new(Mutex::new(Ledger::new(AT_START)));
        Asker { region, client, ledger, demand, began: Instant::now(), owed: [0; SUBJECTS] }
    }

    #[test]
    fn most_requests_come_in_the_hot_region() {
        assert_eq!(demands(1_000, 0), [1_200, 150, 150]);
        assert_eq!(demands(100, 2), [15, 15, 120]);
        assert_eq!(demands(u64::MAX, 0), demands(5_000, 0));
    }

    #[tokio::test]
    async fn each_second_sends_exactly_the_demand() {
        let mut asker = asker(1, 1_234);
        let mut sums = [0; SUBJECTS];
        // 50 messages, of which every other one is late.
        for ms in [13, 27].repeat(25) {
            let counts = asker.due(Duration::from_millis(ms));
            assert!(counts.iter().sum::<usize>() <= acequia_client::QUESTIONS_IN_BATCH_MAX);
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        // ben and dan ask in us.
        assert_eq!(sums, [1_234, 0, 8, 0, 25, 4]);
    }

    #[tokio::test]
    async fn a_stall_or_a_huge_demand_does_not_overflow_a_message() {
        let mut asker = asker(0, u64::MAX);
        let counts = asker.due(Duration::from_secs(3_600));
        assert_eq!(counts.iter().sum::<usize>(), acequia_client::QUESTIONS_IN_BATCH_MAX);
    }

    #[tokio::test]
    async fn answers_are_counted_by_their_question() {
        let asker = asker(2, 0);
        let message = Sent { at: asker.instants(), counts: [3, 0, 0, 2, 0, 1] };
        let answer = |allowed| CheckResponse { allowed, ..CheckResponse::default() };
        let answers = [true, true, false, true, false, true].map(answer);
        asker.count(&message, &answers);
        let mut ledger = asker.ledger.lock().expect("no panic");
        ledger.close(Duration::from_secs(1), 0, false);
        let bin = ledger.last_second();
        assert_eq!(bin.admitted.map(|regions| regions[2]), [2, 1, 1]);
        assert_eq!(bin.denied.map(|regions| regions[2]), [1, 1, 0]);
    }
}
