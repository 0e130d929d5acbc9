//! `acequia budget`: lists the global budgets, shows how far a change is, and changes budgets.

use std::{process::ExitCode, time::Duration};

use acequia_api::acequia::v1::{Budget as Listed, Catalogue, ListBudgetsResponse, SetBudgetRequest};
use acequia_limits::limit::parse_instant_ns;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::{
    SUCCESS,
    catalogue::{CatalogueJson, lines, standing},
    console::Console,
    grant::whole_ms,
    json_line,
    limit_path::{LimitPath, Number, by_name, read_limit_path, read_number},
    operator::{AdminAddress, Fault, operate},
    order::{Caution, Order, OrderArguments, Request},
    people::{Align, Cell, Colour, Paint, plain, table},
    read_duration,
};
use crate::settings::SETTINGS;

/// The global budgets: list them, look at one, change one.
///
/// The authority carries out changes; any other node names the authority. Exits with 0 if it is done, 1 if it
/// is not (yet), 2 if nobody could be asked.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia budget list
  acequia budget show shop/per-key
  acequia budget set shop/per-key rate=100/s burst=200 --reason launch --wait
  acequia budget set 'shop/per-key[api_key=k1]' rate=20/s --until 2027-01-01 --reason trial
  acequia budget set 'shop/per-key[api_key=k1]' rate=20/s --for 2h --dry-run")]
pub struct Budget {
    #[command(flatten)]
    address: AdminAddress,

    /// Print one JSON object.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: BudgetCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum BudgetCommand {
    /// Every limit with its budget, and the state of the catalogue.
    List,
    /// One limit as it is in the catalogue, with its overrides.
    Show {
        /// The limit.
        #[arg(value_name = "DOMAIN/NAME", value_parser = read_limit_path)]
        limit: LimitPath,
    },
    /// Change the numbers of a limit, or of one of its keys, everywhere.
    Set(Set),
}

#[derive(Args, Clone, Debug)]
struct Set {
    /// The limit, or one of its keys. In the brackets %2C is a comma, and %25 a percent sign.
    #[arg(value_name = "DOMAIN/NAME[KEY=VALUE,...]", value_parser = read_limit_path)]
    limit: LimitPath,

    /// The new numbers: rate, burst, limit, queue, window. Numbers that are not given stay.
    #[arg(required = true, value_name = "NAME=NUMBER", value_parser = read_number)]
    numbers: Vec<Number>,

    /// When the key gets its old numbers back: a date, or an instant such as 2027-01-01T12:00:00Z.
    #[arg(long, value_name = "TIME", conflicts_with = "time", value_parser = read_instant)]
    until: Option<String>,

    /// For how long the key has the new numbers, such as 30m or 2h.
    #[arg(long = "for", id = "time", value_name = "TIME", value_parser = read_duration)]
    time: Option<Duration>,

    #[command(flatten)]
    order: OrderArguments,
}

impl Budget {
    /// Asks, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        operate(async |console| self.carry_out(console).await).await
    }

    pub(super) async fn carry_out(&self, console: &mut Console<'_>) -> Result<u8, Fault> {
        let mut admin = self.address.connect()?;
        let text = match &self.command {
            BudgetCommand::List => {
                let budgets = admin.list_budgets().await?;
                if self.json { json_line(&ListJson::new(&budgets)) } else { list(&budgets, console.paint) }
            }
            BudgetCommand::Show { limit } => {
                let budgets = admin.list_budgets().await?;
                let listed = find(&budgets.budgets, limit)?;
                let catalogue = budgets.catalogue.as_ref();
                if self.json {
                    json_line(&ShowJson::new(listed, catalogue))
                } else {
                    show(listed, catalogue, console.paint)
                }
            }
            BudgetCommand::Set(set) => {
                let order = set.order()?;
                return order.carry_out(&set.order, self.json, &mut admin, console).await;
            }
        };
        console.answer(&text)?;
        Ok(SUCCESS)
    }
}

impl Set {
    fn order(&self) -> Result<Order<'_>, Fault> {
        let LimitPath { domain, name, key } = self.limit.clone();
        let key = key.into_iter().collect();
        let numbers = by_name(&self.numbers).map_err(Fault::new)?;
        let request = SetBudgetRequest {
            domain,
            name,
            key,
            numbers,
            until: self.until.clone().unwrap_or_default(),
            for_ms: self.time.map_or(0, whole_ms),
            ..SetBudgetRequest::default()
        };
        Ok(Order { request: Request::Budget(request), caution: Caution::Warned, danger: String::new() })
    }
}

/// The text, if it is a valid time.
fn read_instant(text: &str) -> Result<String, String> {
    parse_instant_ns(text).map(|_| text.to_owned())
}

/// The requested limit. The error names the existing limits.
fn find<'a>(budgets: &'a [Listed], limit: &LimitPath) -> Result<&'a Listed, Fault> {
    let LimitPath { domain, name, key } = limit;
    if !key.is_empty() {
        return Err(Fault::new(format!("a whole limit is shown, with its overrides: write {domain}/{name}")));
    }
    if let Some(found) = budgets.iter().find(|listed| listed.domain == *domain && listed.name == *name) {
        return Ok(found);
    }
    let names: Vec<_> = budgets.iter().take(SETTINGS.commands.names_max).map(path).collect();
    let more =
        if budgets.len() > SETTINGS.commands.names_max { " and more (acequia budget list)" } else { "" };
    Err(Fault::new(match names.as_slice() {
        [] => format!("there is no limit {domain}/{name}: the node has no limits"),
        names => format!("there is no limit {domain}/{name}. There are {}{more}", names.join(", ")),
    }))
}

fn path(listed: &Listed) -> String {
    plain(&format!("{}/{}", listed.domain, listed.name))
}

/// The limit in the config's form; `None` if it is not JSON.
fn limit(listed: &Listed) -> Option<Value> {
    serde_json::from_str(&listed.limit_json).ok()
}

/// The number of keys with numbers of their own; `None` if the node's answer cannot be read.
fn overrides(listed: &Listed) -> Option<usize> {
    limit(listed).map(|limit| limit["overrides"].as_array().map_or(0, Vec::len))
}

fn list(budgets: &ListBudgetsResponse, paint: Paint) -> String {
    let mut text = if budgets.budgets.is_empty() {
        "The node has no limits.\n".to_owned()
    } else {
        let title = ["limit", "budget", "overrides"].map(|title| Cell::new(title).coloured(Colour::Bold));
        let row = |listed: &Listed| {
            let overrides = overrides(listed).map_or("?".to_owned(), |count| count.to_string());
            [Cell::new(path(listed)), Cell::new(&listed.budget), Cell::new(overrides)]
        };
        let rows: Vec<_> = std::iter::once(title).chain(budgets.budgets.iter().map(row)).collect();
        table(&rows, [Align::Left, Align::Left, Align::Right], 0, paint)
    };
    text.push('\n');
    if !budgets.differences.is_empty() {
        text.push_str("What was ordered counts, and not this node's file:\n");
        budgets.differences.iter().for_each(|line| text.push_str(&format!("  {}\n", plain(line))));
        return text;
    }
    text.push_str(&lines(&standing(budgets.catalogue.as_ref()), paint));
    text
}

fn show(listed: &Listed, catalogue: Option<&Catalogue>, paint: Paint) -> String {
    let pretty = limit(listed).and_then(|limit| serde_json::to_string_pretty(&limit).ok());
    format!(
        "{}  {}\n{}\n{}\n{}",
        paint.word(Colour::Bold, &path(listed)),
        plain(&listed.budget),
        pretty.unwrap_or_else(|| plain(&listed.limit_json)),
        table_of_overrides(listed, paint),
        lines(&standing(catalogue), paint)
    )
}

/// A line for each key with numbers of its own: until when, which part was granted, why, and by whom.
fn table_of_overrides(listed: &Listed, paint: Paint) -> String {
    const TITLES: [&str; 6] = ["whose", "has", "granted", "until", "why", "by"];
    const ABOUT: [&str; 8] = ["rate", "burst", "queue", "limit", "granted", "until", "why", "author"];
    let Some(Value::Array(all)) = limit(listed).map(|mut limit| limit["overrides"].take()) else {
        return String::new();
    };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        other => other.to_string(),
    };
    let row = |fields: &serde_json::Map<String, Value>| {
        let of = |name: &str| fields.get(name).map(text).unwrap_or_default();
        let pairs = |wanted: &dyn Fn(&str) -> bool, between: &str| {
            let pairs = fields.iter().filter(|(name, _)| wanted(name));
            pairs
                .map(|(name, value)| format!("{name}{between}{}", text(value)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let whose = pairs(&|name| !ABOUT.contains(&name), "=");
        let has = pairs(&|name| ABOUT[..4].contains(&name), " ");
        [whose, has, of("granted"), of("until"), of("why"), of("author")].map(Cell::new)
    };
    let title = TITLES.map(|title| Cell::new(title).coloured(Colour::Bold));
    let rows: Vec<_> =
        std::iter::once(title).chain(all.iter().filter_map(Value::as_object).map(row)).collect();
    format!("\n{}", table(&rows, [Align::Left; 6], 0, paint))
}

/// All budgets as JSON.
#[derive(Debug, Serialize)]
struct ListJson<'a> {
    budgets: Vec<BudgetJson<'a>>,
    catalogue: Option<CatalogueJson<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    differences: &'a [String],
}

impl<'a> ListJson<'a> {
    fn new(budgets: &'a ListBudgetsResponse) -> Self {
        Self {
            budgets: budgets.budgets.iter().map(BudgetJson::new).collect(),
            catalogue: CatalogueJson::new(budgets.catalogue.as_ref()),
            differences: &budgets.differences,
        }
    }
}

/// One budget and the state of the catalogue, as JSON.
#[derive(Debug, Serialize)]
struct ShowJson<'a> {
    #[serde(flatten)]
    budget: BudgetJson<'a>,
    catalogue: Option<CatalogueJson<'a>>,
}

impl<'a> ShowJson<'a> {
    fn new(listed: &'a Listed, catalogue: Option<&'a Catalogue>) -> Self {
        Self { budget: BudgetJson::new(listed), catalogue: CatalogueJson::new(catalogue) }
    }
}

#[derive(Debug, Serialize)]
struct BudgetJson<'a> {
    domain: &'a str,
    name: &'a str,
    /// The budget in the config's words, such as "token_bucket 100/s burst 200".
    budget: &'a str,
    /// The limit in the config's form.
    limit: Option<Value>,
}

impl<'a> BudgetJson<'a> {
    fn new(listed: &'a Listed) -> Self {
        Self { domain: &listed.domain, name: &listed.name, budget: &listed.budget, limit: limit(listed) }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::catalogue::examples::{pending, settled},
        *,
    };

    fn per_key() -> Listed {
        Listed {
            domain: "shop".to_owned(),
            name: "per-key".to_owned(),
            budget: "token_bucket 60/s burst 120".to_owned(),
            limit_json: r#"{"by":["api_key"],"overrides":[{"api_key":"k1","rate":"20/s"}]}"#.to_owned(),
        }
    }

    fn search() -> Listed {
        Listed {
            domain: "shop".to_owned(),
            name: "search".to_owned(),
            budget: "sliding_window 10 in 1s".to_owned(),
            limit_json: "{}".to_owned(),
        }
    }

    #[test]
    fn the_list_has_a_line_for_each_limit_and_the_catalogue() {
        let broken = Listed { name: "broken".to_owned(), limit_json: "{".to_owned(), ..search() };
        let budgets = ListBudgetsResponse {
            budgets: vec![per_key(), search(), broken],
            catalogue: Some(pending()),
            differences: Vec::new(),
        };
        assert_eq!(
            list(&budgets, Paint::OFF),
            "\
limit         budget                       overrides
shop/per-key  token_bucket 60/s burst 120          1
shop/search   sliding_window 10 in 1s              0
shop/broken   sliding_window 10 in 1s              ?

authority  eu/eu-1, this node
version    1.8 requested, 1.7 effective everywhere
waits for  us: not heard for 12 s; it goes on when us is heard, or is evicted
"
        );
        let none =
            ListBudgetsResponse { budgets: Vec::new(), catalogue: Some(settled()), differences: Vec::new() };
        assert_eq!(
            list(&none, Paint::OFF),
            "The node has no limits.\n\nauthority  eu/eu-1, this node\nversion    1.7, effective everywhere\n"
        );
    }

    #[test]
    fn one_limit_is_shown_as_json() {
        assert_eq!(
            show(&per_key(), Some(&settled()), Paint::OFF),
            r#"shop/per-key  token_bucket 60/s burst 120
{
  "by": [
    "api_key"
  ],
  "overrides": [
    {
      "api_key": "k1",
      "rate": "20/s"
    }
  ]
}

whose       has        granted  until  why  by
api_key=k1  rate 20/s

authority  eu/eu-1, this node
version    1.7, effective everywhere
"#
        );
    }

    #[test]
    fn the_json_of_a_limit_is_as_in_a_config() {
        let budgets =
            ListBudgetsResponse { budgets: vec![search()], catalogue: None, differences: Vec::new() };
        let limit = r#""domain":"shop","name":"search","budget":"sliding_window 10 in 1s","limit":{}"#;
        assert_eq!(
            json_line(&ListJson::new(&budgets)),
            format!("{{\"budgets\":[{{{limit}}}],\"catalogue\":null}}\n")
        );
        assert_eq!(json_line(&ShowJson::new(&search(), None)), format!("{{{limit},\"catalogue\":null}}\n"));
    }

    #[test]
    fn an_unknown_limit_is_refused_with_the_known_ones() {
        let budgets = [per_key(), search()];
        let found =
            |text: &str| find(&budgets, &read_limit_path(text).expect(text)).map(|listed| &listed.name);
        assert_eq!(found("shop/search"), Ok(&"search".to_owned()));
        let fault = |text: &str| found(text).expect_err(text).to_string();
        assert_eq!(fault("shop/sarch"), "there is no limit shop/sarch. There are shop/per-key, shop/search");
        assert_eq!(
            fault("shop/search[a=b]"),
            "a whole limit is shown, with its overrides: write shop/search"
        );
        let none =
            find(&[], &read_limit_path("shop/search").expect("sound")).expect_err("no limits").to_string();
        assert_eq!(none, "there is no limit shop/search: the node has no limits");
    }
}
