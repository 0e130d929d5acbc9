//! Limits by xDS: a client of the management server that envoyproxy/ratelimit would ask.
//!
//! The client has a thread of its own. It asks for all resources, and each response replaces all that came before.
//! A response is acknowledged once its limits are in force; otherwise the server is told why, and the last good
//! limits stay (Envoy's xDS protocol, state of the world).

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use acequia_api::discovery::{
    DiscoveryRequest, DiscoveryResponse, Node, RATE_LIMIT_CONFIG, RateLimitConfig, RateLimitDescriptor,
    RateLimitPolicy, RpcStatus, STREAM_AGGREGATED_RESOURCES,
};
use http::uri::PathAndQuery;
use prost::Message as _;
use prost_types::{Struct, Value, value::Kind};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tracing::{info, warn};

use super::{RatelimitDescriptor, RatelimitDomain, RatelimitPolicy, RatelimitUnit};
use crate::{chance::Chance, config::FILE_BYTES_MAX, settings::SETTINGS};

/// Where limits come from by xDS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsConfig {
    /// The management server, as `host:port`.
    pub server: String,
    /// The name by which the server knows this client.
    pub node_id: String,
    /// What else the server is told.
    pub metadata: BTreeMap<String, String>,
    /// The files of a TLS connection; plain text if absent.
    pub tls: Option<XdsTls>,
    /// Whether the node starts without limits if the server has not answered yet.
    pub starts_without: bool,
    /// The first pause after a connection has failed. Pauses double up to `pause_max`.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

/// The files of a TLS connection. They are read again for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsTls {
    /// The client's certificate.
    pub cert: Option<PathBuf>,
    /// The certificate's key.
    pub key: Option<PathBuf>,
    /// Who signs the server's certificate.
    pub ca: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host's.
    pub server_name: Option<String>,
}

/// Limits that the server offers.
#[derive(Debug)]
pub(crate) struct Offer {
    /// The resources.
    pub(crate) domains: Vec<RatelimitDomain>,
    /// The response as it came, for the file.
    pub(crate) bytes: Vec<u8>,
    /// What is told of them, once they are in force or refused.
    pub(crate) said: oneshot::Sender<Result<(), String>>,
}

/// A client, on a thread of its own until this is dropped.
#[derive(Debug)]
pub(crate) struct Xds {
    offers: mpsc::Receiver<Offer>,
}

impl Xds {
    /// Starts to ask the server.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(config: XdsConfig) -> io::Result<Self> {
        let (offer, offers) = mpsc::channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("xds".to_owned());
        thread.spawn(move || {
            let client =
                Client { config, offer, accepted: String::new(), pause: Duration::ZERO, refused: None };
            runtime.block_on(client.run());
        })?;
        Ok(Self { offers })
    }

    /// Waits for the next offer. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Option<Offer> {
        self.offers.recv().await
    }

    /// Waits for the next offer, without a runtime.
    pub(crate) fn wait(&mut self) -> Option<Offer> {
        self.offers.blocking_recv()
    }
}

struct Client {
    config: XdsConfig,
    offer: mpsc::Sender<Offer>,
    /// The version that is in force; empty before the first.
    accepted: String,
    /// The next pause.
    pause: Duration,
    /// The last response that was refused, and why: the server may send it again at once.
    refused: Option<Refused>,
}

/// A response that was refused.
struct Refused {
    resources: Vec<prost_types::Any>,
    why: String,
    times: u32,
}

/// The most bytes of a fault that the server is told.
const FAULT_BYTES_MAX: usize = 4_096;

impl Client {
    /// Asks until nobody wants offers any more.
    async fn run(mut self) {
        self.pause = self.config.pause_min;
        loop {
            let begun = tokio::time::Instant::now();
            if let Err(why) = self.stream().await {
                let server = &self.config.server;
                warn!(%server, "no limits by xDS now: {why}. The last ones stay in force");
            }
            if self.offer.is_closed() {
                return;
            }
            if begun.elapsed() > self.config.pause_max {
                self.pause = self.config.pause_min;
            }
            // Between half of the pause and all of it, so that clients do not come back together.
            let chance = Chance::System.draw::<1>("pause").map_or(u8::MAX, |[byte]| byte);
            tokio::time::sleep(self.pause / 2 + self.pause * u32::from(chance) / 512).await;
            self.pause = (self.pause * 2).min(self.config.pause_max);
        }
    }

    /// One stream of responses, until it ends.
    async fn stream(&mut self) -> Result<(), String> {
        let channel = connect(&self.config).await?;
        // A server that was started anew may give an old version another meaning.
        self.accepted.clear();
        let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(FILE_BYTES_MAX);
        grpc.ready().await.map_err(|fault| fault.to_string())?;
        let (requests, stream) = mpsc::channel(2);
        // The channel has room for it.
        let _ = requests.try_send(self.request("", None));
        let codec = tonic_prost::ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
        let path = PathAndQuery::from_static(STREAM_AGGREGATED_RESOURCES);
        let stream = tonic::Request::new(ReceiverStream::new(stream));
        let responses = grpc.streaming(stream, path, codec).await.map_err(|status| said(&status))?;
        let mut responses = responses.into_inner();
        info!(server = %self.config.server, "limits come by xDS");
        while let Some(response) = responses.message().await.map_err(|status| said(&status))? {
            let answer = match self.judge(&response).await {
                None => return Ok(()),
                Some(Ok(())) => {
                    self.refused = None;
                    self.accepted.clone_from(&response.version_info);
                    self.pause = self.config.pause_min;
                    self.request(&response.nonce, None)
                }
                Some(Err(why)) => self.request(&response.nonce, Some(why)),
            };
            requests.send(answer).await.map_err(|_| "the stream is closed".to_owned())?;
        }
        Err("the server has closed the stream".to_owned())
    }

    /// Offers a response, unless it is the one that was refused last. A server may answer a refusal at once, so further
    /// refusals of one response come later and later.
    async fn judge(&mut self, response: &DiscoveryResponse) -> Option<Result<(), String>> {
        if let Some(refused) = self.refused.as_mut().filter(|refused| refused.resources == response.resources)
        {
            refused.times += 1;
            let wait = self.config.pause_min * 2_u32.saturating_pow(refused.times.min(16));
            let why = refused.why.clone();
            tokio::time::sleep(wait.min(self.config.pause_max)).await;
            return (!self.offer.is_closed()).then_some(Err(why));
        }
        let mut judged = self.offer(response).await?;
        if let Err(why) = &mut judged {
            warn!(version = %response.version_info, "limits by xDS refused: {why}. The last good ones stay");
            let end = (0..=FAULT_BYTES_MAX.min(why.len())).rev().find(|end| why.is_char_boundary(*end));
            why.truncate(end.unwrap_or(0));
            let resources = response.resources.clone();
            self.refused = Some(Refused { resources, why: why.clone(), times: 0 });
        }
        Some(judged)
    }

    /// Offers a response; `None` if nobody wants offers any more.
    async fn offer(&self, response: &DiscoveryResponse) -> Option<Result<(), String>> {
        let domains = match domains(response) {
            Ok(domains) => domains,
            Err(why) => return Some(Err(why)),
        };
        let (said, hears) = oneshot::channel();
        let bytes = response.encode_to_vec();
        self.offer.send(Offer { domains, bytes, said }).await.ok()?;
        hears.await.ok()
    }

    fn request(&self, nonce: &str, fault: Option<String>) -> DiscoveryRequest {
        let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
        let fields = self.config.metadata.iter().map(|(key, value)| (key.clone(), text(value)));
        DiscoveryRequest {
            version_info: self.accepted.clone(),
            node: Some(Node {
                id: self.config.node_id.clone(),
                metadata: Some(Struct { fields: fields.collect() }),
            }),
            resource_names: Vec::new(),
            type_url: RATE_LIMIT_CONFIG.to_owned(),
            response_nonce: nonce.to_owned(),
            error_detail: fault
                .map(|message| RpcStatus { code: tonic::Code::InvalidArgument as i32, message }),
        }
    }
}

fn said(status: &tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

async fn connect(config: &XdsConfig) -> Result<Channel, String> {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{}", config.server))
        .map_err(|fault| format!("{} is no address: {fault}", config.server))?
        .connect_timeout(SETTINGS.xds.connect_max)
        .http2_keep_alive_interval(SETTINGS.xds.ping_every)
        .keep_alive_timeout(SETTINGS.xds.connect_max)
        .keep_alive_while_idle(true);
    let endpoint = match &config.tls {
        None => endpoint,
        Some(files) => endpoint.tls_config(tls(files)?).map_err(|fault| fault.to_string())?,
    };
    endpoint.connect().await.map_err(|fault| {
        // The cause says more than the fault itself.
        let cause = std::error::Error::source(&fault).map_or_else(String::new, |cause| format!(": {cause}"));
        format!("{fault}{cause}")
    })
}

fn tls(files: &XdsTls) -> Result<ClientTlsConfig, String> {
    let read =
        |path: &PathBuf| fs::read(path).map_err(|cause| format!("cannot read {}: {cause}", path.display()));
    let mut tls = ClientTlsConfig::new();
    if let Some(ca) = &files.ca {
        tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
    }
    if let (Some(cert), Some(key)) = (&files.cert, &files.key) {
        tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    Ok(match &files.server_name {
        Some(name) => tls.domain_name(name.clone()),
        None => tls,
    })
}

/// The file of the last limits that were in force, in the folder of the journal.
const FILE: &str = "ratelimit.xds";

/// Keeps limits that are in force, for a start without the server. If that fails, such a start has older ones.
pub(crate) fn keep(folder: &Path, bytes: &[u8]) {
    let (path, new) = (folder.join(FILE), folder.join("ratelimit.xds.new"));
    let written = fs::File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, &path)
    });
    if let Err(cause) = written {
        warn!(%cause, path = %path.display(), "limits by xDS are not kept");
    }
}

/// The last limits that were in force; `None` if there are none that can be read.
pub(crate) fn kept(folder: &Path) -> Option<Vec<RatelimitDomain>> {
    let bytes = fs::read(folder.join(FILE)).ok()?;
    let response = DiscoveryResponse::decode(bytes.as_slice()).map_err(|fault| fault.to_string());
    response.and_then(|response| domains(&response)).inspect_err(|why| warn!(%why, "kept limits by xDS")).ok()
}

/// The domains that a response carries.
pub(super) fn domains(response: &DiscoveryResponse) -> Result<Vec<RatelimitDomain>, String> {
    if response.type_url != RATE_LIMIT_CONFIG {
        return Err(format!(
            "the resources are of the type {:?}, and not {RATE_LIMIT_CONFIG}",
            response.type_url
        ));
    }
    let read = |resource: &prost_types::Any| {
        if resource.type_url != RATE_LIMIT_CONFIG {
            return Err(format!("a resource is a {:?}, and not a {RATE_LIMIT_CONFIG}", resource.type_url));
        }
        let config = RateLimitConfig::decode(resource.value.as_slice())
            .map_err(|fault| format!("a resource is malformed: {fault}"))?;
        Ok(RatelimitDomain {
            source: config.name,
            domain: config.domain,
            descriptors: config.descriptors.into_iter().map(RatelimitDescriptor::from).collect(),
        })
    };
    let mut domains: Vec<RatelimitDomain> = response.resources.iter().map(read).collect::<Result<_, _>>()?;
    // The server may send them in any order, and in another one to other nodes.
    domains.sort_by(|one, other| one.source.cmp(&other.source));
    Ok(domains)
}

impl From<RateLimitDescriptor> for RatelimitDescriptor {
    fn from(message: RateLimitDescriptor) -> Self {
        Self {
            key: message.key,
            value: message.value,
            rate_limit: message.rate_limit.map(RatelimitPolicy::from),
            descriptors: message.descriptors.into_iter().map(Self::from).collect(),
            shadow_mode: message.shadow_mode,
            quota_mode: message.quota_mode,
            detailed_metric: message.detailed_metric,
            has_metadata: message.metadata.is_some(),
            ..Self::default()
        }
    }
}

impl From<RateLimitPolicy> for RatelimitPolicy {
    fn from(message: RateLimitPolicy) -> Self {
        Self {
            requests_per_unit: message.requests_per_unit,
            unit: RatelimitUnit::numbered(message.unit),
            unit_text: message.unit.to_string(),
            unlimited: message.unlimited,
            name: message.name,
            replaces: message.replaces.into_iter().map(|replaced| replaced.name).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(resources: &[(&str, Vec<u8>)]) -> DiscoveryResponse {
        let any = |(type_url, value): &(&str, Vec<u8>)| prost_types::Any {
            type_url: (*type_url).to_owned(),
            value: value.clone(),
        };
        DiscoveryResponse {
            resources: resources.iter().map(any).collect(),
            type_url: RATE_LIMIT_CONFIG.to_owned(),
            ..DiscoveryResponse::default()
        }
    }

    #[test]
    fn a_resource_becomes_a_domain() {
        let descriptor = RateLimitDescriptor {
            key: "k".to_owned(),
            rate_limit: Some(RateLimitPolicy { unit: 7, requests_per_unit: 9, ..RateLimitPolicy::default() }),
            quota_mode: true,
            ..RateLimitDescriptor::default()
        };
        let config = RateLimitConfig {
            name: "a".to_owned(),
            domain: "d".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                key: "j".to_owned(),
                descriptors: vec![descriptor],
                ..RateLimitDescriptor::default()
            }],
        };
        let read = domains(&response(&[(RATE_LIMIT_CONFIG, config.encode_to_vec())])).expect("domains");
        let [domain] = read.as_slice() else { panic!("one domain") };
        assert_eq!((domain.source.as_str(), domain.domain.as_str()), ("a", "d"));
        let nested = &domain.descriptors[0].descriptors[0];
        let policy = nested.rate_limit.as_ref().expect("a limit");
        assert_eq!((policy.unit, policy.requests_per_unit), (Some(RatelimitUnit::Week), 9));
        assert!(nested.quota_mode && !nested.shadow_mode);
        assert_eq!(domains(&response(&[])).expect("no domains"), []);
        let other = DiscoveryResponse { type_url: "type.googleapis.com/other".to_owned(), ..response(&[]) };
        assert!(domains(&other).expect_err("another type").contains("type.googleapis.com/other"));
    }

    #[test]
    fn limits_are_kept_in_a_file_and_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(kept(folder.path()), None);
        let config = RateLimitConfig { domain: "d".to_owned(), ..RateLimitConfig::default() };
        let response = response(&[(RATE_LIMIT_CONFIG, config.encode_to_vec())]);
        keep(folder.path(), &response.encode_to_vec());
        assert_eq!(kept(folder.path()), Some(domains(&response).expect("domains")));
        keep(folder.path(), &[0x12, 9]);
        assert_eq!(kept(folder.path()), None, "a file that is cut off");
    }

    #[test]
    fn what_is_no_config_is_refused_in_words() {
        let fault =
            domains(&response(&[("type.googleapis.com/other", Vec::new())])).expect_err("another type");
        assert!(fault.contains("type.googleapis.com/other"), "{fault}");
        let fault = domains(&response(&[(RATE_LIMIT_CONFIG, vec![0x0a, 9, 1])])).expect_err("cut off");
        assert!(fault.contains("malformed"), "{fault}");
        // Messages within messages, deeper than any config.
        let mut deep = RateLimitDescriptor { key: "k".to_owned(), ..RateLimitDescriptor::default() };
        for _ in 0..200 {
            deep = RateLimitDescriptor { descriptors: vec![deep], ..RateLimitDescriptor::default() };
        }
        let config = RateLimitConfig { descriptors: vec![deep], ..RateLimitConfig::default() };
        domains(&response(&[(RATE_LIMIT_CONFIG, config.encode_to_vec())])).expect_err("too deep");
    }
}
