//! A split brain from the first loan to the healing: the worked history of `crates/rights/README.md`.
//!
//! `cargo test -p acequia-node --test node split_brain:: -- --nocapture` prints the table in that README.

use crate::regions::{self, MS, S, START, World};
use acequia_limits::{Part, RATE_PARTS};

const RATE: u64 = 900;
const BURST: u64 = 300;
const NAMES: [&str; 3] = ["eu", "us", "ap"];
const EU: usize = 0;
const US: usize = 1;
const AP: usize = 2;
/// Units a second that each region is asked for. Together the regions are asked for more than the limit.
const DEMAND: [u64; 3] = [600, 350, 100];

/// The history, in steps of a millisecond.
struct Story {
    world: World,
    /// The level of one bucket with the whole limit, to which everything is charged, in thousandths of a
    /// unit.
    whole_milli: u64,
    /// The part of each region's demand that does not fill a request yet, in thousandths of a unit.
    owed_milli: [u64; 3],
    /// What each region had admitted when the table was last printed.
    shown: [u64; 3],
}

impl Story {
    fn run_ms(&mut self) {
        let (owed, before) = (&mut self.owed_milli, self.world.admitted());
        self.world.run(MS, |region, _| {
            owed[region] += DEMAND[region];
            let asked = owed[region] / 1_000;
            owed[region] %= 1_000;
            asked
        });
        // The promise over every interval: one bucket with the whole limit would have admitted this, too.
        let charged_milli = (self.world.admitted() - before) * 1_000;
        self.whole_milli = (self.whole_milli + RATE).min(BURST * 1_000);
        assert!(charged_milli <= self.whole_milli, "more than the limit at {} ms", self.ms());
        self.whole_milli -= charged_milli;
        // The reason for the promise: no part is used by two regions.
        let (all, lent, held) = self.sums();
        assert!(all.rate <= RATE_PARTS && all.units <= BURST, "{all:?} at {} ms", self.ms());
        assert!(held.rate <= lent.rate && held.units <= lent.units, "held {held:?} of {lent:?}");
    }

    /// Runs to a time of the world, in milliseconds.
    fn run_to(&mut self, ms: u64) {
        while self.ms() < ms {
            self.run_ms();
        }
    }

    fn run_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let most = self.ms() + 10_000;
        while !is_so(self) {
            assert!(self.ms() < most, "no {what} in ten seconds");
            self.run_ms();
        }
    }

    fn ms(&self) -> u64 {
        (self.world.now - START) / MS
    }

    fn held(&mut self, region: usize) -> Part {
        self.world.peek(region, "k").0.held
    }

    fn lent(&mut self, region: usize) -> Part {
        self.world.peek(region, "k").0.lent
    }

    /// Sums over all regions: what they may use, have lent, and hold.
    fn sums(&mut self) -> (Part, Part, Part) {
        let mut sums = (Part::default(), Part::default(), Part::default());
        for region in 0..NAMES.len() {
            let (holding, _) = self.world.peek(region, "k");
            add(&mut sums.0, holding.effective);
            add(&mut sums.1, holding.lent);
            add(&mut sums.2, holding.held);
        }
        sums
    }

    /// Prints a line for each region and one for all. `admitted` counts from the previous lines.
    fn show(&mut self, what: &str) {
        let time = format!("{}.{:03} s", self.ms() / 1_000, self.ms() % 1_000);
        let (mut debts, mut since) = (0, 0);
        for (region, name) in NAMES.iter().enumerate() {
            let (holding, verdict) = self.world.peek(region, "k");
            // A debt drains at the region's rate, slowed by the drift bound.
            let rate = u128::from(u64::from(holding.effective.rate) * RATE * 1_000);
            let whole = u128::from(u64::from(RATE_PARTS) * 1_001 * S);
            let debt = (u128::from(verdict.reset_after_ns) * rate).div_ceil(whole);
            let admitted = self.world.places[region].admitted - self.shown[region];
            let [standing, held, lent, effective] =
                [holding.standing, holding.held, holding.lent, holding.effective].map(text);
            let first = [time.as_str(), what, ""][region];
            eprintln!(
                "| {first} | {name} | {standing} | {held} | {lent} | {effective} | {debt} | {admitted} |"
            );
            self.shown[region] += admitted;
            debts += debt;
            since += admitted;
        }
        let (all, lent, held) = self.sums();
        let [all, lent, held] = [all, lent, held].map(text);
        eprintln!("| | all | {RATE} + {BURST} | {held} | {lent} | {all} | {debts} | {since} |");
    }
}

fn add(sum: &mut Part, part: Part) {
    sum.rate += part.rate;
    sum.units += part.units;
}

/// Formats a part as units a second, and units.
fn text(part: Part) -> String {
    if part == Part::default() {
        return "–".to_owned();
    }
    let rate = (u64::from(part.rate) * RATE + u64::from(RATE_PARTS) / 2) / u64::from(RATE_PARTS);
    format!("{rate} + {}", part.units)
}

#[test]
fn a_split_brain_admits_no_more_than_the_limit() {
    let mut world = World::new(3, &[regions::bucket("b", "900/s", BURST)], 40 * MS);
    // The catalogue spreads. No requests come yet.
    world.run(2 * S, |_, _| 0);
    assert!(world.all_settled(), "{:#?}", world.memberships());
    let mut story = Story { world, whole_milli: BURST * 1_000, owed_milli: [0; 3], shown: [0; 3] };
    eprintln!("| time | region | standing | holds | has lent | may use | debt | admitted |");
    eprintln!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    story.show("");

    story.run_to(8_000);
    story.show("the cut");
    let lent = story.lent(AP);
    assert!(lent.rate > RATE_PARTS / 6, "parts are lent when the links are cut");
    story.world.cut = vec![(EU, US), (US, EU), (EU, AP), (AP, EU)];

    // The holder's loan ends first, and the giver's record of the loan later.
    story.run_until("an end at the holder", |story| story.held(EU) == Part::default());
    story.show("the holder's end");
    assert_eq!(story.lent(AP), lent, "the giver waits");
    story.run_until("an end at the giver", |story| story.lent(AP) != lent);
    story.show("the giver's end");
    assert_eq!(story.lent(AP), story.held(US), "what is lent on the own side of the cut goes on");

    story.run_to(16_000);
    story.show("healed");
    let admitted = story.world.places[EU].admitted;
    story.world.cut.clear();
    story.run_until("a loan after the cut", |story| story.held(EU) != Part::default());
    story.show("a loan again");
    story.run_to(20_000);
    story.show("");
    let again = story.lent(AP);
    let moved = again.rate.abs_diff(lent.rate);
    assert!(moved < RATE_PARTS / 1_000 && again.units == lent.units, "{again:?}, as it was: {lent:?}");
    assert!(story.world.places[EU].admitted - admitted > 4 * DEMAND[EU] * 7 / 10, "service resumes");

    let seconds = (story.ms() - 2_000) / 1_000;
    let (admitted, most) = (story.world.admitted(), BURST + RATE * seconds);
    eprintln!(
        "\nadmitted in {seconds} s: {admitted}, of at most {most}; most loans of a cell: {}",
        story.world.traffic().iter().map(|traffic| traffic.loans_max).max().unwrap_or(0)
    );
    assert!(admitted <= most);
}
