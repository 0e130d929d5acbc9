//! Shares: the part of a cell that an incarnation may use by the allocations that apply.

use acequia_limits::Part;

use super::{Member, ShareKind, Versions};
use crate::{
    identity::{Incarnation, MemberId},
    mutation::{Mutation, mutated},
    standing::Split,
};

impl Versions {
    /// An incarnation's part of a cell: the least over all allocations that apply, rate and units each.
    pub fn share(&self, incarnation: Incarnation, total: u64, salt: u32, kind: ShareKind) -> Part {
        if !self.owns(incarnation) {
            return Part::default();
        }
        let drift_ppm = self.version().map_or(0, |version| version.drift_ppm);
        let has_rate = matches!(kind, ShareKind::Bucket { .. });
        let mut is_oldest = true;
        let applying = self.kept.chain.iter().filter(|allocation| {
            let spares = !is_oldest && self.spared(allocation).spares(kind);
            let applies = !spares && allocation.until.applies(kind, drift_ppm);
            is_oldest &= !applies;
            applies
        });
        let parts = applying.map(|allocation| allocation.part(incarnation, total, salt, has_rate));
        let least = |a: Part, b: Part| Part { rate: a.rate.min(b.rate), units: a.units.min(b.units) };
        parts.reduce(least).unwrap_or_default()
    }

    /// The most that one node can give away of a cell of `total` units, whatever it says: the largest
    /// standing share of its region in any allocation of the chain. A region's share is the sum over its
    /// nodes, since each node may take from the region's pools. Nodes are of one region if their names begin
    /// alike, up to a `/`.
    pub fn stands_for_region_of(&self, region: MemberId, total: u64, salt: u32, has_rate: bool) -> Part {
        self.picked_for_region_of(region, u64::max, |split, mate| split.part(mate, total, salt, has_rate))
    }

    /// The least standing share of a region in any allocation of the chain: any other node believes in at
    /// least so much.
    pub fn surely_stands_for_region_of(&self, region: MemberId, total: u64, salt: u32) -> u64 {
        let units = |split: &Split, mate| split.part(mate, total, salt, false);
        self.picked_for_region_of(region, u64::min, units).units
    }

    /// The share of a region, the sum over its nodes, in the allocation of the chain that `pick` picks by the
    /// units. `part` says what one node has.
    fn picked_for_region_of(
        &self,
        region: MemberId,
        pick: fn(u64, u64) -> u64,
        part: impl Fn(&Split, MemberId) -> Part,
    ) -> Part {
        let members = self.version().map(|version| &version.members);
        let named = members.and_then(|members| members.get(&region)?.region_name());
        let is_mate = |other: &MemberId, member: &Member| {
            *other == region || (named.is_some() && member.region_name() == named)
        };
        let mates = members.into_iter().flatten().filter(|(other, member)| is_mate(other, member));
        let mates: Vec<MemberId> = mates.map(|(mate, _)| *mate).collect();
        let splits = self.kept.chain.iter().filter_map(|allocation| allocation.split.as_ref());
        let parts = splits.map(|split| {
            let parts = mates.iter().map(|mate| part(split, *mate));
            parts.fold(Part::default(), |all, part| Part {
                rate: all.rate.saturating_add(part.rate),
                units: all.units.saturating_add(part.units),
            })
        });
        let picked = parts.reduce(|a, b| Part { rate: a.rate.max(b.rate), units: pick(a.units, b.units) });
        picked.unwrap_or_default()
    }

    /// Whether the adopted version names this incarnation. An incarnation that it does not name owns nothing.
    pub fn owns(&self, incarnation: Incarnation) -> bool {
        let named = self.kept.chain.last().is_some_and(|allocation| allocation.names(incarnation));
        named && !self.is_shut_out(incarnation)
    }

    /// A closed incarnation never has a share again.
    fn is_shut_out(&self, incarnation: Incarnation) -> bool {
        self.closed(incarnation) && !mutated(Mutation::TrustUnnamedIncarnation)
    }

    /// Whether this incarnation once had a share and never will again: its rows are refused.
    pub fn closed(&self, incarnation: Incarnation) -> bool {
        let highest = self.kept.closed.get(&(incarnation.member, incarnation.node));
        highest.is_some_and(|&highest| incarnation.number <= highest)
    }
}
