//! The demonstration without a terminal: a line a second, events between lines, and a verdict.

use std::{fmt::Write as _, time::Duration};

use super::{
    ledger::Ledger,
    links,
    plan::{LIMITS, NAMES, REGIONS, STREAMED},
    state::{State, numbers},
    streams::Seen,
};
use crate::view::{
    picture::{Event, Flow},
    words::{percent, short},
};

/// The first lines.
pub fn heading(state: &State) -> String {
    let budget = numbers(0, state.in_force.newest()[0]);
    let mut text = format!(
        "\
Three regions on this machine share one budget: {budget}. In any time t, at most burst + rate * t is admitted.
Half as much again is asked for, most of it in one region (marked *).
share: what a region may spend a second; adm, den: what it admitted and denied; of: the rate; over: units too many.

   time"
    );
    for name in NAMES {
        // Writing to a string cannot fail.
        let _ = write!(text, "  | {name:<3}share   adm   den");
    }
    text.push_str("  |   all    of  over | links\n");
    text
}

/// The current state in one line.
pub fn line(state: &State, ledger: &Ledger, elapsed: Duration) -> String {
    let second = ledger.last_second();
    let mut line = format!("{:>5} s", elapsed.as_secs());
    for (place, name) in NAMES.iter().enumerate() {
        let hot = if place == state.hot { "*" } else { "" };
        let name = format!("{name}{hot}");
        if state.is_alive[place] {
            let share = state.share(place).effective();
            let (admitted, denied) =
                (second.admitted_per_second(0, place), second.denied_per_second(0, place));
            let _ = write!(line, "  | {name:<3}{share:>5} {admitted:>5} {denied:>5}");
        } else {
            let _ = write!(line, "  | {name:<3} killed          ");
        }
    }
    let all: u64 = (0..REGIONS).map(|place| second.admitted_per_second(0, place)).sum();
    let over: u64 = ledger.units_over().iter().sum();
    let rate = state.in_force.highest()[0].rate;
    let _ = writeln!(line, "  | {all:>5} {rate:>5} {over:>5} | {}", flows(state));
    line
}

/// What passes between the regions, as their nodes see it.
fn flows(state: &State) -> String {
    let not_open: Vec<String> = (0..links::COUNT)
        .filter_map(|link| match state.flow(link) {
            Flow::Open => None,
            Flow::Quiet => Some(format!("{} quiet", links::name(link))),
            Flow::Cut => Some(format!("{} cut", links::name(link))),
            Flow::Forth | Flow::Back => Some(format!("{} one way", links::name(link))),
        })
        .collect();
    match &not_open[..] {
        [] => format!("whole, {} round trips", short(state.links.round_trip())),
        some => some.join(", "),
    }
}

/// An event, printed between two lines.
pub fn event(event: &Event) -> String {
    format!("{:>7.1} s  -- {}\n", event.at.as_secs_f64(), event.words)
}

/// The result of the demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No limit was passed, and everything healed.
    Kept,
    /// More was admitted than a limit allows.
    Over,
    /// Something did not heal.
    NotHealed,
}

/// The result in words, and as an outcome. `must_heal` is the number of faults that must have healed.
pub fn verdict(state: &State, ledger: &Ledger, elapsed: Duration, must_heal: usize) -> (String, Outcome) {
    let over = ledger.units_over();
    let mut text = String::new();
    let kept = over.iter().all(|units| *units == 0);
    let [admitted, users, exports] = ledger.admitted();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}: {admitted} units admitted in {}, of {} that the budget allowed",
        if kept { "never over" } else { "OVER" },
        short(elapsed),
        ledger.allowed()
    );
    for (kind, admitted) in [admitted, users, exports].into_iter().enumerate() {
        let (name, over) = (LIMITS[kind], over[kind]);
        let numbers = numbers(kind, state.in_force.newest()[kind]);
        let _ = writeln!(
            text,
            "  {name:<9} {admitted:>8} admitted, {over} too many in the worst interval; now {numbers}"
        );
    }
    let Seen { begun, denied, spent, owed } = state.streams;
    if begun > 0 {
        let _ = writeln!(
            text,
            "  {STREAMED:<9} {spent:>8} reported of {begun} streams, {denied} denied while tokens were owed; {owed} owed now"
        );
    }
    let [calm, broken] = ledger.uses();
    for (phase, used) in [("while all was well", calm), ("while something was broken or healing", broken)] {
        if let Some(part) = used.part() {
            let seconds = used.length.as_secs_f64();
            let _ = writeln!(text, "used {} of what could be used {phase} ({seconds:.0} s)", percent(part));
        }
    }
    let healings = state.story.healings();
    for healing in healings {
        let _ = match healing.took {
            Some(took) => writeln!(text, "healed: 95 % used again {} after {}", short(took), healing.cause),
            None => writeln!(text, "NOT HEALED: not 95 % used again since {}", healing.cause),
        };
    }
    let healed = healings.iter().filter(|healing| healing.took.is_some()).count();
    let outcome = match (kept, healed >= must_heal) {
        (false, _) => Outcome::Over,
        (true, false) => Outcome::NotHealed,
        (true, true) => Outcome::Kept,
    };
    (text, outcome)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            in_force::AT_START,
            ledger::{Answer, Instants, Subject},
            state::tests::status,
        },
        *,
    };

    fn state() -> State {
        let mut state = State::default();
        for (place, share) in [[333, 0, 367], [333, 183, 0], [333, 184, 0]].into_iter().enumerate() {
            state.hear(Duration::ZERO, place, Some(status(place, share)), String::new());
        }
        state
    }

    fn ledger(admitted: u64) -> Ledger {
        let mut ledger = Ledger::new(AT_START);
        let instant = Instants { steady_ns: 1_000_000, wall_ns: 0 };
        for (region, admitted) in [admitted, 149, 148].into_iter().enumerate() {
            let subject = Subject::Budget;
            let denied = 500;
            ledger.answer(Answer { region, subject, asked: instant, answered: instant, admitted, denied });
        }
        ledger.judge(u64::MAX);
        ledger.close(Duration::from_secs(1), 1_000, false);
        ledger
    }

    #[test]
    fn lines_are_aligned_with_their_heading() {
        let mut state = state();
        let whole = line(&state, &ledger(701), Duration::from_secs(7));
        state.killed(Duration::ZERO, 2);
        state.split(Duration::ZERO);
        let broken = line(&state, &ledger(701), Duration::from_secs(12));
        let text = format!("{}{whole}{broken}", heading(&state));
        let expected = "
   time  | eu share   adm   den  | us share   adm   den  | ap share   adm   den  |   all    of  over | links
    7 s  | eu*  700   701   500  | us   150   149   500  | ap   149   148   500  |   998  1000     0 | whole, 80 ms round trips
   12 s  | eu*  700   701   500  | us   150   149   500  | ap  killed            |   998  1000     0 | eu-us cut, eu-ap cut
";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn the_demo_succeeds_only_if_never_over_and_healed() {
        let elapsed = Duration::from_secs(40);
        let (text, outcome) = verdict(&state(), &ledger(701), elapsed, 0);
        assert_eq!(outcome, Outcome::Kept);
        assert!(
            text.starts_with("never over: 998 units admitted in 40.0 s, of 1001 that the budget allowed"),
            "{text}"
        );
        assert!(text.contains("used 99.8 % of what could be used while all was well"), "{text}");

        let (text, outcome) = verdict(&state(), &ledger(705), elapsed, 0);
        assert_eq!(outcome, Outcome::Over);
        assert!(text.contains("2 too many"), "{text}");

        let mut state = state();
        state.story.heal(Duration::ZERO, "the links were mended");
        let (text, outcome) = verdict(&state, &ledger(701), elapsed, 1);
        assert_eq!(outcome, Outcome::NotHealed);
        assert!(text.contains("NOT HEALED"), "{text}");
    }
}
