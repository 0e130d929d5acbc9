//! One TCP connection to one server.

use std::{
    io,
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, aio::MultiplexedConnection,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::settings::{Address, Credentials, Password, Tls};
use crate::settings::SETTINGS;

/// The way into a server.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) credentials: Option<Credentials>,
    pub(super) tls: Option<Tls>,
    /// The time limit for a connection, and for each question on our own account.
    pub(super) timeout: Duration,
    /// As [`Settings::may_evict`](super::Settings).
    pub(super) may_evict: bool,
}

/// A connection, and the task that reads and writes it. The task ends when this is dropped.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) line: Line,
    driver: JoinSet<()>,
}

/// Asks questions over one connection.
#[derive(Clone, Debug)]
pub(super) struct Line {
    connection: MultiplexedConnection,
    unanswered: Arc<AtomicUsize>,
}

/// A stream that fails once more than `unanswered_bytes_max` were read without an answer to a question.
struct Bounded<S> {
    stream: S,
    unanswered: Arc<AtomicUsize>,
}

impl Line {
    /// Asks a question. The caller limits the time.
    ///
    /// # Errors
    /// The server returned an error, or the connection broke.
    pub(super) async fn ask(&self, question: &Cmd) -> Result<redis::Value, RedisError> {
        // The clone is needed, since a question takes a mutable reference; it costs two reference counts.
        let answer = self.connection.clone().send_packed_command(question).await;
        self.unanswered.store(0, Ordering::Relaxed);
        answer.and_then(redis::Value::extract_error)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        let read = into.filled().len() - before;
        let bytes_max = SETTINGS.calls.unanswered_bytes_max;
        if self.unanswered.fetch_add(read, Ordering::Relaxed) + read > bytes_max {
            let what =
                format!("the server sent more than {bytes_max} bytes that answer nothing: is it a Redis?");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, what)));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl Wire {
    /// Connects and authenticates.
    ///
    /// # Errors
    /// The fault in words, with what to do if that is not plain.
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
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(SETTINGS.calls.writes_max);
        let unanswered = Arc::<AtomicUsize>::default();
        let stream = Bounded { stream, unanswered: Arc::clone(&unanswered) };
        let made = MultiplexedConnection::new_with_config(login, stream, config).await;
        let (connection, driver) = made.map_err(|fault| fault.to_string())?;
        unanswered.store(0, Ordering::Relaxed);
        let mut drivers = JoinSet::new();
        drivers.spawn(driver);
        Ok(Self { line: Line { connection, unanswered }, driver: drivers })
    }

    /// Returns when either side has closed the connection.
    pub(super) async fn closed(&mut self) {
        self.driver.join_next().await;
    }
}

/// Asks one question, with a time limit.
///
/// # Errors
/// The server returned an error, the connection broke, or the time is over ([`RedisError::is_timeout`]).
pub(super) async fn ask(line: &Line, question: &Cmd, within: Duration) -> Result<redis::Value, RedisError> {
    match timeout(within, line.ask(question)).await {
        Ok(answer) => answer,
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    }
}

/// Asks a question whose answer is text.
pub(super) async fn ask_text(line: &Line, question: &Cmd, within: Duration) -> Result<String, RedisError> {
    match ask(line, question, within).await? {
        redis::Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        redis::Value::VerbatimString { text, .. } | redis::Value::SimpleString(text) => Ok(text),
        _ => Err((ErrorKind::UnexpectedReturnType, "an answer that is no text").into()),
    }
}

async fn login(credentials: Option<&Credentials>) -> Result<RedisConnectionInfo, String> {
    let login = RedisConnectionInfo::default().set_skip_set_lib_name();
    let Some(Credentials { username, password }) = credentials else {
        return Ok(login);
    };
    let password = match password {
        Password::Text(text) => text.clone(),
        Password::File(path) => {
            String::from_utf8(read(path).await?).map_err(|_| format!("{} is not UTF-8", path.display()))?
        }
    };
    let login = login.set_password(password.trim_end_matches(['\r', '\n']));
    Ok(match username {
        Some(username) => login.set_username(username),
        None => login,
    })
}

/// The provider is our own, since another part of the process decides about a default one.
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

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// The system's buffers for a connection, on both sides together.
    const BUFFERS_MAX: usize = 12 << 20;

    /// A server that answers the first question, and then never ends an answer. Returns how much it could
    /// send.
    async fn endless(listener: TcpListener) -> usize {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut question = [0; 1 << 10];
        let mut sent = 0;
        for answer in ["+PONG\r\n", "$1073741824\r\n"] {
            assert_ne!(stream.read(&mut question).await.expect("a question"), 0);
            stream.write_all(answer.as_bytes()).await.expect("sent");
        }
        while let Ok(more) = stream.write(&[b'x'; 1 << 16]).await {
            sent += more;
        }
        sent
    }

    #[tokio::test]
    async fn an_endless_answer_of_a_server_is_cut_at_a_bound() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address =
            Address { host: "127.0.0.1".to_owned(), port: listener.local_addr().expect("bound").port() };
        let server = tokio::spawn(endless(listener));
        let patience = Duration::from_secs(20);
        let access = Access { credentials: None, tls: None, timeout: patience, may_evict: false };
        let wire = Wire::dial(&address, &access).await.expect("a connection");
        let ping = redis::cmd("PING");
        assert_eq!(ask_text(&wire.line, &ping, patience).await.expect("an answer"), "PONG");
        let fault = ask(&wire.line, &ping, patience).await.expect_err("no end");
        assert!(!fault.is_timeout(), "{fault}");
        drop(wire);
        let sent = server.await.expect("no panic");
        assert!(sent <= SETTINGS.calls.unanswered_bytes_max + BUFFERS_MAX, "{sent} bytes");
    }
}
