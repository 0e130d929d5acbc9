//! The plot of admitted units.

use std::fmt::Write as _;

use super::{
    super::{
        Rival,
        plot::{LEFT, RIGHT, Scale, Span, area, escaped, grouped, line, spread, thin, width_of},
    },
    Page, framed,
};
use crate::{NAMES, bound::Bound, series::CellSeries};

/// The top and the bottom of the plot.
const TOP: f64 = 26.0;
const BOTTOM: f64 = 340.0;

/// A label at the right end of a line or an area.
struct Label {
    text: String,
    kind: LabelKind,
}

enum LabelKind {
    /// The label of a region's area, which begins with the region's name.
    Region(&'static str),
    Limit,
    Rival,
}

/// Labels from the top down, and their positions.
#[derive(Default)]
struct Labels {
    labels: Vec<Label>,
    positions: Vec<f64>,
}

impl Labels {
    fn put_on_top(&mut self, text: String, kind: LabelKind, y: f64) {
        self.labels.insert(0, Label { text, kind });
        self.positions.insert(0, y);
    }

    /// Draws the labels so that they do not overlap.
    fn draw(mut self) -> String {
        spread(&mut self.positions, 16.0, Span { first: TOP, last: BOTTOM });
        let mut svg = String::new();
        let x = RIGHT + 8.0;
        for (Label { text, kind }, y) in self.labels.iter().zip(&self.positions) {
            // Writing to a string cannot fail.
            let _ = match kind {
                LabelKind::Rival => {
                    write!(svg, r#"<text style="fill:var(--over)" x="{x}" y="{y:.1}">{text}</text>"#)
                }
                LabelKind::Limit => write!(svg, r#"<text class="strong" x="{x}" y="{y:.1}">{text}</text>"#),
                LabelKind::Region(name) => write!(
                    svg,
                    r#"<text class="{name}" x="{x}" y="{y:.1}"><tspan class="{name}" style="fill:var(--own);font-weight:650">{name}</tspan> {text}</text>"#
                ),
            };
        }
        svg
    }
}

impl Page<'_> {
    /// Units admitted, stacked by region, below what the limit allows.
    pub(in crate::report) fn admitted(&self, cell: &CellSeries, rival: Option<&Rival>) -> String {
        let most = last(&cell.allowed);
        let most_rival = rival.map_or(0, |rival| last(&rival.admitted));
        let units =
            Scale::new(Span::to(most.max(most_rival) as f64 * 1.03), Span { first: BOTTOM, last: TOP });
        let mut labels = Labels::default();
        let mut svg = self.shades(None, TOP, BOTTOM);
        svg += &self.cut_names();
        svg += &grid(&units);
        svg += &self.areas(cell, &units, &mut labels);
        let _ = write!(svg, r#"<path class="limit" d="{}"/>"#, line(self.points(&cell.allowed, &units)));
        let limit = format!("limit: {}", grouped(most));
        labels.put_on_top(limit, LabelKind::Limit, units.at(most as f64) - 2.0);
        if let Some(rival) = rival {
            let points = self.points(&rival.admitted, &units);
            let _ = write!(svg, r#"<path class="rival" d="{}"/>"#, line(points));
            let text = format!("{}: {}", rival.short, grouped(most_rival));
            labels.put_on_top(text, LabelKind::Rival, units.at(most_rival as f64) + 4.0);
        }
        svg += &labels.draw();
        svg += &legend(cell, rival);
        svg += &self.axis(BOTTOM);
        framed(BOTTOM + 38.0, "Units admitted by each region, stacked, and the limit", &svg)
    }

    /// The names of cuts above their stretches, where there is room.
    fn cut_names(&self) -> String {
        let time = self.time();
        let mut svg = String::new();
        for (from, until, what) in self.cut(None) {
            let (x0, x1) = (time.at(from.as_secs_f64()), time.at(until.as_secs_f64()));
            // The label of a stretch that is too short for its words is in the plot of faults above.
            if width_of(&what) <= x1 - x0 {
                let (x, y, what) = ((x0 + x1) / 2.0, TOP - 7.0, escaped(&what));
                let _ =
                    write!(svg, r#"<text class="cut" x="{x:.1}" y="{y}" text-anchor="middle">{what}</text>"#);
            }
        }
        svg
    }

    /// The area of each region, on top of the one before.
    fn areas(&self, cell: &CellSeries, units: &Scale, labels: &mut Labels) -> String {
        let mut svg = String::new();
        let mut below = vec![0; cell.allowed.len()];
        for (place, name) in NAMES[..self.regions].iter().copied().enumerate() {
            let own = self.series.admitted(cell, place);
            let above: Vec<u64> = below.iter().zip(&own).map(|(below, own)| below + own).collect();
            let (high, low) = (self.points(&above, units), self.points(&below, units));
            let total = last(&own);
            let _ = write!(
                svg,
                r#"<path class="fill {name}" d="{}"><title>{name} admitted {total} units</title></path>"#,
                area(&high, &low)
            );
            let middle = (last(&above) + last(&below)) as f64 / 2.0;
            let text = format!("{} units", grouped(total));
            labels.put_on_top(text, LabelKind::Region(name), units.at(middle) + 4.5);
            below = above;
        }
        svg
    }

    /// The points of a line through the counts of all samples.
    fn points(&self, counts: &[u64], units: &Scale) -> Vec<(f64, f64)> {
        let time = self.time();
        let x = |sample: usize| time.at(self.series.at(sample).as_secs_f64());
        let points = counts.iter().enumerate().map(|(sample, count)| (x(sample), units.at(*count as f64)));
        thin(&points.collect::<Vec<_>>())
    }
}

/// Lines at round numbers of units.
fn grid(units: &Scale) -> String {
    let mut svg = String::new();
    for tick in units.ticks(5) {
        let y = units.at(tick);
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1}" y2="{y:.1}"/><text class="soft" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 8.0,
            y + 4.0,
            grouped(tick as u64)
        );
    }
    svg
}

/// What the lines mean.
fn legend(cell: &CellSeries, rival: Option<&Rival>) -> String {
    let limit = match cell.bound {
        Bound::Bucket { rate, burst } => {
            format!("the limit: {burst} units at once, and {rate} more each second")
        }
        Bound::Window { .. } => format!("the limit: {}", cell.bound),
    };
    let mut keys = vec![("limit", limit)];
    keys.extend(rival.map(|rival| ("rival", rival.key.to_owned())));
    let mut svg = String::new();
    for (row, (class, words)) in keys.iter().enumerate() {
        // Sums that only grow leave this corner free.
        let (x, y) = (LEFT + 12.0, TOP + 14.0 + 20.0 * row as f64);
        let _ = write!(
            svg,
            r#"<path class="{class}" d="M{x} {:.1}h26"/><text class="halo" x="{}" y="{y}">{}</text>"#,
            y - 4.0,
            x + 34.0,
            escaped(words)
        );
    }
    svg
}

fn last(counts: &[u64]) -> u64 {
    counts.last().copied().unwrap_or(0)
}
