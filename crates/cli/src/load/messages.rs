//! gRPC's framing: a message has a prefix of five bytes, and DATA frames may cut it anywhere.

use std::ops::Range;

use crate::settings::SETTINGS;

/// A flag (1 if compressed) and a length.
const PREFIX_BYTES: usize = 5;

/// Encoded request messages, each behind its gRPC prefix, in one allocation.
#[derive(Clone, Debug, Default)]
pub struct Payloads {
    framed: Vec<u8>,
    ends: Vec<usize>,
}

impl Payloads {
    /// Keeps these messages, which are encoded but have no prefix.
    pub fn new<M: AsRef<[u8]>>(messages: impl IntoIterator<Item = M>) -> Self {
        let mut payloads = Self::default();
        for message in messages {
            let message = message.as_ref();
            payloads.framed.push(0);
            payloads.framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
            payloads.framed.extend_from_slice(message);
            payloads.ends.push(payloads.framed.len());
        }
        payloads
    }

    /// How many messages there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of the longest message, without its prefix.
    pub(super) fn longest(&self) -> usize {
        (0..self.len()).map(|index| self.range(index).len() - PREFIX_BYTES).max().unwrap_or(0)
    }

    /// A message and its prefix.
    pub(super) fn framed(&self, index: usize) -> &[u8] {
        &self.framed[self.range(index)]
    }

    fn range(&self, index: usize) -> Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[index]
    }
}

/// Finds the messages in the DATA of one stream. Copies only incomplete messages.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// The beginning of a message; empty between messages.
    rest: Vec<u8>,
}

/// A message that is compressed, although compression was not asked for, or too long. The stream cannot be
/// read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

impl Splitter {
    /// Calls `each` with every message that `bytes` completes.
    pub(super) fn feed(&mut self, bytes: &[u8], each: impl FnMut(&[u8])) -> Result<(), Unreadable> {
        if self.rest.is_empty() {
            let used = split(bytes, each)?;
            self.rest.extend_from_slice(&bytes[used..]);
        } else {
            self.rest.extend_from_slice(bytes);
            let used = split(&self.rest, each)?;
            self.rest.drain(..used);
        }
        Ok(())
    }

    /// Whether the stream is inside a message.
    pub(super) fn is_inside(&self) -> bool {
        !self.rest.is_empty()
    }
}

/// Calls `each` with every complete message at the start of `bytes`, and returns their total length.
fn split(bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<usize, Unreadable> {
    let mut used = 0;
    while let Some(&[flag, l0, l1, l2, l3]) = bytes[used..].first_chunk::<PREFIX_BYTES>() {
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        if flag != 0 || length > SETTINGS.load.message_bytes_max {
            return Err(Unreadable);
        }
        let start = used + PREFIX_BYTES;
        let Some(message) = bytes.get(start..start + length) else { break };
        each(message);
        used = start + length;
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_whole_wherever_frames_are_cut() {
        let payloads = Payloads::new(["", "one", "two two", &"three".repeat(100)]);
        assert_eq!((payloads.len(), payloads.longest()), (4, 500));
        assert_eq!(payloads.framed(1), b"\0\0\0\0\x03one");

        for step in 1..payloads.framed.len() {
            let (mut splitter, mut seen) = (Splitter::default(), Vec::new());
            for cut in payloads.framed.chunks(step) {
                splitter.feed(cut, |message| seen.push(message.to_vec())).unwrap();
            }
            assert!(!splitter.is_inside());
            assert_eq!(Payloads::new(seen).framed, payloads.framed, "cut every {step} bytes");
        }
    }

    #[test]
    fn compressed_and_oversized_messages_are_refused() {
        for prefix in [[1, 0, 0, 0, 0], [0, 0xff, 0, 0, 0]] {
            assert_eq!(Splitter::default().feed(&prefix, |_| ()), Err(Unreadable));
        }
    }
}
