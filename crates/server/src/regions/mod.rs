//! A node among regions: the parts around the pure node that let it talk to the others.
//!
//! - `driver` waits for frames and for time, hands both to the node, and sends its answers;
//! - `authority` turns orders into versions of the catalogue;
//! - [`audit`] writes each version down;
//! - `status` shows what the node knows of the others, [`admin`] answers operators and takes orders over gRPC.
//!
//! Nothing here decides what may be spent. Such decisions are the node's, and its promise does not depend on
//! this module.

pub mod admin;
mod alone;
pub mod audit;
mod authority;
mod driver;
mod limits;
mod names;
mod order;
mod overrides;
mod seals;
mod status;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use acequia_api::acequia::v1::{NodeStatus, Share};
use acequia_limits::{LimitId, Now, limit::LimitSpec};
use acequia_mesh::{
    CertFault, Credentials, Event, Fingerprint, Identity as MeshIdentity, Mesh, MeshError, Notary, Refusals,
    Timing, certs,
};
use acequia_node::{Answer, Catalogue, ChargeId, Home, Node, PeerView, Row, regions::LOAN_TTL_NS};
use acequia_rights::{Incarnation as Identity, VersionId};
use acequia_store::{Store, StoreError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub(crate) use self::alone::{Alone, AloneParts};
pub use self::{
    audit::{Audit, AuditEntry, AuditFile},
    authority::Ordered,
    order::{Order, OrderFault, OrderOutcome},
};
use self::{authority::Authority, names::Names};
use crate::{
    chance::Chance,
    clock::Clock,
    config,
    incarnation::{self, INCARNATION},
    patience::Waiting,
    settings::SETTINGS,
    writer::Writer,
};

/// The journal's value with the key by which a peer notices this node's restart.
const RESET_KEY: &str = "reset_key";

/// Why a node cannot take its place among the regions.
#[derive(Debug, thiserror::Error)]
pub enum RegionsError {
    /// Its certificates cannot be used.
    #[error(transparent)]
    Certificates(Box<CertFault>),
    /// The certificate's key cannot sign.
    #[error(
        "the certificate's key cannot sign: {0}. Make the certificate anew with an Ed25519, ECDSA or RSA key"
    )]
    Key(String),
    /// The mesh cannot start.
    #[error(transparent)]
    Mesh(Box<MeshError>),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A value in the journal is not one of ours.
    #[error(
        "the journal's {0} cannot be read: begin with an empty `data` folder, and `acequia regions recover`"
    )]
    Value(&'static str),
    /// The audit log cannot be opened.
    #[error("cannot open the audit log: {0}. Make the `data` folder writable")]
    Audit(std::io::Error),
    /// The system refuses something else.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

impl From<CertFault> for RegionsError {
    fn from(fault: CertFault) -> Self {
        Self::Certificates(Box::new(fault))
    }
}

impl From<MeshError> for RegionsError {
    fn from(fault: MeshError) -> Self {
        Self::Mesh(Box::new(fault))
    }
}

/// A node's place among the regions.
#[derive(Debug)]
pub struct Regions {
    pub(crate) node: Arc<Node>,
    pub(crate) clock: Arc<dyn Clock>,
    store: Arc<dyn Store>,
    writer: Arc<Writer>,
    me: Identity,
    settings: config::Regions,
    names: Names,
    mesh: Mesh,
    /// Signs this node's statements, and checks the other nodes' signatures.
    notary: Arc<Notary>,
    authority: Mutex<Authority>,
    /// The limits of this node's file, to compare with the catalogue.
    file: RwLock<Vec<LimitSpec>>,
    /// The key that tags the cells if this node begins a catalogue.
    key: [u8; 16],
    certificate_expiry_s: AtomicU64,
    /// Whether a change of the file is still to be ordered.
    file_waits: AtomicBool,
    /// Requests that wait for units of other regions.
    waiting: Arc<Waiting>,
    differences: Mutex<Option<KnownDifferences>>,
}

/// A mesh that has started.
pub(crate) struct Connected {
    pub(crate) mesh: Mesh,
    /// What happens on the mesh.
    pub(crate) events: mpsc::Receiver<Event>,
}

/// How this node's file, or what a management server sends it, differs from the catalogue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Differences {
    pub(crate) count: u64,
    /// By domain: the limits with paths that the catalogue lacks.
    pub(crate) unmapped: BTreeMap<String, u64>,
}

/// The last differences that were looked for.
#[derive(Debug)]
struct KnownDifferences {
    differences: Differences,
    of: VersionId,
    at_ns: u64,
}

/// The parts that a node needs to take its place.
#[derive(Debug)]
pub(crate) struct RegionsParts<'a> {
    pub(crate) config: &'a config::Config,
    pub(crate) settings: config::Regions,
    pub(crate) me: Identity,
    pub(crate) node: Arc<Node>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) key: [u8; 16],
    pub(crate) chance: &'a Chance,
    pub(crate) audit: Audit,
    pub(crate) waiting: Arc<Waiting>,
}

/// A node that is ready to take its place among the regions, and that no other node has heard of.
#[derive(Debug)]
pub(crate) struct Joining {
    regions: Arc<Regions>,
    events: mpsc::Receiver<Event>,
}

/// Who a node among regions is.
pub(crate) struct Identified {
    pub(crate) home: Home,
    /// Whether the node was here before: its incarnation is in the journal.
    pub(crate) was_here: bool,
}

/// Reads this node's identity. A new node gets an incarnation, which the journal has once the node begins.
///
/// # Errors
/// The journal cannot be read.
pub(crate) fn identity(
    config: &config::Config,
    store: &dyn Store,
    now: Now,
) -> Result<Identified, RegionsError> {
    let kept = store.value(INCARNATION)?;
    let incarnation = match &kept {
        Some(bytes) => {
            let bytes = <[u8; 4]>::try_from(&bytes[..]).map_err(|_| RegionsError::Value(INCARNATION))?;
            u32::from_be_bytes(bytes)
        }
        None => config.incarnation.unwrap_or_else(|| incarnation::number_at(now.wall_ns)),
    };
    let (region, node) = config.numbers();
    let incarnation = Identity { member: region, node, number: incarnation };
    Ok(Identified { home: Home { incarnation, loan_ttl_ns: LOAN_TTL_NS }, was_here: kept.is_some() })
}

fn reset_key(store: &dyn Store, chance: &Chance) -> Result<[u8; 32], RegionsError> {
    if let Some(bytes) = store.value(RESET_KEY)? {
        return <[u8; 32]>::try_from(&bytes[..]).map_err(|_| RegionsError::Value(RESET_KEY));
    }
    let key: [u8; 32] = chance.draw(RESET_KEY)?;
    store.commit(&[], &[(RESET_KEY, Some(&key))])?;
    Ok(key)
}

impl Regions {
    /// Does all of taking a place that may fail. Before [`Joining::start`] nothing is sent, and the node is
    /// told nothing. `connect` starts the mesh.
    ///
    /// # Errors
    /// The certificates, the journal or the system.
    pub(crate) fn prepare<E: From<RegionsError>>(
        place: RegionsParts<'_>,
        connect: impl FnOnce(acequia_mesh::Config) -> Result<Connected, E>,
    ) -> Result<Joining, E> {
        let RegionsParts { config, settings, me, node, clock, store, writer, key, chance, audit, waiting } =
            place;
        let names = Names::new(&settings);
        node.expect_of_clocks(settings.clock.error_ns, settings.clock.drift_ppm);
        let reset_key = reset_key(&*store, chance)?;
        let credentials = credentials(config)?;
        let expires_s = expires_s(&credentials);
        let notary = Arc::new(Notary::new(&credentials).map_err(RegionsError::Key)?);
        node.seal_with(Arc::new(seals::Certified(Arc::clone(&notary))));
        let identity = mesh_identity(config);
        let peers = names.peers(&identity);
        let rng_seed = chance.mesh_seed().map_err(RegionsError::System)?;
        let timing = Timing::default();
        let mesh = acequia_mesh::Config { identity, credentials, peers, reset_key, rng_seed, timing };
        let Connected { mesh, events } = connect(mesh)?;
        let authority = Authority::new(audit, &*store).map_err(RegionsError::Store)?;
        let kept = node.version();
        let file = config.live.limits.iter().map(|limit| limit.spec.clone()).collect();
        let regions = Arc::new(Self {
            node,
            clock,
            store,
            writer,
            me,
            settings,
            names,
            mesh,
            notary,
            authority: Mutex::new(authority),
            file: RwLock::new(file),
            key,
            certificate_expiry_s: AtomicU64::new(expires_s),
            file_waits: AtomicBool::new(false),
            waiting,
            differences: Mutex::new(None),
        });
        if let Some(version) = kept {
            regions.keep_revoked(&version);
        }
        Ok(Joining { regions, events })
    }

    /// The address that the mesh listens on.
    pub fn mesh_address(&self) -> std::net::SocketAddr {
        self.mesh.local_addr()
    }

    /// Uses other certificates for new connections.
    pub(crate) fn reload_certificates(&self, config: &config::Config) -> Result<(), RegionsError> {
        let credentials = credentials(config)?;
        self.mesh.replace_credentials(&credentials)?;
        self.notary.replace(&credentials).map_err(RegionsError::Key)?;
        self.node.sign_again();
        self.certificate_expiry_s.store(expires_s(&credentials), Ordering::Relaxed);
        Ok(())
    }

    /// Fills in what this node knows of its region, the others and the catalogue.
    pub(crate) fn fill_in(&self, status: &mut NodeStatus, peers: &[PeerView], now: Now) {
        status::fill_in(self, status, peers, now);
    }

    /// Has the node of another region, `region/node`, settle a charge that it made. Says whether the node
    /// will be told.
    pub(crate) fn forward(&self, node: &str, id: ChargeId, cost: Option<u64>) -> bool {
        let identity = node.split_once('/').map(|(region, node)| MeshIdentity::new(region, node));
        let number = identity.and_then(|identity| self.names.region_of(&identity));
        number.is_some_and(|number| self.node.pass_settlement_on(number, id, cost))
    }

    /// The shares of this region in the cells that a request hits, and what it knows of the other regions'.
    pub(crate) fn shares(&self, answer: &Answer, catalogue: &Catalogue, now: Now) -> Vec<Share> {
        status::shares(self, answer, catalogue, now)
    }

    /// The refusals of the mesh since the start.
    pub(crate) fn refused(&self) -> Refusals {
        self.mesh.refused()
    }

    /// The fingerprint of this node's certificate.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.notary.fingerprint()
    }

    /// When this node's certificate expires, in seconds since 1970.
    pub(crate) fn certificate_expiry_s(&self) -> u64 {
        self.certificate_expiry_s.load(Ordering::Relaxed)
    }

    /// Whether this node has what it needs to decide.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn ready(&self) -> Result<(), String> {
        self.ready_at(self.clock.now())
    }

    /// As [`Regions::ready`], at a time.
    pub(crate) fn ready_at(&self, now: Now) -> Result<(), String> {
        status::ready(self, now)
    }

    /// Sends frames to every configured peer from now on, so that they learn of this node.
    fn meet(&self) {
        let members = self.node.version().map(|version| version.members).unwrap_or_default();
        for region in self.names.regions().filter(|region| *region != self.me.member) {
            let named = members.get(&region).map(|member| member.incarnation);
            let unknown = Identity { member: region, node: self.names.node_of(region), number: 0 };
            self.node.meet(named.unwrap_or(unknown));
        }
    }

    /// The journal's rows of a limit, for a version that brings the limit back; `None` if they cannot be
    /// read.
    fn rows(&self, limit: LimitId) -> Option<Vec<Row>> {
        let rows = self.store.rows(limit);
        rows.inspect_err(|fault| debug!(%fault, "rows of a limit cannot be read")).ok()
    }

    fn authority(&self) -> MutexGuard<'_, Authority> {
        self.authority.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The differences between this node's file and the catalogue.
    pub(crate) fn differences(&self, now: Now) -> Differences {
        let Some(version) = self.node.version() else { return Differences::default() };
        let mut known = self.differences.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |known: &&KnownDifferences| {
            known.of == version.version_id
                && now.steady_ns.saturating_sub(known.at_ns) < SETTINGS.orders.differences_ns
        };
        if let Some(known) = known.as_ref().filter(is_new) {
            return known.differences.clone();
        }
        let differences = Differences {
            count: status::differences_of(self, &version, now).len() as u64,
            unmapped: status::unmapped(self, &version),
        };
        let at_ns = now.steady_ns;
        *known = Some(KnownDifferences { differences: differences.clone(), of: version.version_id, at_ns });
        differences
    }

    fn forget_differences(&self) {
        *self.differences.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn file(&self) -> Vec<LimitSpec> {
        self.file.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Joining {
    /// The place that the node will have.
    pub(crate) fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Connects to the other regions. The future that this returns shares limits with them until `stopping`;
    /// the mesh's runtime must run it.
    pub(crate) fn start(self, stopping: CancellationToken) -> impl Future<Output = ()> + Send {
        let Self { regions, events } = self;
        regions.meet();
        async move { driver::drive(&regions, events, stopping).await }
    }
}

fn credentials(config: &config::Config) -> Result<Credentials, RegionsError> {
    // A config with regions and without `tls` is refused earlier.
    let folder = config.tls.clone().unwrap_or_default();
    Ok(certs::load(&folder, &mesh_identity(config))?)
}

fn mesh_identity(config: &config::Config) -> MeshIdentity {
    MeshIdentity::new(&config.region, &config.node)
}

fn expires_s(credentials: &Credentials) -> u64 {
    u64::try_from(credentials.expires_unix_s()).unwrap_or(0)
}
