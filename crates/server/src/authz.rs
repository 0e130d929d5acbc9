//! A question of a proxy at `/v1/authz`, from its parameters and headers. Pure: nothing else is read.

use std::{borrow::Cow, collections::BTreeSet};

use http::{HeaderMap, HeaderValue, StatusCode};

/// A question, and how its denial looks.
#[derive(Debug)]
pub struct Question<'q> {
    /// The domain whose limits apply; empty if no parameter says it.
    pub domain: &'q str,
    /// The cost of the request; 1 if no parameter says it.
    pub cost: u64,
    /// The status of a denial: 400 to 599; 429 if no parameter says it.
    pub deny_status: StatusCode,
    /// Keys and values, in the order of the parameters.
    pub entries: Vec<(&'q str, Cow<'q, [u8]>)>,
}

impl<'q> Question<'q> {
    /// Reads the parameters: `domain`, `cost` and `deny_status`. `header.KEY=NAME` is an entry with the value
    /// of a header, left out if the request has no such header. All other parameters are entries.
    ///
    /// # Errors
    /// A parameter that comes twice or cannot be read, and how to mend it.
    pub fn read(query: &'q [(String, String)], headers: &'q HeaderMap) -> Result<Self, String> {
        let mut question =
            Self { domain: "", cost: 1, deny_status: StatusCode::TOO_MANY_REQUESTS, entries: Vec::new() };
        let mut named = BTreeSet::new();
        for (key, value) in query {
            // Otherwise a client that can add a parameter to the proxy's question would choose the value.
            if !named.insert(key.strip_prefix("header.").unwrap_or(key)) {
                return Err(format!("the parameter {key} comes twice: give each once"));
            }
            match (key.as_str(), key.strip_prefix("header.")) {
                ("domain", _) => question.domain = value,
                ("cost", _) => match value.parse() {
                    Ok(cost) if cost > 0 => question.cost = cost,
                    _ => return Err("a cost is a whole number above 0".to_owned()),
                },
                ("deny_status", _) => {
                    let status = value.parse().ok().filter(|status| (400..600).contains(status));
                    match status.and_then(|status| StatusCode::from_u16(status).ok()) {
                        Some(status) => question.deny_status = status,
                        None => return Err("a deny_status is 400 to 599".to_owned()),
                    }
                }
                (key, None) => question.entries.push((key, value.as_bytes().into())),
                (_, Some(key)) => question.entries.extend(listed(headers, value).map(|found| (key, found))),
            }
        }
        Ok(question)
    }
}

/// The value of a header. If the header comes more than once, all its values with commas in between.
fn listed<'h>(headers: &'h HeaderMap, name: &str) -> Option<Cow<'h, [u8]>> {
    let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let first = values.next()?;
    let mut all = Cow::Borrowed(first);
    for value in values {
        let all = all.to_mut();
        all.extend_from_slice(b", ");
        all.extend_from_slice(value);
    }
    Some(all)
}
