//! The kernel's figures about this process, for the metrics `process_*` that every client of Prometheus has.
//!
//! The figures are read from `/proc` on request. A figure that a kernel does not give, or gives in another
//! form, is left out.

use std::{
    fs::{self, File},
    io::Read as _,
    sync::OnceLock,
};

use rustix::process::{Resource, getrlimit};

use crate::settings::SETTINGS;

/// Ticks a second in the times of `/proc`, on every machine; the kernel's own ticks may differ.
const TICKS_PER_SECOND: f64 = 100.0;
/// Places of fields in `/proc/self/stat`, counted after the command's name, which may hold any text.
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const START_TICKS: usize = 19;

/// The process now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Process {
    /// When it started, in seconds since 1970.
    pub(crate) start_s: Option<f64>,
    /// Seconds that processors spent on the process, in the kernel too.
    pub(crate) cpu_s: Option<f64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) virtual_bytes: Option<u64>,
    pub(crate) threads: Option<u64>,
    pub(crate) open_fds: Option<u64>,
    /// `None` if there is no bound.
    pub(crate) max_fds: Option<u64>,
}

impl Process {
    /// Reads the figures.
    pub(crate) fn look() -> Self {
        // The first value is kept, because the kernel's figure moves with the wall clock.
        static START_S: OnceLock<Option<f64>> = OnceLock::new();
        let stat = read("/proc/self/stat");
        let process = Self::of(&stat, &read("/proc/self/status"));
        let start_s = START_S.get_or_init(|| start_s(&stat, &read("/proc/stat")));
        let max_fds = getrlimit(Resource::Nofile).current;
        Self { start_s: *start_s, open_fds: open_fds(), max_fds, ..process }
    }

    /// The figures in `/proc/self/stat` and `/proc/self/status`.
    fn of(stat: &str, status: &str) -> Self {
        let cpu = ticks(stat, USER_TICKS).zip(ticks(stat, SYSTEM_TICKS));
        let bytes = |name| value(status, name).map(|kib| kib.saturating_mul(1024));
        Self {
            cpu_s: cpu.map(|(user, system)| (user + system) / TICKS_PER_SECOND),
            resident_bytes: bytes("VmRSS:"),
            virtual_bytes: bytes("VmSize:"),
            threads: value(status, "Threads:"),
            ..Self::default()
        }
    }
}

/// When the process started: the time of the boot is in `/proc/stat`.
fn start_s(stat: &str, system: &str) -> Option<f64> {
    Some(value(system, "btime")? as f64 + ticks(stat, START_TICKS)? / TICKS_PER_SECOND)
}

fn ticks(stat: &str, place: usize) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(place)?.parse().ok()?;
    Some(ticks as f64)
}

/// The number after a name that begins a line.
fn value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Kernels since 6.2 give the number as the folder's size. On older ones the entries are counted; one of
/// these is the folder that is being read.
fn open_fds() -> Option<u64> {
    let folder = "/proc/self/fd";
    match fs::metadata(folder).ok()?.len() {
        0 => (fs::read_dir(folder).ok()?.count() as u64).checked_sub(1),
        open => Some(open),
    }
}

/// A file of the kernel; empty if it cannot be read.
fn read(path: &str) -> String {
    let mut text = String::new();
    match File::open(path)
        .and_then(|file| file.take(SETTINGS.counts.proc_bytes_max).read_to_string(&mut text))
    {
        Ok(_) => text,
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "4242 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14 20 0 9 0 12345 999 888\n";
    const STATUS: &str = "Name:\tacequia\nVmSize:\t   2048 kB\nVmRSS:\t     10 kB\nThreads:\t9\n";

    #[test]
    fn process_fields_are_read_after_any_process_name() {
        assert_eq!(
            Process::of(STAT, STATUS),
            Process {
                cpu_s: Some(3.0),
                resident_bytes: Some(10_240),
                virtual_bytes: Some(2_097_152),
                threads: Some(9),
                ..Process::default()
            }
        );
        assert_eq!(start_s(STAT, "cpu 1 2\nintr 5 6\nbtime 1000\n"), Some(1_123.45));
    }

    #[test]
    fn missing_process_fields_are_omitted() {
        assert_eq!(Process::of("", ""), Process::default());
        assert_eq!(Process::of("1 (a) S 1", "VmRSS: many kB\nThreads:"), Process::default());
        assert_eq!(start_s(STAT, ""), None);
        assert_eq!(start_s("", "btime 1000\n"), None);
    }

    #[test]
    fn the_figures_of_this_process_are_read() {
        let Process { start_s, cpu_s, resident_bytes, virtual_bytes, threads, open_fds, max_fds } =
            Process::look();
        assert!(start_s > Some(1.7e9) && cpu_s >= Some(0.0), "{start_s:?} {cpu_s:?}");
        assert!(resident_bytes > Some(4_096) && virtual_bytes >= resident_bytes);
        assert!(threads >= Some(1) && open_fds >= Some(3));
        assert!(max_fds.is_none() || max_fds >= open_fds);
    }
}
