//! The limits of a config, each with its lines; and whether regions can share them.

use std::collections::BTreeMap;

use acequia_limits::{Fault, Limit, Mode, limit::LimitSpec, notation::format_duration_ns};
use acequia_node::{LIMITS_MAX, VARIANTS_MAX, regions::limits_to_bytes};
use acequia_rights::versions::LIMITS_BYTES_MAX;
use serde_saphyr::Spanned;

use super::{
    ClockConfig,
    faults::{Faults, line, listed},
};
use crate::settings::SETTINGS;

/// A limit, and where it stands in the file.
pub(super) struct Placed {
    pub(super) limit: Limit,
    /// Its first line.
    begin: u64,
    /// The first line of the next one.
    end: u64,
}

/// Reads the limits. A limit that cannot be made from its fields is left out.
pub(super) fn read(specs: Vec<Spanned<LimitSpec>>, faults: &mut Faults<'_>) -> Vec<Placed> {
    let begins: Vec<u64> = specs.iter().map(line).collect();
    let mut named: BTreeMap<String, u64> = BTreeMap::new();
    let mut limits = Vec::new();
    for (number, spec) in specs.into_iter().enumerate() {
        let begin = begins[number];
        let end = begins.get(number + 1).copied().unwrap_or(u64::MAX);
        let name = spec.value.name.clone();
        match Limit::new(spec.value) {
            Ok(limit) => {
                if let Some(first) = named.insert(limit.path(), begin) {
                    let what = format!(
                        "limit {} is already there in line {first}: names are unique in a domain, rename one",
                        limit.path()
                    );
                    faults.add(begin, what);
                }
                let sets = (1 + limit.overrides.len()) * limit.variants_each();
                if sets > VARIANTS_MAX {
                    let what = format!(
                        "limit {name}: {sets} sets of numbers, one for each class of each override: at most \
                         {VARIANTS_MAX}; leave some out, or split the limit"
                    );
                    faults.add(faults.line_of("overrides", begin, end), what);
                }
                limits.push(Placed { limit, begin, end });
            }
            Err(found) => {
                for Fault { field, what } in found {
                    faults.add(faults.line_of(&field, begin, end), format!("limit {name}: {what}"));
                }
            }
        }
    }
    limits
}

/// Notes windows that are too short for regions to agree by their clocks which window it is.
pub(super) fn check_windows(limits: &[Placed], clock: ClockConfig, faults: &mut Faults<'_>) {
    let window_ns_min = clock.error_ns.saturating_mul(SETTINGS.bounds.window_clock_errors_min);
    for Placed { limit, begin, end } in limits {
        let window_ns = limit.algorithm.period_ns();
        if limit.algorithm.has_rate() || window_ns >= window_ns_min {
            continue;
        }
        let what = format!(
            "limit {}: regions and nodes cannot share a window of {}, which is shorter than \
             {} times the clock error of {}: make it {} or longer, use a \
             token_bucket, or lower clock.error if all clocks are better",
            limit.spec.name,
            format_duration_ns(window_ns),
            SETTINGS.bounds.window_clock_errors_min,
            format_duration_ns(clock.error_ns),
            format_duration_ns(window_ns_min),
        );
        let field = if limit.spec.quota.is_some() { "per" } else { "window" };
        faults.add(faults.line_of(field, *begin, *end), what);
    }
}

/// Notes limits whose priorities name an unknown region.
pub(super) fn check_priorities<'a>(
    limits: &[Placed],
    regions: impl ExactSizeIterator<Item = &'a str> + Clone,
    faults: &mut Faults<'_>,
) {
    for Placed { limit, begin, end } in limits {
        let is_unknown = |name: &&String| !regions.clone().any(|region| region == **name);
        let unknown = limit.sharing.priority.iter().filter(is_unknown);
        for name in unknown {
            let what = format!(
                "limit {}: `priority` names region {name}, which is not among `regions` ({}): add it, or correct the name",
                limit.spec.name,
                listed(regions.clone())
            );
            faults.add(faults.line_of("priority", *begin, *end), what);
        }
    }
}

/// Notes values that no address has, for keys that are counted as addresses: a limit on such a value would
/// match nothing.
pub(super) fn check_addresses(limits: &[Placed], faults: &mut Faults<'_>) {
    for Placed { limit, begin, end } in limits {
        let overrides = limit.overrides.iter().flat_map(|one| &one.when);
        let all = limit.when.iter().map(|condition| ("when", condition));
        let all = all.chain(limit.unlimited.iter().map(|condition| ("unlimited", condition)));
        for (field, condition) in all.chain(overrides.map(|condition| ("overrides", condition))) {
            if let Some(what) = condition.misfit() {
                let line = faults.line_of(field, *begin, *end);
                faults.add(line, format!("limit {}: `{field}` {}: {what}", limit.spec.name, condition.key));
            }
        }
    }
}

/// Notes that there are more limits than a node can count.
pub(super) fn check_count(specs: &[Spanned<LimitSpec>], faults: &mut Faults<'_>) {
    let Some(first) = specs.first().filter(|_| specs.len() > LIMITS_MAX) else { return };
    let what = format!(
        "{} limits: a node counts at most {LIMITS_MAX}; leave some out, or run two deployments",
        specs.len()
    );
    faults.add(faults.line_above("limits", line(first)), what);
}

/// Notes candidates for limits that do not exist, or that deny nothing themselves.
pub(super) fn check_candidates(limits: &[Placed], faults: &mut Faults<'_>) {
    if limits.iter().all(|placed| placed.limit.spec.candidate_for.is_none()) {
        return;
    }
    let mut modes: BTreeMap<(&str, &str), Mode> = BTreeMap::new();
    for LimitSpec { domain, name, mode, .. } in limits.iter().map(|placed| &placed.limit.spec) {
        modes.entry((domain, name)).or_insert(*mode);
    }
    for Placed { limit, begin, end } in limits {
        let Some(live) = &limit.spec.candidate_for else { continue };
        let domain = &limit.spec.domain;
        let what = match modes.get(&(domain.as_str(), live.as_str())) {
            Some(Mode::Enforce) => continue,
            Some(_) => format!("{domain}/{live} denies nothing itself: name one that is enforced"),
            None => {
                format!("there is no limit {domain}/{live}: name one of the same domain that is enforced")
            }
        };
        let line = faults.line_of("candidate_for", *begin, *end);
        faults.add(line, format!("limit {} is a candidate, and {what}", limit.spec.name));
    }
}

/// Notes limits that together do not fit in the one message that carries them between regions.
pub(super) fn check_size(specs: &[Spanned<LimitSpec>], faults: &mut Faults<'_>) {
    let Some(first) = specs.first() else { return };
    let written: Vec<LimitSpec> = specs.iter().map(|spec| spec.value.clone()).collect();
    let what = match limits_to_bytes(&written).map(|bytes| bytes.len()) {
        Ok(bytes) if bytes <= LIMITS_BYTES_MAX => return,
        Ok(bytes) => format!(
            "the limits take {bytes} bytes in the message by which regions share them, more than \
             {LIMITS_BYTES_MAX}: shorten lists and overrides, leave limits out, or run two deployments"
        ),
        Err(why) => format!("the limits cannot be told to other regions: {why}"),
    };
    faults.add(faults.line_above("limits", line(first)), what);
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{SHARED, accepted, refused_once, with};

    #[test]
    fn a_window_too_short_for_the_clock_error_is_refused() {
        let limits = |clock: &str, algorithm: &str| {
            let limit = format!("limits:\n  - name: a\n    domain: shop\n    {algorithm}\n");
            format!("{}{limit}", with("error: 20ms", clock))
        };
        let short = [
            ("error: 20ms", "fixed_window: { limit: 9, window: 399ms }", "399ms"),
            ("error: 20ms", "sliding_window: { limit: 9, window: 399ms }", "20ms: make it 400ms or longer"),
            ("error: 20ms", "sliding_window: { limit: 900, window: 399ms }", "399ms"),
            ("error: 20ms", "sliding_window: { limit: 9, window: 399ms, approximate: true }", "399ms"),
            ("error: 20ms", "quota: { limit: 9, per: 399ms }", "399ms"),
            ("error: 1m", "fixed_window: { limit: 9, window: 19m }", "make it 20m or longer"),
        ];
        for (clock, algorithm, word) in short {
            refused_once(&limits(clock, algorithm), 15, word);
        }
        let long = [
            ("error: 20ms", "fixed_window: { limit: 9, window: 400ms }"),
            ("error: 20ms", "sliding_window: { limit: 900, window: 400ms }"),
            ("error: 20ms", "token_bucket: { rate: 100/s, burst: 1 }"),
            ("error: 20ms", "leaky_bucket: { rate: 100/s, queue: 1 }"),
            ("error: 1m", "quota: { limit: 9, per: day }"),
        ];
        for (clock, algorithm) in long {
            accepted(&limits(clock, algorithm));
        }
        accepted(
            "region: eu\nnode: eu-1\n\
             limits: [{ name: a, domain: b, fixed_window: { limit: 1, window: 10ms } }]\n",
        );
    }

    #[test]
    fn a_priority_that_names_no_region_is_refused() {
        let limits = |sharing: &str| {
            format!(
                "{SHARED}limits:\n  - name: a\n    domain: shop\n    token_bucket: {{ rate: 1/s, burst: 9 }}\n    sharing:\n      \
                 floor: 20%\n      {sharing}\n"
            )
        };
        let limit = &accepted(&limits("priority: [us, eu]")).live.limits[0];
        assert_eq!((limit.sharing.floor_percent, limit.sharing.priority.len()), (20, 2));
        refused_once(
            &limits("priority: [us, mars]"),
            18,
            "region mars, which is not among `regions` (ap, eu, us)",
        );
        refused_once(&limits("wait: 5s"), 18, "at most 1s");
        refused_once(&limits("flor: 20%"), 18, "flor");
    }

    #[test]
    fn on_store_loss_is_guard_closed_or_open() {
        let limits = |word: &str| {
            format!(
                "region: eu\nnode: a\nlimits:\n  - name: a\n    domain: shop\n    token_bucket: {{ rate: 1/s, burst: 9 }}\n    \
                 on_store_loss: {word}\n"
            )
        };
        for word in ["guard", "closed", "open"] {
            accepted(&limits(word));
        }
        refused_once(&limits("ajar"), 7, "guard, closed, open");
    }

    #[test]
    fn a_candidate_needs_an_enforced_limit_in_its_domain() {
        let limits = |mode: &str, domain: &str, live: &str| {
            format!(
                "region: eu\nnode: a\nlimits:\n  - {{ name: old, domain: shop, mode: {mode}, token_bucket: {{ rate: 1/s, burst: 9 }} }}\n  \
                 - name: new\n    domain: {domain}\n    mode: shadow\n    candidate_for: {live}\n    token_bucket: {{ rate: 2/s, burst: 9 }}\n"
            )
        };
        assert_eq!(accepted(&limits("enforce", "shop", "old")).live.limits.len(), 2);
        refused_once(&limits("enforce", "shop", "oold"), 8, "no limit shop/oold");
        refused_once(&limits("enforce", "bank", "old"), 8, "no limit bank/old");
        refused_once(&limits("shadow", "shop", "old"), 8, "denies nothing itself");
        refused_once(&limits("enforce", "shop", "new"), 8, "itself");
    }

    #[test]
    fn limits_that_do_not_fit_in_one_message_are_refused() {
        let limits = |count: usize| {
            let long = "v".repeat(1_000);
            let limit = |n| {
                format!(
                    "  - {{ name: n{n:04}, domain: d, when: {{ k: {long} }}, \
                     token_bucket: {{ rate: 1/s, burst: 1 }} }}\n"
                )
            };
            (0..count).map(limit).collect::<String>()
        };
        let spec = &accepted(&format!("region: eu\nnode: a\nlimits:\n{}", limits(1))).live.limits[0].spec;
        let each =
            acequia_node::regions::limits_to_bytes(std::slice::from_ref(spec)).expect("bytes").len() - 1;
        let fit = acequia_rights::versions::LIMITS_BYTES_MAX / each;
        assert_eq!(accepted(&format!("{SHARED}limits:\n{}", limits(fit))).live.limits.len(), fit);
        refused_once(&format!("{SHARED}limits:\n{}", limits(fit + 1)), 12, "more than 1048576");
        let alone = format!("region: eu\nnode: a\nlimits:\n{}", limits(fit + 1));
        assert_eq!(accepted(&alone).live.limits.len(), fit + 1, "nobody has to be told");
    }
}
