//! A limit and its numbers, as words of a command line: `shop/per-key[api_key=k1] rate=100/s burst=200`.

use std::collections::{BTreeMap, HashMap};

use acequia_limits::notation::{Rate, parse_duration_ns, parse_units};

/// How a [`LimitPath`] is written.
const SHAPE: &str = "write DOMAIN/NAME, or DOMAIN/NAME[KEY=VALUE,KEY=VALUE] for the numbers of one key";

/// A limit, or one of its keys.
///
/// `DOMAIN/NAME[KEY=VALUE,KEY=VALUE]`. Domains may have slashes and names have none, so the name begins after
/// the last slash before the first bracket. In the brackets a comma ends a value, and `%` begins two
/// hexadecimal digits of a byte: `%2C` is a comma, `%25` a percent sign. All other characters stand for
/// themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitPath {
    pub(super) domain: String,
    pub(super) name: String,
    /// The values of the limit's `by`; empty for the limit itself.
    pub(super) key: BTreeMap<String, String>,
}

/// Reads a path. The error describes what is wrong with it.
pub(super) fn read_limit_path(text: &str) -> Result<LimitPath, String> {
    let (limit, key) = match text.split_once('[') {
        None => (text, BTreeMap::new()),
        Some((limit, rest)) => {
            let Some(pairs) = rest.strip_suffix(']') else {
                return Err(format!("the bracket is not closed: {SHAPE}"));
            };
            (limit, read_key(pairs)?)
        }
    };
    match limit.rsplit_once('/') {
        None => Err(format!("it has no slash: {SHAPE}")),
        Some(("", _)) => Err(format!("it has no domain: {SHAPE}")),
        Some((_, "")) => Err(format!("it has no name: {SHAPE}")),
        Some((domain, name)) => Ok(LimitPath { domain: domain.to_owned(), name: name.to_owned(), key }),
    }
}

fn read_key(pairs: &str) -> Result<BTreeMap<String, String>, String> {
    let mut key = BTreeMap::new();
    if pairs.is_empty() {
        return Err("the brackets are empty: leave them out for the limit's own numbers".to_owned());
    }
    for pair in pairs.split(',') {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(format!(
                "{pair:?} has no value: write KEY=VALUE, and %2C for a comma that belongs to a value"
            ));
        };
        let name = decoded(name)?;
        if name.is_empty() {
            return Err(format!("{pair:?} has no key: write KEY=VALUE"));
        }
        if key.insert(name.clone(), decoded(value)?).is_some() {
            return Err(format!("{name} has two values: a cell has one for each key"));
        }
    }
    Ok(key)
}

/// Decodes bytes that are written with `%`.
fn decoded(text: &str) -> Result<String, String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let Some(byte) = byte else {
            return Err(format!(
                "{text:?} has a % without two hexadecimal digits: write %25 for the sign itself"
            ));
        };
        bytes.push(byte);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| format!("{text:?} stands for bytes that are no UTF-8"))
}

/// A number with its name in a config, such as `rate=100/s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Number {
    name: String,
    text: String,
}

/// Reads a number. The error describes what is wrong with it.
pub(super) fn read_number(word: &str) -> Result<Number, String> {
    let Some((name, text)) = word.split_once('=') else {
        return Err(format!("it has no value: write {word}=NUMBER"));
    };
    match name {
        "rate" => Rate::parse(text).map(drop)?,
        "window" => parse_duration_ns(text).map(drop)?,
        "burst" | "limit" | "queue" => {
            parse_units(text).map(drop)?;
        }
        _ => {
            return Err(format!(
                "{name:?} is no number of a limit: rate and burst (token_bucket), rate and queue (leaky_bucket), \
                 limit and window (windows), limit (quota)"
            ));
        }
    }
    Ok(Number { name: name.to_owned(), text: text.to_owned() })
}

/// The numbers by their names. The error describes what is wrong with them.
pub(super) fn by_name(numbers: &[Number]) -> Result<HashMap<String, String>, String> {
    let mut by_name = HashMap::new();
    for Number { name, text } in numbers {
        if by_name.insert(name.clone(), text.clone()).is_some() {
            return Err(format!("{name} is given twice"));
        }
    }
    Ok(by_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(domain: &str, name: &str, key: &[(&str, &str)]) -> LimitPath {
        let key = key.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        LimitPath { domain: domain.to_owned(), name: name.to_owned(), key }
    }

    #[test]
    fn limit_paths_are_read() {
        for (text, expected) in [
            ("shop/per-key", path("shop", "per-key", &[])),
            ("shop/eu/per-key", path("shop/eu", "per-key", &[])),
            ("shop/per-key[api_key=k1]", path("shop", "per-key", &[("api_key", "k1")])),
            ("shop/r[tenant=a,ip=10.0.0.0/8]", path("shop", "r", &[("tenant", "a"), ("ip", "10.0.0.0/8")])),
            ("shop/r[route=/x?a=b[1]]", path("shop", "r", &[("route", "/x?a=b[1]")])),
            (
                "shop/r[name=Doe%2C Jane,share=10%25]",
                path("shop", "r", &[("name", "Doe, Jane"), ("share", "10%")]),
            ),
            ("shop/r[city=K%C3%B6ln,empty=]", path("shop", "r", &[("city", "Köln"), ("empty", "")])),
        ] {
            assert_eq!(read_limit_path(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_wrong_limit_path_says_how_to_correct_it() {
        for (text, why) in [
            ("per-key", "no slash"),
            ("/per-key", "no domain"),
            ("shop/", "no name"),
            ("shop/[api_key=k1]", "no name"),
            ("shop/per-key[api_key=k1", "not closed"),
            ("shop/per-key[api_key=k1]x", "not closed"),
            ("shop/per-key[]", "leave them out"),
            ("shop/per-key[k1]", "no value"),
            ("shop/per-key[=k1]", "no key"),
            ("shop/per-key[a=1,]", "%2C"),
            ("shop/per-key[a=1,a=2]", "two values"),
            ("shop/per-key[a=100%]", "%25"),
            ("shop/per-key[a=%+1]", "%25"),
            ("shop/per-key[a=%é]", "%25"),
            ("shop/per-key[a=%ff]", "UTF-8"),
        ] {
            let fault = read_limit_path(text).expect_err(text);
            assert!(fault.contains(why), "{text}: {fault}");
        }
    }

    #[test]
    fn named_values_of_a_limit_are_read() {
        let numbers = ["rate=100/s", "burst=200", "window=1h30m"].map(|word| read_number(word).expect(word));
        let by_name = by_name(&numbers).expect("each once");
        assert_eq!(by_name["rate"], "100/s");
        assert_eq!(by_name["burst"], "200");
        assert_eq!(by_name["window"], "1h30m");
        assert_eq!(by_name.len(), 3);
    }

    #[test]
    fn a_wrong_value_of_a_limit_says_how_to_correct_it() {
        for (word, why) in [
            ("100/s", "100/s=NUMBER"),
            ("speed=1", "rate and burst"),
            ("rate=100", "60/s"),
            ("window=hour", "250ms"),
            ("burst=-1", "1200, 50k or 2M"),
            ("limit=10/s", "1200, 50k or 2M"),
            ("queue=", "1200, 50k or 2M"),
        ] {
            let fault = read_number(word).expect_err(word);
            assert!(fault.contains(why), "{word}: {fault}");
        }
        let twice = ["rate=1/s", "rate=2/s"].map(|word| read_number(word).expect(word));
        assert_eq!(by_name(&twice), Err("rate is given twice".to_owned()));
    }
}
