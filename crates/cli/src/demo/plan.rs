//! The setup: three regions, their ports, their configs, and their demand.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    path::Path,
};

use super::DemoError;

/// How many regions there are.
pub const REGIONS: usize = 3;
/// The regions' names, in the order in which they are drawn. Each region has one node, `NAME-1`.
pub const NAMES: [&str; REGIONS] = ["eu", "us", "ap"];
/// The region whose node is the authority.
pub const AUTHORITY: usize = 0;
/// The pairs of regions, by their places. The keys 1 to 3 choose among them.
pub const PAIRS: [(usize, usize); 3] = [(0, 1), (1, 2), (0, 2)];
/// The domain of all limits.
pub const DOMAIN: &str = "demo";
/// The limits, in the order of [`Subject::kind`](super::ledger::Subject::kind).
pub const LIMITS: [&str; super::ledger::KINDS] = ["budget", "per-user", "exports"];
/// The budget at the start: units a second, and units at once.
pub const BUDGET: u64 = 1_000;
/// A user's rate, in units a second, and burst.
pub const USER_RATE: u64 = 10;
/// See [`USER_RATE`].
pub const USER_BURST: u64 = 20;
/// Each user asks in one region: name, region, and requests a second. The last user asks for more than it
/// may.
pub const USERS: [(&str, usize, u64); 4] = [("ann", 0, 8), ("ben", 1, 8), ("cleo", 2, 8), ("dan", 1, 25)];
/// The limit of streams, whose costs are reported when they are done.
pub const STREAMED: &str = "tokens";
/// Tokens a second of all streams, and as large a burst.
pub const TOKENS: u64 = 300;
/// The window of the exports.
pub const EXPORTS: Window = Window { units: 600, window_ns: 60_000_000_000, window: "1m" };

/// A fixed window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// For each window.
    pub units: u64,
    /// Nanoseconds.
    pub window_ns: u64,
    /// The length in the config's form.
    pub window: &'static str,
}

/// The default port of eu's HTTP API.
pub const BASE_PORT: u16 = 8080;
/// The difference between the ports of two regions.
const REGION_STEP: u16 = 100;
/// The largest port that leaves room for all regions.
pub const BASE_PORT_MAX: u16 = u16::MAX - REGION_STEP * (REGIONS as u16 - 1) - 2;

/// The addresses on which a region's node listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// `POST /v1/check`, metrics, health.
    pub http: SocketAddr,
    /// `acequia.v1.Limiter`.
    pub grpc: SocketAddr,
    /// `acequia.v1.Admin`.
    pub admin: SocketAddr,
    /// QUIC from the other regions.
    pub mesh: SocketAddr,
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The ports of all regions: fixed ports for callers, and free ports between the regions.
///
/// # Errors
/// A port is taken.
pub fn ports(base: u16) -> Result<[Ports; REGIONS], DemoError> {
    let mesh = free_udp_ports().map_err(DemoError::System)?;
    let mut all = [None; REGIONS];
    for (place, ports) in all.iter_mut().enumerate() {
        let first = base + place as u16 * REGION_STEP;
        let region = Ports {
            http: loopback(first),
            grpc: loopback(first + 1),
            admin: loopback(first + 2),
            mesh: mesh[place],
        };
        for (what, address) in [("HTTP", region.http), ("gRPC", region.grpc), ("admin", region.admin)] {
            TcpListener::bind(address).map_err(|cause| DemoError::Port {
                what,
                region: NAMES[place],
                address,
                cause,
                other: other_base(base),
            })?;
        }
        *ports = Some(region);
    }
    Ok(all.map(|ports| ports.unwrap_or_else(|| unreachable!("every region has ports"))))
}

/// A base port to propose if these ports are taken.
fn other_base(base: u16) -> u16 {
    if base > BASE_PORT_MAX - 10_000 { BASE_PORT } else { base + 10_000 }
}

/// Ports that nobody listens on now. All are held together, so that no two are equal.
fn free_udp_ports() -> std::io::Result<[SocketAddr; REGIONS]> {
    let sockets: Vec<UdpSocket> =
        (0..REGIONS).map(|_| UdpSocket::bind(loopback(0))).collect::<Result<_, _>>()?;
    let mut ports = [loopback(0); REGIONS];
    for (port, socket) in ports.iter_mut().zip(&sockets) {
        *port = socket.local_addr()?;
    }
    Ok(ports)
}

/// Whether the first of two regions dials the second. Nodes are numbered by their names, and the smaller one
/// dials.
pub fn dials(from: usize, to: usize) -> bool {
    NAMES[from] < NAMES[to]
}

/// A node's config. `peer` says where this node finds another region's.
pub fn config(
    place: usize,
    ports: &[Ports; REGIONS],
    folder: &Path,
    peer: impl Fn(usize) -> SocketAddr,
) -> String {
    let name = NAMES[place];
    let Ports { http, grpc, admin, mesh } = ports[place];
    let (tls, data) = (folder.join("tls"), folder.join("data").join(format!("{name}-1")));
    let mut regions = String::new();
    for (other, name) in NAMES.iter().enumerate() {
        let address = if other == place { mesh } else { peer(other) };
        // Writing to a string cannot fail.
        let _ = writeln!(regions, "  {name}: {{ weight: 1, nodes: {{ {name}-1: \"{address}\" }} }}");
    }
    let Window { units, window, .. } = EXPORTS;
    format!(
        "\
region: {name}
node: {name}-1
listen: {{ http: \"{http}\", grpc: \"{grpc}\", admin: \"{admin}\", mesh: \"{mesh}\" }}
data: {data:?}
tls: {tls:?}
store: memory
memory: 16MiB
workers: 1
drain: 200ms
regions:
{regions}authority: {authority}-1
limits:
  - name: {budget}
    domain: {DOMAIN}
    when: {{ route: /api }}
    token_bucket: {{ rate: {BUDGET}/s, burst: {BUDGET} }}
  - name: {per_user}
    domain: {DOMAIN}
    by: [user]
    token_bucket: {{ rate: {USER_RATE}/s, burst: {USER_BURST} }}
  - name: {exports}
    domain: {DOMAIN}
    when: {{ route: /export }}
    fixed_window: {{ limit: {units}, window: {window} }}
  - name: {STREAMED}
    domain: {DOMAIN}
    when: {{ route: /stream }}
    unit: tokens
    token_bucket: {{ rate: {TOKENS}/s, burst: {TOKENS} }}
",
        authority = NAMES[AUTHORITY],
        budget = LIMITS[0],
        per_user = LIMITS[1],
        exports = LIMITS[2],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports_from(first: &[u16; REGIONS]) -> [Ports; REGIONS] {
        first.map(|first| Ports {
            http: loopback(first + 1),
            grpc: loopback(first + 2),
            admin: loopback(first + 3),
            mesh: loopback(first + 4),
        })
    }

    #[test]
    fn every_node_gets_the_same_limits_and_its_own_addresses() {
        let ports = ports_from(&[0, 10, 20]);
        let relay = |other: usize| loopback(1_000 + other as u16);
        let texts = [0, 1, 2].map(|place| config(place, &ports, Path::new("/tmp/a b"), relay));
        assert!(texts[1].contains("region: us\nnode: us-1\n"), "{}", texts[1]);
        assert!(texts[1].contains("  us: { weight: 1, nodes: { us-1: \"127.0.0.1:14\" } }"), "{}", texts[1]);
        assert!(
            texts[1].contains("  ap: { weight: 1, nodes: { ap-1: \"127.0.0.1:1002\" } }"),
            "{}",
            texts[1]
        );
        assert!(texts[1].contains("data: \"/tmp/a b/data/us-1\""), "{}", texts[1]);
        let limits = |text: &str| text.split("limits:").nth(1).map(str::to_owned);
        assert!(limits(&texts[0]).is_some_and(|limits| limits.contains("rate: 1000/s, burst: 1000")));
        assert_eq!(limits(&texts[0]), limits(&texts[2]));
    }

    #[test]
    fn the_configs_of_the_demo_are_valid() {
        let folder = tempfile::tempdir().expect("a folder");
        let ports = ports_from(&[1_000, 2_000, 3_000]);
        for (place, name) in NAMES.iter().enumerate() {
            let text = config(place, &ports, folder.path(), |other| loopback(4_000 + other as u16));
            let config = acequia_server::config::Config::parse("demo.yaml", &text);
            let config = config.unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!((config.region.as_str(), config.live.limits.len()), (*name, LIMITS.len() + 1));
        }
    }

    #[test]
    fn one_node_of_each_pair_dials() {
        for (one, other) in PAIRS {
            assert_ne!(dials(one, other), dials(other, one));
        }
        assert!(dials(2, 0) && dials(0, 1) && dials(2, 1));
    }

    #[test]
    fn a_taken_port_is_named_with_a_remedy() {
        // Takes ports near the end of the range that clients are given. Others may take these ports too, so
        // there are several tries.
        let taken = (0..20)
            .find_map(|_| {
                let listener = TcpListener::bind(loopback(0)).ok()?;
                let port = listener.local_addr().ok()?.port();
                (port <= BASE_PORT_MAX).then_some((listener, port))
            })
            .expect("a port");
        let error = ports(taken.1).expect_err("taken").to_string();
        assert!(error.contains(&format!("127.0.0.1:{}", taken.1)), "{error}");
        assert!(error.contains("HTTP of eu") && error.contains("--base-port"), "{error}");
    }
}
