//! A config as the file has it, and its faults as a whole.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use acequia_limits::{Limit, limit::LimitSpec, notation::parse_duration_ns};
use acequia_node::Keep;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{
    ClockConfig, Config, Dialect, DomainConfig, Headers, Live, NoMatch, NoMatches, Regions, StoreConfig,
    clock::WrittenClock,
    faults::{Faults, line},
    limits,
    listen::{AdminGuards, WrittenListen},
    regions::{WrittenRegion, WrittenSharing},
    spanned::{Named, unplaced},
    store::{StoreScene, WrittenStore},
    webhooks::{self, WrittenWebhook},
};
use crate::{
    ratelimit::from_callers,
    settings::{BoundSettings, SETTINGS},
};

/// The file's own structure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    region: Spanned<String>,
    node: Spanned<String>,
    #[serde(default)]
    listen: WrittenListen,
    data: Option<PathBuf>,
    tls: Option<PathBuf>,
    admin_token: Option<Spanned<PathBuf>>,
    store: Option<Spanned<WrittenStore>>,
    regions: Option<Spanned<Named<WrittenRegion>>>,
    authority: Option<Spanned<String>>,
    clock: Option<Spanned<WrittenClock>>,
    memory: Option<Spanned<String>>,
    workers: Option<Spanned<usize>>,
    connections: Option<Spanned<usize>>,
    max_age: Option<Spanned<String>>,
    drain: Option<Spanned<String>>,
    headers: Option<WrittenHeaders>,
    charges: Option<Spanned<WrittenCharges>>,
    trace_key: Option<String>,
    #[serde(default)]
    unknown_domain: NoMatch,
    #[serde(default)]
    domains: BTreeMap<String, WrittenDomain>,
    webhooks: Option<Spanned<Vec<WrittenWebhook>>>,
    #[serde(default)]
    limits: Vec<Spanned<LimitSpec>>,
}

/// `charges: { keep, records }`
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCharges {
    keep: Option<String>,
    records: Option<usize>,
}

/// `domains: { shop: { no_match, negative_hits, request_metadata, limits_from_callers } }`
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDomain {
    no_match: Option<NoMatch>,
    #[serde(default)]
    negative_hits: bool,
    #[serde(default)]
    request_metadata: bool,
    #[serde(default)]
    limits_from_callers: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenHeaders {
    http: Option<Vec<Dialect>>,
    envoy: Option<Vec<Dialect>>,
}

impl Written {
    /// The config with further limits, which are not in the file.
    pub(super) fn with(mut self, further: Vec<LimitSpec>) -> Self {
        let named = self.domains.iter().filter(|(_, written)| written.limits_from_callers);
        let mut named: Vec<LimitSpec> = named.flat_map(|(domain, _)| from_callers(domain)).collect();
        // The environment may say the same.
        named.retain(|limit| !further.contains(limit));
        self.limits.extend(further.into_iter().chain(named).map(unplaced));
        self
    }

    /// The config. The result counts only if there is no fault.
    pub(super) fn validate(self, faults: &mut Faults<'_>) -> Config {
        faults.name("region", &self.region);
        faults.name("node", &self.node);
        let beside = AdminGuards { has_tls: self.tls.is_some(), has_token: self.admin_token.is_some() };
        let listen = self.listen.validate(beside, faults);
        self.check_together(faults);
        self.check_numbers(faults);
        let memory = self.memory.clone().unwrap_or_else(|| unplaced(SETTINGS.defaults.memory.to_owned()));
        let memory_bytes = faults.take(parse_bytes(&memory.value), &memory).unwrap_or_default();
        let mut time = |text: &Option<Spanned<String>>, default: Duration, least: Duration| match text {
            None => default,
            Some(text) => {
                let time = parse_duration_ns(&text.value).map(Duration::from_nanos);
                let time = time.and_then(|time| match time < least {
                    true => Err(format!("{} is too short: write {}s or more", text.value, least.as_secs())),
                    false => Ok(time),
                });
                faults.take(time, text).unwrap_or_default()
            }
        };
        let drain = time(&self.drain, SETTINGS.defaults.drain, Duration::ZERO);
        let max_age = time(&self.max_age, SETTINGS.defaults.max_age, SETTINGS.bounds.max_age_min);
        let charges = self.charges(faults);
        let clock = self.clock.as_ref().map(|clock| clock.value.validate(faults)).unwrap_or_default();
        let regions = self.regions(clock, faults);
        let store = self.store(clock, faults);
        let webhooks = self.webhooks.as_ref().map(|written| webhooks::read(written, faults));
        let clock = (regions.is_some() || store.is_some()).then_some(clock);
        let limits = read_limits(self.limits, regions.as_ref(), clock, faults);
        let (http, envoy) = self.headers.map_or((None, None), |headers| (headers.http, headers.envoy));
        let domains = self.domains.iter().map(|(domain, written)| {
            let WrittenDomain { negative_hits, request_metadata, .. } = *written;
            (domain.clone(), DomainConfig { negative_hits, request_metadata })
        });
        let domains = domains.filter(|(_, config)| *config != DomainConfig::default()).collect();
        let named =
            self.domains.into_iter().filter_map(|(domain, written)| Some((domain, written.no_match?)));
        let headers = Headers { http: http.unwrap_or_else(|| vec![Dialect::Draft11]), envoy };
        Config {
            region: self.region.value,
            node: self.node.value,
            listen,
            data: self.data,
            store,
            counting: None,
            regions,
            tls: self.tls,
            admin_token: self.admin_token.map(|token| token.value),
            memory_bytes,
            workers: self.workers.map(|workers| workers.value),
            charges,
            incarnation: None,
            connections_max: self.connections.map_or(SETTINGS.defaults.connections, |c| c.value),
            max_age,
            drain,
            live: Live {
                limits,
                headers,
                trace_key: self.trace_key,
                no_match: NoMatches { unknown_domain: self.unknown_domain, domains: named.collect() },
                domains,
                webhooks: webhooks.unwrap_or_default(),
            },
        }
    }

    /// Notes settings that need others that are absent.
    fn check_together(&self, faults: &mut Faults<'_>) {
        if let Some(token) = self.admin_token.as_ref().filter(|_| self.listen.admin.is_none()) {
            let what = "`admin_token` without `listen.admin`: there is nobody to bring it to; leave it \
                        out, or listen on an address such as 127.0.0.1:8082";
            faults.at(token, what.to_owned());
        }
        let Some(regions) = &self.regions else {
            let clock = self.clock.as_ref().filter(|_| !self.has_store());
            let alone = [
                ("authority", self.authority.as_ref().map(line)),
                ("clock", clock.map(|clock| faults.line_above("clock", line(clock)))),
                ("listen.mesh", self.listen.mesh.as_ref().map(line)),
            ];
            for (name, place) in alone {
                if let Some(line) = place {
                    let what = format!(
                        "`{name}` without `regions`: this node shares its limits with nobody; leave it \
                         out, or add `regions`"
                    );
                    faults.add(line, what);
                }
            }
            return;
        };
        let regions_line = faults.line_above("regions", line(regions));
        let node = &self.node.value;
        let needed = [
            (
                self.data.is_none(),
                format!(
                    "`data`: what a region gave away must survive a restart; name a folder, such as \
                     data: ./data/{node}"
                ),
            ),
            (
                self.tls.is_none(),
                format!(
                    "`tls`: regions know each other by certificates; name the folder that has ca.pem, \
                     {node}.pem and {node}.key, such as tls: ./certs"
                ),
            ),
            (
                self.listen.mesh.is_none(),
                "`listen.mesh`: say where this node hears the others, such as mesh: 127.0.0.1:7201"
                    .to_owned(),
            ),
        ];
        for (_, what) in needed.into_iter().filter(|(missing, _)| *missing) {
            faults.add(regions_line, format!("`regions` without {what}"));
        }
    }

    /// Notes numbers that are out of range.
    fn check_numbers(&self, faults: &mut Faults<'_>) {
        let BoundSettings { workers_max, connections_max, .. } = SETTINGS.bounds;
        for (name, number, max) in
            [("workers", &self.workers, workers_max), ("connections", &self.connections, connections_max)]
        {
            if let Some(number) = number.as_ref().filter(|number| !(1..=max).contains(&number.value)) {
                faults.at(number, format!("{name} is 1 to {max}, not {}", number.value));
            }
        }
    }

    /// How charges are remembered.
    fn charges(&self, faults: &mut Faults<'_>) -> Keep {
        let mut keep = Keep::default();
        let Some(written) = &self.charges else { return keep };
        let BoundSettings { keep_ns_min, keep_ns_max, records_min, records_max, .. } = SETTINGS.bounds;
        if let Some(text) = &written.value.keep {
            match parse_duration_ns(text) {
                Ok(ns) if (keep_ns_min..=keep_ns_max).contains(&ns) => keep.keep_ns = ns,
                Ok(_) => faults.at(written, format!("charges are kept for 1s to 7d, not {text}")),
                Err(what) => faults.at(written, what),
            }
        }
        if let Some(records) = written.value.records {
            if !(records_min..=records_max).contains(&records) {
                let what = format!("{records_min} to {records_max} charges are remembered, not {records}");
                faults.at(written, what);
            }
            keep.records = records;
        }
        keep
    }

    /// The store that the nodes of the region share, if they share one.
    fn store(&self, clock: ClockConfig, faults: &mut Faults<'_>) -> Option<StoreConfig> {
        let scene = StoreScene {
            store: self.store.as_ref()?,
            region: &self.region,
            node: &self.node,
            mates: self.mates(),
            has_data: self.data.is_some(),
            clock,
        };
        scene.validate(faults)
    }

    /// The regions that share the limits.
    fn regions(&self, clock: ClockConfig, faults: &mut Faults<'_>) -> Option<Regions> {
        let sharing = WrittenSharing {
            regions: self.regions.as_ref()?,
            authority: self.authority.as_ref(),
            clock,
            region: &self.region,
            node: &self.node,
            has_store: self.has_store(),
        };
        Some(sharing.validate(faults))
    }

    /// Whether the nodes of the region share a store.
    fn has_store(&self) -> bool {
        self.store.as_ref().is_some_and(|store| matches!(store.value, WrittenStore::Shared(_)))
    }

    /// The nodes of this node's region, as `regions` name them.
    fn mates(&self) -> Option<Vec<&str>> {
        let regions = &self.regions.as_ref()?.value.0;
        let own = regions.iter().find(|(name, _)| name.value == self.region.value);
        Some(own.map_or_else(Vec::new, |(_, region)| region.names().collect()))
    }
}

/// The limits. Regions must be able to share them with clocks as good as the config says.
fn read_limits(
    specs: Vec<Spanned<LimitSpec>>,
    regions: Option<&Regions>,
    clock: Option<ClockConfig>,
    faults: &mut Faults<'_>,
) -> Vec<Limit> {
    limits::check_count(&specs, faults);
    if regions.is_some() {
        limits::check_size(&specs, faults);
    }
    let placed = limits::read(specs, faults);
    limits::check_candidates(&placed, faults);
    limits::check_addresses(&placed, faults);
    if let Some(clock) = clock {
        limits::check_windows(&placed, clock, faults);
    }
    if let Some(regions) = regions {
        limits::check_priorities(&placed, regions.members.keys().map(String::as_str), faults);
    }
    placed.into_iter().map(|placed| placed.limit).collect()
}

/// Reads `64MiB`, `2GiB` or a number of bytes.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let fault = || format!("{text:?} is no amount of memory: write it as 64MiB or 2GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let count: usize = text[..digits].parse().map_err(|_| fault())?;
    let unit: usize = match text[digits..].trim() {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(fault()),
    };
    let bytes = count.checked_mul(unit).ok_or_else(fault)?;
    if bytes < acequia_node::MEMORY_BYTES_MIN {
        return Err(format!("{text:?} is less memory than cells need: at least 1MiB"));
    }
    Ok(bytes)
}
