//! The picture of the demonstration.

use std::time::Duration;

use super::{
    in_force::Numbers,
    keys::{HELP, NOTES},
    ledger::{BIN, BINS_IN_COLUMN, Bin, KINDS, Ledger},
    plan::{AUTHORITY, DOMAIN, LIMITS, NAMES, PAIRS, REGIONS, STREAMED, TOKENS},
    state::{State, numbers},
};
use crate::view::picture::{Budget, Column, Condition, Link, Picture, Region, Row, Verdict};

/// The current picture.
pub fn picture(state: &State, ledger: &Ledger, elapsed: Duration) -> Picture {
    let second = ledger.last_second();
    Picture {
        title: "acequia demo".to_owned(),
        subtitle: "three regions, real servers, one budget".to_owned(),
        elapsed,
        is_paused: state.is_paused,
        budget: budget(state),
        regions: (0..REGIONS).map(|place| region(state, &second, place)).collect(),
        links: (0..PAIRS.len()).map(|place| link(state, place)).collect(),
        history: ledger.columns().map(|bin| column(&bin)).collect(),
        column: BIN * BINS_IN_COLUMN as u32,
        limits: (0..KINDS).map(|kind| row(state, &second, kind)).chain([streams(state)]).collect(),
        chosen_limit: None,
        cells: None,
        events: state.story.events().cloned().collect(),
        verdict: Verdict::Counted {
            units_over: ledger.units_over().iter().sum(),
            watched: elapsed,
            used: ledger.uses()[0].part(),
        },
        keys: HELP.iter().map(|key| (key.keys, key.word)).collect(),
        help: help(state),
    }
}

/// The help: keys and rows.
pub fn help(state: &State) -> Vec<(&'static str, &'static str)> {
    let keys = HELP.iter().map(|key| (key.keys, key.does));
    if state.is_help_shown { keys.chain(NOTES).collect() } else { Vec::new() }
}

fn budget(state: &State) -> Budget {
    let Numbers { rate, units } = state.in_force.highest()[0];
    let name = format!("{DOMAIN}/{}", LIMITS[0]);
    Budget { name, words: words(state, 0), units: rate, unit: "/s", burst: Some(units) }
}

/// A limit in the config's words.
fn words(state: &State, kind: usize) -> String {
    let numbers = numbers(kind, state.in_force.newest()[kind]);
    match kind {
        0 | 1 => format!("token_bucket {numbers}"),
        _ => format!("fixed_window {numbers}"),
    }
}

fn region(state: &State, second: &Bin, place: usize) -> Region {
    let node = &state.nodes[place];
    let condition = match (&node.status, state.is_alive[place]) {
        (_, false) => Condition::Down,
        (Some(status), true) if node.fault.is_empty() && !status.ready => {
            Condition::Waiting(status.not_ready.clone())
        }
        (Some(_), true) if node.fault.is_empty() => Condition::Up,
        (_, true) => Condition::Waiting("it starts".to_owned()),
    };
    Region {
        name: NAMES[place].to_owned(),
        condition,
        is_hot: place == state.hot,
        is_authority: place == AUTHORITY,
        is_chosen: place == state.chosen_region,
        share: state.share(place),
        admitted: second.admitted_per_second(0, place),
        denied: second.denied_per_second(0, place),
        demand: Some(state.demands()[place]),
    }
}

fn link(state: &State, place: usize) -> Link {
    let (from, to) = PAIRS[place];
    Link {
        from,
        to,
        flow: state.flow(place),
        round_trip: Some(state.links.round_trip()),
        is_chosen: place == state.chosen_link,
    }
}

fn column(bin: &Bin) -> Column {
    Column {
        admitted: (0..REGIONS).map(|place| bin.admitted_per_second(0, place)).collect(),
        budget: bin.budget,
        mark: bin.mark,
    }
}

fn row(state: &State, second: &Bin, kind: usize) -> Row {
    Row {
        name: format!("{DOMAIN}/{}", LIMITS[kind]),
        budget: words(state, kind),
        admitted: (0..REGIONS).map(|place| second.admitted_per_second(kind, place)).sum(),
        denied: (0..REGIONS).map(|place| second.denied_per_second(kind, place)).sum(),
        ..Row::default()
    }
}

/// The limit of streams. What they cost is admitted, whatever was left.
fn streams(state: &State) -> Row {
    let owed = match state.streams.owed {
        0 => String::new(),
        owed => format!(", owes {owed}"),
    };
    Row {
        name: format!("{DOMAIN}/{STREAMED}"),
        budget: format!("token_bucket {TOKENS}/s burst {TOKENS}{owed}"),
        unit: "tokens".to_owned(),
        admitted: state.streams_last.spent,
        denied: state.streams_last.denied,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{in_force::AT_START, state::tests::status},
        *,
    };
    use crate::view::picture::{Flow, Share};

    #[test]
    fn the_picture_shows_the_nodes_and_the_ledger() {
        let mut state = State::default();
        state.hear(Duration::ZERO, 0, Some(status(0, [333, 0, 367])), String::new());
        state.hear(Duration::ZERO, 1, Some(status(1, [333, 183, 0])), String::new());
        state.streams.owed = 12;
        (state.streams_last.spent, state.streams_last.denied) = (250, 4);
        let mut ledger = Ledger::new(AT_START);
        ledger.mark("cut");
        for _ in 0..10 {
            ledger.close(BIN, 1_000, false);
        }
        let picture = picture(&state, &ledger, Duration::from_secs(3));
        let [eu, us, ap] = &picture.regions[..] else { panic!("three regions") };
        assert_eq!(eu.share, Share { standing: 333, lent: 0, borrowed: 367 });
        assert_eq!(us.share.effective(), 150);
        assert!(eu.is_hot && eu.is_authority && !us.is_hot);
        assert_eq!(eu.demand, Some(1_200));
        assert_eq!(ap.condition, Condition::Waiting("it starts".to_owned()));
        assert_eq!(picture.history.len(), 2);
        assert_eq!((picture.history[0].mark, picture.history[1].mark), ("cut", ""));
        assert_eq!(picture.limits[2].budget, "fixed_window 600 per 1m");
        assert_eq!(picture.limits[3].budget, "token_bucket 300/s burst 300, owes 12");
        assert_eq!((picture.limits[3].admitted, picture.limits[3].denied), (250, 4));
        assert_eq!(picture.links[0].round_trip, Some(Duration::from_millis(80)));
    }

    #[test]
    fn a_killed_node_is_shown_as_down_and_a_cut_off_one_is_not() {
        let mut state = State::default();
        for place in 0..REGIONS {
            state.hear(Duration::ZERO, place, Some(status(place, [333, 0, 0])), String::new());
        }
        state.killed(Duration::ZERO, 2);
        state.split(Duration::ZERO);
        let picture = picture(&state, &Ledger::new(AT_START), Duration::ZERO);
        let conditions: Vec<_> = picture.regions.iter().map(|region| region.condition.clone()).collect();
        assert_eq!(conditions, [Condition::Up, Condition::Up, Condition::Down]);
        let flows: Vec<_> = picture.links.iter().map(|link| link.flow).collect();
        assert_eq!(flows, [Flow::Cut, Flow::Open, Flow::Cut]);
    }
}
