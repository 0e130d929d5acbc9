//! The connection IDs by which packets find their connection.

use quinn::{ConnectionId, ConnectionIdGenerator};
use ring::rand::{SecureRandom as _, SystemRandom};
use std::time::Duration;

use crate::random::Random;

const ID_BYTES: usize = 8;

/// Connection IDs that nobody can foresee. With a seed, they are equal in every run.
///
/// The IDs must be unforeseeable: a node answers a packet for an unknown connection with the token that
/// resets the connection of that ID.
pub(crate) enum Ids {
    System(SystemRandom),
    Seeded(Random),
}

impl Ids {
    pub(crate) fn new(rng_seed: Option<[u8; 32]>) -> Self {
        match rng_seed {
            Some(seed) => Self::Seeded(Random::from_bytes(&seed)),
            None => Self::System(SystemRandom::new()),
        }
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID_BYTES];
        match self {
            Self::System(random) => {
                let filled = random.fill(&mut id);
                // TLS makes its keys from the same source, so a node cannot go on without it.
                assert!(filled.is_ok(), "the system gives no random numbers");
            }
            Self::Seeded(random) => id = random.next().to_be_bytes(),
        }
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_connection_ids_and_the_system_does_not() {
        let ids = |seed| {
            let mut ids = Ids::new(seed);
            [ids.generate_cid(), ids.generate_cid()].map(|id| id.to_vec())
        };
        assert_eq!(ids(Some([1; 32])), ids(Some([1; 32])));
        assert_ne!(ids(Some([1; 32])), ids(Some([2; 32])));
        assert_ne!(ids(None), ids(None));
    }
}
