//! The events for operators: a cell has passed a threshold of its limit.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};
use serde::Serialize;

use crate::settings::SETTINGS;

/// A cell has used as much of its budget as a threshold of its limit says. There is one event for each
/// threshold and window.
///
/// A hook receives the event as a JSON object, with the fields as they are named here:
///
/// ```json
/// {
///   "id": "w-5f0c3a9d1e-80-1767225600000",
///   "kind": "limit.warning",
///   "region": "eu",
///   "node": "eu-1",
///   "domain": "shop",
///   "limit": "monthly-credits",
///   "percent": 80,
///   "used": 80000,
///   "budget": 100000,
///   "unit": "credits",
///   "by": [["tenant", "big-co"]],
///   "window_ends_ms": 1767225600000,
///   "at_ms": 1766998800123
/// }
/// ```
///
/// Fields may be added: receivers must ignore unknown fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Every report of one event has the same id, from any node and at any try: receivers de-duplicate by the
    /// id. It appears in logs, so it must not contain the cell's values. An id has 1 to 128 letters, digits,
    /// `-` and `_`; any other id is replaced by its SHA-256.
    pub id: String,
    /// The kind of event.
    pub kind: Kind,
    /// The region of the node that reports the event.
    pub region: String,
    /// The node that reports the event.
    pub node: String,
    /// The limit's domain.
    pub domain: String,
    /// The limit's name, unique in its domain.
    pub limit: String,
    /// The threshold that was passed, in percent of the budget.
    pub percent: u8,
    /// The units that were used when the threshold was passed.
    pub used: u64,
    /// The whole budget, in units.
    pub budget: u64,
    /// The name of what the limit counts, as the config has it in `unit`; `None` if it has none.
    pub unit: Option<String>,
    /// The keys that the cell counts by, and its values, in the limit's order. Each is cut after 1,024 bytes.
    pub by: Vec<(String, String)>,
    /// When the window ends, in milliseconds since 1970; `None` if the limit has no windows.
    pub window_ends_ms: Option<u64>,
    /// When the threshold was passed, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Kind {
    /// A cell has passed a threshold in `warn_at`.
    #[serde(rename = "limit.warning")]
    LimitWarning,
}

impl Event {
    /// The limit's name with its domain, as metrics and logs have it.
    pub fn path(&self) -> String {
        format!("{}/{}", self.domain, self.limit)
    }

    /// The event with an id that can stand in a header, and with texts of bounded length.
    pub(super) fn bounded(mut self) -> Self {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        // A dot would look like the dots between the parts that are signed.
        if self.id.is_empty() || self.id.len() > SETTINGS.webhooks.id_bytes_max || !self.id.bytes().all(fits)
        {
            self.id = hex(digest(&SHA256, self.id.as_bytes()).as_ref());
        }
        for (key, value) in &mut self.by {
            cut(key);
            cut(value);
        }
        self
    }
}

fn cut(text: &mut String) {
    if text.len() > SETTINGS.webhooks.text_bytes_max {
        let end =
            (0..=SETTINGS.webhooks.text_bytes_max).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::webhooks::tests::event;

    #[test]
    fn an_event_has_the_documented_json() {
        let told = serde_json::to_value(event("w-1")).expect("JSON");
        let documented = json!({
            "id": "w-1",
            "kind": "limit.warning",
            "region": "eu",
            "node": "eu-1",
            "domain": "shop",
            "limit": "monthly-credits",
            "percent": 80,
            "used": 80_000,
            "budget": 100_000,
            "unit": "credits",
            "by": [["tenant", "big-co"]],
            "window_ends_ms": 1_767_225_600_000_u64,
            "at_ms": 1_766_998_800_123_u64,
        });
        assert_eq!(told, documented);
        let bare = Event { window_ends_ms: None, unit: None, ..event("w-1") };
        let told = serde_json::to_value(bare).expect("JSON");
        assert_eq!((&told["window_ends_ms"], &told["unit"]), (&json!(null), &json!(null)));
    }

    #[test]
    fn an_events_id_is_a_valid_header_value_and_always_the_same() {
        let id = |id: &str| event(id).bounded().id;
        assert_eq!(id("w-5f_0"), "w-5f_0");
        let long = "x".repeat(SETTINGS.webhooks.id_bytes_max + 1);
        for text in ["", "a.b", "a b", "a\r\nx-evil: 1", "é", &long] {
            assert_eq!(id(text).len(), 64, "{text:?}");
            assert_eq!(id(text), id(text));
        }
        assert_ne!(id("a.b"), id("a b"));
        assert_eq!(id(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn long_keys_of_callers_are_cut_between_characters() {
        let by =
            vec![("k".repeat(5_000), "é".repeat(5_000)), ("key".to_owned(), format!("x{}", "é".repeat(512)))];
        let by = Event { by, ..event("w") }.bounded().by;
        assert_eq!(
            (by[0].0.len(), by[0].1.len()),
            (SETTINGS.webhooks.text_bytes_max + 3, SETTINGS.webhooks.text_bytes_max + 3)
        );
        assert_eq!(by[0].1, format!("{}…", "é".repeat(512)));
        assert_eq!(by[1].1, format!("x{}…", "é".repeat(511)));
    }
}
