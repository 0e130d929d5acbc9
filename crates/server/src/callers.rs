//! Who calls, and what the caller may do: `allow` of a port.
//!
//! Where a port has no `allow`, everybody who connects may do everything.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use acequia_limits::selector::Condition;
use arc_swap::ArcSwap;
use http::{HeaderMap, header};
use ring::digest::{SHA256, digest};
use tracing::error;

use crate::{
    config::{Allowed, May, Who},
    refused::{Origin, TurnedAway},
    settings::SETTINGS,
};

/// Why a file gives no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenFault {
    /// The file cannot be read.
    #[error("cannot read {path}, which holds a token: {cause}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The file holds something else.
    #[error(
        "{path} holds no token: write one line of 16 to 4096 letters, digits and signs into it",
        path = .path.display()
    )]
    Token {
        /// The file.
        path: PathBuf,
    },
}

impl TokenFault {
    /// Whether there is no such file.
    fn is_gone(&self) -> bool {
        matches!(self, Self::File { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound)
    }
}

/// The hash of the file that `client_ca` names.
pub(crate) type CaDigest = [u8; 32];

/// The callers that a port knows, as of the last reading of its files. A token is known by its SHA-256, so
/// that the time of a comparison reveals nothing about the token.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Known {
    /// The rights of callers that are not named below.
    others: Others,
    names: BTreeMap<String, Arc<Rights>>,
    tokens: BTreeMap<[u8; 32], Arc<Rights>>,
    /// The hashes of the tokens in the files; `None` for a file that is gone.
    files: BTreeMap<PathBuf, Option<[u8; 32]>>,
    /// A hash of the CA's certificates, if there is one: callers of another CA must connect anew.
    pub(crate) client_ca: Option<CaDigest>,
}

/// The rights of callers that are not named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Others {
    /// Everything.
    #[default]
    Everything,
    /// Everything, if they have a certificate.
    WithCertificate,
    /// Nothing.
    Nothing,
}

/// The rights of a caller.
#[derive(Debug, PartialEq)]
pub(crate) struct Rights {
    /// The caller's place in the config: if a certificate has several names, the first in the config counts.
    place: usize,
    /// The caller's name, or the file of its token.
    who: String,
    domains: Option<Condition>,
    /// The actions, as bits by the number of each [`May`].
    may: u8,
}

/// The callers of a port.
#[derive(Debug, Default)]
pub(crate) struct Callers(ArcSwap<Known>);

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    callers: Arc<Callers>,
    /// URIs and DNS names in the caller's certificate; `None` if it showed none.
    names: Option<Arc<[String]>>,
    pub(crate) from: Option<SocketAddr>,
}

/// The known caller and its rights; `None` if everything is allowed.
pub(crate) type CallRights = Option<Arc<KnownCaller>>;

/// A caller that a port knows.
#[derive(Debug)]
pub(crate) struct KnownCaller {
    rights: Arc<Rights>,
    from: Option<SocketAddr>,
}

impl KnownCaller {
    /// Where the caller's calls come from.
    fn origin(&self) -> Origin<'_> {
        Origin { from: self.from, who: &self.rights.who }
    }

    /// A number that tells the caller's records apart from those of others.
    fn owner(&self) -> u32 {
        // This is above any number that stands for an address.
        u32::MAX - u32::try_from(self.rights.place).unwrap_or(0)
    }
}

impl Known {
    /// The callers that `allow` names, from the files that it names. Without `allow`, everybody; or, if there
    /// is a `client_ca`, everybody with a certificate of that CA. A token opens nothing if its file has gone
    /// since `before`. If the file cannot be used for another reason, its token stays.
    ///
    /// # Errors
    /// The file of a new token cannot be read, or holds none.
    pub(crate) fn read(
        allow: Option<&[Allowed]>,
        client_ca: Option<CaDigest>,
        before: &Self,
    ) -> Result<Arc<Self>, TokenFault> {
        let others = match (allow, client_ca) {
            (Some(_), _) => Others::Nothing,
            (None, Some(_)) => Others::WithCertificate,
            (None, None) => Others::Everything,
        };
        let mut known = Self { others, client_ca, ..Self::default() };
        for (place, Allowed { who, domains, may }) in allow.unwrap_or_default().iter().enumerate() {
            let may = may.as_deref().unwrap_or(&May::ALL).iter().fold(0, |bits, may| bits | may.bit());
            let rights = |who| Arc::new(Rights { place, who, domains: domains.clone(), may });
            match who {
                Who::Name(name) => {
                    known.names.insert(name.clone(), rights(name.clone()));
                }
                Who::Token(path) => {
                    let token = match (read_token(path), before.files.get(path)) {
                        (Ok(token), _) => fingerprint(&token),
                        (Err(fault), None) => return Err(fault),
                        (Err(fault), Some(Some(token))) if !fault.is_gone() => {
                            error!(%fault, "this token stays what it was");
                            *token
                        }
                        (Err(fault), Some(_)) => {
                            error!(%fault, "this token lets nobody in any more");
                            known.files.insert(path.clone(), None);
                            continue;
                        }
                    };
                    known.files.insert(path.clone(), Some(token));
                    // If two files hold the same token, the first counts.
                    known.tokens.entry(token).or_insert_with(|| rights(path.display().to_string()));
                }
            }
        }
        Ok(Arc::new(known))
    }
}

impl Callers {
    /// The callers that are let in now.
    pub(crate) fn known(&self) -> Arc<Known> {
        self.0.load_full()
    }

    /// Replaces the callers that are let in from now on.
    pub(crate) fn replace(&self, known: Arc<Known>) {
        self.0.store(known);
    }
}

impl Caller {
    /// A caller that connected from an address, with the names in its certificate.
    pub(crate) fn new(callers: Arc<Callers>, names: Option<Vec<String>>, from: Option<SocketAddr>) -> Self {
        Self { callers, names: names.map(Arc::from), from }
    }

    /// The owner of the connection, as far as owners can be told apart: by the address (the /64 of a site for
    /// IPv6), or as one owner for all callers on this machine. Never 0.
    pub(crate) fn owner(&self) -> u32 {
        let of_64 = |ip: Ipv6Addr| {
            let [a, b, c, d, ..] = ip.segments().map(u32::from);
            ((a << 16 | b).rotate_left(7) ^ (c << 16 | d)) | 1
        };
        match self.from.map(|from| from.ip().to_canonical()) {
            Some(IpAddr::V4(ip)) => u32::from(ip).max(1),
            Some(IpAddr::V6(ip)) => of_64(ip),
            None => 1,
        }
    }

    /// The rights of a call with these headers. A known token counts before a certificate.
    ///
    /// # Errors
    /// The port knows its callers, and this is none of them.
    pub(crate) fn rights(&self, headers: &HeaderMap) -> Result<CallRights, TurnedAway> {
        let known = self.callers.0.load();
        match known.others {
            Others::Everything => return Ok(None),
            Others::WithCertificate if self.names.is_some() => return Ok(None),
            Others::WithCertificate => return Err(TurnedAway::Unknown),
            Others::Nothing => {}
        }
        let token = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let by_token = || known.tokens.get(&fingerprint(token?));
        let by_name = || {
            let named = self.names.iter().flat_map(|names| names.iter());
            named.filter_map(|name| known.names.get(name)).min_by_key(|rights| rights.place)
        };
        let rights = by_token().or_else(by_name).ok_or(TurnedAway::Unknown)?;
        Ok(Some(Arc::new(KnownCaller { rights: Arc::clone(rights), from: self.from })))
    }
}

/// The token of `Bearer TOKEN` (RFC 6750, section 2.1; the scheme in any case, RFC 9110, section 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// The owner of a call: the known caller, or else the owner of the connection.
pub(crate) fn owner(rights: &CallRights, of_connection: u32) -> u32 {
    rights.as_ref().map_or(of_connection, |known| known.owner())
}

/// Where a call with these rights comes from.
pub(crate) fn origin(rights: &CallRights) -> Origin<'_> {
    rights.as_ref().map_or(Origin::unknown(None), |known| known.origin())
}

/// Checks that a call may do this.
///
/// # Errors
/// The call may not.
pub(crate) fn may(rights: &CallRights, what: May) -> Result<(), TurnedAway> {
    match rights {
        Some(known) if known.rights.may & what.bit() == 0 => Err(TurnedAway::Action),
        _ => Ok(()),
    }
}

/// Checks that a call may ask for this domain.
///
/// # Errors
/// The call may not.
pub(crate) fn may_ask_for(rights: &CallRights, domain: &[u8]) -> Result<(), TurnedAway> {
    match rights.as_ref().and_then(|known| known.rights.domains.as_ref()) {
        Some(domains) if !domains.accepts(domain) => Err(TurnedAway::Domain),
        _ => Ok(()),
    }
}

pub(crate) fn fingerprint(token: &[u8]) -> [u8; 32] {
    digest(&SHA256, token).as_ref().try_into().expect("a digest of SHA-256 has 32 bytes")
}

/// The token that a file holds, without spaces and line ends around it.
fn read_token(path: &Path) -> Result<Vec<u8>, TokenFault> {
    use std::io::Read as _;
    let file = |cause| TokenFault::File { path: path.to_owned(), cause };
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(SETTINGS.secrets.token_file_bytes_max + 1).read_to_end(&mut text))
        .map_err(file)?;
    let token = text.trim_ascii();
    let is_token = token.len() >= SETTINGS.secrets.token_bytes_min
        && text.len() as u64 <= SETTINGS.secrets.token_file_bytes_max
        && token.iter().all(u8::is_ascii_graphic);
    if is_token { Ok(token.to_vec()) } else { Err(TokenFault::Token { path: path.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(folder: &Path) -> [Allowed; 2] {
        let token = folder.join("token");
        std::fs::write(&token, "0123456789abcdef\n").expect("written");
        [
            Allowed {
                who: Who::Name("spiffe://shop/envoy".to_owned()),
                domains: Some(Condition::new("domain", ["shop", "edge/*"])),
                may: Some(vec![May::Check]),
            },
            Allowed { who: Who::Token(token), domains: None, may: None },
        ]
    }

    fn callers(allow: &[Allowed]) -> Arc<Callers> {
        let callers = Callers::default();
        callers.replace(Known::read(Some(allow), Some([7; 32]), &Known::default()).expect("sound"));
        Arc::new(callers)
    }

    fn bearing(token: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, format!("Bearer {token}").parse().expect("ascii"))])
    }

    fn named(callers: &Arc<Callers>, names: &[&str]) -> Caller {
        Caller::new(Arc::clone(callers), Some(names.iter().map(|name| (*name).to_owned()).collect()), None)
    }

    #[test]
    fn a_callers_certificate_name_must_match_as_a_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let callers = callers(&allow(folder.path()));
        let known = |names: &[&str]| named(&callers, names).rights(&HeaderMap::new());
        let rights = known(&["other", "spiffe://shop/envoy"]).expect("known");
        for name in ["spiffe://shop/envoy2", "spiffe://shop/envo", "SPIFFE://shop/envoy", ""] {
            assert_eq!(known(&[name]).expect_err(name), TurnedAway::Unknown);
        }
        assert_eq!(known(&[]).expect_err("nobody"), TurnedAway::Unknown);
        may(&rights, May::Check).expect("allowed");
        assert_eq!(may(&rights, May::Metrics), Err(TurnedAway::Action));
        for (domain, is_allowed) in [("shop", true), ("edge/eu", true), ("edge", false), ("shop2", false)] {
            assert_eq!(may_ask_for(&rights, domain.as_bytes()).is_ok(), is_allowed, "{domain}");
        }
        let both = named(&callers, &["spiffe://shop/envoy"]);
        let rights = both.rights(&bearing("0123456789abcdef")).expect("known");
        may(&rights, May::Metrics).expect("the token's right");
        let rights = both.rights(&bearing("of somebody's session")).expect("known by name");
        may(&rights, May::Metrics).expect_err("the name's right");
    }

    #[test]
    fn only_the_exact_token_is_accepted_until_a_new_one_replaces_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let allow = allow(folder.path());
        let callers = callers(&allow);
        let caller = Caller::new(Arc::clone(&callers), None, None);
        let opens = |token: &str| caller.rights(&bearing(token)).is_ok();
        assert!(opens("0123456789abcdef"));
        for wrong in ["0123456789abcde", "0123456789abcdeg", "0123456789abcdef ", "0123456789abcdef0", ""] {
            assert!(!opens(wrong), "{wrong:?}");
        }
        let with = |header: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, header.parse().expect("ascii"))]);
            caller.rights(&headers).is_ok()
        };
        assert!(with("bearer 0123456789abcdef"), "schemes have no case");
        assert!(!with("Basic 0123456789abcdef") && !with("0123456789abcdef") && !with("Bearer"));
        let write = |text: &str| std::fs::write(folder.path().join("token"), text).expect("written");
        write("fedcba9876543210");
        callers.replace(Known::read(Some(&allow), Some([7; 32]), &callers.known()).expect("sound"));
        assert!(opens("fedcba9876543210") && !opens("0123456789abcdef"));
        for none in ["short", "", "two words of sixteen", &"x".repeat(4_097)] {
            write(none);
            Known::read(Some(&allow), Some([7; 32]), &Known::default()).expect_err("no token");
            callers.replace(Known::read(Some(&allow), Some([7; 32]), &callers.known()).expect("the old one"));
            assert!(opens("fedcba9876543210"), "the old one stays");
        }
        std::fs::remove_file(folder.path().join("token")).expect("removed");
        callers.replace(Known::read(Some(&allow), Some([7; 32]), &callers.known()).expect("without it"));
        assert!(!opens("fedcba9876543210"), "whose file is gone is let in no more");
        callers.replace(Known::read(Some(&allow), Some([7; 32]), &callers.known()).expect("as before"));
        write("0123456789abcdef");
        callers.replace(Known::read(Some(&allow), Some([7; 32]), &callers.known()).expect("it is back"));
        assert!(opens("0123456789abcdef"));
    }

    #[test]
    fn without_allow_every_caller_or_every_certificate_may_do_everything() {
        let callers = Arc::new(Callers::default());
        let rights =
            Caller::new(Arc::clone(&callers), None, None).rights(&HeaderMap::new()).expect("anybody");
        May::ALL.into_iter().for_each(|what| may(&rights, what).expect("everything"));
        may_ask_for(&rights, b"any").expect("every domain");
        callers.replace(Known::read(None, Some([7; 32]), &Known::default()).expect("no file"));
        Caller::new(Arc::clone(&callers), None, None).rights(&HeaderMap::new()).expect_err("no certificate");
        named(&callers, &[]).rights(&HeaderMap::new()).expect("a certificate without names");
    }
}
