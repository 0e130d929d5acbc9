//! `/metrics`: OpenMetrics text, made on request. No value of a descriptor is ever a label, and times are in
//! seconds.
//!
//! `deploy/metrics.md` and the two pages that it names say what the metrics mean. A test compares those
//! tables with what nodes show.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use acequia_api::acequia::v1::{Holding, LimitStatus, Mark, Peer};
use acequia_limits::limit::OnStoreLoss;
use acequia_node::{
    Active, Catalogue, ForwardCounts,
    pool::{GROUPS, LeaseCounts},
};
use acequia_store::redis::{BreakerState, ROUND_TRIP_BOUNDS_US, ShardState, ShardView};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder, text::encode},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use crate::{
    cells::{Hottest, VERDICTS},
    charges::settled_word,
    clock::{Counter, Health},
    hints::{HINT_SECONDS, Hints},
    process::Process,
    region::Siblings,
    regions::Regions,
    tally::{DECISION_SECONDS, Histogram, OUTCOMES, SETTLED, Tally},
    unmatched,
    webhooks::Counts as WebhookCounts,
    worker::Shared,
};

/// How many hot cells are shown for each limit.
const HOT_SHOWN: usize = 5;

/// How often the config was read again since the start.
#[derive(Debug, Default)]
pub struct Reloads {
    /// The new config was put in force.
    pub applied: AtomicU64,
    /// The new config was refused, and the old one stays.
    pub refused: AtomicU64,
    /// The config was read, and nothing in it was new.
    pub unchanged: AtomicU64,
}

/// Everything that a node counts, as text.
pub fn text(shared: &Arc<Shared>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Counts(Arc::clone(shared))));
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => text,
        Err(fault) => format!("# cannot write the metrics: {fault}\n"),
    }
}

#[derive(Debug)]
struct Counts(Arc<Shared>);

impl Collector for Counts {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let shared = &self.0;
        let mut tally = Tally::default();
        let (mut hottest, now) = (Vec::new(), shared.clock.now());
        for worker in shared.workers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            tally.add(&worker.counted());
            worker.add_hottest(&mut hottest, now);
        }
        let mut out = Out(encoder);
        out.of_build()?;
        out.of_process(&Process::look())?;
        let catalogue = shared.node.catalogue();
        out.of_limits(&tally, &hottest, &catalogue)?;
        if catalogue.has_candidates {
            out.of_candidates(shared, &catalogue)?;
        }
        out.of_open(&catalogue)?;
        out.counter(
            "acequia_requests",
            "Requests by verdict.",
            &[(&[("decision", "allow")], tally.allowed), (&[("decision", "deny")], tally.denied)],
        )?;
        out.of_hints(&tally.hints, &catalogue)?;
        out.of_decisions(&tally.decision)?;
        let one = |value| [(&NO_LABELS[..], value)];
        out.counter("acequia_bad_requests", "Requests refused as malformed.", &one(tally.bad_requests))?;
        out.counter(
            "acequia_unmatched_descriptors",
            "Descriptors that no limit counted or exempted.",
            &one(tally.unmatched),
        )?;
        out.of_unmatched(&tally.unmatched_requests)?;
        let expired = shared.expired.load(Ordering::Relaxed);
        out.counter("acequia_calls_expired", "Calls past their deadline, not decided.", &one(expired))?;
        out.of_connections(shared)?;
        let siblings = shared.siblings.get();
        if shared.regions.get().is_some() || siblings.is_some() {
            let [passed, denied] = tally.waited;
            out.counter(
                "acequia_waits",
                "Requests that waited for units of other regions or of the store, by what became of them; crowded: too many waited already.",
                &[
                    (&[("outcome", "allow")], passed),
                    (&[("outcome", "deny")], denied),
                    (&[("outcome", "crowded")], tally.crowded),
                ],
            )?;
        }
        if shared.regions.get().is_some() && siblings.is_some() {
            let ForwardCounts { asked, charged, used, wasted } = shared.node.forward_counts();
            out.counter(
                "acequia_forwards",
                "Forwards for cells of few units, among the nodes of a region: asked for by this node; charged here for others; of those that others charged, used to pass a request here, or wasted, since no request waited any more.",
                &[
                    (&[("outcome", "asked")], asked),
                    (&[("outcome", "charged")], charged),
                    (&[("outcome", "used")], used),
                    (&[("outcome", "wasted")], wasted),
                ],
            )?;
        }
        out.of_clock(shared.clock.health())?;
        out.of_charges(shared, &tally, &catalogue)?;
        let usage = shared.node.usage();
        out.gauge("acequia_cells", "Cells in memory.", &one(usage.cells))?;
        let journal = shared.writer.as_ref().map_or(0, |writer| writer.store().cache_bytes() as u64);
        out.gauge(
            "acequia_memory_bytes",
            "What is used of `memory`: by cells; by charges and what waits for the disk; by parts of the journal's file, at most.",
            &[
                (&[("of", "cells")], usage.bytes),
                (&[("of", "charges")], usage.bytes_beside),
                (&[("of", "journal")], journal),
            ],
        )?;
        out.counter("acequia_cells_evicted", "Idle cells forgotten.", &one(usage.evicted))?;
        out.gauge(
            "acequia_limits_overflowing",
            "Limits whose new cells share one, because the memory for cells is full.",
            &one(usage.overflowing),
        )?;
        out.gauge("acequia_limits", "Limits in the config.", &one(catalogue.limits.len() as u64))?;
        let Reloads { applied, refused, unchanged } = &shared.reloads;
        out.counter(
            "acequia_config_reloads",
            "Config files that were read again, by what became of them.",
            &[
                (&[("outcome", "unchanged")], unchanged.load(Ordering::Relaxed)),
                (&[("outcome", "applied")], applied.load(Ordering::Relaxed)),
                (&[("outcome", "refused")], refused.load(Ordering::Relaxed)),
            ],
        )?;
        let differences = match (shared.regions.get(), shared.alone.get()) {
            (Some(regions), _) => regions.differences(now),
            (None, Some(alone)) => alone.differences(now.wall_ns).len() as u64,
            (None, None) => 0,
        };
        let help = "Differences between the limits of this node's file and those that count.";
        out.gauge("acequia_config_differences", help, &one(differences))?;
        let ready = "0 while the node is stopping, or has no catalogue that names it.";
        out.gauge("acequia_ready", ready, &one(u64::from(shared.ready().is_ok())))?;
        if let Some(regions) = shared.regions.get() {
            out.of_regions(shared, regions)?;
        }
        if let Some(siblings) = siblings {
            let left_out = shared.node.left_out(shared.clock.now()).len() as u64;
            out.of_siblings(left_out, siblings)?;
            out.of_pools(&shared.node.lease_counts())?;
            out.of_held(&shared.node.units_held(), &catalogue)?;
            out.of_shards(&siblings.shards())?;
        }
        if let Some(webhooks) = shared.webhooks.get() {
            out.of_webhooks(&webhooks.counts())?;
        }
        if let Some(writer) = &shared.writer {
            let load = |count: &AtomicU64| one(count.load(Ordering::Relaxed));
            out.counter("acequia_journal_commits", "Commits of the journal.", &load(&writer.commits))?;
            out.counter("acequia_journal_rows", "Rows written to the journal.", &load(&writer.rows))?;
            out.counter("acequia_journal_failures", "Commits that failed.", &load(&writer.failures))?;
            let down = u64::from(shared.node.is_journal_down());
            out.gauge("acequia_journal_down", "1 while the journal cannot be written.", &one(down))?;
            let seconds = writer.commit_ns.load(Ordering::Relaxed) as f64 / 1e9;
            out.seconds_total("acequia_journal_commit", "Time spent in commits of the journal.", seconds)?;
        }
        Ok(())
    }
}

const NO_LABELS: [(&str, &str); 0] = [];

/// A gauge of a peer or a server: its name, its help text, and how its value is read, if it has one.
type GaugeOf<T, V> = (&'static str, &'static str, fn(&T) -> Option<V>);

const PEER_GAUGES: [GaugeOf<Peer, u64>; 4] = [
    ("acequia_peer_connected", "1 while there is a connection.", |peer| Some(u64::from(peer.connected))),
    ("acequia_peer_reached", "1 while it was heard lately, so that rights are lent to it.", |peer| {
        Some(u64::from(peer.reached))
    }),
    ("acequia_peer_lent", "Loans given to it now.", |peer| Some(peer.lent)),
    ("acequia_peer_borrowed", "Loans held of it now.", |peer| Some(peer.borrowed)),
];

const PEER_SECONDS: [GaugeOf<Peer, f64>; 3] = [
    ("acequia_peer_heard_ago", "Since it was last heard.", |peer| Some(peer.heard_ms_ago? as f64 / 1e3)),
    ("acequia_peer_round_trip", "There and back.", |peer| Some(peer.round_trip_us? as f64 / 1e6)),
    (
        "acequia_peer_wall_ahead",
        "What its system's wall clock is ahead of the one that this node goes by: below 0 where it is behind.",
        |peer| Some(peer.wall_ahead_us? as f64 / 1e6),
    ),
];

const SHARD_GAUGES: [GaugeOf<ShardView, u64>; 3] = [
    ("acequia_store_open", "1 while the shard's primary can be called.", |shard| {
        Some(u64::from(shard.state == ShardState::Open))
    }),
    ("acequia_store_breaker", "0 while calls pass, 1 while some do to try, 2 while none do.", |shard| {
        Some(match shard.breaker {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        })
    }),
    ("acequia_store_calls_in_flight", "Calls that wait for an answer.", |shard| Some(shard.in_flight as u64)),
];

const SHARD_SECONDS: [GaugeOf<ShardView, f64>; 3] = [
    ("acequia_store_last_round_trip", "The last answer's time there and back.", |shard| {
        Some(shard.round_trip_us as f64 / 1e6)
    }),
    (
        "acequia_store_function",
        "How long the shard's primary executed a function, the mean since the last look at it; 0 while that is not known.",
        |shard| Some(shard.function_us as f64 / 1e6),
    ),
    (
        "acequia_store_clock_ahead",
        "What the clock of the shard's primary is ahead of the wall that this node goes by: below 0 where it is behind.",
        |shard| Some(shard.clock_ahead_ns? as f64 / 1e9),
    ),
];

/// A metric's values by their labels.
type Values<'a> = &'a [(&'a [(&'a str, &'a str)], u64)];

struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    /// Which binary runs.
    fn of_build(&mut self) -> Result<(), std::fmt::Error> {
        let help = "The version of the binary, and the processors that it is built for.";
        let mut metric = self.0.encode_descriptor("acequia_build", help, None, MetricType::Info)?;
        metric.encode_info(&[("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)])
    }

    /// The metrics that every client of Prometheus shows, under the agreed names.
    fn of_process(&mut self, process: &Process) -> Result<(), std::fmt::Error> {
        let Process { start_s, cpu_s, resident_bytes, virtual_bytes, threads, open_fds, max_fds } = *process;
        if let Some(start_s) = start_s {
            let help = "When the process started, in seconds since 1970.";
            self.measured("process_start_time", help, Unit::Seconds, start_s)?;
        }
        if let Some(cpu_s) = cpu_s {
            self.seconds_total("process_cpu", "Time that processors spent on the process.", cpu_s)?;
        }
        for (name, help, bytes) in [
            ("process_resident_memory", "Memory that the process has.", resident_bytes),
            ("process_virtual_memory", "Addresses that the process has.", virtual_bytes),
        ] {
            if let Some(bytes) = bytes {
                self.measured(name, help, Unit::Bytes, signed(bytes))?;
            }
        }
        for (name, help, count) in [
            ("process_threads", "Threads of the process.", threads),
            ("process_open_fds", "Descriptors that are open.", open_fds),
            ("process_max_fds", "Descriptors that may be open.", max_fds),
        ] {
            if let Some(count) = count {
                self.gauge(name, help, &[(&NO_LABELS, count)])?;
            }
        }
        Ok(())
    }

    /// The waits that denied requests were told.
    fn of_hints(&mut self, hints: &Hints, catalogue: &Catalogue) -> Result<(), std::fmt::Error> {
        let help = "Waits that denied requests were told, by the limit that decided and the reason: the first 200 such pairs, and other.";
        let unit = Unit::Seconds;
        let mut metric =
            self.0.encode_descriptor("acequia_retry_after", help, Some(&unit), MetricType::Histogram)?;
        for ((limit, reason), waits) in hints.by_label(catalogue) {
            let labels = [("limit", limit.as_str()), ("reason", reason)];
            encode_histogram(&mut metric.encode_family(&labels)?, &HINT_SECONDS, &waits)?;
        }
        Ok(())
    }

    /// How long decisions take.
    fn of_decisions(&mut self, decision: &Histogram<12>) -> Result<(), std::fmt::Error> {
        let (help, unit) = ("Time that a decision takes in the node; one in 64 is timed.", Unit::Seconds);
        let name = "acequia_decision_duration";
        let mut metric = self.0.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
        encode_histogram(&mut metric, &DECISION_SECONDS, decision)
    }

    fn of_limits(
        &mut self,
        tally: &Tally,
        hottest: &[Hottest],
        catalogue: &Catalogue,
    ) -> Result<(), std::fmt::Error> {
        let help = "What limits said of the requests they matched.";
        let mut metric = self.0.encode_descriptor("acequia_decisions", help, None, MetricType::Counter)?;
        let outcomes =
            by_path(&catalogue.limits, |active| Some(tally.limits.get(active.slot() as usize)?.outcomes));
        for (path, counts) in &outcomes {
            for (word, count) in OUTCOMES.iter().zip(*counts) {
                let labels = [("limit", path.as_str()), ("decision", word)];
                metric.encode_family(&labels)?.encode_counter::<NoExemplar, _, u64>(&count, None)?;
            }
        }
        let help = "What the cells asked for most have left, from samples: rank 1 is the hottest.";
        let name = "acequia_hottest_cell_remaining";
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let mut by_limit: BTreeMap<String, Hottest> = BTreeMap::new();
        for active in &catalogue.limits {
            let Some(hot) = hottest.get(active.slot() as usize) else { continue };
            by_limit.entry(active.limit.path()).or_default().extend(hot);
        }
        for (path, mut hot) in by_limit {
            hot.sort_by_key(|cell| (std::cmp::Reverse(cell.count), cell.tag));
            for (rank, cell) in (1..=HOT_SHOWN).zip(&hot) {
                let rank = rank.to_string();
                let labels = [("limit", path.as_str()), ("rank", rank.as_str())];
                metric.encode_family(&labels)?.encode_gauge(&signed(cell.remaining))?;
            }
        }
        Ok(())
    }

    /// The connections of callers, and the callers that were turned away.
    fn of_connections(&mut self, shared: &Shared) -> Result<(), std::fmt::Error> {
        let ports = shared.connections.ports();
        let names: Vec<_> = ports.iter().map(|port| [("port", port.port().name())]).collect();
        let open: Vec<(&[(&str, &str)], u64)> =
            names.iter().zip(&ports).map(|(labels, port)| (&labels[..], port.count() as u64)).collect();
        self.gauge("acequia_connections", "Connections that are open.", &open)?;
        let ended: Vec<_> = ports.iter().flat_map(|port| port.ended().counts(port.port().name())).collect();
        let ended: Vec<(&[(&str, &str)], u64)> =
            ended.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        let help = "Connections that the node ended: silent, without a call; idle, without one for long; crowded, others needed the place; old; held, it had the most bytes of unfinished messages.";
        self.counter("acequia_connections_ended", help, &ended)?;
        let held = [(&NO_LABELS[..], shared.connections.held() as u64)];
        self.gauge("acequia_unfinished_bytes", "Bytes of calls that are not answered yet.", &held)?;
        let refused = shared.refused.counts();
        let refused: Vec<(&[(&str, &str)], u64)> =
            refused.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        self.counter("acequia_callers_refused", "Callers that were turned away.", &refused)
    }

    /// How this process' clocks are.
    fn of_clock(&mut self, health: Health) -> Result<(), std::fmt::Error> {
        let one = |value| [(&NO_LABELS[..], value)];
        self.gauge(
            "acequia_clock_counter_unstable",
            "1 where the processor's counter cannot be trusted, so that the system's clock is read instead.",
            &one(u64::from(health.counter == Counter::Unstable)),
        )?;
        let help = "How far this wall is ahead of the system's, which was set back.";
        self.measured("acequia_clock_ahead", help, Unit::Seconds, health.ahead_ns as f64 / 1e9)?;
        self.counter(
            "acequia_clock_slews",
            "How often the system's wall was set back by 3 s or less, so that this one was slewed.",
            &one(health.slews),
        )?;
        self.counter(
            "acequia_clock_steps_back",
            "How often the system's wall was set back by more than 3 s, and this one with it.",
            &one(health.steps_back),
        )?;
        self.counter(
            "acequia_clock_impossible_readings",
            "Readings of the system's wall that no wall can have.",
            &one(health.impossible),
        )
    }

    /// The charges that are remembered, and the units that were given back.
    fn of_charges(
        &mut self,
        shared: &Shared,
        tally: &Tally,
        catalogue: &Catalogue,
    ) -> Result<(), std::fmt::Error> {
        let one = |value| [(&NO_LABELS[..], value)];
        let view = shared.node.charges();
        self.gauge("acequia_charges", "Charges that are remembered by a name.", &one(view.records))?;
        self.gauge("acequia_reservations", "Charges that wait for their real cost.", &one(view.reserved))?;
        let help = "Questions that were answered before, under the same id.";
        self.counter("acequia_repeats", help, &one(tally.repeats))?;
        let outcomes = SETTLED.map(|settled| [("outcome", settled_word(settled))]);
        let settled: Vec<(&[(&str, &str)], u64)> =
            outcomes.iter().zip(tally.settled).map(|(labels, count)| (&labels[..], count)).collect();
        self.counter("acequia_settled", "Refunds and commits, by what became of them.", &settled)?;
        let (warned, dropped) = shared.warned.counts();
        let help = "Cells that reached a part of their limit, in percent, once each a window.";
        let mut metric = self.0.encode_descriptor("acequia_warnings", help, None, MetricType::Counter)?;
        for ((limit, percent), count) in &warned {
            let percent = percent.to_string();
            let labels = [("limit", limit.as_str()), ("percent", percent.as_str())];
            metric.encode_family(&labels)?.encode_counter::<NoExemplar, _, u64>(count, None)?;
        }
        let help = "Warnings that there was no room for.";
        self.counter("acequia_warnings_dropped", help, &one(dropped))?;
        let help = "Units given back by refunds and commits that callers asked for.";
        let mut metric =
            self.0.encode_descriptor("acequia_refunded_units", help, None, MetricType::Counter)?;
        let refunded =
            by_path(&catalogue.limits, |active| Some([tally.limits.get(active.slot() as usize)?.refunded]));
        for (path, [refunded]) in &refunded {
            let labels = [("limit", path.as_str())];
            metric.encode_family(&labels)?.encode_counter::<NoExemplar, _, u64>(refunded, None)?;
        }
        Ok(())
    }

    /// The units that limits which stay open gave up in a store outage.
    fn of_open(&mut self, catalogue: &Catalogue) -> Result<(), std::fmt::Error> {
        let is_open = |active: &&Active| active.limit.spec.on_store_loss == OnStoreLoss::Open;
        let open = by_path(catalogue.limits.iter().filter(is_open), |active| Some([active.open_units()]));
        if open.is_empty() {
            return Ok(());
        }
        let help = "Units that passed while the store was lost, though this node did not have them.";
        let mut metric = self.0.encode_descriptor("acequia_open_units", help, None, MetricType::Counter)?;
        for (path, [units]) in &open {
            let labels = [("limit", path.as_str())];
            metric.encode_family(&labels)?.encode_counter::<NoExemplar, _, u64>(units, None)?;
        }
        Ok(())
    }

    /// The verdicts of candidates and their live limits on requests that hit both.
    fn of_candidates(&mut self, shared: &Shared, catalogue: &Catalogue) -> Result<(), std::fmt::Error> {
        let help = "Requests that hit a candidate and its live limit, by what both said.";
        let mut metric =
            self.0.encode_descriptor("acequia_candidate_verdicts", help, None, MetricType::Counter)?;
        for active in &catalogue.limits {
            let Some(live) = active.live else { continue };
            let counts =
                shared.cells_of(active.slot()).candidate.map_or([0; 4], |compared| compared.verdicts);
            let (candidate, live) = (active.limit.path(), catalogue.limits[live as usize].limit.path());
            for (verdict, count) in VERDICTS.iter().zip(counts) {
                let labels =
                    [("candidate", candidate.as_str()), ("live", live.as_str()), ("verdict", verdict)];
                metric.encode_family(&labels)?.encode_counter::<NoExemplar, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    /// The units that a region may spend, the regions that were heard, and the units in transfer.
    fn of_regions(&mut self, shared: &Shared, regions: &Regions) -> Result<(), std::fmt::Error> {
        let status = regions.status(shared);
        let peers: Vec<String> =
            status.peers.iter().map(|peer| format!("{}/{}", peer.region, peer.node)).collect();
        let peers: Vec<(&str, &Peer)> = peers.iter().map(String::as_str).zip(&status.peers).collect();
        for (name, help, value) in PEER_GAUGES {
            self.gauge_of_each((name, help, None), "peer", &peers, |peer| value(peer).map(signed))?;
        }
        for (name, help, value) in PEER_SECONDS {
            self.gauge_of_each((name, help, Some(&Unit::Seconds)), "peer", &peers, value)?;
        }
        let of_catalogue = |mark: Option<Mark>| mark.map_or(0, |mark| mark.number);
        if let Some(catalogue) = &status.catalogue {
            let requested = of_catalogue(catalogue.requested);
            let effective = of_catalogue(catalogue.effective);
            let help = "The catalogue's version here, and the one that every region conforms to.";
            let values: [(&[(&str, &str)], u64); 2] =
                [(&[("which", "requested")], requested), (&[("which", "effective")], effective)];
            self.gauge("acequia_catalogue_version", help, &values)?;
        }
        let one = |value| [(&NO_LABELS[..], value)];
        let suspect = u64::from(status.clock_is_suspect);
        self.gauge(
            "acequia_clock_suspect",
            "1 while the wall clock disagrees with the peers'.",
            &one(suspect),
        )?;
        let help = "By which wall clock this node goes: 1 for that one.";
        let walls = ["own", "peers", "carried", "unconfirmed"].map(|wall| ([("wall", wall)], wall));
        let walls = walls.each_ref().map(|(labels, wall)| (&labels[..], u64::from(status.wall == *wall)));
        self.gauge("acequia_clock_wall", help, &walls)?;
        self.gauge("acequia_warm_cells", "Cells that are shared actively.", &one(status.warm_cells))?;
        let expiry = regions.certificate_expiry_s();
        let help = "When this node's certificate expires, in seconds since 1970.";
        self.gauge("acequia_certificate_expiry_timestamp_seconds", help, &one(expiry))?;
        let traffic = status.traffic.unwrap_or_default();
        let (way_in, way_out) = ([("way", "in")], [("way", "out")]);
        let frames: Values<'_> = &[(&way_in, traffic.frames_in), (&way_out, traffic.frames_out)];
        self.counter("acequia_mesh_frames", "Frames from and to other regions.", frames)?;
        let bytes: Values<'_> = &[(&way_in, traffic.bytes_in), (&way_out, traffic.bytes_out)];
        self.counter("acequia_mesh_bytes", "Bytes of frames from and to other regions.", bytes)?;
        let mut refused = vec![("frame", traffic.frames_refused), ("entry", traffic.entries_refused)];
        refused.push(("signature", regions.node.traffic().seals_refused));
        refused.extend(regions.refused().iter().map(|(refusal, count)| (refusal.name(), count)));
        let refused: Vec<_> = refused.into_iter().map(|(what, count)| ([("what", what)], count)).collect();
        let refused: Vec<(&[(&str, &str)], u64)> =
            refused.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        let help = "What came of other regions, or of strangers, and was refused.";
        self.counter("acequia_mesh_refused", help, &refused)?;
        self.counter("acequia_loans_given", "Loans given to other regions.", &one(traffic.loans_given))?;
        self.counter("acequia_loans_taken", "Loans taken up from other regions.", &one(traffic.loans_taken))?;
        self.counter("acequia_rights_given", "Gifts of rights in windows.", &one(traffic.rights_given))?;
        self.of_holdings(&status.limits)
    }

    /// The nodes that share limits with this one, and the names of charges that they share.
    fn of_siblings(&mut self, left_out: u64, siblings: &Siblings) -> Result<(), std::fmt::Error> {
        let one = |value| [(&NO_LABELS[..], value)];
        self.gauge(
            "acequia_region_nodes",
            "Nodes of this region, by the config.",
            &one(siblings.nodes.len() as u64),
        )?;
        self.gauge(
            "acequia_region_nodes_left_out",
            "Nodes of this region that are not waited for, on an operator's word to this node.",
            &one(left_out),
        )?;
        let names = &siblings.names.counts;
        let counted = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.counter(
            "acequia_shared_names",
            "Ids that this node had not seen, by what the store said of them in time: nothing, another node's answer, or no word.",
            &[
                (&[("outcome", "claimed")], counted(&names.claimed)),
                (&[("outcome", "repeated")], counted(&names.repeated)),
                (&[("outcome", "alone")], counted(&names.alone)),
            ],
        )
    }

    /// The calls of this node to the pools that the nodes of its region share.
    fn of_pools(&mut self, counts: &LeaseCounts) -> Result<(), std::fmt::Error> {
        let one = |value| [(&NO_LABELS[..], value)];
        self.counter(
            "acequia_pool_calls",
            "Calls of the store's pools, by what became of them.",
            &[
                (&[("outcome", "made")], counts.calls),
                (&[("outcome", "missed")], counts.missed),
                (&[("outcome", "refused")], counts.refused),
            ],
        )?;
        self.counter(
            "acequia_pool_generations",
            "Times that a group of pools may have forgotten, and was told again what nodes hold.",
            &one(counts.generations),
        )?;
        self.counter(
            "acequia_pool_assertions",
            "Times that this node told a group of pools that it knows all that the node holds.",
            &one(counts.assertions),
        )?;
        self.counter(
            "acequia_guard_decisions",
            "What limits said while the store of the cell was lost, by what this node held and its guard share alone.",
            &[
                (&[("outcome", "allowed")], counts.guard_allowed),
                (&[("outcome", "denied")], counts.guard_denied),
            ],
        )?;
        self.gauge("acequia_pool_cells", "Cells that take from the store's pools now.", &one(counts.cells))?;
        let help = "Groups of pools that grant, fewer while the store or a node of the region is not there; whose store is lost; and all.";
        let groups: Values<'_> = &[
            (&[("which", "granting")], counts.granting),
            (&[("which", "lost")], counts.lost),
            (&[("which", "all")], GROUPS.into()),
        ];
        self.gauge("acequia_pool_groups", help, groups)
    }

    /// The units of pools that this node holds, by the limit's slot.
    fn of_held(&mut self, units: &BTreeMap<u32, u64>, catalogue: &Catalogue) -> Result<(), std::fmt::Error> {
        let by_limit =
            by_path(&catalogue.limits, |active| Some([units.get(&active.slot()).copied().unwrap_or(0)]));
        let help = "Units that this node holds of its region's pools, and has not spent or given back.";
        let mut metric =
            self.0.encode_descriptor("acequia_leases_out_units", help, None, MetricType::Gauge)?;
        for (limit, [units]) in &by_limit {
            metric.encode_family(&[("limit", limit.as_str())])?.encode_gauge(&signed(*units))?;
        }
        Ok(())
    }

    /// The servers that have the pools.
    fn of_shards(&mut self, shards: &[ShardView]) -> Result<(), std::fmt::Error> {
        let shards: Vec<(&str, &ShardView)> =
            shards.iter().map(|shard| (shard.name.as_str(), shard)).collect();
        for (name, help, value) in SHARD_GAUGES {
            self.gauge_of_each((name, help, None), "shard", &shards, |shard| value(shard).map(signed))?;
        }
        for (name, help, value) in SHARD_SECONDS {
            self.gauge_of_each((name, help, Some(&Unit::Seconds)), "shard", &shards, value)?;
        }
        let labels: Vec<_> = shards.iter().map(|(name, _)| [("shard", *name)]).collect();
        let of_shards = |count: fn(&ShardView) -> u64| -> Vec<(&[(&str, &str)], u64)> {
            labels.iter().zip(&shards).map(|(labels, (_, shard))| (&labels[..], count(shard))).collect()
        };
        self.counter("acequia_store_calls", "Calls of the shard.", &of_shards(|shard| shard.calls))?;
        let missed = of_shards(|shard| shard.missed);
        self.counter("acequia_store_calls_missed", "Calls that were not answered.", &missed)?;
        let (unit, bounds) = (Unit::Seconds, ROUND_TRIP_BOUNDS_US.map(|us| us as f64 / 1e6));
        let (name, help) =
            ("acequia_store_round_trip", "Times there and back of calls and pings that were answered.");
        let mut metric = self.0.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
        for ((_, shard), labels) in shards.iter().zip(&labels) {
            let trips = &shard.round_trips;
            let (buckets, above, sum) = (trips.buckets, trips.above, trips.sum_us as f64 / 1e6);
            let mut of_shard = metric.encode_family(labels)?;
            encode_histogram(&mut of_shard, &bounds, &Histogram { buckets, above, sum })?;
        }
        Ok(())
    }

    /// Counts by host: a URL's path may be secret.
    fn of_webhooks(&mut self, by_host: &BTreeMap<String, WebhookCounts>) -> Result<(), std::fmt::Error> {
        let help = "Events for webhooks by what became of them; retried counts tries that others follow.";
        let name = "acequia_webhook_deliveries";
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (host, counts) in by_host {
            for (outcome, count) in [
                ("delivered", counts.delivered),
                ("retried", counts.retried),
                ("dropped", counts.dropped),
                ("refused", counts.refused),
            ] {
                let labels = [("hook", host.as_str()), ("outcome", outcome)];
                metric.encode_family(&labels)?.encode_counter::<NoExemplar, _, u64>(&count, None)?;
            }
        }
        let waiting = by_host.iter().map(|(host, counts)| ([("hook", host.as_str())], counts.queue));
        let waiting: Vec<_> = waiting.collect();
        let waiting: Vec<(&[(&str, &str)], u64)> =
            waiting.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        self.gauge("acequia_webhook_queue", "Events that wait for a webhook.", &waiting)
    }

    fn of_unmatched(&mut self, counts: &unmatched::Counts) -> Result<(), std::fmt::Error> {
        let by_domain: Vec<(String, u64)> = counts.by_domain().collect();
        let labels: Vec<_> = by_domain.iter().map(|(domain, _)| [("domain", domain.as_str())]).collect();
        let counts = labels.iter().zip(&by_domain).map(|(labels, (_, count))| (&labels[..], *count));
        let counts: Vec<(&[(&str, &str)], u64)> = counts.collect();
        let help = "Requests that no limit is about, by domain: the first hundred, and other.";
        self.counter("acequia_unmatched_requests", help, &counts)
    }

    fn of_holdings(&mut self, limits: &[LimitStatus]) -> Result<(), std::fmt::Error> {
        let paths: Vec<String> = limits.iter().map(|l| format!("{}/{}", l.domain, l.name)).collect();
        let help = "Units at once, or in the window, of the cells that are shared actively.";
        let mut metric = self.0.encode_descriptor("acequia_region_units", help, None, MetricType::Gauge)?;
        for (limit, path) in limits.iter().zip(&paths) {
            for (kind, holding) in holdings(limit) {
                let labels = [("limit", path.as_str()), ("kind", kind)];
                metric.encode_family(&labels)?.encode_gauge(&signed(holding.units))?;
            }
        }
        let help = "Units a second of the cells that are shared actively.";
        let name = "acequia_region_units_per_second";
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (limit, path) in limits.iter().zip(&paths) {
            for (kind, holding) in holdings(limit) {
                let labels = [("limit", path.as_str()), ("kind", kind)];
                metric.encode_family(&labels)?.encode_gauge(&(holding.rate_milli as f64 / 1e3))?;
            }
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, values: Values<'_>) -> Result<(), std::fmt::Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            if labels.is_empty() {
                metric.encode_counter::<NoExemplar, _, u64>(value, None)?;
            } else {
                let labels: Vec<(&str, &str)> = labels.to_vec();
                metric.encode_family(&labels)?.encode_counter::<NoExemplar, _, u64>(value, None)?;
            }
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, values: Values<'_>) -> Result<(), std::fmt::Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            if labels.is_empty() {
                metric.encode_gauge(&signed(*value))?;
            } else {
                let labels: Vec<(&str, &str)> = labels.to_vec();
                metric.encode_family(&labels)?.encode_gauge(&signed(*value))?;
            }
        }
        Ok(())
    }

    /// Seconds that add up.
    fn seconds_total(&mut self, name: &str, help: &str, value: f64) -> Result<(), std::fmt::Error> {
        let unit = Unit::Seconds;
        let mut metric = self.0.encode_descriptor(name, help, Some(&unit), MetricType::Counter)?;
        metric.encode_counter::<NoExemplar, _, u64>(&value, None)
    }

    fn measured(
        &mut self,
        name: &str,
        help: &str,
        unit: Unit,
        value: impl EncodeGaugeValue,
    ) -> Result<(), std::fmt::Error> {
        let mut metric = self.0.encode_descriptor(name, help, Some(&unit), MetricType::Gauge)?;
        metric.encode_gauge(&value)
    }

    /// A gauge for each of several named things, without those that have no value.
    fn gauge_of_each<T, V: EncodeGaugeValue>(
        &mut self,
        (name, help, unit): (&str, &str, Option<&Unit>),
        label: &str,
        all: &[(&str, &T)],
        value: impl Fn(&T) -> Option<V>,
    ) -> Result<(), std::fmt::Error> {
        let mut metric = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for (named, one) in all {
            if let Some(value) = value(one) {
                metric.encode_family(&[(label, *named)])?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

/// Values of each limit, by its path. A limit and its successor have one path.
fn by_path<'a, const N: usize>(
    limits: impl IntoIterator<Item = &'a Active>,
    numbers: impl Fn(&Active) -> Option<[u64; N]>,
) -> BTreeMap<String, [u64; N]> {
    let mut all = BTreeMap::new();
    for active in limits {
        let Some(numbers) = numbers(active) else { continue };
        let sums = all.entry(active.limit.path()).or_insert([0_u64; N]);
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum = sum.saturating_add(number);
        }
    }
    all
}

/// A region's holdings of a limit, by their words in metrics.
fn holdings(limit: &LimitStatus) -> [(&'static str, Holding); 4] {
    [
        ("standing", limit.standing),
        ("lent", limit.lent),
        ("borrowed", limit.borrowed),
        ("effective", limit.effective),
    ]
    .map(|(kind, holding)| (kind, holding.unwrap_or_default()))
}

fn encode_histogram<const N: usize>(
    metric: &mut MetricEncoder<'_>,
    bounds: &[f64; N],
    counts: &Histogram<N>,
) -> Result<(), std::fmt::Error> {
    let mut buckets: Vec<(f64, u64)> = bounds.iter().copied().zip(counts.buckets).collect();
    buckets.push((f64::INFINITY, counts.above));
    let count = buckets.iter().map(|(_, count)| count).sum();
    metric.encode_histogram::<NoExemplar>(counts.sum, count, &buckets, None)
}

/// Gauges are signed in OpenMetrics. The values here are below 2^53, or mean "no bound".
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// No exemplars: they would show values that labels must not show.
type NoExemplar = Vec<(String, String)>;

#[cfg(test)]
mod tests {
    use acequia_store::redis::RoundTrips;

    use super::*;
    use crate::respond::lost::answer;

    /// One part of the metrics.
    #[derive(Debug)]
    struct Part(fn(&mut Out<'_>) -> Result<(), std::fmt::Error>);

    impl Collector for Part {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            (self.0)(&mut Out(encoder))
        }
    }

    fn text_of(part: fn(&mut Out<'_>) -> Result<(), std::fmt::Error>) -> String {
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
    fn pools_are_shown() {
        let text = text_of(|out| {
            out.of_pools(&LeaseCounts {
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
            })
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
    fn what_is_held_is_shown_of_every_limit() {
        let some = text_of(|out| {
            let (_, catalogue) = answer(OnStoreLoss::Guard);
            let slot = catalogue.limits[0].slot();
            out.of_held(&[(slot, 12), (slot + 1, 7)].into(), &catalogue)
        });
        expect_lines(&some, &[r#"acequia_leases_out_units{limit="shop/per-key"} 12"#]);
        let none = text_of(|out| out.of_held(&BTreeMap::new(), &answer(OnStoreLoss::Guard).1));
        expect_lines(&none, &[r#"acequia_leases_out_units{limit="shop/per-key"} 0"#]);
    }

    #[test]
    fn shards_are_shown() {
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
            out.of_shards(&[shard("a", round_trips), shard("b", RoundTrips::default())])
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
