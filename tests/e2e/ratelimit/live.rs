//! The Go service and Acequia side by side: one folder of configs, equal requests, equal answers.
//!
//! Configs and requests leave out what `deploy/from-ratelimit.md` lists as different. `ACEQUIA_GO_RATELIMIT` names the
//! Go service's binary, which tests/run installs. Without one, nothing is compared, and the output says so.

use std::{
    env,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use acequia_api::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus},
    rate_limit_service_client::RateLimitServiceClient,
};
use acequia_tests::binary;
use tonic::transport::Channel;

use super::{
    chance::Chance,
    place::Replacement,
    reference::{Asked, EARLY, Reference},
};
use crate::{client::channel_to, store::servers::Server};

/// Domains, each with a config of its own.
const DOMAINS: usize = 12;
/// Requests of a domain, one after the other.
const REQUESTS: usize = 500;
/// Calls to the Redis that took longer than Acequia waits. Such hits are denied, which the Go service never does.
const MISSED: (&str, [(&str, &str); 1]) = ("acequia_counting_calls_total", [("outcome", "missed")]);
/// How much later one service may look at its clock than the other.
const LATER: Duration = Duration::from_secs(30);

type Client = RateLimitServiceClient<Channel>;

/// The Go service's binary, if it is there.
fn go_service() -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/go/bin/service_cmd");
    let path = env::var_os("ACEQUIA_GO_RATELIMIT").map_or(installed, PathBuf::from);
    path.exists().then_some(path)
}

/// The Go service, and Acequia that counts in memory and in the Redis.
struct Services {
    go: Client,
    in_memory: Client,
    in_redis: Client,
    counting: Replacement,
    _others: [Replacement; 2],
    _redis: Server,
}

impl Services {
    async fn start(go: &Path, files: &[(&str, &str)]) -> Self {
        let redis = Server::start(&[]);
        let url = redis.address();
        let in_memory = [("LOG_LEVEL", "error")];
        let by_redis = [in_memory[0], ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", url.as_str())];
        let replacements = [
            Replacement::start_program(go, files, &by_redis),
            Replacement::start_program(binary(), files, &in_memory),
            Replacement::start_program(binary(), files, &by_redis),
        ];
        let clients = replacements.each_ref().map(|one| channel_to(([127, 0, 0, 1], one.grpc()).into()));
        let [go, in_memory, in_redis] = clients;
        let [go, in_memory, in_redis] =
            [go.await, in_memory.await, in_redis.await].map(RateLimitServiceClient::new);
        let [one, other, counting] = replacements;
        Self { go, in_memory, in_redis, counting, _others: [one, other], _redis: redis }
    }

    /// Calls to the Redis that took too long, so that their hits were denied.
    fn missed(&self) -> u64 {
        let (name, labels) = MISSED;
        self.counting.metrics().sum(name, &labels) as u64
    }
}

/// Sends a request. An error has no text, since its words differ.
async fn ask(client: &Client, request: &RateLimitRequest) -> Option<RateLimitResponse> {
    client.clone().should_rate_limit(request.clone()).await.ok().map(tonic::Response::into_inner)
}

/// Takes out of an answer when the window of each status ends, and what has words of each service's own.
fn take_times(response: &mut RateLimitResponse) -> Vec<Option<Duration>> {
    response.dynamic_metadata = None;
    response.response_headers_to_add.clear();
    let until = |status: &mut DescriptorStatus| {
        status.duration_until_reset.take().map(|until| Duration::try_from(until).expect("above 0"))
    };
    response.statuses.iter_mut().map(until).collect()
}

/// What differs between two answers.
fn difference(go: &Option<RateLimitResponse>, ours: &Option<RateLimitResponse>) -> Option<String> {
    let said = format!("the Go service: {go:?}\nAcequia: {ours:?}");
    let (Some(mut go), Some(mut ours)) = (go.clone(), ours.clone()) else {
        return (go.is_some() != ours.is_some()).then_some(said);
    };
    let times = [&mut go, &mut ours].map(take_times);
    let are_near = times[0].iter().zip(&times[1]).all(|(go, ours)| match (go, ours) {
        (Some(go), Some(ours)) => go.abs_diff(*ours) < LATER,
        (go, ours) => go == ours,
    });
    (go != ours || !are_near).then_some(said)
}

/// A request of a domain. Descriptors without hits of their own count what the whole request says.
fn message(domain: &str, request: &mut [Asked], hits_addend: u32) -> RateLimitRequest {
    let descriptors = request.iter().map(|asked| super::descriptor(asked, false)).collect();
    for asked in request.iter_mut().filter(|asked| asked.hits == 1) {
        asked.hits = u64::from(hits_addend.max(1));
    }
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend }
}

/// What was compared.
#[derive(Default)]
struct Compared {
    in_memory: usize,
    in_redis: usize,
    over: usize,
}

/// Asks all services a domain's requests.
async fn compare(services: &Services, domain: &str, seed: u64, compared: &mut Compared) {
    let mut chance = Chance::new(seed);
    let mut reference = Reference::new(&mut chance, EARLY);
    let missed_before = services.missed();
    let mut redis_counts = true;
    for number in 0..REQUESTS {
        let mut request = reference.request(&mut chance);
        request.retain(|asked| !reference.looks_at_nothing(asked));
        if request.is_empty() {
            continue;
        }
        let hits_addend = [0, 0, 0, 2][chance.below(4)];
        let message = message(domain, &mut request, hits_addend);
        // Only the reference's counts are of use: they say which looks to leave out.
        reference.ask(&request);
        let (go, in_memory, in_redis) = futures::join!(
            ask(&services.go, &message),
            ask(&services.in_memory, &message),
            ask(&services.in_redis, &message),
        );
        let said = |what: &str, difference: String| {
            let yaml = reference.yaml(domain);
            panic!("{what}, seed {seed}, request {number}: {message:?}\n{difference}\n{yaml}")
        };
        if let Some(difference) = difference(&go, &in_memory) {
            said("in memory", difference);
        }
        compared.in_memory += 1;
        compared.over +=
            usize::from(go.as_ref().is_some_and(|response| response.overall_code() == Code::OverLimit));
        if redis_counts && let Some(difference) = difference(&go, &in_redis) {
            redis_counts = false;
            if services.missed() == missed_before {
                said("in Redis", difference);
            }
        }
        compared.in_redis += usize::from(redis_counts);
    }
}

#[tokio::test]
async fn answers_are_those_of_the_go_service() {
    let Some(go) = go_service() else {
        println!(
            "\nlive: NOT COMPARED: no Go service at target/tools/go/bin/service_cmd, and none in ACEQUIA_GO_RATELIMIT"
        );
        return;
    };
    let begun = Instant::now();
    let config = |domain: usize| {
        let reference = Reference::new(&mut Chance::new(domain as u64 + 1), EARLY);
        (format!("{domain}.yaml"), reference.yaml(&format!("domain-{domain}")))
    };
    let configs: Vec<(String, String)> = (0..DOMAINS).map(config).collect();
    let files: Vec<(&str, &str)> =
        configs.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let services = Services::start(&go, &files).await;
    let mut compared = Compared::default();
    for domain in 0..DOMAINS {
        compare(&services, &format!("domain-{domain}"), domain as u64 + 1, &mut compared).await;
    }
    let Compared { in_memory, in_redis, over } = compared;
    println!(
        "\nlive: {in_memory} answers in memory and {in_redis} in Redis are those of the Go service, {over} over a limit, in {:.1?}",
        begun.elapsed()
    );
    assert!((in_memory / 20..in_memory * 19 / 20).contains(&over), "{over} of {in_memory} were over a limit");
    // A busy machine misses some calls.
    assert!(in_redis >= in_memory / 10, "only {in_redis} of {in_memory} were compared in Redis");
}

/// Domains, entries and hits that no proxy sends every day.
#[tokio::test]
async fn odd_requests_are_answered_as_by_the_go_service() {
    let Some(go) = go_service() else { return };
    let limits = "domain: shop\ndescriptors:\n\
                  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 5 } }\n\
                  - { key: route, value: '/x/*', share_threshold: true, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 2 } }\n\
                  - { key: zone, value_to_metric: true, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }\n\
                  - { key: path, descriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 1 } }] }\n";
    let services = Services::start(&go, &[("shop.yaml", limits)]).await;
    let entries = |entries: &[(&'static str, &'static str)]| Asked { entries: entries.to_vec(), hits: 1 };
    let tenant = || entries(&[("tenant", "a")]);
    let cases: [(&str, Vec<Asked>, u32); 11] = [
        ("", vec![tenant()], 0),
        ("shop", vec![], 0),
        ("elsewhere", vec![tenant()], 0),
        ("shop", vec![entries(&[("tenant", "")])], 0),
        ("shop", vec![entries(&[("tenant", "a"), ("user", "u")])], 0),
        ("shop", vec![entries(&[("path", "/")])], 0),
        ("shop", vec![entries(&[("path", "/"), ("user", "u")]), entries(&[("user", "u")])], 0),
        ("shop", vec![tenant()], u32::MAX),
        ("shop", vec![tenant(), entries(&[("zone", "z")])], 0),
        ("shop", vec![entries(&[("route", "/x/1")]), entries(&[("zone", "z")])], 2),
        ("shop", vec![entries(&[("route", "/x/2")]), entries(&[("zone", "z")])], 2),
    ];
    for (domain, mut request, hits_addend) in cases {
        let message = message(domain, &mut request, hits_addend);
        let (go, in_memory, in_redis) = futures::join!(
            ask(&services.go, &message),
            ask(&services.in_memory, &message),
            ask(&services.in_redis, &message),
        );
        assert_eq!(difference(&go, &in_memory), None, "{message:?}");
        let difference = difference(&go, &in_redis);
        assert!(difference.is_none() || services.missed() > 0, "{message:?}: {difference:?}");
    }
}
