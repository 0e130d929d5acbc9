//! Loans and transfers under an adversary: random histories of regions that lend, renew, freeze, return,
//! crash, sleep, drift and lose messages. Every step is checked. A failure prints its seed, which replays the
//! history.
//!
//! `ACEQUIA_STEPS` sets the steps of the long runs. With the feature `mutations`, each rule is left out in
//! turn, and the checks must notice.

mod extremes;
mod kills;
pub(crate) mod random;
mod rows;
mod stories;
mod windows;
mod world;
