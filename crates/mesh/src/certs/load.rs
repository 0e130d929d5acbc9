//! Loads the files of certificates for TLS, and finds every fault before the first connection.

use std::{io::ErrorKind, path::Path, sync::Arc};

use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::WebPkiClientVerifier,
    sign::CertifiedKey,
};

use super::{CertFault, Credentials, Facts, SERVER_NAME, date, facts, now_unix_s, path_of, recipe};
use crate::{Identity, settings::SETTINGS};

/// Reads and checks the certificates of a node. The files must be there, and the certificate must name the
/// node and its region. The key must belong to the certificate, `ca.pem` must vouch for it, and both must
/// be valid now.
///
/// # Errors
/// The first fault, and how to fix it.
pub fn load(folder: &Path, identity: &Identity) -> Result<Credentials, CertFault> {
    load_at(folder, identity, now_unix_s())
}

pub(super) fn load_at(folder: &Path, identity: &Identity, now_unix_s: i64) -> Result<Credentials, CertFault> {
    if !identity.is_valid() {
        return Err(CertFault::BadName(identity.to_string()));
    }
    let files = Files { folder, identity, now_unix_s };
    let (authorities, authorities_until) = files.authorities()?;
    let (chain, until, is_authority) = files.chain()?;
    let key = files.key(&chain)?;
    files.check_vouched(&authorities, &chain)?;
    Ok(Credentials {
        identity: identity.clone(),
        is_authority,
        authorities,
        chain,
        key,
        expires_unix_s: until.min(authorities_until),
    })
}

struct Files<'a> {
    folder: &'a Path,
    identity: &'a Identity,
    now_unix_s: i64,
}

impl Files<'_> {
    /// The authorities, and the time when the last of them ends.
    fn authorities(&self) -> Result<(Vec<CertificateDer<'static>>, i64), CertFault> {
        let certificates = self.certificates("ca.pem")?;
        let mut ends = Vec::with_capacity(certificates.len());
        for certificate in &certificates {
            ends.push(facts(certificate).map_err(|what| self.unusable("ca.pem", what))?);
        }
        // An expired authority does no harm beside a valid one.
        let Some(last) = ends.iter().max_by_key(|facts| (self.holds(facts), facts.until_unix_s)) else {
            return Err(self.unusable("ca.pem", "no certificate in it".to_owned()));
        };
        self.check_date("ca.pem", last)?;
        Ok((certificates, last.until_unix_s))
    }

    /// The node's certificate with the certificates between it and the authority. The result also has the
    /// time when the first of them ends, and whether the node's certificate has the role of an authority.
    fn chain(&self) -> Result<(Vec<CertificateDer<'static>>, i64, bool), CertFault> {
        let file = self.certificate_file();
        let chain = self.certificates(&file)?;
        let mut until = i64::MAX;
        for certificate in &chain {
            let facts = facts(certificate).map_err(|what| self.unusable(&file, what))?;
            self.check_date(&file, &facts)?;
            until = until.min(facts.until_unix_s);
        }
        let Some(own) = chain.first() else {
            return Err(self.unusable(&file, "no certificate in it".to_owned()));
        };
        let (named, is_authority) = match facts(own) {
            Ok(facts) => (facts.identity, facts.is_authority),
            Err(what) => (Err(what), false),
        };
        match named {
            Ok(named) if named == *self.identity => Ok((chain, until, is_authority)),
            named => Err(CertFault::WrongName {
                path: path_of(self.folder, &file),
                named: named.map_or_else(|what| what, |named| named.to_string()),
                expected: self.identity.clone(),
                mend: recipe(self.folder, self.identity),
            }),
        }
    }

    fn key(&self, chain: &[CertificateDer<'static>]) -> Result<PrivateKeyDer<'static>, CertFault> {
        let file = self.key_file();
        let key = PrivateKeyDer::from_pem_slice(&self.read(&file)?)
            .map_err(|error| self.unusable(&file, error.to_string()))?;
        match CertifiedKey::from_der(chain.to_vec(), key.clone_key(), &provider()) {
            Ok(_) => Ok(key),
            Err(rustls::Error::InconsistentKeys(_)) => Err(CertFault::Mismatch {
                path: path_of(self.folder, &self.certificate_file()),
                key_path: path_of(self.folder, &file),
                mend: recipe(self.folder, self.identity),
            }),
            Err(error) => Err(self.unusable(&file, error.to_string())),
        }
    }

    /// Asks the verifiers that the other nodes will ask.
    fn check_vouched(
        &self,
        authorities: &[CertificateDer<'static>],
        chain: &[CertificateDer<'static>],
    ) -> Result<(), CertFault> {
        let of_authority = |error: String| self.unusable("ca.pem", error);
        let of_node = |error: String| self.unusable(&self.certificate_file(), error);
        let roots = Arc::new(roots(authorities).map_err(of_authority)?);
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            u64::try_from(self.now_unix_s).unwrap_or_default(),
        ));
        let (own, between) = chain.split_first().ok_or_else(|| of_node("no certificate in it".to_owned()))?;
        let name = ServerName::try_from(SERVER_NAME).map_err(|error| of_node(error.to_string()))?;

        WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), provider())
            .build()
            .map_err(|error| of_authority(error.to_string()))?
            .verify_server_cert(own, between, &name, &[], now)
            .map_err(|error| of_node(error.to_string()))?;
        WebPkiClientVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|error| of_authority(error.to_string()))?
            .verify_client_cert(own, between, now)
            .map_err(|error| of_node(error.to_string()))?;
        Ok(())
    }

    fn certificates(&self, file: &str) -> Result<Vec<CertificateDer<'static>>, CertFault> {
        CertificateDer::pem_slice_iter(&self.read(file)?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.unusable(file, error.to_string()))
    }

    fn read(&self, file: &str) -> Result<Vec<u8>, CertFault> {
        let path = self.folder.join(file);
        let size = std::fs::metadata(&path).map_err(|error| self.unread(file, &error))?.len();
        if size > SETTINGS.certs.file_bytes_max {
            return Err(self.unusable(file, format!("it has {size} bytes")));
        }
        std::fs::read(&path).map_err(|error| self.unread(file, &error))
    }

    fn unread(&self, file: &str, error: &std::io::Error) -> CertFault {
        let path = path_of(self.folder, file);
        if error.kind() == ErrorKind::NotFound {
            return CertFault::Missing { path, mend: recipe(self.folder, self.identity) };
        }
        CertFault::File { path, cause: error.to_string() }
    }

    fn unusable(&self, file: &str, what: String) -> CertFault {
        let mend = recipe(self.folder, self.identity);
        CertFault::Unusable { path: path_of(self.folder, file), what, mend }
    }

    const fn holds(&self, facts: &Facts) -> bool {
        facts.from_unix_s <= self.now_unix_s && self.now_unix_s <= facts.until_unix_s
    }

    fn check_date(&self, file: &str, facts: &Facts) -> Result<(), CertFault> {
        if self.holds(facts) {
            return Ok(());
        }
        let mend = if facts.from_unix_s > self.now_unix_s {
            "Set this machine's clock".to_owned()
        } else if file == "ca.pem" {
            format!(
                "Move ca.pem and ca.key out of {}, make the certificates of all nodes anew (acequia certs) and bring ca.pem to every node",
                self.folder.display()
            )
        } else {
            recipe(self.folder, self.identity).replacen("Make it", "Renew it", 1)
        };
        Err(CertFault::OutOfDate {
            path: path_of(self.folder, file),
            from: date(facts.from_unix_s),
            until: date(facts.until_unix_s),
            now: date(self.now_unix_s),
            mend,
        })
    }

    fn certificate_file(&self) -> String {
        format!("{}.pem", self.identity.node)
    }

    fn key_file(&self) -> String {
        format!("{}.key", self.identity.node)
    }
}

/// The cryptography of every connection. The provider is named here because rustls would otherwise take
/// whatever the process has installed.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The authorities as a root store of TLS.
pub(crate) fn roots(authorities: &[CertificateDer<'static>]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}
