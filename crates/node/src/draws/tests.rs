//! What a node remembers of draws: whom it asked, what came of it, and who is done without.

use super::{marks::mixed, *};

const MATE: Region = Region(2);
const KEY: CellKey = (1, CellTag(7));
const WHOLE: Whole = Whole { units: 20, rate: None };

/// One that was sent at a time, and may be charged until another.
fn asked_at(now: Now, until_ns: u64) -> Asked {
    let (at_ns, units, is_mate, is_sent) = (now.steady_ns, 1, false, true);
    Asked { key: KEY, to: MATE, is_mate, whole: WHOLE, units, at_ns, until_ns, is_sent }
}

/// Draws of a mate at a time, by numbers from 1.
fn drawn(now: Now, count: u64) -> Draws {
    let draws = Draws::default();
    for number in 1..=count {
        let until_ns = now.steady_ns + DRAW_WAIT_NS;
        let asked = asked_at(now, until_ns);
        lock(&draws.state).note_asked(number, asked);
    }
    draws
}

#[test]
fn what_another_node_says_of_a_draw_changes_nothing() {
    let now = Now::at(1_000);
    let draws = drawn(now, 1);
    assert!(!draws.came(Region(3), 1, Some(1), now), "it was not asked");
    assert!(!draws.came(MATE, 1, Some(2), now), "so many were not asked for");
    assert!(!draws.came(MATE, 2, Some(1), now), "nor was this");
    assert!(draws.take(KEY, (WHOLE, 1), 0, now).is_none());
    assert!(draws.came(MATE, 1, Some(1), now));
    assert!(!draws.came(MATE, 1, Some(1), now), "once");
    assert!(draws.take(KEY, (Whole { units: 21, ..WHOLE }, 1), 0, now).is_none(), "other numbers");
    assert!(draws.take(KEY, (WHOLE, 1), 1_001, now).is_none(), "it came later");
    assert!(draws.take(KEY, (WHOLE, 1), 1_000, now.later(DRAW_NS)).is_none(), "too late");
    assert!(draws.take(KEY, (WHOLE, 1), 1_000, now).is_some());
    assert!(draws.take(KEY, (WHOLE, 1), 1_000, now).is_none(), "once");
}

#[test]
fn what_is_over_before_it_is_sent_is_not_drawn() {
    let now = Now::at(1_000);
    let draws = drawn(now, 2);
    let at_ns = now.steady_ns + DRAW_WAIT_NS;
    assert_eq!(draws.send(1, at_ns - 1_000_000), Some(1_000), "what is left of its time");
    assert_eq!(draws.send(2, at_ns), None);
    assert_eq!(draws.send(3, now.steady_ns), None, "nobody asks for that");
    assert_eq!(draws.counts().asked, 1);
    assert!(lock(&draws.state).asked.keys().eq([&1]));
}

#[test]
fn of_draws_that_miss_together_one_counts() {
    let now = Now::at(1_000);
    let draws = drawn(now, 8);
    (1..=8).for_each(|number| assert!(draws.came(MATE, number, Some(0), now)));
    assert_eq!(draws.hopes_since(KEY, now.later(VAIN_NS - 1)), None);
    assert_eq!(draws.hopes_since(KEY, now.later(VAIN_NS)), Some(now.steady_ns), "since it had nothing");
    let long = now.later(VAIN_NS + UNASKED_NS);
    assert_eq!(draws.hopes_since(KEY, long), Some(long.steady_ns), "nobody knows");
}

#[test]
fn a_node_whose_units_come_too_late_to_be_used_is_too_far_away() {
    let now = Now::at(1_000);
    let (draws, max) = (drawn(now, u64::from(SILENT_MAX)), u64::from(SILENT_MAX));
    assert!(draws.mates.is_far(MATE), "it is not known yet");
    draws.mates.note_near(MATE, now);
    (1..=max).for_each(|number| assert!(draws.came(MATE, number, Some(1), now.later(8_000_000))));
    assert!(!draws.mates.is_far(MATE));
    let end = now.later(DRAW_NS);
    draws.expire(end);
    assert!(draws.hopes_since(KEY, end).is_none() && draws.mates.is_far(MATE));
    assert_eq!(draws.counts(), DrawCounts { wasted: max, ..DrawCounts::default() });
    // An answer in time is enough to ask on, though not at once, one more of no use to stop, and one that is used for all to be well.
    let asked = |number, now: Now, (answered, after_ns)| {
        let until_ns = now.steady_ns + DRAW_WAIT_NS - BACK_NS;
        let asked = asked_at(now, until_ns);
        lock(&draws.state).note_asked(number, asked);
        assert!(draws.came(MATE, number, Some(answered), now.later(after_ns)));
    };
    let again = end.later(FAR_NS);
    asked(max + 1, end, (0, 0));
    asked(max + 2, again, (0, DRAW_WAIT_NS));
    assert!(draws.mates.is_far(MATE));
    asked(max + 3, again, (0, DRAW_WAIT_NS - 1));
    assert!(!draws.mates.is_far(MATE));
    asked(max + 4, again, (1, 0));
    draws.expire(again.later(DRAW_NS));
    assert!(!draws.mates.is_far(MATE), "whoever waited hung up");
    asked(max + 5, again, (1, DRAW_WAIT_NS));
    let end = again.later(DRAW_NS);
    draws.expire(end);
    assert!(draws.mates.is_far(MATE));
    asked(max + 6, end.later(FAR_NS), (0, 0));
    assert!(draws.mates.is_far(MATE), "for longer");
    let again = end.later(FAR_NS * 2);
    asked(max + 7, again, (0, 0));
    asked(max + 8, again, (1, 0));
    draws.pass(draws.take(KEY, (WHOLE, 1), 0, again).expect("it came"));
    asked(max + 9, again, (1, DRAW_WAIT_NS));
    draws.expire(again.later(DRAW_NS));
    assert!(!draws.mates.is_far(MATE));
}

#[test]
fn a_cell_whose_speaker_has_nothing_for_long_or_for_ever_is_left_to_each_for_a_while() {
    let now = Now::at(1_000);
    let draws = drawn(now, 1);
    assert!(draws.came(MATE, 1, None, now));
    assert!(draws.is_alone(KEY, now.later(ALONE_NS - 1)) && !draws.is_alone(KEY, now.later(ALONE_NS)));
    draws.expire(now.later(ALONE_NS));
    let draws = drawn(now, 0);
    let mut times = Vec::new();
    for number in 1..=200 {
        let at = now.later(number * 40_000_000);
        draws.expire(at);
        if !draws.is_alone(KEY, at) {
            lock(&draws.state).miss(KEY, at, &draws.alone_marks);
            draws.expire(at);
            times.extend(draws.is_alone(KEY, at).then_some(at.steady_ns - now.steady_ns));
        }
    }
    let [first, second, ..] = times[..] else { panic!("{times:?}") };
    assert!((MISSED_NS..MISSED_NS + 100_000_000).contains(&first), "{first}");
    let again = first + ALONE_NS + AGAIN_NS;
    assert!((again..again + 100_000_000).contains(&second), "{second}, after {first}");
}

#[test]
fn few_cells_are_looked_for_that_are_not_left_to_each() {
    let now = Now::at(1_000);
    let draws = drawn(now, 0);
    let key = |number: u64| (1, CellTag(u128::from(mixed(number)) << 64));
    for number in 0..VAIN_MAX as u64 {
        lock(&draws.state).leave_alone(key(number), now, &draws.alone_marks);
    }
    assert!((0..VAIN_MAX as u64).all(|number| draws.is_alone(key(number), now)));
    let others = (100_000..110_000).filter(|number| draws.alone_marks.may_have(key(*number))).count();
    assert!(others < 1_500, "{others}");
    draws.expire(now.later(ALONE_NS));
    assert!(draws.alone_marks.is_empty());
}

#[test]
fn who_has_too_little_is_not_asked_for_as_much_again_for_a_while() {
    let now = Now::at(1_000);
    let draws = drawn(now, 0);
    draws.mates.see(Region(1), &[Region(1), MATE, Region(3)], 3);
    [MATE, Region(3)].into_iter().for_each(|region| draws.mates.note_near(region, now));
    draws.mates.see(Region(1), &[Region(1), MATE, Region(3)], 3);
    let first = draws.next_mate(KEY, 3, now).expect("one of two");
    let note = |units, node, now| draws.note_tried(&mut lock(&draws.state), (KEY, units), node, now);
    note(3, first, now);
    assert_eq!(draws.next_mate(KEY, 2, now), Some(first), "it may have two");
    let second = draws.next_mate(KEY, 3, now).filter(|node| *node != first).expect("the other one");
    note(1, first, now);
    note(3, second, now);
    assert_eq!(draws.next_mate(KEY, 1, now), Some(second));
    assert_eq!(draws.next_mate(KEY, 3, now), None);
    note(1, second, now);
    assert_eq!(draws.next_mate(KEY, 1, now), None);
    draws.expire(now.later(TRIED_NS));
    assert_eq!(draws.next_mate(KEY, 3, now.later(TRIED_NS)), Some(first), "again");
    // Where there is no room to remember it, nobody is asked.
    for number in 0..VAIN_MAX as u64 {
        let key = (2, CellTag(u128::from(mixed(number)) << 64));
        lock(&draws.state).note_tried((key, 1), first, now.later(TRIED_NS));
    }
    note(1, first, now.later(TRIED_NS));
    assert_eq!(draws.next_mate(KEY, 1, now.later(TRIED_NS)), None);
}

#[test]
fn no_more_is_asked_for_than_there_is_room_for() {
    let now = Now::at(1_000);
    let draws = drawn(now, ASKED_OF_CELL_MAX as u64);
    assert!(!lock(&draws.state).may_ask(KEY, now));
    assert!(draws.hopes_since(KEY, now).is_some(), "whoever comes waits for room");
    assert!(draws.came(MATE, 3, Some(1), now));
    assert!(lock(&draws.state).may_ask(KEY, now));
    // Those that did not come are given up.
    draws.expire(now.later(DRAW_NS));
    let state = lock(&draws.state);
    assert!(state.asked.is_empty() && state.asked_of.is_empty() && state.credits.is_empty());
}
