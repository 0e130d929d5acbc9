//! Leaves out one rule after another, and runs stories and histories until a check notices.
//!
//! Prints the check and the number of histories for each rule. Exits with 1 if nobody notices that a rule is
//! missing.
#![allow(clippy::print_stdout, reason = "what it is for")]

#[cfg(feature = "mutations")]
fn main() {
    use acequia_rights::mutation::Check;
    use acequia_ring::kill::{self, Killed};

    let (mut histories, mut only, mut quick) = (20_000, None, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => (histories, quick) = (400, true),
            "--histories" => histories = args.next().and_then(|n| n.parse().ok()).expect("a number"),
            name => only = Some(name.to_owned()),
        }
    }
    std::panic::set_hook(Box::new(|_| ()));
    let (mut survivors, mut tried) = (0, 0);
    for rule in kill::rules() {
        let name = rule.name();
        let is_patient = rule.is_noticed_by(Check::RingPatient);
        if only.as_ref().is_some_and(|only| only != name) || (quick && is_patient) {
            continue;
        }
        tried += 1;
        match kill::kill(rule, histories) {
            Some(Killed { by, histories, what }) => println!("{name:<28} {by:<14} {histories:>6}   {what}"),
            None => {
                survivors += 1;
                println!("{name:<28} SURVIVES       {histories:>6}");
            }
        }
    }
    println!("{tried} rules, {survivors} survive");
    std::process::exit(i32::from(survivors > 0));
}

#[cfg(not(feature = "mutations"))]
fn main() {
    println!("build with --features mutations: without it no rule can be left out");
    std::process::exit(2);
}
