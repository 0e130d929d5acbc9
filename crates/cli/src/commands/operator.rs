//! Asking a node's admin service: its address, the connection, and faults.

use std::{error::Error as _, fmt, path::PathBuf, process::ExitCode, time::Duration};

use acequia_api::acequia::v1::{
    AuditEntry, CandidateReport, CompareCandidateRequest, ExcludeRequest, ListAuditRequest,
    ListBudgetsRequest, ListBudgetsResponse, ListCellsRequest, ListCellsResponse, NodeStatus, StatusRequest,
    StoreStatus, admin_client::AdminClient,
};
use acequia_client::{Bearer, Target};
use clap::Args;
use tonic::{Code, Response, Status, service::interceptor::InterceptedService, transport::Channel};

use super::{complain, console::Console, limit_path::LimitPath, people::plain, read_duration, refusal};
use crate::settings::SETTINGS;

/// The name in every node's certificate, whatever its address.
const SERVER_NAME: &str = "acequia.internal";

/// Which node operators ask, and their credentials.
#[derive(Args, Clone, Debug)]
pub(super) struct AdminAddress {
    /// The node's admin address (listen.admin); with https:// or --ca over TLS.
    #[arg(
        long,
        global = true,
        env = "ACEQUIA_ADMIN_ADDR",
        default_value = "127.0.0.1:8082",
        value_name = "HOST:PORT"
    )]
    pub(super) address: String,

    #[command(flatten)]
    credentials: Credentials,
}

/// The credentials of operators, and how long they wait for an answer.
#[derive(Args, Clone, Debug)]
pub(crate) struct Credentials {
    /// The file that holds the token that the node asks for.
    #[arg(long, global = true, env = "ACEQUIA_ADMIN_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// The certificate of the authority that signed the node's, such as ca.pem.
    #[arg(long, global = true, env = "ACEQUIA_ADMIN_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Your own certificate, where the node knows operators by theirs.
    #[arg(long, global = true, env = "ACEQUIA_ADMIN_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// The key of your certificate.
    #[arg(long, global = true, env = "ACEQUIA_ADMIN_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// The name in the node's certificate. By default: with --ca acequia.internal, otherwise the host of the
    /// address.
    #[arg(long, global = true, env = "ACEQUIA_ADMIN_SERVER_NAME", value_name = "NAME")]
    server_name: Option<String>,

    /// How long to wait for each answer, such as 250ms or 5s.
    #[arg(long, global = true, default_value = "5s", value_name = "TIME", value_parser = read_duration)]
    deadline: Duration,
}

impl AdminAddress {
    /// A client of the node. Nothing is sent before the first call.
    pub(super) fn connect(&self) -> Result<Admin, Fault> {
        self.credentials.connect(&self.address)
    }
}

impl Credentials {
    /// No credentials, for a node on loopback.
    pub(crate) const fn none(deadline: Duration) -> Self {
        Self { token_file: None, ca: None, cert: None, key: None, server_name: None, deadline }
    }

    /// A client of the node at that address. Nothing is sent before the first call.
    pub(crate) fn connect(&self, address: &str) -> Result<Admin, Fault> {
        let certificate = self.cert.clone().zip(self.key.clone());
        // Certificates of `acequia certs` have no other name.
        let by_default = || self.ca.as_ref().map(|_| SERVER_NAME.to_owned());
        let credentials = acequia_client::Credentials {
            ca: self.ca.clone(),
            certificate,
            token_file: self.token_file.clone(),
            server_name: self.server_name.clone().or_else(by_default),
        };
        let target = Target::new(address, credentials).map_err(|fault| Fault::new(refusal(fault)))?;
        let channel = target.channel(|endpoint| endpoint.connect_timeout(self.deadline));
        let client = AdminClient::with_interceptor(channel, target.bearer())
            .max_decoding_message_size(SETTINGS.commands.answer_bytes_max);
        Ok(Admin { client, address: address.to_owned(), deadline: self.deadline })
    }
}

/// A node's admin service.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) client: AdminClient<InterceptedService<Channel, Bearer>>,
    address: String,
    deadline: Duration,
}

impl Admin {
    /// The node's status.
    pub(super) async fn status(&mut self) -> Result<NodeStatus, Fault> {
        let call = self.client.status(StatusRequest {});
        wait(&self.address, self.deadline, call).await
    }

    /// The budgets of the catalogue.
    pub(super) async fn list_budgets(&mut self) -> Result<ListBudgetsResponse, Fault> {
        let call = self.client.list_budgets(ListBudgetsRequest {});
        wait(&self.address, self.deadline, call).await
    }

    /// The newest changes of the catalogue, oldest first.
    pub(super) async fn list_audit(&mut self, newest: u32) -> Result<Vec<AuditEntry>, Fault> {
        let call = self.client.list_audit(ListAuditRequest { newest });
        Ok(wait(&self.address, self.deadline, call).await?.entries)
    }

    /// The cells of a limit with the most requests at the node, and those with the most denials.
    pub(super) async fn list_cells(&mut self, limit: &LimitPath) -> Result<ListCellsResponse, Fault> {
        let LimitPath { domain, name, .. } = limit.clone();
        let call = self.client.list_cells(ListCellsRequest { domain, name, most: 0 });
        wait(&self.address, self.deadline, call).await
    }

    /// The verdicts of a candidate and its live limit.
    pub(super) async fn compare(
        &mut self,
        request: CompareCandidateRequest,
    ) -> Result<CandidateReport, Fault> {
        let call = self.client.compare_candidate(request);
        wait(&self.address, self.deadline, call).await
    }

    /// Excludes another node, or ends its exclusion.
    pub(super) async fn exclude(&mut self, request: ExcludeRequest) -> Result<StoreStatus, Fault> {
        wait(&self.address, self.deadline, self.client.exclude(request)).await
    }

    /// The node's address, and the longest wait for an answer.
    pub(crate) fn peer(&self) -> (String, Duration) {
        (self.address.clone(), self.deadline)
    }
}

/// Waits for a call, at most until the deadline.
pub(super) async fn wait<T>(
    address: &str,
    deadline: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Fault::from_status(&status, address, deadline)),
        Err(_) => Err(Fault::late(address, deadline)),
    }
}

/// Why a command did not do what it was told. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    text: String,
    /// Nobody refused: the node may have carried out the command, and may answer the next time.
    pub(super) is_silence: bool,
}

impl Fault {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_silence: false }
    }

    fn silence(text: String) -> Self {
        Self { text, is_silence: true }
    }

    /// The fault with one more sentence.
    pub(super) fn and(self, more: &str) -> Self {
        Self { text: format!("{}\n{more}", self.text), ..self }
    }

    fn late(address: &str, deadline: Duration) -> Self {
        Self::silence(format!(
            "no answer from {address} in {deadline:?}. Allow it more time with --deadline, or see whether the node is \
             overloaded or out of reach."
        ))
    }

    fn from_status(status: &Status, address: &str, deadline: Duration) -> Self {
        // An error on this side has a cause; an error from the node has none.
        if let Some(cause) = status.source() {
            return Self::silence(format!(
                "no answer from {address}: {}. Is `acequia serve` running there, and is this its admin address \
                 (listen.admin)?\nAnother node is asked with --address HOST:PORT, or with ACEQUIA_ADMIN_ADDR.",
                causes(cause)
            ));
        }
        let says = plain(status.message());
        match status.code() {
            Code::DeadlineExceeded => Self::late(address, deadline),
            Code::Unauthenticated | Code::PermissionDenied => Self::new(format!(
                "{says}\nThe node's token is given with --token-file FILE, or with ACEQUIA_ADMIN_TOKEN_FILE."
            )),
            Code::Unimplemented => Self::new(format!(
                "{address} does not know this call{}: is it the node's admin address (listen.admin), and as new as this \
                 command?",
                if says.is_empty() { String::new() } else { format!(" ({says})") }
            )),
            // The node's own message explains the error.
            Code::FailedPrecondition | Code::InvalidArgument | Code::NotFound if !says.is_empty() => {
                Self::new(says)
            }
            Code::Unavailable if !says.is_empty() => Self::silence(says),
            code => Self::silence(format!("{address} says {code:?}: {says}")),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An error and its causes, each once.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    plain(&text)
}

/// Runs an operator's command at this process's terminal, and returns the exit code.
pub(super) async fn operate(command: impl AsyncFnOnce(&mut Console<'_>) -> Result<u8, Fault>) -> ExitCode {
    match Console::of_process(command).await {
        Ok(code) => ExitCode::from(code),
        Err(fault) => complain(&fault.to_string()),
    }
}
