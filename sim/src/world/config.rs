//! The configs of the nodes of a world.

use std::{net::SocketAddr, path::Path};

use acequia_mesh::Identity;

use super::{
    Setup, WorldError,
    region::{GRPC_PORT, HTTP_PORT, MESH_PORT},
};
use crate::{NAMES, schedule::Place};

/// The names of regions that have several nodes.
const REGIONS_OF_NODES: [&str; 3] = ["west", "east", "south"];

/// All nodes of a world: names and addresses, and the folder of their certificates.
#[derive(Debug)]
pub(super) struct Nodes<'a> {
    pub(super) names: &'a [&'static str],
    pub(super) peers: &'a [SocketAddr],
    pub(super) keys: &'a Path,
}

impl Setup {
    /// The names of the places.
    ///
    /// # Errors
    /// There are too few or too many regions or stores.
    pub(super) fn names(&self) -> Result<&'static [&'static str], WorldError> {
        let names = NAMES.get(..self.regions).filter(|names| !names.is_empty());
        let names =
            names.ok_or_else(|| WorldError::Setup(format!("1 to {} regions, please", NAMES.len())))?;
        if self.stores > names.len().min(REGIONS_OF_NODES.len()) {
            return Err(WorldError::Setup(format!("1 to {} stores, please", REGIONS_OF_NODES.len())));
        }
        Ok(names)
    }

    /// The store of a node.
    pub(super) fn store_of(&self, place: Place) -> usize {
        place * self.stores.max(1) / self.regions
    }

    /// The region of a node, if nodes belong to several regions with stores.
    fn region_of(&self, place: Place) -> Option<&'static str> {
        let is_among = self.guard_percent.is_some() && self.stores > 1;
        is_among.then(|| REGIONS_OF_NODES[self.store_of(place)])
    }

    /// A node's name in the mesh.
    pub(super) fn identity_of(&self, place: Place) -> Identity {
        let name = NAMES[place];
        match self.region_of(place) {
            Some(region) => Identity::new(region, name),
            None => Identity::new(name, format!("{name}-1")),
        }
    }

    /// The config of a node.
    pub(super) fn config_of(&self, place: Place, nodes: &Nodes<'_>) -> String {
        match self.guard_percent {
            Some(percent) => self.config_with_store(place, nodes, percent),
            None => self.config_of_region(place, nodes),
        }
    }

    /// The line about clocks, if the setup has any.
    fn clock_line(&self) -> String {
        if self.clock.is_empty() { String::new() } else { format!("clock: {}\n", self.clock) }
    }

    /// The config of a region with one node.
    fn config_of_region(&self, place: Place, nodes: &Nodes<'_>) -> String {
        let regions = NAMES.iter().zip(nodes.peers);
        let regions = regions.map(|(name, at)| format!("  {name}: {{ nodes: {{ {name}-1: \"{at}\" }} }}\n"));
        let regions: String = regions.collect();
        format!(
            "\
region: {name}
node: {name}-1
listen: {{ grpc: \"0.0.0.0:{GRPC_PORT}\", http: \"0.0.0.0:{HTTP_PORT}\", mesh: \"0.0.0.0:{MESH_PORT}\" }}
data: simulated
tls: {keys:?}
store: memory
memory: 16MiB
workers: 1
drain: 200ms
regions:
{regions}authority: {authority}-1
{clock}limits:
{limits}",
            name = nodes.names[place],
            keys = nodes.keys,
            authority = NAMES[0],
            clock = self.clock_line(),
            limits = self.limits,
        )
    }

    /// The config of a node that shares a store with others.
    fn config_with_store(&self, place: Place, nodes: &Nodes<'_>, guard_percent: u8) -> String {
        let Nodes { names, peers, keys } = nodes;
        let mates = || (0..names.len()).filter(|other| self.store_of(*other) == self.store_of(place));
        let region = self.region_of(place);
        let (mesh, regions) = match region {
            None => (String::new(), String::new()),
            Some(_) => {
                let all = REGIONS_OF_NODES[..self.stores].iter().map(|region| {
                    let of_region = (0..names.len()).filter(|other| self.region_of(*other) == Some(region));
                    let nodes: Vec<String> =
                        of_region.map(|other| format!("{}: \"{}\"", names[other], peers[other])).collect();
                    format!("  {region}: {{ weight: 1, nodes: {{ {} }} }}\n", nodes.join(", "))
                });
                let all: String = all.collect();
                (
                    format!(", mesh: \"0.0.0.0:{MESH_PORT}\""),
                    format!("tls: {keys:?}\nauthority: {}\nregions:\n{all}", names[0]),
                )
            }
        };
        format!(
            "\
region: {region}
node: {name}
listen: {{ grpc: \"0.0.0.0:{GRPC_PORT}\", http: \"0.0.0.0:{HTTP_PORT}\"{mesh} }}
data: simulated
store: {{ redis: {{ cluster: [\"192.0.2.1:6379\"] }}, nodes: [{nodes}], guard: {guard_percent}% }}
memory: 16MiB
workers: 1
drain: 200ms
{regions}{clock}limits:
{limits}",
            region = region.unwrap_or("here"),
            name = names[place],
            nodes = mates().map(|mate| names[mate]).collect::<Vec<_>>().join(", "),
            clock = self.clock_line(),
            limits = self.limits,
        )
    }
}
