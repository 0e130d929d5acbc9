//! The connection to a node, and its successor.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use acequia_api::acequia::v1::limiter_client::LimiterClient;
use arc_swap::ArcSwap;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel, Error},
};

use crate::{
    settings::SETTINGS,
    target::{Bearer, Target, settings},
};

type Dialling = Pin<Box<dyn Future<Output = Result<Channel, Error>> + Send>>;
/// The channel that calls go through.
pub(crate) type AuthorizedChannel = InterceptedService<Channel, Bearer>;
pub(crate) type Limiter = LimiterClient<AuthorizedChannel>;
type Dial = Arc<dyn Fn() -> Dialling + Send + Sync>;

/// A connection that is replaced when it is old. A call that finds it old still uses it, and starts a
/// successor in the background. The successor takes over when it is connected, so no call waits for a
/// handshake or fails with one. Calls that are unanswered on the old connection are answered there.
pub(crate) struct Connection {
    dial: Dial,
    bearer: Bearer,
    age: Duration,
    current: ArcSwap<Current>,
    /// Held by the call that makes a successor for others that wait.
    leaving: Mutex<()>,
}

/// One connection in the chain of successors.
#[derive(Debug)]
pub(crate) struct Current {
    channel: AuthorizedChannel,
    due: Instant,
    /// Whether a successor is being made.
    is_leaving: AtomicBool,
}

impl Connection {
    /// A connection that is made by the first call.
    pub(crate) fn of(target: Target, age: Duration) -> Self {
        let (first, bearer) = (target.channel(settings), target.bearer());
        let dial = move || -> Dialling {
            let target = target.clone();
            Box::pin(async move { target.connected(settings).await })
        };
        Self::new(first, bearer, Arc::new(dial), age)
    }

    pub(crate) fn new(first: Channel, bearer: Bearer, dial: Dial, age: Duration) -> Self {
        let current = ArcSwap::from_pointee(Current::of(first, bearer.clone(), age));
        Self { dial, bearer, age, current, leaving: Mutex::default() }
    }

    /// This connection, with another age for it and its successors.
    pub(crate) fn with_age(&self, age: Duration) -> Self {
        let current = Current::until(self.current.load().channel.clone(), jittered(age));
        let (dial, bearer) = (Arc::clone(&self.dial), self.bearer.clone());
        Self { dial, bearer, age, current: ArcSwap::from_pointee(current), leaving: Mutex::default() }
    }

    /// The client for the next call.
    pub(crate) fn limiter(self: &Arc<Self>) -> Limiter {
        LimiterClient::new(self.current().channel())
    }

    /// The connection that the next call goes to.
    pub(crate) fn current(self: &Arc<Self>) -> Arc<Current> {
        let current = self.current.load_full();
        if Instant::now() >= current.due && !current.is_leaving.swap(true, Ordering::Relaxed) {
            tokio::spawn(Arc::clone(self).replace());
        }
        current
    }

    /// The successor of a connection that the node wants to end. The successor is made now, unless another
    /// call has made it.
    pub(crate) async fn after(self: &Arc<Self>, ended: &Arc<Current>) -> Result<Arc<Current>, Error> {
        let _leaving = self.leaving.lock().await;
        let current = self.current.load_full();
        if !Arc::ptr_eq(&current, ended) {
            return Ok(current);
        }
        // A task of its own makes the successor: a waiting call may give up before it is made, and ask
        // again.
        let connection = Arc::clone(self);
        let made = tokio::spawn(async move {
            let channel = (connection.dial)().await?;
            let successor = Arc::new(Current::of(channel, connection.bearer.clone(), connection.age));
            connection.current.store(Arc::clone(&successor));
            Ok(successor)
        });
        made.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    async fn replace(self: Arc<Self>) {
        let successor = match timeout(SETTINGS.connection.replace_max, (self.dial)()).await {
            Ok(Ok(channel)) => Current::of(channel, self.bearer.clone(), self.age),
            // An old connection is better than none.
            Ok(Err(_)) | Err(_) => {
                let channel = self.current.load().channel.clone();
                Current::until(channel, jittered(self.age / SETTINGS.connection.retry_part))
            }
        };
        self.current.store(Arc::new(successor));
    }
}

impl Current {
    fn of(channel: Channel, bearer: Bearer, age: Duration) -> Self {
        Self::until(InterceptedService::new(channel, bearer), jittered(age))
    }

    /// The channel of this connection.
    pub(crate) fn channel(&self) -> AuthorizedChannel {
        self.channel.clone()
    }

    fn until(channel: AuthorizedChannel, age: Duration) -> Self {
        Self { channel, due: Instant::now() + age, is_leaving: AtomicBool::new(false) }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("age", &self.age).finish_non_exhaustive()
    }
}

/// The age, shortened or lengthened by up to a tenth.
fn jittered(age: Duration) -> Duration {
    /// A longer age never ends. A clock can still add this one.
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
    let mut byte = [128];
    // Without randomness the age stays as it is.
    let _ = getrandom::fill(&mut byte);
    let age = age.min(LONGEST);
    age - age / 10 + age / 5 * u32::from(byte[0]) / 255
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CONNECTION_AGE, Options, Question,
        fake::{Mode, Node},
    };

    const DEADLINE: Options = Options { deadline: Duration::from_secs(1) };

    fn question() -> Question {
        Question::new("shop", [("key", "k1")])
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_connection_is_replaced_without_a_failed_call() {
        let node = Node::of(1_000_000);
        let client = node.client(DEADLINE);
        for second in 0..1_000 {
            assert!(client.check(question()).await.expect("an answer").allowed, "second {second}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let (least, most) = (1_000 / 330, 1 + 1_000 / 270);
        let made = node.connections();
        assert!((least..=most).contains(&made), "{made} connections");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waiting_on_an_old_connection_is_answered_there() {
        let node = Node::of(10);
        let client = node.client(Options { deadline: Duration::from_secs(2_000) });
        client.check(question()).await.expect("an answer");
        node.set(Mode::Hangs);
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.check(question()).await }
        });
        tokio::time::sleep(CONNECTION_AGE * 2).await;
        node.set(Mode::Answers);
        client.check(question()).await.expect("an answer");
        tokio::time::sleep(Duration::from_secs(1)).await;
        client.check(question()).await.expect("an answer");
        assert_eq!(node.connections(), 2);
        node.release();
        assert!(waiting.await.expect("no panic").expect("an answer").allowed);
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_connection_is_used_while_no_new_one_can_be_made() {
        let node = Node::of(1_000_000);
        let client = node.client(DEADLINE).connection_age(Duration::from_secs(10));
        client.check(question()).await.expect("an answer");
        node.refuse_connections(true);
        for _ in 0..60 {
            client.check(question()).await.expect("an answer");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(node.connections(), 1);
        node.refuse_connections(false);
        for _ in 0..5 {
            client.check(question()).await.expect("an answer");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(node.connections(), 2);
    }

    #[test]
    fn connection_ages_vary_by_at_most_a_tenth() {
        let some: Vec<_> = (0..64).map(|_| jittered(CONNECTION_AGE)).collect();
        assert!(some.iter().all(|age| *age >= CONNECTION_AGE * 9 / 10 && *age <= CONNECTION_AGE * 11 / 10));
        assert!(some.iter().any(|age| *age != some[0]));
    }
}
