//! Names of limits that come from another limiter's config, in which a name may be any text.

use acequia_limits::limit::NAME_BYTES_MAX;
use ring::digest::{SHA256, digest};

/// Hex digits that tell long names apart.
const DIGEST_HEX: usize = 16;

/// A name that is put together from texts, and signs between them.
#[derive(Debug, Default)]
pub(crate) struct ImportedName(String);

impl ImportedName {
    /// Adds a text. Signs that no name has, and those that may stand between texts, are percent-encoded.
    pub(crate) fn push(&mut self, text: &str) {
        for byte in text.bytes() {
            let is_own = byte.is_ascii_graphic() && !br#""\[]/,=%~"#.contains(&byte);
            if is_own {
                self.0.push(char::from(byte));
            } else {
                self.0.push_str(&format!("%{byte:02X}"));
            }
        }
    }

    /// Adds a sign between two texts.
    pub(crate) fn sign(&mut self, sign: char) {
        self.0.push(sign);
    }

    /// The name. The end of a long one is a digest of the whole.
    pub(crate) fn finish(self) -> String {
        let Self(mut name) = self;
        if name.len() <= NAME_BYTES_MAX {
            return name;
        }
        let whole = digest(&SHA256, name.as_bytes());
        let hex: String = whole.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        // All of it is ASCII.
        name.truncate(NAME_BYTES_MAX - DIGEST_HEX - 1);
        format!("{name}~{}", &hex[..DIGEST_HEX])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_fits_and_differs_from_others() {
        let of = |end: &str| {
            let mut name = ImportedName::default();
            name.push(&("ü".repeat(200) + end));
            name.finish()
        };
        assert_eq!((of("a").len(), of("a") == of("a"), of("a") == of("b")), (NAME_BYTES_MAX, true, false));
    }
}
