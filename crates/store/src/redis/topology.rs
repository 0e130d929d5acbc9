//! The layout of the servers, as they describe it.
//!
//! Servers may describe an old layout, for instance if they were cut off, or hung and came back. So several
//! are asked. Only the time until calls succeed again depends on their answers: a wrong server refuses a
//! call, since the identity in the call does not fit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use acequia_rights::splitmix::Random;
use redis::{Cmd, Value};
use tokio::task::JoinSet;

use super::{
    group::{Group, SLOTS},
    link::{Link, command},
    ring,
    settings::{Address, RedisServers},
    wire::{Access, Wire, ask},
};
use crate::settings::SETTINGS;

/// The shards, and the shard of each group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The name of each shard, and the address of its primary, if it is known.
    pub(super) shards: Vec<(String, Option<Address>)>,
    /// For each group, an index of `shards`.
    pub(super) places: Vec<Option<usize>>,
}

/// Asks servers for the layout.
#[derive(Debug)]
pub(super) struct Scout {
    place: RedisServers,
    servers: Access,
    sentinels: Access,
    random: Random,
    /// The nodes that the cluster named at the last look.
    known: BTreeSet<Address>,
    /// For each group, the index of its shard, if a ring places groups.
    ring: Vec<Option<usize>>,
}

impl Scout {
    pub(super) fn new(place: RedisServers, servers: Access, seed: u64) -> Self {
        let (ring, credentials) = match &place {
            RedisServers::Cluster { .. } => (Vec::new(), None),
            RedisServers::Shards { addresses } => (ring::placed(&names(addresses)), None),
            RedisServers::Sentinel { shards, credentials, .. } => (ring::placed(shards), credentials.clone()),
        };
        let sentinels = Access { credentials, ..servers.clone() };
        Self { place, servers, sentinels, random: Random::from_state(seed), known: BTreeSet::new(), ring }
    }

    /// Asks for the layout again. `calm`: connections to ask over if all seems well. Without them, or if they
    /// disagree, up to `asked_max` of all servers that may know the layout are asked.
    ///
    /// # Errors
    /// No server answered; the faults in words.
    pub(super) async fn look(&mut self, calm: &[(Address, Arc<Link>)]) -> Result<Layout, String> {
        match self.place.clone() {
            RedisServers::Cluster { seeds } => self.cluster(&seeds, calm).await,
            RedisServers::Shards { addresses } => {
                let names = names(&addresses).into_iter();
                let shards = names.zip(addresses.into_iter().map(Some)).collect();
                Ok(Layout { shards, places: self.ring.clone() })
            }
            RedisServers::Sentinel { hosts, shards, .. } => self.sentinels(&hosts, &shards).await,
        }
    }

    async fn cluster(&mut self, seeds: &[Address], calm: &[(Address, Arc<Link>)]) -> Result<Layout, String> {
        let mut told = Vec::new();
        for (address, link) in calm {
            let answer = link.ask(&command("CLUSTER", &["SLOTS"])).await;
            told.extend(answer.ok().and_then(|answer| ToldLayout::read(&answer, address)));
        }
        let agree = told.windows(2).all(|pair| pair[0].slots == pair[1].slots);
        let mut faults = Vec::new();
        if told.is_empty() || !agree {
            let mut nodes: Vec<Address> = self.known.iter().chain(seeds).cloned().collect();
            self.random.shuffle(&mut nodes);
            // This comes after the shuffle, so that neither the seeds nor the other nodes are always left
            // out.
            let mut asked = BTreeSet::new();
            nodes.retain(|node| asked.len() < SETTINGS.layout.asked_max && asked.insert(node.clone()));
            let questions = vec![command("CLUSTER", &["SLOTS"])];
            for (node, answer) in asked_all(nodes, &self.servers, &questions).await {
                match answer {
                    Ok(answers) => {
                        told.extend(answers.first().and_then(|answer| ToldLayout::read(answer, &node)))
                    }
                    Err(fault) => faults.push(format!("{node}: {fault}")),
                }
            }
        }
        if told.is_empty() {
            return Err(faults.join("; "));
        }
        self.known = told.iter().flat_map(|told| told.nodes.iter().cloned()).collect();
        Ok(voted(&told))
    }

    async fn sentinels(&mut self, hosts: &[Address], shards: &[String]) -> Result<Layout, String> {
        let mut hosts = hosts.to_vec();
        self.random.shuffle(&mut hosts);
        hosts.truncate(SETTINGS.layout.asked_max);
        let questions: Vec<Cmd> =
            shards.iter().map(|shard| command("SENTINEL", &["MASTER", shard])).collect();
        let (mut latest, mut faults) = (BTreeMap::new(), Vec::new());
        for (host, answer) in asked_all(hosts, &self.sentinels, &questions).await {
            let answers = match answer {
                Ok(answers) => answers,
                Err(fault) => {
                    faults.push(format!("{host}: {fault}"));
                    continue;
                }
            };
            for (shard, answer) in shards.iter().zip(&answers) {
                let Some((epoch, address)) = monitored(answer) else {
                    faults.push(format!("{host} does not monitor {shard}"));
                    continue;
                };
                let known = latest.entry(shard.clone()).or_insert_with(|| (epoch, address.clone()));
                if epoch > known.0 {
                    *known = (epoch, address);
                }
            }
        }
        if latest.is_empty() {
            return Err(faults.join("; "));
        }
        let address = |shard: &String| latest.get(shard).map(|(_, address)| address.clone());
        let shards = shards.iter().map(|shard| (shard.clone(), address(shard))).collect();
        Ok(Layout { shards, places: self.ring.clone() })
    }
}

/// Asks servers at one time, each over a connection of its own, and waits until most have answered: the
/// others may hang.
async fn asked_all(
    servers: Vec<Address>,
    access: &Access,
    questions: &[Cmd],
) -> Vec<(Address, Result<Vec<Value>, String>)> {
    let mut asked = JoinSet::new();
    for server in servers {
        let (access, questions) = (access.clone(), questions.to_owned());
        asked.spawn(async move {
            let answers = answers(&server, &access, &questions).await;
            (server, answers)
        });
    }
    let most = asked.len() / 2 + 1;
    let (mut told, mut answered) = (Vec::new(), 0);
    while answered < most
        && let Some(done) = asked.join_next().await
    {
        // A task that panicked gave no answer.
        let Ok((server, answers)) = done else { continue };
        answered += usize::from(answers.is_ok());
        told.push((server, answers));
    }
    told.sort_by(|(one, _), (other, _)| one.cmp(other));
    told
}

async fn answers(server: &Address, access: &Access, questions: &[Cmd]) -> Result<Vec<Value>, String> {
    let wire = Wire::dial(server, access).await?;
    let mut answers = Vec::new();
    for question in questions {
        // A single question may be refused, for instance by a sentinel that does not know a name.
        match ask(&wire.line, question, access.timeout).await {
            Ok(answer) => answers.push(answer),
            Err(fault) if fault.code().is_some() && questions.len() > 1 => answers.push(Value::Nil),
            Err(fault) => return Err(fault.to_string()),
        }
    }
    Ok(answers)
}

/// The names of shards that have none in the settings.
pub(super) fn names(addresses: &[Address]) -> Vec<String> {
    addresses.iter().map(Address::to_string).collect()
}

/// The layout, as one node of a cluster describes it.
#[derive(Debug)]
struct ToldLayout {
    /// Each range of slots, first and last, and its primary.
    slots: BTreeMap<(u16, u16), Address>,
    /// All nodes, replicas too.
    nodes: BTreeSet<Address>,
}

impl ToldLayout {
    /// Reads an answer to `CLUSTER SLOTS`.
    fn read(answer: &Value, asked: &Address) -> Option<Self> {
        let mut told = Self { slots: BTreeMap::new(), nodes: BTreeSet::new() };
        for range in list(answer)? {
            let [first, last, primary, replicas @ ..] = list(range)? else {
                return None;
            };
            let slot = |value| number(value).filter(|slot| *slot < i64::from(SLOTS)).map(|slot| slot as u16);
            let primary = node(primary, asked)?;
            told.nodes.insert(primary.clone());
            told.nodes.extend(replicas.iter().filter_map(|replica| node(replica, asked)));
            told.slots.insert((slot(first)?, slot(last)?), primary);
        }
        Some(told)
    }

    fn primary(&self, slot: u16) -> Option<&Address> {
        let ((_, last), primary) = self.slots.range(..=(slot, u16::MAX)).next_back()?;
        (slot <= *last).then_some(primary)
    }
}

/// For each group, the primary that most nodes name.
fn voted(told: &[ToldLayout]) -> Layout {
    let places: Vec<Option<&Address>> = Group::all()
        .map(|group| {
            let mut votes: BTreeMap<&Address, usize> = BTreeMap::new();
            for primary in told.iter().filter_map(|told| told.primary(group.slot())) {
                *votes.entry(primary).or_default() += 1;
            }
            votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(primary, _)| primary)
        })
        .collect();
    let primaries: Vec<&Address> =
        places.iter().flatten().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let index = |primary: &Address| primaries.binary_search(&primary).ok();
    Layout {
        places: places.iter().map(|place| place.and_then(index)).collect(),
        shards: primaries.iter().map(|primary| (primary.to_string(), Some((*primary).clone()))).collect(),
    }
}

/// Reads a node of `CLUSTER SLOTS`: a host, a port and more.
fn node(value: &Value, asked: &Address) -> Option<Address> {
    let [host, port, ..] = list(value)? else {
        return None;
    };
    let host = match host {
        // A node that does not know its own name means the name that we asked by.
        Value::Nil => asked.host.clone(),
        host => match text(host)? {
            "" | "?" => asked.host.clone(),
            host => host.to_owned(),
        },
    };
    Some(Address { host, port: u16::try_from(number(port)?).ok()? })
}

/// Reads an answer to `SENTINEL MASTER`: names and values alternate.
fn monitored(answer: &Value) -> Option<(u64, Address)> {
    let fields: BTreeMap<&str, &str> =
        list(answer)?.chunks_exact(2).filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect();
    let address = Address { host: (*fields.get("ip")?).to_owned(), port: fields.get("port")?.parse().ok()? };
    Some((fields.get("config-epoch")?.parse().ok()?, address))
}

fn list(value: &Value) -> Option<&[Value]> {
    if let Value::Array(list) = value { Some(list) } else { None }
}

const fn number(value: &Value) -> Option<i64> {
    if let Value::Int(number) = value { Some(*number) } else { None }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn listed(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), bulk("an id"), Value::Array(vec![])])
    }

    /// A cluster of two primaries. The first has the slots below `border`.
    fn slots(border: i64, first: i64, second: i64) -> Value {
        let range = |from, to, port| {
            let (primary, replica) = (listed(bulk("10.0.0.1"), port), listed(bulk("10.0.0.2"), port));
            Value::Array(vec![Value::Int(from), Value::Int(to), primary, replica])
        };
        Value::Array(vec![range(0, border - 1, first), range(border, 16_383, second)])
    }

    fn told(answer: &Value) -> ToldLayout {
        ToldLayout::read(answer, &"asked:1".parse().expect("an address")).expect("slots")
    }

    #[test]
    fn slots_are_read_with_all_nodes() {
        let told = told(&slots(8_192, 1, 2));
        assert_eq!(told.nodes.len(), 4);
        assert_eq!(told.primary(8_191).map(|primary| primary.port), Some(1));
        assert_eq!(told.primary(8_192).map(|primary| primary.port), Some(2));
        let layout = voted(&[told]);
        assert_eq!(layout.shards.len(), 2);
        assert!(layout.places.iter().all(Option::is_some));
    }

    #[test]
    fn a_node_without_a_host_name_gets_the_one_it_was_asked_by() {
        let answer = Value::Array(vec![Value::Array(vec![
            Value::Int(0),
            Value::Int(5),
            listed(Value::Nil, 7),
            listed(bulk("?"), 8),
        ])]);
        let told = told(&answer);
        assert!(told.nodes.iter().all(|node| node.host == "asked"));
        assert_eq!(told.primary(6), None);
    }

    #[test]
    fn servers_with_an_older_topology_are_outvoted() {
        let old = || told(&slots(8_192, 1, 2));
        let new = || told(&slots(8_192, 3, 2));
        let layout = voted(&[old(), new(), new()]);
        let ports: Vec<_> =
            layout.shards.iter().flat_map(|(_, address)| address).map(|address| address.port).collect();
        assert_eq!(ports, [2, 3]);
    }

    #[test]
    fn a_malformed_topology_is_ignored() {
        let asked = "asked:1".parse().expect("an address");
        for answer in [Value::Nil, Value::Array(vec![Value::Int(1)]), slots(20_000, 1, 2)] {
            assert!(ToldLayout::read(&answer, &asked).is_none(), "{answer:?}");
        }
    }

    #[test]
    fn the_answer_of_a_sentinel_is_read() {
        let words = ["name", "mine", "ip", "10.0.0.1", "port", "6379", "config-epoch", "4"];
        let answer = Value::Array(words.map(bulk).to_vec());
        let address = "10.0.0.1:6379".parse().expect("an address");
        assert_eq!(monitored(&answer), Some((4, address)));
        assert_eq!(monitored(&Value::Nil), None);
    }
}
