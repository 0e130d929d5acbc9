//! Requests and charges: what limits said of them, and what became of them.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use acequia_limits::{Charge, limit::OnStoreLoss, path::StatNames};
use acequia_node::{Active, Catalogue, ChargesView, ForwardCounts};

use super::out::{Out, by_path, labelled};
use crate::{
    cells::{Hottest, LimitCells, VERDICTS},
    charges::settled_word,
    config::Reloads,
    hints::HINT_SECONDS,
    hits::HitTally,
    tally::{DECISION_SECONDS, Ignored, OUTCOMES, SETTLED, Tally},
    warnings::WarningCounts,
};

/// How many hot cells are shown for each limit.
const HOT_SHOWN: usize = 5;
/// Their ranks, as labels.
const RANKS: [&str; HOT_SHOWN] = ["1", "2", "3", "4", "5"];

/// What kind each limit is, and what it counts: labels to join other series with.
pub(super) fn about(out: &mut Out<'_>, catalogue: &Catalogue) -> fmt::Result {
    // A limit comes after those of its path that it has replaced, so the newest one tells. Two rows would make
    // joins ambiguous.
    let by_path: BTreeMap<String, [&str; 2]> = catalogue
        .limits
        .iter()
        .map(|active| (active.limit.path(), [active.limit.kind(), active.limit.unit().unwrap_or("")]))
        .collect();
    let all = by_path
        .iter()
        .map(|(path, [kind, unit])| [("limit", path.as_str()), ("kind", *kind), ("unit", *unit)]);
    out.infos("acequia_limit", "What kind a limit is, and what it counts if the config says so.", all)
}

/// What limits said, and what their hottest cells have left.
pub(super) fn limits(
    out: &mut Out<'_>,
    tally: &Tally,
    hottest: &[Hottest],
    catalogue: &Catalogue,
) -> fmt::Result {
    let outcomes =
        by_path(&catalogue.limits, |active| Some(tally.limits.get(active.slot() as usize)?.outcomes));
    let decisions = outcomes.iter().flat_map(|(path, counts)| {
        let words = OUTCOMES.iter().zip(*counts);
        words.map(|(word, count)| ([("limit", path.as_str()), ("decision", *word)], count))
    });
    out.counters("acequia_decisions", "What limits said of the requests they matched.", decisions)?;
    let mut by_limit: BTreeMap<String, Hottest> = BTreeMap::new();
    for active in &catalogue.limits {
        let Some(hot) = hottest.get(active.slot() as usize) else { continue };
        by_limit.entry(active.limit.path()).or_default().extend(hot);
    }
    by_limit.values_mut().for_each(|hot| hot.sort_by_key(|cell| (Reverse(cell.count), cell.tag)));
    let remaining = by_limit.iter().flat_map(|(path, hot)| {
        let ranked = RANKS.iter().zip(hot);
        ranked.map(|(rank, cell)| ([("limit", path.as_str()), ("rank", *rank)], cell.remaining))
    });
    let help = "What the cells asked for most have left, from samples: rank 1 is the hottest.";
    out.gauges("acequia_hottest_cell_remaining", help, remaining)
}

/// Requests that a Redis counts.
pub(super) fn counted(out: &mut Out<'_>, counts: [u64; 3]) -> fmt::Result {
    let words = ["answered", "missed", "saved"].map(|outcome| [("outcome", outcome)]);
    let help =
        "Requests that the Redis counted or missed, and cells known to be over their limit without a call.";
    out.counters("acequia_counting_calls", help, words.into_iter().zip(counts))
}

/// Hits of limits with paths, under the names that boards of envoyproxy/ratelimit read.
pub(super) fn hits(out: &mut Out<'_>, tally: &Tally, catalogue: &Catalogue) -> fmt::Result {
    // Several limits may have one name: a limit and its successor, or a key `a_b` and a value `b` of `a`.
    let mut rows: BTreeMap<(&str, StatNames), HitTally> = BTreeMap::new();
    for active in &catalogue.limits {
        let Some(path) = &active.limit.path else { continue };
        let mut add = |names, hits: &HitTally| {
            rows.entry((active.limit.spec.domain.as_str(), names)).or_default().add(hits);
        };
        let of_limit = tally.limits.get(active.slot() as usize).map(|tally| tally.hits);
        add(path.stat_names(), &of_limit.unwrap_or_default());
        tally.hits.by_name(active.slot()).for_each(|(names, hits)| add(names.clone(), hits));
    }
    for (place, (name, help)) in HITS.iter().enumerate() {
        let values = rows.iter().map(|((domain, StatNames { first, further }), hits)| {
            let further = (!further.is_empty()).then_some(("key2", further.as_str()));
            let labels = [("domain", *domain), ("key1", first.as_str())].into_iter().chain(further);
            (labels.collect(), hits.all()[place])
        });
        if !rows.is_empty() {
            out.foreign(name, help, values)?;
        }
    }
    Ok(())
}

/// What else boards and alerts of envoyproxy/ratelimit read, under its names. The Redis `missed` so many requests.
pub(super) fn as_ratelimit(out: &mut Out<'_>, tally: &Tally, missed: u64, reloads: &Reloads) -> fmt::Result {
    let requests = (vec![("grpc_method", "ShouldRateLimit")], tally.allowed + tally.denied);
    out.foreign("ratelimit_service_total_requests", "Requests, by whatever method.", [requests])?;
    let errors = [("redis_error", missed), ("service_error", tally.bad_requests)];
    out.foreign(
        "ratelimit_service_should_rate_limit_error",
        "Requests that the Redis did not answer in time, and malformed ones.",
        errors.map(|(kind, count)| (vec![("err_type", kind)], count)),
    )?;
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    // The node has started with a config that it could read.
    let loads = 1 + count(&reloads.applied) + count(&reloads.unchanged);
    let help = "Configs that were read, the first one included.";
    out.foreign("ratelimit_service_config_load_success", help, [(Vec::new(), loads)])?;
    let refused = count(&reloads.refused);
    out.foreign("ratelimit_service_config_load_error", "Configs that were refused.", [(Vec::new(), refused)])
}

/// The names of [`HitTally`]'s counts, in their order.
const HITS: [(&str, &str); 5] = [
    ("ratelimit_service_rate_limit_total_hits", "Hits, as envoyproxy/ratelimit counts them."),
    ("ratelimit_service_rate_limit_over_limit", "Hits beyond the limit."),
    ("ratelimit_service_rate_limit_near_limit", "Hits within the limit, but beyond 80 % of it."),
    ("ratelimit_service_rate_limit_within_limit", "Hits of requests within the limit."),
    ("ratelimit_service_rate_limit_shadow_mode", "Hits beyond a limit that only watches."),
];

/// The verdicts of candidates and their live limits on requests that hit both. `cells_of` has the cells of a
/// limit, by its slot.
pub(super) fn candidates(
    out: &mut Out<'_>,
    catalogue: &Catalogue,
    cells_of: impl Fn(u32) -> LimitCells,
) -> fmt::Result {
    let mut all = Vec::new();
    for active in &catalogue.limits {
        let Some(live) = active.live else { continue };
        let counts = cells_of(active.slot()).candidate.map_or([0; 4], |compared| compared.verdicts);
        all.push((active.limit.path(), catalogue.limits[live as usize].limit.path(), counts));
    }
    let verdicts = all.iter().flat_map(|(candidate, live, counts)| {
        let labels =
            |verdict| [("candidate", candidate.as_str()), ("live", live.as_str()), ("verdict", verdict)];
        VERDICTS.iter().zip(*counts).map(move |(verdict, count)| (labels(*verdict), count))
    });
    let help = "Requests that hit a candidate and its live limit, by what both said.";
    out.counters("acequia_candidate_verdicts", help, verdicts)
}

/// The units that limits which stay open gave up in a store outage.
pub(super) fn open_units(out: &mut Out<'_>, catalogue: &Catalogue) -> fmt::Result {
    let is_open = |active: &&Active| active.limit.spec.on_store_loss == OnStoreLoss::Open;
    let open = by_path(catalogue.limits.iter().filter(is_open), |active| Some([active.open_units()]));
    if open.is_empty() {
        return Ok(());
    }
    let help = "Units that passed while the store was lost, though this node did not have them.";
    out.counters("acequia_open_units", help, labelled(&open))
}

/// The units that limits did not have when they were reported as spent.
pub(super) fn overdrawn_units(out: &mut Out<'_>, catalogue: &Catalogue) -> fmt::Result {
    let is_of_interest =
        |active: &&Active| active.limit.spec.charge == Charge::Always || active.overdrawn_units() > 0;
    let overdrawn =
        by_path(catalogue.limits.iter().filter(is_of_interest), |active| Some([active.overdrawn_units()]));
    if overdrawn.is_empty() {
        return Ok(());
    }
    let help = "Units that were spent before they were asked for, and that this node did not have: owed, or beyond `debt`.";
    out.counters("acequia_overdrawn_units", help, labelled(&overdrawn))
}

/// How the holds of limits ended.
pub(super) fn holds(out: &mut Out<'_>, catalogue: &Catalogue) -> fmt::Result {
    let expects = catalogue.limits.iter().filter(|active| active.limit.expect.is_some());
    let ended = by_path(expects, |active| {
        let holds = active.ended_holds();
        Some([holds.reported(), holds.lapsed()])
    });
    let all = ended.iter().flat_map(|(path, ends)| {
        let labels = |outcome| [("limit", path.as_str()), ("outcome", outcome)];
        ["reported", "lapsed"].into_iter().zip(ends).map(move |(outcome, count)| (labels(outcome), *count))
    });
    let help = "Holds that ended: their real cost was reported, or nobody reported it in time.";
    out.counters("acequia_holds", help, all)
}

/// The verdicts on requests, the waits that denied ones were told, and how long decisions take.
pub(super) fn verdicts(out: &mut Out<'_>, tally: &Tally, catalogue: &Catalogue) -> fmt::Result {
    let verdicts = [([("decision", "allow")], tally.allowed), ([("decision", "deny")], tally.denied)];
    out.counters("acequia_requests", "Requests by verdict.", verdicts)?;
    let hints = tally.hints.by_label(catalogue);
    out.histograms(
        "acequia_retry_after",
        "Waits that denied requests were told, by the limit that decided and the reason: the first 200 such pairs, and other.",
        &HINT_SECONDS,
        hints.iter().map(|((limit, reason), waits)| {
            ([("limit", limit.as_str()), ("reason", *reason)], waits.clone())
        }),
    )?;
    let help = "Time that a decision takes in the node; one in 64 is timed.";
    out.histogram("acequia_decision_duration", help, &DECISION_SECONDS, &tally.decision)
}

/// Requests that were refused, that no limit was about, or that came too late.
pub(super) fn faulty(out: &mut Out<'_>, tally: &Tally, expired: u64) -> fmt::Result {
    out.counter("acequia_bad_requests", "Requests refused as malformed.", tally.bad_requests)?;
    out.counter(
        "acequia_unmatched_descriptors",
        "Descriptors that no limit counted or exempted.",
        tally.unmatched,
    )?;
    let by_domain: Vec<(String, u64)> = tally.unmatched_requests.by_domain().collect();
    let unmatched = by_domain.iter().map(|(domain, count)| ([("domain", domain.as_str())], *count));
    let help = "Requests that no limit is about, by domain: the first hundred, and other.";
    out.counters("acequia_unmatched_requests", help, unmatched)?;
    out.counter("acequia_calls_expired", "Calls past their deadline, not decided.", expired)
}

/// Requests that waited for units from elsewhere.
pub(super) fn waits(out: &mut Out<'_>, tally: &Tally) -> fmt::Result {
    let [passed, denied] = tally.waited;
    out.counters(
        "acequia_waits",
        "Requests that waited for units of other regions or of the store, by what became of them; crowded: too many waited already.",
        [
            ([("outcome", "allow")], passed),
            ([("outcome", "deny")], denied),
            ([("outcome", "crowded")], tally.crowded),
        ],
    )
}

/// Charges that one node of a region makes for another.
pub(super) fn forwards(out: &mut Out<'_>, counts: ForwardCounts) -> fmt::Result {
    let ForwardCounts { asked, charged, used, wasted } = counts;
    out.counters(
        "acequia_forwards",
        "Forwards for cells of few units, among the nodes of a region: asked for by this node; charged here for others; of those that others charged, used to pass a request here, or wasted, since no request waited any more.",
        [
            ([("outcome", "asked")], asked),
            ([("outcome", "charged")], charged),
            ([("outcome", "used")], used),
            ([("outcome", "wasted")], wasted),
        ],
    )
}

/// The charges that are remembered, and how they were settled.
pub(super) fn charges(out: &mut Out<'_>, view: ChargesView, tally: &Tally) -> fmt::Result {
    out.gauge("acequia_charges", "Charges that are remembered by a name.", view.records)?;
    out.gauge("acequia_reservations", "Charges that wait for their real cost.", view.reserved)?;
    let help = "Questions that were answered before, under the same id.";
    out.counter("acequia_repeats", help, tally.repeats)?;
    let settled = SETTLED.into_iter().zip(tally.settled);
    let settled = settled.map(|(settled, count)| ([("outcome", settled_word(settled))], count));
    out.counters("acequia_settled", "Refunds and commits, by what became of them.", settled)?;
    let ignored = Ignored::ALL.into_iter().zip(tally.ignored);
    let ignored = ignored.map(|(why, count)| ([("why", why.word())], count));
    let help = "What proxies said of charges that changed nothing, by why.";
    out.counters("acequia_settlements_ignored", help, ignored)
}

/// The warnings of soft limits.
pub(super) fn warnings(out: &mut Out<'_>, counts: &WarningCounts) -> fmt::Result {
    let reached = counts.reached.iter().map(|((limit, percent), count)| (limit, percent.to_string(), *count));
    let reached: Vec<_> = reached.collect();
    out.counters(
        "acequia_warnings",
        "Cells that reached a part of their limit, in percent, once each a window.",
        reached.iter().map(|(limit, percent, count)| {
            ([("limit", limit.as_str()), ("percent", percent.as_str())], *count)
        }),
    )?;
    out.counter("acequia_warnings_dropped", "Warnings that there was no room for.", counts.dropped)
}

/// The units that were given back.
pub(super) fn refunded(out: &mut Out<'_>, tally: &Tally, catalogue: &Catalogue) -> fmt::Result {
    let refunded =
        by_path(&catalogue.limits, |active| Some([tally.limits.get(active.slot() as usize)?.refunded]));
    let help = "Units given back by refunds and commits that callers asked for.";
    out.counters("acequia_refunded_units", help, labelled(&refunded))
}
