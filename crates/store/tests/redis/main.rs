//! Calls to real Redis servers in all three layouts, with the failures of servers.

mod access;
mod calls;
mod failover;
mod forgetful;
mod middle;
mod pools;
mod scene;
#[allow(dead_code, reason = "shared with the tests of nodes")]
mod servers;
