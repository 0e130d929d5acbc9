//! Counts in a Redis, for nodes that are many, have no disk and know nothing of each other.
//!
//! Every decision asks the Redis, which adds the hits to the cells' counts. So all nodes agree, and a Redis that loses
//! writes lets more pass. No answer waits longer than a call may take; then the limits deny, or let pass what the
//! operator chose to let pass. What is over its limit is remembered for a moment, and not asked again. Requests that
//! come while calls are under way share the next call.

mod batches;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use acequia_limits::{CellTag, Now};
use acequia_node::{CellCount, CountedCell, CountedRequest};
use acequia_store::redis::{
    Arg, CALL_DEADLINE, Function, Group, Missed, Redis, RedisServers, Settings, SettingsError, ShardState,
};
use futures::future::join_all;
use smallvec::SmallVec;
use tokio::time::timeout;
use tracing::warn;

use self::batches::{Batches, CellHits, Counts};
use crate::settings::SETTINGS;

/// Where hits are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountingConfig {
    /// The Redis.
    pub redis: Settings,
    /// Whether everything passes while the Redis does not answer. Otherwise nothing does.
    pub passes_without: bool,
}

/// Why hits cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum CountingError {
    /// The settings are out of their ranges.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The system gives no thread.
    #[error("no thread for the Redis that counts hits: {0}")]
    Thread(#[from] std::io::Error),
}

/// The way to the counts.
#[derive(Debug)]
pub(crate) struct Counting {
    redis: Redis,
    batches: Batches,
    passes_without: bool,
    /// Whether all cells lie on one server, so that one call counts a whole request.
    is_one: bool,
    over: Mutex<OverCells>,
    /// Requests that were answered, requests that were not, and cells that needed no call.
    counts: [AtomicU64; 3],
}

/// Cells that are known to be over their limit.
#[derive(Debug, Default)]
struct OverCells {
    cells: BTreeMap<Window, Over>,
    swept: Option<Instant>,
}

/// A cell that is over its limit.
#[derive(Clone, Copy, Debug)]
struct Over {
    until: Instant,
    /// Hits that were denied meanwhile. They are counted with the next call.
    uncounted: u64,
}

/// A cell in one of its windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Window {
    tag: CellTag,
    ends_ns: u64,
}

impl Window {
    fn of(cell: &CountedCell) -> Self {
        Self { tag: cell.tag, ends_ns: cell.ends_ns }
    }

    /// The end of the key in Redis.
    fn suffix(self) -> String {
        format!("{:032x}:{}", self.tag.0, self.ends_ns / 1_000_000)
    }
}

/// Whether hits are added or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hits {
    Added,
    GivenBack,
}

/// A request's cells of one group, by their places in the request.
struct CountCall {
    group: Group,
    places: SmallVec<[usize; 4]>,
}

impl Counting {
    /// Begins to connect, on a thread of its own: nothing else that the node does may keep calls waiting.
    ///
    /// # Errors
    /// The settings are out of their ranges, or the system gives no thread.
    pub(crate) fn open(config: CountingConfig) -> Result<Self, CountingError> {
        let is_one = match &config.redis.place {
            RedisServers::Cluster { .. } => false,
            RedisServers::Shards { addresses } => addresses.len() == 1,
            RedisServers::Sentinel { shards, .. } => shards.len() == 1,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (redis, batches) = {
            let _entered = runtime.enter();
            let redis = Redis::open(config.redis)?;
            (redis.clone(), start_batches(redis, config.passes_without))
        };
        // It ends with the process.
        std::thread::Builder::new().name("counting".to_owned()).spawn(move || {
            runtime.block_on(std::future::pending::<()>());
        })?;
        Ok(Self {
            redis,
            batches,
            passes_without: config.passes_without,
            is_one,
            over: Mutex::default(),
            counts: Default::default(),
        })
    }

    /// Waits until a server answers, or for as long as a start may take.
    pub(crate) async fn connected(&self) {
        let is_open = || self.redis.shards().iter().any(|shard| shard.state == ShardState::Open);
        let answers = async {
            while !is_open() {
                tokio::time::sleep(SETTINGS.counting.look_every).await;
            }
        };
        if tokio::time::timeout(SETTINGS.counting.start_max, answers).await.is_err() {
            warn!(
                shards = states(&self.redis),
                "the Redis that counts hits does not answer: starting without it"
            );
        }
    }

    /// Requests that were answered, requests that were not, and cells that needed no call.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [0, 1, 2].map(|place| self.counts[place].load(Ordering::Relaxed))
    }

    /// Counts a request's cells; returns their counts, in the order of the cells.
    pub(crate) async fn count(&self, request: &CountedRequest, now: Now, hits: Hits) -> Vec<CellCount> {
        let unknown = if self.passes_without { CellCount::Passed } else { CellCount::Denied };
        let mut counts = vec![unknown; request.cells.len()];
        let mut calls: SmallVec<[CountCall; 4]> = SmallVec::new();
        for (place, cell) in request.cells.iter().enumerate().filter(|(_, cell)| !cell.is_exempt) {
            if hits == Hits::Added && self.saves_call(cell) {
                // All of its hits are beyond the limit.
                counts[place] = CellCount::Known(cell.budget.saturating_add(cell.units.max(1)));
                continue;
            }
            let group = if self.is_one { Group::of_hash(0) } else { Group::of_hash(cell.tag.0 as u64) };
            match calls.iter_mut().find(|call| call.group == group) {
                Some(call) => call.places.push(place),
                None => calls.push(CountCall { group, places: SmallVec::from_slice(&[place]) }),
            }
        }
        let asked = calls.iter().map(|call| self.call(call, request, now, hits));
        for (call, answer) in calls.iter().zip(join_all(asked).await) {
            let Some(answer) = answer else { continue };
            for (place, count) in call.places.iter().zip(answer) {
                let cell = &request.cells[*place];
                counts[*place] = CellCount::Known(count);
                self.note(cell, count, now);
            }
        }
        counts
    }

    /// The counts of a request's cells of one group; `None` without an answer in time.
    async fn call(&self, call: &CountCall, request: &CountedRequest, now: Now, hits: Hits) -> Option<Counts> {
        let cells = call.places.iter().map(|place| self.cell_hits(&request.cells[*place], now, hits));
        let counts = timeout(CALL_DEADLINE, self.batches.count(call.group, cells.collect()));
        let counts = counts.await.ok().flatten();
        self.counts[usize::from(counts.is_none())].fetch_add(1, Ordering::Relaxed);
        counts
    }

    /// A cell as the Redis counts it, with the hits that were not counted yet.
    fn cell_hits(&self, cell: &CountedCell, now: Now, hits: Hits) -> CellHits {
        let signed = |units: u64| i64::try_from(units.min(SETTINGS.counting.hits_max)).unwrap_or(i64::MAX);
        let uncounted = signed(self.take_uncounted(cell));
        let units = match hits {
            Hits::Added => uncounted + signed(cell.units),
            Hits::GivenBack => uncounted - signed(cell.units),
        };
        // Other nodes' clocks may be behind.
        let kept_ns = cell.ends_ns.saturating_sub(now.wall_ns) + SETTINGS.counting.kept_after_ns;
        let kept_ms = i64::try_from(kept_ns / 1_000_000).unwrap_or(i64::MAX);
        CellHits { suffix: Window::of(cell).suffix(), units, kept_ms }
    }

    /// Whether a cell is known to be over its limit. Its hits are then counted with the next call.
    fn saves_call(&self, cell: &CountedCell) -> bool {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = over.cells.get_mut(&Window::of(cell)).filter(|known| Instant::now() < known.until)
        else {
            return false;
        };
        known.uncounted = known.uncounted.saturating_add(cell.units).min(SETTINGS.counting.hits_max);
        self.counts[2].fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Takes the hits of a cell that were not counted yet.
    fn take_uncounted(&self, cell: &CountedCell) -> u64 {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.cells.remove(&Window::of(cell)).map_or(0, |known| known.uncounted)
    }

    /// Notes whether a cell is over its limit.
    fn note(&self, cell: &CountedCell, count: u64, now: Now) {
        if count <= cell.budget {
            return;
        }
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let (lasts, time) = (SETTINGS.counting.over_lasts, Instant::now());
        if over.cells.len() >= SETTINGS.counting.over_max {
            // A flood of such cells must not cost a sweep each.
            if over.swept.is_some_and(|swept| time < swept + lasts) {
                return;
            }
            over.swept = Some(time);
            over.cells.retain(|_, known| time < known.until);
        }
        let left = std::time::Duration::from_nanos(cell.ends_ns.saturating_sub(now.wall_ns));
        over.cells.insert(Window::of(cell), Over { until: time + left.min(lasts), uncounted: 0 });
    }
}

/// Begins to make calls of the Redis.
fn start_batches(redis: Redis, passes_without: bool) -> Batches {
    let missed = Arc::new(AtomicU64::new(0));
    Batches::start(SETTINGS.counting.batches, move |group, cells| {
        let (redis, missed) = (redis.clone(), Arc::clone(&missed));
        async move {
            let counts = counts(&redis, group, &cells).await;
            if let Err(why) = &counts
                && missed.fetch_add(1, Ordering::Relaxed).is_multiple_of(SETTINGS.counting.told_each)
            {
                let shards = states(&redis);
                warn!(missed = %why, shards, passes = passes_without, "hits are not counted");
            }
            counts.ok()
        }
    })
}

/// The states of the servers, for the log.
fn states(redis: &Redis) -> String {
    let all: Vec<String> =
        redis.shards().iter().map(|shard| format!("{}: {}", shard.name, shard.state)).collect();
    all.join("; ")
}

/// Calls the Redis once for cells of a group. Returns their counts, in their order.
async fn counts(redis: &Redis, group: Group, cells: &[CellHits]) -> Result<Vec<u64>, Missed> {
    let suffixes: Vec<&str> = cells.iter().map(|cell| cell.suffix.as_str()).collect();
    let args: Vec<Arg<'_>> =
        cells.iter().flat_map(|cell| [Arg::Int(cell.units), Arg::Int(cell.kept_ms)]).collect();
    let values = redis.call(group, Function::Count, &suffixes, &args, CALL_DEADLINE).await?;
    let counts: Option<Vec<u64>> =
        values.iter().map(|value| value.int().and_then(|count| u64::try_from(count).ok())).collect();
    let counts = counts.filter(|counts| counts.len() == cells.len());
    counts.ok_or_else(|| Missed::Refused(format!("an answer that is no list of counts: {values:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_a_cell_have_keys_of_their_own() {
        let window = |ends_ns| Window { tag: CellTag(7), ends_ns };
        assert_eq!(window(60_000_000_000).suffix(), format!("{:032x}:60000", 7));
        assert_ne!(window(60_000_000_000).suffix(), window(120_000_000_000).suffix());
    }
}
