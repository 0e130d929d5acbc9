//! The limits of a history: what they measure, and the numbers that the operator changes.

use std::{collections::BTreeMap, sync::LazyLock};

use acequia_limits::{
    Algorithm, CellTag, HashKey, Limit, LimitId,
    cell::Tagger,
    classes::ClassesSpec,
    limit::{
        FixedWindowSpec, LeakyBucketSpec, LimitSpec, QuotaSpec, SharingSpec, SlidingWindowSpec,
        TokenBucketSpec,
    },
};

use acequia_rights::Region;

use crate::random::Random;

/// A second, in nanoseconds.
pub const S: u64 = 1_000_000_000;
/// A millisecond.
pub const MS: u64 = 1_000_000;
/// The secret of all histories.
pub const KEY: [u8; 16] = [7; 16];

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// The numbers of a limit: what an operator raises and lowers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Burst, queue, or units in a window.
    pub units: u64,
    /// Units in a limit's period, for buckets.
    pub rate: u64,
}

/// What a limit measures with. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A token bucket; the period of its rate.
    Token(&'static str, u64),
    /// A leaky bucket.
    Leaky(&'static str, u64),
    /// A fixed window: its length, and whether cells have edges of their own.
    Window(&'static str, bool),
    /// A calendar quota.
    Quota(&'static str),
    /// A sliding window: its length, and the slots if it has any.
    Sliding(&'static str, u64, Option<u32>),
}

/// A limit of a history.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Its name, which is also the key that it counts by.
    pub name: &'static str,
    /// What it measures with.
    pub shape: Shape,
    /// As the nodes know it.
    pub id: LimitId,
    /// With the numbers that it began with.
    pub algorithm: Algorithm,
    /// The keys that are asked for, and their cells.
    pub keys: Vec<(&'static str, CellTag)>,
    /// The numbers that it began with.
    pub first: Budget,
    /// Whether some of its budgets say who is served first, and what is kept.
    pub prefers: bool,
    /// Whether its requests are of two classes, of which one leaves a part to the other.
    pub classed: bool,
}

impl Measured {
    /// A limit.
    pub fn new(place: usize, shape: Shape, first: Budget, keys: usize) -> Self {
        let name = NAMES[place];
        let limit = Limit::new(spec(name, shape, first)).expect("a sound limit");
        let tagger = Tagger::new(&HashKey(KEY), limit.id);
        let keys = ["x", "y", "z"][..keys].iter().map(|key| (*key, tagger.one(key.as_bytes()))).collect();
        let (id, algorithm) = (limit.id, limit.algorithm);
        Self { name, shape, id, algorithm, keys, first, prefers: false, classed: false }
    }

    /// A limit by chance, for so many regions.
    pub fn draw(place: usize, regions: u64, random: &mut Random) -> Self {
        let units = match random.below(10) {
            0 => random.between(1, regions),
            1 => regions,
            2 => regions + random.between(1, 3),
            3..=5 => random.between(5, 60),
            6..=8 => random.spread(60, 4_000),
            _ => random.spread(4_000, 10_000_000),
        };
        let small = units.min(60);
        let (shape, units) = match random.below(14) {
            0..=2 => (Shape::Token("s", S), units),
            3 => (Shape::Token("m", 60 * S), units),
            4 => (Shape::Token("h", 3_600 * S), units),
            5 => (Shape::Leaky("s", S), units),
            6 => (Shape::Leaky("m", 60 * S), units),
            7 => (Shape::Window(random.pick(&["1s", "2s", "10s"]), random.chance(200_000)), units),
            8 => (Shape::Window(random.pick(&["1m", "1h"]), random.chance(200_000)), units),
            9 => (Shape::Window("1m", false), units),
            10 => (Shape::Quota(random.pick(&["day", "month", "week"])), units),
            11 => match random.below(3) {
                0 => (Shape::Sliding("1s", S, None), small),
                1 => (Shape::Sliding("10s", 10 * S, None), small),
                _ => (Shape::Sliding("2m", 120 * S, None), small),
            },
            12 => (Shape::Sliding("2s", 2 * S, Some(random.pick(&[4, 10, 32]))), units),
            _ => (Shape::Sliding("90s", 90 * S, Some(random.pick(&[5, 30]))), units),
        };
        // A bucket refills within a second or so, or within some minutes, or hardly.
        let rate = random.spread(1, (units * 4).max(4)).max(slowest(units));
        let keys = 1 + usize::from(random.chance(300_000));
        let new = Self::new(place, shape, Budget { units, rate }, keys);
        let drawn = Self { prefers: true, classed: rate.is_multiple_of(3), ..new };
        let limit = Limit::new(drawn.spec(drawn.first)).expect("a sound limit");
        assert_eq!(limit.id, drawn.id, "classes that share a cell make no other limit of it");
        drawn
    }

    /// What a request of a cost says of itself.
    pub fn entries<'e>(&self, value: &'e str, cost: u64) -> [(&'static str, &'e str); 2] {
        let class = if cost.is_multiple_of(2) { "free" } else { "gold" };
        [(self.name, value), ("class", class)]
    }

    /// As an operator writes it, with these numbers.
    pub fn spec(&self, budget: Budget) -> LimitSpec {
        let sharing = if self.prefers { sharing(budget.units) } else { None };
        let classes = self.classed.then(|| ClassesSpec {
            entry: "class".to_owned(),
            shared: [("gold", "0%"), ("free", "30%")]
                .map(|(class, leaves)| (class.to_owned(), leaves.to_owned()))
                .into(),
            separate: BTreeMap::new(),
            others: None,
        });
        LimitSpec { sharing, classes, ..spec(self.name, self.shape, budget) }
    }

    /// Units a nanosecond; 0 where there is no rate.
    pub fn rate(&self, budget: Budget) -> f64 {
        match self.shape {
            Shape::Token(_, period) | Shape::Leaky(_, period) => budget.rate as f64 / period as f64,
            _ => 0.0,
        }
    }
}

/// The least rate with which a bucket of so many units may be written: the longest refill is 400 days.
pub const fn slowest(units: u64) -> u64 {
    units / (399 * 24) + 1
}

/// Who is served first and what is kept, for some budgets: it changes with them.
fn sharing(units: u64) -> Option<SharingSpec> {
    /// Names that make the numbers 1 and 0.
    static FIRST: LazyLock<Vec<String>> = LazyLock::new(|| {
        let named = |region| (0..).map(|n| format!("r{n}")).find(|name| Region::named(name) == region);
        [Region(1), Region(0)].into_iter().filter_map(named).collect()
    });
    let (floor, priority) = match units % 5 {
        0 => (Some("20%"), Vec::new()),
        1 => (None, FIRST.clone()),
        2 => (Some("60%"), FIRST[..1].to_vec()),
        _ => return None,
    };
    Some(SharingSpec { wait: None, floor: floor.map(ToOwned::to_owned), priority })
}

fn spec(name: &str, shape: Shape, budget: Budget) -> LimitSpec {
    let text = format!("{{\"name\":\"{name}\",\"domain\":\"shop\",\"by\":[\"{name}\"]}}");
    let bare: LimitSpec = serde_json::from_str(&text).expect("a spec");
    let Budget { units, rate } = budget;
    match shape {
        Shape::Token(period, _) => {
            let bucket = TokenBucketSpec { rate: format!("{rate}/{period}"), burst: units };
            LimitSpec { token_bucket: Some(bucket), ..bare }
        }
        Shape::Leaky(period, _) => {
            let rate = format!("{rate}/{period}");
            let bucket = LeakyBucketSpec { rate, queue: units, no_wait: Default::default() };
            LimitSpec { leaky_bucket: Some(bucket), ..bare }
        }
        Shape::Window(window, stagger) => {
            let window = FixedWindowSpec { limit: units, window: window.to_owned(), stagger };
            LimitSpec { fixed_window: Some(window), ..bare }
        }
        Shape::Quota(per) => {
            let quota = QuotaSpec { limit: units, per: per.to_owned(), time_zone: None };
            LimitSpec { quota: Some(quota), ..bare }
        }
        Shape::Sliding(window, _, slots) => {
            let window =
                SlidingWindowSpec { limit: units, window: window.to_owned(), slots, approximate: false };
            LimitSpec { sliding_window: Some(window), ..bare }
        }
    }
}
