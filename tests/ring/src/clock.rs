//! A machine's two clocks, with errors chosen by the history.

use acequia_limits::Now;

const MILLION: u128 = 1_000_000;

/// The clocks of one process, as the server reads them. The steady clock is anchored to the wall when the
/// process starts, and runs at its own rate. The wall clock has some error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// True time of the last change of rate, and the steady clock's reading then.
    since_ns: u64,
    steady_ns: u64,
    /// How much faster than true time the steady clock runs, in parts per million.
    pub drift_ppm: i32,
    /// The wall clock minus true time.
    pub error_ns: i64,
}

impl Clock {
    /// The readings of both clocks.
    pub fn read(&self, true_ns: u64) -> Now {
        let passed = u128::from(true_ns - self.since_ns);
        let rate = (1_000_000 + i64::from(self.drift_ppm)) as u128;
        let steady_ns = self.steady_ns + (passed * rate / MILLION) as u64;
        Now { steady_ns, wall_ns: true_ns.saturating_add_signed(self.error_ns) }
    }

    /// A process starts: the steady clock starts at the wall clock's reading.
    pub fn start(&mut self, true_ns: u64) {
        self.since_ns = true_ns;
        self.steady_ns = true_ns.saturating_add_signed(self.error_ns);
    }

    /// The steady clock continues at another rate.
    pub fn drift(&mut self, true_ns: u64, ppm: i32) {
        self.steady_ns = self.read(true_ns).steady_ns;
        self.since_ns = true_ns;
        self.drift_ppm = ppm;
    }
}
