//! Service resumes: when all faults are over, every node that runs has its shares, and callers are answered.

use std::{collections::BTreeMap, time::Duration};

use super::Check;
use crate::{
    scenarios::Plan,
    schedule::Place,
    world::{Answer, Reply, World},
};

/// How long before the end every question must be answered.
const LAST: Duration = Duration::from_secs(3);

/// Checks the last seconds and the end of a run.
#[derive(Debug)]
pub struct ServiceResumes {
    duration: Duration,
    /// For each region, how many questions of the last seconds were answered, and how many were not.
    answered: Vec<(u64, u64)>,
    /// Regions that do not run at the end.
    gone: Vec<Place>,
    /// Regions that must own nothing at the end.
    barred: Vec<Place>,
    /// For each region, the routes asked for in the last seconds, and whether any question of a route was
    /// allowed. `None` where that is not promised.
    passed: Option<Vec<BTreeMap<String, bool>>>,
}

impl ServiceResumes {
    /// A check for a run whose faults are all over some seconds before the end.
    pub fn new(plan: &Plan) -> Self {
        let (gone, barred) = (plan.gone.clone(), plan.barred.clone());
        let passed = plan.admits_at_last.then(|| vec![BTreeMap::new(); plan.regions]);
        Self { duration: plan.duration, answered: vec![(0, 0); plan.regions], gone, barred, passed }
    }
}

impl Check for ServiceResumes {
    fn name(&self) -> &'static str {
        "service resumes"
    }

    fn observe(&mut self, _: &World, answers: &[Answer]) -> Result<(), String> {
        for answer in answers.iter().filter(|answer| answer.asked + LAST >= self.duration) {
            let (answered, silent) = &mut self.answered[answer.place];
            match answer.reply {
                Reply::Nothing(_) => *silent += 1,
                _ => *answered += 1,
            }
            if let Some(passed) = &mut self.passed {
                let route = answer.question.entries.iter().find(|(key, _)| key == "route");
                let route = route.map_or_else(String::new, |(_, value)| value.clone());
                *passed[answer.place].entry(route).or_default() |= matches!(answer.reply, Reply::Allowed(_));
            }
        }
        Ok(())
    }

    fn end(&mut self, world: &World) -> Result<(), String> {
        for (place, (answered, silent)) in self.answered.iter().enumerate() {
            if self.gone.contains(&place) {
                continue;
            }
            let region = &world.regions()[place];
            let name = region.name();
            let process = region.process().ok_or_else(|| format!("{name} does not run"))?;
            if self.barred.contains(&place) {
                match process.ready() {
                    Ok(()) => return Err(format!("{name} is ready, and must own nothing")),
                    Err(_) => continue,
                }
            }
            process.ready().map_err(|why| format!("{name} is not ready: {why}"))?;
            if *silent > 0 || *answered == 0 {
                return Err(format!("{name} answered {answered} questions at last, and {silent} not"));
            }
        }
        for (place, routes) in self.passed.iter().flatten().enumerate() {
            if let Some((route, _)) = routes.iter().find(|(_, passed)| !**passed) {
                let name = world.regions()[place].name();
                return Err(format!("{name} lets nothing pass of {route} at last"));
            }
        }
        self.nobody_waits_for_the_dead(world)?;
        let stay = world
            .regions()
            .iter()
            .enumerate()
            .filter(|(place, _)| !self.barred.contains(place) && !self.gone.contains(place));
        let versions = stay.filter_map(|(_, region)| Some(region.process()?.node.version_ids().0));
        let versions: std::collections::BTreeSet<_> = versions.collect();
        if versions.len() > 1 {
            Err(format!("regions go by different versions: {versions:?}"))
        } else {
            Ok(())
        }
    }
}

impl ServiceResumes {
    /// No version may wait for an incarnation that is gone: it would wait for ever.
    fn nobody_waits_for_the_dead(&self, world: &World) -> Result<(), String> {
        let members = world.regions().iter().filter_map(|region| {
            let process = region.process()?;
            Some((region.name(), process.node.membership(process.clock.now())?))
        });
        let members: Vec<_> = members.collect();
        let lives = |incarnation| members.iter().any(|(_, member)| member.incarnation == incarnation);
        for (place, (name, member)) in members.iter().enumerate() {
            let pending = member.progress.iter().flat_map(|progress| &progress.pending);
            let dead = pending.filter(|(incarnation, _)| !lives(*incarnation)).count();
            if dead > 0 && !self.barred.contains(&place) {
                return Err(format!("{name} waits for {dead} incarnations that are gone"));
            }
        }
        Ok(())
    }
}
