//! The rebalance of a cell: what was asked of it, what it holds, and what to ask its pool.

use acequia_limits::{Algorithm, LimitId, Now, Part, meter::Meter, window::FixedWindow};
use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::{Generation, Taker, bucket, sliding, window},
};
use smallvec::SmallVec;

use super::{
    LATE_NS, LEASE_NS, PoolName, PoolRequest,
    cell::{CellLease, LeaseInputs, RateWant, WindowWant},
    clock_promise::ClockPromise,
    groups::StoreState,
    held::held_of,
    pending::{About, CellCall, NewCall, Subject},
    withdrawals::{self, WithdrawalRow},
};
use crate::{
    Node,
    cell::account::{Account, CellContext, LeaseStatement, Rebalancer},
    forwards::Owner,
    journal::HeapCell,
    regions::CellKey,
    settings::SETTINGS,
};

/// What a cell's rebalance goes by, beside the cell itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolContext {
    pub(super) clocks: ClockPromise,
    /// How many nodes the config names.
    pub(super) nodes: u64,
    /// Whether withdrawals are written down.
    pub(super) writes_withdrawals: bool,
    /// The caller, if a call is made.
    pub(super) taker: Taker,
    pub(super) limit: LimitId,
    pub(super) key: CellKey,
    /// The owner of the cell in this region.
    pub(super) owner: Owner,
    /// The generation of the cell's group, if a call can be made.
    pub(super) generation: Option<Generation>,
    /// The last generation that was heard of.
    pub(super) heard: Generation,
    /// The generation since which the group's pools remember.
    pub(super) since: Generation,
    pub(super) store: StoreState,
    /// Whether cells without requests may keep what they hold for long.
    pub(super) lasts: bool,
    /// Whether the node stops.
    pub(super) is_leaving: bool,
}

/// What a cell's rebalance comes to.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one is made at a time, and taken apart at once")]
pub(super) enum Rebalanced {
    /// The cell holds nothing and needs nothing of its pool.
    Over,
    /// The cell goes on taking from its pool, with this call.
    GoesOn(Option<NewCall>),
}

/// Rebalances a cell.
pub(super) fn rebalance_cell(
    pool: &PoolContext,
    lease: &mut CellLease,
    context: &CellContext<'_>,
    cell: &mut HeapCell,
    node: &Node,
    now: Now,
) -> Rebalanced {
    lease.held = 0;
    let HeapCell { account: Some(account), state, .. } = &mut *cell else { return Rebalanced::Over };
    let mut rebalance = Rebalance { pool, lease, account, state, context, node, now };
    rebalance.forget_what_is_over();
    let Some(inputs) = rebalance.inputs() else {
        let must_be_told = lease.withdrawals.has_before();
        return if must_be_told { Rebalanced::GoesOn(None) } else { Rebalanced::Over };
    };
    rebalance.observe(&inputs);
    let call = rebalance.call(&inputs);
    rebalance.note_outcome(&inputs);
    let is_over = call.is_none() && rebalance.is_over();
    let is_unwritten = account.take_unwritten();
    let is_alone = is_over && account.leave_alone(Rebalancer::Pools);
    if is_unwritten {
        node.write_account(pool.key, cell, now);
    }
    if is_over && lease.withdrawals.has_row() {
        node.push_row(withdrawals::removed(pool.limit, pool.key.tag));
    }
    if is_alone {
        cell.forget_held_if_variant_changed();
        cell.account = None;
    }
    if is_over { Rebalanced::Over } else { Rebalanced::GoesOn(call) }
}

/// One rebalance of one cell.
pub(super) struct Rebalance<'a> {
    pub(super) pool: &'a PoolContext,
    pub(super) lease: &'a mut CellLease,
    pub(super) account: &'a mut Account,
    pub(super) state: &'a mut Vec<u64>,
    pub(super) context: &'a CellContext<'a>,
    pub(super) node: &'a Node,
    pub(super) now: Now,
}

/// What is asked of a window's pool, by the window's end.
#[derive(Clone, Copy)]
pub(super) struct WindowAsk {
    pub(super) end_ns: u64,
    pub(super) want: WindowWant,
}

/// What to exchange with the pool of a bucket or a sliding window.
struct RateExchange {
    kept: LeaseStatement,
    want: RateWant,
}

impl Rebalance<'_> {
    /// Forgets windows that are over by every wall.
    fn forget_what_is_over(&mut self) {
        let over_ns = self.pool.clocks.over_ns(self.now);
        self.lease.withdrawals.forget(over_ns);
        self.lease.statements.forget_unanswered(over_ns);
    }

    /// Brings the cell up to now, and reads its state and what was asked of it. `None` if the limit has no
    /// pool.
    fn inputs(&mut self) -> Option<LeaseInputs> {
        let (context, now) = (self.context, self.now);
        let pool = context.local.pool(context.global, context.salt)?;
        self.account.settle(self.state, context, now, &*self.node.sessions());
        self.account.keep_part(self.state, context, now.wall_ns, None, now);
        // The pool may have less of a window that began after the variants were made.
        let pool = context.local.pool_of(context.global, context.salt, self.account.window()).unwrap_or(pool);
        let offered = self.account.take_offered(Rebalancer::Pools);
        Some(LeaseInputs {
            offered: self.lease.with_unasked(offered, now),
            available: self.account.unleased(self.state, now, context.salt),
            standing: self.account.standing(),
            pool,
            budget: context.global.budget(),
            nodes: match self.pool.owner {
                // Other nodes take of the pool only for requests that cannot be forwarded.
                Owner::Own if self.account.is_forwarded(now) => 1,
                _ => self.pool.nodes,
            },
            is_owner: self.pool.owner == Owner::Own,
            // Held units of a rate come back only at their own part of the rate, and short windows cost many
            // calls.
            lasts: self.pool.lasts
                && !context.global.has_rate()
                && context.global.period_ns() >= SETTINGS.lease.lasting_ns_min,
            slides: !context.global.has_rate() && !matches!(context.global, Algorithm::FixedWindow(_)),
            for_others: self.account.take_for_others(),
            lent: self.account.book().lent_total(),
            kept: self.account.kept_of_pool(self.state, context, now),
        })
    }

    /// Takes in what was asked of the cell, and what its pool has.
    fn observe(&mut self, inputs: &LeaseInputs) {
        self.lease.observe(inputs, self.now);
        self.lease.follow(self.account, self.context, inputs.pool);
        self.account.set_low_water(self.lease.low_water());
    }

    /// The call of the cell's pool, if one is to be made.
    fn call(&mut self, inputs: &LeaseInputs) -> Option<NewCall> {
        let context = self.context;
        match context.global {
            Algorithm::FixedWindow(window) => {
                let call = self.ask_window(inputs, window);
                self.write_withdrawals();
                call
            }
            Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => self.ask_bucket(inputs, meter),
            sliding => self.ask_sliding(inputs, sliding),
        }
    }

    /// Notes what the cell holds now and could take, and keeps denied requests that were not asked for.
    fn note_outcome(&mut self, inputs: &LeaseInputs) {
        if self.lease.waits_for_disk || self.pool.generation.is_none() {
            self.lease.leave_unasked();
        }
        self.lease.held = held_of(self.account, self.state, self.context);
        let can_call = self.pool.generation.is_some() || self.lease.is_calling();
        let within_reach = if can_call && self.pool.store != StoreState::Lost {
            self.lease.within_reach(inputs, self.account.pooled(), self.now)
        } else {
            Part::default()
        };
        self.account.set_within_reach(within_reach);
    }

    /// Whether the cell needs its lease no more, if it makes no call.
    fn is_over(&self) -> bool {
        self.lease.is_idle(self.now)
            && !self.lease.is_calling()
            && !self.lease.withdrawals.has_before()
            && self.lease.statements.unanswered().next().is_none()
            && self.account.is_empty(self.now)
    }

    /// Whether what is given back now reaches the store, as far as is known. If that is not known, the store
    /// is asked for a word.
    fn reaches_somebody(&mut self) -> bool {
        self.lease.wants_word = self.pool.store == StoreState::Quiet && !self.pool.is_leaving;
        self.pool.store != StoreState::Lost && !self.lease.wants_word
    }

    fn name(&self, end_ns: u64) -> PoolName {
        PoolName { limit: self.pool.limit, tag: self.pool.key.tag, end_ns }
    }
}

/// Buckets and sliding windows.
impl Rebalance<'_> {
    /// The call about a bucket, if one is to be made.
    fn ask_bucket(&mut self, inputs: &LeaseInputs, meter: &Meter) -> Option<NewCall> {
        let clocks = self.pool.clocks;
        let params = bucket::BucketParams::of(meter, inputs.pool, clocks.slack_us(LATE_NS))?;
        let want = self.lease.bucket(inputs, self.account.pooled(), meter.rate_milli(), self.now);
        let exchange = self.exchange(want)?;
        let request = bucket::Exchange {
            taker: self.pool.taker,
            keeps: exchange.kept.part,
            tokens: exchange.kept.unspent,
            wanted: exchange.want.wanted,
            needed: exchange.want.needed,
            reserved: 0,
            keep_us: clocks.pool_keeps_us(LEASE_NS),
        };
        let request = PoolRequest::Exchange(self.name(0), request, params);
        Some(NewCall { about: self.about_part(&exchange, inputs.pool), request })
    }

    /// The call about a sliding window, if one is to be made.
    fn ask_sliding(&mut self, inputs: &LeaseInputs, sliding: &Algorithm) -> Option<NewCall> {
        let clocks = self.pool.clocks;
        let held = self.account.pooled().units;
        let want = self.lease.sliding(inputs, held, sliding.period_ns(), self.now);
        let exchange = self.exchange(want)?;
        let request = sliding::Slide {
            taker: self.pool.taker,
            keeps: exchange.kept.part.units,
            unused: exchange.kept.unspent,
            wanted: exchange.want.wanted.units,
            needed: exchange.want.needed,
            reserved: 0,
            keep_us: clocks.pool_keeps_us(LEASE_NS),
            lingers_us: clocks.pool_keeps_us(sliding.lingers_ns()).max(1),
            total: inputs.pool.units,
            slack_us: clocks.slack_us(LATE_NS),
        };
        let request = PoolRequest::Slide(self.name(0), request);
        Some(NewCall { about: self.about_part(&exchange, inputs.pool), request })
    }

    /// What to exchange with the pool, if a call is to be made.
    fn exchange(&mut self, want: Option<RateWant>) -> Option<RateExchange> {
        let generation = self.pool.generation?;
        let held = self.account.pooled();
        let want = if self.pool.is_leaving { self.leaves_part(held) } else { want };
        let statements = &self.lease.statements;
        let is_untold =
            statements.unheard.is_some() || held != Part::default() && !statements.was_told(0, generation);
        let mut want = want.or(is_untold.then_some(RateWant::keeping(held)))?;
        // Units that are given back to a lost store reach nobody. Units that may not be held any more go back
        // all the same.
        if want.keeps != held && !self.lease.must_shrink() && !self.reaches_somebody() {
            want.keeps = held;
            if want.wanted == Part::default() && !is_untold {
                return None;
            }
        }
        let kept = self.account.ask_pool(self.state, self.context, want.keeps, self.now)?;
        Some(RateExchange { kept, want })
    }

    /// What a call is about that makes this exchange with a pool that has `pool` in all.
    fn about_part(&self, exchange: &RateExchange, pool: Part) -> About {
        About::Cell(CellCall {
            key: self.pool.key,
            wants_more: exchange.want.wanted != Part::default(),
            subject: Subject::Part { number: exchange.kept.number, pool },
        })
    }
}

/// Windows with edges.
impl Rebalance<'_> {
    /// The call about the open window or a later one, if one is to be made.
    fn ask_window(&mut self, inputs: &LeaseInputs, window: &FixedWindow) -> Option<NewCall> {
        let open_ns = self.account.window();
        // Units that count in a window of another cell belong to no pool.
        let is_open = !self.is_over_soon(open_ns) && self.context.is_own(open_ns);
        let want = self.want_of_open(inputs, open_ns).filter(|_| is_open);
        let want = want.filter(|want| want.returns == 0 || self.reaches_somebody());
        self.lease.waits_for_disk = false;
        let generation = self.pool.generation?;
        let to_tell = self.window_to_tell(open_ns, is_open, generation);
        let more = if self.pool.is_leaving {
            let may_return =
                is_open && self.pool.store != StoreState::Lost && self.lease.statements.unheard.is_none();
            self.leaves_windows(window, inputs.available).filter(|_| may_return)
        } else if let Some(want) = want {
            Some(WindowAsk { end_ns: open_ns, want })
        } else if to_tell.is_none() {
            self.ask_later(inputs, window, open_ns)
        } else {
            None
        };
        let more = more.map(|ask| self.after_earlier_grants(ask));
        let more = more.and_then(|ask| self.covered_by_disk(ask, inputs, open_ns));
        let ask = more.or(to_tell.map(|end_ns| WindowAsk { end_ns, want: WindowWant::default() }))?;
        Some(self.take(window, ask))
    }

    /// Whether another node may have left the window already, and tells nobody any more what it took. So no
    /// more is asked for, and nothing is taken up.
    fn is_over_soon(&self, end_ns: u64) -> bool {
        end_ns.saturating_sub(self.now.wall_ns) <= self.pool.clocks.margin_ns()
    }

    /// What is wanted of the open window.
    fn want_of_open(&mut self, inputs: &LeaseInputs, open_ns: u64) -> Option<WindowWant> {
        let time_left_ns = open_ns.saturating_sub(self.now.wall_ns);
        let open = self.account.withdrawn_of(open_ns);
        self.lease.window(inputs, &open, time_left_ns, self.now)
    }

    /// The window of which the pool of a generation must be told, or asked what it granted: by its end.
    fn window_to_tell(&self, open_ns: u64, is_open: bool, generation: Generation) -> Option<u64> {
        let statements = &self.lease.statements;
        // A node that stops repeats what it gives back until the pool has answered.
        statements
            .unheard
            .or_else(|| self.windows().find(|end_ns| self.is_untold(*end_ns, generation)))
            .or_else(|| {
                let may_ask = |end_ns: &u64| self.lease.may_ask(self.now) && !self.is_over_soon(*end_ns);
                statements.unanswered().find(may_ask)
            })
            .or_else(|| {
                // Nodes that joined after the window began go by what is told of the window.
                let is_said = may_say(self.context, open_ns) && self.context.local.spares() && is_open;
                let is_heard = self.pool.store != StoreState::Lost && self.lease.may_ask(self.now);
                let is_unsaid = is_said && is_heard && !statements.was_told(open_ns, generation);
                is_unsaid.then_some(open_ns)
            })
    }

    /// The windows of which this process or an earlier one took, by their ends.
    fn windows(&self) -> impl Iterator<Item = u64> {
        let own = self.account.withdrawn().iter().map(|withdrawn| withdrawn.end_ns);
        own.chain(self.lease.withdrawals.ends())
    }

    /// All units that were taken of a window, of which this process may have taken only the later part.
    fn all_taken(&self, end_ns: u64) -> u64 {
        let before = self.lease.withdrawals.before(end_ns, self.pool.since);
        self.account.withdrawn_of(end_ns).withdrawn.saturating_add(before)
    }

    /// Whether the pool of a generation was not told what was taken of a window.
    fn is_untold(&self, end_ns: u64, generation: Generation) -> bool {
        self.all_taken(end_ns) > 0 && !self.lease.statements.was_told(end_ns, generation)
    }

    /// What is asked of a window before it opens.
    fn ask_later(&mut self, inputs: &LeaseInputs, window: &FixedWindow, open_ns: u64) -> Option<WindowAsk> {
        let (context, now) = (self.context, self.now);
        let end_after = |end_ns: u64| window.end_after(end_ns, context.salt);
        let length_ns = end_after(open_ns) - open_ns;
        let ahead = usize::try_from(SETTINGS.lease.ahead_ns / length_ns.max(1))
            .unwrap_or(usize::MAX)
            .clamp(1, SETTINGS.lease.windows_max);
        let begins = std::iter::successors(Some(open_ns), |begins_ns| Some(end_after(*begins_ns)));
        let soon = begins.take(ahead).take_while(|begins_ns| may_be_withdrawn_of(*begins_ns, now));
        soon.map(end_after).find_map(|end_ns| {
            let pool = context.local.pool_of(context.global, context.salt, end_ns).unwrap_or_default();
            let withdrawn = self.account.withdrawn_of(end_ns);
            let want = self.lease.later_window(inputs, &withdrawn, pool.units, length_ns, now)?;
            Some(WindowAsk { end_ns, want })
        })
    }

    /// Asks for no more of a window before the pool has said what it granted when it had more.
    fn after_earlier_grants(&self, mut ask: WindowAsk) -> WindowAsk {
        if self.lease.statements.may_be_of_more(ask.end_ns) {
            (ask.want.wanted, ask.want.needed) = (0, 0);
        }
        ask
    }

    /// Bounds what is asked for by what would come: what the disk covers counts as spent if this process
    /// ends. Until the disk covers it there is no call for more.
    fn covered_by_disk(
        &mut self,
        mut ask: WindowAsk,
        inputs: &LeaseInputs,
        open_ns: u64,
    ) -> Option<WindowAsk> {
        if !self.pool.writes_withdrawals || ask.want.wanted == 0 {
            return Some(ask);
        }
        let part = self.lease.left().unwrap_or(inputs.pool.units).div_ceil(window::PART);
        let wanted = ask.want.wanted.min(part.max(ask.want.needed).max(1));
        ask.want.wanted = wanted;
        let next = wanted.min(part.max(self.lease.least()).max(1));
        let ahead = if ask.end_ns == open_ns { next } else { 0 };
        let withdrawn = self.account.withdrawn_of(ask.end_ns);
        let is_covered = self.lease.covers(&withdrawn, wanted, ahead, self.node.progress().committed);
        self.lease.waits_for_disk = !may_leave(is_covered);
        may_leave(is_covered).then_some(ask)
    }

    /// The call that asks for this.
    fn take(&mut self, window: &FixedWindow, ask: WindowAsk) -> NewCall {
        let WindowAsk { end_ns, want } = ask;
        if want.returns > 0 {
            self.account.return_to_pool(self.context, end_ns, want.returns, want.returns);
        }
        let begins_ns = window.begins(end_ns, self.context.salt);
        let take = window::Take {
            taker: self.pool.taker,
            taken: self.all_taken(end_ns),
            returned: self.account.withdrawn_of(end_ns).returned,
            wanted: want.wanted,
            needed: want.needed,
            reserved: 0,
            total: self.total(end_ns, begins_ns),
            begins_us: begins_ns / 1_000,
            drops_us: end_ns.saturating_add(SETTINGS.lease.kept_ns) / 1_000,
        };
        let wants_more = want.wanted > 0;
        if wants_more {
            self.lease.statements.asks_of(end_ns);
        }
        let subject = Subject::Window { end_ns };
        NewCall {
            about: About::Cell(CellCall { key: self.pool.key, wants_more, subject }),
            request: PoolRequest::Take(self.name(end_ns), take),
        }
    }

    /// What the pool of a window has in all, by this node's variant.
    fn total(&self, end_ns: u64, begins_ns: u64) -> window::Total {
        let CellContext { global, local, salt, .. } = *self.context;
        if local.has_joined_since(end_ns) {
            return window::Total::AsSaid(global.budget());
        }
        let units = local.pool_of(global, salt, end_ns).unwrap_or_default().units;
        if self.now.wall_ns >= begins_ns && may_say(self.context, end_ns) {
            window::Total::Open(units)
        } else {
            window::Total::Ahead(units)
        }
    }

    /// Puts the row in line for the disk that covers the next call, if one is needed.
    fn write_withdrawals(&mut self) {
        if self.node.is_journal_down() {
            // The cell is rebalanced as any other until the disk is back.
            self.lease.waits_for_disk = false;
            return;
        }
        if !self.lease.withdrawals.wants_row() {
            return;
        }
        let untold: SmallVec<[u64; 4]> =
            self.windows().filter(|end_ns| self.is_untold_in_row(*end_ns)).collect();
        let since = self.pool.since;
        let told_in = |end_ns| if untold.contains(&end_ns) { Generation::default() } else { since };
        if let Some(windows) = self.lease.withdrawals.next(told_in) {
            let record = WithdrawalRow { limit: self.pool.limit, tag: self.pool.key.tag, windows };
            let batch = self.node.push_row(record.row());
            self.lease.withdrawals.goes(&record.windows, batch, self.node.progress().committed);
        }
    }

    /// A row says of a window that its pool was told only when the pool was.
    fn is_untold_in_row(&self, end_ns: u64) -> bool {
        self.is_untold(end_ns, self.pool.heard) && !mutated(Mutation::LeaseWithdrawalsToldEarly)
    }
}

/// A node takes only of windows that begin soon: a node that excludes this one relies on it having taken of
/// no later window.
fn may_be_withdrawn_of(begins_ns: u64, now: Now) -> bool {
    begins_ns.saturating_sub(now.wall_ns) <= SETTINGS.lease.ahead_ns || mutated(Mutation::LeaseTakesAnyTime)
}

/// A call for more of a window leaves when the disk covers what the call may bring.
fn may_leave(is_covered: bool) -> bool {
    is_covered || mutated(Mutation::LeaseTakesUnwritten)
}

/// Whether others may go by this variant's part of a window's pool, by the window's end. A limit that is not
/// in force gets no new variants, and a node that owns nothing does not know what others have.
fn may_say(context: &CellContext<'_>, end_ns: u64) -> bool {
    (context.in_force && !context.local.owns_nothing_of(end_ns)) || mutated(Mutation::LeaseSaysWhatIsOver)
}
