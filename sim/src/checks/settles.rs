//! After the last question, every region knows the same of every other region, and all loans are back.

use std::sync::Arc;

use acequia_limits::{Limit, Part};
use acequia_rights::{Incarnation, MemberId};
use acequia_server::shared::Shared;

use super::{Check, never_over::cell_name, watch_cell};
use crate::{
    NAMES,
    demand::Question,
    scenarios::Plan,
    schedule::Place,
    world::{Answer, World},
};

/// Cells of one limit that are checked.
const CELLS_MAX: usize = 64;

/// Checks all views when the world is quiet.
#[derive(Debug)]
pub struct AllSettles {
    limits: Vec<Limit>,
    asked: Vec<Vec<(String, Question)>>,
    /// Regions that the others need not hear of at the end.
    out: Vec<Place>,
}

/// No region waits for an acknowledgement. This may take minutes: a bucket whose share falls drains first,
/// and drains slowly if its rate is small.
#[derive(Clone, Debug, Default)]
pub struct NobodyWaits {
    out: Vec<Place>,
}

impl AllSettles {
    /// A check of these limits.
    pub fn new(limits: &[Limit], plan: &Plan) -> Self {
        Self { limits: limits.to_vec(), asked: vec![Vec::new(); limits.len()], out: out_of(plan) }
    }

    fn same_views(&self, world: &World) -> Result<(), String> {
        let nodes = || {
            in_of(world, &self.out)
                .map(|(name, process)| (name, Arc::clone(&process.node), process.clock.now()))
        };
        let incarnations: Vec<Incarnation> =
            nodes().filter_map(|(_, node, now)| Some(node.membership(now)?.incarnation)).collect();
        for (limit, incarnation) in
            self.limits.iter().flat_map(|limit| incarnations.iter().map(move |of| (limit, *of)))
        {
            let known: Vec<_> =
                nodes().map(|(name, node, _)| (name, node.charged_by(incarnation, limit.id))).collect();
            if known.iter().any(|(_, units)| *units != known[0].1) {
                return Err(format!("limit {}, charged by {incarnation:?}: {known:?}", limit.spec.name));
            }
        }
        Ok(())
    }

    fn nothing_lent(&self, world: &World) -> Result<(), String> {
        for (limit, asked) in self.limits.iter().zip(&self.asked) {
            for ((cell, question), (name, process)) in
                asked.iter().flat_map(|cell| in_of(world, &self.out).map(move |of| (cell, of)))
            {
                let now = process.clock.now();
                let holding = question.with(|values| process.node.holding_named(limit.id, values, now));
                if let Some(holding) = holding
                    && (holding.lent, holding.held) != (Part::default(), Part::default())
                {
                    let (id, limit) = (limit.id, &limit.spec.name);
                    let (lent, held) = (holding.lent, holding.held);
                    let loans = question.with(|values| process.node.cell_named(id, values, now));
                    let loans = loans.map_or_else(Vec::new, |cell| cell.view.loans);
                    // A loan to a region that must own nothing stays out until an operator recovers that
                    // region.
                    let is_out = |peer: &Incarnation| {
                        self.out.iter().any(|at| MemberId::named(NAMES[*at]) == peer.member)
                    };
                    if !loans.is_empty() && loans.iter().all(|loan| is_out(&loan.peer)) {
                        continue;
                    }
                    let others = in_of(world, &self.out).filter(|(other, _)| *other != name).map(
                        |(other, process)| {
                            let now = process.clock.now();
                            let cell = question.with(|values| process.node.cell_named(id, values, now));
                            format!("{other}: {:?}", cell.map_or_else(Vec::new, |cell| cell.view.loans))
                        },
                    );
                    let others: Vec<String> = others.collect();
                    return Err(format!(
                        "limit {limit}, cell [{cell}]: {name} has lent {lent:?} and holds {held:?}: {loans:?}; {}",
                        others.join("; ")
                    ));
                }
            }
        }
        Ok(())
    }
}

impl NobodyWaits {
    /// A check for a run of a plan.
    pub fn new(plan: &Plan) -> Self {
        Self { out: out_of(plan) }
    }
}

/// Regions that do not run at the end, or that have no share then.
fn out_of(plan: &Plan) -> Vec<Place> {
    [&plan.gone[..], &plan.barred[..]].concat()
}

/// The names and processes of all other regions.
fn in_of<'a>(world: &'a World, out: &'a [Place]) -> impl Iterator<Item = (&'static str, Arc<Shared>)> + 'a {
    let stay = world.regions().iter().enumerate().filter(|(place, _)| !out.contains(place));
    stay.filter_map(|(_, region)| Some((region.name(), region.process()?)))
}

impl Check for NobodyWaits {
    fn name(&self) -> &'static str {
        "nobody waits"
    }

    fn observe(&mut self, _: &World, _: &[Answer]) -> Result<(), String> {
        Ok(())
    }

    fn rest(&mut self, world: &World) -> Result<(), String> {
        let newest = in_of(world, &self.out).map(|(_, process)| process.node.version_ids().0).max();
        for (name, process) in in_of(world, &self.out) {
            let (version_id, _) = process.node.version_ids();
            let Some(membership) = process.node.membership(process.clock.now()) else { continue };
            let progress = membership.progress.ok_or_else(|| format!("{name} has no version"))?;
            let waits = progress.effective != progress.requested || !progress.pending.is_empty();
            if Some(version_id) != newest || waits {
                return Err(format!("{name} goes by {version_id:?} of {newest:?}: {progress:?}"));
            }
        }
        Ok(())
    }
}

impl Check for AllSettles {
    fn name(&self) -> &'static str {
        "all settles"
    }

    fn observe(&mut self, _: &World, answers: &[Answer]) -> Result<(), String> {
        for answer in answers {
            for (limit, asked) in self.limits.iter().zip(&mut self.asked) {
                let has = |key: &str| answer.question.entries.iter().any(|(known, _)| known == key);
                let is_about = limit.when.iter().all(|when| has(&when.key) != when.is_absent)
                    && limit.by.iter().all(|by| has(&by.key));
                if is_about {
                    let cell = cell_name(limit, &answer.question);
                    watch_cell(asked, CELLS_MAX, cell, || answer.question.clone());
                }
            }
        }
        Ok(())
    }

    fn rest(&mut self, world: &World) -> Result<(), String> {
        self.same_views(world)?;
        self.nothing_lent(world)
    }
}
