//! The record of one charge.

use std::collections::BTreeSet;

use acequia_limits::{CellTag, LimitId, Now, Reason, Verdict};
use acequia_rights::pool::Generation;
use serde::{Deserialize, Serialize};

use super::{Keep, RESERVE_NS_MAX};
use crate::{Answer, Catalogue, Charged, LimitAnswer, Mode, Outcome, decide::is_set_apart};

/// The name of a charge: a hash that only this node can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChargeId(pub u128);

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
}

/// How units are charged provisionally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Nanoseconds until the reservation lapses: 1 to [`RESERVE_NS_MAX`].
    pub ttl_ns: u64,
    /// Whether the units stay charged when the reservation lapses.
    pub keeps: bool,
    /// Whether fewer units than requested may be reserved.
    pub at_most: bool,
}

/// What was charged, and the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    fingerprint: u128,
    /// When the charge was made, on both clocks.
    steady_ns: u64,
    wall_ns: u64,
    /// The request's cost.
    cost: u64,
    pub(super) state: State,
    /// The owner; no particular owner after a restart.
    #[serde(skip)]
    pub(super) owner: u32,
    /// The batch in which this process sent the record to the disk; 0 if the record is there.
    #[serde(skip)]
    pub(crate) batch: u64,
    /// Whether an earlier process charged it.
    #[serde(skip)]
    pub(super) is_restored: bool,
    /// The generation of the region's store in which other nodes may answer by this record.
    #[serde(skip)]
    pub(super) shared: Option<Generation>,
    /// The real cost that was reported while other nodes could answer by the record. The reported cost counts
    /// when other nodes cannot answer any more, or the reservation lapses.
    #[serde(skip)]
    pub(super) said: Option<u64>,
    /// When the record was settled or lapsed: steady clock; 0 before.
    ended_ns: u64,
    /// Whether units came back then.
    came_back: bool,
    allowed: bool,
    decisive: Option<u32>,
    retry_after_ns: u64,
    delay_ns: u64,
    unmatched: u64,
    limits: Vec<Limit>,
}

/// The state of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    /// The charge stands, and may be given back.
    Charged,
    /// The charge is provisional until then, on the steady clock.
    Reserved { until_ns: u64, keeps: bool },
    /// The charge was given back, or its real cost is known.
    Settled,
    /// Nobody reported the real cost in time.
    Lapsed,
}

/// One limit's answer and charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limit {
    pub(super) id: LimitId,
    pub(super) tag: CellTag,
    pub(super) units: u64,
    pub(super) is_charged: bool,
    /// Whether the units were set apart as a lease rather than charged.
    pub(super) is_leased: bool,
    /// Whether the limit's cells were kept in the journal at the charge.
    is_durable: bool,
    outcome: u8,
    class: Option<u8>,
    allowed: bool,
    is_over: bool,
    remaining: u64,
    retry_after_ns: u64,
    delay_ns: u64,
    reset_after_ns: u64,
    descriptors: u64,
    budget: u64,
}

const OUTCOMES: [Outcome; 4] = [Outcome::Allow, Outcome::Deny, Outcome::ShadowDeny, Outcome::Unlimited];

impl Record {
    /// The record of an answer that charged something, for a request of this cost.
    pub(crate) fn new(
        recording: &Recording,
        (answer, catalogue): (&Answer, &Catalogue),
        cost: u64,
        now: Now,
    ) -> Self {
        let state = match recording.reserve {
            None => State::Charged,
            Some(Reserve { ttl_ns, keeps, .. }) => {
                let until_ns = now.steady_ns.saturating_add(ttl_ns.min(RESERVE_NS_MAX));
                State::Reserved { until_ns, keeps }
            }
        };
        let limits = answer.limits.iter().map(|limit| {
            let LimitAnswer { verdict, tag, units, is_charged, class, descriptors, budget, .. } = *limit;
            let outcome = OUTCOMES.iter().position(|outcome| *outcome == limit.outcome).unwrap_or(0);
            let active = &catalogue.limits[limit.limit as usize];
            Limit {
                id: active.limit.id,
                tag,
                units,
                is_charged,
                is_leased: recording.reserve.is_some_and(|reserve| reserve.at_most)
                    && is_set_apart(&active.limit.algorithm),
                is_durable: active.durable,
                outcome: outcome as u8,
                class,
                allowed: verdict.allowed,
                is_over: limit.reason != Reason::WithinLimit,
                remaining: verdict.remaining,
                retry_after_ns: verdict.retry_after_ns,
                delay_ns: verdict.delay_ns,
                reset_after_ns: verdict.reset_after_ns,
                descriptors,
                budget,
            }
        });
        Self {
            fingerprint: recording.fingerprint,
            steady_ns: now.steady_ns,
            wall_ns: now.wall_ns,
            cost,
            state,
            owner: recording.owner,
            batch: 0,
            is_restored: false,
            shared: None,
            said: None,
            ended_ns: 0,
            came_back: false,
            allowed: answer.allowed,
            // There are few enough places for 32 bits. Postcard writes places below 65 536 as earlier
            // programs wrote them.
            decisive: answer.decisive.map(|place| place as u32),
            retry_after_ns: answer.retry_after_ns,
            delay_ns: answer.delay_ns,
            unmatched: answer.unmatched,
            limits: limits.collect(),
        }
    }

    /// Bytes that the record takes, with its places in the lists. Nodes of a B-tree are two thirds full, as a
    /// rule.
    pub(super) fn bytes(&self) -> usize {
        const IN_LISTS: usize = size_of::<(u128, Record)>() * 3 / 2 + 2 * size_of::<(u64, u128)>();
        IN_LISTS + self.limits.len() * size_of::<Limit>()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // A record has only numbers and lists of numbers, so encoding cannot fail.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Returns `None` if the bytes are not a valid record.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok().filter(Self::is_sound)
    }

    /// Whether a decoded record is valid.
    pub(super) fn is_sound(&self) -> bool {
        self.limits.iter().all(|limit| usize::from(limit.outcome) < OUTCOMES.len())
    }

    /// Whether the record is neither settled nor lapsed.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Charged | State::Reserved { .. })
    }

    /// The record as an earlier process left it. The steady clock was anchored to the wall clock anew, and
    /// the clocks are at most `error_ns` off. So a reservation ends no sooner than it would have by any of
    /// the clocks.
    pub(super) fn restored(mut self, error_ns: u64, now: Now) -> Self {
        self.is_restored = true;
        if let State::Reserved { until_ns, .. } = &mut self.state {
            let ttl_ns = until_ns.saturating_sub(self.steady_ns).min(RESERVE_NS_MAX);
            let surely_ns =
                now.wall_ns.saturating_sub(self.wall_ns).saturating_sub(error_ns.saturating_mul(2));
            let by_wall_ns = now.steady_ns.saturating_add(ttl_ns.saturating_sub(surely_ns));
            *until_ns = (*until_ns).min(now.steady_ns.saturating_add(ttl_ns)).max(by_wall_ns);
        }
        self
    }

    /// Drops charges that a crash forgot because they were not journalled: neither this process nor a later
    /// one gives them back. Says whether there were any.
    pub(super) fn forget(&mut self, is_durable: impl Fn(LimitId) -> bool) -> bool {
        let forgotten = |limit: &&mut Limit| {
            limit.is_charged && !limit.is_leased && !(limit.is_durable && is_durable(limit.id))
        };
        let mut any = false;
        for limit in self.limits.iter_mut().filter(forgotten) {
            limit.is_charged = false;
            any = true;
        }
        any
    }

    /// Ends the record as settled or lapsed.
    pub(super) fn end(&mut self, state: State, came_back: bool, now: Now) {
        (self.state, self.came_back, self.ended_ns) = (state, came_back, now.steady_ns);
    }

    /// Whether some units came back: the record then does not stand for its answer any more.
    pub(crate) fn came_back(&self) -> bool {
        self.came_back
    }

    /// Whether the record belongs to the same request.
    pub(crate) fn is_of(&self, recording: &Recording) -> bool {
        self.fingerprint == recording.fingerprint
    }

    /// When the charge was made: steady clock.
    pub(super) fn made_ns(&self) -> u64 {
        self.steady_ns
    }

    /// When the charge was made, on both clocks.
    pub(super) fn made(&self) -> Now {
        Now { steady_ns: self.steady_ns, wall_ns: self.wall_ns }
    }

    /// When the reservation ends; `None` if the charge is not a reservation, or is settled.
    pub(super) fn lapses_ns(&self) -> Option<u64> {
        match self.state {
            State::Reserved { until_ns, .. } => Some(until_ns),
            _ => None,
        }
    }

    /// Nanoseconds until the reservation lapses; 0 if the charge is not a reservation, or has ended.
    pub(crate) fn lapses_in_ns(&self, now: Now) -> u64 {
        self.lapses_ns().map_or(0, |until_ns| until_ns.saturating_sub(now.steady_ns))
    }

    /// The request's cost.
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    /// The time since which nothing more is to happen to the record: steady clock. An open reservation rests
    /// from when it lapses.
    pub(super) fn rests_since_ns(&self) -> u64 {
        self.lapses_ns().unwrap_or(self.steady_ns.max(self.ended_ns))
    }

    /// Whether the record may be dropped, and rests since `since_ns`.
    pub(super) fn rests_since(&self, since_ns: u64) -> bool {
        self.lapses_ns().is_none() && self.rests_since_ns() == since_ns
    }

    /// Whether the record need not be remembered any more. A clock that was set back does not keep it for
    /// ever.
    pub(super) fn is_over(&self, keep: Keep, now: Now) -> bool {
        let from_ns = self.rests_since_ns();
        now.steady_ns >= from_ns.saturating_add(keep.keep_ns)
            || self.steady_ns > now.steady_ns.saturating_add(keep.keep_ns)
    }

    /// The limits that were charged.
    pub(super) fn charged(&self) -> impl Iterator<Item = &Limit> {
        self.limits.iter().filter(|limit| limit.is_charged)
    }

    /// Whether any of these limits was charged.
    pub(super) fn has_charged_any(&self, limits: &BTreeSet<LimitId>) -> bool {
        self.is_open() && self.charged().any(|charged| limits.contains(&charged.id))
    }

    /// Ends refunds of the charges under these limits.
    pub(super) fn strip(&mut self, limits: &BTreeSet<LimitId>) {
        // A lease still ends exactly as before: no rate is involved.
        let of = |limit: &&mut Limit| limits.contains(&limit.id) && !limit.is_leased;
        for limit in self.limits.iter_mut().filter(of) {
            limit.is_charged = false;
        }
    }

    /// Restores the answer, with the limits that still exist.
    pub(crate) fn answer(&self, answer: &mut Answer, catalogue: &Catalogue, charged: Charged) {
        answer.limits.clear();
        answer.decisive = None;
        for (place, limit) in self.limits.iter().enumerate() {
            let Some(number) = catalogue.place_of(limit.id) else { continue };
            if self.decisive == Some(place as u32) {
                answer.decisive = Some(answer.limits.len());
            }
            answer.limits.push(limit.answer(number, catalogue));
        }
        answer.allowed = self.allowed;
        answer.reason = match answer.decisive {
            Some(place) => answer.limits[place].reason,
            None => Reason::WithinLimit,
        };
        answer.retry_after_ns = self.retry_after_ns;
        answer.delay_ns = self.delay_ns;
        answer.unmatched = self.unmatched;
        answer.charge = Some(charged);
    }
}

impl Limit {
    fn answer(&self, number: u32, catalogue: &Catalogue) -> LimitAnswer {
        let outcome = OUTCOMES[usize::from(self.outcome)];
        let is_enforced = catalogue.limits[number as usize].limit.spec.mode == Mode::Enforce;
        let reason = match outcome {
            Outcome::Unlimited => Reason::Unlimited,
            _ if self.is_over || (outcome == Outcome::Deny && is_enforced) => Reason::OverLimit,
            _ => Reason::WithinLimit,
        };
        LimitAnswer {
            limit: number,
            tag: self.tag,
            verdict: Verdict {
                allowed: self.allowed,
                remaining: self.remaining,
                retry_after_ns: self.retry_after_ns,
                delay_ns: self.delay_ns,
                reset_after_ns: self.reset_after_ns,
            },
            outcome,
            reason,
            descriptors: self.descriptors,
            units: self.units,
            budget: self.budget,
            expected_wait_ns: 0,
            class: self.class,
            is_charged: false,
            forwarded_to: None,
            is_forwarded: false,
            numbers: 0,
        }
    }
}
