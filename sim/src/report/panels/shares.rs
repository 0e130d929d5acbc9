//! The plot of each region's usable share, and of loans.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use super::{
    super::plot::{LEFT, RIGHT, Scale, Span, area, line, milli, spread, width_of},
    GAP, Page, framed, lane, lane_of,
};
use crate::{
    NAMES,
    bound::Bound,
    schedule::Place,
    series::{CellSeries, EVERY, Share},
};

/// At most about this many arrows show loans; loans that are near each other in time are merged.
const ARROWS: u32 = 26;
/// Loans of less than 1/`ARROW_PART` of the whole are not shown.
const ARROW_PART: u64 = 15;

impl Page<'_> {
    /// Each region's usable share over time, in a lane each, and the loans between regions.
    pub(in crate::report) fn shares(&self, cell: &CellSeries) -> String {
        let time = self.time();
        let all = cell.shares.iter().flatten().flatten();
        let most = all.map(|share| share.effective_milli.max(share.own_milli)).max().unwrap_or(0);
        let unit = if let Bound::Bucket { .. } = cell.bound { "/s" } else { "" };
        let mut svg = String::new();
        let mut tops: Vec<Scale> = Vec::new();
        for (place, name) in NAMES[..self.regions].iter().enumerate() {
            let (top, bottom) = lane(place);
            let height = Scale::new(Span::to(most as f64), Span { first: bottom, last: top });
            tops.push(height);
            svg += &self.shades(Some(place), top - GAP / 2.0, bottom + GAP / 2.0);
            svg += &lane_of(name, bottom);
            let samples = cell.shares[place].iter().enumerate();
            let point =
                |at: usize, milli: u64| (time.at(self.series.at(at).as_secs_f64()), height.at(milli as f64));
            // There is no line while the region was down.
            let mut stretches: Vec<Vec<(usize, Share)>> = vec![Vec::new()];
            for (at, share) in samples {
                match (share, stretches.last_mut()) {
                    (Some(share), Some(open)) => open.push((at, *share)),
                    _ => stretches.push(Vec::new()),
                }
            }
            for stretch in stretches.iter().filter(|stretch| !stretch.is_empty()) {
                let effective = steps(stretch.iter().map(|(at, share)| point(*at, share.effective_milli)));
                let own = steps(stretch.iter().map(|(at, share)| point(*at, share.own_milli)));
                let base: Vec<_> = effective.iter().map(|(x, _)| (*x, bottom)).collect();
                let _ = write!(
                    svg,
                    r#"<path class="wash {name}" d="{}"/><path class="own" d="{}"/><path class="stroke {name}" d="{}"/>"#,
                    area(&effective, &base),
                    line(own),
                    line(effective),
                );
            }
            let at_last = cell.shares[place].iter().rev().flatten().next().copied().unwrap_or_default();
            let mut places =
                [height.at(at_last.effective_milli as f64) + 4.0, height.at(at_last.own_milli as f64) + 4.0];
            let mut words = [
                (format!("may use {}{unit}", milli(at_last.effective_milli)), "strong"),
                (format!("owns {}{unit}", milli(at_last.own_milli)), "soft"),
            ];
            if places[0] > places[1] {
                places.reverse();
                words.reverse();
            }
            spread(&mut places, 15.0, Span { first: top, last: bottom + 4.0 });
            for ((words, class), y) in words.iter().zip(places) {
                let x = RIGHT + 8.0;
                let _ = write!(svg, r#"<text class="{class}" x="{x}" y="{y:.1}">{words}</text>"#);
            }
        }
        svg += &self.loans(cell, &tops, unit);
        let bottom = lane(self.regions - 1).1;
        svg += &self.axis(bottom + 4.0);
        framed(bottom + 42.0, "What each region might use, and loans between regions", &svg)
    }

    /// Whether there are loans to be shown.
    pub(in crate::report) fn has_arrows(&self, cell: &CellSeries) -> bool {
        !arrows(cell, self.series.ended).is_empty()
    }

    fn loans(&self, cell: &CellSeries, tops: &[Scale], unit: &str) -> String {
        let time = self.time();
        let mut svg = String::new();
        // Arrows of the same instant stand beside each other.
        let mut after = LEFT;
        let placed = arrows(cell, self.series.ended).into_iter().map(|arrow| {
            let x = time.at(arrow.at.as_secs_f64()).max(after);
            after = x + 9.0;
            (x, arrow)
        });
        let arrows: Vec<_> = placed.collect();
        let most = arrows.iter().map(|(_, arrow)| arrow.milli).max().unwrap_or(0);
        for (x, Arrow { at, lender, borrower, milli: lent_milli }) in arrows.iter().copied() {
            let share = |place: Place| {
                let sample = (at.as_millis() / EVERY.as_millis()) as usize;
                let share = cell.shares[place].get(sample).copied().flatten().unwrap_or_default();
                tops[place].at(share.effective_milli as f64)
            };
            let (from, to) = (share(lender), share(borrower));
            let is_down = to > from;
            let tip = if is_down { to - 7.0 } else { to + 7.0 };
            let width = 1.0 + 2.0 * lent_milli as f64 / most.max(1) as f64;
            let what = format!(
                "{:.1} s: {} lends {} {}{unit}",
                at.as_secs_f64(),
                NAMES[lender],
                NAMES[borrower],
                milli(lent_milli)
            );
            let _ = write!(
                svg,
                r#"<g><title>{what}</title><circle class="head" cx="{x:.1}" cy="{from:.1}" r="2.6"/><path class="loan" stroke-width="{width:.1}" d="M{x:.1} {from:.1}V{tip:.1}"/><path class="head" d="M{x:.1} {to:.1}l-4.5 {0}h9Z"/></g>"#,
                if is_down { -8 } else { 8 },
            );
            // The amount stands in the gap between lanes, where there is no line.
            let gap = if is_down { lane(borrower).0 - GAP / 2.0 } else { lane(borrower).1 + GAP / 2.0 };
            let words = format!("{}{unit}", milli(lent_milli));
            let until = x + width_of(&words) + 14.0;
            if arrows.iter().all(|(other, _)| *other <= x || *other >= until) {
                let (x, y) = (x + 6.0, gap + 4.0);
                let _ = write!(svg, r#"<text class="halo" x="{x:.1}" y="{y:.1}">{words}</text>"#);
            }
        }
        svg
    }
}

/// What a region lent another on balance in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    at: Duration,
    lender: Place,
    borrower: Place,
    milli: u64,
}

/// Loans as a plot shows them, in the order of time.
fn arrows(cell: &CellSeries, ended: Duration) -> Vec<Arrow> {
    let stretch = ended / ARROWS;
    let mut sums: BTreeMap<(u128, Place, Place), (Duration, i64)> = BTreeMap::new();
    for loan in &cell.loans {
        let key = (loan.at.as_nanos() / stretch.as_nanos().max(1), loan.lender, loan.borrower);
        let milli = i64::try_from(loan.milli).unwrap_or(i64::MAX);
        let (at, sum) = sums.entry(key).or_insert((loan.at, 0));
        *at = if *sum <= 0 { loan.at } else { *at };
        *sum += if loan.is_return { -milli } else { milli };
    }
    let own = |shares: &Vec<Option<Share>>| shares.iter().flatten().next().map_or(0, |share| share.own_milli);
    let whole: u64 = cell.shares.iter().map(own).sum();
    let arrow = |(&(bin, lender, borrower), &(at, sum)): (&(u128, Place, Place), &(Duration, i64))| {
        let back = sums.get(&(bin, borrower, lender)).map_or(0, |(_, back)| (*back).max(0));
        let net = u64::try_from(sum - back).unwrap_or(0);
        (net * ARROW_PART >= whole && net > 0).then_some(Arrow { at, lender, borrower, milli: net })
    };
    let mut arrows: Vec<_> = sums.iter().filter_map(arrow).collect();
    arrows.sort();
    arrows
}

/// A stepped line: each value lasts until the next.
fn steps(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut stepped: Vec<(f64, f64)> = Vec::new();
    for (x, y) in points {
        match stepped.last().copied() {
            Some((_, before)) if before != y => stepped.extend([(x, before), (x, y)]),
            _ => stepped.push((x, y)),
        }
    }
    thin_steps(&stepped)
}

/// The corners of a stepped line.
fn thin_steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let is_corner = |w: &[(f64, f64)]| w[0].1 != w[1].1 || w[1].1 != w[2].1;
    let corners = points.windows(3).filter(|window| is_corner(window)).map(|window| window[1]);
    let last = points.last().filter(|_| points.len() > 1);
    points.first().copied().into_iter().chain(corners).chain(last.copied()).collect()
}
