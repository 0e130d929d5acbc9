//! The bodies of answers, and of requests that tonic reads.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::{message::ok, stream::CheckStream};
use crate::connections::{Hold, Life, StreamPlace};

/// The body of an answer.
pub(crate) enum GrpcBody {
    /// Nothing: the headers say everything.
    Empty,
    /// One message, then the status.
    Unary(Option<Bytes>),
    /// Many messages.
    Stream(Box<CheckStream>),
    /// An answer of a tonic service. The call is under way until its answer has gone out.
    Tonic { body: tonic::body::Body, _call: (Hold, StreamPlace) },
    /// The end of a message.
    Done,
}

impl GrpcBody {
    pub(super) fn unary(message: Bytes) -> Self {
        Self::Unary(Some(message))
    }

    pub(super) fn stream(stream: CheckStream) -> Self {
        Self::Stream(Box::new(stream))
    }
}

impl Body for GrpcBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        match this {
            Self::Empty | Self::Done => Poll::Ready(None),
            Self::Unary(message) => match message.take() {
                Some(message) => Poll::Ready(Some(Ok(Frame::data(message)))),
                None => {
                    *this = Self::Done;
                    Poll::Ready(Some(Ok(Frame::trailers(ok()))))
                }
            },
            Self::Stream(stream) => stream.poll_frame(cx).map(|frame| frame.map(Ok)),
            Self::Tonic { body, .. } => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty | Self::Done => true,
            Self::Tonic { body, .. } => body.is_end_stream(),
            Self::Unary(_) | Self::Stream(_) => false,
        }
    }
}

/// The bytes of tonic's buffers for a call.
const TONIC_BYTES: usize = 24 << 10;

/// A body that other code reads. All of it is held until its end, since it is not known here where a message
/// ends.
#[derive(Debug)]
pub(super) struct HeldBody {
    body: Incoming,
    hold: Hold,
    bytes: usize,
}

impl HeldBody {
    /// `bytes`: the bytes of the call that are held beside its body.
    pub(super) fn new(body: Incoming, life: &Arc<Life>, bytes: usize) -> Self {
        Self { body, hold: life.hold(), bytes: bytes + TONIC_BYTES }
    }
}

impl Body for HeldBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            self.bytes += frame.data_ref().map_or(0, Bytes::len);
            let bytes = self.bytes;
            self.hold.holds(bytes, bytes - TONIC_BYTES)?;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
