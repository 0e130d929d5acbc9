//! Values that know their lines.

use std::{fmt, marker::PhantomData};

use serde::{Deserialize, Deserializer, de};
use serde_saphyr::Spanned;

/// A map whose keys know their lines, in the order of the file. The reader refuses a repeated key.
pub(super) struct Named<T>(pub(super) Vec<(Spanned<String>, T)>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Entries<T> {
            type Value = Named<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("names, each with a colon and what it stands for")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Named<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Named(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// A value that is not in the file.
pub(super) fn unplaced<T>(value: T) -> Spanned<T> {
    Spanned { value, referenced: serde_saphyr::Location::UNKNOWN, defined: serde_saphyr::Location::UNKNOWN }
}
