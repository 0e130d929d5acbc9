//! `acequia certs`: a development certificate authority, and a certificate for each node.

use std::{path::PathBuf, process::ExitCode};

use acequia_mesh::{Identity, certs};
use clap::Args;

use super::{Output, SUCCESS, complain};

/// Make certificates for nodes that share limits: `acequia certs ./certs eu-1=eu us-1=us --authority eu-1`.
#[derive(Args, Clone, Debug)]
pub struct Certs {
    /// The folder. A certificate authority in it (ca.pem, ca.key) signs; otherwise one is made.
    folder: PathBuf,

    /// A node and its region.
    #[arg(required = true, value_name = "NODE=REGION", value_parser = read_identity)]
    nodes: Vec<Identity>,

    /// A node that may change limits and members for all: the `authority` of the configs, and any node that
    /// may follow it. Its certificate has the URI acequia:authority, and keeps it when it is made anew.
    #[arg(long, value_name = "NODE")]
    authority: Vec<String>,
}

impl Certs {
    /// Makes the certificates, and prints which files it wrote.
    pub fn run(self) -> ExitCode {
        let authorities: Vec<&str> = self.authority.iter().map(String::as_str).collect();
        match certs::create(&self.folder, &self.nodes, &authorities) {
            Ok(files) => Output::new().end(&text(&files, &authorities), SUCCESS),
            Err(fault) => complain(&fault.to_string()),
        }
    }
}

fn text(files: &[PathBuf], authorities: &[&str]) -> String {
    let mut text: String = files.iter().map(|file| format!("{}\n", file.display())).collect();
    if authorities.is_empty() {
        text.push_str(
            "The node that is the `authority` in the configs needs a certificate that says so: --authority NODE gives it that.\n",
        );
    }
    text.push_str(
        "Give each node its own two files and ca.pem, as `tls` in its config. Keep ca.key where no node is.\n",
    );
    text
}

fn read_identity(text: &str) -> Result<Identity, String> {
    let (node, region) = text
        .split_once('=')
        .ok_or_else(|| format!("write NODE=REGION, such as eu-1=eu, in place of {text:?}"))?;
    let identity = Identity::new(region, node);
    if identity.is_valid() {
        return Ok(identity);
    }
    Err(format!("{text:?}: names are 1 to 64 letters, digits, '-', '_' and '.'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_given_with_its_region() {
        assert_eq!(read_identity("eu-1=eu"), Ok(Identity::new("eu", "eu-1")));
        for (wrong, why) in [("eu-1", "NODE=REGION"), ("=eu", "letters"), ("a b=eu", "letters")] {
            let fault = read_identity(wrong).expect_err(wrong);
            assert!(fault.contains(why), "{fault}");
        }
    }
}
