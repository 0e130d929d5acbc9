//! The process: its binary, connections, clocks, memory, config and journal.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use acequia_node::MemoryUsage;
use prometheus_client::registry::Unit;

use super::out::{Out, signed};
use crate::{
    clock::{Counter, Health},
    config::Reloads,
    connections::AllConnections,
    process::Process,
    refused::Refused,
    regions::Differences,
    webhooks::Counts as WebhookCounts,
    writer::Writer,
};

/// Which binary runs.
pub(super) fn build(out: &mut Out<'_>) -> fmt::Result {
    let help = "The version of the binary, and the processors that it is built for.";
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)];
    out.info("acequia_build", help, labels)
}

/// The metrics that every client of Prometheus shows, under the agreed names.
pub(super) fn process(out: &mut Out<'_>, process: &Process) -> fmt::Result {
    let Process { start_s, cpu_s, resident_bytes, virtual_bytes, threads, open_fds, max_fds } = *process;
    if let Some(start_s) = start_s {
        let help = "When the process started, in seconds since 1970.";
        out.measured("process_start_time", help, Unit::Seconds, start_s)?;
    }
    if let Some(cpu_s) = cpu_s {
        out.seconds_total("process_cpu", "Time that processors spent on the process.", cpu_s)?;
    }
    for (name, help, bytes) in [
        ("process_resident_memory", "Memory that the process has.", resident_bytes),
        ("process_virtual_memory", "Addresses that the process has.", virtual_bytes),
    ] {
        if let Some(bytes) = bytes {
            out.measured(name, help, Unit::Bytes, signed(bytes))?;
        }
    }
    for (name, help, count) in [
        ("process_threads", "Threads of the process.", threads),
        ("process_open_fds", "Descriptors that are open.", open_fds),
        ("process_max_fds", "Descriptors that may be open.", max_fds),
    ] {
        if let Some(count) = count {
            out.gauge(name, help, count)?;
        }
    }
    Ok(())
}

/// The connections of callers, and the callers that were turned away.
pub(super) fn connections(out: &mut Out<'_>, all: &AllConnections, refused: &Refused) -> fmt::Result {
    let (mut open, mut ended) = (BTreeMap::new(), BTreeMap::new());
    // Several addresses may be one port.
    for port in all.ports() {
        *open.entry([("port", port.port().name())]).or_insert(0) += port.count() as u64;
        for (labels, count) in port.ended().counts(port.port().name()) {
            *ended.entry(labels).or_insert(0) += count;
        }
    }
    out.gauges("acequia_connections", "Connections that are open.", open)?;
    out.counters(
        "acequia_connections_ended",
        "Connections that the node ended: silent, without a call; idle, without one for long; crowded, others needed the place; old; held, it had the most bytes of unfinished messages.",
        ended,
    )?;
    let help = "Bytes of calls that are not answered yet.";
    out.gauge("acequia_unfinished_bytes", help, all.held() as u64)?;
    out.counters("acequia_callers_refused", "Callers that were turned away.", refused.counts())
}

/// How this process' clocks are.
pub(super) fn clock(out: &mut Out<'_>, health: Health) -> fmt::Result {
    out.gauge(
        "acequia_clock_counter_unstable",
        "1 where the processor's counter cannot be trusted, so that the system's clock is read instead.",
        u64::from(health.counter == Counter::Unstable),
    )?;
    let help = "How far this wall is ahead of the system's, which was set back.";
    out.measured("acequia_clock_ahead", help, Unit::Seconds, health.ahead_ns as f64 / 1e9)?;
    out.counter(
        "acequia_clock_slews",
        "How often the system's wall was set back by 3 s or less, so that this one was slewed.",
        health.slews,
    )?;
    out.counter(
        "acequia_clock_steps_back",
        "How often the system's wall was set back by more than 3 s, and this one with it.",
        health.steps_back,
    )?;
    out.counter(
        "acequia_clock_impossible_readings",
        "Readings of the system's wall that no wall can have.",
        health.impossible,
    )
}

/// The cells in memory, and what `memory` is used for. `journal_bytes`: the cache of the journal's file.
pub(super) fn memory(out: &mut Out<'_>, usage: &MemoryUsage, journal_bytes: u64) -> fmt::Result {
    out.gauge("acequia_cells", "Cells in memory.", usage.cells)?;
    out.gauges(
        "acequia_memory_bytes",
        "What is used of `memory`: by cells; by charges and what waits for the disk; by parts of the journal's file, at most.",
        [
            ([("of", "cells")], usage.bytes),
            ([("of", "charges")], usage.bytes_beside),
            ([("of", "journal")], journal_bytes),
        ],
    )?;
    out.counter("acequia_cells_evicted", "Idle cells forgotten.", usage.evicted)?;
    out.gauge(
        "acequia_limits_overflowing",
        "Limits whose new cells share one, because the memory for cells is full.",
        usage.overflowing,
    )
}

/// The config's limits, how often the file was read again, and how it differs from what counts.
pub(super) fn config(
    out: &mut Out<'_>,
    limits: usize,
    reloads: &Reloads,
    differences: &Differences,
) -> fmt::Result {
    out.gauge("acequia_limits", "Limits in the config.", limits as u64)?;
    let Reloads { applied, refused, unchanged } = reloads;
    let outcomes = [("unchanged", unchanged), ("applied", applied), ("refused", refused)];
    out.counters(
        "acequia_config_reloads",
        "Config files that were read again, by what became of them.",
        outcomes.map(|(outcome, count)| ([("outcome", outcome)], count.load(Ordering::Relaxed))),
    )?;
    let help = "Differences between the limits of this node's file and those that count.";
    out.gauge("acequia_config_differences", help, differences.count)?;
    out.gauges(
        "acequia_xds_unmapped",
        "Limits with paths, by xDS or a folder, that the regions' catalogue lacks: nothing is counted by them.",
        differences.unmapped.iter().map(|(domain, count)| ([("domain", domain.as_str())], *count)),
    )
}

/// Whether callers may be sent to the node.
pub(super) fn ready(out: &mut Out<'_>, is_ready: bool) -> fmt::Result {
    let help = "0 while the node is stopping, or has no catalogue that names it.";
    out.gauge("acequia_ready", help, u64::from(is_ready))
}

/// Counts by host: a URL's path may be secret.
pub(super) fn webhooks(out: &mut Out<'_>, by_host: &BTreeMap<String, WebhookCounts>) -> fmt::Result {
    let deliveries = by_host.iter().flat_map(|(host, counts)| {
        let outcomes = [
            ("delivered", counts.delivered),
            ("retried", counts.retried),
            ("dropped", counts.dropped),
            ("refused", counts.refused),
        ];
        outcomes.map(|(outcome, count)| ([("hook", host.as_str()), ("outcome", outcome)], count))
    });
    let help = "Events for webhooks by what became of them; retried counts tries that others follow.";
    out.counters("acequia_webhook_deliveries", help, deliveries)?;
    let waiting = by_host.iter().map(|(host, counts)| ([("hook", host.as_str())], counts.queue));
    out.gauges("acequia_webhook_queue", "Events that wait for a webhook.", waiting)
}

/// The journal's commits.
pub(super) fn journal(out: &mut Out<'_>, writer: &Writer, is_down: bool) -> fmt::Result {
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    out.counter("acequia_journal_commits", "Commits of the journal.", load(&writer.commits))?;
    out.counter("acequia_journal_rows", "Rows written to the journal.", load(&writer.rows))?;
    out.counter("acequia_journal_failures", "Commits that failed.", load(&writer.failures))?;
    let help = "1 while the journal cannot be written.";
    out.gauge("acequia_journal_down", help, u64::from(is_down))?;
    let seconds = load(&writer.commit_ns) as f64 / 1e9;
    out.seconds_total("acequia_journal_commit", "Time spent in commits of the journal.", seconds)
}
