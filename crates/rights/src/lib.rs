//! Rules for who may spend a limit. **At every instant, the members together count on at most the largest
//! budget in force of a cell**. This is true whatever messages, crashes, and clocks within the bounds of the
//! catalogue do; anything else is a bug. An algorithm (`acequia-limits`) never admits more than its member
//! counts on, so all members together never admit more than the limit.
//!
//! A *member* is a node with a share, or a region that has only one node. A member *counts on* its standing
//! share, minus its loans and transfers to others, plus the loans that it holds and the transfers that it
//! received. A budget is *in force* from when any member uses it until every member has acknowledged a later
//! one.
//!
//! # Proof
//! 1. **Shares.** The shares of one allocation sum to the budget, and no share falls when the budget grows
//!    ([`standing`]). Members may have heard of any mix of versions: each uses at most its share in one
//!    allocation that all of them keep to ([`versions`], Theorem). So `Σ shares <= B`, the largest budget
//!    used.
//! 2. **Loans** leave the giver before the holder can hear of them, and are cut from the giver's own share
//!    alone, so a loan rests on nothing that can end before the loan. The holder stops before the giver
//!    begins again ([`session`], Theorem 1), however many renewals are lost, late or reordered ([`session`],
//!    Theorem 2). So at every instant one side or neither counts on a loan, and
//!    `Σ (share + held − lent) <= Σ shares`.
//! 3. **Transfers** are written once, by the giver, and the receiver knows a lower bound of them. So in every
//!    window `Σ (share + received − given) <= Σ shares` ([`transfer`], Theorem 5), and the units used stay
//!    below this sum.
//! 4. **Spending moves with the part.** A bucket's debt is never lost on the way: the debt is in a cell or in
//!    flight. So debts sum to B at most, only draining at `Σ rate <= r` lowers them, and
//!    `admitted(s, t] <= B + r·(t − s)` ([`loan`], Theorem 3). A sliding window's capacity moves only while
//!    unused, and is used again only after the holder's spending has left the window ([`loan`], Theorem 4). A
//!    window's rights move only while unused, and never back. ∎
//!
//! **Reports.** A member may record units that were spent before they were asked for, though it does not have
//! them ([`acequia_limits::debt`]). A report adds to what its own cell has spent, and to nothing else: it makes no
//! share, loan or transfer larger, and parts still move only while unused. So the four sums above hold for what is
//! *admitted*, and `admitted + reported <= B + r·(t − s) + (what was reported beyond)`. What one member owes makes
//! others admit less ("keep back"). That steers, and no sum rests on it.
//!
//! The nodes of one region may share a part: they take leases from pools on a server that may forget.
//! [`pool`] makes the same promise one level below, with its own theorems.
//!
//! When a share is lowered, loans cut from the larger share still count until they fit within the smaller
//! one, and so does the debt of a cell with loans. Until then the member does not acknowledge, the older
//! budget stays in force, and nobody's share is raised. The debt of other cells drains within the horizon
//! that a raise waits for.
//!
//! # What it knows
//! The crate knows members, their incarnations and weights; shares, versions, acknowledgements, loans,
//! transfers. It does not know limits (a version's limits are bytes), requests, how a message travels, what
//! is on a disk or what time it is. The caller chooses whom to lend to, how much, when to renew and when to
//! give back; no choice breaks the invariant. Each call says what the caller must do: apply the change to the
//! cell, and write before it sends.
//!
//! Clocks may be wrong by the bounds in the catalogue: steady clocks run at `1 ± D`, and wall clocks are
//! within ε of true time. Peers may be slow, dead or cut off, and their disks may be lost. The theorems
//! assume that peers do not lie; the units believed from a peer that lies have a bound
//! ([`Transfers::receive`]).
//!
//! # Where to read
//! Read in the order below: every file of rules opens with its theorem. `README.md` beside this crate's
//! `Cargo.toml` has the protocol on one page, with a history of a split brain. `tests/` runs the rules under
//! random histories, and breaks one rule at a time ([`mutation::mutated`]) to see that the checks notice.

// Members, and the incarnations that write for them.
pub mod identity;

// The share of each member by formula.
pub mod standing;

// The weights and budgets that a node uses, and when a share may be raised.
pub mod versions;

// When a loan ends: for its holder, and later for its giver.
pub mod session;

// The effect of a loan on a cell: buckets and sliding windows.
pub mod loan;

// Units that a member gives away inside a window.
pub mod transfer;

// Pools: the part of a cell that the nodes of one region share.
pub mod pool;

// How two nodes find out, in a few bytes, whether they know the same rows.
pub mod digest;

// Numbers that look random and that a seed determines.
pub mod splitmix;

// Rules that tests may break.
pub mod mutation;

pub use identity::{Incarnation, MemberId, node_named};
pub use loan::{Book, CellChange, Expired, Grant, HeldLoan, LentLoan, LoanKind, Offer, Refusal, Return};
pub use session::{Heartbeat, Renew, SentHeartbeats, Session, Sessions, stretch};
pub use standing::Split;
pub use transfer::{Transfers, UsageRow};
pub use versions::{Ack, Version, VersionId, Versions};
