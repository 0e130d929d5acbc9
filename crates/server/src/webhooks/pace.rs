//! The meaning of an answer, and the time of the next try.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};

use crate::settings::{SETTINGS, WebhookSettings};

/// The meaning of an answer for the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The event has arrived.
    Delivered,
    /// The event will never be taken.
    Refused,
    /// The event may be taken later. Until the time that the hook asks for, no event is sent to it.
    Again(Option<Duration>),
}

/// Reads the head of an answer, at a time of the wall.
pub(super) fn verdict(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Verdict {
    match status {
        _ if status.is_success() => Verdict::Delivered,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
            Verdict::Again(retry_after(headers, now))
        }
        _ if status.is_server_error() => Verdict::Again(retry_after(headers, now)),
        // This includes redirects: a message that was signed for one place is not carried to another. A 410
        // asks to be left alone. The config is the operator's, so the hook stays until it is removed there.
        _ => Verdict::Refused,
    }
}

/// The wait that a hook asks for (RFC 9110, section 10.2.3), at most `wait_max` of the settings.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let wait = if is_number {
        // A number that does not fit is long enough.
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(SETTINGS.webhooks.wait_max))
}

/// The wait after some failed tries. Any time up to the bound is equally likely, so that many nodes do not
/// come back at once (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).
pub(super) fn backoff(tries: u32, random: u64) -> Duration {
    let WebhookSettings { wait_first, wait_factor, wait_max, .. } = SETTINGS.webhooks;
    let longest = wait_factor
        .checked_pow(tries.saturating_sub(1))
        .map_or(wait_max, |times| wait_first.saturating_mul(times).min(wait_max));
    longest.mul_f64(random as f64 / u64::MAX as f64)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn of(status: u16) -> Verdict {
        verdict(StatusCode::from_u16(status).expect("a status"), &HeaderMap::new(), NOW)
    }

    #[test]
    fn waits_between_tries_grow_to_a_bound_and_are_random() {
        let longest = [1, 4, 16, 64, 256, 300, 300];
        for (tries, longest_s) in (1..SETTINGS.webhooks.tries_max).zip(longest) {
            let longest = Duration::from_secs(longest_s);
            assert_eq!(backoff(tries, u64::MAX), longest);
            assert_eq!(backoff(tries, 0), Duration::ZERO);
            assert!(backoff(tries, u64::MAX / 2).abs_diff(longest / 2) < Duration::from_millis(1));
        }
        assert_eq!(backoff(u32::MAX, u64::MAX), SETTINGS.webhooks.wait_max);
        assert!(
            Duration::from_secs(longest.iter().sum()) < SETTINGS.webhooks.age_max,
            "the tries fit into the age"
        );
    }

    #[test]
    fn the_status_of_a_reply_decides_whether_to_try_again() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(of(status), Verdict::Delivered, "{status}");
        }
        for status in [408, 429, 500, 502, 503, 504, 599] {
            assert_eq!(of(status), Verdict::Again(None), "{status}");
        }
        for status in [101, 301, 302, 304, 307, 308, 400, 401, 404, 409, 410, 413, 451, 600, 999] {
            assert_eq!(of(status), Verdict::Refused, "{status}");
        }
    }

    #[test]
    fn a_webhooks_retry_after_is_obeyed_up_to_a_bound() {
        let wait = |text: &str| {
            let value = HeaderValue::from_bytes(text.as_bytes()).expect("a value");
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value)]);
            let Verdict::Again(wait) = verdict(StatusCode::SERVICE_UNAVAILABLE, &headers, NOW) else {
                panic!("503 is no end")
            };
            wait.map(|wait| wait.as_secs())
        };
        for (text, seconds) in [
            ("0", Some(0)),
            ("7", Some(7)),
            (" 7 ", Some(7)),
            ("300", Some(300)),
            ("301", Some(300)),
            ("99999999999999999999999999", Some(300)),
            ("Thu, 01 Jan 1970 00:01:00 GMT", Some(60)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(300)),
            ("-1", None),
            ("1.5", None),
            ("+5", None),
            ("", None),
            ("soon", None),
            ("é", None),
        ] {
            assert_eq!(wait(text), seconds, "{text:?}");
        }
        let past = NOW + Duration::from_secs(86_400);
        let headers =
            HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("Thu, 01 Jan 1970 00:01:00 GMT"))]);
        let verdict = verdict(StatusCode::TOO_MANY_REQUESTS, &headers, past);
        assert_eq!(verdict, Verdict::Again(Some(Duration::ZERO)));
    }
}
