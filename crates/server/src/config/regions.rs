//! The regions that share the limits, their nodes, and the first authority.

use std::collections::BTreeMap;

use acequia_rights::{
    MemberId, Split, node_named,
    standing::{REGIONS_MAX, SUM_MAX, SplitFault, WEIGHT_MAX},
};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{
    ClockConfig,
    faults::{Faults, line, listed},
    listen::dialled,
    spanned::Named,
};

/// The name that no node may have: its certificate would be the file of the authority's, `ca.pem`.
const CA: &str = "ca";

/// The regions that share the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regions {
    /// The regions by name, this node's own among them: 1 to [`REGIONS_MAX`], and at most as many nodes in
    /// all. The numbers of the nodes ([`MemberConfig::number`]) differ.
    pub members: BTreeMap<String, RegionConfig>,
    /// The region and the node that mints and burns at first; later the authority moves by command.
    pub authority: (String, String),
    /// How good the clocks are.
    pub clock: ClockConfig,
}

/// A region that shares the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionConfig {
    /// The region's part of every limit, in proportion to the others': 1 to [`WEIGHT_MAX`]. The region begins
    /// with this part; demand moves units later.
    pub weight: u32,
    /// By node name, the address to dial, `host:port`. At least one node; several share a store. Names and
    /// addresses are unique in all regions.
    pub nodes: BTreeMap<String, String>,
}

/// A node among the nodes of all regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// The node's number among them: the number of its region if that has no other node.
    pub number: MemberId,
    /// The name in orders: the region, or the node's own name if the region has several nodes.
    pub name: String,
    /// The node's region.
    pub region: String,
    /// The node's name.
    pub node: String,
    /// The address to dial.
    pub address: String,
    /// The node's part of every limit, in proportion to the others': 1 to [`WEIGHT_MAX`]. All nodes of a
    /// region have equal weights.
    pub weight: u32,
}

impl Regions {
    /// The nodes of all regions. A region's weight is divided evenly among its nodes, and all weights keep
    /// their proportions.
    pub fn all(&self) -> Vec<MemberConfig> {
        let counts = self.members.values().map(|region| region.nodes.len().max(1) as u32);
        let common = counts.fold(1, least_common_multiple);
        let of_region = |(region, config): (&String, &RegionConfig)| {
            let (count, weight) = (config.nodes.len(), config.weight);
            let is_alone = count < 2;
            let (region, nodes) = (region.clone(), config.nodes.clone());
            nodes.into_iter().map(move |(node, address)| MemberConfig {
                number: MemberId::named(&if is_alone { region.clone() } else { format!("{region}/{node}") }),
                name: if is_alone { region.clone() } else { node.clone() },
                region: region.clone(),
                node,
                address,
                weight: weight.saturating_mul(common / count as u32),
            })
        };
        self.members.iter().flat_map(of_region).collect()
    }

    /// The entry of one node.
    pub fn member(&self, region: &str, node: &str) -> Option<MemberConfig> {
        self.all().into_iter().find(|member| member.region == region && member.node == node)
    }

    /// The nodes of a region that has several: from the number of a node's name to its number among all
    /// regions. Empty if the region has one node.
    pub fn mates(&self, region: &str) -> BTreeMap<u16, MemberId> {
        let of_region = self.all().into_iter().filter(|member| member.region == region);
        let numbers: BTreeMap<u16, MemberId> =
            of_region.map(|member| (node_named(&member.node), member.number)).collect();
        if numbers.len() > 1 { numbers } else { BTreeMap::new() }
    }
}

fn least_common_multiple(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}

/// One of `regions`, as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenRegion {
    weight: Option<Spanned<i64>>,
    #[serde(default)]
    nodes: Named<Spanned<String>>,
}

impl WrittenRegion {
    /// Its nodes.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.0.iter().map(|(node, _)| node.value.as_str())
    }
}

/// The parts of a config about regions.
pub(super) struct WrittenSharing<'a> {
    pub(super) regions: &'a Spanned<Named<WrittenRegion>>,
    /// The node that mints at first, if it is named.
    pub(super) authority: Option<&'a Spanned<String>>,
    pub(super) clock: ClockConfig,
    /// This node's own region.
    pub(super) region: &'a Spanned<String>,
    /// This node.
    pub(super) node: &'a Spanned<String>,
    /// Whether the nodes of this node's region share a store.
    pub(super) has_store: bool,
}

impl WrittenSharing<'_> {
    /// The regions. Notes every fault of the section except those of the clock.
    pub(super) fn validate(&self, faults: &mut Faults<'_>) -> Regions {
        let regions_line = faults.line_above("regions", line(self.regions));
        let members = self.members(regions_line, faults);
        self.check_numbers(faults);
        self.check_nodes(faults);
        self.check_home(&members, faults);
        let authority = self.authority(&members, regions_line, faults);
        let regions = Regions { members, authority, clock: self.clock };
        if regions.members.values().any(|region| region.nodes.len() > 1) {
            check_all(&regions, regions_line, faults);
        }
        regions
    }

    /// The regions by name, with their weights.
    fn members(&self, regions_line: u64, faults: &mut Faults<'_>) -> BTreeMap<String, RegionConfig> {
        let regions = &self.regions.value.0;
        if regions.is_empty() || regions.len() > REGIONS_MAX {
            let what = format!(
                "{} regions: limits are shared by 1 to {REGIONS_MAX}, this node's own among them",
                regions.len()
            );
            faults.add(regions_line, what);
        }
        let weights: Vec<Option<u32>> =
            regions.iter().map(|(name, region)| weight(name, region, faults)).collect();
        if let Some(weights) = weights.iter().copied().collect::<Option<Vec<u32>>>() {
            let named: Vec<(&str, u32)> =
                regions.iter().map(|(name, _)| name.value.as_str()).zip(weights).collect();
            if let Some(what) = too_fine(&named) {
                faults.add(regions_line, what);
            }
        }
        let member = |((name, region), weight): (&(Spanned<String>, WrittenRegion), Option<u32>)| {
            let nodes = region.nodes.0.iter().map(|(node, at)| (node.value.clone(), at.value.clone()));
            (name.value.clone(), RegionConfig { weight: weight.unwrap_or(1), nodes: nodes.collect() })
        };
        regions.iter().zip(weights).map(member).collect()
    }

    /// Notes region names that are invalid, or that exclude each other.
    fn check_numbers(&self, faults: &mut Faults<'_>) {
        let mut numbers: BTreeMap<MemberId, &Spanned<String>> = BTreeMap::new();
        for (name, _) in &self.regions.value.0 {
            faults.name("region", name);
            let number = MemberId::named(&name.value);
            if let Some(first) = numbers.insert(number, name) {
                let what = format!(
                    "region {} falls together with region {} in line {}: both names make the number {}, by \
                     which regions know each other; rename one",
                    name.value,
                    first.value,
                    line(first),
                    number.0
                );
                faults.at(name, what);
            }
        }
    }

    /// Notes what is wrong with the nodes of each region.
    fn check_nodes(&self, faults: &mut Faults<'_>) {
        let mut known = Known::default();
        for (region, WrittenRegion { nodes, .. }) in &self.regions.value.0 {
            let name = &region.value;
            if nodes.0.is_empty() {
                let what = format!(
                    "region {name} has no node: name it and where it is dialled, such as \
                     nodes: {{ {name}-1: \"127.0.0.1:7201\" }}"
                );
                faults.at(region, what);
            }
            match nodes.0.get(1) {
                Some((second, _)) if *name == self.region.value && !self.has_store => {
                    let what = format!(
                        "region {name} has {} nodes and no `store`: nodes of a region share a redis, such as \
                         store: {{ redis: {{ cluster: [\"10.0.0.1:6379\"] }} }}; or keep one of them",
                        nodes.0.len()
                    );
                    faults.at(second, what);
                }
                None if *name == self.region.value && self.has_store => {
                    let what = format!(
                        "region {name} has one node and a `store`: that is for several; leave it out, or name the others \
                         in `nodes` of the region"
                    );
                    faults.at(region, what);
                }
                _ => {}
            }
            for (node, at) in &nodes.0 {
                known.check(node, at, faults);
            }
        }
    }

    /// Notes a node that is not among the regions itself.
    fn check_home(&self, members: &BTreeMap<String, RegionConfig>, faults: &mut Faults<'_>) {
        let (region, node) = (&self.region.value, &self.node.value);
        match members.get(region) {
            None if members.is_empty() => {}
            None => {
                let known = listed(members.keys().map(String::as_str));
                faults.at(
                    self.region,
                    format!("region {region} is not among `regions` ({known}): add it, or correct the name"),
                );
            }
            Some(member) if member.nodes.is_empty() || member.nodes.contains_key(node) => {}
            Some(member) => {
                let known = listed(member.nodes.keys().map(String::as_str));
                let what = format!(
                    "node {node} is not among the nodes of region {region} ({known}): put it there, or \
                     correct the name"
                );
                faults.at(self.node, what);
            }
        }
    }

    /// The first authority.
    fn authority(
        &self,
        members: &BTreeMap<String, RegionConfig>,
        regions_line: u64,
        faults: &mut Faults<'_>,
    ) -> (String, String) {
        let Some(authority) = self.authority else {
            let node = &self.node.value;
            let what = format!(
                "`regions` without `authority`: name the node that mints and burns at first, such as \
                 authority: {node}"
            );
            faults.add(regions_line, what);
            return Default::default();
        };
        let node = &authority.value;
        match members.iter().find(|(_, member)| member.nodes.contains_key(node)) {
            Some((region, _)) => (region.clone(), node.clone()),
            None => {
                let known: Vec<&str> =
                    members.values().flat_map(|m| m.nodes.keys().map(String::as_str)).collect();
                let known = listed(known.into_iter());
                faults
                    .at(authority, format!("authority {node} is no node of any region: name one of {known}"));
                Default::default()
            }
        }
    }
}

/// The nodes of the regions that were read so far.
#[derive(Default)]
struct Known<'a> {
    by_name: BTreeMap<&'a str, &'a Spanned<String>>,
    by_address: BTreeMap<String, &'a Spanned<String>>,
}

impl<'a> Known<'a> {
    /// Notes faults of the next node, alone or together with those before.
    fn check(&mut self, node: &'a Spanned<String>, at: &'a Spanned<String>, faults: &mut Faults<'_>) {
        faults.name("node", node);
        let name = &node.value;
        if name == CA {
            let what =
                "a node cannot be called ca, since ca.pem is what all certificates are checked by: rename it";
            faults.at(node, what.to_owned());
        }
        if let Some(first) = self.by_name.insert(name, node) {
            let what = format!(
                "node {name} is already there in line {}: names are unique in all regions, rename one",
                line(first)
            );
            faults.at(node, what);
        }
        let address = dialled(&at.value).map_err(|what| format!("node {name}: {what}"));
        let Some(address) = faults.take(address, at) else { return };
        if let Some(first) = self.by_address.insert(address, node) {
            let what = format!(
                "node {name} has the address of node {} in line {}: give each its own",
                first.value,
                line(first)
            );
            faults.at(at, what);
        }
    }
}

/// A region's weight; 1 if absent.
fn weight(name: &Spanned<String>, region: &WrittenRegion, faults: &mut Faults<'_>) -> Option<u32> {
    let Some(weight) = &region.weight else { return Some(1) };
    let fits = u32::try_from(weight.value).ok().filter(|fits| (1..=WEIGHT_MAX).contains(fits));
    let what = || format!("region {} has weight {}: a weight is 1 to {WEIGHT_MAX}", name.value, weight.value);
    faults.take(fits.ok_or_else(what), weight)
}

/// Notes faults of the nodes of all regions together.
fn check_all(regions: &Regions, regions_line: u64, faults: &mut Faults<'_>) {
    let all = regions.all();
    if all.len() > REGIONS_MAX {
        let what = format!("{} nodes: limits are shared by at most {REGIONS_MAX} in all regions", all.len());
        return faults.add(regions_line, what);
    }
    if let Some(member) = all.iter().find(|member| member.weight > WEIGHT_MAX) {
        let what = format!(
            "a node of region {} has weight {} so that all nodes' are whole: a weight is 1 to {WEIGHT_MAX}; choose smaller \
             weights, or as many nodes in each region",
            member.region, member.weight
        );
        return faults.add(regions_line, what);
    }
    let (mut by_number, mut by_name): (BTreeMap<MemberId, _>, BTreeMap<&str, _>) = Default::default();
    // In their region's store, nodes are known by a number of their name alone.
    let mut by_store: BTreeMap<(&str, u16), &MemberConfig> = BTreeMap::new();
    for member in &all {
        let first = by_number.insert(member.number, member);
        let first = first.or(by_name.insert(member.name.as_str(), member));
        let first = first.or(by_store.insert((&member.region, node_named(&member.node)), member));
        if let Some(first) = first {
            let what = format!(
                "{}/{} falls together with {}/{}: by their names, or the numbers by which nodes know each other; rename one",
                member.region, member.node, first.region, first.node
            );
            faults.add(regions_line, what);
        }
    }
    let weights: Vec<(&str, u32)> = all.iter().map(|member| (member.name.as_str(), member.weight)).collect();
    if let Some(what) = too_fine(&weights) {
        faults.add(regions_line, what);
    }
}

/// The fault of weights whose proportions are too fine. Other faults of weights are found earlier.
fn too_fine(weights: &[(&str, u32)]) -> Option<String> {
    let numbered: BTreeMap<MemberId, (&str, u32)> =
        weights.iter().map(|&(name, weight)| (MemberId::named(name), (name, weight))).collect();
    let split: Vec<(MemberId, u32)> =
        numbered.iter().map(|(&region, &(_, weight))| (region, weight)).collect();
    let Err(SplitFault::TooFine { sum, suggestion }) = Split::new(&split) else { return None };
    // Ordered by numbers, which mean nothing to people.
    let near = numbered.values().zip(suggestion.split(", "));
    let near: Vec<String> = near.map(|((name, _), weight)| format!("{name} {weight}")).collect();
    Some(format!(
        "the weights sum to {sum} after their common divisor is taken out, more than {}: round them, for \
         example to {}",
        SUM_MAX,
        near.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Config,
        tests::{SHARED, accepted, refused, refused_once, with},
    };

    #[test]
    fn three_regions_are_read() {
        let config = accepted(SHARED);
        let member = |weight, node: &str, address: &str| RegionConfig {
            weight,
            nodes: BTreeMap::from([(node.to_owned(), address.to_owned())]),
        };
        let members = BTreeMap::from([
            ("eu".to_owned(), member(1, "eu-1", "127.0.0.1:7201")),
            ("us".to_owned(), member(2, "us-1", "us-1.example.net:7202")),
            ("ap".to_owned(), member(1, "ap-1", "[fd00::3]:7203")),
        ]);
        let regions = Regions {
            members,
            authority: ("us".to_owned(), "us-1".to_owned()),
            clock: ClockConfig { error_ns: 20_000_000, drift_ppm: 500 },
        };
        assert_eq!(config.regions, Some(regions));
        assert_eq!(config.tls, Some("./certs".into()));
        assert_eq!(config.admin_token, None);
        assert_eq!(config.listen.mesh, Some(([127, 0, 0, 1], 7201).into()));
        assert_eq!(config.numbers(), (MemberId(53_311), acequia_rights::node_named("eu-1")));
        assert_eq!(
            config.to_string(),
            "node eu-1 in region eu, 0 limits, shared by 3 regions (ap, eu, us), authority us-1, clocks \
             within 20ms and a drift of 5e-4, journal in ./data, drains for 10s"
        );
    }

    #[test]
    fn a_missing_setting_that_regions_need_is_named() {
        for (line, setting) in [
            ("data: ./data", "`data`"),
            ("tls: ./certs", "`tls`"),
            ("authority: us-1", "`authority`"),
            ("listen: { mesh: \"127.0.0.1:7201\" }", "`listen.mesh`"),
        ] {
            refused_once(&with(line, ""), 7, &format!("`regions` without {setting}"));
        }
        let alone = "region: eu\nnode: eu-1\n";
        for (rest, line, setting) in [
            ("authority: eu-1\n", 3, "`authority`"),
            ("clock: { error: 10ms }\n", 3, "`clock`"),
            ("clock:\n  error: 10ms\n", 3, "`clock`"),
            ("listen:\n  mesh: 127.0.0.1:7201\n", 4, "`listen.mesh`"),
        ] {
            refused_once(&format!("{alone}{rest}"), line, &format!("{setting} without `regions`"));
        }
    }

    #[test]
    fn faults_of_regions_name_their_line() {
        let (eu, us) = ("eu-1: \"127.0.0.1:7201\"", "us-1: \"us-1.example.net:7202\"");
        let more = |node: &str| format!("{eu}, {node}");
        let both = |nodes: &[&str]| {
            let at = |(place, node): (usize, &&str)| format!("{node}: \"127.0.0.1:73{place:02}\"");
            nodes.iter().enumerate().map(at).collect::<Vec<_>>().join(", ")
        };
        let cases = [
            ("region: eu", "region: me", 1, "region me is not among `regions` (ap, eu, us)"),
            ("node: eu-1", "node: eu-2", 2, "node eu-2 is not among the nodes of region eu (eu-1)"),
            ("authority: us-1", "authority: us", 6, "name one of ap-1, eu-1, us-1"),
            (
                "  ap: { nodes: ",
                "  ap: { weight: 0, nodes: ",
                10,
                "region ap has weight 0: a weight is 1 to 10000",
            ),
            ("weight: 2", "weight: -1", 9, "weight -1"),
            ("weight: 2", "weight: 10001", 9, "a weight is 1 to 10000"),
            ("weight: 2", "weight: 999", 7, "more than 1000: round them, for example to us 9"),
            ("weight: 2", "weight: two", 9, "a whole number"),
            ("  ap: {", "  a p: {", 10, "a region is 1 to 64 letters"),
            ("ap-1: ", "ap/1: ", 10, "a node is 1 to 64 letters"),
            ("ap-1: ", "ca: ", 10, "cannot be called ca"),
            ("ap-1: ", "eu-1: ", 10, "node eu-1 is already there in line 8"),
            ("ap-1: \"[fd00::3]:7203\"", "", 10, "region ap has no node"),
            ("  ap: {", "  us: {", 10, "us"),
            (eu, &more("eu-2: \"127.0.0.1:7204\""), 8, "region eu has 2 nodes and no `store`"),
            // Another region's store is in the files of that region. Faults of all nodes together are
            // reported here.
            (us, &both(&["ap", "us-1"]), 7, "us/ap falls together with ap/ap-1"),
            (us, &both(&["n12", "n96", "us-1"]), 7, "us/n96 falls together with us/n12"),
            ("\"[fd00::3]:7203\"", "US-1.example.net:07202", 10, "the address of node us-1 in line 9"),
            (eu, "eu-1: \"127.0.0.1:0\"", 8, "node eu-1: \"127.0.0.1:0\" is nowhere to dial"),
            (eu, "eu-1: \"0.0.0.0:7201\"", 8, "to listen on, not to dial"),
            ("error: 20ms", "error: 20", 11, "is no duration"),
            ("error: 20ms", "error: 61s", 11, "at most 1m"),
            ("error: 20ms", "error: 0s", 11, "above 0"),
            ("drift: 5e-4", "drift: 0.100001", 11, "from 0 to 0.1, such as 1e-3"),
            ("drift: 5e-4", "drift: -1e-9", 11, "from 0 to 0.1"),
            ("drift: 5e-4", "drift: .nan", 11, "from 0 to 0.1"),
            ("drift: 5e-4", "drift: NaN", 11, "from 0 to 0.1"),
            ("drift: 5e-4", "drift: inf", 11, "from 0 to 0.1"),
            ("drift: 5e-4", "jitter: 1ms", 11, "jitter"),
            ("weight: 2", "wieght: 2", 9, "wieght"),
        ];
        for (from, to, line, word) in cases {
            refused_once(&with(from, to), line, word);
        }
        let none = SHARED.split("  eu:").next().expect("a part").replace("regions:", "regions: {}");
        refused(&none, 7, "0 regions: limits are shared by 1 to 64");
    }

    #[test]
    fn a_regions_weight_is_divided_evenly_among_its_nodes() {
        let us = "us-1: \"us-1.example.net:7202\"";
        let three = format!("{us}, us-2: \"127.0.0.1:7204\", us-3: \"127.0.0.1:7205\"");
        let regions = accepted(&with(us, &three)).regions.expect("regions");
        let all = regions.all();
        let weights: Vec<(&str, u32)> =
            all.iter().map(|member| (member.name.as_str(), member.weight)).collect();
        assert_eq!(weights, [("ap", 3), ("eu", 3), ("us-1", 2), ("us-2", 2), ("us-3", 2)]);
        assert_eq!(regions.mates("eu"), BTreeMap::new());
        let of_us = all.iter().filter(|member| member.region == "us");
        let of_us: BTreeMap<u16, MemberId> =
            of_us.map(|member| (node_named(&member.node), member.number)).collect();
        assert_eq!((regions.mates("us"), of_us.len()), (of_us, 3));
        assert_eq!(regions.member("eu", "eu-1").map(|member| member.number), Some(MemberId::named("eu")));
    }

    #[test]
    fn all_faults_of_regions_are_named_at_once() {
        let text = "\
region: eu
node: eu-1
authority: nobody
regions:
  eu:
    weight: 0
    nodes:
      eu-1: here
      eu-2: 127.0.0.1:7202
  us:
    nodes: {}
clock:
  error: 2h
limits:
  - { name: a, domain: shop, cost: 0, token_bucket: { rate: 1/s, burst: 1 } }
";
        let expected = [
            (3, "nobody is no node"),
            (4, "`data`"),
            (4, "`listen.mesh`"),
            (4, "`tls`"),
            (6, "weight 0"),
            (8, "nowhere to dial"),
            (9, "keep one"),
            (10, "no node"),
            (13, "at most 1m"),
            (15, "cost"),
        ];
        let error = Config::parse("test.yaml", text).expect_err("faults");
        assert_eq!(error.faults.len(), expected.len(), "{error}");
        for (fault, (line, word)) in error.faults.iter().zip(expected) {
            assert!(fault.line == line && fault.what.contains(word), "{line} {word}:\n{error}");
        }
    }

    #[test]
    fn sixty_four_regions_share_and_one_more_does_not() {
        let text = |count: usize| {
            let mut text = with("  ap: { nodes: { ap-1: \"[fd00::3]:7203\" } }\n", "");
            let more: String = (2..count)
                .map(|n| format!("  r{n}: {{ nodes: {{ r{n}-1: \"10.0.0.1:{}\" }} }}\n", n + 1))
                .collect();
            text.insert_str(text.find("clock").expect("a clock"), &more);
            text
        };
        assert_eq!(accepted(&text(64)).regions.expect("regions").members.len(), 64);
        refused_once(&text(65), 7, "65 regions: limits are shared by 1 to 64");
    }

    #[test]
    fn two_region_names_with_one_number_are_refused() {
        let mut numbers: BTreeMap<MemberId, String> = BTreeMap::new();
        let twins = (0..).map(|n| format!("r{n}")).find_map(|name| {
            let first = numbers.insert(MemberId::named(&name), name.clone())?;
            Some((first, name))
        });
        let (first, second) = twins.expect("65,537 names have 65,536 numbers");
        let text = with("  us: {", &format!("  {first}: {{")).replace("  ap: {", &format!("  {second}: {{"));
        refused_once(&text, 10, &format!("region {second} falls together with region {first} in line 9"));
        refused_once(&text, 10, "rename one");
    }
}
