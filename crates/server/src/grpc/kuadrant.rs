//! `kuadrant.service.ratelimit.v1`: the calls of Kuadrant's gateways, whose requests cost what is known last.
//!
//! A reservation is a hold on every limit that matches. Its id is the name of a charge. So any node of any region
//! settles it, once, and a cost that comes after it has lapsed counts in full.
//!
//! A cost whose reservation no node remembers is recorded as a report, under the name of the reservation: a commit
//! that comes twice counts once. A cost without a reservation is a report.
//!
//! `CheckRateLimit` and `Reserve` deny a request that is too large, as Envoy's service does: a client may have chosen
//! its size. `Report` and `Commit` refuse it, since what is not read cannot be recorded.

use std::{borrow::Cow, sync::Arc, time::Duration};

use acequia_api::{
    acequia::v1::{Lapse, Settled as Word},
    envoy::service::ratelimit::v3::rate_limit_response::Code,
    kuadrant::service::ratelimit::v1::{CommitResponse, ReserveResponse},
    wire::{WireDuration, WireRecord, WireRequest, WireReserve, read_commit_request, read_reserve_request},
};
use acequia_limits::{Now, Request};
use acequia_node::{Answer, Ask, Catalogue, IdReused, Overdraft, RESERVE_NS_MAX, Recording, Remember};
use bytes::Bytes;
use prost::Message;

use super::{
    envoy::{self, Seen, all_settled},
    limiter::unsettled,
    message::{Status, framed},
    reply::{By, Reply, Replying, reply},
};
use crate::{
    callers::owner,
    charges::{ChargeKind, Stranger},
    config::May,
    question::{BadRequest, from_envoy},
    settings::SETTINGS,
    settle::{SettleFault, Settlement, settle},
    worker::{How, Worker},
};

pub(super) const SERVICE: &str = "kuadrant.service.ratelimit.v1.RateLimitService";
pub(super) const CHECK_RATE_LIMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit";
pub(super) const REPORT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Report";
pub(super) const RESERVE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
pub(super) const COMMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit";

const MS_NS: u64 = 1_000_000;

/// Says whether hits would fit.
pub(super) fn check(by: &By, message: &Bytes, longest: Duration) -> Result<Reply, Status> {
    let look = Ask { charge: false, ..Ask::CHECK_NOW };
    reply(by, message, |_| How::from(look).within(longest), read, envoy::respond)
}

/// Records hits that were spent.
pub(super) fn report(by: &By, message: &Bytes, longest: Duration) -> Result<Reply, Status> {
    let how = |_| How::from(Ask::REPORT).within(longest);
    reply(by, message, how, read, |to, _, _, _| all_settled(to.with))
}

/// Sets an amount apart.
pub(super) fn reserve(by: &By, message: &Bytes, longest: Duration) -> Result<Reply, Status> {
    // What was not spent yet is no debt, whatever a limit records of denied hits.
    let ask = Ask::CHECK_NOW.overdraft(Overdraft::Later);
    reply(by, message, |recording| How::new(ask, recording).within(longest), read_reserve, reserved)
}

/// Settles a reservation with its real cost, or records the cost.
pub(super) fn commit(by: &By, message: &Bytes, longest: Duration) -> Result<Reply, Status> {
    by.may(May::Commit)?;
    by.may(May::Report)?;
    by.may_ask_for(parse_commit(&by.worker, message)?.domain)?;
    let owner = owner(&by.rights, by.life.owner());
    let (worker, message) = (Arc::clone(&by.worker), message.clone());
    Ok(Reply::Later(Box::pin(async move {
        let wire = parse_commit(&worker, &message)?;
        let is_settled = settle_reservation(&worker, &wire).await?;
        if !is_settled {
            record(&worker, wire, owner, longest).await?;
        }
        Ok(encoded(&CommitResponse { reservation_released: is_settled }))
    })))
}

/// The answer to a reservation that is too large to be looked at.
pub(super) fn too_large() -> Bytes {
    encoded(&ReserveResponse { code: Code::OverLimit.into(), reservation_id: String::new() })
}

/// Reads a message that is Envoy's.
fn read<'a>(worker: &Worker, message: &'a [u8]) -> Result<(Request<'a>, Seen), Status> {
    let wire = envoy::parse(worker, message)?;
    let seen = Seen { descriptors: wire.descriptors.len(), settled: 0 };
    envoy::read_on(worker, wire, seen)
}

/// Reads a reservation. An amount of 0 only looks.
fn read_reserve<'a>(worker: &Worker, message: &'a [u8]) -> Result<(Request<'a>, Option<Recording>), Status> {
    let mut wire = WireRequest::default();
    let ttl = read_reserve_request(message, &mut wire).map_err(|fault| envoy::malformed(worker, fault))?;
    let looks = wire.cost == Some(0);
    let read = || -> Result<_, BadRequest> {
        let request = of_amount(wire)?;
        if looks {
            return Ok((request, None));
        }
        if worker.shared.counting.get().is_some() {
            return Err(BadRequest::CountedReserve);
        }
        let reserve =
            Some(WireReserve { ttl_ms: ttl_ms(ttl), on_lapse: Lapse::Release.into(), at_most: false });
        let record = WireRecord { reserve, ..WireRecord::default() };
        let recording = worker.shared.names.recording(&request, &record, ChargeKind::Check)?;
        Ok((request, recording.map(|recording| Recording { remember: Remember::AsHold, ..recording })))
    };
    Ok(read().inspect_err(|fault| worker.refuse(fault))?)
}

/// A request whose cost is one amount. An amount of 0 is a look.
fn of_amount(mut wire: WireRequest<'_>) -> Result<Request<'_>, BadRequest> {
    let cost = wire.cost.filter(|amount| *amount == 0);
    for descriptor in &mut wire.descriptors {
        (descriptor.cost, descriptor.is_negative_hits) = (cost, false);
    }
    from_envoy(wire)
}

/// Milliseconds after which a reservation lapses. More than the longest time is the longest time. No time, or less,
/// stands for the default: a gateway may take it from a timeout that is switched off.
fn ttl_ms(ttl: Option<WireDuration>) -> u64 {
    const S_NS: i128 = 1_000_000_000;
    let asked = ttl.map(|ttl| i128::from(ttl.seconds) * S_NS + i128::from(ttl.nanos)).filter(|ns| *ns > 0);
    let ns = asked.unwrap_or(SETTINGS.requests.reservation.as_nanos().cast_signed());
    u64::try_from(ns).unwrap_or(u64::MAX).min(RESERVE_NS_MAX).div_ceil(MS_NS)
}

fn reserved(to: Replying<'_, Option<Recording>>, answer: &Answer, _: &Catalogue, _: Now) -> Bytes {
    let code = if answer.allowed { Code::Ok } else { Code::OverLimit };
    let charge = answer.charge.filter(|_| answer.allowed);
    let reservation_id = charge.map(|charge| to.worker.shared.names.text(charge)).unwrap_or_default();
    encoded(&ReserveResponse { code: code.into(), reservation_id })
}

fn parse_commit<'a>(worker: &Worker, message: &'a [u8]) -> Result<WireRequest<'a>, Status> {
    let mut wire = WireRequest::default();
    read_commit_request(message, &mut wire).map_err(|fault| envoy::malformed(worker, fault))?;
    Ok(wire)
}

/// Settles the reservation that a commit names; says whether a node knows it, as far as this one can tell.
async fn settle_reservation(worker: &Worker, wire: &WireRequest<'_>) -> Result<bool, Status> {
    let Some(id) = std::str::from_utf8(wire.record.id).ok().filter(|id| !id.is_empty()) else {
        return Ok(false);
    };
    match settle(worker, id, wire.cost).await {
        Ok(Settlement { word: Word::Done | Word::Before | Word::Forwarded, .. }) => Ok(true),
        Ok(_) | Err(SettleFault::Malformed(_)) => Ok(false),
        Err(fault) => Err(unsettled(worker, &fault)),
    }
}

/// Records the cost of a commit whose reservation nobody knows, or that names none.
async fn record(worker: &Worker, wire: WireRequest<'_>, owner: u32, longest: Duration) -> Result<(), Status> {
    if wire.cost == Some(0) {
        return Ok(());
    }
    let id = wire.record.id;
    let named = || -> Result<_, BadRequest> {
        let request = of_amount(wire)?;
        // Whoever counts elsewhere remembers no names.
        if worker.shared.counting.get().is_some() {
            return Ok((request, None));
        }
        let record = WireRecord { id: &name_of(worker, id), ..WireRecord::default() };
        let recording = worker.shared.names.recording(&request, &record, ChargeKind::Report)?;
        Ok((request, recording))
    };
    let (request, recording) = named().inspect_err(|fault| worker.refuse(fault))?;
    let how = How::new(Ask::REPORT, recording).of(owner).within(longest);
    // If the name was used before, a cost was recorded for this reservation then.
    let (Ok(()) | Err(IdReused)) = worker.ask(&request, how, |_, _, _| ()).await;
    Ok(())
}

/// The name under which the cost of a reservation is recorded that nobody knows. The id of a charge may be longer than
/// a caller's id; its digits alone name it.
fn name_of<'a>(worker: &Worker, id: &'a [u8]) -> Cow<'a, [u8]> {
    match std::str::from_utf8(id).map(|text| worker.shared.names.read(text)) {
        Ok(Ok(charge) | Err(Stranger::Other(_, charge))) => charge.to_text().into_bytes().into(),
        _ => id.into(),
    }
}

/// Encoding cannot fail, because a vector grows as needed.
fn encoded(response: &impl Message) -> Bytes {
    framed(response.encoded_len(), |out| response.encode_raw(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_lasts_an_hour_at_most_and_a_minute_if_no_time_is_said() {
        assert_eq!(ttl_ms(None), 60_000);
        for (seconds, nanos, ms) in [
            (30, 0, 30_000),
            (0, 1, 1),
            (1, 500_000_000, 1_500),
            (1, -500_000_000, 500),
            (-1, i32::MAX, 1_148),
            (3_600, 0, 3_600_000),
            (3_600, 1, 3_600_000),
            (i64::MAX, i32::MAX, 3_600_000),
            (0, 0, 60_000),
            (0, -1, 60_000),
            (-1, 0, 60_000),
            (i64::MIN, i32::MIN, 60_000),
        ] {
            assert_eq!(ttl_ms(Some(WireDuration { seconds, nanos })), ms, "{seconds} {nanos}");
        }
    }
}
