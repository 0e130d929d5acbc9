//! `/metrics`: OpenMetrics text, made when somebody looks. No value of a descriptor is ever a label.

use std::sync::{
    Arc, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use acequia_node::Catalogue;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text::encode},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use crate::{
    tally::{DECISION_SECONDS, Histogram, OUTCOMES, RETRY_SECONDS, Tally},
    worker::Shared,
};

/// Hot cells that are shown for each limit.
const HOT_SHOWN: usize = 5;

/// How often the config was read again since the start.
#[derive(Debug, Default)]
pub struct Reloads {
    /// And put in force.
    pub applied: AtomicU64,
    /// And refused, the old one staying.
    pub refused: AtomicU64,
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
        for worker in shared.workers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            tally.add(&worker.tally());
        }
        let mut out = Out(encoder);
        let catalogue = shared.node.catalogue();
        out.of_limits(&tally, &catalogue)?;
        out.counter(
            "acequia_requests",
            "Requests by verdict.",
            &[(&[("decision", "allow")], tally.allowed), (&[("decision", "deny")], tally.denied)],
        )?;
        out.histogram(
            "acequia_retry_after",
            "Waits that denied requests were told.",
            &RETRY_SECONDS,
            &tally.retry_after,
        )?;
        out.histogram(
            "acequia_decision_duration",
            "Time that a decision takes in the node; one in 64 is timed.",
            &DECISION_SECONDS,
            &tally.decision,
        )?;
        let one = |value| [(&NO_LABELS[..], value)];
        out.counter("acequia_bad_requests", "Requests refused as malformed.", &one(tally.bad_requests))?;
        out.counter(
            "acequia_unmatched_descriptors",
            "Descriptors that no limit counted or exempted.",
            &one(tally.unmatched),
        )?;
        let usage = shared.node.usage();
        out.gauge("acequia_cells", "Cells in memory.", &one(usage.cells))?;
        out.gauge("acequia_cells_bytes", "Bytes that cells take.", &one(usage.bytes))?;
        out.counter("acequia_cells_evicted", "Idle cells forgotten.", &one(usage.evicted))?;
        out.gauge(
            "acequia_limits_overflowing",
            "Limits whose new cells share one, because the memory for cells is full.",
            &one(usage.overflowing),
        )?;
        out.gauge("acequia_limits", "Limits in the config.", &one(catalogue.limits.len() as u64))?;
        let (applied, refused) = (&shared.reloads.applied, &shared.reloads.refused);
        out.counter(
            "acequia_config_reloads",
            "Changed config files, by what became of them.",
            &[
                (&[("outcome", "applied")], applied.load(Ordering::Relaxed)),
                (&[("outcome", "refused")], refused.load(Ordering::Relaxed)),
            ],
        )?;
        out.gauge("acequia_ready", "0 while the node is stopping.", &one(u64::from(!shared.is_draining())))?;
        if let Some(writer) = &shared.writer {
            let load = |count: &AtomicU64| one(count.load(Ordering::Relaxed));
            out.counter("acequia_journal_commits", "Commits of the journal.", &load(&writer.commits))?;
            out.counter("acequia_journal_rows", "Rows written to the journal.", &load(&writer.rows))?;
            out.counter("acequia_journal_failures", "Commits that failed.", &load(&writer.failures))?;
            let down = u64::from(shared.node.is_journal_down());
            out.gauge("acequia_journal_down", "1 while the journal cannot be written.", &one(down))?;
            let seconds = writer.commit_ns.load(Ordering::Relaxed) as f64 / 1e9;
            out.seconds("acequia_journal_commit", "Time spent in commits of the journal.", seconds)?;
        }
        Ok(())
    }
}

const NO_LABELS: [(&str, &str); 0] = [];

/// A metric's values by their labels.
type Values<'a> = &'a [(&'a [(&'a str, &'a str)], u64)];

struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn of_limits(&mut self, tally: &Tally, catalogue: &Catalogue) -> Result<(), std::fmt::Error> {
        let help = "What limits said of the requests they matched.";
        let mut metric = self.0.encode_descriptor("acequia_decisions", help, None, MetricType::Counter)?;
        for active in &catalogue.limits {
            let Some(counts) = tally.limits.get(usize::from(active.slot())) else { continue };
            let path = active.limit.path();
            for (word, count) in OUTCOMES.iter().zip(counts.outcomes) {
                let labels = [("limit", path.as_str()), ("decision", word)];
                metric.encode_family(&labels)?.encode_counter::<NoExemplar, _, u64>(&count, None)?;
            }
        }
        let help = "What the cells asked for most have left, from samples: rank 1 is the hottest.";
        let name = "acequia_hottest_cell_remaining";
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for active in &catalogue.limits {
            let Some(counts) = tally.limits.get(usize::from(active.slot())) else { continue };
            let path = active.limit.path();
            let mut hot = counts.hot.clone();
            hot.sort_by_key(|cell| (std::cmp::Reverse(cell.count), cell.tag));
            for (rank, cell) in (1..=HOT_SHOWN).zip(&hot) {
                let rank = rank.to_string();
                let labels = [("limit", path.as_str()), ("rank", rank.as_str())];
                metric.encode_family(&labels)?.encode_gauge(&signed(cell.remaining))?;
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
        for (_, value) in values {
            metric.encode_gauge(&signed(*value))?;
        }
        Ok(())
    }

    fn seconds(&mut self, name: &str, help: &str, value: f64) -> Result<(), std::fmt::Error> {
        let unit = Unit::Seconds;
        let mut metric = self.0.encode_descriptor(name, help, Some(&unit), MetricType::Counter)?;
        metric.encode_counter::<NoExemplar, _, u64>(&value, None)
    }

    fn histogram<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[f64; N],
        counts: &Histogram<N>,
    ) -> Result<(), std::fmt::Error> {
        let mut buckets: Vec<(f64, u64)> = bounds.iter().copied().zip(counts.buckets).collect();
        buckets.push((f64::INFINITY, counts.above));
        let count = buckets.iter().map(|(_, count)| count).sum();
        let unit = Unit::Seconds;
        let mut metric = self.0.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
        metric.encode_histogram::<NoExemplar>(counts.sum, count, &buckets, None)
    }
}

/// Gauges are signed in OpenMetrics; ours are below 2^53 or say "no bound".
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// No exemplars: they would carry what labels may not.
type NoExemplar = Vec<(String, String)>;
