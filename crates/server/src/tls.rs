//! TLS for those who connect to this node: certificates and keys from files.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// The protocol of gRPC, as ALPN names it (RFC 9113, section 3.1).
pub(crate) const H2: &[u8] = b"h2";

/// The files, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The certificate, and those between it and its authority.
    pub(crate) cert: PathBuf,
    /// Its private key.
    pub(crate) key: PathBuf,
}

/// What is wrong with the files.
#[derive(Debug, thiserror::Error)]
pub enum TlsFault {
    /// One cannot be read, or holds something else.
    #[error("{path}: {cause}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// They do not go together.
    #[error("{cert} and {key}: {cause}", cert = .cert.display(), key = .key.display())]
    Pair {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// What is wrong.
        cause: String,
    },
}

impl Settings {
    /// Reads the files. `protocols`: what is spoken, by their names in ALPN.
    ///
    /// # Errors
    /// What is wrong with which.
    pub(crate) fn read(&self, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, TlsFault> {
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|fault| self.pair(&fault))?
            .with_no_client_auth();
        let key =
            PrivateKeyDer::from_pem_slice(&read(&self.key)?).map_err(|fault| file(&self.key, &fault))?;
        let mut config =
            builder.with_single_cert(certificates(&self.cert)?, key).map_err(|fault| self.pair(&fault))?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }

    fn pair(&self, cause: &impl ToString) -> TlsFault {
        TlsFault::Pair { cert: self.cert.clone(), key: self.key.clone(), cause: cause.to_string() }
    }
}

fn file(path: &std::path::Path, cause: &impl ToString) -> TlsFault {
    TlsFault::File { path: path.to_owned(), cause: cause.to_string() }
}

fn read(path: &std::path::Path) -> Result<Vec<u8>, TlsFault> {
    std::fs::read(path).map_err(|fault| file(path, &fault))
}

fn certificates(path: &std::path::Path) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(file(path, &"it has no certificate")),
        Ok(found) => Ok(found),
        Err(fault) => Err(file(path, &fault)),
    }
}
