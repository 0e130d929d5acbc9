//! The events when nobody presses keys: streams whose costs are known last, a split brain, a `kill -9`, and
//! the healing of both.

use std::time::Duration;

use super::keys::Order;

/// The default length.
pub const SECONDS: u64 = 40;
/// The shortest length that leaves time to heal.
pub const SECONDS_MIN: u64 = 16;
/// A day.
pub const SECONDS_MAX: u64 = 86_400;

/// The region whose node is killed, by its place: neither the hot region nor the authority's.
pub const VICTIM: usize = 2;

/// Times are in sixteenths of the whole, from the beginning.
const STEPS: [(u32, Order); 8] = [
    (1, Order::Streams),
    (2, Order::Heat),
    (4, Order::Split),
    (8, Order::Mend),
    (10, Order::Kill),
    (12, Order::Restart),
    (14, Order::Heat),
    (16, Order::Quit),
];

/// The orders to give, and when.
#[derive(Clone, Debug)]
pub struct Script {
    length: Duration,
    done: usize,
}

impl Script {
    /// A script of this length.
    pub const fn new(length: Duration) -> Self {
        Self { length, done: 0 }
    }

    /// The next order whose time has come.
    pub fn next(&mut self, elapsed: Duration) -> Option<Order> {
        let (sixteenths, order) = *STEPS.get(self.done)?;
        if elapsed < self.length * sixteenths / 16 {
            return None;
        }
        self.done += 1;
        Some(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_breaks_and_heals_links_in_time() {
        let mut script = Script::new(Duration::from_secs(40));
        let mut happened = Vec::new();
        for tenth in 0..=400 {
            while let Some(order) = script.next(Duration::from_millis(tenth * 100)) {
                happened.push((tenth / 10, order));
            }
        }
        let expected = [
            (2, Order::Streams),
            (5, Order::Heat),
            (10, Order::Split),
            (20, Order::Mend),
            (25, Order::Kill),
            (30, Order::Restart),
            (35, Order::Heat),
            (40, Order::Quit),
        ];
        assert_eq!(happened, expected);
    }
}
