//! Charges whose answers other nodes of the region repeat.

use std::sync::Arc;

use acequia_limits::Request;
use acequia_node::{Ask, ChargeId, IdReused, Recording, Remember, Reserve, Settled};
use acequia_rights::pool::Generation;

use super::settled;
use crate::scene::{self, MS, S, window};

/// A charge that another node can answer for is given back when its name has ended.
pub(super) fn refunded() {
    let mut world = settled(2, window("w", 100, "600s"));
    world.pass(600 * S);
    let recording = |fingerprint| Recording {
        id: ChargeId(7),
        fingerprint,
        is_repeatable: true,
        reserve: None,
        owner: 0,
        remember: Remember::Always,
    };
    let now = world.now(0);
    let mut request = Request::new("shop", &[("key", "k")]);
    request.cost = 2;
    let charged = world.nodes[0].asker.check_recorded(&request, now, Ask::CHECK, &recording(1));
    assert!(charged.is_ok_and(|answer| answer.charge.is_some_and(|charge| !charge.is_repeat)));
    let (one, now) = (Arc::clone(&world.nodes[0].node), world.now(0));
    let kept = one.kept_at(ChargeId(7)).expect("a generation");
    assert!(kept.grants && one.kept_in(7) == Some(kept));
    let shared = one.share_answer(ChargeId(7), kept.generation, now).expect("it stands");
    let now_us = now.wall_ns / 1_000;
    assert!((now_us + 599_000_000..=now_us + 600_000_000).contains(&shared.drops_us));

    // Another node repeats the answer without a charge. Another question with that name gets no answer.
    let (now, asker) = (world.now(1), &mut world.nodes[1].asker);
    let answer =
        asker.repeat(&recording(1), &shared.bytes, now).expect("it is one").expect("the same question");
    let charge = answer.charge.expect("a name");
    assert!(answer.allowed && charge.is_repeat && charge.by == Some(1) && charge.id == ChargeId(7));
    assert_eq!(asker.repeat(&recording(2), &shared.bytes, now).expect("it is one").err(), Some(IdReused));
    for cut in 0..shared.bytes.len() {
        assert!(asker.repeat(&recording(1), &shared.bytes[..cut], now).is_none(), "{cut} bytes");
    }
    assert!(!world.nodes[1].node.remembers(ChargeId(7), now) && one.remembers(ChargeId(7), now));

    let now = world.now(0);
    assert_eq!(one.settle(ChargeId(7), None, now), Settled::Shared { generation: kept.generation });
    one.ended(ChargeId(7), Generation::default());
    assert!(matches!(one.settle(ChargeId(7), None, now), Settled::Shared { .. }), "another one");
    let other = Generation { number: kept.generation.number + 1, ..kept.generation };
    assert_eq!(one.share_answer(ChargeId(7), other, now), None, "in one generation at a time");
    one.ended(ChargeId(7), kept.generation);
    assert!(matches!(one.settle(ChargeId(7), None, now), Settled::Done { .. }));
    assert_eq!(one.share_answer(ChargeId(7), kept.generation, now), None, "it stands no more");
}

#[test]
fn a_shared_charge_is_refunded_once_its_id_has_ended() {
    refunded();
}

/// Nobody repeats a reservation's answer after the reservation lapses, by any clock.
#[test]
fn a_mate_repeats_a_reservation_for_less_time_than_it_lasts() {
    let mut world = settled(2, window("w", 100, "600s"));
    world.pass(600 * S);
    let now = world.now(0);
    for (id, ttl_ns, stands_us) in [(1, 60 * S, Some(60_000_000)), (2, 20 * MS, None)] {
        let reserve = Some(Reserve { ttl_ns, keeps: false, at_most: false });
        let recording = Recording {
            id: ChargeId(id),
            fingerprint: 1,
            is_repeatable: true,
            reserve,
            owner: 0,
            remember: Remember::Always,
        };
        let request = Request::new("shop", &[("key", "k")]);
        let reserved = world.nodes[0].asker.check_recorded(&request, now, Ask::CHECK, &recording);
        assert!(reserved.is_ok_and(|answer| answer.charge.is_some()));
        let node = &world.nodes[0].node;
        let kept = node.kept_at(ChargeId(id)).expect("a generation");
        let shared = node.share_answer(ChargeId(id), kept.generation, now);
        let stands = shared.as_ref().map(|shared| shared.drops_us - now.wall_ns / 1_000);
        // Two clocks that are 10 ms off, and one that drifts by a thousandth.
        let least = |us: u64| us - 20_000 - us / 400;
        assert_eq!(stands.is_some(), stands_us.is_some());
        assert!(stands.zip(stands_us).is_none_or(|(us, most)| (least(most)..most - 20_000).contains(&us)));
        if let Some(shared) = shared {
            let answer =
                world.nodes[1].asker.repeat(&recording, &shared.bytes, now).expect("one").expect("the same");
            let charge = answer.charge.expect("a name");
            assert_eq!((charge.reserved, charge.lapses_in_ns), (1, ttl_ns));
        }
    }
}

/// A reservation's real cost is not forgotten, even if its name could not be ended before the reservation
/// lapsed.
#[test]
fn the_real_cost_of_a_shared_reservation_counts_when_it_lapses() {
    let mut world = settled(2, window("w", 100, "600s"));
    world.pass(600 * S);
    let reserve = Some(Reserve { ttl_ns: 60 * S, keeps: false, at_most: false });
    for (id, said) in [(1, Some(1)), (2, None)] {
        let now = world.now(0);
        let recording = Recording {
            id: ChargeId(id),
            fingerprint: 1,
            is_repeatable: true,
            reserve,
            owner: 0,
            remember: Remember::Always,
        };
        let mut request = Request::new("shop", &[("key", "k")]);
        request.cost = 2;
        let asker = &mut world.nodes[0].asker;
        let before = scene::ask(asker, "k", 0, now).limits[0].verdict.remaining;
        assert!(
            asker.check_recorded(&request, now, Ask::CHECK, &recording).is_ok_and(|answer| answer.allowed)
        );
        let node = Arc::clone(&world.nodes[0].node);
        let kept = node.kept_at(ChargeId(id)).expect("a generation");
        assert!(node.share_answer(ChargeId(id), kept.generation, now).is_some());
        if let Some(cost) = said {
            assert!(matches!(node.settle(ChargeId(id), Some(cost), now), Settled::Shared { .. }));
        }
        world.pass(61 * S);
        let now = world.now(0);
        node.sweep(0, now);
        let left = scene::ask(&mut world.nodes[0].asker, "k", 0, now).limits[0].verdict.remaining;
        assert_eq!(before - left, said.unwrap_or(0));
        let late = node.settle(ChargeId(id), Some(1), now);
        let expected = if said.is_some() { Settled::Before { after_batch: 0 } } else { Settled::Lapsed };
        assert_eq!(late, expected);
    }
}
