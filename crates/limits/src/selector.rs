//! Which descriptors a limit is about (`when`, `unlimited`, overrides) and what it counts by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Descriptor, pattern::Pattern};

/// A condition on one descriptor entry: its value fits one of `any` (every value, where `any` is
/// empty) and none of `none`. A descriptor without the key does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The entry's key.
    pub key: String,
    /// Any of these.
    pub any: Vec<Pattern>,
    /// None of these (written with a leading `!`).
    pub none: Vec<Pattern>,
}

impl Condition {
    /// Reads the patterns of one key; `!` in front excludes, and `\!` is a value that begins with `!`.
    pub fn new<'a>(key: &str, patterns: impl IntoIterator<Item = &'a str>) -> Self {
        let mut condition = Self { key: key.to_owned(), any: Vec::new(), none: Vec::new() };
        for text in patterns {
            match text.strip_prefix('!') {
                Some(excluded) => condition.none.push(Pattern::new(excluded)),
                None => condition.any.push(Pattern::new(text.strip_prefix('\\').unwrap_or(text))),
            }
        }
        condition
    }

    /// Whether a value fits.
    pub fn accepts(&self, value: &[u8]) -> bool {
        (self.any.is_empty() || self.any.iter().any(|pattern| pattern.matches(value)))
            && !self.none.iter().any(|pattern| pattern.matches(value))
    }

    /// Whether a descriptor fits.
    pub fn holds(&self, descriptor: &Descriptor<'_>) -> bool {
        descriptor.value(self.key.as_bytes()).is_some_and(|value| self.accepts(value))
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let any = self.any.iter().map(ToString::to_string);
        let none = self.none.iter().map(|pattern| format!("!{pattern}"));
        let all: Vec<String> = any.chain(none).collect();
        write!(f, "{} {}", self.key, if all.is_empty() { "*".to_owned() } else { all.join(" or ") })
    }
}

/// An entry that a limit counts by: one cell for each value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// The entry's key.
    pub key: String,
    /// For addresses: count by prefix, so that a client cannot change cells within its own network.
    pub prefix: Option<Prefix>,
}

/// How many leading bits of an address make one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// For IPv4: 0 to 32.
    pub v4: u8,
    /// For IPv6: 0 to 128. 64 is one subnet, the least that a host may hold.
    pub v6: u8,
}

impl By {
    /// The bytes that stand for a value. An address is cut to its prefix; IPv4 in IPv6 is IPv4; what
    /// is no address stands for itself.
    #[inline]
    pub fn canonical<'v>(&self, value: &'v [u8]) -> Canonical<'v> {
        match self.prefix {
            None => Canonical::Value(value),
            Some(prefix) => prefix.canonical(value),
        }
    }
}

/// The bytes that stand for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canonical<'v> {
    /// The value itself.
    Value(&'v [u8]),
    /// The network of an IPv4 address.
    V4([u8; 4]),
    /// The network of an IPv6 address.
    V6([u8; 16]),
}

impl Canonical<'_> {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Value(value) => value,
            Self::V4(network) => network,
            Self::V6(network) => network,
        }
    }
}

impl Prefix {
    fn canonical(self, value: &[u8]) -> Canonical<'_> {
        let address = std::str::from_utf8(value).ok().and_then(|text| text.parse::<IpAddr>().ok());
        match address.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => Canonical::V4(self.cut_v4(address).octets()),
            Some(IpAddr::V6(address)) => Canonical::V6(self.cut_v6(address).octets()),
            None => Canonical::Value(value),
        }
    }

    fn cut_v4(self, address: Ipv4Addr) -> Ipv4Addr {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.v4)).unwrap_or(0);
        Ipv4Addr::from_bits(address.to_bits() & mask)
    }

    fn cut_v6(self, address: Ipv6Addr) -> Ipv6Addr {
        let mask = u128::MAX.checked_shl(128 - u32::from(self.v6)).unwrap_or(0);
        Ipv6Addr::from_bits(address.to_bits() & mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_any_of_and_exclusions_win() {
        let c = Condition::new("route", ["/report/*", "/export", "!/report/tiny"]);
        for (value, fits) in
            [("/report/big", true), ("/export", true), ("/report/tiny", false), ("/home", false)]
        {
            assert_eq!(c.accepts(value.as_bytes()), fits, "{value}");
        }
        let all_but = Condition::new("route", ["!/health"]);
        assert!(all_but.accepts(b"/x") && !all_but.accepts(b"/health"));
        assert!(Condition::new("k", [r"\!x"]).accepts(b"!x"));
        let entries = [(&b"method"[..], &b"GET"[..])];
        assert!(!all_but.holds(&Descriptor { entries: &entries, cost: None }));
    }

    #[test]
    fn addresses_count_by_prefix() {
        let by = By { key: "ip".into(), prefix: Some(Prefix { v4: 24, v6: 64 }) };
        let canonical = |value: &str| by.canonical(value.as_bytes()).bytes().to_vec();
        assert_eq!(canonical("10.1.2.3"), canonical("10.1.2.200"));
        assert_ne!(canonical("10.1.2.3"), canonical("10.1.3.3"));
        assert_eq!(canonical("::ffff:10.1.2.3"), canonical("10.1.2.3"));
        assert_eq!(canonical("2001:db8::1"), canonical("2001:DB8:0:0:ffff::1"));
        assert_ne!(canonical("2001:db8::1"), canonical("2001:db8:0:1::1"));
        assert_eq!(canonical("unix:"), b"unix:");
        let whole = Prefix { v4: 0, v6: 0 };
        assert_eq!(whole.cut_v4(Ipv4Addr::BROADCAST), Ipv4Addr::UNSPECIFIED);
    }
}
