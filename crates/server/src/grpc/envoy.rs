//! `envoy.service.ratelimit.v3`: replaces the servers of that protocol without changes to Envoy.
//!
//! The answer has a status for every descriptor, in order. A denial is the answer OVER_LIMIT and never an
//! error: by Envoy's default an error lets the request through. Hence no byte and no size that a client can
//! choose makes an error: values may hold any bytes, and a request that is too large is denied.
//!
//! A limit with `on_store_loss: closed` lets nobody decide in a store outage. Its denial is OVER_LIMIT, too:
//! the protocol has no other word, and an error would do the opposite of the operator's choice. The
//! metadata's `reason` is then `unavailable`, and a `local_reply_config` can turn Envoy's 429 into 503 by it.

use std::time::Duration;

use acequia_api::{
    envoy::service::ratelimit::v3::rate_limit_response::{Code, rate_limit::Unit},
    wire::{
        CurrentLimitOut, HeaderOut, Malformed, MetadataOut, MetadataValue, RateLimitResponseWriter,
        StatusOut, WireRequest, read_rate_limit_request,
    },
};
use acequia_limits::{Algorithm, Now, Request, verdict::NEVER};
use acequia_node::{Answer, Ask, Catalogue, LimitAnswer, Outcome};
use bytes::Bytes;

use super::{
    done,
    message::{Status, framed},
    reply::{By, Reply, Replying, reply_to},
    request_metadata::request_metadata,
};
use crate::{
    headers::{Header, headers},
    question::from_envoy,
    respond::name,
    shared::Settings,
    worker::{How, Worker},
};

pub(super) const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
pub(super) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Bytes of a response with one descriptor.
const RESPONSE_BYTES: usize = 96;

/// The descriptors of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) descriptors: usize,
    /// Those that settle charges and ask nothing, as a set of bits.
    pub(super) settled: u64,
}

impl Seen {
    pub(super) const fn is_settled(self, descriptor: usize) -> bool {
        self.settled >> descriptor & 1 == 1
    }
}

pub(super) fn should_rate_limit(by: &By, message: &Bytes, longest: Duration) -> Result<Reply, Status> {
    let worker = &by.worker;
    let wire = parse(worker, message)?;
    if done::is_done(&wire) {
        return done::reply(by, message, wire, longest);
    }
    let seen = Seen { descriptors: wire.descriptors.len(), settled: 0 };
    let (request, seen) = read_on(worker, wire, seen)?;
    reply_to(by, message, request, seen, how(longest), read, respond)
}

/// How a proxy asks: it waits for no delay.
pub(super) fn how(longest: Duration) -> How {
    How::from(Ask::CHECK_NOW).within(longest)
}

/// Reads what a request asks.
pub(super) fn read<'a>(worker: &Worker, message: &'a [u8]) -> Result<(Request<'a>, Seen), Status> {
    let mut wire = parse(worker, message)?;
    let descriptors = wire.descriptors.len();
    let settled = if done::is_done(&wire) { done::take_out(&mut wire) } else { 0 };
    read_on(worker, wire, Seen { descriptors, settled })
}

pub(super) fn parse<'a>(worker: &Worker, message: &'a [u8]) -> Result<WireRequest<'a>, Status> {
    let mut wire = WireRequest::default();
    read_rate_limit_request(message, &mut wire).map_err(|fault| malformed(worker, fault))?;
    Ok(wire)
}

/// Refuses bytes that are no request.
pub(super) fn malformed(worker: &Worker, fault: Malformed) -> Status {
    worker.refuse(&fault);
    let is_too_large =
        matches!(fault, Malformed::TooManyDescriptors { .. } | Malformed::TooManyEntries { .. });
    Status::malformed(fault).too_large_if(is_too_large)
}

/// Checks what is left of a request.
pub(super) fn read_on<'a>(
    worker: &Worker,
    wire: WireRequest<'a>,
    seen: Seen,
) -> Result<(Request<'a>, Seen), Status> {
    let request = from_envoy(wire).inspect_err(|fault| worker.refuse(fault))?;
    Ok((request, seen))
}

pub(super) fn respond(to: Replying<'_, Seen>, answer: &Answer, catalogue: &Catalogue, now: Now) -> Bytes {
    let settings = to.worker.shared.settings();
    let charge = answer.charge.map(|charge| to.worker.shared.names.text(charge));
    framed(RESPONSE_BYTES, |out| {
        write(out, to.with, answer, catalogue, now, &settings, charge.as_deref());
        if settings.has_request_metadata
            && let Some(fields) = request_metadata(to.message, to.with, answer, catalogue, &settings)
        {
            RateLimitResponseWriter::go_on(out).further_metadata(&fields);
        }
    })
}

fn write(
    out: &mut Vec<u8>,
    seen: Seen,
    answer: &Answer,
    catalogue: &Catalogue,
    now: Now,
    settings: &Settings,
    charge: Option<&str>,
) {
    let overall = if answer.allowed { Code::Ok } else { Code::OverLimit };
    let mut writer = RateLimitResponseWriter::new(out, overall);
    let mut asked = 0;
    for descriptor in 0..seen.descriptors {
        if seen.is_settled(descriptor) {
            writer.status(&NOTHING);
            continue;
        }
        writer.status(&status(asked, answer, catalogue));
        asked += 1;
    }
    let dialects = settings.headers.of_envoy(answer.allowed);
    if !dialects.is_empty() {
        for Header { name, value } in headers(dialects, answer, catalogue, now) {
            writer.response_header(&HeaderOut { key: name, value: &value });
        }
    }
    if let Some(limit) = answer.decisive.map(|number| &answer.limits[number]).filter(|_| !answer.allowed) {
        // The metadata are for access logs: which limit, and why.
        writer.dynamic_metadata(&[
            MetadataOut { key: "limit", value: MetadataValue::String(name(limit, catalogue)) },
            MetadataOut { key: "reason", value: MetadataValue::String(limit.reason.as_str()) },
        ]);
    } else if let Some(charge) = charge {
        // The proxy brings the id back when the stream is done.
        writer.dynamic_metadata(&[MetadataOut { key: "charge", value: MetadataValue::String(charge) }]);
    }
}

/// The answer to a request whose descriptors all settle charges.
pub(super) fn all_settled(seen: Seen) -> Bytes {
    framed(RESPONSE_BYTES, |out| {
        let mut writer = RateLimitResponseWriter::new(out, Code::Ok);
        (0..seen.descriptors).for_each(|_| writer.status(&NOTHING));
    })
}

/// The status of a descriptor that no limit counts.
const NOTHING: StatusOut<'static> =
    StatusOut { code: Code::Ok, current_limit: None, limit_remaining: 0, duration_until_reset: None };

/// The answer to a request that is too large to be looked at.
pub(super) fn too_large() -> Bytes {
    framed(RESPONSE_BYTES, |out| {
        let mut writer = RateLimitResponseWriter::new(out, Code::OverLimit);
        writer.dynamic_metadata(&[MetadataOut { key: "reason", value: MetadataValue::String("too-large") }]);
    })
}

/// The status of one descriptor: the limit that denies it for the longest time, or else the limit with the
/// least left.
fn status<'c>(descriptor: usize, answer: &Answer, catalogue: &'c Catalogue) -> StatusOut<'c> {
    let mut decisive: Option<&LimitAnswer> = None;
    for limit in answer.limits.iter().filter(|limit| limit.descriptors >> descriptor & 1 == 1) {
        let stricter = |than: &LimitAnswer| rank(limit) > rank(than);
        let of = &catalogue.limits[limit.limit as usize].limit;
        // A limit that only watches is not shown, but for one with a path: the service it was written for shows it.
        let is_shown = of.spec.mode.denies() || of.path.is_some();
        if is_shown && decisive.is_none_or(stricter) {
            decisive = Some(limit);
        }
    }
    let Some(limit) = decisive else { return NOTHING };
    let LimitAnswer { verdict, outcome, .. } = limit;
    let denied = *outcome == Outcome::Deny;
    let unlimited = *outcome == Outcome::Unlimited;
    let wait_ns = if denied && verdict.retry_after_ns != NEVER {
        verdict.retry_after_ns
    } else {
        verdict.reset_after_ns
    };
    StatusOut {
        code: if denied { Code::OverLimit } else { Code::Ok },
        current_limit: (!unlimited).then(|| current_limit(limit, catalogue)),
        limit_remaining: saturate(verdict.remaining),
        duration_until_reset: (!unlimited).then(|| Duration::from_nanos(wait_ns)),
    }
}

/// A stricter limit ranks higher: denials by their wait, then the others by how little is left.
fn rank(limit: &LimitAnswer) -> (bool, u64, u64) {
    let denied = limit.outcome == Outcome::Deny;
    (denied, if denied { limit.verdict.retry_after_ns } else { 0 }, u64::MAX - limit.verdict.remaining)
}

/// A limit in Envoy's units. A bucket is shown by its rate, in the smallest unit in which the rate is whole.
/// If Envoy has no unit for a period, only the number is shown.
fn current_limit<'c>(limit: &LimitAnswer, catalogue: &'c Catalogue) -> CurrentLimitOut<'c> {
    const UNITS: [(Unit, u64); 9] = [
        (Unit::Second, 1),
        (Unit::Minute, 60),
        (Unit::Hour, 3_600),
        (Unit::Day, 86_400),
        (Unit::Week, 7 * 86_400),
        (Unit::Month, 30 * 86_400),
        (Unit::Month, 31 * 86_400),
        (Unit::Year, 365 * 86_400),
        (Unit::Year, 366 * 86_400),
    ];
    let active = &catalogue.limits[limit.limit as usize].limit;
    let found = match &active.algorithm {
        Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => {
            UNITS.iter().find_map(|(unit, seconds)| Some((meter.units_in(seconds * 1_000_000_000)?, *unit)))
        }
        // Slots are counted at one time, and not in a time.
        _ if active.is_concurrent() => None,
        window => UNITS
            .iter()
            .find(|(_, seconds)| window.period_ns() == seconds * 1_000_000_000)
            .map(|(unit, _)| (limit.budget, *unit)),
    };
    let (units, unit) = found.unwrap_or((limit.budget, Unit::Unknown));
    let is_window = !active.algorithm.has_rate() && !active.is_concurrent();
    let several = match found {
        None if is_window => several_units(active.algorithm.period_ns()),
        _ => None,
    };
    let unit = several.map_or(unit, |(unit, _)| unit);
    let unit_multiplier = several.map(|(_, multiplier)| multiplier);
    // The service whose limits have paths, or are the callers' own, names a limit only if its config does.
    let name = match active.path {
        None if !active.spec.from_callers => &active.spec.name,
        _ => active.spec.alias.as_deref().unwrap_or_default(),
    };
    CurrentLimitOut { name, requests_per_unit: saturate(units), unit, unit_multiplier }
}

/// A window as several units of time, the longest that divide it.
fn several_units(period_ns: u64) -> Option<(Unit, u32)> {
    let units = [(Unit::Day, 86_400), (Unit::Hour, 3_600), (Unit::Minute, 60), (Unit::Second, 1)];
    units.into_iter().find_map(|(unit, seconds)| {
        let unit_ns = seconds * 1_000_000_000;
        let multiplier = u32::try_from(period_ns / unit_ns).ok()?;
        (period_ns.is_multiple_of(unit_ns) && multiplier > 0).then_some((unit, multiplier))
    })
}

fn saturate(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use acequia_api::envoy::service::ratelimit::v3::RateLimitResponse;
    use acequia_limits::limit::OnStoreLoss;
    use prost::Message;

    use super::*;
    use crate::respond::lost::{NOW, answer};

    #[test]
    fn windows_of_several_units_are_shown_in_the_longest_that_divides_them() {
        let of_s = |seconds: u64| several_units(seconds * 1_000_000_000);
        assert_eq!(of_s(30), Some((Unit::Second, 30)));
        assert_eq!(of_s(90), Some((Unit::Second, 90)));
        assert_eq!(of_s(900), Some((Unit::Minute, 15)));
        assert_eq!(of_s(172_800), Some((Unit::Day, 2)));
        assert_eq!((several_units(1_500_000_000), several_units(0)), (None, None));
    }

    /// An error would let the request through. For another status, Envoy's config can use the metadata.
    #[test]
    fn a_denial_for_a_lost_store_tells_envoy_the_reason() {
        for (on_store_loss, code, reason) in [
            (OnStoreLoss::Guard, Code::OverLimit, Some("over-limit")),
            (OnStoreLoss::Closed, Code::OverLimit, Some("unavailable")),
            (OnStoreLoss::Open, Code::Ok, None),
        ] {
            let (answer, catalogue) = answer(on_store_loss);
            let mut out = Vec::new();
            let settings = Settings::default();
            let seen = Seen { descriptors: 2, settled: 0b01 };
            write(&mut out, seen, &answer, &catalogue, NOW, &settings, None);
            let response = RateLimitResponse::decode(&out[..]).expect("a response");
            assert_eq!(response.overall_code(), code);
            let codes: Vec<Code> = response.statuses.iter().map(|status| status.code()).collect();
            assert_eq!(codes, [Code::Ok, code], "the first descriptor settled a charge");
            let said = response.dynamic_metadata.map(|metadata| format!("{:?}", metadata.fields["reason"]));
            let quoted = |reason: &str| format!("{reason:?}");
            match (said, reason) {
                (Some(said), Some(reason)) => assert!(said.contains(&quoted(reason)), "{said}"),
                (said, reason) => assert_eq!(said.as_deref(), reason),
            }
        }
    }
}
