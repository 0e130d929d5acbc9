//! One connection to one server, which was asked for its identity.

use std::{
    sync::{
        Arc, Mutex as SyncMutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redis::{Cmd, RedisError};
use tokio::sync::{Mutex, Notify};

use super::{
    answer::Fault,
    clock::ClockReading,
    executed::Executed,
    library::{Function, LIBRARY},
    server::{NO_EVICTION, Server},
    settings::Address,
    wire::{Access, Line, Wire, ask, ask_text},
};

/// A number that no other question of this process has.
pub(super) fn operation() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// A connection for calls. It leads to one process as long as it lasts, so that what was learned of the
/// process stays true.
#[derive(Debug)]
pub(super) struct Link {
    line: Line,
    pub(super) server: Server,
    pub(super) incarnation: String,
    timeout: Duration,
    /// Whether the server may forget keys when its memory is full.
    may_evict: bool,
    opened: Instant,
    /// When the last question was asked whose answer showed that the server is the same, in microseconds
    /// after `opened`.
    proved_us: AtomicU64,
    /// The last reading of the server's clock.
    told: SyncMutex<Option<ClockReading>>,
    /// Whether the server was set to evict keys at the last look.
    evicted: AtomicBool,
    /// How often the library was loaded over this link.
    loads: AtomicU64,
    /// Locked while the library is loaded.
    loading: Mutex<()>,
    /// Notified when an answer belonged to another question.
    pub(super) broke: Notify,
}

/// The result of a ping.
#[derive(Debug)]
pub(super) enum Pong {
    /// The server answered, after this time.
    Alive(Duration),
    /// The server answered, after this time, and its eviction policy has changed since the last look: it must
    /// be looked at again.
    Other(Duration),
    /// The server is not what it was when we connected.
    Changed,
    /// There was no answer in time.
    Silent,
    /// The connection is useless.
    Broken(String),
}

impl Link {
    /// Connects, and asks for the server's identity.
    ///
    /// # Errors
    /// The fault in words.
    pub(super) async fn open(address: &Address, access: &Access) -> Result<(Arc<Self>, Wire), String> {
        let wire = Wire::dial(address, access).await?;
        let opened = Instant::now();
        let line = wire.line.clone();
        let info = info(&line, access.timeout).await;
        let server = Server::read(&info.map_err(|fault| format!("INFO: {fault}"))?);
        let link = Self {
            line,
            incarnation: server.incarnation(),
            server,
            timeout: access.timeout,
            may_evict: access.may_evict,
            opened,
            proved_us: AtomicU64::new(0),
            told: SyncMutex::new(None),
            evicted: AtomicBool::new(false),
            loads: AtomicU64::new(0),
            loading: Mutex::default(),
            broke: Notify::new(),
        };
        Ok((Arc::new(link), wire))
    }

    /// Whether both connections have the same server, in the same life as a primary.
    pub(super) fn was_told_as(&self, other: &Self) -> bool {
        self.incarnation == other.incarnation
    }

    /// How long ago this process last knew that the server is the same. A process that was held up for long
    /// knows nothing of the time meanwhile, although its connections look unchanged.
    pub(super) fn doubt(&self, now: Instant) -> Duration {
        let proved = self.opened + Duration::from_micros(self.proved_us.load(Ordering::Relaxed));
        now.saturating_duration_since(proved)
    }

    /// Looks at the server again, and loads the library into a fit one, if it is not known to be there.
    /// Returns the reason if the server must not be called.
    ///
    /// # Errors
    /// The server did not answer, or is another one.
    pub(super) async fn look(&self) -> Result<Option<String>, Fault> {
        let server = self.asked().await?;
        self.evicted.store(server.evicts(), Ordering::Relaxed);
        if let Some(why) = server.unfit(self.may_evict) {
            return Ok(Some(why));
        }
        if self.loads() > 0 {
            return Ok(None);
        }
        match self.load(0).await {
            Ok(()) => Ok(None),
            Err(fault @ (Fault::Elsewhere(_) | Fault::Unready(_) | Fault::Refused(_))) => Ok(Some(format!(
                "it does not take our functions ({fault}): mend that, or allow this user +function|load"
            ))),
            Err(fault) => Err(fault),
        }
    }

    /// Loads the library, unless somebody else has done so meanwhile. `seen`: the result of [`Self::loads`]
    /// before the function was missed.
    ///
    /// A server loses its functions when it copies those of another. So this first asks whether the server is
    /// still the same.
    ///
    /// # Errors
    /// The library is not there.
    pub(super) async fn load(&self, seen: u64) -> Result<(), Fault> {
        let _turn = self.loading.lock().await;
        if self.loads() > seen {
            return Ok(());
        }
        self.asked().await?;
        match self.ask(&command("FUNCTION", &["LOAD", &LIBRARY.text])).await {
            Err(fault) if !fault.detail().is_some_and(|detail| detail.contains("already exists")) => {
                Err(Fault::of(&fault))
            }
            _ => {
                self.loads.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Asks for the server's identity again. It must be the same.
    async fn asked(&self) -> Result<Server, Fault> {
        let begun = Instant::now();
        let info = info(&self.line, self.timeout).await.map_err(|fault| Fault::of(&fault))?;
        let server = Server::read(&info);
        if server.incarnation() != self.incarnation {
            return Err(Fault::Changed);
        }
        self.prove(begun);
        Ok(server)
    }

    /// The server's counts of functions. `None` if it does not give them or we may not ask: nothing depends
    /// on them.
    pub(super) async fn executed(&self) -> Option<Executed> {
        let question = command("INFO", &["commandstats"]);
        let info = ask_text(&self.line, &question, self.timeout).await.ok()?;
        Executed::read(&info)
    }

    /// Notes that the answer to a question of this time shows that the server is the same.
    fn prove(&self, asked: Instant) {
        let us = asked.duration_since(self.opened).as_micros();
        self.proved_us.store(u64::try_from(us).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How often the library was loaded, for [`Self::load`].
    pub(super) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Asks a question on this process's own account.
    ///
    /// # Errors
    /// There is no answer in time, or the answer is an error.
    pub(super) async fn ask(&self, question: &Cmd) -> Result<redis::Value, RedisError> {
        ask(&self.line, question, self.timeout).await
    }

    /// Calls a function. The caller limits the time.
    ///
    /// # Errors
    /// The server's error.
    pub(super) async fn call(&self, question: &Cmd) -> Result<redis::Value, RedisError> {
        self.line.ask(question).await
    }

    /// The beginning of a call: the function, its keys, the identity that we expect, and the operation's
    /// number.
    pub(super) fn question(&self, function: Function, keys: &[String], operation: u64) -> Cmd {
        let mut question = redis::cmd("FCALL");
        question.arg(LIBRARY.name(function)).arg(keys.len());
        for key in keys {
            question.arg(key);
        }
        question.arg(&self.incarnation).arg(operation);
        question
    }

    /// Checks that the server answers, executes functions, and is the same primary.
    pub(super) async fn ping(&self, within: Duration) -> Pong {
        let operation = operation();
        let begun = Instant::now();
        let question = self.question(Function::Identity, &[], operation);
        let answer = match ask(&self.line, &question, within).await {
            Ok(answer) => answer,
            Err(fault) if fault.is_timeout() => return Pong::Silent,
            Err(fault) => {
                return match Fault::of(&fault) {
                    Fault::NoFunction => self.revived(begun).await,
                    Fault::Changed => Pong::Changed,
                    Fault::Broken(why) => Pong::Broken(why),
                    // The server refuses, so it is alive. The next look finds the reason.
                    Fault::Elsewhere(_) | Fault::Unready(_) | Fault::Refused(_) => {
                        Pong::Alive(begun.elapsed())
                    }
                };
            }
        };
        let Some([_, seconds, micros, role, history, policy]) = reply(&answer, operation) else {
            return Pong::Broken("an answer came to another question".to_owned());
        };
        if is(role, &self.server.role) && is(history, &self.server.history) {
            self.prove(begun);
            if let (Some(seconds), Some(micros)) = (number(seconds), number(micros)) {
                let wall_ns =
                    seconds.saturating_mul(1_000_000_000).saturating_add(micros.saturating_mul(1_000));
                let told = ClockReading::new(wall_ns, begun, Instant::now());
                if told.is_sure() {
                    *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
                }
            }
            let is_as_it_was = is(policy, NO_EVICTION) != self.evicted.load(Ordering::Relaxed);
            if is_as_it_was { Pong::Alive(begun.elapsed()) } else { Pong::Other(begun.elapsed()) }
        } else {
            Pong::Changed
        }
    }

    /// The last reading of the server's clock; `None` if there is none.
    pub(super) fn told(&self) -> Option<ClockReading> {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the loss of the function for pings: the server was emptied, or took its functions from
    /// another.
    async fn revived(&self, begun: Instant) -> Pong {
        match self.load(self.loads()).await {
            Err(Fault::Changed) => Pong::Changed,
            Err(Fault::Broken(why)) => Pong::Broken(why),
            // The library cannot be loaded into a server that is too old or does not let us. The server is
            // alive.
            _ => Pong::Alive(begun.elapsed()),
        }
    }
}

/// The parts of an answer after the operation's number; `None` if it is the answer to another question.
pub(super) fn reply(answer: &redis::Value, operation: u64) -> Option<&[redis::Value]> {
    let redis::Value::Array(parts) = answer else {
        return None;
    };
    let (first, rest) = parts.split_first()?;
    let is_ours = match first {
        redis::Value::Int(number) => u64::try_from(*number) == Ok(operation),
        _ => is(first, &operation.to_string()),
    };
    is_ours.then_some(rest)
}

fn number(value: &redis::Value) -> Option<u64> {
    match value {
        redis::Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn is(value: &redis::Value, text: &str) -> bool {
    matches!(value, redis::Value::BulkString(bytes) if bytes == text.as_bytes())
}

/// The sections of `INFO` that [`Server::read`] reads. Each is asked for by itself, since before 7.0 only one
/// could be named.
async fn info(line: &Line, within: Duration) -> Result<String, RedisError> {
    let mut all = String::new();
    for section in ["server", "replication", "memory"] {
        all.push_str(&ask_text(line, &command("INFO", &[section]), within).await?);
    }
    Ok(all)
}

pub(super) fn command(name: &str, words: &[&str]) -> Cmd {
    let mut command = redis::cmd(name);
    for word in words {
        command.arg(*word);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_matched_by_its_operation_number() {
        let answer = |first| redis::Value::Array(vec![first, redis::Value::Int(7)]);
        let text = redis::Value::BulkString(b"12".to_vec());
        assert_eq!(reply(&answer(text.clone()), 12), Some(&[redis::Value::Int(7)][..]));
        assert_eq!(reply(&answer(redis::Value::Int(12)), 12), Some(&[redis::Value::Int(7)][..]));
        assert_eq!(reply(&answer(text), 13), None);
        assert_eq!(reply(&redis::Value::Array(vec![]), 12), None);
        assert_eq!(reply(&redis::Value::Nil, 12), None);
    }

    #[test]
    fn operations_have_different_numbers() {
        let first = operation();
        assert!(operation() > first);
    }
}
