//! The wall: its lead over the system's `CLOCK_BOOTTIME`, which changes only when somebody sets one of the
//! two.

use acequia_rights::mutation::{Mutation, mutated};

use super::{
    Health,
    raw::{WALL_NS_MAX, WALL_NS_MIN},
};
use crate::settings::SETTINGS;

#[derive(Debug)]
pub(super) struct WallClock {
    offset_ns: i64,
    /// When the wall was last looked at: the system's clock.
    looked_ns: u64,
    generation: u64,
    health: Health,
}

impl WallClock {
    pub(super) const fn starting_at(offset_ns: i64, looked_ns: u64) -> Self {
        let health = Health {
            counter: super::Counter::Calibrating,
            ahead_ns: 0,
            slews: 0,
            steps_back: 0,
            stepped_back_ns: 0,
            impossible: 0,
        };
        Self { offset_ns, looked_ns, generation: 0, health }
    }

    /// The wall minus the system's clock.
    pub(super) const fn offset_ns(&self) -> i64 {
        self.offset_ns
    }

    /// How often the wall was set back.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) const fn health(&self) -> Health {
        self.health
    }

    /// Takes a reading of the system's wall, made between two readings of its clock. If the thread was
    /// preempted in between, the reading is less exact, and never wrong.
    pub(super) fn observe(&mut self, wall_ns: u64, after_ns: u64, before_ns: u64) {
        let passed_ns = before_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, before_ns));
        if !(WALL_NS_MIN..=WALL_NS_MAX).contains(&wall_ns) {
            self.health.impossible += 1;
            return;
        }
        let (least_ns, most_ns) = (less(wall_ns, before_ns), less(wall_ns, after_ns));
        let least_ns = if mutated(Mutation::WallDatedEarly) { most_ns } else { least_ns };
        if mutated(Mutation::WallKeepsLargest) {
            self.offset_ns = self.offset_ns.max(least_ns);
            return;
        }
        let ahead_ns = self.offset_ns.saturating_sub(most_ns).max(0).cast_unsigned();
        if ahead_ns > SETTINGS.clock.wall_step_ns {
            self.generation += 1;
            self.health.steps_back += 1;
            self.health.stepped_back_ns = ahead_ns;
            self.offset_ns = least_ns;
            self.health.ahead_ns = 0;
            return;
        }
        self.health.slews += u64::from(ahead_ns >= SETTINGS.clock.notable_ns && self.health.ahead_ns == 0);
        let slewed_ns = ahead_ns.min(passed_ns / SETTINGS.clock.slew_parts);
        self.offset_ns = self.offset_ns.saturating_sub_unsigned(slewed_ns).max(least_ns);
        let left_ns = ahead_ns - slewed_ns;
        // Noise is not reported; a lead that is slewed is reported to its end.
        let is_told = left_ns >= SETTINGS.clock.notable_ns || (left_ns > 0 && self.health.ahead_ns > 0);
        self.health.ahead_ns = if is_told { left_ns } else { 0 };
    }
}

/// The difference of two times that are both far below 2^63.
fn less(a_ns: u64, b_ns: u64) -> i64 {
    a_ns.wrapping_sub(b_ns).cast_signed()
}
