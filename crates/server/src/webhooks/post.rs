//! The way to a hook: HTTP/1.1, with TLS by the root certificates of this machine.
//!
//! This is hyper's own client, which gRPC uses as well, with rustls and ring as in the mesh. Only
//! `hyper-rustls` and `rustls-native-certs` come in addition, and no OpenSSL. The client follows no
//! redirects, knows no cookies and no proxies, and reads only a bounded part of an answer. The machine's own
//! roots are used because operators can add theirs: receivers of alerts are often private.

use std::{error::Error as _, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring::default_provider};

use super::WebhooksError;
use crate::settings::SETTINGS;

const USER_AGENT: &str = concat!("acequia/", env!("CARGO_PKG_VERSION"));

/// One try to deliver an event.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) id: &'a str,
    /// The time of the try, in Unix seconds.
    pub(super) at_s: u64,
    pub(super) signature: String,
    pub(super) body: Bytes,
}

/// A connection to a hook, made on demand.
#[derive(Debug)]
pub(super) struct Post {
    url: Uri,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Post {
    /// A client for a URL. `patience`: how long a whole try may take.
    pub(super) fn new(url: Uri, trust: ClientConfig, patience: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        // A name's addresses share this time, so that one dead address does not use all of it.
        http.set_connect_timeout(Some(patience));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(trust)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(SETTINGS.webhooks.idle)
            .pool_max_idle_per_host(1)
            .http1_max_buf_size(SETTINGS.webhooks.head_bytes_max)
            .build(https);
        Self { url, client }
    }
}

impl Post {
    /// Sends a message, and returns the answer once its head is there. Dropping the future cuts the
    /// connection.
    pub(super) async fn send(&self, message: Message<'_>) -> Result<Response<Incoming>, String> {
        self.client.request(self.request(message)?).await.map_err(|fault| why(&fault))
    }

    fn request(&self, message: Message<'_>) -> Result<Request<Full<Bytes>>, String> {
        let Message { id, at_s, signature, body } = message;
        Request::post(self.url.clone())
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(header::USER_AGENT, HeaderValue::from_static(USER_AGENT))
            .header("webhook-id", id)
            .header("webhook-timestamp", at_s)
            .header("webhook-signature", signature)
            .body(Full::new(body))
            .map_err(|fault| fault.to_string())
    }
}

/// Reads and forgets the rest of an answer, up to a bound. Then the connection can be used again.
pub(super) async fn discard(body: Incoming) {
    // A fault in the answer, or too long an answer, ends the connection.
    let _ = Limited::new(body, SETTINGS.webhooks.answer_bytes_max).collect().await;
}

/// Trusts the root certificates of this machine.
pub(super) fn machine_trust() -> Result<ClientConfig, WebhooksError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Old roots that cannot be read do not sign any hook.
    let (_, _) = roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let cause = found.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
        return Err(WebhooksError::Roots(cause));
    }
    trust(roots)
}

/// Trusts these roots.
pub(super) fn trust(roots: RootCertStore) -> Result<ClientConfig, WebhooksError> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|fault| WebhooksError::Roots(fault.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The chain of faults, from the outermost in: the innermost alone may be a bare number of the system.
fn why(fault: &hyper_util::client::legacy::Error) -> String {
    let mut words = fault.to_string();
    let mut inner = fault.source();
    while let Some(cause) = inner {
        let text = cause.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        inner = cause.source();
    }
    words.chars().take(SETTINGS.webhooks.why_chars_max).collect()
}
