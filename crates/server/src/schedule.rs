//! The limits that are in force, as the journal keeps them for the next start.

use acequia_limits::{Limit, limit::LimitSpec};
use acequia_node::Scheduled;
use serde::{Deserialize, Serialize};

/// The journal's value with the schedule.
pub(crate) const SCHEDULE: &str = "schedule";

/// A value in the journal is not one of ours.
#[derive(Debug, thiserror::Error)]
#[error("the journal's {what} cannot be read: {cause}. Start with a new `data` folder")]
pub struct ValueFault {
    /// The name of the value.
    pub what: &'static str,
    /// The fault of the value.
    pub cause: String,
}

/// A limit of the schedule, as the journal keeps it.
#[derive(Serialize, Deserialize)]
struct KeptLimit {
    spec: LimitSpec,
    until_ns: Option<u64>,
}

/// The schedule in the journal's value.
///
/// # Errors
/// The value is no schedule.
pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Vec<Scheduled>, ValueFault> {
    let fault = |cause: String| ValueFault { what: SCHEDULE, cause };
    let kept: Vec<KeptLimit> = serde_json::from_slice(bytes).map_err(|e| fault(e.to_string()))?;
    let mut schedule = Vec::new();
    for KeptLimit { mut spec, until_ns } in kept {
        let name = spec.name.clone();
        spec.modernise();
        let limit = Limit::new(spec).map_err(|faults| fault(format!("limit {name}: {}", faults[0])))?;
        schedule.push(Scheduled { limit, until_ns });
    }
    Ok(schedule)
}

/// A schedule as the journal keeps it.
///
/// # Errors
/// A limit cannot be written.
pub(crate) fn to_bytes(schedule: &[Scheduled]) -> Result<Vec<u8>, ValueFault> {
    let kept: Vec<KeptLimit> =
        schedule.iter().map(|s| KeptLimit { spec: s.limit.spec.clone(), until_ns: s.until_ns }).collect();
    serde_json::to_vec(&kept).map_err(|e| ValueFault { what: SCHEDULE, cause: e.to_string() })
}
