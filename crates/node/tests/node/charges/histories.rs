//! Random histories of charges, leases, settlements, crashes and stops.

use acequia_limits::{Now, Request};
use acequia_node::{Ask, ChargeId, Settled};
use proptest::{collection::vec, prelude::*, sample::select};

use super::{leased, named, reserved, start, stop};
use crate::scene::{self, HOUR, Journal, MINUTE, MS, S, START};

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
