//! `acequia regions`: shows the regions as a node sees them, and adds and removes regions.

mod cuts;
mod json;
mod limits;
mod show;

use std::process::ExitCode;

use acequia_api::acequia::v1::{ChangeRegionRequest, change_region_request::Change};
use clap::{Args, Subcommand, value_parser};

use self::{json::StatusJson, show::for_people};
use super::{
    SUCCESS,
    console::Console,
    json_line,
    operator::{AdminAddress, Fault, operate},
    order::{Caution, Order, OrderArguments, Request},
};

/// The regions: their state as a node sees it; add or remove one.
///
/// The authority carries out changes; any other node names the authority. Exits with 0 if it is done, 1 if it
/// is not (yet), 2 if nobody could be asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia regions
  acequia regions add ap --weight 1
  acequia regions recover us               its node lost its disk, and began anew
  acequia regions evict us --fenced        its node is gone for good
  acequia regions remove us --wait         its node is alive, and leaves")]
pub struct Regions {
    #[command(flatten)]
    address: AdminAddress,

    /// Print one JSON object.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    order: Option<RegionOrder>,
}

#[derive(Clone, Debug, Subcommand)]
enum RegionOrder {
    /// Give a region that the nodes hear a share of every limit.
    Add {
        /// The region.
        region: String,
        /// Its weight: its share is its weight over the sum of all.
        #[arg(long, default_value_t = 1, value_name = "N", value_parser = value_parser!(u32).range(1..))]
        weight: u32,
        #[command(flatten)]
        order: OrderArguments,
    },
    /// Take in the new node of a region that lost its disk, in place of its old incarnation.
    Recover {
        /// The region.
        region: String,
        #[command(flatten)]
        order: OrderArguments,
    },
    /// Take back the share of a region that is gone for good.
    Evict {
        /// The region.
        region: String,
        /// Its node is gone, or cut off from all callers, and stays so. Nothing is evicted without this.
        #[arg(long)]
        fenced: bool,
        #[command(flatten)]
        order: OrderArguments,
    },
    /// Let a region that is alive give up its share, and leave.
    Remove {
        /// The region.
        region: String,
        #[command(flatten)]
        order: OrderArguments,
    },
    /// Give a region another weight.
    Weight {
        /// The region.
        region: String,
        /// Its weight: its share is its weight over the sum of all.
        #[arg(value_name = "N", value_parser = value_parser!(u32).range(1..))]
        weight: u32,
        #[command(flatten)]
        order: OrderArguments,
    },
    /// Distrust a certificate. The node that has it is cut off until it has another one; other nodes keep
    /// theirs.
    Revoke {
        /// The 16 digits that `acequia regions` shows, or all 64 of the certificate's SHA-256.
        #[arg(value_name = "FINGERPRINT")]
        certificate: String,
        #[command(flatten)]
        order: OrderArguments,
    },
}

impl Regions {
    /// Asks, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        operate(async |console| self.carry_out(console).await).await
    }

    pub(super) async fn carry_out(&self, console: &mut Console<'_>) -> Result<u8, Fault> {
        if let Some(order) = &self.order {
            let (order, arguments) = order.order()?;
            return order.carry_out(arguments, self.json, &mut self.address.connect()?, console).await;
        }
        let status = self.address.connect()?.status().await?;
        let text =
            if self.json { json_line(&StatusJson::new(&status)) } else { for_people(&status, console.paint) };
        console.answer(&text)?;
        Ok(SUCCESS)
    }
}

impl RegionOrder {
    fn order(&self) -> Result<(Order<'_>, &OrderArguments), Fault> {
        let request = |change: Change, region: &str| ChangeRegionRequest {
            change: change.into(),
            region: region.to_owned(),
            ..ChangeRegionRequest::default()
        };
        let (request, caution, danger, arguments) = match self {
            Self::Add { region, weight, order } => {
                let request = ChangeRegionRequest { weight: *weight, ..request(Change::Add, region) };
                (request, Caution::Warned, String::new(), order)
            }
            Self::Recover { region, order } => {
                let danger = format!(
                    "If the node of {region} from before its disk was lost still answers anybody, limits can be exceeded \
                     by its share."
                );
                (request(Change::Recover, region), Caution::Twice(region), danger, order)
            }
            Self::Evict { region, fenced, order } => {
                if !fenced {
                    return Err(Fault::new(format!(
                        "nothing was changed: the share of {region} goes to the others, and if its node still answers \
                         anybody, limits can be exceeded by it. Stop that node, or cut it off from all callers, see to \
                         it that it stays so, and say --fenced. A region that is alive leaves with `acequia regions \
                         remove {region}`"
                    )));
                }
                let danger = format!(
                    "If the node of {region} still answers anybody, limits can be exceeded by its share. No \
                     timeout is proof that it is gone."
                );
                let request = ChangeRegionRequest { is_fenced: true, ..request(Change::Evict, region) };
                (request, Caution::Twice(region), danger, order)
            }
            Self::Remove { region, order } => {
                let danger = format!("{region} owns no part of any limit from then on, and denies.");
                (request(Change::Remove, region), Caution::Always, danger, order)
            }
            Self::Weight { region, weight, order } => {
                let request = ChangeRegionRequest { weight: *weight, ..request(Change::Weight, region) };
                (request, Caution::Warned, String::new(), order)
            }
            Self::Revoke { certificate, order } => {
                let danger =
                    "The node that has it is cut off from the others until it has another one.".to_owned();
                let request =
                    ChangeRegionRequest { certificate: certificate.clone(), ..request(Change::Revoke, "") };
                (request, Caution::Always, danger, order)
            }
        };
        Ok((Order { request: Request::Region(request), caution, danger }, arguments))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        regions: Regions,
    }

    fn read(line: &str) -> Result<Regions, clap::Error> {
        let words = ["regions"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.regions)
    }

    #[test]
    fn arguments_become_orders_about_regions() {
        for (line, change, weight, is_fenced, caution) in [
            ("add us", Change::Add, 1, false, Caution::Warned),
            ("add us --weight 3", Change::Add, 3, false, Caution::Warned),
            ("recover us", Change::Recover, 0, false, Caution::Twice("us")),
            ("evict us --fenced", Change::Evict, 0, true, Caution::Twice("us")),
            ("remove us", Change::Remove, 0, false, Caution::Always),
            ("weight us 2", Change::Weight, 2, false, Caution::Warned),
        ] {
            let order = read(line).expect(line).order.expect(line);
            let (order, _) = order.order().expect(line);
            let Request::Region(request) = order.request else { panic!("{line} is about a region") };
            let expected = ChangeRegionRequest {
                change: change.into(),
                region: "us".to_owned(),
                weight,
                is_fenced,
                ..ChangeRegionRequest::default()
            };
            assert_eq!(request, expected, "{line}");
            assert_eq!(order.caution, caution, "{line}");
            assert_eq!(order.danger.is_empty(), caution == Caution::Warned, "{line}");
        }
    }

    #[test]
    fn an_eviction_without_a_fence_is_refused() {
        let order = read("evict us").expect("words").order.expect("an order");
        let fault = order.order().map(drop).expect_err("no fence").to_string();
        assert!(fault.contains("--fenced"), "{fault}");
        assert!(fault.contains("acequia regions remove us"), "{fault}");
    }

    #[test]
    fn wrong_arguments_about_regions_are_refused() {
        for line in
            ["add", "add us --weight 0", "weight us", "weight us 0", "evict", "us", "add us --timeout 5s"]
        {
            assert!(read(line).is_err(), "{line}");
        }
        assert!(read("").expect("sound").order.is_none());
    }

    #[test]
    fn the_address_is_given_before_or_after_the_order() {
        for line in ["--address node:1 add us", "add us --address node:1"] {
            assert_eq!(read(line).expect(line).address.address, "node:1", "{line}");
        }
    }
}
