//! Makes a picture of regions from their nodes' reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use acequia_api::acequia::v1::{Holding, LimitStatus, NodeStatus, Peer, limit_status::Kind};

use super::{
    gauge::Gauge,
    picture::{Budget, Condition, Flow, Link, Picture, Region, Row, Share},
};
use crate::settings::SETTINGS;

/// A node that is asked, and its report.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The node's address.
    pub address: String,
    /// The last report; `None` before the first.
    pub status: Option<NodeStatus>,
    /// Why the node does not answer now; empty while it does.
    pub fault: String,
    /// The node's counters.
    pub gauge: Gauge,
}

/// A limit's name in the list.
pub fn path(limit: &LimitStatus) -> String {
    format!("{}/{}", limit.domain, limit.name)
}

/// A region's share of a limit, in the limit's units.
pub fn share(status: &NodeStatus, limit: &LimitStatus) -> Share {
    let is_rate = limit.kind() == Kind::Rate;
    let units = |holding: Option<&Holding>| {
        let holding = holding.copied().unwrap_or_default();
        if is_rate { (holding.rate_milli + 500) / 1_000 } else { holding.units }
    };
    let share = Share {
        standing: units(limit.standing.as_ref()),
        lent: units(limit.lent.as_ref()),
        borrowed: units(limit.borrowed.as_ref()),
    };
    if share == Share::default() && limit.cells <= 1 {
        // Nothing is actively shared: the region has its share by the formula.
        return Share { standing: by_formula(status, budget(limit).units), ..share };
    }
    share
}

/// A node's standing share of so many units, by the weights.
fn by_formula(status: &NodeStatus, units: u64) -> u64 {
    let all: u64 = status.members.iter().map(|member| u64::from(member.weight)).sum();
    let mut of_region = status.members.iter().filter(|member| member.region == status.region);
    let own = of_region.clone().find(|member| member.node == status.node).or_else(|| of_region.next());
    match (all, own) {
        (0, _) => units,
        (all, own) => units / all * own.map_or(0, |member| u64::from(member.weight)),
    }
}

/// A limit's numbers.
pub fn budget(limit: &LimitStatus) -> Budget {
    let (units, unit, burst) = match limit.kind() {
        Kind::Rate => (limit.rate_milli / 1_000, "/s", Some(limit.units)),
        Kind::Window | Kind::Sliding | Kind::Unspecified => (limit.units, "", None),
    };
    Budget { name: path(limit), words: limit.budget.clone(), units: units.max(1), unit, burst }
}

/// Regions, links and limits as the nodes see them now. The boxes show the chosen limit, or else the busiest.
pub fn picture(nodes: &[Asked], chosen: Option<&str>) -> Picture {
    let limits = rows(nodes);
    let place = chosen.and_then(|name| limits.iter().position(|row| row.name == name));
    let chosen_limit = place.or((!limits.is_empty()).then_some(0));
    let name = chosen_limit.map_or("", |place| limits[place].name.as_str());
    let found = nodes.iter().filter_map(|node| limit_of(node, name)).next();
    let regions = regions(nodes, name);
    Picture {
        budget: found.map(budget).unwrap_or_default(),
        links: links(nodes, &regions),
        regions,
        limits,
        chosen_limit,
        ..Picture::default()
    }
}

fn limit_of<'a>(node: &'a Asked, name: &str) -> Option<&'a LimitStatus> {
    node.status.as_ref()?.limits.iter().find(|limit| path(limit) == name)
}

/// All limits, summed over the nodes that answer. Limits with the most denials come first, then those with
/// the most admissions.
fn rows(nodes: &[Asked]) -> Vec<Row> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for node in nodes {
        for limit in node.status.iter().flat_map(|status| &status.limits) {
            let name = path(limit);
            let row = rows.entry(name.clone()).or_insert_with(|| Row {
                name: name.clone(),
                budget: limit.budget.clone(),
                unit: limit.unit.clone(),
                ..Row::default()
            });
            if node.fault.is_empty() {
                let rates = node.gauge.rates(&name);
                row.admitted = row.admitted.saturating_add(rates.admitted);
                row.denied = row.denied.saturating_add(rates.denied);
            }
        }
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.denied, row.admitted)));
    rows.truncate(SETTINGS.view.limits_max);
    rows
}

fn regions(nodes: &[Asked], limit: &str) -> Vec<Region> {
    let mut regions: BTreeMap<String, Region> = BTreeMap::new();
    for node in nodes {
        let region = asked_region(node, limit);
        regions.insert(region.name.clone(), region);
    }
    for (by, peer) in nodes.iter().filter_map(|node| node.status.as_ref()).flat_map(heard) {
        regions.entry(peer.region.clone()).or_insert_with(|| Region {
            name: peer.region.clone(),
            condition: Condition::Unasked(if peer.reached {
                format!("{by} hears it")
            } else {
                format!("{by} does not hear it")
            }),
            ..Region::default()
        });
    }
    let mut regions: Vec<Region> = regions.into_values().take(SETTINGS.view.regions_max).collect();
    let hottest = regions.iter().filter_map(|region| region.demand).max().filter(|demand| *demand > 0);
    let mut hot = regions.iter_mut().filter(|region| hottest.is_some() && region.demand == hottest);
    if let (Some(hottest), None) = (hot.next(), hot.next()) {
        hottest.is_hot = true;
    }
    regions
}

fn heard(status: &NodeStatus) -> impl Iterator<Item = (&str, &Peer)> {
    status.peers.iter().map(|peer| (status.region.as_str(), peer))
}

fn asked_region(node: &Asked, limit: &str) -> Region {
    let Some(status) = &node.status else {
        return Region { name: node.address.clone(), condition: Condition::Down, ..Region::default() };
    };
    let mut region = Region {
        name: status.region.clone(),
        is_authority: status.catalogue.as_ref().is_some_and(|catalogue| catalogue.is_authority),
        condition: match (node.fault.is_empty(), status.ready) {
            (false, _) => Condition::Down,
            (true, true) => Condition::Up,
            (true, false) => Condition::Waiting(status.not_ready.clone()),
        },
        ..Region::default()
    };
    if let Some(found) = limit_of(node, limit) {
        let rates = node.gauge.rates(limit);
        region.share = share(status, found);
        (region.admitted, region.denied) = (rates.admitted, rates.denied);
        // Cells that are not actively shared have no demand of their own: demand is then what was answered.
        region.demand = Some((found.demand_milli / 1_000).max(rates.admitted));
    }
    region
}

fn links(nodes: &[Asked], regions: &[Region]) -> Vec<Link> {
    let mut hears: BTreeMap<(&str, &str), &Peer> = BTreeMap::new();
    for (by, peer) in
        nodes.iter().filter(|node| node.fault.is_empty()).filter_map(|n| n.status.as_ref()).flat_map(heard)
    {
        hears.insert((by, &peer.region), peer);
    }
    let answering: BTreeSet<&str> = hears.keys().map(|(by, _)| *by).collect();
    let mut links = Vec::new();
    for to in 0..regions.len() {
        for from in 0..to {
            let (one, other) = (regions[from].name.as_str(), regions[to].name.as_str());
            let (back, forth) = (hears.get(&(one, other)), hears.get(&(other, one)));
            if back.is_none() && forth.is_none() {
                continue;
            }
            // A node that is not asked is assumed to hear every node that hears it.
            let reached = |peer: Option<&&Peer>, by: &str, otherwise: bool| match peer {
                Some(peer) => peer.reached,
                None => otherwise && !answering.contains(by),
            };
            let is_back = reached(back, one, forth.is_some_and(|peer| peer.reached));
            let is_forth = reached(forth, other, back.is_some_and(|peer| peer.reached));
            let flow = match (is_forth, is_back) {
                (true, true) => Flow::Open,
                (true, false) => Flow::Forth,
                (false, true) => Flow::Back,
                (false, false) => Flow::Cut,
            };
            let round_trip = [back, forth].into_iter().flatten().filter_map(|peer| peer.round_trip_us).max();
            let round_trip = round_trip.map(Duration::from_micros);
            links.push(Link { from, to, flow, round_trip, is_chosen: false });
        }
    }
    // Neighbours come first, in their order.
    links.sort_by_key(|link| (link.to - link.from, link.from));
    links
}

#[cfg(test)]
mod tests {
    use acequia_api::acequia::v1::{Catalogue, Member};

    use super::*;

    fn holding(rate: u64) -> Option<Holding> {
        Some(Holding { rate_milli: rate * 1_000, units: rate })
    }

    fn limit(name: &str) -> LimitStatus {
        LimitStatus {
            domain: "shop".to_owned(),
            name: name.to_owned(),
            budget: "token_bucket 900/s burst 900".to_owned(),
            kind: Kind::Rate.into(),
            rate_milli: 900_000,
            units: 900,
            cells: 1,
            ..LimitStatus::default()
        }
    }

    fn peer(region: &str, reached: bool) -> Peer {
        Peer {
            region: region.to_owned(),
            node: format!("{region}-1"),
            reached,
            connected: reached,
            round_trip_us: reached.then_some(80_400),
            ..Peer::default()
        }
    }

    /// A node with these numbers of admissions and denials in its second second.
    fn asked(region: &str, peers: Vec<Peer>, admitted: u64, denied: u64) -> Asked {
        let member = |region: &str| Member { region: region.to_owned(), weight: 1, ..Member::default() };
        let mut busy = limit("busy");
        busy.standing = holding(300);
        busy.lent = holding(100);
        let mut status = NodeStatus {
            region: region.to_owned(),
            node: format!("{region}-1"),
            ready: true,
            uptime_ns: 1_000_000_000,
            members: ["ap", "eu", "us"].map(member).into(),
            catalogue: Some(Catalogue { is_authority: region == "eu", ..Catalogue::default() }),
            peers,
            limits: vec![limit("calm"), busy],
            ..NodeStatus::default()
        };
        let mut gauge = Gauge::default();
        gauge.report(&status);
        status.uptime_ns = 2_000_000_000;
        (status.limits[1].admitted_units, status.limits[1].denied) = (admitted, denied);
        gauge.report(&status);
        Asked { address: format!("{region}:1"), status: Some(status), fault: String::new(), gauge }
    }

    #[test]
    fn the_busiest_limit_comes_first_and_fills_the_boxes() {
        let nodes = [
            asked("us", vec![peer("eu", true), peer("ap", true)], 400, 7),
            asked("eu", vec![peer("us", true), peer("ap", true)], 100, 0),
        ];
        let picture = picture(&nodes, None);
        assert_eq!(picture.limits[0].name, "shop/busy");
        assert_eq!((picture.limits[0].admitted, picture.limits[0].denied), (500, 7));
        let names: Vec<_> = picture.regions.iter().map(|region| region.name.as_str()).collect();
        assert_eq!(names, ["ap", "eu", "us"]);
        let [ap, eu, us] = &picture.regions[..] else { panic!("three regions") };
        assert_eq!(ap.condition, Condition::Unasked("us hears it".to_owned()));
        assert_eq!(us.share, Share { standing: 300, lent: 100, borrowed: 0 });
        assert!(eu.is_authority && !us.is_authority);
        assert!(us.is_hot && !eu.is_hot);
        assert_eq!(picture.budget.units, 900);
    }

    #[test]
    fn a_limit_without_active_cells_shows_its_standing_share() {
        let nodes = [asked("eu", Vec::new(), 0, 0)];
        let picture = picture(&nodes, Some("shop/calm"));
        assert_eq!(picture.budget.name, "shop/calm");
        assert_eq!(picture.regions[0].share, Share { standing: 300, ..Share::default() });
    }

    #[test]
    fn a_links_state_depends_on_what_both_ends_hear() {
        let both = |eu_hears: bool, us_hears: bool| {
            let nodes = [
                asked("eu", vec![peer("us", eu_hears)], 0, 0),
                asked("us", vec![peer("eu", us_hears)], 0, 0),
            ];
            let links = picture(&nodes, None).links;
            assert_eq!(links.len(), 1);
            links[0].flow
        };
        assert_eq!(both(true, true), Flow::Open);
        assert_eq!(both(false, true), Flow::Forth);
        assert_eq!(both(true, false), Flow::Back);
        assert_eq!(both(false, false), Flow::Cut);
        // Only one of the two nodes is asked.
        let nodes = [asked("eu", vec![peer("us", true), peer("ap", false)], 0, 0)];
        let flows: Vec<_> = picture(&nodes, None).links.iter().map(|link| link.flow).collect();
        assert_eq!(flows, [Flow::Cut, Flow::Open]);
    }

    #[test]
    fn a_node_that_does_not_answer_is_down_and_keeps_its_name() {
        let mut gone = asked("us", Vec::new(), 400, 9);
        gone.fault = "connection refused".to_owned();
        let never = Asked { address: "10.0.0.9:8082".to_owned(), fault: "?".to_owned(), ..Asked::default() };
        let picture = picture(&[gone, never], None);
        let conditions: Vec<_> =
            picture.regions.iter().map(|region| (region.name.as_str(), region.condition.clone())).collect();
        assert_eq!(conditions, [("10.0.0.9:8082", Condition::Down), ("us", Condition::Down)]);
        assert_eq!(picture.limits[0].denied, 0);
    }
}
