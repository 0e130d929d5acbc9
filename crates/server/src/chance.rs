//! The source of a node's secrets, which nobody may foresee.

use std::{fmt, io};

use ring::hmac;

/// A source of secrets.
#[derive(Clone)]
pub enum Chance {
    /// The machine's random source.
    System,
    /// For simulations: the same secrets in every run. The seed reveals every secret, and each new process
    /// needs a seed of its own.
    Seeded([u8; 32]),
}

/// Leaves the seed out.
impl fmt::Debug for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Seeded(_) => "Seeded",
        })
    }
}

impl Chance {
    /// Draws a secret. With a seed, one purpose always gives the same secret.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn draw<const BYTES: usize>(&self, purpose: &str) -> io::Result<[u8; BYTES]> {
        const { assert!(BYTES <= 32) };
        let mut bytes = [0; BYTES];
        match self {
            Self::System => {
                getrandom::fill(&mut bytes).map_err(|fault| io::Error::other(fault.to_string()))?;
            }
            Self::Seeded(seed) => {
                let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, seed), purpose.as_bytes());
                bytes.copy_from_slice(&derived.as_ref()[..BYTES]);
            }
        }
        Ok(bytes)
    }

    /// The seed that makes the mesh's own choices the same in every run; `None` if the machine draws them.
    pub(crate) fn mesh_seed(&self) -> io::Result<Option<[u8; 32]>> {
        match self {
            Self::System => Ok(None),
            Self::Seeded(_) => self.draw("mesh").map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_each_purpose_its_secret_and_the_system_a_new_one() {
        let draw = |chance: Chance, purpose| chance.draw::<16>(purpose).expect("a secret");
        let seeded = || Chance::Seeded([7; 32]);
        assert_eq!(draw(seeded(), "hash key"), draw(seeded(), "hash key"));
        assert_ne!(draw(seeded(), "hash key"), draw(seeded(), "names"));
        assert_ne!(draw(Chance::System, "names"), draw(Chance::System, "names"));
    }
}
