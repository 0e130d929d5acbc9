//! The name of a node, and how a certificate carries it.

use std::{fmt, str::FromStr};

/// The beginning of the name in a certificate.
const SCHEME: &str = "acequia://";
/// The most bytes of a region's or a node's name.
const NAME_BYTES_MAX: usize = 64;

/// The name of a node: its region's name and its own name. Each has 1 to 64 of `a-z`, `A-Z`, `0-9`, `-`,
/// `_` and `.`.
///
/// A certificate carries the name as the URI `acequia://REGION/NODE`, one of its subject alternative names.
/// A DNS name could not carry every name: it allows no `_` and no upper case.
///
/// Names are ordered by region, then by node. In each pair of nodes, the node with the smaller name dials.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The failure domain that the node belongs to.
    pub region: String,
    /// The node's name in its region.
    pub node: String,
}

impl Identity {
    /// The node `node` of `region`.
    pub fn new(region: impl Into<String>, node: impl Into<String>) -> Self {
        Self { region: region.into(), node: node.into() }
    }

    /// The name as a certificate carries it.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("{SCHEME}{}/{}", self.region, self.node)
    }

    /// Whether both names follow the rule above.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        [&self.region, &self.node].iter().all(|name| is_name(name))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.region, self.node)
    }
}

/// The name in a certificate is not a name of an Acequia node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a name like acequia://REGION/NODE")]
pub struct NotAnIdentity;

impl FromStr for Identity {
    type Err = NotAnIdentity;

    fn from_str(uri: &str) -> Result<Self, NotAnIdentity> {
        let (region, node) =
            uri.strip_prefix(SCHEME).and_then(|path| path.split_once('/')).ok_or(NotAnIdentity)?;
        let identity = Self::new(region, node);
        if identity.is_valid() { Ok(identity) } else { Err(NotAnIdentity) }
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_from_its_certificate_uri() {
        for (region, node) in [("eu", "eu-1"), ("EU_west.2", "_"), (".", "..")] {
            let identity = Identity::new(region, node);
            assert_eq!(identity.uri().parse(), Ok(identity));
        }
    }

    #[test]
    fn malformed_names_in_certificates_are_refused() {
        let long = format!("acequia://eu/{}", "n".repeat(65));
        for uri in [
            "",
            "acequia://",
            "acequia:///",
            "acequia://eu",
            "acequia://eu/",
            "acequia:///n",
            "acequia://eu/n/m",
            "acequia://e u/n",
            "acequia://eu/n\0",
            "acequia://eü/n",
            "https://eu/n",
            &long,
        ] {
            assert_eq!(uri.parse::<Identity>(), Err(NotAnIdentity), "{uri}");
        }
    }

    #[test]
    fn names_are_ordered_by_region_first() {
        assert!(Identity::new("ap", "z") < Identity::new("eu", "a"));
        assert!(Identity::new("eu", "a") < Identity::new("eu", "b"));
    }
}
