//! Names of charges under random histories: servers are replaced by older copies and live on, and calls are
//! late or lost.

use std::collections::BTreeSet;

use acequia_rights::pool::{
    CallContext, Generation, Letter, Letters, NameRecord, PoolGroup, Taker,
    group::{Assertion, Begin, GroupStatus, ServerIdentity},
    letters::LETTERS_MAX,
    name::{ANSWER_BYTES_MAX, Act, NameState, What},
};

use super::granting;
use crate::loans::random::Random;

const NODES: usize = 3;
const STEPS: u64 = 400;
const KEEP_US: u64 = 1_000;

#[derive(Clone, Debug, Default)]
struct Server {
    run: String,
    group: PoolGroup,
    name: NameRecord,
}

#[derive(Clone, Debug)]
enum Request {
    Begin,
    Assert,
    Act(What),
}

#[derive(Clone, Debug)]
struct Call {
    arrives: u64,
    node: usize,
    server: usize,
    generation: Generation,
    grants: bool,
    wall_us: u64,
    by: Taker,
    request: Request,
}

#[derive(Clone, Debug)]
enum Reply {
    Known(GroupStatus),
    Standing(NameState),
}

/// A node's charge under the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charge {
    None,
    Stands(Option<Generation>),
    /// Given back at this time.
    Back(u64),
}

#[derive(Clone, Debug)]
struct Node {
    server: usize,
    generation: Generation,
    grants: bool,
    charge: Charge,
}

struct World {
    random: Random,
    /// Whether a name must be ended in the answer's generation, or in a generation that grants, before the
    /// charge is given back.
    ends_where_it_counts: bool,
    now: u64,
    servers: Vec<Server>,
    nodes: Vec<Node>,
    calls: Vec<Call>,
    answers: Vec<(u64, Call, Reply)>,
    sent: u64,
    /// Requests that passed by another node's answer.
    passed: u64,
    given_back: u64,
}

impl World {
    fn send(&mut self, node: usize, request: Request) {
        self.sent += 1;
        let Node { server, generation, grants, .. } = self.nodes[node];
        let by = Taker { node: node as u16, process_number: 1, call: self.sent };
        let arrives = self.now + self.random.below(30);
        let wall_us = self.now;
        self.calls.push(Call { arrives, node, server, generation, grants, wall_us, by, request });
    }

    fn serve(&mut self, call: Call) {
        let server = &mut self.servers[call.server];
        let identity = ServerIdentity { run: server.run.clone(), config_fingerprint: 0, allocation: 0 };
        let reply = match &call.request {
            Request::Begin => {
                let (heard, by) = (call.generation.number, call.by);
                Reply::Known(server.group.begin(&identity, &Begin { heard, by, goes_on: false }))
            }
            Request::Assert => {
                let told = Assertion {
                    node: call.node as u16,
                    generation: call.generation,
                    nodes: (0..NODES as u16).collect::<BTreeSet<_>>(),
                    knows_from_us: 0,
                    is_new: true,
                    before: Generation::default(),
                    wall_us: call.wall_us,
                    slack_us: 0,
                };
                Reply::Known(server.group.assert(&identity, &told))
            }
            Request::Act(what) => match server.group.context(&identity, call.generation, call.wall_us) {
                None => Reply::Known(server.group.known(&identity)),
                Some(context) => {
                    let act = Act { by: call.by, what: what.clone(), drops_us: call.wall_us + KEEP_US };
                    Reply::Standing(server.name.act(&act, &context))
                }
            },
        };
        if self.random.below(8) > 0 {
            self.answers.push((self.now + self.random.below(30), call, reply));
        }
    }

    fn hear(&mut self, call: &Call, reply: Reply) -> Result<(), String> {
        let node = &mut self.nodes[call.node];
        let standing = match reply {
            Reply::Known(known) => {
                if known.generation.number > node.generation.number {
                    (node.generation, node.grants) = (known.generation, false);
                }
                if known.generation == node.generation {
                    node.grants |= known.grants;
                }
                return Ok(());
            }
            Reply::Standing(standing) => standing,
        };
        match (&call.request, standing) {
            (Request::Act(What::Claim), NameState::Claimed(by))
                if by == call.by && node.charge == Charge::None =>
            {
                node.charge = Charge::Stands(Some(call.generation));
                // The claim was granted to this call.
                let keep = Call { request: Request::Act(What::Keep(vec![call.node as u8])), ..call.clone() };
                self.calls.push(Call { arrives: self.now + self.random.below(60), ..keep });
            }
            (Request::Act(What::Claim), NameState::Kept(answer)) => {
                let charged = usize::from(answer[0]);
                self.passed += u64::from(charged != call.node);
                // A request from before the refund might have been answered earlier, so it may pass.
                if matches!(self.nodes[charged].charge, Charge::Back(since) if since <= call.wall_us) {
                    return Err(format!(
                        "step {}: node {} passes by what was given back",
                        self.now, call.node
                    ));
                }
            }
            (Request::Act(What::End), NameState::Ended) => {
                let counts = |kept: Option<Generation>| {
                    kept == Some(call.generation) || call.grants || !self.ends_where_it_counts
                };
                if matches!(node.charge, Charge::Stands(kept) if counts(kept)) {
                    node.charge = Charge::Back(self.now);
                    self.given_back += 1;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += 1;
        let node = self.random.below(NODES as u64) as usize;
        match self.random.below(40) {
            // Another server takes over with an older copy of the state. Connected nodes still reach the old
            // server.
            0 if self.servers.len() < 4 => {
                let copy = self.random.below(self.servers.len() as u64) as usize;
                let run = self.servers.len().to_string();
                self.servers.push(Server { run, ..self.servers[copy].clone() });
            }
            1..4 => self.nodes[node].server = self.servers.len() - 1,
            4..8 => self.send(node, Request::Begin),
            8..16 => self.send(node, Request::Assert),
            16..28 => self.send(node, Request::Act(What::Claim)),
            28..31 if self.nodes[node].charge != Charge::None => self.send(node, Request::Act(What::End)),
            _ => {}
        }
        let is_due = |call: &mut Call| call.arrives <= self.now;
        let due: Vec<Call> = self.calls.extract_if(.., is_due).collect();
        due.into_iter().for_each(|call| self.serve(call));
        let now = self.now;
        let heard: Vec<_> = self.answers.extract_if(.., |(at, ..)| *at <= now).collect();
        heard.into_iter().try_for_each(|(_, call, reply)| self.hear(&call, reply))
    }
}

/// Returns how often a request passed by another node's answer and how often a charge was given back, or a
/// fault.
pub(super) fn history(seed: u64, ends_where_it_counts: bool) -> Result<(u64, u64), String> {
    let node = Node { server: 0, generation: Generation::default(), grants: false, charge: Charge::None };
    let mut world = World {
        random: Random::new(seed),
        ends_where_it_counts,
        now: 0,
        servers: vec![Server { run: "0".to_owned(), ..Server::default() }],
        nodes: vec![node; NODES],
        calls: Vec::new(),
        answers: Vec::new(),
        sent: 0,
        passed: 0,
        given_back: 0,
    };
    (0..STEPS).try_for_each(|_| world.step()).map_err(|fault| format!("seed {seed}: {fault}"))?;
    Ok((world.passed, world.given_back))
}

#[test]
fn no_request_passes_by_an_answer_whose_charge_was_refunded() {
    let histories = std::env::var("HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(4_000);
    let (mut passed, mut given_back) = (0, 0);
    for seed in 0..histories {
        match history(seed, true) {
            Ok((by_others, back)) => (passed, given_back) = (passed + by_others, given_back + back),
            Err(fault) => panic!("{fault}"),
        }
    }
    println!("{histories} histories: {passed} passed by another node's answer, {given_back} were given back");
    assert!(passed > histories && given_back > histories / 10, "{passed} {given_back}");
}

#[test]
fn a_history_fails_if_ids_end_in_a_generation_that_does_not_count() {
    assert!((0..40_000).any(|seed| history(seed, false).is_err()), "nobody noticed");
}

fn context(number: u64, wall_us: u64) -> CallContext {
    let generation = Generation { number, by: Taker { node: 1, process_number: 1, call: number } };
    granting(generation, wall_us)
}

fn by(call: u64) -> Taker {
    Taker { node: 1, process_number: 1, call }
}

fn act(name: &mut NameRecord, call: u64, what: What, context: &CallContext) -> NameState {
    name.act(&Act { by: by(call), what, drops_us: context.wall_us + KEEP_US }, context)
}

#[test]
fn an_id_belongs_to_the_first_claim_until_it_is_dropped_or_expires() {
    let mut name = NameRecord::default();
    let kept = || What::Keep(b"yes".to_vec());
    assert_eq!(act(&mut name, 1, What::Claim, &context(1, 0)), NameState::Claimed(by(1)));
    assert_eq!(act(&mut name, 2, What::Claim, &context(1, 5)), NameState::Claimed(by(1)));
    assert_eq!(act(&mut name, 2, What::Leave, &context(1, 5)), NameState::Claimed(by(1)));
    assert_eq!(act(&mut name, 2, kept(), &context(1, 5)), NameState::Claimed(by(1)));
    assert_eq!(act(&mut name, 1, What::Leave, &context(1, 6)), NameState::Free);
    assert_eq!(act(&mut name, 3, What::Claim, &context(1, 7)), NameState::Claimed(by(3)));
    let long = What::Keep(vec![0; ANSWER_BYTES_MAX + 1]);
    assert_eq!(
        act(&mut name, 3, long, &context(1, 8)),
        NameState::Claimed(by(3)),
        "as if it had not been kept"
    );
    // The node that claimed the name is gone.
    assert_eq!(act(&mut name, 4, What::Claim, &context(1, 7 + KEEP_US)), NameState::Claimed(by(4)));
    assert_eq!(act(&mut name, 4, kept(), &context(1, 1_010)), NameState::Kept(b"yes".to_vec()));
    assert_eq!(act(&mut name, 5, What::Claim, &context(1, 1_011)), NameState::Kept(b"yes".to_vec()));
    assert_eq!(act(&mut name, 6, What::End, &context(1, 1_012)), NameState::Ended);
    assert_eq!(act(&mut name, 7, What::Claim, &context(1, 1_013)), NameState::Ended);
    assert_eq!(
        act(&mut name, 8, What::Claim, &context(2, 1_014)),
        NameState::Claimed(by(8)),
        "another generation"
    );
}

#[test]
fn a_letter_waits_until_its_recipient_has_received_it() {
    let mut letters = Letters::default();
    let letter = |id, cost| Letter { id, cost };
    assert!(
        letters.post(letter(7, None), 100, &context(1, 0))
            && letters.post(letter(9, Some(3)), 100, &context(1, 1))
    );
    assert!(letters.post(letter(7, Some(1)), 100, &context(1, 2)), "of one charge the first counts");
    let both = [letter(7, None), letter(9, Some(3))];
    assert_eq!(letters.collect(&[], &context(1, 3)), both);
    assert_eq!(letters.collect(&[7], &context(1, 4)), both[1..]);
    assert_eq!(letters.collect(&[], &context(1, 100)), [], "nobody keeps it any more");
    assert_eq!(letters.collect(&[], &context(1, 5)), both[1..], "by no wall that is behind");
    assert_eq!(letters.collect(&[], &context(2, 6)), [], "another generation");
    let posted = (0..).take_while(|id| letters.post(letter(*id, None), 100, &context(2, 7))).count();
    assert_eq!(posted, LETTERS_MAX);
    assert!(letters.post(letter(0, None), 100, &context(2, 8)), "it is there already");
}
