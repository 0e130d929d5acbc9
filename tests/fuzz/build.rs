//! Generates the messages of these APIs, like `crates/api`. Clients and servers are left out: tonic would be half
//! of the build.

use std::error::Error;

const PROTO_ROOT: &str = "../../proto";
const PROTOS: [&str; 3] = [
    "acequia/v1/limiter.proto",
    "envoy/service/ratelimit/v3/rls.proto",
    "kuadrant/service/ratelimit/v1/ratelimit.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO_ROOT}");
    prost_build::Config::new().disable_comments(["."]).compile_fds(protox::compile(PROTOS, [PROTO_ROOT])?)?;
    Ok(())
}
