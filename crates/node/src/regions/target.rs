//! Fair targets: weighted max-min fairness with floors and strict classes (Bertsekas & Gallager, *Data
//! Networks*, 6.5.2: water-filling).

use smallvec::SmallVec;

/// One region's claim to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceClaim {
    /// How much the region could use.
    pub(crate) want: u64,
    /// How much it gets before anybody gets more, if it wants that.
    pub(crate) floor: u64,
    /// Its weight among the claims of its class.
    pub(crate) weight: u32,
    /// Classes are served one after the other: 0 first.
    pub(crate) class: u8,
}

/// The targets of some claims.
pub(crate) type Targets = SmallVec<[u64; 8]>;

/// Cuts `total` among the claims: floors first, then class by class, so that in a class nobody has
/// less than its weighted part unless it wants no more. Nobody gets more than it wants.
pub(crate) fn water_fill(total: u64, claims: &[ResourceClaim]) -> Targets {
    let mut targets: Targets = SmallVec::new();
    let mut rest = total;
    for claim in claims {
        let floor = claim.floor.min(claim.want).min(rest);
        targets.push(floor);
        rest -= floor;
    }
    let mut classes: SmallVec<[u8; 4]> = claims.iter().map(|claim| claim.class).collect();
    classes.sort_unstable();
    classes.dedup();
    for class in classes {
        rest = fill_class(rest, class, claims, &mut targets);
    }
    targets
}

/// Serves one class; returns what is left.
fn fill_class(mut rest: u64, class: u8, claims: &[ResourceClaim], targets: &mut Targets) -> u64 {
    loop {
        let short: SmallVec<[usize; 8]> = (0..claims.len())
            .filter(|i| claims[*i].class == class && targets[*i] < claims[*i].want)
            .collect();
        let weights: u128 = short.iter().map(|i| u128::from(claims[*i].weight.max(1))).sum();
        if rest == 0 || short.is_empty() {
            return rest;
        }
        let part = |i: usize| {
            let part = u128::from(rest) * u128::from(claims[i].weight.max(1)) / weights;
            u64::try_from(part).unwrap_or(rest)
        };
        let content: SmallVec<[usize; 8]> =
            short.iter().copied().filter(|i| claims[*i].want - targets[*i] <= part(*i)).collect();
        if content.is_empty() {
            let parts: SmallVec<[u64; 8]> = short.iter().map(|i| part(*i)).collect();
            for (i, part) in short.iter().zip(&parts) {
                targets[*i] += part;
                rest -= part;
            }
            // Fewer units than claims are left over: they go to the first claims.
            for i in short {
                if rest > 0 && targets[i] < claims[i].want {
                    targets[i] += 1;
                    rest -= 1;
                }
            }
            return rest;
        }
        for i in content {
            rest -= claims[i].want - targets[i];
            targets[i] = claims[i].want;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(want: u64, weight: u32) -> ResourceClaim {
        ResourceClaim { want, floor: 0, weight, class: 0 }
    }

    #[test]
    fn small_claims_are_met_and_the_others_share_the_rest_by_weight() {
        let targets = water_fill(100, &[claim(10, 1), claim(80, 1), claim(60, 1)]);
        assert_eq!(targets.as_slice(), [10, 45, 45]);
        let targets = water_fill(100, &[claim(90, 2), claim(90, 1)]);
        assert_eq!(targets.as_slice(), [67, 33]);
    }

    #[test]
    fn floors_are_met_first_and_then_classes_in_order() {
        let all = [
            ResourceClaim { want: 90, floor: 0, weight: 1, class: 0 },
            ResourceClaim { want: 90, floor: 20, weight: 1, class: 1 },
        ];
        assert_eq!(water_fill(100, &all).as_slice(), [80, 20]);
    }

    proptest! {
        #[test]
        fn targets_sum_to_the_total_or_to_all_claims(
            total in 0..1_000u64,
            all in prop::collection::vec((0..500u64, 0..50u64, 1..5u32, 0..3u8), 1..8),
        ) {
            let claims: Vec<ResourceClaim> = all
                .iter()
                .map(|(want, floor, weight, class)| ResourceClaim { want: *want, floor: *floor, weight: *weight, class: *class })
                .collect();
            let targets = water_fill(total, &claims);
            let wanted: u64 = claims.iter().map(|c| c.want).sum();
            prop_assert_eq!(targets.iter().sum::<u64>(), total.min(wanted));
            for (target, claim) in targets.iter().zip(&claims) {
                prop_assert!(*target <= claim.want);
            }
        }
    }
}
