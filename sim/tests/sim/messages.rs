//! A link between regions that nobody asks is almost silent.

use std::time::Duration;

use acequia_sim::{
    checks::{Check, MessagesBounded},
    run::run_with,
    scenarios::{Plan, named},
    trace::Trace,
    world::{Setup, World},
};

/// The time until loans have come back and all advertisements are confirmed.
const COOLS: Duration = Duration::from_secs(20);
const IDLE_S: u64 = 20;

fn calm(seed: u64) -> (Plan, World) {
    let plan = named("calm").expect("a scenario").plan_of(seed);
    let setup = Setup::of(&plan, seed);
    (plan, World::new(&setup, Trace::default()).expect("a world"))
}

#[test]
fn an_idle_link_carries_heartbeats_and_no_more() {
    let (_, mut world) = calm(1);
    let pass = |world: &mut World, time: Duration| {
        (0..time.as_millis()).for_each(|_| world.step().expect("a step"));
        world.sent(1, 2)
    };
    let busy = pass(&mut world, Duration::from_secs(10));
    world.hush();
    let before = pass(&mut world, COOLS);
    let after = pass(&mut world, Duration::from_secs(IDLE_S));
    let (packets, bytes) = (after.packets - before.packets, after.bytes - before.bytes);
    eprintln!("10 s of questions: {busy}; {IDLE_S} s without any: {packets} packets, {bytes} bytes");
    assert!((5 * IDLE_S..20 * IDLE_S).contains(&packets), "{packets} packets");
    assert!(bytes < 80 * packets, "{bytes} bytes of {packets} packets");
    assert_eq!(after.handshakes, before.handshakes, "the connection stays");
}

#[test]
fn when_nobody_asks_any_more_links_of_a_calm_world_become_idle() {
    for seed in 1..=2 {
        let (plan, world) = calm(seed);
        let idle = MessagesBounded::new(&world.limits(), plan.regions).until_idle();
        drop(world);
        let more: Vec<Box<dyn Check>> = vec![Box::new(idle)];
        let record = run_with(plan, seed, &Trace::default(), more).expect("a world");
        assert_eq!(record.findings, [""; 0], "calm --seed {seed}");
        let said = record.notes.iter().filter(|note| note.starts_with("messages:")).count();
        assert_eq!(said, 4, "{:?}", record.notes);
    }
}
