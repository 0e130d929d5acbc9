//! Nodes that run by a config of envoyproxy/ratelimit.

mod chance;
pub(crate) mod counted;
mod gateways;
mod live;
mod named;
pub(crate) mod place;
mod pods;
mod reference;
mod xds;

use std::{fs, os::unix::fs::symlink, time::SystemTime};

use acequia_api::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use acequia_tests::{Node, eventually, exit_and_text};

use self::{
    chance::Chance,
    reference::{Asked, Reference, Status},
};
use crate::{client::channel, envoy};

/// Requests of the comparison, over all domains.
const REQUESTS: usize = 100_000;
/// Domains of the comparison. Each has a config and a caller of its own.
const DOMAINS: usize = 20;

fn descriptor(asked: &Asked, is_negative_hits: bool) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| rate_limit_descriptor::Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    RateLimitDescriptor {
        entries: asked.entries.iter().map(entry).collect(),
        hits_addend: (asked.hits != 1).then_some(asked.hits),
        is_negative_hits,
        ..RateLimitDescriptor::default()
    }
}

fn status(answer: &DescriptorStatus) -> Status {
    let limit = answer.current_limit.as_ref();
    let shown = |limit: &RateLimit| (limit.name.clone(), limit.requests_per_unit, limit.unit());
    Status { code: answer.code(), remaining: answer.limit_remaining, limit: limit.map(shown) }
}

/// Whether a status says when the open window ends. That service says so in whole seconds.
fn resets_at_the_edge(answer: &DescriptorStatus) -> bool {
    let (Some(limit), Some(until)) = (&answer.current_limit, &answer.duration_until_reset) else {
        return answer.current_limit.is_none();
    };
    let days = match limit.unit() {
        Unit::Week => 7,
        Unit::Month => 30,
        Unit::Year => 365,
        other => panic!("{other:?}"),
    };
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock that is set").as_secs();
    let left = days * 86_400 - now % (days * 86_400);
    left.abs_diff(until.seconds.unsigned_abs()) <= 60
}

/// Asks a domain's requests one after the other. Returns how many were over the limit.
async fn compare(node: &Node, domain: &str, seed: u64) -> usize {
    let mut chance = Chance::new(seed);
    let mut reference = Reference::new(&mut chance, reference::WHOLE);
    let mut client = RateLimitServiceClient::new(channel(node).await);
    let mut over = 0;
    for number in 0..REQUESTS / DOMAINS {
        let request = reference.request(&mut chance);
        let gives_back = chance.below(25) == 0;
        let message = RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: request.iter().map(|asked| descriptor(asked, gives_back)).collect(),
            hits_addend: 0,
        };
        let answer: RateLimitResponse =
            client.should_rate_limit(message).await.expect("an answer").into_inner();
        if gives_back {
            request.iter().for_each(|asked| reference.give_back(asked));
            continue;
        }
        let (code, statuses) = reference.ask(&request);
        let said = || format!("seed {seed}, request {number}: {request:?} of\n{}", reference.yaml(domain));
        assert_eq!(answer.statuses.iter().map(status).collect::<Vec<_>>(), statuses, "{}", said());
        assert_eq!(answer.overall_code(), code, "{}", said());
        assert!(answer.statuses.iter().all(resets_at_the_edge), "{answer:?} {}", said());
        over += usize::from(code == Code::OverLimit);
    }
    over
}

#[tokio::test]
async fn imported_limits_answer_as_the_service_that_they_were_written_for() {
    let config = |domain: usize| {
        let reference = Reference::new(&mut Chance::new(domain as u64 + 1), reference::WHOLE);
        (format!("{domain}.yaml"), reference.yaml(&format!("domain-{domain}")))
    };
    let configs: Vec<(String, String)> = (0..DOMAINS).map(config).collect();
    let files: Vec<(&str, &str)> =
        configs.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let node = Node::start_with_ratelimit("limits: []", &files);
    let domains =
        (0..DOMAINS).map(async |domain| compare(&node, &format!("domain-{domain}"), domain as u64 + 1).await);
    let over: usize = futures::future::join_all(domains).await.into_iter().sum();
    assert!((REQUESTS / 20..REQUESTS * 19 / 20).contains(&over), "{over} of {REQUESTS} were over a limit");
}

const TENANTS: &str = "
domain: shop
descriptors:
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 3 } }
";

async fn left(node: &Node, entries: &[(&str, &str)]) -> Option<u32> {
    let mut request = envoy::request(&[entries]);
    request.descriptors[0].hits_addend = Some(0);
    let status = envoy::ask(node, request).await.statuses.remove(0);
    status.current_limit.map(|_| status.limit_remaining)
}

#[tokio::test]
async fn limits_follow_a_folder_whose_link_is_swapped() {
    let node = Node::start_with_ratelimit("limits: []", &[]);
    let versions = node.ratelimit();
    for (version, requests) in [("..1", "3"), ("..2", "5")] {
        fs::create_dir(versions.join(version)).expect("made");
        let text = TENANTS.replace("_unit: 3", &format!("_unit: {requests}"));
        fs::write(versions.join(version).join("shop.yaml"), text).expect("written");
    }
    let swap = |version: &str| {
        symlink(version, versions.join("..new")).expect("linked");
        fs::rename(versions.join("..new"), versions.join("..data")).expect("swapped");
    };
    swap("..1");
    symlink("..data/shop.yaml", versions.join("shop.yaml")).expect("linked");
    until_left(&node, 3).await;
    assert_eq!(envoy::ask(&node, envoy::request(&[&[("tenant", "a")]])).await.overall_code(), Code::Ok);
    swap("..2");
    // The new number is 5, and the counted request stays counted.
    until_left(&node, 4).await;

    fs::write(versions.join("..2").join("shop.yaml"), "domain: shop\nlimits: 7\n").expect("written");
    eventually("the fault is told", || node.stderr().contains("shop.yaml:2: "));
    assert_eq!(left(&node, &[("tenant", "a")]).await, Some(4), "the last good config stays");
}

/// Waits until a tenant has so much left.
async fn until_left(node: &Node, units: u32) {
    let begun = std::time::Instant::now();
    while left(node, &[("tenant", "a")]).await != Some(units) {
        assert!(begun.elapsed() < acequia_tests::PATIENCE, "{units} are never left: {}", node.stderr());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn imported_limits_and_own_ones_count_side_by_side() {
    let own = "limits: [{ name: all, domain: shop, by: [tenant], fixed_window: { limit: 2, window: 365d } }]";
    let node = Node::start_with_ratelimit(own, &[("shop.yaml", TENANTS)]);
    let ask = async || envoy::ask(&node, envoy::request(&[&[("tenant", "a")]])).await.overall_code();
    assert_eq!(
        [ask().await, ask().await, ask().await, ask().await],
        [Code::Ok, Code::Ok, Code::OverLimit, Code::OverLimit]
    );
    let explained =
        exit_and_text(&["explain", "--address", &node.grpc().to_string(), "--domain", "shop", "user=u"]);
    assert!(explained.1.contains("entry 1 is user=u, wanted tenant"), "{explained:?}");
}

#[test]
fn a_contradiction_stops_the_start_with_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.yaml"), TENANTS.replace("year", "aeon")).expect("written");
    let path = folder.path().display().to_string();
    let (exit, text) = exit_and_text(&["serve", "--ratelimit-config", &path]);
    assert!(
        exit == Some(2) && text.contains("a.yaml: shop/tenant has the unit \"aeon\": write second"),
        "{text}"
    );
    let (exit, text) = exit_and_text(&["import", "envoy", &format!("{path}/a.yaml")]);
    assert!(exit == Some(2) && text.contains("has the unit \"aeon\""), "{text}");
    let (exit, text) = exit_and_text(&["serve", "--ratelimit-config", &format!("{path}/none")]);
    assert!(exit == Some(2) && text.contains("cannot read"), "{text}");
}
