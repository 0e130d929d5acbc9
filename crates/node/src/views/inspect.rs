//! What a region has of one cell at one instant, for tests and for operators who ask why.

use acequia_limits::{Algorithm, CellTag, Descriptor, LimitId, Now, Override, Part, selector::Canonical};
use acequia_rights::{HeldLoan, Incarnation, LentLoan, MemberId, Sessions, VersionId};

use crate::{
    Active, Catalogue, LimitAnswer, Node,
    catalogue::{VariantKey, local::Local},
    cell::{CellKey, account::Account},
    journal::{HeapCell, forgotten::MaybeForgotten},
    journal_tag, shard_of,
};

/// What a region has of one cell. Inspection changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// The region's standing share, by the versions that it knows.
    pub standing: Part,
    /// The part that the region may use: its standing share, plus what it holds of other regions or of its
    /// own pool, minus what it has lent.
    pub effective: Part,
    /// The part that is lent and has not come back.
    pub lent: Part,
    /// The part held from other regions.
    pub held: Part,
    /// The end of the open window; 0 if there is none, or nothing has moved yet.
    pub window_ns: u64,
    /// The end of the window for which transfers came before it opened; 0 if there is none.
    pub next_window_ns: u64,
    /// The units that the region may use in that window.
    pub next_units: u64,
    /// Units that could be charged at this moment, without those that are leased or still on their way.
    pub left: u64,
    /// When the first held loan ends, unless it is renewed: steady clock; 0 if none is held.
    pub held_until_ns: u64,
}

/// How this node sees another region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerView {
    /// The incarnation that was heard last; its number is 0 if none ever was.
    pub incarnation: Incarnation,
    /// The version id of the catalogue that the region reported.
    pub version_id: VersionId,
    /// When the region was last heard: steady clock; `None` if never.
    pub heard_ns: Option<u64>,
    /// The round-trip time in nanoseconds; `None` if it was not measured.
    pub round_ns: Option<u64>,
    /// Whether the region was heard so recently that units are lent to it.
    pub is_reached: bool,
    /// How far the region's system wall clock is ahead of the wall clock that this node uses, and the largest
    /// error of that difference, both in nanoseconds. `None` if not measured.
    pub wall_ahead_ns: Option<(i64, u64)>,
    /// Loans given to the region, over the cells that were inspected.
    pub lent: u64,
    /// Loans held from the region, over the cells that were inspected.
    pub borrowed: u64,
}

/// What a region has of a limit, over the cells that are shared actively.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitView {
    /// The limit's index in [`crate::Catalogue::limits`].
    pub limit: usize,
    /// The number of cells.
    pub cells: u64,
    /// The sum of what the region has of the cells. The window is the one that ends last.
    pub total: Holding,
    /// Units asked for per second, in thousandths.
    pub demand_milli: u64,
}

/// The result of [`Node::cell`]: what a region has of a cell, and what it knows of other regions' parts.
#[derive(Clone, Debug, PartialEq)]
pub struct CellView {
    /// The cell's variant, of all regions together, from its override if there is one.
    pub algorithm: Algorithm,
    /// What the region has.
    pub holding: Holding,
    /// Units asked for per second, in thousandths.
    pub demand_milli: u64,
    /// The loans that the region gave and holds.
    pub loans: Vec<LoanView>,
    /// The last reports of other regions on the cell.
    pub reports: Vec<ReportView>,
}

/// A loan that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoanView {
    /// The other side.
    pub peer: Incarnation,
    /// Whether this region gave the loan.
    pub is_lent: bool,
    /// The part that is lent.
    pub part: Part,
    /// When the loan ends here, if it is not renewed: steady clock.
    pub ends_ns: u64,
}

/// A region's last report on a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportView {
    /// The region.
    pub of: MemberId,
    /// When the report was made: steady clock.
    pub said_ns: u64,
    /// The part that the region may use: a part of the rate if the limit has a rate, otherwise units.
    pub holds: Part,
    /// Units that could be charged there then; `None` if the report was for another window.
    pub left: Option<u64>,
    /// Units asked for per second, in thousandths.
    pub demand_milli: u64,
    /// Units that the region owes: the others keep as many back.
    pub owed: u64,
}

/// The result of [`Node::overview`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// The other regions.
    pub peers: Vec<PeerView>,
    /// Every limit of the catalogue, in its order.
    pub limits: Vec<LimitView>,
    /// The number of cells that were not inspected, because there are too many.
    pub skipped: u64,
}

/// The most cells that an overview inspects.
const OVERVIEW_CELLS_MAX: usize = 4_096;

impl Node {
    /// The version id of the catalogue that this node uses, and the last one that it has acknowledged on its
    /// disk.
    pub fn version_ids(&self) -> (VersionId, VersionId) {
        let Some(sharing) = self.lock_sharing() else { return Default::default() };
        (sharing.version_id(), sharing.acked())
    }

    /// The batch of rows that contains this node's total charges ([`Node::charged_by`]): others hear of them
    /// when the batch is on disk.
    pub fn charged_in(&self) -> u64 {
        self.lock_sharing().map_or(0, |sharing| sharing.charged_in())
    }

    /// Whether a loan of the cell that counts these values, or a window, has ended and nobody has asked
    /// since. Until somebody does, the cell keeps its old state, and [`Holding::left`] may exceed what could
    /// be charged.
    pub fn is_due(&self, limit: LimitId, values: &Descriptor<'_>, now: Now) -> bool {
        let catalogue = self.catalogue();
        let now = self.not_before(now);
        let active = catalogue.active_named(limit);
        let Some((slot, tag)) = active.and_then(|it| Some((it.slot, it.cell_of(values, now)?.0))) else {
            return false;
        };
        let cells = self.shards[shard_of(tag)].lock();
        let account = cells.table.find(tag, slot).and_then(|place| cells.account(place));
        account.is_some_and(|account| account.is_due(now))
    }

    /// Whether a batch is on disk, as far as this node was told.
    pub fn is_committed(&self, batch: u64) -> bool {
        self.progress().committed >= batch
    }

    /// What this region has of a cell. `None` if the limit is not in force here. If the cell does not exist,
    /// the result is the least that it may have.
    pub fn holding(&self, limit: LimitId, tag: CellTag, now: Now) -> Option<Holding> {
        self.holding_of(CellKey { slot: self.slot_of(limit)?, tag }, None, now)
    }

    /// As [`Node::holding`], for the cell that these values have in a role
    /// ([`acequia_limits::classes::Classes::roles`]; 0 if there are none). If the cell does not exist, the
    /// result is by its own variant.
    pub fn holding_as(
        &self,
        limit: LimitId,
        tag: CellTag,
        values: &Descriptor<'_>,
        role: usize,
        now: Now,
    ) -> Option<Holding> {
        let (slot, now) = (self.slot_of(limit)?, self.not_before(now));
        let catalogue = self.catalogue();
        let active = catalogue.active_of(slot)?;
        let variant = active.variant_of(active.limit.variant_for(values, now.wall_ns).index(), role);
        self.holding_of(CellKey { slot, tag }, Some(variant), now)
    }

    /// As [`Node::holding`], for the cell that counts these values of a limit's `by`. `None` if a value is
    /// missing, or each class has its own cell.
    pub fn holding_named(&self, limit: LimitId, values: &Descriptor<'_>, now: Now) -> Option<Holding> {
        let catalogue = self.catalogue();
        let now = self.not_before(now);
        let active = catalogue.active_named(limit)?;
        let (tag, variant) = active.cell_of(values, now)?;
        self.holding_of(CellKey { slot: active.slot, tag }, Some(variant), now)
    }

    /// What a region has of a cell; if the cell does not exist, by the variant `absent`.
    fn holding_of(&self, key: CellKey, absent: Option<u16>, now: Now) -> Option<Holding> {
        let holding = self.holding_by_wall(key, absent, now)?;
        let left = if self.is_wall_believed() { holding.left } else { 0 };
        Some(Holding { left, ..holding })
    }

    /// What a region has of a cell by this wall clock, even if no other clock has agreed with it.
    fn holding_by_wall(
        &self,
        CellKey { slot, tag }: CellKey,
        absent: Option<u16>,
        now: Now,
    ) -> Option<Holding> {
        let catalogue = self.catalogue();
        catalogue.active_of(slot)?;
        let now = self.not_before(now);
        let cells = self.shards[shard_of(tag)].lock();
        let salt = tag.salt();
        let place = cells.table.find(tag, slot);
        let variant = match place {
            Some(place) => catalogue.heir(slot, cells.table.at(place), salt, now)?.0,
            None => absent.or_else(|| catalogue.newest_variant(slot, salt))?,
        };
        let cell = InspectedCell {
            node: self,
            global: catalogue.global(slot, variant)?,
            local: catalogue.local(slot, variant)?,
            salt,
            state: place.map_or(&[], |place| cells.state(cells.table.at(place))),
            leased: place.map_or(0, |place| cells.leased(place)),
            now,
        };
        if let Some(account) = place.and_then(|place| cells.account(place)) {
            return Some(cell.holding_by(account));
        }
        let standing = cell.standing();
        let left = if standing == Part::default() && self.is_shared() {
            0
        } else if place.is_some() {
            cell.left_of(cell.local.at(salt))
        } else {
            self.left_of_new(&catalogue, CellKey { slot, tag }, variant, cell.local.at(salt), now)
        };
        let window_ns = cell.window_ns();
        Some(Holding { standing, effective: standing, window_ns, left, ..Holding::default() })
    }

    /// The units of a new cell of this variant. The cell begins with what others, or an earlier process,
    /// spent in the shared cell.
    fn left_of_new(
        &self,
        catalogue: &Catalogue,
        CellKey { slot, tag }: CellKey,
        variant: u16,
        algorithm: &Algorithm,
        now: Now,
    ) -> u64 {
        let (key, salt) = (VariantKey { slot, variant }, tag.salt());
        let state = self.initial(&MaybeForgotten { catalogue, key, algorithm, salt, now });
        let own = algorithm.available(state.as_slice(), now, salt);
        let shared = self.overflow.lock();
        let shared = shared.get(&key);
        let theirs = |cell: &HeapCell| algorithm.available(&cell.state, now, salt);
        shared.map_or(own, |cell| own.min(theirs(cell)))
    }
}

/// A cell under its shard's lock, and the variant by which it is inspected.
struct InspectedCell<'a> {
    node: &'a Node,
    /// The variant of all regions together.
    global: &'a Algorithm,
    /// The variant as this region enforces it.
    local: &'a Local,
    salt: u32,
    /// The cell's state; empty if there is no cell.
    state: &'a [u64],
    leased: u64,
    now: Now,
}

impl InspectedCell<'_> {
    /// The end of the open window; 0 if there is none.
    fn window_ns(&self) -> u64 {
        match self.local.at(self.salt) {
            Algorithm::FixedWindow(window) => window.older_end(self.state, self.now.wall_ns, self.salt),
            _ => 0,
        }
    }

    /// The standing share now.
    fn standing(&self) -> Part {
        let window_ns = self.window_ns();
        if self.local.gives_in(window_ns) { self.standing_in(window_ns) } else { Part::default() }
    }

    /// The standing share in the window that ends at `end_ns`.
    fn standing_in(&self, end_ns: u64) -> Part {
        match self.node.owns_nothing() {
            Some(_) => Part::default(),
            None => self.local.part_of(self.salt, end_ns),
        }
    }

    /// Units that could be charged now.
    fn left_of(&self, algorithm: &Algorithm) -> u64 {
        algorithm.available(self.state, self.now, self.salt).saturating_sub(self.leased)
    }

    /// What the region has of a cell that has an account.
    fn holding_by(&self, account: &Account) -> Holding {
        let (standing, now_ns) = (self.standing(), self.now.steady_ns);
        let sessions = self.node.sessions();
        let book = account.book();
        let still_lent = |lent: &&LentLoan| sessions.reclaim_end(lent) > now_ns;
        let still_held = |held: &&HeldLoan| sessions.end_of(held) > now_ns;
        let lent = total(book.lent().iter().filter(still_lent).map(|lent| lent.part));
        let held = total(book.held().iter().filter(still_held).map(|held| held.part));
        let ends = book.held().iter().filter(still_held).map(|held| sessions.end_of(held));
        let pooled = if account.pooled_until_ns() > now_ns { account.pooled() } else { Part::default() };
        let mut holding = Holding {
            standing,
            effective: Part {
                rate: (standing.rate + held.rate + pooled.rate).saturating_sub(lent.rate),
                units: (standing.units + held.units + pooled.units).saturating_sub(lent.units),
            },
            lent,
            held,
            window_ns: self.window_ns(),
            left: self.left_of(&account.algorithm),
            held_until_ns: ends.min().unwrap_or(0),
            ..Holding::default()
        };
        if let Algorithm::FixedWindow(_) = self.global {
            self.add_windows(account, &mut holding);
        }
        holding
    }

    /// Adds the units that the region may use in the open window, and in the next one.
    fn add_windows(&self, account: &Account, holding: &mut Holding) {
        let window_ns = holding.window_ns;
        let units = match account.limit_of(window_ns, holding.standing.units) {
            _ if !self.local.gives_in(window_ns) => 0,
            Some(units) => units,
            None if window_ns < account.window() => 0,
            None => holding.standing.units,
        };
        holding.effective.units = self.local.usable(self.global, units);
        let next_ns = account.next_window();
        if next_ns > window_ns {
            let standing = self.standing_in(next_ns).units;
            let units = match self.local.gives_in(next_ns) {
                true => account.limit_of(next_ns, standing).unwrap_or(standing),
                false => 0,
            };
            holding.next_window_ns = next_ns;
            holding.next_units = self.local.usable(self.global, units);
        }
    }
}

impl Active {
    /// The cell that counts these values, and its variant.
    fn cell_of(&self, values: &Descriptor<'_>, now: Now) -> Option<(CellTag, u16)> {
        let by = self.limit.by.iter();
        let all: Option<Vec<_>> = match self.limit.path {
            None => by.map(|by| by.canonical(values)).collect(),
            // The values are those that count, and not the whole path.
            Some(_) => by.map(|by| values.value(by.key.as_bytes()).map(Canonical::Value)).collect(),
        };
        let tag = match all?.as_slice() {
            [one] => self.tagger.one(one.bytes()),
            all => self.tagger.all(all.iter().map(|value| value.bytes())),
        };
        if self.limit.separate().is_some() {
            // Each class has its own cell.
            return None;
        }
        let whose = self.limit.variant_for(values, now.wall_ns);
        let tag = if whose.is_apart() { self.tagger.apart(tag) } else { tag };
        Some((tag, self.variant_of(whose.index(), 0)))
    }
}

impl Catalogue {
    /// The override whose variant the answer's cell has; `None` if the cell has the limit's own variant.
    pub fn override_of(&self, answer: &LimitAnswer) -> Option<&Override> {
        let active = &self.limits[answer.limit as usize];
        let place = active.all_variants().position(|variant| variant == answer.variant)?;
        // The limit's own variants come first.
        let number = (place / active.limit.variants_each()).checked_sub(1)?;
        active.limit.overrides.get(number)
    }
}

/// The result of [`Node::cell_named`].
#[derive(Clone, Debug, PartialEq)]
pub struct NamedCell {
    /// The cell, as [`Node::cell`] shows it.
    pub view: CellView,
    /// When the open window ends: wall clock; 0 if there is none.
    pub window_ends_ns: u64,
}

impl Node {
    /// What this region has of an answer's cell, and what it knows of other regions' parts. `None` if the
    /// limit is not in force any more.
    pub fn cell(&self, answer: &LimitAnswer, of: &Catalogue, now: Now) -> Option<CellView> {
        let slot = of.limits[answer.limit as usize].slot;
        self.view_of(CellKey { slot, tag: answer.tag }, answer.variant, of, now)
    }

    /// As [`Node::cell`], for the cell that counts these values of a limit's `by`. `None` if the limit is not
    /// in force, or a value is missing.
    pub fn cell_named(&self, limit: LimitId, values: &Descriptor<'_>, now: Now) -> Option<NamedCell> {
        let catalogue = self.catalogue();
        let now = self.not_before(now);
        let active = catalogue.active_named(limit).filter(|active| active.is_in_force(now.wall_ns))?;
        let (tag, variant) = active.cell_of(values, now)?;
        let view = self.view_of(CellKey { slot: active.slot, tag }, variant, &catalogue, now)?;
        let window_ends_ns = match &view.algorithm {
            Algorithm::FixedWindow(window) => window.end_after(now.wall_ns, tag.salt()),
            _ => 0,
        };
        Some(NamedCell { view, window_ends_ns })
    }

    fn view_of(
        &self,
        CellKey { slot, tag }: CellKey,
        variant: u16,
        of: &Catalogue,
        now: Now,
    ) -> Option<CellView> {
        let algorithm = of.global(slot, variant)?.clone();
        let has_rate = algorithm.has_rate();
        let holding = self.holding_of(CellKey { slot, tag }, Some(variant), now)?;
        let (demand_milli, loans, reports) = Default::default();
        let mut view = CellView { algorithm, holding, demand_milli, loans, reports };
        if let Some(sharing) = self.lock_sharing() {
            (view.demand_milli, view.reports) =
                sharing.reports_of(CellKey { slot, tag: journal_tag(tag) }, has_rate, now);
        }
        let cells = self.shards[shard_of(tag)].lock();
        let place = cells.table.find(tag, slot);
        let Some(account) = place.and_then(|place| cells.account(place)) else { return Some(view) };
        let sessions = self.sessions();
        let lent = account.book().lent().iter().map(|lent| LoanView {
            peer: lent.to,
            is_lent: true,
            part: lent.part,
            ends_ns: sessions.reclaim_end(lent),
        });
        let held = account.book().held().iter().map(|held| LoanView {
            peer: held.from,
            is_lent: false,
            part: held.part,
            ends_ns: sessions.end_of(held),
        });
        view.loans = lent.chain(held).filter(|loan| loan.ends_ns > now.steady_ns).collect();
        Some(view)
    }

    /// The other regions, without counts of loans.
    pub fn peers(&self, now: Now) -> Vec<PeerView> {
        self.lock_sharing().map_or_else(Vec::new, |sharing| sharing.seen(now, 0).0)
    }

    /// This node's view of the other regions, and what it has. At most 4 096 shared cells are inspected.
    pub fn overview(&self, now: Now) -> Overview {
        let catalogue = self.catalogue();
        let Some(sharing) = self.lock_sharing() else {
            return Overview::default();
        };
        let (mut peers, cells, skipped) = sharing.seen(now, OVERVIEW_CELLS_MAX);
        drop(sharing);
        let view = |limit| LimitView { limit, cells: 0, total: Holding::default(), demand_milli: 0 };
        let mut limits: Vec<LimitView> = (0..catalogue.limits.len()).map(view).collect();
        for (key, demand_milli) in &cells {
            let place = catalogue.id(key.slot).and_then(|id| catalogue.place_of(id));
            let Some(view) = place.map(|at| &mut limits[at as usize]) else { continue };
            self.add_cell(view, &catalogue, *key, now);
            view.demand_milli = view.demand_milli.saturating_add(*demand_milli);
            self.count_loans(&mut peers, *key);
        }
        // The single cell of a limit that counts by nothing is always shown.
        for view in limits.iter_mut().filter(|view| view.cells == 0) {
            let active = &catalogue.limits[view.limit];
            if active.limit.by.is_empty() {
                let tag = active.tagger.all(std::iter::empty::<&[u8]>());
                self.add_cell(view, &catalogue, CellKey { slot: active.slot, tag }, now);
            }
        }
        Overview { peers, limits, skipped }
    }

    fn add_cell(
        &self,
        view: &mut LimitView,
        catalogue: &Catalogue,
        CellKey { slot, tag }: CellKey,
        now: Now,
    ) {
        let holding = catalogue.id(slot).and_then(|limit| self.holding(limit, tag, now));
        let Some(holding) = holding else { return };
        let sum = |a: Part, b: Part| Part {
            rate: a.rate.saturating_add(b.rate),
            units: a.units.saturating_add(b.units),
        };
        let total = &mut view.total;
        view.cells += 1;
        total.standing = sum(total.standing, holding.standing);
        total.effective = sum(total.effective, holding.effective);
        total.lent = sum(total.lent, holding.lent);
        total.held = sum(total.held, holding.held);
        total.left = total.left.saturating_add(holding.left);
        total.window_ns = total.window_ns.max(holding.window_ns);
        if holding.held_until_ns > 0 {
            total.held_until_ns = match total.held_until_ns {
                0 => holding.held_until_ns,
                first => first.min(holding.held_until_ns),
            };
        }
    }

    fn count_loans(&self, peers: &mut [PeerView], CellKey { slot, tag }: CellKey) {
        let cells = self.shards[shard_of(tag)].lock();
        let place = cells.table.find(tag, slot);
        let Some(account) = place.and_then(|place| cells.account(place)) else { return };
        for peer in peers {
            peer.lent +=
                account.book().lent().iter().filter(|lent| lent.to == peer.incarnation).count() as u64;
            peer.borrowed +=
                account.book().held().iter().filter(|held| held.from == peer.incarnation).count() as u64;
        }
    }
}

fn total(parts: impl Iterator<Item = Part>) -> Part {
    parts
        .fold(Part::default(), |sum, part| Part { rate: sum.rate + part.rate, units: sum.units + part.units })
}
