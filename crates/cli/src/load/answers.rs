//! Reads verdicts from encoded answers. The decoders walk the fields and allocate nothing. At a million
//! decisions a second, building the messages would cost the client more than the server pays.

use super::{Decisions, Verdict};

/// Judges an Envoy `RateLimitResponse` by its `overall_code`.
pub fn rate_limit_verdict(message: &[u8]) -> Verdict {
    match last_varint(message, 1) {
        Some(1) => Verdict::Allowed,
        Some(2) => Verdict::Denied,
        _ => Verdict::Error,
    }
}

/// Judges an `acequia.v1.CheckResponse` by `allowed`.
pub fn check_verdict(message: &[u8]) -> Verdict {
    match last_varint(message, 1) {
        Some(0) => Verdict::Denied,
        Some(_) => Verdict::Allowed,
        None => Verdict::Error,
    }
}

/// Counts the results in an `acequia.v1.CheckBatchResult`; `None` if it is malformed.
pub fn check_batch_decisions(message: &[u8]) -> Option<Decisions> {
    let mut decisions = Decisions::default();
    let mut fields = Fields { rest: message };
    while let Some((number, value)) = fields.next()? {
        if let (1, Value::Bytes(result)) = (number, value) {
            match check_verdict(result) {
                Verdict::Allowed => decisions.allowed += 1,
                Verdict::Denied => decisions.denied += 1,
                Verdict::Error => return None,
            }
        }
    }
    Some(decisions)
}

/// The value of a varint field: 0 if it is absent, `None` if the message is malformed.
fn last_varint(message: &[u8], wanted: u64) -> Option<u64> {
    let mut last = 0;
    let mut fields = Fields { rest: message };
    while let Some((number, value)) = fields.next()? {
        if let Value::Varint(value) = value
            && number == wanted
        {
            last = value;
        }
    }
    Some(last)
}

/// The fields of a protobuf message.
struct Fields<'a> {
    rest: &'a [u8],
}

enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed,
}

impl<'a> Fields<'a> {
    /// The next field and its number: `Some(None)` at the end, `None` if the message is malformed.
    fn next(&mut self) -> Option<Option<(u64, Value<'a>)>> {
        if self.rest.is_empty() {
            return Some(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(usize::try_from(length).ok()?)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return None,
        };
        Some(Some((tag >> 3, value)))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (index, &byte) in self.rest.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.rest = &self.rest[index + 1..];
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `limit: "x"`, a fixed64 and a fixed32 of unknown numbers: fields that must be stepped over.
    const OTHERS: &[u8] = b"\x12\x01x\x79\0\0\0\0\0\0\0\0\x7d\0\0\0\0";

    #[test]
    fn verdicts_are_read_past_other_fields() {
        let with_others = |field: &[u8]| [OTHERS, field, OTHERS].concat();
        assert_eq!(rate_limit_verdict(&with_others(b"\x08\x01")), Verdict::Allowed);
        assert_eq!(rate_limit_verdict(&with_others(b"\x08\x02")), Verdict::Denied);
        assert_eq!(rate_limit_verdict(&with_others(b"")), Verdict::Error);
        assert_eq!(check_verdict(&with_others(b"\x08\x01")), Verdict::Allowed);
        assert_eq!(check_verdict(&with_others(b"")), Verdict::Denied);
    }

    #[test]
    fn a_batch_is_counted_by_each_of_its_results() {
        let batch = b"\x0a\x02\x08\x01\x0a\x00\x0a\x02\x08\x01";
        assert_eq!(check_batch_decisions(batch), Some(Decisions { allowed: 2, denied: 1 }));
        assert_eq!(check_batch_decisions(b""), Some(Decisions::default()));
    }

    #[test]
    fn truncated_messages_are_malformed() {
        for message in [&b"\x08"[..], b"\x08\xff", b"\x12\x05abc", b"\x79\0\0", b"\x0b", &[0xff; 11]] {
            assert_eq!(check_verdict(message), Verdict::Error, "{message:?}");
        }
        assert_eq!(check_batch_decisions(b"\x0a\x01\x08"), None);
    }
}
