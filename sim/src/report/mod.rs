//! One page that shows a run to a reader who has never seen a split brain. The page is self-contained, has no
//! script, and adapts to light and dark.

mod faults;
mod panels;
mod plot;

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use self::{
    faults::{Kind, moments, troubles},
    panels::Page,
    plot::{escaped, grouped},
};
use crate::{
    NAMES,
    bound::Bound,
    run::{Counts, Record},
    scenarios::Scenario,
    series::{CellSeries, Series, cell_of},
    trace::Totals,
    world::Answer,
};

const STYLE: &str = include_str!("style.css");

/// What another way of limiting would have admitted in the same cell: a line for comparison.
#[derive(Clone, Debug)]
pub struct Rival {
    /// One word, for the end of its line.
    pub short: &'static str,
    /// The label of the line.
    pub key: &'static str,
    /// A sentence about it.
    pub words: &'static str,
    /// Units admitted until each sample.
    pub admitted: Vec<u64>,
}

/// The cell that a page shows. A cell that is the only one of its limit comes first, then a bucket, and then
/// the cell with the most admissions.
pub fn main_cell(series: &Series) -> Option<&CellSeries> {
    let admitted = |cell: &&CellSeries| {
        let units: u64 = series.answers.iter().map(|answer| cell.passed(answer)).sum();
        // A rate comes before windows, since it is lent.
        (cell.by.is_empty(), matches!(cell.bound, Bound::Bucket { .. }), units)
    };
    series.cells.iter().max_by_key(admitted)
}

/// A run that a page shows.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The scenario of the run.
    pub scenario: &'a Scenario,
    /// The seed of the run.
    pub seed: u64,
    /// The arguments of `acequia-sim` that repeat the run.
    pub again: &'a str,
    /// The record of the run.
    pub record: &'a Record,
    /// The run over time.
    pub series: &'a Series,
    /// The line to compare with.
    pub rival: Option<&'a Rival>,
}

/// The page of a run; `None` if the run has no limit that can be shown.
pub fn page(shown: Shown<'_>) -> Option<String> {
    let Shown { scenario, seed, again, record, series, rival } = shown;
    let cell = main_cell(series)?;
    let regions = record.plan.regions;
    let faults = record.plan.schedule.faults();
    let happened = faults.iter().filter(|(at, _)| *at <= series.ended).cloned().collect::<Vec<_>>();
    let page = Page {
        series,
        regions,
        noun: if record.plan.guard_percent.is_some() { "node" } else { "region" },
        troubles: troubles(&happened, regions, record.plan.latency_ms.1, series),
        moments: moments(&happened),
    };
    let (name, story) = (scenario.name, escaped(scenario.story));
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"/>\n<title>{name}, seed {seed}</title>\n<style>\n{STYLE}</style>\n\
         </head>\n<body>\n<main>\n<h1>{}</h1>\n<p class=\"story\">{story}</p>\n",
        title(name)
    );
    let noun = page.noun;
    html += &verdict(record, series, cell, noun);
    html += &introduction(&page, cell);
    section(&mut html, "What was broken", &faults_words(&page), &page.faults());
    section(
        &mut html,
        &format!("Admitted, all {noun}s together"),
        &admitted_words(cell, rival, noun),
        &page.admitted(cell, rival),
    );
    section(
        &mut html,
        &format!("What each {noun} might use"),
        &shares_words(cell, &page),
        &page.shares(cell),
    );
    section(&mut html, "What callers were told", &answers_words(noun), &page.answers());
    html += &timeline(&page, &happened);
    html += &figures(record, series, noun);
    let _ = write!(
        html,
        "<h2>Again</h2>\n<p>The same seed gives the same history, to the last packet.</p>\n<pre>cargo run --release -p \
         acequia-sim -- {again} --report out.html</pre>\n<p class=\"small\">Trace {:016x}. Times are true \
         time of the simulation, which no node in it knows.</p>\n</main>\n</body>\n</html>\n",
        record.hash,
        again = escaped(again)
    );
    Some(html)
}

fn answers_words(noun: &str) -> String {
    let why = match noun {
        "node" => {
            "Nobody waits for the store for more than three milliseconds, so one that is gone silences nobody"
        }
        _ => "Nobody waits for another region to be answered, so a cut silences nobody",
    };
    format!(
        "Each bar is a second. {why}; it is denied what the {noun} has no share for. Only a {noun} that is down does not answer."
    )
}

fn section(html: &mut String, title: &str, words: &str, figure: &str) {
    // Writing to a string cannot fail.
    let _ = write!(html, "<h2>{title}</h2>\n<p>{words}</p>\n{figure}");
}

fn title(name: &str) -> String {
    let mut letters = name.replace('-', " ").chars().collect::<Vec<_>>();
    if let Some(first) = letters.first_mut() {
        *first = first.to_ascii_uppercase();
    }
    letters.into_iter().collect()
}

fn verdict(record: &Record, series: &Series, cell: &CellSeries, noun: &str) -> String {
    if !record.findings.is_empty() {
        let found: Vec<_> = record.findings.iter().map(|finding| escaped(finding)).collect();
        return format!("<p class=\"verdict found\"><strong>Found:</strong> {}</p>\n", found.join("; "));
    }
    let (admitted, allowed) = (total(series, cell), cell.allowed.last().copied().unwrap_or(0));
    let name = escaped(&cell.limit.spec.name);
    format!(
        "<p class=\"verdict\"><strong>Never over.</strong> {} units were admitted under the limit <em>{name}</em>, by all \
         {noun}s together, of the {} that it allowed: {}. It was not exceeded over any stretch of time, long or short.</p>\n",
        grouped(admitted),
        grouped(allowed),
        percent(admitted, allowed)
    )
}

/// A description of what the page shows.
fn introduction(page: &Page<'_>, cell: &CellSeries) -> String {
    let names = &NAMES[..page.regions];
    let is_asked = |answer: &&Answer| cell.is_asked(&answer.question) && answer.reply.is_of_check();
    let asked: u64 = page.series.answers.iter().filter(is_asked).map(|answer| answer.question.cost).sum();
    let seconds = page.series.ended.as_secs_f64().max(1.0);
    let demand = format!("{:.0} units a second", asked as f64 / seconds);
    if page.noun == "node" {
        return format!(
            "<p>Imagine one budget, <strong>{}</strong>, and {} nodes that spend it: {}. Callers ask them for {demand}. Each node must \
             answer at once, from what it knows.</p>\n<p>Here, every node keeps a small part of the budget for itself, and takes leases of \
             the rest from a store that all of them share. The store takes down what it gives before it gives it, and what it forgets \
             it gives to nobody until every node has told what it holds. Look for two things below: the coloured area never rises above \
             the line of the limit; and callers are answered, whatever becomes of the store.</p>\n",
            escaped(&cell.bound.to_string()),
            NUMBERS[page.regions.min(5)],
            listed(names)
        );
    }
    let mut text = format!(
        "<p>Imagine one budget, <strong>{}</strong>, and {} places that spend it: {}. Each has callers of its own, all over \
         the world; together they ask for {demand}. Each place must answer at once, from what it knows. ",
        escaped(&cell.bound.to_string()),
        NUMBERS[page.regions.min(5)],
        listed(names)
    );
    let splits = page.troubles.iter().filter(|trouble| trouble.is_split);
    let longest = splits.max_by_key(|trouble| trouble.until - trouble.from);
    let is_cut = page.troubles.iter().any(|trouble| matches!(trouble.kind, Kind::Cut(_) | Kind::OneWay(_)));
    if let Some(longest) = longest {
        let _ = write!(
            text,
            "Now the network breaks: <strong>{}</strong>, from {} to {}. Neither side hears what the other admits. This is \
             a <em>split brain</em>. ",
            escaped(longest.what.trim_end_matches(" cut")),
            time(longest.from),
            time(longest.until),
        );
    } else if is_cut {
        text.push_str("Now links between them break, and places no longer hear what others admit. ");
    }
    if is_cut {
        text.push_str(
            "If each went on by what it has heard of, each would spend the whole budget, and together they would admit too \
             much. If each stopped to be safe, callers would be turned away for nothing.",
        );
    }
    text.push_str(
        "</p>\n<p>Here, every place owns a <em>share</em> of the budget, and lends from it to a place that needs more. A \
         share can be in one place only, so it needs no message to be kept: all shares together are the budget, whatever \
         the network does. ",
    );
    text.push_str(if is_cut {
        "Look for three things below: the coloured area never rises above the line of the limit; no new loan crosses a cut \
         while it lasts; and callers on both sides are still answered.</p>\n"
    } else {
        "Look for two things below: the coloured area never rises above the line of the limit, and loans go where more is \
         asked for.</p>\n"
    });
    text
}

const NUMBERS: [&str; 6] = ["no", "one", "two", "three", "four", "five"];

fn faults_words(page: &Page<'_>) -> String {
    if page.troubles.is_empty() && page.moments.is_empty() {
        return "Nothing: this is what a good day looks like.".to_owned();
    }
    "Time runs from left to right, as in all plots below. Where nothing passes between some regions, it is shaded in all of \
     them. A bar <em>a | b</em> cuts a from b; a diamond is something that happens at once."
        .to_owned()
}

fn admitted_words(cell: &CellSeries, rival: Option<&Rival>, noun: &str) -> String {
    let by = cell.by.iter().map(|(key, value)| format!(" for {} {}", escaped(key), escaped(value)));
    let mut words = format!(
        "Units admitted since the start under the limit <em>{}</em>{}, one {noun}'s stacked on the other's. The line is \
         the most that may be admitted by then.",
        escaped(&cell.limit.spec.name),
        by.collect::<String>()
    );
    if let Some(rival) = rival {
        let _ = write!(words, " The dashed line is {}", escaped(rival.words));
    }
    words
}

fn shares_words(cell: &CellSeries, page: &Page<'_>) -> String {
    let what = match cell.bound {
        Bound::Bucket { .. } => "of the rate",
        Bound::Window { .. } => "of the window that is open",
    };
    if page.noun == "node" {
        return format!(
            "How much {what} each node might spend: what it keeps for itself (dotted), and what it has leased of the store. A lease that \
             is not renewed ends by itself after a minute and a quarter."
        );
    }
    let mut words = format!(
        "How much {what} each region might spend: its own part (dotted), and more or less than that by loans. A loan that is \
         not renewed ends by itself, for the borrower first. "
    );
    words.push_str(if page.has_arrows(cell) {
        "An arrow is a loan, from the region that lends to the one that borrows, at the time when it was given; small ones, \
         and those that cancel each other, are left out."
    } else {
        "In this run there was no loan to speak of: all regions ask for about as much."
    });
    words
}

fn timeline(page: &Page<'_>, happened: &[(Duration, crate::schedule::Fault)]) -> String {
    let mut events: Vec<(Duration, String)> = Vec::new();
    for trouble in &page.troubles {
        if let Kind::Down(place) = trouble.kind {
            events.push((trouble.from, format!("{} does not run", NAMES[place])));
            if trouble.until < page.series.ended {
                events.push((trouble.until, format!("{} runs again", NAMES[place])));
            }
        } else {
            events.push((trouble.from, trouble.what.clone()));
            if trouble.until < page.series.ended {
                events.push((trouble.until, format!("{}: over", trouble.what)));
            }
        }
    }
    events.extend(page.moments.iter().map(|moment| (moment.at, moment.what.clone())));
    events.extend(happened.iter().filter_map(|(at, fault)| {
        use crate::schedule::Fault;
        matches!(fault, Fault::Heal | Fault::CrashAtWrite(..) | Fault::CopyDisk(_) | Fault::Stop(_))
            .then(|| (*at, fault.to_string()))
    }));
    events.sort();
    if events.is_empty() {
        return String::new();
    }
    let mut html = "<h2>What happened, in order</h2>\n<table>\n".to_owned();
    for (at, what) in events {
        let _ = writeln!(html, "<tr><td class=\"t\">{}</td><td>{}</td></tr>", time(at), escaped(&what));
    }
    html + "</table>\n"
}

fn figures(record: &Record, series: &Series, noun: &str) -> String {
    let mut html = "<h2>Figures</h2>\n<div class=\"wide\"><table>\n<tr><th>limit</th><th>allows</th><th \
                    class=\"n\">cells</th><th class=\"n\">admitted</th><th class=\"n\">of at most</th><th \
                    class=\"n\">used</th></tr>\n"
        .to_owned();
    for cell in &series.cells {
        let asked = series.answers.iter().filter_map(|answer| cell_of(&cell.limit, &answer.question));
        let cells = asked.collect::<BTreeSet<_>>().len().max(1) as u64;
        let allowed = cell.allowed.last().copied().unwrap_or(0) * cells;
        let of_limit = |answer: &Answer| -> u64 {
            let passed = answer.reply.passed().unwrap_or(&[]).iter();
            passed.filter(|(name, _)| *name == cell.limit.spec.name).map(|(_, units)| *units).sum()
        };
        let admitted: u64 = series.answers.iter().map(of_limit).sum();
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{cells}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td \
             class=\"n\">{}</td></tr>",
            escaped(&cell.limit.spec.name),
            cell.bound,
            grouped(admitted),
            grouped(allowed),
            percent(admitted, allowed)
        );
    }
    let _ = writeln!(
        html,
        "</table></div>\n<div class=\"wide\"><table>\n<tr><th>{noun}</th><th class=\"n\">questions</th><th \
         class=\"n\">allowed</th><th class=\"n\">denied</th><th class=\"n\">not answered</th></tr>"
    );
    let mut all = Counts::default();
    for (name, counts) in &record.regions {
        let _ = html.write_str(&row(name, counts));
        all.allowed += counts.allowed;
        all.denied += counts.denied;
        all.silent += counts.silent;
    }
    html += &row("together", &all);
    let Totals { events, packets, packet_bytes: bytes } = record.totals;
    let decisions = (all.allowed + all.denied).max(1);
    html.push_str("</table></div>\n<p>");
    if noun == "region" {
        let _ = write!(
            html,
            "Regions sent each other {} packets of {} kB in all, {} bytes for each answer. ",
            grouped(packets),
            grouped(bytes / 1_000),
            grouped(bytes / decisions),
        );
    }
    let (events, seconds) = (grouped(events), series.ended.as_secs_f64());
    let _ = writeln!(html, "{events} events were recorded in {seconds:.0} s of simulated time.</p>");
    html
}

fn row(name: &str, counts: &Counts) -> String {
    let questions = counts.allowed + counts.denied + counts.silent;
    let numbers = [questions, counts.allowed, counts.denied, counts.silent];
    let cells = numbers.map(|number| format!("<td class=\"n\">{}</td>", grouped(number))).concat();
    format!("<tr><td>{name}</td>{cells}</tr>\n")
}

fn total(series: &Series, cell: &CellSeries) -> u64 {
    series.answers.iter().map(|answer| cell.passed(answer)).sum()
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}

fn time(at: Duration) -> String {
    format!("{:.1} s", at.as_secs_f64())
}

fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
