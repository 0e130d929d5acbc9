//! Which region is served first of a shared limit, and what each region keeps.

use acequia_limits::limit::LimitSharing;
use acequia_rights::MemberId;

/// A limit's rules for sharing among regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Preference {
    floor_percent: u8,
    first: Vec<MemberId>,
}

impl Preference {
    pub(crate) fn new(sharing: &LimitSharing) -> Self {
        let first = sharing.priority.iter().map(|name| MemberId::named(name)).collect();
        Self { floor_percent: sharing.floor_percent.min(100), first }
    }

    /// A region's rank: smaller ranks are served before larger ones.
    pub(crate) fn class(&self, region: MemberId) -> u8 {
        let place = self.first.iter().position(|first| *first == region).unwrap_or(self.first.len());
        u8::try_from(place).unwrap_or(u8::MAX)
    }

    /// How much of a standing share is kept even if others need it.
    pub(crate) fn floor(&self, standing: u64) -> u64 {
        // The result is no more than the standing share, so it fits.
        (u128::from(standing) * u128::from(self.floor_percent) / 100) as u64
    }
}
