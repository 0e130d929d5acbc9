//! Whose word it is: versions and acknowledgements are signed by their writers.
//!
//! A frame comes from whom its connection proves. What it passes on of others does not: so what others pass on carries its
//! writer's [`Seal`], and a node that has [`Seals`] takes none without it, and signs its own. Signed are the bytes that are
//! told, behind a word that says what they are, and for an acknowledgement the secret of the catalogue's cells: a seal of one
//! thing proves nothing else, in no other cluster.
//!
//! This crate knows no keys and no certificates. A node without [`Seals`] (alone, or in a test of the rules) signs nothing and
//! asks for nothing.

use std::{collections::BTreeMap, fmt, sync::Arc};

use acequia_rights::{Ack, Incarnation, Version, VersionId, versions::CellKey as CatalogueKey};
use serde::{Deserialize, Serialize};

/// A signature, with the certificates that prove whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// Which algorithm: a number of TLS 1.3's (RFC 8446 section 4.2.3).
    pub scheme: u16,
    /// The signature.
    pub signature: Vec<u8>,
    /// The signer's certificate, and those between it and a root, in DER.
    pub chain: Vec<Vec<u8>>,
}

/// What a certificate must allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To speak for its own node.
    Member,
    /// To make versions of the catalogue, too.
    Authority,
}

/// Why a word was not taken for its writer's. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealFault {
    /// There is no seal.
    #[error("it is not signed: does its sender run an older version of this program?")]
    Missing,
    /// Somebody else's.
    #[error("{0} signed it, whose word it is not")]
    AnotherWriter(String),
    /// Of one that may not make versions.
    #[error(
        "{0} signed it, whose certificate lacks the URI acequia:authority: give it one (acequia certs --authority), or move the authority"
    )]
    NotAuthority(String),
    /// It proves nothing: why, in words.
    #[error("{0}")]
    Worthless(String),
}

/// How a node signs, and proves what others signed.
pub trait Seals: fmt::Debug + Send + Sync {
    /// Signs.
    ///
    /// # Errors
    /// Why it cannot, in words.
    fn seal(&self, said: &[u8]) -> Result<Seal, String>;

    /// Whether this is the writer's seal, and its certificate allows the role and is neither expired nor revoked.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, said: &[u8], seal: &Seal, by: Incarnation, role: Role) -> Result<(), SealFault>;
}

fn of_version(version: &Version) -> Vec<u8> {
    postcard::to_extend(version, b"acequia version\0".to_vec()).unwrap_or_default()
}

fn of_ack(writer: Incarnation, ack: Ack, key: CatalogueKey) -> Vec<u8> {
    postcard::to_extend(&(writer, ack, key), b"acequia acknowledgement\0".to_vec()).unwrap_or_default()
}

/// The seals of what this node passes on.
#[derive(Debug, Default)]
pub(crate) struct SealStore {
    seals: Option<Arc<dyn Seals>>,
    kept: SealsRecord,
    /// The last that was refused, and whose word it should have been.
    refused: Option<(Incarnation, SealFault)>,
}

/// What of them is on disk, so that a node that begins anew can pass on what it has.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SealsRecord {
    version: Option<(VersionId, Box<Seal>)>,
    acks: BTreeMap<Incarnation, (Ack, Box<Seal>)>,
}

/// What a word is passed on with: nothing where nobody signs.
pub(crate) type Proof = Option<Box<Seal>>;

impl SealStore {
    /// What a disk has. A record that cannot be read is as none: writers say their word again.
    pub(crate) fn restore(bytes: &[u8]) -> Self {
        Self { kept: postcard::from_bytes(bytes).unwrap_or_default(), ..Self::default() }
    }

    /// What is to be on disk; nothing where nobody signs.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        self.seals.as_ref().and_then(|_| postcard::to_allocvec(&self.kept).ok())
    }

    /// Signs by these from now on.
    pub(crate) fn begin(&mut self, seals: Arc<dyn Seals>) {
        self.seals = Some(seals);
    }

    /// The last word that was refused, once.
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
    pub(crate) fn sign_ack(&mut self, me: Incarnation, ack: Ack, key: CatalogueKey) {
        let signed = self.seals.as_ref().and_then(|seals| seals.seal(&of_ack(me, ack, key)).ok());
        if let Some(seal) = signed {
            self.kept.acks.insert(me, (ack, Box::new(seal)));
        }
    }

    /// Whether a version is its authority's word.
    pub(crate) fn check_version(&mut self, version: &Version, proof: Option<&Seal>) -> Result<(), ()> {
        self.check(version.authority, Role::Authority, proof, || of_version(version))
    }

    /// Whether an acknowledgement is its writer's word.
    pub(crate) fn check_ack(
        &mut self,
        (incarnation, ack): (Incarnation, Ack),
        key: CatalogueKey,
        proof: Option<&Seal>,
    ) -> Result<(), ()> {
        self.check(incarnation, Role::Member, proof, || of_ack(incarnation, ack, key))
    }

    fn check(
        &mut self,
        by: Incarnation,
        role: Role,
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

    /// Keeps the seal of the newest that a writer acknowledged.
    pub(crate) fn keep_ack(&mut self, incarnation: Incarnation, ack: Ack, proof: Proof) {
        let is_newer = self.kept.acks.get(&incarnation).is_none_or(|(known, _)| *known <= ack);
        if let Some(seal) = proof.filter(|_| is_newer) {
            self.kept.acks.insert(incarnation, (ack, seal));
        }
    }

    /// Whether this very word was proven before, by the same seal.
    pub(crate) fn knows_ack(&self, incarnation: Incarnation, ack: Ack, proof: Option<&Seal>) -> bool {
        let kept = self.kept.acks.get(&incarnation);
        self.seals.is_some() && kept.is_some_and(|(known, seal)| *known == ack && proof == Some(&**seal))
    }

    /// What a version is told with; nothing at all where others would not take it.
    pub(crate) fn proof_of(&self, version_id: VersionId) -> Option<Proof> {
        if self.seals.is_none() {
            return Some(None);
        }
        let (of, seal) = self.kept.version.as_ref()?;
        (*of == version_id).then(|| Some(seal.clone()))
    }

    /// What of a writer's acknowledgements is passed on, where `known` is what this node counts; nothing at all where others
    /// would not take it.
    pub(crate) fn ack_of(&self, incarnation: Incarnation, known: Ack) -> Option<(Ack, Proof)> {
        if self.seals.is_none() {
            return Some((known, None));
        }
        let (ack, seal) = self.kept.acks.get(&incarnation)?;
        Some((*ack, Some(seal.clone())))
    }

    /// Forgets those whom nobody asks any more.
    pub(crate) fn retain(&mut self, is_asked: impl Fn(Incarnation) -> bool) {
        self.kept.acks.retain(|incarnation, _| is_asked(*incarnation));
    }
}
