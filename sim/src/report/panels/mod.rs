//! The plots of a page. All plots have the same axis of time, and all shade the cuts.

mod admitted;
mod answers;
mod faults;
mod shares;

use std::{fmt::Write as _, time::Duration};

use super::{
    faults::{Kind, Moment, Trouble},
    plot::{LEFT, RIGHT, Scale, WIDTH, escaped},
};
use crate::{schedule::Place, series::Series};

/// The height of a region's lane.
const LANE: f64 = 62.0;
/// The gap between two lanes.
const GAP: f64 = 20.0;

/// What all plots of a page share.
#[derive(Debug)]
pub(super) struct Page<'a> {
    pub(super) series: &'a Series,
    pub(super) regions: usize,
    /// The word for a place: `region` or `node`.
    pub(super) noun: &'static str,
    pub(super) troubles: Vec<Trouble>,
    pub(super) moments: Vec<Moment>,
}

impl Page<'_> {
    fn time(&self) -> Scale {
        Scale::of_time(self.series.ended.as_secs_f64())
    }

    /// Shades the cuts behind a plot. In a region's lane, shades the time when that region was down.
    fn shades(&self, lane_of: Option<Place>, top: f64, bottom: f64) -> String {
        let time = self.time();
        let x_of = |at: Duration| time.at(at.as_secs_f64());
        let mut svg = String::new();
        for (class, times) in [("gone", self.gone(lane_of)), ("shade", self.cut(lane_of))] {
            for (from, until, what) in times {
                let (x0, x1) = (x_of(from), x_of(until));
                let (width, height, what) = (x1 - x0, bottom - top, escaped(&what));
                let _ = write!(
                    svg,
                    r#"<rect class="{class}" x="{x0:.1}" y="{top}" width="{width:.1}" height="{height}"><title>{what}</title></rect>"#
                );
                for x in [x0, x1].into_iter().filter(|_| class == "shade") {
                    let _ = write!(
                        svg,
                        r#"<line class="edge" x1="{x:.1}" x2="{x:.1}" y1="{top}" y2="{bottom}"/>"#
                    );
                }
            }
        }
        svg
    }

    /// When something was cut, for one region or for any, with a description; overlapping times are merged.
    fn cut(&self, of: Option<Place>) -> Vec<(Duration, Duration, String)> {
        let mut times: Vec<(Duration, Duration, String)> = Vec::new();
        for trouble in &self.troubles {
            let (Kind::Cut(pairs) | Kind::OneWay(pairs) | Kind::Held(pairs)) = &trouble.kind else {
                continue;
            };
            if of.is_some_and(|at| !pairs.iter().any(|(a, b)| *a == at || *b == at)) {
                continue;
            }
            match times.last_mut() {
                Some((_, until, what)) if *until >= trouble.from => {
                    *until = trouble.until.max(*until);
                    *what = format!("{what}; {}", trouble.what);
                }
                _ => times.push((trouble.from, trouble.until, trouble.what.clone())),
            }
        }
        times
    }

    fn gone(&self, of: Option<Place>) -> Vec<(Duration, Duration, String)> {
        let is_it = |trouble: &&Trouble| matches!(trouble.kind, Kind::Down(at) if of == Some(at));
        let times = self.troubles.iter().filter(is_it);
        times.map(|trouble| (trouble.from, trouble.until, trouble.what.clone())).collect()
    }

    fn axis(&self, y: f64) -> String {
        let time = self.time();
        let mut svg = format!(r#"<line class="base" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>"#);
        for tick in time.ticks(8) {
            let x = time.at(tick);
            let _ = write!(
                svg,
                r#"<line class="base" x1="{x:.1}" x2="{x:.1}" y1="{y}" y2="{}"/><text class="soft" x="{x:.1}" y="{}" text-anchor="middle">{tick} s</text>"#,
                y + 5.0,
                y + 20.0
            );
        }
        svg
    }
}

/// The top and the bottom of a region's lane.
fn lane(place: Place) -> (f64, f64) {
    let top = GAP / 2.0 + 4.0 + place as f64 * (LANE + GAP);
    (top, top + LANE)
}

/// A region's name beside its lane, and the lane's floor.
fn lane_of(name: &str, bottom: f64) -> String {
    format!(
        r#"<line class="base" x1="{LEFT}" x2="{RIGHT}" y1="{bottom}" y2="{bottom}"/><text class="name {name}" x="{}" y="{}" text-anchor="end" style="font-size:15px">{name}</text>"#,
        LEFT - 10.0,
        bottom - 2.0
    )
}

fn framed(height: f64, what: &str, svg: &str) -> String {
    format!(
        "<figure><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{}\">{svg}</svg></figure>\n",
        escaped(what)
    )
}
