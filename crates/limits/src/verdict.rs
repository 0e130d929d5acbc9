//! What one limit says of one request.

/// The wait that no wait replaces: the request can never pass.
pub const NEVER: u64 = u64::MAX;

/// What an algorithm says of a cost, charging nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the cost fits now.
    pub allowed: bool,
    /// Units left after this cost where allowed, and without it where not. Never too high.
    pub remaining: u64,
    /// Nanoseconds until the same cost would fit if nothing else is charged: 0 where allowed,
    /// exact otherwise, [`NEVER`] where the cost is above what the limit can hold.
    pub retry_after_ns: u64,
    /// Nanoseconds the caller shall wait before going on; only leaky buckets ask for it.
    pub delay_ns: u64,
    /// Nanoseconds until every unit is back if nothing else is charged (this cost included where
    /// allowed).
    pub reset_after_ns: u64,
}

/// Why a verdict is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Every limit that matched allows it.
    WithinLimit,
    /// No limit matched: allowed.
    NoMatch,
    /// Every limit that matched exempts it: allowed.
    Unlimited,
    /// A limit has too little left.
    OverLimit,
    /// The cost is above what the limit can ever hold.
    CostTooHigh,
    /// After a restart, nothing that was not journalled is assumed to be unspent.
    Restarted,
    /// The memory for cells is full, and new cells of the limit share one.
    Overflow,
    /// The journal cannot be written, and what was not reserved cannot be spent.
    Journal,
    /// The wall was in this window before, went beyond its end, and was set back: what was spent of it is not known.
    Clock,
    /// This region has no catalogue, or the catalogue does not name this node: it owns nothing.
    NoCatalogue,
    /// This node's disk is an older one than the one it wrote last: it owns nothing until it begins anew.
    RestoredDisk,
    /// What is left is kept for classes of a higher priority.
    ClassReserve,
    /// Most of the window is used, and the limit slows down for the rest.
    Throttled,
    /// The store of the region's nodes does not answer, and the limit lets nobody decide without it: denied, though perhaps not too much
    /// was asked.
    Unavailable,
    /// The store of the region's nodes does not answer, and the limit lets everything pass meanwhile: allowed, and charged to nobody.
    Open,
}

impl Reason {
    /// The word for it in JSON, metrics and on the command line.
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
