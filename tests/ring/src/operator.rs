//! The operator: what he wants, and the commands by which he gets it.
//!
//! He sees what an operator would see: which processes he stopped himself, which disks are gone, and what the authority
//! says. He asserts a fence only for writers that are gone, but where a history wants his word to be wrong.

use std::collections::BTreeMap;

use acequia_node::sharing;
use acequia_rights::{
    Incarnation, MemberId, Version, VersionId,
    versions::{CellKey, Draft, Fence, Member},
};

use crate::{
    budget::{Budget, KEY, Measured, Own},
    oracle::Numbers,
    place::{Place, State, rows_of},
    trace::Event,
    world::{Plan, World},
};

/// What an operator wants.
#[derive(Clone, Debug)]
pub struct Operator {
    /// Who is to have a share, and how much.
    pub members: BTreeMap<MemberId, Member>,
    /// The numbers of each limit; none where it is removed.
    pub budgets: Vec<Option<Budget>>,
    /// Other numbers for a key of each limit.
    pub owns: Vec<Option<Own>>,
    /// The members when each limit was last removed.
    pub removed: Vec<BTreeMap<MemberId, Member>>,
    /// Writers that are gone.
    gone: Vec<Incarnation>,
    /// Where the authority is.
    pub authority: usize,
    clock_error_ns: u64,
    drift_ppm: u32,
}

impl Operator {
    /// What the first version says.
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

    /// A writer does nothing any more.
    pub fn lost(&mut self, incarnation: Incarnation) {
        if !self.gone.contains(&incarnation) {
            self.gone.push(incarnation);
        }
    }

    /// Writers that are gone, that the authority's version waits for, and that the next one will not name.
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
            key: CellKey(KEY),
            limits: sharing::limits_to_bytes(&specs).expect("limits"),
            revoked: Default::default(),
        }
    }
}

impl World {
    /// Makes what the operator wants the next version, at a place that is the authority or `takes_over`.
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

    /// As [`World::publish`], at the authority; what could not be done is not wanted.
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

    /// A region whose process is stopped loses its share for good, on the operator's word that it stays so. The word
    /// is given whether or not the authority can be told now.
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

    /// A region that is alive is said to be gone: from now on sums are not promised.
    pub fn evict_by_mistake(&mut self, place: usize) -> bool {
        let incarnation = self.places[place].incarnation;
        self.oracle.void = true;
        self.command("evict by mistake", |operator| {
            operator.members.remove(&incarnation.member);
            operator.lost(incarnation);
        })
    }

    /// A fenced or absent place begins with an empty disk, and is named.
    pub fn join(&mut self, place: usize, weight: u32) -> bool {
        match self.places[place].state {
            State::Absent => {}
            State::Fenced => self.places[place].begin_anew(),
            State::Up | State::Down => return false,
        }
        self.start(place, true);
        self.name(place, weight)
    }

    /// A process that has no share gets one.
    pub fn name(&mut self, place: usize, weight: u32) -> bool {
        let incarnation = self.places[place].incarnation;
        self.command("name", |operator| {
            let member = Member { weight, incarnation, name: String::new() };
            operator.members.insert(incarnation.member, member);
        })
    }

    /// A region gives its share up, alive.
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
        // Who takes over without the newest version may meet another who did: the stories have that.
        // What only fenced ones have heard of is lost: when all links are up, and nothing of theirs is on its way.
        let is_lost = |place: &Place| self.is_mended && place.state == State::Fenced;
        let newest = self.places.iter().filter(|place| !is_lost(place)).map(|place| place.version_id).max();
        let done = newest == Some(self.places[place].version_id) && self.publish(place, true);
        self.note(Event::Command(place, "take over", done));
        done
    }
}
