//! Makes a request that may be asked from what came over a wire, or says why it may not.

use std::num::NonZeroU32;

use acequia_api::wire::{LimitOverride, MAX_ENTRIES as ENTRIES_MAX, WireRequest};
use acequia_limits::{
    Request,
    descriptor::{CallersLimit, Span},
};
use acequia_node::DESCRIPTORS_MAX;

use crate::ratelimit::RatelimitUnit;

/// The most bytes in a key or a value. This is more than the 60 KiB that Envoy allows for all headers of a
/// request together: a caller must not be able to make its own header too long to be limited.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// The fault of a request, for the caller to mend. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// No domain.
    #[error("the domain is empty: name the domain whose limits apply")]
    EmptyDomain,
    /// No descriptors.
    #[error("no descriptors: send at least one, with at least one entry")]
    NoDescriptors,
    /// Too many descriptors.
    #[error("{0} descriptors: at most {DESCRIPTORS_MAX} in a request")]
    TooManyDescriptors(usize),
    /// Too many entries.
    #[error("descriptor {descriptor} has {entries} entries: at most {ENTRIES_MAX}")]
    TooManyEntries {
        /// The descriptor's number, from 0.
        descriptor: usize,
        /// How many it has.
        entries: usize,
    },
    /// A descriptor without entries.
    #[error("descriptor {0} has no entries: send at least one key and value")]
    EmptyDescriptor(usize),
    /// An entry without a key.
    #[error("descriptor {0} has an entry with an empty key")]
    EmptyKey(usize),
    /// A key or a value that is too long.
    #[error("descriptor {descriptor} has a key or a value of {bytes} bytes: at most {VALUE_BYTES_MAX}")]
    TooLong {
        /// The descriptor's number, from 0.
        descriptor: usize,
        /// How long it is.
        bytes: usize,
    },
    /// A control character.
    #[error(
        "descriptor {descriptor} has a control character (byte {byte:#04x}) in a key or a value: encode it"
    )]
    ControlCharacter {
        /// The descriptor's number, from 0.
        descriptor: usize,
        /// The character.
        byte: u8,
    },
    /// The id is invalid.
    #[error("an id has 1 to {} bytes, and no control characters", crate::charges::ID_BYTES_MAX)]
    Id,
    /// The lifetime of a reservation is out of range.
    #[error("a reservation of {0} ms: it lives 1 ms to 3600000 ms")]
    Reserve(u64),
    /// Descriptors have costs of their own.
    #[error("a reservation of at most a cost has one cost: leave out those of descriptors")]
    AtMost,
    /// The cost is leased, and a limit counts requests under way.
    #[error(
        "a limit counts requests under way, so `at_most` leases none of them: ask Check for each request"
    )]
    LeaseOfSlots,
    /// The node remembers no charges.
    #[error(
        "hits are counted in a Redis here, and no charge is remembered: leave out `id`, `refundable` and `reserve`, and \
         streams of checks"
    )]
    Counted,
    /// The node remembers no reservations.
    #[error(
        "hits are counted in a Redis here, and nothing can be set apart: ask CheckRateLimit, and Report the cost"
    )]
    CountedReserve,
    /// Another question had this id, or its charge was given back.
    #[error(
        "this id was used for another request, or was refunded, committed with less or lapsed: such a request needs another id"
    )]
    IdReused,
    /// A stream has ids of charges.
    #[error("a stream remembers no charges: ask Check with `id`, `refundable` or `reserve`")]
    RecordInStream,
    /// The cost is 0.
    #[error(
        "a cost of 0 charges nothing, and no limit of the domain has `expect`: leave it out for 1, or ask Peek"
    )]
    ZeroCost,
    /// A report is meant to be settled later.
    #[error("a report is final: leave out `reserve` and `refundable`")]
    ReportSettles,
}

impl BadRequest {
    /// Whether the request has more of something than is allowed.
    pub(crate) const fn is_too_large(&self) -> bool {
        matches!(self, Self::TooManyDescriptors(_) | Self::TooManyEntries { .. } | Self::TooLong { .. })
    }
}

/// Checks a request of Envoy's. A cost of 0 in a descriptor looks without charging. If all descriptors have
/// costs of their own, the largest is the cost of the request, which a commit is measured by.
pub fn from_envoy<'a>(mut wire: WireRequest<'a>) -> Result<Request<'a>, BadRequest> {
    let mut own = wire.descriptors.iter().map(|descriptor| descriptor.cost);
    wire.cost = own.try_fold(0, |most, own| own.map(|own| most.max(own))).or(wire.cost);
    let request = request(wire, |hits| Ok(hits.filter(|hits| *hits > 0).unwrap_or(1)))?;
    check_sizes(&request)?;
    Ok(request)
}

/// Checks a request of our own API. A cost is at least 1, unless some limit may hold units for a cost of 0.
pub fn from_check<'a>(
    wire: WireRequest<'a>,
    has_holds: impl Fn(&[u8]) -> bool,
) -> Result<Request<'a>, BadRequest> {
    let domain = wire.domain;
    if wire.descriptors.iter().any(|descriptor| descriptor.cost == Some(0)) && !has_holds(domain) {
        return Err(BadRequest::ZeroCost);
    }
    let request = request(wire, |cost| match cost {
        Some(0) if !has_holds(domain) => Err(BadRequest::ZeroCost),
        cost => Ok(cost.unwrap_or(1)),
    })?;
    check_request(&request)?;
    Ok(request)
}

/// Checks a report. A cost of 0 records nothing.
pub fn from_report<'a>(wire: WireRequest<'a>) -> Result<Request<'a>, BadRequest> {
    let request = request(wire, |cost| Ok(cost.unwrap_or(1)))?;
    check_request(&request)?;
    Ok(request)
}

/// The limit that a caller names; `None` if its unit of time is unknown, or its window is too long to be written.
pub(crate) fn callers_limit(named: LimitOverride) -> Option<CallersLimit> {
    let unit_s = RatelimitUnit::numbered(named.unit)?.seconds();
    let period_s = unit_s.checked_mul(named.unit_multiplier.max(1)).and_then(NonZeroU32::new)?;
    Some(CallersLimit { units: named.requests_per_unit, period_s })
}

fn request<'a>(
    wire: WireRequest<'a>,
    cost: impl FnOnce(Option<u64>) -> Result<u64, BadRequest>,
) -> Result<Request<'a>, BadRequest> {
    let spans = wire.descriptors.iter().map(|d| Span {
        start: d.entries_start,
        end: d.entries_end,
        // A descriptor that gives hits back charges nothing.
        cost: if d.is_negative_hits { Some(0) } else { d.cost },
        limit: d.limit_override.and_then(callers_limit),
    });
    Ok(Request { domain: wire.domain, cost: cost(wire.cost)?, spans: spans.collect(), entries: wire.entries })
}

/// Checks a request whose sender can mend it: its keys and values must be text.
pub fn check_request(request: &Request<'_>) -> Result<(), BadRequest> {
    check_sizes(request)?;
    for (number, descriptor) in request.descriptors().enumerate() {
        for (key, value) in descriptor.entries {
            check_text(number, key)?;
            check_text(number, value)?;
        }
    }
    Ok(())
}

/// Checks what all protocols have in common. Where clients choose the values this is the only check, since
/// values may hold any bytes.
pub(crate) fn check_sizes(request: &Request<'_>) -> Result<(), BadRequest> {
    if request.domain.is_empty() {
        return Err(BadRequest::EmptyDomain);
    }
    if request.spans.is_empty() {
        return Err(BadRequest::NoDescriptors);
    }
    if request.spans.len() > DESCRIPTORS_MAX {
        return Err(BadRequest::TooManyDescriptors(request.spans.len()));
    }
    for (number, descriptor) in request.descriptors().enumerate() {
        if descriptor.entries.is_empty() {
            return Err(BadRequest::EmptyDescriptor(number));
        }
        if descriptor.entries.len() > ENTRIES_MAX {
            return Err(BadRequest::TooManyEntries { descriptor: number, entries: descriptor.entries.len() });
        }
        for (key, value) in descriptor.entries {
            if key.is_empty() {
                return Err(BadRequest::EmptyKey(number));
            }
            for text in [key, value] {
                if text.len() > VALUE_BYTES_MAX {
                    return Err(BadRequest::TooLong { descriptor: number, bytes: text.len() });
                }
            }
        }
    }
    Ok(())
}

/// Tabs may stand in headers. Other control characters are no text, and would break logs.
#[inline]
fn check_text(descriptor: usize, text: &[u8]) -> Result<(), BadRequest> {
    match text.iter().find(|byte| (**byte < 0x20 && **byte != b'\t') || **byte == 0x7f) {
        Some(byte) => Err(BadRequest::ControlCharacter { descriptor, byte: *byte }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use acequia_api::wire::WireDescriptor;

    use super::*;

    fn wire<'a>(entries: &[(&'a [u8], &'a [u8])]) -> WireRequest<'a> {
        let descriptor = WireDescriptor { entries_end: entries.len() as u32, ..WireDescriptor::default() };
        WireRequest {
            domain: b"shop",
            entries: entries.iter().copied().collect(),
            descriptors: [descriptor].into_iter().collect(),
            ..WireRequest::default()
        }
    }

    #[test]
    fn a_malformed_request_is_refused_with_its_fault() {
        let good = wire(&[(b"api_key", b"k1")]);
        assert!(from_check(good.clone(), |_| false).is_ok());
        let no_domain = WireRequest { domain: b"", ..good.clone() };
        assert_eq!(from_check(no_domain, |_| false), Err(BadRequest::EmptyDomain));
        let none = WireRequest { descriptors: Default::default(), ..good.clone() };
        assert_eq!(from_envoy(none), Err(BadRequest::NoDescriptors));
        assert_eq!(from_envoy(wire(&[])), Err(BadRequest::EmptyDescriptor(0)));
        assert_eq!(from_envoy(wire(&[(b"", b"x")])), Err(BadRequest::EmptyKey(0)));
        let long = vec![b'x'; 1 << 20];
        assert!(matches!(from_envoy(wire(&[(b"k", &long)])), Err(BadRequest::TooLong { .. })));
        let byte = 0x1b;
        assert_eq!(
            from_check(wire(&[(b"k", b"\x1b[2J")]), |_| false),
            Err(BadRequest::ControlCharacter { descriptor: 0, byte })
        );
        assert!(
            from_envoy(wire(&[(b"k", b"\x1b[2J")])).is_ok(),
            "a client chose it, and an error would let it pass"
        );
        assert!(from_envoy(wire(&[(b"k", b"tabs\tand \xff bytes")])).is_ok());
    }

    #[test]
    fn a_zero_cost_is_refused_by_check_and_is_a_peek_for_envoy() {
        let mut request = wire(&[(b"k", b"v")]);
        request.cost = Some(0);
        assert_eq!(from_check(request.clone(), |_| false), Err(BadRequest::ZeroCost));
        assert_eq!(from_envoy(request.clone()).map(|r| r.cost), Ok(1));
        request.cost = None;
        assert_eq!(
            from_check(WireRequest { cost: Some(0), ..request.clone() }, |_| true).map(|r| r.cost),
            Ok(0)
        );
        request.descriptors[0].cost = Some(0);
        assert_eq!(from_check(request.clone(), |_| false), Err(BadRequest::ZeroCost));
        assert!(from_check(request.clone(), |_| true).is_ok(), "a limit may hold what it will cost");
        assert_eq!(from_envoy(request).map(|r| (r.spans[0].cost, r.cost)), Ok((Some(0), 1)));
    }

    #[test]
    fn a_request_costs_the_most_of_its_descriptors_if_all_have_costs() {
        for (own, all, cost) in [
            ([Some(600), Some(3)], None, 600),
            ([Some(600), Some(3)], Some(7), 600),
            ([Some(600), None], Some(7), 7),
            ([None, Some(600)], None, 1),
        ] {
            let mut request = wire(&[(b"k", b"v")]);
            request.cost = all;
            request.descriptors =
                own.map(|cost| WireDescriptor { cost, ..request.descriptors[0] }).into_iter().collect();
            assert_eq!(from_envoy(request).map(|request| request.cost), Ok(cost), "{own:?} {all:?}");
        }
    }
}
