//! Slots over restarts: what a node's disk knows of them.

use acequia_node::{CHARGES, ChargeId, Renewed, Settled};

use super::{acquire, both, free, release, renews};
use crate::{
    charges::{start, stop},
    scene::{Journal, MINUTE, S, START, concurrent},
};

#[test]
fn a_slot_is_renewed_and_released_after_a_restart() {
    for (spec, limit) in both() {
        for crashes in [false, true] {
            let mut journal = Journal::default();
            let node = start(&spec, &journal, None, START);
            let mut asker = node.asker();
            assert!(acquire(&mut asker, 1, limit - 1, START).is_some());
            assert!(acquire(&mut asker, 2, 1, START.later(S)).is_some());
            journal.flush(&node);
            assert!(renews(&node, 1, START.later(9 * MINUTE)));
            let now = START.later(9 * MINUTE + S);
            match crashes {
                true => journal.flush(&node),
                false => stop(&node, &mut journal, now),
            }
            let node = start(&spec, &journal, crashes.then_some(now), now);
            let mut asker = node.asker();
            assert_eq!(free(&mut asker, now), 0);
            // The second slot lapses, and the first one does not.
            let now = START.later(12 * MINUTE);
            node.sweep(0, now);
            assert_eq!(free(&mut asker, now), 1);
            assert!(renews(&node, 1, now), "{spec:?} {crashes}");
            assert_eq!(node.renew(ChargeId(2), now), Renewed::Lapsed);
            assert_eq!(free(&mut asker, START.later(21 * MINUTE)), 1);
            assert_eq!(release(&node, 1, START.later(21 * MINUTE)), limit - 1);
            assert_eq!(free(&mut asker, START.later(21 * MINUTE)), limit);
        }
    }
}

#[test]
fn a_renewal_is_on_disk_before_anybody_is_told() {
    durable();
}

pub(super) fn durable() {
    for (spec, limit) in both() {
        let mut journal = Journal::default();
        let node = start(&spec, &journal, None, START);
        assert!(acquire(&mut node.asker(), 1, limit, START).is_some());
        journal.flush(&node);
        let now = START.later(9 * MINUTE);
        let Renewed::Done { after_batch, .. } = node.renew(ChargeId(1), now) else { panic!("not renewed") };
        assert!(after_batch > journal.committed);
        // The node crashes first: the slots lapse as was said before.
        let node = start(&spec, &journal, Some(now), now);
        assert_eq!(free(&mut node.asker(), START.later(10 * MINUTE - 1)), 0);
        let after = START.later(11 * MINUTE);
        assert_eq!(node.renew(ChargeId(1), after), Renewed::Lapsed);
        assert_eq!(free(&mut node.asker(), after), limit);
    }
}

#[test]
fn slots_that_a_crash_forgot_are_not_renewed() {
    forgotten();
}

pub(super) fn forgotten() {
    // The cells of such a limit are not kept on disk.
    let spec = concurrent("c", 3, "30s");
    let mut journal = Journal::default();
    let node = start(&spec, &journal, None, START);
    assert!(acquire(&mut node.asker(), 1, 1, START).is_some());
    journal.flush(&node);
    let now = START.later(S);
    let node = start(&spec, &journal, Some(now), now);
    assert_eq!(node.renew(ChargeId(1), now), Renewed::Denied { lapses_in_ns: 29 * S });
    assert_eq!(node.settle(ChargeId(1), None, now), Settled::Done { refunded: Vec::new(), after_batch: 1 });
    assert_eq!(free(&mut node.asker(), now), 0);
    assert_eq!(free(&mut node.asker(), START.later(31 * S)), 3);
}

#[test]
fn a_node_that_cannot_write_renews_nothing() {
    let (spec, _) = &both()[0];
    let mut journal = Journal::default();
    let node = start(spec, &journal, None, START);
    assert!(acquire(&mut node.asker(), 1, 1, START).is_some());
    journal.flush(&node);
    node.journal_failed();
    let now = START.later(MINUTE);
    assert_eq!(node.renew(ChargeId(1), now), Renewed::Denied { lapses_in_ns: 9 * MINUTE });
    assert!(node.take_rows().is_none(), "rows do not pile up");
    assert!(journal.rows(CHARGES).len() == 1);
}

/// The clock is set back while the node is down: slots lapse no sooner than their time to live from now on.
#[test]
fn slots_stay_taken_if_the_clock_was_set_back_over_a_restart() {
    for (spec, limit) in both() {
        let mut journal = Journal::default();
        let late = START.later(5 * MINUTE);
        let node = start(&spec, &journal, None, late);
        assert!(acquire(&mut node.asker(), 1, limit, late).is_some());
        stop(&node, &mut journal, late);
        let node = start(&spec, &journal, None, START);
        assert_eq!(free(&mut node.asker(), START.later(MINUTE)), 0);
        assert!(renews(&node, 1, START.later(MINUTE)), "{spec:?}");
        assert_eq!(free(&mut node.asker(), START.later(10 * MINUTE)), 0);
        assert_eq!(release(&node, 1, START.later(10 * MINUTE)), limit);
        assert_eq!(free(&mut node.asker(), START.later(10 * MINUTE)), limit);
    }
}
