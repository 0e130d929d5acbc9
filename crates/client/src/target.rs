//! The way to a node: its address, and how both sides authenticate each other.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwapOption;
use http::Uri;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
    time::Instant,
};
use tokio_rustls::TlsConnector;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
    transport::{Channel, Endpoint, Error},
};

use tower::ServiceExt as _;

use crate::{ClientError, settings::SETTINGS};

/// The protocol of gRPC, as ALPN names it (RFC 9113, section 3.1).
const H2: &[u8] = b"h2";

/// How a client verifies the node, and authenticates itself. Files are in PEM. Certificates are read again
/// for every new connection, and the token every second, so all can be replaced while a client runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The certificates of the authorities that sign nodes' certificates. The system's authorities if
    /// absent.
    pub ca: Option<PathBuf>,
    /// The client's own certificate, with the certificates between it and its authority, and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A file that holds a bearer token.
    pub token_file: Option<PathBuf>,
    /// The name that the node's certificate must have, if it is not the host of the address. Certificates
    /// of `acequia certs` are for `acequia.internal`.
    pub server_name: Option<String>,
}

impl Credentials {
    fn asks_for_tls(&self) -> bool {
        let Self { ca, certificate, token_file: _, server_name } = self;
        ca.is_some() || certificate.is_some() || server_name.is_some()
    }
}

/// A node, and the way to it. Clones share one state.
#[derive(Clone, Debug)]
pub struct Target(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The address as it was given.
    address: String,
    place: NodeAddress,
    /// The URI that requests are addressed to.
    uri: Uri,
    credentials: Credentials,
    token: ArcSwapOption<MetadataValue<Ascii>>,
    /// When the token is read again.
    read_again: Mutex<Instant>,
}

#[derive(Debug)]
enum NodeAddress {
    Tcp { host: String, port: u16, tls: Option<ServerName<'static>> },
    Unix(PathBuf),
}

/// A connection to a node, encrypted or not.
pub type Stream = Box<dyn Transport>;

/// A transport that bytes are read from and written to.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// Puts the token of a [`Target`] into every call.
#[derive(Clone, Debug)]
pub struct Bearer(Target);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        self.0.look_at_token();
        if let Some(token) = &*self.0.0.token.load() {
            request.metadata_mut().insert("authorization", MetadataValue::clone(token));
        }
        Ok(request)
    }
}

impl From<SocketAddr> for Target {
    /// A node that does not authenticate its clients, without encryption.
    fn from(address: SocketAddr) -> Self {
        let uri = Uri::builder().scheme("http").authority(address.to_string()).path_and_query("/").build();
        let place = NodeAddress::Tcp { host: address.ip().to_string(), port: address.port(), tls: None };
        Self(Arc::new(Inner {
            address: address.to_string(),
            place,
            uri: uri.expect("an address and a port are an authority"),
            credentials: Credentials::default(),
            token: ArcSwapOption::empty(),
            read_again: Mutex::new(Instant::now()),
        }))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.address)
    }
}

impl Target {
    /// The node at `host:port`, `http://host:port`, `https://host:port` or `unix:/path`. An address without
    /// a scheme means `https` if the credentials have a certificate or an authority. Reads all files once.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the address is not valid, a file cannot be used, or a token would be
    /// sent unencrypted.
    pub fn new(address: &str, credentials: Credentials) -> Result<Self, ClientError> {
        let (place, uri) = read_address(address, &credentials)?;
        let is_safe = match &place {
            NodeAddress::Tcp { host, tls, .. } => tls.is_some() || is_loopback(host),
            NodeAddress::Unix(_) => true,
        };
        if credentials.token_file.is_some() && !is_safe {
            return Err(refused(format!(
                "the token would go to {address} in the clear: write the address with https://, or name the authority that signed the \
                 node's certificate"
            )));
        }
        let target = Self(Arc::new(Inner {
            address: address.to_owned(),
            place,
            uri,
            credentials,
            token: ArcSwapOption::empty(),
            read_again: Mutex::new(Instant::now() + SETTINGS.connection.token_look),
        }));
        target.read_token().map_err(refused)?;
        if target.is_tls() {
            target.tls().map_err(refused)?;
        }
        Ok(target)
    }

    /// The address as it was given.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Whether connections are encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self.0.place, NodeAddress::Tcp { tls: Some(_), .. })
    }

    /// The node's name in requests: `host:port`.
    pub fn authority(&self) -> &str {
        self.0.uri.authority().map_or("localhost", |authority| authority.as_str())
    }

    /// The `authorization` header with the token, if there is a token.
    pub fn authorization(&self) -> Option<String> {
        let token = self.0.token.load();
        token.as_ref().and_then(|token| token.to_str().ok()).map(str::to_owned)
    }

    /// The interceptor that puts the token into calls.
    pub fn bearer(&self) -> Bearer {
        Bearer(self.clone())
    }

    /// Connects, and verifies the node by its certificate.
    ///
    /// # Errors
    /// Nobody listens there, the node is not the one that its certificate must name, or it does not accept
    /// this client. The error also occurs if a file cannot be used.
    pub async fn connect(&self) -> io::Result<Stream> {
        self.read_token().map_err(io::Error::other)?;
        match &self.0.place {
            NodeAddress::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            NodeAddress::Tcp { host, port, tls } => {
                // If the host has several addresses and one is slow, this connector tries the next (RFC
                // 8305).
                let mut tcp = HttpConnector::new();
                tcp.set_nodelay(true);
                tcp.set_connect_timeout(Some(SETTINGS.connection.connect_max));
                let uri =
                    Uri::builder().scheme("http").authority(format!("{host}:{port}")).path_and_query("/");
                let uri = uri.build().map_err(io::Error::other)?;
                let stream = tcp.oneshot(uri).await.map_err(connecting)?.into_inner();
                let Some(name) = tls else { return Ok(Box::new(stream)) };
                let connector = TlsConnector::from(self.tls().map_err(io::Error::other)?);
                Ok(Box::new(connector.connect(name.clone(), stream).await?))
            }
        }
    }

    /// A channel that connects with the first call. `settings` changes the settings of its connections.
    pub fn channel(&self, settings: impl FnOnce(Endpoint) -> Endpoint) -> Channel {
        settings(self.endpoint()).connect_with_connector_lazy(self.connector())
    }

    /// A channel that is connected.
    ///
    /// # Errors
    /// As [`Target::connect`], or the node does not speak HTTP/2.
    pub async fn connected(&self, settings: impl FnOnce(Endpoint) -> Endpoint) -> Result<Channel, Error> {
        settings(self.endpoint()).connect_with_connector(self.connector()).await
    }

    fn endpoint(&self) -> Endpoint {
        // For an https address, tonic would make the connection itself.
        Endpoint::from_static("http://localhost").origin(self.0.uri.clone())
    }

    fn connector(
        &self,
    ) -> impl tower::Service<Uri, Response = TokioIo<Stream>, Error = io::Error, Future: Send> + Send + use<>
    {
        let target = self.clone();
        tower::service_fn(move |_: Uri| {
            let target = target.clone();
            async move { target.connect().await.map(TokioIo::new) }
        })
    }

    /// Reads the token again from time to time, since its file may be replaced while a connection lasts. An
    /// unreadable file changes nothing.
    fn look_at_token(&self) {
        if self.0.credentials.token_file.is_none() {
            return;
        }
        let Ok(mut read_again) = self.0.read_again.try_lock() else { return };
        let now = Instant::now();
        if now >= *read_again {
            *read_again = now + SETTINGS.connection.token_look;
            let _ = self.read_token();
        }
    }

    fn read_token(&self) -> Result<(), String> {
        let Some(path) = &self.0.credentials.token_file else { return Ok(()) };
        let text = read_file(path)?;
        let token = text.trim_ascii();
        let is_token = !token.is_empty() && token.iter().all(u8::is_ascii_graphic);
        let header = is_token.then(|| [b"Bearer ", token].concat());
        let Some(mut value) = header.and_then(|header| MetadataValue::try_from(header).ok()) else {
            return Err(format!(
                "{} holds no token: it is one line of letters, digits and signs",
                path.display()
            ));
        };
        value.set_sensitive(true);
        self.0.token.store(Some(Arc::new(value)));
        Ok(())
    }

    fn tls(&self) -> Result<Arc<ClientConfig>, String> {
        let Credentials { ca, certificate, .. } = &self.0.credentials;
        let mut roots = RootCertStore::empty();
        match ca {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|fault| format!("{}: {fault}", path.display()))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    return Err(
                        "this system has no certificates of authorities: name the one that signed the node's certificate"
                            .to_owned(),
                    );
                }
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|fault| fault.to_string())?
            .with_root_certificates(roots);
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = certificates(cert)?;
                let secret = PrivateKeyDer::from_pem_slice(&read_file(key)?)
                    .map_err(|fault| format!("{}: {fault}", key.display()))?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|fault| format!("{} and {}: {fault}", cert.display(), key.display()))?
            }
        };
        config.alpn_protocols = vec![H2.to_vec()];
        // A resumed session would show an old certificate. A client must show the certificate that its file
        // has now.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// The system's own message about the failed connection.
fn connecting(fault: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    let mut cause = fault.source();
    while let Some(error) = cause {
        if let Some(system) = error.downcast_ref::<io::Error>() {
            return io::Error::new(system.kind(), system.to_string());
        }
        cause = error.source();
    }
    io::Error::other(fault)
}

/// The settings of callers' connections.
pub(crate) fn settings(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(SETTINGS.connection.connect_max)
        .http2_keep_alive_interval(SETTINGS.connection.keep_alive_interval)
        .keep_alive_timeout(SETTINGS.connection.keep_alive_answer)
        .keep_alive_while_idle(true)
}

fn refused(what: String) -> ClientError {
    ClientError::Refused { what }
}

fn read_address(address: &str, credentials: &Credentials) -> Result<(NodeAddress, Uri), ClientError> {
    let wrong = |why: &str| {
        refused(format!(
            "{address:?} is no address ({why}): write it as 127.0.0.1:8081, [::1]:8081, node:8081, https://node:8081 or unix:/path"
        ))
    };
    if let Some(path) = address.strip_prefix("unix:") {
        if !path.starts_with('/') {
            return Err(wrong("the path of a socket begins with /"));
        }
        if credentials.asks_for_tls() {
            return Err(wrong("certificates are for connections over a network"));
        }
        let path = if path.starts_with("//") { path.trim_start_matches("//") } else { path };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        return Ok((NodeAddress::Unix(path.into()), Uri::from_static("http://localhost/")));
    }
    let scheme = if credentials.asks_for_tls() { "https" } else { "http" };
    let has_scheme = address.contains("://");
    let url = if has_scheme { address.to_owned() } else { format!("{scheme}://{address}") };
    let uri = Uri::try_from(url).map_err(|fault| wrong(&fault.to_string()))?;
    let is_tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") if credentials.asks_for_tls() => {
            return Err(wrong("certificates are for https://"));
        }
        Some("http") => false,
        _ => return Err(wrong("its scheme is neither http nor https")),
    };
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it has no host"))?.to_owned();
    let port = uri.port_u16().ok_or_else(|| wrong("it has no port"))?;
    if uri.path_and_query().is_some_and(|path| path != "/") {
        return Err(wrong("it has a path"));
    }
    let tls = match is_tls {
        false => None,
        true => {
            let name = credentials.server_name.as_deref().unwrap_or(&host);
            let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
            Some(ServerName::try_from(name).map_err(|fault| wrong(&fault.to_string()))?)
        }
    };
    Ok((NodeAddress::Tcp { host, port, tls }, uri))
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(SETTINGS.connection.file_bytes_max).read_to_end(&mut bytes))
        .map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read_file(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{} holds no certificate in PEM", path.display())),
        Ok(found) => Ok(found),
        Err(fault) => Err(format!("{}: {fault}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nodes_are_read_and_their_faults_named() {
        let ca = || Credentials { ca: Some("/nowhere/ca.pem".into()), ..Credentials::default() };
        let none = Credentials::default;
        for (address, credentials, authority) in [
            ("127.0.0.1:8081", none(), "127.0.0.1:8081"),
            ("[::1]:8081", none(), "[::1]:8081"),
            ("http://node:8081/", none(), "node:8081"),
            ("https://node:8081", none(), "node:8081"),
            ("unix:/run/acequia.sock", none(), "localhost"),
            ("unix:///run/acequia.sock", none(), "localhost"),
            ("node:8081", ca(), "node:8081"),
            ("https://node:8081", ca(), "node:8081"),
        ] {
            let (place, uri) = read_address(address, &credentials).expect(address);
            assert_eq!(uri.authority().expect("one").as_str(), authority);
            match place {
                NodeAddress::Unix(path) => assert_eq!(path, Path::new("/run/acequia.sock")),
                NodeAddress::Tcp { tls, .. } => {
                    let is_tls = address.starts_with("https") || credentials != none();
                    assert_eq!(tls.is_some(), is_tls, "{address}");
                }
            }
        }
        for (address, credentials, why) in [
            ("node", none(), "it has no port"),
            ("", none(), "is no address"),
            ("ftp://node:8081", none(), "neither http nor https"),
            ("http://node:8081/path", none(), "it has a path"),
            (":8081", none(), "it has no host"),
            ("two words:8081", none(), "is no address"),
            ("unix:run/acequia.sock", none(), "begins with /"),
            ("http://node:8081", ca(), "are for https"),
            ("unix:/run/acequia.sock", ca(), "over a network"),
        ] {
            let fault = read_address(address, &credentials).expect_err(address).to_string();
            assert!(fault.contains(why), "{fault}");
        }
    }

    #[test]
    fn a_token_goes_nowhere_in_the_clear() {
        let folder = std::env::temp_dir().join(format!("acequia-token-{}", std::process::id()));
        std::fs::write(&folder, "0123456789abcdef\n").expect("written");
        let with = |address: &str| {
            let credentials = Credentials { token_file: Some(folder.clone()), ..Credentials::default() };
            Target::new(address, credentials)
        };
        for address in ["127.0.0.1:8081", "localhost:8081", "[::1]:8081", "unix:/run/acequia.sock"] {
            let target = with(address).expect(address);
            assert_eq!(target.authorization().as_deref(), Some("Bearer 0123456789abcdef"));
        }
        let fault = with("10.0.0.1:8081").expect_err("in the clear").to_string();
        assert!(fault.contains("in the clear"), "{fault}");
        for none in ["", "two words\n", "\u{e9}\n"] {
            std::fs::write(&folder, none).expect("written");
            assert!(with("127.0.0.1:8081").expect_err("none").to_string().contains("holds no token"));
        }
        std::fs::remove_file(&folder).expect("removed");
        assert!(with("127.0.0.1:8081").expect_err("none").to_string().contains("cannot read"));
    }
}
