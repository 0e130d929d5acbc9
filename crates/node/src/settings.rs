//! How a node behaves where no rule says it: its times, bounds and preferences, in one place.
//!
//! The constants with names of their own are contracts with the node's driver, its mates and its peers. No promise depends on one of these numbers alone; the assertions at the end state how they relate. Numbers that a proof
//! needs stand beside the proof, and sizes of data structures beside the structure. What an operator may set is in
//! [`Config`](crate::Config) and in the catalogue.

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;
/// Nanoseconds of a second.
const S: u64 = 1_000_000_000;

/// How long a loan lasts after the heartbeat that it is dated from, unless a config says otherwise.
pub const LOAN_TTL_NS: u64 = 3_000_000_000;
/// How long a lease lasts after the call that last renewed it: through a minute in which the pool cannot be
/// reached. What a dead node held stays unused for so long.
pub const LEASE_NS: u64 = 75_000_000_000;
/// A grant must be taken up within this time after its call was sent. A bucket's pool adds the time to its
/// slack, since it may count units as drained that much too soon.
pub const LATE_NS: u64 = 20_000_000;
/// A call without an answer is given up after this long.
pub const CALL_NS: u64 = 200_000_000;
/// A remote charge must pass a request within this time after the forward was asked for; later it passes
/// nobody.
pub const FORWARD_NS: u64 = 50_000_000;
/// How long a request waits for its forward, unless its limit sets a wait. The owner may have to ask the
/// region's pool first, and all three are near each other. Timers are up to a millisecond late, and the whole
/// wait should not be much longer than three milliseconds.
pub const FORWARD_WAIT_NS: u64 = 2_500_000;

/// The settings that every node runs with.
pub(crate) const SETTINGS: Settings = Settings {
    decide: DecideSettings {
        ask_again_ns: 250 * MS,
        ask_seldom_ns: 4 * S,
        lost_retry_ns: S,
        journal_retry_ns: S,
        rebalance_ns: 50 * MS,
        sliding_lease_part: 8,
        reserved_part: 10,
        parts_of_limit: 7,
        parts_of_domain: 15,
        warning_value_bytes_max: 256,
        warnings_max: 4_096,
        missed_ns: 10 * S,
    },
    charges: ChargeSettings {
        memory_part: 8,
        reserved_parts: 7,
        settlements_max: 4_096,
        known_costs_max: 16_384,
        lapsed_unreported: 20,
        held_scan_max: 1_024,
    },
    sharing: SharingSettings {
        pulse_ns: 400 * MS,
        reach_ns: 1_500 * MS,
        active_cells_max: 4 << 20,
        rebalances_max: 16_384,
        loan_numbers_ahead: 4_096,
        calls_ns: 5 * MS,
        usage_ns: S,
        idle_ns: 10 * S,
        unasked_ns: 60 * S,
        view_ns: 10 * S,
        short_ns: 3 * S,
        spare_short_ns: 10 * S,
        new_rebalance_ns: 30 * MS,
        new_rebalances_ns: 200 * MS,
        new_ns: S,
        net_ns: 5 * S,
        slots_ns: S,
        advertised_apart_ns: 15 * MS,
        refresh_ns: 4 * S,
        ask_ns: 250 * MS,
        ask_ns_max: 4 * S,
        pool_ns: 20 * MS,
        pool_ns_max: S,
        report_ns: 60 * S,
        pieces: 4,
        asked_max: 3,
        dead_band: 20,
        quantum: 128,
        units_kept: 8,
        ahead_ns: 10 * S,
        units_few: 4,
        need_band: 16,
    },
    demand: DemandSettings {
        events: 32,
        deviations: 4,
        events_mean: 512,
        mean_ns_min: 250 * MS,
        mean_ns_max: 30 * S,
        first_ns: 20 * MS,
    },
    links: LinkSettings {
        fresh_ns: 20 * MS,
        reply_ns: 15 * MS,
        resend_ns: 250 * MS,
        patience_ns_max: 10 * S,
        frames_max: 16,
        reordered_max: 3,
        given_up_max: 64,
        settlements_max: 1_024,
        replies_max: 1_024,
        peer_names_max: 4 << 20,
        resync_cells_max: 4_096,
        resync_waiting_max: 8_192,
    },
    clocks: ClockSettings {
        compare_ns: 100 * MS,
        still_ns: MS,
        alone_ns: 5 * S,
        sighting_ns: 2 * S,
        sighted_ns: 20 * S,
        ping_soon_ns: 100 * MS,
        unsure_ns_max: 500 * MS,
        doubt_ns: 20 * S,
        glimpse_ns: MS,
        reshare_ns: 100 * MS,
    },
    pool: PoolSettings {
        wait_ns: 2 * MS,
        cells_max: 1 << 20,
        lasting_max: 1 << 14,
        rebalances_max: 4_096,
        later_ns: 10 * MS,
        apart_ns: MS / 2,
        apart_in_vain_ns: 2 * MS,
        first_max: 128,
        sweep_max: 64,
        calls_max: 1_024,
        retry_ns: 20 * MS,
        retry_ns_max: 500 * MS,
        told_ns: 5 * MS,
        told_ns_max: 500 * MS,
        told_ns_longest: 4 * S,
        begun_at_once: 3,
        begin_ns: 10 * MS,
        begin_ns_max: 500 * MS,
        lost_after_ns: 500 * MS,
        quiet_ns: 250 * MS,
        watch_ns: 64 * S,
        together_ns: S,
        probe_ns: 100 * MS,
        doubt_ns: 4 * S,
    },
    lease: LeaseSettings {
        soon_ns: 60 * MS,
        ahead_ns: 70 * S,
        idle_ns: 10 * S,
        idle_alone_ns: 75 * S,
        bunch: 3,
        spare_ns: S,
        opens_part: 6,
        scarce: 8,
        scarce_spare_ns: 100 * MS,
        room_ns: 10 * S,
        word_ns: 50 * MS,
        renew_ns: 5 * S,
        vain_ns: 4 * MS,
        vain_ns_max: 500 * MS,
        scant_ns: 4 * S,
        little_ns: 15 * MS,
        little_part: 1_024,
        disk_ns: MS,
        dry_ns: S,
        waits_ns: 5 * MS,
        left_ns: S,
        later_ns: S,
        windows_max: 64,
        kept_ns: 300 * S,
        lasting_ns_min: 10 * S,
    },
    forward: ForwardSettings {
        ask_ns: 40 * MS,
        back_ns: 750_000,
        few: 16,
        asked_max: 1_024,
        asked_of_cell_max: 16,
        held_max: 512,
        held_of_peer_max: 128,
        held_of_cell_max: 32,
        empty_ns: 4 * MS,
        empty_ns_max: 32 * MS,
        cells_max: 16_384,
        silent_max: 4,
        far_ns: S,
        far_ns_max: 32 * S,
        probe_ns: S,
        forwarded_ns: 75 * S,
        forwarded_ns_max: 600 * S,
        missed_ns: 2 * S,
        alone_ns: 2 * S,
        again_ns: 250 * MS,
        tried_ns: 250 * MS,
        unasked_ns: 500 * MS,
        sweep_ns: 250 * MS,
    },
};

/// All settings of a node.
pub(crate) struct Settings {
    pub(crate) decide: DecideSettings,
    pub(crate) charges: ChargeSettings,
    pub(crate) sharing: SharingSettings,
    pub(crate) demand: DemandSettings,
    pub(crate) links: LinkSettings,
    pub(crate) clocks: ClockSettings,
    pub(crate) pool: PoolSettings,
    pub(crate) lease: LeaseSettings,
    pub(crate) forward: ForwardSettings,
}

/// Decisions, and the waits that their denials report.
pub(crate) struct DecideSettings {
    /// The wait that a denial reports if nothing else is known: units are asked for within about this time. Smaller:
    /// callers come back before the units do.
    pub(crate) ask_again_ns: u64,
    /// The longest wait that a denial reports if a region lacks what is its own, or never had any units: loans
    /// end, and units are asked for anew, in about this time.
    pub(crate) ask_seldom_ns: u64,
    /// The longest wait that a denial reports during a store outage: the store is asked again about as often.
    pub(crate) lost_retry_ns: u64,
    /// The wait that a denial reports while the journal cannot be written: the write is retried about as often.
    pub(crate) journal_retry_ns: u64,
    /// Time for a rebalance at both ends and for the other end's disk, beside the round trip. Part of the waits that
    /// callers are told.
    pub(crate) rebalance_ns: u64,
    /// A lease of a sliding window lives for at most one part in this many of the window. Larger: more calls. Smaller: what
    /// an application does not use is lost for longer.
    pub(crate) sliding_lease_part: u64,
    /// If less than the requested cost will do, one part in this many of what is left is reserved at a time. Smaller:
    /// one caller holds more in advance that others cannot use.
    pub(crate) reserved_part: u64,
    /// One limit may take this many times as much memory for new cells as is free: 7/8 of all if it is alone. Larger:
    /// one flood of keys leaves less to other limits.
    pub(crate) parts_of_limit: usize,
    /// The factor for all limits of one domain together: 15/16 of all memory if the domain is alone. Above
    /// `parts_of_limit`, so that one limit does not take its domain's whole part.
    pub(crate) parts_of_domain: usize,
    /// The most bytes of a value that a warning carries.
    pub(crate) warning_value_bytes_max: usize,
    /// The most warnings that wait to be taken: the caller takes them every second or so.
    pub(crate) warnings_max: usize,
    /// After this long without missing units, the next missed units start a new period of waiting.
    pub(crate) missed_ns: u64,
}

/// Records of named charges.
pub(crate) struct ChargeSettings {
    /// Records may take one byte in this many of the memory for cells, and open reservations as much again.
    pub(crate) memory_part: usize,
    /// One owner may hold up to this many times as many reservations as there are free places: 7/8 of all if it
    /// is alone (dynamic thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
    pub(crate) reserved_parts: usize,
    /// The most settlements that wait for their names to be ended.
    pub(crate) settlements_max: usize,
    /// The most cells whose costs are known, at about 300 bytes each. Beyond, the cell that was known first is
    /// forgotten, and its holds are of the largest size again.
    pub(crate) known_costs_max: usize,
    /// So many holds of a limit lapse before it is said that nobody reports to it. With fewer, a few streams that broke
    /// off after the start are taken for a gateway that never reports.
    pub(crate) lapsed_unreported: u64,
    /// The open reservations under each of 16 locks that are looked through for what a cell has set apart. More of them
    /// hold the lock for longer than about 0.2 ms; fewer miss units that are set apart.
    pub(crate) held_scan_max: usize,
}

/// Sharing between members: when a cell is rebalanced, what it asks for and what it gives.
pub(crate) struct SharingSettings {
    /// Heartbeats are at most this far apart. Larger: loans end sooner after the last heartbeat that arrived.
    pub(crate) pulse_ns: u64,
    /// A peer that was not heard for this long is not asked, and gets no loans. Several `pulse_ns`, and well below the
    /// time that a loan lasts.
    pub(crate) reach_ns: u64,
    /// The most active cells: beyond them, cells keep to their own part.
    pub(crate) active_cells_max: usize,
    /// The most rebalances in one tick: others wait for the next. Larger: a tick takes longer.
    pub(crate) rebalances_max: usize,
    /// Loan numbers that are reserved on disk at once: a restart skips up to this many.
    pub(crate) loan_numbers_ahead: u64,
    /// The least time between two rebalances of a cell that calls. Larger: a caller waits longer for lent units.
    pub(crate) calls_ns: u64,
    /// How often usage is counted and sent.
    pub(crate) usage_ns: u64,
    /// A cell gives everything back if no region is known to have been asked for it for this long.
    pub(crate) idle_ns: u64,
    /// A region that was not asked for a cell for this long is assumed to have no use for it.
    pub(crate) unasked_ns: u64,
    /// A view of another region that is older than this is ignored. Longer than `refresh_ns`.
    pub(crate) view_ns: u64,
    /// A request for more than a region can hold counts for this long after it was last repeated.
    pub(crate) short_ns: u64,
    /// Units borrowed for such a request, if they are enough, are kept for this long after the last one.
    pub(crate) spare_short_ns: u64,
    /// The demand of a bucket's cell is hardly known at first. So the cell is rebalanced this often, for
    /// `new_rebalances_ns`.
    pub(crate) new_rebalance_ns: u64,
    /// How long a bucket's cell is rebalanced that often.
    pub(crate) new_rebalances_ns: u64,
    /// A pause says little about the demand of a cell that became active less than this ago.
    pub(crate) new_ns: u64,
    /// How often loans that go both ways between two regions are ended. While demand moves, they come and go by
    /// themselves.
    pub(crate) net_ns: u64,
    /// The time over which the slots of requests under way are averaged. Smaller: slots follow chance, and cannot be used
    /// while they move. Larger: they follow demand later.
    pub(crate) slots_ns: u64,
    /// Advertisements of a cell are at least this far apart. Larger: fewer frames, and peers learn later.
    pub(crate) advertised_apart_ns: u64,
    /// How old the advertisement of a cell in use gets. Smaller: more frames. Larger: peers plan with older figures.
    pub(crate) refresh_ns: u64,
    /// The first wait before rights are asked for again. The wait doubles each time asking brought nothing.
    pub(crate) ask_ns: u64,
    /// The longest such wait.
    pub(crate) ask_ns_max: u64,
    /// Units that must first be taken from the region's pool are there soon, or not at all. Meanwhile the cell is
    /// rebalanced this often.
    pub(crate) pool_ns: u64,
    /// A request of another region waits no longer than this for such units.
    pub(crate) pool_ns_max: u64,
    /// How often a window's pool is told what it has, for nodes that joined since the window began: the store may have
    /// forgotten.
    pub(crate) report_ns: u64,
    /// If the pool does not give all at once, one part in this many of a planned loan is worth lending.
    pub(crate) pieces: u64,
    /// The most peers that are asked at once. Larger: more units come than are needed, and go back.
    pub(crate) asked_max: usize,
    /// A need below one part in this many of the fair part is left alone. Larger: more loans for little.
    pub(crate) dead_band: u64,
    /// A piece below one part in this many of the whole is not worth a loan.
    pub(crate) quantum: u64,
    /// A region keeps up to this many units, as many as it is asked for in a second. Requests come close together
    /// by chance, and a bucket with fewer units denies some that its rate has room for.
    pub(crate) units_kept: u64,
    /// How far ahead units of a window are asked for at most: more would have to come back when demand moves.
    pub(crate) ahead_ns: u64,
    /// The least units of a window that are asked for, if they are needed: a region with one request a minute wants a
    /// unit at hand.
    pub(crate) units_few: u64,
    /// A region does not ask while it misses no more than one part in this many of what it needs.
    pub(crate) need_band: u64,
}

/// How demand is measured.
pub(crate) struct DemandSettings {
    /// How many events are compared with the expected number: with more, the older ones would hide a change.
    pub(crate) events: u64,
    /// A difference of this many deviations plus this many events is no chance (Poisson). One rebalance in many
    /// thousands begins a new mean for nothing, and is right again after some dozen events.
    pub(crate) deviations: u64,
    /// The most events that the mean is taken over: it is then within three in a hundred of the truth.
    pub(crate) events_mean: u64,
    /// The shortest time that the mean is taken over, if demand stays as it is.
    pub(crate) mean_ns_min: u64,
    /// The longest such time.
    pub(crate) mean_ns_max: u64,
    /// The shortest span for a first mean: a shorter one says little about a rate.
    pub(crate) first_ns: u64,
}

/// Frames between members.
pub(crate) struct LinkSettings {
    /// Frames sent within this time carry one heartbeat, dated from the first of them, which is safe. Larger: loans
    /// are dated earlier, and end earlier.
    pub(crate) fresh_ns: u64,
    /// A frame is answered within this time, so that the sender learns how far away the peer is.
    pub(crate) reply_ns: u64,
    /// A frame that is not confirmed within two round trips, and this much more, counts as lost. Above `reply_ns`.
    pub(crate) resend_ns: u64,
    /// A frame counts as lost after this long in any case: one that the mesh takes longer to carry does not
    /// arrive.
    pub(crate) patience_ns_max: u64,
    /// The most frames on their way to one peer.
    pub(crate) frames_max: usize,
    /// A frame counts as lost if a confirmed frame has a number more than this beyond its own.
    pub(crate) reordered_max: u64,
    /// The most frames that were given up and may still be confirmed: a peer reports on as many.
    pub(crate) given_up_max: usize,
    /// The most settlements that wait for one peer.
    pub(crate) settlements_max: usize,
    /// The most answers to forwards that wait for one peer or were sent a moment ago. Beyond that the oldest is
    /// not sent, and its charge passes nobody.
    pub(crate) replies_max: usize,
    /// The most short names of a peer that are remembered: beyond it all are forgotten, and asked for again.
    pub(crate) peer_names_max: usize,
    /// The most cells that one tick of a resync walks over.
    pub(crate) resync_cells_max: u32,
    /// While more facts than this wait for a peer, nothing is sent to it again.
    pub(crate) resync_waiting_max: usize,
}

/// Comparing clocks, and waiting for what clocks bound.
pub(crate) struct ClockSettings {
    /// The least time between two comparisons of a clock with itself and with the peers' clocks.
    pub(crate) compare_ns: u64,
    /// A wall moves if it departs from the steady clock by more than this between two comparisons, beyond the
    /// drift.
    pub(crate) still_ns: u64,
    /// A node that has reached nobody for this long since its start is alone, and asks its journal instead.
    pub(crate) alone_ns: u64,
    /// After this long, even a less sure sighting of a peer's clock replaces the old one: clocks may be set.
    pub(crate) sighting_ns: u64,
    /// How old the sighting of a peer's clock gets, about, while the peer is reached: even if there is nothing to
    /// say. Well above `sighting_ns`.
    pub(crate) sighted_ns: u64,
    /// How soon a node with whose clock nobody has agreed pings a peer again.
    pub(crate) ping_soon_ns: u64,
    /// A reading of a peer's clock that may be off by more than this is ignored, since its frame may have waited
    /// for long. While the node's own wall is not believed, every reading counts.
    pub(crate) unsure_ns_max: u64,
    /// How long a doubt about the clock lasts at least.
    pub(crate) doubt_ns: u64,
    /// How far the wall of requests since the last tick may be ahead of that tick's reading, beyond the clock's
    /// error: the drift of a steady clock in between.
    pub(crate) glimpse_ns: u64,
    /// How often to check whether a wait is over, while shares are being distributed anew.
    pub(crate) reshare_ns: u64,
}

/// Calls to the region's pools, and when their store counts as lost.
pub(crate) struct PoolSettings {
    /// How long a decision waits for a pool. Timers are up to a millisecond late, and the whole wait must be at
    /// most three milliseconds.
    pub(crate) wait_ns: u64,
    /// The most cells with leases: further cells stay with the guard share.
    pub(crate) cells_max: usize,
    /// From this many leases on, cells without requests give back early: each takes a kilobyte and is rebalanced
    /// now and then.
    pub(crate) lasting_max: usize,
    /// The most rebalances in one tick.
    pub(crate) rebalances_max: usize,
    /// A cell that could not be rebalanced is tried again after this long.
    pub(crate) later_ns: u64,
    /// The least time between two rebalances of a cell that calls for them: far less than a decision waits.
    pub(crate) apart_ns: u64,
    /// The least time between them while the cell's pool cannot be asked anyway.
    pub(crate) apart_in_vain_ns: u64,
    /// The most groups to ask for the first time in one tick.
    pub(crate) first_max: usize,
    /// The most cells to drop when a group is asked for its state.
    pub(crate) sweep_max: u32,
    /// The most calls under way, with those that wait to be made.
    pub(crate) calls_max: usize,
    /// A group that does not answer is asked again after this long. The time doubles each time.
    pub(crate) retry_ns: u64,
    /// The longest such time.
    pub(crate) retry_ns_max: u64,
    /// After this long the group is asked again whether the other nodes have told all. The time doubles each time.
    pub(crate) told_ns: u64,
    /// The longest such time while something is held of the group.
    pub(crate) told_ns_max: u64,
    /// The longest such time if nothing is held of the group.
    pub(crate) told_ns_longest: u64,
    /// How many times this node begins a group at once if others begin the group again and again.
    pub(crate) begun_at_once: u32,
    /// After those, the node waits this long before it begins the group, and twice as long each time.
    pub(crate) begin_ns: u64,
    /// The longest such wait.
    pub(crate) begin_ns_max: u64,
    /// A store counts as lost after calls for this long without an answer: at least two that were given up one
    /// after the other ([`CALL_NS`]). Leases bridge a shorter silence, as of a slow store or one that
    /// moves to another server.
    pub(crate) lost_after_ns: u64,
    /// This long after its last word a store may be lost.
    pub(crate) quiet_ns: u64,
    /// How often every group is asked for its state, even if this node holds nothing of it. A generation grants
    /// only when all nodes have told what they hold, and nobody tells a node that another has begun one.
    pub(crate) watch_ns: u64,
    /// How often the due groups are asked, together in one round trip.
    pub(crate) together_ns: u64,
    /// How often one of the lost groups is asked, while there are any.
    pub(crate) probe_ns: u64,
    /// The least time between two rounds in which all groups are asked at once.
    pub(crate) doubt_ns: u64,
}

/// What a node holds of a pool: how much, for how long, and when the pool is asked again.
pub(crate) struct LeaseSettings {
    /// The held units last at least this long by demand when the next call is made. Above a slow call.
    pub(crate) soon_ns: u64,
    /// Demand is met this far ahead, if the pool has enough: so long the held units last without the pool. A little
    /// less than the time that a lease lasts.
    pub(crate) ahead_ns: u64,
    /// A cell without requests gives everything back after this long.
    pub(crate) idle_ns: u64,
    /// The time after which it does so while there are few cells, for a sliding window and for a window's pool of which no other node takes.
    pub(crate) idle_alone_ns: u64,
    /// Units to hold beyond demand, if other nodes can spare them: requests come in bunches, and the held units
    /// are to last while the pool cannot be reached.
    pub(crate) bunch: u64,
    /// Units that are not used for this long go back.
    pub(crate) spare_ns: u64,
    /// Units that were taken of a window before it opened are kept for one part in this many of the window, and at most
    /// for `idle_ns`.
    pub(crate) opens_part: u64,
    /// A pool is *scarce* if its units, and its units a second, are below this number for each node: other nodes
    /// need what one holds and does not use. So a node holds no unit of a scarce pool ahead of need beyond those
    /// that it uses while the pool fills once. It gives units back after `scarce_spare_ns`, and asks for each
    /// further one.
    pub(crate) scarce: u64,
    /// When unused units of a scarce pool go back.
    pub(crate) scarce_spare_ns: u64,
    /// A cell of which earlier processes took is given up if there is no room for it for this long.
    pub(crate) room_ns: u64,
    /// A cell that waits for a word from the store is rebalanced again after this long.
    pub(crate) word_ns: u64,
    /// How often a lease is renewed. Much less than a lease lasts: so long is left of it in an outage, at least.
    pub(crate) renew_ns: u64,
    /// A pool that had nothing is asked again after this long. The time doubles with each miss in a row.
    pub(crate) vain_ns: u64,
    /// The longest such time.
    pub(crate) vain_ns_max: u64,
    /// A window's pool of few units gives none ahead of need: the pool is asked again for those after this long.
    pub(crate) scant_ns: u64,
    /// A large pool with little left is asked no more often than this.
    pub(crate) little_ns: u64,
    /// A pool has little left if it gives less than one part in this many of all its units.
    pub(crate) little_part: u64,
    /// A call that waits for the disk is made at most this long after the row is there.
    pub(crate) disk_ns: u64,
    /// A pool that had nothing may have something after this long.
    pub(crate) dry_ns: u64,
    /// A request that was denied this long ago waits no more.
    pub(crate) waits_ns: u64,
    /// The pool may have more by now than it said this long ago.
    pub(crate) left_ns: u64,
    /// How often units are asked for that are only wanted later.
    pub(crate) later_ns: u64,
    /// The most windows after the open one that are taken of before they open.
    pub(crate) windows_max: usize,
    /// A window's pool is kept this long after the window's end: then it is over by every wall.
    pub(crate) kept_ns: u64,
    /// Units of windows at least this long may be held for long without requests.
    pub(crate) lasting_ns_min: u64,
}

/// Forwards between nodes of a region.
pub(crate) struct ForwardSettings {
    /// The longest wait for one forward: an answer that comes at the last moment must still pass a request. A
    /// request that waits longer forwards again. Below [`FORWARD_NS`].
    pub(crate) ask_ns: u64,
    /// The owner stops charging this long before the mate gives up, since the answer takes time, too.
    pub(crate) back_ns: u64,
    /// A limit has few units if its budget and its units a second are both below this number times the number of
    /// the catalogue's members. Up to here a forward is worth a message and a wait for nearly every request at a
    /// mate (see the tables in tests/bench/README.md).
    pub(crate) few: u64,
    /// Bound on unanswered forwards plus unused remote charges of all cells.
    pub(crate) asked_max: usize,
    /// Bound on unanswered forwards of one cell.
    pub(crate) asked_of_cell_max: usize,
    /// Bound on forwards of all mates that wait here for units.
    pub(crate) held_max: usize,
    /// Bound on such forwards of one mate.
    pub(crate) held_of_peer_max: usize,
    /// Bound on such forwards of one cell.
    pub(crate) held_of_cell_max: usize,
    /// After a cell's owner had nothing, no more is forwarded for this long. The time doubles with each miss in a row.
    pub(crate) empty_ns: u64,
    /// The longest such time.
    pub(crate) empty_ns_max: u64,
    /// The most cells to remember whose owner had nothing; the same bound holds for the cells that this node
    /// deals with alone, and for those with nodes that had too little.
    pub(crate) cells_max: usize,
    /// After this many useless forwards in a row, a node counts as *far*: for `far_ns` it only gets probes for
    /// zero units, and after that until one probe is answered in time. Then a single useless forward makes the
    /// node far again, for twice as long each time in a row.
    pub(crate) silent_max: u32,
    /// How long a node counts as far at first.
    pub(crate) far_ns: u64,
    /// The longest such time.
    pub(crate) far_ns_max: u64,
    /// How often every other node of the region is probed with a forward of zero units. The probe tells both ends
    /// whether an answer can come in time, and costs no units.
    pub(crate) probe_ns: u64,
    /// A cell counts as forwarded for this long after a mate's last forward: its owner then holds enough of the
    /// pool for all mates. Limits without a rate add twice their period.
    pub(crate) forwarded_ns: u64,
    /// The longest such time.
    pub(crate) forwarded_ns_max: u64,
    /// When a cell's owner says that it cannot get units, or has had none for this long, this node deals with
    /// other regions and the pool itself for `alone_ns`, as if there were no forwards. Then it asks the owner
    /// again.
    pub(crate) missed_ns: u64,
    /// How long a node deals with a cell alone.
    pub(crate) alone_ns: u64,
    /// If the owner then has nothing for this long, this node deals with the cell alone again.
    pub(crate) again_ns: u64,
    /// A node that had too few units of a cell is not asked for as many again for this long.
    pub(crate) tried_ns: u64,
    /// If the owner was not asked for this long, it may have had units meanwhile.
    pub(crate) unasked_ns: u64,
    /// How often the records of cells whose owner had nothing are swept.
    pub(crate) sweep_ns: u64,
}

// How the settings relate, and how they relate to the contracts.
const _: () = {
    let Settings { decide, sharing, demand, links, clocks, pool, lease, forward, .. } = SETTINGS;
    assert!(decide.parts_of_limit < decide.parts_of_domain);
    // A loan survives a lost heartbeat, and a peer is given up before its loans end.
    assert!(3 * sharing.pulse_ns < sharing.reach_ns && sharing.reach_ns < LOAN_TTL_NS);
    assert!(sharing.refresh_ns < sharing.view_ns && sharing.new_rebalance_ns < sharing.new_rebalances_ns);
    assert!(sharing.ask_ns < sharing.ask_ns_max && sharing.pool_ns < sharing.pool_ns_max);
    assert!(demand.events < demand.events_mean && demand.first_ns < demand.mean_ns_min);
    assert!(links.reply_ns < links.resend_ns && links.resend_ns < links.patience_ns_max);
    assert!(clocks.sighting_ns < clocks.sighted_ns && clocks.still_ns < clocks.compare_ns);
    // Two calls are given up before the store counts as lost.
    assert!(2 * CALL_NS <= pool.lost_after_ns && pool.quiet_ns < pool.lost_after_ns);
    assert!(pool.apart_ns < pool.apart_in_vain_ns && pool.apart_in_vain_ns <= pool.wait_ns);
    assert!(pool.retry_ns < pool.retry_ns_max && pool.begin_ns < pool.begin_ns_max);
    assert!(pool.told_ns < pool.told_ns_max && pool.told_ns_max < pool.told_ns_longest);
    // A lease is renewed many times while it lasts, and its units last about as long as it does.
    assert!(10 * lease.renew_ns < LEASE_NS && lease.ahead_ns + lease.renew_ns <= LEASE_NS);
    assert!(lease.scarce_spare_ns < lease.spare_ns && lease.vain_ns < lease.vain_ns_max);
    // An answer at the last moment still passes a request.
    assert!(forward.back_ns < forward.ask_ns && forward.ask_ns < FORWARD_NS);
    assert!(
        forward.held_of_cell_max <= forward.held_of_peer_max && forward.held_of_peer_max <= forward.held_max
    );
    assert!(forward.asked_of_cell_max <= forward.asked_max && forward.far_ns < forward.far_ns_max);
};
