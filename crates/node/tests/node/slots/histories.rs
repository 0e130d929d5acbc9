//! Random histories of slots, compared with a list of those that are taken.

use std::collections::BTreeMap;

use acequia_limits::Now;
use acequia_node::{ChargeId, Renewed, Settled};
use proptest::{collection::vec, prelude::*};

use super::{acquire, free};
use crate::{
    charges::{start, stop},
    scene::{self, Journal, MINUTE, MS, S, START, concurrent},
};

#[derive(Clone, Debug)]
enum Step {
    Acquire(u64),
    /// A slot, by its age among those that were ever taken.
    Release(usize),
    Renew(usize),
    Wait(u64),
    Limit(u64),
    Restart {
        crashes: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..4_u64).prop_map(Step::Acquire),
        4 => (0..12_usize).prop_map(Step::Release),
        4 => (0..12_usize).prop_map(Step::Renew),
        6 => (0..40 * S).prop_map(Step::Wait),
        1 => (0..4_u64).prop_map(Step::Limit),
        1 => any::<bool>().prop_map(|crashes| Step::Restart { crashes }),
    ];
    vec(step, 1..60)
}

/// Taken slots and when they lapse, by name.
#[derive(Debug, Default)]
struct Reference {
    taken: BTreeMap<u128, Slots>,
}

#[derive(Clone, Copy, Debug)]
struct Slots {
    count: u64,
    until_ns: u64,
}

impl Reference {
    fn count(&self, now: Now) -> u64 {
        self.taken.values().filter(|slots| now.steady_ns < slots.until_ns).map(|slots| slots.count).sum()
    }

    fn holds(&self, id: u128, now: Now) -> Option<u64> {
        self.taken.get(&id).filter(|slots| now.steady_ns < slots.until_ns).map(|slots| slots.count)
    }
}

/// Plays a history. A limit of `sizes[n]` slots follows on the one before. `late_ns`: how much later than at its
/// deadline a slot may be free.
fn play(sizes: [u64; 4], late_ns: u64, steps: &[Step]) {
    const TTL: u64 = MINUTE;
    let spec = |size: u64| concurrent("c", size, "1m");
    let (mut size, mut now, mut reference) = (sizes[0], START, Reference::default());
    let mut journal = Journal::default();
    let mut node = start(&spec(size), &journal, None, now);
    // A limit that was lowered may have more slots taken than it has.
    let mut most = size;
    // A crash counts what the cell had reserved on disk as taken, until then.
    let mut wastes_until_ns = 0;
    for (id, step) in (1_u128..).zip(steps) {
        now = now.later(MS);
        let named = |back: usize| id.saturating_sub(1 + back as u128);
        match step {
            Step::Acquire(count) => {
                let (count, taken) = ((*count * size).div_ceil(6), reference.count(now));
                let before = reference.count(Now { steady_ns: now.steady_ns - late_ns, ..now });
                let got = acquire(&mut node.asker(), id, count, now).is_some();
                assert!(!got || taken + count <= size, "{taken} of {size} are taken, and {count} more were");
                let wastes = late_ns > 0 && now.steady_ns < wastes_until_ns;
                assert!(
                    got || wastes || before.max(taken) + count > size,
                    "{taken} of {size} are taken, and {count} were denied"
                );
                if got {
                    reference.taken.insert(id, Slots { count, until_ns: now.steady_ns + TTL });
                }
            }
            Step::Release(back) => {
                let (id, held) = (named(*back), reference.holds(named(*back), now));
                match (node.settle(ChargeId(id), Some(0), now), held) {
                    (Settled::Done { refunded, .. }, Some(count)) => {
                        assert_eq!(refunded.iter().map(|refunded| refunded.units).sum::<u64>(), count);
                        reference.taken.remove(&id);
                    }
                    (Settled::Done { .. }, None) => panic!("{id} was not held"),
                    (other, held) => assert!(held.is_none(), "{id}: {other:?}"),
                }
            }
            Step::Renew(back) => {
                let id = named(*back);
                let held = reference.holds(id, now);
                match node.renew(ChargeId(id), now) {
                    Renewed::Done { lapses_in_ns: TTL, .. } => {
                        let count = held.expect("held");
                        assert!(reference.count(now) <= size);
                        reference.taken.insert(id, Slots { count, until_ns: now.steady_ns + TTL });
                    }
                    Renewed::Denied { lapses_in_ns } => {
                        let slots = reference.taken[&id];
                        assert_eq!(now.steady_ns + lapses_in_ns, slots.until_ns);
                        let before = Now { steady_ns: now.steady_ns - late_ns, ..now };
                        let wastes = late_ns > 0 && now.steady_ns < wastes_until_ns;
                        assert!(wastes || reference.count(before) > size, "denied though all fit");
                    }
                    other => assert!(held.is_none(), "{id}: {other:?}"),
                }
            }
            Step::Wait(ns) => now = now.later(*ns),
            Step::Limit(which) => {
                size = sizes[*which as usize];
                scene::apply(&node, &[spec(size)], now);
            }
            Step::Restart { crashes } => {
                match crashes {
                    true => journal.flush(&node),
                    false => stop(&node, &mut journal, now),
                }
                if *crashes {
                    wastes_until_ns = now.steady_ns + TTL + late_ns;
                }
                node = start(&spec(size), &journal, crashes.then_some(now), now);
            }
        }
        journal.flush(&node);
        most = most.max(size);
        scene::sweep_all(&node, now);
        let taken = reference.count(now);
        assert!(taken <= most);
        assert!(free(&mut node.asker(), now) <= size.saturating_sub(taken), "{step:?} at {now:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn few_slots_agree_with_a_list(steps in steps()) {
        play([6, 6, 12, 3], 0, &steps);
    }

    #[test]
    fn many_slots_agree_with_a_list(steps in steps()) {
        play([600, 600, 1_200, 300], MINUTE / 128 + 1, &steps);
    }

    #[test]
    fn a_limit_that_grows_or_shrinks_keeps_its_slots(steps in steps()) {
        play([60, 120, 66, 30], MINUTE / 64, &steps);
    }
}
