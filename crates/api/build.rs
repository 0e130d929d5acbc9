//! Generates the messages, clients and servers of `acequia.v1` and of Envoy's RLS, without `protoc`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message as _;

const PROTO_ROOT: &str = "../../proto";
const PROTOS: [&str; 3] =
    ["acequia/v1/admin.proto", "acequia/v1/limiter.proto", "envoy/service/ratelimit/v3/rls.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO_ROOT}");

    let mut descriptors = protox::compile(PROTOS, [PROTO_ROOT])?;

    // Envoy's comments are reStructuredText: rustdoc would take the indented parts for code to test.
    tonic_prost_build::configure().disable_comments([".envoy", ".xds"]).compile_fds(descriptors.clone())?;

    // Served by gRPC reflection, where comments would only be weight.
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let path = PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin");
    fs::write(path, descriptors.encode_to_vec())?;
    Ok(())
}
