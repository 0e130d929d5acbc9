//! Requests under way: slots are taken, renewed and released, and lapse.

mod histories;
mod regions;
mod restarts;

use std::sync::Arc;

use acequia_limits::{Charge, Mode, Now, Reason, Request, limit::LimitSpec};
use acequia_node::{Ask, Asker, ChargeId, IdReused, Node, Recording, Remember, Renewed, Reserve, Settled};

use crate::scene::{self, MINUTE, S, START, concurrent, node};

/// Remembers an answer only if it takes slots.
fn if_held(id: u128) -> Recording {
    let remember = Remember::IfHeld;
    Recording { id: ChargeId(id), fingerprint: 7, is_repeatable: false, reserve: None, owner: 0, remember }
}

fn always(id: u128) -> Recording {
    Recording { remember: Remember::Always, is_repeatable: true, ..if_held(id) }
}

/// Takes slots. Returns the time after which they lapse; `None` if the request is denied.
fn acquire(asker: &mut Asker, id: u128, cost: u64, now: Now) -> Option<u64> {
    acquire_as(asker, &if_held(id), cost, now)
}

fn acquire_as(asker: &mut Asker, recording: &Recording, cost: u64, now: Now) -> Option<u64> {
    let request = Request { cost, ..Request::new("shop", &[("key", "k")]) };
    let answer = asker.check_recorded(&request, now, Ask::CHECK, recording).expect("a new name");
    assert_eq!(answer.allowed, answer.charge.is_some(), "{answer:?}");
    answer.charge.map(|charge| charge.lapses_in_ns)
}

/// Releases slots. Returns how many came back.
fn release(node: &Node, id: u128, now: Now) -> u64 {
    match node.settle(ChargeId(id), None, now) {
        Settled::Done { refunded, .. } => refunded.iter().map(|refunded| refunded.units).sum(),
        other => panic!("not released: {other:?}"),
    }
}

fn renews(node: &Node, id: u128, now: Now) -> bool {
    matches!(node.renew(ChargeId(id), now), Renewed::Done { .. })
}

/// How many slots are free.
fn free(asker: &mut Asker, now: Now) -> u64 {
    asker.check(&Request::new("shop", &[("key", "k")]), now, Ask::PEEK).limits[0].verdict.remaining
}

/// Limits of a few slots and of many: they count in different ways.
fn both() -> [(LimitSpec, u64); 2] {
    [(concurrent("c", 3, "10m"), 3), (concurrent("c", 300, "10m"), 300)]
}

#[test]
fn a_limit_lets_as_many_pass_at_one_time_as_it_has_slots() {
    for (spec, limit) in both() {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        for id in 0..u128::from(limit) {
            assert_eq!(acquire(&mut asker, id, 1, START.later(id as u64)), Some(10 * MINUTE));
        }
        let now = START.later(S);
        assert_eq!(acquire(&mut asker, 1_000, 1, now), None);
        assert_eq!(asker.last().0.reason, Reason::OverLimit);
        assert_eq!(node.settle(ChargeId(1_000), None, now), Settled::Unknown, "a denied request takes none");
        assert_eq!(release(&node, 1, now), 1);
        assert_eq!(free(&mut asker, now), 1);
        assert!(acquire(&mut asker, 1_001, 1, now).is_some(), "free at once");
        assert_eq!(acquire(&mut asker, 1_002, 1, now), None);
    }
}

#[test]
fn a_slot_that_is_released_twice_comes_back_once() {
    for (spec, limit) in both() {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        assert!(acquire(&mut asker, 1, 1, START).is_some() && acquire(&mut asker, 2, 1, START).is_some());
        assert_eq!(release(&node, 1, START), 1);
        assert_eq!(node.settle(ChargeId(1), Some(0), START), Settled::Before { after_batch: 0 });
        assert_eq!(free(&mut asker, START), limit - 1);
        assert_eq!(node.renew(ChargeId(1), START), Renewed::Lapsed);
    }
}

#[test]
fn a_name_that_nobody_gave_holds_and_frees_nothing() {
    let node = node(&[concurrent("c", 3, "1m"), scene::window("w", 10, "1h")], START);
    let mut asker = node.asker();
    assert!(acquire(&mut asker, 1, 1, START).is_some());
    for id in [0, 2, u128::MAX] {
        assert_eq!(node.renew(ChargeId(id), START), Renewed::Unknown);
        assert_eq!(node.settle(ChargeId(id), None, START), Settled::Unknown);
    }
    assert_eq!(free(&mut asker, START), 2);
}

#[test]
fn a_charge_without_slots_is_not_remembered_and_cannot_be_renewed() {
    let node = node(&[scene::window("w", 10, "1h")], START);
    let mut asker = node.asker();
    let request = Request::new("shop", &[("key", "k")]);
    let answer = asker.check_recorded(&request, START, Ask::CHECK, &if_held(1)).expect("a new name");
    assert!(answer.allowed && answer.charge.is_none() && answer.limits[0].is_charged);
    assert_eq!(node.charges().records, 0);
    let reserve = Some(Reserve { ttl_ns: MINUTE, keeps: false, at_most: false });
    for (id, reserve) in [(2, None), (3, reserve)] {
        let named = Recording { reserve, ..always(id) };
        assert!(asker.check_recorded(&request, START, Ask::CHECK, &named).is_ok());
        assert_eq!(node.renew(ChargeId(id), START), Renewed::Unknown);
    }
}

#[test]
fn a_slot_whose_holder_is_gone_is_free_after_its_time_to_live() {
    for (spec, limit) in both() {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        assert!(acquire(&mut asker, 1, limit, START).is_some());
        let before = START.later(10 * MINUTE - 1);
        scene::sweep_all(&node, before);
        assert_eq!((free(&mut asker, before), node.charges().reserved), (0, 1));
        let after = START.later(10 * MINUTE);
        scene::sweep_all(&node, after);
        assert_eq!((free(&mut asker, after), node.charges().reserved), (limit, 0));
        assert_eq!(node.settle(ChargeId(1), None, after), Settled::Lapsed);
    }
}

#[test]
fn a_slot_that_is_renewed_lives_on() {
    for (spec, limit) in both() {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        assert!(acquire(&mut asker, 1, limit, START).is_some());
        for minutes in 1..=40 {
            let now = START.later(minutes * 9 * MINUTE);
            assert_eq!(
                node.renew(ChargeId(1), now),
                Renewed::Done { lapses_in_ns: 10 * MINUTE, after_batch: 0 }
            );
            scene::sweep_all(&node, now);
            assert_eq!(free(&mut asker, now.later(9 * MINUTE - 1)), 0);
        }
        let now = START.later(365 * MINUTE);
        assert_eq!(release(&node, 1, now), limit);
        assert_eq!(free(&mut asker, now), limit);
        assert_eq!(node.renew(ChargeId(1), now), Renewed::Lapsed);
    }
}

#[test]
fn a_slot_that_has_lapsed_is_not_renewed() {
    for (spec, limit) in both() {
        for sweeps in [false, true] {
            let node = node(std::slice::from_ref(&spec), START);
            let mut asker = node.asker();
            assert!(acquire(&mut asker, 1, limit, START).is_some());
            let now = START.later(10 * MINUTE);
            if sweeps {
                scene::sweep_all(&node, now);
            }
            assert_eq!(node.renew(ChargeId(1), now), Renewed::Lapsed);
            assert_eq!(free(&mut asker, now), limit);
        }
    }
}

/// Those that cannot be renewed end in time, and then the others fit again.
#[test]
fn slots_beyond_a_lowered_limit_are_not_renewed() {
    for (before, after) in [(4, 2), (400, 200)] {
        let node = node(&[concurrent("c", before, "1m")], START);
        let mut asker = node.asker();
        let part = after;
        for (id, at) in [(1, 0), (2, 30 * S)] {
            assert!(acquire(&mut asker, id, part, START.later(at)).is_some());
        }
        scene::apply(&node, &[concurrent("c", after, "1m")], START.later(31 * S));
        let now = START.later(40 * S);
        assert_eq!(node.renew(ChargeId(1), now), Renewed::Denied { lapses_in_ns: 20 * S });
        assert_eq!(node.renew(ChargeId(2), now), Renewed::Denied { lapses_in_ns: 50 * S });
        assert_eq!(free(&mut asker, now), 0, "nothing has changed");
        // The first lapses, and the second goes on.
        let now = START.later(61 * S);
        scene::sweep_all(&node, now);
        assert_eq!(node.renew(ChargeId(1), now), Renewed::Lapsed);
        assert!(renews(&node, 2, now));
        assert_eq!(free(&mut asker, now), 0);
        assert_eq!(release(&node, 2, now), part);
        assert_eq!(free(&mut asker, now), after);
    }
}

#[test]
fn slots_taken_by_threads_whose_clocks_differ_all_come_back() {
    for (spec, limit) in both() {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        let clocks = [5 * S, 2 * S, 7 * S, 0].map(|at| START.later(at));
        for round in 0..20_u128 {
            let now = |id: u128| clocks[(id + round) as usize % 4].later(round as u64 * 8 * S);
            for id in 0..3 {
                assert!(acquire(&mut asker, 3 * round + id, 1, now(id)).is_some());
                assert!(round % 3 > 0 || renews(&node, 3 * round + id, now(id + 1)));
            }
            for id in 0..3 {
                assert_eq!(release(&node, 3 * round + id, now(id + 2)), 1, "{round} {id}");
            }
        }
        assert_eq!(free(&mut asker, START.later(170 * S)), limit);
    }
}

#[test]
fn a_request_takes_a_slot_and_units_and_gives_only_the_slot_back_when_it_lapses() {
    let window = scene::window("w", 100, "1h");
    let reserve = |keeps| Some(Reserve { ttl_ns: 20 * S, keeps, at_most: false });
    for (recording, ttl, kept) in [
        (if_held(1), MINUTE, 4),
        (Recording { reserve: None, ..always(1) }, MINUTE, 4),
        (Recording { reserve: reserve(true), ..always(1) }, 20 * S, 4),
        (Recording { reserve: reserve(false), ..always(1) }, 20 * S, 0),
    ] {
        let node = node(&[concurrent("c", 10, "1m"), window.clone()], START);
        let mut asker = node.asker();
        assert_eq!(acquire_as(&mut asker, &recording, 4, START), Some(ttl));
        let left = |asker: &mut Asker, now| {
            let answer = asker.check(&Request::new("shop", &[("key", "k")]), now, Ask::PEEK);
            [0, 1].map(|limit| answer.limits[limit].verdict.remaining)
        };
        assert_eq!(left(&mut asker, START), [6, 96]);
        let now = START.later(ttl);
        scene::sweep_all(&node, now);
        assert_eq!(left(&mut asker, now), [10, 100 - kept], "{recording:?}");
        // A repeated request would run without its slot.
        let request = Request { cost: 4, ..Request::new("shop", &[("key", "k")]) };
        let again = asker.check_recorded(&request, now, Ask::CHECK, &recording).map(|answer| answer.allowed);
        assert!(recording.remember == Remember::IfHeld || again == Err(IdReused));
    }
}

#[test]
fn a_slot_comes_back_in_full_whatever_the_request_cost() {
    for (cost, units) in [(None, 100), (Some(0), 100), (Some(3), 97), (Some(4), 96), (Some(40), 60)] {
        let node = node(&[concurrent("c", 10, "1m"), scene::bucket("b", "1/h", 100)], START);
        let mut asker = node.asker();
        assert!(acquire_as(&mut asker, &always(1), 4, START).is_some());
        assert!(matches!(node.settle(ChargeId(1), cost, START), Settled::Done { .. }));
        let answer = asker.check(&Request::new("shop", &[("key", "k")]), START, Ask::PEEK);
        assert_eq!([0, 1].map(|limit| answer.limits[limit].verdict.remaining), [10, units], "{cost:?}");
        let request = Request { cost: 4, ..Request::new("shop", &[("key", "k")]) };
        assert_eq!(asker.check_recorded(&request, START, Ask::CHECK, &always(1)), Err(IdReused));
    }
}

#[test]
fn a_repeated_request_has_the_slot_of_the_first() {
    let node = node(&[concurrent("c", 10, "1m")], START);
    let mut asker = node.asker();
    assert_eq!(acquire_as(&mut asker, &always(1), 1, START), Some(MINUTE));
    assert_eq!(acquire_as(&mut asker, &always(1), 1, START.later(20 * S)), Some(40 * S));
    assert!(renews(&node, 1, START.later(30 * S)));
    assert_eq!(acquire_as(&mut asker, &always(1), 1, START.later(40 * S)), Some(50 * S));
    assert_eq!(free(&mut asker, START.later(40 * S)), 9);
}

#[test]
fn of_several_slots_all_are_renewed_or_none() {
    let few = |limit| concurrent("few", limit, "2m");
    let node = node(&[concurrent("c", 10, "1m"), few(4)], START);
    let mut asker = node.asker();
    assert_eq!(acquire(&mut asker, 1, 2, START), Some(MINUTE), "the shorter time");
    assert_eq!(acquire(&mut asker, 2, 2, START), Some(MINUTE));
    let now = START.later(30 * S);
    assert!(renews(&node, 1, now) && renews(&node, 2, now));
    scene::apply(&node, &[concurrent("c", 10, "1m"), few(3)], now);
    let now = START.later(50 * S);
    assert_eq!(node.renew(ChargeId(1), now), Renewed::Denied { lapses_in_ns: 40 * S });
    // The first limit's slots lapse as was said before.
    let now = START.later(90 * S);
    scene::sweep_all(&node, now);
    let answer = asker.check(&Request::new("shop", &[("key", "k")]), now, Ask::PEEK);
    assert_eq!([0, 1].map(|limit| answer.limits[limit].verdict.remaining), [10, 3]);
}

#[test]
fn a_key_with_an_override_has_slots_of_its_own() {
    let mut spec = concurrent("c", 2, "1m");
    spec.overrides = serde_json::from_str(r#"[{"key": "k", "limit": "100"}]"#).expect("overrides");
    let node = node(&[spec], START);
    let mut asker = node.asker();
    assert!((0..100).all(|id| acquire(&mut asker, id, 1, START).is_some()));
    assert_eq!(acquire(&mut asker, 100, 1, START), None);
    assert!((0..100).all(|id| renews(&node, id, START.later(30 * S))));
    assert!((0..100).all(|id| release(&node, id, START.later(80 * S)) == 1));
    assert_eq!(free(&mut asker, START.later(80 * S)), 100);
}

#[test]
fn classes_share_the_slots_of_a_limit() {
    let classes = r#"{"entry": "plan", "shared": {"paid": "0%", "free": "50%"}}"#;
    let classes = serde_json::from_str(classes).expect("classes");
    let node = node(&[LimitSpec { classes: Some(classes), ..concurrent("c", 10, "1m") }], START);
    let mut asker = node.asker();
    let mut take = |id, class| {
        let request = Request::new("shop", &[("key", "k"), ("plan", class)]);
        let answer = asker.check_recorded(&request, START, Ask::CHECK, &if_held(id)).expect("a new name");
        answer.charge.is_some()
    };
    let free = (0..10).filter(|id| take(*id, "free")).count();
    let paid = (10..30).filter(|id| take(*id, "paid")).count();
    assert_eq!((free, paid), (5, 5));
    assert!((0..5).all(|id| renews(&node, id, START.later(S)) && release(&node, id, START.later(S)) == 1));
    assert!((10..15).all(|id| renews(&node, id, START.later(S)) && release(&node, id, START.later(S)) == 1));
}

#[test]
fn a_limit_that_only_watches_counts_slots_too() {
    let shadow = LimitSpec { mode: Mode::Shadow, ..concurrent("c", 2, "1m") };
    let node = node(&[shadow], START);
    let mut asker = node.asker();
    let mut take = |id| {
        let request = Request::new("shop", &[("key", "k")]);
        let answer = asker.check_recorded(&request, START, Ask::CHECK, &if_held(id)).expect("a new name");
        (answer.allowed, answer.charge.is_some())
    };
    assert_eq!([1, 2, 3].map(&mut take), [(true, true), (true, true), (true, false)]);
    assert_eq!(release(&node, 1, START), 1);
    assert_eq!(take(4), (true, true));
}

#[test]
fn a_request_that_another_limit_denies_takes_no_slot() {
    let candidate =
        LimitSpec { candidate_for: Some("w".into()), mode: Mode::Shadow, ..concurrent("c", 9, "1m") };
    let each = LimitSpec { charge: Charge::Each, ..scene::window("e", 100, "1h") };
    for slots in [concurrent("c", 9, "1m"), candidate] {
        let node = node(&[slots, scene::window("w", 1, "1h"), each.clone()], START);
        let mut asker = node.asker();
        assert!(acquire(&mut asker, 1, 1, START).is_some());
        assert_eq!(acquire(&mut asker, 2, 1, START), None);
        assert_eq!(free(&mut asker, START), 8);
    }
}

#[test]
fn a_report_takes_no_slot_and_is_not_denied_for_want_of_one() {
    let node = node(&[concurrent("c", 2, "1m"), scene::window("w", 100, "1h")], START);
    let mut asker = node.asker();
    assert!(acquire(&mut asker, 1, 2, START).is_some());
    let request = Request { cost: 50, ..Request::new("shop", &[("key", "k")]) };
    let answer = asker.check(&request, START, Ask::REPORT);
    assert!(answer.allowed && answer.limits[1].is_charged && !answer.limits[0].is_charged, "{answer:?}");
    assert_eq!(release(&node, 1, START), 2 + 2);
    assert_eq!(free(&mut asker, START), 2);
}

#[test]
fn slots_are_not_leased_to_clients() {
    let node = node(&[concurrent("c", 100, "1m"), scene::bucket("b", "1/s", 100)], START);
    let mut asker = node.asker();
    let reserve = Some(Reserve { ttl_ns: S, keeps: true, at_most: true });
    let request = Request { cost: 10, ..Request::new("shop", &[("key", "k")]) };
    let lease = Recording { reserve, ..always(1) };
    let answer = asker.check_recorded(&request, START, Ask::CHECK, &lease).expect("a new name");
    assert!(!answer.allowed && answer.charge.is_none(), "{answer:?}");
    assert_eq!(free(&mut asker, START), 100);
    assert!(asker.counts_under_way(&request, START));
}

/// A slot that nobody can release would be taken until it lapses.
#[test]
fn a_slot_that_cannot_be_remembered_is_not_taken() {
    let keep = acequia_node::Keep { keep_ns: MINUTE, records: 16 };
    let config = acequia_node::Config {
        key: scene::KEY,
        memory_bytes: scene::ROOMY,
        durable: false,
        after_crash: None,
        home: None,
    };
    for recording in [if_held, always] {
        let node = Arc::new(Node::keeping(config, keep));
        scene::apply(&node, &[concurrent("c", 100, "1m")], START);
        let mut asker = node.asker();
        let request = Request::new("shop", &[("key", "k")]);
        let mut taken = 0;
        for id in 0..40 {
            // All of them are under one lock.
            let answer = asker.check_recorded(&request, START, Ask::CHECK, &recording(16 * id));
            let answer = answer.expect("a new name");
            assert_eq!(answer.allowed, answer.charge.is_some());
            taken += u64::from(answer.allowed);
            assert!(answer.allowed || answer.reason == Reason::Overflow);
        }
        assert!(taken < 40 && free(&mut asker, START) == 100 - taken, "{taken}");
    }
}

#[test]
fn slots_in_the_cell_that_new_keys_share_lapse_at_their_time() {
    let node = scene::small_node(&[concurrent("c", 70, "10m")], false, START);
    scene::flood(&node, "other", START);
    let mut asker = node.asker();
    let Some(lapses_in_ns) = acquire(&mut asker, 1, 1, START) else { return };
    assert_eq!(node.renew(ChargeId(1), START.later(S)), Renewed::Denied { lapses_in_ns: lapses_in_ns - S });
    assert!(matches!(node.settle(ChargeId(1), None, START.later(S)), Settled::Done { .. }));
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::Mutation;
    let stories: [(Mutation, fn()); 3] = [
        (Mutation::RenewBeyondPart, slots_beyond_a_lowered_limit_are_not_renewed),
        (Mutation::RenewForgotten, restarts::forgotten),
        (Mutation::RenewBeforeDurable, restarts::durable),
    ];
    scene::each_is_noticed(&stories);
}
