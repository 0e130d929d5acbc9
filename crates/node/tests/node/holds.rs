//! Holds: units set apart for requests whose cost is known last (`expect`).

use acequia_limits::{
    Charge, Now, Reason, Request,
    expect::{AutoSpec, CostSpec, ExpectSpec},
    limit::{LimitSpec, Mode},
};
use acequia_node::{Ask, Asker, ChargeId, Node, Recording, Remember, Renewed, Reserve, Settled};

use crate::scene::{self, HOUR, MINUTE, S, START, concurrent, node};

/// A limit that sets `cost` units apart for 5 minutes.
fn expecting(cost: u64, spec: LimitSpec) -> LimitSpec {
    let expect = ExpectSpec { cost: CostSpec::Fixed(cost), within: "5m".into() };
    LimitSpec { charge: Charge::Always, expect: Some(expect), ..spec }
}

/// Limits of 1000 units, with holds of 200, that give nothing back by time for an hour.
fn all() -> [LimitSpec; 4] {
    [
        expecting(200, scene::window("w", 1_000, "1h")),
        expecting(200, scene::sliding("w", 1_000, "1h")),
        expecting(200, scene::quota("w", 1_000, "month")),
        expecting(200, scene::bucket("w", "1/h", 1_000)),
    ]
}

/// Those of them that are exact: a bucket that gives back rounds.
fn windows() -> impl Iterator<Item = LimitSpec> {
    all().into_iter().filter(|spec| spec.token_bucket.is_none())
}

const KEY: &[(&str, &str)] = &[("key", "k")];

/// The way in which a server remembers what nobody asked it to remember.
fn if_held(id: u128) -> Recording {
    let remember = Remember::IfHeld;
    Recording { id: ChargeId(id), fingerprint: 0, is_repeatable: false, reserve: None, owner: 0, remember }
}

/// Begins a request. Returns the name of its hold; `None` if the request is denied.
fn begin(asker: &mut Asker, id: u128, now: Now) -> Option<ChargeId> {
    begin_as(asker, &Request { cost: 0, ..Request::new("shop", KEY) }, id, now)
}

fn begin_as(asker: &mut Asker, request: &Request<'_>, id: u128, now: Now) -> Option<ChargeId> {
    // Far apart, since the node changes the last digits.
    let answer = asker.check_recorded(request, now, Ask::CHECK, &if_held(id * 1_000)).expect("a new name");
    assert_eq!(answer.allowed, answer.charge.is_some(), "{answer:?}");
    answer.charge.map(|charge| charge.id)
}

/// Reports a cost under the name of a hold.
fn settle(node: &Node, id: ChargeId, cost: u64, now: Now) {
    let settled = node.settle(id, Some(cost), now);
    assert!(matches!(settled, Settled::Done { .. }), "{settled:?}");
}

/// Reports a cost as a gateway does that knows no names. Says whether a hold was settled.
fn report(asker: &mut Asker, cost: u64, now: Now) -> bool {
    let request = Request { cost, ..Request::new("shop", KEY) };
    let is_settled = asker.settle_hold(&request, now);
    asker.check(&request, now, Ask { is_settled, ..Ask::CHECK });
    is_settled
}

/// Units left in the cell, and units that it owes.
fn left(asker: &mut Asker, now: Now) -> (u64, u64) {
    let answer = asker.check(&Request::new("shop", KEY), now, Ask::PEEK);
    (answer.limits[0].verdict.remaining, answer.limits[0].late.owed)
}

#[test]
fn requests_pass_while_what_they_are_expected_to_cost_fits() {
    for spec in all() {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        let ids: Vec<ChargeId> = (1..=5).map(|id| begin(&mut asker, id, START).expect("passes")).collect();
        assert_eq!(begin(&mut asker, 6, START), None);
        assert_eq!(asker.last().0.reason, Reason::OverLimit);
        assert_eq!(left(&mut asker, START).0, 0, "a denied request holds nothing more, and owes nothing");
        assert_eq!(left(&mut asker, START).1, 0);
        settle(&node, ids[0], 150, START);
        assert_eq!(left(&mut asker, START).0, 50, "what it did not cost is free at once");
        assert_eq!(begin(&mut asker, 7, START), None);
        settle(&node, ids[1], 50, START);
        assert!(begin(&mut asker, 8, START).is_some());
        assert_eq!(left(&mut asker, START).0, 0);
    }
}

#[test]
fn what_a_request_cost_beyond_its_hold_is_owed() {
    for spec in all() {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        let ids: Vec<ChargeId> = (1..=5).map(|id| begin(&mut asker, id, START).expect("passes")).collect();
        settle(&node, ids[0], 500, START);
        let answer = asker.check(&Request::new("shop", KEY), START, Ask::PEEK);
        assert_eq!((answer.allowed, answer.limits[0].late.owed), (false, 300));
        settle(&node, ids[1], 0, START);
        assert_eq!(left(&mut asker, START), (0, 100));
    }
}

#[test]
fn a_hold_that_nobody_reports_lapses() {
    lapses_if_nobody_reports();
}

fn lapses_if_nobody_reports() {
    for spec in windows() {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        let id = begin(&mut asker, 1, START).expect("passes");
        let before = START.later(5 * MINUTE - 1);
        scene::sweep_all(&node, before);
        assert_eq!(left(&mut asker, before).0, 800);
        let after = START.later(5 * MINUTE);
        scene::sweep_all(&node, after);
        assert_eq!(left(&mut asker, after).0, 1_000);
        assert_eq!(node.settle(id, None, after), Settled::Lapsed);
        settle(&node, id, 10, after);
        assert_eq!(left(&mut asker, after).0, 990, "a late report counts in full");
        assert_eq!(node.settle(id, Some(10), after), Settled::Before { after_batch: 0 });
        let (_, catalogue) = asker.last();
        let holds = catalogue.limits[0].ended_holds();
        assert_eq!((holds.reported(), holds.lapsed()), (0, 1));
    }
}

#[test]
fn a_limit_whose_holds_only_lapse_is_known_after_twenty() {
    for reported in [false, true] {
        let node = node(&[expecting(1, scene::window("w", 1_000, "1h"))], START);
        let mut asker = node.asker();
        let are_never_reported = || node.catalogue().limits[0].ended_holds().are_never_reported();
        if reported {
            let id = begin(&mut asker, 100, START).expect("passes");
            settle(&node, id, 1, START);
        }
        for id in 1..=20 {
            assert!(!are_never_reported(), "{id}");
            let now = START.later(id * MINUTE);
            begin(&mut asker, id.into(), now).expect("passes");
            scene::sweep_all(&node, now);
        }
        scene::sweep_all(&node, START.later(25 * MINUTE));
        assert_eq!(are_never_reported(), !reported);
    }
}

/// A reservation of what the request is expected to cost, for ten minutes.
fn reserving(keeps: bool) -> Recording {
    let reserve = Some(Reserve { ttl_ns: 10 * MINUTE, keeps, at_most: false });
    Recording { fingerprint: 9, reserve, remember: Remember::Always, is_repeatable: true, ..if_held(5) }
}

#[test]
fn a_hold_that_its_caller_keeps_stays_charged_when_nobody_reports_it() {
    for (keeps, left_after) in [(false, 1_000), (true, 800)] {
        for spec in windows() {
            let node = node(&[spec], START);
            let mut asker = node.asker();
            let request = Request { cost: 0, ..Request::new("shop", KEY) };
            let asked = asker.check_recorded(&request, START, Ask::CHECK, &reserving(keeps));
            assert!(asked.expect("a new name").allowed);
            let after = START.later(10 * MINUTE);
            scene::sweep_all(&node, after);
            assert_eq!(left(&mut asker, after).0, left_after, "{keeps}");
            // Who comes late finds it settled if it was kept, and otherwise is charged.
            let settled = node.settle(ChargeId(5), Some(300), after);
            assert_eq!(settled == Settled::Lapsed, keeps, "{settled:?}");
            assert_eq!(left(&mut asker, after), (if keeps { 800 } else { 700 }, 0));
        }
    }
}

#[test]
fn a_reservation_that_is_a_hold_counts_a_late_cost_in_full_and_once() {
    let specs = [
        scene::window("w", 1_000, "1h"),
        scene::sliding("w", 1_000, "1h"),
        scene::quota("w", 1_000, "month"),
        expecting(200, scene::window("w", 1_000, "1h")),
    ];
    for spec in specs {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        let reserving = |id: u128| {
            let reserve = Some(Reserve { ttl_ns: MINUTE, keeps: false, at_most: false });
            Recording { id: ChargeId(id), fingerprint: 9, reserve, remember: Remember::AsHold, ..if_held(5) }
        };
        let request = Request { cost: 300, ..Request::new("shop", KEY) };
        for id in 1..=3 {
            let asked = asker.check_recorded(&request, START, Ask::CHECK_NOW, &reserving(id));
            assert!(asked.expect("a new name").allowed);
        }
        settle(&node, ChargeId(1), 100, START);
        assert_eq!(left(&mut asker, START), (300, 0));
        settle(&node, ChargeId(2), 700, START);
        assert_eq!(left(&mut asker, START), (0, 100), "what it cost beyond its hold is owed");
        let after = START.later(MINUTE);
        scene::sweep_all(&node, after);
        assert_eq!(left(&mut asker, after), (200, 0), "nobody reported the third");
        assert_eq!(node.settle(ChargeId(3), Some(0), after), Settled::Lapsed);
        settle(&node, ChargeId(3), 50, after);
        for cost in [50, 60] {
            assert_eq!(node.settle(ChargeId(3), Some(cost), after), Settled::Before { after_batch: 0 });
        }
        assert_eq!(left(&mut asker, after), (150, 0));
    }
}

#[test]
fn a_hold_that_its_caller_keeps_takes_its_real_cost_from_a_report_in_time() {
    let node = node(&[expecting(200, scene::window("w", 1_000, "1h"))], START);
    let mut asker = node.asker();
    let request = Request { cost: 0, ..Request::new("shop", KEY) };
    assert!(asker.check_recorded(&request, START, Ask::CHECK, &reserving(true)).expect("new").allowed);
    settle(&node, ChargeId(5), 30, START);
    assert_eq!(left(&mut asker, START).0, 970);
}

#[test]
fn a_hold_beside_a_slot_stays_charged_if_its_caller_keeps_it_and_the_slot_is_free() {
    for (recording, left_after) in [(reserving(true), 800), (reserving(false), 1_000), (if_held(5), 1_000)] {
        let mut slots = concurrent("c", 1, "10m");
        slots.by = vec![acequia_limits::limit::BySpec::Key("user".into())];
        let node = node(&[expecting(200, scene::window("w", 1_000, "1h")), slots], START);
        let mut asker = node.asker();
        let request = counted_beside_a_hold();
        assert!(asker.check_recorded(&request, START, Ask::CHECK, &recording).expect("new").allowed);
        assert!(!asker.check(&request, START, Ask::PEEK).allowed, "the slot is taken");
        let after = START.later(10 * MINUTE);
        scene::sweep_all(&node, after);
        assert_eq!(left(&mut asker, after).0, left_after, "{recording:?}");
        assert!(asker.check(&request, after, Ask::PEEK).allowed, "the slot is free");
    }
}

#[test]
fn a_report_without_a_name_settles_the_hold_that_lapses_first() {
    for spec in windows() {
        let node = node(&[spec], START);
        let mut asker = node.asker();
        let first = begin(&mut asker, 1, START).expect("passes");
        let second = begin(&mut asker, 2, START.later(S)).expect("passes");
        let now = START.later(2 * S);
        assert!(report(&mut asker, 150, now));
        assert_eq!(left(&mut asker, now), (650, 0));
        // The request of the first hold reports by name: it takes the other hold.
        settle(&node, first, 50, now);
        assert_eq!(left(&mut asker, now), (800, 0));
        // Nothing is held any more, and every report counts, once.
        settle(&node, second, 60, now);
        assert_eq!(left(&mut asker, now), (740, 0));
        assert_eq!(node.settle(second, Some(60), now), Settled::Before { after_batch: 0 });
        assert!(!report(&mut asker, 100, now), "none is held");
        assert_eq!(left(&mut asker, now), (640, 0));
    }
}

#[test]
fn reports_settle_holds_of_their_own_cells_alone() {
    let node = node(&[expecting(200, scene::window("w", 1_000, "1h"))], START);
    let mut asker = node.asker();
    let other = Request { cost: 0, ..Request::new("shop", &[("key", "other")]) };
    assert!(begin_as(&mut asker, &other, 1, START).is_some());
    assert!(!report(&mut asker, 70, START));
    assert_eq!(left(&mut asker, START), (930, 0));
    let peek = asker.check(&Request { cost: 1, ..other }, START, Ask::PEEK);
    assert_eq!(peek.limits[0].verdict.remaining, 800);
}

#[test]
fn a_request_that_any_limit_denies_holds_nothing() {
    let narrow = LimitSpec { name: "narrow".into(), ..expecting(600, scene::window("n", 1_000, "1h")) };
    let node = node(&[expecting(200, scene::window("w", 1_000, "1h")), narrow], START);
    let mut asker = node.asker();
    assert!(begin(&mut asker, 1, START).is_some());
    assert_eq!(begin(&mut asker, 2, START), None);
    let remaining = |asker: &mut Asker| {
        let answer = asker.check(&Request::new("shop", KEY), START, Ask::PEEK);
        let mut all: Vec<u64> = answer.limits.iter().map(|limit| limit.verdict.remaining).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(remaining(&mut asker), [400, 800]);
    assert!(report(&mut asker, 100, START), "one report settles the holds of both");
    assert_eq!(remaining(&mut asker), [900, 900]);
}

/// A request whose tokens are not known yet, and which counts as one of its user.
fn counted_beside_a_hold() -> Request<'static> {
    let mut request = Request { cost: 0, ..Request::new("shop", KEY) };
    let start = request.entries.len() as u32;
    request.entries.push((b"user", b"u"));
    request.spans.push(acequia_limits::descriptor::Span {
        start,
        end: start + 1,
        cost: Some(1),
        limit: None,
    });
    request
}

#[test]
fn other_limits_keep_what_a_request_with_a_hold_was_charged() {
    let mut requests = scene::window("requests", 10, "1h");
    requests.by = vec![acequia_limits::limit::BySpec::Key("user".into())];
    let node = node(&[expecting(200, scene::window("w", 1_000, "1h")), requests], START);
    let mut asker = node.asker();
    let request = counted_beside_a_hold();
    let used = |asker: &mut Asker, now| {
        let answer = asker.check(&Request::new("shop", &[("user", "u")]), now, Ask::PEEK);
        10 - answer.limits[0].verdict.remaining
    };
    let first = begin_as(&mut asker, &request, 1, START).expect("passes");
    let second = begin_as(&mut asker, &request, 2, START).expect("passes");
    assert!(begin_as(&mut asker, &request, 3, START).is_some());
    assert_eq!((left(&mut asker, START).0, used(&mut asker, START)), (400, 3));
    settle(&node, first, 30, START);
    assert_eq!((left(&mut asker, START).0, used(&mut asker, START)), (570, 3));
    assert!(matches!(node.settle(second, None, START), Settled::Done { .. }));
    assert_eq!((left(&mut asker, START).0, used(&mut asker, START)), (770, 3));
    let after = START.later(5 * MINUTE);
    scene::sweep_all(&node, after);
    assert_eq!((left(&mut asker, after).0, used(&mut asker, after)), (970, 3));
}

#[test]
fn a_look_a_report_and_a_lease_hold_nothing() {
    let node = node(&[expecting(200, scene::window("w", 1_000, "1h"))], START);
    let mut asker = node.asker();
    let nothing = Request { cost: 0, ..Request::new("shop", KEY) };
    for ask in [Ask::PEEK, Ask::REPORT] {
        asker.check(&nothing, START, ask);
        assert!(!asker.holds_units());
    }
    let reserve = Some(Reserve { ttl_ns: MINUTE, keeps: false, at_most: true });
    let lease = Recording { reserve, remember: Remember::Always, ..if_held(1) };
    let answer = asker.check_recorded(&nothing, START, Ask::CHECK, &lease).expect("a new name");
    assert!(answer.limits.iter().all(|limit| limit.late.expected == 0));
}

#[test]
fn a_caller_may_name_the_charge_of_a_hold() {
    let node = node(&[expecting(200, scene::window("w", 1_000, "1h"))], START);
    let mut asker = node.asker();
    let named = Recording { fingerprint: 9, remember: Remember::Always, is_repeatable: true, ..if_held(5) };
    let request = Request { cost: 0, ..Request::new("shop", KEY) };
    for is_repeat in [false, true] {
        let answer = asker.check_recorded(&request, START, Ask::CHECK, &named).expect("the first request");
        let charge = answer.charge.expect("remembered");
        assert_eq!((charge.is_repeat, charge.lapses_in_ns), (is_repeat, 5 * MINUTE));
    }
    assert_eq!(left(&mut asker, START).0, 800);
    assert!(!report(&mut asker, 100, START), "it is settled by its name");
    assert_eq!(node.renew(ChargeId(5), START), Renewed::Unknown);
    settle(&node, ChargeId(5), 300, START);
    assert_eq!(left(&mut asker, START).0, 600);
}

#[test]
fn a_hold_is_no_larger_than_what_an_override_leaves_its_cell() {
    let small = scene::fields(&[("key", &["k"]), ("limit", &["100"])]);
    let spec = LimitSpec { overrides: vec![small], ..expecting(200, scene::window("w", 1_000, "1h")) };
    let node = node(&[spec], START);
    let mut asker = node.asker();
    let id = begin(&mut asker, 1, START).expect("passes");
    assert_eq!((left(&mut asker, START).0, begin(&mut asker, 2, START)), (0, None));
    settle(&node, id, 30, START);
    assert_eq!(left(&mut asker, START).0, 70);
}

#[test]
fn a_weight_counts_for_holds_and_reports() {
    let spec = LimitSpec { cost: Some(2), ..expecting(200, scene::window("w", 1_000, "1h")) };
    let node = node(&[spec], START);
    let mut asker = node.asker();
    let id = begin(&mut asker, 1, START).expect("passes");
    assert!(begin(&mut asker, 2, START).is_some());
    assert_eq!(begin(&mut asker, 3, START), None);
    settle(&node, id, 250, START);
    assert_eq!(left(&mut asker, START).0, 100);
    assert!(report(&mut asker, 10, START));
    assert_eq!(left(&mut asker, START).0, 480);
}

#[test]
fn a_limit_that_watches_holds_what_fits() {
    let spec = LimitSpec { mode: Mode::Shadow, ..expecting(600, scene::window("w", 1_000, "1h")) };
    let node = node(&[spec], START);
    let mut asker = node.asker();
    assert!(begin(&mut asker, 1, START).is_some());
    let request = Request { cost: 0, ..Request::new("shop", KEY) };
    assert!(asker.check(&request, START, Ask::CHECK).allowed, "it denies nobody");
    assert_eq!(left(&mut asker, START), (400, 0));
    assert!(report(&mut asker, 700, START));
    assert!(!report(&mut asker, 700, START));
    assert_eq!(left(&mut asker, START), (0, 400));
}

#[test]
fn expected_costs_follow_what_requests_cost() {
    let auto = AutoSpec { quantile: 0.9, floor: 10, cap: 500 };
    let expect = ExpectSpec { cost: CostSpec::Auto { auto }, within: "5m".into() };
    let spec =
        LimitSpec { charge: Charge::Always, expect: Some(expect), ..scene::window("w", 1_000_000, "1h") };
    let node = node(&[spec], START);
    let mut asker = node.asker();
    let held = |asker: &mut Asker, id| {
        let before = left(asker, START).0;
        let id = begin(asker, id, START).expect("passes");
        (before - left(asker, START).0, id)
    };
    for number in 0..20 {
        let (units, id) = held(&mut asker, 1 + number);
        assert_eq!(units, 500, "too little is known");
        match number % 2 {
            0 => settle(&node, id, 40, START),
            _ => assert!(report(&mut asker, 40, START)),
        }
    }
    assert_eq!(held(&mut asker, 50).0, 40);
    for _ in 0..40 {
        report(&mut asker, 1, START);
    }
    assert_eq!(held(&mut asker, 51).0, 10, "no less than the floor");
    for _ in 0..40 {
        report(&mut asker, 5_000, START);
    }
    assert_eq!(held(&mut asker, 52).0, 500, "no more than the cap");
    let other = Request { cost: 0, ..Request::new("shop", &[("key", "other")]) };
    begin_as(&mut asker, &other, 60, START);
    let peek = asker.check(&Request { cost: 1, ..other }, START, Ask::PEEK);
    assert_eq!(peek.limits[0].verdict.remaining, 999_500, "another cell knows nothing of it");
}

#[test]
fn somebody_who_looks_sees_what_each_cell_has_set_apart() {
    let narrow = LimitSpec { name: "narrow".into(), ..expecting(50, scene::window("n", 1_000, "1h")) };
    let plain = LimitSpec { name: "plain".into(), ..scene::window("p", 1_000, "1h") };
    let node = node(&[expecting(200, scene::window("w", 1_000, "1h")), narrow, plain], START);
    let mut asker = node.asker();
    let held = |asker: &mut Asker, now| -> Vec<u64> {
        let answer = asker.check(&Request::new("shop", KEY), now, Ask::PEEK).clone();
        let mut all: Vec<u64> =
            node.held(&answer, asker.catalogue()).into_iter().map(|cell| cell.units).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(held(&mut asker, START), [0, 0], "the plain limit holds nothing");
    let other = Request { cost: 0, ..Request::new("shop", &[("key", "other")]) };
    begin_as(&mut asker, &other, 1, START);
    let first = begin(&mut asker, 2, START).expect("passes");
    begin(&mut asker, 3, START.later(S)).expect("passes");
    assert_eq!(held(&mut asker, START.later(S)), [100, 400]);
    settle(&node, first, 10, START.later(S));
    assert_eq!(held(&mut asker, START.later(S)), [50, 200]);
    let after = START.later(6 * MINUTE);
    scene::sweep_all(&node, after);
    assert_eq!(held(&mut asker, after), [0, 0], "it has lapsed");
}

#[test]
fn a_request_that_says_what_it_costs_holds_nothing_of_that_cell() {
    for costs in [[50, 0], [0, 50]] {
        let node = node(&[expecting(200, scene::window("w", 1_000, "1h"))], START);
        let mut asker = node.asker();
        let mut request = Request::new("shop", KEY);
        request.spans[0].cost = Some(costs[0]);
        let start = request.entries.len() as u32;
        request.entries.push((b"key", b"k"));
        request.spans.push(acequia_limits::descriptor::Span {
            start,
            end: start + 1,
            cost: Some(costs[1]),
            limit: None,
        });
        assert!(asker.check(&request, START, Ask::CHECK).allowed);
        assert!(!asker.holds_units());
        assert_eq!(left(&mut asker, START), (950, 0));
    }
}

#[test]
fn a_report_that_settles_a_hold_counts_on_other_limits_though_nothing_is_left() {
    let plain = LimitSpec { name: "plain".into(), ..scene::window("p", 2_000, "1h") };
    let node = node(&[expecting(200, scene::window("w", 1_000, "1h")), plain], START);
    let mut asker = node.asker();
    for id in 1..=5 {
        assert!(begin(&mut asker, id, START).is_some());
    }
    assert!(report(&mut asker, 200, START));
    assert!(asker.last().0.allowed);
    let answer = asker.check(&Request::new("shop", KEY), START, Ask::PEEK);
    let mut remaining: Vec<u64> = answer.limits.iter().map(|limit| limit.verdict.remaining).collect();
    remaining.sort_unstable();
    assert_eq!(remaining, [0, 1_800]);
}

#[test]
fn a_report_of_any_size_is_taken() {
    for cost in [1, 200, 201, 11_000, u64::MAX] {
        let node = node(&[expecting(200, scene::window("w", 1_000, "1h"))], START);
        let mut asker = node.asker();
        assert!(begin(&mut asker, 1, START).is_some());
        assert!(report(&mut asker, cost, START));
        let recorded = cost.min(11_000);
        assert_eq!(
            left(&mut asker, START),
            (1_000_u64.saturating_sub(recorded), recorded.saturating_sub(1_000))
        );
    }
}

#[test]
fn what_a_hold_lacked_is_owed_though_the_rate_was_lowered_meanwhile() {
    let spec = |rate| expecting(200, scene::bucket("w", rate, 1_000));
    let node = node(&[spec("100/h")], START);
    let mut asker = node.asker();
    let id = begin(&mut asker, 1, START).expect("passes");
    scene::apply(&node, &[spec("1/h")], START);
    settle(&node, id, 1_500, START);
    assert_eq!(left(&mut asker, START), (0, 500));
}

#[test]
fn a_hold_takes_less_than_700_bytes() {
    let node = node(&[expecting(1, scene::window("w", 1_000, "1h"))], START);
    let mut asker = node.asker();
    for id in 1..=100 {
        assert!(begin(&mut asker, id, START).is_some());
    }
    let charges = node.charges();
    assert_eq!(charges.reserved, 100);
    assert!(charges.bytes / 100 <= 700, "{} bytes", charges.bytes / 100);
}

fn slots_of_unnamed_reports() {
    let mut slots = concurrent("c", 3, "10m");
    slots.by = vec![acequia_limits::limit::BySpec::Key("user".into())];
    let node = node(&[expecting(200, scene::window("w", 1_000, "1h")), slots], START);
    let mut asker = node.asker();
    let request = counted_beside_a_hold();
    assert!(begin_as(&mut asker, &request, 1, START).is_some());
    assert_eq!(left(&mut asker, START).0, 800);
    assert!(!report(&mut asker, 100, START), "whoever has no name may have no slot");
}

#[test]
fn a_report_without_a_name_frees_no_slot() {
    slots_of_unnamed_reports();
}

/// Requests of any cost up to their hold, on any timing, never pass the limit.
fn never_over() {
    for seed in 0..200_u64 {
        let node = node(&[expecting(200, scene::window("w", 1_000, "1h"))], START);
        let mut asker = node.asker();
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let (mut open, mut spent, mut now) = (Vec::new(), 0, START);
        for id in 1..=100 {
            now = now.later(next(20) * S);
            match next(3) {
                0 => open.extend(begin(&mut asker, id, now).map(|id| (id, now.later(5 * MINUTE)))),
                1 if !open.is_empty() => {
                    let cost = next(201);
                    let (id, until) = open.swap_remove(next(open.len() as u64) as usize);
                    // A request that never reports is not counted.
                    if now.steady_ns < until.steady_ns {
                        settle(&node, id, cost, now);
                        spent += cost;
                    }
                }
                _ => scene::sweep_all(&node, now),
            }
            assert!(spent <= 1_000, "{spent} of 1000 units passed, seed {seed}");
        }
        assert!(now < START.later(HOUR), "one window");
        assert!(spent > 500, "{spent}");
    }
}

#[test]
fn what_requests_cost_up_to_their_holds_never_passes_the_limit() {
    never_over();
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::Mutation;
    let stories: [(Mutation, fn()); 3] = [
        (Mutation::HoldOfNothing, never_over),
        (Mutation::HoldNeverLapses, lapses_if_nobody_reports),
        (Mutation::UnnamedReportFreesSlots, slots_of_unnamed_reports),
    ];
    scene::each_is_noticed(&stories);
}
