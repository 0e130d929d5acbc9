//! Slots of limits on requests under way (`concurrent`): taken, renewed while the request goes on, and released.

use std::{fmt, time::Duration};

use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::{
    CheckResponse, Client, ClientError, Question, Renewed,
    refunds::{insist, is_settled},
    settings::SETTINGS,
};

/// The answer to [`Client::acquire`].
#[derive(Debug)]
pub enum Acquired {
    /// The request may begin. It ends when the slot is released or dropped.
    Slot(Slot),
    /// The request may not begin.
    Denied(CheckResponse),
}

/// A request under way. While the value lives, a background task renews the request's slots at about a third of
/// their time to live. When the value is dropped, the task releases them.
///
/// If the process ends first, or no node can be told, the slots are free after their time to live.
pub struct Slot {
    answer: CheckResponse,
    /// `None` if the request took no slots: there is nothing to renew or release.
    kept: Option<Kept>,
}

/// Slots that a task keeps.
struct Kept {
    /// Until when the slots are surely taken.
    until: watch::Receiver<Instant>,
    /// Dropped to release the slots.
    end: oneshot::Sender<()>,
    /// Ends once the slots are released: says whether the node knows.
    released: JoinHandle<bool>,
}

/// The background task of a slot.
struct Keeper {
    client: Client,
    charge_id: String,
    until: watch::Sender<Instant>,
}

/// Whether slots can still be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Renewed,
    Refused,
    /// The node holds no slots any more.
    Gone,
}

impl Client {
    /// Asks for a request that takes a while: limits that say `concurrent` count it until the [`Slot`] is dropped.
    /// If no such limit matches, the slot has nothing to renew.
    ///
    /// Slots whose answer is lost, for example because this future is dropped, are free after their time to live.
    /// Behind an address that leads to several nodes, a slot can be renewed only while this client reaches the node
    /// that gave it.
    ///
    /// # Errors
    /// No node answered, or the question is wrong: see [`ClientError`].
    pub async fn acquire(&self, question: Question) -> Result<Acquired, ClientError> {
        let sent = Instant::now();
        let answer = self.check(question).await?;
        if !answer.allowed {
            return Ok(Acquired::Denied(answer));
        }
        let is_taken = !answer.charge_id.is_empty() && answer.lapses_in_ms > 0;
        // A call needs a runtime, so there is one.
        let runtime = Handle::try_current().ok().filter(|_| is_taken);
        let kept = runtime.map(|runtime| {
            let (until, taken_until) = watch::channel(sent + surely(answer.lapses_in_ms));
            let (end, is_ending) = oneshot::channel();
            let keeper = Keeper { client: self.clone(), charge_id: answer.charge_id.clone(), until };
            let released = runtime.spawn(keeper.run(sent, is_ending));
            Kept { until: taken_until, end, released }
        });
        Ok(Acquired::Slot(Slot { answer, kept }))
    }
}

impl Slot {
    /// The node's answer.
    pub fn answer(&self) -> &CheckResponse {
        &self.answer
    }

    /// Whether the request surely has its slots. If they could not be renewed in time, others may have taken them:
    /// the request should end.
    pub fn is_held(&self) -> bool {
        self.kept.as_ref().is_none_or(|kept| Instant::now() < *kept.until.borrow())
    }

    /// Waits until the slots are lost because they could not be renewed in time; for ever if the request has none.
    pub async fn lost(&self) {
        let Some(kept) = &self.kept else { return std::future::pending().await };
        let mut taken_until = kept.until.clone();
        loop {
            let until = *taken_until.borrow_and_update();
            tokio::select! {
                biased;
                Ok(()) = taken_until.changed() => {}
                () = sleep_until(until) => return,
            }
        }
    }

    /// Releases the slots, and waits until a node knows. Returns whether one does: if not, they are free after their
    /// time to live. Dropping the slot does the same without waiting, if the runtime goes on.
    pub async fn release(mut self) -> bool {
        let Some(Kept { end, released, .. }) = self.kept.take() else { return true };
        drop(end);
        released.await.unwrap_or(false)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("charge_id", &self.answer.charge_id).finish_non_exhaustive()
    }
}

impl Keeper {
    /// Renews the slots, which were asked for at `sent`, until they are lost or the request ends. Then releases them;
    /// returns whether a node knows.
    async fn run(self, sent: Instant, mut is_ending: oneshot::Receiver<()>) -> bool {
        let mut renew = part_of(sent, *self.until.borrow());
        loop {
            let until = *self.until.borrow();
            tokio::select! {
                biased;
                _ = &mut is_ending => break,
                () = sleep_until(renew.min(until)) => {}
            }
            let now = Instant::now();
            if now >= until {
                // The node may hold them for a moment longer.
                break;
            }
            let renewed = tokio::select! {
                biased;
                _ = &mut is_ending => break,
                renewed = self.renew(now) => renewed,
            };
            match renewed {
                Kind::Renewed => renew = part_of(now, *self.until.borrow()),
                Kind::Refused => renew = part_of(now, until).max(now + SETTINGS.settlement.pause),
                Kind::Gone => {
                    let _ = self.until.send(now);
                    return true;
                }
            }
        }
        is_settled(&insist(|| self.client.refund(&self.charge_id)).await)
    }

    /// Asks the node once to renew the slots.
    async fn renew(&self, now: Instant) -> Kind {
        let Ok(answer) = self.client.renew(&self.charge_id).await else { return Kind::Refused };
        match answer.renewed() {
            Renewed::Done => {
                let _ = self.until.send(now + surely(answer.lapses_in_ms));
                Kind::Renewed
            }
            Renewed::Lapsed | Renewed::Unknown => Kind::Gone,
            Renewed::Denied | Renewed::Elsewhere | Renewed::Unspecified => Kind::Refused,
        }
    }
}

/// How long slots are surely taken: clocks may drift apart.
fn surely(lapses_in_ms: u64) -> Duration {
    let time = Duration::from_millis(lapses_in_ms);
    time - time / SETTINGS.lease.margin_part
}

/// When slots are renewed that were taken at `from`, and are taken until `until`.
fn part_of(from: Instant, until: Instant) -> Instant {
    from + until.saturating_duration_since(from) / SETTINGS.slot.renew_part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Options, Settled,
        fake::{Mode, Node},
    };

    const TTL: Duration = Duration::from_secs(60);

    /// A node of as many slots, and a client.
    fn node_of(slots: u64) -> (Node, Client) {
        let node = Node::of(slots);
        node.books().slots_live = Some(TTL);
        let client = node.client(Options { deadline: Duration::from_secs(1) });
        (node, client)
    }

    async fn acquire(client: &Client) -> Option<Slot> {
        match client.acquire(Question::new("jobs", [("tenant", "t1")])).await.expect("an answer") {
            Acquired::Slot(slot) => Some(slot),
            Acquired::Denied(answer) => {
                assert!(!answer.allowed);
                None
            }
        }
    }

    /// Lets tasks run until the node has as many slots taken.
    async fn until_taken(node: &Node, taken: u64) {
        while node.charged() != taken {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_renewed_while_it_lives_and_released_when_dropped() {
        let (node, client) = node_of(1);
        let slot = acquire(&client).await.expect("a slot");
        assert!(acquire(&client).await.is_none(), "all are taken");
        tokio::time::sleep(20 * TTL).await;
        assert!(slot.is_held());
        let renewals = node.books().renewals;
        assert!((55..=65).contains(&renewals), "{renewals}");
        drop(slot);
        until_taken(&node, 0).await;
        assert!(acquire(&client).await.is_some());
        assert_eq!(node.books().refunds, [Settled::Done]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_slot_is_free_at_once_and_is_renewed_no_more() {
        let (node, client) = node_of(2);
        let slot = acquire(&client).await.expect("a slot");
        assert!(slot.release().await);
        assert_eq!(node.charged(), 0);
        tokio::time::sleep(2 * TTL).await;
        assert_eq!(node.books().renewals, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_cannot_be_renewed_is_lost_before_its_time_is_over() {
        let (node, client) = node_of(1);
        let begun = Instant::now();
        let slot = acquire(&client).await.expect("a slot");
        node.set(Mode::Gone);
        slot.lost().await;
        assert!(!slot.is_held());
        let held = begun.elapsed();
        assert!(held < TTL && held > TTL - TTL / 16, "{held:?}");
        assert!(!slot.release().await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_comes_back_in_time_renews_the_slot() {
        let (node, client) = node_of(1);
        let slot = acquire(&client).await.expect("a slot");
        node.set(Mode::Gone);
        tokio::time::sleep(TTL / 2).await;
        node.set(Mode::Answers);
        tokio::time::sleep(10 * TTL).await;
        assert!(slot.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_the_node_does_not_know_is_lost_at_once() {
        let (node, client) = node_of(1);
        let slot = acquire(&client).await.expect("a slot");
        node.forget();
        tokio::time::timeout(TTL / 2, slot.lost()).await.expect("at the next renewal");
        assert!(slot.release().await, "nothing is left to release");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_slots_has_nothing_to_renew() {
        let node = Node::of(5);
        let client = node.client(Options { deadline: Duration::from_secs(1) });
        let slot = acquire(&client).await.expect("a slot");
        tokio::time::sleep(2 * TTL).await;
        assert!(slot.is_held() && slot.answer().allowed);
        assert!(slot.release().await);
        assert_eq!(node.books().renewals, 0);
        assert_eq!(node.charged(), 1);
    }

    #[test]
    fn a_slot_that_outlives_its_runtime_is_dropped_in_peace() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let slot = runtime.block_on(async {
            let (_, client) = node_of(1);
            acquire(&client).await.expect("a slot")
        });
        drop(runtime);
        assert!(slot.is_held());
        drop(slot);
    }
}
