//! Pools in Redis: each call is one function in `lua/`.

use std::{borrow::Cow, collections::BTreeSet, time::Instant};

use acequia_limits::{Now, Part};
use acequia_node::Node;
use acequia_rights::pool::{
    AGREEMENT, Generation, Letter, PoolRefused, Taker, bucket,
    group::{Assertion, Begin, Excluded, GroupStatus},
    name::{self, NameState},
    sliding, window,
};

use super::{At, CallAnswer, Pools};
use crate::redis::{Arg, Function, Missed, Redis, Value, WallRead};

/// The suffixes of keys that each group has.
const GROUP: &str = "group";
const DUE: &str = "due";
const NAMES: &str = "names";
/// The suffixes of the group by which nodes only agree.
const AGREED: [&str; 2] = ["agreed", "agreed-due"];

/// The version of the rules that give records their meaning: nodes with different versions share nothing.
const RULES: u64 = 3;

/// Pools in a region's Redis.
#[derive(Clone, Debug)]
pub struct RedisPools {
    redis: Redis,
    config_fingerprint: String,
}

impl RedisPools {
    /// Pools of nodes with equal settings. `config_fingerprint` is a hash of everything that must be alike on
    /// each node, such as the list of nodes and their guard shares. Withdrawals by nodes with another hash
    /// belong to another generation.
    #[must_use]
    pub fn new(redis: Redis, config_fingerprint: u64) -> Self {
        let config_fingerprint = config_fingerprint.wrapping_add(RULES).to_string();
        Self { redis, config_fingerprint }
    }

    /// The Redis of the pools.
    #[must_use]
    pub const fn redis(&self) -> &Redis {
        &self.redis
    }

    /// Calls a function for a caller that knows the generation `known`.
    async fn call(
        &self,
        at: &At<'_>,
        function: Function,
        known: &str,
        wall_us: u64,
        own: &[Arg<'_>],
    ) -> Result<Vec<Value>, Missed> {
        let mut config_fingerprint = Cow::Borrowed(&self.config_fingerprint);
        let [group_key, due_key] = match at.allocation {
            0 => [GROUP, DUE],
            AGREEMENT => AGREED,
            allocation => {
                config_fingerprint.to_mut().push_str(&format!("@{allocation}"));
                [GROUP, DUE]
            }
        };
        let due_key = if function == Function::Name { NAMES } else { due_key };
        let mut args = Vec::with_capacity(3 + own.len());
        args.extend([Arg::Bytes(config_fingerprint.as_bytes()), Arg::Bytes(known.as_bytes()), int(wall_us)]);
        args.extend(own);
        // Functions without a cell get a key that names none.
        let cell = format!("cell:{}", at.cell);
        self.redis.call(at.group, function, &[group_key, &cell, due_key], &args, at.deadline).await
    }

    /// Calls a function whose answer has only numbers.
    async fn call_cell<T>(
        &self,
        at: &At<'_>,
        function: Function,
        own: &[Arg<'_>],
        done: impl FnOnce(&[u64]) -> Option<T>,
    ) -> Result<CallAnswer<T>, Missed> {
        let numbers = |values: &[Value]| values.iter().map(number).collect::<Option<Vec<u64>>>();
        self.call_values(at, function, own, |values| numbers(values).and_then(|numbers| done(&numbers))).await
    }

    async fn call_values<T>(
        &self,
        at: &At<'_>,
        function: Function,
        own: &[Arg<'_>],
        done: impl FnOnce(&[Value]) -> Option<T>,
    ) -> Result<CallAnswer<T>, Missed> {
        let generation = generation_text(&at.generation);
        let answer = self.call(at, function, &generation, at.wall_us, own).await?;
        let status = answer.first().and_then(Value::text);
        let read = match status {
            Some("done") => done(&answer[1..]).map(CallAnswer::Done),
            Some("stale") => Some(CallAnswer::Refused(PoolRefused::Stale)),
            Some("late") => Some(CallAnswer::Refused(PoolRefused::Late)),
            Some("full") => Some(CallAnswer::Refused(PoolRefused::TooManyNodes)),
            _ => read_known(&answer).map(CallAnswer::Unknown),
        };
        read.ok_or_else(|| garbled(&answer))
    }
}

fn int(number: u64) -> Arg<'static> {
    Arg::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

fn number(value: &Value) -> Option<u64> {
    value.int().and_then(|number| u64::try_from(number).ok())
}

fn garbled(answer: &[Value]) -> Missed {
    Missed::Unknown(format!("an answer that is none: {answer:?}").into())
}

/// Reads `unknown`, the generation, its state, and the generation since which the pools remember.
fn read_known(answer: &[Value]) -> Option<GroupStatus> {
    let [status, generation, state, since] = answer else { return None };
    let read = |generation: &Value| {
        let (number, by) = generation.text()?.split_once(':')?;
        Some(Generation { number: number.parse().ok()?, by: read_taker(by)? })
    };
    let state = number(state)?;
    let (grants, is_first) = (state & 1 == 1, state & 2 == 2);
    let known = GroupStatus { generation: read(generation)?, grants, since: read(since)?, is_first };
    (status.text()? == "unknown").then_some(known)
}

/// Reads what [`taker_text`] writes.
fn read_taker(text: &str) -> Option<Taker> {
    let mut parts = text.split(':');
    let mut next = || parts.next()?.parse::<u64>().ok();
    Some(Taker {
        node: u16::try_from(next()?).ok()?,
        process_number: u32::try_from(next()?).ok()?,
        call: next()?,
    })
}

fn read_standing(values: &[Value]) -> Option<NameState> {
    let [standing, with] = values else { return None };
    Some(match standing.text()? {
        "free" => NameState::Free,
        "claimed" => NameState::Claimed(read_taker(with.text()?)?),
        "kept" => NameState::Kept(with.bytes()?.to_vec()),
        "ended" => NameState::Ended,
        _ => return None,
    })
}

/// Reads a charge's name and its real cost.
fn read_letter(values: &[Value]) -> Option<Letter> {
    let [id, cost] = values else { return None };
    let cost = Some(cost.text()?).filter(|cost| !cost.is_empty()).map(str::parse);
    Some(Letter { id: u128::from_str_radix(id.text()?, 16).ok()?, cost: cost.transpose().ok()? })
}

impl Pools for RedisPools {
    fn compare_clocks(&self, node: &Node, clock: &dyn Fn() -> Now) {
        if !self.redis.has_clocks() {
            return;
        }
        let from = Instant::now();
        let now = clock();
        let mut read = WallRead { wall_ns: now.wall_ns, corrected_ns: 0, from, until: Instant::now() };
        node.compare_wall(now, &self.redis.clocks(&read));
        read.corrected_ns = node.corrected(now).wall_ns.wrapping_sub(now.wall_ns).cast_signed();
        self.redis.compare_clocks(&read);
    }

    async fn begin(&self, at: &At<'_>, begin: &Begin) -> Result<GroupStatus, Missed> {
        let (heard, by) = (begin.heard.to_string(), taker_text(&begin.by));
        let own = [Arg::Bytes(by.as_bytes()), Arg::Int(i64::from(begin.goes_on))];
        let answer = self.call(at, Function::Group, &heard, 0, &own).await?;
        read_known(&answer).ok_or_else(|| garbled(&answer))
    }

    async fn assert(
        &self,
        at: &At<'_>,
        assertion: &Assertion,
        excluded: Option<&Excluded>,
    ) -> Result<GroupStatus, Missed> {
        let Assertion { node, generation, nodes, knows_from_us, is_new, before, wall_us, slack_us } =
            assertion;
        let before = generation_text(before);
        let listed =
            |nodes: &BTreeSet<u16>| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let (nodes, excluded_nodes) =
            (listed(nodes), excluded.map_or_else(String::new, |excluded| listed(&excluded.nodes)));
        let own = [
            int(u64::from(*node)),
            Arg::Bytes(nodes.as_bytes()),
            int(*knows_from_us),
            int(*slack_us),
            Arg::Bytes(excluded_nodes.as_bytes()),
            int(excluded.map_or(0, |excluded| excluded.keep_us)),
            Arg::Bytes(before.as_bytes()),
            int(u64::from(*is_new)),
        ];
        let generation = generation_text(generation);
        let answer = self.call(at, Function::Assert, &generation, *wall_us, &own).await?;
        read_known(&answer).ok_or_else(|| garbled(&answer))
    }

    async fn take(&self, at: &At<'_>, take: &window::Take) -> Result<CallAnswer<window::Took>, Missed> {
        let (total, how) = match take.total {
            window::Total::Ahead(units) => (units, 0),
            window::Total::Open(units) => (units, 1),
            window::Total::AsSaid(most) => (most, 2),
        };
        let own = [
            int(u64::from(take.taker.node)),
            int(u64::from(take.taker.process_number)),
            int(take.taken),
            int(take.returned),
            int(take.wanted),
            int(take.needed),
            int(take.reserved),
            int(total),
            int(take.begins_us),
            int(take.drops_us),
            int(take.taker.call),
            int(how),
        ];
        let done = |numbers: &[u64]| match *numbers {
            [taken, left] => Some(window::Took { taken, left }),
            _ => None,
        };
        self.call_cell(at, Function::Window, &own, done).await
    }

    async fn exchange(
        &self,
        at: &At<'_>,
        exchange: &bucket::Exchange,
        params: &bucket::BucketParams,
    ) -> Result<CallAnswer<bucket::Exchanged>, Missed> {
        let own = [
            int(u64::from(exchange.taker.node)),
            int(u64::from(exchange.taker.process_number)),
            int(exchange.taker.call),
            int(u64::from(exchange.keeps.rate)),
            int(exchange.keeps.units),
            int(exchange.tokens),
            int(u64::from(exchange.wanted.rate)),
            int(exchange.wanted.units),
            int(exchange.needed),
            int(exchange.reserved),
            int(exchange.keep_us),
            int(params.weight),
            int(params.gives),
            int(params.step_us),
            int(u64::from(params.part.rate)),
            int(params.part.units),
            int(params.slack_us),
        ];
        let done = |numbers: &[u64]| match *numbers {
            [rate, units, owed, left, fair] => {
                let part = Part { rate: u32::try_from(rate).ok()?, units };
                Some(bucket::Exchanged { part, owed, left, fair: u32::try_from(fair).ok()? })
            }
            _ => None,
        };
        self.call_cell(at, Function::Bucket, &own, done).await
    }

    async fn exchange_sliding(
        &self,
        at: &At<'_>,
        exchange: &sliding::Slide,
    ) -> Result<CallAnswer<sliding::Slid>, Missed> {
        let own = [
            int(u64::from(exchange.taker.node)),
            int(u64::from(exchange.taker.process_number)),
            int(exchange.taker.call),
            int(exchange.keeps),
            int(exchange.unused),
            int(exchange.wanted),
            int(exchange.needed),
            int(exchange.reserved),
            int(exchange.keep_us),
            int(exchange.lingers_us),
            int(exchange.total),
            int(exchange.slack_us),
        ];
        let done = |numbers: &[u64]| match *numbers {
            [units, left] => Some(sliding::Slid { units, left }),
            _ => None,
        };
        self.call_cell(at, Function::Sliding, &own, done).await
    }

    async fn name(&self, at: &At<'_>, act: &name::Act) -> Result<CallAnswer<NameState>, Missed> {
        let (what, answer): (&str, &[u8]) = match &act.what {
            name::What::Claim => ("claim", &[]),
            name::What::Keep(answer) => ("keep", answer),
            name::What::Leave => ("leave", &[]),
            name::What::End => ("end", &[]),
        };
        let by = taker_text(&act.by);
        let own =
            [Arg::Bytes(by.as_bytes()), Arg::Bytes(what.as_bytes()), int(act.drops_us), Arg::Bytes(answer)];
        self.call_values(at, Function::Name, &own, read_standing).await
    }

    async fn post(&self, at: &At<'_>, letter: Letter, drops_us: u64) -> Result<CallAnswer<bool>, Missed> {
        let (id, cost) = (id_text(&letter.id), letter.cost.map_or_else(String::new, |cost| cost.to_string()));
        let own = [Arg::Bytes(b""), Arg::Bytes(id.as_bytes()), Arg::Bytes(cost.as_bytes()), int(drops_us)];
        let done = |numbers: &[u64]| match *numbers {
            [is_there] => Some(is_there == 1),
            _ => None,
        };
        self.call_cell(at, Function::Letters, &own, done).await
    }

    async fn collect(&self, at: &At<'_>, had: &[u128]) -> Result<CallAnswer<Vec<Letter>>, Missed> {
        let had = had.iter().map(id_text).collect::<Vec<_>>().join(" ");
        let own = [Arg::Bytes(had.as_bytes()), Arg::Bytes(b""), Arg::Bytes(b""), int(0)];
        let letters = |values: &[Value]| {
            let mut letters: Vec<Letter> = values.chunks(2).map(read_letter).collect::<Option<_>>()?;
            letters.sort_unstable_by_key(|letter| letter.id);
            Some(letters)
        };
        self.call_values(at, Function::Letters, &own, letters).await
    }

    async fn sweep(&self, at: &At<'_>, most: u32) -> Result<CallAnswer<u64>, Missed> {
        let done = |numbers: &[u64]| match *numbers {
            [dropped] => Some(dropped),
            _ => None,
        };
        self.call_cell(at, Function::Sweep, &[int(u64::from(most))], done).await
    }
}

/// A generation as it is written in Redis.
fn generation_text(generation: &Generation) -> String {
    format!("{}:{}", generation.number, taker_text(&generation.by))
}

/// A charge's name as it is written in Redis. All names have one length.
fn id_text(id: &u128) -> String {
    format!("{id:032x}")
}

fn taker_text(taker: &Taker) -> String {
    format!("{}:{}:{}", taker.node, taker.process_number, taker.call)
}
