//! A limit's numbers as one region enforces them.
//!
//! Regions share a limit by whole units, cell by cell ([`acequia_rights::standing`]), so a region's
//! numbers differ between cells, but only by a few values: an algorithm is made for each beforehand,
//! and a cell finds its own by its salt.

use std::sync::Arc;

use acequia_limits::{Algorithm, Part, RATE_PARTS, window::Edges};
use acequia_rights::{
    Region, Split,
    broken::{Broken, broken},
};

/// How the nodes of a region share a limit: each has a guard share, all alike, and the rest is in the cell's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Nodes, at least 1.
    pub(crate) nodes: u64,
    /// Of a limit, what all of them have together, in percent: at most 100.
    pub(crate) percent: u64,
}

impl Guard {
    /// What each node has of so many units, rounded down: of a few it has none, and all are in the pool.
    fn units(self, total: u64) -> u64 {
        // At most the total.
        (u128::from(total) * u128::from(self.percent) / 100 / u128::from(self.nodes)) as u64
    }

    /// What each node has of a rate, in parts.
    fn rate(self) -> u32 {
        // At most the whole.
        (u64::from(RATE_PARTS) * self.percent / 100 / self.nodes) as u32
    }

    /// What is in the pool.
    fn pool(self, total: u64, has_rate: bool) -> Part {
        let rate = u64::from(RATE_PARTS) - u64::from(self.rate()) * self.nodes;
        // At most the whole.
        let rate = if has_rate { rate as u32 } else { 0 };
        let kept = if broken(Broken::LeaseGuardTwice) { 0 } else { self.units(total) * self.nodes };
        Part { rate, units: total - kept }
    }
}

/// What makes a region's numbers out of a limit's.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    /// Whose numbers.
    pub(crate) region: Region,
    /// The splits in force, of which the least counts; none: the region owns nothing.
    pub(crate) terms: Vec<Arc<Split>>,
    /// How nodes share them, where they do.
    pub(crate) guard: Option<Guard>,
    /// How far steady clocks may drift, in parts per million: rates are slowed by as much.
    pub(crate) drift_ppm: u32,
    /// How far wall clocks may differ, in nanoseconds.
    pub(crate) margin_ns: u64,
    /// Windows that ended by this time were left under an earlier margin: wall clock, nanoseconds.
    pub(crate) left_ns: u64,
}

impl Shares {
    /// Whether the clock is good enough to tell a limit's windows apart. While it is not, nothing of them is spent.
    fn can_tell(&self, algorithm: &Algorithm) -> bool {
        match algorithm {
            Algorithm::FixedWindow(window) => match window.edges {
                Edges::Every { window_ns, .. } => self.margin_ns.saturating_mul(2) < window_ns,
                Edges::Calendar(_) => true,
            },
            _ => true,
        }
    }

    /// A region's piece of a limit.
    fn piece(&self, algorithm: &Algorithm, part: Part) -> Algorithm {
        algorithm.local(part, self.drift_ppm, self.margin_ns).after(self.left_ns)
    }

    /// Whether both make the same numbers. What was left since under one margin needs no telling: the wall does not go
    /// back, so while the margin is the same no clock is in such a window.
    fn is_same(&self, others: &Self) -> bool {
        let same = |(own, other): (&Arc<Split>, &Arc<Split>)| Arc::ptr_eq(own, other);
        (self.region, self.guard) == (others.region, others.guard)
            && (self.drift_ppm, self.margin_ns) == (others.drift_ppm, others.margin_ns)
            && self.terms.len() == others.terms.len()
            && self.terms.iter().zip(&others.terms).all(same)
    }
}

/// A limit's numbers in one region.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    shares: Option<Arc<Shares>>,
    total: u64,
    rate: u32,
    /// By units, ascending. One where nothing is shared.
    variants: Arc<[(u64, Algorithm)]>,
}

impl Local {
    /// The numbers themselves: nothing is shared.
    pub(crate) fn whole(algorithm: &Algorithm) -> Self {
        let total = algorithm.budget();
        Self { shares: None, total, rate: 0, variants: Arc::new([(total, algorithm.clone())]) }
    }

    /// A region's numbers.
    pub(crate) fn shared(algorithm: &Algorithm, shares: &Arc<Shares>) -> Self {
        let total = algorithm.budget();
        let rate = match (algorithm.has_rate(), shares.guard) {
            (false, _) => 0,
            (true, Some(guard)) => guard.rate(),
            (true, None) => shares.terms.iter().map(|split| split.rate(shares.region)).min().unwrap_or(0),
        };
        let mut all: Vec<u64> = match shares.guard {
            Some(guard) => vec![guard.units(total)],
            None => {
                let of_each = shares.terms.iter().flat_map(|split| split.distinct(shares.region, total));
                of_each.chain([0]).collect()
            }
        };
        all.sort_unstable();
        all.dedup();
        let made = |units: u64| {
            // A meter needs a rate; one of a region without any holds no unit anyway.
            let rate = if algorithm.has_rate() { rate.max(1) } else { 0 };
            let part = Part { rate, units: if shares.can_tell(algorithm) { units } else { 0 } };
            (units, shares.piece(algorithm, part))
        };
        let mut variants: Vec<(u64, Algorithm)> = all.into_iter().map(made).collect();
        let local = Self { shares: Some(Arc::clone(shares)), total, rate, variants: Arc::new([]) };
        // The usual case: every cell has the same units, and needs no look at its salt.
        if let [split] = shares.terms.as_slice()
            && let [only] = split.distinct(shares.region, total).as_slice()
        {
            let only = *only;
            variants.retain(|(units, _)| *units == only);
        } else if shares.terms.is_empty() {
            variants.truncate(1);
        }
        Self { variants: variants.into(), ..local }
    }

    /// Whether these are the numbers that such shares make.
    pub(crate) fn is_of(&self, shares: Option<&Arc<Shares>>) -> bool {
        match (&self.shares, shares) {
            (None, None) => true,
            (Some(own), Some(others)) => own.is_same(others),
            _ => false,
        }
    }

    /// Whether the region has nothing, by a distribution that counts: what others gave to it they gave to an
    /// earlier incarnation.
    pub(crate) fn owns_nothing(&self) -> bool {
        self.shares.as_ref().is_some_and(|shares| shares.terms.is_empty() && shares.guard.is_none())
    }

    /// What of a cell is in its pool; nothing where there are none.
    pub(crate) fn pool(&self, global: &Algorithm) -> Option<Part> {
        let guard = self.shares.as_ref()?.guard?;
        Some(guard.pool(global.budget(), global.has_rate()))
    }

    /// The numbers of a cell.
    #[inline]
    pub(crate) fn at(&self, salt: u32) -> &Algorithm {
        self.in_place(self.place_of(salt))
    }

    /// Which numbers a cell has: looked up once in a question, since that takes a few divisions.
    #[inline]
    pub(crate) fn place_of(&self, salt: u32) -> u8 {
        if self.variants.len() == 1 { 0 } else { self.find(salt) }
    }

    /// The numbers of a cell that has those.
    #[inline]
    pub(crate) fn in_place(&self, place: u8) -> &Algorithm {
        &self.variants[usize::from(place)].1
    }

    /// The standing part of a cell.
    pub(crate) fn part(&self, salt: u32) -> Part {
        Part { rate: self.rate, units: self.units(salt) }
    }

    /// Whether a cell has any unit of its own.
    pub(crate) fn owns_any(&self, salt: u32) -> bool {
        self.shares.is_none() || self.units(salt) > 0
    }

    /// The smallest numbers that a cell may have: what cells that share one are counted by.
    pub(crate) fn least(&self) -> &Algorithm {
        let least = self.variants.iter().find(|(units, _)| *units > 0).or(self.variants.first());
        &least.expect("there is always one").1
    }

    /// The largest numbers that a cell may have by its standing part.
    pub(crate) fn most(&self) -> &Algorithm {
        &self.variants.last().expect("there is always one").1
    }

    /// The limit's numbers with another part than the standing one.
    pub(crate) fn with(&self, global: &Algorithm, part: Part) -> Algorithm {
        match &self.shares {
            None => global.clone(),
            Some(shares) => {
                let units = self.usable(global, part.units);
                let part = Part { rate: if global.has_rate() { part.rate.max(1) } else { 0 }, units };
                shares.piece(global, part)
            }
        }
    }

    /// Of so many units that a cell has, those that it may use. Whatever others say that they lent: never more than the
    /// limit. And nothing of a window that the clock cannot tell from the next.
    pub(crate) fn usable(&self, global: &Algorithm, units: u64) -> u64 {
        match &self.shares {
            Some(shares) if !shares.can_tell(global) => 0,
            Some(_) | None => units.min(global.budget()),
        }
    }

    fn find(&self, salt: u32) -> u8 {
        let units = self.units(salt);
        // Fewer units than the share is safe; there is a variant for every share, a few for each distribution that counts.
        let found = self.variants.iter().position(|(variant, _)| *variant == units);
        found.and_then(|place| u8::try_from(place).ok()).unwrap_or(0)
    }

    fn units(&self, salt: u32) -> u64 {
        match self.shares.as_deref() {
            None => self.total,
            Some(Shares { guard: Some(guard), .. }) => guard.units(self.total),
            Some(shares) => {
                let terms = shares.terms.iter();
                terms.map(|split| split.units(shares.region, self.total, salt)).min().unwrap_or(0)
            }
        }
    }
}
