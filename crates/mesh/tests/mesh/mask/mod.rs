//! A peer that breaks the rules: its certificate, and the bytes that it writes on a connection. Used by the
//! mesh's own tests, and by the tests with real nodes.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use acequia_mesh::certs;
use quinn::{Connection, ConnectionError, Endpoint, SendStream, crypto::rustls::QuicClientConfig};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::time::timeout;

/// The longest time that anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The hostile peer's certificate and protocol.
pub(crate) struct Mask<'a> {
    /// The folder with the certificates.
    pub(crate) folder: &'a Path,
    /// The node whose certificate the peer shows, if it shows one.
    pub(crate) node: Option<&'a str>,
    pub(crate) protocol: &'a [u8],
}

impl<'a> Mask<'a> {
    pub(crate) const fn of(folder: &'a Path, node: &'a str) -> Self {
        Self { folder, node: Some(node), protocol: b"acequia/1" }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let pem = |file: String| std::fs::read(self.folder.join(file)).expect("a file");
        let certificate = |file| CertificateDer::from_pem_slice(&pem(file)).expect("a certificate");
        let mut roots = rustls::RootCertStore::empty();
        // The peer trusts the node that it attacks.
        roots.add(certificate("ca.pem".to_owned())).expect("added");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots);
        let mut tls = match self.node {
            None => builder.with_no_client_auth(),
            Some(node) => {
                let key = PrivateKeyDer::from_pem_slice(&pem(format!("{node}.key"))).expect("a key");
                let own = vec![certificate(format!("{node}.pem"))];
                builder.with_client_auth_cert(own, key).expect("a certificate with its key")
            }
        };
        tls.alpn_protocols = vec![self.protocol.to_vec()];
        let tls = QuicClientConfig::try_from(tls).expect("a suite for QUIC");
        let mut config = quinn::ClientConfig::new(Arc::new(tls));
        let mut transport = quinn::TransportConfig::default();
        transport.keep_alive_interval(Some(Duration::from_millis(100)));
        config.transport_config(Arc::new(transport));
        let mut endpoint = Endpoint::client("127.0.0.1:0".parse().expect("an address")).expect("an endpoint");
        endpoint.set_default_client_config(config);
        endpoint
    }

    pub(crate) async fn connect(&self, to: SocketAddr) -> Result<Connection, ConnectionError> {
        let connecting = self.endpoint().connect(to, certs::SERVER_NAME).expect("a dial");
        timeout(PATIENCE, connecting).await.expect("an end in time")
    }

    /// Dials, which may succeed at first, and returns how the connection ends.
    pub(crate) async fn refused(&self, to: SocketAddr) -> ConnectionError {
        match self.connect(to).await {
            Ok(connection) => closed(&connection).await,
            Err(error) => error,
        }
    }
}

pub(crate) async fn closed(connection: &Connection) -> ConnectionError {
    timeout(PATIENCE, connection.closed()).await.expect("closed in time")
}

pub(crate) async fn begin(connection: &Connection, bytes: &[u8]) -> SendStream {
    let mut stream = timeout(PATIENCE, connection.open_uni()).await.expect("in time").expect("a stream");
    stream.write_all(bytes).await.expect("written");
    stream
}

/// Writes a whole stream.
pub(crate) async fn write(connection: &Connection, bytes: &[u8]) -> SendStream {
    let mut stream = begin(connection, bytes).await;
    stream.finish().expect("finished");
    stream
}

/// A frame with a stated length.
pub(crate) fn frame(announced: usize, bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(announced).expect("32 bits").to_be_bytes(), bytes].concat()
}
