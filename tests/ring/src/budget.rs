//! The limits of a history, and the numbers that the operator changes.

use std::{collections::BTreeMap, sync::LazyLock};

use acequia_limits::{
    Algorithm, CellTag, Charge, Descriptor, HashKey, Limit, LimitId,
    cell::Tagger,
    classes::ClassesSpec,
    expect::{CostSpec, ExpectSpec},
    limit::{
        FixedWindowSpec, LeakyBucketSpec, LimitSpec, QuotaSpec, SharingSpec, SlidingWindowSpec, ThrottleSpec,
        TokenBucketSpec, ValueSpec,
    },
};
use acequia_node::Holding;
use acequia_rights::MemberId;
use jiff::Timestamp;

use crate::{place::Place, random::Random};

/// A second, in nanoseconds.
pub const S: u64 = 1_000_000_000;
/// A millisecond.
pub const MS: u64 = 1_000_000;
/// The cell key of all histories.
pub const KEY: [u8; 16] = [7; 16];

/// The classes of requests, and the part of a shared cell that each leaves to the other.
const CLASSES: [&str; 2] = ["free", "gold"];
const LEAVES: [&str; 2] = ["30%", "0%"];

/// Units that are held for a request, if the limit has as many, and how long they are held at most.
const HELD_MAX: u64 = 7;
const HELD_FOR: &str = "5s";

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// The most keys of a limit. A history has three at most, and some stories need many.
const KEYS_MAX: usize = 100;
static VALUES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let more = (3..KEYS_MAX).map(|key| format!("k{key}"));
    ["x", "y", "z"].map(ToOwned::to_owned).into_iter().chain(more).collect()
});

/// A key of a limit: the places of both in their lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitKey {
    /// Among the limits of a history.
    pub limit: usize,
    /// Among the keys of the limit.
    pub key: usize,
}

/// A cell of a key: the places of both in their lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyCell {
    /// Among the keys of a limit.
    pub key: usize,
    /// Among the cells of the key.
    pub cell: usize,
}

/// The numbers of a limit, which an operator raises and lowers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Burst, queue, or units in a window.
    pub units: u64,
    /// Units in a bucket's period.
    pub rate: u64,
}

/// The algorithm of a limit, which never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A token bucket, and the period of its rate.
    Token(&'static str, u64),
    /// A leaky bucket.
    Leaky(&'static str, u64),
    /// A fixed window: its length, and whether it is staggered.
    Window(&'static str, bool),
    /// A calendar quota.
    Quota(&'static str),
    /// A sliding window: its length, and its slots, if any.
    Sliding(&'static str, u64, Option<u32>),
}

/// How requests of two classes share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classed {
    /// No classes.
    No,
    /// One class leaves a part of the common cell to the other.
    Shared,
    /// Each class has its own cell.
    Separate,
    /// Each class has its own cell, and both share the remainder.
    Hybrid,
}

/// Numbers for one key of a limit, by an override or a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// The key.
    pub key: usize,
    /// The numbers in place of the limit's.
    pub budget: Budget,
    /// When these numbers end on the wall clocks, in whole seconds. `None` if they do not end.
    pub until_ns: Option<u64>,
}

/// A key that is asked for.
#[derive(Clone, Debug)]
pub struct Key {
    /// The value in requests.
    pub value: &'static str,
    /// The cells: one, or those of the classes and their common remainder.
    pub cells: Vec<CellTag>,
}

/// A limit of a history.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The name, which is also the key that the limit counts by.
    pub name: &'static str,
    /// The algorithm.
    pub shape: Shape,
    /// The nodes' id of the limit.
    pub id: LimitId,
    /// The algorithm with the initial numbers.
    pub algorithm: Algorithm,
    /// The keys that are asked for.
    pub keys: Vec<Key>,
    /// The initial numbers.
    pub first: Budget,
    /// Whether some budgets set a priority or a floor.
    pub prefers: bool,
    /// How classes share the limit.
    pub classed: Classed,
    /// Whether the limit throttles before it denies.
    pub throttles: bool,
    /// Whether the limit holds units for requests of cost 0.
    pub holds: bool,
}

impl Measured {
    /// A limit with defaults.
    pub fn new(place: usize, shape: Shape, first: Budget, keys: usize) -> Self {
        Self::with(place, shape, first, keys, |_| ())
    }

    /// A limit that `more` modifies.
    pub fn with(
        place: usize,
        shape: Shape,
        first: Budget,
        keys: usize,
        more: impl FnOnce(&mut Self),
    ) -> Self {
        let name = NAMES[place];
        let bare = Limit::new(spec(name, shape, first)).expect("a sound limit");
        let (id, algorithm) = (bare.id, bare.algorithm);
        let (prefers, classed, throttles, holds) = (false, Classed::No, false, false);
        let mut measured =
            Self { name, shape, id, algorithm, keys: Vec::new(), first, prefers, classed, throttles, holds };
        more(&mut measured);
        measured.id = Limit::new(measured.spec(first, None)).expect("a sound limit").id;
        let tagger = Tagger::new(&HashKey(KEY), measured.id);
        let roles: &[&str] = match measured.classed {
            Classed::No | Classed::Shared => &[],
            Classed::Separate => &CLASSES,
            Classed::Hybrid => &[CLASSES[0], CLASSES[1], ""],
        };
        let cells = |value: &str| match roles {
            [] => vec![tagger.one(value.as_bytes())],
            roles => {
                roles.iter().map(|role| tagger.all([value.as_bytes(), role.as_bytes()].into_iter())).collect()
            }
        };
        measured.keys = VALUES[..keys].iter().map(|value| Key { value, cells: cells(value) }).collect();
        measured
    }

    /// A random limit for `regions` regions.
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
        // A bucket refills within about a second, within some minutes, or hardly.
        let rate = random.spread(1, (units * 4).max(4)).max(slowest(units));
        let keys = 1 + usize::from(random.chance(300_000));
        let budget = Budget { units, rate };
        Self::with(place, shape, budget, keys, |measured| {
            measured.prefers = true;
            let staggers = matches!(shape, Shape::Window(_, true));
            measured.classed = match random.below(12) {
                0..=2 => Classed::Shared,
                // Cells with staggered windows cannot be summed by window.
                3 if units >= 4 && !staggers => Classed::Separate,
                4 if units >= 4 && !staggers => Classed::Hybrid,
                _ => Classed::No,
            };
            measured.throttles =
                matches!(shape, Shape::Window(..) | Shape::Quota(_)) && random.chance(250_000);
            // No draw of its own, so that histories without holds stay as they were.
            measured.holds = measured.classed == Classed::No && (units + rate).is_multiple_of(3);
        })
    }

    /// The entries of a request with a cost.
    pub fn entries<'e>(&self, value: &'e str, cost: u64) -> [(&'static str, &'e str); 2] {
        [(self.name, value), ("class", CLASSES[usize::from(!cost.is_multiple_of(2))])]
    }

    /// A region's holding of a key's cell.
    pub fn holding(&self, place: &Place, cell: KeyCell, true_ns: u64) -> Option<Holding> {
        let KeyCell { key, cell } = cell;
        let key = &self.keys[key];
        let entries = [(self.name.as_bytes(), key.value.as_bytes())];
        let values = Descriptor::new(&entries, None);
        place.node()?.holding_as(self.id, key.cells[cell], &values, self.role(cell), place.now(true_ns))
    }

    /// The node's number for the role of a cell: classes that draw first come first.
    fn role(&self, cell: usize) -> usize {
        match self.classed {
            Classed::No | Classed::Shared => 0,
            Classed::Separate | Classed::Hybrid => [1, 0, 2][cell],
        }
    }

    /// Units of the classes' own cells, which belong to the limit's name.
    fn owned(&self) -> [u64; 2] {
        match self.classed {
            Classed::No | Classed::Shared => [0, 0],
            Classed::Separate => [self.first.units / 4, self.first.units / 2],
            Classed::Hybrid => [self.first.units / 4, self.first.units.div_ceil(4)],
        }
    }

    /// The smallest number of units that the limit allows.
    pub fn least(&self) -> u64 {
        self.owned().iter().sum::<u64>().max(1)
    }

    /// The operator's specification with these numbers.
    pub fn spec(&self, budget: Budget, own: Option<Own>) -> LimitSpec {
        let sharing = if self.prefers { sharing(budget.units) } else { None };
        let separate = match self.classed {
            Classed::No | Classed::Shared => BTreeMap::new(),
            Classed::Separate | Classed::Hybrid => {
                CLASSES.map(ToOwned::to_owned).into_iter().zip(self.owned()).collect()
            }
        };
        let shared = match self.classed {
            Classed::No | Classed::Separate => BTreeMap::new(),
            Classed::Shared | Classed::Hybrid => {
                CLASSES.map(ToOwned::to_owned).into_iter().zip(LEAVES.map(ToOwned::to_owned)).collect()
            }
        };
        let classes = (self.classed != Classed::No).then(|| ClassesSpec {
            entry: "class".to_owned(),
            shared,
            separate,
            others: None,
        });
        let throttle = self.throttles.then(|| ThrottleSpec { from: 50, rate: "7/s".to_owned() });
        let overrides = own.map(|own| self.override_of(own)).into_iter().collect();
        let mut spec =
            LimitSpec { sharing, classes, throttle, overrides, ..spec(self.name, self.shape, budget) };
        if self.holds {
            let cost = CostSpec::Fixed(budget.units.min(HELD_MAX));
            spec.expect = Some(ExpectSpec { cost, within: HELD_FOR.to_owned() });
            spec.charge = Charge::Always;
        }
        spec
    }

    fn override_of(&self, own: Own) -> BTreeMap<String, ValueSpec> {
        let Own { key, budget: Budget { units, rate }, until_ns } = own;
        let mut fields = BTreeMap::from([(self.name.to_owned(), self.keys[key].value.to_owned())]);
        let mut put = |name: &str, text: String| fields.insert(name.to_owned(), text);
        match self.shape {
            Shape::Token(period, _) => {
                put("burst", units.to_string());
                put("rate", format!("{rate}/{period}"));
            }
            Shape::Leaky(period, _) => {
                put("queue", units.to_string());
                put("rate", format!("{rate}/{period}"));
            }
            Shape::Window(..) | Shape::Quota(_) | Shape::Sliding(..) => {
                put("limit", units.to_string());
            }
        }
        if let Some(until_ns) = until_ns {
            let until = Timestamp::from_second((until_ns / S) as i64).expect("a time of this age");
            put("until", until.to_string());
        }
        fields.into_iter().map(|(name, text)| (name, ValueSpec::Texts(vec![text]))).collect()
    }

    /// Units a nanosecond; 0 without a rate.
    pub fn rate(&self, budget: Budget) -> f64 {
        match self.shape {
            Shape::Token(_, period) | Shape::Leaky(_, period) => budget.rate as f64 / period as f64,
            _ => 0.0,
        }
    }
}

/// The lowest rate allowed for a bucket of this size: the longest refill is 400 days.
pub const fn slowest(units: u64) -> u64 {
    units / (399 * 24) + 1
}

/// Priority and floor, which depend on the budget and change with it.
fn sharing(units: u64) -> Option<SharingSpec> {
    /// Names with the numbers 1 and 0.
    static FIRST: LazyLock<Vec<String>> = LazyLock::new(|| {
        let named = |region| (0..).map(|n| format!("r{n}")).find(|name| MemberId::named(name) == region);
        [MemberId(1), MemberId(0)].into_iter().filter_map(named).collect()
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
