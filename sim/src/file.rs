//! A schedule as a file: a JSON object with a line for each fault. Each line also describes its fault in
//! words, which are not read back.

use std::{fmt::Write as _, time::Duration};

use serde::Deserialize;

use crate::{
    NAMES,
    scenarios::{Plan, Scenario},
    schedule::{Fault, Schedule},
};

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleFile {
    /// The scenario whose limits and demand apply.
    pub scenario: String,
    /// The seed for everything that the schedule does not fix.
    pub seed: u64,
    /// The faults.
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

impl ScheduleFile {
    /// The text of the file.
    pub fn to_text(&self) -> String {
        let (scenario, seed) = (&self.scenario, self.seed);
        let entries = self.schedule.faults().iter().map(|(when, fault)| {
            let (at_ms, does) = (when.as_millis(), serde_json::Value::from(fault.to_string()));
            // Faults are plain numbers and words, so they always serialise as JSON.
            let fault = serde_json::to_string(fault).unwrap_or_default();
            format!("    {{ \"at_ms\": {at_ms}, \"does\": {does}, \"fault\": {fault} }}")
        });
        let mut text = String::new();
        let _ = write!(text, "{{\n  \"scenario\": {},\n", serde_json::Value::from(scenario.as_str()));
        let _ = write!(text, "  \"seed\": {seed},\n  \"schedule\": [\n");
        let _ = write!(text, "{}\n  ]\n}}\n", entries.collect::<Vec<_>>().join(",\n"));
        text
    }

    /// Reads a file that [`ScheduleFile::to_text`] or a person wrote.
    ///
    /// # Errors
    /// A description of what is wrong with the file.
    pub fn read(text: &str) -> Result<Self, String> {
        let written: Written = serde_json::from_str(text).map_err(|fault| fault.to_string())?;
        let mut schedule = Schedule::default();
        for Entry { at_ms, fault } in written.schedule {
            let places = fault.places();
            if let Some(place) = places.iter().find(|place| **place >= NAMES.len()) {
                let last = NAMES.len() - 1;
                return Err(format!(
                    "the fault at {at_ms} ms names the place {place}: the last one is {last}"
                ));
            }
            if matches!(fault, Fault::Cut(a, b) | Fault::CutOneWay(a, b) if a == b) {
                return Err(format!("the fault at {at_ms} ms cuts a place from itself"));
            }
            schedule.at(Duration::from_millis(at_ms), fault);
        }
        Ok(Self { scenario: written.scenario, seed: written.seed, schedule })
    }

    /// The scenario's plan with this schedule.
    ///
    /// # Errors
    /// The schedule names a place that the scenario does not have.
    pub fn plan_of(&self, scenario: &Scenario) -> Result<Plan, String> {
        let plan = scenario.plan_of(self.seed);
        let places = self.schedule.faults().iter().flat_map(|(_, fault)| fault.places());
        if let Some(place) = places.max().filter(|place| *place >= plan.regions) {
            let (name, seed, last) = (scenario.name, self.seed, plan.regions - 1);
            return Err(format!(
                "the schedule names the place {place}: with seed {seed}, the last of {name} is {last}"
            ));
        }
        Ok(Plan { schedule: self.schedule.clone(), ..plan })
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
                let stored = ScheduleFile {
                    scenario: scenario.name.to_owned(),
                    seed,
                    schedule: scenario.plan_of(seed).schedule,
                };
                assert_eq!(ScheduleFile::read(&stored.to_text()), Ok(stored.clone()), "{}", stored.to_text());
            }
        }
    }

    #[test]
    fn a_file_that_is_wrong_says_where() {
        let fault = ScheduleFile::read("{\n \"scenario\": 7 }").expect_err("no file");
        assert!(fault.contains("line 2"), "{fault}");
    }

    #[test]
    fn a_place_that_is_not_there_is_refused() {
        let stored = |fault: &str| {
            ScheduleFile::read(&format!(
                r#"{{ "scenario": "split-brain", "seed": 7, "schedule": [{{ "at_ms": 5, "fault": {fault} }}] }}"#
            ))
        };
        for (fault, words) in [
            (r#"{ "Stop": 5 }"#, "at 5 ms names the place 5"),
            (r#"{ "Order": [0, { "Evict": 9 }] }"#, "names the place 9"),
            (r#"{ "Cut": [1, 1] }"#, "cuts a place from itself"),
        ] {
            let why = stored(fault).expect_err("no such place");
            assert!(why.contains(words), "{why}");
        }
        let scenario = scenarios::named("split-brain").expect("a scenario");
        let fourth = stored(r#"{ "Stop": 3 }"#).expect("there are five names");
        let why = fourth.plan_of(&scenario).expect_err("of three regions");
        assert!(why.contains("the last of split-brain is 2"), "{why}");
    }
}
