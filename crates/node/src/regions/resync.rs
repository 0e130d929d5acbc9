//! After an absence, two members compare by digests what they know of each other's rights. Only differences
//! are sent again.
//!
//! When an end hears of a peer that was away, began anew or adopted a version, it sends the peer a digest.
//! The digest covers everything that this end ever told the peer about open windows, and what this end
//! charged. The peer adds up what it knows of that, and asks for the buckets that differ. Both walk over the
//! cells a part at a time, so that neither a million cells nor a full outbox holds up a tick. Changes during
//! the walk may be sent once too often, which is safe.

use acequia_limits::{CellTag, LimitId, Now};
use acequia_rights::{
    Incarnation, MemberId,
    digest::{Buckets, Digest},
};

use super::{CellKey, FrameEntry, Sharing, Topic};
use crate::{Catalogue, Node, cell::locked_cell::LockedCell, settings::SETTINGS};

/// The comparison with one peer.
#[derive(Debug, Default)]
pub(crate) struct Resync {
    /// A digest for the peer, while it is added up.
    telling: Option<Walk>,
    /// The peer's digest, and what this node knows of the peer's rows, while that is added up.
    comparing: Option<Comparing>,
    /// What the peer asked for again.
    again: Option<Again>,
}

/// The peer's digest, while it is compared.
#[derive(Clone, Copy, Debug)]
struct Comparing {
    theirs: Digest,
    walk: Walk,
}

/// The buckets that a peer asked for, and the slot from which to send them again.
#[derive(Clone, Copy, Debug)]
struct Again {
    buckets: Buckets,
    next: u32,
}

/// A digest that is being added up, and the next slot.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    digest: Digest,
    next: u32,
}

/// The statements that are added up, between this node and a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SummedStatements {
    ToldTo(Incarnation),
    HeardFrom(Incarnation),
}

impl Resync {
    /// Begins a digest for the peer, which may not know what it was told.
    pub(crate) fn begin(&mut self) {
        self.telling = Some(Walk::default());
    }

    /// Begins to compare the digest that the peer sent.
    pub(crate) fn compare(&mut self, theirs: Digest) {
        self.comparing = Some(Comparing { theirs, walk: Walk::default() });
    }

    /// Begins to send these buckets again, in which the peer knows something else.
    pub(crate) fn tell_again(&mut self, buckets: Buckets) {
        self.again = (!buckets.is_empty()).then_some(Again { buckets, next: 0 });
    }

    fn is_done(&self) -> bool {
        self.telling.is_none() && self.comparing.is_none() && self.again.is_none()
    }
}

fn row_of(limit: LimitId, tag: CellTag) -> u128 {
    limit.0 ^ tag.0
}

impl Sharing {
    /// Goes on with every comparison, a part at a time.
    pub(super) fn resync(&mut self, node: &Node, catalogue: &Catalogue, now: Now) {
        let busy: Vec<MemberId> =
            self.peers.iter().filter(|(_, peer)| !peer.resync.is_done()).map(|(region, _)| *region).collect();
        for region in busy {
            let Some(peer) = self.peers.get_mut(&region) else { continue };
            let incarnation = peer.incarnation;
            let Resync { telling, comparing, again } = std::mem::take(&mut peer.resync);
            let mut left = Resync::default();
            if let Some(mut walk) = telling {
                if self.walk(node, catalogue, SummedStatements::ToldTo(incarnation), &mut walk, now) {
                    self.tell(region, Topic::Digest, FrameEntry::Digest(Box::new(walk.digest)));
                } else {
                    left.telling = Some(walk);
                }
            }
            if let Some(Comparing { theirs, mut walk }) = comparing {
                if self.walk(node, catalogue, SummedStatements::HeardFrom(incarnation), &mut walk, now) {
                    let buckets = walk.digest.differing(&theirs);
                    if !buckets.is_empty() {
                        self.traffic.resyncs += 1;
                        self.tell(region, Topic::Differs, FrameEntry::Differs(buckets));
                    }
                } else {
                    left.comparing = Some(Comparing { theirs, walk });
                }
            }
            if let Some(again) = again {
                left.again = self.give_again(node, catalogue, incarnation, again, now);
            }
            if let Some(peer) = self.peers.get_mut(&region) {
                peer.resync = left;
            }
        }
    }

    fn tell(&mut self, region: MemberId, topic: Topic, entry: FrameEntry) {
        if let Some(peer) = self.peers.get_mut(&region) {
            peer.outbox.tell(topic, entry, 0);
        }
    }

    /// Adds up some more cells. Returns whether those were the last.
    fn walk(
        &self,
        node: &Node,
        catalogue: &Catalogue,
        statements: SummedStatements,
        walk: &mut Walk,
        now: Now,
    ) -> bool {
        if walk.next == 0 {
            let whose = match statements {
                SummedStatements::ToldTo(_) => self.me(),
                SummedStatements::HeardFrom(peer) => peer,
            };
            for (limit, units) in self.usage.charged_by(whose).filter(|(_, units)| *units > 0) {
                walk.digest.add(limit.0, [0, units]);
            }
        }
        let end = self.cells.end().min(walk.next.saturating_add(SETTINGS.links.resync_cells_max));
        for key in (walk.next..end).filter_map(|slot| self.cells.key(slot)) {
            let Some(limit) = catalogue.id(key.slot) else { continue };
            self.moved(node, catalogue, key, statements, now, |says| {
                walk.digest.add(row_of(limit, key.tag), says);
            });
        }
        walk.next = end;
        end == self.cells.end()
    }

    /// Calls `row` for what moved between two members in a cell's windows that are not over: a window's end,
    /// and units.
    fn moved(
        &self,
        node: &Node,
        catalogue: &Catalogue,
        key: CellKey,
        statements: SummedStatements,
        now: Now,
        mut row: impl FnMut([u64; 2]),
    ) {
        LockedCell { node, catalogue, key, now, which: None }.at(false, |_, cell| {
            let Some(account) = cell.account.as_deref() else { return };
            for end_ns in [account.open().end_ns, account.next_window()] {
                let Some(window) = account.transfers_of(end_ns).filter(|_| end_ns > now.wall_ns) else {
                    continue;
                };
                let (all, peer) = match statements {
                    SummedStatements::ToldTo(peer) => (window.given(), peer),
                    SummedStatements::HeardFrom(peer) => (window.received(), peer),
                };
                let units = all.iter().filter(|(of, units)| *of == peer.member && *units > 0);
                units.for_each(|(_, units)| row([end_ns, *units]));
            }
        });
    }

    /// Has transfers in some buckets sent again. Returns where to go on; `None` at the end.
    fn give_again(
        &mut self,
        node: &Node,
        catalogue: &Catalogue,
        to: Incarnation,
        again: Again,
        now: Now,
    ) -> Option<Again> {
        let Again { buckets, next } = again;
        if self
            .peers
            .get(&to.member)
            .is_some_and(|peer| peer.outbox.len() > SETTINGS.links.resync_waiting_max)
        {
            return Some(again);
        }
        let end = self.cells.end().min(next.saturating_add(SETTINGS.links.resync_cells_max));
        for slot in next..end {
            let Some(key) = self.cells.key(slot) else { continue };
            if !catalogue.id(key.slot).is_some_and(|limit| buckets.have(row_of(limit, key.tag))) {
                continue;
            }
            let mut gave = false;
            self.moved(node, catalogue, key, SummedStatements::ToldTo(to), now, |_| gave = true);
            if gave && let Some(active_cell) = self.cells.wake(key, now.steady_ns) {
                active_cell.window.tells_again = true;
            }
        }
        (end < self.cells.end()).then_some(Again { buckets, next: end })
    }

    /// Sends again what was charged here under the limits of some buckets.
    pub(super) fn tell_usage_again(&mut self, region: MemberId, buckets: Buckets) {
        let own: Vec<LimitId> = self.usage.charged_by(self.me()).map(|(limit, _)| limit).collect();
        for limit in own.into_iter().filter(|limit| buckets.have(limit.0)) {
            self.tell_usage(limit, Some(region));
        }
    }
}
