//! The rows around the map and the chart: title, headings, verdict, limits, events, keys.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Widget as _},
};

use super::{
    palette,
    picture::{Cells, Event, Picture, Row, Tone, Verdict},
    words::{clock, count, percent},
};

/// Columns for the budget of a limit.
const BUDGET_WIDTH_MIN: usize = 20;

/// The first row.
pub(super) fn title(picture: &Picture, area: Rect, buffer: &mut Buffer) {
    buffer.set_style(area, palette::BAR);
    let mut right = clock(picture.elapsed);
    if picture.is_paused {
        right = format!("stands still: space goes on  {right}");
    }
    let left = Line::from(vec![
        Span::styled(format!(" {}  ", picture.title), Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(picture.subtitle.clone()),
    ]);
    let room = area.width.saturating_sub(right.chars().count() as u16 + 2);
    buffer.set_line(area.x, area.y, &left, room);
    let place = area.right().saturating_sub(right.chars().count() as u16 + 1);
    buffer.set_stringn(place.max(area.x), area.y, right, usize::from(area.width), Style::new());
}

/// The limit of the chart, and the meaning of the bars.
pub(super) fn heading(picture: &Picture, area: Rect, buffer: &mut Buffer) {
    let admitted = picture.regions.iter().fold(0, |sum: u64, region| sum.saturating_add(region.admitted));
    let budget = &picture.budget;
    let burst = budget.burst.map_or_else(String::new, |burst| format!(" + burst {}", count(burst)));
    let left = Line::from(vec![
        Span::raw("admitted "),
        Span::styled(format!("{}/s", count(admitted)), palette::STRONG),
        Span::raw(format!(" of {}{}{burst}", count(budget.units), budget.unit)),
        Span::styled(format!("  {}", budget.name), palette::FAINT),
    ]);
    buffer.set_line(area.x, area.y, &left, area.width);
    let legend = "█ own ▓ borrowed ░ lent out";
    let width = legend.chars().count();
    if usize::from(area.width) > left.width() + width + 1 {
        buffer.set_string(area.right() - width as u16, area.y, legend, palette::FAINT);
    }
}

/// Whether the promise held.
pub(super) fn verdict(picture: &Picture, area: Rect, buffer: &mut Buffer) {
    let Verdict::Counted { units_over, watched, used } = picture.verdict else { return };
    let mut spans = match units_over {
        0 => vec![
            Span::styled("never over", palette::GOOD.add_modifier(Modifier::BOLD)),
            Span::raw(format!(": 0 units above the budget in any interval of {}", clock(watched))),
        ],
        over => vec![Span::styled(
            format!("OVER: {over} units above the budget"),
            palette::BAD.add_modifier(Modifier::REVERSED),
        )],
    };
    if let Some(used) = used {
        spans.push(Span::raw(", used "));
        spans.push(Span::styled(percent(used), palette::STRONG));
    }
    buffer.set_line(area.x, area.y, &Line::from(spans), area.width);
}

/// The limits, a row each, the chosen one marked.
pub(super) fn limits(picture: &Picture, area: Rect, buffer: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let width = usize::from(area.width);
    let numbers = 22;
    let named = picture.limits.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(5);
    let name = named.min(width.saturating_sub(numbers + 2));
    let budget = width.saturating_sub(name + numbers + 4);
    let budget = if budget >= BUDGET_WIDTH_MIN { budget.min(48) } else { 0 };
    let text = |row: &Row, admitted: &str, denied: &str| {
        let mut text = format!("{:name$}  ", cut_off(&row.name, name));
        if budget > 0 {
            text.push_str(&format!("{:budget$}  ", cut_off(&row.budget, budget)));
        }
        text + &format!("{admitted:>10}{denied:>12}")
    };
    let head = Row { name: "limit".to_owned(), budget: "budget".to_owned(), ..Row::default() };
    buffer.set_stringn(area.x, area.y, text(&head, "admitted/s", "denied/s"), width, palette::FAINT);
    let shown = usize::from(area.height) - 1;
    // The chosen limit stays in sight.
    let skip = picture.chosen_limit.map_or(0, |chosen| (chosen + 1).saturating_sub(shown));
    for (y, (place, row)) in (area.y + 1..area.bottom()).zip(picture.limits.iter().enumerate().skip(skip)) {
        let is_chosen = picture.chosen_limit == Some(place);
        let style = if is_chosen { palette::STRONG } else { Style::new() };
        let text = text(row, &count(row.admitted), &count(row.denied));
        let end = buffer.set_stringn(area.x, y, &text, width, style).0;
        if row.denied > 0 {
            let digits = count(row.denied).len() as u16;
            let red = Rect { x: end.saturating_sub(digits), y, width: digits, height: 1 };
            buffer.set_style(red.intersection(area), palette::BAD);
        }
    }
}

/// The most frequent cells of a limit: by requests on the left, by denials on the right.
pub(super) fn cells(cells: &Cells, area: Rect, buffer: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    if !cells.fault.is_empty() {
        let fault: String = cells.fault.chars().filter(|letter| !letter.is_control()).collect();
        buffer.set_stringn(area.x, area.y, fault, usize::from(area.width), palette::BAD);
        return;
    }
    let half = area.width.saturating_sub(2) / 2;
    let sides = [
        (area.x, "asked for most", &cells.hottest, Style::new()),
        (area.x + half + 2, "denied most", &cells.offenders, palette::BAD),
    ];
    for (x, title, rows, style) in sides {
        let width = usize::from(half);
        buffer.set_stringn(x, area.y, title, width, palette::FAINT);
        for (row, y) in rows.iter().zip(area.y + 1..area.bottom()) {
            let counted = row.counted();
            let room = width.saturating_sub(counted.chars().count() + 2);
            let name: String = row.name().chars().filter(|letter| !letter.is_control()).collect();
            let text = format!("{:room$}  ", cut_off(&name, room));
            let end = buffer.set_stringn(x, y, text, width, Style::new()).0;
            buffer.set_stringn(end, y, counted, usize::from((x + half).saturating_sub(end)), style);
        }
    }
}

/// The last events, the newest at the bottom.
pub(super) fn events(picture: &Picture, area: Rect, buffer: &mut Buffer) {
    let shown = picture.events.len().min(usize::from(area.height));
    let last = &picture.events[picture.events.len() - shown..];
    for (event, y) in last.iter().zip(area.top()..) {
        buffer.set_line(area.x, y, &event_line(event, usize::from(area.width)), area.width);
    }
}

fn event_line(event: &Event, width: usize) -> Line<'static> {
    let time = format!("{:>5} ", clock(event.at));
    let style = match event.tone {
        Tone::Plain => Style::new(),
        Tone::Good => palette::GOOD,
        Tone::Bad => palette::BAD,
    };
    let words = cut_off(&event.words, width.saturating_sub(time.len()));
    Line::from(vec![Span::styled(time, palette::FAINT), Span::styled(words, style)])
}

/// A box over everything else, with the meaning of the keys.
pub(super) fn help(picture: &Picture, area: Rect, buffer: &mut Buffer) {
    let rows = &picture.help;
    if rows.is_empty() {
        return;
    }
    let keys = rows.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    let width_of = |(key, does): &(&str, &str)| match key.is_empty() {
        true => does.chars().count(),
        false => keys + 2 + does.chars().count(),
    };
    let width = rows.iter().map(width_of).max().unwrap_or(0) + 4;
    let size = (area.width.min(width as u16), area.height.min(rows.len() as u16 + 2));
    let place = Rect {
        x: area.x + (area.width - size.0) / 2,
        y: area.y + (area.height - size.1) / 2,
        width: size.0,
        height: size.1,
    };
    Clear.render(place, buffer);
    let frame = Block::bordered().title(" keys ");
    let inner = frame.inner(place);
    frame.render(place, buffer);
    for ((key, does), y) in rows.iter().zip(inner.top()..inner.bottom()) {
        let key = if key.is_empty() { String::new() } else { format!("{key:keys$}  ") };
        let line = Line::from(vec![Span::raw(" "), Span::styled(key, palette::STRONG), Span::raw(*does)]);
        buffer.set_line(inner.x, y, &line, inner.width);
    }
}

/// Rows that the keys take.
pub(super) fn keys_height(picture: &Picture, width: u16) -> u16 {
    key_rows(picture, width).len() as u16
}

/// The keys, in as many rows as needed.
pub(super) fn keys(picture: &Picture, area: Rect, buffer: &mut Buffer) {
    buffer.set_style(area, palette::BAR);
    for (row, y) in key_rows(picture, area.width).iter().zip(area.top()..area.bottom()) {
        let mut x = area.x + 1;
        for (key, word) in row {
            let bold = Style::new().add_modifier(Modifier::BOLD);
            x = buffer.set_stringn(x, y, key, usize::from(area.right().saturating_sub(x)), bold).0;
            let word = format!(" {word}  ");
            x = buffer.set_stringn(x, y, word, usize::from(area.right().saturating_sub(x)), Style::new()).0;
        }
    }
}

fn key_rows(picture: &Picture, width: u16) -> Vec<Vec<(&'static str, &'static str)>> {
    let mut rows = Vec::new();
    let mut used = 0;
    for (key, word) in &picture.keys {
        let length = key.chars().count() + word.chars().count() + 3;
        // A row ends with the two spaces after its last word.
        if rows.is_empty() || used + length > usize::from(width) + 1 {
            rows.push(Vec::new());
            used = 0;
        }
        used += length;
        if let Some(row) = rows.last_mut() {
            row.push((*key, *word));
        }
    }
    rows
}

/// A text in at most `width` columns.
fn cut_off(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        short.push('…');
    }
    short
}
