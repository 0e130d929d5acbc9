//! Takes the frames of peers, entry by entry. A rule is asked before each entry counts, and an entry that the
//! rule forbids changes nothing.

use acequia_limits::{Now, Part};
use acequia_rights::{
    Incarnation, MemberId, Refusal, Session, Version,
    loan::Grant,
    mutation::{Mutation, mutated},
    session::Heartbeat,
};
use smallvec::SmallVec;

use super::{
    CellKey, FrameFault, NO_SLOT, Sharing,
    cell::{Advertised, AskedRights, View},
    outbox::Topic,
    peer::Peer,
    wire::{self, Frame, FrameEntry, FrameHeader, Rough, ShortId},
};
use crate::{
    Catalogue, ChargeId, Node,
    cell::{
        account::{Account, CellContext, Gift, Giver, LoanId},
        locked_cell::LockedCell,
    },
    journal::HeapCell,
    settings::SETTINGS,
};

/// The cells that a frame's entries are about.
struct EntryCells {
    /// The cell of each entry, if it has one that is known here.
    keys: Vec<Option<CellKey>>,
    /// Whether an entry that may not be lost is about a cell that nobody introduced.
    is_lost: bool,
}

/// An entry that moves rights in a cell.
struct RightsEntry<'a> {
    node: &'a Node,
    catalogue: &'a Catalogue,
    from: Incarnation,
    key: CellKey,
    /// Whether this node owns its shares, and the sender those that it gives.
    owned: bool,
    now: Now,
}

impl Sharing {
    /// Takes a frame that came from a member.
    pub(crate) fn handle(
        &mut self,
        node: &Node,
        from: MemberId,
        bytes: &[u8],
        raw: Now,
    ) -> Result<(), FrameFault> {
        self.traffic.frames_in += 1;
        let now = node.not_before(raw);
        let taken = self.take(node, from, bytes, raw, now);
        self.traffic.frames_refused += u64::from(taken.is_err());
        taken
    }

    /// Clocks are compared as they read (`raw`), and windows go by the corrected clock (`now`).
    fn take(
        &mut self,
        node: &Node,
        from: MemberId,
        bytes: &[u8],
        raw: Now,
        now: Now,
    ) -> Result<(), FrameFault> {
        let Frame { header, entries } = wire::read(bytes)?;
        self.admit(from, &header, raw)?;
        let began_anew = self.hear_process(node, &header, now);
        self.hear_header(&header, began_anew, raw);
        self.compare_versions(&header, from);
        let cells = self.name_cells(node, &header, &entries);
        let Some(peer) = self.peers.get_mut(&from) else { return Ok(()) };
        // While the wall is not believed, no cell is changed: entries about cells come again.
        let is_early = !node.is_wall_believed() && !entries.iter().all(FrameEntry::is_of_no_cell);
        if cells.is_lost || is_early {
            peer.owes_reply |= is_early;
            self.take_mending(node, &header, entries, now);
            return Ok(());
        }
        if !peer.received.note(header.number) {
            return Ok(());
        }
        peer.owes_reply |= !entries.is_empty();
        for (entry, key) in entries.into_iter().zip(cells.keys) {
            if self.take_entry(node, &header, key, entry, now).is_err() {
                self.traffic.entries_refused += 1;
            }
        }
        Ok(())
    }

    /// Refuses a sender that is not who it says, that is closed, or that another process or incarnation
    /// replaced.
    fn admit(&mut self, from: MemberId, header: &FrameHeader, raw: Now) -> Result<(), FrameFault> {
        let sender = header.incarnation;
        if sender.member != from || from == self.me().member {
            return Err(FrameFault::Impostor { region: from, said: sender });
        }
        if header.received.incarnation > self.me().number {
            self.process.later = self.process.later.max(Some(header.received.incarnation));
        }
        if self.versions.closed(sender) && !self.is_leaving(sender) {
            return Err(FrameFault::Closed(sender));
        }
        let named = |incarnation: Incarnation| {
            self.versions.version().is_some_and(|version| names(version, incarnation))
        };
        let peer = self.peers.entry(from).or_insert_with(|| Peer::new(sender));
        if is_of_earlier_process(header, peer) {
            return Err(FrameFault::Late(sender));
        }
        // An incarnation that the catalogue does not know cannot displace one that the catalogue names. The
        // unknown one is sent the catalogue once a version names it.
        if sender != peer.incarnation
            && named(peer.incarnation)
            && !named(sender)
            && peer.is_reached(raw.steady_ns, SETTINGS.sharing.reach_ns)
        {
            return Err(FrameFault::Unnamed(sender));
        }
        Ok(())
    }

    /// Hears the sender's process, which may be a new one. Returns whether it is.
    fn hear_process(&mut self, node: &Node, header: &FrameHeader, now: Now) -> bool {
        let sender = header.incarnation;
        let drift_ppm = self.drift_ppm();
        let Some(peer) = self.peers.get_mut(&sender.member) else { return false };
        let began_anew = (sender, header.process_number) != (peer.incarnation, peer.process_number);
        if began_anew {
            peer.begin_anew(sender, header.process_number);
        }
        let mut sessions = node.sessions_mut();
        if began_anew {
            // Among a member's incarnations that own nothing and are not closed, only the present one needs a
            // session.
            let is_other =
                |incarnation: &Incarnation| incarnation.member == sender.member && *incarnation != sender;
            let versions = &self.versions;
            sessions.retain(|incarnation, _| {
                !is_other(incarnation) || versions.closed(*incarnation) || versions.owns(*incarnation)
            });
        }
        let session = sessions.entry(sender).or_insert_with(|| Session::new(drift_ppm));
        session.set_drift_ppm(drift_ppm);
        let heartbeat = Heartbeat { process_number: header.process_number, number: header.heartbeat };
        session.hear(heartbeat, now.steady_ns);
        began_anew
    }

    /// Takes what a frame states about its sender.
    fn hear_header(&mut self, header: &FrameHeader, began_anew: bool, raw: Now) {
        let from = header.incarnation.member;
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let last_frame = peer.outbox.last_number();
        if self.process.is_older_than(header, last_frame, self.lending.numbers.reserved) {
            self.process.restored_disk = true;
        }
        let adopted = header.version_id > peer.version_id;
        if adopted || began_anew || !peer.is_reached(raw.steady_ns, SETTINGS.sharing.reach_ns) {
            peer.resync.begin();
        }
        peer.hear(header, self.process.is_answered_by(header), raw);
        if adopted {
            // The peer could not count acknowledgements that came before it had the version.
            self.tell_all_acks(from);
        }
        if began_anew {
            for active_cell in self.cells.values_mut() {
                active_cell.advertised = None;
                // The new process counts its frames anew.
                active_cell.views.retain(|view| view.of != from);
            }
            self.tell_all_acks(from);
        }
    }

    /// Finds the cells that the entries of a frame are about, and asks for the names of unknown ones.
    fn name_cells(&mut self, node: &Node, header: &FrameHeader, entries: &[FrameEntry]) -> EntryCells {
        let mut cells = EntryCells { keys: Vec::with_capacity(entries.len()), is_lost: false };
        let same_catalogue = header.version_id == self.version_id();
        // A number that an earlier process of this node gave may mean another cell by now.
        let knows_ours = self.process.is_answered_by(header);
        let Some(peer) = self.peers.get_mut(&header.incarnation.member) else { return cells };
        let mut strangers: SmallVec<[ShortId; 4]> = SmallVec::new();
        let mut unnamed: SmallVec<[ShortId; 4]> = SmallVec::new();
        for entry in entries {
            let mut key = None;
            if let FrameEntry::Introduce { id, limit, tag, which } = entry {
                // A limit that was never in force here has no slot: entries about its cells are refused.
                let slot = node.slot_of(*limit);
                let tag = crate::journal_tag(*tag);
                peer.outbox.names.introduce(*id, CellKey { slot: slot.unwrap_or(NO_SLOT), tag });
                if let Some(slot) = slot
                    && let Some(variant) = *which
                    && same_catalogue
                    && self.variants.len() < SETTINGS.sharing.active_cells_max
                {
                    self.variants.insert(CellKey { slot, tag }, variant);
                }
            } else if let Some(id) = entry.cell() {
                key = peer.outbox.names.cell(id).filter(|_| id.0 & 1 == 0 || knows_ours);
                match key {
                    None => {
                        // An entry about a cell that nobody introduced would be lost if the frame were
                        // confirmed.
                        cells.is_lost |= !is_news(entry);
                        strangers.push(id);
                    }
                    // The cell shall be introduced again: the limit may be known by then.
                    Some(CellKey { slot: NO_SLOT, .. }) => unnamed.push(id),
                    Some(_) => {}
                }
            }
            cells.keys.push(key.filter(|key| key.slot != NO_SLOT));
        }
        for id in strangers.into_iter().chain(unnamed) {
            peer.outbox.tell(Topic::Unknown(id), FrameEntry::Unknown { id }, 0);
        }
        cells
    }

    /// Takes the entries of a frame that is not confirmed, if they mend what is in its way. This node does
    /// not know a limit yet, forgot a number, or has no wall that it believes. The frame comes again.
    /// Without this, two such frames could wait for each other for ever.
    fn take_mending(&mut self, node: &Node, header: &FrameHeader, entries: Vec<FrameEntry>, now: Now) {
        for entry in entries {
            if matches!(
                entry,
                FrameEntry::Version(..)
                    | FrameEntry::Acked { .. }
                    | FrameEntry::Unknown { .. }
                    | FrameEntry::Ping
            ) {
                let _known = self.take_entry(node, header, None, entry, now);
            }
        }
    }

    fn take_entry(
        &mut self,
        node: &Node,
        header: &FrameHeader,
        key: Option<CellKey>,
        entry: FrameEntry,
        now: Now,
    ) -> Result<(), Refusal> {
        let region = header.incarnation.member;
        // A leaving incarnation is still heard: it must learn that it leaves, and say so. Its loans and
        // transfers are refused.
        let goes_on = matches!(
            entry,
            FrameEntry::Introduce { .. }
                | FrameEntry::Unknown { .. }
                | FrameEntry::Acked { .. }
                | FrameEntry::Version(..)
                | FrameEntry::Return { .. }
        );
        if self.versions.closed(header.incarnation) && !goes_on {
            return Err(Refusal::Stale);
        }
        match (entry, key) {
            (FrameEntry::Introduce { .. } | FrameEntry::Ping, _) => {}
            (FrameEntry::Unknown { id }, _) => {
                if let Some(peer) = self.peers.get_mut(&region) {
                    peer.outbox.names.unknown(id);
                }
            }
            (FrameEntry::Advertisement { demand, holds, left, stands, owed, .. }, Some(key)) => {
                let said = Advertised { demand, holds, left, stands, owed };
                return self.hear_advertisement(header, key, said, now);
            }
            (FrameEntry::Short { units, .. }, Some(key)) => self.hear_short(header, key, units, now),
            (FrameEntry::Ask { end_ns, units, .. }, Some(key)) => {
                self.hear_ask(key, AskedRights { by: region, end_ns, units, at_ns: now.steady_ns });
            }
            (FrameEntry::Refused { number, .. }, Some(key)) => {
                end_loan(node, header.incarnation, key, number, now);
            }
            (FrameEntry::Renew(renew), _) => {
                let mut sessions = node.sessions_mut();
                let session = sessions.get_mut(&header.incarnation).ok_or(Refusal::Unheard)?;
                session.take_renew(&renew, &self.process.heartbeats.sent, now.steady_ns)?;
            }
            (FrameEntry::Version(version, seal), _) => self.hear_version(*version, seal)?,
            (FrameEntry::Acked { incarnation, ack, seal }, _) => {
                self.hear_ack(incarnation, ack, seal, header.incarnation, now)?;
            }
            (FrameEntry::Usage { limit, incarnation, spent, refunded }, _) => {
                if incarnation != header.incarnation || refunded > spent || node.slot_of(limit).is_none() {
                    return Err(Refusal::Malformed);
                }
                self.usage.learn(incarnation, limit, spent, refunded);
            }
            // The caller was told that the settlement is on its way, and nobody waits for the result.
            (FrameEntry::Settle { id, cost }, _) => {
                // Nobody waits for the outcome.
                node.settle_sometime(ChargeId(id), cost, now);
            }
            (entry @ FrameEntry::Forward { .. }, _) => self.take_forward(node, header, &entry, now)?,
            (FrameEntry::ForwardReply { number, units }, _) => {
                self.take_forward_reply(node, header, number, units, now)?;
            }
            (FrameEntry::Digest(digest), _) => {
                if let Some(peer) = self.peers.get_mut(&region) {
                    peer.resync.compare(*digest);
                }
            }
            (FrameEntry::Differs(buckets), _) => {
                if let Some(peer) = self.peers.get_mut(&region) {
                    peer.resync.tell_again(buckets);
                }
                self.tell_usage_again(region, buckets);
            }
            (entry, Some(key)) => self.take_right(node, header, key, entry, now)?,
            (_, None) => return Err(Refusal::Unknown(0)),
        }
        Ok(())
    }

    /// Notes how a cell is doing at the sender.
    fn hear_advertisement(
        &mut self,
        header: &FrameHeader,
        key: CellKey,
        said: Advertised,
        now: Now,
    ) -> Result<(), Refusal> {
        let nobody_asks = said.demand == Rough::default() && said.owed == Rough::default();
        if nobody_asks && !self.cells.is_active(key) {
            return Ok(());
        }
        let at_ns = now.steady_ns;
        let Some(active_cell) = self.cells.wake(key, at_ns) else { return Ok(()) };
        let was_idle = active_cell.is_idle(at_ns);
        let view = active_cell.view_mut(header.incarnation.member);
        if header.number < view.frame {
            return Err(Refusal::Stale);
        }
        let is_more = said.demand > view.said.demand || said.owed > view.said.owed;
        let short = if view.short_frame == header.number { view.short } else { 0 };
        *view = View { said, short, at_ns, frame: header.number, ..*view };
        if is_more {
            active_cell.activity.note_busy(at_ns);
        }
        if was_idle && !active_cell.is_idle(at_ns) {
            // While nobody waited for the cell, nothing was said about it.
            active_cell.advertised = None;
        }
        Ok(())
    }

    /// Notes that a request at the sender needs more units at once than it can hold.
    fn hear_short(&mut self, header: &FrameHeader, key: CellKey, units: u64, now: Now) {
        let Some(active_cell) = self.cells.wake(key, now.steady_ns) else { return };
        let view = active_cell.view_mut(header.incarnation.member);
        if header.number >= view.frame.max(view.short_frame) {
            (view.short, view.short_frame) = (units, header.number);
        }
        active_cell.activity.note_busy(now.steady_ns);
    }

    /// Notes a question for rights, which the next rebalance answers: the last one of each member.
    fn hear_ask(&mut self, key: CellKey, asked: AskedRights) {
        self.cells.wake(key, asked.at_ns);
        if let Some(active_cell) = self.cells.get_mut(key)
            && active_cell.window.asked.len() < self.peers.len()
        {
            active_cell.window.asked.retain(|before| before.by != asked.by);
            active_cell.window.asked.push(asked);
        }
    }

    /// Takes an entry that moves rights.
    fn take_right(
        &mut self,
        node: &Node,
        header: &FrameHeader,
        key: CellKey,
        entry: FrameEntry,
        now: Now,
    ) -> Result<(), Refusal> {
        let from = header.incarnation;
        // A member without a share has nothing to give or to lend.
        let moves_rights = matches!(entry, FrameEntry::Grant { .. } | FrameEntry::Give { .. });
        let owned = self.owns_nothing().is_none() && (!moves_rights || self.versions.owns(from));
        let catalogue = node.catalogue();
        let which = self.variant_told(key, self.cells.get(key));
        let locked_cell = LockedCell { node, catalogue: &catalogue, key, now, which };
        let granted = if let FrameEntry::Grant { grant, .. } = &entry { Some(grant.number) } else { None };
        let brings_units = brings_units(&entry);
        let at = RightsEntry { node, catalogue: &catalogue, from, key, owned, now };
        let result = locked_cell.at(owned, |context, cell| self.move_rights(&at, context, cell, entry));
        let result = result.unwrap_or(Err(Refusal::Unknown(0)));
        if let Some(number) = granted
            && result.is_err_and(|refusal| refusal != Refusal::Duplicate(number))
            && let Some(peer) = self.peers.get_mut(&from.member)
        {
            let entry = FrameEntry::Refused { id: ShortId::default(), number };
            peer.outbox.tell(Topic::Refused(key, number), entry, 0);
        }
        match &result {
            Ok(()) => {
                self.traffic.borrowed += u64::from(granted.is_some());
                self.cells.wake(key, now.steady_ns);
                if brings_units {
                    node.remote_supply.tell();
                    // A mate's forward may wait for the units.
                    node.forwards.call();
                }
            }
            Err(Refusal::RestoredDisk { .. }) => self.process.restored_disk = true,
            // The account may have been opened for this entry.
            Err(_) if owned => drop(self.cells.wake(key, now.steady_ns)),
            Err(_) => {}
        }
        result
    }

    /// Moves the rights of an entry, and queues the account for the disk.
    fn move_rights(
        &mut self,
        at: &RightsEntry<'_>,
        context: &CellContext<'_>,
        cell: &mut HeapCell,
        entry: FrameEntry,
    ) -> Result<(), Refusal> {
        let RightsEntry { node, from, key, now, .. } = *at;
        let HeapCell { account: Some(account), state, .. } = &mut *cell else {
            return Err(Refusal::Unknown(0));
        };
        account.settle(state, context, now, &*node.sessions());
        let mut sessions = node.sessions_mut();
        let session = sessions.get_mut(&from).ok_or(Refusal::Unheard)?;
        let brings_units = brings_units(&entry);
        let mut back = None;
        match entry {
            FrameEntry::Grant { grant, .. } => self.accept(at, context, account, state, &grant, session)?,
            FrameEntry::Return { back, .. } => {
                account.take_return(state, context, from, &back, session, now)?;
            }
            FrameEntry::Recall { number, .. } => {
                let durable = at.catalogue.is_durable(key.slot);
                back = Some(account.give_back(
                    state,
                    context,
                    LoanId { peer: from, number },
                    session,
                    durable,
                    now,
                )?);
            }
            FrameEntry::Give { end_ns, cumulative, .. } => {
                self.receive(at, context, account, end_ns, cumulative)?;
            }
            FrameEntry::Got { end_ns, cumulative, .. } if end_ns == account.window() => {
                account.open().own_echo(from.member, cumulative)?;
            }
            FrameEntry::Got { .. } => {}
            _ => return Err(Refusal::Malformed),
        }
        if brings_units {
            account.expect_units_anew();
        }
        let is_unwritten = account.take_unwritten();
        drop(sessions);
        let batch = if is_unwritten { node.write_account(key, cell, now) } else { 0 };
        if let Some(back) = back
            && let Some(peer) = self.peers.get_mut(&from.member)
        {
            let entry = FrameEntry::Return { id: ShortId::default(), back };
            peer.outbox.tell(Topic::Return(key, back.number), entry, batch);
        }
        Ok(())
    }

    /// Takes up a loan.
    fn accept(
        &self,
        at: &RightsEntry<'_>,
        context: &CellContext<'_>,
        account: &mut Account,
        state: &mut Vec<u64>,
        grant: &Grant,
        session: &mut Session,
    ) -> Result<(), Refusal> {
        if !at.owned || !context.in_force {
            return Err(Refusal::Unheard);
        }
        let (from, heartbeats) = (at.from, &self.process.heartbeats.sent);
        let stands = self.stands_for_region_of(from, context);
        account.accept(state, context, Giver { from, stands, heartbeats }, grant, session, at.now)
    }

    /// Takes rights that a member gave in a window, and confirms them.
    fn receive(
        &mut self,
        at: &RightsEntry<'_>,
        context: &CellContext<'_>,
        account: &mut Account,
        end_ns: u64,
        cumulative: u64,
    ) -> Result<(), Refusal> {
        let RightsEntry { node, catalogue, from, key, owned, now } = *at;
        if !owned || context.local.owns_nothing_of(end_ns) || node.is_closed(context, end_ns) {
            return Err(Refusal::Unheard);
        }
        let forgotten = node.spent_before_start(catalogue, key.slot, &account.algorithm, now);
        let stands = self.stands_for_region_of(from, context).units;
        let received =
            account.receive(context, Gift { from: from.member, end_ns, cumulative, stands }, forgotten);
        if let Some(peer) = self.peers.get_mut(&from.member) {
            // All units that ever came are confirmed, not only those of this entry: so a giver learns that
            // its disk is an old one.
            let cumulative = account.received(from.member, end_ns).max(cumulative);
            let entry = FrameEntry::Got { id: ShortId::default(), end_ns, cumulative };
            peer.outbox.tell(Topic::Got(key, end_ns), entry, 0);
        }
        received.map(|_| ())
    }

    /// The most that the region of a member may own of a cell, in any allocation that counts.
    fn stands_for_region_of(&self, from: Incarnation, context: &CellContext<'_>) -> Part {
        let (global, salt) = (context.global, context.salt);
        self.versions.stands_for_region_of(from.member, global.budget(), salt, global.has_rate())
    }
}

/// Notes that a holder does not hold a loan: it is not renewed, so that it comes back by itself.
fn end_loan(node: &Node, to: Incarnation, key: CellKey, number: u64, now: Now) {
    let catalogue = node.catalogue();
    LockedCell { node, catalogue: &catalogue, key, now, which: None }.at(false, |_, cell| {
        let HeapCell { account: Some(account), .. } = cell else { return };
        let is_its = account.book().lent().iter().any(|lent| lent.number == number && lent.to == to);
        if is_its && let Some(session) = node.sessions_mut().get_mut(&to) {
            // If the session has no room to tell of it, a later rebalance freezes the loan.
            let _ = account.refused(number, session);
        }
    });
}

/// A frame of an earlier process or incarnation of its sender counts no more.
fn is_of_earlier_process(header: &FrameHeader, peer: &Peer) -> bool {
    (header.incarnation, header.process_number) < (peer.incarnation, peer.process_number)
        && !mutated(Mutation::TrustOldProcess)
}

/// Whether an entry may be lost: advertisements and questions are sent again, and rights are not.
const fn is_news(entry: &FrameEntry) -> bool {
    matches!(entry, FrameEntry::Advertisement { .. } | FrameEntry::Short { .. } | FrameEntry::Ask { .. })
}

/// Whether an entry brings units. Nobody waits for capacity that comes with no units in it.
const fn brings_units(entry: &FrameEntry) -> bool {
    match entry {
        FrameEntry::Grant { grant, .. } => grant.tokens > 0,
        FrameEntry::Return { back, .. } => back.tokens > 0,
        FrameEntry::Give { .. } => true,
        _ => false,
    }
}

/// Whether a version names an incarnation.
fn names(version: &Version, incarnation: Incarnation) -> bool {
    version.members.get(&incarnation.member).is_some_and(|member| member.incarnation == incarnation)
}
