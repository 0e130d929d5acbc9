//! Regions in memory: real nodes on a network and on disks that do what a seed says.
pub mod utilisation;
