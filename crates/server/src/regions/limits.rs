//! Limits as versions of the catalogue and files have them: read, written, compared, merged. Pure.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::limit::LimitSpec;
use acequia_node::regions::{limits_from_bytes, limits_to_bytes};
use acequia_rights::Version;

use super::{order::OrderFault, overrides::keep_grants};

/// The limits of a version.
pub(super) fn specs_of(version: &Version) -> Result<Vec<LimitSpec>, OrderFault> {
    let limits = limits_from_bytes(&version.limits).map_err(OrderFault::Adopt)?;
    Ok(limits.into_iter().map(|limit| limit.spec).collect())
}

pub(super) fn bytes_of(specs: &[LimitSpec]) -> Result<Vec<u8>, OrderFault> {
    limits_to_bytes(specs).map_err(OrderFault::Invalid)
}

/// The limits that a file adds or changes, and those that it drops (`None`).
pub(super) fn changed(applied: &[LimitSpec], file: &[LimitSpec]) -> Vec<(String, Option<Box<LimitSpec>>)> {
    let before: BTreeMap<String, &LimitSpec> = applied.iter().map(|spec| (path(spec), spec)).collect();
    let after: BTreeSet<String> = file.iter().map(path).collect();
    let new = file.iter().filter(|spec| before.get(&path(spec)) != Some(spec));
    let gone = applied.iter().filter(|spec| !after.contains(&path(spec)));
    let new = new.map(|spec| (path(spec), Some(Box::new(spec.clone()))));
    new.chain(gone.map(|spec| (path(spec), None))).collect()
}

/// The catalogue's limits with those changes. Limits that the file did not change stay as operators set them.
pub(super) fn merged(before: &[LimitSpec], changed: &[(String, Option<Box<LimitSpec>>)]) -> Vec<LimitSpec> {
    let places: BTreeMap<String, usize> =
        before.iter().enumerate().map(|(at, spec)| (path(spec), at)).collect();
    let mut all: Vec<Option<LimitSpec>> = before.iter().cloned().map(Some).collect();
    for (name, spec) in changed {
        match (spec, places.get(name)) {
            (Some(spec), Some(at)) => all[*at] = Some(keep_grants(&before[*at], spec)),
            (Some(spec), None) => all.push(Some((**spec).clone())),
            (None, Some(at)) => all[*at] = None,
            (None, None) => {}
        }
    }
    all.into_iter().flatten().collect()
}

fn path(spec: &LimitSpec) -> String {
    format!("{}/{}", spec.domain, spec.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(name: &str, burst: u64) -> LimitSpec {
        let json = format!(
            r#"{{"name": "{name}", "domain": "shop", "token_bucket": {{"rate": "60/s", "burst": {burst}}}}}"#
        );
        serde_json::from_str(&json).expect("a limit")
    }

    #[test]
    fn an_edited_file_changes_only_the_limits_edited_in_it() {
        let applied = [bucket("a", 1), bucket("b", 1), bucket("c", 1)];
        let file = [bucket("a", 1), bucket("b", 2), bucket("d", 1)];
        // Meanwhile an operator has set the budgets of a and of c.
        let catalogue = [bucket("a", 7), bucket("b", 1), bucket("c", 7)];
        let after = merged(&catalogue, &changed(&applied, &file));
        assert_eq!(after, [bucket("a", 7), bucket("b", 2), bucket("d", 1)]);
        assert_eq!(changed(&applied, &applied), []);
    }
}
