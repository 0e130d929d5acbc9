//! What an application asks.

use acequia_api::acequia::v1::{CheckRequest, Descriptor, Entry};

/// May this request pass?
///
/// A question has at least one descriptor; all of them must pass.
///
/// ```
/// use acequia_client::Question;
///
/// let question = Question::new("shop", [("api_key", "k1"), ("route", "/search")])
///     .and([("ip", "192.0.2.7")])
///     .cost(3);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    request: CheckRequest,
}

impl Question {
    /// Asks the limits of a domain about one descriptor: (key, value) pairs, at least one, in any order.
    pub fn new<K, V>(domain: impl Into<String>, entries: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: Into<String>,
        V: Into<String>,
    {
        let request = CheckRequest { domain: domain.into(), ..CheckRequest::default() };
        Self { request }.and(entries)
    }

    /// Another descriptor, which must pass too.
    #[must_use]
    pub fn and<K, V>(mut self, entries: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: Into<String>,
        V: Into<String>,
    {
        let entries = entries.into_iter().map(|(key, value)| Entry { key: key.into(), value: value.into() });
        self.request.descriptors.push(Descriptor { entries: entries.collect(), cost: None });
        self
    }

    /// What the request weighs, in each limit's own units; 1 unless set, and at least 1.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.request.cost = Some(units);
        self
    }

    /// Asks for what every limit says in [`CheckResponse::limits`](crate::CheckResponse::limits), also if the
    /// request is allowed. A denial always lists them. A few dozen bytes more for every limit that matches.
    #[must_use]
    pub fn detail(mut self) -> Self {
        self.request.detail = true;
        self
    }
}

impl From<Question> for CheckRequest {
    fn from(question: Question) -> Self {
        question.request
    }
}
