//! Carries the warnings of soft limits to metrics, to the log and to webhooks.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use acequia_node::{Node, Warning};

use crate::{
    charges::NodeName,
    webhooks::{self, Event, Kind, Webhooks},
};

/// The warnings since the start.
#[derive(Debug, Default)]
pub(crate) struct Warned(Mutex<WarningCounts>);

/// Counts of warnings.
#[derive(Clone, Debug, Default)]
pub(crate) struct WarningCounts {
    /// How often a threshold was reached, by limit and percent.
    pub(crate) reached: BTreeMap<(String, u8), u64>,
    /// Warnings that there was no room for.
    pub(crate) dropped: u64,
}

impl Warned {
    fn count(&self, warnings: &[Warning], dropped: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for Warning { domain, name, percent, .. } in warnings {
            *counts.reached.entry((format!("{domain}/{name}"), *percent)).or_default() += 1;
        }
        counts.dropped = dropped;
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> WarningCounts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports the node's warnings since the last call, under the node's names. Never waits.
    pub(crate) fn tell(&self, source: &Node, name: NodeName<'_>, webhooks: Option<&Webhooks>) {
        let (warnings, dropped) = source.take_warnings();
        self.count(&warnings, dropped);
        webhooks::deliver(webhooks, warnings.into_iter().map(|warning| event(warning, name)));
    }
}

fn event(warning: Warning, NodeName { region, node }: NodeName<'_>) -> Event {
    let Warning { id, domain, name, percent, used, budget, unit, by, window_ends_ns, at } = warning;
    Event {
        id,
        kind: Kind::LimitWarning,
        region: region.to_owned(),
        node: node.to_owned(),
        domain,
        limit: name,
        percent,
        used,
        budget,
        unit,
        by,
        window_ends_ms: window_ends_ns.map(|ns| ns / 1_000_000),
        at_ms: at.wall_ns / 1_000_000,
    }
}
