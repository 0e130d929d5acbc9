//! A picture of regions that share a budget, and how it is drawn.
//!
//! Pure: [`draw`] knows no clock, no socket and no terminal. [`picture::Picture`] holds everything that is
//! shown.

mod chart;
pub mod gauge;
mod map;
pub mod overview;
mod palette;
mod panels;
pub mod picture;
pub mod snapshot;
pub mod words;

use picture::Picture;
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Style,
};

/// The terminal size that shows everything.
const WHOLE: (u16, u16) = (80, 24);
/// The smallest terminal size in which anything is drawn.
const LEAST: (u16, u16) = (40, 12);
/// Rows of the chart and of the rows below it, in a terminal of 24 rows.
const CHART_HEIGHT: u16 = 6;
const BOTTOM_HEIGHT: u16 = 5;
/// Below this width the limits have no room beside the events.
const EVENTS_WIDTH_MIN: u16 = 38;

/// Draws the picture. With `is_plain` no colour is used, only glyphs and weight.
pub fn draw(picture: &Picture, is_plain: bool, area: Rect, buffer: &mut Buffer) {
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let words = format!("{} x {} shows all", WHOLE.0, WHOLE.1);
        buffer.set_stringn(area.x, area.y, words, usize::from(area.width), Style::new());
        return;
    }
    let places = Places::new(picture, area);
    panels::title(picture, places.title, buffer);
    map::draw(picture, places.map, buffer);
    panels::heading(picture, places.heading, buffer);
    chart::draw(picture, places.chart, buffer);
    panels::verdict(picture, places.verdict, buffer);
    if let Some(cells) = &picture.cells {
        panels::cells(cells, places.bottom, buffer);
    } else if picture.events.is_empty() {
        panels::limits(picture, places.bottom, buffer);
    } else {
        let [limits, events] = split(places.bottom);
        panels::limits(picture, limits, buffer);
        panels::events(picture, events, buffer);
    }
    panels::keys(picture, places.keys, buffer);
    panels::help(picture, area, buffer);
    if is_plain {
        for cell in &mut buffer.content {
            (cell.fg, cell.bg) = Default::default();
        }
    }
}

/// The areas of all parts.
struct Places {
    title: Rect,
    map: Rect,
    heading: Rect,
    chart: Rect,
    verdict: Rect,
    bottom: Rect,
    keys: Rect,
}

impl Places {
    fn new(picture: &Picture, area: Rect) -> Self {
        let map = map::height(picture, area.width);
        let keys = panels::keys_height(picture, area.width);
        let rest = area.height.saturating_sub(1 + map + 1 + 1 + keys);
        // The chart grows twice as fast as the rows below it, and shrinks last.
        let chart = match rest.checked_sub(CHART_HEIGHT + BOTTOM_HEIGHT) {
            Some(more) => CHART_HEIGHT + more * 2 / 3,
            None => rest.min(CHART_HEIGHT),
        };
        let bottom = rest - chart;
        let heights = [1, map, 1, chart, 1, bottom, keys].map(Constraint::Length);
        let [title, map, heading, chart, verdict, bottom, keys] = Layout::vertical(heights).areas(area);
        Self { title, map, heading, chart, verdict, bottom, keys }
    }
}

/// Limits on the left, events on the right, a gap between.
fn split(area: Rect) -> [Rect; 2] {
    let left = (area.width / 2).max(EVENTS_WIDTH_MIN).min(area.width);
    let [limits, _, events] =
        Layout::horizontal([Constraint::Length(left), Constraint::Length(2), Constraint::Min(0)]).areas(area);
    [limits, events]
}

#[cfg(test)]
mod examples;
#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::{picture::*, *};

    fn text(picture: &Picture, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(picture, false, frame.area(), frame.buffer_mut())).expect("a frame");
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(row).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_whole_view_fits_in_80_by_24() {
        assert_eq!(text(&examples::connected(), 80, 24), examples::CONNECTED_80_24.trim_matches('\n'));
    }

    #[test]
    fn a_split_brain_and_a_dead_region_are_shown() {
        assert_eq!(text(&examples::broken(), 100, 30), examples::BROKEN_100_30.trim_matches('\n'));
    }

    #[test]
    fn the_help_for_keys_is_shown_in_full_above_the_view() {
        let mut picture = examples::connected();
        picture.help = crate::demo::keys::HELP.map(|key| (key.keys, key.does)).into();
        picture.help.extend(crate::demo::keys::NOTES);
        let text = text(&picture, 80, 24);
        assert!(text.contains("┌ keys ─"), "{text}");
        for (keys, does) in picture.help {
            assert!(text.contains(keys) && text.contains(does), "{does} is cut off:\n{text}");
        }
    }

    #[test]
    fn the_view_is_drawn_at_any_terminal_size() {
        let mut helped = examples::connected();
        helped.help = vec![("c", "cut the chosen link"); 30];
        for picture in
            [examples::connected(), examples::broken(), examples::many(), helped, Picture::default()]
        {
            for (width, height) in [(1, 1), (39, 24), (40, 12), (41, 13), (57, 17), (200, 60), (300, 12)] {
                let text = text(&picture, width, height);
                assert!(!text.trim().is_empty(), "{width} x {height}");
            }
        }
    }

    #[test]
    fn without_colours_every_cell_is_plain() {
        let area = Rect::new(0, 0, 80, 24);
        let mut buffer = Buffer::empty(area);
        draw(&examples::broken(), true, area, &mut buffer);
        let plain = ratatui::style::Color::Reset;
        assert!(buffer.content.iter().all(|cell| cell.fg == plain && cell.bg == plain));
    }

    #[test]
    fn extreme_numbers_are_drawn_all_the_same() {
        let mut picture = examples::connected();
        picture.budget.units = u64::MAX;
        for region in &mut picture.regions {
            region.share = Share { standing: u64::MAX, lent: u64::MAX, borrowed: u64::MAX };
            region.demand = Some(u64::MAX);
            (region.admitted, region.denied) = (u64::MAX, u64::MAX);
        }
        for column in &mut picture.history {
            column.admitted.fill(u64::MAX);
            column.budget = u64::MAX;
        }
        assert!(text(&picture, 80, 24).contains("never over"));
        picture.budget.units = 0;
        assert!(text(&picture, 80, 24).contains("never over"));
    }

    #[test]
    fn many_regions_are_shown_in_rows_with_links_as_text() {
        let text = text(&examples::many(), 100, 40);
        for words in ["─ r0 ─", "─ r5 ─", "r0=r1 80 ms", "not asked"] {
            assert!(text.replace('╭', "─").contains(words), "{words} is not in\n{text}");
        }
    }
}
