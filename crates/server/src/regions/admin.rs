//! `acequia.v1.Admin`: operators' questions and orders, on a listener of its own.

use std::{collections::BTreeSet, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use acequia_api::acequia::v1::{
    self as api,
    admin_server::{Admin, AdminServer},
    change_region_request::Change,
};
use acequia_limits::limit::parse_instant_ns;
use acequia_node::{Active, Catalogue, pool::NotExcluded};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_stream::{Stream, StreamExt as _, wrappers::IntervalStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes, transport::server::TcpConnectInfo};
use tracing::warn;

use super::{
    Order, OrderFault, OrderOutcome, Regions, authority::Ordered, limits::specs_of, order::End, status,
};
use crate::{
    admit::{Admitted, admit},
    grpc::{Answered, answer_by_tonic, serve_calls, turn_away},
    node_status,
    port::Port,
    refused::Origin,
    serve::{Connection, Hand},
    settings::SETTINGS,
    shared::Shared,
    sketch::{Counted, Sketch},
};

/// The service of one node.
#[derive(Clone, Debug)]
struct Service {
    shared: Arc<Shared>,
    watches: Arc<tokio::sync::Semaphore>,
}

/// The listener for operators.
pub(crate) struct Door {
    routes: Routes,
    shared: Arc<Shared>,
}

impl Door {
    /// The listener of a node.
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let watches = Arc::new(tokio::sync::Semaphore::new(SETTINGS.admin.watches_max));
        let service = Service { shared: Arc::clone(shared), watches };
        let routes = Routes::new(AdminServer::new(service)).prepare();
        Self { routes, shared: Arc::clone(shared) }
    }

    /// Answers on the connections that are handed over. Operators share the thread that looks after the node,
    /// and take nothing from the threads that answer callers.
    pub(crate) async fn open<C: Connection>(
        self: Arc<Self>,
        mut hands: mpsc::Receiver<Hand<C>>,
        stopping: CancellationToken,
    ) {
        while let Some(Hand { connection, place }) = hands.recv().await {
            let from = connection.from();
            let Ok(stream) = connection.open() else { continue };
            let (door, stopping) = (Arc::clone(&self), stopping.clone());
            tokio::spawn(async move {
                if let Some(admitted) = admit(stream, from, &place, &door.shared.refused).await {
                    door.answer(admitted, stopping).await;
                }
                drop(place);
            });
        }
    }

    async fn answer(
        self: &Arc<Self>,
        admitted: Admitted<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>,
        stopping: CancellationToken,
    ) {
        let Admitted { stream, caller, life } = admitted;
        let (door, of_calls) = (Arc::clone(self), Arc::clone(&life));
        let answer = move |mut request: http::Request<hyper::body::Incoming>| -> Answered {
            if let Err(fault) = caller.rights(request.headers()) {
                door.shared.refused.turn_away(Port::Admin, fault, Origin::unknown(caller.from));
                return turn_away(fault);
            }
            of_calls.called();
            request.extensions_mut().insert(TcpConnectInfo { local_addr: None, remote_addr: caller.from });
            answer_by_tonic(request, door.routes.clone(), &of_calls, SETTINGS.admin.call_max)
        };
        serve_calls(stream, answer, SETTINGS.admin.calls_max, &life, stopping).await;
    }
}

impl Service {
    /// The other regions, where there are any: the node takes its place before it answers operators.
    fn regions(&self) -> Option<Arc<Regions>> {
        self.shared.regions().cloned()
    }

    /// Something about the limit of that name that is in force.
    fn of_limit<T>(
        &self,
        domain: &str,
        name: &str,
        find: impl FnOnce(&Catalogue, &Active) -> T,
    ) -> Result<T, Status> {
        let wall_ns = self.shared.clock.now().wall_ns;
        let catalogue = self.shared.node.catalogue();
        let is_it = |active: &&Active| {
            let spec = &active.limit.spec;
            spec.domain == domain && spec.name == name && active.is_in_force(wall_ns)
        };
        // A limit that was replaced may still count beside its successor; the successor is meant.
        let found = catalogue.limits.iter().filter(is_it).max_by_key(|active| active.until_ns.is_none());
        let found = found.map(|active| find(&catalogue, active));
        found.ok_or_else(|| {
            Status::not_found(format!("no limit {domain}/{name} in force here: see `acequia budget list`"))
        })
    }

    /// Versions are written to the disk, so not on the thread that answers others.
    async fn order(&self, order: Order, ordered: Ordered) -> Result<Response<api::CatalogueChange>, Status> {
        let (regions, shared) = (self.regions(), Arc::clone(&self.shared));
        if regions.is_none() && shared.own_region.get().is_some() {
            // Each of these nodes follows its own file.
            let what = "nodes that share a store go by their config files: change the limit in all of them, or add `regions`";
            return Err(refusal(OrderFault::NotYet(what.to_owned())));
        }
        let done = tokio::task::spawn_blocking(move || match (&regions, shared.alone.get()) {
            (Some(regions), _) => regions.order(&order, &ordered),
            (None, Some(alone)) => alone.order(&order, &ordered),
            (None, None) => Err(OrderFault::NotYet("this node begins: ask again in a second".to_owned())),
        })
        .await;
        let outcome = done.map_err(|fault| Status::internal(fault.to_string()))?.map_err(refusal)?;
        let OrderOutcome { before, after, changes, warnings } = outcome;
        Ok(Response::new(api::CatalogueChange {
            before: status::api_version_id(before),
            after: status::api_version_id(after),
            changes,
            warnings,
        }))
    }
}

fn refusal(fault: OrderFault) -> Status {
    let what = fault.to_string();
    match fault {
        OrderFault::NotAuthority(_)
        | OrderFault::NoRole(_)
        | OrderFault::NoCatalogue(_)
        | OrderFault::NotYet(_) => Status::failed_precondition(what),
        OrderFault::NotFound(_) => Status::not_found(what),
        OrderFault::Invalid(_) => Status::invalid_argument(what),
        OrderFault::Refused(_) | OrderFault::Adopt(_) => Status::failed_precondition(what),
        OrderFault::Audit(_) => Status::unavailable(what),
    }
}

/// The cells that came most often. Their counts are multiplied by `times`.
fn counts(sketch: &Sketch, most: usize, times: u64) -> Vec<api::CellCount> {
    // A cell that has come only once has no name yet.
    let cell = |cell: &Counted| {
        let key = cell.key.as_ref()?;
        Some(api::CellCount {
            key: key.text.clone(),
            is_cut: key.is_cut,
            count: cell.count.saturating_mul(times),
            error: cell.error.saturating_mul(times),
            remaining: cell.remaining,
        })
    };
    sketch.sorted().into_iter().filter_map(cell).take(most).collect()
}

/// The author of an order, with an address, and the reason.
fn ordered(said: String, reason: String, is_dry: bool, from: Option<SocketAddr>) -> Ordered {
    let name = said.trim().to_owned();
    let who = if name.is_empty() { "somebody" } else { name.as_str() };
    let author = from.map_or_else(|| who.to_owned(), |from| format!("{who} from {from}"));
    Ordered { author, name, reason, is_dry }
}

/// When an override ends; or why that is no time.
fn end(until: &str, for_ms: u64) -> Result<Option<End>, Status> {
    match (until, for_ms) {
        ("", 0) => Ok(None),
        ("", ms) => Ok(Some(End::After(ms.saturating_mul(1_000_000)))),
        (until, 0) => {
            parse_instant_ns(until).map(|at_ns| Some(End::At(at_ns))).map_err(Status::invalid_argument)
        }
        _ => Err(Status::invalid_argument("until and for_ms both say when it ends: leave one out")),
    }
}

#[tonic::async_trait]
impl Admin for Service {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<api::NodeStatus, Status>> + Send>>;

    async fn status(&self, _: Request<api::StatusRequest>) -> Result<Response<api::NodeStatus>, Status> {
        Ok(Response::new(node_status::of(&self.shared)))
    }

    async fn watch(
        &self,
        request: Request<api::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let every = match request.into_inner().every_ms {
            0 => SETTINGS.admin.every_ms_default,
            every => every.clamp(SETTINGS.admin.every_ms_min, SETTINGS.admin.every_ms_max),
        };
        let permit = Arc::clone(&self.watches).try_acquire_owned().map_err(|_| {
            let max = SETTINGS.admin.watches_max;
            Status::resource_exhausted(format!("{max} watches are open: end one, or ask again later"))
        })?;
        let service = self.clone();
        let turns = IntervalStream::new(tokio::time::interval(Duration::from_millis(u64::from(every))));
        let all = turns.map(move |_| {
            let _held = &permit;
            Ok(node_status::of(&service.shared))
        });
        Ok(Response::new(Box::pin(all)))
    }

    async fn list_budgets(
        &self,
        _: Request<api::ListBudgetsRequest>,
    ) -> Result<Response<api::ListBudgetsResponse>, Status> {
        let catalogue = self.shared.node.catalogue();
        let budgets = catalogue.limits.iter().map(|active| api::Budget {
            domain: active.limit.spec.domain.clone(),
            name: active.limit.spec.name.clone(),
            limit_json: serde_json::to_string(&active.limit.spec).unwrap_or_default(),
            budget: node_status::budget(active),
        });
        let now = self.shared.clock.now();
        let alone = self.shared.alone.get().filter(|_| self.shared.regions().is_none());
        let differences = alone.map(|alone| alone.differences(now.wall_ns)).unwrap_or_default();
        let mut response =
            api::ListBudgetsResponse { budgets: budgets.collect(), catalogue: None, differences };
        if let (Some(regions), Some(version), Some(membership)) =
            (self.shared.regions(), self.shared.node.version(), self.shared.node.membership(now))
        {
            let specs = specs_of(&version).map_err(refusal)?;
            let named: BTreeSet<(&str, &str)> =
                specs.iter().map(|spec| (spec.domain.as_str(), spec.name.as_str())).collect();
            response.budgets.retain(|budget| named.contains(&(budget.domain.as_str(), budget.name.as_str())));
            response.catalogue = Some(status::catalogue_of(regions, &version, &membership, now));
        }
        Ok(Response::new(response))
    }

    async fn set_budget(
        &self,
        request: Request<api::SetBudgetRequest>,
    ) -> Result<Response<api::CatalogueChange>, Status> {
        let from = request.remote_addr();
        let said = request.into_inner();
        let order = Order::Budget {
            domain: said.domain,
            name: said.name,
            key: said.key.into_iter().collect(),
            numbers: said.numbers.into_iter().collect(),
            end: end(&said.until, said.for_ms)?,
        };
        self.order(order, ordered(said.author, said.reason, said.dry_run, from)).await
    }

    async fn grant(
        &self,
        request: Request<api::GrantRequest>,
    ) -> Result<Response<api::CatalogueChange>, Status> {
        let from = request.remote_addr();
        let said = request.into_inner();
        let order = Order::Grant {
            domain: said.domain,
            name: said.name,
            key: said.key.into_iter().collect(),
            units: said.units,
            for_ns: (said.for_ms > 0).then(|| said.for_ms.saturating_mul(1_000_000)),
        };
        self.order(order, ordered(said.author, said.reason, said.dry_run, from)).await
    }

    async fn reset(
        &self,
        request: Request<api::ResetRequest>,
    ) -> Result<Response<api::CatalogueChange>, Status> {
        let from = request.remote_addr();
        let said = request.into_inner();
        let key = said.key.into_iter().collect();
        let order = Order::Reset { domain: said.domain, name: said.name, key };
        self.order(order, ordered(said.author, said.reason, said.dry_run, from)).await
    }

    async fn change_region(
        &self,
        request: Request<api::ChangeRegionRequest>,
    ) -> Result<Response<api::CatalogueChange>, Status> {
        let from = request.remote_addr();
        let said = request.into_inner();
        let change = said.change();
        let api::ChangeRegionRequest { region, weight, is_fenced, certificate, .. } = said;
        let order = match change {
            Change::Add => Order::Add { region, weight: weight.max(1) },
            Change::Recover => Order::Recover { region },
            Change::Evict => Order::Evict { region, is_fenced },
            Change::Remove => Order::Remove { region },
            Change::Weight => Order::Weight { region, weight },
            Change::Revoke => Order::Revoke { certificate },
            Change::Unspecified => {
                return Err(Status::invalid_argument(
                    "no change: add, recover, evict, remove, weight or revoke",
                ));
            }
        };
        self.order(order, ordered(said.author, said.reason, said.dry_run, from)).await
    }

    async fn take_over(
        &self,
        request: Request<api::TakeOverRequest>,
    ) -> Result<Response<api::CatalogueChange>, Status> {
        let from = request.remote_addr();
        let said = request.into_inner();
        let order = Order::TakeOver { is_fenced: said.is_fenced };
        self.order(order, ordered(said.author, said.reason, said.dry_run, from)).await
    }

    async fn list_cells(
        &self,
        request: Request<api::ListCellsRequest>,
    ) -> Result<Response<api::ListCellsResponse>, Status> {
        let api::ListCellsRequest { domain, name, most } = request.into_inner();
        let most = if most == 0 { SETTINGS.admin.cells_default } else { most.min(SETTINGS.admin.cells_max) }
            as usize;
        let slot = self.of_limit(&domain, &name, |_, active| active.slot())?;
        let cells = self.shared.cells_of(slot);
        Ok(Response::new(api::ListCellsResponse {
            hottest: counts(&cells.hottest, most, SETTINGS.counts.sample),
            offenders: counts(&cells.offenders, most, 1),
            sample: SETTINGS.counts.sample as u32,
            half_life_ms: SETTINGS.counts.half_life_ns / 1_000_000,
        }))
    }

    async fn compare_candidate(
        &self,
        request: Request<api::CompareCandidateRequest>,
    ) -> Result<Response<api::CandidateReport>, Status> {
        let api::CompareCandidateRequest { domain, name } = request.into_inner();
        let found = self.of_limit(&domain, &name, |catalogue, active| {
            let live = &catalogue.limits[active.live? as usize];
            let live = (live.limit.spec.name.clone(), node_status::budget(live));
            Some((active.slot(), node_status::budget(active), live))
        })?;
        let Some((slot, candidate_budget, (live, live_budget))) = found else {
            return Err(Status::failed_precondition(format!(
                "{domain}/{name} is no candidate for a limit that is enforced: give it `mode: shadow` and `candidate_for: \
                 NAME` in the file"
            )));
        };
        let compared = self.shared.cells_of(slot).candidate;
        let [both_allow, only_candidate_denies, only_live_denies, both_deny] =
            compared.as_ref().map_or([0; 4], |compared| compared.verdicts);
        Ok(Response::new(api::CandidateReport {
            domain,
            candidate: name,
            live,
            candidate_budget,
            live_budget,
            since_wall_ns: compared.as_ref().map_or(0, |compared| compared.since_wall_ns),
            both_allow,
            only_candidate_denies,
            only_live_denies,
            both_deny,
            denied: compared.map_or_else(Vec::new, |compared| {
                counts(&compared.denied, SETTINGS.admin.cells_default as usize, 1)
            }),
        }))
    }

    async fn list_audit(
        &self,
        request: Request<api::ListAuditRequest>,
    ) -> Result<Response<api::ListAuditResponse>, Status> {
        let newest = match request.into_inner().newest {
            0 => SETTINGS.admin.audit_default,
            newest => newest,
        };
        let (regions, shared) = (self.regions(), Arc::clone(&self.shared));
        let read = tokio::task::spawn_blocking(move || match (&regions, shared.alone.get()) {
            (Some(regions), _) => regions.audit(newest as usize),
            (None, Some(alone)) => alone.audit(newest as usize),
            (None, None) => Ok(Vec::new()),
        })
        .await;
        let entries = read
            .map_err(|fault| Status::internal(fault.to_string()))?
            .map_err(|fault| Status::unavailable(format!("the audit log cannot be read: {fault}")))?;
        let version_id = |(epoch, number)| Some(api::VersionId { epoch, number });
        let entries = entries.into_iter().map(|entry| api::AuditEntry {
            wall_ns: entry.wall_ns,
            author: entry.author,
            reason: entry.reason,
            what: entry.what,
            before: version_id(entry.before),
            after: version_id(entry.after),
            changes: entry.changes,
        });
        Ok(Response::new(api::ListAuditResponse { entries: entries.collect() }))
    }

    async fn exclude(
        &self,
        request: Request<api::ExcludeRequest>,
    ) -> Result<Response<api::StoreStatus>, Status> {
        let from = request.remote_addr();
        let api::ExcludeRequest { node, for_ms, author, reason } = request.into_inner();
        let Some(region) = self.shared.own_region.get() else {
            return Err(Status::failed_precondition(NotExcluded::Alone.to_string()));
        };
        let now = self.shared.clock.now();
        let for_ns = for_ms.saturating_mul(1_000_000);
        region.exclude(&self.shared.node, &node, for_ns, now).map_err(|why| match why {
            NotExcluded::Unknown => Status::not_found(why.to_string()),
            NotExcluded::Alone | NotExcluded::Itself => Status::failed_precondition(why.to_string()),
            NotExcluded::TooLong => Status::invalid_argument(why.to_string()),
        })?;
        let author = ordered(author, String::new(), false, from).author;
        if for_ms > 0 {
            warn!(node, for_ms, author, reason, "excluded: the store grants without what this node has told");
        } else {
            warn!(node, author, reason, "waited for again");
        }
        Ok(Response::new(region.status(&self.shared.node, now)))
    }
}
