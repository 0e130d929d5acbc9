//! A frame on its own stream: its length in four bytes, most significant first, then its bytes.
//!
//! The end of a stream alone does not prove that a frame is whole. Quinn ends a stream properly even if its
//! sender is dropped in the middle of a frame. Half a frame must never pass for a whole one.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use quinn::{Connection, ReadError, ReadExactError, RecvStream};

use crate::{MeshRefusal, settings::SETTINGS};

/// The most bytes of a frame: the largest frame of the layer above, 4 MiB, and room for its wrapping.
pub const FRAME_BYTES_MAX: usize = (4 << 20) + 64;
/// The bytes of a frame's length.
pub(crate) const HEAD_BYTES: usize = 4;
/// The version of this crate's own protocol on a connection.
const HELLO: u8 = 1;
/// The most bytes of a hello. Later versions may say more after the first byte.
const HELLO_BYTES_MAX: usize = 64;

// How a frame's length and the settings relate.
const _: () = {
    let frames = SETTINGS.frames;
    // No frame is begun while half of the bound is held. The other half takes what a node has in flight.
    assert!(FRAME_BYTES_MAX <= frames.held_bytes_max / 2);
    assert!(frames.unacknowledged_bytes_max <= frames.held_bytes_max / 2);
    // A whole frame may be sent before any of it is read or acknowledged.
    assert!(FRAME_BYTES_MAX + HEAD_BYTES <= frames.window_bytes as usize);
};

/// Why there is no frame.
#[derive(Debug)]
pub(crate) enum NoFrame {
    /// The frame was refused.
    Refused(MeshRefusal),
    /// The connection ended first.
    Lost,
}

impl From<MeshRefusal> for NoFrame {
    fn from(refusal: MeshRefusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The bytes of one connection's frames that are in memory and not yet delivered.
#[derive(Debug, Default)]
pub(crate) struct Held(AtomicUsize);

impl Held {
    /// Whether another frame may be begun.
    pub(crate) fn has_room(&self) -> bool {
        self.0.load(Relaxed) < SETTINGS.frames.held_bytes_max / 2
    }
}

/// The part of the held bytes that one frame has.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    held: &'a Held,
    bytes: usize,
}

impl<'a> Hold<'a> {
    pub(crate) const fn new(held: &'a Held) -> Self {
        Self { held, bytes: 0 }
    }

    fn grow(&mut self, bytes: usize) -> Result<(), MeshRefusal> {
        self.bytes += bytes;
        let held = self.held.0.fetch_add(bytes, Relaxed) + bytes;
        if held > SETTINGS.frames.held_bytes_max { Err(MeshRefusal::FramesTooMany) } else { Ok(()) }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.held.0.fetch_sub(self.bytes, Relaxed);
    }
}

/// Reads one frame. Memory grows with the bytes that arrive, never with the length that is announced.
pub(crate) async fn read(stream: &mut RecvStream, hold: &mut Hold<'_>) -> Result<Vec<u8>, NoFrame> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).await.map_err(|error| match error {
        ReadExactError::FinishedEarly(_) => NoFrame::Refused(MeshRefusal::FrameCutShort),
        ReadExactError::ReadError(error) => unread(&error),
    })?;
    let length = u32::from_be_bytes(head) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(MeshRefusal::FrameTooLong.into());
    }
    let mut frame = Vec::new();
    while let Some(chunk) = stream.read_chunk(length + 1, true).await.map_err(|error| unread(&error))? {
        if frame.len() + chunk.bytes.len() > length {
            return Err(MeshRefusal::FrameTooLong.into());
        }
        hold.grow(chunk.bytes.len())?;
        frame.extend_from_slice(&chunk.bytes);
    }
    if frame.len() == length { Ok(frame) } else { Err(MeshRefusal::FrameCutShort.into()) }
}

fn unread(error: &ReadError) -> NoFrame {
    match error {
        ReadError::Reset(_) => NoFrame::Refused(MeshRefusal::FrameCutShort),
        _ => NoFrame::Lost,
    }
}

/// How the sending of a frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameOutcome {
    /// The other side's machine has the whole frame.
    Acknowledged,
    /// The other side refused the frame.
    Refused,
    /// The connection ended first.
    Lost,
}

/// Sends one frame and waits until all of it is acknowledged.
pub(crate) async fn write(connection: &Connection, frame: Vec<u8>) -> FrameOutcome {
    let Ok(length) = u32::try_from(frame.len()) else { return FrameOutcome::Refused };
    let Ok(mut stream) = connection.open_uni().await else { return FrameOutcome::Lost };
    let mut chunks = [Bytes::copy_from_slice(&length.to_be_bytes()), Bytes::from(frame)];
    // If the other side stopped the stream, the code below sees that.
    let _ = stream.write_all_chunks(&mut chunks).await;
    let _ = stream.finish();
    match stream.stopped().await {
        Ok(None) => FrameOutcome::Acknowledged,
        Ok(Some(_)) => FrameOutcome::Refused,
        Err(_) => FrameOutcome::Lost,
    }
}

/// Says hello, on the first stream of either side. Before the hello, the other side cannot know whether its
/// certificate was accepted: in TLS 1.3 a dialler is done before the other side has checked it.
pub(crate) async fn write_hello(connection: &Connection) -> Result<(), FrameOutcome> {
    let mut stream = connection.open_uni().await.map_err(|_| FrameOutcome::Lost)?;
    stream.write_all(&[HELLO]).await.map_err(|_| FrameOutcome::Lost)?;
    stream.finish().map_err(|_| FrameOutcome::Lost)
}

/// Reads the other side's hello. Streams are accepted in the order in which they were opened, so frames
/// that overtake the hello wait.
pub(crate) async fn read_hello(connection: &Connection) -> Result<(), NoFrame> {
    let mut stream = connection.accept_uni().await.map_err(|_| NoFrame::Lost)?;
    let hello = stream.read_to_end(HELLO_BYTES_MAX).await.map_err(|error| match error {
        quinn::ReadToEndError::Read(error) if !matches!(error, ReadError::Reset(_)) => NoFrame::Lost,
        _ => NoFrame::Refused(MeshRefusal::Hello),
    })?;
    if hello.first() == Some(&HELLO) { Ok(()) } else { Err(MeshRefusal::Hello.into()) }
}
