//! The study as text of 80 columns: what each class is admitted, as bars and over time, and what one sees.

use super::{
    BIN_MS, BINS, BURST, FREE, GOLD, NAMES, Part, RATE, Run, SILVER, Study,
    load::{BURST_MS, PERIOD_MS, is_burst},
};

/// Columns of a bar.
const BAR: u64 = 12;
/// Columns of what stands to the left of bars and charts.
const LABEL: usize = 15;
/// Columns between two charts.
const GAP: &str = "  ";
/// Blocks of 1 to 8 steps.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn page(shared: &Study, separate: &Study, hybrid: &Study) -> String {
    let mut page = format!(
        "Classes of consumers under a token bucket of {RATE}/s with a burst of {BURST}: a real\n\
         node is asked in simulated time. All ask evenly; or one of them is silent, and\n\
         then asks within {} s for all that it had in {} s. The bars: what is admitted of\n\
         what each class asks for while a burst lasts.\n",
        BURST_MS / 1_000,
        PERIOD_MS / 1_000
    );
    let all = [
        (shared, seen_in_shared(shared)),
        (separate, seen_in_separate(separate)),
        (hybrid, seen_in_hybrid(hybrid, shared)),
    ];
    for (study, seen) in all {
        page.push('\n');
        page.push_str(&block(study));
        page.push_str(&seen);
    }
    page
}

fn block(study: &Study) -> String {
    let [gold, silver, free] = study.way.asks;
    let mut block = format!("{}\n", study.way.title);
    block.push_str(&format!(" units asked for a second: gold {gold}, silver {silver}, free {free}\n\n"));
    block.push_str(&" ".repeat(LABEL));
    block.push_str(&NAMES.map(|name| format!("{name:<19}")).concat());
    block.push('\n');
    block.push_str(&bars("all even", &study.even));
    for (name, run) in NAMES.iter().zip(&study.bursts) {
        block.push_str(&bars(&format!("{name} bursts"), run));
    }
    block.push('\n');
    block.push_str(&charts(&study.bursts));
    block.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A row of the table: what each class is admitted.
fn bars(label: &str, run: &Run) -> String {
    let cell = |part: Part| {
        let filled = part.of(BAR) as usize;
        let rest = BAR as usize - filled;
        format!("{}{} {:>3}%  ", "█".repeat(filled), "░".repeat(rest), part.of(100))
    };
    let cells: String = run.in_bursts.map(cell).concat();
    format!(" {label:<14}{cells}\n")
}

/// What is admitted over time, a chart for each class that bursts: a full block is all that a class ever asks for there.
fn charts(bursts: &[Run; 3]) -> String {
    let mut text = " ".repeat(LABEL);
    for name in NAMES {
        let title = format!("{name} bursts");
        text.push_str(&format!("{title:<BINS$}{GAP}"));
    }
    text.push('\n');
    for (class, name) in NAMES.iter().enumerate() {
        text.push_str(&format!(" {name:<14}"));
        for run in bursts {
            text.extend(chart(&run.chart[class]));
            text.push_str(GAP);
        }
        text.push('\n');
    }
    let axis: String = (0..BINS as u64)
        .map(|bin| if is_burst(super::CHART_MS + bin * BIN_MS) { '▀' } else { '─' })
        .collect();
    text.push_str(&format!(" {:<14}", format!("{} s", PERIOD_MS / 1_000)));
    text.push_str(&format!("{axis}{GAP}").repeat(bursts.len()));
    text.push_str("\n               ▀ the burst   · asks and gets nothing\n\n");
    text
}

fn chart(bins: &[Part; BINS]) -> impl Iterator<Item = char> {
    let most = bins.iter().map(|part| part.asked).max().unwrap_or(0);
    let column = move |part: Part| {
        let steps = (part.admitted * 8).div_ceil(most.max(1)) as usize;
        match (part.asked, steps) {
            (0, _) => ' ',
            (_, 0) => '·',
            (_, steps) => BLOCKS[steps.min(8) - 1],
        }
    };
    bins.iter().copied().map(column)
}

/// In percent, while the burst of a class lasts, or without one.
fn admitted(study: &Study, bursting: Option<usize>, class: usize) -> u64 {
    let run = bursting.map_or(&study.even, |bursting| &study.bursts[bursting]);
    run.in_bursts[class].of(100)
}

fn own_bursts(study: &Study) -> [u64; 3] {
    std::array::from_fn(|class| admitted(study, Some(class), class))
}

fn seen_in_shared(study: &Study) -> String {
    let [gold, silver, free] = own_bursts(study);
    let even = admitted(study, None, FREE);
    let in_all = study.bursts[GOLD].in_all[FREE].of(100);
    format!(
        "The lowest class starves first: free has {even} % of an even load, and {} % while\n\
         gold bursts. A burst helps less the lower its class: {gold}, {silver} and {free} % of it\n\
         pass; those above do not feel it. What gold leaves when it is silent the others\n\
         have: over the whole run with gold's bursts, free has {in_all} %.\n",
        admitted(study, Some(GOLD), FREE)
    )
}

fn seen_in_separate(study: &Study) -> String {
    let [gold, silver, free] = own_bursts(study);
    format!(
        "Nobody feels what others do: silver has {} %, and {} % while gold bursts.\n\
         A burst helps each class alike: {gold}, {silver} and {free} % of it pass. What a silent\n\
         class leaves nobody has.\n",
        admitted(study, None, SILVER),
        admitted(study, Some(GOLD), SILVER)
    )
}

fn seen_in_hybrid(study: &Study, shared: &Study) -> String {
    format!(
        "Free always has its own: {} % while gold bursts (shared: {} %). Beside that,\n\
         classes come first in their order, and have what others leave.\n",
        admitted(study, Some(GOLD), FREE),
        admitted(shared, Some(GOLD), FREE)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_fits_a_terminal_and_shows_every_way_and_load() {
        let page = super::super::page().expect("sound limits");
        for line in page.lines() {
            assert!(line.chars().count() <= 80, "{line}");
            assert_eq!(line, line.trim_end());
        }
        for words in ["shared: one bucket", "separate: a bucket", "both: a bucket", "free bursts", "all even"]
        {
            assert!(page.contains(words), "{words}: {page}");
        }
    }

    #[test]
    fn bars_and_charts_are_as_long_as_what_they_stand_for() {
        let part = |asked, admitted| Part { asked, admitted };
        let run = Run { in_bursts: [part(8, 8), part(8, 4), part(8, 0)], ..Run::default() };
        assert_eq!(
            bars("all even", &run),
            " all even      ████████████ 100%  ██████░░░░░░  50%  ░░░░░░░░░░░░   0%  \n"
        );
        let mut bins = [Part::default(); BINS];
        bins[..5].copy_from_slice(&[part(80, 80), part(80, 1), part(80, 0), part(40, 40), part(0, 0)]);
        assert!(chart(&bins).collect::<String>().starts_with("█▁·▄ "));
    }
}
