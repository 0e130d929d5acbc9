//! Units that come back without the name of their charge.

use std::{collections::BTreeMap, sync::Arc};

use acequia_limits::{
    Mode, Now, Request,
    classes::ClassesSpec,
    limit::{ConcurrentSpec, LimitSpec, NoWait},
};
use acequia_node::{Ask, Asker, Config, Node, Refunded};

use crate::scene::{
    self, HOUR, Journal, KEY, MINUTE, ROOMY, START, approximate, ask, ask_as, bucket, fields, leaky, node,
    passes, quota, sliding, slots, window,
};

/// One limit of 100 units for each way to count, and a limit on requests under way.
fn hundreds() -> [LimitSpec; 7] {
    [
        bucket("l", "1/s", 100),
        leaky("l", "1/s", 100, NoWait::Allow),
        window("l", 100, "1h"),
        quota("l", 100, "day"),
        sliding("l", 100, "1h"),
        slots("l", 100, "1h", 4),
        sliding("l", 60, "1h"),
    ]
}

fn concurrent() -> LimitSpec {
    let spec = ConcurrentSpec { limit: 100, ttl: "1h".into() };
    LimitSpec { fixed_window: None, concurrent: Some(spec), ..window("l", 100, "1h") }
}

fn give_back(asker: &mut Asker, key: &str, cost: u64, now: Now) -> u64 {
    let mut request = Request::new("shop", &[("key", key)]);
    request.cost = cost;
    asker.give_back(&request, now).iter().map(|refunded| refunded.units).sum()
}

fn left(asker: &mut Asker, now: Now) -> u64 {
    ask_as(asker, "k", 1, now, Ask::PEEK).limits[0].verdict.remaining
}

#[test]
fn a_cell_gives_back_what_was_charged_and_no_more() {
    for spec in hundreds() {
        let node = node(std::slice::from_ref(&spec), START);
        let mut asker = node.asker();
        let all = left(&mut asker, START);
        assert_eq!(give_back(&mut asker, "k", 5, START), 0, "{spec:?}: there is no cell");
        assert!(passes(&mut asker, "k", 40, START));
        assert_eq!(give_back(&mut asker, "other", 5, START), 0, "{spec:?}");
        assert_eq!(give_back(&mut asker, "k", 15, START), 15, "{spec:?}");
        assert_eq!(left(&mut asker, START), all - 25, "{spec:?}");
        let request = Request { cost: u64::MAX, ..Request::new("shop", &[("key", "k")]) };
        let back = asker.give_back(&request, START);
        assert_eq!(back, [Refunded { units: 25, ..back[0].clone() }], "{spec:?}");
        assert_eq!((left(&mut asker, START), back[0].name.as_str()), (all, "l"), "{spec:?}");
        assert_eq!(give_back(&mut asker, "k", 1, START), 0, "{spec:?}");
        // A later window, or a full bucket, has nothing to give back.
        assert!(passes(&mut asker, "k", 40, START));
        assert_eq!(give_back(&mut asker, "k", 40, START.later(25 * HOUR)), 0, "{spec:?}");
    }
}

#[test]
fn limits_that_cannot_know_what_was_charged_give_nothing_back() {
    let classes = ClassesSpec {
        entry: "plan".into(),
        shared: [("gold".into(), "0%".into()), ("free".into(), "50%".into())].into(),
        separate: BTreeMap::new(),
        others: None,
    };
    let off = LimitSpec { mode: Mode::Off, ..window("l", 100, "1h") };
    let exempt = LimitSpec { unlimited: fields(&[("key", &["k"])]), ..window("l", 100, "1h") };
    let of_classes = LimitSpec { classes: Some(classes), ..bucket("l", "1/h", 100) };
    for spec in [concurrent(), approximate("l", 100, "1h"), of_classes, exempt, off] {
        let node = node(std::slice::from_ref(&spec), START);
        let mut asker = node.asker();
        assert!(passes(&mut asker, "k", 40, START));
        assert_eq!(give_back(&mut asker, "k", 40, START), 0, "{spec:?}");
    }
}

#[test]
fn a_descriptor_without_hits_gives_nothing_back() {
    let node = node(&[window("l", 100, "1h")], START);
    let mut asker = node.asker();
    assert!(passes(&mut asker, "k", 40, START));
    let mut request = Request { domain: b"shop", cost: 1, ..Request::default() };
    request.push([(&b"key"[..], &b"k"[..])], Some(0));
    assert_eq!(asker.give_back(&request, START), []);
    request.push([(&b"key"[..], &b"k"[..])], Some(3));
    assert_eq!(asker.give_back(&request, START)[0].units, 3);
}

#[test]
fn what_came_back_of_a_journalled_cell_is_on_disk_before_it_is_spent() {
    let config =
        |after_crash| Config { key: KEY, memory_bytes: ROOMY, durable: true, after_crash, home: None };
    let spec = quota("l", 100, "day");
    let node = scene::node_of(config(None), std::slice::from_ref(&spec), START);
    let mut asker = node.asker();
    let mut journal = Journal::default();
    assert!(passes(&mut asker, "k", 100, START));
    journal.flush(&node);
    assert_eq!(give_back(&mut asker, "k", 30, START), 30);
    let answer = ask(&mut asker, "k", 1, START);
    assert!(answer.allowed && answer.after_batch > journal.committed, "the answer waits for the disk");
    journal.flush(&node);
    let after = START.later(MINUTE);
    let restarted = Arc::new(Node::new(config(Some(after))));
    restarted.resume(node.schedule(), after).expect("a schedule that fits");
    restarted.restore_all(after, |limit| journal.rows(limit));
    restarted.apply(scene::limits(&[spec]), after, |limit| journal.rows(limit)).expect("a set that fits");
    assert!(left(&mut restarted.asker(), after) <= 29);
}
