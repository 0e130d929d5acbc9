//! Why limits do not apply to a request: part of the answer to a peek.

use acequia_limits::{Mode, Request, notation::format_duration_ns, path::Path};

use crate::Catalogue;

/// A limit of the request's domain that does not apply, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// The limit, as an index into [`Catalogue::limits`].
    pub limit: u32,
    /// The reason, in words.
    pub why: String,
}

impl Catalogue {
    /// The limits of the request's domain that no descriptor matches, in the order of the file: the first
    /// `most` of them.
    pub fn unmatched(&self, request: &Request<'_>, most: usize, wall_ns: u64) -> Vec<Unmatched> {
        let unmatched = self.limits_of(request.domain).iter().filter_map(|number| {
            let why = why_not(*number, self, request, wall_ns)?;
            Some(Unmatched { limit: *number, why })
        });
        unmatched.take(most).collect()
    }
}

impl Catalogue {
    /// The limits of a domain that another shape has replaced but that still count, a line each.
    pub fn replaced(&self, domain: &[u8], wall_ns: u64) -> Vec<String> {
        let active = self.limits_of(domain).iter().map(|number| &self.limits[*number as usize]);
        let replaced = active.filter_map(|active| {
            let left_ns = active.until_ns?.checked_sub(wall_ns).filter(|left_ns| *left_ns > 0)?;
            Some(format!(
                "{} was replaced by another shape of the limit, and counts beside it for {}",
                active.limit.path(),
                format_duration_ns(left_ns.next_multiple_of(1_000_000_000))
            ))
        });
        replaced.collect()
    }
}

/// The reason why no descriptor matches; `None` if one does.
fn why_not(number: u32, catalogue: &Catalogue, request: &Request<'_>, wall_ns: u64) -> Option<String> {
    let active = &catalogue.limits[number as usize];
    if active.limit.spec.mode == Mode::Off {
        return Some("mode is off".to_owned());
    }
    if !active.is_in_force(wall_ns) {
        return Some("was replaced".to_owned());
    }
    if let Some(path) = &active.limit.path {
        return why_not_path(number, path, request, catalogue);
    }
    if active.limit.spec.from_callers {
        let mut named = request.descriptors().filter_map(|descriptor| descriptor.limit);
        let is_named = named.any(|named| active.limit.is_named(named));
        return (!is_named).then(|| "the caller names no limit for such windows".to_owned());
    }
    let mut first = None;
    for descriptor in request.descriptors() {
        let condition = active.limit.when.iter().find(|condition| !condition.holds(&descriptor));
        let why = match condition {
            Some(condition) if condition.is_absent => format!("there is an entry {}", condition.key),
            Some(condition) => match descriptor.value(condition.key.as_bytes()) {
                Some(value) => {
                    format!("{} is {}, wanted {condition}", condition.key, short(value))
                }
                None => format!("no entry {}", condition.key),
            },
            None => {
                let missing = active.limit.by.iter().find(|by| descriptor.value(by.key.as_bytes()).is_none());
                match (missing, active.limit.stranger(&descriptor)) {
                    (Some(missing), _) => format!("no entry {}", missing.key),
                    (None, Some(key)) if active.limit.spec.exact => {
                        format!("entry {} is not in `when` or `by`, and the limit is exact", short(key))
                    }
                    // The descriptor matches, and so does the request.
                    (None, _) => return None,
                }
            }
        };
        first.get_or_insert(why);
    }
    first
}

/// As [`why_not`], for a limit with a path.
fn why_not_path(number: u32, path: &Path, request: &Request<'_>, catalogue: &Catalogue) -> Option<String> {
    let domain = catalogue.domain(request.domain)?;
    let mut first = None;
    for descriptor in request.descriptors() {
        let mut is_found = false;
        domain.index.candidates(&descriptor, |found| is_found |= found == number);
        if is_found {
            return None;
        }
        let (entries, steps) = (descriptor.entries, path.steps().len());
        let why = match path.misfit(&descriptor) {
            Some((place, step)) => match entries.get(place) {
                Some((key, value)) => {
                    format!("entry {} is {}={}, wanted {step}", place + 1, short(key), short(value))
                }
                None => format!("no entry {}, wanted {step}", place + 1),
            },
            None if entries.len() > steps => format!("{} entries, wanted {steps}", entries.len()),
            None => "the path of another limit fits better".to_owned(),
        };
        first.get_or_insert(why);
    }
    first
}

/// The most bytes of a caller's text that are shown.
const SHOWN_BYTES: usize = 256;

/// A caller's text as it is shown.
fn short(text: &[u8]) -> String {
    let begin = &text[..text.len().min(SHOWN_BYTES)];
    format!("{}{}", begin.escape_ascii(), if begin.len() < text.len() { "..." } else { "" })
}
