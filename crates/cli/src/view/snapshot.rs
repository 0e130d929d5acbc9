//! A picture as plain text, for files and pipes: the same numbers, without a terminal.

use std::fmt::Write as _;

use super::{
    map,
    picture::{Cells, Condition, Picture, Region},
    words::count,
};

/// Regions, links and limits, a line each.
pub fn text(picture: &Picture) -> String {
    let mut text = String::new();
    let unit = picture.budget.unit;
    let mut regions = vec![
        ["region", "state", "share", "own", "lent", "borrowed", "admitted/s", "denied/s", "demand/s"]
            .map(str::to_owned),
    ];
    regions.extend(picture.regions.iter().map(|region| region_row(region, unit)));
    if !picture.budget.name.is_empty() {
        // Writing to a string cannot fail.
        let mut budget = format!("{}: {}", picture.budget.name, picture.budget.words);
        budget.retain(|letter| !letter.is_control());
        let _ = writeln!(text, "{budget}");
    }
    table(&mut text, &regions, 2);
    if !picture.links.is_empty() {
        let links: Vec<_> = picture.links.iter().map(|link| map::words(picture, link)).collect();
        let mut links = links.join(", ");
        links.retain(|letter| !letter.is_control());
        let _ = writeln!(text, "\nlinks: {links}");
    }
    if !picture.limits.is_empty() {
        text.push('\n');
        let mut limits = vec![["limit", "budget", "admitted/s", "denied/s"].map(str::to_owned)];
        limits.extend(picture.limits.iter().map(|row| {
            [row.name.clone(), row.budget.clone(), row.admitted.to_string(), row.denied.to_string()]
        }));
        table(&mut text, &limits, 2);
    }
    if let Some(cells) = &picture.cells {
        text.push_str(&cells_text(&picture.budget.name, cells));
    }
    text
}

/// The cells of a limit with the most requests lately, and those with the most denials.
fn cells_text(limit: &str, cells: &Cells) -> String {
    let mut text = String::new();
    for (title, rows) in [("asked for most", &cells.hottest), ("denied most", &cells.offenders)] {
        let mut lines = vec![[format!("{limit}, {title}"), "of late, at most".to_owned()]];
        lines.extend(rows.iter().map(|row| [row.name(), row.counted()]));
        if rows.is_empty() {
            lines.push(["nobody".to_owned(), String::new()]);
        }
        text.push('\n');
        table(&mut text, &lines, 1);
    }
    if !cells.fault.is_empty() {
        let fault: String = cells.fault.chars().filter(|letter| !letter.is_control()).collect();
        text.push_str(&format!("\n{fault}\n"));
    }
    text
}

fn region_row(region: &Region, unit: &str) -> [String; 9] {
    let units = |number: u64| format!("{}{unit}", count(number));
    let state = match &region.condition {
        Condition::Up => "up".to_owned(),
        Condition::Waiting(why) => format!("waits ({why})"),
        Condition::Down => "down".to_owned(),
        Condition::Unasked(heard) => format!("not asked; {heard}"),
    };
    if region.condition != Condition::Up {
        let mut row: [String; 9] = Default::default();
        (row[0], row[1]) = (region.name.clone(), state);
        return row;
    }
    let share = region.share;
    [
        region.name.clone(),
        state,
        units(share.effective()),
        units(share.kept()),
        units(share.lent),
        units(share.borrowed),
        region.admitted.to_string(),
        region.denied.to_string(),
        region.demand.map_or("?".to_owned(), |demand| demand.to_string()),
    ]
}

/// A table. The first `words` columns are flush left, the numbers after them flush right.
fn table<const COLUMNS: usize>(text: &mut String, rows: &[[String; COLUMNS]], words: usize) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    for row in rows {
        let mut line = String::new();
        for (column, (field, width)) in row.iter().zip(widths).enumerate() {
            let _ = if column < words {
                write!(line, "{field:width$}  ")
            } else {
                write!(line, "{field:>width$}  ")
            };
        }
        // A node's texts may hold anything; a terminal would obey control characters.
        line.retain(|letter| !letter.is_control());
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{examples, picture},
        *,
    };

    #[test]
    fn cells_are_listed_with_the_error_of_their_counts() {
        let row = |key: &str, count, error| picture::CellRow {
            key: key.to_owned(),
            is_cut: error > 8,
            count,
            error,
        };
        let cells = Cells {
            fault: "no answer from us".to_owned(),
            hottest: vec![row("user=ann", 640, 0), row("user=bob", 64, 9)],
            offenders: Vec::new(),
        };
        assert_eq!(
            cells_text("demo/per-user", &cells),
            "
demo/per-user, asked for most  of late, at most
user=ann                                    640
user=bob…                               64 (-9)

demo/per-user, denied most  of late, at most
nobody

no answer from us
"
        );
    }

    #[test]
    fn a_snapshot_shows_everything_as_lines() {
        assert_eq!(
            text(&examples::broken()),
            "\
demo/budget: token_bucket 1000/s burst 1000
region  state                         share    own  lent  borrowed  admitted/s  denied/s  demand/s
eu      up                            333/s  333/s   0/s       0/s         333       867      1200
us      waits (has no catalogue yet)
ap      down

links: eu x us, us~ap quiet, eu>ap

limit          budget                          admitted/s  denied/s
demo/budget    token_bucket 1000/s burst 1000        1000       500
demo/per-user  token_bucket 10/s burst 20              34        20
demo/exports   fixed_window 600 per 1m                 10         0
"
        );
    }
}
