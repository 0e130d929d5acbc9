//! One HTTP/2 connection, client side. Bytes go in and events come out; requests go in and bytes come out. It
//! owns no socket.
//!
//! The sent frames never exceed the windows, the frame size and the number of streams that the server grants.

use super::frames::{self, FRAME_BYTES_MAX, HEAD_BYTES, Head, LAST_STREAM, PREFACE, WINDOW_DEFAULT};
use crate::settings::SETTINGS;

/// A connection's state.
#[derive(Debug)]
pub(super) struct Link {
    /// Bytes to be written. The driver empties it.
    pub(super) out: Vec<u8>,
    /// The HEADERS frame of a request, for stream 0.
    request: Vec<u8>,
    next_stream: u32,
    /// Whether the server's first SETTINGS have come.
    settled: bool,
    /// Whether no further stream may be opened.
    closing: bool,
    /// What we may still send on the connection.
    window: i64,
    /// What we may send on a new stream.
    stream_window: i64,
    /// The longest DATA payload we may send.
    frame_bytes_max: usize,
    /// Streams that the server allows at once.
    streams_max: usize,
    /// Bytes received on the connection and not yet granted again.
    received: u32,
}

/// An action of the server. The header blocks of answers are not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event<'a> {
    /// Something that concerns the whole connection and has been handled.
    Connection,
    /// The server's windows now allow more or less on every stream.
    StreamWindows { delta: i64 },
    /// The server's window now allows more on a stream.
    StreamWindow { stream: u32, increment: i64 },
    /// A part of an answer. `flow` is the part of the stream's window that it used.
    Data { stream: u32, bytes: &'a [u8], flow: u32, end: bool },
    /// Headers or trailers.
    Headers { stream: u32, end: bool },
    /// The server has given a stream up.
    Reset { stream: u32 },
    /// The server will not process any stream after this one.
    GoingAway { last: u32 },
}

/// Why a connection is of no more use.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The server broke the protocol.
    Protocol(String),
    /// The server said GOAWAY with an error.
    GoAway(String),
}

impl Link {
    /// A connection whose first stream is `first_stream`, with the preface ready to be written. Every request
    /// has this header block.
    pub(super) fn new(header_block: &[u8], first_stream: u32) -> Self {
        let mut request = Vec::new();
        let flags = frames::END_HEADERS;
        Head { length: header_block.len(), kind: frames::HEADERS, flags, stream: 0 }.put(&mut request);
        request.extend_from_slice(header_block);

        let mut out = PREFACE.to_vec();
        let mut settings = Vec::new();
        frames::put_setting(&mut settings, frames::SETTINGS_ENABLE_PUSH, 0);
        frames::put_setting(&mut settings, frames::SETTINGS_INITIAL_WINDOW_SIZE, SETTINGS.load.stream_window);
        Head { length: settings.len(), kind: frames::SETTINGS, flags: 0, stream: 0 }.put(&mut out);
        out.extend_from_slice(&settings);

        let mut link = Self {
            out,
            request,
            next_stream: first_stream,
            settled: false,
            closing: false,
            window: WINDOW_DEFAULT,
            stream_window: WINDOW_DEFAULT,
            frame_bytes_max: FRAME_BYTES_MAX,
            streams_max: usize::MAX,
            received: 0,
        };
        link.grant(0, SETTINGS.load.connection_window - WINDOW_DEFAULT as u32);
        link
    }

    /// Whether the server's first SETTINGS have come, so that its bounds are known.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Whether no further stream may be opened on this connection.
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// What may be sent on a new stream.
    pub(super) fn stream_window(&self) -> i64 {
        self.stream_window
    }

    /// Whether the connection's own window allows DATA.
    pub(super) fn has_window(&self) -> bool {
        self.window > 0
    }

    /// The stream that is opened next.
    pub(super) fn next_stream(&self) -> u32 {
        self.next_stream
    }

    /// Whether another stream may be opened while `open` streams are open.
    pub(super) fn can_open(&mut self, open: usize) -> bool {
        self.closing |= self.next_stream >= LAST_STREAM;
        !self.closing && open < self.streams_max
    }

    /// Starts a request, and returns its stream. Only after [`Self::can_open`].
    pub(super) fn open(&mut self) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        let (head, block) = self.request.split_at(HEAD_BYTES);
        self.out.extend_from_slice(&head[..HEAD_BYTES - 4]);
        self.out.extend_from_slice(&stream.to_be_bytes());
        self.out.extend_from_slice(block);
        stream
    }

    /// Sends as much of `bytes` as the windows allow, and returns how much that was. If `end`, the last byte
    /// ends our side of the stream.
    pub(super) fn send(&mut self, stream: u32, window: &mut i64, bytes: &[u8], end: bool) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            let allowed = self.window.min(*window).max(0) as usize;
            let length = (bytes.len() - sent).min(allowed).min(self.frame_bytes_max);
            if length == 0 {
                break;
            }
            let flags = if end && sent + length == bytes.len() { frames::END_STREAM } else { 0 };
            Head { length, kind: frames::DATA, flags, stream }.put(&mut self.out);
            self.out.extend_from_slice(&bytes[sent..sent + length]);
            self.window -= length as i64;
            *window -= length as i64;
            sent += length;
        }
        sent
    }

    /// Ends our side of a stream.
    pub(super) fn finish(&mut self, stream: u32) {
        Head { length: 0, kind: frames::DATA, flags: frames::END_STREAM, stream }.put(&mut self.out);
    }

    /// Gives a stream up.
    pub(super) fn cancel(&mut self, stream: u32) {
        Head { length: 4, kind: frames::RST_STREAM, flags: 0, stream }.put(&mut self.out);
        self.out.extend_from_slice(&frames::CANCEL.to_be_bytes());
    }

    /// Takes note of DATA on a stream that goes on. `received` counts the bytes that are not granted again,
    /// and they are granted when it is time.
    pub(super) fn replenish(&mut self, stream: u32, received: &mut u32) {
        if *received >= SETTINGS.load.stream_window / 2 {
            self.grant(stream, std::mem::take(received));
        }
    }

    /// Takes the first frame of `bytes`, if it is complete. Returns its event and its length.
    pub(super) fn receive<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(Event<'a>, usize)>, Broken> {
        let Some(head) = Head::parse(bytes) else { return Ok(None) };
        if head.length > FRAME_BYTES_MAX {
            return Err(Broken::Protocol(format!("a frame of {} bytes", head.length)));
        }
        let Some(payload) = bytes.get(HEAD_BYTES..HEAD_BYTES + head.length) else { return Ok(None) };
        if !self.settled && head.kind != frames::SETTINGS {
            return Err(Broken::Protocol(format!("a frame of kind {} before SETTINGS", head.kind)));
        }
        Ok(Some((self.take(head, payload)?, HEAD_BYTES + head.length)))
    }

    fn take<'a>(&mut self, head: Head, payload: &'a [u8]) -> Result<Event<'a>, Broken> {
        let Head { stream, flags, .. } = head;
        let end = flags & frames::END_STREAM != 0;
        let number = || payload.first_chunk().map(|b| u32::from_be_bytes(*b)).ok_or_else(|| short(head));
        match head.kind {
            frames::DATA => {
                let flow = payload.len() as u32;
                self.received += flow;
                if self.received >= SETTINGS.load.connection_window / 2 {
                    let received = std::mem::take(&mut self.received);
                    self.grant(0, received);
                }
                let bytes = if flags & frames::PADDED == 0 { Some(payload) } else { unpad(payload) };
                Ok(Event::Data { stream, bytes: bytes.ok_or_else(|| short(head))?, flow, end })
            }
            frames::HEADERS => Ok(Event::Headers { stream, end }),
            frames::RST_STREAM => Ok(Event::Reset { stream }),
            frames::SETTINGS if flags & frames::ACK != 0 => Ok(Event::Connection),
            frames::SETTINGS => self.settle(payload).ok_or_else(|| short(head)),
            frames::PING => {
                if payload.len() != 8 {
                    return Err(short(head));
                }
                if flags & frames::ACK == 0 {
                    Head { flags: frames::ACK, ..head }.put(&mut self.out);
                    self.out.extend_from_slice(payload);
                }
                Ok(Event::Connection)
            }
            frames::GOAWAY => {
                let last = number()? & LAST_STREAM;
                let code = payload.get(4..8).ok_or_else(|| short(head))?;
                self.closing = true;
                if code != frames::NO_ERROR.to_be_bytes() {
                    let text = String::from_utf8_lossy(&payload[8..]);
                    return Err(Broken::GoAway(format!("GOAWAY with error {} {text:?}", code[3])));
                }
                Ok(Event::GoingAway { last })
            }
            frames::WINDOW_UPDATE => {
                let increment = i64::from(number()? & LAST_STREAM);
                if stream != 0 {
                    return Ok(Event::StreamWindow { stream, increment });
                }
                self.window += increment;
                Ok(Event::Connection)
            }
            frames::PUSH_PROMISE => Err(Broken::Protocol("a push that was switched off".to_owned())),
            _ => Ok(Event::Connection),
        }
    }

    /// Applies and acknowledges SETTINGS; `None` if they are cut short.
    fn settle(&mut self, payload: &[u8]) -> Option<Event<'static>> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return None;
        }
        let before = self.stream_window;
        for &[s0, s1, v0, v1, v2, v3] in settings {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            match u16::from_be_bytes([s0, s1]) {
                frames::SETTINGS_MAX_CONCURRENT_STREAMS => self.streams_max = value as usize,
                frames::SETTINGS_INITIAL_WINDOW_SIZE => self.stream_window = i64::from(value),
                frames::SETTINGS_MAX_FRAME_SIZE => self.frame_bytes_max = value.max(1) as usize,
                _ => {}
            }
        }
        self.settled = true;
        Head { length: 0, kind: frames::SETTINGS, flags: frames::ACK, stream: 0 }.put(&mut self.out);
        Some(Event::StreamWindows { delta: self.stream_window - before })
    }

    /// Lets the server send more on a stream, or with stream 0 on the connection.
    fn grant(&mut self, stream: u32, bytes: u32) {
        Head { length: 4, kind: frames::WINDOW_UPDATE, flags: 0, stream }.put(&mut self.out);
        self.out.extend_from_slice(&bytes.to_be_bytes());
    }
}

fn short(head: Head) -> Broken {
    Broken::Protocol(format!("a frame of kind {} with {} bytes", head.kind, head.length))
}

/// A DATA payload without its padding; `None` if the padding is longer than the payload.
fn unpad(payload: &[u8]) -> Option<&[u8]> {
    let (&padding, rest) = payload.split_first()?;
    rest.get(..rest.len().checked_sub(padding as usize)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_bytes_never_exceed_a_window_or_a_frame() {
        let mut link = settled(&[(frames::SETTINGS_INITIAL_WINDOW_SIZE, 40_000)]);
        let (mut first, mut second) = (link.stream_window(), link.stream_window());
        let bytes = vec![7; 100_000];

        assert_eq!(link.send(1, &mut first, &bytes, true), 40_000);
        assert_eq!(link.send(3, &mut second, &bytes, true), 25_535);
        assert!(!link.has_window());

        let heads = heads(&link.out);
        assert!(heads.iter().all(|head| head.length <= FRAME_BYTES_MAX && head.flags == 0));
        assert_eq!(heads.iter().map(|head| head.length).sum::<usize>(), 65_535);
    }

    #[test]
    fn the_last_byte_ends_the_stream() {
        let mut link = settled(&[]);
        let mut window = link.stream_window();
        assert_eq!(link.send(1, &mut window, &[7; 20_000], true), 20_000);
        assert_eq!(
            heads(&link.out).iter().map(|head| head.flags).collect::<Vec<_>>(),
            [0, frames::END_STREAM]
        );
    }

    #[test]
    fn streams_are_bounded_by_the_server_and_by_their_ids() {
        let mut link = settled(&[(frames::SETTINGS_MAX_CONCURRENT_STREAMS, 2)]);
        assert!(link.can_open(1) && !link.can_open(2) && !link.is_closing());

        link.next_stream = LAST_STREAM - 2;
        assert!(link.can_open(0));
        assert_eq!(link.open(), LAST_STREAM - 2);
        assert!(!link.can_open(0) && link.is_closing());
    }

    #[test]
    fn pings_are_answered_and_padding_is_removed() {
        let mut link = settled(&[]);
        assert_eq!(link.receive(b"\0\0\x08\x06\0\0\0\0\0pingpong").unwrap(), Some((Event::Connection, 17)));
        assert_eq!(link.out, b"\0\0\x08\x06\x01\0\0\0\0pingpong");

        let padded = b"\0\0\x06\0\x09\0\0\0\x01\x02abc..";
        let data = Event::Data { stream: 1, bytes: b"abc", flow: 6, end: true };
        assert_eq!(link.receive(&padded[..14]).unwrap(), None);
        assert_eq!(link.receive(padded).unwrap(), Some((data, 15)));
        assert!(link.receive(b"\0\0\x02\0\x09\0\0\0\x01\x02a").is_err());
    }

    #[test]
    fn another_protocol_is_recognised() {
        let mut link = Link::new(&[], 1);
        assert!(matches!(link.receive(b"HTTP/1.1 400 Bad Request\r\n"), Err(Broken::Protocol(_))));
    }

    /// A connection that has received these settings and has nothing to write.
    fn settled(settings: &[(u16, u32)]) -> Link {
        let mut payload = Vec::new();
        settings.iter().for_each(|&(setting, value)| frames::put_setting(&mut payload, setting, value));
        let mut bytes = Vec::new();
        Head { length: payload.len(), kind: frames::SETTINGS, flags: 0, stream: 0 }.put(&mut bytes);
        bytes.extend_from_slice(&payload);

        let mut link = Link::new(&[], 1);
        assert!(link.receive(&bytes).unwrap().is_some() && link.is_settled());
        link.out.clear();
        link
    }

    fn heads(mut bytes: &[u8]) -> Vec<Head> {
        let mut heads = Vec::new();
        while let Some(head) = Head::parse(bytes) {
            bytes = &bytes[HEAD_BYTES + head.length..];
            heads.push(head);
        }
        heads
    }
}
