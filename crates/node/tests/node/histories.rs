//! Histories in which regions admit too much, or stop, if a rule is missing.

use crate::regions::{MS, S, START, World, bucket, incarnation, sliding, window};
use acequia_limits::{HashKey, Now, Request};
use acequia_node::{
    Ask, Config, Home, Node,
    regions::{self, Ownership},
};
use acequia_rights::{Incarnation, MemberId};

fn all(weights: &[u32]) -> Vec<(Incarnation, u32)> {
    weights.iter().enumerate().map(|(region, weight)| (incarnation(region), *weight)).collect()
}

#[test]
fn a_restored_disk_owns_nothing() {
    for restarts in [1, 2] {
        let mut world = World::new(2, &[window("w", 1_000, "1h")], 20 * MS);
        world.run(2 * S, |_, _| 0);
        let older = world.disk_of(1);
        for _ in 0..restarts {
            world.restart(1, None, incarnation(1));
            world.run(4 * S, |_, _| 0);
        }
        world.run(2 * S, |region, ms| u64::from(region == 1 && ms % 10 == 0));
        world.restart(1, Some(older), incarnation(1));
        world.run(S, |_, _| 0);
        let standing = world.places[1].node.membership(Now::at(world.now)).map(|m| m.standing);
        assert_eq!(standing, Some(Ownership::RestoredDisk), "after {restarts} restarts");
        assert!(!world.ask(1, "k"), "a fenced node admits");
    }
}

#[test]
fn rights_received_before_a_crash_are_not_counted_again() {
    let mut world = World::new(2, &[window("w", 1_000, "50s")], 20 * MS);
    world.run(2 * S, |_, _| 0);
    world.run(4 * S, |region, _| u64::from(region == 0));
    let before = world.admitted();
    assert!(before > 900, "{before}");
    world.restart(0, None, incarnation(0));
    world.run(8 * S, |region, _| u64::from(region == 0));
    assert!(world.admitted() <= 1_000, "{}", world.admitted());
}

#[test]
fn cells_on_disk_stay_correct_when_a_loan_changes_the_rate() {
    for steps in 2..4 {
        let specs = [bucket("b", "6000/m", 6_000)];
        let mut world = World::new(2, &specs, 20 * MS);
        world.run(S, |_, _| 0);
        // This part of the rate has no small fraction. A loan on top often makes one.
        world.change(0, &specs, &all(&[8, 5]), &[], 0);
        world.run(200 * S, |_, _| 0);
        let (start, before) = (world.now, world.admitted());
        for _ in 0..2_000 {
            world.ask(0, "k");
        }
        // Region 0 borrows. Then all regions spend all that they have, and region 0 crashes.
        world.run(steps * S / 2, |region, ms| u64::from(region == 0 && ms % (22 - 2 * steps) == 0));
        for _ in 0..6_000 {
            (0..2).for_each(|region| {
                world.ask(region, "k");
            });
        }
        world.run(10 * MS, |_, _| 0);
        world.restart(0, None, incarnation(0));
        let at_restart = world.admitted();
        for _ in 0..6_000 {
            world.ask(0, "k");
        }
        let most = 6_000 + (world.now - start) * 100 / S;
        let used = world.admitted() - before;
        eprintln!("{steps}: used {used} of {most}, {} after the restart", world.admitted() - at_restart);
        assert!(used <= most, "{used} of {most}");
    }
}

#[test]
fn a_short_id_of_an_earlier_process_is_ignored() {
    let mut world = World::new(2, &[window("w", 1_000, "1h")], 20 * MS);
    world.run(2 * S, |_, _| 0);
    // Region 0 asks for rights in "k", and region 1 gives them, but the messages are late.
    world.cut = vec![(1, 0)];
    world.caught = Some(Vec::new());
    world.run(S, |region, ms| u64::from(region == 0 && ms < 900));
    let caught = world.caught.take().expect("frames");
    world.cut.clear();
    world.restart(0, None, incarnation(0));
    world.run(500 * MS, |_, _| 0);
    // The new process gives its first short id to another cell.
    world.cut = vec![(1, 0)];
    for _ in 0..490 {
        world.ask(0, "other");
    }
    world.run(30 * MS, |_, _| 0);
    for (from, to, bytes) in caught {
        let now = world.now_of(to);
        let _ = world.places[to].node.handle(MemberId(from as u16), &bytes, now);
    }
    let mut used = 490;
    for _ in 0..1_000 {
        used += u64::from(world.ask(0, "other"));
    }
    assert!(used <= 500, "{used} of a part of 500");
}

#[test]
fn a_new_incarnation_is_not_taken_for_an_old_disk() {
    let mut world = World::new(2, &[window("w", 1_000, "1h")], 20 * MS);
    world.run(2 * S, |_, _| 0);
    world.restart(1, None, incarnation(1));
    world.run(2 * S, |_, _| 0);
    let anew = Incarnation { number: 2, ..incarnation(1) };
    world.restart(1, Some(Default::default()), anew);
    // Messages of the others to the earlier incarnation arrive first.
    world.cut = vec![(1, 0)];
    world.run(S, |_, _| 0);
    world.cut.clear();
    world.run(S, |_, _| 0);
    world.change(0, &[window("w", 1_000, "1h")], &[(incarnation(0), 1), (anew, 1)], &[incarnation(1)], 0);
    world.run(2 * S, |_, _| 0);
    let standing = world.places[1].node.membership(Now::at(world.now)).map(|m| m.standing);
    assert_eq!(standing, Some(Ownership::Owner));
}

#[test]
fn rights_given_to_an_incarnation_are_not_given_to_the_next() {
    let specs = [window("w", 1_200, "1h")];
    let mut world = World::new(3, &specs, 20 * MS);
    world.run(2 * S, |_, _| 0);
    world.run(5 * S, |region, _| u64::from(region == 1));
    let before = world.admitted();
    assert!(before > 1_100, "{before}");
    let anew = Incarnation { number: 2, ..incarnation(1) };
    // The gift of region 0 arrives after the version, which region 2 passes on.
    world.cut = vec![(0, 1)];
    world.restart(1, Some(Default::default()), anew);
    world.run(S, |_, _| 0);
    world.change(0, &specs, &[(incarnation(0), 1), (anew, 1), (incarnation(2), 1)], &[incarnation(1)], 0);
    world.run(S, |_, _| 0);
    world.cut.clear();
    world.run(6 * S, |region, ms| u64::from(region == 1 || ms % 100 == 0));
    assert!(world.admitted() <= 1_200, "{}", world.admitted());
}

#[test]
fn a_node_without_a_catalogue_admits_nothing() {
    let mut world = World::new(2, &[window("w", 10, "1h")], 20 * MS);
    world.run(2 * S, |_, _| 0);
    world.cut = vec![(0, 1), (1, 0)];
    world.restart(1, Some(Default::default()), Incarnation { number: 2, ..incarnation(1) });
    world.run(S, |region, _| u64::from(region == 1));
    assert_eq!(world.admitted(), 0);
}

#[test]
fn a_version_arrives_even_if_entries_about_its_limits_come_first() {
    let mut world = World::new(2, &[window("w", 100_000, "1h")], 20 * MS);
    world.run(2 * S, |_, _| 0);
    let specs = [window("w", 100_000, "1h"), window("v", 10_000, "1h")];
    world.change(0, &specs, &all(&[1, 1]), &[], 0);
    // The disk is slow, so advertisements are ready before the version leaves.
    for _ in 0..6_000 {
        world.ask(0, "k");
    }
    world.run(10 * S, |region, ms| u64::from(region == 0 && ms % 10 == 0));
    assert!(world.all_settled(), "{:#?}", world.memberships());
}

#[test]
fn a_limit_removed_and_added_again_keeps_its_old_shares_for_its_window() {
    let both = [bucket("b", "1000/s", 100), window("w", 100, "1h")];
    let mut world = World::new(2, &both, 20 * MS);
    world.run(2 * S, |_, _| 0);
    world.cut = vec![(0, 1), (1, 0)];
    world.run(S, |_, ms| u64::from(ms % 5 == 0));
    assert_eq!(world.admitted(), 100);
    world.cut.clear();
    world.run(2 * S, |_, _| 0);
    world.change(0, &both[..1], &all(&[9, 1]), &[], 0);
    world.run(8 * S, |_, _| 0);
    assert!(world.all_settled());
    let before = world.admitted();
    world.change(0, &both, &all(&[9, 1]), &[], 0);
    world.run(S, |_, _| 0);
    world.run(4 * S, |_, ms| u64::from(ms % 5 == 0));
    assert!(world.admitted() == before, "{} more", world.admitted() - before);
}

#[test]
fn a_restart_at_an_edge_does_not_reopen_the_window() {
    let specs = [window("w", 100, "2m")];
    let mut world = World::new(2, &specs, 20 * MS);
    world.run(S, |_, _| 0);
    world.change(0, &specs, &all(&[1, 1]), &[], 2 * S);
    world.run(4 * S, |_, _| 0);
    assert!(world.all_settled());
    // Go to three seconds before an edge. Each region spends half of its part, and the rest at the edge.
    world.cut = vec![(0, 1), (1, 0)];
    let edge = (world.now / (120 * S) + 1) * 120 * S;
    let wait = edge - 3 * S - world.now;
    world.run(wait, |_, _| 0);
    for _ in 0..45 {
        assert!(world.ask(0, "k"));
    }
    world.run(2 * S, |_, _| 0);
    for _ in 0..5 {
        assert!(world.ask(0, "k"));
    }
    assert!(!world.ask(0, "k"), "its part is 50");
    world.run(S + 500 * MS, |_, _| 0);
    assert!(!world.ask(0, "k"), "a clock that is two seconds ahead is still in the first window");
    world.restart(0, None, incarnation(0));
    assert!(!world.ask(0, "k"), "the first window may still be open");
}

#[test]
fn a_cell_without_a_local_share_is_denied_even_if_memory_is_full() {
    let mut nodes = Vec::new();
    let world = World::new(3, &[bucket("b", "1000/s", 1)], MS);
    let version = world.places[0].node.version().expect("a version");
    for region in 0..3 {
        let home = Home { incarnation: incarnation(region), loan_ttl_ns: regions::LOAN_TTL_NS };
        let config = Config {
            key: HashKey([7; 16]),
            memory_bytes: 1 << 20,
            durable: false,
            after_crash: None,
            home: Some(home),
        };
        let node = std::sync::Arc::new(Node::new(config));
        node.resume_home(Vec::new(), Now::at(START), |_| Vec::new()).expect("an empty disk");
        node.adopt(version.clone(), Now::at(START), |_| Some(Vec::new())).expect("adopted");
        nodes.push(node.asker());
    }
    for key in 0..60_000 {
        let now = Now::at(START + key * 10_000);
        let key = key.to_string();
        let entries = [("key", key.as_str())];
        let request = Request::new("shop", &entries);
        let admitted =
            nodes.iter_mut().filter(|_| true).map(|asker| asker.check(&request, now, Ask::CHECK).allowed);
        let admitted: usize = admitted.map(usize::from).sum();
        assert!(admitted <= 1, "{admitted} of 1 for {key}");
    }
}

#[test]
fn an_exact_sliding_log_that_becomes_slots_is_journalled_anew() {
    let mut world = World::new(2, &[sliding("s", 20, "2m")], 20 * MS);
    world.run(2 * S, |_, _| 0);
    world.run(2 * S, |region, ms| u64::from(region == 0 && ms % 300 == 0));
    world.change(0, &[sliding("s", 600, "2m")], &all(&[1, 1]), &[], 0);
    world.run(2 * S, |region, ms| u64::from(region == 0 && ms % 10 == 0));
}

#[test]
fn a_restarted_region_soon_borrows_most_of_the_limit_again() {
    let mut world = World::new(2, &[bucket("b", "1000/s", 100)], 20 * MS);
    world.run(60 * S, |_, ms| u64::from(ms % (1 + ms / 500 % 10) == 0));
    world.restart(1, None, incarnation(1));
    world.run(S, |_, ms| u64::from(ms % 10 == 0));
    let before = world.places[1].admitted;
    world.run(4 * S, |region, ms| if region == 1 { 1 } else { u64::from(ms % 100 == 0) });
    let used = world.places[1].admitted - before;
    assert!(used > 3_400, "{used} of 4000");
}

#[test]
fn a_restarted_giver_does_not_conform_while_its_loans_exceed_its_share() {
    let specs = [sliding("s", 1_000, "2m")];
    let mut world = World::new(2, &specs, 20 * MS);
    world.run(2 * S, |_, _| 0);
    world.run(4 * S, |region, ms| u64::from(region == 1 && ms % 10 < 3));
    let lent = world.traffic()[0].lent;
    assert!(lent > 0);
    // Nobody hears that region 0's share is lowered. Region 0 crashes before it can recall its loans.
    world.cut = vec![(0, 1), (1, 0)];
    world.change(0, &specs, &all(&[1, 99]), &[], 0);
    world.run(10 * MS, |_, _| 0);
    world.restart(0, None, incarnation(0));
    world.run(100 * MS, |_, _| 0);
    let progress = world.memberships().swap_remove(0).and_then(|m| m.progress).expect("a version");
    assert!(progress.pending.iter().any(|(w, _)| *w == incarnation(0)), "acknowledged: {progress:?}");
}

#[test]
fn extreme_values_from_a_dishonest_peer_are_handled() {
    use acequia_limits::CellTag;
    use acequia_node::regions::wire::{
        FrameEntry, FrameHeader, ReceivedFrames, Rough, ShortId, VERSION, Whole,
    };
    for spec in [bucket("b", "1000/s", 100), sliding("s", 100_000, "1h"), window("w", 100, "1h")] {
        let mut world = World::new(3, &[spec], 20 * MS);
        world.run(S, |_, _| 0);
        let limit = world.places[0].node.catalogue().limits[0].limit.id;
        let most = Rough(u16::MAX);
        // The largest value that does not mean "unknown".
        let largest = Rough(u16::MAX - 1);
        let end_ns = (world.now / (3_600 * S) + 1) * 3_600 * S;
        for (from, left, demand) in [(1, most, most), (2, largest, Rough::new(1))] {
            let header = FrameHeader {
                incarnation: incarnation(from),
                process_number: 1,
                number: 1 << 40,
                received: ReceivedFrames::default(),
                heartbeat: u64::MAX,
                wall_ns: u64::MAX,
                corrected_ns: i64::MIN,
                is_believed: true,
                loan_max: 0,
                version_id: Default::default(),
            };
            let id = ShortId(2);
            let entries = [
                FrameEntry::Introduce { id, limit, tag: CellTag(7), which: None },
                FrameEntry::Advertisement { id, demand, holds: most, left, stands: Some(most), owed: most },
                FrameEntry::Short { id, units: u64::MAX },
                FrameEntry::Forward {
                    limit,
                    tag: CellTag(7),
                    whole: Whole { units: u64::MAX, rate: Some((u64::MAX, 0)) },
                    number: u64::MAX,
                    units: u64::MAX,
                    within_us: u32::MAX,
                    is_again: false,
                },
                FrameEntry::ForwardReply { number: u64::MAX, units: Some(u64::MAX) },
                FrameEntry::Ask { id, end_ns: u64::MAX, units: u64::MAX },
                FrameEntry::Ask { id, end_ns, units: u64::MAX },
                FrameEntry::Give { id, end_ns: u64::MAX, cumulative: u64::MAX },
                FrameEntry::Give { id, end_ns: u64::MAX, cumulative: 1 },
                FrameEntry::Got { id, end_ns: 0, cumulative: u64::MAX },
            ];
            let mut frame = vec![VERSION];
            frame.extend(postcard::to_allocvec(&header).expect("a header"));
            entries.iter().for_each(|e| frame.extend(postcard::to_allocvec(e).expect("an entry")));
            world.places[0].node.handle(MemberId(from as u16), &frame, Now::at(world.now)).expect("it reads");
        }
        world.run(S, |_, _| 0);
    }
}
