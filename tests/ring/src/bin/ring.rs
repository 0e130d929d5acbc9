//! Runs histories until a finding, or for a number of steps.
#![allow(clippy::print_stdout, reason = "what it is for")]

use std::{collections::BTreeMap, time::Instant};

use acequia_ring::{
    budget::KeyCell,
    history::{self, STEPS},
    stories,
    trace::Event,
};

/// Prints each change of what regions have of a cell, and all events in between.
fn watch(seed: u64, limit: usize, key: usize) {
    let (mut before, mut seen) = (Vec::new(), 0);
    let (mut suspects, mut in_force, mut wants) = (Vec::new(), None, None);
    let ended = history::watched(seed, STEPS, |world| {
        let now = |place: &acequia_ring::place::Place| {
            let now = place.now(world.now);
            let suspect = place.node().and_then(|node| node.membership(now)).map(|m| m.clock_is_suspect);
            (suspect, place.clock.error_ns, place.clock.drift_ppm)
        };
        let found: Vec<_> = world.places.iter().map(now).collect();
        if found != suspects {
            println!("    clocks {found:?}");
            suspects = found;
        }
        let measured = &world.limits[limit];
        if in_force != Some(world.oracle.in_force(limit, key)) {
            in_force = Some(world.oracle.in_force(limit, key));
            println!("    in force {in_force:?}");
        }
        let wanted = (world.operator.budgets[limit], world.operator.owns[limit]);
        if wants != Some(wanted) {
            wants = Some(wanted);
            println!("    wanted {wanted:?}, {:?}", measured.classed);
        }
        let cells = &measured.keys[key].cells;
        let holding = |place: &acequia_ring::place::Place| -> Vec<_> {
            (0..cells.len())
                .filter_map(|cell| measured.holding(place, KeyCell { key, cell }, world.now))
                .collect()
        };
        let all: Vec<_> = world.places.iter().map(holding).collect();
        let skipped = world.trace.events - seen;
        seen = world.trace.events;
        for (at, event) in world.trace.newest(skipped) {
            let other =
                matches!(event, Event::Ask(_, l, k, _, allowed) if (*l, *k) != (limit, key) || !allowed);
            if !other {
                println!("{:.9} {event:?}", *at as f64 / 1e9);
                if let Event::Write(place, _) | Event::Start(place, _) | Event::Crash(place, ..) = event {
                    for row in world.places[*place].disk.rows_of(measured.id) {
                        if cells.iter().any(|tag| row.tag.0 as u64 == tag.0 as u64) {
                            println!("        disk of {place}: {:?}", row.state);
                        }
                    }
                }
            }
        }
        if all != before {
            for (place, holding) in all.iter().enumerate() {
                if before.get(place) != Some(holding) {
                    println!("        {place}: {holding:?}");
                }
            }
            before = all;
        }
    });
    println!("{:?}", ended.found.map(|found| found.0));
}

const USAGE: &str = "\
usage: ring [--seed N] [--steps 1e9]     histories from seed N on, until something is found or so many steps are done
       ring [--seed N] --survey 1e9      so many steps whatever is found, and then what it was, how often, by which seeds
       ring --stories                    the scripted histories, and what each found
       ring --only SEED                  one history, with its last events if anything is found
       ring --seed N --watch LIMIT,KEY   every event of one history, and what each region has of a cell: numbers from 0
Ends with 0 if nothing was found, with 1 if anything was, and with 2 if the arguments make no sense.";
/// Runs every story, and prints its finding.
fn tell() {
    for (name, story) in stories::ALL {
        println!("{name}: {:?}", story());
    }
}

fn main() {
    let (mut steps, mut seed, mut only, mut survey) = (1e7, 1_u64, false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().unwrap_or_default();
        match arg.as_str() {
            "--steps" => steps = value.parse().expect("a number of steps"),
            "--seed" => seed = value.parse().expect("a seed"),
            // Run all histories in spite of findings. Prints each finding with its count and seeds.
            "--survey" => {
                steps = value.parse().expect("a number of steps");
                survey = true;
            }
            "--stories" => return tell(),
            "--watch" => {
                let numbers: Vec<usize> = value.split(',').map(|n| n.parse().expect("a number")).collect();
                return watch(seed, numbers[0], numbers[1]);
            }
            "--only" => {
                seed = value.parse().expect("a seed");
                only = true;
            }
            _ => {
                println!("{USAGE}");
                std::process::exit(2);
            }
        }
    }
    let begun = Instant::now();
    let (mut done, mut histories, mut admitted, mut passed, mut hash) = (0, 0, 0, 0, 0_u64);
    let mut found: BTreeMap<&str, (u64, Vec<String>)> = BTreeMap::new();
    loop {
        let Ok(ended) = std::panic::catch_unwind(|| history::run(seed, STEPS)) else {
            println!("seed {seed} panicked");
            if !survey {
                std::process::exit(1);
            }
            let (count, seeds) = found.entry("panic").or_default();
            *count += 1;
            seeds.push(format!("{seed}"));
            histories += 1;
            seed += 1;
            // The number of steps is unknown. Assume the most, so that the run ends.
            done += STEPS;
            if only || done as f64 >= steps {
                break;
            }
            continue;
        };
        done += ended.steps;
        histories += 1;
        admitted += ended.admitted;
        passed += ended.passed_ns / 1_000_000_000;
        hash = hash.rotate_left(7) ^ ended.hash;
        if let (true, Some((finding, _))) = (survey, &ended.found) {
            let (count, seeds) = found.entry(finding.check).or_default();
            *count += 1;
            seeds.push(format!("{seed}@{}: {}", ended.steps, finding.what));
        } else if let Some((finding, last)) = ended.found {
            for line in last {
                println!("{line}");
            }
            println!("seed {seed}, step {}: {}: {}", ended.steps, finding.check, finding.what);
            println!("replay: cargo run --profile ring -p acequia-ring --bin ring -- --only {seed}");
            std::process::exit(1);
        }
        if only || done as f64 >= steps {
            break;
        }
        seed += 1;
    }
    let failed: u64 = found.values().map(|(count, _)| count).sum();
    for (check, (count, seeds)) in &found {
        println!("{count} of {check}:");
        seeds.iter().take(8).for_each(|seed| println!("    {seed}"));
    }
    let took = begun.elapsed().as_secs_f64();
    let verdict = match failed {
        0 => "nothing found".to_owned(),
        failed => format!("something found in {failed} of them"),
    };
    println!(
        "ring: {done} steps in {histories} histories, {admitted} units admitted in {passed} s of true time, \
         {verdict}; {took:.1} s, {:.0} steps/s, trace {hash:016x}",
        done as f64 / took
    );
    if failed > 0 {
        std::process::exit(1);
    }
}
