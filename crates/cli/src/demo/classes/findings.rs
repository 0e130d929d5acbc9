//! The expected results of the paper's two methods, and whether this study shows them.
//!
//! The paper's own numbers are not compared, since its loads differ.

use serde::Serialize;

use super::{FREE, GOLD, NAMES, Part, SILVER, Study, load::PERIOD_MS, parameters::Parameters};
use crate::settings::SETTINGS;

/// Shares are compared in thousandths.
const THOUSAND: u64 = 1_000;

/// An expectation, and the counted result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The method that the finding is about.
    pub(super) method: &'static str,
    /// The expectation, in a sentence.
    pub(super) claim: &'static str,
    /// Whether the counts confirm the expectation.
    pub(super) is_seen: bool,
    /// The counts.
    pub(super) figures: String,
}

/// Every claim, in the order of the methods.
pub(super) fn findings(parameters: &Parameters, shared: &Study, separate: &Study) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (method, study) in [("shared", shared), ("separate", separate)] {
        findings.push(keeps_the_limit(method, parameters, study));
    }
    findings.extend([
        lowest_first(shared),
        none_above_feels_it(shared),
        those_below_do(shared),
        higher_bursts_pass(shared),
        others_keep_theirs(separate),
        bursts_pass_alike(separate),
        lowest_keeps_more(shared, separate),
    ]);
    findings
}

/// The part of its demand that each class is admitted during bursts, in thousandths.
fn shares(parts: [Part; 3]) -> [u64; 3] {
    parts.map(|part| part.of(THOUSAND))
}

fn own_bursts(study: &Study) -> [u64; 3] {
    std::array::from_fn(|class| shares(study.bursts[class].in_bursts)[class])
}

/// Shares as words: `100, 66 and 0 %`.
fn percent(shares: [u64; 3]) -> String {
    let [gold, silver, free] = shares.map(|share| (share + 5) / 10);
    format!("{gold}, {silver} and {free} %")
}

fn keeps_the_limit(method: &'static str, parameters: &Parameters, study: &Study) -> Finding {
    let given = parameters.rate() * SETTINGS.classes.periods * PERIOD_MS / 1_000;
    let sums = study.runs().map(|(_, run)| run.in_all.iter().map(|part| part.admitted).sum::<u64>());
    let (least, most) = sums.fold((u64::MAX, 0), |(least, most), sum| (least.min(sum), most.max(sum)));
    let percent = |units: u64| units * 100 / given.max(1);
    Finding {
        method,
        claim: "All classes together are never admitted more than the limit.",
        is_seen: most <= given + parameters.burst(),
        figures: format!("{} to {} % of what the rate gave", percent(least), percent(most)),
    }
}

fn lowest_first(shared: &Study) -> Finding {
    let even = shares(shared.even.in_bursts);
    Finding {
        method: "shared",
        claim: "Of an even load, the lowest class is admitted least.",
        is_seen: even[GOLD] >= even[SILVER] && even[SILVER] > even[FREE],
        figures: percent(even),
    }
}

/// Each pair of a bursting class and another one: both classes, the other's share under even load, and its
/// share in bursts.
fn others(study: &Study) -> impl Iterator<Item = (usize, usize, u64, u64)> + '_ {
    let even = shares(study.even.in_bursts);
    (0..NAMES.len()).flat_map(move |bursting| {
        let then = shares(study.bursts[bursting].in_bursts);
        let others = (0..NAMES.len()).filter(move |other| *other != bursting);
        others.map(move |other| (bursting, other, even[other], then[other]))
    })
}

fn pairs(pairs: impl Iterator<Item = (usize, usize, u64, u64)>) -> String {
    let words = pairs.map(|(bursting, other, even, then)| {
        let [even, then] = [even, then].map(|share| (share + 5) / 10);
        format!("{} {even} to {then} % while {} bursts", NAMES[other], NAMES[bursting])
    });
    words.collect::<Vec<_>>().join(", ")
}

fn none_above_feels_it(shared: &Study) -> Finding {
    let above = || others(shared).filter(|(bursting, other, ..)| other < bursting);
    Finding {
        method: "shared",
        claim: "Classes above the one that bursts lose nothing.",
        is_seen: above().all(|(_, _, even, then)| then + SETTINGS.classes.alike >= even),
        figures: pairs(above()),
    }
}

fn those_below_do(shared: &Study) -> Finding {
    let below = || others(shared).filter(|(bursting, other, ..)| other > bursting);
    Finding {
        method: "shared",
        claim: "Classes below the one that bursts are admitted less.",
        is_seen: below().all(|(_, _, even, then)| then + SETTINGS.classes.alike < even),
        figures: pairs(below()),
    }
}

fn higher_bursts_pass(shared: &Study) -> Finding {
    let own = own_bursts(shared);
    Finding {
        method: "shared",
        claim: "The higher its class, the more of a burst passes.",
        is_seen: own[GOLD] > own[SILVER] + SETTINGS.classes.alike
            && own[SILVER] > own[FREE] + SETTINGS.classes.alike,
        figures: percent(own),
    }
}

fn others_keep_theirs(separate: &Study) -> Finding {
    Finding {
        method: "separate",
        claim: "No class loses by the burst of another.",
        is_seen: others(separate).all(|(_, _, even, then)| then + SETTINGS.classes.alike >= even),
        figures: pairs(others(separate).filter(|(bursting, ..)| *bursting == GOLD)),
    }
}

fn bursts_pass_alike(separate: &Study) -> Finding {
    let own = own_bursts(separate);
    let apart = own.iter().max().zip(own.iter().min()).map_or(0, |(most, least)| most - least);
    Finding {
        method: "separate",
        claim: "Whatever its class, as much of a burst passes.",
        is_seen: apart <= SETTINGS.classes.alike,
        figures: percent(own),
    }
}

fn lowest_keeps_more(shared: &Study, separate: &Study) -> Finding {
    let free = |study: &Study| shares(study.bursts[GOLD].in_bursts)[FREE];
    let (shared, separate) = (free(shared), free(separate));
    let figures = [shared, separate].map(|share| (share + 5) / 10);
    Finding {
        method: "compared",
        claim: "While gold bursts, the lowest class keeps more of a bucket of its own.",
        is_seen: separate > shared + SETTINGS.classes.alike,
        figures: format!("{} % shared, {} % separate", figures[0], figures[1]),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{parameters::tests::parameters, separate, shared},
        *,
    };

    fn seen(arguments: &[&str]) -> Vec<(&'static str, &'static str, bool)> {
        let parameters = parameters(arguments);
        let study = |way| Study::new(way, &parameters).expect("a sound limit");
        let all = findings(&parameters, &study(shared(&parameters)), &study(separate(&parameters)));
        all.iter().map(|finding| (finding.method, finding.claim, finding.is_seen)).collect()
    }

    fn not_seen(arguments: &[&str]) -> Vec<&'static str> {
        seen(arguments).into_iter().filter(|(.., is_seen)| !is_seen).map(|(_, claim, _)| claim).collect()
    }

    #[test]
    fn by_default_every_finding_is_seen_except_equal_bursts() {
        assert_eq!(not_seen(&[]), ["Whatever its class, as much of a burst passes."]);
        assert_eq!(seen(&[]).len(), 9);
    }

    #[test]
    fn with_equal_buckets_the_finding_of_equal_bursts_is_seen() {
        let alike = ["--sizes", "600,600,600", "--refill", "333,333,333"];
        assert_eq!(not_seen(&alike), [""; 0]);
    }

    #[test]
    fn at_low_load_no_class_is_squeezed() {
        let missing = not_seen(&["--asked", "300"]);
        assert!(missing.contains(&"Classes below the one that bursts are admitted less."), "{missing:?}");
        assert!(!missing.contains(&"No class loses by the burst of another."), "{missing:?}");
    }
}
