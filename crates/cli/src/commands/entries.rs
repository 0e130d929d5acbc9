//! A request's entries as words of a command line: `api_key=k1 route=/search + ip=192.0.2.7`.

/// One word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A key and its value.
    Entry(String, String),
    /// Begins another descriptor.
    And,
}

/// Reads one word. A value may be empty, and may hold more equals signs.
pub(super) fn read_word(word: &str) -> Result<Word, String> {
    if word == "+" {
        return Ok(Word::And);
    }
    match word.split_once('=') {
        None => Err(format!("it has no value: write {word}=SOMETHING")),
        Some(("", _)) => Err("it has no key: write KEY=VALUE".to_owned()),
        Some((key, value)) => Ok(Word::Entry(key.to_owned(), value.to_owned())),
    }
}

/// The pairs of each descriptor. The error describes a bad list of words.
pub(super) fn groups(words: &[Word]) -> Result<Vec<Vec<(&str, &str)>>, String> {
    let mut groups = Vec::new();
    for group in words.split(|word| *word == Word::And) {
        let pairs: Vec<_> = group
            .iter()
            .filter_map(|word| match word {
                Word::Entry(key, value) => Some((key.as_str(), value.as_str())),
                Word::And => None,
            })
            .collect();
        if pairs.is_empty() {
            return Err("a + stands between descriptors, and each has at least one KEY=VALUE".to_owned());
        }
        groups.push(pairs);
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_begins_at_the_first_equals_sign() {
        let entry = |key: &str, value: &str| Ok(Word::Entry(key.to_owned(), value.to_owned()));
        assert_eq!(read_word("query=a=b"), entry("query", "a=b"));
        assert_eq!(read_word("empty="), entry("empty", ""));
        assert_eq!(read_word("sum=+"), entry("sum", "+"));
        assert_eq!(read_word("+"), Ok(Word::And));
    }
}
