//! How a caller wants a charge to be remembered.

/// The name of a charge: a hash that only this node can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChargeId(pub u128);

impl ChargeId {
    /// The name as text: 32 hexadecimal digits.
    pub fn to_text(self) -> String {
        format!("{:032x}", self.0)
    }

    /// The name from text; `None` if the text is not a name.
    pub fn from_text(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| is_hex).map(Self)
    }
}

/// Which answers are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// Every answer that charges something: the caller asked for that.
    Always,
    /// As `Always`, and everything that is charged is a hold: a real cost that is said after the reservation lapsed
    /// counts in full, once.
    AsHold,
    /// Only an answer that takes a slot ([`acequia_limits::Limit::is_concurrent`]) or a hold
    /// ([`acequia_limits::Limit::expect`]), so that it can be released. No caller may know the name beforehand.
    IfHeld,
}

/// How a charge is to be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The charge's name.
    pub id: ChargeId,
    /// A hash of the whole request: another request under the same name is refused.
    pub fingerprint: u128,
    /// Whether the caller may repeat the request, so that the reply waits until the record is on disk.
    pub is_repeatable: bool,
    /// Set if the charge is provisional.
    pub reserve: Option<Reserve>,
    /// The owner, by any number; 0 for no particular owner. If there are too many records, the owner with the
    /// most loses its oldest.
    pub owner: u32,
    /// Which answers are remembered.
    pub remember: Remember,
}

impl Recording {
    /// Whether the caller spends the reserved units without asking again.
    pub(crate) fn is_lease(&self) -> bool {
        self.remember == Remember::Always && self.reserve.is_some_and(|reserve| reserve.at_most)
    }
}

/// How units are charged provisionally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Nanoseconds until the reservation lapses: 1 to [`super::RESERVE_NS_MAX`].
    pub ttl_ns: u64,
    /// Whether the units stay charged when the reservation lapses.
    pub keeps: bool,
    /// Whether fewer units than requested may be reserved.
    pub at_most: bool,
}
