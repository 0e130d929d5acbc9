//! Whole runs of the simulator: findings, reports and replays.

mod determinism;
mod failure;
mod messages;
mod report;
mod scenarios;
mod schedule_file;
mod store;
mod stories;
mod utilisation;
