//! How many tokens a region is believed to have lent, however often it lends.
//!
//! A loan of a bucket brings tokens that its giver had. A giver that lies could lend, let the loan end, and
//! lend the same tokens again. So each giver's region has a meter here, sized by the region's standing share.
//! Tokens of its loans are charged to the meter, and tokens that go back are credited. Tokens that do not fit
//! are owed from the beginning, as if the loan had come without them. An honest giver mostly fits: its own
//! tokens come back no faster than its part of the rate.
//!
//! Sliding windows need no meter: units used of an ended loan stay in the holder's own window as long as that
//! window lasts.
//!
//! A meter lives as long as the cell's account, which is dropped when nobody has asked for the cell for a
//! while.

use acequia_limits::{Algorithm, Part, UNITS_MAX, meter::Meter};
use acequia_rights::MemberId;

/// The tolerance for clock drift and messages under way: one part in `LENIENT`, plus one, is believed beyond
/// the share.
const LENIENT: u64 = 256;

/// What one region's loans brought.
#[derive(Clone, Copy, Debug)]
struct Lender {
    region: MemberId,
    meter: Meter,
    tat: u128,
}

/// What all regions' loans of a cell brought.
#[derive(Debug, Default)]
pub(super) struct Believed(Vec<Lender>);

impl Believed {
    /// Returns how many of a loan's tokens are believed, and counts them as lent. `stands` is the standing
    /// share of the giver's region.
    pub(super) fn take(
        &mut self,
        region: MemberId,
        stands: Part,
        tokens: u64,
        global: &Algorithm,
        steady_ns: u64,
    ) -> u64 {
        let Some(meter) = meter_of(global, stands) else { return tokens };
        let lender = self.lender(region, meter, steady_ns);
        let verdict = meter.probe(lender.tat, steady_ns, tokens);
        let believed = if verdict.allowed { tokens } else { verdict.remaining.min(tokens) };
        lender.tat = meter.charge(lender.tat, steady_ns, believed);
        believed
    }

    /// Notes that `tokens` go back to the giver.
    pub(super) fn give_back(&mut self, region: MemberId, tokens: u64, steady_ns: u64) {
        if let Some(lender) = self.0.iter_mut().find(|lender| lender.region == region) {
            lender.tat = lender.meter.forgive(lender.tat, steady_ns, tokens);
        }
    }

    /// Heap bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Lender>()
    }

    /// The region's meter, adjusted to its present standing share.
    fn lender(&mut self, region: MemberId, meter: Meter, steady_ns: u64) -> &mut Lender {
        let place = self.0.iter().position(|lender| lender.region == region).unwrap_or(self.0.len());
        if place == self.0.len() {
            self.0.push(Lender { region, meter, tat: 0 });
        }
        let lender = &mut self.0[place];
        if lender.meter != meter {
            lender.tat = meter.convert(&lender.meter, lender.tat, steady_ns);
            lender.meter = meter;
        }
        lender
    }
}

/// How tokens come back to a region with this part of a bucket; `None` if the limit is not a bucket.
fn meter_of(global: &Algorithm, stands: Part) -> Option<Meter> {
    let (Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter)) = global else { return None };
    let rate = stands.rate.saturating_add(stands.rate / LENIENT as u32).saturating_add(1);
    let units = stands.units.saturating_add(stands.units / LENIENT + 1).min(UNITS_MAX);
    Some(meter.local(Part { rate, units }, 0))
}

#[cfg(test)]
mod tests {
    use acequia_limits::{Limit, RATE_PARTS};

    use super::*;

    const S: u64 = 1_000_000_000;
    const HALF: Part = Part { rate: RATE_PARTS / 2, units: 50 };
    const LIAR: MemberId = MemberId(7);

    fn algorithm(yaml: &str) -> Algorithm {
        let json = format!(r#"{{"name":"l","domain":"d",{yaml}}}"#);
        Limit::new(serde_json::from_str(&json).expect("a spec")).expect("a limit").algorithm
    }

    /// What a giver brings in `seconds` if it lends 50 tokens ten times a second, and every loan ends or is
    /// given back.
    fn brings(bucket: &Algorithm, seconds: u64, gives_back: bool) -> u64 {
        let mut believed = Believed::default();
        let mut brought = 0;
        for tenth in 1..=10 * seconds {
            let now_ns = tenth * S / 10;
            let tokens = believed.take(LIAR, HALF, 50, bucket, now_ns);
            if gives_back {
                believed.give_back(LIAR, tokens, now_ns);
            } else {
                brought += tokens;
            }
        }
        brought
    }

    #[test]
    fn tokens_believed_from_a_lender_are_bounded_by_its_part() {
        let bucket = algorithm(r#""token_bucket":{"rate":"10/s","burst":100}"#);
        let brought = brings(&bucket, 100, false);
        // The giver's tokens, and what came back to it in 100 s.
        let most = 50 + 5 * 100;
        assert!((most - 5..=most + most / 100).contains(&brought), "{brought} of {most}");
        assert_eq!(brings(&bucket, 100, true), 0);
    }

    #[test]
    fn tokens_given_back_to_a_lender_are_believed_again() {
        let bucket = algorithm(r#""token_bucket":{"rate":"10/h","burst":100}"#);
        let mut believed = Believed::default();
        for second in 1..100 {
            let now_ns = second * S;
            assert_eq!(believed.take(LIAR, HALF, 50, &bucket, now_ns), 50, "{second}");
            assert!(believed.take(LIAR, HALF, 50, &bucket, now_ns) <= 1, "{second}");
            // Each region has its own meter.
            assert_eq!(believed.take(MemberId(8), HALF, 5, &bucket, now_ns), 5);
            believed.give_back(LIAR, 51, now_ns);
            believed.give_back(MemberId(8), 5, now_ns);
        }
        // Debt after a limit is lowered is no reason to refuse a loan; only its tokens are refused.
        believed.take(LIAR, HALF, 50, &bucket, 100 * S);
        let lowered = Part { units: 5, ..HALF };
        assert_eq!(believed.take(LIAR, lowered, 0, &bucket, 100 * S), 0);
        assert_eq!(believed.take(LIAR, lowered, 5, &bucket, 100 * S), 0);
    }
}
