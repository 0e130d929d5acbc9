//! `acequia grant` and `acequia reset`: temporarily more units for one cell.

use std::{process::ExitCode, time::Duration};

use acequia_api::acequia::v1::{GrantRequest, ResetRequest};
use clap::{Args, value_parser};

use super::{
    console::Console,
    limit_path::{LimitPath, read_limit_path},
    operator::{AdminAddress, Fault, operate},
    order::{Caution, Order, OrderArguments, Request},
    read_duration,
};

/// Give one cell more units until its window ends.
///
/// A sliding window has the units for one window. A bucket is larger until it would be full again, or for as
/// long as --for says. All regions share the units as they share the limit. The authority carries it out.
/// Exits with 0 if it is done, 1 if it is not (yet), 2 if nobody could be asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia grant 'shop/monthly-credits[tenant=big-co]' 5000 --reason 'ticket 4711' --wait
  acequia grant 'shop/per-key[api_key=k1]' 100 --for 1h --dry-run
  acequia grant shop/exports 50                               the one cell of a limit without `by`")]
pub struct Grant {
    #[command(flatten)]
    address: AdminAddress,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    /// The cell. In the brackets %2C is a comma, and %25 a percent sign.
    #[arg(value_name = "DOMAIN/NAME[KEY=VALUE,...]", value_parser = read_limit_path)]
    cell: LimitPath,

    /// How many more units.
    #[arg(value_name = "UNITS", value_parser = value_parser!(u64).range(1..))]
    units: u64,

    /// For how long a bucket is larger, such as 30m or 2h.
    #[arg(long = "for", value_name = "TIME", value_parser = read_duration)]
    time: Option<Duration>,

    #[command(flatten)]
    order: OrderArguments,
}

/// Give one cell as many more units as it is known to have used.
///
/// The authority knows what its own region used, and the other regions' last reports. It prints the amount,
/// and until when it is granted. Exits with 0 if it is done, 1 if it is not (yet), 2 if nobody could be
/// asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia reset 'shop/per-key[api_key=k1]' --dry-run          only say what is known to be used
  acequia reset 'shop/monthly-credits[tenant=big-co]' --reason 'a loop on our side' --wait")]
pub struct Reset {
    #[command(flatten)]
    address: AdminAddress,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    /// The cell. In the brackets %2C is a comma, and %25 a percent sign.
    #[arg(value_name = "DOMAIN/NAME[KEY=VALUE,...]", value_parser = read_limit_path)]
    cell: LimitPath,

    #[command(flatten)]
    order: OrderArguments,
}

impl Grant {
    /// Asks, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        operate(async |console| self.carry_out(console).await).await
    }

    pub(super) async fn carry_out(&self, console: &mut Console<'_>) -> Result<u8, Fault> {
        let LimitPath { domain, name, key } = self.cell.clone();
        let request = GrantRequest {
            domain,
            name,
            key: key.into_iter().collect(),
            units: self.units,
            for_ms: self.time.map_or(0, whole_ms),
            ..GrantRequest::default()
        };
        let order = cautious(Request::Grant(request));
        order.carry_out(&self.order, self.json, &mut self.address.connect()?, console).await
    }
}

impl Reset {
    /// Asks, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        operate(async |console| self.carry_out(console).await).await
    }

    pub(super) async fn carry_out(&self, console: &mut Console<'_>) -> Result<u8, Fault> {
        let LimitPath { domain, name, key } = self.cell.clone();
        let key = key.into_iter().collect();
        let order = cautious(Request::Reset(ResetRequest { domain, name, key, ..ResetRequest::default() }));
        order.carry_out(&self.order, self.json, &mut self.address.connect()?, console).await
    }
}

fn cautious(request: Request) -> Order<'static> {
    Order { request, caution: Caution::Warned, danger: String::new() }
}

/// Milliseconds, at least one: 0 would mean that no time was given.
pub(super) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
