//! What a node has of the cells that a request hits, where the nodes of its region share a store: for people
//! and as JSON.

use acequia_client::{Holding, Pool};
use serde::Serialize;

use super::{
    people::{duration, held, measured, plain},
    shares::HoldingJson,
};

/// A paragraph for every cell: what the node may spend, and where the rest is. `names` are the names of the
/// verdict's limits.
pub(super) fn for_people(names: &[&str], pools: &[Pool]) -> String {
    let paragraph = |pool: &Pool| {
        let name = names.get(pool.limit as usize).copied().unwrap_or("a limit");
        let lines = [
            format!("{name}: {} left now at this node", pool.left),
            format!("  guard share  {}, this node's own", words(pool, pool.guard)),
            leased(pool),
            format!("  pool         {}", contents(pool)),
            format!("  store        {}", store(pool)),
        ];
        lines.iter().map(|line| plain(line) + "\n").collect::<String>()
    };
    pools.iter().map(paragraph).collect::<Vec<_>>().join("\n")
}

fn words(pool: &Pool, part: Option<Holding>) -> String {
    let has_rate = pool.pool.is_some_and(|part| part.rate_milli > 0);
    match part.unwrap_or_default() {
        Holding { rate_milli: 0, units: 0 } => "0".to_owned(),
        some => held(has_rate, Some(some)),
    }
}

fn leased(pool: &Pool) -> String {
    let ends = match pool.leased_ends_ms {
        Some(ms) => format!(", ends in {} unless it is renewed", duration(ms)),
        None => String::new(),
    };
    format!("  leased       {}{ends}", words(pool, pool.leased))
}

fn contents(pool: &Pool) -> String {
    let all = words(pool, pool.pool);
    match pool.pool_left {
        Some(left) => format!("{left} left of {all} when it last said so"),
        None if pool.leased.is_some_and(|leased| leased != Holding::default()) => {
            format!("{all}; it has not said what is left of that")
        }
        None => format!("{all}; not called yet, since the guard share is enough"),
    }
}

fn store(pool: &Pool) -> String {
    let Pool { group, generation, shard, address, state, breaker, .. } = pool;
    let does = match (pool.lost, pool.grants, generation) {
        (true, ..) => "nobody answers for it",
        (_, _, 0) => "nobody has told yet whether it grants",
        (_, true, _) => "grants",
        (_, false, _) => "grants nothing until every node has told what it holds",
    };
    let place = match (shard.as_str(), shard == address) {
        ("", _) => {
            return format!("group {group}, generation {generation}: {does}; no server is known for it");
        }
        (_, true) => address.clone(),
        (name, false) => format!("{name} ({address})"),
    };
    let round_trip = match pool.round_trip_us {
        0 => String::new(),
        us => format!(", {} there and back", measured(us)),
    };
    format!(
        "group {group}, generation {generation}: {does}; at {place}, {state}, breaker {breaker}{round_trip}"
    )
}

/// A pool as JSON, with the names of `proto/acequia/v1/share.proto`.
#[derive(Debug, Serialize)]
pub(super) struct PoolJson<'a> {
    limit: &'a str,
    guard: HoldingJson,
    leased: HoldingJson,
    leased_ends_ms: Option<u64>,
    left: u64,
    pool: HoldingJson,
    pool_left: Option<u64>,
    group: u32,
    generation: u64,
    grants: bool,
    lost: bool,
    shard: &'a str,
    address: &'a str,
    state: &'a str,
    breaker: &'a str,
    round_trip_us: u64,
}

impl<'a> PoolJson<'a> {
    pub(super) fn new(names: &[&'a str], pool: &'a Pool) -> Self {
        Self {
            limit: names.get(pool.limit as usize).copied().unwrap_or_default(),
            guard: HoldingJson::new(pool.guard),
            leased: HoldingJson::new(pool.leased),
            leased_ends_ms: pool.leased_ends_ms,
            left: pool.left,
            pool: HoldingJson::new(pool.pool),
            pool_left: pool.pool_left,
            group: pool.group,
            generation: pool.generation,
            grants: pool.grants,
            lost: pool.lost,
            shard: &pool.shard,
            address: &pool.address,
            state: &pool.state,
            breaker: &pool.breaker,
            round_trip_us: pool.round_trip_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> Pool {
        let part = |rate: u64, units| Some(Holding { rate_milli: rate * 1_000, units });
        Pool {
            limit: 0,
            guard: part(5, 10),
            leased: part(20, 40),
            leased_ends_ms: Some(71_200),
            left: 31,
            pool: part(90, 180),
            pool_left: Some(120),
            group: 17,
            generation: 2,
            grants: true,
            lost: false,
            shard: "10.0.0.1:6379".to_owned(),
            address: "10.0.0.1:6379".to_owned(),
            state: "open".to_owned(),
            breaker: "closed".to_owned(),
            round_trip_us: 180,
        }
    }

    #[test]
    fn a_pool_is_shown_with_its_guard_share_lease_and_rest() {
        assert_eq!(
            for_people(&["per-key"], &[bucket()]),
            "per-key: 31 left now at this node
  guard share  5/s + 10, this node's own
  leased       20/s + 40, ends in 1 min 12 s unless it is renewed
  pool         120 left of 90/s + 180 when it last said so
  store        group 17, generation 2: grants; at 10.0.0.1:6379, open, breaker closed, 180 us there and back
"
        );
    }

    #[test]
    fn a_lost_store_of_a_pool_is_shown() {
        let named = Pool { shard: "one".to_owned(), lost: true, round_trip_us: 0, ..bucket() };
        assert_eq!(
            store(&named),
            "group 17, generation 2: nobody answers for it; at one (10.0.0.1:6379), open, breaker closed"
        );
        let unknown =
            Pool { shard: String::new(), generation: 0, grants: false, pool_left: None, ..bucket() };
        assert_eq!(
            store(&unknown),
            "group 17, generation 0: nobody has told yet whether it grants; no server is known for it"
        );
        assert_eq!(contents(&unknown), "90/s + 180; it has not said what is left of that");
        let uncalled = Pool { leased: None, ..unknown };
        assert_eq!(contents(&uncalled), "90/s + 180; not called yet, since the guard share is enough");
    }
}
