//! Prints how much of their limits regions use, the cost, and the missed bars.
//!
//! `cargo run --profile dist -p acequia-ring --bin utilisation [--quick] [--seed N] [--only WORD]
//! [--million | --users N]`
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::{process::ExitCode, time::Instant};

use acequia_ring::utilisation::{flows, merge, partitions, quotas, slots, table::Table, users};

type Scenario = fn(&mut Table, bool, u64);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|w| w == word);
    let after = |word: &str| words.iter().position(|w| w == word).and_then(|at| words.get(at + 1));
    let seed = after("--seed").and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let only = after("--only");
    let scenarios: [(&str, Scenario); 8] = [
        ("buckets", flows::buckets),
        ("quotas", quotas::quotas),
        ("partitions", partitions::partitions),
        ("users", users::users),
        ("windows", flows::windows),
        ("small", flows::small),
        ("slots", slots::slots),
        ("merge", |table, quick, _| merge::merge(table, quick)),
    ];
    let mut table = Table::default();
    println!("seed {seed}");
    Table::head();
    for (name, scenario) in scenarios {
        if only.is_none_or(|only| only == name) {
            let began = Instant::now();
            scenario(&mut table, has("--quick"), seed);
            println!("  ({name}: {:.1} s)", began.elapsed().as_secs_f64());
        }
    }
    let many = after("--users").and_then(|users| users.parse().ok());
    if let Some(users) = many.or(has("--million").then_some(1_000_000)) {
        let began = Instant::now();
        users::many(&mut table, users, seed);
        println!("  ({users} users: {:.1} s)", began.elapsed().as_secs_f64());
    }
    let missed = table.missed();
    for line in &missed {
        println!("missed: {line}");
    }
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
