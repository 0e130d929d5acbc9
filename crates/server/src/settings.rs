//! How the shell behaves where neither its config nor a format says it: its times, bounds and preferences, in
//! one place.
//!
//! What an operator may set is in [`Config`](crate::config::Config); the bounds and the defaults of its fields
//! are here. Bounds that callers rely on are public constants of their own: [`question`](crate::question) has
//! the longest value, [`charges`](crate::charges) the longest id, [`writer`](crate::writer) the longest wait
//! for the disk. Sizes that a format forces stand beside the format. The assertions at the end state how the
//! settings relate.

use std::time::Duration;

use crate::{question::VALUE_BYTES_MAX, regions::audit, writer::REPLY_WAIT_MAX};

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;
/// Nanoseconds of a second.
const S: u64 = 1_000_000_000;
/// Nanoseconds of a day.
const DAY: u64 = 86_400 * S;

/// The settings that every server runs with.
pub(crate) const SETTINGS: Settings = Settings {
    held: HeldSettings {
        small_bytes: 16 << 10,
        large_bytes_max: 3 * ((1 << 20) + 5),
        all_bytes_max: 64 << 20,
        left_bytes: 56 << 20,
        short_bytes: 1 << 10,
        warn_every: Duration::from_secs(1),
    },
    connections: ConnectionSettings {
        streams_max: 64,
        handshakes_max: 256,
        sweep: Duration::from_secs(1),
        first_call_grpc: Duration::from_secs(30),
        first_call_http: Duration::from_secs(10),
        idle_max: Duration::from_secs(300),
        grace: Duration::from_secs(300),
        idle_grace: Duration::from_secs(2),
        silent: Duration::from_secs(1),
        room_percent: 1,
        linger: Duration::from_secs(1),
        tls_send_bytes_max: 32 << 10,
    },
    sockets: SocketSettings {
        backlog: 1_024,
        handover_max: 1_024,
        accept_again: Duration::from_millis(100),
        keep_alive_quiet: Duration::from_secs(10),
        keep_alive_apart: Duration::from_secs(5),
        keep_alive_probes: 3,
        descriptors_own: 256,
        descriptors_of_worker: 4,
    },
    grpc: GrpcSettings {
        message_bytes_max: 1 << 20,
        read_max: Duration::from_secs(10),
        streams_max: 256,
        header_bytes_max: 16 << 10,
        send_bytes_max: 32 << 10,
        window_bytes: 128 << 10,
        ping_every: Duration::from_secs(20),
        ping_answer: Duration::from_secs(10),
        soonest: Duration::from_micros(10),
    },
    http: HttpSettings {
        body_bytes_max: 1 << 20,
        read_max: Duration::from_secs(10),
        header_bytes_max: 128 << 10,
        streams_max: 128,
        window_bytes: 64 << 10,
    },
    requests: RequestSettings {
        unmatched_max: 1_000,
        waiting_max: 256,
        ask_again: Duration::from_millis(10),
        spread_ns_max: 5 * S,
        spread_part: 16,
        shown_chars_max: 80,
        reservation: Duration::from_secs(60),
    },
    names: NameSettings {
        wait: Duration::from_millis(3),
        look: Duration::from_millis(1),
        patient: Duration::from_millis(200),
        claim_us: 5_000_000,
        keep_us: acequia_node::KEEP_NS / 1_000,
        collect: Duration::from_millis(250),
        calls_max: 128,
        owed_max: 4_096,
    },
    journal: JournalSettings {
        linger: Duration::from_millis(5),
        retry: Duration::from_millis(250),
        retry_max: Duration::from_secs(2),
    },
    rounds: RoundSettings { sweep: Duration::from_millis(20), watch: Duration::from_secs(1) },
    region: RegionSettings {
        look: Duration::from_millis(20),
        tell: Duration::from_secs(10),
        alone: Duration::from_secs(5),
        all_tell: Duration::from_secs(1),
        leave: Duration::from_secs(1),
        leave_look: Duration::from_millis(1),
    },
    driver: DriverSettings {
        turn: Duration::from_millis(5),
        tick_ns: 10 * MS,
        events_max: 256,
        frames_max: 1_024,
        quiet_ns: 60 * S,
        seldom_ns: 100 * MS,
    },
    orders: OrderSettings {
        grant_ns_min: 2 * S,
        about_bytes_max: 256,
        differences_ns: 60 * S,
        told_ahead_ns: S,
    },
    admin: AdminSettings {
        every_ms_min: 50,
        every_ms_default: 1_000,
        every_ms_max: 60_000,
        connections_max: 256,
        calls_max: 32,
        call_max: Duration::from_secs(10),
        watches_max: 64,
        cells_default: 10,
        cells_max: 64,
        audit_default: 100,
    },
    counts: CountSettings {
        sample: 64,
        half_life_ns: 60 * S,
        hot_cells_max: 16,
        hot_key_bytes_max: 256,
        hint_pairs_max: 200,
        stat_names_max: 1_000,
        stat_values_bytes_max: 256,
        domains_max: 100,
        unmatched_told_every: Duration::from_secs(60),
        unreported_told_max: 100,
        refused_warn_every: Duration::from_secs(1),
        proc_bytes_max: 1 << 20,
    },
    webhooks: WebhookSettings {
        letters_max: 1_024,
        letters_bytes_max: 4 << 20,
        text_bytes_max: 1_024,
        id_bytes_max: 128,
        tries_max: 8,
        age_max: Duration::from_secs(30 * 60),
        wait_first: Duration::from_secs(1),
        wait_factor: 4,
        wait_max: Duration::from_secs(5 * 60),
        rest_wait: Duration::from_secs(1),
        answer_bytes_max: 4_096,
        head_bytes_max: 16_384,
        why_chars_max: 300,
        idle: Duration::from_secs(30),
        logged_max: 64,
    },
    secrets: SecretSettings {
        token_bytes_min: 16,
        token_file_bytes_max: 4_096,
        key_bytes_min: 16,
        key_bytes_max: 1 << 16,
        webhook_file_bytes_max: 4_096,
    },
    reading: ReadingSettings {
        settles: Duration::from_secs(2),
        watched_bytes_max: 1 << 20,
        depth_max: 32,
        nodes_max: 4_000_000,
        parts_max: 20,
        keys_compared: 1_000,
        listed_max: 8,
        changes_told: 100,
    },
    counting: CountingSettings {
        over_lasts: Duration::from_secs(1),
        over_max: 65_536,
        kept_after_ns: 60 * S,
        hits_max: 1 << 40,
        batches: BatchSettings { calls_max: 4, cells_max: 128, waiting_max: 65_536 },
        told_each: 1_000,
        look_every: Duration::from_millis(10),
        start_max: Duration::from_secs(15),
    },
    xds: XdsSettings { connect_max: Duration::from_secs(10), ping_every: Duration::from_secs(360) },
    bounds: BoundSettings {
        workers_max: 1_024,
        connections_max: 1_000_000,
        max_age_min: Duration::from_secs(1),
        keep_ns_min: S,
        keep_ns_max: 7 * DAY,
        records_min: 16,
        records_max: 10_000_000,
        journal_bytes_max: 64 << 20,
        callers_max: 256,
        domains_max: 64,
        guard_percent_max: 90,
        window_clock_errors_min: 20,
        webhooks_max: 16,
        url_bytes_max: 2_048,
        patterns_max: 64,
        timeout_min: Duration::from_secs(1),
        timeout_max: Duration::from_secs(30),
    },
    defaults: DefaultSettings {
        memory: "256MiB",
        connections: 10_000,
        max_age: Duration::from_secs(3_600),
        drain: Duration::from_secs(10),
        guard_percent: 10,
        socket_mode: 0o660,
        timeout: Duration::from_secs(5),
    },
    clock: ClockSettings {
        alone_ns: MS,
        narrow_ns: 20_000,
        tries: 3,
        baseline_ns: S,
        rate_parts: 1_000,
        counter_step_ns: 100_000,
        rate_change_parts: 10,
        wall_step_ns: 3 * S,
        slew_parts: 16,
        notable_ns: MS,
    },
};

/// All settings of a server.
pub(crate) struct Settings {
    pub(crate) held: HeldSettings,
    pub(crate) connections: ConnectionSettings,
    pub(crate) sockets: SocketSettings,
    pub(crate) grpc: GrpcSettings,
    pub(crate) http: HttpSettings,
    pub(crate) requests: RequestSettings,
    pub(crate) names: NameSettings,
    pub(crate) journal: JournalSettings,
    pub(crate) rounds: RoundSettings,
    pub(crate) region: RegionSettings,
    pub(crate) driver: DriverSettings,
    pub(crate) orders: OrderSettings,
    pub(crate) admin: AdminSettings,
    pub(crate) counts: CountSettings,
    pub(crate) webhooks: WebhookSettings,
    pub(crate) secrets: SecretSettings,
    pub(crate) reading: ReadingSettings,
    pub(crate) counting: CountingSettings,
    pub(crate) xds: XdsSettings,
    pub(crate) bounds: BoundSettings,
    pub(crate) defaults: DefaultSettings,
    pub(crate) clock: ClockSettings,
}

/// Bytes that callers make the node hold: unfinished messages, and answers that are not read.
pub(crate) struct HeldSettings {
    /// A message up to this size, in bytes, is never refused because other messages are unfinished. Larger: one
    /// connection may hold more beyond `large_bytes_max`.
    pub(crate) small_bytes: usize,
    /// The bytes of larger messages that one connection may hold: three of the largest, each with its prefix. Larger:
    /// one caller sends more large messages at once. Smaller: a stranger takes less.
    pub(crate) large_bytes_max: usize,
    /// The bytes of unfinished messages that all connections together may hold, and the same amount again for
    /// answers that are not read.
    pub(crate) all_bytes_max: usize,
    /// When that is exceeded, connections are cut until this many bytes are left. Below `all_bytes_max`. Smaller:
    /// more callers lose their connection, and the next cut comes later.
    pub(crate) left_bytes: usize,
    /// An answer up to this size, in bytes, is not counted: its call takes about as much.
    pub(crate) short_bytes: usize,
    /// The time between two warnings that connections were cut for their bytes.
    pub(crate) warn_every: Duration,
}

/// The life of a connection: how many there are of something, and how long it may be silent or old.
pub(crate) struct ConnectionSettings {
    /// Streams at one time on a connection, together with calls that tonic answers. Each may have answers waiting
    /// for a slow reader. Fewer than `grpc.streams_max`, the calls of all kinds.
    pub(crate) streams_max: usize,
    /// Handshakes at one time on a port: each may hold 64 KiB of an unfinished message.
    pub(crate) handshakes_max: usize,
    /// How often connections are checked, and so how exact all these times are. hyper's pings see time pass in these
    /// steps, too.
    pub(crate) sweep: Duration,
    /// How long a new connection of gRPC may take to make its first call. Clients of gRPC connect before they have
    /// anything to ask. Larger: a stranger keeps a place for longer.
    pub(crate) first_call_grpc: Duration,
    /// How long a new connection of another port may take.
    pub(crate) first_call_http: Duration,
    /// How long a connection may be without a call, if none is under way. Larger: callers save a handshake
    /// after a quiet time. Smaller: places are free sooner. HTTP/1 connections end earlier: hyper waits for the
    /// next head no longer than for the first.
    pub(crate) idle_max: Duration,
    /// How long a connection that was told to end may go on with calls that have begun.
    pub(crate) grace: Duration,
    /// How long a connection without a call under way may take to end, once it was told to. Below `grace`.
    pub(crate) idle_grace: Duration,
    /// A connection that was silent for less is not asked to make room.
    pub(crate) silent: Duration,
    /// When a port is full, this percentage of its connections make room at once, and at least one does.
    pub(crate) room_percent: usize,
    /// How long the other side may take to close. Larger: less is lost over slow links. Smaller: a stopping node
    /// ends sooner.
    pub(crate) linger: Duration,
    /// Encrypted bytes that may wait on a connection for a slow reader.
    pub(crate) tls_send_bytes_max: usize,
}

/// Sockets, and connections on their way to a worker.
pub(crate) struct SocketSettings {
    /// The connections that the system accepts before the node does.
    pub(crate) backlog: i32,
    /// The most accepted connections that wait for their worker.
    pub(crate) handover_max: usize,
    /// The pause after a connection could not be accepted: most likely there are no descriptors left.
    pub(crate) accept_again: Duration,
    /// A peer that is silent for this long is probed by the system. A peer that answers no probe is gone after 25 s
    /// in all.
    pub(crate) keep_alive_quiet: Duration,
    /// The time between two such probes.
    pub(crate) keep_alive_apart: Duration,
    /// How many probes a peer may leave unanswered.
    pub(crate) keep_alive_probes: u32,
    /// File descriptors for everything except callers: journal, peers, Redis, threads. Larger: each port takes fewer
    /// connections where descriptors are scarce. Smaller: the journal or a peer may get none.
    pub(crate) descriptors_own: usize,
    /// File descriptors for each worker's runtime, beside `descriptors_own`.
    pub(crate) descriptors_of_worker: usize,
}

/// Calls over gRPC.
pub(crate) struct GrpcSettings {
    /// The largest message, in bytes: a request with several values of the greatest length.
    pub(crate) message_bytes_max: usize,
    /// How long the rest of a message may take once it has begun. Larger: a slow caller holds its bytes for longer.
    pub(crate) read_max: Duration,
    /// Calls at one time on a connection. Larger: one proxy has more under way. Smaller: one caller makes the node
    /// hold less. A proxy that needs more opens another connection.
    pub(crate) streams_max: u32,
    /// Bytes of headers in a request.
    pub(crate) header_bytes_max: u32,
    /// Bytes of a response that may wait in a stream for a slow reader.
    pub(crate) send_bytes_max: usize,
    /// Bytes that a caller may send ahead of what is read, for all calls of a connection together and for each
    /// call.
    pub(crate) window_bytes: u32,
    /// The silence of a caller after which the node pings it.
    pub(crate) ping_every: Duration,
    /// How long the caller may take to answer a ping. Well above `connections.sweep`, the steps of that timer.
    pub(crate) ping_answer: Duration,
    /// The shortest time in which any call is answered: a caller with a shorter deadline has given up.
    pub(crate) soonest: Duration,
}

/// Requests over HTTP.
pub(crate) struct HttpSettings {
    /// Bytes of a body.
    pub(crate) body_bytes_max: usize,
    /// How long a request may take to arrive. HTTP/2 pings a silent caller as often, and waits as long for the answer.
    pub(crate) read_max: Duration,
    /// Bytes of a request's head: two of the longest values fit, so that a proxy which forwards all headers is
    /// answered.
    pub(crate) header_bytes_max: u32,
    /// Requests at one time on a connection of HTTP/2.
    pub(crate) streams_max: u32,
    /// Bytes that a caller of HTTP/2 may send ahead of what is read, and that may wait for it.
    pub(crate) window_bytes: u32,
}

/// Requests of every protocol: how long they wait, and what they are told.
pub(crate) struct RequestSettings {
    /// The most limits for which a peek says why they do not match: an answer has a bound.
    pub(crate) unmatched_max: usize,
    /// Requests that wait at one time. Beyond them a denial counts at once. Larger: a flood of one limit takes more
    /// of the node's memory, and more streams of a proxy's connection.
    pub(crate) waiting_max: usize,
    /// How often a longer wait with a forward is interrupted to ask again: by now there may be units, or room for
    /// a forward.
    pub(crate) ask_again: Duration,
    /// A caller that waits for the edge of a window is told to come back up to this much later: all keys of a
    /// limit wait for the same edge. Smaller: more callers come back together.
    pub(crate) spread_ns_max: u64,
    /// The delay is at most one part in this many of the window, too.
    pub(crate) spread_part: u64,
    /// How many characters of a text that is no charge id are shown to its sender.
    pub(crate) shown_chars_max: usize,
    /// How long a reservation of Kuadrant's protocol lasts whose caller names no time: what limitador takes. Larger:
    /// units that nobody reports are missed longer. Smaller: more costs come late, and streams meanwhile pass.
    pub(crate) reservation: Duration,
}

/// Names of charges that the nodes of a region share.
pub(crate) struct NameSettings {
    /// How long a decision waits for the store's answer about a name, and for another node that has claimed the
    /// name. The other node waits no longer for the store either, and mostly began before. It may wait for other
    /// regions, or the store may be too far away for a second look: then this node decides alone.
    pub(crate) wait: Duration,
    /// How long after another node's claim this node looks for the answer again: no timer is finer. Below `wait`.
    pub(crate) look: Duration,
    /// How long a settlement waits for the store: longer than a decision.
    pub(crate) patient: Duration,
    /// How long a claim lasts without an answer, in microseconds. After that, the node that claimed the name is
    /// gone. Well above `patient`, the time in which an answer is kept.
    pub(crate) claim_us: u64,
    /// How long the store knows that a name is ended, and how long a letter waits, in microseconds. This is the
    /// default time for which charges are remembered.
    pub(crate) keep_us: u64,
    /// How often letters are collected.
    pub(crate) collect: Duration,
    /// Calls about names at one time: half of the calls that may be in flight to one shard. Larger: leases find less
    /// room.
    pub(crate) calls_max: usize,
    /// The most settlements that are tried again.
    pub(crate) owed_max: usize,
}

/// The writer of the journal.
pub(crate) struct JournalSettings {
    /// How long rows are queued if no task waits for them: those that are reserved ahead of use. Larger: fewer and
    /// larger commits.
    pub(crate) linger: Duration,
    /// The first pause until a failed commit is tried again. Each try opens the journal anew, which reads all of it.
    pub(crate) retry: Duration,
    /// The pause doubles up to this time.
    pub(crate) retry_max: Duration,
}

/// The node's own periodic work.
pub(crate) struct RoundSettings {
    /// The time between two sweeps of a shard. All shards are swept in about five seconds.
    pub(crate) sweep: Duration,
    /// How often the node checks for news to log, and for changes of the config file. Above `sweep`.
    pub(crate) watch: Duration,
}

/// Mates and the store of their region, at a start and at a stop.
pub(crate) struct RegionSettings {
    /// How often a starting node looks whether all mates have said the same, and whether the clocks agree.
    pub(crate) look: Duration,
    /// How often the node logs that they have not.
    pub(crate) tell: Duration,
    /// How long a starting node waits for any server of the store to tell the time. Larger: a node starts later
    /// while the store is down.
    pub(crate) alone: Duration,
    /// Once one server has told the time, how long the node waits for the others. Below `alone`.
    pub(crate) all_tell: Duration,
    /// How long a stopping node gives back what it holds, at most. What is not given back by then stays unused until
    /// it ends.
    pub(crate) leave: Duration,
    /// How often a stopping node looks whether all is given back.
    pub(crate) leave_look: Duration,
}

/// The loop that shares limits with other regions.
pub(crate) struct DriverSettings {
    /// The time between two turns of the loop, if nothing else wakes it.
    pub(crate) turn: Duration,
    /// The time between two ticks of the node, if nothing calls for one. At least `turn`, since ticks are made in
    /// turns.
    pub(crate) tick_ns: u64,
    /// The most events in one turn. Larger: frames to send wait longer in a flood.
    pub(crate) events_max: usize,
    /// The most frames that are sent in one turn.
    pub(crate) frames_max: usize,
    /// The time between two log lines about one kind of fault.
    pub(crate) quiet_ns: u64,
    /// How often the loop tries to make a first catalogue, and to write a schedule that could not be written. Above
    /// `tick_ns`.
    pub(crate) seldom_ns: u64,
}

/// Orders of limits, and how far they are in force.
pub(crate) struct OrderSettings {
    /// How long a grant should last at least, so that distant regions get a part of it.
    pub(crate) grant_ns_min: u64,
    /// The longest reason and name in an override, in bytes: every region keeps them, in a catalogue of a
    /// mebibyte.
    pub(crate) about_bytes_max: usize,
    /// Differences between the file and the catalogue are counted again after this time: overrides end by
    /// themselves.
    pub(crate) differences_ns: u64,
    /// Changes of shares spare windows that begin while the change is acknowledged. Such a delay is shorter than
    /// this time, and is not shown.
    pub(crate) told_ahead_ns: u64,
}

/// The port for operators.
pub(crate) struct AdminSettings {
    /// The shortest time between two answers of a watch, in milliseconds.
    pub(crate) every_ms_min: u32,
    /// The time if the caller does not say.
    pub(crate) every_ms_default: u32,
    /// The longest such time.
    pub(crate) every_ms_max: u32,
    /// Connections at one time.
    pub(crate) connections_max: usize,
    /// Calls at one time on a connection.
    pub(crate) calls_max: u32,
    /// How long one call may take.
    pub(crate) call_max: Duration,
    /// Watches at one time: each looks at the node as often as its caller asked.
    pub(crate) watches_max: usize,
    /// Cells of each kind if the caller does not say.
    pub(crate) cells_default: u32,
    /// Cells of each kind, at most.
    pub(crate) cells_max: u32,
    /// Entries of the audit log if the caller does not say.
    pub(crate) audit_default: u32,
}

/// What the server counts about its callers, its cells and itself.
pub(crate) struct CountSettings {
    /// One decision in this many is timed and sampled for hot cells. Smaller: more exact counts and slower
    /// decisions.
    pub(crate) sample: u64,
    /// Counts of hot cells are halved each time this passes, so that they show who asks now.
    pub(crate) half_life_ns: u64,
    /// The most hot cells that are followed. A miss looks at all of them, so more cost time; fewer find only the
    /// worst.
    pub(crate) hot_cells_max: usize,
    /// The most bytes of a hot cell's values that are kept, as they are written: a key can be 64 KiB long.
    pub(crate) hot_key_bytes_max: usize,
    /// The most pairs of a limit and a reason whose waits are counted by name. Further limits are counted together.
    /// Larger: more series in the metrics.
    pub(crate) hint_pairs_max: usize,
    /// The most names of limits with values that hits are counted by, for all limits together.
    pub(crate) stat_names_max: usize,
    /// The most bytes of the values in such a name. Hits with longer ones count for the limit.
    pub(crate) stat_values_bytes_max: usize,
    /// Domains whose unmatched requests are counted by name; all others are counted together.
    pub(crate) domains_max: usize,
    /// The time between two lines in the log about requests that no limit matched.
    pub(crate) unmatched_told_every: Duration,
    /// The most lines in the log about limits whose holds nobody reports, one for each limit.
    pub(crate) unreported_told_max: usize,
    /// The time between two warnings of a port about callers that it turned away for one reason.
    pub(crate) refused_warn_every: Duration,
    /// How much of a file in `/proc` is read, in bytes. Most of `/proc/stat` are counts of interrupts, and the time of
    /// the boot comes after them.
    pub(crate) proc_bytes_max: u64,
}

/// Events for webhooks, and how they are sent.
pub(crate) struct WebhookSettings {
    /// The most events that wait for a hook. More are a flood, and the latest events say most about it.
    pub(crate) letters_max: usize,
    /// The most bytes of all these events: a thousand events with long values fit.
    pub(crate) letters_bytes_max: usize,
    /// The most bytes of a key or a value in an event. Callers choose values; a longer text is cut there and ends
    /// with `…`.
    pub(crate) text_bytes_max: usize,
    /// The longest id of an event, in bytes.
    pub(crate) id_bytes_max: usize,
    /// How often an event is sent at most, including the first time.
    pub(crate) tries_max: u32,
    /// How long after its offer an event is still sent: a later warning is of no use. All tries fit into this time.
    pub(crate) age_max: Duration,
    /// The longest wait before the first retry. Eight tries take some eight minutes, which is a receiver's
    /// deployment.
    pub(crate) wait_first: Duration,
    /// The longest wait is this many times as long before each further retry.
    pub(crate) wait_factor: u32,
    /// The longest wait of all, even if a hook asks for more.
    pub(crate) wait_max: Duration,
    /// How long the courier waits for the rest of an answer, once the head has said all that counts.
    pub(crate) rest_wait: Duration,
    /// The most bytes of an answer that are read. A longer answer costs the connection.
    pub(crate) answer_bytes_max: usize,
    /// The most bytes of an answer's head.
    pub(crate) head_bytes_max: usize,
    /// The most characters of a fault that are reported: a certificate may name many hosts.
    pub(crate) why_chars_max: usize,
    /// How long an unused connection stays open.
    pub(crate) idle: Duration,
    /// The most lines in the log for the events that are delivered at once: in a flood, the other events are only
    /// counted.
    pub(crate) logged_max: usize,
}

/// Files of secrets.
pub(crate) struct SecretSettings {
    /// The shortest token of a caller, in bytes.
    pub(crate) token_bytes_min: usize,
    /// The longest file of a token, in bytes.
    pub(crate) token_file_bytes_max: u64,
    /// The shortest secret for the names of cells, in bytes.
    pub(crate) key_bytes_min: usize,
    /// The longest such secret, in bytes.
    pub(crate) key_bytes_max: usize,
    /// The longest file of a webhook's secret, in bytes. A longer file is not a key.
    pub(crate) webhook_file_bytes_max: u64,
}

/// How the config file is read, and the files that it names.
pub(crate) struct ReadingSettings {
    /// Within this time a file may be written twice with one time of change. Larger: a change is seen later.
    pub(crate) settles: Duration,
    /// The most bytes that are read of a file of certificates or tokens, to see whether it has changed.
    pub(crate) watched_bytes_max: u64,
    /// The deepest nesting that is followed: no config has nearly as much.
    pub(crate) depth_max: usize,
    /// The most keys, values and lists in a config: forty for each of a hundred thousand limits. Each of them
    /// takes some hundred bytes while the file is read.
    pub(crate) nodes_max: usize,
    /// The most parts of a file that are reported as unreadable at once: each of them costs one more reading of
    /// the file.
    pub(crate) parts_max: usize,
    /// The most keys that a key is compared with.
    pub(crate) keys_compared: usize,
    /// The most names that a fault lists.
    pub(crate) listed_max: usize,
    /// The most limits that the log names when a new config changes them.
    pub(crate) changes_told: usize,
}

/// Counts in a Redis.
pub(crate) struct CountingSettings {
    /// How long it is remembered that a cell is over its limit. Larger: fewer calls. Smaller: hits that another node
    /// gives back are noticed sooner.
    pub(crate) over_lasts: Duration,
    /// How many cells that are over their limit are remembered.
    pub(crate) over_max: usize,
    /// How long a count is kept after its window has ended, in nanoseconds, since nodes' clocks differ.
    pub(crate) kept_after_ns: u64,
    /// The most hits that are counted at once, so that a count never overflows.
    pub(crate) hits_max: u64,
    /// How requests share calls.
    pub(crate) batches: BatchSettings,
    /// One of so many calls without an answer is told.
    pub(crate) told_each: u64,
    /// The time between two looks at a start whether the Redis answers.
    pub(crate) look_every: Duration,
    /// How long a start waits for the Redis.
    pub(crate) start_max: Duration,
}

/// How requests share the calls that count them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchSettings {
    /// Calls of a group that are under way. Larger: hits wait for less, and more calls are made.
    pub(crate) calls_max: usize,
    /// Cells of a call, and those of one more request. Larger: fewer calls, each of which keeps the Redis for longer.
    pub(crate) cells_max: usize,
    /// Requests that wait for a call, and as many that wait to be taken up. Further ones are answered as if the Redis
    /// had not answered.
    pub(crate) waiting_max: usize,
}

/// The connection to a management server.
pub(crate) struct XdsSettings {
    /// How long a connection may take to open, and a ping to be answered. Larger: a server that is gone is noticed
    /// later.
    pub(crate) connect_max: Duration,
    /// The time between two pings. Servers of grpc-go end a connection that pings more often than every 5 min.
    pub(crate) ping_every: Duration,
}

/// What a field of the config may say. `deploy/config.md` tells operators.
pub(crate) struct BoundSettings {
    /// The most workers.
    pub(crate) workers_max: usize,
    /// The most connections of a port.
    pub(crate) connections_max: usize,
    /// The shortest time that connections last: each of them costs a handshake. Whole seconds, as its message says.
    pub(crate) max_age_min: Duration,
    /// The shortest time for which charges may be remembered: long enough to try again.
    pub(crate) keep_ns_min: u64,
    /// The longest such time: not for ever.
    pub(crate) keep_ns_max: u64,
    /// The fewest charges that are remembered.
    pub(crate) records_min: usize,
    /// The most such charges: a few hundred bytes each, up to some gigabytes.
    pub(crate) records_max: usize,
    /// The journal's part of a node's memory, at most, in bytes. More does not help the journal.
    pub(crate) journal_bytes_max: usize,
    /// The most callers that a port names: each call with a token is compared with all of them.
    pub(crate) callers_max: usize,
    /// The most domains that one caller may name.
    pub(crate) domains_max: usize,
    /// The largest part that nodes keep out of the pools: guard shares do not follow demand.
    pub(crate) guard_percent_max: u8,
    /// How many times the clock error a shared window lasts at least. Around each edge, a region that is late and
    /// one that is early by the error may disagree about the window. The time of doubt must be a small part of
    /// the window.
    pub(crate) window_clock_errors_min: u64,
    /// The most webhooks of a node: each takes memory for its queue, and has to be served. More receivers need a
    /// relay.
    pub(crate) webhooks_max: usize,
    /// The longest URL of a webhook, in bytes, that every receiver takes (RFC 9110, section 4.1, asks for 8,000;
    /// alerts need less).
    pub(crate) url_bytes_max: usize,
    /// The most patterns of limits for one webhook.
    pub(crate) patterns_max: usize,
    /// The shortest time that a try of a webhook may take. Smaller: a far receiver is never reached.
    pub(crate) timeout_min: Duration,
    /// The longest such time. Larger: a receiver that hangs keeps its other events waiting.
    pub(crate) timeout_max: Duration,
}

/// What holds where the config does not say. `deploy/config.md` tells operators.
pub(crate) struct DefaultSettings {
    /// Memory for cells, as the file would write it: some four million plain cells.
    pub(crate) memory: &'static str,
    /// Connections of a port.
    pub(crate) connections: usize,
    /// How long connections last.
    pub(crate) max_age: Duration,
    /// How long a stopping node drains.
    pub(crate) drain: Duration,
    /// The part that nodes keep out of the pools.
    pub(crate) guard_percent: u8,
    /// Who may connect to a socket in the file system: its owner and its group.
    pub(crate) socket_mode: u32,
    /// How long a try of a webhook may take.
    pub(crate) timeout: Duration,
}

/// How the clocks are read and held to the system's.
pub(crate) struct ClockSettings {
    /// How long the counter is read alone. Larger: fewer looks at the system's clock, and a larger error.
    pub(crate) alone_ns: u64,
    /// A look that took longer is useless, since the thread was preempted in it: the look is tried again.
    pub(crate) narrow_ns: u64,
    /// How often one look is tried.
    pub(crate) tries: usize,
    /// The rate of the counter is measured over at least this time, and at most over twice this time. Only at the
    /// start it is less.
    pub(crate) baseline_ns: u64,
    /// The counter is used as soon as its rate is known to one part in this many: then it is off by a microsecond
    /// from look to look.
    pub(crate) rate_parts: u64,
    /// A counter is unstable if it is off by more than this, plus one part in `rate_change_parts` of the time between
    /// two looks.
    pub(crate) counter_step_ns: u64,
    /// A tenth, because the system's own clock may change its rate by almost that much while it is slewed.
    pub(crate) rate_change_parts: u64,
    /// A wall that is ahead by more goes back at once. A smaller lead is slewed away.
    pub(crate) wall_step_ns: u64,
    /// A slewed wall loses one part in this many: 6.25 % of the time that passes. Larger: a lead lasts longer.
    pub(crate) slew_parts: u64,
    /// A smaller difference of the wall is noise, and is not reported.
    pub(crate) notable_ns: u64,
}

/// Whether one time is shorter than another.
const fn is_below(shorter: Duration, longer: Duration) -> bool {
    shorter.as_nanos() < longer.as_nanos()
}

// Bytes and connections.
const _: () = {
    let Settings { held, connections, sockets, grpc, http, requests, .. } = SETTINGS;
    assert!(held.short_bytes < held.small_bytes && held.small_bytes < held.large_bytes_max);
    assert!(held.large_bytes_max < held.left_bytes && held.left_bytes < held.all_bytes_max);
    // A connection may send a message of the largest size, with the five bytes in front of it.
    assert!(
        grpc.message_bytes_max + 5 <= held.large_bytes_max && http.body_bytes_max <= held.large_bytes_max
    );
    // The longest value is refused with its own reason, not with that of its message or its head.
    assert!(VALUE_BYTES_MAX < grpc.message_bytes_max && VALUE_BYTES_MAX < http.body_bytes_max);
    assert!(2 * VALUE_BYTES_MAX <= http.header_bytes_max as usize);
    // No time is shorter than the step in which it is measured.
    assert!(
        !is_below(connections.silent, connections.sweep) && is_below(connections.sweep, grpc.ping_answer)
    );
    assert!(!is_below(connections.idle_grace, connections.sweep));
    // A place is kept for longer after a call than before the first one.
    assert!(is_below(connections.first_call_grpc, connections.idle_max));
    assert!(is_below(connections.first_call_http, connections.idle_max));
    assert!(is_below(connections.silent, connections.idle_max));
    // A call that has begun is read to its end before its connection is cut.
    assert!(
        is_below(connections.idle_grace, connections.grace) && is_below(grpc.read_max, connections.grace)
    );
    assert!(connections.streams_max < grpc.streams_max as usize && connections.room_percent <= 100);
    assert!(sockets.backlog > 0 && sockets.handover_max > 0);
    assert!(requests.spread_part > 0);
};

// The disk, the mates and other regions.
const _: () = {
    let Settings { names, journal, rounds, region, driver, orders, admin, .. } = SETTINGS;
    // A second look fits into a decision's wait, and a decision waits less than a settlement.
    assert!(is_below(names.look, names.wait) && is_below(names.wait, names.patient));
    // A claim outlives the call that keeps its answer.
    assert!(2 * names.patient.as_micros() < names.claim_us as u128 && names.claim_us < names.keep_us);
    assert!(is_below(journal.linger, journal.retry) && is_below(journal.retry, journal.retry_max));
    // Lingering rows are written before a reply that needs them is given up.
    assert!(is_below(journal.linger, REPLY_WAIT_MAX));
    assert!(is_below(rounds.sweep, rounds.watch));
    assert!(is_below(region.look, region.all_tell) && is_below(region.all_tell, region.alone));
    assert!(is_below(region.look, region.tell) && is_below(region.leave_look, region.leave));
    // Ticks and seldom work are done in turns.
    assert!(driver.turn.as_nanos() <= driver.tick_ns as u128);
    assert!(driver.tick_ns < driver.seldom_ns && driver.seldom_ns < driver.quiet_ns);
    // The audit log shows all of an override's reason.
    assert!(orders.about_bytes_max < audit::TEXT_BYTES_MAX);
    assert!(admin.every_ms_min <= admin.every_ms_default && admin.every_ms_default <= admin.every_ms_max);
    assert!(admin.cells_default <= admin.cells_max && admin.audit_default as usize <= audit::ENTRIES_MAX);
};

// Events for webhooks.
const _: () = {
    let Settings { webhooks, bounds, .. } = SETTINGS;
    assert!(webhooks.text_bytes_max < webhooks.letters_bytes_max);
    assert!(
        is_below(webhooks.wait_first, webhooks.wait_max) && is_below(webhooks.wait_max, webhooks.age_max)
    );
    assert!(!is_below(bounds.timeout_min, webhooks.rest_wait));
    // The longest waits and the slowest tries together fit into the time for which an event is sent.
    let (mut all_s, mut wait_s, mut tries) = (0, webhooks.wait_first.as_secs(), 1);
    while tries < webhooks.tries_max {
        all_s += wait_s + bounds.timeout_max.as_secs();
        wait_s *= webhooks.wait_factor as u64;
        if wait_s > webhooks.wait_max.as_secs() {
            wait_s = webhooks.wait_max.as_secs();
        }
        tries += 1;
    }
    assert!(all_s + bounds.timeout_max.as_secs() < webhooks.age_max.as_secs());
};

// The config, and the files that it names.
const _: () = {
    let Settings { secrets, reading, bounds, defaults, .. } = SETTINGS;
    // Messages to operators name these numbers.
    assert!(secrets.token_bytes_min == 16 && secrets.token_file_bytes_max == 4_096);
    assert!(
        bounds.keep_ns_min == S && bounds.keep_ns_max == 7 * DAY && bounds.max_age_min.subsec_nanos() == 0
    );
    assert!(secrets.key_bytes_min < secrets.key_bytes_max);
    // A change anywhere in a secret is seen.
    assert!(secrets.token_file_bytes_max < reading.watched_bytes_max);
    assert!(secrets.webhook_file_bytes_max < reading.watched_bytes_max);
    // A default is a value that the file may say.
    assert!(bounds.keep_ns_min <= acequia_node::KEEP_NS && acequia_node::KEEP_NS <= bounds.keep_ns_max);
    assert!(bounds.records_min <= acequia_node::RECORDS && acequia_node::RECORDS <= bounds.records_max);
    assert!(
        defaults.connections <= bounds.connections_max && defaults.guard_percent <= bounds.guard_percent_max
    );
    assert!(!is_below(defaults.max_age, bounds.max_age_min));
    assert!(
        !is_below(defaults.timeout, bounds.timeout_min) && !is_below(bounds.timeout_max, defaults.timeout)
    );
};

// The clocks.
const _: () = {
    let ClockSettings {
        alone_ns, narrow_ns, tries, baseline_ns, slew_parts, notable_ns, wall_step_ns, ..
    } = SETTINGS.clock;
    // A look is exact enough for the time in which the counter is read alone.
    assert!(tries > 0 && 2 * narrow_ns < alone_ns && alone_ns < baseline_ns);
    // A slewed wall goes on, and a lead that is slewed away may be told.
    assert!(slew_parts > 1 && notable_ns < wall_step_ns);
};
