//! The model ring: real nodes on a simulated network and simulated disks, all controlled by a seed, beside a
//! reference model that sees everything. **Whatever the network, the disks and the clocks do, no limit admits
//! more than its largest budget in force.** A history with another result is a bug, and its seed is the
//! report:
//!
//! ```text
//! cargo run --profile ring -p acequia-ring --bin ring -- --steps 1e9 --seed 1     search
//! cargo run --profile ring -p acequia-ring --bin ring -- --only 501232            replay one history
//! cargo run --profile ring -p acequia-ring --bin ring -- --seed 501232 --watch 0,0    every event of a cell
//! cargo run --profile ring -p acequia-ring --bin ring -- --survey 1e8             count what is found, go on
//! cargo run --profile ring -p acequia-ring --features mutations --bin kill           leave out one rule at a time
//! ```
//!
//! # How
//! One step is one event ([`mix::Step`]): requests, a frame's arrival, a tick, a batch that reaches a disk,
//! time, a fault, or a command. Every history draws its own mix of events ([`mix`]), regions, limits, weights
//! and clocks. The seed determines the order of everything. After its last step a history is healed
//! ([`heal`]): views must become equal, and loans must return. [`stories`] contains scripted events that
//! random search seldom finds.
//!
//! Where to read: [`world`] for all possible events, [`oracle`] for all violations, and [`operator`] for the
//! operators' commands.
//!
//! # What is checked
//! | invariant (`theory.md` §6) | where |
//! | --- | --- |
//! | I1 no window's name admits more than its limit | `label`: after every admission |
//! | I7 one true-time bucket of the largest `(B, r)` in force never runs dry | `bucket`: after every admission |
//! | I9 every trailing window of true time | `trailing`: after every admission |
//! | I10 every window of true time, while clocks keep ε | `window`: after every admission |
//! | I4, I5, I8 the parts that regions may use sum to the whole at most: rate, units, rights of each window | `parts`: all cells, every 48 steps |
//! | I2, I11 nothing is spent without a share, or in a closed, restored or unnamed node | `owns-nothing`, `old-disk` |
//! | I3, I6 rows only grow, views never exceed them | by what breaks otherwise: `ReceiveAdds`, `GiveBeforeDurable` … in the kill table |
//! | I13 nothing leaves before its row is on disk | a crash right after a send, and all the above |
//! | I14 what is lent is missed by its giver | `parts` |
//! | I15 after healing, views are equal and no acknowledgement is missing | `settle` |
//! | I16 what nobody asks for is back where it belongs | `return` |
//!
//! I12 holds by an allocation that applies to windows that start later (`acequia_rights::versions`); the
//! check `window` finds violations. `bin/utilisation.rs` measures I17 to I20 (use of the limits, messages).
//!
//! A budget is *in force* if its version is not older than the version that some region still goes by,
//! because this region has not acknowledged a later one ([`oracle::Oracle::acked`]). An admission counts at
//! the instant of the node's decision, once its answer may leave. A request whose row a crash forgets was
//! never answered.
//!
//! # What is outside the promise, and why
//! * **Walls beyond ε** (an eighth of the histories): nobody can tell windows of true time, so only windows'
//!   names and rates are checked. No process starts in these histories: the wall tells a row's age, and if
//!   the wall is wrong by hours nobody knows what has drained.
//! * **A false fence** (the operator declares a region gone, and it is not): two incarnations have one share.
//!   Only the recovery is checked.
//! * **A disk restored from a copy**: a node cannot know what its disk has forgotten until somebody reports
//!   it. The node must notice the report (`old-disk`).
//! * **A removed limit that returns among other members**: a region that joined in between never knew the
//!   limit, and does not wait for earlier spending under it. Operators should bring limits back before they
//!   change members, or after one full window or refill.
//! * **Authorities without a catalogue**: a node with an empty disk could begin a second catalogue. The
//!   operator here never orders this.
//!
//! The order of windows and loans of one process follows its own clocks. A thread that sleeps between reading
//! a clock and deciding decides as of the reading.

pub mod budget;
mod callers;
pub mod clock;
pub mod disk;
pub mod heal;
pub mod history;
#[cfg(feature = "mutations")]
pub mod kill;
pub mod mix;
pub mod network;
pub mod operator;
pub mod oracle;
pub mod place;
pub mod stories;
pub mod trace;
pub mod utilisation;
pub mod world;

pub use acequia_rights::splitmix as random;
