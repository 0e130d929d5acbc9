//! Calls to real Redis servers, in all three ways to run them, with all that happens to servers.

mod access;
mod calls;
mod failover;
mod middle;
mod pools;
mod scene;
mod servers;
