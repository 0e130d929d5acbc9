//! The nodes of a world: how they start, stop and crash.

use std::{collections::BTreeSet, sync::Arc};

use acequia_limits::{LimitId, Now};
use acequia_node::{Asker, Config, Home, Keep, Node, WITHDRAWALS, pool::RegionSetup, regions};
use acequia_rights::MemberId;

use super::{World, incarnation, rows_of};
use crate::scene::{self, KEY, MS, S, START};

/// How long a stop takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    /// How long the node gives back what it holds.
    pub(crate) gives_ns: u64,
    /// The time between the end of the process and the start of the next one.
    pub(crate) pause_ns: u64,
}

impl Stop {
    /// A second for each.
    pub(crate) const CALM: Self = Self { gives_ns: S, pause_ns: S };
    pub(crate) const AT_ONCE: Self = Self { gives_ns: 0, pause_ns: 0 };
}

impl World {
    pub(super) fn started(
        &self,
        number: u16,
        nodes: usize,
        process_number: u32,
        crashed: Option<Now>,
        rows_hold: BTreeSet<LimitId>,
    ) -> (Arc<Node>, Asker) {
        let place = usize::from(number) - 1;
        let is_mate = |other: &u16| {
            let of = self.regions.as_ref().map(|regions| &regions.of);
            of.is_none_or(|of| of[usize::from(*other) - 1] == of[place])
        };
        let all: BTreeSet<u16> = (1..=nodes as u16).filter(is_mate).collect();
        let now = if self.nodes.len() > place { self.now(place) } else { START };
        let region = RegionSetup {
            node: number,
            process_number,
            members: all
                .iter()
                .filter(|_| self.regions.is_some())
                .map(|mate| (*mate, MemberId(*mate)))
                .collect(),
            allocation: 0,
            nodes: all,
            guard_percent: self.percent,
            clock_error_ns: self.error_ns,
            drift_ppm: self.drift_ppm,
            begun_us: now.wall_ns / 1_000,
            knows_from_us: self.is_kept.then(|| self.knows_from_us(place, now)),
            is_new: self.is_new,
            rows_hold,
            generations: self.nodes.get(place).map_or_else(Vec::new, |at| at.generations.clone()),
        };
        let home = Home { incarnation: incarnation(place), loan_ttl_ns: regions::LOAN_TTL_NS };
        let home = self.regions.as_ref().map(|_| home);
        let config =
            Config { key: KEY, memory_bytes: self.memory_bytes, durable: false, after_crash: crashed, home };
        let node = Arc::new(match &self.regions {
            Some(regions) if !regions.have_stores => Node::new(config),
            _ => Node::among(config, Keep::default(), region),
        });
        if self.regions.is_some() {
            let disk = self.nodes.get(place).map(|at| &at.rows);
            let rows = |id| disk.map_or_else(Vec::new, |disk| rows_of(disk, id));
            node.resume_home(Vec::new(), now, rows).expect("its own disk");
            (0..nodes).for_each(|other| node.meet(incarnation(other)));
        } else if process_number > 1 {
            let until = |specs, until_ns| {
                let limits = scene::limits(specs).into_iter();
                limits.map(move |limit| acequia_node::Scheduled { limit, until_ns })
            };
            let retired = until(&self.retired, Some(now.wall_ns.saturating_sub(1)));
            let schedule = until(&self.specs, None).chain(retired).collect();
            node.resume(schedule, now).expect("the same limits");
            let disk = &self.nodes[place].rows;
            node.restore_all(now, |id| rows_of(disk, id));
        }
        if self.regions.is_none() {
            scene::apply(&node, &self.specs, now);
        }
        let rows = self.nodes.get(place).map_or_else(Vec::new, |at| rows_of(&at.rows, WITHDRAWALS));
        node.restore_withdrawals(rows, now);
        let asker = node.asker();
        (node, asker)
    }

    fn knows_from_us(&self, place: usize, now: Now) -> u64 {
        let began_us = if self.is_new { 0 } else { now.wall_ns / 1_000 };
        self.nodes.get(place).map_or(began_us, |at| at.knows_from_us)
    }

    /// A node loses power, and restarts with what is on its disk.
    pub(crate) fn crash(&mut self, place: usize) {
        self.nodes[place].crashed = Some(self.now(place));
        self.start(place, BTreeSet::new());
    }

    fn start(&mut self, place: usize, rows_hold: BTreeSet<LimitId>) {
        let process_number = self.nodes[place].process_number + 1;
        let crashed = self.nodes[place].crashed;
        let (number, nodes) = (place as u16 + 1, self.nodes.len());
        let (node, asker) = self.started(number, nodes, process_number, crashed, rows_hold);
        let at = &mut self.nodes[place];
        (at.node, at.asker, at.process_number, at.ticked_ns) = (node, asker, process_number, 0);
        // Write before any request comes.
        self.write(place);
    }

    /// Stops a node: it gives back what it holds, pauses, and restarts with what it has written.
    pub(crate) fn stop(&mut self, place: usize, stop: Stop) {
        let is_cut = self.regions.as_mut().is_some_and(|regions| !regions.cut.insert(place));
        // The node answers no more callers.
        self.waiting.retain(|waiting| waiting.place != place);
        self.nodes[place].node.leave_pools(self.now(place));
        self.pass(stop.gives_ns);
        self.write(place);
        let (at, now) = (&self.nodes[place], self.now(place));
        let (node, is_disk_full) = (Arc::clone(&at.node), at.is_disk_full);
        let disk = &mut self.nodes[place].rows;
        if !is_disk_full {
            node.close(now, |row| drop(disk.insert((row.limit, row.tag), row)));
        }
        self.nodes[place].is_hung = true;
        self.pass(stop.pause_ns);
        self.nodes[place].is_hung = false;
        if let Some(regions) = self.regions.as_mut().filter(|_| !is_cut) {
            regions.cut.remove(&place);
        }
        if is_disk_full {
            return self.crash(place);
        }
        self.start(place, node.known_limits().into_iter().collect());
    }

    /// Stops a node for random times. The process may end while it is still giving back.
    pub(crate) fn stop_at_random(&mut self, place: usize) {
        let (gives_ns, pause_ns) =
            (self.below(4) * self.below(300 * MS), self.below(2) * self.below(4_000 * MS));
        self.stop(place, Stop { gives_ns, pause_ns });
    }

    /// A node loses power and its disk.
    pub(crate) fn lose_disk(&mut self, place: usize) {
        let now_us = self.now(place).wall_ns / 1_000;
        let at = &mut self.nodes[place];
        at.generations.clear();
        at.rows.clear();
        at.knows_from_us = now_us;
        self.is_new = true;
        self.crash(place);
        self.is_new = false;
    }

    /// Writes a node's queued rows to its disk.
    pub(super) fn write(&mut self, place: usize) {
        let at = &mut self.nodes[place];
        while !at.is_disk_full
            && let Some((batch, rows)) = at.node.take_rows()
        {
            for row in rows {
                match row.state {
                    Some(_) => drop(at.rows.insert((row.limit, row.tag), row)),
                    None => drop(at.rows.remove(&(row.limit, row.tag))),
                }
            }
            at.node.committed(batch);
        }
    }

    /// Number of rows on a node's disk.
    pub(crate) fn rows(&self, place: usize) -> usize {
        self.nodes[place].rows.len()
    }
}
