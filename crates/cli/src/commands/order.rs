//! An order to the authority: a dry run, a confirmation, the order itself, and the wait for its effect.

use std::time::Duration;

use acequia_api::acequia::v1::{
    Catalogue, CatalogueChange, ChangeRegionRequest, GrantRequest, ResetRequest, SetBudgetRequest,
    TakeOverRequest, VersionId,
};
use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::{
    NOT_DONE, SUCCESS,
    catalogue::{CatalogueJson, VersionIdJson, everywhere, is_effective, version, waiting},
    console::Console,
    json_line,
    operator::{Admin, Fault, wait},
    people::{Colour, Paint, duration, plain},
    read_duration,
};
use crate::settings::SETTINGS;

/// The arguments of every order.
#[derive(Args, Clone, Debug)]
pub(super) struct OrderArguments {
    /// Who gives the order, for the audit log, which adds the address, and for the override of a cell.
    #[arg(long, env = "USER", default_value = "", hide_default_value = true, value_name = "NAME")]
    author: String,

    /// The reason, for the audit log and for the override of a cell.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    reason: String,

    /// Only print what would change, and what can go wrong.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,

    /// Ask for no confirmation: the risks are known.
    #[arg(long)]
    yes: bool,

    /// Wait until the change is effective everywhere. Exits with 1 if it is not in time; the change stands
    /// all the same.
    #[arg(long)]
    wait: bool,

    /// How long to wait, such as 60s or 5m.
    #[arg(long, default_value = "60s", value_name = "TIME", requires = "wait", value_parser = read_duration)]
    timeout: Duration,
}

/// An order for the authority.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Budget(SetBudgetRequest),
    Grant(GrantRequest),
    Reset(ResetRequest),
    Region(ChangeRegionRequest),
    TakeOver(TakeOverRequest),
}

/// When a person must confirm an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caution<'a> {
    /// If the node warns.
    Warned,
    /// Always.
    Always,
    /// Always, and then a second time: this name must be typed.
    Twice(&'a str),
}

/// An order, and its danger to the operator.
#[derive(Clone, Debug)]
pub(super) struct Order<'a> {
    pub(super) request: Request,
    pub(super) caution: Caution<'a>,
    /// What is at risk, besides the node's warnings; empty if nothing is.
    pub(super) danger: String,
}

impl Order<'_> {
    /// Makes a dry run, asks, gives the order, and looks at its progress. Returns the exit code.
    pub(super) async fn carry_out(
        self,
        arguments: &OrderArguments,
        is_json: bool,
        admin: &mut Admin,
        console: &mut Console<'_>,
    ) -> Result<u8, Fault> {
        let planned = admin.order(&self.request, arguments, true).await?;
        let must_ask = !arguments.yes && !arguments.dry_run && self.needs_confirming(&planned);
        if is_json && arguments.dry_run {
            console.answer(&json_line(&OrderJson::new(&planned, None)))?;
        } else if !is_json {
            let text = plan(&planned, &self.danger, console.paint);
            console.answer(&text)?;
        } else if must_ask {
            console.remark(&plan(&planned, &self.danger, Paint::OFF));
        }
        if arguments.dry_run {
            return Ok(SUCCESS);
        }
        if must_ask && !self.is_confirmed(console)? {
            console.remark("Nothing was changed.\n");
            return Ok(NOT_DONE);
        }
        let change =
            admin.order(&self.request, arguments, false).await.map_err(|fault| match fault.is_silence {
                true => fault.and("Whether it was carried out is not known: `acequia audit` says so."),
                false => fault,
            })?;
        if change.before != planned.before {
            console.remark(&format!(
                "Another change came first: this one was made to version {}, not to {}.\n",
                version(change.before),
                version(planned.before)
            ));
        }
        let reach = admin.reach(&change, arguments, console).await?;
        if is_json {
            console.answer(&json_line(&OrderJson::new(&change, Some(&reach))))?;
        } else {
            console.answer(&result(&change, &reach))?;
        }
        Ok(if arguments.wait && !reach.is_effective { NOT_DONE } else { SUCCESS })
    }

    fn needs_confirming(&self, planned: &CatalogueChange) -> bool {
        match self.caution {
            Caution::Warned => !planned.warnings.is_empty(),
            Caution::Always | Caution::Twice(_) => true,
        }
    }

    fn is_confirmed(&self, console: &mut Console<'_>) -> Result<bool, Fault> {
        if !console.has_person() {
            return Err(Fault::new(
                "nothing was changed: this is to be confirmed, and nobody can be asked here. --yes confirms it, \
                 --dry-run only looks",
            ));
        }
        if !console.is_yes("Carry this out?")? {
            return Ok(false);
        }
        match self.caution {
            Caution::Twice(name) => console.is_typed(name),
            Caution::Warned | Caution::Always => Ok(true),
        }
    }
}

impl Admin {
    async fn order(
        &mut self,
        request: &Request,
        arguments: &OrderArguments,
        dry_run: bool,
    ) -> Result<CatalogueChange, Fault> {
        let (address, deadline) = self.peer();
        let (author, reason) = (arguments.author.clone(), arguments.reason.clone());
        match request.clone() {
            Request::Budget(request) => {
                let request = SetBudgetRequest { author, reason, dry_run, ..request };
                wait(&address, deadline, self.client.set_budget(request)).await
            }
            Request::Grant(request) => {
                let request = GrantRequest { author, reason, dry_run, ..request };
                wait(&address, deadline, self.client.grant(request)).await
            }
            Request::Reset(request) => {
                let request = ResetRequest { author, reason, dry_run, ..request };
                wait(&address, deadline, self.client.reset(request)).await
            }
            Request::Region(request) => {
                let request = ChangeRegionRequest { author, reason, dry_run, ..request };
                wait(&address, deadline, self.client.change_region(request)).await
            }
            Request::TakeOver(request) => {
                let request = TakeOverRequest { author, reason, dry_run, ..request };
                wait(&address, deadline, self.client.take_over(request)).await
            }
        }
    }

    /// The progress of a change: now, or when it is everywhere, or when the time is up.
    async fn reach(
        &mut self,
        change: &CatalogueChange,
        arguments: &OrderArguments,
        console: &mut Console<'_>,
    ) -> Result<Reach, Fault> {
        let began = Instant::now();
        let end = arguments.wait.then(|| began + arguments.timeout);
        let mut reach = Reach {
            is_effective: false,
            catalogue: None,
            waited: arguments.wait.then_some(arguments.timeout),
        };
        loop {
            let again = Instant::now() + SETTINGS.commands.poll_every;
            let is_last = end.is_none_or(|end| again >= end);
            match self.status().await {
                Ok(status) => reach.catalogue = status.catalogue,
                // The node may answer the next time; its last answer is still the newest that is known.
                Err(fault) if fault.is_silence && !is_last => {}
                Err(fault) => {
                    console
                        .remark(&format!("It was carried out. How far it is could not be asked: {fault}\n"));
                    return Ok(reach);
                }
            }
            let catalogue = reach.catalogue.as_ref();
            let everywhere =
                |after: VersionId| catalogue.is_some_and(|catalogue| is_effective(catalogue, after));
            reach.is_effective = change.after.is_some_and(everywhere);
            if reach.is_effective || is_last {
                return Ok(reach);
            }
            sleep_until(again).await;
        }
    }
}

/// The progress of a change.
#[derive(Clone, Debug)]
struct Reach {
    is_effective: bool,
    /// The catalogue in the last answer.
    catalogue: Option<Catalogue>,
    /// How long the command waited; `None` if it was not asked to wait.
    waited: Option<Duration>,
}

/// What would change, and the risks.
fn plan(planned: &CatalogueChange, danger: &str, paint: Paint) -> String {
    let before = version(planned.before);
    let mut text = if planned.changes.is_empty() {
        format!("Nothing changes: version {before} says so already.\n")
    } else {
        format!("Changes to version {before}:\n")
    };
    for change in &planned.changes {
        text.push_str(&format!("  {}\n", plain(change)));
    }
    let dangers =
        planned.warnings.iter().map(String::as_str).chain(Some(danger).filter(|danger| !danger.is_empty()));
    for (number, danger) in dangers.enumerate() {
        if number == 0 {
            text.push_str(&format!("{}\n", paint.word(Colour::Yellow, "Be careful:")));
        }
        text.push_str(&format!("  {}\n", plain(danger)));
    }
    text
}

/// What was done, its progress, and who is pending.
fn result(change: &CatalogueChange, reach: &Reach) -> String {
    let after = version(change.after);
    if reach.is_effective {
        let everywhere = reach.catalogue.as_ref().map_or("effective everywhere".to_owned(), everywhere);
        return format!("Version {after} is {everywhere}.\n");
    }
    let catalogue = reach.catalogue.as_ref();
    let effective = catalogue.map_or("an older one".to_owned(), |catalogue| version(catalogue.effective));
    let so_far = match reach.waited {
        Some(time) => {
            format!("after {} {effective} is", duration(time.as_millis().try_into().unwrap_or(u64::MAX)))
        }
        None => format!("{effective} is"),
    };
    let mut text = format!("Version {after} is requested; {so_far} effective everywhere.\n");
    for (number, pending) in catalogue.into_iter().flat_map(|catalogue| &catalogue.pending).enumerate() {
        if number == 0 {
            text.push_str("It waits for:\n");
        }
        text.push_str(&format!("  {}\n", plain(&waiting(pending))));
    }
    text
}

/// An order as JSON.
#[derive(Debug, Serialize)]
struct OrderJson<'a> {
    dry_run: bool,
    before: Option<VersionIdJson>,
    after: Option<VersionIdJson>,
    changes: &'a [String],
    warnings: &'a [String],
    /// Null for a dry run.
    effective: Option<bool>,
    /// Null for a dry run, or if the node did not report the progress.
    catalogue: Option<CatalogueJson<'a>>,
}

impl<'a> OrderJson<'a> {
    fn new(change: &'a CatalogueChange, reach: Option<&'a Reach>) -> Self {
        Self {
            dry_run: reach.is_none(),
            before: VersionIdJson::new(change.before),
            after: VersionIdJson::new(change.after),
            changes: &change.changes,
            warnings: &change.warnings,
            effective: reach.map(|reach| reach.is_effective),
            catalogue: reach.and_then(|reach| CatalogueJson::new(reach.catalogue.as_ref())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::catalogue::examples::{pending, settled, version_id},
        *,
    };

    fn change(changes: &[&str], warnings: &[&str]) -> CatalogueChange {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        CatalogueChange {
            before: Some(version_id(7)),
            after: Some(version_id(8)),
            changes: texts(changes),
            warnings: texts(warnings),
        }
    }

    #[test]
    fn a_plan_shows_its_changes_and_warnings() {
        let lowering = change(&["shop/per-key: rate 100/s -> 60/s"], &["it counts when all have it"]);
        assert_eq!(
            plan(&lowering, "", Paint::OFF),
            "Changes to version 1.7:\n  shop/per-key: rate 100/s -> 60/s\nBe careful:\n  it counts when all have it\n"
        );
        assert_eq!(
            plan(&change(&["us is out"], &[]), "us must be gone", Paint::new(true)),
            "Changes to version 1.7:\n  us is out\n\x1b[33mBe careful:\x1b[0m\n  us must be gone\n"
        );
        assert_eq!(
            plan(&change(&[], &[]), "", Paint::OFF),
            "Nothing changes: version 1.7 says so already.\n"
        );
        assert_eq!(
            plan(&change(&["\x1b[2J"], &[]), "", Paint::OFF),
            "Changes to version 1.7:\n  \\u{1b}[2J\n"
        );
    }

    #[test]
    fn a_result_shows_who_has_not_acknowledged_it() {
        let mut reach = Reach { is_effective: false, catalogue: Some(pending()), waited: None };
        assert_eq!(
            result(&change(&[], &[]), &reach),
            "\
Version 1.8 is requested; 1.7 is effective everywhere.
It waits for:
  us: not heard for 12 s; it goes on when us is heard, or is evicted
"
        );
        reach.waited = Some(Duration::from_secs(60));
        assert!(result(&change(&[], &[]), &reach).starts_with(
            "Version 1.8 is requested; after 1 min 1.7 is effective everywhere.\nIt waits for:\n  us: "
        ));
        reach.catalogue = None;
        assert_eq!(
            result(&change(&[], &[]), &reach),
            "Version 1.8 is requested; after 1 min an older one is effective everywhere.\n"
        );
        reach.is_effective = true;
        assert_eq!(result(&change(&[], &[]), &reach), "Version 1.8 is effective everywhere.\n");
    }

    #[test]
    fn the_json_of_an_order_has_its_changes_and_progress() {
        let change = change(&["a"], &["b"]);
        assert_eq!(
            json_line(&OrderJson::new(&change, None)),
            concat!(
                r#"{"dry_run":true,"before":{"epoch":1,"number":7},"after":{"epoch":1,"number":8},"#,
                r#""changes":["a"],"warnings":["b"],"effective":null,"catalogue":null}"#,
                "\n"
            )
        );
        let reach = Reach { is_effective: true, catalogue: Some(settled()), waited: None };
        let line = json_line(&OrderJson::new(&change, Some(&reach)));
        assert!(line.starts_with(r#"{"dry_run":false,"#), "{line}");
        assert!(line.contains(r#""effective":true,"catalogue":{"authority":"eu/eu-1","#), "{line}");
    }
}
