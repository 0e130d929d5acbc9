//! The promises of a node, tested with the real binary: its services, its config, its restarts.
//!
//! Nothing here looks inside the binary. A test starts its own node, asks it over its sockets, and counts
//! from outside. Tests wait for asynchronous events with a deadline, and never for a fixed time.

mod client;
mod openmetrics;
mod windows;

mod bad_input;
mod callers;
mod charges;
mod clocks;
mod config;
mod demo;
mod envoy;
mod grpc;
mod holds;
mod hostile;
mod http;
mod in_flight;
mod kuadrant;
mod memory;
mod metrics;
mod moving;
mod operators;
mod pages;
mod proxies;
mod ratelimit;
mod recipe_files;
mod recipes;
mod regions;
mod reports;
mod restart;
mod settlements;
mod slots;
mod store;
mod strangers;
mod streams;
mod units;
mod values;
mod webhooks;
