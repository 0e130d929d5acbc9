//! Configs of [envoyproxy/ratelimit](https://github.com/envoyproxy/ratelimit), read as limits.
//!
//! A config is a tree of descriptors. Each descriptor with a rate limit becomes one limit whose `path` leads to the
//! descriptor, so equal configs make equal limits, with equal cells, on every node. A hit is recorded whether it fits
//! or not, as that service does. What that service does and no limit says is a [`Difference`].

#[cfg(test)]
mod any_bytes;
mod environment;
mod folder;
pub(crate) mod json;
mod limits;
mod xds;
mod yaml;

pub use self::{
    environment::{Environment, EnvironmentConfig},
    folder::FOLDER_FILES_MAX,
    limits::{Difference, Imported, from_callers, import},
    xds::{XdsConfig, XdsTls},
    yaml::read_domain,
};
pub(crate) use self::{
    folder::Folder,
    xds::{Offer, Xds, keep, kept},
};

/// A domain of a config: the root of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RatelimitDomain {
    /// The place that faults name: a file, or a resource of xDS.
    pub source: String,
    /// The domain of the requests.
    pub domain: String,
    /// The first entries of descriptors.
    pub descriptors: Vec<RatelimitDescriptor>,
}

/// An entry that a request's descriptor may have in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RatelimitDescriptor {
    /// The entry's key.
    pub key: String,
    /// The entry's value, in which `*` stands for any text. Every value fits if empty.
    pub value: String,
    /// The limit of descriptors that end here.
    pub rate_limit: Option<RatelimitPolicy>,
    /// The entries that may come next.
    pub descriptors: Vec<Self>,
    /// Whether the limit only watches.
    pub shadow_mode: bool,
    /// Whether one of a request's limits of this kind is enough to pass.
    pub quota_mode: bool,
    /// Whether all values that fit a pattern share one counter.
    pub share_threshold: bool,
    /// Whether metrics name each value of this and the earlier entries.
    pub detailed_metric: bool,
    /// Whether metrics name each value of this entry.
    pub value_to_metric: bool,
    /// Whether answers carry metadata of the descriptor's own.
    pub has_metadata: bool,
}

/// A number of requests for each unit of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RatelimitPolicy {
    /// How many.
    pub requests_per_unit: u32,
    /// The unit of time; `None` if the text names none.
    pub unit: Option<RatelimitUnit>,
    /// The unit as it was written.
    pub unit_text: String,
    /// Whether nothing is counted.
    pub unlimited: bool,
    /// A name by which other limits replace this one; may be empty.
    pub name: String,
    /// The names of limits that do not apply where this one does.
    pub replaces: Vec<String>,
}

/// A unit of time. Windows begin at multiples of the unit since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RatelimitUnit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 3 600 s.
    Hour,
    /// 86 400 s.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl RatelimitUnit {
    /// Every unit, with its name.
    pub(crate) const ALL: [(&'static str, Self); 7] = [
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("year", Self::Year),
    ];

    /// The unit of this name, in any case.
    pub fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, unit)| unit)
    }

    /// The unit of this number in Envoy's protocol.
    pub const fn numbered(number: i32) -> Option<Self> {
        Some(match number {
            1 => Self::Second,
            2 => Self::Minute,
            3 => Self::Hour,
            4 => Self::Day,
            5 => Self::Month,
            6 => Self::Year,
            7 => Self::Week,
            _ => return None,
        })
    }

    /// The length of the window, in seconds.
    pub const fn seconds(self) -> u32 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }

    /// The length of the window, as a config of ours writes it.
    const fn window(self) -> &'static str {
        match self {
            Self::Second => "1s",
            Self::Minute => "1m",
            Self::Hour => "1h",
            Self::Day => "1d",
            Self::Week => "7d",
            Self::Month => "30d",
            Self::Year => "365d",
        }
    }
}
