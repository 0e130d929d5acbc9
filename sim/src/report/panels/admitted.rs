//! The plot of admitted units.

use std::fmt::Write as _;

use super::{
    super::{
        Rival,
        plot::{LEFT, RIGHT, Scale, area, escaped, grouped, line, spread, thin, width_of},
    },
    Page, framed,
};
use crate::{NAMES, bound::Bound, series::CellSeries};

impl Page<'_> {
    /// Units admitted, stacked by region, below what the limit allows.
    pub(in crate::report) fn admitted(&self, cell: &CellSeries, rival: Option<&Rival>) -> String {
        let (top, bottom) = (26.0, 340.0);
        let time = self.time();
        let most = cell.allowed.last().copied().unwrap_or(0);
        let most_rival = rival.and_then(|rival| rival.admitted.last()).copied().unwrap_or(0);
        let units = Scale::new((0.0, most.max(most_rival) as f64 * 1.03), (bottom, top));
        let x = |sample: usize| time.at(self.series.at(sample).as_secs_f64());
        let mut svg = self.shades(None, (top, bottom));
        for (from, until, what) in self.cut(None) {
            let (x0, x1) = (time.at(from.as_secs_f64()), time.at(until.as_secs_f64()));
            // The label of a stretch that is too short for its words is in the plot of faults above.
            if width_of(&what) <= x1 - x0 {
                let (x, y, what) = ((x0 + x1) / 2.0, top - 7.0, escaped(&what));
                let _ =
                    write!(svg, r#"<text class="cut" x="{x:.1}" y="{y}" text-anchor="middle">{what}</text>"#);
            }
        }
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
        let mut below = vec![0; cell.allowed.len()];
        let (mut names, mut places) = (Vec::new(), Vec::new());
        for (place, name) in NAMES[..self.regions].iter().copied().enumerate() {
            let own = self.series.admitted(cell, place);
            let above: Vec<u64> = below.iter().zip(&own).map(|(below, own)| below + own).collect();
            let points = |counts: &[u64]| {
                let points = counts
                    .iter()
                    .enumerate()
                    .map(|(at, units_so_far)| (x(at), units.at(*units_so_far as f64)));
                thin(&points.collect::<Vec<_>>())
            };
            let (high, low) = (points(&above), points(&below));
            let total = own.last().copied().unwrap_or(0);
            let _ = write!(
                svg,
                r#"<path class="fill {name}" d="{}"><title>{name} admitted {total} units</title></path>"#,
                area(&high, &low)
            );
            let middle = (last(&above) + last(&below)) as f64 / 2.0;
            names.push((format!("{} units", grouped(total)), name, name));
            places.push(units.at(middle) + 4.5);
            below = above;
        }
        let allowed: Vec<_> = cell
            .allowed
            .iter()
            .enumerate()
            .map(|(at, units_so_far)| (x(at), units.at(*units_so_far as f64)))
            .collect();
        let _ = write!(svg, r#"<path class="limit" d="{}"/>"#, line(thin(&allowed)));
        // From the top down, as the areas are stacked.
        names.reverse();
        places.reverse();
        names.insert(0, (format!("limit: {}", grouped(most)), "", ""));
        places.insert(0, units.at(most as f64) - 2.0);
        if let Some(rival) = rival {
            let points: Vec<_> = rival
                .admitted
                .iter()
                .enumerate()
                .map(|(at, units_so_far)| (x(at), units.at(*units_so_far as f64)))
                .collect();
            let _ = write!(svg, r#"<path class="rival" d="{}"/>"#, line(thin(&points)));
            names.insert(0, (format!("{}: {}", rival.short, grouped(most_rival)), "over", ""));
            places.insert(0, units.at(most_rival as f64) + 4.0);
        }
        spread(&mut places, 16.0, (top, bottom));
        for ((words, class, name), y) in names.iter().zip(&places) {
            let x = RIGHT + 8.0;
            let _ = match (*class, *name) {
                ("over", _) => {
                    write!(svg, r#"<text style="fill:var(--over)" x="{x}" y="{y:.1}">{words}</text>"#)
                }
                (_, "") => write!(svg, r#"<text class="strong" x="{x}" y="{y:.1}">{words}</text>"#),
                _ => write!(
                    svg,
                    r#"<text class="{name}" x="{x}" y="{y:.1}"><tspan class="{name}" style="fill:var(--own);font-weight:650">{name}</tspan> {words}</text>"#
                ),
            };
        }
        let mut keys = vec![(
            "limit",
            match cell.bound {
                Bound::Bucket { rate, burst } => {
                    format!("the limit: {burst} units at once, and {rate} more each second")
                }
                Bound::Window { .. } => format!("the limit: {}", cell.bound),
            },
        )];
        keys.extend(rival.map(|rival| ("rival", rival.key.to_owned())));
        for (row, (class, words)) in keys.iter().enumerate() {
            // Sums that only grow leave this corner free.
            let (x, y) = (LEFT + 12.0, top + 14.0 + 20.0 * row as f64);
            let _ = write!(
                svg,
                r#"<path class="{class}" d="M{x} {:.1}h26"/><text class="halo" x="{}" y="{y}">{}</text>"#,
                y - 4.0,
                x + 34.0,
                escaped(words)
            );
        }
        svg += &self.axis(bottom);
        framed(bottom + 38.0, "Units admitted by each region, stacked, and the limit", &svg)
    }
}

fn last(counts: &[u64]) -> u64 {
    counts.last().copied().unwrap_or(0)
}
