//! The rebalance of a cell: what was asked of it, what it holds, and what to ask its pool.

use acequia_limits::{Algorithm, LimitId, Now, Part};
use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::{Generation, Taker, bucket, keep_us, slack_us, sliding, window},
};
use smallvec::SmallVec;

use super::{
    LATE_NS, LEASE_NS, PoolName, PoolRequest, Siblings,
    cell::{AHEAD_NS, CellLease, LeaseInputs, RateWant, WindowWant},
    held::held_of,
    pending::About,
    withdrawals::{self, Record},
};
use crate::{
    Node,
    cell::account::{Account, CellContext, KeptOfPool, Rebalancer, Withdrawn},
    forwards::Owner,
    journal::HeapCell,
    regions::CellKey,
};

/// The most windows after the open one that are taken of before they open.
const WINDOWS_MAX: usize = 64;
/// A window's pool is kept this long after the window's end: then it is over by every wall.
const KEPT_NS: u64 = 300 * 1_000_000_000;

/// Units of windows at least this long may be held for long without requests.
const LASTING_NS_MIN: u64 = 10_000_000_000;

/// The input of a cell's rebalance, beside the cell itself.
pub(super) struct Scene<'a> {
    pub(super) home: &'a Siblings,
    /// How far walls may be from true time, in nanoseconds; and how far steady clocks may drift, in parts per
    /// million.
    pub(super) clock_error_ns: u64,
    pub(super) drift_ppm: u32,
    /// The caller, if a call is made.
    pub(super) taker: Taker,
    pub(super) limit: LimitId,
    pub(super) key: CellKey,
    /// The owner of the cell in this region.
    pub(super) owner: Owner,
    /// The generation of the cell's group, if a call can be made.
    pub(super) generation: Option<Generation>,
    /// The last generation that was heard of; and the one since which the group's pools remember.
    pub(super) known: Generation,
    pub(super) since: Generation,
    /// Whether the group is in a store outage: what is given back then reaches nobody.
    pub(super) is_lost: bool,
    /// Whether the group has been silent for so long that it may be lost. It is asked for a word before
    /// anything is given back.
    pub(super) is_quiet: bool,
    /// Whether cells without requests may keep what they hold for long.
    pub(super) lasts: bool,
    /// Whether the node stops.
    pub(super) is_leaving: bool,
}

/// Rebalances a cell. Returns whether it goes on taking from its pool, and what to ask.
pub(super) fn rebalance_cell(
    scene: &Scene<'_>,
    lease: &mut CellLease,
    (context, cell): (&CellContext<'_>, &mut HeapCell),
    node: &Node,
    now: Now,
) -> (bool, Option<(About, PoolRequest)>) {
    lease.held = 0;
    let HeapCell { account: Some(account), words, .. } = &mut *cell else { return (false, None) };
    let over_ns = now.wall_ns.saturating_sub(scene.clock_error_ns.saturating_mul(4));
    lease.withdrawals.forget(over_ns);
    lease.forget_unanswered(over_ns);
    let Some(pool) = context.local.pool(context.global, context.salt) else {
        return (lease.withdrawals.has_before(), None);
    };
    account.settle(words, context, now, &*node.sessions());
    account.keep_part(words, context, (now.wall_ns, None), now);
    // The pool may have less of a window that began after the variants were made.
    let pool = context.local.pool_of(context.global, context.salt, account.window()).unwrap_or(pool);
    let offered = account.take_offered(Rebalancer::Pools);
    let inputs = LeaseInputs {
        offered: lease.with_unasked(offered, now),
        available: account.unleased(words, now, context.salt),
        standing: account.standing(),
        pool,
        budget: context.global.budget(),
        nodes: match scene.owner {
            // Other nodes take of the pool only for requests that cannot be forwarded.
            Owner::Own if account.is_forwarded(now) => 1,
            _ => scene.home.nodes.len() as u64,
        },
        speaks: scene.owner == Owner::Own,
        // Held units of a rate come back only at their own part of the rate, and short windows cost many
        // calls.
        lasts: scene.lasts && !context.global.has_rate() && context.global.period_ns() >= LASTING_NS_MIN,
        slides: !context.global.has_rate() && !matches!(context.global, Algorithm::FixedWindow(_)),
        for_others: account.take_for_others(),
        lent: account.book().lent_total(),
        kept: account.kept_of_pool(words, context, now),
    };
    lease.observe(&inputs, now);
    lease.follow(account, context, pool);
    account.set_low_water(lease.low_water());
    let ask = match context.global {
        Algorithm::FixedWindow(_) => {
            let ask = ask_window(scene, lease, &inputs, (account, context), node.progress().committed, now);
            write_takings(scene, lease, account, node);
            ask
        }
        Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => {
            let params = bucket::BucketParams::of(meter, pool, slack_us(scene.clock_error_ns, LATE_NS));
            params.and_then(|params| {
                let flow = lease.bucket(&inputs, account.pooled(), meter.rate_milli(), now);
                let (name, exchange, number, wanted) =
                    ask_part(scene, lease, flow, (account, words, context), now)?;
                let exchange = bucket::Exchange {
                    taker: scene.taker,
                    keeps: exchange.kept.part,
                    tokens: exchange.kept.unspent,
                    wanted: exchange.flow.wanted,
                    needed: exchange.flow.needed,
                    reserved: 0,
                    keep_us: scene.keep_us(LEASE_NS),
                };
                let about = About::Part { key: scene.key, number, wanted, pool };
                Some((about, PoolRequest::Exchange(name, exchange, params)))
            })
        }
        other => {
            let flow = lease.sliding(&inputs, account.pooled().units, other.period_ns(), now);
            ask_part(scene, lease, flow, (account, words, context), now).map(
                |(name, Exchange { kept, flow }, number, wanted)| {
                    let slide = sliding::Exchange {
                        taker: scene.taker,
                        keeps: kept.part.units,
                        unused: kept.unspent,
                        wanted: flow.wanted.units,
                        needed: flow.needed,
                        reserved: 0,
                        keep_us: scene.keep_us(LEASE_NS),
                        lingers_us: scene.keep_us(other.lingers_ns()).max(1),
                        total: pool.units,
                        slack_us: slack_us(scene.clock_error_ns, LATE_NS),
                    };
                    let about = About::Part { key: scene.key, number, wanted, pool };
                    (about, PoolRequest::Slide(name, slide))
                },
            )
        }
    };
    if lease.waits_for_disk || scene.generation.is_none() {
        lease.leave_unasked();
    }
    lease.held = held_of(account, words, context);
    let is_over = lease.is_idle(now)
        && lease.pending.is_none()
        && ask.is_none()
        && !lease.withdrawals.has_before()
        && lease.unanswered().next().is_none()
        && account.is_empty(now);
    let can_call = scene.generation.is_some() || lease.pending.is_some();
    let within_reach = match can_call && !scene.is_lost {
        true => lease.within_reach(&inputs, account.pooled(), now),
        false => Part::default(),
    };
    account.set_within_reach(within_reach);
    let is_unwritten = account.take_unwritten();
    let is_alone = is_over && account.leave_alone(Rebalancer::Pools);
    if is_unwritten {
        node.write_account(scene.key, cell, now);
    }
    if is_over && lease.withdrawals.has_row() {
        node.push_row(withdrawals::removed(scene.limit, scene.key.1));
    }
    if is_alone {
        cell.forget_held_if_renumbered();
        cell.account = None;
    }
    (!is_over, ask)
}

/// Puts the row in line for the disk that covers the next call, if one is needed.
fn write_takings(scene: &Scene<'_>, lease: &mut CellLease, account: &Account, node: &Node) {
    if node.is_journal_down() {
        // The cell is rebalanced as any other until the disk is back.
        lease.waits_for_disk = false;
        return;
    }
    if !lease.withdrawals.wants_row() {
        return;
    }
    let known = scene.known;
    let is_untold = |end_ns: &u64| {
        let taken = account.taken_of(*end_ns).withdrawn + lease.withdrawals.before(*end_ns, scene.since);
        taken > 0 && !lease.was_told(*end_ns, known) && !mutated(Mutation::LeaseWithdrawalsToldEarly)
    };
    let ends = account.withdrawn().iter().map(|withdrawn| withdrawn.end_ns).chain(lease.withdrawals.ends());
    let untold: SmallVec<[u64; 4]> = ends.filter(is_untold).collect();
    let told_in = |end_ns| if untold.contains(&end_ns) { Generation::default() } else { scene.since };
    if let Some(windows) = lease.withdrawals.next(told_in) {
        let record = Record { limit: scene.limit, tag: scene.key.1, windows };
        let batch = node.push_row(record.row());
        lease.withdrawals.goes(&record.windows, batch, node.progress().committed);
    }
}

/// What to exchange with a pool.
struct Exchange {
    kept: KeptOfPool,
    flow: RateWant,
}

/// The call about a bucket or a sliding window, if one is to be made.
fn ask_part(
    scene: &Scene<'_>,
    lease: &mut CellLease,
    flow: Option<RateWant>,
    (account, words, context): (&mut Account, &mut Vec<u64>, &CellContext<'_>),
    now: Now,
) -> Option<(PoolName, Exchange, u64, bool)> {
    let generation = scene.generation?;
    let held = account.pooled();
    let flow = scene.leaves_part(flow, (account, words, context), held, now);
    let is_untold = lease.unheard.is_some() || held != Part::default() && !lease.was_told(0, generation);
    let mut flow = flow.or(is_untold.then_some(RateWant { keeps: held, ..RateWant::default() }))?;
    // Units that are given back to a lost store reach nobody. Units that may not be held any more go back all
    // the same.
    if flow.keeps != held && !lease.must_shrink() && !scene.reaches_somebody(lease) {
        flow.keeps = held;
        if flow.wanted == Part::default() && !is_untold {
            return None;
        }
    }
    let kept = account.ask_pool(words, context, flow.keeps, now)?;
    let wanted = flow.wanted != Part::default();
    Some((scene.name(0), Exchange { kept, flow }, kept.number, wanted))
}

/// The call about the open window or a later one, if one is to be made.
fn ask_window(
    scene: &Scene<'_>,
    lease: &mut CellLease,
    inputs: &LeaseInputs,
    (account, context): (&mut Account, &CellContext<'_>),
    committed: u64,
    now: Now,
) -> Option<(About, PoolRequest)> {
    let Algorithm::FixedWindow(window) = context.global else { return None };
    let open_ns = account.window();
    let time_left_ns = open_ns.saturating_sub(now.wall_ns);
    let open = account.taken_of(open_ns);
    // Another node may have left the window already, and tells nobody any more what it took. So no more is
    // asked for.
    let is_over_soon = time_left_ns <= scene.clock_error_ns.saturating_mul(4);
    // Units that count in a window of another cell belong to no pool.
    let is_open = !is_over_soon && context.is_own(open_ns);
    let stock = lease.window(inputs, (&open, time_left_ns), now).filter(|_| is_open);
    let stock = stock.filter(|stock| stock.returns == 0 || scene.reaches_somebody(lease));
    lease.waits_for_disk = false;
    let generation = scene.generation?;
    // All units that were taken, of which this process may have taken only the later part.
    let all_taken = |lease: &CellLease, end_ns| {
        account.taken_of(end_ns).withdrawn.saturating_add(lease.withdrawals.before(end_ns, scene.since))
    };
    let mut ends =
        account.withdrawn().iter().map(|withdrawn| withdrawn.end_ns).chain(lease.withdrawals.ends());
    let untold = ends.find(|end_ns| all_taken(lease, *end_ns) > 0 && !lease.was_told(*end_ns, generation));
    drop(ends);
    // Nothing is taken up of a window that is about to end.
    let may_ask = |end_ns: &u64| {
        let left_ns = end_ns.saturating_sub(now.wall_ns);
        now.steady_ns >= lease.quiet_until_ns && left_ns > scene.clock_error_ns.saturating_mul(4)
    };
    let untold = untold.or_else(|| lease.unanswered().find(may_ask));
    // Nodes that joined after the window began go by what is told of the window.
    let is_said = may_say(context, open_ns) && context.local.spares() && is_open;
    let is_heard = !scene.is_lost && now.steady_ns >= lease.quiet_until_ns;
    // A node that stops repeats what it gives back until the pool has answered.
    let untold = lease.unheard.or(untold);
    let unsaid = (is_said && is_heard && !lease.was_told(open_ns, generation)).then_some(open_ns);
    let untold = untold.or(unsaid).map(|end_ns| (account.taken_of(end_ns), WindowWant::default()));
    let mut later = || {
        let mut ends_ns =
            std::iter::successors(Some(open_ns), |end_ns| Some(window.end_after(*end_ns, context.salt)));
        let length_ns = window.end_after(open_ns, context.salt) - open_ns;
        let ahead = usize::try_from(AHEAD_NS / length_ns.max(1)).unwrap_or(usize::MAX).clamp(1, WINDOWS_MAX);
        // A node that excludes this one relies on it having taken of no later window.
        let begins_soon = |begins_ns: &u64| {
            begins_ns.saturating_sub(now.wall_ns) <= AHEAD_NS || mutated(Mutation::LeaseTakesAnyTime)
        };
        let soon = ends_ns.clone().take(ahead).take_while(begins_soon).count();
        let mut next = ends_ns.by_ref().skip(1).take(soon).map(|end_ns| account.taken_of(end_ns));
        next.find_map(|withdrawn| {
            let pool =
                context.local.pool_of(context.global, context.salt, withdrawn.end_ns).unwrap_or_default();
            Some((withdrawn, lease.later_window(inputs, (&withdrawn, pool.units), length_ns, now)?))
        })
    };
    let later = if stock.is_none() && untold.is_none() && !scene.is_leaving { later() } else { None };
    let mut more = match scene.is_leaving {
        true => {
            let may_return = is_open && !scene.is_lost && lease.unheard.is_none();
            scene.leaves_windows((account, context), inputs.available, now).filter(|_| may_return)
        }
        false => stock.map(|stock| (open, stock)).or(later),
    };
    if let Some((withdrawn, stock)) = &mut more
        && lease.may_be_of_more(withdrawn.end_ns)
    {
        // The answer about earlier grants must come first.
        (stock.wanted, stock.needed) = (0, 0);
    }
    if scene.home.knows_from_us.is_some()
        && let Some((withdrawn, stock)) = more.as_mut().filter(|(_, stock)| stock.wanted > 0)
    {
        // Ask for no more than would come: what the disk covers counts as spent if this process ends.
        let part = lease.left.unwrap_or(inputs.pool.units).div_ceil(window::PART);
        stock.wanted = stock.wanted.min(part.max(stock.needed).max(1));
        let next = stock.wanted.min(part.max(lease.least()).max(1));
        let ahead = if withdrawn.end_ns == open_ns { next } else { 0 };
        // A call for more leaves when the disk covers what it may bring; what must be told is told meanwhile.
        if !lease.covers(withdrawn, stock.wanted, ahead, committed) && !mutated(Mutation::LeaseTakesUnwritten)
        {
            lease.waits_for_disk = true;
            more = None;
        }
    }
    let (withdrawn, stock) = more.or(untold)?;
    if stock.returns > 0 {
        account.return_to_pool(context, withdrawn.end_ns, stock.returns, stock.returns);
    }
    let Withdrawn { end_ns, withdrawn: taken, returned } = account.taken_of(withdrawn.end_ns);
    let begins_ns = window.begins(end_ns, context.salt);
    let take = window::Take {
        taker: scene.taker,
        taken: taken.saturating_add(lease.withdrawals.before(end_ns, scene.since)),
        returned,
        wanted: stock.wanted,
        needed: stock.needed,
        reserved: 0,
        total: match context.local.pool_of(context.global, context.salt, end_ns).unwrap_or_default().units {
            _ if context.local.has_joined_since(end_ns) => window::Total::AsSaid(context.global.budget()),
            units if now.wall_ns >= begins_ns && may_say(context, end_ns) => window::Total::Open(units),
            units => window::Total::Ahead(units),
        },
        begins_us: begins_ns / 1_000,
        drops_us: end_ns.saturating_add(KEPT_NS) / 1_000,
    };
    if stock.wanted > 0 {
        lease.asks_of(end_ns);
    }
    let about = About::Window { key: scene.key, end_ns, wanted: stock.wanted > 0 };
    Some((about, PoolRequest::Take(scene.name(end_ns), take)))
}

/// Whether others may go by this variant's part of a window's pool, by the window's end. A limit that is not
/// in force gets no new variants, and a node that owns nothing does not know what others have.
fn may_say(context: &CellContext<'_>, end_ns: u64) -> bool {
    (context.in_force && !context.local.owns_nothing_of(end_ns)) || mutated(Mutation::LeaseSaysWhatIsOver)
}

impl Scene<'_> {
    /// Whether what is given back now reaches the store, as far as is known. If that is not known, the store
    /// is asked for a word.
    fn reaches_somebody(&self, lease: &mut CellLease) -> bool {
        lease.wants_word = self.is_quiet && !self.is_lost && !self.is_leaving;
        !self.is_lost && !lease.wants_word
    }

    fn name(&self, end_ns: u64) -> PoolName {
        PoolName { limit: self.limit, tag: self.key.1, end_ns }
    }

    /// How long a pool waits for what this node counts on for `ns`.
    fn keep_us(&self, ns: u64) -> u64 {
        let ns = if mutated(Mutation::LeaseTakenBackEarly) { ns / 8 } else { ns };
        keep_us(ns, self.drift_ppm, self.clock_error_ns)
    }
}
