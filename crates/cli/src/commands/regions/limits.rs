//! A region's part of each limit, and when parts of it end.

use acequia_api::acequia::v1::{Holding, LimitStatus, NodeStatus, limit_status::Kind};

use crate::commands::people::{Align, Cell, Colour, Paint, a_second, duration, held, plain, table};

const COLUMNS: [(&str, Align); 11] = [
    ("limit", Align::Left),
    ("budget", Align::Left),
    ("cells", Align::Right),
    ("standing", Align::Right),
    ("lent", Align::Right),
    ("borrowed", Align::Right),
    ("may use", Align::Right),
    ("left", Align::Right),
    ("demand", Align::Right),
    ("admitted here", Align::Right),
    ("everywhere", Align::Right),
];

/// Explains the columns whose titles do not say enough.
const MEANING: &str = "\
Shares, left and demand are of the cells that are shared with other regions now, all together. Admitted here is
since this process started; everywhere is since the limit began, as far as it was heard: at least so much.
";

/// A table of all limits, and of what ends when; empty if there are no limits.
pub(super) fn limits(status: &NodeStatus, paint: Paint) -> String {
    if status.limits.is_empty() {
        return String::new();
    }
    let title = COLUMNS.map(|(title, _)| Cell::new(title).coloured(Colour::Bold));
    let rows: Vec<_> = std::iter::once(title).chain(status.limits.iter().map(row)).collect();
    let mut text = table(&rows, COLUMNS.map(|(_, align)| align), 0, paint);
    text.push_str(MEANING);
    let ends: Vec<_> = status.limits.iter().flat_map(|limit| ends(limit, status.wall_ns)).collect();
    if !ends.is_empty() {
        text.push('\n');
        ends.iter().for_each(|end| text.push_str(&format!("{}\n", plain(end))));
    }
    text
}

fn row(limit: &LimitStatus) -> [Cell; 11] {
    let part = |holding| Cell::new(part(limit.kind(), holding));
    [
        Cell::new(path(limit)),
        Cell::new(&limit.budget),
        Cell::new(limit.cells.to_string()),
        part(limit.standing),
        part(limit.lent),
        part(limit.borrowed),
        part(limit.effective),
        Cell::new(limit.left.to_string()),
        Cell::new(a_second(limit.demand_milli)),
        Cell::new(limit.admitted_units.to_string()),
        Cell::new(limit.admitted_everywhere.to_string()),
    ]
}

fn path(limit: &LimitStatus) -> String {
    format!("{}/{}", limit.domain, limit.name)
}

fn part(kind: Kind, holding: Option<Holding>) -> String {
    held(kind == Kind::Rate, holding)
}

/// A sentence for each part that ends.
fn ends(limit: &LimitStatus, wall_ns: u64) -> impl Iterator<Item = String> {
    let path = path(limit);
    let loans = limit.loans_end_ms.map(|ms| {
        format!(
            "{path}: of what is borrowed, {}, the first loan ends in {} unless it is renewed",
            part(limit.kind(), limit.borrowed),
            duration(ms)
        )
    });
    let window = (limit.window_end_ns > 0).then(|| {
        match limit.window_end_ns.checked_sub(wall_ns).map(|ns| ns.div_ceil(1_000_000)) {
            Some(ms) if ms > 0 => {
                format!("{path}: the window ends in {}, and what is left then is gone", duration(ms))
            }
            _ => format!("{path}: the window has ended"),
        }
    });
    loans.into_iter().chain(window)
}

#[cfg(test)]
mod tests {
    use super::{
        super::show::examples::{cut, exports, plans},
        *,
    };

    #[test]
    fn every_limit_has_a_line_and_each_end_a_sentence() {
        let mut status = cut();
        status.limits.push(LimitStatus {
            name: "search".to_owned(),
            budget: "sliding_window 10 in 1s".to_owned(),
            kind: Kind::Sliding.into(),
            demand_milli: 1_250,
            ..LimitStatus { domain: "shop".to_owned(), ..LimitStatus::default() }
        });
        assert_eq!(
            limits(&status, Paint::OFF),
            "\
limit         budget                        cells     standing  lent      borrowed        may use  left  demand  admitted here  everywhere
shop/plans    token_bucket 900/s burst 300      1  300/s + 100     -  146.5/s + 44  446.5/s + 144    17   600/s           5467        9000
shop/exports  fixed_window 100 in 1h            1           33     -             -             33    33     0/s              0           0
shop/search   sliding_window 10 in 1s           0            -     -             -              -     0  1.25/s              0           0
Shares, left and demand are of the cells that are shared with other regions now, all together. Admitted here is
since this process started; everywhere is since the limit began, as far as it was heard: at least so much.

shop/plans: of what is borrowed, 146.5/s + 44, the first loan ends in 2.1 s unless it is renewed
shop/exports: the window ends in 20 min 40 s, and what is left then is gone
"
        );
        status.limits.clear();
        assert_eq!(limits(&status, Paint::OFF), "");
    }

    #[test]
    fn a_window_that_has_ended_is_shown_as_ended() {
        let sentences = |wall_ns: u64| ends(&exports(), wall_ns).collect::<Vec<_>>();
        let end = exports().window_end_ns;
        assert_eq!(
            sentences(end - 1),
            ["shop/exports: the window ends in 1 ms, and what is left then is gone"]
        );
        for wall_ns in [end, end + 1, u64::MAX] {
            assert_eq!(sentences(wall_ns), ["shop/exports: the window has ended"]);
        }
    }

    #[test]
    fn a_part_is_written_as_a_rate_and_units() {
        let holding = |rate_milli, units| Some(Holding { rate_milli, units });
        for (kind, holding, text) in [
            (Kind::Rate, holding(300_000, 100), "300/s + 100"),
            (Kind::Rate, holding(1, 0), "0.001/s + 0"),
            (Kind::Rate, holding(199_999, 66), "200/s + 66"),
            (Kind::Rate, holding(0, 5), "0/s + 5"),
            (Kind::Window, holding(0, 5), "5"),
            (Kind::Sliding, holding(0, 5), "5"),
            (Kind::Unspecified, None, "-"),
            (Kind::Rate, holding(u64::MAX, u64::MAX), "18446744073709551.6/s + 18446744073709551615"),
        ] {
            assert_eq!(part(kind, holding), text);
        }
        assert_eq!(plans().kind(), Kind::Rate);
    }
}
