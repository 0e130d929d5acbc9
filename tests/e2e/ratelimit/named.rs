//! Limits that callers name in descriptors.

use acequia_api::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::{
        RateLimitResponse,
        rate_limit_response::{Code, RateLimit, rate_limit::Unit},
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use acequia_tests::{
    Node,
    cluster::{Cluster, REGIONS},
};
use tonic::transport::Channel;

use super::place::Replacement;
use crate::{
    envoy,
    store::{self, servers::Server},
};

/// Asks for one hit of a tenant, for whom the caller names so many a unit of time.
async fn ask(
    client: &mut RateLimitServiceClient<Channel>,
    tenant: &str,
    requests_per_unit: u32,
    unit: Unit,
) -> RateLimitResponse {
    let mut request = envoy::request(&[&[("tenant", tenant)]]);
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit, unit: unit as i32 });
    client.should_rate_limit(request).await.expect("an answer").into_inner()
}

/// How many of 20 requests pass.
async fn passed(
    client: &mut RateLimitServiceClient<Channel>,
    tenant: &str,
    requests_per_unit: u32,
    unit: Unit,
) -> usize {
    let mut passed = 0;
    for _ in 0..20 {
        let answer = ask(client, tenant, requests_per_unit, unit).await;
        passed += usize::from(answer.overall_code() == Code::Ok);
    }
    passed
}

async fn client(node: &Node) -> RateLimitServiceClient<Channel> {
    RateLimitServiceClient::new(crate::client::channel(node).await)
}

const ORDINARY: &str =
    "limits: [{ name: all, domain: shop, by: [tenant], fixed_window: { limit: 3, window: 365d } }]";

#[tokio::test]
async fn what_a_caller_names_counts_instead_of_the_configs_limits() {
    let named = format!("domains: {{ shop: {{ limits_from_callers: true }} }}\n{ORDINARY}");
    let node = Node::start(&named);
    let mut client = client(&node).await;
    let answer = ask(&mut client, "a", 10, Unit::Year).await;
    let status = &answer.statuses[0];
    let shown = RateLimit { name: String::new(), requests_per_unit: 10, unit: Unit::Year.into() };
    assert_eq!((status.current_limit.as_ref(), status.limit_remaining), (Some(&shown), 9), "{answer:?}");
    assert_eq!(passed(&mut client, "a", 10, Unit::Year).await, 9);
    assert_eq!(passed(&mut client, "a", 7, Unit::Year).await, 7, "another number is another limit");
    assert_eq!(passed(&mut client, "a", 7, Unit::Month).await, 7, "another unit, too");
    assert_eq!(passed(&mut client, "b", 7, Unit::Year).await, 7, "another tenant");
    assert_eq!(passed(&mut client, "a", 0, Unit::Year).await, 0);
    assert_eq!(passed(&mut client, "a", 10, Unit::Unknown).await, 3, "no limit, so the config's counts");

    let node = Node::start(ORDINARY);
    let mut client = self::client(&node).await;
    assert_eq!(passed(&mut client, "a", 10, Unit::Year).await, 3, "nobody said that callers name limits");
}

#[tokio::test]
async fn replicas_count_in_their_redis_what_callers_name() {
    let server = Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port());
    let variables =
        [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", url.as_str()), ("ACEQUIA_LIMITS_FROM_CALLERS", "true")];
    let replicas = [Replacement::start(&variables), Replacement::start(&variables)];
    let mut admitted = 0;
    for (replica, left) in replicas.iter().zip([10, 0]) {
        let address = format!("http://127.0.0.1:{}", replica.grpc());
        let mut client = RateLimitServiceClient::connect(address).await.expect("connected");
        // A call that the Redis does not answer in time is denied, and may be counted.
        for hit in 0.. {
            assert!(hit < 100, "{left} are never left");
            let answer = ask(&mut client, "a", 30, Unit::Year).await;
            admitted += u32::from(answer.overall_code() == Code::Ok);
            let status = &answer.statuses[0];
            assert_eq!(status.current_limit.as_ref().map(|limit| limit.requests_per_unit), Some(30));
            if answer.overall_code() == Code::Ok && status.limit_remaining <= left {
                break;
            }
        }
    }
    assert!((25..=30).contains(&admitted), "{admitted} of 30");
    for replica in &replicas {
        let address = format!("http://127.0.0.1:{}", replica.grpc());
        let mut client = RateLimitServiceClient::connect(address).await.expect("connected");
        assert_eq!(ask(&mut client, "a", 30, Unit::Year).await.overall_code(), Code::OverLimit);
    }
}

/// Nodes that share a store have even parts of what is named: no pool has any, and no lease gives any.
#[test]
fn nodes_that_share_a_store_admit_together_what_a_caller_names() {
    let _alone = store::alone();
    let server = Server::start(&[]);
    let servers = format!("shards: {}", store::listed(std::slice::from_ref(&server)));
    let named = "domains: { shop: { limits_from_callers: true } }\nlimits: []\n";
    let nodes = ["eu-1", "eu-2"];
    let nodes = store::start_all(nodes.map(|node| store::config_of(node, &nodes, &servers, named)));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for (number, most) in [(1, 1), (2, 1), (12, 6), (13, 7)] {
        let admitted = nodes.iter().map(|node| {
            runtime.block_on(async {
                let admitted = passed(&mut client(node).await, &number.to_string(), number, Unit::Year).await;
                assert!(admitted <= most, "{admitted} of {number} at one node");
                admitted as u32
            })
        });
        assert_eq!(admitted.sum::<u32>(), number);
    }
}

/// Every region has its standing share of what is named, and lends nothing.
#[test]
fn all_regions_together_admit_what_a_caller_names_and_no_more() {
    let cluster = Cluster::start("domains: { shop: { limits_from_callers: true } }\nlimits: []\n");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for (number, each) in [(1, 1), (2, 1), (12, 4)] {
        let admitted = cluster.nodes.iter().map(|node| {
            runtime.block_on(async {
                let admitted = passed(&mut client(node).await, &number.to_string(), number, Unit::Year).await;
                assert!(admitted <= each, "{admitted} of {number} in one region");
                admitted as u32
            })
        });
        assert_eq!(admitted.sum::<u32>(), number);
    }
    assert_eq!(cluster.nodes.len(), REGIONS.len());
}
