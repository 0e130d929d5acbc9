//! `acequia check`: ask, charge, and say it with the exit code.

use std::process::ExitCode;

use acequia_client::{CheckResponse, ClientError, LimitResult, Outcome};
use clap::Args;

use super::{
    ALLOWED, Asking, DENIED, Output, complain, json_line, mend,
    people::{Align, Cell, Paint, duration, table},
    verdict::{VerdictJson, come_back, headline, left, outcome_colour, outcome_word, reason_word},
};

/// May this request pass? What is allowed is charged.
///
/// Exits with 0 where it is allowed, 1 where it is denied, 2 where nobody could say.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia check --domain shop api_key=k1 route=/search
  acequia check --domain shop --cost 10 tenant=t1
  acequia check --domain shop api_key=k1 + ip=192.0.2.7    two descriptors: both must pass")]
pub struct Check {
    #[command(flatten)]
    asking: Asking,

    /// Also print what each limit says where the request is allowed.
    #[arg(long, short)]
    verbose: bool,
}

impl Check {
    /// Asks, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        let verdict = match self.ask().await {
            Ok(verdict) => verdict,
            Err(error) => return complain(&mend(&error)),
        };
        let output = Output::new();
        let text = if self.asking.json {
            json_line(&VerdictJson::new(&verdict))
        } else {
            for_people(&verdict, self.verbose, output.paint)
        };
        output.end(&text, if verdict.allowed { ALLOWED } else { DENIED })
    }

    async fn ask(&self) -> Result<CheckResponse, ClientError> {
        self.asking.client()?.check(self.asking.question()?).await
    }
}

fn for_people(verdict: &CheckResponse, verbose: bool, paint: Paint) -> String {
    let mut text = headline(verdict, paint);
    if verbose || !verdict.allowed {
        let rows: Vec<_> = verdict.limits.iter().map(row).collect();
        text.push_str(&table(&rows, [Align::Left; 3], 2, paint));
    }
    text
}

fn row(limit: &LimitResult) -> [Cell; 3] {
    let outcome = limit.outcome();
    let verdict = Cell::new(outcome_word(outcome)).coloured(outcome_colour(outcome));
    [Cell::new(&limit.name), verdict, Cell::new(says(limit))]
}

/// What one limit says.
fn says(limit: &LimitResult) -> String {
    let Some(left) = left(limit) else { return "exempt".to_owned() };
    let mut says = format!("{left} of {} left", limit.budget);
    if limit.cost != 1 {
        says.push_str(&format!(", costs {}", limit.cost));
    }
    match limit.outcome() {
        Outcome::Deny | Outcome::ShadowDeny => {
            let reason = reason_word(limit.reason());
            says.push_str(&format!(", {} ({reason})", come_back(limit.retry_after_ms)));
        }
        _ if limit.delay_ms > 0 => says.push_str(&format!(", wait {}", duration(limit.delay_ms))),
        _ => {}
    }
    says
}

#[cfg(test)]
mod tests {
    use acequia_client::Reason;

    use super::{
        super::verdict::examples::{allowed, denied, per_key, search},
        *,
    };

    #[test]
    fn allowed_is_one_line_unless_more_is_asked_for() {
        assert_eq!(for_people(&allowed(), false, Paint::OFF), "allowed  59 left in per-key\n");
        assert_eq!(
            for_people(&allowed(), true, Paint::OFF),
            "allowed  59 left in per-key\n  per-key  allow  59 of 120 left\n"
        );
    }

    #[test]
    fn denied_lists_what_each_limit_says() {
        let exports = LimitResult {
            name: "exports".to_owned(),
            outcome: Outcome::ShadowDeny.into(),
            cost: 20,
            retry_after_ms: None,
            reason: Reason::CostTooHigh.into(),
            ..search()
        };
        let internal = LimitResult {
            name: "internal".to_owned(),
            outcome: Outcome::Unlimited.into(),
            remaining: u64::MAX,
            ..per_key()
        };
        let reports = LimitResult { name: "reports".to_owned(), delay_ms: 500, ..per_key() };
        let mut verdict = denied();
        verdict.limits.extend([exports, internal, reports]);
        assert_eq!(
            for_people(&verdict, false, Paint::OFF),
            "\
denied   by search: 0 left, come back in 840 ms (over-limit)
  per-key   allow        59 of 120 left
  search    deny         0 of 10 left, come back in 840 ms (over-limit)
  exports   shadow-deny  0 of 10 left, costs 20, no wait helps (cost-too-high)
  internal  unlimited    exempt
  reports   allow        59 of 120 left, wait 500 ms
"
        );
    }
}
