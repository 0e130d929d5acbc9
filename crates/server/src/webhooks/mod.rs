//! Reports events to operators, in the log and by webhooks. No decision ever waits for this.
//!
//! `deliver` takes events, logs each, and offers them to every hook of the config. Each hook has a bounded
//! queue that loses its oldest events ([`Counts`] says how many). A task sends one event at a time, signed as
//! the Standard Webhooks specification says, within the hook's timeout. Where a retry may help, it tries
//! again after longer and longer waits. All hooks together have one thread, so that they delay no worker.
//!
//! An event arrives at least once or is counted as lost. The order may change, since an event that is tried
//! again waits by itself. Receivers de-duplicate by the event's id.
//!
//! `hook` decides the next step and counts the outcomes, and knows no clock. `courier` carries the steps out,
//! through `post`. `pace`, `queue` and `signature` are what their names say.

mod courier;
mod event;
mod hook;
mod pace;
mod post;
mod queue;
mod signature;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use http::uri::Scheme;
use rustls::{ClientConfig, RootCertStore};
use tokio::{runtime::Handle, sync::oneshot, task::JoinHandle};
use tracing::{debug, error, info, warn};

pub use self::{
    event::{Event, Kind},
    hook::Counts,
    signature::SecretFault,
};
use self::{
    hook::{Hook, Settings},
    post::Post,
    signature::Secret,
};
use crate::{config::WebhookConfig, settings::SETTINGS};

/// From this percentage on denials follow a threshold.
const PERCENT_FULL: u8 = 100;

/// Why webhooks cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum WebhooksError {
    /// A hook's secret cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretFault),
    /// There are no root certificates.
    #[error(
        "no root certificates to know webhooks by: {0}. Install the system's `ca-certificates`, or name a file of \
         your own in SSL_CERT_FILE"
    )]
    Roots(String),
    /// The system refuses to start a thread.
    #[error("cannot start the webhooks' thread: {0}")]
    System(#[from] std::io::Error),
}

/// Tells events in the log and to the webhooks of the config, if there are any. Never waits.
pub(crate) fn deliver(webhooks: Option<&Webhooks>, events: impl Iterator<Item = Event>) {
    let mut count = 0;
    for event in events {
        let event = event.bounded();
        if count < SETTINGS.webhooks.logged_max {
            log(&event);
        }
        count += 1;
        if let Some(webhooks) = webhooks {
            webhooks.offer_bounded(&event);
        }
    }
    if let Some(more) = count.checked_sub(SETTINGS.webhooks.logged_max).filter(|more| *more > 0) {
        warn!(more, "more cells have passed thresholds of their limits than the log shows");
    }
}

/// Values of the cell appear only at the level `debug`. The id identifies the event.
fn log(event: &Event) {
    let Event { id, percent, used, budget, .. } = event;
    let limit = event.path();
    if *percent >= PERCENT_FULL {
        warn!(limit, percent, used, budget, id, "a limit is used up");
    } else {
        info!(limit, percent, used, budget, id, "a limit is nearly used up");
    }
    debug!(id, by = ?event.by, "that is this cell");
}

/// The webhooks of a node. Dropping this ends all of them, with every delivery under way.
#[derive(Debug)]
pub struct Webhooks {
    runtime: Handle,
    running: Mutex<BTreeMap<String, Running>>,
    /// Ends the thread when it is dropped.
    _alive: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Running {
    hook: Arc<Hook>,
    courier: JoinHandle<()>,
}

/// Hooks of a config that can be put in force, because their secrets are read.
#[derive(Debug)]
pub struct Prepared(Vec<(WebhookConfig, Secret, ClientConfig)>);

impl Prepared {
    /// Reads what the hooks of a config need.
    ///
    /// # Errors
    /// A secret cannot be used, or the machine has no root certificates.
    pub fn read(hooks: &[WebhookConfig]) -> Result<Self, WebhooksError> {
        let is_secure = |hook: &WebhookConfig| hook.url.scheme() == Some(&Scheme::HTTPS);
        let trust = if hooks.iter().any(is_secure) {
            post::machine_trust()?
        } else {
            post::trust(RootCertStore::empty())?
        };
        Self::read_with(hooks, &trust)
    }

    fn read_with(hooks: &[WebhookConfig], trust: &ClientConfig) -> Result<Self, WebhooksError> {
        let read = |hook: &WebhookConfig| Ok((hook.clone(), Secret::read(&hook.secret_file)?, trust.clone()));
        Ok(Self(hooks.iter().map(read).collect::<Result<_, WebhooksError>>()?))
    }
}

impl Webhooks {
    /// Starts the thread for webhooks, without any hook.
    ///
    /// # Errors
    /// The system refuses to start the thread.
    pub fn start() -> Result<Self, WebhooksError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("webhooks".to_owned()).spawn(move || {
            // Nothing is ever sent. The channel ends with the other side.
            let _ = runtime.block_on(ended);
            // A lookup of a name may hang in the system for long, and must not delay the end.
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, running: Mutex::default(), _alive: alive })
    }

    /// Puts hooks in force, and ends those that are not among them. Events that wait for a hook which stays
    /// are sent with its new secret and timeout.
    pub fn replace(&self, hooks: Prepared) {
        let mut running = self.running();
        let mut before = std::mem::take(&mut *running);
        for (config, secret, trust) in hooks.0 {
            let WebhookConfig { url, limits, timeout, .. } = config;
            let post = Post::new(url.clone(), trust, timeout);
            let settings = Settings { secret, limits, timeout, post };
            let name = url.to_string();
            let hook = match before.remove(&name) {
                Some(stays) => {
                    stays.hook.set(settings);
                    stays
                }
                None => {
                    let hook = Arc::new(Hook::new(url, settings));
                    Running { courier: self.runtime.spawn(courier::carry(Arc::clone(&hook))), hook }
                }
            };
            running.insert(name, hook);
        }
        drop(running);
        for Running { hook, courier } in before.into_values() {
            courier.abort();
            hook.end();
            let lost = hook.abandon();
            info!(hook = hook.host(), lost, "webhook removed, with the events that waited for it");
        }
    }

    /// Offers an event to every hook that receives events of its limit. Never waits: if a queue is full, its
    /// oldest event is lost.
    pub fn offer(&self, event: Event) {
        self.offer_bounded(&event.bounded());
    }

    fn offer_bounded(&self, event: &Event) {
        let (path, now) = (event.path(), Instant::now());
        // The lock is not held while something is logged: a worker that answers `/metrics` takes it, too.
        let hooks: Vec<Arc<Hook>> =
            self.running().values().map(|running| Arc::clone(&running.hook)).collect();
        let mut wanted = hooks.iter().filter(|hook| hook.wants(&path)).peekable();
        if wanted.peek().is_none() {
            return;
        }
        let body = match serde_json::to_vec(event) {
            Ok(body) => Bytes::from(body),
            Err(fault) => return error!(%fault, id = event.id, "an event cannot be written as JSON"),
        };
        for hook in wanted {
            hook.offer(&event.id, body.clone(), now);
        }
    }

    /// The counts of events, by the hooks' hosts.
    pub fn counts(&self) -> BTreeMap<String, Counts> {
        let mut by_host: BTreeMap<String, Counts> = BTreeMap::new();
        for Running { hook, .. } in self.running().values() {
            let counts = hook.counts();
            let sum = by_host.entry(hook.host().to_owned()).or_default();
            sum.delivered += counts.delivered;
            sum.retried += counts.retried;
            sum.dropped += counts.dropped;
            sum.refused += counts.refused;
            sum.queue += counts.queue;
        }
        by_host
    }

    /// From now on each event, waiting or new, is tried once.
    pub fn drain(&self) {
        for Running { hook, .. } in self.running().values() {
            hook.drain();
        }
    }

    /// Waits until all remaining events were tried, or until a time.
    pub async fn finish(&self, until: Instant) {
        let running = std::mem::take(&mut *self.running());
        for Running { hook, .. } in running.values() {
            hook.end();
        }
        for Running { hook, mut courier } in running.into_values() {
            if tokio::time::timeout_at(until.into(), &mut courier).await.is_err() {
                courier.abort();
            }
            let lost = hook.abandon();
            if lost > 0 {
                warn!(hook = hook.host(), lost, "events for a webhook are dropped: the node stops");
            }
        }
    }

    /// The hooks by their URLs. Each holder keeps the lock only briefly.
    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
