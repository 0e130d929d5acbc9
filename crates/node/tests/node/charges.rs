//! Named charges: repeated, refunded, reserved and settled, also across restarts.

use crate::regions;
use std::sync::Arc;

use crate::scene::{self, HOUR, Journal, KEY, MINUTE, MS, ROOMY, S, START, apply, node, passes};
use acequia_limits::{Charge, Descriptor, Mode, Now, Reason, Request, limit::LimitSpec};
use acequia_node::{
    Ask, Asker, CHARGES, ChargeId, Config, IdReused, Keep, Node, Recording, Refunded, Reserve, Settled,
};
use proptest::{collection::vec, prelude::*, sample::select};

fn named(id: u128) -> Recording {
    Recording { id: ChargeId(id), fingerprint: 7, is_repeatable: true, reserve: None, owner: 0 }
}

fn reserved(id: u128, ttl_ns: u64, keeps: bool) -> Recording {
    Recording { reserve: Some(Reserve { ttl_ns, keeps, at_most: false }), ..named(id) }
}

/// Asks for `cost` under a name. Returns whether the request passed, what is left, and whether the answer is
/// a repeat.
fn ask(asker: &mut Asker, recording: &Recording, cost: u64, now: Now) -> (bool, u64, bool) {
    let mut request = Request::new("shop", &[("key", "k")]);
    request.cost = cost;
    let answer = asker.check_recorded(&request, now, Ask::CHECK, recording).expect("the same question");
    let is_repeat = answer.charge.is_some_and(|charge| charge.is_repeat);
    (answer.allowed, answer.limits[0].verdict.remaining, is_repeat)
}

fn left(asker: &mut Asker, now: Now) -> u64 {
    asker.check(&Request::new("shop", &[("key", "k")]), now, Ask::PEEK).limits[0].verdict.remaining
}

fn back(settled: Settled) -> u64 {
    match settled {
        Settled::Done { refunded, .. } => refunded.iter().map(|refunded| refunded.units).sum(),
        other => panic!("not settled: {other:?}"),
    }
}

#[test]
fn a_repeated_id_is_charged_once_and_gets_the_first_answer() {
    let node = node(&[scene::window("w", 10, "1h")], START);
    let mut asker = node.asker();
    assert_eq!(ask(&mut asker, &named(1), 4, START), (true, 6, false));
    assert!(passes(&mut asker, "k", 3, START));
    assert_eq!(ask(&mut asker, &named(1), 4, START.later(S)), (true, 6, true), "as it was answered then");
    assert_eq!(left(&mut asker, START), 3);
    // Another question under that name is an error.
    let mut request = Request::new("shop", &[("key", "k")]);
    request.cost = 5;
    let other = Recording { fingerprint: 8, ..named(1) };
    assert_eq!(asker.check_recorded(&request, START, Ask::CHECK, &other), Err(IdReused));
    // A denial charged nothing, so the same name is decided again.
    assert_eq!(ask(&mut asker, &named(2), 4, START), (false, 3, false));
    assert_eq!(ask(&mut asker, &named(2), 4, START.later(HOUR)), (true, 6, false));
    // A name is forgotten in the end.
    assert_eq!(ask(&mut asker, &named(1), 4, START.later(HOUR)), (true, 2, false));
}

#[test]
fn threads_that_send_the_same_id_at_once_charge_it_once() {
    let node = node(&[scene::window("w", 1_000_000, "1h")], START);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut asker = node.asker();
            scope.spawn(move || {
                for id in 0..2_000 {
                    assert!(ask(&mut asker, &named(id), 1, START).0);
                }
            });
        }
    });
    assert_eq!(left(&mut node.asker(), START), 1_000_000 - 2_000);
}

/// A thread reads its clock. Another thread with a later clock then forgets idle cells. The first thread's
/// charge counts at the later time, and is found there.
#[test]
fn a_charge_by_a_thread_with_an_older_clock_can_be_refunded() {
    let node = node(&[scene::sliding("s", 100, "1m")], START);
    let mut asker = node.asker();
    assert!(scene::passes(&mut asker, "another", 1, START));
    let now = START.later(2 * HOUR);
    scene::sweep_all(&node, now);
    assert_eq!(node.usage().cells, 0);
    let before = Now { steady_ns: now.steady_ns - S, ..now };
    assert!(ask(&mut asker, &named(1), 40, before).0);
    assert_eq!(back(node.settle(ChargeId(1), None, now.later(S))), 40);
}

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
    assert_eq!(node.settle(ChargeId(1), Some(51), START), Settled::TooMuch { charged: 50 });
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

fn leased(id: u128, ttl_ns: u64) -> Recording {
    Recording { reserve: Some(Reserve { ttl_ns, keeps: true, at_most: true }), ..named(id) }
}

/// Leases at most `cost`. Returns the units and the lease's duration.
fn lease(asker: &mut Asker, id: u128, cost: u64, ttl_ns: u64, now: Now) -> (u64, u64) {
    let mut request = Request::new("shop", &[("key", "k")]);
    request.cost = cost;
    let answer = asker.check_recorded(&request, now, Ask::CHECK, &leased(id, ttl_ns)).expect("a new name");
    answer.charge.map_or((0, 0), |charge| (charge.reserved, charge.lapses_in_ns))
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

#[test]
fn a_denial_is_never_remembered() {
    let live = scene::bucket("live", "1/s", 10);
    let candidate = LimitSpec { candidate_for: Some("live".into()), ..scene::bucket("next", "1/s", 20) };
    let candidate = LimitSpec { mode: Mode::Shadow, ..candidate };
    let each = LimitSpec { charge: Charge::Each, ..scene::bucket("each", "1/s", 100) };
    for other in [candidate, each] {
        let node = node(&[live.clone(), other], START);
        let mut asker = node.asker();
        let mut ask = |id, cost, now| ask(&mut asker, &named(id), cost, now);
        assert!(ask(1, 10, START).0);
        assert!(!ask(2, 5, START).0);
        let (allowed, _, is_repeat) = ask(2, 5, START.later(6 * S));
        assert!(allowed && !is_repeat, "asked anew");
        assert!(ask(2, 5, START.later(7 * S)).2);
    }
}

#[test]
fn a_request_whose_charge_was_refunded_does_not_pass_again_by_its_id() {
    let node = node(&[scene::window("w", 100, "1h")], START);
    let mut asker = node.asker();
    let request = Request { cost: 4, ..Request::new("shop", &[("key", "k")]) };
    let mut again = |name: &Recording, now| asker.check_recorded(&request, now, Ask::CHECK, name).is_err();
    for (id, cost, is_over) in [(1, None, true), (2, Some(1), true), (3, Some(4), false)] {
        let name = reserved(id, MINUTE, true);
        assert!(!again(&name, START));
        back(node.settle(ChargeId(id), cost, START));
        assert_eq!(again(&name, START.later(S)), is_over, "{cost:?}");
    }
    for (id, keeps) in [(4, true), (5, false)] {
        let name = reserved(id, S, keeps);
        assert!(!again(&name, START));
        node.sweep(0, START.later(S));
        assert_eq!(again(&name, START.later(S)), !keeps);
    }
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

#[test]
fn a_repeated_settlement_waits_for_the_disk_too() {
    let spec = scene::bucket("b", "1/s", 100);
    let mut journal = Journal::default();
    let node = start(&spec, &journal, None, START);
    ask(&mut node.asker(), &reserved(1, MINUTE, false), 10, START);
    journal.flush(&node);
    let Settled::Done { after_batch, .. } = node.settle(ChargeId(1), Some(3), START) else {
        panic!("not settled")
    };
    assert!(after_batch > 0);
    assert_eq!(node.settle(ChargeId(1), Some(3), START), Settled::Before { after_batch });
    journal.flush(&node);
    assert_eq!(node.settle(ChargeId(1), Some(3), START), Settled::Before { after_batch: 0 });
}

#[test]
fn a_charge_that_a_crash_forgot_is_refunded_by_no_later_process() {
    let spec = scene::bucket("b", "1/s", 50);
    let mut journal = Journal::default();
    let node = start(&spec, &journal, None, START);
    ask(&mut node.asker(), &named(1), 40, START);
    journal.flush(&node);
    let node = start(&spec, &journal, Some(START.later(S)), START.later(S));
    assert!(passes(&mut node.asker(), "k", 1, START.later(4 * S)), "as much as came back since");
    stop(&node, &mut journal, START.later(4 * S));
    let now = START.later(5 * S);
    let node = start(&spec, &journal, None, now);
    assert_eq!(back(node.settle(ChargeId(1), None, now)), 0);
}

#[test]
fn after_a_restart_a_regions_lease_is_reserved_only_once() {
    let mut world = regions::World::new(2, &[regions::bucket("b", "1/s", 100)], 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    let before = left(&mut world.places[0].node.asker(), world.now_of(0));
    let now = world.now_of(0);
    let leased = lease(&mut world.places[0].node.asker(), 1, 50, HOUR, now).0;
    assert!(leased > 3);
    world.run(regions::S, |_, _| 0);
    world.restart(0, None, regions::incarnation(0));
    // Wait until the other region's wall clock agrees.
    world.run(300 * regions::MS, |_, _| 0);
    let now = world.now_of(0);
    let node = Arc::clone(&world.places[0].node);
    // Units that the crash forgot are earned back by the rate.
    let after = left(&mut node.asker(), now);
    assert_eq!(back(node.settle(ChargeId(1), Some(0), now)), leased);
    assert_eq!(left(&mut node.asker(), now) - after, leased.min(before - after));
    world.run(300 * regions::S, |_, _| 0);
    assert!(left(&mut node.asker(), world.now_of(0)) >= before, "nothing is set apart any more");
}

#[test]
fn a_share_grows_only_after_leases_cut_from_it_elsewhere_have_ended() {
    let spec = regions::sliding("w", 100, "1m");
    let mut world = regions::World::new(2, std::slice::from_ref(&spec), 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    let node = Arc::clone(&world.places[0].node);
    let mut asker = node.asker();
    let now = world.now_of(0);
    let leases: Vec<(u128, u64)> = (1..=20).map(|id| (id, lease(&mut asker, id, 50, HOUR, now).0)).collect();
    let leased: u64 = leases.iter().map(|(_, units)| units).sum();
    assert!(leased > 40);
    let ttl_ns = MINUTE / 8;
    world.change(0, &[spec], &[(regions::incarnation(0), 1), (regions::incarnation(1), 9)], &[], 0);
    world.run(ttl_ns - 500 * regions::MS, |_, _| 0);
    // All of the leases are spent at the last moment.
    for (id, units) in leases {
        assert_eq!(back(node.settle(ChargeId(id), Some(units), world.now_of(0))), 0);
    }
    for _ in 0..58 {
        world.run(regions::S, |_, _| 0);
        let now = world.now_of(1);
        assert!(left(&mut world.places[1].node.asker(), now) + leased <= 100);
    }
    world.run(20 * regions::S, |_, _| 0);
    assert!(left(&mut world.places[1].node.asker(), world.now_of(1)) >= 85);
}

#[test]
fn a_region_lends_only_units_that_it_has_not_leased() {
    let mut world = regions::World::new(2, &[regions::bucket("b", "1/s", 200)], 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    let node = Arc::clone(&world.places[0].node);
    let mut asker = node.asker();
    let now = world.now_of(0);
    assert!(passes(&mut asker, "k", 40, now));
    let leased: u64 = (1..=8).map(|id| lease(&mut asker, id, 90, HOUR, now).0).sum();
    assert!((20..=50).contains(&leased), "{leased}");
    world.run(100 * regions::S, |_, _| 0);
    world.run(3 * regions::S, |region, ms| u64::from(region == 1 && ms < 1_000));
    assert!(world.traffic()[0].lent > 0, "{:?}", world.traffic());
    assert!(world.places[1].admitted > 100, "{}", world.places[1].admitted);
    // Leased units may still be spent, so nobody else received them.
    assert!(world.admitted() + 40 + leased <= 200 + 110);
}

#[test]
fn a_lease_ends_with_its_window_even_if_the_next_window_is_charged_too() {
    let spec = regions::window("w", 1_000, "5m");
    let mut world = regions::World::new(2, std::slice::from_ref(&spec), 40 * regions::MS);
    let members = [(regions::incarnation(0), 1), (regions::incarnation(1), 1)];
    let specs = std::slice::from_ref(&spec);
    // The clocks are in doubt for a while, so both windows are charged long before the edge.
    world.change(0, specs, &members, &[], 60 * regions::S);
    let ends_in_ns = |now: Now| 300 * regions::S - now.wall_ns % (300 * regions::S);
    world.run(regions::S, |_, _| 0);
    let wait_ns = (ends_in_ns(world.now_of(0)) + 250 * regions::S) % (300 * regions::S);
    world.run(wait_ns, |_, _| 0);
    let node = Arc::clone(&world.places[0].node);
    let mut asker = node.asker();
    assert!(passes(&mut asker, "k", 5, world.now_of(0)));
    world.change(0, specs, &members, &[], regions::S);
    world.run(20 * regions::S, |_, _| 0);
    let now = world.now_of(0);
    let ends_in_ns = ends_in_ns(now);
    assert!((25 * regions::S..=30 * regions::S).contains(&ends_in_ns), "{ends_in_ns}");
    let (units, lasts_ns) = lease(&mut asker, 1, 50, HOUR, now);
    assert!(units > 0 && lasts_ns < ends_in_ns, "{lasts_ns} of {ends_in_ns}");
}

fn config(durable: bool, after_crash: Option<Now>) -> Config {
    Config { key: KEY, memory_bytes: ROOMY, durable, after_crash, home: None }
}

/// A node that starts from a disk: after a crash at `crashed`, or after a clean stop.
fn start(spec: &LimitSpec, journal: &Journal, crashed: Option<Now>, now: Now) -> Arc<Node> {
    let node = Arc::new(Node::new(config(true, crashed)));
    let schedule = scene::node(std::slice::from_ref(spec), now).schedule();
    node.resume(schedule, now).expect("a limit");
    node.restore_all(now, |limit| journal.rows(limit));
    node
}

fn stop(node: &Node, journal: &mut Journal, now: Now) {
    journal.flush(node);
    let mut rows = Vec::new();
    node.close(now, |row| rows.push(row));
    journal.write(rows);
}

#[test]
fn an_id_and_a_refund_survive_a_restart() {
    for spec in [scene::window("w", 10, "1h"), scene::quota("w", 10, "day"), scene::bucket("w", "1/h", 10)] {
        for crashes in [false, true] {
            let mut journal = Journal::default();
            let node = start(&spec, &journal, None, START);
            let mut asker = node.asker();
            ask(&mut asker, &named(1), 4, START);
            ask(&mut asker, &named(2), 3, START);
            ask(&mut asker, &reserved(3, MINUTE, false), 2, START);
            journal.flush(&node);
            back(node.settle(ChargeId(2), None, START.later(S)));
            let now = START.later(2 * S);
            if crashes {
                journal.flush(&node)
            } else {
                stop(&node, &mut journal, now)
            }
            let node = start(&spec, &journal, crashes.then_some(now), now);
            let mut asker = node.asker();
            assert_eq!(ask(&mut asker, &named(1), 4, now), (true, 6, true), "{spec:?} {crashes}");
            assert_eq!(node.settle(ChargeId(2), None, now), Settled::Before { after_batch: 0 });
            // A bucket that earns units meanwhile may have less to refund.
            let least = if spec.token_bucket.is_some() { 3 } else { 4 };
            assert!((least..=4).contains(&back(node.settle(ChargeId(1), None, now))), "{spec:?} {crashes}");
            node.sweep(0, START.later(2 * MINUTE));
            assert_eq!(node.settle(ChargeId(3), None, START.later(2 * MINUTE)), Settled::Lapsed);
            assert!((7..=10).contains(&left(&mut asker, START.later(2 * MINUTE))), "{spec:?} {crashes}");
        }
    }
}

#[test]
fn a_charge_that_a_crash_forgot_is_not_refunded() {
    let spec = scene::bucket("b", "1/s", 50);
    let mut journal = Journal::default();
    let node = start(&spec, &journal, None, START);
    ask(&mut node.asker(), &named(1), 50, START);
    journal.flush(&node);
    let now = START.later(S);
    let node = start(&spec, &journal, Some(now), now);
    assert_eq!(back(node.settle(ChargeId(1), None, now)), 0);
    assert!(!passes(&mut node.asker(), "k", 1, now));
}

#[test]
fn refunded_units_are_spent_only_after_the_refund_is_on_disk() {
    let spec = scene::window("w", 64, "1h");
    let mut journal = Journal::default();
    let node = start(&spec, &journal, None, START);
    let mut asker = node.asker();
    ask(&mut asker, &named(1), 64, START);
    journal.flush(&node);
    assert_eq!(back(node.settle(ChargeId(1), None, START)), 64);
    let request = Request::new("shop", &[("key", "k")]);
    let answer = asker.check(&request, START, Ask::CHECK).clone();
    assert!(answer.allowed && answer.after_batch > journal.committed, "the reply waits");
    // The node crashes first. Nobody received the unit, so the charge can be refunded once more.
    let node = start(&spec, &journal, Some(START.later(S)), START.later(S));
    assert!(!passes(&mut node.asker(), "k", 1, START.later(S)));
    assert_eq!(back(node.settle(ChargeId(1), None, START.later(S))), 64);
}

#[test]
fn an_answer_that_may_be_repeated_waits_for_its_record() {
    let journal = Journal::default();
    let node = start(&scene::bucket("b", "1/s", 50), &journal, None, START);
    let mut asker = node.asker();
    let request = Request::new("shop", &[("key", "k")]);
    let mut batch = |recording: &Recording| {
        asker.check_recorded(&request, START, Ask::CHECK, recording).expect("a name").after_batch
    };
    assert_eq!(batch(&Recording { is_repeatable: false, ..named(1) }), 0);
    assert!(batch(&named(2)) > 0);
    assert!(batch(&named(2)) > 0, "also one that asks again before it is there");
    // An unwritable disk is no reason to deny. Records that nobody waits for do not pile up.
    node.journal_failed();
    assert_eq!(batch(&named(3)), 0);
    let mut disk = Journal::default();
    disk.flush(&node);
    assert_eq!(disk.rows(CHARGES).len(), 2);
}

#[test]
fn a_region_refunds_into_the_units_that_it_holds() {
    let mut world = regions::World::new(3, &[regions::window("w", 3_000, "1h")], 40 * regions::MS);
    world.run(2 * regions::S, |_, _| 0);
    let node = Arc::clone(&world.places[0].node);
    let mut asker = node.asker();
    let now = world.now_of(0);
    assert_eq!(ask(&mut asker, &named(1), 900, now), (true, 100, false));
    world.run(regions::S, |_, _| 0);
    let before = left(&mut asker, world.now_of(0));
    assert_eq!(back(node.settle(ChargeId(1), None, world.now_of(0))), 900);
    assert_eq!(left(&mut asker, world.now_of(0)), before + 900);
    // All that the regions may have together, and not a unit more.
    let mut admitted = 0;
    for _ in 0..8_000 {
        world.run(regions::MS, |_, _| 0);
        admitted += u64::from(world.ask(0, "k"));
    }
    assert!((2_900..=3_000).contains(&admitted), "{admitted}");
}

#[derive(Clone, Debug)]
enum Step {
    Ask { cost: u64 },
    Lease { cost: u64 },
    Settle { which: prop::sample::Index, cost: Option<u64> },
    Pass(u64),
    Flush,
    Crash,
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..40_u64).prop_map(|cost| Step::Ask { cost }),
        3 => (1..40_u64).prop_map(|cost| Step::Lease { cost }),
        5 => (any::<prop::sample::Index>(), prop::option::of(0..40_u64))
            .prop_map(|(which, cost)| Step::Settle { which, cost }),
        5 => select(&[MS, 100 * MS, S, 7 * S, MINUTE, 20 * MINUTE][..]).prop_map(Step::Pass),
        3 => Just(Step::Flush),
        1 => Just(Step::Crash),
        1 => Just(Step::Stop),
    ]
}

/// A charge that a caller knows of: its time, its cost, and the part that was not refunded.
#[derive(Clone, Copy)]
struct Spent {
    id: u128,
    at: Now,
    cost: u64,
    net: u64,
    is_settled: bool,
    /// Until when a lease may be spent: its holder spends it at the last moment. `None` for charges that are
    /// no lease.
    until: Option<Now>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn charges_that_are_not_refunded_stay_within_the_limit(
        steps in vec(step(), 1..120),
        (spec, hourly) in select(vec![
            (scene::window("l", 100, "1h"), 0_u64),
            (scene::window("l", 100, "1m"), 0),
            (scene::bucket("l", "360/h", 100), 360),
            (scene::bucket("l", "36000/h", 100), 36_000),
            (scene::sliding("l", 100, "2m"), 0),
            (scene::sliding("l", 50, "1h"), 0),
        ]),
    ) {
        let window_ns = match (&spec.fixed_window, &spec.sliding_window) {
            (Some(window), _) => acequia_limits::notation::parse_duration_ns(&window.window).expect("a window"),
            (_, Some(window)) => acequia_limits::notation::parse_duration_ns(&window.window).expect("a window"),
            _ => 0,
        };
        let limit = spec.sliding_window.as_ref().map_or(100, |window| window.limit);
        let mut journal = Journal::default();
        let (mut now, mut next) = (START, 0);
        let mut node = start(&spec, &journal, None, now);
        let mut asker = node.asker();
        let mut spent: Vec<Spent> = Vec::new();
        for step in steps {
            match step {
                Step::Ask { cost } => {
                    next += 1;
                    let mut request = Request::new("shop", &[("key", "k")]);
                    request.cost = cost;
                    let recording = if next % 3 == 0 { reserved(next, 10 * S, false) } else { named(next) };
                    let answer = asker.check_recorded(&request, now, Ask::CHECK, &recording).expect("a new name");
                    let (allowed, batch) = (answer.allowed, answer.after_batch);
                    if allowed {
                        if batch > journal.committed {
                            journal.flush(&node);
                        }
                        spent.push(Spent { id: next, at: now, cost, net: cost, is_settled: false, until: None });
                    }
                }
                Step::Lease { cost } => {
                    next += 1;
                    let mut request = Request::new("shop", &[("key", "k")]);
                    request.cost = cost;
                    let recording = leased(next, 30 * S);
                    let answer = asker.check_recorded(&request, now, Ask::CHECK, &recording).expect("a new name");
                    if let Some(charge) = answer.charge {
                        if answer.after_batch > journal.committed {
                            journal.flush(&node);
                        }
                        let (cost, ns) = (charge.reserved, charge.lapses_in_ns);
                        let until = Some(now.later(ns.saturating_sub(1)));
                        spent.push(Spent { id: next, at: now, cost, net: cost, is_settled: false, until });
                    }
                }
                Step::Settle { which, cost } if !spent.is_empty() => {
                    let one = which.get(&spent).id;
                    let one = spent.iter_mut().find(|spent| spent.id == one).expect("there");
                    let cost = cost.filter(|cost| *cost <= one.cost);
                    if one.is_settled && one.until.is_some() {
                        continue;
                    }
                    // Until it is settled, the lease may be spent.
                    if let Some(until) = one.until.take_if(|until| now < *until) {
                        one.at = now.min(until);
                        one.until = Some(now);
                    }
                    if let Settled::Done { after_batch, .. } = node.settle(ChargeId(one.id), cost, now) {
                        one.net = one.net.min(cost.unwrap_or(0));
                        one.is_settled = true;
                        if after_batch > journal.committed {
                            journal.flush(&node);
                        }
                    }
                }
                Step::Settle { .. } => {}
                Step::Pass(ns) => {
                    now = now.later(ns);
                    (0..4).for_each(|shard| node.sweep(shard, now));
                    // Every third charge was a reservation, which may have lapsed.
                    for one in spent.iter_mut().filter(|one| one.id.is_multiple_of(3) && !one.is_settled && one.until.is_none()) {
                        if now.steady_ns >= one.at.steady_ns + 10 * S {
                            one.net = 0;
                        }
                    }
                }
                Step::Flush => journal.flush(&node),
                Step::Crash | Step::Stop => {
                    let crashed = matches!(step, Step::Crash).then_some(now);
                    if crashed.is_none() {
                        stop(&node, &mut journal, now);
                    }
                    now = now.later(MS);
                    // Each process counts its batches from zero.
                    journal.committed = 0;
                    node = start(&spec, &journal, crashed, now);
                    asker = node.asker();
                }
            }
            // An unsettled lease is spent when it ends.
            let mut history: Vec<Spent> = spent
                .iter()
                .map(|one| match one.until {
                    Some(until) if !one.is_settled => Spent { at: until, ..*one },
                    _ => *one,
                })
                .collect();
            history.sort_by_key(|one| one.at);
            for (place, first) in history.iter().enumerate() {
                let mut sum = 0;
                for last in &history[place..] {
                    let ns = last.at.steady_ns - first.at.steady_ns;
                    let is_within = match (&spec.fixed_window, &spec.sliding_window) {
                        (Some(_), _) => last.at.wall_ns / window_ns == first.at.wall_ns / window_ns,
                        (_, Some(_)) => ns < window_ns,
                        _ => true,
                    };
                    sum += if is_within { last.net } else { 0 };
                    let most = limit + (u128::from(hourly) * u128::from(ns) / u128::from(HOUR)) as u64;
                    prop_assert!(sum <= most, "{} of {}", sum, most);
                }
            }
        }
    }
}
