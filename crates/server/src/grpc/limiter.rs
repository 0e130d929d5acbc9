//! `acequia.v1.Limiter`: Check and Peek. CheckStream is in `stream`.

use std::{sync::Arc, time::Duration};

use acequia_api::{
    acequia::v1 as api,
    wire::{CheckOut, WireRecord, WireRequest, read_check_request, write_check_response},
};
use acequia_limits::{Now, Request};
use acequia_node::{Answer, Ask, Catalogue, CellHolds, Recording};
use bytes::Bytes;
use prost::Message;

use super::{
    message::{Status, framed},
    reply::{By, Reply, Replying, reply},
};
use crate::{
    cells::{BothSides, both_sides},
    charges::ChargeKind,
    config::May,
    question::{from_check, from_report},
    respond::with_check_out,
    settings::SETTINGS,
    settle::{self, Renewal, SettleFault, Settlement, settle},
    worker::{How, Worker},
};

pub(super) const SERVICE: &str = "acequia.v1.Limiter";
pub(super) const CHECK: &str = "/acequia.v1.Limiter/Check";
pub(super) const CHECK_STREAM: &str = "/acequia.v1.Limiter/CheckStream";
pub(super) const PEEK: &str = "/acequia.v1.Limiter/Peek";
pub(super) const REFUND: &str = "/acequia.v1.Limiter/Refund";
pub(super) const COMMIT: &str = "/acequia.v1.Limiter/Commit";
pub(super) const REPORT: &str = "/acequia.v1.Limiter/Report";
pub(super) const RENEW: &str = "/acequia.v1.Limiter/Renew";

/// Bytes of a response without details.
const RESPONSE_BYTES: usize = 64;

/// The wishes of a check beside the verdict.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Whether the answer to an allowed request shows every limit, too.
    pub(super) detail: bool,
    /// How the charge is remembered.
    pub(super) recording: Option<Recording>,
}

/// Reads a check.
pub(super) fn read<'a>(worker: &Worker, message: &'a [u8]) -> Result<(Request<'a>, Wanted), Status> {
    read_as(ChargeKind::Check, worker, message)
}

/// Reads a report.
fn read_report<'a>(worker: &Worker, message: &'a [u8]) -> Result<(Request<'a>, Wanted), Status> {
    read_as(ChargeKind::Report, worker, message)
}

fn read_as<'a>(
    kind: ChargeKind,
    worker: &Worker,
    message: &'a [u8],
) -> Result<(Request<'a>, Wanted), Status> {
    let mut wire = WireRequest::default();
    read_check_request(message, &mut wire)
        .inspect_err(|fault| worker.refuse(fault))
        .map_err(Status::malformed)?;
    let (detail, record) = (wire.detail, wire.record);
    let request = match kind {
        ChargeKind::Check => from_check(wire, |domain| worker.shared.has_holds(domain)),
        ChargeKind::Report => from_report(wire),
    };
    let request = request.inspect_err(|fault| worker.refuse(fault))?;
    let recording = match record == WireRecord::default() {
        true => None,
        false => {
            let recording = worker.shared.names.recording(&request, &record, kind);
            recording.inspect_err(|fault| worker.refuse(fault))?
        }
    };
    Ok((request, Wanted { detail, recording }))
}

pub(super) fn check(by: &By, message: &Bytes, longest: Duration) -> Result<Reply, Status> {
    let how = |wanted: Wanted| How::new(Ask::CHECK, wanted.recording).within(longest);
    reply(by, message, how, read, respond)
}

/// Records a cost that was spent already.
pub(super) fn report(by: &By, message: &Bytes, longest: Duration) -> Result<Reply, Status> {
    let how = |wanted: Wanted| How::new(Ask::REPORT, wanted.recording).within(longest);
    reply(by, message, how, read_report, respond)
}

fn respond(to: Replying<'_, Wanted>, answer: &Answer, catalogue: &Catalogue, _: Now) -> Bytes {
    with_check_out(answer, catalogue, to.with.detail, &to.worker.shared.names, |check| {
        framed(RESPONSE_BYTES, |out| write_check_response(out, check))
    })
}

pub(super) fn peek(by: &By, message: &[u8]) -> Result<Bytes, Status> {
    let worker = &by.worker;
    let (request, _) = read(worker, message)?;
    by.may(May::Peek)?;
    by.may_ask_for(request.domain)?;
    worker.may_record()?;
    let mut held = worker.hold();
    let now = held.now;
    let ((mut response, answer, catalogue), _) = held.ask(&request, Ask::PEEK, |answer, catalogue| {
        let unmatched = catalogue.unmatched(&request, SETTINGS.requests.unmatched_max, now.wall_ns);
        let unmatched = unmatched.into_iter().map(|unmatched| api::Unmatched {
            name: catalogue.limits[unmatched.limit as usize].limit.spec.name.clone(),
            why: unmatched.why,
        });
        let verdict = with_check_out(answer, catalogue, true, &worker.shared.names, owned);
        let unmatched = unmatched.collect();
        let overrides = overrides(answer, catalogue);
        let candidates = candidates(answer, catalogue);
        let response = api::PeekResponse {
            verdict: Some(verdict),
            unmatched,
            shares: Vec::new(),
            overrides,
            candidates,
            pools: Vec::new(),
            warnings: catalogue.replaced(request.domain, now.wall_ns),
            held: Vec::new(),
        };
        (response, answer.clone(), Arc::clone(catalogue))
    });
    // The lock is released first: a peek must not keep other requests waiting.
    drop(held);
    let held = worker.shared.node.held(&answer, &catalogue).into_iter();
    response.held =
        held.map(|CellHolds { place, units }| api::CellHolds { limit: place as u32, units }).collect();
    if let Some(regions) = worker.shared.regions.get() {
        response.shares = regions.shares(&answer, &catalogue, now);
    }
    if let Some(region) = worker.shared.own_region.get() {
        response.pools = region.pools(&worker.shared.node, &answer, &catalogue, now);
    }
    // Encoding cannot fail, because a vector grows as needed.
    Ok(framed(response.encoded_len(), |out| response.encode_raw(out)))
}

/// Gives a charge back.
pub(super) fn refund(by: &By, message: &[u8]) -> Result<Reply, Status> {
    by.may(May::Refund)?;
    let request = api::RefundRequest::decode(message).map_err(Status::malformed)?;
    Ok(settle_later(&by.worker, request.charge_id, None))
}

/// Settles a charge with its real cost.
pub(super) fn commit(by: &By, message: &[u8]) -> Result<Reply, Status> {
    by.may(May::Commit)?;
    let request = api::CommitRequest::decode(message).map_err(Status::malformed)?;
    Ok(settle_later(&by.worker, request.charge_id, Some(request.cost)))
}

fn settle_later(worker: &Arc<Worker>, charge_id: String, cost: Option<u64>) -> Reply {
    let worker = Arc::clone(worker);
    Reply::Later(Box::pin(async move {
        let settled = settle(&worker, &charge_id, cost).await;
        let Settlement { word, refunded } = settled.map_err(|fault| unsettled(&worker, &fault))?;
        let refunded = refunded.into_iter().map(|one| api::Refunded { name: one.name, units: one.units });
        let response = api::SettleResponse { settled: word.into(), refunded: refunded.collect() };
        Ok(framed(response.encoded_len(), |out| response.encode_raw(out)))
    }))
}

/// Renews the slots of a request under way.
pub(super) fn renew(by: &By, message: &[u8]) -> Result<Reply, Status> {
    by.may(May::Refund)?;
    let request = api::RenewRequest::decode(message).map_err(Status::malformed)?;
    let worker = Arc::clone(&by.worker);
    Ok(Reply::Later(Box::pin(async move {
        let renewed = settle::renew(&worker, &request.charge_id).await;
        let Renewal { word, lapses_in_ms } = renewed.map_err(|fault| unsettled(&worker, &fault))?;
        let response = api::RenewResponse { renewed: word.into(), lapses_in_ms };
        Ok(framed(response.encoded_len(), |out| response.encode_raw(out)))
    })))
}

/// The status of a settlement or a renewal that was refused.
pub(super) fn unsettled(worker: &Worker, fault: &SettleFault) -> Status {
    match fault {
        SettleFault::Unwritten | SettleFault::Unheard => {
            Status::new(tonic::Code::Unavailable, fault.to_string())
        }
        SettleFault::Malformed(_) => {
            worker.refuse(fault);
            Status::new(tonic::Code::InvalidArgument, fault.to_string())
        }
    }
}

/// The cells that have overrides, with the reasons.
fn overrides(answer: &Answer, catalogue: &Catalogue) -> Vec<api::CellOverride> {
    let cell = |(place, limit)| {
        let found = catalogue.override_of(limit)?;
        Some(api::CellOverride {
            limit: place,
            until_wall_ns: found.until_ns,
            granted: found.granted.unwrap_or(0),
            why: found.why.clone().unwrap_or_default(),
            author: found.author.clone().unwrap_or_default(),
        })
    };
    (0..).zip(&answer.limits).filter_map(cell).collect()
}

/// The verdicts of candidates, next to those of the limits that they may replace.
fn candidates(answer: &Answer, catalogue: &Catalogue) -> Vec<api::CandidateVerdict> {
    let name = |limit: u32| catalogue.limits[limit as usize].limit.spec.name.clone();
    let verdict = |hits: BothSides| api::CandidateVerdict {
        candidate: name(hits.candidate),
        live: name(hits.live),
        candidate_denies: hits.candidate_denies,
        live_denies: hits.live_denies,
    };
    both_sides(answer, catalogue).map(verdict).collect()
}

fn owned(check: &CheckOut<'_>) -> api::CheckResponse {
    api::CheckResponse {
        allowed: check.allowed,
        limit: check.limit.to_owned(),
        remaining: check.remaining,
        retry_after_ms: check.retry_after_ms,
        delay_ms: check.delay_ms,
        reason: check.reason.into(),
        limits: check
            .limits
            .iter()
            .map(|limit| api::LimitResult {
                name: limit.name.to_owned(),
                budget: limit.budget,
                remaining: limit.remaining,
                retry_after_ms: limit.retry_after_ms,
                reset_after_ms: limit.reset_after_ms,
                delay_ms: limit.delay_ms,
                outcome: limit.outcome.into(),
                reason: limit.reason.into(),
                open_units: limit.open_units,
                owed: limit.owed,
                descriptors: limit.descriptors.to_vec(),
                cost: limit.cost,
                algorithm: limit.algorithm.to_owned(),
                class: limit.class.to_owned(),
                unit: limit.unit.to_owned(),
            })
            .collect(),
        charge_id: check.charge.map_or_else(String::new, |charge| charge.charge_id.to_owned()),
        is_repeat: check.charge.is_some_and(|charge| charge.is_repeat),
        charged: check.charge.map_or(0, |charge| charge.charged),
        lapses_in_ms: check.charge.map_or(0, |charge| charge.lapses_in_ms),
    }
}
