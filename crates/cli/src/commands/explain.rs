//! `acequia explain`: asks like `check`, but charges nothing. Shows every limit that matches, and why others
//! do not.

use std::process::ExitCode;

use acequia_client::{
    CandidateVerdict, CellHolds, CellOverride, CheckResponse, ClientError, LimitResult, Outcome,
    PeekResponse, Unmatched,
};
use clap::Args;
use serde::Serialize;

use super::{
    ALLOWED, Asking, DENIED, Output, complain, json_line, mend,
    people::{Align, Cell, Colour, Paint, at, duration, plain, table},
    pools::{self, PoolJson},
    shares::{self, ShareJson},
    verdict::{
        VerdictJson, class, come_back, counted, headline, left, outcome_colour, outcome_word, reason_word,
    },
};

/// Why would this request pass or not? Charges nothing.
///
/// Exits as `acequia check` would: with 0 if it is allowed, 1 if it is denied, 2 if nobody could say.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia explain --domain shop api_key=k1 route=/search
  acequia explain --domain shop api_key=k1 + ip=192.0.2.7    two descriptors: both must pass")]
pub struct Explain {
    #[command(flatten)]
    asking: Asking,
}

impl Explain {
    /// Asks, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        let peek = match self.ask().await {
            Ok(peek) => peek,
            Err(error) => return complain(&mend(&error)),
        };
        let Some(verdict) = &peek.verdict else {
            return complain(&format!("{} gave no verdict: is it a node?", self.asking.address.address));
        };
        let output = Output::new();
        let text = if self.asking.json {
            json_line(&ExplainJson::new(verdict, &peek))
        } else {
            for_people(&self.asking.domain, verdict, &peek, output.paint)
        };
        output.end(&text, if verdict.allowed { ALLOWED } else { DENIED })
    }

    async fn ask(&self) -> Result<PeekResponse, ClientError> {
        self.asking.client()?.peek(self.asking.look()?).await
    }
}

#[derive(Debug, Serialize)]
struct ExplainJson<'a> {
    verdict: VerdictJson<'a>,
    unmatched: Vec<UnmatchedJson<'a>>,
    shares: Vec<ShareJson<'a>>,
    pools: Vec<PoolJson<'a>>,
    overrides: Vec<OverrideJson<'a>>,
    candidates: Vec<CandidateJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held: Vec<HeldJson<'a>>,
    warnings: &'a [String],
}

/// What a cell has set apart for requests under way, as JSON.
#[derive(Debug, Serialize)]
struct HeldJson<'a> {
    limit: &'a str,
    units: u64,
}

/// A candidate's verdict, beside the limit that it may replace, as JSON.
#[derive(Debug, Serialize)]
struct CandidateJson<'a> {
    candidate: &'a str,
    live: &'a str,
    candidate_denies: bool,
    live_denies: bool,
}

/// Why a cell has numbers other than its limit's, as JSON.
#[derive(Debug, Serialize)]
struct OverrideJson<'a> {
    limit: &'a str,
    until: Option<String>,
    granted: u64,
    why: &'a str,
    author: &'a str,
}

#[derive(Debug, Serialize)]
struct UnmatchedJson<'a> {
    name: &'a str,
    why: &'a str,
}

impl<'a> ExplainJson<'a> {
    fn new(verdict: &'a CheckResponse, peek: &'a PeekResponse) -> Self {
        let unmatched = |limit: &'a Unmatched| UnmatchedJson { name: &limit.name, why: &limit.why };
        let names = names(verdict);
        let other = |cell: &'a CellOverride| OverrideJson {
            limit: name_at(&names, cell.limit),
            until: cell.until_wall_ns.map(at),
            granted: cell.granted,
            why: &cell.why,
            author: &cell.author,
        };
        let candidate = |both: &'a CandidateVerdict| CandidateJson {
            candidate: &both.candidate,
            live: &both.live,
            candidate_denies: both.candidate_denies,
            live_denies: both.live_denies,
        };
        let held = |cell: &CellHolds| HeldJson { limit: name_at(&names, cell.limit), units: cell.units };
        Self {
            verdict: VerdictJson::new(verdict),
            unmatched: peek.unmatched.iter().map(unmatched).collect(),
            shares: peek.shares.iter().map(|share| ShareJson::new(&names, share)).collect(),
            pools: peek.pools.iter().map(|pool| PoolJson::new(&names, pool)).collect(),
            overrides: peek.overrides.iter().map(other).collect(),
            candidates: peek.candidates.iter().map(candidate).collect(),
            held: peek.held.iter().map(held).collect(),
            warnings: &peek.warnings,
        }
    }
}

fn names(verdict: &CheckResponse) -> Vec<&str> {
    verdict.limits.iter().map(|limit| limit.name.as_str()).collect()
}

fn name_at<'a>(names: &[&'a str], place: u32) -> &'a str {
    names.get(place as usize).copied().unwrap_or("a limit")
}

fn for_people(domain: &str, verdict: &CheckResponse, peek: &PeekResponse, paint: Paint) -> String {
    let PeekResponse { unmatched, shares, pools, overrides, candidates, warnings, held, .. } = peek;
    let mut text = headline(verdict, paint);
    for warning in warnings {
        text.push_str(&format!("{}  {}\n", paint.word(Colour::Yellow, "warning"), plain(warning)));
    }
    if !verdict.limits.is_empty() {
        text.push('\n');
        text.push_str(&limits(&verdict.limits, paint));
    }
    for limit in verdict.limits.iter().filter(|limit| limit.open_units > 0) {
        text.push_str(&open(limit));
    }
    held.iter().for_each(|cell| text.push_str(&set_apart(verdict, cell)));
    if !candidates.is_empty() {
        text.push('\n');
        text.push_str(&side_by_side(candidates, paint));
    }
    if !overrides.is_empty() {
        text.push('\n');
        let names = names(verdict);
        overrides.iter().for_each(|cell| text.push_str(&other_numbers(name_at(&names, cell.limit), cell)));
    }
    if !shares.is_empty() {
        text.push('\n');
        text.push_str(&shares::for_people(&names(verdict), shares));
    }
    if !pools.is_empty() {
        text.push('\n');
        text.push_str(&pools::for_people(&names(verdict), pools));
    }
    if !unmatched.is_empty() {
        text.push_str(&format!("\nDo not apply, of the limits of {domain}:\n"));
        let row = |limit: &Unmatched| [Cell::new(&limit.name), Cell::new(&limit.why)];
        let rows: Vec<_> = unmatched.iter().map(row).collect();
        text.push_str(&table(&rows, [Align::Left; 2], 2, paint));
    }
    if verdict.limits.is_empty() && unmatched.is_empty() {
        text.push_str(&format!("\nThe node has no limits for the domain {domain}.\n"));
    }
    text
}

/// Candidates next to the limits that they may replace.
fn side_by_side(candidates: &[CandidateVerdict], paint: Paint) -> String {
    let title = ["candidate", "says", "live", "says"].map(|title| Cell::new(title).coloured(Colour::Bold));
    let says = |denies: bool| {
        if denies {
            Cell::new("deny").coloured(Colour::Red)
        } else {
            Cell::new("allow").coloured(Colour::Green)
        }
    };
    let row = |both: &CandidateVerdict| {
        let (candidate, live) = (Cell::new(&both.candidate), Cell::new(&both.live));
        [candidate, says(both.candidate_denies), live, says(both.live_denies)]
    };
    let rows: Vec<_> = std::iter::once(title).chain(candidates.iter().map(row)).collect();
    table(&rows, [Align::Left; 4], 0, paint)
}

/// By how much a limit was exceeded that stays open during a store outage.
fn open(limit: &LimitResult) -> String {
    let LimitResult { name, open_units, .. } = limit;
    plain(&format!(
        "{name}: gives its bound up while the store is lost (on_store_loss: open); {open_units} units beyond what this node held have \
         passed here since it started"
    )) + "\n"
}

/// What a cell has set apart for requests under way.
fn set_apart(verdict: &CheckResponse, cell: &CellHolds) -> String {
    let limit = verdict.limits.get(cell.limit as usize);
    let (name, units) = (limit.map_or("a limit", |limit| limit.name.as_str()), counted(cell.units, limit));
    plain(&format!("{name}: {units} held by this node for requests whose cost is not known yet")) + "\n"
}

/// Why a cell has numbers of its own, and until when.
fn other_numbers(name: &str, cell: &CellOverride) -> String {
    let mut line = format!("{name}: this cell has numbers of its own");
    if cell.granted > 0 {
        line.push_str(&format!(", {} of them granted", cell.granted));
    }
    if let Some(until_ns) = cell.until_wall_ns {
        line.push_str(&format!(", until {}", at(until_ns)));
    }
    for (said, before) in [(&cell.why, ": "), (&cell.author, ", by ")] {
        if !said.is_empty() {
            line.push_str(&format!("{before}{said}"));
        }
    }
    plain(&line) + "\n"
}

fn limits(limits: &[LimitResult], paint: Paint) -> String {
    const COLUMNS: [(&str, Align); 8] = [
        ("limit", Align::Left),
        ("algorithm", Align::Left),
        ("budget", Align::Right),
        ("left", Align::Right),
        ("cost", Align::Right),
        ("full again in", Align::Left),
        ("verdict", Align::Left),
        ("why", Align::Left),
    ];
    let title = COLUMNS.map(|(title, _)| Cell::new(title).coloured(Colour::Bold));
    let rows: Vec<_> = std::iter::once(title).chain(limits.iter().map(row)).collect();
    table(&rows, COLUMNS.map(|(_, align)| align), 0, paint)
}

fn row(limit: &LimitResult) -> [Cell; 8] {
    let outcome = limit.outcome();
    let left = left(limit);
    let full_again = if left.is_some() { duration(limit.reset_after_ms) } else { "-".to_owned() };
    [
        Cell::new(&limit.name),
        Cell::new(&limit.algorithm),
        Cell::new(counted(limit.budget, Some(limit))),
        Cell::new(left.map_or("-".to_owned(), |units| units.to_string())),
        Cell::new(limit.cost.to_string()),
        Cell::new(full_again),
        Cell::new(outcome_word(outcome)).coloured(outcome_colour(outcome)),
        Cell::new(why(limit)),
    ]
}

fn why(limit: &LimitResult) -> String {
    let class = class(limit).map(|class| format!("class {class}, ")).unwrap_or_default();
    let reason = class + reason_word(limit.reason());
    match limit.outcome() {
        Outcome::Deny => format!("{reason}, {}", come_back(limit.retry_after_ms)),
        Outcome::ShadowDeny => format!("{reason}, only watches"),
        _ if limit.delay_ms > 0 => format!("{reason}, wait {}", duration(limit.delay_ms)),
        _ => reason,
    }
}

#[cfg(test)]
mod tests {
    use acequia_client::Reason;

    use super::{
        super::verdict::examples::{allowed, denied, per_key, plans, search},
        *,
    };

    fn unmatched(name: &str, why: &str) -> Unmatched {
        Unmatched { name: name.to_owned(), why: why.to_owned() }
    }

    fn unmatched_only(unmatched: Vec<Unmatched>) -> PeekResponse {
        PeekResponse { unmatched, ..PeekResponse::default() }
    }

    #[test]
    fn an_override_is_explained_with_its_reason_end_and_author() {
        let granted = CellOverride {
            limit: 0,
            until_wall_ns: Some(1_795_305_353_000_000_000),
            granted: 5_000,
            why: "launch\x07".to_owned(),
            author: "ana".to_owned(),
        };
        let peek = PeekResponse {
            overrides: vec![granted, CellOverride { limit: 1, ..CellOverride::default() }],
            ..PeekResponse::default()
        };
        let text = for_people("shop", &denied(), &peek, Paint::OFF);
        assert!(
            text.ends_with(
                "\n\nper-key: this cell has numbers of its own, 5000 of them granted, until 2026-11-21T23:55:53Z: \
                 launch\\u{7}, by ana\nsearch: this cell has numbers of its own\n"
            ),
            "{text}"
        );
        let json = json_line(&ExplainJson::new(&denied(), &peek));
        assert!(
            json.contains(
                r#""overrides":[{"limit":"per-key","until":"2026-11-21T23:55:53Z","granted":5000,"#
            ),
            "{json}"
        );
    }

    #[test]
    fn a_limit_open_without_its_store_shows_the_units_beyond_it() {
        let open = LimitResult { open_units: 4_711, reason: Reason::Open.into(), ..per_key() };
        let verdict = CheckResponse {
            allowed: true,
            reason: Reason::Open.into(),
            limits: vec![open, search()],
            ..CheckResponse::default()
        };
        let text = for_people("shop", &verdict, &PeekResponse::default(), Paint::OFF);
        assert!(text.contains("the limit is open until it does: it has no bound\n"), "{text}");
        let line = "per-key: gives its bound up while the store is lost (on_store_loss: open); 4711 units beyond what this node held \
                    have passed here since it started\n";
        assert!(text.contains(line) && text.matches("gives its bound up").count() == 1, "{text}");
        let json = json_line(&ExplainJson::new(&verdict, &PeekResponse::default()));
        assert!(json.matches("open_units").count() == 1 && json.contains(r#""open_units":4711"#), "{json}");
    }

    #[test]
    fn what_a_cell_has_set_apart_is_shown_with_its_limit() {
        let held = vec![CellHolds { limit: 0, units: 0 }, CellHolds { limit: 1, units: 600 }];
        let peek = PeekResponse { held, ..PeekResponse::default() };
        let verdict = CheckResponse {
            limits: vec![per_key(), LimitResult { unit: "tokens".to_owned(), ..search() }],
            ..allowed()
        };
        let text = for_people("shop", &verdict, &peek, Paint::OFF);
        assert!(
            text.ends_with(
                "\nper-key: 0 held by this node for requests whose cost is not known yet\n\
                 search: 600 tokens held by this node for requests whose cost is not known yet\n"
            ),
            "{text}"
        );
        let json = json_line(&ExplainJson::new(&verdict, &peek));
        let held = r#""held":[{"limit":"per-key","units":0},{"limit":"search","units":600}]"#;
        assert!(json.contains(held), "{json}");
        let none = json_line(&ExplainJson::new(&verdict, &PeekResponse::default()));
        assert!(!none.contains("held"), "{none}");
    }

    #[test]
    fn a_candidate_is_shown_beside_its_live_limit() {
        let both = CandidateVerdict {
            candidate: "search-new".to_owned(),
            live: "search".to_owned(),
            candidate_denies: false,
            live_denies: true,
        };
        let peek = PeekResponse { candidates: vec![both], ..PeekResponse::default() };
        let text = for_people("shop", &denied(), &peek, Paint::OFF);
        assert!(
            text.ends_with("\n\ncandidate   says   live    says\nsearch-new  allow  search  deny\n"),
            "{text}"
        );
        let json = json_line(&ExplainJson::new(&denied(), &peek));
        assert!(json.contains(
            r#"{"candidate":"search-new","live":"search","candidate_denies":false,"live_denies":true}"#
        ));
    }

    #[test]
    fn every_limit_has_a_line_and_unmatched_ones_a_reason() {
        let exports = LimitResult {
            name: "exports".to_owned(),
            algorithm: "fixed_window".to_owned(),
            reset_after_ms: 1_240_000,
            outcome: Outcome::ShadowDeny.into(),
            ..search()
        };
        let reports = LimitResult {
            name: "reports".to_owned(),
            algorithm: "leaky_bucket".to_owned(),
            delay_ms: 1_500,
            ..per_key()
        };
        let internal = LimitResult {
            name: "internal".to_owned(),
            remaining: u64::MAX,
            outcome: Outcome::Unlimited.into(),
            reason: Reason::Unlimited.into(),
            ..per_key()
        };
        let mut verdict = denied();
        verdict.limits.extend([exports, reports, internal]);
        let others = vec![
            unmatched("monthly-credits", "no entry tenant"),
            unmatched("plans", "route is /search, wanted route=/plans"),
        ];
        assert_eq!(
            for_people("shop", &verdict, &unmatched_only(others), Paint::OFF),
            "\
denied   by search: 0 left, come back in 840 ms (over-limit)

limit     algorithm       budget  left  cost  full again in  verdict      why
per-key   token_bucket       120    59     1  1.1 s          allow        within-limit
search    sliding_window      10     0     1  990 ms         deny         over-limit, come back in 840 ms
exports   fixed_window        10     0     1  20 min 40 s    shadow-deny  over-limit, only watches
reports   leaky_bucket       120    59     1  1.1 s          allow        within-limit, wait 1.5 s
internal  token_bucket       120     -     1  -              unlimited    unlimited

Do not apply, of the limits of shop:
  monthly-credits  no entry tenant
  plans            route is /search, wanted route=/plans
"
        );
    }

    #[test]
    fn the_class_of_a_request_is_explained() {
        assert_eq!(why(&plans()), "class free, class-reserve, come back in 840 ms");
        assert_eq!(why(&LimitResult { class: "gold".to_owned(), ..per_key() }), "class gold, within-limit");
    }

    #[test]
    fn the_unit_of_a_limit_stands_beside_its_budget() {
        let tokens = LimitResult { unit: "tokens".to_owned(), budget: 9_000, ..search() };
        let verdict = CheckResponse { limits: vec![per_key(), tokens], ..denied() };
        let text = for_people("shop", &verdict, &PeekResponse::default(), Paint::OFF);
        assert_eq!(
            text,
            "\
denied   by search: 0 tokens left, come back in 840 ms (over-limit)

limit    algorithm            budget  left  cost  full again in  verdict  why
per-key  token_bucket            120    59     1  1.1 s          allow    within-limit
search   sliding_window  9000 tokens     0     1  990 ms         deny     over-limit, come back in 840 ms
"
        );
    }

    #[test]
    fn a_domain_without_limits_is_reported() {
        let verdict =
            CheckResponse { allowed: true, reason: Reason::NoMatch.into(), ..CheckResponse::default() };
        assert_eq!(
            for_people("shpo", &verdict, &PeekResponse::default(), Paint::OFF),
            "allowed  no limit matches (no-match)\n\nThe node has no limits for the domain shpo.\n"
        );
    }

    #[test]
    fn the_share_of_this_region_is_explained() {
        let peek = PeekResponse { shares: vec![shares::tests::bucket()], ..PeekResponse::default() };
        let text = for_people("shop", &allowed(), &peek, Paint::OFF);
        assert!(text.contains("\n\nper-key: eu may use 33/s + 66; 7 left now, asked for 41/s\n"), "{text}");
        let verdict = allowed();
        let json = json_line(&ExplainJson::new(&verdict, &peek));
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let of = |pointer: &str| json.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}: {json}"));
        assert_eq!(of("/shares/0/limit"), "per-key");
        assert_eq!(of("/shares/0/effective/rate_milli"), 33_000);
        assert_eq!(of("/shares/0/loans/2/ends_ms"), 2_100);
        assert_eq!(of("/shares/0/peers/0/word/left"), 4);
        assert!(of("/shares/0/window_ends_ms").is_null());
    }

    #[test]
    fn the_json_of_an_explanation_is_the_peek() {
        let verdict = CheckResponse { limits: Vec::new(), ..allowed() };
        assert_eq!(
            json_line(&ExplainJson::new(
                &verdict,
                &unmatched_only(vec![unmatched("search", "no entry route")])
            )),
            concat!(
                r#"{"verdict":{"allowed":true,"limit":"per-key","remaining":59,"retry_after_ms":null,"#,
                r#""delay_ms":0,"charge_id":null,"reason":"within-limit","limits":[]},"#,
                r#""unmatched":[{"name":"search","why":"no entry route"}],"shares":[],"pools":[],"overrides":[],"candidates":[],"warnings":[]}"#,
                "\n"
            )
        );
    }
}
