//! What all tasks of a server share: the node, its journal and clocks, its place among others, and counts.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use acequia_limits::{HashKey, Now};
use acequia_node::Node;
use arc_swap::ArcSwap;

use crate::{
    cells::LimitCells,
    charges::Names,
    clock::Clock,
    config::{DomainConfig, Headers, Live, Reloads},
    connections::AllConnections,
    counting::Counting,
    patience::Waiting,
    refused::Refused,
    region::OwnRegion,
    regions::{Alone, Regions},
    tally::Labels,
    unmatched::{self, NoMatches},
    warnings::Warned,
    webhooks::Webhooks,
    workers::Workers,
    writer::Writer,
};

/// The state that all tasks of a server share.
#[derive(Debug)]
pub struct Shared {
    /// The cells and limits.
    pub node: Arc<Node>,
    /// The journal, where there is one.
    pub writer: Option<Arc<Writer>>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The key that hashes values in traces.
    pub(crate) key: HashKey,
    /// Names of charges.
    pub(crate) names: Names,
    /// The counts of all workers.
    pub(crate) workers: Workers,
    pub(crate) reloads: Reloads,
    /// When the process started.
    pub(crate) begun: Now,
    /// The other regions, once there is a way to them.
    pub(crate) regions: OnceLock<Arc<Regions>>,
    /// The operators' orders, if the node stands alone.
    pub(crate) alone: OnceLock<Alone>,
    /// The webhooks, once the config has had any.
    pub(crate) webhooks: OnceLock<Webhooks>,
    pub(crate) warned: Warned,
    /// Requests that wait for units of other regions, of the region's pools, or of its other nodes.
    pub(crate) waiting: Arc<Waiting>,
    /// This node's region, where its nodes share a store.
    pub(crate) own_region: OnceLock<OwnRegion>,
    /// Where hits are counted, if this node counts none itself.
    pub(crate) counting: OnceLock<Counting>,
    /// The connections that callers have open, and the bytes that they make the node hold.
    pub(crate) connections: Arc<AllConnections>,
    /// Callers that were turned away.
    pub(crate) refused: Refused,
    /// Calls whose callers had given up before they were decided.
    pub(crate) expired: AtomicU64,
    /// The domains that are counted by name, for requests that no limit was about.
    pub(crate) unmatched_domains: unmatched::Names,
    /// Whether limits come from configs of envoyproxy/ratelimit.
    pub(crate) are_imported: AtomicBool,
    /// What workers count by name, as callers choose it.
    pub(crate) labels: Labels,
    draining: AtomicBool,
    live: ArcSwap<Settings>,
}

/// The settings that a reload replaces. The limits are not here: the node has them.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) headers: Headers,
    pub(crate) trace_key: Option<String>,
    pub(crate) no_match: NoMatches,
    pub(crate) domains: BTreeMap<String, DomainConfig>,
    /// Whether some domain has [`DomainConfig::request_metadata`].
    pub(crate) has_request_metadata: bool,
}

impl Settings {
    /// How Envoy is answered in a domain.
    pub(crate) fn domain(&self, domain: &[u8]) -> DomainConfig {
        let domain = std::str::from_utf8(domain).ok().and_then(|domain| self.domains.get(domain));
        domain.copied().unwrap_or_default()
    }
}

impl Shared {
    /// A service without workers.
    pub fn new(
        node: Arc<Node>,
        writer: Option<Arc<Writer>>,
        clock: Arc<dyn Clock>,
        key: HashKey,
        names: Names,
    ) -> Self {
        Self {
            node,
            names,
            writer,
            begun: clock.now(),
            regions: OnceLock::new(),
            alone: OnceLock::new(),
            webhooks: OnceLock::new(),
            warned: Warned::default(),
            waiting: Arc::default(),
            own_region: OnceLock::new(),
            counting: OnceLock::new(),
            clock,
            key,
            workers: Workers::default(),
            reloads: Reloads::default(),
            connections: Arc::default(),
            refused: Refused::default(),
            expired: AtomicU64::new(0),
            unmatched_domains: unmatched::names(),
            are_imported: AtomicBool::new(false),
            labels: Labels::new(),
            draining: AtomicBool::new(false),
            live: ArcSwap::default(),
        }
    }

    /// Puts settings in force.
    pub fn apply(&self, live: &Live) {
        let settings = Settings {
            headers: live.headers.clone(),
            trace_key: live.trace_key.clone(),
            no_match: live.no_match.clone(),
            has_request_metadata: live.domains.values().any(|domain| domain.request_metadata),
            domains: live.domains.clone(),
        };
        self.live.store(Arc::new(settings));
    }

    /// Whether the node is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether callers may be sent here; if not, why, and what to do.
    ///
    /// # Errors
    /// In words.
    pub fn ready(&self) -> Result<(), String> {
        self.ready_if(Regions::ready)
    }

    /// As [`Shared::ready`], at a time.
    pub(crate) fn ready_at(&self, now: Now) -> Result<(), String> {
        self.ready_if(|regions| regions.ready_at(now))
    }

    fn ready_if(&self, are_ready: impl FnOnce(&Regions) -> Result<(), String>) -> Result<(), String> {
        if self.is_draining() {
            return Err("draining: the node is stopping".to_owned());
        }
        match self.regions.get() {
            Some(regions) => are_ready(regions),
            None => Ok(()),
        }
    }

    /// The other regions, where there are any and this node has taken its place among them.
    pub fn regions(&self) -> Option<&Arc<Regions>> {
        self.regions.get()
    }

    /// From now on the node says that it is stopping.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// The cells of one limit, by its slot, over all workers.
    pub(crate) fn cells_of(&self, slot: u32) -> LimitCells {
        self.workers.cells_of(slot, self.clock.now())
    }

    /// Reports the node's warnings since the last call. Never waits.
    pub(crate) fn tell_warnings(&self) {
        self.warned.tell(&self.node, self.names.node(), self.webhooks.get());
    }

    /// Whether a cost of 0 may have a limit of the domain hold units.
    pub(crate) fn has_holds(&self, domain: &[u8]) -> bool {
        let catalogue = self.node.catalogue();
        let expects = |number: &u32| catalogue.limits[*number as usize].limit.expect.is_some();
        catalogue.has_holds && catalogue.limits_of(domain).iter().any(expects)
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> arc_swap::Guard<Arc<Settings>> {
        self.live.load()
    }
}
