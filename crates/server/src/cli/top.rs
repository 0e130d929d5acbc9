//! `acequia top`: the regions of a cluster, live.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{COULD_NOT_ASK, Output, SUCCESS, complain, operator::Credentials};
use crate::{
    screen::{Interrupts, Keyboard, Screen},
    view::{
        overview::{self, Asked},
        picture::{Column, HISTORY_MAX, Picture},
        snapshot,
    },
    watching::Watcher,
};

/// How often nodes are asked to say how they are.
const REPORTS_EVERY: Duration = Duration::from_millis(250);
/// How often the screen is drawn.
const FRAMES_EVERY: Duration = Duration::from_millis(125);
/// How much time a column of the chart is.
const COLUMN: Duration = Duration::from_millis(500);
/// How long a snapshot watches, so that there are rates to print.
const SNAPSHOT_TIME: Duration = Duration::from_millis(1_100);
/// How long a snapshot waits for the first node that answers.
const FIRST_ANSWER_TIME_MAX: Duration = Duration::from_secs(3);
/// Nodes that can be watched at once.
const ADDRESSES_MAX: usize = 64;

/// Show the regions of a cluster, live: shares, loans, what is admitted and denied.
///
/// Without a terminal, prints one snapshot. Exits with 2 where nobody answers.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia top
  acequia top --address 10.0.0.1:8082 --address 10.1.0.1:8082    both sides of each link")]
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
}

impl Top {
    /// Shows it until somebody has seen enough, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        if self.address.len() > ADDRESSES_MAX {
            return complain(&format!("at most {ADDRESSES_MAX} nodes can be watched at once: name fewer"));
        }
        let admins = self.address.iter().map(|address| self.credentials.connect(address));
        let watchers = match admins.collect::<Result<Vec<_>, _>>() {
            Ok(admins) => admins.into_iter().map(|admin| Watcher::start(admin, REPORTS_EVERY)).collect(),
            Err(fault) => return complain(&fault.to_string()),
        };
        let mut cluster = Cluster::new(watchers);
        if !io::stdout().is_terminal() {
            return cluster.snapshot().await;
        }
        match cluster.show().await {
            Ok(()) => ExitCode::from(SUCCESS),
            Err(fault) => complain(&format!("the terminal cannot be drawn on: {fault}")),
        }
    }
}

/// What is watched, and what of it is looked at.
struct Cluster {
    watchers: Vec<Watcher>,
    nodes: Vec<Asked>,
    history: Vec<Column>,
    columns_until: Instant,
    began: Instant,
    /// The limit that was chosen, by name; the busiest where none was.
    chosen: Option<String>,
    is_paused: bool,
}

impl Cluster {
    fn new(watchers: Vec<Watcher>) -> Self {
        let node = |watcher: &Watcher| Asked { address: watcher.address.clone(), ..Asked::default() };
        let began = Instant::now();
        Self {
            nodes: watchers.iter().map(node).collect(),
            watchers,
            history: Vec::new(),
            columns_until: began + COLUMN,
            began,
            chosen: None,
            is_paused: false,
        }
    }

    /// Takes in what the nodes said.
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
        picture.column = COLUMN;
        picture.keys = vec![("↑/↓", "limit"), ("b", "busiest"), ("space", "pause"), ("q", "quit")];
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

    /// Adds to the chart what is due.
    fn record(&mut self, picture: &Picture) {
        while Instant::now() >= self.columns_until {
            self.columns_until += COLUMN;
            if self.history.len() == HISTORY_MAX {
                self.history.remove(0);
            }
            let admitted = picture.regions.iter().map(|region| region.admitted).collect();
            let is_rate = picture.budget.unit == "/s";
            let budget = if is_rate { picture.budget.units } else { 0 };
            self.history.push(Column { admitted, budget, mark: "" });
        }
    }

    /// Draws until somebody wants to quit.
    async fn show(&mut self) -> io::Result<()> {
        let mut interrupts = Interrupts::open()?;
        let mut screen = Screen::open()?;
        let mut keyboard = Keyboard::open()?;
        let mut frames = interval(FRAMES_EVERY);
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

    /// Does what a key says; whether it is to quit.
    fn press(&mut self, key: KeyEvent, picture: &Picture) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Up | KeyCode::Char('k') => self.choose(picture, usize::checked_sub),
            KeyCode::Down | KeyCode::Char('j') => self.choose(picture, usize::checked_add),
            KeyCode::Char('b') => self.chosen = None,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            _ => {}
        }
        false
    }

    /// The limit beside the chosen one in the list. The chart begins anew: it was about another.
    fn choose(&mut self, picture: &Picture, step: fn(usize, usize) -> Option<usize>) {
        let beside = picture.chosen_limit.and_then(|place| step(place, 1));
        if let Some(row) = beside.and_then(|place| picture.limits.get(place)) {
            self.chosen = Some(row.name.clone());
            self.history.clear();
        }
    }

    /// Prints how it stands.
    async fn snapshot(&mut self) -> ExitCode {
        let answered = timeout(FIRST_ANSWER_TIME_MAX, async {
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
        let until = tokio::time::Instant::now() + SNAPSHOT_TIME;
        let mut looks = interval(FRAMES_EVERY);
        while tokio::time::Instant::now() < until {
            looks.tick().await;
            self.listen();
        }
        let code = if self.nodes.iter().all(|node| node.fault.is_empty()) { SUCCESS } else { COULD_NOT_ASK };
        Output::new().end(&snapshot::text(&self.picture()), code)
    }
}

/// What mends an address.
const ANOTHER_NODE: &str = "Is `acequia serve` running there, and is this its admin address (listen.admin)? Another node is asked with --address HOST:PORT.";

#[cfg(test)]
mod tests {
    use super::{super::fake_admin::FakeAdmin, *};

    /// Listens until every node has answered or failed.
    async fn heard(addresses: &[String]) -> Cluster {
        let credentials = Credentials::none(Duration::from_secs(60));
        let watchers = addresses
            .iter()
            .map(|address| Watcher::start(credentials.connect(address).expect("an address"), REPORTS_EVERY));
        let mut cluster = Cluster::new(watchers.collect());
        for place in 0..addresses.len() {
            cluster.watchers[place].changed().await;
        }
        cluster.listen();
        cluster
    }

    #[tokio::test]
    async fn what_a_node_says_becomes_a_picture() {
        let (address, _) = FakeAdmin::default().serve(None).await;
        let cluster = heard(&[address.to_string()]).await;
        let picture = cluster.picture();
        assert_eq!(picture.subtitle, "one node answers");
        assert_eq!(picture.budget.name, "shop/per-key");
        assert_eq!((picture.regions[0].name.as_str(), picture.regions[0].is_authority), ("eu", true));
        assert!(snapshot::text(&picture).contains("token_bucket 60/s burst 120"));
    }

    #[tokio::test]
    async fn a_node_that_refuses_or_is_not_there_is_named_with_the_reason() {
        let node = FakeAdmin { token: Some("secret"), ..FakeAdmin::default() };
        let (address, _) = node.serve(None).await;
        let cluster = heard(&[address.to_string()]).await;
        let subtitle = cluster.picture().subtitle;
        assert_eq!(subtitle, format!("no answer from {address}: the token is not the node's"));
    }

    #[tokio::test]
    async fn keys_choose_a_limit_and_end_it() {
        let (address, _) = FakeAdmin::default().serve(None).await;
        let mut cluster = heard(&[address.to_string()]).await;
        let picture = cluster.picture();
        assert!(!cluster.press(KeyEvent::from(KeyCode::Down), &picture));
        assert_eq!(cluster.chosen, None, "there is no other limit");
        assert!(!cluster.press(KeyEvent::from(KeyCode::Char(' ')), &picture) && cluster.is_paused);
        assert!(cluster.press(KeyEvent::from(KeyCode::Char('q')), &picture));
    }
}
