//! Refunds, and reservations that are settled or lapse.

use std::sync::Arc;

use acequia_node::{ChargeId, Keep, Node, Refunded, Settled};

use super::{ask, back, config, left, named, reserved};
use crate::scene::{self, HOUR, MINUTE, S, START, apply, node, passes};

#[test]
fn a_charge_is_refunded_once_and_only_into_its_own_window() {
    for spec in [
        scene::window("w", 10, "1h"),
        scene::quota("w", 10, "day"),
        scene::sliding("w", 10, "1h"),
        scene::slots("w", 10, "1h", 4),
    ] {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        ask(&mut asker, &named(1), 4, START);
        ask(&mut asker, &named(2), 5, START.later(S));
        let refunded = vec![Refunded { name: "w".into(), slot: 1, units: 4 }];
        let done = Settled::Done { refunded, after_batch: 0 };
        assert_eq!(node.settle(ChargeId(1), None, START.later(2 * S)), done);
        assert_eq!(left(&mut asker, START.later(2 * S)), 5);
        assert_eq!(node.settle(ChargeId(1), None, START.later(2 * S)), Settled::Before { after_batch: 0 });
        assert_eq!(node.settle(ChargeId(9), None, START), Settled::Unknown);
        assert_eq!(left(&mut asker, START.later(2 * S)), 5);
    }
    // A refund from one window does not go to the next window.
    let node = Arc::new(Node::keeping(config(false, None), Keep { keep_ns: 3 * HOUR, records: 100 }));
    apply(&node, &[scene::window("w", 10, "1h")], START);
    let mut asker = node.asker();
    ask(&mut asker, &named(1), 10, START);
    let later = START.later(HOUR);
    assert!(passes(&mut asker, "k", 10, later));
    assert_eq!(back(node.settle(ChargeId(1), None, later)), 0);
    assert!(!passes(&mut asker, "k", 1, later));
}

#[test]
fn a_bucket_is_refunded_only_what_its_rate_has_not_refilled_since() {
    let node = node(&[scene::bucket("b", "1/s", 100)], START);
    let mut asker = node.asker();
    ask(&mut asker, &named(1), 60, START);
    assert!(passes(&mut asker, "k", 40, START));
    assert_eq!(back(node.settle(ChargeId(1), None, START.later(20 * S))), 40);
    assert_eq!(left(&mut asker, START.later(20 * S)), 20 + 40);
    // The bucket is full again. If the charge were refunded, the bucket could be spent twice at once.
    ask(&mut asker, &named(2), 60, START.later(20 * S));
    let later = START.later(220 * S);
    assert!(passes(&mut asker, "k", 100, later));
    assert_eq!(back(node.settle(ChargeId(2), None, later)), 0);
    assert!(!passes(&mut asker, "k", 1, later));
}

#[test]
fn a_charge_that_a_faster_rate_has_refilled_is_not_refunded() {
    let bucket = |rate| scene::bucket("b", rate, 100);
    let node = node(&[bucket("1/s")], START);
    let mut asker = node.asker();
    ask(&mut asker, &named(1), 100, START);
    apply(&node, &[bucket("50/s")], START.later(S));
    assert!(passes(&mut asker, "k", 90, START.later(3 * S)));
    apply(&node, &[bucket("1/s")], START.later(3 * S));
    assert_eq!(back(node.settle(ChargeId(1), None, START.later(4 * S))), 0);
    assert!(!passes(&mut asker, "k", 20, START.later(4 * S)));
}

#[test]
fn a_reservation_is_settled_with_its_real_cost_or_lapses() {
    let node = node(&[scene::window("w", 100, "1h")], START);
    let mut asker = node.asker();
    ask(&mut asker, &reserved(1, 30 * S, false), 50, START);
    assert_eq!(left(&mut asker, START), 50);
    assert_eq!(back(node.settle(ChargeId(1), Some(20), START)), 30);
    assert_eq!(left(&mut asker, START), 80);
    assert_eq!(node.settle(ChargeId(1), Some(10), START), Settled::Before { after_batch: 0 });
    // An unsettled reservation is refunded when its time is over, or stays charged, as its maker chose.
    ask(&mut asker, &reserved(2, 30 * S, false), 40, START);
    ask(&mut asker, &reserved(3, 30 * S, true), 40, START);
    node.sweep(0, START.later(30 * S - 1));
    assert_eq!((left(&mut asker, START), node.charges().reserved), (0, 2));
    let over = START.later(30 * S);
    assert_eq!(node.settle(ChargeId(2), Some(1), over), Settled::Lapsed, "whether or not anybody has looked");
    assert_eq!(left(&mut asker, over), 40);
    node.sweep(0, over);
    assert_eq!((left(&mut asker, over), node.charges().reserved), (40, 0));
    assert_eq!(node.settle(ChargeId(3), Some(1), over), Settled::Lapsed);
    assert_eq!(node.settle(ChargeId(2), None, over), Settled::Lapsed);
}

#[test]
fn a_settlement_is_remembered_for_as_long_as_a_charge() {
    let node = node(&[scene::window("w", 10, "1h")], START);
    ask(&mut node.asker(), &reserved(1, 20 * MINUTE, false), 4, START);
    back(node.settle(ChargeId(1), Some(3), START.later(12 * MINUTE)));
    for (minutes, settled) in [(13, Settled::Before { after_batch: 0 }), (23, Settled::Unknown)] {
        let now = START.later(minutes * MINUTE);
        node.sweep(0, now);
        assert_eq!(node.settle(ChargeId(1), Some(3), now), settled);
    }
}
