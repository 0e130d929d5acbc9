//! Views for operators and tests. Nothing changes when somebody looks.

pub mod difference;
pub(crate) mod explain;
pub(crate) mod inspect;
