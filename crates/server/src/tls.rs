//! TLS for callers of this node: certificates and keys from files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};

use crate::config::PortTls;

/// The protocols of gRPC and of HTTP, as ALPN names them (RFC 9113, section 3.1; RFC 7301, section 6).
pub(crate) const H2: &[u8] = b"h2";
pub(crate) const HTTP_1: &[u8] = b"http/1.1";

/// The fault of the files.
#[derive(Debug, thiserror::Error)]
pub enum TlsFault {
    /// A file cannot be read, or holds something else.
    #[error("{path}: {cause}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The fault.
        cause: String,
    },
    /// The certificate and the key do not belong together.
    #[error("{cert} and {key}: {cause}", cert = .cert.display(), key = .key.display())]
    Pair {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// The fault.
        cause: String,
    },
}

impl PortTls {
    /// Reads the files. `protocols`: the protocols that are spoken, by their names in ALPN. TLS 1.2 and 1.3.
    /// Sessions are not resumed: a caller with a certificate shows it again.
    ///
    /// # Errors
    /// A file, and its fault.
    pub(crate) fn read(&self, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, TlsFault> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|fault| self.pair(&fault))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|fault| file(path, &fault))?;
                }
                // A caller without a certificate may bring a token, or ask whether the node is healthy.
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                    .allow_unauthenticated()
                    .build()
                    .map_err(|fault| file(path, &fault))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let key =
            PrivateKeyDer::from_pem_slice(&read(&self.key)?).map_err(|fault| file(&self.key, &fault))?;
        let mut config =
            builder.with_single_cert(certificates(&self.cert)?, key).map_err(|fault| self.pair(&fault))?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// The files, in the order in which they are read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    fn pair(&self, cause: &impl ToString) -> TlsFault {
        TlsFault::Pair { cert: self.cert.clone(), key: self.key.clone(), cause: cause.to_string() }
    }
}

/// The URIs and the DNS names in a certificate, as they stand there (RFC 5280, section 4.2.1.6).
pub(crate) fn names_in(certificate: &CertificateDer<'_>) -> Vec<String> {
    match webpki::EndEntityCert::try_from(certificate) {
        Ok(parsed) => parsed.valid_uri_names().chain(parsed.valid_dns_names()).map(str::to_owned).collect(),
        // The certificate was verified, and so can be read.
        Err(_) => Vec::new(),
    }
}

fn file(path: &Path, cause: &impl ToString) -> TlsFault {
    TlsFault::File { path: path.to_owned(), cause: cause.to_string() }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFault> {
    std::fs::read(path).map_err(|fault| file(path, &fault))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(file(path, &"it has no certificate")),
        Ok(found) => Ok(found),
        Err(fault) => Err(file(path, &fault)),
    }
}
