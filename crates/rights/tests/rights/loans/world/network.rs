//! A network that loses, repeats and reorders messages.

use acequia_rights::{Grant, Heartbeat, Renew, Return};

use super::{World, incarnation};

#[derive(Clone, Debug)]
pub(super) enum Message {
    Heartbeat(Heartbeat),
    Grant(Grant),
    Renew(Renew),
    Return(Return),
    /// The catalogue, up to this version.
    Version(usize),
    Ack(usize),
}

impl World {
    pub(super) fn send(&mut self, from: usize, to: usize, message: Message) {
        self.net.push((from, to, message));
    }

    pub(super) fn deliver(&mut self) {
        if self.net.is_empty() {
            return;
        }
        let newest = self.net.len() - 1;
        let place = if self.random.chance(7_000) { newest } else { self.random.index(newest + 1) };
        let (from, to, _) = self.net[place];
        if self.is_asleep(to) {
            return;
        }
        // In the other case the message arrives again later.
        let message =
            if self.random.chance(6_000) { self.net.remove(place).2 } else { self.net[place].2.clone() };
        if self.cut.contains(&(from, to)) || self.mood == 2 && self.random.chance(1_000) {
            return;
        }
        match message {
            Message::Ack(version) => {
                if version > self.acked[to] {
                    self.acked[to] = version;
                    self.refresh();
                }
            }
            Message::Version(version) => self.adopt(to, version),
            Message::Heartbeat(heartbeat) => {
                let a = &mut self.actors[to];
                a.peers.0[from].hear(heartbeat, a.clock_ns);
            }
            Message::Renew(renew) => {
                // Renewals settle no cell.
                let a = &mut self.actors[to];
                let _ = a.peers.0[from].take_renew(&renew, &a.heartbeats, a.clock_ns);
            }
            Message::Grant(grant) => {
                self.settle(to);
                let kind = self.kind();
                let a = &mut self.actors[to];
                let session = &mut a.peers.0[from];
                if let Ok(change) =
                    a.book.accept(incarnation(from), &grant, kind, &a.heartbeats, session, a.clock_ns)
                {
                    self.seen.accepted += 1;
                    self.apply(to, change);
                    self.lands(from, grant.number);
                }
            }
            Message::Return(back) => {
                self.settle(to);
                let a = &mut self.actors[to];
                if let Ok(change) = a.book.take_return(incarnation(from), &back, &mut a.peers.0[from]) {
                    self.apply(to, change);
                    self.lands(to, back.number);
                }
            }
        }
    }
}
