//! Which groups a node asks for their state, and when: groups that do not grant yet, groups that do not
//! answer, and all others in turn.
//!
//! So a node without requests makes one round trip a second. If one group was lost, or has a new generation,
//! mostly other groups have, too: a server or a node has restarted. Then all groups are asked at once, and
//! again until none has changed meanwhile.

use std::collections::BTreeSet;

use acequia_limits::Now;
use acequia_rights::pool::group::Begin;

use super::{
    GROUPS, Leases, PoolRequest,
    group::Need,
    groups::Groups,
    pending::{About, NewCall, PendingCall},
};
use crate::{Node, settings::SETTINGS};

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
        if dropped >= u64::from(SETTINGS.pool.sweep_max) {
            self.soon.insert(group);
        }
    }
}

impl Groups {
    /// Notes whether anybody answered a call.
    pub(super) fn note_silence(&mut self, node: &Node, call: &PendingCall, is_answered: bool, now: Now) {
        let number = call.group;
        if !is_answered {
            let is_silent = self.of_mut(number).is_silent(call.sent_ns, now.steady_ns);
            if is_silent && !self.is_lost(number) {
                self.silent.insert(number);
            }
            return;
        }
        self.of_mut(number).speaks(now.steady_ns);
        self.silent.remove(&number);
        if self.lost.remove(&number) {
            node.store.outages.set(number, false);
            if self.watch.sought.is_empty() {
                self.watch.sought.clone_from(&self.lost);
            }
        }
    }

    /// A silent group counts as lost from now on. Then all other groups are asked, too.
    fn lose(&mut self, node: &Node, number: u16) {
        self.silent.remove(&number);
        self.lost.insert(number);
        node.store.outages.set(number, true);
        self.watch.doubt_all();
    }

    /// Notes all groups to ask at once, if all are doubted and that was not done just before.
    fn ask_doubted(&mut self, now: Now) {
        if self.watch.is_doubted && now.steady_ns >= self.watch.doubted_ns + SETTINGS.pool.doubt_ns {
            (self.watch.is_doubted, self.watch.doubted_ns) = (false, now.steady_ns);
            self.watch.soon = (0..GROUPS).filter(|number| !self.lost.contains(number)).collect();
        }
    }

    /// The lost group after the one that was asked last.
    fn next_lost(&self) -> Option<u16> {
        self.lost.range(self.watch.probed + 1..).next().or(self.lost.first()).copied()
    }
}

impl Leases {
    /// Asks silent groups again until their store counts as lost: one lost call is no outage. Then all other
    /// groups are asked, too, so that cells learn of the outage before they are asked for. From then on one
    /// lost group is asked now and then, and all of them at once when the first is found again.
    pub(super) fn keep_silent(&mut self, node: &Node, now: Now) {
        for number in self.groups.silent.clone() {
            let group = self.groups.of(number);
            if group.is_lost(now.steady_ns) {
                self.groups.lose(node, number);
            } else if group.may_be_asked_again(now.steady_ns) {
                self.ask_state(number, now);
            }
        }
        self.groups.ask_doubted(now);
        let asked = self.ask_soon(now);
        self.probe_lost(now);
        self.ask_sought(asked, now);
    }

    /// Asks the groups that are to be asked at once, some at a time. Returns how many were asked.
    fn ask_soon(&mut self, now: Now) -> usize {
        let mut asked = 0;
        while asked < SETTINGS.pool.first_max
            && let Some(number) = self.groups.watch.soon.pop_first()
        {
            if self.groups.of(number).may_be_watched() && !self.groups.silent.contains(&number) {
                asked += 1;
                self.ask_state(number, now);
            }
        }
        asked
    }

    /// Asks one lost group, now and then.
    fn probe_lost(&mut self, now: Now) {
        if now.steady_ns >= self.groups.watch.probed_ns + SETTINGS.pool.probe_ns
            && let Some(number) = self.groups.next_lost()
        {
            (self.groups.watch.probed, self.groups.watch.probed_ns) = (number, now.steady_ns);
            if self.groups.of(number).may_be_watched() {
                self.ask_state(number, now);
            }
        }
    }

    /// Asks lost groups, since another one was found again, if so many were asked already.
    fn ask_sought(&mut self, mut asked: usize, now: Now) {
        for number in self.groups.watch.sought.clone() {
            let group = self.groups.of(number);
            if !self.groups.is_lost(number) || !group.grants() {
                self.groups.watch.sought.remove(&number);
            } else if group.may_be_watched() && asked < SETTINGS.pool.first_max {
                asked += 1;
                self.groups.watch.sought.remove(&number);
                self.ask_state(number, now);
            }
        }
    }

    /// Begins generations, and says that this node has told all.
    pub(super) fn keep_groups(&mut self, now: Now) {
        self.watch_groups(now);
        let excluded = self.excluded_now(now);
        let mut begun = 0;
        for number in self.groups.unsettled.clone() {
            let group = self.groups.of(number);
            if group.grants() {
                self.groups.unsettled.remove(&number);
                continue;
            }
            let request = match group.need(now.steady_ns) {
                None => continue,
                Some(Need::Begin { .. }) if begun >= SETTINGS.pool.first_max => continue,
                Some(Need::Assert) if group.remembers_nothing() && self.awaits_loans(now) => continue,
                Some(Need::Begin { above, goes_on }) => {
                    begun += 1;
                    PoolRequest::Begin(Begin { heard: above, by: self.calls.taker(&self.home), goes_on })
                }
                Some(Need::Assert) => PoolRequest::Assert(self.assertion(group, now), excluded.clone()),
            };
            self.call_group(number, request, now);
        }
    }

    /// Asks groups that grant for their state, some at a time, in turn.
    fn watch_groups(&mut self, now: Now) {
        let each_ns = SETTINGS.pool.watch_ns / u64::from(GROUPS);
        let Watch { last: mut number, last_ns, .. } = self.groups.watch;
        if now.steady_ns < last_ns + SETTINGS.pool.together_ns {
            return;
        }
        let mut at_ns = last_ns.max(now.steady_ns.saturating_sub(SETTINGS.pool.watch_ns));
        while at_ns + each_ns <= now.steady_ns {
            at_ns += each_ns;
            number = (number + 1) % GROUPS;
            if self.groups.of(number).may_be_watched() {
                self.ask_state(number, now);
            }
        }
        (self.groups.watch.last, self.groups.watch.last_ns) = (number, at_ns);
    }

    /// Asks a group for its state. It drops some of its cells by the way.
    pub(super) fn ask_state(&mut self, number: u16, now: Now) {
        self.call_group(number, PoolRequest::Sweep(SETTINGS.pool.sweep_max), now);
    }

    fn call_group(&mut self, number: u16, request: PoolRequest, now: Now) {
        if let Some(id) = self.call(number, NewCall { about: About::Group, request }, now) {
            self.groups.of_mut(number).note_call(id);
        }
    }
}
