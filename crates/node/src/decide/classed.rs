//! Classes of consumers in a question ([`acequia_limits::classes`]).
//!
//! Where classes share a bucket, a hit leaves what its class leaves to others. Where they have their own, a hit is of the class's own
//! cell; and where there is a remainder beside those, a second one is of that, which counts only if the first has too little. A
//! request is charged to one of the two.

use acequia_limits::{
    Algorithm, CellTag, Descriptor, Now, Verdict, algorithm::State, limit::Descriptors, selector::Canonical,
};
use smallvec::SmallVec;

use super::{
    Answer, Check, Guards, HITS_INLINE, cells_of,
    hit::{Called, CellSource, Found, Hit, merge},
};
use crate::{Active, shard::Cells};

/// What classes make of a hit. Plain numbers: a hit is moved about for every request, and hardly any limit has classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classed {
    of: Of,
    /// The class; of several, the one that draws last.
    class: u8,
    /// What of the cell it leaves to others.
    leaves_percent: u8,
    /// Whether it was denied for the sake of others.
    is_kept_back: bool,
    /// Of a class's own cell: the half of the tag of what is beside it; 0 where there is nothing.
    beside: u64,
}

/// Whose cell it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The limit has no classes.
    Nobody,
    /// That of all classes.
    All,
    /// The class's own.
    Own,
    /// What all share beside their own.
    Remainder,
}

/// What tells the cells of one limit apart that are beside others: half of a tag, and never 0.
const fn half(tag: CellTag) -> u64 {
    tag.0 as u64 | 1
}

impl Classed {
    /// Of a limit without classes.
    pub(super) const NONE: Self =
        Self { of: Of::Nobody, class: 0, leaves_percent: 0, is_kept_back: false, beside: 0 };

    /// Whether some is left to others.
    #[inline]
    pub(super) const fn leaves_some(&self) -> bool {
        self.leaves_percent != 0
    }

    /// Whether the limit has classes.
    #[inline]
    const fn is_some(&self) -> bool {
        !matches!(self.of, Of::Nobody)
    }

    /// Two descriptors of one request in one cell: the class that draws last counts.
    pub(super) fn join(&mut self, other: &Self) {
        self.class = self.class.max(other.class);
        self.leaves_percent = self.leaves_percent.max(other.leaves_percent);
    }
}

impl Hit {
    /// The class that the request counts in.
    pub(super) fn class(&self) -> Option<u8> {
        self.classed.is_some().then_some(self.classed.class)
    }

    /// Of so many units, those that the class leaves to others.
    #[inline]
    pub(super) fn leaves(&self, units: u64) -> u64 {
        match self.classed.leaves_percent {
            0 => 0,
            // At most the units.
            percent => (u128::from(units) * u128::from(percent) / 100) as u64,
        }
    }

    /// Whether it is of what classes share beside their own.
    #[inline]
    pub(super) fn is_remainder(&self) -> bool {
        self.classed.of == Of::Remainder
    }

    /// Whether it is a class's own cell, beside which `remainder` is.
    fn has_beside(&self, remainder: &Self) -> bool {
        self.classed.of == Of::Own
            && self.classed.beside == half(remainder.tag)
            && self.limit == remainder.limit
    }

    /// Whether it was denied for the sake of classes that draw first.
    pub(super) fn is_kept_back(&self) -> bool {
        self.classed.is_kept_back
    }

    /// What an algorithm says of units for this hit, where so many are leased to others.
    #[inline]
    pub(super) fn probe(
        &mut self,
        algorithm: &Algorithm,
        words: &[u64],
        now: Now,
        (units, leased): (u64, u64),
    ) -> Verdict {
        let verdict = algorithm.probe(words, now, units, self.tag.salt());
        if self.classed.leaves_some() || leased != 0 {
            return self.leave_to_others(algorithm, words, now, (units, leased), verdict);
        }
        verdict
    }

    /// The same, where some is left to others: the units fit only if what is left to them does too.
    #[cold]
    fn leave_to_others(
        &mut self,
        algorithm: &Algorithm,
        words: &[u64],
        now: Now,
        (units, leased): (u64, u64),
        verdict: Verdict,
    ) -> Verdict {
        let leaves = self.leaves(algorithm.budget()).saturating_add(leased);
        if verdict.allowed && verdict.remaining >= leaves {
            return Verdict { remaining: verdict.remaining - leaves, ..verdict };
        }
        if leaves == 0 {
            return verdict;
        }
        self.classed.is_kept_back = verdict.allowed && verdict.remaining >= leased;
        let left = if verdict.allowed { verdict.remaining + units } else { verdict.remaining };
        let both = algorithm.probe(words, now, units.saturating_add(leaves), self.tag.salt());
        Verdict { allowed: false, remaining: left.saturating_sub(leaves), delay_ns: 0, ..both }
    }
}

impl Check<'_, '_> {
    /// What is said of a hit where some of its cell is left to others, or leased. `before`: as in [`Check::probe`].
    #[cold]
    pub(super) fn keep_back(
        &self,
        hit: &mut Hit,
        (before, leased): (u64, u64),
        verdict: Verdict,
        (cells, state): (&Cells, Option<&State>),
    ) -> Verdict {
        let words = match (state, hit.place) {
            (Some(state), _) => state.words(),
            (None, CellSource::At(place)) => cells.words(cells.table.at(place)),
            (None, CellSource::Absent | CellSource::Shared) => return verdict,
        };
        let units = hit.units.saturating_add(before);
        hit.leave_to_others(self.algorithm(hit), words, self.now, (units, leased), verdict)
    }

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
        let whose = active.limit.numbers_for(descriptor, self.now.wall_ns);
        let of_role = |role: usize, classed, units| {
            let tag = tag_of_role(active, descriptor, classes.role_name(classes.roles[role]))?;
            let tag = if whose.is_apart() { active.tagger.apart(tag) } else { tag };
            let numbers = active.numbers_of(whose.index(), role);
            let variant = self.local(active, numbers).place_of(tag.salt());
            Some(Hit { tag, numbers, variant, classed, units, ..found.hit() })
        };
        let mut remainder = None;
        if let Some(role) = classes.remainder() {
            // What its own cell lacks is known later.
            let (leaves, units) = if class.own > 0 { (0, 0) } else { (leaves_percent, found.units) };
            remainder = of_role(role, classed(Of::Remainder, leaves), units)
                .map(|hit| Hit { charges: hit.charges && class.own == 0, ..hit });
        }
        if class.own > 0 {
            let beside = remainder.as_ref().map_or(0, |hit| half(hit.tag));
            // Own cells come first among the roles, one for each class.
            let own = of_role(number, Classed { beside, ..classed(Of::Own, 0) }, found.units);
            own.into_iter().for_each(|own| merge_seldom(hits, own, descriptors));
        }
        remainder.into_iter().for_each(|remainder| merge_seldom(hits, remainder, descriptors));
    }

    /// Whether any class needs what they share beside their own: those of `earlier` whose own cells have too little, as the answer
    /// says so far. It is asked for what they lack.
    pub(super) fn is_lacked(&self, hit: &mut Hit, earlier: &[Hit], answer: &Answer) -> bool {
        let limit = &self.limit(hit).limit;
        for (place, own) in earlier.iter().enumerate() {
            let Some(classed) = lacking(own, hit, answer, place) else { continue };
            let class = usize::from(classed.class);
            let leaves = limit.classes.as_ref().and_then(|classes| classes.all[class].leaves_percent);
            let leaves = leaves.unwrap_or(0);
            if own.charges {
                hit.charge(own.units, limit.spec.descriptors);
            } else if !hit.charges {
                hit.units = hit.units.max(own.units);
            }
            hit.descriptors |= own.descriptors;
            hit.classed.join(&Classed { leaves_percent: leaves, ..classed });
        }
        hit.units > 0
    }

    /// Of a class's own cell and what is shared beside it, one speaks: the first that has enough, or else the own one, which then says
    /// the sooner of both times to come back.
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
            // A class without an own cell has nothing else to say. Where all have one, those say it.
            if hits[beside].descriptors & !with_own == 0 {
                silent.push(beside);
            }
        }
        silent.sort_unstable();
        for place in silent.into_iter().rev() {
            let hit = hits.remove(place);
            let limit = answer.limits.remove(place);
            states.remove(place);
            // What it lacked other regions may have.
            if self.node.is_shared() && hit.account != Called::Quiet {
                self.attend(&hit, &limit, cells_of(guards, hit.tag));
            }
        }
    }
}

/// As [`merge`], which is in one piece with what every request does.
#[inline(never)]
fn merge_seldom(hits: &mut Vec<Hit>, hit: Hit, descriptors: Descriptors) {
    merge(hits, hit, descriptors);
}

/// What classes make of an own cell that has too little, beside which `beside` is.
fn lacking(own: &Hit, beside: &Hit, answer: &Answer, place: usize) -> Option<Classed> {
    (own.has_beside(beside) && !answer.limits[place].verdict.allowed).then_some(own.classed)
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
