//! Why limits do not apply to a request: the other half of a peek.

use acequia_limits::{Mode, Request};

use crate::{Active, Catalogue};

/// A limit of the request's domain that does not apply, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// Which limit, in [`Catalogue::limits`].
    pub limit: u32,
    /// In words.
    pub why: String,
}

impl Catalogue {
    /// The limits of the request's domain that no descriptor matches, in the order of the file.
    pub fn unmatched(&self, request: &Request<'_>, wall_ns: u64) -> Vec<Unmatched> {
        let mut unmatched = Vec::new();
        for number in self.limits_of(request.domain) {
            let active = &self.limits[*number as usize];
            if let Some(why) = why_not(active, request, wall_ns) {
                unmatched.push(Unmatched { limit: *number, why });
            }
        }
        unmatched
    }
}

/// Nothing, if some descriptor matches.
fn why_not(active: &Active, request: &Request<'_>, wall_ns: u64) -> Option<String> {
    if active.limit.spec.mode == Mode::Off {
        return Some("mode is off".to_owned());
    }
    if active.from_ns.is_some_and(|from| wall_ns < from) {
        return Some("waits for the window of the limit it replaces to end".to_owned());
    }
    if !active.is_in_force(wall_ns) {
        return Some("was replaced".to_owned());
    }
    let mut first = None;
    for descriptor in request.descriptors() {
        let condition = active.limit.when.iter().find(|condition| !condition.holds(&descriptor));
        let why = match condition {
            Some(condition) => match descriptor.value(condition.key.as_bytes()) {
                Some(value) => {
                    format!("{} is {}, wanted {condition}", condition.key, value.escape_ascii())
                }
                None => format!("no entry {}", condition.key),
            },
            None => {
                let missing = active.limit.by.iter().find(|by| descriptor.value(by.key.as_bytes()).is_none());
                // Without a missing key the descriptor matches, and so does the request.
                format!("no entry {}", missing?.key)
            }
        };
        first.get_or_insert(why);
    }
    first
}
