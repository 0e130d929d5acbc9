//! A study of classes of consumers, after R. Seleznev, "Development of API rate limiting methods based on consumer classes" (2025).
//!
//! **All that is said was counted**: a real node is asked, request by request, in simulated time. So a study takes no time, needs no
//! port, and comes out the same every time.

mod load;
mod page;

use std::sync::Arc;

use acequia_limits::{HashKey, Limit, Now, Request, limit::LimitSpec};
use acequia_node::{Ask, Config, MEMORY_BYTES_MIN, Node};
use serde_json::{Value, json};

use self::load::{BEGINS_MS, Load, PERIOD_MS, is_burst};

/// Those that draw first in front.
const NAMES: [&str; 3] = ["gold", "silver", "free"];
const GOLD: usize = 0;
const SILVER: usize = 1;
const FREE: usize = 2;

/// The limit: units a second, and units in the full bucket.
const RATE: u64 = 1_000;
const BURST: u64 = 2_000;

/// Periods that are counted, after one in which the full bucket of the beginning is used up.
const PERIODS: u64 = 6;
/// A column of a chart.
const BIN_MS: u64 = 500;
const BINS: usize = (PERIOD_MS / BIN_MS) as usize;
/// Where charts begin, in the last but one of the periods: two seconds before its burst, so that what follows is seen as well.
const CHART_MS: u64 = (PERIODS - 2) * PERIOD_MS + BEGINS_MS - 2_000;
const MS_NS: u64 = 1_000_000;

/// Why there is no study: its own limit is none.
#[derive(Debug, thiserror::Error)]
#[error("the study's own limit is none: {0}")]
pub(super) struct Unsound(String);

/// A way to tell classes apart, and what they ask for.
#[derive(Debug)]
struct Way {
    title: &'static str,
    /// As the config says it.
    classes: Value,
    /// Units a second, on average, by class.
    asks: [u64; 3],
}

/// What was asked for, and what of it was admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    asked: u64,
    admitted: u64,
}

/// One load under one way, by class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Run {
    /// In the seconds of the bursts; where nobody bursts, in the same seconds.
    in_bursts: [Part; 3],
    /// In all seconds.
    in_all: [Part; 3],
    chart: [[Part; BINS]; 3],
}

/// The runs of a way.
#[derive(Debug)]
struct Study {
    way: Way,
    even: Run,
    /// By the class that bursts.
    bursts: [Run; 3],
}

/// Makes the study, and the page that shows it.
pub(super) fn page() -> Result<String, Unsound> {
    let studies = [shared(), separate(), hybrid()].map(Study::new);
    let [shared, separate, hybrid] = studies;
    Ok(page::page(&shared?, &separate?, &hybrid?))
}

/// The same load of each class: what differs is who comes first.
fn shared() -> Way {
    Way {
        title: "shared: one bucket, of which a class leaves a part to those above it",
        classes: json!({ "entry": "plan", "shared": { "gold": "0%", "silver": "24%", "free": "62%" } }),
        asks: [400, 400, 400],
    }
}

/// Loads as the buckets are to each other.
fn separate() -> Way {
    Way {
        title: "separate: a bucket for each class",
        classes: json!({ "entry": "plan", "separate": { "gold": 1_000, "silver": 600, "free": 400 } }),
        asks: [600, 360, 240],
    }
}

fn hybrid() -> Way {
    Way {
        title: "both: a bucket for each class, and one for what it lacks",
        classes: json!({
            "entry": "plan",
            "separate": { "gold": 300, "silver": 300, "free": 300 },
            "shared": { "gold": "0%", "silver": "24%", "free": "62%" },
        }),
        asks: [400, 400, 400],
    }
}

impl Study {
    fn new(way: Way) -> Result<Self, Unsound> {
        let run = |bursts| way.run(Load { asks: way.asks, bursts });
        let even = run(None)?;
        let bursts = [run(Some(GOLD))?, run(Some(SILVER))?, run(Some(FREE))?];
        Ok(Self { way, even, bursts })
    }
}

impl Way {
    fn limit(&self) -> Result<Limit, Unsound> {
        let spec = json!({
            "name": "classes",
            "domain": "study",
            "by": ["service"],
            "token_bucket": { "rate": format!("{RATE}/s"), "burst": BURST },
            "classes": self.classes,
        });
        let spec: LimitSpec = serde_json::from_value(spec).map_err(|fault| Unsound(fault.to_string()))?;
        Limit::new(spec).map_err(|faults| Unsound(format!("{faults:?}")))
    }

    /// Asks a new node for a load.
    fn run(&self, load: Load) -> Result<Run, Unsound> {
        let start = Now::at(PERIOD_MS * MS_NS);
        let node = Arc::new(Node::new(Config {
            key: HashKey([0; 16]),
            memory_bytes: MEMORY_BYTES_MIN,
            durable: false,
            empty_handed: None,
            home: None,
        }));
        node.apply(vec![self.limit()?], start, |_| Vec::new()).map_err(|fault| Unsound(fault.to_string()))?;
        let mut asker = node.asker();
        let mut run = Run::default();
        for ms in 0..(1 + PERIODS) * PERIOD_MS {
            let now = start.later(ms * MS_NS);
            // In each millisecond another one is first: none has an advantage but its class.
            for class in (0..NAMES.len()).map(|place| (place + ms as usize) % NAMES.len()) {
                let request = Request::new("study", &[("service", "api"), ("plan", NAMES[class])]);
                for _ in 0..load.asked_in(class, ms) {
                    let is_admitted = asker.check(&request, now, Ask::CHECK).allowed;
                    if let Some(counted_ms) = ms.checked_sub(PERIOD_MS) {
                        run.count(class, counted_ms, is_admitted);
                    }
                }
            }
        }
        Ok(run)
    }
}

impl Run {
    fn count(&mut self, class: usize, ms: u64, is_admitted: bool) {
        self.in_all[class].count(is_admitted);
        if is_burst(ms) {
            self.in_bursts[class].count(is_admitted);
        }
        let bin = ms.checked_sub(CHART_MS).map(|ms| (ms / BIN_MS) as usize);
        if let Some(part) = bin.and_then(|bin| self.chart[class].get_mut(bin)) {
            part.count(is_admitted);
        }
    }
}

impl Part {
    fn count(&mut self, is_admitted: bool) {
        self.asked += 1;
        self.admitted += u64::from(is_admitted);
    }

    /// What was admitted, in so many parts, rounded; all of nothing.
    fn of(self, parts: u64) -> u64 {
        (self.admitted * parts + self.asked / 2).checked_div(self.asked).unwrap_or(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(way: Way) -> Study {
        Study::new(way).expect("a sound limit")
    }

    /// What each class is admitted in the seconds of the bursts, in thousandths.
    fn parts(run: &Run) -> [u64; 3] {
        run.in_bursts.map(|part| part.of(1_000))
    }

    /// What each class is admitted of its own burst.
    fn own_bursts(study: &Study) -> [u64; 3] {
        std::array::from_fn(|class| parts(&study.bursts[class])[class])
    }

    #[test]
    fn where_all_share_the_lowest_class_starves_first() {
        let even = parts(&study(shared()).even);
        assert!(even[GOLD] >= even[SILVER] && even[SILVER] >= even[FREE], "{even:?}");
        assert!(even[FREE] + 400 < even[SILVER], "far below: {even:?}");
    }

    #[test]
    fn where_all_share_a_burst_squeezes_those_below_and_none_above() {
        let study = study(shared());
        let even = parts(&study.even);
        for (bursting, run) in study.bursts.iter().enumerate() {
            let parts = parts(run);
            for below in bursting + 1..NAMES.len() {
                let (name, below) = (NAMES[below], (parts[below], even[below]));
                assert!(below.0 + 100 < below.1, "{name} below {}: {below:?}", NAMES[bursting]);
            }
            assert_eq!(parts[..bursting], even[..bursting], "above {}", NAMES[bursting]);
        }
    }

    #[test]
    fn where_all_share_a_burst_helps_less_the_lower_its_class() {
        let own = own_bursts(&study(shared()));
        assert!(own[GOLD] > own[SILVER] + 100 && own[SILVER] > own[FREE] + 100, "{own:?}");
    }

    #[test]
    fn separate_classes_keep_their_own_and_bursts_help_each_alike() {
        let study = study(separate());
        let even = parts(&study.even);
        for (bursting, run) in study.bursts.iter().enumerate() {
            for other in (0..NAMES.len()).filter(|class| *class != bursting) {
                let (part, even) = (parts(run)[other], even[other]);
                let names = (NAMES[bursting], NAMES[other]);
                assert!(part.abs_diff(even) <= 5, "{names:?}: {part} instead of {even}");
            }
        }
        let own = own_bursts(&study);
        let (least, most) = (own.iter().min().expect("three"), own.iter().max().expect("three"));
        assert!(most - least <= 30, "{own:?}");
    }

    #[test]
    fn with_both_the_lowest_class_keeps_more_under_the_bursts_of_others() {
        let (shared, both) = (study(shared()), study(hybrid()));
        for bursting in [GOLD, SILVER] {
            let free = |study: &Study| parts(&study.bursts[bursting])[FREE];
            assert!(free(&both) > free(&shared) + 100, "{} > {}", free(&both), free(&shared));
        }
    }

    #[test]
    fn no_way_admits_more_than_the_limit_and_every_load_asks_for_as_much() {
        for way in [shared(), separate(), hybrid()] {
            let study = study(way);
            for run in study.bursts.iter().chain([&study.even]) {
                let sum = |count: fn(&Part) -> u64| run.in_all.iter().map(count).sum::<u64>();
                assert_eq!(sum(|part| part.asked), 1_200 * PERIODS * PERIOD_MS / 1_000);
                let admitted = sum(|part| part.admitted);
                assert!(admitted <= RATE * PERIODS * PERIOD_MS / 1_000 + BURST, "{admitted}");
            }
        }
    }

    #[test]
    fn the_same_study_comes_out_every_time() {
        let run = || shared().run(Load { asks: [400; 3], bursts: Some(GOLD) }).expect("a sound limit");
        assert_eq!(run(), run());
    }
}
