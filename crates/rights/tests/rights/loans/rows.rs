//! Compares our rows with the clocks that the counters of `crdts` consist of: a `GCounter` is a `VClock`
//! whose entries are summed, and a `PNCounter` is two. (The counters themselves use big integers, behind a
//! feature that we do not enable.)

use acequia_rights::UsageRow;
use crdts::{CmRDT, CvRDT, Dot, VClock};
use proptest::prelude::*;

const WRITERS: usize = 3;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_agree_with_a_model_of_grow_only_counters(
        steps in proptest::collection::vec((0..WRITERS, 0..WRITERS, 0_u8..3, 1_u64..20), 1..200),
    ) {
        // What each writer knows about all writers.
        let mut rows = [[UsageRow::default(); WRITERS]; WRITERS];
        let mut up: [VClock<usize>; WRITERS] = Default::default();
        let mut down: [VClock<usize>; WRITERS] = Default::default();
        let grow = |clock: &mut VClock<usize>, at: usize, units: u64| {
            let op = Dot::new(at, clock.get(&at) + units);
            clock.apply(op);
        };
        for (at, other, what, units) in steps {
            match what {
                0 => {
                    rows[at][at].spend(units, u64::MAX).expect("no limit");
                    grow(&mut up[at], at, units);
                }
                1 => {
                    let before = rows[at][at];
                    match rows[at][at].refund(units) {
                        Ok(()) => grow(&mut down[at], at, units),
                        Err(_) => prop_assert!(units > before.used() && before == rows[at][at]),
                    }
                }
                _ => {
                    let told = rows[other];
                    for (row, told) in rows[at].iter_mut().zip(&told) {
                        let before = *row;
                        row.join(told);
                        prop_assert!(row.spent() >= before.spent() && row.refunded() >= before.refunded());
                        prop_assert!(row.refunded() <= row.spent());
                    }
                    let (told_up, told_down) = (up[other].clone(), down[other].clone());
                    up[at].merge(told_up);
                    down[at].merge(told_down);
                }
            }
            let sum = |clock: &VClock<usize>| clock.iter().map(|dot| dot.counter).sum::<u64>();
            prop_assert_eq!(sum(&up[at]), rows[at].iter().map(|row| row.spent()).sum::<u64>());
            prop_assert_eq!(sum(&up[at]) - sum(&down[at]), rows[at].iter().map(|row| row.used()).sum::<u64>());
        }
    }
}

#[test]
fn no_row_refunds_more_than_it_spent() {
    assert!(UsageRow::new(3, 4).is_err());
    let mut row = UsageRow::new(u64::MAX - 2, 5).expect("a row");
    assert!(row.spend(3, u64::MAX).is_err(), "a grow-only number does not wrap");
    row.spend(2, u64::MAX).expect("room");
    assert_eq!((row.spent(), row.used()), (u64::MAX, u64::MAX - 5));
}
