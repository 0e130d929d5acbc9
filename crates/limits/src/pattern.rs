//! Patterns for descriptor values: equal, or a glob in which `*` stands for any bytes.

/// A pattern that a value must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// This value and no other.
    Literal(String),
    /// The pieces of a glob between its `*`s; the first and the last are anchored.
    Glob(Vec<String>),
}

impl Pattern {
    /// Every text is a pattern; `*` anywhere makes it a glob.
    pub fn new(text: &str) -> Self {
        if text.contains('*') {
            Self::Glob(text.split('*').map(str::to_owned).collect())
        } else {
            Self::Literal(text.to_owned())
        }
    }

    /// Whether a value matches. The cost is linear in the value's length times the number of pieces.
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Literal(text) => text.as_bytes() == value,
            Self::Glob(pieces) => matches_glob(pieces, value),
        }
    }

    /// The prefix of every value that matches.
    pub fn prefix(&self) -> &str {
        match self {
            Self::Literal(text) => text,
            Self::Glob(pieces) => pieces.first().map_or("", String::as_str),
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Literal(text) => f.write_str(text),
            Self::Glob(pieces) => f.write_str(&pieces.join("*")),
        }
    }
}

/// The earliest place for each middle piece is enough: the pieces after it only get more room.
fn matches_glob(pieces: &[String], value: &[u8]) -> bool {
    let [first, middle @ .., last] = pieces else { return false };
    let Some(mut rest) = value.strip_prefix(first.as_bytes()) else { return false };
    let Some(stem) = rest.strip_suffix(last.as_bytes()) else { return false };
    rest = stem;
    for piece in middle {
        let piece = piece.as_bytes();
        if piece.is_empty() {
            continue;
        }
        let Some(at) = rest.windows(piece.len()).position(|window| window == piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn globs_match_whole_values() {
        for (pattern, value, fits) in [
            ("/report/*", "/report/a/b", true),
            ("/report/*", "/report/", true),
            ("/report/*", "/report", false),
            ("*", "", true),
            ("*.png", "a.png", true),
            ("*.png", "a.png.exe", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*a", "a", false),
            ("ab*ba", "aba", false),
            ("a**b", "ab", true),
            ("GET", "get", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(value.as_bytes()), fits, "{pattern} {value}");
        }
    }

    /// The definition: `*` is nothing, or any byte and then `*` again.
    fn naive(pattern: &[u8], value: &[u8]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some((b'*', rest)) => naive(rest, value) || (!value.is_empty() && naive(pattern, &value[1..])),
            Some((byte, rest)) => value.first() == Some(byte) && naive(rest, &value[1..]),
        }
    }

    proptest! {
        #[test]
        fn globs_agree_with_the_definition(pattern in "[ab*]{0,6}", value in "[ab]{0,8}") {
            prop_assert_eq!(
                Pattern::new(&pattern).matches(value.as_bytes()),
                naive(pattern.as_bytes(), value.as_bytes())
            );
        }
    }
}
