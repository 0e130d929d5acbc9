//! Records on disk that an earlier program wrote.

use std::collections::{BTreeMap, BTreeSet};

use crdts::LWWReg;
use serde::Deserialize;

use super::{
    Ack, Allocation, CellSecret, Fence, Incarnation, Lasts, Member, MemberId, Spared, Version, VersionId,
    VersionsRecord,
};

/// A [`VersionsRecord`] written without revoked certificates: it lacks [`Version::revoked`].
#[derive(Debug, Deserialize)]
pub struct KeptBefore {
    me: Incarnation,
    register: Option<LWWReg<VersionBefore, VersionId>>,
    chain: Vec<Allocation>,
    acks: BTreeMap<Incarnation, Ack>,
    closed: BTreeMap<(MemberId, u16), u32>,
    own: Option<Ack>,
    spared: BTreeMap<VersionId, Spared>,
}

/// A [`Version`] without [`Version::revoked`], field by field.
#[derive(Clone, Debug, Deserialize)]
struct VersionBefore {
    version_id: VersionId,
    allocation: VersionId,
    authority: Incarnation,
    members: BTreeMap<MemberId, Member>,
    leaving: BTreeSet<Incarnation>,
    fenced: Vec<Fence>,
    clock_error_ns: u64,
    drift_ppm: u32,
    key: CellSecret,
    lasts: Lasts,
    limits: Vec<u8>,
}

impl From<KeptBefore> for VersionsRecord {
    fn from(before: KeptBefore) -> Self {
        let register = before.register.map(|LWWReg { val, marker }| {
            let val = Version {
                version_id: val.version_id,
                allocation: val.allocation,
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
