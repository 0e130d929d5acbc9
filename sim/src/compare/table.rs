//! Comparisons as tables.

use std::fmt::Write as _;

use super::{Comparison, Figures};

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In columns, for a terminal.
    Plain,
    /// For a README.
    Markdown,
}

const HEADS: [&str; 7] = [
    "",
    "over the limit",
    "of the oracle's",
    "denied falsely",
    "no answer",
    "wait p50 / p99",
    "bytes / answer",
];

/// The table of one scenario.
pub fn table(comparison: &Comparison, form: Form) -> String {
    let rows: Vec<_> = comparison.rows.iter().map(|(name, figures)| row(name, figures)).collect();
    written(comparison.scenario, &rows, form)
}

/// One table of all comparisons. Figures over the limit and for waiting show the worst; the other figures
/// show the mean.
pub fn overall(comparisons: &[Comparison], form: Form) -> String {
    let Some(first) = comparisons.first() else { return String::new() };
    let rows = first.rows.iter().enumerate().map(|(place, (name, _))| {
        let all: Vec<Figures> = comparisons.iter().map(|comparison| comparison.rows[place].1).collect();
        let worst = |of: fn(&Figures) -> f64| all.iter().map(of).fold(0.0, f64::max);
        let mean = |of: fn(&Figures) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        let figures = Figures {
            over_percent: worst(|figures| figures.over_percent),
            over_units: all.iter().map(|figures| figures.over_units).max().unwrap_or(0),
            used_percent: mean(|figures| figures.used_percent),
            false_denials_percent: mean(|figures| figures.false_denials_percent),
            silent_percent: mean(|figures| figures.silent_percent),
            wait_ms: (worst(|figures| figures.wait_ms.0), worst(|figures| figures.wait_ms.1)),
            bytes: mean(|figures| figures.bytes),
        };
        row(name, &figures)
    });
    let title = format!("{} scenarios: the worst over and wait, the mean of the rest", comparisons.len());
    written(&title, &rows.collect::<Vec<_>>(), form)
}

fn row(name: &str, figures: &Figures) -> [String; 7] {
    let over = if figures.over_units == 0 {
        "never".to_owned()
    } else {
        format!("+{:.0} % ({})", figures.over_percent, figures.over_units)
    };
    let (half, most) = figures.wait_ms;
    [
        name.to_owned(),
        over,
        format!("{:.1} %", figures.used_percent),
        format!("{:.1} %", figures.false_denials_percent),
        format!("{:.1} %", figures.silent_percent),
        format!("{half:.0} / {most:.0} ms"),
        format!("{:.0}", figures.bytes),
    ]
}

fn written(title: &str, rows: &[[String; 7]], form: Form) -> String {
    let heads = HEADS.map(str::to_owned);
    let width =
        |column: usize| rows.iter().chain([&heads]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match form {
        Form::Plain => writeln!(text, "{title}"),
        Form::Markdown => writeln!(text, "**{title}**\n"),
    };
    let mut line = |cells: &[String; 7]| {
        let aligned = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let cells: Vec<_> = aligned.collect();
        let _ = match form {
            Form::Plain => writeln!(text, "  {}", cells.join("  ").trim_end()),
            Form::Markdown => writeln!(text, "| {} |", cells.join(" | ")),
        };
    };
    line(&heads);
    if form == Form::Markdown {
        let rule = |(column, width): (usize, usize)| {
            if column == 0 { "-".repeat(width) } else { format!("{}:", "-".repeat(width - 1)) }
        };
        let rules: Vec<_> = widths.into_iter().enumerate().map(rule).collect();
        line(&std::array::from_fn(|column| rules[column].clone()));
    }
    rows.iter().for_each(line);
    text
}
