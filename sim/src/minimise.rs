//! Makes a smaller schedule that fails in the same way as a larger one. Delta debugging (Zeller & Hildebrandt
//! 2002) removes faults, and then the remaining faults are shortened.
//!
//! A fault is removed together with its end. Otherwise the remaining schedule would fail for a reason of its
//! own: a region that is never started again does not answer.

use std::time::Duration;

use crate::schedule::{Fault, Schedule};

/// Times are shortened until they change by no more than this.
const LEAST: Duration = Duration::from_millis(20);

/// The kind of a finding: its words up to the first number.
pub fn kind_of(finding: &str) -> &str {
    finding.split(|letter: char| letter.is_ascii_digit()).next().unwrap_or_default().trim_end()
}

/// A smaller schedule for which `fails` still holds. At most `tries_max` schedules are tried.
pub fn minimise(schedule: &Schedule, tries_max: usize, mut fails: impl FnMut(&Schedule) -> bool) -> Schedule {
    let mut left = tries_max;
    let mut try_one = |groups: &[Group]| {
        left = left.saturating_sub(1);
        left > 0 && fails(&schedule_of(groups))
    };
    let mut groups = fewer(groups_of(schedule), &mut try_one);
    for at in 0..groups.len() {
        shorten(&mut groups, at, &mut try_one);
    }
    schedule_of(&groups)
}

/// A fault and its end.
type Group = Vec<(Duration, Fault)>;

fn groups_of(schedule: &Schedule) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (when, fault) in schedule.faults() {
        // Several faults may wait for the same end: the last one without an end gets it.
        let ended = groups
            .iter_mut()
            .rev()
            .find(|group| fault.ends(&group[0].1) && (fault.is_repeated() || group.len() == 1));
        match ended {
            Some(group) => group.push((*when, fault.clone())),
            None => groups.push(vec![(*when, fault.clone())]),
        }
    }
    groups
}

fn schedule_of(groups: &[Group]) -> Schedule {
    let mut schedule = Schedule::default();
    for (when, fault) in groups.iter().flatten() {
        schedule.at(*when, fault.clone());
    }
    schedule
}

/// Removes half of the groups, then quarters, down to single groups, until no group can be removed.
fn fewer(mut groups: Vec<Group>, fails: &mut impl FnMut(&[Group]) -> bool) -> Vec<Group> {
    let mut size = groups.len().div_ceil(2);
    while size > 0 {
        let (mut at, before) = (0, groups.len());
        while at < groups.len() {
            let until = (at + size).min(groups.len());
            let mut without = groups.clone();
            let out: Vec<Group> = without.drain(at..until).collect();
            // `Fault::Heal` stays: without it the world would never be well again.
            let heals = out.into_iter().filter(|group| group[0].1 == Fault::Heal);
            without.splice(at..at, heals);
            if without.len() < groups.len() && fails(&without) {
                groups = without;
            } else {
                at = until;
            }
        }
        if size > 1 || groups.len() == before {
            size /= 2;
        }
    }
    groups
}

/// Moves the end of a fault nearer to its beginning, by halves.
fn shorten(groups: &mut [Group], at: usize, fails: &mut impl FnMut(&[Group]) -> bool) {
    for end in 1..groups[at].len() {
        let (from, until) = (groups[at][0].0, groups[at][end].0);
        let (mut fails_at, mut passes_at) = (until.saturating_sub(from), Duration::ZERO);
        while fails_at > passes_at + LEAST {
            let middle = Duration::from_millis(((fails_at + passes_at) / 2).as_millis() as u64);
            groups[at][end].0 = from + middle;
            if fails(groups) {
                fails_at = middle;
            } else {
                passes_at = middle;
            }
        }
        groups[at][end].0 = from + fails_at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn minimising_keeps_the_faults_that_matter_and_their_ends() {
        let mut schedule = Schedule::default();
        for n in 0..12 {
            let (a, b) = (n % 3, (n + 1) % 3);
            let from = ms(1_000 * n as u64);
            schedule.during(from, from + ms(800), Fault::Cut(a, b), Fault::Mend(a, b));
        }
        schedule.during(ms(2_500), ms(4_500), Fault::Sleep(1), Fault::Wake(1));
        schedule.during(ms(3_500), ms(9_500), Fault::Stop(2), Fault::Start(2)).at(ms(20_000), Fault::Heal);
        let mut tries = 0;
        let fails = |schedule: &Schedule| {
            tries += 1;
            let at =
                |fault: Fault| schedule.faults().iter().find(|(_, one)| *one == fault).map(|(at, _)| *at);
            let down = at(Fault::Stop(2)).zip(at(Fault::Start(2)));
            at(Fault::Sleep(1)).is_some() && down.is_some_and(|(from, until)| until - from >= ms(1_000))
        };
        let small = minimise(&schedule, 500, fails);
        let left: Vec<Fault> = small.faults().iter().map(|(_, fault)| fault.clone()).collect();
        let heal = Fault::Heal;
        assert_eq!(left, [Fault::Sleep(1), Fault::Wake(1), Fault::Stop(2), Fault::Start(2), heal]);
        let lasts = small.faults()[3].0 - small.faults()[2].0;
        assert!((ms(1_000)..ms(1_000) + 2 * LEAST).contains(&lasts), "{lasts:?}");
        assert!(tries < 80, "{tries}");
    }

    #[test]
    fn the_kind_of_a_finding_is_what_its_numbers_do_not_say() {
        let kind = kind_of("never over: limit api: 7 units over 40/s, at 3.2s");
        assert_eq!(kind, "never over: limit api:");
        assert_eq!(kind_of("service resumes: us does not run"), "service resumes: us does not run");
    }
}
