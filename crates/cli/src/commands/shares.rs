//! What a region may still spend of the cells that a request hits: for people and as JSON.

use acequia_client::{Holding, Loan, PeerShare, PeerWord, Share};
use serde::Serialize;

use super::people::{a_second, duration, held, measured, plain};

/// A paragraph for every cell: what the region may spend, what of it ends when, the others' last reports, and
/// the price of a longer cut. `names` are the names of the verdict's limits.
pub(super) fn for_people(names: &[&str], shares: &[Share]) -> String {
    let paragraph = |share: &Share| {
        let name = names.get(share.limit as usize).copied().unwrap_or("a limit");
        let mut lines = vec![headline(name, share)];
        lines.push(format!("  own share  {}", words(share, share.standing)));
        lines.extend(share.loans.iter().map(|loan| loan_line(share, loan)));
        lines.extend(share.peers.iter().map(peer_line));
        lines.push(format!("  {}", cut(share)));
        lines.iter().map(|line| plain(line) + "\n").collect::<String>()
    };
    shares.iter().map(paragraph).collect::<Vec<_>>().join("\n")
}

/// Whether the shared limit has a rate.
fn has_rate(share: &Share) -> bool {
    let parts = [share.standing, share.effective, share.lent, share.borrowed];
    parts.iter().flatten().any(|part| part.rate_milli > 0)
}

fn words(share: &Share, part: Option<Holding>) -> String {
    match part.unwrap_or_default() {
        Holding { rate_milli: 0, units: 0 } => "0".to_owned(),
        some => held(has_rate(share), Some(some)),
    }
}

fn headline(name: &str, share: &Share) -> String {
    let Share { region, left, demand_milli, .. } = share;
    let may = words(share, share.effective);
    let window = match share.window_ends_ms {
        Some(ms) => format!(" until the window ends in {}", duration(ms)),
        None => String::new(),
    };
    format!("{name}: {region} may use {may}{window}; {left} left now, asked for {}", a_second(*demand_milli))
}

fn loan_line(share: &Share, loan: &Loan) -> String {
    let Loan { region, is_lent, part, ends_ms } = loan;
    let (part, ends) = (words(share, *part), duration(*ends_ms));
    match is_lent {
        true => format!("  lent       {part} to {region}; comes back in {ends} unless it is renewed"),
        false => format!("  borrowed   {part} of {region}; ends in {ends} unless it is renewed"),
    }
}

fn peer_line(peer: &PeerShare) -> String {
    let heard = match (peer.reached, peer.heard_ms_ago) {
        (true, _) => match peer.round_trip_us {
            Some(us) => format!("reached, {} there and back", measured(us)),
            None => "reached".to_owned(),
        },
        (false, Some(ms)) => format!("not reached, last heard {} ago", duration(ms)),
        (false, None) => "not reached, never heard since the node started".to_owned(),
    };
    let word = match &peer.word {
        None => "said nothing of this cell".to_owned(),
        Some(PeerWord { said_ms_ago, holds, left, demand_milli, owed }) => {
            let left = left.map_or(String::new(), |left| format!(", {left} left"));
            let holds = match holds.unwrap_or_default() {
                Holding { rate_milli: 0, units } => units.to_string(),
                Holding { rate_milli, .. } => a_second(rate_milli),
            };
            let ago = duration(*said_ms_ago);
            let asked = a_second(*demand_milli);
            let owes = match owed {
                0 => String::new(),
                owed => format!(", owes {owed}, so that other regions keep {owed} back"),
            };
            format!("said {ago} ago: may use {holds}{left}, asked for {asked}{owes}")
        }
    };
    format!("  {:<9}  {heard}; {word}", peer.region)
}

/// The price of a longer cut from the regions that are not reached, or from all regions if all are reached.
fn cut(share: &Share) -> String {
    let lost: Vec<&PeerShare> = share.peers.iter().filter(|peer| !peer.reached).collect();
    let (who, is_cut) = match lost.as_slice() {
        [] => ("all others".to_owned(), false),
        lost => (lost.iter().map(|peer| peer.region.as_str()).collect::<Vec<_>>().join(", "), true),
    };
    let begin = if is_cut { format!("while {who} cannot be reached") } else { format!("were {who} cut off") };
    if share.window_ends_ms.is_some() {
        return format!(
            "{begin}: nothing changes until the window ends, and nothing comes from there; the next begins with {}",
            words(share, share.standing)
        );
    }
    let crosses = |loan: &&Loan| !is_cut || lost.iter().any(|peer| peer.region == loan.region);
    let across: Vec<&Loan> = share.loans.iter().filter(crosses).collect();
    let sum = |lent: bool| {
        let parts = across.iter().filter(|loan| loan.is_lent == lent).filter_map(|loan| loan.part);
        parts.fold(Holding::default(), |all, part| Holding {
            rate_milli: all.rate_milli.saturating_add(part.rate_milli),
            units: all.units.saturating_add(part.units),
        })
    };
    let now = share.effective.unwrap_or_default();
    let (lent, borrowed) = (sum(true), sum(false));
    let then = Holding {
        rate_milli: now.rate_milli.saturating_add(lent.rate_milli).saturating_sub(borrowed.rate_milli),
        units: now.units.saturating_add(lent.units).saturating_sub(borrowed.units),
    };
    match across.iter().map(|loan| loan.ends_ms).max() {
        None => format!(
            "{begin}: it goes on with {}, and what is asked beyond is denied",
            words(share, Some(now))
        ),
        Some(ms) => format!(
            "{begin}: after {} it may use {}, and what is asked beyond is denied",
            duration(ms),
            words(share, Some(then))
        ),
    }
}

/// A share as JSON, with the names of `proto/acequia/v1/share.proto`.
#[derive(Debug, Serialize)]
pub(super) struct ShareJson<'a> {
    limit: &'a str,
    region: &'a str,
    standing: HoldingJson,
    lent: HoldingJson,
    borrowed: HoldingJson,
    effective: HoldingJson,
    left: u64,
    demand_milli: u64,
    window_ends_ms: Option<u64>,
    loans: Vec<LoanJson<'a>>,
    peers: Vec<PeerJson<'a>>,
}

/// A part of a limit, which may be empty.
#[derive(Debug, Serialize)]
pub(super) struct HoldingJson {
    rate_milli: u64,
    units: u64,
}

#[derive(Debug, Serialize)]
struct LoanJson<'a> {
    region: &'a str,
    is_lent: bool,
    part: HoldingJson,
    ends_ms: u64,
}

#[derive(Debug, Serialize)]
struct PeerJson<'a> {
    region: &'a str,
    reached: bool,
    heard_ms_ago: Option<u64>,
    round_trip_us: Option<u64>,
    word: Option<WordJson>,
}

#[derive(Debug, Serialize)]
struct WordJson {
    said_ms_ago: u64,
    holds: HoldingJson,
    left: Option<u64>,
    demand_milli: u64,
    owed: u64,
}

impl<'a> ShareJson<'a> {
    pub(super) fn new(names: &[&'a str], share: &'a Share) -> Self {
        Self {
            limit: names.get(share.limit as usize).copied().unwrap_or_default(),
            region: &share.region,
            standing: HoldingJson::new(share.standing),
            lent: HoldingJson::new(share.lent),
            borrowed: HoldingJson::new(share.borrowed),
            effective: HoldingJson::new(share.effective),
            left: share.left,
            demand_milli: share.demand_milli,
            window_ends_ms: share.window_ends_ms,
            loans: share.loans.iter().map(LoanJson::new).collect(),
            peers: share.peers.iter().map(PeerJson::new).collect(),
        }
    }
}

impl HoldingJson {
    pub(super) fn new(holding: Option<Holding>) -> Self {
        let Holding { rate_milli, units } = holding.unwrap_or_default();
        Self { rate_milli, units }
    }
}

impl<'a> LoanJson<'a> {
    fn new(loan: &'a Loan) -> Self {
        let Loan { region, is_lent, part, ends_ms } = loan;
        Self { region, is_lent: *is_lent, part: HoldingJson::new(*part), ends_ms: *ends_ms }
    }
}

impl<'a> PeerJson<'a> {
    fn new(peer: &'a PeerShare) -> Self {
        let word = peer.word.as_ref().map(|word| WordJson {
            said_ms_ago: word.said_ms_ago,
            holds: HoldingJson::new(word.holds),
            left: word.left,
            demand_milli: word.demand_milli,
            owed: word.owed,
        });
        Self {
            region: &peer.region,
            reached: peer.reached,
            heard_ms_ago: peer.heard_ms_ago,
            round_trip_us: peer.round_trip_us,
            word,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn rate(rate: u64, units: u64) -> Option<Holding> {
        Some(Holding { rate_milli: rate * 1_000, units })
    }

    fn loan(region: &str, is_lent: bool, part: Option<Holding>, ends_ms: u64) -> Loan {
        Loan { region: region.to_owned(), is_lent, part, ends_ms }
    }

    fn peer(region: &str) -> PeerShare {
        PeerShare {
            region: region.to_owned(),
            reached: true,
            heard_ms_ago: Some(90),
            round_trip_us: Some(80_300),
            word: None,
        }
    }

    /// eu holds loans of both others, and has lent to ap.
    pub(in crate::commands) fn bucket() -> Share {
        let word =
            PeerWord { said_ms_ago: 210, holds: rate(12, 0), left: Some(4), demand_milli: 3_500, owed: 0 };
        Share {
            limit: 0,
            region: "eu".to_owned(),
            standing: rate(20, 40),
            lent: rate(2, 4),
            borrowed: rate(15, 30),
            effective: rate(33, 66),
            left: 7,
            demand_milli: 41_000,
            window_ends_ms: None,
            loans: vec![
                loan("ap", true, rate(2, 4), 3_100),
                loan("ap", false, rate(5, 10), 2_600),
                loan("us", false, rate(10, 20), 2_100),
            ],
            peers: vec![PeerShare { word: Some(word), ..peer("ap") }, peer("us")],
        }
    }

    fn window() -> Share {
        let units = |units| Some(Holding { rate_milli: 0, units });
        Share {
            limit: 1,
            region: "eu".to_owned(),
            standing: units(333),
            effective: units(400),
            left: 12,
            window_ends_ms: Some(1_240_000),
            peers: vec![PeerShare { reached: false, heard_ms_ago: None, round_trip_us: None, ..peer("us") }],
            ..Share::default()
        }
    }

    #[test]
    fn a_share_is_shown_with_its_loans_ends_and_peers() {
        let names = ["per-key", "monthly"];
        assert_eq!(
            for_people(&names, &[bucket(), window()]),
            "\
per-key: eu may use 33/s + 66; 7 left now, asked for 41/s
  own share  20/s + 40
  lent       2/s + 4 to ap; comes back in 3.1 s unless it is renewed
  borrowed   5/s + 10 of ap; ends in 2.6 s unless it is renewed
  borrowed   10/s + 20 of us; ends in 2.1 s unless it is renewed
  ap         reached, 80.3 ms there and back; said 210 ms ago: may use 12/s, 4 left, asked for 3.5/s
  us         reached, 80.3 ms there and back; said nothing of this cell
  were all others cut off: after 3.1 s it may use 20/s + 40, and what is asked beyond is denied

monthly: eu may use 400 until the window ends in 20 min 40 s; 12 left now, asked for 0/s
  own share  333
  us         not reached, never heard since the node started; said nothing of this cell
  while us cannot be reached: nothing changes until the window ends, and nothing comes from there; the next begins with 333
"
        );
    }

    #[test]
    fn a_share_shows_what_a_cut_would_cost() {
        let mut share = bucket();
        share.peers[1].reached = false;
        assert_eq!(
            cut(&share),
            "while us cannot be reached: after 2.1 s it may use 23/s + 46, and what is asked beyond is denied"
        );
        share.loans.clear();
        share.effective = share.standing;
        assert_eq!(
            cut(&share),
            "while us cannot be reached: it goes on with 20/s + 40, and what is asked beyond is denied"
        );
    }
}
