//! Which colour means what. Every meaning has a glyph as well, so nothing is lost where there is no colour.

use ratatui::style::{Color, Modifier, Style};

/// The regions, in their order; past the last comes the first.
const REGIONS: [Color; 6] =
    [Color::Cyan, Color::Yellow, Color::Magenta, Color::Blue, Color::Green, Color::LightRed];

/// A region's colour.
pub(super) fn region(place: usize) -> Color {
    REGIONS[place % REGIONS.len()]
}

/// What is as it should be.
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
/// What is broken or refused.
pub(super) const BAD: Style = Style::new().fg(Color::Red);
/// What is on its way.
pub(super) const SOON: Style = Style::new().fg(Color::Yellow);
/// What matters less.
pub(super) const FAINT: Style = Style::new().fg(Color::DarkGray);
/// What matters most.
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
/// The title and the keys.
pub(super) const BAR: Style = Style::new().fg(Color::Black).bg(Color::Gray);
