//! A simulated network of nodes, in one region or several, that share their limits through pools. The story
//! decides how links and servers behave.

mod asking;
mod forwards;
mod network;
mod nodes;
mod server;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use acequia_limits::{CellTag, LimitId, Now, limit::LimitSpec};
use acequia_node::{
    Asker, Node, Row,
    pool::{GROUPS, Heard, PoolReply},
    regions,
};
use acequia_rights::{
    Incarnation, MemberId,
    versions::{CellSecret, Draft, Fence, Member},
};

pub(crate) use asking::Decided;
use forwards::{Charges, Waiting};
use network::Message;
pub(crate) use network::Way;
pub(crate) use nodes::Stop;
pub(crate) use server::Server;

use crate::scene::{
    self, KEY, MS, ROOMY, START,
    ledger::{Ledger, Terms},
};

/// One node.
pub(crate) struct Place1 {
    pub(crate) node: Arc<Node>,
    pub(crate) asker: Asker,
    process_number: u32,
    /// When it last started after a crash.
    crashed: Option<Now>,
    /// Contents of its disk: the generations it has heard of, its withdrawals from windows, and since when it
    /// has recorded withdrawals.
    pub(crate) generations: Vec<Heard>,
    rows: BTreeMap<(LimitId, CellTag), Row>,
    knows_from_us: u64,
    /// Writes to its disk fail.
    pub(crate) is_disk_full: bool,
    /// The node only answers requests: no ticks, calls or frames.
    pub(crate) is_hung: bool,
    /// The node reaches the replaced server, not the successor.
    pub(crate) is_left_behind: bool,
    /// Its wall clock minus true time.
    pub(crate) ahead_ns: i64,
    /// How much faster than true time its steady clock runs, in parts per million.
    pub(crate) drift_ppm: i64,
    pub(crate) way: Way,
    ticked_ns: u64,
}

/// The disks of the nodes of a new world.
#[derive(Clone, Copy, Debug)]
struct Disks {
    are_new: bool,
    /// They have the nodes' withdrawals from windows.
    are_kept: bool,
}

/// Several regions, each with its own server. Their nodes share the limits by a catalogue.
pub(crate) struct Regions {
    /// The region of each node.
    pub(crate) of: Vec<usize>,
    /// Servers of all regions except the first.
    pub(crate) servers: Vec<Server>,
    /// Whether regions have stores. A region of a single node may have none.
    pub(crate) have_stores: bool,
    /// Frame delays, least and most: between regions, and within one region.
    pub(crate) delay_ns: (u64, u64),
    pub(crate) near_ns: (u64, u64),
    /// Nodes that neither send nor receive frames.
    pub(crate) cut: BTreeSet<usize>,
    /// Percentage of frames that arrive twice.
    pub(crate) repeated: u64,
    /// Number and bytes of the frames sent between regions.
    pub(crate) crossed: (u64, u64),
    /// Frames between regions that carry no entries.
    pub(crate) pulses: u64,
}

pub(crate) fn incarnation(place: usize) -> Incarnation {
    Incarnation { member: MemberId(place as u16 + 1), node: 0, number: 1 }
}

pub(crate) struct World {
    pub(crate) specs: Vec<LimitSpec>,
    /// Whether orders contain no limits.
    pub(crate) is_gone: bool,
    /// Retired limits that were in force recently.
    pub(crate) retired: Vec<LimitSpec>,
    pub(crate) nodes: Vec<Place1>,
    pub(crate) server: Server,
    /// A replaced server that is still running.
    pub(crate) old: Option<Server>,
    pub(crate) true_ns: u64,
    error_ns: u64,
    drift_ppm: u32,
    percent: u8,
    /// Memory for the cells of each node that starts.
    pub(crate) memory_bytes: usize,
    /// A node that starts has an empty disk.
    pub(crate) is_new: bool,
    /// Nodes record their withdrawals from windows on disk.
    is_kept: bool,
    messages: BTreeMap<(u64, u64), Message>,
    /// Unanswered calls, ordered by the time when the node gives them up.
    open: BTreeSet<(u64, usize, u32, u64)>,
    sent: u64,
    chance: u64,
    /// Ledgers by limit and key.
    ledgers: BTreeMap<(usize, String), Ledger>,
    waiting: Vec<Waiting>,
    charges: Charges,
    /// The most that any cell may give, for stories in which a limit has several variants.
    pub(crate) most: Option<Terms>,
    /// Requests that passed after a wait.
    pub(crate) passed_late: u64,
    /// Outcomes of the requests of `ask_or_wait`, in the order of their answers. `None` if no story reads
    /// them.
    pub(crate) decided: Option<Vec<Decided>>,
    /// Number of pool calls.
    pub(crate) calls: u64,
    /// Round trips to the store. Calls that a node makes at one moment share a round trip.
    pub(crate) round_trips: u64,
    pub(crate) refused: Vec<PoolReply>,
    pub(crate) regions: Option<Regions>,
    /// Grants from windows that have not begun are lost on the way.
    pub(crate) loses_ahead: bool,
    /// Nodes process cells exactly when due, rather than at the next hundredth of a second.
    pub(crate) is_prompt: bool,
}

impl World {
    pub(crate) fn new(nodes: usize, specs: &[LimitSpec], percent: u8, seed: u64) -> Self {
        Self::begun(nodes, specs, percent, seed, Disks { are_new: false, are_kept: false }, None)
    }

    /// Several regions with the given numbers of nodes. No node has a share before [`World::order`].
    pub(crate) fn among_regions(nodes: &[usize], specs: &[LimitSpec], percent: u8, seed: u64) -> Self {
        let regions = Self::regions_of(nodes);
        Self::begun(
            nodes.iter().sum(),
            specs,
            percent,
            seed,
            Disks { are_new: true, are_kept: true },
            Some(regions),
        )
    }

    /// Several regions of one node each, without stores.
    pub(crate) fn among_lone(count: usize, specs: &[LimitSpec], seed: u64) -> Self {
        let regions = Regions { have_stores: false, ..Self::regions_of(&vec![1; count]) };
        Self::begun(count, specs, 100, seed, Disks { are_new: true, are_kept: true }, Some(regions))
    }

    fn regions_of(nodes: &[usize]) -> Regions {
        let of = (0..).zip(nodes).flat_map(|(region, nodes)| vec![region; *nodes]);
        Regions {
            of: of.collect(),
            servers: (1..nodes.len()).map(|_| Server::new()).collect(),
            have_stores: true,
            delay_ns: (MS, 20 * MS),
            near_ns: (MS / 4, MS),
            cut: BTreeSet::new(),
            repeated: 0,
            crossed: (0, 0),
            pulses: 0,
        }
    }

    /// Like [`World::new`], but nodes record their withdrawals from windows.
    pub(crate) fn kept(nodes: usize, specs: &[LimitSpec], percent: u8, seed: u64) -> Self {
        Self::begun(nodes, specs, percent, seed, Disks { are_new: false, are_kept: true }, None)
    }

    /// A region in which nothing has ever been spent.
    pub(crate) fn of_new(nodes: usize, specs: &[LimitSpec], percent: u8) -> Self {
        Self::begun(nodes, specs, percent, 1, Disks { are_new: true, are_kept: true }, None)
    }

    fn begun(
        nodes: usize,
        specs: &[LimitSpec],
        percent: u8,
        seed: u64,
        disks: Disks,
        regions: Option<Regions>,
    ) -> Self {
        let mut world = Self {
            specs: specs.to_vec(),
            is_gone: false,
            retired: Vec::new(),
            nodes: Vec::new(),
            server: Server::new(),
            old: None,
            true_ns: 0,
            error_ns: 10 * MS,
            drift_ppm: 1_000,
            percent,
            memory_bytes: ROOMY,
            is_new: disks.are_new,
            is_kept: disks.are_kept,
            messages: BTreeMap::new(),
            open: BTreeSet::new(),
            sent: 0,
            chance: seed,
            ledgers: BTreeMap::new(),
            waiting: Vec::new(),
            charges: Charges::default(),
            most: None,
            passed_late: 0,
            decided: None,
            calls: 0,
            round_trips: 0,
            refused: Vec::new(),
            regions,
            loses_ahead: false,
            is_prompt: false,
        };
        for number in 1..=nodes as u16 {
            let (node, asker) = world.started(number, nodes, 1, None, BTreeSet::new());
            let way = Way::GOOD;
            world.nodes.push(Place1 {
                node,
                asker,
                process_number: 1,
                crashed: None,
                generations: Vec::new(),
                rows: BTreeMap::new(),
                knows_from_us: if disks.are_new { 0 } else { START.wall_ns / 1_000 },
                is_disk_full: false,
                is_hung: false,
                is_left_behind: false,
                ahead_ns: 0,
                drift_ppm: 0,
                way,
                ticked_ns: 0,
            });
        }
        world
    }

    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.chance = self.chance.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.chance;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % most.max(1)
    }

    pub(crate) fn now(&self, place: usize) -> Now {
        let at = &self.nodes[place];
        let drifted = i128::from(self.true_ns) * i128::from(at.drift_ppm) / 1_000_000;
        let steady = i128::from(START.steady_ns) + i128::from(self.true_ns) + drifted;
        let wall = START.wall_ns + self.true_ns;
        Now {
            steady_ns: u64::try_from(steady).expect("after the start"),
            wall_ns: wall.saturating_add_signed(at.ahead_ns),
        }
    }

    fn true_now(&self) -> Now {
        Now { steady_ns: START.steady_ns + self.true_ns, wall_ns: START.wall_ns + self.true_ns }
    }

    /// Repairs everything, and keeps some requests coming.
    pub(crate) fn mend(&mut self) {
        self.regions.iter_mut().for_each(|regions| regions.cut.clear());
        for at in &mut self.nodes {
            (at.way, at.is_disk_full, at.is_left_behind) = (Way::GOOD, false, false);
        }
        let nodes = self.nodes.len() as u64;
        for _ in 0..1_000 {
            let place = self.below(nodes) as usize;
            self.ask(place, "k", 1);
            self.pass(20 * MS);
        }
    }

    /// Whether the first node's catalogue, if it has one, contains the given node.
    pub(crate) fn is_member(&self, place: usize) -> bool {
        let version = self.nodes[0].node.version();
        version.is_none_or(|version| version.members.contains_key(&incarnation(place).member))
    }

    /// Asserts that every pool grants to every node that has a share.
    #[track_caller]
    pub(crate) fn expect_granting(&self, when: &str) {
        for (place, at) in self.nodes.iter().enumerate().filter(|(place, _)| self.is_member(*place)) {
            let counts = at.node.lease_counts();
            assert_eq!(counts.granting, u64::from(GROUPS), "{when}, node {place}: {counts:?}");
        }
    }

    /// The first node orders shares of the current limits by these weights. Returns whether the order
    /// succeeded.
    pub(crate) fn order(&mut self, weights: &[(usize, u32)]) -> bool {
        self.order_without(weights, &[])
    }

    /// Like `order`, where the operator declares some nodes stopped for good.
    pub(crate) fn order_without(&mut self, weights: &[(usize, u32)], stopped: &[usize]) -> bool {
        let now = self.now(0);
        let of: Vec<usize> = self.regions.as_ref().map_or_else(Vec::new, |regions| regions.of.clone());
        let member = |(place, weight): &(usize, u32)| {
            let incarnation = incarnation(*place);
            let name = of.get(*place).map_or_else(String::new, |region| format!("r{region}/n{place}"));
            (incarnation.member, Member { weight: *weight, incarnation, name })
        };
        let specs: &[LimitSpec] = if self.is_gone { &[] } else { &self.specs };
        let draft = Draft {
            members: weights.iter().map(member).collect(),
            fenced: stopped
                .iter()
                .map(|place| Fence { incarnation: incarnation(*place), wall_ns: now.wall_ns })
                .collect(),
            clock_error_ns: self.error_ns,
            drift_ppm: self.drift_ppm,
            key: CellSecret(KEY.0),
            limits: regions::limits_to_bytes(specs).expect("limits"),
            revoked: Default::default(),
        };
        let at = &self.nodes[0];
        let version = at.node.propose(draft, now.wall_ns);
        version.is_ok_and(|version| {
            at.node.adopt(version, now, |id| Some(rows_of(&at.rows, id))).expect("a version that fits");
            true
        })
    }

    /// Changes the limits at every node at once.
    pub(crate) fn renumber(&mut self, specs: &[LimitSpec]) {
        self.specs = specs.to_vec();
        for place in 0..self.nodes.len() {
            scene::apply(&self.nodes[place].node, specs, self.now(place));
        }
    }
}

/// A disk's rows for a limit id.
fn rows_of(disk: &BTreeMap<(LimitId, CellTag), Row>, id: LimitId) -> Vec<Row> {
    disk.iter().filter(|((limit, _), _)| *limit == id).map(|(_, row)| row.clone()).collect()
}
