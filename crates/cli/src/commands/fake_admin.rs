//! An admin service that records its requests, for the tests of the operators' commands.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
};

use acequia_api::acequia::v1::{
    AuditEntry, Budget, CandidateReport, Catalogue, CatalogueChange, CellCount, ChangeRegionRequest,
    CompareCandidateRequest, ExcludeRequest, ExcludedNode, GrantRequest, LimitStatus, ListAuditRequest,
    ListAuditResponse, ListBudgetsRequest, ListBudgetsResponse, ListCellsRequest, ListCellsResponse,
    NodeStatus, ResetRequest, SetBudgetRequest, StatusRequest, StoreStatus, TakeOverRequest, WatchRequest,
    admin_server::{Admin, AdminServer},
    limit_status,
};
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt as _, wrappers::TcpListenerStream};
use tonic::{
    Request, Response, Status,
    transport::{Identity, Server, ServerTlsConfig},
};

use super::catalogue::examples::{pending, settled, version_id};

/// A request to the node; requests are kept in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Asked {
    Status,
    Budgets,
    Audit(u32),
    Cells(ListCellsRequest),
    Candidate(CompareCandidateRequest),
    Budget(SetBudgetRequest),
    Grant(GrantRequest),
    Reset(ResetRequest),
    Region(ChangeRegionRequest),
    TakeOver(TakeOverRequest),
    Exclude(ExcludeRequest),
}

/// The authority's node eu-1, at version 1.7.
#[derive(Debug, Default)]
pub(super) struct FakeAdmin {
    /// The token that every call must have; `None` if no token is needed.
    pub(super) token: Option<&'static str>,
    /// The warnings about orders.
    pub(super) warnings: Vec<String>,
    /// The failure of every order, dry or not.
    pub(super) refusal: Option<Status>,
    /// The failure of orders that are no dry runs.
    pub(super) failure: Option<Status>,
    /// After this many status requests an order is effective everywhere.
    pub(super) looks_until_effective: usize,
    /// How many of the first status requests get no answer.
    pub(super) silent_looks: usize,
    pub(super) asked: Mutex<Vec<Asked>>,
}

impl FakeAdmin {
    /// Serves it on a free port of this machine.
    pub(super) async fn serve(self, identity: Option<Identity>) -> (SocketAddr, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let node = Arc::new(self);
        let mut server = Server::builder();
        if let Some(identity) = identity {
            server = server.tls_config(ServerTlsConfig::new().identity(identity)).expect("a certificate");
        }
        let router = server.add_service(AdminServer::from_arc(node.clone()));
        tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
        (address, node)
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    /// The number of orders that were no dry runs.
    fn orders(&self) -> u64 {
        let asked = self.asked();
        let orders = asked.iter().filter(|asked| match asked {
            Asked::Budget(request) => !request.dry_run,
            Asked::Grant(request) => !request.dry_run,
            Asked::Reset(request) => !request.dry_run,
            Asked::Region(request) => !request.dry_run,
            Asked::TakeOver(request) => !request.dry_run,
            Asked::Exclude(_) => true,
            Asked::Status | Asked::Budgets | Asked::Audit(_) | Asked::Cells(_) | Asked::Candidate(_) => false,
        });
        orders.count() as u64
    }

    fn looks(&self) -> usize {
        self.asked().iter().filter(|asked| **asked == Asked::Status).count()
    }

    fn take<T>(&self, request: Request<T>, asked: impl FnOnce(T) -> Asked) -> Result<(), Status> {
        let brought = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        if let Some(token) = self.token
            && brought != Some(&format!("Bearer {token}"))
        {
            return Err(Status::unauthenticated("the token is not the node's"));
        }
        self.asked.lock().expect("no panic").push(asked(request.into_inner()));
        Ok(())
    }

    fn change(&self, dry_run: bool) -> Result<Response<CatalogueChange>, Status> {
        let failure = if dry_run { &None } else { &self.failure };
        if let Some(refusal) = self.refusal.as_ref().or(failure.as_ref()) {
            return Err(refusal.clone());
        }
        Ok(Response::new(CatalogueChange {
            before: Some(version_id(7)),
            after: Some(version_id(if dry_run { 7 } else { 8 })),
            changes: vec!["as ordered".to_owned()],
            warnings: self.warnings.clone(),
        }))
    }

    fn catalogue(&self) -> Catalogue {
        match self.orders() {
            0 => settled(),
            _ if self.looks() >= self.looks_until_effective => {
                Catalogue { requested: Some(version_id(8)), effective: Some(version_id(8)), ..settled() }
            }
            _ => pending(),
        }
    }
}

#[tonic::async_trait]
impl Admin for FakeAdmin {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<NodeStatus, Status>> + Send>>;

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<NodeStatus>, Status> {
        self.take(request, |_| Asked::Status)?;
        if self.looks() <= self.silent_looks {
            return Err(Status::unavailable("the node is starting"));
        }
        Ok(Response::new(NodeStatus {
            region: "eu".to_owned(),
            node: "eu-1".to_owned(),
            ready: true,
            catalogue: Some(self.catalogue()),
            ..NodeStatus::default()
        }))
    }

    /// Sends at once what a node would send over the next second, in which it admits 40 units.
    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.take(request, |_| Asked::Status)?;
        let catalogue = self.catalogue();
        let status = move |tenth: u64| NodeStatus {
            region: "eu".to_owned(),
            node: "eu-1".to_owned(),
            ready: true,
            catalogue: Some(catalogue.clone()),
            uptime_ns: (50 + tenth) * 100_000_000,
            limits: vec![LimitStatus {
                domain: "shop".to_owned(),
                name: "per-key".to_owned(),
                budget: "token_bucket 60/s burst 120".to_owned(),
                kind: limit_status::Kind::Rate.into(),
                rate_milli: 60_000,
                admitted_units: 1_000 + 4 * tenth,
                unit: "tokens".to_owned(),
                ..LimitStatus::default()
            }],
            ..NodeStatus::default()
        };
        let statuses = tokio_stream::iter((0..=10).map(move |tenth| Ok(status(tenth))));
        // After these no message comes, but the stream stays open.
        Ok(Response::new(Box::pin(statuses.chain(tokio_stream::pending()))))
    }

    async fn list_budgets(
        &self,
        request: Request<ListBudgetsRequest>,
    ) -> Result<Response<ListBudgetsResponse>, Status> {
        self.take(request, |_| Asked::Budgets)?;
        let per_key = Budget {
            domain: "shop".to_owned(),
            name: "per-key".to_owned(),
            limit_json: r#"{"by":["api_key"]}"#.to_owned(),
            budget: "token_bucket 60/s burst 120".to_owned(),
        };
        Ok(Response::new(ListBudgetsResponse {
            budgets: vec![per_key],
            catalogue: Some(self.catalogue()),
            differences: Vec::new(),
        }))
    }

    async fn set_budget(
        &self,
        request: Request<SetBudgetRequest>,
    ) -> Result<Response<CatalogueChange>, Status> {
        let dry_run = request.get_ref().dry_run;
        self.take(request, Asked::Budget)?;
        self.change(dry_run)
    }

    async fn grant(&self, request: Request<GrantRequest>) -> Result<Response<CatalogueChange>, Status> {
        let dry_run = request.get_ref().dry_run;
        self.take(request, Asked::Grant)?;
        self.change(dry_run)
    }

    async fn reset(&self, request: Request<ResetRequest>) -> Result<Response<CatalogueChange>, Status> {
        let dry_run = request.get_ref().dry_run;
        self.take(request, Asked::Reset)?;
        self.change(dry_run)
    }

    async fn change_region(
        &self,
        request: Request<ChangeRegionRequest>,
    ) -> Result<Response<CatalogueChange>, Status> {
        let dry_run = request.get_ref().dry_run;
        self.take(request, Asked::Region)?;
        self.change(dry_run)
    }

    async fn take_over(
        &self,
        request: Request<TakeOverRequest>,
    ) -> Result<Response<CatalogueChange>, Status> {
        let dry_run = request.get_ref().dry_run;
        self.take(request, Asked::TakeOver)?;
        self.change(dry_run)
    }

    async fn exclude(&self, request: Request<ExcludeRequest>) -> Result<Response<StoreStatus>, Status> {
        let ExcludeRequest { node, for_ms, .. } = request.get_ref().clone();
        self.take(request, Asked::Exclude)?;
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let excluded = Some(ExcludedNode { node, left_ms: for_ms }).filter(|_| for_ms > 0);
        Ok(Response::new(StoreStatus { excluded: excluded.into_iter().collect(), ..store() }))
    }

    async fn list_cells(
        &self,
        request: Request<ListCellsRequest>,
    ) -> Result<Response<ListCellsResponse>, Status> {
        self.take(request, Asked::Cells)?;
        let cell =
            |key: &str, count| CellCount { key: key.to_owned(), count, error: 1, ..CellCount::default() };
        Ok(Response::new(ListCellsResponse {
            hottest: vec![cell("api_key=k1", 640), cell("api_key=k2", 64)],
            offenders: vec![cell("api_key=k3", 7)],
            sample: 64,
            half_life_ms: 60_000,
        }))
    }

    async fn compare_candidate(
        &self,
        request: Request<CompareCandidateRequest>,
    ) -> Result<Response<CandidateReport>, Status> {
        let name = request.get_ref().name.clone();
        self.take(request, Asked::Candidate)?;
        Ok(Response::new(CandidateReport { candidate: name, both_allow: 7, ..CandidateReport::default() }))
    }

    async fn list_audit(
        &self,
        request: Request<ListAuditRequest>,
    ) -> Result<Response<ListAuditResponse>, Status> {
        self.take(request, |request| Asked::Audit(request.newest))?;
        let entry = AuditEntry {
            wall_ns: 1_795_305_353_000_000_000,
            author: "ana@127.0.0.1".to_owned(),
            what: "budget set shop/per-key rate=100/s".to_owned(),
            before: Some(version_id(6)),
            after: Some(version_id(7)),
            ..AuditEntry::default()
        };
        Ok(Response::new(ListAuditResponse { entries: vec![entry] }))
    }
}

/// A store of three nodes. One node has not told what it holds of a few groups.
pub(super) fn store() -> StoreStatus {
    let nodes = ["eu-1", "eu-2", "eu-3"].map(str::to_owned).to_vec();
    StoreStatus { nodes, groups: 1_024, granting: 1_000, lost: 0, excluded: Vec::new() }
}
