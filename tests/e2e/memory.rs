//! The `memory` setting bounds the whole process, and a flood of one limit's keys takes no memory from other
//! limits.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use acequia_api::acequia::v1::{
    CheckBatch, CheckRequest, CheckResponse, Reason, limiter_client::LimiterClient,
};
use acequia_tests::Node;
use futures::{StreamExt as _, stream};
use serde_json::json;

use crate::{
    client::{Http, channel, metric},
    grpc::question,
};

const MIB: usize = 1 << 20;
/// Requests in a message.
const BATCH: u32 = 500;

/// Number of keys in a flood: 5 000 000 in `tests/soak memory`.
fn keys() -> u32 {
    std::env::var("ACEQUIA_TEST_KEYS").map_or(1_600_000, |keys| keys.parse().expect("a number of keys"))
}

/// Asks once for each key on a stream, and passes each answer to `each`.
async fn flood(
    node: &Node,
    keys: Range<u32>,
    ask: impl Fn(u32) -> CheckRequest + Send + 'static,
    mut each: impl FnMut(CheckResponse),
) {
    let mut limiter = LimiterClient::new(channel(node).await);
    let batches = keys.clone().step_by(BATCH as usize).map(move |from| {
        let all = from..keys.end.min(from + BATCH);
        CheckBatch { checks: all.map(&ask).collect() }
    });
    let mut answers = limiter.check_stream(stream::iter(batches)).await.expect("a stream").into_inner();
    while let Some(answer) = answers.next().await {
        answer.expect("no fault").results.into_iter().for_each(&mut each);
    }
}

/// Floods one limit's keys. Another limit's keys must be answered as before meanwhile, and known keys
/// afterwards.
async fn bounded_while_flooded(config: &str, memory: usize) {
    let node = Node::start(&format!(
        "memory: {}MiB\n{config}limits:\n\
         - {{ name: flooded, domain: shop, by: [key], token_bucket: {{ rate: 1/d, burst: 2 }} }}\n\
         - {{ name: other, domain: bank, by: [user], token_bucket: {{ rate: 1/d, burst: 2 }} }}\n",
        memory / MIB
    ));
    let ask = |key: u32| question(&[("key", &format!("key-{key}"))]);
    let of_bank = |user: &str| {
        let body = json!({ "domain": "bank", "descriptors": [{ "user": user }] }).to_string();
        Http::connect(&node).check(&body).json()
    };
    let at_start = node.resident();
    // Spend the units of some keys of both limits. The streams are as long as those of the flood, so that
    // buffers reach their full size.
    let mut passed = 0;
    for _ in 0..2 {
        flood(
            &node,
            0..keys() / 8,
            move |key| ask(key % 1_000),
            |answer| passed += u32::from(answer.allowed),
        )
        .await;
        of_bank("known");
    }
    assert_eq!(passed, 2_000);
    let before = node.resident();

    let (mut shared, mut apart, mut slowest) = (0, 0, Duration::ZERO);
    for part in 0..8 {
        let (from, to) = (1_000 + keys() / 8 * part, 1_000 + keys() / 8 * (part + 1));
        flood(&node, from..to, ask, |answer| match answer.reason() {
            Reason::Overflow => shared += 1,
            _ => apart += u32::from(answer.allowed),
        })
        .await;
        let begun = Instant::now();
        for user in 0..20 {
            let answer = of_bank(&format!("user-{part}-{user}"));
            assert_eq!(
                (&answer["allowed"], &answer["reason"]),
                (&json!(true), &json!("within-limit")),
                "{answer}"
            );
        }
        slowest = slowest.max(begun.elapsed() / 20);
    }
    let took = node.resident().saturating_sub(before);
    let accounted =
        ["cells", "charges", "journal"].map(|of| metric(&node, "acequia_memory_bytes", &[("of", of)]));
    let accounted = accounted.iter().sum::<f64>() as usize;
    eprintln!(
        "{config:?}: {apart} keys apart, {shared} shared one cell; {} KiB accounted, {} KiB taken after {} and {}, of {} KiB; {slowest:?} for others",
        accounted >> 10,
        took >> 10,
        at_start >> 10,
        before >> 10,
        memory >> 10
    );
    assert!(shared > 0, "so many keys do not fit");
    assert!(accounted <= memory, "{accounted} bytes accounted of {memory}");
    assert!(accounted * 10 >= memory * 7, "{accounted} bytes accounted of {memory}");
    assert!(took * 10 <= memory * 11, "{took} bytes taken, of {memory}");
    // Spent units stay spent, and known keys stay known.
    let mut again = Vec::new();
    flood(&node, 0..1_000, ask, |answer| again.push((answer.allowed, answer.reason()))).await;
    assert!(again.iter().all(|answer| *answer == (false, Reason::OverLimit)), "{:?}", &again[..8]);
    assert_eq!(of_bank("known")["reason"], "over-limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_keys_takes_what_is_accounted() {
    bounded_while_flooded("", 64 * MIB).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_keys_that_are_journalled_takes_what_is_accounted() {
    bounded_while_flooded("data: DATA\n", 64 * MIB).await;
}

/// Names of charges share the memory of cells.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_charges_takes_what_is_accounted() {
    let memory = 64 * MIB;
    let node = Node::start(
        "memory: 64MiB\ncharges: { records: 1000000 }\n\
         limits: [{ name: all, domain: shop, by: [key], token_bucket: { rate: 1000000/s, burst: 1000000 } }]\n",
    );
    let limiter = LimiterClient::new(channel(&node).await);
    let names = async |names: Range<u32>| {
        let calls = names.map(|name| {
            let mut limiter = limiter.clone();
            async move {
                let named = CheckRequest { id: format!("name-{name}"), ..question(&[("key", "same")]) };
                assert!(limiter.check(named).await.expect("an answer").into_inner().allowed);
            }
        });
        stream::iter(calls).buffer_unordered(100).count().await
    };
    for _ in 0..5 {
        names(0..1_000).await;
    }
    let before = node.resident();
    names(1_000..100_000).await;
    let took = node.resident().saturating_sub(before);
    let accounted = metric(&node, "acequia_memory_bytes", &[("of", "charges")]) as usize;
    eprintln!("charges: {} KiB accounted, {} KiB taken", accounted >> 10, took >> 10);
    assert!(accounted <= memory / 4 && accounted >= memory / 16, "{accounted} bytes accounted");
    assert!(took <= accounted * 11 / 10 + 4 * MIB, "{took} bytes taken, {accounted} accounted");
}
