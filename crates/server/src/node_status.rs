//! The state of a node, alone or among regions, for people and programs.

use acequia_api::acequia::v1 as api;
use acequia_limits::{Algorithm, Now, Part};
use acequia_node::{Active, Holding, LimitView};

use crate::{
    charges::NodeName,
    holdings::{holding, rate_milli},
    shared::Shared,
    tally::LimitTally,
};

/// The state of a node now.
pub(crate) fn of(shared: &Shared) -> api::NodeStatus {
    let now = shared.clock.now();
    let overview = shared.node.overview(now);
    let catalogue = shared.node.catalogue();
    let tally = shared.workers.tally();
    let limits = catalogue.limits.iter().enumerate().filter(|(_, active)| active.is_in_force(now.wall_ns));
    let limits = limits.map(|(at, active)| {
        let counts = tally.limits.get(active.slot() as usize);
        let view = overview.limits.get(at);
        let everywhere = shared.node.usage_of(active.limit.id);
        limit(active, view, counts, everywhere, now)
    });
    let ready = shared.ready_at(now);
    let traffic = shared.node.traffic();
    let NodeName { region, node } = shared.names.node();
    let mut status = api::NodeStatus {
        region: region.to_owned(),
        node: node.to_owned(),
        ready: ready.is_ok(),
        not_ready: ready.err().unwrap_or_default(),
        limits: limits.collect(),
        wall_ns: now.wall_ns,
        steady_ns: now.steady_ns,
        traffic: Some(api::Traffic {
            frames_in: traffic.frames_in,
            frames_out: traffic.frames_out,
            bytes_in: 0,
            bytes_out: traffic.bytes_out,
            frames_refused: traffic.frames_refused,
            entries_refused: traffic.entries_refused,
            loans_given: traffic.lent,
            loans_taken: traffic.borrowed,
            rights_given: traffic.given,
        }),
        journal_is_down: shared.node.is_journal_down(),
        uptime_ns: now.steady_ns.saturating_sub(shared.begun.steady_ns),
        store: shared.own_region.get().map(|region| region.status(&shared.node, now)),
        ..api::NodeStatus::default()
    };
    if let Some(regions) = shared.regions() {
        regions.fill_in(&mut status, &overview.peers, now);
    }
    status
}

fn limit(
    active: &Active,
    view: Option<&LimitView>,
    counts: Option<&LimitTally>,
    everywhere: u128,
    now: Now,
) -> api::LimitStatus {
    let algorithm = &active.limit.algorithm;
    let rate = rate_milli(algorithm);
    let part = |part: Part| holding(part, rate);
    let none = Holding::default();
    let total = view.map_or(&none, |view| &view.total);
    let outcome = |at: usize| counts.map_or(0, |counts| counts.outcomes[at]);
    let loans_end_ms =
        (total.held_until_ns > 0).then(|| total.held_until_ns.saturating_sub(now.steady_ns) / 1_000_000);
    let window_end_ns = match algorithm {
        Algorithm::FixedWindow(window) => window.end_after(now.wall_ns, 0),
        _ => 0,
    };
    let overrides = active.limit.overrides.iter().filter(|o| !o.is_over(now.wall_ns));
    let all = || overrides.clone().map(|o| &o.algorithm).chain([algorithm]);
    api::LimitStatus {
        domain: active.limit.spec.domain.clone(),
        name: active.limit.spec.name.clone(),
        budget: budget(active),
        kind: kind(algorithm).into(),
        rate_milli: rate,
        units: algorithm.budget(),
        admitted_units: counts.map_or(0, |counts| counts.units),
        allowed: outcome(0),
        denied: outcome(1),
        admitted_everywhere: u64::try_from(everywhere).unwrap_or(u64::MAX),
        standing: part(total.standing),
        lent: part(total.lent),
        borrowed: part(total.held),
        effective: part(total.effective),
        left: total.left,
        demand_milli: view.map_or(0, |view| view.demand_milli),
        cells: view.map_or(0, |view| view.cells),
        window_end_ns,
        loans_end_ms,
        most_rate_milli: all().map(rate_milli).max().unwrap_or(rate),
        most_units: all().map(Algorithm::budget).max().unwrap_or_default(),
        unit: active.limit.unit().unwrap_or_default().to_owned(),
    }
}

fn kind(algorithm: &Algorithm) -> api::limit_status::Kind {
    match algorithm {
        Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_) => api::limit_status::Kind::Rate,
        Algorithm::FixedWindow(_) => api::limit_status::Kind::Window,
        _ => api::limit_status::Kind::Sliding,
    }
}

/// A limit's numbers in the words of the config, and what they count if the config names it.
pub(crate) fn budget(active: &Active) -> String {
    let spec = &active.limit.spec;
    let units = |units: u64| match &spec.unit {
        Some(unit) => format!("{units} {unit}"),
        None => units.to_string(),
    };
    if let Some(bucket) = &spec.token_bucket {
        format!("token_bucket {} burst {}", bucket.rate, units(bucket.burst))
    } else if let Some(bucket) = &spec.leaky_bucket {
        format!("leaky_bucket {} queue {}", bucket.rate, units(bucket.queue))
    } else if let Some(window) = &spec.fixed_window {
        format!("fixed_window {} in {}", units(window.limit), window.window)
    } else if let Some(window) = &spec.sliding_window {
        format!("sliding_window {} in {}", units(window.limit), window.window)
    } else if let Some(slots) = &spec.concurrent {
        format!("concurrent {} at one time", units(slots.limit))
    } else {
        match &spec.quota {
            Some(quota) if ["day", "week", "month", "year"].contains(&quota.per.as_str()) => {
                format!("quota {} a {}", units(quota.limit), quota.per)
            }
            Some(quota) => format!("quota {} in {}", units(quota.limit), quota.per),
            None => {
                format!("{} {}", active.limit.algorithm.budget(), spec.unit.as_deref().unwrap_or("units"))
            }
        }
    }
}
