//! The limits that a config's trees of descriptors stand for.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::{
    Limit, UNITS_MAX,
    limit::{Charge, FixedWindowSpec, LimitSpec, Mode, UNITS_MAX_OF_CALLERS, ValueSpec},
    path::StepSpec,
};

use super::{RatelimitDescriptor, RatelimitDomain, RatelimitPolicy, RatelimitUnit};
use crate::imported_name::ImportedName;
use acequia_node::LIMITS_MAX;

/// The most faults that are told.
const FAULTS_MAX: usize = 100;

/// What a config stands for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// The limits, in the order of the config.
    pub limits: Vec<LimitSpec>,
    /// The domains, each once, in the order of the config.
    pub domains: Vec<String>,
    /// What the limits do not say.
    pub differences: Vec<Difference>,
}

/// Something in a config that has another effect here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The limit, as `domain/name`.
    pub limit: String,
    /// The other effect.
    pub what: &'static str,
}

/// The limits of some domains. A domain may be in several files.
///
/// # Errors
/// Every contradiction for which that service refuses a config, each with its file.
pub fn import(domains: &[RatelimitDomain]) -> Result<Imported, Vec<String>> {
    let mut tree = Tree { imported: Imported::default(), faults: Vec::new() };
    let mut roots: BTreeMap<&str, BTreeSet<EntryKey<'_>>> = BTreeMap::new();
    for domain in domains {
        if domain.domain.is_empty() {
            tree.faults.push(format!("{}: the domain is empty: name one", domain.source));
            continue;
        }
        let known = roots.entry(&domain.domain).or_default();
        if known.is_empty() && !tree.imported.domains.contains(&domain.domain) {
            tree.imported.domains.push(domain.domain.clone());
        }
        let place = Place { domain, steps: &[] };
        tree.add_level(&place, &domain.descriptors, known);
    }
    if tree.faults.is_empty() { Ok(tree.imported) } else { Err(tree.faults) }
}

/// The limits of a domain in which callers name limits: one for each unit of time.
pub fn from_callers(domain: &str) -> Vec<LimitSpec> {
    let limit = |(name, unit): (&str, RatelimitUnit)| LimitSpec {
        name: format!("from-callers-{name}"),
        domain: domain.to_owned(),
        from_callers: true,
        fixed_window: Some(FixedWindowSpec {
            limit: UNITS_MAX_OF_CALLERS,
            window: unit.window().to_owned(),
            stagger: false,
        }),
        charge: Charge::Always,
        ..LimitSpec::default()
    };
    RatelimitUnit::ALL.into_iter().map(limit).collect()
}

/// A key, and its value or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EntryKey<'a> {
    key: &'a str,
    value: &'a str,
}

/// A place in a tree.
struct Place<'a> {
    domain: &'a RatelimitDomain,
    steps: &'a [StepSpec],
}

/// The limits that were made so far, and every fault.
struct Tree {
    imported: Imported,
    faults: Vec<String>,
}

impl Tree {
    fn add_level<'a>(
        &mut self,
        place: &Place<'_>,
        descriptors: &'a [RatelimitDescriptor],
        known: &mut BTreeSet<EntryKey<'a>>,
    ) {
        for descriptor in descriptors {
            if self.imported.limits.len() > LIMITS_MAX || self.faults.len() > FAULTS_MAX {
                let what = format!("{}: more than {LIMITS_MAX} limits: leave some out", place.domain.source);
                if self.faults.len() <= FAULTS_MAX && self.faults.last() != Some(&what) {
                    self.faults.push(what);
                }
                return;
            }
            let step = StepSpec {
                key: descriptor.key.clone(),
                value: Some(descriptor.value.clone()).filter(|value| !value.is_empty()),
                shared: descriptor.share_threshold,
                in_metrics: descriptor.value_to_metric,
            };
            let mut steps = place.steps.to_vec();
            steps.push(step);
            let here = Place { domain: place.domain, steps: &steps };
            let entry = EntryKey { key: &descriptor.key, value: &descriptor.value };
            if !known.insert(entry) {
                self.fault(&here, "is there twice: leave one out");
                continue;
            }
            self.add(&here, descriptor);
            self.add_level(&here, &descriptor.descriptors, &mut BTreeSet::new());
        }
    }

    fn add(&mut self, place: &Place<'_>, descriptor: &RatelimitDescriptor) {
        let before = self.faults.len();
        if descriptor.key.is_empty() {
            self.fault(place, "has an empty key: name one");
        }
        if descriptor.share_threshold && !descriptor.value.contains('*') {
            self.fault(
                place,
                "has share_threshold, and a value without `*`: leave one out, or add the other",
            );
        }
        let spec = match &descriptor.rate_limit {
            Some(policy) => self.limit(place, descriptor, policy),
            // A descriptor without a limit hides less specific ones: nothing counts where a walk ends there.
            None if descriptor.descriptors.is_empty() => Some(LimitSpec { mode: Mode::Off, ..empty(place) }),
            None => None,
        };
        let Some(mut spec) = spec else { return };
        if descriptor.detailed_metric {
            spec.path.iter_mut().for_each(|step| step.in_metrics = true);
        }
        for (is_so, what) in [
            (descriptor.has_metadata, "metadata: answers do not carry it"),
            (
                descriptor.shadow_mode && descriptor.quota_mode,
                "shadow_mode and quota_mode: the limit only watches, and lets no request pass for others",
            ),
        ] {
            if is_so {
                let limit = format!("{}/{}", spec.domain, spec.name);
                self.imported.differences.push(Difference { limit, what });
            }
        }
        if self.faults.len() == before {
            // What that service takes may be too much here.
            let faults = Limit::new(spec.clone()).err().unwrap_or_default();
            faults
                .iter()
                .for_each(|fault| self.fault(place, &format!("cannot be a limit here: {}", fault.what)));
        }
        self.imported.limits.push(spec);
    }

    fn limit(
        &mut self,
        place: &Place<'_>,
        descriptor: &RatelimitDescriptor,
        policy: &RatelimitPolicy,
    ) -> Option<LimitSpec> {
        if policy.replaces.iter().any(String::is_empty) {
            self.fault(place, "replaces a limit without a name: name it");
        }
        if policy.replaces.contains(&policy.name) {
            self.fault(place, "replaces itself: leave that out");
        }
        let empty = LimitSpec {
            alias: Some(policy.name.clone()).filter(|name| !name.is_empty()),
            replaces: policy.replaces.clone(),
            ..empty(place)
        };
        match (policy.unlimited, policy.unit) {
            (true, Some(_)) => {
                self.fault(place, "is unlimited, and has a unit: leave one out");
                None
            }
            (true, None) => {
                // Whatever the value of the first entry is.
                let every = ValueSpec::Texts(vec!["*".to_owned()]);
                let unlimited = BTreeMap::from([(place.steps[0].key.clone(), every)]);
                Some(LimitSpec { unlimited, ..empty })
            }
            (false, None) => {
                let units = "second, minute, hour, day, week, month or year";
                self.fault(place, &format!("has the unit {:?}: write {units}", policy.unit_text));
                None
            }
            (false, Some(unit)) => Some(LimitSpec {
                fixed_window: Some(window(policy.requests_per_unit, unit)),
                mode: match (descriptor.shadow_mode, descriptor.quota_mode) {
                    (true, _) => Mode::Shadow,
                    (false, true) => Mode::Any,
                    (false, false) => Mode::Enforce,
                },
                charge: Charge::Always,
                debt: Some(UNITS_MAX),
                ..empty
            }),
        }
    }

    fn fault(&mut self, place: &Place<'_>, what: &str) {
        let Place { domain, steps } = place;
        let path: Vec<String> = steps.iter().map(shown).collect();
        self.faults.push(format!("{}: {}/{} {what}", domain.source, domain.domain, path.join(",")));
    }
}

/// A limit of a place that counts nothing.
fn empty(place: &Place<'_>) -> LimitSpec {
    LimitSpec {
        name: name(place.steps),
        domain: place.domain.domain.clone(),
        path: place.steps.to_vec(),
        fixed_window: Some(window(u32::MAX, RatelimitUnit::Second)),
        ..LimitSpec::default()
    }
}

fn window(requests_per_unit: u32, unit: RatelimitUnit) -> FixedWindowSpec {
    FixedWindowSpec { limit: requests_per_unit.into(), window: unit.window().to_owned(), stagger: false }
}

fn shown(step: &StepSpec) -> String {
    match &step.value {
        Some(value) => format!("{}={value}", step.key),
        None => step.key.clone(),
    }
}

/// The name of the limit at the end of a path: `key=value,key`.
fn name(steps: &[StepSpec]) -> String {
    let mut name = ImportedName::default();
    for (place, step) in steps.iter().enumerate() {
        if place > 0 {
            name.sign(',');
        }
        name.push(&step.key);
        if let Some(value) = &step.value {
            name.sign('=');
            name.push(value);
        }
    }
    name.finish()
}

#[cfg(test)]
mod tests {
    use acequia_limits::Limit;

    use super::{super::read_domain, *};

    fn imported(text: &str) -> Imported {
        import(&[read_domain("a.yaml", text).expect("a config")]).expect("limits")
    }

    #[test]
    fn each_descriptor_with_a_rate_limit_becomes_a_limit_named_by_its_path() {
        let imported = imported(
            "
domain: shop
descriptors:
  - key: tenant
    rate_limit: { unit: month, requests_per_unit: 50 }
    descriptors:
      - { key: path, value: '/a b/*', rate_limit: { unit: second, requests_per_unit: 5 }, quota_mode: true }
  - { key: tenant, value: free, rate_limit: { unlimited: true } }
  - { key: tenant, value: old }
",
        );
        let names: Vec<&str> = imported.limits.iter().map(|limit| limit.name.as_str()).collect();
        assert_eq!(names, ["tenant", "tenant,path=%2Fa%20b%2F*", "tenant=free", "tenant=old"]);
        let modes: Vec<Mode> = imported.limits.iter().map(|limit| limit.mode).collect();
        assert_eq!(modes, [Mode::Enforce, Mode::Any, Mode::Enforce, Mode::Off]);
        assert_eq!(imported.limits[0].numbers(), "50 a 30d");
        for spec in imported.limits {
            let text = serde_json::to_string(&spec).expect("text");
            assert_eq!(serde_json::from_str::<LimitSpec>(&text).expect("a limit"), spec);
            Limit::new(spec).expect("a limit that can be enforced");
        }
    }

    #[test]
    fn metrics_show_the_values_for_which_a_descriptor_says_so() {
        let imported = imported(
            "
domain: shop
descriptors:
  - key: tenant
    value_to_metric: true
    descriptors:
      - { key: route, value: '/x/*', rate_limit: { unit: day, requests_per_unit: 5 } }
      - { key: user, detailed_metric: true, rate_limit: { unit: day, requests_per_unit: 5 } }
  - key: zone
    descriptors: [{ key: user, detailed_metric: true, rate_limit: { unit: day, requests_per_unit: 5 } }]
",
        );
        let shown = |limit: &LimitSpec| limit.path.iter().map(|step| step.in_metrics).collect::<Vec<_>>();
        let shown: Vec<Vec<bool>> = imported.limits.iter().map(shown).collect();
        assert_eq!(shown, [[true, false], [true, true], [true, true]]);
        assert_eq!(imported.differences, []);
    }

    #[test]
    fn contradictions_are_refused_as_that_service_refuses_them() {
        let refused = |descriptor: &str, word: &str| {
            let text = format!("domain: shop\ndescriptors:\n  - {descriptor}\n");
            let faults = import(&[read_domain("a.yaml", &text).expect("a config")]).expect_err(descriptor);
            assert!(
                faults.iter().any(|fault| fault.starts_with("a.yaml: ") && fault.contains(word)),
                "{faults:?}"
            );
        };
        refused("{ value: x }", "empty key");
        refused("{ key: a, rate_limit: { requests_per_unit: 1 } }", "second, minute");
        refused("{ key: a, rate_limit: { unit: unknown } }", "second, minute");
        refused("{ key: a, rate_limit: { unit: day, unlimited: true } }", "unlimited");
        refused("{ key: a, share_threshold: true }", "share_threshold");
        refused("{ key: a, rate_limit: { unit: day, replaces: [{}] } }", "without a name");
        refused("{ key: a, rate_limit: { unit: day, name: b, replaces: [{ name: b }] } }", "itself");
        refused(
            "{ key: a, descriptors: [{ key: b, value: c }, { key: b, value: c }] }",
            "shop/a,b=c is there twice",
        );
        let empty = import(&[read_domain("a.yaml", "descriptors: []\n").expect("a config")]);
        assert!(empty.expect_err("no domain")[0].contains("domain is empty"));
    }

    #[test]
    fn what_cannot_be_a_limit_here_is_refused_with_its_place() {
        let of = |domain: &str| {
            let text =
                format!("domain: {domain}\ndescriptors: [{{ key: a, rate_limit: {{ unit: day }} }}]\n");
            import(&[read_domain("a.yaml", &text).expect("a config")])
        };
        // The longest name of a listener that Envoy Gateway makes.
        assert!(of(&format!("{}/{}/{}", "n".repeat(63), "g".repeat(253), "l".repeat(253))).is_ok());
        for domain in ["'a shop'".to_owned(), "x".repeat(601)] {
            let faults = of(&domain).expect_err("no such domain");
            assert!(
                faults.len() == 1 && faults[0].starts_with("a.yaml: ") && faults[0].contains("a domain is")
            );
        }
    }

    #[test]
    fn a_domain_may_be_in_several_files_but_a_descriptor_in_one() {
        let file = |source: &str, key: &str| {
            let text =
                format!("domain: shop\ndescriptors: [{{ key: {key}, rate_limit: {{ unit: day }} }}]\n");
            read_domain(source, &text).expect("a config")
        };
        let both = import(&[file("a.yaml", "a"), file("b.yaml", "b")]).expect("limits");
        assert_eq!((both.limits.len(), both.domains.len()), (2, 1));
        let faults = import(&[file("a.yaml", "a"), file("b.yaml", "a")]).expect_err("twice");
        assert!(faults[0].starts_with("b.yaml: shop/a is there twice"), "{faults:?}");
    }
}
