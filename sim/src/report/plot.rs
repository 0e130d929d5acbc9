//! The parts of plots: scales, ticks, paths, and text that does not overlap.

use std::fmt::Write as _;

/// The width of a plot with its margins, in its own units.
pub(super) const WIDTH: f64 = 910.0;
/// Where time begins and ends. Left of it is room for numbers, right of it for words.
pub(super) const LEFT: f64 = 72.0;
pub(super) const RIGHT: f64 = WIDTH - 168.0;
/// The approximate width of a letter, in the widest font that the page names.
const LETTER: f64 = 7.4;

/// Maps numbers to positions in a plot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    from: Span,
    to: Span,
}

/// Two ends. Positions may fall from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) first: f64,
    pub(super) last: f64,
}

impl Span {
    /// From 0 to a number.
    pub(super) fn to(last: f64) -> Self {
        Self { first: 0.0, last }
    }

    fn length(self) -> f64 {
        self.last - self.first
    }
}

impl Scale {
    /// Maps a non-empty range of numbers onto a range of positions.
    pub(super) fn new(from: Span, to: Span) -> Self {
        let last = if from.length() > 0.0 { from.last } else { from.first + 1.0 };
        Self { from: Span { last, ..from }, to }
    }

    /// Maps seconds from the start to positions from left to right.
    pub(super) fn of_time(seconds: f64) -> Self {
        Self::new(Span::to(seconds), Span { first: LEFT, last: RIGHT })
    }

    /// The position of a number.
    pub(super) fn at(&self, number: f64) -> f64 {
        let part = (number - self.from.first) / self.from.length();
        self.to.first + part * self.to.length()
    }

    /// About `about` round numbers in the range, which are 1, 2 or 5 times a power of ten apart.
    pub(super) fn ticks(&self, about: usize) -> Vec<f64> {
        let rough = self.from.length() / about.max(1) as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let (first, last) =
            ((self.from.first / step).ceil() as i64, (self.from.last / step + 1e-9).floor() as i64);
        (first..=last).map(|times| times as f64 * step).collect()
    }
}

/// A line through points.
pub(super) fn line(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (place, (x, y)) in points.into_iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(path, "{}{x:.1} {y:.1}", if place == 0 { "M" } else { "L" });
    }
    path
}

/// The area between two lines with the same times.
pub(super) fn area(above: &[(f64, f64)], below: &[(f64, f64)]) -> String {
    if above.is_empty() {
        return String::new();
    }
    line(above.iter().chain(below.iter().rev()).copied()) + "Z"
}

/// The points that a plot needs: the first, the last, and each point that is not on the line between its
/// neighbours.
pub(super) fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let is_bend = |window: &[(f64, f64)]| {
        let [(x0, y0), (x1, y1), (x2, y2)] = [window[0], window[1], window[2]];
        ((y1 - y0) * (x2 - x0) - (y2 - y0) * (x1 - x0)).abs() > 0.02 * (x2 - x0).abs()
    };
    let bends = points.windows(3).filter(|window| is_bend(window)).map(|window| window[1]);
    let last = points.last().filter(|_| points.len() > 1);
    points.first().copied().into_iter().chain(bends).chain(last.copied()).collect()
}

/// Moves labels that are nearer than `gap` apart, by as little as possible, inside `range`. Labels are in
/// order.
pub(super) fn spread(labels: &mut [f64], gap: f64, range: Span) {
    for place in 0..labels.len() {
        let least = if place == 0 { range.first } else { labels[place - 1] + gap };
        labels[place] = labels[place].max(least);
    }
    for place in (0..labels.len()).rev() {
        let most = labels.get(place + 1).map_or(range.last, |next| next - gap);
        labels[place] = labels[place].min(most);
    }
}

/// The approximate width of a label.
pub(super) fn width_of(label: &str) -> f64 {
    label.chars().count() as f64 * LETTER
}

/// A label in as few lines as `width` allows. A word wider than `width` has a line of its own.
pub(super) fn wrapped(label: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in label.split(' ') {
        match lines.last_mut() {
            Some(line) if width_of(line) + width_of(word) + LETTER <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Escapes text for a page.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number with thin spaces between thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202F}');
        }
        text.push(digit);
    }
    text
}

/// Thousandths as a number with at most one decimal.
pub(super) fn milli(milli: u64) -> String {
    let tenths = (milli + 50) / 100;
    if tenths.is_multiple_of(10) {
        (tenths / 10).to_string()
    } else {
        format!("{}.{}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_has_its_ends_at_the_ends_and_round_ticks_between() {
        let scale = Scale::new(Span::to(47.0), Span { first: 100.0, last: 10.0 });
        assert_eq!((scale.at(0.0), scale.at(47.0)), (100.0, 10.0));
        assert_eq!(scale.ticks(5), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(Scale::new(Span::to(0.3), Span::to(1.0)).ticks(3).len(), 4);
        assert_eq!(
            Scale::new(Span::to(0.0), Span::to(1.0)).at(0.0),
            0.0,
            "an empty range is no division by 0"
        );
        assert_eq!(Scale::of_time(60.0).at(60.0), RIGHT);
    }

    #[test]
    fn labels_that_would_overlap_move_apart_and_stay_inside() {
        let mut labels = [10.0, 12.0, 98.0, 99.0];
        spread(&mut labels, 14.0, Span::to(100.0));
        assert_eq!(labels, [10.0, 24.0, 86.0, 100.0]);
        assert!(labels.windows(2).all(|two| two[1] - two[0] >= 14.0));
    }

    #[test]
    fn a_label_without_room_is_wrapped_between_words() {
        assert_eq!(wrapped("a | b cut", width_of("a | b")), ["a | b", "cut"]);
        assert_eq!(wrapped("a | b cut", WIDTH), ["a | b cut"]);
        assert_eq!(wrapped("wide", 1.0), ["wide"]);
    }

    #[test]
    fn points_on_a_line_are_removed() {
        let points = [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (3.0, 2.0), (4.0, 2.0)];
        assert_eq!(thin(&points), [(0.0, 0.0), (2.0, 2.0), (4.0, 2.0)]);
    }

    #[test]
    fn numbers_are_read_as_people_write_them() {
        assert_eq!((grouped(1_234_567).as_str(), grouped(12).as_str()), ("1\u{202F}234\u{202F}567", "12"));
        assert_eq!((milli(13_333), milli(40_000)), ("13.3".to_owned(), "40".to_owned()));
    }
}
