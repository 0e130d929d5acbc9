//! A UDP link with weather. Demonstrations and tests put it between two nodes to delay, lose, repeat or cut
//! their packets.
//!
//! Give the dialling node [`Link::address`] in place of its peer's address. Each address that sends there
//! gets its own socket towards the target, so that answers find their way back.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    net::UdpSocket,
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{lock::lock, random::Random, settings::SETTINGS};

/// The most bytes of a UDP packet.
const PACKET_BYTES_MAX: usize = 65_535;

/// How a link treats packets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weather {
    /// The delay of each packet, in each direction. The order is kept.
    pub delay: Duration,
    /// The part of all packets that is lost, `0.0..=1.0`, in each direction.
    pub loss: f32,
    /// The part of all packets that arrives twice, `0.0..=1.0`, in each direction.
    pub duplicate: f32,
    /// The directions in which nothing passes.
    pub cut: Cut,
}

impl Weather {
    /// A delay and nothing else.
    #[must_use]
    pub fn delayed(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }
}

/// The directions in which nothing passes: neither later packets nor packets on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Towards the target.
    pub to_target: bool,
    /// Back from the target.
    pub back: bool,
}

impl Cut {
    /// Both directions.
    pub const BOTH: Self = Self { to_target: true, back: true };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToTarget,
    Back,
}

impl Weather {
    const fn cuts(&self, direction: Direction) -> bool {
        match direction {
            Direction::ToTarget => self.cut.to_target,
            Direction::Back => self.cut.back,
        }
    }
}

/// A link. Dropping it ends it: its sockets are closed, and nothing passes any more.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    forwarded: Arc<Forwarded>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Forwarded {
    to_target: AtomicU64,
    back: AtomicU64,
}

impl Link {
    /// Starts a link to `target` on the current tokio runtime, at a free local address. A given `seed`
    /// always makes the same random choices. The arrival of packets decides which packet gets which choice.
    ///
    /// # Errors
    /// The system gives no socket.
    pub fn start(target: SocketAddr, weather: Weather, seed: u64) -> io::Result<Self> {
        let front = Arc::new(bind(target)?);
        let address = front.local_addr()?;
        let (weather, watched) = watch::channel(weather);
        let forwarded = Arc::<Forwarded>::default();
        let lots = Arc::new(Mutex::new(Random::new(seed)));

        let mut tasks = JoinSet::new();
        let mut lane = |direction| {
            let (packets, waiting) = mpsc::channel(SETTINGS.relay.queue_max);
            tasks.spawn(deliver(direction, waiting, watched.clone(), Arc::clone(&forwarded)));
            Lane { direction, packets, weather: watched.clone(), lots: Arc::clone(&lots) }
        };
        let (to_target, back) = (lane(Direction::ToTarget), lane(Direction::Back));
        tasks.spawn(take_in(Front { socket: front, target, to_target, back, flows: BTreeMap::new() }));
        Ok(Self { address, weather, forwarded, _tasks: tasks })
    }

    /// The address for packets to the target.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The link's present weather.
    #[must_use]
    pub fn weather(&self) -> Weather {
        *self.weather.borrow()
    }

    /// Changes the weather at once, also for packets on their way.
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// The number of packets that passed since the start: towards the target, and back.
    #[must_use]
    pub fn forwarded(&self) -> (u64, u64) {
        (self.forwarded.to_target.load(Relaxed), self.forwarded.back.load(Relaxed))
    }
}

/// A packet on its way, with the socket that sends it on.
struct Packet {
    came: Instant,
    bytes: Bytes,
    from: Arc<UdpSocket>,
    to: SocketAddr,
}

/// The way in one direction.
#[derive(Clone)]
struct Lane {
    direction: Direction,
    packets: mpsc::Sender<Packet>,
    weather: watch::Receiver<Weather>,
    lots: Arc<Mutex<Random>>,
}

impl Lane {
    /// Queues a packet, or loses it.
    fn put(&self, bytes: &[u8], from: &Arc<UdpSocket>, to: SocketAddr) {
        let weather = *self.weather.borrow();
        let (is_lost, is_doubled) = {
            let mut lots = lock(&self.lots);
            (lots.fraction() < f64::from(weather.loss), lots.fraction() < f64::from(weather.duplicate))
        };
        if is_lost || weather.cuts(self.direction) {
            return;
        }
        let bytes = Bytes::copy_from_slice(bytes);
        for _ in 0..1 + usize::from(is_doubled) {
            let packet = Packet { came: Instant::now(), bytes: bytes.clone(), from: Arc::clone(from), to };
            // A full queue loses the packet.
            let _ = self.packets.try_send(packet);
        }
    }
}

/// Sends waiting packets on, in order. Each leaves when its time has come by the present weather.
async fn deliver(
    direction: Direction,
    mut waiting: mpsc::Receiver<Packet>,
    mut weather: watch::Receiver<Weather>,
    forwarded: Arc<Forwarded>,
) {
    while let Some(packet) = waiting.recv().await {
        let passes = loop {
            let now = *weather.borrow_and_update();
            if now.cuts(direction) {
                break false;
            }
            let due = packet.came + now.delay;
            if due <= Instant::now() {
                break true;
            }
            tokio::select! {
                biased;
                changed = weather.changed() => if changed.is_err() { return },
                () = sleep_until(due) => {}
            }
        };
        if passes && packet.from.send_to(&packet.bytes, packet.to).await.is_ok() {
            let count = match direction {
                Direction::ToTarget => &forwarded.to_target,
                Direction::Back => &forwarded.back,
            };
            count.fetch_add(1, Relaxed);
        }
    }
}

/// The side that faces the senders.
struct Front {
    socket: Arc<UdpSocket>,
    target: SocketAddr,
    to_target: Lane,
    back: Lane,
    flows: BTreeMap<SocketAddr, SenderFlow>,
}

/// The traffic of one sending address, both ways.
struct SenderFlow {
    socket: Arc<UdpSocket>,
    used: Instant,
    _answers: JoinSet<()>,
}

async fn take_in(mut front: Front) {
    let mut packet = vec![0; PACKET_BYTES_MAX];
    loop {
        // An error is about an earlier packet: the system reports it here.
        let Ok((length, source)) = front.socket.recv_from(&mut packet).await else { continue };
        // If there is no socket, the packet counts as lost.
        let Ok(socket) = front.flow(source) else { continue };
        front.to_target.put(&packet[..length], &socket, front.target);
    }
}

impl Front {
    fn flow(&mut self, source: SocketAddr) -> io::Result<Arc<UdpSocket>> {
        let used = Instant::now();
        if let Some(flow) = self.flows.get_mut(&source) {
            flow.used = used;
            return Ok(Arc::clone(&flow.socket));
        }
        if self.flows.len() >= SETTINGS.relay.flows_max
            && let Some(quietest) =
                self.flows.iter().min_by_key(|(_, flow)| flow.used).map(|(source, _)| *source)
        {
            self.flows.remove(&quietest);
        }
        let socket = Arc::new(bind(self.target)?);
        let mut answers = JoinSet::new();
        answers.spawn(take_back(
            Arc::clone(&socket),
            self.target,
            self.back.clone(),
            Arc::clone(&self.socket),
            source,
        ));
        self.flows.insert(source, SenderFlow { socket: Arc::clone(&socket), used, _answers: answers });
        Ok(socket)
    }
}

async fn take_back(
    socket: Arc<UdpSocket>,
    target: SocketAddr,
    back: Lane,
    front: Arc<UdpSocket>,
    source: SocketAddr,
) {
    let mut packet = vec![0; PACKET_BYTES_MAX];
    loop {
        match socket.recv_from(&mut packet).await {
            Ok((length, from)) if from == target => back.put(&packet[..length], &front, source),
            _ => {}
        }
    }
}

/// A socket from which `target` can be reached.
fn bind(target: SocketAddr) -> io::Result<UdpSocket> {
    let own: SocketAddr = match target {
        SocketAddr::V4(target) if target.ip().is_loopback() => (Ipv4Addr::LOCALHOST, 0).into(),
        SocketAddr::V6(target) if target.ip().is_loopback() => (Ipv6Addr::LOCALHOST, 0).into(),
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = StdSocket::bind(own)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);
    const NEVER: Duration = Duration::from_millis(100);

    struct Scene {
        link: Link,
        target: UdpSocket,
        client: UdpSocket,
    }

    impl Scene {
        async fn new(weather: Weather) -> Self {
            let target = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
            let client = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
            let link = Link::start(target.local_addr().expect("an address"), weather, 7).expect("a link");
            Self { link, target, client }
        }

        async fn send(&self, number: u32) {
            self.client.send_to(&number.to_be_bytes(), self.link.address()).await.expect("sent");
        }
    }

    async fn take(socket: &UdpSocket, patience: Duration) -> Option<(u32, SocketAddr)> {
        let mut packet = [0; 4];
        let (length, from) = timeout(patience, socket.recv_from(&mut packet)).await.ok()?.expect("a packet");
        assert_eq!(length, 4);
        Some((u32::from_be_bytes(packet), from))
    }

    #[tokio::test]
    async fn packets_reach_the_target_and_answers_reach_each_sender() {
        let scene = Scene::new(Weather::default()).await;
        let other = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        for (client, number) in [(&scene.client, 1u32), (&other, 2)] {
            client.send_to(&number.to_be_bytes(), scene.link.address()).await.expect("sent");
            let (came, from) = take(&scene.target, SOON).await.expect("a packet");
            assert_eq!(came, number);
            scene.target.send_to(&(number + 10).to_be_bytes(), from).await.expect("sent");
            assert_eq!(take(client, SOON).await, Some((number + 10, scene.link.address())));
        }
        assert_eq!(scene.link.forwarded(), (2, 2));
    }

    #[tokio::test]
    async fn a_delay_keeps_packets_in_order_and_can_be_lifted_for_waiting_ones() {
        let scene = Scene::new(Weather::delayed(Duration::from_millis(50))).await;
        let start = Instant::now();
        for number in 0..100 {
            scene.send(number).await;
        }
        for number in 0..100 {
            assert_eq!(take(&scene.target, SOON).await.map(|(came, _)| came), Some(number));
        }
        assert!(start.elapsed() >= Duration::from_millis(50));

        scene.link.set(Weather::delayed(Duration::from_secs(3600)));
        scene.send(100).await;
        assert_eq!(take(&scene.target, NEVER).await, None);
        scene.link.set(Weather::default());
        assert_eq!(take(&scene.target, SOON).await.map(|(came, _)| came), Some(100));
    }

    #[tokio::test]
    async fn a_cut_in_one_direction_drops_packets_under_way() {
        let scene = Scene::new(Weather::default()).await;
        scene.send(1).await;
        let (_, back) = take(&scene.target, SOON).await.expect("a packet");

        scene.link.set(Weather { cut: Cut { to_target: true, back: false }, ..Weather::default() });
        scene.send(2).await;
        assert_eq!(take(&scene.target, NEVER).await, None);
        scene.target.send_to(&3u32.to_be_bytes(), back).await.expect("sent");
        assert_eq!(take(&scene.client, SOON).await.map(|(came, _)| came), Some(3));

        scene.link.set(Weather { cut: Cut { to_target: false, back: true }, ..Weather::default() });
        scene.target.send_to(&4u32.to_be_bytes(), back).await.expect("sent");
        assert_eq!(take(&scene.client, NEVER).await, None);
        scene.send(5).await;
        assert_eq!(take(&scene.target, SOON).await.map(|(came, _)| came), Some(5));
    }

    #[tokio::test]
    async fn packets_are_lost_and_doubled_at_the_given_rates() {
        let weather = Weather { loss: 0.3, duplicate: 0.5, ..Weather::default() };
        let scene = Scene::new(weather).await;
        let mut came = 0;
        for number in 0..1000 {
            scene.send(number).await;
            // The test takes packets one at a time, so that no socket's buffer loses any.
            while take(&scene.target, Duration::from_millis(2)).await.is_some() {
                came += 1;
            }
        }
        while take(&scene.target, NEVER).await.is_some() {
            came += 1;
        }
        let expected = 1000.0 * 0.7 * 1.5;
        assert!((f64::from(came) - expected).abs() < 100.0, "{came}");
    }

    #[tokio::test]
    async fn answers_reach_the_newest_of_more_senders_than_the_bound() {
        let scene = Scene::new(Weather::default()).await;
        for number in 0..SETTINGS.relay.flows_max as u32 + 10 {
            let client = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
            client.send_to(&number.to_be_bytes(), scene.link.address()).await.expect("sent");
            let (came, back) = take(&scene.target, SOON).await.expect("a packet");
            scene.target.send_to(&came.to_be_bytes(), back).await.expect("sent");
            assert_eq!(take(&client, SOON).await.map(|(came, _)| came), Some(number));
        }
    }

    #[tokio::test]
    async fn dropping_a_link_ends_it() {
        let scene = Scene::new(Weather::default()).await;
        let address = scene.link.address();
        drop(scene.link);
        let free = async {
            while UdpSocket::bind(address).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        timeout(SOON, free).await.expect("its address is free again");
    }
}
