//! The events as they happen, and how long healing took.

use std::{collections::VecDeque, time::Duration};

use super::{ledger::Ledger, plan::REGIONS};
use crate::{
    settings::SETTINGS,
    view::picture::{Event, Tone},
};

/// How long something took to heal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Healing {
    /// The cause, such as "the links were mended".
    pub cause: String,
    /// When, since the beginning.
    pub since: Duration,
    /// How long it took until 95 % of the budget was used again; `None` before.
    pub took: Option<Duration>,
}

/// The events so far.
#[derive(Clone, Debug, Default)]
pub struct Story {
    events: VecDeque<Event>,
    /// The number of events told so far.
    told: usize,
    healings: Vec<Healing>,
    units_over: u64,
}

impl Story {
    /// Adds an event.
    pub fn tell(&mut self, at: Duration, tone: Tone, words: impl Into<String>) {
        if self.events.len() == SETTINGS.story.events_max {
            self.events.pop_front();
        }
        self.told += 1;
        self.events.push_back(Event { at, tone, words: words.into() });
    }

    /// The last events, oldest first.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &Event> + ExactSizeIterator {
        self.events.iter()
    }

    /// The events after the first `told` ones. Sets `told` to the new count.
    pub fn news(&self, told: &mut usize) -> impl Iterator<Item = &Event> {
        let new = (self.told - *told).min(self.events.len());
        *told = self.told;
        self.events.iter().skip(self.events.len() - new)
    }

    /// Everything is whole again from now on. Starts to measure how long healing takes.
    pub fn heal(&mut self, at: Duration, cause: impl Into<String>) {
        self.give_up();
        self.healings.push(Healing { cause: cause.into(), since: at, took: None });
    }

    /// Something broke before the last healing was over, so its duration cannot be measured.
    pub fn give_up(&mut self) {
        if self.is_healing() {
            self.healings.pop();
        }
    }

    /// Whether something was mended but has not healed yet.
    pub fn is_healing(&self) -> bool {
        self.healings.last().is_some_and(|healing| healing.took.is_none())
    }

    /// All healings that were started.
    pub fn healings(&self) -> &[Healing] {
        &self.healings
    }

    /// Checks the last bins. `usable` is the units a second that could have been used.
    pub fn observe(&mut self, at: Duration, ledger: &Ledger, usable: u64) {
        let over: u64 = ledger.units_over().iter().sum();
        if over > self.units_over {
            self.units_over = over;
            self.tell(at, Tone::Bad, format!("OVER: {over} units more than the limits allow"));
        }
        let Some(healing) = self.healings.last_mut().filter(|healing| healing.took.is_none()) else { return };
        let took = at.saturating_sub(healing.since);
        let last = ledger.last(SETTINGS.story.good_bins);
        let stretch = last.length;
        let used: u64 = (0..REGIONS).map(|region| last.admitted_per_second(0, region)).sum();
        let enough = usable.saturating_mul(SETTINGS.story.good_percent) / 100;
        if took >= stretch && used >= enough {
            // The bins were good from the beginning of the stretch on.
            let took = took - stretch;
            healing.took = Some(took);
            let words = format!(
                "{} % used again after {}",
                SETTINGS.story.good_percent,
                crate::view::words::short(took)
            );
            self.tell(at, Tone::Good, words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            in_force::AT_START,
            ledger::{Answer, Instants, Subject},
        },
        *,
    };

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn bin(ledger: &mut Ledger, ms: u64, admitted: u64) {
        let instant = Instants { steady_ns: ms * 1_000_000, wall_ns: 0 };
        let answer = Answer {
            region: 0,
            subject: Subject::Budget,
            asked: instant,
            answered: instant,
            admitted,
            denied: 0,
        };
        ledger.answer(answer);
        ledger.judge(u64::MAX);
        ledger.close(at(100), 1_000, false);
    }

    #[test]
    fn healing_ends_when_nearly_all_is_used_for_a_while() {
        let mut story = Story::default();
        let mut ledger = Ledger::new(AT_START);
        story.heal(at(1_000), "the links were mended");
        for (number, admitted) in [50, 50, 90, 96, 95, 100, 100].into_iter().enumerate() {
            let now = 1_100 + number as u64 * 100;
            bin(&mut ledger, now, admitted);
            story.observe(at(now), &ledger, 1_000);
        }
        let healing = &story.healings()[0];
        assert_eq!(healing.took, Some(at(300)), "{healing:?}");
        assert_eq!(story.events().len(), 1);
    }

    #[test]
    fn a_break_before_the_end_cancels_the_healing() {
        let mut story = Story::default();
        story.heal(at(0), "the links were mended");
        story.give_up();
        assert!(story.healings().is_empty());
    }

    #[test]
    fn each_rise_above_the_limit_is_reported_once() {
        let mut story = Story::default();
        let mut ledger = Ledger::new(AT_START);
        let mut told = 0;
        for (ms, admitted) in [(0, 1_005), (100, 0), (200, 0)] {
            bin(&mut ledger, ms, admitted);
            story.observe(at(ms), &ledger, 1_000);
        }
        let news: Vec<_> = story.news(&mut told).map(|event| event.words.clone()).collect();
        assert_eq!(news, ["OVER: 5 units more than the limits allow"]);
        assert_eq!(story.news(&mut told).count(), 0);
    }

    #[test]
    fn old_events_are_dropped_and_not_reported_again() {
        let mut story = Story::default();
        let mut told = 0;
        for number in 0..SETTINGS.story.events_max + 50 {
            story.tell(at(0), Tone::Plain, number.to_string());
        }
        assert_eq!(story.news(&mut told).count(), SETTINGS.story.events_max);
        assert_eq!(told, SETTINGS.story.events_max + 50);
    }
}
