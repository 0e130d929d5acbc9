//! After the faults: all links up, everybody restarted, time passes. Then views are equal, what was lent is back once
//! nobody asks, and a region that asks gets what the others do not use.

use acequia_node::sharing::Wall;
use acequia_rights::versions::{Member, Progress};

use crate::{
    budget::{MS, S},
    network::Weather,
    oracle::Finding,
    place::{Place, State},
    trace::Event,
    world::World,
};

/// Looks until views must be equal: a second apart at first, for heartbeats and for what was lent; and then further and
/// further, since a lowered bucket must drain first, which may take months.
const LOOKS: u32 = 52;
const LOOKS_CLOSE: u32 = 24;
/// Looks, ten seconds apart, until what was lent must be back: three times the longest sliding window of any history.
const RETURN_LOOKS: u32 = 36;

/// Ends all faults, and looks whether all is well again.
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
    // Nobody asks: everything that was lent comes back, of a sliding window once it is not used any more.
    for _ in 0..RETURN_LOOKS {
        rounds(world, 10 * S, 40 * MS);
        // As every node does all the time: what was leased to somebody who never heard of it ends.
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

/// All links up, all processes there, all clocks within their bounds.
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
    // Somebody must speak for the catalogue.
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
    // Whatever was wanted while nobody could be told.
    world.two_authorities = false;
    world.command("all that was wanted", |_| ());
    quiet(world, 2 * S);
    // Somebody took over without the last word of an authority that was lost, which others heard: the epoch is one too
    // low for them. They say so, and say what to do.
    if world.two_authorities {
        let authority = world.operator.authority;
        let done = world.publish(authority, true);
        world.note(Event::Command(authority, "take over anew", done));
    }
}

/// Who is to be the authority: a region that is to stay, or one that is asked to stay after all.
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

/// Time passes until each process that runs has somebody who agrees with its wall, or knows that it is alone: before that it
/// lets nothing pass.
pub fn confirm(world: &mut World) {
    let waits = |world: &World, place: &Place| {
        let membership = place.node().and_then(|node| node.membership(place.now(world.now)));
        membership.is_some_and(|membership| membership.wall == Wall::Unconfirmed)
    };
    for _ in 0..300 {
        if !world.places.iter().any(|place| waits(world, place)) {
            return;
        }
        // In every second round there is a tick.
        quiet(world, 20 * MS);
    }
}

/// Time passes, and all that waits is done as it should be.
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

/// Who is still waited for, in words.
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
                        place.node().map(|node| node.marks()),
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

/// Regions with a share of which another one does not know what they have charged under a limit that there is.
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

/// Cells of which something is lent, or held, that nobody asks for.
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
                    let holding = limit.holding(place, (key, cell), world.now)?;
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

/// What a history found, in one line.
pub fn say(finding: &Finding) -> String {
    format!("{}: {}", finding.check, finding.what)
}
