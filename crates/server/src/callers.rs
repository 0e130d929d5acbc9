//! Who calls, and what it may do: `allow` of a port.
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
    connections::Life,
    refused::Why,
};

/// The shortest token, and the longest file of one, in bytes.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_FILE_BYTES_MAX: u64 = 4_096;

/// Why a call is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TurnedAway {
    /// Nobody knows the caller.
    #[error(
        "this port knows its callers: show a certificate or a bearer token that the node's config allows"
    )]
    Unknown,
    /// The caller is known, and may not do this.
    #[error("this caller may not do this: see `may` in `allow` of the node's config")]
    Action,
    /// Nor ask about this.
    #[error("this caller may not ask for this domain: see `domains` in `allow` of the node's config")]
    Domain,
}

impl TurnedAway {
    /// As logs and metrics count it.
    pub(crate) const fn why(self) -> Why {
        match self {
            Self::Unknown => Why::Unknown,
            Self::Action | Self::Domain => Why::Forbidden,
        }
    }
}

/// Why a file has no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenFault {
    /// It cannot be read.
    #[error("cannot read {path}, which holds a token: {cause}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// It holds something else.
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

/// The callers that a port knows, as its files were when they were read. A token is known by its SHA-256: how long a comparison takes
/// tells nothing of it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Known {
    /// Who is not named below.
    others: Others,
    names: BTreeMap<String, Arc<Rights>>,
    tokens: BTreeMap<[u8; 32], Arc<Rights>>,
    /// What the files of tokens held; nothing of one that is gone.
    files: BTreeMap<PathBuf, Option<[u8; 32]>>,
    /// The certificates of their CA, where there is one: callers of another CA connect anew.
    pub(crate) client_ca: Option<CaDigest>,
}

/// What callers may do that are not named.
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

/// What a caller may do.
#[derive(Debug, PartialEq)]
pub(crate) struct Rights {
    /// Its place in the config: of several names in a certificate the first there counts.
    place: usize,
    /// Its name, or the file of its token.
    who: String,
    domains: Option<Condition>,
    /// By the number of each [`May`].
    may: u8,
}

/// The callers of a port.
#[derive(Debug, Default)]
pub(crate) struct Callers(ArcSwap<Known>);

/// Whoever is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    callers: Arc<Callers>,
    /// URIs and DNS names in its certificate; nothing where it showed none.
    names: Option<Arc<[String]>>,
    pub(crate) from: Option<SocketAddr>,
}

/// Who calls, and what the call may do: everything where nothing is here.
pub(crate) type CallRights = Option<Arc<KnownCaller>>;

/// A caller that a port knows.
#[derive(Debug)]
pub(crate) struct KnownCaller {
    rights: Arc<Rights>,
    from: Option<SocketAddr>,
}

impl KnownCaller {
    /// Where it connected from, and by what it is known.
    pub(crate) fn from(&self) -> (Option<SocketAddr>, &str) {
        (self.from, &self.rights.who)
    }

    /// By what its records are told apart from those of others.
    fn owner(&self) -> u32 {
        // Above any address that is asked from.
        u32::MAX - u32::try_from(self.rights.place).unwrap_or(0)
    }
}

impl Known {
    /// Whom `allow` names, from the files that it names; or everybody where there is none, and where
    /// there is a `client_ca`, everybody who has a certificate of it. A token whose file has gone since `before` opens nothing; one whose file cannot be
    /// used now is what it was.
    ///
    /// # Errors
    /// A file of a token that was not known before cannot be read, or holds none.
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
                    // Of two files with one token the first counts.
                    known.tokens.entry(token).or_insert_with(|| rights(path.display().to_string()));
                }
            }
        }
        Ok(Arc::new(known))
    }
}

impl Callers {
    /// Who is let in now.
    pub(crate) fn known(&self) -> Arc<Known> {
        self.0.load_full()
    }

    /// Lets in others from now on.
    pub(crate) fn replace(&self, known: Arc<Known>) {
        self.0.store(known);
    }
}

impl Caller {
    /// Somebody who connected from there, with these names in its certificate.
    pub(crate) fn new(callers: Arc<Callers>, names: Option<Vec<String>>, from: Option<SocketAddr>) -> Self {
        Self { callers, names: names.map(Arc::from), from }
    }

    /// Whose connection it is, as far as others can be told apart from him: by his address (of IPv6, the /64 that a site has), or as one of
    /// this machine. Never 0.
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

    /// What a call may do that came with these headers. A token that is known counts before a certificate.
    ///
    /// # Errors
    /// The port knows its callers, and this one is none.
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

/// Whose call it is: the known caller's, or else whoever's connection it is.
pub(crate) fn owner(rights: &CallRights, life: &Life) -> u32 {
    rights.as_ref().map_or_else(|| life.owner(), |known| known.owner())
}

/// Whether a call may do this.
///
/// # Errors
/// It may not.
pub(crate) fn may(rights: &CallRights, what: May) -> Result<(), TurnedAway> {
    match rights {
        Some(known) if known.rights.may & what.bit() == 0 => Err(TurnedAway::Action),
        _ => Ok(()),
    }
}

/// Whether a call may ask for this domain.
///
/// # Errors
/// It may not.
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
        .and_then(|file| file.take(TOKEN_FILE_BYTES_MAX + 1).read_to_end(&mut text))
        .map_err(file)?;
    let token = text.trim_ascii();
    let is_token = token.len() >= TOKEN_BYTES_MIN
        && text.len() as u64 <= TOKEN_FILE_BYTES_MAX
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
    fn a_name_counts_only_as_a_whole() {
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
    fn only_the_token_itself_opens_and_a_new_one_replaces_it() {
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
    fn without_allow_everybody_may_do_everything_or_everybody_with_a_certificate() {
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
