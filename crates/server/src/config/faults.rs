//! The faults of a config, and their lines in the file.

use serde_saphyr::Spanned;

use super::ConfigFault;
use crate::settings::SETTINGS;

/// Gathers every fault of a file, so that an operator mends them in one go.
pub(super) struct Faults<'a> {
    lines: Vec<&'a str>,
    found: Vec<ConfigFault>,
}

impl<'a> Faults<'a> {
    /// No faults yet, for the file with this text.
    pub(super) fn new(text: &'a str) -> Self {
        Self { lines: text.lines().collect(), found: Vec::new() }
    }

    /// All faults that were found, in the order of the lines.
    pub(super) fn into_sorted(mut self) -> Vec<ConfigFault> {
        self.found.sort();
        self.found
    }

    /// Notes a fault in a line.
    pub(super) fn add(&mut self, line: u64, what: String) {
        self.found.push(ConfigFault { line, what });
    }

    /// Notes a fault in the line of a value.
    pub(super) fn at<T>(&mut self, place: &Spanned<T>, what: String) {
        self.add(line(place), what);
    }

    /// The value that was read; or nothing, and a fault in the line of the value.
    pub(super) fn take<T, P>(&mut self, result: Result<T, String>, place: &Spanned<P>) -> Option<T> {
        result.map_err(|what| self.at(place, what)).ok()
    }

    /// Notes a name that no region and no node can have.
    pub(super) fn name(&mut self, kind: &str, name: &Spanned<String>) {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let text = &name.value;
        if text.is_empty() || text.len() > 64 || !text.chars().all(fits) {
            self.at(name, format!("a {kind} is 1 to 64 letters, digits, '-', '_' and '.': {text:?}"));
        }
    }

    /// The first line in `begin..end` that gives a field; `begin` if none does.
    pub(super) fn line_of(&self, field: &str, begin: u64, end: u64) -> u64 {
        let lines =
            self.numbered(end.saturating_sub(1)).skip(usize::try_from(begin).unwrap_or(0).saturating_sub(1));
        lines.filter(|(_, line)| gives(line, field)).map(|(n, _)| n).next().unwrap_or(begin)
    }

    /// The line that gives a field whose value begins in line `value`: that line, or the nearest above.
    pub(super) fn line_above(&self, field: &str, value: u64) -> u64 {
        let lines = self.numbered(value).rev();
        lines.filter(|(_, line)| gives(line, field)).map(|(n, _)| n).next().unwrap_or(value)
    }

    /// The lines up to line `last`, each with its number.
    fn numbered(&self, last: u64) -> impl DoubleEndedIterator<Item = (u64, &'a str)> + '_ {
        let last = usize::try_from(last).unwrap_or(usize::MAX).min(self.lines.len());
        self.lines[..last].iter().enumerate().map(|(place, line)| (place as u64 + 1, *line))
    }
}

/// The line in which a value stands; 0 where it is not in the file.
pub(super) fn line<T>(place: &Spanned<T>) -> u64 {
    place.referenced.line()
}

/// A short list of names, however many there are.
pub(super) fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(SETTINGS.reading.listed_max);
    let list = names.take(SETTINGS.reading.listed_max).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{list} and {more} more") } else { list }
}

/// Whether a line has a field and its colon.
fn gives(line: &str, field: &str) -> bool {
    line.match_indices(field).any(|(place, _)| {
        let before = line[..place].chars().next_back();
        let after = line[place + field.len()..].trim_start();
        before.is_none_or(|c| " {,\"'".contains(c)) && after.trim_start_matches(['"', '\'']).starts_with(':')
    })
}
