//! A limit's variants, as one region or one node enforces them.
//!
//! Regions share a limit by whole units, cell by cell ([`acequia_rights::standing`]). So the numbers differ
//! between cells, but only by a few values. An algorithm, a *piece*, is made for each value beforehand, and a
//! cell finds its own by its salt.

use std::{collections::BTreeSet, sync::Arc};

use acequia_limits::{
    Algorithm, Limit, Part, RATE_PARTS,
    window::{Edges, Later},
};
use acequia_rights::{
    MemberId, Split,
    mutation::{Mutation, mutated},
    pool::NODES_MAX,
    standing::REGIONS_MAX,
};
use smallvec::SmallVec;

/// How the nodes of a region share a limit. Together they keep a part of it, the *guard*, each its own share,
/// and the rest is in the cell's pool. **For every cell, the sum of what all nodes keep and what is in the
/// pool is at most what the nodes share.**
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuardShare {
    of: GuardScope,
    /// How much they keep, in percent: at most 100.
    percent: u64,
}

/// What the nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GuardScope {
    /// The whole limit. The guard's units are whole. If they do not go round, a cell's salt says which nodes
    /// have one more, by the formula by which regions split limits. So over many cells all nodes have equally
    /// much.
    Limit {
        /// This node in the split of its region, where all nodes have the same weight.
        node: MemberId,
        split: Arc<Split>,
    },
    /// The part that each node has among the nodes of all regions. A node keeps some of its part, and the
    /// rest of all parts is in the pool.
    Parts(Arc<[MemberId]>),
}

/// The least limit of which the nodes keep a unit whatever the percentage, unless that is 0. Among regions:
/// the least part of a bucket of which a node keeps one, from [`UNIT_FROM_PERCENT`] on. While the store
/// answers, such a unit is found only by requests that chance sends to its node, until other nodes ask for
/// the unit. A limit of one unit would first deny most requests, and a limit of two a quarter of them. So all
/// units of smaller limits are in the pool, where every node finds them. From here on few requests are denied
/// (`a_guard_unit_of_a_tiny_limit_delays_answers_and_serves_store_outages`), and some pass without the
/// store.
///
/// The kept units depend on nothing but the node's own part and the kind of limit. They grow with the part,
/// as the rest does. So nodes that go by different totals and files together keep, and put into pools, no
/// more than the largest total. A node that kept a unit because no other has enough would break that.
const GUARDED_FROM: u64 = 4;

/// The least part of a window, and of a sliding window, of which a node keeps a unit among regions: requests
/// find the unit through the nodes that hear each other. A lent unit of a sliding window counts as used for a
/// window longer, so two units are the least there. A bucket's unit would come back at its part of the rate,
/// and the pool would have the rest of the rate without a unit, so buckets need more
/// (`at_low_demand_few_requests_of_small_limits_are_denied_without_stores`).
const WINDOW_GUARDED_FROM: u64 = 1;
const SLIDING_GUARDED_FROM: u64 = 2;

/// Among regions a node keeps half of its part of a window, up to half of this many units, unless the
/// percentage asks for more or is 0. Units that do not come back cannot be had again without the store. So a
/// request for less than half of its region's part finds it there in an outage, whatever was asked before. If
/// there are few units, one node finds what the others keep. If there are more, leases serve such requests
/// for as long.
const HALF_UP_TO: u64 = 8;

/// The most pieces of a variant, by the units of present and later windows.
const PIECES_MAX: usize = 255;
/// The most allocations by which later windows go, if cells have edges of their own: a change of shares makes
/// two or three at a time.
const LATER_MAX: usize = 2;
/// Where the groups begin that later windows go by, of so many. All windows of the groups before go by every
/// allocation of these.
pub(super) fn first_later(groups: usize) -> usize {
    groups.saturating_sub(LATER_MAX).max(1)
}

/// The standing units of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StandingUnits {
    /// Units in the present windows.
    present: u64,
    /// Units in later windows.
    later: SmallVec<[Later; LATER_MAX]>,
}

impl StandingUnits {
    /// Units that are the same in every window.
    const fn of(present: u64) -> Self {
        Self { present, later: SmallVec::new_const() }
    }

    /// The fewest units in any window.
    fn least(&self) -> u64 {
        self.later.iter().map(|later| later.limit).fold(self.present, u64::min)
    }
}

/// How units come back: this decides how few of them are worth keeping, and is part of a limit's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refill {
    Rate,
    Edges,
    Slides,
}

impl Refill {
    const fn of(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => Self::Rate,
            Algorithm::FixedWindow(_) => Self::Edges,
            Algorithm::SlidingLog(_) | Algorithm::SlidingSlots(_) | Algorithm::SlidingApproximate(_) => {
                Self::Slides
            }
        }
    }
}

/// The least percentage at which a node keeps one unit of a small bucket, among regions. The unit comes back
/// at that part of the rate: at a smaller part, spent units would count for longer than an allocation does.
const UNIT_FROM_PERCENT: u64 = 10;
/// One unit at that part of the rate takes as long as this many at the whole rate, counting one more for a
/// rate that was rounded down because its fraction does not fit.
const UNITS_AS_LONG: u64 = 100 / UNIT_FROM_PERCENT + 1;

/// The least part of any rate that a node keeps: a bucket must give something back, and somebody must own
/// that.
const RATE_MIN: u32 = 1;

impl GuardShare {
    /// A node's guard in a region that has the limit to itself.
    ///
    /// # Panics
    /// If there are no nodes, or more than pools keep records of.
    pub(crate) fn new(node: u16, nodes: &BTreeSet<u16>, percent: u8) -> Self {
        const { assert!(NODES_MAX <= REGIONS_MAX, "nodes are split by as regions are") };
        let alike: Vec<(MemberId, u32)> = nodes.iter().map(|node| (MemberId(*node), 1)).collect();
        let split = Split::new(&alike).expect("a region has 1 to 64 nodes");
        let of = GuardScope::Limit { node: MemberId(node), split: Arc::new(split) };
        Self { of, percent: percent.min(100).into() }
    }

    /// A node's guard where these members have parts of the limit among the nodes of several regions.
    pub(crate) fn of_parts(members: impl IntoIterator<Item = MemberId>, percent: u8) -> Self {
        Self { of: GuardScope::Parts(members.into_iter().collect()), percent: percent.min(100).into() }
    }

    /// The guard of one limit. Numbers that callers name have no pools, so the nodes keep all of them.
    pub(crate) fn for_limit(&self, limit: &Limit) -> Self {
        Self { percent: if limit.spec.from_callers { 100 } else { self.percent }, of: self.of.clone() }
    }

    /// The region's nodes as members among those of all regions; none if the region has every limit to
    /// itself.
    pub(crate) fn members(&self) -> &[MemberId] {
        match &self.of {
            GuardScope::Limit { .. } => &[],
            GuardScope::Parts(members) => members,
        }
    }

    /// How many nodes there are in the region.
    fn nodes(&self) -> u64 {
        match &self.of {
            GuardScope::Limit { split, .. } => split.regions().len() as u64,
            GuardScope::Parts(members) => members.len().max(1) as u64,
        }
    }

    /// How many of these units are kept.
    fn kept(&self, total: u64, refill: Refill) -> u64 {
        // At most the total.
        let part = (u128::from(total) * u128::from(self.percent) / 100) as u64;
        let (percent, least) = match (&self.of, refill) {
            (GuardScope::Limit { .. }, _) => (1, GUARDED_FROM),
            (GuardScope::Parts(_), Refill::Rate) => (UNIT_FROM_PERCENT, GUARDED_FROM),
            (GuardScope::Parts(_), Refill::Edges) => (1, WINDOW_GUARDED_FROM),
            (GuardScope::Parts(_), Refill::Slides) => (1, SLIDING_GUARDED_FROM),
        };
        let few = match (&self.of, refill) {
            (GuardScope::Limit { .. }, _) | (_, Refill::Rate) => 1,
            (GuardScope::Parts(_), _) => {
                total.min(HALF_UP_TO).div_ceil(2).min(total.saturating_sub(least) + 1)
            }
        };
        part.max(if self.percent >= percent && total >= least { few } else { 0 })
    }

    /// How many of these units are in the pool: those that the nodes do not keep.
    fn pooled(&self, total: u64, refill: Refill) -> u64 {
        if mutated(Mutation::LeaseGuardTwice) { total } else { total - self.kept(total, refill) }
    }

    /// The part of the rate that a node keeps, with a unit or without. A node without one uses the rate by a
    /// unit of the pool. The rate is rounded up and units are rounded down: kept units come back no later
    /// than all units of a part would.
    ///
    /// The result depends on nothing that files may set differently for a bucket of the same rate. Suppose
    /// that a pool had the rate of nodes that keep no unit of a small burst, and one of them kept a unit
    /// because its file has a larger burst. Together they would have that rate twice for as long as the files
    /// differ.
    fn kept_rate(&self, rate: u32) -> u32 {
        // At most the whole.
        let part = (u64::from(rate) * self.percent).div_ceil(100) as u32;
        part.max(RATE_MIN)
    }
}

/// The splits in force for the pools of some windows: the least of them counts. None means that the region
/// owns nothing of these windows.
#[derive(Clone, Debug)]
pub(crate) struct PoolSplits {
    /// The latest end of these windows: wall clock, nanoseconds. They end after those of the entry before.
    pub(crate) until_ns: u64,
    pub(crate) splits: Vec<Arc<Split>>,
    /// Whether the node joined after they began, and so owns nothing of them itself.
    pub(crate) has_joined_since: bool,
}

/// The shares by which a region's pieces are made out of a limit.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    /// The member that owns the shares.
    pub(crate) region: MemberId,
    /// The splits in force: the least of them counts. None means that the region owns nothing.
    pub(crate) splits: Vec<Arc<Split>>,
    /// When the pieces must be made anew, at an edge of windows: wall clock, nanoseconds. `u64::MAX` if
    /// windows that begin later go by the same shares.
    pub(crate) until_ns: u64,
    /// The splits of pools, ascending by the end of windows; the last is for all later ones. If cells have
    /// edges of their own, splits of one time may be older than others.
    pub(crate) pools: Vec<PoolSplits>,
    /// How the region's nodes share them, if they do.
    pub(crate) guard: Option<GuardShare>,
    /// How far steady clocks may drift, in parts per million: rates are slowed by that much.
    pub(crate) drift_ppm: u32,
    /// How far wall clocks may differ, in nanoseconds.
    pub(crate) margin_ns: u64,
    /// Windows that ended by this time were left under an earlier margin: wall clock, nanoseconds.
    pub(crate) left_ns: u64,
}

impl Shares {
    /// Whether the clock is good enough to tell a limit's windows apart. If not, nothing of them is spent.
    fn can_tell(&self, algorithm: &Algorithm) -> bool {
        match algorithm {
            Algorithm::FixedWindow(window) => match window.edges {
                Edges::Every { window_ns, .. } => self.margin_ns.saturating_mul(2) < window_ns,
                Edges::Calendar(_) => true,
            },
            _ => true,
        }
    }

    /// If cells have edges of their own: the last allocations of their windows, ascending by the end of
    /// windows.
    fn later(&self) -> &[PoolSplits] {
        let first = first_later(self.pools.len());
        if self.until_ns == u64::MAX { self.pools.get(first..).unwrap_or_default() } else { &[] }
    }

    /// The time after which the windows of such an allocation end.
    fn after_ns(&self, later: &PoolSplits) -> u64 {
        if mutated(Mutation::LaterSharesEarly) {
            return 0;
        }
        let before = self.pools.iter().take_while(|of| of.until_ns < later.until_ns).last();
        before.map_or(0, |of| of.until_ns)
    }

    /// The guaranteed units of this node in a cell, by these allocations.
    fn units(&self, splits: &[Arc<Split>], total: u64, refill: Refill, salt: u32) -> u64 {
        let least = |kept: &dyn Fn(u64) -> u64| {
            splits.iter().map(|split| kept(split.units(self.region, total, salt))).min().unwrap_or(0)
        };
        match &self.guard {
            None => least(&|units| units),
            Some(guard) => match &guard.of {
                GuardScope::Limit { node, split } => split.units(*node, guard.kept(total, refill), salt),
                GuardScope::Parts(_) => least(&|units| guard.kept(units, refill)),
            },
        }
    }

    /// All values that [`Self::units`] can have, over all cells.
    fn distinct(&self, splits: &[Arc<Split>], total: u64, refill: Refill) -> Vec<u64> {
        let of_splits = || splits.iter().flat_map(|split| split.distinct(self.region, total)).chain([0]);
        let mut all: Vec<u64> = match &self.guard {
            None => of_splits().collect(),
            Some(guard) => match &guard.of {
                GuardScope::Limit { node, split } => {
                    split.distinct(*node, guard.kept(total, refill)).to_vec()
                }
                GuardScope::Parts(_) => of_splits().map(|units| guard.kept(units, refill)).collect(),
            },
        };
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The part of the rate that is this node's, whatever units it has of a cell.
    fn rate(&self) -> u32 {
        let least = || self.splits.iter().map(|split| split.rate(self.region)).min().unwrap_or(0);
        match &self.guard {
            None => least(),
            Some(guard) => match &guard.of {
                GuardScope::Limit { split, .. } => guard.kept_rate(RATE_PARTS / split.regions().len() as u32),
                GuardScope::Parts(_) => guard.kept_rate(least()),
            },
        }
    }

    /// The part of a cell that is in its pool, by `splits`; `None` if there are no pools.
    fn pool(&self, splits: &[Arc<Split>], total: u64, refill: Refill, salt: u32) -> Option<Part> {
        let guard = self.guard.as_ref()?;
        let rate = |rest: u64| if refill == Refill::Rate { rest as u32 } else { 0 };
        Some(match &guard.of {
            GuardScope::Limit { split, .. } => {
                // Each node has at most an even part of the whole.
                let rates = split.regions().len() as u64 * u64::from(self.rate());
                Part {
                    rate: rate(u64::from(RATE_PARTS).saturating_sub(rates)),
                    units: guard.pooled(total, refill),
                }
            }
            GuardScope::Parts(members) => {
                let by_split = |split: &Arc<Split>| {
                    let parts = members.iter().map(|member| split.part(*member, total, salt, true));
                    parts.fold(Part::default(), |all, part| Part {
                        rate: all.rate + part.rate.saturating_sub(guard.kept_rate(part.rate)),
                        units: all.units + guard.pooled(part.units, refill),
                    })
                };
                // Both the least rate and the least units count.
                let least = |a: Part, b: Part| Part { rate: a.rate.min(b.rate), units: a.units.min(b.units) };
                let all = splits.iter().map(by_split).reduce(least).unwrap_or_default();
                Part { rate: rate(all.rate.into()), units: all.units }
            }
        })
    }

    /// Whether the region has nothing by an allocation that counts.
    fn owns_nothing(&self) -> bool {
        let has_all = self.guard.as_ref().is_some_and(|guard| matches!(guard.of, GuardScope::Limit { .. }));
        self.splits.is_empty() && !has_all
    }

    /// A region's piece of a limit.
    fn piece(&self, algorithm: &Algorithm, part: Part) -> Algorithm {
        algorithm.local(part, self.drift_ppm, self.margin_ns).after(self.left_ns).until(self.ends_ns())
    }

    /// Pieces give nothing of a window that ends later: it goes by shares of its own.
    fn ends_ns(&self) -> u64 {
        if mutated(Mutation::OpenSharesLast) { u64::MAX } else { self.until_ns }
    }

    /// Whether both make the same pieces. The windows that were left under one margin need no comparison:
    /// the wall does not go back, so while the margin is the same no clock is in such a window.
    fn is_same(&self, others: &Self) -> bool {
        let is_one = |(own, other): (&Arc<Split>, &Arc<Split>)| Arc::ptr_eq(own, other);
        let same = |own: &[Arc<Split>], other: &[Arc<Split>]| {
            own.len() == other.len() && own.iter().zip(other).all(is_one)
        };
        (self.region, &self.guard) == (others.region, &others.guard)
            && (self.drift_ppm, self.margin_ns) == (others.drift_ppm, others.margin_ns)
            && self.until_ns == others.until_ns
            && same(&self.splits, &others.splits)
            && self.pools.len() == others.pools.len()
            && self.pools.iter().zip(&others.pools).all(|(own, other)| {
                (own.until_ns, own.has_joined_since) == (other.until_ns, other.has_joined_since)
                    && same(&own.splits, &other.splits)
            })
    }

    /// The splits for the pool of a window, by the window's end.
    fn of_pools(&self, end_ns: u64) -> Option<&PoolSplits> {
        self.pools.iter().find(|of| end_ns <= of.until_ns)
    }
}

/// How long, in nanoseconds, spent units may count under any of these variants of a bucket, if regions share
/// all of its rate. The most units at the slowest rate count, and so does what a node keeps for itself:
/// perhaps one unit of few, at its small part of the rate.
pub(crate) fn drains_ns(all: &[&Algorithm]) -> u64 {
    let most = all.iter().map(|algorithm| algorithm.budget()).max().unwrap_or(0);
    let most = if most >= GUARDED_FROM { most.max(UNITS_AS_LONG) } else { most };
    let slowest = |algorithm: &&Algorithm| {
        let whole = u128::from(algorithm.horizon_ns()) * u128::from(most);
        u64::try_from(whole.div_ceil(u128::from(algorithm.budget().max(1)))).unwrap_or(u64::MAX)
    };
    all.iter().map(slowest).max().unwrap_or(0)
}

/// One variant of a limit, as one region or one node enforces it.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    shares: Option<Arc<Shares>>,
    total: u64,
    refill: Refill,
    rate: u32,
    /// By units now and in later windows, ascending. One entry if nothing is shared.
    pieces: Arc<[(StandingUnits, Algorithm)]>,
    /// The piece of the fewest units above 0, without later windows.
    least: Arc<Algorithm>,
}

impl Local {
    /// The limit itself: nothing is shared.
    pub(crate) fn whole(algorithm: &Algorithm) -> Self {
        let total = algorithm.budget();
        let refill = Refill::of(algorithm);
        let pieces = Arc::new([(StandingUnits::of(total), algorithm.clone())]);
        Self { shares: None, total, refill, rate: 0, pieces, least: Arc::new(algorithm.clone()) }
    }

    /// A region's pieces of a variant.
    pub(crate) fn shared(algorithm: &Algorithm, shares: &Arc<Shares>) -> Self {
        let total = algorithm.budget();
        let refill = Refill::of(algorithm);
        let rate = if algorithm.has_rate() { shares.rate() } else { 0 };
        let all = shares.distinct(&shares.splits, total, refill);
        let made = |units: u64| {
            // A meter needs a rate, and one of a region without any rate holds no unit anyway.
            let rate = if algorithm.has_rate() { rate.max(RATE_MIN) } else { 0 };
            let part = Part { rate, units: if shares.can_tell(algorithm) { units } else { 0 } };
            (StandingUnits::of(units), shares.piece(algorithm, part))
        };
        let mut pieces: Vec<(StandingUnits, Algorithm)> = all.into_iter().map(made).collect();
        let is_later = refill == Refill::Edges && shares.can_tell(algorithm) && !shares.later().is_empty();
        if is_later {
            // Every allocation adds a few pieces.
            for of in shares.later() {
                let all = shares.distinct(&of.splits, total, refill);
                let after_ns = shares.after_ns(of);
                let with = |(standing, piece): (StandingUnits, Algorithm)| {
                    let more = |limit: u64| {
                        let mut standing = standing.clone();
                        standing.later.push(Later { after_ns, limit });
                        (standing, piece.clone())
                    };
                    all.iter().copied().map(more).collect::<Vec<_>>()
                };
                pieces = pieces.into_iter().flat_map(with).take(PIECES_MAX).collect();
            }
            for (standing, piece) in &mut pieces {
                *piece = piece.clone().later(&standing.later);
            }
        }
        // The usual case: every cell has the same units, and needs no look at its salt.
        if !is_later
            && shares.guard.is_none()
            && let [split] = shares.splits.as_slice()
            && let [only] = split.distinct(shares.region, total).as_slice()
        {
            let only = *only;
            pieces.retain(|(standing, _)| standing.present == only);
        } else if !is_later && shares.owns_nothing() {
            pieces.truncate(1);
        }
        // The first of several may have no units in any window.
        let some = pieces.iter().filter(|(standing, _)| standing.least() > 0);
        let least = some.min_by_key(|(standing, _)| standing.least()).or(pieces.first());
        let (standing, piece) = least.expect("there is always one");
        let least = match standing.later.is_empty() {
            true => piece.clone(),
            false => made(standing.least()).1,
        };
        let (shares, least) = (Some(Arc::clone(shares)), Arc::new(least));
        Self { shares, total, refill, rate, pieces: pieces.into(), least }
    }

    /// Whether such shares make these pieces.
    pub(crate) fn is_of(&self, shares: Option<&Arc<Shares>>) -> bool {
        match (&self.shares, shares) {
            (None, None) => true,
            (Some(own), Some(others)) => own.is_same(others),
            _ => false,
        }
    }

    /// Whether the region has nothing of a window, by an allocation that counts for it: transfers from others
    /// went to an earlier incarnation. If cells have edges of their own, the region may have some of the
    /// windows that began since it joined, though its standing parts are nothing until all earlier ones are
    /// over.
    pub(crate) fn owns_nothing_of(&self, end_ns: u64) -> bool {
        let is_nothing_of = |shares: &Shares| shares.of_pools(end_ns).is_none_or(|of| of.splits.is_empty());
        self.shares.as_ref().is_some_and(|shares| shares.owns_nothing() && is_nothing_of(shares))
    }

    /// Whether this node has joined since a window began, by the window's end. It then has only what it takes
    /// of its region's pool.
    pub(crate) fn has_joined_since(&self, end_ns: u64) -> bool {
        let of = self.shares.as_ref().and_then(|shares| shares.of_pools(end_ns));
        of.is_some_and(|of| of.has_joined_since)
    }

    /// Whether open windows go by other allocations than later ones: a node may have joined since they began,
    /// and know nothing of them.
    pub(crate) fn spares(&self) -> bool {
        self.shares.as_ref().is_some_and(|shares| shares.pools.len() > 1)
    }

    /// Whether these pieces give anything of a window, by the window's end. A window that begins later waits
    /// for the pieces that are made then.
    pub(crate) fn gives_in(&self, end_ns: u64) -> bool {
        self.shares.as_ref().is_none_or(|shares| end_ns <= shares.until_ns)
    }

    /// The part of a cell that is in its pool: of windows, for the one that began first among those that may
    /// be open. `None` if there are no pools.
    pub(crate) fn pool(&self, global: &Algorithm, salt: u32) -> Option<Part> {
        self.pool_of(global, salt, 0)
    }

    /// The part of a cell that is in the pool of a window, by the window's end.
    pub(crate) fn pool_of(&self, global: &Algorithm, salt: u32, end_ns: u64) -> Option<Part> {
        let shares = self.shares.as_ref()?;
        let splits = shares.of_pools(end_ns).map_or(&[][..], |of| &of.splits);
        shares.pool(splits, global.budget(), Refill::of(global), salt)
    }

    /// The part of a cell's pool for each node, if all took alike; nothing if there is no pool.
    pub(crate) fn each_of_pool(&self, global: &Algorithm, salt: u32) -> Part {
        let nodes =
            self.shares.as_ref().and_then(|shares| shares.guard.as_ref()).map_or(1, GuardShare::nodes);
        let pool = self.pool(global, salt).unwrap_or_default();
        // At most the rate.
        Part { rate: (u64::from(pool.rate) / nodes) as u32, units: pool.units / nodes }
    }

    /// The piece of a cell.
    #[inline]
    pub(crate) fn at(&self, salt: u32) -> &Algorithm {
        self.piece(self.piece_of(salt))
    }

    /// The number of a cell's piece: found once in a decision, since that takes a few divisions.
    #[inline]
    pub(crate) fn piece_of(&self, salt: u32) -> u8 {
        if self.pieces.len() == 1 { 0 } else { self.find(salt) }
    }

    /// A piece, by its number.
    #[inline]
    pub(crate) fn piece(&self, number: u8) -> &Algorithm {
        &self.pieces[usize::from(number)].1
    }

    /// Whether the clock is good enough to tell the limit's windows apart: if not, nothing of them is spent.
    pub(crate) fn can_tell(&self) -> bool {
        self.shares.as_ref().is_none_or(|shares| shares.can_tell(&self.least))
    }

    /// The standing part of a cell: of windows, in the present ones.
    pub(crate) fn part(&self, salt: u32) -> Part {
        Part { rate: self.rate, units: self.units(self.total, salt) }
    }

    /// The standing part of a cell in a window, by the window's end. An end of 0 stands for no window, or one
    /// that is not known: the result then is the least of all windows.
    pub(crate) fn part_of(&self, salt: u32, end_ns: u64) -> Part {
        if end_ns == 0 {
            return Part { rate: self.rate, units: self.standing(self.total, salt).least() };
        }
        let shares = self.shares.as_deref().filter(|_| self.refill == Refill::Edges);
        let last = shares.and_then(|shares| {
            let mut later = shares.later().iter().rev();
            let of = later.find(|of| end_ns > shares.after_ns(of))?;
            Some(shares.units(&of.splits, self.total, self.refill, salt))
        });
        last.map_or_else(|| self.part(salt), |units| Part { rate: self.rate, units })
    }

    /// The standing units of a cell in any window, if the limit had so many units in all.
    #[cold]
    pub(crate) fn standing_of(&self, total: u64, salt: u32) -> u64 {
        self.standing(total, salt).least()
    }

    /// The standing units of a cell of so many units in all, in present and later windows.
    fn standing(&self, total: u64, salt: u32) -> StandingUnits {
        let shares = self.shares.as_deref().filter(|_| self.refill == Refill::Edges);
        let later = shares.into_iter().flat_map(|shares| {
            shares.later().iter().map(|of| Later {
                after_ns: shares.after_ns(of),
                limit: shares.units(&of.splits, total, self.refill, salt),
            })
        });
        StandingUnits { present: self.units(total, salt), later: later.collect() }
    }

    /// The piece of a cell that shares one with other cells, by the number of the cell's own piece: in every
    /// window the least units of any cell that has some.
    #[cold]
    pub(crate) fn shared_piece(&self, number: u8) -> &Algorithm {
        let (standing, own) = &self.pieces[usize::from(number)];
        match standing.least() {
            // If a cell has units in some windows and not in all, it gets them once it no longer shares.
            0 if !standing.later.is_empty() => &self.pieces[0].1,
            0 => own,
            _ => &self.least,
        }
    }

    /// The smallest piece with units, by which cells that share one are counted.
    pub(crate) fn least(&self) -> &Algorithm {
        &self.least
    }

    /// The largest piece of the standing parts.
    pub(crate) fn most(&self) -> &Algorithm {
        &self.pieces.last().expect("there is always one").1
    }

    /// The limit with another part than the standing one.
    pub(crate) fn with(&self, global: &Algorithm, part: Part) -> Algorithm {
        match &self.shares {
            None => global.clone(),
            Some(shares) => {
                let units = self.usable(global, part.units);
                let part = Part { rate: if global.has_rate() { part.rate.max(RATE_MIN) } else { 0 }, units };
                shares.piece(global, part)
            }
        }
    }

    /// How many of a cell's units may be used: never more than the limit, whatever others say that they lent,
    /// and none of a window that the clock cannot tell from the next.
    pub(crate) fn usable(&self, global: &Algorithm, units: u64) -> u64 {
        match &self.shares {
            Some(shares) if !shares.can_tell(global) => 0,
            Some(_) | None => units.min(global.budget()),
        }
    }

    fn find(&self, salt: u32) -> u8 {
        let standing = self.standing(self.total, salt);
        // There is a piece for every share, with a few for each allocation that counts. The first has the
        // fewest units, now and later.
        let found = self.pieces.iter().position(|(of, _)| *of == standing);
        found.and_then(|place| u8::try_from(place).ok()).unwrap_or(0)
    }

    fn units(&self, total: u64, salt: u32) -> u64 {
        self.shares.as_deref().map_or(total, |shares| shares.units(&shares.splits, total, self.refill, salt))
    }
}

#[cfg(test)]
mod tests {
    use acequia_limits::{Rate, UNITS_MAX, meter::Meter, window::FixedWindow};
    use proptest::prelude::*;

    use super::*;

    fn shares(region: MemberId, splits: Vec<Arc<Split>>, guard: Option<GuardShare>) -> Shares {
        let until_ns = u64::MAX;
        let pools = vec![PoolSplits { until_ns, splits: splits.clone(), has_joined_since: false }];
        Shares { region, splits, until_ns, pools, guard, drift_ppm: 0, margin_ns: 0, left_ns: 0 }
    }

    fn guards(nodes: u16, percent: u8) -> Vec<Shares> {
        let all: BTreeSet<u16> = (1..=nodes).map(|node| node * 3).collect();
        let guards = all.iter().map(|node| GuardShare::new(*node, &all, percent));
        guards.map(|guard| shares(MemberId(0), Vec::new(), Some(guard))).collect()
    }

    fn refills() -> impl Strategy<Value = Refill> {
        prop_oneof![Just(Refill::Rate), Just(Refill::Edges), Just(Refill::Slides)]
    }

    fn totals() -> impl Strategy<Value = u64> {
        prop_oneof![0..200_u64, 0..=UNITS_MAX]
    }

    proptest! {
        #[test]
        fn guard_shares_and_the_pool_sum_to_the_limit(
            total in totals(), percent in 0..=100_u8, nodes in 1..=64_u16, salt: u32, refill in refills(),
        ) {
            let guards = guards(nodes, percent);
            let pool = guards[0].pool(&[], total, refill, salt).expect("a pool");
            let kept: Vec<u64> = guards.iter().map(|guard| guard.units(&guard.splits, total, refill, salt)).collect();
            prop_assert_eq!(kept.iter().sum::<u64>() + pool.units, total);
            let rates: u64 = guards.iter().map(|guard| u64::from(guard.rate())).sum();
            prop_assert!(rates + u64::from(pool.rate) <= u64::from(RATE_PARTS));
            // The percentage is as configured, and all nodes have equally much.
            let part = u128::from(total) * u128::from(percent) / 100;
            prop_assert!(u128::from(total - pool.units) == part.max(u128::from(percent > 0 && total >= 4)));
            let (least, most) = (kept.iter().min().expect("a node"), kept.iter().max().expect("a node"));
            prop_assert!(most - least <= 1, "{:?}", kept);
            for (guard, units) in guards.iter().zip(&kept) {
                prop_assert_eq!(guard.pool(&[], total, refill, salt), Some(pool));
                prop_assert!(guard.distinct(&guard.splits, total, refill).contains(units));
            }
        }

        /// If two allocations count, the least of them does: then at most one is used up, whatever each node
        /// goes by.
        #[test]
        fn parts_of_all_regions_sum_to_the_limit(
            total in totals(), percent in 0..=100_u8, weights in prop::collection::vec((1..=9_u32, 1..=9_u32), 1..=12),
            regions in 1..=4_usize, salt: u32, refill in refills(),
        ) {
            let region_of = |node: usize| node % regions;
            let split = |weight: fn(&(u32, u32)) -> u32| {
                let named = weights.iter().enumerate().map(|(node, both)| (MemberId(node as u16 + 1), weight(both)));
                Arc::new(Split::new(&named.collect::<Vec<_>>()).expect("weights"))
            };
            let chains = [vec![split(|w| w.0)], vec![split(|w| w.1)], vec![split(|w| w.0), split(|w| w.1)]];
            let mut of_chains = [(0, 0); 3];
            for (chain, (units, rates)) in chains.iter().zip(&mut of_chains) {
                for region in 0..regions {
                    let nodes = || (0..weights.len()).filter(|node| region_of(*node) == region);
                    let guard = GuardShare::of_parts(nodes().map(|node| MemberId(node as u16 + 1)), percent);
                    let each = nodes().map(|node| shares(MemberId(node as u16 + 1), chain.clone(), Some(guard.clone())));
                    let mut pool = None;
                    for of_node in each {
                        let own = of_node.units(&of_node.splits, total, refill, salt);
                        prop_assert!(of_node.distinct(&of_node.splits, total, refill).contains(&own));
                        *units += u128::from(own);
                        *rates += u64::from(of_node.rate());
                        prop_assert!(pool.is_none() || pool == of_node.pool(&of_node.splits, total, refill, salt));
                        pool = of_node.pool(&of_node.splits, total, refill, salt);
                    }
                    let pool = pool.unwrap_or_default();
                    *units += u128::from(pool.units);
                    *rates += u64::from(pool.rate);
                }
                prop_assert!(*rates <= u64::from(RATE_PARTS), "{}", rates);
            }
            prop_assert_eq!((of_chains[0].0, of_chains[1].0), (u128::from(total), u128::from(total)));
            prop_assert!(of_chains[2].0 <= u128::from(total));
        }

        /// Whatever number a caller names, the standing shares of it sum to that number.
        #[test]
        fn shares_of_a_named_number_sum_to_that_number(
            total in totals(), named in totals(), salt: u32,
            weights in prop::collection::vec((0..=9_u32, 0..=9_u32), 1..=6),
        ) {
            let window = Algorithm::FixedWindow(FixedWindow::new(total, Edges::Every { window_ns: 1 << 40, stagger: false }));
            let split = |of: &dyn Fn(&(u32, u32)) -> u32| {
                let named = (1..).map(MemberId).zip(weights.iter().map(of));
                Split::new(&named.filter(|(_, weight)| *weight > 0).collect::<Vec<_>>()).ok().map(Arc::new)
            };
            let (Some(old), Some(new)) = (split(&|w| w.0), split(&|w| w.1)) else { return Ok(()) };
            for splits in [vec![Arc::clone(&old)], vec![old, new]] {
                let each = (1..=weights.len() as u16).map(|region| {
                    let shares = shares(MemberId(region), splits.clone(), None);
                    u128::from(local(&window, shares).standing_of(named, salt))
                });
                let sum: u128 = each.sum();
                prop_assert!(sum <= named.into());
                prop_assert!(splits.len() > 1 || sum == u128::from(named));
            }
        }

        /// Cells have windows with edges of their own, which began before a change of shares, while both
        /// allocations counted, or after it. In each window the standing parts and the pool sum to the limit,
        /// by the window's own allocation, and a cell's piece says so.
        #[test]
        fn parts_of_each_window_sum_to_the_limit(
            total in totals(), more in 0..50_u64, percent in 0..=100_u8, salt: u32, has_guard: bool,
            weights in prop::collection::vec((0..=9_u32, 0..=9_u32), 1..=6),
        ) {
            const END_NS: u64 = 1 << 50;
            let split = |of: &dyn Fn(&(u32, u32)) -> u32| {
                let named = (1..).map(MemberId).zip(weights.iter().map(of));
                Split::new(&named.filter(|(_, weight)| *weight > 0).collect::<Vec<_>>()).ok().map(Arc::new)
            };
            let (Some(old), Some(new)) = (split(&|w| w.0), split(&|w| w.1)) else { return Ok(()) };
            let splits = [vec![Arc::clone(&old)], vec![Arc::clone(&old), Arc::clone(&new)], vec![new]];
            let ends = [END_NS, 2 * END_NS, u64::MAX];
            let pools: Vec<PoolSplits> = ends.iter().zip(&splits).map(|(until_ns, splits)| PoolSplits {
                until_ns: *until_ns,
                splits: splits.clone(),
                has_joined_since: false,
            }).collect();
            let edges = Edges::Every { window_ns: END_NS / 4, stagger: true };
            let of = |total: u64| Algorithm::FixedWindow(FixedWindow::new(total, edges.clone()));
            let (window, larger) = (of(total), of((total + more).min(UNITS_MAX)));
            let members: Vec<MemberId> = (1..=weights.len() as u16).map(MemberId).collect();
            let guard = has_guard.then(|| GuardShare::of_parts(members.clone(), percent));
            for (at, end_ns) in [END_NS, END_NS + 1, 2 * END_NS, 2 * END_NS + 1].into_iter().enumerate() {
                let mut all = 0;
                for region in &members {
                    let of = Shares { pools: pools.clone(), ..shares(*region, splits[0].clone(), guard.clone()) };
                    // A cell may be known to have one of two limits, and not which one: it goes by the
                    // variant that gives less.
                    let larger = local(&larger, of.clone());
                    let local = local(&window, of);
                    prop_assert!(local.part_of(salt, end_ns).units <= larger.part_of(salt, end_ns).units);
                    let part = local.part_of(salt, end_ns).units;
                    let piece = local.at(salt);
                    let Algorithm::FixedWindow(of_piece) = piece else { unreachable!("a window") };
                    let mut later = of_piece.later.iter().flat_map(|later| later.iter());
                    let says = later.rfind(|later| end_ns > later.after_ns).map_or(of_piece.limit, |later| later.limit);
                    prop_assert_eq!(says, part);
                    prop_assert!(local.shared_piece(local.piece_of(salt)).budget() <= part);
                    prop_assert!(local.part_of(salt, 0).units <= part);
                    prop_assert_eq!(local.pieces[0].1.budget(), 0);
                    all += part;
                    if *region == members[0] {
                        all += local.pool_of(&window, salt, end_ns).map_or(0, |pool| pool.units);
                    }
                }
                prop_assert!(all <= total, "{} of {}", all, total);
                // While both count, each node has the smaller part.
                prop_assert!(at == 1 || at == 2 || all == total, "{} of {}", all, total);
            }
        }

        /// By the end of an allocation all spent units have come back, with those that a node keeps for
        /// itself. So the next owner of these units has them without that debt.
        #[test]
        fn guard_shares_refill_before_their_allocation_ends(
            total in 1..300_u64, percent in 0..=100_u8, weights in prop::collection::vec(1..=9_u32, 1..=6), salt: u32,
        ) {
            let bucket = meter(total);
            let named: Vec<(MemberId, u32)> = (1..).map(MemberId).zip(weights).collect();
            let split = Arc::new(Split::new(&named).expect("weights"));
            let least_rate = named.iter().map(|(member, _)| split.rate(*member)).min().expect("one");
            let counts_ns = u128::from(drains_ns(&[&bucket])) * u128::from(RATE_PARTS) / u128::from(least_rate);
            let guard = GuardShare::of_parts(named.iter().map(|(member, _)| *member), percent);
            for (member, _) in &named {
                let local = local(&bucket, shares(*member, vec![Arc::clone(&split)], Some(guard.clone())));
                let kept = local.at(salt);
                let back_ns = u128::from(kept.horizon_ns());
                prop_assert!(kept.budget() == 0 || back_ns <= counts_ns, "{} and {}", back_ns, counts_ns);
            }
        }

        /// Nodes may have files with other totals, or go by other allocations. Together they keep and put
        /// into pools no more than the largest, since each further unit goes either to the node or to the
        /// rest.
        #[test]
        fn the_guard_share_and_the_pool_never_shrink_as_the_part_grows(
            total in prop_oneof![0..100_u64, 0..UNITS_MAX], percent in 0..=100_u8, refill in refills(), is_parts: bool,
        ) {
            let guard = match is_parts {
                true => GuardShare::of_parts([MemberId(1)], percent),
                false => GuardShare::new(1, &BTreeSet::from([1]), percent),
            };
            let (kept, more) = (guard.kept(total, refill), guard.kept(total + 1, refill));
            prop_assert!(kept <= total && (kept..=kept + 1).contains(&more), "{} of {}, then {}", kept, total, more);
        }

        /// In a store outage, a node has half of its part of a window of few units.
        #[test]
        fn the_guard_keeps_half_of_a_part_of_few_units(part in 0..=8_u64, percent in 1..=100_u8, slides: bool) {
            let guard = GuardShare::of_parts([MemberId(1)], percent);
            let refill = if slides { Refill::Slides } else { Refill::Edges };
            let half = if slides { part / 2 } else { part.div_ceil(2) };
            prop_assert!(guard.kept(part, refill) >= half);
        }

        /// A cell has the piece of its part, and nobody can spend a refill without a unit.
        #[test]
        fn a_cell_has_the_piece_of_its_part(
            total in 1..200_u64, percent in 0..=100_u8, nodes in 1..=64_u16, salt: u32,
        ) {
            let bucket = meter(total);
            for shares in guards(nodes, percent) {
                let local = local(&bucket, shares);
                let part = local.part(salt);
                prop_assert!(part.rate >= 1);
                prop_assert_eq!(local.at(salt), &bucket.local(part, 0, 0));
                prop_assert_eq!(local.with(&bucket, part), bucket.local(part, 0, 0));
                let shared = local.shared_piece(local.piece_of(salt)).budget();
                prop_assert!(shared <= part.units);
                prop_assert_eq!(shared > 0, part.units > 0);
                let none = Part { rate: RATE_MIN, units: 0 };
                prop_assert!(percent > 0 || part == none);
            }
        }
    }

    fn meter(burst: u64) -> Algorithm {
        Algorithm::TokenBucket(Meter::new(Rate::parse("60/s").expect("a rate"), burst))
    }

    fn local(algorithm: &Algorithm, shares: Shares) -> Local {
        Local::shared(algorithm, &Arc::new(shares))
    }

    #[test]
    fn each_cell_chooses_the_nodes_that_keep_its_left_over_guard_units() {
        for (total, percent, kept) in
            [(3, 10, 0), (4, 10, 1), (9, 10, 1), (20, 10, 2), (50, 10, 5), (2, 50, 1)]
        {
            let guards = guards(4, percent);
            let mut all = [0; 4];
            for salt in 0..4_000 {
                let units = guards.iter().map(|guard| guard.units(&guard.splits, total, Refill::Rate, salt));
                units.enumerate().for_each(|(node, units)| all[node] += units);
            }
            assert_eq!(all.iter().sum::<u64>(), 4_000 * kept, "{percent} % of {total}");
            for of_node in all {
                assert!(of_node.abs_diff(1_000 * kept) <= 100, "{percent} % of {total}: {all:?}");
            }
        }
    }
}
