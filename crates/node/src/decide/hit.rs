//! The cells that a request hits, each once.

use std::num::NonZeroU64;

use acequia_limits::{CellTag, Descriptor, Limit, Request, limit::Descriptors, selector::Canonical};
use acequia_rights::MemberId;
use smallvec::SmallVec;

use super::{
    DESCRIPTORS_MAX, HITS_INLINE, Overdraft, RequestCheck,
    classed::{Classed, tag_of_named},
};
use crate::catalogue::{Domain, VariantKey};

/// A cell that the request hits.
#[derive(Debug)]
pub(super) struct Hit {
    pub(super) limit: u32,
    pub(super) tag: CellTag,
    pub(super) units: u64,
    pub(super) purpose: HitPurpose,
    pub(super) exempt: bool,
    /// The variant of the limit that the cell has.
    pub(super) variant: u16,
    /// Which of the variant's pieces the cell has at this node.
    pub(super) piece: u8,
    pub(super) descriptors: u64,
    pub(super) place: CellSource,
    /// Whether the cell has an account, and whether the account calls for a rebalance.
    pub(super) account: Called,
    /// Whether some of the own part is lent, by the account.
    pub(super) has_lent: bool,
    /// Whether the region's pool has nothing for the cell, by the account.
    pub(super) is_dry: bool,
    /// How long missing units may still come, in nanoseconds, by the account.
    pub(super) expected_wait_ns: Option<u64>,
    /// The node of the region that owns the cell, if a charge may be forwarded to that node.
    pub(super) forwarded_to: Option<MemberId>,
    /// The hit's class, if the limit has classes.
    pub(super) classed: Classed,
}

/// What the units of a hit are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HitPurpose {
    /// A look: no descriptor charges the cell.
    Peek,
    /// A charge.
    Charge,
    /// Units set apart until the real cost is known, which is expected to be this.
    Hold { expected: NonZeroU64 },
    /// Nothing: the cost was settled with a hold.
    Settled,
}

impl Hit {
    /// Whether any descriptor charges the cell, rather than peeks.
    #[inline(always)]
    pub(super) fn charges(&self) -> bool {
        matches!(self.purpose, HitPurpose::Charge | HitPurpose::Hold { .. })
    }

    /// Whether the units are set apart until the real cost is known.
    #[inline(always)]
    pub(super) fn is_hold(&self) -> bool {
        self.expected() > 0
    }

    /// If the units are a hold, the cost that is expected; otherwise 0.
    #[inline(always)]
    pub(super) fn expected(&self) -> u64 {
        match self.purpose {
            HitPurpose::Hold { expected } => expected.get(),
            HitPurpose::Peek | HitPurpose::Charge | HitPurpose::Settled => 0,
        }
    }

    /// Charges the hit for one more of a request's descriptors: once, for the sum or the largest. Units of a
    /// peek do not count any more.
    #[inline(always)]
    pub(super) fn charge(&mut self, units: u64, purpose: HitPurpose, descriptors: Descriptors) {
        // Where one descriptor says what the request costs, nothing is expected.
        match (self.purpose, purpose) {
            (HitPurpose::Charge, HitPurpose::Hold { .. }) => return,
            (HitPurpose::Hold { .. }, HitPurpose::Charge) => self.purpose = HitPurpose::Peek,
            _ => {}
        }
        self.units = match (self.charges(), descriptors) {
            (false, _) => units,
            (true, Descriptors::Sum) => self.units.saturating_add(units),
            (true, Descriptors::Max) => self.units.max(units),
        };
        self.purpose = purpose;
    }
}

/// A hit before anything is known of its cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) limit: u32,
    tag: CellTag,
    pub(super) units: u64,
    purpose: HitPurpose,
    pub(super) exempt: bool,
    variant: u16,
    piece: u8,
    descriptors: u64,
}

impl Found {
    #[inline(always)]
    pub(super) fn hit(self) -> Hit {
        let Self { limit, tag, units, purpose, exempt, variant, piece, descriptors } = self;
        Hit {
            limit,
            tag,
            units,
            purpose,
            exempt,
            variant,
            piece,
            descriptors,
            place: CellSource::Absent,
            account: Called::None,
            has_lent: false,
            is_dry: false,
            expected_wait_ns: None,
            forwarded_to: None,
            classed: Classed::NONE,
        }
    }
}

/// Whether a cell has an account, and whether the account calls for a rebalance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Called {
    /// There is no account.
    None,
    Quiet,
    Calls,
}

/// The place of a hit's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellSource {
    /// The table of the shard.
    At(usize),
    /// No place yet, but there is room.
    Absent,
    /// The cell that new cells of the limit share, because there is no room.
    Shared,
}

impl RequestCheck<'_, '_> {
    /// Gathers every cell that the request hits, once; returns the descriptors that hit none.
    pub(super) fn gather(&self, request: &Request<'_>, hits: &mut Vec<Hit>) -> u64 {
        hits.clear();
        let mut unmatched = 0;
        let domain = self.catalogue.domain(request.domain);
        for (number, descriptor) in request.descriptors().take(DESCRIPTORS_MAX).enumerate() {
            let bit = 1 << number;
            let mut matched = false;
            if let Some(domain) = domain {
                matched =
                    descriptor.limit.is_some() && self.hit_named(domain, &descriptor, request, bit, hits);
                if !matched {
                    domain.index.candidates(&descriptor, |limit| {
                        matched |= self.hit(limit, &descriptor, request.cost, bit, hits).is_some();
                    });
                }
            }
            unmatched |= if matched { 0 } else { bit };
        }
        if domain.is_some_and(|domain| domain.has_replacements) {
            self.drop_replaced(hits);
        }
        unmatched
    }

    /// Adds the cells that the request hits under the limits for what a caller names for this descriptor. Says whether
    /// there are any: then no other limit applies.
    #[cold]
    fn hit_named(
        &self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        request: &Request<'_>,
        bit: u64,
        hits: &mut Vec<Hit>,
    ) -> bool {
        let Some(named) = descriptor.limit else { return false };
        let limits = domain.index.named(named, &self.catalogue.limits, self.now.wall_ns);
        let cost = descriptor.cost.unwrap_or(request.cost);
        for number in &limits {
            let active = &self.catalogue.limits[*number as usize];
            let tag = tag_of_named(&active.tagger, named, descriptor);
            let found = Found {
                limit: *number,
                tag,
                // A peek asks whether the smallest request would pass.
                units: active.limit.units(cost.max(1)),
                purpose: if cost == 0 { HitPurpose::Peek } else { HitPurpose::Charge },
                exempt: false,
                variant: active.variant,
                piece: self.local(active, active.variant).piece_of(tag.salt()),
                descriptors: bit,
            };
            self.merge_named(hits, found, named);
        }
        !limits.is_empty()
    }

    /// Drops the hits of limits that another limit of the request replaces.
    #[cold]
    fn drop_replaced(&self, hits: &mut Vec<Hit>) {
        let spec_of = |hit: &Hit| &self.catalogue.limits[hit.limit as usize].limit.spec;
        let replaced: SmallVec<[&str; HITS_INLINE]> =
            hits.iter().flat_map(|hit| &spec_of(hit).replaces).map(String::as_str).collect();
        hits.retain(|hit| !spec_of(hit).alias.as_deref().is_some_and(|alias| replaced.contains(&alias)));
    }

    /// Whether a report says what a request has cost, and the limit counts requests under way.
    #[inline(always)]
    fn is_past_counting(&self, limit: &Limit) -> bool {
        self.ask.overdraft == Overdraft::Spent && limit.is_concurrent()
    }

    /// Adds the cell that the request hits under a limit by one descriptor of this cost, whose bit among the
    /// descriptors this is. `None` if the limit does not apply.
    #[inline]
    fn hit(
        &self,
        number: u32,
        descriptor: &Descriptor<'_>,
        cost: u64,
        bit: u64,
        hits: &mut Vec<Hit>,
    ) -> Option<()> {
        let active = &self.catalogue.limits[number as usize];
        let limit = &active.limit;
        if !active.is_in_force(self.now.wall_ns) || !limit.is_about(descriptor) {
            return None;
        }
        let tag = match limit.by.as_slice() {
            [by] => active.tagger.one(by.canonical(descriptor)?.bytes()),
            all => {
                let mut values: SmallVec<[Canonical<'_>; HITS_INLINE]> = SmallVec::new();
                for by in all {
                    values.push(by.canonical(descriptor)?);
                }
                active.tagger.all(values.iter().map(Canonical::bytes))
            }
        };
        let cost = descriptor.cost.unwrap_or(cost);
        let whose = limit.variant_for(descriptor, self.now.wall_ns);
        let tag = if whose.is_apart() { active.tagger.apart(tag) } else { tag };
        let variant = active.variant_of(whose.index(), 0);
        let piece = self.local(active, variant).piece_of(tag.salt());
        let (cost, purpose) = match (cost, limit.expect.is_some()) {
            (0, false) => (0, HitPurpose::Peek),
            (_, false) => (cost, HitPurpose::Charge),
            (_, true) => self.expected(active, VariantKey { slot: active.slot, variant }, tag, cost),
        };
        let found = Found {
            limit: number,
            tag,
            // A peek asks whether the smallest request would pass.
            units: limit.units(cost.max(1)),
            purpose,
            exempt: self.is_past_counting(limit)
                || purpose == HitPurpose::Settled
                || limit.unlimited.iter().any(|c| c.holds_for_all(descriptor)),
            variant,
            piece,
            descriptors: bit,
        };
        if limit.classes.is_none() {
            merge(hits, found.hit(), limit.spec.descriptors);
        } else {
            self.merge_classed(hits, found, descriptor);
        }
        Some(())
    }
}

/// Merges descriptors that hit one cell into one hit ([`Hit::charge`]).
#[inline(always)]
pub(super) fn merge(hits: &mut Vec<Hit>, hit: Hit, descriptors: Descriptors) {
    let same = |h: &&mut Hit| h.tag == hit.tag && h.limit == hit.limit && h.exempt == hit.exempt;
    match hits.iter_mut().find(same) {
        None => hits.push(hit),
        Some(first) => {
            first.descriptors |= hit.descriptors;
            first.classed.join(&hit.classed);
            if hit.charges() {
                first.charge(hit.units, hit.purpose, descriptors);
            }
        }
    }
}
