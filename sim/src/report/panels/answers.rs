//! The plot of answers.

use std::{fmt::Write as _, time::Duration};

use super::{
    super::plot::{RIGHT, Scale, Span, grouped},
    GAP, Page, framed, lane, lane_of,
};
use crate::{NAMES, run::Counts};

/// Answers are counted in stretches of this length.
const STRETCH: Duration = Duration::from_secs(1);

impl Page<'_> {
    /// What callers of each region were told, second by second.
    pub(in crate::report) fn answers(&self) -> String {
        let time = self.time();
        let answered: Vec<_> = (0..self.regions).map(|place| self.series.answered(place, STRETCH)).collect();
        let all = |counts: &Counts| counts.allowed + counts.denied + counts.silent;
        let most = answered.iter().flatten().map(all).max().unwrap_or(0);
        let mut svg = String::new();
        for (place, counts) in answered.iter().enumerate() {
            let (top, bottom) = lane(place);
            let height = Scale::new(Span::to(most as f64), Span { first: bottom, last: top });
            svg += &self.shades(Some(place), top - GAP / 2.0, bottom + GAP / 2.0);
            let name = NAMES[place];
            svg += &lane_of(name, bottom);
            let mut total = Counts::default();
            for (second, counts) in counts.iter().enumerate() {
                let begin = STRETCH * second as u32;
                let end = (begin + STRETCH).min(self.series.ended);
                let (x, width) = {
                    let (from, until) = (time.at(begin.as_secs_f64()), time.at(end.as_secs_f64()));
                    (from + 0.7, (until - from - 1.4).max(0.3))
                };
                let _ = write!(
                    svg,
                    "<g><title>{second} s, {name}: {} allowed, {} denied, {} not answered</title>",
                    counts.allowed, counts.denied, counts.silent
                );
                let mut below = 0;
                for (class, count) in [
                    (format!("fill {name}"), counts.allowed),
                    ("denied".into(), counts.denied),
                    ("silent".into(), counts.silent),
                ] {
                    if count > 0 {
                        let (y, foot) = (height.at((below + count) as f64), height.at(below as f64));
                        let tall = foot - y;
                        let _ = write!(
                            svg,
                            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{tall:.1}"/>"#
                        );
                        below += count;
                    }
                }
                svg.push_str("</g>");
                total.allowed += counts.allowed;
                total.denied += counts.denied;
                total.silent += counts.silent;
            }
            let rows = [
                (total.silent, "not answered", "silent".to_owned()),
                (total.denied, "denied", "denied".to_owned()),
                (total.allowed, "allowed", format!("fill {name}")),
            ];
            for (row, (count, words, class)) in rows.iter().enumerate() {
                let y = bottom - 2.0 - 18.0 * (2 - row) as f64;
                let _ = write!(
                    svg,
                    r#"<rect class="{class}" x="{}" y="{:.1}" width="9" height="9"/><text x="{}" y="{y:.1}">{} {words}</text>"#,
                    RIGHT + 8.0,
                    y - 9.0,
                    RIGHT + 21.0,
                    grouped(*count)
                );
            }
        }
        let bottom = lane(self.regions - 1).1;
        svg += &self.axis(bottom + 4.0);
        framed(bottom + 42.0, "Answers in each region, second by second", &svg)
    }
}
