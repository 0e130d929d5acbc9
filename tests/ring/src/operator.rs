//! The operator: the wanted state, and the commands that produce it.
//!
//! The operator sees what a human would see: the processes it stopped, the lost disks, and the authority's
//! status. It fences only incarnations that are gone, unless a history needs a wrong word.

use std::collections::BTreeMap;

use acequia_node::regions;
use acequia_rights::{
    Incarnation, MemberId, Version, VersionId,
    versions::{CellSecret, Draft, Fence, Member},
};

use crate::{
    budget::{Budget, KEY, Measured, Own},
    oracle::Numbers,
    place::{Place, State, rows_of},
    trace::Event,
    world::{Plan, World},
};

/// The wanted state.
#[derive(Clone, Debug)]
pub struct Operator {
    /// The members, with their weights.
    pub members: BTreeMap<MemberId, Member>,
    /// The numbers of each limit. `None` for a removed limit.
    pub budgets: Vec<Option<Budget>>,
    /// Other numbers for a key of each limit.
    pub owns: Vec<Option<Own>>,
    /// The members when each limit was last removed.
    pub removed: Vec<BTreeMap<MemberId, Member>>,
    /// Incarnations that are gone.
    gone: Vec<Incarnation>,
    /// The place of the authority.
    pub authority: usize,
    clock_error_ns: u64,
    drift_ppm: u32,
}

impl Operator {
    /// The state of the first version.
    pub fn new(plan: &Plan) -> Self {
        let member = |region: usize| {
            let incarnation = Incarnation { member: MemberId(region as u16), node: 0, number: 1 };
            let weight = plan.weights[region];
            (incarnation.member, Member { weight, incarnation, name: String::new() })
        };
        Self {
            members: (0..plan.members).map(member).collect(),
            budgets: plan.limits.iter().map(|limit| Some(limit.first)).collect(),
            owns: vec![None; plan.limits.len()],
            removed: vec![BTreeMap::new(); plan.limits.len()],
            gone: Vec::new(),
            authority: 0,
            clock_error_ns: plan.clock_error_ns,
            drift_ppm: plan.drift_ppm,
        }
    }

    /// An incarnation is gone for good.
    pub fn lost(&mut self, incarnation: Incarnation) {
        if !self.gone.contains(&incarnation) {
            self.gone.push(incarnation);
        }
    }

    /// Gone incarnations that the authority's version waits for, and that the next version will not name.
    fn to_fence(&self, version: Option<&Version>) -> Vec<Incarnation> {
        let Some(version) = version else { return Vec::new() };
        let waited_for = |incarnation: &Incarnation| {
            let member = version.members.get(&incarnation.member);
            member.is_some_and(|member| member.incarnation == *incarnation)
                || version.leaving.contains(incarnation)
        };
        let named = |incarnation: &Incarnation| {
            self.members.values().any(|member| member.incarnation == *incarnation)
        };
        self.gone
            .iter()
            .filter(|incarnation| waited_for(incarnation) && !named(incarnation))
            .copied()
            .collect()
    }

    fn draft(&self, limits: &[Measured], fenced: Vec<Fence>) -> Draft {
        let written = limits.iter().zip(self.budgets.iter().zip(&self.owns));
        let specs: Vec<_> = written
            .filter_map(|(limit, (budget, own))| budget.map(|budget| limit.spec(budget, *own)))
            .collect();
        Draft {
            members: self.members.clone(),
            fenced,
            clock_error_ns: self.clock_error_ns,
            drift_ppm: self.drift_ppm,
            key: CellSecret(KEY),
            limits: regions::limits_to_bytes(&specs).expect("limits"),
            revoked: Default::default(),
        }
    }
}

impl World {
    /// Makes the wanted state the next version, at the authority or at a place that takes over.
    pub fn publish(&mut self, place: usize, takes_over: bool) -> bool {
        // A node without a catalogue would begin another one.
        let begun = self.oracle.has_begun();
        if !self.places[place].is_awake(self.now) || (begun && !self.places[place].owner) {
            return false;
        }
        let now = self.clock(place);
        let version = self.places[place].node().and_then(|node| node.version());
        let fenced = self.operator.to_fence(version.as_ref());
        let fences = fenced
            .iter()
            .map(|incarnation| Fence { incarnation: *incarnation, wall_ns: now.wall_ns })
            .collect();
        let draft = self.operator.draft(&self.limits, fences);
        let at = &self.places[place];
        let Some(node) = at.node() else { return false };
        let made = match takes_over {
            true => node.take_over(draft, now.wall_ns),
            false => node.propose(draft, now.wall_ns),
        };
        let Ok(version) = made else { return false };
        let version_id = version.version_id;
        if node.adopt(version, now, rows_of(&at.disk)).is_err() {
            return false;
        }
        self.operator.authority = place;
        self.lay_ghosts(&fenced, version_id);
        let numbers = self.operator.budgets.iter().zip(&self.operator.owns);
        let numbers = numbers.map(|(budget, own)| budget.map(|all| Numbers { all, own: *own })).collect();
        self.oracle.issue(version_id, numbers, self.now);
        for place in &mut self.places {
            let member = self.operator.members.get(&place.incarnation.member);
            let named = member.is_some_and(|member| member.incarnation == place.incarnation);
            if named && place.floor == VersionId::default() {
                place.floor = version_id;
            }
        }
        self.learn(place);
        true
    }

    /// Changes the wanted state and publishes it at the authority. If this fails, the change is undone.
    pub fn command(&mut self, what: &'static str, want: impl FnOnce(&mut Operator)) -> bool {
        let before = self.operator.clone();
        want(&mut self.operator);
        let authority = self.operator.authority;
        let done = self.publish(authority, false);
        if !done {
            self.operator = before;
        }
        self.note(Event::Command(authority, what, done));
        done
    }

    /// A stopped region loses its share for good, on the operator's word that it stays stopped. The word is
    /// given whether or not the authority can be reached now.
    pub fn evict(&mut self, place: usize) -> bool {
        let authority = self.operator.authority;
        if place == authority || self.places[place].state != State::Down {
            return false;
        }
        let incarnation = self.places[place].incarnation;
        self.bury(place);
        self.places[place].state = State::Fenced;
        self.operator.members.remove(&incarnation.member);
        self.operator.lost(incarnation);
        let done = self.publish(authority, false);
        self.note(Event::Command(place, "evict", done));
        done
    }

    /// A live region is declared gone. From now on sums are not promised.
    pub fn evict_by_mistake(&mut self, place: usize) -> bool {
        let incarnation = self.places[place].incarnation;
        self.oracle.void = true;
        self.command("evict by mistake", |operator| {
            operator.members.remove(&incarnation.member);
            operator.lost(incarnation);
        })
    }

    /// A fenced or absent place starts with an empty disk, and becomes a member.
    pub fn join(&mut self, place: usize, weight: u32) -> bool {
        match self.places[place].state {
            State::Absent => {}
            State::Fenced => self.places[place].begin_anew(),
            State::Up | State::Down => return false,
        }
        self.start(place, true);
        self.name(place, weight)
    }

    /// A process without a share becomes a member.
    pub fn name(&mut self, place: usize, weight: u32) -> bool {
        let incarnation = self.places[place].incarnation;
        self.command("name", |operator| {
            let member = Member { weight, incarnation, name: String::new() };
            operator.members.insert(incarnation.member, member);
        })
    }

    /// A live region gives up its share.
    pub fn leave(&mut self, place: usize) -> bool {
        if place == self.operator.authority {
            return false;
        }
        let region = self.places[place].incarnation.member;
        self.command("leave", |operator| {
            operator.members.remove(&region);
        })
    }

    /// Another place becomes the authority.
    pub fn take_over(&mut self, place: usize) -> bool {
        // A place without the newest version could conflict with another authority: the stories cover this.
        // When all links work, and no frames of fenced places are on their way, versions that only fenced
        // places know are lost.
        let is_lost = |place: &Place| self.is_mended && place.state == State::Fenced;
        let newest = self.places.iter().filter(|place| !is_lost(place)).map(|place| place.version_id).max();
        let done = newest == Some(self.places[place].version_id) && self.publish(place, true);
        self.note(Event::Command(place, "take over", done));
        done
    }
}
