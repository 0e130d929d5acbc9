//! A schedule as a file: an object of JSON, with a line for each fault, which says in words what it does. The words are not read.

use std::{fmt::Write as _, time::Duration};

use serde::Deserialize;

use crate::schedule::{Fault, Schedule};

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The scenario whose limits and demand it is for.
    pub scenario: String,
    /// The seed that decides what the schedule does not.
    pub seed: u64,
    /// What breaks.
    pub schedule: Schedule,
}

#[derive(Deserialize)]
struct Written {
    scenario: String,
    seed: u64,
    schedule: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    at_ms: u64,
    fault: Fault,
}

impl Kept {
    /// As it is written.
    pub fn to_text(&self) -> String {
        let (scenario, seed) = (&self.scenario, self.seed);
        let entries = self.schedule.faults().iter().map(|(when, fault)| {
            let (at_ms, does) = (when.as_millis(), serde_json::Value::from(fault.to_string()));
            // Faults are plain numbers and words, of which JSON is made without fault.
            let fault = serde_json::to_string(fault).unwrap_or_default();
            format!("    {{ \"at_ms\": {at_ms}, \"does\": {does}, \"fault\": {fault} }}")
        });
        let mut text = String::new();
        let _ = write!(text, "{{\n  \"scenario\": {},\n", serde_json::Value::from(scenario.as_str()));
        let _ = write!(text, "  \"seed\": {seed},\n  \"schedule\": [\n");
        let _ = write!(text, "{}\n  ]\n}}\n", entries.collect::<Vec<_>>().join(",\n"));
        text
    }

    /// Reads what [`Kept::to_text`] wrote, or somebody by hand.
    ///
    /// # Errors
    /// Where it is not such a file, in words.
    pub fn read(text: &str) -> Result<Self, String> {
        let written: Written = serde_json::from_str(text).map_err(|fault| fault.to_string())?;
        let mut schedule = Schedule::default();
        for Entry { at_ms, fault } in written.schedule {
            schedule.at(Duration::from_millis(at_ms), fault);
        }
        Ok(Self { scenario: written.scenario, seed: written.seed, schedule })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios;

    #[test]
    fn what_is_written_is_read_for_every_scenario() {
        for scenario in scenarios::ALL {
            for seed in 1..20 {
                let kept = Kept {
                    scenario: scenario.name.to_owned(),
                    seed,
                    schedule: scenario.plan_of(seed).schedule,
                };
                assert_eq!(Kept::read(&kept.to_text()), Ok(kept.clone()), "{}", kept.to_text());
            }
        }
    }

    #[test]
    fn a_file_that_is_wrong_says_where() {
        let fault = Kept::read("{\n \"scenario\": 7 }").expect_err("no file");
        assert!(fault.contains("line 2"), "{fault}");
    }
}
