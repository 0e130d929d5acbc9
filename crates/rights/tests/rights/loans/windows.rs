//! Rights inside windows under an adversary, as in the in-window part of `shared/model/rights_check.py`.
//!
//! Regions disagree about the time, so some are a window ahead of others. Spending is first reserved on disk,
//! and after a crash the reservation counts as spent. Transfers are reported as cumulative sums, also by
//! relays. The reports are lost, repeated and reordered. Budgets rise and fall, and the largest budget in
//! force limits a window. One disk at a time may be restored from an older copy. The region then waits until
//! it knows what all its peers have received.

use std::collections::BTreeMap;

use acequia_limits::UNITS_MAX;
use acequia_rights::{Refusal, Transfers, UsageRow, identity::MemberId};

use super::random::Random;

const REGIONS: usize = 4;
const WINDOW: u64 = 1_000;
const SKEW: u64 = 80;

/// A region's state of one window.
#[derive(Clone, Debug, Default)]
struct Cell {
    transfers: Transfers,
    /// Reserved on disk: a crash counts this as spent.
    row: UsageRow,
    /// True spending and refunds. Spending never exceeds the reservation.
    spent: u64,
}

#[derive(Clone, Debug, Default)]
struct Actor {
    cells: BTreeMap<u64, Cell>,
    offset: u64,
    newest: u64,
    version: usize,
    /// After a restore: peers whose echo is awaited.
    awaits: Vec<usize>,
    /// The region has a new incarnation, and owns nothing in windows that end before this time.
    fenced_until: u64,
    old_disk: Option<BTreeMap<u64, Transfers>>,
}

#[derive(Clone, Copy, Debug)]
enum Message {
    /// What `giver` has given `receiver` in all. Anyone may report this.
    Given {
        end: u64,
        giver: usize,
        receiver: usize,
        units: u64,
    },
    /// What the sender has received from the message's receiver.
    Echo {
        end: u64,
        from: usize,
        units: u64,
    },
    Version(usize),
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub admitted: u64,
    pub transfers: u64,
    pub received: u64,
    pub refunds: u64,
    pub crashes: u64,
    pub restores: u64,
}

pub(super) struct World {
    random: Random,
    now: u64,
    actors: Vec<Actor>,
    net: Vec<(usize, Message)>,
    budgets: Vec<u64>,
    /// The last region with a restored disk, and the time.
    restored: (usize, u64),
    /// True net use of each window, and the largest budget that any region went by in it.
    used: BTreeMap<u64, (u64, u64)>,
    pub seen: Seen,
}

fn id(region: usize) -> MemberId {
    MemberId(region as u16)
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let actors = (0..REGIONS).map(|_| Actor { offset: random.below(SKEW), ..Actor::default() }).collect();
        Self {
            random,
            now: 0,
            actors,
            net: Vec::new(),
            budgets: vec![60],
            restored: (0, 0),
            used: BTreeMap::new(),
            seen: Seen::default(),
        }
    }

    fn standing(&self, i: usize) -> u64 {
        (self.budgets[self.actors[i].version] + (REGIONS - 1 - i) as u64) / REGIONS as u64
    }

    /// The region's current window, which never goes back.
    fn open(&mut self, i: usize) -> u64 {
        let a = &mut self.actors[i];
        let end = ((self.now + a.offset) / WINDOW + 1) * WINDOW;
        a.newest = a.newest.max(end);
        let newest = a.newest;
        a.cells.retain(|end, _| end + 2 * WINDOW > newest);
        a.cells
            .entry(newest)
            .or_insert_with(|| Cell { transfers: Transfers::new(newest), ..Cell::default() });
        newest
    }

    fn limit(&self, i: usize, end: u64) -> u64 {
        self.actors[i].cells[&end].transfers.limit(self.standing(i))
    }

    fn may_spend(&self, i: usize) -> bool {
        let a = &self.actors[i];
        a.fenced_until < a.newest && a.awaits.is_empty()
    }

    fn admit(&mut self, i: usize, cost: u64) {
        let end = self.open(i);
        if !self.may_spend(i) {
            return;
        }
        let limit = self.limit(i, end);
        let ahead = self.random.pick(&[0, 0, 3]);
        let cell = self.actors[i].cells.get_mut(&end).expect("open");
        if cell.spent + cost > cell.row.spent() {
            let need = cell.spent + cost - cell.row.spent();
            if cell.row.spend(need + ahead, limit).is_err() && cell.row.spend(need, limit).is_err() {
                return;
            }
        }
        cell.spent += cost;
        self.seen.admitted += cost;
        self.in_force(end).0 += cost;
    }

    /// A window's use and limit. Current budgets apply to what is used or given now.
    fn in_force(&mut self, end: u64) -> &mut (u64, u64) {
        let budget = self.actors.iter().map(|a| self.budgets[a.version]).max().expect("regions");
        let used = self.used.entry(end).or_default();
        used.1 = used.1.max(budget);
        used
    }

    fn refund(&mut self, i: usize) {
        let end = self.open(i);
        let units = 1 + self.random.below(3);
        let Some(cell) = self.actors[i].cells.get_mut(&end) else { return };
        let used = self.used.get(&end).map_or(0, |used| used.0);
        // The refund is at most what was charged here. Sometimes it is more, and is refused.
        if units > cell.spent - cell.row.refunded() && !self.random.chance(1_000) || units > used {
            return;
        }
        let before = cell.row;
        if units <= cell.spent - cell.row.refunded() {
            cell.row.refund(units).expect("was spent");
            self.used.get_mut(&end).expect("was used").0 -= units;
            self.seen.refunds += 1;
        } else if cell.row.spent() == cell.spent && cell.row.refund(units).is_ok() {
            assert!(cell.row.refunded() <= cell.row.spent(), "refunded {:?} from {before:?}", cell.row);
        }
    }

    fn give(&mut self, i: usize) {
        let end = self.open(i);
        if !self.may_spend(i) {
            return;
        }
        let to = (i + 1 + self.random.index(REGIONS - 1)) % REGIONS;
        let limit = self.limit(i, end);
        let cell = self.actors[i].cells.get_mut(&end).expect("open");
        let available = limit.saturating_sub(cell.row.used());
        let units = self.random.below(available + 3);
        let Ok(cumulative) = cell.transfers.give(id(to), units, available) else { return };
        self.seen.transfers += 1;
        self.in_force(end);
        if self.random.chance(500) {
            // The gift is written, and never sent.
            return self.crash(i);
        }
        self.net.push((to, Message::Given { end, giver: i, receiver: to, units: cumulative }));
    }

    /// Repeats reports of gifts; a relay reports nothing newer than it knows.
    fn tell(&mut self, i: usize) {
        let end = self.open(i);
        let to = (i + 1 + self.random.index(REGIONS - 1)) % REGIONS;
        let cell = &self.actors[i].cells[&end];
        for (region, units) in cell.transfers.given() {
            let receiver = usize::from(region.0);
            self.net.push((receiver, Message::Given { end, giver: i, receiver, units: *units }));
        }
        let received = cell.transfers.received().iter().find(|(region, _)| *region == id(to));
        let units = received.map_or(0, |(_, units)| *units);
        self.net.push((to, Message::Echo { end, from: i, units }));
    }

    fn crash(&mut self, i: usize) {
        self.seen.crashes += 1;
        for cell in self.actors[i].cells.values_mut() {
            // All that was reserved counts as spent.
            cell.spent = cell.row.spent();
        }
    }

    fn restore(&mut self, i: usize) {
        self.open(i);
        // One disk at a time: if giver and receiver both lost a gift, nobody could notice.
        let (last, at) = self.restored;
        if last != i && self.now < at + 4 * WINDOW {
            return;
        }
        let (now, restored) = (self.now, &mut self.restored);
        let a = &mut self.actors[i];
        if a.fenced_until >= a.newest {
            return;
        }
        match a.old_disk.take() {
            None => {
                a.old_disk = Some(a.cells.iter().map(|(end, cell)| (*end, cell.transfers.clone())).collect())
            }
            Some(mut old) => {
                *restored = (i, now);
                self.seen.restores += 1;
                for (end, cell) in &mut a.cells {
                    // The old disk knows fewer gifts to others. Gifts from others are reported again.
                    cell.transfers = old.remove(end).unwrap_or_else(|| Transfers::new(*end));
                }
                a.awaits = (0..REGIONS).filter(|peer| *peer != i).collect();
                // A restore takes longer than messages live. Otherwise a gift could arrive after its
                // receiver's echo.
                self.net
                    .retain(|(_, message)| !matches!(message, Message::Given { giver, .. } if *giver == i));
            }
        }
    }

    fn deliver(&mut self) {
        if self.net.is_empty() {
            return;
        }
        let place = self.random.index(self.net.len());
        let (to, message) = self.net[place];
        if self.random.chance(7_000) {
            self.net.swap_remove(place);
        }
        if self.random.chance(1_500) {
            return;
        }
        self.open(to);
        let newest = self.actors[to].newest;
        let a = &mut self.actors[to];
        match message {
            Message::Given { end, giver, receiver, units } => {
                assert_eq!(to, receiver);
                if end + 2 * WINDOW <= newest {
                    return;
                }
                let cell = a
                    .cells
                    .entry(end)
                    .or_insert_with(|| Cell { transfers: Transfers::new(end), ..Cell::default() });
                if cell.transfers.receive(id(giver), units, u64::MAX).is_ok() {
                    self.seen.received += 1;
                }
            }
            Message::Echo { end, from, units } => {
                let Some(cell) = a.cells.get(&end) else { return };
                match cell.transfers.own_echo(id(from), units) {
                    Err(Refusal::RestoredDisk { .. }) => a.fenced_until = newest + WINDOW,
                    // Only an echo that was requested after the restore proves that nothing is missing.
                    Ok(()) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            Message::Version(version) => a.version = a.version.max(version),
        }
    }

    /// A restored region asks a peer what it has received, in every window that may still be used.
    fn ask(&mut self, i: usize) {
        let Some(peer) = self.actors[i].awaits.pop() else { return };
        let ends: Vec<u64> = self.actors[i].cells.keys().copied().collect();
        for end in ends {
            let units = self.actors[peer].cells.get(&end).and_then(|cell| {
                cell.transfers.received().iter().find(|(region, _)| *region == id(i)).map(|(_, units)| *units)
            });
            if let Err(Refusal::RestoredDisk { .. }) =
                self.actors[i].cells[&end].transfers.own_echo(id(peer), units.unwrap_or(0))
            {
                self.actors[i].fenced_until = self.actors[i].newest + WINDOW;
            }
        }
    }

    pub(super) fn step(&mut self) -> Result<(), String> {
        self.now += self.random.below(12);
        let i = self.random.index(REGIONS);
        match self.random.below(1_000) {
            0..400 => {
                let cost = self.random.pick(&[1, 1, 1, 2, 5]);
                self.admit(i, cost);
            }
            400..480 => self.give(i),
            480..520 => self.refund(i),
            520..620 => self.tell(i),
            620..950 => self.deliver(),
            950..960 => self.crash(i),
            960..970 => self.restore(i),
            970..990 => self.ask(i),
            990..992 => {
                let budget = self.random.pick(&[60, 61, 75, 90, 45]);
                if self.budgets.len() < 6 {
                    self.budgets.push(budget);
                }
            }
            992..996 => {
                let newest = self.budgets.len() - 1;
                (0..REGIONS).for_each(|to| self.net.push((to, Message::Version(newest))));
            }
            _ => {
                // Every region is asked for everything.
                for i in 0..REGIONS {
                    for cost in [20, 8, 4, 2, 1, 1] {
                        self.admit(i, cost);
                    }
                }
            }
        }
        if self.net.len() > 200 {
            self.net.drain(..100);
        }
        if let Some((end, (used, limit))) = self.used.last_key_value()
            && used > limit
        {
            return Err(format!("window {end}: used {used} of {limit}"));
        }
        if let Some((end, (used, limit))) = self.used.iter().rev().nth(1)
            && used > limit
        {
            return Err(format!("window {end}: used {used} of {limit}"));
        }
        while self.used.len() > 4 {
            self.used.pop_first();
        }
        Ok(())
    }
}

pub(super) fn run(seed: u64, steps: u64) -> Result<Seen, String> {
    let mut world = World::new(seed);
    for step in 0..steps {
        world.step().map_err(|fault| format!("seed {seed} step {step}: {fault}"))?;
    }
    Ok(world.seen)
}

#[test]
fn no_window_is_used_beyond_its_limit() {
    let start = std::time::Instant::now();
    let mut all = Seen::default();
    let steps = std::env::var("ACEQUIA_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    for seed in 0..steps / 5_000 {
        let seen = run(seed, 5_000).unwrap_or_else(|fault| panic!("{fault}"));
        all.admitted += seen.admitted;
        all.transfers += seen.transfers;
        all.received += seen.received;
        all.refunds += seen.refunds;
        all.crashes += seen.crashes;
        all.restores += seen.restores;
    }
    println!("{:.0} steps/s: {all:?}", steps as f64 / start.elapsed().as_secs_f64());
    assert!(all.received > 1_000 && all.restores > 10, "little happened: {all:?}");
}

#[test]
fn transfers_whose_sum_is_out_of_range_are_refused() {
    let mut transfers = Transfers::new(1);
    assert_eq!(transfers.receive(id(1), u64::MAX, u64::MAX), Err(Refusal::Malformed));
    assert_eq!(transfers.receive(id(1), UNITS_MAX, UNITS_MAX), Ok(UNITS_MAX));
    assert_eq!(transfers.receive(id(2), 1, 1), Err(Refusal::Malformed));
    assert_eq!(transfers.receive(id(1), 5, UNITS_MAX), Err(Refusal::Stale));
    assert_eq!(transfers.limit(u64::MAX), u64::MAX);
    assert_eq!(transfers.give(id(2), 0, 9), Err(Refusal::Empty));
    assert_eq!(transfers.give(id(2), u64::MAX, u64::MAX), Err(Refusal::Malformed));
    assert_eq!(transfers.give(id(2), 7, 7), Ok(7));
    assert_eq!(transfers.give(id(2), 3, 3), Ok(10));
    assert_eq!(transfers.limit(10), UNITS_MAX);
    assert_eq!(transfers.own_echo(id(2), 10), Ok(()));
    assert_eq!(
        transfers.own_echo(id(2), 11),
        Err(Refusal::RestoredDisk { to: id(2), received: 11, given: 10 })
    );
}
