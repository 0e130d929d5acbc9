//! `acequia report`: records a cost that was spent already.

use std::process::ExitCode;

use acequia_client::{CheckResponse, ClientError};
use clap::{Args, builder::NonEmptyStringValueParser};

use super::{
    Asking, Output, SUCCESS,
    check::row,
    complain, json_line, mend,
    people::{Align, Colour, Paint, table},
    verdict::{VerdictJson, line},
};

/// Records a cost that was spent already, on every limit that matches, whatever is left.
///
/// A limit that does not have so much owes the rest: until the debt is gone, nothing passes. Exits with 0 if
/// the cost is recorded, 2 if nobody could be told.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia report --domain ai --cost 1200 tenant=t1 model=m7
  acequia report --domain ai --cost 1200 --id answer-17 tenant=t1    may be told again: recorded once")]
pub struct Report {
    #[command(flatten)]
    asking: Asking,

    /// Your own name for this report, unique in the domain. A repeated report with the same name is recorded
    /// once.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
}

impl Report {
    /// Reports, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        let answer = match self.tell().await {
            Ok(answer) => answer,
            Err(error) => return complain(&mend(&error)),
        };
        let output = Output::new();
        let text = if self.asking.json {
            json_line(&VerdictJson::new(&answer))
        } else {
            for_people(&answer, self.asking.cost, output.paint)
        };
        output.end(&text, SUCCESS)
    }

    async fn tell(&self) -> Result<CheckResponse, ClientError> {
        let question = self.asking.question()?;
        let question = match &self.id {
            Some(id) => question.id(id),
            None => question,
        };
        self.asking.client()?.report(question).await
    }
}

fn for_people(answer: &CheckResponse, cost: u64, paint: Paint) -> String {
    if answer.limits.is_empty() {
        return format!("{}  no limit matches\n", paint.word(Colour::Yellow, "nothing"));
    }
    let mut text = format!("{}  {cost}\n", paint.word(Colour::Green, "recorded"));
    if answer.is_repeat {
        text.push_str(&line("repeat: this id was recorded before, and is not recorded again"));
    }
    let rows: Vec<_> = answer.limits.iter().map(row).collect();
    text.push_str(&table(&rows, [Align::Left; 3], 2, paint));
    text
}

#[cfg(test)]
mod tests {
    use acequia_client::LimitResult;

    use super::{
        super::verdict::examples::{denied, search},
        *,
    };

    #[test]
    fn a_report_says_what_each_limit_owes() {
        let limits = vec![LimitResult { owed: 200, cost: 1_200, remaining: 0, ..search() }];
        let text = for_people(&CheckResponse { limits, ..denied() }, 1_200, Paint::OFF);
        assert!(text.starts_with("recorded  1200\n"), "{text}");
        assert!(text.contains("search") && text.contains("owes 200"), "{text}");
    }

    #[test]
    fn a_report_that_no_limit_matches_says_so() {
        let text = for_people(&CheckResponse::default(), 5, Paint::OFF);
        assert_eq!(text, "nothing  no limit matches\n");
    }
}
