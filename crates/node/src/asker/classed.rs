//! Classes of consumers in a question ([`acequia_limits::classes`]).
//!
//! Where classes share a bucket, a hit leaves what its class leaves to others. Where they have their own, a hit is of the class's own
//! cell; and where there is a remainder beside those, a second one is of that, which counts only if the first has too little. A
//! request is charged to one of the two.

use acequia_limits::{Algorithm, CellTag, Descriptor, Now, Verdict, algorithm::State, selector::Canonical};
use smallvec::SmallVec;

use super::{Answer, Called, Check, Guards, HITS_INLINE, Hit, cells_of, merge};
use crate::Active;

/// What classes make of a hit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Classed {
    /// The class; of several, the one that draws last.
    class: u8,
    /// What of the cell it leaves to others.
    leaves_percent: u8,
    of: Of,
    /// Whether it was denied for the sake of others.
    is_kept_back: bool,
}

/// Whose cell it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// That of all classes.
    All,
    /// The class's own, and beside it what all share, if they do.
    Own(Option<CellTag>),
    /// What all share beside their own.
    Remainder,
}

impl Classed {
    /// Two descriptors of one request in one cell: the class that draws last counts.
    pub(super) fn join(&mut self, other: &Self) {
        self.class = self.class.max(other.class);
        self.leaves_percent = self.leaves_percent.max(other.leaves_percent);
    }
}

impl Hit {
    /// The class that the request counts in.
    pub(super) fn class(&self) -> Option<u8> {
        self.classed.as_ref().map(|classed| classed.class)
    }

    /// Of so many units, those that the class leaves to others.
    #[inline]
    pub(super) fn leaves(&self, units: u64) -> u64 {
        match &self.classed {
            None => 0,
            // At most the units.
            Some(classed) => (u128::from(units) * u128::from(classed.leaves_percent) / 100) as u64,
        }
    }

    /// Whether it is of what classes share beside their own.
    #[inline]
    pub(super) fn is_remainder(&self) -> bool {
        self.classed.as_ref().is_some_and(|classed| classed.of == Of::Remainder)
    }

    /// Whether it was denied for the sake of classes that draw first.
    pub(super) fn is_kept_back(&self) -> bool {
        self.classed.as_ref().is_some_and(|classed| classed.is_kept_back)
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
        if self.classed.is_none() && leased == 0 {
            return verdict;
        }
        self.leave_to_others(algorithm, words, now, (units, leased), verdict)
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
        if let Some(classed) = &mut self.classed {
            classed.is_kept_back = verdict.allowed && verdict.remaining >= leased;
        }
        let left = if verdict.allowed { verdict.remaining + units } else { verdict.remaining };
        let both = algorithm.probe(words, now, units.saturating_add(leaves), self.tag.salt());
        Verdict { allowed: false, remaining: left.saturating_sub(leaves), delay_ns: 0, ..both }
    }
}

impl Check<'_, '_> {
    /// Adds a hit of a limit that has classes.
    #[cold]
    pub(super) fn merge_classed(&self, hits: &mut Vec<Hit>, hit: Hit, descriptor: &Descriptor<'_>) {
        let active = self.limit(&hit);
        let Some(classes) = active.limit.classes.as_ref().filter(|_| !hit.exempt) else {
            return merge(hits, hit);
        };
        let number = classes.of(descriptor);
        let class = &classes.all[number];
        let leaves_percent = class.leaves_percent.unwrap_or(0);
        // There are few classes.
        let classed = |of, leaves_percent| {
            Some(Box::new(Classed { class: number as u8, leaves_percent, of, is_kept_back: false }))
        };
        if !classes.is_separate() {
            return merge(hits, Hit { classed: classed(Of::All, leaves_percent), ..hit });
        }
        let own_numbers = active.limit.override_for(descriptor, self.now.wall_ns);
        let of_role = |role: usize, classed, units| {
            let tag = tag_of_role(active, descriptor, classes.role_name(classes.roles[role]))?;
            let numbers = active.numbers_of(own_numbers, role);
            let variant = self.local(active, numbers).place_of(tag.salt());
            Some(Hit { tag, numbers, variant, classed, units, ..hit.fresh() })
        };
        let mut remainder = None;
        if let Some(role) = classes.remainder() {
            // What its own cell lacks is known later.
            let (leaves, units) = if class.own > 0 { (0, 0) } else { (leaves_percent, hit.units) };
            remainder = of_role(role, classed(Of::Remainder, leaves), units);
        }
        if class.own > 0 {
            let beside = remainder.as_ref().map(|hit| hit.tag);
            // Own cells come first among the roles, one for each class.
            let own = of_role(number, classed(Of::Own(beside), 0), hit.units);
            own.into_iter().for_each(|own| merge(hits, own));
        }
        remainder.into_iter().for_each(|remainder| merge(hits, remainder));
    }

    /// Whether any class needs what they share beside their own: those of `earlier` whose own cells have too little, as the answer
    /// says so far. It is asked for what they lack.
    pub(super) fn is_lacked(&self, hit: &mut Hit, earlier: &[Hit], answer: &Answer) -> bool {
        for (place, own) in earlier.iter().enumerate() {
            let Some(classed) = lacking(own, hit, answer, place) else { continue };
            let class = usize::from(classed.class);
            let classes = self.limit(hit).limit.classes.as_ref();
            let leaves = classes.and_then(|classes| classes.all[class].leaves_percent).unwrap_or(0);
            if own.charges {
                hit.units = hit.units.saturating_add(own.units);
            } else {
                hit.units = hit.units.max(own.units);
            }
            hit.descriptors |= own.descriptors;
            if let Some(beside) = &mut hit.classed {
                beside.join(&Classed { leaves_percent: leaves, ..classed });
            }
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
            let asked: u64 = lacking.iter().map(|place| hits[*place].units).fold(0, u64::saturating_add);
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
            // A class without an own cell has nothing else to say.
            if !lacking.is_empty() && hits[beside].units <= asked {
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

/// What classes make of an own cell that has too little, beside which `beside` is.
fn lacking(own: &Hit, beside: &Hit, answer: &Answer, place: usize) -> Option<Classed> {
    let classed = own.classed.as_deref().filter(|classed| classed.of == Of::Own(Some(beside.tag)))?;
    let lacks = own.limit == beside.limit && !answer.limits[place].verdict.allowed;
    lacks.then_some(*classed)
}

/// The tag of a role's cell.
fn tag_of_role(active: &Active, descriptor: &Descriptor<'_>, role: &str) -> Option<CellTag> {
    let mut values: SmallVec<[Canonical<'_>; HITS_INLINE]> = SmallVec::new();
    for by in &active.limit.by {
        values.push(by.canonical(descriptor.value(by.key.as_bytes())?));
    }
    values.push(Canonical::Value(role.as_bytes()));
    Some(active.tagger.all(values.iter().map(Canonical::bytes)))
}
