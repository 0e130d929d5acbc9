//! Lets connections in: their handshake, and who is at the other end.

use std::{io::ErrorKind, net::SocketAddr, sync::Arc};

use rustls::ServerConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::either::Either;

use crate::{
    callers::Caller,
    connections::{ConnectionPlace, Life},
    refused::{Origin, Refused, Why},
    settings::SETTINGS,
    tls,
};

/// A stream in the clear, or encrypted.
pub(crate) type MaybeTls<S> = Either<S, Box<TlsStream<S>>>;

/// A connection that was let in.
#[derive(Debug)]
pub(crate) struct Admitted<S> {
    pub(crate) stream: MaybeTls<S>,
    pub(crate) caller: Caller,
    pub(crate) life: Arc<Life>,
}

/// Lets a connection in, and says who it is; `None` if it has failed to come in, or has taken too long.
pub(crate) async fn admit<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    from: Option<SocketAddr>,
    place: &ConnectionPlace,
    refused: &Refused,
) -> Option<Admitted<S>> {
    let (gate, life) = (place.gate(), &place.life);
    let admitted =
        |stream, names| Admitted { stream, caller: gate.caller(names, from), life: Arc::clone(life) };
    life.belongs_to(gate.caller(None, from).owner());
    let Some(tls) = gate.tls() else { return Some(admitted(Either::Left(stream), None)) };
    let under_way = place.begin_handshake();
    let bounded = |connection: &mut ServerConnection| {
        connection.set_buffer_limit(Some(SETTINGS.connections.tls_send_bytes_max))
    };
    // A handshake that takes too long is cut like a connection without a call.
    let handshake = tokio::select! {
        biased;
        () = life.cut() => return None,
        handshake = TlsAcceptor::from(tls).accept_with(stream, bounded) => handshake,
    };
    drop(under_way);
    match handshake {
        Ok(stream) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let names = shown.map(tls::names_in);
            Some(admitted(Either::Right(Box::new(stream)), names))
        }
        // A client that connects and leaves only checks whether the node is there.
        Err(fault) if matches!(fault.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => None,
        Err(fault) => {
            refused.count(gate.port, Why::Handshake, Origin::unknown(from), &fault);
            None
        }
    }
}
