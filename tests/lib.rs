//! Runs the real `acequia` binary as a process, for tests that see it only from outside.
//!
//! A [`Node`] has its own folder for config and journal, takes free ports, and is killed when dropped. If the
//! test fails, its standard error is printed.

pub mod cluster;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// The longest time for anything that happens by itself: a start, a reload, an exit. This is generous for
/// busy machines; only a failing test waits so long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// In a config, `data: DATA` stands for the node's own journal folder.
const DATA: &str = "DATA";
/// The head of every config.
const HEAD: &str = "\
region: eu
node: eu-1
listen: { grpc: \"127.0.0.1:0\", http: \"127.0.0.1:0\" }
";

/// A node in its own process.
#[derive(Debug)]
pub struct Node {
    folder: TempDir,
    environment: Vec<(&'static str, &'static str)>,
    process: Option<Process>,
    stderr: Arc<Mutex<String>>,
    grpc_now: cluster::Address,
}

#[derive(Debug)]
struct Process {
    child: Child,
    listening: Listening,
    /// Reads standard error until the process has closed it.
    reader: JoinHandle<()>,
}

impl Node {
    /// Starts a node, and waits until it listens. The config needs no region, node and listen. With `data:
    /// DATA` the journal lasts as long as this value.
    pub fn start(yaml: &str) -> Self {
        Self::start_with(yaml, &[])
    }

    /// Starts a node with environment variables. `DESCRIPTORS` sets the limit of open files.
    pub fn start_with(yaml: &str, environment: &[(&'static str, &'static str)]) -> Self {
        let mut node = Self::new(environment);
        node.write_config(yaml);
        node.start_again();
        node
    }

    /// Starts a node with a complete config, which includes region, node and listen.
    pub fn start_whole(yaml: &str) -> Self {
        Self::start_whole_with(yaml, &[])
    }

    /// Starts a node with a complete config and environment variables.
    pub fn start_whole_with(yaml: &str, environment: &[(&'static str, &'static str)]) -> Self {
        let mut node = Self::new(environment);
        node.write_whole_config(yaml);
        node.start_again();
        node
    }

    /// Starts a node that reads this config, and a folder of these files of envoyproxy/ratelimit's config.
    pub fn start_with_ratelimit(yaml: &str, files: &[(&str, &str)]) -> Self {
        let mut node = Self::new(&[]);
        node.write_config(yaml);
        std::fs::create_dir(node.ratelimit()).expect("a folder");
        for (name, text) in files {
            std::fs::write(node.ratelimit().join(name), text).expect("written");
        }
        node.start_again();
        node
    }

    fn new(environment: &[(&'static str, &'static str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let environment = environment.to_vec();
        let (process, stderr, grpc_now) = (None, Arc::default(), Arc::default());
        Self { folder, environment, process, stderr, grpc_now }
    }

    /// Restarts the node with an empty disk and these environment variables.
    pub fn begin_anew(&mut self, environment: &[(&'static str, &'static str)]) {
        self.kill();
        std::fs::remove_dir_all(self.data()).expect("its disk is gone");
        self.environment = environment.to_vec();
        self.start_again();
    }

    /// Starts the node again after it was stopped or killed. Its ports may change.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "the node runs already");
        // With XFSZ ignored, a write beyond the file size limit fails as on a full disk: see `fill_disk`.
        let script = r#"trap "" XFSZ; [ -z "$DESCRIPTORS" ] || ulimit -n "$DESCRIPTORS"; exec "$0" "$@""#;
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(binary())
            .args(["serve", "--config"])
            .arg(self.config())
            .args(self.ratelimit().exists().then_some("--ratelimit-config"))
            .args(self.ratelimit().exists().then(|| self.ratelimit()))
            .envs(self.environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        let written = Arc::clone(&self.stderr);
        let reader = thread::spawn(move || collect(stderr, &written));
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Only the first line is received.
                let _ = send.send(line);
            }
        });
        let listening = lines.recv_timeout(PATIENCE).ok().and_then(|line| Listening::read(&line));
        let Some(listening) = listening else {
            let _ = child.kill();
            let status = child.wait();
            let _ = reader.join();
            panic!("the node does not listen ({status:?}):\n{}", self.stderr());
        };
        *self.grpc_now.lock().unwrap_or_else(PoisonError::into_inner) = listening.grpc;
        self.process = Some(Process { child, listening, reader });
    }

    /// The gRPC address.
    pub fn grpc(&self) -> SocketAddr {
        self.listening().grpc.expect("gRPC is not on a socket in the file system")
    }

    /// The gRPC address for callers that continue while the node restarts.
    pub fn grpc_now(&self) -> cluster::Address {
        Arc::clone(&self.grpc_now)
    }

    /// The HTTP address.
    pub fn http(&self) -> SocketAddr {
        self.listening().http.expect("HTTP is not on a socket in the file system")
    }

    /// The operators' address.
    pub fn admin(&self) -> SocketAddr {
        self.listening().admin.expect("the config has listen.admin")
    }

    /// CPU time of the process so far, in seconds, from /proc.
    pub fn cpu_s(&self) -> f64 {
        /// USER_HZ, the unit of the times in /proc: 100 on every common Linux.
        const TICKS_PER_S: f64 = 100.0;
        let process = self.process.as_ref().expect("the node runs");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap_or_default();
        // The name may contain anything. User and system time are the 12th and 13th words after the name.
        let words: Vec<&str> =
            stat.rsplit_once(')').map_or_else(Vec::new, |(_, rest)| rest.split_whitespace().collect());
        let ticks = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / TICKS_PER_S
    }

    /// Resident memory of the process, in bytes, from /proc.
    pub fn resident(&self) -> usize {
        let process = self.process.as_ref().expect("the node runs");
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
        let kib: usize = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
        kib << 10
    }

    fn listening(&self) -> Listening {
        self.process.as_ref().expect("the node runs").listening
    }

    /// The config file.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("acequia.yaml")
    }

    /// The folder of envoyproxy/ratelimit's config, if the node has one.
    pub fn ratelimit(&self) -> PathBuf {
        self.folder.path().join("ratelimit")
    }

    /// The folder of the journal.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Replaces the config in one step, as editors do. A running node sees the change within a second.
    pub fn write_config(&self, yaml: &str) {
        self.replace_config(&whole_config(yaml, &self.data()));
    }

    /// Like `write_config`, with a complete config, which includes region, node and listen.
    pub fn write_whole_config(&self, yaml: &str) {
        self.replace_config(&yaml.replace(DATA, &self.data().display().to_string()));
    }

    fn replace_config(&self, yaml: &str) {
        let new = self.folder.path().join("new.yaml");
        std::fs::write(&new, yaml).expect("a config is written");
        std::fs::rename(new, self.config()).expect("a config is replaced");
    }

    /// SIGHUP: read the config again now.
    pub fn hup(&self) {
        self.signal("HUP");
    }

    /// SIGTERM, without waiting for the effect.
    pub fn ask_to_stop(&self) {
        self.signal("TERM");
    }

    /// SIGSTOP or SIGCONT: the process stops or continues.
    pub fn hold(&self, is_held: bool) {
        self.signal(if is_held { "STOP" } else { "CONT" });
    }

    /// SIGKILL: the process has ended when this returns, without any cleanup.
    pub fn kill(&mut self) {
        *self.grpc_now.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(mut process) = self.process.take() {
            process.child.kill().expect("a running process can be killed");
            process.child.wait().expect("a killed process ends");
            let _ = process.reader.join();
        }
    }

    /// SIGTERM; returns the exit status.
    pub fn terminate(&mut self) -> ExitStatus {
        self.ask_to_stop();
        self.wait(PATIENCE).unwrap_or_else(|| panic!("the node does not stop:\n{}", self.stderr()))
    }

    /// Waits for the process to end by itself. `None` if it still runs after `patience`.
    pub fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            let child = &mut self.process.as_mut().expect("the node runs").child;
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                let _ = self.process.take().map(|process| process.reader.join());
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(POLL);
        }
    }

    /// A clean stop, and a start.
    pub fn restart(&mut self) {
        let status = self.terminate();
        assert!(status.success(), "the node stopped with {status}:\n{}", self.stderr());
        self.start_again();
    }

    /// SIGKILL, and a start.
    pub fn crash(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Everything that all processes of the node have written to standard error.
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the node has written `words` to standard error.
    #[track_caller]
    pub fn until_it_says(&self, words: &str) {
        eventually(words, || self.stderr().contains(words));
    }

    /// Makes the disk full for this process, or writable again.
    pub fn fill_disk(&self, is_full: bool) {
        let process = self.process.as_ref().expect("the node runs");
        let bytes_max = if is_full { "0" } else { "unlimited" };
        let set = Command::new("prlimit")
            .args(["--pid", &process.child.id().to_string(), &format!("--fsize={bytes_max}:")])
            .status();
        assert!(set.expect("`prlimit` runs").success(), "no limit was set");
    }

    fn signal(&self, name: &str) {
        let process = self.process.as_ref().expect("the node runs");
        let sent = Command::new("kill").args(["-s", name, &process.child.id().to_string()]).status();
        assert!(sent.expect("`kill` runs").success(), "SIG{name} was not sent");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("--- standard error of the node:\n{}---", self.stderr());
        }
    }
}

/// A config as a node reads it, with a head and with `DATA` replaced.
pub fn whole_config(yaml: &str, data: &Path) -> String {
    format!("{HEAD}{}", yaml.replace(DATA, &data.display().to_string()))
}

/// Lines of the head, to be added to a fault's line number in the test's text.
pub fn head_lines() -> usize {
    HEAD.lines().count()
}

/// Runs the binary until it ends.
pub fn acequia(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).stdin(Stdio::null()).output().expect("the binary starts")
}

/// Runs the binary until it ends. Returns its exit code, and what it wrote.
pub fn exit_and_text(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = acequia(arguments);
    let text = [stdout, stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    (status.code(), text.concat())
}

/// A node's whole answer to a GET, with its head. Empty if the node does not answer.
pub fn get(http: SocketAddr, path: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = std::net::TcpStream::connect(http) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n");
        // A node that is shutting down may not answer.
        let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
    }
    answer
}

/// Waits until a condition is true.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "still not so after {PATIENCE:?}: {what}");
        thread::sleep(POLL);
    }
}

/// Pause between two polls of a condition.
const POLL: Duration = Duration::from_millis(5);

/// The binary that `ACEQUIA_BINARY` names, for example an installed one. By default the workspace's binary,
/// built with the test's own profile in its target folder.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(named) = std::env::var_os("ACEQUIA_BINARY") {
            return named.into();
        }
        let test = std::env::current_exe().expect("a test is a file");
        let folder = test.ancestors().skip(1).find(|folder| !folder.ends_with("deps")).expect("a folder");
        let target = folder.parent().expect("a target folder");
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(profile) => profile,
        };
        let mut cargo = Command::new(env!("CARGO"));
        // Cargo's variables about this package do not apply to the binary. Build scripts that read these
        // variables would run again each time, and their dependents would be compiled again.
        let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        for (name, _) in std::env::vars().filter(|(name, _)| of_package(name)) {
            cargo.env_remove(name);
        }
        let built = cargo
            // Build the whole workspace, because features are chosen for all of it. Otherwise cargo compiles
            // the server again with other features.
            .args(["build", "--workspace", "--bin", "acequia", "--profile", profile])
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        assert!(built.status.success(), "no binary:\n{}", String::from_utf8_lossy(&built.stderr));
        folder.join("acequia")
    })
}

/// The addresses on which a node reports that it listens, without sockets in the file system.
#[derive(Clone, Copy, Debug)]
struct Listening {
    grpc: Option<SocketAddr>,
    http: Option<SocketAddr>,
    admin: Option<SocketAddr>,
}

impl Listening {
    /// Reads `listening grpc=ADDR http=ADDR admin=ADDR mesh=ADDR`. The last two are optional.
    fn read(line: &str) -> Option<Self> {
        let words = line.strip_prefix("listening ")?.split(' ');
        let named = |name: &str| {
            let mut found = words.clone().filter_map(|word| word.split_once('='));
            found.find(|(word, _)| *word == name).and_then(|(_, address)| address.parse().ok())
        };
        Some(Self { grpc: named("grpc"), http: named("http"), admin: named("admin") })
    }
}

fn collect(mut stderr: impl Read, written: &Mutex<String>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stderr.read(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..count]);
        written.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
    }
}
