//! Messages on long-lived bidirectional streams of one connection. On a stream, the n-th answer belongs to
//! the n-th message.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::{
    Decisions, Load, Payloads,
    driver::{Exchange, Waiting},
    link::{Event, Link},
    messages::Splitter,
    order::Picker,
    pace::{Pacer, Plan},
    report::{Fault, Score},
};
use crate::settings::SETTINGS;

/// The streams of one connection.
#[derive(Debug)]
pub(super) struct Streaming {
    in_flight_max: usize,
    decisions: fn(&[u8]) -> Option<Decisions>,
    payloads: Arc<Payloads>,
    picker: Picker,
    pacer: Pacer,
    score: Score,
    streams: Vec<Stream>,
    /// The open streams: stream id to index.
    open: BTreeMap<u32, usize>,
    /// The stream to fill first, so that all streams get their share of a narrow window.
    turn: usize,
    /// Messages in flight on all streams.
    unanswered: usize,
    /// Whether a message would be sent if the server allowed it.
    starved: bool,
}

#[derive(Debug, Default)]
struct Stream {
    /// The stream id; `None`: the stream is opened with the next message.
    id: Option<u32>,
    /// Bytes that we may still send.
    window: i64,
    /// Bytes that the server has sent since our last grant.
    received: u32,
    /// The index of a message that waits for a window, and how many of its bytes are sent.
    sending: Option<(usize, usize)>,
    /// When the messages in flight started.
    starts_ns: VecDeque<u64>,
    answers: Splitter,
}

impl Streaming {
    pub(super) fn new(
        load: &Load,
        streams: usize,
        in_flight_max: usize,
        decisions: fn(&[u8]) -> Option<Decisions>,
        plan: Arc<Plan>,
        connection: usize,
    ) -> Self {
        Self {
            in_flight_max,
            decisions,
            payloads: load.payloads.clone(),
            picker: Picker::new(load, connection),
            pacer: Pacer::new(plan, connection),
            score: Score::default(),
            streams: (0..streams).map(|_| Stream::default()).collect(),
            open: BTreeMap::new(),
            turn: 0,
            unanswered: 0,
            starved: false,
        }
    }

    /// Sends what one stream may send.
    fn fill_stream(&mut self, link: &mut Link, index: usize, now_ns: u64) {
        let stream = &mut self.streams[index];
        while link.out.len() < SETTINGS.load.out_bytes_high {
            if let (Some((payload, sent)), Some(id)) = (stream.sending, stream.id) {
                let rest = &self.payloads.framed(payload)[sent..];
                let more = link.send(id, &mut stream.window, rest, false);
                if more < rest.len() {
                    stream.sending = Some((payload, sent + more));
                    return;
                }
                stream.sending = None;
            }
            if stream.starts_ns.len() >= self.in_flight_max || link.is_closing() {
                return;
            }
            let has_window =
                if stream.id.is_some() { stream.window > 0 } else { link.can_open(self.open.len()) };
            if !has_window || !link.has_window() {
                self.starved = !self.pacer.is_over(now_ns);
                return;
            }
            let Some(start_ns) = self.pacer.start(now_ns) else { return };
            if stream.id.is_none() {
                let id = link.open();
                stream.id = Some(id);
                stream.window = link.stream_window();
                self.open.insert(id, index);
            }
            stream.sending = Some((self.picker.next(), 0));
            stream.starts_ns.push_back(start_ns);
            self.unanswered += 1;
        }
    }

    fn data(&mut self, link: &mut Link, id: u32, bytes: &[u8], flow: u32, end: bool, now_ns: u64) {
        let Some(&index) = self.open.get(&id) else { return };
        let Self { streams, score, pacer, unanswered, decisions, .. } = self;
        let Stream { answers, starts_ns, received, .. } = &mut streams[index];
        let read = answers.feed(bytes, |message| {
            let start_ns = starts_ns.pop_front();
            *unanswered -= usize::from(start_ns.is_some());
            match (start_ns, decisions(message)) {
                (Some(start_ns), Some(decisions)) => score.answer(pacer.plan(), start_ns, now_ns, decisions),
                (start_ns, _) => {
                    score.fault(pacer.plan(), start_ns.unwrap_or(now_ns), now_ns, Fault::Malformed);
                }
            }
        });
        if read.is_err() {
            link.cancel(id);
            self.fail(id, now_ns, Fault::Malformed);
        } else if end {
            self.end(link, id, now_ns);
        } else {
            *received += flow;
            link.replenish(id, received);
        }
    }

    /// The server has ended a stream that we have not ended.
    fn end(&mut self, link: &mut Link, id: u32, now_ns: u64) {
        if self.open.contains_key(&id) {
            link.cancel(id);
            self.fail(id, now_ns, Fault::NoMessage);
        }
    }

    /// All messages in flight on a stream get no answer any more.
    fn fail(&mut self, id: u32, now_ns: u64, fault: Fault) {
        let Some(index) = self.open.remove(&id) else { return };
        let stream = std::mem::take(&mut self.streams[index]);
        self.unanswered -= stream.starts_ns.len();
        for start_ns in stream.starts_ns {
            self.score.fault(self.pacer.plan(), start_ns, now_ns, fault);
        }
    }
}

impl Exchange for Streaming {
    fn connected(&mut self, _link: &Link) {
        self.open.clear();
        self.streams.iter_mut().for_each(|stream| *stream = Stream::default());
    }

    fn fill(&mut self, link: &mut Link, now_ns: u64) {
        self.starved = false;
        let count = self.streams.len();
        for index in 0..count {
            self.fill_stream(link, (self.turn + index) % count, now_ns);
        }
        self.turn = (self.turn + 1) % count;
    }

    fn handle(&mut self, link: &mut Link, event: Event<'_>, now_ns: u64) {
        match event {
            Event::Data { stream, bytes, flow, end } => self.data(link, stream, bytes, flow, end, now_ns),
            Event::Headers { stream, end: true } => self.end(link, stream, now_ns),
            Event::Headers { .. } | Event::Connection => {}
            Event::Reset { stream } => self.fail(stream, now_ns, Fault::Reset),
            Event::StreamWindow { stream, increment } => {
                if let Some(&index) = self.open.get(&stream) {
                    self.streams[index].window += increment;
                }
            }
            Event::StreamWindows { delta } => {
                self.open.values().for_each(|&index| self.streams[index].window += delta);
            }
            Event::GoingAway { last } => self.lose(last, now_ns),
        }
    }

    fn lose(&mut self, after: u32, now_ns: u64) {
        let lost: Vec<u32> = self.open.range(after + 1..).map(|(id, _)| *id).collect();
        lost.into_iter().for_each(|id| self.fail(id, now_ns, Fault::Refused));
    }

    fn close(&mut self, link: &mut Link) {
        self.open.keys().for_each(|&id| link.finish(id));
    }

    fn waiting(&self) -> Waiting {
        Waiting { unanswered: self.unanswered, starved: self.starved }
    }

    fn pacer(&self) -> &Pacer {
        &self.pacer
    }

    fn score(&mut self) -> &mut Score {
        &mut self.score
    }
}
