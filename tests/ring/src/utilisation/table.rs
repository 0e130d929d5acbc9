//! The table of results, and whether each bar was met.

use super::world::Sent;

/// The bar of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// No bar: the figure is only printed.
    None,
}

/// The cost of a scenario, and whether it admitted too much.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// The traffic.
    pub sent: Sent,
    /// The time in seconds.
    pub seconds: f64,
    /// How often the hot spot moved.
    pub shifts: u64,
    /// The most loans that one cell of a region had at once.
    pub loans_max: u64,
    /// The largest excess of admitted units over the limit.
    pub over: u64,
}

/// A measured value.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    what: &'static str,
    value: f64,
    unit: &'static str,
}

impl Figure {
    /// What was measured, the value, and its unit.
    pub const fn new(what: &'static str, value: f64, unit: &'static str) -> Self {
        Self { what, value, unit }
    }
}

/// A line of the table.
#[derive(Clone, Debug)]
struct Line {
    scenario: String,
    what: &'static str,
    figure: f64,
    unit: &'static str,
    bar: Bar,
    cost: Option<Cost>,
}

/// All lines of the table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    lines: Vec<Line>,
}

impl Table {
    /// Adds a figure.
    pub fn add(&mut self, scenario: impl Into<String>, figure: Figure, bar: Bar, cost: Option<Cost>) {
        let Figure { what, value, unit } = figure;
        self.lines.push(Line { scenario: scenario.into(), what, figure: value, unit, bar, cost });
        if let Some(line) = self.lines.last() {
            println!("{}", line.text());
        }
    }

    /// The head of the table, printed before its first line.
    pub fn head() {
        println!(
            "{:<46} {:<22} {:>10} {:<5} {:>9} {:<5} {:>7} {:>8} {:>8} {:>6} {:>5}",
            "scenario", "figure", "", "", "bar", "", "msg/s", "kB/s", "loans/sh", "max", "over"
        );
    }

    /// The figures that missed their bars.
    pub fn missed(&self) -> Vec<String> {
        self.lines.iter().filter(|line| !line.is_met()).map(Line::text).collect()
    }
}

impl Line {
    fn is_met(&self) -> bool {
        let met = match self.bar {
            Bar::AtLeast(bar) => self.figure >= bar,
            Bar::AtMost(bar) => self.figure <= bar,
            Bar::None => true,
        };
        met && self.cost.is_none_or(|cost| cost.over == 0)
    }

    fn text(&self) -> String {
        let bar = match self.bar {
            Bar::AtLeast(bar) => format!(">= {bar}"),
            Bar::AtMost(bar) => format!("<= {bar:.3}"),
            Bar::None => String::new(),
        };
        let mut text = format!(
            "{:<46} {:<22} {:>10.3} {:<5} {:>9} {:<5}",
            self.scenario,
            self.what,
            self.figure,
            self.unit,
            bar,
            if self.is_met() { "" } else { "MISS" }
        );
        if let Some(Cost { sent, seconds, shifts, loans_max, over }) = self.cost {
            let per_shift = if shifts == 0 {
                String::from("-")
            } else {
                format!("{:.1}", sent.lent as f64 / shifts as f64)
            };
            text += &format!(
                " {:>7.1} {:>8.2} {per_shift:>8} {loans_max:>6} {over:>5}",
                sent.frames as f64 / seconds,
                sent.bytes as f64 / seconds / 1_000.0,
            );
        }
        text
    }
}
