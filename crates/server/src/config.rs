//! The config file: read raw, checked whole, then passed down as plain values.
//!
//! Every fault is named with its line and a way to mend it, all of them at once.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use acequia_limits::{
    Fault, Limit,
    limit::LimitSpec,
    notation::{format_duration_ns, parse_duration_ns},
};
use serde::Deserialize;
use serde_saphyr::Spanned;

/// The largest config, 16 MiB: a hundred thousand limits fit.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// How a node is to run.
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
    /// Memory for cells, in bytes. Past it, new cells of a limit share one: larger serves more
    /// keys at once, smaller bounds what a flood of keys can take.
    pub memory_bytes: usize,
    /// Threads that answer; one for each core where absent.
    pub workers: Option<usize>,
    /// Connections at one time on each port; more wait to be accepted. Bounds what idle clients
    /// can hold.
    pub connections_max: usize,
    /// How long a stopping node lets requests in flight end.
    pub drain: Duration,
    /// What can change without a restart.
    pub live: Live,
}

/// Where to listen. Port 0 takes a free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Envoy's RLS, acequia.v1, health and reflection.
    pub grpc: SocketAddr,
    /// Check, metrics and health over HTTP.
    pub http: SocketAddr,
}

/// The part of the config that a reload replaces.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// The limits, in the order of the file.
    pub limits: Vec<Limit>,
    /// What is told about limits in headers.
    pub headers: Headers,
    /// The entry whose value appears in traces, as a keyed hash; none where absent.
    pub trace_key: Option<String>,
}

/// Which headers go out where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// In HTTP answers.
    pub http: Vec<Dialect>,
    /// In answers to Envoy, which makes `x-ratelimit-*` itself when told to.
    pub envoy: Vec<Dialect>,
}

/// A way to write limits in headers; see `headers.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// `RateLimit-Policy` and `RateLimit`: draft-ietf-httpapi-ratelimit-headers-11.
    #[serde(rename = "draft-11")]
    Draft11,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`: the drafts before.
    Triple,
    /// `X-RateLimit-*` with seconds to go in `Reset`.
    XRatelimit,
    /// `X-RateLimit-*` with the time of day in `Reset`, as seconds since the epoch.
    XRatelimitEpoch,
}

/// Everything that is wrong with a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file as it was named.
    pub file: String,
    /// At least one, in the order of the lines.
    pub faults: Vec<ConfigFault>,
}

/// One thing that is wrong, and a way to mend it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigFault {
    /// Line in the file, from 1; 0 where it concerns the whole.
    pub line: u64,
    /// In words.
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

/// The file, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    region: Spanned<String>,
    node: Spanned<String>,
    #[serde(default)]
    listen: RawListen,
    data: Option<PathBuf>,
    store: Option<Spanned<String>>,
    memory: Option<Spanned<String>>,
    workers: Option<Spanned<usize>>,
    connections: Option<Spanned<usize>>,
    drain: Option<Spanned<String>>,
    headers: Option<RawHeaders>,
    trace_key: Option<String>,
    #[serde(default)]
    limits: Vec<Spanned<LimitSpec>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawListen {
    #[serde(default = "grpc_default")]
    grpc: Spanned<String>,
    #[serde(default = "http_default")]
    http: Spanned<String>,
}

impl Default for RawListen {
    fn default() -> Self {
        Self { grpc: grpc_default(), http: http_default() }
    }
}

fn grpc_default() -> Spanned<String> {
    unplaced("127.0.0.1:8081")
}

fn http_default() -> Spanned<String> {
    unplaced("127.0.0.1:8080")
}

fn unplaced(text: &str) -> Spanned<String> {
    Spanned {
        value: text.to_owned(),
        referenced: serde_saphyr::Location::UNKNOWN,
        defined: serde_saphyr::Location::UNKNOWN,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHeaders {
    http: Option<Vec<Dialect>>,
    envoy: Option<Vec<Dialect>>,
}

/// Memory for cells where the file sets none: some four million plain cells.
const MEMORY_DEFAULT: &str = "256MiB";
/// Connections where the file sets none.
const CONNECTIONS_DEFAULT: usize = 10_000;
/// How long to drain where the file does not say.
const DRAIN_DEFAULT: Duration = Duration::from_secs(10);

impl Config {
    /// Reads a config. `file` names it in faults.
    ///
    /// # Errors
    /// Every fault in it, with its line.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let fail = |faults| ConfigError { file: file.to_owned(), faults };
        if text.len() > FILE_BYTES_MAX {
            let what =
                format!("the file is larger than {FILE_BYTES_MAX} bytes: split the limits over domains");
            return Err(fail(vec![ConfigFault { line: 0, what }]));
        }
        let raw: RawConfig = serde_saphyr::from_str(text).map_err(|e| {
            let line = e.location().map_or(0, |at| at.line());
            fail(vec![ConfigFault { line, what: mend(&plain(e.without_snippet().to_string()), text, line) }])
        })?;
        let mut faults = Vec::new();
        let config = raw.validate(text, &mut faults);
        if faults.is_empty() {
            Ok(config)
        } else {
            faults.sort();
            Err(fail(faults))
        }
    }

    /// What of a new config needs a restart to take effect.
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let changed = [
            ("region", self.region != new.region),
            ("node", self.node != new.node),
            ("listen", self.listen != new.listen),
            ("data", self.data != new.data),
            ("memory", self.memory_bytes != new.memory_bytes),
            ("workers", self.workers != new.workers),
            ("connections", self.connections_max != new.connections_max),
        ];
        changed.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
    }
}

impl RawConfig {
    fn validate(self, text: &str, faults: &mut Vec<ConfigFault>) -> Config {
        for (name, value) in [("region", &self.region), ("node", &self.node)] {
            let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if value.value.is_empty() || value.value.len() > 64 || !value.value.chars().all(fits) {
                let what =
                    format!("a {name} is 1 to 64 letters, digits, '-', '_' and '.': {:?}", value.value);
                faults.push(at(value, what));
            }
        }
        if let Some(store) = self.store.as_ref().filter(|store| store.value != "memory") {
            let what = format!("no store {:?}: write `store: memory` or leave it out", store.value);
            faults.push(at(store, what));
        }
        let listen = Listen {
            grpc: address("listen.grpc", &self.listen.grpc, faults),
            http: address("listen.http", &self.listen.http, faults),
        };
        if listen.grpc == listen.http && listen.grpc.port() != 0 {
            let what = "listen.grpc and listen.http are one address: give each its own port".to_owned();
            faults.push(at(&self.listen.http, what));
        }
        let memory = self.memory.unwrap_or_else(|| unplaced(MEMORY_DEFAULT));
        let memory_bytes = take(parse_bytes(&memory.value), &memory, faults).unwrap_or_default();
        let drain = match &self.drain {
            None => DRAIN_DEFAULT,
            Some(text) => {
                Duration::from_nanos(take(parse_duration_ns(&text.value), text, faults).unwrap_or_default())
            }
        };
        for (name, number, max) in
            [("workers", &self.workers, 1_024), ("connections", &self.connections, 1_000_000)]
        {
            if let Some(number) = number.as_ref().filter(|number| !(1..=max).contains(&number.value)) {
                faults.push(at(number, format!("{name} is 1 to {max}, not {}", number.value)));
            }
        }
        let limits = limits(self.limits, text, faults);
        let (http, envoy) = self.headers.map_or((None, None), |headers| (headers.http, headers.envoy));
        let headers = Headers {
            http: http.unwrap_or_else(|| vec![Dialect::Draft11]),
            envoy: envoy.unwrap_or_default(),
        };
        Config {
            region: self.region.value,
            node: self.node.value,
            listen,
            data: self.data,
            memory_bytes,
            workers: self.workers.map(|workers| workers.value),
            connections_max: self.connections.map_or(CONNECTIONS_DEFAULT, |c| c.value),
            drain,
            live: Live { limits, headers, trace_key: self.trace_key },
        }
    }
}

fn limits(specs: Vec<Spanned<LimitSpec>>, text: &str, faults: &mut Vec<ConfigFault>) -> Vec<Limit> {
    let begins: Vec<u64> = specs.iter().map(|spec| spec.referenced.line()).collect();
    let mut named: BTreeMap<String, u64> = BTreeMap::new();
    let mut limits = Vec::new();
    for (number, spec) in specs.into_iter().enumerate() {
        let begin = begins[number];
        let end = begins.get(number + 1).copied().unwrap_or(u64::MAX);
        let name = spec.value.name.clone();
        match Limit::new(spec.value) {
            Ok(limit) => {
                if let Some(first) = named.insert(limit.path(), begin) {
                    let what = format!(
                        "limit {} is already there in line {first}: names are unique in a domain, rename one",
                        limit.path()
                    );
                    faults.push(ConfigFault { line: begin, what });
                }
                limits.push(limit);
            }
            Err(found) => faults.extend(found.into_iter().map(|Fault { field, what }| ConfigFault {
                line: line_of(text, &field, begin, end),
                what: format!("limit {name}: {what}"),
            })),
        }
    }
    limits
}

/// The line of a field within a limit: the first that names it, or the limit's own.
fn line_of(text: &str, field: &str, begin: u64, end: u64) -> u64 {
    let named = |line: &str| {
        line.match_indices(field).any(|(place, _)| {
            let before = line[..place].chars().next_back();
            let after = line[place + field.len()..].trim_start();
            before.is_none_or(|c| " {,\"'".contains(c))
                && after.trim_start_matches(['"', '\'']).starts_with(':')
        })
    };
    let lines = (1..).zip(text.lines()).skip_while(|(n, _)| *n < begin).take_while(|(n, _)| *n < end);
    lines.filter(|(_, line)| named(line)).map(|(n, _)| n).next().unwrap_or(begin)
}

fn at<T>(place: &Spanned<T>, what: String) -> ConfigFault {
    ConfigFault { line: place.referenced.line(), what }
}

fn take<T, P>(result: Result<T, String>, place: &Spanned<P>, faults: &mut Vec<ConfigFault>) -> Option<T> {
    result.map_err(|what| faults.push(at(place, what))).ok()
}

fn address(name: &str, text: &Spanned<String>, faults: &mut Vec<ConfigFault>) -> SocketAddr {
    text.value.parse().unwrap_or_else(|_| {
        faults.push(at(
            text,
            format!("{name} is an address and a port such as 127.0.0.1:8081, not {:?}", text.value),
        ));
        SocketAddr::from(([127, 0, 0, 1], 0))
    })
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

/// One line of what the parser says.
fn plain(message: String) -> String {
    let mut line = message.lines().next().unwrap_or("the file is no config").to_owned();
    // The line is in front already.
    if let Some(place) = line.find(" at line ") {
        line.truncate(place);
    }
    line
}

/// Adds what the parser cannot know.
fn mend(what: &str, text: &str, line: u64) -> String {
    let source = text.lines().nth(usize::try_from(line.saturating_sub(1)).unwrap_or(0)).unwrap_or("");
    let later = |word: &str| source.trim_start().trim_start_matches("- ").starts_with(&format!("{word}:"));
    if let Some(word) = ["regions", "authority", "tls", "clock"].into_iter().find(|word| later(word)) {
        return format!("{what}. This version serves one region: leave `{word}` out");
    }
    if let Some(word) = ["classes", "warn_at", "throttle"].into_iter().find(|word| source.contains(*word)) {
        return format!("{what}. This version has no `{word}`: leave it out");
    }
    format!("{what}. See the README for the fields of a config")
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { region, node, live, .. } = self;
        write!(f, "node {node} in region {region}, {} limits", live.limits.len())?;
        match &self.data {
            Some(data) => write!(f, ", journal in {}", data.display())?,
            None => write!(f, ", no journal")?,
        }
        write!(f, ", drains for {}", format_duration_ns(self.drain.as_nanos() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "region: eu\nnode: eu-1\n";

    #[track_caller]
    fn refused(text: &str, line: u64, word: &str) {
        let error = Config::parse("test.yaml", text).expect_err("a fault");
        assert!(
            error.faults.iter().any(|fault| fault.line == line && fault.what.contains(word)),
            "nothing in line {line} says {word}: {error}"
        );
    }

    #[test]
    fn the_least_config_works() {
        let config = Config::parse("test.yaml", HEAD).expect("a config");
        assert_eq!(config.listen.grpc.to_string(), "127.0.0.1:8081");
        assert_eq!((config.memory_bytes, config.data), (256 << 20, None));
        assert_eq!(config.live.headers.http, [Dialect::Draft11]);
    }

    #[test]
    fn faults_name_their_line() {
        refused("region: eu\nnoed: x\n", 2, "noed");
        refused(&format!("{HEAD}listen: {{ grpc: here }}\n"), 3, "127.0.0.1:8081");
        refused(&format!("{HEAD}memory: 12\n"), 3, "1MiB");
        refused(&format!("{HEAD}memory: lots\n"), 3, "64MiB");
        refused(&format!("{HEAD}workers: 0\n"), 3, "1 to");
        refused(&format!("{HEAD}regions:\n  eu: {{ weight: 1 }}\n"), 3, "one region");
        refused("region: e u\nnode: x\n", 1, "letters");
        refused(&format!("{HEAD}listen: {{ grpc: \"127.0.0.1:1\", http: \"127.0.0.1:1\" }}\n"), 3, "port");
        refused(&format!("{HEAD}limits: [\n"), 3, "bracket");
    }

    #[test]
    fn every_fault_of_every_limit_is_named() {
        let text = format!(
            "{HEAD}limits:\n  - name: a\n    domain: shop\n    token_bucket:\n      rate: fast\n      burst: 0\n  - {{ name: b, domain: shop, quota: {{ limit: 1, per: month, time_zone: Mars/X }} }}\n  - name: c\n    domain: shop\n    fixed_window: {{ limit: 1, window: 1h }}\n  - name: c\n    domain: shop\n    fixed_window: {{ limit: 1, window: 1h }}\n"
        );
        refused(&text, 7, "60/s");
        refused(&text, 8, "burst");
        refused(&text, 9, "IANA");
        refused(&text, 13, "line 10");
    }

    #[test]
    fn the_newcomers_limits_are_read() {
        let text = format!(
            r#"{HEAD}limits:
  - name: per-key
    domain: shop
    by: [api_key]
    token_bucket: {{ rate: 60/s, burst: 120 }}
  - name: exports
    domain: shop
    when: {{ route: /export }}
    fixed_window: {{ limit: 100, window: 1h }}
    mode: shadow
  - name: reports
    domain: shop
    when: {{ route: ["/report/*", "!/report/tiny"], method: POST }}
    by: [tenant, {{ ip: remote_address, v4: 32, v6: 64 }}]
    cost: 10
    leaky_bucket: {{ rate: 2/s, queue: 20 }}
    unlimited: {{ tenant: [internal] }}
    overrides:
      - {{ tenant: big-co, rate: 20/s, queue: 200, until: 2027-01-01, why: launch }}
  - name: numbers
    domain: shop
    when: {{ version: 2, beta: true }}
    quota: {{ limit: 100000, per: month, time_zone: Europe/Berlin }}
"#
        );
        let config = Config::parse("test.yaml", &text).expect("a config");
        assert_eq!(config.live.limits.len(), 4);
        assert!(config.live.limits[3].when.iter().any(|c| c.accepts(b"2")));
    }
}
