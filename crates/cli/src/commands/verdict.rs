//! A verdict in words and as JSON: shared by `check` and `explain`.

use acequia_client::{CheckResponse, LimitResult, Outcome, Reason};
use serde::Serialize;

use super::people::{Colour, Paint, duration, plain};

/// The width of "allowed" and "denied", so that the text after them lines up.
const VERDICT_WIDTH: usize = 9;

/// A verdict with the fields of the HTTP API.
#[derive(Debug, Serialize)]
pub(super) struct VerdictJson<'a> {
    allowed: bool,
    /// Null if no limit decided.
    limit: Option<&'a str>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    delay_ms: u64,
    /// Null unless the charge has a name.
    charge_id: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_repeat: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    charged: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lapses_in_ms: Option<u64>,
    reason: &'static str,
    limits: Vec<LimitJson<'a>>,
}

#[derive(Debug, Serialize)]
struct LimitJson<'a> {
    name: &'a str,
    algorithm: &'a str,
    budget: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'a str>,
    /// Null if the limit exempts the request.
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    delay_ms: u64,
    outcome: &'static str,
    reason: &'static str,
    cost: u64,
    descriptors: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    open_units: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owed: Option<u64>,
}

impl<'a> VerdictJson<'a> {
    pub(super) fn new(verdict: &'a CheckResponse) -> Self {
        Self {
            allowed: verdict.allowed,
            limit: decisive(verdict),
            remaining: verdict.remaining,
            retry_after_ms: verdict.retry_after_ms,
            delay_ms: verdict.delay_ms,
            charge_id: charge_id(verdict),
            is_repeat: verdict.is_repeat,
            charged: Some(verdict.charged).filter(|units| *units > 0),
            lapses_in_ms: Some(verdict.lapses_in_ms).filter(|ms| *ms > 0),
            reason: reason_word(verdict.reason()),
            limits: verdict.limits.iter().map(LimitJson::new).collect(),
        }
    }
}

impl<'a> LimitJson<'a> {
    fn new(limit: &'a LimitResult) -> Self {
        Self {
            name: &limit.name,
            algorithm: &limit.algorithm,
            budget: limit.budget,
            unit: unit(limit),
            remaining: left(limit),
            retry_after_ms: limit.retry_after_ms,
            reset_after_ms: limit.reset_after_ms,
            delay_ms: limit.delay_ms,
            outcome: outcome_word(limit.outcome()),
            reason: reason_word(limit.reason()),
            cost: limit.cost,
            descriptors: &limit.descriptors,
            class: class(limit),
            open_units: Some(limit.open_units).filter(|units| *units > 0),
            owed: Some(limit.owed).filter(|units| *units > 0),
        }
    }
}

/// The verdict in one line, and another line for each fact that does not fit in it.
pub(super) fn headline(verdict: &CheckResponse, paint: Paint) -> String {
    let (word, colour) = if verdict.allowed { ("allowed", Colour::Green) } else { ("denied", Colour::Red) };
    let padding = " ".repeat(VERDICT_WIDTH - word.len());
    let mut text = format!("{}{padding}{}\n", paint.word(colour, word), decision(verdict));
    if verdict.delay_ms > 0 {
        text.push_str(&line(&format!("wait {} before going on", duration(verdict.delay_ms))));
    }
    if let Some(meaning) = meaning(verdict.reason()) {
        text.push_str(&line(meaning));
    }
    text
}

/// One more line below the verdict.
pub(super) fn line(more: &str) -> String {
    format!("{}{}\n", " ".repeat(VERDICT_WIDTH), plain(more))
}

fn decision(verdict: &CheckResponse) -> String {
    let reason = reason_word(verdict.reason());
    // An answer without details does not have the limit, and so not its unit.
    let limit = decisive(verdict).and_then(|name| verdict.limits.iter().find(|limit| limit.name == name));
    let remaining = counted(verdict.remaining.unwrap_or(0), limit);
    match (verdict.allowed, decisive(verdict)) {
        (true, Some(limit)) => format!("{remaining} left in {limit}"),
        (true, None) if verdict.reason() == Reason::NoMatch => format!("no limit matches ({reason})"),
        (true, None) if verdict.reason() == Reason::Unlimited => {
            format!("exempt from every limit that matches ({reason})")
        }
        (true, None) => format!("no limit that matches is enforced ({reason})"),
        (false, None) if verdict.reason() == Reason::NoMatch => {
            format!("no limit matches, and the config denies what no limit is about ({reason})")
        }
        (false, limit) => {
            let limit = limit.unwrap_or("a limit without a name");
            format!("by {limit}: {remaining} left, {} ({reason})", come_back(verdict.retry_after_ms))
        }
    }
}

/// The limit that decided.
fn decisive(verdict: &CheckResponse) -> Option<&str> {
    Some(verdict.limit.as_str()).filter(|name| !name.is_empty())
}

/// The name by which the charge can be settled.
pub(super) fn charge_id(verdict: &CheckResponse) -> Option<&str> {
    Some(verdict.charge_id.as_str()).filter(|id| !id.is_empty())
}

/// The class of consumers that the request counts in, where the limit has classes.
pub(super) fn class(limit: &LimitResult) -> Option<&str> {
    Some(limit.class.as_str()).filter(|class| !class.is_empty())
}

/// The name of what a limit counts, where the config has one.
pub(super) fn unit(limit: &LimitResult) -> Option<&str> {
    Some(limit.unit.as_str()).filter(|unit| !unit.is_empty())
}

/// A number of units, with the name of what the limit counts.
pub(super) fn counted(units: u64, limit: Option<&LimitResult>) -> String {
    match limit.and_then(unit) {
        Some(unit) => format!("{units} {}", plain(unit)),
        None => units.to_string(),
    }
}

/// What is left in a limit; `None` if the limit exempts the request, since then there is no bound.
pub(super) fn left(limit: &LimitResult) -> Option<u64> {
    (limit.outcome() != Outcome::Unlimited).then_some(limit.remaining)
}

pub(super) fn come_back(retry_after_ms: Option<u64>) -> String {
    match retry_after_ms {
        Some(ms) => format!("come back in {}", duration(ms)),
        None => "no wait helps".to_owned(),
    }
}

/// The meaning of a reason whose word does not say enough.
fn meaning(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::CostTooHigh => Some("the cost is above what the limit can ever hold"),
        Reason::Restarted => {
            Some("the node has restarted, and what it cannot know to be unspent counts as spent")
        }
        Reason::Overflow => Some("the node's memory for cells is full: new cells of the limit share one"),
        Reason::Journal => {
            Some("the node cannot write its journal: only what was reserved before may be spent")
        }
        Reason::Clock => Some(
            "the node's wall clock is not believed, or was set back: what was spent of the window is not known",
        ),
        Reason::NoCatalogue => {
            Some("the node owns no part of any limit until the authority's catalogue names it")
        }
        Reason::RestoredDisk => Some(
            "the node's disk is older than what it wrote last: give it an empty `data` folder and recover it",
        ),
        Reason::ClassReserve => Some("what is left is kept for classes of a higher priority"),
        Reason::Throttled => Some("most of the window is used, and the limit slows down for the rest"),
        Reason::Unavailable => Some(
            "the store that the region's nodes share does not answer, and the limit is closed until it does",
        ),
        Reason::Open => Some(
            "the store that the region's nodes share does not answer, and the limit is open until it does: it has no bound",
        ),
        Reason::Unspecified
        | Reason::WithinLimit
        | Reason::NoMatch
        | Reason::Unlimited
        | Reason::OverLimit => None,
    }
}

/// The word for a reason in JSON, metrics and on the command line.
pub(super) fn reason_word(reason: Reason) -> &'static str {
    match reason {
        Reason::WithinLimit => "within-limit",
        Reason::NoMatch => "no-match",
        Reason::Unlimited => "unlimited",
        Reason::OverLimit => "over-limit",
        Reason::CostTooHigh => "cost-too-high",
        Reason::Restarted => "restarted",
        Reason::Overflow => "overflow",
        Reason::Journal => "journal",
        Reason::Clock => "clock",
        Reason::NoCatalogue => "no-catalogue",
        Reason::RestoredDisk => "restored-disk",
        Reason::ClassReserve => "class-reserve",
        Reason::Throttled => "throttled",
        Reason::Unavailable => "unavailable",
        Reason::Open => "open",
        // A newer node may know more reasons.
        Reason::Unspecified => "unknown",
    }
}

/// The word for an outcome in JSON and on the command line.
pub(super) fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Deny => "deny",
        Outcome::ShadowDeny => "shadow-deny",
        Outcome::Unlimited => "unlimited",
        // A newer node may know more outcomes.
        Outcome::Unspecified => "unknown",
    }
}

pub(super) fn outcome_colour(outcome: Outcome) -> Colour {
    match outcome {
        Outcome::Allow | Outcome::Unlimited => Colour::Green,
        Outcome::Deny => Colour::Red,
        Outcome::ShadowDeny => Colour::Yellow,
        Outcome::Unspecified => Colour::Plain,
    }
}

/// Answers for the tests of this folder.
#[cfg(test)]
pub(super) mod examples {
    use super::*;

    pub(in crate::commands) fn per_key() -> LimitResult {
        LimitResult {
            name: "per-key".to_owned(),
            budget: 120,
            remaining: 59,
            reset_after_ms: 1_017,
            outcome: Outcome::Allow.into(),
            reason: Reason::WithinLimit.into(),
            descriptors: vec![0],
            cost: 1,
            algorithm: "token_bucket".to_owned(),
            ..LimitResult::default()
        }
    }

    pub(in crate::commands) fn search() -> LimitResult {
        LimitResult {
            name: "search".to_owned(),
            budget: 10,
            retry_after_ms: Some(840),
            reset_after_ms: 990,
            outcome: Outcome::Deny.into(),
            reason: Reason::OverLimit.into(),
            descriptors: vec![0],
            cost: 1,
            algorithm: "sliding_window".to_owned(),
            ..LimitResult::default()
        }
    }

    pub(in crate::commands) fn allowed() -> CheckResponse {
        CheckResponse {
            allowed: true,
            limit: "per-key".to_owned(),
            remaining: Some(59),
            reason: Reason::WithinLimit.into(),
            limits: vec![per_key()],
            ..CheckResponse::default()
        }
    }

    /// A limit with classes.
    pub(in crate::commands) fn plans() -> LimitResult {
        LimitResult {
            name: "plans".to_owned(),
            reason: Reason::ClassReserve.into(),
            class: "free".to_owned(),
            ..search()
        }
    }

    pub(in crate::commands) fn reserved() -> CheckResponse {
        CheckResponse {
            charge_id: "eu/eu-1:00000000000000000000000000000005".to_owned(),
            is_repeat: true,
            charged: 60,
            lapses_in_ms: 599_950,
            ..allowed()
        }
    }

    pub(in crate::commands) fn denied() -> CheckResponse {
        CheckResponse {
            limit: "search".to_owned(),
            remaining: Some(0),
            retry_after_ms: Some(840),
            reason: Reason::OverLimit.into(),
            limits: vec![per_key(), search()],
            ..CheckResponse::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        examples::{allowed, denied},
        *,
    };
    use crate::commands::json_line;

    #[test]
    fn a_verdict_shows_the_units_left_or_the_retry_time() {
        assert_eq!(headline(&allowed(), Paint::OFF), "allowed  59 left in per-key\n");
        assert_eq!(
            headline(&denied(), Paint::OFF),
            "denied   by search: 0 left, come back in 840 ms (over-limit)\n"
        );
        assert_eq!(
            headline(&denied(), Paint::new(true)),
            "\x1b[31mdenied\x1b[0m   by search: 0 left, come back in 840 ms (over-limit)\n"
        );
    }

    #[test]
    fn a_delay_has_its_own_line() {
        let verdict = CheckResponse { delay_ms: 1_500, ..allowed() };
        assert_eq!(
            headline(&verdict, Paint::OFF),
            "allowed  59 left in per-key\n         wait 1.5 s before going on\n"
        );
    }

    #[test]
    fn a_cost_that_can_never_pass_is_shown_as_such() {
        let verdict = CheckResponse {
            remaining: Some(10),
            retry_after_ms: None,
            reason: Reason::CostTooHigh.into(),
            ..denied()
        };
        assert_eq!(
            headline(&verdict, Paint::OFF),
            "denied   by search: 10 left, no wait helps (cost-too-high)\n         \
             the cost is above what the limit can ever hold\n"
        );
    }

    #[test]
    fn an_allowed_verdict_without_a_limit_gives_the_reason() {
        let none = CheckResponse { limit: String::new(), remaining: None, limits: Vec::new(), ..allowed() };
        for (reason, line) in [
            (Reason::NoMatch, "allowed  no limit matches (no-match)\n"),
            (Reason::Unlimited, "allowed  exempt from every limit that matches (unlimited)\n"),
            (Reason::WithinLimit, "allowed  no limit that matches is enforced (within-limit)\n"),
        ] {
            let verdict = CheckResponse { reason: reason.into(), ..none.clone() };
            assert_eq!(headline(&verdict, Paint::OFF), line);
        }
    }

    #[test]
    fn the_json_of_a_verdict_has_every_field_and_null_if_absent() {
        assert_eq!(
            json_line(&VerdictJson::new(&denied())),
            concat!(
                r#"{"allowed":false,"limit":"search","remaining":0,"retry_after_ms":840,"delay_ms":0,"#,
                r#""charge_id":null,"reason":"over-limit","limits":["#,
                r#"{"name":"per-key","algorithm":"token_bucket","budget":120,"remaining":59,"#,
                r#""retry_after_ms":null,"reset_after_ms":1017,"delay_ms":0,"outcome":"allow","#,
                r#""reason":"within-limit","cost":1,"descriptors":[0]},"#,
                r#"{"name":"search","algorithm":"sliding_window","budget":10,"remaining":0,"#,
                r#""retry_after_ms":840,"reset_after_ms":990,"delay_ms":0,"outcome":"deny","#,
                r#""reason":"over-limit","cost":1,"descriptors":[0]}]}"#,
                "\n"
            )
        );
        let exempt = LimitResult {
            outcome: Outcome::Unlimited.into(),
            reason: Reason::Unlimited.into(),
            remaining: u64::MAX,
            ..examples::per_key()
        };
        let verdict = CheckResponse {
            allowed: true,
            reason: Reason::Unlimited.into(),
            limits: vec![exempt],
            ..CheckResponse::default()
        };
        let line = json_line(&VerdictJson::new(&verdict));
        assert!(line.starts_with(r#"{"allowed":true,"limit":null,"remaining":null,"#), "{line}");
        assert!(line.contains(r#""budget":120,"remaining":null,"#), "{line}");
    }

    #[test]
    fn a_verdict_names_the_unit_of_the_limit_that_decided() {
        let tokens = LimitResult { unit: "tokens".to_owned(), ..examples::search() };
        let verdict = CheckResponse { limits: vec![examples::per_key(), tokens], ..denied() };
        assert_eq!(
            headline(&verdict, Paint::OFF),
            "denied   by search: 0 tokens left, come back in 840 ms (over-limit)\n"
        );
        let line = json_line(&VerdictJson::new(&verdict));
        assert!(line.contains(r#""budget":10,"unit":"tokens","remaining":0,"#), "{line}");
        assert_eq!(line.matches("unit").count(), 1, "{line}");
    }

    #[test]
    fn the_json_of_a_verdict_has_the_charge_and_the_class() {
        let verdict = CheckResponse { limits: vec![examples::plans()], ..examples::reserved() };
        let line = json_line(&VerdictJson::new(&verdict));
        assert!(
            line.contains(concat!(
                r#""delay_ms":0,"charge_id":"eu/eu-1:00000000000000000000000000000005","#,
                r#""is_repeat":true,"charged":60,"lapses_in_ms":599950,"reason":"within-limit","#
            )),
            "{line}"
        );
        assert!(line.ends_with("\"descriptors\":[0],\"class\":\"free\"}]}\n"), "{line}");
    }
}
