//! What a proxy asks at `/v1/authz`, from its parameters and headers. Pure: no more is read than that.

use std::{borrow::Cow, collections::BTreeSet};

use http::{HeaderMap, HeaderValue, StatusCode};

/// A question, and what its denial looks like.
#[derive(Debug)]
pub struct Question<'q> {
    /// The domain whose limits apply; empty where no parameter says it.
    pub domain: &'q str,
    /// What the request weighs: 1 where no parameter says it.
    pub cost: u64,
    /// The status of a denial: 400 to 599, or 429 where no parameter says it.
    pub deny_status: StatusCode,
    /// Keys and values, in the order of the parameters.
    pub entries: Vec<(&'q str, Cow<'q, [u8]>)>,
}

impl<'q> Question<'q> {
    /// Reads the parameters: `domain`, `cost`, `deny_status`; `header.KEY=NAME` for the value of a header, left out where there is none; all
    /// others are entries.
    ///
    /// # Errors
    /// A parameter that comes twice, or one that cannot be read, and how to mend it.
    pub fn read(query: &'q [(String, String)], headers: &'q HeaderMap) -> Result<Self, String> {
        let mut question =
            Self { domain: "", cost: 1, deny_status: StatusCode::TOO_MANY_REQUESTS, entries: Vec::new() };
        let mut named = BTreeSet::new();
        for (key, value) in query {
            // Whoever can add one to what a proxy asks would choose the value.
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

/// The value of a header; of one that comes more than once, all of them with commas in between.
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
