//! Decides when a shard gets no calls. **While a shard does not answer, it is tried at most once a pause;
//! when it answers again, calls come back little by little.**
//!
//! There is no clock here: the caller passes the time of every step.

use std::time::Instant;

use acequia_rights::splitmix::Random;

use crate::settings::SETTINGS;

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// The breaker lets all calls through.
    Closed,
    /// The breaker lets a call through now and then, more often after each answer.
    HalfOpen,
    /// The breaker lets no call through.
    Open,
}

#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    random: Random,
}

#[derive(Debug)]
enum State {
    /// There was no connection yet.
    New,
    Closed {
        missed: u32,
        /// When the first of them was missed.
        since: Option<Instant>,
    },
    HalfOpen {
        answered: u32,
        next: Instant,
    },
    /// `until` is `None` while there is no connection.
    Open {
        until: Option<Instant>,
    },
}

impl Breaker {
    /// A breaker for a shard that is not connected yet.
    pub(super) const fn new(seed: u64) -> Self {
        Self { state: State::New, random: Random::from_state(seed) }
    }

    pub(super) const fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
            State::New | State::Open { .. } => BreakerState::Open,
        }
    }

    /// Whether a call may go now. A call that is refused must not be sent.
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        if let State::Open { until: Some(until) } = self.state
            && now >= until
        {
            self.state = State::HalfOpen { answered: 0, next: now };
        }
        match &mut self.state {
            State::Closed { .. } => true,
            State::New | State::Open { .. } => false,
            State::HalfOpen { next, .. } if now < *next => false,
            State::HalfOpen { answered, next } => {
                *next = now + self.random.jittered(SETTINGS.breaker.gap / (1 << *answered));
                true
            }
        }
    }

    /// Notes that a call was answered, be it by an error of the function.
    pub(super) fn answered(&mut self, now: Instant) {
        match &mut self.state {
            State::Closed { missed, since } => (*missed, *since) = (0, None),
            // This call was sent before the breaker opened, and says nothing about the present.
            State::New | State::Open { .. } => {}
            State::HalfOpen { answered, next } => {
                *answered += 1;
                if *answered >= SETTINGS.breaker.answered_min {
                    self.state = State::Closed { missed: 0, since: None };
                } else {
                    *next = (*next).min(now + self.random.jittered(SETTINGS.breaker.gap / (1 << *answered)));
                }
            }
        }
    }

    /// Notes that a call was not answered in time, or was answered by a server that cannot serve.
    pub(super) fn missed(&mut self, now: Instant) {
        let opens = match &mut self.state {
            State::Closed { missed, since } => {
                *missed += 1;
                let for_long = now.saturating_duration_since(*since.get_or_insert(now));
                *missed >= SETTINGS.breaker.missed_max && for_long >= SETTINGS.breaker.missed_for
            }
            State::HalfOpen { .. } => true,
            State::New | State::Open { .. } => false,
        };
        if opens {
            self.state = State::Open { until: Some(now + self.random.jittered(SETTINGS.breaker.pause)) };
        }
    }

    /// Notes that there is no connection any more.
    pub(super) const fn lost(&mut self) {
        if !matches!(self.state, State::New) {
            self.state = State::Open { until: None };
        }
    }

    /// Notes that there is a connection. The first one gets all calls; one after a loss gets them little by little.
    pub(super) const fn connected(&mut self, now: Instant) {
        match self.state {
            State::New => self.state = State::Closed { missed: 0, since: None },
            State::Open { until: None } => self.state = State::HalfOpen { answered: 0, next: now },
            State::Open { .. } | State::Closed { .. } | State::HalfOpen { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    struct Story {
        breaker: Breaker,
        now: Instant,
    }

    impl Story {
        /// The breaker of a shard that has been healthy for a while.
        fn closed() -> Self {
            let mut story = Self { breaker: Breaker::new(7), now: Instant::now() };
            story.breaker.connected(story.now);
            story.recovers();
            story
        }

        /// Sends a call each millisecond, and answers at once. Returns how many calls went through, and how
        /// long that took.
        fn recovers(&mut self) -> (u32, Duration) {
            let (mut through, begun) = (0, self.now);
            while self.breaker.state() != BreakerState::Closed {
                assert!(self.now < begun + 1_000 * MS, "not closed after a second");
                self.now += MS;
                if self.breaker.admits(self.now) {
                    through += 1;
                    self.breaker.answered(self.now);
                }
            }
            (through, self.now - begun)
        }

        /// Calls that are missed one after the other, most of `missed_max` for long enough.
        fn misses(&mut self, calls: u32) {
            let gap = SETTINGS.breaker.missed_for / (SETTINGS.breaker.missed_max - 2);
            for call in 0..calls {
                self.now += if call > 0 { gap } else { Duration::ZERO };
                self.breaker.missed(self.now);
            }
        }
    }

    #[test]
    fn a_shard_that_is_not_connected_gets_no_calls() {
        let mut breaker = Breaker::new(1);
        let now = Instant::now();
        assert!(!breaker.admits(now));
        assert!(!breaker.admits(now + Duration::from_secs(3_600)));
    }

    #[test]
    fn the_first_connection_gets_all_calls_at_once() {
        let mut breaker = Breaker::new(1);
        let now = Instant::now();
        breaker.lost();
        breaker.connected(now);
        assert!((0..100).all(|_| breaker.admits(now)));
    }

    #[test]
    fn the_breaker_opens_after_misses_in_a_row() {
        let mut story = Story::closed();
        story.misses(SETTINGS.breaker.missed_max - 1);
        assert!(story.breaker.admits(story.now));
        story.misses(1);
        assert!(!story.breaker.admits(story.now));
        assert_eq!(story.breaker.state(), BreakerState::Open);
    }

    #[test]
    fn calls_that_are_missed_in_one_moment_open_no_breaker() {
        let mut story = Story::closed();
        (0..1_000).for_each(|_| story.breaker.missed(story.now));
        assert!(story.breaker.admits(story.now));
        story.breaker.answered(story.now);
        story.now += SETTINGS.breaker.missed_for;
        (0..1_000).for_each(|_| story.breaker.missed(story.now));
        assert!(story.breaker.admits(story.now), "an answer came between");
    }

    #[test]
    fn an_answer_restarts_the_breakers_count_of_misses() {
        let mut story = Story::closed();
        for _ in 0..100 {
            story.misses(SETTINGS.breaker.missed_max - 1);
            story.breaker.answered(story.now);
        }
        assert_eq!(story.breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn after_a_pause_the_breaker_lets_one_call_try() {
        let mut story = Story::closed();
        story.misses(SETTINGS.breaker.missed_max);
        for _ in 0..5 {
            assert!(!story.breaker.admits(story.now + SETTINGS.breaker.pause / 2 - MS), "it came too early");
            story.now += SETTINGS.breaker.pause;
            assert!(story.breaker.admits(story.now));
            assert!(!story.breaker.admits(story.now), "a second one came along");
            story.misses(1);
            assert!(!story.breaker.admits(story.now));
        }
    }

    #[test]
    fn the_breaker_lets_more_and_more_calls_to_a_shard_that_is_back() {
        let mut story = Story::closed();
        story.misses(SETTINGS.breaker.missed_max);
        story.now += SETTINGS.breaker.pause;
        let mut gaps = Vec::new();
        let mut last = story.now;
        while story.breaker.state() != BreakerState::Closed {
            story.now += MS / 10;
            if story.breaker.admits(story.now) {
                gaps.push(story.now - last);
                last = story.now;
                story.breaker.answered(story.now);
            }
        }
        assert_eq!(gaps.len(), SETTINGS.breaker.answered_min as usize);
        assert!(gaps[1..].is_sorted_by(|one, next| *next <= *one + MS / 10), "{gaps:?}");
        assert!(story.breaker.admits(story.now) && story.breaker.admits(story.now), "closed, and still slow");
    }

    #[test]
    fn the_breaker_closes_within_250_ms_if_the_shard_answers() {
        let mut story = Story::closed();
        story.misses(SETTINGS.breaker.missed_max);
        story.now += SETTINGS.breaker.pause;
        let (through, took) = story.recovers();
        assert_eq!(through, SETTINGS.breaker.answered_min);
        assert!(took <= 250 * MS, "{took:?}");
    }

    #[test]
    fn a_lost_connection_opens_the_breaker_and_a_new_one_half_opens_it() {
        let mut story = Story::closed();
        story.breaker.lost();
        assert!(!story.breaker.admits(story.now + SETTINGS.breaker.pause * 100));
        story.now += SETTINGS.breaker.pause;
        story.breaker.connected(story.now);
        assert!(story.breaker.admits(story.now));
        assert!(!story.breaker.admits(story.now));
    }

    #[test]
    fn results_of_old_calls_do_not_change_an_open_breaker() {
        let mut story = Story::closed();
        story.breaker.lost();
        story.misses(100);
        story.breaker.answered(story.now);
        story.breaker.connected(story.now);
        assert!(story.breaker.admits(story.now));
    }

    #[test]
    fn a_second_connection_does_not_end_the_breakers_pause() {
        let mut story = Story::closed();
        story.misses(SETTINGS.breaker.missed_max);
        story.breaker.connected(story.now);
        assert!(!story.breaker.admits(story.now));
    }

    #[test]
    fn the_breakers_of_two_nodes_try_at_different_moments() {
        let first_try = |seed| {
            let mut story = Story::closed();
            story.breaker.random = Random::from_state(seed);
            story.misses(SETTINGS.breaker.missed_max);
            let opened = story.now;
            while !story.breaker.admits(story.now) {
                story.now += MS / 10;
            }
            story.now - opened
        };
        assert_ne!(first_try(1), first_try(2));
    }
}
