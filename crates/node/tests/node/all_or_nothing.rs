//! Compares a node with a reference that reads limits as an operator wrote them. The reference tries every
//! limit on every descriptor, keeps one state for each limit and list of values, and charges all or nothing.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use crate::scene::{self, MINUTE, MS, S, START};
use acequia_limits::{
    Algorithm, Charge, Descriptor, Limit, Mode, Now, Reason, Request, Verdict,
    algorithm::State,
    limit::{AbsentSpec, AddressSpec, BySpec, Descriptors, LimitSpec, NoWait, QuotaSpec, ValueSpec},
    verdict::NEVER,
};
use acequia_node::{Answer, Ask, Outcome};
use proptest::{collection::vec, option, prelude::*, sample::select};

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_node_decides_as_its_limits_decide_one_by_one(
        specs in vec(spec(), 1..7),
        steps in vec((wait(), question(), how(), any::<bool>()), 1..60),
    ) {
        let specs = named(specs);
        let node = scene::node(&specs, START);
        let mut askers = [node.asker(), node.asker()];
        let mut reference = Reference::new(specs);
        let mut now = START;
        for (number, (wait_ns, question, how, sweep)) in steps.iter().enumerate() {
            now = now.later(*wait_ns);
            if *sweep {
                scene::sweep_all(&node, now);
            }
            let answer = askers[number % 2].check(&question.request(), now, *how);
            reference.check(&question.request(), now, *how, answer);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_index_finds_what_trying_each_limit_finds(
        specs in vec(spec(), 200),
        questions in vec(question(), 60),
    ) {
        let specs = named(specs);
        let node = scene::node(&specs, START);
        let mut asker = node.asker();
        let reference = Reference::new(specs);
        for question in &questions {
            let answer = asker.check(&question.request(), START, Ask::PEEK);
            let mut found: Vec<(usize, u64)> =
                answer.limits.iter().map(|limit| (limit.limit as usize, limit.descriptors)).collect();
            found.sort_unstable();
            let (hits, unmatched) = reference.hits(&question.request(), START);
            let mut wanted: Vec<(usize, u64)> = hits.iter().map(|hit| (hit.limit, hit.descriptors)).collect();
            wanted.sort_unstable();
            prop_assert_eq!(found, wanted);
            prop_assert_eq!(answer.unmatched, unmatched);
        }
    }
}

#[test]
fn a_denied_request_has_charged_nothing_anywhere() {
    let all = LimitSpec { by: vec![], ..scene::window("all", 10, "1h") };
    let node = scene::node(&[scene::bucket("each", "1/h", 3), all], START);
    let mut asker = node.asker();
    assert!(!scene::passes(&mut asker, "greedy", 4, START));
    assert_eq!(scene::drain(&mut asker, "modest", START), 3);
    assert_eq!(scene::drain(&mut asker, "greedy", START), 3);
    assert_eq!(scene::drain(&mut asker, "third", START), 3);
    // Nine of ten units are spent, so one more passes, and its bucket keeps the other two.
    assert_eq!(scene::drain(&mut asker, "fourth", START), 1);
    let answer = scene::ask(&mut asker, "fourth", 1, START);
    let mut left: Vec<u64> = answer.limits.iter().map(|limit| limit.verdict.remaining).collect();
    left.sort_unstable();
    assert_eq!((answer.allowed, answer.reason), (false, Reason::OverLimit));
    assert_eq!(left, [0, 2], "nothing for all, and two that this one alone still has");
}

#[test]
fn a_cost_above_the_largest_possible_limit_is_denied() {
    for spec in [
        scene::bucket("b", "9007199254740992/d", acequia_limits::UNITS_MAX),
        scene::window("w", acequia_limits::UNITS_MAX, "1h"),
        scene::sliding("s", acequia_limits::UNITS_MAX, "1h"),
    ] {
        let node = scene::node(&[spec], START);
        let mut asker = node.asker();
        let answer = scene::ask(&mut asker, "k", u64::MAX, START);
        assert_eq!((answer.allowed, answer.reason), (false, Reason::CostTooHigh));
        assert!(scene::passes(&mut asker, "k", acequia_limits::UNITS_MAX, START));
        assert!(!scene::passes(&mut asker, "k", 1, START));
    }
}

#[test]
fn a_shadow_limit_delays_no_request() {
    let spec = scene::leaky("watched", "1/s", 10, NoWait::Deny);
    let node = scene::node(&[LimitSpec { mode: Mode::Shadow, ..spec }], START);
    let mut asker = node.asker();
    for _ in 0..20 {
        let answer = scene::ask(&mut asker, "k", 1, START);
        assert_eq!((answer.allowed, answer.delay_ns), (true, 0));
    }
}

#[test]
fn one_address_in_two_notations_is_one_cell_with_one_variant() {
    let spec = LimitSpec {
        by: vec![BySpec::Address(AddressSpec { ip: "key".into(), v4: 32, v6: 128, trust: 1 })],
        overrides: vec![scene::fields(&[("key", &["10.1.2.3"]), ("burst", &["20"])])],
        ..scene::bucket("per-address", "1/s", 10)
    };
    let node = scene::node(&[spec], START);
    let mut asker = node.asker();
    let now = START.later(scene::HOUR);
    let mut admitted = 0;
    for _ in 0..100 {
        admitted += u64::from(scene::passes(&mut asker, "10.1.2.3", 1, now));
        admitted += u64::from(scene::passes(&mut asker, "::ffff:10.1.2.3", 1, now));
    }
    assert!(admitted <= 20, "admitted {admitted}");
}

#[test]
fn a_cell_that_is_dropped_while_its_table_grows_is_made_anew() {
    let spec = scene::window("w", 5, "1s");
    let node = scene::node(&[spec], START);
    let keys = scene::neighbours(&node, 13);
    let mut asker = node.asker();
    // Eleven cells fill the first allocation. One of them belongs to an older window.
    assert!(scene::passes(&mut asker, &keys[0], 1, START));
    let now = START.later(S);
    for key in &keys[1..11] {
        assert!(scene::passes(&mut asker, key, 1, now));
    }
    let mut request = Request::new("shop", &[("key", &keys[0])]);
    request.push([(&b"key"[..], keys[12].as_bytes())], None);
    assert!(asker.check(&request, now, Ask::CHECK).allowed);
    for key in [&keys[0], &keys[12]] {
        assert_eq!(scene::drain(&mut asker, key, now), 4);
    }
}

/// The limits, each read directly from its specification.
struct Reference {
    specs: Vec<LimitSpec>,
    limits: Vec<Limit>,
    cells: BTreeMap<(usize, Vec<Vec<u8>>), ReferenceCell>,
}

/// A state, and the override under which it was written.
struct ReferenceCell {
    variant: Option<usize>,
    state: State,
}

struct ReferenceHit {
    limit: usize,
    values: Vec<Vec<u8>>,
    exempt: bool,
    variant: Option<usize>,
    units: u64,
    charges: bool,
    descriptors: u64,
}

/// The expected answer of one limit: every decided part of [`acequia_node::LimitAnswer`].
#[derive(Clone, Debug, PartialEq)]
struct Said {
    limit: usize,
    descriptors: u64,
    outcome: Outcome,
    reason: Reason,
    verdict: Verdict,
    units: u64,
    budget: u64,
}

impl Reference {
    fn new(specs: Vec<LimitSpec>) -> Self {
        let limits = scene::limits(&specs);
        Self { specs, limits, cells: BTreeMap::new() }
    }

    /// Computes the expected answer, charges what must be charged, and compares.
    fn check(&mut self, request: &Request<'_>, now: Now, how: Ask, answer: &Answer) {
        let (hits, unmatched) = self.hits(request, now);
        assert_eq!(answer.unmatched, unmatched);
        let salts: Vec<u32> = hits.iter().map(|hit| salt(hit, answer)).collect();
        let said: Vec<Said> =
            hits.iter().zip(&salts).map(|(hit, salt)| self.say(hit, *salt, now, how)).collect();
        let denied = said.iter().any(|said| said.outcome == Outcome::Deny);
        let due = |(hit, said): (&ReferenceHit, &Said)| {
            let each = self.specs[hit.limit].charge == Charge::Each;
            how.charge && hit.charges && !hit.exempt && said.verdict.allowed && (each || !denied)
        };
        let due: Vec<bool> = hits.iter().zip(&said).map(due).collect();
        let mut wanted = said.clone();
        for (((hit, said), salt), _) in
            hits.iter().zip(&mut wanted).zip(&salts).zip(&due).filter(|((_, _), due)| !**due)
        {
            self.leave(hit, *salt, now, said);
        }
        let order = |said: &Said| (said.limit, said.descriptors);
        let mut got = heard(answer);
        let in_order: Vec<Said> = got.iter().map(|heard| same(&said, heard).clone()).collect();
        wanted.sort_by_key(order);
        got.sort_by_key(order);
        assert_eq!(got, wanted);
        assert_eq!(answer.allowed, !denied);
        self.compare_summary(answer, &in_order);
        for ((hit, salt), _) in hits.iter().zip(salts).zip(due).filter(|(_, due)| *due) {
            self.charge(hit, salt, now);
        }
    }

    /// The decisive limit is the first with the longest wait or, if the request passes, the first with the
    /// least left. The rest of the summary describes this limit.
    fn compare_summary(&self, answer: &Answer, said: &[Said]) {
        let enforced = |said: &Said| self.specs[said.limit].mode == Mode::Enforce;
        let mut decisive: Option<usize> = None;
        for (number, each) in said.iter().enumerate() {
            let better = match decisive {
                None => true,
                Some(best) if answer.allowed => each.verdict.remaining < said[best].verdict.remaining,
                Some(best) => each.verdict.retry_after_ns > said[best].verdict.retry_after_ns,
            };
            let counts = match each.outcome {
                Outcome::Deny => !answer.allowed,
                Outcome::Allow => answer.allowed && enforced(each),
                Outcome::ShadowDeny | Outcome::Unlimited => false,
            };
            if counts && better {
                decisive = Some(number);
            }
        }
        assert_eq!(answer.decisive, decisive);
        let reason = match decisive {
            Some(number) if !answer.allowed => said[number].reason,
            _ if said.is_empty() => Reason::NoMatch,
            _ if said.iter().all(|said| said.outcome == Outcome::Unlimited) => Reason::Unlimited,
            _ => Reason::WithinLimit,
        };
        assert_eq!(answer.reason, reason);
        let wait = decisive.filter(|_| !answer.allowed).map_or(0, |n| said[n].verdict.retry_after_ns);
        assert_eq!(answer.retry_after_ns, wait);
        let delays = said.iter().filter(|said| enforced(said)).map(|said| said.verdict.delay_ns);
        assert_eq!(answer.delay_ns, if answer.allowed { delays.max().unwrap_or(0) } else { 0 });
    }

    /// Every cell that the request hits, once each, and the descriptors that hit none.
    fn hits(&self, request: &Request<'_>, now: Now) -> (Vec<ReferenceHit>, u64) {
        let mut hits: Vec<ReferenceHit> = Vec::new();
        let mut unmatched = 0;
        for (number, descriptor) in request.descriptors().enumerate() {
            let mut matched = false;
            for limit in 0..self.specs.len() {
                let Some(hit) = self.hit(limit, request, &descriptor, 1 << number, now) else { continue };
                matched = true;
                let cell = |h: &&mut ReferenceHit| {
                    h.limit == hit.limit && h.values == hit.values && h.exempt == hit.exempt
                };
                match hits.iter_mut().find(cell) {
                    None => hits.push(hit),
                    Some(first) => {
                        first.descriptors |= hit.descriptors;
                        match (first.charges, hit.charges) {
                            (true, true) => {
                                first.units = match self.specs[limit].descriptors {
                                    Descriptors::Sum => first.units.saturating_add(hit.units),
                                    Descriptors::Max => first.units.max(hit.units),
                                }
                            }
                            (false, true) => first.units = hit.units,
                            (_, false) => {}
                        }
                        first.charges |= hit.charges;
                    }
                }
            }
            if !matched {
                unmatched |= 1 << number;
            }
        }
        (hits, unmatched)
    }

    fn hit(
        &self,
        limit: usize,
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
        bit: u64,
        now: Now,
    ) -> Option<ReferenceHit> {
        let spec = &self.specs[limit];
        let domain = spec.domain.as_bytes() == request.domain;
        if !domain || spec.mode == Mode::Off || !spec.when.iter().all(|(k, any)| is_about(k, any, descriptor))
        {
            return None;
        }
        let named = |key: &[u8]| {
            let counted = spec.by.iter().map(BySpec::key);
            spec.when.keys().map(String::as_str).chain(counted).any(|named| named.as_bytes() == key)
        };
        if spec.exact && !descriptor.entries.iter().all(|(key, _)| named(key)) {
            return None;
        }
        let mut values =
            spec.by.iter().map(|by| counted_value(by, descriptor)).collect::<Option<Vec<_>>>()?;
        let cost = descriptor.cost.unwrap_or(request.cost);
        let own_keys = |key: &str| spec.by.iter().any(|by| matches!(by, BySpec::Key(by) if by == key));
        let fits = |number: usize, says: fn(&str, &ValueSpec, &Descriptor<'_>) -> bool| {
            let mut whose = spec.overrides[number].iter().filter(|(key, _)| own_keys(key));
            whose.all(|(key, any)| says(key, any, descriptor))
        };
        let is_over = |number: usize| {
            self.limits[limit].overrides[number].until_ns.is_some_and(|until| now.wall_ns >= until)
        };
        let first = (0..spec.overrides.len()).find(|number| !is_over(*number) && fits(*number, has_variant));
        // If a key comes twice, every value must fit. Otherwise the request counts in a separate cell, by the
        // limit's base variant.
        let variant = first.filter(|number| fits(*number, is_exempt));
        values.extend((first != variant).then(|| b"apart".to_vec()));
        Some(ReferenceHit {
            limit,
            values,
            exempt: spec.unlimited.iter().any(|(key, any)| is_exempt(key, any, descriptor)),
            variant,
            units: cost.max(1).saturating_mul(spec.cost.unwrap_or(1)),
            charges: cost > 0,
            descriptors: bit,
        })
    }

    fn algorithm(&self, limit: usize, variant: Option<usize>) -> &Algorithm {
        match variant {
            Some(number) => &self.limits[limit].overrides[number].algorithm,
            None => &self.limits[limit].algorithm,
        }
    }

    /// The state of a hit's cell under today's variant. An override that ended handed the state over at its
    /// end.
    fn state(&self, hit: &ReferenceHit, now: Now) -> State {
        let today = self.algorithm(hit.limit, hit.variant);
        let Some(cell) = self.cells.get(&(hit.limit, hit.values.clone())) else { return today.fresh() };
        match cell.variant {
            variant if variant == hit.variant => cell.state.clone(),
            Some(ended) => {
                let until =
                    self.limits[hit.limit].overrides[ended].until_ns.expect("only time ends one here");
                assert!(until <= now.wall_ns);
                today.convert(self.algorithm(hit.limit, Some(ended)), cell.state.as_slice(), Now::at(until))
            }
            None => unreachable!("no override begins here"),
        }
    }

    fn say(&self, hit: &ReferenceHit, salt: u32, now: Now, how: Ask) -> Said {
        let spec = &self.specs[hit.limit];
        let algorithm = self.algorithm(hit.limit, hit.variant);
        let said = |outcome, reason, verdict| Said {
            limit: hit.limit,
            descriptors: hit.descriptors,
            outcome,
            reason,
            verdict,
            units: hit.units,
            budget: algorithm.budget(),
        };
        if hit.exempt {
            let verdict = Verdict {
                allowed: true,
                remaining: u64::MAX,
                retry_after_ns: 0,
                delay_ns: 0,
                reset_after_ns: 0,
            };
            return said(Outcome::Unlimited, Reason::Unlimited, verdict);
        }
        let verdict = algorithm.probe(self.state(hit, now).as_slice(), now, hit.units, salt);
        let must_not_wait =
            !how.can_wait && spec.leaky_bucket.as_ref().is_some_and(|leaky| leaky.no_wait == NoWait::Deny);
        let verdict = if verdict.allowed && verdict.delay_ns > 0 && must_not_wait {
            Verdict {
                allowed: false,
                remaining: verdict.remaining + hit.units,
                retry_after_ns: verdict.delay_ns,
                delay_ns: 0,
                ..verdict
            }
        } else {
            verdict
        };
        let outcome = match (verdict.allowed, spec.mode) {
            (true, _) => Outcome::Allow,
            (false, Mode::Enforce) => Outcome::Deny,
            (false, _) => Outcome::ShadowDeny,
        };
        let reason = match verdict {
            Verdict { allowed: true, .. } => Reason::WithinLimit,
            Verdict { retry_after_ns: NEVER, .. } => Reason::CostTooHigh,
            _ => Reason::OverLimit,
        };
        said(outcome, reason, verdict)
    }

    /// Reports an uncharged cell's remaining units.
    fn leave(&self, hit: &ReferenceHit, salt: u32, now: Now, said: &mut Said) {
        if !hit.exempt {
            let algorithm = self.algorithm(hit.limit, hit.variant);
            let untouched = algorithm.probe(self.state(hit, now).as_slice(), now, 0, salt);
            said.verdict.remaining = untouched.remaining;
            said.verdict.reset_after_ns = untouched.reset_after_ns;
        }
    }

    fn charge(&mut self, hit: &ReferenceHit, salt: u32, now: Now) {
        let mut state = self.state(hit, now);
        let algorithm = self.algorithm(hit.limit, hit.variant);
        match &mut state {
            State::Inline(state) => algorithm.charge_inline(state, now, hit.units, salt),
            State::Heap(state) => algorithm.charge_heap(state, now, hit.units, salt),
        }
        self.cells.insert((hit.limit, hit.values.clone()), ReferenceCell { variant: hit.variant, state });
    }
}

/// The cell's salt, which staggers its windows. The salt depends on the node's secret, so it is taken from
/// the answer.
fn salt(hit: &ReferenceHit, answer: &Answer) -> u32 {
    let cell =
        answer.limits.iter().find(|l| l.limit as usize == hit.limit && l.descriptors == hit.descriptors);
    cell.map_or(0, |cell| cell.tag.salt())
}

/// The expected answer of a limit that the node reported.
fn same<'s>(said: &'s [Said], heard: &Said) -> &'s Said {
    let same = |said: &&Said| said.limit == heard.limit && said.descriptors == heard.descriptors;
    said.iter().find(same).expect("no limit speaks that must not")
}

fn heard(answer: &Answer) -> Vec<Said> {
    let one = |limit: &acequia_node::LimitAnswer| Said {
        limit: limit.limit as usize,
        descriptors: limit.descriptors,
        outcome: limit.outcome,
        reason: limit.reason,
        verdict: limit.verdict,
        units: limit.units,
        budget: limit.budget,
    };
    answer.limits.iter().map(one).collect()
}

/// "Lists are any of, * is a glob, ! excludes": for each value of a key, in order, whether the patterns match
/// it, and whether they exclude it.
fn said_of(key: &str, patterns: &ValueSpec, descriptor: &Descriptor<'_>) -> Vec<(bool, bool)> {
    let (none, any): (Vec<&String>, Vec<&String>) = patterns.texts().iter().partition(|p| p.starts_with('!'));
    let values = descriptor.entries.iter().filter(|(k, _)| *k == key.as_bytes());
    values
        .map(|(_, value)| {
            let fits = |pattern: &str| glob(pattern.as_bytes(), value);
            let is_asked_for = any.is_empty() || any.iter().any(|pattern| fits(pattern));
            (is_asked_for, none.iter().any(|pattern| fits(&pattern[1..])))
        })
        .collect()
}

/// If a key comes twice, one matching value is enough, and `!` excludes only if it fits all values.
fn is_about(key: &str, patterns: &ValueSpec, descriptor: &Descriptor<'_>) -> bool {
    if matches!(patterns, ValueSpec::Absent(_)) {
        return descriptor.entries.iter().all(|(k, _)| *k != key.as_bytes());
    }
    let said = said_of(key, patterns, descriptor);
    said.iter().any(|(is_asked_for, _)| *is_asked_for) && !said.iter().all(|(_, is_excluded)| *is_excluded)
}

/// All values must fit.
fn is_exempt(key: &str, patterns: &ValueSpec, descriptor: &Descriptor<'_>) -> bool {
    if matches!(patterns, ValueSpec::Absent(_)) {
        return descriptor.entries.iter().all(|(k, _)| *k != key.as_bytes());
    }
    let said = said_of(key, patterns, descriptor);
    !said.is_empty() && said.iter().all(|said| *said == (true, false))
}

/// Whether a cell has an override's variant: the first value, by which the cell is counted, must fit.
fn has_variant(key: &str, patterns: &ValueSpec, descriptor: &Descriptor<'_>) -> bool {
    said_of(key, patterns, descriptor).first() == Some(&(true, false))
}

fn glob(pattern: &[u8], value: &[u8]) -> bool {
    match pattern.split_first() {
        None => value.is_empty(),
        Some((b'*', rest)) => (0..=value.len()).any(|skipped| glob(rest, &value[skipped..])),
        Some((byte, rest)) => value.first() == Some(byte) && glob(rest, &value[1..]),
    }
}

fn counted_value(by: &BySpec, descriptor: &Descriptor<'_>) -> Option<Vec<u8>> {
    let (key, prefix) = match by {
        BySpec::Key(key) => (key, None),
        BySpec::Address(address) => (&address.ip, Some(address)),
    };
    let value = descriptor.entries.iter().find(|(k, _)| *k == key.as_bytes())?.1;
    let plain = |text: &str| match text {
        "10.0.0.1:80" | "1.1.1.1, 10.0.0.1" => "10.0.0.1".to_owned(),
        "[2001:db8::1]:443" => "2001:db8::1".to_owned(),
        text => text.to_owned(),
    };
    let address = std::str::from_utf8(value).ok().and_then(|text| plain(text).parse::<IpAddr>().ok());
    Some(match (prefix, address.map(|address| address.to_canonical())) {
        (Some(prefix), Some(IpAddr::V4(address))) => leading_bits(&address.octets(), prefix.v4),
        (Some(prefix), Some(IpAddr::V6(address))) => leading_bits(&address.octets(), prefix.v6),
        (Some(_), None) => b"no address".to_vec(),
        (None, _) => value.to_vec(),
    })
}

fn leading_bits(octets: &[u8], bits: u8) -> Vec<u8> {
    let kept = |(at, octet): (usize, &u8)| {
        (0..8).filter(|bit| at * 8 + bit < usize::from(bits)).map(|bit| octet & (0x80 >> bit)).sum()
    };
    octets.iter().enumerate().map(kept).collect()
}

/// A request that owns its bytes.
#[derive(Clone, Debug)]
struct Question {
    domain: &'static str,
    cost: u64,
    descriptors: Vec<(Vec<Entry>, Option<u64>)>,
}

impl Question {
    fn request(&self) -> Request<'static> {
        let mut request = Request { domain: self.domain.as_bytes(), cost: self.cost, ..Request::default() };
        for (entries, cost) in &self.descriptors {
            request.push(entries.iter().copied(), *cost);
        }
        request
    }
}

fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![20 => 1..4u64, 3 => 4..40u64, 1 => Just(u64::MAX)]
}

type Entry = (&'static [u8], &'static [u8]);

/// Entries in any order, most with keys that limits use. Some keys come twice.
fn entries() -> impl Strategy<Value = Vec<Entry>> {
    const VALUES: [&[u8]; 10] = [b"x", b"x", b"x", b"y", b"y", b"", b"xx", b"xy", b"!x", b"\xff"];
    const ADDRESSES: [&str; 12] = [
        "10.0.0.1",
        "10.0.0.1",
        "10.0.0.2",
        "::ffff:10.0.0.1",
        "10.1.0.1",
        "2001:db8::1",
        "2001:DB8:0:0::2",
        "10.0.0.1:80",
        "1.1.1.1, 10.0.0.1",
        "[2001:db8::1]:443",
        "nowhere",
        "",
    ];
    let plain = |key: &'static str| select(&VALUES[..]).prop_map(move |value| (key.as_bytes(), value));
    let address = select(&ADDRESSES[..]).prop_map(|value| (&b"ip"[..], value.as_bytes()));
    let again = select(&["a", "b", "c", "d"][..]).prop_flat_map(plain);
    (
        option::weighted(0.9, plain("a")),
        option::weighted(0.7, plain("b")),
        option::weighted(0.5, plain("c")),
        option::weighted(0.7, address),
        option::weighted(0.2, again),
    )
        .prop_map(|(a, b, c, ip, again)| [a, b, c, ip, again].into_iter().flatten().collect::<Vec<_>>())
        .prop_shuffle()
}

fn question() -> impl Strategy<Value = Question> {
    let own_cost = prop_oneof![4 => Just(None), 1 => Just(Some(0)), 2 => cost().prop_map(Some)];
    let descriptors = prop_oneof![3 => 1..2usize, 2 => 2..4usize, 1 => 0..1usize];
    let descriptors = descriptors.prop_flat_map(move |count| vec((entries(), own_cost.clone()), count));
    (select(&["shop", "shop", "shop", "shop", "shop", "bank", "bank", "nobody's"][..]), cost(), descriptors)
        .prop_map(|(domain, cost, descriptors)| Question { domain, cost, descriptors })
}

fn how() -> impl Strategy<Value = Ask> {
    prop_oneof![5 => Just(Ask::CHECK), 2 => Just(Ask::CHECK_NOW), 2 => Just(Ask::PEEK)]
}

fn wait() -> impl Strategy<Value = u64> {
    let some = select(&[1, 100 * MS, 100 * MS, S, S, S, 7 * S, MINUTE, scene::HOUR, 30 * scene::HOUR][..]);
    prop_oneof![2 => Just(0), 1 => some]
}

/// Patterns of one key.
fn patterns() -> impl Strategy<Value = ValueSpec> {
    let pattern = select(&["x", "x", "x*", "y", "xx", "*y", "*", "x*y", "", "!x", "!y", "!xx*"][..]);
    vec(pattern.prop_map(str::to_owned), 1..4).prop_map(ValueSpec::Texts)
}

fn by() -> impl Strategy<Value = Vec<BySpec>> {
    let key = |key: &str| BySpec::Key(key.into());
    let address = |v4, v6| BySpec::Address(AddressSpec { ip: "ip".into(), v4, v6, trust: 1 });
    select(vec![
        vec![],
        vec![key("a")],
        vec![key("a")],
        vec![key("a"), key("b")],
        vec![key("b"), key("a")],
        vec![address(32, 64)],
        vec![address(24, 128), key("a")],
        vec![address(9, 33)],
    ])
}

/// A limit of any algorithm, and the name of the number that an override may replace.
fn algorithm() -> impl Strategy<Value = (LimitSpec, &'static str)> {
    let rate = || select(&["1/s", "3/s", "7/m", "2/100ms", "1/h"][..]);
    let length = || select(&["100ms", "1s", "3s", "1m", "1h"][..]);
    let no_wait = prop_oneof![Just(NoWait::Deny), Just(NoWait::Allow)];
    prop_oneof![
        (rate(), 1..12u64).prop_map(|(rate, burst)| (scene::bucket("", rate, burst), "burst")),
        (rate(), 1..12u64, no_wait)
            .prop_map(|(rate, queue, no_wait)| (scene::leaky("", rate, queue, no_wait), "queue")),
        (0..12u64, length()).prop_map(|(limit, window)| (scene::window("", limit, window), "limit")),
        (0..12u64, length()).prop_map(|(limit, window)| (scene::staggered("", limit, window), "limit")),
        (0..12u64, length()).prop_map(|(limit, window)| (scene::sliding("", limit, window), "limit")),
        (0..12u64, length(), 1..7u32)
            .prop_map(|(limit, window, slots)| (scene::slots("", limit, window, slots), "limit")),
        (0..12u64, length()).prop_map(|(limit, window)| (scene::approximate("", limit, window), "limit")),
        (0..12u64, select(&["day", "week", "month", "30d"][..]), any::<bool>()).prop_map(
            |(limit, per, berlin)| {
                let time_zone = (berlin && per != "30d").then(|| "Europe/Berlin".into());
                let quota = QuotaSpec { limit, per: per.into(), time_zone };
                (LimitSpec { quota: Some(quota), ..scene::quota("", limit, per) }, "limit")
            }
        ),
    ]
}

/// Overrides for values of `a`: any number without an end, after at most one with an end.
fn overrides() -> impl Strategy<Value = Vec<(ValueSpec, u64, Option<u64>)>> {
    let lasting = (patterns(), 1..20u64, Just(None));
    let ending = (patterns(), 1..20u64, select(&[1, S, MINUTE + 1][..]).prop_map(Some));
    (option::of(ending), vec(lasting, 0..3)).prop_map(|(first, rest)| first.into_iter().chain(rest).collect())
}

fn spec() -> impl Strategy<Value = LimitSpec> {
    let domain = select(&["shop", "shop", "bank"][..]);
    let key = || select(&["a", "b", "c"][..]).prop_map(str::to_owned);
    let absent = || Just(ValueSpec::Absent(AbsentSpec { absent: true }));
    let condition = move || prop_oneof![5 => patterns().boxed(), 1 => absent().boxed()];
    let conditions = move |count| prop::collection::btree_map(key(), condition(), count);
    let when = prop_oneof![3 => Just(BTreeMap::new()), 2 => conditions(1), 1 => conditions(2)];
    let exempt = (select(&["b", "c"][..]).prop_map(str::to_owned), condition());
    let unlimited =
        prop_oneof![4 => Just(BTreeMap::new()), 1 => exempt.prop_map(|pair| BTreeMap::from([pair]))];
    let mode = prop_oneof![6 => Just(Mode::Enforce), 2 => Just(Mode::Shadow), 1 => Just(Mode::Off)];
    let charge = prop_oneof![3 => Just(Charge::Together), 1 => Just(Charge::Each)];
    let cost = prop_oneof![3 => Just(None), 1 => (1..4u64).prop_map(Some)];
    let exact = prop_oneof![3 => Just(false), 1 => Just(true)];
    let descriptors = prop_oneof![2 => Just(Descriptors::Sum), 1 => Just(Descriptors::Max)];
    let matching = (domain, when, by(), unlimited, exact);
    (algorithm(), matching, mode, charge, (cost, descriptors), overrides()).prop_filter_map(
        "a sound limit",
        |(
            (base, number),
            (domain, when, by, unlimited, exact),
            mode,
            charge,
            (cost, descriptors),
            overrides,
        )| {
            let counts_a = by.contains(&BySpec::Key("a".into()));
            let overrides = overrides.into_iter().filter(|_| counts_a).map(|(a, units, until)| {
                let mut fields = BTreeMap::from([
                    (number.to_owned(), ValueSpec::Texts(vec![units.to_string()])),
                    ("a".to_owned(), a),
                ]);
                if let Some(after) = until {
                    let until = scene::instant(START.wall_ns + after);
                    fields.insert("until".to_owned(), ValueSpec::Texts(vec![until]));
                }
                fields
            });
            let spec = LimitSpec {
                name: "sound".into(),
                domain: domain.into(),
                when,
                exact,
                by,
                descriptors,
                unlimited,
                mode,
                candidate_for: None,
                charge,
                cost,
                overrides: overrides.collect(),
                ..base
            };
            Limit::new(spec.clone()).is_ok().then_some(spec)
        },
    )
}

fn named(specs: Vec<LimitSpec>) -> Vec<LimitSpec> {
    let name = |(number, spec): (usize, LimitSpec)| LimitSpec { name: format!("limit-{number}"), ..spec };
    specs.into_iter().enumerate().map(name).collect()
}

#[test]
fn an_asker_without_limits_allows_everything() {
    let node = Arc::new(acequia_node::Node::new(acequia_node::Config {
        key: scene::KEY,
        memory_bytes: 0,
        durable: false,
        after_crash: None,
        home: None,
    }));
    let answer = node.asker().check(&Request::new("shop", &[]), START, Ask::CHECK).clone();
    assert_eq!((answer.allowed, answer.reason, answer.unmatched), (true, Reason::NoMatch, 1));
}
