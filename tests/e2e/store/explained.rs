//! An operator's view of the common store: where a cell is, and the state of the link to it.

use acequia_tests::eventually;
use serde_json::Value;

use super::{alone, ask, config_of, limits, listed, servers::Server, start_all, until_pools_grant};
use crate::{
    client::{Http, metric},
    operators::explained,
};

#[test]
fn explain_and_metrics_say_which_shard_has_a_cell_and_whether_it_answers() {
    let _alone = alone();
    let mut shards = [Server::start(&[]), Server::start(&[])];
    let redis = format!("shards: {}", listed(&shards));
    let nodes = ["eu-1", "eu-2"];
    let nodes = start_all(nodes.map(|node| config_of(node, &nodes, &redis, &limits())));
    until_pools_grant(&nodes);

    // More than the guard shares is asked for, so a node holds some units of the pool, maybe all.
    let find = |what: &str, is_so: &dyn Fn(&Value) -> bool| {
        let mut seen = None;
        eventually(what, || {
            ask(&nodes, "b", "one", 10);
            seen = nodes.iter().map(|node| explained(node, &["b=one"])["pools"][0].clone()).find(is_so);
            seen.is_some()
        });
        seen.expect("it was seen")
    };
    let held = find("one holds something of the pool", &|seen| seen["leased"]["units"].as_u64() > Some(0));
    assert_eq!((held["limit"].as_str(), held["grants"].as_bool()), (Some("bucket"), Some(true)), "{held}");
    assert_eq!((held["breaker"].as_str(), held["state"].as_str()), (Some("closed"), Some("open")), "{held}");
    for number in ["generation", "leased_ends_ms", "round_trip_us"] {
        assert!(held[number].as_u64() > Some(0), "no {number} in {held}");
    }
    // The named server has the cell.
    let named = shards.iter().position(|shard| held["shard"] == *shard.address()).expect("one of the two");
    let pattern = format!("acequia:eu:{{{}}}:*", held["group"]);
    let has = [0, 1].map(|shard: usize| !shards[shard].cli(&["--scan", "--pattern", &pattern]).is_empty());
    assert_eq!(has, [named == 0, named == 1], "{held}");

    let breaker = |shard: &Server, says: &str| {
        let line = format!("acequia_store_breaker{{shard=\"{}\"}} {says}\n", shard.address());
        Http::connect(&nodes[0]).get("/metrics").body.contains(&line)
    };
    for shard in &shards {
        let labels = [("shard", shard.address())];
        let labels = labels.each_ref().map(|(name, shard)| (*name, shard.as_str()));
        assert!(metric(&nodes[0], "acequia_store_last_round_trip_seconds", &labels) > 0.0);
        eventually("its breaker is closed", || breaker(shard, "0"));
    }

    // The server is gone, and the nodes report this for its shard alone.
    shards[named].kill();
    let lost = find("its breaker is open", &|seen| seen["breaker"] == "open" && seen["lost"] == true);
    assert_eq!(lost["shard"], held["shard"], "{lost}");
    eventually("metrics say so", || breaker(&shards[named], "2"));
    eventually("the other one is well", || breaker(&shards[1 - named], "0"));
}
