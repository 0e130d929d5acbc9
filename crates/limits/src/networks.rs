//! Sets of addresses, given by their networks (CIDR: RFC 4632; RFC 4291, section 2.3).

use std::{fmt, net::IpAddr};

/// A network: all addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The network's first address.
    address: IpAddr,
    /// The number of common leading bits: at most 32, or 128 for IPv6.
    bits: u8,
}

impl Network {
    /// Reads `10.0.0.0/8`, `2001:db8::/32`, or one address. IPv4 in IPv6 is read as IPv4.
    ///
    /// # Errors
    /// What is wrong with the text, and how to write it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fault = || format!("{text:?} is no address and no network: write 203.0.113.7 or 10.0.0.0/8");
        let (host, bits) = match text.split_once('/') {
            Some((host, bits)) if !bits.starts_with('+') => (host, Some(bits.parse().map_err(|_| fault())?)),
            Some(_) => return Err(fault()),
            None => (text, None),
        };
        let written: IpAddr = host.parse().map_err(|_| fault())?;
        let whole = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(whole(written));
        if bits > whole(written) {
            return Err(format!("{text:?} has more than {} bits", whole(written)));
        }
        let network = match (written, written.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(address)) if bits >= 96 => {
                Self { address: address.into(), bits: bits - 96 }
            }
            _ => Self { address: written, bits },
        };
        let first = network.first();
        if first != network.address {
            return Err(format!("{text:?} names a host in a network: write {first}/{}", network.bits));
        }
        Ok(network)
    }

    fn first(self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => IpAddr::V4((address.to_bits() & self.mask_v4()).into()),
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() & self.mask_v6()).into()),
        }
    }

    fn mask_v4(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0)
    }

    fn mask_v6(self) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_one = self.bits == if self.address.is_ipv4() { 32 } else { 128 };
        if is_one { self.address.fmt(f) } else { write!(f, "{}/{}", self.address, self.bits) }
    }
}

/// A set of networks in which an address is looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

impl Networks {
    /// Whether one of the networks contains the address.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.has(address.to_bits()),
            IpAddr::V6(address) => self.v6.has(address.to_bits()),
        }
    }
}

impl FromIterator<Network> for Networks {
    fn from_iter<I: IntoIterator<Item = Network>>(networks: I) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            match network.address {
                IpAddr::V4(address) => v4.push((address.to_bits(), address.to_bits() | !network.mask_v4())),
                IpAddr::V6(address) => v6.push((address.to_bits(), address.to_bits() | !network.mask_v6())),
            }
        }
        Self { v4: Ranges::new(v4), v6: Ranges::new(v6) }
    }
}

/// An address as a number.
trait Bits: Copy + Ord {
    /// The number of the slice of 2^`shift` addresses that contains this address, counted from a lower
    /// address.
    fn slice(self, lowest: Self, shift: u32) -> usize;
}

impl Bits for u32 {
    #[inline]
    fn slice(self, lowest: Self, shift: u32) -> usize {
        ((self - lowest) >> shift) as usize
    }
}

impl Bits for u128 {
    #[inline]
    fn slice(self, lowest: Self, shift: u32) -> usize {
        usize::try_from((self - lowest) >> shift).unwrap_or(usize::MAX)
    }
}

/// Ranges of addresses. No range lies in another. The span of all ranges is cut into slices of one size,
/// about as many as there are ranges, so that a binary search looks at few ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges<T> {
    /// Each range's first and last address, in order.
    ranges: Vec<(T, T)>,
    /// The number of ranges that begin before each slice, and at the end the number of all ranges.
    before: Vec<u32>,
    /// The number of addresses in a slice, as a power of two.
    shift: u32,
}

impl<T: Bits> Ranges<T> {
    fn new(mut ranges: Vec<(T, T)>) -> Self {
        ranges.sort_unstable_by_key(|(first, last)| (*first, std::cmp::Reverse(*last)));
        // Two networks overlap only if one lies in the other.
        ranges.dedup_by(|next, kept| next.1 <= kept.1);
        let (Some((lowest, _)), Some((_, highest))) = (ranges.first().copied(), ranges.last().copied())
        else {
            return Self { ranges, before: Vec::new(), shift: 0 };
        };
        // With two slices, a shift by all bits but one is enough for any span.
        let slices_max = 2 * ranges.len().next_power_of_two();
        let mut shift = 0;
        while highest.slice(lowest, shift) >= slices_max {
            shift += 1;
        }
        let begin_before =
            |slice| ranges.partition_point(|range| range.0.slice(lowest, shift) < slice) as u32;
        let before = (0..=highest.slice(lowest, shift) + 1).map(begin_before).collect();
        Self { ranges, before, shift }
    }

    #[inline]
    fn has(&self, address: T) -> bool {
        let Some((lowest, _)) = self.ranges.first().filter(|(lowest, _)| *lowest <= address) else {
            return false;
        };
        let slice = address.slice(*lowest, self.shift);
        let Some(&[before, until]) = self.before.get(slice..).and_then(|slices| slices.first_chunk()) else {
            return false;
        };
        let in_slice = &self.ranges[before as usize..until as usize];
        let begun = before as usize + in_slice.partition_point(|(first, _)| *first <= address);
        begun > 0 && address <= self.ranges[begun - 1].1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn networks_are_read_and_wrong_ones_refused_with_a_suggestion() {
        for (text, written) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("203.0.113.7", "203.0.113.7"),
            ("203.0.113.7/32", "203.0.113.7"),
            ("2001:DB8:0::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(Network::parse(text).map(|network| network.to_string()).as_deref(), Ok(written));
        }
        for (text, mend) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("2001:db8::1/64", "2001:db8::/64"),
            ("10.0.0.0/33", "more than 32"),
            ("::/129", "more than 128"),
            ("10.0.0.0/", "write"),
            ("10.0.0.0/+8", "write"),
            ("10.0.0/8", "write"),
            ("garbage", "write"),
            ("", "write"),
        ] {
            let fault = Network::parse(text).expect_err(text);
            assert!(fault.contains(mend), "{fault}");
        }
    }

    proptest! {
        /// The reference: two addresses share a network if their first bits are equal.
        #[test]
        fn a_search_agrees_with_a_linear_scan(
            written in prop::collection::vec((any::<u8>(), 0..=8u8, any::<bool>()), 0..20),
            asked in any::<u8>(),
        ) {
            let networks: Vec<Network> = written.iter().map(|(first, bits, is_v6)| {
                let first = first & u8::MAX.checked_shl(8 - u32::from(*bits)).unwrap_or(0);
                let text = if *is_v6 { format!("{first:x}00::/{bits}") } else { format!("{first}.0.0.0/{bits}") };
                Network::parse(&text).expect("a network")
            }).collect();
            let set: Networks = networks.iter().copied().collect();
            for (address, is_v6) in [(format!("{asked}.255.0.1"), false), (format!("{asked:x}ff::1"), true)] {
                let walk = written.iter().any(|(first, bits, v6)| {
                    *v6 == is_v6 && (first ^ asked).checked_shr(8 - u32::from(*bits)).unwrap_or(0) == 0
                });
                prop_assert_eq!(set.contains(address.parse().expect("an address")), walk, "{}", address);
            }
        }

        /// Looks up the edges of networks of every size that lie in clumps.
        #[test]
        fn edges_of_clustered_networks_are_found(written in prop::collection::vec((any::<u32>(), 0..=32u32, 0..3u32), 1..60)) {
            let starts: Vec<(u32, u32)> = written.iter().map(|(address, bits, clump)| {
                let address = [*address, 0x0A00_0000 | address & 0xFFFF, 0xFFFF_FF00 | address & 0xFF][*clump as usize];
                (address & u32::MAX.checked_shl(32 - bits).unwrap_or(0), *bits)
            }).collect();
            let network = |(address, bits): &(u32, u32)| Network { address: IpAddr::V4((*address).into()), bits: *bits as u8 };
            let set: Networks = starts.iter().map(network).collect();
            let wide = |address: u32| u128::from(address) << 77 | u128::from(address);
            let ranges = |(address, bits): &(u32, u32)| (wide(*address), wide(*address | u32::MAX.checked_shr(*bits).unwrap_or(0)));
            let set_v6 = Ranges::new(starts.iter().map(ranges).collect());
            for (address, bits) in &starts {
                let last = address | u32::MAX.checked_shr(*bits).unwrap_or(0);
                for asked in [*address, last, address.wrapping_sub(1), last.wrapping_add(1)] {
                    let walk = starts.iter().any(|(address, bits)| (address ^ asked).checked_shr(32 - bits).unwrap_or(0) == 0);
                    prop_assert_eq!(set.contains(IpAddr::V4(asked.into())), walk, "{}", asked);
                    prop_assert_eq!(set_v6.has(wide(asked)), walk, "{}", asked);
                }
            }
        }
    }
}
