//! Durations, tables and colours: output for people.

use std::fmt::Write as _;

use acequia_api::acequia::v1::Holding;
use jiff::Timestamp;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A duration in at most two units. It is rounded up, so that a caller who waits this long does not come too
/// early.
pub(super) fn duration(ms: u64) -> String {
    // Rounding may reach the next unit: 59 min 59.5 s is 1 h.
    let mut rounded = ms;
    for (from, step) in [(0, 1), (SECOND, 100), (10 * SECOND, SECOND), (HOUR, MINUTE), (DAY, HOUR)] {
        if rounded >= from {
            rounded = rounded.div_ceil(step).saturating_mul(step);
        }
    }
    if rounded < SECOND {
        format!("{rounded} ms")
    } else if rounded < MINUTE && rounded.is_multiple_of(SECOND) {
        format!("{} s", rounded / SECOND)
    } else if rounded < MINUTE {
        format!("{}.{} s", rounded / SECOND, rounded % SECOND / 100)
    } else if rounded < HOUR {
        two_units(rounded / MINUTE, "min", rounded % MINUTE / SECOND, "s")
    } else if rounded < DAY {
        two_units(rounded / HOUR, "h", rounded % HOUR / MINUTE, "min")
    } else {
        two_units(rounded / DAY, "d", rounded % DAY / HOUR, "h")
    }
}

/// So many of a unit, and the rest in a smaller unit if there is one.
fn two_units(count: u64, name: &str, rest: u64, small_name: &str) -> String {
    match rest {
        0 => format!("{count} {name}"),
        _ => format!("{count} {name} {rest} {small_name}"),
    }
}

/// A measured time in microseconds, to about three digits.
pub(super) fn measured(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..100_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        100_000..1_000_000 => format!("{} ms", us / 1_000),
        _ => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}

/// A reading of a wall clock, RFC 3339 in UTC, to the second.
pub(super) fn at(wall_ns: u64) -> String {
    let seconds = i64::try_from(wall_ns / 1_000_000_000).unwrap_or(i64::MAX);
    // 64 bits of nanoseconds end in 2554, and jiff in 9999.
    Timestamp::from_second(seconds).map_or_else(|_| format!("{seconds} s"), |at| at.to_string())
}

/// A part of a limit: a rate and a burst, or units.
pub(super) fn held(has_rate: bool, holding: Option<Holding>) -> String {
    let Holding { rate_milli, units } = holding.unwrap_or_default();
    match (rate_milli, units) {
        (0, 0) => "-".to_owned(),
        (0, units) if !has_rate => units.to_string(),
        (rate_milli, units) => format!("{} + {units}", a_second(rate_milli)),
    }
}

/// Units a second, given in thousandths. From ten on, rounded to a tenth: a third of 600/s is 200/s to
/// people.
pub(super) fn a_second(milli: u64) -> String {
    let milli = if milli < 10_000 { milli } else { milli.saturating_add(50) / 100 * 100 };
    let (whole, rest) = (milli / 1_000, milli % 1_000);
    match rest {
        0 => format!("{whole}/s"),
        rest => format!("{whole}.{}/s", format!("{rest:03}").trim_end_matches('0')),
    }
}

/// A foreign text, made fit for a terminal. Control characters are escaped, so that none moves the cursor and
/// every text stays in its line.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    plain
}

/// A word's colour on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Plain,
    Bold,
    Green,
    Red,
    Yellow,
}

/// Whether to colour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    is_on: bool,
}

impl Paint {
    /// Without colours: for files, pipes and tests.
    pub(super) const OFF: Self = Self { is_on: false };

    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on }
    }

    pub(super) fn word(self, colour: Colour, text: &str) -> String {
        let code = match colour {
            Colour::Plain => None,
            Colour::Bold => Some(1),
            Colour::Red => Some(31),
            Colour::Green => Some(32),
            Colour::Yellow => Some(33),
        };
        match code {
            Some(code) if self.is_on => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// How the words of a column are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    text: String,
    colour: Colour,
}

impl Cell {
    /// A cell; control characters in `text` are escaped.
    pub(super) fn new(text: impl AsRef<str>) -> Self {
        Self { text: plain(text.as_ref()), colour: Colour::Plain }
    }

    pub(super) fn coloured(self, colour: Colour) -> Self {
        Self { colour, ..self }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// A table with two spaces between columns and `indent` spaces before each row, without trailing spaces.
pub(super) fn table<const COLUMNS: usize>(
    rows: &[[Cell; COLUMNS]],
    align: [Align; COLUMNS],
    indent: usize,
    paint: Paint,
) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = " ".repeat(indent);
        for (column, cell) in row.iter().enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            let padding = " ".repeat(widths[column] - cell.width());
            let word = paint.word(cell.colour, &cell.text);
            // Writing to a string cannot fail.
            let _ = match align[column] {
                Align::Left => write!(line, "{gap}{word}{padding}"),
                Align::Right => write!(line, "{gap}{padding}{word}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable_and_rounded_up() {
        for (ms, text) in [
            (0, "0 ms"),
            (1, "1 ms"),
            (840, "840 ms"),
            (1_000, "1 s"),
            (1_001, "1.1 s"),
            (9_901, "10 s"),
            (12_000, "12 s"),
            (12_001, "13 s"),
            (59_001, "1 min"),
            (200_000, "3 min 20 s"),
            (3_599_001, "1 h"),
            (7_500_000, "2 h 5 min"),
            (86_399_000, "1 d"),
            (11 * DAY + 4 * HOUR, "11 d 4 h"),
            (11 * DAY + 4 * HOUR + 1, "11 d 5 h"),
            (30 * DAY, "30 d"),
        ] {
            assert_eq!(duration(ms), text, "{ms}");
        }
        assert!(duration(u64::MAX).ends_with(" h"), "no overflow");
    }

    #[test]
    fn the_latest_possible_time_can_be_written() {
        assert_eq!(at(u64::MAX), "2554-07-21T23:34:33Z");
    }

    #[test]
    fn measured_times_have_about_three_digits() {
        for (us, text) in [
            (0, "0 us"),
            (999, "999 us"),
            (1_000, "1.0 ms"),
            (34_280, "34.2 ms"),
            (320_900, "320 ms"),
            (12_345_678, "12.3 s"),
        ] {
            assert_eq!(measured(us), text, "{us}");
        }
    }

    #[test]
    fn control_characters_from_others_are_escaped() {
        assert_eq!(plain("no é, \x1b[2Jnothing\nmore"), "no é, \\u{1b}[2Jnothing\\nmore");
        let rows = [[Cell::new("a\tb"), Cell::new("c")]];
        assert_eq!(table(&rows, [Align::Left; 2], 0, Paint::OFF), "a\\tb  c\n");
    }

    #[test]
    fn columns_line_up_with_and_without_colours() {
        let rows = [
            [Cell::new("limit").coloured(Colour::Bold), Cell::new("left"), Cell::new("why")],
            [Cell::new("é"), Cell::new("7"), Cell::new("")],
        ];
        let align = [Align::Left, Align::Right, Align::Left];
        assert_eq!(table(&rows, align, 2, Paint::OFF), "  limit  left  why\n  é         7\n");
        assert_eq!(table(&rows, align, 0, Paint::new(true)), "\x1b[1mlimit\x1b[0m  left  why\né         7\n");
    }
}
