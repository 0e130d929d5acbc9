//! A study of classes of consumers, after R. Seleznev, "Development of API rate limiting methods based on
//! consumer classes" (2025).
//!
//! **All figures are counted**: a real node is asked, request by request, in simulated time. So a study takes
//! no time, needs no port, and has the same result every time.
//!
//! The load is the paper's: the total demand is constant, and equal for both methods. A bursting class takes
//! a larger part of it. Each separate bucket has its own size and refill rate.

mod findings;
mod load;
mod page;
pub(super) mod parameters;

use std::{collections::BTreeMap, sync::Arc};

use acequia_limits::{HashKey, Limit, Now, Request, limit::LimitSpec};
use acequia_node::{Ask, Config, MEMORY_BYTES_MIN, Node};
use serde::Serialize;
use serde_json::{Value, json};

use self::{
    findings::{Finding, findings},
    load::{BEGINS_MS, Load, PERIOD_MS, is_burst},
    parameters::Parameters,
};
use crate::settings::SETTINGS;

/// The class that draws first comes first.
const NAMES: [&str; 3] = ["gold", "silver", "free"];
const GOLD: usize = 0;
const SILVER: usize = 1;
const FREE: usize = 2;

/// Columns of a chart.
const BINS: usize = 20;
const BIN_MS: u64 = PERIOD_MS / BINS as u64;
/// Where charts begin, in the last period but one: shortly before its burst, so that the time after the burst
/// is shown as well.
const CHART_MS: u64 = (SETTINGS.classes.periods - 2) * PERIOD_MS + BEGINS_MS - 4 * BIN_MS;
const MS_NS: u64 = 1_000_000;

/// Why the study cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("there is no study of these: {0}")]
pub(super) struct Unsound(String);

/// A way to distinguish classes.
#[derive(Debug)]
struct Way {
    name: &'static str,
    title: &'static str,
    /// The limits, in the config's form.
    limits: Vec<Value>,
}

/// Units that were asked for, and units that were admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Part {
    asked: u64,
    admitted: u64,
}

/// One load under one method, by class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Run {
    /// The seconds of the bursts; without bursts, the same seconds.
    in_bursts: [Part; 3],
    /// In all seconds.
    in_all: [Part; 3],
    chart: [[Part; BINS]; 3],
}

/// The runs of a method.
#[derive(Debug)]
struct Study {
    way: Way,
    even: Run,
    /// One run for each bursting class.
    bursts: [Run; 3],
}

/// All counted runs.
#[derive(Debug)]
struct Studies {
    parameters: Parameters,
    shared: Study,
    separate: Study,
    hybrid: Study,
    findings: Vec<Finding>,
}

/// Makes the study, and returns the page that shows it.
pub(super) fn page(parameters: &Parameters) -> Result<String, Unsound> {
    Ok(page::page(&Studies::new(parameters)?))
}

/// Makes the study, and returns it as one line of JSON.
pub(super) fn json_line(parameters: &Parameters) -> Result<String, Unsound> {
    Ok(format!("{}\n", Studies::new(parameters)?.json()))
}

/// One bucket for all classes, from which the classes draw in order.
fn shared(parameters: &Parameters) -> Way {
    let classes = json!({ "entry": "plan", "shared": leaves(parameters) });
    let title = "shared: one bucket, of which a class leaves a part to those above it";
    Way { name: "shared", title, limits: vec![limit(parameters, "classes", classes)] }
}

fn leaves(parameters: &Parameters) -> BTreeMap<&'static str, String> {
    NAMES.into_iter().zip(parameters.leaves().map(|percent| format!("{percent}%"))).collect()
}

fn limit(parameters: &Parameters, name: &str, classes: Value) -> Value {
    json!({
        "name": name,
        "domain": "study",
        "by": ["service"],
        "token_bucket": { "rate": format!("{}/s", parameters.rate()), "burst": parameters.burst() },
        "classes": classes,
    })
}

/// A limit for each class. With `classes`, refill rates would be in proportion to sizes; here they may be
/// others.
fn separate(parameters: &Parameters) -> Way {
    let bucket = |class: usize| {
        json!({
            "name": NAMES[class],
            "domain": "study",
            "by": ["service"],
            "when": { "plan": NAMES[class] },
            "token_bucket": {
                "rate": format!("{}/s", parameters.refill()[class]),
                "burst": parameters.sizes()[class],
            },
        })
    };
    let title = "separate: a bucket for each class, with a size and a refill rate of its own";
    Way { name: "separate", title, limits: (0..NAMES.len()).map(bucket).collect() }
}

fn hybrid(parameters: &Parameters) -> Way {
    let own = (parameters.burst() * SETTINGS.classes.own_percent / 100).max(1);
    let separate: BTreeMap<_, _> = NAMES.into_iter().map(|name| (name, own)).collect();
    let classes = json!({ "entry": "plan", "separate": separate, "shared": leaves(parameters) });
    let title = "both (not in the paper): a bucket for each class, and one for what it lacks";
    Way { name: "both", title, limits: vec![limit(parameters, "classes", classes)] }
}

impl Studies {
    fn new(parameters: &Parameters) -> Result<Self, Unsound> {
        parameters.check()?;
        let shared = Study::new(shared(parameters), parameters)?;
        let separate = Study::new(separate(parameters), parameters)?;
        let hybrid = Study::new(hybrid(parameters), parameters)?;
        let findings = findings(parameters, &shared, &separate);
        Ok(Self { parameters: *parameters, shared, separate, hybrid, findings })
    }

    fn methods(&self) -> [&Study; 3] {
        [&self.shared, &self.separate, &self.hybrid]
    }

    fn json(&self) -> Value {
        let by_class = |parts: [Part; 3]| NAMES.into_iter().zip(parts).collect::<BTreeMap<_, _>>();
        let run = |(bursting, run): (Option<usize>, &Run)| {
            json!({
                "bursts": bursting.map(|class| NAMES[class]),
                "in_bursts": by_class(run.in_bursts),
                "in_all": by_class(run.in_all),
            })
        };
        let method = |study: &Study| {
            let runs: Vec<Value> = study.runs().map(run).collect();
            json!({ "name": study.way.name, "limits": study.way.limits, "runs": runs })
        };
        json!({
            "parameters": self.parameters,
            "methods": self.methods().map(method),
            "findings": self.findings,
        })
    }
}

impl Study {
    fn new(way: Way, parameters: &Parameters) -> Result<Self, Unsound> {
        let (asked, peak) = (parameters.asked(), parameters.peak());
        let run = |bursts| way.run(Load { asked, peak, bursts });
        let even = run(None)?;
        let bursts = [run(Some(GOLD))?, run(Some(SILVER))?, run(Some(FREE))?];
        Ok(Self { way, even, bursts })
    }

    /// All runs, each with its bursting class.
    fn runs(&self) -> impl Iterator<Item = (Option<usize>, &Run)> {
        let bursts = self.bursts.iter().enumerate().map(|(class, run)| (Some(class), run));
        std::iter::once((None, &self.even)).chain(bursts)
    }
}

impl Way {
    fn limits(&self) -> Result<Vec<Limit>, Unsound> {
        let limit = |spec: &Value| {
            let spec: LimitSpec =
                serde_json::from_value(spec.clone()).map_err(|fault| Unsound(fault.to_string()))?;
            Limit::new(spec).map_err(|faults| {
                let faults = faults.iter().map(|fault| format!("{}: {}", fault.field, fault.what));
                Unsound(faults.collect::<Vec<_>>().join("; "))
            })
        };
        self.limits.iter().map(limit).collect()
    }

    /// Asks a new node for a load.
    fn run(&self, load: Load) -> Result<Run, Unsound> {
        let start = Now::at(PERIOD_MS * MS_NS);
        let node = Arc::new(Node::new(Config {
            key: HashKey([0; 16]),
            memory_bytes: MEMORY_BYTES_MIN,
            durable: false,
            after_crash: None,
            home: None,
        }));
        node.apply(self.limits()?, start, |_| Vec::new()).map_err(|fault| Unsound(fault.to_string()))?;
        let mut asker = node.asker();
        let mut run = Run::default();
        for ms in 0..(1 + SETTINGS.classes.periods) * PERIOD_MS {
            let now = start.later(ms * MS_NS);
            // Each millisecond begins with another class, so that only its class gives a request an
            // advantage.
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

    /// The admitted part of the demand, in `parts`, rounded; `parts` if nothing was asked for.
    fn of(self, parts: u64) -> u64 {
        (self.admitted * parts + self.asked / 2).checked_div(self.asked).unwrap_or(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::{parameters::tests::parameters, *};

    #[test]
    fn all_methods_get_one_load_and_none_exceeds_the_limit() {
        let parameters = parameters(&[]);
        let studies = Studies::new(&parameters).expect("sound limits");
        for study in studies.methods() {
            for (place, (_, run)) in study.runs().enumerate() {
                let asked = |run: &Run| run.in_all.map(|part| part.asked);
                let (_, shared) = studies.shared.runs().nth(place).expect("as many");
                assert_eq!(asked(run), asked(shared), "{}", study.way.name);
                let sum: u64 = asked(run).iter().sum();
                assert!(sum.abs_diff(1_350 * SETTINGS.classes.periods * PERIOD_MS / 1_000) <= 3, "{sum}");
                let admitted: u64 = run.in_all.iter().map(|part| part.admitted).sum();
                assert!(
                    admitted <= 1_000 * SETTINGS.classes.periods * PERIOD_MS / 1_000 + 2_000,
                    "{admitted}"
                );
            }
        }
    }

    #[test]
    fn the_combined_method_leaves_the_lowest_class_more_in_bursts() {
        let studies = Studies::new(&parameters(&[])).expect("sound limits");
        for bursting in [GOLD, SILVER] {
            let free = |study: &Study| study.bursts[bursting].in_bursts[FREE].of(1_000);
            let (shared, both) = (free(&studies.shared), free(&studies.hybrid));
            assert!(both > shared + 100, "{both} > {shared}");
        }
    }

    #[test]
    fn each_separate_class_has_its_own_refill_rate() {
        let slow = parameters(&["--refill", "500,100,400"]);
        let study = Study::new(separate(&slow), &slow).expect("sound limits");
        let [_, silver, free] = study.even.in_all;
        assert!(
            silver.admitted.abs_diff(100 * SETTINGS.classes.periods * PERIOD_MS / 1_000) <= 1,
            "{silver:?}"
        );
        assert!(free.admitted.abs_diff(400 * SETTINGS.classes.periods * PERIOD_MS / 1_000) <= 1, "{free:?}");
    }

    #[test]
    fn the_json_of_a_study_is_one_line() {
        let line = json_line(&parameters(&["--asked", "900", "--leaves", "0,10,20"])).expect("sound limits");
        assert_eq!(line.matches('\n').count(), 1);
        let said: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(said["parameters"]["asked"], 900);
        assert_eq!(said["parameters"]["leaves"]["free"], 20);
        assert_eq!(said["methods"][0]["limits"][0]["classes"]["shared"]["free"], "20%");
        assert_eq!(said["methods"][1]["runs"][3]["bursts"], "free");
        assert_eq!(said["methods"][1]["runs"][0]["in_all"]["gold"]["asked"], 27_000);
        assert_eq!(
            said["findings"][0]["claim"],
            "All classes together are never admitted more than the limit."
        );
    }

    #[test]
    fn the_same_study_comes_out_every_time() {
        let run = || json_line(&parameters(&["--asked", "1200"])).expect("sound limits");
        assert_eq!(run(), run());
    }
}
