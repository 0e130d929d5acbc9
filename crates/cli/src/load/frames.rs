//! HTTP/2 frames (RFC 9113 §4, §6) and a request's header block (RFC 7541 §6.2.2).

use acequia_client::Target;

/// The first bytes that a client sends.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
pub(super) const HEAD_BYTES: usize = 9;
/// The largest frame either side may send unless a SETTINGS says otherwise; ours never does.
pub(super) const FRAME_BYTES_MAX: usize = 16_384;
/// The window of a connection, and of a stream unless a SETTINGS says otherwise.
pub(super) const WINDOW_DEFAULT: i64 = 65_535;
/// The first stream a client opens.
pub(super) const FIRST_STREAM: u32 = 1;
/// The last stream a client can open.
pub(super) const LAST_STREAM: u32 = i32::MAX as u32;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;

pub(super) const SETTINGS_ENABLE_PUSH: u16 = 2;
pub(super) const SETTINGS_MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const SETTINGS_INITIAL_WINDOW_SIZE: u16 = 4;
pub(super) const SETTINGS_MAX_FRAME_SIZE: u16 = 5;

pub(super) const NO_ERROR: u32 = 0;
pub(super) const CANCEL: u32 = 8;

/// The nine bytes before a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of the payload.
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    /// The head at the start of `bytes`, if all of it is there.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let head: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = *head;
        Some(Self {
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & LAST_STREAM,
        })
    }

    /// Appends the head to `out`.
    pub(super) fn put(self, out: &mut Vec<u8>) {
        let [_, l0, l1, l2] = (self.length as u32).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        out.extend_from_slice(&[l0, l1, l2, self.kind, self.flags, s0, s1, s2, s3]);
    }
}

/// Appends one setting to `out`.
pub(super) fn put_setting(out: &mut Vec<u8>, setting: u16, value: u32) {
    out.extend_from_slice(&setting.to_be_bytes());
    out.extend_from_slice(&value.to_be_bytes());
}

/// The header block of a gRPC request. It uses no dynamic indexes, so it is valid for any request on any
/// connection.
pub(super) fn header_block(target: &Target, path: &str, metadata: &[(String, String)]) -> Vec<u8> {
    // Indexes of the static table, RFC 7541 appendix A.
    const METHOD_POST: u8 = 0x80 | 3;
    const SCHEME_HTTP: u8 = 0x80 | 6;
    const SCHEME_HTTPS: u8 = 0x80 | 7;
    const AUTHORITY: u8 = 1;
    const PATH: u8 = 4;
    const CONTENT_TYPE: [u8; 2] = [0x0f, 31 - 0x0f];
    let scheme = if target.is_tls() { SCHEME_HTTPS } else { SCHEME_HTTP };
    let mut block = vec![METHOD_POST, scheme, PATH];
    put_string(&mut block, path);
    block.push(AUTHORITY);
    put_string(&mut block, target.authority());
    block.extend_from_slice(&CONTENT_TYPE);
    put_string(&mut block, "application/grpc");
    for (name, value) in [("te", "trailers")].into_iter().chain(metadata.iter().map(|(n, v)| (&**n, &**v))) {
        block.push(0);
        put_string(&mut block, name);
        put_string(&mut block, value);
    }
    block
}

/// Appends a string without Huffman coding; its length is an integer with a prefix of seven bits.
fn put_string(block: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    if length < 0x7f {
        block.push(length as u8);
    } else {
        block.push(0x7f);
        length -= 0x7f;
        while length >= 0x80 {
            block.push(length as u8 | 0x80);
            length >>= 7;
        }
        block.push(length as u8);
    }
    block.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_head_is_read_as_it_was_written() {
        let head = Head { length: 0x01_02_03, kind: DATA, flags: END_STREAM, stream: LAST_STREAM };
        let mut bytes = Vec::new();
        head.put(&mut bytes);

        assert_eq!(bytes, [1, 2, 3, 0, 1, 0x7f, 0xff, 0xff, 0xff]);
        assert_eq!(Head::parse(&bytes), Some(head));
        assert_eq!(Head::parse(&bytes[..8]), None);
    }

    #[test]
    fn long_strings_have_long_lengths() {
        let mut block = Vec::new();
        put_string(&mut block, &"x".repeat(127 + 1337));

        assert_eq!(block[..3], [0x7f, 0b1011_1001, 0b0000_1010]);
        assert_eq!(block.len(), 3 + 127 + 1337);
    }
}
