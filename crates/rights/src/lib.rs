//! Who may spend a limit.
pub mod broken;
pub mod identity;

pub use identity::{Region, Writer};
