//! One limit's answer to one request.

/// The wait of a request that can never pass.
pub const NEVER: u64 = u64::MAX;

/// An algorithm's answer for a cost. Nothing is charged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the cost fits now.
    pub allowed: bool,
    /// Units left: after this cost if it is allowed, without it if it is not. Never too high.
    pub remaining: u64,
    /// Nanoseconds until the same cost would fit if nothing else is charged. 0 if the cost is allowed,
    /// exact otherwise, and [`NEVER`] if the cost is above what the limit can hold.
    pub retry_after_ns: u64,
    /// Nanoseconds that the caller must wait before it goes on. Only leaky buckets ask for a wait.
    pub delay_ns: u64,
    /// Nanoseconds until every unit is back if nothing else is charged. An allowed cost is included.
    pub reset_after_ns: u64,
}

/// The reason for a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Every limit that matched allows the request.
    WithinLimit,
    /// No limit matched: allowed.
    NoMatch,
    /// Every limit that matched exempts the request: allowed.
    Unlimited,
    /// A limit has too little left.
    OverLimit,
    /// The cost is above what the limit can ever hold.
    CostTooHigh,
    /// After a restart, units count as spent unless the journal shows otherwise.
    Restarted,
    /// The memory for cells is full, so new cells of the limit share one cell.
    Overflow,
    /// The journal cannot be written, so units that are not reserved on disk cannot be spent.
    Journal,
    /// The wall clock was set back to this window from a later one. The usage of this window is unknown.
    Clock,
    /// This region has no catalogue, or the catalogue does not name this node. The node owns nothing.
    NoCatalogue,
    /// This node's disk is older than the disk that it wrote last. The node owns nothing until it starts
    /// afresh.
    RestoredDisk,
    /// The units that are left are reserved for classes of a higher priority.
    ClassReserve,
    /// Most of the window is used, so the limit slows requests down for the rest.
    Throttled,
    /// The store of the region's nodes does not answer, and the limit lets nobody decide without the store.
    /// The request is denied, though it may ask for no more than the limit allows.
    Unavailable,
    /// The store of the region's nodes does not answer, and the limit lets everything pass meanwhile. The
    /// request is allowed and charged to no cell.
    Open,
}

impl Reason {
    /// The reason's name in JSON, in metrics and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WithinLimit => "within-limit",
            Self::NoMatch => "no-match",
            Self::Unlimited => "unlimited",
            Self::OverLimit => "over-limit",
            Self::CostTooHigh => "cost-too-high",
            Self::Restarted => "restarted",
            Self::Overflow => "overflow",
            Self::Journal => "journal",
            Self::Clock => "clock",
            Self::NoCatalogue => "no-catalogue",
            Self::RestoredDisk => "restored-disk",
            Self::ClassReserve => "class-reserve",
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Open => "open",
        }
    }
}
