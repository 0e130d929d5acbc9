//! gRPC's framing over HTTP/2: a byte that says whether a message is compressed, four bytes for its length,
//! the message. The status is in trailers.

use std::fmt::Write as _;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tonic::Code;

use crate::{
    connections::{Hold, TooManyStreams, TooMuchHeld},
    question::BadRequest,
    refused::TurnedAway,
    settings::SETTINGS,
};

/// Bytes in front of a message.
pub(super) const PREFIX: usize = 5;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Trailers of a successful call.
pub(super) fn ok() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// The fault of a failed call.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    code: Code,
    message: String,
    is_too_large: bool,
}

impl Status {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), is_too_large: false }
    }

    /// Whether the message, or a part of it, was too large.
    pub(super) const fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// Notes whether the message, or a part of it, was too large.
    pub(super) fn too_large_if(self, is_too_large: bool) -> Self {
        Self { is_too_large, ..self }
    }

    pub(super) fn malformed(fault: impl std::fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, format!("the message is malformed: {fault}"))
    }

    /// Writes the status as headers or trailers. The message is percent-encoded, as gRPC requires.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(GRPC_STATUS, HeaderValue::from(self.code as i32));
        let mut text = String::with_capacity(self.message.len());
        for byte in self.message.bytes() {
            if matches!(byte, b' '..=b'~') && byte != b'%' {
                text.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
        }
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(GRPC_MESSAGE, value);
        }
    }

    pub(super) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(2);
        self.write(&mut trailers);
        trailers
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<TooManyStreams> for Status {
    fn from(fault: TooManyStreams) -> Self {
        Self::new(Code::ResourceExhausted, fault.to_string())
    }
}

impl From<TurnedAway> for Status {
    fn from(fault: TurnedAway) -> Self {
        let code = match fault {
            TurnedAway::Unknown => Code::Unauthenticated,
            TurnedAway::Action | TurnedAway::Domain => Code::PermissionDenied,
        };
        Self::new(code, fault.to_string())
    }
}

impl From<TooMuchHeld> for Status {
    fn from(fault: TooMuchHeld) -> Self {
        Self::new(Code::ResourceExhausted, fault.to_string()).too_large_if(true)
    }
}

impl From<BadRequest> for Status {
    fn from(fault: BadRequest) -> Self {
        Self::new(Code::InvalidArgument, fault.to_string()).too_large_if(fault.is_too_large())
    }
}

/// The only message of a unary call, from all its bytes.
pub(super) fn message_of(bytes: &Bytes) -> Result<Bytes, Status> {
    match message_length(bytes)? {
        Some(length) if bytes.len() == PREFIX + length => Ok(bytes.slice(PREFIX..)),
        _ => Err(Status::new(Code::InvalidArgument, "the call carries more or less than one message")),
    }
}

/// Reads the rest of a unary call, and returns its message. The bytes that came are held as long as `hold`
/// is.
pub(super) async fn read_rest(first: Bytes, body: Incoming, hold: &mut Hold) -> Result<Bytes, Status> {
    match tokio::time::timeout(SETTINGS.grpc.read_max, collect(first, body, hold)).await {
        Ok(bytes) => message_of(&bytes?),
        Err(_) => Err(late()),
    }
}

/// Makes room for the whole message that begins here, as soon as its length is known. All of the message is
/// held from then on, so that it never has to be moved.
pub(super) fn expect(begun: &mut BytesMut, hold: &mut Hold) -> Result<(), Status> {
    let length = message_length(begun)?;
    let whole = length.map_or(0, |length| PREFIX + length);
    hold.holds(whole.max(begun.len()), length.unwrap_or(0))?;
    begun.reserve(whole.saturating_sub(begun.len()));
    Ok(())
}

/// The fault of a message that has begun and does not end in time.
pub(super) fn late() -> Status {
    Status::new(Code::DeadlineExceeded, "the request did not end in 10 s: send it whole")
}

async fn collect(first: Bytes, mut body: Incoming, hold: &mut Hold) -> Result<Bytes, Status> {
    // A copy is made, since a few bytes from h2 may keep a large buffer alive.
    let mut all = BytesMut::from(&first[..]);
    drop(first);
    expect(&mut all, hold)?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Status::new(Code::Cancelled, e.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > PREFIX + SETTINGS.grpc.message_bytes_max {
            return Err(too_large());
        }
        all.extend_from_slice(&data);
        expect(&mut all, hold)?;
        if body.is_end_stream() {
            break;
        }
    }
    Ok(all.freeze())
}

/// The length of the message that begins here, if its prefix has come.
pub(super) fn message_length(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some((prefix, _)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 {
        return Err(Status::new(Code::Unimplemented, "compressed messages are not served: send them plain"));
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > SETTINGS.grpc.message_bytes_max { Err(too_large()) } else { Ok(Some(length)) }
}

fn too_large() -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!(
            "the message is larger than {} bytes: send fewer or shorter descriptors",
            SETTINGS.grpc.message_bytes_max
        ),
    )
    .too_large_if(true)
}

/// Frames a message that `write` appends.
pub(super) fn framed(capacity: usize, write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::with_capacity(PREFIX + capacity);
    out.put_bytes(0, PREFIX);
    write(&mut out);
    finish(out)
}

/// Fills in the length of a message that was written after [`PREFIX`] empty bytes.
pub(super) fn finish(mut out: Vec<u8>) -> Bytes {
    let length = u32::try_from(out.len() - PREFIX).unwrap_or(u32::MAX);
    out[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    Bytes::from(out)
}
