//! Whole runs of the simulator: what they find, what they tell, and that they can be run again.

mod determinism;
mod failure;
mod messages;
mod report;
mod scenarios;
mod schedule_file;
mod store;
mod stories;
mod utilisation;
