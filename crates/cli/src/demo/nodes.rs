//! The three nodes are processes of this binary, so that a kill is a real `kill -9`.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use super::{
    DemoError,
    plan::{NAMES, REGIONS},
};
use crate::settings::SETTINGS;

/// A region's node, running or not. Dropping it kills it.
#[derive(Debug)]
pub struct NodeProcess {
    place: usize,
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl NodeProcess {
    /// Writes the config, but starts nothing.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn prepare(place: usize, folder: &Path, config: &str) -> Result<Self, DemoError> {
        let name = NAMES[place];
        let process = Self {
            place,
            program: std::env::current_exe().map_err(DemoError::System)?,
            config: folder.join(format!("{name}-1.yaml")),
            log: folder.join(format!("{name}-1.log")),
            child: None,
        };
        std::fs::write(&process.config, config).map_err(DemoError::System)?;
        Ok(process)
    }

    /// Starts the node, unless it runs.
    ///
    /// # Errors
    /// The process cannot be made.
    pub fn start(&mut self) -> Result<(), DemoError> {
        if self.child.is_some() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(&self.log).map_err(DemoError::System)?;
        let child = Command::new(&self.program)
            .arg("serve")
            .arg("--config")
            .arg(&self.config)
            // If this process is killed, its end of the pipe closes, and the node ends too.
            .arg("--until-stdin-ends")
            .stdin(Stdio::piped())
            .stdout(log.try_clone().map_err(DemoError::System)?)
            .stderr(log)
            .spawn()
            .map_err(DemoError::System)?;
        self.child = Some(child);
        Ok(())
    }

    /// Kills the node with signal 9, and waits until it is gone. Returns whether it ran.
    pub fn kill(&mut self) -> bool {
        let Some(mut child) = self.child.take() else { return false };
        // If the node has ended by itself, there is nothing to kill.
        let _ = child.kill();
        let _ = child.wait();
        true
    }

    /// Whether the node runs.
    pub fn is_running(&mut self) -> bool {
        self.ended().is_none() && self.child.is_some()
    }

    /// The exit status if the node ended by itself; `None` while it runs, or if it was killed.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if status.is_some() {
            self.child = None;
        }
        status
    }

    /// The error that says why the node does not run, with the end of its log.
    pub fn failure(&self, why: &str) -> DemoError {
        DemoError::Node {
            node: format!("{}-1", NAMES[self.place]),
            why: why.to_owned(),
            log: self.log.clone(),
            end: end_of(&self.log),
        }
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// All three nodes.
pub type Nodes = [NodeProcess; REGIONS];

/// The last lines of a file; empty if it cannot be read.
fn end_of(path: &Path) -> String {
    let read = || -> io::Result<String> {
        use std::io::{Read as _, Seek as _, SeekFrom};
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SETTINGS.stage.log_bytes_shown as u64)))?;
        let mut end = Vec::new();
        file.take(SETTINGS.stage.log_bytes_shown as u64).read_to_end(&mut end)?;
        Ok(String::from_utf8_lossy(&end).into_owned())
    };
    read().unwrap_or_default()
}
