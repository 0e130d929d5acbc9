//! Links that are cut, mended and lossy, and nodes that restart.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

use crate::scene::{self, Node, PATIENCE, certificates, config, identity, peer, socket};
use acequia_mesh::{
    Config, Event, MeshRefusal, NotSent, PeerConfig,
    relay::{Cut, Link, Weather},
};
use tokio::time::{Instant, timeout};

/// The weather between two distant regions.
const FAR: Weather = Weather {
    delay: Duration::from_millis(40),
    loss: 0.0,
    duplicate: 0.0,
    cut: Cut { to_target: false, back: false },
};

/// `ap` dials `eu` over a link.
struct Scene {
    ap: Node,
    eu: Node,
    link: Link,
}

impl Scene {
    async fn new(folder: &Path, weather: Weather) -> Self {
        Self::of(weather, |name, other| config(folder, name, vec![other])).await
    }

    async fn patient(folder: &Path) -> Self {
        Self::of(Weather::default(), |name, other| patient(folder, name, other)).await
    }

    async fn of(weather: Weather, config: impl Fn(&str, PeerConfig) -> Config) -> Self {
        let (ap_socket, eu_socket) = (socket(), socket());
        let ap_at = ap_socket.local_addr().expect("bound");
        let link = Link::start(eu_socket.local_addr().expect("bound"), weather, 1).expect("a link");
        let mut ap = Node::start(config("ap", peer("eu", link.address())), ap_socket);
        let mut eu = Node::start(config("eu", peer("ap", ap_at)), eu_socket);
        ap.expect_up("eu").await;
        eu.expect_up("ap").await;
        Self { ap, eu, link }
    }

    async fn expect_both_down(&mut self) {
        self.ap.expect_down("eu").await;
        self.eu.expect_down("ap").await;
    }

    async fn expect_both_up(&mut self) {
        self.ap.expect_up("eu").await;
        self.eu.expect_up("ap").await;
    }

    async fn expect_frames_both_ways(&mut self) {
        self.ap.send("eu", b"there".to_vec()).await;
        assert_eq!(self.eu.expect_frame("ap").await, b"there");
        self.eu.send("ap", b"back".to_vec()).await;
        assert_eq!(self.ap.expect_frame("eu").await, b"back");
    }
}

#[tokio::test]
async fn a_cut_link_is_noticed_and_reconnects_by_itself() {
    let folder = certificates(&["ap", "eu"]);
    let mut scene = Scene::new(folder.path(), FAR).await;
    scene.expect_frames_both_ways().await;
    // A backlog that must not delay frames after the cut.
    while scene.ap.mesh.send(&identity("eu"), vec![0; 60_000]).is_ok() {}
    scene.link.set(Weather { cut: Cut::BOTH, ..FAR });
    scene.expect_both_down().await;
    assert_eq!(scene.ap.mesh.send(&identity("eu"), vec![1]), Err(NotSent::NotConnected));
    assert!(!scene.ap.mesh.status()[0].connected && !scene.eu.mesh.status()[0].connected);

    // Long enough for attempts to be pending in every stage of their repetitions.
    scene.ap.until("attempts fail", |mesh| mesh.status()[0].last_error.contains("no answer")).await;
    scene.link.set(FAR);
    let mended = Instant::now();
    scene.expect_both_up().await;
    println!("up {} ms after the link was mended", mended.elapsed().as_millis());
    scene.expect_frames_both_ways().await;
}

#[tokio::test]
async fn a_cut_in_one_direction_takes_both_sides_down() {
    let folder = certificates(&["ap", "eu"]);
    let mut scene = Scene::new(folder.path(), FAR).await;
    for cut in [Cut { to_target: true, back: false }, Cut { to_target: false, back: true }] {
        scene.link.set(Weather { cut, ..FAR });
        scene.expect_both_down().await;
        scene.link.set(FAR);
        scene.expect_both_up().await;
        scene.expect_frames_both_ways().await;
    }
    // Both directions work, so nobody was at fault.
    let refused = scene.eu.mesh.refused();
    assert_eq!(refused.total(), refused.of(MeshRefusal::Unfinished), "{refused:?}");
}

#[tokio::test]
async fn lost_and_repeated_packets_lose_and_repeat_no_frame() {
    const FRAMES: u32 = 300;
    let folder = certificates(&["ap", "eu"]);
    let weather =
        Weather { delay: Duration::from_millis(5), loss: 0.05, duplicate: 0.05, ..Weather::default() };
    let mut scene = Scene::new(folder.path(), weather).await;
    let mut came = BTreeSet::new();
    let Scene { ap, eu, link: _link } = &mut scene;
    let sending = async {
        for number in 0..FRAMES {
            let mut frame = vec![0; 1 + number as usize * 37 % 9000];
            frame.extend_from_slice(&number.to_be_bytes());
            ap.send("eu", frame).await;
        }
    };
    let receiving = async {
        while came.len() < FRAMES as usize {
            let frame = eu.expect_frame("ap").await;
            let number = frame[frame.len() - 4..].try_into().expect("four bytes");
            assert!(came.insert(u32::from_be_bytes(number)), "a frame came twice");
        }
    };
    tokio::join!(sending, receiving);
    assert_eq!(came, (0..FRAMES).collect());
}

#[tokio::test]
async fn the_restart_of_the_side_that_accepts_is_noticed_at_once() {
    let folder = certificates(&["ap", "eu"]);
    let mut scene = Scene::patient(folder.path()).await;
    scene.link.set(Weather { cut: Cut::BOTH, ..Weather::default() });
    let (at, ap_at) = (scene.eu.mesh.local_addr(), scene.ap.mesh.local_addr());
    scene.eu.mesh.close().await;
    drop(scene.eu);
    let mut eu = Node::start(patient(folder.path(), "eu", peer("ap", ap_at)), bind(at).await);
    scene.link.set(Weather::default());

    // By silence alone, it would take a minute to find out.
    assert_eq!(scene.ap.expect_down("eu").await, "it has restarted");
    scene.ap.expect_up("eu").await;
    eu.expect_up("ap").await;
}

#[tokio::test]
async fn the_restart_of_the_side_that_dials_replaces_its_connection() {
    let folder = certificates(&["ap", "eu"]);
    let mut scene = Scene::patient(folder.path()).await;
    scene.link.set(Weather { cut: Cut::BOTH, ..Weather::default() });
    let at = scene.ap.mesh.local_addr();
    scene.ap.mesh.close().await;
    drop(scene.ap);
    let socket = bind(at).await;
    let mut ap = Node::start(patient(folder.path(), "ap", peer("eu", scene.link.address())), socket);
    scene.link.set(Weather::default());

    scene.eu.expect_down("ap").await;
    scene.eu.expect_up("ap").await;
    ap.expect_up("eu").await;
    ap.send("eu", b"again".to_vec()).await;
    assert_eq!(scene.eu.expect_frame("ap").await, b"again");
}

/// A node that notices silence only after a minute.
fn patient(folder: &Path, name: &str, other: PeerConfig) -> Config {
    let mut config = config(folder, name, vec![other]);
    config.timing.idle = Duration::from_secs(60);
    config
}

/// Binds `address` again, as soon as it is free.
async fn bind(address: SocketAddr) -> UdpSocket {
    let bound = async {
        loop {
            match UdpSocket::bind(address) {
                Ok(socket) => return socket,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    timeout(PATIENCE, bound).await.expect("the address is free")
}

#[tokio::test]
async fn two_nodes_with_one_name_do_not_cut_each_other_off_all_the_time() {
    let folder = certificates(&["ap", "eu"]);
    let (mut ap, mut eu) = scene::pair(folder.path()).await;
    let eu_at = eu.mesh.local_addr();
    let mut twin = Node::start(config(folder.path(), "ap", vec![peer("eu", eu_at)]), socket());
    twin.expect_up("eu").await;
    eu.expect_down("ap").await;
    eu.expect_up("ap").await;
    let ended = Instant::now();
    assert!(ap.expect_down("eu").await.contains("newer connection"));
    ap.expect_up("eu").await;
    assert!(ended.elapsed() > Duration::from_millis(500), "{:?}", ended.elapsed());
}

#[tokio::test]
async fn after_each_cut_both_sides_report_up_once() {
    let folder = certificates(&["ap", "eu"]);
    let mut scene = Scene::new(folder.path(), Weather::default()).await;
    for _ in 0..3 {
        scene.link.set(Weather { cut: Cut::BOTH, ..Weather::default() });
        scene.expect_both_down().await;
        scene.link.set(Weather::default());
        match (scene.ap.next().await, scene.eu.next().await) {
            (Event::Up(eu), Event::Up(ap)) => assert_eq!((eu, ap), (identity("eu"), identity("ap"))),
            events => panic!("{events:?}"),
        }
    }
}
