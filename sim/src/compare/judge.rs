//! The figures of one policy in one case. They are computed from questions and answers only, in the same way
//! for every policy.

use super::{
    meter::{Meter, have_room, take_all},
    model::{Asked, Case, Decision, Played, Verdict},
};
use crate::{bound::Bound, schedule::Fault};

const SECOND_NS: u64 = 1_000_000_000;

/// The figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The largest excess over the limit, in percent of what the limit allows in that interval or window of
    /// that cell. An admission counts only in intervals that include both its question and its answer. So the
    /// excess is real, whenever the admission happened in between.
    pub over_percent: f64,
    /// Units admitted above the limit, in the cell and interval with the largest excess.
    pub over_units: u64,
    /// Units admitted, in percent of those that an oracle admits. The oracle is asked the questions of all
    /// regions that run, in their order, and knows at once of every unit. Above 100 if more than the limit
    /// was admitted.
    pub used_percent: f64,
    /// Questions that were denied although the limits had room for them, in percent of all. A limit's room is
    /// what is left after all units that this policy allowed for earlier questions, in any region.
    pub false_denials_percent: f64,
    /// Questions that were not answered, in percent of all.
    pub silent_percent: f64,
    /// Milliseconds from question to answer, for the questions that were answered: the median, and the 99th
    /// percentile.
    pub wait_ms: (f64, f64),
    /// Bytes that regions sent each other, for each answer.
    pub bytes: f64,
}

/// Computes the figures of a policy in a case.
pub fn judge(case: &Case, played: &Played) -> Figures {
    let questions = case.asked.len().max(1) as f64;
    let count = |verdict| played.decisions.iter().filter(|decision| decision.verdict == verdict).count();
    let answered = (case.asked.len() - count(Verdict::Silent)).max(1) as f64;
    let (over_percent, over_units) = over(case, played);
    let units = |asked: &Asked| asked.hits.iter().map(|(_, units)| units).sum::<u64>();
    let allowed = case.asked.iter().zip(&played.decisions).filter(|(_, d)| d.verdict == Verdict::Allowed);
    let admitted: u64 = allowed.map(|(asked, _)| units(asked)).sum();
    let waited = case.asked.iter().zip(&played.decisions).filter(|(_, d)| d.verdict != Verdict::Silent);
    let mut waits: Vec<u64> = waited.map(|(asked, decision)| decision.at_ns - asked.at_ns).collect();
    waits.sort_unstable();
    let wait_ms = |percent: usize| {
        let at = (waits.len() * percent).div_ceil(100).saturating_sub(1);
        waits.get(at).map_or(0.0, |ns| *ns as f64 / 1e6)
    };
    Figures {
        over_percent,
        over_units,
        used_percent: admitted as f64 * 100.0 / oracle(case).max(1) as f64,
        false_denials_percent: false_denials(case, &played.decisions) as f64 * 100.0 / questions,
        silent_percent: count(Verdict::Silent) as f64 * 100.0 / questions,
        wait_ms: (wait_ms(50), wait_ms(99)),
        bytes: played.bytes as f64 / answered,
    }
}

/// Units that an oracle admits, which knows everything at once.
fn oracle(case: &Case) -> u64 {
    let mut meters: Vec<_> = case.cells.iter().map(|bound| Meter::new(*bound)).collect();
    let mut admitted = 0;
    for asked in case.asked.iter().filter(|asked| !case.is_down(asked.place, asked.at_ns)) {
        if have_room(&mut meters, &asked.hits, asked.at_ns) {
            admitted += asked.hits.iter().map(|(_, units)| units).sum::<u64>();
            take_all(&mut meters, &asked.hits, asked.at_ns);
        }
    }
    admitted
}

fn false_denials(case: &Case, decisions: &[Decision]) -> usize {
    let mut meters: Vec<_> = case.cells.iter().map(|bound| Meter::new(*bound)).collect();
    let mut denials = 0;
    for (asked, decision) in case.asked.iter().zip(decisions) {
        match decision.verdict {
            Verdict::Allowed => take_all(&mut meters, &asked.hits, asked.at_ns),
            Verdict::Denied => denials += usize::from(have_room(&mut meters, &asked.hits, asked.at_ns)),
            Verdict::Silent => {}
        }
    }
    denials
}

/// Units that were admitted between a question and its answer.
#[derive(Clone, Copy, Debug)]
struct Admission {
    asked_ns: u64,
    answered_ns: u64,
    units: u64,
}

fn over(case: &Case, played: &Played) -> (f64, u64) {
    let mut admissions: Vec<Vec<Admission>> = vec![Vec::new(); case.cells.len()];
    for (asked, decision) in case.asked.iter().zip(&played.decisions) {
        for (cell, units) in asked.hits.iter().filter(|_| decision.verdict == Verdict::Allowed) {
            let (asked_ns, answered_ns, units) = (asked.at_ns, decision.at_ns, *units);
            admissions[*cell].push(Admission { asked_ns, answered_ns, units });
        }
    }
    let drift = |fault: &Fault| if let Fault::Drift(_, ppm) = fault { ppm.unsigned_abs() } else { 0 };
    let drift_ppm = case.faults.iter().map(|(_, fault)| drift(fault)).max().unwrap_or(0);
    let mut most = (0.0, 0);
    for (bound, admissions) in case.cells.iter().zip(&mut admissions) {
        let (percent, units) = match *bound {
            Bound::Bucket { rate, burst } => over_bucket(rate, burst, drift_ppm, admissions),
            Bound::Window { limit, .. } => over_window(*bound, limit, case.clock_error_ns, admissions),
        };
        most = (percent.max(most.0), units.max(most.1));
    }
    most
}

/// The largest excess over every interval from a question to an answer.
fn over_bucket(rate: u64, burst: u64, drift_ppm: u64, admissions: &mut [Admission]) -> (f64, u64) {
    admissions.sort_unstable_by_key(|admission| admission.answered_ns);
    let mut begins: Vec<u64> = admissions.iter().map(|admission| admission.asked_ns).collect();
    begins.sort_unstable();
    begins.dedup();
    let rate = rate as f64 * (1.0 + drift_ppm as f64 / 1e6) / SECOND_NS as f64;
    let mut most = (0.0_f64, 0);
    for begin_ns in begins {
        let mut sum = 0;
        for admission in admissions.iter().filter(|admission| admission.answered_ns > begin_ns) {
            sum += if admission.asked_ns >= begin_ns { admission.units } else { 0 };
            let allows = burst as f64 + rate * (admission.answered_ns - begin_ns) as f64;
            if sum as f64 > allows {
                let units = (sum as f64 - allows).floor() as u64;
                most = (most.0.max((sum as f64 / allows - 1.0) * 100.0), most.1.max(units));
            }
        }
    }
    // Less than one unit comes from rounding the intervals.
    if most.1 == 0 { (0.0, 0) } else { most }
}

/// The largest excess in any window.
fn over_window(bound: Bound, limit: u64, clock_error_ns: u64, admissions: &[Admission]) -> (f64, u64) {
    let mut sums = std::collections::BTreeMap::<u64, u64>::new();
    for Admission { asked_ns, answered_ns, units } in admissions {
        let first = bound.window_at(asked_ns.saturating_sub(clock_error_ns));
        if first == bound.window_at(answered_ns + clock_error_ns) {
            *sums.entry(first).or_default() += units;
        }
    }
    let over = sums.values().max().map_or(0, |most| most.saturating_sub(limit));
    (over as f64 * 100.0 / limit.max(1) as f64, over)
}
