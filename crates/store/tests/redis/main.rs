//! Calls to real Redis servers, in all three ways to run them, with all that happens to servers.

mod access;
mod calls;
mod failover;
mod forgetful;
mod middle;
mod pools;
mod scene;
#[allow(dead_code, reason = "shared with the tests of nodes")]
mod servers;
