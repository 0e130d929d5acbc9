//! Orders to a node that stands alone. Its limits are in its config file; numbers that operators order beside it are kept in its journal,
//! and stand until the file changes that limit.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use acequia_limits::{
    Descriptor, Limit,
    limit::{LimitSpec, parse_instant_ns},
};
use acequia_rights::VersionId;
use acequia_store::{Store, StoreError};
use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::{
    audit::{Audit, AuditEntry, clean},
    authority::{Ordered, changed, merged},
    order::{Order, OrderFault, Outcome, Use, compare, ordered_limit},
    status::differences_in_words,
};
use crate::{
    service::{SCHEDULE, schedule_bytes},
    worker::Shared,
};

/// The numbers that were ordered, in the journal.
const ORDERED: &str = "ordered_limits";

/// What was ordered of a node that stands alone.
#[derive(Debug)]
pub(crate) struct Alone {
    /// The folder of the audit log; none where nothing survives a restart.
    folder: Option<PathBuf>,
    /// Held as long as limits are being put in force and written down: orders and changes of the file come one after the other.
    kept: Mutex<Kept>,
    /// What is shown of it, so that nobody who looks waits for a disk.
    shown: ArcSwap<Shown>,
}

/// Where the limits that count differ from the file.
#[derive(Debug, Default)]
struct Shown {
    /// A line each.
    differences: Vec<String>,
    /// When an override ends, and with it perhaps a difference: wall clock, nanoseconds.
    until_ns: u64,
}

/// What the journal keeps of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The limits of the file that was read last.
    file: Vec<LimitSpec>,
    /// Those that count.
    in_force: Vec<LimitSpec>,
    /// Orders so far.
    number: u64,
    /// Whether the journal has something else.
    #[serde(skip)]
    is_unwritten: bool,
}

impl Kept {
    /// The limits that count with another file: what that changed is as it says, and the rest as it was ordered.
    fn with_file(&self, file: &[LimitSpec]) -> Self {
        let in_force = merged(&self.in_force, &changed(&self.file, file));
        Self { file: file.to_vec(), in_force, number: self.number, is_unwritten: self.is_unwritten }
    }

    /// In the order of the file, as limits. Where one is none any more with what was ordered, the file counts.
    fn limits(&mut self, file: &[Limit]) -> Vec<Limit> {
        let all: BTreeMap<(&str, &str), &LimitSpec> =
            self.in_force.iter().map(|spec| ((spec.domain.as_str(), spec.name.as_str()), spec)).collect();
        let limit = |from_file: &Limit| {
            let name = (from_file.spec.domain.as_str(), from_file.spec.name.as_str());
            let ordered = all.get(&name).filter(|spec| ***spec != from_file.spec);
            match ordered.map(|spec| Limit::new((*spec).clone())) {
                Some(Ok(limit)) => limit,
                Some(Err(faults)) => {
                    let why = faults.first().map(ToString::to_string);
                    warn!(
                        limit = from_file.path(),
                        why, "what was ordered is no limit any more: the file counts"
                    );
                    from_file.clone()
                }
                None => from_file.clone(),
            }
        };
        let limits: Vec<Limit> = file.iter().map(limit).collect();
        self.in_force = limits.iter().map(|limit| limit.spec.clone()).collect();
        limits
    }

    fn is_ordered(&self) -> bool {
        self.file != self.in_force
    }

    /// As the journal has it; nothing where the file says all there is.
    fn bytes(&self) -> Option<Vec<u8>> {
        self.is_ordered().then(|| serde_json::to_vec(self).ok()).flatten()
    }

    fn shown(&self, wall_ns: u64) -> Shown {
        if !self.is_ordered() {
            return Shown { differences: Vec::new(), until_ns: u64::MAX };
        }
        let ends = self.in_force.iter().flat_map(|spec| &spec.overrides);
        let ends = ends.filter_map(|fields| parse_instant_ns(fields.get("until")?.texts().first()?).ok());
        let until_ns = ends.filter(|end| *end > wall_ns).min().unwrap_or(u64::MAX);
        Shown { differences: differences_in_words(&self.file, &self.in_force, wall_ns), until_ns }
    }
}

impl Alone {
    /// What was ordered before this start, and the limits that count with a file.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(crate) fn read(
        store: Option<&dyn Store>,
        folder: Option<PathBuf>,
        file: &[Limit],
    ) -> Result<(Self, Vec<Limit>), StoreError> {
        let bytes = store.map(|store| store.value(ORDERED)).transpose()?.flatten();
        let before = bytes.and_then(|bytes| {
            let read = serde_json::from_slice::<Kept>(&bytes);
            read.inspect_err(|fault| warn!(%fault, "what was ordered cannot be read: the file counts")).ok()
        });
        let specs: Vec<LimitSpec> = file.iter().map(|limit| limit.spec.clone()).collect();
        let mut kept = match before {
            Some(before) => before.with_file(&specs),
            None => Kept { file: specs.clone(), in_force: specs, ..Kept::default() },
        };
        let limits = kept.limits(file);
        Ok((Self { folder, kept: Mutex::new(kept), shown: ArcSwap::default() }, limits))
    }

    /// What the journal is to have when a node begins, beside its other values: what the file withdrew must not come back.
    pub(crate) fn value(&self) -> (&'static str, Option<Vec<u8>>) {
        (ORDERED, self.kept().bytes())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the limits of another file in force by `apply`, with what was ordered beside it.
    ///
    /// # Errors
    /// Those of `apply`: then all is as it was.
    pub(crate) fn reload<T, E>(
        &self,
        shared: &Shared,
        file: &[Limit],
        apply: impl FnOnce(Vec<Limit>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut kept = self.kept();
        let specs: Vec<LimitSpec> = file.iter().map(|limit| limit.spec.clone()).collect();
        let mut new = kept.with_file(&specs);
        let limits = new.limits(file);
        let done = apply(limits)?;
        new.is_unwritten |= kept.is_ordered() || new.is_ordered();
        *kept = new;
        if let (Some(writer), true) = (&shared.writer, kept.is_unwritten) {
            // Where a disk fails, the next change or start writes it.
            match writer.write(&[], &[(ORDERED, kept.bytes().as_deref())]) {
                Ok(()) => kept.is_unwritten = false,
                Err(fault) => warn!(%fault, "what was ordered is not written down again"),
            }
        }
        self.show(&kept, shared.clock.now().wall_ns);
        drop(kept);
        self.tell_differences(shared);
        Ok(done)
    }

    fn show(&self, kept: &Kept, wall_ns: u64) {
        self.shown.store(Arc::new(kept.shown(wall_ns)));
    }

    /// Where the limits that count differ from the file, a line each. Never waits for an order.
    pub(crate) fn differences(&self, wall_ns: u64) -> Vec<String> {
        if wall_ns >= self.shown.load().until_ns
            && let Ok(kept) = self.kept.try_lock()
        {
            self.show(&kept, wall_ns);
        }
        self.shown.load().differences.clone()
    }

    /// Shows and says what was ordered before this start.
    pub(crate) fn look(&self, shared: &Shared) {
        self.show(&self.kept(), shared.clock.now().wall_ns);
        self.tell_differences(shared);
    }

    /// Says in the log that an operator's numbers count, and not the file's.
    pub(crate) fn tell_differences(&self, shared: &Shared) {
        let differences = self.differences(shared.clock.now().wall_ns);
        if let Some(first) = differences.first() {
            warn!(
                differences = differences.len(),
                first, "what operators ordered counts, and not the file: `acequia budget list` shows both"
            );
        }
    }

    /// Carries an order about a limit's numbers out, or says what it would change.
    ///
    /// # Errors
    /// Why not. Nothing has changed.
    pub(crate) fn order(
        &self,
        shared: &Shared,
        order: &Order,
        ordered: &Ordered,
    ) -> Result<Outcome, OrderFault> {
        let (Order::Budget { domain, name, .. }
        | Order::Grant { domain, name, .. }
        | Order::Reset { domain, name, .. }) = order
        else {
            return Err(OrderFault::NotYet("this node stands alone: there are no other regions".to_owned()));
        };
        let mut kept = self.kept();
        let now = shared.clock.now();
        let is_it = |spec: &LimitSpec| spec.domain == *domain && spec.name == *name;
        let Some(place) = kept.in_force.iter().position(is_it) else {
            return Err(OrderFault::NotFound(format!("no limit {domain}/{name}: see `acequia budget list`")));
        };
        let used = |limit: &Limit, cell: &Descriptor<'_>| used(shared, limit, cell);
        let about = (ordered.reason.as_str(), ordered.name.as_str());
        let (after, said) = ordered_limit(order, &kept.in_force[place], about, &used, now.wall_ns)?;
        let mut new = Kept { number: kept.number + 1, ..kept.clone() };
        new.in_force[place] = after;
        // What can go wrong among regions cannot here.
        let (changes, _) = compare(&kept.in_force, &new.in_force, now.wall_ns);
        let (changes, mut warnings) = ([said.changes, changes].concat(), said.warnings);
        if changes.is_empty() {
            return Err(OrderFault::Invalid("nothing would change".to_owned()));
        }
        if self.folder.is_none() {
            warnings.push("this node has no `data`: a restart forgets the order".to_owned());
        }
        let version_id = |number| VersionId { epoch: 0, number };
        let (before, after) = (version_id(kept.number), version_id(new.number));
        if ordered.is_dry {
            return Ok(Outcome { before, after: before, changes, warnings });
        }
        let limits: Vec<Limit> = new.in_force.iter().map(super::overrides::read).collect::<Result<_, _>>()?;
        if super::overrides::read(&kept.in_force[place])?.id != limits[place].id {
            return Err(OrderFault::Invalid(format!(
                "{domain}/{name} would be another limit: change that in the config file"
            )));
        }
        // Each try has a number of its own in the audit log.
        kept.number = new.number;
        if let Some(folder) = &self.folder {
            let entry = AuditEntry {
                wall_ns: now.wall_ns,
                author: clean(&ordered.author),
                reason: clean(&ordered.reason),
                what: clean(&order.to_string()),
                before: (0, before.number),
                after: (0, new.number),
                changes: changes.clone(),
            };
            let written = Audit::open(folder).and_then(|mut audit| audit.append(&entry));
            written.map_err(OrderFault::Audit)?;
        }
        // On disk first: a restart must know what was in force.
        write(shared, &new)?;
        // Numbers alone have changed: no cell is to be read from the journal.
        if let Err(fault) = shared.node.apply(limits, now, |_| Vec::new()) {
            kept.is_unwritten = write(shared, &kept).is_err();
            return Err(OrderFault::Adopt(fault.to_string()));
        }
        if let (Some(writer), Ok(schedule)) = (&shared.writer, schedule_bytes(&shared.node.schedule())) {
            // Without it, the next start has the limits as they were, and the numbers as they are.
            let _ = writer.write(&[], &[(SCHEDULE, Some(&schedule))]);
        }
        *kept = new;
        self.show(&kept, now.wall_ns);
        Ok(Outcome { before, after, changes, warnings })
    }

    /// The newest orders, oldest first.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn audit(&self, newest: usize) -> std::io::Result<Vec<AuditEntry>> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        Audit::open(folder)?.newest(newest)
    }
}

fn write(shared: &Shared, kept: &Kept) -> Result<(), OrderFault> {
    let Some(writer) = &shared.writer else { return Ok(()) };
    let written = writer.write(&[], &[(ORDERED, kept.bytes().as_deref())]);
    written.map_err(|fault| OrderFault::Adopt(fault.to_string()))
}

/// What a cell is known to have used here.
fn used(shared: &Shared, limit: &Limit, cell: &Descriptor<'_>) -> Option<Use> {
    let found = shared.node.cell_named(limit.id, cell, shared.clock.now())?;
    let holding = &found.view.holding;
    let units = holding.effective.units.saturating_sub(holding.left);
    let words = format!("this node {units}");
    Some(Use { algorithm: found.view.algorithm, window_ends_ns: found.window_ends_ns, units, words })
}

/// An order to a node that shares a store and has no `regions`: each of its nodes goes by its own file.
pub(super) fn refuse_among(shared: &Arc<Shared>) -> Option<OrderFault> {
    let _siblings = shared.siblings.get()?;
    Some(OrderFault::NotYet(
        "nodes that share a store go by their config files: change the limit in all of them, or add `regions`".to_owned(),
    ))
}
