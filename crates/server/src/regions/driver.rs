//! The loop between the mesh and the node. It waits for a frame or for time, hands frames over, and sends
//! what the node has to say.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use acequia_limits::Now;
use acequia_mesh::{Event, Identity};
use acequia_node::regions::Wall;
use acequia_rights::{MemberId, Version, VersionId};
use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::Regions;
use crate::settings::SETTINGS;

/// The state of the loop.
#[derive(Debug, Default)]
struct Turn {
    ticked_ns: u64,
    seldom_ns: u64,
    /// The version whose schedule is on disk.
    kept: Option<VersionId>,
    /// The newest version that was adopted.
    adopted: Option<Version>,
    /// The faults that were logged, and when.
    logged: BTreeMap<(MemberId, &'static str), u64>,
    is_member: bool,
    wall: Wall,
}

/// Shares limits with the other regions until `stopping`.
pub(super) async fn drive(regions: &Regions, mut events: mpsc::Receiver<Event>, stopping: CancellationToken) {
    let mut turns = tokio::time::interval(SETTINGS.driver.turn);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = Turn { adopted: regions.node.version(), ..Turn::default() };
    loop {
        tokio::select! {
            biased;
            () = stopping.cancelled() => break,
            event = events.recv() => match event {
                Some(event) => turn.take(regions, event),
                None => break,
            },
            () = until_answered(regions) => {}
            // A request that waits for its forward must not wait for the next turn.
            () = regions.waiting.called() => {}
            _ = turns.tick() => {}
        }
        for _ in 0..SETTINGS.driver.events_max {
            let Ok(event) = events.try_recv() else { break };
            turn.take(regions, event);
        }
        turn.end(regions);
    }
    regions.mesh.close().await;
}

/// Waits until a forward from another node of the region must be answered, although there are no units for
/// it.
async fn until_answered(regions: &Regions) {
    match regions.node.forwards_due_ns() {
        None => std::future::pending().await,
        Some(at_ns) => {
            let left_ns = at_ns.saturating_sub(regions.clock.now().steady_ns);
            tokio::time::sleep(Duration::from_nanos(left_ns)).await;
        }
    }
}

impl Turn {
    fn take(&mut self, regions: &Regions, event: Event) {
        let now = regions.clock.now();
        match event {
            Event::Up(identity) => {
                info!(peer = %identity, "connected");
                if let Some(region) = regions.names.region_of(&identity) {
                    regions.node.reconnected(region, now);
                }
            }
            Event::Down { peer, why } => {
                warn!(peer = %peer, why, "disconnected: this region goes on with what it has");
            }
            Event::Frame { from, bytes } => self.take_frame(regions, &from, &bytes, now),
        }
    }

    fn take_frame(&mut self, regions: &Regions, from: &Identity, bytes: &[u8], now: Now) {
        // The mesh knows only peers of the config.
        let Some(region) = regions.names.region_of(from) else { return };
        if let Err(fault) = regions.node.handle(region, bytes, now)
            && self.may_log(region, "frame", now)
        {
            warn!(peer = %from, %fault, "a frame was refused");
        }
    }

    /// Lets time pass, and sends.
    fn end(&mut self, regions: &Regions) {
        let now = regions.clock.now();
        if regions.node.calls() || now.steady_ns >= self.ticked_ns + SETTINGS.driver.tick_ns {
            self.ticked_ns = now.steady_ns;
            if let Err(fault) = regions.node.tick(now, |limit| regions.rows(limit))
                && self.may_log(regions.me.member, "version", now)
            {
                warn!(%fault, "a version of the catalogue was not adopted");
            }
            self.note_adopted(regions, now);
        }
        if let Some((incarnation, fault)) = regions.node.take_unproven()
            && self.may_log(incarnation.member, "seal", now)
        {
            let writer = regions.names.of_writer(incarnation, regions.node.version().as_ref());
            warn!(%writer, %fault, "what was passed on as this node's word was refused");
        }
        regions.waiting.tell(regions.node.news());
        if now.steady_ns >= self.seldom_ns {
            self.seldom_ns = now.steady_ns + SETTINGS.driver.seldom_ns;
            regions.begin_catalogue(now);
            let is_due = regions.node.is_wall_believed() && regions.file_waits.swap(false, Ordering::AcqRel);
            if is_due && let Err(fault) = regions.order_file() {
                error!(%fault, "what changed in the file is not in force, and the catalogue stays: mend it, and send SIGHUP");
            }
            self.keep_schedule(regions, now);
            self.tell_standing(regions);
            self.tell_role(regions, now);
            self.tell_clock(regions, now);
        }
        let may_send = |region| {
            regions.names.identity(region).is_some_and(|identity| regions.mesh.is_writable(identity))
        };
        for _ in 0..SETTINGS.driver.frames_max {
            let Some((region, frame)) = regions.node.poll_to(regions.clock.now(), may_send) else { break };
            if let Some(identity) = regions.names.identity(region) {
                // If the connection has ended meanwhile, the content is sent again on the next one.
                let _ = regions.mesh.send(identity, frame);
            }
        }
    }

    /// Writes down an order of another node whose version this tick adopted. An order of this node is written
    /// down already.
    fn note_adopted(&mut self, regions: &Regions, now: Now) {
        let before = self.adopted.as_ref().map_or_else(VersionId::default, |version| version.version_id);
        if regions.node.version_ids().0 == before {
            return;
        }
        let Some(version) = regions.node.version() else { return };
        if version.authority != regions.me
            && let Err(fault) = regions.note_adopted(self.adopted.as_ref(), &version, now)
        {
            error!(%fault, "what another node ordered is in force, and the audit log cannot be written: make room on the disk");
        }
        regions.keep_revoked(&version);
        self.adopted = Some(version);
    }

    /// Writes the schedule in force down for the next start, if it has changed.
    fn keep_schedule(&mut self, regions: &Regions, now: Now) {
        let (version_id, _) = regions.node.version_ids();
        // If the journal is down, the writer tries again.
        let is_down = regions.node.is_journal_down();
        if self.kept == Some(version_id) || version_id == VersionId::default() || is_down {
            return;
        }
        match regions.keep_schedule() {
            Ok(()) => {
                if self.kept.is_some() || regions.node.version().is_some_and(|v| v.authority != regions.me) {
                    info!(version = %super::status::version_text(version_id), "catalogue in force");
                }
                self.kept = Some(version_id);
            }
            Err(fault) if self.may_log(regions.me.member, "schedule", now) => {
                warn!(%fault, "the schedule of limits is not written down yet");
            }
            Err(_) => {}
        }
    }

    fn tell_standing(&mut self, regions: &Regions) {
        let ready = regions.ready();
        if ready.is_ok() != self.is_member {
            self.is_member = ready.is_ok();
            match ready {
                Ok(()) => info!("this region has its shares: ready"),
                Err(why) => warn!(why, "not ready"),
            }
        }
    }

    /// Warns if the authority could not make a version: its next certificate must let it.
    fn tell_role(&mut self, regions: &Regions, now: Now) {
        let is_authority = regions.node.version().is_some_and(|version| version.authority == regions.me);
        if is_authority
            && let Err(fault) = regions.check_role()
            && self.may_log(regions.me.member, "role", now)
        {
            warn!(%fault, "the catalogue stays in force, and cannot be changed");
        }
    }

    /// Logs when this node uses another wall than before, and when a peer's wall is further off than the
    /// catalogue allows.
    fn tell_clock(&mut self, regions: &Regions, now: Now) {
        let Some(membership) = regions.node.membership(now) else { return };
        let before = std::mem::replace(&mut self.wall, membership.wall);
        let corrected_ms = membership.corrected_ns / 1_000_000;
        match membership.wall {
            _ if membership.wall == before => {}
            Wall::Own => info!("this node goes by its own wall clock"),
            Wall::Unconfirmed => {}
            Wall::Peers => warn!(
                corrected_ms,
                "most nodes that are reached contradict this machine's wall clock: the node goes by theirs. Set the clock"
            ),
            Wall::Carried => warn!(
                corrected_ms,
                "this machine's wall clock was set, and nobody is reached who agrees: the node goes on as if it had not been"
            ),
        }
        let error_ns = regions.node.version().map_or(0, |version| version.clock_error_ns);
        for peer in regions.node.peers(now).into_iter().filter(|peer| peer.is_reached) {
            let Some((ahead_ns, unsure_ns)) = peer.wall_ahead_ns else { continue };
            let is_off = ahead_ns.unsigned_abs() > 2 * error_ns + unsure_ns;
            if is_off && self.may_log(peer.incarnation.member, "wall", now) {
                let peer = regions.names.of_region(peer.incarnation.member, None);
                warn!(%peer, ahead_ms = ahead_ns / 1_000_000, "a peer's wall clock is further off than the catalogue allows");
            }
        }
    }

    fn may_log(&mut self, region: MemberId, what: &'static str, now: Now) -> bool {
        let last = self.logged.get(&(region, what));
        let due = last.is_none_or(|last| now.steady_ns.saturating_sub(*last) >= SETTINGS.driver.quiet_ns);
        if due {
            self.logged.insert((region, what), now.steady_ns);
        }
        due
    }
}
