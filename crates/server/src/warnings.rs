//! Carries the warnings of soft limits to metrics, to the log and to webhooks.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use acequia_node::Warning;

use crate::{
    webhooks::{self, Event, Kind},
    worker::Shared,
};

/// How often a threshold was reached, by limit and percent.
type Reached = BTreeMap<(String, u8), u64>;

/// How often a threshold was reached since the start; and how many warnings there was no room for.
#[derive(Debug, Default)]
pub(crate) struct Warned(Mutex<(Reached, u64)>);

impl Warned {
    fn count(&self, warnings: &[Warning], dropped: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for Warning { domain, name, percent, .. } in warnings {
            *counts.0.entry((format!("{domain}/{name}"), *percent)).or_default() += 1;
        }
        counts.1 = dropped;
    }

    /// The counts by limit and percent, and how many warnings there was no room for.
    pub(crate) fn counts(&self) -> (Reached, u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reports the node's warnings since the last call. Never waits.
pub(crate) fn tell(shared: &Shared) {
    let (warnings, dropped) = shared.node.take_warnings();
    shared.warned.count(&warnings, dropped);
    let (region, node) = shared.names.node();
    let event = |warning: Warning| {
        let Warning { id, domain, name, percent, used, budget, by, window_ends_ns, at } = warning;
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
            by,
            window_ends_ms: window_ends_ns.map(|ns| ns / 1_000_000),
            at_ms: at.wall_ns / 1_000_000,
        }
    };
    webhooks::deliver(shared, warnings.into_iter().map(event));
}
