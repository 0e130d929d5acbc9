//! Checks that `src/generated` matches the protos.
//!
//! This test generates the messages, clients and servers of `acequia.v1` and of the rate limit services of Envoy and
//! Kuadrant, without `protoc`. If they differ from the files in the repository, the test rewrites the files and
//! fails: review the changes, and commit them.

use std::{fs, path::Path};

use prost::Message as _;

const PROTO_ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto");
const PROTOS: [&str; 4] = [
    "acequia/v1/admin.proto",
    "acequia/v1/limiter.proto",
    "envoy/service/ratelimit/v3/rls.proto",
    "kuadrant/service/ratelimit/v1/ratelimit.proto",
];
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/generated");
/// The packages that the crate includes. The other packages hold annotations alone.
const INCLUDED: [&str; 7] = [
    "acequia.v1.rs",
    "envoy.config.core.v3.rs",
    "envoy.extensions.common.ratelimit.v3.rs",
    "envoy.r#type.v3.rs",
    "envoy.service.ratelimit.v3.rs",
    "kuadrant.service.ratelimit.v1.rs",
    "xds.core.v3.rs",
];

#[test]
fn the_generated_files_agree_with_the_protos() {
    let mut descriptors = protox::compile(PROTOS, [PROTO_ROOT]).expect("sound protos");
    let made = tempfile::tempdir().expect("a folder");
    // Envoy's comments are reStructuredText: rustdoc would take the indented parts for code to test.
    tonic_prost_build::configure()
        .out_dir(made.path())
        .disable_comments([".envoy", ".xds"])
        .compile_fds(descriptors.clone())
        .expect("generated code");

    // gRPC reflection serves these descriptors. Comments would only make them larger.
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let mut stale = Vec::new();
    let set = ("descriptors.bin", descriptors.encode_to_vec());
    let code = INCLUDED.map(|name| (name, fs::read(made.path().join(name)).expect("a generated file")));
    for (name, content) in code.into_iter().chain([set]) {
        let kept = Path::new(KEPT).join(name);
        if fs::read(&kept).ok().as_ref() != Some(&content) {
            fs::write(&kept, content).expect("a file");
            stale.push(name);
        }
    }
    assert!(stale.is_empty(), "{stale:?} did not say what the protos say: written anew, look and commit");
}
