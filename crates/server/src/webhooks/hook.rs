//! One receiver: the events that wait for it, its health, and the counts of its deliveries.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use acequia_limits::selector::Condition;
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{StatusCode, Uri};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use super::{
    pace::{Verdict, backoff},
    post::Post,
    queue::{Letter, Queue},
    signature::Secret,
};
use crate::settings::SETTINGS;

/// The settings that may change while a hook is in use.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) secret: Secret,
    /// The paths of the limits whose events the hook receives.
    pub(super) limits: Condition,
    pub(super) timeout: Duration,
    pub(super) post: Post,
}

/// The events of a hook since it was set up, by outcome, and those that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events that arrived.
    pub delivered: u64,
    /// Tries that failed, and that another try follows.
    pub retried: u64,
    /// Events that were given up: the queue was full, they were too old or tried too often, or the node
    /// stopped.
    pub dropped: u64,
    /// Events that the hook refused.
    pub refused: u64,
    /// Events that wait, including one that is being sent.
    pub queue: u64,
}

/// A receiver.
#[derive(Debug)]
pub(super) struct Hook {
    pub(super) url: Uri,
    settings: ArcSwap<Settings>,
    state: Mutex<State>,
    changed: Notify,
    delivered: AtomicU64,
    retried: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    queue: Queue,
    /// The number of the next letter.
    next: u64,
    /// Whether a letter is with the courier.
    is_sending: bool,
    /// Until when the hook asks not to be called.
    quiet_until: Option<Instant>,
    phase: Phase,
    /// Events that were lost since the node began to stop.
    lost_stopping: u64,
    trouble: Option<Trouble>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Running,
    /// The node stops: each waiting event is tried once more, now.
    Draining,
    /// The node stops, and no more events come.
    Ending,
}

/// Failures since the hook last took an event.
#[derive(Debug, Default)]
struct Trouble {
    lost: u64,
}

/// The next step of a courier.
#[derive(Debug)]
pub(super) enum Next {
    Send(Letter),
    /// Wait until something changes, or until this time.
    Wait(Option<Instant>),
    End,
}

/// The outcome of a try.
#[derive(Debug)]
pub(super) enum TryOutcome {
    Answered(StatusCode, Verdict),
    /// There was no answer.
    Failed(String),
}

impl Hook {
    pub(super) fn new(url: Uri, settings: Settings) -> Self {
        Self {
            url,
            settings: ArcSwap::from_pointee(settings),
            state: Mutex::default(),
            changed: Notify::new(),
            delivered: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// The URL's host, which metrics and logs show: paths may hold secrets.
    pub(super) fn host(&self) -> &str {
        self.url.host().unwrap_or_default()
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Changes the settings from the next try on.
    pub(super) fn set(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// Whether the hook receives events of a limit.
    pub(super) fn wants(&self, path: &str) -> bool {
        self.settings.load().limits.accepts(path.as_bytes())
    }

    /// Takes an event for delivery. If there is no room, the oldest events are lost.
    pub(super) fn offer(&self, id: &str, body: Bytes, now: Instant) {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let letter =
            Letter { number, id: id.to_owned(), body, offered: now, due: now, tries: 0, is_last: false };
        let left = match state.phase {
            Phase::Ending => vec![letter],
            _ => state.queue.put(letter),
        };
        self.lose(state, &left, "more events wait than there is room for");
        self.changed.notify_one();
    }

    /// The next step now.
    pub(super) fn next(&self, now: Instant) -> Next {
        loop {
            let mut state = self.state();
            state.is_sending = false;
            let Some(due) = state.queue.due() else {
                return if state.phase == Phase::Ending { Next::End } else { Next::Wait(None) };
            };
            let is_stopping = state.phase > Phase::Running;
            let at = state.quiet_until.map_or(due, |quiet| due.max(quiet));
            if at > now && !is_stopping {
                return Next::Wait(Some(at));
            }
            let Some(mut letter) = state.queue.take() else { return Next::Wait(None) };
            if now.duration_since(letter.offered) > SETTINGS.webhooks.age_max {
                self.lose(state, &[letter], "it waited for too long");
                continue;
            }
            letter.is_last = is_stopping;
            state.is_sending = true;
            return Next::Send(letter);
        }
    }

    /// Takes back a letter that was sent. `random` decides how long the letter waits if it is to be sent
    /// again.
    pub(super) fn settle(&self, mut letter: Letter, outcome: TryOutcome, random: u64, now: Instant) {
        let mut state = self.state();
        state.is_sending = false;
        let (asked, why) = match outcome {
            TryOutcome::Answered(_, Verdict::Delivered) => {
                self.delivered.fetch_add(1, Ordering::Relaxed);
                state.quiet_until = None;
                let trouble = state.trouble.take();
                drop(state);
                if let Some(Trouble { lost }) = trouble {
                    info!(hook = self.host(), lost, "the webhook takes events again");
                }
                return debug!(hook = self.host(), id = letter.id, "event delivered");
            }
            TryOutcome::Answered(status, Verdict::Refused) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return self.suffer(state, 1, &letter.id, &refusal(status));
            }
            TryOutcome::Answered(status, Verdict::Again(asked)) => {
                (asked, format!("it answers {}", status.as_u16()))
            }
            TryOutcome::Failed(why) => (None, why),
        };
        letter.tries += 1;
        if let Some(asked) = asked {
            state.quiet_until = Some(now + asked);
        }
        letter.due = now + backoff(letter.tries, random).max(asked.unwrap_or_default());
        let is_over = letter.tries >= SETTINGS.webhooks.tries_max
            || letter.due > letter.offered + SETTINGS.webhooks.age_max;
        if letter.is_last || is_over {
            return self.lose(state, &[letter], &why);
        }
        let (number, id) = (letter.number, letter.id.clone());
        let left = state.queue.put(letter);
        if left.iter().all(|lost| lost.number != number) {
            self.retried.fetch_add(1, Ordering::Relaxed);
        }
        if left.is_empty() {
            self.suffer(state, 0, &id, &why);
        } else {
            self.lose(state, &left, &why);
        }
    }

    /// From now on each event, waiting or new, is tried once.
    pub(super) fn drain(&self) {
        let mut state = self.state();
        state.phase = state.phase.max(Phase::Draining);
        drop(state);
        self.changed.notify_one();
    }

    /// As [`Hook::drain`]; and the courier may end when no event waits.
    pub(super) fn end(&self) {
        self.state().phase = Phase::Ending;
        self.changed.notify_one();
    }

    /// Gives up all waiting events, and says how many events were lost since [`Hook::drain`] or
    /// [`Hook::end`].
    pub(super) fn abandon(&self) -> u64 {
        let mut state = self.state();
        let left = state.queue.clear() as u64 + u64::from(std::mem::take(&mut state.is_sending));
        self.dropped.fetch_add(left, Ordering::Relaxed);
        state.lost_stopping += left;
        state.lost_stopping
    }

    /// Waits until there may be another step.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn counts(&self) -> Counts {
        let state = self.state();
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            delivered: count(&self.delivered),
            retried: count(&self.retried),
            dropped: count(&self.dropped),
            refused: count(&self.refused),
            queue: state.queue.len() as u64 + u64::from(state.is_sending),
        }
    }

    fn lose(&self, mut state: MutexGuard<'_, State>, letters: &[Letter], why: &str) {
        let Some(first) = letters.first() else { return };
        let lost = letters.len() as u64;
        self.dropped.fetch_add(lost, Ordering::Relaxed);
        if state.phase > Phase::Running {
            state.lost_stopping += lost;
        }
        self.suffer(state, lost, &first.id, why);
    }

    /// Logs the first fault in a row, and the first loss of an event. Later faults of a broken hook appear
    /// only in metrics, since logs would grow without a bound.
    fn suffer(&self, mut state: MutexGuard<'_, State>, lost: u64, id: &str, why: &str) {
        let is_first = state.trouble.is_none();
        let trouble = state.trouble.get_or_insert_default();
        let is_first_lost = lost > 0 && trouble.lost == 0;
        trouble.lost += lost;
        drop(state);
        let hook = self.host();
        if is_first_lost {
            warn!(
                hook,
                id,
                why,
                "an event for a webhook is lost, and more may be until it takes one: mend the receiver, or \
                 take it out of `webhooks`"
            );
        } else if is_first {
            warn!(hook, id, why, "the webhook does not take an event, which is tried again later");
        } else {
            debug!(hook, id, why, lost, "the webhook still does not take events");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The refusal in words, for a status that no retry changes.
fn refusal(status: StatusCode) -> String {
    let code = status.as_u16();
    match status {
        _ if status.is_redirection() => {
            format!("it answers {code}, and redirects are not followed: write the URL that it leads to")
        }
        StatusCode::GONE => format!("it answers {code}: it wants no more events"),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("it answers {code}: see whether both sides have the same secret")
        }
        _ => format!("it answers {code}"),
    }
}
