//! What nodes say of themselves, again and again: the client side of `Admin.Watch`.

use std::time::Duration;

use acequia_api::acequia::v1::{NodeStatus, WatchRequest, admin_client::AdminClient};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tonic::transport::{Channel, Endpoint};

/// How long a connection may take to be made.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a node may be silent beyond the interval before it counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Before a node that does not answer is asked again.
const RETRY: Duration = Duration::from_millis(200);

/// What is known of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    /// What it said last, in this connection or an earlier one.
    pub(crate) status: Option<NodeStatus>,
    /// Why it does not answer now; empty while it does.
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
    /// Begins to watch the node with that admin address: `host:port`.
    ///
    /// # Errors
    /// The address is none.
    pub(crate) fn start(address: &str, every: Duration) -> Result<Self, String> {
        let endpoint = endpoint(address)?;
        let silent = Sight { status: None, fault: "it was not reached yet".to_owned() };
        let (sender, sight) = watch::channel(silent);
        let task = tokio::spawn(async move {
            loop {
                let why = follow(&endpoint, every, &sender).await;
                sender.send_modify(|sight| sight.fault = why);
                tokio::time::sleep(RETRY).await;
            }
        });
        Ok(Self { address: address.to_owned(), sight, task })
    }

    /// What was said since the last call; nothing if nothing was.
    pub(crate) fn news(&mut self) -> Option<Sight> {
        let changed = self.sight.has_changed().unwrap_or(false);
        changed.then(|| self.sight.borrow_and_update().clone())
    }

    /// Waits until there is something new.
    pub(crate) async fn changed(&mut self) {
        if self.sight.changed().await.is_err() {
            // The task goes on for as long as this does.
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

/// A node's admin service, reached by the first call.
///
/// # Errors
/// The address is none.
pub(crate) fn admin(address: &str) -> Result<AdminClient<Channel>, String> {
    Ok(AdminClient::new(endpoint(address)?.connect_lazy()))
}

fn endpoint(address: &str) -> Result<Endpoint, String> {
    let url = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let endpoint = Endpoint::from_shared(url).ok().filter(|endpoint| endpoint.uri().port_u16().is_some());
    let fault = || format!("{address:?} is no admin address: write it as 127.0.0.1:8082 (listen.admin)");
    Ok(endpoint.ok_or_else(fault)?.connect_timeout(CONNECT_TIME_MAX).tcp_nodelay(true))
}

/// Takes in what a node says until it no longer does, and says why.
async fn follow(endpoint: &Endpoint, every: Duration, sender: &watch::Sender<Sight>) -> String {
    let channel = match endpoint.connect().await {
        Ok(channel) => channel,
        Err(error) => return innermost(&error),
    };
    let request = WatchRequest { every_ms: u32::try_from(every.as_millis()).unwrap_or(u32::MAX) };
    let call = timeout(SILENCE_MAX, AdminClient::new(channel).watch(request)).await;
    let mut statuses = match call {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return status.message().to_owned(),
        Err(_) => return "it is connected, but does not answer".to_owned(),
    };
    loop {
        match timeout(every + SILENCE_MAX, statuses.message()).await {
            Ok(Ok(Some(status))) => {
                sender.send_replace(Sight { status: Some(status), fault: String::new() });
            }
            Ok(Ok(None)) => return "it has ended the conversation".to_owned(),
            Ok(Err(status)) => return status.message().to_owned(),
            Err(_) => return "it has fallen silent".to_owned(),
        }
    }
}

/// The cause that says most.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}
