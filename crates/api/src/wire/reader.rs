/// Walks through the fields of one Protobuf message, from the first byte to the last.
///
/// Ask for the next [`field`](Self::field), then take its value with the method for its type, or
/// [`skip`](Self::skip) it. No length is trusted: a value never reaches past the message that holds it.
/// There is no recursion: the caller decides how deep it reads.
///
/// After an error the position is unspecified.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    // A nested message has the outer message's bytes with an earlier end, so that offsets count from the
    // outermost message.
    bytes: &'a [u8],
    at: usize,
}

/// The key of a field: the field's number, and the layout of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The field's number in the `.proto` file; never 0.
    pub number: u32,
    /// The layout of the value.
    pub wire_type: WireType,
    /// Where the key begins, counted from the first byte of the outermost message.
    pub offset: usize,
}

/// The layouts that a value can have. Groups are not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireType {
    /// An integer, an enum or a bool.
    Varint,
    /// Eight bytes.
    Fixed64,
    /// A length and as many bytes: text, bytes, a message or packed numbers.
    Len,
    /// Four bytes.
    Fixed32,
}

/// Why bytes are not a valid message. `offset` counts from the first byte given to the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The message ends before the value does.
    #[error("the value at byte {offset} runs past the end of its message")]
    Truncated {
        /// Where the value, or its length, begins.
        offset: usize,
    },
    /// An integer has more than 64 bits.
    #[error("the integer at byte {offset} has more than 64 bits")]
    Varint {
        /// Where the integer begins.
        offset: usize,
    },
    /// A field number is 0, or above the highest allowed number.
    #[error("the field at byte {offset} has no valid number")]
    FieldNumber {
        /// Where the field begins.
        offset: usize,
    },
    /// A wire type does not exist, or is not the one of the field's type.
    #[error("the field at byte {offset} has the wrong wire type")]
    WireType {
        /// Where the field begins.
        offset: usize,
    },
    /// A group, which proto3 does not have.
    #[error("the field at byte {offset} is a group, which is not supported")]
    Group {
        /// Where the field begins.
        offset: usize,
    },
    /// A request has more than [`MAX_DESCRIPTORS`](super::MAX_DESCRIPTORS).
    #[error("the descriptor at byte {offset} is one too many: at most {max} in a request", max = super::MAX_DESCRIPTORS)]
    TooManyDescriptors {
        /// Where the first descriptor above the bound begins.
        offset: usize,
    },
    /// A descriptor has more than [`MAX_ENTRIES`](super::MAX_ENTRIES).
    #[error("the entry at byte {offset} is one too many: at most {max} in a descriptor", max = super::MAX_ENTRIES)]
    TooManyEntries {
        /// Where the first entry above the bound begins.
        offset: usize,
    },
    /// A batch has more than [`MAX_CHECKS`](super::MAX_CHECKS).
    #[error("the check at byte {offset} is one too many: at most {max} in a batch", max = super::MAX_CHECKS)]
    TooManyChecks {
        /// Where the first check above the bound begins.
        offset: usize,
    },
}

/// The most bytes of a varint: 64 bits, 7 in a byte.
const VARINT_BYTES_MAX: usize = 10;

impl<'a> Reader<'a> {
    /// Starts at the first byte of a message that has no length in front.
    pub fn new(message: &'a [u8]) -> Self {
        Self { bytes: message, at: 0 }
    }

    /// The key of the next field; `None` at the end of the message.
    #[inline]
    pub fn field(&mut self) -> Result<Option<Field>, Malformed> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let offset = self.at;
        let key = self.raw_varint()?;
        let number = u32::try_from(key).map_err(|_| Malformed::FieldNumber { offset })? >> 3;
        if number == 0 {
            return Err(Malformed::FieldNumber { offset });
        }
        let wire_type = match key & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Len,
            3 | 4 => return Err(Malformed::Group { offset }),
            5 => WireType::Fixed32,
            _ => return Err(Malformed::WireType { offset }),
        };
        Ok(Some(Field { number, wire_type, offset }))
    }

    /// The value of an integer field.
    #[inline]
    pub fn varint(&mut self, field: Field) -> Result<u64, Malformed> {
        field.expect(WireType::Varint)?;
        self.raw_varint()
    }

    /// The value of a text or bytes field.
    #[inline]
    pub fn bytes(&mut self, field: Field) -> Result<&'a [u8], Malformed> {
        let value = self.message(field)?;
        Ok(&value.bytes[value.at..])
    }

    /// A reader of the message that the field holds.
    #[inline]
    pub fn message(&mut self, field: Field) -> Result<Self, Malformed> {
        field.expect(WireType::Len)?;
        let offset = self.at;
        let len = self.raw_varint()?;
        let start = self.advance(len, offset)?;
        Ok(Self { bytes: &self.bytes[..self.at], at: start })
    }

    /// Skips the value of a field that the caller does not know.
    #[inline]
    pub fn skip(&mut self, field: Field) -> Result<(), Malformed> {
        match field.wire_type {
            WireType::Varint => self.raw_varint().map(drop),
            WireType::Fixed64 => self.advance(8, self.at).map(drop),
            WireType::Len => self.message(field).map(drop),
            WireType::Fixed32 => self.advance(4, self.at).map(drop),
        }
    }

    /// Skips `len` bytes of the value at `offset`, and returns where they begin.
    #[inline]
    fn advance(&mut self, len: u64, offset: usize) -> Result<usize, Malformed> {
        let start = self.at;
        if len > (self.bytes.len() - start) as u64 {
            return Err(Malformed::Truncated { offset });
        }
        self.at = start + len as usize;
        Ok(start)
    }

    #[inline]
    fn raw_varint(&mut self) -> Result<u64, Malformed> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let offset = self.at;
        let mut value = 0;
        for (i, &byte) in self.bytes[offset..].iter().take(VARINT_BYTES_MAX).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                // The tenth byte has room for the highest bit only.
                if i == VARINT_BYTES_MAX - 1 && byte > 1 {
                    break;
                }
                self.at = offset + i + 1;
                return Ok(value);
            }
        }
        if self.bytes.len() - offset < VARINT_BYTES_MAX {
            Err(Malformed::Truncated { offset })
        } else {
            Err(Malformed::Varint { offset })
        }
    }
}

impl Field {
    #[inline]
    fn expect(self, wire_type: WireType) -> Result<(), Malformed> {
        if self.wire_type == wire_type { Ok(()) } else { Err(Malformed::WireType { offset: self.offset }) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn first_field(bytes: &[u8]) -> Result<Option<Field>, Malformed> {
        Reader::new(bytes).field()
    }

    fn first_varint(bytes: &[u8]) -> Result<u64, Malformed> {
        let mut reader = Reader::new(bytes);
        let field = reader.field()?.expect("a field");
        reader.varint(field)
    }

    #[test]
    fn an_empty_message_has_no_fields() {
        assert_eq!(first_field(&[]), Ok(None));
    }

    #[test]
    fn invalid_field_keys_are_refused() {
        assert_eq!(first_field(&[0x00]), Err(Malformed::FieldNumber { offset: 0 }));
        assert_eq!(first_field(&[0x02]), Err(Malformed::FieldNumber { offset: 0 }));
        assert_eq!(first_field(&[0x80, 0x80, 0x80, 0x80, 0x10]), Err(Malformed::FieldNumber { offset: 0 }));
        assert_eq!(first_field(&[0x0b]), Err(Malformed::Group { offset: 0 }));
        assert_eq!(first_field(&[0x0c]), Err(Malformed::Group { offset: 0 }));
        assert_eq!(first_field(&[0x0e]), Err(Malformed::WireType { offset: 0 }));
        assert_eq!(first_field(&[0x80]), Err(Malformed::Truncated { offset: 0 }));
    }

    #[test]
    fn the_highest_field_number_is_read() {
        let field = first_field(&[0xf8, 0xff, 0xff, 0xff, 0x0f]).expect("valid").expect("a field");
        assert_eq!(field, Field { number: (1 << 29) - 1, wire_type: WireType::Varint, offset: 0 });
    }

    #[test]
    fn an_integer_has_at_most_64_bits() {
        let max = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(first_varint(&max), Ok(u64::MAX));

        let mut above = max;
        above[10] = 0x02;
        assert_eq!(first_varint(&above), Err(Malformed::Varint { offset: 1 }));

        let mut endless = max;
        endless[10] = 0x81;
        assert_eq!(first_varint(&endless), Err(Malformed::Varint { offset: 1 }));

        assert_eq!(first_varint(&max[..10]), Err(Malformed::Truncated { offset: 1 }));
    }

    #[test]
    fn a_value_longer_than_its_message_is_refused() {
        // A message of two bytes in field 1. Its own field 1 claims three bytes, and two more bytes follow
        // outside.
        let bytes = [0x0a, 0x02, 0x0a, 0x03, 0x10, 0x00];
        let mut outer = Reader::new(&bytes);
        let field = outer.field().expect("valid").expect("a field");
        let mut inner = outer.message(field).expect("two bytes are there");
        let field = inner.field().expect("valid").expect("a field");
        assert_eq!(inner.bytes(field), Err(Malformed::Truncated { offset: 3 }));
        assert_eq!(outer.field().expect("valid").map(|field| (field.number, field.offset)), Some((2, 4)));
    }

    #[test]
    fn a_huge_length_does_not_wrap_around() {
        let bytes = [0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        let mut reader = Reader::new(&bytes);
        let field = reader.field().expect("valid").expect("a field");
        assert_eq!(reader.bytes(field), Err(Malformed::Truncated { offset: 1 }));
    }

    proptest! {
        #[test]
        fn integers_are_read_as_prost_writes_them(value: u64) {
            let mut bytes = vec![0x08];
            prost::encoding::encode_varint(value, &mut bytes);
            prop_assert_eq!(first_varint(&bytes), Ok(value));
        }

        #[test]
        fn reading_any_bytes_ends_within_them(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = Reader::new(&bytes);
            while let Ok(Some(field)) = reader.field() {
                prop_assert!(field.offset < bytes.len());
                prop_assert_ne!(field.number, 0);
                if reader.skip(field).is_err() {
                    break;
                }
                prop_assert!(reader.at > field.offset && reader.at <= bytes.len());
            }
        }
    }
}
