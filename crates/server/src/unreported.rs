//! Limits whose holds nobody reports. A hold that lapses goes back, so such a limit counts nothing.

use std::collections::BTreeSet;

use acequia_node::Catalogue;
use tracing::warn;

use crate::settings::SETTINGS;

/// The limits of which the log has told, by slot.
#[derive(Debug, Default)]
pub(crate) struct ToldUnreported(BTreeSet<u32>);

impl ToldUnreported {
    /// Logs a line for each limit whose holds only lapse: once, however long that lasts.
    pub(crate) fn tell(&mut self, catalogue: &Catalogue) {
        for active in catalogue.limits.iter().filter(|active| active.limit.expect.is_some()) {
            let holds = active.ended_holds();
            if self.is_news(active.slot(), holds.are_never_reported()) {
                warn!(
                    limit = active.limit.path(),
                    lapsed = holds.lapsed(),
                    "holds only lapse, so the limit counts nothing: report what each request cost with its charge id \
                     (deploy/proxies/README.md), or leave `expect` out"
                );
            }
        }
    }

    /// Whether to tell of a limit now.
    fn is_news(&mut self, slot: u32, are_never_reported: bool) -> bool {
        are_never_reported && self.0.len() < SETTINGS.counts.unreported_told_max && self.0.insert(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_told_of_once_and_a_hundred_at_most() {
        let mut told = ToldUnreported::default();
        assert!(!told.is_news(1, false));
        assert!(told.is_news(1, true), "its holds have lapsed since");
        assert!(!told.is_news(1, true));
        let news = (0..1_000).filter(|slot| told.is_news(*slot, true)).count();
        assert_eq!(news, SETTINGS.counts.unreported_told_max - 1);
    }
}
