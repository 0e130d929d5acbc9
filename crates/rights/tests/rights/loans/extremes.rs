//! Numbers that no honest peer sends: refused with a reason, and nothing changes.

use acequia_limits::{Part, RATE_PARTS, UNITS_MAX};
use acequia_rights::{
    Book, Grant, Heartbeat, Incarnation, LoanKind, Offer, Refusal, Renew, Return, SentHeartbeats, Session,
    identity::MemberId,
    loan::{LOANS_PER_PEER_MAX, TTL_NS_MAX},
    stretch,
};
use proptest::prelude::*;

const PEER: Incarnation = Incarnation { member: MemberId(1), node: 0, number: 1 };
const STRANGER: Incarnation = Incarnation { member: MemberId(2), node: 0, number: 1 };
const NOW: u64 = 1 << 40;

fn edges() -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..4,
        Just(10),
        (UNITS_MAX - 2)..(UNITS_MAX + 2),
        (TTL_NS_MAX - 1)..(TTL_NS_MAX + 2),
        (NOW - 2)..(NOW + 2),
        (u64::MAX - 2)..u64::MAX,
        any::<u64>(),
    ]
}

fn rates() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..3, (RATE_PARTS - 1)..(RATE_PARTS + 2), any::<u32>()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn extreme_loans_do_not_overflow_and_a_refusal_changes_nothing(
        (rate, units, tokens, ttl_ns) in (rates(), edges(), edges(), edges()),
        (number, available, drift_ppm) in (edges(), edges(), any::<u32>()),
        (standing_rate, standing_units) in (rates(), edges()),
        (process_number, heartbeat, sliding, lingers_ns) in (0_u32..3, 0_u64..4, any::<bool>(), edges()),
    ) {
        let kind = if sliding { LoanKind::Sliding { lingers_ns } } else { LoanKind::Bucket };
        let part = Part { rate, units };
        let standing = Part { rate: standing_rate, units: standing_units };
        let (mut giver, mut holder) = (Book::default(), Book::default());
        let mut session = Session::new(drift_ppm);
        let mut heartbeats = SentHeartbeats::new(1, TTL_NS_MAX);
        let heard = heartbeats.next(NOW);
        session.hear(heard, NOW);
        let offer = Offer { number, to: PEER, part, tokens, ttl_ns };
        match giver.lend(standing, available, kind, &offer, &mut session, NOW) {
            Ok((grant, change)) => {
                prop_assert!(units <= standing_units && rate < standing_rate.max(1) && ttl_ns <= TTL_NS_MAX);
                prop_assert!(change.shed + grant.tokens <= units || sliding);
                let left = giver.effective(standing);
                prop_assert!(left.units <= standing_units - units);
                let lent = giver.lent()[0];
                prop_assert!(session.reclaim_end(&lent) >= NOW + ttl_ns);
                let back = Return { number, tokens: 0 };
                let unknown = giver.take_return(STRANGER, &back, &mut session);
                prop_assert_eq!(unknown, Err(Refusal::Unknown(number)));
                let too_many = Return { number, tokens: u64::MAX };
                prop_assert_eq!(giver.take_return(PEER, &too_many, &mut session), Err(Refusal::Malformed));
                prop_assert_eq!(giver.lent(), &[lent]);
                giver.restart(u64::MAX - 1);
                prop_assert_eq!(giver.lent()[0].end_ns, u64::MAX);
            }
            Err(refusal) => {
                prop_assert!(giver.is_empty(0) && !refusal.to_string().is_empty());
            }
        }
        let grant = Grant { number, part, tokens, ttl_ns, echo: Heartbeat { process_number, number: heartbeat } };
        match holder.accept(PEER, &grant, kind, &heartbeats, &mut session, NOW) {
            Ok(change) => {
                prop_assert!((process_number, heartbeat) == (1, 0) && tokens <= units && units <= UNITS_MAX);
                prop_assert_eq!(change.units, units as i64);
                let all = holder.effective(standing);
                prop_assert!(all.units <= UNITS_MAX && all.rate <= RATE_PARTS);
                prop_assert!(holder.give_back(number, STRANGER, available, NOW).is_err());
                prop_assert_eq!(holder.held().len(), 1);
                let full = Grant { number: number ^ 1, part: Part { rate: 0, units: UNITS_MAX }, tokens: 0, ..grant };
                let again = holder.accept(PEER, &full, kind, &heartbeats, &mut session, NOW);
                prop_assert!(again.is_ok() == (units == 0));
            }
            Err(refusal) => {
                prop_assert!(holder.is_empty(0) && !refusal.to_string().is_empty());
            }
        }
    }

    #[test]
    fn renewals_out_of_order_or_range_change_nothing(
        (from, up_to, process_number, heartbeat) in (edges(), edges(), 0_u32..3, 0_u64..5),
        except in proptest::collection::vec(edges(), 0..80),
    ) {
        let mut session = Session::new(1_000);
        let mut heartbeats = SentHeartbeats::new(1, TTL_NS_MAX);
        let (old, _) = (heartbeats.next(NOW), heartbeats.next(NOW + 5));
        let grant = Grant { number: 7, part: Part { rate: 1, units: 1 }, tokens: 0, ttl_ns: 100, echo: old };
        let mut book = Book::default();
        let _ = book.accept(PEER, &grant, LoanKind::Bucket, &heartbeats, &mut session, NOW).expect("in time");
        let held = book.held()[0];
        let renew = Renew { echo: Heartbeat { process_number, number: heartbeat }, from, up_to, except: except.clone().into() };
        match session.take_renew(&renew, &heartbeats, NOW + 10) {
            Ok(()) => {
                let covered = (from..=up_to).contains(&7) && !except.contains(&7);
                let sent_ns = heartbeats.sent_at(renew.echo).expect("was sent");
                prop_assert_eq!(session.end_of(&held), if covered { sent_ns + 100 } else { NOW + 100 });
            }
            Err(_) => prop_assert_eq!(session.end_of(&held), NOW + 100),
        }
    }
}

#[test]
fn a_stretch_covers_the_drift_and_saturates() {
    assert_eq!(stretch(1_000, 0), 1_000);
    assert_eq!(stretch(1_000, 100_000), 1_223);
    assert_eq!(stretch(9, 100_000), 11);
    assert_eq!(stretch(u64::MAX, 1), u64::MAX);
    assert_eq!(stretch(1, 1_000_000), u64::MAX);
    assert_eq!(stretch(0, 999_999), 0);
}

#[test]
fn only_the_latest_sent_heartbeats_are_remembered() {
    let mut heartbeats = SentHeartbeats::new(3, 1_000_000);
    let all: Vec<Heartbeat> = (0..300).map(|at| heartbeats.next(at)).collect();
    assert_eq!(heartbeats.sent_at(all[43]), None);
    assert_eq!(heartbeats.sent_at(all[44]), Some(44));
    assert_eq!(heartbeats.sent_at(all[299]), Some(299));
    assert_eq!(heartbeats.sent_at(Heartbeat { process_number: 3, number: 300 }), None);
    assert_eq!(heartbeats.sent_at(Heartbeat { process_number: 2, number: 299 }), None);
    assert_eq!(heartbeats.sent_at(Heartbeat { process_number: 3, number: u64::MAX }), None);
    let last = heartbeats.next(2_000_000);
    assert_eq!((heartbeats.sent_at(all[299]), heartbeats.sent_at(last)), (None, Some(2_000_000)));
}

#[test]
fn a_book_holds_a_bounded_number_of_loans() {
    let (mut giver, mut session) = (Book::default(), Session::new(1_000));
    session.hear(Heartbeat { process_number: 1, number: 1 }, NOW);
    let standing = Part { rate: 100, units: 100 };
    let offer = |number| Offer { number, to: PEER, part: Part { rate: 1, units: 1 }, tokens: 0, ttl_ns: 9 };
    for number in 1..=LOANS_PER_PEER_MAX as u64 {
        let _ = giver.lend(standing, 0, LoanKind::Bucket, &offer(number), &mut session, NOW).expect("room");
    }
    let more = giver.lend(standing, 0, LoanKind::Bucket, &offer(99), &mut session, NOW);
    assert_eq!(more.map(|_| ()), Err(Refusal::TooManyLoans));
    let used = giver.lend(standing, 0, LoanKind::Bucket, &offer(3), &mut session, NOW);
    assert_eq!(used.map(|_| ()), Err(Refusal::NumberUsed(3)));
    let late = giver.lend(standing, 0, LoanKind::Bucket, &offer(100), &mut session, NOW + 10);
    assert!(late.is_err(), "the heartbeat is too old");
}
