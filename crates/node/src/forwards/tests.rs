//! What a node remembers of forwards: whom it asked, what came, and which cells have nothing.

use super::{filter::mixed, *};

use crate::settings::SETTINGS;

const MATE: MemberId = MemberId(2);
const KEY: CellKey = CellKey { slot: 1, tag: CellTag(7) };
const WHOLE: Whole = Whole { units: 20, rate: None };

/// A forward that was sent now, and may be charged until `until_ns`.
fn asked_at(now: Now, until_ns: u64) -> AwaitedForward {
    let (at_ns, units, source, is_sent) = (now.steady_ns, 1, Some(Source::Owner(MATE)), true);
    AwaitedForward { key: KEY, to: MATE, source, whole: WHOLE, units, at_ns, until_ns, is_sent }
}

/// One unit, for a request that waits.
fn lack(whole: Whole, since_ns: u64) -> Lack {
    Lack { key: KEY, whole, units: 1, since_ns }
}

/// Forwards to a mate, sent now, with numbers from 1.
fn sent(now: Now, count: u64) -> Forwards {
    let forwards = Forwards::default();
    for number in 1..=count {
        let until_ns = now.steady_ns + FORWARD_WAIT_NS;
        let asked = asked_at(now, until_ns);
        lock(&forwards.state).note_asked(number, asked);
    }
    forwards
}

#[test]
fn a_forward_reply_counts_once_and_only_from_the_node_that_was_asked() {
    let now = Now::at(1_000);
    let forwards = sent(now, 1);
    assert!(!forwards.came(MemberId(3), 1, Some(1), now), "it was not asked");
    assert!(!forwards.came(MATE, 1, Some(2), now), "so many were not asked for");
    assert!(!forwards.came(MATE, 2, Some(1), now), "nor was this");
    assert!(forwards.take(&lack(WHOLE, 0), now).is_none());
    assert!(forwards.came(MATE, 1, Some(1), now));
    assert!(!forwards.came(MATE, 1, Some(1), now), "once");
    assert!(forwards.take(&lack(Whole { units: 21, ..WHOLE }, 0), now).is_none(), "another variant");
    assert!(forwards.take(&lack(WHOLE, 1_001), now).is_none(), "it came later");
    assert!(forwards.take(&lack(WHOLE, 1_000), now.later(FORWARD_NS)).is_none(), "too late");
    assert!(forwards.take(&lack(WHOLE, 1_000), now).is_some());
    assert!(forwards.take(&lack(WHOLE, 1_000), now).is_none(), "once");
}

#[test]
fn a_forward_whose_time_is_over_is_not_sent() {
    let now = Now::at(1_000);
    let forwards = sent(now, 2);
    let at_ns = now.steady_ns + FORWARD_WAIT_NS;
    assert_eq!(forwards.send(1, at_ns - 1_000_000), Some(1_000), "what is left of its time");
    assert_eq!(forwards.send(2, at_ns), None);
    assert_eq!(forwards.send(3, now.steady_ns), None, "nobody asks for that");
    assert_eq!(forwards.counts().asked, 1);
    assert!(lock(&forwards.state).asked.keys().eq([&1]));
}

#[test]
fn forwards_that_fail_together_count_as_one_failure() {
    let now = Now::at(1_000);
    let forwards = sent(now, 8);
    (1..=8).for_each(|number| assert!(forwards.came(MATE, number, Some(0), now)));
    assert_eq!(forwards.expects_since(KEY, now.later(SETTINGS.forward.empty_ns - 1)), None);
    assert_eq!(
        forwards.expects_since(KEY, now.later(SETTINGS.forward.empty_ns)),
        Some(now.steady_ns),
        "since it had nothing"
    );
    let long = now.later(SETTINGS.forward.empty_ns + SETTINGS.forward.unasked_ns);
    assert_eq!(forwards.expects_since(KEY, long), Some(long.steady_ns), "nobody knows");
}

#[test]
fn a_mate_whose_forwarded_charges_come_too_late_counts_as_far() {
    let now = Now::at(1_000);
    let (forwards, max) =
        (sent(now, u64::from(SETTINGS.forward.silent_max)), u64::from(SETTINGS.forward.silent_max));
    assert!(forwards.mates.is_far(MATE), "it is not known yet");
    forwards.mates.note_near(MATE, now);
    (1..=max).for_each(|number| assert!(forwards.came(MATE, number, Some(1), now.later(8_000_000))));
    assert!(!forwards.mates.is_far(MATE));
    let end = now.later(FORWARD_NS);
    forwards.expire(end);
    assert!(forwards.expects_since(KEY, end).is_none() && forwards.mates.is_far(MATE));
    assert_eq!(forwards.counts(), ForwardCounts { wasted: max, ..ForwardCounts::default() });
    // After the back-off, an answer in time makes the node near. Then one useless forward makes it far again,
    // and one remote charge that is used restores it.
    let asked = |number, now: Now, (answered, after_ns)| {
        let until_ns = now.steady_ns + FORWARD_WAIT_NS - SETTINGS.forward.back_ns;
        let asked = asked_at(now, until_ns);
        lock(&forwards.state).note_asked(number, asked);
        assert!(forwards.came(MATE, number, Some(answered), now.later(after_ns)));
    };
    let again = end.later(SETTINGS.forward.far_ns);
    asked(max + 1, end, (0, 0));
    asked(max + 2, again, (0, FORWARD_WAIT_NS));
    assert!(forwards.mates.is_far(MATE));
    asked(max + 3, again, (0, FORWARD_WAIT_NS - 1));
    assert!(!forwards.mates.is_far(MATE));
    asked(max + 4, again, (1, 0));
    forwards.expire(again.later(FORWARD_NS));
    assert!(!forwards.mates.is_far(MATE), "whoever waited hung up");
    asked(max + 5, again, (1, FORWARD_WAIT_NS));
    let end = again.later(FORWARD_NS);
    forwards.expire(end);
    assert!(forwards.mates.is_far(MATE));
    asked(max + 6, end.later(SETTINGS.forward.far_ns), (0, 0));
    assert!(forwards.mates.is_far(MATE), "for longer");
    let again = end.later(SETTINGS.forward.far_ns * 2);
    asked(max + 7, again, (0, 0));
    asked(max + 8, again, (1, 0));
    forwards.pass(forwards.take(&lack(WHOLE, 0), again).expect("it came"));
    asked(max + 9, again, (1, FORWARD_WAIT_NS));
    forwards.expire(again.later(FORWARD_NS));
    assert!(!forwards.mates.is_far(MATE));
}

#[test]
fn forwards_of_a_cell_pause_while_its_owner_has_nothing() {
    let now = Now::at(1_000);
    let forwards = sent(now, 1);
    assert!(forwards.came(MATE, 1, None, now));
    assert!(
        forwards.is_alone(KEY, now.later(SETTINGS.forward.alone_ns - 1))
            && !forwards.is_alone(KEY, now.later(SETTINGS.forward.alone_ns))
    );
    forwards.expire(now.later(SETTINGS.forward.alone_ns));
    let forwards = sent(now, 0);
    let mut times = Vec::new();
    for number in 1..=200 {
        let at = now.later(number * 40_000_000);
        forwards.expire(at);
        if !forwards.is_alone(KEY, at) {
            lock(&forwards.state).shortages.owner_had_none(KEY, at, &forwards.alone_marks);
            forwards.expire(at);
            times.extend(forwards.is_alone(KEY, at).then_some(at.steady_ns - now.steady_ns));
        }
    }
    let [first, second, ..] = times[..] else { panic!("{times:?}") };
    assert!(
        (SETTINGS.forward.missed_ns..SETTINGS.forward.missed_ns + 100_000_000).contains(&first),
        "{first}"
    );
    let again = first + SETTINGS.forward.alone_ns + SETTINGS.forward.again_ns;
    assert!((again..again + 100_000_000).contains(&second), "{second}, after {first}");
}

#[test]
fn few_cells_without_paused_forwards_need_a_lookup() {
    let now = Now::at(1_000);
    let forwards = sent(now, 0);
    let key = |number: u64| CellKey { slot: 1, tag: CellTag(u128::from(mixed(number)) << 64) };
    for number in 0..SETTINGS.forward.cells_max as u64 {
        lock(&forwards.state).shortages.leave_alone(key(number), now, &forwards.alone_marks);
    }
    assert!((0..SETTINGS.forward.cells_max as u64).all(|number| forwards.is_alone(key(number), now)));
    let others = (100_000..110_000).filter(|number| forwards.alone_marks.may_have(key(*number))).count();
    assert!(others < 1_500, "{others}");
    forwards.expire(now.later(SETTINGS.forward.alone_ns));
    assert!(forwards.alone_marks.is_empty());
}

#[test]
fn a_mate_with_too_few_units_is_not_asked_for_as_many_again_soon() {
    let now = Now::at(1_000);
    let forwards = sent(now, 0);
    forwards.mates.see(MemberId(1), &[MemberId(1), MATE, MemberId(3)], 3);
    [MATE, MemberId(3)].into_iter().for_each(|region| forwards.mates.note_near(region, now));
    forwards.mates.see(MemberId(1), &[MemberId(1), MATE, MemberId(3)], 3);
    let first = forwards.next_mate(KEY, 3, now).expect("one of two");
    let note = |units, node, now| forwards.note_tried(&mut lock(&forwards.state), KEY, units, node, now);
    note(3, first, now);
    assert_eq!(forwards.next_mate(KEY, 2, now), Some(first), "it may have two");
    let second = forwards.next_mate(KEY, 3, now).filter(|node| *node != first).expect("the other one");
    note(1, first, now);
    note(3, second, now);
    assert_eq!(forwards.next_mate(KEY, 1, now), Some(second));
    assert_eq!(forwards.next_mate(KEY, 3, now), None);
    note(1, second, now);
    assert_eq!(forwards.next_mate(KEY, 1, now), None);
    forwards.expire(now.later(SETTINGS.forward.tried_ns));
    assert_eq!(forwards.next_mate(KEY, 3, now.later(SETTINGS.forward.tried_ns)), Some(first), "again");
    // If there is no room to remember the node, nobody is asked.
    for number in 0..SETTINGS.forward.cells_max as u64 {
        let key = CellKey { slot: 2, tag: CellTag(u128::from(mixed(number)) << 64) };
        lock(&forwards.state).shortages.note_tried(key, 1, first, now.later(SETTINGS.forward.tried_ns));
    }
    note(1, first, now.later(SETTINGS.forward.tried_ns));
    assert_eq!(forwards.next_mate(KEY, 1, now.later(SETTINGS.forward.tried_ns)), None);
}

#[test]
fn forwards_under_way_for_a_cell_are_bounded() {
    let now = Now::at(1_000);
    let forwards = sent(now, SETTINGS.forward.asked_of_cell_max as u64);
    assert!(!lock(&forwards.state).may_ask(Source::Owner(MATE), KEY, now));
    assert!(forwards.expects_since(KEY, now).is_some(), "whoever comes waits for room");
    assert!(forwards.came(MATE, 3, Some(1), now));
    assert!(lock(&forwards.state).may_ask(Source::Owner(MATE), KEY, now));
    // Forwards that are not answered are given up.
    forwards.expire(now.later(FORWARD_NS));
    let state = lock(&forwards.state);
    assert!(state.asked.is_empty() && state.asked_of.is_empty() && state.remote_charges.is_empty());
}
