//! The plot of faults.

use std::fmt::Write as _;

use super::{
    super::{
        faults::Kind,
        plot::{WIDTH, escaped, width_of, wrapped},
    },
    Page, framed,
};

/// The height of a row.
const ROW: f64 = 21.0;
/// The gap between a bar or a diamond and its words.
const GAP: f64 = 8.0;

/// A bar or a diamond, and its words.
#[derive(Clone, Copy, Debug)]
struct Mark<'a> {
    /// Where the mark begins and ends; equal for a diamond.
    from: f64,
    until: f64,
    class: &'static str,
    what: &'a str,
}

/// Where the words of a mark are.
#[derive(Clone, Debug, PartialEq)]
struct Words {
    /// More than one line only where the words are below the mark.
    lines: Vec<String>,
    x: f64,
    anchor: &'static str,
    /// The first row of the words, counted from the mark's row.
    below: usize,
}

impl Mark<'_> {
    /// The words to the right of the mark, or to the left; or below it, if neither side has room for all of
    /// them.
    fn words(&self) -> Words {
        let width = width_of(self.what);
        let beside = |x, anchor| Words { lines: vec![self.what.to_owned()], x, anchor, below: 0 };
        if self.until + GAP + width <= WIDTH {
            beside(self.until + GAP, "start")
        } else if self.from - GAP - width >= 0.0 {
            beside(self.from - GAP, "end")
        } else {
            let lines = wrapped(self.what, WIDTH);
            let widest = lines.iter().map(|line| width_of(line)).fold(0.0, f64::max);
            Words { lines, x: self.from.min(WIDTH - widest).max(0.0), anchor: "start", below: 1 }
        }
    }

    /// The stretch of its row that the mark takes, and the stretch that its words take.
    fn room(&self, words: &Words) -> ((f64, f64), (f64, f64)) {
        let widest = words.lines.iter().map(|line| width_of(line)).fold(0.0, f64::max);
        let of_words = match words.anchor {
            "end" => (words.x - widest, words.x),
            _ => (words.x, words.x + widest),
        };
        let of_mark = (self.from - 6.0, self.until + 6.0);
        if words.below > 0 {
            return (of_mark, of_words);
        }
        let both = (of_mark.0.min(of_words.0), of_mark.1.max(of_words.1));
        (both, both)
    }
}

impl Page<'_> {
    /// The faults over time: a bar for each with its words beside it, in as few rows as possible.
    pub(in crate::report) fn faults(&self) -> String {
        let time = self.time();
        let (mut svg, mut rows): (String, Vec<f64>) = Default::default();
        let bars = self.troubles.iter().map(|trouble| {
            let (from, until) = (time.at(trouble.from.as_secs_f64()), time.at(trouble.until.as_secs_f64()));
            let class = match trouble.kind {
                Kind::Cut(_) | Kind::OneWay(_) | Kind::Held(_) => "bar",
                Kind::Down(_) => "bar down",
                Kind::Other => "bar other",
            };
            Mark { from, until: until.max(from + 2.0), class, what: &trouble.what }
        });
        let moments = self.moments.iter().map(|moment| {
            let x = time.at(moment.at.as_secs_f64());
            Mark { from: x, until: x, class: "moment", what: &moment.what }
        });
        let mut all: Vec<_> = bars.chain(moments).collect();
        all.sort_by(|one, other| one.from.total_cmp(&other.from));
        for mark in all {
            let words = mark.words();
            let (of_mark, of_words) = mark.room(&words);
            let last = words.below + words.lines.len() - 1;
            let is_free = |row: usize, from: f64| rows.get(row).is_none_or(|taken| *taken <= from);
            let fits = |row: &usize| {
                is_free(*row, of_mark.0) && (1..=last).all(|below| is_free(row + below, of_words.0))
            };
            let row = (0..).find(fits).unwrap_or(rows.len());
            rows.resize(rows.len().max(row + last + 1), f64::NEG_INFINITY);
            rows[row] = of_mark.1 + GAP;
            rows[row + 1..=row + last].fill(of_words.1 + GAP);
            draw(&mut svg, &mark, &words, row as f64 * ROW + 12.0);
        }
        let height = rows.len() as f64 * ROW + 4.0;
        let shades = self.shades(None, 0.0, height);
        framed(height, "What was broken, and when", &(shades + &svg))
    }
}

fn draw(svg: &mut String, mark: &Mark<'_>, words: &Words, y: f64) {
    let Mark { from, until, class, .. } = mark;
    let top = y - 5.0;
    // Writing to a string cannot fail.
    let _ = match *class {
        "moment" => write!(svg, r#"<path class="head" d="M{from:.1} {top:.1}l5 5l-5 5l-5 -5Z"/>"#),
        class => write!(
            svg,
            r#"<rect class="{class}" x="{from:.1}" y="{top:.1}" width="{:.1}" height="10" rx="2"/>"#,
            until - from
        ),
    };
    for (line, row) in words.lines.iter().zip(words.below..) {
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="{}">{}</text>"#,
            words.x,
            y + 4.5 + row as f64 * ROW,
            words.anchor,
            escaped(line)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(from: f64, until: f64, what: &str) -> Mark<'_> {
        Mark { from, until, class: "bar", what }
    }

    #[test]
    fn words_are_whole_wherever_their_bar_is_and_however_long_they_are() {
        let long = "eu | us, eu | ap, eu | sa, eu | af, us | ap, us | sa, us | af, ap | sa, ap | af cut";
        let longest = format!("{long}; {long}");
        for what in ["eu down", long, &longest] {
            for (from, until) in [(72.0, 74.0), (72.0, 742.0), (400.0, 420.0), (740.0, 742.0)] {
                let mark = mark(from, until, what);
                let words = mark.words();
                let (_, (left, right)) = mark.room(&words);
                assert!(left >= -6.0 && right <= WIDTH, "{left} to {right}: {words:?}");
                assert_eq!(words.lines.join(" "), what);
            }
        }
    }

    #[test]
    fn words_stand_beside_their_bar_where_there_is_room_and_else_below() {
        assert_eq!(mark(72.0, 100.0, "eu down").words().anchor, "start");
        assert_eq!(mark(700.0, 900.0, "eu down").words().anchor, "end");
        let all = mark(72.0, 742.0, "eu, sa, af | us, ap cut, and more than fits beside it");
        assert_eq!((all.words().below, all.words().x), (1, 72.0));
    }
}
