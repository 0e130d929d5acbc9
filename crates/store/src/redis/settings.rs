//! How to reach a region's Redis, and how patiently to ask it.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use super::group::Group;

/// The default time that a call waits for its answer. A call over a local network takes a tenth of this; a
/// request waits for several calls in parallel.
pub const CALL_DEADLINE: Duration = Duration::from_millis(3);

/// The most shards of one region, and the most servers in a list. A group has one shard, so that further
/// shards would be idle.
pub const SHARDS_MAX: usize = Group::COUNT as usize;
/// The most connections to one shard.
pub const CONNECTIONS_MAX: usize = 16;
/// The longest prefix of keys, in bytes: every key has the prefix. The longest name of a region fits, with a
/// word before it.
const PREFIX_MAX: usize = 80;

/// How to reach a region's Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The servers.
    pub place: RedisServers,
    /// Our user and password. `None` if the servers ask for no password.
    pub credentials: Option<Credentials>,
    /// How connections are encrypted, those to sentinels too. `None` for plain TCP.
    pub tls: Option<Tls>,
    /// The prefix of every key: 1 to 80 letters, digits, `-`, `_`, `.` or `:`. It separates two regions that
    /// share a Redis by mistake. Under another prefix the Redis looks empty.
    pub prefix: String,
    /// Connections to each shard, 2 to 16. The second serves while the first is made again. More connections
    /// help only if one core of ours cannot fill the network.
    pub connections: usize,
    /// When to give up, to look again, and to try again.
    pub timings: Timings,
    /// How far the servers' clocks and our wall may be from true time. If set, a server is called only while
    /// the two agree ([`Redis::compare_clocks`](super::Redis::compare_clocks)). `None` if callers hear of
    /// each other's clocks elsewhere.
    pub clock_error: Option<Duration>,
    /// Whether a server may forget keys when its memory is full. Only for counts that are worth no more than that.
    pub may_evict: bool,
    /// The seed of the jitter. Draw it at random: nodes with one seed come back at one moment.
    pub seed: u64,
}

impl Settings {
    /// The files that hold passwords and keys.
    pub fn secret_files(&self) -> Vec<PathBuf> {
        let sentinels = match &self.place {
            RedisServers::Sentinel { credentials, .. } => credentials.as_ref(),
            _ => None,
        };
        let passwords = self.credentials.iter().chain(sentinels).filter_map(|found| match &found.password {
            Password::File(path) => Some(path.clone()),
            Password::Text(_) => None,
        });
        let client = self.tls.as_ref().and_then(|tls| tls.client.as_ref());
        passwords.chain(client.map(|client| client.key_file.clone())).collect()
    }

    /// Settings with the defaults for all fields except the servers.
    #[must_use]
    pub fn new(place: RedisServers) -> Self {
        Self {
            place,
            credentials: None,
            tls: None,
            prefix: "acequia".to_owned(),
            connections: 2,
            timings: Timings::default(),
            clock_error: None,
            may_evict: false,
            seed: 0,
        }
    }

    /// Checks everything that needs no server.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), SettingsError> {
        let (field, count, twice) = match &self.place {
            RedisServers::Cluster { seeds } => ("seeds", seeds.len(), has_twice(seeds)),
            RedisServers::Shards { addresses } => ("addresses", addresses.len(), has_twice(addresses)),
            RedisServers::Sentinel { hosts, shards, .. } => {
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

/// The servers, and how to find out which of them has which groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisServers {
    /// A Redis Cluster, which knows its own layout.
    Cluster {
        /// Some of its nodes, 1 to 1024. At least one of them must answer at our start.
        seeds: Vec<Address>,
    },
    /// Independent servers. A ring of hashes places the groups; a server that is down has no substitute.
    Shards {
        /// All servers, 1 to 1024, in any order. The address is the name of the shard: a shard with a new
        /// address begins anew.
        addresses: Vec<Address>,
    },
    /// Independent servers, each with replicas that sentinels promote.
    Sentinel {
        /// The sentinels.
        hosts: Vec<Address>,
        /// The names of the shards at the sentinels, 1 to 1024, in any order.
        shards: Vec<String>,
        /// Our user at the sentinels, if they ask for a password: it is not that of the servers.
        credentials: Option<Credentials>,
    },
}

/// A user of Redis. Needs `+fcall +function|load +info +time`, `+cluster|slots` in a cluster,
/// `+sentinel|master` at sentinels, the commands of the functions, and `~<prefix>:*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The name. `None` for the default user.
    pub username: Option<String>,
    /// The password.
    pub password: Password,
}

/// A password.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// A file with only the password; line ends behind it do not count. The file is read for each connection,
    /// so that a new password needs no restart.
    File(PathBuf),
    /// The password itself.
    Text(String),
}

/// Leaves the text out.
impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Text(_) => f.write_str("Text(secret)"),
        }
    }
}

/// TLS to the servers. The files are read for each connection, so that new certificates need no restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// PEM: the authorities of the servers' certificates. For a public authority name the system's bundle.
    pub ca_file: PathBuf,
    /// Our own certificate, if the servers ask for one.
    pub client: Option<ClientCertificate>,
    /// The name in the servers' certificates, if it differs from the host that we connect to. Cluster nodes
    /// and sentinels give addresses, and certificates often have only names.
    pub server_name: Option<String>,
}

/// PEM files with our own certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, and the chain up to its authority.
    pub cert_file: PathBuf,
    /// The private key of the certificate.
    pub key_file: PathBuf,
}

/// When to give up, to look again, and to try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timings {
    /// How long a connection may take, and then each question on our own account: 10 ms to 10 s, default
    /// 200 ms. Choose more than a handshake over the slowest link takes. A server that hangs costs this time
    /// at each attempt.
    pub connect_timeout: Duration,
    /// The time between two pings of a connection: 20 ms to 10 s, default 200 ms. A server that hangs is
    /// noticed after three and a quarter of these. That should stay below a second even on a busy machine.
    pub ping_every: Duration,
    /// How often the servers are asked for the layout and for their fitness: 100 ms to 5 min, default 5 s.
    /// After a sign of change they are asked at once.
    pub refresh_every: Duration,
    /// The pause after the first failed attempt to connect: 10 ms to 10 s, default 50 ms. Each further
    /// failure doubles the pause. A random part of it, up to half, is left out.
    pub reconnect_min: Duration,
    /// The longest pause between attempts: from `reconnect_min` to 1 min, default 2 s.
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

/// The fault of the settings, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A number is out of range.
    #[error("redis: {field} is {value}: give {min} to {max}")]
    Range {
        /// The field.
        field: &'static str,
        /// The value.
        value: usize,
        /// The least allowed value.
        min: usize,
        /// The greatest allowed value.
        max: usize,
    },
    /// A list has an entry twice.
    #[error("redis: {field} names one of them twice: name each once")]
    Twice {
        /// The list.
        field: &'static str,
    },
    /// The prefix is invalid.
    #[error("redis: the prefix must be 1 to 80 letters, digits, `-`, `_`, `.` or `:`")]
    Prefix,
    /// The text is no address.
    #[error("redis: {0:?} is no address: give host:port")]
    Address(String),
    /// There is no runtime for background tasks.
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
    fn default_settings_are_in_their_ranges() {
        let place = RedisServers::Cluster { seeds: vec![address("localhost:6379")] };
        assert_eq!(Settings::new(place).check(), Ok(()));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let one = address("localhost:6379");
        let sound = Settings::new(RedisServers::Shards { addresses: vec![one.clone()] });
        let said = |settings: Settings| settings.check().expect_err("out of range").to_string();
        assert!(
            said(Settings { connections: 1, ..sound.clone() }).contains("connections is 1: give 2 to 16")
        );
        for prefix in ["", "a{b}", "a b"] {
            assert!(said(Settings { prefix: prefix.to_owned(), ..sound.clone() }).contains("prefix"));
        }
        let timings = Timings { reconnect_max: Duration::from_millis(1), ..Timings::default() };
        assert!(said(Settings { timings, ..sound.clone() }).contains("reconnect_max (ms) is 1: give 50"));
        let place = RedisServers::Shards { addresses: vec![one.clone(), one.clone()] };
        assert!(said(Settings { place, ..sound.clone() }).contains("addresses names one of them twice"));
        let place =
            RedisServers::Sentinel { hosts: vec![], shards: vec!["one".to_owned()], credentials: None };
        assert!(said(Settings { place, ..sound.clone() }).contains("hosts is 0"));
        let place = RedisServers::Sentinel { hosts: vec![one], shards: vec![], credentials: None };
        assert!(said(Settings { place, ..sound }).contains("shards is 0"));
    }
}
