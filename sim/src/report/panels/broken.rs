//! What was broken.

use std::fmt::Write as _;

use super::{
    super::{
        faults::Kind,
        plot::{WIDTH, escaped, width_of},
    },
    Page, framed,
};

/// A row of what was broken.
const ROW: f64 = 21.0;

impl Page<'_> {
    /// What was broken and when: a bar for each with its words beside it, in as few rows as that takes.
    pub(in crate::report) fn broken(&self) -> String {
        let time = self.time();
        let (mut svg, mut rows): (String, Vec<f64>) = Default::default();
        let bars = self.troubles.iter().map(|trouble| {
            let (x0, x1) = (time.at(trouble.from.as_secs_f64()), time.at(trouble.until.as_secs_f64()));
            let class = match trouble.kind {
                Kind::Cut(_) | Kind::OneWay(_) | Kind::Held(_) => "bar",
                Kind::Down(_) => "bar down",
                Kind::Other => "bar other",
            };
            (x0, x1.max(x0 + 2.0), class, trouble.what.as_str())
        });
        let moments = self.moments.iter().map(|moment| {
            let x = time.at(moment.at.as_secs_f64());
            (x, x, "moment", moment.what.as_str())
        });
        let mut all: Vec<_> = bars.chain(moments).collect();
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        for (x0, x1, class, what) in all {
            let is_left = x1 + 8.0 + width_of(what) > WIDTH;
            let (from, until) = if is_left {
                (x0 - 12.0 - width_of(what), x1 + 6.0)
            } else {
                (x0, x1 + 16.0 + width_of(what))
            };
            let row = rows.iter().position(|taken| *taken <= from).unwrap_or_else(|| {
                rows.push(0.0);
                rows.len() - 1
            });
            rows[row] = until;
            let y = row as f64 * ROW + 12.0;
            if class == "moment" {
                let _ = write!(svg, r#"<path class="head" d="M{x0:.1} {:.1}l5 5l-5 5l-5 -5Z"/>"#, y - 5.0);
            } else {
                let (top, width) = (y - 5.0, x1 - x0);
                let _ = write!(
                    svg,
                    r#"<rect class="{class}" x="{x0:.1}" y="{top:.1}" width="{width:.1}" height="10" rx="2"/>"#
                );
            }
            let (x, anchor) = if is_left { (x0 - 8.0, "end") } else { (x1 + 8.0, "start") };
            let _ = write!(
                svg,
                r#"<text x="{x:.1}" y="{:.1}" text-anchor="{anchor}">{}</text>"#,
                y + 4.5,
                escaped(what)
            );
        }
        let height = rows.len() as f64 * ROW + 4.0;
        let shades = self.shades(None, (0.0, height));
        framed(height, "What was broken, and when", &(shades + &svg))
    }
}
