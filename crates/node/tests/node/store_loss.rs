//! Decisions of limits whose store does not answer.

use crate::pools::{Way, World};
use crate::scene::{self, MS, S, bucket, sliding, window};
use acequia_limits::{
    Mode, Reason, Request,
    limit::{LimitSpec, OnStoreLoss},
};
use acequia_node::{Answer, Ask, Outcome, pool::GROUPS};

/// Sum of all guard shares, in percent.
const GUARD: u8 = 10;
/// Time from a cell's last unanswered call to a store outage. Cells without requests notice soon afterwards.
const LOST: u64 = S;
const NOTICED: u64 = 3 * S / 2;
/// Time in which a store that is back has answered for every group.
const FOUND: u64 = S;

const MODES: [OnStoreLoss; 3] = [OnStoreLoss::Guard, OnStoreLoss::Closed, OnStoreLoss::Open];

/// Limits of a hundred units that are earned in five minutes.
fn hundred(on_store_loss: OnStoreLoss) -> [LimitSpec; 3] {
    let all = [window("w", 100, "5m"), bucket("b", "20/m", 100), sliding("s", 100, "5m")];
    all.map(|spec| LimitSpec { on_store_loss, ..spec })
}

/// A world whose pools grant. Windows that opened before anybody knew of them are over, and buckets are full
/// again.
fn settled(nodes: usize, specs: &[LimitSpec]) -> World {
    let mut world = World::new(nodes, specs, GUARD, 1);
    world.pass(320 * S);
    world
}

fn cut(world: &mut World, way: Way) {
    world.nodes.iter_mut().for_each(|at| at.way = way);
}

/// Sends a request without a ledger, because open decisions ignore the limit.
fn ask(world: &mut World, place: usize, key: &str, cost: u64) -> Answer {
    let now = world.now(place);
    scene::ask(&mut world.nodes[place].asker, key, cost, now).clone()
}

/// Decisions that the first node made by what it held during a store outage: how many it allowed, and how
/// many it denied.
fn guarded(world: &World) -> (u64, u64) {
    let counts = world.nodes[0].node.lease_counts();
    (counts.guard_allowed, counts.guard_denied)
}

fn open_units(world: &World) -> u64 {
    world.nodes.iter().map(|at| at.node.lease_counts().open_units).sum()
}

/// Asks one node until a denial, or until `most` passed. Returns how many passed, and the last answer.
fn exhaust(world: &mut World, key: &str, most: usize) -> (usize, Answer) {
    let mut passed = 0;
    loop {
        let answer = ask(world, 0, key, 1);
        if !answer.allowed || passed == most {
            return (passed, answer);
        }
        passed += 1;
    }
}

#[test]
fn without_the_store_an_empty_cell_is_decided_by_on_store_loss() {
    for spec in MODES.iter().flat_map(|mode| hundred(*mode)) {
        let (name, on_store_loss) = (spec.name.clone(), spec.on_store_loss);
        let mut world = settled(2, &[spec]);
        cut(&mut world, Way::CUT);
        world.pass(NOTICED);
        let counts = world.nodes[0].node.lease_counts();
        assert_eq!(counts.lost, u64::from(GROUPS), "{name} {on_store_loss:?}");
        let (passed, last) = exhaust(&mut world, "k", 200);
        // Half of the ten guard units belong to this node.
        let expected = match on_store_loss {
            OnStoreLoss::Guard => (5, false, Reason::OverLimit),
            OnStoreLoss::Closed => (0, false, Reason::Unavailable),
            OnStoreLoss::Open => (200, true, Reason::Open),
        };
        assert_eq!((passed, last.allowed, last.reason), expected, "{name} {on_store_loss:?}");
        let open = if on_store_loss == OnStoreLoss::Open { 196 } else { 0 };
        assert_eq!(open_units(&world), open, "{name} {on_store_loss:?}");
        match on_store_loss {
            OnStoreLoss::Guard => {}
            OnStoreLoss::Closed => {
                assert_eq!((last.limits[0].outcome, last.limits[0].verdict.remaining), (Outcome::Deny, 0));
                assert!((1..=S).contains(&last.retry_after_ns), "{}", last.retry_after_ns);
            }
            OnStoreLoss::Open => {
                assert_eq!((last.limits[0].outcome, last.limits[0].is_charged), (Outcome::Allow, false));
                assert_eq!((last.limits[0].verdict.remaining, last.retry_after_ns), (0, 0));
            }
        }
    }
}

/// Requests have ended, so most units would be returned; but the store is lost before any call to it.
#[test]
fn a_node_keeps_its_leases_while_the_store_is_gone() {
    for spec in [window("w", 2_000, "5m"), bucket("b", "400/m", 2_000), sliding("s", 2_000, "5m")] {
        let name = spec.name.clone();
        let mut world = settled(2, &[spec]);
        for _ in 0..300 {
            world.pass(10 * MS);
            ask(&mut world, 0, "k", 1);
        }
        let held = |world: &World| world.nodes[0].node.units_held().values().sum::<u64>();
        let before = held(&world);
        assert!(before >= 10, "{name}: {before}");
        cut(&mut world, Way::CUT);
        world.pass(30 * S);
        // The last requests were charged after the last rebalance.
        assert!(held(&world) + 10 >= before, "{name}: {} of {before}", held(&world));
        // When the store is back, it receives what nobody needs.
        cut(&mut world, Way::GOOD);
        world.pass(60 * S);
        assert!(held(&world) <= before / 2, "{name}: {} of {before}", held(&world));
    }
}

#[test]
fn without_the_store_leased_units_are_spent_first() {
    let mut of_modes: Vec<usize> = Vec::new();
    for spec in MODES.iter().flat_map(|mode| hundred(*mode)) {
        let (name, on_store_loss) = (spec.name.clone(), spec.on_store_loss);
        let mut world = settled(2, &[spec]);
        // Half of the guard share is used. Then the node withdraws as much as will soon be asked for.
        for _ in 0..15 {
            world.pass(S);
            ask(&mut world, 0, "k", 1);
        }
        cut(&mut world, Way::CUT);
        // Requests come all the time, and so do calls to the pool.
        let answers: Vec<Answer> = (0..120)
            .map(|_| {
                world.pass(100 * MS);
                ask(&mut world, 0, "k", 1)
            })
            .collect();
        let held = answers.iter().take_while(|answer| answer.reason == Reason::WithinLimit).count();
        assert!(held > 0, "{name} {on_store_loss:?}: something is held");
        let after = &answers[held..];
        assert!(!after.is_empty(), "{name} {on_store_loss:?}: {held} were held");
        let reason = match on_store_loss {
            OnStoreLoss::Guard => Reason::OverLimit,
            OnStoreLoss::Closed => Reason::Unavailable,
            OnStoreLoss::Open => Reason::Open,
        };
        let reasons: Vec<Reason> = after.iter().map(|answer| answer.reason).collect();
        let others = reasons.iter().filter(|other| **other != reason).count();
        // A bucket goes on earning at the rate that is held.
        assert!(others <= 2, "{name} {on_store_loss:?}: {reasons:?}");
        of_modes.push(held);
    }
    // In the order of the modes, one of each algorithm. A closed limit spends the same except for its guard
    // share.
    let (guard, others) = of_modes.split_at(3);
    let (closed, open) = others.split_at(3);
    assert_eq!(guard, open);
    assert_eq!(closed.iter().map(|held| held + 5).collect::<Vec<_>>(), guard);
}

#[test]
fn requests_that_passed_openly_are_not_charged_when_the_store_is_back() {
    for spec in MODES.iter().flat_map(|mode| hundred(*mode)) {
        let (name, on_store_loss) = (spec.name.clone(), spec.on_store_loss);
        let mut world = settled(2, &[spec]);
        cut(&mut world, Way::CUT);
        world.pass(NOTICED);
        let (passed, _) = exhaust(&mut world, "k", 200);
        let charged = if on_store_loss == OnStoreLoss::Open { 5 } else { passed };
        cut(&mut world, Way::GOOD);
        world.pass(FOUND);
        let counts = world.nodes[0].node.lease_counts();
        assert_eq!((counts.lost, counts.granting), (0, u64::from(GROUPS)), "{name} {on_store_loss:?}");
        let open = open_units(&world);
        let passed = (0..200).filter(|number| {
            world.pass(5 * MS);
            world.ask_patiently(number % 2, "k", 1)
        });
        let passed = passed.count();
        assert!((98 - charged..=100 - charged).contains(&passed), "{name} {on_store_loss:?}: {passed}");
        let last = ask(&mut world, 0, "k", 1);
        assert_eq!((last.allowed, last.reason), (false, Reason::OverLimit), "{name} {on_store_loss:?}");
        assert_eq!(open_units(&world), open);
    }
}

#[test]
fn a_spent_pool_that_answers_does_not_count_as_lost() {
    for on_store_loss in [OnStoreLoss::Closed, OnStoreLoss::Open] {
        for spec in [window("w", 40, "2s"), bucket("b", "20/s", 40), sliding("s", 40, "2s")] {
            let mut world = settled(2, &[LimitSpec { on_store_loss, ..spec }]);
            let mut denied = 0;
            for number in 0..4_000 {
                // Twice what there is. The ledger checks whatever passes.
                world.pass(12 * MS);
                if !world.ask(number % 2, "k", 1) {
                    denied += 1;
                    let reason = ask(&mut world, number % 2, "k", 1).reason;
                    assert!(matches!(reason, Reason::OverLimit | Reason::WithinLimit), "{reason:?}");
                }
            }
            assert!(denied > 1_000, "{denied}");
            assert_eq!((open_units(&world), world.nodes[0].node.lease_counts().lost), (0, 0));
        }
    }
}

#[test]
fn a_store_that_is_away_for_a_moment_does_not_count_as_lost() {
    for on_store_loss in [OnStoreLoss::Closed, OnStoreLoss::Open] {
        let mut world = settled(2, &hundred(on_store_loss)[..1]);
        let mut missed = 0;
        for number in 0..40 {
            cut(&mut world, Way::CUT);
            world.pass(250 * MS);
            cut(&mut world, Way::GOOD);
            for _ in 0..100 {
                world.pass(20 * MS);
                assert_eq!(world.nodes[0].node.lease_counts().lost, 0);
                let reason = ask(&mut world, 0, &format!("k{number}"), 1).reason;
                assert!(matches!(reason, Reason::OverLimit | Reason::WithinLimit), "{reason:?}");
            }
            missed = world.nodes[0].node.lease_counts().missed;
        }
        assert!(missed > 40, "{missed} calls were lost");
    }
}

#[test]
fn a_store_that_never_answered_counts_as_lost_in_time() {
    let mut world = World::new(1, &hundred(OnStoreLoss::Closed)[..1], GUARD, 1);
    cut(&mut world, Way::CUT);
    assert_eq!(ask(&mut world, 0, "k", 1).reason, Reason::WithinLimit);
    world.pass(LOST);
    assert_eq!(ask(&mut world, 0, "k", 1).reason, Reason::Unavailable);
    cut(&mut world, Way::GOOD);
    world.pass(FOUND);
    assert_eq!(ask(&mut world, 0, "k", 1).reason, Reason::WithinLimit);
}

#[test]
fn without_the_store_one_denying_limit_denies_and_nothing_is_charged() {
    let of = |on_store_loss| hundred(on_store_loss).into_iter().next().expect("a limit");
    for strict in [OnStoreLoss::Guard, OnStoreLoss::Closed] {
        let named = |name: &str, on_store_loss| LimitSpec { name: name.into(), ..of(on_store_loss) };
        let mut world = settled(2, &[named("k-open", OnStoreLoss::Open), named("k-strict", strict)]);
        cut(&mut world, Way::CUT);
        world.pass(NOTICED);
        let (passed, last) = exhaust(&mut world, "k", 200);
        assert_eq!(passed, if strict == OnStoreLoss::Guard { 5 } else { 0 });
        assert!(!last.allowed && last.limits.iter().all(|limit| !limit.is_charged));
        assert_eq!(
            last.reason,
            if strict == OnStoreLoss::Guard { Reason::OverLimit } else { Reason::Unavailable }
        );
        assert_eq!(open_units(&world), 0);
    }
}

#[test]
fn peeks_and_shadow_limits_add_no_open_units() {
    let [spec, ..] = hundred(OnStoreLoss::Open);
    let mode = Mode::Shadow;
    for (spec, reason) in [(spec.clone(), Reason::Open), (LimitSpec { mode, ..spec }, Reason::WithinLimit)] {
        let mut world = settled(1, std::slice::from_ref(&spec));
        cut(&mut world, Way::CUT);
        world.pass(NOTICED);
        let now = world.now(0);
        let request = Request { cost: 20, ..Request::new("shop", &[("key", "k")]) };
        let at = &mut world.nodes[0];
        let looked = at.asker.check(&request, now, Ask::PEEK);
        assert_eq!((looked.allowed, looked.reason), (true, reason));
        assert_eq!(looked.limits[0].reason, Reason::Open);
        if spec.mode == mode {
            at.asker.check(&request, now, Ask::CHECK);
        }
        assert_eq!(open_units(&world), 0);
    }
}

#[test]
fn only_decisions_made_without_the_store_are_counted_as_such() {
    for spec in MODES.iter().flat_map(|mode| hundred(*mode)) {
        let (name, on_store_loss) = (spec.name.clone(), spec.on_store_loss);
        let mut world = settled(2, &[spec]);
        exhaust(&mut world, "before", 200);
        assert_eq!(guarded(&world), (0, 0), "{name} {on_store_loss:?}: the store is there");
        cut(&mut world, Way::CUT);
        world.pass(NOTICED);
        let now = world.now(0);
        world.nodes[0].asker.check(&Request::new("shop", &[("key", "k")]), now, Ask::PEEK);
        assert_eq!(guarded(&world), (0, 0), "{name} {on_store_loss:?}: a look decides nothing");
        exhaust(&mut world, "k", 200);
        // Open decisions do not use the node's units.
        let expected = match on_store_loss {
            OnStoreLoss::Guard => (5, 1),
            OnStoreLoss::Closed => (0, 1),
            OnStoreLoss::Open => (5, 0),
        };
        assert_eq!(guarded(&world), expected, "{name} {on_store_loss:?}");
        cut(&mut world, Way::GOOD);
        world.pass(FOUND);
        exhaust(&mut world, "after", 200);
        assert_eq!(guarded(&world), expected, "{name} {on_store_loss:?}: the store is back");
    }
}

#[test]
fn decisions_without_the_store_are_counted_for_each_enforced_limit() {
    let [spec, ..] = hundred(OnStoreLoss::Guard);
    let named = |name: &str, mode| LimitSpec { name: name.into(), mode, ..spec.clone() };
    let specs = [("k-1", Mode::Enforce), ("k-2", Mode::Enforce), ("k-3", Mode::Shadow)];
    let mut world = settled(2, &specs.map(|(name, mode)| named(name, mode)));
    cut(&mut world, Way::CUT);
    world.pass(NOTICED);
    let (passed, _) = exhaust(&mut world, "k", 200);
    assert_eq!((passed, guarded(&world)), (5, (10, 2)));
}

#[test]
fn on_store_loss_has_no_effect_on_a_node_without_a_store() {
    for spec in hundred(OnStoreLoss::Closed).into_iter().chain(hundred(OnStoreLoss::Open)) {
        let node = scene::node(std::slice::from_ref(&spec), scene::START);
        let mut asker = node.asker();
        let now = scene::START;
        let passed = (0..200).filter(|_| scene::ask(&mut asker, "k", 1, now).allowed).count();
        assert_eq!(passed, 100);
        assert_eq!(scene::ask(&mut asker, "k", 1, now).reason, Reason::OverLimit);
    }
}

/// The nodes' leases may amount to all of the lowered limit. Without the store they cannot hear of this, so
/// each lowers its lease at once in proportion. Together they keep no more than there is.
#[test]
fn a_limit_lowered_without_the_store_applies_to_all_nodes_at_once() {
    for (large, small) in [
        (sliding("s", 1_000, "1s"), sliding("s", 100, "1s")),
        (bucket("b", "1000/s", 1_000), bucket("b", "100/s", 100)),
    ] {
        let mut world = settled(3, std::slice::from_ref(&large));
        let key = large.name.clone();
        for _ in 0..400 {
            for place in 0..3 {
                world.ask(place, &key, 5);
            }
            world.pass(25 * MS);
        }
        cut(&mut world, Way::CUT);
        world.pass(1_500 * MS);
        world.renumber(std::slice::from_ref(&small));
        // The key has had no requests lately, so only today's limit counts.
        world.forget_counts();
        let mut passed = 0;
        for _ in 0..300 {
            passed += (0..3).filter(|place| world.ask(*place, &key, 1)).count();
        }
        assert!(passed >= 60, "{key}: {passed} of 100");
    }
}
