//! `acequia authority`: shows which node is the authority, and makes another node the authority.

use std::process::ExitCode;

use acequia_api::acequia::v1::{NodeStatus, TakeOverRequest};
use clap::{Args, Subcommand};

use super::{
    SUCCESS,
    catalogue::{CatalogueJson, lines, standing},
    console::Console,
    json_line,
    operator::{AdminAddress, Fault, operate},
    order::{Caution, Order, OrderArguments, Request},
    people::plain,
};

/// The authority: the one node that makes versions of the catalogue.
///
/// Exits with 0 if it is done, 1 if it is not (yet), 2 if nobody could be asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia authority
  acequia authority move us-1 --address us-1.internal:8082 --ca ca.pem --token-file token
  acequia authority move us-1 --address us-1.internal:8082 --fenced    the authority before is gone for good")]
pub struct Authority {
    #[command(flatten)]
    address: AdminAddress,

    /// Print one JSON object.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Option<AuthorityCommand>,
}

#[derive(Clone, Debug, Subcommand)]
enum AuthorityCommand {
    /// Make a node the authority. --address is that node's own.
    Move(Move),
}

#[derive(Args, Clone, Debug)]
struct Move {
    /// The node that is to be the authority, as NODE or REGION/NODE.
    node: String,

    /// No other authority makes versions any more: its process is stopped for good, or it is cut off from all
    /// nodes.
    #[arg(long)]
    fenced: bool,

    #[command(flatten)]
    order: OrderArguments,
}

impl Authority {
    /// Asks, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        operate(async |console| self.carry_out(console).await).await
    }

    pub(super) async fn carry_out(&self, console: &mut Console<'_>) -> Result<u8, Fault> {
        let mut admin = self.address.connect()?;
        let status = admin.status().await?;
        if let Some(AuthorityCommand::Move(order)) = &self.command {
            order.is_for(&status, &self.address.address)?;
            return order.order(&status).carry_out(&order.order, self.json, &mut admin, console).await;
        }
        let catalogue = status.catalogue.as_ref();
        let text = if self.json {
            json_line(&CatalogueJson::new(catalogue))
        } else {
            lines(&standing(catalogue), console.paint)
        };
        console.answer(&text)?;
        Ok(SUCCESS)
    }
}

impl Move {
    /// Refuses an order that was sent to a node other than the future authority.
    fn is_for(&self, asked: &NodeStatus, address: &str) -> Result<(), Fault> {
        let full = format!("{}/{}", asked.region, asked.node);
        if self.node == asked.node || self.node == full {
            return Ok(());
        }
        Err(Fault::new(format!(
            "nothing was changed: {address} is {}, not {}. The order goes to the node that is to be the authority: give \
             the admin address of {} (listen.admin) with --address",
            plain(&full),
            plain(&self.node),
            plain(&self.node)
        )))
    }

    fn order(&self, asked: &NodeStatus) -> Order<'_> {
        let before =
            asked.catalogue.as_ref().map(|catalogue| catalogue.authority.as_str()).unwrap_or_default();
        let before = if before.is_empty() { "the authority before" } else { before };
        let danger = if self.fenced {
            format!(
                "You say that {before} makes no versions any more. If it does, regions may follow one or the other, and \
                 limits can be exceeded."
            )
        } else {
            format!("{before} makes no versions from then on.")
        };
        let request = TakeOverRequest { is_fenced: self.fenced, ..TakeOverRequest::default() };
        Order { request: Request::TakeOver(request), caution: Caution::Twice(&self.node), danger }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{super::catalogue::examples::settled, *};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        authority: Authority,
    }

    fn read(line: &str) -> Move {
        let words = ["authority"].into_iter().chain(line.split_whitespace());
        match Line::try_parse_from(words).expect("sound").authority.command {
            Some(AuthorityCommand::Move(order)) => order,
            None => panic!("{line} is no order"),
        }
    }

    fn us() -> NodeStatus {
        NodeStatus {
            region: "us".to_owned(),
            node: "us-1".to_owned(),
            catalogue: Some(settled()),
            ..NodeStatus::default()
        }
    }

    #[test]
    fn an_order_to_move_the_authority_must_go_to_the_named_node() {
        assert_eq!(read("move us-1").is_for(&us(), "here:8082"), Ok(()));
        assert_eq!(read("move us/us-1").is_for(&us(), "here:8082"), Ok(()));
        for node in ["eu-1", "us", "eu/us-1", "us-10"] {
            let fault = read(&format!("move {node}")).is_for(&us(), "here:8082").expect_err(node).to_string();
            assert_eq!(
                fault,
                format!(
                    "nothing was changed: here:8082 is us/us-1, not {node}. The order goes to the node that is to be \
                     the authority: give the admin address of {node} (listen.admin) with --address"
                )
            );
        }
    }

    #[test]
    fn the_warning_of_a_move_names_the_authority_before() {
        let fenced = read("move us-1 --fenced");
        let order = fenced.order(&us());
        assert_eq!(order.caution, Caution::Twice("us-1"));
        assert_eq!(
            order.danger,
            "You say that eu/eu-1 makes no versions any more. If it does, regions may follow one or the other, and \
             limits can be exceeded."
        );
        assert_eq!(read("move us-1").order(&us()).danger, "eu/eu-1 makes no versions from then on.");
        let none = NodeStatus { catalogue: None, ..us() };
        assert_eq!(
            read("move us-1").order(&none).danger,
            "the authority before makes no versions from then on."
        );
    }
}
