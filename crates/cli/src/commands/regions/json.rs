//! A node's status as JSON. Fields have the names of `proto/acequia/v1/admin.proto`. Rates and demands are in
//! thousandths of a unit a second, and an absent value is null.

use acequia_api::acequia::v1::{LimitStatus, Member, NodeStatus, Peer, Traffic, limit_status::Kind};
use serde::Serialize;

use crate::commands::{
    catalogue::{CatalogueJson, VersionIdJson},
    shares::HoldingJson,
};

/// A node's status.
#[derive(Debug, Serialize)]
pub(super) struct StatusJson<'a> {
    region: &'a str,
    node: &'a str,
    incarnation: u32,
    ready: bool,
    not_ready: &'a str,
    catalogue: Option<CatalogueJson<'a>>,
    members: Vec<MemberJson<'a>>,
    peers: Vec<PeerJson<'a>>,
    limits: Vec<LimitJson<'a>>,
    traffic: Option<TrafficJson>,
    wall_ns: u64,
    steady_ns: u64,
    uptime_ns: u64,
    clock_is_suspect: bool,
    wall: &'a str,
    wall_corrected_us: i64,
    journal_is_down: bool,
    warm_cells: u64,
    fingerprint: &'a str,
}

impl<'a> StatusJson<'a> {
    pub(super) fn new(status: &'a NodeStatus) -> Self {
        Self {
            region: &status.region,
            node: &status.node,
            incarnation: status.incarnation,
            ready: status.ready,
            not_ready: &status.not_ready,
            catalogue: CatalogueJson::new(status.catalogue.as_ref()),
            members: status.members.iter().map(MemberJson::new).collect(),
            peers: status.peers.iter().map(PeerJson::new).collect(),
            limits: status.limits.iter().map(LimitJson::new).collect(),
            traffic: status.traffic.as_ref().map(TrafficJson::new),
            wall_ns: status.wall_ns,
            steady_ns: status.steady_ns,
            uptime_ns: status.uptime_ns,
            clock_is_suspect: status.clock_is_suspect,
            wall: &status.wall,
            wall_corrected_us: status.wall_corrected_us,
            journal_is_down: status.journal_is_down,
            warm_cells: status.warm_cells,
            fingerprint: &status.fingerprint,
        }
    }
}

#[derive(Debug, Serialize)]
struct MemberJson<'a> {
    region: &'a str,
    node: &'a str,
    weight: u32,
    incarnation: u32,
}

impl<'a> MemberJson<'a> {
    fn new(member: &'a Member) -> Self {
        Self {
            region: &member.region,
            node: &member.node,
            weight: member.weight,
            incarnation: member.incarnation,
        }
    }
}

#[derive(Debug, Serialize)]
struct PeerJson<'a> {
    region: &'a str,
    node: &'a str,
    address: &'a str,
    connected: bool,
    reached: bool,
    heard_ms_ago: Option<u64>,
    round_trip_us: Option<u64>,
    has: Option<VersionIdJson>,
    is_member: bool,
    refused: u64,
    last_error: &'a str,
    lent: u64,
    borrowed: u64,
    wall_ahead_us: Option<i64>,
    wall_unsure_us: Option<u64>,
    fingerprint: &'a str,
}

impl<'a> PeerJson<'a> {
    fn new(peer: &'a Peer) -> Self {
        Self {
            region: &peer.region,
            node: &peer.node,
            address: &peer.address,
            connected: peer.connected,
            reached: peer.reached,
            heard_ms_ago: peer.heard_ms_ago,
            round_trip_us: peer.round_trip_us,
            has: VersionIdJson::new(peer.has),
            is_member: peer.is_member,
            refused: peer.refused,
            last_error: &peer.last_error,
            lent: peer.lent,
            borrowed: peer.borrowed,
            wall_ahead_us: peer.wall_ahead_us,
            wall_unsure_us: peer.wall_unsure_us,
            fingerprint: &peer.fingerprint,
        }
    }
}

#[derive(Debug, Serialize)]
struct LimitJson<'a> {
    domain: &'a str,
    name: &'a str,
    budget: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    unit: &'a str,
    /// "rate", "window", "sliding", or "unknown".
    kind: &'static str,
    rate_milli: u64,
    units: u64,
    admitted_units: u64,
    allowed: u64,
    denied: u64,
    admitted_everywhere: u64,
    standing: HoldingJson,
    lent: HoldingJson,
    borrowed: HoldingJson,
    effective: HoldingJson,
    left: u64,
    demand_milli: u64,
    cells: u64,
    /// Null if no window is open.
    window_end_ns: Option<u64>,
    loans_end_ms: Option<u64>,
}

impl<'a> LimitJson<'a> {
    fn new(limit: &'a LimitStatus) -> Self {
        Self {
            domain: &limit.domain,
            name: &limit.name,
            budget: &limit.budget,
            unit: &limit.unit,
            kind: kind_word(limit.kind()),
            rate_milli: limit.rate_milli,
            units: limit.units,
            admitted_units: limit.admitted_units,
            allowed: limit.allowed,
            denied: limit.denied,
            admitted_everywhere: limit.admitted_everywhere,
            standing: HoldingJson::new(limit.standing),
            lent: HoldingJson::new(limit.lent),
            borrowed: HoldingJson::new(limit.borrowed),
            effective: HoldingJson::new(limit.effective),
            left: limit.left,
            demand_milli: limit.demand_milli,
            cells: limit.cells,
            window_end_ns: Some(limit.window_end_ns).filter(|end| *end > 0),
            loans_end_ms: limit.loans_end_ms,
        }
    }
}

fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Rate => "rate",
        Kind::Window => "window",
        Kind::Sliding => "sliding",
        // A newer node may know more kinds.
        Kind::Unspecified => "unknown",
    }
}

/// Counts since the process started.
#[derive(Debug, Serialize)]
struct TrafficJson {
    frames_in: u64,
    frames_out: u64,
    bytes_in: u64,
    bytes_out: u64,
    frames_refused: u64,
    entries_refused: u64,
    loans_given: u64,
    loans_taken: u64,
    rights_given: u64,
}

impl TrafficJson {
    fn new(traffic: &Traffic) -> Self {
        Self {
            frames_in: traffic.frames_in,
            frames_out: traffic.frames_out,
            bytes_in: traffic.bytes_in,
            bytes_out: traffic.bytes_out,
            frames_refused: traffic.frames_refused,
            entries_refused: traffic.entries_refused,
            loans_given: traffic.loans_given,
            loans_taken: traffic.loans_taken,
            rights_given: traffic.rights_given,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::show::examples, *};
    use crate::commands::json_line;

    #[test]
    fn the_json_of_regions_has_every_field_and_null_if_absent() {
        assert_eq!(
            json_line(&StatusJson::new(&examples::cut())),
            concat!(
                r#"{"region":"eu","node":"eu-1","incarnation":1,"ready":true,"not_ready":"","#,
                r#""catalogue":{"authority":"eu/eu-1","is_authority":true,"requested":{"epoch":1,"number":8},"#,
                r#""effective":{"epoch":1,"number":7},"pending":[{"region":"us","#,
                r#""waiting":"not heard for 12 s; it goes on when us is heard, or is evicted"}],"#,
                r#""differences":[],"clock_error_ns":10000000,"drift_ppm":1000,"revoked":[],"older_until_ns":0},"#,
                r#""members":[{"region":"eu","node":"eu-1","weight":1,"incarnation":1},"#,
                r#"{"region":"us","node":"us-1","weight":2,"incarnation":1}],"#,
                r#""peers":[{"region":"ap","node":"ap-1","address":"10.0.3.1:7201","connected":true,"reached":true,"#,
                r#""heard_ms_ago":120,"round_trip_us":34280,"has":{"epoch":1,"number":8},"is_member":false,"#,
                r#""refused":0,"last_error":"","lent":0,"borrowed":0,"wall_ahead_us":-240,"wall_unsure_us":17140,"fingerprint":""},"#,
                r#"{"region":"us","node":"us-1","address":"10.0.2.1:7201","connected":false,"reached":false,"#,
                r#""heard_ms_ago":12000,"round_trip_us":null,"has":{"epoch":1,"number":7},"is_member":true,"#,
                r#""refused":3,"last_error":"timed out","lent":3,"borrowed":2,"wall_ahead_us":null,"wall_unsure_us":null,"fingerprint":""}],"#,
                r#""limits":[{"domain":"shop","name":"plans","budget":"token_bucket 900/s burst 300","kind":"rate","#,
                r#""rate_milli":900000,"units":300,"admitted_units":5467,"allowed":5467,"denied":12,"#,
                r#""admitted_everywhere":9000,"standing":{"rate_milli":300000,"units":100},"#,
                r#""lent":{"rate_milli":0,"units":0},"borrowed":{"rate_milli":146500,"units":44},"#,
                r#""effective":{"rate_milli":446500,"units":144},"left":17,"demand_milli":600000,"cells":1,"#,
                r#""window_end_ns":null,"loans_end_ms":2050},"#,
                r#"{"domain":"shop","name":"exports","budget":"fixed_window 100 in 1h","kind":"window","#,
                r#""rate_milli":0,"units":100,"admitted_units":0,"allowed":0,"denied":0,"admitted_everywhere":0,"#,
                r#""standing":{"rate_milli":0,"units":33},"lent":{"rate_milli":0,"units":0},"#,
                r#""borrowed":{"rate_milli":0,"units":0},"effective":{"rate_milli":0,"units":33},"left":33,"#,
                r#""demand_milli":0,"cells":1,"window_end_ns":1795306593000000000,"loans_end_ms":null}],"#,
                r#""traffic":null,"wall_ns":1795305353000000000,"steady_ns":0,"uptime_ns":11100000000000,"#,
                r#""clock_is_suspect":false,"wall":"own","wall_corrected_us":0,"journal_is_down":false,"warm_cells":1,"fingerprint":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}"#,
                "\n"
            )
        );
    }
}
