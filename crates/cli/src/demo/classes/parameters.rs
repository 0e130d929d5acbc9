//! The parameters of the study: the limit, the classes and the load.

use std::str::FromStr;

use clap::{Args, value_parser};
use serde::Serialize;

use super::{NAMES, Unsound};
use crate::settings::SETTINGS;

/// A number for each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(in super::super) struct EachClass {
    gold: u64,
    silver: u64,
    free: u64,
}

impl EachClass {
    /// By class; the class that draws first comes first.
    pub(super) const fn numbers(self) -> [u64; 3] {
        [self.gold, self.silver, self.free]
    }
}

impl FromStr for EachClass {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u64>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
        match numbers.as_deref() {
            Some([gold, silver, free]) => Ok(Self { gold: *gold, silver: *silver, free: *free }),
            _ => Err("write three whole numbers, for gold, silver and free, such as 500,300,200".to_owned()),
        }
    }
}

/// The parameters of the study.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[command(next_help_heading = "The study of classes")]
pub(in super::super) struct Parameters {
    /// The limit: units a second.
    #[arg(long, requires = "classes", default_value_t = 1_000, value_name = "UNITS",
          value_parser = value_parser!(u64).range(1..=SETTINGS.classes.units_max))]
    rate: u64,

    /// The limit: units in the full bucket.
    #[arg(long, requires = "classes", default_value_t = 2_000, value_name = "UNITS",
          value_parser = value_parser!(u64).range(1..=SETTINGS.classes.units_max))]
    burst: u64,

    /// Units a second that all classes together ask for, at every time.
    #[arg(long, requires = "classes", default_value_t = 1_350, value_name = "UNITS",
          value_parser = value_parser!(u64).range(3..=SETTINGS.classes.asked_max))]
    asked: u64,

    /// Percent of them that the bursting class asks for; the two others halve the rest.
    #[arg(long, requires = "classes", default_value_t = 80, value_name = "PERCENT",
          value_parser = value_parser!(u64).range(34..=100))]
    peak: u64,

    /// The shared bucket: percent of it that each class leaves to the classes above it.
    #[arg(long, requires = "classes", default_value = "0,24,62", value_name = "GOLD,SILVER,FREE")]
    leaves: EachClass,

    /// Separate buckets: units in each.
    #[arg(long, requires = "classes", default_value = "1000,600,400", value_name = "GOLD,SILVER,FREE")]
    sizes: EachClass,

    /// Separate buckets: refill rate of each, in units a second.
    #[arg(long, requires = "classes", default_value = "500,300,200", value_name = "GOLD,SILVER,FREE")]
    refill: EachClass,
}

impl Parameters {
    /// Whether the limits that the parameters make are comparable.
    ///
    /// # Errors
    /// The classes are in the wrong order, or their buckets hold more than the limit.
    pub(super) fn check(&self) -> Result<(), Unsound> {
        let leaves = self.leaves.numbers();
        if leaves[0] != 0 || !leaves.is_sorted() || leaves[2] > 99 {
            return Err(Unsound(format!(
                "--leaves: {} leaves 0, and none less than the one before it",
                NAMES[0]
            )));
        }
        for (what, parts, whole, of) in
            [("--sizes", self.sizes, self.burst, "--burst"), ("--refill", self.refill, self.rate, "--rate")]
        {
            let parts = parts.numbers();
            let sum = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
            if parts.contains(&0) || sum > whole {
                return Err(Unsound(format!(
                    "{what}: each class has at least 1, and all together at most {of}, which is {whole}: they have {sum}"
                )));
            }
        }
        Ok(())
    }

    pub(super) const fn rate(&self) -> u64 {
        self.rate
    }

    pub(super) const fn burst(&self) -> u64 {
        self.burst
    }

    pub(super) const fn asked(&self) -> u64 {
        self.asked
    }

    pub(super) const fn peak(&self) -> u64 {
        self.peak
    }

    pub(super) const fn leaves(&self) -> [u64; 3] {
        self.leaves.numbers()
    }

    pub(super) const fn sizes(&self) -> [u64; 3] {
        self.sizes.numbers()
    }

    pub(super) const fn refill(&self) -> [u64; 3] {
        self.refill.numbers()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[arg(long)]
        classes: bool,
        #[command(flatten)]
        parameters: Parameters,
    }

    /// The parameters of a command line.
    pub(in super::super) fn parameters(arguments: &[&str]) -> Parameters {
        let arguments = ["demo", "--classes"].iter().chain(arguments);
        let command = Command::try_parse_from(arguments).unwrap_or_else(|fault| panic!("{fault}"));
        assert!(command.classes);
        command.parameters
    }

    #[test]
    fn parameters_that_cannot_be_compared_are_refused() {
        assert_eq!(parameters(&[]).check().map_err(|fault| fault.to_string()), Ok(()));
        for (arguments, words) in [
            (["--sizes", "1000,600,401"], "at most --burst, which is 2000: they have 2001"),
            (["--refill", "1000,0,0"], "each class has at least 1"),
            (["--leaves", "10,24,62"], "gold leaves 0"),
            (["--leaves", "0,62,24"], "none less than the one before it"),
        ] {
            let fault = parameters(&arguments).check().expect_err("refused").to_string();
            assert!(fault.contains(words), "{fault}");
        }
    }

    #[test]
    fn only_three_numbers_are_read() {
        assert_eq!("5, 3,2".parse(), Ok(EachClass { gold: 5, silver: 3, free: 2 }));
        for text in ["", "1,2", "1,2,3,4", "a,b,c", "-1,2,3"] {
            assert!(text.parse::<EachClass>().is_err(), "{text}");
        }
    }
}
