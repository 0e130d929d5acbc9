//! `acequia top`: the regions of a cluster, live.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::Instant,
};

use clap::Args;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tokio::time::{MissedTickBehavior, interval, timeout};

use serde::Serialize;

use super::{
    COULD_NOT_ASK, Output, SUCCESS,
    cells::{self, CellsJson, CellsWatch},
    complain, json_line,
    limit_path::read_limit_path,
    operator::{Admin, Credentials},
};
use crate::{
    screen::{Interrupts, Keyboard, Screen},
    settings::SETTINGS,
    view::{
        overview::{self, Asked},
        picture::{Column, Condition, Picture, Region, Row},
        snapshot,
    },
    watching::Watcher,
};

/// Show the regions of a cluster, live: shares, loans, admissions and denials by region.
///
/// Without a terminal, and with --json, prints one snapshot. Exits with 2 if nobody answers.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia top
  acequia top --address 10.0.0.1:8082 --address 10.1.0.1:8082    both sides of each link
  acequia top --limit shop/per-key --json | jq .cells.offenders  who is denied most")]
pub struct Top {
    /// A node's admin address (listen.admin); several show what each of them sees.
    #[arg(
        long,
        env = "ACEQUIA_ADMIN_ADDR",
        default_value = "127.0.0.1:8082",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    address: Vec<String>,

    #[command(flatten)]
    credentials: Credentials,

    /// The limit to look at; by default the busiest.
    #[arg(long, value_name = "DOMAIN/NAME", value_parser = read_whole_limit)]
    limit: Option<String>,

    /// Print one snapshot as a JSON object.
    #[arg(long)]
    json: bool,
}

/// The name of a limit, without a key.
fn read_whole_limit(text: &str) -> Result<String, String> {
    match read_limit_path(text)?.key.is_empty() {
        true => Ok(text.to_owned()),
        false => Err("a whole limit is looked at, with all its cells: leave the brackets out".to_owned()),
    }
}

impl Top {
    /// Shows the cluster until the user quits, and returns the exit code.
    pub async fn run(self) -> ExitCode {
        if self.address.len() > SETTINGS.top.addresses_max {
            return complain(&format!(
                "at most {} nodes can be watched at once: name fewer",
                SETTINGS.top.addresses_max
            ));
        }
        let connect = || {
            let admins = self.address.iter().map(|address| self.credentials.connect(address));
            admins.collect::<Result<Vec<_>, _>>()
        };
        let (watched, asked) = match (connect(), connect()) {
            (Ok(watched), Ok(asked)) => (watched, asked),
            (Err(fault), _) | (_, Err(fault)) => return complain(&fault.to_string()),
        };
        let watchers =
            watched.into_iter().map(|admin| Watcher::start(admin, SETTINGS.top.reports_every)).collect();
        let mut cluster = Cluster::new(watchers, self.limit);
        if self.json || !io::stdout().is_terminal() {
            return cluster.snapshot(asked, self.json).await;
        }
        cluster.cells = Some(CellsWatch::start(asked));
        match cluster.show().await {
            Ok(()) => ExitCode::from(SUCCESS),
            Err(fault) => complain(&format!("the terminal cannot be drawn on: {fault}")),
        }
    }
}

/// The watched nodes, and the current view.
struct Cluster {
    watchers: Vec<Watcher>,
    nodes: Vec<Asked>,
    history: Vec<Column>,
    columns_until: Instant,
    began: Instant,
    /// The name of the chosen limit; `None` for the busiest.
    chosen: Option<String>,
    is_paused: bool,
    /// Asks for the hottest cells; `None` for a snapshot.
    cells: Option<CellsWatch>,
    /// Whether cells are shown instead of limits.
    shows_cells: bool,
}

impl Cluster {
    fn new(watchers: Vec<Watcher>, chosen: Option<String>) -> Self {
        let node = |watcher: &Watcher| Asked { address: watcher.address.clone(), ..Asked::default() };
        let began = Instant::now();
        Self {
            nodes: watchers.iter().map(node).collect(),
            watchers,
            history: Vec::new(),
            columns_until: began + SETTINGS.top.column,
            began,
            chosen,
            is_paused: false,
            cells: None,
            shows_cells: false,
        }
    }

    /// Takes in the nodes' reports.
    fn listen(&mut self) {
        for (watcher, node) in self.watchers.iter_mut().zip(&mut self.nodes) {
            let Some(sight) = watcher.news() else { continue };
            node.fault = sight.fault;
            if let Some(status) = sight.status {
                if node.fault.is_empty() {
                    node.gauge.report(&status);
                }
                node.status = Some(status);
            }
        }
    }

    fn picture(&self) -> Picture {
        let mut picture = overview::picture(&self.nodes, self.chosen.as_deref());
        picture.title = "acequia top".to_owned();
        picture.subtitle = self.subtitle();
        picture.elapsed = self.began.elapsed();
        picture.history = self.history.clone();
        picture.column = SETTINGS.top.column;
        picture.keys =
            vec![("↑/↓", "limit"), ("b", "busiest"), ("c", "cells"), ("space", "pause"), ("q", "quit")];
        if let Some(cells) = self.cells.as_ref().filter(|_| self.shows_cells) {
            cells.want(Some(&picture.budget.name).filter(|name| !name.is_empty()).map(String::as_str));
            picture.cells = Some(cells.of(&picture.budget.name));
        }
        picture
    }

    fn subtitle(&self) -> String {
        let silent = self.nodes.iter().find(|node| !node.fault.is_empty());
        match silent {
            None if self.nodes.len() == 1 => "one node answers".to_owned(),
            None => format!("{} nodes answer", self.nodes.len()),
            Some(node) => format!("no answer from {}: {}", node.address, node.fault),
        }
    }

    /// Adds the columns that are due to the chart.
    fn record(&mut self, picture: &Picture) {
        while Instant::now() >= self.columns_until {
            self.columns_until += SETTINGS.top.column;
            if self.history.len() == SETTINGS.view.columns_max {
                self.history.remove(0);
            }
            let admitted = picture.regions.iter().map(|region| region.admitted).collect();
            let is_rate = picture.budget.unit == "/s";
            let budget = if is_rate { picture.budget.units } else { 0 };
            self.history.push(Column { admitted, budget, mark: "" });
        }
    }

    /// Draws until the user quits.
    async fn show(&mut self) -> io::Result<()> {
        let mut interrupts = Interrupts::open()?;
        let mut screen = Screen::open()?;
        let mut keyboard = Keyboard::open()?;
        let mut frames = interval(SETTINGS.top.frames_every);
        frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut picture = self.picture();
        loop {
            tokio::select! {
                biased;
                () = interrupts.next() => return Ok(()),
                key = keyboard.next() => match key {
                    Some(key) if !self.press(key, &picture) => {}
                    _ => return Ok(()),
                },
                _ = frames.tick() => {
                    self.listen();
                    let now = self.picture();
                    self.record(&now);
                    if self.is_paused {
                        picture.is_paused = true;
                    } else {
                        picture = now;
                    }
                    screen.show(&picture)?;
                }
            }
        }
    }

    /// Handles a key. Returns whether to quit.
    fn press(&mut self, key: KeyEvent, picture: &Picture) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Up | KeyCode::Char('k') => self.choose(picture, usize::checked_sub),
            KeyCode::Down | KeyCode::Char('j') => self.choose(picture, usize::checked_add),
            KeyCode::Char('b') => self.chosen = None,
            KeyCode::Char('c') => {
                self.shows_cells = !self.shows_cells;
                if let Some(cells) = self.cells.as_ref().filter(|_| !self.shows_cells) {
                    cells.want(None);
                }
            }
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            _ => {}
        }
        false
    }

    /// Chooses a limit beside the chosen one in the list. The chart begins anew, since it showed another
    /// limit.
    fn choose(&mut self, picture: &Picture, step: fn(usize, usize) -> Option<usize>) {
        let beside = picture.chosen_limit.and_then(|place| step(place, 1));
        if let Some(row) = beside.and_then(|place| picture.limits.get(place)) {
            self.chosen = Some(row.name.clone());
            self.history.clear();
        }
    }

    /// Prints one snapshot.
    async fn snapshot(&mut self, mut admins: Vec<Admin>, is_json: bool) -> ExitCode {
        let answered = timeout(SETTINGS.top.first_answer_max, async {
            loop {
                self.listen();
                if self.nodes.iter().any(|node| node.status.is_some()) {
                    return;
                }
                let changes = self.watchers.iter_mut().map(|watcher| Box::pin(watcher.changed()));
                futures::future::select_all(changes).await;
            }
        });
        if answered.await.is_err() {
            return complain(&format!("{}.\n{ANOTHER_NODE}", self.subtitle()));
        }
        let until = tokio::time::Instant::now() + SETTINGS.top.snapshot;
        let mut looks = interval(SETTINGS.top.frames_every);
        while tokio::time::Instant::now() < until {
            looks.tick().await;
            self.listen();
        }
        let mut picture = self.picture();
        if let Some(chosen) = self.chosen.as_ref().filter(|chosen| **chosen != picture.budget.name) {
            return complain(&format!("no node has a limit {chosen} in force: see `acequia budget list`"));
        }
        let cells = if picture.budget.name.is_empty() {
            None
        } else {
            Some(cells::ask(&mut admins, &picture.budget.name).await)
        };
        picture.cells = cells;
        let code = if self.nodes.iter().all(|node| node.fault.is_empty()) { SUCCESS } else { COULD_NOT_ASK };
        let text = if is_json { json_line(&TopJson::new(&picture)) } else { snapshot::text(&picture) };
        Output::new().end(&text, code)
    }
}

/// A snapshot as JSON.
#[derive(Debug, Serialize)]
struct TopJson<'a> {
    /// The limit that regions and cells are about.
    limit: &'a str,
    budget: &'a str,
    /// What the limit counts, if the config names it.
    #[serde(skip_serializing_if = "str::is_empty")]
    unit: &'a str,
    regions: Vec<RegionJson<'a>>,
    limits: Vec<LimitJson<'a>>,
    cells: Option<CellsJson<'a>>,
}

/// Units and requests a second, and the region's share in the budget's units.
#[derive(Debug, Serialize)]
struct RegionJson<'a> {
    region: &'a str,
    /// Whether the region's node answers and decides by its own rights.
    is_up: bool,
    admitted: u64,
    denied: u64,
    demand: Option<u64>,
    standing: u64,
    lent: u64,
    borrowed: u64,
}

#[derive(Debug, Serialize)]
struct LimitJson<'a> {
    limit: &'a str,
    budget: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    unit: &'a str,
    admitted: u64,
    denied: u64,
}

impl<'a> TopJson<'a> {
    fn new(picture: &'a Picture) -> Self {
        let region = |region: &'a Region| RegionJson {
            region: &region.name,
            is_up: region.condition == Condition::Up,
            admitted: region.admitted,
            denied: region.denied,
            demand: region.demand,
            standing: region.share.standing,
            lent: region.share.lent,
            borrowed: region.share.borrowed,
        };
        let limit = |row: &'a Row| LimitJson {
            limit: &row.name,
            budget: &row.budget,
            unit: &row.unit,
            admitted: row.admitted,
            denied: row.denied,
        };
        let chosen = picture.chosen_limit.and_then(|place| picture.limits.get(place));
        Self {
            limit: &picture.budget.name,
            budget: &picture.budget.words,
            unit: chosen.map_or("", |row| row.unit.as_str()),
            regions: picture.regions.iter().map(region).collect(),
            limits: picture.limits.iter().map(limit).collect(),
            cells: picture.cells.as_ref().map(|cells| CellsJson::new(&picture.budget.name, cells)),
        }
    }
}

/// Advice about addresses.
const ANOTHER_NODE: &str = "Is `acequia serve` running there, and is this its admin address (listen.admin)? Another node is asked with --address HOST:PORT.";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::fake_admin::{Asked, FakeAdmin},
        *,
    };

    /// Listens until every node has answered or failed.
    async fn heard(addresses: &[String]) -> Cluster {
        let credentials = Credentials::none(Duration::from_secs(60));
        let watchers = addresses.iter().map(|address| {
            Watcher::start(credentials.connect(address).expect("an address"), SETTINGS.top.reports_every)
        });
        let mut cluster = Cluster::new(watchers.collect(), None);
        for place in 0..addresses.len() {
            cluster.watchers[place].changed().await;
        }
        cluster.listen();
        cluster
    }

    #[tokio::test]
    async fn the_status_of_a_node_becomes_a_picture() {
        let (address, _) = FakeAdmin::default().serve(None).await;
        let cluster = heard(&[address.to_string()]).await;
        let picture = cluster.picture();
        assert_eq!(picture.subtitle, "one node answers");
        assert_eq!(picture.budget.name, "shop/per-key");
        assert_eq!((picture.regions[0].name.as_str(), picture.regions[0].is_authority), ("eu", true));
        assert!(snapshot::text(&picture).contains("token_bucket 60/s burst 120"));
    }

    #[tokio::test]
    async fn cells_of_the_chosen_limit_are_requested_when_they_are_shown() {
        let (address, node) = FakeAdmin::default().serve(None).await;
        let mut cluster = heard(&[address.to_string()]).await;
        let admin =
            || Credentials::none(Duration::from_secs(60)).connect(&address.to_string()).expect("an address");
        cluster.cells = Some(CellsWatch::start(vec![admin()]));
        let picture = cluster.picture();
        assert_eq!(picture.cells, None);
        assert!(!cluster.press(KeyEvent::from(KeyCode::Char('c')), &picture));
        assert_eq!(cluster.picture().cells, Some(Default::default()), "nobody has answered yet");
        let mut seen = cluster.cells.as_ref().expect("a watch").seen();
        seen.changed().await.expect("an answer");
        let cells = cluster.picture().cells.expect("cells");
        assert_eq!((cells.hottest[0].key.as_str(), cells.offenders[0].count), ("api_key=k1", 7));
        assert!(
            node.asked().iter().any(|asked| matches!(asked, Asked::Cells(asked) if asked.name == "per-key"))
        );

        let mut picture = cluster.picture();
        picture.cells = Some(cells::ask(&mut [admin()], "shop/per-key").await);
        let json: serde_json::Value =
            serde_json::from_str(&json_line(&TopJson::new(&picture))).expect("JSON");
        assert_eq!((&json["limit"], &json["unit"]), (&"shop/per-key".into(), &"tokens".into()));
        assert_eq!(json["limits"][0]["unit"], "tokens");
        assert_eq!(
            json["cells"]["offenders"][0],
            serde_json::json!({"key": "api_key=k3", "is_cut": false, "count": 7, "error": 1})
        );
        assert!(read_whole_limit("shop/per-key").is_ok());
        assert!(
            read_whole_limit("shop/per-key[api_key=k1]")
                .expect_err("a cell")
                .contains("leave the brackets out")
        );
    }

    #[tokio::test]
    async fn a_node_that_refuses_is_named_with_the_reason() {
        let node = FakeAdmin { token: Some("secret"), ..FakeAdmin::default() };
        let (address, _) = node.serve(None).await;
        let cluster = heard(&[address.to_string()]).await;
        let subtitle = cluster.picture().subtitle;
        assert_eq!(subtitle, format!("no answer from {address}: the token is not the node's"));
    }

    #[tokio::test]
    async fn keys_choose_a_limit_pause_and_quit() {
        let (address, _) = FakeAdmin::default().serve(None).await;
        let mut cluster = heard(&[address.to_string()]).await;
        let picture = cluster.picture();
        assert!(!cluster.press(KeyEvent::from(KeyCode::Down), &picture));
        assert_eq!(cluster.chosen, None, "there is no other limit");
        assert!(!cluster.press(KeyEvent::from(KeyCode::Char(' ')), &picture) && cluster.is_paused);
        assert!(cluster.press(KeyEvent::from(KeyCode::Char('q')), &picture));
    }
}
