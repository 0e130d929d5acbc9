//! Where the pools of a region are kept: what its nodes take leases of ([`acequia_rights::pool`] has the rules and the proofs).
//!
//! Three ways to keep them pass one suite: in memory and in a journal ([`KeptPools`], on any [`crate::Store`]), which is what the rules say in
//! as few words as possible; and in Redis ([`RedisPools`]), where the same rules are functions in `lua/`. Whatever is asked of one is
//! answered alike by the others, call by call. Redis alone may lose a cell and keep its group: that is noticed when the cell is asked for,
//! and then nothing is known of the group.

mod carry;
mod kept;
mod wire;

use std::{fmt::Debug, future::Future, time::Duration};

use acequia_limits::Now;
use acequia_node::Node;
use acequia_rights::pool::{
    Generation, Letter, Refused, bucket,
    group::{Absent, Assertion, Begin, GroupStatus},
    name, sliding, window,
};

pub use self::{
    carry::{PoolClient, Process, carry, share},
    kept::KeptPools,
    wire::RedisPools,
};
use crate::redis::{Group, Missed};

/// What a call is about, and what it knows.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The group that the cell is in.
    pub group: Group,
    /// The distribution among regions that the caller has adopted: a pool that is part of a later one is none to it. 0 where
    /// there is none.
    pub terms: u64,
    /// The cell, by a name that is its own in the group, and nothing where the group is asked for. Each kind of pool has names of its own.
    pub cell: &'a str,
    /// The generation of the group that the caller knows.
    pub generation: Generation,
    /// The caller's wall clock, in microseconds since the epoch.
    pub wall_us: u64,
    /// How long the caller waits.
    pub deadline: Duration,
}

/// What became of a call that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// It was done.
    Done(T),
    /// It changed nothing.
    Refused(Refused),
    /// It changed nothing, since the group is of another generation than the caller knows: begin one if it is of none, and tell what
    /// is held.
    Unknown(GroupStatus),
}

/// Pools, wherever they are.
pub trait Pools: Debug + Send + Sync {
    /// Compares a node's wall with the clocks there ([`Node::compare_wall`]), and lets no call go to where it is not what the node goes
    /// by. Nothing where pools have no clocks of their own.
    fn compare_clocks(&self, _node: &Node, _clock: &dyn Fn() -> Now) {}

    /// Begins a generation of a group, above what the caller has heard of, unless somebody has. The generation of `at` is of no meaning.
    ///
    /// # Errors
    /// There is no answer: it may be begun or not.
    fn begin(&self, at: &At<'_>, begin: &Begin) -> impl Future<Output = Result<GroupStatus, Missed>> + Send;

    /// Says that a node has told all that it holds of a group's pools. Some of the others may be left
    /// out.
    ///
    /// # Errors
    /// There is no answer: it may be heard or not.
    fn assert(
        &self,
        at: &At<'_>,
        assertion: &Assertion,
        absent: Option<&Absent>,
    ) -> impl Future<Output = Result<GroupStatus, Missed>> + Send;

    /// Takes units of a window.
    ///
    /// # Errors
    /// There is no answer: it may be done or not.
    fn take(
        &self,
        at: &At<'_>,
        take: &window::Take,
    ) -> impl Future<Output = Result<Answer<window::Took>, Missed>> + Send;

    /// Exchanges what a node holds of a bucket.
    ///
    /// # Errors
    /// There is no answer: it may be done or not.
    fn exchange(
        &self,
        at: &At<'_>,
        exchange: &bucket::Exchange,
        params: &bucket::BucketParams,
    ) -> impl Future<Output = Result<Answer<bucket::Exchanged>, Missed>> + Send;

    /// Exchanges what a node holds of a sliding window.
    ///
    /// # Errors
    /// There is no answer: it may be done or not.
    fn exchange_sliding(
        &self,
        at: &At<'_>,
        exchange: &sliding::Exchange,
    ) -> impl Future<Output = Result<Answer<sliding::Exchanged>, Missed>> + Send;

    /// Does something to the name of a charge: the cell of `at`, which is in the charge's group.
    ///
    /// # Errors
    /// There is no answer: it may be done or not.
    fn name(
        &self,
        at: &At<'_>,
        act: &name::Act,
    ) -> impl Future<Output = Result<Answer<name::NameState>, Missed>> + Send;

    /// Leaves a letter for a node, with whose letters the cell of `at` is, until `drops_us`: wall clock, in microseconds. Says whether it is there.
    ///
    /// # Errors
    /// There is no answer: it may be there or not.
    fn post(
        &self,
        at: &At<'_>,
        letter: Letter,
        drops_us: u64,
    ) -> impl Future<Output = Result<Answer<bool>, Missed>> + Send;

    /// The letters that wait for a node, but for those about charges that it `had` letters of.
    ///
    /// # Errors
    /// There is no answer: they are there still.
    fn collect(
        &self,
        at: &At<'_>,
        had: &[u128],
    ) -> impl Future<Output = Result<Answer<Vec<Letter>>, Missed>> + Send;

    /// Drops cells of a group that say no more than absent ones, so many at most; how many there were. The cell of `at` is of no meaning.
    ///
    /// # Errors
    /// There is no answer: they may be dropped or not.
    fn sweep(&self, at: &At<'_>, most: u32) -> impl Future<Output = Result<Answer<u64>, Missed>> + Send;
}
