//! The limits that are tested: texts that an operator may write.

use acequia_limits::{
    Algorithm, Limit, PERIOD_NS_MAX, UNITS_MAX,
    calendar::Period,
    limit::{
        BySpec, FixedWindowSpec, LeakyBucketSpec, LimitSpec, NoWait, QuotaSpec, SlidingWindowSpec,
        TokenBucketSpec, WINDOW_NS_MIN,
    },
    sliding::{APPROXIMATE_UNITS_MAX, LOG_UNITS_MAX, SLOTS_MAX},
};
use proptest::prelude::*;

use crate::dates::ZONES;

const S: u64 = 1_000_000_000;

/// A limit's algorithm and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Terms {
    Bucket { leaky: bool, units: u64, period_ns: u64, capacity: u64 },
    Fixed { limit: u64, window_ns: u64, stagger: bool },
    Calendar { limit: u64, period: Period, zone: &'static str },
    Sliding { limit: u64, window_ns: u64, slots: Option<u32>, quota: bool },
    Approximate { limit: u64, window_ns: u64 },
}

impl Terms {
    /// The terms as a config writes them.
    pub(crate) fn spec(&self) -> LimitSpec {
        let mut spec = nothing_limited();
        match *self {
            Self::Bucket { leaky: false, units, period_ns, capacity } => {
                spec.token_bucket =
                    Some(TokenBucketSpec { rate: format!("{units}/{period_ns}ns"), burst: capacity });
            }
            Self::Bucket { leaky: true, units, period_ns, capacity } => {
                let rate = format!("{units}/{period_ns}ns");
                spec.leaky_bucket = Some(LeakyBucketSpec { rate, queue: capacity, no_wait: NoWait::Deny });
            }
            Self::Fixed { limit, window_ns, stagger } => {
                spec.fixed_window =
                    Some(FixedWindowSpec { limit, window: format!("{window_ns}ns"), stagger });
            }
            Self::Calendar { limit, period, zone } => {
                let time_zone = Some(zone.to_owned());
                spec.quota = Some(QuotaSpec { limit, per: period.as_str().to_owned(), time_zone });
            }
            Self::Sliding { limit, window_ns, quota: true, .. } => {
                spec.quota = Some(QuotaSpec { limit, per: format!("{window_ns}ns"), time_zone: None });
            }
            Self::Sliding { limit, window_ns, slots, quota: false } => {
                let window = format!("{window_ns}ns");
                spec.sliding_window = Some(SlidingWindowSpec { limit, window, slots, approximate: false });
            }
            Self::Approximate { limit, window_ns } => {
                let window = format!("{window_ns}ns");
                spec.sliding_window =
                    Some(SlidingWindowSpec { limit, window, slots: None, approximate: true });
            }
        }
        spec
    }

    /// The algorithm that a config with these terms gives.
    pub(crate) fn algorithm(&self) -> Algorithm {
        Limit::new(self.spec()).unwrap_or_else(|faults| panic!("{self:?}: {faults:?}")).algorithm
    }

    /// The largest cost that can ever pass.
    pub(crate) fn budget(&self) -> u64 {
        match *self {
            Self::Bucket { capacity, .. } => capacity,
            Self::Fixed { limit, .. }
            | Self::Calendar { limit, .. }
            | Self::Sliding { limit, .. }
            | Self::Approximate { limit, .. } => limit,
        }
    }

    /// These terms with the other's parameters, so that both belong to one limit.
    pub(crate) fn renumbered(&self, numbers: &Self) -> Self {
        match (self.clone(), numbers.clone()) {
            (Self::Bucket { leaky, .. }, Self::Bucket { units, period_ns, capacity, .. }) => {
                Self::Bucket { leaky, units, period_ns, capacity }
            }
            (Self::Fixed { window_ns, stagger, .. }, Self::Fixed { limit, .. }) => {
                Self::Fixed { limit, window_ns, stagger }
            }
            (Self::Calendar { period, zone, .. }, Self::Calendar { limit, .. }) => {
                Self::Calendar { limit, period, zone }
            }
            (Self::Sliding { window_ns, quota, .. }, Self::Sliding { limit, slots, .. }) => {
                Self::Sliding { limit, window_ns, slots: slots.filter(|_| !quota), quota }
            }
            (Self::Approximate { window_ns, .. }, Self::Approximate { limit, .. }) => {
                Self::Approximate { limit, window_ns }
            }
            (terms, numbers) => panic!("{terms:?} and {numbers:?} are two limits"),
        }
    }
}

/// A limit without an algorithm.
pub(crate) fn nothing_limited() -> LimitSpec {
    LimitSpec {
        name: "per-key".to_owned(),
        domain: "shop".to_owned(),
        by: vec![BySpec::Key("api_key".to_owned())],
        ..LimitSpec::default()
    }
}

pub(crate) fn token_bucket() -> impl Strategy<Value = Terms> {
    bucket(false)
}

pub(crate) fn leaky_bucket() -> impl Strategy<Value = Terms> {
    bucket(true)
}

/// Rates that divide no nanosecond, rates that do, and extremes. Bursts that come back in 400 days.
fn bucket(leaky: bool) -> impl Strategy<Value = Terms> {
    let rate = prop_oneof![
        prop::sample::select(vec![
            (3, S),
            (7, 10 * S),
            (1, 86_400 * S),
            (60, S),
            (1_000_003, 60 * S),
            (5, 1),
            (1, PERIOD_NS_MAX),
            (UNITS_MAX - 1, PERIOD_NS_MAX),
            (UNITS_MAX, 1),
        ]),
        (up_to(1_000), up_to(100 * S)),
        (up_to(UNITS_MAX), up_to(PERIOD_NS_MAX)),
    ];
    let capacity = prop_oneof![1 => Just(1), 4 => up_to(100), 4 => up_to(UNITS_MAX), 1 => Just(UNITS_MAX)];
    (rate, capacity).prop_map(move |((units, period_ns), capacity)| {
        let comes_back = u128::from(units) * u128::from(PERIOD_NS_MAX) / u128::from(period_ns);
        let capacity = capacity.min(u64::try_from(comes_back).unwrap_or(UNITS_MAX));
        Terms::Bucket { leaky, units, period_ns, capacity }
    })
}

pub(crate) fn fixed_window() -> impl Strategy<Value = Terms> {
    (limit(UNITS_MAX), window_ns()).prop_map(|(limit, window_ns)| Terms::Fixed {
        limit,
        window_ns,
        stagger: false,
    })
}

pub(crate) fn staggered_window() -> impl Strategy<Value = Terms> {
    (limit(UNITS_MAX), window_ns()).prop_map(|(limit, window_ns)| Terms::Fixed {
        limit,
        window_ns,
        stagger: true,
    })
}

pub(crate) fn calendar_quota() -> impl Strategy<Value = Terms> {
    let period = prop::sample::select(vec![Period::Day, Period::Week, Period::Month, Period::Year]);
    (limit(UNITS_MAX), period, prop::sample::select(ZONES.to_vec()))
        .prop_map(|(limit, period, zone)| Terms::Calendar { limit, period, zone })
}

pub(crate) fn sliding_log() -> impl Strategy<Value = Terms> {
    (limit(LOG_UNITS_MAX), window_ns()).prop_map(|(limit, window_ns)| Terms::Sliding {
        limit,
        window_ns,
        slots: None,
        quota: false,
    })
}

pub(crate) fn sliding_slots() -> impl Strategy<Value = Terms> {
    let slots = prop_oneof![
        2 => (1_u32..=8).prop_map(Some),
        2 => (1..=SLOTS_MAX).prop_map(Some),
        1 => Just(None),
    ];
    (limit(UNITS_MAX), window_ns(), slots).prop_map(|(limit, window_ns, slots)| {
        let limit = if slots.is_none() { limit.max(LOG_UNITS_MAX + 1) } else { limit };
        Terms::Sliding { limit, window_ns, slots, quota: false }
    })
}

pub(crate) fn rolling_quota() -> impl Strategy<Value = Terms> {
    let limit = prop_oneof![limit(LOG_UNITS_MAX), limit(UNITS_MAX)];
    (limit, window_ns()).prop_map(|(limit, window_ns)| Terms::Sliding {
        limit,
        window_ns,
        slots: None,
        quota: true,
    })
}

pub(crate) fn approximate() -> impl Strategy<Value = Terms> {
    (limit(APPROXIMATE_UNITS_MAX), window_ns())
        .prop_map(|(limit, window_ns)| Terms::Approximate { limit, window_ns })
}

fn limit(max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 1 => Just(1), 8 => up_to(max.min(64)), 8 => up_to(max), 1 => Just(max)]
}

fn window_ns() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => prop::sample::select(vec![WINDOW_NS_MIN, S, 10 * S, 60 * S, 86_400 * S, PERIOD_NS_MAX]),
        3 => up_to(PERIOD_NS_MAX).prop_map(|ns| ns.max(WINDOW_NS_MIN)),
    ]
}

/// 1 to `max`, with all magnitudes equally likely.
fn up_to(max: u64) -> impl Strategy<Value = u64> {
    (any::<u64>(), 0_u32..64).prop_map(move |(number, shift)| 1 + (number >> shift) % max)
}
