//! What there is to see: regions, links, a budget, and what went by.
//!
//! A picture is complete: drawing it asks nobody. The demonstration and `acequia top` each make one, several
//! times a second.

use std::time::Duration;

/// Columns of history that are kept: as many as the widest terminal that is likely.
pub const HISTORY_MAX: usize = 512;

/// Everything that a frame shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// What this is, in the title: a few words.
    pub title: String,
    /// The rest of the title.
    pub subtitle: String,
    /// Since it began.
    pub elapsed: Duration,
    /// Whether the picture stands still.
    pub is_paused: bool,
    /// The limit that the boxes and the chart are about.
    pub budget: Budget,
    /// In the order in which they are drawn.
    pub regions: Vec<Region>,
    /// Between the regions.
    pub links: Vec<Link>,
    /// What went by, the oldest first; at most [`HISTORY_MAX`].
    pub history: Vec<Column>,
    /// How much time a column of the history is.
    pub column: Duration,
    /// The limits to list.
    pub limits: Vec<Row>,
    /// Which of the limits the boxes are about, by its place in the list.
    pub chosen_limit: Option<usize>,
    /// The cells of the chosen limit, in place of the limits; nothing where nobody wants to see them.
    pub cells: Option<Cells>,
    /// What happened, the oldest first.
    pub events: Vec<Event>,
    /// Whether the promise held.
    pub verdict: Verdict,
    /// What the keys do: the key and a word or two.
    pub keys: Vec<(&'static str, &'static str)>,
    /// Rows over all else: what the keys do, in sentences. Empty where nobody asks.
    pub help: Vec<(&'static str, &'static str)>,
}

/// A global budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// As domain/name.
    pub name: String,
    /// As it is written in a config.
    pub words: String,
    /// What can be had: a second for a rate, a window for a window. Never 0 in a picture with regions.
    pub units: u64,
    /// What comes behind numbers: "/s" for a rate, nothing for a window.
    pub unit: &'static str,
    /// What can be had at once beside that, of a rate; nothing for a window.
    pub burst: Option<u64>,
}

/// A region: one box.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// How it stands.
    pub condition: Condition,
    /// Whether most of the demand is here.
    pub is_hot: bool,
    /// Whether its node mints and burns.
    pub is_authority: bool,
    /// Whether the keys are about it.
    pub is_chosen: bool,
    /// What it may spend.
    pub share: Share,
    /// Units a second.
    pub admitted: u64,
    /// Requests a second.
    pub denied: u64,
    /// Units a second that are asked for; nothing where nobody knows.
    pub demand: Option<u64>,
}

/// How a region stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// It answers and decides by its own rights.
    #[default]
    Up,
    /// It does not decide yet, and why.
    Waiting(String),
    /// Nobody answers.
    Down,
    /// Nobody was asked: what others say of it is all that is known.
    Unasked(String),
}

/// The part of the budget that a region may spend, in the budget's units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// By formula.
    pub standing: u64,
    /// Of the standing share, what others have now.
    pub lent: u64,
    /// What it has of others.
    pub borrowed: u64,
}

impl Share {
    /// What is left of its own share.
    pub const fn kept(self) -> u64 {
        self.standing.saturating_sub(self.lent)
    }

    /// What it may spend.
    pub const fn effective(self) -> u64 {
        self.kept().saturating_add(self.borrowed)
    }
}

/// A link between two regions, by their places in [`Picture::regions`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// From here.
    pub from: usize,
    /// To here.
    pub to: usize,
    /// What crosses it.
    pub flow: Flow,
    /// There and back; nothing where it was not measured.
    pub round_trip: Option<Duration>,
    /// Whether the keys are about it.
    pub is_chosen: bool,
}

/// What crosses a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Everything.
    Open,
    /// It is whole, but the two have not heard each other yet.
    Quiet,
    /// Nothing.
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
    /// The budget then, a second.
    pub budget: u64,
    /// What happened then, in a word; empty where nothing did.
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
    /// Units a second, in all regions that answer.
    pub admitted: u64,
    /// Requests a second.
    pub denied: u64,
}

/// The cells of a limit that come most often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    /// Why there is less than there should be; empty where nothing is wrong.
    pub fault: String,
    /// By requests.
    pub hottest: Vec<CellRow>,
    /// By denials.
    pub offenders: Vec<CellRow>,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellRow {
    /// Its values, as in the brackets of a limit's path.
    pub key: String,
    /// Whether there is more of it.
    pub is_cut: bool,
    /// How often it came of late, at most.
    pub count: u64,
    /// By how much that may be too high.
    pub error: u64,
}

impl CellRow {
    /// What it is called on a screen.
    pub fn name(&self) -> String {
        match (self.key.as_str(), self.is_cut) {
            ("", _) => "its one cell".to_owned(),
            (key, false) => key.to_owned(),
            (key, true) => format!("{key}…"),
        }
    }

    /// How often it came, and by how much that may be too high.
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
    /// Since the beginning.
    pub at: Duration,
    /// What sort of thing.
    pub tone: Tone,
    /// In words.
    pub words: String,
}

/// What an event means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Something went on.
    Plain,
    /// Something is as it should be again.
    Good,
    /// Something was broken.
    Bad,
}

/// Whether the promise held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Verdict {
    /// Nobody counts.
    #[default]
    None,
    /// It was counted at the callers.
    Counted {
        /// Units above what the budget allows in some interval: 0 is the promise.
        units_over: u64,
        /// For so long.
        watched: Duration,
        /// What was used of what could be, 0 to 1; nothing before anything could be.
        used: Option<f64>,
    },
}
