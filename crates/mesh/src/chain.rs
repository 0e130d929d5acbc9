//! The certificates that the other side of a connection has shown.

use quinn::Connection;
use rustls::pki_types::CertificateDer;

use crate::Fingerprint;

/// The other side's certificates, its own first.
pub(crate) fn chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let chain = connection.peer_identity().and_then(|chain| chain.downcast().ok());
    chain.map_or_else(Vec::new, |chain: Box<Vec<CertificateDer<'static>>>| *chain)
}

/// The fingerprint of the other side's own certificate.
pub(crate) fn fingerprint(connection: &Connection) -> Option<Fingerprint> {
    chain(connection).first().map(|own| Fingerprint::of(own))
}
