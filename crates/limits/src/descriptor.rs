//! A request's own description, borrowed from the bytes that it came in.

use std::{cell::Cell, net::IpAddr, num::NonZeroU32};

use smallvec::SmallVec;

use crate::selector::address_of;

/// Descriptors in a request that need no allocation.
const DESCRIPTORS_INLINE: usize = 4;
/// Entries in a request that need no allocation.
const ENTRIES_INLINE: usize = 8;

/// A (key, value) pair. Both are bytes, not text: an HTTP header need not be UTF-8. If such a header were
/// refused without a decision, a proxy that fails open would let it through.
pub type Entry<'a> = (&'a [u8], &'a [u8]);

/// A request: may this pass?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request<'a> {
    /// The domain whose limits apply.
    pub domain: &'a [u8],
    /// The request's weight, in each limit's units; at least 1.
    pub cost: u64,
    /// The entries of all descriptors, one after another.
    pub entries: SmallVec<[Entry<'a>; ENTRIES_INLINE]>,
    /// The range of each descriptor's entries. All descriptors must pass.
    pub spans: SmallVec<[Span; DESCRIPTORS_INLINE]>,
}

/// The range of a descriptor's entries in its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The descriptor's first entry.
    pub start: u32,
    /// The first entry after the descriptor's own.
    pub end: u32,
    /// The request's weight for this descriptor. `None` for [`Request::cost`], and 0 to look without
    /// charging.
    pub cost: Option<u64>,
    /// The limit that the caller names for the descriptor.
    pub limit: Option<CallersLimit>,
}

/// A limit that a caller names for a descriptor, in the place of configured ones: so many units from one edge of a
/// window to the next. It counts where a limit has [`from_callers`](crate::limit::LimitSpec::from_callers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallersLimit {
    /// The units.
    pub units: u32,
    /// The length of the window, in seconds.
    pub period_s: NonZeroU32,
}

/// One thing to count, with its entries in any order. If a key occurs twice, a limit counts by its first
/// value. [`crate::selector::Condition`] says which descriptors the limit matches.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    /// The entries; at least one.
    pub entries: &'a [Entry<'a>],
    /// As [`Span::cost`].
    pub cost: Option<u64>,
    /// As [`Span::limit`].
    pub limit: Option<CallersLimit>,
    /// The last value that was read as an address. A limit often counts by such a value and compares it,
    /// too.
    address: Cell<Option<ReadAddress<'a>>>,
}

/// A value, the place in its list, and the address there, if any.
#[derive(Clone, Copy, Debug)]
struct ReadAddress<'a> {
    value: &'a [u8],
    hop: u8,
    address: Option<IpAddr>,
}

impl<'a> Request<'a> {
    /// A request of cost 1 with one descriptor.
    #[inline]
    pub fn new(domain: &'a str, pairs: &[(&'a str, &'a str)]) -> Self {
        let mut request = Self { domain: domain.as_bytes(), cost: 1, ..Self::default() };
        request.push(pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())), None);
        request
    }

    /// Adds a descriptor.
    #[inline]
    pub fn push(&mut self, entries: impl IntoIterator<Item = Entry<'a>>, cost: Option<u64>) {
        let start = self.entries.len() as u32;
        // Entries are pushed one by one: `extend` costs more than it saves on so few.
        for entry in entries {
            self.entries.push(entry);
        }
        self.spans.push(Span { start, end: self.entries.len() as u32, cost, limit: None });
    }

    /// The descriptors, in order.
    pub fn descriptors(&self) -> impl ExactSizeIterator<Item = Descriptor<'_>> {
        self.spans.iter().map(|span| Descriptor {
            limit: span.limit,
            ..Descriptor::new(&self.entries[span.start as usize..span.end as usize], span.cost)
        })
    }
}

impl<'a> Descriptor<'a> {
    /// A descriptor with these entries, and with this cost of its own ([`Span::cost`]).
    #[inline]
    pub fn new(entries: &'a [Entry<'a>], cost: Option<u64>) -> Self {
        Self { entries, cost, limit: None, address: Cell::new(None) }
    }

    /// The address in one of the descriptor's values, as [`address_of`] reads it.
    pub(crate) fn address_of(&self, value: &'a [u8], hop: u8) -> Option<IpAddr> {
        match self.address.get() {
            Some(read) if std::ptr::eq(read.value, value) && read.hop == hop => read.address,
            _ => {
                let address = address_of(value, hop);
                self.address.set(Some(ReadAddress { value, hop, address }));
                address
            }
        }
    }

    /// The values of a key, which may occur more than once.
    #[inline]
    pub fn values(&self, key: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        self.entries.iter().filter(move |(k, _)| *k == key).map(|(_, v)| *v)
    }

    /// The first value of a key.
    #[inline]
    pub fn value(&self, key: &[u8]) -> Option<&'a [u8]> {
        self.entries.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }
}
