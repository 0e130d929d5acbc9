//! Pods as Envoy Gateway and Envoy AI Gateway start them: their command, arguments, variables, files, ports and probes.
//!
//! The image holds the binary and the system's libraries, nobody may write to its root, and the user is 65534.
//! Ports and names are fixed there, so a test runs itself again, in a network and with mounts of its own.

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Child, Command, Stdio},
};

use acequia_api::envoy::service::ratelimit::v3::{
    rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use acequia_tests::{binary, eventually};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity, ServerTlsConfig};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::xds::{Server, shop};
use crate::{callers::Authority, client::Http, envoy};

/// The folder of the image, for a test that runs itself again.
const IMAGE: &str = "ACEQUIA_TEST_IMAGE";

/// What a kubelet gives nobody who does not ask: no user, and no group.
const NOBODY: &str = "65534:65534";

/// Runs a test of this module again, where ports and mounts are its own. There, `pod` is the folder of the image.
fn alone(test: &str, pod: impl FnOnce(&Path)) {
    if let Some(image) = env::var_os(IMAGE) {
        return pod(Path::new(&image));
    }
    // The folder is removed where nothing is mounted on it.
    let image = tempfile::tempdir().expect("a folder");
    let (_, module) = module_path!().split_once("::").expect("a module of a test program");
    let output = Command::new("unshare")
        .args(["--mount", "--net", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""])
        .arg(env::current_exe().expect("this program"))
        .args([&format!("{module}::{test}"), "--exact", "--nocapture"])
        .env(IMAGE, image.path())
        .output()
        .expect("these tests need unshare and ip: `apt-get install util-linux iproute2`");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "as root, that is: {text}");
}

fn run(command: &str, arguments: &[&str]) {
    let output = Command::new(command).args(arguments).output().expect("it starts");
    assert!(output.status.success(), "{command} {arguments:?}: {output:?}");
}

/// A pod's only container, until this is dropped.
struct Pod {
    child: Child,
}

impl Pod {
    /// Starts `/bin/ratelimit` of an image with these names of hosts, files, arguments and variables.
    fn start(
        image: &Path,
        hosts: &str,
        files: &[(&str, &Path)],
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let place = |path: &str| image.join(path);
        let text = |path: &Path| path.display().to_string();
        fs::set_permissions(image, fs::Permissions::from_mode(0o755)).expect("set");
        run("mount", &["--bind", &text(image), &text(image)]);
        for folder in ["bin", "etc", "proc", "usr", "certs"] {
            fs::create_dir(place(folder)).expect("made");
        }
        for libraries in ["lib", "lib64"] {
            symlink(format!("usr/{libraries}"), place(libraries)).expect("linked");
        }
        fs::write(place("etc/hosts"), format!("127.0.0.1 localhost {hosts}\n")).expect("written");
        for (path, file) in files {
            fs::copy(file, place(path)).expect("copied");
            fs::set_permissions(place(path), fs::Permissions::from_mode(0o644)).expect("set");
        }
        fs::write(place("bin/ratelimit"), "").expect("written");
        run("mount", &["--bind", &text(binary()), &text(&place("bin/ratelimit"))]);
        run("mount", &["--bind", "/proc", &text(&place("proc"))]);
        run("mount", &["--bind", "-o", "ro", "/usr", &text(&place("usr"))]);
        run("mount", &["-o", "remount,bind,ro", &text(image)]);
        fs::write(place("x"), "").expect_err("the root can be written");
        let mut command = Command::new("/usr/sbin/chroot");
        command.args(["--userspec", NOBODY]).arg(image).arg("/bin/ratelimit").args(arguments);
        command.env_clear().envs(variables.iter().copied()).stdin(Stdio::null());
        Self { child: command.spawn().expect("the container starts") }
    }

    /// Waits until the probes of the pod would pass.
    fn until_healthy(&self) {
        eventually("the probe passes", || {
            let address = ([127, 0, 0, 1], 8080).into();
            std::net::TcpStream::connect::<std::net::SocketAddr>(address).is_ok()
                && Http::to(address).get("/healthcheck").status == 200
        });
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("a process");
        assert!(status.contains("Uid:\t65534\t65534\t65534\t65534"), "{status}");
    }

    fn get(port: u16, path: &str) -> String {
        let reply = Http::to(([127, 0, 0, 1], port).into()).get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        reply.body
    }

    /// Asks it to stop, as a kubelet does.
    fn stop(mut self) {
        run("kill", &["-TERM", &self.child.id().to_string()]);
        let status = self.child.wait().expect("an end");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Redis at its well-known port. It ends with the test's network.
struct Redis(Child);

impl Redis {
    fn start() -> Self {
        let mut command = Command::new("redis-server");
        command.args(["--port", "6379", "--bind", "127.0.0.1", "--save", ""]).stdout(Stdio::null());
        Self(command.spawn().expect("a Redis"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks for one hit of a tenant until the Redis answers, and says what is left of five.
async fn left_after_a_hit(client: &mut RateLimitServiceClient<Channel>) -> u32 {
    let request = || envoy::request(&[&[("tenant", "a")]]);
    let mut look = request();
    look.descriptors[0].hits_addend = Some(0);
    while client.should_rate_limit(look.clone()).await.expect("an answer").into_inner().overall_code()
        != Code::Ok
    {
        tokio::task::yield_now().await;
    }
    let answer = client.should_rate_limit(request()).await.expect("an answer").into_inner();
    assert_eq!(answer.overall_code(), Code::Ok, "{answer:?}");
    answer.statuses[0].limit_remaining
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn envoy_gateways_pod_starts_with_its_certificates_and_counts_in_its_redis() {
    alone("envoy_gateways_pod_starts_with_its_certificates_and_counts_in_its_redis", |image| {
        let authority = Authority::new();
        let ca = authority.path("ca.crt");
        let [cert, key] =
            authority.sign("ratelimit", &["envoy-ratelimit", "*.envoy-gateway-system.svc"], |_| {});
        let [gateway_cert, gateway_key] = authority.sign("gateway", &["envoy-gateway"], |_| {});
        let read = |path: &str| fs::read(path).expect("a file");
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(read(&gateway_cert), read(&gateway_key)))
            .client_ca_root(Certificate::from_pem(read(&ca)));
        let _redis = Redis::start();
        let management = Server::start_with(18001, Some(tls));
        let files = [("certs/ca.crt", &ca), ("certs/tls.crt", &cert), ("certs/tls.key", &key)];
        let files = files.map(|(place, path)| (place, Path::new(path)));
        let pod = Pod::start(
            image,
            "envoy-gateway redis.redis.svc",
            &files,
            &[],
            &[
                ("RUNTIME_ROOT", "/data"),
                ("RUNTIME_SUBDIRECTORY", "ratelimit"),
                ("RUNTIME_IGNOREDOTFILES", "true"),
                ("RUNTIME_WATCH_ROOT", "false"),
                ("LOG_LEVEL", "info"),
                ("USE_STATSD", "false"),
                ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
                ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
                ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
                ("GRPC_SERVER_USE_TLS", "true"),
                ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
                ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
                ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
                ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
                ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
                ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
                ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
                ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
                ("REDIS_SOCKET_TYPE", "tcp"),
                ("REDIS_URL", "redis.redis.svc:6379"),
                ("USE_PROMETHEUS", "true"),
                ("PROMETHEUS_ADDR", ":19001"),
                ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
                ("TRACING_ENABLED", "true"),
                ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
                ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
                ("TRACING_SERVICE_INSTANCE_ID", "envoy-ratelimit-0"),
                ("TRACING_SAMPLING_RATE", "1.0"),
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://trace-collector:4318"),
            ],
        );
        pod.until_healthy();
        assert_eq!(management.send("1", &[shop(5)]).error_detail, None);
        assert!(Pod::get(6070, "/rlconfig").contains("shop.tenant: unit=YEAR requests_per_unit=5"));
        runtime().block_on(async {
            let tls = ClientTlsConfig::new()
                .ca_certificate(Certificate::from_pem(read(&ca)))
                .identity(Identity::from_pem(read(&gateway_cert), read(&gateway_key)))
                .domain_name("envoy-ratelimit");
            let channel = Channel::from_static("https://127.0.0.1:8081").tls_config(tls).expect("TLS");
            let channel = channel.connect().await.expect("connected");
            assert_eq!(left_after_a_hit(&mut RateLimitServiceClient::new(channel.clone())).await, 4);
            let asked = HealthCheckRequest { service: "ratelimit".to_owned() };
            let health = HealthClient::new(channel).check(asked).await.expect("an answer").into_inner();
            assert_eq!(health.status().as_str_name(), "SERVING");
        });
        assert!(Pod::get(19001, "/metrics").contains("ratelimit_service_rate_limit_total_hits"));
        pod.stop();
    });
}

/// The manifest has an argument that the service does not look at.
#[test]
fn ai_gateways_pod_starts_with_its_argument_and_its_limits_by_plain_text() {
    alone("ai_gateways_pod_starts_with_its_argument_and_its_limits_by_plain_text", |image| {
        const CONTROLLER: &str = "ai-gateway-controller.envoy-ai-gateway-system.svc.cluster.local";
        let _redis = Redis::start();
        let management = Server::start_with(18002, None);
        let hosts = format!("{CONTROLLER} redis.redis-system.svc.cluster.local");
        let arguments = ["--quotaRateLimitServiceHost=envoy-ai-gateway-ratelimit.envoy-gateway-system"];
        let pod = Pod::start(
            image,
            &hosts,
            &[],
            &arguments,
            &[
                ("LOG_LEVEL", "debug"),
                ("REDIS_SOCKET_TYPE", "tcp"),
                ("REDIS_URL", "redis.redis-system.svc.cluster.local:6379"),
                ("RUNTIME_ROOT", "/data"),
                ("RUNTIME_SUBDIRECTORY", "ratelimit"),
                ("USE_STATSD", "false"),
                ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
                ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ai-gateway-ratelimit"),
                ("CONFIG_GRPC_XDS_SERVER_URL", &format!("{CONTROLLER}:18002")),
                ("GRPC_PORT", "8081"),
            ],
        );
        assert_eq!(management.send("1", &[shop(5)]).error_detail, None);
        pod.until_healthy();
        runtime().block_on(async {
            let client = RateLimitServiceClient::connect("http://127.0.0.1:8081");
            assert_eq!(left_after_a_hit(&mut client.await.expect("connected")).await, 4);
        });
        pod.stop();
    });
}
