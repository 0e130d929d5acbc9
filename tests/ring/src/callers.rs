//! Callers that come back: to refund a charge, to settle its real cost, to repeat a request, or with a lease
//! that they spend at the last moment. Some never come back, and what was held for them lapses.

use acequia_limits::Request;
use acequia_node::{Ask, ChargeId, KEEP_NS, Overdraft, Recording, Remember, Reserve, Settled};
use acequia_rights::Incarnation;

use crate::{
    budget::{LimitKey, MS},
    oracle::{Admission, Refund, Returned, Times},
    trace::Event,
    world::World,
};

/// The most callers that are remembered. The oldest without leases are dropped first.
const CALLERS_MAX: usize = 48;
/// One part in this many of a lease's time stays unused by its caller, because clocks drift apart.
const LEFT_UNUSED: u64 = 32;
/// How callers ask: what a limit with holds denies is not recorded, since nobody has spent it.
pub(crate) const ASK: Ask = Ask::CHECK.overdraft(Overdraft::Later);

/// One charge, as its caller knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    place: usize,
    key: LimitKey,
    id: u128,
    question: Question,
    /// The incarnation with the charge's record, if the record will be on disk.
    kept_by: Option<Incarnation>,
    /// When the request was charged: true time, and the window's name.
    made_ns: u64,
    label_ns: u64,
    cost: u64,
    /// The part of the cost that was given back.
    returned: u64,
    /// Whether somebody reported a lower cost.
    is_lowered: bool,
    /// The batch that the answer waits for; 0 once the answer has left.
    batch: u64,
    /// Until when a lease is spent. `None` for a charge that was admitted at once.
    until_ns: Option<u64>,
    /// When the units that are held for the caller come back at the earliest. `None` if the charge is no hold, or
    /// was settled.
    lapses_ns: Option<u64>,
}

/// The request.
#[derive(Clone, Copy, Debug)]
struct Question {
    cost: u64,
    reserve: Option<Reserve>,
}

impl World {
    /// A request whose charge is remembered. Returns whether the request passed.
    pub fn charge(&mut self, place: usize, key: LimitKey, cost: u64) -> bool {
        let id = self.new_id();
        self.ask_by_name(place, key, Question { cost, reserve: None }, id, None)
    }

    /// A request of cost 0, for which units are held. Returns whether the request passed, and holds any.
    pub fn hold(&mut self, place: usize, key: LimitKey) -> bool {
        let id = self.new_id();
        self.ask_by_name(place, key, Question { cost: 0, reserve: None }, id, None)
    }

    /// A lease of at most `cost` units.
    pub fn lease(&mut self, place: usize, key: LimitKey, cost: u64, ttl_ns: u64) -> bool {
        let reserve = Some(Reserve { ttl_ns, keeps: true, at_most: true });
        let id = self.new_id();
        self.ask_by_name(place, key, Question { cost, reserve }, id, None)
    }

    /// A random caller repeats its request under the same name, mostly at the same place.
    pub(crate) fn repeat_any(&mut self, elsewhere: usize) {
        if self.callers.is_empty() {
            return;
        }
        let which = self.random.index(self.callers.len());
        let place = if self.random.chance(200_000) { elsewhere } else { self.callers[which].place };
        self.repeat(which, place);
    }

    /// A caller repeats its request under the same name. Returns whether the request passed.
    pub fn repeat(&mut self, which: usize, place: usize) -> bool {
        let Some(before) = self.callers.get(which).copied() else { return false };
        // A holder of a lease asks for another lease under another name. No caller names a hold.
        let is_hold = before.question.cost == 0;
        if is_hold || before.until_ns.is_some() && !self.must_know(place, &before) {
            return false;
        }
        self.ask_by_name(place, before.key, before.question, before.id, Some(before))
    }

    /// A name that is as spread as a hash.
    fn new_id(&mut self) -> u128 {
        self.names += 1;
        u128::from(self.names).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    }

    /// Whether a node must remember its answer: the answer is on its present disk, and is younger than the
    /// guaranteed time, even if walls were corrected.
    fn must_know(&self, place: usize, before: &Caller) -> bool {
        let at = &self.places[place];
        let is_young = self.now - before.made_ns < KEEP_NS / 2;
        before.kept_by == Some(at.incarnation) && is_young && !at.restored && self.oracle.true_windows
    }

    fn ask_by_name(
        &mut self,
        place: usize,
        key: LimitKey,
        question: Question,
        id: u128,
        before: Option<Caller>,
    ) -> bool {
        if !self.places[place].is_awake(self.now) {
            return false;
        }
        let Question { cost, reserve } = question;
        let must_know = before.is_some_and(|before| self.must_know(place, &before));
        let now = self.clock(place);
        let measured = &self.limits[key.limit];
        let entries = measured.entries(measured.keys[key.key].value, cost);
        let mut request = Request::new("shop", &entries);
        request.cost = cost;
        let at = &mut self.places[place];
        let incarnation = at.incarnation;
        let Some(process) = &mut at.process else { return false };
        let is_hold = cost == 0;
        let recording = Recording {
            id: ChargeId(id),
            fingerprint: if is_hold { 0 } else { id },
            is_repeatable: !is_hold,
            reserve,
            owner: 0,
            remember: if is_hold { Remember::IfHeld } else { Remember::Always },
        };
        let Ok(answer) = process.asker.check_recorded(&request, now, ASK, &recording) else {
            if before.is_none_or(|before| must_know && !before.is_lowered && before.until_ns.is_none()) {
                let what = format!("a question was refused, as if its name were another's: {before:?}");
                self.oracle.find("names", what);
            }
            return false;
        };
        let (allowed, batch) = (answer.allowed, answer.after_batch);
        let charge = answer.charge.filter(|_| allowed);
        if let Some(before) = before {
            let is_repeat = charge.is_some_and(|charge| charge.is_repeat);
            if must_know && !is_repeat {
                let what = format!("the same question got another answer, {answer:?}: {before:?}");
                self.oracle.find("twice", what);
            }
            if is_repeat {
                return true;
            }
        }
        let Some(charge) = charge else { return false };
        let Some((tag, held)) = answer.limits.first().map(|limit| (limit.tag, limit.late.expected)) else {
            return false;
        };
        let kept_by = (batch > 0).then_some(incarnation);
        let is_window = matches!(measured.algorithm, acequia_limits::Algorithm::FixedWindow(_));
        let mut label_ns = 0;
        if is_window {
            label_ns = process.node.holding(measured.id, tag, now).map_or(0, |holding| holding.window_ns);
        }
        let batch = if batch > 0 && process.node.is_committed(batch) { 0 } else { batch };
        let cost = if reserve.is_some() { charge.reserved } else { cost.max(held) };
        let lapses = charge.lapses_in_ns;
        let surely_ns = self.now + (lapses - lapses.div_ceil(LEFT_UNUSED).min(lapses));
        let until_ns = reserve.filter(|_| !is_window).map(|_| surely_ns);
        let lapses_ns = is_hold.then_some(surely_ns);
        if until_ns.is_none() {
            let times = Times { made_ns: self.now, at_ns: self.now };
            self.oracle.admit(key, Admission { times, cost, label_ns, place, batch });
        }
        // The name now means the new charge.
        self.callers.retain(|caller| (caller.place, caller.id) != (place, id));
        if self.callers.len() >= CALLERS_MAX
            && let Some(oldest) =
                self.callers.iter().position(|caller| caller.until_ns.or(caller.lapses_ns).is_none())
        {
            self.callers.remove(oldest);
        }
        let made_ns = self.now;
        self.callers.push(Caller {
            place,
            key,
            id,
            question,
            kept_by,
            made_ns,
            label_ns,
            cost,
            returned: 0,
            is_lowered: false,
            batch,
            until_ns,
            lapses_ns,
        });
        self.note(Event::Ask(place, key.limit, key.key, cost, true));
        true
    }

    /// A caller returns with the real cost, or to give everything back if `cost` is `None`.
    pub fn settle(&mut self, which: usize, cost: Option<u64>) {
        let Some(caller) = self.callers.get(which).copied().filter(|caller| caller.batch == 0) else {
            return;
        };
        let Caller { place, key, id, cost: charged, until_ns, made_ns, .. } = caller;
        let cost = cost.unwrap_or(0).min(charged);
        if until_ns.is_some() {
            // Spending stops here, whether or not the node hears of this.
            self.callers.remove(which);
            self.oracle.spend(key, Times { made_ns, at_ns: self.now }, cost, place);
        }
        if !self.places[place].is_awake(self.now) {
            return;
        }
        let now = self.clock(place);
        let Some(node) = self.places[place].node() else { return };
        let settled = node.settle(ChargeId(id), Some(cost), now);
        self.note(Event::Settle(place, key.limit, cost));
        if let (Settled::Done { refunded, .. }, None) = (settled, until_ns) {
            let back: u64 = refunded.iter().map(|refunded| refunded.units).sum();
            if back > charged - cost {
                self.oracle.find("refund", format!("{back} came back of {charged} that were really {cost}"));
            }
            let Some(caller) = self.callers.get_mut(which) else { return };
            caller.is_lowered |= cost < charged;
            caller.lapses_ns = None;
            let more = back.saturating_sub(caller.returned);
            caller.returned += more;
            let Caller { made_ns, label_ns, .. } = *caller;
            let times = Times { made_ns, at_ns: self.now };
            let refund = Refund { cost: charged, units: more };
            self.oracle.give_back(key, Returned { times, refund, label_ns });
        }
    }

    /// Spends the leases that end before a time, and gives back what is held until then, each at its end.
    pub(crate) fn spend_leases(&mut self, before_ns: u64) {
        loop {
            let all = self.callers.iter().enumerate();
            let next =
                all.filter_map(|(which, caller)| Some((caller.until_ns.or(caller.lapses_ns)?, which))).min();
            let Some((until_ns, which)) = next.filter(|(until_ns, _)| *until_ns <= before_ns) else { return };
            let caller = self.callers.remove(which);
            self.now = self.now.max(until_ns);
            if caller.lapses_ns.is_some() {
                self.hold_lapses(&caller);
                continue;
            }
            // A lease whose answer never arrived belongs to nobody.
            if caller.batch == 0 {
                let times = Times { made_ns: caller.made_ns, at_ns: self.now };
                self.oracle.spend(caller.key, times, caller.cost, caller.place);
            }
        }
    }

    /// Units that were held may be used again, even if their node is late.
    fn hold_lapses(&mut self, caller: &Caller) {
        let Caller { key, made_ns, label_ns, cost, .. } = *caller;
        let times = Times { made_ns, at_ns: self.now };
        let refund = Refund { cost, units: cost };
        self.oracle.give_back(key, Returned { times, refund, label_ns });
    }

    /// A disk has everything up to a batch, so the answers up to that batch have arrived.
    pub(crate) fn answered(&mut self, place: usize, batch: u64) {
        let waiting = self.callers.iter_mut().filter(|caller| caller.place == place && caller.batch <= batch);
        waiting.for_each(|caller| caller.batch = 0);
    }

    /// A process ended, so its waiting answers never arrived.
    pub(crate) fn unanswered(&mut self, place: usize) {
        self.callers.retain(|caller| caller.place != place || caller.batch == 0);
    }

    /// A random caller settles with a random cost.
    pub(crate) fn settle_any(&mut self) {
        if self.callers.is_empty() {
            return;
        }
        let which = self.random.index(self.callers.len());
        let charged = self.callers[which].cost;
        let cost = match self.random.below(4) {
            0 | 1 => None,
            2 => Some(self.random.below(charged + 1)),
            _ => Some(charged / 2),
        };
        self.settle(which, cost);
    }

    /// A random duration for a lease.
    pub(crate) fn any_ttl_ns(&mut self) -> u64 {
        self.random.spread(5, 120_000) * MS
    }

    /// All holders of leases give these back unspent.
    pub(crate) fn end_leases(&mut self) {
        while let Some(which) = self.callers.iter().position(|caller| caller.until_ns.is_some()) {
            self.callers[which].batch = 0;
            self.settle(which, None);
        }
    }
}
