//! The files that a node's config comes from: its own, and those of a rate limit service that it replaces.

use std::{
    io,
    path::{Path, PathBuf},
};

use acequia_limits::{Mode, limit::LimitSpec};

use crate::{
    config::{Config, ConfigError, ConfigFault, ConfigFile, Listen, PortConfig},
    ratelimit::{
        Difference, EnvironmentConfig, Folder, Imported, RatelimitDomain, XdsConfig, from_callers, import,
        kept,
    },
};

/// The config of a node that has no file of its own.
const ALONE: &str = "region: local\nnode: local\n";

/// What a node runs by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The config file. Without one, the node stands alone with defaults.
    pub config: Option<PathBuf>,
    /// A folder of configs of envoyproxy/ratelimit, whose limits come after those of the config file.
    pub ratelimit_config: Option<PathBuf>,
    /// A management server whose limits come after those of the config file.
    pub xds: Option<XdsConfig>,
    /// The node's incarnation if its journal is new, instead of one by its clock.
    pub incarnation: Option<u32>,
    /// What variables of envoyproxy/ratelimit say, if the node takes that service's place.
    pub environment: Option<EnvironmentConfig>,
}

/// A node's config, as it stands in files.
#[derive(Debug)]
pub(crate) struct Sources {
    file: Option<ConfigFile>,
    folder: Option<Folder>,
    /// Whether a management server offers limits, and what it offered last.
    takes_offers: bool,
    offered: Vec<RatelimitDomain>,
    environment: Option<EnvironmentConfig>,
}

/// A config, and what the files of the other service say beyond it.
pub(crate) struct Sourced {
    pub(crate) config: Config,
    pub(crate) differences: Vec<Difference>,
}

impl Sources {
    /// Reads the files.
    ///
    /// # Errors
    /// A file or folder cannot be read.
    pub(crate) fn open(start: &Start) -> Result<Self, UnreadSource> {
        let unread = |path: &Path| {
            let path = path.display().to_string();
            move |cause| UnreadSource { path, cause, may_pass: false }
        };
        let (file, folder) = (start.config.as_deref(), start.ratelimit_config.as_deref());
        let mut sources = Self {
            file: file.map(|path| ConfigFile::open(path).map_err(unread(path))).transpose()?,
            folder: folder.map(|path| Folder::open(path).map_err(unread(path))).transpose()?,
            takes_offers: start.xds.is_some(),
            offered: Vec::new(),
            environment: start.environment.clone(),
        };
        // A config with faults is told when it is needed.
        let data =
            if start.xds.is_some() { sources.config().ok().and_then(|read| read.config.data) } else { None };
        sources.offered = data.and_then(|folder| kept(&folder)).unwrap_or_default();
        Ok(sources)
    }

    /// Whether limits come from configs of envoyproxy/ratelimit.
    pub(crate) const fn are_imported(&self) -> bool {
        self.folder.is_some() || self.environment.is_some() || self.takes_offers
    }

    /// Whether there are limits by xDS from before the start.
    pub(crate) const fn has_kept_limits(&self) -> bool {
        !self.offered.is_empty()
    }

    /// Replaces what a management server offered last; returns what it was.
    pub(crate) fn replace_offered(&mut self, domains: Vec<RatelimitDomain>) -> Vec<RatelimitDomain> {
        std::mem::replace(&mut self.offered, domains)
    }

    /// Reads again what looks different, or everything if an operator asked. Says whether any text is new.
    ///
    /// # Errors
    /// As [`Sources::open`]. A fault that repeats is returned once, unless an operator asked.
    pub(crate) fn read_again(&mut self, is_asked: bool) -> Result<bool, UnreadSource> {
        let mut is_new = false;
        if let Some(file) = &mut self.file {
            let read = file.read_again(is_asked);
            is_new |= read.map_err(|cause| {
                let may_pass = cause.kind() == io::ErrorKind::NotFound;
                UnreadSource { path: file.path().display().to_string(), cause, may_pass }
            })?;
        }
        if let Some(folder) = &mut self.folder {
            let read = folder.read_again(is_asked);
            is_new |= read.map_err(|cause| UnreadSource {
                path: folder.path().display().to_string(),
                cause,
                may_pass: false,
            })?;
        }
        Ok(is_new)
    }

    /// The config that the files make together.
    ///
    /// # Errors
    /// Every fault in them.
    pub(crate) fn config(&self) -> Result<Sourced, ConfigError> {
        let Imported { mut limits, domains, differences } = self.imported()?;
        let environment = self.environment.as_ref();
        if environment.is_some_and(|environment| environment.limits_from_callers) {
            limits.extend(domains.iter().flat_map(|domain| from_callers(domain)));
        }
        let mode = match environment {
            Some(environment) if environment.shadow_mode => Some(Mode::Shadow),
            Some(environment) if environment.quota_mode => Some(Mode::Any),
            _ => None,
        };
        if let Some(mode) = mode {
            let denies = |limit: &&mut LimitSpec| limit.mode.denies() && limit.unlimited.is_empty();
            limits.iter_mut().filter(denies).for_each(|limit| limit.mode = mode);
        }
        let ports = self.environment.as_ref().map(Ports::read).transpose()?;
        let mut config = match &self.file {
            Some(file) => Config::parse_with(&file.path().display().to_string(), file.text(), limits)?,
            None => {
                let text = self.environment.as_ref().map_or(ALONE, |environment| &environment.text);
                Config::parse_with(ENVIRONMENT, text, limits)?
            }
        };
        if self.file.is_none() {
            config.counting = self.environment.as_ref().and_then(|environment| environment.counting.clone());
        }
        if let Some(ports) = ports {
            config.listen = ports.of(config.listen);
        }
        // Whoever moves here gives hits back as before.
        let environment = self.environment.as_ref();
        let request_metadata = environment.is_some_and(|environment| environment.request_metadata);
        for domain in domains {
            let domain = config.live.domains.entry(domain).or_default();
            domain.negative_hits = true;
            domain.request_metadata |= request_metadata;
        }
        Ok(Sourced { config, differences })
    }

    /// What the other service's config says, in files or by xDS.
    fn imported(&self) -> Result<Imported, ConfigError> {
        let (place, domains) = match &self.folder {
            Some(folder) => (folder.path().display().to_string(), folder.domains()),
            None => ("xDS".to_owned(), Ok(self.offered.clone())),
        };
        domains.and_then(|domains| import(&domains)).map_err(|faults| {
            let faults = faults.into_iter().map(|what| ConfigFault { line: 0, what }).collect();
            ConfigError { file: place, faults }
        })
    }
}

/// What faults of variables name as their file.
const ENVIRONMENT: &str = "the environment";

/// The ports of a service whose place the node takes.
struct Ports {
    grpc: PortConfig,
    http: PortConfig,
    further_http: Vec<PortConfig>,
}

impl Ports {
    /// These ports in the place of those of a file, for the callers that the file lets in.
    fn of(self, file: Listen) -> Listen {
        let Self { mut grpc, mut http, mut further_http } = self;
        grpc.allow = file.grpc.allow;
        for port in std::iter::once(&mut http).chain(&mut further_http) {
            port.allow.clone_from(&file.http.allow);
        }
        Listen { grpc, http, further_http, admin: file.admin, mesh: file.mesh }
    }

    fn read(environment: &EnvironmentConfig) -> Result<Self, ConfigError> {
        let Listen { grpc, http, .. } = Config::parse(ENVIRONMENT, &environment.text)?.listen;
        let further = environment.further_http.iter().map(|address| {
            let text = format!("region: local\nnode: local\nlisten: {{ http: {address:?} }}\n");
            Config::parse(ENVIRONMENT, &text).map(|config| config.listen.http)
        });
        Ok(Self { grpc, http, further_http: further.collect::<Result<_, _>>()? })
    }
}

/// A file or folder that cannot be read.
#[derive(Debug)]
pub(crate) struct UnreadSource {
    pub(crate) path: String,
    pub(crate) cause: io::Error,
    /// Whether an editor may be replacing the file now.
    pub(crate) may_pass: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratelimit::Environment;

    /// Who takes that service's place by a config lets in whom the config lets in.
    #[test]
    fn ports_of_variables_let_in_the_callers_of_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, token) = (folder.path().join("acequia.yaml"), folder.path().join("token"));
        let allow = |port: u16| {
            format!("{{ address: \"127.0.0.1:{port}\", allow: [{{ token_file: {} }}] }}", token.display())
        };
        let text = format!("region: eu\nnode: a\nlisten:\n  grpc: {}\n  http: {}\n", allow(1), allow(2));
        std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").expect("written");
        std::fs::write(&file, text).expect("written");
        let variables = [
            ("ACEQUIA_CONFIG", file.display().to_string()),
            ("RUNTIME_ROOT", folder.path().display().to_string()),
        ];
        std::fs::create_dir(folder.path().join("config")).expect("made");
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        let start = Environment::read(variables).expect("sound").start;
        let config = Sources::open(&start).expect("files").config().expect("a config").config;
        let Listen { grpc, http, further_http, .. } = config.listen;
        assert_eq!(
            (grpc.address.to_string(), grpc.allow.map(|all| all.len())),
            ("0.0.0.0:8081".to_owned(), Some(1))
        );
        assert!(std::iter::once(&http).chain(&further_http).all(|port| port.allow.is_some()));
    }
}
