//! Where the nodes of a region share its limits: `store: memory`, or a Redis and who shares it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    str::FromStr,
};

use acequia_rights::{node_named, pool::NODES_MAX};
use acequia_store::redis::{Address, ClientCertificate, Credentials, Password, RedisServers, Settings, Tls};
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};
use serde_saphyr::Spanned;

use super::{
    ClockConfig,
    faults::{Faults, line, listed},
};
use crate::settings::SETTINGS;

/// A store that the nodes of a region share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Where it is.
    pub redis: Settings,
    /// The names of all nodes of the region, this one among them: 1 to [`NODES_MAX`]. Must be the same on
    /// each node.
    pub nodes: BTreeSet<String>,
    /// The part of every limit that all nodes together keep as guard shares, in percent: 1 to 90. A larger
    /// part lasts longer in a store outage; a smaller part follows demand better. Must be the same on each
    /// node.
    pub guard_percent: u8,
    /// A file with the secret that names the cells, the same on each node. Without a secret the names follow
    /// from the region's name, and a client that can choose keys could aim them all at one server.
    pub key_file: Option<PathBuf>,
    /// How good the clocks of the nodes are.
    pub clock: ClockConfig,
}

impl StoreConfig {
    /// The nodes by number.
    pub fn numbers(&self) -> BTreeSet<u16> {
        self.nodes.iter().map(|name| node_named(name)).collect()
    }
}

/// `store`, as the file has it.
pub(super) enum WrittenStore {
    Named(String),
    Shared(Box<WrittenShared>),
}

/// The settings of a shared store, as the file has them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenShared {
    redis: Spanned<WrittenRedis>,
    nodes: Option<Spanned<Vec<Spanned<String>>>>,
    guard: Option<Spanned<String>>,
    key_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRedis {
    cluster: Option<Vec<Spanned<String>>>,
    shards: Option<Vec<Spanned<String>>>,
    sentinel: Option<WrittenSentinel>,
    username: Option<Spanned<String>>,
    password_file: Option<PathBuf>,
    tls: Option<WrittenTls>,
    prefix: Option<Spanned<String>>,
    connections: Option<Spanned<usize>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSentinel {
    hosts: Vec<Spanned<String>>,
    shards: Vec<Spanned<String>>,
    username: Option<Spanned<String>>,
    password_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTls {
    ca: PathBuf,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
}

impl<'de> Deserialize<'de> for WrittenStore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Store;

        impl<'de> de::Visitor<'de> for Store {
            type Value = WrittenStore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`memory`, or `redis` with a colon and where it is")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WrittenStore, E> {
                Ok(WrittenStore::Named(text.to_owned()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<WrittenStore, A::Error> {
                Ok(WrittenStore::Shared(Box::deserialize(MapAccessDeserializer::new(map))?))
            }
        }

        deserializer.deserialize_any(Store)
    }
}

/// The parts of a config about the store, and the settings that it needs.
pub(super) struct StoreScene<'a> {
    pub(super) store: &'a Spanned<WrittenStore>,
    pub(super) region: &'a Spanned<String>,
    pub(super) node: &'a Spanned<String>,
    /// The nodes of the region, as `regions` name them, if there are `regions`.
    pub(super) mates: Option<Vec<&'a str>>,
    pub(super) has_data: bool,
    pub(super) clock: ClockConfig,
}

impl StoreScene<'_> {
    /// The store, if nodes share one.
    pub(super) fn validate(&self, faults: &mut Faults<'_>) -> Option<StoreConfig> {
        let shared = match &self.store.value {
            WrittenStore::Named(name) if name == "memory" => return None,
            WrittenStore::Named(name) => {
                let what = format!(
                    "no store {name:?}: write `store: memory`, or leave it out; or, for a region of several nodes, \
                     store: {{ redis: {{ cluster: [\"10.0.0.1:6379\"] }}, nodes: [{}, ...] }}",
                    self.node.value
                );
                faults.at(self.store, what);
                return None;
            }
            WrittenStore::Shared(shared) => shared,
        };
        let store_line = faults.line_above("store", line(self.store));
        if !self.has_data {
            let what = format!(
                "`store: redis` without `data`: what this node was told of the store must survive a restart; name a \
                 folder, such as data: ./data/{}",
                self.node.value
            );
            faults.add(store_line, what);
        }
        let nodes = self.nodes(shared, store_line, faults);
        let guard_percent = match &shared.guard {
            None => SETTINGS.defaults.guard_percent,
            Some(text) => {
                faults.take(guard_percent(&text.value), text).unwrap_or(SETTINGS.defaults.guard_percent)
            }
        };
        let redis = shared.redis.value.settings(&self.region.value, line(&shared.redis), faults)?;
        let key_file = shared.key_file.clone();
        Some(StoreConfig { redis, nodes, guard_percent, key_file, clock: self.clock })
    }

    fn nodes(&self, shared: &WrittenShared, store_line: u64, faults: &mut Faults<'_>) -> BTreeSet<String> {
        let own = &self.node.value;
        let Some(nodes) = &shared.nodes else {
            if let Some(mates) = &self.mates {
                return mates.iter().map(|name| (*name).to_owned()).collect();
            }
            let what = format!(
                "`store: redis` without `nodes`: name all nodes of the region, the same on each, such as \
                 nodes: [{own}]"
            );
            faults.add(store_line, what);
            return BTreeSet::new();
        };
        let names: Vec<&Spanned<String>> = nodes.value.iter().collect();
        if names.len() > NODES_MAX {
            let what = format!("{} nodes: a region has at most {NODES_MAX}", names.len());
            faults.at(nodes, what);
        }
        let mut numbers: BTreeMap<u16, &Spanned<String>> = BTreeMap::new();
        for name in &names {
            faults.name("node", name);
            if let Some(first) = numbers.insert(node_named(&name.value), name) {
                let what = format!(
                    "node {} falls together with node {} in line {}: name each once, or rename one",
                    name.value,
                    first.value,
                    line(first)
                );
                faults.at(name, what);
            }
        }
        if !names.iter().any(|name| name.value == *own) {
            let known = listed(names.iter().map(|name| name.value.as_str()));
            let what = format!(
                "node {own} is not among `nodes` of the store ({known}): put it there, or correct the name"
            );
            faults.at(self.node, what);
        }
        let all: BTreeSet<String> = names.iter().map(|name| name.value.clone()).collect();
        if let Some(mates) = &self.mates
            && mates.iter().copied().collect::<BTreeSet<&str>>() != all.iter().map(String::as_str).collect()
        {
            let what = format!(
                "`nodes` of the store are not those of region {} in `regions` ({}): leave `nodes` out, or name the same",
                self.region.value,
                listed(mates.iter().copied())
            );
            faults.at(nodes, what);
        }
        all
    }
}

impl WrittenRedis {
    fn settings(&self, region: &str, redis_line: u64, faults: &mut Faults<'_>) -> Option<Settings> {
        let place = match (&self.cluster, &self.shards, &self.sentinel) {
            (Some(seeds), None, None) => RedisServers::Cluster { seeds: addresses(seeds, faults) },
            (None, Some(shards), None) => RedisServers::Shards { addresses: addresses(shards, faults) },
            (None, None, Some(sentinel)) => RedisServers::Sentinel {
                hosts: addresses(&sentinel.hosts, faults),
                shards: sentinel.shards.iter().map(|name| name.value.clone()).collect(),
                credentials: credentials(&sentinel.username, &sentinel.password_file, faults),
            },
            _ => {
                let what = "`redis` is one of cluster: [host:port, ...], shards: [host:port, ...] and \
                            sentinel: { hosts: [host:port, ...], shards: [name, ...] }";
                faults.add(redis_line, what.to_owned());
                return None;
            }
        };
        let mut settings = Settings::new(place);
        settings.credentials = credentials(&self.username, &self.password_file, faults);
        settings.tls = self.tls.as_ref().map(|tls| tls.read(redis_line, faults));
        settings.prefix =
            self.prefix.as_ref().map_or_else(|| format!("acequia:{region}"), |prefix| prefix.value.clone());
        if let Some(connections) = &self.connections {
            settings.connections = connections.value;
        }
        // An unreadable address is missing from a list, and was reported.
        if let Err(fault) = settings.check() {
            let is_named =
                [&self.cluster, &self.shards].iter().any(|list| list.as_deref().is_some_and(has_faults));
            if !is_named {
                faults.add(redis_line, fault.to_string());
            }
        }
        Some(settings)
    }
}

impl WrittenTls {
    fn read(&self, redis_line: u64, faults: &mut Faults<'_>) -> Tls {
        let client = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                Some(ClientCertificate { cert_file: cert.clone(), key_file: key.clone() })
            }
            (None, None) => None,
            _ => {
                let what = "redis.tls: `cert` and `key` go together: name both files, or neither";
                faults.add(redis_line, what.to_owned());
                None
            }
        };
        Tls { ca_file: self.ca.clone(), client, server_name: self.server_name.clone() }
    }
}

fn has_faults(list: &[Spanned<String>]) -> bool {
    list.iter().any(|text| Address::from_str(&text.value).is_err())
}

fn addresses(list: &[Spanned<String>], faults: &mut Faults<'_>) -> Vec<Address> {
    let read = |text: &Spanned<String>| {
        let address = Address::from_str(&text.value).map_err(|fault| fault.to_string());
        faults.take(address, text)
    };
    list.iter().filter_map(read).collect()
}

fn credentials(
    username: &Option<Spanned<String>>,
    password_file: &Option<PathBuf>,
    faults: &mut Faults<'_>,
) -> Option<Credentials> {
    match (username, password_file) {
        (username, Some(file)) => Some(Credentials {
            username: username.as_ref().map(|name| name.value.clone()),
            password: Password::File(file.clone()),
        }),
        (Some(username), None) => {
            let what =
                "`username` without `password_file`: name the file that has the password and nothing else";
            faults.at(username, what.to_owned());
            None
        }
        (None, None) => None,
    }
}

/// Reads `10%`.
fn guard_percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').and_then(|digits| digits.trim_end().parse::<u8>().ok());
    let max = SETTINGS.bounds.guard_percent_max;
    number
        .filter(|percent| (1..=max).contains(percent))
        .ok_or_else(|| format!("a guard is 1% to {max}% of every limit, such as 10%, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{HEAD, accepted, refused, refused_once};

    const STORE: &str = "data: ./data\nstore:\n  redis:\n    cluster: [\"127.0.0.1:7001\", \"redis-2:7002\"]\n  nodes: [eu-1, eu-2]\n";

    fn store(text: &str) -> StoreConfig {
        accepted(&format!("{HEAD}{text}")).store.expect("a store")
    }

    #[test]
    fn a_redis_cluster_shared_by_nodes_is_read() {
        let found = store(STORE);
        assert_eq!((found.guard_percent, found.nodes.len(), found.numbers().len()), (10, 2, 2));
        assert_eq!((found.redis.prefix.as_str(), found.redis.connections), ("acequia:eu", 2));
        assert!(matches!(&found.redis.place, RedisServers::Cluster { seeds } if seeds.len() == 2));
        assert_eq!(found.clock, ClockConfig::default());
        assert_eq!(accepted(&format!("{HEAD}store: memory\n")).store, None);
    }

    #[test]
    fn sentinel_and_shards_with_credentials_and_tls_are_read() {
        let found = store(
            "data: d\nclock: { error: 5ms }\nstore:\n  redis:\n    sentinel: { hosts: [\"[::1]:26379\"], shards: [one, two], password_file: s.txt }\n    username: limiter\n    password_file: p.txt\n    tls: { ca: ca.pem, cert: c.pem, key: c.key, server_name: redis }\n    prefix: shop\n    connections: 4\n  nodes: [eu-1]\n  guard: 25%\n  key_file: cells.key\n",
        );
        let Settings { place, credentials, tls, prefix, connections, .. } = found.redis;
        assert!(matches!(place, RedisServers::Sentinel { hosts, shards, credentials: Some(_) }
            if hosts.len() == 1 && shards == ["one", "two"]));
        assert_eq!(credentials.expect("a password").username.as_deref(), Some("limiter"));
        assert!(tls.expect("tls").client.is_some());
        assert_eq!((prefix.as_str(), connections), ("shop", 4));
        assert_eq!((found.guard_percent, found.clock.error_ns), (25, 5_000_000));
        assert!(found.key_file.is_some());
        let shards = store("data: d\nstore: { redis: { shards: [\"a:1\", \"b:2\"] }, nodes: [eu-1] }\n");
        assert!(matches!(shards.redis.place, RedisServers::Shards { addresses } if addresses.len() == 2));
    }

    #[test]
    fn faults_of_a_store_name_their_line() {
        let with = |from: &str, to: &str| {
            assert_eq!(STORE.matches(from).count(), 1, "{from}");
            format!("{HEAD}{}", STORE.replace(from, to))
        };
        refused_once(&format!("{HEAD}store: disk\n"), 3, "store: { redis: { cluster:");
        refused_once(&with("data: ./data\n", ""), 3, "without `data`");
        refused_once(&with("  nodes: [eu-1, eu-2]\n", ""), 4, "without `nodes`");
        refused_once(&with("[eu-1, eu-2]", "[eu-2, eu-3]"), 2, "not among `nodes` of the store (eu-2, eu-3)");
        refused_once(&with("[eu-1, eu-2]", "[eu-1, eu-1]"), 7, "falls together");
        refused_once(&with("redis-2:7002", "redis-2"), 6, "no address");
        refused_once(&with("cluster:", "prefix: a b\n    cluster:"), 6, "prefix");
        refused_once(&with("cluster:", "connections: 1\n    cluster:"), 6, "connections is 1");
        refused_once(&with("cluster:", "shards: [\"a:1\"]\n    cluster:"), 6, "one of cluster");
        refused_once(&with("cluster:", "username: x\n    cluster:"), 6, "password_file");
        refused_once(&with("cluster:", "tls: { ca: a, key: b }\n    cluster:"), 6, "go together");
        refused(&with("  nodes", "  guard: 95%\n  nodes"), 7, "1% to 90%");
        refused(&with("  nodes", "  gard: 5%\n  nodes"), 7, "gard");
        let many: Vec<String> = (1..=65).map(|n| format!("eu-{n}")).collect();
        refused_once(&with("eu-1, eu-2", &many.join(", ")), 7, "at most 64");
        let regions = "tls: c\nlisten: { mesh: \"127.0.0.1:7201\" }\nauthority: eu-1\n";
        let one = format!("{regions}regions: {{ eu: {{ nodes: {{ eu-1: \"127.0.0.1:7201\" }} }} }}\n");
        let without = STORE.replace("  nodes: [eu-1, eu-2]\n", "");
        refused_once(&format!("{HEAD}{without}{one}"), 10, "one node and a `store`");
        let two = format!(
            "{regions}regions: {{ eu: {{ nodes: {{ eu-1: \"127.0.0.1:7201\", eu-2: \"127.0.0.1:7202\" }} }} }}\n"
        );
        refused_once(&format!("{HEAD}data: d\n{two}"), 7, "no `store`");
        let other = STORE.replace("eu-1, eu-2", "eu-1, eu-3");
        refused_once(&format!("{HEAD}{other}{two}"), 7, "not those of region eu in `regions` (eu-1, eu-2)");
        let found = accepted(&format!("{HEAD}{without}{two}"));
        assert_eq!(found.store.expect("a store").nodes.len(), 2);
        let regions = found.regions.expect("regions");
        let mates: Vec<String> = regions.all().into_iter().map(|member| member.name).collect();
        assert_eq!((mates, regions.mates("eu").len()), (vec!["eu-1".to_owned(), "eu-2".to_owned()], 2));
    }

    #[test]
    fn a_window_too_short_for_nodes_to_share_is_refused() {
        let limit = "limits:\n  - { name: a, domain: s, fixed_window: { limit: 100, window: 100ms } }\n";
        refused_once(&format!("{HEAD}{STORE}{limit}"), 9, "cannot share a window");
    }
}
