//! `acequia bench`: how many questions a node answers, and how fast.

use std::{fmt, process::ExitCode, time::Duration};

use acequia_api::{
    acequia::v1::{CheckBatch, CheckRequest},
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
        service::ratelimit::v3::RateLimitRequest,
    },
    wire::MAX_CHECKS,
};
use acequia_client::{ClientError, Question};
use clap::{Args, ValueEnum, builder::RangedU64ValueParser, value_parser};
use prost::Message as _;
use serde::Serialize;

use super::{
    ANOTHER_NODE, Address, Output, SUCCESS, complain,
    entries::{Word, groups, read_word},
    json_line, mend, note,
};
use crate::{
    load::{
        Bound, CONNECTIONS_MAX, IN_FLIGHT_MAX, Load, LoadError, Payloads, Report, Work,
        check_batch_decisions, check_verdict, drive, rate_limit_verdict,
    },
    settings::SETTINGS,
};

/// Load a running node, and print throughput and latency.
///
/// All requests are charged. The bench warms up for one second before it measures, and uses one core of this
/// machine. Exits with 0 if every request had an answer, even a denial, and with 2 otherwise.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  acequia bench
  acequia bench --mode stream --batch 1000 --in-flight 4
  acequia bench --domain shop --keys 10 api_key=k route=/search    api_key=k-0 to api_key=k-9, all for /search")]
pub struct Bench {
    #[command(flatten)]
    address: Address,

    /// The call to make.
    #[arg(long, value_enum, default_value_t = Mode::Rls)]
    mode: Mode,

    /// TCP connections.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = at_most(CONNECTIONS_MAX))]
    connections: usize,

    /// Requests in flight on each connection; in a stream, messages.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = at_most(IN_FLIGHT_MAX))]
    in_flight: usize,

    /// Checks in each message of a stream. Other modes send one.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = at_most(MAX_CHECKS))]
    batch: usize,

    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = value_parser!(u64).range(1..=SETTINGS.load.seconds_max))]
    seconds: u64,

    /// The domain to ask for.
    #[arg(long, default_value = "bench")]
    domain: String,

    /// How many values the first KEY=VALUE takes, in turn: VALUE-0, VALUE-1 and so on.
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = value_parser!(u64).range(1..=SETTINGS.load.keys_max))]
    keys: u64,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    /// The entries of the requests. A word + begins another descriptor.
    #[arg(default_value = "api_key=bench", value_name = "KEY=VALUE", value_parser = read_word)]
    entries: Vec<Word>,
}

/// The call that a bench makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// Envoy's ShouldRateLimit.
    Rls,
    /// Check, one question in a request.
    Check,
    /// CheckStream, many questions in a message.
    Stream,
}

impl Bench {
    /// Loads the node, prints, and gives the exit code.
    pub async fn run(self) -> ExitCode {
        let report = match self.measure().await {
            Ok(report) => report,
            Err(fault) => return complain(&fault.to_string()),
        };
        let result = BenchJson::new(&self, &report);
        let text = if self.json { json_line(&result) } else { self.for_people(&report) };
        let code = Output::new().end(&text, SUCCESS);
        match (report.requests, report.errors) {
            (0, errors) => complain(&format!(
                "none of {errors} requests had an answer: is {} the node's gRPC address (listen.grpc)?",
                self.address.address
            )),
            (_, 0) => code,
            (_, errors) => complain(&format!("{errors} requests had no answer: the node's log may say why")),
        }
    }

    async fn measure(&self) -> Result<Report, BenchError> {
        let questions = Questions::new(self).map_err(|what| ClientError::Refused { what })?;
        self.ask_once(&questions).await?;
        Ok(drive(&self.load(&questions)?).await?)
    }

    /// Asks one question before the run. It reports a wrong question or address at once instead of counting
    /// errors.
    async fn ask_once(&self, questions: &Questions<'_>) -> Result<(), ClientError> {
        let client = self.address.client(SETTINGS.load.first_deadline)?;
        match client.peek(questions.question(0)).await {
            // Any server of Envoy's protocol can be measured. Other servers have no Peek, and a node that counts in a
            // Redis refuses it.
            Err(ClientError::Unreachable { .. } | ClientError::Refused { .. }) if self.mode == Mode::Rls => {
                Ok(())
            }
            answer => {
                if answer?.verdict.is_some_and(|verdict| verdict.limits.is_empty()) {
                    note(&format!(
                        "no limit of the domain {} is about this: nothing is counted; --domain and KEY=VALUE choose another",
                        self.domain
                    ));
                }
                Ok(())
            }
        }
    }

    fn load(&self, questions: &Questions<'_>) -> Result<Load, BenchError> {
        let target = self.address.target()?;
        let metadata = target.authorization().map(|token| ("authorization".to_owned(), token));
        let in_flight = self.in_flight;
        let load = match self.mode {
            Mode::Rls => {
                let payloads = Payloads::new(questions.rate_limit_requests());
                let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
                let work = Work::Unary { in_flight, verdict: rate_limit_verdict };
                Load { work, ..Load::unary(target, path, payloads, rate_limit_verdict) }
            }
            Mode::Check => {
                let payloads = Payloads::new(questions.check_requests());
                let work = Work::Unary { in_flight, verdict: check_verdict };
                Load { work, ..Load::unary(target, "/acequia.v1.Limiter/Check", payloads, check_verdict) }
            }
            Mode::Stream => {
                let payloads = Payloads::new(questions.check_batches(self.batch as u64));
                let path = "/acequia.v1.Limiter/CheckStream";
                let work = Work::Stream { streams: 1, in_flight, decisions: check_batch_decisions };
                Load { work, ..Load::stream(target, path, payloads, check_batch_decisions) }
            }
        };
        let bound = Bound::For(Duration::from_secs(self.seconds));
        Ok(Load { connections: self.connections, bound, metadata: metadata.into_iter().collect(), ..load })
    }

    fn for_people(&self, report: &Report) -> String {
        let Self { address: Address { address, .. }, connections, in_flight, batch, keys, .. } = self;
        let what = match self.mode {
            Mode::Rls => "ShouldRateLimit".to_owned(),
            Mode::Check => "Check".to_owned(),
            Mode::Stream => format!("CheckStream, {batch} checks a message"),
        };
        format!(
            "{what}: {address}, {connections} connections, {in_flight} in flight on each, {keys} keys\n{report}\n"
        )
    }
}

/// A report and the settings of its run.
#[derive(Debug, Serialize)]
struct BenchJson<'a> {
    address: &'a str,
    mode: Mode,
    connections: usize,
    in_flight: usize,
    /// Checks in a message.
    batch: usize,
    keys: u64,
    #[serde(flatten)]
    report: &'a Report,
}

impl<'a> BenchJson<'a> {
    fn new(bench: &'a Bench, report: &'a Report) -> Self {
        Self {
            address: &bench.address.address,
            mode: bench.mode,
            connections: bench.connections,
            in_flight: bench.in_flight,
            batch: if bench.mode == Mode::Stream { bench.batch } else { 1 },
            keys: bench.keys,
            report,
        }
    }
}

/// The questions of a run: one for each key.
#[derive(Debug)]
struct Questions<'a> {
    domain: &'a str,
    descriptors: Vec<Vec<(&'a str, &'a str)>>,
    keys: u64,
}

impl<'a> Questions<'a> {
    fn new(bench: &'a Bench) -> Result<Self, String> {
        Ok(Self { domain: &bench.domain, descriptors: groups(&bench.entries)?, keys: bench.keys })
    }

    /// The question about a key; after the last key comes the first.
    fn question(&self, key: u64) -> Question {
        let mut descriptors = self.descriptors.iter().enumerate().map(|(number, entries)| {
            entries.iter().enumerate().map(move |(place, (name, value))| match (number, place) {
                (0, 0) => (*name, format!("{value}-{}", key % self.keys)),
                _ => (*name, (*value).to_owned()),
            })
        });
        let first = descriptors.next().into_iter().flatten();
        let question = Question::new(self.domain, first);
        descriptors.fold(question, Question::and)
    }

    fn rate_limit_requests(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.keys).map(|key| {
            let CheckRequest { domain, descriptors, .. } = self.question(key).into();
            let descriptors = descriptors.into_iter().map(|descriptor| {
                let entries = descriptor.entries.into_iter();
                let entries = entries
                    .map(|entry| rate_limit_descriptor::Entry { key: entry.key, value: entry.value })
                    .collect();
                RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
            });
            RateLimitRequest { domain, descriptors: descriptors.collect(), hits_addend: 0 }.encode_to_vec()
        })
    }

    fn check_requests(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.keys).map(|key| CheckRequest::from(self.question(key)).encode_to_vec())
    }

    /// The messages of `batch` checks that it takes to ask about each key.
    fn check_batches(&self, batch: u64) -> impl Iterator<Item = Vec<u8>> {
        (0..self.keys.div_ceil(batch)).map(move |number| {
            let keys = number * batch..(number + 1) * batch;
            CheckBatch { checks: keys.map(|key| self.question(key).into()).collect() }.encode_to_vec()
        })
    }
}

/// Why there is no report.
#[derive(Debug)]
enum BenchError {
    Ask(ClientError),
    Load(LoadError),
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(error) => f.write_str(&mend(error)),
            Self::Load(LoadError::Invalid(what)) => f.write_str(what),
            Self::Load(error) => write!(f, "{error}.\n{ANOTHER_NODE}"),
        }
    }
}

impl From<ClientError> for BenchError {
    fn from(error: ClientError) -> Self {
        Self::Ask(error)
    }
}

impl From<LoadError> for BenchError {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

fn at_most(max: usize) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=max as u64)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    fn read(line: &str) -> Result<Bench, clap::Error> {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.bench)
    }

    fn values(request: &CheckRequest) -> Vec<Vec<String>> {
        let entries = request.descriptors.iter().map(|descriptor| &descriptor.entries);
        entries
            .map(|all| all.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect())
            .collect()
    }

    #[test]
    fn only_the_first_pair_varies_over_the_keys_of_a_bench() {
        let bench = read("--domain shop --keys 3 api_key=k route=/ + api_key=k").expect("sound");
        let questions = Questions::new(&bench).expect("sound");
        let requests: Vec<_> = questions
            .check_requests()
            .map(|message| CheckRequest::decode(&message[..]).expect("a request"))
            .collect();
        assert_eq!(requests.len(), 3);
        assert_eq!(values(&requests[0]), [vec!["api_key=k-0", "route=/"], vec!["api_key=k"]]);
        assert_eq!(values(&requests[2]), [vec!["api_key=k-2", "route=/"], vec!["api_key=k"]]);
    }

    #[test]
    fn every_mode_of_a_bench_sends_the_same_questions() {
        let bench = read("--keys 5").expect("sound");
        let questions = Questions::new(&bench).expect("sound");
        for (key, message) in questions.rate_limit_requests().enumerate() {
            let request = RateLimitRequest::decode(&message[..]).expect("a request");
            let entry = &request.descriptors[0].entries[0];
            assert_eq!(request.domain, "bench");
            assert_eq!((entry.key.as_str(), entry.value.clone()), ("api_key", format!("bench-{key}")));
        }
        let batches: Vec<_> = questions
            .check_batches(2)
            .map(|message| CheckBatch::decode(&message[..]).expect("a batch"))
            .collect();
        let asked: Vec<_> = batches.iter().flat_map(|batch| &batch.checks).map(values).collect();
        let expected = [0, 1, 2, 3, 4, 0].map(|key| [[format!("api_key=bench-{key}")]]);
        assert_eq!(batches.len(), 3);
        assert_eq!(asked, expected);
    }

    #[test]
    fn bench_options_out_of_range_are_refused() {
        for line in ["--connections 0", "--in-flight 65537", "--batch 1001", "--keys 0", "--seconds 0"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
