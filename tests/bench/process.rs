//! Server processes: started on a core, asked for their address, measured and stopped.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long a server may take to listen, under valgrind too.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to end after SIGTERM, under valgrind too.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// USER_HZ, the unit of the times in /proc: 100 on every common Linux.
const TICKS_PER_S: f64 = 100.0;

/// Which core the servers run on, and which core this process runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores {
    pinned: bool,
}

impl Cores {
    /// Servers run on core 0 and this process on core 1, if the machine has both and `taskset`.
    pub(crate) fn split() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let itself = std::process::id().to_string();
        let pinned = cores > 1
            && Command::new("taskset")
                .args(["-apc", "1", &itself])
                .stdout(Stdio::null())
                .status()
                .is_ok_and(|status| status.success());
        if !pinned {
            println!("NOT PINNED: no second core or no taskset. Server and client share what there is.");
        }
        Self { pinned }
    }

    /// Starts a server on the servers' core and waits until it is ready.
    pub(crate) fn start(self, program: &Program) -> Result<Server, Error> {
        let mut command = if self.pinned {
            let mut command = Command::new("taskset");
            command.args(["-c", "0"]).arg(&program.path);
            command
        } else {
            Command::new(&program.path)
        };
        // Log lines at start and stop would break up the tables.
        command.args(&program.arguments).env("RUST_LOG", "error").envs(program.environment.iter().cloned());
        match program.ready {
            Ready::Says => Server::start(&mut command),
            Ready::Accepts(address) => Server::start_at(&mut command, address),
        }
    }
}

/// A server that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    ready: Ready,
}

/// How a server shows that it is ready.
#[derive(Clone, Copy, Debug)]
enum Ready {
    /// By its line `listening grpc=ADDRESS:PORT …` on standard output.
    Says,
    /// It accepts connections at its gRPC address.
    Accepts(SocketAddr),
}

impl Program {
    pub(crate) fn new<A: Into<OsString>>(
        path: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let arguments = arguments.into_iter().map(A::into).collect();
        Self { path: path.into(), arguments, environment: Vec::new(), ready: Ready::Says }
    }

    /// The program with an environment variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// A program that says nothing, and is ready when it accepts connections at this address.
    pub(crate) fn at(self, address: SocketAddr) -> Self {
        Self { ready: Ready::Accepts(address), ..self }
    }

    /// Runs the program under callgrind, which writes its profile to `output` when the server ends.
    pub(crate) fn under_callgrind(&self, output: &Path) -> Self {
        let mut out_file = OsString::from("--callgrind-out-file=");
        out_file.push(output);
        let own = ["-q".into(), "--tool=callgrind".into(), out_file, self.path.clone().into_os_string()];
        Self::new("valgrind", own.into_iter().chain(self.arguments.iter().cloned()))
    }
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// The address of the gRPC port.
    pub(crate) address: SocketAddr,
}

impl Server {
    fn start(command: &mut Command) -> Result<Self, Error> {
        let shown = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{shown}: {error}"))?;
        let output = child.stdout.take().ok_or("no standard output")?;
        let (sender, receiver) = mpsc::channel();
        // Read to the end, so that a server that prints more lines is never blocked.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(address) = grpc_address(&line) {
                    // After the timeout nobody receives the address.
                    let _ = sender.send(address);
                }
            }
        });
        let unknown = ([0, 0, 0, 0], 0).into();
        let mut server = Self { child, address: unknown };
        server.address = receiver.recv_timeout(START_TIMEOUT).map_err(|_| {
            let ended = server.child.try_wait().ok().flatten();
            format!(
                "{shown} did not say what it listens on; {}",
                match ended {
                    Some(status) => format!("it ended with {status}"),
                    None => format!("waited for {START_TIMEOUT:?}"),
                }
            )
        })?;
        Ok(server)
    }

    /// Starts a server whose output says nothing of use.
    fn start_at(command: &mut Command, address: SocketAddr) -> Result<Self, Error> {
        let shown = format!("{command:?}");
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = quiet.spawn().map_err(|error| format!("{shown}: {error}"))?;
        let mut server = Self { child, address };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("{shown} ended with {status}").into());
            }
            if begun.elapsed() > START_TIMEOUT {
                return Err(format!("{shown} does not accept connections at {address}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// CPU time used so far, in seconds.
    pub(crate) fn cpu_s(&self) -> Result<f64, Error> {
        cpu_s(self.child.id())
    }

    /// Asks the server to end, and waits until it has.
    pub(crate) fn stop(mut self) -> Result<(), Error> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            if asked.elapsed() > STOP_TIMEOUT {
                return Err(format!("a server did not end within {STOP_TIMEOUT:?} of SIGTERM").into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either call fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of loopback that is free now.
pub(crate) fn free_port() -> Result<u16, Error> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// CPU time that a process has used so far, in seconds.
pub(crate) fn cpu_s(process: u32) -> Result<f64, Error> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The second field, the program's name in brackets, may hold spaces; utime and stime are 14 and 15.
    let (_, fields) = stat.rsplit_once(')').ok_or("no name in /proc/…/stat")?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<f64>);
    match (times.next(), times.next()) {
        (Some(Ok(user)), Some(Ok(system))) => Ok((user + system) / TICKS_PER_S),
        _ => Err("no times in /proc/…/stat".into()),
    }
}

fn grpc_address(line: &str) -> Option<SocketAddr> {
    line.strip_prefix("listening ")?
        .split_whitespace()
        .find_map(|part| part.strip_prefix("grpc=")?.parse().ok())
}
