//! Where a node listens, and where others dial it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{
    Listen,
    faults::{Faults, line},
    written::unplaced,
};

/// `listen`, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenListen {
    #[serde(default = "grpc_default")]
    grpc: Spanned<String>,
    #[serde(default = "http_default")]
    http: Spanned<String>,
    pub(super) admin: Option<Spanned<String>>,
    pub(super) mesh: Option<Spanned<String>>,
}

impl Default for WrittenListen {
    fn default() -> Self {
        Self { grpc: grpc_default(), http: http_default(), admin: None, mesh: None }
    }
}

fn grpc_default() -> Spanned<String> {
    unplaced("127.0.0.1:8081")
}

fn http_default() -> Spanned<String> {
    unplaced("127.0.0.1:8080")
}

impl WrittenListen {
    /// The addresses. `guarded` says whether callers of the admin service need a certificate and a token.
    pub(super) fn validate(&self, guarded: bool, faults: &mut Faults<'_>) -> Listen {
        let mut read = |name, text: &Spanned<String>| faults.take(address(name, &text.value), text);
        let grpc = read("listen.grpc", &self.grpc);
        let http = read("listen.http", &self.http);
        let admin = self.admin.as_ref().and_then(|text| read("listen.admin", text));
        let mesh = self.mesh.as_ref().and_then(|text| read("listen.mesh", text));
        if let (Some(text), Some(admin)) = (&self.admin, admin)
            && !admin.ip().to_canonical().is_loopback()
            && !guarded
        {
            let what = "listen.admin is beyond loopback, where anybody could change budgets: set both `tls` \
                        and `admin_token`, or listen on an address such as 127.0.0.1:8082";
            faults.at(text, what.to_owned());
        }
        let tcp = [
            ("listen.grpc", Some(&self.grpc), grpc),
            ("listen.http", Some(&self.http), http),
            ("listen.admin", self.admin.as_ref(), admin),
        ];
        let tcp: Vec<_> =
            tcp.into_iter().filter_map(|(name, text, address)| Some((name, line(text?), address?))).collect();
        for (place, (name, line, address)) in tcp.iter().enumerate() {
            for (earlier, earlier_line, _) in tcp[..place].iter().filter(|other| clash(other.2, *address)) {
                let what = format!("{earlier} and {name} are one address: give each its own port");
                faults.add(*line.max(earlier_line), what);
            }
        }
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Listen { grpc: grpc.unwrap_or(nowhere), http: http.unwrap_or(nowhere), admin, mesh }
    }
}

/// Whether only one of two addresses can be listened to.
fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    let all = |ip: IpAddr, other: IpAddr| ip.is_unspecified() && ip.is_ipv4() == other.is_ipv4();
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || all(a.ip(), b.ip()) || all(b.ip(), a.ip()))
}

fn address(name: &str, text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{name} is an address and a port such as 127.0.0.1:8081, not {text:?}"))
}

/// Reads the place where a node is dialled: `host:port`, with the host a name, an IPv4 address or an IPv6
/// address in brackets, and the port 1 to 65535. Gives it in one form for all ways to write it.
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

/// RFC 1123, section 2.1, and underscores, which private networks use: labels between dots, the last of
/// which is no number, since that would be a mistyped address.
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
    use super::*;
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
    fn an_admin_service_is_on_loopback_or_guarded() {
        for address in ["127.0.0.1:8082", "127.9.9.9:8082", "[::1]:8082", "[::ffff:127.0.0.1]:8082"] {
            let config = accepted(&format!("{HEAD}listen: {{ admin: \"{address}\" }}\n"));
            assert_eq!(config.listen.admin, Some(address.parse().expect(address)));
            assert_eq!((config.tls, config.admin_token), (None, None));
        }
        let text = format!("{HEAD}listen: {{ admin: \"0.0.0.0:8082\" }}\ntls: c\nadmin_token: t\n");
        let config = accepted(&text);
        assert_eq!((config.tls, config.admin_token), (Some("c".into()), Some("t".into())));
    }

    #[test]
    fn free_ports_and_different_hosts_are_no_clash() {
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
