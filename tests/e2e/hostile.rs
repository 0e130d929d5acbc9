//! Peers that break the rules between regions are refused, counted and logged once, and change nothing.

#[path = "../../crates/mesh/tests/mesh/mask/mod.rs"]
mod mask;

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use acequia_api::acequia::v1::NodeStatus;
use acequia_mesh::{FRAME_BYTES_MAX, Identity, Notary, certs};
use acequia_node::regions::{
    Seal,
    wire::{FrameEntry, FrameHeader, ReceivedFrames, VERSION},
};
use acequia_rights::{
    Incarnation, MemberId, Version, VersionId, node_named,
    versions::{Ack, CellSecret, Lasts, Member},
};
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
    operators::order,
    regions::{AP, Operator, US, limits},
};

/// Three regions, of which `ap` is gone. An attacker that claims to be `ap` attacks `eu`.
struct Scene {
    cluster: Cluster,
    runtime: Handle,
    operator: Operator,
    http: Http,
    /// The real incarnation of `ap`.
    ap: Incarnation,
    /// The status before any attack.
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
        // On a busy machine, a connection that `ap` started earlier may be accepted after `ap` is gone.
        let mut gone_since = None;
        eventually("ap stays gone", || {
            let peers = operator.status().peers;
            let is_gone = peers.iter().any(|peer| peer.region == "ap" && !peer.connected && !peer.reached);
            gone_since = is_gone.then(|| gone_since.unwrap_or_else(Instant::now));
            gone_since.is_some_and(|since| since.elapsed() >= Duration::from_secs(1))
        });
        let before = operator.status();
        let named = before.members.iter().find(|member| member.region == "ap").expect("a member");
        let ap = Incarnation {
            member: MemberId::named("ap"),
            node: node_named("ap-1"),
            number: named.incarnation,
        };
        let http = Http::connect(&cluster.nodes[EU]);
        let runtime = cluster.runtime();
        Self { cluster, runtime, operator, http, ap, before }
    }

    fn mesh(&self) -> SocketAddr {
        self.cluster.mesh_address(EU)
    }

    /// How often something was refused, by the metrics.
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

    /// Waits until the log contains these words, and checks that only one line does.
    #[track_caller]
    fn logged_once(&self, words: &str) {
        let lines = || {
            let log = self.cluster.nodes[EU].stderr();
            log.lines().filter(|line| words.split(' ').all(|word| line.contains(word))).count()
        };
        eventually(words, || lines() > 0);
        assert_eq!(lines(), 1, "{words}");
    }

    /// Asserts that nothing has changed that a stranger might want to change.
    #[track_caller]
    fn nothing_has_changed(&mut self) {
        let of = |status: &NodeStatus| {
            let limits: Vec<_> = status.limits.iter().map(|limit| (limit.standing, limit.lent)).collect();
            let versions = status.catalogue.as_ref().map(|c| (c.authority.clone(), c.requested, c.effective));
            let ap =
                status.peers.iter().find(|peer| peer.region == "ap").map(|peer| (peer.has, peer.reached));
            (status.ready, status.incarnation, status.members.clone(), limits, versions, ap)
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

/// An accepted connection with a peer's certificate.
async fn insider(folder: &Path, to: SocketAddr) -> Connection {
    let connection = Mask::of(folder, "ap-1").connect(to).await.expect("let in");
    write(&connection, &[1]).await;
    connection
}

#[test]
fn a_stranger_on_the_mesh_is_refused_and_counted_and_changes_nothing() {
    let mut scene = Scene::new();
    let (to, folder) = (scene.mesh(), scene.cluster.certs());
    // A certificate of another authority, with a peer's name.
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
        // By its name this peer is dialled, and never dials, so even the owner of its certificate is refused.
        (Mask::of(&folder, "us-1"), "wrong-direction", 1),
    ] {
        scene.runtime.block_on(mask.refused(to));
        scene.until_refused(what, count);
    }
    // A valid certificate, and a hello of a later version.
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

    // The stalled stream has ten seconds, in which the other streams come.
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

    // Eight refused frames are enough to close the connection.
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
    let header = |writer| FrameHeader {
        incarnation: writer,
        process_number: u32::MAX,
        number: 1,
        received: ReceivedFrames::default(),
        heartbeat: 1,
        wall_ns: u64::MAX,
        corrected_ns: i64::MAX,
        is_believed: true,
        loan_max: u64::MAX,
        version_id: VersionId { epoch: u32::MAX, number: u64::MAX },
    };
    let of = |version: u8, header: &FrameHeader| {
        [&[version], &postcard::to_stdvec(header).expect("postcard")[..]].concat()
    };
    let ap = scene.ap;
    let us = Incarnation { member: MemberId::named("us"), node: node_named("us-1"), ..ap };
    let earlier = header(Incarnation { number: ap.number - 1, ..ap });
    let hostile = [
        of(VERSION, &earlier),
        of(VERSION + 1, &header(ap)),
        of(0, &header(ap)),
        // A region's certificate, but the name of another region, of this node itself, or of an earlier
        // process.
        of(VERSION, &header(us)),
        of(VERSION, &header(Incarnation { member: MemberId::named("eu"), node: node_named("eu-1"), ..ap })),
        of(VERSION, &FrameHeader { process_number: 0, ..header(ap) }),
        // A frame that ends in its header, and a frame with an invalid entry.
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

    // The real `ap` returns without any trace of the attack.
    scene.cluster.nodes[AP].start_again();
    scene.cluster.until_ready(AP);
    eventually("it is heard", || {
        scene.operator.status().peers.iter().any(|peer| peer.region == "ap" && peer.reached)
    });
    assert_eq!(scene.refused("frame"), hostile.len() as u64);
}

/// A stolen certificate lets its holder speak for one region only.
#[test]
fn a_stolen_certificate_changes_no_limit_and_acknowledges_for_nobody() {
    let mut scene = Scene::new();
    let (to, folder, ap) = (scene.mesh(), scene.cluster.certs(), scene.ap);
    let catalogue = scene.before.catalogue.clone().expect("a catalogue");
    let requested =
        catalogue.requested.map(|id| VersionId { epoch: id.epoch, number: id.number }).expect("a version");
    let eu = Incarnation {
        member: MemberId::named("eu"),
        node: node_named("eu-1"),
        number: scene.before.incarnation,
    };
    let stolen = certs::load(&folder, &Identity::new("ap", "ap-1")).expect("credentials");
    let stolen = Notary::new(&stolen).expect("a notary");
    let seal = |said: &[u8]| {
        let signed = stolen.sign(said).expect("signed");
        Some(Box::new(Seal { scheme: signed.scheme, signature: signed.signature, chain: signed.chain }))
    };
    let version = |authority: Incarnation, version_id: VersionId| Version {
        version_id,
        allocation: version_id,
        authority,
        members: [eu, ap]
            .map(|writer| (writer.member, Member { weight: 1, incarnation: writer, name: String::new() }))
            .into(),
        leaving: Default::default(),
        fenced: Vec::new(),
        clock_error_ns: 2_000_000,
        drift_ppm: 200,
        key: CellSecret([7; 16]),
        lasts: Lasts::default(),
        limits: b"[]".to_vec(),
        revoked: Default::default(),
    };
    let signed = |version: Version| {
        let said = postcard::to_extend(&version, b"acequia version\0".to_vec()).expect("bytes");
        FrameEntry::Version(Box::new(version), seal(&said))
    };
    let after = VersionId { number: requested.number + 1, ..requested };
    let ack = Ack { version_id: after, allocation: after, from_wall_ns: scene.before.wall_ns, authority: eu };
    let us = scene.before.members.iter().find(|member| member.region == "us").expect("a member");
    let us = Incarnation { member: MemberId::named("us"), node: node_named("us-1"), number: us.incarnation };
    let hostile = [
        // In the authority's name and in its own, with the largest epoch, and without any signature.
        signed(version(eu, after)),
        signed(version(ap, VersionId { epoch: requested.epoch + 1, number: requested.number + 1 })),
        signed(version(ap, VersionId { epoch: u32::MAX, number: u64::MAX })),
        FrameEntry::Version(Box::new(version(eu, after)), None),
        // Acknowledgements for another region.
        FrameEntry::Acked { incarnation: us, ack, seal: seal(b"acequia acknowledgement\0") },
        FrameEntry::Acked { incarnation: us, ack, seal: None },
    ];
    let insider = scene.runtime.block_on(insider(&folder, to));
    for (number, entry) in (1..).zip(&hostile) {
        let header = FrameHeader {
            incarnation: ap,
            process_number: 1_000,
            number,
            received: ReceivedFrames::default(),
            heartbeat: number,
            wall_ns: scene.before.wall_ns,
            corrected_ns: 0,
            is_believed: true,
            loan_max: 0,
            version_id: requested,
        };
        let mut bytes = postcard::to_extend(&header, vec![VERSION]).expect("a header");
        bytes = postcard::to_extend(entry, bytes).expect("an entry");
        scene.runtime.block_on(write(&insider, &frame(bytes.len(), &bytes)));
        scene.until_refused("signature", number);
    }
    assert_eq!(scene.refused("frame"), 0, "the frames are sound");
    scene.logged_once("passed on eu/eu-1 ap/ap-1 signed whose");
    scene.logged_once("passed on ap/ap-1 lacks acequia:authority");
    let now = scene.operator.status();
    assert_eq!((now.catalogue, &now.members), (Some(catalogue), &scene.before.members));
    let answer = scene.http.check(&body(&[("kind", "rate")])).json();
    assert_eq!(answer["allowed"], true, "{answer}");
}

/// The certificate is revoked, and its region gets another one. Nobody else needs a new certificate.
#[test]
fn a_revoked_certificate_is_let_in_no_more_and_another_one_is() {
    let cluster = Cluster::start(&limits());
    let eu = &cluster.nodes[EU];
    let mut operators: Vec<Operator> = cluster.nodes.iter().map(Operator::of).collect();
    let sees = |operator: &mut Operator, region: &str, is_up: bool| {
        let peers = operator.status().peers;
        peers.iter().any(|peer| peer.region == region && peer.connected == is_up && peer.reached == is_up)
    };
    eventually("all are there", || {
        sees(&mut operators[EU], "ap", true) && sees(&mut operators[EU], "us", true)
    });
    let stolen = operators[AP].status().fingerprint;
    let shown = operators[EU].status().peers;
    assert!(shown.iter().any(|peer| peer.region == "ap" && peer.fingerprint == stolen), "{shown:?}");

    let own = operators[EU].status().fingerprint;
    for (certificate, why) in [
        (&own[..16], "this node's own"),
        ("0123456789abcdef", "has seen no certificate"),
        ("abc", "is no fingerprint"),
    ] {
        let (code, text) = order(eu, &["regions", "revoke", certificate, "--yes"]);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(why), "{text}");
    }
    let (code, text) = order(eu, &["regions", "revoke", &stolen[..16], "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&stolen), "{text}");
    eventually("it is let in nowhere", || {
        sees(&mut operators[EU], "ap", false) && sees(&mut operators[US], "ap", false)
    });
    assert!(sees(&mut operators[US], "eu", true));
    // The other region has heard of the revocation from the authority, and reports it.
    let (_, audit) = order(&cluster.nodes[US], &["audit", "--newest", "1"]);
    for words in ["adopted", "eu/eu-1, by certificate", &own, &stolen] {
        assert!(audit.contains(words), "{words}: {audit}");
    }
    let counted = Http::connect(eu).get("/metrics").body;
    let counted =
        counted.lines().find_map(|line| line.strip_prefix("acequia_mesh_refused_total{what=\"revoked\"} "));
    assert!(counted.is_some_and(|count| count != "0"), "{counted:?}");
    // A node that restarts knows of the revocation, too.
    certs::create(&cluster.certs(), &[Identity::new("ap", "ap-1")], &[]).expect("another certificate");
    eventually("it is let in by that", || {
        sees(&mut operators[EU], "ap", true) && sees(&mut operators[US], "ap", true)
    });
    assert_ne!(operators[AP].status().fingerprint, stolen);
    eventually("it has heard of it", || {
        operators[AP].status().catalogue.is_some_and(|catalogue| catalogue.revoked == [stolen.clone()])
    });
}

/// An authority whose certificate lacks the role goes on deciding, and orders nothing.
#[test]
fn an_order_without_the_role_of_an_authority_names_what_is_missing() {
    let cluster = Cluster::start(&limits());
    let mut operator = Operator::of(&cluster.nodes[EU]);
    eventually("every region conforms", || {
        let catalogue = operator.status().catalogue.unwrap_or_default();
        catalogue.requested.is_some() && catalogue.effective == catalogue.requested
    });
    // `ap` never had the role.
    for words in
        [&["authority", "move", "ap-1", "--yes"][..], &["authority", "move", "ap-1", "--fenced", "--yes"]]
    {
        let (code, text) = order(&cluster.nodes[AP], words);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("ap/ap-1 lacks the URI acequia:authority"), "{text}");
    }
    let folder = cluster.certs();
    let before = operator.status().fingerprint;
    std::fs::remove_file(folder.join("eu-1.pem")).expect("removed");
    certs::create(&folder, &[Identity::new("eu", "eu-1")], &[]).expect("a certificate without the role");
    eventually("it is read again", || operator.status().fingerprint != before);
    let set = ["budget", "set", "shop/rate", "rate=100/s", "--yes"];
    let (code, text) = order(&cluster.nodes[EU], &set);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("eu/eu-1 lacks the URI acequia:authority"), "{text}");
    cluster.nodes[EU].until_it_says("the catalogue stays in force, and cannot be changed");
    let answer = Http::connect(&cluster.nodes[EU]).check(&body(&[("kind", "rate")])).json();
    assert_eq!(answer["allowed"], true, "{answer}");

    certs::create(&folder, &[Identity::new("eu", "eu-1")], &["eu-1"]).expect("a certificate with it");
    eventually("it may again", || order(&cluster.nodes[EU], &set).0 == Some(0));
    eventually("every region conforms again", || {
        let catalogue = operator.status().catalogue.unwrap_or_default();
        catalogue.effective == catalogue.requested
    });
}
