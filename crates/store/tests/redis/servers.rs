//! Real Redis servers on loopback ports, each in a folder of its own. They end with the test.
//!
//! Everything here blocks its thread, and waits until what it starts answers.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU16, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// How long anything here may take before the test fails. On an idle machine it takes a hundredth of this.
const PATIENCE: Duration = Duration::from_secs(60);

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    folder: TempDir,
    port: u16,
    options: Vec<String>,
    is_sentinel: bool,
    /// The library that gives the server a wall clock of its own, if it has one.
    wall: Option<PathBuf>,
    /// Whether the server was started again: while it loads, its priority is lower, as if it had a machine of
    /// its own.
    gives_way: bool,
    /// The options of `redis-cli` besides the port.
    pub(crate) cli_options: Vec<String>,
    child: Option<Child>,
}

impl Server {
    /// Starts a server without persistence. Options are as on the command line: `["--maxmemory", "10mb"]`. An
    /// option may contain `{folder}` and `{port}`. Options with `--port 0` must say where the server listens.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_as(options, false, None)
    }

    fn start_as(options: &[&str], is_sentinel: bool, wall: Option<PathBuf>) -> Self {
        let version = Command::new("redis-server").arg("--version").output();
        assert!(
            version.is_ok(),
            "these tests need redis-server and redis-cli: `apt-get install redis-server`, or run tests/run, which does so"
        );
        let mut server = Self {
            folder: tempfile::tempdir().expect("a folder"),
            port: 0,
            options: options.iter().map(ToString::to_string).collect(),
            is_sentinel,
            wall,
            gives_way: false,
            cli_options: Vec::new(),
            child: None,
        };
        if server.wall.is_some() {
            server.set_wall(0);
        }
        // Another process may be quicker at a free port.
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            server.port = free_port();
            server.spawn();
            if server.answers() {
                return server;
            }
        }
        panic!("redis-server {options:?} did not start:\n{}", server.log());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:<port>`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The output of a command.
    pub(crate) fn cli(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let out = Command::new("redis-cli").args(["-p", &port]).args(&self.cli_options).args(words).output();
        let out = out.expect("redis-cli");
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    /// A field of `INFO`.
    pub(crate) fn info(&self, field: &str) -> String {
        let info = self.cli(&["INFO"]);
        let mut lines = info.lines();
        let found = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn run_id(&self) -> String {
        self.info("run_id")
    }

    /// Ends the server at once, like a crash.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the server, with its connections open. A signal takes effect a moment after it is sent.
    pub(crate) fn hang(&self) {
        self.signal("STOP");
        wait_for("a process that stands still", || self.stands_still());
    }

    /// Sets the server's own wall clock, if it has one, to so many seconds ahead of the machine's.
    pub(crate) fn set_wall(&self, ahead: i64) {
        // The file must never get shorter, since the server has it in its memory.
        let path = self.folder.path().join("wall");
        let mut file =
            fs::File::options().write(true).create(true).truncate(false).open(path).expect("a file");
        file.write_all(&(ahead * 1_000_000_000).to_ne_bytes()).expect("its wall");
    }

    /// Whether all threads of the server are stopped: `T` in proc_pid_stat(5).
    fn stands_still(&self) -> bool {
        let pid = self.child.as_ref().expect("a process").id();
        let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
        let mut states = threads.map(|thread| {
            let stat = fs::read_to_string(thread.expect("a thread").path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        });
        states.all(|is_stopped| is_stopped)
    }

    /// Continues the server after [`Self::hang`].
    pub(crate) fn go_on(&self) {
        self.signal("CONT");
    }

    /// Starts the server again on its port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.gives_way = true;
        let begun = Instant::now();
        loop {
            self.spawn();
            if self.answers() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "it did not start again:\n{}", self.log());
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("a process").id();
        let done = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().expect("sh");
        assert!(done.success(), "no signal for {pid}");
    }

    fn spawn(&mut self) {
        let (folder, port) = (self.folder.path().display().to_string(), self.port.to_string());
        let log = fs::File::create(self.folder.path().join("log")).expect("a log");
        let mut command = Command::new("nice");
        command.args(["-n", if self.gives_way { "10" } else { "0" }, "redis-server"]);
        if self.is_sentinel {
            let config = self.options.join("\n").replace("{port}", &port).replace("{folder}", &folder);
            let file = self.folder.path().join("sentinel.conf");
            fs::write(&file, config).expect("a file");
            command.arg(file).arg("--sentinel");
        } else {
            command.args(["--port", &port, "--bind", "127.0.0.1", "--dir", &folder]);
            // A full copy for a replica begins at once, not after the usual five seconds.
            command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
            command.args(
                self.options
                    .iter()
                    .map(|option| option.replace("{port}", &port).replace("{folder}", &folder)),
            );
        }
        if let Some(library) = &self.wall {
            command.env("LD_PRELOAD", library).env("SERVER_WALL", self.folder.path().join("wall"));
        }
        let log_too = log.try_clone().expect("a log");
        let child = command.stdin(Stdio::null()).stdout(log).stderr(log_too).spawn();
        self.child = Some(child.expect("redis-server"));
    }

    /// Whether the server answers in the end. A server that has ended does not.
    fn answers(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None))) {
                return false;
            }
            if self.pongs() {
                return true;
            }
            sleep(Duration::from_millis(5));
        }
        false
    }

    fn pongs(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) else {
            return false;
        };
        if self.options.iter().any(|option| option.starts_with("--tls-port")) {
            return true;
        }
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let mut answer = [0; 7];
        // The server may ask for a password, which is an answer, too.
        stream.write_all(b"PING\r\n").is_ok()
            && stream.read_exact(&mut answer).is_ok()
            && (&answer == b"+PONG\r\n" || &answer == b"-NOAUTH")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Three primaries with a replica each.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_as(None)
    }

    /// A cluster in which the servers' walls can be set.
    pub(crate) fn with_walls() -> Self {
        Self::start_as(Some(wall_library()))
    }

    fn start_as(wall: Option<&Path>) -> Self {
        let options = [
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
            "--cluster-node-timeout",
            "1000",
            "--cluster-require-full-coverage",
            "no",
        ];
        let nodes: Vec<Server> =
            (0..6).map(|_| Server::start_as(&options, false, wall.map(Path::to_owned))).collect();
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(nodes.iter().map(Server::address))
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .expect("redis-cli");
        assert!(made.status.success(), "no cluster: {}", String::from_utf8_lossy(&made.stdout));
        let cluster = Self { nodes };
        wait_for("a cluster in which all know all", || {
            cluster.nodes.iter().all(|node| {
                let state = node.cli(&["CLUSTER", "INFO"]);
                let is_replica = node.info("role") == "slave";
                state.contains("cluster_state:ok")
                    && state.contains("cluster_size:3")
                    && (!is_replica || node.info("master_link_status") == "up")
            }) && cluster.primaries().len() == 3
        });
        cluster
    }

    /// The nodes that are primaries now, among those that answer.
    pub(crate) fn primaries(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].info("role") == "master").collect()
    }

    /// The node at an address.
    pub(crate) fn node(&mut self, address: &str) -> &mut Server {
        self.nodes.iter_mut().find(|node| node.address() == address).expect("a node of this cluster")
    }
}

/// A primary and a replica under a sentinel that decides alone.
#[derive(Debug)]
pub(crate) struct Sentinel {
    pub(crate) primary: Server,
    pub(crate) replica: Server,
    pub(crate) sentinel: Server,
}

impl Sentinel {
    /// The sentinel's name for them.
    pub(crate) const NAME: &str = "mine";

    pub(crate) fn start() -> Self {
        let primary = Server::start(&[]);
        let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
        wait_for("a replica", || replica.info("master_link_status") == "up");
        let (name, at) = (Self::NAME, primary.port());
        let sentinel = Server::start_as(
            &[
                "port {port}",
                "dir {folder}",
                &format!("sentinel monitor {name} 127.0.0.1 {at} 1"),
                &format!("sentinel down-after-milliseconds {name} 1000"),
                &format!("sentinel failover-timeout {name} 3000"),
            ],
            true,
            None,
        );
        wait_for("a sentinel that knows the replica", || {
            sentinel.cli(&["SENTINEL", "REPLICAS", name]).contains(&replica.port().to_string())
        });
        Self { primary, replica, sentinel }
    }
}

/// The library that gives a process clocks of its own, built once.
pub(crate) fn wall_library() -> &'static Path {
    static MADE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, library) = MADE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let (source, library) = (folder.path().join("wall.c"), folder.path().join("wall.so"));
        fs::write(&source, include_str!("wall.c")).expect("a file");
        let made =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]).status();
        assert!(made.expect("a C compiler").success(), "wall.c is not compiled");
        (folder, library)
    });
    library
}

/// Asks again and again, until the test's patience ends.
pub(crate) fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Whether a port is free, together with the port at which a cluster's node talks to others.
pub(crate) fn is_free(port: u16) -> bool {
    [port, port + 10_000].into_iter().all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
}

/// A free port below those that the system gives to outgoing connections. The port 10 000 above is free, too:
/// there a cluster's nodes talk to each other.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 11_000;
    const COUNT: u16 = 10_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes begin at different places.
    let begin = std::process::id().wrapping_mul(97) % u32::from(COUNT);
    for _ in 0..COUNT {
        let number = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + ((begin + number) % u32::from(COUNT)) as u16;
        if is_free(port) {
            return port;
        }
    }
    panic!("no port is free");
}
