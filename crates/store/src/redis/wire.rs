//! One TCP connection to one server.

use std::{path::Path, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, aio::MultiplexedConnection,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::settings::{Address, Credentials, Tls};

/// Requests that wait to be written. As many calls as may be in flight, so that none waits for a place.
const WRITES_MAX: usize = super::shard::IN_FLIGHT_MAX;

/// How to knock at a server.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) credentials: Option<Credentials>,
    pub(super) tls: Option<Tls>,
    /// For making a connection, and for each question that is none of a caller's.
    pub(super) timeout: Duration,
}

/// A connection, and the task that reads and writes it: it ends with this.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) connection: MultiplexedConnection,
    driver: JoinSet<()>,
}

impl Wire {
    /// Connects and says who we are.
    ///
    /// # Errors
    /// In words, with what to do where that is not plain.
    pub(super) async fn dial(address: &Address, access: &Access) -> Result<Self, String> {
        match timeout(access.timeout, Self::dialled(address, access)).await {
            Ok(wire) => wire,
            Err(_) => Err(format!("no connection within {} ms", access.timeout.as_millis())),
        }
    }

    async fn dialled(address: &Address, access: &Access) -> Result<Self, String> {
        let login = login(access.credentials.as_ref()).await?;
        let encryption = match &access.tls {
            Some(tls) => Some(client_config(tls).await?),
            None => None,
        };
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await;
        let stream = stream.map_err(|fault| format!("cannot connect: {fault}"))?;
        stream.set_nodelay(true).map_err(|fault| fault.to_string())?;
        let (Some(tls), Some(config)) = (&access.tls, encryption) else {
            return Self::over(stream, &login).await;
        };
        let name = tls.server_name.as_ref().unwrap_or(&address.host).clone();
        let name = ServerName::try_from(name).map_err(|fault| format!("no name to verify: {fault}"))?;
        let stream = TlsConnector::from(config).connect(name, stream).await;
        Self::over(stream.map_err(|fault| format!("TLS: {fault}"))?, &login).await
    }

    async fn over<S>(stream: S, login: &RedisConnectionInfo) -> Result<Self, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(WRITES_MAX);
        let made = MultiplexedConnection::new_with_config(login, stream, config).await;
        let (connection, driver) = made.map_err(|fault| fault.to_string())?;
        let mut drivers = JoinSet::new();
        drivers.spawn(driver);
        Ok(Self { connection, driver: drivers })
    }

    /// Returns when the connection is closed, by whatever side.
    pub(super) async fn closed(&mut self) {
        self.driver.join_next().await;
    }
}

/// Asks one question.
///
/// # Errors
/// The server said so, the connection broke, or the time is over, which [`RedisError::is_timeout`] tells.
pub(super) async fn ask(
    connection: &MultiplexedConnection,
    question: &Cmd,
    within: Duration,
) -> Result<redis::Value, RedisError> {
    // A handle of its own, since a question is asked by mutable reference; it costs two reference counts.
    let mut connection = connection.clone();
    match timeout(within, connection.send_packed_command(question)).await {
        Ok(answer) => answer.and_then(redis::Value::extract_error),
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

/// Asks for text.
pub(super) async fn ask_text(
    connection: &MultiplexedConnection,
    question: &Cmd,
    within: Duration,
) -> Result<String, RedisError> {
    match ask(connection, question, within).await? {
        redis::Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        redis::Value::VerbatimString { text, .. } | redis::Value::SimpleString(text) => Ok(text),
        _ => Err((ErrorKind::UnexpectedReturnType, "an answer that is no text").into()),
    }
}

async fn login(credentials: Option<&Credentials>) -> Result<RedisConnectionInfo, String> {
    let login = RedisConnectionInfo::default().set_skip_set_lib_name();
    let Some(Credentials { username, password_file }) = credentials else {
        return Ok(login);
    };
    let password = String::from_utf8(read(password_file).await?)
        .map_err(|_| format!("{} is not UTF-8", password_file.display()))?;
    let login = login.set_password(password.trim_end_matches(['\r', '\n']));
    Ok(match username {
        Some(username) => login.set_username(username),
        None => login,
    })
}

/// With a provider of our own: whether the process has a default one is not ours to say.
async fn client_config(tls: &Tls) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(&tls.ca_file).await? {
        roots.add(authority).map_err(|fault| format!("{}: {fault}", tls.ca_file.display()))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|fault| fault.to_string())?
        .with_root_certificates(roots);
    let config = match &tls.client {
        None => config.with_no_client_auth(),
        Some(client) => {
            let certificates = certificates(&client.cert_file).await?;
            let key = PrivateKeyDer::from_pem_slice(&read(&client.key_file).await?)
                .map_err(|fault| format!("{}: {fault}", client.key_file.display()))?;
            config.with_client_auth_cert(certificates, key).map_err(|fault| fault.to_string())?
        }
    };
    Ok(Arc::new(config))
}

async fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(file).await?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(format!("{} has no certificate", file.display())),
        Ok(certificates) => Ok(certificates),
        Err(fault) => Err(format!("{}: {fault}", file.display())),
    }
}

async fn read(file: &Path) -> Result<Vec<u8>, String> {
    tokio::fs::read(file).await.map_err(|fault| format!("cannot read {}: {fault}", file.display()))
}
