//! A whole node among regions. Two peers send well-formed frames with any contents, between checks, ticks and
//! polls. The node never panics, and its memory is bounded. A refused frame changes nothing. At one instant
//! the node admits at most the whole limit plus what the peers said they lent or gave.
#![no_main]

use std::{collections::BTreeMap, sync::LazyLock};

use acequia_fuzz::{
    memory,
    place::{self, MS, Place, S},
    seeds,
};
use acequia_limits::{CellTag, LimitId, Now, Part, Request};
use acequia_node::{
    Ask, Forwarding, LimitAnswer, Outcome, Waiter,
    regions::wire::{self, FrameEntry, FrameHeader, ReceivedFrames, Rough, ShortId, Whole},
};
use acequia_rights::{
    Ack, Grant, Heartbeat, Incarnation, MemberId, Renew, Return, Version, VersionId,
    versions::{Fence, Member},
};
use libfuzzer_sys::{
    arbitrary::{Result, Unstructured},
    fuzz_target,
};

/// Steps in a history.
const STEPS_MAX: usize = 120;
/// The most entries in a frame.
const ENTRIES_MAX: usize = 12;
/// The most bytes of a node, with the frames and answers of one history.
const BYTES_MAX: usize = 24 << 20;
const KEYS: [&str; 3] = ["a", "b", "c"];

fuzz_target!(init: seeds::write(|| seeds::random(24, 1_024)), |bytes: &[u8]| {
    let (_, peak) = memory::peak_of(|| {
        let mut bytes = Unstructured::new(bytes);
        let mut history = History::new(bytes.arbitrary().unwrap_or(false));
        // The history ends when the bytes do.
        let _ = history.run(&mut bytes);
        history.end();
    });
    assert!(peak <= BYTES_MAX, "{peak} bytes");
});

/// What a peer knows of itself and of the node.
struct Peer {
    incarnation: Incarnation,
    process_number: u32,
    number: u64,
    heartbeat: u64,
    loan: u64,
    ids: u32,
    /// The node's last header.
    heard: Option<FrameHeader>,
    received: ReceivedFrames,
    /// Loans that the node granted to the peer, and the windows in which the node asked.
    grants: Vec<Grant>,
}

struct History {
    now: Now,
    place: Place,
    peers: [Peer; 2],
    /// The last admitted units, by limit and cell.
    admitted: BTreeMap<(LimitId, CellTag), Admitted>,
    /// Units that the peers have ever said they lent or gave.
    told: u64,
    /// Steady time since when a request waits for its forward.
    waits_since: Option<u64>,
}

/// Units admitted at one instant, and the largest budget that the limit had then.
#[derive(Default)]
struct Admitted {
    at_ns: u64,
    units: u64,
    whole: u64,
}

/// The cells of the keys: limit and tag.
static CELLS: LazyLock<Vec<(LimitId, CellTag)>> = LazyLock::new(|| {
    let now = Now::at(place::START);
    let mut place = Place::new(0, now);
    place.found(now);
    let mut cells = Vec::new();
    for key in KEYS {
        place.ask("all", key, 1, now);
        let (answer, catalogue) = place.asker.last();
        let cell =
            |said: &acequia_node::LimitAnswer| (catalogue.limits[said.limit as usize].limit.id, said.tag);
        cells.extend(answer.limits.iter().map(cell));
    }
    cells
});

impl History {
    /// With `has_mate`, the first peer is a node of this region. The two nodes forward requests to each
    /// other.
    fn new(has_mate: bool) -> Self {
        let now = Now::at(place::START);
        let mut place = if has_mate { Place::beside(1, 0, now) } else { Place::new(0, now) };
        place.found(now);
        let peer = |region| Peer {
            incarnation: place::incarnation(region),
            process_number: 1,
            number: 0,
            heartbeat: 0,
            loan: 0,
            ids: 0,
            heard: None,
            received: ReceivedFrames::default(),
            grants: Vec::new(),
        };
        let peers = [peer(1), peer(2)];
        Self { now, place, peers, admitted: BTreeMap::new(), told: 0, waits_since: None }
    }

    fn run(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        // Most histories begin when all regions have agreed.
        if u.ratio(7, 8)? {
            self.agree();
        }
        for _ in 0..STEPS_MAX {
            if u.is_empty() {
                break;
            }
            match u.int_in_range(0..=9)? {
                0..=3 => {
                    let peer = usize::from(u.arbitrary::<bool>()?);
                    let frame = self.frame(peer, u)?;
                    self.handle(peer, &frame, u)?;
                }
                4 | 5 => self.check(u)?,
                6 => self.tick(),
                7 => self.poll(),
                8 => self.place.flush(),
                _ => {
                    let ms: u16 = u.arbitrary()?;
                    let ns = u64::from(ms >> 2) * [MS / 10, MS, 10 * MS, S][usize::from(ms & 3)];
                    self.now = self.now.later(ns);
                }
            }
        }
        Ok(())
    }

    /// The peers hear the version and acknowledge it.
    fn agree(&mut self) {
        for _ in 0..3 {
            self.now = self.now.later(20 * MS);
            self.tick();
            self.place.flush();
            self.poll();
            for peer in 0..2 {
                let incarnation = self.peers[peer].incarnation;
                let acked = place::ack_of(&self.place.node, self.now.wall_ns);
                let entries = acked.map(|ack| FrameEntry::Acked { incarnation, ack, seal: None });
                let frame = self.written(peer, &entries.into_iter().collect::<Vec<_>>());
                self.place.node.handle(incarnation.member, &frame, self.now).expect("a frame that reads");
            }
        }
        self.now = self.now.later(7_200 * S);
        self.tick();
        self.place.flush();
        self.poll();
    }

    fn check(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let key = *u.choose(&KEYS)?;
        let cost = *u.choose(&[1, 1, 1, 5, 20, 400, u64::MAX])?;
        let times = u.int_in_range(1..=40)?;
        let entries = [("to", *u.choose(&place::TO)?), ("key", key)];
        let mut request = Request::new("shop", &entries);
        request.cost = cost;
        for _ in 0..times {
            let forwarding = self.waits_since.map_or(Forwarding::May, Forwarding::Since);
            let asker = &mut self.place.asker;
            let is_allowed = asker.check(&request, self.now, Ask::CHECK.forwarding(forwarding)).allowed;
            let (answer, catalogue) = asker.last();
            if !is_allowed {
                let since_ns = self.waits_since.unwrap_or(self.now.steady_ns);
                let waiter = Waiter { since_ns, patience_ns: 40 * MS, is_again: self.waits_since.is_some() };
                if self.place.node.forward_charge(answer, catalogue, waiter, self.now).is_some() {
                    self.waits_since = Some(since_ns);
                }
                break;
            }
            // The node also trusts charges that others made.
            let is_own = |said: &&LimitAnswer| said.outcome == Outcome::Allow && !said.is_forwarded;
            for said in answer.limits.iter().filter(is_own) {
                // Checks a single instant, the weakest promise. The node trusts what peers lend and give,
                // because it trusts their certificates.
                let limit = &catalogue.limits[said.limit as usize].limit;
                let budgets = limit.overrides.iter().map(|one| one.algorithm.budget());
                let whole = budgets.fold(limit.algorithm.budget(), u64::max);
                let all = self.admitted.entry((limit.id, said.tag)).or_default();
                if all.at_ns != self.now.steady_ns {
                    *all = Admitted { at_ns: self.now.steady_ns, ..Admitted::default() };
                }
                all.units = all.units.saturating_add(said.units);
                all.whole = all.whole.max(whole);
                let most = all.whole.saturating_add(self.told);
                assert!(all.units <= most, "{} of {most} in {:?}", all.units, limit.spec.name);
            }
        }
        Ok(())
    }

    fn tick(&mut self) {
        let disk = &self.place.disk;
        let _ = self.place.node.tick(self.now, |id| Some(place::rows(disk, id)));
    }

    /// Receives the node's frames. As a peer would, the history learns heartbeats, loans and numbers from
    /// them.
    fn poll(&mut self) {
        let mut frames = 0;
        while let Some((to, bytes)) = self.place.node.poll(self.now) {
            frames += 1;
            assert!(frames < 1_000, "a node has an end of what it says");
            let frame = wire::read(&bytes).expect("a node writes frames that read");
            let Some(peer) = self.peers.iter_mut().find(|peer| peer.incarnation.member == to) else {
                continue;
            };
            let FrameHeader { incarnation, process_number, number, .. } = frame.header;
            let highest = number.max(peer.received.highest);
            peer.received =
                ReceivedFrames { incarnation: incarnation.number, process_number, highest, mask: u64::MAX };
            for entry in frame.entries {
                if let FrameEntry::Grant { grant, .. } = entry {
                    peer.grants.push(grant);
                }
            }
            peer.heard = Some(frame.header);
        }
    }

    /// Gives a frame to the node. A refused frame must change nothing visible.
    fn handle(&mut self, peer: usize, frame: &[u8], u: &mut Unstructured<'_>) -> Result<()> {
        let from = self.peers[peer].incarnation.member;
        let from = if u.ratio(1, 32)? { MemberId(from.0 % 3) } else { from };
        let before = self.visible();
        if self.place.node.handle(from, frame, self.now).is_err() {
            assert!(self.visible() == before, "a refused frame changed something");
        }
        Ok(())
    }

    fn visible(&mut self) -> impl PartialEq + use<> {
        let peeks = KEYS.map(|key| {
            let entries = [("to", "all"), ("key", key)];
            let request = Request::new("shop", &entries);
            self.place.asker.check(&request, self.now, Ask::PEEK).clone()
        });
        let node = &self.place.node;
        let traffic = acequia_node::regions::Traffic { frames_in: 0, frames_refused: 0, ..node.traffic() };
        let usage: Vec<u128> = CELLS.iter().map(|(limit, _)| node.usage_of(*limit)).collect();
        (peeks, traffic, usage, node.membership(self.now), node.version(), node.usage().cells)
    }

    /// At the end the node sends its remaining frames, and its admissions are checked.
    fn end(&mut self) {
        for _ in 0..3 {
            self.now = self.now.later(S);
            self.tick();
            self.place.flush();
            self.poll();
        }
        self.place.node.membership(self.now);
        let traffic = self.place.node.traffic();
        assert!(traffic.loans_max <= 2 * acequia_rights::loan::LOANS_MAX as u64, "{traffic:?}");
        (0..acequia_node::SHARDS).for_each(|shard| self.place.node.sweep(shard, self.now));
        self.place.node.close(self.now, drop);
    }

    // The peers' frames.

    fn frame(&mut self, peer: usize, u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
        let count = u.int_in_range(0..=ENTRIES_MAX)?;
        let mut entries = Vec::new();
        for _ in 0..count {
            let entry = self.entry(peer, u)?;
            if let FrameEntry::Grant { grant: Grant { part: Part { units, .. }, .. }, .. }
            | FrameEntry::Give { cumulative: units, .. } = &entry
            {
                self.told = self.told.saturating_add(*units);
            }
            entries.push(entry);
        }
        let mut frame = self.written(peer, &entries);
        if u.ratio(1, 16)? {
            // A changed header.
            let at = u.choose_index(frame.len().min(48))?;
            frame[at] = u.arbitrary()?;
        } else if u.ratio(1, 32)? {
            let (incarnation, process_number) =
                (self.peers[peer].incarnation, self.peers[peer].process_number);
            self.peers[peer].incarnation.number = incarnation.number.wrapping_add(u.int_in_range(0..=1)?);
            self.peers[peer].process_number = process_number.wrapping_add(u.int_in_range(0..=2)?);
            self.peers[peer].number = 0;
        }
        Ok(frame)
    }

    fn written(&mut self, peer: usize, entries: &[FrameEntry]) -> Vec<u8> {
        let version_id =
            self.place.node.version().map_or_else(VersionId::default, |version| version.version_id);
        let peer = &mut self.peers[peer];
        peer.number += 1;
        peer.heartbeat += 1;
        let header = FrameHeader {
            incarnation: peer.incarnation,
            process_number: peer.process_number,
            number: peer.number,
            received: peer.received,
            heartbeat: peer.heartbeat,
            wall_ns: self.now.wall_ns,
            corrected_ns: 0,
            is_believed: true,
            loan_max: peer.grants.iter().map(|grant| grant.number).max().unwrap_or(0),
            version_id,
        };
        let mut bytes = vec![wire::VERSION];
        bytes = postcard::to_extend(&header, bytes).expect("a header");
        for entry in entries {
            bytes = postcard::to_extend(entry, bytes).expect("an entry");
        }
        bytes
    }

    /// The node's newest heartbeat, as the peer heard it.
    fn echo(&self, peer: usize, u: &mut Unstructured<'_>) -> Result<Heartbeat> {
        if u.ratio(1, 16)? {
            return Ok(Heartbeat { process_number: u.arbitrary()?, number: u.arbitrary()? });
        }
        let heard = self.peers[peer].heard.as_ref();
        Ok(heard.map_or(Heartbeat { process_number: 0, number: 0 }, |header| Heartbeat {
            process_number: header.process_number,
            number: header.heartbeat,
        }))
    }

    fn entry(&mut self, peer: usize, u: &mut Unstructured<'_>) -> Result<FrameEntry> {
        let id = self.id(peer, u)?;
        Ok(match u.int_in_range(0..=23)? {
            0..=2 => {
                let (limit, tag) = self.cell(u)?;
                self.peers[peer].ids = (self.peers[peer].ids + 2) % 64;
                let which = if u.ratio(1, 4)? { Some(u.arbitrary()?) } else { None };
                FrameEntry::Introduce { id: ShortId(self.peers[peer].ids), limit, tag, which }
            }
            3 => FrameEntry::Unknown { id },
            4 => {
                let mut rough = || Ok(Rough(if u.ratio(1, 4)? { u16::MAX } else { u.arbitrary()? }));
                let (demand, holds, left, stands, owed) = (rough()?, rough()?, rough()?, rough()?, rough()?);
                let owed = if owed.0 % 4 > 0 { owed } else { Rough::default() };
                let stands = (stands.0 % 4 > 0).then_some(stands);
                FrameEntry::Advertisement { id, demand, holds, left, stands, owed }
            }
            5 => FrameEntry::Short { id, units: number(u)? },
            6..=8 => {
                self.peers[peer].loan += 1;
                let number = if u.ratio(1, 8)? { number(u)? } else { self.peers[peer].loan };
                let part = Part { rate: small(u, 1 << 20)? as u32, units: small(u, 1_000)? };
                let tokens = part.units.min(small(u, 1_000)?);
                let ttl_ns = if u.ratio(1, 8)? { u.arbitrary()? } else { 3 * S };
                FrameEntry::Grant {
                    id,
                    grant: Grant { number, part, tokens, ttl_ns, echo: self.echo(peer, u)? },
                }
            }
            9 => {
                let back = match u.choose_iter(self.peers[peer].grants.clone()) {
                    Ok(grant) => Return { number: grant.number, tokens: small(u, grant.part.units)? },
                    Err(_) => Return { number: number(u)?, tokens: number(u)? },
                };
                FrameEntry::Return { id, back }
            }
            10 => FrameEntry::Recall { id, number: small(u, self.peers[peer].loan)? },
            11 => {
                let number = match u.choose_iter(self.peers[peer].grants.clone()) {
                    Ok(grant) => grant.number,
                    Err(_) => number(u)?,
                };
                FrameEntry::Refused { id, number }
            }
            12 => {
                let (from, up_to) = (small(u, 4)?, small(u, self.peers[peer].loan + 2)?);
                let except =
                    (0..u.int_in_range(0..=6)?).map(|_| small(u, up_to.max(1))).collect::<Result<_>>()?;
                FrameEntry::Renew(Renew { echo: self.echo(peer, u)?, from, up_to, except })
            }
            13 => FrameEntry::Ask { id, end_ns: self.window(u)?, units: number(u)? },
            14 | 15 => FrameEntry::Give { id, end_ns: self.window(u)?, cumulative: number(u)? },
            16 => FrameEntry::Got { id, end_ns: self.window(u)?, cumulative: number(u)? },
            17 => FrameEntry::Version(Box::new(self.version(u)?), None),
            18 => {
                let incarnation =
                    if u.arbitrary()? { self.peers[peer].incarnation } else { self.incarnation(u)? };
                let ack = match place::ack_of(&self.place.node, self.now.wall_ns) {
                    Some(ack) if u.ratio(3, 4)? => ack,
                    _ => Ack {
                        version_id: version_id(u)?,
                        allocation: version_id(u)?,
                        from_wall_ns: u.arbitrary()?,
                        authority: self.incarnation(u)?,
                    },
                };
                FrameEntry::Acked { incarnation, ack, seal: None }
            }
            19 => {
                let (limit, tag) = self.cell(u)?;
                let rate = if u.arbitrary()? { Some((number(u)?, number(u)?)) } else { None };
                // The limit's own whole, which may be forwarded.
                let whole = match u.arbitrary()? {
                    true => Whole { units: 30, rate: None },
                    false => Whole { units: number(u)?, rate },
                };
                FrameEntry::Forward {
                    limit,
                    tag,
                    whole,
                    number: number(u)?,
                    units: if u.arbitrary()? { small(u, 4)? } else { number(u)? },
                    within_us: u.arbitrary()?,
                    is_again: u.arbitrary()?,
                }
            }
            21 => FrameEntry::Ping,
            20 => FrameEntry::ForwardReply {
                // The node's forward numbers, which begin at one of two values.
                number: (u64::from(u.arbitrary::<bool>()?) << 40).saturating_add(small(u, 8)?),
                units: if u.arbitrary()? { Some(small(u, 4)?) } else { None },
            },
            _ => {
                let incarnation =
                    if u.ratio(7, 8)? { self.peers[peer].incarnation } else { self.incarnation(u)? };
                let (limit, _) = self.cell(u)?;
                FrameEntry::Usage { limit, incarnation, spent: number(u)?, refunded: small(u, 2)? }
            }
        })
    }

    /// Mostly an id that one of the ends has introduced.
    fn id(&self, peer: usize, u: &mut Unstructured<'_>) -> Result<ShortId> {
        let own = u32::from(u.int_in_range(0..=32_u8)?) * 2;
        Ok(match u.int_in_range(0..=15)? {
            0 => ShortId(u.arbitrary()?),
            1..=4 => ShortId(own | 1),
            5 => ShortId(own),
            _ => ShortId(self.peers[peer].ids),
        })
    }

    fn cell(&self, u: &mut Unstructured<'_>) -> Result<(LimitId, CellTag)> {
        if u.ratio(1, 24)? {
            return Ok((LimitId(u.arbitrary()?), CellTag(u.arbitrary()?)));
        }
        let (limit, tag) = *u.choose(&CELLS)?;
        Ok((limit, if u.ratio(1, 12)? { CellTag(u.arbitrary()?) } else { tag }))
    }

    /// The end of a window that is open or next.
    fn window(&self, u: &mut Unstructured<'_>) -> Result<u64> {
        let wall_ns = self.now.wall_ns;
        let length_ns = *u.choose(&[3_600 * S, S])?;
        Ok(match u.int_in_range(0..=7)? {
            0 => u.arbitrary()?,
            1 => (wall_ns / length_ns + 2) * length_ns,
            _ => (wall_ns / length_ns + 1) * length_ns,
        })
    }

    fn incarnation(&self, u: &mut Unstructured<'_>) -> Result<Incarnation> {
        Ok(Incarnation {
            member: MemberId(u.int_in_range(0..=4)?),
            node: u.int_in_range(0..=1)?,
            number: u.int_in_range(0..=3)?,
        })
    }

    /// A successor of the node's version, with some changes.
    fn version(&self, u: &mut Unstructured<'_>) -> Result<Version> {
        let mut version = self.place.node.version().expect("it has one");
        version.version_id.number = version.version_id.number.saturating_add(1);
        for _ in 0..u.int_in_range(0..=3)? {
            match u.int_in_range(0..=10)? {
                0 => version.version_id = version_id(u)?,
                1 => version.allocation = version.version_id,
                2 => version.allocation = version_id(u)?,
                3 => version.authority = self.incarnation(u)?,
                4 => {
                    let incarnation = self.incarnation(u)?;
                    let member = Member {
                        weight: number(u)? as u32,
                        incarnation,
                        name: "x".repeat(u.int_in_range(0..=200)?),
                    };
                    version.members.insert(incarnation.member, member);
                }
                5 => drop(version.members.pop_last()),
                6 => drop(version.leaving.insert(self.incarnation(u)?)),
                7 => {
                    version.fenced.push(Fence { incarnation: self.incarnation(u)?, wall_ns: u.arbitrary()? })
                }
                8 => {
                    version.clock_error_ns = number(u)?;
                    version.drift_ppm = number(u)? as u32;
                }
                9 => drop(version.revoked.insert(u.arbitrary()?)),
                _ => version.limits = limits(u)?,
            }
        }
        Ok(version)
    }
}

/// The limits in another variant, only some of them, or none.
fn limits(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut text = place::LIMITS.to_owned();
    for old in ["300", "3000", "1000/s", "90/s", "5000", "500"] {
        if u.ratio(1, 3)? {
            let unit = if old.ends_with("/s") { "/s" } else { "" };
            text = text.replacen(old, &format!("{}{unit}", small(u, 1 << 20)?.max(1)), 1);
        }
    }
    let mut specs: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
    for _ in 0..u.int_in_range(0..=2)? {
        let at = u.choose_index(specs.len().max(1))?;
        if at < specs.len() {
            specs.remove(at);
        }
    }
    let mut bytes = serde_json::to_vec(&specs).expect("JSON");
    if u.ratio(1, 8)? {
        let at = u.choose_index(bytes.len())?;
        bytes[at] = u.arbitrary()?;
    }
    Ok(bytes)
}

fn version_id(u: &mut Unstructured<'_>) -> Result<VersionId> {
    Ok(VersionId { epoch: small(u, 3)? as u32, number: number(u)? })
}

/// Mostly small, sometimes as large as possible.
fn number(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=7)? {
        0 => u.arbitrary()?,
        1 => u64::MAX,
        2 => u.int_in_range(0..=1 << 54)?,
        _ => u.int_in_range(0..=400)?,
    })
}

fn small(u: &mut Unstructured<'_>, most: u64) -> Result<u64> {
    if u.ratio(1, 32)? { u.arbitrary() } else { u.int_in_range(0..=most) }
}
