//! Signatures for the node, by the keys of certificates.

use std::sync::Arc;

use acequia_mesh::{Identity, Notary, Signed};
use acequia_node::regions::{Seal, SealFault, Seals, SignerRole};
use acequia_rights::{Incarnation, MemberId, node_named};

/// Signs and checks for the node: the name in a certificate must be that of the writer.
#[derive(Debug)]
pub(super) struct Certified(pub(super) Arc<Notary>);

/// Whether a certificate's name is that of an incarnation. In a region with one node the region has the
/// number, in others each node has its own.
fn speaks_for(identity: &Identity, incarnation: Incarnation) -> bool {
    let numbers = [MemberId::named(&identity.region), MemberId::named(&identity.to_string())];
    numbers.contains(&incarnation.member) && node_named(&identity.node) == incarnation.node
}

impl Seals for Certified {
    fn seal(&self, said: &[u8]) -> Result<Seal, String> {
        let Signed { scheme, signature, chain } = self.0.sign(said)?;
        Ok(Seal { scheme, signature, chain })
    }

    fn check(&self, said: &[u8], seal: &Seal, by: Incarnation, role: SignerRole) -> Result<(), SealFault> {
        let Seal { scheme, signature, chain } = seal.clone();
        let signer = self.0.check(said, &Signed { scheme, signature, chain });
        let signer = signer.map_err(|fault| SealFault::Worthless(fault.to_string()))?;
        if !speaks_for(&signer.identity, by) {
            return Err(SealFault::AnotherWriter(signer.identity.to_string()));
        }
        if role == SignerRole::Authority && !signer.is_authority {
            return Err(SealFault::NotAuthority(signer.identity.to_string()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_signs_only_for_its_own_node() {
        let identity = Identity::new("eu", "eu-1");
        let incarnation = |region: &str, node: &str| Incarnation {
            member: MemberId::named(region),
            node: node_named(node),
            number: 7,
        };
        for (region, node, speaks) in [
            ("eu", "eu-1", true),
            ("eu/eu-1", "eu-1", true),
            ("eu", "eu-2", false),
            ("eu/eu-2", "eu-1", false),
            ("us", "eu-1", false),
        ] {
            assert_eq!(speaks_for(&identity, incarnation(region, node)), speaks, "{region} {node}");
        }
    }
}
