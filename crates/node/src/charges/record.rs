//! The record of one charge.

use std::collections::BTreeSet;

use acequia_limits::{CellTag, LimitId, Now, Reason, Verdict};
use acequia_rights::{
    mutation::{Mutation, mutated},
    pool::Generation,
};
use serde::{Deserialize, Serialize};

use super::{Keep, RESERVE_NS_MAX, Recording, Remember, Reserve, holds::HeldCells};
use crate::{Active, Answer, Catalogue, Charged, LateCost, LimitAnswer, Outcome, decide::is_set_apart};

/// What was charged, and the answer. The bytes of a record are those of its fields in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    fingerprint: u128,
    made: Made,
    /// The request's cost.
    cost: u64,
    pub(super) state: RecordState,
    #[serde(skip)]
    pub(super) memory: InMemory,
    /// When the record was settled or lapsed: steady clock; 0 before.
    ended_ns: u64,
    /// Whether units came back then.
    came_back: bool,
    answer: RecordedAnswer,
    /// [`VERSION`]: bytes of another version are not read, so what they charged stays charged.
    version: u8,
}

/// The version of a record's bytes.
const VERSION: u8 = 2;

/// When a charge was made, on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Made {
    steady_ns: u64,
    wall_ns: u64,
}

impl SlotTerm {
    /// Whether all charges are known, so that they can be moved to a later time.
    pub(super) const fn is_renewable(self) -> bool {
        self.ttl_ns > 0
    }
}

impl Made {
    const fn at(now: Now) -> Self {
        Self { steady_ns: now.steady_ns, wall_ns: now.wall_ns }
    }

    pub(super) const fn now(self) -> Now {
        Now { steady_ns: self.steady_ns, wall_ns: self.wall_ns }
    }

    /// How long to wait, from `now`, until `ttl_ns` have surely passed since then. The steady clock was
    /// anchored to the wall clock anew, and clocks are at most `error_ns` off.
    fn left_ns(self, ttl_ns: u64, error_ns: u64, now: Now) -> u64 {
        let surely_ns = now.wall_ns.saturating_sub(self.wall_ns).saturating_sub(error_ns.saturating_mul(2));
        ttl_ns.saturating_sub(surely_ns)
    }
}

/// What only this process knows of a record: nobody reads it from the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InMemory {
    /// The owner; no particular owner after a restart.
    pub(super) owner: u32,
    /// The batch in which this process sent the record to the disk; 0 if the record is there.
    pub(super) batch: u64,
    /// Whether an earlier process charged it.
    pub(super) is_restored: bool,
    /// The generation of the region's store in which other nodes may answer by this record.
    pub(super) shared: Option<Generation>,
    /// The real cost that was reported while other nodes could answer by the record. The reported cost counts
    /// when other nodes cannot answer any more, or the reservation lapses.
    pub(super) said: Option<u64>,
    /// Whether a report that named no charge settled the record, and its own request has not reported yet.
    pub(super) is_taken: bool,
}

/// The answer that the request got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedAnswer {
    allowed: bool,
    /// The place among `limits` of the limit that decided.
    decisive: Option<u32>,
    retry_after_ns: u64,
    delay_ns: u64,
    unmatched: u64,
    limits: Vec<LimitRecord>,
}

/// The state of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RecordState {
    /// The charge stands, and may be given back.
    Charged,
    /// The charge is provisional until then, on the steady clock.
    Reserved { until_ns: u64, keeps: bool },
    /// The charge was given back, or its real cost is known.
    Settled,
    /// Nobody reported the real cost in time.
    Lapsed,
    /// The charge takes slots.
    Slots(SlotTerm),
}

/// How long slots are taken. All times are of the steady clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SlotTerm {
    /// When the slots lapse, unless they are renewed.
    pub(super) until_ns: u64,
    /// The time to which the slots' charges are dated: when they were taken, or last renewed.
    pub(super) since: Made,
    /// How long slots are taken, from then; 0 if they cannot be renewed.
    pub(super) ttl_ns: u64,
    /// Whether other charges of the request stay when the slots lapse.
    keeps: bool,
}

/// One limit's answer and charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LimitRecord {
    pub(super) id: LimitId,
    pub(super) tag: CellTag,
    pub(super) units: u64,
    pub(super) is_charged: bool,
    /// Whether the units were set apart as a lease rather than charged.
    pub(super) is_leased: bool,
    /// Whether the limit's cells were kept in the journal at the charge.
    is_durable: bool,
    /// The place among [`OUTCOMES`]; with [`SLOT`] for a limit on requests under way.
    outcome: u8,
    /// If the units are a hold, the cost that was expected; otherwise 0.
    pub(super) expected: u64,
    class: Option<u8>,
    allowed: bool,
    is_over: bool,
    verdict: VerdictNumbers,
    descriptors: u64,
    pub(super) budget: u64,
}

/// The numbers of a limit's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VerdictNumbers {
    remaining: u64,
    retry_after_ns: u64,
    delay_ns: u64,
    reset_after_ns: u64,
}

const OUTCOMES: [Outcome; 4] = [Outcome::Allow, Outcome::Deny, Outcome::ShadowDeny, Outcome::Unlimited];
/// Marks the outcome of a limit on requests under way: its units are slots.
const SLOT: u8 = 1 << 7;

impl Record {
    /// The record of an answer that charged something, for a request of this cost.
    pub(crate) fn new(
        recording: &Recording,
        answer: &Answer,
        catalogue: &Catalogue,
        cost: u64,
        now: Now,
    ) -> Self {
        let lapses_ns = |ttl_ns: u64| now.steady_ns.saturating_add(ttl_ns);
        let state = match (recording.reserve, slots_ttl_ns(answer, catalogue)) {
            (None, None) => match hold_ns(answer, catalogue) {
                Some(within_ns) => RecordState::Reserved { until_ns: lapses_ns(within_ns), keeps: false },
                None => RecordState::Charged,
            },
            (Some(Reserve { ttl_ns, keeps, .. }), None) => {
                let ttl_ns = ttl_ns.min(RESERVE_NS_MAX).max(hold_ns(answer, catalogue).unwrap_or(0));
                RecordState::Reserved { until_ns: lapses_ns(ttl_ns), keeps }
            }
            (reserve, Some(ttl_ns)) => {
                let ttl_ns = reserve.map_or(ttl_ns, |reserve| reserve.ttl_ns.min(ttl_ns));
                // Nobody asked that a hold be kept. What the request was charged beside its holds stays anyway.
                let keeps = reserve.map_or(hold_ns(answer, catalogue).is_none(), |reserve| reserve.keeps);
                RecordState::Slots(SlotTerm {
                    until_ns: lapses_ns(ttl_ns),
                    since: Made::at(now),
                    ttl_ns,
                    keeps,
                })
            }
        };
        let is_lease = recording.is_lease();
        let limits = answer.limits.iter().map(|limit| {
            let active = &catalogue.limits[limit.limit as usize];
            let expected = match recording.remember {
                // A request takes no more slots because it cost more.
                Remember::AsHold if !active.limit.is_concurrent() => cost,
                _ => limit.late.expected,
            };
            LimitRecord::new(limit, active, is_lease, expected)
        });
        Self {
            fingerprint: recording.fingerprint,
            made: Made::at(now),
            cost,
            state,
            memory: InMemory { owner: recording.owner, ..InMemory::default() },
            ended_ns: 0,
            came_back: false,
            answer: RecordedAnswer {
                allowed: answer.allowed,
                // There are few enough places for 32 bits. Postcard writes places below 65 536 as earlier
                // programs wrote them.
                decisive: answer.decisive.map(|place| place as u32),
                retry_after_ns: answer.retry_after_ns,
                delay_ns: answer.delay_ns,
                unmatched: answer.unmatched,
                limits: limits.collect(),
            },
            version: VERSION,
        }
    }

    /// Bytes that the record takes, with its places in the lists. Nodes of a B-tree are two thirds full, as a
    /// rule.
    pub(super) fn bytes(&self) -> usize {
        const IN_LISTS: usize = size_of::<(u128, Record)>() * 3 / 2 + 2 * size_of::<(u64, u128)>();
        const AMONG_HOLDS: usize = size_of::<(HeldCells, u64, u128)>() * 3 / 2;
        let among_holds = if self.unnamed_hold().is_some() { AMONG_HOLDS } else { 0 };
        IN_LISTS + among_holds + self.answer.limits.len() * size_of::<LimitRecord>()
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
        let has_outcome = |limit: &LimitRecord| usize::from(limit.outcome & !SLOT) < OUTCOMES.len();
        self.version == VERSION && self.answer.limits.iter().all(has_outcome)
    }

    /// Whether any units were charged as a hold, given back or not by now.
    pub(super) fn has_holds(&self) -> bool {
        self.answer.limits.iter().any(LimitRecord::is_hold)
    }

    /// The cells that an open record holds units of, if a report that names no charge may settle it. Nobody but
    /// the node chose such a record's name. It takes no slots: whoever has no name may have none.
    pub(super) fn unnamed_hold(&self) -> Option<HeldCells> {
        let is_reserved = matches!(self.state, RecordState::Reserved { .. });
        let is_unnamed = self.fingerprint == 0 && (is_reserved || mutated(Mutation::UnnamedReportFreesSlots));
        self.held_cells().filter(|_| is_unnamed)
    }

    /// The cells that the record held units of, given back or not by now.
    pub(super) fn held_cells(&self) -> Option<HeldCells> {
        HeldCells::of(self.answer.limits.iter().filter(|limit| limit.is_hold()).map(|limit| limit.tag))
    }

    /// Whether the record is neither settled nor lapsed.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, RecordState::Charged | RecordState::Reserved { .. } | RecordState::Slots(_))
    }

    /// The record as an earlier process left it. The steady clock was anchored to the wall clock anew, and
    /// the clocks are at most `error_ns` off. So a reservation ends no sooner than it would have by any of
    /// the clocks. No charge is dated later than now: a cell that was restored dates none later.
    pub(super) fn restored(mut self, error_ns: u64, now: Now) -> Self {
        self.memory.is_restored = true;
        let ends_ns = |until_ns: u64, since: Made, ttl_ns: u64| {
            let by_wall_ns = now.steady_ns.saturating_add(since.left_ns(ttl_ns, error_ns, now));
            until_ns.min(now.steady_ns.saturating_add(ttl_ns)).max(by_wall_ns)
        };
        match &mut self.state {
            RecordState::Reserved { until_ns, .. } => {
                let ttl_ns = until_ns.saturating_sub(self.made.steady_ns).min(RESERVE_NS_MAX);
                *until_ns = ends_ns(*until_ns, self.made, ttl_ns);
            }
            RecordState::Slots(term) => {
                term.ttl_ns = term.ttl_ns.min(RESERVE_NS_MAX);
                term.until_ns = ends_ns(term.until_ns, term.since, term.ttl_ns);
                term.since.steady_ns = term.since.steady_ns.min(now.steady_ns);
            }
            RecordState::Charged | RecordState::Settled | RecordState::Lapsed => {}
        }
        self.made.steady_ns = self.made.steady_ns.min(now.steady_ns);
        self
    }

    /// Drops charges that a crash forgot because they were not journalled: neither this process nor a later
    /// one gives them back. Says whether there were any.
    pub(super) fn forget(&mut self, is_durable: impl Fn(LimitId) -> bool) -> bool {
        let forgotten = |limit: &&mut LimitRecord| {
            limit.is_charged && !limit.is_leased && !(limit.is_durable && is_durable(limit.id))
        };
        let mut any = false;
        for limit in self.answer.limits.iter_mut().filter(forgotten) {
            limit.is_charged = false;
            any = true;
            if let RecordState::Slots(term) = &mut self.state
                && limit.is_slot()
            {
                term.ttl_ns = 0;
            }
        }
        any
    }

    /// Ends the record as settled or lapsed.
    pub(super) fn end(&mut self, state: RecordState, came_back: bool, now: Now) {
        if state == RecordState::Lapsed && self.keeps() {
            // What was expected is charged for good: no report adds to it.
            self.answer.limits.iter_mut().for_each(|limit| limit.expected = 0);
        }
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
        self.made.steady_ns
    }

    /// When the charge was made, on both clocks.
    pub(super) fn made(&self) -> Now {
        Now { steady_ns: self.made.steady_ns, wall_ns: self.made.wall_ns }
    }

    /// When the reservation ends; `None` if the charge is not a reservation, or is settled.
    pub(super) fn lapses_ns(&self) -> Option<u64> {
        match self.state {
            RecordState::Reserved { until_ns, .. } | RecordState::Slots(SlotTerm { until_ns, .. }) => {
                Some(until_ns)
            }
            RecordState::Charged | RecordState::Settled | RecordState::Lapsed => None,
        }
    }

    /// Whether charges other than slots stay when nobody settles the record in time. Holds are such charges.
    pub(super) fn keeps(&self) -> bool {
        match self.state {
            RecordState::Reserved { keeps, .. } | RecordState::Slots(SlotTerm { keeps, .. }) => keeps,
            RecordState::Charged | RecordState::Settled | RecordState::Lapsed => true,
        }
    }

    /// Notes that the slots are taken anew.
    pub(super) fn renew(&mut self, now: Now) {
        if let RecordState::Slots(term) = &mut self.state {
            term.since = Made::at(now);
            term.until_ns = now.steady_ns.saturating_add(term.ttl_ns);
        }
    }

    /// Whether the record is of a request that took slots, taken or not by now.
    pub(super) fn had_slots(&self) -> bool {
        self.answer.limits.iter().any(LimitRecord::is_slot)
    }

    /// How long the record's slots are taken; `None` if there are none.
    pub(super) fn slot_term(&self) -> Option<SlotTerm> {
        match self.state {
            RecordState::Slots(term) => Some(term),
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
        self.lapses_ns().unwrap_or(self.made.steady_ns.max(self.ended_ns))
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
            || self.made.steady_ns > now.steady_ns.saturating_add(keep.keep_ns)
    }

    /// The limits that were charged.
    pub(super) fn charged(&self) -> impl Iterator<Item = &LimitRecord> {
        self.answer.limits.iter().filter(|limit| limit.is_charged)
    }

    /// The limits that were charged, also those to which nothing goes back any more: they still count what a hold
    /// lacked.
    pub(super) fn spent_from(&self) -> impl Iterator<Item = &LimitRecord> {
        self.answer.limits.iter().filter(|limit| limit.is_charged || limit.is_hold())
    }

    /// Whether any of these limits was charged.
    pub(super) fn has_charged_any(&self, limits: &BTreeSet<LimitId>) -> bool {
        self.is_open() && self.charged().any(|charged| limits.contains(&charged.id))
    }

    /// Ends refunds of the charges under these limits.
    pub(super) fn strip(&mut self, limits: &BTreeSet<LimitId>) {
        // A lease still ends exactly as before: no rate is involved.
        let of = |limit: &&mut LimitRecord| limits.contains(&limit.id) && !limit.is_leased;
        for limit in self.answer.limits.iter_mut().filter(of) {
            limit.is_charged = false;
        }
    }

    /// How the answer names the charge that was made under this recording.
    pub(crate) fn charged_as(&self, recording: &Recording, is_repeat: bool, now: Now) -> Charged {
        Charged {
            id: recording.id,
            by: None,
            is_repeat,
            is_lease: recording.is_lease(),
            reserved: recording.reserve.map_or(0, |_| self.cost),
            lapses_in_ns: self.lapses_in_ns(now),
        }
    }

    /// The batch that must be on disk before the record is known to be there; 0 if the record is there.
    pub(crate) fn batch(&self) -> u64 {
        self.memory.batch
    }

    /// Restores the answer, with the limits that still exist.
    pub(crate) fn answer(&self, answer: &mut Answer, catalogue: &Catalogue, charged: Charged) {
        let recorded = &self.answer;
        answer.limits.clear();
        answer.decisive = None;
        for (place, limit) in recorded.limits.iter().enumerate() {
            let Some(number) = catalogue.place_of(limit.id) else { continue };
            if recorded.decisive == Some(place as u32) {
                answer.decisive = Some(answer.limits.len());
            }
            answer.limits.push(limit.answer(number, catalogue));
        }
        answer.allowed = recorded.allowed;
        answer.reason = match answer.decisive {
            Some(place) => answer.limits[place].reason,
            None => Reason::WithinLimit,
        };
        answer.retry_after_ns = recorded.retry_after_ns;
        answer.delay_ns = recorded.delay_ns;
        answer.unmatched = recorded.unmatched;
        answer.charge = Some(charged);
    }
}

/// How long the slots that an answer took may be taken: the shortest time over its limits. `None` if it took
/// none.
fn slots_ttl_ns(answer: &Answer, catalogue: &Catalogue) -> Option<u64> {
    let charged = answer.limits.iter().filter(|limit| limit.is_charged);
    let limits = charged.map(|limit| &catalogue.limits[limit.limit as usize].limit);
    limits.filter(|limit| limit.is_concurrent()).map(|limit| limit.algorithm.period_ns()).min()
}

/// How long the holds of an answer wait for a report: the longest time over its limits. `None` if there are none.
fn hold_ns(answer: &Answer, catalogue: &Catalogue) -> Option<u64> {
    let held = answer.limits.iter().filter(|limit| limit.is_charged && limit.late.expected > 0);
    let expects = held.map(|limit| catalogue.limits[limit.limit as usize].limit.expect);
    expects.flatten().map(|expect| expect.within_ns).max()
}

impl LimitRecord {
    /// Whether the units are a hold.
    pub(super) const fn is_hold(&self) -> bool {
        self.expected > 0
    }

    /// Whether the units are slots of requests under way.
    pub(super) const fn is_slot(&self) -> bool {
        self.outcome & SLOT != 0
    }

    /// The record of a limit's answer. `is_lease`: whether the caller may spend the units later. `expected`: the cost
    /// that is expected, if the units are a hold; otherwise 0.
    fn new(limit: &LimitAnswer, active: &Active, is_lease: bool, expected: u64) -> Self {
        let LimitAnswer { verdict, tag, is_charged, class, descriptors, budget, late, .. } = *limit;
        let outcome = OUTCOMES.iter().position(|outcome| *outcome == limit.outcome).unwrap_or(0);
        Self {
            id: active.limit.id,
            tag,
            units: limit.units - late.unrecorded,
            is_charged,
            is_leased: is_lease && is_set_apart(&active.limit.algorithm),
            is_durable: active.durable,
            outcome: outcome as u8 | if active.limit.is_concurrent() { SLOT } else { 0 },
            expected: if is_charged { expected } else { 0 },
            class,
            allowed: verdict.allowed,
            is_over: limit.reason != Reason::WithinLimit,
            verdict: VerdictNumbers {
                remaining: verdict.remaining,
                retry_after_ns: verdict.retry_after_ns,
                delay_ns: verdict.delay_ns,
                reset_after_ns: verdict.reset_after_ns,
            },
            descriptors,
            budget,
        }
    }

    /// The limit's answer again; `number` is the limit's place in the catalogue now.
    fn answer(&self, number: u32, catalogue: &Catalogue) -> LimitAnswer {
        let outcome = OUTCOMES[usize::from(self.outcome & !SLOT)];
        let is_enforced = catalogue.limits[number as usize].limit.spec.mode.denies();
        let reason = match outcome {
            Outcome::Unlimited => Reason::Unlimited,
            _ if self.is_over || (outcome == Outcome::Deny && is_enforced) => Reason::OverLimit,
            _ => Reason::WithinLimit,
        };
        let VerdictNumbers { remaining, retry_after_ns, delay_ns, reset_after_ns } = self.verdict;
        LimitAnswer {
            limit: number,
            tag: self.tag,
            verdict: Verdict { allowed: self.allowed, remaining, retry_after_ns, delay_ns, reset_after_ns },
            outcome,
            reason,
            descriptors: self.descriptors,
            units: self.units,
            late: LateCost { expected: self.expected, ..LateCost::default() },
            budget: self.budget,
            expected_wait_ns: 0,
            class: self.class,
            is_charged: false,
            forwarded_to: None,
            is_forwarded: false,
            variant: 0,
        }
    }
}
