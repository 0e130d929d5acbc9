//! What classes ask for, and when.
//!
//! Whether a class bursts or not, it asks for the same in each whole period.

/// A quiet stretch, and a burst at its end.
pub(super) const PERIOD_MS: u64 = 10_000;
/// How long a burst lasts.
pub(super) const BURST_MS: u64 = 2_000;
/// Where in its period a burst begins.
pub(super) const BEGINS_MS: u64 = PERIOD_MS / 2;

/// What three classes ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Units a second, on average.
    pub(super) asks: [u64; 3],
    /// The class that is quiet and then asks for a whole period at once; the others ask evenly.
    pub(super) bursts: Option<usize>,
}

/// Whether a millisecond is one of a burst.
pub(super) fn is_burst(ms: u64) -> bool {
    (BEGINS_MS..BEGINS_MS + BURST_MS).contains(&(ms % PERIOD_MS))
}

impl Load {
    /// Units that a class asks for in a millisecond.
    pub(super) fn asked_in(&self, class: usize, ms: u64) -> u64 {
        self.asked_before(class, ms + 1) - self.asked_before(class, ms)
    }

    fn asked_before(&self, class: usize, ms: u64) -> u64 {
        let asks = self.asks[class];
        if self.bursts != Some(class) {
            return asks * ms / 1_000;
        }
        let a_period = asks * PERIOD_MS / 1_000;
        let of_burst = (ms % PERIOD_MS).saturating_sub(BEGINS_MS).min(BURST_MS);
        a_period * (ms / PERIOD_MS) + a_period * of_burst / BURST_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_all_of_a_period_at_once() {
        let load = Load { asks: [400, 250, 3], bursts: Some(1) };
        for (class, asks) in load.asks.into_iter().enumerate() {
            let asked = |stretch: fn(u64) -> bool| -> u64 {
                let ms = (PERIOD_MS..2 * PERIOD_MS).filter(|ms| stretch(*ms));
                ms.map(|ms| load.asked_in(class, ms)).sum()
            };
            assert_eq!(asked(|_| true), asks * PERIOD_MS / 1_000);
            let in_burst = if class == 1 { 10 } else { 2 };
            assert_eq!(asked(is_burst), asks * in_burst);
        }
    }
}
