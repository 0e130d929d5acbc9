//! The regions as boxes, and the links between them.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Modifier, Style},
    text::{Line, Span},
    widgets::{Block, BorderType, Widget as _},
};

use super::{
    palette,
    picture::{Condition, Flow, Link, Picture, Region},
    words::{count, short},
};

/// Rows of a box: its border, the bar, and four numbers.
pub(super) const BOX_HEIGHT: u16 = 7;
/// The least columns of a readable box.
const BOX_WIDTH_MIN: u16 = 19;
const BOX_WIDTH_MAX: u16 = 40;
/// The least columns between two boxes, for a link.
const GAP_MIN: u16 = 8;
/// The most regions with drawn links: with more, lines would cross.
const DRAWN_MAX: usize = 3;

/// The rows of the map at this width.
pub(super) fn height(picture: &Picture, width: u16) -> u16 {
    let rows = picture.regions.len().div_ceil(per_row(picture, width)) as u16;
    rows * BOX_HEIGHT + u16::from(picture.regions.len() >= DRAWN_MAX)
}

/// Draws boxes and links.
pub(super) fn draw(picture: &Picture, area: Rect, buffer: &mut Buffer) {
    let boxes = boxes(picture, area);
    for (place, region) in picture.regions.iter().enumerate() {
        draw_region(picture, place, region, boxes[place].intersection(area), buffer);
    }
    if picture.regions.len() > DRAWN_MAX {
        let words: Vec<_> = picture.links.iter().map(|link| words(picture, link)).collect();
        let y = area.bottom().saturating_sub(1);
        buffer.set_stringn(area.x + 1, y, words.join("  "), usize::from(area.width) - 1, palette::FAINT);
        return;
    }
    // Links have numbers only where a key chooses among them.
    let is_numbered = picture.links.iter().any(|link| link.is_chosen);
    for (number, link) in picture.links.iter().enumerate() {
        let name = if is_numbered { name(number, link) } else { String::new() };
        let (Some(from), Some(to)) = (boxes.get(link.from), boxes.get(link.to)) else { continue };
        if link.to == link.from + 1 {
            draw_straight(&name, link, *from, *to, area, buffer);
        } else {
            draw_around(&name, link, *from, *to, area, buffer);
        }
    }
}

fn per_row(picture: &Picture, width: u16) -> usize {
    let most = if picture.regions.len() > DRAWN_MAX { width / BOX_WIDTH_MIN } else { DRAWN_MAX as u16 };
    usize::from(most.max(1)).min(picture.regions.len().max(1))
}

/// Where each region's box is.
fn boxes(picture: &Picture, area: Rect) -> Vec<Rect> {
    let per_row = per_row(picture, area.width);
    let columns = per_row as u16;
    let gap = if picture.regions.len() > DRAWN_MAX { 0 } else { GAP_MIN };
    let room = area.width.saturating_sub(gap * (columns - 1)) / columns;
    let width = room.min(BOX_WIDTH_MAX);
    // Leftover columns make the links longer, so that both sides are flush.
    let over = area.width.saturating_sub(width * columns);
    let left = |column: u16| match columns {
        1 => area.x,
        _ => area.x + column * width + over * column / (columns - 1),
    };
    (0..picture.regions.len())
        .map(|place| {
            let (row, column) = ((place / per_row) as u16, (place % per_row) as u16);
            Rect::new(left(column), area.y + row * BOX_HEIGHT, width, BOX_HEIGHT)
        })
        .collect()
}

fn draw_region(picture: &Picture, place: usize, region: &Region, area: Rect, buffer: &mut Buffer) {
    if area.width < 4 || area.height < BOX_HEIGHT {
        return;
    }
    let colour = Style::new().fg(palette::region(place));
    let border = if region.condition == Condition::Down { palette::BAD } else { colour };
    let kind = if region.is_chosen { BorderType::Thick } else { BorderType::Rounded };
    let mut block = Block::bordered().border_type(kind).border_style(border);
    block = block.title_top(Span::styled(format!(" {} ", region.name), colour.add_modifier(Modifier::BOLD)));
    block = block.title_top(badge(region).right_aligned());
    if region.is_authority {
        block = block.title_bottom(Line::from(Span::styled(" authority ", palette::FAINT)).right_aligned());
    }
    let inner = block.inner(area);
    block.render(area, buffer);
    let numbers = match &region.condition {
        Condition::Down => vec![Line::styled("nobody answers here", palette::BAD)],
        Condition::Waiting(why) => wrapped(why, usize::from(inner.width)),
        Condition::Unasked(heard) => wrapped(&format!("not asked; {heard}"), usize::from(inner.width)),
        Condition::Up => {
            let mut lines = vec![bar(picture, place, region, inner.width)];
            lines.extend(numbers(picture, region, inner.width));
            lines
        }
    };
    for (line, y) in numbers.iter().zip(inner.top()..inner.bottom()) {
        buffer.set_line(inner.x, y, line, inner.width);
    }
}

fn badge(region: &Region) -> Line<'static> {
    match region.condition {
        Condition::Down => Line::styled(" down ", palette::BAD.add_modifier(Modifier::REVERSED)),
        Condition::Waiting(_) => Line::styled(" waits ", palette::SOON),
        Condition::Up if region.is_hot => {
            Line::styled(" hot ", Style::new().add_modifier(Modifier::REVERSED))
        }
        Condition::Up => Line::styled(" up ", palette::GOOD),
        Condition::Unasked(_) => Line::default(),
    }
}

/// The whole bar is the budget: the region's own part, its borrowed part, and the part that it lent.
fn bar(picture: &Picture, place: usize, region: &Region, width: u16) -> Line<'static> {
    let share = region.share;
    let mut units = 0_u64;
    let mut drawn = 0;
    let mut part = |amount: u64, glyph: &str| {
        units = units.saturating_add(amount);
        let until = (u128::from(units) * u128::from(width) * 2 + u128::from(picture.budget.units))
            / (2 * u128::from(picture.budget.units.max(1)));
        let until = until.min(u128::from(width)) as usize;
        let text = glyph.repeat(until - drawn);
        drawn = until;
        text
    };
    let (kept, borrowed, lent) =
        (part(share.kept(), "█"), part(share.borrowed, "▓"), part(share.lent.min(share.standing), "░"));
    let rest = "·".repeat(usize::from(width) - drawn);
    let colour = Style::new().fg(palette::region(place));
    Line::from(vec![
        Span::styled(kept, colour),
        Span::styled(borrowed, colour),
        Span::styled(lent, colour),
        Span::styled(rest, palette::FAINT),
    ])
}

fn numbers(picture: &Picture, region: &Region, width: u16) -> [Line<'static>; 4] {
    let unit = picture.budget.unit;
    let share = region.share;
    let whole = format!("{}{unit}", count(share.effective()));
    let sum = match (share.borrowed, share.lent) {
        (0, 0) => String::new(),
        (borrowed, 0) => format!("={}+{}", count(share.standing), count(borrowed)),
        (0, lent) => format!("={}-{}", count(share.standing), count(lent)),
        (borrowed, lent) => format!("={}-{}+{}", count(share.standing), count(lent), count(borrowed)),
    };
    let demand = region.demand.map_or("?".to_owned(), |demand| format!("{}/s", count(demand)));
    let denied = if region.denied > 0 { palette::BAD } else { Style::new() };
    [
        pair("share", vec![format!("{whole}{sum}"), whole], palette::STRONG, width),
        pair("admitted", vec![format!("{}/s", count(region.admitted))], Style::new(), width),
        pair("denied", vec![format!("{}/s", count(region.denied))], denied, width),
        pair("demand", vec![demand], palette::FAINT, width),
    ]
}

/// A word on the left, and on the right the first of the values that fits.
fn pair(word: &'static str, values: Vec<String>, style: Style, width: u16) -> Line<'static> {
    let room = usize::from(width).saturating_sub(word.len() + 1);
    let fits = values.iter().find(|value| value.chars().count() <= room);
    let value = fits.or(values.last()).cloned().unwrap_or_default();
    let space = usize::from(width).saturating_sub(word.len() + value.chars().count());
    Line::from(vec![
        Span::styled(word, palette::FAINT),
        Span::raw(" ".repeat(space)),
        Span::styled(value, style),
    ])
}

fn wrapped(text: &str, width: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(last) if line == 0 => last.push_str(word),
            Some(last) if line + 1 + word.chars().count() <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.into_iter().map(|line| Line::styled(line, palette::SOON)).collect()
}

/// Draws a link between two boxes that stand beside each other.
fn draw_straight(name: &str, link: &Link, from: Rect, to: Rect, area: Rect, buffer: &mut Buffer) {
    let width = to.left().saturating_sub(from.right());
    let y = from.y + BOX_HEIGHT / 2;
    if width < 3 || y + 1 >= area.bottom() {
        return;
    }
    let style = style(link);
    buffer.set_string(from.right(), y, line(link.flow, usize::from(width)), style);
    let centred = |text: &str| format!("{text:^width$}", width = usize::from(width));
    buffer.set_stringn(from.right(), y - 1, centred(&label(link)), usize::from(width), style);
    buffer.set_stringn(from.right(), y + 1, centred(name), usize::from(width), chosen(link));
}

/// Draws a link that goes around the boxes between its ends.
fn draw_around(name: &str, link: &Link, from: Rect, to: Rect, area: Rect, buffer: &mut Buffer) {
    let (left, right) = (from.x + from.width / 2, to.x + to.width / 2);
    let y = from.bottom();
    if y >= area.bottom() || right < left + 20 {
        return;
    }
    let style = style(link);
    let inner = usize::from(right - left - 1);
    buffer.set_string(left, y, format!("╰{}╯", line(link.flow, inner)), style);
    // The words are at the ends, so that the middle shows whether the line is whole.
    let label = format!(" {} ", label(link));
    if !name.is_empty() {
        buffer.set_string(left + 3, y, format!(" {name} "), chosen(link));
    }
    buffer.set_string(right - 3 - label.chars().count() as u16, y, label, style);
}

fn line(flow: Flow, width: usize) -> String {
    let arm = |glyph: &str, count: usize| glyph.repeat(count);
    match flow {
        Flow::Open => arm("━", width),
        Flow::Quiet => arm("╍", width),
        Flow::Forth => arm("━", width - 1) + "▶",
        Flow::Back => "◀".to_owned() + &arm("━", width - 1),
        Flow::Cut => {
            let left = (width - 1) / 2;
            arm("╌", left) + "✗" + &arm("╌", width - 1 - left)
        }
    }
}

fn label(link: &Link) -> String {
    match (link.flow, link.round_trip) {
        (Flow::Cut, _) => "cut".to_owned(),
        (Flow::Forth | Flow::Back, _) => "one way".to_owned(),
        (Flow::Open | Flow::Quiet, Some(time)) => short(time),
        (Flow::Open, None) => String::new(),
        (Flow::Quiet, None) => "quiet".to_owned(),
    }
}

/// A link's name with the key that chooses it.
fn name(number: usize, link: &Link) -> String {
    if link.is_chosen { format!("[{}]", number + 1) } else { (number + 1).to_string() }
}

fn chosen(link: &Link) -> Style {
    if link.is_chosen { palette::STRONG } else { palette::FAINT }
}

fn style(link: &Link) -> Style {
    match link.flow {
        Flow::Open => palette::GOOD,
        Flow::Quiet | Flow::Forth | Flow::Back => palette::SOON,
        Flow::Cut => palette::BAD,
    }
}

/// A link in words, for links that are not drawn.
pub(super) fn words(picture: &Picture, link: &Link) -> String {
    let region = |place: usize| picture.regions.get(place).map_or("?", |region| region.name.as_str());
    let between = match link.flow {
        Flow::Open => "=",
        Flow::Quiet => "~",
        Flow::Cut => " x ",
        Flow::Forth => ">",
        Flow::Back => "<",
    };
    let label = match link.flow {
        Flow::Open | Flow::Quiet => label(link),
        Flow::Cut | Flow::Forth | Flow::Back => String::new(),
    };
    format!("{}{between}{} {label}", region(link.from), region(link.to)).trim_end().to_owned()
}
