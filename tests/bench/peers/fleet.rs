//! Servers of one kind that share a limit, and what they share it by.

use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use acequia_mesh::{
    Identity, certs,
    relay::{Cut, Link, Weather},
};
use acequia_tests::cluster::Background;
use tempfile::TempDir;

use crate::{
    link::TcpLink,
    process::{Cores, Error, Program, Server, free_port},
};

/// How long servers may take until they share a limit.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Cells that gubernator keeps. By default they are fewer than there are keys.
const CELLS: &str = "200000";

/// A kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// envoyproxy/ratelimit.
    Go,
    /// limitador that counts in a Redis.
    Limitador,
    /// limitador that counts in memory.
    LimitadorInMemory,
    /// gubernator, whose nodes pass a key's hits to its owner.
    Gubernator,
    /// gubernator, whose nodes answer from copies.
    GubernatorGlobal,
    /// Acequia in the place of envoyproxy/ratelimit: it counts in a Redis.
    Counting,
    /// Nodes of one region that lease from a Redis.
    Leasing,
    /// A region each.
    Regions,
    /// A node alone, by a config of its own.
    Alone,
    /// A node alone, by a config of envoyproxy/ratelimit.
    Imported,
}

/// Whether servers reach each other, or what they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wires {
    /// They do, with nothing between.
    Direct,
    /// They do, by links.
    Linked,
    /// They did, and then the links are cut.
    Cut,
}

/// Where the programs are, and where they run.
pub(crate) struct Setup {
    pub(crate) cores: Cores,
    pub(crate) acequia: PathBuf,
    pub(crate) go: Option<PathBuf>,
    pub(crate) limitador: Option<PathBuf>,
    pub(crate) gubernator: Option<PathBuf>,
    /// Links of the mesh run on it.
    pub(crate) links: Background,
}

/// Running servers; killed when dropped.
pub(crate) struct Fleet {
    pub(crate) servers: Vec<Server>,
    pub(crate) redis: Option<Server>,
    links: Vec<TcpLink>,
    mesh: Vec<Link>,
    _folder: TempDir,
}

/// What the programs of a fleet are told.
struct Plan<'a> {
    setup: &'a Setup,
    kind: Kind,
    folder: &'a Path,
    limit: u64,
    /// The Redis, or the link to it.
    redis: Option<SocketAddr>,
    /// The addresses of gRPC and of HTTP of each server.
    ports: Vec<[SocketAddr; 2]>,
    /// The port at which nodes of gubernator hear of each other.
    gossip: u16,
    wires: Wires,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Go => "envoyproxy/ratelimit, Redis",
            Self::Limitador => "limitador, Redis",
            Self::LimitadorInMemory => "limitador, in memory",
            Self::Gubernator => "gubernator",
            Self::GubernatorGlobal => "gubernator, GLOBAL",
            Self::Counting => "Acequia, Redis counts",
            Self::Leasing => "Acequia, leases from Redis",
            Self::Regions => "Acequia, regions",
            Self::Alone => "Acequia, in memory",
            Self::Imported => "Acequia, in memory, imported",
        }
    }

    pub(crate) fn is_acequia(self) -> bool {
        matches!(self, Self::Counting | Self::Leasing | Self::Regions | Self::Alone | Self::Imported)
    }

    pub(crate) fn is_gubernator(self) -> bool {
        matches!(self, Self::Gubernator | Self::GubernatorGlobal)
    }

    fn has_redis(self) -> bool {
        matches!(self, Self::Go | Self::Limitador | Self::Counting | Self::Leasing)
    }
}

impl Setup {
    /// The program of a kind; `None` if nobody said where it is.
    pub(crate) fn program(&self, kind: Kind) -> Option<&Path> {
        match kind {
            Kind::Go => self.go.as_deref(),
            Kind::Limitador | Kind::LimitadorInMemory => self.limitador.as_deref(),
            Kind::Gubernator | Kind::GubernatorGlobal => self.gubernator.as_deref(),
            _ => Some(&self.acequia),
        }
    }

    /// Starts servers of a kind with one limit a key and year, and what they need.
    pub(crate) fn start(&self, kind: Kind, count: usize, limit: u64, wires: Wires) -> Result<Fleet, Error> {
        let folder = tempfile::tempdir()?;
        let redis = if kind.has_redis() { Some(self.start_redis()?) } else { None };
        let mut links = Vec::new();
        let mut redis_at = redis.as_ref().map(|redis| redis.address);
        if let (Some(at), true) = (redis_at, wires != Wires::Direct) {
            let link = TcpLink::start(at)?;
            redis_at = Some(link.address);
            links.push(link);
        }
        // Nodes of gubernator are told apart by their hosts, whatever their ports.
        let host = |number: usize| if kind.is_gubernator() { number as u8 + 1 } else { 1 };
        let ports = (0..count)
            .map(|number| {
                let at = |port| SocketAddr::from(([127, 0, 0, host(number)], port));
                Ok([at(free_port()?), at(free_port()?)])
            })
            .collect::<Result<_, Error>>()?;
        let (folder_path, gossip) = (folder.path(), free_port()?);
        let plan =
            Plan { setup: self, kind, folder: folder_path, limit, redis: redis_at, ports, gossip, wires };
        let (programs, mesh) = plan.programs(count)?;
        // Nodes of a region listen only when all of them have started.
        let starts = thread::scope(|scope| {
            let starts: Vec<_> =
                programs.iter().map(|program| scope.spawn(|| self.cores.start(program))).collect();
            starts.into_iter().map(|start| start.join().expect("no panic")).collect::<Vec<_>>()
        });
        let servers = starts.into_iter().collect::<Result<_, _>>()?;
        let http: Vec<SocketAddr> = plan.ports.iter().map(|[_, http]| *http).collect();
        until_shared(kind, wires, &http)?;
        Ok(Fleet { servers, redis, links, mesh, _folder: folder })
    }

    fn start_redis(&self) -> Result<Server, Error> {
        let port = free_port()?;
        let arguments =
            ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let program = Program::new("redis-server", arguments).at(SocketAddr::from(([127, 0, 0, 1], port)));
        self.cores.start(&program)
    }
}

impl Fleet {
    /// Cuts the servers off from each other, or from what they share.
    pub(crate) fn cut(&self) {
        self.links.iter().for_each(TcpLink::cut);
        self.mesh.iter().for_each(|link| link.set(Weather { cut: Cut::BOTH, ..Weather::default() }));
    }
}

/// Waits until servers know each other, and have their shares.
fn until_shared(kind: Kind, wires: Wires, http: &[SocketAddr]) -> Result<(), Error> {
    let members = if wires == Wires::Cut { 1 } else { http.len() };
    let is_shared = |http: &SocketAddr| match kind {
        Kind::Gubernator | Kind::GubernatorGlobal => {
            let health: String = acequia_tests::get(*http, "/v1/HealthCheck").split_whitespace().collect();
            health.contains(&format!("\"peer_count\":{members},"))
        }
        Kind::Leasing => {
            acequia_tests::get(*http, "/metrics").contains("acequia_pool_groups{which=\"granting\"} 1024")
        }
        Kind::Regions => acequia_tests::get(*http, "/readyz").starts_with("HTTP/1.1 200"),
        _ => true,
    };
    let begun = Instant::now();
    while !http.iter().all(is_shared) {
        if begun.elapsed() > PATIENCE {
            return Err(format!("{} do not share a limit within {PATIENCE:?}", kind.name()).into());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

impl Plan<'_> {
    /// A program for each server, and the links of a mesh between them.
    fn programs(&self, count: usize) -> Result<(Vec<Program>, Vec<Link>), Error> {
        if self.kind == Kind::Regions {
            return self.regions(count);
        }
        let programs = (0..count).map(|number| match self.kind {
            Kind::Go | Kind::Counting => self.in_place(number),
            Kind::Limitador | Kind::LimitadorInMemory => self.limitador(number),
            Kind::Gubernator | Kind::GubernatorGlobal => self.gubernator(number),
            _ => self.acequia(number, &self.text(number)),
        });
        Ok((programs.collect::<Result<_, _>>()?, Vec::new()))
    }

    fn path(&self) -> Result<&Path, Error> {
        Ok(self.setup.program(self.kind).ok_or("no such program")?)
    }

    fn redis_url(&self) -> String {
        self.redis.map_or_else(String::new, |redis| redis.to_string())
    }

    /// The limit as envoyproxy/ratelimit reads it, in a folder.
    fn ratelimit_folder(&self) -> Result<PathBuf, Error> {
        let folder = self.folder.join("bench/config");
        fs::create_dir_all(&folder)?;
        let limit = self.limit;
        let text = format!(
            "domain: bench\ndescriptors:\n- {{ key: api_key, rate_limit: {{ unit: year, requests_per_unit: {limit} }} }}\n"
        );
        fs::write(folder.join("bench.yaml"), text)?;
        Ok(folder)
    }

    /// envoyproxy/ratelimit, or Acequia in its place: both read these variables.
    fn in_place(&self, number: usize) -> Result<Program, Error> {
        self.ratelimit_folder()?;
        let [grpc, http] = self.ports[number];
        let arguments: &[&str] =
            if self.kind == Kind::Counting { &["serve", "--as", "ratelimit"] } else { &[] };
        let mut program = Program::new(self.path()?, arguments)
            .with("RUNTIME_ROOT", self.folder)
            .with("RUNTIME_SUBDIRECTORY", "bench")
            .with("REDIS_SOCKET_TYPE", "tcp")
            .with("REDIS_URL", self.redis_url())
            .with("USE_STATSD", "false")
            .with("LOG_LEVEL", "error");
        let debug = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        for (name, address) in [("GRPC_", grpc), ("", http), ("DEBUG_", debug)] {
            program = program.with(&format!("{name}HOST"), "127.0.0.1");
            program = program.with(&format!("{name}PORT"), address.port().to_string());
        }
        Ok(program.at(grpc))
    }

    fn limitador(&self, number: usize) -> Result<Program, Error> {
        let limits = self.folder.join("limits.yaml");
        let limit = self.limit;
        fs::write(
            &limits,
            format!(
                "- namespace: bench\n  max_value: {limit}\n  seconds: 31536000\n  conditions: []\n  variables: [\"descriptors[0]['api_key']\"]\n"
            ),
        )?;
        let [grpc, http] = self.ports[number];
        let no_arguments: [&str; 0] = [];
        let mut program = Program::new(self.path()?, no_arguments)
            .with("LIMITS_FILE", &limits)
            .with("ENVOY_RLS_HOST", "127.0.0.1")
            .with("ENVOY_RLS_PORT", grpc.port().to_string())
            .with("HTTP_API_HOST", "127.0.0.1")
            .with("HTTP_API_PORT", http.port().to_string());
        if self.kind == Kind::Limitador {
            program = program.with("REDIS_URL", format!("redis://{}", self.redis_url()));
        }
        Ok(program.at(grpc))
    }

    /// gubernator. After a cut, each node ends up with itself alone in its list of members; it starts so here.
    fn gubernator(&self, number: usize) -> Result<Program, Error> {
        let [grpc, http] = self.ports[number];
        let member = |number: usize| SocketAddr::new(self.ports[number][0].ip(), self.gossip).to_string();
        let known = if self.wires == Wires::Cut { number } else { 0 };
        // Members are told apart by the names of their machines, so each has one.
        let script = "hostname \"$0\" && exec \"$1\"";
        let mut arguments = ["--map-root-user", "--uts", "sh", "-c", script].map(OsString::from).to_vec();
        arguments.extend([format!("gubernator-{number}").into(), self.path()?.into()]);
        Ok(Program::new("unshare", arguments)
            .with("GUBER_GRPC_ADDRESS", grpc.to_string())
            .with("GUBER_HTTP_ADDRESS", http.to_string())
            .with("GUBER_ADVERTISE_ADDRESS", grpc.to_string())
            .with("GUBER_CACHE_SIZE", CELLS)
            .with("GUBER_LOG_LEVEL", "error")
            .with("GUBER_PEER_DISCOVERY_TYPE", "member-list")
            .with("GUBER_MEMBERLIST_ADDRESS", member(number))
            .with("GUBER_MEMBERLIST_BIND_ADDRESS", member(number))
            .with("GUBER_MEMBERLIST_KNOWN_NODES", member(known))
            .at(grpc))
    }

    /// The end of a config of Acequia.
    fn limits(&self) -> String {
        let limit = self.limit;
        format!(
            "limits:\n- {{ name: per-key, domain: bench, by: [api_key], fixed_window: {{ limit: {limit}, window: 365d }} }}\n"
        )
    }

    fn listen(&self, number: usize) -> String {
        let [grpc, http] = self.ports[number];
        format!("grpc: \"{grpc}\", http: \"{http}\"")
    }

    /// A node's config.
    fn text(&self, number: usize) -> String {
        let (listen, limits) = (self.listen(number), self.limits());
        match self.kind {
            Kind::Leasing => {
                let names: Vec<String> = (0..self.ports.len()).map(|number| format!("eu-{number}")).collect();
                let data = self.folder.join(format!("data-{number}"));
                format!(
                    "region: eu\nnode: eu-{number}\nlisten: {{ {listen} }}\ndata: {}\nstore:\n  redis: {{ shards: [\"{}\"] }}\n  nodes: [{}]\n{limits}",
                    data.display(),
                    self.redis_url(),
                    names.join(", ")
                )
            }
            Kind::Imported => {
                format!("region: local\nnode: local-1\nlisten: {{ {listen} }}\nlimits: []\n")
            }
            _ => format!("region: local\nnode: local-1\nlisten: {{ {listen} }}\n{limits}"),
        }
    }

    /// A node of Acequia by this config.
    fn acequia(&self, number: usize, text: &str) -> Result<Program, Error> {
        let config = self.folder.join(format!("acequia-{number}.yaml"));
        fs::write(&config, text)?;
        let mut arguments = vec!["serve".into(), "--config".into(), config.into_os_string()];
        if self.kind == Kind::Imported {
            arguments.extend(["--ratelimit-config".into(), self.ratelimit_folder()?.into_os_string()]);
        }
        Ok(Program::new(self.path()?, arguments))
    }

    /// Regions of one node each, with a link between every two of them.
    fn regions(&self, count: usize) -> Result<(Vec<Program>, Vec<Link>), Error> {
        let node = |number: usize| format!("r{number}-1");
        let identities: Vec<Identity> =
            (0..count).map(|number| Identity::new(format!("r{number}"), node(number))).collect();
        let certs = self.folder.join("certs");
        certs::create(&certs, &identities, &["r0-1"])?;
        let mesh = (0..count)
            .map(|_| Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?))))
            .collect::<Result<Vec<_>, Error>>()?;
        let runtime = self.setup.links.runtime();
        let _entered = runtime.enter();
        let (mut programs, mut links) = (Vec::new(), Vec::new());
        for number in 0..count {
            let data = self.folder.join(format!("data-{number}"));
            let mut text = format!(
                "region: r{number}\nnode: {}\nlisten: {{ {}, mesh: \"{}\" }}\ndata: {}\ntls: {}\nauthority: r0-1\nregions:\n",
                node(number),
                self.listen(number),
                mesh[number],
                data.display(),
                certs.display()
            );
            for (other, address) in mesh.iter().enumerate() {
                // The node with the smaller name dials, through the link.
                let mut address = *address;
                if number < other {
                    let link = Link::start(address, Weather::default(), links.len() as u64)?;
                    address = link.address();
                    links.push(link);
                }
                text.push_str(&format!(
                    "  r{other}: {{ weight: 1, nodes: {{ {}: \"{address}\" }} }}\n",
                    node(other)
                ));
            }
            programs.push(self.acequia(number, &(text + &self.limits()))?);
        }
        Ok((programs, links))
    }
}
