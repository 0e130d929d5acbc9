//! Other regions: the units that this one may spend, the nodes that were heard, and the frames between them.

use std::fmt;

use acequia_api::acequia::v1::{Holding, LimitStatus, NodeStatus, Peer, VersionId};
use prometheus_client::registry::Unit;

use super::out::{GaugeOf, Out, signed};
use crate::{node_status, regions::Regions, shared::Shared};

const PEER_GAUGES: [GaugeOf<Peer, i64>; 4] = [
    GaugeOf {
        name: "acequia_peer_connected",
        help: "1 while there is a connection.",
        value: |peer| Some(i64::from(peer.connected)),
    },
    GaugeOf {
        name: "acequia_peer_reached",
        help: "1 while it was heard lately, so that rights are lent to it.",
        value: |peer| Some(i64::from(peer.reached)),
    },
    GaugeOf {
        name: "acequia_peer_lent",
        help: "Loans given to it now.",
        value: |peer| Some(signed(peer.lent)),
    },
    GaugeOf {
        name: "acequia_peer_borrowed",
        help: "Loans held of it now.",
        value: |peer| Some(signed(peer.borrowed)),
    },
];

const PEER_SECONDS: [GaugeOf<Peer, f64>; 3] = [
    GaugeOf {
        name: "acequia_peer_heard_ago",
        help: "Since it was last heard.",
        value: |peer| Some(peer.heard_ms_ago? as f64 / 1e3),
    },
    GaugeOf {
        name: "acequia_peer_round_trip",
        help: "There and back.",
        value: |peer| Some(peer.round_trip_us? as f64 / 1e6),
    },
    GaugeOf {
        name: "acequia_peer_wall_ahead",
        help: "What its system's wall clock is ahead of the one that this node goes by: below 0 where it is behind.",
        value: |peer| Some(peer.wall_ahead_us? as f64 / 1e6),
    },
];

/// What the node knows of the regions.
pub(super) fn regions(out: &mut Out<'_>, shared: &Shared, regions: &Regions) -> fmt::Result {
    let status = node_status::of(shared);
    peers(out, &status.peers)?;
    catalogue(out, &status)?;
    let expiry = regions.certificate_expiry_s();
    let help = "When this node's certificate expires, in seconds since 1970.";
    out.gauge("acequia_certificate_expiry_timestamp_seconds", help, expiry)?;
    traffic(out, &status, regions)?;
    holdings(out, &status.limits)
}

fn peers(out: &mut Out<'_>, peers: &[Peer]) -> fmt::Result {
    let names: Vec<String> = peers.iter().map(|peer| format!("{}/{}", peer.region, peer.node)).collect();
    let peers: Vec<(&str, &Peer)> = names.iter().map(String::as_str).zip(peers).collect();
    PEER_GAUGES.iter().try_for_each(|gauge| out.gauge_of_each(gauge, None, "peer", &peers))?;
    PEER_SECONDS.iter().try_for_each(|gauge| out.gauge_of_each(gauge, Some(&Unit::Seconds), "peer", &peers))
}

/// The catalogue's version, and the clock that this node goes by.
fn catalogue(out: &mut Out<'_>, status: &NodeStatus) -> fmt::Result {
    let number = |id: Option<VersionId>| id.map_or(0, |id| id.number);
    if let Some(catalogue) = &status.catalogue {
        out.gauges(
            "acequia_catalogue_version",
            "The catalogue's version here, and the one that every region conforms to.",
            [
                ([("which", "requested")], number(catalogue.requested)),
                ([("which", "effective")], number(catalogue.effective)),
            ],
        )?;
    }
    let help = "1 while the wall clock disagrees with the peers'.";
    out.gauge("acequia_clock_suspect", help, u64::from(status.clock_is_suspect))?;
    let walls = ["own", "peers", "carried", "unconfirmed"];
    let walls = walls.map(|wall| ([("wall", wall)], u64::from(status.wall == wall)));
    out.gauges("acequia_clock_wall", "By which wall clock this node goes: 1 for that one.", walls)?;
    out.gauge("acequia_warm_cells", "Cells that are shared actively.", status.warm_cells)
}

/// Frames from and to other regions, and what they brought.
fn traffic(out: &mut Out<'_>, status: &NodeStatus, regions: &Regions) -> fmt::Result {
    let traffic = status.traffic.unwrap_or_default();
    let ways = |inwards: u64, outwards: u64| [([("way", "in")], inwards), ([("way", "out")], outwards)];
    let frames = ways(traffic.frames_in, traffic.frames_out);
    out.counters("acequia_mesh_frames", "Frames from and to other regions.", frames)?;
    let bytes = ways(traffic.bytes_in, traffic.bytes_out);
    out.counters("acequia_mesh_bytes", "Bytes of frames from and to other regions.", bytes)?;
    let mut refused = vec![("frame", traffic.frames_refused), ("entry", traffic.entries_refused)];
    refused.push(("signature", regions.node.traffic().seals_refused));
    refused.extend(regions.refused().iter().map(|(refusal, count)| (refusal.name(), count)));
    let refused = refused.into_iter().map(|(what, count)| ([("what", what)], count));
    let help = "What came of other regions, or of strangers, and was refused.";
    out.counters("acequia_mesh_refused", help, refused)?;
    out.counter("acequia_loans_given", "Loans given to other regions.", traffic.loans_given)?;
    out.counter("acequia_loans_taken", "Loans taken up from other regions.", traffic.loans_taken)?;
    out.counter("acequia_rights_given", "Gifts of rights in windows.", traffic.rights_given)
}

fn holdings(out: &mut Out<'_>, limits: &[LimitStatus]) -> fmt::Result {
    let paths: Vec<String> = limits.iter().map(|l| format!("{}/{}", l.domain, l.name)).collect();
    let all = limits.iter().zip(&paths).flat_map(|(limit, path)| {
        holdings_of(limit).map(|(kind, holding)| ([("limit", path.as_str()), ("kind", kind)], holding))
    });
    out.gauges(
        "acequia_region_units",
        "Units at once, or in the window, of the cells that are shared actively.",
        all.clone().map(|(labels, holding)| (labels, holding.units)),
    )?;
    out.gauges_in(
        "acequia_region_units_per_second",
        "Units a second of the cells that are shared actively.",
        None,
        all.map(|(labels, holding)| (labels, holding.rate_milli as f64 / 1e3)),
    )
}

/// A region's holdings of a limit, by their words in metrics.
fn holdings_of(limit: &LimitStatus) -> [(&'static str, Holding); 4] {
    [
        ("standing", limit.standing),
        ("lent", limit.lent),
        ("borrowed", limit.borrowed),
        ("effective", limit.effective),
    ]
    .map(|(kind, holding)| (kind, holding.unwrap_or_default()))
}
