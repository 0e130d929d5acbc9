//! Configures TLS and QUIC: who is accepted, and what a peer may make this node hold.

use std::{sync::Arc, time::Duration};

use quinn::{
    ConnectionIdGenerator, EndpointConfig, IdleTimeout, TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use ring::{hkdf, hmac};
use rustls::{client::Resumption, server::WebPkiClientVerifier, version::TLS13};

use crate::{
    Credentials, FRAME_BYTES_MAX, Timing,
    certs::{provider, roots},
    frame::HEAD_BYTES,
    ids::Ids,
};

/// The protocol name that both sides announce. The format of frames has its own versions, above this crate.
const PROTOCOL: &[u8] = b"acequia/1";
/// The most frames that a peer may have in flight to this node: twice as many as a node of this version
/// sends.
pub(crate) const STREAMS_IN_MAX: u32 = 32;
/// The most bytes that a peer may send on one connection before any of them is read.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// The round trip that a new connection expects. A lost first packet is repeated after three times this.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);
/// The longest time that a token proves an address.
const RETRY_TOKEN_LIFETIME: Duration = Duration::from_secs(5);
/// The most first packets that wait for this crate to look at them.
const INCOMING_MAX: usize = 128;
/// The most bytes that may arrive for each of those first packets meanwhile. A dialler says nothing more
/// before it is answered.
const INCOMING_BYTES_MAX: u64 = 8 << 10;

/// The configuration of new connections.
pub(crate) struct Secured {
    pub(crate) client: quinn::ClientConfig,
    pub(crate) server: quinn::ServerConfig,
}

impl Secured {
    pub(crate) fn new(
        credentials: &Credentials,
        timing: &Timing,
        reset_key: &[u8; 32],
    ) -> Result<Self, String> {
        let transport = Arc::new(transport(timing)?);
        let client = QuicClientConfig::try_from(client_tls(credentials)?).map_err(|e| e.to_string())?;
        let mut client = quinn::ClientConfig::new(Arc::new(client));
        client.transport_config(Arc::clone(&transport));

        let server = QuicServerConfig::try_from(server_tls(credentials)?).map_err(|e| e.to_string())?;
        // The key is derived, so that an address proven to the earlier process is proven to this one.
        let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, b"acequia retry token").extract(reset_key);
        let mut server = quinn::ServerConfig::new(Arc::new(server), Arc::new(token_key));
        server
            .transport_config(transport)
            .migration(false)
            .retry_token_lifetime(RETRY_TOKEN_LIFETIME)
            .max_incoming(INCOMING_MAX)
            .incoming_buffer_size(INCOMING_BYTES_MAX)
            .incoming_buffer_size_total(INCOMING_MAX as u64 * INCOMING_BYTES_MAX);
        Ok(Self { client, server })
    }
}

/// The endpoint. With an unchanged `reset_key`, a restarted node recognises packets for the earlier process
/// as its own, and answers them with a stateless reset (RFC 9000 section 10.3).
pub(crate) fn endpoint(reset_key: &[u8; 32], rng_seed: Option<[u8; 32]>) -> EndpointConfig {
    let key = hmac::Key::new(hmac::HMAC_SHA256, reset_key);
    let mut config = EndpointConfig::new(Arc::new(key));
    config
        .cid_generator(move || -> Box<dyn ConnectionIdGenerator> { Box::new(Ids::new(rng_seed)) })
        .rng_seed(rng_seed);
    config
}

fn client_tls(credentials: &Credentials) -> Result<rustls::ClientConfig, String> {
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots(&credentials.authorities)?)
        .with_client_auth_cert(credentials.chain.clone(), credentials.key.clone_key())
        .map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // Every connection checks the present certificates.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server_tls(credentials: &Credentials) -> Result<rustls::ServerConfig, String> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots(&credentials.authorities)?), provider())
            .build()
            .map_err(|error| error.to_string())?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_single_cert(credentials.chain.clone(), credentials.key.clone_key())
        .map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn transport(timing: &Timing) -> Result<TransportConfig, String> {
    let idle = IdleTimeout::try_from(timing.idle).map_err(|_| "an idle time of centuries".to_owned())?;
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_IN_MAX))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32((FRAME_BYTES_MAX + HEAD_BYTES) as u32))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(u64::from(CONNECTION_WINDOW_BYTES))
        // A frame is useful only when it is complete, so the first frame goes first.
        .send_fairness(false)
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(timing.keep_alive))
        .initial_rtt(FIRST_ROUND_TRIP)
        // Larger packets would save little here. A path that drops larger packets would cost seconds.
        .mtu_discovery_config(None);
    Ok(transport)
}
