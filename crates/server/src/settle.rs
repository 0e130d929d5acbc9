//! Settlements: a caller gives a charge back, or says its real cost. Renewals: a request is still under way.

use acequia_api::acequia::v1::{Renewed as RenewedWord, Settled as Word};
use acequia_node::{ChargeId, Refunded, Renewed, Settled};
use acequia_rights::pool::Letter;
use futures::future::join_all;

use crate::{
    charges::Stranger, idempotency, settings::SETTINGS, shared::Shared, tally::Ignored, worker::Worker,
    writer::REPLY_WAIT_MAX,
};

const MS_NS: u64 = 1_000_000;

/// The outcome of a settlement, and the units that came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settlement {
    pub(crate) word: Word,
    pub(crate) refunded: Vec<Refunded>,
}

/// The outcome of a renewal, and how long the slots are taken from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) word: RenewedWord,
    pub(crate) lapses_in_ms: u64,
}

/// Why a settlement or a renewal was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettleFault {
    /// The text is no charge id.
    #[error("{0:?} is no charge_id: give back what the answer to the check said, as it was")]
    Malformed(String),
    /// The disk is too slow, or full.
    #[error("the journal cannot be written, so what was asked is not certain: say it again later")]
    Unwritten,
    /// The store that the nodes of the region share does not answer.
    #[error(
        "the store of the region does not answer, so other nodes may still answer this id, or have not heard of it: nothing was given \
         back, say it again later"
    )]
    Unheard,
}

impl SettleFault {
    fn malformed(charge_id: &str) -> Self {
        Self::Malformed(charge_id.chars().take(SETTINGS.requests.shown_chars_max).collect())
    }
}

/// Gives a charge back, or settles it with its real cost, and waits until that is certain.
pub(crate) async fn settle(
    worker: &Worker,
    charge_id: &str,
    cost: Option<u64>,
) -> Result<Settlement, SettleFault> {
    let shared = &worker.shared;
    let id = match shared.names.read(charge_id) {
        Ok(id) => id,
        Err(Stranger::Malformed) => return Err(SettleFault::malformed(charge_id)),
        Err(Stranger::Other(node, id)) => {
            let is_sent = shared.regions().is_some_and(|regions| regions.forward(&node, id, cost));
            let word = if is_sent || tell_mate(shared, &node, id, cost).await? {
                Word::Forwarded
            } else {
                Word::Unknown
            };
            worker.count_settled(word, &[]);
            return Ok(Settlement { word, refunded: Vec::new() });
        }
    };
    let names = shared.own_region.get().map(|region| &*region.names);
    let settled = idempotency::settle(&shared.node, &*shared.clock, names, id, cost).await;
    let settled = settled.ok_or(SettleFault::Unheard)?;
    let (word, refunded, batch) = match settled {
        Settled::Done { refunded, after_batch } => (Word::Done, refunded, after_batch),
        Settled::Before { after_batch } => (Word::Before, Vec::new(), after_batch),
        Settled::Lapsed => (Word::Lapsed, Vec::new(), 0),
        // The node does not share this charge with others any more.
        Settled::Unknown | Settled::Shared { .. } => (Word::Unknown, Vec::new(), 0),
    };
    worker.count_settled(word, &refunded);
    written(shared, batch).await?;
    Ok(Settlement { word, refunded })
}

/// A settlement that a letter in the store must carry to another node of the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unsent {
    node: String,
    id: ChargeId,
    cost: Option<u64>,
}

/// Settles a charge for a proxy, which waits for no outcome: as [`settle`], but nothing is waited for, and every
/// fault is only counted. Returns what [`send`] has to do.
pub(crate) fn settle_at_once(worker: &Worker, charge_id: &[u8], cost: Option<u64>) -> Option<Unsent> {
    let shared = &worker.shared;
    let read = std::str::from_utf8(charge_id).map_err(|_| Stranger::Malformed);
    match read.and_then(|text| shared.names.read(text)) {
        Ok(id) => {
            let (word, refunded) = match shared.node.settle_sometime(id, cost, shared.clock.now()) {
                Settled::Done { refunded, .. } => (Word::Done, refunded),
                Settled::Before { .. } => (Word::Before, Vec::new()),
                Settled::Shared { .. } => (Word::Forwarded, Vec::new()),
                Settled::Lapsed => (Word::Lapsed, Vec::new()),
                Settled::Unknown => (Word::Unknown, Vec::new()),
            };
            worker.count_settled(word, &refunded);
            None
        }
        Err(Stranger::Malformed) => {
            worker.count_ignored(Ignored::Malformed, 1);
            None
        }
        Err(Stranger::Other(node, id)) => {
            if shared.regions().is_some_and(|regions| regions.forward(&node, id, cost)) {
                worker.count_settled(Word::Forwarded, &[]);
                return None;
            }
            Some(Unsent { node, id, cost })
        }
    }
}

/// Tells other nodes of the region of settlements, all at one time.
pub(crate) async fn send(worker: &Worker, unsent: Vec<Unsent>) {
    let sends = unsent.into_iter().map(async |Unsent { node, id, cost }| {
        match tell_mate(&worker.shared, &node, id, cost).await {
            Ok(true) => worker.count_settled(Word::Forwarded, &[]),
            Ok(false) => worker.count_settled(Word::Unknown, &[]),
            // The units stay charged, or come back when their time is over.
            Err(_) => worker.count_ignored(Ignored::Untold, 1),
        }
    });
    join_all(sends).await;
}

/// Renews the slots of a request under way, and waits until that is certain.
pub(crate) async fn renew(worker: &Worker, charge_id: &str) -> Result<Renewal, SettleFault> {
    let shared = &worker.shared;
    let id = match shared.names.read(charge_id) {
        Ok(id) => id,
        Err(Stranger::Malformed) => return Err(SettleFault::malformed(charge_id)),
        // The other node's answer could not be waited for: nodes tell each other of settlements, and answer none.
        Err(Stranger::Other(..)) => {
            return Ok(Renewal { word: RenewedWord::Elsewhere, lapses_in_ms: 0 });
        }
    };
    let (word, lapses_in_ns, batch) = match shared.node.renew(id, shared.clock.now()) {
        Renewed::Done { lapses_in_ns, after_batch } => (RenewedWord::Done, lapses_in_ns, after_batch),
        Renewed::Denied { lapses_in_ns } => (RenewedWord::Denied, lapses_in_ns, 0),
        Renewed::Lapsed => (RenewedWord::Lapsed, 0, 0),
        Renewed::Unknown => (RenewedWord::Unknown, 0, 0),
    };
    written(shared, batch).await?;
    Ok(Renewal { word, lapses_in_ms: lapses_in_ns / MS_NS })
}

/// Waits until a batch is on disk; 0 for none.
async fn written(shared: &Shared, batch: u64) -> Result<(), SettleFault> {
    match &shared.writer {
        Some(writer) if batch > 0 && !writer.wait_for(batch, REPLY_WAIT_MAX).await => {
            Err(SettleFault::Unwritten)
        }
        _ => Ok(()),
    }
}

/// Has another node of the region, `region/node`, settle a charge that it made. Says whether there is such a
/// node.
async fn tell_mate(
    shared: &Shared,
    node: &str,
    id: ChargeId,
    cost: Option<u64>,
) -> Result<bool, SettleFault> {
    let name = node.strip_prefix(shared.names.node().region).and_then(|node| node.strip_prefix('/'));
    let Some((region, name)) = shared.own_region.get().zip(name) else { return Ok(false) };
    let Some(number) = region.number(name) else { return Ok(false) };
    let letter = Letter { id: id.0, cost };
    match region.names.post(number, letter, shared.clock.now()).await {
        true => Ok(true),
        false => Err(SettleFault::Unheard),
    }
}
