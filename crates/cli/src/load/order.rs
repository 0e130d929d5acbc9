//! Which message a connection sends next.

use super::{Load, Order};

/// Chooses the messages of one connection.
#[derive(Debug)]
pub(super) struct Picker {
    order: Order,
    count: usize,
    /// The next index, or the state of the generator.
    state: u64,
}

impl Picker {
    /// The picker of the connection with this number.
    pub(super) fn new(load: &Load, connection: usize) -> Self {
        let count = load.payloads.len();
        let state = match load.order {
            Order::RoundRobin => (connection * count / load.connections) as u64,
            Order::Random { seed } => seed.wrapping_add((connection as u64) << 32),
        };
        Self { order: load.order, count, state }
    }

    /// The index of the next message.
    pub(super) fn next(&mut self) -> usize {
        match self.order {
            Order::RoundRobin => {
                let index = self.state as usize;
                self.state = if index + 1 < self.count { self.state + 1 } else { 0 };
                index
            }
            Order::Random { .. } => {
                // SplitMix64: one addition a step, and every seed is good.
                self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                mixed ^= mixed >> 31;
                ((u128::from(mixed) * self.count as u128) >> 64) as usize
            }
        }
    }
}
