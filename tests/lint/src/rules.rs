//! What every page is held to: its size, links that lead somewhere, sentences that are read once.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{Page, cargo, metrics};

/// A sentence has at most so many words.
pub const WORDS_MAX: usize = 25;
/// The sentences of a page have at most so many words on average.
pub const WORDS_MEAN_MAX: f64 = 18.0;
/// Bytes.
const KB: usize = 1024;
/// The pages that are held to a size and to short sentences, and how many bytes each may have.
pub const SIZES: [(&str, usize); 30] = [
    ("README.md", 9 * KB),
    ("SECURITY.md", 11 * KB),
    ("CHANGELOG.md", 9 * KB),
    ("crates/README.md", 9 * KB),
    ("deploy/README.md", 12 * KB),
    ("deploy/config.md", 12 * KB),
    ("deploy/tls.md", 12 * KB),
    ("deploy/runbook.md", 12 * KB),
    ("deploy/metrics.md", 12 * KB),
    ("deploy/limits.md", 20 * KB),
    ("deploy/callers.md", 12 * KB),
    ("deploy/from-limitador.md", 8 * KB),
    ("deploy/from-ratelimit.md", 8 * KB),
    ("tests/bench/README.md", 16 * KB),
    ("crates/server/METRICS.md", 8 * KB),
    ("crates/rights/src/pool/README.md", 8 * KB),
    ("crates/rights/README.md", 18 * KB),
    ("crates/limits/README.md", 8 * KB),
    ("crates/node/README.md", 8 * KB),
    ("crates/store/README.md", 8 * KB),
    ("crates/mesh/README.md", 8 * KB),
    ("crates/api/README.md", 8 * KB),
    ("crates/client/README.md", 8 * KB),
    ("crates/server/README.md", 8 * KB),
    ("crates/cli/README.md", 8 * KB),
    ("lua/README.md", 8 * KB),
    ("proto/README.md", 8 * KB),
    ("tests/README.md", 8 * KB),
    ("tests/ring/README.md", 8 * KB),
    ("sim/README.md", 8 * KB),
];
/// The pages for operators, and what they may have together.
pub const OPERATORS: ([&str; 5], usize) = (
    ["deploy/README.md", "deploy/config.md", "deploy/tls.md", "deploy/runbook.md", "deploy/metrics.md"],
    30 * KB,
);
/// What stands in a fence is run, compiled, checked or shown by a test; so it is of a kind that is known.
const KINDS: [&str; 8] = ["", "console", "ini", "json", "rust", "sh", "text", "yaml"];

/// Rules for Prometheus: held, as the pages are, to metrics that there are.
const ALERTS: &str = "deploy/alerts.yaml";

/// What is wrong with the pages below a folder, and with the alert rules: a line each.
///
/// # Errors
/// A file cannot be read.
pub fn faults(root: &Path) -> io::Result<Vec<String>> {
    let (mut pages, mut faults) = (BTreeMap::new(), Vec::new());
    let exported = metrics::exported(root)?;
    let mut hold_metrics = |name: &str, text: &str| {
        faults.extend(metrics::faults(text, &exported).into_iter().map(|fault| format!("{name}: {fault}")));
    };
    for path in files_below(root, ".md")? {
        let text = fs::read_to_string(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        hold_metrics(&name, &text);
        pages.insert(name, (text.len(), Page::read(&text)));
    }
    hold_metrics(ALERTS, &fs::read_to_string(root.join(ALERTS))?);
    for (name, bytes_max) in SIZES {
        match pages.get(name) {
            None => faults.push(format!("{name}: there is no such page")),
            Some((bytes, page)) => {
                if *bytes > bytes_max {
                    faults.push(format!("{name}: {bytes} bytes, at most {bytes_max}"));
                }
                faults.extend(long(page).into_iter().map(|fault| format!("{name}: {fault}")));
                let kinds = page.blocks.iter().map(|block| block.kind.as_str());
                faults.extend(
                    kinds
                        .filter(|kind| !KINDS.contains(kind))
                        .map(|kind| format!("{name}: nobody runs {kind:?}")),
                );
            }
        }
    }
    let (operators, bytes_max) = OPERATORS;
    let bytes: usize = operators.iter().filter_map(|name| pages.get(*name)).map(|(bytes, _)| bytes).sum();
    if bytes > bytes_max {
        faults.push(format!("{}: {bytes} bytes together, at most {bytes_max}", operators.join(", ")));
    }
    for (name, (_, page)) in &pages {
        faults.extend(dead_links(root, name, page, &pages));
        faults.extend(cargo::faults(root, page).into_iter().map(|fault| format!("{name}: {fault}")));
    }
    Ok(faults)
}

/// Sentences that are too long, and the average if it is.
fn long(page: &Page) -> Vec<String> {
    let mut faults: Vec<_> = page
        .sentences
        .iter()
        .filter(|sentence| sentence.words > WORDS_MAX)
        .map(|sentence| format!("{} words, at most {WORDS_MAX}: {}", sentence.words, sentence.text))
        .collect();
    let words: usize = page.sentences.iter().map(|sentence| sentence.words).sum();
    let mean = words as f64 / page.sentences.len().max(1) as f64;
    if mean > WORDS_MEAN_MAX {
        faults.push(format!("{mean:.1} words a sentence on average, at most {WORDS_MEAN_MAX}"));
    }
    faults
}

/// Links that lead nowhere. What is on the network is not asked.
fn dead_links(root: &Path, name: &str, page: &Page, pages: &BTreeMap<String, (usize, Page)>) -> Vec<String> {
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let mut faults = Vec::new();
    for link in &page.links {
        if link.starts_with("https://") || link.starts_with("mailto:") {
            continue;
        }
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if path.is_empty() { name.to_owned() } else { plain(&folder.join(path)) };
        let is_there = !target.starts_with("..") && root.join(&target).exists();
        let is_named =
            anchor.is_empty() || pages.get(&target).is_some_and(|(_, page)| page.anchors.contains(anchor));
        if !is_there || !is_named {
            faults.push(format!("{name}: {link} leads nowhere"));
        }
    }
    faults
}

/// A path without `.` and `..`, where they can be left out.
fn plain(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.iter().filter_map(|part| part.to_str()) {
        match part {
            "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Every file below a folder whose name ends so; none in folders that are hidden or built.
pub(crate) fn files_below(folder: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                found.extend(files_below(&path, ending)?);
            }
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_named_and_short_ones_are_not() {
        let sentence = |words: usize| format!("{}.\n\n", vec!["word"; words].join(" "));
        assert_eq!(long(&Page::read(&sentence(WORDS_MAX))).len(), 1, "the average alone");
        assert_eq!(long(&Page::read(&(sentence(WORDS_MAX) + &sentence(2)))).len(), 0);
        let faults = long(&Page::read(&(sentence(WORDS_MAX + 1) + &sentence(2))));
        assert!(faults[0].starts_with("26 words, at most 25: word"), "{faults:?}");
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let pages = BTreeMap::from([
            ("a/one.md".to_owned(), (0, Page::read("# One\n"))),
            ("two.md".to_owned(), (0, Page::read("# Two words\n"))),
        ]);
        let root = std::env::temp_dir().join(format!("acequia-lint-{}", std::process::id()));
        fs::create_dir_all(root.join("a")).expect("a folder");
        fs::write(root.join("a/one.md"), "").expect("a file");
        fs::write(root.join("two.md"), "").expect("a file");

        let dead = |text: &str| dead_links(&root, "a/one.md", &Page::read(text), &pages);
        assert!(dead("[x](../two.md#two-words) [y](#one) [z](https://example.org) [f](../a)").is_empty());
        for link in ["../two.md#two", "three.md", "#two-words", "../../two.md", "http://example.org"] {
            assert_eq!(dead(&format!("[x]({link})")), [format!("a/one.md: {link} leads nowhere")]);
        }
        fs::remove_dir_all(&root).expect("removed");
    }
}
