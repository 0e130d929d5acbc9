//! Calls that count the hits of many requests. **A hit is part of one call at most.**
//!
//! A hit is sent at once, with the others that its thread has read, while few calls are under way. Otherwise it waits,
//! and the next call takes all that wait. So a busy node makes few calls, and a node at leisure keeps nobody waiting.
//! Nothing here knows what a call does.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use acequia_store::redis::Group;
use smallvec::SmallVec;
use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
};

use crate::settings::BatchSettings;

/// A cell to be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CellHits {
    /// The end of the key in Redis.
    pub(crate) suffix: String,
    /// Hits to add; below 0 to give back.
    pub(crate) units: i64,
    /// How long the count is kept, in milliseconds.
    pub(crate) kept_ms: i64,
}

/// Cells of one request, all of one group.
pub(crate) type Cells = SmallVec<[CellHits; 2]>;
/// The counts of a request's cells, in their order.
pub(crate) type Counts = SmallVec<[u64; 2]>;

/// A request that waits for a call.
#[derive(Debug)]
struct Waiting {
    group: Group,
    cells: Cells,
    answer: oneshot::Sender<Counts>,
}

/// The way to the calls. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Batches {
    queue: Arc<Queue>,
    waiting_max: usize,
}

/// Requests that no call has taken up yet.
#[derive(Debug, Default)]
struct Queue {
    requests: Mutex<Option<Vec<Waiting>>>,
    /// Notified when there are requests, and when there will be no more.
    filled: Notify,
}

/// Notifies a queue when dropped.
struct Notifying<'a>(&'a Queue);

/// The requests of a group, and how many of its calls are under way.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    under_way: usize,
}

impl Batches {
    /// Begins to make calls, on the current runtime. A call gets its cells in order, and gives their counts in the same
    /// order, or nothing.
    pub(crate) fn start<C, A>(settings: BatchSettings, call: C) -> Self
    where
        C: Fn(Group, Vec<CellHits>) -> A + Send + 'static,
        A: Future<Output = Option<Vec<u64>>> + Send + 'static,
    {
        let queue = Arc::new(Queue { requests: Mutex::new(Some(Vec::new())), filled: Notify::new() });
        tokio::spawn(drive(settings, Arc::clone(&queue), call));
        Self { queue, waiting_max: settings.waiting_max }
    }

    /// Counts cells of one group. `None` if they may not have been counted.
    pub(crate) async fn count(&self, group: Group, cells: Cells) -> Option<Counts> {
        let (answer, counts) = oneshot::channel();
        let is_first = {
            let mut requests = self.queue.lock();
            let requests = requests.as_mut().filter(|requests| requests.len() < self.waiting_max)?;
            requests.push(Waiting { group, cells, answer });
            requests.len() == 1
        };
        if is_first {
            // The other requests that this thread has read join before the thread of the calls is woken.
            let _notifying = Notifying(&self.queue);
            tokio::task::yield_now().await;
        }
        counts.await.ok()
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.queue.lock().take();
        self.queue.filled.notify_one();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Option<Vec<Waiting>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the requests; `None` if there will be no more.
    fn take(&self) -> Option<Vec<Waiting>> {
        self.lock().as_mut().map(std::mem::take)
    }
}

impl Drop for Notifying<'_> {
    fn drop(&mut self) {
        self.0.filled.notify_one();
    }
}

/// Makes calls for what waits, until nobody can ask any more.
async fn drive<C, A>(settings: BatchSettings, queue: Arc<Queue>, call: C)
where
    C: Fn(Group, Vec<CellHits>) -> A,
    A: Future<Output = Option<Vec<u64>>> + Send + 'static,
{
    let mut lines = BTreeMap::<Group, Line>::new();
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(ended) = calls.join_next() => {
                // No call is cancelled, so the error is a panic, and it goes on.
                let group = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                if let Some(line) = lines.get_mut(&group) {
                    line.under_way -= 1;
                }
            }
            () = queue.filled.notified() => {}
        }
        let is_full = lines.values().map(|line| line.waiting.len()).sum::<usize>() >= settings.waiting_max;
        if !is_full {
            let Some(requests) = queue.take() else { return };
            for request in requests {
                lines.entry(request.group).or_default().waiting.push_back(request);
            }
        }
        for (group, line) in &mut lines {
            while line.under_way < settings.calls_max && !line.waiting.is_empty() {
                let batch = line.batch(settings.cells_max);
                if batch.is_empty() {
                    continue;
                }
                line.under_way += 1;
                let (group, cells) =
                    (*group, batch.iter().flat_map(|request| request.cells.clone()).collect());
                let counted = call(group, cells);
                calls.spawn(async move {
                    tell(batch, counted.await);
                    group
                });
            }
        }
        lines.retain(|_, line| line.under_way > 0 || !line.waiting.is_empty());
        if is_full && calls.is_empty() {
            // All that waited had gone, so no call's end leads here again.
            queue.filled.notify_one();
        }
    }
}

impl Line {
    /// Takes the requests of a call. Those whose caller has gone are dropped.
    fn batch(&mut self, cells_max: usize) -> Vec<Waiting> {
        let (mut batch, mut cells) = (Vec::new(), 0);
        while cells < cells_max
            && let Some(request) = self.waiting.pop_front()
        {
            if !request.answer.is_closed() {
                cells += request.cells.len();
                batch.push(request);
            }
        }
        batch
    }
}

/// Tells requests the counts of their cells. Without counts, their answers are dropped.
fn tell(batch: Vec<Waiting>, counts: Option<Vec<u64>>) {
    let cells: usize = batch.iter().map(|request| request.cells.len()).sum();
    let Some(counts) = counts.filter(|counts| counts.len() == cells) else { return };
    let mut counts = counts.into_iter();
    for request in batch {
        // The caller may have gone.
        let _ = request.answer.send(counts.by_ref().take(request.cells.len()).collect());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::sync::Semaphore;

    use super::*;

    const SETTINGS: BatchSettings = BatchSettings { calls_max: 2, cells_max: 4, waiting_max: 8 };

    fn cells(units: &[i64]) -> Cells {
        let cell = |units: &i64| CellHits { suffix: format!("c{units}"), units: *units, kept_ms: 1 };
        units.iter().map(cell).collect()
    }

    /// Calls that wait for leave, and the units of each.
    #[derive(Clone)]
    struct Calls {
        leave: Arc<Semaphore>,
        made: Arc<Mutex<Vec<Vec<i64>>>>,
    }

    impl Calls {
        fn start() -> (Self, Batches) {
            let calls = Self { leave: Arc::new(Semaphore::new(0)), made: Arc::default() };
            let by = calls.clone();
            let batches = Batches::start(SETTINGS, move |_, cells| {
                let by = by.clone();
                let units: Vec<i64> = cells.iter().map(|cell| cell.units).collect();
                by.made.lock().expect("a lock").push(units.clone());
                async move {
                    by.leave.acquire().await.expect("leave").forget();
                    (!units.contains(&0)).then(|| units.iter().map(|units| *units as u64 * 10).collect())
                }
            });
            (calls, batches)
        }

        fn made(&self) -> Vec<Vec<i64>> {
            self.made.lock().expect("a lock").clone()
        }
    }

    /// Asks for one request after the other, without a wait for their answers.
    async fn ask(
        batches: &Arc<Batches>,
        requests: &[&[i64]],
    ) -> Vec<tokio::task::JoinHandle<Option<Counts>>> {
        let mut asked = Vec::new();
        for request in requests {
            let (batches, cells) = (Arc::clone(batches), cells(request));
            asked.push(tokio::spawn(async move { batches.count(Group::of_hash(0), cells).await }));
            // All that can run has run.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
        asked
    }

    #[tokio::test]
    async fn hits_that_wait_share_the_next_call_and_get_their_own_counts() {
        let (calls, batches) = Calls::start();
        let asked = ask(&Arc::new(batches), &[&[1], &[2], &[3], &[4, 5], &[6]]).await;
        assert_eq!(calls.made(), [[1], [2]], "two calls are under way");
        calls.leave.add_permits(3);
        let answers = futures::future::join_all(asked).await;
        assert_eq!(calls.made(), [vec![1], vec![2], vec![3, 4, 5, 6]]);
        let answers: Vec<Counts> =
            answers.into_iter().map(|answer| answer.expect("no panic").expect("counts")).collect();
        assert_eq!(
            answers.iter().map(|counts| counts.to_vec()).collect::<Vec<_>>(),
            [vec![10], vec![20], vec![30], vec![40, 50], vec![60]]
        );
    }

    #[tokio::test]
    async fn a_call_without_an_answer_answers_nobody_and_the_next_one_is_made() {
        let (calls, batches) = Calls::start();
        let batches = Arc::new(batches);
        calls.leave.add_permits(9);
        let [lost, next] = [ask(&batches, &[&[0]]).await, ask(&batches, &[&[7]]).await];
        for (asked, counts) in lost.into_iter().chain(next).zip([None, Some(70)]) {
            assert_eq!(asked.await.expect("no panic").map(|all| all[0]), counts);
        }
    }

    #[tokio::test]
    async fn callers_that_went_are_not_counted_and_too_many_are_refused() {
        let (calls, batches) = Calls::start();
        let batches = Arc::new(batches);
        let asked = ask(&batches, &[&[1], &[2], &[3], &[4]]).await;
        asked[2].abort();
        let many: Vec<&[i64]> = vec![&[5]; 40];
        let many = ask(&batches, &many).await;
        calls.leave.add_permits(99);
        let mut refused = 0;
        for asked in many {
            refused += usize::from(asked.await.expect("no panic").is_none());
        }
        // As many wait in the queue as wait for a call.
        assert_eq!(refused, 40 - (2 * SETTINGS.waiting_max - 2), "{:?}", calls.made());
        assert!(!calls.made().concat().contains(&3), "{:?}", calls.made());
    }
}
