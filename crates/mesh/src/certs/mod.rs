//! The folder of a node's certificates: `ca.pem`, `NODE.pem` and `NODE.key`. Where certificates are made,
//! the folder also has `ca.key`.
//!
//! A node's certificate has two subject alternative names. The URI `acequia://REGION/NODE`
//! ([`Identity::uri`]) is the node's name. The DNS name [`SERVER_NAME`] is equal for all nodes, because TLS
//! insists on a DNS name. The certificate of a node that may make versions of the catalogue has the URI
//! [`AUTHORITY_URI`] as well. Certificates made elsewhere also work if they have both names and may be used
//! by clients and servers. `ca.pem` may hold several authorities, so that one can follow another.
//! `NODE.pem` may hold intermediate certificates after the node's own.

mod create;
mod load;

use std::{fmt, path::Path};

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::{extensions::GeneralName, prelude::FromDer as _, prelude::X509Certificate};

pub(crate) use self::load::{provider, roots};
pub use self::{create::create, load::load};
use crate::Identity;

/// The DNS name of every node's certificate. The URI names the node.
pub const SERVER_NAME: &str = "acequia.internal";

/// An extra URI in the certificate of a node that may make versions of the catalogue.
pub const AUTHORITY_URI: &str = "acequia:authority";

/// The certificate that a node shows, and the authorities that it trusts.
pub struct Credentials {
    pub(crate) identity: Identity,
    pub(crate) is_authority: bool,
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

    /// Whether the certificate has the role of an authority: [`AUTHORITY_URI`].
    #[must_use]
    pub const fn is_authority(&self) -> bool {
        self.is_authority
    }

    /// When these credentials end, in seconds since 1970, UTC: with the first certificate of the chain that
    /// ends, or with the last authority, whichever is earlier.
    #[must_use]
    pub const fn expires_unix_s(&self) -> i64 {
        self.expires_unix_s
    }
}

impl Clone for Credentials {
    fn clone(&self) -> Self {
        Self {
            identity: self.identity.clone(),
            is_authority: self.is_authority,
            authorities: self.authorities.clone(),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            expires_unix_s: self.expires_unix_s,
        }
    }
}

/// Shows everything but the key.
impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Credentials")
            .field("identity", &self.identity)
            .field("is_authority", &self.is_authority)
            .field("expires_unix_s", &self.expires_unix_s)
            .finish_non_exhaustive()
    }
}

/// A fault in a folder of certificates, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertFault {
    /// A file is missing.
    #[error("there is no {path}. {mend}")]
    Missing {
        /// The file.
        path: String,
        /// How to fix it.
        mend: String,
    },
    /// A file or the folder cannot be read or written.
    #[error(
        "cannot use {path}: {cause}. Let the user that runs acequia read (and, to make certificates, write) it"
    )]
    File {
        /// The file or folder.
        path: String,
        /// The system's message.
        cause: String,
    },
    /// A file's content cannot be used.
    #[error("{path} is of no use: {what}. {mend}")]
    Unusable {
        /// The file.
        path: String,
        /// The fault in the file.
        what: String,
        /// How to fix it.
        mend: String,
    },
    /// The certificate belongs to another node.
    #[error("{path} names {named}, but this node is {expected}. {mend}")]
    WrongName {
        /// The file.
        path: String,
        /// The name in the certificate.
        named: String,
        /// This node's name, by its configuration.
        expected: Identity,
        /// How to fix it.
        mend: String,
    },
    /// The certificate and the key do not belong together, perhaps because they are being replaced just
    /// now.
    #[error(
        "{path} does not belong to {key_path}. Read them again if they are just being replaced, or else: {mend}"
    )]
    Mismatch {
        /// The certificate.
        path: String,
        /// The key.
        key_path: String,
        /// How to fix it.
        mend: String,
    },
    /// The certificate, or its authority, has expired or is not yet valid.
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
        /// How to fix it.
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
    /// A role is given to a node that gets no certificate.
    #[error("no certificate is made for the authority {0}: name it as NODE=REGION, too")]
    NoSuchNode(String),
}

/// The facts of a certificate that this crate uses.
pub(crate) struct Facts {
    /// The node's name, or the fault in it.
    pub(crate) identity: Result<Identity, String>,
    /// Whether the certificate has [`AUTHORITY_URI`].
    pub(crate) is_authority: bool,
    pub(crate) from_unix_s: i64,
    pub(crate) until_unix_s: i64,
}

/// Reads a certificate from any sender.
pub(crate) fn facts(certificate: &CertificateDer<'_>) -> Result<Facts, String> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
    Ok(Facts {
        identity: identity_in(&parsed),
        is_authority: uris_in(&parsed).is_ok_and(|uris| uris.contains(&AUTHORITY_URI)),
        from_unix_s: parsed.validity().not_before.timestamp(),
        until_unix_s: parsed.validity().not_after.timestamp(),
    })
}

/// The URIs that a certificate names.
fn uris_in<'a>(certificate: &'a X509Certificate<'_>) -> Result<Vec<&'a str>, String> {
    let extension = certificate.subject_alternative_name().map_err(|error| error.to_string())?;
    let names = extension.map_or(&[][..], |extension| &extension.value.general_names);
    let uri = |name: &'a GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    };
    Ok(names.iter().filter_map(uri).collect())
}

/// The only node name in a certificate. With two names, nobody could say which one counts.
fn identity_in(certificate: &X509Certificate<'_>) -> Result<Identity, String> {
    let uris = uris_in(certificate)?;
    let mut identities = uris.iter().filter_map(|uri| uri.parse::<Identity>().ok());
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

/// A time, as text for people.
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

pub(crate) fn now_unix_s() -> i64 {
    time::OffsetDateTime::now_utc().unix_timestamp()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, SanType, string::Ia5String};
    use tempfile::TempDir;

    use super::{create::create_at, load::load_at, *};

    const DAY_S: i64 = 24 * 60 * 60;

    fn eu() -> Identity {
        Identity::new("eu", "eu-1")
    }

    fn us() -> Identity {
        Identity::new("us_West", "us-1")
    }

    fn folder() -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        create(folder.path(), &[eu(), us()], &[]).expect("certificates");
        folder
    }

    fn text(folder: &TempDir, file: &str) -> String {
        fs::read_to_string(folder.path().join(file)).expect("a file")
    }

    fn replace(folder: &TempDir, file: &str, text: &str) {
        fs::write(folder.path().join(file), text).expect("written");
    }

    /// The fault of `eu-1`. Checks that its text says how to fix it.
    fn fault(folder: &TempDir, mend: &str) -> CertFault {
        let fault = load(folder.path(), &eu()).expect_err("a fault");
        assert!(fault.to_string().contains(mend), "{fault}");
        fault
    }

    #[test]
    fn created_certificates_can_be_loaded() {
        let folder = folder();
        let now = now_unix_s();
        for identity in [eu(), us()] {
            let credentials = load(folder.path(), &identity).expect("credentials");
            assert_eq!(*credentials.identity(), identity);
            let days = (credentials.expires_unix_s() - now + 60) / DAY_S;
            assert_eq!(days, 365);
            assert!(!format!("{credentials:?}").contains("key"));
        }
    }

    #[test]
    fn creating_again_keeps_the_authority_and_renews_certificates() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("certs");
        let names = |made: Vec<std::path::PathBuf>| {
            let name = |path: std::path::PathBuf| path.file_name().map(|name| name.to_owned());
            made.into_iter().filter_map(name).collect::<BTreeSet<_>>()
        };
        let made = names(create(&inner, &[eu()], &[]).expect("certificates"));
        assert_eq!(made, ["ca.key", "ca.pem", "eu-1.key", "eu-1.pem"].map(Into::into).into());
        let read = |file: &str| fs::read_to_string(inner.join(file)).expect("a file");
        let before = ["ca.pem", "ca.key", "eu-1.pem", "eu-1.key"].map(read);

        let made = names(create(&inner, &[eu(), us()], &[]).expect("certificates"));
        assert_eq!(made, ["eu-1.key", "eu-1.pem", "us-1.key", "us-1.pem"].map(Into::into).into());
        let after = ["ca.pem", "ca.key", "eu-1.pem", "eu-1.key"].map(read);
        assert_eq!(before[..2], after[..2]);
        assert!(before[2] != after[2] && before[3] != after[3]);
        for identity in [eu(), us()] {
            load(&inner, &identity).expect("credentials");
        }
    }

    #[test]
    fn the_authority_role_of_a_certificate_is_kept_at_a_renewal() {
        let folder = tempfile::tempdir().expect("a folder");
        let roles = |nodes: &[Identity], authorities: &[&str]| {
            create(folder.path(), nodes, authorities).expect("certificates");
            [eu(), us()].map(|node| load(folder.path(), &node).expect("credentials").is_authority())
        };
        assert_eq!(roles(&[eu(), us()], &["eu-1"]), [true, false]);
        assert_eq!(roles(&[eu(), us()], &[]), [true, false], "made anew");
        assert_eq!(roles(&[us()], &["us-1"]), [true, true]);
        let fault = create(folder.path(), &[eu()], &["us-1"]).expect_err("nobody");
        assert_eq!(fault, CertFault::NoSuchNode("us-1".to_owned()));
    }

    #[cfg(unix)]
    #[test]
    fn key_files_are_readable_only_by_their_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = folder();
        for (file, mode) in [("ca.key", 0o600), ("eu-1.key", 0o600), ("us-1.key", 0o600)] {
            let metadata = fs::metadata(folder.path().join(file)).expect("a file");
            assert_eq!(metadata.permissions().mode() & 0o777, mode, "{file}");
        }
    }

    #[test]
    fn an_authority_with_a_missing_or_wrong_key_is_not_overwritten() {
        for (gone, left) in [("ca.key", "ca.pem"), ("ca.pem", "ca.key")] {
            let folder = folder();
            let before = text(&folder, left);
            fs::remove_file(folder.path().join(gone)).expect("removed");
            let fault = create(folder.path(), &[eu()], &[]).expect_err("a fault");
            assert!(matches!(&fault, CertFault::Missing { path, .. } if path.ends_with(gone)), "{fault}");
            assert_eq!(text(&folder, left), before);
            assert!(!folder.path().join(gone).exists());
        }
        let (one, other) = (folder(), folder());
        replace(&one, "ca.key", &text(&other, "ca.key"));
        let fault = create(one.path(), &[eu()], &[]).expect_err("a fault");
        assert!(fault.to_string().contains("not the key"), "{fault}");
        replace(&one, "ca.key", "rubbish");
        assert!(matches!(create(one.path(), &[eu()], &[]), Err(CertFault::Unusable { .. })));
    }

    #[test]
    fn names_that_no_certificate_or_file_can_carry_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        for identity in [Identity::new("eu", "../x"), Identity::new("", "x"), Identity::new("eu", "ca")] {
            assert!(matches!(create(folder.path(), &[identity], &[]), Err(CertFault::BadName(_))));
        }
        let twice = [Identity::new("eu", "1"), Identity::new("us", "1")];
        assert_eq!(create(folder.path(), &twice, &[]), Err(CertFault::Twice("1".to_owned())));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        let outside = load(folder.path(), &Identity::new("eu", "../x"));
        assert!(matches!(outside, Err(CertFault::BadName(_))));
    }

    #[test]
    fn a_missing_certificate_file_says_how_to_create_it() {
        for file in ["ca.pem", "eu-1.pem", "eu-1.key"] {
            let folder = folder();
            fs::remove_file(folder.path().join(file)).expect("removed");
            let recipe = format!("acequia certs {} eu-1=eu", folder.path().display());
            let fault = fault(&folder, &recipe);
            assert!(matches!(&fault, CertFault::Missing { path, .. } if path.ends_with(file)), "{fault}");
        }
    }

    #[test]
    fn a_file_without_a_certificate_is_refused() {
        let huge = "x".repeat(2 << 20);
        for file in ["ca.pem", "eu-1.pem", "eu-1.key"] {
            for rubbish in
                ["", "rubbish", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", &huge]
            {
                let folder = folder();
                replace(&folder, file, rubbish);
                let fault = fault(&folder, "acequia certs");
                assert!(
                    matches!(&fault, CertFault::Unusable { path, .. } if path.ends_with(file)),
                    "{fault}"
                );
            }
        }
        let folder = folder();
        fs::remove_file(folder.path().join("eu-1.pem")).expect("removed");
        fs::create_dir(folder.path().join("eu-1.pem")).expect("a folder");
        assert!(matches!(fault(&folder, "Let the user"), CertFault::File { .. }));
    }

    #[test]
    fn a_certificate_of_another_node_is_refused() {
        let folder = folder();
        replace(&folder, "eu-1.pem", &text(&folder, "us-1.pem"));
        assert!(matches!(fault(&folder, "us_West/us-1"), CertFault::WrongName { .. }));

        let moved = load(folder.path(), &Identity::new("eu", "us-1")).expect_err("a fault");
        assert!(moved.to_string().contains("this node is eu/us-1"), "{moved}");
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let folder = folder();
        replace(&folder, "eu-1.key", &text(&folder, "us-1.key"));
        assert!(matches!(fault(&folder, "acequia certs"), CertFault::Mismatch { .. }));
    }

    #[test]
    fn a_certificate_of_another_authority_is_refused() {
        let (one, other) = (folder(), folder());
        let own = text(&one, "ca.pem");
        replace(&one, "ca.pem", &text(&other, "ca.pem"));
        assert!(matches!(fault(&one, "acequia certs"), CertFault::Unusable { .. }));

        // While one authority follows another, both are trusted.
        replace(&one, "ca.pem", &(text(&other, "ca.pem") + &own));
        load(one.path(), &eu()).expect("credentials");
    }

    #[test]
    fn certificates_are_valid_from_an_hour_before_their_creation() {
        let folder = tempfile::tempdir().expect("a folder");
        let made = now_unix_s();
        create_at(folder.path(), &[eu()], &[], made).expect("certificates");
        let at = |now_unix_s| load_at(folder.path(), &eu(), now_unix_s);
        at(made - 3600).expect("credentials");
        at(made + 365 * DAY_S).expect("credentials");

        let early = at(made - 3601).expect_err("a fault");
        assert!(early.to_string().contains("clock"), "{early}");
        let late = at(made + 365 * DAY_S + 1).expect_err("a fault").to_string();
        assert!(late.contains("Renew it with: acequia certs") && late.contains("eu-1.pem"), "{late}");
        let very_late = at(made + 3650 * DAY_S + 1).expect_err("a fault").to_string();
        assert!(very_late.contains("ca.pem is valid") && very_late.contains("all nodes"), "{very_late}");
    }

    #[test]
    fn no_certificate_outlives_its_authority_and_an_expired_one_signs_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let now = now_unix_s();
        create_at(folder.path(), &[us()], &[], now - 3600 * DAY_S).expect("certificates");
        create_at(folder.path(), &[eu()], &[], now).expect("certificates");
        let credentials = load(folder.path(), &eu()).expect("credentials");
        assert_eq!(credentials.expires_unix_s(), now + 50 * DAY_S);

        let fault = create_at(folder.path(), &[eu()], &[], now + 51 * DAY_S).expect_err("a fault");
        assert!(matches!(fault, CertFault::OutOfDate { .. }), "{fault}");
    }

    #[test]
    fn a_certificate_names_one_node() {
        let named = |uris: &[&str]| {
            let mut parameters = CertificateParams::new([SERVER_NAME.to_owned()]).expect("a name");
            for uri in uris {
                let uri = Ia5String::try_from(*uri).expect("a URI");
                parameters.subject_alt_names.push(SanType::URI(uri));
            }
            let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
            let certificate = parameters.self_signed(&key).expect("a certificate");
            facts(certificate.der()).expect("facts").identity
        };
        assert_eq!(named(&["acequia://eu/eu-1"]), Ok(eu()));
        assert_eq!(named(&["spiffe://eu/x", "acequia://eu/eu-1"]), Ok(eu()));
        assert!(named(&[]).is_err() && named(&["spiffe://eu/x"]).is_err());
        assert!(named(&["acequia://eu/eu-1", "acequia://us/us-1"]).is_err());
    }

    #[test]
    fn dates_are_readable() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(1_800_000_000), "2027-01-15 08:00:00");
        assert_eq!(date(i64::MAX), format!("second {}", i64::MAX));
    }
}
