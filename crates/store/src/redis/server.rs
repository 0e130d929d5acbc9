//! The identity of a server, and whether it is fit to keep limits.

/// The policy of a server that refuses writes when its memory is full, and so forgets nothing.
pub(super) const NO_EVICTION: &str = "noeviction";

/// A server's own description in `INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Server {
    /// The process: new at each start.
    pub(super) run_id: String,
    /// `redis_version`. Valkey reports the version of Redis that it is compatible with.
    pub(super) version: String,
    /// `master` or `slave`.
    pub(super) role: String,
    /// The id of the history that the server replicates: new whenever the server becomes a primary.
    pub(super) history: String,
    /// The policy when the server's memory is full.
    pub(super) policy: String,
}

impl Server {
    /// Reads the sections `server`, `replication` and `memory`, one after the other.
    pub(super) fn read(info: &str) -> Self {
        let field = |name: &str| {
            let mut lines = info.lines();
            lines
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        Self {
            run_id: field("run_id"),
            version: field("redis_version"),
            role: field("role"),
            history: field("master_replid"),
            policy: field("maxmemory_policy"),
        }
    }

    /// The identity that functions get: the process, and its life as a primary.
    ///
    /// The process alone is not enough. A primary that was replaced, copied its successor's state and was
    /// promoted again is the same process. It has forgotten what only it knew, and its history is another.
    pub(super) fn incarnation(&self) -> String {
        let history = self.history.get(..16).unwrap_or(&self.history);
        format!("{}.{history}", self.run_id)
    }

    /// Whether the server may forget what was spent when its memory is full.
    pub(super) fn evicts(&self) -> bool {
        self.policy != NO_EVICTION
    }

    /// Why limits must not be kept on this server; `None` if they may. `may_evict`: whether the server may forget
    /// keys when its memory is full.
    pub(super) fn unfit(&self, may_evict: bool) -> Option<String> {
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if self.run_id.is_empty() || self.role.is_empty() || major.is_none() {
            return Some("it does not say in INFO what it is: allow this user +info".to_owned());
        }
        if major < Some(7) {
            let version = &self.version;
            return Some(format!(
                "it is version {version}, without functions: run Redis 7.0, Valkey 7.2 or newer"
            ));
        }
        if self.role != "master" {
            return Some("it is a replica: only its primary may be called".to_owned());
        }
        // A server without a bound on memory forgets nothing, until somebody sets one.
        if self.evicts() && !may_evict {
            let policy = &self.policy;
            return Some(format!(
                "it forgets what was spent when its memory is full (maxmemory-policy {policy}): set noeviction"
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:0123456789abcdef\r\n\
        # Replication\r\nrole:master\r\nmaster_replid:fedcba98765432100123\r\n\
        # Memory\r\nmaxmemory:0\r\nmaxmemory_human:0B\r\nmaxmemory_policy:noeviction\r\n";

    fn server(from: &str, to: &str) -> Server {
        Server::read(&INFO.replace(from, to))
    }

    #[test]
    fn a_fit_server_is_read() {
        let server = Server::read(INFO);
        assert_eq!(server.unfit(false), None);
        assert_eq!(server.incarnation(), "0123456789abcdef.fedcba9876543210");
    }

    #[test]
    fn a_server_that_evicts_is_unfit_whether_its_memory_is_bounded_or_not() {
        for policy in ["allkeys-lru", "volatile-ttl", ""] {
            let why = server("noeviction", policy).unfit(false).expect("unfit");
            assert!(why.contains(policy) && why.contains("set noeviction"), "{why}");
        }
        assert_eq!(server("maxmemory:0", "maxmemory:1000000").unfit(false), None);
    }

    #[test]
    fn old_servers_replicas_and_silent_ones_are_unfit() {
        assert!(server("7.0.15", "6.2.14").unfit(false).expect("unfit").contains("6.2.14"));
        assert!(server("role:master", "role:slave").unfit(false).expect("unfit").contains("replica"));
        assert!(Server::read("").unfit(false).expect("unfit").contains("+info"));
    }

    #[test]
    fn a_process_that_is_primary_again_has_another_identity() {
        assert_ne!(server("fedc", "0000").incarnation(), Server::read(INFO).incarnation());
    }
}
