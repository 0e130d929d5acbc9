//! Commands of cargo, and of `tests/soak`, that pages show: what they name is there.

use std::{fs, path::Path};

use crate::Page;

/// The folders of a package's targets, and the flags that name them.
const TARGETS: [(&str, &str); 3] = [("--bench", "benches"), ("--bin", "src/bin"), ("--test", "tests")];

/// What commands on a page name and is not there.
pub fn faults(root: &Path, page: &Page) -> Vec<String> {
    let lines = page.blocks.iter().flat_map(|block| block.text.lines());
    lines.chain(page.codes.iter().map(String::as_str)).filter_map(|line| fault(root, line)).collect()
}

fn fault(root: &Path, line: &str) -> Option<String> {
    let at = ["cargo ", "tests/soak "].iter().filter_map(|program| line.find(program)).min()?;
    // What stands behind `--` or a comment is not cargo's.
    let words: Vec<_> =
        line[at..].split_whitespace().take_while(|word| !matches!(*word, "--" | "#" | "|")).collect();
    let named = |flags: &[&str]| words.windows(2).find(|pair| flags.contains(&pair[0])).map(|pair| pair[1]);
    let missing = |what: &str, name: &str| Some(format!("there is no {what} {name}: {line}"));
    if words[0] == "tests/soak" {
        let name = words.get(1).filter(|name| name.chars().all(|letter| letter.is_ascii_lowercase()))?;
        let script = fs::read_to_string(root.join("tests/soak")).unwrap_or_default();
        return if script.contains(&format!("  {name})")) { None } else { missing("run", name) };
    }
    if let Some(profile) = named(&["--profile"]) {
        let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default();
        if !manifest.contains(&format!("[profile.{profile}]")) {
            return missing("profile", profile);
        }
    }
    let package = named(&["-p", "--package"])?;
    let Some((folder, manifest)) = package_of(root, package) else { return missing("package", package) };
    for (flag, targets) in TARGETS {
        let Some(name) = named(&[flag]) else { continue };
        let is_file = [format!("{targets}/{name}.rs"), format!("{targets}/{name}/main.rs")];
        let is_there = is_file.iter().any(|path| folder.join(path).exists());
        // A capital stands for any name.
        if !is_there
            && !manifest.contains(&format!("name = \"{name}\""))
            && !name.starts_with(char::is_uppercase)
        {
            return missing(flag, name);
        }
    }
    None
}

/// The folder and the manifest of a package of this workspace.
fn package_of(root: &Path, package: &str) -> Option<(std::path::PathBuf, String)> {
    let short = package.strip_prefix("acequia-")?;
    ["crates", "tests", ""].iter().map(|folder| root.join(folder).join(short)).find_map(|folder| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
        manifest.contains(&format!("name = \"{package}\"")).then_some((folder, manifest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_on_pages_must_name_existing_targets() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for sound in [
            "cargo bench -p acequia-tests --bench rls",
            "cargo run --profile dist -p acequia-ring --bin utilisation -- --million",
            "cargo run --release -p acequia-sim -- run swarm",
            "cargo test --profile suite -p acequia-node --test FILE NAME",
            "cargo test --profile suite -p acequia-node --test node FILE::NAME",
            "tests/soak rows",
            "tests/soak NAME",
        ] {
            assert_eq!(fault(&root, sound), None);
        }
        for dead in [
            "cargo bench -p acequia-tests --bench floor",
            "cargo run --profile none -p acequia-sim",
            "cargo run -p acequia-nobody",
            "tests/soak nothing",
        ] {
            fault(&root, dead).expect(dead);
        }
    }
}
