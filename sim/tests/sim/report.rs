//! A watched run is the same as an unwatched one, and anybody can read its page anywhere.

use std::{sync::LazyLock, time::Duration};

use acequia_sim::{
    compare::gossip_in,
    report::{Shown, main_cell, page},
    run::{Record, run},
    scenarios::{Scenario, named},
    schedule::Fault,
    series::{Series, run_watched},
    trace::Trace,
};

/// A watched run and its page.
struct WatchedRun {
    scenario: Scenario,
    seed: u64,
    record: Record,
    series: Series,
    page: String,
}

static SPLIT: LazyLock<WatchedRun> = LazyLock::new(|| watch("split-brain", 7));
static STORM: LazyLock<WatchedRun> = LazyLock::new(|| watch("storm", 2));

fn watch(name: &str, seed: u64) -> WatchedRun {
    let scenario = named(name).expect("a scenario");
    let watched = run_watched(scenario.plan_of(seed), seed, &Trace::default());
    let (record, series) = watched.expect("a world");
    let rival = gossip_in(&record, &series, seed);
    let again = format!("run {name} --seed {seed}");
    let shown = Shown {
        scenario: &scenario,
        seed,
        again: &again,
        record: &record,
        series: &series,
        rival: rival.as_ref(),
    };
    let page = page(shown).expect("a limit that can be shown");
    WatchedRun { scenario, seed, record, series, page }
}

#[test]
fn watching_a_run_does_not_change_it() {
    for WatchedRun { scenario, seed, record, .. } in [&*SPLIT, &*STORM] {
        let plain = run(scenario, *seed, &Trace::default()).expect("a world");
        assert_eq!(record.hash, plain.hash, "{} --seed {seed}", scenario.name);
        assert_eq!(record.notes, plain.notes);
    }
}

#[test]
fn the_series_of_a_split_add_up_and_no_loan_crosses_the_cut() {
    let WatchedRun { record, series, .. } = &*SPLIT;
    let cell = main_cell(series).expect("a cell");
    let admitted: Vec<_> = (0..3).map(|place| series.admitted(cell, place)).collect();
    for (sample, allowed) in cell.allowed.iter().enumerate() {
        let sum: u64 = admitted.iter().map(|units| units[sample]).sum();
        assert!(sum <= *allowed, "{sum} of {allowed} at {:?}", series.at(sample));
    }
    for (place, (name, counts)) in record.regions.iter().enumerate() {
        let answered = series.answered(place, Duration::from_secs(1));
        assert_eq!(answered.iter().map(|counts| counts.allowed).sum::<u64>(), counts.allowed, "{name}");
        assert!(cell.shares[place].iter().flatten().count() > 300, "{name}");
    }
    let faults = record.plan.schedule.faults();
    let (from, until) = (faults[0].0, faults[faults.len() - 1].0);
    let alone = (0..3).find(|place| {
        let cut = |fault: &Fault| matches!(fault, Fault::Cut(a, b) if a == place || b == place);
        faults.iter().filter(|(_, fault)| cut(fault)).count() == 2
    });
    let given: Vec<_> = cell.loans.iter().filter(|loan| !loan.is_return).collect();
    let crossing = given.iter().filter(|loan| {
        // A loan that was on its way when the cut came is seen at the next sample.
        let is_in_cut = loan.at > from + Duration::from_millis(200) && loan.at < until;
        is_in_cut && (Some(loan.lender) == alone || Some(loan.borrower) == alone)
    });
    assert!(given.len() > 3, "{:?}", cell.loans);
    assert_eq!(crossing.count(), 0, "{:?}", cell.loans);
}

#[test]
fn a_page_is_well_formed_needs_nothing_else_and_has_the_run_s_numbers() {
    for WatchedRun { scenario: Scenario { name, .. }, seed, record, page, .. } in [&*SPLIT, &*STORM] {
        well_formed(page);
        for outside in ["http:", "https:", "//", "@import", "url(", "src=", "href="] {
            assert!(!page.contains(outside), "{name}: {outside}");
        }
        assert!(page.contains(&format!("run {name} --seed {seed} --report")), "{name}");
        assert!(page.contains(&format!("{:016x}", record.hash)), "{name}");
        for (region, counts) in &record.regions {
            let row = format!("<td>{region}</td>");
            let row = page.lines().find(|line| line.contains(&row)).expect("a row for each region");
            let row = row.replace('\u{202F}', "");
            for number in [counts.allowed, counts.denied, counts.silent] {
                assert!(row.contains(&format!(">{number}<")), "{name}: {row}");
            }
        }
        assert!(!page.contains("NaN") && !page.contains("inf\""), "{name}: places are numbers");
    }
}

#[test]
fn a_split_is_described_in_words() {
    let page = &SPLIT.page;
    assert!(page.contains("eu | us, ap cut") && page.contains("split brain"));
    assert!(page.contains("gossip: "));
}

#[test]
fn every_label_of_a_plot_is_whole() {
    for page in [&SPLIT.page, &STORM.page] {
        let plots: Vec<&str> = page.split("<svg ").skip(1).collect();
        assert!(plots.len() >= 4, "{} plots", plots.len());
        let mut labels = 0;
        for plot in plots {
            let plot = plot.split("</svg>").next().expect("its end");
            let size = attribute(plot, "viewBox").expect("a size");
            let width: f64 = size.split(' ').nth(2).expect("a width").parse().expect("a number");
            for label in plot.split("<text ").skip(1) {
                let (from, until) = ends(label);
                assert!(from >= 0.0 && until <= width, "{from:.0} to {until:.0} of {width}: {label:.200}");
                labels += 1;
            }
        }
        assert!(labels > 40, "{labels} labels");
    }
}

/// Where the letters of a label begin and end, in a wide font.
fn ends(label: &str) -> (f64, f64) {
    let (_, after) = label.split_once('>').expect("the end of a tag");
    let text = after.split("</text>").next().expect("its end");
    let words: String = text.split('<').map(|part| part.rsplit('>').next().unwrap_or("")).collect();
    let letters = words.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">").chars().count();
    let is_bold = attribute(label, "class").is_some_and(|class| class == "strong" || class == "cut");
    let width = letters as f64 * if is_bold { 8.1 } else { 7.4 };
    let x: f64 = attribute(label, "x").expect("a place").parse().expect("a number");
    match attribute(label, "text-anchor") {
        Some("end") => (x - width, x),
        Some("middle") => (x - width / 2.0, x + width / 2.0),
        _ => (x, x + width),
    }
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let tag = tag.split('>').next()?;
    let (_, after) = tag.split_once(&format!("{name}=\""))?;
    after.split('"').next()
}

/// Checks that tags are closed in order, attributes are quoted, and every `&` begins an entity.
fn well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let body = page.strip_prefix("<!doctype html>").expect("a document type");
    let mut rest = body;
    while let Some(at) = rest.find('<') {
        let (text, tag) = rest.split_at(at);
        for entity in text.split('&').skip(1) {
            assert!(
                ["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)),
                "&{entity}"
            );
        }
        let end = tag.find('>').expect("an end of a tag");
        let inside = &tag[1..end];
        rest = &tag[end + 1..];
        assert_eq!(inside.matches('"').count() % 2, 0, "<{inside}>");
        if let Some(name) = inside.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
        } else if !inside.ends_with('/') {
            open.push(inside.split_whitespace().next().expect("a name"));
        }
    }
    assert_eq!(open, [""; 0]);
}
