//! How many records of charges a node keeps, and whose.

use std::sync::Arc;

use acequia_node::{ChargeId, Keep, Node, Recording, Reserve, Settled};

use super::{ask, back, config, lease, left, named};
use crate::scene::{self, HOUR, MINUTE, S, START, apply};

#[test]
fn beyond_their_bound_the_oldest_records_are_forgotten() {
    let node = Arc::new(Node::keeping(config(false, None), Keep { keep_ns: HOUR, records: 160 }));
    apply(&node, &[scene::window("w", 1_000, "1h")], START);
    let mut asker = node.asker();
    for id in 0..1_000 {
        ask(&mut asker, &named(id), 1, START.later(id as u64));
        node.sweep(0, START.later(id as u64));
        assert!(node.charges().records <= 160 + 16);
    }
    assert_eq!(node.settle(ChargeId(0), None, START.later(S)), Settled::Unknown);
    assert_eq!(back(node.settle(ChargeId(999), None, START.later(S))), 1);
}

#[test]
fn one_caller_cannot_drive_out_the_records_of_others() {
    // Ten records for each of sixteen locks. All these charges are under one lock.
    let node = Arc::new(Node::keeping(config(false, None), Keep { keep_ns: HOUR, records: 160 }));
    apply(&node, &[scene::window("w", 100_000, "1h")], START);
    let mut asker = node.asker();
    let mut ask_as = |owner: u32, id: u128, reserve: Option<Reserve>, at: u64| {
        ask(&mut asker, &Recording { owner, reserve, ..named(16 * id) }, 1, START.later(at)).0
    };
    for id in 0..3 {
        ask_as(1, id, None, id as u64);
    }
    for id in 3..6 {
        ask_as(2, id, None, id as u64);
    }
    for id in 100..1_000 {
        ask_as(3, id, None, id as u64);
        assert!(node.charges().records <= 11, "without anybody sweeping");
    }
    for _ in 0..16 {
        node.sweep(0, START.later(1_000));
    }
    assert_eq!(node.charges().records, 10);
    let now = START.later(S);
    for id in (0..6).chain(996..1_000) {
        assert_eq!(back(node.settle(ChargeId(16 * id), None, now)), 1, "{id}");
    }
    assert_eq!(node.settle(ChargeId(16 * 995), None, now), Settled::Unknown);
}

#[test]
fn of_more_callers_than_records_the_latest_keep_theirs() {
    let node = Arc::new(Node::keeping(config(false, None), Keep { keep_ns: HOUR, records: 160 }));
    apply(&node, &[scene::window("w", 100_000, "1h")], START);
    let mut asker = node.asker();
    // Some owners have reservations and no record. Reservations have their own slots.
    let reserve = Some(Reserve { ttl_ns: MINUTE, keeps: false, at_most: false });
    for id in 1_000..1_005_u32 {
        let recording = Recording { owner: id, reserve, ..named(16 * u128::from(id)) };
        ask(&mut asker, &recording, 1, START);
    }
    for id in 0..500_u32 {
        let recording = Recording { owner: id, ..named(16 * u128::from(id)) };
        ask(&mut asker, &recording, 1, START.later(u64::from(id)));
        assert!(node.charges().records <= 11 + 5);
    }
    assert_eq!(back(node.settle(ChargeId(16 * 499), None, START.later(S))), 1);
    assert_eq!(node.settle(ChargeId(16 * 400), None, START.later(S)), Settled::Unknown);
}

#[test]
fn reservations_and_records_do_not_displace_each_other() {
    let node = Arc::new(Node::keeping(config(false, None), Keep { keep_ns: HOUR, records: 160 }));
    apply(&node, &[scene::window("w", 100_000, "1h")], START);
    let mut asker = node.asker();
    let reserve = Some(Reserve { ttl_ns: MINUTE, keeps: false, at_most: false });
    for id in 0..8 {
        ask(&mut asker, &Recording { owner: 1, reserve, ..named(16 * id) }, 1, START);
    }
    for id in 8..18 {
        ask(&mut asker, &Recording { owner: 1, ..named(16 * id) }, 1, START.later(id as u64));
    }
    assert_eq!(node.charges().records, 18);
    // Settled reservations may be dropped from now on, and not before other records.
    for id in 0..4 {
        assert_eq!(back(node.settle(ChargeId(16 * id), Some(0), START.later(S))), 1);
    }
    for _ in 0..16 {
        node.sweep(0, START.later(S));
    }
    assert_eq!((node.charges().records, node.charges().reserved), (14, 4));
    assert_eq!(node.settle(ChargeId(16 * 11), None, START.later(S)), Settled::Unknown);
    assert_eq!(back(node.settle(ChargeId(16 * 12), None, START.later(S))), 1);
    assert_eq!(back(node.settle(ChargeId(16 * 7), Some(0), START.later(S))), 1);
    // An unsettled reservation lapses, stays for a while, and is forgotten in time.
    for at in [2 * MINUTE, 2 * MINUTE + 2 * HOUR] {
        for _ in 0..16 {
            node.sweep(0, START.later(at));
        }
        assert_eq!(node.charges().reserved, 0);
    }
    assert_eq!(node.charges().records, 0);
}

#[test]
fn one_caller_cannot_take_all_reservations() {
    let node = Arc::new(Node::keeping(config(false, None), Keep { keep_ns: HOUR, records: 128 }));
    apply(&node, &[scene::window("w", 100_000, "1h")], START);
    let mut asker = node.asker();
    let reserve = Some(Reserve { ttl_ns: MINUTE, keeps: false, at_most: false });
    let mut reserves = |owner: u32, ids: std::ops::Range<u128>| {
        let asked = |id: &u128| ask(&mut asker, &Recording { owner, reserve, ..named(16 * id) }, 1, START).0;
        ids.filter(asked).count()
    };
    assert_eq!(reserves(1, 0..20), 7);
    assert_eq!(reserves(2, 20..40), 1, "one place is left for others");
    assert_eq!(reserves(3, 60..80), 0);
    for id in 0..3 {
        assert_eq!(back(node.settle(ChargeId(16 * id), Some(0), START)), 1);
    }
    assert_eq!(reserves(2, 80..100), 3);
}

#[test]
fn reservations_are_bounded_and_each_granted_one_can_be_settled() {
    let node = Arc::new(Node::keeping(config(false, None), Keep { keep_ns: HOUR, records: 32 }));
    apply(&node, &[scene::bucket("b", "1/s", 100_000)], START);
    let mut asker = node.asker();
    let (mut leases, mut denied) = (Vec::new(), 0);
    for id in 0..200 {
        match lease(&mut asker, id, 3, MINUTE, START).0 {
            0 => denied += 1,
            units => leases.push((id, units)),
        }
        node.sweep(0, START);
    }
    assert!(leases.len() <= 32 && denied >= 168, "{} and {denied}", leases.len());
    let all: u64 = leases.iter().map(|(_, units)| units).sum();
    assert_eq!(left(&mut asker, START), 100_000 - all);
    for (id, units) in leases {
        assert_eq!(back(node.settle(ChargeId(id), Some(0), START)), units);
    }
    assert_eq!(left(&mut asker, START), 100_000);
}
