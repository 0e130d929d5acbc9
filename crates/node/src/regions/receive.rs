//! Takes the frames of peers, entry by entry. A rule is asked before each entry counts, and an entry that the
//! rule forbids changes nothing.

use acequia_limits::Now;
use acequia_rights::{
    Ack, Incarnation, MemberId, Refusal, Session, Version, VersionId,
    mutation::{Mutation, mutated},
    session::Heartbeat,
    versions::Learned,
};
use crdts::{
    CmRDT, Dot,
    pncounter::{Dir, Op},
};
use smallvec::SmallVec;

use super::{
    CellKey, FrameFault, NO_SLOT, REACH_NS, Sharing, WARM_MAX,
    cell::{AskedRights, View},
    outbox::Topic,
    peer::Peer,
    seal::Proof,
    wire::{self, Entry, Frame, Header, Rough, ShortId},
};
use crate::{
    ChargeId, Node,
    cell::{account::CellContext, locked_cell::LockedCell},
    journal::HeapCell,
};

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
        let taken = self.take(node, from, bytes, (raw, node.not_before(raw)));
        self.traffic.frames_refused += u64::from(taken.is_err());
        taken
    }

    /// Clocks are compared as they read (`raw`), and windows go by the corrected clock (`now`).
    fn take(
        &mut self,
        node: &Node,
        from: MemberId,
        bytes: &[u8],
        (raw, now): (Now, Now),
    ) -> Result<(), FrameFault> {
        let Frame { header, entries } = wire::read(bytes)?;
        if header.incarnation.member != from || from == self.me().member {
            return Err(FrameFault::Impostor { region: from, said: header.incarnation });
        }
        if header.received.incarnation > self.me().number {
            self.later = self.later.max(Some(header.received.incarnation));
        }
        if self.versions.closed(header.incarnation) && !self.is_leaving(header.incarnation) {
            return Err(FrameFault::Closed(header.incarnation));
        }
        let drift_ppm = self.versions.version().map_or(0, |version| version.drift_ppm);
        let named = |incarnation: Incarnation| {
            self.versions.version().is_some_and(|version| names(version, incarnation))
        };
        let peer = self.peers.entry(from).or_insert_with(|| Peer::new(header.incarnation));
        if (header.incarnation, header.process_number) < (peer.incarnation, peer.process_number)
            && !mutated(Mutation::TrustOldBoot)
        {
            return Err(FrameFault::Late(header.incarnation));
        }
        // An incarnation that the catalogue does not know cannot displace one that the catalogue names. The
        // unknown one is sent the catalogue once a version names it.
        if header.incarnation != peer.incarnation
            && named(peer.incarnation)
            && !named(header.incarnation)
            && peer.is_reached(raw.steady_ns, REACH_NS)
        {
            return Err(FrameFault::Unnamed(header.incarnation));
        }
        let began_anew =
            (header.incarnation, header.process_number) != (peer.incarnation, peer.process_number);
        if began_anew {
            peer.begin_anew(header.incarnation, header.process_number);
        }
        {
            let mut sessions = node.sessions_mut();
            if began_anew {
                // Among a member's incarnations that own nothing and are not closed, only the present one
                // needs a session.
                let own = &self.versions;
                let of_region = |incarnation: &Incarnation| {
                    incarnation.member == from && *incarnation != header.incarnation
                };
                sessions.retain(|incarnation, _| {
                    !of_region(incarnation) || own.closed(*incarnation) || own.owns(*incarnation)
                });
            }
            let session = sessions.entry(header.incarnation).or_insert_with(|| Session::new(drift_ppm));
            session.set_drift_ppm(drift_ppm);
            session.hear(
                Heartbeat { process_number: header.process_number, number: header.heartbeat },
                now.steady_ns,
            );
        }
        // A peer saw a later process of this node, or loans that this node never gave: the disk is an old
        // one.
        let (own, process_number) = (self.home.incarnation.number, self.beats.process_number());
        let ahead = header.received.process_number > process_number || header.loan_max > self.loans.reserved;
        // The disk is also an old one if a peer received frames that this process never sent: another process
        // had its number.
        let twice = header.received.process_number == process_number
            && header.received.highest > peer.outbox.last_number();
        let is_old =
            (ahead || twice) && header.received.incarnation == own && header.received.process_number > 0;
        if is_old && !mutated(Mutation::OldDiskTrusted) {
            self.restored_disk = true;
        }
        let adopted = header.version_id > peer.version_id;
        if adopted || began_anew || !peer.is_reached(raw.steady_ns, REACH_NS) {
            peer.resync.begin();
        }
        peer.hear(&header, (own, process_number), raw);
        if adopted {
            // The peer could not count acknowledgements that came before it had the version.
            self.tell_all_acks(from);
        }
        if began_anew {
            for active_cell in self.cells.values_mut().flatten() {
                active_cell.advertised = None;
                // The new process counts its frames anew.
                active_cell.views.retain(|view| view.of != from);
            }
            self.tell_all_acks(from);
        }
        self.compare_marks(&header, from);
        let same_catalogue = header.version_id == self.version_id();
        let Some(peer) = self.peers.get_mut(&from) else { return Ok(()) };
        // An entry about a cell that nobody introduced would be lost if the frame were confirmed.
        let mut strangers: SmallVec<[ShortId; 4]> = SmallVec::new();
        let mut unnamed: SmallVec<[ShortId; 4]> = SmallVec::new();
        let mut is_lost = false;
        let mut keys: Vec<Option<CellKey>> = Vec::with_capacity(entries.len());
        for entry in &entries {
            let mut key = None;
            match entry {
                Entry::Introduce { id, limit, tag, which } => {
                    // A limit that was never in force here has no slot: entries about its cells are refused.
                    let slot = node.slot_of(*limit);
                    let tag = crate::journal_tag(*tag);
                    peer.outbox.names.introduce(*id, (slot.unwrap_or(NO_SLOT), tag));
                    if let Some(slot) = slot
                        && let Some(which) = *which
                        && same_catalogue
                        && self.told.len() < WARM_MAX
                    {
                        self.told.insert((slot, tag), which);
                    }
                }
                other => {
                    if let Some(id) = other.cell() {
                        // A number that an earlier process of this node gave may mean another cell by now.
                        let is_mine = (header.received.incarnation, header.received.process_number)
                            == (own, process_number);
                        key = peer.outbox.names.cell(id).filter(|_| id.0 & 1 == 0 || is_mine);
                        if key.is_none() {
                            // Advertisements and questions are sent again, and may be lost; rights may not.
                            let is_news = matches!(
                                other,
                                Entry::Advertisement { .. } | Entry::Short { .. } | Entry::Ask { .. }
                            );
                            is_lost |= !is_news;
                            strangers.push(id);
                        }
                    }
                }
            }
            if key.is_some_and(|key| key.0 == NO_SLOT)
                && let Some(id) = entry.cell()
            {
                // The cell shall be introduced again: the limit may be known by then.
                unnamed.push(id);
            }
            keys.push(key.filter(|key| key.0 != NO_SLOT));
        }
        for id in strangers.into_iter().chain(unnamed) {
            peer.outbox.tell(Topic::Unknown(id), Entry::Unknown { id }, 0);
        }
        // While the wall is not believed, no cell is changed: entries about cells come again.
        let is_early = !node.is_wall_believed() && !entries.iter().all(Entry::is_of_no_cell);
        if is_lost || is_early {
            peer.owes_reply |= is_early;
            // The frame comes again, since this node does not know a limit yet, or forgot a number. Entries
            // that mend this count at once: otherwise two such frames could wait for each other for ever.
            for entry in entries {
                if matches!(
                    entry,
                    Entry::Version(..) | Entry::Acked { .. } | Entry::Unknown { .. } | Entry::Ping
                ) {
                    let _known = self.take_entry(node, &header, None, entry, now);
                }
            }
            return Ok(());
        }
        if !peer.received.note(header.number) {
            return Ok(());
        }
        peer.owes_reply |= !entries.is_empty();
        for (entry, key) in entries.into_iter().zip(keys) {
            if self.take_entry(node, &header, key, entry, now).is_err() {
                self.traffic.entries_refused += 1;
            }
        }
        Ok(())
    }

    fn take_entry(
        &mut self,
        node: &Node,
        header: &Header,
        key: Option<CellKey>,
        entry: Entry,
        now: Now,
    ) -> Result<(), Refusal> {
        let region = header.incarnation.member;
        // A leaving incarnation is still heard: it must learn that it leaves, and say so. Its loans and
        // transfers are refused.
        let goes_on = matches!(
            entry,
            Entry::Introduce { .. }
                | Entry::Unknown { .. }
                | Entry::Acked { .. }
                | Entry::Version(..)
                | Entry::Return { .. }
        );
        if self.versions.closed(header.incarnation) && !goes_on {
            return Err(Refusal::Stale);
        }
        match (entry, key) {
            (Entry::Introduce { .. }, _) => Ok(()),
            (Entry::Unknown { id }, _) => {
                if let Some(peer) = self.peers.get_mut(&region) {
                    peer.outbox.names.unknown(id);
                }
                Ok(())
            }
            (Entry::Advertisement { demand, holds, left, stands, .. }, Some(key)) => {
                if demand == Rough::default() && self.cells.slot(key).is_none() {
                    // Nobody asks for the cell there, and nobody has asked for it here.
                    return Ok(());
                }
                let Some(active_cell) = self.wake(key, now.steady_ns) else { return Ok(()) };
                let was_idle = active_cell.is_idle(now.steady_ns);
                let view = active_cell.view_mut(region);
                if header.number < view.frame {
                    return Err(Refusal::Stale);
                }
                let more = demand > view.demand;
                let at_ns = now.steady_ns;
                let short = if view.short_frame == header.number { view.short } else { 0 };
                *view = View { demand, holds, left, stands, short, at_ns, frame: header.number, ..*view };
                if more {
                    active_cell.note_busy(now.steady_ns);
                }
                if was_idle && !active_cell.is_idle(now.steady_ns) {
                    // While nobody waited for the cell, nothing was said about it.
                    active_cell.advertised = None;
                }
                Ok(())
            }
            (Entry::Short { units, .. }, Some(key)) => {
                if let Some(active_cell) = self.wake(key, now.steady_ns) {
                    let view = active_cell.view_mut(region);
                    if header.number >= view.frame.max(view.short_frame) {
                        (view.short, view.short_frame) = (units, header.number);
                    }
                    active_cell.note_busy(now.steady_ns);
                }
                Ok(())
            }
            (Entry::Ask { end_ns, units, .. }, Some(key)) => {
                self.wake(key, now.steady_ns);
                if let Some(Some(active_cell)) = self.cells.get_mut(key)
                    && active_cell.asked.len() < self.peers.len()
                {
                    active_cell.asked.retain(|asked| asked.by != region);
                    active_cell.asked.push(AskedRights { by: region, end_ns, units, at_ns: now.steady_ns });
                }
                Ok(())
            }
            (Entry::Refused { number, .. }, Some(key)) => {
                self.end_loan(node, header.incarnation, key, number, now);
                Ok(())
            }
            (Entry::Renew(renew), _) => {
                let mut sessions = node.sessions_mut();
                let session = sessions.get_mut(&header.incarnation).ok_or(Refusal::Unheard)?;
                session.take_renew(&renew, &self.beats, now.steady_ns)
            }
            (Entry::Version(version, seal), _) => self.hear_version(*version, seal),
            (Entry::Acked { incarnation, ack, seal }, _) => {
                self.hear_ack((incarnation, ack), seal, header.incarnation, now)
            }
            (Entry::Usage { limit, incarnation, spent, refunded }, _) => {
                if incarnation != header.incarnation || refunded > spent || node.slot_of(limit).is_none() {
                    return Err(Refusal::Malformed);
                }
                let counter = self.usage.entry(limit).or_default();
                for (total, dir) in [(spent, Dir::Pos), (refunded, Dir::Neg)] {
                    counter.apply(Op { dot: Dot::new(incarnation, total), dir });
                }
                let charged = self.charged.entry((incarnation, limit)).or_default();
                *charged = spent.max(*charged);
                Ok(())
            }
            (Entry::Settle { id, cost }, _) => {
                // The caller was told that the settlement is on its way, and nobody waits for the result.
                node.settle_sometime(ChargeId(id), cost, now);
                Ok(())
            }
            (entry @ Entry::Forward { .. }, _) => self.take_forward(node, header, &entry, now),
            (Entry::Ping, _) => Ok(()),
            (Entry::ForwardReply { number, units }, _) => {
                self.take_forward_reply(node, header, (number, units), now)
            }
            (Entry::Digest(digest), _) => {
                if let Some(peer) = self.peers.get_mut(&region) {
                    peer.resync.compare(*digest);
                }
                Ok(())
            }
            (Entry::Differs(buckets), _) => {
                if let Some(peer) = self.peers.get_mut(&region) {
                    peer.resync.tell_again(buckets);
                }
                self.tell_usage_again(region, buckets);
                Ok(())
            }
            (entry, Some(key)) => self.take_right(node, header, key, entry, now),
            (_, None) => Err(Refusal::Unknown(0)),
        }
    }

    /// Takes a version, from its authority or passed on. A newer one is adopted at the next tick, if its seal
    /// proves that its authority made it.
    fn hear_version(&mut self, version: Version, proof: Proof) -> Result<(), Refusal> {
        let is_known = self.versions.version().is_some_and(|own| *own == version);
        let offered = self
            .offered
            .as_ref()
            .map_or(self.version_id(), |(offered, _)| offered.version_id.max(self.version_id()));
        if !is_known && version.version_id <= offered {
            return Ok(());
        }
        if self.seals.check_version(&version, proof.as_deref()).is_err() {
            self.traffic.seals_refused += 1;
            return Err(Refusal::Malformed);
        }
        if is_known {
            // The version was signed again, by a certificate that holds for longer.
            self.seals.keep_version(version.version_id, proof);
            // Peers that refused the version by its earlier seal are sent it once more.
            self.peers.values_mut().for_each(|peer| peer.told = VersionId::default());
        } else {
            self.offered = Some((version, proof));
        }
        Ok(())
    }

    /// Takes an incarnation's acknowledgement, from itself or passed on.
    fn hear_ack(
        &mut self,
        (incarnation, ack): (Incarnation, Ack),
        proof: Proof,
        from: Incarnation,
        now: Now,
    ) -> Result<(), Refusal> {
        // A node without a catalogue counts nothing, and is told again when it has one.
        let Some(key) = self.versions.version().map(|version| version.key) else { return Ok(()) };
        if !self.versions.asks(incarnation) {
            return Ok(());
        }
        if !self.seals.knows_ack(incarnation, ack, proof.as_deref()) {
            if self.seals.check_ack((incarnation, ack), key, proof.as_deref()).is_err() {
                self.traffic.seals_refused += 1;
                return Err(Refusal::Malformed);
            }
            self.seals.keep_ack(incarnation, ack, proof);
        }
        if self.versions.learn_ack(incarnation, ack, now) == Learned::New {
            self.pass_on_ack(incarnation, from);
        }
        Ok(())
    }

    /// Takes an entry that moves rights.
    fn take_right(
        &mut self,
        node: &Node,
        header: &Header,
        key: CellKey,
        entry: Entry,
        now: Now,
    ) -> Result<(), Refusal> {
        let from = header.incarnation;
        let owned = self.owns_nothing().is_none();
        // A member without a share has nothing to give or to lend.
        let moves_rights = matches!(entry, Entry::Grant { .. } | Entry::Give { .. });
        let owned = owned && (!moves_rights || self.versions.owns(from));
        let catalogue = node.catalogue();
        let which =
            self.told_of(key, self.cells.get(key).and_then(Option::as_ref).map(|active_cell| &**active_cell));
        let locked_cell = LockedCell { node, catalogue: &catalogue, key, now, which };
        let (beats, versions) = (&self.beats, &self.versions);
        let stands = |context: &CellContext<'_>| {
            let (global, salt) = (context.global, context.salt);
            versions.stands_for_region_of(from.member, global.budget(), salt, global.has_rate())
        };
        let granted = if let Entry::Grant { grant, .. } = &entry { Some(grant.number) } else { None };
        // Nobody waits for capacity that comes with no units in it.
        let brings = match &entry {
            Entry::Grant { grant, .. } => grant.tokens > 0,
            Entry::Return { back, .. } => back.tokens > 0,
            Entry::Give { .. } => true,
            _ => false,
        };
        let result = locked_cell.at(owned, |context, cell| {
            let HeapCell { account: Some(account), words, .. } = &mut *cell else {
                return Err(Refusal::Unknown(0));
            };
            account.settle(words, context, now, &*node.sessions());
            let mut sessions = node.sessions_mut();
            let session = sessions.get_mut(&from).ok_or(Refusal::Unheard)?;
            let mut back = None;
            match entry {
                Entry::Grant { grant, .. } => {
                    if !owned || !context.in_force {
                        return Err(Refusal::Unheard);
                    }
                    account.accept(words, context, (from, &grant, stands(context)), (beats, session), now)
                }
                Entry::Return { back, .. } => {
                    account.take_return(words, context, (from, &back), session, now)
                }
                Entry::Recall { number, .. } => {
                    let durable = catalogue.is_durable(key.0);
                    back =
                        Some(account.give_back(words, context, (from, number), session, (durable, now))?);
                    Ok(())
                }
                Entry::Give { end_ns, cumulative, .. } => {
                    if !owned || context.local.owns_nothing_of(end_ns) || node.is_closed(context, end_ns) {
                        return Err(Refusal::Unheard);
                    }
                    let forgotten = node.spent_before_start(&catalogue, key.0, &account.algorithm, now);
                    let stands = stands(context).units;
                    let received =
                        account.receive(context, from.member, (end_ns, cumulative), stands, forgotten);
                    if let Some(peer) = self.peers.get_mut(&from.member) {
                        // All units that ever came are confirmed, not only those of this entry: so a giver
                        // learns that its disk is an old one.
                        let cumulative = account.received(from.member, end_ns).max(cumulative);
                        let entry = Entry::Got { id: ShortId::default(), end_ns, cumulative };
                        peer.outbox.tell(Topic::Got(key, end_ns), entry, 0);
                    }
                    received.map(|_| ())
                }
                Entry::Got { end_ns, cumulative, .. } => {
                    if end_ns == account.window() {
                        account.open().own_echo(from.member, cumulative)
                    } else {
                        Ok(())
                    }
                }
                _ => Err(Refusal::Malformed),
            }?;
            if brings {
                account.hope_anew();
            }
            let unwritten = account.take_unwritten();
            drop(sessions);
            let batch = if unwritten { node.write_account(key, cell, now) } else { 0 };
            if let Some(back) = back {
                returned(self.peers.get_mut(&from.member), key, back, batch);
            }
            Ok(())
        });
        let result = result.unwrap_or(Err(Refusal::Unknown(0)));
        if let Some(number) = granted
            && result.is_err_and(|refusal| refusal != Refusal::Duplicate(number))
            && let Some(peer) = self.peers.get_mut(&from.member)
        {
            let entry = Entry::Refused { id: ShortId::default(), number };
            peer.outbox.tell(Topic::Refused(key, number), entry, 0);
        }
        match &result {
            Ok(()) => {
                self.traffic.borrowed += u64::from(granted.is_some());
                self.wake(key, now.steady_ns);
                if brings {
                    node.remote_supply.tell();
                    // A mate's forward may wait for the units.
                    node.forwards.call();
                }
            }
            Err(Refusal::RestoredDisk { .. }) => self.restored_disk = true,
            // The account may have been opened for this entry.
            Err(_) if owned => drop(self.wake(key, now.steady_ns)),
            Err(_) => {}
        }
        result
    }

    /// Notes that a holder does not hold a loan: it is not renewed, so that it comes back by itself.
    fn end_loan(&mut self, node: &Node, to: Incarnation, key: CellKey, number: u64, now: Now) {
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
}

/// Whether a version names an incarnation.
fn names(version: &Version, incarnation: Incarnation) -> bool {
    version.members.get(&incarnation.member).is_some_and(|member| member.incarnation == incarnation)
}

fn returned(peer: Option<&mut Peer>, key: CellKey, back: acequia_rights::Return, after_batch: u64) {
    if let Some(peer) = peer {
        let entry = Entry::Return { id: ShortId::default(), back };
        peer.outbox.tell(Topic::Return(key, back.number), entry, after_batch);
    }
}
