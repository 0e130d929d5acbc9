//! Named charges: repeated, refunded, reserved and settled, also across restarts.

mod bounds;
mod histories;
mod leases;
mod refunds;
mod regions;
mod restarts;

use std::sync::Arc;

use acequia_limits::{Charge, Mode, Now, Request, limit::LimitSpec};
use acequia_node::{Ask, Asker, ChargeId, Config, IdReused, Node, Recording, Remember, Reserve, Settled};

use crate::scene::{self, HOUR, Journal, KEY, MINUTE, ROOMY, S, START, node, passes};

fn named(id: u128) -> Recording {
    Recording {
        id: ChargeId(id),
        fingerprint: 7,
        is_repeatable: true,
        reserve: None,
        owner: 0,
        remember: Remember::Always,
    }
}

fn reserved(id: u128, ttl_ns: u64, keeps: bool) -> Recording {
    Recording { reserve: Some(Reserve { ttl_ns, keeps, at_most: false }), ..named(id) }
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

fn config(durable: bool, after_crash: Option<Now>) -> Config {
    Config { key: KEY, memory_bytes: ROOMY, durable, after_crash, home: None }
}

/// A node that starts from a disk: after a crash at `crashed`, or after a clean stop.
pub(crate) fn start(spec: &LimitSpec, journal: &Journal, crashed: Option<Now>, now: Now) -> Arc<Node> {
    let node = Arc::new(Node::new(config(true, crashed)));
    let schedule = scene::node(std::slice::from_ref(spec), now).schedule();
    node.resume(schedule, now).expect("a limit");
    node.restore_all(now, |limit| journal.rows(limit));
    node
}

pub(crate) fn stop(node: &Node, journal: &mut Journal, now: Now) {
    journal.flush(node);
    let mut rows = Vec::new();
    node.close(now, |row| rows.push(row));
    journal.write(rows);
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
