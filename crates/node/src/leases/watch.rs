//! Which groups a node asks how they are, and when: those that do not grant yet, those for which nobody answers, and all others in turn.
//!
//! Where nobody asks for anything that is one round trip a second. What becomes of one group mostly becomes of many, since a node or a server
//! has begun anew: then all are asked at once, and again until none of them is another than it was.

use acequia_limits::Now;
use acequia_rights::pool::{Generation, group::Begin};

use super::{
    DOUBT_NS, FIRST_MAX, GROUPS, Leases, PROBE_NS, Question, SWEEP_MAX, WATCH_NS, WATCH_SOME_NS,
    group::Need,
    pending::{About, Pending},
};
use crate::Node;

impl Leases {
    /// Notes a call to which nobody answered, or that somebody did.
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
            node.losses.set(number, false);
            if self.sought.is_empty() {
                self.sought.clone_from(&self.lost);
            }
        }
    }

    /// Asks groups again for which nobody answered, until their store counts as lost: one call that was lost is no such thing. All others
    /// are asked then, too: cells that nobody asks for shall not hear of it when they are. From then
    /// on one of them is asked now and then, and all at once when the first of them is found again.
    pub(super) fn keep_silent(&mut self, node: &Node, now: Now) {
        for number in self.silent.clone() {
            let group = &self.groups[usize::from(number)];
            if group.is_lost(now.steady_ns) {
                self.silent.remove(&number);
                self.lost.insert(number);
                node.losses.set(number, true);
                self.is_doubted = true;
            } else if group.may_be_asked_again(now.steady_ns) {
                self.call_group((number, group.generation()), Question::Sweep(SWEEP_MAX), now);
            }
        }
        if self.is_doubted && now.steady_ns >= self.doubted_ns + DOUBT_NS {
            (self.is_doubted, self.doubted_ns) = (false, now.steady_ns);
            self.asked_soon = (0..GROUPS).filter(|number| !self.lost.contains(number)).collect();
        }
        let mut asked = 0;
        while asked < FIRST_MAX
            && let Some(number) = self.asked_soon.pop_first()
        {
            let group = &self.groups[usize::from(number)];
            if group.may_be_watched() && !self.silent.contains(&number) {
                asked += 1;
                self.call_group((number, group.generation()), Question::Sweep(SWEEP_MAX), now);
            }
        }
        if now.steady_ns >= self.probed_ns + PROBE_NS
            && let Some(number) = self.next_lost()
        {
            (self.probed, self.probed_ns) = (number, now.steady_ns);
            let group = &self.groups[usize::from(number)];
            if group.may_be_watched() {
                self.call_group((number, group.generation()), Question::Sweep(SWEEP_MAX), now);
            }
        }
        let sought: Vec<u16> = self.sought.iter().copied().collect();
        for number in sought {
            let group = &self.groups[usize::from(number)];
            if !self.lost.contains(&number) || !group.grants() {
                self.sought.remove(&number);
            } else if group.may_be_watched() && asked < FIRST_MAX {
                asked += 1;
                self.sought.remove(&number);
                self.call_group((number, group.generation()), Question::Sweep(SWEEP_MAX), now);
            }
        }
    }

    /// The lost group after the one that was asked last.
    fn next_lost(&self) -> Option<u16> {
        self.lost.range(self.probed + 1..).next().or(self.lost.first()).copied()
    }

    /// Begins generations, and says that all was told.
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
                    Question::Begin(Begin { heard, by: self.taker(), goes_on })
                }
                Some(Need::Assert(_)) => Question::Assert(self.assertion(group, now), absent.clone()),
            };
            first += usize::from(matches!(question, Question::Begin(_)));
            self.call_group((number, generation), question, now);
        }
    }

    /// Asks groups that grant how they are, some at a time, one after the other.
    fn watch_groups(&mut self, now: Now) {
        let each_ns = WATCH_NS / u64::from(GROUPS);
        let (mut number, since_ns) = self.watched;
        if now.steady_ns < since_ns + WATCH_SOME_NS {
            return;
        }
        let mut at_ns = since_ns.max(now.steady_ns.saturating_sub(WATCH_NS));
        while at_ns + each_ns <= now.steady_ns {
            at_ns += each_ns;
            number = (number + 1) % GROUPS;
            let group = &self.groups[usize::from(number)];
            if group.may_be_watched() {
                self.call_group((number, group.generation()), Question::Sweep(SWEEP_MAX), now);
            }
        }
        self.watched = (number, at_ns);
    }

    pub(super) fn call_group(
        &mut self,
        (number, generation): (u16, Generation),
        question: Question,
        now: Now,
    ) {
        if let Some(id) = self.call((number, generation), About::Group, question, now) {
            self.groups[usize::from(number)].calls(id);
        }
    }
}
