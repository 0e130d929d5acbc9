//! The study as text of 80 columns: what each class is admitted, as bars and over time, and the findings.

use super::{
    BIN_MS, BINS, NAMES, Part, Run, Studies, Study,
    findings::Finding,
    load::{BURST_MS, PERIOD_MS, is_burst},
};

/// Columns of the page.
const COLUMNS: usize = 80;
/// Columns of a bar.
const BAR: u64 = 12;
/// Columns of the labels left of bars and charts.
const LABEL: usize = 15;
/// Columns between two charts.
const GAP: &str = "  ";
/// Blocks of 1 to 8 steps.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn page(studies: &Studies) -> String {
    let parameters = &studies.parameters;
    let mut page = format!(
        "Classes of consumers under a token bucket of {}/s with a burst of {}: a real\n\
         node is asked in simulated time. All classes together ask for {} units a\n\
         second, at every time: a third each; or one asks for {} % of it, for {} s of {}.\n\
         The bars: what is admitted of what each class asks for in those seconds.\n",
        parameters.rate(),
        parameters.burst(),
        parameters.asked(),
        parameters.peak(),
        BURST_MS / 1_000,
        PERIOD_MS / 1_000
    );
    for study in studies.methods() {
        page.push('\n');
        page.push_str(&block(study));
    }
    page.push_str(
        "What one expects of the methods of R. Seleznev (2025), and what was counted.\n\
         The paper's own numbers are not compared. Three numbers: gold, silver, free.\n",
    );
    page.extend(studies.findings.iter().map(finding));
    page
}

/// An expectation, whether it is confirmed, and the figures.
fn finding(finding: &Finding) -> String {
    let Finding { method, claim, is_seen, figures } = finding;
    let seen = if *is_seen { "seen    " } else { "NOT SEEN" };
    let mut text = format!("\n {seen} {method}:");
    let mut used = text.chars().count() - 1;
    let figures = figures.split(' ').enumerate().map(|(place, word)| (place == 0, word));
    for (is_new_line, word) in claim.split(' ').map(|word| (false, word)).chain(figures) {
        if is_new_line || used + 1 + word.chars().count() > COLUMNS {
            text.push_str("\n         ");
            used = 9;
        }
        text.push(' ');
        text.push_str(word);
        used += 1 + word.chars().count();
    }
    text.push('\n');
    text
}

fn block(study: &Study) -> String {
    let mut block = format!("{}\n\n", study.way.title);
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

/// What is admitted over time, a chart for each bursting class. A full block is all that a class ever asks
/// for.
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

#[cfg(test)]
mod tests {
    use super::{super::parameters::tests::parameters, *};

    #[test]
    fn a_page_fits_a_terminal_and_shows_every_method_and_load() {
        let page = super::super::page(&parameters(&[])).expect("sound limits");
        for line in page.lines() {
            assert!(line.chars().count() <= 80, "{line}");
            assert_eq!(line, line.trim_end());
        }
        for words in [
            "shared: one bucket",
            "separate: a bucket",
            "both (not in the paper)",
            "free bursts",
            "all even",
            " seen     shared: The higher its class",
            " NOT SEEN separate: Whatever its class",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
    }

    #[test]
    fn bars_and_charts_have_lengths_in_proportion() {
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
