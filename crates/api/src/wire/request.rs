use smallvec::SmallVec;

use super::{Malformed, Reader, WireType};

/// The most descriptors of a request. The operator's routes set the number, one for each rule that applies:
/// a handful. The bound keeps one request from blocking a thread.
pub const MAX_DESCRIPTORS: usize = 64;

/// The most entries of a descriptor. Matching looks at each entry once for every key that a limit names.
pub const MAX_ENTRIES: usize = 64;

/// The most checks of a batch: the number that `limiter.proto` promises.
pub const MAX_CHECKS: usize = 1000;

/// The trailer with which a node ends a stream of checks, and says that it decided nothing that it did not
/// answer. `limiter.proto` promises this name.
pub const REST_UNDECIDED: &str = "acequia-rest-undecided";

/// A key and its value. Neither is checked to be UTF-8.
pub type Entry<'a> = (&'a [u8], &'a [u8]);

/// A request of either API, borrowed from the bytes it came in.
///
/// Reading into a used request keeps its memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WireRequest<'a> {
    /// The domain whose limits apply; empty if the request names none.
    pub domain: &'a [u8],
    /// The entries of all descriptors, one descriptor after the other.
    pub entries: SmallVec<[Entry<'a>; 8]>,
    /// The descriptors, in the order of the request.
    pub descriptors: SmallVec<[WireDescriptor; 4]>,
    /// The request's weight. From Envoy never `Some(0)`: there 0 and absent are equal.
    pub cost: Option<u64>,
    /// Whether to list the limits in the answer even if the request is allowed. From Envoy never.
    pub detail: bool,
    /// How the charge is recorded. From Envoy not at all.
    pub record: WireRecord<'a>,
}

/// How a charge is recorded: the fields `id`, `refundable` and `reserve` of an `acequia.v1.CheckRequest`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WireRecord<'a> {
    /// The caller's id for the request; empty if there is none.
    pub id: &'a [u8],
    /// Whether the charge is refundable.
    pub refundable: bool,
    /// The reservation, if there is one.
    pub reserve: Option<WireReserve>,
}

/// An `acequia.v1.Reserve`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WireReserve {
    /// Milliseconds until the reservation lapses.
    pub ttl_ms: u64,
    /// The number of an `acequia.v1.Lapse`, or an unknown number.
    pub on_lapse: i32,
    /// Whether less than the asked cost may be reserved.
    pub at_most: bool,
}

/// One descriptor of a [`WireRequest`], without its entries: see [`WireRequest::entries_of`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WireDescriptor {
    /// Index of the first entry in [`WireRequest::entries`].
    pub entries_start: u32,
    /// Index after the last entry.
    pub entries_end: u32,
    /// The request's weight for this descriptor: Envoy's `hits_addend`, Acequia's `cost`.
    pub cost: Option<u64>,
    /// Envoy only: the cost is to be given back, not spent.
    pub is_negative_hits: bool,
    /// Envoy only: the limit that applies in place of the configured one.
    pub limit_override: Option<LimitOverride>,
}

/// Envoy's `RateLimitDescriptor.RateLimitOverride`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitOverride {
    /// The number of requests in a unit of time.
    pub requests_per_unit: u32,
    /// The number of an `envoy.type.v3.RateLimitUnit`, or an unknown number.
    pub unit: i32,
    /// How many units of time the window lasts; 0 and 1 mean one. Newer than the messages of this crate.
    pub unit_multiplier: u32,
}

/// A `google.protobuf.Duration`, sound or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WireDuration {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds beside them.
    pub nanos: i32,
}

impl<'a> WireRequest<'a> {
    /// The entries of one of [`descriptors`](Self::descriptors).
    pub fn entries_of(&self, descriptor: &WireDescriptor) -> &[Entry<'a>] {
        &self.entries[descriptor.entries_start as usize..descriptor.entries_end as usize]
    }

    fn clear(&mut self) {
        self.domain = &[];
        self.entries.clear();
        self.descriptors.clear();
        self.cost = None;
        self.detail = false;
        self.record = WireRecord::default();
    }

    fn push_descriptor(
        &mut self,
        descriptor: Reader<'a>,
        offset: usize,
        read: impl FnOnce(Reader<'a>, &mut Self) -> Result<WireDescriptor, Malformed>,
    ) -> Result<(), Malformed> {
        if self.descriptors.len() == MAX_DESCRIPTORS {
            return Err(Malformed::TooManyDescriptors { offset });
        }
        let entries_start = self.entries.len() as u32;
        let descriptor = read(descriptor, self)?;
        let entries_end = self.entries.len() as u32;
        self.descriptors.push(WireDescriptor { entries_start, entries_end, ..descriptor });
        Ok(())
    }
}

/// Reads an `envoy.service.ratelimit.v3.RateLimitRequest`. After an error, the content of `request` is
/// unspecified.
pub fn read_rate_limit_request<'a>(
    message: &'a [u8],
    request: &mut WireRequest<'a>,
) -> Result<(), Malformed> {
    request.clear();
    let mut reader = Reader::new(message);
    while let Some(field) = reader.field()? {
        match field.number {
            1 => request.domain = reader.bytes(field)?,
            2 => request.push_descriptor(reader.message(field)?, field.offset, read_rate_limit_descriptor)?,
            // A uint32 is the low half of the varint on the wire.
            3 => request.cost = Some(u64::from(reader.varint(field)? as u32)).filter(|&cost| cost != 0),
            _ => reader.skip(field)?,
        }
    }
    Ok(())
}

/// Reads an `acequia.v1.CheckRequest`. After an error, the content of `request` is unspecified.
pub fn read_check_request<'a>(message: &'a [u8], request: &mut WireRequest<'a>) -> Result<(), Malformed> {
    request.clear();
    let mut reader = Reader::new(message);
    while let Some(field) = reader.field()? {
        match field.number {
            1 => request.domain = reader.bytes(field)?,
            2 => request.push_descriptor(reader.message(field)?, field.offset, read_check_descriptor)?,
            3 => request.cost = Some(reader.varint(field)?),
            4 => request.detail = reader.varint(field)? != 0,
            5 => request.record.id = reader.bytes(field)?,
            6 => request.record.refundable = reader.varint(field)? != 0,
            7 => read_reserve(reader.message(field)?, request.record.reserve.get_or_insert_default())?,
            _ => reader.skip(field)?,
        }
    }
    Ok(())
}

/// Reads a `kuadrant.service.ratelimit.v1.ReserveRequest`: its amount is the request's cost. Returns the time after
/// which the reservation lapses. After an error, the content of `request` is unspecified.
pub fn read_reserve_request<'a>(
    message: &'a [u8],
    request: &mut WireRequest<'a>,
) -> Result<Option<WireDuration>, Malformed> {
    request.clear();
    request.cost = Some(0);
    let mut ttl = None;
    let mut reader = Reader::new(message);
    while let Some(field) = reader.field()? {
        match field.number {
            1 => request.domain = reader.bytes(field)?,
            2 => request.push_descriptor(reader.message(field)?, field.offset, read_rate_limit_descriptor)?,
            3 => request.cost = Some(reader.varint(field)?),
            4 => read_duration(reader.message(field)?, ttl.get_or_insert_default())?,
            _ => reader.skip(field)?,
        }
    }
    Ok(ttl)
}

/// Reads a `kuadrant.service.ratelimit.v1.CommitRequest`: its amount is the request's cost, and the reservation is the
/// id of its record. After an error, the content of `request` is unspecified.
pub fn read_commit_request<'a>(message: &'a [u8], request: &mut WireRequest<'a>) -> Result<(), Malformed> {
    request.clear();
    request.cost = Some(0);
    let mut reader = Reader::new(message);
    while let Some(field) = reader.field()? {
        match field.number {
            1 => request.domain = reader.bytes(field)?,
            2 => request.push_descriptor(reader.message(field)?, field.offset, read_rate_limit_descriptor)?,
            3 => request.record.id = reader.bytes(field)?,
            4 => request.cost = Some(reader.varint(field)?),
            _ => reader.skip(field)?,
        }
    }
    Ok(())
}

/// Reads an `acequia.v1.CheckBatch`: yields the bytes of each check, for [`read_check_request`].
///
/// A fault in the batch shows only when the iteration reaches it. To refuse a faulty batch as a whole, go
/// through a clone of the iterator first.
pub fn read_check_batch(message: &[u8]) -> Checks<'_> {
    Checks { reader: Reader::new(message), taken: 0 }
}

/// The checks of a batch; ends after the first error. See [`read_check_batch`].
#[derive(Debug, Clone)]
pub struct Checks<'a> {
    reader: Reader<'a>,
    taken: usize,
}

impl<'a> Checks<'a> {
    fn advance(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        while let Some(field) = self.reader.field()? {
            match field.number {
                1 if self.taken == MAX_CHECKS => {
                    return Err(Malformed::TooManyChecks { offset: field.offset });
                }
                1 => {
                    self.taken += 1;
                    return self.reader.bytes(field).map(Some);
                }
                _ => self.reader.skip(field)?,
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Checks<'a> {
    type Item = Result<&'a [u8], Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let check = self.advance();
        if check.is_err() {
            self.reader = Reader::new(&[]);
        }
        check.transpose()
    }
}

fn read_rate_limit_descriptor<'a>(
    mut reader: Reader<'a>,
    request: &mut WireRequest<'a>,
) -> Result<WireDescriptor, Malformed> {
    let mut descriptor = WireDescriptor::default();
    let mut entries = 0;
    while let Some(field) = reader.field()? {
        match field.number {
            1 => push_entry(reader.message(field)?, field.offset, &mut entries, request)?,
            2 => read_limit_override(
                reader.message(field)?,
                descriptor.limit_override.get_or_insert_default(),
            )?,
            3 => read_uint64_value(reader.message(field)?, descriptor.cost.get_or_insert_default())?,
            4 => descriptor.is_negative_hits = reader.varint(field)? != 0,
            _ => reader.skip(field)?,
        }
    }
    Ok(descriptor)
}

fn read_check_descriptor<'a>(
    mut reader: Reader<'a>,
    request: &mut WireRequest<'a>,
) -> Result<WireDescriptor, Malformed> {
    let mut descriptor = WireDescriptor::default();
    let mut entries = 0;
    while let Some(field) = reader.field()? {
        match field.number {
            1 => push_entry(reader.message(field)?, field.offset, &mut entries, request)?,
            3 => descriptor.cost = Some(reader.varint(field)?),
            _ => reader.skip(field)?,
        }
    }
    Ok(descriptor)
}

fn push_entry<'a>(
    mut reader: Reader<'a>,
    offset: usize,
    entries: &mut usize,
    request: &mut WireRequest<'a>,
) -> Result<(), Malformed> {
    if *entries == MAX_ENTRIES {
        return Err(Malformed::TooManyEntries { offset });
    }
    *entries += 1;
    let mut entry: Entry<'a> = (&[], &[]);
    while let Some(field) = reader.field()? {
        match field.number {
            1 => entry.0 = reader.bytes(field)?,
            2 => entry.1 = reader.bytes(field)?,
            _ => reader.skip(field)?,
        }
    }
    request.entries.push(entry);
    Ok(())
}

fn read_limit_override(mut reader: Reader<'_>, limit: &mut LimitOverride) -> Result<(), Malformed> {
    while let Some(field) = reader.field()? {
        match field.number {
            1 => limit.requests_per_unit = reader.varint(field)? as u32,
            2 => limit.unit = reader.varint(field)? as i32,
            // Newer than the messages of this crate, so what is no such field is skipped, as they do.
            3 if field.wire_type == WireType::Len => {
                let mut multiplier = 0;
                if read_uint32_value(reader.message(field)?, &mut multiplier).is_ok() {
                    limit.unit_multiplier = multiplier;
                }
            }
            _ => reader.skip(field)?,
        }
    }
    Ok(())
}

fn read_reserve(mut reader: Reader<'_>, reserve: &mut WireReserve) -> Result<(), Malformed> {
    while let Some(field) = reader.field()? {
        match field.number {
            1 => reserve.ttl_ms = reader.varint(field)?,
            2 => reserve.on_lapse = reader.varint(field)? as i32,
            3 => reserve.at_most = reader.varint(field)? != 0,
            _ => reader.skip(field)?,
        }
    }
    Ok(())
}

fn read_uint32_value(mut reader: Reader<'_>, value: &mut u32) -> Result<(), Malformed> {
    while let Some(field) = reader.field()? {
        match field.number {
            1 => *value = reader.varint(field)? as u32,
            _ => reader.skip(field)?,
        }
    }
    Ok(())
}

fn read_duration(mut reader: Reader<'_>, duration: &mut WireDuration) -> Result<(), Malformed> {
    while let Some(field) = reader.field()? {
        match field.number {
            1 => duration.seconds = reader.varint(field)?.cast_signed(),
            2 => duration.nanos = reader.varint(field)? as i32,
            _ => reader.skip(field)?,
        }
    }
    Ok(())
}

fn read_uint64_value(mut reader: Reader<'_>, value: &mut u64) -> Result<(), Malformed> {
    while let Some(field) = reader.field()? {
        match field.number {
            1 => *value = reader.varint(field)?,
            _ => reader.skip(field)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prop::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use prost::encoding::encode_varint;
    use prost::{DecodeError, Message};

    use super::*;
    use crate::acequia::v1::{self, CheckBatch, CheckRequest};
    use crate::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use crate::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
    use crate::envoy::service::ratelimit::v3::RateLimitRequest;
    use crate::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};

    type OwnedEntries = Vec<(Vec<u8>, Vec<u8>)>;

    /// The content that both readers must agree on.
    #[derive(Debug, PartialEq)]
    struct Contents {
        domain: Vec<u8>,
        descriptors: Vec<(OwnedEntries, WireDescriptor)>,
        cost: Option<u64>,
        detail: bool,
        record: (Vec<u8>, bool, Option<WireReserve>),
        ttl: Option<WireDuration>,
    }

    fn envoy_request(bytes: &[u8]) -> Result<WireRequest<'_>, Malformed> {
        let mut request = WireRequest::default();
        read_rate_limit_request(bytes, &mut request).map(|()| request)
    }

    fn check_request(bytes: &[u8]) -> Result<WireRequest<'_>, Malformed> {
        let mut request = WireRequest::default();
        read_check_request(bytes, &mut request).map(|()| request)
    }

    fn reserve_request(bytes: &[u8]) -> Result<(WireRequest<'_>, Option<WireDuration>), Malformed> {
        let mut request = WireRequest::default();
        read_reserve_request(bytes, &mut request).map(|ttl| (request, ttl))
    }

    fn commit_request(bytes: &[u8]) -> Result<WireRequest<'_>, Malformed> {
        let mut request = WireRequest::default();
        read_commit_request(bytes, &mut request).map(|()| request)
    }

    /// For any bytes, our reader and prost agree, except for the differences that the module lists.
    fn check<M: Into<Contents>>(
        ours: Result<impl Into<Contents>, Malformed>,
        prost: Result<M, DecodeError>,
    ) -> Result<(), TestCaseError> {
        match (ours, prost) {
            (Ok(ours), Ok(prost)) => prop_assert_eq!(ours.into(), prost.into()),
            (Ok(_), Err(error)) => {
                prop_assert!(error.to_string().contains("UTF-8"), "only prost fails: {error}")
            }
            (Err(error), Ok(_)) => prop_assert!(
                matches!(
                    error,
                    Malformed::Group { .. }
                        | Malformed::TooManyDescriptors { .. }
                        | Malformed::TooManyEntries { .. }
                ),
                "only ours fails: {error}"
            ),
            (Err(_), Err(_)) => {}
        }
        Ok(())
    }

    fn check_all(bytes: &[u8]) -> Result<(), TestCaseError> {
        check(envoy_request(bytes), RateLimitRequest::decode(bytes))?;
        check(reserve_request(bytes), ReserveRequest::decode(bytes))?;
        check(commit_request(bytes), CommitRequest::decode(bytes))?;
        check(check_request(bytes), CheckRequest::decode(bytes))
    }

    #[test]
    fn an_envoy_request_is_read() {
        let bytes = RateLimitRequest {
            domain: "shop".into(),
            descriptors: vec![
                envoy_descriptor(&[("api_key", "k1"), ("route", "/search")]),
                RateLimitDescriptor { hits_addend: Some(0), ..envoy_descriptor(&[("api_key", "k1")]) },
            ],
            hits_addend: 3,
        }
        .encode_to_vec();

        let request = envoy_request(&bytes).expect("well formed");

        assert_eq!(request.domain, b"shop");
        assert_eq!(request.cost, Some(3));
        let [first, second] = request.descriptors[..] else { panic!("two descriptors") };
        assert_eq!(request.entries_of(&first), [(&b"api_key"[..], &b"k1"[..]), (b"route", b"/search")]);
        assert_eq!(request.entries_of(&second), [(&b"api_key"[..], &b"k1"[..])]);
        assert_eq!((first.cost, second.cost), (None, Some(0)));
        assert!(!request.entries.spilled() && !request.descriptors.spilled());
    }

    #[test]
    fn a_value_that_is_not_utf8_is_read() {
        // The bytes are: domain "d", one descriptor, one entry with key "k" and the byte 0xff as value.
        let bytes = [0x0a, 1, b'd', 0x12, 8, 0x0a, 6, 0x0a, 1, b'k', 0x12, 1, 0xff];
        let request = envoy_request(&bytes).expect("bytes are bytes");
        assert_eq!(request.entries[..], [(&b"k"[..], &b"\xff"[..])]);
        assert!(RateLimitRequest::decode(&bytes[..]).is_err());
    }

    #[test]
    fn a_message_sent_in_two_parts_is_merged() {
        // One descriptor has `limit` twice: requests_per_unit 5 and unit_multiplier 30, then unit 2.
        let bytes = [0x12, 12, 0x12, 6, 0x08, 5, 0x1a, 2, 0x08, 30, 0x12, 2, 0x10, 2];
        let request = envoy_request(&bytes).expect("well formed");
        let merged = LimitOverride { requests_per_unit: 5, unit: 2, unit_multiplier: 30 };
        assert_eq!(request.descriptors[0].limit_override, Some(merged));

        // The descriptor has `hits_addend` twice: 5, then nothing.
        let bytes = [0x12, 6, 0x1a, 2, 0x08, 5, 0x1a, 0];
        let request = envoy_request(&bytes).expect("well formed");
        assert_eq!(request.descriptors[0].cost, Some(5));
    }

    #[test]
    fn a_cost_of_zero_is_absent_in_one_api_and_zero_in_the_other() {
        let bytes = [0x18, 0];
        assert_eq!(envoy_request(&bytes).expect("well formed").cost, None);
        assert_eq!(check_request(&bytes).expect("well formed").cost, Some(0));
    }

    #[test]
    fn any_number_but_zero_is_true() {
        assert!(check_request(&[0x20, 2]).expect("well formed").detail);
        let request = envoy_request(&[0x12, 2, 0x20, 2]).expect("well formed");
        assert!(request.descriptors[0].is_negative_hits);
    }

    #[test]
    fn a_reused_request_keeps_nothing_of_the_one_before() {
        let first = CheckRequest {
            domain: "shop".into(),
            descriptors: vec![v1::Descriptor { entries: vec![v1::Entry::default()], cost: Some(1) }],
            cost: Some(2),
            detail: true,
            id: "once".into(),
            refundable: true,
            reserve: Some(v1::Reserve { ttl_ms: 5, on_lapse: 2, at_most: true }),
        }
        .encode_to_vec();
        let mut request = WireRequest::default();
        read_check_request(&first, &mut request).expect("well formed");
        read_check_request(&[], &mut request).expect("well formed");
        assert_eq!(request, WireRequest::default());
    }

    #[test]
    fn requests_at_the_bounds_are_read_and_larger_ones_refused() {
        let descriptors = |count| {
            let descriptors = vec![envoy_descriptor(&[("k", "v")]); count];
            RateLimitRequest { descriptors, ..RateLimitRequest::default() }.encode_to_vec()
        };
        assert!(envoy_request(&descriptors(MAX_DESCRIPTORS)).is_ok());
        let offset = descriptors(MAX_DESCRIPTORS).len();
        let one_too_many = descriptors(MAX_DESCRIPTORS + 1);
        assert_eq!(envoy_request(&one_too_many), Err(Malformed::TooManyDescriptors { offset }));
        assert_eq!(check_request(&one_too_many), Err(Malformed::TooManyDescriptors { offset }));

        // Two descriptors: the bound is for each descriptor, not for their sum.
        let entries = |count| {
            let descriptors = vec![envoy_descriptor(&vec![("k", "v"); count]); 2];
            RateLimitRequest { descriptors, ..RateLimitRequest::default() }.encode_to_vec()
        };
        assert!(envoy_request(&entries(MAX_ENTRIES)).is_ok());
        let one_too_many = entries(MAX_ENTRIES + 1);
        assert!(matches!(envoy_request(&one_too_many), Err(Malformed::TooManyEntries { .. })));
        assert!(matches!(check_request(&one_too_many), Err(Malformed::TooManyEntries { .. })));
    }

    #[test]
    fn a_batch_ends_at_the_first_fault() {
        let checks = |count| CheckBatch { checks: vec![CheckRequest::default(); count] }.encode_to_vec();
        assert_eq!(read_check_batch(&checks(MAX_CHECKS)).filter(Result::is_ok).count(), MAX_CHECKS);

        let one_too_many = checks(MAX_CHECKS + 1);
        let mut batch = read_check_batch(&one_too_many).skip(MAX_CHECKS);
        assert_eq!(batch.next(), Some(Err(Malformed::TooManyChecks { offset: 2 * MAX_CHECKS })));
        assert_eq!(batch.next(), None);

        let mut batch = read_check_batch(&[0x0a, 0, 0x0a, 9]);
        assert_eq!(batch.next(), Some(Ok(&[][..])));
        assert_eq!(batch.next(), Some(Err(Malformed::Truncated { offset: 3 })));
        assert_eq!(batch.next(), None);
    }

    proptest! {
        #[test]
        fn envoy_requests_are_read_as_prost_wrote_them(expected in any_envoy_request()) {
            let bytes = expected.encode_to_vec();
            prop_assert_eq!(Contents::from(envoy_request(&bytes).expect("well formed")), expected.into());
        }

        #[test]
        fn reservations_and_commits_are_read_as_prost_wrote_them(
            expected in any_envoy_request(),
            amount in integer(),
            id in text(),
            ttl in option::of((any::<i64>(), any::<i32>())),
        ) {
            let RateLimitRequest { domain, descriptors, .. } = expected;
            let ttl = ttl.map(|(seconds, nanos)| prost_types::Duration { seconds, nanos });
            let reserve =
                ReserveRequest { domain: domain.clone(), descriptors: descriptors.clone(), amount, ttl };
            let bytes = reserve.encode_to_vec();
            prop_assert_eq!(Contents::from(reserve_request(&bytes).expect("well formed")), reserve.into());
            let commit = CommitRequest { domain, descriptors, reservation_id: id, actual_amount: amount };
            let bytes = commit.encode_to_vec();
            prop_assert_eq!(Contents::from(commit_request(&bytes).expect("well formed")), commit.into());
        }

        #[test]
        fn check_requests_are_read_as_prost_wrote_them(expected in any_check_request()) {
            let bytes = expected.encode_to_vec();
            prop_assert_eq!(Contents::from(check_request(&bytes).expect("well formed")), expected.into());
        }

        #[test]
        fn batches_are_read_as_prost_wrote_them(checks in vec(any_check_request(), 0..5)) {
            let bytes = CheckBatch { checks: checks.clone() }.encode_to_vec();
            let mut request = WireRequest::default();
            let mut read = Vec::new();
            for check in read_check_batch(&bytes) {
                read_check_request(check.expect("well formed"), &mut request).expect("well formed");
                read.push(Contents::from(request.clone()));
            }
            prop_assert_eq!(read, checks.into_iter().map(Contents::from).collect::<Vec<_>>());
        }

        #[test]
        fn two_requests_in_a_row_merge(
            envoy in (any_envoy_request(), any_envoy_request()),
            ours in (any_check_request(), any_check_request()),
        ) {
            check_all(&[envoy.0.encode_to_vec(), envoy.1.encode_to_vec()].concat())?;
            check_all(&[ours.0.encode_to_vec(), ours.1.encode_to_vec()].concat())?;
        }

        #[test]
        fn a_truncated_request_is_read_as_prost_reads_it(
            envoy in any_envoy_request(),
            ours in any_check_request(),
            cut: prop::sample::Index,
        ) {
            for bytes in [envoy.encode_to_vec(), ours.encode_to_vec()] {
                check_all(&bytes[..cut.index(bytes.len() + 1)])?;
            }
        }

        #[test]
        fn a_damaged_request_is_read_as_prost_reads_it(
            envoy in any_envoy_request(),
            ours in any_check_request(),
            at: prop::sample::Index,
            byte: u8,
        ) {
            for mut bytes in [envoy.encode_to_vec(), ours.encode_to_vec()] {
                bytes.push(0);
                *at.get_mut(&mut bytes) = byte;
                check_all(&bytes)?;
            }
        }

        #[test]
        fn random_bytes_are_read_as_prost_reads_them(bytes in vec(any::<u8>(), 0..64)) {
            check_all(&bytes)?;
        }

        #[test]
        fn fields_in_any_order_are_read_as_prost_reads_them(bytes in fields()) {
            check_all(&bytes)?;
            let batch = CheckBatch::decode(&*bytes);
            let ours = read_check_batch(&bytes).collect::<Result<Vec<_>, _>>();
            if let (Ok(batch), Ok(ours)) = (&batch, &ours) {
                prop_assert_eq!(batch.checks.len(), ours.len());
            }
            if let (Ok(_), Err(error)) = (&batch, &ours) {
                prop_assert!(matches!(error, Malformed::Group { .. }), "only ours fails: {error}");
            }
        }
    }

    impl From<WireRequest<'_>> for Contents {
        fn from(request: WireRequest<'_>) -> Self {
            let descriptor = |descriptor: &WireDescriptor| {
                let entries = request.entries_of(descriptor).iter().map(|(k, v)| (k.to_vec(), v.to_vec()));
                // The messages lack the multiplier.
                let limit_override =
                    descriptor.limit_override.map(|limit| LimitOverride { unit_multiplier: 0, ..limit });
                (
                    entries.collect(),
                    WireDescriptor { entries_start: 0, entries_end: 0, limit_override, ..*descriptor },
                )
            };
            Self {
                domain: request.domain.to_vec(),
                descriptors: request.descriptors.iter().map(descriptor).collect(),
                cost: request.cost,
                detail: request.detail,
                record: (request.record.id.to_vec(), request.record.refundable, request.record.reserve),
                ttl: None,
            }
        }
    }

    impl From<(WireRequest<'_>, Option<WireDuration>)> for Contents {
        fn from((request, ttl): (WireRequest<'_>, Option<WireDuration>)) -> Self {
            Self { ttl, ..request.into() }
        }
    }

    impl From<ReserveRequest> for Contents {
        fn from(ReserveRequest { domain, descriptors, amount, ttl }: ReserveRequest) -> Self {
            let ttl = ttl.map(|prost_types::Duration { seconds, nanos }| WireDuration { seconds, nanos });
            let request = RateLimitRequest { domain, descriptors, hits_addend: 0 };
            Self { cost: Some(amount), ttl, ..request.into() }
        }
    }

    impl From<CommitRequest> for Contents {
        fn from(commit: CommitRequest) -> Self {
            let CommitRequest { domain, descriptors, reservation_id, actual_amount } = commit;
            let request = RateLimitRequest { domain, descriptors, hits_addend: 0 };
            let record = (reservation_id.into_bytes(), false, None);
            Self { cost: Some(actual_amount), record, ..request.into() }
        }
    }

    impl From<RateLimitRequest> for Contents {
        fn from(request: RateLimitRequest) -> Self {
            let descriptor = |descriptor: RateLimitDescriptor| {
                let entries =
                    descriptor.entries.into_iter().map(|entry| (entry.key.into(), entry.value.into()));
                let limit_override = descriptor.limit.map(|limit| LimitOverride {
                    requests_per_unit: limit.requests_per_unit,
                    unit: limit.unit,
                    unit_multiplier: 0,
                });
                let descriptor = WireDescriptor {
                    cost: descriptor.hits_addend,
                    is_negative_hits: descriptor.is_negative_hits,
                    limit_override,
                    ..WireDescriptor::default()
                };
                (entries.collect(), descriptor)
            };
            Self {
                domain: request.domain.into(),
                descriptors: request.descriptors.into_iter().map(descriptor).collect(),
                cost: (request.hits_addend != 0).then_some(request.hits_addend.into()),
                detail: false,
                record: (Vec::new(), false, None),
                ttl: None,
            }
        }
    }

    impl From<CheckRequest> for Contents {
        fn from(request: CheckRequest) -> Self {
            let descriptor = |descriptor: v1::Descriptor| {
                let entries =
                    descriptor.entries.into_iter().map(|entry| (entry.key.into(), entry.value.into()));
                (entries.collect(), WireDescriptor { cost: descriptor.cost, ..WireDescriptor::default() })
            };
            let reserve = request.reserve.map(|v1::Reserve { ttl_ms, on_lapse, at_most }| WireReserve {
                ttl_ms,
                on_lapse,
                at_most,
            });
            Self {
                domain: request.domain.into(),
                descriptors: request.descriptors.into_iter().map(descriptor).collect(),
                cost: request.cost,
                detail: request.detail,
                record: (request.id.into_bytes(), request.refundable, reserve),
                ttl: None,
            }
        }
    }

    fn envoy_descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entries = entries.iter().map(|&(key, value)| Entry { key: key.into(), value: value.into() });
        RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
    }

    prop_compose! {
        fn any_envoy_request()(
            domain in text(),
            descriptors in vec(any_envoy_descriptor(), 0..6),
            hits_addend in prop_oneof![Just(0), any::<u32>()],
        ) -> RateLimitRequest {
            RateLimitRequest { domain, descriptors, hits_addend }
        }
    }

    prop_compose! {
        fn any_envoy_descriptor()(
            entries in vec((text(), text()), 0..6),
            limit in option::of((any::<u32>(), any::<i32>())),
            hits_addend in option::of(integer()),
            is_negative_hits: bool,
        ) -> RateLimitDescriptor {
            RateLimitDescriptor {
                entries: entries.into_iter().map(|(key, value)| Entry { key, value }).collect(),
                limit: limit.map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit }),
                hits_addend,
                is_negative_hits,
            }
        }
    }

    prop_compose! {
        fn any_check_request()(
            domain in text(),
            descriptors in vec((vec((text(), text()), 0..6), option::of(integer())), 0..6),
            cost in option::of(integer()),
            detail: bool,
            (id, refundable) in (text(), any::<bool>()),
            reserve in option::of((integer(), any::<i32>(), any::<bool>())),
        ) -> CheckRequest {
            let reserve = reserve
                .map(|(ttl_ms, on_lapse, at_most)| v1::Reserve { ttl_ms, on_lapse, at_most });
            let descriptor = |(entries, cost): (Vec<(String, String)>, _)| v1::Descriptor {
                entries: entries.into_iter().map(|(key, value)| v1::Entry { key, value }).collect(),
                cost,
            };
            let descriptors = descriptors.into_iter().map(descriptor).collect();
            CheckRequest { domain, descriptors, cost, detail, id, refundable, reserve }
        }
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![8 => "\\PC{0,8}", 1 => "[a-z]{120,140}"]
    }

    /// Integers of every length on the wire.
    fn integer() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..64u32).prop_map(|(value, shift)| value >> shift)
    }

    /// Fields with small numbers, of all types, nested: mostly well formed, rarely as the schema says.
    fn fields() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            integer().prop_map(|value| (0, varint(value))),
            vec(any::<u8>(), 1..12).prop_map(|bytes| (0, bytes)),
            any::<[u8; 8]>().prop_map(|bytes| (1, bytes.to_vec())),
            text().prop_map(|text| (2, delimited(text.as_bytes()))),
            (any::<u8>(), vec(any::<u8>(), 0..6)).prop_map(|(len, bytes)| (2, [vec![len], bytes].concat())),
            any::<[u8; 4]>().prop_map(|bytes| (5, bytes.to_vec())),
            (0..8u64).prop_map(|wire_type| (wire_type, Vec::new())),
        ];
        let field = leaf
            .prop_recursive(4, 64, 6, |field| numbered(field).prop_map(|message| (2, delimited(&message))));
        numbered(field)
    }

    fn numbered(field: impl Strategy<Value = (u64, Vec<u8>)>) -> impl Strategy<Value = Vec<u8>> {
        let number = prop_oneof![60 => 1..5u64, 4 => 5..40u64, 1 => integer()];
        vec((number, field), 0..6).prop_map(|fields| {
            let field = |(number, (wire_type, value)): (u64, (u64, Vec<u8>))| {
                [varint(number << 3 | wire_type), value]
            };
            fields.into_iter().flat_map(field).flatten().collect()
        })
    }

    fn varint(value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_varint(value, &mut bytes);
        bytes
    }

    fn delimited(bytes: &[u8]) -> Vec<u8> {
        [&varint(bytes.len() as u64), bytes].concat()
    }
}
