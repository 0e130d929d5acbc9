//! One word: a version of the catalogue is identical in every region, each epoch has one authority, and no
//! region is believed to have acknowledged a version that it never had.

use std::collections::BTreeMap;

use acequia_rights::{Incarnation, VersionId, versions::Version};

use super::{Check, Steps};
use crate::{
    schedule::{Command, Fault},
    world::{Answer, World},
};

const EVERY_MS: u64 = 50;

/// Compares the versions that regions go by.
#[derive(Debug, Default)]
pub struct OneWord {
    versions: BTreeMap<VersionId, Version>,
    authorities: BTreeMap<u32, Incarnation>,
    /// For each region, the process that was last compared, and its version.
    compared: Vec<(u64, VersionId)>,
    /// The newest version that each incarnation had.
    adopted: BTreeMap<Incarnation, VersionId>,
    steps: Steps,
}

impl OneWord {
    fn compare(&mut self, world: &World) -> Result<(), String> {
        // Two takeovers on an operator's word may make two authorities, if the second did not hear of the
        // first.
        let is_takeover = |fault: &Fault| matches!(fault, Fault::Order(_, Command::TakeOver));
        let is_doubtful = world.done().iter().filter(|done| is_takeover(&done.fault)).count() > 1;
        for (place, region) in world.regions().iter().enumerate() {
            let Some(process) = region.process() else { continue };
            let (processes, now) = (region.processes(), process.node.version_ids().0);
            let (compared_processes, before) = self.compared[place];
            if (compared_processes, before) == (processes, now) {
                continue;
            }
            if compared_processes == processes && now < before {
                return Err(format!("{} went back from version {before:?} to {now:?}", region.name()));
            }
            let Some(version) = process.node.version() else { continue };
            self.compared[place] = (processes, now);
            let membership = process.node.membership(process.clock.now());
            let incarnation = membership.as_ref().map(|membership| membership.incarnation);
            if let Some(membership) = membership {
                let adopted = self.adopted.entry(membership.incarnation).or_default();
                *adopted = version.version_id.max(*adopted);
            }
            // A version that only its authority has may be lost in a power cut, and then be made anew with
            // other contents.
            let is_heard = incarnation != Some(version.authority);
            let (version_id, authority) = (version.version_id, version.authority);
            let known = self.authorities.get(&version_id.epoch).copied().unwrap_or(authority);
            if known != authority && !is_doubtful {
                return Err(format!(
                    "epoch {} has two authorities, {known:?} and {authority:?}",
                    version_id.epoch
                ));
            }
            if self.versions.get(&version_id).is_some_and(|known| *known != version) && !is_doubtful {
                return Err(format!("{} has another version {version_id:?} than others", region.name()));
            }
            if is_heard {
                self.authorities.entry(version_id.epoch).or_insert(authority);
                self.versions.entry(version_id).or_insert(version);
            }
        }
        Ok(())
    }
}

impl Check for OneWord {
    fn name(&self) -> &'static str {
        "one word"
    }

    fn observe(&mut self, world: &World, _: &[Answer]) -> Result<(), String> {
        self.compared.resize(world.regions().len(), (0, VersionId::default()));
        self.compare(world)?;
        if !self.steps.is_due(EVERY_MS) {
            return Ok(());
        }
        for region in world.regions() {
            let Some(process) = region.process() else { continue };
            for peer in process.node.peers(process.clock.now()) {
                let had = self.adopted.get(&peer.incarnation).copied().unwrap_or_default();
                if peer.version_id > had {
                    let (name, version_id) = (region.name(), peer.version_id);
                    return Err(format!(
                        "{name} heard that {:?} has version {version_id:?}, which had {had:?}",
                        peer.incarnation
                    ));
                }
            }
        }
        Ok(())
    }
}
