//! The config file: read as it is, checked as a whole, then passed on as plain values.
//!
//! All faults are reported at once, each with its line and a way to mend it.

mod callers;
mod clock;
mod faults;
mod file;
mod limits;
mod listen;
mod parts;
mod quote;
mod regions;
mod spanned;
mod store;
mod webhooks;
mod written;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use acequia_limits::{Limit, limit::LimitSpec, networks::Network, notation::format_duration_ns};
use acequia_node::Keep;
use acequia_rights::{MemberId, node_named};
use serde::Deserialize;

pub use self::file::read_text;
pub(crate) use self::file::{ConfigFile, Reloads, Watched};
use self::{faults::Faults, written::Written};
use crate::{
    counting::CountingConfig,
    port::Port,
    settings::SETTINGS,
    unmatched::{NoMatch, NoMatches},
};

pub use self::{
    callers::{Allowed, May, PortTls, Who},
    clock::ClockConfig,
    listen::{Address, PortConfig},
    regions::{MemberConfig, RegionConfig, Regions},
    store::StoreConfig,
    webhooks::WebhookConfig,
};

/// The largest config, 16 MiB: a hundred thousand limits fit.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// How a node runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// This node's region.
    pub region: String,
    /// This node's name, unique in all regions.
    pub node: String,
    /// Where to listen.
    pub listen: Listen,
    /// The folder of the journal. Without one nothing survives a restart.
    pub data: Option<PathBuf>,
    /// The store that the nodes of the region share; none for a region of one node.
    pub store: Option<StoreConfig>,
    /// Where hits are counted, if this node counts none itself. It comes from the environment, not from the file.
    pub counting: Option<CountingConfig>,
    /// The regions that share the limits; none for a node that stands alone.
    pub regions: Option<Regions>,
    /// The folder of certificates: `ca.pem`, `NODE.pem`, `NODE.key`. It is there if there are `regions`, or
    /// if `listen.admin` is not on loopback.
    pub tls: Option<PathBuf>,
    /// The file with the bearer token that callers of the admin service must bring, which is the trimmed
    /// text. If absent, no token is asked for.
    pub admin_token: Option<PathBuf>,
    /// Memory for cells, in bytes. When it is full, new cells of a limit share one cell. A larger value
    /// serves more keys at once; a smaller value bounds what a flood of keys can take.
    pub memory_bytes: usize,
    /// Threads that answer; one for each core where absent.
    pub workers: Option<usize>,
    /// Connections at one time on each port; further ones wait to be accepted. This bounds what idle clients
    /// can hold.
    pub connections_max: usize,
    /// How long a connection lasts on the ports for callers, give or take a tenth. A shorter time spreads
    /// callers over new nodes sooner.
    pub max_age: Duration,
    /// How long a stopping node waits for requests in flight.
    pub drain: Duration,
    /// How long charges with names are remembered, and how many.
    pub charges: Keep,
    /// The number of this node's incarnation if its journal is new, instead of one by the clock. It comes
    /// from the command line, not from the file.
    pub incarnation: Option<u32>,
    /// The settings that can change without a restart.
    pub live: Live,
}

/// Where to listen, and for whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Listen {
    /// Envoy's RLS, acequia.v1, health and reflection.
    pub grpc: PortConfig,
    /// Check, metrics and health over HTTP.
    pub http: PortConfig,
    /// Further ports for the same, if the node takes the place of a service that has them.
    pub further_http: Vec<PortConfig>,
    /// Budgets and regions; absent if the service is not wanted. On loopback, or else with certificates and
    /// known callers.
    pub admin: Option<PortConfig>,
    /// QUIC between regions; present exactly if there are `regions`.
    pub mesh: Option<SocketAddr>,
}

/// The part of the config that a reload replaces.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// The limits, in the order of the file.
    pub limits: Vec<Limit>,
    /// The headers that describe limits.
    pub headers: Headers,
    /// The entry whose value appears in traces, as a keyed hash; none if absent.
    pub trace_key: Option<String>,
    /// The verdicts on requests that no limit matches.
    pub no_match: NoMatches,
    /// How Envoy is answered, by domain, where that differs.
    pub domains: BTreeMap<String, DomainConfig>,
    /// The receivers of events. Their URLs differ.
    pub webhooks: Vec<WebhookConfig>,
}

/// How Envoy is answered in a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainConfig {
    /// Whether Envoy may give hits back without the name of a charge.
    pub negative_hits: bool,
    /// Whether an answer's metadata repeat the request, as those of envoyproxy/ratelimit do.
    pub request_metadata: bool,
}

/// The dialects of headers in each kind of answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// In HTTP answers.
    pub http: Vec<Dialect>,
    /// In answers to Envoy, which can make `x-ratelimit-*` itself. If absent, `draft-11` in denials only.
    pub envoy: Option<Vec<Dialect>>,
}

impl Headers {
    /// The dialects of an answer to Envoy.
    pub(crate) fn of_envoy(&self, is_allowed: bool) -> &[Dialect] {
        match &self.envoy {
            Some(dialects) => dialects,
            None if is_allowed => &[],
            None => &[Dialect::Draft11],
        }
    }
}

/// A way to write limits in headers; see `headers.rs`. The fault for an unknown word lists the variants: serde makes
/// that list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// `RateLimit-Policy` and `RateLimit`: draft-ietf-httpapi-ratelimit-headers-11.
    #[serde(rename = "draft-11")]
    Draft11,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`: drafts up to 06.
    Triple,
    /// `X-RateLimit-*` with seconds to go in `Reset`.
    XRatelimit,
    /// `X-RateLimit-*` with the time of day in `Reset`, as seconds since the epoch.
    XRatelimitEpoch,
}

/// How memory is divided, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Cells.
    pub(crate) cells: usize,
    /// The cache of the journal's file.
    pub(crate) journal: usize,
}

/// All faults of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as the caller named it.
    pub file: String,
    /// At least one, in the order of the lines.
    pub faults: Vec<ConfigFault>,
}

/// One fault, and a way to mend it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigFault {
    /// Line in the file, from 1; 0 if the fault concerns the whole file.
    pub line: u64,
    /// The fault in words.
    pub what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.faults.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            match fault.line {
                0 => write!(f, "{}: {}", self.file, fault.what)?,
                line => write!(f, "{}:{line}: {}", self.file, fault.what)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads a config. Faults name the file `file`.
    ///
    /// # Errors
    /// Every fault in it, with its line.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(file, text, Vec::new())
    }

    /// As [`Config::parse`], with limits that come from elsewhere after those in the text.
    ///
    /// # Errors
    /// As [`Config::parse`]. Faults of the further limits have no line.
    pub fn parse_with(file: &str, text: &str, further: Vec<LimitSpec>) -> Result<Self, ConfigError> {
        let fail = |faults| ConfigError { file: file.to_owned(), faults };
        if text.len() > FILE_BYTES_MAX {
            let what =
                format!("the file is larger than {FILE_BYTES_MAX} bytes: split the limits over domains");
            return Err(fail(vec![ConfigFault { line: 0, what }]));
        }
        let mut faults = Faults::new(text);
        let Some(Read { written, is_whole }) = read(text, &mut faults) else {
            return Err(fail(faults.into_sorted()));
        };
        // Fields that were left out may be the only fault of the others.
        let config = is_whole.then(|| written.with(further).validate(&mut faults));
        let faults = faults.into_sorted();
        match config {
            Some(config) if faults.is_empty() => Ok(config),
            _ => Err(fail(faults)),
        }
    }

    /// The number that this node has among the nodes of all regions ([`MemberConfig::number`]), and the
    /// number of its name in its region.
    pub fn numbers(&self) -> (MemberId, u16) {
        let member = self.regions.as_ref().and_then(|regions| regions.member(&self.region, &self.node));
        let number = member.map_or_else(|| MemberId::named(&self.region), |member| member.number);
        (number, node_named(&self.node))
    }

    /// Notes of settings that are valid and have no effect at the time `wall_ns`, a line each.
    pub fn notes(&self, wall_ns: u64) -> Vec<String> {
        let note = |limit: &Limit| {
            let over = limit.overrides.iter().filter(|one| one.is_over(wall_ns)).count();
            (over > 0).then(|| {
                format!(
                    "note: {over} of the overrides of {} have ended and change nothing: leave them out",
                    limit.path()
                )
            })
        };
        let mut notes: Vec<String> = self.live.limits.iter().filter_map(note).collect();
        notes.extend(self.live.limits.iter().filter_map(networks_as_text));
        notes.extend(self.forgotten_at_a_crash());
        notes.extend(keys_like_others(&self.live.limits));
        let has_limits = |domain: &str| self.live.limits.iter().any(|limit| limit.spec.domain == *domain);
        let named: BTreeSet<&String> =
            self.live.no_match.domains.keys().chain(self.live.domains.keys()).collect();
        let unknown = named.into_iter().filter(|domain| !has_limits(domain));
        notes.extend(unknown.map(|domain| format!("note: `domains` names {domain}, which no limit has")));
        notes
    }

    /// A note if a long window would begin anew after a restart.
    fn forgotten_at_a_crash(&self) -> Option<String> {
        let lasting =
            self.live.limits.iter().find(|limit| limit.is_durable()).filter(|_| self.data.is_none())?;
        Some(format!(
            "note: no `data`, so a restart forgets what was spent of {} and of all other limits: name a folder, such as data: ./data",
            lasting.path()
        ))
    }

    /// How many threads answer.
    pub(crate) fn workers(&self) -> usize {
        self.workers
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get))
    }

    /// The files that hold a secret, and the fields that name them.
    pub(crate) fn secret_files(&self) -> Vec<(&'static str, PathBuf)> {
        let mut files = Vec::new();
        files.extend(self.admin_token.clone().map(|path| ("admin_token", path)));
        for port in [Some(&self.listen.grpc), Some(&self.listen.http), self.listen.admin.as_ref()] {
            files.extend(port.iter().flat_map(|port| port.secret_files()).map(|path| ("listen", path)));
        }
        files.extend(self.tls.as_ref().map(|folder| ("tls", folder.join(format!("{}.key", self.node)))));
        if let Some(store) = &self.store {
            files.extend(store.key_file.clone().map(|path| ("store.key_file", path)));
            files.extend(store.redis.secret_files().into_iter().map(|path| ("store.redis", path)));
        }
        files.extend(self.live.webhooks.iter().map(|hook| ("webhooks", hook.secret_file.clone())));
        files
    }

    /// A port with what the rest of the config adds for operators: the certificates of the `tls` folder if
    /// they come from other machines, and the `admin_token`. `None` if the node does not listen to the port.
    pub(crate) fn port(&self, port: Port) -> Option<PortConfig> {
        let mut admin = match port {
            Port::Grpc => return Some(self.listen.grpc.clone()),
            Port::Http => return Some(self.listen.http.clone()),
            Port::Admin => self.listen.admin.clone()?,
        };
        if let (None, Some(folder), false) = (&admin.tls, &self.tls, admin.address.is_local()) {
            let file = |ending| folder.join(format!("{}.{ending}", self.node));
            admin.tls = Some(PortTls { cert: file("pem"), key: file("key"), client_ca: None });
        }
        if let Some(token) = &self.admin_token {
            let who = Who::Token(token.clone());
            admin.allow.get_or_insert_default().push(Allowed { who, domains: None, may: None });
        }
        Some(admin)
    }

    /// The callers that a new config lets in by a port. `None` if the port itself changes: then everything
    /// waits for a restart.
    pub(crate) fn new_callers(&self, new: &Self, port: Port) -> Option<Option<Vec<Allowed>>> {
        let (old, new) = (self.port(port)?, new.port(port)?);
        ((&old.address, &old.tls) == (&new.address, &new.tls)).then_some(new.allow)
    }

    fn listens_elsewhere(&self, new: &Self) -> bool {
        let is_same = |port: &Port| match (self.port(*port), new.port(*port)) {
            (Some(old), Some(new)) => (old.address, old.tls) == (new.address, new.tls),
            (old, new) => old.is_none() && new.is_none(),
        };
        self.listen.mesh != new.listen.mesh || !Port::ALL.iter().all(is_same)
    }

    /// How its memory is divided.
    pub(crate) fn memory(&self) -> Memory {
        let journal = match self.data {
            Some(_) => (self.memory_bytes / 8).min(SETTINGS.bounds.journal_bytes_max),
            None => 0,
        };
        Memory { cells: self.memory_bytes - journal, journal }
    }

    /// The settings of a new config that need a restart to take effect.
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let (old, other) = (self.regions.as_ref(), new.regions.as_ref());
        let changed = [
            ("region", self.region != new.region),
            ("node", self.node != new.node),
            ("listen", self.listens_elsewhere(new)),
            ("data", self.data != new.data),
            ("store", self.store != new.store),
            ("counting", self.counting != new.counting),
            ("regions", old.map(|r| &r.members) != other.map(|r| &r.members)),
            ("authority", old.map(|r| &r.authority) != other.map(|r| &r.authority)),
            ("clock", old.map(|r| r.clock) != other.map(|r| r.clock)),
            ("tls", self.tls != new.tls),
            ("memory", self.memory_bytes != new.memory_bytes),
            ("workers", self.workers != new.workers),
            ("connections", self.connections_max != new.connections_max),
            ("max_age", self.max_age != new.max_age),
            ("charges", self.charges != new.charges),
        ];
        changed.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
    }
}

/// A note if a limit compares values as text that look like networks.
fn networks_as_text(limit: &Limit) -> Option<String> {
    let conditions = limit.when.iter().chain(&limit.unlimited);
    let conditions = conditions.chain(limit.overrides.iter().flat_map(|one| &one.when));
    let found = conditions.filter(|condition| condition.hop().is_none()).find_map(|condition| {
        let mut texts = condition.any.iter().chain(&condition.none).map(ToString::to_string);
        let network = texts.find(|text| text.contains('/') && Network::parse(text).is_ok())?;
        Some((&condition.key, network))
    });
    found.map(|(key, network)| {
        format!(
            "note: {}: {key} is compared with the text {network}; for the network write {{ ip: {network} }}",
            limit.path()
        )
    })
}

/// Notes keys that only one limit names, and that differ in one letter from a key of other limits of the
/// domain.
fn keys_like_others(limits: &[Limit]) -> Vec<String> {
    let mut by_domain: BTreeMap<&str, BTreeMap<&str, Vec<&Limit>>> = BTreeMap::new();
    for limit in limits {
        let counted = limit.by.iter().map(|by| by.key.as_str());
        let keys: BTreeSet<&str> = limit.when.iter().map(|c| c.key.as_str()).chain(counted).collect();
        let domain = by_domain.entry(&limit.spec.domain).or_default();
        keys.into_iter().for_each(|key| domain.entry(key).or_default().push(limit));
    }
    let mut notes = Vec::new();
    for keys in by_domain.values() {
        let others = keys.iter().filter(|(_, by)| by.len() > 1).map(|(key, _)| *key);
        let others: Vec<&str> = others.take(SETTINGS.reading.keys_compared).collect();
        for (key, by) in keys.iter().filter(|(_, by)| by.len() == 1) {
            if let Some(other) = others.iter().find(|other| is_close(key, other)) {
                notes.push(format!(
                    "note: {} names the key {key}, and other limits of its domain name {other}: is one of them misspelt?",
                    by[0].path()
                ));
            }
        }
    }
    notes
}

/// Whether two keys differ by one letter (changed, missing or added), or by two letters that changed places.
fn is_close(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len().abs_diff(other.len()) > 1 || one.len().min(other.len()) < 3 {
        return false;
    }
    let begin = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[begin..], &other[begin..]);
    let end = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[..one.len() - end], &other[..other.len() - end]);
    match (one, other) {
        ([a, b], [c, d]) => (a, b) == (d, c),
        (one, other) => one.len() <= 1 && other.len() <= 1,
    }
}

/// A file that was read.
struct Read {
    written: Written,
    /// Whether every field except limits was read.
    is_whole: bool,
}

/// Reads a file. A part that cannot be read is a fault, and the rest is read without it; `None` if the rest
/// cannot be read either.
fn read(text: &str, faults: &mut Faults<'_>) -> Option<Read> {
    let mut rest = quote::quoted(text);
    let mut is_whole = true;
    let nodes_max = SETTINGS.reading.nodes_max;
    for _ in 0..SETTINGS.reading.parts_max {
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! { max_nodes: nodes_max, max_events: 2 * nodes_max },
        };
        let fault = match serde_saphyr::from_str_with_options(&rest, options) {
            Ok(written) => return Some(Read { written, is_whole }),
            Err(fault) => fault,
        };
        let line = fault.location().map_or(0, |at| at.line());
        // If a part was left out, a missing field is not another fault.
        let what = plain(&fault);
        if is_whole || !what.contains("missing field") {
            faults.add(line, mend(&what));
        }
        let part = parts::parts(&rest).into_iter().find(|part| part.has_line(line))?;
        is_whole &= part.is_limit();
        let without = part.left_out(&rest);
        if without == *rest {
            return None;
        }
        rest = without.into();
    }
    None
}

/// The fault in one line.
fn plain(fault: &serde_saphyr::Error) -> String {
    let said = fault.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter);
    let mut line = said.lines().next().unwrap_or("the file is no config").to_owned();
    // The line number is reported apart.
    if let Some(place) = line.find(" at line ") {
        line.truncate(place);
    }
    // Words of the config replace those of the parser.
    let wanted = match line.as_str() {
        "invalid boolean" => "write true or false",
        "invalid floating point" => "a number is wanted here",
        "expected sequence start" => "a list is wanted here, such as [a, b]",
        "expected mapping start" => "fields are wanted here, such as { name: value }",
        "expected string scalar" => "a text is wanted here",
        other if other.starts_with("invalid u") || other.starts_with("invalid i") => {
            "a whole number is wanted here"
        }
        _ => return line,
    };
    wanted.to_owned()
}

/// Adds a hint that the parser cannot give.
fn mend(what: &str) -> String {
    format!("{what}. The fields of a config are in deploy/config.md")
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { region, node, live, .. } = self;
        write!(f, "node {node} in region {region}, {} limits", live.limits.len())?;
        if let Some(Regions { members, authority: (_, authority), clock }) = &self.regions {
            let names: Vec<&str> = members.keys().map(String::as_str).collect();
            let (error, drift) = (format_duration_ns(clock.error_ns), f64::from(clock.drift_ppm) / 1e6);
            write!(f, ", shared by {} regions ({})", names.len(), names.join(", "))?;
            write!(f, ", authority {authority}, clocks within {error} and a drift of {drift:e}")?;
        }
        if let Some(StoreConfig { nodes, guard_percent, .. }) = &self.store {
            let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
            write!(f, ", shared by {} nodes ({})", names.len(), names.join(", "))?;
            write!(f, " through redis, which keep {guard_percent} % for themselves")?;
        }
        match &self.data {
            Some(data) => write!(f, ", journal in {}", data.display())?,
            None => write!(f, ", no journal")?,
        }
        if !live.webhooks.is_empty() {
            write!(f, ", {} webhooks", live.webhooks.len())?;
        }
        write!(f, ", drains for {}", format_duration_ns(self.drain.as_nanos() as u64))
    }
}

#[cfg(test)]
mod tests;
