//! A picture as plain text, for files and pipes: the same numbers, without a terminal.

use std::fmt::Write as _;

use super::{
    map,
    picture::{Condition, Picture, Region},
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

/// Columns under each other: the first `words` of them are flush left, the numbers after them right.
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
        // What a node says may hold anything; a terminal would obey it.
        line.retain(|letter| !letter.is_control());
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::{super::examples, *};

    #[test]
    fn everything_is_a_line() {
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
