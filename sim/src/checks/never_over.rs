//! Never over: what all callers of all regions were allowed is within each limit, over every interval and in every window,
//! however the admissions between a question and its answer are dated.

use std::collections::BTreeMap;

use acequia_limits::{Limit, limit::LimitSpec, notation::parse_duration_ns};
use acequia_rights::Mark;
use acequia_server::demo::oracle::{BucketOracle, WindowOracle};

use super::{Check, ns};
use crate::{
    demand::Question,
    world::{Answer, EPOCH_S, Said, World},
};

const SECOND_NS: u64 = 1_000_000_000;

/// Counts what callers were allowed.
#[derive(Debug)]
pub struct NeverOver {
    clocks: Clocks,
    limits: BTreeMap<String, Watched>,
    /// The version that each region goes by; those of one that is down are its last.
    versions: Vec<Mark>,
    looked_ns: u64,
}

/// How good clocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// No wall is further from true time.
    pub error_ns: u64,
    /// No bucket fills faster than its rate by more than this.
    pub drift_ppm: u64,
}

/// One limit, by what its cells are known by.
#[derive(Debug)]
struct Watched {
    by: Vec<String>,
    /// Numbers that some region goes by, or did when it was last seen.
    numbers: Vec<Numbers>,
    in_force: Numbers,
    cells: BTreeMap<String, Oracle>,
    admitted: u64,
}

/// What a limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    /// Units a second, and the burst.
    Bucket(u64, u64),
    /// Units, and the length in nanoseconds.
    Window(u64, u64),
}

#[derive(Debug)]
enum Oracle {
    Bucket(BucketOracle),
    Window(WindowOracle),
}

impl NeverOver {
    /// For these limits.
    ///
    /// # Errors
    /// A limit that it cannot judge.
    pub fn new(limits: &[Limit], clocks: Clocks, regions: usize) -> Result<Self, String> {
        let mut watched = BTreeMap::new();
        for limit in limits {
            let (spec, in_force) = (&limit.spec, numbers(&limit.spec)?);
            let by = spec.by.iter().map(|by| by.key().to_owned()).collect();
            let (numbers, cells) = (vec![in_force; regions], BTreeMap::new());
            watched.insert(spec.name.clone(), Watched { by, numbers, in_force, cells, admitted: 0 });
        }
        Ok(Self { clocks, limits: watched, versions: vec![Mark::default(); regions], looked_ns: 0 })
    }

    /// A number that is raised counts as soon as any region may know it, one that is lowered when every region does.
    fn follow_orders(&mut self, world: &World) {
        let mut has_news = false;
        for (place, region) in world.regions().iter().enumerate() {
            let Some(process) = region.process() else { continue };
            let (mark, _) = process.node.marks();
            if mark == self.versions[place] {
                continue;
            }
            (self.versions[place], has_news) = (mark, true);
            for active in &process.node.catalogue().limits {
                let spec = &active.limit.spec;
                if let (Some(watched), Ok(numbers)) = (self.limits.get_mut(&spec.name), numbers(spec)) {
                    watched.numbers[place] = numbers;
                }
            }
        }
        if has_news {
            self.limits.values_mut().for_each(|watched| watched.follow(self.looked_ns));
        }
    }
}

impl Watched {
    fn follow(&mut self, now_ns: u64) {
        let most = self.numbers.iter().copied().reduce(Numbers::or_more).unwrap_or(self.in_force);
        if most == self.in_force {
            return;
        }
        self.in_force = most;
        for cell in self.cells.values_mut() {
            if let (Oracle::Bucket(cell), Numbers::Bucket(rate, burst)) = (cell, most) {
                cell.set(now_ns, rate, burst);
            }
        }
    }

    fn admit(&mut self, answer: &Answer, units: u64, clocks: Clocks) -> Result<(), String> {
        let key = cell_of(&self.by, &answer.question);
        let in_force = self.in_force;
        let cell = self.cells.entry(key.clone()).or_insert_with(|| match in_force {
            Numbers::Bucket(rate, burst) => Oracle::Bucket(BucketOracle::new(rate, burst)),
            Numbers::Window(limit, length_ns) => {
                Oracle::Window(WindowOracle::new(limit, length_ns, clocks.error_ns))
            }
        });
        self.admitted += units;
        let (asked, answered) = (ns(answer.asked), ns(answer.answered));
        let over = match cell {
            Oracle::Bucket(cell) => {
                cell.admit(asked, answered, units);
                cell.units_over().saturating_sub(in_force.drifted(answered, clocks.drift_ppm))
            }
            Oracle::Window(cell) => {
                let epoch_ns = EPOCH_S * SECOND_NS;
                cell.admit(epoch_ns + asked, epoch_ns + answered, units);
                cell.units_over()
            }
        };
        if over > 0 { Err(format!("{over} units over {in_force} in the cell [{key}]")) } else { Ok(()) }
    }
}

impl Numbers {
    /// What clocks that run fast may have filled a bucket with beyond its rate by then.
    fn drifted(self, at_ns: u64, ppm: u64) -> u64 {
        let Self::Bucket(rate, _) = self else { return 0 };
        let units = u128::from(rate) * u128::from(at_ns) * u128::from(ppm);
        u64::try_from(units.div_ceil(u128::from(SECOND_NS) * 1_000_000)).unwrap_or(u64::MAX)
    }

    /// The larger ones of each kind: of a budget that is being changed, the larger one is in force.
    fn or_more(self, other: Self) -> Self {
        match (self, other) {
            (Self::Bucket(rate, burst), Self::Bucket(other_rate, other_burst)) => {
                Self::Bucket(rate.max(other_rate), burst.max(other_burst))
            }
            (Self::Window(limit, length), Self::Window(other, _)) => Self::Window(limit.max(other), length),
            (one, _) => one,
        }
    }
}

impl std::fmt::Display for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bucket(rate, burst) => write!(f, "{rate}/s and a burst of {burst}"),
            Self::Window(limit, length_ns) => {
                write!(f, "{limit} in {:.0} s", *length_ns as f64 / SECOND_NS as f64)
            }
        }
    }
}

impl Check for NeverOver {
    fn name(&self) -> &'static str {
        "never over"
    }

    fn look(&mut self, world: &World, answers: &[Answer]) -> Result<(), String> {
        self.follow_orders(world);
        for answer in answers {
            let Said::Allowed(limits) = &answer.said else { continue };
            for (name, units) in limits {
                if let Some(watched) = self.limits.get_mut(name) {
                    let admitted = watched.admit(answer, *units, self.clocks);
                    admitted.map_err(|over| format!("limit {name}: {over}"))?;
                }
            }
        }
        self.looked_ns = ns(world.elapsed());
        Ok(())
    }

    fn end(&mut self, _: &World) -> Result<(), String> {
        Ok(())
    }

    fn summary(&self) -> Vec<String> {
        let seconds = self.looked_ns / SECOND_NS;
        let line = |(name, watched): (&String, &Watched)| {
            let allows = match watched.in_force {
                Numbers::Bucket(rate, burst) => rate * seconds + burst,
                Numbers::Window(limit, length_ns) => limit * (self.looked_ns / length_ns + 1),
            };
            let (cells, admitted) = (watched.cells.len().max(1) as u64, watched.admitted);
            let part = admitted as f64 * 100.0 / (allows * cells) as f64;
            format!(
                "{name}: {admitted} units admitted in {cells} cells of {}: {part:.0} % of what they allow",
                watched.in_force
            )
        };
        self.limits.iter().map(line).collect()
    }
}

fn numbers(spec: &LimitSpec) -> Result<Numbers, String> {
    if let Some(bucket) = &spec.token_bucket {
        let rate = bucket.rate.strip_suffix("/s").and_then(|units| units.parse().ok());
        let rate = rate.ok_or_else(|| format!("limit {}: a rate is judged by the second", spec.name))?;
        return Ok(Numbers::Bucket(rate, bucket.burst));
    }
    if let Some(window) = &spec.fixed_window
        && !window.stagger
    {
        return Ok(Numbers::Window(window.limit, parse_duration_ns(&window.window)?));
    }
    Err(format!("limit {} is neither a token bucket nor a fixed window", spec.name))
}

fn cell_of(by: &[String], question: &Question) -> String {
    let of = question.entries.iter().filter(|(key, _)| by.contains(key));
    of.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}
