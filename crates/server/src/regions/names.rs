//! Names and numbers of members: files, certificates and people use names, rows and frames use numbers. If a
//! region has several nodes, each has a number of its own, and people call it by its own name.

use std::collections::BTreeMap;

use acequia_mesh::{Identity, PeerConfig};
use acequia_rights::{Incarnation, MemberId, Version, node_named};

use crate::config;

/// The regions of the config.
#[derive(Debug)]
pub(crate) struct Names {
    by_region: BTreeMap<MemberId, Named>,
}

#[derive(Debug)]
struct Named {
    /// The name that people use.
    name: String,
    identity: Identity,
    address: String,
}

impl Names {
    pub(crate) fn new(regions: &config::Regions) -> Self {
        let named = regions.all().into_iter().map(|member| {
            let identity = Identity::new(&member.region, &member.node);
            (member.number, Named { name: member.name, identity, address: member.address })
        });
        Self { by_region: named.collect() }
    }

    /// All members, this node included.
    pub(crate) fn regions(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.by_region.keys().copied()
    }

    /// The peers to connect to.
    pub(crate) fn peers(&self, own: &Identity) -> Vec<PeerConfig> {
        let others = self.by_region.values().filter(|named| named.identity != *own);
        others
            .map(|named| PeerConfig { identity: named.identity.clone(), address: named.address.clone() })
            .collect()
    }

    /// The identity of a member.
    pub(crate) fn identity(&self, region: MemberId) -> Option<&Identity> {
        self.by_region.get(&region).map(|named| &named.identity)
    }

    pub(crate) fn address(&self, region: MemberId) -> &str {
        self.by_region.get(&region).map_or("", |named| &named.address)
    }

    /// The number of a member's node; 0 if the config has no such member.
    pub(crate) fn node_of(&self, region: MemberId) -> u16 {
        self.identity(region).map_or(0, |identity| node_named(&identity.node))
    }

    /// The member whose certificate a connection has, if the config has it.
    pub(crate) fn region_of(&self, identity: &Identity) -> Option<MemberId> {
        let either = [MemberId::named(&identity.region), MemberId::named(&identity.to_string())];
        either.into_iter().find(|number| self.identity(*number) == Some(identity))
    }

    /// The number of a name in the config or in a version of the catalogue. A region with several nodes has
    /// no number of its own: its name then gives the number of no member.
    pub(crate) fn number_of(&self, name: &str, version: Option<&Version>) -> MemberId {
        let configured = self.by_region.iter().find(|(_, named)| named.name == name);
        if let Some((number, _)) = configured {
            return *number;
        }
        let mut members = version.into_iter().flat_map(|version| &version.members);
        let is_named = |member: &str| member.split_once('/').is_some_and(|(_, node)| node == name);
        let found = members.find(|(_, member)| is_named(&member.name)).map(|(number, _)| *number);
        found.unwrap_or_else(|| MemberId::named(name))
    }

    /// The names of a region's nodes, if it has several.
    pub(crate) fn nodes_of(&self, region: &str) -> Vec<&str> {
        let of_region = self.by_region.values().filter(|named| named.identity.region == region);
        let mut names: Vec<&str> =
            of_region.map(|named| named.name.as_str()).filter(|name| *name != region).collect();
        names.sort_unstable();
        names
    }

    /// The name of an incarnation, as `region/node`: from the config, or the version, or else made of its
    /// numbers.
    pub(crate) fn of_writer(&self, incarnation: Incarnation, version: Option<&Version>) -> String {
        let configured =
            self.identity(incarnation.member).filter(|found| node_named(&found.node) == incarnation.node);
        if let Some(identity) = configured {
            return identity.to_string();
        }
        let member = version.and_then(|version| version.members.get(&incarnation.member));
        match member {
            Some(member) if member.incarnation.node == incarnation.node && !member.name.is_empty() => {
                member.name.clone()
            }
            _ => format!("region {} node {}", incarnation.member.0, incarnation.node),
        }
    }

    /// The name of a member.
    pub(crate) fn of_region(&self, region: MemberId, version: Option<&Version>) -> String {
        if let Some(named) = self.by_region.get(&region) {
            return named.name.clone();
        }
        let member = version.and_then(|version| version.members.get(&region));
        match member.and_then(|member| member.name.split('/').next()).filter(|name| !name.is_empty()) {
            Some(name) => name.to_owned(),
            None => format!("region {}", region.0),
        }
    }
}
