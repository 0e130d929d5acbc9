//! Names of charges: from the id that a caller writes to the name that a node remembers, and back.
//!
//! A caller's id is hashed with a secret, so that nobody can guess another caller's name. The secret is the
//! node's, or that of all nodes that share a store. A `charge_id` has the node that made the charge and the
//! hash: `eu/eu-1:` and 32 hexadecimal digits.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use acequia_api::{
    acequia::v1::{Lapse, Renewed, Settled as Word},
    wire::{WireRecord, WireReserve},
};
use acequia_limits::{HashKey, Request, cell::Tagger, descriptor::CallersLimit};
use acequia_node::{CHARGES, ChargeId, Charged, RESERVE_NS_MAX, Recording, Remember, Reserve};
use serde::Deserialize;

use crate::question::BadRequest;

/// The longest id of a caller, in bytes.
pub const ID_BYTES_MAX: usize = 128;
const MS_NS: u64 = 1_000_000;

/// What a request with an id is. The ids of checks and of reports are apart: a gateway may use one id for a
/// request, and for the report of its real cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeKind {
    Check,
    Report,
}

impl ChargeKind {
    const fn prefix(self) -> &'static [u8] {
        match self {
            Self::Check => b"id",
            Self::Report => b"report",
        }
    }
}

/// Makes names.
#[derive(Debug)]
pub struct Names {
    /// The node, as `region/node`.
    node: String,
    tagger: Tagger,
    /// Drawn at the start: names that no caller chose are those of one process.
    process: [u8; 16],
    next: AtomicU64,
    /// The mates, as `region/node`, by number.
    mates: BTreeMap<u16, String>,
}

/// What a node and its region are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeName<'a> {
    pub(crate) region: &'a str,
    pub(crate) node: &'a str,
}

/// `reserve: { ttl, on_lapse, at_most }` of a JSON check.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object such as { \"ttl\": \"10m\" }")]
pub(crate) struct WrittenReserve {
    ttl: String,
    #[serde(default)]
    on_lapse: WrittenLapse,
    #[serde(default)]
    at_most: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenLapse {
    #[default]
    Release,
    Keep,
}

impl WrittenReserve {
    /// The reservation in the wire format of the gRPC API.
    pub(crate) fn wire(&self) -> Result<WireReserve, String> {
        let ns = acequia_limits::notation::parse_duration_ns(&self.ttl)?;
        let on_lapse = match self.on_lapse {
            WrittenLapse::Release => Lapse::Release,
            WrittenLapse::Keep => Lapse::Keep,
        };
        Ok(WireReserve { ttl_ms: ns / MS_NS, on_lapse: on_lapse.into(), at_most: self.at_most })
    }
}

/// Why a `charge_id` names nothing here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stranger {
    /// The text is no charge id.
    Malformed,
    /// Another node made the charge: that node's name, and the charge's.
    Other(String, ChargeId),
}

impl Names {
    /// For a node, with its secret and the bytes that were drawn at its start.
    pub fn new(region: &str, node: &str, key: &HashKey, process: [u8; 16]) -> Self {
        let tagger = Tagger::new(key, CHARGES);
        let (node, mates) = (format!("{region}/{node}"), BTreeMap::new());
        Self { node, tagger, process, next: AtomicU64::new(0), mates }
    }

    /// Adds the other nodes of the region, where they share a store and with it the secret.
    pub(crate) fn among<'a>(self, nodes: impl Iterator<Item = (u16, &'a str)>) -> Self {
        let region = self.node().region.to_owned();
        let mates = nodes.map(|(number, name)| (number, format!("{region}/{name}"))).collect();
        Self { mates, ..self }
    }

    /// How a request's charge is to be remembered; `None` if the caller does not ask for that.
    ///
    /// # Errors
    /// What is wrong with the caller's wish.
    pub(crate) fn recording(
        &self,
        request: &Request<'_>,
        record: &WireRecord<'_>,
        kind: ChargeKind,
    ) -> Result<Option<Recording>, BadRequest> {
        let WireRecord { id, refundable, reserve } = *record;
        if kind == ChargeKind::Report && (refundable || reserve.is_some()) {
            return Err(BadRequest::ReportSettles);
        }
        if id.is_empty() && !refundable && reserve.is_none() {
            return Ok(None);
        }
        if id.len() > ID_BYTES_MAX || id.iter().any(|byte| *byte < 0x20 || *byte == 0x7f) {
            return Err(BadRequest::Id);
        }
        let reserve = reserve.map(|reserve| read_reserve(request, reserve)).transpose()?;
        let is_repeatable = !id.is_empty();
        let id = match is_repeatable {
            true => ChargeId(self.tagger.all([kind.prefix(), request.domain, id].into_iter()).0),
            false => self.fresh(),
        };
        let fingerprint = self.fingerprint(request, reserve);
        let remember = Remember::Always;
        Ok(Some(Recording { id, fingerprint, is_repeatable, reserve, owner: 0, remember }))
    }

    /// How the slots and holds of a request are remembered whose caller asked for nothing.
    pub(crate) fn held(&self, owner: u32) -> Recording {
        // Nobody can ask under a fresh name, so no other request is compared with this one.
        let (id, fingerprint, remember) = (self.fresh(), 0, Remember::IfHeld);
        Recording { id, fingerprint, is_repeatable: false, reserve: None, owner, remember }
    }

    /// A name that was never given.
    fn fresh(&self) -> ChargeId {
        let number = self.next.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        ChargeId(self.tagger.all([&b"fresh"[..], &self.process, &number].into_iter()).0)
    }

    /// A hash of the whole question.
    fn fingerprint(&self, request: &Request<'_>, reserve: Option<Reserve>) -> u128 {
        let mut bytes = Vec::new();
        let mut put = |text: &[u8]| {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text);
        };
        put(request.domain);
        put(&request.cost.to_le_bytes());
        for descriptor in request.descriptors() {
            put(&[u8::from(descriptor.cost.is_some())]);
            put(&descriptor.cost.unwrap_or(0).to_le_bytes());
            if let Some(CallersLimit { units, period_s }) = descriptor.limit {
                put(&units.to_le_bytes());
                put(&period_s.get().to_le_bytes());
            }
            put(&(descriptor.entries.len() as u64).to_le_bytes());
            for (key, value) in descriptor.entries {
                put(key);
                put(value);
            }
        }
        if let Some(Reserve { ttl_ns, keeps, at_most }) = reserve {
            put(&ttl_ns.to_le_bytes());
            put(&[u8::from(keeps), u8::from(at_most)]);
        }
        self.tagger.one(&bytes).0
    }

    /// The names of the region and the node.
    pub(crate) fn node(&self) -> NodeName<'_> {
        let (region, node) = self.node.split_once('/').unwrap_or((&self.node, ""));
        NodeName { region, node }
    }

    /// A charge's name as callers know it.
    pub(crate) fn text(&self, charged: Charged) -> String {
        let by = charged.by.and_then(|number| self.mates.get(&number)).unwrap_or(&self.node);
        format!("{by}:{}", charged.id.to_text())
    }

    /// The charge that a text names, if this node made it.
    pub(crate) fn read(&self, text: &str) -> Result<ChargeId, Stranger> {
        let (node, id) = text.rsplit_once(':').ok_or(Stranger::Malformed)?;
        let id = ChargeId::from_text(id).ok_or(Stranger::Malformed)?;
        if node == self.node { Ok(id) } else { Err(Stranger::Other(node.to_owned(), id)) }
    }
}

fn read_reserve(request: &Request<'_>, wire: WireReserve) -> Result<Reserve, BadRequest> {
    let ttl_ns = wire.ttl_ms.saturating_mul(MS_NS);
    if !(MS_NS..=RESERVE_NS_MAX).contains(&ttl_ns) {
        return Err(BadRequest::Reserve(wire.ttl_ms));
    }
    if wire.at_most && request.spans.iter().any(|span| span.cost.is_some()) {
        return Err(BadRequest::AtMost);
    }
    // A lease may have been spent by a caller that does not come back.
    let keeps = wire.at_most || Lapse::try_from(wire.on_lapse) == Ok(Lapse::Keep);
    Ok(Reserve { ttl_ns, keeps, at_most: wire.at_most })
}

/// The word for an outcome in JSON and metrics.
pub const fn settled_word(word: Word) -> &'static str {
    match word {
        Word::Unspecified | Word::Unknown => "unknown",
        Word::Done => "done",
        Word::Before => "before",
        Word::Lapsed => "lapsed",
        Word::Forwarded => "forwarded",
    }
}

/// The word for the outcome of a renewal in JSON.
pub const fn renewed_word(word: Renewed) -> &'static str {
    match word {
        Renewed::Unspecified | Renewed::Unknown => "unknown",
        Renewed::Done => "done",
        Renewed::Denied => "denied",
        Renewed::Lapsed => "lapsed",
        Renewed::Elsewhere => "elsewhere",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new("eu", "eu-1", &HashKey([7; 16]), [1; 16])
    }

    fn recording(record: &WireRecord<'_>) -> Result<Option<Recording>, BadRequest> {
        names().recording(&Request::new("shop", &[("api_key", "k1")]), record, ChargeKind::Check)
    }

    #[test]
    fn a_request_without_an_id_is_not_recorded() {
        assert_eq!(recording(&WireRecord::default()), Ok(None));
    }

    #[test]
    fn an_id_has_the_same_hash_each_time_and_another_in_each_domain() {
        let id = WireRecord { id: b"once", ..WireRecord::default() };
        let names = names();
        let of = |domain, id: &WireRecord<'_>| {
            let request = Request::new(domain, &[("api_key", "k1")]);
            names.recording(&request, id, ChargeKind::Check).expect("sound").expect("asked for")
        };
        assert_eq!(of("shop", &id), of("shop", &id));
        assert_ne!(of("shop", &id).id, of("other", &id).id);
        let fresh = WireRecord { refundable: true, ..WireRecord::default() };
        assert_ne!(of("shop", &fresh).id, of("shop", &fresh).id);
        assert!(of("shop", &id).is_repeatable && !of("shop", &fresh).is_repeatable);
        let mut dearer = Request::new("shop", &[("api_key", "k1")]);
        dearer.cost = 2;
        let dearer = names.recording(&dearer, &id, ChargeKind::Check).expect("sound").expect("asked for");
        assert!(dearer.id == of("shop", &id).id && dearer.fingerprint != of("shop", &id).fingerprint);
    }

    #[test]
    fn an_impossible_id_or_ttl_is_refused() {
        let long = [b'x'; ID_BYTES_MAX + 1];
        for id in [&long[..], b"a\nb", b"\x7f"] {
            assert_eq!(recording(&WireRecord { id, ..WireRecord::default() }), Err(BadRequest::Id));
        }
        for ttl_ms in [0, 3_600_001, u64::MAX] {
            let reserve = Some(WireReserve { ttl_ms, ..WireReserve::default() });
            let record = WireRecord { reserve, ..WireRecord::default() };
            assert_eq!(recording(&record), Err(BadRequest::Reserve(ttl_ms)));
        }
    }

    #[test]
    fn a_charge_id_reads_back_and_names_its_node() {
        let names = names();
        let charged = Charged {
            id: ChargeId(5),
            by: None,
            is_repeat: false,
            is_lease: false,
            reserved: 0,
            lapses_in_ns: 0,
        };
        let text = names.text(charged);
        assert_eq!(text, "eu/eu-1:00000000000000000000000000000005");
        let names = names.among([(1, "eu-1"), (7, "eu-7")].into_iter());
        assert_eq!(names.text(Charged { by: Some(7), ..charged }), text.replace("eu-1", "eu-7"));
        assert_eq!(names.read(&text), Ok(ChargeId(5)));
        let other = text.replace("eu-1", "eu-2");
        assert_eq!(names.read(&other), Err(Stranger::Other("eu/eu-2".to_owned(), ChargeId(5))));
        for bad in ["", ":", "eu/eu-1", "eu/eu-1:5", "eu/eu-1:+0000000000000000000000000000005"] {
            assert_eq!(names.read(bad), Err(Stranger::Malformed), "{bad}");
        }
    }
}
