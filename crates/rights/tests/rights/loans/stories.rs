//! One story for each fault that the rules exclude.

use acequia_limits::{Part, RATE_PARTS};
use acequia_rights::{
    Book, CellChange, Grant, Heartbeat, Incarnation, LoanKind, Offer, Refusal, Renew, SentHeartbeats,
    Session, identity::MemberId, session::FROZEN_MAX, stretch,
};
use std::collections::BTreeMap;

const S: u64 = 1_000_000_000;
const TTL: u64 = 10 * S;
const DRIFT_PPM: u32 = 1_000;

fn incarnation(region: u16) -> Incarnation {
    Incarnation { member: MemberId(region), node: 0, number: 1 }
}

/// A giver (region 0) and a holder (region 1) on perfect clocks, and one cell.
struct Pair {
    giver: Book,
    holder: Book,
    to_holder: BTreeMap<Incarnation, Session>,
    to_giver: BTreeMap<Incarnation, Session>,
    heartbeats: SentHeartbeats,
    number: u64,
}

const STANDING: Part = Part { rate: RATE_PARTS / 2, units: 30 };

impl Pair {
    fn new() -> Self {
        Self {
            giver: Book::default(),
            holder: Book::default(),
            to_holder: BTreeMap::from([(incarnation(1), Session::new(DRIFT_PPM))]),
            to_giver: BTreeMap::from([(incarnation(0), Session::new(DRIFT_PPM))]),
            heartbeats: SentHeartbeats::new(1, 60 * S),
            number: 0,
        }
    }

    fn heartbeat(&mut self, now_ns: u64) -> Heartbeat {
        let heartbeat = self.heartbeats.next(now_ns);
        self.holder_session().hear(heartbeat, now_ns);
        heartbeat
    }

    fn holder_session(&mut self) -> &mut Session {
        self.to_holder.get_mut(&incarnation(1)).expect("a session")
    }

    fn giver_session(&mut self) -> &mut Session {
        self.to_giver.get_mut(&incarnation(0)).expect("a session")
    }

    fn lend(&mut self, part: Part, now_ns: u64) -> Grant {
        self.number += 1;
        let offer = Offer { number: self.number, to: incarnation(1), part, tokens: 0, ttl_ns: TTL };
        let session = self.to_holder.get_mut(&incarnation(1)).expect("a session");
        self.giver.lend(STANDING, 0, LoanKind::Bucket, &offer, session, now_ns).expect("spare").0
    }

    fn accept(&mut self, grant: &Grant, now_ns: u64) -> Result<CellChange, Refusal> {
        let session = self.to_giver.get_mut(&incarnation(0)).expect("a session");
        self.holder.accept(incarnation(0), grant, LoanKind::Bucket, &self.heartbeats, session, now_ns)
    }

    fn renew(&mut self, now_ns: u64) -> Option<Renew> {
        self.holder_session().renew(now_ns)
    }

    fn take_renew(&mut self, renew: &Renew, now_ns: u64) -> Result<(), Refusal> {
        let session = self.to_giver.get_mut(&incarnation(0)).expect("a session");
        session.take_renew(renew, &self.heartbeats, now_ns)
    }

    fn freeze(&mut self, number: u64) {
        let session = self.to_holder.get_mut(&incarnation(1)).expect("a session");
        self.giver.freeze(number, session).expect("few are frozen");
    }

    fn held_until(&self) -> Option<u64> {
        self.holder.next_expiry(&self.to_giver)
    }

    fn lent_until(&self) -> Option<u64> {
        self.giver.next_expiry(&self.to_holder)
    }

    /// The giver takes back expired loans.
    fn reclaim(&mut self, now_ns: u64) -> usize {
        let mut count = 0;
        while let Some(expired) = self.giver.expire_one(now_ns, &self.to_holder) {
            self.holder_session().came_back(expired.number);
            count += 1;
        }
        count
    }
}

const PIECE: Part = Part { rate: 1_000, units: 5 };

#[test]
fn a_loan_that_ended_unseen_is_not_revived_by_the_next_renewal() {
    let mut pair = Pair::new();
    pair.heartbeat(100 * S);
    let grant = pair.lend(PIECE, 100 * S);
    let _ = pair.accept(&grant, 100 * S).expect("in time");
    // Nothing is heard for a while. The giver takes the loan back, and nobody settles the holder's cell.
    assert_eq!(pair.reclaim(100 * S + stretch(TTL, DRIFT_PPM)), 1);
    pair.heartbeat(120 * S);
    let other = pair.lend(PIECE, 120 * S);
    let renew = pair.renew(120 * S).expect("heard");
    assert!(renew.up_to >= other.number && renew.except.is_empty());
    pair.take_renew(&renew, 120 * S).expect("newer");
    assert_eq!(pair.held_until(), Some(110 * S));
}

#[test]
fn a_frozen_loan_stays_frozen_after_renewals_stop_listing_it() {
    let mut pair = Pair::new();
    pair.heartbeat(100 * S);
    let (frozen, kept) = (pair.lend(PIECE, 100 * S), pair.lend(PIECE, 100 * S));
    let _ = pair.accept(&frozen, 100 * S).expect("in time");
    let _ = pair.accept(&kept, 100 * S).expect("in time");
    pair.heartbeat(105 * S);
    let renew = pair.renew(105 * S).expect("heard");
    pair.take_renew(&renew, 105 * S).expect("newer");
    pair.freeze(frozen.number);
    for at_s in [110, 114] {
        pair.heartbeat(at_s * S);
        let renew = pair.renew(at_s * S).expect("heard");
        assert_eq!(renew.except.as_slice(), [frozen.number]);
        pair.take_renew(&renew, at_s * S).expect("newer");
        // The promise from before the freeze holds.
        assert_eq!(pair.held_until(), Some(115 * S));
    }
    assert_eq!(pair.reclaim(116 * S), 1);
    pair.heartbeat(116 * S);
    let renew = pair.renew(116 * S).expect("heard");
    assert!(renew.except.is_empty());
    pair.take_renew(&renew, 116 * S).expect("newer");
    assert_eq!(pair.held_until(), Some(115 * S));
}

#[test]
fn a_frozen_loan_whose_grant_is_late_is_not_renewed() {
    let mut pair = Pair::new();
    pair.heartbeat(100 * S);
    let late = pair.lend(PIECE, 100 * S);
    let early = pair.lend(PIECE, 100 * S);
    let _ = pair.accept(&early, 100 * S).expect("in time");
    pair.freeze(late.number);
    pair.heartbeat(105 * S);
    let renew = pair.renew(105 * S).expect("heard");
    pair.take_renew(&renew, 105 * S).expect("newer");
    let _ = pair.accept(&late, 106 * S).expect("in time");
    assert_eq!(pair.held_until(), Some(110 * S));
    assert_eq!(pair.lent_until(), Some(100 * S + stretch(TTL, DRIFT_PPM)));
}

/// Seed 44945: the holder must not forget frozen loans when only the loans *that it accepted* are over.
#[test]
fn a_frozen_loan_whose_grant_is_very_late_is_not_renewed() {
    let mut pair = Pair::new();
    pair.heartbeat(100 * S);
    let short = Offer { number: 1, to: incarnation(1), part: PIECE, tokens: 0, ttl_ns: 2 * S };
    let long = Offer { number: 2, ttl_ns: 20 * S, ..short };
    let session = pair.to_holder.get_mut(&incarnation(1)).expect("a session");
    let (short, _) = pair.giver.lend(STANDING, 0, LoanKind::Bucket, &short, session, 100 * S).expect("spare");
    let (long, _) = pair.giver.lend(STANDING, 0, LoanKind::Bucket, &long, session, 100 * S).expect("spare");
    let _ = pair.accept(&short, 100 * S).expect("in time");
    pair.freeze(long.number);
    for at_s in [101, 110] {
        pair.heartbeat(at_s * S);
        let mut renew = pair.renew(at_s * S).expect("heard");
        if at_s == 110 {
            // The loan was returned or taken back, so it is not listed any more.
            renew.except.clear();
        }
        pair.take_renew(&renew, at_s * S).expect("newer");
    }
    let _ = pair.accept(&long, 111 * S).expect("in time");
    let held = *pair.holder.held().last().expect("held");
    assert_eq!(pair.giver_session().end_of(&held), 120 * S);
}

#[test]
fn reordered_renewals_lengthen_a_loan_only_by_newer_heartbeats() {
    let mut pair = Pair::new();
    pair.heartbeat(100 * S);
    let grant = pair.lend(PIECE, 100 * S);
    let _ = pair.accept(&grant, 100 * S).expect("in time");
    pair.heartbeat(101 * S);
    let older = pair.renew(101 * S).expect("heard");
    assert_eq!(pair.renew(101 * S), None, "nothing newer was heard");
    pair.freeze(grant.number);
    pair.heartbeat(104 * S);
    let newer = pair.renew(104 * S).expect("heard");
    pair.take_renew(&newer, 105 * S).expect("newer");
    assert_eq!(pair.take_renew(&older, 105 * S), Err(Refusal::Stale));
    assert_eq!(pair.held_until(), Some(110 * S));
    assert_eq!(pair.lent_until(), Some(101 * S + stretch(TTL, DRIFT_PPM)));
}

#[test]
fn a_restarted_giver_renews_only_loans_given_since() {
    let mut pair = Pair::new();
    pair.heartbeat(100 * S);
    let before = pair.lend(PIECE, 100 * S);
    let _ = pair.accept(&before, 100 * S).expect("in time");
    let disk = pair.giver.lent().iter().map(|lent| acequia_rights::LentLoan {
        end_ns: u64::MAX,
        renewing: false,
        ..*lent
    });
    pair.giver = Book::from_lent(disk.collect::<Vec<_>>());
    assert_eq!(pair.lent_until(), Some(u64::MAX), "no end before the restart says so");
    pair.giver.restart(103 * S);
    pair.to_holder = BTreeMap::from([(incarnation(1), Session::new(DRIFT_PPM))]);
    pair.heartbeat(104 * S);
    assert_eq!(pair.renew(104 * S), None, "nothing was lent since");
    let after = pair.lend(PIECE, 104 * S);
    let renew = pair.renew(104 * S).expect("heard");
    assert_eq!(renew.from, after.number);
    pair.take_renew(&renew, 104 * S).expect("newer");
    assert_eq!(pair.held_until(), Some(110 * S));
    assert_eq!(pair.lent_until(), Some(103 * S + stretch(TTL, DRIFT_PPM)));
}

#[test]
fn a_restarted_holder_does_not_keep_old_loans_renewed() {
    let mut pair = Pair::new();
    pair.heartbeat(100 * S);
    let grant = pair.lend(PIECE, 100 * S);
    pair.heartbeats = SentHeartbeats::new(2, 60 * S);
    pair.to_giver = BTreeMap::from([(incarnation(0), Session::new(DRIFT_PPM))]);
    assert_eq!(pair.accept(&grant, 101 * S), Err(Refusal::UnknownHeartbeat));
    for at_s in 101..110 {
        pair.heartbeat(at_s * S);
        pair.lend(Part { rate: 0, units: 1 }, at_s * S);
        pair.renew(at_s * S).expect("heard");
    }
    // Renewals are for the new process only, so the old one's loans are not stranded.
    assert_eq!(pair.lent_until(), Some(100 * S + stretch(TTL, DRIFT_PPM)));
    assert_eq!(pair.giver_session().accepted_max(), 0);
}

#[test]
fn a_returned_loan_is_not_revived_and_is_taken_back_once() {
    let mut pair = Pair::new();
    pair.heartbeat(100 * S);
    let grant = pair.lend(PIECE, 100 * S);
    assert_eq!(pair.accept(&grant, 100 * S), Ok(CellChange { rate: 1_000, units: 5, owe: 5, shed: 0 }));
    assert_eq!(pair.accept(&grant, 100 * S), Err(Refusal::Duplicate(1)));
    let (back, change) = pair.holder.give_back(1, incarnation(0), 3, 101 * S).expect("held");
    assert_eq!((back.tokens, change), (3, CellChange { rate: -1_000, units: -5, owe: 0, shed: 2 }));
    assert_eq!(pair.accept(&grant, 101 * S), Err(Refusal::GivenBack(1)));
    assert!(!pair.holder.is_empty(109 * S) && pair.holder.is_empty(110 * S));
    assert_eq!(pair.accept(&grant, 110 * S), Err(Refusal::Ended));
    let session = pair.to_holder.get_mut(&incarnation(1)).expect("a session");
    assert_eq!(
        pair.giver.take_return(incarnation(1), &back, session),
        Ok(CellChange { rate: 1_000, units: 5, owe: 2, shed: 0 })
    );
    assert_eq!(pair.giver.take_return(incarnation(1), &back, session), Err(Refusal::Unknown(1)));
}

/// A region lends its rate away and owes 30 units. Its share falls to 21 units, and the other's rises to 39.
/// Checks the units admitted within a second: the bucket has 60 units and gives 60/s.
pub(super) fn a_cell_that_lent_its_rate_is_lowered() -> Result<(), String> {
    let mut pair = Pair::new();
    pair.heartbeat(100 * S);
    pair.lend(Part { rate: STANDING.rate - 1, units: 0 }, 100 * S);
    let (owed, refilled) = (30, 59);
    let lowered = Part { units: 21, ..STANDING };
    // After one refill of the whole bucket, the region's own part has drained nothing, and the other region
    // admits all that drains.
    let raised = if pair.giver.conforms(lowered, owed) { 9 } else { 0 };
    let admitted = 30 + 30 + refilled + raised;
    if admitted > 60 + 60 { Err(format!("admitted {admitted} in a second")) } else { Ok(()) }
}

#[test]
fn a_lower_share_is_acknowledged_once_debt_and_loans_fit_in_it() {
    a_cell_that_lent_its_rate_is_lowered().expect("no more than the limit");
    let mut pair = Pair::new();
    pair.heartbeat(100 * S);
    pair.lend(Part { rate: 1_000, units: 10 }, 100 * S);
    assert!(pair.giver.conforms(STANDING, 20) && !pair.giver.conforms(STANDING, 21));
    assert!(!pair.giver.conforms(Part { units: 9, ..STANDING }, 0));
    assert!(!pair.giver.conforms(Part { rate: 1_000, ..STANDING }, 0), "the last part is not to be lent");
    assert!(pair.giver.conforms(Part { rate: 1_001, units: 10 }, 0));
    assert_eq!(pair.giver.effective(Part { rate: 500, units: 5 }), Part { rate: 1, units: 0 });
    assert_eq!(pair.giver.spare(Part { rate: 500, units: 5 }), Part::default());
}

/// The list of frozen loans is full, so a refusal of an unknown loan must wait. (History 10015991.)
#[test]
fn a_refusal_that_must_wait_for_room_is_not_forgotten() {
    let mut pair = Pair::new();
    pair.heartbeat(S);
    let mut cells = vec![Book::default(); 5];
    for (cell, number) in (0..=FROZEN_MAX).map(|loan| (loan % 5, loan as u64 + 1)) {
        let part = Part { rate: 0, units: 1 };
        let offer = Offer { number, to: incarnation(1), part, tokens: 0, ttl_ns: TTL };
        let session = pair.holder_session();
        let (_, change) = cells[cell].lend(STANDING, 0, LoanKind::Bucket, &offer, session, S).expect("spare");
        assert_eq!((change.units, change.shed), (-1, 1));
    }
    for (cell, number) in (0..FROZEN_MAX).map(|loan| (loan % 5, loan as u64 + 1)) {
        assert_eq!(cells[cell].refused(number, pair.holder_session()), Ok(()));
    }
    let (last, cell) = (FROZEN_MAX as u64 + 1, FROZEN_MAX % 5);
    let full = cells[cell].refused(last, pair.holder_session());
    assert_eq!(full, Err(Refusal::TooManyFrozen));
    let is_renewed = |book: &Book| book.lent().iter().any(|lent| lent.renewing);
    cells[cell].freeze_refused(&mut pair.to_holder);
    assert!(is_renewed(&cells[cell]), "there is no room yet");

    let ended = cells[0].expire_one(30 * S, &pair.to_holder).expect("a frozen loan");
    pair.holder_session().came_back(ended.number);
    cells[cell].freeze_refused(&mut pair.to_holder);
    assert!(!is_renewed(&cells[cell]));
    assert_eq!(pair.holder_session().frozen().last(), Some(&last));
}
