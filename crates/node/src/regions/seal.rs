//! Seals prove who made a version or an acknowledgement: each is signed by its maker.
//!
//! A connection proves from whom a frame comes, but not who made what the frame passes on. So versions and
//! acknowledgements carry their maker's [`Seal`]. A node that has [`Seals`] takes none without a seal, and
//! signs its own. The signature covers the bytes that are sent, behind a word that says what they are; for an
//! acknowledgement also the secret of the catalogue's cells. So a seal of one thing proves nothing else, and
//! nothing in another cluster.
//!
//! This crate knows no keys and no certificates. A node without [`Seals`] (alone, or in a test of the rules)
//! signs nothing and asks for nothing.

use std::{collections::BTreeMap, fmt, sync::Arc};

use acequia_rights::{Ack, Incarnation, Version, VersionId, versions::CellSecret};
use serde::{Deserialize, Serialize};

/// A signature, with the certificates that prove whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// The signature's algorithm: a number of TLS 1.3's (RFC 8446 section 4.2.3).
    pub scheme: u16,
    /// The signature.
    pub signature: Vec<u8>,
    /// The signer's certificate, and those between it and a root, in DER.
    pub chain: Vec<Vec<u8>>,
}

/// The role that a certificate must allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignerRole {
    /// To speak for its own node.
    Member,
    /// To make versions of the catalogue, too.
    Authority,
}

/// Why a seal was refused. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealFault {
    /// There is no seal.
    #[error("it is not signed: does its sender run an older version of this program?")]
    Missing,
    /// Somebody else signed.
    #[error("{0} signed it, whose word it is not")]
    AnotherWriter(String),
    /// The signer may not make versions.
    #[error(
        "{0} signed it, whose certificate lacks the URI acequia:authority: give it one (acequia certs --authority), or move the authority"
    )]
    NotAuthority(String),
    /// The seal proves nothing: why, in words.
    #[error("{0}")]
    Worthless(String),
}

/// How a node signs, and checks what others signed.
pub trait Seals: fmt::Debug + Send + Sync {
    /// Signs these bytes.
    ///
    /// # Errors
    /// Why it cannot, in words.
    fn seal(&self, said: &[u8]) -> Result<Seal, String>;

    /// Checks that this is the seal of `by`, and that its certificate allows the role and is neither expired
    /// nor revoked.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, said: &[u8], seal: &Seal, by: Incarnation, role: SignerRole) -> Result<(), SealFault>;
}

fn of_version(version: &Version) -> Vec<u8> {
    postcard::to_extend(version, b"acequia version\0".to_vec()).unwrap_or_default()
}

fn of_ack(writer: Incarnation, ack: Ack, key: CellSecret) -> Vec<u8> {
    postcard::to_extend(&(writer, ack, key), b"acequia acknowledgement\0".to_vec()).unwrap_or_default()
}

/// The seals of what this node passes on.
#[derive(Debug, Default)]
pub(crate) struct SealStore {
    seals: Option<Arc<dyn Seals>>,
    kept: SealsRecord,
    /// The last seal that was refused, and who should have signed.
    refused: Option<(Incarnation, SealFault)>,
}

/// The seals that are on disk, so that a node that begins anew can pass on what it has.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SealsRecord {
    version: Option<(VersionId, Box<Seal>)>,
    acks: BTreeMap<Incarnation, (Ack, Box<Seal>)>,
}

/// The seal that goes with a version or an acknowledgement; `None` if nobody signs.
pub(crate) type Proof = Option<Box<Seal>>;

impl SealStore {
    /// Restores the seals from the disk. A record that cannot be read counts as none: makers send theirs
    /// again.
    pub(crate) fn restore(bytes: &[u8]) -> Self {
        Self { kept: postcard::from_bytes(bytes).unwrap_or_default(), ..Self::default() }
    }

    /// The record for the disk; `None` if nobody signs.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        self.seals.as_ref().and_then(|_| postcard::to_allocvec(&self.kept).ok())
    }

    /// Signs by `seals` from now on.
    pub(crate) fn begin(&mut self, seals: Arc<dyn Seals>) {
        self.seals = Some(seals);
    }

    /// The last refusal; returned once.
    pub(crate) fn take_refused(&mut self) -> Option<(Incarnation, SealFault)> {
        self.refused.take()
    }

    /// Signs a version that this node made.
    pub(crate) fn sign_version(&mut self, version: &Version) {
        let signed = self.seals.as_ref().and_then(|seals| seals.seal(&of_version(version)).ok());
        if let Some(seal) = signed {
            self.kept.version = Some((version.version_id, Box::new(seal)));
        }
    }

    /// Signs what this node acknowledged.
    pub(crate) fn sign_ack(&mut self, me: Incarnation, ack: Ack, key: CellSecret) {
        let signed = self.seals.as_ref().and_then(|seals| seals.seal(&of_ack(me, ack, key)).ok());
        if let Some(seal) = signed {
            self.kept.acks.insert(me, (ack, Box::new(seal)));
        }
    }

    /// Whether the seal proves that a version is its authority's.
    pub(crate) fn check_version(&mut self, version: &Version, proof: Option<&Seal>) -> Result<(), ()> {
        self.check(version.authority, SignerRole::Authority, proof, || of_version(version))
    }

    /// Whether the seal proves that an acknowledgement is its maker's.
    pub(crate) fn check_ack(
        &mut self,
        incarnation: Incarnation,
        ack: Ack,
        key: CellSecret,
        proof: Option<&Seal>,
    ) -> Result<(), ()> {
        self.check(incarnation, SignerRole::Member, proof, || of_ack(incarnation, ack, key))
    }

    fn check(
        &mut self,
        by: Incarnation,
        role: SignerRole,
        proof: Option<&Seal>,
        said: impl Fn() -> Vec<u8>,
    ) -> Result<(), ()> {
        let Some(seals) = &self.seals else { return Ok(()) };
        let checked = proof.ok_or(SealFault::Missing).and_then(|seal| seals.check(&said(), seal, by, role));
        checked.map_err(|fault| self.refused = Some((by, fault)))
    }

    /// Keeps the seal of the version that this node has, to pass it on.
    pub(crate) fn keep_version(&mut self, version_id: VersionId, proof: Proof) {
        self.kept.version = proof.map(|seal| (version_id, seal));
    }

    /// Keeps the seal of an incarnation's newest acknowledgement.
    pub(crate) fn keep_ack(&mut self, incarnation: Incarnation, ack: Ack, proof: Proof) {
        let is_newer = self.kept.acks.get(&incarnation).is_none_or(|(known, _)| *known <= ack);
        if let Some(seal) = proof.filter(|_| is_newer) {
            self.kept.acks.insert(incarnation, (ack, seal));
        }
    }

    /// Whether this acknowledgement was proven before by the same seal.
    pub(crate) fn knows_ack(&self, incarnation: Incarnation, ack: Ack, proof: Option<&Seal>) -> bool {
        let kept = self.kept.acks.get(&incarnation);
        self.seals.is_some() && kept.is_some_and(|(known, seal)| *known == ack && proof == Some(&**seal))
    }

    /// The proof to send with a version; `None` if others would not accept it, so that it is not sent at all.
    pub(crate) fn proof_of(&self, version_id: VersionId) -> Option<Proof> {
        if self.seals.is_none() {
            return Some(None);
        }
        let (of, seal) = self.kept.version.as_ref()?;
        (*of == version_id).then(|| Some(seal.clone()))
    }

    /// The acknowledgement of an incarnation to pass on, and its proof; without seals it is `known`, which
    /// this node counts. `None` if others would not accept it.
    pub(crate) fn ack_of(&self, incarnation: Incarnation, known: Ack) -> Option<(Ack, Proof)> {
        if self.seals.is_none() {
            return Some((known, None));
        }
        let (ack, seal) = self.kept.acks.get(&incarnation)?;
        Some((*ack, Some(seal.clone())))
    }

    /// Forgets the seals of incarnations that nobody asks any more.
    pub(crate) fn retain(&mut self, is_asked: impl Fn(Incarnation) -> bool) {
        self.kept.acks.retain(|incarnation, _| is_asked(*incarnation));
    }
}
