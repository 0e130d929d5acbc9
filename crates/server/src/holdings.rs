//! Rights of a cell as operators see them: units, and units a second in thousandths.

use acequia_api::acequia::v1 as api;
use acequia_limits::{Algorithm, Part, RATE_PARTS};

/// Units a second, in thousandths; 0 if there is no rate.
pub(crate) fn rate_milli(algorithm: &Algorithm) -> u64 {
    match algorithm {
        Algorithm::TokenBucket(meter) | Algorithm::LeakyBucket(meter) => meter.rate_milli(),
        _ => 0,
    }
}

/// A part of a cell's limit, which has `rate_milli` in full.
pub(crate) fn holding(part: Part, rate_milli: u64) -> Option<api::Holding> {
    let rate = u128::from(part.rate) * u128::from(rate_milli) / u128::from(RATE_PARTS);
    Some(api::Holding { rate_milli: u64::try_from(rate).unwrap_or(u64::MAX), units: part.units })
}
