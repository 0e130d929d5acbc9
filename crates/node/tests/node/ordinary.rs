//! Tables of the ordinary case: nothing is broken, and limits do what anybody expects. Each table also shows
//! the cost.
//!
//! A row that misses its bar is marked. `tests/soak ordinary` prints all rows, and fails if any is marked.
//! The test suite prints some rows, and fails if more are marked than a test allows.

use acequia_limits::limit::{LimitSpec, SharingSpec};

use crate::{
    pools::{Decided, World},
    scene::{MINUTE, MS, S, bucket, sliding, window},
};

/// Whether every bar must hold: `tests/soak ordinary` sets this.
fn is_strict() -> bool {
    std::env::var_os("ACEQUIA_ORDINARY").is_some()
}

/// Numbers of nodes in a region: few in the test suite, many in `tests/soak ordinary`.
fn sizes(few: &[u64], many: &[u64]) -> Vec<u64> {
    if is_strict() { many.to_vec() } else { few.to_vec() }
}

/// Rows of a table, and how many of them miss their bars.
#[derive(Default)]
struct Table {
    text: String,
    missed: u32,
}

impl Table {
    fn row(&mut self, is_met: bool, row: &str) {
        self.missed += u32::from(!is_met);
        let mark = if is_met { "" } else { "   missed" };
        self.text += &format!("{row}{mark}\n");
    }

    /// Ends the table. In the test suite, up to `known` rows may miss their bars.
    #[track_caller]
    fn end(&self, known: u32) {
        let most = if is_strict() { 0 } else { known };
        assert!(self.missed <= most, "{} rows miss their bars, and {most} may", self.missed);
    }
}

/// Regions with these numbers of nodes share a limit evenly, at a round trip of 80 ms. If every region has
/// one node, none has a store.
fn regions(seed: u64, nodes: &[usize], spec: LimitSpec) -> World {
    let are_lone = nodes.iter().all(|nodes| *nodes == 1);
    let mut world = match are_lone {
        true => World::among_lone(nodes.len(), &[spec], seed),
        false => World::among_regions(nodes, &[spec], 10, seed),
    };
    world.is_prompt = true;
    let among = world.regions.as_mut().expect("regions");
    among.delay_ns = (39 * MS, 41 * MS);
    among.near_ns = (MS / 10, MS / 5);
    world.pass(S);
    assert!(world.order(&(0..world.nodes.len()).map(|place| (place, 1)).collect::<Vec<_>>()));
    world.pass(6 * S);
    if !are_lone {
        world.expect_granting("at first");
    }
    world
}

/// Asks the first region's nodes in turn for single units of one key, at this rate. Starts with a fresh
/// window.
fn asked_in_turn(nodes: &[usize], spec: &LimitSpec, a_second: u64, asks: u64) -> Vec<Decided> {
    let mut world = regions(1, nodes, spec.clone());
    world.pass(2 * MINUTE - world.true_ns);
    world.decided = Some(Vec::new());
    let key = format!("{}1", spec.name);
    for number in 0..asks {
        world.ask_or_wait(number as usize % nodes[0], &key, 1);
        world.pass(S / a_second);
    }
    world.pass(S);
    world.decided.take().expect("it is kept")
}

/// What was found of a limit: the most that was left at a denial, and how many requests passed.
#[derive(Clone, Copy, Debug)]
struct Found {
    left: u64,
    passed: u64,
}

/// The most units that a central store would have had left at a denial, and how many requests passed.
///
/// `holds` returns the store's units at a time, given the times when earlier requests passed.
fn left_at_denials(decided: &[Decided], holds: impl Fn(&[u64], u64) -> u64) -> Found {
    let (mut passed, mut left) = (Vec::new(), 0);
    for one in decided {
        if one.is_allowed {
            passed.push(one.at_ns);
        } else {
            left = left.max(holds(&passed, one.at_ns));
        }
    }
    Found { left, passed: passed.len() as u64 }
}

/// Whether one node of the region decides the cells of a limit with this many units for the others.
const fn is_forwarded(units: u64, nodes: u64) -> bool {
    units < 16 * nodes
}

/// A row about a region whose nodes are asked in turn.
struct Case<'a> {
    name: &'a str,
    units: u64,
    nodes: u64,
    a_second: u64,
}

impl Case<'_> {
    fn how(&self) -> &'static str {
        if is_forwarded(self.units, self.nodes) { "forwarded" } else { "leased" }
    }

    /// The first columns.
    fn head(&self) -> String {
        format!("{:<22} {:>5} {:>8}  {:<10}", self.name, self.nodes, self.a_second, self.how())
    }

    /// The row for units left at denials and passed requests. `due` is the number that must pass.
    fn exact(&self, table: &mut Table, found: Found, due: Option<u64>) {
        let Found { left, passed } = found;
        let most = if is_forwarded(self.units, self.nodes) { 0 } else { self.nodes };
        let is_met = left <= most && due.is_none_or(|due| passed == due);
        let of_due = due.map_or_else(String::new, |due| format!(" of {due}"));
        table.row(is_met, &format!("{} {left:>14}  {:>12}", self.head(), format!("{passed}{of_due}")));
    }
}

/// The store is healthy, and the nodes of one region are asked round robin.
#[test]
fn a_region_passes_nearly_its_whole_limit() {
    println!("one region, round robin: the most that was left at a denial, and what passed");
    println!("{:<22} nodes asks/s    how          left at denial        passed", "limit");
    let mut table = Table::default();
    for nodes in sizes(&[2], &[2, 10]) {
        let decided =
            |spec: &LimitSpec, a_second, asks| asked_in_turn(&[nodes as usize], spec, a_second, asks);
        for a_second in [10, 50, 1_000] {
            for units in [10, 100, 1_000] {
                let decided = decided(&window("w", units, "2m"), a_second, 2 * units.min(60 * a_second));
                let found = left_at_denials(&decided, |passed, _| units - passed.len() as u64);
                let name = format!("{units} a window");
                Case { name: &name, units, nodes, a_second }.exact(&mut table, found, Some(units));
            }
            let of_bucket = decided(&bucket("b", "60/s", 120), a_second, 30 * a_second);
            let found = left_at_denials(&of_bucket, |passed, at_ns| {
                // A full bucket of 120 units, in billionths of a unit. Passed requests drain it, and time
                // refills it.
                let (mut left_nano, mut last_ns) = (120 * S, passed.first().copied().unwrap_or(at_ns));
                for at_ns in passed {
                    left_nano = (left_nano + 60 * (at_ns - last_ns)).min(120 * S) - S;
                    last_ns = *at_ns;
                }
                (left_nano + 60 * (at_ns - last_ns)).min(120 * S) / S
            });
            Case { name: "60/s, burst 120", units: 120, nodes, a_second }.exact(&mut table, found, None);
            let of_sliding = decided(&sliding("s", 100, "10s"), a_second, 25 * a_second);
            let found = left_at_denials(&of_sliding, |passed, at_ns| {
                let passed_in = |ns: u64| passed.iter().filter(|passed| **passed + ns > at_ns).count() as u64;
                assert!(passed_in(10 * S) <= 100, "more than 100 in 10 s");
                // The window has 32 slots. A slot expires when all of it has left the window, on one node as
                // on several.
                100_u64.saturating_sub(passed_in(10 * S + 10 * S / 32))
            });
            Case { name: "100 in any 10 s", units: 100, nodes, a_second }.exact(&mut table, found, None);
        }
    }
    print!("{}", table.text);
    table.end(3);
}

/// Three regions. All demand is in one of them, from a key's first request.
#[test]
fn a_key_used_in_one_region_gets_the_whole_limit() {
    println!(
        "three regions, 80 ms there and back; one is asked for up to 95 % of the limit, from the first request on"
    );
    println!("{:<26} nodes  asks/s   first 10 s, %   then, %   last denial after the first, ms", "limit");
    let mut table = Table::default();
    let waits = |spec: LimitSpec| LimitSpec {
        sharing: Some(SharingSpec { wait: Some("250ms".into()), ..SharingSpec::default() }),
        ..spec
    };
    let specs = [
        ("1000/s, burst 1000", bucket("b", "1000/s", 1_000), 950, true),
        ("60/s, burst 120", bucket("b", "60/s", 120), 57, true),
        ("10/s, burst 10", bucket("b", "10/s", 10), 9, true),
        ("100/s, burst 20", bucket("b", "100/s", 20), 95, false),
        ("600 a minute", window("w", 600, "1m"), 9, true),
        ("100 in any 10 s", sliding("s", 100, "10s"), 9, true),
    ];
    for nodes in sizes(&[1], &[1, 2]) {
        for (name, spec, a_second, outlasts) in &specs {
            let ways = if *outlasts {
                vec![(false, spec.clone())]
            } else {
                vec![(true, waits(spec.clone())), (false, spec.clone())]
            };
            for (does_wait, spec) in ways {
                let decided = asked_in_turn(&[nodes as usize; 3], &spec, *a_second, 40 * a_second);
                let first_ns = decided.iter().map(|one| one.came_ns).min().expect("requests");
                let parts = |from_ns: u64, to_ns: u64| {
                    let part =
                        decided.iter().filter(|one| (from_ns..to_ns).contains(&(one.came_ns - first_ns)));
                    let (asked, passed) = part.fold((0_u64, 0_u64), |(asked, passed), one| {
                        (asked + 1, passed + u64::from(one.is_allowed))
                    });
                    1_000 * passed / asked.max(1)
                };
                let (early, late) = (parts(0, 10 * S), parts(2 * S, 40 * S));
                let mut denied = decided.iter().filter(|one| !one.is_allowed).map(|one| one.at_ns);
                let first_denied = denied.next();
                let span_ms =
                    first_denied.map_or(0, |first_ns| (denied.max().unwrap_or(first_ns) - first_ns) / MS);
                let is_met =
                    if *outlasts || does_wait { early >= 995 && late == 1_000 } else { span_ms <= 250 };
                let name = if does_wait { format!("{name}, wait") } else { (*name).to_owned() };
                let percent = |parts: u64| format!("{}.{}", parts / 10, parts % 10);
                table.row(
                    is_met,
                    &format!(
                        "{name:<26} {nodes:>5} {a_second:>7} {:>15} {:>9} {span_ms:>10}",
                        percent(early),
                        percent(late)
                    ),
                );
            }
        }
        let passed = all_at_once(nodes);
        table.row(passed >= 115, &format!("60/s, burst 120: of 120 asked at once {passed} pass within 400 ms, {nodes} nodes a region (115)"));
    }
    print!("{}", table.text);
    table.end(1);
}

/// How many of 120 simultaneous requests pass within 400 ms, if denied requests are retried every 10 ms.
fn all_at_once(nodes: u64) -> u64 {
    let mut world = regions(1, &[nodes as usize; 3], bucket("b", "60/s", 120));
    world.pass(2 * MINUTE - world.true_ns);
    world.decided = Some(Vec::new());
    let (mut to_ask, begun_ns, mut passed) = (120_u64, world.true_ns, 0);
    while world.true_ns < begun_ns + 400 * MS && passed < 120 {
        for number in 0..to_ask {
            world.ask_or_wait((number % nodes) as usize, "b1", 1);
        }
        world.pass(10 * MS);
        let decided = world.decided.replace(Vec::new()).expect("it is kept");
        to_ask = decided.iter().filter(|one| !one.is_allowed).count() as u64;
        passed += decided.iter().filter(|one| one.is_allowed).count() as u64;
    }
    passed
}

/// The headers' remaining units never exceed what is left, and rise only by what is earned.
#[test]
fn the_remaining_units_in_answers_fall_as_units_are_spent() {
    println!(
        "one region, a fresh window: how often `remaining` rose or said more than there was, and how far two nodes were apart"
    );
    println!("{:<22} nodes asks/s    how          rose  too much   apart", "limit");
    let mut table = Table::default();
    for nodes in sizes(&[2], &[2, 10]) {
        for (units, a_second) in [(10, 10), (100, 50), (1_000, 50), (10_000, 500)] {
            let spec = window("w", units, "2m");
            let decided = asked_in_turn(&[nodes as usize], &spec, a_second, units + units / 10);
            let (mut rose, mut above, mut apart, mut last, mut passed) = (0, 0, 0_u64, units, 0);
            for one in &decided {
                passed += u64::from(one.is_allowed);
                rose += u64::from(one.remaining > last);
                above += u64::from(one.remaining > units - passed);
                apart = apart.max(one.remaining.abs_diff(units - passed));
                last = one.remaining;
            }
            // What was spent in half a second, or a hundredth of the limit.
            let most = if is_forwarded(units, nodes) { 0 } else { (units / 100).max(a_second / 2) };
            let is_met = above == 0 && apart <= most && (rose == 0 || !is_forwarded(units, nodes));
            let name = format!("{units} a window");
            let head = Case { name: &name, units, nodes, a_second }.head();
            table.row(is_met, &format!("{head} {rose:>6} {above:>9} {apart:>7}"));
        }
    }
    print!("{}", table.text);
    table.end(4);
}

/// Traffic between nodes of several regions, by the number of nodes in a region.
#[test]
fn more_nodes_in_a_region_send_few_more_frames() {
    println!("three regions, two cells of 200/s, 200 requests a second: frames a second between regions");
    println!("nodes a region   with entries   times one node's   without, a pair of nodes");
    let mut table = Table::default();
    let mut first = None;
    for nodes in sizes(&[1, 2], &[1, 2, 4, 8]) {
        let (frames, pulses) = frames_between(nodes);
        let first = *first.get_or_insert(frames);
        let pairs = 3 * nodes * nodes;
        let times = frames as f64 / first.max(1) as f64;
        let each = pulses as f64 / pairs as f64;
        table.row(
            times <= 1.5 && each <= 0.2,
            &format!("{nodes:>14} {frames:>14} {times:>18.2} {each:>25.2}"),
        );
    }
    print!("{}", table.text);
    table.end(2);
}

/// Frames a second between regions, with and without entries.
fn frames_between(nodes: u64) -> (u64, u64) {
    const SECONDS: u64 = 60;
    let mut world = regions(1, &[nodes as usize; 3], bucket("b", "200/s", 200));
    let among = world.regions.as_mut().expect("regions");
    (among.crossed, among.pulses) = ((0, 0), 0);
    for number in 0..SECONDS * 200 {
        let hot = number / (20 * 200);
        let region = if world.below(10) == 0 { world.below(3) } else { hot };
        let place = region * nodes + world.below(nodes);
        let key = format!("b{}", world.below(2));
        world.ask_or_wait(place as usize, &key, 1);
        world.pass(S / 200);
    }
    let among = world.regions.as_ref().expect("regions");
    ((among.crossed.0 - among.pulses) / SECONDS, among.pulses / SECONDS)
}

/// What nodes do without requests.
#[test]
fn an_idle_region_hardly_calls_its_store() {
    println!("one region that nobody asks: round trips a second to its store, a node");
    let mut table = Table::default();
    for nodes in [2, 4] {
        let mut world = regions(1, &[nodes], bucket("b", "60/s", 120));
        world.pass(MINUTE);
        world.round_trips = 0;
        world.pass(MINUTE);
        let each = world.round_trips as f64 / 60.0 / nodes as f64;
        table.row(each <= 2.0, &format!("{nodes} nodes {each:>8.1}"));
    }
    print!("{}", table.text);
    table.end(0);
}
