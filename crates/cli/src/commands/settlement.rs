//! `acequia refund` and `acequia commit`: settle a charge that has a name.

use std::{process::ExitCode, time::Duration};

use acequia_client::{ClientError, Refunded, SettleResponse, Settled};
use clap::Args;
use serde::Serialize;

use super::{
    Address, NOT_DONE, Output, SUCCESS, complain, json_line, mend,
    people::{Colour, Paint, plain},
    read_duration,
};
use acequia_server::charges::settled_word;

/// The width of the longest word, so that the text after it lines up.
const WORD_WIDTH: usize = 11;

/// Give back what a check charged, into the windows that were charged.
///
/// May be repeated: a charge is given back once. Exits with 0 if it is given back, now or before. Exits with
/// 1 if it is not known (any more) or has lapsed, 2 if nobody could be asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia check --domain shop --refundable --cost 40 tenant=t1    says the charge_id
  acequia refund eu/eu-1:5f0c7d2b9a8e41c6b3d2a1908f7e6d5c")]
pub struct Refund {
    #[command(flatten)]
    asked: AskedCharge,
}

/// End a reservation with its real cost; the rest is given back.
///
/// May be repeated: a reservation ends once. Exits with 0 if it has ended, now or before. Exits with 1 if it
/// is not known (any more) or has lapsed, 2 if nobody could be asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia check --domain shop --reserve 5m --cost 60 tenant=t1    says the charge_id
  acequia commit eu/eu-1:5f0c7d2b9a8e41c6b3d2a1908f7e6d5c 25")]
pub struct Commit {
    #[command(flatten)]
    asked: AskedCharge,

    /// The real cost, in the units of the check. What is above the reservation is recorded, too.
    #[arg(value_name = "COST")]
    cost: u64,
}

/// A charge, and the node to ask.
#[derive(Args, Clone, Debug)]
pub(super) struct AskedCharge {
    #[command(flatten)]
    pub(super) address: Address,

    /// How long to wait for an answer, such as 250ms or 2s.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = read_duration)]
    pub(super) deadline: Duration,

    /// Print one JSON object, with the fields of the HTTP API.
    #[arg(long)]
    pub(super) json: bool,

    /// The name that the check gave to its charge.
    #[arg(value_name = "CHARGE_ID")]
    pub(super) charge_id: String,
}

/// An answer with the fields of the HTTP API.
#[derive(Debug, Serialize)]
struct SettledJson<'a> {
    settled: &'static str,
    refunded: Vec<RefundedJson<'a>>,
}

#[derive(Debug, Serialize)]
struct RefundedJson<'a> {
    name: &'a str,
    units: u64,
}

impl Refund {
    /// Refunds, prints, and returns the exit code.
    pub async fn run(self) -> ExitCode {
        self.asked.run(None).await
    }
}

impl Commit {
    /// Commits, prints, and returns the exit code.
    pub async fn run(self) -> ExitCode {
        self.asked.run(Some(self.cost)).await
    }
}

impl AskedCharge {
    async fn run(self, cost: Option<u64>) -> ExitCode {
        let answer = match self.settle(cost).await {
            Ok(answer) => answer,
            Err(error) => return complain(&fault(&error)),
        };
        let output = Output::new();
        let text = if self.json {
            json_line(&SettledJson::new(&answer))
        } else {
            for_people(&answer, cost, output.paint)
        };
        output.end(&text, code(answer.settled()))
    }

    /// Refunds if there is no cost, and otherwise commits.
    async fn settle(&self, cost: Option<u64>) -> Result<SettleResponse, ClientError> {
        let client = self.address.client(self.deadline)?;
        match cost {
            None => client.refund(&self.charge_id).await,
            Some(cost) => client.commit(&self.charge_id, cost).await,
        }
    }
}

impl<'a> SettledJson<'a> {
    fn new(answer: &'a SettleResponse) -> Self {
        let one = |one: &'a Refunded| RefundedJson { name: &one.name, units: one.units };
        Self { settled: settled_word(answer.settled()), refunded: answer.refunded.iter().map(one).collect() }
    }
}

/// Describes a fault. Unlike with a check, a lost answer does no harm here.
fn fault(error: &ClientError) -> String {
    match error {
        ClientError::Deadline { address, deadline } => format!(
            "no answer from {address} in {deadline:?} (--deadline). Say it again: what was done is not done twice."
        ),
        error => mend(error),
    }
}

fn code(settled: Settled) -> u8 {
    match settled {
        Settled::Done | Settled::Before | Settled::Forwarded => SUCCESS,
        Settled::Unspecified | Settled::Lapsed | Settled::Unknown => NOT_DONE,
    }
}

fn for_people(answer: &SettleResponse, cost: Option<u64>, paint: Paint) -> String {
    let back = came_back(&answer.refunded);
    let (colour, word, says) = match (answer.settled(), cost) {
        (Settled::Done, None) => {
            let nothing = "nothing: the windows that were charged have ended, or the buckets are full again";
            (Colour::Green, "refunded", back.unwrap_or_else(|| nothing.to_owned()))
        }
        (Settled::Done, Some(cost)) => {
            let back = back.map_or_else(|| "nothing came back".to_owned(), |back| format!("back: {back}"));
            (Colour::Green, "committed", format!("{cost}; {back}"))
        }
        (Settled::Before, _) => {
            (Colour::Green, "before", "it was refunded or committed before; nothing has changed".to_owned())
        }
        (Settled::Forwarded, _) => {
            (Colour::Yellow, "forwarded", "another node made the charge, and is told to settle it".to_owned())
        }
        (Settled::Lapsed, _) => {
            (Colour::Red, "lapsed", "nobody ended the reservation in time; nothing has changed".to_owned())
        }
        (Settled::Unknown | Settled::Unspecified, _) => {
            let says = "there is no record of such a charge, or no more; nothing has changed".to_owned();
            (Colour::Red, "unknown", says)
        }
    };
    let padding = " ".repeat(WORD_WIDTH - word.len());
    format!("{}{padding}{}\n", paint.word(colour, word), plain(&says))
}

/// The units that came back, and their limits; `None` if none did.
fn came_back(refunded: &[Refunded]) -> Option<String> {
    let each = refunded.iter().filter(|one| one.units > 0);
    let each: Vec<_> = each.map(|one| format!("{} to {}", one.units, one.name)).collect();
    (!each.is_empty()).then(|| each.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(settled: Settled, refunded: &[(&str, u64)]) -> SettleResponse {
        let one = |(name, units): &(&str, u64)| Refunded { name: (*name).to_owned(), units: *units };
        SettleResponse { settled: settled.into(), refunded: refunded.iter().map(one).collect() }
    }

    fn says(answer: &SettleResponse, cost: Option<u64>) -> String {
        for_people(answer, cost, Paint::OFF)
    }

    #[test]
    fn a_refund_is_shown_with_the_limits_it_went_to() {
        let both = answer(Settled::Done, &[("jobs", 35), ("old", 0), ("per-key\x07", 7)]);
        assert_eq!(says(&both, None), "refunded   35 to jobs, 7 to per-key\\u{7}\n");
        assert_eq!(says(&both, Some(25)), "committed  25; back: 35 to jobs, 7 to per-key\\u{7}\n");
        let nothing = answer(Settled::Done, &[("jobs", 0)]);
        assert_eq!(says(&nothing, Some(60)), "committed  60; nothing came back\n");
        assert!(says(&nothing, None).starts_with("refunded   nothing: the windows"));
    }

    #[test]
    fn every_result_of_a_settlement_has_its_word_and_exit_code() {
        for (settled, word, exit) in [
            (Settled::Done, "refunded   ", 0),
            (Settled::Before, "before     it was refunded or committed before", 0),
            (Settled::Forwarded, "forwarded  another node", 0),
            (Settled::Lapsed, "lapsed     nobody ended", 1),
            (Settled::Unknown, "unknown    there is no record", 1),
            (Settled::Unspecified, "unknown    there is no record", 1),
        ] {
            assert!(says(&answer(settled, &[]), None).starts_with(word), "{settled:?}");
            assert_eq!(code(settled), exit, "{settled:?}");
        }
    }

    #[test]
    fn the_json_of_a_settlement_is_as_in_the_http_api() {
        assert_eq!(
            json_line(&SettledJson::new(&answer(Settled::Done, &[("jobs", 40)]))),
            "{\"settled\":\"done\",\"refunded\":[{\"name\":\"jobs\",\"units\":40}]}\n"
        );
        assert_eq!(
            json_line(&SettledJson::new(&answer(Settled::Lapsed, &[]))),
            "{\"settled\":\"lapsed\",\"refunded\":[]}\n"
        );
    }

    #[test]
    fn a_settlement_without_an_answer_may_be_repeated() {
        let late =
            ClientError::Deadline { address: "node:8081".to_owned(), deadline: Duration::from_secs(1) };
        assert_eq!(
            fault(&late),
            "no answer from node:8081 in 1s (--deadline). Say it again: what was done is not done twice."
        );
    }
}
