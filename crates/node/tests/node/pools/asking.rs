//! Requests at nodes, and ledgers of what passes.

use std::{collections::BTreeMap, sync::Arc};

use acequia_limits::{
    CellTag, Descriptor, Request,
    descriptor::CallersLimit,
    limit::{LimitSpec, ValueSpec},
};
use acequia_node::{Ask, Forwarding, Holding, LimitAnswer};

use super::{
    World,
    forwards::{FORWARD_AGAIN_NS, Waiting},
};
use crate::scene::{
    self, MS, S, START,
    ledger::{Ledger, Promise, Terms},
};

/// The outcome of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    /// When the request came, and when the node answered: true time.
    pub(crate) came_ns: u64,
    pub(crate) at_ns: u64,
    pub(crate) is_allowed: bool,
    /// Units left of the first limit, by the answer.
    pub(crate) remaining: u64,
}

/// A cell that a node charged.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargedCell<'a> {
    /// The limit's place in [`World::specs`].
    pub(super) limit: usize,
    pub(super) key: &'a str,
    /// The limit's budget, as the node that charged knows it.
    pub(super) budget: u64,
    pub(super) tag: CellTag,
}

impl World {
    /// Requests units of a key under the limit whose name is the key's first letter. Returns whether the
    /// request passed, and counts what passed.
    pub(crate) fn ask(&mut self, place: usize, key: &str, cost: u64) -> bool {
        self.ask_as(place, key, cost, Ask::CHECK).0
    }

    /// Like `ask`, but if the node suggests a wait, the caller waits and asks again when units arrive.
    pub(crate) fn ask_and_wait(&mut self, place: usize, key: &str, cost: u64) -> bool {
        let node = Arc::clone(&self.nodes[place].node);
        let (is_allowed, patience_ns) = self.ask_as(place, key, cost, Ask::CHECK);
        let until_ns = self.true_ns + patience_ns;
        if is_allowed {
            return true;
        }
        while self.true_ns < until_ns {
            let news = node.news();
            while self.true_ns < until_ns && node.news() == news {
                self.pass((MS / 10).min(until_ns - self.true_ns));
            }
            if self.ask_as(place, key, cost, Ask::CHECK.again()).0 {
                return true;
            }
        }
        false
    }

    /// Like `ask_and_wait`, but time stands still: `passed_late` counts the requests that pass later.
    pub(crate) fn ask_or_wait(&mut self, place: usize, key: &str, cost: u64) -> bool {
        let (is_allowed, patience_ns) = self.ask_as(place, key, cost, Ask::CHECK.forwarding(Forwarding::May));
        if is_allowed || patience_ns == 0 {
            self.note_decided(place, self.true_ns, is_allowed);
        } else {
            let (came_ns, since_ns, at) = (self.true_ns, self.now(place).steady_ns, &self.nodes[place]);
            let (process_number, news, until_ns) = (at.process_number, at.node.news(), came_ns + patience_ns);
            let (key, forwarded) = (key.to_owned(), None);
            let again_ns = came_ns + FORWARD_AGAIN_NS;
            let mut waiting = Waiting {
                place,
                process_number,
                key,
                cost,
                came_ns,
                since_ns,
                until_ns,
                again_ns,
                news,
                forwarded,
            };
            self.forward(&mut waiting);
            self.waiting.push(waiting);
        }
        is_allowed
    }

    /// Records the outcome of the last request at a node.
    pub(super) fn note_decided(&mut self, place: usize, came_ns: u64, is_allowed: bool) {
        let Some(decided) = &mut self.decided else { return };
        let remaining =
            self.nodes[place].asker.last().0.limits.first().map_or(0, |limit| limit.verdict.remaining);
        decided.push(Decided { came_ns, at_ns: self.true_ns, is_allowed, remaining });
    }

    /// Also returns how long the caller may wait.
    fn ask_as(&mut self, place: usize, key: &str, cost: u64, ask: Ask) -> (bool, u64) {
        self.ask_since(place, key, cost, ask, self.true_ns)
    }

    /// Like `ask_as`, for a request that came at the given time.
    pub(super) fn ask_since(
        &mut self,
        place: usize,
        key: &str,
        cost: u64,
        ask: Ask,
        came_ns: u64,
    ) -> (bool, u64) {
        let now = self.now(place);
        let node = Arc::clone(&self.nodes[place].node);
        let answer = scene::ask_as(&mut self.nodes[place].asker, key, cost, now, ask);
        let patience_ns = node.patience_ns(answer, &node.catalogue(), S, 0);
        let (is_allowed, limits) = (answer.allowed, answer.limits.clone());
        for limit in limits.iter().filter(|_| is_allowed) {
            if limit.is_forwarded {
                let id = node.catalogue().limits[limit.limit as usize].limit.id;
                self.use_charge(place, (id, named(limit)), limit.units, came_ns);
            } else {
                let cell =
                    ChargedCell { limit: limit.limit as usize, key, budget: limit.budget, tag: limit.tag };
                self.admit(cell, limit.units, &place.to_string());
            }
        }
        (is_allowed, patience_ns)
    }

    /// Requests one unit at every node. The caller names `units` for each `period_s` seconds. Returns how many passed.
    #[track_caller]
    pub(crate) fn ask_for_named(&mut self, units: u32, period_s: u32) -> u64 {
        let entries = [("key", "named")];
        let mut request = Request::new("shop", &entries);
        let period_s = period_s.try_into().expect("a period");
        request.spans[0].limit = Some(CallersLimit { units, period_s });
        let mut passed = 0;
        for place in 0..self.nodes.len() {
            let now = self.now(place);
            let answer = self.nodes[place].asker.check(&request, now, Ask::CHECK).clone();
            // There may be no such limit now.
            for limit in answer.limits.iter().filter(|_| answer.allowed) {
                let (key, tag) = (units.to_string(), limit.tag);
                let cell = ChargedCell { limit: limit.limit as usize, key: &key, budget: units.into(), tag };
                self.admit(cell, limit.units, &place.to_string());
                passed += 1;
            }
        }
        passed
    }

    /// The number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Counts what a node charged.
    #[track_caller]
    pub(super) fn admit(&mut self, cell: ChargedCell<'_>, units: u64, node: &str) {
        let ChargedCell { limit, key, budget, tag } = cell;
        let now = self.true_now();
        let spec = &self.specs[limit];
        let terms = self.most.unwrap_or(Terms { limit: budget, hourly: hourly_of(spec, key) });
        let ledger = self.ledgers.entry((limit, key.to_owned()));
        let ledger = ledger.or_insert_with(|| Ledger::new(Promise::of(spec, tag), terms, START));
        ledger.admit(&format!("{} {key} at node {node}", spec.name), units, now);
    }

    /// Asks again for up to 3 ms, like a caller that waits for pools only. Returns whether the request
    /// passed.
    pub(crate) fn ask_patiently(&mut self, place: usize, key: &str, cost: u64) -> bool {
        let until_ns = self.true_ns + 3 * MS;
        while !self.ask(place, key, cost) {
            if self.true_ns >= until_ns {
                return false;
            }
            self.pass(MS / 5);
        }
        true
    }

    /// Sends up to 23 requests for the key `k` to random nodes, most for one unit, and lets some time pass.
    pub(crate) fn ask_around(&mut self) {
        let nodes = self.nodes.len() as u64;
        for _ in 0..self.below(24) {
            let (place, cost) = (self.below(nodes) as usize, self.below(20) / 18 * self.below(20));
            if self.regions.is_some() && self.below(2) == 0 {
                self.ask_or_wait(place, "k", 1 + cost)
            } else {
                self.ask(place, "k", 1 + cost)
            };
        }
        let pause = [MS, 10 * MS, 100 * MS, 100 * MS][self.below(4) as usize];
        let pause = self.below(pause);
        self.pass(pause);
    }

    /// Starts the ledgers again, under the current limits.
    pub(crate) fn forget_counts(&mut self) {
        self.ledgers.clear();
    }

    /// An operator's view of what a node holds for a key of the first limit.
    pub(crate) fn holding(&self, place: usize, key: &str) -> Holding {
        let (node, now) = (&self.nodes[place].node, self.now(place));
        let entries = [(&b"key"[..], key.as_bytes())];
        let values = Descriptor::new(&entries, None);
        let limit = node.catalogue().limits[0].limit.id;
        node.holding_named(limit, &values, now).expect("a cell")
    }

    /// Units of a limit and key that passed.
    pub(crate) fn admitted(&self, limit: usize, key: &str) -> u64 {
        self.ledgers.get(&(limit, key.to_owned())).map_or(0, |ledger| ledger.total)
    }
}

/// A cell's tag as frames carry it: the shard's bits and the low 96 bits.
pub(super) fn named(limit: &LimitAnswer) -> CellTag {
    CellTag(limit.tag.0 & (0xFF << 120 | ((1 << 96) - 1)))
}

/// Units that a bucket earns in an hour, by the key's override if it has one.
fn hourly_of(spec: &LimitSpec, key: &str) -> u64 {
    let is_its =
        |fields: &&BTreeMap<String, ValueSpec>| fields.get("key").is_some_and(|keys| keys.texts() == [key]);
    let its = spec.overrides.iter().find(is_its).and_then(|fields| fields.get("rate")?.texts().first());
    let rate = spec.token_bucket.as_ref().map(|bucket| &bucket.rate);
    let rate = rate.or(spec.leaky_bucket.as_ref().map(|bucket| &bucket.rate));
    let Some(rate) = its.or(rate) else { return 0 };
    let (units, per) = rate.split_once('/').expect("a rate");
    let each = match per {
        "s" => 3_600,
        "m" => 60,
        "h" => 1,
        other => panic!("a rate a {other}"),
    };
    units.parse::<u64>().expect("units") * each
}
