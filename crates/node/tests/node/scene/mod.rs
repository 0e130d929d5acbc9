//! The common start of stories about a node: one-line limits, a node, and a ledger of admissions.

pub(crate) mod ledger;

use std::{collections::BTreeMap, sync::Arc};

use acequia_limits::{
    CellTag, HashKey, Limit, LimitId, Now, Request,
    limit::{
        BySpec, ConcurrentSpec, FixedWindowSpec, LeakyBucketSpec, LimitSpec, NoWait, QuotaSpec,
        SlidingWindowSpec, TokenBucketSpec, ValueSpec,
    },
};
use acequia_node::{Answer, Ask, Asker, Config, MEMORY_BYTES_MIN, Node, Row, SHARDS, WALL};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1_000 * MS;
pub(crate) const MINUTE: u64 = 60 * S;
pub(crate) const HOUR: u64 = 60 * MINUTE;

/// 15 January 2027, 08:00:00 UTC. Every window here of at most an hour has an edge at this time.
pub(crate) const START: Now = Now::at(1_800_000_000 * S);

pub(crate) const KEY: HashKey = HashKey(*b"a secret of ours");

/// More memory than any story here fills by accident.
pub(crate) const ROOMY: usize = 64 << 20;

/// A limit of the domain `shop`, without an algorithm.
fn nothing(name: &str) -> LimitSpec {
    LimitSpec {
        name: name.into(),
        domain: "shop".into(),
        by: vec![BySpec::Key("key".into())],
        ..LimitSpec::default()
    }
}

pub(crate) fn bucket(name: &str, rate: &str, burst: u64) -> LimitSpec {
    LimitSpec { token_bucket: Some(TokenBucketSpec { rate: rate.into(), burst }), ..nothing(name) }
}

pub(crate) fn leaky(name: &str, rate: &str, queue: u64, no_wait: NoWait) -> LimitSpec {
    LimitSpec { leaky_bucket: Some(LeakyBucketSpec { rate: rate.into(), queue, no_wait }), ..nothing(name) }
}

pub(crate) fn window(name: &str, limit: u64, window: &str) -> LimitSpec {
    let spec = FixedWindowSpec { limit, window: window.into(), stagger: false };
    LimitSpec { fixed_window: Some(spec), ..nothing(name) }
}

pub(crate) fn staggered(name: &str, limit: u64, window: &str) -> LimitSpec {
    let spec = FixedWindowSpec { limit, window: window.into(), stagger: true };
    LimitSpec { fixed_window: Some(spec), ..nothing(name) }
}

pub(crate) fn quota(name: &str, limit: u64, per: &str) -> LimitSpec {
    LimitSpec { quota: Some(QuotaSpec { limit, per: per.into(), time_zone: None }), ..nothing(name) }
}

/// A sliding window: a log if the limit is small, else slots.
pub(crate) fn sliding(name: &str, limit: u64, window: &str) -> LimitSpec {
    let spec = SlidingWindowSpec { limit, window: window.into(), slots: None, approximate: false };
    LimitSpec { sliding_window: Some(spec), ..nothing(name) }
}

pub(crate) fn slots(name: &str, limit: u64, window: &str, slots: u32) -> LimitSpec {
    let spec = SlidingWindowSpec { limit, window: window.into(), slots: Some(slots), approximate: false };
    LimitSpec { sliding_window: Some(spec), ..nothing(name) }
}

pub(crate) fn approximate(name: &str, limit: u64, window: &str) -> LimitSpec {
    let spec = SlidingWindowSpec { limit, window: window.into(), slots: None, approximate: true };
    LimitSpec { sliding_window: Some(spec), ..nothing(name) }
}

/// A limit on requests under way: a log if it has few slots.
pub(crate) fn concurrent(name: &str, limit: u64, ttl: &str) -> LimitSpec {
    LimitSpec { concurrent: Some(ConcurrentSpec { limit, ttl: ttl.into() }), ..nothing(name) }
}

/// Builds `when`, `unlimited`, or an override from keys and their values.
pub(crate) fn fields(pairs: &[(&str, &[&str])]) -> BTreeMap<String, ValueSpec> {
    let many = |values: &[&str]| ValueSpec::Texts(values.iter().map(|v| (*v).to_owned()).collect());
    pairs.iter().map(|(key, values)| ((*key).to_owned(), many(values))).collect()
}

/// Formats a time for an override's `until`.
pub(crate) fn instant(wall_ns: u64) -> String {
    let since_start = wall_ns.cast_signed() - START.wall_ns.cast_signed();
    let (days, ns) = (since_start.div_euclid(24 * HOUR as i64), since_start.rem_euclid(24 * HOUR as i64));
    let at = ns + 8 * HOUR as i64;
    let day = 15 + days + at / (24 * HOUR as i64);
    let at = at % (24 * HOUR as i64);
    assert!((1..=31).contains(&day), "stories take place in January 2027");
    let (hour, minute) = (at / HOUR as i64, at % HOUR as i64 / MINUTE as i64);
    let second = at % MINUTE as i64 / S as i64;
    format!("2027-01-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", at % S as i64)
}

pub(crate) fn limits(specs: &[LimitSpec]) -> Vec<Limit> {
    specs.iter().map(|spec| Limit::new(spec.clone()).expect("a sound limit")).collect()
}

/// A node without a journal.
pub(crate) fn node(specs: &[LimitSpec], now: Now) -> Arc<Node> {
    node_of(
        Config { key: KEY, memory_bytes: ROOMY, durable: false, after_crash: None, home: None },
        specs,
        now,
    )
}

/// A node with the minimum memory.
pub(crate) fn small_node(specs: &[LimitSpec], durable: bool, now: Now) -> Arc<Node> {
    let config = Config { key: KEY, memory_bytes: MEMORY_BYTES_MIN, durable, after_crash: None, home: None };
    node_of(config, specs, now)
}

pub(crate) fn node_of(config: Config, specs: &[LimitSpec], now: Now) -> Arc<Node> {
    let node = Arc::new(Node::new(config));
    apply(&node, specs, now);
    node
}

/// Puts limits in force. The journal has no rows for new limits.
pub(crate) fn apply(node: &Node, specs: &[LimitSpec], now: Now) {
    node.apply(limits(specs), now, |_| Vec::new()).expect("a set of limits that fits");
}

/// Asks for `cost` units of `key` in the domain `shop`.
pub(crate) fn ask<'a>(asker: &'a mut Asker, key: &str, cost: u64, now: Now) -> &'a Answer {
    ask_as(asker, key, cost, now, Ask::CHECK)
}

pub(crate) fn ask_as<'a>(asker: &'a mut Asker, key: &str, cost: u64, now: Now, ask: Ask) -> &'a Answer {
    let mut request = Request::new("shop", &[("key", key)]);
    request.cost = cost;
    asker.check(&request, now, ask)
}

pub(crate) fn passes(asker: &mut Asker, key: &str, cost: u64, now: Now) -> bool {
    ask(asker, key, cost, now).allowed
}

/// Spends single units until one is denied. Returns how many passed.
pub(crate) fn drain(asker: &mut Asker, key: &str, now: Now) -> u64 {
    (0..).find(|_| !passes(asker, key, 1, now)).expect("an end")
}

/// The shard, and so the lock, that a cell belongs to.
pub(crate) fn shard(tag: CellTag) -> usize {
    (tag.0 >> (128 - SHARDS.trailing_zeros())) as usize
}

/// Keys whose cells of the only limit share one shard.
pub(crate) fn neighbours(node: &Arc<Node>, count: usize) -> Vec<String> {
    let mut asker = node.asker();
    let mut shard_of = |key: &String| {
        let answer = asker.check(&Request::new("shop", &[("key", key)]), START, Ask::PEEK);
        shard(answer.limits[0].tag)
    };
    (0..).map(|n| format!("neighbour-{n}")).filter(|key| shard_of(key) == 0).take(count).collect()
}

/// Spends one unit each for new keys, until the node has no room for more cells.
pub(crate) fn flood(node: &Arc<Node>, name: &str, now: Now) {
    let (mut asker, mut in_a_row, mut cells) = (node.asker(), 0, node.usage().cells);
    // With staggered windows, a new key may still pass without its own cell, if its window ends after the
    // windows in the shared cell.
    for number in 0..2_000_000 {
        passes(&mut asker, &format!("{name}-{number}"), 1, now);
        if number % 256 == 0 {
            // Every shard must be full: a few thousand new keys in a row must find no room.
            in_a_row = if node.usage().cells == cells { in_a_row + 1 } else { 0 };
            cells = node.usage().cells;
        }
        if in_a_row == 12 {
            return;
        }
    }
    panic!("the memory is never full: {:?}", node.usage());
}

pub(crate) fn sweep_all(node: &Node, now: Now) {
    (0..SHARDS).for_each(|shard| node.sweep(shard, now));
}

/// The contents of the disk: each cell's last row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    rows: BTreeMap<(LimitId, CellTag), Row>,
    pub(crate) committed: u64,
}

impl Journal {
    /// Writes a batch.
    pub(crate) fn write(&mut self, rows: impl IntoIterator<Item = Row>) {
        for row in rows {
            match row.state {
                Some(_) => self.rows.insert((row.limit, row.tag), row),
                None => self.rows.remove(&(row.limit, row.tag)),
            };
        }
    }

    /// Writes all queued rows, and reports the commits to the node.
    pub(crate) fn flush(&mut self, node: &Node) {
        while let Some((batch, rows)) = node.take_rows() {
            self.write(rows);
            self.committed = batch;
            node.committed(batch);
        }
    }

    pub(crate) fn rows(&self, limit: LimitId) -> Vec<Row> {
        self.rows
            .range((limit, CellTag(0))..=(limit, CellTag(u128::MAX)))
            .map(|(_, row)| row.clone())
            .collect()
    }

    /// Number of cell rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.keys().filter(|(limit, _)| *limit != WALL).count()
    }
}

/// Leaves each rule out in turn, and checks that its story notices.
#[cfg(feature = "mutations")]
pub(crate) fn each_is_noticed(stories: &[(acequia_rights::mutation::Mutation, fn())]) {
    use acequia_rights::mutation::break_rule;
    std::panic::set_hook(Box::new(|_| ()));
    let is_unnoticed = |(rule, story): &&(_, fn())| {
        break_rule(Some(*rule));
        let passed = std::panic::catch_unwind(*story).is_ok();
        break_rule(None);
        passed
    };
    let unnoticed: Vec<_> = stories.iter().filter(is_unnoticed).map(|(rule, _)| rule.name()).collect();
    drop(std::panic::take_hook());
    assert!(unnoticed.is_empty(), "left out unnoticed: {unnoticed:?}");
}
