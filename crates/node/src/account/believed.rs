//! What a region is believed to have lent, however often it lends.
//!
//! A loan brings units that its giver had. A giver that lies could lend, let the loan end, and lend the same units again. So each
//! giver's region has a meter here, with the part of the limit that stands for it: what its loans bring is charged there, and what
//! goes back is given back. Whatever does not fit is refused. An honest giver fits: what it can lend comes back to it no faster than
//! its part of the rate, and a sliding window lets it lend again what was used only when a window has passed.
//!
//! A meter lives as long as the cell's account, which is gone when nobody has asked for the cell for a while.

use acequia_limits::{Algorithm, Part, Rate, UNITS_MAX, meter::Meter};
use acequia_rights::Region;

/// Clocks drift, and words are under way: one part in so many, and one, is believed beyond.
const LENIENT: u64 = 256;

/// What one region's loans brought.
#[derive(Clone, Copy, Debug)]
struct Lender {
    region: Region,
    meter: Meter,
    tat: u128,
}

/// What all regions' loans of a cell brought.
#[derive(Debug, Default)]
pub(super) struct Believed(Vec<Lender>);

impl Believed {
    /// Whether a loan may bring so many units, of which `stands` is what stands for its giver's region: the most that it may where not.
    pub(super) fn may_bring(
        &mut self,
        (region, stands): (Region, Part),
        units: u64,
        global: &Algorithm,
        steady_ns: u64,
    ) -> Result<(), u64> {
        let Some(meter) = meter_of(global, stands) else { return Ok(()) };
        let lender = self.lender(region, meter, steady_ns);
        let verdict = meter.probe(lender.tat, steady_ns, units);
        if verdict.allowed { Ok(()) } else { Err(verdict.remaining) }
    }

    /// It brings them.
    pub(super) fn bring(&mut self, region: Region, units: u64, steady_ns: u64) {
        if let Some(lender) = self.0.iter_mut().find(|lender| lender.region == region) {
            lender.tat = lender.meter.charge(lender.tat, steady_ns, units);
        }
    }

    /// So many units go back to the giver.
    pub(super) fn give_back(&mut self, region: Region, units: u64, steady_ns: u64) {
        if let Some(lender) = self.0.iter_mut().find(|lender| lender.region == region) {
            lender.tat = lender.meter.forgive(lender.tat, steady_ns, units);
        }
    }

    /// Bytes beside itself.
    pub(super) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Lender>()
    }

    /// The region's meter, with what stands for it now.
    fn lender(&mut self, region: Region, meter: Meter, steady_ns: u64) -> &mut Lender {
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

/// How units come back to who has such a part of the limit: of a sliding window all of them in one window. Nothing of a limit that is not
/// lent.
fn meter_of(global: &Algorithm, stands: Part) -> Option<Meter> {
    let rate = stands.rate.saturating_add(stands.rate / LENIENT as u32).saturating_add(1);
    let units = stands.units.saturating_add(stands.units / LENIENT + 1).min(UNITS_MAX);
    match global {
        Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => {
            Some(meter.local(Part { rate, units }, 0))
        }
        _ => Some(Meter::new(Rate::new(units, global.lingers_ns()).ok()?, units)),
    }
}

#[cfg(test)]
mod tests {
    use acequia_limits::{Limit, RATE_PARTS};

    use super::*;

    const S: u64 = 1_000_000_000;
    const HALF: Part = Part { rate: RATE_PARTS / 2, units: 50 };
    const LIAR: Region = Region(7);

    fn algorithm(yaml: &str) -> Algorithm {
        let json = format!(r#"{{"name":"l","domain":"d",{yaml}}}"#);
        Limit::new(serde_json::from_str(&json).expect("a spec")).expect("a limit").algorithm
    }

    /// One that lends all it can again and again brings so many units in so many seconds.
    fn brings(algorithm: &Algorithm, seconds: u64, gives_back: bool) -> u64 {
        let mut believed = Believed::default();
        let mut brought = 0;
        for tenth in 1..=10 * seconds {
            let now_ns = tenth * S / 10;
            for units in [50, 5, 1] {
                if believed.may_bring((LIAR, HALF), units, algorithm, now_ns).is_ok() {
                    believed.bring(LIAR, units, now_ns);
                    if gives_back {
                        believed.give_back(LIAR, units, now_ns);
                    } else {
                        brought += units;
                    }
                }
            }
        }
        brought
    }

    #[test]
    fn who_lends_again_and_again_brings_no_more_than_its_part_gives() {
        for yaml in [
            r#""token_bucket":{"rate":"10/s","burst":100}"#,
            r#""sliding_window":{"limit":100,"window":"10s"}"#,
        ] {
            let brought = brings(&algorithm(yaml), 100, false);
            // Its units, and what came back to it in 100 s.
            let most = 50 + 5 * 100;
            assert!((most * 9 / 10..=most + most / 100).contains(&brought), "{yaml}: {brought} of {most}");
            assert_eq!(brings(&algorithm(yaml), 100, true), 0);
        }
    }

    #[test]
    fn what_went_back_is_there_to_be_lent_again() {
        let bucket = algorithm(r#""token_bucket":{"rate":"10/h","burst":100}"#);
        let mut believed = Believed::default();
        for second in 1..100 {
            assert_eq!(believed.may_bring((LIAR, HALF), 50, &bucket, second * S), Ok(()), "{second}");
            believed.bring(LIAR, 50, second * S);
            assert!(believed.may_bring((LIAR, HALF), 2, &bucket, second * S).is_err(), "{second}");
            // Another region is another one.
            assert_eq!(believed.may_bring((Region(8), HALF), 50, &bucket, second * S), Ok(()));
            believed.give_back(LIAR, 50, second * S);
        }
    }
}
