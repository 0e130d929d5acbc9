//! Metrics that pages and alert rules name: the server exports them.

use std::{collections::BTreeSet, fs, io, path::Path};

/// What `prometheus-client` adds to a metric's name: its unit, and what a line of it says.
const SUFFIXES: [&str; 7] = ["_total", "_info", "_bucket", "_count", "_sum", "_seconds", "_bytes"];
const PREFIX: &str = "acequia_";

/// The names of metrics that a text holds. Paths of Rust, such as `acequia_client::Client`, are none.
pub fn named(text: &str) -> BTreeSet<&str> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let begins = text.match_indices(PREFIX).map(|(at, _)| at);
    let whole = begins.filter(|at| !text[..*at].ends_with(is_of_name));
    whole
        .map(|at| &text[at..])
        .map(|rest| rest.split_at(rest.find(|letter| !is_of_name(letter)).unwrap_or(rest.len())))
        .filter(|(name, after)| *name != PREFIX && !after.starts_with("::"))
        .map(|(name, _)| name)
        .collect()
}

/// The metrics that the server names in a literal of their own, without suffixes; and the crates, which are named alike
/// where a log is filtered.
///
/// # Errors
/// A file cannot be read.
pub fn exported(root: &Path) -> io::Result<BTreeSet<String>> {
    let mut exported = BTreeSet::new();
    for entry in fs::read_dir(root.join("crates"))? {
        exported.insert(format!("{PREFIX}{}", entry?.file_name().to_string_lossy()));
    }
    for path in crate::rules::files_below(&root.join("crates/server/src"), ".rs")? {
        let text = fs::read_to_string(path)?;
        exported.extend(
            text.split('"')
                .filter(|literal| named(literal).contains(literal))
                .map(|name| bare(name).to_owned()),
        );
    }
    Ok(exported)
}

/// Names in a text that nothing exports.
pub fn faults(text: &str, exported: &BTreeSet<String>) -> Vec<String> {
    let unknown = named(text).into_iter().filter(|name| !exported.contains(bare(name)));
    unknown.map(|name| format!("there is no metric {name}")).collect()
}

/// A name without its suffixes.
fn bare(name: &str) -> &str {
    let shorter = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
    shorter.map_or(name, bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_compared_without_suffixes() {
        let text = "rate(acequia_requests_total[5m]) / acequia_cells_bytes, `acequia_round_trip_seconds_bucket{le=\"1\"}`, \
                    use acequia_client::Client, not_acequia_this";
        let names = named(text);
        assert_eq!(
            names.into_iter().collect::<Vec<_>>(),
            ["acequia_cells_bytes", "acequia_requests_total", "acequia_round_trip_seconds_bucket"]
        );
        let exported = ["acequia_requests", "acequia_cells"].map(String::from).into();
        assert_eq!(faults(text, &exported), ["there is no metric acequia_round_trip_seconds_bucket"]);
    }

    #[test]
    fn the_server_exports_many() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let exported = exported(&root).expect("sources");
        assert!(exported.len() > 50 && exported.contains("acequia_requests"), "{exported:?}");
        assert_eq!(faults("acequia_requets_total", &exported), ["there is no metric acequia_requets_total"]);
    }
}
