//! The running parts: the nodes, the relays between them, the watchers and the callers.

use std::{
    io::Write as _,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use acequia_api::acequia::v1::{SetBudgetRequest, VersionId};
use acequia_mesh::{Identity, certs};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::{
    DemoError,
    in_force::AT_START,
    keys::Order,
    ledger::{Instants, Ledger},
    links::Relays,
    nodes::{NodeProcess, Nodes},
    plan::{self, AUTHORITY, DOMAIN, LIMITS, NAMES, Ports, REGIONS},
    state::State,
    streams::Streams,
    traffic::Traffic,
};
use crate::{
    commands::operator::{Admin, Credentials},
    settings::SETTINGS,
    view::picture::{Flow, Tone},
    watching::Watcher,
};

/// Everything that runs. Dropping the stage ends all of it.
#[derive(Debug)]
pub struct Stage {
    /// The state of the demonstration.
    pub state: State,
    /// The nodes are killed before the folder that they write to is removed.
    nodes: Nodes,
    folder: TempDir,
    ports: [Ports; REGIONS],
    relays: Relays,
    watchers: [Watcher; REGIONS],
    /// When each node made its last report, or was started.
    reported: [Instants; REGIONS],
    ledger: Arc<Mutex<Ledger>>,
    traffic: Option<Traffic>,
    streams: Streams,
    began: Instant,
    /// When the last tenth of a second ended, since `began`.
    ticked: Duration,
    /// The authority's answers to orders.
    answers: (mpsc::Sender<OrderAnswer>, mpsc::Receiver<OrderAnswer>),
}

/// The version of the catalogue that an order made, or the reason for its failure.
type OrderAnswer = Result<VersionId, String>;

impl Stage {
    /// Makes certificates and configs, and starts the nodes. Progress goes to standard error.
    ///
    /// # Errors
    /// A port is taken, or the system refuses something.
    pub fn start(base_port: u16) -> Result<Self, DemoError> {
        let ports = plan::ports(base_port)?;
        let folder = TempDir::with_prefix("acequia-demo-").map_err(DemoError::System)?;
        say("making certificates");
        let identities = NAMES.map(|name| Identity::new(name, format!("{name}-1")));
        certs::create(
            &folder.path().join("tls"),
            &identities,
            &identities.each_ref().map(|node| &*node.node),
        )
        .map_err(|fault| DemoError::Certificates(fault.to_string()))?;

        let state = State::default();
        let mesh = ports.map(|ports| ports.mesh);
        let relays = Relays::start(&state.links, mesh).map_err(DemoError::System)?;
        let prepare = |place: usize| {
            let peer = |other| relays.address(place, other, mesh);
            NodeProcess::prepare(place, folder.path(), &plan::config(place, &ports, folder.path(), peer))
        };
        let mut nodes = [prepare(0)?, prepare(1)?, prepare(2)?];
        for (node, name) in nodes.iter_mut().zip(NAMES) {
            say(&format!("starting {name}-1"));
            node.start()?;
        }
        let watch = |place: usize| Ok(Watcher::start(admin(ports[place])?, SETTINGS.stage.reports_every));
        let watchers = [watch(0)?, watch(1)?, watch(2)?];
        Ok(Self {
            state,
            nodes,
            folder,
            ports,
            relays,
            watchers,
            reported: [Instants::default(); REGIONS],
            ledger: Arc::new(Mutex::new(Ledger::new(AT_START))),
            traffic: None,
            streams: Streams::default(),
            began: Instant::now(),
            ticked: Duration::ZERO,
            answers: mpsc::channel(8),
        })
    }

    /// Waits until all nodes have the catalogue and hear each other, and then starts the callers.
    ///
    /// # Errors
    /// A node has ended, or takes too long; its log is kept.
    pub async fn ready(&mut self) -> Result<(), DemoError> {
        say("waiting until every node has the catalogue and hears the others");
        let until = Instant::now() + SETTINGS.stage.start_max;
        while let Some((place, why)) = self.not_ready() {
            if let Some(status) = self.nodes[place].ended() {
                return Err(self.failure(place, &format!("it ended by itself ({status})")));
            }
            if Instant::now() > until {
                return Err(self.failure(place, &format!("it is not ready: {why}")));
            }
            tokio::time::sleep(SETTINGS.stage.look_every).await;
            self.listen();
        }
        // Time counts from here on.
        self.began = Instant::now();
        self.reported = [Instants::now(self.began); REGIONS];
        *self.ledger() = Ledger::new(self.state.in_force.highest());
        let addresses = self.ports.map(|ports| ports.grpc);
        let traffic = Traffic::start(addresses, &self.ledger, self.began);
        let traffic = traffic.map_err(|fault| DemoError::Address(fault.to_string()))?;
        traffic.set(self.state.demands());
        self.traffic = Some(traffic);
        let words = format!("three regions share {}/s", self.state.in_force.newest()[0].rate);
        self.state.story.tell(Duration::ZERO, Tone::Good, words);
        Ok(())
    }

    /// A node that cannot take part yet, and the reason.
    fn not_ready(&self) -> Option<(usize, String)> {
        (0..REGIONS).find_map(|place| {
            let node = &self.state.nodes[place];
            let why = match &node.status {
                _ if !node.fault.is_empty() => node.fault.clone(),
                None => "it says nothing".to_owned(),
                Some(status) if !status.ready => status.not_ready.clone(),
                Some(status) if status.peers.iter().filter(|peer| peer.reached).count() + 1 < REGIONS => {
                    "it does not hear the others".to_owned()
                }
                Some(_) => return None,
            };
            Some((place, why))
        })
    }

    /// The time since the nodes were ready.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The counts so far.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a region is asked.
    pub const fn ports(&self, place: usize) -> Ports {
        self.ports[place]
    }

    /// Ends a bin: takes in the nodes' reports, and checks the progress.
    ///
    /// # Errors
    /// A node has ended without being killed; its log is kept.
    pub fn tick(&mut self) -> Result<(), DemoError> {
        self.listen();
        for place in 0..REGIONS {
            if let Some(status) = self.nodes[place].ended() {
                return Err(self.failure(place, &format!("it ended by itself ({status})")));
            }
        }
        let at = self.elapsed();
        while let Ok(answer) = self.answers.1.try_recv() {
            self.state.budget_answered(at, answer);
        }
        self.streams.close_bin(at, &mut self.state.story);
        (self.state.streams, self.state.streams_last) = (self.streams.seen(), self.streams.last_second());
        let usable = self.state.usable();
        let length = at.saturating_sub(self.ticked);
        self.ticked = at;
        let ledger = Arc::clone(&self.ledger);
        let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.judge(self.known_until().steady_ns);
        ledger.show_budget(self.state.in_force.highest()[0].rate);
        ledger.close(length, usable, !self.state.is_calm());
        self.state.story.observe(at, &ledger, usable);
        Ok(())
    }

    /// Takes in the nodes' reports, and has answers judged by the numbers in the reports.
    fn listen(&mut self) {
        for place in 0..REGIONS {
            let Some(sight) = self.watchers[place].news() else { continue };
            let now = Instants::now(self.began);
            let at = Duration::from_nanos(now.steady_ns);
            let known_until = self.known_until();
            let (before, newest) = (self.state.in_force.highest(), self.state.in_force.newest());
            let is_report = sight.fault.is_empty();
            let made = sight.status.as_ref().filter(|_| is_report).map(|status| status.wall_ns);
            self.state.hear(at, place, sight.status, sight.fault);
            let raised = self.state.in_force.highest();
            if raised != before {
                // When the earlier reports were made, no node had these numbers.
                self.ledger().allow(known_until, raised);
            }
            self.state.acknowledge(at, place);
            let lowered = self.state.in_force.highest();
            if lowered != raised {
                self.ledger().allow(now, lowered);
            }
            if let Some(wall_ns) = made {
                self.reported[place] = now.surely_before(wall_ns);
            }
            if self.state.in_force.newest() != newest
                && let Some(traffic) = &self.traffic
            {
                traffic.set(self.state.demands());
            }
        }
    }

    /// Until when the nodes' numbers are known: every running node has reported since.
    fn known_until(&self) -> Instants {
        let now = Instants::now(self.began);
        let at_least =
            now.surely_before(now.wall_ns.saturating_sub(SETTINGS.stage.report_max.as_nanos() as u64));
        let alive = (0..REGIONS).filter(|place| self.state.is_alive[*place]);
        let known = alive.map(|place| self.reported[place]).min_by_key(|instants| instants.steady_ns);
        known.filter(|known| known.steady_ns > at_least.steady_ns).unwrap_or(at_least)
    }

    /// Stops the callers. Judges the last answers when the nodes have reported the numbers that applied to
    /// them.
    pub async fn end(&mut self) {
        self.traffic = None;
        let end = self.elapsed();
        while self.known_until().steady_ns < end.as_nanos() as u64
            && self.elapsed() < end + SETTINGS.stage.last_report_max
        {
            tokio::time::sleep(SETTINGS.stage.look_every).await;
            self.listen();
        }
        self.ledger().judge(u64::MAX);
    }

    /// Carries out an order, except orders that concern only the picture.
    ///
    /// # Errors
    /// A node cannot be started.
    pub fn carry_out(&mut self, order: Order) -> Result<(), DemoError> {
        let at = self.elapsed();
        let mark = match order {
            Order::ChooseLink(link) => {
                self.state.chosen_link = link;
                ""
            }
            Order::NextRegion => {
                self.state.chosen_region = (self.state.chosen_region + 1) % REGIONS;
                ""
            }
            Order::Cut => {
                self.state.cut(at, Flow::Cut);
                "cut"
            }
            Order::OneWay => {
                self.state.cut(at, Flow::Forth);
                "one way"
            }
            Order::Split => {
                self.state.split(at);
                "split"
            }
            Order::Mend => {
                self.state.mend(at);
                "mend"
            }
            Order::Delay { is_longer } => {
                self.state.links.delay(is_longer);
                let words =
                    format!("{} there and back", crate::view::words::short(self.state.links.round_trip()));
                self.state.story.tell(at, Tone::Plain, words);
                ""
            }
            Order::Kill => self.kill(self.state.chosen_region),
            Order::Restart => self.restart()?,
            Order::Heat => {
                self.state.heat(at);
                NAMES[self.state.hot]
            }
            Order::Streams => self.start_streams()?,
            Order::Budget { is_more } => self.order_budget(is_more),
            Order::Pause => {
                self.state.is_paused = !self.state.is_paused;
                ""
            }
            Order::Help => {
                self.state.is_help_shown = !self.state.is_help_shown;
                ""
            }
            Order::Quit => "",
        };
        self.relays.set(&self.state.links);
        if let Some(traffic) = &self.traffic {
            traffic.set(self.state.demands());
        }
        if !mark.is_empty() {
            self.ledger().mark(mark);
        }
        Ok(())
    }

    fn kill(&mut self, place: usize) -> &'static str {
        let at = self.elapsed();
        if !self.nodes[place].kill() {
            return "";
        }
        self.state.killed(at, place);
        "kill"
    }

    fn restart(&mut self) -> Result<&'static str, DemoError> {
        let at = self.elapsed();
        let dead: Vec<usize> = (0..REGIONS).filter(|place| !self.state.is_alive[*place]).collect();
        for place in &dead {
            self.nodes[*place].start()?;
            self.reported[*place] = Instants::now(self.began);
            self.state.restarted(at, *place);
        }
        Ok(if dead.is_empty() { "" } else { "restart" })
    }

    fn start_streams(&mut self) -> Result<&'static str, DemoError> {
        let (at, hot) = (self.elapsed(), self.state.hot);
        let started = self.streams.start(at, hot, self.ports[hot].grpc, &mut self.state.story);
        let is_new = started.map_err(|fault| DemoError::Address(fault.to_string()))?;
        Ok(if is_new { "streams" } else { "" })
    }

    /// Orders another budget from the authority, without waiting for the answer.
    fn order_budget(&mut self, is_more: bool) -> &'static str {
        let Some(budget) = self.state.order_budget(is_more) else { return "" };
        let admin = admin(self.ports[AUTHORITY]);
        let answers = self.answers.0.clone();
        tokio::spawn(async move {
            let answer = match admin {
                Ok(admin) => set_budget(admin, budget).await,
                Err(fault) => Err(fault.to_string()),
            };
            // The receiver lives as long as the stage.
            let _ = answers.send(answer).await;
        });
        "budget"
    }

    /// The failure of a node, whose log is kept.
    fn failure(&mut self, place: usize, why: &str) -> DemoError {
        self.folder.disable_cleanup(true);
        self.nodes[place].failure(why)
    }

    /// Keeps the configs, journals and logs, and returns their folder.
    pub fn keep(&mut self) -> PathBuf {
        self.folder.disable_cleanup(true);
        self.folder.path().to_owned()
    }
}

/// The admin service of a node of this machine.
fn admin(ports: Ports) -> Result<Admin, DemoError> {
    let admin = Credentials::none(SETTINGS.stage.order_max).connect(&ports.admin.to_string());
    admin.map_err(|fault| DemoError::Address(fault.to_string()))
}

async fn set_budget(mut admin: Admin, budget: u64) -> Result<VersionId, String> {
    let numbers = [("rate", format!("{budget}/s")), ("burst", budget.to_string())];
    let request = SetBudgetRequest {
        domain: DOMAIN.to_owned(),
        name: LIMITS[0].to_owned(),
        numbers: numbers.map(|(name, number)| (name.to_owned(), number)).into(),
        author: "acequia demo".to_owned(),
        reason: "a key was pressed".to_owned(),
        ..SetBudgetRequest::default()
    };
    let answer = tokio::time::timeout(SETTINGS.stage.order_max, admin.client.set_budget(request)).await;
    let late = |_| "the authority does not answer".to_owned();
    let change = answer.map_err(late)?.map_err(|status| status.message().to_owned())?.into_inner();
    Ok(change.after.unwrap_or_default())
}

/// Prints progress on standard error: standard output is for lines and verdicts.
fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "acequia: {what} ...");
}
