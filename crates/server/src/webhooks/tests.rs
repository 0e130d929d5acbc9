//! Tests of whole webhooks: in time that a test lets pass, and with real receivers on loopback.

mod receivers;
mod retries;

use super::*;

/// The secret that all hooks and receivers of these tests share.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A warning that a tenant has used most of its budget.
pub(super) fn event(id: &str) -> Event {
    Event {
        id: id.to_owned(),
        kind: Kind::LimitWarning,
        region: "eu".to_owned(),
        node: "eu-1".to_owned(),
        domain: "shop".to_owned(),
        limit: "monthly-credits".to_owned(),
        percent: 80,
        used: 80_000,
        budget: 100_000,
        unit: Some("credits".to_owned()),
        by: vec![("tenant".to_owned(), "big-co".to_owned())],
        window_ends_ms: Some(1_767_225_600_000),
        at_ms: 1_766_998_800_123,
    }
}

/// Several events with different ids.
fn events(count: usize) -> impl Iterator<Item = Event> {
    (0..count).map(|number| event(&format!("w-{number}")))
}
