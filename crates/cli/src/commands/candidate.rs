//! `acequia candidate`: what would change if a candidate replaced the limit that it is compared with.

use std::process::ExitCode;

use acequia_api::acequia::v1::{CandidateReport, CellCount, CompareCandidateRequest};
use clap::Args;
use serde::Serialize;

use super::{
    SUCCESS,
    console::Console,
    json_line,
    limit_path::{LimitPath, read_limit_path},
    operator::{AdminAddress, Fault, operate},
    people::{Align, Cell, Colour, Paint, at, plain, table},
};

/// Compare a candidate with the limit that it may replace: who would be denied, and who would be denied no
/// more.
///
/// A candidate is a limit with `mode: shadow` and `candidate_for: NAME`. Each node counts only its own
/// requests.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia candidate shop/per-key-new
  acequia candidate shop/per-key-new --json | jq .only_candidate_denies")]
pub struct Candidate {
    #[command(flatten)]
    address: AdminAddress,

    /// The candidate.
    #[arg(value_name = "DOMAIN/NAME", value_parser = read_limit_path)]
    limit: LimitPath,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Candidate {
    /// Asks, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        operate(async |console| self.carry_out(console).await).await
    }

    pub(super) async fn carry_out(&self, console: &mut Console<'_>) -> Result<u8, Fault> {
        let LimitPath { domain, name, key } = self.limit.clone();
        if !key.is_empty() {
            return Err(Fault::new(format!("a whole limit is compared: write {domain}/{name}")));
        }
        let report = self.address.connect()?.compare(CompareCandidateRequest { domain, name }).await?;
        let text = if self.json {
            json_line(&CandidateJson::new(&report))
        } else {
            for_people(&report, console.paint)
        };
        console.answer(&text)?;
        Ok(SUCCESS)
    }
}

fn for_people(report: &CandidateReport, paint: Paint) -> String {
    let CandidateReport { domain, candidate, live, candidate_budget, live_budget, .. } = report;
    let mut text = format!(
        "{}  {}\nbeside {}  {}\n",
        paint.word(Colour::Bold, &plain(&format!("{domain}/{candidate}"))),
        plain(candidate_budget),
        paint.word(Colour::Bold, &plain(&format!("{domain}/{live}"))),
        plain(live_budget),
    );
    if report.since_wall_ns == 0 {
        text.push_str(
            "\nNo request has hit both here since the node started, or since their numbers changed.\n",
        );
        return text;
    }
    let all = total(report);
    text.push_str(&format!("\n{all} requests hit both here since {}:\n", at(report.since_wall_ns)));
    let row = |what: &str, count: u64| {
        [Cell::new(what), Cell::new(count.to_string()), Cell::new(format!("{} %", percent(count, all)))]
    };
    let rows = [
        row("both allow", report.both_allow),
        row("only the candidate denies", report.only_candidate_denies),
        row(&format!("only {live} denies"), report.only_live_denies),
        row("both deny", report.both_deny),
    ];
    text.push_str(&table(&rows, [Align::Left, Align::Right, Align::Right], 2, paint));
    if !report.denied.is_empty() {
        text.push_str("\nWho would be denied and is not, most first:\n");
        let row = |cell: &CellCount| {
            let more = if cell.is_cut { "…" } else { "" };
            let name = if cell.key.is_empty() { "its one cell" } else { cell.key.as_str() };
            let off =
                if cell.error > 0 { format!("at least {}", cell.count - cell.error) } else { String::new() };
            [Cell::new(format!("{name}{more}")), Cell::new(cell.count.to_string()), Cell::new(off)]
        };
        let rows: Vec<_> = report.denied.iter().map(row).collect();
        text.push_str(&table(&rows, [Align::Left, Align::Right, Align::Left], 2, paint));
    }
    text
}

fn total(report: &CandidateReport) -> u64 {
    let counts = [report.both_allow, report.only_candidate_denies, report.only_live_denies, report.both_deny];
    counts.into_iter().fold(0, u64::saturating_add)
}

/// A percentage with two decimals.
fn percent(count: u64, all: u64) -> String {
    let hundredths = u128::from(count) * 10_000 / u128::from(all.max(1));
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// The comparison as JSON, with the names of `proto/acequia/v1/admin.proto`.
#[derive(Debug, Serialize)]
struct CandidateJson<'a> {
    domain: &'a str,
    candidate: &'a str,
    live: &'a str,
    candidate_budget: &'a str,
    live_budget: &'a str,
    /// RFC 3339, UTC; null if no request hit both limits.
    since: Option<String>,
    both_allow: u64,
    only_candidate_denies: u64,
    only_live_denies: u64,
    both_deny: u64,
    denied: Vec<DeniedJson<'a>>,
}

#[derive(Debug, Serialize)]
struct DeniedJson<'a> {
    key: &'a str,
    is_cut: bool,
    count: u64,
    error: u64,
}

impl<'a> CandidateJson<'a> {
    fn new(report: &'a CandidateReport) -> Self {
        let denied = |cell: &'a CellCount| DeniedJson {
            key: &cell.key,
            is_cut: cell.is_cut,
            count: cell.count,
            error: cell.error,
        };
        Self {
            domain: &report.domain,
            candidate: &report.candidate,
            live: &report.live,
            candidate_budget: &report.candidate_budget,
            live_budget: &report.live_budget,
            since: (report.since_wall_ns > 0).then(|| at(report.since_wall_ns)),
            both_allow: report.both_allow,
            only_candidate_denies: report.only_candidate_denies,
            only_live_denies: report.only_live_denies,
            both_deny: report.both_deny,
            denied: report.denied.iter().map(denied).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> CandidateReport {
        let cell =
            |key: &str, count, error| CellCount { key: key.to_owned(), count, error, ..CellCount::default() };
        CandidateReport {
            domain: "shop".to_owned(),
            candidate: "new".to_owned(),
            live: "old".to_owned(),
            candidate_budget: "token_bucket 5/s burst 10".to_owned(),
            live_budget: "token_bucket 10/s burst 20".to_owned(),
            since_wall_ns: 1_795_305_353_000_000_000,
            both_allow: 940,
            only_candidate_denies: 41,
            only_live_denies: 0,
            both_deny: 19,
            denied: vec![cell("user=ann", 31, 0), cell("user=b\x07", 10, 4)],
        }
    }

    #[test]
    fn a_report_says_who_would_be_denied() {
        assert_eq!(
            for_people(&report(), Paint::OFF),
            "\
shop/new  token_bucket 5/s burst 10
beside shop/old  token_bucket 10/s burst 20

1000 requests hit both here since 2026-11-21T23:55:53Z:
  both allow                 940  94.00 %
  only the candidate denies   41   4.10 %
  only old denies              0   0.00 %
  both deny                   19   1.90 %

Who would be denied and is not, most first:
  user=ann     31
  user=b\\u{7}  10  at least 6
"
        );
        let none = CandidateReport { since_wall_ns: 0, ..report() };
        assert!(for_people(&none, Paint::OFF).ends_with(
            "No request has hit both here since the node started, or since their numbers changed.\n"
        ));
        assert_eq!(percent(0, 0), "0.00");
        assert_eq!(percent(u64::MAX, u64::MAX), "100.00");
    }

    #[test]
    fn the_json_of_a_candidate_has_the_same_report() {
        let line = json_line(&CandidateJson::new(&report()));
        assert!(
            line.contains(r#""since":"2026-11-21T23:55:53Z","both_allow":940,"only_candidate_denies":41,"#),
            "{line}"
        );
        assert!(
            line.contains(r#""denied":[{"key":"user=ann","is_cut":false,"count":31,"error":0},"#),
            "{line}"
        );
    }
}
