//! Makes versions of the catalogue from orders. A version is planned against the newest one, shown, written
//! to the audit log, and put in force.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use acequia_limits::{Descriptor, Limit, Now, RATE_PARTS, limit::LimitSpec};
use acequia_mesh::Fingerprint;
use acequia_node::NamedCell;
use acequia_rights::{
    Incarnation, MemberId, Version, VersionId, node_named,
    standing::WEIGHT_MAX,
    versions::{CellSecret, Draft, Fence, Member, REVOKED_MAX},
};
use acequia_store::{Store, StoreError};
use tracing::info;

use super::{
    Regions,
    audit::{Audit, AuditEntry, clean},
    limits::{bytes_of, changed, merged, specs_of},
    order::{Order, OrderFault, OrderOutcome, Use, compare, ordered_limit},
    overrides::About,
    status::{differences_of, version_text},
};
use crate::{
    config::MemberConfig,
    schedule::{self, SCHEDULE},
};

/// The journal's value with the limits of the file that the authority applied last.
const APPLIED: &str = "applied_limits";

/// Why this node takes no order yet.
const UNCONFIRMED: &str = "no other node's wall clock has agreed with this node's since it started, and what a version begins \
     with is dated by it: try again in a few seconds, or set the clock (`acequia regions` shows every node's)";

/// The state that only one order at a time may touch.
#[derive(Debug)]
pub(super) struct Authority {
    pub(super) audit: Audit,
    /// The limits of the file that were applied last; `None` if this node never applied any.
    applied: Option<Vec<LimitSpec>>,
}

/// Who orders, why, and whether to carry the order out.
#[derive(Clone, Debug, Default)]
pub struct Ordered {
    /// The author, as the caller names himself, and the address.
    pub author: String,
    /// The author's name alone, as the caller writes it.
    pub name: String,
    /// The reason.
    pub reason: String,
    /// Only say what would change.
    pub is_dry: bool,
}

impl Ordered {
    /// What overrides say of the order.
    pub(super) fn about(&self) -> About<'_> {
        About { until_ns: None, why: &self.reason, author: &self.name }
    }
}

/// The version that an order makes.
struct Plan {
    /// The version that the plan changes; the default if there is none.
    before: VersionId,
    draft: Draft,
    takes_over: bool,
    changes: Vec<String>,
    warnings: Vec<String>,
}

impl Authority {
    pub(super) fn new(audit: Audit, store: &dyn Store) -> Result<Self, StoreError> {
        let applied = store.value(APPLIED)?;
        // A value that cannot be read counts as absent: then the file is compared, and nothing of it is
        // applied.
        Ok(Self { audit, applied: applied.and_then(|bytes| serde_json::from_slice(&bytes).ok()) })
    }
}

impl Regions {
    /// Checks that this node's certificate lets it make versions: otherwise the other nodes refuse them.
    pub(super) fn check_role(&self) -> Result<(), OrderFault> {
        if self.notary.is_authority() {
            return Ok(());
        }
        Err(OrderFault::NoRole(self.names.of_writer(self.me, None)))
    }

    /// Carries out an order, or says what it would change. When this returns, the new version is in force in
    /// this region; the others follow.
    ///
    /// # Errors
    /// Why not. Then nothing has changed.
    pub fn order(&self, order: &Order, ordered: &Ordered) -> Result<OrderOutcome, OrderFault> {
        let mut authority = self.authority();
        let now = self.clock.now();
        let makes_versions = self.node.version().is_none_or(|version| version.authority == self.me);
        if makes_versions || matches!(order, Order::TakeOver { .. }) {
            self.check_role()?;
        }
        if !self.node.is_wall_believed() {
            // The cells of a version begin with values that are dated by the wall and kept.
            return Err(OrderFault::NotYet(UNCONFIRMED.to_owned()));
        }
        let Some(version) = self.node.version() else {
            return self.begin_by_order(&mut authority, order, ordered, now);
        };
        let takes_over = matches!(order, Order::TakeOver { .. });
        if version.authority != self.me && !takes_over {
            return Err(OrderFault::NotAuthority(self.names.of_writer(version.authority, Some(&version))));
        }
        let plan = self.plan(order, ordered, &version, now)?;
        let outcome = self.carry_out(&mut authority, plan, &order.to_string(), ordered, now)?;
        if takes_over && !ordered.is_dry {
            // From now on a change of this node's file is an order. The present content of the file is none.
            self.keep_applied(&mut authority, self.file())?;
        }
        Ok(outcome)
    }

    /// The newest changes that this node made, oldest first.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn audit(&self, newest: usize) -> std::io::Result<Vec<AuditEntry>> {
        self.authority().audit.newest(newest)
    }

    /// Makes the first catalogue, once, if the config names this node for that. It waits until every region
    /// was heard and none has a catalogue. So a lost disk, or a copy of the file, begins no second catalogue.
    pub(super) fn begin_catalogue(&self, now: Now) {
        let (region, node) = &self.settings.authority;
        let first = self.settings.member(region, node).map(|member| (member.number, node_named(node)));
        let is_first = first == Some((self.me.member, self.me.node)) && self.node.version().is_none();
        if !is_first
            || !self.strangers(now).is_empty()
            || !self.node.is_wall_believed()
            || self.check_role().is_err()
        {
            return;
        }
        let mut authority = self.authority();
        let ordered = Ordered { author: "the config".to_owned(), ..Ordered::default() };
        let begun = self.begin(&mut authority, "the first catalogue", &ordered, now);
        match begun {
            Ok(outcome) => {
                info!(version = %version_text(outcome.after), "every region was heard: the catalogue begins")
            }
            Err(fault) => tracing::warn!(%fault, "the first catalogue cannot be made"),
        }
    }

    /// The configured regions that the first catalogue waits for: unheard ones, and those with a catalogue.
    pub(super) fn strangers(&self, now: Now) -> Vec<String> {
        let peers = self.node.overview(now).peers;
        let is_new = |region: MemberId| {
            peers.iter().any(|peer| {
                peer.incarnation.member == region
                    && peer.incarnation.number > 0
                    && peer.is_reached
                    && peer.version_id == VersionId::default()
            })
        };
        let others = self.names.regions().filter(|region| *region != self.me.member && !is_new(*region));
        others.map(|region| self.names.of_region(region, None)).collect()
    }

    /// Begins a catalogue on the word of an operator, who answers for the regions that cannot be heard.
    fn begin_by_order(
        &self,
        authority: &mut Authority,
        order: &Order,
        ordered: &Ordered,
        now: Now,
    ) -> Result<OrderOutcome, OrderFault> {
        let waits = self.strangers(now).join(", ");
        let Order::TakeOver { is_fenced } = order else {
            return Err(OrderFault::NoCatalogue(format!(
                "it begins when {} has heard every region; it waits for {waits}",
                self.settings.authority.1
            )));
        };
        if !is_fenced {
            return Err(OrderFault::NotYet(format!(
                "this node has no catalogue. If no region has one, and {waits} cannot be waited for, begin one here \
                 with --fenced; if any region has one, every limit could be spent twice"
            )));
        }
        self.begin(authority, &order.to_string(), ordered, now)
    }

    fn begin(
        &self,
        authority: &mut Authority,
        what: &str,
        ordered: &Ordered,
        now: Now,
    ) -> Result<OrderOutcome, OrderFault> {
        let heard = self.node.overview(now).peers;
        let mut members = BTreeMap::new();
        for MemberConfig { number, weight, .. } in self.settings.all() {
            let writer = if number == self.me.member {
                self.me
            } else {
                match heard
                    .iter()
                    .find(|peer| peer.incarnation.member == number && peer.incarnation.number > 0)
                {
                    Some(peer) => peer.incarnation,
                    None => continue,
                }
            };
            members.insert(number, self.member(writer, weight));
        }
        let file = self.file();
        let changes = members.values().map(|member| format!("{}: weight {}", member.name, member.weight));
        let mut changes: Vec<String> = changes.collect();
        changes.extend(file.iter().map(|limit| format!("{}/{}: new", limit.domain, limit.name)));
        let draft = Draft {
            members,
            fenced: Vec::new(),
            clock_error_ns: self.settings.clock.error_ns,
            drift_ppm: self.settings.clock.drift_ppm,
            key: CellSecret(self.key),
            limits: bytes_of(&file)?,
            revoked: BTreeSet::new(),
        };
        let warnings =
            vec!["if any region has a catalogue already, every limit can be spent twice".to_owned()];
        let plan = Plan { before: VersionId::default(), draft, takes_over: false, changes, warnings };
        let outcome = self.carry_out(authority, plan, what, ordered, now)?;
        if !ordered.is_dry {
            self.keep_applied(authority, file)?;
        }
        Ok(outcome)
    }

    /// Takes the limits of the file. On the authority, a difference from what was applied last is an order;
    /// on other nodes the file is only compared.
    pub(crate) fn take_file(&self, limits: &[Limit]) -> Result<(), OrderFault> {
        let file: Vec<LimitSpec> = limits.iter().map(|limit| limit.spec.clone()).collect();
        *self.file.write().unwrap_or_else(std::sync::PoisonError::into_inner) = file;
        self.forget_differences();
        self.order_file()?;
        let now = self.clock.now();
        let version = self.node.version();
        let differences = version.map(|version| differences_of(self, &version, now)).unwrap_or_default();
        if let Some(first) = differences.first() {
            tracing::warn!(
                differences = differences.len(),
                first,
                "the catalogue counts, and not this node's file: `acequia budget list` shows both"
            );
        }
        Ok(())
    }

    /// Whether this node makes the versions of the catalogue.
    pub(crate) fn makes_versions(&self) -> bool {
        self.node.version().is_some_and(|version| version.authority == self.me)
    }

    /// Orders what changed in the file that was read last. Waits until another node has agreed with the wall,
    /// if none has yet.
    pub(super) fn order_file(&self) -> Result<(), OrderFault> {
        let file = self.file();
        let version = self.node.version().filter(|version| version.authority == self.me);
        let Some(version) = version else { return Ok(()) };
        let applied = self.authority().applied.clone();
        let Some(applied) = applied else {
            return self.keep_applied(&mut self.authority(), file);
        };
        let changed = changed(&applied, &file);
        if changed.is_empty() {
            return Ok(());
        }
        let before = specs_of(&version)?;
        let wall_ns = self.clock.now().wall_ns;
        if compare(&before, &merged(&before, &changed), wall_ns).0.is_empty() {
            // Either an operator has ordered the same limits, or a crash came between the order and this
            // note.
            return self.keep_applied(&mut self.authority(), file);
        }
        if !self.node.is_wall_believed() {
            self.file_waits.store(true, Ordering::Release);
            return Ok(());
        }
        let ordered = Ordered { author: "the config file".to_owned(), ..Ordered::default() };
        let outcome = self.order(&Order::File(changed), &ordered)?;
        for change in &outcome.changes {
            info!(change, version = %version_text(outcome.after), "budget changed by the file");
        }
        self.keep_applied(&mut self.authority(), file)
    }

    fn keep_applied(&self, authority: &mut Authority, file: Vec<LimitSpec>) -> Result<(), OrderFault> {
        let bytes = bytes_of(&file)?;
        let written = self.writer.write(&[], &[(APPLIED, Some(&bytes))]);
        written.map_err(|fault| OrderFault::Adopt(fault.to_string()))?;
        authority.applied = Some(file);
        Ok(())
    }

    fn plan(
        &self,
        order: &Order,
        ordered: &Ordered,
        version: &Version,
        now: Now,
    ) -> Result<Plan, OrderFault> {
        let mut plan = Plan {
            before: version.version_id,
            draft: Draft {
                members: version.members.clone(),
                fenced: Vec::new(),
                clock_error_ns: version.clock_error_ns,
                drift_ppm: version.drift_ppm,
                key: version.key,
                limits: version.limits.clone(),
                revoked: version.revoked.clone(),
            },
            takes_over: false,
            changes: Vec::new(),
            warnings: Vec::new(),
        };
        match order {
            Order::Budget { domain, name, .. }
            | Order::Grant { domain, name, .. }
            | Order::Reset { domain, name, .. } => {
                let before = specs_of(version)?;
                let mut after = before.clone();
                let found = after.iter_mut().find(|spec| spec.domain == *domain && spec.name == *name);
                let Some(spec) = found else {
                    let what =
                        format!("no limit {domain}/{name} in the catalogue: see `acequia budget list`");
                    return Err(OrderFault::NotFound(what));
                };
                let used = |limit: &Limit, cell: &Descriptor<'_>| self.known_use(limit, cell, version, now);
                let said;
                (*spec, said) = ordered_limit(order, spec, ordered.about(), &used, now.wall_ns)?;
                plan.changes.extend(said.changes);
                plan.warnings.extend(said.warnings);
                plan.limits(&before, &after, now)?;
            }
            Order::File(changed) => {
                let before = specs_of(version)?;
                plan.limits(&before, &merged(&before, changed), now)?;
            }
            Order::TakeOver { is_fenced } => self.plan_take_over(&mut plan, version, *is_fenced)?,
            Order::Add { region, weight } => self.plan_add(&mut plan, region, *weight, now)?,
            Order::Recover { region } => self.plan_recover(&mut plan, region, now)?,
            Order::Evict { region, is_fenced } => {
                self.plan_evict(&mut plan, region, *is_fenced, now)?;
            }
            Order::Remove { region } => {
                let member = self.other_member(&plan, region)?;
                plan.draft.members.remove(&member.incarnation.member);
                plan.changes.push(format!("{} gives its share up", member.name));
                plan.warnings.push(format!(
                    "{region} denies from then on, and its share goes to the others when it has said so"
                ));
            }
            Order::Revoke { certificate } => self.plan_revoke(&mut plan, certificate)?,
            Order::Weight { region, weight } => {
                check_weight(*weight)?;
                let number = self.number_of(region)?;
                let Some(member) = plan.draft.members.get_mut(&number) else {
                    return Err(no_member(region));
                };
                plan.changes.push(format!("{}: weight {} -> {weight}", member.name, member.weight));
                member.weight = *weight;
            }
        }
        if plan.changes.is_empty() {
            return Err(OrderFault::Invalid("nothing would change".to_owned()));
        }
        Ok(plan)
    }

    /// The known use of a cell: here, and in other regions by their last advertisements.
    fn known_use(&self, limit: &Limit, cell: &Descriptor<'_>, version: &Version, now: Now) -> Option<Use> {
        let found = self.node.cell_named(limit.id, cell, now)?;
        let NamedCell { view, window_ends_ns } = found;
        let burst = view.algorithm.budget();
        let own = view.holding.effective.units.saturating_sub(view.holding.left);
        let mut words = vec![format!("{} {own}", self.names.of_region(self.me.member, Some(version)))];
        let mut units = own;
        for region in version.members.keys().filter(|region| **region != self.me.member) {
            let name = self.names.of_region(*region, Some(version));
            let report = view.reports.iter().find(|report| report.of == *region);
            words.push(match report.and_then(|report| Some((report, report.left?))) {
                Some((report, left)) => {
                    // A region has the same part of a bucket's burst as of its rate.
                    let holds = match view.algorithm.has_rate() {
                        true => u128::from(burst) * u128::from(report.holds.rate) / u128::from(RATE_PARTS),
                        false => u128::from(report.holds.units),
                    };
                    let used = u64::try_from(holds).unwrap_or(u64::MAX).saturating_sub(left);
                    units = units.saturating_add(used);
                    let ago_ms = now.steady_ns.saturating_sub(report.said_ns) / 1_000_000;
                    format!("{name} {used}, said {ago_ms} ms ago")
                }
                None => format!("{name} said nothing"),
            });
        }
        let units = units.min(burst);
        Some(Use { algorithm: view.algorithm, window_ends_ns, units, words: words.join("; ") })
    }

    fn plan_take_over(&self, plan: &mut Plan, version: &Version, is_fenced: bool) -> Result<(), OrderFault> {
        let before = self.names.of_writer(version.authority, Some(version));
        if version.authority == self.me && !is_fenced {
            return Err(OrderFault::Invalid(format!("{before} is the authority already")));
        }
        plan.takes_over = true;
        plan.changes.push(format!("authority {before} -> {}", self.names.of_writer(self.me, Some(version))));
        plan.warnings.push(format!(
            "changes that {before} made and this node has not heard of are lost; {before} must make no more: it is told \
             when it is reached"
        ));
        Ok(())
    }

    fn plan_revoke(&self, plan: &mut Plan, certificate: &str) -> Result<(), OrderFault> {
        let seen = self.mesh.status().into_iter().filter_map(|peer| peer.fingerprint);
        let revoked = fingerprint(certificate, seen.chain([self.fingerprint()]))?;
        if revoked == self.fingerprint() {
            return Err(OrderFault::Invalid(
                "that is this node's own certificate: make it another one first, or let another node take the authority over, \
                 which can revoke it then"
                    .to_owned(),
            ));
        }
        if plan.draft.revoked.len() >= REVOKED_MAX {
            return Err(OrderFault::Invalid(format!(
                "{REVOKED_MAX} certificates are revoked already: begin with a new ca.pem"
            )));
        }
        if plan.draft.revoked.insert(revoked.0) {
            plan.changes.push(format!("certificate {revoked}: revoked"));
            plan.warnings.push(
                "the node that has it is cut off from the others until it has another one; what was adopted by its word stays"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// From now on refuses the certificates that the catalogue revokes.
    pub(super) fn keep_revoked(&self, version: &Version) {
        let revoked: BTreeSet<Fingerprint> = version.revoked.iter().map(|one| Fingerprint(*one)).collect();
        self.notary.revoke(revoked.clone());
        self.mesh.revoke(revoked);
    }

    fn plan_add(&self, plan: &mut Plan, region: &str, weight: u32, now: Now) -> Result<(), OrderFault> {
        check_weight(weight)?;
        let number = self.number_of(region)?;
        if plan.draft.members.contains_key(&number) {
            return Err(OrderFault::Invalid(format!("{region} has a share already: see `regions weight`")));
        }
        let writer = self.heard(region, now)?;
        // A node that has begun anew will never say that it gave up its earlier share. An operator has to say
        // that the earlier incarnation does nothing any more.
        let is_before = |old: Incarnation| old.node == writer.node && old.number < writer.number;
        if self.leavers(number, now).any(is_before) {
            return Err(OrderFault::NotYet(format!(
                "{region} was removed, and the node that it had then has not said that it gave its share up: bring that one \
                 back with its disk until `acequia regions` waits for it no more; or, if it is gone for good, say \
                 `acequia regions evict {region} --fenced`, and then add the new one"
            )));
        }
        let member = self.member(writer, weight);
        plan.changes.push(format!("{} gets a share: weight {weight}", member.name));
        plan.warnings.push(
            "every other region's share gets smaller; the new one's grows when all have said so, and in windows that \
             are open, when they end"
                .to_owned(),
        );
        plan.draft.members.insert(number, member);
        Ok(())
    }

    fn plan_recover(&self, plan: &mut Plan, region: &str, now: Now) -> Result<(), OrderFault> {
        let old = self.other_member(plan, region)?;
        let writer = self.heard(region, now)?;
        if writer == old.incarnation {
            return Err(OrderFault::Invalid(format!("{region} has its disk: nothing is to be recovered")));
        }
        if writer < old.incarnation {
            return Err(OrderFault::Invalid(format!(
                "the node of {region} that was heard is older than the one in the catalogue: is its clock wrong?"
            )));
        }
        plan.changes
            .push(format!("{}: incarnation {} -> {}", old.name, old.incarnation.number, writer.number));
        plan.warnings.push(format!(
            "if the disk that {region} had is put back and started, it is refused; what it lent and held is lost to it"
        ));
        plan.draft.members.insert(writer.member, self.member(writer, old.weight));
        plan.draft.fenced.push(fence(old.incarnation, now));
        Ok(())
    }

    fn plan_evict(&self, plan: &mut Plan, region: &str, is_fenced: bool, now: Now) -> Result<(), OrderFault> {
        // This also covers a region that was removed, and is gone before it could say that it gave its share
        // up.
        let number = self.number_of(region)?;
        let leavers: Vec<Incarnation> = self.leavers(number, now).collect();
        let is_member = plan.draft.members.contains_key(&number);
        let member =
            if is_member || leavers.is_empty() { Some(self.other_member(plan, region)?) } else { None };
        if !is_fenced {
            return Err(OrderFault::NotYet(format!(
                "{region} keeps its share until you say that its node is gone: stop it, or cut it off from every \
                 caller, for good; then say --fenced. If it still answers anybody, limits are exceeded by its share"
            )));
        }
        plan.draft.fenced.extend(leavers.into_iter().map(|writer| fence(writer, now)));
        if let Some(member) = member {
            plan.draft.members.remove(&member.incarnation.member);
            plan.draft.fenced.push(fence(member.incarnation, now));
            plan.changes.push(format!("{} loses its share: weight {}", member.name, member.weight));
        } else {
            plan.changes.push(format!("{region}, which was removed, is not waited for any more"));
        }
        plan.warnings.push(format!(
            "if {region} still answers anybody, limits are exceeded by its share; its disk is refused from then on"
        ));
        Ok(())
    }

    /// Incarnations of a region that were removed, and have not said that they gave their share up.
    fn leavers(&self, region: MemberId, now: Now) -> impl Iterator<Item = Incarnation> + use<> {
        let progress = self.node.membership(now).and_then(|membership| membership.progress);
        let leavers = progress.map_or_else(BTreeSet::new, |progress| progress.leavers);
        leavers.into_iter().filter(move |writer| writer.member == region)
    }

    /// The number of a member that an order names.
    fn number_of(&self, name: &str) -> Result<MemberId, OrderFault> {
        let nodes = self.names.nodes_of(name);
        if nodes.is_empty() {
            return Ok(self.names.number_of(name, self.node.version().as_ref()));
        }
        let nodes = nodes.join(", ");
        Err(OrderFault::Invalid(format!(
            "region {name} has several nodes, each of which has a share: name one of {nodes}, or all, one by one"
        )))
    }

    /// A member that is not this node.
    fn other_member(&self, plan: &Plan, region: &str) -> Result<Member, OrderFault> {
        let member = plan.draft.members.get(&self.number_of(region)?).ok_or_else(|| no_member(region))?;
        if member.incarnation == self.me {
            return Err(OrderFault::NotYet(format!(
                "{region} is the authority's region: move the authority to another one first"
            )));
        }
        Ok(member.clone())
    }

    /// The incarnation of a region that was heard.
    fn heard(&self, region: &str, now: Now) -> Result<Incarnation, OrderFault> {
        let number = self.number_of(region)?;
        if self.names.identity(number).is_none() {
            return Err(OrderFault::NotFound(format!(
                "{region} is not in this node's config: add it to `regions` in every file, and start the nodes again"
            )));
        }
        let peers = self.node.overview(now).peers;
        let found = peers.iter().find(|peer| peer.incarnation.member == number && peer.is_reached);
        found.map(|peer| peer.incarnation).ok_or_else(|| {
            OrderFault::NotYet(format!("{region} is not reached: start its node, and see `acequia regions`"))
        })
    }

    fn member(&self, writer: Incarnation, weight: u32) -> Member {
        Member { weight, incarnation: writer, name: self.names.of_writer(writer, None) }
    }

    fn carry_out(
        &self,
        authority: &mut Authority,
        plan: Plan,
        what: &str,
        ordered: &Ordered,
        now: Now,
    ) -> Result<OrderOutcome, OrderFault> {
        let Plan { before, draft, takes_over, changes, warnings } = plan;
        let version = match takes_over {
            true => self.node.take_over(draft, now.wall_ns)?,
            false => self.node.propose(draft, now.wall_ns)?,
        };
        if ordered.is_dry {
            return Ok(OrderOutcome { before, after: before, changes, warnings });
        }
        let after = version.version_id;
        let entry = AuditEntry {
            wall_ns: now.wall_ns,
            author: clean(&ordered.author),
            reason: clean(&ordered.reason),
            what: clean(what),
            before: (before.epoch, before.number),
            after: (after.epoch, after.number),
            changes: changes.clone(),
        };
        authority.audit.append(&entry).map_err(OrderFault::Audit)?;
        let adopted = self.node.adopt(version, now, |limit| self.rows(limit));
        adopted.map_err(|fault| OrderFault::Adopt(fault.to_string()))?;
        Ok(OrderOutcome { before, after, changes, warnings })
    }

    /// Writes down a version that another node made, and shows it to operators.
    pub(super) fn note_adopted(
        &self,
        before: Option<&Version>,
        version: &Version,
        now: Now,
    ) -> std::io::Result<()> {
        let authority = self.names.of_writer(version.authority, Some(version));
        let certificate =
            self.node.version_seal().and_then(|seal| Some(Fingerprint::of(seal.chain.first()?)));
        let certificate = certificate.map_or_else(|| "unknown".to_owned(), |one| one.to_string());
        let changes = changed_between(before, version, now.wall_ns);
        tracing::warn!(
            version = %version_text(version.version_id), %authority, %certificate, changes = changes.join("; "),
            "a version of the catalogue that another node made is in force"
        );
        let before = before.map_or_else(VersionId::default, |before| before.version_id);
        self.authority().audit.append(&AuditEntry {
            wall_ns: now.wall_ns,
            author: format!("{authority}, by certificate {certificate}"),
            reason: String::new(),
            what: format!("version {} adopted", version_text(version.version_id)),
            before: (before.epoch, before.number),
            after: (version.version_id.epoch, version.version_id.number),
            changes,
        })
    }

    /// Writes the schedule in force down, for the next start.
    pub(super) fn keep_schedule(&self) -> Result<(), StoreError> {
        let bytes = schedule::to_bytes(&self.node.schedule());
        let bytes = bytes.map_err(|fault| StoreError::Write(fault.to_string()))?;
        self.writer.write(&[], &[(SCHEDULE, Some(&bytes))])
    }
}

impl Plan {
    fn limits(&mut self, before: &[LimitSpec], after: &[LimitSpec], now: Now) -> Result<(), OrderFault> {
        let (changes, warnings) = compare(before, after, now.wall_ns);
        self.changes.extend(changes);
        self.warnings.extend(warnings);
        self.draft.limits = bytes_of(after)?;
        Ok(())
    }
}

/// The changes from an earlier version, or from none, a line each.
fn changed_between(before: Option<&Version>, after: &Version, wall_ns: u64) -> Vec<String> {
    let limits = |version: &Version| specs_of(version).unwrap_or_default();
    let mut changes = compare(&before.map_or_else(Vec::new, limits), &limits(after), wall_ns).0;
    if before.is_some_and(|before| before.authority != after.authority) {
        changes.push("another authority".to_owned());
    }
    let none = BTreeMap::new();
    let members = before.map_or(&none, |before| &before.members);
    changes.extend(after.members.iter().filter_map(|(region, member)| {
        let (name, to) = (&member.name, member.weight);
        match members.get(region).map(|before| before.weight) {
            None => Some(format!("{name} gets a share: weight {to}")),
            Some(from) => (from != to).then(|| format!("{name}: weight {from} -> {to}")),
        }
    }));
    let gone = members.iter().filter(|(region, _)| !after.members.contains_key(region));
    changes.extend(gone.map(|(_, member)| format!("{} has no share any more", member.name)));
    let revoked =
        after.revoked.iter().filter(|one| !before.is_some_and(|before| before.revoked.contains(*one)));
    changes.extend(revoked.map(|one| format!("certificate {}: revoked", Fingerprint(*one))));
    changes
}

/// The certificate that an operator means: all of its digits, or the first digits of one that was seen.
fn fingerprint(text: &str, seen: impl Iterator<Item = Fingerprint>) -> Result<Fingerprint, OrderFault> {
    const DIGITS_MIN: usize = 16;
    let text = text.replace(':', "").to_ascii_lowercase();
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex || !(DIGITS_MIN..=64).contains(&text.len()) {
        return Err(OrderFault::Invalid(format!(
            "{text:?} is no fingerprint: give the {DIGITS_MIN} digits that `acequia regions` shows, or all 64 of \
             `openssl x509 -fingerprint -sha256`"
        )));
    }
    if text.len() == 64 {
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).unwrap_or_default();
            *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
        }
        return Ok(Fingerprint(bytes));
    }
    let mut found = seen.filter(|one| one.to_string().starts_with(&text));
    let (first, second) = (found.next(), found.next());
    first.filter(|_| second.is_none()).ok_or_else(|| {
        OrderFault::NotFound(format!(
            "this node has seen no certificate {text}...: give all 64 digits (`openssl x509 -fingerprint -sha256`)"
        ))
    })
}

/// An operator's statement that an incarnation does nothing any more.
fn fence(writer: Incarnation, now: Now) -> Fence {
    Fence { incarnation: writer, wall_ns: now.wall_ns }
}

fn no_member(region: &str) -> OrderFault {
    OrderFault::NotFound(format!("{region} has no share: see `acequia regions`"))
}

fn check_weight(weight: u32) -> Result<(), OrderFault> {
    if (1..=WEIGHT_MAX).contains(&weight) {
        return Ok(());
    }
    Err(OrderFault::Invalid(format!("a weight is 1 to {WEIGHT_MAX}, not {weight}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_accepts_the_same_weights_as_a_config() {
        assert!(check_weight(1).is_ok() && check_weight(WEIGHT_MAX).is_ok());
        for weight in [0, WEIGHT_MAX + 1] {
            let fault = check_weight(weight).expect_err("no weight").to_string();
            assert!(fault.contains("1 to 10000"), "{fault}");
        }
    }
}
