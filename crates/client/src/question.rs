//! The questions that an application asks.

use std::time::Duration;

use acequia_api::acequia::v1::{CheckRequest, Descriptor, Entry, Lapse, Reserve};

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

    /// Adds another descriptor, which must pass, too.
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

    /// Sets the request's weight, in each limit's own units. The default is 1, which is also the least.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.request.cost = Some(units);
        self
    }

    /// Asks for the verdict of every limit in [`CheckResponse::limits`](crate::CheckResponse::limits), even
    /// if the request is allowed. A denial always lists them. The list costs a few dozen bytes for every
    /// limit that matches.
    #[must_use]
    pub fn detail(mut self) -> Self {
        self.request.detail = true;
        self
    }

    /// Sets the caller's own id for this request: 1 to 128 bytes, unique in the domain. While the node
    /// remembers the id, an equal question under it charges once and gets the first answer
    /// ([`CheckResponse::is_repeat`](crate::CheckResponse::is_repeat)). With an id, a question whose answer
    /// was lost may be asked again. A denial is not remembered. The node refuses another question under the
    /// same id.
    ///
    /// A name of the request, such as the id of an order, is better than a random number: it stays valid
    /// for the caller's own retries.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.request.id = id.into();
        self
    }

    /// Asks for a [`CheckResponse::charge_id`](crate::CheckResponse::charge_id), with which
    /// [`Client::refund`](crate::Client::refund) can give the charge back. The node keeps a record of the
    /// charge, so ask only if a refund may be needed.
    #[must_use]
    pub fn refundable(mut self) -> Self {
        self.request.refundable = true;
        self
    }

    /// Charges the cost provisionally, until [`Client::commit`](crate::Client::commit) says what it really
    /// was. A reservation without a commit lapses after `ttl`. The node counts `ttl` in whole milliseconds,
    /// 1 ms to one hour, and refuses others.
    #[must_use]
    pub fn reserve(mut self, ttl: Duration, on_lapse: Lapse) -> Self {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.request.reserve = Some(Reserve { ttl_ms, on_lapse: on_lapse.into(), at_most: false });
        self
    }

    /// The request's weight.
    pub(crate) fn units(&self) -> u64 {
        self.request.cost.unwrap_or(1).max(1)
    }

    /// Whether the question has only a domain and descriptors: no cost, id, reservation or refund is set.
    pub(crate) fn is_bare(&self) -> bool {
        let CheckRequest { descriptors, cost, id, refundable, reserve, .. } = &self.request;
        let weighs = cost.is_some() || descriptors.iter().any(|descriptor| descriptor.cost.is_some());
        !weighs && id.is_empty() && !refundable && reserve.is_none()
    }

    /// This question, for as many units as can be spared and with the verdict of every limit.
    pub(crate) fn at_most(self, units: u64, ttl: Duration) -> Self {
        let mut question = self.reserve(ttl, Lapse::Keep).cost(units).detail();
        if let Some(reserve) = &mut question.request.reserve {
            reserve.at_most = true;
        }
        question
    }
}

impl From<Question> for CheckRequest {
    fn from(question: Question) -> Self {
        question.request
    }
}
