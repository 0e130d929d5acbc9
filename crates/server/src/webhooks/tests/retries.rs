//! One hook in time that a test lets pass: nothing here sleeps or sends.

use std::time::{Duration, SystemTime};

use acequia_limits::selector::Condition;
use http::{HeaderMap, HeaderValue, StatusCode, header::RETRY_AFTER};

use super::*;
use crate::webhooks::{
    hook::{Next, TryOutcome},
    pace::verdict,
};

const TIMEOUT: Duration = Duration::from_secs(5);
const HOUR_S: u64 = 3_600;

/// A receiver's answer to a message.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Status(u16),
    /// The status, and the value of `Retry-After`.
    Later(u16, &'static str),
    /// The connection is refused.
    Fault,
    /// The receiver never answers.
    Hang,
}

/// The answer to an id, by how often the id came before.
type Rule = Box<dyn Fn(&str, usize) -> Answer>;

/// A hook, and a receiver that answers by a rule.
struct Story {
    hook: Hook,
    rule: Rule,
    begun: Instant,
    now: Instant,
    /// The whole seconds at which the receiver saw messages, and their ids.
    seen: Vec<(u64, String)>,
}

impl Story {
    fn begin(rule: impl Fn(&str, usize) -> Answer + 'static) -> Self {
        let now = Instant::now();
        let hook = Hook::new("https://ops.example/s3cret".parse().expect("a URL"), settings("shop/*"));
        Self { hook, rule: Box::new(rule), begun: now, now, seen: Vec::new() }
    }

    fn offer(&self, id: &str) {
        self.hook.offer(id, Bytes::from_static(b"{}"), self.now);
    }

    /// Does a courier's work in this time, with the longest wait after every fault.
    fn pass(&mut self, time_s: u64) {
        let end = self.now + Duration::from_secs(time_s);
        loop {
            match self.hook.next(self.now) {
                Next::Send(letter) => {
                    let outcome = self.send(&letter.id);
                    self.hook.settle(letter, outcome, u64::MAX, self.now);
                }
                Next::Wait(Some(until)) if until <= end => {
                    assert!(until > self.now, "a wait for nothing");
                    self.now = until;
                }
                Next::Wait(_) | Next::End => break,
            }
        }
        self.now = self.now.max(end);
    }

    fn send(&mut self, id: &str) -> TryOutcome {
        let times = self.seen.iter().filter(|(_, seen)| seen == id).count();
        self.seen.push((self.now.duration_since(self.begun).as_secs(), id.to_owned()));
        let answered = |status: u16, headers: HeaderMap| {
            let status = StatusCode::from_u16(status).expect("a status");
            TryOutcome::Answered(status, verdict(status, &headers, SystemTime::UNIX_EPOCH))
        };
        match (self.rule)(id, times) {
            Answer::Status(status) => answered(status, HeaderMap::new()),
            Answer::Later(status, wait) => {
                answered(status, HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(wait))]))
            }
            Answer::Fault => TryOutcome::Failed("connection refused".to_owned()),
            Answer::Hang => {
                self.now += TIMEOUT;
                TryOutcome::Failed("it does not answer".to_owned())
            }
        }
    }

    fn seen_at(&self) -> Vec<u64> {
        self.seen.iter().map(|(at_s, _)| *at_s).collect()
    }

    fn ids(&self) -> Vec<&str> {
        self.seen.iter().map(|(_, id)| id.as_str()).collect()
    }
}

fn settings(limits: &str) -> Settings {
    let trust = post::trust(RootCertStore::empty()).expect("a TLS config");
    let url = "https://ops.example/s3cret".parse().expect("a URL");
    Settings {
        secret: Secret::new(SECRET.as_bytes()).expect("a secret"),
        limits: Condition::new("limit", [limits]),
        timeout: TIMEOUT,
        post: Post::new(url, trust, TIMEOUT),
    }
}

#[test]
fn a_failed_event_is_sent_again_after_longer_and_longer_waits() {
    let mut story = Story::begin(|_, times| [Answer::Status(500), Answer::Fault, Answer::Status(204)][times]);
    story.offer("w-1");
    story.pass(HOUR_S);
    assert_eq!((story.seen_at(), story.ids()), (vec![0, 1, 5], vec!["w-1"; 3]));
    assert_eq!(story.hook.counts(), Counts { delivered: 1, retried: 2, ..Counts::default() });
}

#[test]
fn an_event_is_dropped_after_eight_failed_tries() {
    let mut story = Story::begin(|_, _| Answer::Fault);
    story.offer("w-1");
    story.pass(HOUR_S);
    assert_eq!(story.seen_at(), [0, 1, 5, 21, 85, 341, 641, 941]);
    assert_eq!(story.hook.counts(), Counts { retried: 7, dropped: 1, ..Counts::default() });
}

#[test]
fn an_event_older_than_half_an_hour_is_dropped() {
    let mut story = Story::begin(|_, _| Answer::Later(503, "299"));
    story.offer("w-1");
    story.pass(HOUR_S);
    // The last wait is the node's own: by then it is longer than the hook's.
    assert_eq!(story.seen_at(), [0, 299, 598, 897, 1_196, 1_495, 1_795]);
    assert_eq!(story.hook.counts(), Counts { retried: 6, dropped: 1, ..Counts::default() });
}

#[test]
fn an_event_that_waited_too_long_behind_others_is_dropped_unsent() {
    let mut story = Story::begin(|_, _| Answer::Hang);
    for number in 0..SETTINGS.webhooks.letters_max {
        story.offer(&format!("w-{number}"));
    }
    story.pass(HOUR_S);
    let counts = story.hook.counts();
    assert_eq!((counts.queue, counts.dropped), (0, SETTINGS.webhooks.letters_max as u64));
    let last = 1_800;
    assert_eq!(story.seen.len() as u64, last / TIMEOUT.as_secs() + 1, "one at a time");
    assert_eq!(story.seen_at().last(), Some(&last));
}

#[test]
fn a_webhook_that_asks_for_a_pause_gets_no_event_meanwhile() {
    let mut story = Story::begin(|id, times| match (id, times) {
        ("w-1", 0) => Answer::Later(429, "60"),
        _ => Answer::Status(200),
    });
    story.offer("w-1");
    story.pass(10);
    story.offer("w-2");
    story.pass(HOUR_S);
    // The second event was due first.
    assert_eq!((story.seen_at(), story.ids()), (vec![0, 60, 60], vec!["w-1", "w-2", "w-1"]));
}

#[test]
fn a_long_pause_that_a_webhook_asks_for_is_cut_to_five_minutes() {
    let mut story = Story::begin(|_, times| [Answer::Later(503, "86400"), Answer::Status(200)][times]);
    story.offer("w-1");
    story.pass(HOUR_S);
    assert_eq!(story.seen_at(), [0, 300]);
}

#[test]
fn an_event_that_a_webhook_fails_on_does_not_hold_up_others() {
    let mut story = Story::begin(|id, _| Answer::Status(if id == "bad" { 500 } else { 200 }));
    story.offer("bad");
    story.offer("good");
    story.pass(0);
    assert_eq!(story.ids(), ["bad", "good"]);
    assert_eq!(story.hook.counts(), Counts { delivered: 1, retried: 1, queue: 1, ..Counts::default() });
}

#[test]
fn a_refused_event_is_sent_only_once() {
    for status in [301, 307, 400, 401, 404, 410, 413] {
        let mut story = Story::begin(move |_, _| Answer::Status(status));
        story.offer("w-1");
        story.pass(HOUR_S);
        assert_eq!(story.seen_at(), [0], "{status}");
        assert_eq!(story.hook.counts(), Counts { refused: 1, ..Counts::default() }, "{status}");
    }
}

#[test]
fn a_flood_drops_its_oldest_events_and_counts_them() {
    let mut story = Story::begin(|_, _| Answer::Status(200));
    story.offer("first");
    let Next::Send(first) = story.hook.next(story.now) else { panic!("it is due") };
    for number in 0..SETTINGS.webhooks.letters_max + 10 {
        story.offer(&format!("w-{number}"));
    }
    let counts = story.hook.counts();
    assert_eq!(
        (counts.dropped, counts.queue),
        (10, SETTINGS.webhooks.letters_max as u64 + 1),
        "one is on its way"
    );
    story.hook.settle(first, TryOutcome::Failed("too late".to_owned()), u64::MAX, story.now);
    assert_eq!(story.hook.counts().dropped, 11, "what came back finds no place");
    story.pass(HOUR_S);
    assert_eq!((story.ids()[0], story.seen.len()), ("w-10", SETTINGS.webhooks.letters_max));
}

#[test]
fn a_stopping_node_tries_every_waiting_event_once_more() {
    let mut story = Story::begin(|id, times| match (id, times) {
        ("luck", 0) => Answer::Later(503, "300"),
        ("bad", _) => Answer::Status(500),
        _ => Answer::Status(200),
    });
    story.offer("bad");
    story.offer("luck");
    story.pass(0);
    story.hook.drain();
    story.offer("late");
    story.pass(0);
    assert_eq!(story.ids(), ["bad", "luck", "late", "bad", "luck"], "whenever they were due");
    assert_eq!(story.hook.counts(), Counts { delivered: 2, retried: 2, dropped: 1, ..Counts::default() });
    story.hook.end();
    assert!(matches!(story.hook.next(story.now), Next::End));
    assert_eq!(story.hook.abandon(), 1, "so many are said to be lost");
    story.offer("too late");
    assert_eq!(story.hook.counts().dropped, 2);
}

#[test]
fn a_try_under_way_when_a_node_stops_is_not_the_last_one() {
    let mut story = Story::begin(|_, _| Answer::Status(200));
    story.offer("w-1");
    let Next::Send(letter) = story.hook.next(story.now) else { panic!("it is due") };
    story.hook.drain();
    story.hook.settle(letter, TryOutcome::Failed("too slow".to_owned()), u64::MAX, story.now);
    story.pass(0);
    assert_eq!(story.hook.counts(), Counts { delivered: 1, retried: 1, ..Counts::default() });
}

#[test]
fn events_left_at_the_end_are_counted_as_dropped() {
    let story = Story::begin(|_, _| Answer::Hang);
    story.offer("w-1");
    story.offer("w-2");
    let Next::Send(_cut_off) = story.hook.next(story.now) else { panic!("it is due") };
    story.hook.end();
    assert_eq!(story.hook.abandon(), 2);
    assert_eq!(story.hook.counts(), Counts { dropped: 2, ..Counts::default() });
}

#[test]
fn a_webhook_gets_events_of_the_limits_it_names() {
    let story = Story::begin(|_, _| Answer::Hang);
    assert_eq!((story.hook.wants("shop/a"), story.hook.wants("bank/a")), (true, false));
    story.hook.set(settings("bank/*"));
    assert_eq!((story.hook.wants("shop/a"), story.hook.wants("bank/a")), (false, true));
}
