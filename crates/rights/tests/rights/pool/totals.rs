//! Nodes with different limits together hold at most one pool, each in proportion to its own limit.

use acequia_limits::{Part, RATE_PARTS, Rate, meter::Meter};
use acequia_rights::pool::{
    Bucket, Generation, Sliding, Taker, Window,
    bucket::{self, BucketParams},
    sliding,
    window::{self, Total},
};

use super::granting;
use crate::loans::random::Random;

/// The limits in use.
const WHOLES: [Part; 5] = [
    Part { rate: RATE_PARTS, units: 1_000 },
    Part { rate: RATE_PARTS / 2, units: 100 },
    Part { rate: RATE_PARTS / 10, units: 360 },
    Part { rate: RATE_PARTS / 3, units: 7 },
    Part { rate: RATE_PARTS - 1, units: 2_520 },
];
const START_US: u64 = 1_700_000_000_000_000;
const SLACK_US: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Bucket,
    Sliding,
    Ahead,
}

/// A node by its own knowledge.
#[derive(Clone, Copy, Debug)]
struct Node {
    whole: Part,
    holds: Part,
    /// Units of a window that were returned, in all.
    returned: u64,
}

impl Node {
    /// Reads another limit. If the limit is lower, the node keeps a proportional part.
    fn read(&mut self, whole: Part) {
        let part = |held: u64, new: u64, old: u64| if new < old { held * new / old } else { held };
        let units = part(self.holds.units, whole.units, self.whole.units);
        let rate = part(self.holds.rate.into(), whole.rate.into(), self.whole.rate.into()) as u32;
        self.returned += self.holds.units - units;
        (self.whole, self.holds) = (whole, Part { rate, units });
    }
}

#[derive(Default)]
struct Pools {
    bucket: Bucket,
    sliding: Sliding,
    window: Window,
    calls: u64,
}

impl Pools {
    /// A node keeps some of what it holds, and asks for more.
    fn call(&mut self, kind: Kind, number: u16, node: &mut Node, random: &mut Random) {
        self.calls += 1;
        let taker = Taker { node: number, process_number: 1, call: self.calls };
        let generation = Generation { number: 1, by: Taker { node: 1, process_number: 1, call: 1 } };
        let wall_us = START_US + self.calls * 10 * SLACK_US;
        let context = granting(generation, wall_us);
        let back = random.below(node.holds.units + 1) * random.below(2);
        let keeps = Part { units: node.holds.units - back, ..node.holds };
        let most = random.pick(&[30, 300, 3_000]);
        let wanted = Part { rate: random.below(RATE_PARTS.into()) as u32, units: random.below(most) };
        let (needed, reserved, keep_us, slack_us) = (0, 0, 1 << 40, SLACK_US);
        match kind {
            Kind::Bucket => {
                let meter = Meter::new(Rate::parse("1000/s").expect("a rate"), node.whole.units);
                let params = BucketParams::of(&meter, node.whole, slack_us).expect("parameters");
                let exchange =
                    bucket::Exchange { taker, keeps, tokens: back, wanted, needed, reserved, keep_us };
                let answer = self.bucket.exchange(&exchange, &params, &context).expect("an answer");
                node.holds = answer.part;
            }
            Kind::Sliding => {
                let (wanted, total) = (wanted.units, node.whole.units);
                let exchange = sliding::Slide {
                    taker,
                    keeps: keeps.units,
                    unused: back,
                    wanted,
                    needed,
                    reserved,
                    keep_us,
                    lingers_us: 1,
                    total,
                    slack_us,
                };
                node.holds.units = self.sliding.exchange(&exchange, &context).expect("an answer").units;
            }
            Kind::Ahead => {
                node.returned += back;
                let take = window::Take {
                    taker,
                    taken: node.returned + keeps.units,
                    returned: node.returned,
                    wanted: wanted.units,
                    needed: random.below(wanted.units + 1),
                    reserved,
                    total: Total::Ahead(node.whole.units),
                    begins_us: START_US + (1 << 40),
                    drops_us: START_US + (1 << 41),
                };
                let took = self.window.take(&take, &context).expect("an answer");
                node.holds.units = took.taken - node.returned;
            }
        }
    }
}

/// Nodes read other limits at random times, and make calls. Returns by how many units the final holdings of
/// nodes with one limit exceed that limit, and how many units were ever granted.
fn history(kind: Kind, seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let whole = random.pick(&WHOLES);
    let mut nodes = [Node { whole, holds: Part::default(), returned: 0 }; 4];
    let (mut pools, mut got) = (Pools::default(), 0);
    for _ in 0..100 {
        let number = random.below(4) as u16;
        let node = &mut nodes[usize::from(number)];
        match random.below(3) {
            0 => node.read(random.pick(&WHOLES)),
            _ => {
                let before = node.holds.units;
                pools.call(kind, number + 1, node, &mut random);
                got += node.holds.units.saturating_sub(before);
            }
        }
    }
    let last = random.pick(&WHOLES);
    nodes.iter_mut().for_each(|node| node.read(last));
    let units: u64 = nodes.iter().map(|node| node.holds.units).sum();
    let rate: u64 = nodes.iter().map(|node| u64::from(node.holds.rate)).sum();
    (units.saturating_sub(last.units) + rate.saturating_sub(last.rate.into()), got)
}

/// By how many units all histories exceeded their limits.
fn beyond(kind: Kind) -> u64 {
    let histories = (0..2_000).map(|seed| history(kind, seed));
    let (beyond, got) = histories.fold((0, 0), |(more, all), (beyond, got)| (more + beyond, all + got));
    assert!(got > 100_000, "{kind:?}: {got} units were granted");
    beyond
}

/// The least [`beyond`] over all kinds.
#[cfg(feature = "mutations")]
pub(super) fn counted_in_parts() -> u64 {
    [Kind::Bucket, Kind::Sliding, Kind::Ahead].map(beyond).into_iter().min().unwrap_or(0)
}

#[test]
fn nodes_that_disagree_on_the_limit_hold_at_most_one_pool() {
    for kind in [Kind::Bucket, Kind::Sliding, Kind::Ahead] {
        assert_eq!(beyond(kind), 0, "{kind:?}");
    }
}
