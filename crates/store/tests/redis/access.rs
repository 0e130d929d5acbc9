//! Users, passwords and certificates.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use acequia_store::redis::{ClientCertificate, Credentials, Password, Redis, Settings, ShardState, Tls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::time::sleep;

use crate::{
    scene::{self, group, opened, seen, serves},
    servers::Server,
};

/// The rules that the documentation tells operators to set.
const RULES: [&str; 7] =
    ["resetchannels", "~acequia:*", "+fcall", "+function|load", "+info", "+time", "+cluster|slots"];

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_user_with_the_documented_rights_is_enough() {
    let server = Server::start(&["--requirepass", "the operator's"]);
    let rules = [&["ACL", "SETUSER", "limiter", "on", ">first"][..], &RULES].concat();
    let with_password: Vec<&str> = ["-a", "the operator's"].into_iter().chain(rules).collect();
    assert_eq!(server.cli(&with_password), "OK");
    let file = server.folder().join("password");
    fs::write(&file, "wrong\n").expect("a file");
    let credentials =
        Credentials { username: Some("limiter".to_owned()), password: Password::File(file.clone()) };
    let settings =
        Settings { credentials: Some(credentials), ..scene::shards(std::slice::from_ref(&server)) };

    let redis = Redis::open(settings).expect("sound settings");
    seen(
        &redis,
        group(1),
        |state| matches!(state, ShardState::Lost { why } if why.contains("authentication")),
    )
    .await;
    // The file is read for each connection, so that a new password needs no restart.
    fs::write(&file, "first\n").expect("a file");
    serves(&redis, group(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_user_without_access_to_statistics_is_served() {
    let server = Server::start(&[]);
    let sections = ["+info|server", "+info|replication", "+info|memory"];
    server.cli(&[&["ACL", "SETUSER", "default", "-info"][..], &sections].concat());
    let redis = opened(scene::shards(std::slice::from_ref(&server))).await;
    // Looks come at least twice a second.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_500) {
        serves(&redis, group(1)).await;
        sleep(Duration::from_millis(20)).await;
    }
    let view = redis.shards().remove(0);
    assert_eq!((view.state, view.function_us), (ShardState::Open, 0));
    assert!(server.cli(&["ACL", "LOG"]).contains("info"), "it was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_user_without_the_right_to_load_functions_is_reported() {
    let server = Server::start(&[]);
    server.cli(&["ACL", "SETUSER", "default", "-function"]);
    let redis = Redis::open(scene::shards(std::slice::from_ref(&server))).expect("sound settings");
    seen(
        &redis,
        group(1),
        |state| matches!(state, ShardState::Unsafe { why } if why.contains("+function|load")),
    )
    .await;
    server.cli(&["ACL", "SETUSER", "default", "+function"]);
    serves(&redis, group(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_use_tls_with_certificates_of_both_sides() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    certificates(folder.path());
    let text = |name: &str| at(name).display().to_string();
    let (ca, cert, key) = (text("ca.pem"), text("server.pem"), text("server.key"));
    let options = ["--port", "0", "--tls-port", "{port}", "--tls-auth-clients", "yes"];
    let files = ["--tls-ca-cert-file", &ca, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let mut server = Server::start(&[&options[..], &files].concat());
    server.cli_options =
        ["--tls", "--cacert", &ca, "--cert", &cert, "--key", &key].map(ToOwned::to_owned).to_vec();
    let client = ClientCertificate { cert_file: at("client.pem"), key_file: at("client.key") };
    let tls = Tls { ca_file: at("ca.pem"), client: Some(client), server_name: Some("redis.test".to_owned()) };
    let settings = |tls| Settings { tls: Some(tls), ..scene::shards(std::slice::from_ref(&server)) };

    let redis = opened(settings(tls.clone())).await;
    assert_eq!(serves(&redis, group(1)).await, server.run_id());

    let is_lost = |state: &ShardState| matches!(state, ShardState::Lost { .. });
    let another_name = Tls { server_name: Some("elsewhere.test".to_owned()), ..tls.clone() };
    let redis = Redis::open(settings(another_name)).expect("sound settings");
    let view = seen(&redis, group(1), is_lost).await;
    assert!(matches!(view.state, ShardState::Lost { why } if why.contains("TLS")));

    let unknown = Tls { client: None, ..tls };
    let redis = Redis::open(settings(unknown)).expect("sound settings");
    seen(&redis, group(1), is_lost).await;
}

/// An authority, a server and a client.
fn certificates(folder: &Path) {
    let key = || KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.distinguished_name.push(DnType::CommonName, "an authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, key()).expect("an authority");
    fs::write(folder.join("ca.pem"), authority.pem()).expect("a file");
    for name in ["server", "client"] {
        let key = key();
        let mut params = CertificateParams::new(vec!["redis.test".to_owned()]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &authority).expect("a certificate");
        fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("a file");
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("a file");
    }
}
