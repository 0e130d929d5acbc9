//! `/metrics`: OpenMetrics text, made on request. Times are in seconds. A value of a descriptor is a label only where
//! the operator says so ([`in_metrics`](acequia_limits::path::StepSpec::in_metrics)).
//!
//! The parts write figures that others have counted. `deploy/metrics.md` and the two pages that it names say
//! what the metrics mean. A test compares those tables with what nodes show.

mod out;
mod process;
mod regions;
mod requests;
mod store;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use acequia_limits::Now;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text::encode},
    registry::Registry,
};

use self::out::Out;
use crate::{counting::Counting, process::Process, regions::Differences, shared::Shared};

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
    /// Collects the figures from those who have them, and writes them in an order that stays.
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shared = &*self.0;
        let now = shared.clock.now();
        let (tally, hottest) = (shared.workers.tally(), shared.workers.hottest(now));
        let catalogue = shared.node.catalogue();
        let regions = shared.regions();
        let own_region = shared.own_region.get();
        let mut out = Out(encoder);
        process::build(&mut out)?;
        process::process(&mut out, &Process::look())?;
        requests::about(&mut out, &catalogue)?;
        requests::limits(&mut out, &tally, &hottest, &catalogue)?;
        let counted = shared.counting.get().map(Counting::counts);
        let [_, missed, _] = counted.unwrap_or_default();
        requests::hits(&mut out, &tally, &catalogue)?;
        if shared.are_imported.load(Ordering::Relaxed) {
            requests::as_ratelimit(&mut out, &tally, missed, &shared.reloads)?;
        }
        if let Some(counts) = counted {
            requests::counted(&mut out, counts)?;
        }
        if catalogue.has_candidates {
            requests::candidates(&mut out, &catalogue, |slot| shared.cells_of(slot))?;
        }
        requests::open_units(&mut out, &catalogue)?;
        requests::overdrawn_units(&mut out, &catalogue)?;
        if catalogue.has_holds {
            requests::holds(&mut out, &catalogue)?;
        }
        requests::verdicts(&mut out, &tally, &catalogue)?;
        requests::faulty(&mut out, &tally, shared.expired.load(Ordering::Relaxed))?;
        process::connections(&mut out, &shared.connections, &shared.refused)?;
        if regions.is_some() || own_region.is_some() {
            requests::waits(&mut out, &tally)?;
        }
        if regions.is_some() && own_region.is_some() {
            requests::forwards(&mut out, shared.node.forward_counts())?;
        }
        process::clock(&mut out, shared.clock.health())?;
        requests::charges(&mut out, shared.node.charges(), &tally)?;
        requests::warnings(&mut out, &shared.warned.counts())?;
        requests::refunded(&mut out, &tally, &catalogue)?;
        let journal = shared.writer.as_ref().map_or(0, |writer| writer.store().cache_bytes() as u64);
        process::memory(&mut out, &shared.node.usage(), journal)?;
        process::config(&mut out, catalogue.limits.len(), &shared.reloads, &differences(shared, now))?;
        process::ready(&mut out, shared.ready().is_ok())?;
        if let Some(regions) = regions {
            regions::regions(&mut out, shared, regions)?;
        }
        if let Some(own_region) = own_region {
            let excluded = shared.node.excluded(shared.clock.now()).len() as u64;
            store::own_region(&mut out, excluded, own_region)?;
            store::pools(&mut out, &shared.node.lease_counts())?;
            store::held(&mut out, &shared.node.units_held(), &catalogue)?;
            store::shards(&mut out, &own_region.shards())?;
        }
        if let Some(webhooks) = shared.webhooks.get() {
            process::webhooks(&mut out, &webhooks.counts())?;
        }
        if let Some(writer) = &shared.writer {
            process::journal(&mut out, writer, shared.node.is_journal_down())?;
        }
        Ok(())
    }
}

/// Differences between the limits of this node's file and those that count.
fn differences(shared: &Shared, now: Now) -> Differences {
    match (shared.regions(), shared.alone.get()) {
        (Some(regions), _) => regions.differences(now),
        (None, Some(alone)) => {
            Differences { count: alone.differences(now.wall_ns).len() as u64, ..Differences::default() }
        }
        (None, None) => Differences::default(),
    }
}
