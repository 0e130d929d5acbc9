//! Charges on a node's disk: what a restart knows of them, and which answers wait for the disk.

use acequia_limits::Request;
use acequia_node::{Ask, CHARGES, ChargeId, Recording, Settled};

use super::{ask, back, left, named, reserved, start, stop};
use crate::scene::{self, Journal, MINUTE, S, START, passes};

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
