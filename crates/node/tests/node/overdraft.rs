//! Costs that were spent before they were asked for: reports, and limits that say `charge: always`.

use std::sync::Arc;

use acequia_limits::{
    Charge, Mode, Now, Reason, Request,
    classes::ClassesSpec,
    limit::{LimitSpec, NoWait},
};
use acequia_node::{
    Answer, Ask, Asker, ChargeId, Config, Node, Overdraft, Recording, Remember, Reserve, Settled,
};

use crate::scene::{
    self, HOUR, Journal, KEY, MINUTE, MS, ROOMY, S, START, approximate, ask, ask_as, bucket, flood, leaky,
    node, quota, sliding, slots, window,
};
use crate::{pools, regions};

/// A limit that records every hit.
fn always(spec: LimitSpec) -> LimitSpec {
    LimitSpec { charge: Charge::Always, ..spec }
}

/// One limit of 100 units for each way to count. A bucket gives one unit a second.
fn hundreds() -> [LimitSpec; 7] {
    [
        bucket("l", "1/s", 100),
        leaky("l", "1/s", 100, NoWait::Allow),
        window("l", 100, "1h"),
        quota("l", 100, "day"),
        sliding("l", 100, "1h"),
        slots("l", 100, "1h", 4),
        approximate("l", 100, "1h"),
    ]
}

fn report<'a>(asker: &'a mut Asker, key: &str, cost: u64, now: Now) -> &'a Answer {
    ask_as(asker, key, cost, now, Ask::REPORT)
}

/// What is left for a key, and what it owes.
fn stand(asker: &mut Asker, now: Now) -> (u64, u64) {
    let limit = ask_as(asker, "k", 1, now, Ask::PEEK).limits[0];
    (limit.verdict.remaining, limit.late.owed)
}

fn overdrawn(node: &Node) -> u64 {
    node.catalogue().limits[0].overdrawn_units()
}

#[test]
fn a_report_that_does_not_fit_is_owed_and_nothing_passes_until_it_is_paid() {
    for spec in hundreds() {
        let node = node(std::slice::from_ref(&spec), START);
        let mut asker = node.asker();
        assert!(ask(&mut asker, "k", 60, START).allowed);
        let answer = report(&mut asker, "k", 70, START);
        let limit = answer.limits[0];
        assert_eq!((answer.allowed, limit.is_charged, limit.late.owed), (false, true, 30), "{spec:?}");
        let back = START.later(answer.retry_after_ns);
        assert_eq!(stand(&mut asker, START), (0, 30), "{spec:?}");
        assert!(!ask(&mut asker, "k", 1, START).allowed && !ask(&mut asker, "k", 1, START.later(S)).allowed);
        assert_eq!(overdrawn(&node), 30, "{spec:?}");
        // The answer said when a report of 70 fits again.
        assert!(ask(&mut asker, "k", 70, back).allowed, "{spec:?}");
    }
}

#[test]
fn a_limit_that_charges_always_records_a_hit_that_it_denies() {
    for spec in hundreds() {
        let node = node(&[always(spec.clone())], START);
        let mut asker = node.asker();
        assert!(ask(&mut asker, "k", 60, START).allowed);
        assert!(!ask(&mut asker, "k", 70, START).allowed);
        assert_eq!(stand(&mut asker, START), (0, 30), "{spec:?}");
        // Without that word, a hit that does not fit is forgotten.
        let node = scene::node(std::slice::from_ref(&spec), START);
        let mut asker = node.asker();
        assert!(ask(&mut asker, "k", 60, START).allowed && !ask(&mut asker, "k", 70, START).allowed);
        assert_eq!(stand(&mut asker, START), (40, 0), "{spec:?}");
    }
}

#[test]
fn a_cell_owes_at_most_the_limits_debt_and_the_rest_is_only_counted() {
    for spec in hundreds() {
        for (debt, owed) in [(None, 1_000), (Some(50), 50), (Some(0), 0)] {
            let node = node(&[always(LimitSpec { debt, ..spec.clone() })], START);
            let mut asker = node.asker();
            let answer = report(&mut asker, "k", u64::MAX, START);
            assert_eq!(
                (answer.limits[0].late.owed, answer.limits[0].late.unrecorded),
                (owed, u64::MAX - 100 - owed)
            );
            assert_eq!((stand(&mut asker, START), overdrawn(&node)), ((0, owed), u64::MAX - 100), "{spec:?}");
            report(&mut asker, "k", 7, START);
            assert_eq!(stand(&mut asker, START), (0, owed), "{spec:?}");
        }
    }
}

#[test]
fn a_denied_request_charges_the_limits_that_charge_always_and_no_others() {
    let small = always(window("small", 10, "1h"));
    let (large, other) = (always(window("large", 100, "1h")), window("other", 100, "1h"));
    let node = node(&[small, large, other], START);
    let mut asker = node.asker();
    let answer = ask(&mut asker, "k", 30, START);
    assert!(!answer.allowed);
    let by_name = |answer: &Answer, asker: &Asker| -> Vec<_> {
        let catalogue = asker.catalogue();
        let name = |limit: u32| catalogue.limits[limit as usize].limit.spec.name.clone();
        answer.limits.iter().map(|l| (name(l.limit), l.verdict.remaining, l.late.owed)).collect()
    };
    let answer = answer.clone();
    let expected = [("small", 0, 20), ("large", 70, 0), ("other", 100, 0)];
    let expected = expected.map(|(name, left, owed)| (name.to_owned(), left, owed));
    assert_eq!(by_name(&answer, &asker), expected);
    let answer = ask_as(&mut asker, "k", 1, START, Ask::PEEK).clone();
    let lefts: Vec<_> =
        answer.limits.iter().map(|limit| (limit.verdict.remaining, limit.late.owed)).collect();
    assert_eq!(lefts, [(0, 20), (70, 0), (100, 0)]);
    // A report charges every limit.
    report(&mut asker, "k", 30, START);
    let answer = ask_as(&mut asker, "k", 1, START, Ask::PEEK).clone();
    let lefts: Vec<_> =
        answer.limits.iter().map(|limit| (limit.verdict.remaining, limit.late.owed)).collect();
    assert_eq!(lefts, [(0, 50), (40, 0), (70, 0)]);
}

#[test]
fn a_look_records_nothing_and_a_limit_that_only_watches_records_all() {
    let node = node(&[LimitSpec { mode: Mode::Shadow, ..always(window("w", 10, "1h")) }], START);
    let mut asker = node.asker();
    ask_as(&mut asker, "k", 30, START, Ask::PEEK);
    let mut zero = Request::new("shop", &[("key", "k")]);
    zero.cost = 0;
    asker.check(&zero, START, Ask::CHECK);
    asker.check(&zero, START, Ask::REPORT);
    assert_eq!(stand(&mut asker, START), (10, 0));
    let answer = ask(&mut asker, "k", 30, START);
    assert!(answer.allowed && answer.limits[0].is_charged);
    assert_eq!(stand(&mut asker, START), (0, 20));
}

#[test]
fn a_request_that_may_wait_records_its_hit_once_when_it_is_denied_for_good() {
    let node = node(&[always(window("w", 10, "1h"))], START);
    let mut asker = node.asker();
    let later = Ask::CHECK.overdraft(Overdraft::Later);
    for n in 1..=3 {
        assert!(!ask_as(&mut asker, "k", 30, START.later(n), later).allowed);
        assert_eq!(stand(&mut asker, START.later(n)), (10, 0));
    }
    assert!(!ask_as(&mut asker, "k", 30, START.later(4), Ask::CHECK.again()).allowed);
    assert_eq!(stand(&mut asker, START.later(4)), (0, 20));
}

#[test]
fn a_commit_above_the_reservation_is_recorded_beyond_what_is_left() {
    for spec in hundreds() {
        let node = node(std::slice::from_ref(&spec), START);
        let mut asker = node.asker();
        let reserve = Some(Reserve { ttl_ns: 30 * S, keeps: false, at_most: false });
        let recording = Recording {
            id: ChargeId(1),
            fingerprint: 1,
            is_repeatable: true,
            reserve,
            owner: 0,
            remember: Remember::Always,
        };
        let mut request = Request::new("shop", &[("key", "k")]);
        request.cost = 60;
        assert!(asker.check_recorded(&request, START, Ask::CHECK, &recording).expect("new").allowed);
        let settled = node.settle(ChargeId(1), Some(130), START);
        assert!(matches!(&settled, Settled::Done { refunded, .. } if refunded.is_empty()), "{settled:?}");
        assert_eq!((stand(&mut asker, START), overdrawn(&node)), ((0, 30), 30), "{spec:?}");
        assert_eq!(node.settle(ChargeId(1), Some(130), START), Settled::Before { after_batch: 0 });
        assert_eq!(stand(&mut asker, START), (0, 30), "{spec:?}");
    }
}

#[test]
fn a_report_with_an_id_is_recorded_once() {
    let node = node(&[window("w", 100, "1h")], START);
    let mut asker = node.asker();
    let recording = Recording {
        id: ChargeId(1),
        fingerprint: 1,
        is_repeatable: true,
        reserve: None,
        owner: 0,
        remember: Remember::Always,
    };
    let mut request = Request::new("shop", &[("key", "k")]);
    request.cost = 130;
    for repeat in [false, true, true] {
        let answer = asker.check_recorded(&request, START, Ask::REPORT, &recording).expect("the same report");
        assert_eq!(answer.charge.map(|charge| charge.is_repeat), Some(repeat));
    }
    assert_eq!(stand(&mut asker, START), (0, 30));
    // What is given back is what was recorded.
    let node = scene::node(&[LimitSpec { debt: Some(10), ..window("w", 100, "1h") }], START);
    let mut asker = node.asker();
    asker.check_recorded(&request, START, Ask::REPORT, &recording).expect("a new report");
    assert_eq!(stand(&mut asker, START), (0, 10));
    let Settled::Done { refunded, .. } = node.settle(ChargeId(1), None, START) else { panic!("not settled") };
    assert_eq!(refunded[0].units, 110);
    assert_eq!(stand(&mut asker, START), (100, 0));
}

#[test]
fn a_classs_own_cell_owes_what_neither_it_nor_the_remainder_has() {
    let json =
        r#"{"entry": "plan", "separate": {"gold": 30, "free": 10}, "shared": {"gold": "0%", "free": "50%"}}"#;
    let classes: ClassesSpec = serde_json::from_str(json).expect("classes");
    let node = node(&[LimitSpec { classes: Some(classes), ..window("l", 100, "1h") }], START);
    let mut asker = node.asker();
    let mut ask = |plan: &str, cost: u64, ask: Ask| {
        let mut request = Request::new("shop", &[("key", "k"), ("plan", plan)]);
        request.cost = cost;
        let answer = asker.check(&request, START, ask);
        assert_eq!(answer.limits.len(), 1, "one cell speaks");
        (answer.allowed, answer.limits[0].late.owed)
    };
    assert_eq!(ask("free", 70, Ask::REPORT), (false, 60));
    assert!(
        ask("free", 30, Ask::CHECK).0,
        "the remainder is untouched: it has 60, of which the class leaves half"
    );
    assert_eq!(ask("gold", 30, Ask::CHECK), (true, 0), "and so is another class");
}

#[test]
fn a_throttled_limit_and_its_warnings_count_what_was_reported() {
    let node = node(&[LimitSpec { warn_at: vec![50, 100], ..always(window("w", 100, "1h")) }], START);
    let mut asker = node.asker();
    report(&mut asker, "k", 130, START);
    let warned: Vec<_> = node.take_warnings().0.iter().map(|warning| warning.percent).collect();
    assert_eq!(warned, [50, 100]);
}

#[test]
fn a_report_of_a_new_key_leaves_no_debt_with_others_while_memory_is_full() {
    let node = scene::small_node(&[always(window("w", 100, "1h"))], false, START);
    flood(&node, "flood", START);
    let mut asker = node.asker();
    report(&mut asker, "another new key", 500, START);
    let limit = ask_as(&mut asker, "a third key", 1, START, Ask::PEEK).limits[0];
    assert_eq!((limit.reason, limit.late.owed), (Reason::Overflow, 0));
}

#[test]
fn a_journalled_debt_survives_a_crash() {
    let config =
        |after_crash| Config { key: KEY, memory_bytes: ROOMY, durable: true, after_crash, home: None };
    let spec = always(LimitSpec { debt: Some(500), ..window("w", 100, "1h") });
    let node = scene::node_of(config(None), std::slice::from_ref(&spec), START);
    let mut journal = Journal::default();
    let answer = report(&mut node.asker(), "k", 130, START).clone();
    assert!(answer.after_batch > 0, "the answer waits for the disk");
    journal.flush(&node);
    let after = START.later(MINUTE);
    let restarted = Arc::new(Node::new(config(Some(after))));
    restarted.resume(node.schedule(), after).expect("a schedule that fits");
    restarted.restore_all(after, |limit| journal.rows(limit));
    restarted.apply(scene::limits(&[spec]), after, |limit| journal.rows(limit)).expect("a set that fits");
    let mut asker = restarted.asker();
    assert_eq!(stand(&mut asker, after), (0, 30));
    assert!(!ask(&mut asker, "k", 1, after).allowed && ask(&mut asker, "k", 100, START.later(HOUR)).allowed);
}

/// Three regions share 300 units. One reports 200 units, of which it had 100.
#[test]
fn a_report_in_one_region_lets_no_region_pass_more_than_the_limit() {
    for spec in
        [regions::window("l", 300, "1h"), regions::bucket("l", "1/s", 300), regions::sliding("l", 300, "1h")]
    {
        for is_cut in [false, true] {
            let mut world = regions::World::new(3, std::slice::from_ref(&spec), 40 * MS);
            world.run(2 * S, |_, _| 0);
            assert_eq!(world.report(0, "k", 200), 100, "{spec:?}");
            if is_cut {
                world.cut = vec![(0, 1), (1, 0), (0, 2), (2, 0)];
            }
            assert!(!world.ask(0, "k"), "the region owes {spec:?}");
            world.run(5 * S, |_, _| 1);
            let refilled = if spec.token_bucket.is_some() { 8 } else { 0 };
            let (admitted, recorded, overdrawn) = (world.admitted(), 200, 100);
            assert!(admitted + recorded <= 300 + overdrawn + refilled, "{admitted} passed {spec:?}");
            if is_cut {
                assert_eq!(world.places[0].admitted, 0, "nothing passes where the debt is: {spec:?}");
                assert!(admitted >= 198, "others go on with what they own: {admitted} {spec:?}");
            }
        }
    }
}

/// Three regions share 300 units, and none of them has any left before the others hear of a debt.
fn three_regions(spec: &LimitSpec) -> regions::World {
    let mut world = regions::World::new(3, std::slice::from_ref(spec), 40 * MS);
    world.run(2 * S, |_, _| 0);
    world
}

#[test]
fn while_more_is_owed_than_is_left_no_region_that_hears_of_it_admits_anything() {
    for spec in
        [regions::window("l", 300, "1h"), regions::bucket("l", "1/m", 300), regions::sliding("l", 300, "1h")]
    {
        let mut world = three_regions(&spec);
        // The debt is 800, and the others have 200 left.
        assert_eq!(world.report(0, "k", 900), 800, "{spec:?}");
        // A round trip, and the time between two rebalances.
        world.run(150 * MS, |_, _| 0);
        world.run(20 * S, |_, _| 1);
        assert_eq!(world.admitted(), 0, "{spec:?}");
        let (_, verdict) = world.peek(1, "k");
        // A bucket fills up a little between two rebalances.
        assert!(!verdict.allowed && verdict.remaining <= 1, "{verdict:?} {spec:?}");
        assert!((1..=2 * 3_600 * S).contains(&verdict.retry_after_ns), "{verdict:?} {spec:?}");
    }
}

#[test]
fn a_debt_is_known_elsewhere_though_nobody_has_asked_for_the_cell_for_long() {
    for spec in [regions::window("l", 300, "1h"), regions::sliding("l", 300, "1h")] {
        let mut world = three_regions(&spec);
        world.report(0, "k", 900);
        world.run(40 * S, |_, _| 0);
        assert!(!world.ask(1, "k") && !world.ask(2, "k"), "{spec:?}");
    }
}

#[test]
fn while_more_is_left_than_is_owed_the_regions_admit_the_difference() {
    for spec in [regions::window("l", 300, "1h"), regions::sliding("l", 300, "1h")] {
        let mut world = three_regions(&spec);
        assert_eq!(world.report(0, "k", 200), 100, "{spec:?}");
        world.run(150 * MS, |_, _| 0);
        world.run(20 * S, |region, _| u64::from(region != 0));
        let admitted = world.admitted();
        assert!((95..=100).contains(&admitted), "{admitted} of 100 passed {spec:?}");
    }
}

#[test]
fn a_debt_draws_units_of_other_regions_until_it_is_paid() {
    for spec in [regions::window("l", 300, "1h"), regions::sliding("l", 300, "1h")] {
        let mut world = three_regions(&spec);
        assert_eq!(world.report(0, "k", 150), 50, "{spec:?}");
        world.run(5 * S, |_, _| 0);
        assert!(world.ask(0, "k"), "the region has units again: {spec:?}");
        world.run(20 * S, |_, _| 1);
        assert!((145..=150).contains(&world.admitted()), "{} of 150 passed {spec:?}", world.admitted());
    }
}

#[test]
fn a_region_that_is_cut_off_from_a_debt_goes_on_with_what_it_owns() {
    let mut world = three_regions(&regions::sliding("l", 300, "1h"));
    world.report(0, "k", 900);
    world.run(S, |_, _| 0);
    assert!(!world.ask(1, "k"));
    world.cut = vec![(0, 1), (1, 0), (0, 2), (2, 0)];
    world.run(20 * S, |region, _| u64::from(region != 0));
    assert!((190..=200).contains(&world.admitted()), "{} of 200 passed", world.admitted());
    world.cut = Vec::new();
    world.run(S, |_, _| 0);
    assert!(!world.ask(1, "k"), "the region has heard of the debt again");
}

#[test]
fn a_commit_above_its_reservation_is_heard_of_by_other_regions() {
    let mut world = three_regions(&regions::window("l", 300, "1h"));
    world.reserve_and_commit(0, "k", 10, 900);
    world.run(150 * MS, |_, _| 0);
    world.run(5 * S, |_, _| 1);
    assert_eq!(world.admitted(), 0);
}

#[test]
fn what_a_crash_forgot_is_no_debt_for_which_others_keep_units_back() {
    for spec in [regions::window("l", 300, "1h"), regions::sliding("l", 300, "1h")] {
        let mut world = three_regions(&spec);
        assert!(world.ask(0, "k"), "{spec:?}");
        world.run(S, |_, _| 0);
        world.restart(0, None, regions::incarnation(0));
        assert!(!world.ask(0, "k"), "a crash forgets what was spent: {spec:?}");
        world.run(5 * S, |_, _| 0);
        let (_, verdict) = world.peek(1, "k");
        assert!(verdict.remaining >= 90, "{verdict:?} {spec:?}");
    }
}

fn carries(spec: LimitSpec) -> LimitSpec {
    LimitSpec { carry: true, ..spec }
}

#[test]
fn a_debt_that_is_carried_is_paid_by_one_window_after_another() {
    let day = 24 * HOUR;
    for (spec, first_ns, length_ns) in
        [(window("l", 100, "1h"), HOUR, HOUR), (quota("l", 100, "day"), 16 * HOUR, day)]
    {
        for spec in [spec.clone(), LimitSpec { mode: Mode::Shadow, ..spec }] {
            let node = node(&[carries(spec.clone())], START);
            let mut asker = node.asker();
            let answer = report(&mut asker, "k", 350, START);
            assert_eq!(answer.limits[0].late.owed, 250, "{spec:?}");
            // A report of 350 never fits, so the answer says when anything does.
            assert_eq!(answer.limits[0].verdict.retry_after_ns, first_ns + 2 * length_ns, "{spec:?}");
            for (windows, stands) in [(0, (0, 150)), (1, (0, 50)), (2, (50, 0)), (3, (100, 0))] {
                let then = START.later(first_ns + windows * length_ns);
                // A cell that owes is never dropped.
                scene::sweep_all(&node, then);
                assert_eq!(stand(&mut asker, then), stands, "{windows} {spec:?}");
                assert_eq!(stand(&mut asker, then.later(length_ns - 1)), stands, "{windows} {spec:?}");
            }
        }
    }
}

#[test]
fn a_carried_debt_survives_a_crash_and_what_the_crash_forgot_is_none() {
    let config =
        |after_crash| Config { key: KEY, memory_bytes: ROOMY, durable: true, after_crash, home: None };
    // Unjournalled without the word: too short.
    let spec = carries(window("w", 100, "10s"));
    let node = scene::node_of(config(None), std::slice::from_ref(&spec), START);
    let mut journal = Journal::default();
    assert!(report(&mut node.asker(), "k", 350, START).after_batch > 0, "the answer waits for the disk");
    journal.flush(&node);
    let after = START.later(11 * S);
    let restarted = Arc::new(Node::new(config(Some(after))));
    restarted.resume(node.schedule(), after).expect("a schedule that fits");
    restarted.restore_all(after, |limit| journal.rows(limit));
    restarted.apply(scene::limits(&[spec]), after, |limit| journal.rows(limit)).expect("a set that fits");
    let mut asker = restarted.asker();
    assert_eq!(stand(&mut asker, after), (0, 150));
    assert!(ask(&mut asker, "other", 100, after).allowed, "journalled cells are known");
    assert_eq!(stand(&mut asker, START.later(21 * S)), (0, 50));
    assert_eq!(stand(&mut asker, START.later(30 * S)), (50, 0));
}

#[test]
fn a_limit_that_begins_to_carry_carries_new_debts_and_one_that_ends_to_forgets_all() {
    let plain = window("l", 100, "1h");
    let node = node(std::slice::from_ref(&plain), START);
    let mut asker = node.asker();
    report(&mut asker, "k", 150, START);
    scene::apply(&node, &[carries(plain.clone())], START.later(1));
    assert_eq!(stand(&mut asker, START.later(2)), (0, 50));
    report(&mut asker, "k", 30, START.later(2));
    assert_eq!(stand(&mut asker, START.later(3)), (0, 80));
    assert_eq!(stand(&mut asker, START.later(HOUR)), (70, 0), "30 were reported since");
    report(&mut asker, "k", 500, START.later(HOUR));
    // In this window 70 of 530 units fitted. The others stay owed under a smaller limit.
    scene::apply(&node, &[carries(window("l", 50, "1h"))], START.later(HOUR + 1));
    assert_eq!(stand(&mut asker, START.later(HOUR + 2)), (0, 480));
    assert_eq!(stand(&mut asker, START.later(2 * HOUR)), (0, 410));
    scene::apply(&node, &[plain], START.later(2 * HOUR + 1));
    assert_eq!(stand(&mut asker, START.later(2 * HOUR + 2)), (0, 360));
    assert_eq!(stand(&mut asker, START.later(3 * HOUR)), (100, 0));
}

#[test]
fn a_grant_in_the_window_of_a_debt_pays_it() {
    let spec = carries(window("l", 100, "1h"));
    let node = node(std::slice::from_ref(&spec), START);
    let mut asker = node.asker();
    report(&mut asker, "k", 350, START);
    let until = scene::instant(START.wall_ns + HOUR);
    let grant = scene::fields(&[("key", &["k"]), ("limit", &["330"]), ("until", &[&until])]);
    scene::apply(&node, &[LimitSpec { overrides: vec![grant], ..spec }], START.later(1));
    assert_eq!(stand(&mut asker, START.later(2)), (0, 20));
    assert_eq!(stand(&mut asker, START.later(HOUR)), (80, 0));
}

/// The id was taken in a window that is over, so the window counts that is open on arrival. (Where two windows are
/// open, a report counts in both: `acequia_limits::debt`.)
#[test]
fn a_commit_above_its_reservation_counts_in_the_window_that_is_open_when_it_comes() {
    for carry in [false, true] {
        let spec = LimitSpec { carry, ..window("l", 100, "1m") };
        for (later_ns, stands, next) in
            [(MINUTE - S, (0, 30), (if carry { 70 } else { 100 }, 0)), (MINUTE, (30, 0), (100, 0))]
        {
            let node = node(std::slice::from_ref(&spec), START);
            let mut asker = node.asker();
            let reserve = Some(Reserve { ttl_ns: 2 * MINUTE, keeps: false, at_most: false });
            let recording = Recording {
                id: ChargeId(1),
                fingerprint: 1,
                is_repeatable: true,
                reserve,
                owner: 0,
                remember: Remember::Always,
            };
            let mut request = Request::new("shop", &[("key", "k")]);
            request.cost = 60;
            assert!(asker.check_recorded(&request, START, Ask::CHECK, &recording).expect("new").allowed);
            let then = START.later(later_ns);
            node.settle(ChargeId(1), Some(130), then);
            assert_eq!(stand(&mut asker, then), stands, "{later_ns}");
            assert_eq!(stand(&mut asker, START.later(MINUTE + later_ns)), next, "{later_ns} {carry}");
        }
    }
}

/// Two regions share 200 units a minute, and one reports 500: the minute of the report pays 200, and the next one
/// too.
fn two_regions_of_which_one_owes() -> regions::World {
    let spec = carries(regions::window("l", 200, "1m"));
    let mut world = regions::World::new(2, &[spec], 40 * MS);
    world.run(2 * S, |_, _| 0);
    assert_eq!(world.report(0, "k", 500), 400);
    world.run(200 * MS, |_, _| 0);
    world
}

/// Twenty requests a second in each of these regions.
fn busy(regions: [u64; 2]) -> impl Fn(usize, u64) -> u64 {
    move |region, ms| if ms % 50 == 0 { regions[region] } else { 0 }
}

#[test]
fn neither_region_admits_anything_in_the_windows_that_pay_a_carried_debt() {
    for demand in [[0, 1], [1, 1], [1, 0], [0, 0]] {
        let mut world = two_regions_of_which_one_owes();
        // The first edge is 40 s after the start.
        world.run(37 * S + 800 * MS, busy(demand));
        world.run(S, busy([1, 1]));
        world.run(58 * S, busy(demand));
        assert_eq!(world.admitted(), 0, "{demand:?}");
        world.run(60 * S, busy([1, 1]));
        let third = world.admitted();
        assert!(
            (80..=100).contains(&third),
            "100 are left in the third window, and {third} passed: {demand:?}"
        );
        world.run(60 * S, busy([1, 1]));
        let fourth = world.admitted() - third;
        assert!((190..=200).contains(&fourth), "{fourth} {demand:?}");
    }
}

#[test]
fn a_carried_debt_is_heard_of_again_after_a_crash() {
    let mut world = two_regions_of_which_one_owes();
    world.run(39 * S, busy([0, 1]));
    world.restart(0, None, regions::incarnation(0));
    world.run(58 * S, busy([0, 1]));
    assert_eq!(world.admitted(), 0);
    world.run(180 * S, busy([1, 1]));
    assert!((100..=500).contains(&world.admitted()), "{} passed once it was paid", world.admitted());
}

#[test]
fn a_busy_region_gives_what_it_keeps_back_to_the_region_that_owes() {
    let mut world = two_regions_of_which_one_owes();
    let busy = |region, ms: u64| u64::from(region == 1 && ms.is_multiple_of(10));
    world.run(97 * S, busy);
    assert_eq!(world.admitted(), 0);
    world.run(60 * S, busy);
    assert!((80..=100).contains(&world.admitted()), "{} of 100 passed", world.admitted());
}

#[test]
fn a_region_that_is_cut_off_from_a_carried_debt_goes_on_with_what_it_owns() {
    let mut world = two_regions_of_which_one_owes();
    world.run(S, |_, _| 0);
    world.cut = vec![(0, 1), (1, 0)];
    world.run(97 * S, busy([1, 1]));
    assert_eq!(world.places[0].admitted, 0, "the region that owes pays alone");
    assert!((50..=200).contains(&world.admitted()), "{} passed", world.admitted());
}

/// Each node of a pool pays what it owes itself: with its own part, and with what it takes of the pool.
#[test]
fn a_node_that_shares_a_pool_pays_a_carried_debt_and_then_admits_again() {
    let mut world = pools::World::new(2, &[carries(window("w", 100, "10s"))], 20, 1);
    world.pass(61 * S);
    let now = world.now(0);
    let owed = ask_as(&mut world.nodes[0].asker, "k", 300, now, Ask::REPORT).limits[0].late.owed;
    assert!((200..300).contains(&owed), "{owed}");
    let mut passed = [0; 40];
    for tenth in 0..4_000 {
        passed[tenth / 100] += u64::from(world.ask(0, "k", 1));
        world.pass(100 * MS);
    }
    assert_eq!(passed[..2], [0, 0], "no two windows pay 300");
    assert!(passed[39] >= 80, "{passed:?}");
}

#[cfg(feature = "mutations")]
#[test]
fn every_rule_is_needed() {
    use acequia_rights::mutation::Mutation;
    let edges = neither_region_admits_anything_in_the_windows_that_pay_a_carried_debt;
    let stories: [(Mutation, fn()); 7] = [
        (Mutation::DebtEndsWithWindow, a_debt_that_is_carried_is_paid_by_one_window_after_another),
        (Mutation::OwingCellDropped, a_debt_that_is_carried_is_paid_by_one_window_after_another),
        (Mutation::DebtPaidByOwnPart, edges),
        (
            Mutation::DebtOfOthersSpent,
            while_more_is_owed_than_is_left_no_region_that_hears_of_it_admits_anything,
        ),
        (Mutation::DebtOfOthersEndsAtEdge, edges),
        (Mutation::KeptForDebtNotGiven, a_busy_region_gives_what_it_keeps_back_to_the_region_that_owes),
        (
            Mutation::DebtUntoldWhenIdle,
            a_debt_is_known_elsewhere_though_nobody_has_asked_for_the_cell_for_long,
        ),
    ];
    scene::each_is_noticed(&stories);
}
