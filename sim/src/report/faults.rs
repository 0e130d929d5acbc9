//! The faults of a schedule as stretches of time and instants, described for people.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    NAMES,
    schedule::{Command, Fault, Place, StoreFault},
    series::Series,
};

/// A fault that lasts for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) from: Duration,
    pub(super) until: Duration,
    pub(super) kind: Kind,
    /// The description.
    pub(super) what: String,
    /// Whether the fault splits the regions into parts that hear nothing of each other.
    pub(super) is_split: bool,
}

/// Kinds of lasting faults, in the order in which a plot shows them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Nothing passes between these pairs.
    Cut(BTreeSet<(Place, Place)>),
    /// Nothing passes from the first to the second.
    OneWay(BTreeSet<(Place, Place)>),
    /// Packets between these pairs are held back.
    Held(BTreeSet<(Place, Place)>),
    /// A region's process is down.
    Down(Place),
    /// Any other fault: something is slower or wrong.
    Other,
}

/// A fault that happens at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Duration,
    /// The description.
    pub(super) what: String,
}

/// A fault that has begun, keyed by what ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Open {
    Cut(Place, Place),
    OneWay(Place, Place),
    Held(Place, Place),
    Slow(Place, Place, u64),
    Lossy(Place, Place, u32),
    Asleep(Place),
    Full(Place),
    Drift(Place, i64),
    Store(StoreFault),
}

impl Open {
    fn is_ended_by(self, fault: &Fault) -> bool {
        let is_pair = |a: Place, b: Place, c: Place, d: Place| (a, b) == (c, d) || (a, b) == (d, c);
        match (self, fault) {
            (Self::Cut(a, b) | Self::OneWay(a, b), Fault::Mend(c, d)) => is_pair(a, b, *c, *d),
            (Self::Held(a, b), Fault::Release(c, d)) => is_pair(a, b, *c, *d),
            (Self::Slow(a, b, _), Fault::Slow(c, d, _)) => is_pair(a, b, *c, *d),
            (Self::Lossy(a, b, _), Fault::Lose(c, d, _) | Fault::Mend(c, d)) => is_pair(a, b, *c, *d),
            (Self::Asleep(at), Fault::Wake(other)) => at == *other,
            (Self::Full(at), Fault::ClearDisk(other)) | (Self::Drift(at, _), Fault::Drift(other, _)) => {
                at == *other
            }
            (Self::Cut(..) | Self::OneWay(..) | Self::Held(..) | Self::Full(_), Fault::Heal)
            | (Self::Lossy(..) | Self::Asleep(_) | Self::Store(_), Fault::Heal) => true,
            (Self::Store(_), Fault::Store(fault)) => *fault == StoreFault::Back,
            _ => false,
        }
    }

    fn of(fault: &Fault, usual_ms: u64) -> Option<Self> {
        Some(match *fault {
            Fault::Cut(a, b) => Self::Cut(a.min(b), a.max(b)),
            Fault::CutOneWay(a, b) => Self::OneWay(a, b),
            Fault::Hold(a, b) => Self::Held(a.min(b), a.max(b)),
            Fault::Slow(a, b, ms) if ms > usual_ms => Self::Slow(a.min(b), a.max(b), ms),
            Fault::Lose(a, b, percent) if percent > 0 => Self::Lossy(a.min(b), a.max(b), percent),
            Fault::Sleep(at) => Self::Asleep(at),
            Fault::FillDisk(at) => Self::Full(at),
            Fault::Drift(at, ppm) if ppm != 0 => Self::Drift(at, ppm),
            Fault::Store(fault) if fault.ends_with_back() => Self::Store(fault),
            _ => return None,
        })
    }
}

/// The lasting faults, with their stretches of time. `usual_ms` is the longest packet delay without a fault.
pub(super) fn troubles(
    faults: &[(Duration, Fault)],
    regions: usize,
    usual_ms: u64,
    series: &Series,
) -> Vec<Trouble> {
    let mut open: BTreeMap<Open, Duration> = BTreeMap::new();
    let mut ended: BTreeMap<(Duration, Duration), Vec<Open>> = BTreeMap::new();
    for (at, fault) in faults {
        let over: Vec<Open> = open.keys().copied().filter(|open| open.is_ended_by(fault)).collect();
        for one in over {
            let from = open.remove(&one).unwrap_or(*at);
            ended.entry((from, *at)).or_default().push(one);
        }
        if let Some(one) = Open::of(fault, usual_ms) {
            open.entry(one).or_insert(*at);
        }
    }
    for (one, from) in open {
        ended.entry((from, series.ended)).or_default().push(one);
    }
    let mut troubles = Vec::new();
    for ((from, until), together) in ended {
        let pairs = |of: fn(&Open) -> Option<(Place, Place)>| -> BTreeSet<_> {
            together.iter().filter_map(of).collect()
        };
        let cut = pairs(|one| if let Open::Cut(a, b) = one { Some((*a, *b)) } else { None });
        let one_way = pairs(|one| if let Open::OneWay(a, b) = one { Some((*a, *b)) } else { None });
        let held = pairs(|one| if let Open::Held(a, b) = one { Some((*a, *b)) } else { None });
        let mut add = |kind, what, is_split| troubles.push(Trouble { from, until, kind, what, is_split });
        if !cut.is_empty() {
            let parts = parts(&cut, regions);
            let is_split = parts.is_some();
            let what = format!("{} cut", parts.unwrap_or_else(|| listed(&cut, " | ")));
            add(Kind::Cut(cut), what, is_split);
        }
        if !one_way.is_empty() {
            let what = format!("{} cut one way", listed(&one_way, " → "));
            add(Kind::OneWay(one_way), what, false);
        }
        if !held.is_empty() {
            let what = format!("{} held", listed(&held, " – "));
            add(Kind::Held(held), what, false);
        }
        for one in &together {
            match *one {
                Open::Slow(a, b, ms) => {
                    add(Kind::Other, format!("{} – {} {ms} ms", NAMES[a], NAMES[b]), false);
                }
                Open::Lossy(a, b, percent) => {
                    add(Kind::Other, format!("{} – {} lose {percent} %", NAMES[a], NAMES[b]), false);
                }
                Open::Store(fault) => add(Kind::Other, fault.to_string(), false),
                Open::Asleep(at) => add(Kind::Down(at), format!("{} asleep", NAMES[at]), false),
                Open::Full(at) => add(Kind::Other, format!("disk of {} full", NAMES[at]), false),
                Open::Drift(at, ppm) => {
                    add(Kind::Other, format!("clock of {} {ppm:+} ppm", NAMES[at]), false)
                }
                _ => {}
            }
        }
    }
    for (place, name) in NAMES[..regions].iter().enumerate() {
        let down = series.down(place).into_iter();
        troubles.extend(down.map(|(from, until)| Trouble {
            from,
            until,
            kind: Kind::Down(place),
            what: format!("{name} down"),
            is_split: false,
        }));
    }
    troubles.sort_by(|one, other| (one.from, &one.kind).cmp(&(other.from, &other.kind)));
    troubles
}

/// The faults of an instant: clocks that are set, disks that are lost, operators' orders.
pub(super) fn moments(faults: &[(Duration, Fault)]) -> Vec<Moment> {
    let what = |fault: &Fault| match fault {
        Fault::Wall(at, ms) if *ms != 0 => Some(format!("clock of {} {ms:+} ms", NAMES[*at])),
        Fault::LoseDisk(at) => Some(format!("{} loses its disk", NAMES[*at])),
        Fault::Store(fault @ (StoreFault::Forgets | StoreFault::FailsOver(None))) => Some(fault.to_string()),
        Fault::Exclude(_, of, _) => Some(format!("{} excluded", NAMES[*of])),
        Fault::RestoreDisk(at) => Some(format!("{} gets an old disk", NAMES[*at])),
        Fault::Order(_, Command::Budget { limit, numbers }) => {
            let numbers = numbers.iter().map(|(name, value)| format!("{name} {value}"));
            Some(format!("{limit}: {}", numbers.collect::<Vec<_>>().join(", ")))
        }
        Fault::Order(_, Command::Weight(at, weight)) => Some(format!("weight of {} {weight}", NAMES[*at])),
        Fault::Order(_, command) => Some(command.to_string().trim_start_matches("regions ").to_owned()),
        _ => None,
    };
    let moment = |(at, fault): &(Duration, Fault)| Some(Moment { at: *at, what: what(fault)? });
    faults.iter().filter_map(moment).collect()
}

/// The parts into which the cut pairs split the regions; `None` if they do not split them.
fn parts(cut: &BTreeSet<(Place, Place)>, regions: usize) -> Option<String> {
    let mut part: Vec<Place> = (0..regions).collect();
    for (a, b) in pairs_of(regions).filter(|pair| !cut.contains(pair)) {
        let (one, other) = (part[a].min(part[b]), part[a].max(part[b]));
        part.iter_mut().filter(|part| **part == other).for_each(|part| *part = one);
    }
    if pairs_of(regions).any(|(a, b)| cut.contains(&(a, b)) != (part[a] != part[b])) {
        return None;
    }
    let first: BTreeSet<Place> = part.iter().copied().collect();
    let names = |of: &Place| {
        let members = (0..regions).filter(|place| part[*place] == *of).map(|place| NAMES[place]);
        members.collect::<Vec<_>>().join(", ")
    };
    Some(first.iter().map(names).collect::<Vec<_>>().join(" | "))
}

fn pairs_of(regions: usize) -> impl Iterator<Item = (Place, Place)> {
    (0..regions).flat_map(move |a| (a + 1..regions).map(move |b| (a, b)))
}

fn listed(pairs: &BTreeSet<(Place, Place)>, between: &str) -> String {
    let pairs = pairs.iter().map(|(a, b)| format!("{}{between}{}", NAMES[*a], NAMES[*b]));
    pairs.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn described(schedule: &Schedule, regions: usize) -> Vec<(u64, u64, String)> {
        let series = Series { ended: seconds(50), ..Series::default() };
        let series = Series { is_up: vec![Vec::new(); regions], ..series };
        let troubles = troubles(schedule.faults(), regions, 40, &series);
        troubles.into_iter().map(|t| (t.from.as_secs(), t.until.as_secs(), t.what)).collect()
    }

    #[test]
    fn a_split_is_described_by_its_parts() {
        let mut schedule = Schedule::default();
        schedule.split(seconds(5), seconds(9), &[&[0], &[1, 2]]);
        assert_eq!(described(&schedule, 3), [(5, 9, "eu | us, ap cut".to_owned())]);
        let mut schedule = Schedule::default();
        schedule.split(seconds(5), seconds(9), &[&[0, 4], &[1], &[2, 3]]);
        assert_eq!(described(&schedule, 5), [(5, 9, "eu, af | us | ap, sa cut".to_owned())]);
    }

    #[test]
    fn a_cut_that_divides_nothing_is_described_by_its_ends_and_lasts_until_it_is_mended() {
        let mut schedule = Schedule::default();
        schedule.at(seconds(1), Fault::Cut(1, 0)).at(seconds(3), Fault::CutOneWay(2, 0));
        schedule.at(seconds(4), Fault::Mend(0, 1)).at(seconds(6), Fault::Slow(0, 2, 150));
        schedule.at(seconds(8), Fault::Heal);
        let lines = [
            (1, 4, "eu | us cut".to_owned()),
            (3, 8, "ap → eu cut one way".to_owned()),
            (6, 50, "eu – ap 150 ms".to_owned()),
        ];
        assert_eq!(described(&schedule, 3), lines);
    }

    #[test]
    fn orders_and_clocks_are_moments() {
        let mut schedule = Schedule::default();
        let numbers = vec![("rate".to_owned(), "20/s".to_owned())];
        schedule.at(seconds(1), Fault::Wall(1, -4));
        schedule.at(seconds(2), Fault::Order(0, Command::Budget { limit: "api".to_owned(), numbers }));
        let what: Vec<_> = moments(schedule.faults()).into_iter().map(|moment| moment.what).collect();
        assert_eq!(what, ["clock of us -4 ms", "api: rate 20/s"]);
    }
}
