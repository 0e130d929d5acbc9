//! Orders to a node that stands alone. Its limits are in its config file. Overrides that operators order are
//! kept in its journal, and stand until the file changes that limit.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use acequia_limits::{
    Descriptor, Limit,
    limit::{LimitSpec, parse_instant_ns},
};
use acequia_node::Node;
use acequia_rights::VersionId;
use acequia_store::{Store, StoreError};
use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::{
    audit::{Audit, AuditEntry, clean},
    authority::Ordered,
    limits::{changed, merged},
    order::{Order, OrderFault, OrderOutcome, Use, compare, ordered_limit},
    status::differences_in_words,
};
use crate::{
    clock::Clock,
    schedule::{self, SCHEDULE},
    writer::Writer,
};

/// The journal's value with the limits that were ordered.
const ORDERED: &str = "ordered_limits";

/// The orders to a node that stands alone.
#[derive(Debug)]
pub(crate) struct Alone {
    place: AloneParts,
    /// The folder of the audit log; `None` if nothing survives a restart.
    folder: Option<PathBuf>,
    /// Locked while limits are put in force and written down: orders and changes of the file come one after
    /// the other.
    kept: Mutex<Kept>,
    /// The differences that are shown, apart from the lock: a reader must not wait for a disk.
    shown: ArcSwap<Shown>,
}

/// The parts of the node that orders are carried out on.
#[derive(Debug)]
pub(crate) struct AloneParts {
    pub(crate) node: Arc<Node>,
    /// The journal, where there is one.
    pub(crate) writer: Option<Arc<Writer>>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The differences between the limits in force and the file.
#[derive(Debug, Default)]
struct Shown {
    /// One line for each difference.
    differences: Vec<String>,
    /// When the next override ends, and perhaps a difference with it: wall clock, nanoseconds.
    until_ns: u64,
}

/// The orders as the journal keeps them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// The limits of the file that was read last.
    file: Vec<LimitSpec>,
    /// The limits in force.
    in_force: Vec<LimitSpec>,
    /// The number of orders so far.
    number: u64,
    /// Whether the journal differs from this.
    #[serde(skip)]
    is_unwritten: bool,
}

impl Kept {
    /// The limits in force with a new file: where the file changed, it counts; elsewhere the orders stay.
    fn with_file(&self, file: &[LimitSpec]) -> Self {
        let in_force = merged(&self.in_force, &changed(&self.file, file));
        Self { file: file.to_vec(), in_force, number: self.number, is_unwritten: self.is_unwritten }
    }

    /// The limits in force, in the order of the file. Where a limit with its orders is not valid any more,
    /// the file counts.
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

    /// The bytes for the journal; `None` if the file says everything.
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
    /// Reads the orders from before this start. Returns them with the limits in force under the given file.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(crate) fn read(
        place: AloneParts,
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
        Ok((Self { place, folder, kept: Mutex::new(kept), shown: ArcSwap::default() }, limits))
    }

    /// The value that the journal gets when a node begins, with its other values: what the file withdrew must
    /// not come back.
    pub(crate) fn value(&self) -> (&'static str, Option<Vec<u8>>) {
        (ORDERED, self.kept().bytes())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the limits of another file in force by `apply`, together with the orders that remain.
    ///
    /// # Errors
    /// The errors of `apply`: then nothing changes.
    pub(crate) fn reload<T, E>(
        &self,
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
        if let (Some(writer), true) = (&self.place.writer, kept.is_unwritten) {
            // If the disk fails, the next change or start writes the value.
            match writer.write(&[], &[(ORDERED, kept.bytes().as_deref())]) {
                Ok(()) => kept.is_unwritten = false,
                Err(fault) => warn!(%fault, "what was ordered is not written down again"),
            }
        }
        self.show(&kept, self.place.clock.now().wall_ns);
        drop(kept);
        self.tell_differences();
        Ok(done)
    }

    fn show(&self, kept: &Kept, wall_ns: u64) {
        self.shown.store(Arc::new(kept.shown(wall_ns)));
    }

    /// The differences between the limits in force and the file, a line each. Never waits for an order.
    pub(crate) fn differences(&self, wall_ns: u64) -> Vec<String> {
        if wall_ns >= self.shown.load().until_ns
            && let Ok(kept) = self.kept.try_lock()
        {
            self.show(&kept, wall_ns);
        }
        self.shown.load().differences.clone()
    }

    /// Shows and logs the orders from before this start.
    pub(crate) fn look(&self) {
        self.show(&self.kept(), self.place.clock.now().wall_ns);
        self.tell_differences();
    }

    /// Logs that an operator's orders count, and not the file.
    fn tell_differences(&self) {
        let differences = self.differences(self.place.clock.now().wall_ns);
        if let Some(first) = differences.first() {
            warn!(
                differences = differences.len(),
                first, "what operators ordered counts, and not the file: `acequia budget list` shows both"
            );
        }
    }

    /// Carries out an order about a limit, or says what it would change.
    ///
    /// # Errors
    /// Why not. Then nothing has changed.
    pub(crate) fn order(&self, order: &Order, ordered: &Ordered) -> Result<OrderOutcome, OrderFault> {
        let (Order::Budget { domain, name, .. }
        | Order::Grant { domain, name, .. }
        | Order::Reset { domain, name, .. }) = order
        else {
            return Err(OrderFault::NotYet("this node stands alone: there are no other regions".to_owned()));
        };
        let mut kept = self.kept();
        let now = self.place.clock.now();
        let is_it = |spec: &LimitSpec| spec.domain == *domain && spec.name == *name;
        let Some(place) = kept.in_force.iter().position(is_it) else {
            return Err(OrderFault::NotFound(format!("no limit {domain}/{name}: see `acequia budget list`")));
        };
        let used = |limit: &Limit, cell: &Descriptor<'_>| self.place.used(limit, cell);
        let (after, said) = ordered_limit(order, &kept.in_force[place], ordered.about(), &used, now.wall_ns)?;
        let mut new = Kept { number: kept.number + 1, ..kept.clone() };
        new.in_force[place] = after;
        // The warnings of `compare` do not apply to a node that stands alone.
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
            return Ok(OrderOutcome { before, after: before, changes, warnings });
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
        // The disk comes first: a restart must know what was in force.
        self.place.write(&new)?;
        // Only numbers have changed, so that no cell is read from the journal.
        if let Err(fault) = self.place.node.apply(limits, now, |_| Vec::new()) {
            kept.is_unwritten = self.place.write(&kept).is_err();
            return Err(OrderFault::Adopt(fault.to_string()));
        }
        self.place.write_schedule();
        *kept = new;
        self.show(&kept, now.wall_ns);
        Ok(OrderOutcome { before, after, changes, warnings })
    }

    /// The newest orders, oldest first.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn audit(&self, newest: usize) -> std::io::Result<Vec<AuditEntry>> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        Audit::open(folder)?.newest(newest)
    }
}

impl AloneParts {
    fn write(&self, kept: &Kept) -> Result<(), OrderFault> {
        let Some(writer) = &self.writer else { return Ok(()) };
        let written = writer.write(&[], &[(ORDERED, kept.bytes().as_deref())]);
        written.map_err(|fault| OrderFault::Adopt(fault.to_string()))
    }

    fn write_schedule(&self) {
        if let (Some(writer), Ok(schedule)) = (&self.writer, schedule::to_bytes(&self.node.schedule())) {
            // If this fails, the next start has the earlier schedule, and the limits as ordered.
            let _ = writer.write(&[], &[(SCHEDULE, Some(&schedule))]);
        }
    }

    /// The known use of a cell on this node.
    fn used(&self, limit: &Limit, cell: &Descriptor<'_>) -> Option<Use> {
        let found = self.node.cell_named(limit.id, cell, self.clock.now())?;
        let holding = &found.view.holding;
        let units = holding.effective.units.saturating_sub(holding.left);
        let words = format!("this node {units}");
        Some(Use { algorithm: found.view.algorithm, window_ends_ns: found.window_ends_ns, units, words })
    }
}
