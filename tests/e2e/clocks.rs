//! Nodes whose clocks differ from the machine's. What callers are allowed is counted by the machine's clock.
//!
//! A preloaded library gives the process the clocks that the test sets. All code above, including the
//! server's own clock code, runs as in production. `tests/soak clocks` runs each test for ten minutes.

use std::{
    fs,
    io::{Seek as _, SeekFrom, Write as _},
    sync::atomic::AtomicU64,
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use acequia_tests::{
    Node,
    cluster::{Answers, Asked, Background, Callers, Cluster},
    eventually,
};
use tempfile::TempDir;

use crate::store::{
    alone, config_of, listed,
    servers::{Server, wall_library},
    until_pools_grant,
};

const LIMIT: u64 = 300;
const WINDOW: Duration = Duration::from_secs(1);
const HOUR_S: i64 = 3_600;

/// The clocks of a process.
struct Clocks {
    _folder: TempDir,
    file: fs::File,
    environment: [(&'static str, &'static str); 2],
}

impl Clocks {
    /// The machine's clocks, but time since boot runs faster by `boot_ppm`.
    fn new(boot_ppm: i64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("clocks");
        fs::write(&path, [0_i64.to_ne_bytes(), boot_ppm.to_ne_bytes()].concat()).expect("a file");
        let file = fs::File::options().write(true).open(&path).expect("a file");
        // The leak is small: a test has few of these, and ends.
        let leaked = |path: &std::path::Path| &*path.display().to_string().leak();
        let environment = [("LD_PRELOAD", leaked(wall_library())), ("SERVER_WALL", leaked(&path))];
        Self { _folder: folder, file, environment }
    }

    /// From now on the wall clock is ahead of the machine's by this many nanoseconds.
    fn set_wall(&mut self, ahead_ns: i64) {
        self.file.seek(SeekFrom::Start(0)).expect("a file");
        self.file.write_all(&ahead_ns.to_ne_bytes()).expect("its wall");
    }

    fn set_wall_s(&mut self, ahead_s: i64) {
        self.set_wall(ahead_s * 1_000_000_000);
    }
}

/// The duration that `ACEQUIA_TEST_SECONDS` sets. `None` in the test suite, which takes a few seconds.
pub(crate) fn lasts() -> Option<Duration> {
    let seconds = std::env::var("ACEQUIA_TEST_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("ACEQUIA_TEST_SECONDS is a number of seconds")))
}

fn window() -> String {
    format!(
        "limits:\n- {{ name: w, domain: shop, when: {{ kind: w }}, fixed_window: {{ limit: {LIMIT}, window: 1s }} }}\n"
    )
}

fn asked(rate: [u64; 3]) -> Vec<Asked> {
    vec![Asked { kind: "w", rates: rate.map(AtomicU64::new) }]
}

/// Units a second that pass in each of the next windows at one node.
fn passed_at(callers: &Callers, place: usize, windows: u32) -> f64 {
    let begun_wall = callers.begun_wall.duration_since(UNIX_EPOCH).expect("a wall clock");
    let open = (begun_wall + callers.begun.elapsed()).as_secs();
    let from = Duration::from_secs(open + 1) - begun_wall;
    let to = from + WINDOW * windows;
    thread::sleep(to.saturating_sub(callers.begun.elapsed()));
    callers.allowed_at(place, from, to) as f64 / f64::from(windows)
}

#[track_caller]
#[expect(clippy::print_stdout, reason = "a run that takes long prints what it found")]
fn never_over(answers: &Answers) {
    let most = answers.most_in_a_window(0, WINDOW);
    println!(
        "at most {most} of {LIMIT} in a window of the machine's clock, of {} answers",
        answers.answers.len()
    );
    assert!(most <= LIMIT, "{most} of {LIMIT}");
    assert!(most >= LIMIT / 2, "{most} of {LIMIT}: nothing was tried");
}

/// The config of one of two nodes that know each other through their common store.
fn of_store(node: &str, redis: &Server) -> String {
    let shards = format!("shards: {}", listed(std::slice::from_ref(redis)));
    config_of(node, &["eu-1", "eu-2"], &shards, &window())
}

/// One of two nodes with a common Redis has a wall clock that is an hour off, both at its start and later.
#[test]
fn a_wall_that_is_an_hour_off_spends_nothing_twice_in_a_region_with_a_store() {
    let _alone = alone();
    let redis = Server::start(&[]);
    let mut clocks = Clocks::new(0);
    let environment = clocks.environment;
    let (right, wrong) = (of_store("eu-1", &redis), of_store("eu-2", &redis));
    let right = thread::spawn(move || Node::start_whole(&right));
    let wrong = Node::start_whole_with(&wrong, &environment);
    let mut nodes = [right.join().expect("a node"), wrong];
    until_pools_grant(&nodes);
    let background = Background::start();
    let callers = background.callers(&nodes, asked([400, 400, 0]));
    let begun = Instant::now();
    // In the suite other tests run at the same time.
    let least = if lasts().is_some() { 0.99 } else { 0.8 };
    let mut round = 0;
    loop {
        for ahead_s in [HOUR_S, -HOUR_S] {
            // While the node runs, it continues by the store's clock.
            clocks.set_wall_s(ahead_s);
            let passed = passed_at(&callers, 1, 2);
            println!("{ahead_s} s off: {passed:.0} a second pass there");
            assert!(passed > 10.0, "{passed} a second where the wall was set by {ahead_s} s");
            // When the node starts, it waits for a right clock. The other node gets as much as when this one
            // is gone.
            if round % 4 == 0 {
                nodes[1].kill();
                let gone = passed_at(&callers, 0, 3);
                let passed = thread::scope(|scope| {
                    let starting = scope.spawn(|| nodes[1].start_again());
                    let passed = passed_at(&callers, 0, 3);
                    assert!(!starting.is_finished(), "it listens by a wall that the store contradicts");
                    clocks.set_wall_s(0);
                    starting.join().expect("it begins when its wall is right");
                    passed
                });
                println!(
                    "beside one that is gone {gone:.0} a second pass, and beside one that begins {ahead_s} s off {passed:.0}"
                );
                assert!(
                    passed >= least * gone,
                    "{passed} a second pass at the other one, and {gone} without it"
                );
                assert!(nodes[1].stderr().contains("wall clocks of the store and of this node differ"));
            }
            clocks.set_wall_s(0);
            eventually("it is whole again", || passed_at(&callers, 1, 1) > 30.0);
        }
        round += 1;
        if lasts().is_none_or(|lasts| begun.elapsed() > lasts) {
            break;
        }
    }
    never_over(&callers.end());
}

/// Three regions' wall clocks are corrected back and forth within their error bound. Their steady clocks
/// drift as far as they may, and one process is suspended again and again.
#[test]
fn clocks_that_are_as_wrong_as_they_may_be_spend_nothing_twice() {
    let mut cluster = Cluster::prepare(&window());
    let mut clocks = [Clocks::new(190), Clocks::new(-190), Clocks::new(0)];
    for (region, clocks) in clocks.iter().enumerate() {
        cluster.start_region_with(region, &clocks.environment);
    }
    (0..3).for_each(|region| cluster.until_ready(region));
    let callers = cluster.callers(asked([300, 300, 300]));
    let begun = Instant::now();
    let lasts = lasts().unwrap_or(Duration::from_secs(10));
    let mut state = 7_u64;
    let mut below = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let from = callers.begun.elapsed();
    while begun.elapsed() < lasts {
        // Up to 1.8 ms in both directions, of the 2 ms that the config allows.
        let region = below(3) as usize;
        clocks[region].set_wall(below(3_600_000).cast_signed() - 1_800_000);
        cluster.nodes[0].hold(true);
        thread::sleep(Duration::from_millis(below(50)));
        cluster.nodes[0].hold(false);
        thread::sleep(Duration::from_millis(below(200)));
    }
    let to = callers.begun.elapsed();
    let answers = callers.end();
    let passed = answers.allowed(0, from, to) as f64 / (to - from).as_secs_f64();
    println!("{passed:.0} a second pass");
    assert!(passed > 0.8 * LIMIT as f64, "{passed} a second pass of {LIMIT}");
    never_over(&answers);
}
