//! The network between nodes and servers, and time, which passes from one message to the next.

use acequia_node::{
    pool::{CALL_NS, PoolCall, PoolReply, PoolRequest},
    regions,
};

use super::{Server, World, incarnation, rows_of};
use crate::scene::MS;

/// The state of the link to the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Delay in one direction, least and most, in nanoseconds.
    pub(crate) delay_ns: (u64, u64),
    /// Percentage of calls and answers that are lost.
    pub(crate) lost: u64,
}

impl Way {
    pub(crate) const GOOD: Self = Self { delay_ns: (100_000, 200_000), lost: 0 };
    pub(crate) const CUT: Self = Self { delay_ns: (0, 1), lost: 100 };
}

pub(super) enum Message {
    Call(u64, usize, u32, PoolCall),
    Answer(u64, usize, u32, u64, PoolReply),
    /// From one node to another of any region.
    Frame(usize, usize, Vec<u8>),
}

impl World {
    /// Lets time pass.
    pub(crate) fn pass(&mut self, ns: u64) {
        let end_ns = self.true_ns + ns;
        loop {
            self.tick();
            self.wake_waiting();
            let message = self.messages.keys().next().map(|(at, _)| *at);
            let give_up = self.open.first().map(|(at, ..)| *at);
            let ticking = self.nodes.iter().filter(|at| !at.is_hung);
            let tick = ticking.map(|at| at.ticked_ns + 10 * MS).min();
            let waiting = self.waiting.iter().map(|waiting| waiting.until_ns).min();
            let rebalance = self.next_rebalance_ns();
            let next_ns =
                [message, give_up, tick, waiting, rebalance].into_iter().flatten().min().unwrap_or(end_ns);
            if next_ns > end_ns {
                break;
            }
            self.true_ns = self.true_ns.max(next_ns);
            self.deliver();
        }
        self.true_ns = end_ns;
        self.tick();
        self.wake_waiting();
    }

    /// When the next cell is due to be rebalanced, in prompt worlds.
    fn next_rebalance_ns(&self) -> Option<u64> {
        let prompt = (0..self.nodes.len()).filter(|place| self.is_prompt && !self.nodes[*place].is_hung);
        let due_ns = prompt.filter_map(|place| {
            let after_ns = self.nodes[place].node.leases_due_ns()?.saturating_sub(self.now(place).steady_ns);
            (after_ns > 0).then_some(self.true_ns + after_ns + after_ns / 1_000)
        });
        due_ns.min()
    }

    fn tick(&mut self) {
        for place in 0..self.nodes.len() {
            let at = &self.nodes[place];
            if at.is_hung {
                continue;
            }
            let now = self.now(place);
            let due_ns = if self.is_prompt { at.node.leases_due_ns() } else { None };
            let is_due = due_ns.is_some_and(|due_ns| due_ns <= now.steady_ns);
            if at.ticked_ns == 0 || self.true_ns >= at.ticked_ns + 10 * MS || at.node.calls() || is_due {
                if self.regions.is_some() {
                    self.note_wholes(place);
                    let at = &self.nodes[place];
                    let adopted = at.node.tick(now, |id| Some(rows_of(&at.rows, id)));
                    adopted.expect("a version that fits");
                }
                self.nodes[place].node.tick_leases(now);
                self.nodes[place].ticked_ns = self.true_ns.max(1);
                self.write(place);
                if let Some(generations) = self.nodes[place].node.unkept_generations() {
                    let at = &mut self.nodes[place];
                    if at.is_disk_full {
                        at.node.generations_kept(&[], now);
                    } else {
                        at.node.generations_kept(&generations, now);
                        at.generations = generations;
                    }
                }
            }
            while self.regions.is_some()
                && let Some((to, frame)) = self.nodes[place].node.poll(self.now(place))
            {
                self.send_frame(place, usize::from(to.0) - 1, frame);
            }
            let mut calls = false;
            while let Some(call) = self.nodes[place].node.poll_call() {
                self.round_trips += u64::from(!std::mem::replace(&mut calls, true));
                self.calls += u64::from(matches!(
                    call.question,
                    PoolRequest::Take(..) | PoolRequest::Exchange(..) | PoolRequest::Slide(..)
                ));
                let process_number = self.nodes[place].process_number;
                let until_ns = self.true_ns + CALL_NS;
                self.open.insert((until_ns, place, process_number, call.id));
                self.send(place, Message::Call(until_ns, place, process_number, call));
            }
        }
    }

    fn send(&mut self, place: usize, message: Message) {
        let Way { delay_ns: (least, most), lost } = self.nodes[place].way;
        if self.below(100) < lost {
            return;
        }
        let at_ns = self.true_ns + least + self.below(most - least);
        self.sent += 1;
        self.messages.insert((at_ns, self.sent), message);
    }

    fn send_frame(&mut self, from: usize, to: usize, frame: Vec<u8>) {
        let Some(regions) = &mut self.regions else { return };
        let is_near = regions.of[from] == regions.of[to];
        let (least, most) = if is_near { regions.near_ns } else { regions.delay_ns };
        if !is_near {
            regions.crossed.0 += 1;
            regions.crossed.1 += frame.len() as u64;
            if regions::wire::read(&frame).is_ok_and(|frame| frame.entries.is_empty()) {
                regions.pulses += 1;
            }
        } else {
            self.note_forwards(from, to, &frame);
        }
        let Some(regions) = &self.regions else { return };
        if !regions.cut.contains(&from) && !regions.cut.contains(&to) {
            let times = 1 + u64::from(regions.repeated > 0 && self.below(100) < self.repeated());
            for time in 0..times {
                let late_ns = if time > 0 { self.below(60 * MS) } else { 0 };
                let at_ns = self.true_ns + least + self.below(most - least) + late_ns;
                self.sent += 1;
                self.messages.insert((at_ns, self.sent), Message::Frame(from, to, frame.clone()));
            }
        }
    }

    fn repeated(&self) -> u64 {
        self.regions.as_ref().map_or(0, |regions| regions.repeated)
    }

    /// The server of a node's region.
    fn server_of(&mut self, place: usize) -> &mut Server {
        let Some(regions) = &mut self.regions else { return &mut self.server };
        match regions.of[place] {
            0 => &mut self.server,
            region => &mut regions.servers[region - 1],
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.messages.first_entry().filter(|entry| entry.key().0 <= self.true_ns) {
            match entry.remove() {
                Message::Call(until_ns, place, process_number, call) => {
                    let is_left_behind = self.nodes[place].is_left_behind;
                    let said = match &mut self.old {
                        Some(old) if is_left_behind => old.serve(&call),
                        _ => self.server_of(place).serve(&call),
                    };
                    if matches!(said, PoolReply::Refused(_)) {
                        self.refused.push(said);
                    }
                    let is_ahead = matches!(&call.question, PoolRequest::Take(_, take)
                        if take.begins_us * 1_000 > self.true_now().wall_ns);
                    if !(is_ahead && self.loses_ahead) {
                        self.send(place, Message::Answer(until_ns, place, process_number, call.id, said));
                    }
                }
                Message::Frame(from, to, frame) => {
                    self.note_wholes(to);
                    let now = self.now(to);
                    // The node refuses frames of an ended process.
                    let _ = self.nodes[to].node.handle(incarnation(from).member, &frame, now);
                }
                Message::Answer(until_ns, place, process_number, id, said) => {
                    if self.open.remove(&(until_ns, place, process_number, id))
                        && self.nodes[place].process_number == process_number
                    {
                        let now = self.now(place);
                        self.nodes[place].node.answer_call(id, &said, now);
                    }
                }
            }
        }
        while let Some((until_ns, place, process_number, id)) =
            self.open.first().copied().filter(|late| late.0 <= self.true_ns)
        {
            self.open.remove(&(until_ns, place, process_number, id));
            if self.nodes[place].process_number == process_number {
                let now = self.now(place);
                self.nodes[place].node.answer_call(id, &PoolReply::Nothing, now);
            }
        }
    }

    /// Whether a call that satisfies the predicate is on its way to a server.
    pub(crate) fn is_under_way(&self, is_such: impl Fn(&PoolCall) -> bool) -> bool {
        self.messages.values().any(|message| matches!(message, Message::Call(_, _, _, call) if is_such(call)))
    }
}
