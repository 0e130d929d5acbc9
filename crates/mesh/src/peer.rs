//! A node's state of each of its peers, and the way out to the peer.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use quinn::{Connection, VarInt};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    FRAME_BYTES_MAX, Fingerprint, Identity, MeshRefusal, chain::fingerprint, lock::lock, settings::SETTINGS,
};

/// The close code of a connection that a newer one replaces. (0 is goodbye.)
pub(crate) const REPLACED: VarInt = VarInt::from_u32(1);

/// Why a frame was not taken. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// There is no connection to the peer, or no such peer.
    #[error("not connected")]
    NotConnected,
    /// Enough is in flight: make a newer frame when there is room again.
    #[error("16 frames or 1 MiB are under way and not acknowledged")]
    Full,
    /// The frame has more than [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX) bytes and will never be taken.
    #[error("a frame of more than {} bytes", crate::FRAME_BYTES_MAX)]
    TooLong,
}

/// The status of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer's name.
    pub identity: Identity,
    /// The address at which the peer is dialled.
    pub address: String,
    /// Whether the connection is up.
    pub connected: bool,
    /// The time of the last change between up and down, by the clock of the tokio runtime.
    pub since: std::time::Instant,
    /// The round trip, smoothed; zero without a connection.
    pub rtt: Duration,
    /// The fingerprint of the peer's certificate, while there is a connection.
    pub fingerprint: Option<Fingerprint>,
    /// The number of refusals of this peer since the start.
    pub refused: u64,
    /// The number of frames that the peer refused since the start.
    pub refused_by_peer: u64,
    /// Why the last connection or attempt ended; empty while it is up.
    pub last_error: String,
    /// Frames from the peer that were delivered.
    pub frames_in: u64,
    /// The bytes of those frames.
    pub bytes_in: u64,
    /// Frames that the peer acknowledged.
    pub frames_out: u64,
    /// The bytes of those frames.
    pub bytes_out: u64,
}

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) identity: Identity,
    pub(crate) address: String,
    /// Held while a connection lives. The next connection waits until the one before has reported that it
    /// is down.
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
    pub(crate) counts: Counts,
}

#[derive(Debug)]
struct State {
    /// The newest connection.
    newest: Option<Connection>,
    /// The way out, if there is one.
    out: Option<Out>,
    is_up: bool,
    since: Instant,
    last_error: String,
}

#[derive(Debug)]
struct Out {
    connection: Connection,
    frames: mpsc::Sender<Outgoing>,
    room: Arc<Room>,
}

/// Counts of a peer since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) refused: AtomicU64,
    pub(crate) refused_by_peer: AtomicU64,
    pub(crate) frames_in: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) frames_out: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
}

/// An outgoing frame, with its place among the frames in flight.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) frame: Vec<u8>,
    pub(crate) place: FramePlace,
}

impl Peer {
    pub(crate) fn new(identity: Identity, address: String) -> Self {
        let state =
            State { newest: None, out: None, is_up: false, since: Instant::now(), last_error: String::new() };
        Self { identity, address, turn: Arc::default(), state: Mutex::new(state), counts: Counts::default() }
    }

    pub(crate) fn send(&self, frame: Vec<u8>) -> Result<(), NotSent> {
        if frame.len() > FRAME_BYTES_MAX {
            return Err(NotSent::TooLong);
        }
        let state = lock(&self.state);
        let out = state.out.as_ref().ok_or(NotSent::NotConnected)?;
        let place = FramePlace::take(&out.room, frame.len()).ok_or(NotSent::Full)?;
        match out.frames.try_send(Outgoing { frame, place }) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(NotSent::Full),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(NotSent::NotConnected),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        lock(&self.state).out.as_ref().is_some_and(|out| out.room.has_some())
    }

    /// Ends the peer's earlier connection in favour of this one, and waits until it has ended.
    pub(crate) async fn take_turn(&self, connection: &Connection) -> tokio::sync::OwnedMutexGuard<()> {
        let before = lock(&self.state).newest.replace(connection.clone());
        if let Some(before) = before {
            before.close(REPLACED, b"a newer connection takes its place");
        }
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Opens the way out. The caller, which runs the connection, gets the other end.
    pub(crate) fn open(&self, connection: &Connection) -> mpsc::Receiver<Outgoing> {
        let (frames, outgoing) = mpsc::channel(SETTINGS.frames.unacknowledged_max);
        let out = Out { connection: connection.clone(), frames, room: Arc::default() };
        lock(&self.state).out = Some(out);
        outgoing
    }

    pub(crate) fn set_up(&self) {
        let mut state = lock(&self.state);
        state.is_up = true;
        state.since = Instant::now();
        state.last_error.clear();
    }

    /// Closes the way out, and tells whether the peer was up.
    pub(crate) fn set_down(&self, why: &str) -> bool {
        let mut state = lock(&self.state);
        state.out = None;
        state.last_error = clean(why);
        let was_up = std::mem::take(&mut state.is_up);
        if was_up {
            state.since = Instant::now();
        }
        was_up
    }

    /// Keeps the reason of a failed attempt, unless the peer is up.
    pub(crate) fn set_error(&self, why: &str) {
        let mut state = lock(&self.state);
        if !state.is_up {
            state.last_error = clean(why);
        }
    }

    pub(crate) fn count_refusal(&self) {
        self.counts.refused.fetch_add(1, Relaxed);
    }

    /// Ends the connection if its certificate is revoked.
    pub(crate) fn close_revoked(&self, is_revoked: impl Fn(&Connection) -> bool) {
        let state = lock(&self.state);
        let out = state.out.as_ref().map(|out| &out.connection);
        for connection in state.newest.iter().chain(out).filter(|connection| is_revoked(connection)) {
            connection.close(MeshRefusal::Revoked.code(), MeshRefusal::Revoked.reason().as_bytes());
        }
    }

    pub(crate) fn status(&self) -> PeerStatus {
        let state = lock(&self.state);
        PeerStatus {
            identity: self.identity.clone(),
            address: self.address.clone(),
            connected: state.is_up,
            since: state.since.into_std(),
            rtt: state.out.as_ref().map_or(Duration::ZERO, |out| out.connection.rtt()),
            fingerprint: state.out.as_ref().and_then(|out| fingerprint(&out.connection)),
            refused: self.counts.refused.load(Relaxed),
            refused_by_peer: self.counts.refused_by_peer.load(Relaxed),
            last_error: state.last_error.clone(),
            frames_in: self.counts.frames_in.load(Relaxed),
            bytes_in: self.counts.bytes_in.load(Relaxed),
            frames_out: self.counts.frames_out.load(Relaxed),
            bytes_out: self.counts.bytes_out.load(Relaxed),
        }
    }
}

/// An error text that is safe to show. The other side may have chosen the text, so it is cut, and control
/// characters are removed.
pub(crate) fn clean(why: &str) -> String {
    let mut clean = String::new();
    for letter in why.chars().filter(|letter| !letter.is_control()) {
        if clean.len() + letter.len_utf8() > SETTINGS.peers.error_bytes_max {
            break;
        }
        clean.push(letter);
    }
    clean
}

/// The frames and bytes in flight on one connection.
#[derive(Debug, Default)]
struct Room(Mutex<UnderWay>);

#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    frames: usize,
    bytes: usize,
}

impl Room {
    /// Whether a frame no longer than the remaining room would fit.
    fn has_some(&self) -> bool {
        let under_way = lock(&self.0);
        under_way.frames < SETTINGS.frames.unacknowledged_max
            && under_way.bytes < SETTINGS.frames.unacknowledged_bytes_max
    }
}

/// The place of one frame in a [`Room`]. The frame has it until the place is dropped.
#[derive(Debug)]
pub(crate) struct FramePlace {
    room: Arc<Room>,
    bytes: usize,
}

impl FramePlace {
    fn take(room: &Arc<Room>, bytes: usize) -> Option<Self> {
        let mut under_way = lock(&room.0);
        let fits = under_way.frames < SETTINGS.frames.unacknowledged_max
            && (under_way.frames == 0 || under_way.bytes + bytes <= SETTINGS.frames.unacknowledged_bytes_max);
        if !fits {
            return None;
        }
        under_way.frames += 1;
        under_way.bytes += bytes;
        Some(Self { room: Arc::clone(room), bytes })
    }
}

impl Drop for FramePlace {
    fn drop(&mut self) {
        let mut under_way = lock(&self.room.0);
        under_way.frames -= 1;
        under_way.bytes -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_sixteen_frames_or_a_mebibyte_are_under_way() {
        let room = Arc::<Room>::default();
        let mut places: Vec<_> = (0..16).map(|_| FramePlace::take(&room, 10)).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(!room.has_some());
        assert!(FramePlace::take(&room, 0).is_none());
        places.clear();

        let most = FramePlace::take(&room, SETTINGS.frames.unacknowledged_bytes_max - 10);
        assert!(most.is_some() && room.has_some());
        assert!(FramePlace::take(&room, 11).is_none());
        assert!(FramePlace::take(&room, 10).is_some());
    }

    #[test]
    fn a_long_frame_goes_alone() {
        let room = Arc::<Room>::default();
        let short = FramePlace::take(&room, 1);
        assert!(short.is_some());
        assert!(FramePlace::take(&room, FRAME_BYTES_MAX).is_none());
        drop(short);
        let long = FramePlace::take(&room, FRAME_BYTES_MAX);
        assert!(long.is_some());
        assert!(!room.has_some() && FramePlace::take(&room, 0).is_none());
    }

    #[test]
    fn an_error_from_outside_is_cut_and_cleaned() {
        let kept = clean(&format!("\x1b[2Jbad\n{}", "ü".repeat(1000)));
        assert!(kept.starts_with("[2Jbadü") && kept.len() <= SETTINGS.peers.error_bytes_max);
        assert!(!kept.chars().any(char::is_control));
    }
}
