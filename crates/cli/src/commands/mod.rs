//! The client side of the command line: commands that ask a running node.
//!
//! Each command is an argument struct with an async `run`. Functions that turn an answer into text make its
//! output, and only `Output` touches the terminal. Answers go to standard output, and errors to standard
//! error.

mod audit;
mod authority;
mod bench;
mod budget;
mod candidate;
mod catalogue;
mod cells;
mod certs;
mod check;
mod clock;
mod console;
mod entries;
mod explain;
#[cfg(test)]
mod fake_admin;
mod grant;
mod import;
mod limit_path;
pub(crate) mod operator;
mod order;
mod people;
mod pools;
mod regions;
mod renew;
mod report;
mod settlement;
mod shares;
mod store;
#[cfg(test)]
mod stories;
mod top;
mod validate;
mod verdict;

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use acequia_client::{Client, ClientError, Credentials, Options, Question, Target};
use acequia_limits::notation::parse_duration_ns;
use clap::Args;

pub use self::{
    audit::Audit, authority::Authority, bench::Bench, budget::Budget, candidate::Candidate, certs::Certs,
    check::Check, clock::ClockCheck, explain::Explain, grant::Grant, grant::Reset, import::Import,
    regions::Regions, renew::Renew, report::Report, settlement::Commit, settlement::Refund, store::Store,
    top::Top, validate::Validate,
};
use self::{
    entries::{Word, groups, read_word},
    people::Paint,
};

/// The command has succeeded.
const SUCCESS: u8 = 0;
/// The request may pass.
const ALLOWED: u8 = 0;
/// The request may not pass.
const DENIED: u8 = 1;
/// An order was not carried out because it was refused, or it is not effective everywhere yet.
const NOT_DONE: u8 = 1;
/// Nobody could say. Clap exits with this code, too, if the arguments are wrong.
const COULD_NOT_ASK: u8 = 2;

/// Advice about addresses.
const ANOTHER_NODE: &str = "Another node is asked with --address HOST:PORT, or with ACEQUIA_ADDR.";

/// Which node to ask, and the caller's credentials.
#[derive(Args, Clone, Debug)]
pub struct Address {
    /// The node's gRPC address (listen.grpc); with https:// or --ca over TLS, or unix:/path.
    #[arg(long, env = "ACEQUIA_ADDR", default_value = "127.0.0.1:8081", value_name = "HOST:PORT")]
    address: String,

    /// The certificate of the authority that signed the node's; by default those that this system knows.
    #[arg(long, env = "ACEQUIA_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Your own certificate, where the node knows callers by theirs.
    #[arg(long, env = "ACEQUIA_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// The key of your certificate.
    #[arg(long, env = "ACEQUIA_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// The file that holds your token, where the node knows callers by theirs.
    #[arg(long, env = "ACEQUIA_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// The name in the node's certificate, where it is not the host of the address.
    #[arg(long, env = "ACEQUIA_SERVER_NAME", value_name = "NAME")]
    server_name: Option<String>,
}

impl Address {
    fn credentials(&self) -> Credentials {
        Credentials {
            ca: self.ca.clone(),
            certificate: self.cert.clone().zip(self.key.clone()),
            token_file: self.token_file.clone(),
            server_name: self.server_name.clone(),
        }
    }

    /// A client of the node.
    fn client(&self, deadline: Duration) -> Result<Client, ClientError> {
        Client::connect_as(&self.address, Options { deadline }, self.credentials())
    }

    /// The address and credentials in the client's form.
    fn target(&self) -> Result<Target, ClientError> {
        Target::new(&self.address, self.credentials())
    }
}

/// The question of `check` and `explain`, and the node to ask.
#[derive(Args, Clone, Debug)]
struct Asking {
    #[command(flatten)]
    address: Address,

    /// The domain whose limits apply.
    #[arg(long)]
    domain: String,

    /// The cost of the request, in each limit's own units.
    ///
    /// With 0, nothing is charged. But a check takes a hold of each limit with `expect`.
    #[arg(long, default_value_t = 1, value_name = "UNITS")]
    cost: u64,

    /// How long to wait for an answer, such as 250ms or 2s.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = read_duration)]
    deadline: Duration,

    /// Print one JSON object, with the fields of the HTTP API.
    #[arg(long)]
    json: bool,

    /// The entries of the request. A word + begins another descriptor: all of them must pass.
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = read_word)]
    entries: Vec<Word>,
}

impl Asking {
    fn client(&self) -> Result<Client, ClientError> {
        self.address.client(self.deadline)
    }

    /// The question, asking for every limit in the answer.
    fn question(&self) -> Result<Question, ClientError> {
        self.question_of(self.cost)
    }

    /// The question of somebody who only looks. A cost of 0 asks whether the smallest request would pass.
    fn look(&self) -> Result<Question, ClientError> {
        self.question_of(self.cost.max(1))
    }

    fn question_of(&self, cost: u64) -> Result<Question, ClientError> {
        let mut groups = groups(&self.entries).map_err(|what| ClientError::Refused { what })?.into_iter();
        let first = groups.next().unwrap_or_default();
        let question = groups.fold(Question::new(&self.domain, first), Question::and);
        Ok(question.cost(cost).detail())
    }
}

/// Standard output.
struct Output {
    paint: Paint,
}

impl Output {
    /// Uses colours only where a person looks at them and has not turned them off (<https://no-color.org>).
    fn new() -> Self {
        let refuses = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        Self { paint: Paint::new(io::stdout().is_terminal() && !refuses && !is_dumb) }
    }

    /// Writes the text, and returns the exit code. A reader that has gone away wants no more text, so this is
    /// no fault.
    fn end(self, text: &str, code: u8) -> ExitCode {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(fault) if fault.kind() != io::ErrorKind::BrokenPipe => {
                complain(&format!("cannot write the answer: {fault}"))
            }
            Ok(()) | Err(_) => ExitCode::from(code),
        }
    }
}

/// Prints a remark for the reader on standard error.
fn note(what: &str) {
    let _ = writeln!(io::stderr(), "{}", message("note", what));
}

/// Whether `--json` was given: then messages are JSON as well.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on, each message on standard error is a line of JSON: `{"error": "..."}` or `{"note": "..."}`.
pub fn write_messages_as_json() {
    IS_JSON.store(true, Ordering::Relaxed);
}

fn message(kind: &str, what: &str) -> String {
    match IS_JSON.load(Ordering::Relaxed) {
        true => serde_json::json!({ kind: what }).to_string(),
        false => format!("acequia: {what}"),
    }
}

/// Prints an error on standard error.
fn complain(what: &str) -> ExitCode {
    // Without a standard error, the exit code says enough.
    let _ = writeln!(io::stderr(), "{}", message("error", what));
    ExitCode::from(COULD_NOT_ASK)
}

/// An error with the arguments that would correct it.
fn mend(error: &ClientError) -> String {
    match error {
        ClientError::Unreachable { .. } => {
            format!("{error}\n{ANOTHER_NODE}")
        }
        ClientError::Deadline { .. } => format!("{error} (--deadline)."),
        ClientError::NotAllowed { .. } => {
            format!(
                "{error}\nWho you are is shown with --token-file FILE, or with --cert FILE and --key FILE."
            )
        }
        ClientError::Refused { what } => what.clone(),
    }
}

/// Why the node cannot be reached.
fn refusal(fault: ClientError) -> String {
    match fault {
        ClientError::Refused { what } => what,
        other => other.to_string(),
    }
}

/// An answer as one line of JSON.
fn json_line(answer: &impl serde::Serialize) -> String {
    // The answer has only texts, numbers and lists of them, which JSON can hold.
    serde_json::to_string(answer).map(|line| line + "\n").unwrap_or_default()
}

fn read_duration(text: &str) -> Result<Duration, String> {
    parse_duration_ns(text).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use acequia_api::acequia::v1::CheckRequest;
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        asking: Asking,
    }

    fn read(line: &str) -> Result<Asking, clap::Error> {
        let words = ["check"].into_iter().chain(line.split(' '));
        Line::try_parse_from(words).map(|line| line.asking)
    }

    #[test]
    fn arguments_become_a_check_request() {
        let asking = read("--domain shop api_key=k1 route=/search + ip=::1 --cost 3").expect("sound");
        let request = CheckRequest::from(asking.question().expect("sound"));
        assert_eq!((request.domain.as_str(), request.cost, request.detail), ("shop", Some(3), true));
        let entries = |number: usize| -> Vec<(&str, &str)> {
            let entries = &request.descriptors[number].entries;
            entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str())).collect()
        };
        assert_eq!(request.descriptors.len(), 2);
        assert_eq!(entries(0), [("api_key", "k1"), ("route", "/search")]);
        assert_eq!(entries(1), [("ip", "::1")]);
        assert_eq!(asking.deadline, Duration::from_secs(1));
    }

    #[test]
    fn wrong_arguments_are_refused_with_a_suggestion() {
        for (line, why) in [
            ("api_key=k1", "--domain"),
            ("--domain shop", "<KEY=VALUE>"),
            ("--domain shop api_key", "api_key=SOMETHING"),
            ("--domain shop =k1", "no key"),
            ("--domain shop api_key=k1 --cost -1", "-1"),
            ("--domain shop api_key=k1 --deadline soon", "250ms"),
        ] {
            let error = read(line).expect_err(line).to_string();
            assert!(error.contains(why), "{line}: {error}");
        }
        let free = read("--domain shop api_key=k1 --cost 0").expect("a look, or a hold");
        let costs =
            [free.question(), free.look()].map(|asked| CheckRequest::from(asked.expect("sound")).cost);
        assert_eq!(costs, [Some(0), Some(1)]);
        for line in ["--domain shop +", "--domain shop a=b +", "--domain shop a=b + + c=d"] {
            let error = read(line).expect("words").question().expect_err(line).to_string();
            assert!(error.contains("at least one KEY=VALUE"), "{line}: {error}");
        }
    }

    #[test]
    fn client_errors_say_which_argument_helps() {
        let address = "127.0.0.1:8081".to_owned();
        let unreachable = ClientError::Unreachable { address: address.clone(), why: "nobody".to_owned() };
        assert_eq!(
            mend(&unreachable),
            "no answer from 127.0.0.1:8081: nobody. Is `acequia serve` running there, and is this its gRPC \
             address (listen.grpc)?\nAnother node is asked with --address HOST:PORT, or with ACEQUIA_ADDR."
        );
        let late = ClientError::Deadline { address, deadline: Duration::from_secs(1) };
        assert_eq!(
            mend(&late),
            "no answer from 127.0.0.1:8081 in 1s, and what was asked may have been charged. Allow it more time, \
             or see whether the node is overloaded or out of reach (--deadline)."
        );
        let refused = ClientError::Refused { what: "the domain is empty".to_owned() };
        assert_eq!(mend(&refused), "the domain is empty");
    }
}
