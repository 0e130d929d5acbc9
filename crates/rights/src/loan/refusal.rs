//! Why a step with a loan did not happen.

use acequia_limits::Part;
use thiserror::Error;

use super::{LOANS_MAX, LOANS_PER_PEER_MAX, TTL_NS_MAX};
use crate::session::{EXCEPTED_MAX, FROZEN_MAX};

/// The reason why a step did not happen. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The part is empty.
    #[error("an empty part")]
    Empty,
    /// The message has numbers that no honest peer sends.
    #[error("numbers out of range or out of order")]
    Malformed,
    /// The ttl is out of range.
    #[error(
        "a ttl of {0} ns: it is 1 ns to {TTL_NS_MAX} ns, and to what the holder keeps its heartbeats for"
    )]
    Ttl(u64),
    /// The part has a rate, and a window has none.
    #[error("a part of the rate of a limit without a rate")]
    Rate,
    /// More than the giver's own part, minus its loans.
    #[error("{asked:?} of a spare {spare:?}")]
    NotSpare {
        /// The offered part.
        asked: Part,
        /// The part that could be lent.
        spare: Part,
    },
    /// More tokens, or more of a window, than are available.
    #[error("{asked} units where {available} are available")]
    NotAvailable {
        /// The units asked for.
        asked: u64,
        /// The units available.
        available: u64,
    },
    /// The peer has not been heard, or not recently enough.
    #[error("no heartbeat of the peer is recent enough")]
    Unheard,
    /// The loan's number is not above those before.
    #[error("loan number {0} is not above those before")]
    NumberUsed(u64),
    /// The cell has as many loans as it may have.
    #[error("as many loans as a cell may have: {LOANS_PER_PEER_MAX} a peer, {LOANS_MAX} in all")]
    TooManyLoans,
    /// As many loans are frozen as a peer is told of, or remembers.
    #[error("as many frozen loans as a peer is told of ({FROZEN_MAX}), or remembers ({EXCEPTED_MAX})")]
    TooManyFrozen,
    /// This process did not send the heartbeat, or has forgotten it.
    #[error("an echo of a heartbeat that this process did not send, or long ago")]
    UnknownHeartbeat,
    /// The loan has ended already.
    #[error("it ended before it came")]
    Ended,
    /// The loan is held already.
    #[error("loan {0} is held already")]
    Duplicate(u64),
    /// The loan was given back.
    #[error("loan {0} was given back")]
    GivenBack(u64),
    /// There is no such loan with that peer.
    #[error("no loan {0} with that peer")]
    Unknown(u64),
    /// The units are more than the peer can have.
    #[error("{said} units of one that can have {most}")]
    TooMuch {
        /// Units that the peer says that it gave or lent, in all.
        said: u64,
        /// The most that the peer can have.
        most: u64,
    },
    /// The message is older than one that came before.
    #[error("older than what came before")]
    Stale,
    /// The message is newer than one that came before, and says less.
    #[error("newer than what came before, and says less: the peer's disk may have been restored")]
    Backwards,
    /// A peer remembers more than this node: this node's disk is an old one.
    #[error(
        "{to:?} has received {received} units of this window, where {given} were given: the disk was restored"
    )]
    RestoredDisk {
        /// The peer.
        to: crate::MemberId,
        /// Units that the peer says it received.
        received: u64,
        /// Units that this node knows it gave.
        given: u64,
    },
    /// There are as many members as a catalogue may have.
    #[error("more regions than a catalogue has")]
    TooManyRegions,
}
