//! The end of a connection: the last bytes that were sent must arrive.
//!
//! If a socket is closed while bytes of the other side are unread, the system resets the connection. Then the
//! other side may lose what it has not read yet (RFC 1122, section 4.2.2.13). So the side that ends a
//! connection says that nothing more comes, and goes on reading for a while.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use crate::settings::SETTINGS;

/// A stream that is left in a shared place when this is dropped.
#[derive(Debug)]
pub(crate) struct Borrowed<S> {
    stream: Option<S>,
    left: Left<S>,
}

/// The place where a stream is left.
pub(crate) type Left<S> = Arc<Mutex<Option<S>>>;

impl<S> Borrowed<S> {
    /// Lends a stream, and gives the place where it will be left.
    pub(crate) fn new(stream: S) -> (Self, Left<S>) {
        let left = Left::default();
        (Self { stream: Some(stream), left: Arc::clone(&left) }, left)
    }
}

impl<S> Drop for Borrowed<S> {
    fn drop(&mut self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = self.stream.take();
    }
}

/// Ends the rest of a connection.
pub(crate) async fn close<S: AsyncRead + AsyncWrite + Unpin>(left: Left<S>) {
    let stream = left.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut stream) = stream else { return };
    let until_closed = async {
        let mut unread = [0; 4_096];
        if stream.shutdown().await.is_ok() {
            while matches!(stream.read(&mut unread).await, Ok(1..)) {}
        }
    };
    // A peer that does not close is not waited for.
    let _ = tokio::time::timeout(SETTINGS.connections.linger, until_closed).await;
}

impl<S: Unpin> Borrowed<S> {
    fn stream(&mut self) -> Pin<&mut S> {
        Pin::new(self.stream.as_mut().expect("it is there until this is dropped"))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Borrowed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream().poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Borrowed<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().stream().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().stream().poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn the_last_answer_arrives_even_if_the_request_was_not_read_fully() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut caller =
            TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        caller.write_all(&[7; 100_000]).await.expect("sent");
        let (mut borrowed, left) = Borrowed::new(stream);
        borrowed.write_all(b"the last answer").await.expect("sent");
        drop(borrowed);
        let closing = tokio::spawn(close(left));
        let mut answer = Vec::new();
        caller.read_to_end(&mut answer).await.expect("no reset");
        assert_eq!(answer, b"the last answer");
        drop(caller);
        tokio::time::timeout(SETTINGS.connections.linger / 2, closing)
            .await
            .expect("at once")
            .expect("no panic");
    }
}
