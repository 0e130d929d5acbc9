//! Slots of regions that share a limit.

use std::collections::BTreeMap;

use acequia_limits::Request;
use acequia_node::{Ask, ChargeId, Renewed, Settled};
use acequia_rights::splitmix::Random;

use super::if_held;
use crate::{
    regions::{MS, S, World},
    scene::concurrent,
};

/// A taken slot, as its holder knows it.
#[derive(Clone, Copy, Debug)]
struct Held {
    region: usize,
    until_ns: u64,
    /// Whether the holder lives: it renews in time, and releases in the end.
    lives: bool,
}

/// The holders of all regions.
#[derive(Debug, Default)]
struct Holders {
    held: BTreeMap<u128, Held>,
    named: u128,
    denied: u64,
    most: u64,
    renewed: u64,
}

impl Holders {
    fn acquire(&mut self, world: &World, region: usize, lives: bool) -> bool {
        self.named += 1;
        let (id, now) = (self.named, world.now_of(region));
        let mut asker = world.places[region].node.asker();
        let request = Request::new("shop", &[("key", "k")]);
        let answer = asker.check_recorded(&request, now, Ask::CHECK, &if_held(id)).expect("a new name");
        let Some(charge) = answer.charge else {
            self.denied += 1;
            return false;
        };
        let until_ns = world.now + charge.lapses_in_ns;
        self.held.insert(id, Held { region, until_ns, lives });
        true
    }

    fn release(&mut self, world: &World, id: u128) {
        let Some(held) = self.held.remove(&id) else { return };
        let settled = world.places[held.region].node.settle(ChargeId(id), None, world.now_of(held.region));
        assert!(matches!(settled, Settled::Done { .. } | Settled::Lapsed | Settled::Unknown), "{settled:?}");
    }

    /// Renews slots that lapse within `within_ns`, and drops those that have lapsed.
    fn tend(&mut self, world: &World, within_ns: u64) {
        let now = world.now;
        self.held.retain(|_, held| now < held.until_ns);
        for (id, held) in &mut self.held {
            if held.lives && held.until_ns - now < within_ns {
                let renewed = world.places[held.region].node.renew(ChargeId(*id), world.now_of(held.region));
                if let Renewed::Done { lapses_in_ns, .. } = renewed {
                    held.until_ns = now + lapses_in_ns;
                    self.renewed += 1;
                }
            }
        }
        self.most = self.most.max(self.held.len() as u64);
    }

    fn of(&self, region: usize) -> usize {
        self.held.values().filter(|held| held.region == region).count()
    }
}

#[test]
fn slots_follow_demand_and_come_back_when_they_are_free() {
    for limit in [30, 300] {
        let mut world = World::new(3, &[concurrent("c", limit, "30s")], 40 * MS);
        world.run(2 * S, |_, _| 0);
        let mut holders = Holders::default();
        for first in [0, 1] {
            // One region takes nearly all, and renews them.
            for tick in 0..1_000 {
                world.run(20 * MS, |_, _| 0);
                holders.tend(&world, 22 * S);
                if tick % 4 == 0 && (holders.of(first) as u64) < limit - limit / 10 {
                    (0..limit / 30).for_each(|_| {
                        holders.acquire(&world, first, true);
                    });
                }
                assert!(holders.held.len() as u64 <= limit, "{}", holders.held.len());
            }
            let got = holders.of(first) as u64;
            eprintln!("region {first} got {got} of {limit}; {} denied", holders.denied);
            assert!(got >= limit * 8 / 10, "region {first} got {got} of {limit}");
            let ids: Vec<u128> = holders.held.keys().copied().collect();
            ids.into_iter().for_each(|id| holders.release(&world, id));
        }
        assert!(holders.renewed > 0);
    }
}

/// Regions take, renew and release by chance, while links fail and nodes crash.
#[test]
fn at_no_instant_are_more_slots_taken_than_the_limit_has() {
    for seed in 0..12 {
        let limit = [6, 40, 200][seed as usize % 3];
        let mut random = Random::of(seed, "slots");
        let mut world = World::new(3, &[concurrent("c", limit, "10s")], 30 * MS);
        world.run(2 * S, |_, _| 0);
        let mut holders = Holders::default();
        for tick in 0..6_000_u64 {
            world.run(10 * MS, |_, _| 0);
            holders.tend(&world, (1 + random.below(6)) * S);
            assert!(holders.held.len() as u64 <= limit, "seed {seed}: {} of {limit}", holders.held.len());
            // Demand moves on every ten seconds.
            let hot = (tick / 1_000 + seed) as usize % 3;
            let region = if random.below(4) > 0 { hot } else { random.below(3) as usize };
            for _ in 0..if tick % 10 == 0 { 1 + limit / 20 } else { 0 } {
                let lives = random.below(5) > 0;
                holders.acquire(&world, region, lives);
            }
            // A request goes on for ten seconds or more.
            if random.below(1_500) < limit
                && let Some(id) = holders.held.keys().nth(random.below(limit) as usize).copied()
            {
                holders.release(&world, id);
            }
            // After a crash a region counts all that it had as taken, for ten seconds.
            match random.below(4_000) {
                0..10 => world.cut = vec![(0, 1), (1, 0)],
                10..20 => world.cut = vec![(2, 0), (2, 1), (0, 2), (1, 2)],
                20..50 => world.cut.clear(),
                50 => {
                    let region = random.below(3) as usize;
                    world.restart(region, None, crate::regions::incarnation(region));
                }
                _ => {}
            }
        }
        eprintln!(
            "seed {seed}: at most {} of {limit} taken, {} renewed, {} denied of {}",
            holders.most, holders.renewed, holders.denied, holders.named
        );
        assert!(holders.most > limit / 2 && holders.renewed > 20, "seed {seed}: {holders:?}");
    }
}
