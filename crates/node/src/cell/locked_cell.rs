//! One cell under its shard's lock, with its limit's present variant.

use acequia_limits::{Algorithm, Now, algorithm::State, window::Usage};

use acequia_rights::mutation::{Mutation, mutated};

use crate::{
    Catalogue, Node,
    catalogue::VariantKey,
    cell::{
        account::{Account, CellContext, VariantChange, shrinks_with_pool},
        shard::{Cells, NewCell},
    },
    journal::{HeapCell, forgotten::MaybeForgotten},
    regions::CellKey,
    shard_of,
};

/// A cell, and the context in which it is locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockedCell<'a> {
    pub(crate) node: &'a Node,
    pub(crate) catalogue: &'a Catalogue,
    pub(crate) key: CellKey,
    pub(crate) now: Now,
    /// The cell's variant as a peer with the same catalogue reports it. The peer knows the descriptor; this
    /// node does not know it until a request hits the cell.
    pub(crate) which: Option<u16>,
}

impl LockedCell<'_> {
    /// Runs `act` on the cell, which then has an account. A caller that opens an account must register a
    /// rebalancer for it, or nobody drops the account. Returns `None` if there is no account and none is to
    /// be opened, if there is no room, or if the limit is not known any more.
    pub(crate) fn at<R>(
        &self,
        open: bool,
        act: impl FnOnce(&CellContext<'_>, &mut HeapCell) -> R,
    ) -> Option<R> {
        let CellKey { slot, tag } = self.key;
        let mut cells = self.node.shards[shard_of(tag)].lock();
        // The time must not be before one at which cells were brought to other variants.
        let at = Now { wall_ns: self.now.wall_ns.max(self.node.wall_high_ns()), ..self.now };
        let told = self.which.and_then(|which| self.catalogue.variant_at(slot, which, at));
        let newest = match told {
            Some(told) => told,
            None => self.catalogue.newest_variant(slot, tag.salt())?,
        };
        let place = match cells.table.find(tag, slot) {
            Some(place) => place,
            None if !open || !self.node.has_room_for_accounts(&mut cells, self.now) => return None,
            None => {
                let local = self.catalogue.local(slot, newest)?;
                let (algorithm, salt) = (local.at(tag.salt()), tag.salt());
                let state = self.node.initial(&self.maybe_forgotten(newest, algorithm, salt));
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
        Some(cells.with_heap_cell(at, |cell| act(&context, cell)))
    }

    /// Brings the cell to its limit's present variant, or to `told`, the variant that a peer reports. Returns
    /// the cell's context. A caller that charges the cell or gives units back must use this variant: a charge
    /// under a variant that was replaced earlier would be dated back to the replacement.
    pub(crate) fn renew(
        &self,
        cells: &mut Cells,
        place: usize,
        told: Option<u16>,
    ) -> Option<CellContext<'_>> {
        let CellKey { slot, tag } = self.key;
        let salt = tag.salt();
        let from = cells.table.at(place).variant();
        // Only requests that hit the cell, and peers that they hit, know which override it has. A cell under
        // a replaced variant uses the least of today's variants until it is hit, or a peer reports its
        // variant.
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
        if from == heir {
            if !is_guess {
                cells.table.at_mut(place).set_variant(heir);
            }
            return Some(context);
        }
        // A thread with an earlier clock would bring the cell back.
        self.node.leave_behind(self.now);
        if cells.account(place).is_none() {
            let state = self.under_variant(cells, place, heir, context.local.at(salt))?;
            cells.rewrite(place, heir, state);
        } else {
            self.change_variant_of_shared(cells, place, heir, &context);
        }
        if is_guess {
            cells.table.at_mut(place).guess();
        }
        Some(context)
    }

    /// The state of a cell without an account under another variant, `algorithm`. If the variant began
    /// earlier and that leaves a larger debt, the larger debt counts.
    fn under_variant(&self, cells: &Cells, place: usize, to: u16, algorithm: &Algorithm) -> Option<State> {
        let (slot, salt) = (self.key.slot, self.key.tag.salt());
        let cell = cells.table.at(place);
        let (state, old) = (cells.state(cell), self.catalogue.local(slot, cell.variant())?.at(salt));
        let carried = old.carried(state, self.now, salt, algorithm);
        let state = carried.as_ref().map_or(state, State::as_slice);
        let began = self.catalogue.began(slot, to).unwrap_or(self.now).min(self.now);
        let (late, early) = (algorithm.resize(old, state, self.now), algorithm.resize(old, state, began));
        let covers = algorithm.covers(early.as_slice(), late.as_slice(), self.now);
        Some(self.not_less_than_forgotten(to, algorithm, salt, if covers { early } else { late }))
    }

    /// Brings a cell with an account to another variant, with its loans.
    fn change_variant_of_shared(&self, cells: &mut Cells, place: usize, to: u16, context: &CellContext<'_>) {
        if mutated(Mutation::ReshareWithoutNewVariant) {
            return;
        }
        let from = cells.table.at(place).variant();
        if let Some(cell) = cells.shared_mut(place) {
            self.change_variant(cell, from, to, context);
        }
        cells.table.at_mut(place).set_variant(to);
    }

    /// Brings a cell with an account to another variant. If the variant began earlier and that leaves a
    /// larger debt, the larger debt counts.
    pub(crate) fn change_variant(&self, cell: &mut HeapCell, from: u16, to: u16, context: &CellContext<'_>) {
        let HeapCell { account: Some(account), state, .. } = &mut *cell else {
            unreachable!("a shared cell")
        };
        let (slot, salt) = (self.key.slot, context.salt);
        let began = self.catalogue.began(slot, to).unwrap_or(self.now);
        let old = self.catalogue.global(slot, from).zip(self.catalogue.local(slot, from));
        let before = old.map(|(global, local)| CellContext { global, local, ..*context });
        let free = before.as_ref().map(|before| account.free_of_pool(state, before, self.now));
        let change = VariantChange { before: before.as_ref(), context, began, now: self.now };
        account.change_variant(state, &change, &*self.node.sessions());
        if shrinks_with_pool() {
            let since_ns = self.catalogue.over_at(slot, from, self.now).unwrap_or(self.now).wall_ns;
            account.keep_part(state, context, since_ns, free, self.now);
        }
        let local = context.local.at(salt);
        match (local, before) {
            // Units withdrawn from pools since the start are known, and may be spent. The standing share
            // counts as spent, with any increase of it.
            (Algorithm::FixedWindow(window), Some(before)) if self.node.leases.is_some() => {
                let stands = |context: &CellContext<'_>| context.standing(account.window()).units;
                let (before, now) = (stands(&before), stands(context));
                let more = account.stands_more(before, now);
                let then = self.node.spent_before_start(self.catalogue, slot, local, self.now);
                account.owe_forgotten(state, |_, state| {
                    let state = match then {
                        Some(then) => owed_beside(state, &window.spent_at(then.wall_ns, salt), more),
                        None => state,
                    };
                    self.not_less_than_forgotten(to, local, salt, state)
                });
            }
            _ => account.owe_forgotten(state, |algorithm, state| {
                self.not_less_than_forgotten(to, algorithm, salt, state)
            }),
        }
        cell.forget_held_of(context.global);
    }

    fn not_less_than_forgotten(&self, to: u16, algorithm: &Algorithm, salt: u32, state: State) -> State {
        self.node.not_less_than_forgotten(&self.maybe_forgotten(to, algorithm, salt), state)
    }

    /// The cell as a variant counts it, whose state a crash may have forgotten.
    fn maybe_forgotten<'a>(
        &'a self,
        variant: u16,
        algorithm: &'a Algorithm,
        salt: u32,
    ) -> MaybeForgotten<'a> {
        let key = VariantKey { slot: self.key.slot, variant };
        MaybeForgotten { catalogue: self.catalogue, key, algorithm, salt, now: self.now }
    }
}

/// Adds `units` to a window's state, in the windows that were open when `spent` was.
fn owed_beside(state: State, spent: &Usage, units: u64) -> State {
    let State::Heap(mut state) = state else { return state };
    // With a single clock nothing is charged ahead.
    if let [end_ns, used, ahead @ ..] = &mut state[..] {
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
    State::Heap(state)
}
