//! Leases of callers: how many units, for how long, and how they end.

use acequia_limits::{Charge, Descriptor, Now, Reason, Request, limit::LimitSpec};
use acequia_node::{Ask, Asker, ChargeId, Node, Recording, Reserve, Settled};

use super::{back, lease, leased, left, named, start, stop};
use crate::scene::{self, HOUR, Journal, MINUTE, S, START, apply, node, passes};

#[test]
fn a_lease_of_at_most_some_units_gets_a_part_of_what_is_left() {
    let lease =
        |id| Recording { reserve: Some(Reserve { ttl_ns: S, keeps: true, at_most: true }), ..named(id) };
    let mut spec = scene::window("w", 1_000, "1h");
    spec.cost = Some(2);
    let node = node(&[spec], START);
    let mut asker = node.asker();
    let mut request = Request::new("shop", &[("key", "k")]);
    request.cost = 400;
    let mut reserve = |asker: &mut Asker, id, cost| {
        request.cost = cost;
        let answer = asker.check_recorded(&request, START, Ask::CHECK, &lease(id)).expect("a new name");
        (answer.allowed, answer.charge.map(|charge| charge.reserved))
    };
    assert_eq!(reserve(&mut asker, 1, 400), (true, Some(50)));
    assert_eq!(left(&mut asker, START), 900);
    assert_eq!(reserve(&mut asker, 2, 5), (true, Some(5)));
    for id in 3..100 {
        reserve(&mut asker, id, 400);
    }
    assert_eq!(left(&mut asker, START), 0, "the last ones singly");
    assert_eq!(reserve(&mut asker, 100, 400), (false, None));
}

/// The remaining units, as an operator sees them.
fn seen(node: &Node, now: Now) -> u64 {
    let values = Descriptor::new(&[(b"key", b"k")], None);
    let limit = node.catalogue().limits[0].limit.id;
    node.holding_named(limit, &values, now).expect("a cell").left
}

#[test]
fn a_lease_of_a_bucket_takes_its_capacity_with_it() {
    let node = node(&[scene::bucket("b", "10/s", 100)], START);
    let mut asker = node.asker();
    assert_eq!(lease(&mut asker, 1, 50, HOUR, START), (10, 10 * S), "no longer than all takes to come back");
    assert_eq!(left(&mut asker, START), 90);
    // The lease's capacity is not earned again while the lease may be spent, and an operator sees this.
    let later = START.later(5 * S);
    assert_eq!(left(&mut asker, later), 90);
    assert_eq!(seen(&node, later), 90);
    assert!(passes(&mut asker, "k", 90, later) && !passes(&mut asker, "k", 1, later));
    // Spent units count from the time of the report, because they may have been spent just then.
    assert_eq!(back(node.settle(ChargeId(1), Some(6), later)), 4);
    assert_eq!(left(&mut asker, later), 4);
    assert_eq!(left(&mut asker, later.later(S)), 14);
    // A lease without a report counts as fully spent at the last moment.
    assert_eq!(lease(&mut asker, 2, 1, HOUR, later.later(S)), (1, 10 * S));
    node.sweep(0, later.later(11 * S));
    assert_eq!(left(&mut asker, later.later(11 * S)), 99);
    // A cell with an outstanding lease is not forgotten.
    assert_eq!(lease(&mut asker, 3, 9, HOUR, START.later(HOUR)).0, 9);
    scene::sweep_all(&node, START.later(HOUR + 5 * S));
    assert_eq!(left(&mut asker, START.later(HOUR + 5 * S)), 91);
}

#[test]
fn a_lease_ends_with_its_window() {
    let node = node(&[scene::window("w", 100, "1h")], START);
    let mut asker = node.asker();
    let late = START.later(HOUR - 3 * S);
    assert_eq!(lease(&mut asker, 1, 50, MINUTE, late), (10, 3 * S));
    node.sweep(0, START.later(HOUR));
    assert_eq!(node.settle(ChargeId(1), Some(3), START.later(HOUR)), Settled::Lapsed);
    assert_eq!(left(&mut asker, START.later(HOUR)), 100);
}

#[test]
fn a_lease_outlives_a_crash() {
    for spec in
        [scene::bucket("b", "10/s", 100), scene::bucket("b", "60/h", 100), scene::sliding("b", 50, "1h")]
    {
        let mut journal = Journal::default();
        let node = start(&spec, &journal, None, START);
        let granted = lease(&mut node.asker(), 1, 5, 5 * S, START).0;
        assert_eq!(granted, 5);
        journal.flush(&node);
        let now = START.later(S);
        let node = start(&spec, &journal, Some(now), now);
        let mut asker = node.asker();
        let most = if spec.sliding_window.is_some() { 45 } else { 95 };
        assert!(left(&mut asker, now) <= most, "{spec:?}");
        assert_eq!(back(node.settle(ChargeId(1), Some(2), now)), 3);
        assert!(left(&mut asker, now.later(S)) <= most + 10);
    }
}

#[test]
fn units_spent_of_a_lease_count_by_the_variant_at_the_settlement() {
    // The rate grew tenfold meanwhile, and no request has come since.
    let node_ = node(&[scene::bucket("b", "1/s", 100)], START);
    let mut asker = node_.asker();
    assert_eq!(lease(&mut asker, 1, 50, HOUR, START).0, 10);
    apply(&node_, &[scene::bucket("b", "10/s", 100)], START.later(S));
    assert_eq!(back(node_.settle(ChargeId(1), Some(10), START.later(5 * S))), 0);
    assert_eq!(left(&mut asker, START.later(5 * S)), 90, "it was not spent four seconds ago");
    // A sliding window with another limit.
    let node = node(&[scene::slots("w", 100, "1h", 60)], START);
    let mut asker = node.asker();
    assert_eq!(lease(&mut asker, 1, 50, HOUR, START), (10, 61 * MINUTE / 8));
    apply(&node, &[scene::slots("w", 101, "1h", 60)], START.later(S));
    node.settle(ChargeId(1), Some(10), START.later(6 * MINUTE));
    assert_eq!(left(&mut asker, START.later(HOUR + 3 * MINUTE)), 91);
    assert_eq!(left(&mut asker, START.later(HOUR + 8 * MINUTE)), 101);
}

#[test]
fn a_lease_ends_exactly_under_a_slower_rate() {
    let (fast, slow) = (scene::bucket("b", "4/s", 100), scene::bucket("b", "2/s", 100));
    for restarts in [false, true] {
        let mut journal = Journal::default();
        let mut node = start(&fast, &journal, None, START);
        assert_eq!(lease(&mut node.asker(), 1, 50, HOUR, START).0, 10);
        apply(&node, std::slice::from_ref(&slow), START);
        journal.flush(&node);
        let now = START.later(S);
        if restarts {
            stop(&node, &mut journal, now);
            node = start(&slow, &journal, None, now);
        }
        assert_eq!(left(&mut node.asker(), now), 90, "{restarts}");
        assert_eq!(back(node.settle(ChargeId(1), Some(4), now)), 6);
        assert_eq!(left(&mut node.asker(), now), 96);
    }
}

#[test]
fn a_lease_lasts_as_long_after_the_steady_clock_is_anchored_anew() {
    let spec = scene::bucket("b", "1/s", 100);
    let mut journal = Journal::default();
    let behind = Now { steady_ns: START.steady_ns - 40 * S, ..START };
    let node = start(&spec, &journal, None, behind);
    assert_eq!(lease(&mut node.asker(), 1, 50, 30 * S, behind), (10, 30 * S));
    journal.flush(&node);
    let now = START.later(2 * S);
    stop(&node, &mut journal, Now { steady_ns: now.steady_ns - 40 * S, ..now });
    let node = start(&spec, &journal, None, now);
    scene::sweep_all(&node, now);
    scene::sweep_all(&node, now.later(27 * S));
    assert_eq!(left(&mut node.asker(), now.later(27 * S)), 90, "its holder may still spend it");
    scene::sweep_all(&node, now.later(28 * S));
    assert_eq!(node.settle(ChargeId(1), Some(0), now.later(28 * S)), Settled::Lapsed);
}

#[test]
fn while_the_disk_fails_nothing_is_leased() {
    let node = start(&scene::bucket("b", "10/s", 100), &Journal::default(), None, START);
    node.journal_failed();
    let mut asker = node.asker();
    let request = Request::new("shop", &[("key", "k")]);
    let answer = asker.check_recorded(&request, START, Ask::CHECK, &leased(1, S)).expect("a new name");
    assert!(!answer.allowed && answer.charge.is_none() && answer.reason == Reason::Journal);
    assert!(passes(&mut asker, "k", 1, START), "what is decided at once still is");
}

#[test]
fn a_denied_lease_takes_nothing() {
    let each = LimitSpec { charge: Charge::Each, ..scene::bucket("each", "1/s", 100) };
    let node = node(&[each, scene::window("w", 3, "1h")], START);
    let mut asker = node.asker();
    assert!(passes(&mut asker, "k", 3, START));
    let before = left(&mut asker, START);
    (0..20).for_each(|id| assert_eq!(lease(&mut asker, id, 50, MINUTE, START).0, 0));
    assert_eq!((left(&mut asker, START), node.charges().records), (before, 0));
}
