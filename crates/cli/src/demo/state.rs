//! The state of the demonstration: cut links, dead nodes, the hot region, and the budget in force.

use std::time::Duration;

use acequia_api::acequia::v1::{NodeStatus, VersionId};

use super::{
    in_force::{InForce, Numbers},
    links::{self, Links},
    plan::{DOMAIN, EXPORTS, LIMITS, NAMES, PAIRS, REGIONS},
    story::Story,
    streams::Seen,
    traffic::demands,
};
use crate::{
    settings::SETTINGS,
    view::{
        overview::{self, Asked},
        picture::{Flow, Share, Tone},
    },
};

/// The progress of the last budget order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ordered {
    /// No order is under way.
    Done,
    /// The authority has not answered yet.
    Sent,
    /// No node has reported this version of the catalogue yet.
    Answered(VersionId),
}

/// The state of the demonstration.
#[derive(Clone, Debug)]
pub struct State {
    /// The state of the links.
    pub links: Links,
    /// Whether each region's node was not killed.
    pub is_alive: [bool; REGIONS],
    /// The region with the most demand.
    pub hot: usize,
    /// The numbers of the limits that are in force.
    pub in_force: InForce,
    /// The link that the keys apply to.
    pub chosen_link: usize,
    /// The region that the keys apply to.
    pub chosen_region: usize,
    /// Whether the picture stands still.
    pub is_paused: bool,
    /// Whether the keys are explained.
    pub is_help_shown: bool,
    /// The events so far.
    pub story: Story,
    /// What callers have seen of streams.
    pub streams: Seen,
    /// What of that they saw in the last second.
    pub streams_last: Seen,
    /// The nodes' reports.
    pub nodes: [Asked; REGIONS],
    ordered: Ordered,
    /// Until when the current region stays hot.
    heat_until: Duration,
    borrowing: [Borrowing; REGIONS],
}

/// Whether the last told event says that a region borrows.
#[derive(Clone, Copy, Debug, Default)]
struct Borrowing {
    is_told: bool,
    /// When the region began to differ from what was told; `None` while it does not.
    is_otherwise_since: Option<Duration>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            links: Links::default(),
            is_alive: [true; REGIONS],
            hot: 0,
            in_force: InForce::default(),
            chosen_link: 0,
            chosen_region: 1,
            is_paused: false,
            is_help_shown: false,
            story: Story::default(),
            streams: Seen::default(),
            streams_last: Seen::default(),
            nodes: Default::default(),
            ordered: Ordered::Done,
            heat_until: SETTINGS.story.heat_stays,
            borrowing: Default::default(),
        }
    }
}

impl State {
    /// Whether no link is cut and no node is dead.
    pub fn is_whole(&self) -> bool {
        self.links.are_whole() && self.is_alive == [true; REGIONS]
    }

    /// Whether everything is as if nothing had been broken.
    pub fn is_calm(&self) -> bool {
        self.is_whole() && !self.story.is_healing()
    }

    /// The demand of each region, a second.
    pub fn demands(&self) -> [u64; REGIONS] {
        demands(self.in_force.newest()[0].rate, self.hot)
    }

    /// Units of the budget that could be used, a second.
    pub fn usable(&self) -> u64 {
        self.links.usable(self.in_force.lowest_rate(), self.demands(), self.is_alive)
    }

    /// Changes the chosen link: cuts it, or lets it pass one way.
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
            self.heat_until = at + SETTINGS.story.heat_stays;
        }
    }

    /// Moves the heat to the next region.
    pub fn heat(&mut self, at: Duration) {
        self.hot = (self.hot + 1) % REGIONS;
        self.heat_until = at + SETTINGS.story.heat_stays;
        self.story.tell(at, Tone::Plain, format!("most is asked in {} now", NAMES[self.hot]));
    }

    /// Whether the heat has stayed long enough. The heat does not move while something is broken, so that the
    /// effect of the fault can be seen.
    pub fn heat_is_due(&mut self, at: Duration) -> bool {
        if !self.is_whole() {
            self.heat_until = self.heat_until.max(at + SETTINGS.story.heat_stays / 2);
        }
        at >= self.heat_until
    }

    /// Orders another budget. `None` at the end of the range, or before a node has reported the last order.
    pub fn order_budget(&mut self, is_more: bool) -> Option<u64> {
        let now = self.in_force.newest()[0].rate;
        let next = match is_more {
            true => now.saturating_add(SETTINGS.story.budget_step),
            false => now.saturating_sub(SETTINGS.story.budget_step),
        };
        let next = next.clamp(SETTINGS.story.budget_min, SETTINGS.story.budget_max);
        if next == now || self.ordered != Ordered::Done {
            return None;
        }
        self.ordered = Ordered::Sent;
        Some(next)
    }

    /// Takes in the outcome of an order: the version that has the new budget, or an error.
    pub fn budget_answered(&mut self, at: Duration, answer: Result<VersionId, String>) {
        match answer {
            Ok(version) if self.in_force.has_reached(version) => self.ordered = Ordered::Done,
            Ok(version) => self.ordered = Ordered::Answered(version),
            Err(why) => {
                // The order may still have been carried out: then the nodes report it.
                self.ordered = Ordered::Done;
                let words = format!("the budget was not set: {}", why.lines().next().unwrap_or(""));
                self.story.tell(at, Tone::Bad, words);
            }
        }
    }

    /// Takes in a node's report, except what it says of other nodes: see [`Self::acknowledge`].
    pub fn hear(&mut self, at: Duration, region: usize, status: Option<NodeStatus>, fault: String) {
        let node = &mut self.nodes[region];
        node.fault = fault;
        let Some(status) = status else { return };
        if node.fault.is_empty() {
            node.gauge.report(&status);
        }
        if let Some(before) = self.in_force.report(at, &status) {
            for (kind, (now, before)) in self.in_force.newest().into_iter().zip(before).enumerate() {
                if now != before {
                    let words = format!("{} set to {}", LIMITS[kind], numbers(kind, now));
                    self.story.tell(at, Tone::Plain, words);
                }
            }
        }
        node.status = Some(status);
        if let Ordered::Answered(version) = self.ordered
            && self.in_force.has_reached(version)
        {
            self.ordered = Ordered::Done;
        }
        self.look_at_loans(at, region);
    }

    /// Checks whether a node has reported that every node goes by the newest numbers.
    pub fn acknowledge(&mut self, at: Duration, region: usize) {
        let status = self.nodes[region].status.as_ref();
        if let Some(took) = status.and_then(|status| self.in_force.acknowledge(at, status)) {
            let words = format!("in force everywhere after {}", crate::view::words::short(took));
            self.story.tell(at, Tone::Good, words);
        }
    }

    /// Tells when a region has begun to borrow, or has ended.
    fn look_at_loans(&mut self, at: Duration, region: usize) {
        let Share { standing, borrowed, .. } = self.share(region);
        let least = standing * SETTINGS.story.borrowed_percent / 100;
        let news = &mut self.borrowing[region];
        let is_borrowing = if news.is_told { borrowed >= least / 2 } else { borrowed > least };
        if is_borrowing == news.is_told {
            news.is_otherwise_since = None;
            return;
        }
        if at.saturating_sub(*news.is_otherwise_since.get_or_insert(at)) < SETTINGS.story.news_after {
            return;
        }
        *news = Borrowing { is_told: is_borrowing, is_otherwise_since: None };
        let words = match is_borrowing {
            true => format!("{} has borrowed {borrowed}/s", NAMES[region]),
            false => format!("{} is back to its own share", NAMES[region]),
        };
        self.story.tell(at, Tone::Plain, words);
    }

    /// A region's share of the budget, by its node's last report.
    pub fn share(&self, region: usize) -> Share {
        let Some(status) = &self.nodes[region].status else { return Share::default() };
        let is_budget = |limit: &&acequia_api::acequia::v1::LimitStatus| {
            limit.domain == DOMAIN && limit.name == LIMITS[0]
        };
        status.limits.iter().find(is_budget).map_or(Share::default(), |limit| overview::share(status, limit))
    }

    /// What passes a link, as far as the nodes have noticed. A whole link is quiet until both ends have heard
    /// each other.
    pub fn flow(&self, link: usize) -> Flow {
        let flow = self.links.flows()[link];
        let (one, other) = PAIRS[link];
        let both = self.hears(one, other).and_then(|a| Some(a && self.hears(other, one)?));
        match (flow, both) {
            (Flow::Open, Some(false)) => Flow::Quiet,
            (flow, _) => flow,
        }
    }

    /// Whether a node hears another; `None` if its report does not say.
    fn hears(&self, by: usize, other: usize) -> Option<bool> {
        let node = &self.nodes[by];
        let status = node.status.as_ref().filter(|_| node.fault.is_empty())?;
        let peer = status.peers.iter().find(|peer| peer.region == NAMES[other])?;
        Some(peer.reached)
    }
}

/// A limit's numbers, in short form.
pub fn numbers(kind: usize, Numbers { rate, units }: Numbers) -> String {
    match kind {
        0 | 1 => format!("{rate}/s burst {units}"),
        _ => format!("{units} per {}", EXPORTS.window),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use acequia_api::acequia::v1::{Catalogue, Holding, LimitStatus, Peer, limit_status::Kind};

    use super::{super::plan::AUTHORITY, *};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The report of a node with this much of the budget, in units a second: standing, lent, borrowed.
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
                requested: Some(VersionId { epoch: 1, number: 4 }),
                effective: Some(VersionId { epoch: 1, number: 4 }),
                is_authority: region == AUTHORITY,
                ..Catalogue::default()
            }),
            ..NodeStatus::default()
        }
    }

    pub(in super::super) fn told(state: &State) -> Vec<String> {
        state.story.events().map(|event| event.words.clone()).collect()
    }

    /// The authority's report at this version, with a budget of `rate` units a second and as large a burst.
    fn at_version(number: u64, rate: u64, effective: u64) -> NodeStatus {
        let mut status = status(AUTHORITY, [333, 0, 0]);
        (status.limits[0].rate_milli, status.limits[0].units) = (rate * 1_000, rate);
        let catalogue = status.catalogue.as_mut().expect("one");
        catalogue.requested = Some(VersionId { epoch: 1, number });
        catalogue.effective = Some(VersionId { epoch: 1, number: effective });
        status
    }

    fn hear(state: &mut State, seconds: u64, status: NodeStatus) {
        state.hear(at(seconds), AUTHORITY, Some(status), String::new());
        state.acknowledge(at(seconds), AUTHORITY);
    }

    #[test]
    fn a_budget_set_elsewhere_is_reported_and_changes_the_load() {
        let mut state = State::default();
        hear(&mut state, 1, at_version(5, 2_000, 4));
        assert_eq!(state.demands(), [2_400, 300, 300]);
        assert_eq!(state.usable(), 1_000, "not every node has it yet");
        hear(&mut state, 2, at_version(5, 2_000, 5));
        assert_eq!(state.usable(), 2_000);
        assert_eq!(told(&state), ["budget set to 2000/s burst 2000", "in force everywhere after 1.0 s"]);
    }

    #[test]
    fn the_keys_keep_the_budget_in_its_range() {
        let mut state = State::default();
        let mut number = 4;
        for (is_more, end) in [(false, SETTINGS.story.budget_min), (true, SETTINGS.story.budget_max)] {
            while let Some(budget) = state.order_budget(is_more) {
                number += 1;
                state.budget_answered(at(0), Ok(VersionId { epoch: 1, number }));
                hear(&mut state, 0, at_version(number, budget, number));
            }
            assert_eq!(state.in_force.newest()[0].rate, end);
        }
    }

    #[test]
    fn one_budget_order_is_sent_at_a_time_and_a_refused_one_has_no_effect() {
        let mut state = State::default();
        assert_eq!(state.order_budget(true), Some(1_100));
        assert_eq!(state.order_budget(true), None, "the authority has not answered");
        state.budget_answered(at(2), Err("no authority\nand more".to_owned()));
        assert_eq!(told(&state), ["the budget was not set: no authority"]);
        assert_eq!(state.order_budget(true), Some(1_100));
        state.budget_answered(at(3), Ok(VersionId { epoch: 1, number: 5 }));
        assert_eq!(state.order_budget(true), None, "no node has reported it");
        hear(&mut state, 3, at_version(5, 1_100, 5));
        assert_eq!(state.order_budget(true), Some(1_200));
    }

    #[test]
    fn the_hot_region_changes_by_itself_unless_something_is_broken() {
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
    fn healing_begins_only_when_nothing_is_broken_any_more() {
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
    fn loans_are_reported_when_they_have_begun_or_ended_for_good() {
        let mut state = State::default();
        // One value each 200 ms; at second 0 the loan only moves.
        let borrowed = [0, 100, 300, 367, 367, 0, 300, 300, 20, 0, 0, 0];
        for (number, borrowed) in borrowed.into_iter().enumerate() {
            let at = Duration::from_millis(number as u64 * 200);
            state.hear(at, 1, Some(status(1, [333, 0, borrowed])), String::new());
        }
        assert_eq!(told(&state), ["us has borrowed 367/s", "us is back to its own share"]);
    }

    #[test]
    fn an_uncut_link_is_quiet_until_both_ends_hear_each_other() {
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
