//! Calls to real Redis servers in all three layouts, with the failures of servers.

mod access;
mod calls;
mod deleted_keys;
mod failover;
mod pools;
mod proxy;
mod scene;
#[allow(dead_code, reason = "shared with the tests of nodes")]
mod servers;
