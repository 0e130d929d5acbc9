//! The store that the nodes of a region share: its pools, names and servers.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use acequia_node::{
    Catalogue,
    pool::{GROUPS, LeaseCounts},
};
use acequia_store::redis::{BreakerState, ROUND_TRIP_BOUNDS_US, ShardState, ShardView};
use prometheus_client::registry::Unit;

use super::out::{GaugeOf, Out, by_path, labelled, signed};
use crate::{histogram::Histogram, region::OwnRegion};

const SHARD_GAUGES: [GaugeOf<ShardView, i64>; 3] = [
    GaugeOf {
        name: "acequia_store_open",
        help: "1 while the shard's primary can be called.",
        value: |shard| Some(i64::from(shard.state == ShardState::Open)),
    },
    GaugeOf {
        name: "acequia_store_breaker",
        help: "0 while calls pass, 1 while some do to try, 2 while none do.",
        value: |shard| {
            Some(match shard.breaker {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen => 1,
                BreakerState::Open => 2,
            })
        },
    },
    GaugeOf {
        name: "acequia_store_calls_in_flight",
        help: "Calls that wait for an answer.",
        value: |shard| Some(signed(shard.in_flight as u64)),
    },
];

const SHARD_SECONDS: [GaugeOf<ShardView, f64>; 3] = [
    GaugeOf {
        name: "acequia_store_last_round_trip",
        help: "The last answer's time there and back.",
        value: |shard| Some(shard.round_trip_us as f64 / 1e6),
    },
    GaugeOf {
        name: "acequia_store_function",
        help: "How long the shard's primary executed a function, the mean since the last look at it; 0 while that is not known.",
        value: |shard| Some(shard.function_us as f64 / 1e6),
    },
    GaugeOf {
        name: "acequia_store_clock_ahead",
        help: "What the clock of the shard's primary is ahead of the wall that this node goes by: below 0 where it is behind.",
        value: |shard| Some(shard.clock_ahead_ns? as f64 / 1e9),
    },
];

/// The nodes that share limits with this one, and the names of charges that they share.
pub(super) fn own_region(out: &mut Out<'_>, excluded: u64, region: &OwnRegion) -> fmt::Result {
    let nodes = region.nodes.len() as u64;
    out.gauge("acequia_region_nodes", "Nodes of this region, by the config.", nodes)?;
    out.gauge(
        "acequia_region_nodes_left_out",
        "Nodes of this region that are excluded, on an operator's word to this node.",
        excluded,
    )?;
    let names = &region.names.counts;
    let counted = |count: &AtomicU64| count.load(Ordering::Relaxed);
    out.counters(
        "acequia_shared_names",
        "Ids that this node had not seen, by what the store said of them in time: nothing, another node's answer, or no word.",
        [
            ([("outcome", "claimed")], counted(&names.claimed)),
            ([("outcome", "repeated")], counted(&names.repeated)),
            ([("outcome", "alone")], counted(&names.alone)),
        ],
    )
}

/// The calls of this node to the pools that the nodes of its region share.
pub(super) fn pools(out: &mut Out<'_>, counts: &LeaseCounts) -> fmt::Result {
    out.counters(
        "acequia_pool_calls",
        "Calls of the store's pools, by what became of them.",
        [
            ([("outcome", "made")], counts.calls),
            ([("outcome", "missed")], counts.missed),
            ([("outcome", "refused")], counts.refused),
        ],
    )?;
    out.counter(
        "acequia_pool_generations",
        "Times that a group of pools may have forgotten, and was told again what nodes hold.",
        counts.generations,
    )?;
    out.counter(
        "acequia_pool_assertions",
        "Times that this node told a group of pools that it knows all that the node holds.",
        counts.assertions,
    )?;
    out.counters(
        "acequia_guard_decisions",
        "What limits said while the store of the cell was lost, by what this node held and its guard share alone.",
        [([("outcome", "allowed")], counts.guard_allowed), ([("outcome", "denied")], counts.guard_denied)],
    )?;
    out.gauge("acequia_pool_cells", "Cells that take from the store's pools now.", counts.cells)?;
    out.gauges(
        "acequia_pool_groups",
        "Groups of pools that grant, fewer while the store or a node of the region is not there; whose store is lost; and all.",
        [
            ([("which", "granting")], counts.granting),
            ([("which", "lost")], counts.lost),
            ([("which", "all")], GROUPS.into()),
        ],
    )
}

/// The units of pools that this node holds, by the limit's slot.
pub(super) fn held(out: &mut Out<'_>, units: &BTreeMap<u32, u64>, catalogue: &Catalogue) -> fmt::Result {
    let by_limit =
        by_path(&catalogue.limits, |active| Some([units.get(&active.slot()).copied().unwrap_or(0)]));
    let help = "Units that this node holds of its region's pools, and has not spent or given back.";
    out.gauges("acequia_leases_out_units", help, labelled(&by_limit))
}

/// The servers that have the pools.
pub(super) fn shards(out: &mut Out<'_>, shards: &[ShardView]) -> fmt::Result {
    let named: Vec<(&str, &ShardView)> = shards.iter().map(|shard| (shard.name.as_str(), shard)).collect();
    SHARD_GAUGES.iter().try_for_each(|gauge| out.gauge_of_each(gauge, None, "shard", &named))?;
    let seconds = Some(&Unit::Seconds);
    SHARD_SECONDS.iter().try_for_each(|gauge| out.gauge_of_each(gauge, seconds, "shard", &named))?;
    let calls = named.iter().map(|(name, shard)| ([("shard", *name)], shard.calls));
    out.counters("acequia_store_calls", "Calls of the shard.", calls)?;
    let missed = named.iter().map(|(name, shard)| ([("shard", *name)], shard.missed));
    out.counters("acequia_store_calls_missed", "Calls that were not answered.", missed)?;
    let trips = named.iter().map(|(name, shard)| {
        let trips = &shard.round_trips;
        let (buckets, above, sum) = (trips.buckets, trips.above, trips.sum_us as f64 / 1e6);
        ([("shard", *name)], Histogram { buckets, above, sum })
    });
    let help = "Times there and back of calls and pings that were answered.";
    let bounds = ROUND_TRIP_BOUNDS_US.map(|us| us as f64 / 1e6);
    out.histograms("acequia_store_round_trip", help, &bounds, trips)
}

#[cfg(test)]
mod tests {
    use acequia_limits::limit::OnStoreLoss;
    use acequia_store::redis::RoundTrips;
    use prometheus_client::{
        collector::Collector,
        encoding::{DescriptorEncoder, text::encode},
        registry::Registry,
    };

    use super::*;
    use crate::respond::lost::answer;

    /// One part of the metrics.
    #[derive(Debug)]
    struct Part(fn(&mut Out<'_>) -> fmt::Result);

    impl Collector for Part {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            (self.0)(&mut Out(encoder))
        }
    }

    fn text_of(part: fn(&mut Out<'_>) -> fmt::Result) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Part(part)));
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        text
    }

    #[track_caller]
    fn expect_lines(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|other| other == *line), "no {line} in {text}");
        }
        // Each kind has a word for itself.
        let named = |kind: &str| -> Vec<String> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(kind));
            lines.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
        };
        assert_eq!(named("# HELP "), named("# TYPE "));
    }

    #[test]
    fn metrics_show_pools() {
        let text = text_of(|out| {
            let counts = LeaseCounts {
                calls: 1,
                missed: 2,
                refused: 3,
                generations: 4,
                assertions: 5,
                cells: 6,
                granting: 7,
                lost: 8,
                open_units: 9,
                guard_allowed: 10,
                guard_denied: 11,
            };
            pools(out, &counts)
        });
        expect_lines(
            &text,
            &[
                r#"acequia_pool_calls_total{outcome="made"} 1"#,
                r#"acequia_pool_calls_total{outcome="missed"} 2"#,
                r#"acequia_pool_calls_total{outcome="refused"} 3"#,
                "acequia_pool_generations_total 4",
                "acequia_pool_assertions_total 5",
                "acequia_pool_cells 6",
                r#"acequia_pool_groups{which="granting"} 7"#,
                r#"acequia_pool_groups{which="lost"} 8"#,
                r#"acequia_pool_groups{which="all"} 1024"#,
                r#"acequia_guard_decisions_total{outcome="allowed"} 10"#,
                r#"acequia_guard_decisions_total{outcome="denied"} 11"#,
            ],
        );
    }

    #[test]
    fn metrics_show_the_leased_units_of_every_limit() {
        let some = text_of(|out| {
            let (_, catalogue) = answer(OnStoreLoss::Guard);
            let slot = catalogue.limits[0].slot();
            held(out, &[(slot, 12), (slot + 1, 7)].into(), &catalogue)
        });
        expect_lines(&some, &[r#"acequia_leases_out_units{limit="shop/per-key"} 12"#]);
        let none = text_of(|out| held(out, &BTreeMap::new(), &answer(OnStoreLoss::Guard).1));
        expect_lines(&none, &[r#"acequia_leases_out_units{limit="shop/per-key"} 0"#]);
    }

    #[test]
    fn metrics_show_the_shards_of_the_store() {
        let text = text_of(|out| {
            let shard = |name: &str, round_trips| ShardView {
                name: name.to_owned(),
                address: "127.0.0.1:6379".parse().expect("an address"),
                run_id: None,
                state: ShardState::Open,
                breaker: BreakerState::HalfOpen,
                round_trip_us: 120,
                round_trips,
                function_us: 35,
                calls: 40,
                missed: 4,
                in_flight: 3,
                clock_ahead_ns: Some(-2_000_000),
            };
            let mut round_trips = RoundTrips { above: 1, sum_us: 2_500_000, ..RoundTrips::default() };
            (round_trips.buckets[0], round_trips.buckets[1]) = (5, 2);
            shards(out, &[shard("a", round_trips), shard("b", RoundTrips::default())])
        });
        expect_lines(
            &text,
            &[
                r#"acequia_store_open{shard="a"} 1"#,
                r#"acequia_store_breaker{shard="a"} 1"#,
                r#"acequia_store_last_round_trip_seconds{shard="a"} 0.00012"#,
                r#"acequia_store_function_seconds{shard="a"} 0.000035"#,
                r#"acequia_store_clock_ahead_seconds{shard="a"} -0.002"#,
                r#"acequia_store_calls_in_flight{shard="a"} 3"#,
                r#"acequia_store_calls_total{shard="a"} 40"#,
                r#"acequia_store_calls_missed_total{shard="a"} 4"#,
                "# TYPE acequia_store_round_trip_seconds histogram",
                r#"acequia_store_round_trip_seconds_bucket{le="0.0001",shard="a"} 5"#,
                r#"acequia_store_round_trip_seconds_bucket{le="0.00025",shard="a"} 7"#,
                r#"acequia_store_round_trip_seconds_bucket{le="0.1",shard="a"} 7"#,
                r#"acequia_store_round_trip_seconds_bucket{le="+Inf",shard="a"} 8"#,
                r#"acequia_store_round_trip_seconds_count{shard="a"} 8"#,
                r#"acequia_store_round_trip_seconds_sum{shard="a"} 2.5"#,
                r#"acequia_store_round_trip_seconds_count{shard="b"} 0"#,
            ],
        );
    }
}
