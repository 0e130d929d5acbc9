//! A file of a config.

use serde::{Deserialize, Deserializer, de};

use super::{RatelimitDescriptor, RatelimitDomain, RatelimitPolicy, RatelimitUnit};
use crate::settings::SETTINGS;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDomain {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Option<Vec<WrittenDescriptor>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDescriptor {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: Option<String>,
    rate_limit: Option<WrittenPolicy>,
    descriptors: Option<Vec<Self>>,
    #[serde(default)]
    shadow_mode: bool,
    #[serde(default)]
    quota_mode: bool,
    #[serde(default)]
    share_threshold: bool,
    #[serde(default)]
    detailed_metric: bool,
    #[serde(default)]
    value_to_metric: bool,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPolicy {
    #[serde(default)]
    requests_per_unit: u32,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    unlimited: bool,
    #[serde(default)]
    name: String,
    replaces: Option<Vec<WrittenReplaced>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenReplaced {
    #[serde(default)]
    name: String,
}

/// Metadata, whatever they hold.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// Reads a file; `source` is its name.
///
/// # Errors
/// The text is no config of that service.
pub fn read_domain(source: &str, text: &str) -> Result<RatelimitDomain, String> {
    let nodes_max = SETTINGS.reading.nodes_max;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: nodes_max, max_events: 2 * nodes_max },
    };
    let written: WrittenDomain = serde_saphyr::from_str_with_options(text, options).map_err(|fault| {
        let line = fault.location().map_or(0, |at| at.line());
        let said = fault.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter);
        format!("{source}:{line}: {}", said.lines().next().unwrap_or("this is no config"))
    })?;
    let descriptors = written.descriptors.unwrap_or_default().into_iter().map(RatelimitDescriptor::from);
    Ok(RatelimitDomain {
        source: source.to_owned(),
        domain: written.domain,
        descriptors: descriptors.collect(),
    })
}

impl From<WrittenDescriptor> for RatelimitDescriptor {
    fn from(written: WrittenDescriptor) -> Self {
        Self {
            key: written.key,
            value: written.value.unwrap_or_default(),
            rate_limit: written.rate_limit.map(RatelimitPolicy::from),
            descriptors: written.descriptors.unwrap_or_default().into_iter().map(Self::from).collect(),
            shadow_mode: written.shadow_mode,
            quota_mode: written.quota_mode,
            share_threshold: written.share_threshold,
            detailed_metric: written.detailed_metric,
            value_to_metric: written.value_to_metric,
            has_metadata: written.metadata.is_some(),
        }
    }
}

impl From<WrittenPolicy> for RatelimitPolicy {
    fn from(written: WrittenPolicy) -> Self {
        Self {
            requests_per_unit: written.requests_per_unit,
            unit: RatelimitUnit::named(&written.unit),
            unit_text: written.unit,
            unlimited: written.unlimited,
            name: written.name,
            replaces: written.replaces.unwrap_or_default().into_iter().map(|one| one.name).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_with_all_its_fields() {
        let text = "
domain: shop
descriptors:
  - key: tenant
    value: 7
    shadow_mode: true
    metadata: { any: [thing, 1] }
    rate_limit: { unit: Minute, requests_per_unit: 5, name: a, replaces: [{ name: b }] }
    descriptors:
      - { key: path, value: '/api/*', share_threshold: true, rate_limit: { unlimited: true } }
";
        let read = read_domain("a.yaml", text).expect("a config");
        assert_eq!((read.source.as_str(), read.domain.as_str()), ("a.yaml", "shop"));
        let [tenant] = read.descriptors.as_slice() else { panic!("one descriptor") };
        assert_eq!((tenant.key.as_str(), tenant.value.as_str()), ("tenant", "7"));
        assert!(tenant.shadow_mode && tenant.has_metadata && !tenant.quota_mode);
        let policy = tenant.rate_limit.as_ref().expect("a limit");
        assert_eq!((policy.requests_per_unit, policy.unit), (5, Some(RatelimitUnit::Minute)));
        assert_eq!((policy.name.as_str(), policy.replaces.as_slice()), ("a", &["b".to_owned()][..]));
        let [path] = tenant.descriptors.as_slice() else { panic!("one nested descriptor") };
        assert!(path.share_threshold && path.rate_limit.as_ref().is_some_and(|policy| policy.unlimited));
    }

    #[test]
    fn what_is_no_config_is_refused_with_its_line() {
        for (text, line, word) in [
            ("domain: a\nlimits: []\n", 2, "limits"),
            ("domain: a\ndescriptors: 7\n", 2, ""),
            (
                "domain: a\ndescriptors:\n  - key: b\n    rate_limit: { unit: day, requests_per_unit: -1 }\n",
                4,
                "",
            ),
            ("domain: a\ndescriptors:\n  - [b]\n", 3, ""),
            ("domain: a\ndomain: b\n", 2, "domain"),
            (": : :", 1, ""),
        ] {
            let fault = read_domain("a.yaml", text).expect_err(text);
            assert!(
                fault.starts_with(&format!("a.yaml:{line}: ")) && fault.contains(word),
                "{text}: {fault}"
            );
        }
    }
}
