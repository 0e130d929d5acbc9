//! The stacked admissions of all regions against the budget: one column for each stretch of time.
//!
//! The budget's line is the edge below the top row, so everything in the top row is above the budget. Only a
//! burst after a pause may reach into it.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Color, Style},
};

use super::{
    palette,
    picture::{Column, Picture},
    words::count,
};

/// Columns for the number beside the chart, and a space.
const SCALE_WIDTH: u16 = 8;
/// The height of a cell, in the steps of block characters.
const STEPS: u64 = 8;
/// Blocks of 1 to 8 steps.
const BLOCKS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Draws the chart. The last row is the axis, with its events.
pub(super) fn draw(picture: &Picture, area: Rect, buffer: &mut Buffer) {
    if area.width <= SCALE_WIDTH || area.height < 3 {
        return;
    }
    let plot =
        Rect { x: area.x + SCALE_WIDTH, width: area.width - SCALE_WIDTH, height: area.height - 1, ..area };
    let shown = picture.history.len().min(usize::from(plot.width));
    let columns = &picture.history[picture.history.len() - shown..];
    let scale = Scale::new(columns, picture.budget.units, plot.height);
    let first = plot.right() - shown as u16;
    for x in plot.left()..first {
        scale.line(picture.budget.units, plot, x, buffer);
    }
    for (x, column) in (first..).zip(columns) {
        scale.line(column.budget, plot, x, buffer);
        scale.stack(&column.admitted, plot, x, buffer);
    }
    scale.label(picture, plot, buffer);
    axis(columns, Rect { y: plot.bottom(), height: 1, ..plot }, first, buffer);
}

/// How many units a step represents.
struct Scale {
    /// The value of the edge below the top row; at least 1.
    edge: u64,
    rows: u64,
}

impl Scale {
    fn new(columns: &[Column], budget: u64, height: u16) -> Self {
        let budgets = columns.iter().map(|column| column.budget).chain([budget]).max().unwrap_or(0);
        let admitted = columns.iter().map(Column::total).max().unwrap_or(0);
        let edge = if budgets > 0 { budgets } else { admitted };
        Self { edge: edge.max(1), rows: u64::from(height) }
    }

    /// The height of `units`, at most the whole chart.
    fn steps(&self, units: u64) -> u64 {
        let most = self.rows * STEPS;
        let edge = u128::from(self.edge);
        let steps = (u128::from(units) * u128::from(most - STEPS) + edge / 2) / edge;
        u64::try_from(steps).unwrap_or(most).min(most)
    }

    /// Draws the budget's line in one column; a budget of 0 has no line.
    fn line(&self, budget: u64, plot: Rect, x: u16, buffer: &mut Buffer) {
        if budget == 0 {
            return;
        }
        let steps = self.steps(budget).min(self.rows * STEPS - 1);
        let glyph = match steps % STEPS {
            0..=2 => "▁",
            3..=5 => "─",
            _ => "▔",
        };
        buffer.set_string(x, row(plot, steps / STEPS), glyph, Style::new());
    }

    /// Draws one column, with the first region at the bottom.
    fn stack(&self, admitted: &[u64], plot: Rect, x: u16, buffer: &mut Buffer) {
        let mut below = 0_u64;
        let tops: Vec<u64> = admitted
            .iter()
            .map(|units| {
                below = below.saturating_add(*units);
                self.steps(below)
            })
            .collect();
        let top = self.steps(below);
        for number in 0..top.div_ceil(STEPS) {
            let (glyph, style) = block(&tops, number * STEPS, top);
            // A block hides the line behind it.
            buffer.set_string(x, row(plot, number), " ", Style::reset());
            buffer.set_string(x, row(plot, number), glyph, style);
        }
    }

    fn label(&self, picture: &Picture, plot: Rect, buffer: &mut Buffer) {
        let budget = picture.budget.units;
        if budget == 0 {
            return;
        }
        let y = row(plot, self.steps(budget).saturating_sub(1) / STEPS);
        let width = usize::from(SCALE_WIDTH) - 2;
        let label = format!("{:>width$}", count(budget));
        buffer.set_string(plot.x - SCALE_WIDTH, y, label, palette::STRONG);
        buffer.set_string(plot.x - SCALE_WIDTH, plot.bottom(), format!("{:>width$}", 0), palette::FAINT);
    }
}

/// The row of the chart that is `number` rows above the lowest.
fn row(plot: Rect, number: u64) -> u16 {
    plot.bottom() - 1 - (number as u16).min(plot.height - 1)
}

/// The block to draw from `floor` to `floor + STEPS` steps. `tops` are the regions' tops, and the last of
/// them is `top`, which is above `floor`.
fn block(tops: &[u64], floor: u64, top: u64) -> (&'static str, Style) {
    let ceiling = floor + STEPS;
    // Computes how much of this block each region fills.
    let mut below = 0;
    let parts: Vec<u64> = tops
        .iter()
        .map(|&top| {
            let part = top.min(ceiling).saturating_sub(below.max(floor));
            below = top;
            part
        })
        .collect();
    let largest = |skip: Option<usize>| {
        let others = parts.iter().enumerate().filter(|(place, part)| Some(*place) != skip && **part > 0);
        others.max_by_key(|(_, part)| **part).map(|(place, _)| place)
    };
    let colour = |place: Option<usize>| place.map_or(Color::Reset, palette::region);
    if top < ceiling {
        return (BLOCKS[(top - floor - 1) as usize], Style::new().fg(colour(largest(None))));
    }
    let lowest = parts.iter().position(|part| *part > 0);
    match lowest.map(|place| parts[place]) {
        Some(part) if part < STEPS => {
            let style = Style::new().fg(colour(lowest)).bg(colour(largest(lowest)));
            (BLOCKS[(part - 1) as usize], style)
        }
        _ => (BLOCKS[7], Style::new().fg(colour(lowest))),
    }
}

/// Draws the axis with the events at their times, as far as there is room.
fn axis(columns: &[Column], area: Rect, first: u16, buffer: &mut Buffer) {
    buffer.set_string(area.x, area.y, "─".repeat(usize::from(area.width)), palette::FAINT);
    let mut free = area.x;
    for (x, column) in (first..).zip(columns).filter(|(_, column)| !column.mark.is_empty()) {
        let width = column.mark.chars().count() as u16;
        // The newest events move left of their place rather than being cut off.
        let place = x.min(area.right().saturating_sub(width));
        if place >= free {
            buffer.set_string(place, area.y, column.mark, Style::new());
            free = place + width + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One column of three regions in a chart of four rows, from the top down.
    fn column(admitted: [u64; 3]) -> Vec<(String, Color, Color)> {
        let area = Rect::new(0, 0, SCALE_WIDTH + 1, 5);
        let mut picture = Picture::default();
        picture.budget.units = 300;
        picture.history = vec![Column { admitted: admitted.into(), budget: 300, mark: "" }];
        let mut buffer = Buffer::empty(area);
        draw(&picture, area, &mut buffer);
        (0..4)
            .map(|y| {
                let cell = &buffer[(SCALE_WIDTH, y)];
                (cell.symbol().to_owned(), cell.fg, cell.bg)
            })
            .collect()
    }

    #[test]
    fn a_whole_budget_fills_all_rows_but_the_top() {
        let [eu, us, ap] = [0, 1, 2].map(palette::region);
        let cell = |glyph: &str, colour| (glyph.to_owned(), colour, Color::Reset);
        assert_eq!(
            column([100, 100, 100]),
            [cell("▁", Color::Reset), cell("█", ap), cell("█", us), cell("█", eu)]
        );
    }

    #[test]
    fn two_regions_share_a_character_and_the_excess_is_above_the_line() {
        let [eu, us, ap] = [0, 1, 2].map(palette::region);
        assert_eq!(
            column([50, 100, 200]),
            [
                ("▄".to_owned(), ap, Color::Reset),
                ("█".to_owned(), ap, Color::Reset),
                ("▄".to_owned(), us, ap),
                ("▄".to_owned(), eu, us),
            ]
        );
    }

    #[test]
    fn an_empty_column_is_blank_and_a_huge_one_is_cut_at_the_top() {
        let blank = (" ".to_owned(), Color::Reset, Color::Reset);
        assert_eq!(column([0, 0, 0])[1..], [blank.clone(), blank.clone(), blank]);
        let eu = ("█".to_owned(), palette::region(0), Color::Reset);
        assert_eq!(column([u64::MAX, 1, 1]), [eu.clone(), eu.clone(), eu.clone(), eu]);
    }

    #[test]
    fn marks_are_written_below_their_columns() {
        let area = Rect::new(0, 0, SCALE_WIDTH + 20, 4);
        let mut picture = Picture::default();
        picture.budget.units = 10;
        picture.history = vec![Column { budget: 10, ..Column::default() }; 20];
        for (place, mark) in [(2, "cut"), (4, "hidden"), (8, "mend"), (19, "restart")] {
            picture.history[place].mark = mark;
        }
        let mut buffer = Buffer::empty(area);
        draw(&picture, area, &mut buffer);
        let axis: String = (SCALE_WIDTH..area.width).map(|x| buffer[(x, 3)].symbol()).collect();
        assert_eq!(axis, "──cut───mend─restart");
    }
}
