//! Writes the journal: takes the rows that the node has queued, commits them as one batch, and wakes the
//! tasks that wait.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use acequia_limits::Now;
use acequia_node::{Node, Row};
use acequia_store::{Store, StoreError};
use tokio::{sync::Notify, time::timeout};
use tracing::{info, warn};

use crate::{news::News, settings::SETTINGS};

/// How long a reply waits for the disk before it is turned into a denial.
pub const REPLY_WAIT_MAX: Duration = Duration::from_secs(1);
/// A node's report that its journal is down, with what to do.
pub const DOWN: &str =
    "cannot be written: nothing new is reserved or lent until there is room on the disk, or it is mended";

/// Rows that are written together.
#[derive(Debug)]
struct Batch {
    number: u64,
    rows: Vec<Row>,
}

/// The progress of the writer.
#[derive(Clone, Copy, Debug, Default)]
struct WriterProgress {
    /// The last batch on disk.
    committed: u64,
    /// Commits that failed.
    failures: u64,
}

/// Writes a node's rows to a store.
#[derive(Debug)]
pub struct Writer {
    node: Arc<Node>,
    store: Arc<dyn Store>,
    progress: News<WriterProgress>,
    wanted: Mutex<bool>,
    wake: Condvar,
    /// As `wake`, for [`Writer::run_on`].
    wake_task: Notify,
    /// The batch in hand, which is kept until it is on disk: batches are written in order.
    in_hand: Mutex<Option<Batch>>,
    stopping: AtomicBool,
    /// For metrics: commits, the rows in them, and the nanoseconds they took.
    pub(crate) commits: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) commit_ns: AtomicU64,
    pub(crate) failures: AtomicU64,
}

impl Writer {
    /// A writer with nothing to do yet; [`Writer::run`] starts its work.
    pub fn new(node: Arc<Node>, store: Arc<dyn Store>) -> Self {
        Self {
            node,
            store,
            progress: News::default(),
            wanted: Mutex::new(false),
            wake: Condvar::new(),
            wake_task: Notify::new(),
            in_hand: Mutex::new(None),
            stopping: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            commit_ns: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// The store that the writer writes to.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Waits until a batch is on disk, for at most `longest` and at most [`REPLY_WAIT_MAX`]. Says whether the
    /// batch is there. A commit that fails ends the wait: a full disk has no room a moment later.
    pub async fn wait_for(&self, batch: u64, longest: Duration) -> bool {
        let failures = self.progress.get().failures;
        self.want();
        let done = self.progress.wait_for(|now| now.committed >= batch || now.failures > failures);
        timeout(REPLY_WAIT_MAX.min(longest), done).await.is_ok_and(|now| now.committed >= batch)
    }

    /// Writes until [`Writer::stop`], on a thread of its own, since a disk blocks. If the store cannot be
    /// written, this tries until it can. Meanwhile the node spends only what the store already holds.
    pub fn run(&self) {
        let mut retry = None;
        while !self.stopping.load(Ordering::Acquire) {
            let guard = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            let wait = retry.unwrap_or(SETTINGS.journal.linger);
            let is_over =
                |wanted: &mut bool| self.stopping.load(Ordering::Acquire) || (retry.is_none() && *wanted);
            let waited = self.wake.wait_timeout_while(guard, wait, |wanted| !is_over(wanted));
            *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
            retry = self.write_queued(retry);
        }
    }

    /// As [`Writer::run`], as a task of the caller's runtime, for a disk that does not block. Rows are on the
    /// disk after `latency`.
    pub async fn run_on(&self, mut latency: impl FnMut() -> Duration) {
        let mut retry = None;
        while !self.stopping.load(Ordering::Acquire) {
            match retry {
                Some(retry) => tokio::time::sleep(retry).await,
                // A task asks for a commit, or the rows have lingered.
                None => drop(timeout(SETTINGS.journal.linger, self.wake_task.notified()).await),
            }
            if take_in_hand(&mut self.in_hand(), &self.node) {
                tokio::time::sleep(latency()).await;
            }
            retry = self.write_queued(retry);
        }
    }

    /// Writes the rows that the node has queued. `waited` is the last pause after a failure, if there was
    /// one. Returns the next pause.
    fn write_queued(&self, waited: Option<Duration>) -> Option<Duration> {
        match (self.write(&[], &[]), waited) {
            (Ok(()), waited) => {
                if waited.is_some() {
                    info!("the journal is written again");
                }
                None
            }
            (Err(fault), None) => {
                warn!(%fault, "nothing new can be reserved, and nothing is lent");
                Some(SETTINGS.journal.retry)
            }
            (Err(_), Some(waited)) => Some((waited * 2).min(SETTINGS.journal.retry_max)),
        }
    }

    /// Ends [`Writer::run`] or [`Writer::run_on`] after the commit under way.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.want();
    }

    /// Writes the node's queued rows, then `rows`, and sets `values`: all of it or nothing.
    ///
    /// # Errors
    /// The store cannot be written. Queued rows stay in hand. The caller must try `rows` and `values` again.
    pub fn write(&self, rows: &[Row], values: &[(&str, Option<&[u8]>)]) -> Result<(), StoreError> {
        let mut in_hand = self.in_hand();
        let is_queued = take_in_hand(&mut in_hand, &self.node);
        // After a failure even an empty commit is made, to see whether the journal can be written again.
        let is_down = self.node.is_journal_down();
        if !is_queued && rows.is_empty() && values.is_empty() && !is_down {
            return Ok(());
        }
        let (number, queued) = in_hand.as_ref().map_or((0, &[][..]), |batch| (batch.number, &batch.rows[..]));
        let begun = Instant::now();
        let done = if rows.is_empty() {
            self.store.commit(queued, values)
        } else {
            self.store.commit(&[queued, rows].concat(), values)
        };
        if done.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
            self.node.journal_failed();
            self.progress.update(|progress| {
                progress.failures += 1;
                true
            });
            return done;
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add((queued.len() + rows.len()) as u64, Ordering::Relaxed);
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.commit_ns.fetch_add(took, Ordering::Relaxed);
        self.node.committed(number);
        self.progress.update(|progress| {
            progress.committed = number.max(progress.committed);
            true
        });
        *in_hand = None;
        Ok(())
    }

    /// Writes the exact state of every cell, and the other values that a stopping node leaves behind.
    ///
    /// # Errors
    /// The store cannot be written. Then a restart is like one after a crash.
    pub fn close(&self, now: Now, values: &[(&str, Option<&[u8]>)]) -> Result<(), StoreError> {
        let mut rows = Vec::new();
        self.node.close(now, |row| rows.push(row));
        self.write(&rows, values)
    }

    fn in_hand(&self) -> MutexGuard<'_, Option<Batch>> {
        self.in_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn want(&self) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_one();
        self.wake_task.notify_one();
    }
}

/// Takes the node's queued rows, unless an older batch is in hand. Says whether a batch is in hand now.
fn take_in_hand(in_hand: &mut Option<Batch>, node: &Node) -> bool {
    if in_hand.is_none() {
        *in_hand = node.take_rows().map(|(number, rows)| Batch { number, rows });
    }
    in_hand.is_some()
}
