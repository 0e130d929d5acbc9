//! The reasons why there is no answer.

use std::{error::Error as _, time::Duration};

use tonic::{Code, Status};

use crate::AskedNode;

/// The reason why there is no answer. A denial is not an error: a denial is an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The node cannot be reached, or broke off. The question may have been charged, unless no connection
    /// could be made.
    #[error(
        "no answer from {address}: {why}. Is `acequia serve` running there, and is this its gRPC address (listen.grpc)?"
    )]
    Unreachable {
        /// The address as it was given to [`Client::connect`](crate::Client::connect).
        address: String,
        /// The cause, as far as this side can tell.
        why: String,
    },
    /// The node did not answer in time. The question may have been charged.
    #[error(
        "no answer from {address} in {deadline:?}, and what was asked may have been charged. Allow it more time, or see whether the node is overloaded or out of reach"
    )]
    Deadline {
        /// The address as it was given to [`Client::connect`](crate::Client::connect).
        address: String,
        /// The time allowed: [`Options::deadline`](crate::Options::deadline).
        deadline: Duration,
    },
    /// The node does not know this client, or does not allow this question. Nothing was charged. The node's
    /// operator can fix this, or whoever gives this client its [`Credentials`](crate::Credentials).
    #[error("{address} does not let this client ask: {what}")]
    NotAllowed {
        /// The address as it was given to [`Client::connect`](crate::Client::connect).
        address: String,
        /// The node's message.
        what: String,
    },
    /// The question itself is wrong, and will be wrong every time. Nothing was charged.
    #[error("refused: {what}")]
    Refused {
        /// The fault in the question, and how to fix it.
        what: String,
    },
}

impl ClientError {
    pub(crate) fn from_status(status: &Status, peer: &AskedNode) -> Self {
        match status.code() {
            // An id that names another question, or a cost above the reservation. `ResourceExhausted` means
            // a message that is too large: a spent limit gives an answer, not an error.
            Code::InvalidArgument
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::ResourceExhausted => Self::Refused { what: status.message().to_owned() },
            Code::DeadlineExceeded => peer.late(),
            Code::Unauthenticated | Code::PermissionDenied => {
                Self::NotAllowed { address: peer.address.clone(), what: status.message().to_owned() }
            }
            _ => peer.unreachable(why(status)),
        }
    }
}

/// The first cause if this side knows it, or else the other side's message.
fn why(status: &Status) -> String {
    let mut first = None;
    let mut cause = status.source();
    while let Some(error) = cause {
        first = Some(error);
        cause = error.source();
    }
    match (first, status.code(), status.message()) {
        (Some(error), ..) => error.to_string(),
        (None, Code::Unimplemented, _) => {
            "it does not know this call, as a node's admin address does not (listen.grpc is asked)".to_owned()
        }
        (None, code, "") => format!("it says {code:?}"),
        (None, code, message) => format!("it says {code:?}, {message}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_refusal_of_a_wrong_request_counts_as_an_answer() {
        let peer = AskedNode { address: "node:8081".to_owned(), deadline: Duration::from_secs(1) };
        for (code, is_answer) in [
            (Code::InvalidArgument, true),
            (Code::AlreadyExists, true),
            (Code::FailedPrecondition, true),
            (Code::OutOfRange, true),
            (Code::ResourceExhausted, true),
            (Code::Unauthenticated, false),
            (Code::PermissionDenied, false),
            (Code::Unavailable, false),
            (Code::Internal, false),
            (Code::Unimplemented, false),
            (Code::Cancelled, false),
        ] {
            let error = ClientError::from_status(&Status::new(code, "why"), &peer);
            assert_eq!(matches!(error, ClientError::Refused { .. }), is_answer, "{code}: {error}");
        }
        let late = ClientError::from_status(&Status::deadline_exceeded("late"), &peer);
        assert!(matches!(late, ClientError::Deadline { .. }), "{late}");
    }
}
