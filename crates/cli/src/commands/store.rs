//! `acequia store`: shows the store that the nodes of a region share, as a node sees it, and excludes nodes
//! that are gone.

use std::{process::ExitCode, time::Duration};

use acequia_api::acequia::v1::{ExcludeRequest, StoreStatus};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::{
    NOT_DONE, SUCCESS,
    console::Console,
    grant::whole_ms,
    json_line,
    operator::{AdminAddress, Fault, operate},
    people::{Colour, Paint, duration, plain},
    read_duration,
};

/// The store that the nodes of a region share: its state as a node sees it; exclude a node that is gone.
///
/// Exits with 0 if all pools of the store grant, 1 if some do not or the node refused, 2 if nobody could be
/// asked.
#[derive(Args, Clone, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  acequia store                                               how it is, as one node sees it
  acequia store exclude eu-3 --for 10m --reason 'its host burned down'
  acequia store wait-for eu-3                                 eu-3 is back"
)]
pub struct Store {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    shown: Shown,
}

#[derive(Args, Clone, Debug)]
struct Shown {
    #[command(flatten)]
    address: AdminAddress,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Exclude a node that is gone. After the store has forgotten something, its pools then grant without
    /// that node's report.
    ///
    /// What the node may hold counts as spent. Nothing is granted until its leases are over, in little more
    /// than a minute, and windows that begin before that grant nothing more. It is enough to ask one running
    /// node. The exclusion lasts until its time is over, or the asked node restarts. When the excluded node
    /// comes back, it must not reach a replaced store server that still runs. That server would grant it
    /// units that others have by then.
    #[command(alias = "leave-out")]
    Exclude(Exclude),
    /// Wait again for a node that was excluded.
    WaitFor(WaitFor),
}

#[derive(Args, Clone, Debug)]
struct Exclude {
    /// The node that is gone.
    #[arg(value_name = "NODE")]
    node: String,

    /// For how long, such as 10m or 2h: up to a day.
    #[arg(long = "for", default_value = "10m", value_name = "TIME", value_parser = read_duration)]
    time: Duration,

    /// Ask for no confirmation: that node runs nowhere.
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    said: Said,
}

#[derive(Args, Clone, Debug)]
struct WaitFor {
    /// The node that is back.
    #[arg(value_name = "NODE")]
    node: String,

    #[command(flatten)]
    said: Said,
}

#[derive(Args, Clone, Debug)]
struct Said {
    /// Who orders it, for the log.
    #[arg(long, env = "USER", default_value = "", hide_default_value = true, value_name = "NAME")]
    author: String,

    /// The reason, for the log.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    shown: Shown,
}

impl Store {
    /// Asks, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        operate(async |console| self.carry_out(console).await).await
    }

    pub(super) async fn carry_out(&self, console: &mut Console<'_>) -> Result<u8, Fault> {
        match &self.command {
            None => {
                let status = self.shown.address.connect()?.status().await?;
                let store = status.store.ok_or_else(|| {
                    Fault::new(
                        "this node shares its limits with no other node of its region: there is no store",
                    )
                })?;
                self.shown.tell(&store, console)
            }
            Some(Command::Exclude(exclude)) => exclude.carry_out(console).await,
            Some(Command::WaitFor(WaitFor { node, said })) => said.tell(node, 0, console).await,
        }
    }
}

impl Exclude {
    async fn carry_out(&self, console: &mut Console<'_>) -> Result<u8, Fault> {
        let node = plain(&self.node);
        if !self.yes {
            if !console.has_person() {
                return Err(Fault::new(
                    "nothing was changed: this is to be confirmed, and nobody can be asked here. --yes confirms it",
                ));
            }
            console.remark(&format!(
                "If {node} runs, and reaches another server of the store than the other nodes do, limits may be exceeded. Make sure \
                 that its process has ended, or that its machine is off.\n"
            ));
            if !console.is_yes(&format!("Is {node} gone?"))? || !console.is_typed(&self.node)? {
                console.remark("Nothing was changed.\n");
                return Ok(NOT_DONE);
            }
        }
        self.said.tell(&self.node, whole_ms(self.time), console).await
    }
}

impl Said {
    async fn tell(&self, node: &str, for_ms: u64, console: &mut Console<'_>) -> Result<u8, Fault> {
        let (author, reason) = (self.author.clone(), self.reason.clone());
        let request = ExcludeRequest { node: node.to_owned(), for_ms, author, reason };
        let store = self.shown.address.connect()?.exclude(request).await?;
        self.shown.tell(&store, console)?;
        Ok(SUCCESS)
    }
}

impl Shown {
    fn tell(&self, store: &StoreStatus, console: &mut Console<'_>) -> Result<u8, Fault> {
        let text =
            if self.json { json_line(&StoreJson::new(store)) } else { for_people(store, console.paint) };
        console.answer(&text)?;
        Ok(if store.granting == store.groups && store.lost == 0 { SUCCESS } else { NOT_DONE })
    }
}

fn for_people(store: &StoreStatus, paint: Paint) -> String {
    let StoreStatus { nodes, groups, granting, lost, excluded } = store;
    let nodes = nodes.iter().map(|node| plain(node)).collect::<Vec<_>>().join(", ");
    let mut text = format!("shared by {nodes}\n");
    if *lost > 0 {
        let lost =
            format!("nobody answers for {lost} groups: this node spends what it holds and its guard share");
        text.push_str(&paint.word(Colour::Red, &lost));
        text.push('\n');
    }
    let state = if granting == groups {
        match *lost {
            0 => paint.word(Colour::Green, "all pools grant"),
            lost if lost == *groups => "no pool grants until the store answers".to_owned(),
            _ => "the pools of all other groups grant".to_owned(),
        }
    } else {
        let waits = format!("{granting} of {groups} groups of pools grant");
        let why = "the others do when every node has told what it holds of them: a node that is gone for good is excluded with \
                   `acequia store exclude`";
        format!("{}; {why}", paint.word(Colour::Yellow, &waits))
    };
    text.push_str(&state);
    text.push('\n');
    for gone in excluded {
        let (node, left) = (plain(&gone.node), duration(gone.left_ms));
        text.push_str(&format!("{node} is excluded for {left} more\n"));
    }
    text
}

#[derive(Serialize)]
struct StoreJson<'a> {
    nodes: &'a [String],
    groups: u32,
    granting: u32,
    lost: u32,
    excluded: Vec<ExcludedJson<'a>>,
}

#[derive(Serialize)]
struct ExcludedJson<'a> {
    node: &'a str,
    left_ms: u64,
}

impl<'a> StoreJson<'a> {
    fn new(store: &'a StoreStatus) -> Self {
        let excluded = store.excluded.iter();
        let excluded =
            excluded.map(|gone| ExcludedJson { node: &gone.node, left_ms: gone.left_ms }).collect();
        let StoreStatus { nodes, groups, granting, lost, .. } = store;
        Self { nodes, groups: *groups, granting: *granting, lost: *lost, excluded }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_answer_is_never_shown_as_granting() {
        let store = StoreStatus {
            nodes: vec!["eu-1".to_owned(), "eu-2".to_owned()],
            groups: 1_024,
            granting: 1_024,
            ..StoreStatus::default()
        };
        assert_eq!(for_people(&store, Paint::OFF), "shared by eu-1, eu-2\nall pools grant\n");
        let lost = StoreStatus { lost: 1_024, ..store };
        assert_eq!(
            for_people(&lost, Paint::OFF),
            "shared by eu-1, eu-2\n\
             nobody answers for 1024 groups: this node spends what it holds and its guard share\n\
             no pool grants until the store answers\n"
        );
        let some = StoreStatus { lost: 1, ..lost };
        assert!(for_people(&some, Paint::OFF).ends_with("\nthe pools of all other groups grant\n"));
    }
}
