//! The gate of a port: its certificates and the callers that it knows. Both are read again when their files
//! change.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use tracing::{error, info, warn};

use crate::{
    callers::{Caller, Callers, Known, TokenFault, fingerprint},
    config::{Address, Allowed, PortTls, Watched, Who},
    port::Port,
    tls::{self, TlsFault},
};

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GateFault {
    /// The port's certificates cannot be used.
    #[error("cannot set TLS up for listen.{port}: {cause}")]
    Tls {
        /// The port.
        port: &'static str,
        /// The fault.
        cause: TlsFault,
    },
    /// A token cannot be used.
    #[error("{cause}. It is needed for listen.{port}")]
    Token {
        /// The port.
        port: &'static str,
        /// The fault.
        cause: TokenFault,
    },
}

/// Who may come in by a port, and how.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) port: Port,
    /// Whether only this machine can connect.
    is_local: bool,
    tls: ArcSwapOption<ServerConfig>,
    callers: Arc<Callers>,
    rules: Mutex<Rules>,
    /// The callers that may come in have changed, and the open connections do not know it yet.
    has_changed: AtomicBool,
}

/// The config's rules for a port.
#[derive(Debug, Default)]
struct Rules {
    tls: Option<PortTls>,
    allow: Option<Vec<Allowed>>,
    watched: Watched,
    /// The fault of the last reading.
    fault: String,
}

/// The rules of a gate, with the files that they name read.
#[derive(Debug)]
pub(crate) struct Prepared {
    rules: Rules,
    tls: Option<Arc<ServerConfig>>,
    known: Arc<Known>,
}

impl Gate {
    /// A gate that lets everybody in.
    pub(crate) fn open(port: Port) -> Arc<Self> {
        Arc::new(Self::of(port))
    }

    fn of(port: Port) -> Self {
        Self {
            port,
            is_local: true,
            tls: ArcSwapOption::empty(),
            callers: Arc::default(),
            rules: Mutex::default(),
            has_changed: AtomicBool::new(false),
        }
    }

    /// A gate that follows the config.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn new(
        port: Port,
        address: &Address,
        tls: Option<PortTls>,
        allow: Option<Vec<Allowed>>,
    ) -> Result<Arc<Self>, GateFault> {
        let gate = Arc::new(Self { is_local: address.is_local(), ..Self::of(port) });
        gate.put(gate.prepare(tls, allow)?);
        Ok(gate)
    }

    fn prepare(&self, tls: Option<PortTls>, allow: Option<Vec<Allowed>>) -> Result<Prepared, GateFault> {
        let mut rules = Rules { tls, allow, ..Rules::default() };
        // The files' stamps are taken before the files are read: a change in between is read again.
        rules.have_changed();
        let (tls, known) = (self.read_tls(&rules)?, self.read_callers(&rules)?);
        Ok(Prepared { rules, tls, known })
    }

    /// Replaces the callers that are let in, and ends the connections that came in before.
    ///
    /// # Errors
    /// A file cannot be used: then nothing changes.
    pub(crate) fn allow(&self, allow: Option<Vec<Allowed>>) -> Result<(), GateFault> {
        let mut rules = self.lock();
        if rules.allow == allow {
            return Ok(());
        }
        let mut new = Rules { tls: rules.tls.clone(), allow, ..Rules::default() };
        self.callers.replace(self.read_callers(&new)?);
        // A file that changed meanwhile is read again soon.
        new.have_changed();
        *rules = new;
        self.has_changed.store(true, Ordering::Relaxed);
        info!(port = self.port.name(), "other callers may ask from now on");
        Ok(())
    }

    fn put(&self, prepared: Prepared) {
        let Prepared { rules, tls, known } = prepared;
        *self.lock() = rules;
        self.tls.store(tls);
        self.callers.replace(known);
    }

    /// Whether the callers that may come in have changed since the last call.
    pub(crate) fn has_changed_callers(&self) -> bool {
        self.has_changed.swap(false, Ordering::Relaxed)
    }

    /// Whether connections end when they are old. Operators' connections do not: they watch for longer and
    /// are not spread over nodes. But if a certificate lets callers in, its connection must not outlive the
    /// certificate for long.
    pub(crate) fn ages(&self) -> bool {
        self.port != Port::Admin || self.lock().tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    fn read_tls(&self, rules: &Rules) -> Result<Option<Arc<ServerConfig>>, GateFault> {
        let port = self.port.name();
        let protocols: &[&[u8]] = match self.port {
            Port::Grpc | Port::Admin => &[tls::H2],
            Port::Http => &[tls::H2, tls::HTTP_1],
        };
        let tls = rules.tls.as_ref().map(|tls| tls.read(protocols)).transpose();
        tls.map_err(|cause| GateFault::Tls { port, cause })
    }

    fn read_callers(&self, rules: &Rules) -> Result<Arc<Known>, GateFault> {
        let before = self.callers.known();
        let client_ca = rules.tls.as_ref().and_then(|tls| tls.client_ca.as_ref());
        let client_ca = client_ca.map(|path| match std::fs::read(path) {
            Ok(pem) => fingerprint(&pem),
            // The fault is reported with the certificates, which stay what they were.
            Err(_) => before.client_ca.unwrap_or_default(),
        });
        let known = Known::read(rules.allow.as_deref(), client_ca, &before);
        known.map_err(|cause| GateFault::Token { port: self.port.name(), cause })
    }

    /// Reads the files again if they have changed. A file that cannot be read changes nothing.
    pub(crate) fn look_again(&self) {
        let mut rules = self.lock();
        if !rules.have_changed() {
            return;
        }
        let (tls, known) = (self.read_tls(&rules), self.read_callers(&rules));
        let mut faults = Vec::new();
        match tls {
            Ok(tls) => self.tls.store(tls),
            Err(fault) => faults.push(fault.to_string()),
        }
        match known {
            Ok(known) => {
                if *known != *self.callers.known() {
                    self.has_changed.store(true, Ordering::Relaxed);
                }
                self.callers.replace(known);
            }
            Err(fault) => faults.push(fault.to_string()),
        }
        if faults.is_empty() {
            info!(port = self.port.name(), "certificates and tokens read again");
        } else {
            // The files are checked again next time, and a repeated fault is logged once.
            rules.watched = Watched::default();
        }
        let fault = faults.join("; ");
        if !fault.is_empty() && fault != rules.fault {
            error!(fault, "certificates and tokens not read again: the old ones stay");
        }
        rules.fault = fault;
    }

    fn lock(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The certificates for a new connection; `None` if connections are in the clear.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.load_full()
    }

    /// The caller at the other end of a connection, with the names in its certificate if it showed one.
    pub(crate) fn caller(&self, names: Option<Vec<String>>, from: Option<SocketAddr>) -> Caller {
        Caller::new(Arc::clone(&self.callers), names, from)
    }
}

/// Warns of ports for callers that other machines can reach and that are in the clear, or let everybody in.
pub(crate) fn warn_of_open_ports(gates: &[Arc<Gate>]) {
    for gate in gates.iter().filter(|gate| !gate.is_local && gate.port != Port::Admin) {
        let rules = gate.lock();
        let port = gate.port.name();
        if rules.tls.is_none() {
            warn!(
                port,
                "callers from elsewhere are not encrypted: set `tls` of this port in `listen`, or keep others from reaching it"
            );
        }
        if rules.allow.is_none() && rules.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none()) {
            warn!(
                port,
                "whoever reaches this port may ask: set `allow` of it in `listen`, or keep others from reaching it"
            );
        }
    }
}

impl Rules {
    fn have_changed(&mut self) -> bool {
        let tokens = self.allow.iter().flatten().filter_map(|allowed| match &allowed.who {
            Who::Token(path) => Some(path.as_path()),
            Who::Name(_) => None,
        });
        let files: Vec<&Path> = self.tls.iter().flat_map(PortTls::files).chain(tokens).collect();
        self.watched.have_changed(&files)
    }
}
