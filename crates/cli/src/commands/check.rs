//! `acequia check`: asks, charges, and reports with the exit code.

use std::{process::ExitCode, time::Duration};

use acequia_client::{CheckResponse, ClientError, Lapse, LimitResult, Outcome, Question};
use clap::{Args, builder::NonEmptyStringValueParser};

use super::{
    ALLOWED, Asking, DENIED, Output, complain, json_line, mend,
    people::{Align, Cell, Paint, duration, table},
    read_duration,
    verdict::{
        VerdictJson, charge_id, class, come_back, counted, headline, left, line, outcome_colour,
        outcome_word, reason_word,
    },
};

/// May this request pass? An allowed request is charged.
///
/// Exits with 0 if it is allowed, 1 if it is denied, 2 if nobody could say.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia check --domain shop api_key=k1 route=/search
  acequia check --domain shop --cost 10 tenant=t1
  acequia check --domain ai --cost 0 tenant=t1             holds what is expected; then: acequia commit CHARGE_ID COST
  acequia check --domain shop api_key=k1 + ip=192.0.2.7    two descriptors: both must pass
  acequia check --domain shop --id order-17 tenant=t1      may be asked again: charged once
  acequia check --domain shop --refundable tenant=t1       then: acequia refund CHARGE_ID
  acequia check --domain shop --reserve 5m --cost 60 tenant=t1    then: acequia commit CHARGE_ID COST")]
pub struct Check {
    #[command(flatten)]
    asking: Asking,

    #[command(flatten)]
    charging: Charging,

    /// Also print the verdict of each limit if the request is allowed.
    #[arg(long, short)]
    verbose: bool,
}

/// Options for remembering a charge.
#[derive(Args, Clone, Debug, Default)]
struct Charging {
    /// Your own name for this request, unique in the domain. A repeated request with the same name is charged
    /// once.
    // An empty id would be no id: a caller with an unset variable would wrongly expect a single charge.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,

    /// Print the charge_id, which a refund needs.
    #[arg(long)]
    refundable: bool,

    /// Charge until the real cost is committed, or for this long, 1ms to 1h; then the reservation lapses and
    /// is given back.
    #[arg(long, value_name = "TTL", value_parser = read_duration)]
    reserve: Option<Duration>,

    /// Keep a reservation charged when it lapses.
    #[arg(long, requires = "reserve")]
    keep: bool,
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
            for_people(&verdict, &self.charging, self.verbose, output.paint)
        };
        output.end(&text, if verdict.allowed { ALLOWED } else { DENIED })
    }

    /// Asks. Where no limit of the domain has `expect`, a node refuses a check of cost 0: then this only looks.
    async fn ask(&self) -> Result<CheckResponse, ClientError> {
        let question = self.charging.name(self.asking.question()?);
        let client = self.asking.client()?;
        match client.check(question).await {
            Err(refused @ ClientError::Refused { .. }) if self.may_look() => {
                let peek = client.peek(self.asking.look()?).await;
                peek.ok().and_then(|peek| peek.verdict).ok_or(refused)
            }
            answer => answer,
        }
    }

    /// Whether there is nothing to charge, and nobody asks for a charge.
    fn may_look(&self) -> bool {
        self.asking.cost == 0 && !self.charging.is_asked_for()
    }
}

impl Charging {
    /// The question, with these options.
    fn name(&self, question: Question) -> Question {
        let question = match &self.id {
            Some(id) => question.id(id),
            None => question,
        };
        let question = if self.refundable { question.refundable() } else { question };
        let on_lapse = if self.keep { Lapse::Keep } else { Lapse::Release };
        match self.reserve {
            Some(ttl) => question.reserve(ttl, on_lapse),
            None => question,
        }
    }

    fn is_asked_for(&self) -> bool {
        self.id.is_some() || self.refundable || self.reserve.is_some()
    }

    /// Describes the charge: a line for each fact.
    fn says(&self, verdict: &CheckResponse) -> String {
        let Some(id) = charge_id(verdict) else {
            let is_free = self.is_asked_for() && verdict.allowed;
            return if is_free {
                line("nothing was charged, so there is no charge_id")
            } else {
                String::new()
            };
        };
        let mut says = line(&format!("charge_id {id}"));
        if verdict.is_repeat {
            says.push_str(&line("repeat: this id was charged before, and is not charged again"));
        }
        if verdict.charged > 0 {
            let then = if self.keep { "stays charged" } else { "is given back" };
            let time = duration(rounded_down(verdict.lapses_in_ms));
            says.push_str(&line(&format!("reserved {}, lapses in {time} and then {then}", verdict.charged)));
        }
        says
    }
}

/// Rounds down to milliseconds that [`duration`] shows exactly, so that a commit within the shown time is not
/// late.
fn rounded_down(ms: u64) -> u64 {
    let step = match ms {
        0..1_000 => 1,
        1_000..10_000 => 100,
        _ => 1_000,
    };
    ms - ms % step
}

fn for_people(verdict: &CheckResponse, charging: &Charging, verbose: bool, paint: Paint) -> String {
    let mut text = headline(verdict, paint);
    text.push_str(&charging.says(verdict));
    if verbose || !verdict.allowed {
        let rows: Vec<_> = verdict.limits.iter().map(row).collect();
        text.push_str(&table(&rows, [Align::Left; 3], 2, paint));
    }
    text
}

pub(super) fn row(limit: &LimitResult) -> [Cell; 3] {
    let outcome = limit.outcome();
    let verdict = Cell::new(outcome_word(outcome)).coloured(outcome_colour(outcome));
    [Cell::new(&limit.name), verdict, Cell::new(says(limit))]
}

/// One limit's verdict in words.
fn says(limit: &LimitResult) -> String {
    let Some(left) = left(limit) else { return "exempt".to_owned() };
    let mut says = format!("{left} of {} left", counted(limit.budget, Some(limit)));
    if let Some(class) = class(limit) {
        says.push_str(&format!(", class {class}"));
    }
    if limit.cost != 1 {
        says.push_str(&format!(", costs {}", limit.cost));
    }
    if limit.owed > 0 {
        says.push_str(&format!(", owes {}", limit.owed));
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
    use acequia_api::acequia::v1::{CheckRequest, Reserve};
    use acequia_client::Reason;
    use clap::Parser;

    use super::{
        super::verdict::examples::{allowed, denied, per_key, plans, reserved, search},
        *,
    };

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        check: Check,
    }

    fn read(line: &str) -> Result<Check, clap::Error> {
        let words = "check --domain shop a=b".split(' ').chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.check)
    }

    fn shown(verdict: &CheckResponse, verbose: bool) -> String {
        for_people(verdict, &Charging::default(), verbose, Paint::OFF)
    }

    #[test]
    fn options_of_an_id_or_a_reservation_are_sent() {
        let request = |line: &str| {
            let check = read(line).expect(line);
            CheckRequest::from(check.charging.name(check.asking.question().expect("a question")))
        };
        let plain = request("");
        assert_eq!((plain.id.as_str(), plain.refundable, plain.reserve), ("", false, None));
        let named = request("--id order-17 --refundable");
        assert_eq!((named.id.as_str(), named.refundable), ("order-17", true));
        let reserve = |lapse: Lapse| Some(Reserve { ttl_ms: 90_000, on_lapse: lapse.into(), at_most: false });
        assert_eq!(request("--reserve 90s").reserve, reserve(Lapse::Release));
        assert_eq!(request("--reserve 90s --keep").reserve, reserve(Lapse::Keep));
        let looks = |line: &str| read(line).expect(line).may_look();
        assert!(looks("--cost 0") && !looks("") && !looks("--cost 0 --id order-17"));
        for (line, why) in [("--keep", "--reserve"), ("--reserve soon", "250ms"), ("--id=", "--id")] {
            let error = read(line).expect_err(line).to_string();
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn a_charge_with_an_id_is_shown_with_its_record() {
        let charging = Charging { reserve: Some(Duration::from_secs(600)), ..Charging::default() };
        assert_eq!(
            for_people(&reserved(), &charging, false, Paint::OFF),
            "\
allowed  59 left in per-key
         charge_id eu/eu-1:00000000000000000000000000000005
         repeat: this id was charged before, and is not charged again
         reserved 60, lapses in 9 min 59 s and then is given back
"
        );
        let keeping = Charging { keep: true, ..charging.clone() };
        assert!(keeping.says(&reserved()).ends_with("and then stays charged\n"));
        assert_eq!(charging.says(&allowed()), "         nothing was charged, so there is no charge_id\n");
        assert_eq!(charging.says(&denied()), "");
    }

    #[test]
    fn a_remaining_time_of_a_reservation_is_rounded_down() {
        for (ms, said) in [(1, 1), (999, 999), (1_999, 1_900), (59_999, 59_000), (3_600_000, 3_600_000)] {
            assert_eq!(rounded_down(ms), said);
        }
    }

    #[test]
    fn the_class_of_a_request_is_shown_with_its_limit() {
        assert_eq!(says(&plans()), "0 of 10 left, class free, come back in 840 ms (class-reserve)");
    }

    #[test]
    fn the_unit_of_a_limit_is_shown_with_its_numbers_and_moves_no_cursor() {
        let of = |unit: &str| LimitResult { unit: unit.to_owned(), ..per_key() };
        assert_eq!(says(&of("tokens")), "59 of 120 tokens left");
        assert_eq!(says(&of("\x1b[2J")), "59 of 120 \\u{1b}[2J left");
    }

    #[test]
    fn an_allowed_check_is_one_line_without_detail() {
        assert_eq!(shown(&allowed(), false), "allowed  59 left in per-key\n");
        assert_eq!(
            shown(&allowed(), true),
            "allowed  59 left in per-key\n  per-key  allow  59 of 120 left\n"
        );
    }

    #[test]
    fn a_denied_check_lists_each_limits_verdict() {
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
            shown(&verdict, false),
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
