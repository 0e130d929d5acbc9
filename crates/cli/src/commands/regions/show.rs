//! A node's status for people: itself, the other regions, its limits, what ends when, and the price of a cut.

use std::collections::BTreeMap;

use acequia_api::acequia::v1::{Member, NodeStatus, Peer};
use acequia_server::writer::DOWN;

use super::{cuts::cuts, limits::limits};
use crate::commands::{
    catalogue::{Line, line, lines, standing, version},
    people::{Align, Cell, Colour, Paint, duration, measured, plain, table},
};

/// Everything that an operator may want to know at three in the morning.
pub(super) fn for_people(status: &NodeStatus, paint: Paint) -> String {
    let blocks = [
        lines(&node(status), paint),
        regions(status, paint),
        limits(status, paint),
        sentences(&strangers(status)),
        sentences(&cuts(status)),
    ];
    blocks.into_iter().filter(|block| !block.is_empty()).collect::<Vec<_>>().join("\n")
}

/// One sentence a line.
fn sentences(sentences: &[String]) -> String {
    sentences.iter().map(|sentence| plain(sentence) + "\n").collect()
}

/// The node's facts about itself.
fn node(status: &NodeStatus) -> Vec<Line> {
    let NodeStatus { region, node, incarnation, uptime_ns, .. } = status;
    let up = duration(uptime_ns / 1_000_000);
    let mut all = vec![line("node", format!("{region}/{node}, incarnation {incarnation}, up for {up}"))];
    all.push(match (status.ready, status.not_ready.as_str()) {
        (true, _) => line("ready", "yes"),
        (false, "") => line("ready", "no"),
        (false, why) => [line("ready", "")[0].clone(), Cell::new(format!("no: {why}")).coloured(Colour::Red)],
    });
    if status.journal_is_down {
        all.push([line("journal", "")[0].clone(), Cell::new(DOWN).coloured(Colour::Red)]);
    }
    let catalogue = status.catalogue.as_ref();
    all.extend(standing(catalogue));
    if let Some(says) = clock(status) {
        all.push([line("clock", "")[0].clone(), Cell::new(says).coloured(Colour::Red)]);
    }
    all
}

/// What is wrong with the node's wall clock, and how the node deals with it.
fn clock(status: &NodeStatus) -> Option<String> {
    let off = || {
        let corrected_us = status.wall_corrected_us;
        let which = if corrected_us < 0 { "ahead" } else { "behind" };
        format!("{} {which}", duration(corrected_us.unsigned_abs() / 1_000))
    };
    match status.wall.as_str() {
        "peers" => Some(format!(
            "{}, say most of the nodes that are reached: this node goes by theirs. Set this machine's clock",
            off()
        )),
        "carried" => Some(format!(
            "it was set {}, and nobody is reached who agrees: this node goes on as if it had not been",
            off()
        )),
        "unconfirmed" => Some(
            "nobody has agreed with it since the start: nothing is acknowledged or leased until somebody does".to_owned(),
        ),
        _ => None,
    }
}

const COLUMNS: [(&str, Align); 13] = [
    ("region", Align::Left),
    ("node", Align::Left),
    ("weight", Align::Right),
    ("link", Align::Left),
    ("heard", Align::Left),
    ("round trip", Align::Right),
    ("wall", Align::Right),
    ("has", Align::Left),
    ("lent", Align::Right),
    ("borrowed", Align::Right),
    ("refused", Align::Right),
    ("certificate", Align::Left),
    ("last error", Align::Left),
];

/// The members and all other heard nodes, by region and node. The columns lent and borrowed show loans.
fn regions(status: &NodeStatus, paint: Paint) -> String {
    let mut known: BTreeMap<_, (Option<&Member>, Option<&Peer>)> = BTreeMap::new();
    for member in &status.members {
        known.entry((member.region.as_str(), member.node.as_str())).or_default().0 = Some(member);
    }
    for peer in &status.peers {
        known.entry((peer.region.as_str(), peer.node.as_str())).or_default().1 = Some(peer);
    }
    let this = (status.region.as_str(), status.node.as_str());
    if known.keys().all(|name| *name == this) {
        return String::new();
    }
    let clock_error_ns = status.catalogue.as_ref().map_or(0, |catalogue| catalogue.clock_error_ns);
    let title = COLUMNS.map(|(title, _)| Cell::new(title).coloured(Colour::Bold));
    let rows = known.into_iter().map(|((region, node), (member, peer))| {
        let weight = member.map_or("-".to_owned(), |member| member.weight.to_string());
        let first = [Cell::new(region), Cell::new(node), Cell::new(weight)];
        let is_this = (region, node) == this;
        let has = status.catalogue.as_ref().and_then(|catalogue| catalogue.requested);
        let rest = match peer {
            Some(peer) => peer_cells(peer, clock_error_ns),
            None if is_this => absent("this node", &version(has), &status.fingerprint),
            None => absent("not in this node's file", "-", ""),
        };
        let mut cells = first.into_iter().chain(rest);
        std::array::from_fn(|_| cells.next().unwrap_or_else(|| Cell::new("")))
    });
    let rows: Vec<[Cell; 13]> = std::iter::once(title).chain(rows).collect();
    table(&rows, COLUMNS.map(|(_, align)| align), 0, paint)
}

fn absent(link: &str, has: &str, fingerprint: &str) -> [Cell; 10] {
    [link, "-", "-", "-", has, "-", "-", "-", short(fingerprint), ""].map(Cell::new)
}

/// As much of a certificate's fingerprint as an order needs.
fn short(fingerprint: &str) -> &str {
    fingerprint.get(..16).unwrap_or("-")
}

/// How far a peer's wall is ahead of this node's clock; red if neither clock errors nor message delay explain
/// it.
fn wall(peer: &Peer, clock_error_ns: u64) -> Cell {
    let Some(ahead_us) = peer.wall_ahead_us else { return Cell::new("-") };
    let sign = if ahead_us < 0 { "-" } else { "+" };
    let most_us = 2 * clock_error_ns / 1_000 + peer.wall_unsure_us.unwrap_or(0);
    let cell = Cell::new(format!("{sign}{}", measured(ahead_us.unsigned_abs())));
    if ahead_us.unsigned_abs() > most_us { cell.coloured(Colour::Red) } else { cell }
}

fn peer_cells(peer: &Peer, clock_error_ns: u64) -> [Cell; 10] {
    let heard = peer.heard_ms_ago.map_or("never".to_owned(), |ms| format!("{} ago", duration(ms)));
    [
        link(peer),
        Cell::new(heard),
        Cell::new(peer.round_trip_us.map_or("-".to_owned(), measured)),
        wall(peer, clock_error_ns),
        Cell::new(version(peer.has)),
        Cell::new(peer.lent.to_string()),
        Cell::new(peer.borrowed.to_string()),
        Cell::new(peer.refused.to_string()),
        Cell::new(short(&peer.fingerprint)),
        Cell::new(&peer.last_error),
    ]
}

fn link(peer: &Peer) -> Cell {
    match (peer.reached, peer.connected) {
        (true, true) => Cell::new("reached").coloured(Colour::Green),
        (true, false) => Cell::new("just lost").coloured(Colour::Yellow),
        (false, true) => Cell::new("silent").coloured(Colour::Red),
        (false, false) => Cell::new("down").coloured(Colour::Red),
    }
}

/// Peers that are reached but have no share, and what gives them one.
fn strangers(status: &NodeStatus) -> Vec<String> {
    // The first catalogue will name them.
    if status.members.is_empty() {
        return Vec::new();
    }
    let strangers = status.peers.iter().filter(|peer| !peer.is_member);
    strangers
        .map(|Peer { region, node, .. }| {
            let name = ordered_as(status, region, node);
            let is_it = |member: &Member| member.region == *region && (name == region || member.node == *node);
            if status.members.iter().any(is_it) {
                format!(
                    "{region}/{node} has no share: the catalogue names {name}, but not this node as it is now. If it lost \
                     its disk: acequia regions recover {name}"
                )
            } else {
                format!("{region}/{node} has no share: the catalogue does not name it. acequia regions add {name}")
            }
        })
        .collect()
}

/// The name of a node in orders: its region, or its own name if the region has several nodes.
fn ordered_as<'a>(status: &NodeStatus, region: &'a str, node: &'a str) -> &'a str {
    let peers = status.peers.iter().map(|peer| (&peer.region, &peer.node));
    let mut all = peers.chain([(&status.region, &status.node)]);
    let has_others = all.any(|(other, name)| other == region && name != node);
    if has_others { node } else { region }
}

/// Statuses for the tests of this folder.
#[cfg(test)]
pub(super) mod examples {
    use acequia_api::acequia::v1::{Holding, LimitStatus, limit_status::Kind};

    use super::*;
    use crate::commands::catalogue::examples::{pending, version_id};

    pub(in crate::commands::regions) fn member(region: &str, weight: u32) -> Member {
        Member { region: region.to_owned(), node: format!("{region}-1"), weight, incarnation: 1 }
    }

    /// us is a member, and has not been reached for 12 s.
    pub(in crate::commands::regions) fn us() -> Peer {
        Peer {
            region: "us".to_owned(),
            node: "us-1".to_owned(),
            address: "10.0.2.1:7201".to_owned(),
            heard_ms_ago: Some(12_000),
            has: Some(version_id(7)),
            is_member: true,
            refused: 3,
            last_error: "timed out".to_owned(),
            lent: 3,
            borrowed: 2,
            ..Peer::default()
        }
    }

    /// ap is reached, but is no member.
    pub(in crate::commands::regions) fn ap() -> Peer {
        Peer {
            region: "ap".to_owned(),
            node: "ap-1".to_owned(),
            address: "10.0.3.1:7201".to_owned(),
            connected: true,
            reached: true,
            heard_ms_ago: Some(120),
            round_trip_us: Some(34_280),
            wall_ahead_us: Some(-240),
            wall_unsure_us: Some(17_140),
            has: Some(version_id(8)),
            ..Peer::default()
        }
    }

    pub(in crate::commands::regions) fn plans() -> LimitStatus {
        LimitStatus {
            domain: "shop".to_owned(),
            name: "plans".to_owned(),
            budget: "token_bucket 900/s burst 300".to_owned(),
            kind: Kind::Rate.into(),
            rate_milli: 900_000,
            units: 300,
            admitted_units: 5_467,
            allowed: 5_467,
            denied: 12,
            admitted_everywhere: 9_000,
            standing: Some(Holding { rate_milli: 300_000, units: 100 }),
            lent: Some(Holding::default()),
            borrowed: Some(Holding { rate_milli: 146_500, units: 44 }),
            effective: Some(Holding { rate_milli: 446_500, units: 144 }),
            left: 17,
            demand_milli: 600_000,
            cells: 1,
            loans_end_ms: Some(2_050),
            ..LimitStatus::default()
        }
    }

    pub(in crate::commands::regions) fn exports() -> LimitStatus {
        LimitStatus {
            domain: "shop".to_owned(),
            name: "exports".to_owned(),
            budget: "fixed_window 100 in 1h".to_owned(),
            kind: Kind::Window.into(),
            units: 100,
            standing: Some(Holding { rate_milli: 0, units: 33 }),
            effective: Some(Holding { rate_milli: 0, units: 33 }),
            left: 33,
            cells: 1,
            window_end_ns: 1_795_306_593_000_000_000,
            ..LimitStatus::default()
        }
    }

    /// The authority's node while us is cut off.
    pub(in crate::commands::regions) fn cut() -> NodeStatus {
        NodeStatus {
            region: "eu".to_owned(),
            node: "eu-1".to_owned(),
            incarnation: 1,
            ready: true,
            wall: "own".to_owned(),
            catalogue: Some(pending()),
            members: vec![member("eu", 1), member("us", 2)],
            peers: vec![ap(), us()],
            limits: vec![plans(), exports()],
            wall_ns: 1_795_305_353_000_000_000,
            uptime_ns: 11_100_000_000_000,
            warm_cells: 1,
            fingerprint: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".to_owned(),
            ..NodeStatus::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{examples::*, *};

    #[test]
    fn the_status_of_regions_is_shown_in_order() {
        let text = for_people(&cut(), Paint::OFF);
        let blocks: Vec<_> = text.split("\n\n").collect();
        assert_eq!(
            blocks[0],
            "\
node       eu/eu-1, incarnation 1, up for 3 h 5 min
ready      yes
authority  eu/eu-1, this node
version    1.8 requested, 1.7 effective everywhere
waits for  us: not heard for 12 s; it goes on when us is heard, or is evicted"
        );
        assert_eq!(
            blocks[1],
            "\
region  node  weight  link       heard       round trip     wall  has  lent  borrowed  refused  certificate       last error
ap      ap-1       -  reached    120 ms ago     34.2 ms  -240 us  1.8     0         0        0  -
eu      eu-1       1  this node  -                    -        -  1.8     -         -        -  9f86d081884c7d65
us      us-1       2  down       12 s ago             -        -  1.7     3         2        3  -                 timed out"
        );
        assert!(blocks[2].starts_with("limit "), "{}", blocks[2]);
        assert_eq!(
            blocks[blocks.len() - 2],
            "ap/ap-1 has no share: the catalogue does not name it. acequia regions add ap"
        );
        assert!(blocks[blocks.len() - 1].starts_with("us is not reached"), "{text}");
    }

    #[test]
    fn a_node_without_regions_shows_only_itself() {
        let alone = NodeStatus {
            region: "eu".to_owned(),
            node: "eu-1".to_owned(),
            uptime_ns: 1_000_000,
            not_ready: "it is draining".to_owned(),
            ..NodeStatus::default()
        };
        assert_eq!(
            for_people(&alone, Paint::OFF),
            "\
node       eu/eu-1, incarnation 0, up for 1 ms
ready      no: it is draining
catalogue  none: the node stands alone, or has not heard from the authority yet
"
        );
    }

    #[test]
    fn a_suspect_clock_is_shown() {
        let said = |wall: &str, wall_corrected_us| {
            let status = NodeStatus { wall: wall.to_owned(), wall_corrected_us, ..cut() };
            for_people(&status, Paint::OFF)
        };
        assert!(
            said("peers", -3_600_000_000)
                .contains("\nclock      1 h ahead, say most of the nodes that are reached")
        );
        assert!(
            said("carried", 90_000_000).contains("\nclock      it was set 1 min 30 s behind, and nobody")
        );
        assert!(said("unconfirmed", 0).contains("\nclock      nobody has agreed with it since the start"));
        assert!(!said("own", 0).contains("\nclock "));
    }

    #[test]
    fn a_journal_that_cannot_be_written_is_shown() {
        let status = NodeStatus { ready: true, journal_is_down: true, ..cut() };
        let said = "\nready      yes\njournal    cannot be written: nothing new is reserved or lent until ";
        assert!(for_people(&status, Paint::OFF).contains(said));
    }

    #[test]
    fn each_state_of_a_link_has_its_own_word() {
        for (reached, connected, word) in [
            (true, true, "reached"),
            (true, false, "just lost"),
            (false, true, "silent"),
            (false, false, "down"),
        ] {
            let peer = Peer { reached, connected, heard_ms_ago: None, ..us() };
            let status = NodeStatus { peers: vec![peer], ..cut() };
            assert!(regions(&status, Paint::OFF).contains(&format!(" 2  {word} ")), "{word}");
        }
        let status = NodeStatus { peers: Vec::new(), ..cut() };
        assert!(regions(&status, Paint::OFF).contains(" 2  not in this node's file "));
    }

    #[test]
    fn a_node_that_may_have_lost_its_disk_is_named_with_the_remedy() {
        let mut status = cut();
        status.peers[0].is_member = true;
        status.peers[1].is_member = false;
        assert_eq!(
            strangers(&status),
            [
                "us/us-1 has no share: the catalogue names us, but not this node as it is now. If it lost its disk: \
              acequia regions recover us"
            ]
        );
    }
}
