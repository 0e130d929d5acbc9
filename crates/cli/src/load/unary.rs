//! Unary requests on one connection: each is a stream with one message in each direction.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Decisions, Load, Payloads, Verdict,
    driver::{Exchange, Waiting},
    link::{Event, Link},
    messages::Splitter,
    order::Picker,
    pace::{Pacer, Plan},
    report::{Fault, Score},
};
use crate::settings::SETTINGS;

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Unary {
    in_flight_max: usize,
    verdict: fn(&[u8]) -> Verdict,
    payloads: Arc<Payloads>,
    picker: Picker,
    pacer: Pacer,
    score: Score,
    /// Requests by stream: the n-th belongs to stream `first + 2 n`. Only the first and the last one are sure
    /// to be open.
    requests: VecDeque<Option<Request>>,
    first: u32,
    open: usize,
    /// Streams whose message waits for a window.
    blocked: Vec<u32>,
    /// Whether a request would start if the server allowed it.
    starved: bool,
}

#[derive(Debug)]
struct Request {
    start_ns: u64,
    payload: usize,
    /// Bytes of the message sent.
    sent: usize,
    /// Bytes that we may still send.
    window: i64,
    /// Bytes that the server has sent since our last grant.
    received: u32,
    answer: Splitter,
    /// The verdict of the first message; a second message makes it an error.
    verdict: Option<Verdict>,
}

impl Unary {
    pub(super) fn new(
        load: &Load,
        in_flight_max: usize,
        verdict: fn(&[u8]) -> Verdict,
        plan: Arc<Plan>,
        connection: usize,
    ) -> Self {
        Self {
            in_flight_max,
            verdict,
            payloads: load.payloads.clone(),
            picker: Picker::new(load, connection),
            pacer: Pacer::new(plan, connection),
            score: Score::default(),
            requests: VecDeque::new(),
            first: 0,
            open: 0,
            blocked: Vec::new(),
            starved: false,
        }
    }

    fn request(&mut self, stream: u32) -> Option<&mut Request> {
        let index = stream.checked_sub(self.first)? / 2;
        self.requests.get_mut(index as usize)?.as_mut()
    }

    fn remove(&mut self, stream: u32) -> Option<Request> {
        let index = stream.checked_sub(self.first)? / 2;
        let request = self.requests.get_mut(index as usize)?.take()?;
        self.open -= 1;
        while let Some(None) = self.requests.front() {
            self.requests.pop_front();
            self.first += 2;
        }
        if request.sent < self.payloads.framed(request.payload).len() {
            self.blocked.retain(|blocked| *blocked != stream);
        }
        Some(request)
    }

    /// Sends as much of the blocked messages as the windows allow.
    fn send_blocked(&mut self, link: &mut Link) {
        let mut blocked = std::mem::take(&mut self.blocked);
        let payloads = self.payloads.clone();
        blocked.retain(|&stream| {
            let Some(request) = self.request(stream) else { return false };
            let rest = &payloads.framed(request.payload)[request.sent..];
            let sent = link.send(stream, &mut request.window, rest, true);
            request.sent += sent;
            sent < rest.len()
        });
        self.blocked = blocked;
    }

    fn data(&mut self, link: &mut Link, stream: u32, bytes: &[u8], flow: u32, end: bool, now_ns: u64) {
        let verdict = self.verdict;
        let Some(request) = self.request(stream) else { return };
        let Request { answer, verdict: first, received, .. } = request;
        let read = answer.feed(bytes, |message| {
            *first = Some(if first.is_none() { verdict(message) } else { Verdict::Error });
        });
        if read.is_err() {
            link.cancel(stream);
            self.fail(stream, now_ns, Fault::Malformed);
        } else if end {
            self.end(link, stream, now_ns);
        } else {
            *received += flow;
            link.replenish(stream, received);
        }
    }

    /// The answer is complete.
    fn end(&mut self, link: &mut Link, stream: u32, now_ns: u64) {
        let Some(request) = self.remove(stream) else { return };
        if request.sent < self.payloads.framed(request.payload).len() {
            link.cancel(stream);
        }
        let (plan, start_ns) = (self.pacer.plan(), request.start_ns);
        match request.verdict {
            _ if request.answer.is_inside() => self.score.fault(plan, start_ns, now_ns, Fault::Malformed),
            None => self.score.fault(plan, start_ns, now_ns, Fault::NoMessage),
            Some(Verdict::Error) => self.score.fault(plan, start_ns, now_ns, Fault::Malformed),
            Some(Verdict::Allowed) => {
                self.score.answer(plan, start_ns, now_ns, Decisions { allowed: 1, denied: 0 });
            }
            Some(Verdict::Denied) => {
                self.score.answer(plan, start_ns, now_ns, Decisions { allowed: 0, denied: 1 });
            }
        }
    }

    fn fail(&mut self, stream: u32, now_ns: u64, fault: Fault) {
        if let Some(request) = self.remove(stream) {
            self.score.fault(self.pacer.plan(), request.start_ns, now_ns, fault);
        }
    }
}

impl Exchange for Unary {
    fn connected(&mut self, link: &Link) {
        self.first = link.next_stream();
    }

    fn fill(&mut self, link: &mut Link, now_ns: u64) {
        self.send_blocked(link);
        self.starved = false;
        while self.open < self.in_flight_max && link.out.len() < SETTINGS.load.out_bytes_high {
            if !link.has_window()
                || self.requests.len() >= SETTINGS.load.overtaken_max
                || !link.can_open(self.open)
            {
                self.starved = !self.pacer.is_over(now_ns);
                break;
            }
            let Some(start_ns) = self.pacer.start(now_ns) else { break };
            let payload = self.picker.next();
            let message = self.payloads.framed(payload);
            let stream = link.open();
            let mut window = link.stream_window();
            let sent = link.send(stream, &mut window, message, true);
            if sent < message.len() {
                self.blocked.push(stream);
            }
            let answer = Splitter::default();
            let request = Request { start_ns, payload, sent, window, received: 0, answer, verdict: None };
            self.requests.push_back(Some(request));
            self.open += 1;
        }
    }

    fn handle(&mut self, link: &mut Link, event: Event<'_>, now_ns: u64) {
        match event {
            Event::Data { stream, bytes, flow, end } => self.data(link, stream, bytes, flow, end, now_ns),
            Event::Headers { stream, end: true } => self.end(link, stream, now_ns),
            Event::Headers { .. } | Event::Connection => {}
            Event::Reset { stream } => self.fail(stream, now_ns, Fault::Reset),
            Event::StreamWindow { stream, increment } => {
                if let Some(request) = self.request(stream) {
                    request.window += increment;
                }
            }
            Event::StreamWindows { delta } => {
                self.requests.iter_mut().flatten().for_each(|request| request.window += delta);
            }
            Event::GoingAway { last } => self.lose(last, now_ns),
        }
    }

    fn lose(&mut self, after: u32, now_ns: u64) {
        for index in (0..self.requests.len()).rev() {
            let stream = self.first + 2 * index as u32;
            if stream > after {
                self.fail(stream, now_ns, Fault::Refused);
            }
        }
    }

    fn close(&mut self, _link: &mut Link) {}

    fn waiting(&self) -> Waiting {
        Waiting { unanswered: self.open, starved: self.starved }
    }

    fn pacer(&self) -> &Pacer {
        &self.pacer
    }

    fn score(&mut self) -> &mut Score {
        &mut self.score
    }
}
