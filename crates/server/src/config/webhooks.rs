//! The webhooks that events are delivered to.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
    time::Duration,
};

use acequia_limits::{notation::parse_duration_ns, selector::Condition};
use http::{Error, Uri, uri::Scheme};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{
    faults::{Faults, line},
    listen::is_host_name,
};
use crate::settings::SETTINGS;

/// A receiver of events.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookConfig {
    /// The URL that events are posted to: https, or http on loopback. Its path may be secret.
    pub url: Uri,
    /// The file of the key that signs deliveries, 24 bytes or more. The key is `whsec_` and base64, as
    /// libraries of the Standard Webhooks specification want it, or else the trimmed text itself. The file is
    /// read when the node starts and when it reads its config again; `validate` needs neither this file nor
    /// certificates.
    pub secret_file: PathBuf,
    /// The limits whose events the hook receives, by `domain/name`; all if the list is empty.
    pub limits: Condition,
    /// How long a try may take, from the connection to the answer: 1 s to 30 s. A longer time waits for
    /// slower receivers, and lets a receiver that hangs delay its own other events.
    pub timeout: Duration,
}

/// One of `webhooks`, as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenWebhook {
    url: Spanned<String>,
    secret_file: Spanned<PathBuf>,
    limits: Option<Spanned<Vec<Spanned<String>>>>,
    timeout: Option<Spanned<String>>,
}

/// The webhooks. A hook whose URL or timeout cannot be read is left out.
pub(super) fn read(written: &Spanned<Vec<WrittenWebhook>>, faults: &mut Faults<'_>) -> Vec<WebhookConfig> {
    let hooks = &written.value;
    if hooks.len() > SETTINGS.bounds.webhooks_max {
        let what = format!(
            "{} webhooks: at most {}. Name a relay that hands events on, or leave some out",
            hooks.len(),
            SETTINGS.bounds.webhooks_max
        );
        faults.add(faults.line_above("webhooks", line(written)), what);
    }
    let mut known: BTreeMap<String, u64> = BTreeMap::new();
    let mut read = Vec::new();
    for hook in hooks {
        let url = faults.take(parse_url(&hook.url.value), &hook.url);
        if let Some(url) = &url
            && let Some(first) = known.insert(url.to_string(), line(&hook.url))
        {
            let what = format!(
                "this webhook is already there in line {first}: name each URL once, with all its `limits`"
            );
            faults.at(&hook.url, what);
        }
        if hook.secret_file.value.as_os_str().is_empty() {
            let what = "`secret_file` is empty: name a file that holds the key, such as ./webhook.key";
            faults.at(&hook.secret_file, what.to_owned());
        }
        let limits = hook.limits.as_ref().map(|limits| patterns(limits, faults)).unwrap_or_default();
        let limits = Condition::new("limit", limits.iter().map(String::as_str));
        let timeout = match &hook.timeout {
            None => Some(SETTINGS.defaults.timeout),
            Some(text) => faults.take(parse_timeout(&text.value), text),
        };
        if let (Some(url), Some(timeout)) = (url, timeout) {
            read.push(WebhookConfig { url, secret_file: hook.secret_file.value.clone(), limits, timeout });
        }
    }
    read
}

/// The patterns of a hook's limits; notes their faults.
fn patterns(limits: &Spanned<Vec<Spanned<String>>>, faults: &mut Faults<'_>) -> Vec<String> {
    let count = limits.value.len();
    let max = SETTINGS.bounds.patterns_max;
    if count == 0 || count > max {
        let what = format!(
            "{count} patterns: `limits` names 1 to {max}, such as [\"shop/*\"]; leave it out to hear of all"
        );
        faults.at(limits, what);
    }
    for pattern in &limits.value {
        let text = &pattern.value;
        let is_sound =
            (text.contains('/') || text.contains('*')) && text.len() <= SETTINGS.bounds.url_bytes_max;
        if !is_sound {
            let what = format!(
                "{:?} names no limit: write it as domain/name, such as \"shop/per-key\" or \"shop/*\"",
                text.chars().take(64).collect::<String>()
            );
            faults.at(pattern, what);
        }
    }
    limits.value.iter().map(|pattern| pattern.value.clone()).collect()
}

/// Reads a URL. Faults do not quote the URL, since it may be secret.
fn parse_url(text: &str) -> Result<Uri, String> {
    let fault = |what: &str| Err(format!("{what}: write the webhook's `url` as https://ops.example/acequia"));
    if text.len() > SETTINGS.bounds.url_bytes_max {
        return fault(&format!("a URL of more than {} bytes", SETTINGS.bounds.url_bytes_max));
    }
    if text.contains('#') {
        return fault("a URL with a fragment, which is never sent");
    }
    let Ok(url) = text.parse::<Uri>().map_err(Error::from).and_then(in_lower_case) else {
        return fault("this is no URL");
    };
    let (Some(scheme), Some(authority), Some(host)) = (url.scheme(), url.authority(), url.host()) else {
        return fault("a URL without a scheme or a host");
    };
    if authority.as_str().contains('@') {
        return fault("a URL with a name or a password: deliveries are signed with `secret_file`");
    }
    let port = authority.as_str().strip_prefix(host).unwrap_or("");
    let is_port = port.is_empty() || url.port_u16().is_some_and(|port| port > 0);
    let ip = ip(host);
    if !is_port || (ip.is_none() && !is_host_name(host)) {
        return fault("a URL whose host or port is none");
    }
    let is_local =
        ip.map_or_else(|| host.eq_ignore_ascii_case("localhost"), |ip| ip.to_canonical().is_loopback());
    match scheme {
        _ if *scheme == Scheme::HTTPS => Ok(url),
        // Events name tenants and addresses, and a signature hides nothing. There is no switch for plain
        // http: a proxy that encrypts, such as a mesh's sidecar, has an end on loopback.
        _ if *scheme == Scheme::HTTP && !is_local => fault(
            "http beyond loopback, where anybody could read what is told: use https, or a relay on 127.0.0.1",
        ),
        _ if *scheme == Scheme::HTTP => Ok(url),
        _ => fault("a URL that is not https"),
    }
}

/// The URL with its host in lower case, so that two spellings of one URL look alike.
fn in_lower_case(url: Uri) -> Result<Uri, Error> {
    let mut parts = url.into_parts();
    parts.authority = match parts.authority {
        Some(authority) => Some(authority.as_str().to_ascii_lowercase().parse()?),
        None => None,
    };
    Ok(Uri::from_parts(parts)?)
}

fn ip(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    }
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = Duration::from_nanos(parse_duration_ns(text)?);
    let (min, max) = (SETTINGS.bounds.timeout_min, SETTINGS.bounds.timeout_max);
    if !(min..=max).contains(&timeout) {
        return Err(format!("a webhook's timeout is {min:?} to {max:?}, not {text}"));
    }
    Ok(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Config,
        tests::{HEAD, accepted, refused, refused_once},
    };

    fn hooks(config: &Config) -> &[WebhookConfig] {
        &config.live.webhooks
    }

    fn one(url: &str, rest: &str) -> String {
        format!("{HEAD}webhooks:\n  - url: {url}\n    secret_file: ./webhook.key\n{rest}")
    }

    #[test]
    fn webhooks_are_read() {
        let config = accepted(&format!(
            "{}  - {{ url: \"http://127.0.0.1:9/\", secret_file: other.key }}\n",
            one("https://ops.example/acequia", "    limits: [\"shop/*\", \"!shop/tiny\"]\n    timeout: 7s\n")
        ));
        let [first, second] = hooks(&config) else { panic!("two hooks") };
        assert_eq!(first.url, "https://ops.example/acequia");
        assert_eq!(first.secret_file, PathBuf::from("./webhook.key"));
        assert_eq!(first.timeout, Duration::from_secs(7));
        for (path, hears) in [("shop/per-key", true), ("shop/tiny", false), ("bank/per-key", false)] {
            assert_eq!(first.limits.accepts(path.as_bytes()), hears, "{path}");
        }
        assert_eq!(second.timeout, SETTINGS.defaults.timeout);
        assert!(second.limits.accepts(b"any/limit"));
        assert!(config.to_string().contains(", 2 webhooks"), "{config}");
        assert!(hooks(&accepted(&format!("{HEAD}webhooks: []\n"))).is_empty());
        assert!(hooks(&accepted(HEAD)).is_empty());
    }

    #[test]
    fn a_plain_http_webhook_is_accepted_only_on_loopback() {
        for url in [
            "http://127.0.0.1/x",
            "http://127.9.9.9:8080",
            "\"http://[::1]:80/\"",
            "\"http://[::ffff:127.0.0.1]:80/\"",
            "http://localhost:9/hook?key=v",
            "HTTP://LOCALHOST:9",
            "https://10.0.0.1/",
            "\"https://[fd00::1]/\"",
            "https://ops_1.example:8443/a/b",
        ] {
            assert_eq!(hooks(&accepted(&one(url, ""))).len(), 1, "{url}");
        }
        for url in [
            "http://ops.example/x",
            "http://10.0.0.1/",
            "http://0.0.0.0/",
            "\"http://[fd00::1]/\"",
            "http://localhost.example/",
            "http://127.0.0.1.example/",
        ] {
            refused_once(&one(url, ""), 4, "http beyond loopback");
        }
    }

    #[test]
    fn faults_of_urls_say_how_to_write_them_and_do_not_quote_them() {
        let long = format!("https://ops.example/{}", "s3cret".repeat(400));
        for (url, word) in [
            ("s3cret.example/acequia", "no URL"),
            ("/s3cret", "without a scheme or a host"),
            ("\"\"", "no URL"),
            ("https://", "no URL"),
            ("https:///s3cret", "no URL"),
            ("ftp://s3cret.example/", "not https"),
            ("https://s3cret@ops.example/", "a name or a password"),
            ("\"https://ops.example/#s3cret\"", "fragment"),
            ("\"https://ops.example/s3 cret\"", "no URL"),
            ("\"https://ops.example/s3cret\\r\\nx: y\"", "no URL"),
            ("https://ops..example/", "host or port"),
            ("https://10.0.0.256/", "host or port"),
            ("https://ops.example:0/s3cret", "host or port"),
            ("https://ops.example:99999/", ""),
            ("https://öps.example/", "no URL"),
            (&long, "more than 2048 bytes"),
        ] {
            let text = one(url, "");
            refused_once(&text, 4, word);
            refused_once(&text, 4, "https://ops.example/acequia");
            let fault = Config::parse("test.yaml", &text).expect_err(url).to_string();
            assert!(!fault.contains("s3cret"), "{fault}");
        }
    }

    #[test]
    fn faults_of_webhooks_name_their_line() {
        let url = "https://ops.example/";
        for (rest, line, word) in [
            ("    timeout: 999ms\n", 6, "1s to 30s"),
            ("    timeout: 31s\n", 6, "1s to 30s"),
            ("    timeout: soon\n", 6, "soon"),
            ("    limits: []\n", 6, "leave it out"),
            ("    limits: [shop]\n", 6, "domain/name"),
            ("    limits:\n      - shop/*\n      - \"\"\n", 8, "names no limit"),
            ("    insecure: true\n", 6, "insecure"),
            ("    secret: hunter2\n", 6, "secret"),
        ] {
            refused(&one(url, rest), line, word);
        }
        refused(&format!("{HEAD}webhooks:\n  - url: {url}\n"), 4, "secret_file");
        refused(&format!("{HEAD}webhooks:\n  - secret_file: x\n"), 4, "url");
        refused(&format!("{HEAD}webhooks:\n  - {{ url: \"{url}\", secret_file: \"\" }}\n"), 4, "is empty");
        refused(&format!("{HEAD}webhooks: {url}\n"), 3, "");
        refused_once(
            &one(url, "  - url: HTTPS://OPS.example\n    secret_file: other.key\n"),
            6,
            "already there in line 4",
        );
        let many = vec!["shop/*"; 65].join(", ");
        refused_once(&one(url, &format!("    limits: [{many}]\n")), 6, "65 patterns");
    }

    #[test]
    fn sixteen_webhooks_are_accepted_and_one_more_is_refused() {
        let text = |count: usize| {
            let hook = |n| format!("  - {{ url: \"https://ops.example/{n}\", secret_file: key }}\n");
            format!("{HEAD}webhooks:\n{}", (0..count).map(hook).collect::<String>())
        };
        assert_eq!(hooks(&accepted(&text(16))).len(), 16);
        refused_once(&text(17), 3, "17 webhooks: at most 16");
    }
}
