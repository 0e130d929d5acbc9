//! Who asks what, and when: whether it is answered or not, the next question comes.

use std::time::Duration;

use crate::random::Random;

/// A question of a caller's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Keys and values.
    pub entries: Vec<(String, String)>,
    /// In units.
    pub cost: u64,
}

/// What every caller asks.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Questions a second of one caller.
    pub per_second: u32,
    /// Kinds of questions, and how often each comes among the others.
    pub kinds: Vec<(u32, Kind)>,
}

/// Questions that are alike.
#[derive(Clone, Debug)]
pub struct Kind {
    /// What all of them say.
    pub entries: Vec<(&'static str, &'static str)>,
    /// An entry with one of so many values; none where there is no such.
    pub spread: Option<(&'static str, u64)>,
    /// The highest cost; the lowest is 1.
    pub cost_max: u64,
}

impl Kind {
    /// Questions of one entry.
    pub fn of(key: &'static str, value: &'static str, cost_max: u64) -> Self {
        Self { entries: vec![(key, value)], spread: None, cost_max }
    }

    fn question(&self, random: &mut Random) -> Question {
        let mut entries: Vec<(String, String)> =
            self.entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        if let Some((key, values)) = self.spread {
            entries.push((key.to_owned(), random.below(values).to_string()));
        }
        Question { entries, cost: random.between(1, self.cost_max) }
    }
}

impl Demand {
    /// Each caller asks 20 times a second.
    pub fn of(kinds: impl Into<Vec<(u32, Kind)>>) -> Self {
        Self { per_second: 20, kinds: kinds.into() }
    }

    /// What one caller asks, one question after the other, each with the time until it.
    pub(crate) fn questions(&self, mut random: Random) -> impl Iterator<Item = (Duration, Question)> + use<> {
        let (demand, every_us) = (self.clone(), 1_000_000 / u64::from(self.per_second.max(1)));
        std::iter::repeat_with(move || {
            let wait = Duration::from_micros(random.between(every_us / 2, every_us + every_us / 2));
            let total: u32 = demand.kinds.iter().map(|(weight, _)| weight).sum();
            let mut drawn = random.below(u64::from(total.max(1)));
            let kind = demand.kinds.iter().find(|(weight, _)| {
                let is_it = drawn < u64::from(*weight);
                drawn = drawn.saturating_sub(u64::from(*weight));
                is_it
            });
            let question = kind.map(|(_, kind)| kind.question(&mut random));
            (wait, question.unwrap_or(Question { entries: Vec::new(), cost: 1 }))
        })
    }
}
