//! The way in by a port: its certificates, and the callers that it knows. Both are read again when their files change.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::{error, info};

use crate::{
    callers::{Caller, Callers, Known, TokenFault},
    config::{Allowed, PortTls, Watched, Who},
    connections::Life,
    refused::{Refused, Why},
    serve::Port,
    tls::{self, TlsFault},
};

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GateFault {
    /// Its certificates cannot be used.
    #[error("cannot set TLS up for listen.{port}: {cause}")]
    Tls {
        /// Which port.
        port: &'static str,
        /// What is wrong.
        cause: TlsFault,
    },
    /// A token cannot be used.
    #[error("{cause}. It is needed for listen.{port}")]
    Token {
        /// Which port.
        port: &'static str,
        /// What is wrong.
        cause: TokenFault,
    },
}

/// Who may come in by a port, and how.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) port: Port,
    tls: ArcSwapOption<ServerConfig>,
    callers: Arc<Callers>,
    rules: Mutex<Rules>,
}

/// What the config says of a port.
#[derive(Debug, Default)]
struct Rules {
    tls: Option<PortTls>,
    allow: Option<Vec<Allowed>>,
    watched: Watched,
}

/// What a gate is to go by, read.
#[derive(Debug)]
pub(crate) struct Prepared {
    rules: Rules,
    tls: Option<Arc<ServerConfig>>,
    known: Arc<Known>,
}

/// What is read and written, in the clear or not.
#[derive(Debug)]
pub(crate) enum MaybeTls<S> {
    Plain(S),
    Tls(Box<TlsStream<S>>),
}

impl Gate {
    /// One that lets everybody in.
    pub(crate) fn open(port: Port) -> Arc<Self> {
        Arc::new(Self { port, tls: ArcSwapOption::empty(), callers: Arc::default(), rules: Mutex::default() })
    }

    /// One that goes by the config.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn new(
        port: Port,
        tls: Option<PortTls>,
        allow: Option<Vec<Allowed>>,
    ) -> Result<Arc<Self>, GateFault> {
        let gate = Self::open(port);
        gate.put(gate.prepare(tls, allow)?);
        Ok(gate)
    }

    fn prepare(&self, tls: Option<PortTls>, allow: Option<Vec<Allowed>>) -> Result<Prepared, GateFault> {
        let mut rules = Rules { tls, allow, watched: Watched::default() };
        // Looked at before they are read: what changes meanwhile is read again.
        rules.have_changed();
        let (tls, known) = self.read(&rules)?;
        Ok(Prepared { rules, tls, known })
    }

    /// Makes ready to let others in.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn prepare_to_allow(&self, allow: Option<Vec<Allowed>>) -> Result<Prepared, GateFault> {
        let tls = self.lock().tls.clone();
        self.prepare(tls, allow)
    }

    /// Goes by what was made ready, from now on.
    pub(crate) fn put(&self, prepared: Prepared) {
        let Prepared { rules, tls, known } = prepared;
        *self.lock() = rules;
        self.tls.store(tls);
        self.callers.replace(known);
    }

    fn read(&self, rules: &Rules) -> Result<(Option<Arc<ServerConfig>>, Arc<Known>), GateFault> {
        let port = self.port.name();
        let protocols: &[&[u8]] = match self.port {
            Port::Grpc | Port::Admin => &[tls::H2],
            Port::Http => &[tls::H2, tls::HTTP_1],
        };
        let tls = rules.tls.as_ref().map(|tls| tls.read(protocols)).transpose();
        let tls = tls.map_err(|cause| GateFault::Tls { port, cause })?;
        let asks = rules.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let known = Known::read(rules.allow.as_deref(), asks);
        Ok((tls, known.map_err(|cause| GateFault::Token { port, cause })?))
    }

    /// Reads the files again if they have changed. What cannot be read changes nothing.
    pub(crate) fn look_again(&self) {
        let mut rules = self.lock();
        if !rules.have_changed() {
            return;
        }
        match self.read(&rules) {
            Ok((tls, known)) => {
                self.tls.store(tls);
                self.callers.replace(known);
                info!(port = self.port.name(), "certificates and tokens read again");
            }
            Err(fault) => error!(%fault, "certificates and tokens not read again: the old ones stay"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in, and says who it is; nothing where it has failed to come in, or has taken too long.
    pub(crate) async fn admit<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        from: Option<SocketAddr>,
        life: &Life,
        refused: &Refused,
    ) -> Option<(MaybeTls<S>, Caller)> {
        let caller = |names| Caller::new(Arc::clone(&self.callers), names, from);
        let Some(tls) = self.tls.load_full() else { return Some((MaybeTls::Plain(stream), caller(None))) };
        // A handshake that takes too long is cut as a connection without a call is.
        let handshake = tokio::select! {
            biased;
            () = life.cut() => return None,
            handshake = TlsAcceptor::from(tls).accept(stream) => handshake,
        };
        match handshake {
            Ok(stream) => {
                let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                let names = shown.map(tls::names_in);
                Some((MaybeTls::Tls(Box::new(stream)), caller(names)))
            }
            Err(fault) => {
                refused.count(self.port, Why::Handshake, from, &fault);
                None
            }
        }
    }
}

impl Rules {
    fn have_changed(&mut self) -> bool {
        let tokens = self.allow.iter().flatten().filter_map(|allowed| match &allowed.who {
            Who::Token(path) => Some(path.as_path()),
            Who::Name(_) => None,
        });
        let files: Vec<&Path> = self.tls.iter().flat_map(PortTls::files).chain(tokens).collect();
        self.watched.have_changed(&files)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for MaybeTls<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MaybeTls<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
