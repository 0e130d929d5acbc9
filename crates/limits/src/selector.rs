//! Selects the descriptors that a limit applies to (`when`, `unlimited`, overrides) and the entries it
//! counts by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    Descriptor,
    networks::{Network, Networks},
    pattern::Pattern,
};

/// A condition on one descriptor entry. The entry's value must match a pattern of `any` (every value does
/// if `any` is empty) and no pattern of `none`. A descriptor without the key fails the condition, unless
/// the condition asks for the key's absence.
///
/// A key may occur twice in a descriptor, and a client may choose one of the values. So a limit applies if
/// any value fits ([`Condition::holds`]). An exemption or an override needs all values to fit
/// ([`Condition::holds_for_all`]). A cell has one variant: the key's first value names the cell and selects
/// the variant ([`Condition::holds_for_first`]). Requests under another variant have a second cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The entry's key.
    pub key: String,
    /// Patterns of which one must match.
    pub any: Vec<Pattern>,
    /// Patterns of which none may match (written with a leading `!`).
    pub none: Vec<Pattern>,
    /// Whether the descriptor must not have the key. Both lists are empty then.
    pub is_absent: bool,
    /// How values are compared as addresses. `None` if values are compared as bytes.
    addresses: Option<Box<Addresses>>,
}

/// The addresses of a condition, ready to be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Addresses {
    /// The place of the address in a list, counted from the last, which is 1.
    hop: u8,
    any: AddressSet,
    none: AddressSet,
}

/// A set of addresses: those in some networks, and those whose text matches a pattern. A value that holds
/// no address is compared as the empty text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AddressSet {
    networks: Networks,
    patterns: Vec<Pattern>,
}

impl AddressSet {
    fn has(&self, address: Option<IpAddr>) -> bool {
        if address.is_some_and(|address| self.networks.contains(address)) {
            return true;
        }
        if self.patterns.is_empty() {
            return false;
        }
        // The text is in the form of RFC 5952.
        let text = address.map_or_else(String::new, |address| address.to_string());
        self.patterns.iter().any(|pattern| pattern.matches(text.as_bytes()))
    }
}

impl Condition {
    /// Reads the patterns of one key. A leading `!` excludes, and `\!` begins a value that begins with `!`.
    pub fn new<'a>(key: &str, patterns: impl IntoIterator<Item = &'a str>) -> Self {
        let mut condition = Self {
            key: key.to_owned(),
            any: Vec::new(),
            none: Vec::new(),
            is_absent: false,
            addresses: None,
        };
        for text in patterns {
            match text.strip_prefix('!') {
                Some(excluded) => condition.none.push(Pattern::new(excluded)),
                None => condition.any.push(Pattern::new(text.strip_prefix('\\').unwrap_or(text))),
            }
        }
        condition
    }

    /// The condition that a descriptor does not have the key.
    pub fn absent(key: &str) -> Self {
        Self { is_absent: true, ..Self::new(key, []) }
    }

    /// A condition with the same patterns on a key whose values hold addresses. In a list, the `hop`-th
    /// address from the last counts. A pattern without `*` is an address, a network, or the empty text,
    /// which stands for a value without an address. No address matches any other text.
    #[must_use]
    pub fn of_addresses(self, hop: u8) -> Self {
        let (any, any_set) = address_set(self.any);
        let (none, none_set) = address_set(self.none);
        let addresses = Addresses { hop, any: any_set, none: none_set };
        Self { any, none, addresses: Some(Box::new(addresses)), ..self }
    }

    /// The number of patterns that are neither addresses nor networks. These patterns are tried one by one.
    pub(crate) fn others(&self) -> usize {
        let addresses = self.addresses.as_ref();
        addresses.map_or(0, |addresses| addresses.any.patterns.len() + addresses.none.patterns.len())
    }

    /// The fault in the patterns of a key whose values hold addresses: a pattern that no address matches,
    /// and how to write it.
    pub fn misfit(&self) -> Option<String> {
        let addresses = self.addresses.as_ref()?;
        let mut patterns = addresses.any.patterns.iter().chain(&addresses.none.patterns);
        patterns.find_map(|pattern| match pattern {
            Pattern::Literal(text) if !text.is_empty() => Network::parse(text).err(),
            _ => None,
        })
    }

    /// The place of the address in a list, counted from the last, which is 1. `None` if values are compared
    /// as bytes.
    pub fn hop(&self) -> Option<u8> {
        self.addresses.as_ref().map(|addresses| addresses.hop)
    }

    /// Whether a value fits.
    pub fn accepts(&self, value: &[u8]) -> bool {
        self.fit(&Descriptor::new(&[], None), value).is_met()
    }

    fn fit<'v>(&self, descriptor: &Descriptor<'v>, value: &'v [u8]) -> Fit {
        if let Some(addresses) = &self.addresses {
            let address = descriptor.address_of(value, addresses.hop);
            let is_asked_for = self.any.is_empty() || addresses.any.has(address);
            return Fit { is_asked_for, is_excluded: addresses.none.has(address) };
        }
        Fit {
            is_asked_for: self.any.is_empty() || self.any.iter().any(|pattern| pattern.matches(value)),
            is_excluded: self.none.iter().any(|pattern| pattern.matches(value)),
        }
    }

    /// Whether a limit with this condition applies to a descriptor: some value is asked for, and not every
    /// value is excluded.
    pub fn holds(&self, descriptor: &Descriptor<'_>) -> bool {
        let (mut is_asked_for, mut is_excluded) = (false, true);
        for value in descriptor.values(self.key.as_bytes()) {
            if self.is_absent {
                return false;
            }
            let fit = self.fit(descriptor, value);
            is_asked_for |= fit.is_asked_for;
            is_excluded &= fit.is_excluded;
        }
        self.is_absent || (is_asked_for && !is_excluded)
    }

    /// Whether the first value fits, so that the cell has an override's variant.
    pub fn holds_for_first(&self, descriptor: &Descriptor<'_>) -> bool {
        match descriptor.value(self.key.as_bytes()) {
            Some(value) => !self.is_absent && self.fit(descriptor, value).is_met(),
            None => self.is_absent,
        }
    }

    /// Whether every value fits, so that a descriptor is exempt. The key must occur, unless its absence is
    /// the condition.
    pub fn holds_for_all(&self, descriptor: &Descriptor<'_>) -> bool {
        let mut values = descriptor.values(self.key.as_bytes());
        if self.is_absent {
            return values.next().is_none();
        }
        let mut is_there = false;
        values.all(|value| {
            is_there = true;
            self.fit(descriptor, value).is_met()
        }) && is_there
    }
}

/// The result of comparing a value with a condition.
struct Fit {
    is_asked_for: bool,
    is_excluded: bool,
}

impl Fit {
    fn is_met(&self) -> bool {
        self.is_asked_for && !self.is_excluded
    }
}

/// The patterns as they are shown, and the set of addresses that they stand for.
fn address_set(patterns: Vec<Pattern>) -> (Vec<Pattern>, AddressSet) {
    let mut shown = Vec::with_capacity(patterns.len());
    let (mut networks, mut others) = (Vec::new(), Vec::new());
    for pattern in patterns {
        let network = match &pattern {
            Pattern::Literal(text) => Network::parse(text).ok(),
            Pattern::Glob(_) => None,
        };
        match network {
            Some(network) => {
                // A network is shown as it was written. A limit's id depends on its patterns, and must not
                // change with how they are read.
                let is_one = matches!(&pattern, Pattern::Literal(text) if !text.contains('/'));
                shown.push(if is_one { Pattern::Literal(network.to_string()) } else { pattern });
                networks.push(network);
            }
            None => {
                shown.push(pattern.clone());
                others.push(pattern);
            }
        }
    }
    (shown, AddressSet { networks: networks.into_iter().collect(), patterns: others })
}

/// The address in a value, or `None` if the value holds no address. IPv4 in IPv6 is read as IPv4.
///
/// In a list with commas, the address is the `hop`-th from the last, which is 1. If the list is shorter,
/// the address is the first. A proxy appends the address of the client that called it (`X-Forwarded-For`;
/// RFC 7239, section 5.2). Spaces, brackets, a port and a zone are ignored.
pub fn address_of(value: &[u8], hop: u8) -> Option<IpAddr> {
    let text = std::str::from_utf8(value).ok()?;
    let address = match text.parse::<IpAddr>() {
        Ok(address) => address,
        Err(_) => within(text, hop)?,
    };
    Some(address.to_canonical())
}

#[cold]
fn within(text: &str, hop: u8) -> Option<IpAddr> {
    let one = text.rsplit(',').take(usize::from(hop.max(1))).last()?.trim();
    let (host, port) = match one.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        // A text with more than one colon is IPv6, which has a port only after brackets.
        None => match one.split_once(':') {
            Some((_, port)) if !port.contains(':') => one.split_at(one.len() - port.len() - 1),
            _ => (one, ""),
        },
    };
    if !port.is_empty() {
        port.strip_prefix(':')?.parse::<u16>().ok()?;
    }
    let host = host.split_once('%').map_or(host, |(host, _)| host);
    host.parse().ok()
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_absent {
            return write!(f, "{} absent", self.key);
        }
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
    /// For addresses: the prefix to count by, so that a client cannot change cells within its own network.
    pub prefix: Option<Prefix>,
    /// The entry's place in the descriptor, from 0, if the limit has a path. `None` for the first entry with
    /// the key.
    pub place: Option<usize>,
}

/// The number of leading bits of an address that make one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// For IPv4: 0 to 32.
    pub v4: u8,
    /// For IPv6: 0 to 128. 64 is one subnet, the least that a host may hold.
    pub v6: u8,
    /// The place of the address in a list, counted from the last, which is 1. The place is also the number
    /// of trusted proxies that append to the list.
    pub hop: u8,
}

impl By {
    /// The descriptor's value that counts; `None` without one.
    #[inline]
    pub fn value<'v>(&self, descriptor: &Descriptor<'v>) -> Option<&'v [u8]> {
        match self.place {
            None => descriptor.value(self.key.as_bytes()),
            Some(place) => descriptor.entries.get(place).map(|(_, value)| *value),
        }
    }

    /// The bytes that stand for a descriptor's first value of the key, or `None` without such a value. An
    /// address is cut to its prefix, and IPv4 in IPv6 is IPv4. All values without an address share one
    /// cell, since a client could make up as many as it likes.
    #[inline]
    pub fn canonical<'v>(&self, descriptor: &Descriptor<'v>) -> Option<Canonical<'v>> {
        let value = self.value(descriptor)?;
        Some(match self.prefix {
            None => Canonical::Value(value),
            Some(prefix) => prefix.canonical(descriptor.address_of(value, prefix.hop)),
        })
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
    /// A value without an address, where an address was expected.
    NoAddress,
}

impl Canonical<'_> {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Value(value) => value,
            Self::V4(network) => network,
            Self::V6(network) => network,
            Self::NoAddress => b"",
        }
    }
}

impl Prefix {
    fn canonical(self, address: Option<IpAddr>) -> Canonical<'static> {
        match address {
            Some(IpAddr::V4(address)) => Canonical::V4(self.cut_v4(address).octets()),
            Some(IpAddr::V6(address)) => Canonical::V6(self.cut_v6(address).octets()),
            None => Canonical::NoAddress,
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
    fn a_list_matches_any_of_its_values_and_exclusions_win() {
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
        assert!(!all_but.holds(&Descriptor::new(&entries, None)));
    }

    /// Envoy makes such descriptors from two actions with one key.
    #[test]
    fn a_repeated_key_matches_by_any_value_and_is_exempt_by_all() {
        for (patterns, values, holds, holds_for_all) in [
            (&["a"][..], &["a"][..], true, true),
            (&["a"], &["a", "b"], true, false),
            (&["a"], &["b", "a"], true, false),
            (&["a"], &["b", "c"], false, false),
            (&["a", "b"], &["a", "b"], true, true),
            (&["!a"], &["a", "b"], true, false),
            (&["!a"], &["a", "a"], false, false),
            (&["*", "!a"], &["b", "b"], true, true),
            (&["a"], &[], false, false),
        ] {
            let condition = Condition::new("k", patterns.iter().copied());
            let entries: Vec<(&[u8], &[u8])> =
                values.iter().map(|value| (&b"k"[..], value.as_bytes())).collect();
            let descriptor = Descriptor::new(&entries, None);
            let said = (condition.holds(&descriptor), condition.holds_for_all(&descriptor));
            assert_eq!(said, (holds, holds_for_all), "{patterns:?} of {values:?}");
            let first = values.first().is_some_and(|value| condition.accepts(value.as_bytes()));
            assert_eq!(condition.holds_for_first(&descriptor), first, "{patterns:?} of {values:?}");
        }
    }

    /// The bytes that stand for a value.
    fn bytes_of(by: &By, value: &[u8]) -> Vec<u8> {
        let entries = [(by.key.as_bytes(), value)];
        by.canonical(&Descriptor::new(&entries, None)).expect("the key is there").bytes().to_vec()
    }

    /// An address read from one value, or from one place of a list, is never used for another.
    #[test]
    fn a_cached_address_is_used_only_for_its_own_value_and_hop() {
        let (list, other) = (&b"1.1.1.1, 2.2.2.2"[..], &b"1.1.1.1, 3.3.3.3"[..]);
        let entries = [(&b"ip"[..], list), (&b"via"[..], other), (&b"ip"[..], &list[..7])];
        let descriptor = Descriptor::new(&entries, None);
        let is = |address: &str, hop, key| {
            Condition::new(key, [address]).of_addresses(hop).holds_for_first(&descriptor)
        };
        assert!(is("2.2.2.2", 1, "ip") && is("1.1.1.1", 2, "ip") && is("2.2.2.2", 1, "ip"));
        assert!(is("3.3.3.3", 1, "via") && is("1.1.1.1", 2, "via") && !is("2.2.2.2", 1, "via"));
        assert!(Condition::new("ip", ["1.1.1.1"]).of_addresses(1).holds(&descriptor), "by the second value");
        assert!(!Condition::new("ip", ["1.1.1.1"]).of_addresses(1).holds_for_all(&descriptor));
    }

    #[test]
    fn an_address_is_the_same_in_every_notation() {
        let by = By { key: "ip".into(), prefix: Some(Prefix { v4: 32, v6: 128, hop: 1 }), place: None };
        let canonical = |value: &str| bytes_of(&by, value.as_bytes());
        for (one, others) in [
            (
                "203.0.113.7",
                &[
                    "203.0.113.7:4711",
                    " 203.0.113.7 ",
                    "::ffff:203.0.113.7",
                    "9.9.9.9, 203.0.113.7",
                    "[::ffff:203.0.113.7]:80",
                ][..],
            ),
            (
                "2001:db8::1",
                &["[2001:db8::1]", "[2001:db8::1]:80", "2001:DB8:0::1", "10.0.0.1,\t[2001:db8::1]:9"],
            ),
            ("fe80::1", &["fe80::1%eth0", "[fe80::1%25eth0]:80"]),
        ] {
            for other in others {
                assert_eq!(canonical(one), canonical(other), "{other}");
            }
        }
        let nonsense = [
            "",
            "garbage",
            "010.0.0.1",
            "1.2.3",
            "1.2.3.4:",
            "1.2.3.4:x",
            "1.2.3.4:99999",
            "[::1",
            "[::1]x",
            "1.2.3.4,",
            "%",
            ",",
        ];
        for text in nonsense {
            assert!(canonical(text).is_empty(), "{text:?}");
        }
        assert!(bytes_of(&by, b"\xff").is_empty());
    }

    #[test]
    fn in_a_forwarded_list_the_trusted_proxys_address_counts() {
        let list = b"6.6.6.6, 1.1.1.1, 2.2.2.2, 3.3.3.3";
        for (hop, address) in
            [(0, "3.3.3.3"), (1, "3.3.3.3"), (2, "2.2.2.2"), (3, "1.1.1.1"), (4, "6.6.6.6"), (9, "6.6.6.6")]
        {
            assert_eq!(
                address_of(list, hop).map(|found| found.to_string()).as_deref(),
                Some(address),
                "{hop}"
            );
        }
        let exempt = Condition::new("ip", ["::ffff:2.2.2.2", "2001:DB8::0:1"]).of_addresses(2);
        let entries = [(&b"ip"[..], &list[..])];
        assert!(exempt.holds_for_all(&Descriptor::new(&entries, None)));
        let entries = [(&b"ip"[..], &b"[2001:db8::1]:80"[..])];
        assert!(exempt.holds(&Descriptor::new(&entries, None)));
    }

    #[test]
    fn conditions_distinguish_networks_globs_and_missing_addresses() {
        let condition = |patterns: &[&str]| Condition::new("ip", patterns.iter().copied()).of_addresses(1);
        for (patterns, value, fits) in [
            (&["10.0.0.0/8"][..], "10.255.0.1", true),
            (&["10.0.0.0/8"], "[::ffff:10.1.2.3]:99", true),
            (&["10.0.0.0/8"], "11.0.0.1", false),
            (&["10.0.0.0/8"], "garbage", false),
            (&["*", "!10.0.0.0/8", "!2001:db8::/32"], "10.0.0.1:80", false),
            (&["*", "!10.0.0.0/8", "!2001:db8::/32"], "2001:db8:1::1", false),
            (&["*", "!10.0.0.0/8"], "garbage", true),
            (&["192.168.*"], "192.168.7.7", true),
            (&[""], "garbage", true),
            (&[""], "10.0.0.1", false),
            (&["!"], "garbage", false),
        ] {
            assert_eq!(condition(patterns).accepts(value.as_bytes()), fits, "{value} by {patterns:?}");
        }
        for wrong in ["10.0.0.1/8", "10.0.0", "office", "!10.0.0.0/99"] {
            Condition::new("ip", [wrong]).of_addresses(1).misfit().expect(wrong);
        }
    }

    #[test]
    fn a_condition_can_require_that_a_key_is_absent() {
        let absent = Condition::absent("svc");
        let of = |entries: &[(&[u8], &[u8])]| {
            let descriptor = Descriptor::new(entries, None);
            [
                absent.holds(&descriptor),
                absent.holds_for_all(&descriptor),
                absent.holds_for_first(&descriptor),
            ]
        };
        assert_eq!(of(&[(b"client", b"a")]), [true; 3]);
        assert_eq!(of(&[(b"client", b"a"), (b"svc", b"")]), [false; 3]);
        assert_eq!(absent.to_string(), "svc absent");
    }

    #[test]
    fn addresses_count_by_prefix() {
        let by = By { key: "ip".into(), prefix: Some(Prefix { v4: 24, v6: 64, hop: 1 }), place: None };
        let canonical = |value: &str| bytes_of(&by, value.as_bytes());
        assert_eq!(canonical("10.1.2.3"), canonical("10.1.2.200"));
        assert_ne!(canonical("10.1.2.3"), canonical("10.1.3.3"));
        assert_eq!(canonical("::ffff:10.1.2.3"), canonical("10.1.2.3"));
        assert_eq!(canonical("2001:db8::1"), canonical("2001:DB8:0:0:ffff::1"));
        assert_ne!(canonical("2001:db8::1"), canonical("2001:db8:0:1::1"));
        assert_eq!(canonical("unix:"), canonical("no address either"));
        let whole = Prefix { v4: 0, v6: 0, hop: 1 };
        assert_eq!(whole.cut_v4(Ipv4Addr::BROADCAST), Ipv4Addr::UNSPECIFIED);
    }
}
