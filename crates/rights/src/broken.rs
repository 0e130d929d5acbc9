//! Rules that tests may break, one at a time, to see that the checks notice.
//!
//! Without the feature `broken`, [`broken`] is `false` and costs nothing.

#[cfg(all(feature = "broken", not(debug_assertions)))]
compile_error!("the feature `broken` is for tests: a build without debug assertions refuses it");

/// One rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Broken {
    /// The giver takes a loan back without allowing for clocks that drift.
    NoDriftMargin,
}

/// Whether a rule is left out in this thread.
#[cfg(not(feature = "broken"))]
#[inline(always)]
pub const fn broken(_: Broken) -> bool {
    false
}

#[cfg(feature = "broken")]
mod switch {
    use std::cell::Cell;

    use super::Broken;

    thread_local! {
        static CHOSEN: Cell<Option<Broken>> = const { Cell::new(None) };
    }

    /// Whether a rule is left out in this thread.
    #[inline]
    pub fn broken(rule: Broken) -> bool {
        CHOSEN.with(|chosen| chosen.get() == Some(rule))
    }

    /// Leaves one rule out in this thread from now on, or none.
    pub fn break_rule(rule: Option<Broken>) {
        CHOSEN.with(|chosen| chosen.set(rule));
    }
}

#[cfg(feature = "broken")]
pub use switch::{break_rule, broken};
