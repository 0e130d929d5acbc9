//! Compares a node's own file with the catalogue.
//!
//! The catalogue rules; a file is only compared with it, and every difference is shown. On the authority, a
//! *change* of the file since it was last applied is an operation. On other nodes, and before the first
//! application, a difference changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use acequia_limits::limit::LimitSpec;
use serde_json::Value;

/// One difference between a file and the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The file has a limit that the catalogue lacks: the limit is not enforced.
    OnlyInFile {
        /// `domain/name`.
        limit: String,
    },
    /// The catalogue has a limit that the file lacks: the limit is enforced.
    OnlyInCatalogue {
        /// `domain/name`.
        limit: String,
    },
    /// Both have the limit, and differ in a field: the catalogue's value counts.
    Field {
        /// `domain/name`.
        limit: String,
        /// The field's name, as in a file.
        field: String,
        /// The value in the file; `None` if the file omits the field.
        file: Option<String>,
        /// The value in the catalogue; `None` if the catalogue omits the field.
        catalogue: Option<String>,
    },
}

/// Every difference, ordered by the names of limits and of fields.
pub fn differences(file: &[LimitSpec], catalogue: &[LimitSpec]) -> Vec<Difference> {
    let by_path = |specs: &[LimitSpec]| -> BTreeMap<String, Value> {
        let entry = |spec: &LimitSpec| {
            let value = serde_json::to_value(spec).unwrap_or_default();
            (format!("{}/{}", spec.domain, spec.name), value)
        };
        specs.iter().map(entry).collect()
    };
    let (file, catalogue) = (by_path(file), by_path(catalogue));
    let paths: BTreeSet<&String> = file.keys().chain(catalogue.keys()).collect();
    let mut all = Vec::new();
    for path in paths {
        let limit = path.clone();
        match (file.get(path), catalogue.get(path)) {
            (Some(_), None) => all.push(Difference::OnlyInFile { limit }),
            (None, _) => all.push(Difference::OnlyInCatalogue { limit }),
            (Some(ours), Some(theirs)) => all.extend(fields(&limit, ours, theirs)),
        }
    }
    all
}

fn fields(limit: &str, file: &Value, catalogue: &Value) -> Vec<Difference> {
    let none = serde_json::Map::new();
    let (file, catalogue) = (file.as_object().unwrap_or(&none), catalogue.as_object().unwrap_or(&none));
    let names: BTreeSet<&String> = file.keys().chain(catalogue.keys()).collect();
    names
        .into_iter()
        .filter(|name| file.get(*name) != catalogue.get(*name))
        .map(|name| Difference::Field {
            limit: limit.to_owned(),
            field: name.clone(),
            file: file.get(name).map(Value::to_string),
            catalogue: catalogue.get(name).map(Value::to_string),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(json: &str) -> Vec<LimitSpec> {
        serde_json::from_str(json).expect("limits")
    }

    #[test]
    fn every_difference_is_named_and_nothing_else() {
        let file = specs(
            r#"[{"name": "a", "domain": "d", "token_bucket": {"rate": "1/s", "burst": 5}},
                {"name": "same", "domain": "d", "fixed_window": {"limit": 3, "window": "1m"}},
                {"name": "new", "domain": "d", "fixed_window": {"limit": 3, "window": "1m"}}]"#,
        );
        let catalogue = specs(
            r#"[{"name": "same", "domain": "d", "fixed_window": {"limit": 3, "window": "1m"}},
                {"name": "a", "domain": "d", "token_bucket": {"rate": "1/s", "burst": 9}, "by": ["key"]},
                {"name": "old", "domain": "d", "fixed_window": {"limit": 3, "window": "1m"}}]"#,
        );
        let all = differences(&file, &catalogue);
        let limit = || "d/a".to_owned();
        assert_eq!(
            all,
            [
                Difference::Field {
                    limit: limit(),
                    field: "by".to_owned(),
                    file: None,
                    catalogue: Some(r#"["key"]"#.to_owned()),
                },
                Difference::Field {
                    limit: limit(),
                    field: "token_bucket".to_owned(),
                    file: Some(r#"{"burst":5,"rate":"1/s"}"#.to_owned()),
                    catalogue: Some(r#"{"burst":9,"rate":"1/s"}"#.to_owned()),
                },
                Difference::OnlyInFile { limit: "d/new".to_owned() },
                Difference::OnlyInCatalogue { limit: "d/old".to_owned() },
            ]
        );
        assert_eq!(differences(&file, &file), []);
    }
}
