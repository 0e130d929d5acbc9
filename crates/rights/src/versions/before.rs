//! What disks have that an earlier program wrote.

use std::collections::{BTreeMap, BTreeSet};

use crdts::LWWReg;
use serde::Deserialize;

use super::{Ack, CellKey, Fence, Kept, Lasts, Mark, Member, Region, Spared, Term, Version, Writer};

/// A [`Kept`] of a disk that was written before certificates could be revoked: it lacks [`Version::revoked`].
#[derive(Debug, Deserialize)]
pub struct KeptBefore {
    me: Writer,
    register: Option<LWWReg<VersionBefore, Mark>>,
    chain: Vec<Term>,
    acks: BTreeMap<Writer, Ack>,
    closed: BTreeMap<(Region, u16), u32>,
    own: Option<Ack>,
    spared: BTreeMap<Mark, Spared>,
}

/// A [`Version`] of that time, field by field.
#[derive(Clone, Debug, Deserialize)]
struct VersionBefore {
    mark: Mark,
    term: Mark,
    authority: Writer,
    members: BTreeMap<Region, Member>,
    leaving: BTreeSet<Writer>,
    fenced: Vec<Fence>,
    clock_error_ns: u64,
    drift_ppm: u32,
    key: CellKey,
    lasts: Lasts,
    limits: Vec<u8>,
}

impl From<KeptBefore> for Kept {
    fn from(before: KeptBefore) -> Self {
        let register = before.register.map(|LWWReg { val, marker }| {
            let val = Version {
                mark: val.mark,
                term: val.term,
                authority: val.authority,
                members: val.members,
                leaving: val.leaving,
                fenced: val.fenced,
                clock_error_ns: val.clock_error_ns,
                drift_ppm: val.drift_ppm,
                key: val.key,
                lasts: val.lasts,
                limits: val.limits,
                revoked: BTreeSet::new(),
            };
            LWWReg { val, marker }
        });
        let KeptBefore { me, chain, acks, closed, own, spared, .. } = before;
        Self { me, register, chain, acks, closed, own, spared }
    }
}
