//! The nodes' repeated reports about themselves: the client side of `Admin.Watch`.

use std::{error::Error as _, time::Duration};

use acequia_api::acequia::v1::{NodeStatus, WatchRequest};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tonic::Status;

use crate::{commands::operator::Admin, settings::SETTINGS};

/// What is known of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    /// The last report, in this connection or an earlier one.
    pub(crate) status: Option<NodeStatus>,
    /// Why the node does not answer now; empty while it does.
    pub(crate) fault: String,
}

/// Watches one node until it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub(crate) address: String,
    sight: watch::Receiver<Sight>,
    task: JoinHandle<()>,
}

impl Watcher {
    /// Starts to watch a node, and resumes when the node comes back.
    pub(crate) fn start(mut admin: Admin, every: Duration) -> Self {
        let silent = Sight { status: None, fault: "it was not reached yet".to_owned() };
        let (sender, sight) = watch::channel(silent);
        let (address, _) = admin.peer();
        let task = tokio::spawn(async move {
            loop {
                let why = follow(&mut admin, every, &sender).await;
                sender.send_modify(|sight| sight.fault = why);
                tokio::time::sleep(SETTINGS.watch.retry).await;
            }
        });
        Self { address, sight, task }
    }

    /// The report since the last call; `None` if there is none.
    pub(crate) fn news(&mut self) -> Option<Sight> {
        let changed = self.sight.has_changed().unwrap_or(false);
        changed.then(|| self.sight.borrow_and_update().clone())
    }

    /// Waits until there is something new.
    pub(crate) async fn changed(&mut self) {
        if self.sight.changed().await.is_err() {
            // The task lives as long as this watcher.
            std::future::pending().await
        }
        self.sight.mark_changed();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Takes in a node's reports until they stop, and returns the reason.
async fn follow(admin: &mut Admin, every: Duration, sender: &watch::Sender<Sight>) -> String {
    let request = WatchRequest { every_ms: u32::try_from(every.as_millis()).unwrap_or(u32::MAX) };
    let mut statuses = match timeout(SETTINGS.watch.silence_max, admin.client.watch(request)).await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return why(&status),
        Err(_) => return "it does not answer".to_owned(),
    };
    loop {
        match timeout(every + SETTINGS.watch.silence_max, statuses.message()).await {
            Ok(Ok(Some(status))) => {
                sender.send_replace(Sight { status: Some(status), fault: String::new() });
            }
            Ok(Ok(None)) => return "it has ended the conversation".to_owned(),
            Ok(Err(status)) => return why(&status),
            Err(_) => return "it has fallen silent".to_owned(),
        }
    }
}

/// The cause on this side, if there is one; otherwise the node's message.
fn why(status: &Status) -> String {
    let mut innermost: Option<&dyn std::error::Error> = status.source();
    while let Some(cause) = innermost.and_then(std::error::Error::source) {
        innermost = Some(cause);
    }
    innermost.map_or_else(|| status.message().to_owned(), ToString::to_string)
}
