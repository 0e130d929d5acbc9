//! The command line: commands that ask a running node, the demo, the live views and the load that `acequia
//! bench` makes.
//!
//! No code here decides about a request. A command speaks to a node over the node's own listeners, as every
//! caller does; only `serve` and `validate` call [`acequia_server`]. [`demo`] starts real server processes
//! and cuts the links between them. [`view`] draws a screen and reads no state of its own.

pub mod arguments;
pub mod commands;
pub mod demo;
pub mod load;
mod screen;
mod settings;
pub mod view;
mod watching;
