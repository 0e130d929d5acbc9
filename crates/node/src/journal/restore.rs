//! The start of a node: it puts the journal's cells back in memory.

use std::collections::BTreeMap;

use acequia_limits::{Algorithm, CellTag, LimitId, Now, algorithm::State};

use crate::{
    CellRecord, Node, Row,
    catalogue::{LiveVariant, Registry, VariantKey},
    cell::{
        CellKey,
        account::{Account, CellContext},
        record::{is_forgotten_debt_kept, may_be_overdrawn},
        shard::NewCell,
    },
    journal::forgotten::more_than_forgotten,
    journal::{self, FORGOTTEN, HeapCell, is_overflow},
    lock, shard_of,
};

/// A limit whose cells are read from the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestoredLimit<'a> {
    pub(crate) id: LimitId,
    pub(crate) slot: u32,
    /// The limit's algorithm.
    like: &'a Algorithm,
    /// Whether the limit's cells are kept in the journal.
    durable: bool,
    /// When a crash forgot unjournalled cells, if it did.
    pub(crate) lost: Option<Now>,
    /// The variants that the limit's cells have now.
    pub(crate) all: &'a [LiveVariant],
    pub(crate) error_ns: Option<u64>,
    pub(crate) now: Now,
}

impl RestoredLimit<'_> {
    /// The least variant of a cell.
    fn least(&self, salt: u32) -> &LiveVariant {
        self.all.iter().min_by_key(|live| live.order(salt)).unwrap_or(&self.all[0])
    }

    /// Whether a crash presumes at least as much as any row of the limit says.
    fn is_presumed(&self) -> bool {
        self.lost.is_some() && !may_be_overdrawn(self.like)
    }

    /// Whether a bucket's cell owes more than a crash presumes of an unjournalled cell.
    fn is_overdrawn(&self, algorithm: &Algorithm, state: &[u64], salt: u32) -> bool {
        let units = self.all.iter().map(|live| live.local.part(salt).units).min().unwrap_or(0);
        may_be_overdrawn(algorithm) && algorithm.owed(state, self.now) > units
    }

    /// As [`RestoredLimit::is_overdrawn`], for a row of a cell that new cells shared, under the variant that
    /// the row was written under.
    fn is_overdrawn_shared(&self, kept: &CellRecord) -> bool {
        let algorithm = kept.algorithm(self.like).filter(Algorithm::has_rate);
        algorithm.is_some_and(|algorithm| {
            let state = kept.state(&algorithm, self.error_ns, self.now);
            self.is_overdrawn(&algorithm, state.as_slice(), 0)
        })
    }
}

impl Node {
    /// Reads the cells of the limits in force from the journal: once, after [`Node::resume`]. Rows that only
    /// a clean stop leaves are taken. Nothing may be asked, and no row be written, before the journal says
    /// that the node runs.
    pub fn restore_all(&self, now: Now, mut rows: impl FnMut(LimitId) -> Vec<Row>) {
        let wall_ns = rows(journal::WALL).iter().filter_map(Row::wall_ns).max().unwrap_or(0);
        self.clock.note_kept_wall(wall_ns);
        if self.is_wall_believed() {
            self.clock.go_on_from_kept(now);
        }
        let mut registry = lock(&self.limits.registry);
        let ids: Vec<LimitId> = registry.active().iter().map(|active| active.limit.id).collect();
        let crashed = self.setup.config.after_crash.is_some();
        let taken = self.restore(&mut registry, &ids, now, crashed, &mut rows);
        self.publish(&registry, now);
        drop(registry);
        self.journal.delete_taken(taken);
        self.restore_charges(now, rows(journal::CHARGES));
    }

    /// Puts journalled cells back in memory. The cells are real debts, so the memory bound does not stop
    /// them: a node that is given less memory than it had starts full.
    ///
    /// Returns the rows that must be deleted. A clean stop writes every cell of unjournalled limits, and such
    /// a row is true only once: this process spends without writing. After a crash such a row would be
    /// ignored. But the next clean stop would make it look valid, if that process had nothing of the cell.
    /// Two kinds of rows stay: what is given away, and a bucket's debt beyond all that a crash presumes.
    /// While a cell owes so much, nothing is spent of it, so its row stays true. The disk must have the
    /// limits in force first: of other limits, a crash presumes nothing.
    pub(crate) fn restore(
        &self,
        registry: &mut Registry,
        ids: &[LimitId],
        now: Now,
        crashed: bool,
        rows: &mut impl FnMut(LimitId) -> Vec<Row>,
    ) -> Vec<Row> {
        let mut taken = Vec::new();
        let error_ns = registry.clock_error_ns();
        let places: BTreeMap<LimitId, usize> =
            registry.active().iter().enumerate().map(|(place, active)| (active.limit.id, place)).collect();
        for id in ids {
            let Some(active) = places.get(id).map(|place| &registry.active()[*place]) else { continue };
            let (slot, like, durable) = (active.slot, active.limit.algorithm.clone(), active.durable);
            let all = registry.live_variants(active);
            // Cells may have been charged after a row was written. So the limit starts as after a crash, even
            // if it only comes back now.
            let are_rows_old =
                !durable && (crashed || self.is_shared()) && !self.setup.rows_hold.contains(id);
            let lost = self.setup.config.after_crash.filter(|_| are_rows_old);
            let limit = RestoredLimit { id: *id, slot, like: &like, durable, lost, all: &all, error_ns, now };
            let (forgotten, cells): (Vec<Row>, Vec<Row>) =
                rows(*id).into_iter().partition(|row| row.tag == FORGOTTEN);
            for row in forgotten {
                self.restore_forgotten(registry, &limit, row);
            }
            taken.extend(self.restore_cells(registry, &limit, cells));
        }
        taken
    }

    /// Restores the debt of unknown cells: what an earlier process had forgotten is not known now either.
    fn restore_forgotten(&self, registry: &mut Registry, limit: &RestoredLimit<'_>, row: Row) {
        let Some(kept) = row.state else { return };
        let Some(written) = kept.algorithm(limit.like).filter(Algorithm::has_rate) else { return };
        let state = kept.state(&written, limit.error_ns, limit.now);
        if written.is_idle(state.as_slice(), limit.now) {
            self.push_row(Row { state: None, ..row });
        } else if is_forgotten_debt_kept() {
            registry.learn_forgotten(limit.slot, &written, state.as_slice(), limit.now);
        }
    }

    /// Restores a limit's cells; returns the rows that must be deleted.
    fn restore_cells(&self, registry: &Registry, limit: &RestoredLimit<'_>, rows: Vec<Row>) -> Vec<Row> {
        let mut taken = Vec::new();
        let mut shared: Vec<(CellTag, CellRecord)> = Vec::new();
        // Whether the disk keeps the rows of shared cells.
        let mut is_shared_kept = limit.durable;
        for Row { tag, state, .. } in rows {
            let Some(kept) = state else { continue };
            let is_presumed = limit.is_presumed() && (is_overflow(tag) || kept.pledge().is_empty());
            if is_overflow(tag) && !is_presumed {
                is_shared_kept |= limit.is_overdrawn_shared(&kept);
                shared.push((tag, kept));
                continue;
            }
            let is_overdrawn = !is_presumed && self.restore_cell(registry, limit, tag, &kept);
            if !limit.durable && !kept.is_pledged() && !is_overdrawn {
                taken.push(Row { limit: limit.id, tag, state: None });
            }
        }
        self.restore_shared(registry, limit, &shared, is_shared_kept);
        if !is_shared_kept {
            taken.extend(shared.iter().map(|(tag, _)| Row { limit: limit.id, tag: *tag, state: None }));
        }
        taken
    }

    /// Puts one cell back, unless the cell exists, or owes no more than is presumed of an absent cell. Says
    /// whether the cell owes more than the next crash would presume; then its present state is queued for the
    /// disk.
    fn restore_cell(
        &self,
        registry: &Registry,
        limit: &RestoredLimit<'_>,
        tag: CellTag,
        kept: &CellRecord,
    ) -> bool {
        let RestoredLimit { slot, like, now, .. } = *limit;
        self.clock.note_journal_wall(kept.written_wall_ns());
        let Some(algorithm) = kept.algorithm(like) else { return false };
        let salt = tag.salt();
        let state = kept.state(&algorithm, limit.error_ns, now);
        let state = self.clock.after_set_back(&algorithm, state, Some(salt), now);
        let (live, state) = self.under_present_variant(limit, &algorithm, state, salt);
        let state = match limit.lost {
            None => state,
            Some(then) if !like.has_rate() => self.spent(live.local.at(salt), then, Some(salt)),
            Some(_) => {
                match more_than_forgotten(registry, VariantKey { slot, variant: live.number }, state, now) {
                    Ok(more) => more,
                    Err(_) if kept.pledge().is_empty() => return false,
                    Err(presumed) => presumed,
                }
            }
        };
        let is_overdrawn = !limit.durable && limit.is_overdrawn(live.local.at(salt), state.as_slice(), salt);
        let mut cells = self.shards[shard_of(tag)].lock();
        if cells.table.find(tag, slot).is_some() {
            return is_overdrawn;
        }
        if self.is_shared() && live.local.at(salt).overdrawn(state.as_slice()) > 0 {
            // Other regions hear again of a debt that was carried.
            self.calls.note_found(CellKey { slot, tag });
        }
        while !cells.table.has_room(1) {
            cells.table.grow(usize::MAX);
        }
        let (variant, cell) = if !kept.pledge().is_empty() {
            // The cell's override is known when the cell is next hit; until then it has the least variant.
            let least = limit.least(salt);
            let cell = self.with_restored_account(limit, tag, kept, live.local.at(salt), &state);
            (least.number, NewCell::Heap(cell))
        } else if limit.durable {
            (live.number, NewCell::Heap(HeapCell::restored(state.as_slice().to_vec())))
        } else if is_overdrawn {
            let state_now = Some(CellRecord::new(live.local.at(salt), state.as_slice(), now));
            let mut cell = HeapCell::new(state.as_slice().to_vec());
            cell.ask_as_is(self.push_row(Row { limit: limit.id, tag, state: state_now }));
            (live.number, NewCell::Heap(cell))
        } else {
            (live.number, NewCell::new(state, live.local.at(salt), false))
        };
        let place = cells.insert(tag, slot, variant, cell);
        if limit.all.len() > 1 {
            cells.table.at_mut(place).guess();
        }
        is_overdrawn
    }

    /// The present variant of a cell that was written under `algorithm`, and the state under that variant.
    ///
    /// If a present variant is equal, the cell keeps it. Otherwise nobody knows when the variant changed, or
    /// which variant the cell has now. Among regions, the least variant counts until the cell is next hit, so
    /// that no more of it is lent than there is.
    fn under_present_variant<'l>(
        &self,
        limit: &'l RestoredLimit<'_>,
        algorithm: &Algorithm,
        state: State,
        salt: u32,
    ) -> (&'l LiveVariant, State) {
        if let Some(live) = limit.all.iter().find(|live| live.local.at(salt) == algorithm) {
            return (live, state);
        }
        let live = if self.is_shared() { limit.least(salt) } else { &limit.all[0] };
        (live, live.local.at(salt).convert_sometime(algorithm, state.as_slice(), limit.now))
    }

    /// A cell of which something is given away, with its account. `state` is a state under `algorithm`.
    fn with_restored_account(
        &self,
        limit: &RestoredLimit<'_>,
        tag: CellTag,
        kept: &CellRecord,
        algorithm: &Algorithm,
        state: &State,
    ) -> HeapCell {
        let least = limit.least(tag.salt());
        let context = CellContext {
            global: &least.global,
            local: &least.local,
            salt: tag.salt(),
            which: None,
            in_force: true,
        };
        let is_forgotten = limit.lost.is_some();
        let mut account = Account::restored(&context, kept.pledge(), limit.now, is_forgotten);
        let state = account.algorithm.resize(algorithm, state.as_slice(), limit.now);
        if self.leases.is_some() {
            account.count_given_before(state.as_slice(), &context, is_forgotten);
        }
        let mut cell = HeapCell::restored(state.as_slice().to_vec());
        cell.forget_held();
        cell.account = Some(Box::new(account));
        self.calls.note_found(CellKey { slot: limit.slot, tag });
        cell
    }
}
