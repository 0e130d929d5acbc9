//! The state of the catalogue, in words and as JSON.

use acequia_api::acequia::v1::{Catalogue, Pending, VersionId};
use serde::Serialize;

use super::people::{Align, Cell, Colour, Paint, at, table};

/// A version as people write it: `1.7` is number 7 of epoch 1.
pub(super) fn version(id: Option<VersionId>) -> String {
    id.map_or("none".to_owned(), |VersionId { epoch, number }| format!("{epoch}.{number}"))
}

/// Whether this version is effective in every region.
pub(super) fn is_effective(catalogue: &Catalogue, wanted: VersionId) -> bool {
    let key = |id: VersionId| (id.epoch, id.number);
    catalogue.effective.is_some_and(|effective| key(effective) >= key(wanted))
}

/// A line about something: its name, and its description.
pub(super) type Line = [Cell; 2];

/// A table of lines.
pub(super) fn lines(lines: &[Line], paint: Paint) -> String {
    table(lines, [Align::Left; 2], 0, paint)
}

/// A line. The name is empty if the line continues the one before.
pub(super) fn line(name: &str, says: impl AsRef<str>) -> Line {
    [Cell::new(name).coloured(Colour::Bold), Cell::new(says)]
}

/// The state of the catalogue, who is pending, and how this node's file differs from the catalogue.
pub(super) fn standing(catalogue: Option<&Catalogue>) -> Vec<Line> {
    let Some(catalogue) = catalogue else {
        return vec![line(
            "catalogue",
            "none: the node stands alone, or has not heard from the authority yet",
        )];
    };
    let authority = match (catalogue.authority.as_str(), catalogue.is_authority) {
        ("", _) => "nobody that this node knows".to_owned(),
        (authority, true) => format!("{authority}, this node"),
        (authority, false) => authority.to_owned(),
    };
    let mut all = vec![line("authority", authority), line("version", versions(catalogue))];
    for (number, pending) in catalogue.pending.iter().enumerate() {
        all.push(line(if number == 0 { "waits for" } else { "" }, waiting(pending)));
    }
    for (number, difference) in catalogue.differences.iter().enumerate() {
        all.push(line(if number == 0 { "file" } else { "" }, difference));
    }
    if !catalogue.differences.is_empty() {
        all.push(line("", "the catalogue counts, not this node's file"));
    }
    all
}

fn versions(catalogue: &Catalogue) -> String {
    let requested = version(catalogue.requested);
    match catalogue.requested {
        Some(id) if is_effective(catalogue, id) => format!("{requested}, {}", everywhere(catalogue)),
        _ => format!("{requested} requested, {} effective everywhere", version(catalogue.effective)),
    }
}

/// Says where a version is effective that every node has acknowledged.
pub(super) fn everywhere(catalogue: &Catalogue) -> String {
    match catalogue.older_until_ns {
        0 => "effective everywhere".to_owned(),
        until_ns => format!(
            "effective everywhere but in windows that begin before {}, which go by earlier shares, too",
            at(until_ns)
        ),
    }
}

/// Names a node that has not acknowledged a version yet, and what would end the wait.
pub(super) fn waiting(pending: &Pending) -> String {
    match pending.waiting.as_str() {
        "" => pending.region.clone(),
        waiting => format!("{}: {waiting}", pending.region),
    }
}

/// A version as JSON: null if there is none.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct VersionIdJson {
    epoch: u32,
    number: u64,
}

impl VersionIdJson {
    pub(super) fn new(id: Option<VersionId>) -> Option<Self> {
        id.map(|VersionId { epoch, number }| Self { epoch, number })
    }
}

/// The catalogue as JSON.
#[derive(Debug, Serialize)]
pub(super) struct CatalogueJson<'a> {
    /// The authority, as region/node.
    authority: &'a str,
    is_authority: bool,
    requested: Option<VersionIdJson>,
    effective: Option<VersionIdJson>,
    pending: Vec<PendingJson<'a>>,
    differences: &'a [String],
    clock_error_ns: u64,
    drift_ppm: u32,
    revoked: &'a [String],
    older_until_ns: u64,
}

#[derive(Debug, Serialize)]
struct PendingJson<'a> {
    region: &'a str,
    waiting: &'a str,
}

impl<'a> CatalogueJson<'a> {
    pub(super) fn new(catalogue: Option<&'a Catalogue>) -> Option<Self> {
        let catalogue = catalogue?;
        let pending = catalogue.pending.iter();
        Some(Self {
            authority: &catalogue.authority,
            is_authority: catalogue.is_authority,
            requested: VersionIdJson::new(catalogue.requested),
            effective: VersionIdJson::new(catalogue.effective),
            pending: pending.map(|Pending { region, waiting }| PendingJson { region, waiting }).collect(),
            differences: &catalogue.differences,
            clock_error_ns: catalogue.clock_error_ns,
            drift_ppm: catalogue.drift_ppm,
            revoked: &catalogue.revoked,
            older_until_ns: catalogue.older_until_ns,
        })
    }
}

/// Catalogues for the tests of this folder.
#[cfg(test)]
pub(super) mod examples {
    use super::*;

    pub(in crate::commands) fn version_id(number: u64) -> VersionId {
        VersionId { epoch: 1, number }
    }

    /// Version 1.7 is effective everywhere.
    pub(in crate::commands) fn settled() -> Catalogue {
        Catalogue {
            authority: "eu/eu-1".to_owned(),
            is_authority: true,
            requested: Some(version_id(7)),
            effective: Some(version_id(7)),
            clock_error_ns: 10_000_000,
            drift_ppm: 1_000,
            ..Catalogue::default()
        }
    }

    /// Version 1.8 waits for us.
    pub(in crate::commands) fn pending() -> Catalogue {
        let us = Pending {
            region: "us".to_owned(),
            waiting: "not heard for 12 s; it goes on when us is heard, or is evicted".to_owned(),
        };
        Catalogue { requested: Some(version_id(8)), pending: vec![us], ..settled() }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        examples::{pending, settled, version_id},
        *,
    };
    use crate::commands::json_line;

    #[test]
    fn a_version_is_effective_if_it_or_a_later_one_is() {
        let catalogue = settled();
        assert!(is_effective(&catalogue, version_id(6)) && is_effective(&catalogue, version_id(7)));
        assert!(!is_effective(&catalogue, version_id(8)));
        assert!(!is_effective(&catalogue, VersionId { epoch: 2, number: 1 }), "the epoch comes first");
        assert!(is_effective(&catalogue, VersionId { epoch: 0, number: 9 }), "the epoch comes first");
        assert!(!is_effective(&Catalogue::default(), version_id(0)), "nothing is known to be effective");
    }

    #[test]
    fn a_catalogue_shows_who_has_not_acknowledged_its_version() {
        let says = |catalogue: Option<&Catalogue>| lines(&standing(catalogue), Paint::OFF);
        assert_eq!(
            says(Some(&settled())),
            "authority  eu/eu-1, this node\nversion    1.7, effective everywhere\n"
        );
        let dated = Catalogue { older_until_ns: 1_800_000_000_000_000_000, ..settled() };
        assert_eq!(
            says(Some(&dated)),
            "authority  eu/eu-1, this node\nversion    1.7, effective everywhere but in windows that begin before \
             2027-01-15T08:00:00Z, which go by earlier shares, too\n"
        );
        let mut behind = Catalogue { is_authority: false, ..pending() };
        behind.pending.push(Pending { region: "ap".to_owned(), waiting: String::new() });
        behind.differences = vec![
            "shop/per-key: rate 60/s in the file, 100/s in the catalogue".to_owned(),
            "shop/a\nb".to_owned(),
        ];
        assert_eq!(
            says(Some(&behind)),
            "\
authority  eu/eu-1
version    1.8 requested, 1.7 effective everywhere
waits for  us: not heard for 12 s; it goes on when us is heard, or is evicted
           ap
file       shop/per-key: rate 60/s in the file, 100/s in the catalogue
           shop/a\\nb
           the catalogue counts, not this node's file
"
        );
        assert_eq!(
            says(None),
            "catalogue  none: the node stands alone, or has not heard from the authority yet\n"
        );
        assert_eq!(
            says(Some(&Catalogue::default())),
            "authority  nobody that this node knows\nversion    none requested, none effective everywhere\n"
        );
    }

    #[test]
    fn the_json_of_a_catalogue_has_every_field() {
        assert_eq!(
            json_line(&CatalogueJson::new(Some(&Catalogue { effective: None, ..pending() }))),
            concat!(
                r#"{"authority":"eu/eu-1","is_authority":true,"requested":{"epoch":1,"number":8},"#,
                r#""effective":null,"pending":[{"region":"us","#,
                r#""waiting":"not heard for 12 s; it goes on when us is heard, or is evicted"}],"#,
                r#""differences":[],"clock_error_ns":10000000,"drift_ppm":1000,"revoked":[],"older_until_ns":0}"#,
                "\n"
            )
        );
        assert_eq!(json_line(&CatalogueJson::new(None)), "null\n");
    }
}
