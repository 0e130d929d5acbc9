//! The answer to a call, or the reason why there is none.

use std::borrow::Cow;

use redis::{ErrorKind, RedisError};

/// An argument of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg<'a> {
    /// An integer. Lua counts in doubles: an integer above 2^53 is exact only as text.
    Int(i64),
    /// Bytes, such as text.
    Bytes(&'a [u8]),
}

/// A part of a function's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Lua's `false` or `nil`.
    Nil,
    /// An integer.
    Int(i64),
    /// Bytes, such as text.
    Bytes(Vec<u8>),
    /// A list of values.
    List(Vec<Self>),
}

impl Value {
    /// The integer, if the value is one.
    #[must_use]
    pub const fn int(&self) -> Option<i64> {
        if let Self::Int(number) = self { Some(*number) } else { None }
    }

    /// The text, if the value is text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        if let Self::Bytes(bytes) = self { std::str::from_utf8(bytes).ok() } else { None }
    }

    /// The bytes, if the value is bytes.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// Converts a server's value. Functions answer with no other kinds.
    pub(super) fn from_redis(value: redis::Value) -> Self {
        match value {
            redis::Value::Int(number) => Self::Int(number),
            redis::Value::BulkString(bytes) => Self::Bytes(bytes),
            redis::Value::SimpleString(text) => Self::Bytes(text.into_bytes()),
            redis::Value::Okay => Self::Bytes(b"OK".to_vec()),
            redis::Value::Array(values) => Self::List(values.into_iter().map(Self::from_redis).collect()),
            _ => Self::Nil,
        }
    }
}

/// Why a call has no answer, whether it may have been executed all the same, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missed {
    /// The call was certainly not executed.
    #[error("not sent to Redis: {0}. Nothing was executed: go by what this node holds, and call again later")]
    NotSent(Cow<'static, str>),
    /// The call may have been executed, or may be executed in a moment.
    #[error("no answer from Redis: {0}. It may have been executed: count what it asked for as spent")]
    Unknown(Cow<'static, str>),
    /// The server or the function refused.
    #[error(
        "Redis refused: {0}. Nothing was executed, and calling again will not help until the cause is mended"
    )]
    Refused(String),
}

impl Missed {
    pub(super) const fn not_sent(why: &'static str) -> Self {
        Self::NotSent(Cow::Borrowed(why))
    }

    pub(super) const fn unknown(why: &'static str) -> Self {
        Self::Unknown(Cow::Borrowed(why))
    }
}

/// The meaning of an error for its call.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The function is missing. Nothing was executed.
    #[error("it has not got our functions")]
    NoFunction,
    /// Another server has the group, or will have it. Nothing was executed.
    #[error("{0}")]
    Elsewhere(String),
    /// The server cannot serve any call now. Nothing was executed.
    #[error("{0}")]
    Unready(String),
    /// The server is not the process, or not in the same life as a primary, as when we connected. Nothing was
    /// executed.
    #[error("it is not the primary any more that it was")]
    Changed,
    /// The server or the function refused. A function checks before it writes, so nothing was executed.
    #[error("{0}")]
    Refused(String),
    /// The connection broke: the call may have been executed.
    #[error("{0}")]
    Broken(String),
}

impl Fault {
    pub(super) fn of(error: &RedisError) -> Self {
        let detail = error.detail().unwrap_or_default();
        let code = match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => error.code(),
            _ => None,
        };
        let Some(code) = code else {
            return Self::Broken(error.to_string());
        };
        let text = format!("{code} {detail}");
        match code {
            "ERR" if detail.contains("Function not found") => Self::NoFunction,
            "MOVED" | "ASK" | "TRYAGAIN" => Self::Elsewhere(text),
            "CHANGED" => Self::Changed,
            "READONLY" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "BUSY" => Self::Unready(text),
            _ => Self::Refused(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(reply: &str) -> Fault {
        let value = redis::parse_redis_value(reply.as_bytes()).expect("a reply");
        Fault::of(&value.extract_error().expect_err("an error"))
    }

    #[test]
    fn errors_of_servers_are_told_apart() {
        assert!(matches!(fault("-ERR Function not found\r\n"), Fault::NoFunction));
        assert!(
            matches!(fault("-MOVED 3999 127.0.0.1:6381\r\n"), Fault::Elsewhere(text) if text.contains("3999"))
        );
        assert!(matches!(fault("-TRYAGAIN Multiple keys\r\n"), Fault::Elsewhere(_)));
        for reply in ["-READONLY no\r\n", "-CLUSTERDOWN no\r\n", "-LOADING no\r\n", "-BUSY no\r\n"] {
            assert!(matches!(fault(reply), Fault::Unready(_)), "{reply}");
        }
        assert!(
            matches!(fault("-OOM command not allowed\r\n"), Fault::Refused(text) if text.starts_with("OOM "))
        );
        assert!(matches!(fault("-NOPERM no\r\n"), Fault::Refused(_)));
        assert!(matches!(fault("-CHANGED it is another\r\n"), Fault::Changed));
        assert!(
            matches!(fault("-OURS its own word\r\n"), Fault::Refused(text) if text == "OURS its own word")
        );
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(matches!(Fault::of(&broken.into()), Fault::Broken(_)));
    }

    #[test]
    fn a_missed_call_says_what_to_assume() {
        assert!(Missed::not_sent("no connection").to_string().contains("Nothing was executed"));
        assert!(Missed::unknown("too late").to_string().contains("count what it asked for as spent"));
        assert!(Missed::Refused("OOM".to_owned()).to_string().contains("OOM"));
    }
}
