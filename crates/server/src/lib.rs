//! The shell around a node: config, clocks, the journal's writer, the services. The shell waits, reads, asks
//! the node, and writes; a branch about limits does not belong here.
//!
//! [`Service`] is the whole server. [`run`] runs it on this machine. [`Service::serve_in`] runs it within a
//! caller's runtime, on the sockets, disk, clock and [`chance`] of a simulation. [`serve`] is what both
//! share.
//!
//! The way of a request: `connections` has a place for it, `admit` lets it in, and `callers` say what it may
//! do. Then `grpc` or `http` reads it, and [`question`] refuses what no caller should send. [`worker`] asks
//! the node, and `patience` keeps requests that may wait. `respond` and `headers` write the answer.
//! [`regions`] connects the node to other regions, [`webhooks`] tells operators.

mod admit;
pub mod authz;
mod callers;
mod cells;
pub mod chance;
pub mod charges;
pub mod clock;
pub mod config;
mod connections;
pub mod counting;
mod gate;
pub mod grpc;
pub mod headers;
mod hints;
mod histogram;
mod hits;
mod holdings;
pub mod http;
mod idempotency;
mod imported_name;
mod incarnation;
pub mod json;
mod labels;
pub mod limitador;
mod linger;
pub mod metrics;
mod news;
mod node_status;
mod patience;
mod port;
mod process;
mod process_number;
pub mod question;
pub mod ratelimit;
mod refused;
pub mod region;
pub mod regions;
mod respond;
pub mod run;
mod schedule;
pub mod serve;
pub mod service;
mod settings;
mod settle;
pub mod shared;
mod sketch;
mod socket;
mod sources;
mod surroundings;
mod tally;
mod tls;
pub mod unmatched;
mod unreported;
mod warnings;
pub mod webhooks;
pub mod worker;
mod workers;
pub mod writer;

pub use crate::{
    service::{Service, StartError},
    surroundings::{MeshSurroundings, Surroundings},
};
