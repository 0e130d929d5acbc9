//! The invariants. A check observes the world after every step, and once more at the end. Every finding is a
//! bug.
//!
//! | | Invariant | Where it is checked |
//! |---|---|---|
//! | I1 | admitted in a window is within its limit | [`NeverOver`] by answers, in true windows and by the nodes' own labels; [`NeverChargedOver`] by the nodes' counts |
//! | I2 | no region's rights are below zero | [`Conserved`]: a part that is lent twice is a part too many |
//! | I3 | what is known of a row is at most the row | [`RowsGrow`]; of versions, [`OneWord`] |
//! | I4 | rights as they are seen are at most the true ones | follows from I3 and I5; `tests/ring`, check `parts` |
//! | I5 | rights are conserved | [`Conserved`]: the parts of all regions, down or not, are within what is in force |
//! | I6 | rows are monotone, across restarts too | [`RowsGrow`] |
//! | I7 | one true bucket, fed with all admissions, is never below zero | [`NeverOver`], also if all that is left were asked for at once; [`NeverChargedOver`] |
//! | I8 | rates and bursts of all regions are within the whole, and so is what is in them | [`Conserved`]; what is in them, [`NeverOver`] |
//! | I9 | any stretch of a sliding window is within the limit | [`NeverOver`], [`NeverChargedOver`]; what is lent of it, [`Conserved`] |
//! | I10 | true windows hold while clocks are as good as is promised | [`NeverOver`]: no margin unless the schedule breaks the promise ([`Clocks::beyond`]) |
//! | I11 | nothing is spent by whom is closed, nor of loans that ended | [`OnlyOwnersAdmit`], [`Conserved`] |
//! | I12 | standing shares move from windows on that the giver has not opened | [`Conserved`], window by window |
//! | I13 | nothing has an effect before it is durable | [`RowsGrow`]: nobody knows of more than is on the disk; of loans and gifts, [`Conserved`] after a crash |
//! | I14 | leases of callers are within what was set apart | [`NeverOver`]: what is leased is spent at once, later and at the last moment, and counts beside what nodes have left; with changed budgets, `tests/ring` |
//! | I15 | after healing all views are equal | [`AllSettles`]; that nobody is waited for, [`NobodyWaits`] |
//! | I16 | who is dry is served by who has more | [`ServiceResumes`], [`AnswersCome`]; how soon, `tests/ring` (utilisation) |
//! | I17 | utilisation is as promised | [`UsedAsPromised`], where a plan promises any ([`Plan::used_min_percent`]); demand that moves, `tests/ring` (utilisation) |
//! | I18 | donors keep their reserve | [`FloorsKept`], where a limit has a floor; what else they keep is policy, on which no bound rests: `crates/node`, `policy.rs` |
//! | I19 | messages are bounded | [`MessagesBounded`]: packets, bytes and handshakes of each link, by active cells, until idle links are all but silent ([`MessagesBounded::until_idle`]) |
//! | I20 | nothing is overdrawn, except by reports | I1 and I7, which count what is above the limit: none. A report counts with what the limit had left |
//! | I21 | what is admitted and recorded is within the limit and what reports overdraw | [`NeverOver`] by answers, [`NeverChargedOver`] by the nodes' counts |
//! | I22 | who owes admits nothing | [`OwingAdmitsNothing`]; of a window, no region does while more is owed than is left and all hear of it. There, nobody owes what no report overdrew |
//! | I23 | a report is recorded once | [`RecordedOnce`], by each process; across crashes, `tests/ring` |
//! | I24 | at no instant are more slots taken than a limit on requests under way has | [`SlotsHeld`]: from the answer to the release, or to the end of a dead holder's slots |
//! | I25 | what requests cost up to their holds is within the limit, whatever they cost in the end | [`HoldsKept`]: the hold until the report or the end of a dead gateway's hold, and then the real cost |
//!
//! Where all are nodes of one region that share a store, three things are checked. I1, I5, I7 and I9 are
//! checked by what nodes hold and callers were told. Answers must come in time whatever the store does, and
//! after healing all pools must grant again ([`PoolsGrant`]).

mod answers;
mod apart;
mod budgets;
mod conserved;
mod counted;
mod floors;
mod holds;
mod judges;
mod messages;
mod never_over;
mod one_word;
mod owing;
mod owner;
mod pools;
mod recorded_once;
mod rows;
mod service;
mod settles;
mod slots;
mod used;

use std::time::Duration;

use acequia_limits::Limit;

pub use self::{
    answers::AnswersCome,
    apart::Apart,
    conserved::Conserved,
    counted::NeverChargedOver,
    floors::FloorsKept,
    holds::HoldsKept,
    judges::Clocks,
    messages::MessagesBounded,
    never_over::NeverOver,
    one_word::OneWord,
    owing::OwingAdmitsNothing,
    owner::OnlyOwnersAdmit,
    pools::PoolsGrant,
    recorded_once::RecordedOnce,
    rows::RowsGrow,
    service::ServiceResumes,
    settles::{AllSettles, NobodyWaits},
    slots::SlotsHeld,
    used::UsedAsPromised,
};
use crate::{
    scenarios::Plan,
    world::{Answer, Done, World},
};

/// One invariant that must hold.
pub trait Check {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Observes the world after a step in which `answers` came.
    ///
    /// # Errors
    /// A description of the invariant's breach.
    fn observe(&mut self, world: &World, answers: &[Answer]) -> Result<(), String>;

    /// Judges once more at the end of the run.
    ///
    /// # Errors
    /// A description of the invariant's breach.
    fn end(&mut self, _: &World) -> Result<(), String> {
        Ok(())
    }

    /// Judges when nobody has asked anything for a while. Called again until it holds, for [`REST_MAX`] at
    /// most.
    ///
    /// # Errors
    /// A description of the invariant's breach.
    fn rest(&mut self, _: &World) -> Result<(), String> {
        Ok(())
    }

    /// Lines for a summary of the run.
    fn summary(&self) -> Vec<String> {
        Vec::new()
    }
}

/// How long the world may take to come to rest after the last question. This is longer than a loan lasts and
/// than rows take to be compared. It is also longer than a bucket takes to drain after its lent rate has come
/// back.
pub const REST_MAX: Duration = Duration::from_secs(600);

/// The longest time in which a node that shares a store may answer. It includes a millisecond each way, three
/// for the store at most, and the steps of simulated time.
const ANSWER_MAX: Duration = Duration::from_millis(5);

/// All checks for a run of a plan.
///
/// # Errors
/// A limit cannot be judged.
pub fn all(limits: &[Limit], clocks: Clocks, plan: &Plan) -> Result<Vec<Box<dyn Check>>, String> {
    let regions = plan.regions;
    if plan.guard_percent.is_some() {
        return of_nodes(limits, clocks, plan);
    }
    Ok(vec![
        Box::new(Apart::new(NeverOver::new(limits, clocks, regions, &plan.apart)?, &plan.apart)),
        Box::new(NeverChargedOver::new(limits, clocks, plan)?),
        Box::new(Conserved::new(limits, plan)?),
        Box::new(RowsGrow::new(limits, regions)),
        Box::new(OnlyOwnersAdmit::new(limits, regions)?),
        Box::new(OneWord::default()),
        Box::new(MessagesBounded::new(limits, regions).until_idle()),
        Box::new(AnswersCome::default()),
        Box::new(ServiceResumes::new(plan)),
        Box::new(AllSettles::new(limits, plan)),
        Box::new(UsedAsPromised::new(limits, plan)),
        Box::new(FloorsKept::new(limits, plan)),
        Box::new(OwingAdmitsNothing::new(limits, plan)),
        Box::new(RecordedOnce::default()),
        Box::new(SlotsHeld::new(limits)),
        Box::new(HoldsKept::new(limits, plan)?),
    ])
}

/// The checks that apply where all are nodes of one region.
fn of_nodes(limits: &[Limit], clocks: Clocks, plan: &Plan) -> Result<Vec<Box<dyn Check>>, String> {
    Ok(vec![
        Box::new(NeverOver::new(limits, clocks, plan.regions, &plan.apart)?),
        Box::new(Conserved::new(limits, plan)?),
        Box::new(AnswersCome::within(ANSWER_MAX)),
        Box::new(ServiceResumes::new(plan)),
        Box::new(PoolsGrant::new(plan)),
    ])
}

/// How many of the faults that were applied a check has read.
#[derive(Clone, Copy, Debug, Default)]
struct FaultsRead(usize);

impl FaultsRead {
    /// The faults that were applied since the last call.
    fn next<'w>(&mut self, world: &'w World) -> &'w [Done] {
        let unread = &world.done()[self.0..];
        self.0 += unread.len();
        unread
    }
}

/// The steps that a check has seen, of which it judges only some.
#[derive(Clone, Copy, Debug, Default)]
struct Steps(u64);

impl Steps {
    /// Counts a step, and returns whether it is one of every `every` steps.
    fn is_due(&mut self, every: u64) -> bool {
        self.0 += 1;
        self.0.is_multiple_of(every)
    }
}

/// Adds a cell to those that a check watches, unless the check watches it or `cells_max` others already.
fn watch_cell<T>(cells: &mut Vec<(String, T)>, cells_max: usize, cell: String, begin: impl FnOnce() -> T) {
    if cells.len() < cells_max && cells.iter().all(|(known, _)| *known != cell) {
        cells.push((cell, begin()));
    }
}
