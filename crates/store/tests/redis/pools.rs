//! Equal calls to pools in memory, in a journal and in Redis have equal answers.

use std::{collections::BTreeSet, sync::Arc};

use acequia_limits::{Part, RATE_PARTS, Rate, meter::Meter};
use acequia_rights::pool::{
    Generation, Letter, Taker, bucket,
    group::{Assertion, Begin, Excluded, GroupStatus},
    name::{self, NAMES_MAX, NameState},
    sliding, window,
};
use acequia_store::{
    Journal, MemoryStore,
    pools::{At, CallAnswer, KeptPools, Pools, RedisPools},
    redis::{Group, Missed},
};

use crate::{
    scene::{DEADLINE, group, opened, shards},
    servers::Server,
};

pub(super) const START_US: u64 = 1_800_000_000_000_000;

struct Random(acequia_rights::splitmix::Random);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// A number up to `most`, of any magnitude.
    fn up_to(&mut self, most: u64) -> u64 {
        let bits = u64::from(most.max(1).ilog2()) + 1;
        let within = 1_u64 << self.below(bits + 1).min(62);
        self.below(within + 1).min(most)
    }
}

/// One call.
#[derive(Clone, Debug)]
enum Call {
    Begin(Begin),
    Assert(Assertion, Option<Excluded>),
    Take(window::Take),
    Exchange(bucket::Exchange, bucket::BucketParams),
    Slide(sliding::Slide),
    Name(name::Act),
    Post(Letter, u64),
    Collect(Vec<u128>),
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq)]
enum Came {
    Known(GroupStatus),
    Took(CallAnswer<window::Took>),
    Exchanged(CallAnswer<bucket::Exchanged>),
    Slid(CallAnswer<sliding::Slid>),
    Named(CallAnswer<NameState>),
    Posted(CallAnswer<bool>),
    Collected(CallAnswer<Vec<Letter>>),
}

async fn call(pools: &impl Pools, at: &At<'_>, call: &Call) -> Result<Came, Missed> {
    Ok(match call {
        Call::Begin(begin) => Came::Known(pools.begin(at, begin).await?),
        Call::Assert(assertion, excluded) => {
            Came::Known(pools.assert(at, assertion, excluded.as_ref()).await?)
        }
        Call::Take(take) => Came::Took(pools.take(at, take).await?),
        Call::Exchange(exchange, params) => Came::Exchanged(pools.exchange(at, exchange, params).await?),
        Call::Slide(exchange) => Came::Slid(pools.exchange_sliding(at, exchange).await?),
        Call::Name(act) => Came::Named(pools.name(at, act).await?),
        Call::Post(letter, drops_us) => Came::Posted(pools.post(at, *letter, *drops_us).await?),
        Call::Collect(had) => Came::Collected(pools.collect(at, had).await?),
    })
}

/// Makes random calls.
struct Caller {
    random: Random,
    wall_us: u64,
    calls: u64,
    /// The last generation of each group that was heard.
    generations: [Generation; 2],
    /// The generation before that.
    before: [Generation; 2],
    /// Limits of buckets: each has the whole limit and the pool's part.
    params: Vec<bucket::BucketParams>,
    /// Whether there are more nodes than a pool has records for, and only one cell of each kind.
    is_crowded: bool,
}

impl Caller {
    fn new(seed: u64) -> Self {
        let mut random = Random(acequia_rights::splitmix::Random::from_state(seed));
        let rates = ["10/s", "999/s", "7/m", "1000000/s", "3/h", "1000/d", "123456789/s"];
        let params = (0..3).map(|_| {
            let rate = Rate::parse(rates[random.below(7) as usize]).expect("a rate");
            let most = [40, 1 << 30, 1 << 48][random.below(3) as usize];
            let units = 1 + random.up_to(most);
            let rate_parts = [RATE_PARTS, RATE_PARTS, 0, 1 + random.below(u64::from(RATE_PARTS)) as u32];
            let part = Part { rate: rate_parts[random.below(4) as usize], units };
            let slack_us = [0, 20_000, 20_000, 5_000_000][random.below(4) as usize];
            bucket::BucketParams::of(&Meter::new(rate, units), part, slack_us).expect("parameters")
        });
        let params = params.collect();
        Self {
            random,
            wall_us: START_US,
            calls: 0,
            generations: Default::default(),
            before: Default::default(),
            params,
            is_crowded: seed % 4 == 2,
        }
    }

    fn draw(&mut self) -> (Group, String, u64, Call) {
        let wait_us = [0, 1, 1_000, 100_000, 3_000_000][self.random.below(5) as usize];
        self.wall_us += self.random.below(wait_us + 1);
        let late_us = [0, 0, 0, 15_000, 40_000, 10_000_000][self.random.below(6) as usize];
        let wall_us = self.wall_us - self.random.below(late_us + 1);
        let place = if self.is_crowded { 0 } else { self.random.below(2) as usize };
        self.calls += 1;
        let call = self.calls - self.random.below(3).min(self.calls - 1);
        let (nodes, cells) = if self.is_crowded { (90, 1) } else { (3, 3) };
        let taker = Taker {
            node: 1 + self.random.below(nodes) as u16,
            process_number: 1 + self.random.below(3) as u32,
            call,
        };
        let generation = self.generations[place];
        let cell = self.random.below(cells);
        // With many nodes, pools remember for a long time.
        let least = if self.is_crowded && self.calls > 20 && self.random.below(30) > 0 { 3 } else { 0 };
        let (cell, call) = match self.random.below(60).max(least) {
            0 => {
                let heard = self.random.below(generation.number + 2);
                let goes_on = self.random.below(2) == 0;
                (String::new(), Call::Begin(Begin { heard, by: taker, goes_on }))
            }
            1 | 2 => {
                let assertion = Assertion {
                    node: taker.node,
                    generation,
                    nodes: (1..=1 + self.random.below(3) as u16).collect::<BTreeSet<_>>(),
                    knows_from_us: START_US + self.random.below(10_000_000),
                    is_new: self.random.below(3) == 0,
                    before: if self.random.below(3) > 0 { self.before[place] } else { generation },
                    wall_us,
                    slack_us: 20_000,
                };
                let excluded = (self.random.below(3) == 0).then(|| self.excluded());
                (String::new(), Call::Assert(assertion, excluded))
            }
            3..15 => (format!("w{cell}"), Call::Take(self.take(taker))),
            15..28 => (format!("b{cell}"), self.exchange(taker, cell as usize)),
            28..40 => (format!("s{cell}"), Call::Slide(self.slide(taker))),
            40..55 => (format!("n{cell}"), Call::Name(self.act(taker))),
            _ => ("letters".to_owned(), self.letter()),
        };
        (group(place as u16 * 500), cell, wall_us, call)
    }

    fn excluded(&mut self) -> Excluded {
        let nodes = (1..=3).filter(|_| self.random.below(2) == 0).collect();
        Excluded { nodes, keep_us: self.random.below(3_000_000) }
    }

    fn act(&mut self, taker: Taker) -> name::Act {
        let what = match self.random.below(9) {
            0..4 => name::What::Claim,
            4..7 => {
                let bytes = [0, 1, 200, 20_000][self.random.below(4) as usize];
                name::What::Keep((0..bytes).map(|_| self.random.below(256) as u8).collect())
            }
            7 => name::What::Leave,
            _ => name::What::End,
        };
        // There are few names, so that some come again.
        let by = Taker { node: taker.node, process_number: 1, call: 1 };
        name::Act { by, what, drops_us: self.wall_us + self.random.below(2_000_000) }
    }

    fn letter(&mut self) -> Call {
        let id = |random: &mut Random| u128::from(random.below(5)) << 100;
        match self.random.below(2) {
            0 => {
                let cost = (self.random.below(2) == 0).then(|| self.random.up_to(1 << 50));
                let letter = Letter { id: id(&mut self.random), cost };
                Call::Post(letter, self.wall_us + self.random.below(2_000_000))
            }
            _ => Call::Collect((0..self.random.below(3)).map(|_| id(&mut self.random)).collect()),
        }
    }

    fn take(&mut self, taker: Taker) -> window::Take {
        let total = self.random.up_to(1 << 50);
        let wanted = self.random.up_to(total);
        let begins_us = START_US + self.random.below(10_000_000);
        window::Take {
            taker,
            taken: self.random.up_to(total),
            returned: self.random.up_to(total),
            wanted,
            needed: self.random.up_to(wanted),
            reserved: self.random.up_to(total) * self.random.below(2),
            total: match self.random.below(3) {
                0 => window::Total::AsSaid(self.random.up_to(1 << 50)),
                1 => window::Total::Ahead(total),
                _ => window::Total::Open(total),
            },
            begins_us,
            drops_us: START_US + 20_000_000 + self.random.below(1_000_000_000),
        }
    }

    fn exchange(&mut self, taker: Taker, cell: usize) -> Call {
        // Sometimes the budget changes.
        let params =
            self.params[if self.random.below(20) == 0 { self.random.below(3) as usize } else { cell }];
        let units = params.part.units;
        let wanted =
            Part { rate: self.random.up_to(u64::from(RATE_PARTS)) as u32, units: self.random.up_to(units) };
        let keeps = match self.random.below(3) {
            0 => Part {
                rate: self.random.up_to(u64::from(RATE_PARTS)) as u32,
                units: self.random.up_to(units),
            },
            _ => Part::default(),
        };
        let exchange = bucket::Exchange {
            taker,
            keeps,
            tokens: self.random.up_to(units),
            wanted,
            needed: self.random.up_to(wanted.units) * self.random.below(2),
            reserved: self.random.up_to(units) * self.random.below(2),
            keep_us: self.random.up_to(5_000_000),
        };
        Call::Exchange(exchange, params)
    }

    fn slide(&mut self, taker: Taker) -> sliding::Slide {
        let total = self.random.up_to(1 << 50);
        let wanted = self.random.up_to(total);
        sliding::Slide {
            taker,
            keeps: self.random.up_to(total) * self.random.below(2),
            unused: self.random.up_to(total),
            wanted,
            needed: self.random.up_to(wanted) * self.random.below(2),
            reserved: self.random.up_to(total) * self.random.below(2),
            keep_us: self.random.up_to(5_000_000),
            lingers_us: 1 + self.random.up_to(2_000_000),
            total,
            slack_us: 20_000,
        }
    }

    fn heard(&mut self, of: Group, came: &Came) {
        let known = match came {
            Came::Known(known) => Some(*known),
            Came::Took(CallAnswer::Unknown(known))
            | Came::Exchanged(CallAnswer::Unknown(known))
            | Came::Slid(CallAnswer::Unknown(known))
            | Came::Named(CallAnswer::Unknown(known))
            | Came::Posted(CallAnswer::Unknown(known))
            | Came::Collected(CallAnswer::Unknown(known)) => Some(*known),
            _ => None,
        };
        if let Some(known) = known {
            let place = usize::from(of.number() > 0);
            let last = std::mem::replace(&mut self.generations[place], known.generation);
            if last != known.generation {
                self.before[place] = last;
            }
        }
    }
}

/// How often each answer came.
#[derive(Debug, Default)]
struct Seen {
    done: u64,
    granted: u64,
    refused: u64,
    unknown: u64,
}

impl Seen {
    fn count(&mut self, came: &Came) {
        fn of<T>(answer: &CallAnswer<T>, granted: impl Fn(&T) -> bool) -> [u64; 4] {
            match answer {
                CallAnswer::Done(done) => [1, u64::from(granted(done)), 0, 0],
                CallAnswer::Refused(_) => [0, 0, 1, 0],
                CallAnswer::Unknown(_) => [0, 0, 0, 1],
            }
        }
        let [done, granted, refused, unknown] = match came {
            Came::Known(_) => [0; 4],
            Came::Took(answer) => of(answer, |took| took.taken > 0),
            Came::Exchanged(answer) => of(answer, |exchanged| exchanged.part.units > 0),
            Came::Slid(answer) => of(answer, |slid| slid.units > 0),
            Came::Named(answer) => of(answer, |standing| matches!(standing, NameState::Kept(_))),
            Came::Posted(answer) => of(answer, |is_there| *is_there),
            Came::Collected(answer) => of(answer, |letters| !letters.is_empty()),
        };
        self.done += done;
        self.granted += granted;
        self.refused += refused;
        self.unknown += unknown;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_in_memory_a_journal_and_redis_answer_alike() {
    /// Allocations among regions of the callers. Some are later than those that other callers had adopted.
    const ALLOCATIONS: [u64; 15] = [0, 1, 0, 1, 2, 9, 10, 9, 10, 10, 11, 1, 99, u64::MAX - 1, 0];
    let servers = [Server::start(&[])];
    let redis = RedisPools::new(opened(shards(&servers)).await, 0);
    let mut seen = Seen::default();
    let seeds = std::env::var("HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    for seed in 0..seeds {
        servers[0].cli(&["FLUSHALL"]);
        let folder = tempfile::tempdir().expect("a folder");
        let memory = KeptPools::new(Arc::new(MemoryStore::default()), "here");
        // A disk takes its time.
        let journal = (seed == 0)
            .then(|| KeptPools::new(Arc::new(Journal::open(folder.path()).expect("a journal")), "here"));
        let mut caller = Caller::new(seed);
        for step in 0..1_500 {
            let (group, cell, wall_us, what) = caller.draw();
            let generation = caller.generations[usize::from(group.number() > 0)];
            let allocation = if seed % 2 == 1 { ALLOCATIONS[step / 100 % ALLOCATIONS.len()] } else { 0 };
            let at = At { group, allocation, cell: &cell, generation, wall_us, deadline: DEADLINE };
            let expected = call(&memory, &at, &what).await.expect("memory");
            let came = call(&redis, &at, &what).await.expect("an answer");
            assert_eq!(came, expected, "seed {seed}, step {step}: {at:?} {what:?}");
            if let Some(journal) = &journal {
                let came = call(journal, &at, &what).await.expect("a journal");
                assert_eq!(came, expected, "the journal, step {step}: {at:?} {what:?}");
            }
            seen.count(&expected);
            caller.heard(group, &expected);
        }
    }
    println!("{seen:?}");
    assert!(seen.granted > 500 && seen.refused > 500 && seen.unknown > 20, "{seen:?}");
}

/// Names and letters have bounds, which are the same in a journal and in Redis.
#[tokio::test(flavor = "multi_thread")]
async fn ids_that_expire_first_make_room_and_letters_are_bounded() {
    async fn fill(pools: &impl Pools) -> (Vec<NameState>, usize) {
        let generation = begun(pools, START_US).await;
        let at = |cell| At {
            group: group(3),
            allocation: 0,
            cell,
            generation,
            wall_us: START_US,
            deadline: DEADLINE,
        };
        let by = Taker { node: 1, process_number: 1, call: 1 };
        let names: Vec<String> = (0..NAMES_MAX + 3).map(|number| format!("n{number}")).collect();
        for (number, name) in (0..).zip(&names) {
            let act = name::Act { by, what: name::What::Claim, drops_us: START_US + 1_000_000 - number };
            pools.name(&at(name), &act).await.expect("an answer");
        }
        // The first names last the longest, and the last one was just written.
        let mut standings = Vec::new();
        for name in names[..5].iter().chain(&names[NAMES_MAX - 1..]) {
            let leave =
                name::Act { by: Taker { node: 2, ..by }, what: name::What::Leave, drops_us: START_US };
            match pools.name(&at(name), &leave).await.expect("an answer") {
                CallAnswer::Done(standing) => standings.push(standing),
                other => panic!("{other:?}"),
            }
        }
        let mut room = 0;
        for id in 0..300 {
            let posted = pools.post(&at("letters"), Letter { id, cost: None }, START_US + 1_000_000).await;
            room += usize::from(posted.expect("an answer") == CallAnswer::Done(true));
        }
        (standings, room)
    }
    let servers = [Server::start(&[])];
    let redis = RedisPools::new(opened(shards(&servers)).await, 0);
    let expected = fill(&KeptPools::new(Arc::new(MemoryStore::default()), "here")).await;
    assert_eq!(fill(&redis).await, expected);
    let claimed = NameState::Claimed(Taker { node: 1, process_number: 1, call: 1 });
    let (standings, room) = expected;
    assert_eq!(standings[..5], vec![claimed.clone(); 5]);
    assert_eq!(standings[5..], [NameState::Free, NameState::Free, NameState::Free, claimed]);
    assert_eq!(room, 256);
}

/// A node asks for a bucket of 10 units at 1000/s.
pub(super) async fn ask(
    pools: &impl Pools,
    generation: Generation,
    call: u64,
    wall_us: u64,
) -> CallAnswer<bucket::Exchanged> {
    ask_at(pools, "b", generation, call, wall_us).await.expect("an answer")
}

/// A node asks for such a bucket in a named cell; fails if there is no answer.
pub(super) async fn ask_at(
    pools: &impl Pools,
    cell: &str,
    generation: Generation,
    call: u64,
    wall_us: u64,
) -> Result<CallAnswer<bucket::Exchanged>, Missed> {
    let whole = Meter::new(Rate::parse("1000/s").expect("a rate"), 10);
    let params =
        bucket::BucketParams::of(&whole, Part { rate: RATE_PARTS, units: 10 }, 20_000).expect("parameters");
    let exchange = bucket::Exchange {
        taker: Taker { node: 1, process_number: 1, call },
        keeps: Part::default(),
        tokens: 0,
        wanted: Part { rate: 0, units: 10 },
        needed: 10,
        reserved: 0,
        keep_us: 100_000,
    };
    let at = At { group: group(3), allocation: 0, cell, generation, wall_us, deadline: DEADLINE };
    pools.exchange(&at, &exchange, &params).await
}

pub(super) async fn begun(pools: &impl Pools, wall_us: u64) -> Generation {
    let by = Taker { node: 1, process_number: 1, call: 1 };
    let generation = Generation::default();
    let at = At { group: group(3), allocation: 0, cell: "", generation, wall_us, deadline: DEADLINE };
    let begin = Begin { heard: 0, by, goes_on: false };
    let generation = pools.begin(&at, &begin).await.expect("begun").generation;
    let nodes = BTreeSet::from([1]);
    let assertion = Assertion {
        node: 1,
        generation,
        nodes,
        knows_from_us: 0,
        is_new: false,
        before: Generation::default(),
        wall_us,
        slack_us: 20_000,
    };
    assert!(pools.assert(&at, &assertion, None).await.expect("heard").grants);
    generation
}

/// Cells that say nothing are dropped, and a new cell says the same as the old one.
async fn drops(pools: &impl Pools) {
    let generation = begun(pools, START_US).await;
    let later = START_US + 1_000_000;
    let full = ask(pools, generation, 1, later).await;
    assert!(matches!(full, CallAnswer::Done(exchanged) if exchanged.part.units == 10 && exchanged.owed == 0));
    let at =
        |wall_us| At { group: group(3), allocation: 0, cell: "", generation, wall_us, deadline: DEADLINE };
    assert_eq!(pools.sweep(&at(later), 10).await.expect("swept"), CallAnswer::Done(0));
    assert_eq!(pools.sweep(&at(later + 10_000_000), 10).await.expect("swept"), CallAnswer::Done(1));
    assert_eq!(pools.sweep(&at(later + 10_000_000), 10).await.expect("swept"), CallAnswer::Done(0));
    assert_eq!(ask(pools, generation, 2, later + 10_000_000).await, full);
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_pool_records_are_dropped() {
    let servers = [Server::start(&[])];
    let redis = RedisPools::new(opened(shards(&servers)).await, 0);
    drops(&KeptPools::new(Arc::new(MemoryStore::default()), "here")).await;
    drops(&redis).await;
    // Only the group is left.
    assert_eq!(
        servers[0].cli(&["DBSIZE"]).trim(),
        "3",
        "the group, the cell that was asked for last, and when it is over"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pool_is_unknown_and_counts_as_spent() {
    let servers = [Server::start(&[])];
    let redis = RedisPools::new(opened(shards(&servers)).await, 0);
    let generation = begun(&redis, START_US).await;
    let later = START_US + 1_000_000;
    assert!(
        matches!(ask(&redis, generation, 1, later).await, CallAnswer::Done(exchanged) if exchanged.owed == 0)
    );
    servers[0].cli(&["FLUSHALL"]);
    let unknown = ask(&redis, generation, 2, later).await;
    assert!(matches!(unknown, CallAnswer::Unknown(known) if known.generation.number == 0), "{unknown:?}");
    let again = begun(&redis, later).await;
    // When the loss was noticed, all units counted as spent.
    let empty = ask(&redis, again, 3, later + 1).await;
    assert!(matches!(empty, CallAnswer::Done(exchanged) if exchanged.part.units == 0), "{empty:?}");
    let full = ask(&redis, again, 4, later + 1_000_000).await;
    assert!(matches!(full, CallAnswer::Done(exchanged) if exchanged.part.units == 10), "{full:?}");
}
