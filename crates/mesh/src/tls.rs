//! Configures TLS and QUIC: who is accepted, and what a peer may make this node hold.

use std::sync::Arc;

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
    settings::SETTINGS,
};

/// The protocol name that both sides announce. The format of frames has its own versions, above this crate.
const PROTOCOL: &[u8] = b"acequia/1";

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
            .retry_token_lifetime(SETTINGS.accept.proof_lifetime)
            .max_incoming(SETTINGS.accept.incoming_max)
            .incoming_buffer_size(SETTINGS.accept.incoming_bytes_max)
            .incoming_buffer_size_total(
                SETTINGS.accept.incoming_max as u64 * SETTINGS.accept.incoming_bytes_max,
            );
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
        .max_concurrent_uni_streams(VarInt::from_u32(SETTINGS.frames.streams_in_max))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32((FRAME_BYTES_MAX + HEAD_BYTES) as u32))
        .receive_window(VarInt::from_u32(SETTINGS.frames.window_bytes))
        .send_window(u64::from(SETTINGS.frames.window_bytes))
        // A frame is useful only when it is complete, so the first frame goes first.
        .send_fairness(false)
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(timing.keep_alive))
        .initial_rtt(SETTINGS.dial.first_round_trip)
        // Larger packets would save little here. A path that drops larger packets would cost seconds.
        .mtu_discovery_config(None);
    Ok(transport)
}
