//! `acequia import`: the limits of another rate limiter's config, as a config of ours has them.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use acequia_limits::limit::LimitSpec;
use acequia_server::{
    config::read_text,
    limitador::{LIMITADOR_DIFFERENCES, read_limits},
    ratelimit::{Difference, import, read_domain},
};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::{Output, SUCCESS, complain};

/// Print the limits of another rate limiter's config as ours, and what differs.
#[derive(Args, Clone, Debug)]
pub struct Import {
    /// Whose config.
    #[command(subcommand)]
    from: From,
}

/// The rate limiters whose configs can be read.
#[derive(Clone, Debug, Subcommand)]
enum From {
    /// Files of envoyproxy/ratelimit, the Go service.
    Envoy {
        /// The files. A domain may be in several of them.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// A limits file of limitador.
    Limitador {
        /// The file.
        file: PathBuf,
    },
}

/// The part of a config that the limits make.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    domains: BTreeMap<&'a str, WrittenDomain>,
    limits: &'a [LimitSpec],
}

#[derive(Serialize)]
struct WrittenDomain {
    negative_hits: bool,
}

impl Import {
    /// Reads the files, and prints a part of a config.
    pub fn run(self) -> ExitCode {
        let printed = match self.from {
            From::Envoy { files } => envoy(&files),
            From::Limitador { file } => limitador(&file),
        };
        match printed {
            Ok(text) => Output::new().end(&text, SUCCESS),
            Err(faults) => complain(&faults.join("\n")),
        }
    }
}

fn envoy(files: &[PathBuf]) -> Result<String, Vec<String>> {
    let mut faults = Vec::new();
    let read = |path: &PathBuf| {
        let name = path.display().to_string();
        let text = read_text(path).map_err(|cause| format!("cannot read {name}: {cause}"))?;
        read_domain(&name, &text)
    };
    let domains: Vec<_> =
        files.iter().filter_map(|path| read(path).map_err(|fault| faults.push(fault)).ok()).collect();
    if !faults.is_empty() {
        return Err(faults);
    }
    let imported = import(&domains)?;
    let domains =
        imported.domains.iter().map(|domain| (domain.as_str(), WrittenDomain { negative_hits: true }));
    let written = Written { domains: domains.collect(), limits: &imported.limits };
    let yaml = yaml(&written)?;
    let mut text = String::new();
    for Difference { limit, what } in &imported.differences {
        let _ = writeln!(text, "# differs: {limit}: {what}");
    }
    Ok(text + &yaml)
}

fn limitador(file: &Path) -> Result<String, Vec<String>> {
    let name = file.display().to_string();
    let text = read_text(file).map_err(|cause| vec![format!("cannot read {name}: {cause}")])?;
    let limits = read_limits(&name, &text)?;
    let differences: String =
        LIMITADOR_DIFFERENCES.iter().map(|what| format!("# differs: {what}\n")).collect();
    Ok(differences + &yaml(&Written { domains: BTreeMap::new(), limits: &limits })?)
}

fn yaml(written: &Written<'_>) -> Result<String, Vec<String>> {
    serde_saphyr::to_string(written).map_err(|fault| vec![format!("cannot write the limits: {fault}")])
}

#[cfg(test)]
mod tests {
    use acequia_server::config::Config;

    use super::*;

    #[test]
    fn what_is_printed_is_a_config_with_the_same_limits() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.yaml");
        let text = "
domain: shop
descriptors:
  - { key: tenant, value: '*:yes', detailed_metric: true, rate_limit: { unit: day, requests_per_unit: 5 }, metadata: { a: b } }
  - { key: tenant, rate_limit: { unlimited: true, replaces: [{ name: x }] } }
";
        std::fs::write(&file, text).expect("written");
        let printed = envoy(std::slice::from_ref(&file)).expect("limits");
        assert!(printed.starts_with("# differs: shop/tenant=*:yes: metadata"), "{printed}");
        let config = format!("region: eu\nnode: a\n{printed}");
        let config =
            Config::parse("acequia.yaml", &config).unwrap_or_else(|fault| panic!("{fault}\n{config}"));
        let domain = read_domain("a.yaml", text).expect("a config");
        let limits: Vec<LimitSpec> = config.live.limits.into_iter().map(|limit| limit.spec).collect();
        assert_eq!(limits, import(&[domain]).expect("limits").limits);
        assert!(config.live.domains["shop"].negative_hits);
    }

    #[test]
    fn a_file_of_limitador_is_printed_as_a_config() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("limits.yaml");
        let text = "- { namespace: shop, max_value: 5, seconds: 60, conditions: [\"descriptors[0].k == 'v'\"], variables: [user] }\n";
        std::fs::write(&file, text).expect("written");
        let printed = limitador(&file).expect("limits");
        let config = format!("region: eu\nnode: a\n{printed}");
        let config = Config::parse("a.yaml", &config).unwrap_or_else(|fault| panic!("{fault}\n{config}"));
        let limits: Vec<LimitSpec> = config.live.limits.into_iter().map(|limit| limit.spec).collect();
        assert_eq!(limits, read_limits("limits.yaml", text).expect("limits"));
        assert!(printed.starts_with("# differs: a condition looks"), "{printed}");
        std::fs::write(&file, text.replace("==", ">=")).expect("written");
        assert!(limitador(&file).expect_err("a fault")[0].contains("is not understood"));
    }

    #[test]
    fn every_file_that_cannot_be_read_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let bad = folder.path().join("bad.yaml");
        std::fs::write(&bad, "limits: []\n").expect("written");
        let faults = envoy(&[bad, folder.path().join("gone.yaml")]).expect_err("faults");
        assert!(faults[0].contains("bad.yaml:1: ") && faults[1].contains("cannot read"), "{faults:?}");
    }
}
