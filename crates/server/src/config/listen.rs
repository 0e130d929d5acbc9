//! Where a node listens, and where others dial it.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};
use serde_saphyr::Spanned;

use super::{
    Allowed, Listen, PortTls, Who,
    callers::{self, WrittenAllowed, WrittenTls},
    faults::{Faults, line},
    spanned::unplaced,
};
use crate::settings::SETTINGS;

/// Where a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a port; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A socket in the file system, for callers on this machine, with its mode.
    Unix(PathBuf, u32),
}

/// A port: where it is, and who may come.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    /// Where the port is.
    pub address: Address,
    /// The port's certificates; plain connections if absent.
    pub tls: Option<PortTls>,
    /// Who may do what; if absent, everybody may do everything.
    pub allow: Option<Vec<Allowed>>,
}

impl Address {
    /// Whether only this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(..) => true,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path, _) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl PortConfig {
    /// Files that only this node should read.
    pub(super) fn secret_files(&self) -> impl Iterator<Item = PathBuf> {
        let tokens = self.allow.iter().flatten().filter_map(|allowed| match &allowed.who {
            Who::Token(path) => Some(path.clone()),
            Who::Name(_) => None,
        });
        self.tls.iter().map(|tls| tls.key.clone()).chain(tokens)
    }
}

/// The guards of the admin service besides the settings of its port.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdminGuards {
    /// The folder `tls`.
    pub(super) has_tls: bool,
    /// The `admin_token`.
    pub(super) has_token: bool,
}

/// `listen`, as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenListen {
    #[serde(default = "grpc_default")]
    grpc: Spanned<WrittenPort>,
    #[serde(default = "http_default")]
    http: Spanned<WrittenPort>,
    pub(super) admin: Option<Spanned<WrittenPort>>,
    pub(super) mesh: Option<Spanned<String>>,
}

/// A port, as the file has it: an address, or an address with who may come.
pub(super) enum WrittenPort {
    Address(String),
    Guarded(Box<WrittenGuarded>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenGuarded {
    address: String,
    /// The mode of a socket in the file system, in octal digits such as "0660".
    mode: Option<String>,
    tls: Option<WrittenTls>,
    allow: Option<Spanned<Vec<Spanned<WrittenAllowed>>>>,
}

impl<'de> Deserialize<'de> for WrittenPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Port;

        impl<'de> de::Visitor<'de> for Port {
            type Value = WrittenPort;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address such as 127.0.0.1:8081, or `address` with `tls` and `allow`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WrittenPort, E> {
                Ok(WrittenPort::Address(text.to_owned()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<WrittenPort, A::Error> {
                Ok(WrittenPort::Guarded(Box::deserialize(MapAccessDeserializer::new(map))?))
            }
        }

        deserializer.deserialize_any(Port)
    }
}

impl Default for WrittenListen {
    fn default() -> Self {
        Self { grpc: grpc_default(), http: http_default(), admin: None, mesh: None }
    }
}

fn grpc_default() -> Spanned<WrittenPort> {
    unplaced(WrittenPort::Address("127.0.0.1:8081".to_owned()))
}

fn http_default() -> Spanned<WrittenPort> {
    unplaced(WrittenPort::Address("127.0.0.1:8080".to_owned()))
}

/// The most bytes in the path of a socket (`sun_path`, unix(7)), with the zero behind it.
const SOCKET_PATH_MAX: usize = 107;

impl WrittenPort {
    fn address(&self) -> &str {
        match self {
            Self::Address(text) => text,
            Self::Guarded(guarded) => &guarded.address,
        }
    }
}

/// The port; or nothing, and its faults.
fn port(name: &str, written: &Spanned<WrittenPort>, faults: &mut Faults<'_>) -> Option<PortConfig> {
    let (mode, tls, allow) = match &written.value {
        WrittenPort::Address(_) => (None, None, None),
        WrittenPort::Guarded(guarded) => {
            (guarded.mode.as_deref(), guarded.tls.as_ref(), guarded.allow.as_ref())
        }
    };
    let address = faults.take(address(name, written.value.address(), mode), written);
    let knows_names = tls.is_some_and(|tls| tls.client_ca.is_some());
    let allow = allow.map(|allow| callers::read(name, allow, knows_names, faults));
    let tls = tls.map(WrittenTls::read);
    if tls.is_some() && matches!(address, Some(Address::Unix(..))) {
        let what =
            format!("{name} is a socket in the file system, which nobody can listen in on: leave `tls` out");
        faults.at(written, what);
    }
    Some(PortConfig { address: address?, tls, allow })
}

impl WrittenListen {
    /// The ports. `beside` says what guards the admin service outside of `listen`.
    pub(super) fn validate(&self, beside: AdminGuards, faults: &mut Faults<'_>) -> Listen {
        let grpc = port("listen.grpc", &self.grpc, faults);
        let http = port("listen.http", &self.http, faults);
        let admin = self.admin.as_ref().and_then(|written| port("listen.admin", written, faults));
        let mesh = self.mesh.as_ref().and_then(|text| faults.take(dial("listen.mesh", &text.value), text));
        if let (Some(written), Some(admin)) = (&self.admin, &admin) {
            let is_guarded =
                (beside.has_tls || admin.tls.is_some()) && (beside.has_token || admin.allow.is_some());
            if !admin.address.is_local() && !is_guarded {
                let what = "listen.admin is beyond loopback, where anybody could change budgets: set both `tls` \
                            and `admin_token`, or listen on an address such as 127.0.0.1:8082";
                faults.at(written, what.to_owned());
            }
            if admin.allow.iter().flatten().any(|caller| caller.domains.is_some() || caller.may.is_some()) {
                let what = "operators may do everything: leave `domains` and `may` out of listen.admin";
                faults.at(written, what.to_owned());
            }
        }
        let ports = [
            ("listen.grpc", Some(&self.grpc), &grpc),
            ("listen.http", Some(&self.http), &http),
            ("listen.admin", self.admin.as_ref(), &admin),
        ];
        let ports: Vec<_> = ports
            .into_iter()
            .filter_map(|(name, written, port)| Some((name, line(written?), &port.as_ref()?.address)))
            .collect();
        for (place, (name, line, address)) in ports.iter().enumerate() {
            for (earlier, earlier_line, _) in ports[..place].iter().filter(|other| clash(other.2, address)) {
                let what = format!("{earlier} and {name} are one address: give each its own port");
                faults.add(*line.max(earlier_line), what);
            }
        }
        let nowhere = PortConfig {
            address: Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            tls: None,
            allow: None,
        };
        let (grpc, http) = (grpc.unwrap_or_else(|| nowhere.clone()), http.unwrap_or(nowhere));
        Listen { grpc, http, further_http: Vec::new(), admin, mesh }
    }
}

/// Whether two addresses exclude each other.
fn clash(a: &Address, b: &Address) -> bool {
    let (a, b) = match (a, b) {
        (Address::Tcp(a), Address::Tcp(b)) => (a, b),
        (Address::Unix(a, _), Address::Unix(b, _)) => return a == b,
        _ => return false,
    };
    let all = |ip: IpAddr, other: IpAddr| ip.is_unspecified() && ip.is_ipv4() == other.is_ipv4();
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || all(a.ip(), b.ip()) || all(b.ip(), a.ip()))
}

fn address(name: &str, text: &str, mode: Option<&str>) -> Result<Address, String> {
    let Some(path) = text.strip_prefix("unix:") else {
        return match mode {
            None => dial(name, text).map(Address::Tcp),
            Some(_) => {
                Err(format!("{name} has a `mode`, which only a socket such as unix:/run/acequia.sock has"))
            }
        };
    };
    if !path.starts_with('/') {
        return Err(format!("{name}: the path of a socket begins with /, such as unix:/run/acequia.sock"));
    }
    if path.len() > SOCKET_PATH_MAX {
        return Err(format!(
            "{name}: the path of a socket has at most {SOCKET_PATH_MAX} bytes, not {}",
            path.len()
        ));
    }
    let mode = match mode {
        None => SETTINGS.defaults.socket_mode,
        Some(digits) => {
            let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777);
            mode.ok_or_else(|| {
                format!("{name}: a mode is three octal digits such as \"0660\", not {digits:?}")
            })?
        }
    };
    Ok(Address::Unix(path.into(), mode))
}

fn dial(name: &str, text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{name} is an address and a port such as 127.0.0.1:8081, not {text:?}"))
}

/// Reads an address to dial, `host:port`. The host is a name, an IPv4 address or an IPv6 address in brackets;
/// the port is 1 to 65535. Returns one form for all ways to write the address.
///
/// # Errors
/// What is wrong with it, and how to write it.
pub(super) fn dialled(text: &str) -> Result<String, String> {
    let fault = || {
        format!(
            "{text:?} is nowhere to dial: write a host and a port of 1 to 65535, such as \
             eu-1.example.net:7201, 10.0.0.1:7201 or \"[fd00::1]:7201\""
        )
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(fault)?;
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port = port.parse::<u16>().ok().filter(|port| digits && *port > 0).ok_or_else(fault)?;
    let ip = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => Some(IpAddr::V6(inner.parse::<Ipv6Addr>().map_err(|_| fault())?)),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    };
    match ip.map(|ip| ip.to_canonical()) {
        Some(ip) if ip.is_unspecified() => Err(format!(
            "{text:?} is an address to listen on, not to dial: write the one under which the other regions \
             find this node"
        )),
        Some(ip) => Ok(SocketAddr::new(ip, port).to_string()),
        None if is_host_name(host) => Ok(format!("{}:{port}", host.to_ascii_lowercase())),
        None => Err(fault()),
    }
}

/// RFC 1123, section 2.1, and underscores, which private networks use: labels between dots. The last label
/// must not be a number, since that would be a mistyped address.
pub(super) fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        (1..=63).contains(&label.len())
            && label.chars().all(fits)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = |label: &str| label.bytes().all(|b| b.is_ascii_digit());
    host.len() <= 253 && host.split('.').all(is_label) && !host.rsplit('.').next().is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use acequia_limits::selector::Condition;

    use super::*;
    use crate::config::May;
    use crate::config::tests::{HEAD, accepted, refused};

    #[test]
    fn faults_of_addresses_name_their_line() {
        let listen = |rest: &str| format!("{HEAD}listen:\n  grpc: 127.0.0.1:1\n{rest}");
        let cases = [
            ("  http: 127.0.0.1:1\n", 5, "listen.grpc and listen.http are one address"),
            ("  http: 0.0.0.0:1\n", 5, "its own port"),
            ("  admin: 127.0.0.1:1\n", 5, "listen.grpc and listen.admin"),
            ("  admin: 127.0.0.1:8080\n", 5, "listen.http and listen.admin"),
            ("  http: 127.0.0.1:2\n  admin: \"[::]:2\"\n", 6, "beyond loopback"),
            ("  admin: localhost:2\n", 5, "listen.admin is an address and a port"),
            ("  mesh: 7201\n", 5, "listen.mesh is an address and a port"),
            ("  admin: 10.0.0.1:2\n", 5, "both `tls` and `admin_token`"),
            ("  admin: 10.0.0.1:2\ntls: ./certs\n", 5, "both `tls` and `admin_token`"),
            ("  admin: 10.0.0.1:2\nadmin_token: ./token\n", 5, "127.0.0.1:8082"),
            ("admin_token: ./token\n", 5, "`admin_token` without `listen.admin`"),
            ("  udp: 127.0.0.1:2\n", 5, "udp"),
        ];
        for (rest, line, word) in cases {
            refused(&listen(rest), line, word);
        }
        refused(&format!("{HEAD}listen: {{ grpc: \"127.0.0.1:8080\" }}\n"), 3, "its own port");
    }

    #[test]
    fn an_admin_port_is_accepted_on_loopback_or_with_authentication() {
        for address in ["127.0.0.1:8082", "127.9.9.9:8082", "[::1]:8082", "[::ffff:127.0.0.1]:8082"] {
            let config = accepted(&format!("{HEAD}listen: {{ admin: \"{address}\" }}\n"));
            let port =
                PortConfig { address: Address::Tcp(address.parse().expect(address)), tls: None, allow: None };
            assert_eq!(config.listen.admin, Some(port));
            assert_eq!((config.tls, config.admin_token), (None, None));
        }
        accepted(&format!(
            "{HEAD}listen: {{ admin: {{ address: \"0.0.0.0:8082\", tls: {{ cert: c, key: k }}, allow: [{{ token_file: t }}] }} }}\n"
        ));
        accepted(&format!("{HEAD}listen: {{ admin: \"unix:/run/acequia/admin.sock\" }}\n"));
        let text = format!("{HEAD}listen: {{ admin: \"0.0.0.0:8082\" }}\ntls: c\nadmin_token: t\n");
        let config = accepted(&text);
        assert_eq!((config.tls, config.admin_token), (Some("c".into()), Some("t".into())));
    }

    #[test]
    fn the_certificates_and_callers_of_a_port_are_read() {
        let config = accepted(&format!(
            "{HEAD}listen:\n  grpc:\n    address: 0.0.0.0:1\n    tls: {{ cert: tls.crt, key: tls.key, client_ca: ca.crt }}\n    \
             allow:\n    - {{ name: spiffe://shop/envoy, domains: [shop, \"edge/*\"], may: [check, peek] }}\n    \
             - {{ token_file: token }}\n  http: {{ address: \"unix:/run/acequia.sock\", mode: \"0666\" }}\n"
        ));
        let tls = PortTls { cert: "tls.crt".into(), key: "tls.key".into(), client_ca: Some("ca.crt".into()) };
        let envoy = Allowed {
            who: Who::Name("spiffe://shop/envoy".to_owned()),
            domains: Some(Condition::new("domain", ["shop", "edge/*"])),
            may: Some(vec![May::Check, May::Peek]),
        };
        let all = Allowed { who: Who::Token("token".into()), domains: None, may: None };
        assert_eq!(config.listen.grpc.tls, Some(tls));
        assert_eq!(config.listen.grpc.allow, Some(vec![envoy, all]));
        assert_eq!(config.listen.http.address, Address::Unix("/run/acequia.sock".into(), 0o666));
        let cases = [
            ("{ address: \"127.0.0.1:1\", allow: [] }", "1 to 256 callers"),
            ("{ address: \"127.0.0.1:1\", allow: [{ name: a }] }", "set tls.client_ca"),
            ("{ address: \"127.0.0.1:1\", allow: [{ token_file: t, domains: [] }] }", "1 to 64 domains"),
            ("{ address: \"127.0.0.1:1\", allow: [{ token_file: t, may: [] }] }", "may do nothing"),
            ("{ address: \"127.0.0.1:1\", allow: [{ token_file: t, may: [chek] }] }", "chek"),
            ("{ address: \"127.0.0.1:1\", allow: [{ domains: [shop] }] }", "either a `name`"),
            ("{ address: \"127.0.0.1:1\", allow: [{ name: a, token_file: t }] }", "either a `name`"),
            ("{ address: \"127.0.0.1:1\", tls: { cert: c } }", "key"),
            (
                "{ address: \"127.0.0.1:1\", allow: [{ token_file: a }, { token_file: a }] }",
                "this caller twice",
            ),
            ("{ address: \"127.0.0.1:1\", mode: \"0660\" }", "only a socket"),
            ("{ tls: { cert: c, key: k } }", "address"),
            ("\"unix:run/acequia.sock\"", "begins with /"),
            ("{ address: \"unix:/run/a.sock\", mode: \"0999\" }", "octal"),
            ("{ address: \"unix:/run/a.sock\", mode: \"1777\" }", "octal"),
            ("{ address: \"unix:/run/a.sock\", tls: { cert: c, key: k } }", "leave `tls` out"),
            ("7", "address"),
        ];
        for (port, word) in cases {
            refused(&format!("{HEAD}listen:\n  grpc: {port}\n"), 4, word);
        }
        let long = format!("\"unix:/{}\"", "x".repeat(107));
        refused(&format!("{HEAD}listen:\n  grpc: {long}\n"), 4, "at most 107 bytes");
        let twice = "listen:\n  grpc: \"unix:/run/a.sock\"\n  http: \"unix:/run/a.sock\"\n";
        refused(&format!("{HEAD}{twice}"), 5, "listen.grpc and listen.http are one address");
        let admin = "{ address: \"127.0.0.1:1\", allow: [{ token_file: t, may: [check] }] }";
        refused(&format!("{HEAD}listen:\n  admin: {admin}\n"), 4, "operators may do everything");
    }

    #[test]
    fn port_zero_and_different_hosts_do_not_clash() {
        accepted(&format!(
            "{HEAD}listen: {{ grpc: \"127.0.0.1:0\", http: \"127.0.0.1:0\", admin: \"127.0.0.1:0\" }}\n"
        ));
        accepted(&format!("{HEAD}listen: {{ grpc: \"127.0.0.1:1\", http: \"127.0.0.2:1\" }}\n"));
    }

    #[test]
    fn nodes_are_dialled_by_name_or_address() {
        for (text, form) in [
            ("127.0.0.1:7201", "127.0.0.1:7201"),
            ("[FD00::1]:1", "[fd00::1]:1"),
            ("[::ffff:10.0.0.1]:7201", "10.0.0.1:7201"),
            ("EU-1.Example.net:65535", "eu-1.example.net:65535"),
            ("acequia_eu:07201", "acequia_eu:7201"),
            ("1und1.de:1", "1und1.de:1"),
        ] {
            assert_eq!(dialled(text).as_deref(), Ok(form));
        }
        let long = format!("{}:1", ["a"; 128].join("."));
        for text in [
            "",
            ":",
            "eu-1",
            "eu-1:",
            ":7201",
            "eu-1:0",
            "eu-1:65536",
            "eu-1:+1",
            "eu-1:x",
            "eu 1:1",
            "-eu:1",
            "eu..net:1",
            "eu-1.:1",
            "fd00::1:7201",
            "[fd00::1]",
            "[eu-1]:1",
            "[fe80::1%eth0]:1",
            "10.0.0.256:1",
            "10.1:1",
            "http://eu-1:7201",
            "é:1",
            &long,
        ] {
            let fault = dialled(text).expect_err(text);
            assert!(fault.contains("10.0.0.1:7201"), "{fault}");
        }
        for text in ["0.0.0.0:7201", "[::]:7201", "[::ffff:0.0.0.0]:7201"] {
            assert!(dialled(text).expect_err(text).contains("to listen on"));
        }
    }
}
