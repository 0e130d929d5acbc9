//! Hand-written Protobuf for the hot calls. Requests are read in place, and responses are written straight
//! into the buffer.
//!
//! A request of up to four descriptors and eight entries is read without allocating. A response is written
//! without allocating anything but the buffer's own growth. A read gives what the generated types would
//! read from equal bytes, with three differences, all on purpose:
//!
//! - Text stays bytes. Envoy passes on header values that are not UTF-8, and lets a request through if the
//!   rate limit service fails. An error here would be a way around every limit.
//! - There are bounds: [`MAX_DESCRIPTORS`], [`MAX_ENTRIES`], [`MAX_CHECKS`].
//! - Groups, which no proto3 message has, are refused rather than skipped.
//!
//! The written bytes equal the bytes that the generated types would write, if the fields of a response are
//! given in their order.

mod reader;
mod request;
mod response;

pub use reader::{Field, Malformed, Reader, WireType};
pub use request::{
    Checks, Entry, LimitOverride, MAX_CHECKS, MAX_DESCRIPTORS, MAX_ENTRIES, REST_UNDECIDED, WireDescriptor,
    WireDuration, WireRecord, WireRequest, WireReserve, read_check_batch, read_check_request,
    read_commit_request, read_rate_limit_request, read_reserve_request,
};
pub use response::{
    ChargeOut, CheckOut, CurrentLimitOut, HeaderOut, LimitOut, MetadataOut, MetadataValue,
    RateLimitResponseWriter, StatusOut, write_check_response, write_check_result,
};
