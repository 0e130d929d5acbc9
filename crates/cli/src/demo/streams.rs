//! Streams whose costs are known last. A caller asks without a charge, streams for a while, and then reports
//! what the stream has cost.
//!
//! So a region admits streams while nothing is owed, and all that they cost is recorded. What the limit did
//! not have left is owed, and no stream begins before the rate has paid the debt off.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use acequia_client::{CheckResponse, Client, ClientError, Options, Question};
use tokio::task::JoinHandle;

use super::{
    ledger::BINS_IN_SECOND,
    plan::{DOMAIN, NAMES},
    story::Story,
};
use crate::{
    settings::SETTINGS,
    view::{picture::Tone, words::short},
};

/// What callers have seen of their streams so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Streams that began.
    pub begun: u64,
    /// Streams that were denied.
    pub denied: u64,
    /// Units that were reported.
    pub spent: u64,
    /// Units that were owed in the last answer.
    pub owed: u64,
}

/// Callers in one region that stream, and what they have seen.
#[derive(Debug, Default)]
pub struct Streams {
    seen: Arc<Mutex<Seen>>,
    callers: Vec<JoinHandle<()>>,
    /// What was seen at the end of each bin of the last second.
    bins: VecDeque<Seen>,
    news: News,
}

/// What was told of the present callers.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    region: usize,
    /// What was seen when they began.
    before: Seen,
    /// When the first stream was denied because units were owed.
    owed_since: Option<Duration>,
}

impl Streams {
    /// Whether callers stream now.
    pub fn go_on(&self) -> bool {
        !self.callers.is_empty()
    }

    /// What was seen so far.
    pub fn seen(&self) -> Seen {
        *locked(&self.seen)
    }

    /// What was seen in the last second.
    pub fn last_second(&self) -> Seen {
        let (Some(first), Some(last)) = (self.bins.front(), self.bins.back()) else { return Seen::default() };
        Seen {
            begun: last.begun - first.begun,
            denied: last.denied - first.denied,
            spent: last.spent - first.spent,
            owed: last.owed,
        }
    }

    /// Starts callers in a region, unless callers stream already.
    ///
    /// # Errors
    /// The address is not valid.
    pub fn start(
        &mut self,
        at: Duration,
        region: usize,
        address: SocketAddr,
        story: &mut Story,
    ) -> Result<bool, ClientError> {
        if self.go_on() {
            let words = format!("streams go on in {} already", NAMES[self.news.region]);
            story.tell(at, Tone::Plain, words);
            return Ok(false);
        }
        let options = Options { deadline: SETTINGS.traffic.deadline };
        let client = Client::connect(&address.to_string(), options)?;
        self.news = News { region, before: self.seen(), owed_since: None };
        let until = Instant::now() + SETTINGS.streams.begin_for;
        for number in 0..SETTINGS.streams.callers {
            let caller = Caller { client: client.clone(), seen: Arc::clone(&self.seen), number, until };
            self.callers.push(tokio::spawn(caller.run(at)));
        }
        story.tell(at, Tone::Plain, format!("streams in {}: costs known last", NAMES[region]));
        Ok(true)
    }

    /// Ends a bin, and tells what is new.
    pub fn close_bin(&mut self, at: Duration, story: &mut Story) {
        let seen = self.seen();
        self.bins.push_back(seen);
        if self.bins.len() > BINS_IN_SECOND + 1 {
            self.bins.pop_front();
        }
        if !self.go_on() {
            return;
        }
        let News { region, before, owed_since } = &mut self.news;
        let name = NAMES[*region];
        if owed_since.is_none() && seen.denied > before.denied && seen.owed > 0 {
            *owed_since = Some(at);
            story.tell(at, Tone::Bad, format!("{name} owes {}: no stream begins", seen.owed));
        }
        if self.callers.iter().all(JoinHandle::is_finished) {
            self.callers.clear();
            let (tone, words) = match (seen.owed, owed_since) {
                (0, Some(since)) => {
                    (Tone::Good, format!("owes nothing after {}", short(at.saturating_sub(*since))))
                }
                (0, None) => (Tone::Good, "owed nothing".to_owned()),
                (owed, _) => (Tone::Bad, format!("still owes {owed}")),
            };
            story.tell(at, tone, format!("{name} {words}"));
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for caller in &self.callers {
            caller.abort();
        }
    }
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A caller, which has at most one stream at a time.
struct Caller {
    client: Client,
    seen: Arc<Mutex<Seen>>,
    number: u32,
    until: Instant,
}

impl Caller {
    /// Streams until the time is over, and then asks until nothing is owed.
    async fn run(self, began: Duration) {
        let give_up = self.until + SETTINGS.streams.pay_max;
        for turn in 0_u32.. {
            let is_last = Instant::now() >= self.until;
            if Instant::now() >= give_up {
                return;
            }
            // A question of cost 0 is a peek.
            let answer = self.client.peek(question()).await.map(|peeked| peeked.verdict.unwrap_or_default());
            match answer {
                Ok(answer) if answer.allowed && is_last => {
                    self.note(&answer);
                    return;
                }
                Ok(answer) if answer.allowed => {
                    locked(&self.seen).begun += 1;
                    let (lasts, cost) = stream(self.number, turn);
                    tokio::time::sleep(lasts).await;
                    // A report under a name may be repeated: the name is recorded once.
                    let name = format!("{}-{}-{turn}", began.as_millis(), self.number);
                    self.report(&name, cost).await;
                }
                Ok(answer) => {
                    locked(&self.seen).denied += u64::from(!is_last);
                    self.note(&answer);
                    tokio::time::sleep(SETTINGS.streams.again).await;
                }
                Err(_) => tokio::time::sleep(SETTINGS.streams.again).await,
            }
        }
    }

    async fn report(&self, name: &str, cost: u64) {
        for _ in 0..SETTINGS.streams.reports_max {
            if let Ok(answer) = self.client.report(question().cost(cost).id(name)).await {
                locked(&self.seen).spent += cost;
                self.note(&answer);
                return;
            }
            tokio::time::sleep(SETTINGS.streams.again).await;
        }
    }

    fn note(&self, answer: &CheckResponse) {
        locked(&self.seen).owed = answer.limits.iter().map(|limit| limit.owed).sum();
    }
}

fn question() -> Question {
    Question::new(DOMAIN, [("route", "/stream")])
}

/// How long a stream lasts, and what it costs: some short and cheap, some long and dear.
fn stream(caller: u32, turn: u32) -> (Duration, u64) {
    let (long, dear) = ((caller * 7 + turn * 5) % 10, (caller * 11 + turn * 13) % 16);
    (Duration::from_millis(500 + u64::from(long) * 150), 25 + u64::from(dear) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(story: &Story) -> Vec<String> {
        story.events().map(|event| event.words.clone()).collect()
    }

    #[tokio::test]
    async fn a_debt_is_told_once_and_again_when_it_is_paid() {
        let (mut streams, mut story) = (Streams::default(), Story::default());
        streams.callers.push(tokio::spawn(async {}));
        for (tenth, (denied, owed)) in [(0, 0), (0, 300), (2, 250), (5, 100), (5, 0)].into_iter().enumerate()
        {
            *locked(&streams.seen) = Seen { begun: 7, denied, spent: 600, owed };
            if tenth == 4 {
                while !streams.callers[0].is_finished() {
                    tokio::task::yield_now().await;
                }
            }
            streams.close_bin(Duration::from_millis(tenth as u64 * 100), &mut story);
        }
        assert!(!streams.go_on());
        let expected = ["eu owes 250: no stream begins", "eu owes nothing after 200 ms"];
        assert_eq!(told(&story), expected);
    }

    #[test]
    fn the_last_second_is_what_was_seen_in_it() {
        let (mut streams, mut story) = (Streams::default(), Story::default());
        for bin in 0..25 {
            *locked(&streams.seen) = Seen { spent: bin * 7, denied: bin, ..Seen::default() };
            streams.close_bin(Duration::from_millis(bin * 100), &mut story);
        }
        assert_eq!(streams.last_second(), Seen { spent: 70, denied: 10, ..Seen::default() });
    }

    #[test]
    fn streams_together_want_more_than_the_limit_gives() {
        let all: Vec<_> = (0..SETTINGS.streams.callers)
            .flat_map(|caller| (0..10).map(move |turn| stream(caller, turn)))
            .collect();
        let seconds: f64 = all.iter().map(|(lasts, _)| lasts.as_secs_f64()).sum();
        let units: u64 = all.iter().map(|(_, cost)| cost).sum();
        let per_second = units as f64 / seconds * f64::from(SETTINGS.streams.callers);
        assert!(per_second > 2.0 * super::super::plan::TOKENS as f64, "{per_second}");
    }
}
