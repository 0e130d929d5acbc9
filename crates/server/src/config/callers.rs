//! Who may ask, and for what: `tls` and `allow` of a port.

use std::path::PathBuf;

use acequia_limits::selector::Condition;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::faults::Faults;
use crate::settings::SETTINGS;

/// The certificates of a port, in PEM files. The files are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortTls {
    /// The certificate, and the chain up to its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that sign callers' certificates; if absent, callers are asked for none.
    pub client_ca: Option<PathBuf>,
}

/// A caller, and what it may do.
#[derive(Clone, Debug, PartialEq)]
pub struct Allowed {
    /// How the caller is known.
    pub who: Who,
    /// The domains that the caller may ask for; all if absent.
    pub domains: Option<Condition>,
    /// The actions that the caller may take; all if absent.
    pub may: Option<Vec<May>>,
}

/// How a caller is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// By a URI or a DNS name in its certificate, exactly as it stands there.
    Name(String),
    /// By a bearer token: the trimmed content of a file.
    Token(PathBuf),
}

/// An action that a caller may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum May {
    /// Ask, and be charged: `Check`, `CheckStream`, Envoy's `ShouldRateLimit`, Kuadrant's `CheckRateLimit`, `/v1/check`,
    /// `/v1/authz`.
    Check,
    /// See the verdict, charging nothing.
    Peek,
    /// Give a charge back.
    Refund,
    /// Charge for the time being.
    Reserve,
    /// Settle a reservation.
    Commit,
    /// Record what was spent already.
    Report,
    /// Read `/metrics`.
    Metrics,
}

impl May {
    /// All actions, in the order of their numbers.
    pub(crate) const ALL: [Self; 7] =
        [Self::Check, Self::Peek, Self::Refund, Self::Reserve, Self::Commit, Self::Report, Self::Metrics];

    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// `tls`, as the file has it.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenTls {
    cert: PathBuf,
    key: PathBuf,
    pub(super) client_ca: Option<PathBuf>,
}

/// An entry of `allow`, as the file has it.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenAllowed {
    name: Option<String>,
    token_file: Option<PathBuf>,
    domains: Option<Vec<String>>,
    may: Option<Vec<May>>,
}

impl WrittenTls {
    pub(super) fn read(&self) -> PortTls {
        PortTls { cert: self.cert.clone(), key: self.key.clone(), client_ca: self.client_ca.clone() }
    }
}

/// Reads the callers of a port. `knows_names`: whether the port asks for certificates.
pub(super) fn read(
    port: &str,
    written: &Spanned<Vec<Spanned<WrittenAllowed>>>,
    knows_names: bool,
    faults: &mut Faults<'_>,
) -> Vec<Allowed> {
    let callers = &written.value;
    if callers.is_empty() || callers.len() > SETTINGS.bounds.callers_max {
        let max = SETTINGS.bounds.callers_max;
        let what = format!("{port}.allow names 1 to {max} callers: leave it out to let everybody in");
        faults.at(written, what);
    }
    for (place, caller) in callers.iter().enumerate() {
        let is_same = |other: &Spanned<WrittenAllowed>| {
            other.value.name == caller.value.name && other.value.token_file == caller.value.token_file
        };
        if callers[..place].iter().any(is_same) {
            faults.at(caller, format!("{port}.allow names this caller twice: write all that it may do once"));
        }
    }
    callers
        .iter()
        .filter_map(|caller| faults.take(allowed(port, &caller.value, knows_names), caller))
        .collect()
}

fn allowed(port: &str, written: &WrittenAllowed, knows_names: bool) -> Result<Allowed, String> {
    let who = match (&written.name, &written.token_file) {
        (Some(name), None) if !knows_names => {
            return Err(format!(
                "{name:?} is a name in a certificate, and {port} asks for none: set tls.client_ca, or name a token_file"
            ));
        }
        (Some(name), None) if name.is_empty() => return Err("a caller's name is empty".to_owned()),
        (Some(name), None) => Who::Name(name.clone()),
        (None, Some(path)) => Who::Token(path.clone()),
        _ => {
            return Err("a caller has either a `name` in its certificate or a `token_file`".to_owned());
        }
    };
    let domains = match &written.domains {
        None => None,
        Some(domains) if domains.is_empty() || domains.len() > SETTINGS.bounds.domains_max => {
            let max = SETTINGS.bounds.domains_max;
            return Err(format!("a caller has 1 to {max} domains: leave them out for all"));
        }
        Some(domains) => Some(Condition::new("domain", domains.iter().map(String::as_str))),
    };
    if written.may.as_ref().is_some_and(Vec::is_empty) {
        return Err("a caller that may do nothing needs no entry".to_owned());
    }
    Ok(Allowed { who, domains, may: written.may.clone() })
}
