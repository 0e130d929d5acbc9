//! What a cell wants of its pool, by what is asked of the cell and what the pool has.

use acequia_limits::{Now, Part, RATE_PARTS};
use acequia_rights::pool::window::PART;

use super::{
    CellLease, LeaseInputs,
    denied::{Missing, Purpose},
};
use crate::{
    cell::account::{Offered, Withdrawn},
    regions::units_in,
    settings::SETTINGS,
};

/// What a cell wants of a window's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct WindowWant {
    pub(in super::super) wanted: u64,
    pub(in super::super) needed: u64,
    pub(in super::super) returns: u64,
}

/// What a cell wants of a bucket's or a sliding window's pool: what it keeps of its lease, and how much more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct RateWant {
    pub(in super::super) keeps: Part,
    pub(in super::super) wanted: Part,
    pub(in super::super) needed: u64,
}

impl RateWant {
    /// Keeps this part, and wants no more.
    pub(in super::super) fn keeping(keeps: Part) -> Self {
        Self { keeps, ..Self::default() }
    }
}

/// How much of a bucket's pool a cell would like to hold.
struct BucketAim {
    is_scarce: bool,
    /// The part that it would like by its demand.
    liked: Part,
    /// The rate to hold, given what other nodes would like; and the units that belong to this rate.
    rate: u32,
    along: u64,
}

impl CellLease {
    /// What is wanted of the open window, which has this much time left.
    pub(in super::super) fn window(
        &mut self,
        inputs: &LeaseInputs,
        open: &Withdrawn,
        time_left_ns: u64,
        now: Now,
    ) -> Option<WindowWant> {
        if self.supply.open_ns() < open.end_ns {
            self.supply.opens(open.end_ns);
            // Units that were taken of it before it opened are for the requests that come now.
            self.idleness.tight_ns = now
                .steady_ns
                .saturating_add((time_left_ns / SETTINGS.lease.opens_part).min(SETTINGS.lease.idle_ns));
        }
        // Ahead of need no node holds more than its own part of what is left, or others would have to ask for
        // it back.
        let left = self.left().unwrap_or(inputs.pool.units);
        let part = inputs.pool.units / inputs.nodes;
        let most = (left / inputs.nodes + by_chance(part)).min(left);
        let with_own = if inputs.is_alone() { inputs.available } else { 0 };
        let ahead =
            self.ample_in(time_left_ns.min(SETTINGS.lease.ahead_ns)).min((most + with_own).max(self.soon()));
        let needed = self.needed(inputs, now).saturating_add(inputs.for_others.units);
        if ahead > inputs.available || needed > 0 {
            self.idleness.tight_ns = self.idleness.tight_ns.max(now.steady_ns);
        }
        // Beyond need, the pool gives only a fraction of what it has: little by little, so that no node has
        // units idle that others need.
        let is_short = inputs.available < ahead / 2
            || self.is_later(inputs.available, ahead, SETTINGS.lease.later_ns, now);
        let is_low = needed > 0 || (is_short && self.supply.may_be_asked_ahead(now.steady_ns));
        if is_low && self.may_ask(now) {
            let wanted =
                ahead.saturating_sub(inputs.available).saturating_add(inputs.for_others.units).max(needed);
            // A pool of few units gives none ahead of need. If no other node takes of it, what is wanted
            // counts as needed.
            let is_ahead = needed == 0 && left / inputs.nodes < PART;
            self.missing.purpose = if is_ahead { Purpose::Ahead } else { Purpose::Need };
            let needed = if needed == 0 && inputs.is_alone() { wanted.min(left).min(PART) } else { needed };
            return Some(WindowWant { wanted, needed, returns: 0 });
        }
        let held = open.units();
        let spare = inputs.available.saturating_sub(ahead + ahead / 2).min(held);
        // Units that no other node takes can be asked for again.
        let spare_ns = if inputs.is_alone() && inputs.lasts {
            SETTINGS.lease.idle_alone_ns
        } else {
            SETTINGS.lease.spare_ns
        };
        let goes_back = self.idleness.is_spare(spare_ns, now) && spare > held / 8;
        goes_back.then_some(WindowWant { returns: spare, ..WindowWant::default() })
    }

    /// What is wanted of a window before it opens, of which the pool has these units. The window can then
    /// open while the pool cannot be reached.
    pub(in super::super) fn later_window(
        &mut self,
        inputs: &LeaseInputs,
        withdrawn: &Withdrawn,
        pool_units: u64,
        length_ns: u64,
        now: Now,
    ) -> Option<WindowWant> {
        if !self.supply.may_be_asked_of_later(now.steady_ns) {
            return None;
        }
        let held = withdrawn.units();
        let known = self.supply.left_of_later(withdrawn.end_ns);
        let left = known.map_or(pool_units, |left| left.saturating_add(held)).min(pool_units);
        // Half of this node's part, and as many more as may come by chance.
        let part = pool_units / inputs.nodes;
        let most = if inputs.is_alone() { left } else { part.min(part / 2 + by_chance(part)) };
        let ahead = self.ample_in(length_ns.min(SETTINGS.lease.ahead_ns)).min(most);
        let every_ns = SETTINGS.lease.later_ns.min(length_ns / 8);
        let is_low = ahead > u64::from(!inputs.is_alone()) && self.is_later(held, ahead, every_ns, now);
        if !is_low || !self.may_ask(now) {
            return None;
        }
        self.missing = Missing { purpose: Purpose::Later, ..self.missing };
        // All at once: nobody spends them yet, and unused units go back.
        Some(WindowWant { wanted: ahead - held, needed: ahead - held, returns: 0 })
    }

    /// What is wanted of a bucket's pool, of which this part is held. The whole limit gives `rate_milli`
    /// thousandths of a unit a second.
    pub(in super::super) fn bucket(
        &mut self,
        inputs: &LeaseInputs,
        held: Part,
        rate_milli: u64,
        now: Now,
    ) -> Option<RateWant> {
        let aim = self.aim_at_bucket(inputs, rate_milli);
        let BucketAim { is_scarce, liked, rate, along } = aim;
        let needed = self.needed(inputs, now);
        let has = held.units + inputs.standing.units;
        let is_low = self.demand.events_milli() > 0 && inputs.available < (has / 4).min(self.soon().max(1));
        if needed > 0 || is_low {
            self.idleness.tight_ns = now.steady_ns;
        }
        let is_spare = self
            .idleness
            .is_spare(if is_scarce { SETTINGS.lease.scarce_spare_ns } else { SETTINGS.lease.spare_ns }, now);
        let mut want = RateWant::keeping(held);
        if self.is_idle(now) {
            want.keeps = Part { rate: held.rate.min(liked.rate), units: held.units.min(liked.units) };
            want.wanted = Part { rate: liked.rate - want.keeps.rate, units: liked.units - want.keeps.units };
        } else {
            // Small changes are not worth a call.
            if held.rate > rate + rate / 8 {
                want.keeps.rate = rate;
            }
            if is_scarce {
                let asks = needed > 0 && self.may_ask(now);
                let goes = asks || is_spare || inputs.available == 0;
                want.keeps.units = if goes { held.units.min(along) } else { held.units };
            } else if is_spare && held.units > along + along / 2 + 1 {
                want.keeps.units = along.max(held.units.saturating_sub(inputs.available)).max(liked.units);
            }
            let wanted_rate = if is_scarce { rate } else { liked.rate };
            want.wanted.rate = wanted_rate.saturating_sub(want.keeps.rate);
            want.wanted.units = along.saturating_sub(want.keeps.units);
            if (needed > 0 || is_low) && self.may_ask(now) {
                // Units that go back to a scarce pool with this call count as if they were there already.
                let unspent = inputs.available.saturating_sub(inputs.standing.units);
                let back = if is_scarce { (held.units - want.keeps.units).min(unspent) } else { 0 };
                want.needed = needed.max(1) + back;
                let more = if is_scarce { 0 } else { has };
                want.wanted.units = want.wanted.units.max(more).max(want.needed);
            }
        }
        let grows = rate > held.rate + held.rate / 8 || want.wanted.units > 0;
        let is_changed = (grows && self.may_ask(now)) || want.keeps != held;
        let want = (is_changed || self.is_renewal_due(held, now)).then_some(want);
        self.bounded(want, held, inputs.kept, now)
    }

    /// How much of a bucket's pool to hold, by the demand and by what other nodes would like.
    fn aim_at_bucket(&self, inputs: &LeaseInputs, rate_milli: u64) -> BucketAim {
        let of_pool_milli = u128::from(rate_milli) * u128::from(inputs.pool.rate) / u128::from(RATE_PARTS);
        let is_scarce = inputs.is_scarce(u64::try_from(of_pool_milli).unwrap_or(u64::MAX));
        let more = if is_scarce || inputs.is_wanted_elsewhere() { 0 } else { self.bunch_rate(inputs.pool) };
        // The pool has not said yet what the other nodes would like. They may ask at the same time, so this
        // node asks for at most its part.
        let most_rate = match self.supply.fair {
            None if !is_scarce => {
                let of_pool = u64::from(inputs.pool.rate) / inputs.nodes;
                // At most the pool's.
                inputs.standing.rate.saturating_add(of_pool as u32).min(RATE_PARTS)
            }
            _ => RATE_PARTS,
        };
        let liked_rate = self.asked_rate(rate_milli).saturating_add(more).min(most_rate);
        let liked = inputs.beside_others(Part { rate: liked_rate, units: 0 });
        let rate = self.supply.fair.map_or(liked.rate, |fair| liked.rate.min(fair)).max(inputs.kept.rate);
        let is_less_than_a_unit =
            u128::from(inputs.pool.units) * u128::from(rate) < u128::from(inputs.pool.rate);
        if is_scarce && is_less_than_a_unit {
            let of_others = inputs.beside_others(Part::default());
            return BucketAim { is_scarce, liked, rate: of_others.rate, along: of_others.units };
        }
        BucketAim { is_scarce, liked, rate, along: along(inputs.pool, rate).max(liked.units) }
    }

    /// What is wanted of a sliding window's pool, of which these units are held.
    pub(in super::super) fn sliding(
        &mut self,
        inputs: &LeaseInputs,
        held: u64,
        window_ns: u64,
        now: Now,
    ) -> Option<RateWant> {
        let a_second_milli = u128::from(inputs.pool.units) * 1_000_000_000_000 / u128::from(window_ns.max(1));
        let is_scarce = inputs.is_scarce(u64::try_from(a_second_milli).unwrap_or(u64::MAX));
        let ahead = self.ample_in(window_ns).min(self.most_ahead(inputs, held, is_scarce));
        let aim = inputs.beside_others(Part { rate: 0, units: ahead }).units;
        let needed = self.needed(inputs, now);
        if needed > 0 || aim > held {
            self.idleness.tight_ns = now.steady_ns;
        }
        let spare_ns = if is_scarce {
            SETTINGS.lease.scarce_spare_ns
        } else {
            SETTINGS.lease.spare_ns.max(window_ns / 4)
        };
        let is_spare = self.idleness.is_spare(spare_ns, now);
        let part = |units| Part { rate: 0, units };
        let half = self.half_that_stays(inputs, aim, now);
        let mut want = RateWant::keeping(part(held));
        if self.is_idle(now) {
            want.keeps = part(held.min(aim));
            want.wanted = part(aim - want.keeps.units);
        } else if is_scarce {
            if (needed > 0 || aim > held) && self.may_ask(now) {
                (want.wanted, want.needed) = (part(aim.saturating_sub(held).max(needed)), needed);
            } else if is_spare {
                // Units that were used in the last window stay.
                want.keeps = part(held.saturating_sub(inputs.available).max(aim.min(held)));
            }
        } else if is_spare && held > aim.max(half) + aim / 4 {
            want.keeps = part(aim.max(half));
        } else if self.may_ask(now) {
            // No node takes more than its own part of what is left at once.
            let most = self.left().map_or(inputs.pool.units / inputs.nodes, |left| left.div_ceil(2));
            want.wanted = part(aim.saturating_sub(held).min(most).max(needed));
            want.needed = needed;
        }
        let is_changed = want.wanted.units > held / 16 || want.needed > 0 || want.keeps.units != held;
        let want = (is_changed || self.is_renewal_due(part(held), now)).then_some(want);
        self.bounded(want, part(held), inputs.kept, now)
    }

    /// Half of this node's part of a sliding window, which other nodes do not need. The half stays for
    /// `SETTINGS.lease.idle_alone_ns` after half of it was last wanted: rare requests alone do not keep it. Then 0.
    fn half_that_stays(&mut self, inputs: &LeaseInputs, aim: u64, now: Now) -> u64 {
        let own = inputs.pool.units / inputs.nodes;
        let half = if inputs.lasts { own.min(own / 2 + 2 * by_chance(own)) } else { 0 };
        if aim >= half / 2 {
            self.idleness.half_until_ns = now.steady_ns.saturating_add(SETTINGS.lease.idle_alone_ns);
        }
        if now.steady_ns < self.idleness.half_until_ns { half } else { 0 }
    }

    /// The most that this node may hold ahead of need of a sliding window: its part, and beyond that little
    /// more than it needs soon. Another node may need its own part before those units are back. 0 for a
    /// scarce pool.
    fn most_ahead(&self, inputs: &LeaseInputs, held: u64, is_scarce: bool) -> u64 {
        if is_scarce {
            return 0;
        }
        if inputs.nodes == 1 {
            return u64::MAX;
        }
        let is_low = inputs.available < self.soon().max(1);
        let more = if is_low { held / 8 + self.soon().max(1) } else { 0 };
        let part = (inputs.pool.units / inputs.nodes).max(held.saturating_add(more));
        inputs.standing.units.saturating_add(part)
    }

    /// Bounds a want by what may be held, and asks for no more while more than that is held. `kept` cannot be
    /// given back now, and is not asked about again and again.
    fn bounded(&mut self, want: Option<RateWant>, held: Part, kept: Part, now: Now) -> Option<RateWant> {
        let Some(most) = self.bounds.most else { return want };
        if held.rate <= most.rate && held.units <= most.units {
            self.bounds.most = None;
            return want;
        }
        let keeps = want.map_or(held, |want| want.keeps);
        let rate = keeps.rate.min(most.rate.max(kept.rate));
        let keeps = Part { rate, units: keeps.units.min(most.units.max(kept.units)) };
        (keeps != held || self.is_renewal_due(held, now)).then_some(RateWant::keeping(keeps))
    }

    /// Whether more should be held for later, and none was asked for just before.
    const fn is_later(&self, held: u64, ahead: u64, every_ns: u64, now: Now) -> bool {
        held < ahead - ahead / 8 && now.steady_ns >= self.renewed_ns + every_ns
    }

    fn is_renewal_due(&self, held: Part, now: Now) -> bool {
        held != Part::default()
            && now.steady_ns >= self.renewed_ns + SETTINGS.lease.renew_ns
            && self.may_ask(now)
    }

    /// Units that the denied requests need: all of them, since they may wait. But at most half of what the
    /// pool has, as far as is known, unless one request needs more.
    fn needed(&mut self, inputs: &LeaseInputs, now: Now) -> u64 {
        let Offered { denied, missed, .. } = inputs.offered;
        let least = if denied <= inputs.budget { denied.saturating_sub(inputs.available) } else { 0 };
        let left = self.left().filter(|_| now.steady_ns < self.renewed_ns + SETTINGS.lease.left_ns);
        let half = left.unwrap_or(inputs.pool.units).div_ceil(2);
        let all = u64::from(missed).saturating_sub(inputs.available);
        let needed = if least > 0 { all.min(half).max(least) } else { 0 };
        (self.missing.least, self.missing.needed) = (least, needed);
        needed
    }

    /// Units for the demand of a time, and a tenth more.
    fn wanted_in(&self, ns: u64) -> u64 {
        let milli = self.demand.units_milli();
        units_in(milli.saturating_add(milli / 10), ns)
    }

    /// Units for the demand of a time with a margin for bunches: the root of the number of units, and
    /// `SETTINGS.lease.bunch`.
    fn ample_in(&self, ns: u64) -> u64 {
        if self.demand.events_milli() == 0 {
            return 0;
        }
        let wanted = self.wanted_in(ns);
        wanted.saturating_add(wanted.isqrt()).saturating_add(SETTINGS.lease.bunch)
    }

    /// The part of the rate that belongs to a bunch of units.
    fn bunch_rate(&self, pool: Part) -> u32 {
        if self.demand.events_milli() == 0 {
            return 0;
        }
        // At most the pool's.
        (u64::from(pool.rate) * SETTINGS.lease.bunch.min(pool.units) / pool.units.max(1)) as u32
    }

    /// Units for the demand until the next call has an answer.
    pub(super) fn soon(&self) -> u64 {
        units_in(self.demand.units_milli(), SETTINGS.lease.soon_ns)
    }

    /// The part of the rate that would be used: a tenth more than the demand.
    fn asked_rate(&self, rate_milli: u64) -> u32 {
        let milli = u128::from(self.demand.units_milli()) * 11 / 10;
        let parts = (milli * u128::from(RATE_PARTS)).div_ceil(u128::from(rate_milli.max(1)));
        u32::try_from(parts).unwrap_or(RATE_PARTS).min(RATE_PARTS)
    }
}

/// About how far the number of random requests varies: the root of their number. A node holds as many units
/// beside a part, or half of one.
const fn by_chance(part: u64) -> u64 {
    part.isqrt()
}

/// The units of a pool that belong to a part of its rate.
fn along(pool: Part, rate: u32) -> u64 {
    if pool.rate == 0 {
        return 0;
    }
    let units = (u128::from(pool.units) * u128::from(rate)).div_ceil(u128::from(pool.rate));
    u64::try_from(units).unwrap_or(pool.units).min(pool.units)
}
