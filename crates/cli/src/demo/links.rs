//! The links between the regions: what passes, the delay, and how much of the budget can be used meanwhile.

use std::{io, net::SocketAddr, time::Duration};

use acequia_mesh::relay::{Cut, Link, Weather};

use super::plan::{NAMES, PAIRS, REGIONS, dials};
use crate::{settings::SETTINGS, view::picture::Flow};

/// What passes between each pair of regions, and the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    /// By the place in [`PAIRS`]. Forth is from the first of the pair to the second.
    flows: [Flow; PAIRS.len()],
    delay: Duration,
}

impl Default for Links {
    fn default() -> Self {
        Self { flows: [Flow::Open; PAIRS.len()], delay: SETTINGS.stage.delay }
    }
}

impl Links {
    /// What passes, by the place in [`PAIRS`].
    pub const fn flows(&self) -> [Flow; PAIRS.len()] {
        self.flows
    }

    /// The delay of a round trip.
    pub fn round_trip(&self) -> Duration {
        self.delay * 2
    }

    /// Whether no link is cut.
    pub fn are_whole(&self) -> bool {
        self.flows.iter().all(|flow| *flow == Flow::Open)
    }

    /// Changes what passes one link.
    pub fn set(&mut self, link: usize, flow: Flow) {
        self.flows[link] = flow;
    }

    /// Cuts a region off from the others.
    pub fn isolate(&mut self, region: usize) {
        for (flow, (one, other)) in self.flows.iter_mut().zip(PAIRS) {
            if one == region || other == region {
                *flow = Flow::Cut;
            }
        }
    }

    /// Lets everything pass.
    pub fn mend(&mut self) {
        self.flows = [Flow::Open; PAIRS.len()];
    }

    /// Makes the delay of all links longer or shorter.
    pub fn delay(&mut self, is_longer: bool) {
        self.delay = match is_longer {
            true => (self.delay + SETTINGS.stage.delay_step).min(SETTINGS.stage.delay_max),
            false => self.delay.saturating_sub(SETTINGS.stage.delay_step),
        };
    }

    /// Units a second of the budget that could be used if every region lent what it does not need over its
    /// whole links. A dead region is asked nothing, and nobody has its share.
    pub fn usable(&self, budget: u64, demands: [u64; REGIONS], is_alive: [bool; REGIONS]) -> u64 {
        // The flow from shares to demands is limited by the tightest cut: the whole demand of some regions,
        // and the shares that the other regions can reach.
        let whole = u128::from(budget) * u128::from(self.alive(is_alive)) / REGIONS as u128;
        let cut = |inside: usize| {
            let is_inside = |region: usize| inside >> region & 1 == 1;
            let demand: u64 = (0..REGIONS)
                .filter(|region| is_alive[*region] && !is_inside(*region))
                .map(|r| demands[r])
                .sum();
            let reached = (0..REGIONS).filter(|giver| {
                is_alive[*giver]
                    && (0..REGIONS)
                        .any(|taker| is_inside(taker) && is_alive[taker] && self.lends(*giver, taker))
            });
            let reached = u128::from(budget) * reached.count() as u128 / REGIONS as u128;
            u128::from(demand) + reached
        };
        let least = (0..1 << REGIONS).map(cut).min().unwrap_or(whole);
        u64::try_from(least.min(whole)).unwrap_or(u64::MAX)
    }

    fn alive(&self, is_alive: [bool; REGIONS]) -> u32 {
        is_alive.iter().map(|alive| u32::from(*alive)).sum()
    }

    /// Whether a region can lend to another, or to itself.
    fn lends(&self, giver: usize, taker: usize) -> bool {
        let mut open = PAIRS.iter().zip(self.flows).filter(|(_, flow)| *flow == Flow::Open);
        giver == taker || open.any(|(pair, _)| *pair == (giver, taker) || *pair == (taker, giver))
    }

    fn weather(&self, link: usize) -> Weather {
        let forth = matches!(self.flows[link], Flow::Cut | Flow::Back);
        let back = matches!(self.flows[link], Flow::Cut | Flow::Forth);
        let (one, other) = PAIRS[link];
        let cut = if dials(one, other) {
            Cut { to_target: forth, back }
        } else {
            Cut { to_target: back, back: forth }
        };
        Weather { cut, ..Weather::delayed(self.delay) }
    }
}

/// The relays that forward every packet between two regions.
#[derive(Debug)]
pub struct Relays {
    relays: Vec<Link>,
}

impl Relays {
    /// Starts a relay for each pair, towards the node of the pair that is dialled.
    ///
    /// # Errors
    /// The system gives no socket.
    pub fn start(links: &Links, mesh: [SocketAddr; REGIONS]) -> io::Result<Self> {
        let start = |link: usize| {
            let (one, other) = PAIRS[link];
            let target = if dials(one, other) { other } else { one };
            Link::start(mesh[target], links.weather(link), link as u64)
        };
        Ok(Self { relays: (0..PAIRS.len()).map(start).collect::<io::Result<_>>()? })
    }

    /// The address at which a region's node finds another's: a relay if it is the one that dials.
    pub fn address(&self, from: usize, to: usize, mesh: [SocketAddr; REGIONS]) -> SocketAddr {
        let between = PAIRS.iter().position(|pair| *pair == (from, to) || *pair == (to, from));
        match between {
            Some(link) if dials(from, to) => self.relays[link].address(),
            _ => mesh[to],
        }
    }

    /// Applies this weather to all packets from now on.
    pub fn set(&self, links: &Links) {
        for (link, relay) in self.relays.iter().enumerate() {
            relay.set(links.weather(link));
        }
    }
}

/// How many links there are.
pub const COUNT: usize = PAIRS.len();

/// A link's name, such as eu-us.
pub fn name(link: usize) -> String {
    let (one, other) = PAIRS[link];
    format!("{}-{}", NAMES[one], NAMES[other])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [bool; REGIONS] = [true; REGIONS];

    #[test]
    fn connected_regions_can_use_the_whole_limit_or_their_demand() {
        let links = Links::default();
        assert_eq!(links.usable(900, [1_200, 150, 150], ALL), 900);
        assert_eq!(links.usable(900, [100, 50, 50], ALL), 200);
    }

    #[test]
    fn a_region_that_is_cut_off_can_use_its_own_share() {
        let mut links = Links::default();
        links.isolate(0);
        assert_eq!(links.flows(), [Flow::Cut, Flow::Open, Flow::Cut]);
        assert_eq!(links.usable(900, [1_200, 150, 150], ALL), 300 + 300);
        assert_eq!(links.usable(900, [100, 900, 0], ALL), 100 + 600);
    }

    #[test]
    fn regions_do_not_lend_over_a_cut_link() {
        let mut links = Links::default();
        links.set(0, Flow::Forth);
        // eu can borrow all of ap if ap borrows from us; the rest of us's share is out of reach.
        assert_eq!(links.usable(900, [1_200, 100, 100], ALL), 300 + 300 + 100 + 100);
        links.mend();
        assert!(links.are_whole());
    }

    #[test]
    fn a_dead_region_has_no_demand_and_lends_nothing() {
        let links = Links::default();
        assert_eq!(links.usable(900, [150, 1_200, 150], [true, false, true]), 300);
        assert_eq!(links.usable(900, [1_200, 150, 150], [true, false, true]), 600);
        assert_eq!(links.usable(900, [1_200, 150, 150], [false; REGIONS]), 0);
    }

    #[test]
    fn a_cut_is_set_on_the_relay_from_the_diallers_side() {
        let mut links = Links::default();
        // eu dials us, and ap dials eu.
        links.set(0, Flow::Forth);
        links.set(2, Flow::Forth);
        assert_eq!(links.weather(0).cut, Cut { to_target: false, back: true });
        assert_eq!(links.weather(2).cut, Cut { to_target: true, back: false });
        links.set(1, Flow::Cut);
        assert_eq!(links.weather(1).cut, Cut::BOTH);
        assert_eq!(links.weather(1).delay, SETTINGS.stage.delay);
    }

    #[test]
    fn the_delay_stays_in_its_range() {
        let mut links = Links::default();
        for _ in 0..100 {
            links.delay(true);
        }
        assert_eq!(links.round_trip(), SETTINGS.stage.delay_max * 2);
        for _ in 0..100 {
            links.delay(false);
        }
        assert_eq!(links.round_trip(), Duration::ZERO);
    }
}
