//! The data of one frame: regions, links, a budget, and the recent past.
//!
//! A picture is complete: drawing needs no other data. The demonstration and `acequia top` each make one
//! several times a second.

use std::time::Duration;

/// Everything that a frame shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// The first words of the title.
    pub title: String,
    /// The rest of the title.
    pub subtitle: String,
    /// The time since the beginning.
    pub elapsed: Duration,
    /// Whether the picture stands still.
    pub is_paused: bool,
    /// The limit that the boxes and the chart are about.
    pub budget: Budget,
    /// The regions, in the order in which they are drawn.
    pub regions: Vec<Region>,
    /// The links between the regions.
    pub links: Vec<Link>,
    /// The history, oldest first: a bounded number of columns.
    pub history: Vec<Column>,
    /// The time that a column of the history covers.
    pub column: Duration,
    /// The limits to list.
    pub limits: Vec<Row>,
    /// The limit that the boxes show, by its place in the list.
    pub chosen_limit: Option<usize>,
    /// The cells of the chosen limit, shown in place of the limits; `None` to show the limits.
    pub cells: Option<Cells>,
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Whether the promise held.
    pub verdict: Verdict,
    /// The keys, each with a word or two.
    pub keys: Vec<(&'static str, &'static str)>,
    /// The help, shown over everything else: keys, in sentences. Empty to show no help.
    pub help: Vec<(&'static str, &'static str)>,
}

/// A global budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// As domain/name.
    pub name: String,
    /// The budget in the config's words.
    pub words: String,
    /// The units that can be had: for a rate each second, for a window in each window. Never 0 in a picture
    /// with regions.
    pub units: u64,
    /// The suffix of numbers: "/s" for a rate, empty for a window.
    pub unit: &'static str,
    /// The units that a rate allows at once; `None` for a window.
    pub burst: Option<u64>,
}

/// A region: one box.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// The region's condition.
    pub condition: Condition,
    /// Whether most of the demand is here.
    pub is_hot: bool,
    /// Whether its node is the authority.
    pub is_authority: bool,
    /// Whether the keys apply to it.
    pub is_chosen: bool,
    /// Its share.
    pub share: Share,
    /// Units a second.
    pub admitted: u64,
    /// Requests a second.
    pub denied: u64,
    /// Units a second that are asked for; `None` if unknown.
    pub demand: Option<u64>,
}

/// The condition of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Its node answers and decides by its own rights.
    #[default]
    Up,
    /// Its node does not decide yet, for this reason.
    Waiting(String),
    /// Its node does not answer.
    Down,
    /// Its node was not asked: only other nodes' reports are known.
    Unasked(String),
}

/// The part of the budget that a region may spend, in the budget's units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The standing share, by formula.
    pub standing: u64,
    /// The part of the standing share that others have now.
    pub lent: u64,
    /// The part borrowed from others.
    pub borrowed: u64,
}

impl Share {
    /// The own share that is left.
    pub const fn kept(self) -> u64 {
        self.standing.saturating_sub(self.lent)
    }

    /// What the region may spend.
    pub const fn effective(self) -> u64 {
        self.kept().saturating_add(self.borrowed)
    }
}

/// A link between two regions, by their places in [`Picture::regions`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The first region.
    pub from: usize,
    /// The second region.
    pub to: usize,
    /// What passes the link.
    pub flow: Flow,
    /// The round trip; `None` if it was not measured.
    pub round_trip: Option<Duration>,
    /// Whether the keys apply to it.
    pub is_chosen: bool,
}

/// What passes a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Everything passes.
    Open,
    /// The link is whole, but its regions have not heard each other yet.
    Quiet,
    /// Nothing passes.
    Cut,
    /// Only from `from` to `to`.
    Forth,
    /// Only from `to` to `from`.
    Back,
}

/// A stretch of time in the chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Column {
    /// Units a second that each region admitted, by its place.
    pub admitted: Vec<u64>,
    /// The budget in that time, a second.
    pub budget: u64,
    /// A word for an event in that time; empty if there was none.
    pub mark: &'static str,
}

impl Column {
    /// Units a second that all regions admitted.
    pub fn total(&self) -> u64 {
        self.admitted.iter().fold(0, |sum: u64, units| sum.saturating_add(*units))
    }
}

/// A limit in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// As domain/name.
    pub name: String,
    /// As it is written in a config.
    pub budget: String,
    /// The name of what the limit counts; empty if it has none.
    pub unit: String,
    /// Units a second, in all regions that answer.
    pub admitted: u64,
    /// Requests a second.
    pub denied: u64,
}

/// The most frequent cells of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    /// Why some cells are missing; empty if nothing is wrong.
    pub fault: String,
    /// By requests.
    pub hottest: Vec<CellRow>,
    /// By denials.
    pub offenders: Vec<CellRow>,
}

/// A cell in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellRow {
    /// Its values, as in the brackets of a limit's path.
    pub key: String,
    /// Whether the key was cut short.
    pub is_cut: bool,
    /// How often the cell came lately, at most.
    pub count: u64,
    /// By how much `count` may be too high.
    pub error: u64,
}

impl CellRow {
    /// The cell's name on a screen.
    pub fn name(&self) -> String {
        match (self.key.as_str(), self.is_cut) {
            ("", _) => "its one cell".to_owned(),
            (key, false) => key.to_owned(),
            (key, true) => format!("{key}…"),
        }
    }

    /// The count, and by how much it may be too high.
    pub fn counted(&self) -> String {
        match self.error {
            0 => self.count.to_string(),
            error => format!("{} (-{error})", self.count),
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, since the beginning.
    pub at: Duration,
    /// The kind of event.
    pub tone: Tone,
    /// In words.
    pub words: String,
}

/// What an event means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// A neutral event.
    Plain,
    /// Something is well again.
    Good,
    /// Something broke.
    Bad,
}

/// Whether the promise held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Verdict {
    /// Nothing was counted.
    #[default]
    None,
    /// The callers counted.
    Counted {
        /// Units above what the budget allows in some interval. The promise is 0.
        units_over: u64,
        /// The counted time.
        watched: Duration,
        /// The used part of what could be used, 0 to 1; `None` before anything could be used.
        used: Option<f64>,
    },
}
