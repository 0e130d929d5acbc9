//! Faults, and when they happen.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::NAMES;

/// A region, by its place in [`NAMES`].
pub type Place = usize;

/// Something that is done to the world at an instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Nothing passes between two regions, and packets under way are lost.
    Cut(Place, Place),
    /// Nothing passes from the first to the second.
    CutOneWay(Place, Place),
    /// Everything passes again between two regions.
    Mend(Place, Place),
    /// Packets between two regions are held back, and none is lost.
    Hold(Place, Place),
    /// Held packets arrive at once.
    Release(Place, Place),
    /// Packets between two regions take this many milliseconds.
    Slow(Place, Place, u64),
    /// This percentage of packets between two regions is lost.
    Lose(Place, Place, u32),
    /// A node's process sleeps: its sockets stay open, and nothing comes out of them.
    Sleep(Place),
    /// A sleeping process wakes.
    Wake(Place),
    /// A node loses its power. The [`Leftover`] says what becomes of its unsynced data.
    Crash(Place, Leftover),
    /// A node stops in an orderly way.
    Stop(Place),
    /// A node that is down begins again.
    Start(Place),
    /// A node loses its power at the durable write after this many more.
    CrashAtWrite(Place, u64),
    /// The disk of a node that is down is gone: the node will begin with an empty one.
    LoseDisk(Place),
    /// A disk is copied as it is.
    CopyDisk(Place),
    /// The disk of a node that is down is replaced by the copy.
    RestoreDisk(Place),
    /// A disk takes no more writes.
    FillDisk(Place),
    /// A disk takes writes again.
    ClearDisk(Place),
    /// A wall is set ahead by this many milliseconds.
    Wall(Place, i64),
    /// A machine's oscillator runs this many parts per million too fast.
    Drift(Place, i64),
    /// A wall runs this many parts per million faster than its machine's oscillator.
    Smear(Place, i64),
    /// A machine's counter jumps by what it counts in this many milliseconds.
    Counter(Place, i64),
    /// An operator gives an order at a node.
    Order(Place, Command),
    /// A fault of the store that nodes of one region share.
    Store(StoreFault),
    /// At the first node, an operator excludes the second one for this many seconds, unless that node runs.
    Exclude(Place, Place, u64),
    /// Every link is mended, the store is back, every disk takes writes, no crash is due, and every node that
    /// is down begins again. Clocks and the contents of disks stay as they are.
    Heal,
}

impl Fault {
    /// Whether this fault ends what an earlier fault `begun` began.
    pub fn ends(&self, begun: &Self) -> bool {
        match (self, begun) {
            (Self::Mend(a, b), Self::Cut(c, d) | Self::CutOneWay(c, d))
            | (Self::Release(a, b), Self::Hold(c, d))
            | (Self::Slow(a, b, _), Self::Slow(c, d, _))
            | (Self::Lose(a, b, _) | Self::Mend(a, b), Self::Lose(c, d, _)) => {
                [(a, b), (b, a)].contains(&(c, d))
            }
            (Self::Start(a), Self::Crash(b, _) | Self::Stop(b) | Self::CrashAtWrite(b, _))
            | (Self::LoseDisk(a) | Self::RestoreDisk(a), Self::Crash(b, _) | Self::Stop(b))
            | (Self::Order(_, Command::Recover(a) | Command::Add(a, _)), Self::Crash(b, _) | Self::Stop(b))
            | (Self::ClearDisk(a), Self::FillDisk(b))
            | (Self::Wake(a), Self::Sleep(b)) => a == b,
            (Self::Store(StoreFault::Back), Self::Store(begun)) => begun.ends_with_back(),
            _ => false,
        }
    }

    /// The regions or nodes that the fault is about.
    pub fn places(&self) -> Vec<Place> {
        match self {
            Self::Cut(a, b)
            | Self::CutOneWay(a, b)
            | Self::Mend(a, b)
            | Self::Hold(a, b)
            | Self::Release(a, b)
            | Self::Slow(a, b, _)
            | Self::Lose(a, b, _)
            | Self::Exclude(a, b, _) => vec![*a, *b],
            Self::Sleep(at)
            | Self::Wake(at)
            | Self::Crash(at, _)
            | Self::Stop(at)
            | Self::Start(at)
            | Self::CrashAtWrite(at, _)
            | Self::LoseDisk(at)
            | Self::CopyDisk(at)
            | Self::RestoreDisk(at)
            | Self::FillDisk(at)
            | Self::ClearDisk(at)
            | Self::Wall(at, _)
            | Self::Drift(at, _)
            | Self::Smear(at, _)
            | Self::Counter(at, _) => vec![*at],
            Self::Order(at, command) => std::iter::once(*at).chain(command.place()).collect(),
            Self::Store(StoreFault::FailsOver(place)) => place.iter().copied().collect(),
            Self::Store(_) | Self::Heal => Vec::new(),
        }
    }

    /// Whether the fault may end the same fault more than once, as steps that are repeated or tried again do.
    pub fn is_repeated(&self) -> bool {
        matches!(self, Self::Start(_) | Self::LoseDisk(_) | Self::RestoreDisk(_) | Self::Order(..))
    }
}

/// Faults of a store that nodes share, and their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StoreFault {
    /// The store answers nobody.
    Gone,
    /// Each way takes this many milliseconds longer.
    Slow(u64),
    /// This percentage of calls is lost, and also of answers: calls whose answer is lost were executed.
    Lossy(u32),
    /// A replica copies everything that the store has now, and hears of nothing later.
    Copied,
    /// The replica takes the store's place, with what it has. One node, if any, does not hear of the
    /// fail-over, and goes on with the old store until all is well again.
    FailsOver(Option<Place>),
    /// The store begins again, with nothing.
    Forgets,
    /// The store is there for every node, at full speed, with what it has.
    Back,
}

impl StoreFault {
    /// Whether the fault lasts until the store is back.
    pub(crate) const fn ends_with_back(self) -> bool {
        match self {
            Self::Gone | Self::FailsOver(Some(_)) => true,
            Self::Slow(ms) => ms > 0,
            Self::Lossy(percent) => percent > 0,
            Self::Copied | Self::FailsOver(None) | Self::Forgets | Self::Back => false,
        }
    }
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the store is gone"),
            Self::Slow(ms) => write!(f, "the store takes {ms} ms longer each way"),
            Self::Lossy(percent) => write!(f, "lose {percent} % of calls of the store"),
            Self::Copied => f.write_str("a replica has what the store has"),
            Self::FailsOver(None) => f.write_str("the store fails over to its replica"),
            Self::FailsOver(Some(at)) => {
                write!(f, "the store fails over to its replica, but for {}", NAMES[*at])
            }
            Self::Forgets => f.write_str("the store begins again with nothing"),
            Self::Back => f.write_str("the store is back"),
        }
    }
}

/// What becomes of unsynced data on a disk when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leftover {
    /// All of it is lost.
    Lost,
    /// All of it was written.
    Written,
    /// Each sector was written or not.
    Torn,
}

/// An operator's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// New numbers for a limit, by their names in a config.
    Budget {
        /// The limit's name.
        limit: String,
        /// Names and values, such as `rate` and `40/s`.
        numbers: Vec<(String, String)>,
    },
    /// A new weight for a region.
    Weight(Place, u32),
    /// A region is gone, on the operator's word. He gives it only if its process has ended and its disk is
    /// lost.
    Evict(Place),
    /// A region is gone, on the word of an operator who does not check.
    EvictAlive(Place),
    /// A region leaves.
    Remove(Place),
    /// A region is let in, with a weight.
    Add(Place, u32),
    /// A region that lost its disk gets its share again.
    Recover(Place),
    /// The node becomes the authority, on the operator's word that the old one is gone. The word is given as
    /// for [`Command::Evict`].
    TakeOver,
}

/// Faults in the order of their times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule(Vec<(Duration, Fault)>);

impl Schedule {
    /// Adds a fault. Faults of the same time happen in the order in which they were added.
    pub fn at(&mut self, when: Duration, fault: Fault) -> &mut Self {
        let place = self.0.partition_point(|(earlier, _)| *earlier <= when);
        self.0.insert(place, (when, fault));
        self
    }

    /// Splits the regions into parts that do not hear each other, from one time to another.
    pub fn split(&mut self, from: Duration, until: Duration, parts: &[&[Place]]) -> &mut Self {
        for (place, part) in parts.iter().enumerate() {
            for (one, other) in parts[place + 1..].iter().flat_map(|later| pairs(part, later)) {
                self.at(from, Fault::Cut(one, other)).at(until, Fault::Mend(one, other));
            }
        }
        self
    }

    /// Adds a fault that lasts from one time to another, and its end.
    pub fn during(&mut self, from: Duration, until: Duration, fault: Fault, mend: Fault) -> &mut Self {
        self.at(from, fault).at(until, mend)
    }

    /// The largest error of any clock's rate, in parts per million.
    pub fn drift_ppm_max(&self) -> u64 {
        let drift = |fault: &Fault| if let Fault::Drift(_, ppm) = fault { ppm.unsigned_abs() } else { 0 };
        self.0.iter().map(|(_, fault)| drift(fault)).max().unwrap_or(0)
    }

    /// The largest distance of any wall from its first setting, in milliseconds.
    pub fn wall_ms_max(&self) -> u64 {
        let mut walls = [0_i64; NAMES.len()];
        let set = |(_, fault): &(Duration, Fault)| {
            let Fault::Wall(at, ms) = fault else { return 0 };
            walls[*at] += ms;
            walls[*at].unsigned_abs()
        };
        self.0.iter().map(set).max().unwrap_or(0)
    }

    /// All faults.
    pub fn faults(&self) -> &[(Duration, Fault)] {
        &self.0
    }
}

fn pairs(one: &[Place], other: &[Place]) -> impl Iterator<Item = (Place, Place)> {
    one.iter().flat_map(move |a| other.iter().map(move |b| (*a, *b)))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |place: &Place| NAMES[*place];
        match self {
            Self::Cut(a, b) => write!(f, "cut {} | {}", name(a), name(b)),
            Self::CutOneWay(a, b) => write!(f, "cut {} -> {}", name(a), name(b)),
            Self::Mend(a, b) => write!(f, "mend {} - {}", name(a), name(b)),
            Self::Hold(a, b) => write!(f, "hold {} - {}", name(a), name(b)),
            Self::Release(a, b) => write!(f, "release {} - {}", name(a), name(b)),
            Self::Slow(a, b, ms) => write!(f, "slow {} - {} to {ms} ms", name(a), name(b)),
            Self::Lose(a, b, percent) => write!(f, "lose {percent} % between {} - {}", name(a), name(b)),
            Self::Sleep(at) => write!(f, "put {} to sleep", name(at)),
            Self::Wake(at) => write!(f, "wake {}", name(at)),
            Self::Crash(at, leftover) => {
                let leftover = match leftover {
                    Leftover::Lost => "lost",
                    Leftover::Written => "written",
                    Leftover::Torn => "torn",
                };
                write!(f, "crash {}, the unsynced {leftover}", name(at))
            }
            Self::Stop(at) => write!(f, "stop {}", name(at)),
            Self::Start(at) => write!(f, "start {}", name(at)),
            Self::CrashAtWrite(at, after) => write!(f, "crash {} at the write after {after} more", name(at)),
            Self::LoseDisk(at) => write!(f, "lose the disk of {}", name(at)),
            Self::CopyDisk(at) => write!(f, "copy the disk of {}", name(at)),
            Self::RestoreDisk(at) => write!(f, "restore the old disk of {}", name(at)),
            Self::FillDisk(at) => write!(f, "fill the disk of {}", name(at)),
            Self::ClearDisk(at) => write!(f, "clear the disk of {}", name(at)),
            Self::Wall(at, ms) => write!(f, "set the wall of {} by {ms:+} ms", name(at)),
            Self::Drift(at, ppm) => write!(f, "let {} drift by {ppm:+} ppm", name(at)),
            Self::Smear(at, ppm) => write!(f, "smear the wall of {} by {ppm:+} ppm", name(at)),
            Self::Counter(at, ms) => write!(f, "let the counter of {} jump by {ms:+} ms", name(at)),
            Self::Order(at, command) => write!(f, "at {}: {command}", name(at)),
            Self::Store(fault) => fault.fmt(f),
            Self::Exclude(at, of, s) => {
                write!(f, "at {}: store exclude {} --for {s}s", name(at), name(of))
            }
            Self::Heal => f.write_str("heal"),
        }
    }
}

impl Command {
    /// The region that the order is about, besides the node that carries it out.
    const fn place(&self) -> Option<Place> {
        match self {
            Self::Weight(at, _)
            | Self::Evict(at)
            | Self::EvictAlive(at)
            | Self::Remove(at)
            | Self::Add(at, _)
            | Self::Recover(at) => Some(*at),
            Self::Budget { .. } | Self::TakeOver => None,
        }
    }

    /// A new number for a limit.
    pub fn budget(limit: &str, name: &str, value: &str) -> Self {
        Self::Budget { limit: limit.to_owned(), numbers: vec![(name.to_owned(), value.to_owned())] }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Budget { limit, numbers } => {
                write!(f, "budget set {limit}")?;
                numbers.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
            }
            Self::Weight(at, weight) => write!(f, "regions weight {} {weight}", NAMES[*at]),
            Self::Evict(at) => write!(f, "regions evict {}", NAMES[*at]),
            Self::EvictAlive(at) => write!(f, "regions evict {}, alive or not", NAMES[*at]),
            Self::Remove(at) => write!(f, "regions remove {}", NAMES[*at]),
            Self::Add(at, weight) => write!(f, "regions add {} --weight {weight}", NAMES[*at]),
            Self::Recover(at) => write!(f, "regions recover {}", NAMES[*at]),
            Self::TakeOver => f.write_str("authority take-over"),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(when, fault)| writeln!(f, "{:8.3} s  {fault}", when.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_cuts_every_pair_across_it_and_no_other() {
        let mut schedule = Schedule::default();
        schedule.split(Duration::from_secs(1), Duration::from_secs(2), &[&[0, 1], &[2], &[3]]);
        let cut = |fault: &Fault| matches!(fault, Fault::Cut(..));
        assert_eq!(schedule.faults().iter().filter(|(_, fault)| cut(fault)).count(), 5);
        assert!(!schedule.to_string().contains(&format!("cut {} | {}", NAMES[0], NAMES[1])));
        assert!(schedule.faults().is_sorted_by_key(|(when, _)| *when));
    }
}
