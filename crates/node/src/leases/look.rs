//! One look at a cell: what was asked of it, what it holds, and what to ask its pool.

use acequia_limits::{Algorithm, LimitId, Now, Part};
use acequia_rights::{
    broken::{Broken, broken},
    pool::{Generation, Taker, bucket, keep_us, slack_us, sliding, window},
};
use smallvec::SmallVec;

use super::{
    LATE_NS, LEASE_NS, PoolName, Question, Siblings,
    cell::{AHEAD_NS, Flow, Leased, Seen, Stock},
    held::held_of,
    pending::About,
    takings::{self, Record},
};
use crate::{
    Node,
    account::{Account, Ground, KeptOfPool, Looker, Taken},
    draws::Speaker,
    journal::HeapCell,
    sharing::CellKey,
};

/// Windows that follow the open one and are taken of before they open.
const WINDOWS_MAX: usize = 64;
/// After a window's end its pool is kept for so long: it is over by every wall.
const KEPT_NS: u64 = 300 * 1_000_000_000;

/// What is held of windows at least so long lasts though nobody asks for it.
const LASTING_NS_MIN: u64 = 10_000_000_000;

/// What a look at a cell goes by.
pub(super) struct Scene<'a> {
    pub(super) home: &'a Siblings,
    /// How far walls may be from true time, in nanoseconds, and how far steady clocks may drift, in parts per million.
    pub(super) clock_error_ns: u64,
    pub(super) drift_ppm: u32,
    /// Who calls, if it does.
    pub(super) taker: Taker,
    pub(super) limit: LimitId,
    pub(super) key: CellKey,
    /// Who has to do with it in this region.
    pub(super) speaker: Speaker,
    /// The generation of the cell's group, if a call can be made.
    pub(super) generation: Option<Generation>,
    /// The last that was heard of; and since which one the group's pools remember.
    pub(super) known: Generation,
    pub(super) since: Generation,
    /// Whether the group's store is lost: what is given back then reaches nobody.
    pub(super) is_lost: bool,
    /// Whether it has not been heard for so long that it may be lost. It is asked for a word before anything is given back.
    pub(super) is_quiet: bool,
    /// Whether cells that nobody asks for may keep what they hold.
    pub(super) lasts: bool,
    /// Whether the node stops.
    pub(super) is_leaving: bool,
}

/// A look at a cell that was found: whether it goes on taking from its pool, and what to ask.
pub(super) fn look_at(
    scene: &Scene<'_>,
    leased: &mut Leased,
    (ground, cell): (&Ground<'_>, &mut HeapCell),
    node: &Node,
    now: Now,
) -> (bool, Option<(About, Question)>) {
    leased.held = 0;
    let HeapCell { account: Some(account), words, .. } = &mut *cell else { return (false, None) };
    let over_ns = now.wall_ns.saturating_sub(scene.clock_error_ns.saturating_mul(4));
    leased.takings.forget(over_ns);
    leased.forget_unanswered(over_ns);
    let Some(pool) = ground.local.pool(ground.global, ground.salt) else {
        return (leased.takings.has_before(), None);
    };
    account.settle(words, ground, now, &*node.sessions());
    account.keep_part(words, ground, (now.wall_ns, None), now);
    // Of a window that began since numbers were made there may be less.
    let pool = ground.local.pool_of(ground.global, ground.salt, account.window()).unwrap_or(pool);
    let offered = account.look(Looker::Pools);
    let seen = Seen {
        offered: leased.with_unasked(offered, now),
        available: account.unleased(words, now, ground.salt),
        standing: account.standing(),
        pool,
        budget: ground.global.budget(),
        nodes: match scene.speaker {
            // No other takes of it, but for requests that cannot be drawn for.
            Speaker::Own if account.is_drawn(now) => 1,
            _ => scene.home.nodes.len() as u64,
        },
        speaks: scene.speaker == Speaker::Own,
        // What is held of a rate comes back at that part of it alone; and windows that are over soon are many calls.
        lasts: scene.lasts && !ground.global.has_rate() && ground.global.period_ns() >= LASTING_NS_MIN,
        slides: !ground.global.has_rate() && !matches!(ground.global, Algorithm::FixedWindow(_)),
        for_others: account.take_for_others(),
        lent: account.book().lent_total(),
        kept: account.kept_of_pool(words, ground, now),
    };
    leased.observe(&seen, now);
    leased.follow(account, ground, pool);
    account.set_low_water(leased.low_water());
    let ask = match ground.global {
        Algorithm::FixedWindow(_) => {
            let ask = ask_window(scene, leased, &seen, (account, ground), node.progress().committed, now);
            write_takings(scene, leased, account, node);
            ask
        }
        Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => {
            let terms = bucket::Terms::of(meter, pool, slack_us(scene.clock_error_ns, LATE_NS));
            terms.and_then(|terms| {
                let flow = leased.bucket(&seen, account.pooled(), meter.rate_milli(), now);
                let (name, exchange, number, wanted) =
                    ask_part(scene, leased, flow, (account, words, ground), now)?;
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
                Some((about, Question::Exchange(name, exchange, terms)))
            })
        }
        other => {
            let flow = leased.sliding(&seen, account.pooled().units, other.period_ns(), now);
            ask_part(scene, leased, flow, (account, words, ground), now).map(
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
                    (about, Question::Slide(name, slide))
                },
            )
        }
    };
    if leased.waits_for_disk || scene.generation.is_none() {
        leased.leave_unasked();
    }
    leased.held = held_of(account, words, ground);
    let is_over = leased.is_idle(now)
        && leased.pending.is_none()
        && ask.is_none()
        && !leased.takings.has_before()
        && leased.unanswered().next().is_none()
        && account.is_empty(now);
    let can_call = scene.generation.is_some() || leased.pending.is_some();
    let within_reach = match can_call && !scene.is_lost {
        true => leased.within_reach(&seen, account.pooled(), now),
        false => Part::default(),
    };
    account.set_within_reach(within_reach);
    let is_unwritten = account.take_unwritten();
    let is_alone = is_over && account.leave_alone(Looker::Pools);
    if is_unwritten {
        node.write_account(scene.key, cell, now);
    }
    if is_over && leased.takings.has_row() {
        node.push_row(takings::removed(scene.limit, scene.key.1));
    }
    if is_alone {
        cell.forget_held_if_renumbered();
        cell.account = None;
    }
    (!is_over, ask)
}

/// Puts a row in line for the disk that covers the next call, if there must be one.
fn write_takings(scene: &Scene<'_>, leased: &mut Leased, account: &Account, node: &Node) {
    if node.is_journal_down() {
        // It is looked at as any other, until the disk is back.
        leased.waits_for_disk = false;
        return;
    }
    if !leased.takings.wants_row() {
        return;
    }
    let known = scene.known;
    let is_untold = |end_ns: &u64| {
        let taken = account.taken_of(*end_ns).taken + leased.takings.before(*end_ns, scene.since);
        taken > 0 && !leased.was_told(*end_ns, known) && !broken(Broken::LeaseTakingsToldEarly)
    };
    let ends = account.taken().iter().map(|taken| taken.end_ns).chain(leased.takings.ends());
    let untold: SmallVec<[u64; 4]> = ends.filter(is_untold).collect();
    let told_in = |end_ns| if untold.contains(&end_ns) { Generation::default() } else { scene.since };
    if let Some(windows) = leased.takings.next(told_in) {
        let record = Record { limit: scene.limit, tag: scene.key.1, windows };
        let batch = node.push_row(record.row());
        leased.takings.goes(&record.windows, batch, node.progress().committed);
    }
}

/// What to exchange.
struct Exchange {
    kept: KeptOfPool,
    flow: Flow,
}

/// A call of a bucket or a sliding window, if one is to be made.
fn ask_part(
    scene: &Scene<'_>,
    leased: &mut Leased,
    flow: Option<Flow>,
    (account, words, ground): (&mut Account, &mut Vec<u64>, &Ground<'_>),
    now: Now,
) -> Option<(PoolName, Exchange, u64, bool)> {
    let generation = scene.generation?;
    let held = account.pooled();
    let flow = scene.leaves_part(flow, (account, words, ground), held, now);
    let is_untold = leased.unheard.is_some() || held != Part::default() && !leased.was_told(0, generation);
    let mut flow = flow.or(is_untold.then_some(Flow { keeps: held, ..Flow::default() }))?;
    // What is given back to a lost store reaches nobody. What may not be held any more goes all the same.
    if flow.keeps != held && !leased.must_shrink() && !scene.reaches_somebody(leased) {
        flow.keeps = held;
        if flow.wanted == Part::default() && !is_untold {
            return None;
        }
    }
    let kept = account.ask_pool(words, ground, flow.keeps, now)?;
    let wanted = flow.wanted != Part::default();
    Some((scene.name(0), Exchange { kept, flow }, kept.number, wanted))
}

/// A call of a window, or of the one that follows.
fn ask_window(
    scene: &Scene<'_>,
    leased: &mut Leased,
    seen: &Seen,
    (account, ground): (&mut Account, &Ground<'_>),
    committed: u64,
    now: Now,
) -> Option<(About, Question)> {
    let Algorithm::FixedWindow(window) = ground.global else { return None };
    let open_ns = account.window();
    let time_left_ns = open_ns.saturating_sub(now.wall_ns);
    let open = account.taken_of(open_ns);
    // When another node may have left the window, no more of it is asked for: it tells nobody any more what it took.
    let is_over_soon = time_left_ns <= scene.clock_error_ns.saturating_mul(4);
    // What is counted in a window of another cell is of no pool.
    let is_open = !is_over_soon && ground.is_own(open_ns);
    let stock = leased.window(seen, (&open, time_left_ns), now).filter(|_| is_open);
    let stock = stock.filter(|stock| stock.returns == 0 || scene.reaches_somebody(leased));
    leased.waits_for_disk = false;
    let generation = scene.generation?;
    // What was taken in all, of which this process may have the later part.
    let all_taken = |leased: &Leased, end_ns| {
        account.taken_of(end_ns).taken.saturating_add(leased.takings.before(end_ns, scene.since))
    };
    let mut ends = account.taken().iter().map(|taken| taken.end_ns).chain(leased.takings.ends());
    let untold = ends.find(|end_ns| all_taken(leased, *end_ns) > 0 && !leased.was_told(*end_ns, generation));
    drop(ends);
    // Of one that is about to end nothing is taken up any more.
    let may_ask = |end_ns: &u64| {
        let left_ns = end_ns.saturating_sub(now.wall_ns);
        now.steady_ns >= leased.quiet_until_ns && left_ns > scene.clock_error_ns.saturating_mul(4)
    };
    let untold = untold.or_else(|| leased.unanswered().find(may_ask));
    // Who has joined since goes by what is said of the window.
    let is_said = may_say(ground, open_ns) && ground.local.spares() && is_open;
    let is_heard = !scene.is_lost && now.steady_ns >= leased.quiet_until_ns;
    // What a node that stops gives back is said until it was heard.
    let untold = leased.unheard.or(untold);
    let unsaid = (is_said && is_heard && !leased.was_told(open_ns, generation)).then_some(open_ns);
    let untold = untold.or(unsaid).map(|end_ns| (account.taken_of(end_ns), Stock::default()));
    let mut later = || {
        let mut ends_ns =
            std::iter::successors(Some(open_ns), |end_ns| Some(window.end_after(*end_ns, ground.salt)));
        let length_ns = window.end_after(open_ns, ground.salt) - open_ns;
        let ahead = usize::try_from(AHEAD_NS / length_ns.max(1)).unwrap_or(usize::MAX).clamp(1, WINDOWS_MAX);
        // Whoever leaves this node out counts on its having taken of no later one.
        let begins_soon = |begins_ns: &u64| {
            begins_ns.saturating_sub(now.wall_ns) <= AHEAD_NS || broken(Broken::LeaseTakesAnyTime)
        };
        let soon = ends_ns.clone().take(ahead).take_while(begins_soon).count();
        let mut next = ends_ns.by_ref().skip(1).take(soon).map(|end_ns| account.taken_of(end_ns));
        next.find_map(|taken| {
            let pool = ground.local.pool_of(ground.global, ground.salt, taken.end_ns).unwrap_or_default();
            Some((taken, leased.later_window(seen, (&taken, pool.units), length_ns, now)?))
        })
    };
    let later = if stock.is_none() && untold.is_none() && !scene.is_leaving { later() } else { None };
    let mut more = match scene.is_leaving {
        true => {
            let may_return = is_open && !scene.is_lost && leased.unheard.is_none();
            scene.leaves_windows((account, ground), seen.available, now).filter(|_| may_return)
        }
        false => stock.map(|stock| (open, stock)).or(later),
    };
    if let Some((taken, stock)) = &mut more
        && leased.may_be_of_more(taken.end_ns)
    {
        // What was granted before is heard of first.
        (stock.wanted, stock.needed) = (0, 0);
    }
    if scene.home.knows_from_us.is_some()
        && let Some((taken, stock)) = more.as_mut().filter(|(_, stock)| stock.wanted > 0)
    {
        // No more than would come: what the disk says of it counts as spent if this process ends.
        let part = leased.left.unwrap_or(seen.pool.units).div_ceil(window::PART);
        stock.wanted = stock.wanted.min(part.max(stock.needed).max(1));
        let next = stock.wanted.min(part.max(leased.least()).max(1));
        let ahead = if taken.end_ns == open_ns { next } else { 0 };
        // A call for more leaves when the disk knows what it may bring; what must be told is told meanwhile.
        if !leased.covers(taken, stock.wanted, ahead, committed) && !broken(Broken::LeaseTakesUnwritten) {
            leased.waits_for_disk = true;
            more = None;
        }
    }
    let (taken, stock) = more.or(untold)?;
    if stock.returns > 0 {
        account.return_to_pool(ground, taken.end_ns, stock.returns, stock.returns);
    }
    let Taken { end_ns, taken, returned } = account.taken_of(taken.end_ns);
    let begins_ns = window.begins(end_ns, ground.salt);
    let take = window::Take {
        taker: scene.taker,
        taken: taken.saturating_add(leased.takings.before(end_ns, scene.since)),
        returned,
        wanted: stock.wanted,
        needed: stock.needed,
        reserved: 0,
        total: match ground.local.pool_of(ground.global, ground.salt, end_ns).unwrap_or_default().units {
            _ if ground.local.has_joined_since(end_ns) => window::Total::AsSaid(ground.global.budget()),
            units if now.wall_ns >= begins_ns && may_say(ground, end_ns) => window::Total::Open(units),
            units => window::Total::Ahead(units),
        },
        begins_us: begins_ns / 1_000,
        drops_us: end_ns.saturating_add(KEPT_NS) / 1_000,
    };
    if stock.wanted > 0 {
        leased.asks_of(end_ns);
    }
    let about = About::Window { key: scene.key, end_ns, wanted: stock.wanted > 0 };
    Some((about, Question::Take(scene.name(end_ns), take)))
}

/// Whether others may go by what these numbers say of a window's pool, by its end. Those of a limit that is not in force are not made anew,
/// and who owns nothing does not know what others have.
fn may_say(ground: &Ground<'_>, end_ns: u64) -> bool {
    (ground.in_force && !ground.local.owns_nothing_of(end_ns)) || broken(Broken::LeaseSaysWhatIsOver)
}

impl Scene<'_> {
    /// Whether what is given back now reaches somebody, as far as can be known; if that is not known, it is to be asked for.
    fn reaches_somebody(&self, leased: &mut Leased) -> bool {
        leased.wants_word = self.is_quiet && !self.is_lost && !self.is_leaving;
        !self.is_lost && !leased.wants_word
    }

    fn name(&self, end_ns: u64) -> PoolName {
        PoolName { limit: self.limit, tag: self.key.1, end_ns }
    }

    /// How long a pool waits for what this node counts on for so long.
    fn keep_us(&self, ns: u64) -> u64 {
        let ns = if broken(Broken::LeaseTakenBackEarly) { ns / 8 } else { ns };
        keep_us(ns, self.drift_ppm, self.clock_error_ns)
    }
}
