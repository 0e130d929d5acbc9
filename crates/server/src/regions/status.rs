//! What a node knows of its region, the others and the catalogue, for people and programs.

use std::collections::{BTreeMap, BTreeSet};

use acequia_api::acequia::v1 as api;
use acequia_limits::{Now, limit::LimitSpec};
use acequia_mesh::Fingerprint;
use acequia_node::{
    Answer, Catalogue, LimitAnswer, Membership, Outcome, PeerView,
    difference::{Difference, differences},
    regions::Ownership,
};
use acequia_rights::{
    Version, VersionId,
    versions::{Progress, WaitReason},
};

use super::{Regions, limits::specs_of, overrides::lasting};
use crate::{
    holdings::{holding, rate_milli},
    settings::SETTINGS,
};

/// Whether a node among regions has what it needs to decide; if not, why, and what to do.
pub(super) fn ready(regions: &Regions, now: Now) -> Result<(), String> {
    let Some(membership) = regions.node.membership(now) else { return Ok(()) };
    if let Some(later) = membership.later.filter(|_| membership.standing == Ownership::NoCatalogue) {
        return Err(format!(
            "no catalogue names this node, and none will: it is incarnation {0}, and the others have heard incarnation {later}. \
             Either its disk is an earlier one's, or its clock was ahead when that one began. Stop it, and start it with an empty `data` folder and --incarnation {1}; then, on \
             the authority, `acequia regions recover {2}`",
            regions.me.number,
            later.saturating_add(1),
            regions.names.of_region(regions.me.member, None)
        ));
    }
    match membership.standing {
        Ownership::Owner if !regions.node.is_wall_believed() => Err(
            "clock: no other node's wall clock has agreed with this one's since the start; a few seconds after the start the \
             journal is asked instead, if nobody is reached. See `acequia regions`, and set the clock"
                .to_owned(),
        ),
        Ownership::Owner => Ok(()),
        Ownership::RestoredDisk => Err(
            "restored disk: the journal is older than what this node once wrote, so it owns nothing. Start it with an \
             empty `data` folder, then `acequia regions recover` on the authority"
                .to_owned(),
        ),
        Ownership::NoCatalogue if membership.progress.is_none() => {
            let (region, node) = &regions.settings.authority;
            let waits = regions.strangers(now);
            let first = regions.settings.member(region, node).map(|member| member.number);
            let is_first = first == Some(regions.me.member);
            if is_first && let Err(fault) = regions.check_role() {
                return Err(format!("no catalogue: {fault}"));
            }
            Err(match (is_first, waits.is_empty()) {
                (true, false) => format!(
                    "no catalogue: this node makes the first one when every region was heard and none has one; it \
                     waits for {}",
                    waits.join(", ")
                ),
                _ => format!("no catalogue: waiting for {region}/{node}, the authority"),
            })
        }
        Ownership::NoCatalogue => Err(format!(
            "no catalogue names this node: on the authority, `acequia regions recover {0}` if it lost its disk, or \
             `acequia regions add {0}`",
            regions.names.of_region(regions.me.member, None)
        )),
    }
}

/// Fills in what a node among regions knows of itself, of the catalogue and of its peers.
pub(super) fn fill_in(regions: &Regions, status: &mut api::NodeStatus, peers: &[PeerView], now: Now) {
    let Some(membership) = regions.node.membership(now) else { return };
    let version = regions.node.version();
    status.incarnation = regions.me.number;
    status.fingerprint = regions.fingerprint().to_string();
    status.clock_is_suspect = membership.clock_is_suspect;
    status.wall = membership.wall.as_str().to_owned();
    status.wall_corrected_us = membership.corrected_ns / 1_000;
    status.warm_cells = membership.active_cells as u64;
    status.catalogue = version.as_ref().map(|version| catalogue_of(regions, version, &membership, now));
    status.members = version.iter().flat_map(members).collect();
    status.peers = peers_of(regions, peers, version.as_ref(), now);
    if let Some(traffic) = &mut status.traffic {
        traffic.bytes_in = regions.mesh.status().iter().map(|peer| peer.bytes_in).sum();
    }
}

/// A version, as people read it: `epoch.number`.
pub(super) fn version_text(id: VersionId) -> String {
    format!("{}.{}", id.epoch, id.number)
}

pub(super) fn api_version_id(id: VersionId) -> Option<api::VersionId> {
    Some(api::VersionId { epoch: id.epoch, number: id.number })
}

pub(super) fn catalogue_of(
    regions: &Regions,
    version: &Version,
    membership: &Membership,
    now: Now,
) -> api::Catalogue {
    let progress = membership.progress.as_ref();
    let is_to_come = |at_ns: &u64| *at_ns > now.wall_ns.saturating_add(SETTINGS.orders.told_ahead_ns);
    let older_until_ns = progress.map(|progress| progress.older_until_ns).filter(is_to_come);
    api::Catalogue {
        older_until_ns: older_until_ns.unwrap_or(0),
        authority: regions.names.of_writer(version.authority, Some(version)),
        is_authority: version.authority == regions.me,
        requested: api_version_id(version.version_id),
        effective: api_version_id(progress.map_or(VersionId::default(), |progress| progress.effective)),
        pending: progress.map_or_else(Vec::new, |progress| pending(regions, version, progress)),
        differences: differences_of(regions, version, now),
        clock_error_ns: version.clock_error_ns,
        drift_ppm: version.drift_ppm,
        revoked: version.revoked.iter().map(|one| Fingerprint(*one).to_string()).collect(),
    }
}

fn pending(regions: &Regions, version: &Version, progress: &Progress) -> Vec<api::Pending> {
    let waits = progress.pending.iter().map(|(writer, waiting)| api::Pending {
        region: regions.names.of_region(writer.member, Some(version)),
        waiting: match waiting {
            WaitReason::Silent => "was never heard to acknowledge anything: reach it, or evict it".to_owned(),
            WaitReason::At(id) => {
                format!(
                    "has not acknowledged it yet, and goes by version {} until it is reached and its loans have ended, or it is \
                     evicted",
                    version_text(*id)
                )
            }
            WaitReason::Ahead(id) => {
                format!("has version {}, which this node has not heard of yet", version_text(*id))
            }
        },
    });
    waits.collect()
}

/// The lasting differences between the file and the catalogue, without grants and overrides that have ended.
pub(super) fn differences_of(regions: &Regions, version: &Version, now: Now) -> Vec<String> {
    let Ok(specs) = specs_of(version) else { return Vec::new() };
    differences_in_words(&regions.file(), &specs, now.wall_ns)
}

/// By domain: the limits with paths that this node's file has, and the catalogue lacks.
pub(super) fn unmapped(regions: &Regions, version: &Version) -> BTreeMap<String, u64> {
    let Ok(specs) = specs_of(version) else { return BTreeMap::new() };
    let known: BTreeSet<_> = specs.iter().map(|spec| (&spec.domain, &spec.name)).collect();
    let mut unmapped = BTreeMap::new();
    for spec in regions.file() {
        if !spec.path.is_empty() && !known.contains(&(&spec.domain, &spec.name)) {
            *unmapped.entry(spec.domain).or_default() += 1;
        }
    }
    unmapped
}

/// The lasting differences between the limits of a file and those in force.
pub(super) fn differences_in_words(file: &[LimitSpec], in_force: &[LimitSpec], wall_ns: u64) -> Vec<String> {
    let lasting =
        |specs: &[LimitSpec]| -> Vec<LimitSpec> { specs.iter().map(|spec| lasting(spec, wall_ns)).collect() };
    let none = || "none".to_owned();
    let words = |difference| match difference {
        Difference::OnlyInFile { limit } => format!("{limit} is only in the file: it is not enforced"),
        Difference::OnlyInCatalogue { limit } => {
            format!("{limit} is only in the catalogue: it is enforced")
        }
        Difference::Field { limit, field, file, catalogue } => format!(
            "{limit}: {field} is {} in the file, and {} in the catalogue, which counts",
            file.unwrap_or_else(none),
            catalogue.unwrap_or_else(none)
        ),
    };
    differences(&lasting(file), &lasting(in_force)).into_iter().map(words).collect()
}

fn members(version: &Version) -> impl Iterator<Item = api::Member> + '_ {
    version.members.values().map(|member| {
        let (region, node) = member.name.split_once('/').unwrap_or((&member.name, ""));
        api::Member {
            region: region.to_owned(),
            node: node.to_owned(),
            weight: member.weight,
            incarnation: member.incarnation.number,
        }
    })
}

fn peers_of(regions: &Regions, seen: &[PeerView], version: Option<&Version>, now: Now) -> Vec<api::Peer> {
    let links = regions.mesh.status();
    let others = regions.names.regions().filter(|region| *region != regions.me.member);
    let peer = |region| {
        let identity = regions.names.identity(region)?;
        let seen = seen.iter().find(|peer| peer.incarnation.member == region);
        let link = links.iter().find(|link| link.identity == *identity);
        let is_member = version.is_some_and(|version| version.members.contains_key(&region));
        let heard = seen.and_then(|peer| peer.heard_ns);
        let wall = seen.and_then(|peer| peer.wall_ahead_ns);
        Some(api::Peer {
            region: identity.region.clone(),
            node: identity.node.clone(),
            address: regions.names.address(region).to_owned(),
            connected: link.is_some_and(|link| link.connected),
            reached: seen.is_some_and(|peer| peer.is_reached),
            heard_ms_ago: heard.map(|heard| now.steady_ns.saturating_sub(heard) / 1_000_000),
            round_trip_us: seen.and_then(|peer| peer.round_ns).map(|ns| ns / 1_000),
            has: seen.and_then(|peer| api_version_id(peer.version_id)),
            is_member,
            refused: link.map_or(0, |link| link.refused),
            last_error: link.map_or_else(String::new, |link| link.last_error.clone()),
            lent: seen.map_or(0, |peer| peer.lent),
            borrowed: seen.map_or(0, |peer| peer.borrowed),
            wall_ahead_us: wall.map(|(ahead_ns, _)| ahead_ns / 1_000),
            wall_unsure_us: wall.map(|(_, unsure_ns)| unsure_ns / 1_000),
            fingerprint: link
                .and_then(|link| link.fingerprint)
                .map_or_else(String::new, |one| one.to_string()),
        })
    };
    others.filter_map(peer).collect()
}

/// The shares of this region in the cells that a request hits, and what it knows of the other regions'.
pub(crate) fn shares(regions: &Regions, answer: &Answer, catalogue: &Catalogue, now: Now) -> Vec<api::Share> {
    let version = regions.node.version();
    let seen = regions.node.peers(now);
    let ms_until = |ns: u64| ns.saturating_sub(now.steady_ns).div_ceil(1_000_000);
    let ms_since = |ns: u64| now.steady_ns.saturating_sub(ns) / 1_000_000;
    let share = |(place, limit): (usize, &LimitAnswer)| {
        let cell = regions.node.cell(limit, catalogue, now)?;
        let rate = rate_milli(&cell.algorithm);
        let held = &cell.holding;
        let loans = cell.loans.iter().map(|loan| api::Loan {
            region: regions.names.of_region(loan.peer.member, version.as_ref()),
            is_lent: loan.is_lent,
            part: holding(loan.part, rate),
            ends_ms: ms_until(loan.ends_ns),
        });
        let is_member = |peer: &&PeerView| {
            version.as_ref().is_none_or(|version| version.members.contains_key(&peer.incarnation.member))
        };
        let peers = seen.iter().filter(is_member).map(|peer| {
            let report = cell.reports.iter().find(|report| report.of == peer.incarnation.member);
            api::PeerShare {
                region: regions.names.of_region(peer.incarnation.member, version.as_ref()),
                reached: peer.is_reached,
                heard_ms_ago: peer.heard_ns.map(ms_since),
                round_trip_us: peer.round_ns.map(|ns| ns / 1_000),
                word: report.map(|report| api::PeerWord {
                    said_ms_ago: ms_since(report.said_ns),
                    holds: holding(report.holds, rate),
                    left: report.left,
                    demand_milli: report.demand_milli,
                    owed: report.owed,
                }),
            }
        });
        let mut peers: Vec<api::PeerShare> = peers.collect();
        peers.sort_by(|a, b| a.region.cmp(&b.region));
        Some(api::Share {
            limit: place as u32,
            region: regions.names.of_region(regions.me.member, version.as_ref()),
            standing: holding(held.standing, rate),
            lent: holding(held.lent, rate),
            borrowed: holding(held.held, rate),
            effective: holding(held.effective, rate),
            left: held.left,
            demand_milli: cell.demand_milli,
            window_ends_ms: (held.window_ns > 0)
                .then(|| held.window_ns.saturating_sub(now.wall_ns).div_ceil(1_000_000)),
            loans: loans.collect(),
            peers,
        })
    };
    let hits = answer.limits.iter().enumerate();
    hits.filter(|(_, limit)| limit.outcome != Outcome::Unlimited).filter_map(share).collect()
}
