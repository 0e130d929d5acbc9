//! Which groups a node asks for their state, and when: groups that do not grant yet, groups that do not
//! answer, and all others in turn.
//!
//! So a node without requests makes one round trip a second. If one group was lost, or has a new generation,
//! mostly other groups have, too: a server or a node has restarted. Then all groups are asked at once, and
//! again until none has changed meanwhile.

use std::collections::BTreeSet;

use acequia_limits::Now;
use acequia_rights::pool::{Generation, group::Begin};

use super::{
    FIRST_MAX, GROUPS, Leases, PoolRequest, SWEEP_MAX,
    group::Need,
    pending::{About, Pending},
};
use crate::Node;

/// How often every group is asked for its state, even if this node holds nothing of it. A generation grants
/// only when all nodes have told what they hold, and nobody tells a node that another has begun one.
const WATCH_NS: u64 = 64_000_000_000;
/// How often the due groups are asked, together in one round trip.
const TOGETHER_NS: u64 = 1_000_000_000;
/// How often one of the lost groups is asked, while there are any.
const PROBE_NS: u64 = 100_000_000;
/// The least time between two rounds in which all groups are asked at once.
const DOUBT_NS: u64 = 4_000_000_000;

/// The groups to ask for their state, and when. All times are of the steady clock.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The group that was asked last in turn, and when it was due.
    last: u16,
    last_ns: u64,
    /// Groups to ask at once: because all were to be asked, or because there is more to drop in them.
    soon: BTreeSet<u16>,
    /// Whether all groups are to be asked at once, and when that last began.
    is_doubted: bool,
    doubted_ns: u64,
    /// Lost groups to ask at once, since another one was found again.
    sought: BTreeSet<u16>,
    /// The lost group that was asked last, and when.
    probed: u16,
    probed_ns: u64,
}

impl Watch {
    /// A group was lost, or has another generation: others may, too.
    pub(super) const fn doubt_all(&mut self) {
        self.is_doubted = true;
    }

    /// A group has dropped this many cells. If that is the most of one call, there are more to drop.
    pub(super) fn hears_swept(&mut self, group: u16, dropped: u64) {
        if dropped >= u64::from(SWEEP_MAX) {
            self.soon.insert(group);
        }
    }
}

impl Leases {
    /// Notes whether anybody answered a call.
    pub(super) fn note_silence(&mut self, node: &Node, pending: &Pending, is_answered: bool, now: Now) {
        let number = pending.group;
        let group = &mut self.groups[usize::from(number)];
        if !is_answered {
            if group.is_silent(pending.sent_ns, now.steady_ns) && !self.lost.contains(&number) {
                self.silent.insert(number);
            }
            return;
        }
        group.speaks(now.steady_ns);
        self.silent.remove(&number);
        if self.lost.remove(&number) {
            node.store_outages.set(number, false);
            if self.watch.sought.is_empty() {
                self.watch.sought.clone_from(&self.lost);
            }
        }
    }

    /// Asks silent groups again until their store counts as lost: one lost call is no outage. Then all other
    /// groups are asked, too, so that cells learn of the outage before they are asked for. From then on one
    /// lost group is asked now and then, and all of them at once when the first is found again.
    pub(super) fn keep_silent(&mut self, node: &Node, now: Now) {
        for number in self.silent.clone() {
            let group = &self.groups[usize::from(number)];
            if group.is_lost(now.steady_ns) {
                self.silent.remove(&number);
                self.lost.insert(number);
                node.store_outages.set(number, true);
                self.watch.doubt_all();
            } else if group.may_be_asked_again(now.steady_ns) {
                self.call_group((number, group.generation()), PoolRequest::Sweep(SWEEP_MAX), now);
            }
        }
        if self.watch.is_doubted && now.steady_ns >= self.watch.doubted_ns + DOUBT_NS {
            (self.watch.is_doubted, self.watch.doubted_ns) = (false, now.steady_ns);
            self.watch.soon = (0..GROUPS).filter(|number| !self.lost.contains(number)).collect();
        }
        let mut asked = 0;
        while asked < FIRST_MAX
            && let Some(number) = self.watch.soon.pop_first()
        {
            let group = &self.groups[usize::from(number)];
            if group.may_be_watched() && !self.silent.contains(&number) {
                asked += 1;
                self.call_group((number, group.generation()), PoolRequest::Sweep(SWEEP_MAX), now);
            }
        }
        if now.steady_ns >= self.watch.probed_ns + PROBE_NS
            && let Some(number) = self.next_lost()
        {
            (self.watch.probed, self.watch.probed_ns) = (number, now.steady_ns);
            let group = &self.groups[usize::from(number)];
            if group.may_be_watched() {
                self.call_group((number, group.generation()), PoolRequest::Sweep(SWEEP_MAX), now);
            }
        }
        let sought: Vec<u16> = self.watch.sought.iter().copied().collect();
        for number in sought {
            let group = &self.groups[usize::from(number)];
            if !self.lost.contains(&number) || !group.grants() {
                self.watch.sought.remove(&number);
            } else if group.may_be_watched() && asked < FIRST_MAX {
                asked += 1;
                self.watch.sought.remove(&number);
                self.call_group((number, group.generation()), PoolRequest::Sweep(SWEEP_MAX), now);
            }
        }
    }

    /// The lost group after the one that was asked last.
    fn next_lost(&self) -> Option<u16> {
        self.lost.range(self.watch.probed + 1..).next().or(self.lost.first()).copied()
    }

    /// Begins generations, and says that this node has told all.
    pub(super) fn keep_groups(&mut self, now: Now) {
        self.watch_groups(now);
        let unsettled: Vec<u16> = self.unsettled.iter().copied().collect();
        let absent = self.absent(now);
        let mut first = 0;
        for number in unsettled {
            let group = &self.groups[usize::from(number)];
            if group.grants() {
                self.unsettled.remove(&number);
                continue;
            }
            let generation = group.generation();
            let question = match group.need(now.steady_ns) {
                None => continue,
                Some(Need::Begin(..)) if first >= FIRST_MAX => continue,
                Some(Need::Assert(_)) if group.remembers_nothing() && self.awaits_loans(now) => continue,
                Some(Need::Begin(heard, goes_on)) => {
                    PoolRequest::Begin(Begin { heard, by: self.taker(), goes_on })
                }
                Some(Need::Assert(_)) => PoolRequest::Assert(self.assertion(group, now), absent.clone()),
            };
            first += usize::from(matches!(question, PoolRequest::Begin(_)));
            self.call_group((number, generation), question, now);
        }
    }

    /// Asks groups that grant for their state, some at a time, in turn.
    fn watch_groups(&mut self, now: Now) {
        let each_ns = WATCH_NS / u64::from(GROUPS);
        let Watch { last: mut number, last_ns, .. } = self.watch;
        if now.steady_ns < last_ns + TOGETHER_NS {
            return;
        }
        let mut at_ns = last_ns.max(now.steady_ns.saturating_sub(WATCH_NS));
        while at_ns + each_ns <= now.steady_ns {
            at_ns += each_ns;
            number = (number + 1) % GROUPS;
            let group = &self.groups[usize::from(number)];
            if group.may_be_watched() {
                self.call_group((number, group.generation()), PoolRequest::Sweep(SWEEP_MAX), now);
            }
        }
        (self.watch.last, self.watch.last_ns) = (number, at_ns);
    }

    pub(super) fn call_group(
        &mut self,
        (number, generation): (u16, Generation),
        question: PoolRequest,
        now: Now,
    ) {
        if let Some(id) = self.call((number, generation), About::Group, question, now) {
            self.groups[usize::from(number)].calls(id);
        }
    }
}
