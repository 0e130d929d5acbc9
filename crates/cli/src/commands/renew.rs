//! `acequia renew`: a request is still under way.

use std::process::ExitCode;

use acequia_client::{ClientError, RenewResponse, Renewed};
use acequia_server::charges::renewed_word;
use clap::Args;
use serde::Serialize;

use super::{
    NOT_DONE, Output, SUCCESS, complain, json_line, mend,
    people::{Colour, Paint},
    settlement::AskedCharge,
};

/// Renew the slots that a request under way has taken: their time to live begins anew.
///
/// Exits with 0 if they are renewed, 1 if not, 2 if nobody could be asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia check --domain jobs tenant=t1    says the charge_id, and when it lapses
  acequia renew eu/eu-1:5f0c7d2b9a8e41c6b3d2a1908f7e6d5c
  acequia refund eu/eu-1:5f0c7d2b9a8e41c6b3d2a1908f7e6d5c    when the request is over")]
pub struct Renew {
    #[command(flatten)]
    asked: AskedCharge,
}

/// An answer with the fields of the HTTP API.
#[derive(Debug, Serialize)]
struct RenewedJson {
    renewed: &'static str,
    lapses_in_ms: u64,
}

impl Renew {
    /// Renews, prints, and returns the exit code.
    pub async fn run(self) -> ExitCode {
        let answer = match self.renew().await {
            Ok(answer) => answer,
            Err(error) => return complain(&mend(&error)),
        };
        let output = Output::new();
        let text = if self.asked.json {
            let RenewResponse { lapses_in_ms, .. } = answer;
            json_line(&RenewedJson { renewed: renewed_word(answer.renewed()), lapses_in_ms })
        } else {
            for_people(&answer, output.paint)
        };
        output.end(&text, code(answer.renewed()))
    }

    async fn renew(&self) -> Result<RenewResponse, ClientError> {
        let AskedCharge { address, deadline, charge_id, .. } = &self.asked;
        address.client(*deadline)?.renew(charge_id).await
    }
}

fn code(renewed: Renewed) -> u8 {
    if renewed == Renewed::Done { SUCCESS } else { NOT_DONE }
}

fn for_people(answer: &RenewResponse, paint: Paint) -> String {
    let ms = answer.lapses_in_ms;
    let (colour, word, says) = match answer.renewed() {
        Renewed::Done => (Colour::Green, "renewed", format!("lapses in {ms} ms")),
        Renewed::Denied => {
            let says = format!("the node has fewer slots than are taken: it lapses in {ms} ms, as before");
            (Colour::Red, "denied", says)
        }
        Renewed::Lapsed => (Colour::Red, "lapsed", "it was released, or has lapsed".to_owned()),
        Renewed::Unknown | Renewed::Unspecified => {
            (Colour::Red, "unknown", "there is no record of such a charge, or it has no slots".to_owned())
        }
        Renewed::Elsewhere => {
            let says = "another node took it: ask the node that the charge_id begins with";
            (Colour::Red, "elsewhere", says.to_owned())
        }
    };
    format!("{}  {says}\n", paint.word(colour, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_of_a_renewal_has_its_word_and_exit_code() {
        for (renewed, text, exit) in [
            (Renewed::Done, "renewed  lapses in 60000 ms\n", 0),
            (Renewed::Denied, "denied  the node has fewer slots", 1),
            (Renewed::Lapsed, "lapsed  it was released", 1),
            (Renewed::Unknown, "unknown  there is no record", 1),
            (Renewed::Elsewhere, "elsewhere  another node took it", 1),
        ] {
            let answer = RenewResponse { renewed: renewed.into(), lapses_in_ms: 60_000 };
            assert!(for_people(&answer, Paint::OFF).starts_with(text), "{renewed:?}");
            assert_eq!(code(renewed), exit, "{renewed:?}");
        }
        let json = json_line(&RenewedJson { renewed: renewed_word(Renewed::Done), lapses_in_ms: 5 });
        assert_eq!(json, "{\"renewed\":\"done\",\"lapses_in_ms\":5}\n");
    }
}
