//! What a real node does with those who do not keep to the rules between regions: they are refused, counted, logged
//! once, and nothing changes.

#[path = "../../crates/mesh/tests/mask/mod.rs"]
mod mask;

use std::{net::SocketAddr, path::Path};

use acequia_api::acequia::v1::NodeStatus;
use acequia_mesh::{FRAME_BYTES_MAX, Identity, certs};
use acequia_node::sharing::wire::{Header, Seen, VERSION};
use acequia_rights::{Mark, Region, Writer, node_named};
use acequia_tests::{
    PATIENCE,
    cluster::{Cluster, EU, REGIONS},
    eventually,
};
use quinn::Connection;
use tokio::{runtime::Handle, time::timeout};

use self::mask::{Mask, begin, closed, frame, write};
use crate::{
    client::{Http, body},
    regions::{AP, Operator, limits},
};

/// Three regions, of which `ap` is gone; `eu` is attacked by one who says that it is `ap`.
struct Scene {
    cluster: Cluster,
    runtime: Handle,
    operator: Operator,
    http: Http,
    /// What `ap` was.
    ap: Writer,
    /// As it stands before anybody attacks.
    before: NodeStatus,
}

impl Scene {
    fn new() -> Self {
        let mut cluster = Cluster::start(&limits());
        let mut operator = Operator::of(&cluster.nodes[EU]);
        eventually("every region conforms", || {
            let catalogue = operator.status().catalogue.unwrap_or_default();
            catalogue.requested.is_some() && catalogue.effective == catalogue.requested
        });
        cluster.nodes[AP].kill();
        eventually("ap is gone", || {
            operator.status().peers.iter().any(|peer| peer.region == "ap" && !peer.connected && !peer.reached)
        });
        let before = operator.status();
        let named = before.members.iter().find(|member| member.region == "ap").expect("a member");
        let ap =
            Writer { region: Region::named("ap"), node: node_named("ap-1"), incarnation: named.incarnation };
        let http = Http::connect(&cluster.nodes[EU]);
        let runtime = cluster.runtime();
        Self { cluster, runtime, operator, http, ap, before }
    }

    fn mesh(&self) -> SocketAddr {
        self.cluster.mesh_address(EU)
    }

    /// How often something was refused, as the metrics tell it.
    fn refused(&mut self, what: &str) -> u64 {
        let name = format!("acequia_mesh_refused_total{{what=\"{what}\"}} ");
        let text = self.http.get("/metrics").body;
        let value = text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name}:\n{text}"))
    }

    #[track_caller]
    fn until_refused(&mut self, what: &str, count: u64) {
        eventually(what, || self.refused(what) >= count);
        assert_eq!(self.refused(what), count, "{what}");
    }

    /// Waits until some words are in the log, and looks whether they are there once.
    #[track_caller]
    fn logged_once(&self, words: &str) {
        let lines = || {
            let log = self.cluster.nodes[EU].stderr();
            log.lines().filter(|line| words.split(' ').all(|word| line.contains(word))).count()
        };
        eventually(words, || lines() > 0);
        assert_eq!(lines(), 1, "{words}");
    }

    /// Of what a stranger could want to change.
    #[track_caller]
    fn nothing_has_changed(&mut self) {
        let of = |status: &NodeStatus| {
            let limits: Vec<_> = status.limits.iter().map(|limit| (limit.standing, limit.lent)).collect();
            let marks = status.catalogue.as_ref().map(|c| (c.authority.clone(), c.requested, c.effective));
            let ap =
                status.peers.iter().find(|peer| peer.region == "ap").map(|peer| (peer.has, peer.reached));
            (status.ready, status.incarnation, status.members.clone(), limits, marks, ap)
        };
        let now = self.operator.status();
        assert_eq!(of(&now), of(&self.before));
        assert_eq!(self.refused("entry"), 0, "nothing of a refused frame is read");
        let answer = self.http.check(&body(&[("kind", "rate")])).json();
        assert_eq!(answer["allowed"], true, "{answer}");
        eventually("a good peer goes on", || {
            let peers = self.operator.status().peers;
            peers.iter().any(|peer| peer.region == "us" && peer.connected && peer.reached)
        });
    }
}

/// A connection of a peer's certificate, that is let in.
async fn insider(folder: &Path, to: SocketAddr) -> Connection {
    let connection = Mask::of(folder, "ap-1").connect(to).await.expect("let in");
    write(&connection, &[1]).await;
    connection
}

#[test]
fn who_is_no_peer_is_refused_and_counted_and_changes_nothing() {
    let mut scene = Scene::new();
    let (to, folder) = (scene.mesh(), scene.cluster.certs());
    // Another authority, of a peer's name.
    let other = tempfile::tempdir().expect("a folder");
    certs::create(other.path(), &[Identity::new("ap", "ap-1")], &[]).expect("certificates");
    std::fs::copy(folder.join("ca.pem"), other.path().join("ca.pem")).expect("copied");
    let strangers = tempfile::tempdir().expect("a folder");
    for file in ["ca.pem", "ca.key"] {
        std::fs::copy(folder.join(file), strangers.path().join(file)).expect("copied");
    }
    certs::create(strangers.path(), &[Identity::new("aa", "aa-1")], &[]).expect("certificates");

    let nobody = Mask { node: None, ..Mask::of(&folder, "") };
    let of_later = Mask { protocol: b"acequia/2", ..Mask::of(&folder, "ap-1") };
    for (mask, what, count) in [
        (Mask::of(other.path(), "ap-1"), "handshake", 1),
        (nobody, "handshake", 2),
        (of_later, "handshake", 3),
        (Mask::of(strangers.path(), "aa-1"), "stranger", 1),
        (Mask::of(strangers.path(), "aa-1"), "stranger", 2),
        (Mask::of(&folder, REGIONS[EU].1), "own-name", 1),
        // By its name it is dialled, and does not dial: whoever has its certificate gets nowhere either.
        (Mask::of(&folder, "us-1"), "wrong-direction", 1),
    ] {
        scene.runtime.block_on(mask.refused(to));
        scene.until_refused(what, count);
    }
    // A good certificate, and a hello of a later version.
    for count in 1..=2 {
        let error = scene.runtime.block_on(async {
            let connection = Mask::of(&folder, "ap-1").connect(to).await.expect("a handshake");
            write(&connection, &[2]).await;
            closed(&connection).await
        });
        assert!(error.to_string().contains("upgrade"), "{error}");
        scene.until_refused("hello", count);
    }
    for what in ["handshake", "stranger", "own-name", "wrong-direction", "hello"] {
        scene.logged_once(&format!("refused, refusal={what}"));
    }
    scene.nothing_has_changed();
}

#[test]
fn streams_that_break_the_rules_are_refused_and_counted_and_change_nothing() {
    let mut scene = Scene::new();
    let (to, folder) = (scene.mesh(), scene.cluster.certs());
    let insider = scene.runtime.block_on(insider(&folder, to));

    // The one that stalls has ten seconds, in which the others come.
    let _stalled = scene.runtime.block_on(begin(&insider, &frame(5, b"four")));
    let _announced = scene.runtime.block_on(begin(&insider, &frame(FRAME_BYTES_MAX + 1, b"")));
    scene.until_refused("frame-too-long", 1);
    scene.runtime.block_on(async {
        let mut endless = begin(&insider, &frame(FRAME_BYTES_MAX, b"")).await;
        let bytes = [0; 65_536];
        let writing = async { while endless.write_all(&bytes).await.is_ok() {} };
        timeout(PATIENCE, writing).await.expect("stopped in time");
    });
    scene.until_refused("frame-too-long", 2);
    for (place, bytes) in [&frame(5, b"four")[..], b"abc"].into_iter().enumerate() {
        scene.runtime.block_on(write(&insider, bytes));
        scene.until_refused("frame-cut-short", place as u64 + 1);
    }
    scene.until_refused("frame-stalled", 1);

    // Eight are enough.
    for _ in 0..3 {
        scene.runtime.block_on(write(&insider, b""));
    }
    let error = scene.runtime.block_on(closed(&insider));
    assert!(error.to_string().contains("too many frames refused"), "{error}");
    scene.until_refused("frame-cut-short", 5);
    scene.until_refused("misbehaved", 1);
    for what in ["frame-too-long", "frame-cut-short", "frame-stalled", "misbehaved"] {
        scene.logged_once(&format!("counted ap/ap-1 refusal={what}"));
    }
    assert_eq!(scene.refused("frame"), 0, "none of them came through");
    eventually("it is down", || {
        scene.operator.status().peers.iter().any(|peer| peer.region == "ap" && !peer.connected)
    });
    scene.nothing_has_changed();
}

#[test]
fn frames_that_nobody_may_send_are_refused_and_counted_and_change_nothing() {
    let mut scene = Scene::new();
    let (to, folder) = (scene.mesh(), scene.cluster.certs());
    let header = |writer| Header {
        writer,
        boot: u32::MAX,
        number: 1,
        seen: Seen::default(),
        beat: 1,
        wall_ns: u64::MAX,
        corrected_ns: i64::MAX,
        is_believed: true,
        loan_max: u64::MAX,
        mark: Mark { epoch: u32::MAX, number: u64::MAX },
    };
    let of = |version: u8, header: &Header| {
        [&[version], &postcard::to_stdvec(header).expect("postcard")[..]].concat()
    };
    let ap = scene.ap;
    let us = Writer { region: Region::named("us"), node: node_named("us-1"), ..ap };
    let earlier = header(Writer { incarnation: ap.incarnation - 1, ..ap });
    let hostile = [
        of(VERSION, &earlier),
        of(VERSION + 1, &header(ap)),
        of(0, &header(ap)),
        // With a region's certificate, in the name of another, of this node itself, and of an earlier process.
        of(VERSION, &header(us)),
        of(VERSION, &header(Writer { region: Region::named("eu"), node: node_named("eu-1"), ..ap })),
        of(VERSION, &Header { boot: 0, ..header(ap) }),
        // Cut off in its header, and with an entry that is none.
        of(VERSION, &header(ap))[..9].to_vec(),
        [of(VERSION, &header(ap)), vec![0xff; 3]].concat(),
        Vec::new(),
    ];
    let insider = scene.runtime.block_on(insider(&folder, to));
    for (place, bytes) in hostile.iter().enumerate() {
        scene.runtime.block_on(write(&insider, &frame(bytes.len(), bytes)));
        scene.until_refused("frame", place as u64 + 1);
    }
    scene.logged_once("frame was refused ap/ap-1");
    scene.nothing_has_changed();
    drop(insider);

    // And the one whose name was abused comes back as if nothing had been.
    scene.cluster.nodes[AP].start_again();
    scene.cluster.until_ready(AP);
    eventually("it is heard", || {
        scene.operator.status().peers.iter().any(|peer| peer.region == "ap" && peer.reached)
    });
    assert_eq!(scene.refused("frame"), hostile.len() as u64);
}
