//! How much of a limit regions use together: real nodes on a network with the delays of five
//! continents, and demand that moves.
//!
//! The bars are what the policy of `acequia_node::sharing` is judged by. Safety is judged along the
//! way: every admission is counted by an oracle that knows no regions.
#![allow(clippy::print_stdout, reason = "it prints a table")]

pub mod demand;
pub mod flows;
pub mod merge;
pub mod oracle;
pub mod partitions;
pub mod quotas;
pub mod table;
pub mod users;
pub mod world;

use acequia_limits::limit::LimitSpec;

/// A limit by key, of which the algorithm is to be filled in.
pub(crate) fn spec(name: &str) -> LimitSpec {
    serde_json::from_str(&format!("{{\"name\":\"{name}\",\"domain\":\"shop\",\"by\":[\"key\"]}}"))
        .expect("a spec")
}
