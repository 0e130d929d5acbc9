//! Pictures for tests, and the expected text of two of them.

use std::time::Duration;

use super::picture::*;

fn region(name: &str, share: (u64, u64, u64), numbers: (u64, u64, u64)) -> Region {
    let (standing, lent, borrowed) = share;
    let (admitted, denied, demand) = numbers;
    Region {
        name: name.to_owned(),
        share: Share { standing, lent, borrowed },
        admitted,
        denied,
        demand: Some(demand),
        ..Region::default()
    }
}

fn link(from: usize, to: usize, flow: Flow) -> Link {
    let round_trip = (flow == Flow::Open).then_some(Duration::from_millis(80));
    Link { from, to, flow, round_trip, is_chosen: (from, to) == (0, 1) }
}

fn history(columns: usize) -> Vec<Column> {
    let column = |number: usize| {
        let hot = number / 20 % 3;
        let admitted = (0..3).map(|place| if place == hot { 700 } else { 150 }).collect();
        Column { admitted, budget: 1_000, mark: if number.is_multiple_of(20) { "heat" } else { "" } }
    };
    (0..columns).map(column).collect()
}

fn row(name: &str, budget: &str, admitted: u64, denied: u64) -> Row {
    Row { name: name.to_owned(), budget: budget.to_owned(), admitted, denied, ..Row::default() }
}

fn event(seconds: u64, tone: Tone, words: &str) -> Event {
    Event { at: Duration::from_secs(seconds), tone, words: words.to_owned() }
}

/// All is well, and most of the demand is in eu.
pub(super) fn connected() -> Picture {
    let mut eu = region("eu", (333, 0, 367), (700, 500, 1_200));
    (eu.is_hot, eu.is_authority) = (true, true);
    let mut us = region("us", (333, 183, 0), (150, 0, 150));
    us.is_chosen = true;
    Picture {
        title: "acequia demo".to_owned(),
        subtitle: "three regions, real servers, one budget".to_owned(),
        elapsed: Duration::from_secs(84),
        budget: Budget {
            name: "demo/budget".to_owned(),
            words: "token_bucket 1000/s burst 1000".to_owned(),
            units: 1_000,
            unit: "/s",
            burst: Some(1_000),
        },
        regions: vec![eu, us, region("ap", (333, 183, 0), (150, 0, 150))],
        links: vec![link(0, 1, Flow::Open), link(1, 2, Flow::Open), link(0, 2, Flow::Open)],
        history: history(200),
        column: Duration::from_millis(500),
        limits: vec![
            row("demo/budget", "token_bucket 1000/s burst 1000", 1_000, 500),
            row("demo/per-user", "token_bucket 10/s burst 20", 34, 20),
            row("demo/exports", "fixed_window 600 per 1m", 10, 0),
        ],
        chosen_limit: Some(0),
        events: vec![
            event(2, Tone::Good, "three regions share 1000/s"),
            event(72, Tone::Plain, "the heat moves to eu"),
            event(73, Tone::Good, "eu has borrowed 367/s after 190 ms"),
        ],
        verdict: Verdict::Counted { units_over: 0, watched: Duration::from_secs(84), used: Some(0.973) },
        keys: vec![
            ("1-3", "link"),
            ("c", "cut"),
            ("o", "one way"),
            ("m", "mend"),
            ("s", "split"),
            ("tab", "region"),
            ("k", "kill"),
            ("r", "restart"),
            ("h", "heat"),
            ("+/-", "budget"),
            ("d/D", "delay"),
            ("space", "pause"),
            ("q", "quit"),
        ],
        ..Picture::default()
    }
}

/// eu is cut off, and ap is dead.
pub(super) fn broken() -> Picture {
    let mut picture = connected();
    picture.regions[0] = Region { is_hot: true, ..region("eu", (333, 0, 0), (333, 867, 1_200)) };
    picture.regions[1].condition = Condition::Waiting("has no catalogue yet".to_owned());
    picture.regions[2].condition = Condition::Down;
    picture.links = vec![link(0, 1, Flow::Cut), link(1, 2, Flow::Quiet), link(0, 2, Flow::Forth)];
    picture.events.push(event(80, Tone::Bad, "ap is killed: kill -9"));
    picture.is_paused = true;
    picture.verdict = Verdict::Counted { units_over: 12, watched: Duration::from_secs(84), used: None };
    picture
}

/// More regions than the map draws links for.
pub(super) fn many() -> Picture {
    let mut picture = connected();
    picture.regions = (0..6).map(|n| region(&format!("r{n}"), (166, 0, 0), (100, 0, 100))).collect();
    picture.regions[5].condition = Condition::Unasked("r0 hears it".to_owned());
    picture.links = vec![link(0, 1, Flow::Open), link(1, 2, Flow::Cut)];
    picture.events.clear();
    picture
}

/// `connected` in 80 columns and 24 rows.
pub(super) const CONNECTED_80_24: &str = "
 acequia demo  three regions, real servers, one budget                     1:24
╭ eu ────────── hot ╮        ┏ us ━━━━━━━━━━━ up ┓         ╭ ap ─────────── up ╮
│██████▓▓▓▓▓▓▓······│        ┃███░░░·············┃         │███░░░·············│
│share 700/s=333+367│ 80 ms  ┃share 150/s=333-183┃  80 ms  │share 150/s=333-183│
│admitted      700/s│━━━━━━━━┃admitted      150/s┃━━━━━━━━━│admitted      150/s│
│denied        500/s│  [1]   ┃denied          0/s┃    2    │denied          0/s│
│demand       1200/s│        ┃demand        150/s┃         │demand        150/s│
╰──────── authority ╯        ┗━━━━━━━━━━━━━━━━━━━┛         ╰───────────────────╯
          ╰━━ 3 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 80 ms ━━━╯
admitted 1000/s of 1000/s + burst 1000  demo/budget  █ own ▓ borrowed ░ lent out
        ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
  1000  ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃████████████████████▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃
        ▆▆▆▆▆▆▆▆▆▆▆▆████████████████████████████████████████▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆
        ████████████████████████████████▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂████████████████████
        ████████████▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅████████████████████
     0  ────────────heat────────────────heat────────────────heat────────────────
never over: 0 units above the budget in any interval of 1:24, used 97.3 %
limit          admitted/s    denied/s      0:02 three regions share 1000/s
demo/budget          1000         500      1:12 the heat moves to eu
demo/per-user          34          20      1:13 eu has borrowed 367/s after 190…
demo/exports           10           0

 1-3 link  c cut  o one way  m mend  s split  tab region  k kill  r restart
 h heat  +/- budget  d/D delay  space pause  q quit
";

/// `broken` in 100 columns and 30 rows.
pub(super) const BROKEN_100_30: &str = "
 acequia demo  three regions, real servers, one budget            stands still: space goes on  1:24
╭ eu ───────────────── hot ╮        ┏ us ━━━━━━━━━━━━━━━ waits ┓        ╭ ap ──────────────── down ╮
│█████████·················│        ┃has no catalogue yet      ┃        │nobody answers here       │
│share                333/s│  cut   ┃                          ┃ quiet  │                          │
│admitted             333/s│╌╌╌✗╌╌╌╌┃                          ┃╍╍╍╍╍╍╍╍│                          │
│denied               867/s│  [1]   ┃                          ┃   2    │                          │
│demand              1200/s│        ┃                          ┃        │                          │
╰──────────────────────────╯        ┗━━━━━━━━━━━━━━━━━━━━━━━━━━┛        ╰──────────────────────────╯
              ╰━━ 3 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ one way ━━▶╯
admitted 633/s of 1000/s + burst 1000  demo/budget                       █ own ▓ borrowed ░ lent out
        ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
  1000  ████████████████████████████████████████████████████████████████████████████████████████████
        ████████████▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆████████████████████▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆
        ████████████▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅████████████████████████████████████████▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅
        ████████████████████████████████████████████████████████████████████████████████████████████
        ████████████████████████████████████████████████████████████████████████████████████████████
        ▃▃▃▃▃▃▃▃▃▃▃▃████████████████████████████████████████▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃████████████████████
        ▂▂▂▂▂▂▂▂▂▂▂▂████████████████████▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂████████████████████
        ████████████████████████████████████████████████████████████████████████████████████████████
     0  ────────────heat────────────────heat────────────────heat────────────────heat────────────────
OVER: 12 units above the budget
limit          admitted/s    denied/s                0:02 three regions share 1000/s
demo/budget          1000         500                1:12 the heat moves to eu
demo/per-user          34          20                1:13 eu has borrowed 367/s after 190 ms
demo/exports           10           0                1:20 ap is killed: kill -9



 1-3 link  c cut  o one way  m mend  s split  tab region  k kill  r restart  h heat  +/- budget
 d/D delay  space pause  q quit
";
