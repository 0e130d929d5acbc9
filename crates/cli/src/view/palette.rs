//! The meaning of colours. Every meaning has a glyph as well, so nothing is lost without colour.

use ratatui::style::{Color, Modifier, Style};

/// The regions, in their order; after the last comes the first.
const REGIONS: [Color; 6] =
    [Color::Cyan, Color::Yellow, Color::Magenta, Color::Blue, Color::Green, Color::LightRed];

/// A region's colour.
pub(super) fn region(place: usize) -> Color {
    REGIONS[place % REGIONS.len()]
}

/// A good state.
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
/// A broken or refused thing.
pub(super) const BAD: Style = Style::new().fg(Color::Red);
/// A thing on its way.
pub(super) const SOON: Style = Style::new().fg(Color::Yellow);
/// A less important thing.
pub(super) const FAINT: Style = Style::new().fg(Color::DarkGray);
/// The most important thing.
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
/// The title and the keys.
pub(super) const BAR: Style = Style::new().fg(Color::Black).bg(Color::Gray);
