//! quinn over turmoil's UDP. Its timers are tokio's, which turmoil drives.

use std::{
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit},
};

use super::nap::Nap;

type Readable = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
/// Called for every packet, with its destination and bytes. Returns whether the packet survives.
type OnSend = dyn Fn(SocketAddr, &[u8]) -> bool + Send + Sync;

/// A simulated UDP socket.
pub(crate) struct Socket {
    io: Arc<turmoil::net::UdpSocket>,
    local: SocketAddr,
    /// The pending wait for packets. While it is pending it holds turmoil's lock on receiving, so nothing may
    /// be received before it has ended.
    readable: Mutex<Option<Readable>>,
    on_send: Box<OnSend>,
    nap: Nap,
}

impl Socket {
    pub(crate) async fn bind(
        port: u16,
        nap: Nap,
        on_send: impl Fn(SocketAddr, &[u8]) -> bool + Send + Sync + 'static,
    ) -> io::Result<Arc<Self>> {
        let io = turmoil::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
        let local = io.local_addr()?;
        let (io, readable, on_send) = (Arc::new(io), Mutex::default(), Box::new(on_send));
        Ok(Arc::new(Self { io, local, readable, on_send, nap }))
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Socket").field(&self.local).finish()
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(WritableAwake(self.nap.clone()))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.nap.is_on() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for packet in transmit.contents.chunks(segment) {
            if !(self.on_send)(transmit.destination, packet) {
                continue;
            }
            match self.io.try_send_to(packet, transmit.destination) {
                // No host listens: UDP loses the packet silently.
                Err(fault) if fault.kind() == io::ErrorKind::ConnectionRefused => {}
                sent => drop(sent?),
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        ready!(self.nap.poll_awake(cx));
        let mut readable = self.readable.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(wait) = readable.as_mut() {
                let waited = ready!(wait.as_mut().poll(cx));
                *readable = None;
                waited?;
            }
            let mut received = 0;
            for (buffer, meta) in buffers.iter_mut().zip(&mut *meta) {
                match self.io.try_recv_from(buffer) {
                    Ok((len, addr)) => {
                        *meta = RecvMeta { addr, len, stride: len, ecn: None, dst_ip: None };
                        received += 1;
                    }
                    Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => break,
                    Err(fault) => return Poll::Ready(Err(fault)),
                }
            }
            if received > 0 {
                return Poll::Ready(Ok(received));
            }
            let io = Arc::clone(&self.io);
            *readable = Some(Box::pin(async move { io.readable().await }));
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// turmoil's sockets accept packets at any time.
#[derive(Debug)]
struct WritableAwake(Nap);

impl UdpPoller for WritableAwake {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_awake(cx).map(Ok)
    }
}
