//! The command line accepts every command that a page shows.

use std::{fs, path::Path};

use acequia_cli::arguments::Arguments;
use acequia_lint::{Page, rules::SIZES};
use clap::{Parser as _, error::ErrorKind};

/// Values for the placeholders on the pages.
const PLACEHOLDERS: [(&str, &str); 8] = [
    (" ...", ""),
    ("incarnation N", "incarnation 7"),
    ("FINGERPRINT", "9f86d081884c7d65"),
    ("HOST:PORT", "127.0.0.1:8082"),
    ("KEY=VALUE", "api_key=k1"),
    ("us-1:8082", "127.0.0.1:8082"),
    ("US-1:8082", "127.0.0.1:8082"),
    ("OTHER:8082", "127.0.0.1:8082"),
];

/// The commands of a page: lines of shell blocks, and code within sentences and tables, which may omit
/// arguments.
fn commands(page: &Page) -> Vec<(String, bool)> {
    let lines = page.blocks.iter().filter(|block| matches!(block.kind.as_str(), "sh" | "console" | "ini"));
    let lines = lines.flat_map(|block| block.text.lines().map(|line| (line.to_owned(), true)));
    let all = lines.chain(page.codes.iter().map(|code| (code.clone(), false)));
    all.filter_map(|(line, is_whole)| {
        // The command without its prefix: a path, a loop, `docker run IMAGE`.
        let line =
            line.replace("/usr/local/bin/acequia", "acequia").replace("cargo run --release -- ", "acequia ");
        let at = line.match_indices("acequia ").map(|(at, _)| at).find(|at| {
            let before = &line[..*at];
            before.is_empty() || before.ends_with("do ") || before.ends_with("ExecStart=")
        })?;
        let line = line[at..].split(['|', '&', ';', '#']).next().unwrap_or_default().trim().to_owned();
        Some((line, is_whole))
    })
    .collect()
}

/// Splits words as a shell does; these pages need no more about quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in line.split('\'').enumerate() {
        if number % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

#[test]
fn every_command_on_every_page_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut faults, mut count) = (Vec::new(), 0);
    for (name, _) in SIZES {
        let page = Page::read(&fs::read_to_string(root.join(name)).expect("a page"));
        for (command, is_whole) in commands(&page) {
            let mut meant = command.clone();
            for (placeholder, value) in PLACEHOLDERS {
                meant = meant.replace(placeholder, value);
            }
            count += 1;
            let fault = Arguments::try_parse_from(words(&meant)).err();
            let says_less = |fault: &clap::Error| {
                let kinds = [
                    ErrorKind::MissingRequiredArgument,
                    ErrorKind::MissingSubcommand,
                    ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
                ];
                !is_whole && kinds.contains(&fault.kind())
            };
            faults.extend(
                fault.filter(|fault| !says_less(fault)).map(|fault| format!("{name}: {command}\n{fault}")),
            );
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 50, "only {count} commands were found");
}
