//! One word: a version of the catalogue says the same wherever it is, in one epoch there is one authority, and nobody is heard
//! to have acknowledged what it never had.

use std::collections::BTreeMap;

use acequia_rights::{Mark, Writer, versions::Version};

use super::Check;
use crate::{
    schedule::{Command, Fault},
    world::{Answer, World},
};

const EVERY_MS: u64 = 50;

/// Compares the versions that regions go by.
#[derive(Debug, Default)]
pub struct OneWord {
    versions: BTreeMap<Mark, Version>,
    authorities: BTreeMap<u32, Writer>,
    /// By region, the process that was looked at, and its version.
    looked: Vec<(u64, Mark)>,
    /// The newest version that each writer had.
    adopted: BTreeMap<Writer, Mark>,
    looks: u64,
}

impl OneWord {
    fn compare(&mut self, world: &World) -> Result<(), String> {
        // Who takes over twice, on an operator's word, without having heard of the first time, is a second authority.
        let is_takeover = |fault: &Fault| matches!(fault, Fault::Order(_, Command::TakeOver));
        let is_doubtful = world.done().iter().filter(|done| is_takeover(&done.fault)).count() > 1;
        for (place, region) in world.regions().iter().enumerate() {
            let Some(process) = region.process() else { continue };
            let looked = (region.processes(), process.node.marks().0);
            if self.looked[place] == looked {
                continue;
            }
            let (processes, before) = self.looked[place];
            if processes == looked.0 && looked.1 < before {
                return Err(format!("{} went back from version {before:?} to {:?}", region.name(), looked.1));
            }
            let Some(version) = process.node.version() else { continue };
            self.looked[place] = looked;
            let membership = process.node.membership(process.clock.now());
            let writer = membership.as_ref().map(|membership| membership.writer);
            if let Some(membership) = membership {
                let adopted = self.adopted.entry(membership.writer).or_default();
                *adopted = version.mark.max(*adopted);
            }
            // What an authority made and nobody else has, may be lost with its power, and made anew with other words.
            let is_heard = writer != Some(version.authority);
            let (mark, authority) = (version.mark, version.authority);
            let known = self.authorities.get(&mark.epoch).copied().unwrap_or(authority);
            if known != authority && !is_doubtful {
                return Err(format!("epoch {} has two authorities, {known:?} and {authority:?}", mark.epoch));
            }
            if self.versions.get(&mark).is_some_and(|known| *known != version) && !is_doubtful {
                return Err(format!("{} has another version {mark:?} than others", region.name()));
            }
            if is_heard {
                self.authorities.entry(mark.epoch).or_insert(authority);
                self.versions.entry(mark).or_insert(version);
            }
        }
        Ok(())
    }
}

impl Check for OneWord {
    fn name(&self) -> &'static str {
        "one word"
    }

    fn look(&mut self, world: &World, _: &[Answer]) -> Result<(), String> {
        self.looked.resize(world.regions().len(), (0, Mark::default()));
        self.compare(world)?;
        self.looks += 1;
        if !self.looks.is_multiple_of(EVERY_MS) {
            return Ok(());
        }
        for region in world.regions() {
            let Some(process) = region.process() else { continue };
            for peer in process.node.peers(process.clock.now()) {
                let had = self.adopted.get(&peer.writer).copied().unwrap_or_default();
                if peer.mark > had {
                    let (name, mark) = (region.name(), peer.mark);
                    return Err(format!(
                        "{name} heard that {:?} has version {mark:?}, which had {had:?}",
                        peer.writer
                    ));
                }
            }
        }
        Ok(())
    }
}
