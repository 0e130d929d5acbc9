//! Who may spend a limit. **Of every cell, at every instant, what all regions together count on is at most the largest
//! budget in force**: true whatever messages, crashes and clocks within the bounds of the catalogue do, or a bug. An
//! algorithm never admits more than what it counts on (`acequia-limits`), so all regions together never admit more than
//! the limit.
//!
//! A region *counts on* its standing share, less what it has lent or given away, plus what it holds or received. A
//! budget is *in force* from when any region goes by it until every region has acknowledged a later one.
//!
//! # Proof
//! 1. **Shares.** Shares of one distribution sum to the budget, and none falls when the budget grows ([`standing`]).
//!    Whatever mix of versions the regions have heard of, each uses at most its share in one distribution that all of
//!    them keep to ([`versions`], Theorem). So `Σ shares <= B`, the largest budget used.
//! 2. **Loans** take from the giver before the holder can hear of them, and are cut from the giver's own share alone: a
//!    loan rests on nothing that can end before it. The holder stops before the giver begins again ([`session`],
//!    Theorem 1), however many renewals are lost, late or reordered ([`session`], Theorem 2). So at every instant a
//!    loan is counted on by one side or by none, and `Σ (share + held − lent) <= Σ shares`.
//! 3. **Transfers** are written once, by the giver, and what the receiver knows of them is a lower bound. So in every
//!    window `Σ (share + received − given) <= Σ shares` ([`transfer`], Theorem 5), and what was used stays below it.
//! 4. **What was spent moves with the part.** A bucket's debt is never lost on the way: it is in a cell or in flight.
//!    So debts sum to B at most, only draining at `Σ rate <= r` lowers them, and `admitted(s, t] <= B + r·(t − s)`
//!    ([`loan`], Theorem 3). A sliding window's capacity moves only unused, and is not used again before what the
//!    holder spent has left the window ([`loan`], Theorem 4). A window's rights move only unused, and never back. ∎
//!
//! What several nodes of one region share they take leases of, from pools that are kept by a server which may forget: [`pool`] has
//! the same promise a level below, with its own theorems.
//!
//! Where a share is lowered, loans cut from the larger one go on counting until they are back within the smaller one,
//! and so does what such a cell owes: until then the region does not acknowledge, the older budget is in force, and
//! nobody's share is raised. What other cells owe drains in the horizon that a raise waits for.
//!
//! # What it knows
//! Regions, their writers and weights; shares, versions, acknowledgements, loans, transfers. It does not know limits (a
//! version's are bytes), requests, how a message travels, what is on a disk or what time it is. Whom to lend how much,
//! when to renew and when to give back is the caller's choice, and no choice breaks the invariant. What the caller must
//! do is said at each call: apply the change to the cell, and write before it tells.
//!
//! Clocks may be wrong by what the catalogue says: steady ones run at `1 ± D`, and walls are within ε of true time.
//! Peers may be slow, dead or cut off, and their disks may be lost. The theorems are about peers that do not lie; what is believed of
//! one that does has a bound ([`Transfers::receive`]).
//!
//! # Where to read
//! In the order below: every file of rules opens with its theorem. `README.md` beside this crate's `Cargo.toml` has the
//! protocol on one page, with a history of a split brain. `tests/` has the same rules under random histories, and
//! leaves them out one at a time ([`broken`]) to see that the checks notice.

// Regions, and the writers that speak for them.
pub mod identity;

// What each region has by formula.
pub mod standing;

// Which weights and budgets a node goes by, and when a share may be raised.
pub mod versions;

// When a loan ends, for its holder and later for its giver.
pub mod session;

// What a loan does to a cell: buckets and sliding windows.
pub mod loan;

// What a region gives away inside a window.
pub mod transfer;

// What the nodes of one region share.
pub mod pool;

// Whether two nodes know the same, in a few bytes.
pub mod digest;

// Rules that tests may leave out.
pub mod mutation;

pub use identity::{Incarnation, MemberId, node_named};
pub use loan::{Book, Change, Expired, Grant, HeldLoan, Kind, LentLoan, Offer, Refusal, Return};
pub use session::{Beats, Heartbeat, Renew, Session, Sessions, stretch};
pub use standing::Split;
pub use transfer::{Row, Transfers};
pub use versions::{Ack, Version, VersionId, Versions};
