//! The environment variables of envoyproxy/ratelimit, read as the config of a node in its place.
//!
//! The variables become the text of a config, so they go through the same checks. Variables that this node has no use
//! for are ignored, as unknown variables are.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
    time::Duration,
};

use acequia_limits::notation::format_duration_ns;
use acequia_store::redis::{Address, ClientCertificate, Credentials, Password, RedisServers, Settings, Tls};

use super::{XdsConfig, XdsTls};
use crate::{counting::CountingConfig, sources::Start};

/// The age of connections that never end by age.
const ENDLESS: Duration = Duration::from_secs(365 * 86_400);

/// What the variables say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// What the node runs by.
    pub start: Start,
    /// The least level of logs that are written, such as `info`.
    pub log_level: &'static str,
    /// Whether logs are written as JSON.
    pub log_json: bool,
    /// What the variables ask for and this node does not do, a line each.
    pub notes: Vec<String>,
}

/// The ports that the variables name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentConfig {
    /// A config of the first port for HTTP and the one for gRPC. It is the whole config if there is no other.
    pub text: String,
    /// Further addresses for HTTP.
    pub further_http: Vec<String>,
    /// Whether every limit of the service's config only watches.
    pub shadow_mode: bool,
    /// Whether one limit of a request that allows is enough to pass ([`Mode::Any`](acequia_limits::Mode)).
    pub quota_mode: bool,
    /// Whether answers repeat the request in their metadata.
    pub request_metadata: bool,
    /// Whether callers may name limits in descriptors.
    pub limits_from_callers: bool,
    /// The Redis that counts hits, if there is one and no other config.
    pub counting: Option<CountingConfig>,
}

/// The certificates that the system trusts, if a variable names no others.
const SYSTEM_CA: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Variables that say nothing here, whatever their value.
const WITHOUT_EFFECT: [&str; 12] = [
    "REDIS_TIMEOUT",
    "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
    "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
    "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
    "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
    "NEAR_LIMIT_RATIO",
    "LOCAL_CACHE_SIZE_IN_BYTES",
    "PROMETHEUS_MAPPER_YAML",
    "EXTRA_TAGS",
];

/// Where the service's config comes from.
enum Origin {
    Folder(PathBuf),
    Server(XdsConfig),
}

/// Reads variables, and gathers every fault.
struct Variables {
    values: BTreeMap<String, String>,
    faults: Vec<String>,
}

impl Variables {
    /// A variable's value. An empty one is as good as none.
    fn text(&self, name: &str, default: &str) -> String {
        self.values
            .get(name)
            .filter(|value| !value.is_empty())
            .map_or_else(|| default.to_owned(), Clone::clone)
    }

    fn given(&self, name: &str) -> Option<String> {
        Some(self.text(name, "")).filter(|value| !value.is_empty())
    }

    /// A truth value, as Go's `strconv.ParseBool` reads it.
    fn is_on(&mut self, name: &str) -> bool {
        match self.text(name, "false").as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            other => {
                self.faults.push(format!("{name}={other}: write true or false"));
                false
            }
        }
    }

    /// An address of TCP, from the variables of its host and its port.
    fn address(&mut self, host: &str, port: &str, default: u16) -> String {
        let number = self.text(port, &default.to_string());
        if number.parse::<u16>().is_err() {
            self.faults.push(format!("{port}={number}: write a port, such as {default}"));
        }
        let named = self.text(host, "0.0.0.0");
        let ip = self.ip(host, &named);
        joined(ip, &number)
    }

    /// The address of a host that a variable names. If the host has several, one of IPv4 goes first, as in Go.
    fn ip(&mut self, variable: &str, host: &str) -> IpAddr {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let found: Vec<SocketAddr> = (bare, 0).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        let ip = found.iter().find(|address| address.is_ipv4()).or(found.first()).map(SocketAddr::ip);
        ip.unwrap_or_else(|| {
            self.faults.push(format!("{variable}={host}: no such host: write an address, such as 127.0.0.1"));
            Ipv4Addr::LOCALHOST.into()
        })
    }

    /// The address of metrics, if they have one of their own.
    fn metrics(&mut self) -> Option<String> {
        if !self.is_on("USE_PROMETHEUS") {
            return None;
        }
        let path = self.text("PROMETHEUS_PATH", "/metrics");
        if path != "/metrics" {
            self.faults.push(format!("PROMETHEUS_PATH={path}: metrics are at /metrics alone"));
        }
        let address = self.text("PROMETHEUS_ADDR", ":9090");
        Some(match address.rsplit_once(':') {
            Some(("", port)) => format!("0.0.0.0:{port}"),
            Some((host, port)) => joined(self.ip("PROMETHEUS_ADDR", host), port),
            None => address,
        })
    }

    /// The certificates of the gRPC port, as part of a config.
    fn tls(&mut self) -> String {
        if !self.is_on("GRPC_SERVER_USE_TLS") {
            return String::new();
        }
        let [cert, key] = ["GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"].map(|name| {
            self.given(name).unwrap_or_else(|| {
                self.faults.push(format!("GRPC_SERVER_USE_TLS without {name}: name a file"));
                String::new()
            })
        });
        if self.given("GRPC_CLIENT_TLS_SAN").is_some() {
            self.faults.push(
                "GRPC_CLIENT_TLS_SAN: name the callers by `allow` in a config, and the config by ACEQUIA_CONFIG"
                    .to_owned(),
            );
        }
        let client_ca = self.given("GRPC_CLIENT_TLS_CACERT");
        let client_ca = client_ca.map_or_else(String::new, |path| format!(", client_ca: {path:?}"));
        format!(", tls: {{ cert: {cert:?}, key: {key:?}{client_ca} }}")
    }

    /// A duration of Go, such as `24h` or `1h30m`.
    fn duration(&mut self, name: &str, default: &str) -> Duration {
        let text = self.text(name, default);
        let ns = go_duration_ns(&text).unwrap_or_else(|| {
            self.faults.push(format!("{name}={text}: write a duration, such as {default}"));
            1
        });
        Duration::from_nanos(ns)
    }

    /// The folder of the service's config, or the management server that has it.
    fn origin(&mut self) -> Origin {
        match self.text("CONFIG_TYPE", "FILE").as_str() {
            "FILE" => {
                let mut folder = PathBuf::from(self.text("RUNTIME_ROOT", "/srv/runtime_data/current"));
                folder.extend(self.given("RUNTIME_SUBDIRECTORY"));
                Origin::Folder(folder.join(self.text("RUNTIME_APPDIRECTORY", "config")))
            }
            "GRPC_XDS_SOTW" => Origin::Server(self.xds()),
            other => {
                self.faults.push(format!("CONFIG_TYPE={other}: write FILE or GRPC_XDS_SOTW"));
                Origin::Folder(PathBuf::new())
            }
        }
    }

    fn xds(&mut self) -> XdsConfig {
        let has_tls = self.is_on("CONFIG_GRPC_XDS_SERVER_USE_TLS");
        let file = |name| self.given(name).map(PathBuf::from);
        let tls = has_tls.then(|| XdsTls {
            cert: file("CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
            key: file("CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
            ca: file("CONFIG_GRPC_XDS_SERVER_TLS_CACERT").or_else(|| Some(PathBuf::from(SYSTEM_CA))),
            server_name: self.given("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
        });
        let metadata = self.text("CONFIG_GRPC_XDS_NODE_METADATA", "");
        let pairs = metadata.split(',').filter_map(|pair| pair.split_once('='));
        XdsConfig {
            server: self.text("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
            node_id: self.text("CONFIG_GRPC_XDS_NODE_ID", "default"),
            metadata: pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            tls,
            starts_without: self.is_on("FORCE_START_WITHOUT_INITIAL_CONFIG"),
            pause_min: self.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s"),
            pause_max: self.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s"),
        }
    }

    /// The Redis that counts hits. Nodes with a config of their own count in theirs.
    fn counting(&mut self) -> Option<CountingConfig> {
        let backend = self.text("BACKEND_TYPE", "redis");
        if backend != "redis" {
            self.faults
                .push(format!("BACKEND_TYPE={backend}: hits are counted in a Redis, or by this node alone"));
        }
        let url = self.given("REDIS_URL")?;
        if self.given("ACEQUIA_CONFIG").is_some() {
            return None;
        }
        let on_loss = self.text("ACEQUIA_ON_REDIS_LOSS", "deny");
        if !matches!(on_loss.as_str(), "deny" | "allow") {
            self.faults.push(format!("ACEQUIA_ON_REDIS_LOSS={on_loss}: write deny or allow"));
        }
        match self.redis(&url) {
            Ok(redis) => Some(CountingConfig { redis, passes_without: on_loss == "allow" }),
            Err(fault) => {
                self.faults.push(fault);
                None
            }
        }
    }

    /// The Redis, from a URL or a list of addresses.
    fn redis(&mut self, url: &str) -> Result<Settings, String> {
        let socket = self.text("REDIS_SOCKET_TYPE", "tcp");
        if socket == "unix" {
            return Err("REDIS_SOCKET_TYPE=unix: name a server by tcp or tls".to_owned());
        }
        let mut servers = url.split(',').map(|one| RedisUrl::read(one.trim()));
        let all: Vec<RedisUrl> = servers.by_ref().collect::<Result<_, _>>()?;
        let user = all.iter().find_map(|one| one.login.clone());
        let is_encrypted = all.iter().any(|one| one.is_encrypted);
        let mut names = all.iter().map(|one| one.server.as_str());
        let address = |text: &str| text.parse::<Address>().map_err(|fault| format!("REDIS_URL: {fault}"));
        let place = match self.text("REDIS_TYPE", "SINGLE").to_ascii_uppercase().as_str() {
            "SINGLE" if all.len() == 1 => RedisServers::Shards { addresses: vec![address(&all[0].server)?] },
            "SINGLE" => {
                return Err("REDIS_URL: several servers: write REDIS_TYPE=CLUSTER or SENTINEL".to_owned());
            }
            "CLUSTER" => RedisServers::Cluster { seeds: names.map(address).collect::<Result<_, _>>()? },
            "SENTINEL" => {
                let shards = vec![names.next().unwrap_or_default().to_owned()];
                let credentials = self.given("REDIS_SENTINEL_AUTH").map(|auth| login(&auth));
                RedisServers::Sentinel {
                    shards,
                    hosts: names.map(address).collect::<Result<_, _>>()?,
                    credentials,
                }
            }
            other => return Err(format!("REDIS_TYPE={other}: write SINGLE, SENTINEL or CLUSTER")),
        };
        let mut settings = Settings::new(place);
        settings.credentials = self.given("REDIS_AUTH").as_deref().map(login).or(user);
        if self.is_on("REDIS_TLS") || is_encrypted || socket == "tls" {
            settings.tls = Some(self.redis_tls());
        }
        if let Some(prefix) = self.given("CACHE_KEY_PREFIX") {
            settings.prefix = prefix;
        }
        settings.may_evict = true;
        settings.check().map_err(|fault| fault.to_string())?;
        Ok(settings)
    }

    fn redis_tls(&self) -> Tls {
        let file = |name| self.given(name).map(PathBuf::from);
        let client = file("REDIS_TLS_CLIENT_CERT").zip(file("REDIS_TLS_CLIENT_KEY"));
        Tls {
            ca_file: file("REDIS_TLS_CACERT").unwrap_or_else(|| PathBuf::from(SYSTEM_CA)),
            client: client.map(|(cert_file, key_file)| ClientCertificate { cert_file, key_file }),
            server_name: None,
        }
    }

    fn log_level(&mut self) -> &'static str {
        match self.text("LOG_LEVEL", "warn").to_ascii_lowercase().as_str() {
            "trace" => "trace",
            "debug" => "debug",
            "info" => "info",
            "warn" | "warning" => "warn",
            "error" | "fatal" | "panic" => "error",
            other => {
                self.faults.push(format!("LOG_LEVEL={other}: write debug, info, warn or error"));
                "warn"
            }
        }
    }

    /// The headers of answers, as part of a config.
    fn headers(&mut self) -> &'static str {
        if self.is_on("LIMIT_RESPONSE_HEADERS_ENABLED") { "headers: { envoy: [triple] }\n" } else { "" }
    }

    /// What is asked for in vain.
    fn notes(&mut self) -> Vec<String> {
        let switches = [
            ("USE_STATSD", "metrics are not sent to statsd: scrape /metrics"),
            ("USE_DOG_STATSD", "metrics are not sent to statsd: scrape /metrics"),
            ("TRACING_ENABLED", "traces are not exported"),
            ("REDIS_PERSECOND", "all hits are counted in REDIS_URL"),
        ];
        let mut notes = Vec::new();
        for (name, what) in switches {
            if self.is_on(name) {
                notes.push(format!("{name}: {what}"));
            }
        }
        let headers = ["LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"];
        let headers = headers.into_iter().filter(|name| self.given(name).is_some());
        notes.extend(
            headers.map(|name| format!("{name}: headers are RateLimit-Limit, -Remaining and -Reset")),
        );
        if self.given("ACEQUIA_CONFIG").is_some() {
            let names = ["REDIS_URL", "LIMIT_RESPONSE_HEADERS_ENABLED", "GRPC_MAX_CONNECTION_AGE"];
            let names = names.into_iter().filter(|name| self.given(name).is_some());
            notes.extend(names.map(|name| format!("{name}: the file of ACEQUIA_CONFIG says that")));
        }
        let without = WITHOUT_EFFECT.into_iter().filter(|name| self.given(name).is_some());
        notes.extend(without.map(|name| format!("{name}: without effect here")));
        notes
    }
}

/// An address and a port, as a config writes them.
fn joined(ip: IpAddr, port: &str) -> String {
    if ip.is_ipv6() { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

impl Environment {
    /// Reads the variables of a process.
    ///
    /// # Errors
    /// Every variable that cannot be followed.
    pub fn read(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, Vec<String>> {
        let mut read = Variables { values: variables.into_iter().collect(), faults: Vec::new() };
        let grpc = match read.given("GRPC_UDS") {
            None => read.address("GRPC_HOST", "GRPC_PORT", 8081),
            Some(path) => format!("unix:{path}"),
        };
        let http = read.address("HOST", "PORT", 8080);
        let (tls, headers) = (read.tls(), read.headers());
        let max_age = match read.given("GRPC_MAX_CONNECTION_AGE").as_deref() {
            Some("0" | "0s") => ENDLESS,
            _ => read.duration("GRPC_MAX_CONNECTION_AGE", "24h"),
        };
        let max_age = format_duration_ns(u64::try_from(max_age.as_nanos()).unwrap_or(u64::MAX));
        let mut text = format!("region: local\nnode: ratelimit\nmax_age: {max_age}\n{headers}listen:\n");
        let _ = writeln!(text, "  grpc: {{ address: {grpc:?}{tls} }}\n  http: {http:?}");
        let further = [Some(read.address("DEBUG_HOST", "DEBUG_PORT", 6070)), read.metrics()];
        let config = EnvironmentConfig {
            text,
            further_http: further.into_iter().flatten().filter(|address| *address != http).collect(),
            shadow_mode: read.is_on("SHADOW_MODE"),
            quota_mode: read.is_on("QUOTA_MODE"),
            request_metadata: read.is_on("RESPONSE_DYNAMIC_METADATA"),
            limits_from_callers: read.is_on("ACEQUIA_LIMITS_FROM_CALLERS"),
            counting: read.counting(),
        };
        let (ratelimit_config, xds) = match read.origin() {
            Origin::Folder(folder) => (Some(folder), None),
            Origin::Server(xds) => (None, Some(xds)),
        };
        let start = Start {
            config: read.given("ACEQUIA_CONFIG").map(PathBuf::from),
            ratelimit_config,
            xds,
            incarnation: None,
            environment: Some(config),
        };
        let log_level = read.log_level();
        let log_json = read.text("LOG_FORMAT", "text") == "json";
        let notes = read.notes();
        if read.faults.is_empty() { Ok(Self { start, log_level, log_json, notes }) } else { Err(read.faults) }
    }
}

/// One server of `REDIS_URL`.
struct RedisUrl {
    server: String,
    login: Option<Credentials>,
    is_encrypted: bool,
}

impl RedisUrl {
    /// Reads `host:port` or `redis://user:password@host:port/0`. No fault shows a password.
    fn read(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            if text.contains('@') {
                return Err("REDIS_URL: write redis:// before a user, or use REDIS_AUTH".to_owned());
            }
            return Ok(Self { server: text.to_owned(), login: None, is_encrypted: false });
        };
        if !matches!(scheme, "redis" | "rediss") {
            return Err("REDIS_URL: write redis://, rediss:// or host:port".to_owned());
        }
        let (user, server) =
            rest.rsplit_once('@').map_or((None, rest), |(user, server)| (Some(user), server));
        let (server, database) = server.split_once('/').unwrap_or((server, ""));
        if !matches!(database, "" | "0") {
            return Err(format!("REDIS_URL: database {database}: only database 0 is used"));
        }
        let login = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or(("", user));
            Credentials {
                username: Some(decoded(name)).filter(|name| !name.is_empty()),
                password: Password::Text(decoded(password)),
            }
        });
        Ok(Self { server: server.to_owned(), login, is_encrypted: scheme == "rediss" })
    }
}

/// A part of a URL without its percent-encoding (RFC 3986, section 2.1). What is no encoding stays as it is.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A user and a password with a colon between, or a password alone.
fn login(auth: &str) -> Credentials {
    let (username, password) =
        auth.split_once(':').map_or((None, auth), |(user, password)| (Some(user), password));
    Credentials {
        username: username.filter(|user| !user.is_empty()).map(str::to_owned),
        password: Password::Text(password.to_owned()),
    }
}

/// Go's notation of a duration: numbers with units, one after another. `None` if the text is none, or the duration is
/// longer than a config's longest.
fn go_duration_ns(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 6] =
        [("h", 3.6e12), ("ms", 1e6), ("us", 1e3), ("ns", 1.0), ("m", 6e10), ("s", 1e9)];
    let mut rest = text;
    let mut ns = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let count: f64 = rest[..digits].parse().ok()?;
        let (unit, length) = UNITS.iter().find(|(unit, _)| rest[digits..].starts_with(unit))?;
        ns += count * length;
        rest = &rest[digits + unit.len()..];
    }
    (ns >= 1.0 && ns <= acequia_limits::PERIOD_NS_MAX as f64).then_some(ns as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, Vec<String>> {
        Environment::read(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    fn config(environment: &Environment) -> Config {
        let text = &environment.start.environment.as_ref().expect("ports").text;
        Config::parse("the environment", text).unwrap_or_else(|fault| panic!("{fault}\n{text}"))
    }

    #[test]
    fn without_variables_the_ports_are_those_of_the_service() {
        let environment = read(&[]).expect("sound");
        let config = config(&environment);
        assert_eq!(config.listen.grpc.address.to_string(), "0.0.0.0:8081");
        assert_eq!(config.listen.http.address.to_string(), "0.0.0.0:8080");
        let start = &environment.start;
        assert_eq!(start.environment.as_ref().expect("ports").further_http, ["0.0.0.0:6070"]);
        let folder = "/srv/runtime_data/current/config".into();
        assert_eq!((start.ratelimit_config.clone(), environment.log_level), (Some(folder), "warn"));
    }

    #[test]
    fn hosts_may_be_names_and_connections_endless() {
        let environment = read(&[
            ("HOST", "localhost"),
            ("GRPC_HOST", "[::1]"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", "localhost:9"),
            ("GRPC_MAX_CONNECTION_AGE", "0"),
        ]);
        let environment = environment.expect("sound");
        let config = config(&environment);
        assert_eq!(config.max_age, ENDLESS);
        assert_eq!(config.listen.grpc.address.to_string(), "[::1]:8081");
        let metrics = &environment.start.environment.as_ref().expect("ports").further_http[1];
        for address in [config.listen.http.address.to_string(), metrics.clone()] {
            let address: SocketAddr = address.parse().expect("an address");
            assert_eq!(address.ip(), Ipv4Addr::LOCALHOST);
        }
        let faults = read(&[("DEBUG_HOST", "no host")]).expect_err("no host");
        assert!(faults[0].starts_with("DEBUG_HOST=no host: "), "{faults:?}");
    }

    #[test]
    fn every_variable_that_counts_is_followed() {
        let environment = read(&[
            ("HOST", "127.0.0.1"),
            ("PORT", "1"),
            ("GRPC_HOST", "::1"),
            ("GRPC_PORT", "2"),
            ("DEBUG_PORT", "3"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
            ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
            ("GRPC_CLIENT_TLS_CACERT", "/certs/ca.crt"),
            ("GRPC_MAX_CONNECTION_AGE", "1h30m"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", ":19001"),
            ("RUNTIME_ROOT", "/data"),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "1"),
            ("SHADOW_MODE", "T"),
            ("LOG_LEVEL", "DEBUG"),
            ("LOG_FORMAT", "json"),
            ("USE_STATSD", "true"),
        ])
        .expect("sound");
        let config = config(&environment);
        let addresses = (config.listen.grpc.address.to_string(), config.listen.http.address.to_string());
        assert_eq!(addresses, ("[::1]:2".to_owned(), "127.0.0.1:1".to_owned()));
        let tls = config.listen.grpc.tls.expect("certificates");
        assert_eq!(tls.client_ca, Some(PathBuf::from("/certs/ca.crt")));
        assert_eq!(config.max_age.as_secs(), 5_400);
        let start = &environment.start;
        let written = start.environment.as_ref().expect("ports");
        assert_eq!(written.further_http, ["0.0.0.0:3", "0.0.0.0:19001"]);
        assert!(written.shadow_mode && environment.log_json && environment.log_level == "debug");
        assert_eq!(start.ratelimit_config, Some(PathBuf::from("/data/ratelimit/config")));
        assert_eq!(environment.notes, ["USE_STATSD: metrics are not sent to statsd: scrape /metrics"]);
    }

    #[test]
    fn limits_come_from_a_management_server_as_envoy_gateway_names_it() {
        let start = read(&[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c=d=e,f"),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "1s"),
        ]);
        let start = start.expect("sound").start;
        assert_eq!(start.ratelimit_config, None);
        let xds = start.xds.expect("a server");
        assert_eq!((xds.server.as_str(), xds.node_id.as_str()), ("envoy-gateway:18001", "envoy-ratelimit"));
        let metadata: Vec<_> =
            xds.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(metadata, [("a", "b"), ("c", "d=e")]);
        assert_eq!(xds.tls.expect("TLS").ca, Some(PathBuf::from("/certs/ca.crt")));
        assert!(xds.starts_without);
        assert_eq!((xds.pause_min.as_secs(), xds.pause_max.as_secs()), (1, 60));
    }

    #[test]
    fn every_fault_is_told_at_once() {
        let faults = read(&[
            ("PORT", "http"),
            ("GRPC_SERVER_USE_TLS", "yes"),
            ("GRPC_MAX_CONNECTION_AGE", "long"),
            ("CONFIG_TYPE", "ETCD"),
            ("LOG_LEVEL", "loud"),
            ("REDIS_URL", "redis"),
            ("BACKEND_TYPE", "memcache"),
        ])
        .expect_err("faults");
        for word in
            ["PORT=http", "GRPC_SERVER_USE_TLS=yes", "AGE=long", "ETCD", "loud", "REDIS_URL", "memcache"]
        {
            assert!(faults.iter().any(|fault| fault.contains(word)), "{word}: {faults:?}");
        }
        let member = read(&[("REDIS_URL", "redis:6379"), ("ACEQUIA_CONFIG", "/etc/acequia.yaml")]);
        let member = member.expect("sound");
        assert_eq!(member.start.config, Some(PathBuf::from("/etc/acequia.yaml")));
        assert_eq!(member.notes, ["REDIS_URL: the file of ACEQUIA_CONFIG says that"]);
    }

    #[test]
    fn a_redis_is_named_as_the_service_names_it() {
        let of = |variables: &[(&str, &str)]| {
            let environment = read(variables).expect("sound").start.environment.expect("a config");
            environment.counting.expect("a Redis")
        };
        let address = |host: &str, port| Address { host: host.to_owned(), port };
        let login = |username: Option<&str>, password: &str| {
            Some(Credentials {
                username: username.map(str::to_owned),
                password: Password::Text(password.to_owned()),
            })
        };
        let one = of(&[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "redis:6379")]);
        assert_eq!(one.redis.place, RedisServers::Shards { addresses: vec![address("redis", 6379)] });
        assert!(one.redis.may_evict && one.redis.tls.is_none() && !one.passes_without);
        let url = [("REDIS_URL", "rediss://u:p%40s@s@redis:6379/0"), ("ACEQUIA_ON_REDIS_LOSS", "allow")];
        let full = of(&url);
        assert_eq!(full.redis.credentials, login(Some("u"), "p@s@s"));
        assert!(full.redis.tls.is_some() && full.passes_without);
        let cluster = of(&[("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b:2"), ("REDIS_AUTH", "secret")]);
        assert_eq!(
            cluster.redis.place,
            RedisServers::Cluster { seeds: vec![address("a", 1), address("b", 2)] }
        );
        assert_eq!(cluster.redis.credentials, login(None, "secret"));
        let sentinel =
            of(&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "main,s:26379"), ("REDIS_SENTINEL_AUTH", "x")]);
        let RedisServers::Sentinel { hosts, shards, credentials } = sentinel.redis.place else {
            panic!("sentinels")
        };
        assert_eq!(
            (hosts, shards, credentials),
            (vec![address("s", 26_379)], vec!["main".to_owned()], login(None, "x"))
        );
        for (name, value) in [
            ("REDIS_TYPE", "RING"),
            ("REDIS_SOCKET_TYPE", "unix"),
            ("ACEQUIA_ON_REDIS_LOSS", "maybe"),
            ("CACHE_KEY_PREFIX", "a b"),
        ] {
            read(&[("REDIS_URL", "redis:6379"), (name, value)]).expect_err(name);
        }
        for url in [
            "redis:6379,other:6379",
            "redis://redis:6379/5",
            "u:secret@redis:6379",
            "secret://redis:6379",
            "redis",
        ] {
            let faults = read(&[("REDIS_URL", url)]).expect_err(url);
            assert!(!format!("{faults:?}").contains("secret"), "{faults:?}");
        }
        let login_twice = of(&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "redis://u:p@a:1,redis://u:p@b:2")]);
        assert_eq!(login_twice.redis.credentials, login(Some("u"), "p"));
        assert!(!format!("{full:?}").contains("p@s"), "a password is shown");
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let seconds = |text| go_duration_ns(text).map(|ns| ns as f64 / 1e9);
        for (text, read) in
            [("24h", Some(86_400.0)), ("1.5h", Some(5_400.0)), ("1m30s", Some(90.0)), ("250ms", Some(0.25))]
        {
            assert_eq!(seconds(text), read, "{text}");
        }
        for text in ["", "0s", "h", "5", "1d", "-1s", "1000000h"] {
            assert_eq!(go_duration_ns(text), None, "{text}");
        }
    }
}
