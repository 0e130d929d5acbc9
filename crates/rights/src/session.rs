//! Sessions between two processes: the heartbeats that date their loans, and the one message that renews the
//! loans.
//!
//! **Rule.** A holder numbers its heartbeats and remembers when it sent each. A giver dates a heartbeat from
//! its first receipt. A grant echoes a heartbeat. For the holder, the loan ends `ttl` after the heartbeat was
//! *sent*. For the giver, the loan ends `ttl`, stretched by the drift bound, after the heartbeat was
//! *received*. Only the giver carries the margin, and nobody compares clocks.
//!
//! **Theorem 1 (order of ends).** In true time, while a holder still counts on a loan, its giver does not yet
//! count on it.
//!
//! *Proof.* Let the heartbeat be sent at `s` and received at `h >= s`, in true time. Clocks run at `1 ± D`.
//! The holder stops at the latest at `s + ttl/(1 − D)`. The giver waits `ttl·(1 + D)/(1 − D)` on its own
//! clock, so at least `ttl/(1 − D)` in true time, from `h >= s`. After a restart it waits as long from the
//! restart, which is later than `h`. ∎
//!
//! **Renewals are lazy.** `Renew { echo, from, up_to, except }` says that every loan numbered in
//! `from..=up_to` and not excepted now lasts until `ttl` after that heartbeat. Neither side walks its loans:
//! [`Session::reclaim_end`] and [`Session::end_of`] compute an end when a cell is looked at, perhaps long
//! after that end. So an end must be a function of what was said *before* it. Otherwise the next renewal
//! would revive a loan that ended unseen, which its giver has already taken back. Two memories prevent this:
//!
//! - A *lapse*. Let a renewal be added to the chain at `now`, and the renewal before be dated `at`. Then
//!   every loan with `max(own end, at + ttl) <= now` is over, whatever is said from `now` on. A lapse need
//!   only be kept if the shortest loan can have ended, so none is recorded while renewals flow.
//! - A loan that was once excepted stays excepted. The giver stops listing a frozen loan when it has taken
//!   the loan back, and the holder may not have looked.
//!
//! **Theorem 2 (lazy renewals).** The holder's end of a loan, whenever it is computed, is not after the
//! giver's, as in Theorem 1.
//!
//! *Proof.* Let a renewal dated `s` extend the loan at the holder. When the giver sent this `Renew`, the loan
//! was in one of these states at the giver:
//!
//! - (a) Lent and renewing: the giver's end moved to `h + ttl'` in the same step, before the message left,
//!   and a later freeze keeps that end.
//! - (b) Lent and frozen: the loan is excepted, and stays so at the holder.
//! - (c) Reclaimed at the giver's end, so after the holder's end by all that was said before (Theorem 1). The
//!   holder takes the renewal still later, so it records a lapse that covers the loan, or had excepted the
//!   loan.
//! - (d) Returned: the holder does not hold the loan, and refuses its duplicates.
//! - (e) Not lent yet: the loan is above `up_to`, or the giver's lazy end counts the renewal for it.
//! - (f) Lent by an earlier process of the giver: the loan is below `from`. ∎
//!
//! This file knows nothing of cells. The caller decides when to renew, and how often to send heartbeats.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{
    Incarnation,
    loan::{HeldLoan, LentLoan, LoanKind, Refusal},
    mutation::{Mutation, mutated},
};

/// The most heartbeats that a process remembers: enough for one every 100 ms and loans of 25 s. An older
/// heartbeat cannot be echoed; a grant that echoes one is refused, which wastes the grant.
pub const BEATS_MAX: usize = 256;

/// The most loans to one peer that may be frozen at once. While the list is full, nothing is renewed for that
/// peer.
pub const FROZEN_MAX: usize = 64;

/// The most frozen loans of one peer that a holder remembers: several times [`FROZEN_MAX`]. The holder
/// forgets one when the cell lets go of the loan ([`Session::let_go`]), or when all loans have lapsed.
pub const EXCEPTED_MAX: usize = 256;

/// The most lapses that each side remembers. Beyond this the holder merges the oldest, which shortens loans;
/// the giver forgets the oldest, which lengthens its wait.
const LAPSES_MAX: usize = 4;

/// `ttl_ns` on a clock that may run fast, so that a clock that may run slow has surely counted `ttl_ns`:
/// `ttl · (1 + D) / (1 − D)`, rounded up, saturating. With a bound of 100 % or more the time is never over.
pub fn stretch(ttl_ns: u64, drift_ppm: u32) -> u64 {
    const MILLION: u128 = 1_000_000;
    let drift = u128::from(margin_ppm(drift_ppm));
    if drift >= MILLION {
        return u64::MAX;
    }
    u64::try_from((u128::from(ttl_ns) * (MILLION + drift)).div_ceil(MILLION - drift)).unwrap_or(u64::MAX)
}

/// Only the giver allows for clocks that drift, and allows for both.
fn margin_ppm(drift_ppm: u32) -> u32 {
    if mutated(Mutation::NoDriftMargin) { 0 } else { drift_ppm }
}

/// The id of a heartbeat. `process_number` counts the processes of a node, durably, so no two heartbeats of a
/// node have one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The process number.
    pub process_number: u32,
    /// The number of the heartbeat in its process.
    pub number: u64,
}

/// The heartbeats that this process sent. They are lost in a crash, and must be: a process that remembered
/// could take a grant twice.
#[derive(Clone, Debug)]
pub struct SentHeartbeats {
    process_number: u32,
    next: u64,
    keep_ns: u64,
    /// The times when the newest were sent; the last is of `next − 1`.
    sent_ns: VecDeque<u64>,
}

impl SentHeartbeats {
    /// No heartbeats yet. `process_number` is above the process number of every earlier process of this node.
    /// Heartbeats older than `keep_ns` are forgotten, and loans with a longer ttl are refused.
    pub fn new(process_number: u32, keep_ns: u64) -> Self {
        Self { process_number, next: 0, keep_ns, sent_ns: VecDeque::new() }
    }

    /// This process's number.
    pub const fn process_number(&self) -> u32 {
        self.process_number
    }

    /// A new heartbeat, stamped now, before it is sent. A retransmission carries the same heartbeat.
    pub fn next(&mut self, now_ns: u64) -> Heartbeat {
        while self.sent_ns.len() >= BEATS_MAX
            || self.sent_ns.front().is_some_and(|sent| sent.saturating_add(self.keep_ns) <= now_ns)
        {
            self.sent_ns.pop_front();
        }
        self.sent_ns.push_back(now_ns);
        let heartbeat = Heartbeat { process_number: self.process_number, number: self.next };
        self.next += 1;
        heartbeat
    }

    /// The longest ttl of a loan that this process accepts.
    pub const fn keep_ns(&self) -> u64 {
        self.keep_ns
    }

    /// When this process sent the heartbeat, if it did and still knows.
    pub fn sent_at(&self, heartbeat: Heartbeat) -> Option<u64> {
        if !self.is_own(heartbeat) {
            return None;
        }
        let back = usize::try_from(self.next.checked_sub(heartbeat.number)?).ok()?;
        self.sent_ns.get(self.sent_ns.len().checked_sub(back)?).copied()
    }

    /// Only heartbeats of this very process count: an earlier process may have held loans by its own.
    fn is_own(&self, heartbeat: Heartbeat) -> bool {
        heartbeat.process_number == self.process_number || mutated(Mutation::HeartbeatsOfAnyProcess)
    }
}

/// One message that renews all loans of one giver to one holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// The holder's heartbeat that dates the renewal.
    pub echo: Heartbeat,
    /// The first loan that this process of the giver gave the holder: earlier loans end by themselves.
    pub from: u64,
    /// The last loan that is renewed.
    pub up_to: u64,
    /// The loans between that are not renewed, sorted.
    pub except: SmallVec<[u64; 4]>,
}

/// A renewal that came too late for some loans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lapse {
    /// The date of the last renewal before, if any.
    at_ns: Option<u64>,
    /// When the next renewal was made or taken.
    now_ns: u64,
}

/// Renewals in the order they were made or taken.
#[derive(Clone, Debug, Default)]
struct Chain {
    /// The date of the newest renewal.
    at_ns: Option<u64>,
    /// The shortest wait of any loan here.
    shortest_ns: Option<u64>,
    lapses: SmallVec<[Lapse; 1]>,
}

impl Chain {
    fn count_on(&mut self, wait_ns: u64) {
        self.shortest_ns = Some(self.shortest_ns.map_or(wait_ns, |shortest| shortest.min(wait_ns)));
    }

    /// Whether some loan can have ended between the renewals.
    fn lapses_at(&self, now_ns: u64) -> bool {
        match (self.at_ns, self.shortest_ns) {
            (_, None) => false,
            (None, _) => true,
            (Some(at_ns), Some(shortest_ns)) => at_ns.saturating_add(shortest_ns) <= now_ns,
        }
    }

    fn link(&mut self, at_ns: u64, now_ns: u64) {
        if self.lapses_at(now_ns) {
            self.lapses.push(Lapse { at_ns: self.at_ns, now_ns });
        }
        self.at_ns = self.at_ns.max(Some(at_ns));
    }

    /// The end of a loan that no renewal after `last_ns` is for.
    fn end(&self, own_end_ns: u64, wait_ns: u64, last_ns: Option<u64>) -> u64 {
        let until = |at_ns: Option<u64>| match at_ns {
            Some(at_ns) => own_end_ns.max(at_ns.saturating_add(wait_ns)),
            None => own_end_ns,
        };
        for lapse in &self.lapses {
            let end_ns = until(lapse.at_ns.min(last_ns));
            if end_ns <= lapse.now_ns {
                return end_ns;
            }
        }
        until(last_ns)
    }
}

/// A loan that its giver does not renew.
#[derive(Clone, Copy, Debug)]
struct Excepted {
    number: u64,
    /// The date of the last renewal that included the loan.
    last_ns: Option<u64>,
    /// When the giver first excepted the loan.
    told_ns: u64,
}

/// The last renewal that a holder took.
#[derive(Clone, Debug)]
struct TakenRenewal {
    echo: Heartbeat,
    from: u64,
    up_to: u64,
    /// The first loan of the giver's process before this one, and the date of the last renewal for that
    /// process's loans.
    before: Option<(u64, Option<u64>)>,
}

/// The knowledge of this process about one peer, as a giver and as a holder. All of it is lost in a crash, on
/// purpose. Until then it must live as long as the process: nothing else knows the renewals.
#[derive(Clone, Debug)]
pub struct Session {
    drift_ppm: u32,
    // As a giver.
    heard: Option<(Heartbeat, u64)>,
    echoed: Option<Heartbeat>,
    renewed: Chain,
    /// The date of the last renewal for the peer's earlier processes.
    renewed_before_ns: Option<u64>,
    lent_from: Option<u64>,
    lent_up_to: u64,
    frozen: SmallVec<[u64; 4]>,
    // As a holder.
    last_taken: Option<TakenRenewal>,
    taken: Chain,
    excepted: SmallVec<[Excepted; 1]>,
    accepted_max: u64,
}

impl Session {
    /// A session with a peer that was never heard. `drift_ppm` bounds how far any node's clock may run wrong.
    pub fn new(drift_ppm: u32) -> Self {
        Self {
            drift_ppm,
            heard: None,
            echoed: None,
            renewed: Chain::default(),
            renewed_before_ns: None,
            lent_from: None,
            lent_up_to: 0,
            frozen: SmallVec::new(),
            last_taken: None,
            taken: Chain::default(),
            excepted: SmallVec::new(),
            accepted_max: 0,
        }
    }

    /// Sets the drift bound of a new catalogue version, for loans given from now on.
    pub const fn set_drift_ppm(&mut self, drift_ppm: u32) {
        self.drift_ppm = drift_ppm;
    }

    /// The drift bound.
    pub const fn drift_ppm(&self) -> u32 {
        self.drift_ppm
    }

    // As a giver.

    /// Hears a heartbeat of the peer. The first receipt of the highest heartbeat counts; returns whether this
    /// was one.
    pub fn hear(&mut self, heartbeat: Heartbeat, now_ns: u64) -> bool {
        if self.heard.is_some_and(|(heard, _)| heartbeat <= heard) {
            return false;
        }
        if self.heard.is_some_and(|(heard, _)| heartbeat.process_number != heard.process_number) {
            // The peer began anew and holds nothing. Its loans end by what its earlier process was told.
            self.renewed_before_ns = self.renewed_before_ns.max(self.renewed.at_ns);
            self.renewed = Chain::default();
            self.lent_from = None;
            self.frozen.clear();
        }
        self.heard = Some((heartbeat, now_ns));
        true
    }

    /// The highest heartbeat heard, and when it first came.
    pub const fn heard(&self) -> Option<(Heartbeat, u64)> {
        self.heard
    }

    /// The date of the last renewal that was sent.
    pub const fn renewed_heard_at(&self) -> Option<u64> {
        self.renewed.at_ns
    }

    /// Renews every loan to the peer that is not frozen, if the peer was heard since the last renewal. The
    /// giver's own ends move in this call, before the message leaves.
    pub fn renew(&mut self, now_ns: u64) -> Option<Renew> {
        let (echo, heard_ns) = self.heard?;
        let from = self.lent_from?;
        if self.echoed.is_some_and(|echoed| echo <= echoed) || self.frozen.len() >= FROZEN_MAX {
            return None;
        }
        self.echoed = Some(echo);
        self.extend_own_ends(heard_ns, now_ns);
        let (from, except) = (first_of_process(from), self.excepts());
        Some(Renew { echo, from, up_to: self.lent_up_to, except })
    }

    /// The giver moves its own ends before a renewal leaves.
    fn extend_own_ends(&mut self, heard_ns: u64, now_ns: u64) {
        if mutated(Mutation::RenewWithoutExtending) {
            return;
        }
        self.renewed.link(heard_ns, now_ns);
        if self.renewed.lapses.len() > LAPSES_MAX {
            self.renewed.lapses.remove(0);
        }
    }

    /// A renewal excepts all frozen loans.
    fn excepts(&self) -> SmallVec<[u64; 4]> {
        if mutated(Mutation::RenewWithoutExcept) { SmallVec::new() } else { self.frozen.clone() }
    }

    /// When the giver may count on a lent loan again, on its own clock.
    pub fn reclaim_end(&self, lent: &LentLoan) -> u64 {
        let end_ns = match self.heard {
            _ if !lent.renewing => lent.end_ns,
            Some((heard, _)) if heard.process_number == lent.echo.process_number => {
                self.renewed.end(lent.end_ns, lent.wait_ns, self.renewed.at_ns)
            }
            Some(_) => Chain::default().end(lent.end_ns, lent.wait_ns, self.renewed_before_ns),
            // Another session lent the loan, and its renewals are unknown.
            None => return u64::MAX,
        };
        end_ns.saturating_add(counts_after_end_ns(lent.kind))
    }

    /// Frozen loans: not renewed, and still lent.
    pub fn frozen(&self) -> &[u64] {
        &self.frozen
    }

    /// Whether a loan may have this number: numbers count up, per peer.
    pub(crate) fn is_next(&self, number: u64) -> bool {
        number > self.lent_up_to || mutated(Mutation::NumbersReused)
    }

    pub(crate) fn lends(&mut self, number: u64, wait_ns: u64) {
        self.lent_from.get_or_insert(number);
        self.lent_up_to = number;
        self.renewed.count_on(wait_ns);
    }

    pub(crate) fn freezes(&mut self, lent: &mut LentLoan) -> Result<(), Refusal> {
        let Err(place) = self.frozen.binary_search(&lent.number) else { return Ok(()) };
        if self.frozen.len() >= FROZEN_MAX {
            return Err(Refusal::TooManyFrozen);
        }
        self.frozen.insert(place, lent.number);
        lent.end_ns = self.end_when_frozen(lent);
        lent.renewing = false;
        Ok(())
    }

    /// A frozen loan keeps the end that earlier renewals gave it.
    fn end_when_frozen(&self, lent: &LentLoan) -> u64 {
        if mutated(Mutation::FreezeKeepsOldEnd) {
            return lent.end_ns;
        }
        self.reclaim_end(lent).saturating_sub(lent.kind.lingers_ns())
    }

    /// Notes that a loan came back. Its number need not be listed from now on.
    pub fn came_back(&mut self, number: u64) {
        if let Ok(place) = self.frozen.binary_search(&number) {
            self.frozen.remove(place);
        }
    }

    // As a holder.

    /// Takes a renewal, if it echoes a newer heartbeat of this process than the last renewal did. Changes no
    /// cell.
    pub fn take_renew(
        &mut self,
        renew: &Renew,
        heartbeats: &SentHeartbeats,
        now_ns: u64,
    ) -> Result<(), Refusal> {
        let sent_ns = heartbeats.sent_at(renew.echo).ok_or(Refusal::UnknownHeartbeat)?;
        if renew.from > renew.up_to
            || renew.except.len() > FROZEN_MAX
            || renew.except.windows(2).any(|pair| pair[0] >= pair[1])
        {
            return Err(Refusal::Malformed);
        }
        if let Some(last) = &self.last_taken {
            if renew.echo <= last.echo {
                return Err(Refusal::Stale);
            }
            if renew.from < last.from || renew.up_to < last.up_to {
                return Err(Refusal::Backwards);
            }
        }
        let excepted = self.excepted_by(renew, heartbeats, now_ns)?;
        let before = match &self.last_taken {
            Some(last) if renew.from > last.from => Some((last.from, self.taken.at_ns)),
            Some(last) => last.before,
            None => None,
        };
        self.excepted = excepted;
        self.last_taken =
            Some(TakenRenewal { echo: renew.echo, from: renew.from, up_to: renew.up_to, before });
        self.taken.link(extends_from(sent_ns, now_ns), now_ns);
        self.keep_lapses();
        Ok(())
    }

    /// A renewal does not revive loans that ended unseen, so a holder forgets no lapse. If there are too many,
    /// it merges the two oldest.
    fn keep_lapses(&mut self) {
        let lapses = &mut self.taken.lapses;
        if mutated(Mutation::LapseForgotten) {
            lapses.clear();
        }
        if lapses.len() > LAPSES_MAX {
            let oldest = lapses.remove(0);
            lapses[0].at_ns = oldest.at_ns;
        }
    }

    /// When the holder stops counting on a loan, on its own clock.
    pub fn end_of(&self, held: &HeldLoan) -> u64 {
        let Some(last) = &self.last_taken else { return held.end_ns };
        let last_ns = if held.number > last.up_to {
            None
        } else if let Some(excepted) = self.excepted(held.number) {
            excepted.last_ns
        } else if held.number < last.from {
            last.before.and_then(|(from, last_ns)| if held.number < from { None } else { last_ns })
        } else {
            self.taken.at_ns
        };
        self.taken.end(held.end_ns, held.ttl_ns, last_ns)
    }

    /// The highest number of a loan that was accepted from this peer, for the pulse.
    pub const fn accepted_max(&self) -> u64 {
        self.accepted_max
    }

    /// Notes that a held loan ended or went back. This frees memory; a caller may leave it out safely.
    pub fn let_go(&mut self, number: u64) {
        if let Ok(place) = self.excepted.binary_search_by_key(&number, |excepted| excepted.number) {
            self.excepted.remove(place);
        }
    }

    pub(crate) fn accepts(&mut self, number: u64, ttl_ns: u64) {
        self.accepted_max = self.accepted_max.max(number);
        self.taken.count_on(ttl_ns);
    }

    fn excepted(&self, number: u64) -> Option<&Excepted> {
        let place = self.excepted.binary_search_by_key(&number, |excepted| excepted.number).ok()?;
        self.excepted.get(place)
    }

    /// The loans excepted before and by this renewal.
    fn excepted_by(
        &self,
        renew: &Renew,
        heartbeats: &SentHeartbeats,
        now_ns: u64,
    ) -> Result<SmallVec<[Excepted; 1]>, Refusal> {
        let mut all = self.excepted.clone();
        all.retain(|excepted| stays_excepted(excepted, renew));
        // No loan lasts longer than heartbeats are kept. So every loan that the last renewal included has
        // lapsed. A grant under way of a frozen loan echoes a heartbeat that is too old.
        let is_over = |ns: u64| ns.saturating_add(heartbeats.keep_ns) <= now_ns;
        if self.taken.at_ns.is_some_and(is_over) {
            all.retain(|excepted| !is_over(excepted.told_ns));
        }
        for number in &renew.except {
            if let Err(place) = all.binary_search_by_key(number, |excepted| excepted.number) {
                let covered = self
                    .last_taken
                    .as_ref()
                    .is_some_and(|last| *number >= last.from && *number <= last.up_to);
                let last_ns = if covered { self.taken.at_ns } else { None };
                all.insert(place, Excepted { number: *number, last_ns, told_ns: now_ns });
            }
        }
        if all.len() > EXCEPTED_MAX { Err(Refusal::TooManyFrozen) } else { Ok(all) }
    }
}

/// A giver renews only loans of its present process, `from` on. What an earlier process lent ends by itself.
fn first_of_process(from: u64) -> u64 {
    if mutated(Mutation::RenewLoansOfEarlierProcess) { 0 } else { from }
}

/// A holder's charges in a sliding window may count for one horizon after its end.
fn counts_after_end_ns(kind: LoanKind) -> u64 {
    if mutated(Mutation::ReclaimWithoutLinger) { 0 } else { kind.lingers_ns() }
}

/// A renewal counts from when the holder sent the heartbeat, not from when the renewal came.
fn extends_from(sent_ns: u64, received_ns: u64) -> u64 {
    if mutated(Mutation::RenewExtendsFromReceipt) { received_ns } else { sent_ns }
}

/// A loan that was once excepted stays excepted, though later renewals do not list it.
fn stays_excepted(excepted: &Excepted, renew: &Renew) -> bool {
    !mutated(Mutation::FreezeForgotten) || renew.except.contains(&excepted.number)
}

/// The ends of loans, by the session with each peer.
pub trait Sessions {
    /// When the giver may count on a lent loan again.
    fn reclaim_end(&self, lent: &LentLoan) -> u64;
    /// When the holder stops counting on a loan.
    fn end_of(&self, held: &HeldLoan) -> u64;
}

impl Sessions for BTreeMap<Incarnation, Session> {
    fn reclaim_end(&self, lent: &LentLoan) -> u64 {
        match self.get(&lent.to) {
            Some(session) => session.reclaim_end(lent),
            None => lent.end_without_session(),
        }
    }

    fn end_of(&self, held: &HeldLoan) -> u64 {
        self.get(&held.from).map_or(held.end_ns, |session| session.end_of(held))
    }
}
