//! Carries a hook's events to it, one at a time: a receiver that hangs delays only its own events.

use std::{
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use tokio::time::{sleep_until, timeout};

use super::{
    hook::{Hook, Next, Settings, TryOutcome},
    pace::verdict,
    post::{self, Message},
    queue::Letter,
};
use crate::settings::SETTINGS;

/// Runs until the hook has ended.
pub(super) async fn carry(hook: Arc<Hook>) {
    loop {
        match hook.next(Instant::now()) {
            Next::Send(letter) => {
                let outcome = send(&letter, &hook.settings()).await;
                // Without a source of chance there is still a wait.
                let random = getrandom::u64().unwrap_or(u64::MAX);
                hook.settle(letter, outcome, random, Instant::now());
            }
            Next::Wait(None) => hook.changed().await,
            Next::Wait(Some(until)) => {
                tokio::select! {
                    biased;
                    () = hook.changed() => {}
                    () = sleep_until(until.into()) => {}
                }
            }
            Next::End => return,
        }
    }
}

async fn send(letter: &Letter, settings: &Settings) -> TryOutcome {
    let Settings { secret, timeout: patience, post, .. } = settings;
    // The time of this try, since receivers refuse signatures that are too old. It is the system's time and
    // not the node's clock, which does not go back where the wall does: receivers compare with true time.
    let at_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let signature = secret.sign(&letter.id, at_s, &letter.body);
    let message = Message { id: &letter.id, at_s, signature, body: letter.body.clone() };
    match timeout(*patience, post.send(message)).await {
        Ok(Ok(answer)) => {
            let (status, verdict) =
                (answer.status(), verdict(answer.status(), answer.headers(), SystemTime::now()));
            // If the answer is cut short, the next try opens another connection.
            let _ = timeout(SETTINGS.webhooks.rest_wait, post::discard(answer.into_body())).await;
            TryOutcome::Answered(status, verdict)
        }
        Ok(Err(why)) => TryOutcome::Failed(why),
        Err(_) => TryOutcome::Failed(format!("it does not answer within {patience:?}")),
    }
}
