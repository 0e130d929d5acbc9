//! After the faults all links work, all processes run, and time passes. Then views must be equal, loans must
//! be back once nobody asks, and a region that asks must get what others do not use.

use acequia_node::regions::Wall;
use acequia_rights::versions::{Member, Progress};

use crate::{
    budget::{KeyCell, MS, S},
    network::Weather,
    oracle::Finding,
    place::{Place, State},
    trace::Event,
    world::World,
};

/// The number of checks until views must be equal. At first they are a second apart, for heartbeats and
/// loans; later the intervals grow, since a lowered bucket must drain, which may take months.
const LOOKS: u32 = 52;
const LOOKS_CLOSE: u32 = 24;
/// Checks, ten seconds apart, until loans must be back: three times the longest sliding window of any
/// history.
const RETURN_LOOKS: u32 = 36;

/// Ends all faults, and checks the recovery.
pub fn heal(world: &mut World) {
    mend(world);
    world.end_leases();
    let restored = world.places.iter().any(|place| place.restored);
    if restored || world.oracle.void {
        quiet(world, 10 * S);
        return;
    }
    for look in 0..LOOKS {
        world.pass(S << look.saturating_sub(LOOKS_CLOSE));
        quiet(world, S);
        if world.oracle.finding.is_some() || unsettled(world).is_none() {
            break;
        }
    }
    if let Some(what) = unsettled(world) {
        world.oracle.find("settle", what);
        return;
    }
    // Without requests all loans come back; those of a sliding window once their use has expired.
    for _ in 0..RETURN_LOOKS {
        rounds(world, 10 * S, 40 * MS);
        // Every node sweeps all the time: leases whose callers never heard of them end.
        (0..world.places.len()).for_each(|place| world.sweep(place));
        if world.oracle.finding.is_some()
            || (still_lent(world).is_none() && counted_otherwise(world).is_none())
        {
            break;
        }
    }
    if let Some(what) = still_lent(world) {
        world.oracle.find("return", what);
    }
    if let Some(what) = counted_otherwise(world) {
        world.oracle.find("usage", what);
    }
}

/// Repairs all links, processes and clocks.
fn mend(world: &mut World) {
    world.note(Event::Heal);
    world.network.cut.clear();
    world.network.weather = Weather { way_ns: (5 * MS, 20 * MS), ..Weather::default() };
    world.crash_after_send = 0;
    for place in 0..world.places.len() {
        world.places[place].asleep_until = 0;
        world.places[place].stuck_until = 0;
        if world.places[place].state == State::Down {
            let cleanly = world.places[place].stopped;
            world.start(place, cleanly);
        }
        world.flush(place);
    }
    // The catalogue needs an authority.
    let authority = world.operator.authority;
    if !world.places[authority].owner {
        quiet(world, 3 * S);
        world.is_mended = true;
        let lost = world.places[authority].incarnation;
        world.operator.members.retain(|_, member| member.incarnation != lost);
        if let Some(heir) = heir(world) {
            world.take_over(heir);
        }
    }
    quiet(world, 2 * S);
    for place in 0..world.places.len() {
        if world.places[place].state == State::Up && world.is_stranger(place) && !world.has_left(place) {
            world.name(place, 1);
        }
    }
    // Publishes what was wanted while the authority was out of reach.
    world.two_authorities = false;
    world.command("all that was wanted", |_| ());
    quiet(world, 2 * S);
    // Another place took over without the lost authority's last version, which others have heard. Its epoch
    // is too low for them. They report this, and what to do.
    if world.two_authorities {
        let authority = world.operator.authority;
        let done = world.publish(authority, true);
        world.note(Event::Command(authority, "take over anew", done));
    }
}

/// The next authority: a region that stays, or else one that is asked to stay.
fn heir(world: &mut World) -> Option<usize> {
    let owns = |place: &usize| world.places[*place].owner && world.places[*place].state == State::Up;
    let owners: Vec<usize> = (0..world.places.len()).filter(owns).collect();
    let stays = owners.iter().copied().find(|place| !world.is_stranger(*place));
    let heir = stays.or(owners.first().copied())?;
    let incarnation = world.places[heir].incarnation;
    let member = Member { weight: 1, incarnation, name: String::new() };
    world.operator.members.entry(incarnation.member).or_insert(member);
    Some(heir)
}

/// Passes time until each process has a peer that agrees with its wall clock, or knows that it is alone.
/// Until then a process lets nothing pass.
pub fn confirm(world: &mut World) {
    let waits = |world: &World, place: &Place| {
        let membership = place.node().and_then(|node| node.membership(place.now(world.now)));
        membership.is_some_and(|membership| membership.wall == Wall::Unconfirmed)
    };
    for _ in 0..300 {
        if !world.places.iter().any(|place| waits(world, place)) {
            return;
        }
        // Every second round contains a tick.
        quiet(world, 20 * MS);
    }
}

/// Passes time, in which all waiting work is done.
pub fn quiet(world: &mut World, ns: u64) {
    rounds(world, ns, 10 * MS);
}

fn rounds(world: &mut World, ns: u64, each_ns: u64) {
    let until = world.now + ns;
    let mut round = 0;
    while world.now < until && world.oracle.finding.is_none() {
        world.pass(each_ns);
        while world.deliver() {}
        round += 1;
        for place in 0..world.places.len() {
            let calls = world.places[place].node().is_some_and(|node| node.calls());
            if calls || round % 2 == 0 {
                world.tick(place);
            }
            world.flush(place);
            world.send(place);
        }
    }
}

/// The members that are still waited for, as text.
fn unsettled(world: &World) -> Option<String> {
    let version_id = world.places[world.operator.authority].version_id;
    for (number, place) in world.places.iter().enumerate() {
        let Some(node) = place.node() else { continue };
        if !place.owner {
            continue;
        }
        let Some(Progress { requested, effective, pending, .. }) =
            node.membership(place.now(world.now)).and_then(|membership| membership.progress)
        else {
            return Some(format!("region {number} has no version"));
        };
        if requested != version_id || effective != requested || !pending.is_empty() {
            let marks: Vec<_> = world
                .places
                .iter()
                .map(|place| {
                    (
                        place.state,
                        place.incarnation.number,
                        place.owner,
                        place.node().map(|node| node.version_ids()),
                    )
                })
                .collect();
            return Some(format!(
                "region {number} has {requested:?} of {version_id:?}, effective {effective:?}, waits for {pending:?}; {marks:?}"
            ));
        }
    }
    None
}

/// A region whose charges under a current limit another region does not know.
fn counted_otherwise(world: &World) -> Option<String> {
    let owners = || world.places.iter().filter(|place| place.owner && place.state == State::Up);
    let limits = world.limits.iter().zip(&world.operator.budgets).filter(|(_, budget)| budget.is_some());
    for (limit, of) in limits.flat_map(|(limit, _)| owners().map(move |of| (limit, of))) {
        let told = |by: &Place| Some(by.node()?.charged_by(of.incarnation, limit.id));
        let all: Vec<u64> = owners().filter_map(told).collect();
        if all.iter().any(|units| *units != all[0]) {
            return Some(format!("limit {}, charged by {:?}: {all:?}", limit.name, of.incarnation));
        }
    }
    None
}

/// A cell without requests of which something is still lent or held.
fn still_lent(world: &World) -> Option<String> {
    for limit in &world.limits {
        let keys = (0..limit.keys.len())
            .flat_map(|key| (0..limit.keys[key].cells.len()).map(move |cell| (key, cell)));
        for (key, cell) in keys {
            let all: Vec<_> = world
                .places
                .iter()
                .enumerate()
                .filter_map(|(number, place)| {
                    let holding = limit.holding(place, KeyCell { key, cell }, world.now)?;
                    let moved = holding.lent != Default::default() || holding.held != Default::default();
                    moved
                        .then(|| format!("region {number} lent {:?}, holds {:?}", holding.lent, holding.held))
                })
                .collect();
            if !all.is_empty() {
                let (name, shape, all) = (limit.name, limit.shape, all.join("; "));
                return Some(format!("limit {name} {shape:?}, key {key}, cell {cell}: {all}"));
            }
        }
    }
    None
}

/// A finding in one line.
pub fn say(finding: &Finding) -> String {
    format!("{}: {}", finding.check, finding.what)
}
