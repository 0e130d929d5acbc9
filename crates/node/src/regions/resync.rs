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

use super::{CellKey, Entry, Sharing, Topic};
use crate::{Catalogue, Node, cell::locked_cell::LockedCell};

/// The most cells that one tick walks over.
const CELLS_MAX: u32 = 4_096;
/// While more facts than this wait for a peer, nothing is sent to it again.
const WAITING_MAX: usize = 8_192;

/// The comparison with one peer.
#[derive(Debug, Default)]
pub(crate) struct Resync {
    /// A digest for the peer, while it is added up.
    telling: Option<Walk>,
    /// The peer's digest, and what this node knows of the peer's rows, while that is added up.
    comparing: Option<(Digest, Walk)>,
    /// The buckets that the peer asked for, and the slot from which to send them again.
    again: Option<(Buckets, u32)>,
}

/// A digest that is being added up, and the next slot.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    digest: Digest,
    next: u32,
}

/// The side whose statements are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Told,
    Heard,
}

impl Resync {
    /// Begins a digest for the peer, which may not know what it was told.
    pub(crate) fn begin(&mut self) {
        self.telling = Some(Walk::default());
    }

    /// Begins to compare the digest that the peer sent.
    pub(crate) fn compare(&mut self, theirs: Digest) {
        self.comparing = Some((theirs, Walk::default()));
    }

    /// Begins to send these buckets again, in which the peer knows something else.
    pub(crate) fn tell_again(&mut self, buckets: Buckets) {
        self.again = Some((buckets, 0)).filter(|_| !buckets.is_empty());
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
                if self.walk(node, catalogue, (incarnation, Side::Told), &mut walk, now) {
                    self.tell(region, Topic::Digest, Entry::Digest(Box::new(walk.digest)));
                } else {
                    left.telling = Some(walk);
                }
            }
            if let Some((theirs, mut walk)) = comparing {
                if self.walk(node, catalogue, (incarnation, Side::Heard), &mut walk, now) {
                    let buckets = walk.digest.differing(&theirs);
                    if !buckets.is_empty() {
                        self.traffic.resyncs += 1;
                        self.tell(region, Topic::Differs, Entry::Differs(buckets));
                    }
                } else {
                    left.comparing = Some((theirs, walk));
                }
            }
            if let Some((buckets, next)) = again {
                left.again = self.give_again(node, catalogue, (region, buckets), next, now);
            }
            if let Some(peer) = self.peers.get_mut(&region) {
                peer.resync = left;
            }
        }
    }

    fn tell(&mut self, region: MemberId, topic: Topic, entry: Entry) {
        if let Some(peer) = self.peers.get_mut(&region) {
            peer.outbox.tell(topic, entry, 0);
        }
    }

    /// Adds up some more cells. Returns whether those were the last.
    fn walk(
        &self,
        node: &Node,
        catalogue: &Catalogue,
        (peer, side): (Incarnation, Side),
        walk: &mut Walk,
        now: Now,
    ) -> bool {
        if walk.next == 0 {
            let whose = if side == Side::Told { self.me() } else { peer };
            for (limit, units) in self.charged_by(whose).filter(|(_, units)| *units > 0) {
                walk.digest.add(limit.0, [0, units]);
            }
        }
        let end = self.cells.end().min(walk.next.saturating_add(CELLS_MAX));
        for key in (walk.next..end).filter_map(|slot| self.cells.key(slot)) {
            let Some(limit) = catalogue.id(key.0) else { continue };
            self.moved(node, catalogue, key, (peer.member, side), now, |says| {
                walk.digest.add(row_of(limit, key.1), says);
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
        (region, side): (MemberId, Side),
        now: Now,
        mut row: impl FnMut([u64; 2]),
    ) {
        LockedCell { node, catalogue, key, now, which: None }.at(false, |_, cell| {
            let Some(account) = cell.account.as_deref() else { return };
            for end_ns in [account.open().end_ns, account.next_window()] {
                let Some(window) = account.transfers_of(end_ns).filter(|_| end_ns > now.wall_ns) else {
                    continue;
                };
                let all = if side == Side::Told { window.given() } else { window.received() };
                let units = all.iter().filter(|(of, units)| *of == region && *units > 0);
                units.for_each(|(_, units)| row([end_ns, *units]));
            }
        });
    }

    /// Has transfers in some buckets sent again. Returns where to go on; `None` at the end.
    fn give_again(
        &mut self,
        node: &Node,
        catalogue: &Catalogue,
        (region, buckets): (MemberId, Buckets),
        next: u32,
        now: Now,
    ) -> Option<(Buckets, u32)> {
        if self.peers.get(&region).is_some_and(|peer| peer.outbox.len() > WAITING_MAX) {
            return Some((buckets, next));
        }
        let end = self.cells.end().min(next.saturating_add(CELLS_MAX));
        for slot in next..end {
            let Some(key) = self.cells.key(slot) else { continue };
            if !catalogue.id(key.0).is_some_and(|limit| buckets.have(row_of(limit, key.1))) {
                continue;
            }
            let mut gave = false;
            self.moved(node, catalogue, key, (region, Side::Told), now, |_| gave = true);
            if gave && let Some(active_cell) = self.wake(key, now.steady_ns) {
                active_cell.regive = true;
            }
        }
        (end < self.cells.end()).then_some((buckets, end))
    }

    /// Sends again what was charged here under the limits of some buckets.
    pub(super) fn tell_usage_again(&mut self, region: MemberId, buckets: Buckets) {
        let own: Vec<LimitId> = self.charged_by(self.me()).map(|(limit, _)| limit).collect();
        for limit in own.into_iter().filter(|limit| buckets.have(limit.0)) {
            self.tell_usage(limit, Some(region));
        }
    }
}
