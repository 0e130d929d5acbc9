//! Classes of consumers in a request ([`acequia_limits::classes`]).
//!
//! If classes share a bucket, a hit must leave what its class leaves to others. If classes have their own
//! cells, a hit belongs to its class's own cell. If there is a remainder beside the own cells, a second hit
//! belongs to the remainder, and counts only if the first has too little. A request is charged to one of the
//! two.

use acequia_limits::{
    Algorithm, CellTag, Descriptor, Now, Verdict, algorithm::State, cell::Tagger, descriptor::CallersLimit,
    limit::Descriptors, selector::Canonical,
};
use acequia_rights::mutation::{Mutation, mutated};
use smallvec::SmallVec;

use super::{
    Answer, Guards, HITS_INLINE, RequestCheck, cells_of,
    hit::{Called, Found, Hit, HitPurpose, merge},
};
use crate::Active;

/// A hit's class. The fields are plain numbers: hits are moved for every request, and few limits have
/// classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classed {
    of: Of,
    /// The class; if there are several, the one with the lowest priority.
    class: u8,
    /// The percentage of the cell that the class leaves to others; not 0 if a caller names what may be spent.
    leaves_percent: u8,
    /// Whether the hit was denied for the sake of other classes.
    is_kept_back: bool,
    /// For a class's own cell, half of the tag of the remainder beside it; 0 if there is none. If a caller names units,
    /// these, and in the upper half as many of them as this node has.
    beside: u64,
}

/// The owner of a cell, among the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The limit has no classes.
    Nobody,
    /// The limit has no classes, and a caller names its number. The rest of the cell is never spent here, nor lent: other
    /// nodes admit by shares of their own.
    Named,
    /// All classes share the cell.
    All,
    /// The cell is the class's own.
    Own,
    /// The cell is the remainder that classes share beside their own cells.
    Remainder,
}

/// Half of a tag, never 0. The half distinguishes the remainder cells of one limit.
const fn half(tag: CellTag) -> u64 {
    tag.0 as u64 | 1
}

impl Classed {
    /// A limit without classes.
    pub(super) const NONE: Self =
        Self { of: Of::Nobody, class: 0, leaves_percent: 0, is_kept_back: false, beside: 0 };

    /// Whether some units are left to others.
    #[inline]
    pub(super) const fn leaves_some(&self) -> bool {
        self.leaves_percent != 0
    }

    /// Whether the limit has classes.
    #[inline]
    const fn is_some(&self) -> bool {
        !matches!(self.of, Of::Nobody | Of::Named)
    }

    /// The units that a caller names, and those of them that this node has.
    #[inline]
    const fn named(&self) -> Option<(u64, u64)> {
        match self.of {
            Of::Named => Some((self.beside & 0xffff_ffff, self.beside >> 32)),
            _ => None,
        }
    }

    /// Joins two descriptors of one request in one cell: the class with the lowest priority counts.
    pub(super) fn join(&mut self, other: &Self) {
        self.class = self.class.max(other.class);
        self.leaves_percent = self.leaves_percent.max(other.leaves_percent);
    }
}

impl Hit {
    /// The class in which the request counts.
    pub(super) fn class(&self) -> Option<u8> {
        self.classed.is_some().then_some(self.classed.class)
    }

    /// How many of `units` the hit leaves to others.
    #[inline]
    pub(super) fn leaves(&self, units: u64) -> u64 {
        // Each result is at most `units`.
        match (self.classed.leaves_percent, self.classed.named()) {
            (0, _) => 0,
            (_, Some((_, here))) => units - units.min(here),
            (percent, None) => (u128::from(units) * u128::from(percent) / 100) as u64,
        }
    }

    /// How many of the `left` units may be reserved on disk ahead of use: of a named number, as small a part as of other
    /// limits (`Algorithm::chunk_max`).
    #[inline]
    pub(super) fn ahead(&self, left: u64) -> u64 {
        self.classed.named().map_or(left, |(_, here)| left.min(here / 64))
    }

    /// The limit's number: what a caller names, or this budget.
    #[inline]
    pub(super) fn number(&self, budget: u64) -> u64 {
        self.classed.named().map_or(budget, |(named, _)| named)
    }

    /// The most units that the hit could ever get of a limit with this budget.
    #[inline]
    pub(super) fn most_of(&self, budget: u64) -> u64 {
        let others = || budget.saturating_sub(self.leaves(budget));
        self.classed.named().map_or_else(others, |(named, _)| named)
    }

    /// What this node has of the units that a caller names; `None` if the limit has its own number.
    #[inline]
    pub(super) fn named_here(&self) -> Option<u64> {
        self.classed.named().map(|(_, here)| here)
    }

    /// What the hit's cell owes.
    pub(super) fn owed(&self, algorithm: &Algorithm, state: &[u64], now: Now) -> u64 {
        let salt = self.tag.salt();
        match self.named_here() {
            None => algorithm.debt(state, now, salt),
            Some(here) => algorithm.left_of(here, state, now, salt).1,
        }
    }

    /// Whether a caller names the limit's number.
    #[inline]
    pub(super) const fn is_named(&self) -> bool {
        matches!(self.classed.of, Of::Named)
    }

    /// Whether the cell is the remainder that classes share.
    #[inline]
    pub(super) fn is_remainder(&self) -> bool {
        self.classed.of == Of::Remainder
    }

    /// Whether this is a class's own cell, and `remainder` is beside it.
    fn has_beside(&self, remainder: &Self) -> bool {
        self.classed.of == Of::Own
            && self.classed.beside == half(remainder.tag)
            && self.limit == remainder.limit
    }

    /// Whether the hit was denied for the sake of classes with a higher priority.
    pub(super) fn is_kept_back(&self) -> bool {
        self.classed.is_kept_back
    }

    /// The verdict on `units` of a cell for this hit.
    #[inline]
    pub(super) fn probe(&mut self, cell: &ProbedCell<'_>, units: u64, now: Now) -> Verdict {
        let verdict = cell.algorithm.probe(cell.state, now, units, self.tag.salt());
        if self.classed.leaves_some() || cell.leased != 0 {
            return self.leave_to_others(cell, units, verdict, now);
        }
        verdict
    }

    /// The verdict if units are left to others: `units` fit only if the units left to others fit too.
    #[cold]
    pub(super) fn leave_to_others(
        &mut self,
        cell: &ProbedCell<'_>,
        units: u64,
        verdict: Verdict,
        now: Now,
    ) -> Verdict {
        let left = self.left_by_others(cell, units, verdict, now);
        self.classed.is_kept_back = verdict.allowed && !left.allowed && verdict.remaining >= cell.leased;
        left
    }

    /// What is left of a verdict if units are left to others.
    pub(super) fn left_by_others(
        &self,
        cell: &ProbedCell<'_>,
        units: u64,
        verdict: Verdict,
        now: Now,
    ) -> Verdict {
        let ProbedCell { algorithm, state, leased } = *cell;
        let leaves = self.leaves(algorithm.budget()).saturating_add(leased);
        if verdict.allowed && verdict.remaining >= leaves {
            return Verdict { remaining: verdict.remaining - leaves, ..verdict };
        }
        if leaves == 0 {
            return verdict;
        }
        let left = if verdict.allowed { verdict.remaining + units } else { verdict.remaining };
        let both = algorithm.probe(state, now, units.saturating_add(leaves), self.tag.salt());
        Verdict { allowed: false, remaining: left.saturating_sub(leaves), delay_ns: 0, ..both }
    }
}

/// A cell on which a verdict is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbedCell<'a> {
    pub(super) algorithm: &'a Algorithm,
    /// The cell's state.
    pub(super) state: &'a [u64],
    /// Units that others may spend until their leases end.
    pub(super) leased: u64,
}

impl RequestCheck<'_, '_> {
    /// Adds a hit of a limit that has classes.
    #[cold]
    pub(super) fn merge_classed(&self, hits: &mut Vec<Hit>, found: Found, descriptor: &Descriptor<'_>) {
        let active = &self.catalogue.limits[found.limit as usize];
        let descriptors = active.limit.spec.descriptors;
        let Some(classes) = active.limit.classes.as_ref().filter(|_| !found.exempt) else {
            return merge_seldom(hits, found.hit(), descriptors);
        };
        let number = classes.of(descriptor);
        let class = &classes.all[number];
        let leaves_percent = class.leaves_percent.unwrap_or(0);
        // There are few classes.
        let classed =
            |of, leaves_percent| Classed { class: number as u8, leaves_percent, of, ..Classed::NONE };
        if !classes.is_separate() {
            let hit = Hit { classed: classed(Of::All, leaves_percent), ..found.hit() };
            return merge_seldom(hits, hit, descriptors);
        }
        let whose = active.limit.variant_for(descriptor, self.now.wall_ns);
        let of_role = |role: usize, classed, units| {
            let tag = tag_of_role(active, descriptor, classes.role_name(classes.roles[role]))?;
            let tag = if whose.is_apart() { active.tagger.apart(tag) } else { tag };
            let variant = active.variant_of(whose.index(), role);
            let piece = self.local(active, variant).piece_of(tag.salt());
            Some(Hit { tag, variant, piece, classed, units, ..found.hit() })
        };
        let mut remainder = None;
        if let Some(role) = classes.remainder() {
            // What the class's own cell lacks is known later.
            let (leaves, units) = if class.own > 0 { (0, 0) } else { (leaves_percent, found.units) };
            remainder = of_role(role, classed(Of::Remainder, leaves), units).map(|hit| Hit {
                purpose: if class.own == 0 { hit.purpose } else { HitPurpose::Peek },
                ..hit
            });
        }
        if class.own > 0 {
            let beside = remainder.as_ref().map_or(0, |hit| half(hit.tag));
            // Own cells come first among the roles, one for each class.
            let own = of_role(number, Classed { beside, ..classed(Of::Own, 0) }, found.units);
            own.into_iter().for_each(|own| merge_seldom(hits, own, descriptors));
        }
        remainder.into_iter().for_each(|remainder| merge_seldom(hits, remainder, descriptors));
    }

    /// Adds a hit of a limit whose number a caller names. The cell is the limit's, and this node leaves all of it but its
    /// standing share of the named units. Standing shares of every number sum to that number at most
    /// ([`acequia_rights::standing`]), and nobody lends or gives units of such a cell.
    #[cold]
    pub(super) fn merge_named(&self, hits: &mut Vec<Hit>, found: Found, named: CallersLimit) {
        let active = &self.catalogue.limits[found.limit as usize];
        let most = u32::try_from(active.limit.algorithm.budget()).unwrap_or(u32::MAX);
        let named = named.units.min(most);
        let hit = found.hit();
        let here = match mutated(Mutation::CallersShareWhole) {
            false => self.local(active, hit.variant).standing_of(named.into(), hit.tag.salt()),
            true => named.into(),
        };
        // A share is no more than the whole, which has 32 bits.
        let beside = here << 32 | u64::from(named);
        let classed = Classed { of: Of::Named, leaves_percent: 100, beside, ..Classed::NONE };
        let hit = Hit { classed, ..hit };
        merge_seldom(hits, hit, active.limit.spec.descriptors);
    }

    /// Whether any class needs the remainder, by the answer so far: the classes of `earlier` hits whose own
    /// cells have too little. The hit then asks for what those cells lack.
    pub(super) fn is_lacked(&self, hit: &mut Hit, earlier: &[Hit], answer: &Answer) -> bool {
        let limit = &self.limit(hit).limit;
        for (place, own) in earlier.iter().enumerate() {
            let Some(classed) = lacking(own, hit, answer, place) else { continue };
            let class = usize::from(classed.class);
            let leaves = limit.classes.as_ref().and_then(|classes| classes.all[class].leaves_percent);
            let leaves = leaves.unwrap_or(0);
            if own.charges() {
                hit.charge(own.units, own.purpose, limit.spec.descriptors);
            } else if !hit.charges() {
                hit.units = hit.units.max(own.units);
            }
            hit.descriptors |= own.descriptors;
            hit.classed.join(&Classed { leaves_percent: leaves, ..classed });
        }
        hit.units > 0
    }

    /// Reduces a class's own cell and the remainder beside it to one answer: the first that has enough,
    /// otherwise the own cell's. The own cell's answer then has the sooner of the two times to retry.
    pub(super) fn fall_back(
        &self,
        hits: &mut Vec<Hit>,
        states: &mut SmallVec<[Option<State>; HITS_INLINE]>,
        guards: &mut Guards<'_>,
        answer: &mut Answer,
    ) {
        let mut silent: SmallVec<[usize; HITS_INLINE]> = SmallVec::new();
        for beside in (0..hits.len()).filter(|place| hits[*place].is_remainder()) {
            let all = hits.iter().enumerate();
            let lacking: SmallVec<[usize; HITS_INLINE]> = all
                .filter(|(place, own)| lacking(own, &hits[beside], answer, *place).is_some())
                .map(|(place, _)| place)
                .collect();
            let with_own = hits
                .iter()
                .filter(|own| own.has_beside(&hits[beside]))
                .fold(0, |all, own| all | own.descriptors);
            let verdict = answer.limits[beside].verdict;
            if verdict.allowed {
                silent.extend(lacking);
                continue;
            }
            for own in &lacking {
                let own = &mut answer.limits[*own];
                own.verdict.retry_after_ns = own.verdict.retry_after_ns.min(verdict.retry_after_ns);
                own.verdict.remaining = own.verdict.remaining.max(verdict.remaining);
            }
            // A class without an own cell has no other answer. If every class has an own cell, those cells
            // answer.
            if hits[beside].descriptors & !with_own == 0 {
                silent.push(beside);
            }
        }
        silent.sort_unstable();
        for place in silent.into_iter().rev() {
            let hit = hits.remove(place);
            let limit = answer.limits.remove(place);
            states.remove(place);
            // Other regions may have what the cell lacked.
            if self.node.is_shared() && hit.account != Called::Quiet {
                self.attend(&hit, &limit, cells_of(guards, hit.tag));
            }
        }
    }
}

/// As [`merge`], but out of line, since `merge` is inlined into the path of every request.
#[inline(never)]
fn merge_seldom(hits: &mut Vec<Hit>, hit: Hit, descriptors: Descriptors) {
    merge(hits, hit, descriptors);
}

/// The class of an own cell that has too little, if `beside` is beside the cell.
fn lacking(own: &Hit, beside: &Hit, answer: &Answer, place: usize) -> Option<Classed> {
    (own.has_beside(beside) && !answer.limits[place].verdict.allowed).then_some(own.classed)
}

/// The tag of a cell for what a caller names.
#[cold]
pub(super) fn tag_of_named(tagger: &Tagger, named: CallersLimit, descriptor: &Descriptor<'_>) -> CellTag {
    let units = named.units.to_le_bytes();
    let entries = descriptor.entries.iter().flat_map(|(key, value)| [*key, *value]);
    tagger.all(std::iter::once(&units[..]).chain(entries))
}

/// The tag of a role's cell.
fn tag_of_role(active: &Active, descriptor: &Descriptor<'_>, role: &str) -> Option<CellTag> {
    let mut values: SmallVec<[Canonical<'_>; HITS_INLINE]> = SmallVec::new();
    for by in &active.limit.by {
        values.push(by.canonical(descriptor)?);
    }
    values.push(Canonical::Value(role.as_bytes()));
    Some(active.tagger.all(values.iter().map(Canonical::bytes)))
}
