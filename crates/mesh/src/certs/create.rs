//! Makes a development authority and the certificates that it signs.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind, Write as _},
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, SanType, string::Ia5String,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use time::OffsetDateTime;

use super::{AUTHORITY_URI, CertFault, SERVER_NAME, date, facts, now_unix_s, path_of};
use crate::{Identity, settings::SETTINGS};

/// The file name of an authority's certificate. No node may have this name.
const AUTHORITY: &str = "ca";

/// Makes a development authority in `folder`, unless one is there. Makes a certificate for each node, which
/// replaces an earlier one. Returns the files that it wrote, in the order of writing.
///
/// Nodes named in `authorities` get the role of an authority: they may make versions of the catalogue. A
/// renewed certificate keeps the role.
///
/// Keys are Ed25519, in files that only their owner may read. `ca.key` is needed to make more certificates,
/// and no node needs it. Anybody who has it can join.
///
/// # Errors
/// A name is not valid, or a file cannot be read or written. Files written until then stay, and are whole.
pub fn create(folder: &Path, nodes: &[Identity], authorities: &[&str]) -> Result<Vec<PathBuf>, CertFault> {
    create_at(folder, nodes, authorities, now_unix_s())
}

pub(super) fn create_at(
    folder: &Path,
    nodes: &[Identity],
    authorities: &[&str],
    now_unix_s: i64,
) -> Result<Vec<PathBuf>, CertFault> {
    check_names(nodes)?;
    if let Some(unknown) = authorities.iter().find(|name| !nodes.iter().any(|node| node.node == **name)) {
        return Err(CertFault::NoSuchNode((*unknown).to_owned()));
    }
    fs::create_dir_all(folder).map_err(|error| file_fault(&folder.display().to_string(), &error))?;
    let mut workshop = Workshop { folder, now_unix_s, written: Vec::new() };
    let authority = workshop.authority()?;
    for node in nodes {
        let has_role = authorities.contains(&&*node.node) || workshop.has_role(node)?;
        workshop.node(&authority, node, has_role)?;
    }
    Ok(workshop.written)
}

fn check_names(nodes: &[Identity]) -> Result<(), CertFault> {
    let mut seen = BTreeSet::new();
    for node in nodes {
        if !node.is_valid() || node.node == AUTHORITY {
            return Err(CertFault::BadName(node.to_string()));
        }
        if !seen.insert(&node.node) {
            return Err(CertFault::Twice(node.node.clone()));
        }
    }
    Ok(())
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    until_unix_s: i64,
}

struct Workshop<'a> {
    folder: &'a Path,
    now_unix_s: i64,
    written: Vec<PathBuf>,
}

impl Workshop<'_> {
    /// The authority in the folder, or a new one.
    fn authority(&mut self) -> Result<Authority, CertFault> {
        match (self.read("ca.pem")?, self.read("ca.key")?) {
            (Some(certificate), Some(key)) => self.kept_authority(&certificate, &key),
            (None, None) => self.new_authority(),
            (Some(_), None) => Err(CertFault::Missing {
                path: path_of(self.folder, "ca.key"),
                mend: "Make certificates where the authority's key is kept, or, to begin with a new authority, move ca.pem away and make the certificates of all nodes anew".to_owned(),
            }),
            (None, Some(_)) => Err(CertFault::Missing {
                path: path_of(self.folder, "ca.pem"),
                mend: "Copy it from any node, or, to begin with a new authority, move ca.key away and make the certificates of all nodes anew".to_owned(),
            }),
        }
    }

    fn kept_authority(&self, certificate: &str, key: &str) -> Result<Authority, CertFault> {
        let unusable = |file: &str, what: String| {
            CertFault::Unusable {
            path: path_of(self.folder, file),
            what,
            mend: "Bring back a copy of it, or, to begin with a new authority, move ca.pem and ca.key away and make the certificates of all nodes anew".to_owned(),
        }
        };
        let key = KeyPair::from_pem(key).map_err(|error| unusable("ca.key", error.to_string()))?;
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|error| unusable("ca.pem", error.to_string()))?;
        let dates = facts(&der).map_err(|what| unusable("ca.pem", what))?;
        if public_key(&der).as_deref() != Some(key.public_key_raw()) {
            return Err(unusable(
                "ca.key",
                "it is not the key of the (first) certificate in ca.pem".to_owned(),
            ));
        }
        if dates.until_unix_s <= self.now_unix_s {
            return Err(CertFault::OutOfDate {
                path: path_of(self.folder, "ca.pem"),
                from: date(dates.from_unix_s),
                until: date(dates.until_unix_s),
                now: date(self.now_unix_s),
                mend: "Move ca.pem and ca.key away and make the certificates of all nodes anew".to_owned(),
            });
        }
        let issuer =
            Issuer::from_ca_cert_der(&der, key).map_err(|error| unusable("ca.pem", error.to_string()))?;
        Ok(Authority { issuer, until_unix_s: dates.until_unix_s })
    }

    fn new_authority(&mut self) -> Result<Authority, CertFault> {
        let until_unix_s = self.now_unix_s.saturating_add(SETTINGS.certs.authority_valid_s);
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.distinguished_name.push(DnType::CommonName, "Acequia development authority");
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        self.set_dates(&mut parameters, until_unix_s)?;

        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|error| self.unmade("ca.pem", &error))?;
        let certificate = parameters.self_signed(&key).map_err(|error| self.unmade("ca.pem", &error))?;
        // The key is written first: a certificate without its key would look as if it had been made
        // elsewhere.
        self.write("ca.key", &key.serialize_pem(), Readers::Owner)?;
        self.write("ca.pem", &certificate.pem(), Readers::All)?;
        Ok(Authority { issuer: Issuer::new(parameters, key), until_unix_s })
    }

    /// Whether the node's present certificate has the role of an authority.
    fn has_role(&self, node: &Identity) -> Result<bool, CertFault> {
        let Some(certificate) = self.read(&format!("{}.pem", node.node))? else { return Ok(false) };
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok();
        Ok(der.and_then(|der| facts(&der).ok()).is_some_and(|facts| facts.is_authority))
    }

    fn node(&mut self, authority: &Authority, node: &Identity, has_role: bool) -> Result<(), CertFault> {
        let (file, key_file) = (format!("{}.pem", node.node), format!("{}.key", node.node));
        let unmade = |error: &rcgen::Error| self.unmade(&file, error);
        let mut parameters = CertificateParams::new([SERVER_NAME.to_owned()]).map_err(|e| unmade(&e))?;
        let uri = Ia5String::try_from(node.uri()).map_err(|error| unmade(&error))?;
        parameters.subject_alt_names.push(SanType::URI(uri));
        if has_role {
            let uri = Ia5String::try_from(AUTHORITY_URI).map_err(|error| unmade(&error))?;
            parameters.subject_alt_names.push(SanType::URI(uri));
        }
        parameters.distinguished_name.push(DnType::CommonName, node.to_string());
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        parameters.use_authority_key_identifier_extension = true;
        let until_unix_s =
            self.now_unix_s.saturating_add(SETTINGS.certs.node_valid_s).min(authority.until_unix_s);
        self.set_dates(&mut parameters, until_unix_s)?;

        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|error| unmade(&error))?;
        let certificate = parameters.signed_by(&key, &authority.issuer).map_err(|error| unmade(&error))?;
        self.write(&key_file, &key.serialize_pem(), Readers::Owner)?;
        self.write(&file, &certificate.pem(), Readers::All)
    }

    fn set_dates(&self, parameters: &mut CertificateParams, until_unix_s: i64) -> Result<(), CertFault> {
        let at = |unix_s| {
            OffsetDateTime::from_unix_timestamp(unix_s).map_err(|error| CertFault::File {
                path: self.folder.display().to_string(),
                cause: format!("this machine's clock cannot be right: {error}"),
            })
        };
        parameters.not_before = at(self.now_unix_s.saturating_sub(SETTINGS.certs.slow_clock_s))?;
        parameters.not_after = at(until_unix_s)?;
        Ok(())
    }

    fn read(&self, file: &str) -> Result<Option<String>, CertFault> {
        match fs::read_to_string(self.folder.join(file)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file_fault(&path_of(self.folder, file), &error)),
        }
    }

    /// Writes a whole file or none: a node may read the file at any moment.
    fn write(&mut self, file: &str, text: &str, readers: Readers) -> Result<(), CertFault> {
        let path = self.folder.join(file);
        let new = self.folder.join(format!(".{file}.new"));
        write_new(&new, text, readers)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|error| file_fault(&path_of(self.folder, file), &error))?;
        self.written.push(path);
        Ok(())
    }

    fn unmade(&self, file: &str, error: &rcgen::Error) -> CertFault {
        CertFault::File { path: path_of(self.folder, file), cause: error.to_string() }
    }
}

/// Who may read a file.
#[derive(Clone, Copy)]
enum Readers {
    All,
    Owner,
}

fn write_new(path: &Path, text: &str, readers: Readers) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(match readers {
            Readers::All => 0o644,
            Readers::Owner => 0o600,
        });
    }
    #[cfg(not(unix))]
    let _ = readers;
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn public_key(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    use x509_parser::prelude::{FromDer as _, X509Certificate};
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.public_key().subject_public_key.data.to_vec())
}

fn file_fault(path: &str, error: &io::Error) -> CertFault {
    CertFault::File { path: path.to_owned(), cause: error.to_string() }
}
