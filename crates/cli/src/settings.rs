//! How commands behave where no argument says it: their times, bounds and preferences, in one place.
//!
//! Public constants are contracts, and stand where they are used: the bounds of arguments, and what the
//! demonstration shows. Numbers of a protocol, and the layout of a picture or of a study, stand beside it.
//! The assertions at the end state how the settings relate.

use std::time::Duration;

/// The settings that every command runs with.
pub(crate) const SETTINGS: Settings = Settings {
    load: LoadSettings {
        keys_max: 1_000_000,
        seconds_max: 86_400,
        first_deadline: Duration::from_secs(5),
        message_bytes_max: 4 << 20,
        out_bytes_high: 256 << 10,
        out_bytes_max: 4 << 20,
        inbox_bytes: 256 << 10,
        connection_window: 32 << 20,
        stream_window: 8 << 20,
        overtaken_max: 1 << 20,
        tick: Duration::from_millis(100),
        polled_ns: 2_000_000,
        close_max: Duration::from_secs(1),
        digits: 3,
        longest_ns: 3_600_000_000_000,
    },
    screen: ScreenSettings { key_wait: Duration::from_millis(100), keys_max: 64 },
    watch: WatchSettings {
        silence_max: Duration::from_secs(2),
        retry: Duration::from_millis(200),
        stretch_ns: 1_000_000_000,
        reports_max: 64,
    },
    view: ViewSettings { columns_max: 512, regions_max: 64, limits_max: 200 },
    top: TopSettings {
        reports_every: Duration::from_millis(250),
        frames_every: Duration::from_millis(125),
        column: Duration::from_millis(500),
        snapshot: Duration::from_millis(1_100),
        first_answer_max: Duration::from_secs(3),
        addresses_max: 64,
    },
    commands: CommandSettings {
        answer_bytes_max: 64 << 20,
        poll_every: Duration::from_millis(200),
        line_bytes_max: 1_024,
        names_max: 20,
        cells_every: Duration::from_secs(1),
        cells_shown: 20,
    },
    clock: ClockSettings {
        drift_ppm_max: 100.0,
        wall_off_ns_max: 1_000_000,
        look: Duration::from_millis(20),
        tries: 200,
    },
    traffic: TrafficSettings {
        demand_percent: 150,
        budget_max: 5_000,
        hot_percent: 80,
        exports_asked: 4,
        message_interval: Duration::from_millis(20),
        deadline: Duration::from_secs(1),
        retry: Duration::from_millis(100),
    },
    streams: StreamSettings {
        callers: 12,
        begin_for: Duration::from_secs(8),
        again: Duration::from_millis(250),
        pay_max: Duration::from_secs(20),
        reports_max: 40,
    },
    stage: StageSettings {
        start_max: Duration::from_secs(30),
        log_bytes_shown: 2_000,
        look_every: Duration::from_millis(50),
        reports_every: Duration::from_millis(100),
        report_max: Duration::from_secs(3),
        last_report_max: Duration::from_secs(1),
        order_max: Duration::from_secs(5),
        clock_error_ns: 10_000_000,
        versions_max: 64,
        delay: Duration::from_millis(40),
        delay_step: Duration::from_millis(10),
        delay_max: Duration::from_millis(200),
    },
    story: StorySettings {
        budget_step: 100,
        budget_min: 100,
        budget_max: 5_000,
        heat_stays: Duration::from_secs(10),
        borrowed_percent: 20,
        news_after: Duration::from_millis(400),
        events_max: 200,
        good_bins: 3,
        good_percent: 95,
    },
    classes: ClassSettings {
        asked_max: 20_000,
        units_max: 1_000_000,
        own_percent: 15,
        periods: 6,
        alike: 20,
    },
};

/// All settings of the commands.
pub(crate) struct Settings {
    pub(crate) load: LoadSettings,
    pub(crate) screen: ScreenSettings,
    pub(crate) watch: WatchSettings,
    pub(crate) view: ViewSettings,
    pub(crate) top: TopSettings,
    pub(crate) commands: CommandSettings,
    pub(crate) clock: ClockSettings,
    pub(crate) traffic: TrafficSettings,
    pub(crate) streams: StreamSettings,
    pub(crate) stage: StageSettings,
    pub(crate) story: StorySettings,
    pub(crate) classes: ClassSettings,
}

/// The load that `acequia bench` makes.
pub(crate) struct LoadSettings {
    /// The most different keys of a run. Every key has its own messages in memory: some hundred megabytes at this
    /// number.
    pub(crate) keys_max: u64,
    /// The longest run, in seconds. Longer runs belong to a monitoring tool.
    pub(crate) seconds_max: u64,
    /// The deadline of the single question before a run. Larger: a slow node passes. Smaller: a wrong address is
    /// reported sooner.
    pub(crate) first_deadline: Duration,
    /// Larger messages are refused in both directions, as most gRPC servers do: bytes.
    pub(crate) message_bytes_max: usize,
    /// If more bytes than this wait to be written, no request is started, since it would only wait here. Below
    /// `out_bytes_max`.
    pub(crate) out_bytes_high: usize,
    /// If more bytes wait to be written, nothing is read. A server may make us owe it PING and SETTINGS
    /// acknowledgements, but not without end.
    pub(crate) out_bytes_max: usize,
    /// The most bytes that one read takes. Larger: fewer reads, and more memory for each connection.
    pub(crate) inbox_bytes: usize,
    /// What the server may send ahead on a connection, in bytes. This window and the next are generous, so that
    /// answers never wait for us. Above `stream_window`.
    pub(crate) connection_window: u32,
    /// What the server may send ahead on a stream, in bytes. Above `message_bytes_max`: a larger message would be
    /// cut short.
    pub(crate) stream_window: u32,
    /// How many streams may be opened after one that is still open. A request that is overtaken this often gets no
    /// answer any more, since the table of open requests must not grow for ever.
    pub(crate) overtaken_max: usize,
    /// How often an idle connection checks the clock. Larger: a run ends later than it should.
    pub(crate) tick: Duration,
    /// At a fixed pace, the last nanoseconds before a request are spent polling, because timers are as coarse as a
    /// millisecond. Larger: more processor time. Smaller: requests leave late.
    pub(crate) polled_ns: u64,
    /// How long closing a connection may take.
    pub(crate) close_max: Duration,
    /// Digits kept of a duration: a quantile is off by at most a thousandth. Larger: more memory for a histogram.
    pub(crate) digits: u8,
    /// The longest duration that is distinguished from longer ones, in nanoseconds.
    pub(crate) longest_ns: u64,
}

/// The keyboard of a live view.
pub(crate) struct ScreenSettings {
    /// How long the keyboard waits for a key before it checks whether keys are still wanted. Larger: the command
    /// ends later.
    pub(crate) key_wait: Duration,
    /// Keys that may wait: more than a person types between two frames.
    pub(crate) keys_max: usize,
}

/// Watching a node by its reports.
pub(crate) struct WatchSettings {
    /// How long after its interval a silent node counts as gone. Larger: a lost node is shown later. Smaller: a slow
    /// one seems lost.
    pub(crate) silence_max: Duration,
    /// How long to wait before a node that does not answer is asked again.
    pub(crate) retry: Duration,
    /// The stretch of time for rates, in nanoseconds. Larger: calmer numbers. Smaller: a cut shows at once.
    pub(crate) stretch_ns: u64,
    /// The most reports that are kept; reports older than the stretch are not needed.
    pub(crate) reports_max: usize,
}

/// How much a picture shows.
pub(crate) struct ViewSettings {
    /// Columns of history that are kept: as many as in the widest likely terminal.
    pub(crate) columns_max: usize,
    /// The most regions that are drawn; a cluster has a handful.
    pub(crate) regions_max: usize,
    /// The most limits that are listed: the busiest ones.
    pub(crate) limits_max: usize,
}

/// The view of a running cluster: `acequia top`.
pub(crate) struct TopSettings {
    /// How often nodes report. Larger: less work for nodes. At most `column`.
    pub(crate) reports_every: Duration,
    /// How often the screen is drawn.
    pub(crate) frames_every: Duration,
    /// The time that a column of the chart covers. Larger: the chart shows more history, less finely.
    pub(crate) column: Duration,
    /// How long a snapshot watches, so that it has rates to print: more than `watch.stretch_ns`.
    pub(crate) snapshot: Duration,
    /// How long a snapshot waits for the first node that answers.
    pub(crate) first_answer_max: Duration,
    /// Nodes that can be watched at once.
    pub(crate) addresses_max: usize,
}

/// Commands that ask a node, and print what it says.
pub(crate) struct CommandSettings {
    /// The largest answer, in bytes. Enough for ten thousand entries of an audit log, each with a thousand changes,
    /// and more than any status.
    pub(crate) answer_bytes_max: usize,
    /// The time between two looks at a version's progress. Neither a person nor a node notices the delay.
    pub(crate) poll_every: Duration,
    /// The longest line that is read as a person's answer to a question, in bytes.
    pub(crate) line_bytes_max: u64,
    /// How many limits are named when the requested one does not exist.
    pub(crate) names_max: usize,
    /// How often nodes are asked for their hottest cells.
    pub(crate) cells_every: Duration,
    /// How many cells of each kind are shown.
    pub(crate) cells_shown: usize,
}

/// The comparison of a node's clocks with the system's: `acequia clock`.
pub(crate) struct ClockSettings {
    /// The largest accepted error of steady time, in parts per million.
    pub(crate) drift_ppm_max: f64,
    /// The largest accepted error of the wall, in nanoseconds.
    pub(crate) wall_off_ns_max: u64,
    /// The longest time between a node's looks at its clocks.
    pub(crate) look: Duration,
    /// The number of pairs of readings, of which the closest counts. A pair says nothing if its thread was preempted
    /// in between. Larger: surer, and slower.
    pub(crate) tries: u32,
}

/// The callers of the demonstration.
pub(crate) struct TrafficSettings {
    /// The demand of all regions together, in percent of the budget. Above 100, so that units are scarce.
    pub(crate) demand_percent: u64,
    /// The largest budget that demand follows, in units a second, since this process has to send and read all of it.
    pub(crate) budget_max: u64,
    /// The percentage of the demand that goes to the hot region.
    pub(crate) hot_percent: u64,
    /// Exports that are asked for in each region, a second. All regions together ask for more in a minute than they
    /// may have.
    pub(crate) exports_asked: u64,
    /// The time between two messages to a region. It is short compared to a round trip between regions, so that
    /// demand is smooth.
    pub(crate) message_interval: Duration,
    /// How long an answer may take before the stream is given up. The nodes answer from memory.
    pub(crate) deadline: Duration,
    /// How long to wait before a region that does not answer is asked again.
    pub(crate) retry: Duration,
}

/// The streams of the demonstration.
pub(crate) struct StreamSettings {
    /// Callers, each with one stream at a time. Together they want more tokens than the limit gives.
    pub(crate) callers: u32,
    /// How long they begin streams, so that a person sees a debt rise and fall.
    pub(crate) begin_for: Duration,
    /// The wait of a caller that was denied, or not answered.
    pub(crate) again: Duration,
    /// How long they wait after their last streams until nothing is owed. A cut-off region pays with its own part of the
    /// rate alone.
    pub(crate) pay_max: Duration,
    /// How often a report is sent, if no node answers: as long as a killed node may take to start.
    pub(crate) reports_max: u32,
}

/// The nodes and links of the demonstration, and how their answers are judged.
pub(crate) struct StageSettings {
    /// How long all nodes together may take to be ready. On an idle machine they take a fraction of a second.
    pub(crate) start_max: Duration,
    /// Bytes shown from the end of a log if a node could not start.
    pub(crate) log_bytes_shown: usize,
    /// How often the nodes are checked while something is waited for.
    pub(crate) look_every: Duration,
    /// How often the nodes report.
    pub(crate) reports_every: Duration,
    /// How long an answer waits for the nodes' reports about its time. Then it is judged by the known numbers. Larger:
    /// more answers are kept in memory.
    pub(crate) report_max: Duration,
    /// How long the last answers wait for such reports. At most `report_max`: the demonstration ends so much later.
    pub(crate) last_report_max: Duration,
    /// How long the authority may take to answer an order.
    pub(crate) order_max: Duration,
    /// How far apart the walls of two processes on one machine may be, in nanoseconds, although they read the same
    /// clock.
    pub(crate) clock_error_ns: u64,
    /// Versions that are kept apart. If more are under way, the oldest two count as one.
    pub(crate) versions_max: usize,
    /// The delay of a link one way, at the start: a round trip takes 80 ms, as between Europe and the east of America.
    pub(crate) delay: Duration,
    /// The change of the delay for each key press.
    pub(crate) delay_step: Duration,
    /// The largest delay one way. A round trip of 400 ms is longer than between any two places on this planet.
    pub(crate) delay_max: Duration,
}

/// What the demonstration lets a person do, and what it tells.
pub(crate) struct StorySettings {
    /// The change of the budget for each key press, in units a second.
    pub(crate) budget_step: u64,
    /// The smallest budget. Thirds of a smaller one are too small to watch.
    pub(crate) budget_min: u64,
    /// The largest budget: at most `traffic.budget_max`, so that demand follows.
    pub(crate) budget_max: u64,
    /// How long a region stays hot, while nothing is broken.
    pub(crate) heat_stays: Duration,
    /// The percentage of the standing share from which on borrowing is told. Borrowing ends below half of this.
    pub(crate) borrowed_percent: u64,
    /// How long a change must last before it is told. Loans that move end and begin within a round trip.
    pub(crate) news_after: Duration,
    /// Events that are kept.
    pub(crate) events_max: usize,
    /// Bins in a row that must be good before the system counts as healed. Larger: surer, and later.
    pub(crate) good_bins: usize,
    /// The percentage of the usable units that must be used in good bins.
    pub(crate) good_percent: u64,
}

/// The study of classes of consumers: `acequia demo classes`.
pub(crate) struct ClassSettings {
    /// The largest demand, in units a second. With more, the study takes longer than a person waits.
    pub(crate) asked_max: u64,
    /// The largest rate, in units a second, and the largest bucket.
    pub(crate) units_max: u64,
    /// The percentage of the burst in each class's own bucket, in the way in which all classes share the rest.
    pub(crate) own_percent: u64,
    /// Periods that are counted, after one period that uses up the full buckets of the beginning. At least 2: charts
    /// show the last but one.
    pub(crate) periods: u64,
    /// How far shares may differ and still count as equal, in thousandths. Bursts begin inside a millisecond.
    pub(crate) alike: u64,
}

// Bytes on a connection of a bench.
const _: () = {
    let LoadSettings {
        out_bytes_high,
        out_bytes_max,
        stream_window,
        connection_window,
        message_bytes_max,
        ..
    } = SETTINGS.load;
    assert!(out_bytes_high < out_bytes_max && stream_window < connection_window);
    assert!(message_bytes_max < stream_window as usize);
};

// What is shown, and when.
const _: () = {
    let Settings { watch, top, .. } = SETTINGS;
    assert!(top.reports_every.as_nanos() <= top.column.as_nanos());
    assert!(top.snapshot.as_nanos() > watch.stretch_ns as u128);
};

// The demonstration.
const _: () = {
    let Settings { traffic, stage, story, classes, .. } = SETTINGS;
    assert!(traffic.demand_percent > 100 && traffic.hot_percent <= 100);
    assert!(story.budget_min < story.budget_max && story.budget_max <= traffic.budget_max);
    assert!(stage.delay.as_nanos() <= stage.delay_max.as_nanos());
    assert!(stage.last_report_max.as_nanos() <= stage.report_max.as_nanos());
    assert!(story.borrowed_percent <= 100 && story.good_percent <= 100 && classes.periods >= 2);
};
