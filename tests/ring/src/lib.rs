//! The model ring: real nodes on a network and on disks that do what a seed says, beside a reference model that sees
//! everything. **Whatever the network, the disks and the clocks do, no limit admits more than its largest budget in
//! force.** A history that says otherwise is a bug, and its seed is the report:
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
//! One step is one event ([`mix::Step`]): requests, a frame that arrives, a tick, a batch that reaches a disk, time, a
//! fault, a command. Every history draws its own mix of them ([`mix`]), its regions, limits, weights and clocks. The
//! order of everything follows from the seed. After its last step a history is healed ([`heal`]): views must become
//! equal, and what was lent come back. [`stories`] tell what chance seldom hits.
//!
//! Where to read: [`world`] for what can happen, [`oracle`] for what may not, [`operator`] for what is asked of people.
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
//! I12 is now a term that applies to windows that start later (`acequia_rights::versions`), and found by `window`. I17 to
//! I20 (use of the limits, messages) are measured by `bin/utilisation.rs`.
//!
//! *In force* is a budget from the version that somebody still goes by, because it has not acknowledged a later one, to
//! the newest ([`oracle::Oracle::acked`]). An admission counts at the instant that the node decided by, and once its
//! answer may leave: what waits for a row that a crash forgets was never answered.
//!
//! # What is outside the promise, and why
//! * **Walls beyond ε** (an eighth of the histories): windows of true time cannot be told then; names of windows and
//!   rates are checked. No process starts in these histories: a row's age is told by the wall, and where that is wrong
//!   by hours nobody knows what has drained.
//! * **A fence that is not one** (the operator says that a region is gone, and it is not): two writers have one share.
//!   Only that all settles again is checked.
//! * **A disk restored from a copy**: until somebody says what the disk has forgotten, its node cannot know. It must
//!   notice when told (`old-disk`).
//! * **A removed limit that comes back among other members**: a region that joined in between never knew the limit, and
//!   does not wait for what others spent under it. Operators should bring limits back before they change members, or
//!   after one full window or refill.
//! * **Authorities that are made from nothing**: a node with an empty disk could begin a second catalogue. The operator
//!   here never asks that of one.
//!
//! The order of windows and of loans of one process is by its own clocks; a thread that sleeps between reading a clock
//! and deciding decides as of the reading.

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
pub mod random;
pub mod stories;
pub mod trace;
pub mod utilisation;
pub mod world;
