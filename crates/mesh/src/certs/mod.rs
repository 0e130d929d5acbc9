//! The folder that a node's certificates live in: `ca.pem`, `NODE.pem` and `NODE.key`, and, where they are
//! made, `ca.key`.
//!
//! A node's certificate has two subject alternative names: the URI `acequia://REGION/NODE`
//! ([`Identity::uri`]), which is who it is, and the DNS name [`SERVER_NAME`], the same for all, because TLS
//! insists on one. Certificates from elsewhere serve as well if they carry both and may be used by clients
//! and by servers. `ca.pem` may hold several authorities, so that one can follow another, and `NODE.pem` may
//! hold intermediate certificates after the node's own.

mod create;
mod load;

use std::{fmt, path::Path};

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::{extensions::GeneralName, prelude::FromDer as _, prelude::X509Certificate};

pub(crate) use self::load::{provider, roots};
pub use self::{create::create, load::load};
use crate::Identity;

/// The DNS name that every node's certificate has. Who a node is, its URI says.
pub const SERVER_NAME: &str = "acequia.internal";

/// What a node shows to others, and by whom it knows them.
pub struct Credentials {
    pub(crate) identity: Identity,
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) expires_unix_s: i64,
}

impl Credentials {
    /// The node that the certificate names.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// When the certificate, or the last authority that could vouch for it, ends: seconds since 1970, UTC.
    #[must_use]
    pub const fn expires_unix_s(&self) -> i64 {
        self.expires_unix_s
    }
}

impl Clone for Credentials {
    fn clone(&self) -> Self {
        Self {
            identity: self.identity.clone(),
            authorities: self.authorities.clone(),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            expires_unix_s: self.expires_unix_s,
        }
    }
}

/// Without the key.
impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Credentials")
            .field("identity", &self.identity)
            .field("expires_unix_s", &self.expires_unix_s)
            .finish_non_exhaustive()
    }
}

/// What is wrong with a folder of certificates, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertFault {
    /// A file is not there.
    #[error("there is no {path}. {mend}")]
    Missing {
        /// The file.
        path: String,
        /// What to do.
        mend: String,
    },
    /// A file or the folder cannot be read or written.
    #[error(
        "cannot use {path}: {cause}. Let the user that runs acequia read (and, to make certificates, write) it"
    )]
    File {
        /// The file or folder.
        path: String,
        /// What the system says.
        cause: String,
    },
    /// A file does not hold what it should.
    #[error("{path} is of no use: {what}. {mend}")]
    Unusable {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
        /// What to do.
        mend: String,
    },
    /// The certificate is somebody else's.
    #[error("{path} names {named}, but this node is {expected}. {mend}")]
    WrongName {
        /// The file.
        path: String,
        /// Whom it names.
        named: String,
        /// Who this node is, by its configuration.
        expected: Identity,
        /// What to do.
        mend: String,
    },
    /// The certificate and the key do not belong together, perhaps because they are just being replaced.
    #[error(
        "{path} does not belong to {key_path}. Read them again if they are just being replaced, or else: {mend}"
    )]
    Mismatch {
        /// The certificate.
        path: String,
        /// The key.
        key_path: String,
        /// What to do.
        mend: String,
    },
    /// The certificate, or its authority, is past its end, or not yet valid.
    #[error("{path} is valid from {from} to {until}, and it is {now} (UTC). {mend}")]
    OutOfDate {
        /// The file.
        path: String,
        /// Its first second.
        from: String,
        /// Its last second.
        until: String,
        /// The time.
        now: String,
        /// What to do.
        mend: String,
    },
    /// A name that no certificate can carry.
    #[error(
        "{0} is no name of a node: a region and a node are each 1 to 64 letters, digits, '-', '_' and '.'"
    )]
    BadName(String),
    /// Two certificates would have one file.
    #[error("the node {0} is named twice: nodes have names of their own, whatever their regions")]
    Twice(String),
}

/// What a certificate says that this crate goes by.
pub(crate) struct Facts {
    /// Or what is wrong with the name.
    pub(crate) identity: Result<Identity, String>,
    pub(crate) from_unix_s: i64,
    pub(crate) until_unix_s: i64,
}

/// Reads a certificate, whoever sent it.
pub(crate) fn facts(certificate: &CertificateDer<'_>) -> Result<Facts, String> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
    Ok(Facts {
        identity: identity_in(&parsed),
        from_unix_s: parsed.validity().not_before.timestamp(),
        until_unix_s: parsed.validity().not_after.timestamp(),
    })
}

/// The one name of Acequia's in a certificate: with two, nobody could say which one counts.
fn identity_in(certificate: &X509Certificate<'_>) -> Result<Identity, String> {
    let extension = certificate.subject_alternative_name().map_err(|error| error.to_string())?;
    let names = extension.map_or(&[][..], |extension| &extension.value.general_names);
    let mut identities = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => uri.parse::<Identity>().ok(),
        _ => None,
    });
    match (identities.next(), identities.next()) {
        (Some(identity), None) => Ok(identity),
        (Some(_), Some(_)) => Err("several names of nodes".to_owned()),
        (None, _) => Err("no name of a node, which is a URI acequia://REGION/NODE".to_owned()),
    }
}

fn path_of(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

/// How to make one node's certificate.
fn recipe(folder: &Path, identity: &Identity) -> String {
    format!("Make it with: acequia certs {} {}={}", folder.display(), identity.node, identity.region)
}

/// A time as people read it.
fn date(unix_s: i64) -> String {
    match time::OffsetDateTime::from_unix_timestamp(unix_s) {
        Ok(at) => format!(
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
            at.year(),
            u8::from(at.month()),
            at.day(),
            at.hour(),
            at.minute(),
            at.second()
        ),
        Err(_) => format!("second {unix_s}"),
    }
}

fn now_unix_s() -> i64 {
    time::OffsetDateTime::now_utc().unix_timestamp()
}
