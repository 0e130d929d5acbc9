//! Holds: units set apart for a request whose cost is known only when it is done.
//!
//! A request of cost 0 that passes is charged what it is expected to cost. The charge is settled when the real
//! cost is reported, and goes back if nobody reports it in time. What passes a limit is then at most what
//! requests cost beyond their holds.

use std::fmt;

use serde::{Deserialize, Serialize, de};

use crate::limit::units;

/// The costs that a cell's estimate rests on.
pub const COSTS_KEPT: usize = 32;
/// Fewer known costs than this say too little: the largest hold is used.
pub const COSTS_NEEDED: usize = 20;

/// `expect: { cost, within }`: a hold for each request of cost 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectSpec {
    /// The cost that is expected.
    pub cost: CostSpec,
    /// How long a hold waits for its report, such as `5m`: [`TTL_NS_MIN`](crate::limit::TTL_NS_MIN) to
    /// [`TTL_NS_MAX`](crate::limit::TTL_NS_MAX).
    pub within: String,
}

/// An expected cost: units, or `{ auto: { quantile, floor, cap } }`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum CostSpec {
    /// One cost for every request: 1 to [`UNITS_MAX`](crate::UNITS_MAX).
    Fixed(u64),
    /// By the costs that the cell has seen.
    Auto {
        /// How.
        auto: AutoSpec,
    },
}

/// `{ quantile, floor, cap }`: an expected cost by the last [`COSTS_KEPT`] costs of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoSpec {
    /// The part of those costs that a hold covers: above 0, at most 1.
    pub quantile: f64,
    /// The smallest hold; 1 if absent.
    #[serde(default = "one", deserialize_with = "units")]
    pub floor: u64,
    /// The largest hold, and the hold until [`COSTS_NEEDED`] costs are known.
    #[serde(deserialize_with = "units")]
    pub cap: u64,
}

const fn one() -> u64 {
    1
}

/// How a limit holds units, as it is enforced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expect {
    /// The expected cost.
    pub cost: ExpectedCost,
    /// How long a hold waits for its report, in nanoseconds.
    pub within_ns: u64,
}

/// The expected cost of a request, in units of its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpectedCost {
    /// One cost for every request.
    Fixed(u64),
    /// By the costs that the cell has seen.
    Auto(AutoSpec),
}

impl ExpectedCost {
    /// The largest cost that is ever expected.
    pub const fn most(self) -> u64 {
        match self {
            Self::Fixed(cost) => cost,
            Self::Auto(auto) => auto.cap,
        }
    }

    /// The expected cost, if these costs of the cell are known; in any order.
    pub fn of(self, known: &Costs) -> u64 {
        match self {
            Self::Fixed(cost) => cost,
            Self::Auto(auto) => {
                known.quantile(auto.quantile).unwrap_or(auto.cap).max(auto.floor).min(auto.cap)
            }
        }
    }
}

/// The last costs of a cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    last: Vec<u64>,
    /// The number of costs ever seen.
    seen: usize,
}

impl Costs {
    /// Notes a cost. The oldest of [`COSTS_KEPT`] is forgotten.
    pub fn note(&mut self, cost: u64) {
        let place = self.seen % COSTS_KEPT;
        match self.last.get_mut(place) {
            Some(oldest) => *oldest = cost,
            None => self.last.push(cost),
        }
        self.seen = place + 1 + if self.seen >= COSTS_KEPT { COSTS_KEPT } else { 0 };
    }

    /// The smallest known cost that is at least as large as this part of all known ones: the nearest rank
    /// (Hyndman and Fan 1996, definition 1). `None` if fewer than [`COSTS_NEEDED`] are known.
    fn quantile(&self, part: f64) -> Option<u64> {
        if self.last.len() < COSTS_NEEDED {
            return None;
        }
        let mut sorted = self.last.clone();
        sorted.sort_unstable();
        // At most 32 costs: the product is exact enough, and the conversion saturates.
        let rank = (part * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.clamp(1, sorted.len()) - 1).copied()
    }
}

impl<'de> Deserialize<'de> for CostSpec {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            auto: AutoSpec,
        }

        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = CostSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a cost, such as 5000, or { auto: { quantile: 0.9, cap: 20000 } }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<CostSpec, E> {
                crate::notation::parse_units(text).map(CostSpec::Fixed).map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, units: u64) -> Result<CostSpec, E> {
                Ok(CostSpec::Fixed(units))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<CostSpec, A::Error> {
                let Fields { auto } = Fields::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(CostSpec::Auto { auto })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTO: AutoSpec = AutoSpec { quantile: 0.9, floor: 10, cap: 1_000 };

    #[test]
    fn the_largest_hold_is_used_until_enough_costs_are_known() {
        let cost = ExpectedCost::Auto(AUTO);
        let mut known = Costs::default();
        for _ in 0..COSTS_NEEDED - 1 {
            known.note(50);
            assert_eq!(cost.of(&known), 1_000);
        }
        known.note(50);
        assert_eq!(cost.of(&known), 50);
    }

    #[test]
    fn a_hold_covers_its_part_of_the_last_costs_within_floor_and_cap() {
        let cost = ExpectedCost::Auto(AUTO);
        let of = |costs: &[u64]| {
            let mut known = Costs::default();
            costs.iter().for_each(|cost| known.note(*cost));
            cost.of(&known)
        };
        let rising: Vec<u64> = (1..=20).map(|n| n * 20).collect();
        assert_eq!(of(&rising), 360, "18 of 20 are no larger");
        assert_eq!(of(&[0; 40]), 10);
        assert_eq!(of(&[u64::MAX; 40]), 1_000);
        let forgotten: Vec<u64> = [900; 100].into_iter().chain([30; COSTS_KEPT]).collect();
        assert_eq!(of(&forgotten), 30, "only the last ones count");
    }

    #[test]
    fn a_fixed_cost_is_what_the_operator_wrote() {
        let cost = ExpectedCost::Fixed(600);
        assert_eq!((cost.of(&Costs::default()), cost.most()), (600, 600));
    }

    #[test]
    fn no_more_costs_are_kept_than_needed() {
        let mut known = Costs::default();
        (0..1_000).for_each(|cost| known.note(cost));
        assert_eq!(known.last.len(), COSTS_KEPT);
        let mut last = known.last.clone();
        last.sort_unstable();
        assert_eq!(last, (1_000 - COSTS_KEPT as u64..1_000).collect::<Vec<_>>());
    }
}
