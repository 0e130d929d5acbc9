//! `acequia audit`: who changed what in the catalogue, and when.

use std::process::ExitCode;

use acequia_api::acequia::v1::AuditEntry;
use clap::{Args, value_parser};
use serde::Serialize;

use super::{
    SUCCESS,
    catalogue::{VersionIdJson, version},
    console::Console,
    json_line,
    operator::{AdminAddress, Fault, operate},
    people::{Colour, Paint, at, plain},
};

/// Every change of the catalogue that the node made or carried out, oldest first.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia audit --newest 5
  acequia audit --json | jq -r .what")]
pub struct Audit {
    #[command(flatten)]
    address: AdminAddress,

    /// Show at most this many of the newest changes.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = value_parser!(u32).range(1..=10_000))]
    newest: u32,

    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

impl Audit {
    /// Asks, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        operate(async |console| self.carry_out(console).await).await
    }

    pub(super) async fn carry_out(&self, console: &mut Console<'_>) -> Result<u8, Fault> {
        let entries = self.address.connect()?.list_audit(self.newest).await?;
        let text = if self.json {
            entries.iter().map(|entry| json_line(&AuditJson::new(entry))).collect()
        } else {
            for_people(&entries, console.paint)
        };
        console.answer(&text)?;
        Ok(SUCCESS)
    }
}

fn for_people(entries: &[AuditEntry], paint: Paint) -> String {
    if entries.is_empty() {
        return "This node has made and carried out no change.\n".to_owned();
    }
    entries.iter().map(|entry| paragraph(entry, paint)).collect()
}

fn paragraph(entry: &AuditEntry, paint: Paint) -> String {
    let author = if entry.author.is_empty() { "nobody named" } else { &entry.author };
    let mut text = format!(
        "{}  {} -> {}  {}: {}\n",
        at(entry.wall_ns),
        version(entry.before),
        version(entry.after),
        plain(author),
        paint.word(Colour::Bold, &plain(&entry.what))
    );
    if !entry.reason.is_empty() {
        text.push_str(&format!("    why: {}\n", plain(&entry.reason)));
    }
    for change in &entry.changes {
        text.push_str(&format!("    {}\n", plain(change)));
    }
    text
}

/// A change as JSON.
#[derive(Debug, Serialize)]
struct AuditJson<'a> {
    /// RFC 3339, UTC, to the second.
    at: String,
    wall_ns: u64,
    author: &'a str,
    reason: &'a str,
    what: &'a str,
    before: Option<VersionIdJson>,
    after: Option<VersionIdJson>,
    changes: &'a [String],
}

impl<'a> AuditJson<'a> {
    fn new(entry: &'a AuditEntry) -> Self {
        Self {
            at: at(entry.wall_ns),
            wall_ns: entry.wall_ns,
            author: &entry.author,
            reason: &entry.reason,
            what: &entry.what,
            before: VersionIdJson::new(entry.before),
            after: VersionIdJson::new(entry.after),
            changes: &entry.changes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::catalogue::examples::version_id, *};

    fn entry() -> AuditEntry {
        AuditEntry {
            wall_ns: 1_795_305_353_999_999_999,
            author: "ana@127.0.0.1:52100".to_owned(),
            reason: "launch".to_owned(),
            what: "budget set shop/per-key rate=100/s".to_owned(),
            before: Some(version_id(7)),
            after: Some(version_id(8)),
            changes: vec!["shop/per-key: rate 60/s -> 100/s".to_owned()],
        }
    }

    #[test]
    fn an_audit_line_says_when_who_what_and_why() {
        let first = AuditEntry { what: "first\x07".to_owned(), before: None, ..AuditEntry::default() };
        assert_eq!(
            for_people(&[first, entry()], Paint::OFF),
            "\
1970-01-01T00:00:00Z  none -> none  nobody named: first\\u{7}
2026-11-21T23:55:53Z  1.7 -> 1.8  ana@127.0.0.1:52100: budget set shop/per-key rate=100/s
    why: launch
    shop/per-key: rate 60/s -> 100/s
"
        );
        assert_eq!(for_people(&[], Paint::OFF), "This node has made and carried out no change.\n");
    }

    #[test]
    fn the_json_of_the_audit_is_one_object_per_change() {
        assert_eq!(
            json_line(&AuditJson::new(&entry())),
            concat!(
                r#"{"at":"2026-11-21T23:55:53Z","wall_ns":1795305353999999999,"author":"ana@127.0.0.1:52100","#,
                r#""reason":"launch","what":"budget set shop/per-key rate=100/s","#,
                r#""before":{"epoch":1,"number":7},"after":{"epoch":1,"number":8},"#,
                r#""changes":["shop/per-key: rate 60/s -> 100/s"]}"#,
                "\n"
            )
        );
    }
}
