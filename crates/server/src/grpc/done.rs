//! What a proxy says when a stream is done: the real cost of a charge, or that the charge goes back.
//!
//! An answer that takes a slot hands out the id of its charge as dynamic metadata. The proxy sends the id back
//! as entry [`CHARGE`] of a descriptor, when the stream is done. Such a descriptor settles that charge, and
//! means nothing else: no limit counts it. N hits commit the charge; 0 hits or negative ones release it.
//!
//! An id is 128 bits that nobody can guess, so whoever has it may settle the charge. A text that is no id, or
//! that names no charge, changes nothing. The proxy gets an OK in any case: a client may have chosen the bytes.
//!
//! Negative hits without an id are given back only where the operator says so, and never as slots: Envoy says
//! that denied streams are done, too.

use std::{sync::Arc, time::Duration};

use acequia_api::wire::{WireDescriptor, WireRequest};
use acequia_limits::{Request, descriptor::Span};
use bytes::Bytes;
use futures::future::BoxFuture;

use super::{
    envoy::{Seen, all_settled, how, read, read_on, respond},
    message::Status,
    reply::{By, Reply, reply_to},
};
use crate::{
    config::May,
    question::{callers_limit, check_sizes},
    settle::{Unsent, send, settle_at_once},
    tally::Ignored,
    worker::Worker,
};

/// The key of the entry that carries the id of a charge.
const CHARGE: &[u8] = b"acequia.charge";

/// Whether a request says that anything is done.
#[inline]
pub(super) fn is_done(wire: &WireRequest<'_>) -> bool {
    wire.entries.iter().any(|(key, _)| *key == CHARGE)
        || wire.descriptors.iter().any(|descriptor| descriptor.is_negative_hits)
}

/// Takes the descriptors out that carry ids. Returns their places, as a set of bits.
pub(super) fn take_out(wire: &mut WireRequest<'_>) -> u64 {
    let WireRequest { entries, descriptors, .. } = wire;
    let (mut place, mut settled) = (0, 0);
    descriptors.retain(|descriptor| {
        let own = &entries[descriptor.entries_start as usize..descriptor.entries_end as usize];
        let has_id = own.iter().any(|(key, _)| *key == CHARGE);
        settled |= u64::from(has_id) << place;
        place += 1;
        !has_id
    });
    settled
}

/// Answers a request that says what is done, and decides what else it asks.
#[cold]
pub(super) fn reply(
    by: &By,
    message: &Bytes,
    mut wire: WireRequest<'_>,
    longest: Duration,
) -> Result<Reply, Status> {
    let worker = &by.worker;
    by.may(May::Check)?;
    by.may_ask_for(wire.domain)?;
    // Another descriptor may be too large to be looked at: these charges are settled nevertheless.
    let unsent = settle_all(worker, &wire);
    let counted = give_back(worker, &wire);
    let seen = Seen { descriptors: wire.descriptors.len(), settled: take_out(&mut wire) };
    let reply = if wire.descriptors.is_empty() {
        Reply::Now(all_settled(seen))
    } else {
        let (request, seen) = read_on(worker, wire, seen)?;
        reply_to(by, message, request, seen, how(longest), read, respond)?
    };
    if unsent.is_empty() && counted.is_none() {
        return Ok(reply);
    }
    let worker = Arc::clone(worker);
    Ok(Reply::Later(Box::pin(async move {
        send(&worker, unsent).await;
        if let Some(counted) = counted {
            counted.await;
        }
        match reply {
            Reply::Now(reply) => Ok(reply),
            Reply::Later(reply) => reply.await,
        }
    })))
}

/// Settles every charge that a descriptor names.
fn settle_all(worker: &Worker, wire: &WireRequest<'_>) -> Vec<Unsent> {
    let settle = |descriptor: &WireDescriptor| {
        let (_, id) = wire.entries_of(descriptor).iter().find(|(key, _)| *key == CHARGE)?;
        settle_at_once(worker, id, real_cost(descriptor, wire))
    };
    wire.descriptors.iter().filter_map(settle).collect()
}

/// The real cost of the charge that a descriptor names; `None` if the charge goes back.
fn real_cost(descriptor: &WireDescriptor, wire: &WireRequest<'_>) -> Option<u64> {
    Some(hits(descriptor, wire)).filter(|hits| *hits > 0 && !descriptor.is_negative_hits)
}

fn hits(descriptor: &WireDescriptor, wire: &WireRequest<'_>) -> u64 {
    descriptor.cost.or(wire.cost).unwrap_or(1)
}

/// Gives hits back that carry no id, if the domain takes such hits. Whoever counts elsewhere is to be told.
fn give_back(worker: &Arc<Worker>, wire: &WireRequest<'_>) -> Option<BoxFuture<'static, ()>> {
    let has_no_id = |descriptor: &&WireDescriptor| {
        descriptor.is_negative_hits && wire.entries_of(descriptor).iter().all(|(key, _)| *key != CHARGE)
    };
    let mut request = Request { domain: wire.domain, cost: 1, ..Request::default() };
    for descriptor in wire.descriptors.iter().filter(has_no_id) {
        let WireDescriptor { entries_start: start, entries_end: end, .. } = *descriptor;
        let limit = descriptor.limit_override.and_then(callers_limit);
        request.spans.push(Span { start, end, cost: Some(hits(descriptor, wire)), limit });
    }
    if request.spans.is_empty() {
        return None;
    }
    request.entries = wire.entries.clone();
    let settings = worker.shared.settings();
    let takes_them = settings.domain(wire.domain).negative_hits;
    let is_sound = takes_them && check_sizes(&request).is_ok();
    if is_sound && let Some(told) = worker.give_back_counted(&request) {
        return Some(told);
    }
    if !is_sound || !worker.hold().give_back(&request) {
        worker.count_ignored(Ignored::Nameless, request.spans.len());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    type Entries<'a> = &'a [(&'a [u8], &'a [u8])];

    fn wire<'a>(descriptors: &[(Entries<'a>, Option<u64>, bool)]) -> WireRequest<'a> {
        let mut wire = WireRequest { domain: b"shop", ..WireRequest::default() };
        for (entries, cost, is_negative_hits) in descriptors {
            let entries_start = wire.entries.len() as u32;
            wire.entries.extend(entries.iter().copied());
            let entries_end = wire.entries.len() as u32;
            let (cost, is_negative_hits) = (*cost, *is_negative_hits);
            let more = WireDescriptor::default();
            wire.descriptors.push(WireDescriptor {
                entries_start,
                entries_end,
                cost,
                is_negative_hits,
                ..more
            });
        }
        wire
    }

    const PLAIN: Entries<'static> = &[(b"tenant", b"t1")];
    const NAMED: Entries<'static> = &[(b"tenant", b"t1"), (CHARGE, b"eu/eu-1:0")];

    #[test]
    fn descriptors_with_ids_are_taken_out_and_others_stay() {
        let mut request = wire(&[(NAMED, None, false), (PLAIN, Some(3), false), (NAMED, None, true)]);
        assert!(is_done(&request));
        assert_eq!(take_out(&mut request), 0b101);
        let [left] = request.descriptors[..] else { panic!("{request:?}") };
        assert_eq!((request.entries_of(&left), left.cost), (PLAIN, Some(3)));
        let mut all = wire(&[(NAMED, None, false); 64]);
        assert_eq!((take_out(&mut all), all.descriptors.len()), (u64::MAX, 0));
    }

    #[test]
    fn a_request_without_ids_and_negative_hits_says_of_nothing_that_it_is_done() {
        let longer: Entries<'_> = &[(b"acequia.charges", b"x"), (b"charge", b"x"), (b"", b"")];
        assert!(!is_done(&wire(&[(PLAIN, None, false), (longer, Some(0), false)])));
        assert!(!is_done(&wire(&[])));
        assert!(is_done(&wire(&[(PLAIN, None, true)])));
        assert_eq!(take_out(&mut wire(&[(PLAIN, None, true)])), 0);
    }

    #[test]
    fn hits_commit_and_none_or_negative_ones_release() {
        for (own, all, is_negative, cost) in [
            (None, None, false, Some(1)),
            (None, Some(7), false, Some(7)),
            (Some(600), Some(7), false, Some(600)),
            (Some(u64::MAX), None, false, Some(u64::MAX)),
            (Some(0), Some(7), false, None),
            (Some(600), None, true, None),
            (None, None, true, None),
        ] {
            let mut request = wire(&[(NAMED, own, is_negative)]);
            request.cost = all;
            assert_eq!(real_cost(&request.descriptors[0], &request), cost, "{own:?} {all:?} {is_negative}");
        }
    }
}
