//! What classes ask for, and when. The total demand is the same at every time.

/// A stretch of even load, and a burst in it.
pub(super) const PERIOD_MS: u64 = 15_000;
/// How long a burst lasts.
pub(super) const BURST_MS: u64 = 5_000;
/// Where in its period a burst begins.
pub(super) const BEGINS_MS: u64 = PERIOD_MS / 3;
/// Parts that a load is divided into, such that a third, a percent and half a percent are whole numbers of
/// parts.
const PARTS: u64 = 600;

/// The demand of three classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Units a second that all classes ask for together.
    pub(super) asked: u64,
    /// The percentage of `asked` that the bursting class asks for.
    pub(super) peak: u64,
    /// The class that asks for more at times, while the others ask for less. If `None`, each class asks for a
    /// third.
    pub(super) bursts: Option<usize>,
}

/// Whether a millisecond lies in a burst.
pub(super) fn is_burst(ms: u64) -> bool {
    (BEGINS_MS..BEGINS_MS + BURST_MS).contains(&(ms % PERIOD_MS))
}

impl Load {
    /// Units that a class asks for in a millisecond.
    pub(super) fn asked_in(&self, class: usize, ms: u64) -> u64 {
        self.asked_before(class, ms + 1) - self.asked_before(class, ms)
    }

    fn asked_before(&self, class: usize, ms: u64) -> u64 {
        let even = PARTS / 3;
        let in_burst = match self.bursts {
            None => even,
            Some(bursting) if bursting == class => self.peak * PARTS / 100,
            Some(_) => (100 - self.peak) * PARTS / 200,
        };
        let of_burst = (ms % PERIOD_MS).saturating_sub(BEGINS_MS).min(BURST_MS);
        let bursts_ms = ms / PERIOD_MS * BURST_MS + of_burst;
        self.asked * (bursts_ms * in_burst + (ms - bursts_ms) * even) / PARTS / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_load_is_the_same_in_every_second() {
        for bursts in [None, Some(0), Some(1), Some(2)] {
            let load = Load { asked: 1_350, peak: 80, bursts };
            for second in 0..2 * PERIOD_MS / 1_000 {
                let asked = |class| -> u64 {
                    (second * 1_000..(second + 1) * 1_000).map(|ms| load.asked_in(class, ms)).sum()
                };
                let all: u64 = (0..3).map(asked).sum();
                // Each class is rounded to whole units.
                assert!(all.abs_diff(1_350) <= 3, "{bursts:?}: {all} in second {second}");
            }
        }
    }

    #[test]
    fn the_bursting_class_has_its_part_of_the_load_and_others_halve_the_rest() {
        let load = Load { asked: 1_000, peak: 80, bursts: Some(1) };
        let asked = |class| -> u64 {
            (PERIOD_MS..2 * PERIOD_MS).filter(|ms| is_burst(*ms)).map(|ms| load.asked_in(class, ms)).sum()
        };
        assert_eq!([0, 1, 2].map(asked), [500, 4_000, 500]);
    }
}
