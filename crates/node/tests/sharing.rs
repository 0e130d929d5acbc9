//! Regions that share a limit, on a network in memory.

mod regions;

use regions::{MS, S, World};

#[test]
fn a_hot_region_borrows_what_the_others_do_not_use() {
    let mut world = World::new(3, &[regions::bucket("b", "1000/s", 300)], 40 * MS);
    world.run(2 * S, |_, _| 0);
    assert!(world.all_settled(), "{:#?}", world.memberships());
    // All demand in one region, one and a half times the limit.
    let before = world.admitted();
    world.run(10 * S, |region, ms| if region == 0 { u64::from(ms % 2 == 0) * 3 } else { 0 });
    let used = world.admitted() - before;
    eprintln!("used {used} of {}; {:?}", 10 * 1_000 + 300, world.traffic());
    assert!(used <= 10 * 1_000 + 300, "{used}");
    assert!(used >= 9_300, "{used}");
}

#[test]
fn rights_of_a_window_go_where_they_are_asked_for() {
    let mut world = World::new(3, &[regions::window("w", 30_000, "1h")], 40 * MS);
    world.run(2 * S, |_, _| 0);
    let before = world.admitted();
    world.run(40 * S, |region, _| u64::from(region == 0));
    let used = world.admitted() - before;
    eprintln!("used {used}; {:?}", world.traffic());
    assert!(used <= 30_000, "{used}");
    assert!(used >= 29_900, "{used}");
}

#[test]
fn a_key_with_numbers_of_its_own_borrows_by_them() {
    let mut spec = regions::bucket("b", "10/s", 3);
    spec.overrides =
        serde_json::from_str(r#"[{"key": "big", "rate": "1000/s", "burst": "300"}]"#).expect("overrides");
    let mut world = World::new(3, &[spec], 40 * MS);
    world.run(2 * S, |_, _| 0);
    let mut admitted = 0;
    for _ in 0..10_000 {
        world.run(MS, |_, _| 0);
        admitted += u64::from(world.ask(0, "big"));
    }
    assert!(admitted <= 10_300, "{admitted}");
    assert!(admitted >= 9_300, "the others lend by the override's numbers: {admitted}");
}

#[test]
fn a_catalogue_of_another_cluster_is_not_adopted() {
    let mut world = World::new(2, &[regions::bucket("b", "10/s", 3)], 40 * MS);
    world.run(2 * S, |_, _| 0);
    let version = world.places[0].node.version().expect("a version");
    let key = acequia_rights::versions::CellKey([8; 16]);
    let mark = acequia_rights::Mark { epoch: version.mark.epoch + 1, number: version.mark.number + 1 };
    let other = acequia_rights::Version { key, mark, term: mark, ..version };
    let now = world.now_of(1);
    let fault = world.places[1].node.adopt(other, now, |_| Some(Vec::new())).expect_err("another key");
    assert!(fault.to_string().contains("another cluster"), "{fault}");
}
