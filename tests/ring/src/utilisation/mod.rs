//! How much of a limit regions use together: real nodes with the delays of five continents, and demand that
//! moves.
//!
//! The bars judge the policy of `acequia_node::sharing`. Safety is checked along the way: an oracle without
//! regions counts every admission.
#![allow(clippy::print_stdout, reason = "it prints a table")]

pub mod demand;
pub mod flows;
pub mod merge;
pub mod oracle;
pub mod partitions;
pub mod quotas;
pub mod slots;
pub mod table;
pub mod users;
pub mod world;

use acequia_limits::limit::LimitSpec;

/// A limit by key, without an algorithm.
pub(crate) fn spec(name: &str) -> LimitSpec {
    serde_json::from_str(&format!("{{\"name\":\"{name}\",\"domain\":\"shop\",\"by\":[\"key\"]}}"))
        .expect("a spec")
}
