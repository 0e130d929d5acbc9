//! Descriptors in JSON. Pure: bytes in, keys and values out.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess},
};
use serde_json::value::RawValue;

/// A descriptor as an object or a list of pairs. Values are text, numbers or truths.
#[derive(Debug)]
pub struct JsonDescriptor(
    /// Keys and values, in the order of the text.
    pub Vec<(String, String)>,
);

impl<'de> Deserialize<'de> for JsonDescriptor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = JsonDescriptor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of keys and values, or a list of [key, value] pairs")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonDescriptor, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, Text(value))) = map.next_entry::<String, Text>()? {
                    pairs.push((key, value));
                }
                Ok(JsonDescriptor(pairs))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<JsonDescriptor, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, Text(value))) = list.next_element::<(String, Text)>()? {
                    pairs.push((key, value));
                }
                Ok(JsonDescriptor(pairs))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// A value: text, or a number, `true` or `false` as it is written. So an id of thirty digits stays the same.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        match raw.get().as_bytes().first() {
            Some(b'"') => serde_json::from_str(raw.get()).map(Self).map_err(de::Error::custom),
            Some(b'-' | b'0'..=b'9' | b't' | b'f') => Ok(Self(raw.get().to_owned())),
            _ => Err(de::Error::custom("a value is a text, a number, true or false")),
        }
    }
}
