//! The progress of many runs: a bar on a terminal, elsewhere a line now and then.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    time::{Duration, Instant},
};

/// Cells of the bar.
const WIDTH: u64 = 32;
/// Time between two lines where there is no terminal, and between two redraws of the bar.
const LINE_EVERY: Duration = Duration::from_secs(30);
const BAR_EVERY: Duration = Duration::from_millis(100);

/// The progress of a number of runs.
#[derive(Debug)]
pub struct Progress {
    total: u64,
    done: u64,
    found: u64,
    begun: Instant,
    told: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    /// No run of `total` is done.
    pub fn new(total: u64) -> Self {
        let is_terminal = stderr().is_terminal();
        Self { total, done: 0, found: 0, begun: Instant::now(), told: None, is_terminal }
    }

    /// One more run is done.
    pub fn step(&mut self, found: bool) {
        self.done += 1;
        self.found += u64::from(found);
        let every = if self.is_terminal { BAR_EVERY } else { LINE_EVERY };
        if self.told.unwrap_or(self.begun).elapsed() >= every || self.done == self.total && self.is_terminal {
            self.told = Some(Instant::now());
            self.show();
        }
    }

    /// Clears the bar to make room for other text.
    pub fn clear(&self) {
        if self.is_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }

    fn show(&self) {
        let line = line(self.done, self.total, self.found, self.begun.elapsed());
        // Standard error may be closed; then nobody wants to know.
        let _ = match self.is_terminal {
            true => write!(stderr(), "\r\x1b[K{}{line}", bar(self.done, self.total)),
            false => writeln!(stderr(), "{line}"),
        };
        let _ = stderr().flush();
    }
}

fn bar(done: u64, total: u64) -> String {
    let full = (done * WIDTH / total.max(1)).min(WIDTH) as usize;
    format!("{}{} ", "\u{2588}".repeat(full), "\u{2591}".repeat(WIDTH as usize - full))
}

fn line(done: u64, total: u64, found: u64, took: Duration) -> String {
    let a_second = done as f64 / took.as_secs_f64().max(0.001);
    let left = (total.saturating_sub(done)) as f64 / a_second.max(0.001);
    let found = if found == 0 { "nothing found".to_owned() } else { format!("{found} FOUND") };
    format!("{done} of {total} runs, {found}, {a_second:.1} a second, {left:.0} s to go")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_and_a_line_counts() {
        assert_eq!(bar(0, 10).chars().filter(|cell| *cell == '\u{2588}').count(), 0);
        assert_eq!(bar(5, 10).chars().filter(|cell| *cell == '\u{2588}').count(), 16);
        let line = line(50, 100, 0, Duration::from_secs(10));
        assert_eq!(line, "50 of 100 runs, nothing found, 5.0 a second, 10 s to go");
    }
}
