//! Numbers of incarnations, by the wall clock. A node whose disk is lost comes back as a higher number.

/// This node's incarnation, in the journal.
pub(crate) const INCARNATION: &str = "incarnation";

/// When the numbers of incarnations begin, in nanoseconds since the epoch; and, below, how long each number
/// lasts.
const BEGAN_NS: u64 = 1_735_689_600 * 1_000_000_000;
const QUARTER_NS: u64 = 250_000_000;

/// The number of an incarnation that begins now: quarters of a second since 2025, which fit until 2059. A
/// node that loses its disk comes back later than it began, so its number is higher. If its clock is far
/// behind, the number is lower, and peers refuse the node. No incarnation begins at 0.
pub(crate) fn number_at(wall_ns: u64) -> u32 {
    u32::try_from(wall_ns.saturating_sub(BEGAN_NS) / QUARTER_NS).unwrap_or(u32::MAX).max(1)
}

/// The first time of a wall that gives this number, in nanoseconds since the epoch.
pub(crate) fn begins_ns(number: u32) -> u64 {
    BEGAN_NS + u64::from(number) * QUARTER_NS
}
