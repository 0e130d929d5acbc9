//! The pools of a region, from which its nodes take leases. [`acequia_rights::pool`] has the rules and the
//! proofs.
//!
//! Three kinds of pools pass one suite. [`KeptPools`] keeps them in memory or in a journal, on any
//! [`crate::Store`], and states the rules as briefly as possible. [`RedisPools`] keeps them in Redis, where
//! the same rules are functions in `lua/`. All kinds answer alike, call by call. Only Redis may lose a cell
//! and keep its group. This is noticed when the cell is asked for, and then nothing is known of the group.

mod carry;
mod kept;
mod wire;

use std::{fmt::Debug, future::Future, time::Duration};

use acequia_limits::Now;
use acequia_node::Node;
use acequia_rights::pool::{
    Generation, Letter, PoolRefused, bucket,
    group::{Assertion, Begin, Excluded, GroupStatus},
    name, sliding, window,
};

pub use self::{
    carry::{PoolClient, Process, carry, share},
    kept::KeptPools,
    wire::RedisPools,
};
use crate::redis::{Group, Missed};

/// The target of a call, and what its caller knows.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The group that the cell is in.
    pub group: Group,
    /// The allocation among regions that the caller has adopted; 0 if there is none. To this caller a pool of
    /// a later allocation does not exist.
    pub allocation: u64,
    /// The cell's name, unique in its group; empty if the call is about the group. Each kind of pool has
    /// names of its own.
    pub cell: &'a str,
    /// The generation of the group, as the caller knows it.
    pub generation: Generation,
    /// The caller's wall clock, in microseconds since the epoch.
    pub wall_us: u64,
    /// How long the caller waits for the answer.
    pub deadline: Duration,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallAnswer<T> {
    /// The call was executed.
    Done(T),
    /// The call changed nothing.
    Refused(PoolRefused),
    /// The call changed nothing, since the group's generation is not the one that the caller knows. If the
    /// group has no generation, begin one. Then tell the pools what the node holds.
    Unknown(GroupStatus),
}

/// Pools, wherever they are.
pub trait Pools: Debug + Send + Sync {
    /// Compares a node's wall with the clocks of the servers ([`Node::compare_wall`]), and stops calls to
    /// servers whose time differs from the node's. Does nothing if the pools have no clocks of their own.
    fn compare_clocks(&self, _node: &Node, _clock: &dyn Fn() -> Now) {}

    /// Begins a generation of a group, above those that the caller has heard of, unless somebody has begun
    /// one. The generation in `at` has no meaning here.
    ///
    /// # Errors
    /// There is no answer: the generation may have begun or not.
    fn begin(&self, at: &At<'_>, begin: &Begin) -> impl Future<Output = Result<GroupStatus, Missed>> + Send;

    /// Says that a node has told everything that it holds of a group's pools. Some of the other nodes may be
    /// excluded.
    ///
    /// # Errors
    /// There is no answer: the assertion may have been heard or not.
    fn assert(
        &self,
        at: &At<'_>,
        assertion: &Assertion,
        excluded: Option<&Excluded>,
    ) -> impl Future<Output = Result<GroupStatus, Missed>> + Send;

    /// Takes units from a window.
    ///
    /// # Errors
    /// There is no answer: the call may have been executed or not.
    fn take(
        &self,
        at: &At<'_>,
        take: &window::Take,
    ) -> impl Future<Output = Result<CallAnswer<window::Took>, Missed>> + Send;

    /// Exchanges the units that a node holds of a bucket.
    ///
    /// # Errors
    /// There is no answer: the call may have been executed or not.
    fn exchange(
        &self,
        at: &At<'_>,
        exchange: &bucket::Exchange,
        params: &bucket::BucketParams,
    ) -> impl Future<Output = Result<CallAnswer<bucket::Exchanged>, Missed>> + Send;

    /// Exchanges the units that a node holds of a sliding window.
    ///
    /// # Errors
    /// There is no answer: the call may have been executed or not.
    fn exchange_sliding(
        &self,
        at: &At<'_>,
        exchange: &sliding::Slide,
    ) -> impl Future<Output = Result<CallAnswer<sliding::Slid>, Missed>> + Send;

    /// Does something to the name of a charge. The name is the cell of `at`, in the group of the charge.
    ///
    /// # Errors
    /// There is no answer: the call may have been executed or not.
    fn name(
        &self,
        at: &At<'_>,
        act: &name::Act,
    ) -> impl Future<Output = Result<CallAnswer<name::NameState>, Missed>> + Send;

    /// Leaves a letter for a node until `drops_us`: wall clock, in microseconds. The cell of `at` has the
    /// letters of that node. Says whether the letter is there.
    ///
    /// # Errors
    /// There is no answer: the letter may be there or not.
    fn post(
        &self,
        at: &At<'_>,
        letter: Letter,
        drops_us: u64,
    ) -> impl Future<Output = Result<CallAnswer<bool>, Missed>> + Send;

    /// The letters that wait for a node, except about charges of which it `had` letters.
    ///
    /// # Errors
    /// There is no answer: the letters are still there.
    fn collect(
        &self,
        at: &At<'_>,
        had: &[u128],
    ) -> impl Future<Output = Result<CallAnswer<Vec<Letter>>, Missed>> + Send;

    /// Drops cells of a group that say no more than absent cells, at most `most`. Returns how many there
    /// were. The cell of `at` has no meaning here.
    ///
    /// # Errors
    /// There is no answer: the cells may be dropped or not.
    fn sweep(&self, at: &At<'_>, most: u32) -> impl Future<Output = Result<CallAnswer<u64>, Missed>> + Send;
}
