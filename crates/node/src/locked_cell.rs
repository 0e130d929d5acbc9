//! One look at one cell under its shard's lock, with the numbers that its limit has now.

use acequia_limits::{Algorithm, Now, algorithm::State, window::Usage};

use acequia_rights::mutation::{Mutation, mutated};

use crate::{
    Catalogue, Node,
    account::{Account, CellContext},
    journal::HeapCell,
    shard::{Cells, NewCell},
    shard_of,
    sharing::CellKey,
};

/// Where to look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockedCell<'a> {
    pub(crate) node: &'a Node,
    pub(crate) catalogue: &'a Catalogue,
    pub(crate) key: CellKey,
    pub(crate) now: Now,
    /// Which of its limit's numbers the cell has, as a peer says that goes by the same catalogue. It knows the
    /// descriptor; this node, as long as nobody asked it, does not.
    pub(crate) which: Option<u16>,
}

impl LockedCell<'_> {
    /// Runs a look at the cell, which has an account then; whoever opens one has somebody look at it from then on, or nobody drops it.
    /// Nothing where there is none and none is to be opened, where there is no room for one, or where the limit is not known any more.
    pub(crate) fn at<R>(
        &self,
        open: bool,
        look: impl FnOnce(&CellContext<'_>, &mut HeapCell) -> R,
    ) -> Option<R> {
        let (slot, tag) = self.key;
        let mut cells = self.node.shards[shard_of(tag)].lock();
        // By no time before one at which cells were brought to other numbers.
        let at = Now { wall_ns: self.now.wall_ns.max(self.node.wall_high_ns()), ..self.now };
        let told = self.which.and_then(|which| self.catalogue.numbers_of(slot, which, at));
        let newest = match told {
            Some(told) => told,
            None => self.catalogue.newest_numbers(slot, tag.salt())?,
        };
        let place = match cells.table.find(tag, slot) {
            Some(place) => place,
            None if !open || !self.node.has_room_for_accounts(&mut cells, self.now) => return None,
            None => {
                let local = self.catalogue.local(slot, newest)?;
                let (algorithm, salt) = (local.at(tag.salt()), tag.salt());
                let state = self.node.initial(self.catalogue, (slot, newest), algorithm, salt, self.now);
                let durable = self.catalogue.is_durable(slot);
                let place = cells.insert(tag, slot, newest, NewCell::new(state, algorithm, durable));
                if told.is_none() {
                    cells.table.at_mut(place).guess();
                }
                place
            }
        };
        let is_new = cells.account(place).is_none();
        if is_new && !open {
            return None;
        }
        let context = self.renew(&mut cells, place, told)?;
        if is_new {
            cells.share(place, Box::new(Account::new(&context)));
        }
        let at = cells.table.at(place).heap_place()?;
        Some(cells.with_heap_cell(at, |cell| look(&context, cell)))
    }

    /// Brings the cell at a place to the numbers that its limit has now, of which `told` are those that a peer says it has; gives
    /// what it is kept by. Whoever charges it, or gives units back, must do so by those: charged under numbers that were replaced
    /// before, it would be dated back to then.
    pub(crate) fn renew(
        &self,
        cells: &mut Cells,
        place: usize,
        told: Option<u16>,
    ) -> Option<CellContext<'_>> {
        let (slot, tag) = self.key;
        let salt = tag.salt();
        let numbers = cells.table.at(place).numbers();
        // Which of an override's numbers a cell has is known to the requests that hit it, and to the peers that they hit:
        // one that was written under replaced numbers goes by the least of today's until it is next hit, or told.
        let is_asked = cells.account(place).is_some_and(Account::was_asked);
        let (heir, is_guess) = match told.filter(|_| !is_asked) {
            Some(told) => (told, false),
            None => self.catalogue.heir(slot, cells.table.at(place), salt, self.now)?,
        };
        let context = CellContext {
            global: self.catalogue.global(slot, heir)?,
            local: self.catalogue.local(slot, heir)?,
            salt,
            which: self.catalogue.which(slot, heir).filter(|_| !is_guess),
            in_force: self.catalogue.is_active(slot),
        };
        if numbers == heir {
            if !is_guess {
                cells.table.at_mut(place).set_numbers(heir);
            }
            return Some(context);
        }
        // By a clock that reads less it would be brought back.
        self.node.leave_behind(self.now);
        let began = self.catalogue.began(slot, heir).unwrap_or(self.now);
        if cells.account(place).is_none() {
            let words = cells.words(cells.table.at(place)).to_vec();
            let old = self.catalogue.local(slot, numbers)?.at(salt);
            let (late, early) = (
                context.local.at(salt).resize(old, &words, self.now),
                context.local.at(salt).resize(old, &words, began.min(self.now)),
            );
            let covers = context.local.at(salt).covers(early.words(), late.words(), self.now);
            let state = if covers { early } else { late };
            let state = self.not_less_than_forgotten((slot, heir), context.local.at(salt), salt, state);
            cells.rewrite(place, heir, state);
        } else if !mutated(Mutation::ReshareWithoutRenumber) {
            if let Some(cell) = cells.shared_mut(place) {
                self.renumber(cell, (numbers, heir), &context);
            }
            cells.table.at_mut(place).set_numbers(heir);
        }
        if is_guess {
            cells.table.at_mut(place).guess();
        }
        Some(context)
    }

    /// Brings a shared cell from numbers to others. Where they began earlier and that leaves a larger debt, it counts.
    pub(crate) fn renumber(&self, cell: &mut HeapCell, (from, to): (u16, u16), context: &CellContext<'_>) {
        let HeapCell { account: Some(account), words, .. } = &mut *cell else {
            unreachable!("a shared cell")
        };
        let (slot, salt) = (self.key.0, context.salt);
        let began = self.catalogue.began(slot, to).unwrap_or(self.now);
        let old = self.catalogue.global(slot, from).zip(self.catalogue.local(slot, from));
        let before = old.map(|(global, local)| CellContext { global, local, ..*context });
        let (grounds, times) = ((before.as_ref(), context), (began, self.now));
        let free = before.as_ref().map(|before| account.free_of_pool(words, before, self.now));
        account.renumber(words, grounds, times, &*self.node.sessions());
        if !mutated(Mutation::LeaseShrinksLate) {
            let since_ns = self.catalogue.over_at(slot, from, self.now).unwrap_or(self.now).wall_ns;
            account.keep_part(words, context, (since_ns, free), self.now);
        }
        let local = context.local.at(salt);
        match (local, before) {
            // What was taken of pools since the start is not forgotten: that may be spent. What stands here counts as spent, with what
            // more there is of it now.
            (Algorithm::FixedWindow(window), Some(before)) if self.node.leases.is_some() => {
                let stands = |context: &CellContext<'_>| context.standing(account.window()).units;
                let (before, now) = (stands(&before), stands(context));
                let more = account.stands_more(before, now);
                let then = self.node.spent_before_start(self.catalogue, slot, local, self.now);
                account.owe_forgotten(words, |_, state| {
                    let state = match then {
                        Some(then) => owed_beside(state, &window.spent_at(then.wall_ns, salt), more),
                        None => state,
                    };
                    self.not_less_than_forgotten((slot, to), local, salt, state)
                });
            }
            _ => account.owe_forgotten(words, |algorithm, state| {
                self.not_less_than_forgotten((slot, to), algorithm, salt, state)
            }),
        }
        cell.forget_held_of(context.global);
    }

    fn not_less_than_forgotten(
        &self,
        numbers: (u32, u16),
        algorithm: &Algorithm,
        salt: u32,
        state: State,
    ) -> State {
        self.node.not_less_than_forgotten(self.catalogue, numbers, (algorithm, salt), self.now, state)
    }
}

/// A window's state with so many units more, in those that were open when others were `spent`.
fn owed_beside(state: State, spent: &Usage, units: u64) -> State {
    let State::Heap(mut words) = state else { return state };
    // By one clock alone nothing is charged ahead.
    if let [end_ns, used, ahead @ ..] = &mut words[..] {
        let is_next = *end_ns > spent.end_ns && spent.ahead > 0;
        if *end_ns == spent.end_ns || is_next {
            *used = used.saturating_add(units);
        }
        if let [ahead, ..] = ahead
            && *end_ns == spent.end_ns
            && spent.ahead > 0
        {
            *ahead = ahead.saturating_add(units);
        }
    }
    State::Heap(words)
}
