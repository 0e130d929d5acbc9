//! What a node promises, asked of the real binary: its services, its config, its restarts.
//!
//! Nothing here looks inside. A test starts a node of its own, asks it over its sockets, and
//! counts from outside. What happens by itself is waited for with a deadline, never for a time.

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
mod hostile;
mod http;
mod memory;
mod metrics;
mod moving;
mod operators;
mod pages;
mod proxies;
mod recipes;
mod regions;
mod restart;
mod settlements;
mod store;
mod strangers;
mod values;
mod webhooks;
