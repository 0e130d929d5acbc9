//! Regions in memory: real nodes on a network and on disks that do what a seed says.

pub mod budget;
pub mod clock;
pub mod disk;
pub mod heal;
pub mod history;
#[cfg(feature = "broken")]
pub mod kill;
pub mod mix;
pub mod network;
pub mod operator;
pub mod oracle;
pub mod place;
pub mod random;
pub mod stories;
pub mod trace;
pub mod utilisation;
pub mod world;
