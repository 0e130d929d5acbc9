//! gRPC over turmoil's TCP. Turmoil neither resends lost segments nor notices that a peer is gone. So a
//! stream ends itself after a silence, as a stream with keep-alive does.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use acequia_server::serve::{Connection, Listener};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};
use tonic::transport::{Channel, Endpoint, Uri};
use turmoil::net::{TcpListener, TcpStream};

use super::nap::Nap;

/// A caller pings the node this often, and waits this long for the answer.
const PING: Duration = Duration::from_secs(1);
/// After this silence a node takes a caller for gone.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_millis(500);

/// The listener for callers.
pub(crate) struct Port {
    listener: TcpListener,
    nap: Nap,
}

impl Port {
    pub(crate) async fn bind(port: u16, nap: Nap) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?, nap })
    }
}

impl Listener for Port {
    type Connection = Accepted;

    async fn accept(&self) -> io::Result<Accepted> {
        let (stream, _) = self.listener.accept().await?;
        Ok(Accepted { stream, nap: self.nap.clone() })
    }
}

/// An accepted connection.
pub(crate) struct Accepted {
    stream: TcpStream,
    nap: Nap,
}

impl Connection for Accepted {
    type Stream = Stream;

    fn open(self) -> io::Result<Stream> {
        Ok(Stream { stream: self.stream, nap: self.nap, silence: Box::pin(sleep(SILENCE_MAX)) })
    }
}

/// A stream that ends itself after a silence.
pub(crate) struct Stream {
    stream: TcpStream,
    nap: Nap,
    silence: Pin<Box<Sleep>>,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.nap.poll_awake(cx));
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            self.silence.as_mut().reset(Instant::now() + SILENCE_MAX);
            return read;
        }
        self.silence.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.nap.poll_awake(cx));
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A caller's channel to a node. It connects whenever it is used without a connection.
pub(crate) fn channel(node: SocketAddr, deadline: Duration) -> Channel {
    let endpoint = Endpoint::from(Uri::from_static("http://node"))
        .timeout(deadline)
        .connect_timeout(CONNECT_MAX)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true);
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| async move {
        TcpStream::connect(node).await.map(TokioIo::new)
    }))
}
