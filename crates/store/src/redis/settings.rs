//! Where a region's Redis is, and how patiently it is asked.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use super::group::Group;

/// How long a call waits for its answer unless its caller knows better. A call over a local network takes a tenth of it; a
/// request waits for several in parallel.
pub const CALL_DEADLINE: Duration = Duration::from_millis(3);

/// Most shards of one region, and most servers in a list. A group has one shard, so that of more some would be idle.
pub const SHARDS_MAX: usize = Group::COUNT as usize;
/// Most connections to one shard.
pub const CONNECTIONS_MAX: usize = 16;
/// Longest prefix of keys, in bytes: every key has it. The longest name of a region fits, and a word before it.
const PREFIX_MAX: usize = 80;

/// How to reach a region's Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which servers there are.
    pub place: Place,
    /// Who we are to the servers. `None` where they ask for no password.
    pub credentials: Option<Credentials>,
    /// How connections are encrypted, those to sentinels too. `None` for plain TCP.
    pub tls: Option<Tls>,
    /// What every key begins with: 1 to 80 letters, digits, `-`, `_`, `.` or `:`. Two regions that share a Redis by mistake stay apart
    /// by it. Another prefix is an empty Redis to us.
    pub prefix: String,
    /// Connections to each shard, 2 to 16. The second serves while the first is made again; more help only where one core of
    /// ours cannot fill the network.
    pub connections: usize,
    /// When to give up, to look again, to try again.
    pub timings: Timings,
    /// How far the servers' clocks and our wall may be from true time. Where it is set, a server is called only while the two agree
    /// ([`Redis::compare_clocks`](super::Redis::compare_clocks)). `None` where callers hear of each other's clocks elsewhere.
    pub clock_error: Option<Duration>,
    /// Where jitter begins. Draw it: nodes with one seed come back at one moment.
    pub seed: u64,
}

impl Settings {
    /// The files that hold passwords and keys.
    pub fn secret_files(&self) -> Vec<PathBuf> {
        let sentinels = match &self.place {
            Place::Sentinel { credentials, .. } => credentials.as_ref(),
            _ => None,
        };
        let passwords = self.credentials.iter().chain(sentinels).map(|found| found.password_file.clone());
        let client = self.tls.as_ref().and_then(|tls| tls.client.as_ref());
        passwords.chain(client.map(|client| client.key_file.clone())).collect()
    }

    /// Settings with the defaults for everything but the servers.
    #[must_use]
    pub fn new(place: Place) -> Self {
        Self {
            place,
            credentials: None,
            tls: None,
            prefix: "acequia".to_owned(),
            connections: 2,
            timings: Timings::default(),
            clock_error: None,
            seed: 0,
        }
    }

    /// Checks what can be checked without asking a server.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(&self) -> Result<(), SettingsError> {
        let (field, count, twice) = match &self.place {
            Place::Cluster { seeds } => ("seeds", seeds.len(), has_twice(seeds)),
            Place::Shards { addresses } => ("addresses", addresses.len(), has_twice(addresses)),
            Place::Sentinel { hosts, shards, .. } => {
                within("hosts", hosts.len(), 1, SHARDS_MAX)?;
                ("shards", shards.len(), has_twice(shards))
            }
        };
        within(field, count, 1, SHARDS_MAX)?;
        if twice {
            return Err(SettingsError::Twice { field });
        }
        let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        if !(1..=PREFIX_MAX).contains(&self.prefix.len()) || !self.prefix.bytes().all(is_sound) {
            return Err(SettingsError::Prefix);
        }
        within("connections", self.connections, 2, CONNECTIONS_MAX)?;
        self.timings.check()
    }
}

fn has_twice<T: Ord>(list: &[T]) -> bool {
    list.iter().collect::<std::collections::BTreeSet<_>>().len() < list.len()
}

/// Which servers there are, and who knows which of them serves what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A Redis Cluster, which knows itself.
    Cluster {
        /// Some of its nodes, 1 to 1024: one of them must answer when we start.
        seeds: Vec<Address>,
    },
    /// Independent servers. Groups are placed by a ring of hashes; a server that is down has no substitute.
    Shards {
        /// All of them, 1 to 1024, in any order. An address is the name of its shard: a shard with a new one begins anew.
        addresses: Vec<Address>,
    },
    /// Independent servers, each with replicas that sentinels promote.
    Sentinel {
        /// The sentinels.
        hosts: Vec<Address>,
        /// The names that the sentinels monitor, 1 to 1024, in any order.
        shards: Vec<String>,
        /// Who we are to the sentinels, where they ask for a password: it is not the servers'.
        credentials: Option<Credentials>,
    },
}

/// A user of Redis. It needs `+fcall +function|load +info +time`, `+cluster|slots` in a cluster, `+sentinel|master` at
/// sentinels, what the functions call, and `~<prefix>:*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The name. `None` for the default user.
    pub username: Option<String>,
    /// A file with the password and nothing else; line ends behind it are not part of it. It is read for each connection, so a
    /// new password needs no restart.
    pub password_file: PathBuf,
}

/// Files are read for each connection, so new certificates need no restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// PEM: the authorities that sign the servers' certificates. For a public one give the system's bundle.
    pub ca_file: PathBuf,
    /// Our own certificate, where the servers ask for one.
    pub client: Option<ClientCertificate>,
    /// The name in the servers' certificates, if it is not the host that we connect to: nodes of a cluster and sentinels tell
    /// addresses, and certificates often have names only.
    pub server_name: Option<String>,
}

/// PEM files that say who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, and those between it and its authority.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

/// When to give up, to look again, to try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timings {
    /// How long making a connection may take, and as long again for the first questions over it: 10 ms to 10 s, 200 ms unless set.
    /// Longer than a handshake over the slowest link; a server that hangs costs as much at each attempt.
    pub connect_timeout: Duration,
    /// How often each connection is tried: 20 ms to 10 s, 200 ms unless set. A server that hangs is noticed after
    /// three and a quarter of these, and shall be within a second on a machine that has other things to do, too.
    pub ping_every: Duration,
    /// How often the servers are asked who serves what, and whether they are fit: 100 ms to 5 min, 5 s unless set. After a sign of
    /// change they are asked at once.
    pub refresh_every: Duration,
    /// The pause after the first failed attempt to connect; each further one doubles it: 10 ms to 10 s, 50 ms unless set. Up to half
    /// of a pause is left out, by chance.
    pub reconnect_min: Duration,
    /// The longest pause between attempts: from `reconnect_min` to 1 min, 2 s unless set.
    pub reconnect_max: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_millis(200),
            ping_every: Duration::from_millis(200),
            refresh_every: Duration::from_secs(5),
            reconnect_min: Duration::from_millis(50),
            reconnect_max: Duration::from_secs(2),
        }
    }
}

impl Timings {
    fn check(&self) -> Result<(), SettingsError> {
        let ms = |duration: Duration| usize::try_from(duration.as_millis()).unwrap_or(usize::MAX);
        within("connect_timeout (ms)", ms(self.connect_timeout), 10, 10_000)?;
        within("ping_every (ms)", ms(self.ping_every), 20, 10_000)?;
        within("refresh_every (ms)", ms(self.refresh_every), 100, 300_000)?;
        within("reconnect_min (ms)", ms(self.reconnect_min), 10, 10_000)?;
        within("reconnect_max (ms)", ms(self.reconnect_max), ms(self.reconnect_min), 60_000)
    }
}

fn within(field: &'static str, value: usize, min: usize, max: usize) -> Result<(), SettingsError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(SettingsError::Range { field, value, min, max }) }
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// A name, or an IP address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

/// `host:port`, or `[::1]:port`.
impl FromStr for Address {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || SettingsError::Address(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(host) => host,
            None if host.contains(':') => return Err(wrong()),
            None => host,
        };
        let port = port.parse().map_err(|_| wrong())?;
        if host.is_empty() || port == 0 {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// What is wrong with settings, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A number is out of its range.
    #[error("redis: {field} is {value}: give {min} to {max}")]
    Range {
        /// The field.
        field: &'static str,
        /// What it is.
        value: usize,
        /// The least that it may be.
        min: usize,
        /// The most.
        max: usize,
    },
    /// A list has one thing twice.
    #[error("redis: {field} names one of them twice: name each once")]
    Twice {
        /// The list.
        field: &'static str,
    },
    /// Not a prefix.
    #[error("redis: the prefix must be 1 to 80 letters, digits, `-`, `_`, `.` or `:`")]
    Prefix,
    /// Not an address.
    #[error("redis: {0:?} is no address: give host:port")]
    Address(String),
    /// Nothing runs here that could work in the background.
    #[error("redis: open it inside a tokio runtime with time and network enabled")]
    Runtime,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().expect("an address")
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["localhost:6379", "10.0.0.1:1", "[::1]:6379"] {
            assert_eq!(address(text).to_string(), text);
        }
        for text in ["", "localhost", ":6379", "a:0", "a:65536", "::1:6379", "[]:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn defaults_are_in_their_ranges() {
        let place = Place::Cluster { seeds: vec![address("localhost:6379")] };
        assert_eq!(Settings::new(place).check(), Ok(()));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let one = address("localhost:6379");
        let sound = Settings::new(Place::Shards { addresses: vec![one.clone()] });
        let said = |settings: Settings| settings.check().expect_err("out of range").to_string();
        assert!(
            said(Settings { connections: 1, ..sound.clone() }).contains("connections is 1: give 2 to 16")
        );
        for prefix in ["", "a{b}", "a b"] {
            assert!(said(Settings { prefix: prefix.to_owned(), ..sound.clone() }).contains("prefix"));
        }
        let timings = Timings { reconnect_max: Duration::from_millis(1), ..Timings::default() };
        assert!(said(Settings { timings, ..sound.clone() }).contains("reconnect_max (ms) is 1: give 50"));
        let place = Place::Shards { addresses: vec![one.clone(), one.clone()] };
        assert!(said(Settings { place, ..sound.clone() }).contains("addresses names one of them twice"));
        let place = Place::Sentinel { hosts: vec![], shards: vec!["one".to_owned()], credentials: None };
        assert!(said(Settings { place, ..sound.clone() }).contains("hosts is 0"));
        let place = Place::Sentinel { hosts: vec![one], shards: vec![], credentials: None };
        assert!(said(Settings { place, ..sound }).contains("shards is 0"));
    }
}
