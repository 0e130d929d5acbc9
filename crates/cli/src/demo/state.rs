//! How the demonstration stands: what is cut, who is dead, where the heat is, which budget was ordered.

use std::time::Duration;

use acequia_api::acequia::v1::{Mark, NodeStatus};

use super::{
    links::{self, Links},
    plan::{AUTHORITY, BUDGET, DOMAIN, LIMITS, NAMES, PAIRS, REGIONS},
    story::Story,
    traffic::demands,
};
use crate::view::{
    overview::{self, Asked},
    picture::{Flow, Share, Tone},
};

/// What a key changes the budget by, and its range: below it, thirds of it are too small to look at.
const BUDGET_STEP: u64 = 100;
const BUDGET_MIN: u64 = 100;
const BUDGET_MAX: u64 = 5_000;
/// How long the heat stays, while everything is whole.
const HEAT_STAYS: Duration = Duration::from_secs(10);
/// A share is news from this part of a standing share on, and no longer below half of that: in percent.
const BORROWED_PERCENT: u64 = 20;
/// How long it has to be so before it is told: loans end and begin within a round trip when they are moved.
const NEWS_AFTER: Duration = Duration::from_millis(400);

/// A budget, and the last change of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// What was ordered last.
    pub ordered: u64,
    /// The most that was in force anywhere since all nodes agreed.
    pub highest: u64,
    /// The order that does not count everywhere yet.
    pending: Option<Pending>,
}

/// A change of the budget on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending {
    /// What was ordered before.
    before: u64,
    /// When it was ordered.
    since: Duration,
    /// The version that all nodes have to have; nothing before the authority has answered.
    version: Option<Mark>,
}

impl Budget {
    /// What can be relied on.
    pub fn usable(&self) -> u64 {
        self.ordered.min(self.highest)
    }
}

/// How it stands.
#[derive(Clone, Debug)]
pub struct State {
    /// What passes.
    pub links: Links,
    /// Whose node was not killed.
    pub is_alive: [bool; REGIONS],
    /// Where most is asked.
    pub hot: usize,
    /// The units that all regions share.
    pub budget: Budget,
    /// Which link the keys are about.
    pub chosen_link: usize,
    /// Which region the keys are about.
    pub chosen_region: usize,
    /// Whether the picture stands still.
    pub is_paused: bool,
    /// What happened.
    pub story: Story,
    /// What the nodes say.
    pub nodes: [Asked; REGIONS],
    /// Until when the heat stays.
    heat_until: Duration,
    borrowing: [Borrowing; REGIONS],
}

/// Whether a region was told to borrow.
#[derive(Clone, Copy, Debug, Default)]
struct Borrowing {
    is_told: bool,
    /// Since when it is otherwise.
    is_otherwise_since: Option<Duration>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            links: Links::default(),
            is_alive: [true; REGIONS],
            hot: 0,
            budget: Budget { ordered: BUDGET, highest: BUDGET, pending: None },
            chosen_link: 0,
            chosen_region: 1,
            is_paused: false,
            story: Story::default(),
            nodes: Default::default(),
            heat_until: HEAT_STAYS,
            borrowing: Default::default(),
        }
    }
}

impl State {
    /// Whether nothing is cut and nobody is dead.
    pub fn is_whole(&self) -> bool {
        self.links.are_whole() && self.is_alive == [true; REGIONS]
    }

    /// Whether it is as if nothing had been broken.
    pub fn is_calm(&self) -> bool {
        self.is_whole() && !self.story.is_healing()
    }

    /// What each region is asked, a second.
    pub fn demands(&self) -> [u64; REGIONS] {
        demands(self.budget.ordered, self.hot)
    }

    /// What could be used, a second.
    pub fn usable(&self) -> u64 {
        self.links.usable(self.budget.usable(), self.demands(), self.is_alive)
    }

    /// Cuts the chosen link, or lets it pass one way.
    pub fn cut(&mut self, at: Duration, flow: Flow) {
        self.story.give_up();
        self.links.set(self.chosen_link, flow);
        let name = links::name(self.chosen_link);
        let (one, other) = PAIRS[self.chosen_link];
        let words = match flow {
            Flow::Cut => format!("{name} is cut"),
            _ => format!("{name} passes from {} to {} only", NAMES[one], NAMES[other]),
        };
        self.story.tell(at, Tone::Bad, words);
    }

    /// Cuts the hot region off.
    pub fn split(&mut self, at: Duration) {
        self.story.give_up();
        self.links.isolate(self.hot);
        self.story.tell(at, Tone::Bad, format!("split brain: {} is cut off", NAMES[self.hot]));
    }

    /// Mends all links.
    pub fn mend(&mut self, at: Duration) {
        if self.links.are_whole() {
            return;
        }
        self.links.mend();
        self.story.tell(at, Tone::Good, "all links are mended");
        self.whole_again(at, "the links were mended");
    }

    /// A node was killed.
    pub fn killed(&mut self, at: Duration, region: usize) {
        self.story.give_up();
        self.is_alive[region] = false;
        self.story.tell(at, Tone::Bad, format!("{}-1 is killed (kill -9)", NAMES[region]));
    }

    /// A node was started again.
    pub fn restarted(&mut self, at: Duration, region: usize) {
        self.is_alive[region] = true;
        self.story.tell(at, Tone::Good, format!("{}-1 is started again", NAMES[region]));
        self.whole_again(at, &format!("{} was started again", NAMES[region]));
    }

    fn whole_again(&mut self, at: Duration, cause: &str) {
        if self.is_whole() {
            self.story.heal(at, cause);
            self.heat_until = at + HEAT_STAYS;
        }
    }

    /// Has the heat move on.
    pub fn heat(&mut self, at: Duration) {
        self.hot = (self.hot + 1) % REGIONS;
        self.heat_until = at + HEAT_STAYS;
        self.story.tell(at, Tone::Plain, format!("most is asked in {} now", NAMES[self.hot]));
    }

    /// Whether the heat has stayed long enough. It does not move while something is broken, so that one sees what
    /// that does.
    pub fn heat_is_due(&mut self, at: Duration) -> bool {
        if !self.is_whole() {
            self.heat_until = self.heat_until.max(at + HEAT_STAYS / 2);
        }
        at >= self.heat_until
    }

    /// Another budget is ordered; nothing at the end of the range, or before the last order was answered.
    pub fn order_budget(&mut self, at: Duration, is_more: bool) -> Option<u64> {
        let budget = &mut self.budget;
        let next = match is_more {
            true => budget.ordered + BUDGET_STEP,
            false => budget.ordered.saturating_sub(BUDGET_STEP),
        };
        let next = next.clamp(BUDGET_MIN, BUDGET_MAX);
        let is_unanswered = budget.pending.is_some_and(|pending| pending.version.is_none());
        if next == budget.ordered || is_unanswered {
            return None;
        }
        budget.pending = Some(Pending { before: budget.ordered, since: at, version: None });
        budget.ordered = next;
        budget.highest = budget.highest.max(next);
        self.story.tell(at, Tone::Plain, format!("budget set to {next}/s"));
        Some(next)
    }

    /// What became of an order: the version that says it, or why not.
    pub fn budget_answered(&mut self, at: Duration, answer: Result<Mark, String>) {
        let Some(pending) = &mut self.budget.pending else { return };
        match answer {
            Ok(version) => pending.version = Some(version),
            Err(why) => {
                // It may have been carried out all the same: the highest stays what it is.
                self.budget.ordered = pending.before;
                self.budget.pending = None;
                let words = format!("the budget stays as it was: {}", why.lines().next().unwrap_or(""));
                self.story.tell(at, Tone::Bad, words);
            }
        }
    }

    /// Takes in what a node says.
    pub fn hear(&mut self, at: Duration, region: usize, status: Option<NodeStatus>, fault: String) {
        let node = &mut self.nodes[region];
        node.fault = fault;
        let Some(status) = status else { return };
        if node.fault.is_empty() {
            node.gauge.report(&status);
        }
        node.status = Some(status);
        if region == AUTHORITY {
            self.look_at_budget(at);
        }
        self.look_at_loans(at, region);
    }

    /// Whether the ordered budget is now in force everywhere, and no other.
    fn look_at_budget(&mut self, at: Duration) {
        let Some(Pending { version: Some(version), since, .. }) = self.budget.pending else { return };
        let catalogue = self.nodes[AUTHORITY].status.as_ref().and_then(|status| status.catalogue.as_ref());
        let effective = catalogue.and_then(|catalogue| catalogue.effective);
        if effective.is_some_and(|mark| (mark.epoch, mark.number) >= (version.epoch, version.number)) {
            self.budget.pending = None;
            self.budget.highest = self.budget.ordered;
            let took = crate::view::words::short(at.saturating_sub(since));
            let words = format!("{}/s is in force everywhere after {took}", self.budget.ordered);
            self.story.tell(at, Tone::Good, words);
        }
    }

    /// Whether a region has begun to borrow, or ended.
    fn look_at_loans(&mut self, at: Duration, region: usize) {
        let Share { standing, borrowed, .. } = self.share(region);
        let least = standing * BORROWED_PERCENT / 100;
        let news = &mut self.borrowing[region];
        let is_borrowing = if news.is_told { borrowed >= least / 2 } else { borrowed > least };
        if is_borrowing == news.is_told {
            news.is_otherwise_since = None;
            return;
        }
        if at.saturating_sub(*news.is_otherwise_since.get_or_insert(at)) < NEWS_AFTER {
            return;
        }
        *news = Borrowing { is_told: is_borrowing, is_otherwise_since: None };
        let words = match is_borrowing {
            true => format!("{} has borrowed {borrowed}/s", NAMES[region]),
            false => format!("{} is back to its own share", NAMES[region]),
        };
        self.story.tell(at, Tone::Plain, words);
    }

    /// What a region has of the budget, as its node said last.
    pub fn share(&self, region: usize) -> Share {
        let Some(status) = &self.nodes[region].status else { return Share::default() };
        let is_budget = |limit: &&acequia_api::acequia::v1::LimitStatus| {
            limit.domain == DOMAIN && limit.name == LIMITS[0]
        };
        status.limits.iter().find(is_budget).map_or(Share::default(), |limit| overview::share(status, limit))
    }

    /// What passes a link, as far as the nodes have noticed: a link that is whole is quiet until both ends have
    /// heard each other.
    pub fn flow(&self, link: usize) -> Flow {
        let flow = self.links.flows()[link];
        let (one, other) = PAIRS[link];
        let both = self.hears(one, other).and_then(|a| Some(a && self.hears(other, one)?));
        match (flow, both) {
            (Flow::Open, Some(false)) => Flow::Quiet,
            (flow, _) => flow,
        }
    }

    /// Whether a node hears another; nothing where it says nothing of it.
    fn hears(&self, by: usize, other: usize) -> Option<bool> {
        let node = &self.nodes[by];
        let status = node.status.as_ref().filter(|_| node.fault.is_empty())?;
        let peer = status.peers.iter().find(|peer| peer.region == NAMES[other])?;
        Some(peer.reached)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use acequia_api::acequia::v1::{Catalogue, Holding, LimitStatus, Peer, limit_status::Kind};

    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What a node says that has so much of the budget, in units a second: standing, lent, borrowed.
    pub(in super::super) fn status(region: usize, [standing, lent, borrowed]: [u64; 3]) -> NodeStatus {
        let holding = |rate: u64| Some(Holding { rate_milli: rate * 1_000, units: rate });
        let limit = LimitStatus {
            domain: DOMAIN.to_owned(),
            name: LIMITS[0].to_owned(),
            budget: "token_bucket 1000/s burst 1000".to_owned(),
            kind: Kind::Rate.into(),
            rate_milli: 1_000_000,
            units: 1_000,
            cells: 1,
            standing: holding(standing),
            lent: holding(lent),
            borrowed: holding(borrowed),
            ..LimitStatus::default()
        };
        let peer = |place: usize| Peer {
            region: NAMES[place].to_owned(),
            reached: true,
            round_trip_us: Some(81_000),
            ..Peer::default()
        };
        NodeStatus {
            region: NAMES[region].to_owned(),
            ready: true,
            limits: vec![limit],
            peers: (0..REGIONS).filter(|place| *place != region).map(peer).collect(),
            catalogue: Some(Catalogue {
                effective: Some(Mark { epoch: 1, number: 4 }),
                is_authority: region == AUTHORITY,
                ..Catalogue::default()
            }),
            ..NodeStatus::default()
        }
    }

    pub(in super::super) fn told(state: &State) -> Vec<String> {
        state.story.events().map(|event| event.words.clone()).collect()
    }

    #[test]
    fn a_lower_budget_counts_once_the_authority_says_so() {
        let mut state = State::default();
        assert_eq!(state.order_budget(at(1), false), Some(900));
        assert_eq!((state.budget.usable(), state.budget.highest), (900, 1_000));
        state.hear(at(2), AUTHORITY, Some(status(0, [333, 0, 0])), String::new());
        assert_eq!(state.budget.highest, 1_000, "the order was not answered yet");
        state.budget_answered(at(2), Ok(Mark { epoch: 1, number: 5 }));
        state.hear(at(2), AUTHORITY, Some(status(0, [333, 0, 0])), String::new());
        assert_eq!(state.budget.highest, 1_000, "version 4 is in force, not 5");
        let mut next = status(0, [300, 0, 0]);
        next.catalogue.as_mut().expect("one").effective = Some(Mark { epoch: 1, number: 5 });
        state.hear(at(3), AUTHORITY, Some(next), String::new());
        assert_eq!((state.budget.usable(), state.budget.highest), (900, 900));
        assert_eq!(told(&state), ["budget set to 900/s", "900/s is in force everywhere after 2.0 s"]);
    }

    #[test]
    fn the_budget_stays_in_its_range() {
        let mut state = State::default();
        while state.order_budget(at(0), false).is_some() {
            state.budget_answered(at(0), Ok(Mark { epoch: 1, number: 5 }));
        }
        assert_eq!(state.budget.ordered, BUDGET_MIN);
        while state.order_budget(at(0), true).is_some() {
            state.budget_answered(at(0), Ok(Mark { epoch: 1, number: 5 }));
        }
        assert_eq!(state.budget.ordered, BUDGET_MAX);
    }

    #[test]
    fn one_order_is_given_at_a_time_and_a_refused_one_is_taken_back() {
        let mut state = State::default();
        assert_eq!(state.order_budget(at(1), true), Some(1_100));
        assert_eq!(state.order_budget(at(1), true), None);
        state.budget_answered(at(2), Err("no authority\nand more".to_owned()));
        assert_eq!((state.budget.ordered, state.budget.highest), (1_000, 1_100));
        assert_eq!(told(&state)[1], "the budget stays as it was: no authority");
        assert_eq!(state.order_budget(at(3), true), Some(1_100));
    }

    #[test]
    fn the_heat_moves_on_by_itself_but_not_while_something_is_broken() {
        let mut state = State::default();
        assert!(!state.heat_is_due(at(9)));
        assert!(state.heat_is_due(at(10)));
        state.heat(at(10));
        state.split(at(12));
        assert!(!state.heat_is_due(at(100)));
        state.mend(at(100));
        assert!(!state.heat_is_due(at(109)));
        assert!(state.heat_is_due(at(110)));
        assert_eq!(state.story.healings().len(), 1);
    }

    #[test]
    fn it_heals_only_from_when_nothing_is_broken_any_more() {
        let mut state = State::default();
        state.split(at(1));
        state.killed(at(2), 2);
        state.mend(at(3));
        assert!(state.story.healings().is_empty());
        state.restarted(at(4), 2);
        assert_eq!(state.story.healings()[0].cause, "ap was started again");
        state.cut(at(5), Flow::Cut);
        assert!(state.story.healings().is_empty(), "cut before it had healed");
    }

    #[test]
    fn loans_are_told_when_they_have_begun_or_ended_for_good() {
        let mut state = State::default();
        // Every 200 ms; at the second 0 it is only moved.
        let borrowed = [0, 100, 300, 367, 367, 0, 300, 300, 20, 0, 0, 0];
        for (number, borrowed) in borrowed.into_iter().enumerate() {
            let at = Duration::from_millis(number as u64 * 200);
            state.hear(at, 1, Some(status(1, [333, 0, borrowed])), String::new());
        }
        assert_eq!(told(&state), ["us has borrowed 367/s", "us is back to its own share"]);
    }

    #[test]
    fn a_whole_link_is_quiet_until_both_ends_hear_each_other() {
        let mut state = State::default();
        assert_eq!(state.flow(0), Flow::Open, "nobody said anything");
        state.hear(at(1), 0, Some(status(0, [333, 0, 0])), String::new());
        let mut deaf = status(1, [333, 0, 0]);
        deaf.peers[0].reached = false;
        state.hear(at(1), 1, Some(deaf), String::new());
        assert_eq!(state.flow(0), Flow::Quiet);
        state.cut(at(1), Flow::Cut);
        assert_eq!(state.flow(0), Flow::Cut);
    }
}
